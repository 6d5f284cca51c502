//! Records on their way into their consume queues.

use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use crate::queue_log::{ConsumeQueue, Unit};

/// Units of consume queues, read a stretch at a time: a scan after a crash finds nearly all of them in their place, and one
/// system call for each would cost more than all the rest of it.
#[derive(Default)]
pub(super) struct KnownUnits {
    /// By the queue's address, which the queue beside it keeps its own.
    stretches: HashMap<usize, Stretch, FixedState>,
}

struct Stretch {
    _queue: Arc<ConsumeQueue>,
    first: u64,
    units: Vec<Unit>,
}

impl KnownUnits {
    /// A page's worth.
    const UNITS: usize = 204;
    /// Queues remembered, some 30 MB in all. With more of them stretches are read more than once.
    const QUEUES_MAX: usize = 4096;

    /// Whether the queue has that unit at that offset. Where it cannot be told, it has not.
    pub(super) fn has(&mut self, queue: &Arc<ConsumeQueue>, offset: u64, unit: Unit) -> bool {
        if offset < queue.min_offset() || offset >= queue.max_offset() {
            return false;
        }
        let key = Arc::as_ptr(queue) as usize;
        if self.stretches.len() >= Self::QUEUES_MAX && !self.stretches.contains_key(&key) {
            self.stretches.clear();
        }
        let stretch = self.stretches.entry(key).or_insert_with(|| Stretch {
            _queue: Arc::clone(queue),
            first: 0,
            units: Vec::new(),
        });
        if !(stretch.first..stretch.first + stretch.units.len() as u64).contains(&offset) {
            stretch.first = offset;
            stretch.units.clear();
            if queue.read_units(offset, Self::UNITS, true, &mut stretch.units).is_err() {
                return false;
            }
        }
        stretch.units.get((offset - stretch.first) as usize) == Some(&unit)
    }
}
