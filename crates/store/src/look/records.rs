//! The messages of the log one after the other, and what of the log holds none.

use std::path::PathBuf;

use protocol::record::{self, RecordView, Scanned};

use super::log::{KEPT_BYTES, Log, Stumble};
use super::opened::Look;
use crate::closed::Closed;
use crate::commit_log::BLANK_BYTES;
use crate::error::StoreError;

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
            let file =
                log.files.segment_of(end).map_or_else(|| self.options.log_dirs.first(), |segment| segment.path());
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
                let check_crc = self.options.check_crc_on_recover;
                let (next, goes_on) = match record::scan(segment.record_at(at)?, check_crc) {
                    Ok(Scanned::Record(view)) if view.log_offset() == at => {
                        last_timestamp = view.store_timestamp();
                        (at + view.total_size() as u64, show(Part::Record(&view)))
                    }
                    Ok(Scanned::Record(_) | Scanned::Blank { .. } | Scanned::Nothing) | Err(_) => {
                        match log.stumble(segment, at, last_timestamp, check_crc)? {
                            Stumble::Blank => (segment.end(), true),
                            Stumble::Bruised(view, why) => {
                                (at + view.total_size() as u64, show(Part::Bruised(&view, why)))
                            }
                            Stumble::Lost { to, why } => {
                                let lost = |why| Lost { file: segment.path().to_owned(), from: at, to, why };
                                let goes_on = why.is_none_or(|why| show(Part::Lost(lost(why))));
                                let Some(next) = to else { return Ok((at, goes_on)) };
                                (next, goes_on)
                            }
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
