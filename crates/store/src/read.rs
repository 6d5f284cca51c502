//! From a queue offset to bytes of the log: what a pull gets.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use protocol::record::{self, Scanned};
use protocol::{LogOffset, names};

use crate::commit_log::CommitLog;
use crate::error::StoreError;
use crate::governor::Governor;
use crate::mend::{Mend, leads_to};
use crate::queue_log::{ConsumeQueue, Span, SpansRead, Unit, UnitsRead};
use crate::recovery::whole_record_after;
use crate::segment::{LogSlice, SCAN_STRETCH, Segment, Walk};
use crate::store::Store;
use crate::stretch::{Copies, Stretch, Wish};

/// How a read ended. The names are RocketMQ's (`GetMessageStatus`), because the remark of a pull's answer shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "RocketMQ's names")]
pub enum ReadStatus {
    Found,
    NoMatchedMessage,
    MessageWasRemoving,
    OffsetFoundNull,
    OffsetOverflowBadly,
    OffsetOverflowOne,
    OffsetTooSmall,
    NoMatchedLogicQueue,
    NoMessageInQueue,
    OffsetReset,
    /// Ours: the bytes are not in memory, and the caller did not want to wait for the device.
    Cold,
    /// Ours: the device does not give them; see [`Read::failure`].
    Failed,
    /// Ours: the reader stopped before it knew whether it wants the first message ([`RecordFilter::wants_record`]).
    Undecided,
}

/// What a read found; the bytes are in the vector that the caller gave.
#[derive(Clone, Debug)]
pub struct Read {
    /// How it ended.
    pub status: ReadStatus,
    /// Where the next read begins.
    pub next: i64,
    /// The queue's lowest offset.
    pub min: i64,
    /// One more than the highest offset that may be read now.
    pub max: i64,
    /// Messages found.
    pub count: usize,
    /// Bytes found.
    pub bytes: usize,
    /// Where the last message that was looked at begins; none if none was.
    pub at: Option<LogOffset>,
    /// Why nothing was found, where that is [`ReadStatus::Failed`].
    pub failure: Option<Arc<StoreError>>,
}

impl Read {
    /// Nothing, and where the queue begins and ends.
    pub fn nothing(status: ReadStatus, next: i64, min: i64, max: i64) -> Read {
        Read { status, next, min, max, count: 0, bytes: 0, at: None, failure: None }
    }

    /// What was found so far counts more than why it is not more: the next read meets it first.
    fn fail(&mut self, error: StoreError) {
        self.status = end_status(self, ReadStatus::Failed);
        if self.count == 0 {
            tracing::error!(%error, "messages cannot be read");
            self.failure = Some(Arc::new(error));
        }
    }
}

/// How much one read may bring. The first message comes whatever its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadLimits {
    /// Messages, as the client asks.
    pub max_count: usize,
    /// `maxTransferCountOnMessageInMemory`.
    pub count_memory: usize,
    /// `maxTransferBytesOnMessageInMemory`.
    pub bytes_memory: usize,
    /// `maxTransferCountOnMessageInDisk`.
    pub count_disk: usize,
    /// `maxTransferBytesOnMessageInDisk`.
    pub bytes_disk: usize,
    /// Bytes of the consume queue that a filter may pass over (20 a message).
    pub scan_bytes: usize,
    /// Whether the read may wait for the device: only on a thread of [`Store::cold_read`].
    pub may_fault: bool,
}

/// From where on the log counts as near, and as in memory.
#[derive(Clone, Copy)]
struct Borders {
    near: u64,
    hot: u64,
}

/// Units looked at in one go.
const CHUNK_UNITS: usize = 128;

thread_local! {
    /// The units of the read under way: kept, so that a read allocates nothing.
    static UNITS: RefCell<Vec<Span>> = const { RefCell::new(Vec::new()) };
}

/// What a reader wants of a queue.
pub trait RecordFilter {
    /// Whether it may want a message whose unit says this. May be asked more than once of a unit, and of units that are not read after all.
    fn wants_unit(&mut self, tags: i64) -> bool;

    /// Whether it wants this record, whose unit it may want. `None`: that takes more than the reader may spend, and the read ends before it.
    fn wants_record(&mut self, record: &[u8]) -> Option<bool>;

    /// Who reads, if what is copied for him counts until he has taken it.
    fn copies(&self) -> Option<&Copies> {
        None
    }
}

/// By the unit alone.
impl<F: FnMut(i64) -> bool> RecordFilter for F {
    fn wants_unit(&mut self, tags: i64) -> bool {
        self(tags)
    }

    fn wants_record(&mut self, _: &[u8]) -> Option<bool> {
        Some(true)
    }
}

impl Store {
    /// Reads from `from` on what is wanted of the queue. Slices are appended to `out`, whole records each.
    pub fn read(
        &self,
        queue: &ConsumeQueue,
        from: i64,
        limits: &ReadLimits,
        wanted: &mut dyn RecordFilter,
        out: &mut Vec<LogSlice>,
    ) -> Read {
        let (min, max) = (queue.min_offset(), queue.max_offset());
        let mut read = Read::nothing(ReadStatus::Found, from, min as i64, max as i64);
        if max == 0 {
            return Read { status: ReadStatus::NoMessageInQueue, next: 0, ..read };
        }
        let Ok(start) = u64::try_from(from) else {
            return Read { status: ReadStatus::OffsetTooSmall, next: read.min, ..read };
        };
        if start < min {
            return Read { status: ReadStatus::OffsetTooSmall, next: read.min, ..read };
        }
        if start == max {
            return Read { status: ReadStatus::OffsetOverflowOne, ..read };
        }
        if start > max {
            // What is not confirmed may be numbered anew after a loss of power.
            let max = self.visible_end(queue) as i64;
            return Read { status: ReadStatus::OffsetOverflowBadly, next: max, max, ..read };
        }
        UNITS.with_borrow_mut(|units| self.read_from(queue, start, limits, wanted, units, out, &mut read));
        read
    }

    #[allow(clippy::too_many_arguments, reason = "one step of `read`, split off to be read at a sitting")]
    fn read_from(
        &self,
        queue: &ConsumeQueue,
        start: u64,
        limits: &ReadLimits,
        wanted: &mut dyn RecordFilter,
        units: &mut Vec<Span>,
        out: &mut Vec<LogSlice>,
        read: &mut Read,
    ) {
        let scan_max =
            (limits.scan_bytes / crate::queue_log::UNIT_BYTES).max(limits.max_count.min(limits.count_memory)).max(1);
        let mut reading = Reading {
            store: self,
            queue,
            limits,
            confirmed: self.confirmed().get(),
            from: Borders { near: self.near_from(), hot: self.hot_from() },
            is_light: names::is_lmq(queue.topic()),
            start,
            offset: start,
            place: None,
            scanned: 0,
            is_removing: false,
            damaged: None,
            segment: None,
            together: StretchRead::default(),
            read,
        };
        // Ends at the queue's end, at a limit, or when so many units were passed over.
        'units: while reading.scanned < scan_max {
            if reading.has_enough() {
                return;
            }
            units.clear();
            // First as many as are asked for; where a filter passes over them, more at once.
            let chunk = if reading.scanned == 0 { limits.max_count.clamp(1, CHUNK_UNITS) } else { CHUNK_UNITS };
            let want = (scan_max - reading.scanned).min(chunk);
            let spans = match queue.read_spans(reading.offset, want, limits.may_fault, units) {
                Ok(spans) => spans,
                Err(error) => return reading.read.fail(error.into()),
            };
            match reading.mend_hole(&spans, units) {
                Ok(()) => {}
                Err(Stop::Again) => continue,
                Err(Stop::Over) => return,
            }
            if units.is_empty() {
                reading.end_without_units(matches!(spans.read, UnitsRead::Cold(_)));
                return;
            }
            for index in 0..units.len() {
                match reading.take(&spans, units, index, wanted, out) {
                    Ok(()) => {}
                    Err(Stop::Again) => continue 'units,
                    Err(Stop::Over) => return,
                }
            }
        }
        reading.end(without_match(reading.is_removing));
    }

    /// Whether a unit that leads to no byte of the log is one of those that retention is about to take: then those before it do not lead further.
    pub(crate) fn is_removed(&self, queue: &ConsumeQueue, place: u64, unit: &Unit) -> bool {
        if unit.at >= self.min_offset() {
            return false;
        }
        // Those that are gone from the queue stay in its file, and say so of the first one too.
        let before = place.checked_sub(1).and_then(|before| queue.span_at_place(before).ok().flatten());
        !before.is_some_and(|before| before.unit.is_message() && before.unit.at > unit.at)
    }

    /// Bytes of the log from here on are read in the portions for memory, as RocketMQ does: by their distance from the end.
    fn near_from(&self) -> u64 {
        // Less where memory had to be given back; and whoever is told that a message is there reads it a moment later.
        let kept = self.shared.governor.as_ref().map_or(u64::MAX, |governor| governor.hot() / 8 * 7);
        self.shared.log.end.get().saturating_sub(self.shared.options.hot_bytes.min(kept))
    }

    /// Bytes of the log from here on are taken to be in memory: near, written by this process, and not given back since.
    pub(crate) fn hot_from(&self) -> u64 {
        // A look first: the flag is set nearly always, and a store would take its cache line from the other readers.
        if !self.shared.had_reads.load(Ordering::Relaxed) {
            self.shared.had_reads.store(true, Ordering::Relaxed);
        }
        let near = self.near_from();
        let kept = self.shared.governor.as_ref().map_or(0, Governor::kept_from);
        near.max(self.shared.opened_at).max(kept)
    }

    /// When the record of a unit was stored, none if it cannot be told. May wait for the device.
    pub fn store_time(&self, unit: &Unit) -> Option<i64> {
        self.store_time_of(unit).ok().flatten()
    }

    /// When the record of a unit was stored, none if there is no such record. May wait for the device.
    pub fn store_time_of(&self, unit: &Unit) -> Result<Option<i64>, StoreError> {
        if unit.at.0 >= self.shared.log.readable_to(u64::MAX) {
            // In the pool, where it came a moment ago.
            return Ok(Some(self.shared.clock.now().0));
        }
        let Some(slice) = self.shared.log.slice(unit.at.0, unit.size as usize) else { return Ok(None) };
        slice.bring_in()?;
        match record::scan(slice.as_ref(), false) {
            Ok(Scanned::Record(view)) => Ok(Some(view.store_timestamp())),
            Ok(Scanned::Blank { .. } | Scanned::Nothing) | Err(_) => Ok(None),
        }
    }

    /// Shows the records of the log from `from` to its end, in order. May wait for the device.
    ///
    /// A stretch that is no record is passed over, and said; an error only where `from` itself is none, and no file begins there.
    pub fn scan(
        &self,
        from: LogOffset,
        visit: &mut dyn FnMut(LogOffset, &record::RecordView<'_>),
    ) -> Result<(), StoreError> {
        let log = &self.shared.log;
        if let Some(segment) = log.segment_at(from.0).filter(|segment| from.0 != segment.base())
            && from.0 < log.end.get()
            && let Some(why) = match record::scan(segment.record_at(from.0)?, false) {
                Ok(Scanned::Record(_) | Scanned::Blank { .. }) => None,
                no_record => Some(why_none(no_record)),
            }
        {
            let why = format!("no record begins at log offset {from}: {why}");
            return Err(StoreError::Malformed { path: segment.path().to_owned(), why });
        }
        self.walk(from.0, u64::MAX, &mut |at, view| {
            visit(at, view);
            true
        })
    }

    /// Shows the records of the log that begin at `from` or behind it, and below `to` and its end, in order, until `visit` wants no more. May wait
    /// for the device. A stretch that is no record is passed over, and said.
    pub(crate) fn walk(
        &self,
        from: u64,
        to: u64,
        visit: &mut dyn FnMut(LogOffset, &record::RecordView<'_>) -> bool,
    ) -> Result<(), StoreError> {
        let log = &self.shared.log;
        let visit = |view: &record::RecordView<'_>, at| visit(LogOffset(at), view);
        walk(log, from, log.end.get().min(to), visit, |path, from, to, why| {
            tracing::error!(
                path = %path.display(),
                from,
                to,
                why,
                "the log is damaged; what lies there is passed over; `gantry store verify` says more"
            );
        })?;
        Ok(())
    }
}

/// The same of any place below the log's end. Says where it ended. `say` is told of each stretch that is passed over: its file, from where to where,
/// and why.
pub(crate) fn walk(
    log: &CommitLog,
    from: u64,
    end: u64,
    mut visit: impl FnMut(&record::RecordView<'_>, u64) -> bool,
    say: impl Fn(&Path, u64, u64, String),
) -> Result<u64, StoreError> {
    let mut at = from.max(log.min());
    // Each turn takes a segment.
    while at < end {
        let Some(segment) = log.segment_at(at) else {
            // Retention was here: go on with what is left.
            at = at.max(log.min());
            if log.segment_at(at).is_none() {
                break;
            }
            continue;
        };
        let mut walk = Walk::new(&segment, SCAN_STRETCH);
        // Each turn goes on by a record or ends the segment.
        while at < end.min(segment.end()) {
            match record::scan(walk.record_at(at)?, false) {
                Ok(Scanned::Record(view)) => {
                    let record_at = at;
                    at += view.total_size() as u64;
                    if !visit(&view, record_at) {
                        return Ok(at);
                    }
                }
                Ok(Scanned::Blank { .. }) => at = segment.end(),
                no_record => {
                    let whole = whole_record_after(&log.segments_between(at, end), at)?;
                    let next = whole.map_or(end, |whole| whole.min(end));
                    say(segment.path(), at, next, why_none(no_record));
                    at = next;
                }
            }
        }
    }
    Ok(at)
}

fn why_none(scanned: Result<Scanned<'_>, record::Corrupt>) -> String {
    scanned.err().map_or_else(|| "nothing is there".to_owned(), |why| why.to_string())
}

/// A read under way.
struct Reading<'a> {
    store: &'a Store,
    queue: &'a ConsumeQueue,
    limits: &'a ReadLimits,
    /// Records may be seen up to here.
    confirmed: u64,
    from: Borders,
    is_light: bool,
    /// Where it began.
    start: u64,
    /// The next message to look at.
    offset: u64,
    /// Of the unit that `offset` begins with, once that is known.
    place: Option<u64>,
    /// Units looked at.
    scanned: usize,
    /// Retention was faster than the read.
    is_removing: bool,
    /// The place of the last unit that was not what the log says, and whether it is to be passed over.
    damaged: Option<(u64, bool)>,
    /// The one that was read last: messages of a pull lie in one file, as a rule.
    segment: Option<Arc<Segment>>,
    together: StretchRead,
    read: &'a mut Read,
}

/// Why a read does not go on with the next unit.
enum Stop {
    /// Something was mended: it goes on with units that are read again.
    Again,
    /// It is over, and what it found says how.
    Over,
}

impl Reading<'_> {
    /// It is over: with what was found, or like this.
    fn end(&mut self, nothing: ReadStatus) -> Stop {
        self.read.status = end_status(self.read, nothing);
        Stop::Over
    }

    fn fail(&mut self, error: StoreError) -> Stop {
        self.read.fail(error);
        Stop::Over
    }

    fn go_on_at(&mut self, offset: u64) {
        self.offset = offset;
        self.read.next = offset as i64;
    }

    /// How it ends at the last message that may be seen.
    fn nothing_more(&self) -> ReadStatus {
        if self.offset == self.start { ReadStatus::OffsetOverflowOne } else { without_match(self.is_removing) }
    }

    /// Whether it has found as many messages as are asked for. The next one goes on here.
    fn has_enough(&self) -> bool {
        let has_enough = self.read.count >= self.limits.max_count.max(1);
        if has_enough && let Some(place) = self.place {
            self.queue.stop_at(self.offset, place);
        }
        has_enough
    }

    /// Mends what is no unit, though the queue goes on; or batches that are passed over by the search, since one before them is damaged.
    #[inline]
    fn mend_hole(&mut self, spans: &SpansRead, units: &[Span]) -> Result<(), Stop> {
        let hole = match units.first() {
            None if !matches!(spans.read, UnitsRead::Cold(_))
                && self.limits.may_fault
                && self.queue.has_unit_of(self.offset) =>
            {
                Some(spans.first)
            }
            Some(span) if span.base > self.offset && spans.in_files > 0 => spans.first.checked_sub(1),
            Some(_) | None => None,
        };
        let Some(hole) = hole.filter(|hole| self.damaged.is_none_or(|(place, _)| place != *hole)) else {
            return Ok(());
        };
        self.check_may_mend()?;
        match self.store.mend(self.queue, hole) {
            // The log has none of it: what is behind it goes on.
            Ok(Mend::Lost(next)) if units.is_empty() && !self.queue.is_batch() => {
                self.go_on_at(next.clamp(self.offset + 1, self.queue.max_offset()));
            }
            // A queue of batches may leave some out, without damage.
            Ok(mend) => self.damaged = Some((hole, mend != Mend::Done)),
            Err(error) => return Err(self.fail(error)),
        }
        Err(Stop::Again)
    }

    /// Ends it where the queue has shown no unit.
    fn end_without_units(&mut self, is_cold: bool) -> Stop {
        if is_cold {
            return self.end(ReadStatus::Cold);
        }
        if self.offset >= self.queue.max_offset() {
            return self.end(self.nothing_more());
        }
        // Nothing there although the queue goes on. Only the device can say that for certain.
        if self.offset >= self.queue.min_offset() && !self.limits.may_fault {
            return self.end(ReadStatus::Cold);
        }
        // Retention was here, or the units never reached the device: go on behind the hole, or nobody ever would.
        let (queue, from, to) = (self.queue, self.offset, self.queue.behind_hole(self.offset));
        if self.read.count == 0 {
            tracing::warn!(topic = queue.topic(), queue_id = queue.id(), from, to, "no units");
            self.read.next = to as i64;
        }
        self.end(ReadStatus::OffsetFoundNull)
    }

    /// Looks at one of these units, and takes its message if it is wanted.
    #[inline]
    fn take(
        &mut self,
        spans: &SpansRead,
        units: &[Span],
        index: usize,
        wanted: &mut dyn RecordFilter,
        out: &mut Vec<LogSlice>,
    ) -> Result<(), Stop> {
        let (span, at) = (&units[index], spans.first + index as u64);
        let unit = &span.unit;
        // What is in memory is as it was pushed.
        let is_unsure = index < spans.in_files;
        let mut is_damaged = false;
        if unit.end().0 > self.confirmed {
            // Noted before a unit can be seen.
            is_damaged = is_unsure && unit.end() > self.queue.log_end();
            if !is_damaged {
                self.read.max = self.offset as i64;
                return Err(self.end(self.nothing_more()));
            }
        }
        if is_full(self.read, span, self.limits, unit.at.0 >= self.from.near) {
            self.queue.stop_at(span.base, at);
            return Err(Stop::Over);
        }
        self.scanned += 1;
        self.place = Some(at + 1);
        if unit.is_message() {
            self.read.at = Some(unit.at);
        }
        if !is_damaged && (!unit.is_message() || !wanted.wants_unit(unit.tags)) {
            self.go_on_at(span.next());
            return Ok(());
        }
        let is_hot = unit.at.0 >= self.from.hot && !is_damaged;
        if !is_hot && !self.limits.may_fault {
            return Err(self.end(ReadStatus::Cold));
        }
        let slice = if is_damaged { None } else { self.slice(unit, &units[index..], is_hot, wanted)? };
        // What is in memory is as it was written, and is not looked at.
        let copy = match &slice {
            Some(slice) if !is_hot && self.store.options().check_crc_on_read => {
                Some(slice.to_check().map_err(|error| self.fail(error))?)
            }
            Some(_) | None => None,
        };
        let is_passed = self.damaged == Some((at, true));
        if is_unsure && !is_passed {
            self.check_unit(span, at, slice.as_ref(), copy.as_deref(), is_hot, is_damaged)?;
        }
        self.go_on_at(span.next());
        let Some(found) = &slice else {
            // Wanted, and retention was faster.
            self.is_removing = true;
            return Ok(());
        };
        if is_passed && is_hot {
            return Ok(());
        }
        match wanted.wants_record(copy.as_deref().unwrap_or(found.as_ref())) {
            Some(true) => {}
            Some(false) => return Ok(()),
            None => {
                // A batch may have begun before.
                self.read.next = span.base.max(self.start) as i64;
                let is_first = span.base <= self.start;
                let nothing = if is_first { ReadStatus::Undecided } else { without_match(self.is_removing) };
                return Err(self.end(nothing));
            }
        }
        if copy.is_some_and(|bytes| !self.store.is_sound(self.queue, span.base, &bytes, unit.at.0)) {
            return Ok(());
        }
        out.extend(slice);
        self.read.count += usize::from(span.count);
        self.read.bytes += unit.size as usize;
        Ok(())
    }

    /// The bytes of the first of these units' message, if the log has them.
    #[inline]
    fn slice(
        &mut self,
        unit: &Unit,
        units: &[Span],
        is_hot: bool,
        wanted: &mut dyn RecordFilter,
    ) -> Result<Option<LogSlice>, Stop> {
        if !self.segment.as_ref().is_some_and(|segment| segment.holds(unit.at.0)) {
            self.segment = self.store.shared.log.segment_at(unit.at.0);
        }
        let Some(segment) = &self.segment else { return Ok(None) };
        if is_hot {
            return Ok(LogSlice::new(segment, unit.at.0, unit.size as usize));
        }
        let found = cold_slice(segment, &mut self.together, units, self.read, self.limits, self.from, wanted);
        found.map_err(|error| self.fail(error))
    }

    /// Whether a unit from a file, whose message is `slice`, is what the log says. If not, it is mended and read again.
    fn check_unit(
        &mut self,
        span: &Span,
        at: u64,
        slice: Option<&LogSlice>,
        copy: Option<&[u8]>,
        is_hot: bool,
        is_damaged: bool,
    ) -> Result<(), Stop> {
        let (queue, is_light) = (self.queue, self.is_light);
        let is_own = match (slice, copy) {
            (Some(_), Some(bytes)) => Ok(leads_to(queue, is_light, span, bytes)),
            (Some(slice), None) if is_hot => Ok(leads_to(queue, is_light, span, slice.as_ref())),
            (Some(slice), None) if queue.is_batch() => {
                slice.to_check().map(|bytes| leads_to(queue, is_light, span, &bytes))
            }
            (Some(slice), None) => slice.head_to_check().map(|head| leads_to(queue, is_light, span, &head)),
            (None, _) => Ok(!is_damaged && self.store.is_removed(queue, at, &span.unit)),
        };
        if is_own.map_err(|error| self.fail(error))? {
            return Ok(());
        }
        self.check_may_mend()?;
        let mend = self.store.mend(queue, at).map_err(|error| self.fail(error))?;
        self.damaged = Some((at, mend != Mend::Done || self.damaged == Some((at, false))));
        // It is looked at once more, and counts once.
        self.scanned -= 1;
        Err(Stop::Again)
    }

    /// Whether this read may mend a unit. If not, it is over: with what was found, or so that it comes again on a thread that may wait.
    fn check_may_mend(&mut self) -> Result<(), Stop> {
        if self.limits.may_fault && self.read.count == 0 { Ok(()) } else { Err(self.end(ReadStatus::Cold)) }
    }
}

/// What one read has brought together of messages that are not in memory.
#[derive(Default)]
struct StretchRead {
    stretch: Option<Stretch>,
    /// Messages are brought in one by one from here on.
    has_failed: bool,
}

/// The message of the first of these units, which is not in memory; and it may be read with those behind it that this read would bring too.
fn cold_slice(
    segment: &Arc<Segment>,
    together: &mut StretchRead,
    units: &[Span],
    read: &Read,
    limits: &ReadLimits,
    from: Borders,
    wanted: &mut dyn RecordFilter,
) -> Result<Option<LogSlice>, StoreError> {
    let Some(unit) = units.first().map(|span| &span.unit) else { return Ok(None) };
    let (at, bytes) = (unit.at.0, unit.size as usize);
    if let Some(slice) = together.stretch.as_mut().and_then(|stretch| stretch.take(at, bytes)) {
        return Ok(Some(slice));
    }
    let span_max = segment.cold_pages().span_max();
    let mut wish = Wish::default();
    let mut planned = Read::nothing(ReadStatus::Found, read.next, read.min, read.max);
    (planned.count, planned.bytes) = (read.count, read.bytes);
    for span in units {
        let unit = &span.unit;
        if is_full(&planned, span, limits, unit.at.0 >= from.near) || unit.at.0 >= from.hot {
            break;
        }
        if !unit.is_message() || !wanted.wants_unit(unit.tags) {
            continue;
        }
        let range = segment.published_range(unit.at.0, unit.size as usize);
        if !range.is_some_and(|range| wish.add(range, span_max)) {
            break;
        }
        planned.count += usize::from(span.count);
        planned.bytes += unit.size as usize;
    }
    if wish.count() > 0 && !together.has_failed {
        match Stretch::read(segment, &wish, wanted.copies()) {
            Ok(Some(found)) => return Ok(together.stretch.insert(found).take(at, bytes)),
            Ok(None) => {}
            // The device fails somewhere in it, or the file's name is gone already. Singly, what is there is given out, and what is not is named.
            Err(_) => together.has_failed = true,
        }
    }
    let slice = LogSlice::new(segment, at, bytes);
    if let Some(slice) = &slice {
        slice.bring_in()?;
    }
    Ok(slice)
}

fn without_match(is_removing: bool) -> ReadStatus {
    if is_removing { ReadStatus::MessageWasRemoving } else { ReadStatus::NoMatchedMessage }
}

/// What was found so far counts more than why it is not more.
fn end_status(read: &Read, nothing: ReadStatus) -> ReadStatus {
    if read.count > 0 { ReadStatus::Found } else { nothing }
}

fn is_full(read: &Read, next: &Span, limits: &ReadLimits, is_near: bool) -> bool {
    if read.count == 0 {
        return false;
    }
    let (count, bytes) = match is_near {
        true => (limits.count_memory, limits.bytes_memory),
        false => (limits.count_disk, limits.bytes_disk),
    };
    // As in RocketMQ: a batch must fit into what the client asks for, but may begin below what one read brings.
    read.count + usize::from(next.count) > limits.max_count
        || read.count >= count
        || read.bytes + next.unit.size as usize > bytes
}
