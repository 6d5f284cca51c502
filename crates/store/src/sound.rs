//! What comes from the device is looked at before anybody gets it: a bit may have turned over there.
//!
//! Only the body has a sum in RocketMQ's format, and clients do not look at it. What this process wrote a moment ago is still in memory as it was
//! written, and is not looked at: the hot path pays nothing. A damaged message counts at each read that would have given it to somebody, and is named
//! at the first of them.

use protocol::LogOffset;
use protocol::properties::name;
use protocol::record::{self, RecordView, Scanned};

use crate::queue_log::ConsumeQueue;
use crate::store::Store;

/// What is wrong with the bytes of one record, if something is. `with_sum`: its body may be.
pub(crate) fn wrong_with(bytes: &[u8], at: u64, with_sum: bool) -> Option<String> {
    match record::scan(bytes, with_sum) {
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
    /// Reads that met a damaged message since the start: one counts each time that somebody would have got it.
    pub fn damaged_messages(&self) -> u64 {
        self.shared.damaged.met()
    }

    /// Whether a message of a queue, which came from the device, is what was stored; if not, it is named.
    pub(crate) fn is_sound(&self, queue: &ConsumeQueue, queue_offset: u64, bytes: &[u8], at: u64) -> bool {
        let Some(why) = wrong_with(bytes, at, true) else { return true };
        if self.shared.damaged.count(at) {
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

    /// Names a damaged record that was not found by a reader of its queue, with what is left of it.
    pub(crate) fn name_damaged(&self, view: Option<&RecordView<'_>>, at: LogOffset, why: &str) {
        if self.shared.damaged.count(at.0) {
            tracing::error!(
                topic = view.map(RecordView::topic),
                queue_id = view.map(RecordView::queue_id),
                queue_offset = view.map(RecordView::queue_offset),
                // Of one that waits for its time, or for its transaction to end.
                real_topic = view.and_then(|view| view.property(name::REAL_TOPIC)),
                log_offset = at.0,
                why,
                "a message is damaged and not given out; `gantry store verify` names all that are"
            );
        }
    }
}
