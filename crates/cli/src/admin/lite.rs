//! Lite topics: small topics within a topic, of which a client subscribes to many.

use std::collections::BTreeMap;

use anyhow::Result;
use clap::Args;
use protocol::body::LiteLagInfo;

use super::output::{Cell, Facts, Table};
use super::session::Session;
use super::target::Target;

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct GetBrokerLiteInfo {
    #[command(flatten)]
    target: Target,
    /// With topics and groups
    #[arg(short = 'd', long)]
    show_detail: bool,
}

impl GetBrokerLiteInfo {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let mut table = Table::new([
            "Broker",
            "Store Type",
            "Max LMQ",
            "Current LMQ",
            "SubscriptionCount",
            "OrderInfoCount",
            "CQTableSize",
            "OffsetTableSize",
            "EventMapSize",
        ]);
        let mut details = BTreeMap::new();
        for address in session.masters(&self.target).await? {
            let info = session.operator.lite_figures(&address).await?;
            table.row([
                (&address).into(),
                info.store_type.as_deref().into(),
                info.max_lmq_num.into(),
                info.current_lmq_num.into(),
                info.lite_subscription_count.into(),
                info.order_info_count.into(),
                info.cq_table_size.into(),
                info.offset_table_size.into(),
                info.event_map_size.into(),
            ]);
            details.insert(address, serde_json::json!({"topicMeta": info.topic_meta, "groupMeta": info.group_meta}));
        }
        session.out.table("brokers", &table)?;
        if self.show_detail {
            session.out.value("details", &details)?;
        }
        Ok(())
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct GetParentTopicInfo {
    /// The topic that holds lite topics
    #[arg(short, long)]
    parent_topic: String,
}

impl GetParentTopicInfo {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let mut table = Table::new(["Broker Name", "TTL", "Lite Count", "LMQ Num", "Groups"]);
        for (name, info) in session.operator.parent_topic(self.parent_topic.trim()).await? {
            let groups = Cell::list(&info.groups);
            table.row([name.into(), info.ttl.into(), info.lite_topic_count.into(), info.lmq_num.into(), groups]);
        }
        session.out.table("brokers", &table)?;
        Ok(())
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct GetLiteTopicInfo {
    /// The topic that holds it
    #[arg(short, long)]
    parent_topic: String,
    /// The lite topic
    #[arg(short, long)]
    lite_topic: String,
    /// With the clients
    #[arg(short, long)]
    show_client_id: bool,
}

impl GetLiteTopicInfo {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let parent = self.parent_topic.trim();
        let mut table =
            Table::new(["Broker Name", "MinOffset", "MaxOffset", "LastUpdate", "Sharding", "SubClientCount"]);
        let mut clients = Table::new(["Broker Name", "ClientId", "Group"]);
        for (name, info) in session.operator.lite_topic(parent, self.lite_topic.trim()).await? {
            let offsets = info.topic_offset.unwrap_or_default();
            let subscribers = info.subscriber.unwrap_or_default();
            for one in &subscribers {
                clients.row([(&name).into(), (&one.client_id).into(), (&one.group).into()]);
            }
            table.row([
                name.into(),
                offsets.min_offset.into(),
                offsets.max_offset.into(),
                Cell::time(offsets.last_update_timestamp),
                info.sharding_to_broker.into(),
                subscribers.len().into(),
            ]);
        }
        session.out.table("brokers", &table)?;
        if self.show_client_id {
            session.out.table("clients", &clients)?;
        }
        Ok(())
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct GetLiteClientInfo {
    /// The topic that holds lite topics
    #[arg(short, long)]
    parent_topic: String,
    /// The group
    #[arg(short, long)]
    group: String,
    /// The client
    #[arg(short, long)]
    client_id: String,
    /// With the lite topics
    #[arg(short, long)]
    show_detail: bool,
}

impl GetLiteClientInfo {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let parent = self.parent_topic.trim();
        let mut table = Table::new(["Broker", "LiteTopicCount", "LastAccessTime", "LastConsumeTime", "LiteTopics"]);
        for (name, info) in session.operator.lite_client(parent, self.group.trim(), self.client_id.trim()).await? {
            let topics = info.lite_topic_set.filter(|_| self.show_detail).unwrap_or_default();
            table.row([
                name.into(),
                // -1: the broker does not know the client.
                (info.lite_topic_count >= 0).then_some(info.lite_topic_count).into(),
                Cell::time(info.last_access_time),
                Cell::time(info.last_consume_time),
                Cell::list(topics),
            ]);
        }
        session.out.table("brokers", &table)?;
        Ok(())
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct GetLiteGroupInfo {
    /// The topic that holds lite topics
    #[arg(short, long)]
    parent_topic: String,
    /// The group
    #[arg(short, long)]
    group: String,
    /// One lite topic
    #[arg(short, long)]
    lite_topic: Option<String>,
    /// How many of the worst lite topics to name
    #[arg(short = 'k', long, default_value_t = 20, value_parser = clap::value_parser!(i32).range(1..))]
    top_k: i32,
}

impl GetLiteGroupInfo {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let parent = self.parent_topic.trim();
        let mut offsets = Table::new(["Broker Name", "BrokerOffset", "ConsumeOffset", "LagCount", "LastUpdate"]);
        let (mut by_count, mut by_time) = (Vec::new(), Vec::new());
        let (mut lag, mut oldest) = (0, i64::MAX);
        let (group, lite_topic) = (self.group.trim(), self.lite_topic.as_deref().map(str::trim));
        for (name, info) in session.operator.lite_group(parent, group, lite_topic, self.top_k).await? {
            lag += info.total_lag_count.max(0);
            if info.earliest_unconsumed_timestamp > 0 {
                oldest = oldest.min(info.earliest_unconsumed_timestamp);
            }
            by_count.extend(info.lag_count_top_k.unwrap_or_default());
            by_time.extend(info.lag_timestamp_top_k.unwrap_or_default());
            if let Some(one) = info.lite_topic_offset_wrapper {
                let behind = one.broker_offset - one.consumer_offset;
                let last = Cell::time(one.last_timestamp);
                offsets.row([name.into(), one.broker_offset.into(), one.consumer_offset.into(), behind.into(), last]);
            }
        }
        let oldest = if oldest == i64::MAX { 0 } else { oldest };
        let facts = Facts::new().with("Total Lag Count", lag).with("Min Unconsumed Timestamp", Cell::time(oldest));
        session.out.facts(&facts)?;
        if self.lite_topic.is_some() {
            session.out.table("brokers", &offsets)?;
            return Ok(());
        }
        by_count.sort_by_key(|one| std::cmp::Reverse(one.lag_count));
        by_time.sort_by_key(|one| one.earliest_unconsumed_timestamp);
        for (title, name, lags) in
            [("TopK by lag count", "topByCount", by_count), ("TopK by lag time", "topByTime", by_time)]
        {
            session.out.note(&format!("\n------{title}------"))?;
            session.out.table(name, &table(&lags))?;
        }
        Ok(())
    }
}

fn table(lags: &[LiteLagInfo]) -> Table {
    let mut table = Table::new(["NO", "Lite Topic", "Lag Count", "UnconsumedTimestamp"]);
    for (at, lag) in lags.iter().enumerate() {
        let oldest = Cell::time(lag.earliest_unconsumed_timestamp);
        table.row([(at + 1).into(), (&lag.lite_topic).into(), lag.lag_count.into(), oldest]);
    }
    table
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct TriggerLiteDispatch {
    /// The topic that holds lite topics
    #[arg(short, long)]
    parent_topic: String,
    /// The group
    #[arg(short, long)]
    group: String,
    /// One client
    #[arg(short, long)]
    client_id: Option<String>,
    /// One broker, by name
    #[arg(short, long)]
    broker_name: Option<String>,
}

impl TriggerLiteDispatch {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let (parent, group) = (self.parent_topic.trim(), self.group.trim());
        let (client, broker) = (self.client_id.as_deref().map(str::trim), self.broker_name.as_deref().map(str::trim));
        let mut table = Table::new(["Broker Name", "State"]);
        for name in session.operator.dispatch_lite(parent, group, client, broker).await? {
            table.row([name.into(), "dispatched".into()]);
        }
        session.out.table("brokers", &table)?;
        Ok(())
    }
}
