//! The file `checkpoint`: up to which time log, queues and index are on the device. 4096 bytes, of which RocketMQ uses 40.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use disk::{Disk, DiskFile, OpenHow};

use crate::error::StoreError;

const FILE_BYTES: u64 = 4096;

/// At the end of the page, which RocketMQ leaves as it is: the store has a journal.
const JOURNAL_AT: u64 = FILE_BYTES - JOURNAL_MARK.len() as u64;
const JOURNAL_MARK: [u8; 8] = *b"journal\n";

/// Recovery starts this much earlier than the file says: what is written in one millisecond need not be flushed in one.
const MARGIN_MS: i64 = 3_000;

/// The file's fields, in its order; big-endian, 8 bytes each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    /// Store time of the newest record of the log that is on the device.
    pub log_timestamp: i64,
    /// The same of the consume queues.
    pub queues_timestamp: i64,
    /// The same of the index.
    pub index_timestamp: i64,
    /// On a slave: how far the master had flushed.
    pub master_flushed: i64,
    /// Where the log ended, or was confirmed up to.
    pub confirmed: i64,
}

impl Marks {
    /// Records up to this store time need no second look.
    pub fn safe_timestamp(&self) -> i64 {
        (self.log_timestamp.min(self.queues_timestamp) - MARGIN_MS).max(0)
    }

    /// Records up to this store time were whole on the device once, whatever became of queues.
    pub fn vouched_timestamp(&self) -> i64 {
        (self.log_timestamp - MARGIN_MS).max(0)
    }

    fn encode(&self) -> [u8; 40] {
        let mut bytes = [0; 40];
        let fields =
            [self.log_timestamp, self.queues_timestamp, self.index_timestamp, self.master_flushed, self.confirmed];
        for (place, field) in bytes.chunks_exact_mut(8).zip(fields) {
            place.copy_from_slice(&field.to_be_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8; 40]) -> Marks {
        let mut fields = bytes.as_chunks::<8>().0.iter().map(|field| i64::from_be_bytes(*field));
        let mut next = || fields.next().unwrap_or_default();
        Marks {
            log_timestamp: next(),
            queues_timestamp: next(),
            index_timestamp: next(),
            master_flushed: next(),
            confirmed: next(),
        }
    }
}

pub(crate) struct Checkpoint {
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    /// Up to which time the file says that both log and queues are on the device.
    last: i64,
    /// Whether the file says that there was a journal.
    knows_journal: bool,
}

/// Whether a store that is only looked at had a journal once, as its check-point says.
pub(crate) fn knows_journal(disk: &dyn Disk, root: &Path) -> bool {
    disk.open(&root.join("checkpoint"), OpenHow::Read).is_ok_and(|file| has_journal_mark(&*file).unwrap_or(false))
}

fn has_journal_mark(file: &dyn DiskFile) -> std::io::Result<bool> {
    let mut mark = [0; JOURNAL_MARK.len()];
    Ok(file.read_at(&mut mark, JOURNAL_AT)? == mark.len() && mark == JOURNAL_MARK)
}

/// The marks of a store that is only looked at; none where there is no (whole) file.
pub(crate) fn read(disk: &dyn Disk, root: &Path) -> Result<Option<Marks>, StoreError> {
    if !root.join("checkpoint").exists() {
        return Ok(None);
    }
    Ok(Checkpoint::open(disk, root)?.1)
}

impl Checkpoint {
    /// Opens the file, or makes it. None of the marks where there was no (whole) file.
    pub fn open(disk: &dyn Disk, root: &Path) -> Result<(Checkpoint, Option<Marks>), StoreError> {
        let path = root.join("checkpoint");
        let failed = |doing| {
            let path = path.clone();
            move |source| StoreError::Disk { doing, path, source }
        };
        let file = disk.open(&path, OpenHow::Create).map_err(failed("open"))?;
        let mut bytes = [0; 40];
        let read = file.read_at(&mut bytes, 0).map_err(failed("read"))?;
        let marks = (read == bytes.len()).then(|| Marks::decode(&bytes)).filter(|marks| marks.log_timestamp > 0);
        if file.len().map_err(failed("measure"))? != FILE_BYTES {
            file.set_len(FILE_BYTES).map_err(failed("extend"))?;
        }
        let last = marks.map_or(0, |marks| marks.log_timestamp.min(marks.queues_timestamp));
        let knows_journal = has_journal_mark(&*file).map_err(failed("read"))?;
        Ok((Checkpoint { path, file, last, knows_journal }, marks))
    }

    /// Whether the store had a journal before this start: where none is found, it was lost or taken away.
    pub fn knows_journal(&self) -> bool {
        self.knows_journal
    }

    /// The store has a journal, whose files and names are on the device.
    pub fn note_journal(&mut self) -> Result<(), StoreError> {
        if self.knows_journal {
            return Ok(());
        }
        let written = self.file.write_at(&JOURNAL_MARK, JOURNAL_AT).and_then(|()| self.file.sync_data());
        written.map_err(|source| StoreError::Disk { doing: "write", path: self.path.clone(), source })?;
        self.knows_journal = true;
        Ok(())
    }

    /// Up to which time the file says that both log and queues are on the device.
    pub fn last(&self) -> i64 {
        self.last
    }

    pub fn write(&mut self, marks: &Marks) -> Result<(), StoreError> {
        self.put(marks)?;
        self.last = marks.log_timestamp;
        Ok(())
    }

    /// Writes what a start has to find if this one does not come to its end, or takes that back.
    pub fn put(&self, marks: &Marks) -> Result<(), StoreError> {
        self.file.write_at(&marks.encode(), 0).and_then(|()| self.file.sync_data()).map_err(|source| StoreError::Disk {
            doing: "write",
            path: self.path.clone(),
            source,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_survive_the_file() {
        let marks =
            Marks { log_timestamp: 1, queues_timestamp: -2, index_timestamp: 3, master_flushed: 4, confirmed: 5 };
        assert_eq!(Marks::decode(&marks.encode()), marks);
        assert_eq!(&marks.encode()[..8], &[0, 0, 0, 0, 0, 0, 0, 1]);
    }
}
