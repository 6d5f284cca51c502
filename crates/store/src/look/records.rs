//! The messages of the log one after the other, and what of the log holds none.
//!
//! Damage is stepped over as `verify` does it: a record names its own place, so the next one behind damage cannot be mistaken.

use std::path::{Path, PathBuf};

use protocol::record::{self, RecordView, Scanned};

use super::Look;
use super::log::{KEPT_BYTES, Log};
use crate::closed::Closed;
use crate::commit_log::BLANK_BYTES;
use crate::error::StoreError;
use crate::recovery::{bruised_record, follows, whole_record_after, why_not};
use crate::segment::Segment;

/// What comes next in the log.
pub enum Part<'a> {
    /// A whole record.
    Record(&'a RecordView<'a>),
    /// A record with its place and its length, whose body is not what was stored, and why.
    Bruised(&'a RecordView<'a>, String),
    /// Bytes in which no record can be made out.
    Lost(Lost),
}

/// A stretch of the log without records that can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The file in which it begins, or, where that file is not there, the one behind it; the log's folder if there is none.
    pub file: PathBuf,
    /// The log offset at which it begins.
    pub from: u64,
    /// Where the next record lies; none if there is none.
    pub to: Option<u64>,
    /// What stands there instead.
    pub why: String,
}

impl Look {
    /// Shows the records of the log, oldest first, and what is damaged or missing between them, until `show` says no. Says where that ended.
    pub fn records(&self, mut show: impl FnMut(Part<'_>) -> bool) -> Result<u64, StoreError> {
        let log = Log::open(&self.options, &self.disk)?;
        let (end, goes_on) = self.parts(&log, &mut show)?;
        // A journal that cannot be read does not say how far the log went; the log is read all the same.
        let closed = self.journal().ok().flatten().as_ref().and_then(Closed::in_look);
        if goes_on
            && let Some(closed) = closed.filter(|closed| closed.end > end)
            && !self.options.root.join("abort").exists()
        {
            let file = log.segment_of(end).map_or_else(|| self.options.log_dirs.first(), |segment| segment.path());
            let why = format!("the log went on to {} when the store was closed", closed.end);
            show(Part::Lost(Lost { file: file.to_owned(), from: end, to: None, why }));
        }
        Ok(end)
    }

    /// The same without the journal; says also whether there was no no.
    fn parts(&self, log: &Log, show: &mut dyn FnMut(Part<'_>) -> bool) -> Result<(u64, bool), StoreError> {
        let mut at = log.min();
        let mut last_timestamp = 0;
        for segment in &log.files.segments {
            if at < segment.base() {
                let why = "a file is missing, or was cut short".to_owned();
                let lost = Lost { file: segment.path().to_owned(), from: at, to: Some(segment.base()), why };
                if !show(Part::Lost(lost)) {
                    return Ok((at, false));
                }
                at = segment.base();
            }
            let mut let_go_at = at;
            // Each turn goes on by a record or to the next one, or ends the file or the log.
            while segment.holds(at) {
                if segment.end() - at < BLANK_BYTES {
                    at = segment.end();
                    break;
                }
                let scanned = record::scan(segment.record_at(at)?, self.options.check_crc_on_recover);
                let (next, goes_on) = match &scanned {
                    Ok(Scanned::Record(view)) if view.log_offset() == at => {
                        last_timestamp = view.store_timestamp();
                        (at + view.total_size() as u64, show(Part::Record(view)))
                    }
                    Ok(Scanned::Blank { .. }) => (segment.end(), true),
                    Ok(Scanned::Record(_) | Scanned::Nothing) | Err(_) => {
                        if let Err(why) = &scanned
                            && let Some(view) = bruised_record(segment, at)?
                        {
                            (at + view.total_size() as u64, show(Part::Bruised(&view, why.to_string())))
                        } else {
                            let (lost, next) = lost(log, segment, at, last_timestamp)?;
                            let goes_on = lost.is_none_or(|lost| show(Part::Lost(lost)));
                            let Some(next) = next else { return Ok((at, goes_on)) };
                            (next, goes_on)
                        }
                    }
                };
                if !goes_on {
                    return Ok((at, false));
                }
                at = next;
                if at - let_go_at > KEPT_BYTES {
                    segment.let_go(segment.base(), at);
                    let_go_at = at;
                }
            }
            segment.let_go(segment.base(), segment.end());
        }
        Ok((at, true))
    }
}

/// What is lost where no record begins, and where it goes on. Neither where the log ends as it should.
fn lost(log: &Log, segment: &Segment, at: u64, last_timestamp: i64) -> Result<(Option<Lost>, Option<u64>), StoreError> {
    let scanned = record::scan(segment.record_at(at)?, false);
    let why = why_not(scanned, segment.record_at(at)?);
    let next = match whole_record_after(&log.files.segments, at)? {
        Some(next) => follows(&log.files, next, last_timestamp)?.map(|_| next),
        None => None,
    };
    let file: &Path = segment.path();
    let lost = |why: String| Lost { file: file.to_owned(), from: at, to: next, why };
    Ok(match next {
        Some(_) => (Some(lost(why.unwrap_or_else(|| "zeros".to_owned()))), next),
        None => (why.map(lost), None),
    })
}
