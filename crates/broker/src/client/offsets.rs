//! 14, 15, 43, 314: clients and tools ask for committed offsets, and set them.

use net::{Outgoing, Request};
use protocol::body::ConsumerOffsets;
use protocol::code::ResponseCode;
use protocol::names;
use protocol::request::{CloneGroupOffset, FieldError, QueryConsumerOffset, UpdateConsumerOffset};
use store::Store;

use crate::answer::{reply_json, reply_ok};
use crate::broker::Broker;
use crate::client::commit_at_slave;
use crate::client::eventual::{Eventual, encode_offset};
use crate::refusal::Refusal;
use crate::session::Session;
use crate::state::offsets::{OffsetClient, Offsets, rows};
use crate::static_topic;
use crate::static_topic::NamedQueue;
use crate::static_topic::offsets::{Found, Placed};

/// A group has come this far in a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommitOrder<'a> {
    pub(crate) group: &'a str,
    pub(crate) queue: NamedQueue<'a>,
    pub(crate) offset: i64,
}

/// The outcome of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Committed {
    Noted,
    /// Passed over: the client is to be told first where to go on.
    PassedOver,
}

/// 15.
pub(crate) fn update(
    broker: &Broker,
    session: &Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let outcome = CommitOrder::decode(request)?.run(broker, session.connection.id())?;
    outcome.answer(broker, session, request, out, |reply_to, outcome, out| {
        let remark = (outcome == Committed::PassedOver).then_some("Offset has been previously reset");
        out.reply(reply_to, ResponseCode::Success, remark, &(), &[]);
    })
}

impl<'a> CommitOrder<'a> {
    fn decode(request: &Request<'a>) -> Result<CommitOrder<'a>, Refusal> {
        let said = UpdateConsumerOffset::decode(&request.header.fields)
            .map_err(|error| Refusal::new(ResponseCode::InvalidParameter, error.to_string()))?;
        let queue = NamedQueue::of(request, said.topic, said.queue_id);
        Ok(CommitOrder { group: said.consumer_group, queue, offset: said.commit_offset })
    }

    /// `connection`: the number of the client's connection.
    pub(crate) fn run(&self, broker: &Broker, connection: u64) -> Result<Eventual<Committed>, Refusal> {
        let &CommitOrder { group, queue, offset } = self;
        // Not made, as in Apache: a name that was mistyped would stay for good.
        broker.groups.get(group).ok_or_else(|| {
            Refusal::new(ResponseCode::SubscriptionGroupNotExist, format!("Group {group} not exist!"))
        })?;
        let (queue_id, offset, target, is_forgotten) =
            match static_topic::offsets::place_commit(broker, group, &queue, offset)? {
                Placed::Here { queue_id, offset, target } => (queue_id, offset, target, false),
                Placed::Forgotten => (queue.queue_id, offset, None, true),
                Placed::Elsewhere(telling) => {
                    return Ok(Eventual::Elsewhere(Box::pin(async move { telling.await.map(|()| Committed::Noted) })));
                }
            };
        let Some(topic) = broker.topics.get(queue.topic) else {
            return Err(Refusal::new(ResponseCode::TopicNotExist, format!("Topic {} not exist!", queue.topic)));
        };
        let name = queue.topic;
        // A topic that has become smaller is read to its end; any other id would cost memory for
        // every id below it.
        let is_there = |id| broker.store.existing_queue(name, id).is_some();
        if !topic.has_queue(queue_id) && !u32::try_from(queue_id).is_ok_and(is_there) {
            let remark = format!("topic {name} has no queue {queue_id}");
            return Err(Refusal::new(ResponseCode::InvalidParameter, remark));
        }
        let asks_first = || broker.clients.asks_first(group).unwrap_or(true);
        let client = OffsetClient { connection, asks_first: &asks_first };
        if broker.offsets.passes_over(&client, group, name, queue_id, offset) {
            return Ok(Eventual::Now(Committed::PassedOver));
        }
        match target {
            Some(target) => target.note_at_once(&broker.offsets, &broker.commits, group),
            None if is_forgotten => broker.offsets.forget_queue(group, name, queue_id),
            None if broker.standing.is_slave() => {
                commit_at_slave::commit(broker, &client, group, name, queue_id, offset)
            }
            None => broker.offsets.commit_by(&client, group, name, queue_id, offset),
        }
        Ok(Eventual::Now(Committed::Noted))
    }
}

/// How far has a group come in a queue?
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgressOrder<'a> {
    pub(crate) group: &'a str,
    pub(crate) queue: NamedQueue<'a>,
    /// A group that has no offset begins at 0 in a young queue, if the client does not forbid it.
    pub(crate) may_begin_at_zero: bool,
}

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) offset: i64,
    /// The place of the offset in the journal; `None` if there is nothing to wait for. An answer
    /// waits until it is written: a client relies on the offset that it sees, also after a crash.
    pub(crate) written_at: Option<u64>,
}

/// 14. Code 22 lets the client begin where its own setting says.
pub(crate) fn query(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let outcome = ProgressOrder::decode(request)?.run(broker, session.connection.id())?;
    if let Eventual::Now(Progress { written_at: Some(position), .. }) = outcome {
        session.durable_or_late_after(position);
    }
    outcome.answer(broker, session, request, out, |reply_to, found, out| encode_offset(reply_to, found.offset, out))
}

impl<'a> ProgressOrder<'a> {
    fn decode(request: &Request<'a>) -> Result<ProgressOrder<'a>, FieldError> {
        let asked = QueryConsumerOffset::decode(&request.header.fields)?;
        let queue = NamedQueue::of(request, asked.topic, asked.queue_id);
        let may_begin_at_zero = asked.set_zero_if_not_found != Some(false);
        Ok(ProgressOrder { group: asked.consumer_group, queue, may_begin_at_zero })
    }

    /// `connection`: the number of the client's connection.
    pub(crate) fn run(&self, broker: &Broker, connection: u64) -> Result<Eventual<Progress>, Refusal> {
        let &ProgressOrder { group, queue: named, .. } = self;
        let (topic, mut queue_id) = (named.topic, named.queue_id);
        if let Some(mapping) = named.mapping(&broker.topics) {
            match static_topic::offsets::query(&broker.offsets, &broker.forward, &mapping, queue_id, group)? {
                Found::Physical(physical) => queue_id = physical,
                Found::Here(offset) => return Ok(self.known(offset, &broker.store, &broker.offsets)),
                Found::Elsewhere(asking) => {
                    return Ok(Eventual::Elsewhere(Box::pin(async move { asking.await.map(Progress::anew) })));
                }
            }
        }
        if let Some(offset) = broker.offsets.committed(group, topic, queue_id) {
            return Ok(self.known(offset, &broker.store, &broker.offsets));
        }
        // It begins where it likes, and has nothing from before.
        broker.offsets.begins(connection, group, topic, queue_id);
        if !self.may_begin_at_zero {
            return Err(not_found("Not found, do not set to zero, maybe this group boot first"));
        }
        // A group that joins a young topic gets all of it: nothing has been deleted, and what is
        // there is still in memory. That holds for a queue without a message too, as in Apache 4.x.
        // 5.x answers 22 there, and a client that then asks for the queue's end never sees a first
        // message that is stored in between.
        let queue = u32::try_from(queue_id).ok().and_then(|id| broker.store.existing_queue(topic, id));
        let is_empty = match &queue {
            Some(queue) => queue.max_offset() == 0,
            None => broker.topics.get(topic).is_some_and(|topic| topic.has_queue(queue_id)),
        };
        if is_empty {
            return Ok(Eventual::Now(Progress::anew(0)));
        }
        let queue = queue.filter(|queue| queue.min_offset() == 0).ok_or_else(|| not_found(BOOTS_FIRST))?;
        Ok(Eventual::OnDisk(Box::new(move |store| {
            let first = queue.unit_at(0).ok().flatten();
            let is_hot = first.is_some_and(|unit| store.end().0.saturating_sub(unit.at.0) <= HOT_BYTES);
            if is_hot { Ok(Progress::anew(0)) } else { Err(not_found(BOOTS_FIRST)) }
        })))
    }

    /// Nearly always the offset is written already. While the journal cannot be written, a consumer
    /// that gets a message twice after a crash is better off than one that gets none now.
    fn known(&self, offset: i64, store: &Store, offsets: &Offsets) -> Eventual<Progress> {
        rows::put(store, offsets);
        let is_failing = store.journal().is_failing();
        let written_at = (!is_failing).then(|| offsets.put_at(self.group, self.queue.topic));
        Eventual::Now(Progress { offset, written_at })
    }
}

impl Progress {
    /// One that the journal does not hold.
    fn anew(offset: i64) -> Progress {
        Progress { offset, written_at: None }
    }
}

/// So far behind the log's end a first message still counts as recent. Apache takes 40 % of the machine's memory for it
/// (`accessMessageInMemoryMaxRatio`), so that the same group begins elsewhere on another machine; we take what 10 GiB make.
const HOT_BYTES: u64 = 4 << 30;
/// Clients know it by its code and people by these words.
const BOOTS_FIRST: &str = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first";

fn not_found(remark: &str) -> Refusal {
    Refusal::new(ResponseCode::QueryNotFound, remark)
}

/// 43: all offsets, for a slave. Leases are not in the log, so a slave that becomes a master has none: of a queue that has popped
/// messages on lease it hears of the first of these, and they come again rather than never.
pub(crate) fn all(broker: &Broker, request: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let data_version = Some(broker.offsets.version());
    // Before the leases: what is popped meanwhile is on lease when its offset is read, or ahead of it.
    let mut offset_table = broker.offsets.table();
    broker.pops.lower_to_leases(&mut offset_table);
    reply_json(request, out, &ConsumerOffsets { data_version, offset_table });
    Ok(())
}

/// 314: copy the offsets of a group to another.
pub(crate) fn copy(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let wanted = CloneGroupOffset::decode(&request.header.fields)?;
    let bad = |error: names::NameError| Refusal::new(ResponseCode::InvalidParameter, error.to_string());
    names::check_group(wanted.dest_group).map_err(bad)?;
    if broker.groups.get(wanted.dest_group).is_none() {
        broker.offsets.check_room_for(format_args!("group {}", wanted.dest_group))?;
    }
    let topics = match wanted.topic.filter(|topic| !topic.trim().is_empty()) {
        Some(topic) => [topic.into()].into(),
        None => broker.offsets.topics_of(wanted.src_group),
    };
    for topic in &topics {
        if broker.topics.get(topic).is_none() {
            tracing::warn!(topic = &**topic, "offsets not copied: no such topic");
            continue;
        }
        // A group's retry topic is its own; so is how far it has come in it.
        let is_retry = names::is_retry_topic(topic);
        let online = broker.clients.subscription(wanted.src_group, topic);
        if !is_retry
            && !wanted.offline
            && online.is_none()
            && broker.clients.consumers(wanted.src_group).is_some_and(|group| group.has_subscriptions())
        {
            tracing::warn!(
                group = wanted.src_group,
                topic = &**topic,
                "offsets not copied: the group does not subscribe to the topic"
            );
            continue;
        }
        broker.offsets.copy(wanted.src_group, wanted.dest_group, topic);
    }
    session.copied_after(rows::put(&broker.store, &broker.offsets));
    reply_ok(request, out);
    Ok(())
}
