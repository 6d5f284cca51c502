//! The commit log as it lies there: its files, its end, its records.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use disk::Disk;
use protocol::record::{self, RecordView, Scanned};

use crate::commit_log::BLANK_BYTES;
use crate::error::StoreError;
use crate::options::StoreOptions;
use crate::recovery::{LogFiles, bruised_record, follows, whole_record_after, why_not};
use crate::segment::{Segment, file_name};

/// Bytes of the log that stay mapped behind whoever reads it.
pub(super) const KEPT_BYTES: u64 = 16 << 20;

/// The log in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogSurvey {
    /// How many files.
    pub files: usize,
    /// Bytes of a file.
    pub file_bytes: u64,
    /// The oldest log offset.
    pub min: u64,
    /// Where the last whole record ends.
    pub end: u64,
    /// Store time of the oldest record, in ms.
    pub first_store_time: Option<i64>,
    /// Store time of the newest record, in ms.
    pub last_store_time: Option<i64>,
    /// Whether the oldest record is of the second kind (topics longer than 127 bytes).
    pub first_is_v2: Option<bool>,
    /// The same of the newest.
    pub last_is_v2: Option<bool>,
}

pub(super) struct Log {
    pub files: LogFiles,
    /// What is wrong with the list of files, a sentence each and the file.
    pub findings: Vec<(PathBuf, String)>,
}

/// What stands where no whole record begins.
pub(super) enum Stumble<'a> {
    /// The mark that the rest of the file is not used.
    Blank,
    /// A record with its place and its length, and why it is not what was stored.
    Bruised(RecordView<'a>, String),
    /// Nothing that can be read, up to the next record if there is one. Why: none where the log ends as it should.
    Lost { to: Option<u64>, why: Option<String> },
}

impl Log {
    /// Maps the files, as long as they are.
    pub fn open(options: &StoreOptions, disk: &Arc<dyn Disk>) -> Result<Log, StoreError> {
        let failed = |doing, path: &Path| {
            let path = path.to_owned();
            move |source| StoreError::Disk { doing, path, source }
        };
        let mut files: Vec<(u64, &Path)> = Vec::new();
        let mut findings = Vec::new();
        for dir in options.log_dirs.taking().iter().chain(options.log_dirs.read_only()) {
            for entry in disk.list(dir).map_err(failed("list", dir))? {
                match entry.name.parse::<u64>() {
                    Ok(base) if !entry.is_dir && entry.name == file_name(base) => files.push((base, dir)),
                    Ok(_) | Err(_) => {}
                }
            }
        }
        files.sort_unstable();
        let mut segments: Vec<Arc<Segment>> = Vec::with_capacity(files.len());
        for (number, (base, dir)) in files.iter().enumerate() {
            let path = dir.join(file_name(*base));
            if disk.len(&path).map_err(failed("measure", &path))? == 0 {
                if number + 1 < files.len() {
                    findings.push((path, "is empty, and another file follows".to_owned()));
                }
                continue;
            }
            if let Some(last) = segments.last()
                && last.end() != *base
            {
                let why = format!("begins at {base}, the file before it ends at {}", last.end());
                findings.push((path, why));
                if last.base() == *base {
                    // The same part of the log twice: a start refuses it, and one is enough to be read.
                    continue;
                }
            }
            segments.push(Segment::look(disk, dir, *base)?);
        }
        let segment_bytes = segments.first().map_or(options.segment_bytes, |segment| segment.end() - segment.base());
        Ok(Log { files: LogFiles { is_new: segments.is_empty(), segments, segment_bytes }, findings })
    }

    /// The oldest log offset; 0 if there are no files.
    pub fn min(&self) -> u64 {
        self.files.segments.first().map_or(0, |segment| segment.base())
    }

    /// What stands at a log offset of the segment, where no whole record begins; the last one before it was stored at `last_timestamp`. A record names
    /// its own place, so the next one behind damage cannot be mistaken.
    pub fn stumble<'a>(
        &self,
        segment: &'a Segment,
        at: u64,
        last_timestamp: i64,
        check_crc: bool,
    ) -> Result<Stumble<'a>, StoreError> {
        let scanned = record::scan(segment.record_at(at)?, check_crc);
        if let Ok(Scanned::Blank { .. }) = scanned {
            return Ok(Stumble::Blank);
        }
        if let Err(why) = &scanned
            && let Some(view) = bruised_record(segment, at)?
        {
            return Ok(Stumble::Bruised(view, why.to_string()));
        }
        let why = why_not(scanned, segment.record_at(at)?);
        let to = match whole_record_after(&self.files.segments, at)? {
            Some(next) => follows(&self.files, next, last_timestamp)?.map(|_| next),
            None => None,
        };
        Ok(Stumble::Lost { to, why: why.or_else(|| to.map(|_| "zeros".to_owned())) })
    }

    /// Whether a record, or nothing, begins at a log offset.
    pub fn is_border(&self, at: u64) -> Result<bool, StoreError> {
        let Some(segment) = self.files.segment_of(at) else { return Ok(false) };
        Ok(match record::scan(segment.record_at(at)?, false) {
            Ok(Scanned::Record(view)) => view.log_offset() == at,
            Ok(Scanned::Nothing | Scanned::Blank { .. }) => true,
            Err(_) => false,
        })
    }

    /// Shows whole records from a log offset on, at which one begins, until `show` says no or something else follows. Says where it ended.
    pub fn for_each_from(&self, from: u64, show: &mut dyn FnMut(&RecordView<'_>) -> bool) -> Result<u64, StoreError> {
        let mut at = from;
        let mut let_go_at = from;
        for segment in self.files.segments.iter().filter(|segment| segment.end() > from) {
            // Each turn goes on by a record, or ends the segment or the log.
            while segment.holds(at) {
                if segment.end() - at < BLANK_BYTES {
                    at = segment.end();
                    break;
                }
                match record::scan(segment.record_at(at)?, false) {
                    Ok(Scanned::Record(view)) if view.log_offset() == at => {
                        if !show(&view) {
                            return Ok(at);
                        }
                        at += view.total_size() as u64;
                    }
                    Ok(Scanned::Blank { .. }) => at = segment.end(),
                    Ok(Scanned::Record(_) | Scanned::Nothing) | Err(_) => return Ok(at),
                }
                if at - let_go_at > KEPT_BYTES {
                    segment.let_go(segment.base(), at);
                    let_go_at = at;
                }
            }
        }
        Ok(at)
    }

    /// The log in numbers. Its end is looked for behind the highest of `known`, where records are known to end.
    pub fn survey(&self, known: &[u64]) -> Result<LogSurvey, StoreError> {
        let mut survey = LogSurvey {
            files: self.files.segments.len(),
            file_bytes: self.files.segment_bytes,
            min: self.min(),
            ..LogSurvey::default()
        };
        let first = self.files.record_at(survey.min)?;
        survey.first_store_time = first.map(|view| view.store_timestamp());
        survey.first_is_v2 = first.map(|view| view.is_v2());
        let last_file = self
            .files
            .segments
            .iter()
            .rev()
            .find(|segment| self.files.record_at(segment.base()).is_ok_and(|view| view.is_some()));
        let mut from = last_file.map_or(survey.min, |segment| segment.base());
        for &known in known {
            if known > from && self.is_border(known)? {
                from = known;
            }
        }
        survey.end = self.for_each_from(from, &mut |view| {
            survey.last_store_time = Some(view.store_timestamp());
            survey.last_is_v2 = Some(view.is_v2());
            true
        })?;
        Ok(survey)
    }
}
