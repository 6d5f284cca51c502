//! The log's files: which there are, whether they follow each other, and how large they are.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use disk::{Disk, OpenHow};
use protocol::record::RecordView;

use super::found::Recovered;
use crate::error::StoreError;
use crate::fold::whole_at;
use crate::governor::ColdPages;
use crate::log_dirs::LogDirs;
use crate::options::StoreOptions;
use crate::segment::{Segment, file_name};

/// The log's files.
pub(crate) struct LogFiles {
    pub segments: Vec<Arc<Segment>>,
    pub segment_bytes: u64,
    /// There was none.
    pub is_new: bool,
}

impl LogFiles {
    /// The file that holds a log offset.
    pub fn segment_of(&self, at: u64) -> Option<&Arc<Segment>> {
        self.segments.iter().find(|segment| segment.holds(at))
    }

    /// The whole record at a log offset.
    pub fn record_at(&self, at: u64) -> Result<Option<RecordView<'_>>, StoreError> {
        let Some(segment) = self.segment_of(at) else { return Ok(None) };
        Ok(whole_at(segment.record_at(at)?, at, false))
    }
}

/// Bytes of a file of the log: RocketMQ states lengths in an i32, and a page is the least that can be prepared.
const SEGMENT_BYTES_MIN: u64 = 4096;
const SEGMENT_BYTES_MAX: u64 = i32::MAX as u64;

/// How far the log went.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Went {
    /// As far as anybody knows.
    pub known_end: u64,
    /// When it was closed; 0 if nobody closed it since, and a loss of power may have taken its newest file.
    pub closed_end: u64,
}

/// Lists and opens the files of the log; makes the first one if there is none, and nobody knows of a log: a folder that is not mounted must not pass
/// for an empty log, for which all queues would be emptied. Nor must one of several pass for the end of the log. Retention never takes the last file.
pub(crate) fn open_segments(
    options: &StoreOptions,
    disk: &Arc<dyn Disk>,
    cold: &Arc<ColdPages>,
    Went { known_end, closed_end }: Went,
    found: &mut Recovered,
) -> Result<LogFiles, StoreError> {
    let mut files = listed(&options.log_dirs, disk, found)?;
    let malformed = |path: PathBuf, why: String| StoreError::Malformed { path, why };
    // An empty one too: a loss of power may leave the first file so.
    let is_any_there = !files.is_empty();
    if let Some(last) = files.pop_if(|last| last.bytes == 0) {
        let path = last.path();
        disk.remove(&path).map_err(failed("remove", &path))?;
        found.findings.push(format!("{}: empty, removed", path.display()));
    }
    let whole = forget_files_ahead(&mut files, options.segment_bytes, disk, found)?;
    // A broker of another setting wrote these files: they say how large files are, not the configuration. But not a single one that is known to have
    // gone further: it has lost its end.
    let is_cut = |file: &LogFile<'_>| file.bytes < options.segment_bytes && known_end > file.base + file.bytes;
    let segment_bytes = match (whole, files.as_slice()) {
        (Some(whole), [_]) => whole,
        (None, [single]) if is_cut(single) => options.segment_bytes,
        (Some(_) | None, files) => files.first().map_or(options.segment_bytes, |first| first.bytes),
    };
    if segment_bytes != options.segment_bytes {
        found.findings.push(format!(
            "{}: files have {segment_bytes} bytes, mappedFileSizeCommitLog says {}: the files win",
            options.log_dirs.first().display(),
            options.segment_bytes
        ));
    }
    if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&segment_bytes) {
        let (path, says) = match files.first() {
            Some(first) => {
                let remedy = "put it back from a copy, or move it away if there is none: what was in it is lost";
                let says = format!("has {segment_bytes} bytes; {remedy}");
                (first.path(), says)
            }
            None => (options.log_dirs.first().to_owned(), format!("mappedFileSizeCommitLog is {segment_bytes}")),
        };
        return Err(malformed(
            path,
            format!("{says}; a file of the log has {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX}"),
        ));
    }
    let last = files.len().saturating_sub(1);
    for (index, file) in files.iter().enumerate() {
        let (base, bytes) = (file.base, file.bytes);
        if bytes != segment_bytes && (index != last || bytes > segment_bytes) {
            return Err(malformed(
                file.path(),
                format!("has {bytes} bytes, other files of the log have {segment_bytes}"),
            ));
        }
        if bytes != segment_bytes {
            found.findings.push(format!("{}: {bytes} of {segment_bytes} bytes, extended", file.path().display()));
        }
        if base.checked_add(segment_bytes).is_none_or(|end| i64::try_from(end).is_err()) {
            return Err(malformed(file.path(), "begins beyond any log offset".to_owned()));
        }
        let Some(before) = index.checked_sub(1).map(|before| &files[before]) else { continue };
        if before.base == base {
            return Err(malformed(
                file.path(),
                format!("is there twice: {} holds the same part of the log", before.path().display()),
            ));
        }
        if before.base + segment_bytes != base {
            let before = file_name(before.base);
            return Err(malformed(file.path(), format!("does not follow {before}: a file between them is missing")));
        }
    }
    let is_new = files.is_empty();
    if !is_any_there && known_end > 0 {
        let why = format!(
            "no file of the log is there, but consume queues or the journal know of one that went as far as {known_end}: mount it, or move {}, {} \
             and {} away to begin anew",
            options.queue_dir.display(),
            options.root.join("batchconsumequeue").display(),
            options.root.join("journal").display()
        );
        return Err(malformed(options.log_dirs.first().to_owned(), why));
    }
    // Where the log ended with a file, the next one need not have been made. In a single folder it may be an older copy that was put back.
    let files_end = files.last().map_or(0, |last| last.base + segment_bytes);
    if options.log_dirs.count() > 1 && files_end < closed_end {
        let why = format!(
            "the files of the log end at {files_end}, and it went as far as {closed_end} when it was closed: a folder is not mounted, or its files are \
             gone. If they are lost for good, make the file {}, and the log ends there",
            options.root.join("abort").display()
        );
        let path = files.last().map_or_else(|| options.log_dirs.first().to_owned(), LogFile::path);
        return Err(malformed(path, why));
    }
    if is_new {
        let dir = options.log_dirs.of_file(&**disk, 0, options.retention.disk_clean_forcibly_percent);
        files.push(LogFile { base: 0, bytes: segment_bytes, dir, is_read_only: false });
    }
    Ok(LogFiles { segments: map_files(&files, segment_bytes, disk, cold)?, segment_bytes, is_new })
}

/// Opens files of the log, oldest first.
fn map_files(
    files: &[LogFile<'_>],
    segment_bytes: u64,
    disk: &Arc<dyn Disk>,
    cold: &Arc<ColdPages>,
) -> Result<Vec<Arc<Segment>>, StoreError> {
    let mut segments = Vec::with_capacity(files.len() + 1);
    for file in files {
        let segment = match Segment::open(disk, file.dir, file.base, segment_bytes, cold) {
            // A folder that takes no new files may be on a device that takes no writes at all.
            Err(StoreError::Disk { source, .. }) if file.is_read_only && is_refused(&source) => {
                Segment::open_read_only(disk, file.dir, file.base, segment_bytes, cold)
            }
            opened => opened,
        }?;
        // Mapped is enough to be read, and there may be more files than descriptors.
        segment.rest();
        if cold.is_bounded() {
            segment.touch_singly(segment.base(), segment.end());
        }
        segments.push(segment);
    }
    Ok(segments)
}

/// Lets go of files that were made ahead behind one that was cut short, or that could not be made whole: nothing was ever written into them, and the log
/// goes on before them. Says how long that one was, if there is one.
fn forget_files_ahead(
    files: &mut Vec<LogFile<'_>>,
    configured: u64,
    disk: &Arc<dyn Disk>,
    found: &mut Recovered,
) -> Result<Option<u64>, StoreError> {
    // Where a file is missing, the next one does not begin where this one would end.
    let length = |file: &LogFile<'_>, next: &LogFile<'_>| {
        let whole = next.base - file.base;
        (file.bytes < whole && (whole == next.bytes || whole == configured)).then_some(whole)
    };
    let short = files.windows(2).zip(0..).find_map(|(pair, index)| Some((index, length(&pair[0], &pair[1])?)));
    let Some((short, whole)) = short else { return Ok(None) };
    for file in &files[short + 1..] {
        if !is_blank(file, disk)? {
            return Ok(None);
        }
    }
    for file in files.drain(short + 1..).rev() {
        let path = file.path();
        disk.remove(&path).map_err(failed("remove", &path))?;
        disk.sync_dir(file.dir).map_err(failed("sync", file.dir))?;
        found.findings.push(format!("{}: made ahead of the log's end, and nothing is in it: removed", path.display()));
    }
    Ok(Some(whole))
}

/// Whether a file holds nothing but zeros.
fn is_blank(file: &LogFile<'_>, disk: &Arc<dyn Disk>) -> Result<bool, StoreError> {
    let path = file.path();
    let opened = disk.open(&path, OpenHow::Read).map_err(failed("open", &path))?;
    let mut buffer = vec![0; 64 << 10];
    let mut at = 0;
    // Each turn looks at a piece, and the file system says where the next one is.
    while at < file.bytes {
        match opened.data_from(at).map_err(failed("look at", &path))? {
            Some(data) if data < file.bytes => at = data,
            Some(_) | None => return Ok(true),
        }
        let read = opened.read_once_at(&mut buffer, at).map_err(failed("read", &path))?;
        if read == 0 || buffer[..read].iter().any(|byte| *byte != 0) {
            return Ok(read == 0);
        }
        at += read as u64;
    }
    Ok(true)
}

/// One file of the log, as a folder lists it.
struct LogFile<'a> {
    base: u64,
    bytes: u64,
    dir: &'a Path,
    is_read_only: bool,
}

impl LogFile<'_> {
    fn path(&self) -> PathBuf {
        self.dir.join(file_name(self.base))
    }
}

/// The files in all folders, in the log's order. Folders that take files are made if they are not there; the others have to be, or a
/// device that is not mounted would pass for an old log that is gone.
fn listed<'a>(dirs: &'a LogDirs, disk: &Arc<dyn Disk>, found: &mut Recovered) -> Result<Vec<LogFile<'a>>, StoreError> {
    for dir in dirs.taking() {
        disk.create_dir(dir).map_err(failed("make", dir))?;
    }
    for dir in dirs.read_only() {
        disk.space(dir).map_err(failed("find", dir))?;
    }
    let mut files = Vec::new();
    let taking = dirs.taking().iter().map(|dir| (dir, false));
    for (dir, is_read_only) in taking.chain(dirs.read_only().iter().map(|dir| (dir, true))) {
        for entry in disk.list(dir).map_err(failed("list", dir))? {
            let path = dir.join(&entry.name);
            match entry.name.parse::<u64>() {
                Ok(base) if !entry.is_dir && entry.name == file_name(base) => {
                    let bytes = disk.len(&path).map_err(failed("measure", &path))?;
                    files.push(LogFile { base, bytes, dir, is_read_only });
                }
                Ok(_) | Err(_) => {
                    found.findings.push(format!("{}: not a file of the log, left alone", path.display()));
                }
            }
        }
    }
    files.sort_by_key(|file| file.base);
    Ok(files)
}

fn is_refused(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied)
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Disk { doing, path, source }
}
