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
        if at.0 < self.hot_from() {
            return Err(Cold);
        }
        let Some(segment) = self.readable_segment(at) else { return Ok(None) };
        let Some(bytes) = segment.published_from(at.0) else { return Ok(None) };
        Ok(whole_at(bytes, at.0, false).and_then(|view| LogSlice::new(&segment, at.0, view.total_size())))
    }

    /// As `record_at`, and may wait for the device. Whoever asks may have made the place up: where no record begins, none is damaged.
    pub fn record_at_cold(&self, at: LogOffset) -> Result<RecordAt, StoreError> {
        self.checked_record(at, false)
    }

    /// As `record_at_cold`, for a place where the store itself says that a record begins. Where none does, it is damaged.
    pub fn stored_record_cold(&self, at: LogOffset) -> Result<RecordAt, StoreError> {
        self.checked_record(at, true)
    }

    /// What the record at a log offset says of itself, none if no record begins there. Its body is nobody's concern, so it is not
    /// checked, and a damaged one is neither counted nor named. May wait for the device.
    pub fn about_record_cold<T>(
        &self,
        at: LogOffset,
        about: impl FnOnce(&RecordView<'_>) -> T,
    ) -> Result<Option<T>, StoreError> {
        let Some(segment) = self.readable_segment(at) else { return Ok(None) };
        let bytes = segment.record_bytes(at.0)?;
        Ok(whole_at(&bytes, at.0, false).map(|view| about(&view)))
    }

    /// Where the last record of the log lies, and how many bytes it has; none if the last file has none. Reads that file at most, and
    /// hardly anything where a queue leads to the record. May wait for the device.
    pub fn last_record(&self) -> Result<Option<(LogOffset, usize)>, StoreError> {
        let (log, end) = (&self.shared.log, self.end().0);
        let file = end.saturating_sub(1) / log.segment_bytes * log.segment_bytes;
        let queues = self.shared.queues.queues().into_iter();
        let newest = queues.filter(|queue| queue.log_end().0 <= end).max_by_key(|queue| queue.log_end());
        let led_to = match newest {
            Some(queue) => queue.span_at(queue.max_offset().saturating_sub(1)).map_err(StoreError::from)?,
            None => None,
        };
        let mut from = file;
        if let Some(at) = led_to.map(|span| span.unit.at.0).filter(|at| (file..end).contains(at))
            && let Some(segment) = log.segment_at(at)
            && whole_at(&segment.record_bytes(at)?, at, false).is_some()
        {
            from = at;
        }
        let mut last = None;
        self.walk(from, end, &mut |at, record| {
            last = Some((at, record.total_size()));
            true
        })?;
        Ok(last)
    }

    fn checked_record(&self, at: LogOffset, is_stored: bool) -> Result<RecordAt, StoreError> {
        let Some(segment) = self.readable_segment(at) else { return Ok(RecordAt::Gone) };
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

    /// The file of a place that may be read.
    fn readable_segment(&self, at: LogOffset) -> Option<Arc<Segment>> {
        if at.0 < self.confirmed().get() { self.shared.log.segment_at(at.0) } else { None }
    }
}
