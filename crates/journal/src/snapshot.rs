//! Taking a snapshot, on a thread of its own beside the journal's, so that no change waits for it.
//!
//! It is fuzzy: the owners are asked while changes go on. The journal was begun anew at the snapshot's position before, every
//! change at or below it is in the owners' state (see [`Table`](crate::Table)), and those above are
//! replayed over it; they are absolute, so it does not matter which of them the snapshot has
//! already. But it must not have one that the journal on the device has not: a loss of power would
//! leave that one and take others which belong to it. So it gets its name when the journal has come
//! as far.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use disk::pages::{OVERLAP, finish_writing, start_writing};
use disk::{DiskFile, OpenHow};

use crate::bundle::{self, BundleKind, HEADER_BYTES, Head};
use crate::error::JournalError;
use crate::files::{self, snapshot_path};
use crate::journal::{Owner, Shared};

/// How often a snapshot that waits for a sync looks whether the journal is being closed.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Entries gathered for one write.
const CHUNK_BYTES: usize = 64 << 10;
/// So much of it goes to the device at a time while the next so much is written, and out of memory then: nobody reads it before the next start.
const STRETCH_BYTES: u64 = 4 << 20;

/// Writes the snapshot at `position` and removes what it makes void. Returns its bytes; 0 if it was given up for closing.
pub(super) fn take(shared: &Shared, position: u64) -> Result<u64, JournalError> {
    let path = snapshot_path(&shared.dir, position);
    let unfinished = path.with_extension("tmp");
    let failed = |doing| {
        let path = &unfinished;
        move |source| JournalError::disk(doing, path, source)
    };
    let disk = &shared.disk;
    disk.remove(&unfinished).map_err(failed("remove"))?;
    let file = disk.open(&unfinished, OpenHow::Create).map_err(failed("make"))?;
    let beside = disk.open(&unfinished, OpenHow::Read).map_err(failed("open"))?;
    let written = &shared.gauges.maintenance_bytes;
    let chunk = Vec::with_capacity(CHUNK_BYTES);
    let mut out = Out { file, beside, written, at: 0, sent: 0, forgotten: 0, position, chunk, first_error: None };
    out.write(BundleKind::SnapshotHead);
    let tables: Vec<_> = {
        let inner = shared.inner.lock();
        inner.tables.iter().map(|(table, owner)| (*table, owner.clone())).collect()
    };
    for (table, owner) in tables {
        let mut show = |key: &[u8], value: &[u8]| {
            if out.first_error.is_some() || shared.is_closing.load(Ordering::Relaxed) {
                return;
            }
            bundle::put_entry(&mut out.chunk, table, key, Some(value));
            if out.chunk.len() >= CHUNK_BYTES {
                out.write(BundleKind::Entries);
            }
        };
        match owner {
            Owner::Held(entries) => entries.iter().for_each(|(key, value)| show(key, value)),
            Owner::Attached(owner) => owner.for_each(&mut show),
        }
    }
    // Owners change their state and put the change under one lock, so what they have shown is below this.
    let newest = shared.inner.lock().last;
    if shared.is_closing.load(Ordering::Relaxed) {
        disk.remove(&unfinished).map_err(failed("remove"))?;
        return Ok(0);
    }
    out.write(BundleKind::Entries);
    out.write(BundleKind::End);
    if let Some(error) = out.first_error {
        // The room it takes may be what is missing.
        disk.remove(&unfinished).map_err(failed("remove"))?;
        return Err(failed("write")(error));
    }
    out.file.sync_data().map_err(failed("sync"))?;
    out.forget_to(out.at);
    // Ends with the journal, or when the device has the changes; a disk that takes none is tried again by the writer.
    shared.want_sync();
    while shared.synced.get() < newest {
        if shared.is_closing.load(Ordering::Relaxed) {
            disk.remove(&unfinished).map_err(failed("remove"))?;
            return Ok(0);
        }
        shared.synced.wait_until(newest, Instant::now() + LOOK_AGAIN);
    }
    disk.rename(&unfinished, &path).map_err(failed("rename"))?;
    disk.sync_dir(&shared.dir).map_err(|source| JournalError::disk("sync", &shared.dir, source))?;
    files::remove_before(&**disk, &shared.dir, position)?;
    Ok(out.at)
}

struct Out<'a> {
    file: Arc<dyn DiskFile>,
    /// The same file, for hints: what the device refuses is said once to each descriptor, and the sync at the end has to know of it.
    beside: Arc<dyn DiskFile>,
    /// Where bytes are counted, also those of a snapshot that is given up.
    written: &'a AtomicU64,
    at: u64,
    /// Bytes below this are on their way to the device.
    sent: u64,
    /// Bytes below this were taken out of memory.
    forgotten: u64,
    position: u64,
    chunk: Vec<u8>,
    /// Owners cannot stop showing, so an error waits here until they are through.
    first_error: Option<io::Error>,
}

impl Out<'_> {
    fn write(&mut self, kind: BundleKind) {
        if self.first_error.is_some() {
            return;
        }
        let head = Head { kind, previous: self.position, last: self.position, synced: self.position };
        let header = bundle::seal(head, &self.chunk);
        let written = self.file.write_at(&header, self.at);
        let written = written.and_then(|()| self.file.write_at(&self.chunk, self.at + HEADER_BYTES as u64));
        match written {
            Ok(()) => {
                let bytes = (HEADER_BYTES + self.chunk.len()) as u64;
                self.at += bytes;
                self.written.fetch_add(bytes, Ordering::Relaxed);
            }
            Err(error) => self.first_error = Some(error),
        }
        self.chunk.clear();
        if self.first_error.is_none() && self.at - self.sent >= STRETCH_BYTES {
            self.send();
        }
    }

    /// Sends what is written on its way, and takes what was sent before out of memory. Not by a sync for each stretch: whoever waits for a flush of
    /// the log would wait behind all of them. These are hints: what stays costs memory, not bytes.
    fn send(&mut self) {
        let file = self.beside.descriptor();
        let _ = start_writing(file, self.sent, self.at - self.sent);
        if self.forgotten < self.sent {
            // Waits until it is there.
            let _ = finish_writing(file, self.forgotten, self.sent - self.forgotten);
            self.forget_to(self.sent);
        }
        self.sent = self.at;
    }

    fn forget_to(&mut self, to: u64) {
        let from = self.forgotten.saturating_sub(OVERLAP);
        let _ = self.beside.forget_cached(from, to - from);
        self.forgotten = to;
    }
}
