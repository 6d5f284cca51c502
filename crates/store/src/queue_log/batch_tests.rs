//! Queues of batches against a list of what was pushed.

use std::path::Path;
use std::sync::Arc;

use disk::RealDisk;
use proptest::prelude::*;

use super::*;

const UNITS_PER_FILE: u64 = 10;

fn open(dir: &Path) -> (QueueLogs, Loaded) {
    let options =
        QueueLogOptions { batch_file_bytes: UNITS_PER_FILE * 46, descriptors: 8, ..QueueLogOptions::default() };
    QueueLogs::open(&dir.join("consumequeue"), options, Arc::new(RealDisk)).unwrap()
}

/// The `n`th record, of 100 bytes, stored at `n`.
fn unit(n: u64) -> Unit {
    Unit { at: LogOffset(n * 100), size: 100, tags: n as i64 - 3 }
}

fn push(queue: &Arc<ConsumeQueue>, model: &mut Vec<Span>, n: u64, count: u16) {
    model.push(Span { unit: unit(n), base: queue.max_offset(), count });
    queue.push_record(unit(n), count, n as i64);
}

/// From each offset of the model the queue gives what the model has, also to a reader who stopped there.
fn check(queue: &ConsumeQueue, model: &[Span]) -> Result<(), TestCaseError> {
    let mut out = Vec::new();
    let mut stops = Vec::new();
    for span in model {
        out.clear();
        let place = queue.read_spans(span.base, 1, true, &mut out).unwrap().first;
        queue.stop_at(span.base, place);
        stops.push((*span, place));
        // This one, and one of those that later stops have pushed out.
        for (span, place) in [stops[stops.len() - 1], stops[stops.len().saturating_sub(6)]] {
            out.clear();
            prop_assert_eq!(queue.read_spans(span.base, 1, true, &mut out).unwrap().first, place);
            prop_assert_eq!(&out[..], &[span]);
        }
    }
    for (place, span) in model.iter().enumerate() {
        for offset in span.base..span.next() {
            out.clear();
            queue.read_spans(offset, 7, true, &mut out).unwrap();
            prop_assert_eq!(&out[..], &model[place..model.len().min(place + 7)]);
            prop_assert_eq!(queue.unit_at(offset).unwrap(), Some(span.unit));
        }
    }
    if let Some(last) = model.last() {
        prop_assert_eq!(queue.max_offset(), last.next());
        prop_assert_eq!(queue.log_end(), last.unit.end());
    }
    prop_assert_eq!(queue.min_offset(), model.first().map_or(queue.max_offset(), |first| first.base));
    prop_assert_eq!(queue.span_at(queue.max_offset()).unwrap(), None);
    if let Some(below) = queue.min_offset().checked_sub(1) {
        prop_assert_eq!(queue.span_at(below).unwrap(), None);
    }
    Ok(())
}

#[test]
fn batches_of_three_and_two_take_two_units_in_apaches_file() {
    let dir = tempfile::tempdir().unwrap();
    let (logs, _) = open(dir.path());
    let queue = logs.get_or_create_batch("t", 1);
    let mut model = Vec::new();
    push(&queue, &mut model, 0, 3);
    push(&queue, &mut model, 1, 2);
    assert_eq!((queue.min_offset(), queue.max_offset()), (0, 5));
    logs.sync_all().unwrap();
    let file = std::fs::read(dir.path().join("batchconsumequeue/t/1/00000000000000000000")).unwrap();
    assert_eq!(file.len() as u64, UNITS_PER_FILE * 46);
    assert!(file[46..92].iter().any(|byte| *byte != 0) && file[92..].iter().all(|byte| *byte == 0));
    assert_eq!(&file[28..38], [0, 0, 0, 0, 0, 0, 0, 0, 0, 3]);
    assert_eq!(&file[74..84], [0, 0, 0, 0, 0, 0, 0, 3, 0, 2]);
    check(&queue, &model).unwrap();
    // Others of the topic are of its kind, whoever asks.
    assert!(logs.get_or_create("t", 2).is_batch());
}

#[test]
fn a_deleted_topic_may_come_again_as_the_other_kind() {
    let dir = tempfile::tempdir().unwrap();
    let (logs, _) = open(dir.path());
    let queue = logs.get_or_create_batch("t", 0);
    push(&queue, &mut Vec::new(), 0, 3);
    logs.sync_all().unwrap();
    logs.delete_topic("t", || Some(((), 0)));
    assert_eq!(logs.pending_bytes(), 0);
    let queue = logs.get_or_create("t", 0);
    assert!(!queue.is_batch());
    queue.push(unit(1));
    logs.sync_all().unwrap();
    assert!(!dir.path().join("batchconsumequeue/t").exists());
    let (logs, loaded) = open(dir.path());
    assert!(loaded.findings.is_empty(), "{:?}", loaded.findings);
    assert_eq!(logs.get("t", 0).unwrap().max_offset(), 1);
}

#[test]
fn what_the_log_says_wins_over_units_and_gaps_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (logs, _) = open(dir.path());
    let queue = logs.get_or_create_batch("t", 0);
    let mut model = Vec::new();
    for n in 0..25 {
        push(&queue, &mut model, n, 3);
    }
    logs.flush_all().unwrap();
    assert_eq!(queue.push_record_at(30, unit(10), 3, 10).unwrap(), PushedAt::Already);
    // Record 10 holds two messages, whatever the queue says.
    model.truncate(10);
    for (n, base, count) in [(10, 30, 2), (11, 32, 4), (12, 40, 1)] {
        let pushed = queue.push_record_at(base, unit(n), count, n as i64).unwrap();
        assert_eq!(pushed, if n == 10 { PushedAt::Mended } else { PushedAt::Added });
        model.push(Span { unit: unit(n), base, count });
    }
    check(&queue, &model).unwrap();
    // In the gap nothing is; who asks is shown what comes next.
    assert_eq!(queue.span_at(37).unwrap(), None);
    let mut out = Vec::new();
    queue.read_spans(37, 1, true, &mut out).unwrap();
    assert_eq!(out, model[12..]);
    logs.sync_all().unwrap();
    let (logs, _) = open(dir.path());
    check(&logs.get("t", 0).unwrap(), &model).unwrap();
}

/// As RocketMQ searches, in the file that it chooses, with the upper boundary as it is meant.
fn by_time(model: &[(i64, u64)], timestamp: i64, boundary: Boundary) -> u64 {
    let files: Vec<_> = model.chunks(UNITS_PER_FILE as usize).collect();
    let file = files.iter().rfind(|file| file[0].0 <= timestamp).unwrap_or(&files[0]);
    let last = file[file.len() - 1];
    match boundary {
        _last if last.0 <= timestamp => last.1,
        Boundary::Lower => file.iter().find(|unit| unit.0 >= timestamp).unwrap().1,
        Boundary::Upper => file.iter().rfind(|unit| unit.0 <= timestamp).unwrap_or(&file[0]).1,
    }
}

proptest! {
    // Each case opens files; a few hundred of them say no more than these.
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_time_leads_where_apaches_search_ends(steps in prop::collection::vec((0i64..3, 1u16..5), 1..60), timestamp in 0i64..120) {
        let dir = tempfile::tempdir().unwrap();
        let (logs, _) = open(dir.path());
        let queue = logs.get_or_create_batch("t", 0);
        let (mut model, mut now) = (Vec::new(), 10);
        for (n, (step, count)) in steps.into_iter().enumerate() {
            now += step;
            model.push((now, queue.max_offset()));
            queue.push_record(unit(n as u64), count, now);
        }
        for boundary in [Boundary::Lower, Boundary::Upper] {
            let found = queue.offset_by_time(timestamp, boundary, LogOffset(0), |_| Ok(None), |_| None).unwrap();
            prop_assert_eq!(found, by_time(&model, timestamp, boundary));
        }
    }

    #[test]
    fn a_batch_queue_is_the_list_of_what_was_pushed(steps in prop::collection::vec((0u8..8, 1u16..9), 1..80)) {
        let dir = tempfile::tempdir().unwrap();
        let (mut logs, _) = open(dir.path());
        let (mut model, mut next) = (Vec::<Span>::new(), 0u64);
        for (step, count) in steps {
            let queue = logs.get_or_create_batch("t", 0);
            match step {
                0..=3 => for more in 0..=u16::from(step) * 2 { push(&queue, &mut model, next, count + more); next += 1; },
                4 => drop(logs.flush_all().unwrap()),
                5 => {
                    let first = next.saturating_sub(12);
                    model.retain(|span| span.unit.at.0 >= first * 100);
                    logs.trim_below(LogOffset(first * 100)).unwrap();
                }
                6 => {
                    next = next.saturating_sub(7).max(model.first().map_or(next, |span| span.unit.at.0 / 100));
                    model.retain(|span| span.unit.at.0 < next * 100);
                    logs.truncate_above(LogOffset(next * 100), &|_| 0).unwrap();
                }
                _reopen => {
                    logs.flush_all().unwrap();
                    logs = open(dir.path()).0;
                    let first = model.first().map_or(next, |span| span.unit.at.0 / 100);
                    logs.trim_below(LogOffset(first * 100)).unwrap();
                }
            }
            let queue = logs.get_or_create_batch("t", 0);
            check(&queue, &model)?;
        }
    }
}

#[test]
fn readers_beside_a_writer_a_flusher_and_retention_see_whole_batches() {
    let dir = tempfile::tempdir().unwrap();
    let (logs, _) = open(dir.path());
    let queue = logs.get_or_create_batch("t", 0);
    let total = 20_000;
    std::thread::scope(|scope| {
        scope.spawn(|| (0..total).for_each(|n| queue.push_record(unit(n), 3, n as i64)));
        scope.spawn(|| {
            while queue.max_offset() < total * 3 {
                logs.flush_all().unwrap();
            }
        });
        for start in 0..2 {
            let queue = &queue;
            scope.spawn(move || {
                let (mut from, mut out) = (start, Vec::new());
                while from < total * 3 {
                    out.clear();
                    queue.read_spans(from, 32, true, &mut out).unwrap();
                    for span in &out {
                        assert_eq!(*span, Span { unit: unit(from / 3), base: from / 3 * 3, count: 3 });
                        from = span.next();
                    }
                }
            });
        }
    });
}
