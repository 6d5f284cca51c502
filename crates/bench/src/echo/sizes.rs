//! How large a send and its answer are on the wire.

use bytes::BytesMut;
use protocol::code::{ResponseCode, request};
use protocol::frame::Serialization;
use protocol::header::{FLAG_RESPONSE, Head, write_frame};
use protocol::request::{SendMessage, SendReply, SendReplyExtra};

use crate::driver::HeaderKind;

/// Bytes of frames, lengths and headers included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Of the request.
    pub request: usize,
    /// Of the reply.
    pub reply: usize,
}

/// A send of one message to a topic of a run, and the answer of a broker that is named `broker-a`. Numbers have as many digits as in the
/// middle of a run.
pub fn of_send(message_bytes: usize, header: HeaderKind) -> Sizes {
    let serialization = match header {
        HeaderKind::Json => Serialization::Json,
        HeaderKind::Binary => Serialization::Binary,
    };
    let opaque = 100_000;
    let topic = format!("bench-{:016x}-0", u64::MAX);
    let properties = format!("UNIQ_KEY\u{1}{}\u{2}WAIT\u{1}true\u{2}", "0".repeat(32));
    let send = SendMessage {
        producer_group: &format!("{topic}-producer-0"),
        topic: &topic,
        default_topic: protocol::names::AUTO_CREATE_TOPIC,
        default_topic_queue_nums: 4,
        queue_id: 7,
        born_timestamp: 1_700_000_000_000,
        properties: Some(&properties),
        reconsume_times: Some(0),
        unit_mode: Some(false),
        batch: Some(false),
        broker_name: Some("broker-a"),
        ..SendMessage::default()
    };
    let mut frame = BytesMut::new();
    let head = Head { code: request::SEND_MESSAGE_V2, flag: 0, opaque, remark: None };
    write_frame(&mut frame, serialization, &head, &send, message_bytes);
    let asked = frame.len() + message_bytes;
    let reply = SendReply {
        msg_id: &"0".repeat(32),
        queue_id: 7,
        queue_offset: 100_000,
        transaction_id: None,
        batch_uniq_id: None,
        recall_handle: None,
    };
    let extra = SendReplyExtra { msg_region: "DefaultRegion", trace_on: Some("true") };
    let mut frame = BytesMut::new();
    let head = Head { code: ResponseCode::Success as i32, flag: FLAG_RESPONSE, opaque, remark: None };
    write_frame(&mut frame, serialization, &head, &(reply, extra), 0);
    Sizes { request: asked, reply: frame.len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_send_is_as_large_as_its_body_and_its_header_which_is_smaller_in_the_short_form() {
        let (json, short) = (of_send(1024, HeaderKind::Json), of_send(1024, HeaderKind::Binary));
        assert_eq!(of_send(2048, HeaderKind::Json).request - json.request, 1024);
        assert!(short.request > 1024 + 100 && json.request > short.request && json.request < 1024 + 1000, "{json:?}");
        assert!(short.reply > 60 && json.reply > short.reply && json.reply < 500, "{json:?} {short:?}");
    }
}
