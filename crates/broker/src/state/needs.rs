//! Where the log is needed from, by the consume queues.

use std::sync::atomic::{AtomicBool, Ordering};

use protocol::LogOffset;
use store::Store;

/// Asks consume queues which part of the log is still needed.
#[derive(Debug, Default)]
pub(crate) struct Needs {
    /// It was logged that the device does not tell. Relaxed: it stands alone.
    has_told: AtomicBool,
}

impl Needs {
    /// Where the first message of a queue lies from an offset on. What is below the queue's beginning is gone already. Where the device does not
    /// say it, it may be anywhere: then all of the log is needed.
    pub(crate) fn first_from(&self, store: &Store, topic: &str, queue_id: i32, offset: u64) -> Option<LogOffset> {
        let queue = store.existing_queue(topic, u32::try_from(queue_id).ok()?)?;
        let first = offset.max(queue.min_offset());
        if first >= queue.max_offset() {
            return None;
        }
        let mut units = Vec::new();
        match queue.read_units(first, 2, true, &mut units) {
            // A damaged unit leads too far, or is none: until it is mended, its message may lie anywhere.
            Ok(_) => Some(match units[..] {
                [unit, next] if unit.is_message() && unit.at >= next.at => store.min_offset(),
                [unit, ..] if unit.is_message() && unit.end() > queue.log_end() => store.min_offset(),
                [unit, ..] => unit.at,
                [] => store.min_offset(),
            }),
            Err(error) => {
                // A reader of the queue gets the error, too. Once, since this is asked every few seconds.
                if !self.has_told.swap(true, Ordering::Relaxed) {
                    let what =
                        "cannot tell what of the log is still needed; nothing goes while the queue cannot be read";
                    tracing::error!(topic, queue_id, %error, "{what}");
                }
                Some(store.min_offset())
            }
        }
    }
}
