//! A log that is a copy of another one: its bytes come as they are, and queues follow from them.
//!
//! [`LogCopy`] takes blocks of the other log in order, from one thread. It checks each record
//! before the log has any byte of it, and stamps nothing. A record that is not whole yet waits in
//! memory, so that the log ends with a whole record at all times: a flush, a close or a crash finds
//! nothing half written. Recovery's code (`recovery/rebuild.rs`) puts into queues the units that
//! follow from records (`fold.rs`); the key index and the flush follow the log's end, as they do
//! for appends.
//!
//! Invariant: while a `LogCopy` is in use, nobody else appends. If somebody does, the next block is
//! refused with [`CopyError::NotNext`].

mod begin;
mod item;

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use disk::turns;
use protocol::LogOffset;
use tracing::{error, info, warn};

use crate::commit_log::RawRefused;
use crate::deleted::Deleted;
use crate::error::{AppendError, StoreError};
use crate::recovery::{Block, KnownUnits, LogFiles, Parser, Rebuild};
use crate::segment::LogSlice;
use crate::store::{Shared, Store};
pub use item::{COPIED_RECORD_BYTES_MAX, Misfit};
use item::{HEAD_BYTES, Item, item, length};

/// The buffer for a record that comes in parts keeps up to this size.
const KEPT_BYTES: usize = 256 << 10;

/// Given topics that the log has no queue of, names those whose records may hold batches (`queue.type=BatchCQ`). May wait.
pub type BatchTopics = Box<dyn Fn(&[&str]) -> Result<HashSet<String>, TopicsUnknown> + Send>;

/// Why it is not known which of new topics hold batches. A queue that was made without knowing it
/// would be of the wrong kind for good.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TopicsUnknown(pub String);

/// Bytes of another log that were not taken, or a copy that cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// Go on with the byte at `next`.
    #[error("bytes from log offset {at} on do not follow: the copy goes on at {next}")]
    NotNext {
        /// Where they begin.
        at: u64,
        /// Where the next ones have to begin.
        next: u64,
    },
    /// A block of the log lies in one file.
    #[error("{bytes} bytes from log offset {at} on go beyond the end {file_end} of their file")]
    AcrossFiles {
        /// Where they begin.
        at: u64,
        /// How many they are.
        bytes: usize,
        /// Where the file ends.
        file_end: u64,
    },
    /// Nothing is taken of a record that is not what it should be; what came before it is. Ask for
    /// it again from `at`.
    #[error("what comes at log offset {at} is not taken: {why}")]
    Refused {
        /// Where it begins.
        at: u64,
        /// What is wrong.
        why: Misfit,
    },
    /// There is no room yet, or the store takes nothing. Wait as for an append, ask
    /// [`LogCopy::next`], and go on there: that is in the block, or where it begins.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// A copy begins with a file of the other log.
    #[error("log offset {at} is not where a file of {segment_bytes} bytes begins (mappedFileSizeCommitLog)")]
    NotAFile {
        /// Where it should begin.
        at: u64,
        /// Bytes of a file.
        segment_bytes: u64,
    },
    /// Only an empty log can begin elsewhere.
    #[error("{}: holds messages; move the store away to copy the log anew", .path.display())]
    NotEmpty {
        /// A file of the log.
        path: std::path::PathBuf,
    },
    /// The first record of a topic is not taken before it is known which queues the topic has. Ask
    /// for it again from [`LogCopy::next`].
    #[error("the log has new topics, and it is not known which of them hold batches: {0}")]
    Topics(#[from] TopicsUnknown),
    /// [`LogCopy::append_at_once`] would have had to wait. Give the rest to [`LogCopy::append`], on
    /// a thread that may.
    #[error("bytes of the log need a thread that may wait")]
    NotAtOnce,
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Takes blocks of another log into a store. See the module's head.
pub struct LogCopy {
    store: Arc<Store>,
    /// Asked when a record is the first of its topic.
    batch_topics: BatchTopics,
    /// The log's end, at which the last whole record ends.
    end: u64,
    /// The bytes of the next record that have come.
    begun: Vec<u8>,
    /// It was said that a queue has no place for a record.
    has_warned: bool,
    /// The caller may wait for the device, and for what knows of topics.
    may_wait: bool,
}

impl LogCopy {
    /// Goes on where the log ends.
    pub fn new(store: Arc<Store>, batch_topics: BatchTopics) -> LogCopy {
        let end = store.end().0;
        LogCopy { store, batch_topics, end, begun: Vec::new(), has_warned: false, may_wait: true }
    }

    /// Where the next block has to begin.
    pub fn next(&self) -> LogOffset {
        LogOffset(self.end + self.begun.len() as u64)
    }

    /// Takes a block of the other log that begins at `at`. It may begin and end inside a record,
    /// and lies in one file. Whole records of it can be read when this returns, and are durable
    /// when [`Store::flushed`] has passed them.
    ///
    /// Memory only, but for a queue that another life of its topic has left: its files go.
    pub fn append(&mut self, at: LogOffset, bytes: &[u8]) -> Result<(), CopyError> {
        self.may_wait = true;
        self.append_some(at, bytes)
    }

    /// The same on a thread that may not wait: what takes the device, or what is new to the log, is
    /// refused with [`CopyError::NotAtOnce`]; what came before it is taken.
    pub fn append_at_once(&mut self, at: LogOffset, bytes: &[u8]) -> Result<(), CopyError> {
        self.may_wait = false;
        self.append_some(at, bytes)
    }

    fn append_some(&mut self, at: LogOffset, bytes: &[u8]) -> Result<(), CopyError> {
        let store = Arc::clone(&self.store);
        let Shared { log, queues, .. } = &*store.shared;
        store.writable().map_err(AppendError::from)?;
        if queues.is_backlogged() {
            if !self.may_wait {
                return Err(CopyError::NotAtOnce);
            }
            // Units are memory. The sender waits meanwhile.
            queues.flush_all().map_err(StoreError::from)?;
        }
        let end = store.end().0;
        if end != self.end {
            (self.end, self.begun) = (end, Vec::new());
        }
        let next = self.next().0;
        let Some(segment) = log.segment_at(end).filter(|_| at.0 == next) else {
            return Err(CopyError::NotNext { at: at.0, next });
        };
        let file_end = segment.end();
        if bytes.len() as u64 > file_end - next {
            return Err(CopyError::AcrossFiles { at: at.0, bytes: bytes.len(), file_end });
        }
        let to = next + bytes.len() as u64;
        // Behind the end of a file there is to be the next one.
        let needed = if to == file_end { to + 1 } else { to };
        if log.room.get() < needed {
            return Err(store.no_room_yet(needed).into());
        }
        let mut rest = bytes;
        let begun_bytes = self.begun.len();
        if begun_bytes > 0 {
            if !self.complete(&mut rest, file_end)? {
                return Ok(());
            }
            self.take_begun(begun_bytes, file_end)?;
        }
        let used = self.take(rest, file_end)?;
        self.begun.extend_from_slice(&rest[used..]);
        Ok(())
    }

    /// Takes bytes for the record that has begun. Says whether it is whole.
    fn complete(&mut self, rest: &mut &[u8], file_end: u64) -> Result<bool, CopyError> {
        // Each turn takes bytes, or is the last.
        loop {
            let length = match length(&self.begun, self.end, file_end) {
                Ok(length) => length,
                Err(why) => {
                    self.begun = Vec::new();
                    return Err(CopyError::Refused { at: self.end, why });
                }
            };
            let wanted = length.unwrap_or(HEAD_BYTES).saturating_sub(self.begun.len());
            if wanted == 0 || rest.is_empty() {
                return Ok(wanted == 0);
            }
            let (taken, left) = rest.split_at(wanted.min(rest.len()));
            self.begun.extend_from_slice(taken);
            *rest = left;
        }
    }

    /// Takes the record that came in parts. If there is no room for it now, its first `kept` bytes
    /// stay, and the sender brings the others again. A whole record would wait for the next block,
    /// and none comes while the other log ends with this record.
    fn take_begun(&mut self, kept: usize, file_end: u64) -> Result<(), CopyError> {
        let mut begun = std::mem::take(&mut self.begun);
        let taken = self.take(&begun, file_end);
        if matches!(taken, Err(CopyError::Append(_) | CopyError::NotAtOnce)) {
            begun.truncate(kept);
            self.begun = begun;
        } else {
            begun.clear();
            begun.shrink_to(KEPT_BYTES);
            self.begun = begun;
        }
        taken.map(drop)
    }

    /// Takes what is whole of bytes that begin at the log's end, and says how many bytes that is.
    fn take(&mut self, bytes: &[u8], file_end: u64) -> Result<usize, CopyError> {
        let store = Arc::clone(&self.store);
        let mut parser = Parser::new(&store.shared.options);
        let mut block = Block::default();
        let mut used = 0;
        // Each turn takes a record at least, or is the last.
        loop {
            let (from, rest) = (self.end, &bytes[used..]);
            parser.fill(from, file_end, &mut block, |at| match item(&rest[(at - from) as usize..], at, file_end) {
                Ok(Item::Record(view)) => Some(view),
                Ok(Item::Blank(_) | Item::Incomplete) | Err(_) => None,
            });
            let whole = (block.to - from) as usize;
            if whole > 0 {
                self.put(&rest[..whole], Some(&block))?;
                used += whole;
                continue;
            }
            match item(rest, from, file_end) {
                Ok(Item::Blank(blank)) => {
                    self.put(&rest[..blank], None)?;
                    return Ok(used + blank);
                }
                Ok(Item::Record(_) | Item::Incomplete) => return Ok(used),
                Err(why) => return Err(CopyError::Refused { at: from, why }),
            }
        }
    }

    /// Puts bytes at the log's end, and what follows from the records in them into queues.
    fn put(&mut self, bytes: &[u8], block: Option<&Block<'_>>) -> Result<(), CopyError> {
        let store = Arc::clone(&self.store);
        let Shared { log, queues, confirmed, flush_bell, segments_bell, last_timestamp, .. } = &*store.shared;
        let files = LogFiles { segments: log.segments(), segment_bytes: log.segment_bytes, is_new: false };
        let places = block.iter().flat_map(|block| &block.places);
        let new: BTreeSet<&str> =
            places.map(|(_, place)| place.topic).filter(|topic| !queues.has_topic(topic)).collect();
        if !new.is_empty() && !self.may_wait {
            return Err(CopyError::NotAtOnce);
        }
        let batch_topics = if new.is_empty() { HashSet::new() } else { (self.batch_topics)(&Vec::from_iter(new))? };
        let timestamp = block.map_or(0, |block| block.last_timestamp);
        let (from, has_warned) = (self.end, &mut self.has_warned);
        let derive = || {
            let Some(block) = block else { return };
            // As it is now: nobody deletes a topic while nothing can be appended.
            let deleted = Deleted::recall(store.journal());
            let known = KnownUnits::of(queues.count());
            let mut rebuild = Rebuild::new(&files, queues, &deleted, &batch_topics, i64::MIN, known);
            rebuild.is_live = true;
            if let Err(error) = rebuild.put_all(block) {
                // The log has the records. A start reads it again, and nobody may believe these
                // queues until then.
                error!(%error, "queues cannot follow the log: ending the process");
                turns::end_process();
            }
            say(rebuild, has_warned);
        };
        let appended = match &log.pool {
            None => log.append_raw::<false>(from, bytes, timestamp, derive),
            Some(_) => log.append_raw::<true>(from, bytes, timestamp, derive),
        };
        let is_call_due = match appended {
            Ok(is_call_due) => is_call_due,
            Err(RawRefused::NotNext { end }) => return Err(CopyError::NotNext { at: from, next: end }),
            Err(RawRefused::Append(AppendError::NoRoomYet { needed })) => return Err(store.no_room_yet(needed).into()),
            Err(RawRefused::Append(error)) => return Err(error.into()),
        };
        self.end += bytes.len() as u64;
        match &log.pool {
            None => {
                last_timestamp.fetch_max(timestamp, Ordering::Release);
                confirmed.raise_written(log.end.get());
                flush_bell.call();
            }
            Some(pool) => pool.bell.call(),
        }
        if is_call_due {
            segments_bell.call();
        }
        Ok(())
    }
}

/// Logs what is strange of queues, the first time for records without a place.
fn say(rebuild: Rebuild<'_>, has_warned: &mut bool) {
    let (mended, not_mended) = rebuild.findings();
    mended.for_each(|finding| info!(finding, "a queue follows the copied log"));
    for finding in not_mended {
        if !std::mem::replace(has_warned, true) {
            warn!(finding, "a queue lacks what came before a record of the copied log");
        }
    }
}

impl Store {
    /// Bytes of the log as they are, records and blank ends of files, for a copy: from `at` on, up
    /// to `max`, all of one file. None where the log has none. May wait for the device.
    pub fn raw_bytes(&self, at: LogOffset, max: usize) -> Result<Option<LogSlice>, StoreError> {
        let slice = self.lent_bytes(at, max);
        if let Some(slice) = &slice {
            slice.bring_in()?;
        }
        Ok(slice)
    }

    /// The same for a caller that only hands them to the kernel, of bytes that were appended a
    /// moment ago: nothing makes sure that they are in memory, which takes two calls of the kernel.
    /// One that the device does not give is the kernel's error then.
    pub fn lent_bytes(&self, at: LogOffset, max: usize) -> Option<LogSlice> {
        let log = &self.shared.log;
        let segment = log.segment_at(at.0)?;
        let left = log.end.get().min(segment.end()).saturating_sub(at.0);
        let bytes = usize::try_from(left).unwrap_or(usize::MAX).min(max);
        LogSlice::new(&segment, at.0, bytes).filter(|_| bytes > 0)
    }
}
