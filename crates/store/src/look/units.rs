//! Consume queues against the log: each record has its unit, each unit its record.
//!
//! Records are shown in the log's order, and a unit that is as its record says counts. Whoever has more units than records that count
//! is read himself, from its first unit to its last. So nearly all is known from one pass over the log.

use std::collections::BTreeMap;
use std::sync::Arc;

use env::counted;
use protocol::names::SCHEDULE_TOPIC;
use protocol::tags;

use super::finding::Finding;
use super::log::Log;
use super::offsets::KnownTables;
use crate::deleted::Deleted;
use crate::error::StoreError;
use crate::fold::{QueuePlace, says};
use crate::queue_log::{ConsumeQueue, QueueLogs, Span, Unit};
use crate::recovery::{Block, KnownUnits};

/// Of one queue so many units are named; the rest is counted.
const NAMED: u64 = 3;
/// Units read at once.
const UNITS: usize = 1024;

const REBUILD: &str = "gantry store repair --queues builds the queues again from the log";
const SKIPPED: &str = "consumers are not given the message";

/// What a queue was found to be while the log was read.
#[derive(Default)]
struct Found {
    queue: Option<Arc<ConsumeQueue>>,
    /// Units that are as their record says.
    good: u64,
    /// Records without a unit.
    missing: u64,
    /// Units that say something else than their record.
    wrong: u64,
    /// Where the first record lies that has none, and its number.
    first_missing: Option<(u64, u64)>,
    /// One more than the last offset of the records: where the queue ends once it has what it lacks.
    end: u64,
}

/// The check under way.
pub(super) struct Units<'a> {
    queues: &'a QueueLogs,
    deleted: &'a Deleted,
    /// A topic that is not known was deleted, and its records are left.
    tables: &'a KnownTables,
    known: KnownUnits,
    found: BTreeMap<(String, u32), Found>,
    /// Units that were compared.
    pub checked: u64,
    /// Records of topics without queues, which nobody knows either.
    pub of_deleted: u64,
}

impl<'a> Units<'a> {
    pub fn new(queues: &'a QueueLogs, deleted: &'a Deleted, tables: &'a KnownTables) -> Units<'a> {
        Units {
            queues,
            deleted,
            tables,
            known: KnownUnits::of(queues.queues().len()),
            found: BTreeMap::new(),
            checked: 0,
            of_deleted: 0,
        }
    }

    /// Compares the records of a block.
    pub fn compare_all(&mut self, block: &Block<'_>, tell: &mut dyn FnMut(Finding)) -> Result<(), StoreError> {
        block.places.iter().try_for_each(|(_, place)| self.compare(place, tell))
    }

    /// Compares one record.
    fn compare(&mut self, place: &QueuePlace<'_>, tell: &mut dyn FnMut(Finding)) -> Result<(), StoreError> {
        if place.unit.at.0 < self.deleted.end_of(place.topic) {
            return Ok(());
        }
        self.checked += 1;
        let key = (place.topic.to_owned(), place.queue_id);
        let found = self
            .found
            .entry(key)
            .or_insert_with(|| Found { queue: self.queues.get(place.topic, place.queue_id), ..Found::default() });
        let queue = found.queue.clone();
        let Some(queue) = queue else {
            found.end = found.end.max(place.offset + u64::from(place.count));
            found.missing += 1;
            found.first_missing.get_or_insert((place.unit.at.0, place.offset));
            return Ok(());
        };
        let expected = queue.span_of(place);
        found.end = found.end.max(expected.next());
        if self.known.has(&queue, expected) {
            found.good += 1;
            return Ok(());
        }
        if place.offset < queue.min_offset() {
            // Of a life of the topic that is over, or below what the queue was trimmed to.
            return Ok(());
        }
        match queue.span_at(place.offset)? {
            None => {
                found.missing += 1;
                found.first_missing.get_or_insert((place.unit.at.0, place.offset));
            }
            Some(span) if span.unit.at == place.unit.at && is_same(&span, &expected, place.topic) => found.good += 1,
            // The topic was deleted and made again: the later record counts, and comes later.
            Some(span) if span.unit.at > place.unit.at => {}
            Some(span) => {
                found.wrong += 1;
                if found.wrong <= NAMED {
                    let what = format!(
                        "unit {} of {}/{} says log offset {}, {} bytes, tag hash {}; its record is at {} with {} bytes and tag hash {}",
                        place.offset,
                        place.topic,
                        place.queue_id,
                        span.unit.at,
                        span.unit.size,
                        span.unit.tags,
                        place.unit.at,
                        place.unit.size,
                        place.unit.tags
                    );
                    tell(finding(&queue, place.offset, what, "consumers get another message, or none, at this offset"));
                }
            }
        }
        Ok(())
    }

    /// Tells of queues that lack units, and looks at the units of those that have some too many.
    pub fn finish(mut self, log: &Log, log_end: u64, tell: &mut dyn FnMut(Finding)) -> Result<(u64, u64), StoreError> {
        let found = std::mem::take(&mut self.found);
        self.tables.verify(
            |topic, id| {
                let of_records = found.get(&(topic.to_owned(), id)).map_or(0, |found| found.end);
                self.queues.get(topic, id).map_or(0, |queue| queue.max_offset()).max(of_records)
            },
            tell,
        );
        for ((topic, id), found) in &found {
            if let Some((at, offset)) = found.first_missing {
                self.tell_missing(topic, *id, found, (at, offset), tell);
            }
            if found.wrong > NAMED
                && let Some(queue) = &found.queue
            {
                let what =
                    format!("{} units of {topic}/{id} in all say something else than their records", found.wrong);
                tell(finding(queue, queue.min_offset(), what, "consumers get other messages, or none"));
            }
        }
        for queue in self.queues.queues() {
            let key = (queue.topic().to_owned(), queue.id());
            let good = found.get(&key).map_or(0, |found| found.good);
            let from = first_in_log(&queue, log.min())?;
            if !queue.is_batch() && good >= queue.max_offset().saturating_sub(from) {
                continue;
            }
            read_units(&queue, from, log, log_end, tell)?;
        }
        Ok((self.checked, self.of_deleted))
    }

    fn tell_missing(&mut self, topic: &str, id: u32, found: &Found, first: (u64, u64), tell: &mut dyn FnMut(Finding)) {
        let (at, offset) = first;
        let count = found.missing;
        let Some(queue) = &found.queue else {
            if !self.tables.has_topic(topic) {
                self.of_deleted += count;
                return;
            }
            tell(Finding {
                file: self.queues.dir_of(topic, id),
                at: None,
                what: format!(
                    "there is no consume queue {topic}/{id}, and the log has {} of it, the first (number {offset}) at log offset {at}",
                    counted(count, "record")
                ),
                effect: "consumers are not given the messages",
                remedy: REBUILD,
            });
            return;
        };
        let next = queue.max_offset();
        let what = match offset >= next {
            true => format!(
                "queue {topic}/{id} ends at {next}, and the log has {} more, the first at log offset {at}",
                counted(count, "record")
            ),
            false => format!(
                "queue {topic}/{id} has no unit {offset} ({count} are missing in all); its record is at log offset {at}"
            ),
        };
        tell(finding(queue, offset.min(next), what, SKIPPED));
    }
}

/// Whether a unit that is not equal says the same: what stands in the place of the hash may be something else.
fn is_same(span: &Span, expected: &Span, topic: &str) -> bool {
    let (unit, other) = (span.unit, expected.unit);
    let is_hash = !tags::is_extension_address(unit.tags) && topic != SCHEDULE_TOPIC;
    (unit.size, span.base, span.count) == (other.size, expected.base, expected.count)
        && (unit.tags == other.tags || !is_hash || unit.tags == Unit::LOST)
}

/// The first unit of an ordinary queue whose record the log still has. Units follow each other as records do.
fn first_in_log(queue: &ConsumeQueue, log_min: u64) -> Result<u64, StoreError> {
    let (mut low, mut high) = (queue.min_offset(), queue.max_offset());
    if queue.is_batch() {
        return Ok(low);
    }
    while low < high {
        let middle = low + (high - low) / 2;
        if queue.unit_at(middle)?.is_some_and(|unit| unit.at.0 < log_min) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Ok(low)
}

/// Reads a queue from end to end: each unit follows the one before, and leads to a record that says so.
fn read_units(
    queue: &Arc<ConsumeQueue>,
    from: u64,
    log: &Log,
    log_end: u64,
    tell: &mut dyn FnMut(Finding),
) -> Result<(), StoreError> {
    let (mut at, end) = (from, queue.max_offset());
    let mut bad = 0;
    let mut spans = Vec::new();
    // Each turn goes on by a unit, or ends.
    while at < end {
        spans.clear();
        queue.read_spans(at, UNITS, true, &mut spans)?;
        let Some(last) = spans.last() else { return Ok(()) };
        let next = last.next();
        for span in &spans {
            let unit = span.unit;
            if !unit.is_message() || unit.at.0 < log.min() {
                continue;
            }
            let what = match log.files.record_at(unit.at.0)? {
                _ if unit.end().0 > log_end => {
                    Some(format!("leads to log offset {}, and the log ends at {log_end}", unit.at))
                }
                None => Some(format!("leads to log offset {}, where no record begins", unit.at)),
                Some(view) => (!says(&view, queue.topic(), queue.id(), span.base)).then(|| {
                    format!(
                        "leads to log offset {}, where message {} of {}/{} lies",
                        unit.at,
                        view.queue_offset(),
                        view.topic(),
                        view.queue_id()
                    )
                }),
            };
            if let Some(what) = what {
                bad += 1;
                if bad <= NAMED {
                    let what = format!("unit {} of {}/{} {what}", span.base, queue.topic(), queue.id());
                    tell(finding(queue, span.base, what, "consumers get another message, or none, at this offset"));
                }
            }
        }
        at = next.max(at + 1);
    }
    if bad > NAMED {
        let what = format!("{bad} units of {}/{} in all lead to no record of theirs", queue.topic(), queue.id());
        tell(finding(queue, queue.min_offset(), what, "consumers get other messages, or none"));
    }
    Ok(())
}

fn finding(queue: &ConsumeQueue, offset: u64, what: String, effect: &'static str) -> Finding {
    let (file, at) = queue.place_on_disk(offset);
    Finding { file, at, what, effect, remedy: REBUILD }
}
