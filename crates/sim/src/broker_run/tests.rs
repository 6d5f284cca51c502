//! That a run of a broker finds what is wrong: histories that were doctored.

use store::StoreOptions;

use super::*;

/// Has a broker with messages of all kinds, lets `doctor` do something to what is known of them and look once more, and says what that found.
pub(super) fn found(doctor: impl FnOnce(&mut Run<'_>, &mut Served)) -> Vec<Verdict> {
    let mut world = World::new(1, Twist::default()).unwrap();
    let turns = world.turns.clone();
    let _in_charge = turns.enter();
    let mut report = Report::new(false);
    let options = StoreOptions {
        flush: FlushMode::Sync,
        delay_levels: DelayLevels::parse(LEVELS).unwrap(),
        batch_topics: Some(broker::batch_topics),
        ..log_run::options(&world)
    };
    let mut run = Run::new(None, &mut world, &mut report, options);
    let mut served = Served::start(run.world, run.options.clone(), &[]).unwrap();
    for topic in [NOW, LATER, DEALS, TASKS, NOW] {
        run.send(&mut served, topic).unwrap();
    }
    served.pass(run.world, 45_000);
    run.check_log(&served.store);
    assert_eq!(run.report.findings, []);
    doctor(&mut run, &mut served);
    let found = run.report.findings.iter().map(|finding| finding.verdict).collect();
    served.abandon(run.world);
    world.next_life(Crash::Killed, &mut report).unwrap();
    found
}

/// What is known of the first message of a topic.
fn first<'a>(run: &'a mut Run<'_>, topic: &str) -> &'a mut Sent {
    run.history.sent.values_mut().find(|sent| sent.topic == topic).unwrap()
}

#[test]
fn a_message_that_was_answered_and_is_not_there_is_lost() {
    let found = found(|run, served| {
        let sent = first(run, NOW).clone();
        run.history.sent.insert(1_000, sent);
        run.check_log(&served.store);
    });
    assert_eq!(found, [Verdict::Lost]);
}

#[test]
fn a_task_that_nobody_gets_is_lost() {
    let found = found(|run, served| {
        let sent = first(run, TASKS).clone();
        run.history.sent.insert(1_000, sent);
        run.drain(served).unwrap();
    });
    assert_eq!(found, [Verdict::Lost]);
}

#[test]
fn a_message_that_is_there_twice_is_a_duplicate() {
    let found = found(|run, served| {
        // What is sent has the same numbers once more.
        let before = std::mem::take(&mut run.history);
        run.send(served, NOW).unwrap();
        run.history = before;
        run.check_log(&served.store);
    });
    assert!(found.contains(&Verdict::Duplicate), "{found:?}");
}

#[test]
fn what_comes_before_its_time_is_early_and_what_comes_long_after_it_late() {
    for (by, expected) in [(1_000_000, Verdict::Early), (-1_000_000, Verdict::Late)] {
        let found = found(|run, served| {
            let Kind::Later { due } = &mut first(run, LATER).kind else { panic!("it has a time") };
            *due += by;
            run.check_log(&served.store);
        });
        assert_eq!(found, [expected]);
    }
}

#[test]
fn a_half_message_that_shows_is_early_and_one_that_was_rolled_back_resurrected() {
    let rolled_back = Half { at: 0, queue_offset: 0, ended: Ended::Surely { is_commit: false, end: 0 } };
    for (half, expected) in [(None, Verdict::Early), (Some(rolled_back), Verdict::Resurrected)] {
        let found = found(|run, served| {
            first(run, NOW).kind = Kind::Half(half);
            run.check_log(&served.store);
        });
        assert_eq!(found, [expected]);
    }
}

#[test]
fn what_was_never_sent_is_foreign() {
    let found = found(|run, served| {
        let id = run.history.sent.iter().find(|(_, sent)| sent.topic == NOW).map(|(id, _)| *id).unwrap();
        run.history.sent.remove(&id);
        run.check_log(&served.store);
    });
    assert_eq!(found, [Verdict::Foreign]);
}
