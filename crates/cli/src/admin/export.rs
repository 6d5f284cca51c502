//! Writing what a cluster holds into files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use operator::configuration::Server;
use operator::stats::{TOPIC_PUT_NUMS, day};
use protocol::names::{SCHEDULE_TOPIC, TRANS_HALF_TOPIC};
use protocol::version;
use serde_json::{Map, Value, json};

use super::output::{Facts, Table};
use super::session::Session;
use super::target::AnyTarget;
use super::truth;

/// As mqadmin.
pub const DEFAULT_FOLDER: &str = "/tmp/rocketmq/export";
/// What mqadmin calls itself in its report.
const MQADMIN_VERSION: i32 = 513;

/// Writes a value into a file of a folder that is made if it is not there.
pub fn write(folder: &Path, name: &str, value: &Value) -> Result<PathBuf> {
    let path = folder.join(name);
    let text = serde_json::to_string_pretty(value)?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    fs::write(&path, text + "\n").with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct ExportMetadata {
    #[command(flatten)]
    target: AnyTarget,
    /// The folder to write into
    #[arg(short, long, default_value = DEFAULT_FOLDER)]
    file_path: PathBuf,
    /// Topics only
    #[arg(short, long)]
    topic: bool,
    /// Groups only
    #[arg(short = 'g', long)]
    subscription_group: bool,
    /// With the retry and dead-letter topics of groups
    #[arg(short, long)]
    special_topic: bool,
}

impl ExportMetadata {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let addresses: Vec<String> = match (&self.target.broker_addr, &self.target.cluster) {
            (Some(address), _) => vec![address.trim().to_owned()],
            (None, Some(cluster)) => {
                let masters = session.operator.masters_of_cluster(cluster.trim()).await?.into_iter();
                masters.map(|broker| broker.address).collect()
            }
            (None, None) => bail!("what to export: -c CLUSTER or -b HOST:PORT"),
        };
        let (mut topics, mut groups) = (Map::new(), Map::new());
        for address in &addresses {
            if !self.subscription_group || self.topic {
                for (name, mut topic) in session.operator.user_topics_at(address, self.special_topic).await? {
                    // A cluster has the queues of all its brokers.
                    topic.read_queue_nums += number(&topics, &name, "readQueueNums");
                    topic.write_queue_nums += number(&topics, &name, "writeQueueNums");
                    topics.insert(name, serde_json::to_value(&topic)?);
                }
            }
            if !self.topic || self.subscription_group {
                for (name, mut group) in session.operator.user_groups_at(address).await? {
                    group.retry_queue_nums += number(&groups, &name, "retryQueueNums");
                    groups.insert(name, serde_json::to_value(&group)?);
                }
            }
        }
        let (with_topics, with_groups) = match (self.topic, self.subscription_group) {
            (false, false) => (true, true),
            (with_topics, with_groups) => (with_topics, with_groups),
        };
        let (topic_count, group_count) = (topics.len(), groups.len());
        let mut export = json!({ "exportTime": session.operator.now() });
        if with_topics {
            export["topicConfigTable"] = Value::Object(topics);
        }
        if with_groups {
            export["subscriptionGroupTable"] = Value::Object(groups);
        }
        let name = match (with_topics, with_groups) {
            (true, false) => "topic.json",
            (false, true) => "subscriptionGroup.json",
            (true, true) | (false, false) => "metadata.json",
        };
        let path = write(&self.file_path, name, &export)?;
        let facts = Facts::new()
            .with("export success", path.display().to_string())
            .with("topics", topic_count)
            .with("groups", group_count);
        session.out.facts(&facts)?;
        Ok(())
    }
}

fn number(known: &Map<String, Value>, name: &str, member: &str) -> i32 {
    let number = known.get(name).and_then(|known| known.get(member)).and_then(Value::as_i64);
    number.and_then(|number| i32::try_from(number).ok()).unwrap_or(0)
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct ExportMetrics {
    /// The cluster
    #[arg(short, long)]
    cluster_name: String,
    /// The folder to write metrics.json into
    #[arg(short, long, default_value = DEFAULT_FOLDER)]
    file_path: PathBuf,
}

/// Sums over all brokers.
#[derive(Default)]
struct Totals {
    tps: BTreeMap<&'static str, f64>,
    day: BTreeMap<&'static str, i64>,
}

impl ExportMetrics {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let mut totals = Totals::default();
        let mut report = Map::new();
        for broker in session.operator.masters_of_cluster(self.cluster_name.trim()).await? {
            let about = about(session, &broker.address, &mut totals).await?;
            report.insert(broker.name, about);
        }
        let export = json!({
            "evaluateReport": report,
            "totalData": { "totalTps": totals.tps, "totalOneDayNum": totals.day },
        });
        let path = write(&self.file_path, "metrics.json", &export)?;
        session.out.facts(&Facts::new().with("export success", path.display().to_string()))?;
        Ok(())
    }
}

/// The report on one broker: its machine, its load, the versions of its clients.
async fn about(session: &Session, address: &str, totals: &mut Totals) -> Result<Value> {
    let settings = session.operator.settings(Server::Broker, address).await?;
    let runtime = session.operator.runtime_info(address).await?;
    let groups = session.operator.user_groups_at(address).await?;
    let topics = session.operator.user_topics_at(address, false).await?;
    let first =
        |key: &str| runtime.get(key).and_then(|text| text.split(' ').next()?.parse::<f64>().ok()).unwrap_or(0.0);
    let count = |key: &str| runtime.get(key).and_then(|text| text.parse::<i64>().ok()).unwrap_or(0);
    let half = session.operator.broker_stats(address, TOPIC_PUT_NUMS, TRANS_HALF_TOPIC).await.unwrap_or_default();
    let delayed = session.operator.broker_stats(address, TOPIC_PUT_NUMS, SCHEDULE_TOPIC).await.unwrap_or_default();

    let tps = [
        ("NormalInTps", first("putTps")),
        ("NormalOutTps", first("getTransferredTps")),
        ("TransInTps", half.stats_minute.tps),
        ("ScheduleInTps", delayed.stats_minute.tps),
    ];
    let one_day = [
        ("normalOneDayInNum", count("msgPutTotalTodayMorning") - count("msgPutTotalYesterdayMorning")),
        ("normalOneDayOutNum", count("msgGetTotalTodayMorning") - count("msgGetTotalYesterdayMorning")),
        ("transOneDayInNum", day(&half)),
        ("scheduleOneDayInNum", day(&delayed)),
    ];
    let total_names = ["totalNormalInTps", "totalNormalOutTps", "totalTransInTps", "totalScheduleInTps"];
    for (total, (_, value)) in total_names.into_iter().zip(tps) {
        *totals.tps.entry(total).or_default() += value;
    }
    for (name, value) in one_day {
        *totals.day.entry(name).or_default() += value;
    }
    let mut clients = BTreeSet::new();
    for group in groups.keys() {
        // A group without consumers has no versions to tell.
        let Ok(members) = session.operator.consumers(group, None).await else { continue };
        let members = members.connection_set.into_iter();
        clients.extend(members.map(|member| format!("{}%{}", member.language, version::name(member.version))));
    }
    let tps: Map<String, Value> = tps
        .into_iter()
        .map(|(name, value)| (format!("{}{}", name[..1].to_lowercase(), &name[1..]), value.into()))
        .collect();
    Ok(json!({
        "runtimeEnv": {
            "cpuNum": settings.get("clientCallbackExecutorThreads"),
            "totalMemKBytes": runtime.get("totalMemKBytes"),
        },
        "runtimeQuota": {
            "diskRatio": {
                "commitLogDiskRatio": runtime.get("commitLogDiskRatio"),
                "consumeQueueDiskRatio": runtime.get("consumeQueueDiskRatio"),
            },
            "tps": tps,
            "oneDayNum": BTreeMap::from(one_day),
            "messageAverageSize": runtime.get("putMessageAverageSize"),
            "topicSize": topics.len(),
            "groupSize": groups.len(),
        },
        "runtimeVersion": { "rocketmqVersion": version::name(MQADMIN_VERSION), "clientInfo": clients },
    }))
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct ExportPopRecord {
    #[command(flatten)]
    target: AnyTarget,
    /// Whether to name the brokers only: true or false (default)
    #[arg(short, long, value_parser = truth)]
    dry_run: Option<bool>,
}

impl ExportPopRecord {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let is_dry = self.dry_run.unwrap_or(false);
        let brokers = match (&self.target.broker_addr, &self.target.cluster) {
            (Some(address), _) => {
                let settings = session.operator.settings(Server::Broker, address.trim()).await?;
                vec![(settings.get("brokerName").cloned().unwrap_or_default(), address.trim().to_owned())]
            }
            (None, Some(cluster)) => {
                let brokers = session.operator.brokers(cluster.trim()).await?.into_iter();
                brokers.map(|broker| (broker.name, broker.address)).collect()
            }
            (None, None) => bail!("which brokers: -c CLUSTER or -b HOST:PORT"),
        };
        let mut table = Table::new(["Broker Name", "Broker Addr", "Dry Run"]);
        for (name, address) in brokers {
            if !is_dry {
                session.operator.roll_back_pops(&address).await?;
            }
            table.row([name.into(), address.into(), is_dry.into()]);
        }
        session.out.table("brokers", &table)?;
        Ok(())
    }
}
