//! Appends.

use std::sync::atomic::Ordering;

use env::TimeMs;

use protocol::LogOffset;

use super::{Shared, Store};
use crate::batch::RecordBatch;
use crate::error::{AppendError, NotWritable};

impl Store {
    /// Appends what is not appended yet of the batch: one lock, no system call. See [`RecordBatch::landed`]. What has landed is stored when
    /// [`Store::written`] has come to its end: at once, unless records gather in a pool.
    ///
    /// On [`AppendError::NoRoomYet`] await [`Store::room`], on [`AppendError::PoolFull`] [`Store::written`], and call it again: the rest of the
    /// batch is still in it.
    pub fn append(&self, batch: &mut RecordBatch, now: TimeMs) -> Result<(), AppendError> {
        self.writable()?;
        let shared = &self.shared;
        if shared.queues.is_backlogged() {
            self.check_queues()?;
        }
        if shared.buggify.at("log: no room yet") {
            // Whoever waits for it finds it at once.
            return Err(AppendError::NoRoomYet { needed: shared.log.end.get() });
        }
        let first = batch.landed().len();
        let appended = match &shared.log.pool {
            None => {
                let appended = shared.log.append::<false>(batch, now);
                if let Some(last) = batch.landed().last() {
                    shared.last_timestamp.fetch_max(last.store_timestamp, Ordering::Release);
                }
                shared.confirmed.raise_written(shared.log.end.get());
                shared.flush_bell.call();
                appended
            }
            // The rest is its thread's.
            Some(pool) => {
                let appended = shared.log.append::<true>(batch, now);
                pool.bell.call();
                appended
            }
        };
        debug_assert_eq!(batch.difference(first, shared.options.fold()), None, "what was said is not what follows");
        match appended {
            Ok(false) => Ok(()),
            Ok(true) => {
                shared.segments_bell.call();
                Ok(())
            }
            Err(AppendError::NoRoomYet { needed }) => Err(self.no_room_yet(needed)),
            Err(error @ (AppendError::PoolFull { .. } | AppendError::NotWritable(_) | AppendError::TooLong { .. })) => {
                Err(error)
            }
        }
    }

    /// Refuses appends ([`NotWritable::Held`]) until it is told to let them be made again, and says where the log ends: while it is held, nothing
    /// comes behind that. Copies of a master's log are not refused.
    pub fn hold_appends(&self, is_held: bool) -> LogOffset {
        LogOffset(self.shared.log.hold_appends(is_held))
    }

    /// Calls for room up to `needed`, and says why there is none.
    #[cold]
    pub(crate) fn no_room_yet(&self, needed: u64) -> AppendError {
        let shared = &self.shared;
        shared.needed_room.fetch_max(needed, Ordering::SeqCst);
        shared.segments_bell.call();
        match shared.no_room.lock().clone() {
            Some(reason) => AppendError::NotWritable(reason),
            None => AppendError::NoRoomYet { needed },
        }
    }

    /// Memory for units that cannot be written has an end. While they can, the thread that writes them catches up.
    #[cold]
    fn check_queues(&self) -> Result<(), NotWritable> {
        let Shared { options, queues, unwritten_queues, .. } = &*self.shared;
        match &*unwritten_queues.lock() {
            Some(reason) => Err(NotWritable::NoRoom {
                path: options.queue_dir.clone(),
                bytes: queues.pending_bytes(),
                reason: reason.clone(),
            }),
            None if queues.is_full() => Err(NotWritable::NoRoom {
                path: options.queue_dir.clone(),
                bytes: queues.pending_bytes(),
                reason: "consume queues are written more slowly than messages come".to_owned(),
            }),
            None => Ok(()),
        }
    }
}
