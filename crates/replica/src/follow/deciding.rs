//! What a slave decides about its master, without socket, clock and thread: whether the master's log goes on where the log here ends, what
//! follows from that, and how a block goes to the log. The driver and the simulator ask and wait, and nothing else.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use protocol::LogOffset;
use protocol::code::ResponseCode;
use protocol::record;
use store::{AppendError, COPIED_RECORD_BYTES_MAX, CopyError, LogCopy, NotWritable, Store, StoreError};

use super::greeting::NotGreeted;
use super::{Block, Broken, FollowEnd};
use crate::asking::{Apart, AskError, Extent};

/// The longest record that is compared with the master's: no slave has a longer one.
const COMPARED_BYTES_MAX: usize = COPIED_RECORD_BYTES_MAX as usize;
/// For so long the master has to be without our last record until the logs count as different.
const MISSING_FOR: Duration = Duration::from_secs(3);

/// Why an attempt to follow ended.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The stream of the master does not follow.
    #[error(transparent)]
    Broken(#[from] Broken),
    /// The log here does not take what came.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// The master does not say how its log lies.
    #[error("cannot learn how the master's log lies: {0}")]
    Ask(#[from] AskError),
    /// The master's log is another one.
    #[error(transparent)]
    Apart(#[from] Apart),
    /// The store.
    #[error("the end of the log here cannot be read: {0}")]
    Store(#[from] StoreError),
    /// The master does not answer with our last record, which it may do a moment later.
    #[error(
        "the master has no record at log offset {at}, where the last one here begins ({remark}); it is asked again"
    )]
    Missing {
        /// Where the record begins.
        at: LogOffset,
        /// What the master says.
        remark: String,
    },
    /// The last record here is not what was stored.
    #[error(
        "the record at log offset {at}, the last one here, is damaged ({why}): move the store of this broker away to copy the log anew; \
         gantry store verify names all that is damaged"
    )]
    Damaged {
        /// Where the record begins.
        at: LogOffset,
        /// What is wrong with it.
        why: String,
    },
    /// The answer to the question for the first record is not one record.
    #[error("the first record of the master's log is not whole: {bytes} bytes came")]
    FirstRecord {
        /// Its length.
        bytes: usize,
    },
    /// The two logs have files of different sizes.
    #[error(
        "the master's log begins at {at}, where no file of {segment_bytes} bytes begins: set mappedFileSizeCommitLog as there and copy the log \
         anew"
    )]
    NotAFile {
        /// Where the master's log begins.
        at: u64,
        /// How long files are here.
        segment_bytes: u64,
    },
    /// The two brokers do not know each other.
    #[error(transparent)]
    NotGreeted(#[from] NotGreeted),
    /// There is no connection.
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    /// The connection ended by an error.
    #[error("the connection has failed: {0}")]
    Socket(io::Error),
    /// The connection was closed.
    #[error("the master has closed the connection; its log says why")]
    Closed,
    /// The log here has no record, and has to begin there.
    #[error("the log here is empty and begins elsewhere")]
    BeginAt(LogOffset),
    /// Another master is to be followed.
    #[error("the master is another one now")]
    OtherMaster,
    /// A thread panicked.
    #[error("a block was not put into the log: a bug")]
    Bug,
}

impl Failure {
    /// Whether the failure is an end for the owner: the store closes, or the log has to begin elsewhere.
    pub fn into_end(self, segment_bytes: u64, from_last_file: bool) -> Result<FollowEnd, Failure> {
        if let Failure::Copy(CopyError::Append(AppendError::NotWritable(NotWritable::Closed))) = self {
            return Ok(FollowEnd::StoreClosed);
        }
        let at = if let Failure::BeginAt(at) = self {
            at
        } else if let Failure::Broken(Broken::BeginsAt { at }) = self
            && from_last_file
        {
            LogOffset(at)
        } else {
            return Err(self);
        };
        if at.0.is_multiple_of(segment_bytes) {
            return Ok(FollowEnd::BeginAt(at));
        }
        Err(Failure::NotAFile { at: at.0, segment_bytes })
    }
}

/// The log of a slave. It is looked at before the master is asked, whose log grows.
#[derive(Clone, Copy, Debug)]
pub struct OwnLog {
    /// Where it begins.
    pub min: LogOffset,
    /// Where it ends.
    pub end: LogOffset,
    /// How long its files are.
    pub segment_bytes: u64,
}

impl OwnLog {
    /// As it is now.
    pub fn of(store: &Store) -> OwnLog {
        OwnLog { min: store.min_offset(), end: store.end(), segment_bytes: store.options().segment_bytes }
    }

    /// Whether the first record of the master's log is to be asked for and put into this log by itself: a report of 0 would bring the last file.
    pub fn wants_first(&self, from_last_file: bool) -> bool {
        self.end.0 == 0 && !from_last_file
    }

    /// Whether a master's log goes on where this one ends, as far as its ends tell. A master of Apache takes any report, and goes on anywhere.
    pub fn continued_by(&self, extent: Extent, from_last_file: bool) -> Result<(), Failure> {
        let OwnLog { min, end, segment_bytes } = *self;
        let Err(apart) = extent.continues(end) else { return Ok(()) };
        if min < end {
            return Err(apart.into());
        }
        // The log here has no record, so it may begin elsewhere.
        let last = LogOffset(extent.max.0 - extent.max.0 % segment_bytes.max(1)).max(extent.min);
        Err(Failure::BeginAt(if from_last_file { last } else { extent.min }))
    }
}

/// Whether the master has a first record to ask for, at log offset 0.
pub fn has_first(extent: Extent) -> Result<bool, Failure> {
    if extent.min.0 > 0 {
        return Err(Failure::BeginAt(extent.min));
    }
    Ok(extent.max.0 > 0)
}

/// The last record of a log that can be compared with the master's, if the master still has its place. May wait for the device.
pub fn record_to_compare(store: &Store, extent: Extent) -> Result<Option<(LogOffset, Vec<u8>)>, StoreError> {
    let Some((at, bytes)) = store.last_record(COMPARED_BYTES_MAX)? else { return Ok(None) };
    let own = store.raw_bytes(at, bytes)?.map(|slice| (at, slice.as_ref().to_vec()));
    Ok(own.filter(|(at, _)| *at >= extent.min))
}

/// Whether the master answers with the record that lies at `at` here.
pub fn compare(at: LogOffset, own: &[u8], answer: Result<Bytes, AskError>) -> Result<(), Failure> {
    match answer {
        Ok(record) if *record == *own => Ok(()),
        Ok(_) => match record::scan(own, true) {
            Ok(_) => Err(Apart::Differs { at }.into()),
            Err(corrupt) => Err(Failure::Damaged { at, why: corrupt.to_string() }),
        },
        Err(AskError::Refused { code, remark, .. }) if code == ResponseCode::SystemError as i32 => {
            Err(Apart::NoRecord { at, remark }.into())
        }
        Err(error) => Err(error.into()),
    }
}

/// A master that does not answer with our last record may do so a moment later.
#[derive(Debug, Default)]
pub struct Missing(Option<(LogOffset, Duration)>);

impl Missing {
    /// Takes a failure as it is, but for a record that was not missing before: what an operator is told to do about that is not undone.
    pub fn weigh(&mut self, failure: Failure, now: Duration) -> Failure {
        let Failure::Apart(Apart::NoRecord { at, remark }) = failure else { return failure };
        match self.0.filter(|(known, _)| *known == at) {
            Some((_, since)) if now.saturating_sub(since) >= MISSING_FOR => Apart::NoRecord { at, remark }.into(),
            since => {
                self.0 = since.or(Some((at, now)));
                Failure::Missing { at, remark }
            }
        }
    }
}

/// What became of a block.
#[derive(Debug)]
pub enum Put {
    /// The log has taken all of it.
    All,
    /// The log has taken some; there is more.
    Some,
    /// The log takes nothing at this moment.
    Waits(AppendError),
}

/// How bytes are put into the log: [`LogCopy::append`] or [`LogCopy::append_at_once`].
pub type Append = fn(&mut LogCopy, LogOffset, &[u8]) -> Result<(), CopyError>;

/// Puts the next bytes of a block into the log, of one file at most. `has_waited` begins with false, and is this function's.
pub fn put_some(
    copy: &mut LogCopy,
    append: Append,
    segment_bytes: u64,
    block: &Block,
    has_waited: &mut bool,
) -> Result<Put, CopyError> {
    let next = copy.next().0;
    let from = next.checked_sub(block.at).and_then(|from| usize::try_from(from).ok());
    let Some(rest) = from.and_then(|from| block.bytes.get(from..)) else {
        return Err(CopyError::NotNext { at: block.at, next });
    };
    // A record that is whole may wait for room when all bytes are taken.
    if rest.is_empty() && !*has_waited {
        return Ok(Put::All);
    }
    let in_file = usize::try_from(segment_bytes - next % segment_bytes).unwrap_or(usize::MAX);
    match append(copy, LogOffset(next), &rest[..rest.len().min(in_file)]) {
        Ok(()) => {
            *has_waited = false;
            Ok(Put::Some)
        }
        Err(CopyError::Append(
            error @ (AppendError::NotWritable(NotWritable::Closed) | AppendError::TooLong { .. }),
        )) => Err(error.into()),
        Err(CopyError::Append(error)) => {
            *has_waited = true;
            Ok(Put::Waits(error))
        }
        Err(error) => Err(error),
    }
}
