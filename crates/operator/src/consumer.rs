//! What the consumers of a group say of themselves.

use client::ClientError;
use protocol::body::ConsumerRunningInfo;
use protocol::code::request;
use protocol::names::retry_topic;
use protocol::request::GetConsumerRunningInfo;

use crate::cluster::readable;
use crate::error::Result;
use crate::handle::Operator;

impl Operator {
    /// Asks one member of a group, through the first broker that reaches it.
    pub async fn running_info(&self, group: &str, client_id: &str, with_stacks: bool) -> Result<ConsumerRunningInfo> {
        let fields = GetConsumerRunningInfo { consumer_group: group, client_id, jstack_enable: with_stacks };
        let route = self.admin.route(&retry_topic(group)).await?;
        let mut last = ClientError::NoRoute { topic: retry_topic(group) };
        for (_, address) in readable(&route) {
            match self.admin.ask(&address, request::GET_CONSUMER_RUNNING_INFO, &fields).await {
                Ok(info) => return Ok(info),
                Err(error) => last = error,
            }
        }
        Err(last.into())
    }
}

/// Whether messages are pushed to a consumer: only such a one can be given a message directly.
pub fn is_push(info: &ConsumerRunningInfo) -> bool {
    info.property("PROP_CONSUME_TYPE").as_deref() == Some("CONSUME_PASSIVELY")
}
