//! That a run of a store finds what is wrong: histories that were doctored, and a store that stands still.

use disk::{Disk, OpenHow};

use super::*;
use crate::disk::Failure;
use crate::world::Twist;

/// Has a store with messages, lets `doctor` do something to what is known of it and look once more, and says what that found.
fn found(doctor: impl FnOnce(&mut Run<'_>, &Arc<Store>)) -> Vec<Verdict> {
    found_by(Plan::default(), |_| {}, doctor)
}

/// The same of a run by such a plan, and by such rules.
pub(super) fn found_by(
    plan: Plan,
    rule: impl FnOnce(&mut Run<'_>),
    doctor: impl FnOnce(&mut Run<'_>, &Arc<Store>),
) -> Vec<Verdict> {
    let mut world = World::new(1, Twist::default()).unwrap();
    let turns = world.turns.clone();
    let _in_charge = turns.enter();
    let mut report = Report::new(false);
    let options = StoreOptions { flush: FlushMode::Sync, pool: None, ..options(&world) };
    let mut run = Run::new(1, plan, &mut world, &mut report, options);
    rule(&mut run);
    let (store, _) = run.open(Crash::Killed).unwrap().unwrap();
    if plan.ages {
        run.ages_from_now(&store);
    }
    run.check_start(&store, End::Closed);
    for _ in 0..30 {
        run.send(&store);
    }
    run.settle(&store);
    run.check_living(&store);
    assert_eq!(run.report.findings, []);
    doctor(&mut run, &store);
    let found = run.report.verdicts();
    store.close().unwrap();
    world.next_life(Crash::Killed, &mut report).unwrap();
    found
}

/// A copy of the first message.
fn first(run: &Run<'_>) -> Message {
    run.messages.values().next().unwrap().clone()
}

#[test]
fn a_message_that_is_gone_is_lost() {
    let gone = |run: &mut Run<'_>| {
        let message = first(run);
        run.messages.insert(1_000, message);
    };
    let living = found(|run, store| {
        gone(run);
        run.check_living(store);
    });
    assert_eq!(living, [Verdict::Lost]);
    for end in [End::Closed, End::Crashed(Crash::Killed), End::Crashed(Crash::Power)] {
        let started = found(|run, store| {
            gone(run);
            run.check_start(store, end);
        });
        assert_eq!(started, [Verdict::Lost], "{end:?}");
    }
}

#[test]
fn a_message_that_was_promised_nothing_may_be_gone_and_not_one_below_the_log_s_end() {
    let behind = |end: u64| {
        found(move |run, store| {
            let message = Message { end, ..first(run) };
            run.messages.insert(1_000, message);
            run.check_start(store, End::Crashed(Crash::Power));
        })
    };
    assert_eq!(behind(u64::MAX), []);
    assert_eq!(behind(1), [Verdict::Lost]);
}

#[test]
fn a_message_that_is_there_twice_is_a_duplicate() {
    let found = found(|run, store| {
        // What is sent has the same numbers once more.
        let before = run.messages.clone();
        run.next_id = 1;
        run.send(store);
        run.settle(store);
        run.messages = before;
        run.check_living(store);
    });
    assert!(found.contains(&Verdict::Duplicate), "{found:?}");
}

#[test]
fn a_message_at_another_place_is_unordered() {
    let found = found(|run, store| {
        run.messages.values_mut().next().unwrap().offset += 1;
        run.check_living(store);
    });
    assert_eq!(found, [Verdict::Unordered]);
}

#[test]
fn a_message_of_a_deleted_topic_is_resurrected() {
    let found = found(|run, store| {
        let topic = first(run).topic;
        run.deleted[topic] = Deleted { generation: 1, position: 0, certain: 1 };
        run.check_living(store);
    });
    assert!(!found.is_empty() && found.iter().all(|verdict| *verdict == Verdict::Resurrected), "{found:?}");
}

#[test]
fn what_was_never_sent_or_has_another_body_is_foreign() {
    let unknown = found(|run, store| {
        run.messages.pop_first();
        run.check_living(store);
    });
    assert_eq!(unknown, [Verdict::Foreign]);
    let other = found(|run, store| {
        run.messages.values_mut().next().unwrap().bytes += 1;
        run.check_living(store);
    });
    assert_eq!(other, [Verdict::Foreign]);
}

#[test]
fn a_flush_that_does_not_come_is_late() {
    let found = found(|run, store| {
        let (clock, random) = (run.world.clock.clone(), Random::seeded(1));
        // Whose turn it is, of nobody: the store's threads stand still.
        let turns = std::mem::replace(&mut run.world.turns, disk::turns::Turns::new(clock, random));
        run.send(store);
        run.wait_for_flush(store);
        run.world.turns = turns;
    });
    assert!(!found.is_empty() && found.iter().all(|verdict| *verdict == Verdict::Late), "{found:?}");
}

#[test]
fn a_process_that_goes_on_after_a_failed_sync_is_found() {
    for path in ["journal/00000000000000000000.journal", "commitlog/00000000000000000000"] {
        let found = found(|run, _| {
            let disk = run.world.disk.clone();
            disk.fail(Failure::Unsynced, 1, Random::seeded(1));
            let file = disk.open(&run.world.root().join(path), OpenHow::Write).unwrap();
            file.sync_data().unwrap_err();
            run.check_ended(false);
        });
        assert_eq!(found, [Verdict::WentOn], "{path}");
    }
}
