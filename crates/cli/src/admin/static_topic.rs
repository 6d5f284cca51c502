//! Static topics: a fixed number of logical queues over all brokers, which can move between brokers.
//!
//! What was and what is to be are written into files first, because a change that fails half-way is finished with `-mf FILE`, or taken back
//! with the file of before and `-fr true`.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;
use operator::mapping::{grown, leaders, moved};
use operator::static_topic::wrapped;
use protocol::body::TopicRemappingDetail;

use super::output::{Facts, Table};
use super::session::Session;
use super::truth;

/// Which brokers a static topic is to be on.
#[derive(Debug, Args)]
#[group(id = "place", args = ["clusters", "brokers", "map_file"], required = true, multiple = false)]
struct Place {
    /// All brokers of these clusters, separated by commas
    #[arg(short, long)]
    clusters: Option<String>,
    /// These brokers, by name, separated by commas
    #[arg(short, long)]
    brokers: Option<String>,
    /// What this file says, as a change before wrote it
    #[arg(long = "mapFile", alias = "mf")]
    map_file: Option<PathBuf>,
}

impl Place {
    async fn brokers(&self, session: &Session) -> Result<BTreeSet<String>> {
        let names = |text: &Option<String>| -> Vec<String> {
            text.iter().flat_map(|text| text.split(',')).map(|name| name.trim().to_owned()).collect()
        };
        Ok(session.operator.named_brokers(&names(&self.brokers), &names(&self.clusters)).await?)
    }

    fn file(&self) -> Result<Option<TopicRemappingDetail>> {
        let Some(path) = &self.map_file else { return Ok(None) };
        let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let change = protocol::fastjson::from_slice(&bytes);
        Ok(Some(change.with_context(|| format!("{} holds no mapping of a static topic", path.display()))?))
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct UpdateStaticTopic {
    #[command(flatten)]
    place: Place,
    /// The topic
    #[arg(short, long)]
    topic: String,
    /// Logical queues in all
    #[arg(long, alias = "qn", value_parser = clap::value_parser!(i32).range(1..))]
    total_queue_num: i32,
    /// Whether brokers take a mapping that is older than theirs: true or false
    #[arg(long, alias = "fr", value_parser = truth)]
    force_replace: Option<bool>,
}

impl UpdateStaticTopic {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let topic = self.topic.trim();
        let before = session.operator.static_topic(topic).await?;
        let is_forced = self.force_replace.unwrap_or(false);
        let file = self.place.file()?;
        let (mut change, seen) = match file {
            Some(change) => (change, None),
            None => {
                let targets = self.place.brokers(session).await?;
                note(session, &wrapped(topic, "CREATE_OR_UPDATE", &before), "before")?;
                let change = grown(topic, self.total_queue_num, &targets, before.clone(), session.operator.now())?;
                note(session, &change, "after")?;
                (change, Some(&before))
            }
        };
        ensure!(change.topic == topic, "the file is about topic {}", change.topic);
        session.operator.grow_static_topic(&mut change, seen, is_forced).await?;
        show(session, &change)
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct RemappingStaticTopic {
    #[command(flatten)]
    place: Place,
    /// The topic
    #[arg(short, long)]
    topic: String,
    /// Whether brokers take a mapping that is older than theirs: true or false
    #[arg(long, alias = "fr", value_parser = truth)]
    force_replace: Option<bool>,
}

impl RemappingStaticTopic {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let topic = self.topic.trim();
        let before = session.operator.static_topic(topic).await?;
        ensure!(!before.is_empty(), "no broker has topic {topic}");
        let is_forced = self.force_replace.unwrap_or(false);
        let file = self.place.file()?;
        let (mut change, seen) = match file {
            Some(change) => (change, None),
            None => {
                let targets = self.place.brokers(session).await?;
                note(session, &wrapped(topic, "REMAPPING", &before), "before")?;
                let change = moved(topic, &targets, before.clone(), session.operator.now())?;
                note(session, &change, "after")?;
                (change, Some(&before))
            }
        };
        ensure!(change.topic == topic, "the file is about topic {}", change.topic);
        session.operator.move_static_topic(&mut change, seen, is_forced).await?;
        show(session, &change)
    }
}

/// Writes a mapping into a file of the system's folder for such, and tells its name.
fn note(session: &Session, change: &TopicRemappingDetail, suffix: &str) -> Result<()> {
    let path = std::env::temp_dir().join(format!("{}-{}.{suffix}", change.topic, change.epoch));
    fs::write(&path, serde_json::to_vec_pretty(change)?).with_context(|| format!("cannot write {}", path.display()))?;
    session.out.say(format!("the mapping {suffix} the change is in {}", path.display()))?;
    Ok(())
}

fn show(session: &Session, change: &TopicRemappingDetail) -> Result<()> {
    let mut table = Table::new(["Queue", "Broker Name", "Physical Queue", "Logic Offset"]);
    for (id, items) in leaders(&change.broker_config_map)? {
        if let Some(leader) = items.last() {
            table.row([id.into(), (&leader.bname).into(), leader.queue_id.into(), leader.logic_offset.into()]);
        }
    }
    session.out.facts(&Facts::new().with("Topic", &change.topic).with("Epoch", change.epoch))?;
    session.out.table("queues", &table)?;
    Ok(())
}
