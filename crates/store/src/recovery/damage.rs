//! What is not whole: told from what is, kept aside where it may be wanted, and cut off.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use disk::{Disk, OpenHow};
use protocol::record::{self, Scanned};

use super::files::LogFiles;
use super::found::Recovered;
use crate::error::StoreError;
use crate::governor::ColdPages;
use crate::options::StoreOptions;
use crate::segment::{Segment, file_name};

/// Bytes behind the log's end that are looked at for remains.
const LOOKED_AT: usize = 8 << 20;

/// A record whose lengths hold although its body does not: what begins behind it is a whole record, or the file's end.
pub(crate) fn bruised_record(segment: &Segment, at: u64) -> Result<Option<record::RecordView<'_>>, StoreError> {
    let Ok(Scanned::Record(view)) = record::scan(segment.record_at(at)?, false) else { return Ok(None) };
    let next = at + view.total_size() as u64;
    let is_followed = match record::scan(segment.record_at(next)?, true) {
        Ok(Scanned::Record(following)) => following.log_offset() == next,
        Ok(Scanned::Blank { .. }) => true,
        Ok(Scanned::Nothing) | Err(_) => false,
    };
    Ok((is_followed && view.log_offset() == at).then_some(view))
}

/// Where, behind damage, the next whole record begins: a record names its own place, so it cannot be mistaken.
pub(crate) fn whole_record_after(segments: &[Arc<Segment>], at: u64) -> Result<Option<u64>, StoreError> {
    for segment in segments.iter().filter(|segment| segment.end() > at) {
        let bytes = (**segment).as_ref();
        let mut place = (at.max(segment.base()) - segment.base()) as usize + usize::from(at >= segment.base());
        // Each turn steps over the magic code it found or over the piece it looked at, or ends the segment.
        while place + MAGIC_AT + MAGIC.len() <= bytes.len() {
            // Holes hold no record, and there may be a gigabyte of them.
            let data = segment.data_from(place).map_err(|source| StoreError::Disk {
                doing: "look at",
                path: segment.path().to_owned(),
                source,
            })?;
            let Some(data) = data else { break };
            place = place.max(data);
            if place + MAGIC_AT + MAGIC.len() > bytes.len() {
                break;
            }
            // Not beyond what was written: in a file system in memory, a look at a hole fills it.
            let hole = segment.hole_from(place).map_err(|source| StoreError::Disk {
                doing: "look at",
                path: segment.path().to_owned(),
                source,
            })?;
            let end = bytes.len().min(place + PIECE).min(hole);
            segment.bring_in(place..end)?;
            let looked_at = bytes.get(place + MAGIC_AT..end).unwrap_or_default();
            let Some(found) = looked_at.windows(MAGIC.len()).position(|three| three == MAGIC) else {
                if end == bytes.len() {
                    break;
                }
                if end == hole {
                    place = end;
                    continue;
                }
                // The last bytes may be the beginning of the code.
                place = end - MAGIC_AT - MAGIC.len() + 1;
                segment.let_go(segment.base(), segment.base() + place as u64);
                continue;
            };
            place += found;
            let offset = segment.base() + place as u64;
            if let Ok(Scanned::Record(view)) = record::scan(segment.record_at(offset)?, true)
                && view.log_offset() == offset
            {
                return Ok(Some(offset));
            }
            place += 1;
        }
    }
    Ok(None)
}

/// Bytes that are looked through at once.
const PIECE: usize = 1 << 20;

/// What the magic codes of records have in common, and where it stands in them.
pub(super) const MAGIC: [u8; 3] = [0xDA, 0xA3, 0x20];
pub(super) const MAGIC_AT: usize = 4;

/// Keeps a copy of the log from `from` to `to`, which is about to be written over: in the folder `cut` beside the log's, under the log
/// offset of its first byte. Returns the folder.
pub(crate) fn set_aside(
    files: &LogFiles,
    from: u64,
    to: u64,
    options: &StoreOptions,
    disk: &dyn Disk,
) -> Result<PathBuf, StoreError> {
    let dir = options.root.join("cut");
    let failed = |doing: &'static str, path: &Path| {
        let path = path.to_owned();
        move |source| StoreError::Disk { doing, path, source }
    };
    disk.create_dir(&dir).map_err(failed("make", &dir))?;
    for segment in files.segments.iter().filter(|segment| segment.end() > from && segment.base() < to) {
        let from = from.max(segment.base());
        let start = (from - segment.base()) as usize;
        let bytes = &(**segment).as_ref()[start..(to.min(segment.end()) - segment.base()) as usize];
        segment.bring_in(start..start + bytes.len())?;
        // To the end of the page: the last record may end with zeros of its own.
        let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| (last + 1).next_multiple_of(4096));
        let used = used.min(bytes.len());
        if used == 0 {
            continue;
        }
        let path = dir.join(file_name(from));
        let file = disk.open(&path, OpenHow::Create).map_err(failed("make", &path))?;
        file.set_len(0).map_err(failed("empty", &path))?;
        file.write_at(&bytes[..used], 0).map_err(failed("write", &path))?;
        file.sync_data().map_err(failed("sync", &path))?;
    }
    // The names too, before the original goes.
    for dir in [&dir, &options.root] {
        disk.sync_dir(dir).map_err(failed("sync", dir))?;
    }
    Ok(dir)
}

/// Leaves nothing behind the end that a later start, or Apache's broker, could take for a record.
pub(crate) fn cut(
    files: &mut LogFiles,
    end: u64,
    options: &StoreOptions,
    disk: &Arc<dyn Disk>,
    cold: &Arc<ColdPages>,
    found: &mut Recovered,
) -> Result<(), StoreError> {
    if files.segments.last().is_some_and(|last| last.end() == end) {
        let full_percent = options.retention.disk_clean_forcibly_percent;
        let dir = options.log_dirs.of_file(&**disk, end / files.segment_bytes, full_percent);
        files.segments.push(Segment::open(disk, dir, end, files.segment_bytes, cold)?);
    }
    let has_bytes = |segment: &Segment, from: u64| {
        let start = (from - segment.base()) as usize;
        // What a torn append leaves is near; a look at every byte of a gigabyte of zeros would cost the start its speed.
        let looked_at = start..start.saturating_add(LOOKED_AT).min(segment.as_ref().len());
        segment.has_bytes(looked_at).map_err(|source| StoreError::Disk {
            doing: "look at",
            path: segment.path().to_owned(),
            source,
        })
    };
    for index in (0..files.segments.len()).rev() {
        let segment = Arc::clone(&files.segments[index]);
        if segment.base() > end {
            if has_bytes(&segment, segment.base())? {
                found.findings.push(format!("{}: lies beyond the log's end {end}, removed", segment.path().display()));
            }
            let removed =
                disk.remove(segment.path()).and_then(|()| options.log_dirs.sync_removal(&**disk, segment.path()));
            removed.map_err(|source| StoreError::Disk { doing: "remove", path: segment.path().to_owned(), source })?;
            files.segments.pop();
            continue;
        }
        if segment.end() > end {
            let has_remains = has_bytes(&segment, end)?;
            if found.was_abnormal || has_remains {
                if has_remains {
                    found.findings.push(format!("{}: zeroed from log offset {end} on", segment.path().display()));
                }
                segment.cut(end).map_err(|source| StoreError::Disk {
                    doing: "cut",
                    path: segment.path().to_owned(),
                    source,
                })?;
            }
            segment.unpublish(end);
        }
    }
    Ok(())
}
