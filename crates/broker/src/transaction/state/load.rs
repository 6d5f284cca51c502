//! What a start has to know of half messages: read from the half queue and the queue of ends, from where the group has committed.

use std::hash::BuildHasher;
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
use crate::hashing::{self, Hashing};
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

    let mut copied = Copied { open: HashMap::new(), hashing: hashing::new() };
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
        let mut replaced = None;
        let is_ended = ended.has(offset);
        if unit.is_message() {
            let is_read = with_record(store, unit.at, |view| {
                replaced = copied.replaced(store, &view);
                if is_ended {
                    return;
                }
                // While its producer may not be asked yet, Apache stores a half message again, and ends the one that the producer knows.
                let original =
                    view.property(name::TRAN_PREPARED_QUEUE_OFFSET).and_then(|text| text.parse::<u64>().ok());
                if !original.is_some_and(|original| ended.has(original)) {
                    copied.note(&view, offset, unit.at);
                    let checks = asked.get(&offset).copied().unwrap_or_else(|| checks_by_apache(&view));
                    let wait_ms = first_wait_ms(&view, timeout_ms, kept_ms);
                    // The log's times never go back: after the clock stood ahead, they are ahead of it.
                    taken = Some((checks, view.store_timestamp().min(now).saturating_add(wait_ms)));
                }
            });
            if !is_read && !is_ended {
                // Open until it can be looked at.
                taken = Some((0, i64::MIN));
            }
        }
        if let Some(half) = replaced {
            ledger.forget(half.offset);
            open.remove(&half.at.0);
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

/// How often Apache had asked about a half message when it stored this copy of it; 0 if it is none.
fn checks_by_apache(view: &RecordView<'_>) -> u32 {
    view.property(name::TRANSACTION_CHECK_TIMES).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// An open half message that a copy may follow.
struct Half {
    offset: u64,
    at: LogOffset,
    checks: u32,
}

/// Open half messages of which a copy may come, by the hash of the id that their producer gave them.
///
/// When Apache asks about a half message it stores a copy, counts the question in it, and is done with the one before: the copy alone is
/// ended or asked about from then on. How far it is done stands in the offset of its group, which is old after a crash and on a slave that has
/// become a master. Asked about all of them, a producer would commit its message as often.
struct Copied {
    open: HashMap<u64, Half>,
    hashing: Hashing,
}

impl Copied {
    /// Keeps in mind that this one is open.
    fn note(&mut self, view: &RecordView<'_>, offset: u64, at: LogOffset) {
        if let Some(id) = view.property(name::UNIQ_KEY) {
            self.open.insert(self.hashing.hash_one(id), Half { offset, at, checks: checks_by_apache(view) });
        }
    }

    /// The one in whose place Apache has put this copy.
    fn replaced(&mut self, store: &Arc<Store>, view: &RecordView<'_>) -> Option<Half> {
        let before = checks_by_apache(view).checked_sub(1)?;
        let id = view.property(name::UNIQ_KEY)?;
        let hash = self.hashing.hash_one(id);
        let half = self.open.get(&hash).filter(|half| half.checks == before)?;
        let mut is_same = false;
        with_record(store, half.at, |half| is_same = half.property(name::UNIQ_KEY) == Some(id));
        if is_same { self.open.remove(&hash) } else { None }
    }
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
