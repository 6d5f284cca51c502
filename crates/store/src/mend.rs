//! Units of a consume queue that lead nowhere, or to another record, while the queue goes on: the log has what they should say.
//!
//! A reader notices them ([`Store::read`], [`Store::units`]), and mends them on a thread that may wait for the device. The true units before and
//! behind them say which stretch of the log holds their records; it is read, and the units are written anew. One such stretch is read at a time, so
//! that damage never takes all threads for cold reads; other readers that meet damage meanwhile are told to come again. What a unit says of the tag
//! of its message is not looked at: a reader that filters by tags asks the unit so as not to touch the record.

use std::ops::Range;
use std::time::Duration;

use protocol::record::{RecordView, at};
use protocol::{LogOffset, names};

use crate::deleted::Deleted;
use crate::error::{NotWritable, StoreError};
use crate::fold::{Fold, QueuePlace, says, whole_at};
use crate::queue_log::{ConsumeQueue, Span, Unit, UnitsRead};
use crate::store::Store;

/// Units looked at on either side for one that is true. More that are damaged in a row are mended in several turns.
const LOOKED_AT: u64 = 4096;
/// Stretches of units whose records were not found: they are not looked for again, as long as no more than so many are remembered.
const GIVEN_UP_MAX: usize = 1000;
/// Lines about damaged units; more are counted only.
const NAMED_MAX: u64 = 1000;
/// How long a reader waits for another one's turn. Most take milliseconds.
const PATIENCE: Duration = Duration::from_secs(1);

/// What became of the unit at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mend {
    /// It is as the log says.
    Done,
    /// The log has no record for it, nor for those up to this place.
    Lost(u64),
    /// Retention was here.
    Removed,
}

/// Whether these bytes are the record that a unit of the queue stands for, as far as the head of a record says it; of a queue of batches, all of
/// the record is to be given.
pub(crate) fn leads_to(queue: &ConsumeQueue, is_light: bool, span: &Span, bytes: &[u8]) -> bool {
    let field = |place: usize| bytes.get(place..)?.first_chunk::<8>().map(|raw| u64::from_be_bytes(*raw));
    let half = |place: usize| bytes.get(place..)?.first_chunk::<4>().map(|raw| u32::from_be_bytes(*raw));
    // A light queue's records have the numbers of their own queues there.
    let is_of_queue = is_light || half(at::QUEUE_ID) == Some(queue.id()) && field(at::QUEUE_OFFSET) == Some(span.base);
    let is_there = half(at::TOTAL_SIZE) == Some(span.unit.size) && field(at::LOG_OFFSET) == Some(span.unit.at.0);
    is_there
        && is_of_queue
        && (!queue.is_batch()
            || whole_at(bytes, span.unit.at.0, false).is_some_and(|view| view.message_count() == span.count))
}

impl Store {
    /// Units of consume queues that were found damaged since the start.
    pub fn damaged_units(&self) -> u64 {
        self.shared.mending.counts.lock().units
    }

    /// Appends up to `max` units of a queue to `units`, from the message `from` on, as [`ConsumeQueue::read_units`] does; those that a file gave
    /// are held against their records, and mended. With `may_wait` false, they are cold.
    pub fn units(
        &self,
        queue: &ConsumeQueue,
        from: u64,
        max: usize,
        may_wait: bool,
        units: &mut Vec<Unit>,
    ) -> Result<UnitsRead, StoreError> {
        let mut spans = Vec::new();
        let mut tried = None;
        // A second turn follows a unit that was mended, and none that was tried before.
        loop {
            spans.clear();
            let read = queue.read_spans(from, max, may_wait, &mut spans)?;
            let damaged = match spans.is_empty() {
                _ if !may_wait && read.in_files > 0 => return Ok(UnitsRead::Cold(0)),
                true if from < queue.min_offset() || from >= queue.max_offset() => return Ok(read.read),
                true if !may_wait => return Ok(UnitsRead::Cold(0)),
                true => Some(0),
                false => self.first_untrue(queue, read.first, &spans[..read.in_files]),
            };
            let Some(damaged) = damaged.map(|index| read.first + index as u64).filter(|place| tried != Some(*place))
            else {
                let end = queue.log_end();
                units.extend(spans.iter().enumerate().map(|(index, span)| match span.unit {
                    // A reader that waits until its record is there waits for ever.
                    unit if index < read.in_files && unit.end() > end => Unit { tags: Unit::LOST, ..unit },
                    unit => unit,
                }));
                return Ok(read.read);
            };
            tried = Some(damaged);
            if let Mend::Lost(next) = self.mend(queue, damaged)?
                && spans.is_empty()
                && !queue.is_batch()
            {
                // Nothing is there, and what is behind it goes on.
                let lost = Unit { at: self.min_offset(), size: 1, tags: Unit::LOST };
                let count = next.saturating_sub(from).min(max as u64) as usize;
                units.extend(std::iter::repeat_n(lost, count));
                return Ok(UnitsRead::Units(count));
            }
        }
    }

    fn first_untrue(&self, queue: &ConsumeQueue, first: u64, spans: &[Span]) -> Option<usize> {
        let is_there = |span: &Span, place| span.unit.is_message() && !self.is_removed(queue, place, &span.unit);
        spans.iter().zip(first..).position(|(span, place)| is_there(span, place) && !self.is_true(queue, span))
    }

    /// Whether the record that a unit leads to is its own. May wait for the device. A record that the device does not give says nothing against
    /// its unit: the reader meets the failure at the record, which costs it that one message and not all behind it.
    pub(crate) fn is_true(&self, queue: &ConsumeQueue, span: &Span) -> bool {
        let Span { unit, base, count } = *span;
        let Some(segment) = self.shared.log.segment_at(unit.at.0) else { return false };
        let Ok(bytes) = segment.record_bytes(unit.at.0) else { return true };
        let Some(view) = whole_at(&bytes, unit.at.0, false) else { return false };
        let is_there = view.total_size() == unit.size as usize;
        let is_whole = !queue.is_batch() || view.message_count() == count;
        is_there && is_whole && says(&view, queue.topic(), queue.id(), base)
    }

    /// Writes the unit at a place anew, and those beside it that are not true either, from what the log has. May wait for the device, for as long as
    /// it takes to read the log between the nearest true units.
    pub(crate) fn mend(&self, queue: &ConsumeQueue, place: u64) -> Result<Mend, StoreError> {
        let Some(mut given_up) = self.shared.mending.given_up.try_lock_for(PATIENCE) else {
            let topic = queue.topic().to_owned();
            return Err(StoreError::Mending { topic, queue_id: queue.id() });
        };
        let is_same = |topic: &str, id: u32| (topic, id) == (queue.topic(), queue.id());
        let known = given_up.iter().find(|(topic, id, places)| is_same(topic, *id) && places.contains(&place));
        if let Some((_, _, places)) = known {
            return Ok(Mend::Lost(places.end));
        }
        if !queue.places().contains(&place) {
            return Ok(Mend::Removed);
        }
        let Some(damage) = self.damage_at(queue, place)? else { return Ok(Mend::Done) };
        let found = self.records_of(queue, &damage)?;
        let mut mended = 0;
        for (place, span, store_time) in &found {
            mended += u64::from(queue.renew(*place, *span, *store_time)?);
        }
        let is_found = |place: u64| found.iter().any(|(found, ..)| *found == place);
        let mut lost_to = place;
        while damage.places.contains(&lost_to) && !is_found(lost_to) {
            lost_to += 1;
        }
        let lost = damage.places.end - damage.places.start - mended;
        self.name_units(queue, &damage.places, mended, lost);
        if lost_to == place {
            return Ok(Mend::Done);
        }
        if given_up.len() < GIVEN_UP_MAX {
            given_up.push((queue.topic().to_owned(), queue.id(), place..lost_to));
        }
        Ok(Mend::Lost(lost_to))
    }

    /// The units around a place that are not true, none if it is; and where their records are, if they are anywhere.
    fn damage_at(&self, queue: &ConsumeQueue, place: u64) -> Result<Option<Damage>, StoreError> {
        let all = queue.places();
        let in_memory = queue.memory_begins();
        let true_at = |place: u64| -> Result<Option<Span>, StoreError> {
            let Some(span) = queue.span_at_place(place)?.filter(|span| !span.unit.is_blank()) else { return Ok(None) };
            let is_true = place >= in_memory || !span.unit.is_message() || self.is_true(queue, &span);
            Ok(is_true.then_some(span))
        };
        if true_at(place)?.is_some() {
            return Ok(None);
        }
        let log = &self.shared.log;
        let (mut from, mut first, mut is_known) = (log.min(), place, false);
        while first > all.start.max(place.saturating_sub(LOOKED_AT)) {
            if let Some(span) = true_at(first - 1)? {
                (from, is_known) = (from.max(span.unit.end().0), true);
                break;
            }
            first -= 1;
        }
        let (mut to, mut last) = (log.end.get(), place + 1);
        while last < all.end.min(place + LOOKED_AT) {
            if let Some(span) = true_at(last)? {
                to = to.min(span.unit.at.0);
                break;
            }
            last += 1;
        }
        if !is_known {
            // Records of a life of the topic that is over have the same numbers.
            from = from.max(Deleted::recall(self.journal()).end_of(queue.topic()));
        }
        Ok(Some(Damage { places: first..last, from, to, is_begin_known: is_known }))
    }

    /// Where the records of damaged units are, in the order of the log: the place of each, what it should say, and its store time.
    fn records_of(&self, queue: &ConsumeQueue, damage: &Damage) -> Result<Vec<(u64, Span, i64)>, StoreError> {
        // A light queue may be left from other settings; no record leads to another queue by way of one.
        let fold = Fold { has_light_queues: names::is_lmq(queue.topic()), ..self.options().fold() };
        let wanted = (damage.places.end - damage.places.start) as usize;
        let is_ours = |place: &QueuePlace<'_>| (place.topic, place.queue_id) == (queue.topic(), queue.id());
        let mut found: Vec<(u64, Span, i64)> = Vec::new();
        let mut visit = |_: LogOffset, view: &RecordView<'_>| {
            if self.shared.is_stopping() {
                return false;
            }
            let Some(ours) = fold.places(view).find(is_ours) else { return true };
            let span = queue.span_of(&ours);
            // Units of batches have no number but their order.
            let place = if queue.is_batch() { damage.places.start + found.len() as u64 } else { ours.offset };
            if !damage.places.contains(&place) {
                return queue.is_batch() || place < damage.places.end || !damage.is_begin_known;
            }
            match found.iter_mut().find(|(known, ..)| *known == place) {
                // Of two lives of a topic the later one counts.
                Some(known) => *known = (place, span, ours.store_time),
                None => found.push((place, span, ours.store_time)),
            }
            found.len() < wanted || !damage.is_begin_known
        };
        self.walk(damage.from, damage.to, &mut visit)?;
        if self.shared.is_stopping() {
            return Err(NotWritable::Closed.into());
        }
        if queue.is_batch() && found.len() != wanted {
            // Which of them have no record, nobody can tell.
            found.clear();
        }
        Ok(found)
    }

    fn name_units(&self, queue: &ConsumeQueue, places: &Range<u64>, mended: u64, lost: u64) {
        let mut counts = self.shared.mending.counts.lock();
        counts.units += mended + lost;
        if counts.named >= NAMED_MAX {
            return;
        }
        counts.named += 1;
        let (file, at) = queue.place_on_disk(places.start);
        tracing::error!(
            topic = queue.topic(),
            queue_id = queue.id(),
            first = places.start,
            units = places.end - places.start,
            mended,
            lost,
            file = %file.display(),
            at,
            "units of a consume queue are damaged; those whose records the log has were mended"
        );
    }
}

/// Units in a row that are not true.
#[derive(Debug)]
struct Damage {
    places: Range<u64>,
    /// Their records lie in this stretch of the log.
    from: u64,
    to: u64,
    /// A true unit before them says where it begins.
    is_begin_known: bool,
}
