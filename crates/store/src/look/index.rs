//! Files of the key index: their heads, and for `verify` the chains of their keys.

use std::path::PathBuf;

use disk::{Disk, OpenHow};

use super::finding::Finding;
use crate::error::StoreError;
use crate::index::{Header, IndexOptions, Shape, check_chains, is_index_file};
use crate::options::StoreOptions;

pub(super) const EFFECT: &str = "messages that it should lead to are not found by key; nothing else";
/// Keys and slots of one file that are named; further ones are counted only.
pub(super) const NAMED: u64 = 3;
pub(super) const REMEDY: &str = "gantry store repair --index builds the index again from the log";

/// A file of the key index, as its head says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexFileSurvey {
    /// The file.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
    /// Keys in it.
    pub keys: u32,
    /// Store times of the first and the last record in it, in ms.
    pub times: [i64; 2],
    /// Log offsets of the two.
    pub offsets: [i64; 2],
    /// Slots that lead to a key.
    pub used_slots: u32,
}

/// The heads of all files, oldest first. None where the store keeps no index.
pub(super) fn survey(options: &StoreOptions, disk: &dyn Disk) -> Result<Vec<IndexFileSurvey>, StoreError> {
    let dir = options.index.as_ref().map_or_else(|| options.root.join("index"), |index| index.dir.clone());
    let failed = |doing, path: &PathBuf| {
        let path = path.clone();
        move |source| StoreError::Disk { doing, path, source }
    };
    let mut found = Vec::new();
    for entry in disk.list(&dir).map_err(failed("list", &dir))? {
        if entry.is_dir || !is_index_file(&entry.name) {
            continue;
        }
        let path = dir.join(&entry.name);
        let file = disk.open(&path, OpenHow::Read).map_err(failed("open", &path))?;
        let bytes = file.len().map_err(failed("measure", &path))?;
        let mut head = [0; 40];
        file.read_at(&mut head, 0).map_err(failed("read", &path))?;
        let header = Header::decode(&head);
        found.push(IndexFileSurvey {
            path,
            bytes,
            keys: header.next.saturating_sub(1),
            times: [header.begin_timestamp, header.end_timestamp],
            offsets: [header.begin_offset, header.end_offset],
            used_slots: header.used_slots,
        });
    }
    found.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(found)
}

/// How large the files are; none if there is no index.
pub(super) fn shape_of(options: &StoreOptions) -> Option<Shape> {
    let IndexOptions { slots, entries, .. } = options.index.as_ref()?;
    Some(Shape { slots: (*slots).max(1), entries: (*entries).max(2) })
}

/// Whether the heads are plausible, and whether each key is where a look for it comes by. Records
/// are not read for it.
pub(super) fn verify(
    options: &StoreOptions,
    disk: &dyn Disk,
    log_end: u64,
    tell: &mut dyn FnMut(Finding),
) -> Result<u64, StoreError> {
    let Some(shape) = shape_of(options) else { return Ok(0) };
    let mut keys = 0;
    for file in survey(options, disk)? {
        keys += u64::from(file.keys);
        let mut wrong = |at: u64, what: String| {
            tell(Finding { file: file.path.clone(), at: Some(at), what, effect: EFFECT, remedy: REMEDY });
        };
        if file.bytes != shape.bytes() {
            // Made by a broker with other settings; a start builds it anew.
            wrong(
                0,
                format!(
                    "has {} bytes; with these settings (maxHashSlotNum, maxIndexNum) it would have {}",
                    file.bytes,
                    shape.bytes()
                ),
            );
            continue;
        }
        if file.keys >= shape.entries {
            wrong(36, format!("says that it holds {} keys, and has room for {}", file.keys, shape.entries - 1));
        }
        if file.used_slots > shape.slots {
            wrong(32, format!("says that {} slots are used, and has {}", file.used_slots, shape.slots));
        }
        let [begin, end] = file.offsets;
        if file.keys > 0 && (begin > end || begin < 0 || u64::try_from(end).is_ok_and(|end| end >= log_end)) {
            wrong(16, format!("says that it leads to log offsets {begin} to {end}; the log ends at {log_end}"));
        }
        let [begin, end] = file.times;
        if file.keys > 0 && begin > end {
            wrong(0, format!("says that its first key is of {begin} and its last of {end}"));
        }
        let (mut count, was_killed) = (0, options.root.join("abort").exists());
        let mut tell_key = |at: u64, what: String| {
            count += 1;
            if count <= NAMED {
                wrong(at, what);
            }
        };
        let [begin_timestamp, end_timestamp] = file.times;
        let [begin_offset, end_offset] = file.offsets;
        let (used_slots, next) = (file.used_slots, file.keys.saturating_add(1));
        let header = Header { begin_timestamp, end_timestamp, begin_offset, end_offset, used_slots, next };
        let checked = disk
            .open(&file.path, OpenHow::Read)
            .and_then(|opened| check_chains(&*opened, shape, &header, was_killed, &mut tell_key));
        checked.map_err(|source| StoreError::Disk { doing: "read", path: file.path.clone(), source })?;
        if count > NAMED {
            wrong(0, format!("{count} of its keys and slots in all are damaged"));
        }
    }
    Ok(keys)
}
