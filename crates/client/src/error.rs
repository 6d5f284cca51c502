//! What can go wrong for a user of the client.

use net::{CallError, Response};
use protocol::code::ResponseCode;

/// Why something did not happen.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ClientError {
    /// The name servers know no queue of this topic.
    #[error("no route for topic {topic}")]
    NoRoute {
        /// Which topic.
        topic: String,
    },
    /// The route does not say where this broker is.
    #[error("no address is known for broker {broker}")]
    NoAddress {
        /// Which broker.
        broker: String,
    },
    /// No broker says that it leads this queue of a static topic.
    #[error("no broker leads queue {queue_id} of static topic {topic}")]
    NoLeader {
        /// Which topic.
        topic: String,
        /// Which of its logical queues.
        queue_id: i32,
    },
    /// The request did not bring a response.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The other side answered, and said no.
    #[error("{address} refused with code {code}{}: {}", name(*code), remark.trim())]
    Refused {
        /// Who.
        address: String,
        /// RocketMQ's response code.
        code: i32,
        /// Its sentence.
        remark: String,
    },
    /// The other side's answer is not what it should be.
    #[error("{what} cannot be read: {cause}")]
    Malformed {
        /// Which part.
        what: &'static str,
        /// Why not.
        cause: String,
    },
    /// What was given cannot be sent.
    #[error("{0}")]
    Invalid(String),
    /// Nobody knows what became of a message that was handed over: whoever should have sent it ended before it was answered, with the
    /// runtime or by a bug.
    #[error("given up before it was answered: the runtime, or the task that should have sent it, has ended")]
    GivenUp,
    /// Every attempt failed.
    #[error("not sent after {attempts} attempts: {last}")]
    Exhausted {
        /// How many there were.
        attempts: usize,
        /// The last one's error.
        last: Box<ClientError>,
    },
}

/// RocketMQ's name of a response code in brackets, if it has one.
fn name(code: i32) -> String {
    ResponseCode::from_i32(code).map_or_else(String::new, |code| format!(" ({})", code.name()))
}

impl ClientError {
    /// The error of a response that is not success.
    pub(crate) fn refused(address: &str, response: Response) -> ClientError {
        ClientError::Refused {
            address: address.to_owned(),
            code: response.code,
            remark: response.remark.unwrap_or_default(),
        }
    }

    pub(crate) fn malformed(what: &'static str, cause: impl std::fmt::Display) -> ClientError {
        ClientError::Malformed { what, cause: cause.to_string() }
    }

    /// The response code, when there was a response.
    pub fn code(&self) -> Option<i32> {
        match self {
            ClientError::Refused { code, .. } => Some(*code),
            ClientError::Exhausted { last, .. } => last.code(),
            ClientError::NoRoute { .. }
            | ClientError::NoAddress { .. }
            | ClientError::NoLeader { .. }
            | ClientError::Call(_)
            | ClientError::Malformed { .. }
            | ClientError::Invalid(_)
            | ClientError::GivenUp => None,
        }
    }
}
