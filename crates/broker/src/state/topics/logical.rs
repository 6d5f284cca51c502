//! What the answer to a send to a static topic says of its queue and offset.

use std::sync::Arc;

use crate::state::topics::mapping::{Mapping, logical_or_unknown};

/// The logical queue that a gathered send is for.
///
/// It holds the mapping, so that a change of it can wait until everything that began under it is
/// stored: what landed in a queue after the queue has moved away would not be found by consumers
/// that have moved on.
#[derive(Clone, Debug)]
pub(crate) struct Logical {
    mapping: Arc<Mapping>,
    queue_id: i32,
    /// The record waits elsewhere: its offset there is no offset of the logical queue.
    is_parked: bool,
}

impl Logical {
    pub(crate) fn new(mapping: Arc<Mapping>, queue_id: i32) -> Logical {
        Logical { mapping, queue_id, is_parked: false }
    }

    /// For a message that waits elsewhere: for its time, or for the end of its transaction, which
    /// names it by its offset there.
    pub(crate) fn parked(self) -> Logical {
        Logical { is_parked: true, ..self }
    }

    /// What the answer names.
    pub(crate) fn queue_id(&self) -> i32 {
        self.queue_id
    }

    /// The logical offset of what landed at a physical one; -1 while the queue moves and its new
    /// offsets are not decided. What waits elsewhere keeps the offset that it has there.
    pub(crate) fn offset(&self, physical: i64) -> i64 {
        if self.is_parked {
            return physical;
        }
        self.mapping
            .led(self.queue_id)
            .ok()
            .and_then(<[_]>::last)
            .map_or(-1, |leader| logical_or_unknown(leader, physical))
    }
}
