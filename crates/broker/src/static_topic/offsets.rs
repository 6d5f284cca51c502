//! Committed offsets of static topics: 14 and 15.
//!
//! They lie with the physical queue that they are in, on its broker, in its own numbers; so a group that is behind has its offset where
//! its next message is. Who asks gets the one in the youngest queue that has one.

use std::sync::Arc;

use net::{Outgoing, Request};
use protocol::body::LogicQueueMappingItem;
use protocol::code::{ResponseCode, request};
use protocol::request::{OffsetReply, PullMessage, QueryConsumerOffset, UpdateConsumerOffset};

use crate::broker::Broker;
use crate::refusal::Refusal;
use crate::session::Session;
use crate::static_topic::forward::{Forward, answer_later, unexpected};
use crate::static_topic::mapping::{Mapping, find, is_decided, logical, physical};
use crate::{static_topic, upkeep};

/// 15: puts the physical queue and offset into a commit. `None`: they are another broker's, which is told, and a task answers.
pub(crate) fn place_commit<'a>(
    broker: &Broker,
    session: &Session,
    request: &Request<'_>,
    said: UpdateConsumerOffset<'a>,
) -> Result<Option<UpdateConsumerOffset<'a>>, Refusal> {
    let Some(mapping) = static_topic::of(broker, said.topic, request) else { return Ok(Some(said)) };
    let (item, offset) = target(&mapping, said.queue_id, said.commit_offset)?;
    if mapping.is_here(item) {
        return Ok(Some(UpdateConsumerOffset { queue_id: item.queue_id, commit_offset: offset, ..said }));
    }
    let commit = Commit::new(said.consumer_group, said.topic, item, offset);
    let (forward, reply_to) = (Arc::clone(&broker.forward), request.reply_to());
    answer_later(broker, session, request, async move {
        commit.tell(&forward).await?;
        let mut out = Outgoing::new();
        out.reply(reply_to, ResponseCode::Success, None, &(), &[]);
        Ok(out)
    })?;
    Ok(None)
}

/// Where the offset of a group belongs. One that lies before the queue counts as its beginning.
fn target(mapping: &Mapping, queue_id: i32, offset: i64) -> Result<(&LogicQueueMappingItem, i64), Refusal> {
    let items = mapping.led(queue_id)?;
    let item = find(items, offset).map(|at| &items[at]).ok_or_else(|| mapping.not_led(queue_id))?;
    // A negative offset is no offset, as everywhere.
    Ok((item, if offset < 0 { offset } else { physical(item, offset).max(item.start_offset) }))
}

/// A commit that came with a pull, for which no answer says what became of it. One for another broker is left to the commits that
/// clients send by themselves.
pub(crate) fn commit_with_pull(broker: &Broker, mapping: &Mapping, message: &PullMessage<'_>) {
    if let Ok((item, offset)) = target(mapping, message.queue_id, message.commit_offset)
        && mapping.is_here(item)
    {
        broker.offsets.commit(message.consumer_group, message.topic, item.queue_id, offset);
    }
}

/// A commit on its way to another broker.
struct Commit {
    group: String,
    topic: String,
    holder: String,
    queue_id: i32,
    offset: i64,
}

impl Commit {
    fn new(group: &str, topic: &str, item: &LogicQueueMappingItem, offset: i64) -> Commit {
        let (group, topic, holder) = (group.to_owned(), topic.to_owned(), item.bname.clone());
        Commit { group, topic, holder, queue_id: item.queue_id, offset }
    }

    async fn tell(&self, forward: &Forward) -> Result<(), Refusal> {
        let fields = UpdateConsumerOffset {
            consumer_group: &self.group,
            topic: &self.topic,
            queue_id: self.queue_id,
            commit_offset: self.offset,
        };
        forward.ask_for(&self.holder, request::UPDATE_CONSUMER_OFFSET, &fields, |_| Ok(())).await
    }
}

/// 14, for a static topic: from the youngest physical queue on, the first offset that there is.
///
/// Gives the physical queue back while the logical one has never moved: that is asked for like any other.
pub(crate) fn query(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    mapping: &Mapping,
    asked: &QueryConsumerOffset<'_>,
    out: &mut Outgoing,
) -> Result<Option<i32>, Refusal> {
    let items = mapping.led(asked.queue_id)?;
    if let [only] = items
        && only.logic_offset == 0
        && only.start_offset == 0
    {
        return Ok(Some(only.queue_id));
    }
    let mut left: Vec<LogicQueueMappingItem> = items.iter().filter(|item| is_decided(item)).cloned().collect();
    // Nearly always the answer is here, in the queue that takes the messages.
    while let Some(item) = left.pop_if(|item| mapping.is_here(item)) {
        let Some(offset) = broker.offsets.committed(asked.consumer_group, asked.topic, item.queue_id) else { continue };
        upkeep::put_offsets(&broker.store, &broker.offsets);
        if !broker.store.journal().stats().is_failing {
            session.durable_or_late_after(broker.offsets.put_at(asked.consumer_group, asked.topic));
        }
        let reply = OffsetReply { offset: logical(&item, offset) };
        out.reply(request.reply_to(), ResponseCode::Success, None, &reply, &[]);
        return Ok(None);
    }
    if left.is_empty() {
        return Err(not_found());
    }
    let (group, topic, own) = (asked.consumer_group.to_owned(), asked.topic.to_owned(), mapping.detail().bname.clone());
    let (forward, offsets, reply_to) = (Arc::clone(&broker.forward), Arc::clone(&broker.offsets), request.reply_to());
    answer_later(broker, session, request, async move {
        while let Some(item) = left.pop() {
            let found = if item.bname == own {
                offsets.committed(&group, &topic, item.queue_id)
            } else {
                ask(&forward, &group, &topic, &item).await?
            };
            if let Some(offset) = found {
                let mut out = Outgoing::new();
                let reply = OffsetReply { offset: logical(&item, offset) };
                out.reply(reply_to, ResponseCode::Success, None, &reply, &[]);
                return Ok(out);
            }
        }
        Err(not_found())
    })?;
    Ok(None)
}

async fn ask(
    forward: &Forward,
    group: &str,
    topic: &str,
    item: &LogicQueueMappingItem,
) -> Result<Option<i64>, Refusal> {
    let fields = QueryConsumerOffset {
        consumer_group: group,
        topic,
        queue_id: item.queue_id,
        set_zero_if_not_found: Some(false),
    };
    let answer = forward.ask(&item.bname, request::QUERY_CONSUMER_OFFSET, &fields).await?;
    match ResponseCode::from_i32(answer.code) {
        Some(ResponseCode::Success) => {
            OffsetReply::decode(&answer.fields.as_fields()).map(|reply| Some(reply.offset)).map_err(Refusal::failed)
        }
        Some(ResponseCode::QueryNotFound) => Ok(None),
        Some(_) | None => Err(unexpected(&item.bname, &answer)),
    }
}

fn not_found() -> Refusal {
    Refusal::new(ResponseCode::QueryNotFound, "Not found, maybe this group consumer boot first")
}
