//! Why a question was not answered, or a change not made.

use client::ClientError;
use protocol::code::ResponseCode;
use protocol::fastjson::JsonError;
use protocol::request::FieldError;

/// The result of a question or a change.
pub type Result<T, E = OperatorError> = std::result::Result<T, E>;

/// Why a question was not answered, or a change not made.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// Nobody to ask.
    #[error("no name server is given: use -n HOST:PORT or set NAMESRV_ADDR")]
    NoNameServer,
    /// A call failed, or was refused: then the address, the code and the remark are in it.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The fields of an answer are not what they should be.
    #[error(transparent)]
    Fields(#[from] FieldError),
    /// The same of JSON in it, or a value cannot be written as such.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// There is nothing of that name or at that place.
    #[error("{0}")]
    NotFound(String),
    /// What was given makes no sense, whatever the cluster is like.
    #[error("{0}")]
    Invalid(String),
    /// It makes sense, and cannot be done as the cluster is now.
    #[error("{0}")]
    Unfit(String),
    /// A body cannot be read.
    #[error(transparent)]
    Body(#[from] JsonError),
    /// What was being done when something else failed.
    #[error("{doing}")]
    During {
        /// A sentence.
        doing: String,
        /// What failed.
        #[source]
        cause: Box<OperatorError>,
    },
}

impl OperatorError {
    /// The same, with what was being done.
    pub(crate) fn during(self, doing: impl Into<String>) -> OperatorError {
        OperatorError::During { doing: doing.into(), cause: Box::new(self) }
    }

    /// The error of the call, if it was one.
    pub fn client(&self) -> Option<&ClientError> {
        match self {
            OperatorError::Client(error) => Some(error),
            OperatorError::During { cause, .. } => cause.client(),
            OperatorError::NoNameServer
            | OperatorError::Fields(_)
            | OperatorError::Json(_)
            | OperatorError::Body(_)
            | OperatorError::NotFound(_)
            | OperatorError::Invalid(_)
            | OperatorError::Unfit(_) => None,
        }
    }

    /// The response code, if the other side answered and said no.
    pub fn code(&self) -> Option<i32> {
        self.client().and_then(ClientError::code)
    }

    /// Whether the other side said this.
    pub(crate) fn says(&self, code: ResponseCode) -> bool {
        self.code() == Some(code as i32)
    }

    /// Whether a broker said that no consumer of a group is online.
    pub fn is_offline(&self) -> bool {
        self.says(ResponseCode::ConsumerNotOnline)
    }
}

/// Returns an error of that kind unless something is true.
macro_rules! ensure {
    ($is_true:expr, $kind:ident, $($text:tt)+) => {
        if !$is_true {
            return Err($crate::error::OperatorError::$kind(format!($($text)+)));
        }
    };
}
pub(crate) use ensure;
