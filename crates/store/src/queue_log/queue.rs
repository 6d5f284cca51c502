//! One consume queue: what was pushed and is not yet in a file, a recent stretch beside it, and the way to the files.
//!
//! One thread at a time pushes (whoever holds the log's lock). Readers run beside it: what is in memory they copy under the
//! tail's lock, the rest they read from files outside any lock (`reading.rs`). Files change only under the maintenance lock of
//! [`QueueLogs`](super::QueueLogs) (`writing.rs`, `trim.rs`). A queue at rest is this struct and nothing else: no buffer, descriptor or thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use protocol::LogOffset;

use super::batch::Batches;
use super::error::QueueError;
use super::layout::Layout;
use super::shared::Shared;
use super::tail::Tail;
use super::unit::{UNIT_BYTES, Unit};

/// The highest number that a queue is let go on at: the names of its files, which count bytes, have room for it.
const NUMBER_MAX: u64 = 1 << 56;

/// What became of a unit that recovery pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushedAt {
    /// It was the next one.
    Added,
    /// The queue had it, or begins above it.
    Already,
    /// The queue had something else at its place, which is overwritten.
    Mended,
}

/// The messages of one queue of a topic, by number.
pub struct ConsumeQueue {
    pub(super) shared: Arc<Shared>,
    topic: Arc<str>,
    id: u32,
    /// Names the queue in the table of descriptors; never reused.
    pub(super) number: u64,
    /// One more than the last message. Written under the tail's lock; Release pairs with the Acquire of readers that look
    /// before they take the lock.
    pub(super) next: AtomicU64,
    /// The first message whose record the log still has.
    pub(super) min: AtomicU64,
    /// One more than the log offset of its record; 0 if nobody looked. Spares retention a read of every queue.
    pub(super) min_at_plus_one: AtomicU64,
    /// Where the last unit's record ends; 0 without units.
    pub(super) log_end: AtomicU64,
    /// Files on disk: from the one whose first unit is at the place `first_file`, dense, up to the place `files_end`. Written under the
    /// maintenance lock, each stored after the change on disk that makes it true; readers that race find no file or no
    /// unit, and end.
    pub(super) first_file: AtomicU64,
    pub(super) files_end: AtomicU64,
    /// Of a queue whose records hold batches; none of an ordinary one, whose units have the numbers of their messages.
    pub(super) batches: Option<Box<Batches>>,
    /// Set once, when the topic is deleted. What is pushed after that goes nowhere.
    pub(super) is_deleted: AtomicBool,
    /// What it adds to the number of `ends.rs`.
    pub(super) counted: AtomicU64,
    /// Guards the units in memory. Taken inside the log's lock by push; nothing is taken inside it but the list of queues
    /// that have something to write.
    pub(super) tail: Mutex<Option<Box<Tail>>>,
}

impl ConsumeQueue {
    pub(super) fn new(shared: Arc<Shared>, topic: Arc<str>, id: u32, is_batch: bool) -> ConsumeQueue {
        ConsumeQueue {
            number: shared.next_number.fetch_add(1, Ordering::Relaxed),
            shared,
            topic,
            id,
            next: AtomicU64::new(0),
            min: AtomicU64::new(0),
            min_at_plus_one: AtomicU64::new(0),
            log_end: AtomicU64::new(0),
            first_file: AtomicU64::new(0),
            files_end: AtomicU64::new(0),
            batches: is_batch.then(Box::default),
            is_deleted: AtomicBool::new(false),
            counted: AtomicU64::new(0),
            tail: Mutex::new(None),
        }
    }

    /// The topic's name.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// The same, for those who keep it.
    pub(super) fn shared_topic(&self) -> &Arc<str> {
        &self.topic
    }

    /// The queue's number in its topic.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The lowest offset whose message the log still has; `max_offset` if there is none.
    pub fn min_offset(&self) -> u64 {
        self.min.load(Ordering::Acquire)
    }

    /// One more than the highest offset.
    pub fn max_offset(&self) -> u64 {
        self.next.load(Ordering::Acquire)
    }

    /// The offset that the next push takes.
    pub fn next_offset(&self) -> u64 {
        self.max_offset()
    }

    /// Whether it has a message of that number, by its lowest and highest one.
    pub(crate) fn has_unit_of(&self, offset: u64) -> bool {
        (self.min_offset()..self.max_offset()).contains(&offset)
    }

    /// Where the last unit's record ends in the log; 0 without units.
    pub fn log_end(&self) -> LogOffset {
        LogOffset(self.log_end.load(Ordering::Acquire))
    }

    /// The first place that there is in its files.
    pub(crate) fn files_begin(&self) -> u64 {
        self.first_file.load(Ordering::Acquire)
    }

    /// Whether it never had a message, as far as its files know: there is none.
    pub(crate) fn is_unknown(&self) -> bool {
        self.max_offset() == 0 && self.files_begin() == self.files_end.load(Ordering::Acquire)
    }

    /// Whether its topic was deleted while somebody still held it.
    pub fn is_deleted(&self) -> bool {
        self.is_deleted.load(Ordering::Acquire)
    }

    /// The file that holds the unit of a message, and the byte at which it begins; of a batch queue the folder alone, since its units are found by
    /// looking.
    pub fn place_on_disk(&self, offset: u64) -> (std::path::PathBuf, Option<u64>) {
        if self.is_batch() {
            return (self.dir(), None);
        }
        let layout = self.layout();
        let file = super::descriptors::file_path(&self.dir(), layout.byte_of(layout.file_start(offset)));
        (file, Some(layout.byte_in_file(offset)))
    }

    pub(super) fn layout(&self) -> &Layout {
        if self.is_batch() { &self.shared.batch } else { &self.shared.simple }
    }

    /// Adds the next unit of an ordinary queue. Memory only; readers see it at once. One thread at a time: whoever holds the log's lock.
    pub fn push(self: &Arc<Self>, unit: Unit) {
        self.push_run(std::iter::once(unit));
    }

    /// The same for several, which readers see together.
    pub fn push_run(self: &Arc<Self>, units: impl ExactSizeIterator<Item = Unit>) {
        let count = units.len();
        let mut tail = self.tail.lock();
        let next = self.next.load(Ordering::Relaxed) + count as u64;
        if self.is_deleted.load(Ordering::Relaxed) {
            self.next.store(next, Ordering::Release);
            return;
        }
        let tail = tail.get_or_insert_with(|| Box::new(Tail::at(next - count as u64, UNIT_BYTES)));
        let mut log_end = None;
        for unit in units {
            tail.push(&unit.encode());
            log_end = Some(unit.end().0);
        }
        if let Some(log_end) = log_end {
            self.log_end.store(log_end, Ordering::Release);
        }
        self.next.store(next, Ordering::Release);
        self.note_pushed(tail, count * UNIT_BYTES);
    }

    #[inline]
    pub(super) fn note_pushed(self: &Arc<Self>, tail: &mut Tail, bytes: usize) {
        if !tail.is_listed {
            tail.is_listed = true;
            self.shared.listed.lock().push(Arc::clone(self));
        }
        self.shared.count_pushed(bytes);
    }

    /// Adds the unit that the log says belongs at `offset` of an ordinary queue, unless it is there. For recovery, before anybody else pushes.
    ///
    /// A queue without live units may begin anywhere; any other refuses a gap, because what is missing would be served as
    /// nothing.
    pub fn push_at(self: &Arc<Self>, offset: u64, unit: Unit) -> Result<PushedAt, QueueError> {
        let next = self.max_offset();
        if offset < next {
            return self.mend(offset, unit);
        }
        if offset > next {
            if self.min_offset() < next {
                let topic = self.topic.to_string();
                return Err(QueueError::Gap { topic, queue_id: self.id, next, offset, at: unit.at });
            }
            self.begin_at(offset)?;
        }
        self.push(unit);
        Ok(PushedAt::Added)
    }

    fn mend(&self, offset: u64, unit: Unit) -> Result<PushedAt, QueueError> {
        if offset < self.min_offset() || self.unit_at(offset)? == Some(unit) {
            return Ok(PushedAt::Already);
        }
        self.mend_in(offset, unit)?;
        Ok(PushedAt::Mended)
    }

    /// Replaces the unit at a place, which is there. Of a batch's unit, what it says of its messages stays.
    pub(super) fn mend_in(&self, place: u64, unit: Unit) -> Result<(), QueueError> {
        let raw = unit.encode();
        let is_written = match self.tail.lock().as_deref_mut() {
            Some(tail) if place >= tail.first() => tail.mend(place, &raw),
            Some(_) | None => true,
        };
        if is_written {
            self.write(place, &raw)?;
        }
        if place + 1 == self.next_place() {
            self.log_end.store(unit.end().0, Ordering::Release);
        }
        if place == self.min_place() {
            self.min_at_plus_one.store(0, Ordering::Release);
        }
        Ok(())
    }

    /// Lets an ordinary queue of which the log has nothing go on at `offset`, and says whether it does now: not if it has messages, or is that
    /// far. A unit that points just below the log keeps the number in its file, where Apache's broker finds it too. Before anybody pushes.
    pub(crate) fn go_on_at(self: &Arc<Self>, offset: u64, log_min: LogOffset) -> Result<bool, QueueError> {
        let has_messages = self.min_offset() < self.max_offset();
        let (Some(last), Some(below)) = (offset.checked_sub(1), log_min.0.checked_sub(1)) else { return Ok(false) };
        if self.is_batch() || has_messages || offset <= self.max_offset() || offset > NUMBER_MAX {
            return Ok(false);
        }
        self.begin_at(last)?;
        // Not a blank one: Apache's broker would take the queue for as far as two gigabytes of the log, and pass new messages over.
        self.push(Unit { at: LogOffset(below), size: 1, tags: Unit::LOST });
        self.trim_below(log_min)?;
        Ok(true)
    }

    /// Lets the queue begin at `offset`, without a unit. For recovery: what it had is gone from the log and would only leave a
    /// gap, or is not what the log says.
    pub(crate) fn begin_at(&self, offset: u64) -> Result<(), QueueError> {
        let _files = self.shared.maintenance.lock();
        let place = if self.is_batch() { 0 } else { offset };
        let (first_file, files_end) = (self.first_file.load(Ordering::Acquire), self.files_end.load(Ordering::Acquire));
        if first_file < files_end {
            self.remove_files(first_file, files_end)?;
            // They must not come back.
            self.shared.unsynced.lock().note_made(self.dir());
        }
        let mut tail = self.tail.lock();
        if let Some(tail) = tail.as_deref_mut() {
            self.shared.count_written(tail.pending_bytes());
            tail.restart(place);
        }
        let file_start = self.layout().file_start(place);
        self.first_file.store(file_start, Ordering::Release);
        self.files_end.store(file_start, Ordering::Release);
        if let Some(batches) = &self.batches {
            batches.min.store(place, Ordering::Release);
            batches.next.store(place, Ordering::Release);
            batches.forget_stops();
        }
        self.min.store(offset, Ordering::Release);
        self.min_at_plus_one.store(0, Ordering::Release);
        self.next.store(offset, Ordering::Release);
        self.log_end.store(0, Ordering::Release);
        Ok(())
    }
}

impl std::fmt::Debug for ConsumeQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ConsumeQueue({}/{} {}..{})", self.topic, self.id, self.min_offset(), self.max_offset())
    }
}
