//! Taking a snapshot, on a thread of its own beside the journal's, so that no change waits for it.
//!
//! It is fuzzy: the owners are asked while changes go on. The journal was begun anew at the snapshot's position before, every
//! change at or below it is in the owners' state (see [`Table`](super::Table)), and those above are replayed over it; they are
//! absolute, so it does not matter which of them the snapshot has already.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::bundle::{self, HEADER_BYTES, Head, Kind};
use super::files::{self, snapshot_path};
use super::{JournalError, Owner, Shared};
use crate::disk::{DiskFile, OpenHow};

/// Entries gathered for one write.
const CHUNK_BYTES: usize = 64 << 10;

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
    let mut out = Out { file, at: 0, position, chunk: Vec::with_capacity(CHUNK_BYTES), first_error: None };
    out.write(Kind::SnapshotHead);
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
                out.write(Kind::Entries);
            }
        };
        match owner {
            Owner::Held(entries) => entries.iter().for_each(|(key, value)| show(key, value)),
            Owner::Attached(owner) => owner.for_each(&mut show),
        }
    }
    if shared.is_closing.load(Ordering::Relaxed) {
        disk.remove(&unfinished).map_err(failed("remove"))?;
        return Ok(0);
    }
    out.write(Kind::Entries);
    out.write(Kind::End);
    if let Some(error) = out.first_error {
        // The room it takes may be what is missing.
        disk.remove(&unfinished).map_err(failed("remove"))?;
        return Err(failed("write")(error));
    }
    out.file.sync_data().map_err(failed("sync"))?;
    disk.rename(&unfinished, &path).map_err(failed("rename"))?;
    disk.sync_dir(&shared.dir).map_err(|source| JournalError::disk("sync", &shared.dir, source))?;
    files::remove_before(&**disk, &shared.dir, position)?;
    Ok(out.at)
}

struct Out {
    file: Arc<dyn DiskFile>,
    at: u64,
    position: u64,
    chunk: Vec<u8>,
    /// Owners cannot stop showing, so an error waits here until they are through.
    first_error: Option<io::Error>,
}

impl Out {
    fn write(&mut self, kind: Kind) {
        if self.first_error.is_some() {
            return;
        }
        let head = Head { kind, previous: self.position, last: self.position, synced: self.position };
        let header = bundle::seal(head, &self.chunk);
        let written = self.file.write_at(&header, self.at);
        let written = written.and_then(|()| self.file.write_at(&self.chunk, self.at + HEADER_BYTES as u64));
        match written {
            Ok(()) => self.at += (HEADER_BYTES + self.chunk.len()) as u64,
            Err(error) => self.first_error = Some(error),
        }
        self.chunk.clear();
    }
}
