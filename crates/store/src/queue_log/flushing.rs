//! When units go to their files, and when files go to the device.

use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use disk::turns;
use foldhash::fast::FixedState;
use hashbrown::HashSet;

use super::ends::is_to_be_counted;
use super::error::QueueError;
use super::layout::Layout;
use super::shared::Shared;
use super::unit::UNIT_BYTES;
use super::unsynced::{SYNCED_SINGLY_MAX, Unsynced};
use super::{QueueLogs, WINDOW_BYTES_MAX};

/// Units of a queue that are worth a write where there are more queues than that.
const GATHERED_UNITS: usize = 100;

/// How much of what was pushed before a flush is in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushed {
    /// All of it.
    All,
    /// Some queues keep theirs.
    Part,
}

impl QueueLogs {
    /// Hands all units that are only in memory to the kernel, and takes memory back from queues that are at rest.
    ///
    /// A queue that cannot be written keeps its units for the next call and does not stop the others; the first error is
    /// returned.
    pub fn flush_all(&self) -> Result<Flushed, QueueError> {
        self.flush_from(0)
    }

    /// The same, but where there are very many queues the few units of each gather, as far as their memory allows: a write of a unit or two
    /// costs as much as one of a hundred. What stays is in the log, and is written with the next check-point.
    pub fn flush_gathered(&self) -> Result<Flushed, QueueError> {
        let listed = self.shared.listed.lock().len();
        let buffered = self.shared.options.buffered_bytes;
        let most = (listed * GATHERED_UNITS * UNIT_BYTES) as u64;
        let is_many = listed > SYNCED_SINGLY_MAX || self.shared.options.buggify.at("queues: units gather");
        let ring_at = if is_many { most.clamp(buffered, buffered.saturating_mul(4)) } else { buffered };
        self.shared.ring_at.store(ring_at, Ordering::Relaxed);
        if !is_many {
            return self.flush_all();
        }
        self.flush_from(GATHERED_UNITS)?;
        if self.pending_bytes() > ring_at / 2 { self.flush_all() } else { Ok(Flushed::Part) }
    }

    /// Leaves queues alone that have fewer units to write than `least`.
    fn flush_from(&self, least: usize) -> Result<Flushed, QueueError> {
        let _files = self.shared.maintenance.lock();
        // What rang is left to the thread that waits for it: others flush too, and the store may be closing.
        self.shared.is_rung.store(false, Ordering::Relaxed);
        let mut listed = std::mem::take(&mut *self.shared.listed.lock());
        let share = self.shared.options.recent_bytes as usize / listed.len().max(1);
        let window = share.min(WINDOW_BYTES_MAX);
        let mut scratch = Vec::new();
        // After the list was taken: whatever stands in it under a deleted name was made after that was noted.
        let mut first_error = self.remove_deleted_files().err();
        let waiting: HashSet<String, FixedState> =
            self.shared.deleted.lock().iter().map(|deleted| deleted.name.clone()).collect();
        // Units of deleted topics that were in memory only are gone, and have to come again from the log if a loss of power takes the deletion back.
        let mut flushed = if least == 0 && waiting.is_empty() { Flushed::All } else { Flushed::Part };
        listed.retain(|queue| {
            if waiting.contains(queue.topic()) {
                // The files of the topic that had its name before are still there.
                flushed = Flushed::Part;
                return !queue.is_deleted();
            }
            let is_active = queue.flush(window, least, &mut scratch).unwrap_or_else(|error| {
                first_error.get_or_insert(error);
                true
            });
            is_to_be_counted(queue) || is_active
        });
        self.shared.listed.lock().append(&mut listed);
        first_error.map_or(Ok(flushed), Err)
    }

    /// Flushes, and makes what was pushed before this call survive a loss of power. Says whether that took a sync of whole file systems,
    /// the log's prepared pages included. On [`QueueError::Unsure`] nothing can be trusted any more but the log; on another error the next call does it.
    pub fn sync_all(&self) -> Result<bool, QueueError> {
        // Again where the files of the topic that was waited for have gone meanwhile.
        while self.flush_all()? == Flushed::Part {
            if let Some(deleted) = self.shared.deleted.lock().first() {
                return Err(QueueError::Waits { topic: deleted.name.clone() });
            }
        }
        // Outside the maintenance lock: the device may take minutes, and units have to be written meanwhile. A file that is removed while it is
        // synced does no harm.
        let mut unsynced = std::mem::take(&mut *self.shared.unsynced.lock());
        unsynced.is_everything |= self.shared.options.buggify.at("queues: the whole file system is synced");
        match self.sync(&unsynced) {
            Ok(()) => Ok(unsynced.is_everything),
            Err(error) => {
                // Which of it is on the device is not remembered.
                *self.shared.unsynced.lock() = Unsynced { is_everything: true, ..Unsynced::default() };
                Err(error)
            }
        }
    }

    /// Makes all that the file systems of the queues hold survive a loss of power, whoever wrote it. On [`QueueError::Unsure`] nothing can be
    /// trusted any more but the log: a second try would say yes without having done anything.
    pub fn sync_file_systems(&self) -> Result<(), QueueError> {
        let Shared { disk, simple: Layout { dir: root, .. }, batch: Layout { dir: batches, .. }, .. } = &*self.shared;
        let sync = |dir: &Path| disk.sync_file_system(dir).map_err(|source| failed(dir, source));
        sync(root)?;
        // One of the two may be a mount of its own.
        match (disk.device(root), disk.device(batches)) {
            (Ok(root), Ok(batches)) if root == batches => Ok(()),
            // It is made when it is needed.
            (_, Err(error)) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            (Ok(_) | Err(_), Ok(_) | Err(_)) => sync(batches),
        }
    }

    fn sync(&self, unsynced: &Unsynced) -> Result<(), QueueError> {
        let Shared { disk, simple: Layout { dir: root, .. }, batch, .. } = &*self.shared;
        // The folder for batches is made when it is needed, so that its own name has to be there too.
        let batch_parent = batch.dir.parent().unwrap_or(&batch.dir);
        if unsynced.is_everything {
            return self.sync_file_systems();
        }
        for file in unsynced.files.values() {
            file.sync_data().map_err(|source| failed(root, source))?;
        }
        for dir in &unsynced.dirs {
            // The file's name is in the queue's directory, that one's name in the topic's, and so on up to ours.
            let top = if dir.starts_with(root) { root } else { batch_parent };
            for dir in dir.ancestors().take_while(|dir| dir.starts_with(top)) {
                match disk.sync_dir(dir) {
                    // Its topic was deleted since.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    synced => synced.map_err(|source| failed(dir, source))?,
                }
            }
        }
        Ok(())
    }

    /// Blocks until a flush is wanted early (true), or `timeout` has passed (false).
    pub fn wait_until_wanted(&self, timeout: Duration) -> bool {
        let mut wanted = self.shared.bell.wanted.lock();
        if !*wanted && !turns::wait(&mut wanted, Some(timeout), |wanted| *wanted) {
            self.shared.bell.rang.wait_for(&mut wanted, timeout);
        }
        std::mem::take(&mut *wanted)
    }

    /// Ends a `wait_until_wanted` now: something is to be done, or the store closes.
    pub fn ring(&self) {
        self.shared.bell.ring();
    }
}

/// What a sync that failed says.
fn failed(path: &Path, source: io::Error) -> QueueError {
    if disk::was_begun(&source) {
        return QueueError::Unsure { path: path.to_owned(), source };
    }
    QueueError::disk("open", path, source)
}
