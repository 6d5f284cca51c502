//! Offsets of groups: copying them, and setting them back or forth.

use client::{ClientError, Route};
use protocol::body::{ConsumeStats, MessageQueue, ResetOffsetBody, TopicConfigAndQueueMapping, TopicRoute};
use protocol::code::{ResponseCode, request};
use protocol::names::is_logical_broker;
use protocol::request::{
    GetConsumeStats, GetMaxOffset, GetMinOffset, GetTopicConfig, OffsetReply, QueryConsumerOffset, ResetOffset,
    SearchOffset, UpdateConsumerOffset, WhichQueue,
};

use crate::cluster::readable;
use crate::error::{Result, ensure};
use crate::handle::Operator;
use crate::mapping::logical_queue;
use crate::message::address_of;
use crate::progress::Progress;

/// Setting the offsets of a group in all queues of a topic.
#[derive(Clone, Copy, Debug)]
pub struct Reset<'a> {
    /// The group.
    pub group: &'a str,
    /// The topic.
    pub topic: &'a str,
    /// To the first message of this time; -1 is the end.
    pub timestamp: i64,
    /// Offsets may also go forward.
    pub is_forced: bool,
    /// As in [`Operator::route_by`].
    pub parent: Option<&'a str>,
}

/// A queue of which the committed offset was to be set.
#[derive(Clone, Debug)]
pub struct Committed {
    /// The queue.
    pub queue: MessageQueue,
    /// Where it ends.
    pub end: i64,
    /// How far the group had come.
    pub before: i64,
    /// What the time names.
    pub wanted: i64,
    /// What holds now.
    pub now: i64,
}

/// How the offsets of a topic were set.
#[derive(Clone, Debug)]
pub enum ResetDone {
    /// By the brokers, which told the consumers.
    ByBrokers(Vec<(MessageQueue, i64)>),
    /// By committing, because no consumer is online.
    ByCommits(Vec<Committed>),
}

/// Offsets that were copied.
#[derive(Debug)]
pub struct Copied {
    /// What was learned of the group whose offsets they are: once of all its topics, if it was not known otherwise, and of the topic.
    pub seen: [Progress; 2],
    /// The queues and their offsets.
    pub queues: Vec<(MessageQueue, i64)>,
}

impl Operator {
    /// Copies the offsets of a group in a topic to another group.
    pub async fn copy_offsets(&self, from: &str, to: &str, topic: &str) -> Result<Copied> {
        let seen = [self.need_group(from).await?, self.progress(from, Some(topic), None).await?];
        let route = self.route(topic).await?;
        let mut queues = Vec::new();
        let [_, progress] = &seen;
        for (queue, offset) in progress.stats.offset_table.iter().filter(|(queue, _)| queue.topic == topic) {
            let address = address_of(&route, queue)?;
            if offset.consumer_offset >= 0 {
                self.commit(&address, to, queue, offset.consumer_offset).await?;
                queues.push((queue.clone(), offset.consumer_offset));
            }
        }
        Ok(Copied { seen, queues })
    }

    /// Sets the offset of a group in one queue of a broker, to `offset` or to the first message of a time. Returns it.
    pub async fn reset_queue(
        &self,
        group: &str,
        topic: &str,
        (address, queue_id): (&str, i32),
        timestamp: i64,
        offset: Option<i64>,
    ) -> Result<i64> {
        let is_static = self.is_static_at(address, topic).await;
        let queue = if is_static {
            self.refuse_online(group, topic).await?;
            logical_queue(topic, queue_id)
        } else {
            MessageQueue { topic: topic.to_owned(), queue_id, ..MessageQueue::default() }
        };
        let offset = match offset {
            Some(offset) => offset,
            None => self.offset_at(address, &queue, timestamp).await?,
        };
        self.commit(address, group, &queue, offset).await?;
        if !is_static {
            let fields = ResetOffset { group, topic, queue_id, offset: Some(offset), timestamp: 0, is_force: false };
            // Consumers that are there have to be told; where none is, the committed offset is all there is.
            match self.admin.tell(address, request::INVOKE_BROKER_TO_RESET_OFFSET, &fields).await {
                Err(error) if error.code() != Some(ResponseCode::ConsumerNotOnline as i32) => return Err(error.into()),
                Ok(_) | Err(_) => {}
            }
        }
        Ok(offset)
    }

    /// Lets the brokers set all queues of a topic, which tell the consumers; where no consumer is, sets the committed offsets.
    pub async fn reset_offsets(&self, reset: &Reset<'_>) -> Result<ResetDone> {
        let route = self.route_by(reset.topic, reset.parent).await?;
        if !logical_queues(reset.topic, &route).is_empty() {
            self.refuse_online(reset.group, reset.topic).await?;
            return Ok(ResetDone::ByCommits(self.commit_offsets(reset).await?));
        }
        let mut all = ResetOffsetBody::default();
        for (_, address) in readable(&route) {
            let fields = ResetOffset {
                group: reset.group,
                topic: reset.topic,
                queue_id: -1,
                offset: None,
                timestamp: reset.timestamp,
                is_force: reset.is_forced,
            };
            let code = request::INVOKE_BROKER_TO_RESET_OFFSET;
            match self.admin.ask::<ResetOffsetBody>(&address, code, &fields).await {
                Ok(part) => all.offset_table.extend(part.offset_table.0),
                Err(error) if error.code() == Some(ResponseCode::ConsumerNotOnline as i32) => {
                    return Ok(ResetDone::ByCommits(self.commit_offsets(reset).await?));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(ResetDone::ByBrokers(all.offset_table.0.into_iter().collect()))
    }

    /// Sets the committed offsets in all queues of a topic. Consumers that are there do not notice, and will commit over them.
    pub async fn commit_offsets(&self, reset: &Reset<'_>) -> Result<Vec<Committed>> {
        let route = self.route_by(reset.topic, reset.parent).await?;
        let mut done = Vec::new();
        for (address, queue, end, before) in self.queues_of(reset, &route).await? {
            let wanted = self.offset_at(&address, &queue, reset.timestamp).await?;
            let is_set = reset.is_forced || wanted <= before;
            if is_set {
                self.commit(&address, reset.group, &queue, wanted).await?;
            }
            done.push(Committed { queue, end, before, wanted, now: if is_set { wanted } else { before } });
        }
        Ok(done)
    }

    /// The broker to ask about each queue, where it ends, and how far the group has come; of a static topic by logical queue.
    async fn queues_of(&self, reset: &Reset<'_>, route: &TopicRoute) -> Result<Vec<(String, MessageQueue, i64, i64)>> {
        let mut queues = Vec::new();
        let logical = logical_queues(reset.topic, route);
        if logical.is_empty() {
            for (_, address) in readable(route) {
                let offsets = self.offsets_on(reset, route, &address).await?.into_iter();
                queues.extend(offsets.map(|(queue, there, here)| (address.clone(), queue, there, here)));
            }
        }
        for queue in logical {
            let address = address_of(route, &queue)?;
            let there = self.offset_at(&address, &queue, -1).await?;
            let here = self.reached(&address, reset.group, &queue).await?;
            queues.push((address, queue, there, here));
        }
        Ok(queues)
    }

    /// The queues of one broker: where each ends, and how far the group has come. A group that never consumed is at the beginning.
    async fn offsets_on(
        &self,
        reset: &Reset<'_>,
        route: &TopicRoute,
        address: &str,
    ) -> Result<Vec<(MessageQueue, i64, i64)>> {
        let fields = GetConsumeStats { consumer_group: reset.group, topic: None, topic_list: None };
        let known = match self.admin.ask::<ConsumeStats>(address, request::GET_CONSUME_STATS, &fields).await {
            Ok(stats) => stats,
            Err(error) if error.code() == Some(ResponseCode::SubscriptionGroupNotExist as i32) => {
                ConsumeStats::default()
            }
            Err(error) => return Err(error.into()),
        };
        let consumed: Vec<_> = known
            .offset_table
            .iter()
            .filter(|(queue, _)| queue.topic == reset.topic)
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
        let stats = self.topic_stats(reset.topic, &one).await?;
        let queues = stats.offset_table.0.into_iter();
        Ok(queues.map(|(queue, offset)| (queue, offset.max_offset, offset.min_offset)).collect())
    }
    async fn commit(&self, address: &str, group: &str, queue: &MessageQueue, offset: i64) -> Result<(), ClientError> {
        let fields = UpdateConsumerOffset {
            consumer_group: group,
            topic: &queue.topic,
            queue_id: queue.queue_id,
            commit_offset: offset,
        };
        self.admin.tell(address, request::UPDATE_CONSUMER_OFFSET, &(fields, which(queue))).await?;
        Ok(())
    }

    /// Whether a topic is static on a broker.
    async fn is_static_at(&self, address: &str, topic: &str) -> bool {
        let fields = GetTopicConfig { topic, lo: Some(true) };
        let config = self.admin.ask::<TopicConfigAndQueueMapping>(address, request::GET_TOPIC_CONFIG, &fields).await;
        config.is_ok_and(|config| config.mapping_detail.is_some())
    }

    /// Brokers tell consumers of a reset by physical queue, each for itself: of a logical queue that has moved every place would be
    /// reset, and the youngest, which begins after the time that is meant, would win.
    async fn refuse_online(&self, group: &str, topic: &str) -> Result<()> {
        let has_members = self.consumers(group, None).await.is_ok_and(|members| !members.connection_set.is_empty());
        ensure!(
            !has_members,
            Unfit,
            "topic {topic} is static, and group {group} has consumers: stop them, then its offsets can be set"
        );
        Ok(())
    }

    /// The offset at a time; -1 is the end.
    async fn offset_at(&self, address: &str, queue: &MessageQueue, timestamp: i64) -> Result<i64> {
        let (topic, queue_id) = (queue.topic.as_str(), queue.queue_id);
        let response = if timestamp == -1 {
            let fields = GetMaxOffset { topic, queue_id, committed: true };
            self.admin.tell(address, request::GET_MAX_OFFSET, &(fields, which(queue))).await?
        } else {
            let fields = SearchOffset { topic, queue_id, timestamp, boundary_type: None, lite_topic: None };
            self.admin.tell(address, request::SEARCH_OFFSET_BY_TIMESTAMP, &(fields, which(queue))).await?
        };
        Ok(OffsetReply::decode(&response.fields.as_fields())?.offset)
    }

    /// How far a group has come in a logical queue. One that never consumed is at the beginning.
    async fn reached(&self, address: &str, group: &str, queue: &MessageQueue) -> Result<i64> {
        let (topic, queue_id) = (queue.topic.as_str(), queue.queue_id);
        let fields = QueryConsumerOffset { consumer_group: group, topic, queue_id, set_zero_if_not_found: Some(false) };
        let code = request::QUERY_CONSUMER_OFFSET;
        let response = match self.admin.tell(address, code, &(fields, which(queue))).await {
            Err(error) if error.code() == Some(ResponseCode::QueryNotFound as i32) => {
                let fields = GetMinOffset { topic, queue_id };
                self.admin.tell(address, request::GET_MIN_OFFSET, &(fields, which(queue))).await?
            }
            response => response?,
        };
        Ok(OffsetReply::decode(&response.fields.as_fields())?.offset)
    }
}

/// In a static topic a queue is meant as it is named: a broker's own one by the broker's name.
fn which(queue: &MessageQueue) -> WhichQueue<'_> {
    WhichQueue { lo: is_logical_broker(&queue.broker_name), broker_name: &queue.broker_name }
}

/// The queues of a static topic, as clients see them; none of another.
fn logical_queues(topic: &str, route: &TopicRoute) -> Vec<MessageQueue> {
    let mut queues = Route::new(topic, route.clone()).readable;
    queues.retain(|queue| is_logical_broker(&queue.broker_name));
    queues
}
