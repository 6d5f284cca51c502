//! What a start has to know of half messages: read from the half queue and the queue of ends, from where the group has committed.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use protocol::LogOffset;
use protocol::names;
use protocol::properties::name;
use protocol::record::{self, RecordView, Scanned};
use protocol::sys_flag;
use store::{ConsumeQueue, RecordAt, Store, StoreError, Unit};

use super::ledger::Ledger;
use super::{GROUP, Waits, ended_offsets, first_wait_ms};
use crate::state::offsets::Offsets;
use crate::state::topics::Topic;

/// Units read at once.
const UNITS: usize = 1024;

/// Half queue offsets from a first one on, a bit each.
struct Marks {
    first: u64,
    words: Vec<u64>,
}

impl Marks {
    /// For offsets from `first` up to `end`.
    fn new(first: u64, end: u64) -> Marks {
        Marks { first, words: vec![0; (end.saturating_sub(first) as usize).div_ceil(64)] }
    }

    fn set(&mut self, offset: u64) {
        if let Some(place) = offset.checked_sub(self.first)
            && let Some(word) = self.words.get_mut((place / 64) as usize)
        {
            *word |= 1 << (place % 64);
        }
    }

    fn has(&self, offset: u64) -> bool {
        let place = offset.checked_sub(self.first);
        place.is_some_and(|place| {
            self.words.get((place / 64) as usize).is_some_and(|word| word >> (place % 64) & 1 == 1)
        })
    }
}

/// The ledger as the log has it, and the half message whose commit lost its end in a crash, if there is one. It is claimed: its end has to be
/// written before anybody is served. `asked`: how often producers were asked, by offset in the half queue.
pub(super) fn load(
    store: &Arc<Store>,
    offsets: &Offsets,
    (half, op): (&Topic, &Topic),
    asked: &HashMap<u64, u32>,
    Waits { timeout_ms, kept_ms, now }: Waits,
) -> Result<(Ledger, Option<u64>), StoreError> {
    let half_queue = &half.lane(store, 0)?.queue;
    let op_queue = &op.lane(store, 0)?.queue;
    let half_from = first_offset(offsets, names::TRANS_HALF_TOPIC, half_queue);
    let op_from = first_offset(offsets, names::TRANS_OP_HALF_TOPIC, op_queue);
    let mut ledger = Ledger::new(half_from, op_from);
    let mut ended = Marks::new(half_from, half_queue.max_offset());

    for_each_unit(store, op_queue, op_from, |offset, unit| {
        let mut highest = 0;
        with_record(store, unit.at, |view| {
            for half_offset in ended_offsets(view.body()) {
                highest = highest.max(half_offset);
                ended.set(half_offset);
            }
        });
        ledger.note_end(offset, highest);
    })?;

    // By log offset, to tell a commit that lost its end; and where the last record of ours begins, which is no later than such a commit.
    let mut open = HashSet::new();
    let mut last = op_queue
        .max_offset()
        .checked_sub(1)
        .and_then(|offset| op_queue.unit_at(offset).ok().flatten())
        .map(|unit| unit.at);
    for_each_unit(store, half_queue, half_from, |offset, unit| {
        last = last.max(Some(unit.at));
        let mut taken = None;
        if unit.is_message() && !ended.has(offset) {
            let is_read = with_record(store, unit.at, |view| {
                // Apache stores a half message again when it has asked about it, and ends the one that the producer knows.
                let original =
                    view.property(name::TRAN_PREPARED_QUEUE_OFFSET).and_then(|text| text.parse::<u64>().ok());
                if !original.is_some_and(|original| ended.has(original)) {
                    let by_apache = view.property(name::TRANSACTION_CHECK_TIMES).and_then(|text| text.parse().ok());
                    let checks = asked.get(&offset).copied().or(by_apache).unwrap_or(0);
                    let wait_ms = first_wait_ms(&view, timeout_ms, kept_ms);
                    // The log's times never go back: after the clock stood ahead, they are ahead of it.
                    taken = Some((checks, view.store_timestamp().min(now).saturating_add(wait_ms)));
                }
            });
            if !is_read {
                // Open until it can be looked at.
                taken = Some((0, i64::MIN));
            }
        }
        match taken {
            Some((checks, due)) => {
                open.insert(unit.at.0);
                ledger.take_in(unit.at, checks, due);
            }
            None => ledger.skip(),
        }
    })?;
    let mut lost_end = None;
    if let Some(last) = last.filter(|_| !open.is_empty()) {
        lost_end = claim_committed(store, &mut ledger, &open, last)?;
    }
    if ledger.len() > 0 {
        tracing::info!(open = ledger.len(), "half messages wait for their producers");
    }
    Ok((ledger, lost_end))
}

/// A crash can cut the log between a committed message and its end. Both are one group, so the message is then the last record of the log,
/// behind every half message and every end; a start writes the end before it lets anybody append.
fn claim_committed(
    store: &Store,
    ledger: &mut Ledger,
    open: &HashSet<u64>,
    last: LogOffset,
) -> Result<Option<u64>, StoreError> {
    let mut committed = None;
    let scanned = store.scan(last, &mut |_, view| {
        let prepared = u64::try_from(view.prepared_offset()).ok();
        let is_commit = sys_flag::transaction(view.sys_flag()) == sys_flag::TRANSACTION_COMMIT;
        committed = committed.or(prepared.filter(|at| is_commit && open.contains(at)));
    });
    match scanned {
        // A start after a crash has looked for damage, so there was none, and no end was lost.
        Err(StoreError::Malformed { why, .. }) => tracing::error!(why, "the last record of a transaction is damaged"),
        scanned => scanned?,
    }
    let offset = committed.and_then(|at| ledger.open().find(|open| open.at.0 == at)).map(|open| open.offset);
    if let Some(offset) = offset {
        tracing::info!(half_queue_offset = offset, "a committed message lost its end in a crash; it stays committed");
        ledger.claim(offset);
    }
    Ok(offset)
}

/// What the group has committed, within what the queue has.
fn first_offset(offsets: &Offsets, topic: &str, queue: &ConsumeQueue) -> u64 {
    let committed = offsets.committed(GROUP, topic, 0).and_then(|offset| u64::try_from(offset).ok()).unwrap_or(0);
    committed.clamp(queue.min_offset(), queue.max_offset().max(queue.min_offset()))
}

fn for_each_unit(
    store: &Store,
    queue: &ConsumeQueue,
    from: u64,
    mut f: impl FnMut(u64, Unit),
) -> Result<(), StoreError> {
    let mut units = Vec::new();
    let mut offset = from;
    // Ends with the queue, which nobody extends during a start.
    loop {
        units.clear();
        store.units(queue, offset, UNITS, true, &mut units)?;
        if units.is_empty() {
            return Ok(());
        }
        for unit in &units {
            f(offset, *unit);
            offset += 1;
        }
    }
}

/// False when the device does not give the record: it may later. One that is gone or damaged is nothing to wait for.
fn with_record(store: &Store, at: LogOffset, f: impl FnOnce(RecordView<'_>)) -> bool {
    match store.stored_record_cold(at) {
        Ok(RecordAt::Record(slice)) => {
            if let Ok(Scanned::Record(view)) = record::scan(slice.as_ref(), false) {
                f(view);
            }
            true
        }
        Ok(RecordAt::Gone) => true,
        Ok(RecordAt::Damaged) => {
            // Of a half message: it cannot be committed. Of ends: who they ended is asked about once more.
            tracing::error!(at = at.0, "a record of a transaction is damaged; what it says is not known");
            true
        }
        Err(error) => {
            tracing::error!(%error, "a record of a transaction cannot be read");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_know_what_lies_in_their_range_only() {
        let mut marks = Marks::new(100, 300);
        for offset in [99, 100, 163, 164, 299, 5000] {
            marks.set(offset);
        }
        let set: Vec<u64> = (0..6000).filter(|offset| marks.has(*offset)).collect();
        assert_eq!(set, [100, 163, 164, 299]);
    }
}
