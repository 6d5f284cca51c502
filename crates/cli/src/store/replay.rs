//! `gantry store replay`: sends again what a start has cut off the log of a master that was replaced, or that lost its power.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use env::{counted, say};
use operator::Operator;
use operator::replay::Replayed;
use protocol::record::{self, Scanned};

use crate::admin::credentials::credentials;

/// What can be said to it.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// Files of the folder cut of a store
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The broker that takes them: the master of the set
    #[arg(long, value_name = "HOST:PORT")]
    to: String,
    /// File with accessKey and secretKey; without it, conf/tools.yml in the folder ROCKETMQ_HOME if it is there
    #[arg(long, value_name = "FILE")]
    credentials: Option<PathBuf>,
}

/// What has become of messages so far.
#[derive(Default)]
struct Done {
    sent: BTreeMap<String, u64>,
    left: BTreeMap<&'static str, u64>,
}

/// Runs it. A message that is refused ends it, and is named: what is before it is sent.
pub fn replay(args: &ReplayArgs) -> Result<()> {
    let credentials = credentials(args.credentials.as_deref(), std::env::var_os("ROCKETMQ_HOME"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut done = Done::default();
    let result = runtime.block_on(async {
        let operator = Operator::start("", credentials);
        let mut files = args.files.clone();
        // Their names are log offsets.
        files.sort_by(|one, other| one.file_name().cmp(&other.file_name()));
        for file in &files {
            replay_file(&operator, args.to.trim(), file, &mut done).await?;
        }
        Ok(())
    });
    for (topic, messages) in &done.sent {
        say!("{} of topic {topic} sent", counted(*messages, "message"))?;
    }
    for (why, messages) in &done.left {
        say!("{} not sent: they {why}", counted(*messages, "message"))?;
    }
    result
}

async fn replay_file(operator: &Operator, to: &str, path: &Path, done: &mut Done) -> Result<()> {
    // As long as a file of the log at most.
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut place = 0;
    // Each turn goes on by a record.
    while let Some(rest) = bytes.get(place..).filter(|rest| !rest.is_empty()) {
        let here = || format!("{} at byte {place}", path.display());
        let view = match record::scan(rest, true).with_context(here)? {
            Scanned::Record(view) => view,
            Scanned::Blank { .. } | Scanned::Nothing => break,
        };
        match operator.replay(to, &view).await.with_context(here)? {
            Replayed::Sent => *done.sent.entry(view.topic().to_owned()).or_default() += 1,
            Replayed::Left(why) => *done.left.entry(why).or_default() += u64::from(view.message_count()),
        }
        place += view.total_size();
    }
    Ok(())
}
