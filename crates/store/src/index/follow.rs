//! The thread `index`: puts the keys of what was appended into the index, many at a time.

use std::time::{Duration, Instant};

use journal::Journal;
use protocol::record::RecordView;
use tracing::warn;

use super::ahead::Ahead;
use super::files::KeyIndex;
use crate::commit_log::CommitLog;
use crate::error::StoreError;
use crate::fold::{Follower, IndexKey, KeyOf};
use crate::read::walk;
use crate::store::Shared;

/// Keys that are put at once, some 10 MiB of memory with those that are handed on meanwhile: the more there are, the fewer pages of slots
/// are written twice. The slots of a file are 4,883 pages.
const KEYS_MAX: usize = 128 << 10;
/// Bytes of the log that are read for them at most.
const BYTES_MAX: u64 = 256 << 20;
/// How long keys gather before they are put, unless somebody asks or the store closes.
const GATHER: Duration = Duration::from_secs(10);
/// How closely a busy log is followed: what has to be read in it is to be read while the processor's cache still has it, and what is
/// handed on is to find room.
const PACE: Duration = Duration::from_millis(20);
/// And one that is not busy.
const PACE_AT_REST: Duration = Duration::from_millis(100);
/// A log is busy if so many bytes came since the last look.
const BUSY_BYTES: u64 = 128 << 10;
/// After so many puts, and when there is nothing more, the index is brought to the device.
const PUTS_UNSYNCED: usize = 3;
/// Puts of a store that closes: half a million keys. Where more is missing (a log that got its index just now), the next start goes on.
const LAST_PUTS_MAX: usize = 4;

/// Follows the log until the store closes.
pub(crate) fn run(shared: &Shared, index: &KeyIndex, journal: &Journal) {
    let mut gathered = Gathered::behind(index.indexed.get());
    let mut unsynced = 0;
    let mut is_failing = false;
    while !shared.is_stopping() {
        let read_before = gathered.to;
        let done = gathered.go_on(shared, index).and_then(|()| {
            if gathered.is_due(index) {
                gathered.put(index)?;
                unsynced += 1;
            }
            // An index must not know what the log could still lose.
            let is_safe = shared.flushed.get() >= index.indexed.get();
            let is_at_rest = gathered.to == read_before && gathered.is_empty();
            if unsynced > 0 && (unsynced >= PUTS_UNSYNCED || is_at_rest) && is_safe {
                index.sync(journal)?;
                unsynced = 0;
            }
            Ok(())
        });
        if let Err(error) = done {
            if !is_failing {
                warn!(%error, "the key index cannot be written");
            }
            is_failing = true;
            index.forget_progress(journal);
            gathered = Gathered::behind(index.indexed.get());
            index.bell.rest(GATHER);
            continue;
        }
        is_failing = false;
        let done_to = gathered.to;
        let is_behind = || shared.log.end.get() > done_to;
        if gathered.is_full() || (index.is_asked() && (is_behind() || !gathered.is_empty())) {
            continue;
        }
        if gathered.is_empty() && unsynced == 0 && !is_behind() {
            // An idle store keeps no buffers.
            gathered.give_up_buffers(&shared.log);
            index.bell.wait(None, || shared.is_stopping() || is_behind());
        } else {
            let is_busy = gathered.to - read_before >= BUSY_BYTES;
            index.bell.rest(if is_busy { PACE } else { PACE_AT_REST }.min(gathered.time_left()));
        }
    }
}

/// Puts what is missing when the log has ended and the thread has: an Apache broker that takes the store over does not look for it.
pub(crate) fn finish(shared: &Shared, index: &KeyIndex) -> Result<(), StoreError> {
    let mut gathered = Gathered::behind(index.indexed.get());
    for _ in 0..LAST_PUTS_MAX {
        gathered.go_on(shared, index)?;
        gathered.put(index)?;
        if index.indexed.get() >= shared.log.end.get() {
            break;
        }
    }
    Ok(())
}

/// Keys of what lies in the log and is not in the index yet.
struct Gathered {
    keys: Vec<IndexKey>,
    /// They are those of the log from here, which is where the index ends, to there.
    from: u64,
    to: u64,
    /// When gathering began after the last put.
    since: Instant,
    /// What appends handed on, of which so many runs are done.
    ahead: Ahead,
    runs_done: usize,
    /// Where the log ended when they did.
    ahead_to: u64,
}

impl Gathered {
    fn behind(indexed: u64) -> Gathered {
        Gathered {
            keys: Vec::new(),
            from: indexed,
            to: indexed,
            since: Instant::now(),
            ahead: Ahead::default(),
            runs_done: 0,
            ahead_to: 0,
        }
    }

    fn is_empty(&self) -> bool {
        self.to == self.from
    }

    fn is_full(&self) -> bool {
        self.keys.len() >= KEYS_MAX || self.to - self.from >= BYTES_MAX
    }

    fn time_left(&self) -> Duration {
        if self.is_empty() { GATHER } else { GATHER.saturating_sub(self.since.elapsed()) }
    }

    fn is_due(&self, index: &KeyIndex) -> bool {
        !self.is_empty() && (self.is_full() || index.is_asked() || self.time_left().is_zero())
    }

    /// Goes on to the log's end, or until there is enough: by what appends handed on, and by reading what lies between.
    fn go_on(&mut self, shared: &Shared, index: &KeyIndex) -> Result<(), StoreError> {
        let log = &shared.log;
        let was_empty = self.is_empty();
        if self.to >= self.ahead_to {
            self.take(log);
        }
        // What waits in a write pool is not in the log yet.
        let end = log.readable_to(self.ahead_to);
        while !self.is_full() && self.to < end {
            let before = self.to;
            match self.ahead.runs.get_mut(self.runs_done) {
                Some(run) if run.from == before && run.to > end => {
                    let keys = &self.ahead.keys[run.keys.clone()];
                    let count = keys.partition_point(|key| key.at < end);
                    self.keys.extend_from_slice(&keys[..count]);
                    // The rest of it is for the next time.
                    (run.from, run.keys.start) = (end, run.keys.start + count);
                    self.to = end;
                }
                Some(run) if run.from == before => {
                    self.keys.extend_from_slice(&self.ahead.keys[run.keys.clone()]);
                    self.to = run.to;
                }
                Some(run) if run.from > before => {
                    let from = run.from.min(end);
                    self.read(shared, index, from)?;
                }
                // Who began to read in the middle of a run reads to its end.
                Some(run) if run.to > before => {
                    let to = run.to.min(end);
                    self.read(shared, index, to)?;
                }
                Some(_) => {
                    self.runs_done += 1;
                    continue;
                }
                None => self.read(shared, index, end)?,
            }
            if self.to == before {
                // What should lie there does not: the caller tries again.
                break;
            }
        }
        if was_empty {
            self.since = Instant::now();
        }
        Ok(())
    }

    /// Takes what appends have handed on, and leaves them room for more.
    fn take(&mut self, log: &CommitLog) {
        self.ahead.clear();
        if self.ahead.keys.capacity() == 0 {
            self.ahead = Ahead::with_room();
        }
        self.ahead_to = log.swap_ahead(&mut self.ahead);
        self.runs_done = 0;
    }

    fn give_up_buffers(&mut self, log: &CommitLog) {
        self.keys = Vec::new();
        self.ahead = Ahead::default();
        log.swap_ahead(&mut Ahead::default());
    }

    /// Reads on in the log, to `end` at most.
    fn read(&mut self, shared: &Shared, index: &KeyIndex, end: u64) -> Result<(), StoreError> {
        let (known, fold) = (index.last_known(), shared.options.fold());
        let Gathered { keys: found, from, to, .. } = self;
        let visit = |record: &RecordView<'_>, at: u64| {
            // Nobody is served a record that says that it belongs elsewhere.
            if record.log_offset() == at && known.is_none_or(|known| at > known) {
                fold.show(record, found);
            }
            found.len() < KEYS_MAX && at - *from < BYTES_MAX
        };
        *to = walk(&shared.log, *to, end, visit, |path, from, to, _| {
            warn!(path = %path.display(), from, to, "the log is damaged; what lies there is not in the key index");
        })?;
        Ok(())
    }

    fn put(&mut self, index: &KeyIndex) -> Result<(), StoreError> {
        index.put(&self.keys)?;
        index.indexed.advance(self.to);
        self.keys.clear();
        self.from = self.to;
        Ok(())
    }
}

impl Follower<'_> for Vec<IndexKey> {
    const TAKES_KEYS: bool = true;

    fn key(&mut self, key: IndexKey, _: KeyOf) {
        self.push(key);
    }
}
