//! Reads whole queues of a store: what is there, for a run to hold against what was promised.

use protocol::record::{self, Scanned};
use store::{ConsumeQueue, ReadLimits, Store};

use crate::verdict::{Report, Verdict};

/// So much at a time, from the device if need be.
pub const LIMITS: ReadLimits = ReadLimits {
    max_count: 32,
    count_memory: 32,
    bytes_memory: 1 << 20,
    count_disk: 32,
    bytes_disk: 1 << 20,
    scan_bytes: 16_000,
    may_fault: true,
};

/// A message that a queue shows.
pub struct Seen {
    /// See [`id_of`].
    pub id: u64,
    /// Its number in the queue, as it says itself, and the queue too.
    pub offset: u64,
    /// When, by the store.
    pub stored_ms: i64,
    pub body: Vec<u8>,
}

/// Which message has this body, as `log_run::body` makes it; 0: none.
pub fn id_of(body: &[u8]) -> u64 {
    body.first_chunk().map_or(0, |id| u64::from_be_bytes(*id))
}

/// All that a queue shows. What cannot be read, and what is no record, is found.
pub fn read(store: &Store, queue: &ConsumeQueue, report: &mut Report) -> Vec<Seen> {
    let at = format!("{}/{}", queue.topic(), queue.id());
    let (mut all, mut next) = (Vec::new(), queue.min_offset() as i64);
    // Ends at the queue's end, or where a read does not get on.
    loop {
        let mut slices = Vec::new();
        let read = store.read(queue, next, &LIMITS, &mut |_| true, &mut slices);
        if let Some(failure) = read.failure {
            report.find(Verdict::Lost, format!("{at} at {next}: {failure}"));
        }
        for slice in slices {
            let Ok(Scanned::Record(view)) = record::scan(slice.as_ref(), true) else {
                report.find(Verdict::Foreign, format!("no record in {at} from {next} on, at {slice:?}"));
                continue;
            };
            let number = view.queue_offset();
            let unit = queue.unit_at(number).ok().flatten();
            if unit.is_none_or(|unit| unit.at.0 != view.log_offset()) {
                let what =
                    format!("{at} shows a message from {next} on that says it is number {number}: that is {unit:?}");
                report.find(Verdict::Unordered, what);
            }
            all.push(Seen {
                id: id_of(view.body()),
                offset: number,
                stored_ms: view.store_timestamp(),
                body: view.body().to_vec(),
            });
        }
        if read.next <= next {
            return all;
        }
        next = read.next;
    }
}
