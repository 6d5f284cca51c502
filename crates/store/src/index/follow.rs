//! The thread `index`: reads what was appended and puts its keys into the index, many at a time.

use std::time::Duration;

use protocol::record::{self, Scanned};
use tracing::warn;

use super::{Key, KeyIndex, hash_of, keys};
use crate::commit_log::CommitLog;
use crate::error::StoreError;
use crate::journal::Journal;
use crate::read::SCAN_STRETCH;
use crate::segment::Walk;
use crate::store::Shared;

/// Keys that are put at once: the more there are, the fewer pages of slots are written twice.
const KEYS_MAX: usize = 32 << 10;
/// Bytes of the log that are read for them at most.
const BYTES_MAX: u64 = 64 << 20;
/// How long keys gather, unless somebody asks.
const GATHER: Duration = Duration::from_millis(500);
/// After so many rounds that found something, and when there is nothing more, the index is brought to the device.
const ROUNDS_UNSYNCED: usize = 20;

/// Follows the log until the store closes.
pub(crate) fn run(shared: &Shared, index: &KeyIndex, journal: &Journal) {
    let mut unsynced = 0;
    let mut keys = Vec::new();
    let mut is_failing = false;
    while !shared.is_stopping() {
        let behind = shared.log.end.get() > index.indexed.get();
        let done = match behind {
            true => {
                unsynced += 1;
                take(&shared.log, index, &mut keys)
            }
            false => Ok(()),
        };
        let is_idle = shared.log.end.get() <= index.indexed.get();
        let is_due = unsynced > 0 && (unsynced >= ROUNDS_UNSYNCED || !behind);
        // An index must not know what the log could still lose.
        let is_safe = shared.flushed.get() >= index.indexed.get();
        let done =
            done.and_then(|()| if is_due && is_safe { index.sync(journal).map(|()| unsynced = 0) } else { Ok(()) });
        if let Err(error) = &done
            && !is_failing
        {
            warn!(%error, "the key index cannot be written");
        }
        is_failing = done.is_err();
        if is_failing || (is_idle && unsynced > 0) {
            index.bell.rest(GATHER);
        } else if is_idle {
            // An idle store keeps no buffer.
            keys = Vec::new();
            index.bell.wait(None, || shared.is_stopping() || shared.log.end.get() > index.indexed.get());
            if !shared.is_stopping() && !index.is_asked() {
                index.bell.rest(GATHER);
            }
        }
    }
}

/// Reads on in the log and puts what it finds.
fn take(log: &CommitLog, index: &KeyIndex, found: &mut Vec<Key>) -> Result<(), StoreError> {
    let from = index.indexed.get();
    let known = index.last_known();
    found.clear();
    let to = read(log, from, |record, at| {
        if known.is_none_or(|known| at > known) {
            let store_timestamp = record.store_timestamp();
            keys::all_of(record, &mut |kind, key| {
                found.push(Key { hash: hash_of(record.topic(), kind, key), at, store_timestamp });
            });
        }
        found.len() < KEYS_MAX && at - from < BYTES_MAX
    })?;
    index.put(found)?;
    index.indexed.advance(to);
    Ok(())
}

/// Shows records from `from` on until `visit` wants no more, and says where it ended.
fn read(
    log: &CommitLog,
    from: u64,
    mut visit: impl FnMut(&record::RecordView<'_>, u64) -> bool,
) -> Result<u64, StoreError> {
    let end = log.end.get();
    let mut at = from.max(log.min());
    while at < end {
        let Some(segment) = log.segment_at(at) else {
            // Retention was faster.
            let min = log.min();
            if min <= at {
                break;
            }
            at = min;
            continue;
        };
        let mut walk = Walk::new(&segment, SCAN_STRETCH);
        while at < end.min(segment.end()) {
            match record::scan(walk.record_at(at)?, false) {
                Ok(Scanned::Record(view)) => {
                    let record_at = at;
                    at += view.total_size() as u64;
                    if !visit(&view, record_at) {
                        return Ok(at);
                    }
                }
                Ok(Scanned::Blank { .. }) => at = segment.end(),
                Ok(Scanned::Nothing) | Err(_) => {
                    warn!(path = %segment.path().display(), at, "no record begins here: what follows in the file is not in the key index");
                    at = segment.end();
                }
            }
        }
    }
    Ok(at)
}
