//! What a slave asks its master about its log, at the master's main port and by requests that brokers of Apache answer.
//!
//! The plain stream takes any report: a master of Apache whose log ends below it, begins above it, or is another one goes on as if the logs
//! agreed. So a slave asks where the master's log begins and ends (28), and compares the last record of its own with the master's (33),
//! before it reports. With an empty log it asks for the first record (33) and reports the end of that: a report of 0 brings the last file
//! only.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use net::{CallError, Client, Response};
use protocol::LogOffset;
use protocol::body::KvTable;
use protocol::code::{ResponseCode, request};
use protocol::fastjson;
use protocol::request::ViewMessage;
use store::COPIED_RECORD_BYTES_MAX;

/// For each request.
const PATIENCE: Duration = Duration::from_secs(3);
/// For a record, which may have as many bytes as [`RECORD_FRAME_BYTES_MAX`].
const RECORD_PATIENCE: Duration = Duration::from_secs(15);
/// The longest answer to the question for a record: the longest one that a slave takes, and a header.
pub const RECORD_FRAME_BYTES_MAX: usize = COPIED_RECORD_BYTES_MAX as usize + (64 << 10);
const MIN: &str = "commitLogMinOffset";
const MAX: &str = "commitLogMaxOffset";
/// A key of our own in the answer to 28, which says that a master gives its journal.
pub const HAS_JOURNAL: &str = "replicaJournal";
/// The key in the answer to 28 by which a master of Gantry says the highest version of its stream (`wire/own.rs`) that it speaks at `haListenPort`. No other
/// broker has it.
pub const STREAM: &str = "replicaStream";

/// Where a master's log begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where its first file begins.
    pub min: LogOffset,
    /// Where it ended when it was asked.
    pub max: LogOffset,
    /// The master gives its journal (30002): it is one of ours.
    pub has_journal: bool,
}

impl Extent {
    /// Whether a copy that ends at `end` can go on with this log. The master has to be asked after `end` was looked at: its log grows.
    pub fn continues(&self, end: LogOffset) -> Result<(), Apart> {
        if self.max < end {
            return Err(Apart::Shorter { max: self.max, end });
        }
        if self.min > end {
            return Err(Apart::Removed { min: self.min, end });
        }
        Ok(())
    }
}

/// Why a copy cannot go on with the master's log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Apart {
    /// The master has less than its copy.
    #[error(
        "the master's log ends at log offset {max}, before the log here, which ends at {end}: the master has lost messages, or is another one; \
         make a master of this broker, or move its store away to copy the log anew"
    )]
    Shorter {
        /// Where the master's log ends.
        max: LogOffset,
        /// Where the log here ends.
        end: LogOffset,
    },
    /// The master does not have any more what comes next.
    #[error(
        "the master's log begins at log offset {min}, behind the log here, which ends at {end}: the master has removed the files between; move \
         the store of this broker away to copy the log anew"
    )]
    Removed {
        /// Where the master's log begins.
        min: LogOffset,
        /// Where the log here ends.
        end: LogOffset,
    },
    /// The last record here is another one there.
    #[error(
        "the record at log offset {at}, the last one here, is another one in the master's log: the logs differ; move the store of this broker \
         away to copy the log anew"
    )]
    Differs {
        /// Where it begins.
        at: LogOffset,
    },
    /// There is no record there.
    #[error(
        "no record begins in the master's log at log offset {at}, where the last one here does ({remark}): the logs differ; move the store of \
         this broker away to copy the log anew"
    )]
    NoRecord {
        /// Where it begins here.
        at: LogOffset,
        /// What the master says.
        remark: String,
    },
}

/// Why the master does not say how its log lies.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The master does not answer.
    #[error(transparent)]
    Call(#[from] CallError),
    /// It answers that it will not.
    #[error("the master refuses request {request}: {code} {remark}")]
    Refused {
        /// What was asked.
        request: i32,
        /// The answer's code.
        code: i32,
        /// What it says.
        remark: String,
    },
    /// The answer does not say it.
    #[error("the master's answer to 28 has no {name} that is a log offset")]
    Unclear {
        /// What is missing.
        name: &'static str,
    },
    /// The address of the master's main port is not known yet.
    #[error(
        "the address of the master is not known: name servers list no master of the set {set:?} of the cluster {cluster:?} (brokerName, \
         brokerClusterName), which this slave is of"
    )]
    NoMaster {
        /// `brokerName`.
        set: String,
        /// `brokerClusterName`.
        cluster: String,
    },
    /// That broker is a slave.
    #[error("the broker at {address} is no master (any more, or yet)")]
    IsNoMaster {
        /// Its main port.
        address: String,
    },
    /// The master has been deposed, or this broker has been a master that the set has forgotten.
    #[error(
        "the broker at {address} is master of epoch {theirs}, and this broker has followed epoch {ours}, which is later: it is not followed. If it is to be \
         the master, `gantry admin switchMaster --old-master-is-down` gives it a later epoch; otherwise it follows the master of epoch {ours}"
    )]
    EarlierEpoch {
        /// Its main port.
        address: String,
        /// Its epoch.
        theirs: u64,
        /// The highest that is known here.
        ours: u64,
    },
    /// What is here and not there is cut off by the next start.
    #[error(
        "the log here goes beyond {at}, where that of the master of epoch {epoch} goes on with other messages: it is cut there"
    )]
    Cuts {
        /// Where the log here will end.
        at: LogOffset,
        /// The master's.
        epoch: u64,
    },
    /// It cannot be cut off.
    #[error(
        "the log here goes beyond {at}, where that of the master of epoch {epoch} goes on with other messages, and cannot be cut: {why}; move the store of this \
         broker away to copy the log anew"
    )]
    CannotCut {
        /// Where it should end.
        at: LogOffset,
        /// The master's.
        epoch: u64,
        /// What the store says.
        why: String,
    },
    /// Its epochs cannot be taken over.
    #[error("the epochs of the master at {address} are not taken over: {why}")]
    Epochs {
        /// Its main port.
        address: String,
        /// Why.
        why: String,
    },
}

/// A question on its way.
pub type Asking<T> = Pin<Box<dyn Future<Output = Result<T, AskError>> + Send>>;

/// Asks the master whose log is copied. It knows the address of the main port.
#[derive(Clone)]
pub struct AskMaster {
    extent: Arc<dyn Fn() -> Asking<Extent> + Send + Sync>,
    record: Arc<dyn Fn(LogOffset) -> Asking<Bytes> + Send + Sync>,
    is_own: Arc<dyn Fn() -> Asking<bool> + Send + Sync>,
}

impl AskMaster {
    /// Asks in these ways where the log lies, and for the record that begins at a log offset.
    pub fn new(
        extent: impl Fn() -> Asking<Extent> + Send + Sync + 'static,
        record: impl Fn(LogOffset) -> Asking<Bytes> + Send + Sync + 'static,
    ) -> AskMaster {
        let is_own = Arc::new(|| -> Asking<bool> { Box::pin(async { Ok(false) }) });
        AskMaster { extent: Arc::new(extent), record: Arc::new(record), is_own }
    }

    /// Asks in this way, too, whether the master speaks the stream of Gantry. Without it none does.
    #[must_use]
    pub fn with_streams(self, is_own: impl Fn() -> Asking<bool> + Send + Sync + 'static) -> AskMaster {
        AskMaster { is_own: Arc::new(is_own), ..self }
    }

    pub(crate) fn extent(&self) -> Asking<Extent> {
        (self.extent)()
    }

    pub(crate) fn is_own(&self) -> Asking<bool> {
        (self.is_own)()
    }

    pub(crate) fn record(&self, at: LogOffset) -> Asking<Bytes> {
        (self.record)(at)
    }
}

impl fmt::Debug for AskMaster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AskMaster")
    }
}

/// Asks a broker at its main port where its log lies.
pub async fn extent(client: &Client, master: &str) -> Result<Extent, AskError> {
    Ok(about(client, master).await?.0)
}

/// The same, and whether it is a broker of ours, which answers more requests than Apache's.
pub async fn about(client: &Client, master: &str) -> Result<(Extent, bool), AskError> {
    let answer = client.call(master, request::GET_BROKER_RUNTIME_INFO, &(), Bytes::new(), PATIENCE).await?;
    let body = accepted(request::GET_BROKER_RUNTIME_INFO, answer)?.body;
    let is_ours = fastjson::from_slice::<KvTable>(&body).is_ok_and(|told| told.table.contains_key("gantryVersion"));
    Ok((read_extent(&body)?, is_ours))
}

/// Asks a broker at its main port whether it gives its log on the stream of Gantry as well.
pub async fn is_own(client: &Client, master: &str) -> Result<bool, AskError> {
    let answer = client.call(master, request::GET_BROKER_RUNTIME_INFO, &(), Bytes::new(), PATIENCE).await?;
    let table = accepted(request::GET_BROKER_RUNTIME_INFO, answer)?.body;
    let table: KvTable = fastjson::from_slice(&table).map_err(|_| AskError::Unclear { name: MIN })?;
    Ok(table
        .table
        .get(STREAM)
        .and_then(|version| version.trim().parse::<u16>().ok())
        .is_some_and(|version| version > 0))
}

/// Asks a broker at its main port for the record that begins at a log offset, as it is stored. `client` takes frames of [`RECORD_FRAME_BYTES_MAX`].
pub async fn record(client: &Client, master: &str, at: LogOffset) -> Result<Bytes, AskError> {
    let asked = ViewMessage { topic: None, offset: i64::try_from(at.0).unwrap_or(i64::MAX) };
    let answer = client.call(master, request::VIEW_MESSAGE_BY_ID, &asked, Bytes::new(), RECORD_PATIENCE).await?;
    Ok(accepted(request::VIEW_MESSAGE_BY_ID, answer)?.body)
}

fn accepted(request: i32, answer: Response) -> Result<Response, AskError> {
    if answer.code == ResponseCode::Success as i32 {
        return Ok(answer);
    }
    Err(AskError::Refused { request, code: answer.code, remark: answer.remark.unwrap_or_default() })
}

/// Where the log begins and ends, in the answer to 28.
fn read_extent(body: &[u8]) -> Result<Extent, AskError> {
    let table: KvTable = fastjson::from_slice(body).map_err(|_| AskError::Unclear { name: MIN })?;
    // Apache says -1 of a log without a file.
    let number = |name| {
        let text = table.table.get(name).map(|text| text.trim());
        let stated = text.and_then(|text| text.parse::<i64>().ok()).filter(|number| *number >= -1);
        stated.map(|number| LogOffset(u64::try_from(number).unwrap_or(0))).ok_or(AskError::Unclear { name })
    };
    let has_journal = table.table.get(HAS_JOURNAL).is_some_and(|text| text == "1");
    Ok(Extent { min: number(MIN)?, max: number(MAX)?, has_journal })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(min: u64, max: u64) -> Extent {
        Extent { min: LogOffset(min), max: LogOffset(max), has_journal: false }
    }

    #[test]
    fn the_extent_of_a_log_as_brokers_tell_it() {
        let told = |min: &str, max: &str| read_extent(format!(r#"{{"table":{{{min}{max}"x":"y"}}}}"#).as_bytes());
        let min = r#""commitLogMinOffset":"1073741824","#;
        let max = r#""commitLogMaxOffset":"1073742069","#;
        assert_eq!(told(min, max).unwrap(), extent(1_073_741_824, 1_073_742_069));
        assert_eq!(told(r#""commitLogMinOffset":"-1","#, r#""commitLogMaxOffset":"0","#).unwrap(), extent(0, 0));
        let ours = r#""replicaJournal":"1","#;
        assert!(told(min, &format!("{max}{ours}")).unwrap().has_journal && !told(min, max).unwrap().has_journal);
        assert!(matches!(told("", max), Err(AskError::Unclear { name: MIN })));
        assert!(matches!(told(min, r#""commitLogMaxOffset":"soon","#), Err(AskError::Unclear { name: MAX })));
        assert!(matches!(read_extent(b"no table"), Err(AskError::Unclear { .. })));
    }

    #[test]
    fn a_log_continues_a_copy_that_ends_in_it_or_where_it_begins_or_ends() {
        let continues = |end| extent(100, 200).continues(LogOffset(end));
        assert_eq!([100, 150, 200].map(continues), [Ok(()), Ok(()), Ok(())]);
        assert_eq!(continues(99), Err(Apart::Removed { min: LogOffset(100), end: LogOffset(99) }));
        assert_eq!(continues(201), Err(Apart::Shorter { max: LogOffset(200), end: LogOffset(201) }));
    }
}
