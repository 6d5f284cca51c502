//! The units of a consume queue.

use protocol::body::QueryConsumeQueueReply;
use protocol::code::request;
use protocol::request::QueryConsumeQueue;

use crate::cluster::masters;
use crate::error::{OperatorError, Result};
use crate::handle::Operator;

/// Which units.
#[derive(Clone, Copy, Debug)]
pub struct Units<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The queue.
    pub queue_id: i32,
    /// The first unit.
    pub index: i64,
    /// How many.
    pub count: i32,
    /// The group whose subscription they are held against.
    pub group: Option<&'a str>,
}

impl Operator {
    /// The units of a queue at a broker, or else at the first master of the topic.
    pub async fn units(&self, broker: Option<&str>, units: &Units<'_>) -> Result<QueryConsumeQueueReply> {
        let topic = units.topic;
        let address = match broker {
            Some(address) => address.to_owned(),
            None => {
                let route = self.route(topic).await?;
                let first = masters(&route).next().map(|(_, address)| address.to_owned());
                first.ok_or_else(|| OperatorError::Unfit(format!("topic {topic} has no master at the moment")))?
            }
        };
        let fields = QueryConsumeQueue {
            topic: Some(topic),
            queue_id: units.queue_id,
            index: units.index,
            count: units.count,
            consumer_group: units.group,
        };
        let response = self.admin.tell(&address, request::QUERY_CONSUME_QUEUE, &fields).await?;
        if response.body.is_empty() {
            // An index that the queue does not have is a success whose remark says so.
            let said = response.remark.unwrap_or_else(|| "the broker's answer is empty".to_owned());
            return Err(OperatorError::NotFound(said));
        }
        let read = protocol::fastjson::from_slice(&response.body);
        read.map_err(|error| OperatorError::from(error).during("the broker's answer is not readable"))
    }
}
