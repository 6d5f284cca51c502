//! What a member asks of brokers: one function a request.

use std::time::Duration;

use bytes::Bytes;
use net::Response;
use protocol::body::{ConsumerIdList, LockBatch, LockBatchReply, MessageQueue};
use protocol::code::{ResponseCode, request};
use protocol::fastjson::{self, Dialect};
use protocol::header::EncodeFields;
use protocol::request::FieldError;
use protocol::request::SendBack;
use protocol::request::{GetConsumerList, UnregisterClient};
use protocol::request::{
    GetMaxOffset, GetMinOffset, OffsetReply, QueryConsumerOffset, SearchOffset, UpdateConsumerOffset,
};
use protocol::request::{PullMessage, PullReply};

use crate::error::ClientError;
use crate::logical::{lo, which};
use crate::member::Member;
use crate::message::Received;
use crate::pull_consumer::{PullStatus, Pulled, PulledRecords};
use crate::route::Route;
use crate::tries::Tries;

pub(crate) fn malformed(error: FieldError) -> ClientError {
    ClientError::malformed("a response header", error)
}

impl Member {
    /// Asks, and takes only success for an answer.
    pub(crate) async fn call(
        &self,
        address: &str,
        code: i32,
        fields: &(dyn EncodeFields + Sync),
        body: Bytes,
        timeout: Duration,
    ) -> Result<Response, ClientError> {
        let response = self.exchange(address, code, fields, body, timeout).await?;
        if response.code == ResponseCode::Success as i32 {
            Ok(response)
        } else {
            Err(ClientError::refused(address, response))
        }
    }

    pub(crate) async fn unregister(
        &self,
        address: &str,
        producer_group: Option<&str>,
        consumer_group: Option<&str>,
    ) -> Result<(), ClientError> {
        let fields = UnregisterClient { client_id: &self.id, producer_group, consumer_group };
        self.call(address, request::UNREGISTER_CLIENT, &fields, Bytes::new(), self.config.timeout).await?;
        Ok(())
    }

    /// The members of a group, as one broker knows them; nobody, if it knows nobody.
    pub(crate) async fn members(&self, address: &str, group: &str) -> Result<Vec<String>, ClientError> {
        let fields = GetConsumerList { consumer_group: group };
        let code = request::GET_CONSUMER_LIST_BY_GROUP;
        match self.call(address, code, &fields, Bytes::new(), self.config.timeout).await {
            Ok(response) => fastjson::from_slice::<ConsumerIdList>(&response.body)
                .map(|list| list.consumer_id_list)
                .map_err(|error| ClientError::malformed("the list of a group", error)),
            Err(error) if error.code() == Some(ResponseCode::SystemError as i32) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Where a queue's master is, or some replica of it.
    pub(crate) async fn address(&self, queue: &MessageQueue) -> Result<String, ClientError> {
        let route = self.route(&queue.topic).await?;
        address_in(&route, queue)
    }

    /// Pulls from `queue`, which is at `address`. What comes has the queue's own numbers, wherever a logical queue's messages are.
    pub(crate) async fn pull(
        &self,
        address: &str,
        fields: &PullMessage<'_>,
        queue: &MessageQueue,
        timeout: Duration,
    ) -> Result<Pulled, ClientError> {
        self.pull_records(address, fields, queue, timeout).await?.messages(queue, fields.queue_offset)
    }

    /// As [`Member::pull`], with the records as they are stored.
    pub(crate) async fn pull_records(
        &self,
        address: &str,
        fields: &PullMessage<'_>,
        queue: &MessageQueue,
        timeout: Duration,
    ) -> Result<PulledRecords, ClientError> {
        let fields = (fields, lo(queue));
        let response = self.exchange(address, request::PULL_MESSAGE, &fields, Bytes::new(), timeout).await?;
        let status = match ResponseCode::from_i32(response.code) {
            Some(ResponseCode::Success) => PullStatus::Found,
            Some(ResponseCode::PullNotFound) => PullStatus::NothingNew,
            Some(ResponseCode::PullRetryImmediately) => PullStatus::NothingMatched,
            Some(ResponseCode::PullOffsetMoved) => PullStatus::OffsetOutOfRange,
            _ => return Err(ClientError::refused(address, response)),
        };
        let reply = PullReply::decode(&response.fields.as_fields()).map_err(malformed)?;
        Ok(PulledRecords {
            status,
            next_offset: reply.next_begin_offset,
            min_offset: reply.min_offset,
            max_offset: reply.max_offset,
            offset_delta: reply.offset_delta,
            records: if status == PullStatus::Found { response.body } else { Bytes::new() },
        })
    }

    /// The committed offset, if there is one. Unless `set_zero_if_not_found` says `Some(false)`, the broker may answer 0 for a
    /// queue without one.
    pub(crate) async fn committed(
        &self,
        group: &str,
        queue: &MessageQueue,
        set_zero_if_not_found: Option<bool>,
    ) -> Result<Option<i64>, ClientError> {
        let fields = QueryConsumerOffset {
            consumer_group: group,
            topic: &queue.topic,
            queue_id: queue.queue_id,
            set_zero_if_not_found,
        };
        match self.offset(queue, request::QUERY_CONSUMER_OFFSET, &fields).await {
            Ok(offset) => Ok(Some(offset)),
            Err(error) if error.code() == Some(ResponseCode::QueryNotFound as i32) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Commits; waits for the broker's word only if asked to.
    pub(crate) async fn commit(
        &self,
        group: &str,
        queue: &MessageQueue,
        offset: i64,
        is_oneway: bool,
    ) -> Result<(), ClientError> {
        let fields = UpdateConsumerOffset {
            consumer_group: group,
            topic: &queue.topic,
            queue_id: queue.queue_id,
            commit_offset: offset,
        };
        let code = request::UPDATE_CONSUMER_OFFSET;
        if is_oneway {
            let address = self.address(queue).await?;
            return Ok(self.oneway(&address, code, &(fields, which(queue)), Bytes::new()).await?);
        }
        self.ask_leader(queue, code, &fields).await.map(drop)
    }

    pub(crate) async fn min_offset(&self, queue: &MessageQueue) -> Result<i64, ClientError> {
        let fields = GetMinOffset { topic: &queue.topic, queue_id: queue.queue_id };
        self.offset(queue, request::GET_MIN_OFFSET, &fields).await
    }

    pub(crate) async fn max_offset(&self, queue: &MessageQueue) -> Result<i64, ClientError> {
        let fields = GetMaxOffset { topic: &queue.topic, queue_id: queue.queue_id, committed: true };
        self.offset(queue, request::GET_MAX_OFFSET, &fields).await
    }

    pub(crate) async fn offset_by_time(&self, queue: &MessageQueue, timestamp: i64) -> Result<i64, ClientError> {
        let fields = SearchOffset {
            topic: &queue.topic,
            queue_id: queue.queue_id,
            timestamp,
            boundary_type: None,
            lite_topic: None,
        };
        self.offset(queue, request::SEARCH_OFFSET_BY_TIMESTAMP, &fields).await
    }

    async fn offset(
        &self,
        queue: &MessageQueue,
        code: i32,
        fields: &(dyn EncodeFields + Sync),
    ) -> Result<i64, ClientError> {
        let response = self.ask_leader(queue, code, fields).await?;
        Ok(OffsetReply::decode(&response.fields.as_fields()).map_err(malformed)?.offset)
    }

    /// Asks the broker that a queue is on, and where the queue has moved, or is just moving, the one that it is on then.
    async fn ask_leader(
        &self,
        queue: &MessageQueue,
        code: i32,
        fields: &(dyn EncodeFields + Sync),
    ) -> Result<Response, ClientError> {
        let mut tries = Tries::new(self, queue);
        loop {
            let answer = match self.address(queue).await {
                Ok(address) => {
                    self.call(&address, code, &(fields, which(queue)), Bytes::new(), self.config.timeout).await
                }
                Err(error) => Err(error),
            };
            if !tries.go_on(&answer).await {
                return answer;
            }
        }
    }

    /// Locks queues of one broker for this member of the group; says which are.
    pub(crate) async fn lock(&self, group: &str, queues: &[MessageQueue]) -> Result<Vec<MessageQueue>, ClientError> {
        let Some(first) = queues.first() else { return Ok(Vec::new()) };
        let address = self.address(first).await?;
        let body = self.lock_body(group, queues);
        let response = self.call(&address, request::LOCK_BATCH_MQ, &(), body, self.config.timeout).await?;
        let reply: LockBatchReply = fastjson::from_slice(&response.body)
            .map_err(|error| ClientError::malformed("the list of locked queues", error))?;
        Ok(reply.lock_ok_mq_set)
    }

    pub(crate) async fn unlock(&self, group: &str, queue: &MessageQueue) -> Result<(), ClientError> {
        let address = self.address(queue).await?;
        let body = self.lock_body(group, std::slice::from_ref(queue));
        self.call(&address, request::UNLOCK_BATCH_MQ, &(), body, self.config.timeout).await?;
        Ok(())
    }

    fn lock_body(&self, group: &str, queues: &[MessageQueue]) -> Bytes {
        let lock = LockBatch {
            client_id: self.id.clone(),
            consumer_group: group.to_owned(),
            mq_set: queues.to_vec(),
            only_this_broker: false,
        };
        fastjson::to_vec(&lock, Dialect::FastJson).into()
    }

    /// Gives a message of `pulled_from` back: the broker delivers it again later, or moves it to the dead letters.
    pub(crate) async fn send_back(
        &self,
        group: &str,
        pulled_from: &MessageQueue,
        message: &Received,
        delay_level: i32,
        max_reconsume_times: i32,
    ) -> Result<(), ClientError> {
        let address = if which(pulled_from).is_some() {
            // It may lie in an older place of the queue, on another broker than the one that gave it to us.
            message.store_host.to_string()
        } else {
            // The route of the queue that was pulled is known; the topic that a retried message came from may be gone.
            let route = self.route(&pulled_from.topic).await?;
            route
                .master(&pulled_from.broker_name)
                .map(str::to_owned)
                .ok_or_else(|| ClientError::NoAddress { broker: pulled_from.broker_name.clone() })?
        };
        let fields = SendBack {
            offset: message.log_offset,
            group,
            delay_level,
            origin_msg_id: Some(&message.message_id),
            origin_topic: Some(&message.topic),
            unit_mode: false,
            max_reconsume_times: Some(max_reconsume_times),
            broker_name: Some(&message.broker_name),
        };
        self.call(&address, request::CONSUMER_SEND_MSG_BACK, &fields, Bytes::new(), self.config.timeout).await?;
        Ok(())
    }
}

pub(crate) fn address_in(route: &Route, queue: &MessageQueue) -> Result<String, ClientError> {
    let broker = broker_in(route, queue)?;
    route.any(broker).map(str::to_owned).ok_or_else(|| ClientError::NoAddress { broker: broker.to_owned() })
}

/// The name of the broker that a queue is on.
pub(crate) fn broker_in<'a>(route: &'a Route, queue: &'a MessageQueue) -> Result<&'a str, ClientError> {
    route.broker_of(queue).ok_or_else(|| ClientError::NoLeader { topic: queue.topic.clone(), queue_id: queue.queue_id })
}
