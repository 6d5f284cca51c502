//! That a run of groups finds what is wrong: histories that were doctored.

use super::*;

/// Has a broker with groups, lets them go on for a while, lets `doctor` do something to what is known and look once more, and says what that found.
pub(super) fn found(doctor: impl FnOnce(&mut Run<'_>, &mut Served)) -> Vec<Verdict> {
    let mut world = World::new(1, Twist::default()).unwrap();
    let turns = world.turns.clone();
    let _in_charge = turns.enter();
    let mut report = Report::new(false);
    let options = StoreOptions { flush: FlushMode::Sync, ..served::options(&world, None).unwrap() };
    let rules = Rules::new(&world);
    let network = Network::new(rules.weather, Random::seeded(1));
    let mut run = Run::new(&mut world, &mut report, options, rules, network);
    (0..GROUPS.len()).for_each(|group| run.join(group));
    let mut served = Served::start(run.world, run.options.clone(), &run.rules.settings).unwrap();
    live_for(&mut run, &mut served, 10_000);
    run.look_at_start(&mut served).unwrap();
    assert_eq!(run.report.findings, []);
    doctor(&mut run, &mut served);
    let found = run.report.verdicts();
    run.network.lose_all();
    served.abandon(run.world);
    world.next_life(Crash::Killed, &mut report).unwrap();
    found
}

fn live_for(run: &mut Run<'_>, served: &mut Served, ms: i64) {
    let until = run.world.clock.now().0 + ms;
    while run.world.clock.now().0 < until {
        run.beat(served, true);
    }
}

#[test]
fn a_message_that_its_producer_knows_to_be_stored_and_is_not_there_is_lost() {
    let found = found(|run, served| {
        let id = run.history.begin(0, 0, 8);
        run.history.stored(id, 0);
        run.look_at_start(served).unwrap();
    });
    assert_eq!(found, [Verdict::Lost]);
}

#[test]
fn a_message_that_is_there_more_often_than_it_may_have_been_stored_is_a_duplicate() {
    let found = found(|run, served| {
        // Producers begin again with the same numbers.
        let before = std::mem::replace(&mut run.history, History::new());
        run.producers = (0..PRODUCERS).map(Producer::new).collect();
        while !run.history.sent.values().any(|sent| sent.is_sure) {
            run.beat(served, true);
        }
        run.history = before;
        run.report.findings.clear();
        run.look_at_start(served).unwrap();
    });
    assert!(found.contains(&Verdict::Duplicate), "{found:?}");
}

#[test]
fn a_message_in_another_queue_than_it_was_sent_to_is_unordered() {
    let found = found(|run, served| {
        let sent = run.history.sent.values_mut().find(|sent| sent.is_sure).unwrap();
        sent.queue = (sent.queue + 1) % QUEUES as i32;
        run.look_at_start(served).unwrap();
    });
    assert!(!found.is_empty() && found.iter().all(|verdict| *verdict == Verdict::Unordered), "{found:?}");
}

#[test]
fn a_message_that_stands_behind_one_that_its_producer_sent_after_it_is_unordered() {
    let found = found(|run, served| {
        let (producer, queue) = (0, 0);
        let id = run.history.begin(producer, queue, 8);
        let is_in_front = |(later, sent): (&u64, &history::Sent)| {
            *later > id && (sent.producer, sent.queue, sent.is_sure) == (producer, queue, true)
        };
        while !run.history.sent.iter().any(is_in_front) || !run.producers[0].is_idle() {
            run.beat(served, true);
        }
        run.producers[0].take_up(id, queue, 8);
        while !run.history.sent[&id].is_sure {
            run.beat(served, true);
        }
        run.look_at_start(served).unwrap();
    });
    assert_eq!(found, [Verdict::Unordered]);
}

#[test]
fn an_offset_that_is_told_and_was_never_committed_went_back() {
    let found = found(|run, served| {
        let sent = std::mem::take(&mut run.history.sent);
        run.history = History::new();
        run.history.sent = sent;
        run.look_at_start(served).unwrap();
    });
    assert!(!found.is_empty() && found.iter().all(|verdict| *verdict == Verdict::WentBack), "{found:?}");
}

#[test]
fn what_nobody_consumes_is_found_missing_in_the_end() {
    let found = found(|run, served| {
        let id = run.history.begin(0, 0, 8);
        run.history.stored(id, u64::MAX);
        run.finish(served).unwrap();
    });
    assert_eq!(found, [Verdict::Lost, Verdict::Lost], "by each group");
}

#[test]
fn a_member_that_the_broker_does_not_know_is_found() {
    let found = found(|run, served| {
        run.finish(served).unwrap();
        assert_eq!(run.report.findings, []);
        // It has joined, and has not said so.
        run.join(0);
        run.rules.settled_late_ms_max = 0;
        run.check_members(served).unwrap();
    });
    assert!(!found.is_empty() && found.iter().all(|verdict| *verdict == Verdict::Late), "{found:?}");
}

#[test]
fn what_does_not_come_at_once_when_everybody_waits_is_late() {
    let found = found(|run, served| {
        run.finish(served).unwrap();
        assert_eq!(run.report.findings, []);
        // Nobody is so fast.
        (run.rules.wake_ms_max, run.rules.work_ms_max) = (-1, 5_000);
        run.check_wake_up(served);
    });
    assert_eq!(found.first(), Some(&Verdict::Late), "{found:?}");
}
