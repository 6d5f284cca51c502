//! A refusal: the answer of a broker that will not do what it was asked. It is counted, never logged.

use std::time::Duration;

use config::StoreSettings;
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

/// What is suggested to whom nothing better can be said: what is in the way is over within that, or there is more of it than the broker can do.
pub(crate) const SOON: Duration = Duration::from_millis(100);

/// What Apache adds where its FAQ may help. Tests of applications compare whole remarks, so ours are the same.
pub(crate) const SEE_FAQ: &str = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details.";

/// Apache's sentence with 14, to which the reason is added.
pub(crate) const NOT_AVAILABLE: &str = "service not available now. It may be caused by one of the following reasons: the broker's disk is full, \
                             messages are put to the slave, message store has been shut down, etc.";

impl Refusal {
    /// Both halves.
    pub fn new(code: ResponseCode, remark: impl Into<String>) -> Refusal {
        Refusal { code, remark: remark.into() }
    }

    /// Not now: a limit is reached. The remark says after `wait` that it may be otherwise.
    pub(crate) fn busy(what: impl std::fmt::Display, wait: Duration) -> Refusal {
        Refusal::new(ResponseCode::SystemBusy, format!("{what}; try again in {} ms", wait.as_millis()))
    }

    /// The request is fine, the broker is not: the world failed underneath it.
    pub fn failed(error: impl std::fmt::Display) -> Refusal {
        Refusal::new(ResponseCode::SystemError, error.to_string())
    }

    /// Code 3 in Apache's words, leading blank included.
    pub(crate) fn not_registered(code: i32) -> Refusal {
        Refusal::new(ResponseCode::RequestCodeNotSupported, format!(" request type {code} not supported"))
    }

    /// 13: the message itself cannot be kept.
    pub(crate) fn illegal(remark: impl Into<String>) -> Refusal {
        Refusal::new(ResponseCode::MessageIllegal, remark)
    }

    /// 13 in Apache's words, followed by what was found.
    pub(crate) fn too_large(settings: &StoreSettings, body_bytes: usize, properties_bytes: usize) -> Refusal {
        let body_bytes_max = settings.max_message_size;
        Refusal::illegal(format!(
            "the message is illegal, maybe msg body or properties length not matched. msg body length limit {body_bytes_max}B, msg \
             properties length limit 32KB. The body has {body_bytes}B, the properties {properties_bytes}B"
        ))
    }

    /// 23: a subscription that a request brings and that cannot be read.
    pub(crate) fn unparsed(why: &str) -> Refusal {
        Refusal::new(ResponseCode::SubscriptionParseFailed, format!("parse the consumer's subscription failed: {why}"))
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
