//! What comes from the device is looked at before anybody gets it: a bit may have turned over there.
//!
//! Only the body has a sum in RocketMQ's format, and clients do not look at it. What this process wrote a moment ago is still in memory as it was
//! written, and is not looked at: the hot path pays nothing.

use std::sync::atomic::{AtomicU64, Ordering};

use protocol::record::{self, Scanned};

use crate::queue_log::ConsumeQueue;
use crate::store::Store;

/// Lines of log output about damaged messages; more are counted only.
const NAMED_MAX: u64 = 1000;

/// Damaged messages that somebody wanted. Relaxed: the number stands alone.
#[derive(Default)]
pub(crate) struct Damaged(AtomicU64);

impl Damaged {
    fn count(&self) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed) < NAMED_MAX
    }
}

/// What is wrong with the bytes of one record, if something is.
fn wrong_with(bytes: &[u8], at: u64) -> Option<String> {
    match record::scan(bytes, true) {
        Ok(Scanned::Record(view)) if view.total_size() == bytes.len() && view.log_offset() == at => None,
        Ok(Scanned::Record(view)) => Some(format!(
            "the record says that it is {} bytes at {}, and should be {} at {at}",
            view.total_size(),
            view.log_offset(),
            bytes.len()
        )),
        Ok(Scanned::Blank { .. } | Scanned::Nothing) => Some("no record is there".to_owned()),
        Err(corrupt) => Some(corrupt.to_string()),
    }
}

impl Store {
    /// Damaged messages that were met by reads since the start: a message counts each time that somebody wants it.
    pub fn damaged_messages(&self) -> u64 {
        self.shared.damaged.0.load(Ordering::Relaxed)
    }

    /// Whether a message that came from the device is what was stored; if not, it is named.
    pub(crate) fn is_sound(&self, queue: &ConsumeQueue, queue_offset: u64, bytes: &[u8], at: u64) -> bool {
        if !self.shared.options.check_crc_on_read {
            return true;
        }
        let Some(why) = wrong_with(bytes, at) else { return true };
        if self.shared.damaged.count() {
            tracing::error!(
                topic = queue.topic(),
                queue_id = queue.id(),
                queue_offset,
                log_offset = at,
                why,
                "a message is damaged and passed over; `gantry store verify` names all that are"
            );
        }
        false
    }

    /// The same of a record that was not found through a queue.
    pub(crate) fn is_sound_record(&self, bytes: &[u8], at: u64) -> bool {
        if !self.shared.options.check_crc_on_read {
            return true;
        }
        let Some(why) = wrong_with(bytes, at) else { return true };
        if self.shared.damaged.count() {
            let view = match record::scan(bytes, false) {
                Ok(Scanned::Record(view)) => Some(view),
                Ok(Scanned::Blank { .. } | Scanned::Nothing) | Err(_) => None,
            };
            tracing::error!(
                topic = view.map(|view| view.topic()),
                queue_id = view.map(|view| view.queue_id()),
                queue_offset = view.map(|view| view.queue_offset()),
                log_offset = at,
                why,
                "a message is damaged and not given out; `gantry store verify` names all that are"
            );
        }
        false
    }
}
