//! The log's files: which there are, whether they follow each other, and how large they are.

use std::path::Path;
use std::sync::Arc;

use super::Recovered;
use crate::disk::Disk;
use crate::error::StoreError;
use crate::options::StoreOptions;
use crate::segment::{Segment, file_name};

/// The log's files.
pub(crate) struct LogFiles {
    pub segments: Vec<Arc<Segment>>,
    pub segment_bytes: u64,
    /// There was none.
    pub is_new: bool,
}

/// Bytes of a file of the log: RocketMQ states lengths in an i32, and a page is the least that can be prepared.
const SEGMENT_BYTES_MIN: u64 = 4096;
const SEGMENT_BYTES_MAX: u64 = i32::MAX as u64;

/// Lists and opens the files of the log; makes the first one if there is none.
pub(crate) fn open_segments(
    options: &StoreOptions,
    disk: &Arc<dyn Disk>,
    found: &mut Recovered,
) -> Result<LogFiles, StoreError> {
    let dir = &options.commit_log_dir;
    let failed = |doing: &'static str, path: &Path| {
        let path = path.to_owned();
        move |source| StoreError::Disk { doing, path, source }
    };
    let malformed = |name: &str, why: String| StoreError::Malformed { path: dir.join(name), why };
    disk.create_dir(dir).map_err(failed("make", dir))?;
    let mut files = Vec::new();
    for entry in disk.list(dir).map_err(failed("list", dir))? {
        match entry.name.parse::<u64>() {
            Ok(base) if !entry.is_dir && entry.name == file_name(base) => {
                let path = dir.join(&entry.name);
                files.push((base, disk.len(&path).map_err(failed("measure", &path))?));
            }
            Ok(_) | Err(_) => {
                found.findings.push(format!("{}: not a file of the log, left alone", dir.join(entry.name).display()))
            }
        }
    }
    files.sort_unstable();
    if let Some((base, 0)) = files.last().copied() {
        let path = dir.join(file_name(base));
        disk.remove(&path).map_err(failed("remove", &path))?;
        found.findings.push(format!("{}: empty, removed", path.display()));
        files.pop();
    }
    // A broker of another setting wrote these files: they say how large files are, not the configuration.
    let segment_bytes = files.first().map_or(options.segment_bytes, |(_, bytes)| *bytes);
    if segment_bytes != options.segment_bytes {
        found.findings.push(format!(
            "{}: files have {segment_bytes} bytes, mappedFileSizeCommitLog says {}: the files win",
            dir.display(),
            options.segment_bytes
        ));
    }
    if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&segment_bytes) {
        let (name, says) = match files.first() {
            Some((base, _)) => (file_name(*base), format!("has {segment_bytes} bytes")),
            None => (String::new(), format!("mappedFileSizeCommitLog is {segment_bytes}")),
        };
        return Err(malformed(
            &name,
            format!("{says}; a file of the log has {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX}"),
        ));
    }
    let last = files.len().saturating_sub(1);
    for (index, (base, bytes)) in files.iter().enumerate() {
        if *bytes != segment_bytes && (index != last || *bytes > segment_bytes) {
            return Err(malformed(
                &file_name(*base),
                format!("has {bytes} bytes, other files of the log have {segment_bytes}"),
            ));
        }
        if *bytes != segment_bytes {
            found
                .findings
                .push(format!("{}: {bytes} of {segment_bytes} bytes, extended", dir.join(file_name(*base)).display()));
        }
        if base.checked_add(segment_bytes).is_none_or(|end| i64::try_from(end).is_err()) {
            return Err(malformed(&file_name(*base), "begins beyond any log offset".to_owned()));
        }
        if index > 0 && files[index - 1].0 + segment_bytes != *base {
            let before = file_name(files[index - 1].0);
            return Err(malformed(
                &file_name(*base),
                format!("does not follow {before}: a file between them is missing"),
            ));
        }
    }
    let is_new = files.is_empty();
    if is_new {
        files.push((0, segment_bytes));
    }
    let mut segments = Vec::with_capacity(files.len() + 1);
    for (base, _) in &files {
        let segment = Segment::open(disk, dir, *base, segment_bytes)?;
        // Mapped is enough to be read, and there may be more files than descriptors.
        segment.rest();
        segments.push(segment);
    }
    Ok(LogFiles { segments, segment_bytes, is_new })
}
