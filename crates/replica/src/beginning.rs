//! What a slave with an empty log asks its master before it follows.
//!
//! Apache's master gives a slave that reports 0 its last file only. So a slave that wants all of the log never reports 0: it asks where
//! the log begins (28), and, if that is at 0, for the first record (33), and reports the end of that.

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

/// For each of the two requests.
const PATIENCE: Duration = Duration::from_secs(3);
const MIN: &str = "commitLogMinOffset";
const MAX: &str = "commitLogMaxOffset";

/// How a master's log begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// The log has nothing.
    Empty,
    /// It begins at 0, with this record.
    First(Bytes),
    /// Its first files are gone.
    At(LogOffset),
}

/// Why it is not known.
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
    #[error("the address of the master is not known")]
    NoMaster,
}

/// A question on its way.
pub type Asking = Pin<Box<dyn Future<Output = Result<Beginning, AskError>> + Send>>;

/// Asks the master whose log is to be copied how it begins. It knows the address of the main port.
#[derive(Clone)]
pub struct AskBeginning(Arc<dyn Fn() -> Asking + Send + Sync>);

impl AskBeginning {
    /// Asks in this way.
    pub fn new(ask: impl Fn() -> Asking + Send + Sync + 'static) -> AskBeginning {
        AskBeginning(Arc::new(ask))
    }

    /// Asks.
    pub(crate) fn ask(&self) -> Asking {
        (self.0)()
    }
}

impl fmt::Debug for AskBeginning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AskBeginning")
    }
}

/// Asks a broker at its main port, by requests that brokers of Apache answer.
pub async fn ask(client: &Client, master: &str) -> Result<Beginning, AskError> {
    let answer = client.call(master, request::GET_BROKER_RUNTIME_INFO, &(), Bytes::new(), PATIENCE).await?;
    let answer = accepted(request::GET_BROKER_RUNTIME_INFO, answer)?;
    let (min, max) = range(&answer.body)?;
    if min > 0 {
        return Ok(Beginning::At(LogOffset(min)));
    }
    if max == 0 {
        return Ok(Beginning::Empty);
    }
    let first = ViewMessage { topic: None, offset: 0 };
    let answer = client.call(master, request::VIEW_MESSAGE_BY_ID, &first, Bytes::new(), PATIENCE).await?;
    Ok(Beginning::First(accepted(request::VIEW_MESSAGE_BY_ID, answer)?.body))
}

fn accepted(request: i32, answer: Response) -> Result<Response, AskError> {
    if answer.code == ResponseCode::Success as i32 {
        return Ok(answer);
    }
    Err(AskError::Refused { request, code: answer.code, remark: answer.remark.unwrap_or_default() })
}

/// Where the log begins and ends, in the answer to 28.
fn range(body: &[u8]) -> Result<(u64, u64), AskError> {
    let table: KvTable = fastjson::from_slice(body).map_err(|_| AskError::Unclear { name: MIN })?;
    // Apache says -1 of a log without a file.
    let number = |name| {
        let text = table.table.get(name).map(|text| text.trim());
        let stated = text.and_then(|text| text.parse::<i64>().ok()).filter(|number| *number >= -1);
        stated.map(|number| u64::try_from(number).unwrap_or(0)).ok_or(AskError::Unclear { name })
    };
    Ok((number(MIN)?, number(MAX)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_of_a_log_as_brokers_tell_it() {
        let told = |min: &str, max: &str| range(format!(r#"{{"table":{{{min}{max}"x":"y"}}}}"#).as_bytes());
        let min = r#""commitLogMinOffset":"1073741824","#;
        let max = r#""commitLogMaxOffset":"1073742069","#;
        assert_eq!(told(min, max).unwrap(), (1_073_741_824, 1_073_742_069));
        assert_eq!(told(r#""commitLogMinOffset":"-1","#, r#""commitLogMaxOffset":"0","#).unwrap(), (0, 0));
        assert!(matches!(told("", max), Err(AskError::Unclear { name: MIN })));
        assert!(matches!(told(min, r#""commitLogMaxOffset":"soon","#), Err(AskError::Unclear { name: MAX })));
        assert!(matches!(range(b"no table"), Err(AskError::Unclear { .. })));
    }
}
