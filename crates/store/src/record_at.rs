//! A record by its place in the log.
//!
//! What comes from the device is read through the file and looked at in memory of our own: a page of the mapping may be dropped for another reader
//! at any moment, and if the device did not give it again, a look at it would end the process with a signal.

use std::borrow::Cow;
use std::sync::Arc;

use protocol::LogOffset;
use protocol::record::RecordView;

use crate::error::{Cold, StoreError};
use crate::fold::whole_at;
use crate::segment::{LogSlice, Segment};
use crate::sound::wrong_with;
use crate::store::Store;
use crate::stretch::Copied;

/// What lies at a place in the log.
#[derive(Debug)]
pub enum RecordAt {
    /// A whole record.
    Record(LogSlice),
    /// None: retention was there, or none ever began there.
    Gone,
    /// One that is not what was stored, and that nobody gets. It is counted and named; it does not get better.
    Damaged,
}

impl Store {
    /// The record that begins at a log offset, none if no record does.
    pub fn record_at(&self, at: LogOffset) -> Result<Option<LogSlice>, Cold> {
        self.hot_record(at, self.confirmed().get())
    }

    /// As `record_at`, also for a record that no consumer may see yet: a replica may have it already.
    pub fn written_record_at(&self, at: LogOffset) -> Result<Option<LogSlice>, Cold> {
        self.hot_record(at, self.written().get())
    }

    fn hot_record(&self, at: LogOffset, end: u64) -> Result<Option<LogSlice>, Cold> {
        if at.0 < self.hot_from() {
            return Err(Cold);
        }
        let Some(segment) = self.readable_segment(at, end) else { return Ok(None) };
        let Some(bytes) = segment.published_from(at.0) else { return Ok(None) };
        Ok(whole_at(bytes, at.0, false).and_then(|view| LogSlice::new(&segment, at.0, view.total_size())))
    }

    /// As `record_at`, and may wait for the device. Whoever asks may have made the place up: where no record begins, none is damaged.
    pub fn record_at_cold(&self, at: LogOffset) -> Result<RecordAt, StoreError> {
        self.checked_record(at, self.confirmed().get(), false)
    }

    /// As `written_record_at`, and may wait for the device, as `record_at_cold`.
    pub fn written_record_at_cold(&self, at: LogOffset) -> Result<RecordAt, StoreError> {
        self.checked_record(at, self.written().get(), false)
    }

    /// As `record_at_cold`, for a place where the store itself says that a record begins. Where none does, it is damaged.
    pub fn stored_record_cold(&self, at: LogOffset) -> Result<RecordAt, StoreError> {
        self.checked_record(at, self.confirmed().get(), true)
    }

    /// What the record at a log offset says of itself, none if no record begins there. Its body is nobody's concern, so it is not
    /// checked, and a damaged one is neither counted nor named. May wait for the device.
    pub fn about_record_cold<T>(
        &self,
        at: LogOffset,
        about: impl FnOnce(&RecordView<'_>) -> T,
    ) -> Result<Option<T>, StoreError> {
        let Some(segment) = self.readable_segment(at, self.confirmed().get()) else { return Ok(None) };
        let bytes = segment.record_bytes(at.0)?;
        Ok(whole_at(&bytes, at.0, false).map(|view| about(&view)))
    }

    /// Where the last record of at most `bytes_max` bytes lies, and how many it has; none if the last two files of the log have none. Reads these
    /// at most, and hardly anything where a queue leads to the record. May wait for the device.
    pub fn last_record(&self, bytes_max: usize) -> Result<Option<(LogOffset, usize)>, StoreError> {
        let (segment_bytes, end) = (self.shared.log.segment_bytes, self.end().0);
        let file = end.saturating_sub(1) / segment_bytes * segment_bytes;
        let led_to = self.newest_of_queues(end).filter(|at| *at >= file);
        let parts =
            [led_to.map(|at| (at, end)), Some((file, end)), file.checked_sub(segment_bytes).map(|at| (at, file))];
        for (from, to) in parts.into_iter().flatten() {
            let mut last = None;
            self.walk(from, to, &mut |at, record| {
                if record.total_size() <= bytes_max {
                    last = Some((at, record.total_size()));
                }
                true
            })?;
            if last.is_some() {
                return Ok(last);
            }
        }
        Ok(None)
    }

    /// Where the newest record lies to which a queue leads. A queue that cannot be read leads nowhere: the log says the same.
    fn newest_of_queues(&self, end: u64) -> Option<u64> {
        let queues = self.shared.queues.queues().into_iter();
        let newest = queues.filter(|queue| queue.log_end().0 <= end).max_by_key(|queue| queue.log_end())?;
        let at = newest.span_at(newest.max_offset().saturating_sub(1)).ok()??.unit.at.0;
        let segment = self.shared.log.segment_at(at).filter(|_| at < end)?;
        let bytes = segment.record_bytes(at).ok()?;
        whole_at(&bytes, at, false).is_some().then_some(at)
    }

    fn checked_record(&self, at: LogOffset, end: u64, is_stored: bool) -> Result<RecordAt, StoreError> {
        let Some(segment) = self.readable_segment(at, end) else { return Ok(RecordAt::Gone) };
        let bytes = segment.record_bytes(at.0)?;
        let Some(view) = whole_at(&bytes, at.0, false) else {
            if is_stored {
                let why = wrong_with(&bytes, at.0, false).unwrap_or_else(|| "no record is there".to_owned());
                self.name_damaged(None, at, &why);
                return Ok(RecordAt::Damaged);
            }
            return Ok(RecordAt::Gone);
        };
        let size = view.total_size();
        if self.options().check_crc_on_read
            && let Some(why) = wrong_with(view.bytes(), at.0, true)
        {
            self.name_damaged(Some(&view), at, &why);
            return Ok(RecordAt::Damaged);
        }
        if let Cow::Owned(bytes) = bytes
            && let Some(room) = segment.cold_pages().room_for_copy(bytes.len() as u64, None)
        {
            return Ok(RecordAt::Record(LogSlice::of_copy(&Arc::new(Copied::new(bytes, room)), at.0, 0..size)));
        }
        // No room for copies: whoever gets it reads it where it lies.
        let Some(slice) = LogSlice::new(&segment, at.0, size) else { return Ok(RecordAt::Gone) };
        slice.bring_in()?;
        Ok(RecordAt::Record(slice))
    }

    /// The file of a place before `end`, up to which the log may be read.
    fn readable_segment(&self, at: LogOffset, end: u64) -> Option<Arc<Segment>> {
        if at.0 < end { self.shared.log.segment_at(at.0) } else { None }
    }
}
