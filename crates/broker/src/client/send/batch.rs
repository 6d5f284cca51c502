//! A batch of messages: a record for each of them, or one for all in a topic with
//! `queue.type=BatchCQ`.

use std::sync::Arc;

use protocol::batch::{self, InnerMessage};
use protocol::body::TopicFilterType;
use protocol::names;
use protocol::record::{PROPERTIES_MAX, RecordDraft};
use protocol::sys_flag;
use protocol::tags;
use store::{RecordBatch, Stages, TagsCode};

use super::order::SendOrder;
use super::sending::{Sending, delay_level};
use crate::broker::Broker;
use crate::client::inner_batch::{self, Content, Target};
use crate::refusal::Refusal;
use crate::sends::{Counted, Receipt, ReceiptKind, Sends};
use crate::state::topics::Topic;
use crate::waiting::hold::Lane;
use crate::write::durability::OwnWords;
use crate::write::send_properties::SendProperties;
use crate::write::{append, light};

/// Several messages of one send, on their way into the batch.
struct Several<'a> {
    sending: Sending<'a>,
    topic: &'a Arc<Topic>,
    /// Of the batch as a whole.
    facts: &'a SendProperties<'a>,
    own_words: OwnWords,
    queue_id: i32,
    sys_flag: i32,
    /// It becomes one record.
    is_inner: bool,
}

/// Adds a batch of messages to a batch of records.
pub(super) fn gather(
    broker: &Broker,
    sends: &mut Sends,
    sending: Sending<'_>,
    topic: &Arc<Topic>,
    queue_id: i32,
) -> Result<(), Refusal> {
    let order = sending.order;
    let facts = &SendProperties::of(order.properties);
    let own_words = check_batch(broker, order, topic, facts)?;
    let mut sys_flag = order.sys_flag;
    if topic.settings().topic_filter_type == TopicFilterType::MultiTag {
        sys_flag |= sys_flag::MULTI_TAGS;
    }
    let lane = topic.lane(&broker.store, queue_id as u32).map_err(Refusal::failed)?;
    // As in Apache: what has no unique key as a whole (batches of clients before 5) is taken apart.
    let is_inner = lane.queue.is_batch() && !facts.uniq_key.is_empty();
    let several = Several { sending, topic, facts, own_words, queue_id, sys_flag, is_inner };
    if !is_inner {
        return several.gather_apart(broker, sends, lane);
    }
    let (content, stages) = match inner_batch::stated_of_compressed(order)? {
        Some(count) => (Content::of_sealed(count), broker.stages_of(topic, own_words)?),
        None => several.say_keys(broker, sends, &lane)?,
    };
    let target = Target { topic, lane, queue_id, sys_flag, stages };
    inner_batch::gather(broker, sends, sending, facts, target, content)
}

/// What a batch as a whole must not be or ask for; says what it asks for of its own.
fn check_batch(
    broker: &Broker,
    order: &SendOrder<'_>,
    topic: &Topic,
    facts: &SendProperties<'_>,
) -> Result<OwnWords, Refusal> {
    if order.topic.len() > names::TOPIC_MAX {
        let limit = names::TOPIC_MAX;
        return Err(Refusal::illegal(format!("message topic length too long {} (limit {limit})", order.topic.len())));
    }
    if topic.is_retry() {
        return Err(Refusal::illegal(format!("batch request does not support retry group {}", order.topic)));
    }
    let own_words = facts.own_words()?;
    let level = delay_level(facts)?;
    if level > 0 {
        return Err(Refusal::illegal(format!("a batch cannot be delayed, its DELAY is {level}")));
    }
    if facts.is_half || order.says_half() {
        return Err(Refusal::illegal("a batch cannot be transactional (TRAN_MSG is true, or sysFlag has 4)"));
    }
    order.check_not_rolled_back()?;
    if let Some((timer, _)) = facts.timer() {
        return Err(Refusal::illegal(format!("a batch cannot be delayed, it has {timer}")));
    }
    if order.body.is_empty() {
        return Err(Refusal::too_large(&broker.store_settings.load(), 0, order.properties.len()));
    }
    let body_bytes_max = broker.store_settings.load().max_message_size;
    if order.body.len() > body_bytes_max {
        return Err(Refusal::too_large(&broker.store_settings.load(), order.body.len(), 0));
    }
    Ok(own_words)
}

impl<'a> Several<'a> {
    /// The messages, each checked, with its facts and the stages that it asks for.
    fn messages(
        &self,
        broker: &Broker,
    ) -> impl Iterator<Item = Result<(InnerMessage<'a>, SendProperties<'a>, Stages), Refusal>> {
        let Several { sending: Sending { order, .. }, topic, facts, own_words, is_inner, .. } = *self;
        (0..).zip(batch::iter(order.body)).map(move |(place, inner)| {
            let inner = inner.map_err(|error| Refusal::illegal(format!("message {place} of the batch: {error}")))?;
            let inner_facts = SendProperties::of(inner.properties);
            check_inner(&inner, &inner_facts, place, facts)?;
            let stages = broker.stages_of(topic, inner_facts.named_words()?.or(own_words))?;
            light::check_inner(&broker.store, &inner, &inner_facts, place, order.topic)?;
            if is_inner && light::wanted(&broker.store, inner_facts.light, order.topic)?.is_some() {
                return Err(Refusal::illegal(format!(
                    "message {place} of the batch names light queues (INNER_MULTI_DISPATCH); in a BatchCQ topic a batch stands in its own \
                     queue only"
                )));
            }
            Ok((inner, inner_facts, stages))
        })
    }

    /// Says which keys the one record will have. The answer waits for all stages that one of
    /// the messages asks for.
    fn say_keys(&self, broker: &Broker, sends: &mut Sends, lane: &Lane) -> Result<(Content, Stages), Refusal> {
        let are_keys_said = broker.store.has_key_index();
        let records = &mut sends.batch;
        records.begin_keys();
        let mut say_keys = |of: &SendProperties<'_>| {
            if are_keys_said {
                records.say_keys_of_next(&lane.queue, &of.message_keys());
            }
        };
        say_keys(self.facts);
        let (mut count, mut all) = (0, Stages::WRITTEN);
        for inner in self.messages(broker) {
            let (_, inner_facts, stages) = inner?;
            say_keys(&inner_facts);
            all = all.and(stages);
            count += 1;
        }
        Ok((Content { count: inner_batch::checked(count)?, are_keys_said }, all))
    }

    /// A record for each message; all of them or none. The answer is one for all.
    fn gather_apart(&self, broker: &Broker, sends: &mut Sends, lane: Arc<Lane>) -> Result<(), Refusal> {
        let Several { sending: Sending { order, reply_to, .. }, topic, facts, queue_id, .. } = *self;
        if facts.has_inner_num || order.has_flag(sys_flag::INNER_BATCH) {
            return Err(Refusal::illegal(
                "INNER_NUM and the sysFlag bit 128 mark a batch that is one record, which this batch or its topic is not",
            ));
        }
        let (first, gathered) = (sends.records(), sends.batch.bytes());
        sends.batch.begin_group();
        let pushed = self.push_each(broker, &mut sends.batch, &lane);
        sends.batch.end_group();
        let stages = pushed.inspect_err(|_| sends.batch.truncate(first))?;
        let count = sends.records() - first;
        append::check_fits(broker, &mut sends.batch, first, gathered)?;
        let text = sends.receipts.keep(facts.uniq_key);
        sends.receipts.push(Receipt {
            reply_to,
            kind: ReceiptKind::Batch,
            queue_id,
            records: first..first + count,
            text,
            stages,
            claim: None,
            part: None,
        });
        sends.touch(lane);
        let (messages, bytes) = (count, order.body.len());
        let (topic, message_type) = (Arc::clone(topic), facts.message_type());
        sends.count(Counted::Sent { topic, queue_id, message_type, messages, bytes });
        Ok(())
    }

    /// Encodes each message into the batch, and says all stages that one of them asks for.
    fn push_each(&self, broker: &Broker, records: &mut RecordBatch, lane: &Lane) -> Result<Stages, Refusal> {
        let Sending { order, born_host, .. } = self.sending;
        let mut all = Stages::WRITTEN;
        for inner in self.messages(broker) {
            let (inner, inner_facts, stages) = inner?;
            all = all.and(stages);
            let draft = RecordDraft {
                queue_id: self.queue_id,
                flag: inner.flag,
                sys_flag: self.sys_flag,
                body: inner.body,
                properties: inner.properties.as_bytes(),
                ..order.draft(born_host, broker.advertised)
            };
            let tags = TagsCode::Code(tags::code(inner_facts.tags));
            if inner_facts.light.is_none() && !inner_facts.has_light_numbers {
                append::push_with_keys(broker, records, lane, tags, &inner_facts.message_keys(), &draft);
            } else {
                light::push_again(&broker.store, records, lane, tags, &draft);
            }
        }
        Ok(all)
    }
}

/// What all messages of a batch must have in common, and what none of them may have.
fn check_inner(
    inner: &InnerMessage<'_>,
    facts: &SendProperties<'_>,
    place: usize,
    batch: &SendProperties<'_>,
) -> Result<(), Refusal> {
    if let Some(delay) = facts.delay
        && delay != "0"
    {
        return Err(Refusal::illegal(format!(
            "message {place} of the batch has DELAY {delay}; a batch cannot be delayed"
        )));
    }
    if let Some((timer, _)) = facts.timer() {
        return Err(Refusal::illegal(format!("message {place} of the batch has {timer}; a batch cannot be delayed")));
    }
    if facts.is_half {
        return Err(Refusal::illegal(format!(
            "message {place} of the batch has TRAN_MSG true; a batch cannot be transactional"
        )));
    }
    if facts.has_inner_num {
        return Err(Refusal::illegal(format!(
            "message {place} of the batch has INNER_NUM, which only a broker may set"
        )));
    }
    if let Some(lite_topic) = facts.lite_topic {
        return Err(Refusal::illegal(format!(
            "message {place} of the batch has __LITE_TOPIC {lite_topic}; lite messages are sent one by one"
        )));
    }
    if facts.is_hasty != batch.is_hasty {
        return Err(Refusal::illegal(format!(
            "message {place} of the batch has WAIT {}, the batch has WAIT {}; all must have the same",
            !facts.is_hasty, !batch.is_hasty
        )));
    }
    if inner.properties.len() > PROPERTIES_MAX {
        return Err(Refusal::illegal(format!(
            "message {place} of the batch has properties of {} bytes, the limit is {PROPERTIES_MAX}",
            inner.properties.len()
        )));
    }
    Ok(())
}
