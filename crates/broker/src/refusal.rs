//! A refusal: the answer of a broker that will not do what it was asked. It is counted, never logged.

use protocol::code::ResponseCode;
use protocol::request::FieldError;

/// A response code and the sentence that goes with it.
///
/// Codes and wording are Apache's, because clients and operators recognise them; where Apache's sentence does not say which field,
/// value or limit is meant, ours adds that behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What the client acts upon.
    pub code: ResponseCode,
    /// What a person reads.
    pub remark: String,
}

/// What Apache adds where its FAQ may help. Tests of applications compare whole remarks, so ours are the same.
pub(crate) const SEE_FAQ: &str = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details.";

impl Refusal {
    /// Both halves.
    pub fn new(code: ResponseCode, remark: impl Into<String>) -> Refusal {
        Refusal { code, remark: remark.into() }
    }

    /// The request is fine, the broker is not: the world failed underneath it.
    pub fn failed(error: impl std::fmt::Display) -> Refusal {
        Refusal::new(ResponseCode::SystemError, error.to_string())
    }

    /// 17, in Apache's words.
    pub(crate) fn topic_not_exist(topic: &str) -> Refusal {
        Refusal::new(ResponseCode::TopicNotExist, format!("topic[{topic}] not exist, apply first please!{SEE_FAQ}"))
    }

    /// 26, in Apache's words.
    pub(crate) fn group_not_exist(group: &str) -> Refusal {
        Refusal::new(
            ResponseCode::SubscriptionGroupNotExist,
            format!("subscription group not exist, {group} {SEE_FAQ}"),
        )
    }
}

impl From<FieldError> for Refusal {
    /// Apache answers an unreadable header with a system error that quotes a Java exception; ours names the field.
    fn from(error: FieldError) -> Refusal {
        Refusal::new(ResponseCode::SystemError, error.to_string())
    }
}
