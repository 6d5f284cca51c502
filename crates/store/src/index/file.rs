//! One file of the key index, in RocketMQ's format (`IndexFile`); big-endian.
//!
//! ```text
//! header   beginTimestamp i64, endTimestamp i64, beginPhyOffset i64, endPhyOffset i64, hashSlotCount i32, indexCount i32
//! slots    i32 each: number of the newest entry of the slot, 0 for none
//! entries  keyHash i32, phyOffset i64, timeDiff i32 (seconds since beginTimestamp), number of the slot's entry before i32
//! ```
//!
//! Entry 0 is not used, so `indexCount` begins at 1 and is the number of the next entry. Entries are written before the slots that
//! lead to them, and the header only once both are on the device: what a crash leaves above the header's count can be taken back.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use disk::{Disk, DiskFile, OpenHow, sync_or_end};
use parking_lot::Mutex;

use crate::error::StoreError;
use crate::fold::IndexKey;

const HEADER_BYTES: u64 = 40;
pub(super) const SLOT_BYTES: u64 = 4;
pub(crate) const ENTRY_BYTES: u64 = 20;
/// Slots are read and written by this many bytes, the system's page on most machines.
const PAGE_BYTES: u64 = 4096;
/// Slots that are looked through at once after a crash.
const MEND_BYTES: usize = 256 << 10;
/// Entries that are read at once where a chain of them is broken: a page.
const ENTRIES_AT_ONCE: u32 = 204;

/// How large the files are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// `maxHashSlotNum`.
    pub slots: u32,
    /// `maxIndexNum`, of which entry 0 is not used.
    pub entries: u32,
}

impl Shape {
    pub fn bytes(&self) -> u64 {
        self.entry_at(self.entries)
    }

    pub(super) fn slot_at(slot: u32) -> u64 {
        HEADER_BYTES + SLOT_BYTES * u64::from(slot)
    }

    pub fn entry_at(&self, number: u32) -> u64 {
        Shape::slot_at(self.slots) + ENTRY_BYTES * u64::from(number)
    }
}

/// The first 40 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    pub begin_timestamp: i64,
    pub end_timestamp: i64,
    pub begin_offset: i64,
    pub end_offset: i64,
    /// Slots that lead to an entry.
    pub used_slots: u32,
    /// The number of the next entry.
    pub next: u32,
}

impl Header {
    fn encode(&self) -> [u8; HEADER_BYTES as usize] {
        let mut bytes = [0; HEADER_BYTES as usize];
        let times = [self.begin_timestamp, self.end_timestamp, self.begin_offset, self.end_offset];
        bytes[..32].copy_from_slice(times.map(i64::to_be_bytes).as_flattened());
        bytes[32..].copy_from_slice([self.used_slots, self.next].map(u32::to_be_bytes).as_flattened());
        bytes
    }

    pub fn decode(bytes: &[u8; HEADER_BYTES as usize]) -> Header {
        let long = |at| i64::from_be_bytes(part(bytes, at));
        let int = |at| u32::from_be_bytes(part(bytes, at));
        Header {
            begin_timestamp: long(0),
            end_timestamp: long(8),
            begin_offset: long(16),
            end_offset: long(24),
            used_slots: int(32),
            next: int(36).max(1),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.next <= 1
    }
}

/// Bytes at a place that the caller knows to be there.
fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut part = [0; N];
    part.copy_from_slice(&bytes[at..at + N]);
    part
}

/// An entry that a query came by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    pub hash: u32,
    pub at: u64,
    seconds: i32,
    pub before: u32,
}

impl IndexEntry {
    fn encode(&self) -> [u8; ENTRY_BYTES as usize] {
        let mut bytes = [0; ENTRY_BYTES as usize];
        bytes[..4].copy_from_slice(&self.hash.to_be_bytes());
        bytes[4..12].copy_from_slice(&self.at.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.seconds.to_be_bytes());
        bytes[16..].copy_from_slice(&self.before.to_be_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8; ENTRY_BYTES as usize]) -> IndexEntry {
        IndexEntry {
            hash: u32::from_be_bytes(part(bytes, 0)),
            at: u64::from_be_bytes(part(bytes, 4)),
            seconds: i32::from_be_bytes(part(bytes, 12)),
            before: u32::from_be_bytes(part(bytes, 16)),
        }
    }
}

/// A page of slots on its way through.
struct SlotPage {
    /// Where it begins, from the first slot on.
    at: u64,
    /// Bytes of it that are slots.
    length: usize,
    slots: [u8; PAGE_BYTES as usize],
}

impl SlotPage {
    fn number_of(slot: u32) -> u64 {
        SLOT_BYTES * u64::from(slot) / PAGE_BYTES
    }

    /// Lets a slot of this page lead to an entry, and says to which one it led before.
    fn lead(&mut self, slot: u32, number: u32) -> u32 {
        let inside = (SLOT_BYTES * u64::from(slot) - self.at) as usize;
        let before = u32::from_be_bytes(part(&self.slots, inside));
        self.slots[inside..inside + SLOT_BYTES as usize].copy_from_slice(&number.to_be_bytes());
        before
    }

    fn bytes(&self) -> &[u8] {
        &self.slots[..self.length]
    }
}

pub(crate) struct IndexFile {
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    shape: Shape,
    /// As it is now; the file's own follows. Guards nothing else: one thread writes.
    header: Mutex<Header>,
    /// As it is in the file.
    written: Mutex<Header>,
    /// A put has begun and not ended, so slots may lead to entries that do not count. Relaxed: one thread writes.
    is_torn: AtomicBool,
    /// A query has met damage in it, and a line says so. Relaxed: two lines do no harm.
    is_named: AtomicBool,
}

impl IndexFile {
    /// Makes the file: sparse, at its full length.
    pub fn create(disk: &dyn Disk, path: PathBuf, shape: Shape) -> Result<IndexFile, StoreError> {
        let made = disk.open(&path, OpenHow::Create).and_then(|file| file.set_len(shape.bytes()).map(|()| file));
        let header = Header { next: 1, ..Header::default() };
        match made {
            Ok(file) => Ok(IndexFile::new(path, file, shape, header)),
            Err(source) => Err(StoreError::Disk { doing: "make", path, source }),
        }
    }

    /// Opens a file; none if it is not one of this shape.
    pub fn open(disk: &dyn Disk, path: PathBuf, shape: Shape) -> Result<Option<IndexFile>, StoreError> {
        let opened = || {
            let file = disk.open(&path, OpenHow::Write)?;
            let mut bytes = [0; HEADER_BYTES as usize];
            let is_whole = file.len()? == shape.bytes() && file.read_at(&mut bytes, 0)? == bytes.len();
            let header = Header::decode(&bytes);
            Ok((is_whole && header.next <= shape.entries).then_some((file, header)))
        };
        let found = opened().map_err(|source| StoreError::Disk { doing: "open", path: path.clone(), source })?;
        Ok(found.map(|(file, header)| IndexFile::new(path, file, shape, header)))
    }

    fn new(path: PathBuf, file: Arc<dyn DiskFile>, shape: Shape, header: Header) -> IndexFile {
        let (header, written) = (Mutex::new(header), Mutex::new(header));
        IndexFile {
            path,
            file,
            shape,
            header,
            written,
            is_torn: AtomicBool::new(false),
            is_named: AtomicBool::new(false),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn header(&self) -> Header {
        *self.header.lock()
    }

    pub fn is_full(&self) -> bool {
        self.header().next >= self.shape.entries
    }

    fn failed(&self, doing: &'static str) -> impl Fn(io::Error) -> StoreError {
        let path = self.path.clone();
        move |source| StoreError::Disk { doing, path: path.clone(), source }
    }

    /// Puts as many of the keys as there is room for, and says how many that is. One thread at a time.
    pub fn put(&self, keys: &[IndexKey]) -> Result<usize, StoreError> {
        if self.is_torn() {
            // Before the entries that say what was there are written over.
            self.mend()?;
        }
        let mut header = self.header();
        let room = self.shape.entries.saturating_sub(header.next) as usize;
        let keys = &keys[..keys.len().min(room)];
        let Some((first, last)) = keys.first().zip(keys.last()) else { return Ok(0) };
        if header.is_empty() {
            header.begin_timestamp = first.store_timestamp;
            header.begin_offset = first.at as i64;
        }
        let order = self.by_page(keys);
        let in_pages =
            || order.chunk_by(|(slot, _), (other, _)| SlotPage::number_of(*slot) == SlotPage::number_of(*other));
        let mut entries = vec![0; keys.len() * ENTRY_BYTES as usize];
        let mut page = SlotPage { at: 0, length: 0, slots: [0; PAGE_BYTES as usize] };
        // What slots lead to now, for the entries; the slots themselves follow once the entries are written. Pages are read twice for it,
        // since all of them at once would be as much memory as there are slots.
        for keys_of_page in in_pages() {
            self.read_page(&mut page, keys_of_page)?;
            for (slot, number) in keys_of_page {
                let key = &keys[*number as usize];
                let before = page.lead(*slot, header.next + number);
                let seconds = seconds_between(header.begin_timestamp, key.store_timestamp);
                let entry = IndexEntry { hash: key.hash, at: key.at, seconds, before };
                let entry_at = *number as usize * ENTRY_BYTES as usize;
                entries[entry_at..entry_at + ENTRY_BYTES as usize].copy_from_slice(&entry.encode());
                header.used_slots += u32::from(before == 0);
            }
        }
        self.is_torn.store(true, Ordering::Relaxed);
        self.file.write_at(&entries, self.shape.entry_at(header.next)).map_err(self.failed("write"))?;
        for keys_of_page in in_pages() {
            self.read_page(&mut page, keys_of_page)?;
            for (slot, number) in keys_of_page {
                page.lead(*slot, header.next + number);
            }
            self.file.write_at(page.bytes(), HEADER_BYTES + page.at).map_err(self.failed("write"))?;
        }
        header.next += keys.len() as u32;
        header.end_timestamp = last.store_timestamp;
        header.end_offset = last.at as i64;
        *self.header.lock() = header;
        self.is_torn.store(false, Ordering::Relaxed);
        Ok(keys.len())
    }

    /// Slot and number of each key, those of a page of slots together, and among them in the order of the keys: where two share a slot, the
    /// later one comes behind the earlier. Counted, not sorted: there are few pages.
    fn by_page(&self, keys: &[IndexKey]) -> Vec<(u32, u32)> {
        let page_of = |slot| SlotPage::number_of(slot) as usize;
        let mut starts = vec![0u32; page_of(self.shape.slots) + 2];
        for key in keys {
            starts[page_of(self.slot_of(key.hash)) + 1] += 1;
        }
        let mut sum = 0;
        for start in &mut starts {
            sum += *start;
            *start = sum;
        }
        let mut order = vec![(0, 0); keys.len()];
        for (number, key) in (0..).zip(keys) {
            let slot = self.slot_of(key.hash);
            let place = &mut starts[page_of(slot)];
            order[*place as usize] = (slot, number);
            *place += 1;
        }
        order
    }

    /// Reads the page of slots that these keys go to.
    fn read_page(&self, page: &mut SlotPage, keys: &[(u32, u32)]) -> Result<(), StoreError> {
        let Some((slot, _)) = keys.first() else { return Ok(()) };
        page.at = SlotPage::number_of(*slot) * PAGE_BYTES;
        page.length = (SLOT_BYTES * u64::from(self.shape.slots) - page.at).min(PAGE_BYTES) as usize;
        let bytes = &mut page.slots[..page.length];
        self.file.read_at(bytes, HEADER_BYTES + page.at).map_err(self.failed("read"))?;
        Ok(())
    }

    fn slot_of(&self, hash: u32) -> u32 {
        hash % self.shape.slots
    }

    /// Brings entries and slots to the device, then the header that counts them. A device that cannot sync ends the process.
    pub fn sync(&self) -> Result<(), StoreError> {
        let header = self.header();
        if *self.written.lock() == header {
            return Ok(());
        }
        sync_or_end(&*self.file, &self.path);
        self.file.write_at(&header.encode(), 0).map_err(self.failed("write"))?;
        sync_or_end(&*self.file, &self.path);
        *self.written.lock() = header;
        Ok(())
    }

    /// What counts the entries that are on the device.
    pub fn synced_header(&self) -> Header {
        *self.written.lock()
    }

    /// Whether nothing has to be written any more.
    pub fn is_synced(&self) -> bool {
        *self.written.lock() == self.header()
    }

    /// Whether a put failed half-way. The next one mends that first.
    pub fn is_torn(&self) -> bool {
        self.is_torn.load(Ordering::Relaxed)
    }

    /// Takes back what slots know beyond the header's count, after a crash or a put that failed. Says whether that was possible: where an
    /// entry that a slot leads to is not there, the slot leads nowhere from now on, and the file cannot be trusted.
    pub fn mend(&self) -> Result<bool, StoreError> {
        let count = self.header().next;
        let mut is_whole = true;
        let end = SLOT_BYTES * u64::from(self.shape.slots);
        let mut bytes = vec![0; MEND_BYTES];
        let mut slot = 0;
        for at in (0..end).step_by(MEND_BYTES) {
            let length = (end - at).min(MEND_BYTES as u64) as usize;
            let bytes = &mut bytes[..length];
            self.file.read_at(bytes, HEADER_BYTES + at).map_err(self.failed("read"))?;
            let mut is_changed = false;
            for place in bytes.as_chunks_mut::<4>().0 {
                let found = u32::from_be_bytes(*place);
                let known = self.taken_back(slot, found, count)?;
                is_whole &= known.is_some();
                let number = known.unwrap_or(0);
                is_changed |= number != found;
                *place = number.to_be_bytes();
                slot += 1;
            }
            if is_changed {
                self.file.write_at(bytes, HEADER_BYTES + at).map_err(self.failed("write"))?;
            }
        }
        self.is_torn.store(false, Ordering::Relaxed);
        Ok(is_whole)
    }

    /// What a slot led to before it led to entries from `count` on; none if that cannot be told.
    fn taken_back(&self, slot: u32, found: u32, count: u32) -> Result<Option<u32>, StoreError> {
        let mut number = found;
        while number >= count {
            match self.entry(number)? {
                Some(entry) if entry.before < number && self.slot_of(entry.hash) == slot => number = entry.before,
                Some(_) | None => return Ok(None),
            }
        }
        Ok(Some(number))
    }

    fn entry(&self, number: u32) -> Result<Option<IndexEntry>, StoreError> {
        let mut bytes = [0; ENTRY_BYTES as usize];
        if number >= self.shape.entries {
            return Ok(None);
        }
        let read = self.file.read_at(&mut bytes, self.shape.entry_at(number)).map_err(self.failed("read"))?;
        Ok((read == bytes.len()).then(|| IndexEntry::decode(&bytes)))
    }

    /// Shows where records lie that may have the key and may have been stored from `begin` to `end` (both in ms, and both
    /// included), newest first, until `visit` wants no more or `entries_left` have been looked at. Says whether it wants more.
    ///
    /// One damaged entry, or slot, hides none but its own: the chain is taken up again behind it.
    pub fn find(
        &self,
        hash: u32,
        begin: i64,
        end: i64,
        entries_left: &mut usize,
        visit: &mut dyn FnMut(u64) -> Result<bool, StoreError>,
    ) -> Result<bool, StoreError> {
        let start = self.header().begin_timestamp;
        let slot = self.slot_of(hash);
        let mut bytes = [0; SLOT_BYTES as usize];
        self.file.read_at(&mut bytes, Shape::slot_at(slot)).map_err(self.failed("read"))?;
        let mut number = u32::from_be_bytes(bytes);
        // The last entry that was one of the slot's.
        let mut known = u32::MAX;
        let mut is_behind_begin = false;
        // Each turn spends an entry.
        while number > 0 && *entries_left > 0 {
            *entries_left -= 1;
            let entry = self.entry(number)?;
            let Some(entry) = entry.filter(|entry| self.is_of_slot(number, entry, slot)) else {
                number = self.behind_damage(slot, known, number, entry, entries_left)?;
                continue;
            };
            known = number;
            number = entry.before;
            let from = start.saturating_add(i64::from(entry.seconds).saturating_mul(1000));
            // An entry knows seconds, so it stands for all of the second that begins there.
            let was_behind_begin = std::mem::replace(&mut is_behind_begin, from.saturating_add(999) < begin);
            // Times do not rise along the chain. A single one that is too early may be damaged, and
            // its record says when it was stored.
            if is_behind_begin && was_behind_begin {
                break;
            }
            if entry.hash == hash && from <= end && !visit(entry.at)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether an entry belongs to a chain: that of its slot, which only leads to older entries.
    fn is_of_slot(&self, number: u32, entry: &IndexEntry, slot: u32) -> bool {
        entry.before < number && self.slot_of(entry.hash) == slot
    }

    /// Where the chain of a slot goes on, 0 if nowhere: the entry `number`, to which the entry
    /// `known` or the slot itself leads, is not of it.
    fn behind_damage(
        &self,
        slot: u32,
        known: u32,
        number: u32,
        entry: Option<IndexEntry>,
        entries_left: &mut usize,
    ) -> Result<u32, StoreError> {
        // What a put that failed half-way has left is no damage.
        if !self.is_torn() && !self.is_named.swap(true, Ordering::Relaxed) {
            tracing::error!(
                path = %self.path.display(),
                key = number,
                "the key index is damaged: some messages may not be found by key; `gantry store repair --index` builds it again from the log"
            );
        }
        // The way to it may be right, and so its own.
        if let Some(before) = entry.map(|entry| entry.before).filter(|before| (1..number).contains(before))
            && self.entry(before)?.is_some_and(|entry| self.is_of_slot(before, &entry, slot))
        {
            return Ok(before);
        }
        let mut bytes = [0; ENTRIES_AT_ONCE as usize * ENTRY_BYTES as usize];
        let mut end = known.min(self.header().next);
        // Each turn looks at some entries before the last ones.
        while end > 1 && *entries_left > 0 {
            let count = (end - 1).min(ENTRIES_AT_ONCE).min(u32::try_from(*entries_left).unwrap_or(u32::MAX));
            let first = end - count;
            let bytes = &mut bytes[..count as usize * ENTRY_BYTES as usize];
            if self.file.read_at(bytes, self.shape.entry_at(first)).map_err(self.failed("read"))? < bytes.len() {
                return Ok(0);
            }
            *entries_left -= count as usize;
            let entries = bytes.as_chunks::<{ ENTRY_BYTES as usize }>().0;
            let found = (first..end).zip(entries).rev().find(|(number, raw)| {
                let entry = IndexEntry::decode(raw);
                self.is_of_slot(*number, &entry, slot)
            });
            if let Some((found, _)) = found {
                return Ok(found);
            }
            end = first;
        }
        Ok(0)
    }
}

fn seconds_between(begin: i64, end: i64) -> i32 {
    i32::try_from((end.saturating_sub(begin) / 1000).max(0)).unwrap_or(i32::MAX)
}
