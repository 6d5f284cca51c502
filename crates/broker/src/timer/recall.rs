//! Taking a timer message back (370), and the handles that name one.
//!
//! A recall is itself a timer message, in the slot of the one that it takes back; the task deals with those of a slot before anything of it
//! is delivered.

use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;

use base64::Engine;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use config::BrokerSettings;
use net::{ReplyTo, Request};
use protocol::code::ResponseCode;
use protocol::names;
use protocol::properties::name;
use protocol::record::{PROPERTIES_MAX, RecordDraft};
use protocol::request::RecallMessage;
use protocol::sys_flag::perm;
use protocol::tags;
use store::TagsCode;

use super::asked::{When, when};
use crate::broker::Broker;
use crate::caller::Caller;
use crate::refusal::Refusal;
use crate::sends::{Counted, Receipt, ReceiptKind, SendOutcome, Sends};
use crate::session::Session;
use crate::state::stats::MessageType;
use crate::state::topics::{Topic, Topics};
use crate::write::append;
use crate::write::durability::OwnWords;
use crate::write::local::LocalSends;
use crate::write::send_properties::{self, Real, SendProperties};

/// Apache writes padding, and reads with or without.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);
/// The tag of a recall.
const TAG: &str = "_RECALL_TAG_";

/// Adds the handle of a message that waits behind the slot `out`.
pub(crate) fn handle(text: &mut String, topic: &str, broker_name: &str, out: i64, uniq_key: &str) {
    let mut plain = String::with_capacity(64);
    let _ = write!(plain, "v1 {topic} {broker_name} {} {uniq_key}", out.saturating_add(1));
    BASE64.encode_string(plain, text);
}

/// The parts of a handle.
struct Handle {
    topic: String,
    broker_name: String,
    timestamp: String,
    message_id: String,
}

impl Handle {
    fn read(text: &str) -> Option<Handle> {
        let plain = String::from_utf8(BASE64.decode(text).ok()?).ok()?;
        let mut parts = plain.split(' ').map(str::to_owned);
        if parts.next()? != "v1" {
            return None;
        }
        Some(Handle {
            topic: parts.next()?,
            broker_name: parts.next()?,
            timestamp: parts.next()?,
            message_id: parts.next().filter(|id| !id.is_empty())?,
        })
    }
}

/// A producer takes a message back.
#[derive(Clone, Copy, Debug)]
pub struct RecallOrder<'a> {
    /// The message's own topic.
    pub topic: &'a str,
    /// As the answer to its send had it (`recallHandle`).
    pub handle: &'a str,
    /// The producer's group; may be empty.
    pub producer_group: &'a str,
}

/// 370: adds the recall to the session's batch.
pub(crate) fn recall(broker: &Broker, session: &mut Session, request: &Request<'_>) -> Result<(), Refusal> {
    let fields = RecallMessage::decode(&request.header.fields)?;
    let order = RecallOrder {
        topic: fields.topic,
        handle: fields.recall_handle,
        producer_group: fields.producer_group.unwrap_or_default(),
    };
    order.run(broker, session.peer(), request.reply_to(), &mut session.sends)
}

impl RecallOrder<'_> {
    /// Carries it out for a caller in this process, which hears the message's unique key once the
    /// recall is stored. As over a connection it succeeds also if the device or slaves are late with
    /// it.
    pub async fn call(&self, broker: &Broker, caller: &mut Caller) -> Result<Box<str>, Refusal> {
        caller.begin();
        let mut local = LocalSends::new(broker);
        self.run(broker, caller.peer(), ReplyTo::NOBODY, local.sends())?;
        let SendOutcome { code, remark, uniq_key, .. } = local.outcome(0).await?;
        if code != ResponseCode::Success {
            return Err(Refusal::new(code, remark.unwrap_or_default()));
        }
        Ok(uniq_key.unwrap_or_default())
    }

    /// Adds the recall to a batch, whose receipt answers it. `born_host`: the producer.
    pub(crate) fn run(
        &self,
        broker: &Broker,
        born_host: SocketAddr,
        reply_to: ReplyTo,
        sends: &mut Sends,
    ) -> Result<(), Refusal> {
        let now = broker.clock.now().0;
        let max_ms = broker.store_settings.load().timer_max_delay_sec.saturating_mul(1000);
        let (topic, handle) = self.check(&broker.settings.load(), &broker.topics, now, max_ms)?;
        let failed = |refusal: Refusal| {
            Refusal::new(ResponseCode::SystemError, format!("recall failed, execute error: {}", refusal.remark))
        };
        let facts = SendProperties::of_recall(&handle.message_id, &handle.timestamp);
        let When::Behind(slot) = when(broker, &facts).map_err(failed)? else {
            return Err(illegal("recall failed, timestamp invalid: its time has come"));
        };
        let Some(timers) = &broker.timers else {
            return Err(illegal("recall failed, execute error: timerWheelEnable is false"));
        };
        let lane = timers.topic().lane(&broker.store, 0).map_err(Refusal::failed)?;
        self.write_properties(&mut sends.properties, &handle, now, slot);
        if sends.properties.len() > PROPERTIES_MAX {
            return Err(illegal(format!(
                "recall failed, the properties would have {} B, the limit is {PROPERTIES_MAX} B",
                sends.properties.len()
            )));
        }
        let stages = broker.stages_of(&topic, OwnWords::default()).map_err(failed)?;
        let draft = RecordDraft {
            topic: names::TIMER_TOPIC,
            queue_id: 0,
            flag: 0,
            sys_flag: 0,
            born_timestamp: now,
            born_host,
            store_host: broker.advertised,
            reconsume_times: 0,
            prepared_offset: 0,
            body: b"0",
            properties: &sends.properties,
        };
        let (first, gathered) = (sends.batch.len(), sends.batch.bytes());
        append::push(&mut sends.batch, &lane, TagsCode::Code(tags::code(TAG)), &draft);
        append::check_fits(broker, &mut sends.batch, first, gathered).map_err(failed)?;
        let text = sends.receipts.keep(&handle.message_id);
        sends.receipts.push(Receipt {
            reply_to,
            kind: ReceiptKind::Recall,
            queue_id: 0,
            records: first..first + 1,
            text,
            stages,
            claim: None,
            part: None,
        });
        sends.touch(lane);
        sends.count(Counted::Sent { topic, queue_id: 0, message_type: MessageType::Delay, messages: 1, bytes: 1 });
        Ok(())
    }

    /// May it be taken back? Checks in Apache's order and words.
    fn check(
        &self,
        settings: &BrokerSettings,
        topics: &Topics,
        now: i64,
        max_ms: i64,
    ) -> Result<(Arc<Topic>, Handle), Refusal> {
        if !settings.recall_message_enable {
            let remark = "recall failed, operation is forbidden (recallMessageEnable is false)";
            return Err(Refusal::new(ResponseCode::NoPermission, remark));
        }
        let unavailable = |why: String| {
            let remark = format!("recall failed, broker service not available: {why}");
            Err(Refusal::new(ResponseCode::ServiceNotAvailable, remark))
        };
        let until = settings.start_accept_send_request_time_stamp;
        if now < until {
            return unavailable(format!("until {until} (startAcceptSendRequestTimeStamp; now is {now})"));
        }
        if !perm::is_writable(settings.broker_permission) && !settings.allow_recall_when_broker_not_writeable {
            return unavailable("the broker is not writable (allowRecallWhenBrokerNotWriteable is false)".to_owned());
        }
        let Some(topic) = topics.get(self.topic) else {
            let remark = format!("recall failed, the topic[{}] not exist", self.topic);
            return Err(Refusal::new(ResponseCode::TopicNotExist, remark));
        };
        let handle = Handle::read(self.handle).ok_or_else(|| illegal("recall handle is invalid"))?;
        if handle.topic != self.topic {
            return Err(illegal(format!("recall failed, topic not match: the handle names {}", handle.topic)));
        }
        if handle.broker_name != settings.broker_name {
            return Err(illegal(format!(
                "recall failed, broker service not available: the handle names {}",
                handle.broker_name
            )));
        }
        let due = handle.timestamp.parse::<i64>().unwrap_or(-1);
        let left = due.saturating_sub(now);
        if left <= 0 || left >= max_ms {
            return Err(illegal(format!(
                "recall failed, timestamp invalid: {} is {left} ms from now, it must lie between 0 and {max_ms}",
                handle.timestamp
            )));
        }
        Ok((topic, handle))
    }

    /// `slot`: behind which the message waits.
    fn write_properties(&self, properties: &mut Vec<u8>, handle: &Handle, now: i64, slot: i64) {
        let mut digits = String::new();
        let _ = write!(digits, "{now}");
        properties.clear();
        for (key, value) in [
            (name::TAGS, TAG),
            (name::TIMER_DEL_UNIQKEY, &handle.message_id),
            (name::UNIQ_KEY, &handle.message_id),
            (name::TIMER_DELIVER_MS, &handle.timestamp),
            (name::BORN_TIMESTAMP, &digits),
            (name::PGROUP, self.producer_group),
        ] {
            send_properties::put(properties, key, value);
        }
        digits.clear();
        let _ = write!(digits, "{slot}");
        send_properties::put(properties, name::TIMER_OUT_MS, &digits);
        send_properties::put_real(properties, Real { topic: self.topic, queue_id: 0 });
    }
}

fn illegal(remark: impl Into<String>) -> Refusal {
    Refusal::new(ResponseCode::IllegalOperation, remark)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_what_apache_makes_of_the_same_parts() {
        let mut text = "kept".to_owned();
        handle(&mut text, "Orders", "broker-a", 1_700_000_000_000, "AC1100");
        assert_eq!(text, "keptdjEgT3JkZXJzIGJyb2tlci1hIDE3MDAwMDAwMDAwMDEgQUMxMTAw");
        let read = Handle::read(&text[4..]).unwrap();
        assert_eq!((read.topic, read.broker_name), ("Orders".to_owned(), "broker-a".to_owned()));
        assert_eq!((read.timestamp, read.message_id), ("1700000000001".to_owned(), "AC1100".to_owned()));
    }

    #[test]
    fn what_is_no_handle_is_none() {
        for plain in ["", "v2 T b 1 id", "v1 T b 1", "v1", "v1 T b 1 "] {
            assert!(Handle::read(&BASE64.encode(plain)).is_none(), "{plain}");
        }
        for text in ["", "***", "djEg", "\u{fc}"] {
            assert!(Handle::read(text).is_none(), "{text}");
        }
        assert!(Handle::read(&BASE64.encode("v1 T b 1 id")).is_some());
    }
}
