//! What the consumers of a group say of themselves.

use std::collections::{BTreeMap, BTreeSet};

use client::ClientError;
use protocol::body::{ConsumerRunningInfo, MessageQueue, ProcessQueueInfo};
use protocol::code::request;
use protocol::names::retry_topic;
use protocol::request::GetConsumerRunningInfo;

use crate::cluster::readable;
use crate::error::Result;
use crate::handle::Operator;

/// A consumer that has messages and has not consumed for so long is said to be stuck. As in mqadmin.
const STUCK_AFTER_MS: i64 = 60_000;

/// What is right or wrong in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// There is nothing to look at.
    NoAnswer,
    /// Members subscribe to different things; nothing else is looked at then.
    SubscriptionsDiffer,
    /// All members subscribe to the same.
    SubscriptionsAgree,
    /// Each queue has one member.
    Balanced,
    /// A queue has several members.
    Doubled {
        /// The members.
        clients: Vec<String>,
        /// The queue.
        queue: MessageQueue,
    },
    /// A member that consumes in order has not locked its queue.
    NotLocked {
        /// The member.
        client: String,
        /// The queue.
        queue: MessageQueue,
        /// For so long, in milliseconds.
        since_ms: i64,
    },
    /// A member holds messages of a queue and does not consume them.
    Stuck {
        /// The member.
        client: String,
        /// The queue.
        queue: MessageQueue,
        /// For so long, in milliseconds.
        since_ms: i64,
    },
}

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

/// What is right and what is wrong in a group, by what its members said of themselves.
pub fn findings(infos: &BTreeMap<String, ConsumerRunningInfo>, now: i64) -> Vec<Finding> {
    let subscriptions: BTreeSet<Vec<(&str, &str)>> = infos
        .values()
        .map(|info| {
            let topics = info.subscription_set.iter();
            let mut topics: Vec<_> = topics.map(|one| (one.topic.as_str(), one.sub_string.as_str())).collect();
            topics.sort_unstable();
            topics
        })
        .collect();
    match subscriptions.len() {
        0 => return vec![Finding::NoAnswer],
        1 => {}
        _ => return vec![Finding::SubscriptionsDiffer],
    }
    let mut findings = vec![Finding::SubscriptionsAgree];

    let mut owners: BTreeMap<&MessageQueue, Vec<&String>> = BTreeMap::new();
    for (client, info) in infos.iter().filter(|(_, info)| is_push(info)) {
        for queue in info.mq_table.keys() {
            owners.entry(queue).or_default().push(client);
        }
    }
    // In broadcast every member has every queue.
    let is_shared = |clients: &Vec<&String>| clients.len() > 1 && clients.len() < infos.len();
    findings.push(match owners.into_iter().find(|(_, clients)| is_shared(clients)) {
        None => Finding::Balanced,
        Some((queue, clients)) => {
            Finding::Doubled { clients: clients.into_iter().cloned().collect(), queue: queue.clone() }
        }
    });
    for (client, info) in infos.iter().filter(|(_, info)| is_push(info)) {
        let is_ordered = info.property("PROP_CONSUMEORDERLY").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        findings.extend(info.mq_table.iter().filter_map(|(queue, state)| stuck(client, queue, state, is_ordered, now)));
    }
    findings
}

fn stuck(client: &str, queue: &MessageQueue, state: &ProcessQueueInfo, is_ordered: bool, now: i64) -> Option<Finding> {
    let (client, queue) = (client.to_owned(), queue.clone());
    if is_ordered {
        let since_ms = now - state.last_lock_timestamp;
        return (!state.locked).then_some(Finding::NotLocked { client, queue, since_ms });
    }
    let since_ms = now - state.last_consume_timestamp;
    (state.cached_msg_count > 0 && since_ms > STUCK_AFTER_MS).then_some(Finding::Stuck { client, queue, since_ms })
}
