//! Offsets of groups: copying them, and setting them back or forth.

use anyhow::{Result, bail};
use clap::Args;
use client::{ClientError, Route};
use protocol::body::{ConsumeStats, MessageQueue, ResetOffsetBody, TopicConfigAndQueueMapping, TopicRoute};
use protocol::code::{ResponseCode, request};
use protocol::names::is_logical_broker;
use protocol::request::{
    GetConsumeStats, GetMaxOffset, GetMinOffset, GetTopicConfig, OffsetReply, QueryConsumerOffset, ResetOffset,
    SearchOffset, UpdateConsumerOffset, WhichQueue,
};

use super::mapping::logical_queue;
use super::message::address_of;
use super::output::Table;
use super::progress::{consume_stats, need_known};
use super::session::{Session, is_offline, readable};
use super::truth;
use super::{time, topic};

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct CloneGroupOffset {
    /// The group whose offsets are copied
    #[arg(short, long)]
    src_group: String,
    /// The group that gets them
    #[arg(short, long)]
    dest_group: String,
    /// The topic
    #[arg(short, long)]
    topic: String,
    /// Accepted as by mqadmin, which does not look at it either
    #[arg(short, long, value_parser = truth)]
    offline: Option<bool>,
}

impl CloneGroupOffset {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let (from, to, topic) = (self.src_group.trim(), self.dest_group.trim(), self.topic.trim());
        need_known(session, from).await?;
        let stats = consume_stats(session, from, Some(topic), None).await?;
        let route = session.route(topic).await?;
        let mut table = Table::new(["Broker Name", "QID", "Offset"]);
        for (queue, offset) in stats.offset_table.iter().filter(|(queue, _)| queue.topic == topic) {
            let address = address_of(&route, queue)?;
            if offset.consumer_offset >= 0 {
                commit(session, &address, to, queue, offset.consumer_offset).await?;
                table.row([(&queue.broker_name).into(), queue.queue_id.into(), offset.consumer_offset.into()]);
            }
        }
        session.out.table("queues", &table)?;
        let done = format!("clone group offset success. srcGroup[{from}], destGroup=[{to}], topic[{topic}]");
        session.out.say(done)?;
        Ok(())
    }
}

async fn commit(
    session: &Session,
    address: &str,
    group: &str,
    queue: &MessageQueue,
    offset: i64,
) -> Result<(), ClientError> {
    let fields = UpdateConsumerOffset {
        consumer_group: group,
        topic: &queue.topic,
        queue_id: queue.queue_id,
        commit_offset: offset,
    };
    session.admin.tell(address, request::UPDATE_CONSUMER_OFFSET, &(fields, which(queue))).await?;
    Ok(())
}

/// In a static topic a queue is meant as it is named: a broker's own one by the broker's name.
fn which(queue: &MessageQueue) -> WhichQueue<'_> {
    WhichQueue { lo: is_logical_broker(&queue.broker_name), broker_name: &queue.broker_name }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct ResetOffsetByTime {
    /// The group
    #[arg(short, long)]
    group: String,
    /// The topic
    #[arg(short, long)]
    topic: String,
    /// now, milliseconds, -1 for the end of the queues, or yyyy-MM-dd#HH:mm:ss:SSS
    #[arg(short = 's', long, allow_negative_numbers = true)]
    timestamp: String,
    /// Whether offsets may also go forward: true (default) or false
    #[arg(short, long, value_parser = truth)]
    force: Option<bool>,
    /// For a light message queue: the cluster or the parent topic, by which its brokers are found
    #[arg(short, long)]
    cluster: Option<String>,
    /// One queue of this broker only
    #[arg(short, long, requires = "queue", value_name = "HOST:PORT")]
    broker: Option<String>,
    /// One queue only
    #[arg(short, long, requires = "broker", value_parser = clap::value_parser!(i32).range(0..))]
    queue: Option<i32>,
    /// For one queue: this offset instead of the one that the time names
    #[arg(short, long, requires = "queue", value_parser = clap::value_parser!(i64).range(0..))]
    offset: Option<i64>,
}

impl ResetOffsetByTime {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let (group, topic) = (self.group.trim(), self.topic.trim());
        let timestamp = match self.timestamp.trim() {
            "now" => session.now(),
            text => time::parse(text)?,
        };
        if let (Some(broker), Some(queue_id)) = (&self.broker, self.queue) {
            return self.one_queue(session, broker.trim(), queue_id, timestamp).await;
        }
        let reset =
            Reset { group, topic, timestamp, is_forced: self.force.unwrap_or(true), parent: self.cluster.as_deref() };
        reset.run(session).await
    }

    async fn one_queue(&self, session: &Session, address: &str, queue_id: i32, timestamp: i64) -> Result<()> {
        let (group, topic) = (self.group.trim(), self.topic.trim());
        let is_static = is_static_at(session, address, topic).await;
        let queue = if is_static {
            refuse_online(session, group, topic).await?;
            logical_queue(topic, queue_id)
        } else {
            MessageQueue { topic: topic.to_owned(), queue_id, ..MessageQueue::default() }
        };
        let offset = match self.offset {
            Some(offset) => offset,
            None => offset_at(session, address, &queue, timestamp).await?,
        };
        commit(session, address, group, &queue, offset).await?;
        if !is_static {
            let fields = ResetOffset { group, topic, queue_id, offset: Some(offset), timestamp: 0, is_force: false };
            // Consumers that are there have to be told; where none is, the committed offset is all there is.
            match session.admin.tell(address, request::INVOKE_BROKER_TO_RESET_OFFSET, &fields).await {
                Err(error) if !is_offline(&error) => return Err(error.into()),
                Ok(_) | Err(_) => {}
            }
        }
        session
            .out
            .say(format!("reset offset of group {group} in queue {queue_id} at {address} to {offset} success."))?;
        Ok(())
    }
}

/// Whether a topic is static on a broker.
async fn is_static_at(session: &Session, address: &str, topic: &str) -> bool {
    let fields = GetTopicConfig { topic, lo: Some(true) };
    let config = session.admin.ask::<TopicConfigAndQueueMapping>(address, request::GET_TOPIC_CONFIG, &fields).await;
    config.is_ok_and(|config| config.mapping_detail.is_some())
}

/// Brokers tell consumers of a reset by physical queue, each for itself: of a logical queue that has moved every place would be reset, and
/// the youngest, which begins after the time that is meant, would win.
async fn refuse_online(session: &Session, group: &str, topic: &str) -> Result<()> {
    let has_members = session.consumers(group, None).await.is_ok_and(|members| !members.connection_set.is_empty());
    if has_members {
        bail!("topic {topic} is static, and group {group} has consumers: stop them, then its offsets can be set");
    }
    Ok(())
}

/// The offset at a time; -1 is the end.
async fn offset_at(session: &Session, address: &str, queue: &MessageQueue, timestamp: i64) -> Result<i64> {
    let (topic, queue_id) = (queue.topic.as_str(), queue.queue_id);
    let response = if timestamp == -1 {
        let fields = GetMaxOffset { topic, queue_id, committed: true };
        session.admin.tell(address, request::GET_MAX_OFFSET, &(fields, which(queue))).await?
    } else {
        let fields = SearchOffset { topic, queue_id, timestamp, boundary_type: None, lite_topic: None };
        session.admin.tell(address, request::SEARCH_OFFSET_BY_TIMESTAMP, &(fields, which(queue))).await?
    };
    Ok(OffsetReply::decode(&response.fields.as_fields())?.offset)
}

/// The queues of a static topic, as clients see them; none of another.
fn logical_queues(topic: &str, route: &TopicRoute) -> Vec<MessageQueue> {
    let mut queues = Route::new(topic, route.clone()).readable;
    queues.retain(|queue| is_logical_broker(&queue.broker_name));
    queues
}

/// How far a group has come in a logical queue. One that never consumed is at the beginning.
async fn reached(session: &Session, address: &str, group: &str, queue: &MessageQueue) -> Result<i64> {
    let (topic, queue_id) = (queue.topic.as_str(), queue.queue_id);
    let fields = QueryConsumerOffset { consumer_group: group, topic, queue_id, set_zero_if_not_found: Some(false) };
    let code = request::QUERY_CONSUMER_OFFSET;
    let response = match session.admin.tell(address, code, &(fields, which(queue))).await {
        Err(error) if error.code() == Some(ResponseCode::QueryNotFound as i32) => {
            let fields = GetMinOffset { topic, queue_id };
            session.admin.tell(address, request::GET_MIN_OFFSET, &(fields, which(queue))).await?
        }
        response => response?,
    };
    Ok(OffsetReply::decode(&response.fields.as_fields())?.offset)
}

/// Setting all queues of a topic.
struct Reset<'a> {
    group: &'a str,
    topic: &'a str,
    timestamp: i64,
    is_forced: bool,
    parent: Option<&'a str>,
}

impl Reset<'_> {
    /// Lets the brokers do it, who tell the consumers; where no consumer is, sets the committed offsets.
    async fn run(&self, session: &Session) -> Result<()> {
        let route = session.route_by(self.topic, self.parent).await?;
        if !logical_queues(self.topic, &route).is_empty() {
            refuse_online(session, self.group, self.topic).await?;
            return self.commit_all(session).await;
        }
        let mut all = ResetOffsetBody::default();
        for (_, address) in readable(&route) {
            let fields = ResetOffset {
                group: self.group,
                topic: self.topic,
                queue_id: -1,
                offset: None,
                timestamp: self.timestamp,
                is_force: self.is_forced,
            };
            match session.admin.ask::<ResetOffsetBody>(&address, request::INVOKE_BROKER_TO_RESET_OFFSET, &fields).await
            {
                Ok(part) => all.offset_table.extend(part.offset_table.0),
                Err(error) if is_offline(&error) => return self.commit_all(session).await,
                Err(error) => return Err(error.into()),
            }
        }
        let mut table = Table::new(["brokerName", "queueId", "offset"]);
        for (queue, offset) in all.offset_table.iter() {
            table.row([(&queue.broker_name).into(), queue.queue_id.into(), (*offset).into()]);
        }
        session.out.table("queues", &table)?;
        Ok(())
    }

    /// Sets the committed offsets. Consumers that are there do not notice, and will commit over them.
    async fn commit_all(&self, session: &Session) -> Result<()> {
        let route = session.route_by(self.topic, self.parent).await?;
        let mut table = Table::new([
            "brokerName",
            "queueId",
            "brokerOffset",
            "consumerOffset",
            "timestampOffset",
            "rollbackOffset",
        ]);
        for (address, queue, there, here) in self.queues(session, &route).await? {
            let wanted = offset_at(session, &address, &queue, self.timestamp).await?;
            let is_set = self.is_forced || wanted <= here;
            if is_set {
                commit(session, &address, self.group, &queue, wanted).await?;
            }
            table.row([
                (&queue.broker_name).into(),
                queue.queue_id.into(),
                there.into(),
                here.into(),
                wanted.into(),
                (if is_set { wanted } else { here }).into(),
            ]);
        }
        session.out.table("queues", &table)?;
        Ok(())
    }

    /// Whom to ask about each queue, where it ends, and how far the group has come; of a static topic by logical queue.
    async fn queues(&self, session: &Session, route: &TopicRoute) -> Result<Vec<(String, MessageQueue, i64, i64)>> {
        let mut queues = Vec::new();
        let logical = logical_queues(self.topic, route);
        if logical.is_empty() {
            for (_, address) in readable(route) {
                let offsets = self.offsets(session, route, &address).await?.into_iter();
                queues.extend(offsets.map(|(queue, there, here)| (address.clone(), queue, there, here)));
            }
        }
        for queue in logical {
            let address = address_of(route, &queue)?;
            let there = offset_at(session, &address, &queue, -1).await?;
            let here = reached(session, &address, self.group, &queue).await?;
            queues.push((address, queue, there, here));
        }
        Ok(queues)
    }

    /// The queues of one broker: where each ends, and how far the group has come. A group that never consumed is at the beginning.
    async fn offsets(
        &self,
        session: &Session,
        route: &TopicRoute,
        address: &str,
    ) -> Result<Vec<(MessageQueue, i64, i64)>> {
        let fields = GetConsumeStats { consumer_group: self.group, topic: None, topic_list: None };
        let known = match session.admin.ask::<ConsumeStats>(address, request::GET_CONSUME_STATS, &fields).await {
            Ok(stats) => stats,
            Err(error) if error.code() == Some(ResponseCode::SubscriptionGroupNotExist as i32) => {
                ConsumeStats::default()
            }
            Err(error) => return Err(error.into()),
        };
        let consumed: Vec<_> = known
            .offset_table
            .iter()
            .filter(|(queue, _)| queue.topic == self.topic)
            .map(|(queue, offset)| (queue.clone(), offset.broker_offset, offset.consumer_offset))
            .collect();
        if !consumed.is_empty() {
            return Ok(consumed);
        }
        let one = TopicRoute {
            broker_datas: route
                .broker_datas
                .iter()
                .filter(|broker| broker.broker_addrs.values().any(|known| known == address))
                .cloned()
                .collect(),
            ..TopicRoute::default()
        };
        let stats = topic::stats(session, self.topic, &one).await?;
        let queues = stats.offset_table.0.into_iter();
        Ok(queues.map(|(queue, offset)| (queue, offset.max_offset, offset.min_offset)).collect())
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct ResetOffsetByTimeOld {
    /// The group
    #[arg(short, long)]
    group: String,
    /// The topic
    #[arg(short, long)]
    topic: String,
    /// Milliseconds, -1 for the end of the queues, or yyyy-MM-dd#HH:mm:ss:SSS
    #[arg(short = 's', long, allow_negative_numbers = true)]
    timestamp: String,
    /// Whether offsets may also go forward: true (default) or false
    #[arg(short, long, value_parser = truth)]
    force: Option<bool>,
    /// For a light message queue: the cluster or the parent topic, by which its brokers are found
    #[arg(short, long)]
    cluster: Option<String>,
}

impl ResetOffsetByTimeOld {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let reset = Reset {
            group: self.group.trim(),
            topic: self.topic.trim(),
            timestamp: time::parse(&self.timestamp)?,
            is_forced: self.force.unwrap_or(true),
            parent: self.cluster.as_deref(),
        };
        reset.commit_all(session).await
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct SkipAccumulatedMessage {
    /// The group
    #[arg(short, long)]
    group: String,
    /// The topic
    #[arg(short, long)]
    topic: String,
    /// Whether offsets may also go forward: true (default) or false
    #[arg(short, long, value_parser = truth)]
    force: Option<bool>,
    /// For a light message queue: the cluster or the parent topic, by which its brokers are found
    #[arg(short, long)]
    cluster: Option<String>,
}

impl SkipAccumulatedMessage {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let reset = Reset {
            group: self.group.trim(),
            topic: self.topic.trim(),
            timestamp: -1,
            is_forced: self.force.unwrap_or(true),
            parent: self.cluster.as_deref(),
        };
        reset.run(session).await
    }
}
