//! `gantry store inspect`: what is there, on one screen.

use std::collections::BTreeMap;
use std::io;

use clap::Args;
use env::{counted, say};
use serde_json::{Value, json};
use store::look::{Look, QueueSurvey, Survey};
use store::{StoreError, StoreOptions};

use super::{ConfigFile, Configuration, Place, bytes, time};

const HALF_TOPIC: &str = "RMQ_SYS_TRANS_HALF_TOPIC";
/// Topics that are shown without being asked for.
const LARGEST: usize = 5;

/// What can be said to it.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// Which store.
    #[command(flatten)]
    pub place: Place,
    /// Show the queues of this topic
    #[arg(long)]
    topic: Option<String>,
    /// Show this queue of it only
    #[arg(long, requires = "topic")]
    queue: Option<u32>,
    /// As one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs it.
pub fn run(args: &InspectArgs, options: StoreOptions, read: &dyn Fn(&Look) -> Configuration) -> anyhow::Result<()> {
    let (look, running) = match Look::stopped(options.clone()) {
        Ok(look) => (look, None),
        Err(error @ StoreError::Locked { .. }) => (Look::running(options), Some(error.to_string())),
        Err(error) => return Err(error.into()),
    };
    let survey = look.survey()?;
    let configuration = read(&look);
    if let Some(topic) = &args.topic
        && !configuration.known.topics.as_ref().is_some_and(|topics| topics.contains(topic))
        && !survey.queues.iter().any(|queue| queue.topic == *topic)
    {
        anyhow::bail!(
            "there is no topic {topic} in {}: neither do its tables name it, nor has it a queue",
            look.options().root.display()
        );
    }
    if let Some((topic, queue)) = args.topic.as_ref().zip(args.queue)
        && asked(args, &survey).next().is_none()
    {
        anyhow::bail!("there is no queue {topic}/{queue} in {}", look.options().root.display());
    }
    if args.json {
        say!("{}", serde_json::to_string_pretty(&as_json(args, &look, &survey, &configuration, running.as_deref()))?)?;
    } else {
        print(args, &look, &survey, &configuration, running.as_deref())?;
    }
    Ok(())
}

fn print(
    args: &InspectArgs,
    look: &Look,
    survey: &Survey,
    configuration: &Configuration,
    running: Option<&str>,
) -> io::Result<()> {
    let options = look.options();
    say!("store       {}", options.root.display())?;
    if let Some(running) = running {
        say!("            {running}: what it has not written yet is not seen, so offsets and ends may be behind")?;
    }
    say!("            {}", who(survey, running.is_some()))?;
    if let Some([log, queues, index, confirmed]) = survey.checkpoint {
        let (log, queues, index) = (time(log), time(queues), time(index));
        say!("check-point log {log}, queues {queues}, index {index}, confirmed {confirmed}")?;
    }
    let log = &survey.log;
    say!(
        "commit log  {} to {} ({}) in {} of {}",
        log.min,
        log.end,
        bytes(log.end - log.min),
        counted(log.files, "file"),
        bytes(log.file_bytes)
    )?;
    say!(
        "            stored {} to {}; oldest record {}, newest {}",
        log.first_store_time.map_or_else(|| "never".to_owned(), time),
        log.last_store_time.map_or_else(|| "never".to_owned(), time),
        kind(log.first_is_v2),
        kind(log.last_is_v2)
    )?;
    let topics = by_topic(survey);
    let batch = survey.queues.iter().filter(|queue| queue.is_batch).count();
    let known =
        configuration.known.topics.as_ref().map_or_else(|| "unknown".to_owned(), |topics| topics.len().to_string());
    say!("topics      {known}; {} have queues, {} in all, {batch} of them BatchCQ", topics.len(), survey.queues.len())?;
    let mut largest: Vec<_> = topics.iter().collect();
    largest.sort_by_key(|(_, (_, messages))| std::cmp::Reverse(*messages));
    for (topic, (queues, messages)) in largest.into_iter().take(LARGEST) {
        say!("            {topic}: {} in {}", counted(messages, "message"), counted(queues, "queue"))?;
    }
    say!("groups      {}", configuration.groups)?;
    if let Some(half) = half_waiting(survey, configuration) {
        say!("half        {half} half messages at most are not done with")?;
    }
    let keys: u64 = survey.index.iter().map(|file| u64::from(file.keys)).sum();
    say!("index       {} in {}", counted(keys, "key"), counted(survey.index.len(), "file"))?;
    match &survey.timers {
        None => say!("timers      no timer log")?,
        Some(timers) => say!(
            "timers      waiting {} of {}, {}; done up to {}",
            timers.waiting,
            counted(timers.units, "unit"),
            counted(timers.files, "file"),
            time(timers.marks.read_time)
        )?,
    }
    match &survey.journal {
        None => say!("journal     none: Gantry has not had this store, and starts from config/*.json")?,
        Some(journal) => say!("journal     {}, {}", counted(journal.entries, "entry"), bytes(journal.bytes))?,
    }
    for file in &configuration.files {
        say!("            {}", sentence(file))?;
    }
    for database in &survey.rocksdb {
        match database.refusal() {
            Some(why) => say!("RocksDB     {}: {why}", database.path.display())?,
            None => say!("RocksDB     {}: not read, and not needed", database.path.display())?,
        }
    }
    for finding in &survey.findings {
        say!("to mend     {finding}")?;
    }
    for queue in asked(args, survey) {
        say!(
            "queue       {}/{}: {} to {}, ends at log offset {}{}",
            queue.topic,
            queue.id,
            queue.min,
            queue.max,
            queue.log_end,
            if queue.is_batch { ", BatchCQ" } else { "" }
        )?;
    }
    Ok(())
}

/// Who had the store last, and how he left it.
fn who(survey: &Survey, is_running: bool) -> String {
    let who = match survey.is_as_gantry_closed_it {
        None => "no Gantry has had it: Apache's, or new",
        Some(true) => "as Gantry closed it",
        Some(false) if survey.has_abort => "Gantry has had it; not as Gantry closed it last",
        Some(false) => "not as Gantry closed it: another broker has had it since, or files were changed",
    };
    let how = match survey.has_abort {
        true if is_running => "a broker has it open",
        true => "not closed (abort is there): the next start reads the log again from the check-point",
        false => "closed",
    };
    format!("{who}; {how}")
}

fn kind(is_v2: Option<bool>) -> &'static str {
    match is_v2 {
        None => "none",
        Some(false) => "v1",
        Some(true) => "v2",
    }
}

fn sentence(file: &ConfigFile) -> String {
    let path = file.path.display();
    let counts = if file.wins {
        "counts at the next start: another broker wrote it"
    } else {
        "as Gantry wrote it: the journal counts"
    };
    let version = file.version.map_or_else(String::new, |[counter, at]| format!(", version {counter} of {}", time(at)));
    match &file.entries {
        Ok(entries) => format!("{path}: {}{version}; {counts}", counted(entries, "entry")),
        Err(why) => format!("{path} cannot be read: {why}"),
    }
}

/// Queues and messages of each topic.
fn by_topic(survey: &Survey) -> BTreeMap<&str, (usize, u64)> {
    let mut topics = BTreeMap::new();
    for queue in &survey.queues {
        let (queues, messages) = topics.entry(queue.topic.as_str()).or_insert((0, 0));
        *queues += 1;
        *messages += queue.max.saturating_sub(queue.min);
    }
    topics
}

fn half_waiting(survey: &Survey, configuration: &Configuration) -> Option<u64> {
    let queue = survey.queues.iter().find(|queue| queue.topic == HALF_TOPIC && queue.id == 0)?;
    Some(queue.max.saturating_sub(configuration.half_offset.unwrap_or(0).max(queue.min)))
}

fn asked<'a>(args: &'a InspectArgs, survey: &'a Survey) -> impl Iterator<Item = &'a QueueSurvey> {
    let of_topic = survey.queues.iter().filter(|queue| args.topic.as_ref() == Some(&queue.topic));
    of_topic.filter(|queue| args.queue.is_none_or(|id| id == queue.id))
}

fn as_json(
    args: &InspectArgs,
    look: &Look,
    survey: &Survey,
    configuration: &Configuration,
    running: Option<&str>,
) -> Value {
    let log = &survey.log;
    let topics: Vec<Value> = by_topic(survey)
        .into_iter()
        .map(|(topic, (queues, messages))| json!({ "topic": topic, "queues": queues, "messages": messages }))
        .collect();
    let files: Vec<Value> = configuration
        .files
        .iter()
        .map(|file| {
            json!({
                "file": file.path, "countsAtNextStart": file.wins, "version": file.version,
                "entries": file.entries.as_ref().ok(), "error": file.entries.as_ref().err(),
            })
        })
        .collect();
    let databases: Vec<Value> =
        survey.rocksdb.iter().map(|one| json!({ "folder": one.path, "refused": one.refusal() })).collect();
    let queues: Vec<Value> = asked(args, survey)
        .map(|queue| {
            json!({
                "topic": queue.topic, "queue": queue.id, "batch": queue.is_batch, "min": queue.min, "max": queue.max,
                "logEnd": queue.log_end,
            })
        })
        .collect();
    json!({
        "store": look.options().root,
        "running": running,
        "abort": survey.has_abort,
        "asGantryClosedIt": survey.is_as_gantry_closed_it,
        "checkpoint": survey.checkpoint.map(|[log, queues, index, confirmed]| json!({
            "log": log, "queues": queues, "index": index, "confirmed": confirmed,
        })),
        "commitLog": {
            "min": log.min, "end": log.end, "files": log.files, "fileBytes": log.file_bytes,
            "firstStoreTime": log.first_store_time, "lastStoreTime": log.last_store_time,
            "firstRecord": kind(log.first_is_v2), "lastRecord": kind(log.last_is_v2),
        },
        "topicsKnown": configuration.known.topics.as_ref().map(|topics| topics.len()),
        "topics": topics,
        "queuesInAll": survey.queues.len(),
        "batchQueues": survey.queues.iter().filter(|queue| queue.is_batch).count(),
        "groups": configuration.groups,
        "halfMessagesAtMost": half_waiting(survey, configuration),
        "index": { "files": survey.index.len(), "keys": survey.index.iter().map(|file| u64::from(file.keys)).sum::<u64>() },
        "timers": survey.timers.map(|timers| json!({
            "units": timers.units, "waiting": timers.waiting, "files": timers.files, "doneUpTo": timers.marks.read_time,
        })),
        "journal": survey.journal.as_ref().map(|journal| json!({ "entries": journal.entries, "bytes": journal.bytes })),
        "config": files,
        "rocksdb": databases,
        "toMend": survey.findings,
        "queues": queues,
    })
}
