//! The key index held against the log: each key of each record has an entry, and each entry leads
//! to a record with that key.
//!
//! The index has the order of the log, so both are read once, side by side. Entries are kept from
//! their reading until the log comes by: a few reads of them at most.
//!
//! An index may lack keys without being damaged. It ends before the log does if a process was killed
//! or Apache's broker had it switched off. It begins behind the log's begin if older files were
//! removed. Apache's brokers index no tags before 5.4, and of a batch in one record only its own
//! keys. Where the log is damaged, or a gap of it was closed, nobody knows which keys were there.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use disk::{Disk, DiskFile, OpenHow};
use protocol::record::RecordView;
use protocol::sys_flag;

use super::finding::Finding;
use super::index::{EFFECT, IndexFileSurvey, NAMED, REMEDY, shape_of, survey};
use crate::error::StoreError;
use crate::fold::{Fold, Follower, IndexKey, KEYS_OF_RECORD_MAX, KeyKind, KeyOf, hash_of};
use crate::index::{ENTRIES_AT_ONCE, ENTRY_BYTES, IndexEntry, Shape};
use crate::options::StoreOptions;

/// When so many entries in a row lead behind a place of the log, all entries up to that place have
/// been read. One such entry is not enough: damage makes single ones lead anywhere.
const LAST: usize = 8;
/// Entries that wait for the log at most, some 50 MiB. A file of more has not the log's order.
const WAITING_MAX: usize = 1 << 20;

/// Where an entry stands: the number of its file, and its own. By the log offset first, so that
/// they come in the log's order.
type EntryPlace = (u64, usize, u32);

/// The check under way.
pub(super) struct Keys<'o> {
    fold: Fold<'o>,
    entries: Entries<'o>,
    /// Entries that the log has not come by, with their hashes.
    waiting: BTreeMap<EntryPlace, u32>,
    /// Log offsets of the first and the last record that the index knows. Of these two it may lack
    /// keys.
    known: Range<u64>,
    /// Where the log begins. What lies before it was removed.
    min: u64,
    /// Where the last record ended that was compared.
    to: u64,
    /// Log offsets of which nobody knows which keys were there, as far as entries that wait may
    /// lead there.
    unknown: Vec<Range<u64>>,
    keys: Vec<OwedKey>,
    /// Entries that lead to no such record.
    astray: u64,
    /// Records of which keys have no entry.
    incomplete: u64,
    /// The index has not the order of the log, or cannot be read.
    is_given_up: bool,
    /// Why it cannot be read. Said at the end: until then the log tells what is wrong with it.
    failed: Option<StoreError>,
}

/// A key that a record has.
#[derive(Clone, Copy, Debug)]
struct OwedKey {
    hash: u32,
    /// Whether each broker puts it into the index.
    is_owed: bool,
    has_entry: bool,
}

impl Follower<'_> for Vec<OwedKey> {
    const TAKES_KEYS: bool = true;

    fn key(&mut self, key: IndexKey, of: KeyOf) {
        self.push(OwedKey { hash: key.hash, is_owed: of == KeyOf::Record, has_entry: false });
    }
}

impl<'o> Keys<'o> {
    /// None if the store keeps no index, or one of which a start will not take all files as they
    /// are: the heads tell of that.
    pub fn open(options: &'o StoreOptions, disk: &'o Arc<dyn Disk>, min: u64) -> Result<Option<Keys<'o>>, StoreError> {
        let Some(shape) = shape_of(options) else { return Ok(None) };
        let files: Vec<_> = survey(options, &**disk)?.into_iter().filter(|file| file.keys > 0).collect();
        let is_whole = |file: &IndexFileSurvey| file.bytes == shape.bytes() && file.keys < shape.entries;
        let (Some(first), Some(last)) = (files.first(), files.last()) else { return Ok(None) };
        let known = [first.offsets[0], last.offsets[1]].map(|at| u64::try_from(at).unwrap_or(0));
        if !files.iter().all(is_whole) {
            return Ok(None);
        }
        let entries = Entries { files, disk, shape, file: 0, opened: None, next: 1, to: 0, bytes: Vec::new() };
        Ok(Some(Keys {
            fold: options.fold(),
            entries,
            waiting: BTreeMap::new(),
            known: known[0]..known[1],
            min,
            to: min,
            unknown: Vec::new(),
            keys: Vec::new(),
            astray: 0,
            incomplete: 0,
            is_given_up: false,
            failed: None,
        }))
    }

    /// Compares the next whole record of the log.
    pub fn compare(&mut self, record: &RecordView<'_>, tell: &mut dyn FnMut(Finding)) {
        let (at, end) = (record.log_offset(), record.log_offset() + record.total_size() as u64);
        if !self.has_entries_to(at, tell) {
            return;
        }
        if at > self.to {
            self.unknown.push(self.to..at);
        }
        // What fills a gap stands where other records were.
        let is_filler = sys_flag::transaction(record.sys_flag()) == sys_flag::TRANSACTION_ROLLBACK;
        if is_filler {
            self.unknown.push(at..end);
        }
        self.to = end;
        self.settle_below(at, tell);
        self.keys.clear();
        self.fold.show(record, &mut self.keys);
        self.keys.sort_unstable_by_key(|key| key.hash);
        // A record of so many keys has further ones, and who reads what is no text may read other
        // words.
        let is_text = std::str::from_utf8(record.properties_bytes()).is_ok();
        let is_all = !is_filler && is_text && self.keys.len() < KEYS_OF_RECORD_MAX;
        while let Some(entry) = self.waiting.first_entry().filter(|entry| entry.key().0 == at) {
            let (place, hash) = entry.remove_entry();
            let first = self.keys.partition_point(|key| key.hash < hash);
            let same = self.keys[first..].iter_mut().take_while(|key| key.hash == hash);
            let is_there = same.map(|key| key.has_entry = true).count() > 0;
            // Apache's brokers put a unique id that is empty, too.
            if !is_there && is_all && hash != hash_of(record.topic(), KeyKind::Key, "") {
                self.tell_astray(place, tell);
            }
        }
        let lacks = self.keys.iter().filter(|key| key.is_owed && !key.has_entry).count();
        if lacks > 0 && self.known.start < at && at < self.known.end {
            self.tell_incomplete(record, lacks, tell);
        }
    }

    /// The log ends here. Says how many there are of each if not all were named.
    pub fn finish(mut self, end: u64, tell: &mut dyn FnMut(Finding)) -> Result<(), StoreError> {
        if !self.has_entries_to(end, tell) {
            return self.failed.map_or(Ok(()), Err);
        }
        self.unknown.push(self.to..end);
        self.settle_below(end, tell);
        let mut sum = |count: u64, what: &str| {
            if count > NAMED {
                let (file, what) = (self.entries.dir(), format!("{count} {what}"));
                tell(Finding { file, at: None, what, effect: EFFECT, remedy: REMEDY });
            }
        };
        sum(self.astray, "of its keys in all lead to no record that has them");
        sum(self.incomplete, "messages in all have keys that it does not have");
        Ok(())
    }

    /// Reads the entries that lead to `at` and before. False if the index is not compared.
    fn has_entries_to(&mut self, at: u64, tell: &mut dyn FnMut(Finding)) -> bool {
        if !self.is_given_up {
            self.failed = self.entries.read_to(at, &mut self.waiting).err();
            let is_out_of_order = self.waiting.len() > WAITING_MAX;
            self.is_given_up = is_out_of_order || self.failed.is_some();
            if self.is_given_up {
                self.waiting.clear();
            }
            if is_out_of_order {
                let what = format!("its keys are not in the order of the log; they are not compared from {at} on");
                tell(Finding { file: self.entries.dir(), at: None, what, effect: EFFECT, remedy: REMEDY });
            }
        }
        !self.is_given_up
    }

    /// Tells of entries that lead to no record below `at`.
    fn settle_below(&mut self, at: u64, tell: &mut dyn FnMut(Finding)) {
        while let Some(entry) = self.waiting.first_entry().filter(|entry| entry.key().0 < at) {
            let (place, _) = entry.remove_entry();
            if place.0 >= self.min && !self.unknown.iter().any(|unknown| unknown.contains(&place.0)) {
                self.tell_astray(place, tell);
            }
        }
        self.unknown.retain(|unknown| unknown.end > at);
    }

    fn tell_astray(&mut self, (at, file, number): EntryPlace, tell: &mut dyn FnMut(Finding)) {
        let file = &self.entries.files[file];
        let [begin, end] = file.offsets;
        if !i64::try_from(at).is_ok_and(|at| (begin..=end).contains(&at)) {
            // The head says so, and a look at the chains tells.
            return;
        }
        self.astray += 1;
        if self.astray <= NAMED {
            tell(Finding {
                file: file.path.clone(),
                at: Some(self.entries.shape.entry_at(number)),
                what: format!("key {number} leads to log offset {at}, and no record that has it begins there"),
                effect: EFFECT,
                remedy: REMEDY,
            });
        }
    }

    fn tell_incomplete(&mut self, record: &RecordView<'_>, lacks: usize, tell: &mut dyn FnMut(Finding)) {
        self.incomplete += 1;
        if self.incomplete <= NAMED {
            let (number, topic, queue_id) = (record.queue_offset(), record.topic(), record.queue_id());
            let (at, lacks) = (record.log_offset(), env::counted(lacks as u64, "key"));
            tell(Finding {
                file: self.entries.dir(),
                at: None,
                what: format!(
                    "of message {number} of {topic}/{queue_id}, at log offset {at}, it does not have {lacks}"
                ),
                effect: EFFECT,
                remedy: REMEDY,
            });
        }
    }
}

/// The entries of all files, in their order.
struct Entries<'o> {
    files: Vec<IndexFileSurvey>,
    disk: &'o Arc<dyn Disk>,
    shape: Shape,
    /// Which file is read, and the next entry of it.
    file: usize,
    opened: Option<Arc<dyn DiskFile>>,
    next: u32,
    /// Entries that lead below have been read.
    to: u64,
    bytes: Vec<u8>,
}

impl Entries<'_> {
    /// The folder.
    fn dir(&self) -> PathBuf {
        self.files.first().and_then(|file| file.path.parent()).map(PathBuf::from).unwrap_or_default()
    }

    /// Reads on until all entries that lead to `at` and before are there.
    fn read_to(&mut self, at: u64, into: &mut BTreeMap<EntryPlace, u32>) -> Result<(), StoreError> {
        while self.to <= at && into.len() <= WAITING_MAX {
            let Some(file) = self.files.get(self.file) else {
                self.to = u64::MAX;
                return Ok(());
            };
            let failed = |source: io::Error| StoreError::Disk { doing: "read", path: file.path.clone(), source };
            let opened = match &self.opened {
                Some(opened) => Arc::clone(opened),
                None => self.disk.open(&file.path, OpenHow::Read).map_err(failed)?,
            };
            let count = (file.keys + 1 - self.next).min(ENTRIES_AT_ONCE);
            self.bytes.resize(count as usize * ENTRY_BYTES as usize, 0);
            let read = opened.read_once_at(&mut self.bytes, self.shape.entry_at(self.next)).map_err(failed)?;
            let mut last = [u64::MAX; LAST];
            for (number, raw) in (self.next..).zip(self.bytes[..read].as_chunks::<{ ENTRY_BYTES as usize }>().0) {
                let entry = IndexEntry::decode(raw);
                into.insert((entry.at, self.file, number), entry.hash);
                last[number as usize % LAST] = entry.at;
            }
            self.to = last.into_iter().min().unwrap_or(0);
            self.next += count;
            self.opened = Some(opened);
            if self.next > file.keys {
                (self.file, self.opened, self.next) = (self.file + 1, None, 1);
            }
        }
        Ok(())
    }
}
