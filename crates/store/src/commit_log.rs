//! The log: every message of every topic, one after the other.
//!
//! One lock guards its tail. Inside it a record gets its position, its queue offset and its time, is copied into the mapping,
//! and its unit is pushed to its consume queue; nothing inside allocates, calls the system or waits. `room` says how far the
//! next stretch is prepared: the `segments` thread keeps it ahead of the tail.
//!
//! With a write pool (`pool.rs`) records gather there instead, and `end` follows when they are written. Which of the two it is decides the
//! caller, once for an append: `POOLED`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use disk::Watermark;
use disk::invariant::{self, Whole};
use env::TimeMs;
use parking_lot::{Mutex, MutexGuard, RwLock};
use protocol::LogOffset;
use protocol::{light, record};

use crate::batch::{BatchEntry, Landed, RecordBatch};
use crate::error::{AppendError, NotWritable, StoreError};
use crate::index::Ahead;
use crate::pool::{Buffer, Gathered, Pool, PoolOptions};
use crate::queue_log::{ConsumeQueue, Unit};
use crate::segment::{LogSlice, ReadMode, Segment};

/// RocketMQ keeps 8 bytes free at the end of every file for the marker that says how much is left blank.
pub(crate) const BLANK_BYTES: u64 = 8;
/// The magic code of that marker.
pub(crate) const BLANK_MAGIC: u32 = 0xCBD4_3194;

/// The marker for `left` bytes at the end of a file.
pub(crate) fn blank(left: u64) -> [u8; BLANK_BYTES as usize] {
    let mut blank = [0; BLANK_BYTES as usize];
    blank[..4].copy_from_slice(&(left as u32).to_be_bytes());
    blank[4..].copy_from_slice(&BLANK_MAGIC.to_be_bytes());
    blank
}

struct Tail {
    segment: Arc<Segment>,
    /// The log's end.
    at: u64,
    /// Time does not run backwards in the log, whatever the machine's clock does: search by time depends on it.
    last_timestamp: i64,
    /// The store closes: what is appended from now on would be behind the last flush.
    is_sealed: bool,
    /// Nothing is appended until somebody lets it go on.
    is_held: bool,
    /// Keys for the index.
    ahead: Ahead,
    /// What is in the write pool.
    gathered: Gathered,
}

impl Tail {
    /// Copies whole records to where the tail stands, and moves it behind them.
    fn put<const POOLED: bool>(&mut self, bytes: &[u8]) {
        let end = self.at + bytes.len() as u64;
        self.put_to::<POOLED>(bytes, end);
    }

    /// The same where what follows the bytes, up to `end`, stays as it is.
    fn put_to<const POOLED: bool>(&mut self, bytes: &[u8], end: u64) {
        if POOLED {
            self.gathered.put(self.at, bytes, end);
        } else {
            self.segment.write(self.at, bytes);
            self.segment.publish(end);
        }
        self.at = end;
    }

    /// Puts one record, for which there is room, and its units in all its queues.
    ///
    /// Its numbers in light queues decide how long it is, so that records of a group with such a one go one after the other.
    fn put_light<const POOLED: bool>(
        &mut self,
        entry: &BatchEntry,
        record: &mut [u8],
        light: &[Arc<ConsumeQueue>],
        now: TimeMs,
        timestamp: i64,
    ) -> Landed {
        let light = &light[entry.light.start as usize..entry.light.end as usize];
        let bytes = if light.is_empty() {
            record.len()
        } else {
            light::write_offsets(record, entry.properties_bytes as usize, light.iter().map(|queue| queue.next_offset()))
        };
        let record = &mut record[..bytes];
        let queue_offset = entry.queue.next_offset();
        let at = LogOffset(self.at);
        record::stamp(record, queue_offset, self.at, timestamp);
        if entry.inner.is_some() {
            record::stamp_inner_base(record, queue_offset);
        }
        // Published before there is a unit: who finds the unit finds the record.
        self.put::<POOLED>(record);
        let unit = Unit { at, size: bytes as u32, tags: entry.tags.at(now) };
        entry.queue.push_record(unit, entry.count(), timestamp);
        check_queue(entry, queue_offset);
        for queue in light {
            queue.push(unit);
        }
        Landed { at, end: LogOffset(self.at), queue_offset, store_timestamp: timestamp }
    }
}

/// Stamps the records of a group with where they are to land from log offset `at` on, and adds that to `landed`.
#[inline]
fn stamp_group(group: &[BatchEntry], bytes: &mut [u8], landed: &mut Vec<Landed>, mut at: u64, timestamp: i64) {
    let first = landed.len();
    for (place, entry) in group.iter().enumerate() {
        // Nothing of the group is in its queue yet.
        let same = group[..place].iter().rposition(|before| Arc::ptr_eq(&before.queue, &entry.queue));
        let queue_offset = same.map_or_else(
            || entry.queue.next_offset(),
            |same| landed[first + same].queue_offset + u64::from(group[same].count()),
        );
        let record = &mut bytes[entry.bytes.clone()];
        record::stamp(record, queue_offset, at, timestamp);
        if entry.inner.is_some() {
            record::stamp_inner_base(record, queue_offset);
        }
        let end = at + entry.bytes.len() as u64;
        landed.push(Landed { at: LogOffset(at), end: LogOffset(end), queue_offset, store_timestamp: timestamp });
        at = end;
    }
}

/// Puts the units of a group that is in the log into its queues, and checks that each is as long then as its last record says.
#[inline]
fn push_units(group: &[BatchEntry], landed: &[Landed], now: TimeMs) {
    let unit = |entry: &BatchEntry, landed: &Landed| Unit {
        at: landed.at,
        size: entry.bytes.len() as u32,
        tags: entry.tags.at(now),
    };
    let mut begin = 0;
    for run in group.chunk_by(|one, next| Arc::ptr_eq(&one.queue, &next.queue)) {
        let places = &landed[begin..begin + run.len()];
        begin += run.len();
        if run[0].queue.is_batch() {
            for (entry, landed) in run.iter().zip(places) {
                entry.queue.push_record(unit(entry, landed), entry.count(), landed.store_timestamp);
            }
        } else {
            run[0].queue.push_run(run.iter().zip(places).map(|(entry, landed)| unit(entry, landed)));
        }
        check_queue(&run[run.len() - 1], places[places.len() - 1].queue_offset);
    }
}

/// The last record of a queue has the number that it was stamped with.
#[inline]
fn check_queue(last: &BatchEntry, queue_offset: u64) {
    let end = queue_offset + u64::from(last.count());
    invariant::equal("where an append ends in its queue", end, last.queue.next_offset());
}

/// Why bytes of another log were not appended.
pub(crate) enum RawRefused {
    /// The log ends elsewhere.
    NotNext {
        end: u64,
    },
    Append(AppendError),
}

impl From<AppendError> for RawRefused {
    fn from(error: AppendError) -> RawRefused {
        RawRefused::Append(error)
    }
}

pub(crate) struct CommitLog {
    pub segment_bytes: u64,
    tail: Mutex<Tail>,
    /// From the oldest to the last one made, which may lie ahead of the tail. Guards the list only; taken inside `tail` when
    /// the tail moves to its next segment, never the other way round.
    segments: RwLock<Vec<Arc<Segment>>>,
    /// Everything below is in its place.
    pub end: Watermark,
    /// What stands between appends and the files, if there is one.
    pub pool: Option<Pool>,
    /// Appends may go up to here.
    pub room: Watermark,
    /// When the tail passes this, the `segments` thread is called.
    pub call_at: AtomicU64,
    /// Relaxed: a gauge.
    lock_waited_ns: AtomicU64,
    /// Whether pages are read alone. SeqCst: who changes it and who adds a segment must not both miss the other.
    is_random: AtomicBool,
}

impl CommitLog {
    /// A log whose valid bytes end at `end`, inside `segments` (not empty, adjacent).
    pub fn new(segments: Vec<Arc<Segment>>, segment_bytes: u64, end: u64, last_timestamp: i64) -> Option<CommitLog> {
        let segment = segments.iter().find(|segment| segment.base() <= end && end < segment.end())?;
        let (segment, ahead, gathered) = (Arc::clone(segment), Ahead::default(), Gathered::default());
        let tail = Tail { segment, at: end, last_timestamp, is_sealed: false, is_held: false, ahead, gathered };
        Some(CommitLog {
            segment_bytes,
            tail: Mutex::new(tail),
            segments: RwLock::new(segments),
            end: Watermark::new(end),
            pool: None,
            room: Watermark::new(end),
            call_at: AtomicU64::new(end),
            lock_waited_ns: AtomicU64::new(0),
            is_random: AtomicBool::new(false),
        })
    }

    /// From now on records gather in a pool. Before anything is appended.
    pub fn with_pool(mut self, options: PoolOptions) -> CommitLog {
        self.pool = Some(Pool::new(options, self.end.get()));
        self
    }

    /// Appends what is not appended of the batch. Says whether the `segments` thread should look. `POOLED`: whether there is a pool.
    pub fn append<const POOLED: bool>(&self, batch: &mut RecordBatch, now: TimeMs) -> Result<bool, AppendError> {
        let RecordBatch { bytes, entries, landed, light, hashes, .. } = batch;
        // Not under the lock.
        landed.reserve(entries.len() - landed.len());
        let mut tail = self.tail_in_time();
        let _whole = Whole("an append to the log");
        if tail.is_sealed {
            return Err(NotWritable::Closed.into());
        }
        if tail.is_held {
            return Err(NotWritable::Held.into());
        }
        let timestamp = now.0.max(tail.last_timestamp);
        tail.last_timestamp = timestamp;
        let room = self.room.get();
        let mut outcome = Ok(());
        while landed.len() < entries.len() {
            let group = &entries[landed.len()..];
            let count = group.iter().take_while(|entry| entry.group == group[0].group).count();
            let group = &group[..count];
            let need = (group[count - 1].bytes.end - group[0].bytes.start) as u64;
            if let Err(error) = self.make_way::<POOLED>(&mut tail, need, room) {
                outcome = Err(error);
                break;
            }
            if group.iter().any(|entry| !entry.light.is_empty()) {
                for entry in group {
                    landed.push(tail.put_light::<POOLED>(
                        entry,
                        &mut bytes[entry.bytes.clone()],
                        light,
                        now,
                        timestamp,
                    ));
                }
                continue;
            }
            let first = landed.len();
            stamp_group(group, bytes, landed, tail.at, timestamp);
            let raw = &bytes[group[0].bytes.start..group[count - 1].bytes.end];
            let stamped_to = landed.last().map_or(tail.at, |last| last.end.0);
            invariant::equal("where an append ends in the log", stamped_to, tail.at + raw.len() as u64);
            // Stamped first, copied as one piece: the copy is the part that scales with the bytes.
            // Published before there is a unit: who finds the unit finds the record.
            tail.put::<POOLED>(raw);
            push_units(group, &landed[first..], now);
            for (entry, landed) in group.iter().zip(&landed[first..]) {
                if let Some(keys) = &entry.keys {
                    let hashes = &hashes[keys.start as usize..keys.end as usize];
                    tail.ahead.note(landed.at.0, landed.end.0, landed.store_timestamp, hashes);
                }
            }
        }
        let end = tail.at;
        drop(tail);
        match &self.pool {
            Some(pool) if POOLED => pool.gathered_to(end),
            _ => self.end.advance(end),
        }
        outcome.map(|()| end >= self.call_at.load(Ordering::Relaxed))
    }

    /// Puts bytes of another log, as they are, where this one ends: whole records, or the blank end
    /// of the tail's file. While nothing else can be appended, `derive` puts what follows from
    /// them; it is not called if nothing was put. Says whether the `segments` thread should look.
    pub fn append_raw<const POOLED: bool>(
        &self,
        at: u64,
        bytes: &[u8],
        last_timestamp: i64,
        derive: impl FnOnce(),
    ) -> Result<bool, RawRefused> {
        let mut tail = self.tail_in_time();
        if tail.is_sealed {
            return Err(AppendError::from(NotWritable::Closed).into());
        }
        if tail.at != at {
            return Err(RawRefused::NotNext { end: tail.at });
        }
        let end = at + bytes.len() as u64;
        assert!(end <= tail.segment.end(), "raw bytes do not cross the end of a file of the log");
        // The tail never stands at the end of a file: there has to be a next one.
        let is_full = end == tail.segment.end();
        let needed = if is_full { end + 1 } else { end };
        let next = if is_full { self.segment_at(end) } else { None };
        if needed > self.room.get() || is_full && next.is_none() {
            return Err(AppendError::NoRoomYet { needed }.into());
        }
        let _whole = Whole("an append to the copy of a log");
        self.make_way_in_pool::<POOLED>(&mut tail, bytes.len() as u64)?;
        // Published before there is a unit, as in `append`.
        tail.put::<POOLED>(bytes);
        tail.last_timestamp = tail.last_timestamp.max(last_timestamp);
        if let Some(next) = next {
            tail.segment = next;
        }
        derive();
        drop(tail);
        match &self.pool {
            Some(pool) if POOLED => pool.gathered_to(end),
            _ => self.end.advance(end),
        }
        Ok(end >= self.call_at.load(Ordering::Relaxed))
    }

    /// The tail, once nobody else has it. How long that took is counted; the clock is not looked at where it is free.
    fn tail_in_time(&self) -> MutexGuard<'_, Tail> {
        if let Some(tail) = self.tail.try_lock() {
            return tail;
        }
        let began = Instant::now();
        let tail = self.tail.lock();
        let waited = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.lock_waited_ns.fetch_add(waited, Ordering::Relaxed);
        tail
    }

    /// How long appends have waited for each other since the start, all together.
    pub fn lock_waited(&self) -> Duration {
        Duration::from_nanos(self.lock_waited_ns.load(Ordering::Relaxed))
    }

    /// Lets the tail stand where `need` bytes fit, in the next segment if this one is too full.
    fn make_way<const POOLED: bool>(&self, tail: &mut Tail, need: u64, room: u64) -> Result<(), AppendError> {
        if need + BLANK_BYTES > self.segment_bytes {
            return Err(AppendError::TooLong { bytes: need as usize, limit: self.segment_bytes - BLANK_BYTES });
        }
        let left = tail.segment.end() - tail.at;
        if need + BLANK_BYTES <= left {
            return if tail.at + need <= room {
                self.make_way_in_pool::<POOLED>(tail, need)
            } else {
                Err(AppendError::NoRoomYet { needed: tail.at + need })
            };
        }
        let next_base = tail.segment.end();
        if next_base + need > room {
            return Err(AppendError::NoRoomYet { needed: next_base + need });
        }
        let Some(next) = self.segment_at(next_base) else {
            return Err(AppendError::NoRoomYet { needed: next_base + need });
        };
        self.make_way_in_pool::<POOLED>(tail, BLANK_BYTES)?;
        tail.put_to::<POOLED>(&blank(left), next_base);
        tail.segment = next;
        // If there is no buffer for it, the tail stands in the next segment already.
        self.make_way_in_pool::<POOLED>(tail, need)
    }

    fn make_way_in_pool<const POOLED: bool>(&self, tail: &mut Tail, need: u64) -> Result<(), AppendError> {
        match &self.pool {
            Some(pool) if POOLED => {
                // Before the look at the pool: what is written from then on ends the wait of who finds it full.
                let written = self.end.get();
                let Tail { gathered, segment, at, .. } = tail;
                gathered.make_way(pool, segment, *at, need as usize, written)
            }
            _ => Ok(()),
        }
    }

    /// Takes what is in the pool, for whoever writes it, and says up to which store time that is.
    pub fn take_gathered(&self) -> (Vec<Buffer>, i64) {
        let mut tail = self.tail.lock();
        (tail.gathered.take(), tail.last_timestamp)
    }

    /// The log's end with what waits in the pool.
    pub fn appended(&self) -> u64 {
        self.pool.as_ref().map_or_else(|| self.end.get(), Pool::end)
    }

    /// How much of what lies below `appended`, which somebody with the tail in hand has seen, may be read.
    pub fn readable_to(&self, appended: u64) -> u64 {
        if self.pool.is_some() { appended.min(self.end.get()) } else { appended }
    }

    /// Takes what appends have handed on of keys, leaves them `room`, which is to be empty, and says where the log ends with what waits in
    /// the pool.
    pub fn swap_ahead(&self, room: &mut Ahead) -> u64 {
        let mut tail = self.tail.lock();
        std::mem::swap(&mut tail.ahead, room);
        tail.at
    }

    /// Lets nothing be appended as long as the result lives, which comes with the log's end.
    pub fn hold(&self) -> (impl Drop + '_, u64) {
        let tail = self.tail.lock();
        let end = tail.at;
        (tail, end)
    }

    /// Refuses appends until it is told to let them be made again. Says where the log ends, with what is in the pool: if it is held, that
    /// stays so.
    pub fn hold_appends(&self, is_held: bool) -> u64 {
        let mut tail = self.tail.lock();
        tail.is_held = is_held;
        tail.at
    }

    /// Lets nothing be appended any more. What was appended before is in `end` when this returns, or in the pool.
    pub fn seal(&self) {
        let mut tail = self.tail.lock();
        tail.is_sealed = true;
        match &self.pool {
            None => self.end.advance(tail.at),
            Some(pool) => pool.gathered_to(tail.at),
        }
    }

    /// The segment that holds a log offset.
    pub fn segment_at(&self, at: u64) -> Option<Arc<Segment>> {
        let segments = self.segments.read();
        let first = segments.first()?.base();
        let index = usize::try_from(at.checked_sub(first)? / self.segment_bytes).ok()?;
        segments.get(index).cloned()
    }

    /// `bytes` bytes of the log, if they are all there.
    pub fn slice(&self, at: u64, bytes: usize) -> Option<LogSlice> {
        LogSlice::new(&self.segment_at(at)?, at, bytes)
    }

    /// The log offset of the oldest byte.
    pub fn min(&self) -> u64 {
        self.segments.read().first().map_or(0, |segment| segment.base())
    }

    /// All segments, oldest first.
    pub fn segments(&self) -> Vec<Arc<Segment>> {
        self.segments.read().clone()
    }

    /// The segments that hold the log offsets `from..to`, oldest first.
    pub fn segments_between(&self, from: u64, to: u64) -> Vec<Arc<Segment>> {
        let segments = self.segments.read();
        let begin = segments.partition_point(|segment| segment.end() <= from);
        let end = segments.partition_point(|segment| segment.base() < to).max(begin);
        segments[begin..end].to_vec()
    }

    /// Adds a segment behind the last one.
    pub fn add(&self, segment: Arc<Segment>) {
        self.segments.write().push(Arc::clone(&segment));
        if self.is_random.load(Ordering::SeqCst) {
            // A hint: without it more is read than is needed.
            let _ = segment.advise(ReadMode::Random);
        }
    }

    /// From now on pages of the log that are not in memory are read in this way; also those of segments to come.
    pub fn set_read_mode(&self, mode: ReadMode) -> Result<(), StoreError> {
        self.is_random.store(mode == ReadMode::Random, Ordering::SeqCst);
        for segment in self.segments() {
            segment.advise(mode).map_err(|source| StoreError::Disk {
                doing: "set the read mode of",
                path: segment.path().to_owned(),
                source,
            })?;
        }
        Ok(())
    }

    /// Takes the oldest segment out, which the tail must have left. Slices that readers hold stay valid.
    pub fn forget_oldest(&self) {
        let end = self.end.get();
        let mut segments = self.segments.write();
        assert!(segments.len() > 1 && segments[0].end() <= end, "the tail's segment stays");
        let oldest = segments.remove(0);
        drop(segments);
        // Unmapped outside the lock, if nobody reads in it.
        drop(oldest);
    }
}

#[cfg(test)]
mod tests {
    use disk::{Disk, RealDisk};
    use testing::ending::ends_process;

    use super::*;
    use crate::batch::TagsCode;
    use crate::governor::ColdPages;
    use crate::queue_log::{QueueLogOptions, QueueLogs};

    const SEGMENT_BYTES: u64 = 1 << 16;
    const RECORD_BYTES: usize = 200;

    /// A log, and a batch of two records of one group.
    fn log_and_batch(dir: &tempfile::TempDir) -> (CommitLog, RecordBatch) {
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let cold = Arc::new(ColdPages::unbounded());
        let segment = Segment::open(&disk, dir.path(), 0, SEGMENT_BYTES, &cold).unwrap();
        let log = CommitLog::new(vec![segment], SEGMENT_BYTES, 0, 0).unwrap();
        log.room.advance(SEGMENT_BYTES);
        let (queues, _) = QueueLogs::open(&dir.path().join("queues"), QueueLogOptions::default(), disk).unwrap();
        let queue = queues.get_or_create("Orders", 0);
        let mut batch = RecordBatch::new();
        batch.begin_group();
        for _ in 0..2 {
            batch.push(&queue, TagsCode::Code(0), |out| out.resize(out.len() + RECORD_BYTES, 0));
        }
        batch.end_group();
        (log, batch)
    }

    #[test]
    fn an_append_that_lands_where_it_was_asked_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let (log, mut batch) = log_and_batch(&dir);
        assert!(!ends_process(|| drop(log.append::<false>(&mut batch, TimeMs(1)))));
        assert_eq!((batch.landed().len(), log.end.get()), (2, 2 * RECORD_BYTES as u64));
    }

    #[test]
    fn an_append_that_would_land_elsewhere_in_the_log_ends_the_process_before_it_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let (log, mut batch) = log_and_batch(&dir);
        // A byte between the two that is neither's.
        batch.entries[1].bytes.start += 1;
        assert!(ends_process(|| drop(log.append::<false>(&mut batch, TimeMs(1)))));
        assert_eq!(log.end.get(), 0);
    }

    #[test]
    fn an_append_that_lands_elsewhere_in_its_queue_ends_the_process_before_it_is_acknowledged() {
        let dir = tempfile::tempdir().unwrap();
        let (log, mut batch) = log_and_batch(&dir);
        // An ordinary queue counts one.
        batch.entries[1].inner = Some(3);
        assert!(ends_process(|| drop(log.append::<false>(&mut batch, TimeMs(1)))));
        assert_eq!(log.end.get(), 0);
    }
}
