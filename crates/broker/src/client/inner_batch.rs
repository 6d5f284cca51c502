//! Batches that are stored as one record, in topics with `queue.type=BatchCQ`: the body stays as the producer sent it, and
//! the consumer takes it apart.
//!
//! A batch comes as such (320), or as one message whose producer has put the batch together himself, compressed or encrypted perhaps: then
//! `sysFlag` says that it is one (128) and `INNER_NUM` how many messages are in it.

use std::sync::Arc;

use config::BrokerSettings;
use protocol::batch;
use protocol::properties::{self, name};
use protocol::record::{INNER_BASE_PLACE, PROPERTIES_MAX, RecordDraft};
use protocol::{sys_flag, tags};
use store::{Stages, TagsCode};

use crate::broker::Broker;
use crate::client::send::order::SendOrder;
use crate::client::send::sending::Sending;
use crate::refusal::Refusal;
use crate::sends::{Counted, Receipt, ReceiptKind, Sends};
use crate::state::topics::Topic;
use crate::waiting::hold::Lane;
use crate::write::send_properties::{self, SendProperties};
use crate::write::{append, light};

/// How many messages a batch holds, and whether the session's batch of records was told all their keys.
#[derive(Clone, Copy)]
pub(crate) struct Content {
    pub(crate) count: u16,
    pub(crate) are_keys_said: bool,
}

impl Content {
    /// Of a batch that was not taken apart: the index does it.
    pub(crate) fn of_sealed(count: u16) -> Content {
        Content { count, are_keys_said: false }
    }
}

/// Where a batch goes.
pub(crate) struct Target<'a> {
    pub(crate) topic: &'a Arc<Topic>,
    pub(crate) lane: Arc<Lane>,
    pub(crate) queue_id: i32,
    /// For the record: without the bits that mark a batch.
    pub(crate) sys_flag: i32,
    /// It is answered at these stages.
    pub(crate) stages: Stages,
}

/// How many messages a compressed batch holds, which only its producer knows; none of one that is not compressed.
pub(crate) fn stated_of_compressed(order: &SendOrder<'_>) -> Result<Option<u16>, Refusal> {
    if !order.has_flag(sys_flag::COMPRESSED) {
        return Ok(None);
    }
    stated(order.properties).map(Some)
}

/// How many messages there are in a message that its producer marks as a batch. Where we can count them, both must agree.
pub(crate) fn count_of_marked(order: &SendOrder<'_>) -> Result<u16, Refusal> {
    let stated = stated(order.properties)?;
    if order.has_flag(sys_flag::COMPRESSED) || !order.has_flag(sys_flag::NEED_UNWRAP) {
        return Ok(stated);
    }
    let mut found: usize = 0;
    for inner in batch::iter(order.body) {
        inner.map_err(|error| Refusal::illegal(format!("message {found} of the batch: {error}")))?;
        found += 1;
    }
    if found != usize::from(stated) {
        return Err(Refusal::illegal(format!("INNER_NUM is {stated}, and the body holds {found} messages")));
    }
    Ok(stated)
}

/// What `INNER_NUM` says.
fn stated(text: &str) -> Result<u16, Refusal> {
    let Some(stated) = properties::get(text, name::INNER_NUM) else {
        return Err(Refusal::illegal(
            "INNER_NUM is missing: only the producer knows how many messages the batch holds",
        ));
    };
    stated
        .parse()
        .ok()
        .and_then(|count: usize| checked(count).ok())
        .ok_or_else(|| Refusal::illegal(format!("INNER_NUM is \"{stated}\"; a batch has 1 to {} messages", i16::MAX)))
}

/// A number of messages that a unit of a consume queue can state.
pub(crate) fn checked(count: usize) -> Result<u16, Refusal> {
    match i16::try_from(count) {
        Ok(count) if count > 0 => Ok(count.unsigned_abs()),
        Ok(_) | Err(_) => {
            Err(Refusal::illegal(format!("{count} messages in a batch; in a BatchCQ topic it has 1 to {}", i16::MAX)))
        }
    }
}

/// Adds a batch to a batch of records. What the producer may send was checked.
pub(crate) fn gather(
    broker: &Broker,
    sends: &mut Sends,
    Sending { order, settings, reply_to, born_host }: Sending<'_>,
    facts: &SendProperties<'_>,
    target: Target<'_>,
    Content { count, are_keys_said }: Content,
) -> Result<(), Refusal> {
    if light::wanted(&broker.store, facts.light, order.topic)?.is_some() || facts.lite_topic.is_some() {
        return Err(Refusal::illegal(
            "a batch that is one record stands in its own queue only; it has INNER_MULTI_DISPATCH or __LITE_TOPIC",
        ));
    }
    let uniq_key = sends.receipts.keep_uniq_key(facts.uniq_key, &broker.ids);
    let made_uniq_key = facts.uniq_key.is_empty().then(|| sends.receipts.text(&uniq_key));
    write_properties(&mut sends.properties, order.properties, made_uniq_key, settings, count);
    if sends.properties.len() > PROPERTIES_MAX {
        let bytes = sends.properties.len();
        sends.receipts.forget(uniq_key);
        return Err(Refusal::too_large(&broker.store_settings.load(), order.body.len(), bytes));
    }
    let unwrap = if order.is_batch { sys_flag::NEED_UNWRAP } else { 0 };
    let draft = RecordDraft {
        queue_id: target.queue_id,
        sys_flag: target.sys_flag | sys_flag::INNER_BATCH | unwrap,
        properties: &sends.properties,
        ..order.draft(born_host, broker.advertised)
    };
    let tags = TagsCode::Code(tags::code(facts.tags));
    let (first, gathered) = (sends.records(), sends.batch.bytes());
    let queue = &target.lane.queue;
    if are_keys_said {
        sends.batch.push_inner_batch_with_keys(queue, tags, count, |out| append::encode(&draft, out));
    } else {
        sends.batch.push_inner_batch(queue, tags, count, |out| append::encode(&draft, out));
    }
    if let Err(refusal) = append::check_fits(broker, &mut sends.batch, first, gathered) {
        sends.receipts.forget(uniq_key);
        return Err(refusal);
    }
    sends.receipts.push(Receipt {
        reply_to,
        kind: if order.is_batch { ReceiptKind::InnerBatch } else { ReceiptKind::Send },
        queue_id: target.queue_id,
        records: first..first + 1,
        text: uniq_key,
        stages: target.stages,
        claim: None,
        part: None,
    });
    sends.touch(target.lane);
    let (topic, queue_id, message_type) = (Arc::clone(target.topic), target.queue_id, facts.message_type());
    let (messages, bytes) = (usize::from(count), order.body.len());
    sends.count(Counted::Sent { topic, queue_id, message_type, messages, bytes });
    Ok(())
}

/// The batch's own properties, the broker's, and last where the offset of the first message will stand.
fn write_properties(
    out: &mut Vec<u8>,
    client: &str,
    made_uniq_key: Option<&str>,
    settings: &BrokerSettings,
    count: u16,
) {
    out.clear();
    send_properties::copy_except(out, client, |key| {
        matches!(
            key,
            name::POP_CK
                | name::CLUSTER
                | name::MSG_REGION
                | name::TRACE_ON
                | name::INNER_NUM
                | name::INNER_BASE
                | name::INNER_MULTI_QUEUE_OFFSET
        )
    });
    if let Some(uniq_key) = made_uniq_key {
        send_properties::put(out, name::UNIQ_KEY, uniq_key);
    }
    send_properties::put(out, name::MSG_REGION, &settings.region_id);
    send_properties::put(out, name::TRACE_ON, if settings.trace_on { "true" } else { "false" });
    send_properties::put(out, name::CLUSTER, &settings.broker_cluster_name);
    send_properties::put(out, name::INNER_NUM, &count.to_string());
    out.extend_from_slice(INNER_BASE_PLACE.as_bytes());
}
