//! That a run of a broker finds what is wrong: histories that were doctored.

use std::collections::BTreeMap;

use super::*;

/// Has a broker with messages of all kinds, lets `doctor` do something to what is known of them and look once more, and says what that found.
pub(super) fn found(doctor: impl FnOnce(&mut Run<'_>, &mut Served)) -> Vec<Verdict> {
    let mut world = World::new(1, Twist::default()).unwrap();
    let turns = world.turns.clone();
    let _in_charge = turns.enter();
    let mut report = Report::new(false);
    let options = StoreOptions { flush: FlushMode::Sync, ..served::options(&world, None).unwrap() };
    let mut run = Run::new(None, &mut world, &mut report, options);
    let mut served = Served::start(run.world, run.options.clone(), &[]).unwrap();
    for topic in [NOW, LATER, DEALS, TASKS, NOW] {
        run.send(&mut served, topic).unwrap();
    }
    served.pass(run.world, 45_000);
    run.check_log(&served.store);
    assert_eq!(run.report.findings, []);
    doctor(&mut run, &mut served);
    let found = run.report.verdicts();
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
fn what_was_promised_is_missed_in_the_end_though_the_log_never_came_so_far_again() {
    let ended = Ended::Surely { is_commit: true, end: u64::MAX };
    let deal = Kind::Half(Some(Half { at: 0, queue_offset: 0, ended }));
    for (topic, kind) in [(NOW, Kind::Now), (TASKS, Kind::Task), (DEALS, deal)] {
        let found = found(|run, served| {
            let sent = Sent { kind, end: Some(u64::MAX), ..first(run, topic).clone() };
            run.history.sent.insert(1_000, sent);
            run.check_log(&served.store);
            assert_eq!(run.report.findings, [], "it may not be shown yet");
            run.finish(served).unwrap();
        });
        assert_eq!(found, [Verdict::Lost], "{kind:?}");
    }
}

#[test]
fn a_message_at_another_place_is_unordered() {
    for topic in [NOW, TASKS] {
        let found = found(|run, served| {
            let sent = first(run, topic);
            sent.offset = sent.offset.map(|offset| offset + 1);
            run.check_log(&served.store);
        });
        assert_eq!(found, [Verdict::Unordered], "{topic}");
    }
    for topic in [NOW, LATER, TASKS] {
        let found = found(|run, served| {
            first(run, topic).queue ^= 1;
            run.check_log(&served.store);
        });
        assert_eq!(found, [Verdict::Unordered], "{topic}");
    }
}

#[test]
fn a_message_behind_one_that_was_sent_after_it_is_unordered() {
    let found = found(|run, served| {
        // Numbers that others have not are sent last.
        let skipped: Vec<u64> = (0..4).map(|_| run.history.next_id()).collect();
        let is_in_front = |sent: &BTreeMap<u64, Sent>, queue: i32| {
            sent.range(skipped[3]..).any(|(_, sent)| sent.topic == NOW && sent.queue == queue)
        };
        while !(0..QUEUES as i32).all(|queue| is_in_front(&run.history.sent, queue)) {
            run.send(served, NOW).unwrap();
        }
        let before = std::mem::take(&mut run.history);
        while run.history.next_id() + 1 < skipped[0] {}
        run.send(served, NOW).unwrap();
        let last = std::mem::replace(&mut run.history, before);
        run.history.sent.extend(last.sent);
        run.check_log(&served.store);
    });
    assert!(!found.is_empty() && found.iter().all(|verdict| *verdict == Verdict::Unordered), "{found:?}");
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
