//! The store that is looked at, opened so that nothing of it changes.

use std::sync::Arc;

use disk::{Disk, Unchanged};
use journal::{JournalError, JournalLook};

use crate::error::StoreError;
use crate::lock::StoreLock;
use crate::options::StoreOptions;
use crate::queue_log::{Loaded, QueueLogOptions, QueueLogs};

/// A store that is looked at.
pub struct Look {
    pub(super) options: StoreOptions,
    pub(super) disk: Arc<dyn Disk>,
    /// Keeps brokers out as long as somebody looks; none where there is no lock file, or where a broker may run.
    _lock: Option<StoreLock>,
}

impl Look {
    /// Looks at a store that no broker has open, and keeps brokers out meanwhile. [`StoreError::Locked`] if one has it open.
    pub fn stopped(options: StoreOptions) -> Result<Look, StoreError> {
        let lock = StoreLock::keep_out_others(&options.root)?;
        Ok(Look { options, disk: Arc::new(Unchanged), _lock: lock })
    }

    /// Looks at a store that a broker may have open. What it has not written yet is not seen, and what one file says may be older
    /// than what another does: good for [`Look::survey`] only.
    pub fn running(options: StoreOptions) -> Look {
        Look { options, disk: Arc::new(Unchanged), _lock: None }
    }

    /// Where the store is, and how it would be opened.
    pub fn options(&self) -> &StoreOptions {
        &self.options
    }

    /// What the journal says; none if there is none, as in a store that only Apache had.
    pub fn journal(&self) -> Result<Option<JournalLook>, JournalError> {
        JournalLook::read(&self.options.root.join("journal"), &*self.disk)
    }

    /// Whether a start could open the consume queues.
    pub fn queue_files(&self) -> Result<(), StoreError> {
        self.queues().map(|_| ())
    }

    pub(super) fn queues(&self) -> Result<(QueueLogs, Loaded), StoreError> {
        let queue_options = QueueLogOptions {
            file_bytes: self.options.queue_file_bytes,
            batch_dir: Some(self.options.root.join("batchconsumequeue")),
            batch_file_bytes: self.options.batch_queue_file_bytes,
            ..QueueLogOptions::default()
        };
        Ok(QueueLogs::open(&self.options.queue_dir, queue_options, Arc::clone(&self.disk))?)
    }
}
