//! The clusters and their brokers.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use operator::{Broker, Target};

use super::output::{Cell, Table};
use super::session::Session;

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct ClusterList {
    /// Messages of yesterday and today instead of the present
    #[arg(short, long)]
    more_stats: bool,
    /// Again and again, after so many seconds
    #[arg(short, long, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    interval: Option<u64>,
    /// One cluster
    #[arg(short, long)]
    cluster_name: Option<String>,
}

type Info = BTreeMap<String, String>;

impl ClusterList {
    pub async fn run(&self, session: &Session) -> Result<()> {
        loop {
            let target = self.cluster_name.as_deref().map_or(Target::All, |cluster| Target::Cluster(cluster.trim()));
            let brokers = session.operator.registered(target).await?;
            let table = if self.more_stats { days(session, brokers).await } else { now(session, brokers).await };
            session.out.table("brokers", &table)?;
            let Some(seconds) = self.interval else { return Ok(()) };
            if !session.again_after(Duration::from_secs(seconds)).await? {
                return Ok(());
            }
        }
    }
}

async fn now(session: &Session, brokers: Vec<Broker>) -> Table {
    let mut table = Table::new([
        "Cluster Name",
        "Broker Name",
        "BID",
        "Addr",
        "Version",
        "InTPS(LOAD)",
        "OutTPS(LOAD)",
        "Timer(Progress)",
        "PCWait(ms)",
        "Hour",
        "SPACE",
        "ACTIVATED",
    ]);
    for broker in brokers {
        // A broker that does not answer is a line all the same: that is what one looks for.
        let runtime = session.operator.runtime_info(&broker.address).await;
        let known = runtime.as_ref().map_or_else(|_| Info::new(), Clone::clone);
        let text = |key: &str| known.get(key).map_or("", String::as_str);
        let or_n = |key: &str| known.get(key).map_or("N", String::as_str);
        let first = |key: &str| text(key).split(' ').next().and_then(|tps| tps.parse().ok()).unwrap_or(0.0);
        let number = |key: &str| text(key).parse::<f64>().unwrap_or(0.0);
        let (came, went): (f64, f64) = (first("putTps"), first("getTransferredTps"));
        let queue = |name: &str| {
            let wait = or_n(&format!("{name}ThreadPoolQueueHeadWaitTimeMills"));
            format!("{},{wait}ms", or_n(&format!("{name}ThreadPoolQueueSize")))
        };
        let hours = match text("earliestMessageTimeStamp").parse::<i64>() {
            Ok(earliest) if earliest > 0 => (session.operator.now() - earliest) as f64 / 3_600_000.0,
            Ok(_) | Err(_) => 0.0,
        };
        let timer = format!(
            "{}-{}({:.1}w,{:.1},{:.1})",
            number("timerReadBehind"),
            number("timerOffsetBehind"),
            number("timerCongestNum") / 10_000.0,
            number("timerEnqueueTps"),
            number("timerDequeueTps")
        );
        let state = match &runtime {
            Ok(_) => Cell::from(text("brokerActive") == "true"),
            Err(_) => Cell::of("no answer", serde_json::Value::Null),
        };
        table.row([
            broker.cluster.into(),
            broker.name.into(),
            broker.id.into(),
            broker.address.into(),
            text("brokerVersionDesc").into(),
            Cell::of(format!("{came:.2}({})", queue("send")), came),
            Cell::of(format!("{went:.2}({}|{})", queue("pull"), queue("ack")), went),
            timer.into(),
            text("pageCacheLockTimeMills").into(),
            hours.into(),
            Cell::of(format!("{:.4}", number("commitLogDiskRatio")), number("commitLogDiskRatio")),
            state,
        ]);
    }
    table
}

async fn days(session: &Session, brokers: Vec<Broker>) -> Table {
    let mut table = Table::new([
        "Cluster Name",
        "Broker Name",
        "BID",
        "InTotalYest",
        "OutTotalYest",
        "InTotalToday",
        "OutTotalToday",
    ]);
    for broker in brokers {
        let known = session.operator.runtime_info(&broker.address).await.unwrap_or_default();
        let between = |to: &str, from: &str| {
            let number = |key: &str| known.get(key).and_then(|text| text.parse::<i64>().ok()).unwrap_or(0);
            Cell::from(number(to) - number(from))
        };
        table.row([
            broker.cluster.into(),
            broker.name.into(),
            broker.id.into(),
            between("msgPutTotalTodayMorning", "msgPutTotalYesterdayMorning"),
            between("msgGetTotalTodayMorning", "msgGetTotalYesterdayMorning"),
            between("msgPutTotalTodayNow", "msgPutTotalTodayMorning"),
            between("msgGetTotalTodayNow", "msgGetTotalTodayMorning"),
        ]);
    }
    table
}
