//! Operators' requests: 26, 315, 323, 907 and the like.

use super::field::headers;

headers! {
    /// The answer to 26: the version of the configuration.
    GetBrokerConfigReply<'a> {
        version: &'a str = "version",
    }

    /// 315: one figure of the broker.
    ViewBrokerStats<'a> {
        stats_name: &'a str = "statsName",
        stats_key: &'a str = "statsKey",
    }

    /// 323: look at a half message again.
    ResumeCheckHalfMessage<'a> {
        topic: Option<&'a str> = "topic",
        msg_id: Option<&'a str> = "msgId",
    }
}
