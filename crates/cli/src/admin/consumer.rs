//! What the consumers of a group say of themselves.

use std::collections::BTreeMap;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use env::counted;
use operator::consumer::{Finding, findings};
use protocol::body::{ConsumerRunningInfo, MessageQueue};
use protocol::version;

use super::output::{Cell, Facts, Table};
use super::session::Session;

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct ConsumerStatus {
    /// The group
    #[arg(short = 'g', long)]
    consumer_group: String,
    /// One member only, in full
    #[arg(short = 'i', long)]
    client_id: Option<String>,
    /// Ask this broker who the members are
    #[arg(short, long, value_name = "HOST:PORT")]
    broker_addr: Option<String>,
    /// With the stacks of their threads
    #[arg(short = 's', long)]
    jstack: bool,
}

impl ConsumerStatus {
    pub async fn run(&self, session: &Session) -> Result<()> {
        session.operator.need_names()?;
        let group = self.consumer_group.trim();
        if let Some(client) = &self.client_id {
            let info = session.operator.running_info(group, client.trim(), self.jstack).await?;
            return show(session, &info);
        }
        let found = match session.operator.consumers(group, self.broker_addr.as_deref()).await {
            Err(error) if error.is_offline() => return Err(nobody_online(session, group).await?),
            found => found.with_context(|| format!("cannot learn the consumers of group {group}"))?,
        };
        let mut infos = BTreeMap::new();
        let mut table = Table::new(["Index", "ClientId", "Version", "Queues", "Cached Messages", "State"]);
        for (at, member) in found.connection_set.iter().enumerate() {
            let info = session.operator.running_info(group, &member.client_id, self.jstack).await;
            let known = info.as_ref().ok();
            let state = match &info {
                Ok(_) => Cell::from("answers"),
                Err(error) => Cell::from(error.to_string()),
            };
            table.row([
                (at + 1).into(),
                (&member.client_id).into(),
                version::name(member.version).into(),
                known.map(|info| info.mq_table.len() + info.mq_pop_table.len()).into(),
                known.map(|info| info.mq_table.values().map(|queue| queue.cached_msg_count).sum::<i32>()).into(),
                state,
            ]);
            if let Ok(info) = info {
                infos.insert(member.client_id.clone(), info);
            }
        }
        session.out.table("consumers", &table)?;
        session.out.note("")?;
        for finding in findings(&infos, session.operator.now()) {
            session.out.say(text(&finding))?;
        }
        if session.out.is_json() {
            session.out.value("runningInfo", &infos)?;
        }
        Ok(())
    }
}

/// What is to be said of a group of which no consumer is online: whether there is such a group at all.
pub async fn nobody_online(session: &Session, group: &str) -> Result<anyhow::Error> {
    let stats = session.consume_stats(group, None, None).await?;
    Ok(if !stats.offset_table.is_empty() {
        let queues = counted(stats.offset_table.len(), "queue");
        anyhow!(
            "no consumer of group {group} is online; its offsets of {queues} are known: consumerProgress -g {group} shows them"
        )
    } else if session.operator.is_group_known(group).await? {
        anyhow!("no consumer of group {group} is online, and it has committed no offset")
    } else {
        anyhow!(
            "nothing is known of group {group}: no consumer is online, and no broker has its configuration or an offset of it"
        )
    })
}

fn text(finding: &Finding) -> String {
    match finding {
        Finding::NoAnswer => "no consumer answers".to_owned(),
        Finding::SubscriptionsDiffer => "WARN: Different subscription in the same group of consumer!!!".to_owned(),
        Finding::SubscriptionsAgree => "Same subscription in the same group of consumer".to_owned(),
        Finding::Balanced => "Rebalance OK".to_owned(),
        Finding::Doubled { clients, queue } => {
            format!("Rebalance Failed: {} has {}", clients.join(" and "), queue_text(queue))
        }
        Finding::NotLocked { client, queue, since_ms } => {
            format!("{client} {} can't lock for a while, {since_ms}ms", queue_text(queue))
        }
        Finding::Stuck { client, queue, since_ms } => {
            format!("{client} {} can't consume for a while, maybe blocked, {since_ms}ms", queue_text(queue))
        }
    }
}

fn queue_text(queue: &MessageQueue) -> String {
    format!("{} {} {}", queue.topic, queue.broker_name, queue.queue_id)
}

/// One consumer, in full.
fn show(session: &Session, info: &ConsumerRunningInfo) -> Result<()> {
    let out = &session.out;
    if out.is_json() {
        out.value("runningInfo", info)?;
        return Ok(());
    }
    out.note("#Consumer Properties#")?;
    let names = info.properties.keys();
    out.facts(&names.fold(Facts::new(), |facts, name| facts.with(name, info.property(name))))?;

    out.note("\n#Consumer Subscription#")?;
    let mut table = Table::new(["Topic", "ClassFilter", "SubExpression"]);
    for one in &info.subscription_set {
        table.row([(&one.topic).into(), one.class_filter_mode.into(), (&one.sub_string).into()]);
    }
    out.table("subscriptions", &table)?;

    out.note("\n#Consumer MQ Detail#")?;
    let mut table = Table::new([
        "Topic",
        "Broker Name",
        "QID",
        "Consumer Offset",
        "Cached",
        "Cached From",
        "Cached To",
        "MiB",
        "Locked",
        "Dropped",
        "Last Pull",
        "Last Consume",
    ]);
    for (queue, state) in info.mq_table.iter() {
        table.row([
            (&queue.topic).into(),
            (&queue.broker_name).into(),
            queue.queue_id.into(),
            state.commit_offset.into(),
            state.cached_msg_count.into(),
            state.cached_msg_min_offset.into(),
            state.cached_msg_max_offset.into(),
            state.cached_msg_size_in_mi_b.into(),
            state.locked.into(),
            state.droped.into(),
            Cell::time(state.last_pull_timestamp),
            Cell::time(state.last_consume_timestamp),
        ]);
    }
    out.table("queues", &table)?;

    if !info.mq_pop_table.is_empty() {
        out.note("\n#Consumer Pop Detail#")?;
        let mut table = Table::new(["Topic", "Broker Name", "QID", "Wait Ack", "Dropped", "Last Pop"]);
        for (queue, state) in info.mq_pop_table.iter() {
            table.row([
                (&queue.topic).into(),
                (&queue.broker_name).into(),
                queue.queue_id.into(),
                state.wait_ack_count.into(),
                state.droped.into(),
                Cell::time(state.last_pop_timestamp),
            ]);
        }
        out.table("popQueues", &table)?;
    }

    out.note("\n#Consumer RT&TPS#")?;
    let mut table = Table::new([
        "Topic",
        "Pull RT",
        "Pull TPS",
        "Consume RT",
        "ConsumeOK TPS",
        "ConsumeFailed TPS",
        "ConsumeFailedMsgsInHour",
    ]);
    for (topic, status) in &info.status_table {
        table.row([
            topic.into(),
            status.pull_rt.into(),
            status.pull_tps.into(),
            status.consume_rt.into(),
            status.consume_ok_tps.into(),
            status.consume_failed_tps.into(),
            status.consume_failed_msgs.into(),
        ]);
    }
    out.table("status", &table)?;

    if !info.user_consumer_info.is_empty() {
        out.note("\n#User Consume Info#")?;
        let pairs = info.user_consumer_info.iter();
        out.facts(&pairs.fold(Facts::new(), |facts, (name, value)| facts.with(name, value)))?;
    }
    if let Some(stacks) = &info.jstack {
        out.note("\n#Consumer jstack#")?;
        out.note(stacks)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::body::{ProcessQueueInfo, SubscriptionData};

    fn member(topic: &str, queues: &[i32]) -> ConsumerRunningInfo {
        let mut info = ConsumerRunningInfo::default();
        info.properties.insert("PROP_CONSUME_TYPE".into(), "CONSUME_PASSIVELY".into());
        info.subscription_set.push(SubscriptionData { topic: topic.into(), ..SubscriptionData::default() });
        for queue_id in queues {
            let queue = MessageQueue { topic: topic.into(), broker_name: "b".into(), queue_id: *queue_id };
            info.mq_table.insert(queue, ProcessQueueInfo::default());
        }
        info
    }

    fn of(members: &[ConsumerRunningInfo]) -> Vec<String> {
        let infos = members.iter().enumerate().map(|(at, info)| (format!("c{at}"), info.clone())).collect();
        findings(&infos, 1_000_000).iter().map(text).collect()
    }

    #[test]
    fn a_group_in_order_is_said_to_be_so_and_a_queue_of_two_members_is_found() {
        let fine = of(&[member("t", &[0, 1]), member("t", &[2]), member("t", &[3])]);
        assert_eq!(fine, ["Same subscription in the same group of consumer", "Rebalance OK"]);
        let doubled = of(&[member("t", &[0, 1]), member("t", &[1]), member("t", &[3])]);
        assert_eq!(doubled[1], "Rebalance Failed: c0 and c1 has t b 1");
        assert!(of(&[member("t", &[]), member("u", &[])])[0].starts_with("WARN: Different subscription"));
        assert_eq!(of(&[]), ["no consumer answers"]);
    }

    #[test]
    fn a_member_that_holds_messages_and_does_not_consume_is_named() {
        let mut info = member("t", &[0]);
        for state in info.mq_table.values_mut() {
            state.cached_msg_count = 5;
            state.last_consume_timestamp = 900_000;
        }
        assert_eq!(of(&[info])[2], "c0 t b 0 can't consume for a while, maybe blocked, 100000ms");
    }
}
