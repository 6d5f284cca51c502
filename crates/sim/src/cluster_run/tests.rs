//! That a run finds what is wrong: histories that were doctored.

use super::*;

/// Has a master and slaves that have its log, lets `doctor` do something and look once more, and says what that found.
fn found(doctor: impl FnOnce(&mut Run<'_>)) -> Vec<Verdict> {
    let mut report = Report::new(false);
    let mut run = Run::new(1, Twist::default(), None, &mut report).unwrap();
    run.is_calm = true;
    for number in 0..run.nodes.len() {
        run.nodes[number].side.options.segment_bytes = 64 << 10;
        run.start(number).unwrap();
    }
    for _ in 0..20 {
        run.send().unwrap();
    }
    run.wait().unwrap();
    assert_eq!(run.report.findings, []);
    doctor(&mut run);
    run.report.verdicts()
}

#[test]
fn a_place_that_fewer_slaves_have_reported_than_are_counted_is_lost() {
    let found = found(|run| {
        run.messages.values_mut().for_each(|message| message.reported = 0);
        run.check_positions();
    });
    assert!(!found.is_empty() && found.iter().all(|verdict| *verdict == Verdict::Lost), "{found:?}");
}

#[test]
fn what_was_reported_and_is_not_in_the_log_of_the_promoted_slave_is_lost() {
    let found = found(|run| {
        let slaves = run.nodes.iter().filter(|node| node.number != run.master).fold(0, |bits, node| bits | node.bit());
        let message = run.messages.values().next_back().unwrap().clone();
        run.messages.insert(u64::MAX, Message { holds: slaves, ..message });
        run.check_survival(slaves).unwrap();
    });
    assert_eq!(found, [Verdict::Lost]);
}

#[test]
fn a_message_under_another_number_is_unordered_and_one_that_is_not_shown_is_lost() {
    let unordered = found(|run| {
        run.messages.values_mut().next().unwrap().offset += 1;
        run.look(1).unwrap();
    });
    assert!(unordered.contains(&Verdict::Unordered), "{unordered:?}");
    let lost = found(|run| {
        let ids = run.truth.clone();
        let topic = TOPICS[run.messages[&ids[0]].topic];
        run.nodes[1].side.store().unwrap().delete_topic(topic);
        run.look(1).unwrap();
    });
    assert!(lost.contains(&Verdict::Lost), "{lost:?}");
}

#[test]
fn a_record_that_nobody_sent_is_foreign() {
    let found = found(|run| {
        run.messages.pop_first();
        run.look(1).unwrap();
    });
    assert_eq!(found, [Verdict::Foreign]);
}

#[test]
fn a_report_of_a_dead_process_that_comes_late_says_nothing_of_the_next_one() {
    let found = found(|run| {
        let (life, end) = (run.nodes[1].life, run.nodes[1].side.store().unwrap().end());
        let bit = run.nodes[1].bit();
        run.nodes[1].life += 1;
        run.messages.values_mut().for_each(|message| (message.holds, message.reported) = (0, 0));
        run.reported(1, life, end);
        assert!(run.messages.values().all(|message| message.reported == bit && message.holds == 0));
        run.reported(1, life + 1, end);
        assert!(run.messages.values().all(|message| message.reported == bit && message.holds == bit));
    });
    assert_eq!(found, []);
}

#[test]
fn a_slave_that_lacks_all_messages_of_a_queue_is_not_promoted() {
    let found = found(|run| {
        assert!(run.candidates().0.contains(&1));
        let topic = TOPICS[run.messages.values().next().unwrap().topic];
        run.nodes[1].side.store().unwrap().delete_topic(topic);
        assert!(!run.candidates().0.contains(&1));
    });
    assert_eq!(found, []);
}
