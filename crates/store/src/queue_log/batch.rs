//! Queues of BatchCQ topics: a unit a record, however many messages the record holds.
//!
//! Such a queue differs from an ordinary one in this: a unit says itself which messages it stands for, so that a message is found by
//! halving instead of by its number, and places say nothing about offsets. Files, flush, trim and list are those of every queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::batch_unit::{BATCH_UNIT_BYTES, BatchUnit};
use super::by_time::Boundary;
use super::error::QueueError;
use super::queue::{ConsumeQueue, PushedAt};
use super::reading::{Raw, UnitsRead};
use super::tail::Tail;
use super::unit::Unit;
use crate::fold::QueuePlace;

/// Where the units of a batch queue are, as `ConsumeQueue::min` and `next` are where its messages are. Written with those.
#[derive(Default)]
pub(super) struct Batches {
    /// The place of the first unit whose record the log still has.
    pub min: AtomicU64,
    /// One more than the place of the last unit.
    pub next: AtomicU64,
    /// Guards nothing but itself.
    stops: Mutex<Stops>,
}

/// Readers whose next read is found without a search.
const STOPS: usize = 4;

/// Where the latest readers stopped, as offset and place: they go on there. The place of an offset changes only with
/// [`Batches::forget_stops`].
#[derive(Default)]
struct Stops {
    latest: [Option<(u64, u64)>; STOPS],
    newest: usize,
}

impl Batches {
    fn stopped_at(&self, offset: u64) -> Option<u64> {
        let stops = self.stops.lock();
        stops.latest.iter().flatten().find(|stop| stop.0 == offset).map(|stop| stop.1)
    }

    fn note_stop(&self, offset: u64, place: u64) {
        let mut stops = self.stops.lock();
        if !stops.latest.contains(&Some((offset, place))) {
            stops.newest = (stops.newest + 1) % STOPS;
            let newest = stops.newest;
            stops.latest[newest] = Some((offset, place));
        }
    }

    /// Called when units are taken back.
    pub fn forget_stops(&self) {
        *self.stops.lock() = Stops::default();
    }
}

/// A record of a queue and the messages in it: one, or in the queue of a BatchCQ topic a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Where the record lies.
    pub unit: Unit,
    /// The offset of its first message.
    pub base: u64,
    /// How many messages.
    pub count: u16,
}

/// How a read of [`Span`]s went.
#[derive(Clone, Copy, Debug)]
pub struct SpansRead {
    /// The place of the first one, for [`ConsumeQueue::stop_at`].
    pub first: u64,
    /// So many of them came from files, which may be damaged; those behind are in memory, as they were pushed.
    pub in_files: usize,
    /// How it ended.
    pub read: UnitsRead,
}

impl Span {
    /// One more than the offset of its last message.
    pub fn next(&self) -> u64 {
        self.base.saturating_add(u64::from(self.count))
    }

    /// What a raw unit says, that of a batch or that of the message whose number is its place.
    pub(super) fn decode(is_batch: bool, place: u64, raw: &[u8]) -> Option<Span> {
        if is_batch {
            BatchUnit::decode(raw).map(|BatchUnit { unit, base, count, .. }| Span { unit, base, count })
        } else {
            Unit::decode(raw).map(|unit| Span { unit, base: place, count: 1 })
        }
    }
}

/// Where the unit of a message is.
pub(super) enum UnitPlace {
    At(u64),
    Nowhere,
    /// On the device, and the caller does not want to wait for it.
    Cold,
}

impl ConsumeQueue {
    /// Whether a record of this queue may hold several messages: it belongs to a topic with `queue.type=BatchCQ`.
    pub fn is_batch(&self) -> bool {
        self.batches.is_some()
    }

    /// What a record is to this queue: of an ordinary one it is one message, whatever it says.
    pub(crate) fn span_of(&self, place: &QueuePlace<'_>) -> Span {
        let count = if self.is_batch() { place.count } else { 1 };
        Span { unit: place.unit, base: place.offset, count }
    }

    /// Adds the unit of the next record, which holds `count` messages. As [`push`](Self::push); an ordinary queue takes one message.
    pub fn push_record(self: &Arc<Self>, unit: Unit, count: u16, store_time: i64) {
        let Some(batches) = &self.batches else { return self.push(unit) };
        let mut tail = self.tail.lock();
        let base = self.next.load(Ordering::Relaxed);
        let next = base + u64::from(count);
        if !self.is_deleted.load(Ordering::Relaxed) {
            let place = batches.next.load(Ordering::Relaxed);
            let tail = tail.get_or_insert_with(|| Box::new(Tail::at(place, BATCH_UNIT_BYTES)));
            tail.push(&BatchUnit { unit, store_time, base, count }.encode());
            self.log_end.store(unit.end().0, Ordering::Release);
            batches.next.store(place + 1, Ordering::Release);
            self.note_pushed(tail, BATCH_UNIT_BYTES);
        }
        self.next.store(next, Ordering::Release);
    }

    /// Adds the unit of the record whose messages the log says begin at `offset`, unless it is there. As [`push_at`](Self::push_at), but
    /// that a batch queue may have gaps: its units say themselves where they belong, and what Apache left out is not missing.
    pub fn push_record_at(
        self: &Arc<Self>,
        offset: u64,
        unit: Unit,
        count: u16,
        store_time: i64,
    ) -> Result<PushedAt, QueueError> {
        let Some(batches) = &self.batches else { return self.push_at(offset, unit) };
        let (min, next) = (self.min_offset(), self.max_offset());
        let mut pushed = PushedAt::Added;
        if offset < min {
            return Ok(PushedAt::Already);
        }
        if offset < next {
            if self.span_at(offset)? == Some(Span { unit, base: offset, count }) {
                return Ok(PushedAt::Already);
            }
            // What the queue has from here on is not what the log says. Recovery shows all records that follow.
            if let UnitPlace::At(mut place) = self.place_of(offset, true)? {
                // A unit of this record whose damaged offsets are too low is passed over by the search. It must not stay in front of the
                // right one: who reads on from the unit before would go back.
                let begin = self.min_place();
                while place > begin && self.span_in(place - 1)?.is_some_and(|before| before.unit.at >= unit.at) {
                    place -= 1;
                }
                let _files = self.shared.maintenance.lock();
                self.cut_at(place)?;
            }
            pushed = PushedAt::Mended;
        }
        if offset > next && batches.min.load(Ordering::Relaxed) == batches.next.load(Ordering::Relaxed) {
            self.begin_at(offset)?;
        }
        self.next.store(offset, Ordering::Release);
        self.push_record(unit, count, store_time);
        Ok(pushed)
    }

    /// Reads up to `max` units from the one that holds the message `from`, and says which messages they stand for. As
    /// [`read_units`](Self::read_units).
    pub fn read_spans(
        &self,
        from: u64,
        max: usize,
        may_block: bool,
        out: &mut Vec<Span>,
    ) -> Result<SpansRead, QueueError> {
        let is_batch = self.is_batch();
        let first = match self.place_of(from, may_block)? {
            UnitPlace::At(place) => place,
            UnitPlace::Nowhere => return Ok(SpansRead { first: 0, in_files: 0, read: UnitsRead::Units(0) }),
            UnitPlace::Cold => return Ok(SpansRead { first: 0, in_files: 0, read: UnitsRead::Cold(0) }),
        };
        let mut place = first;
        let read = self.read_raw(place, max, may_block, |raw| {
            let span = Span::decode(is_batch, place, raw);
            place += 1;
            out.extend(span);
            span.is_some()
        })?;
        Ok(SpansRead { first, in_files: read.in_files, read: read.read })
    }

    /// Takes note that a reader will go on with the message `offset`, with which the unit at `place` begins: an ordinary queue need not be
    /// told, and a batch queue need not search then.
    pub fn stop_at(&self, offset: u64, place: u64) {
        if let Some(batches) = &self.batches {
            batches.note_stop(offset, place);
        }
    }

    /// The unit that holds a message, and which others it holds. May wait for the device.
    pub fn span_at(&self, offset: u64) -> Result<Option<Span>, QueueError> {
        match self.place_of(offset, true)? {
            UnitPlace::At(place) => Ok(self.span_in(place)?.filter(|span| span.base <= offset)),
            UnitPlace::Nowhere | UnitPlace::Cold => Ok(None),
        }
    }

    /// The unit at a place. May wait for the device.
    pub(super) fn span_in(&self, place: u64) -> Result<Option<Span>, QueueError> {
        Ok(match self.raw_in(place, true)? {
            Raw::Unit(raw) => Span::decode(self.is_batch(), place, &raw),
            Raw::Nothing | Raw::Cold => None,
        })
    }

    /// The place of the unit that holds a message, or of the first one behind it where no unit does.
    pub(super) fn place_of(&self, offset: u64, may_block: bool) -> Result<UnitPlace, QueueError> {
        if !self.is_batch() {
            return Ok(UnitPlace::At(offset));
        }
        let (mut low, end) = (self.min_place().max(self.first_file.load(Ordering::Acquire)), self.next_place());
        let mut high = end;
        if offset < self.min_offset() || offset >= self.max_offset() {
            return Ok(UnitPlace::Nowhere);
        }
        let stop = self.batches.as_ref().and_then(|batches| batches.stopped_at(offset));
        if let Some(place) = stop.filter(|place| (low..end).contains(place)) {
            return Ok(UnitPlace::At(place));
        }
        // Those who are close behind find it in memory, without a look into files.
        if let Some(tail) = self.tail.lock().as_deref() {
            let mut is_in_memory = false;
            tail.each(tail.first(), 1, |raw| {
                is_in_memory = BatchUnit::decode(raw).is_some_and(|unit| unit.base <= offset);
                false
            });
            if is_in_memory {
                low = low.max(tail.first());
            } else {
                high = high.min(tail.first());
            }
        }
        while low < high {
            let middle = low + (high - low) / 2;
            let next = match self.raw_in(middle, may_block)? {
                Raw::Unit(raw) => BatchUnit::decode(&raw).map_or(0, |unit| unit.next()),
                // Retention was here.
                Raw::Nothing => 0,
                Raw::Cold => return Ok(UnitPlace::Cold),
            };
            if next > offset {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        Ok(if low < end { UnitPlace::At(low) } else { UnitPlace::Nowhere })
    }

    /// The place of the first unit whose record the log still has.
    pub(super) fn min_place(&self) -> u64 {
        self.batches.as_ref().map_or_else(|| self.min_offset(), |batches| batches.min.load(Ordering::Acquire))
    }

    /// The place that the next push takes.
    pub(super) fn next_place(&self) -> u64 {
        self.batches.as_ref().map_or_else(|| self.max_offset(), |batches| batches.next.load(Ordering::Acquire))
    }

    /// The offset for a store time, by the rules of RocketMQ's batch queue: of the last file that
    /// begins with that time or an earlier one, its last batch if that is not younger, else the
    /// first batch that is not older. For the upper boundary, where RocketMQ's search may end
    /// anywhere, the last batch that is not younger. Each place is shown to `look` before it is
    /// read.
    pub(super) fn batch_by_time(
        &self,
        timestamp: i64,
        boundary: Boundary,
        look: &dyn Fn(u64) -> Result<(), QueueError>,
    ) -> Result<u64, QueueError> {
        let (first, next) = (self.first_file.load(Ordering::Acquire), self.next_place());
        let min = self.min_offset();
        if next <= first {
            return Ok(min);
        }
        let unit = |place: u64| -> Result<Option<BatchUnit>, QueueError> {
            look(place)?;
            Ok(match self.raw_in(place, true)? {
                Raw::Unit(raw) => BatchUnit::decode(&raw),
                Raw::Nothing | Raw::Cold => None,
            })
        };
        let time = |place: u64| Ok(unit(place)?.map_or(i64::MIN, |unit| unit.store_time));
        let per_file = self.layout().units_per_file();
        let files = (next - first).div_ceil(per_file);
        let newer = self.first_that(0, files, |file| Ok(time(first + file * per_file)? > timestamp))?;
        let start = first + newer.saturating_sub(1) * per_file;
        let end = (start + per_file).min(next);
        let found = match boundary {
            _last if time(end - 1)? <= timestamp => end - 1,
            Boundary::Lower => self.first_that(start, end, |place| Ok(time(place)? >= timestamp))?,
            Boundary::Upper => {
                let later = self.first_that(start, end, |place| Ok(time(place)? > timestamp))?;
                later.saturating_sub(1).max(start)
            }
        };
        Ok(unit(found)?.map_or(min, |unit| unit.base.max(min)))
    }
}
