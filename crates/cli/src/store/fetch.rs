//! `gantry store fetch`: asks an Apache broker, while it runs, for what it keeps in RocksDB, and writes it as the JSON files that Apache itself
//! keeps without RocksDB.
//!
//! It asks as a slave does (21, 201, 43), so it does not matter in which of its databases the broker has it. Which numbers the queues have
//! reached (202) goes beside: queues of which the log has no message any more could not be built from it. What is fetched before the broker
//! stops is at worst a little old, and then messages come twice; nothing is passed over.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use disk::RealDisk;
use env::{counted, say, sentence};
use operator::configuration::{Server, Settings};
use operator::{Operator, OperatorError};
use protocol::code::ResponseCode;
use serde_json::{Value, json};
use store::{RocksDbKind, rocksdb_in};

use super::Place;
use super::fetched::{FILES, Fetched, put_in_place, text};
use crate::admin::credentials::credentials;

/// The kind of queues that are in files always, as a topic's attribute `queue.type` has it.
const BATCH_QUEUES: &str = "BatchCQ";
/// Between two looks of `--until-stopped`.
const PAUSE: Duration = Duration::from_secs(1);
/// So many looks one after the other that are not answered, and the broker counts as stopped.
const FAILURES_MAX: u32 = 3;
/// Between two looks at the numbers, a request for each topic, meanwhile: longer than `PAUSE`, and much shorter than what retention keeps.
const NUMBERS_PAUSE: Duration = Duration::from_secs(60);
/// A table of millions of offsets takes a while; and so does a log in which a broker puts back what was popped.
const PATIENCE: Duration = Duration::from_secs(30);
const PATIENCE_FOR_POPPED: Duration = Duration::from_secs(600);
/// As Apache has it where its configuration does not say: how long a pop may be in memory only, in ms.
const POP_BUFFER_MS: u64 = 10_000;
/// And how much later it is in the database for sure.
const POP_BUFFER_AFTER: Duration = Duration::from_secs(2);
/// What of a broker is not taken along, by the setting with which there is such, and how to lose nothing.
const LEFT: [(&str, &str, &str); 3] = [
    (
        "timerRocksDBEnable",
        "timer messages that wait in rocksdbstore",
        ", and are lost if it stops before it has delivered them",
    ),
    (
        "transRocksDBEnable",
        "half messages that wait in rocksdbstore",
        ", and are lost if it stops before they have ended",
    ),
    ("enableLmq", "offsets of light queues", ""),
];

/// What can be said to it.
#[derive(Debug, Args)]
pub struct FetchArgs {
    /// Which store.
    #[command(flatten)]
    pub place: Place,
    /// The Apache broker, which runs
    #[arg(short, long, visible_alias = "brokerAddr", value_name = "HOST:PORT")]
    broker: String,
    /// Fetch again every second, until the broker stops
    #[arg(long)]
    until_stopped: bool,
    /// Let the broker bring popped messages that are not acknowledged back into its log first; whoever pops has to be stopped
    #[arg(long)]
    popped: bool,
    /// Fetch also from a broker that says it keeps nothing in RocksDB
    #[arg(long)]
    force: bool,
    /// File with accessKey and secretKey; without it, conf/tools.yml in the folder ROCKETMQ_HOME if it is there
    #[arg(long, value_name = "FILE")]
    credentials: Option<PathBuf>,
}

/// Runs it on the folder of the store.
pub fn run(args: &FetchArgs, root: &Path) -> Result<()> {
    let credentials = credentials(args.credentials.as_deref(), std::env::var_os("ROCKETMQ_HOME"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { fetch(args, &Operator::start("", credentials), root).await })
}

async fn fetch(args: &FetchArgs, operator: &Operator, root: &Path) -> Result<()> {
    let address = args.broker.trim();
    let settings = operator.settings(Server::Broker, address).await.with_context(|| format!("cannot ask {address}"))?;
    let says = |key: &str| settings.get(key).map_or("", String::as_str);
    let is_on = |key: &str| says(key).eq_ignore_ascii_case("true");
    let has_rocksdb = says("storeType").contains("RocksDB") || says("configManagerVersion").eq_ignore_ascii_case("v2");
    say!(
        "{address} is {} with storeType={}, configManagerVersion={}",
        says("brokerName"),
        says("storeType"),
        says("configManagerVersion")
    )?;
    let theirs = Path::new(says("storePathRootDir"));
    if !theirs.as_os_str().is_empty() && theirs.is_dir() && theirs.canonicalize().ok() != root.canonicalize().ok() {
        say!("note: the broker says that its store is in {}", theirs.display())?;
    }
    // Above all that can fail: of a broker that has nothing to fetch this is what there is to know.
    for (setting, what, way_out) in LEFT.iter().filter(|(setting, ..)| is_on(setting)) {
        say!("note: {setting}=true: {what} are not taken along{way_out}")?;
    }
    if !has_rocksdb && !is_on("popConsumerKVServiceInit") && !args.force {
        bail!(
            "{address} says that it keeps nothing in RocksDB that can be fetched: its files are read as they are (--force)"
        );
    }
    if args.popped {
        bring_back(args, operator, address, &settings).await?;
    }
    // As far as it is on this machine.
    let databases = rocksdb_in(&RealDisk, root, &root.join("consumequeue")).unwrap_or_default();
    let is_written = has_rocksdb || args.force;
    // Those of a run before stay as they are: what was there before that is the one to keep.
    let is_first = !Fetched::path(root).exists();
    let last = look(operator, address).await?;
    let queues = numbers(operator, address, &last).await?;
    let mut fetched = Fetched { broker: address.to_owned(), at: operator.now(), has_popped: args.popped, queues };
    if is_written {
        write(root, &last, is_first)?;
        for (name, value) in FILES.iter().zip(&last.tables) {
            say!("{}: {}", root.join("config").join(name).display(), counted(entries(value), "entry"))?;
        }
    }
    note(root, &fetched)?;
    let count: usize = fetched.queues.values().map(BTreeMap::len).sum();
    say!("{}: numbers of {}", Fetched::path(root).display(), counted(count, "queue"))?;
    if is_written && args.until_stopped {
        say!("fetching every second; stop the broker now (mqshutdown broker)")?;
        follow(operator, address, root, last, &mut fetched).await?;
        note(root, &fetched)?;
        say!("{address} answers no more; topics, groups and offsets are as of {}", super::time(fetched.at))?;
    } else if is_written {
        say!(
            "what clients commit from now on is not in there: stop them and fetch again, or say --until-stopped and stop the broker meanwhile"
        )?;
    }
    let has_leases = databases.iter().any(|database| database.kind == RocksDbKind::Leases);
    if (has_leases || is_on("popConsumerKVServiceInit")) && !args.popped {
        say!(
            "note: popped messages that are not acknowledged may be in kvStore: fetch with --popped when nobody pops any more"
        )?;
    }
    let has_queues =
        says("storeType").contains("RocksDB") || databases.iter().any(|database| database.kind == RocksDbKind::Queues);
    say!("next, when the broker's process is gone: {}", next_command(args.place.config.as_deref(), root, has_queues))?;
    Ok(())
}

/// What is to be run next. Queues are built by what the broker's configuration says of delays and light queues, so that is asked for.
fn next_command(config: Option<&Path>, root: &Path, has_queues: bool) -> String {
    let settings = match config {
        Some(file) => format!(" -c {}", file.display()),
        None if has_queues => " -c FILE, which is the broker's configuration".to_owned(),
        None => String::new(),
    };
    format!("gantry store repair --rocksdb --store {}{settings}", root.display())
}

/// Has the broker put popped messages that are not acknowledged back into its log.
async fn bring_back(args: &FetchArgs, operator: &Operator, address: &str, settings: &Settings) -> Result<()> {
    let is_on = |key: &str| settings.get(key).is_some_and(|value| value.eq_ignore_ascii_case("true"));
    if !is_on("popConsumerKVServiceInit") && !args.force {
        // Such a broker says that it has done it.
        bail!(
            "popConsumerKVServiceInit is not true at {address}, so it cannot bring back what is in kvStore: set it, start the broker again, and \
             fetch then"
        );
    }
    if is_on("enablePopBufferMerge") {
        let stay = settings.get("popCkStayBufferTime").and_then(|stay| stay.parse().ok()).unwrap_or(POP_BUFFER_MS);
        say!("the broker may keep pops in memory for {stay} ms (enablePopBufferMerge): waiting for that")?;
        tokio::time::sleep(Duration::from_millis(stay) + POP_BUFFER_AFTER).await;
    }
    let operator = operator.within(PATIENCE_FOR_POPPED);
    operator.roll_back_pops(address).await.context("the broker does not bring popped messages back")?;
    say!("the broker has brought popped messages that are not acknowledged back into its log")?;
    Ok(())
}

/// What a broker keeps in RocksDB, as [`FILES`] have it.
struct Seen {
    at: i64,
    tables: [Value; FILES.len()],
}

async fn look(operator: &Operator, address: &str) -> Result<Seen> {
    let operator = operator.within(PATIENCE);
    let (version, topics) = operator.topics_at::<Value>(address).await.context("cannot fetch topics")?;
    if topics.is_empty() {
        // Each broker has some of its own.
        bail!("{address} says that it has no topics");
    }
    let groups = operator.groups_at::<Value>(address).await.context("cannot fetch groups")?;
    let offsets = operator.all_offsets(address).await.context("cannot fetch offsets")?;
    let of_offsets = |name: &str| offsets.get(name).cloned().unwrap_or_else(|| json!({}));
    let tables = [
        json!({ "dataVersion": version, "topicConfigTable": topics }),
        json!({
            "dataVersion": groups.version, "forbiddenTable": groups.forbidden, "subscriptionGroupTable": groups.table,
        }),
        // What is pulled and not committed comes again, and has no place in another broker's memory.
        json!({ "dataVersion": of_offsets("dataVersion"), "offsetTable": of_offsets("offsetTable") }),
    ];
    Ok(Seen { at: operator.now(), tables })
}

/// How far the queues of all topics have come.
async fn numbers(operator: &Operator, address: &str, seen: &Seen) -> Result<BTreeMap<String, BTreeMap<u32, u64>>> {
    let mut numbers = BTreeMap::new();
    let [topics, _, _] = &seen.tables;
    for (topic, config) in topics.get("topicConfigTable").and_then(Value::as_object).into_iter().flatten() {
        if config.pointer("/attributes/queue.type").and_then(Value::as_str) == Some(BATCH_QUEUES) {
            continue;
        }
        let table = match operator.topic_stats_at(address, topic).await {
            Ok(table) => table,
            // Gone since. Whatever else it says, queues would lack their numbers.
            Err(error) if error.code() == Some(ResponseCode::TopicNotExist as i32) => continue,
            Err(error) => return Err(error).with_context(|| format!("cannot fetch the numbers of {topic}")),
        };
        let queues: BTreeMap<u32, u64> = table
            .offset_table
            .iter()
            .filter_map(|(queue, offset)| Some((queue.queue_id.try_into().ok()?, offset.max_offset.try_into().ok()?)))
            .filter(|(_, max)| *max > 0)
            .collect();
        if !queues.is_empty() {
            numbers.insert(topic.clone(), queues);
        }
    }
    Ok(numbers)
}

/// Fetches again until the broker stops. What was learned last is in `fetched` then.
async fn follow(operator: &Operator, address: &str, root: &Path, first: Seen, fetched: &mut Fetched) -> Result<()> {
    let (mut last, mut failures, mut has_complained) = (first, 0, false);
    let mut numbers_at = Instant::now() + NUMBERS_PAUSE;
    // Ends when the broker does; whoever waits sees it.
    while failures < FAILURES_MAX {
        tokio::time::sleep(PAUSE).await;
        let looked = match look(operator, address).await {
            Ok(seen) => {
                if seen.tables != last.tables {
                    write(root, &seen, false)?;
                }
                fetched.at = seen.at;
                last = seen;
                // The broker answers no more when all is over, so this is done on the way.
                let is_due = Instant::now() >= numbers_at;
                if is_due { numbers(operator, address, &last).await.map(Some) } else { Ok(None) }
            }
            Err(error) => Err(error),
        };
        match looked {
            Ok(queues) => {
                (failures, has_complained) = (0, false);
                if let Some(queues) = queues {
                    fetched.queues = queues;
                    note(root, fetched)?;
                    numbers_at = Instant::now() + NUMBERS_PAUSE;
                }
            }
            Err(error) if is_answer(&error) => {
                failures = 0;
                if !has_complained {
                    say!("note: asked again until it answers otherwise: {}", sentence(error.as_ref()))?;
                    has_complained = true;
                }
            }
            Err(_) => failures += 1,
        }
    }
    Ok(())
}

/// Whether the broker has answered, if not what was asked for: then it has not stopped.
fn is_answer(error: &anyhow::Error) -> bool {
    error.downcast_ref::<OperatorError>().and_then(OperatorError::client).is_none_or(|error| error.code().is_some())
}

fn write(root: &Path, seen: &Seen, keeps: bool) -> Result<()> {
    for (name, table) in FILES.iter().zip(&seen.tables) {
        put_in_place(&root.join("config").join(name), &text(table)?, keeps)?;
    }
    Ok(())
}

/// After the others: with it, they count as whole.
fn note(root: &Path, fetched: &Fetched) -> Result<()> {
    put_in_place(&Fetched::path(root), &text(&serde_json::to_value(fetched)?)?, false)
}

/// How many entries a file's table has.
fn entries(value: &Value) -> usize {
    let names = ["topicConfigTable", "subscriptionGroupTable", "offsetTable"];
    names.iter().find_map(|name| value.get(name)?.as_object()).map_or(0, serde_json::Map::len)
}

#[cfg(test)]
mod tests {
    use client::ClientError;

    use super::*;

    #[test]
    fn a_broker_that_refuses_has_not_stopped() {
        let refused = |code| {
            let refused = ClientError::Refused { address: "b:1".to_owned(), code, remark: String::new() };
            OperatorError::from(refused)
        };
        for code in [1, 2, 16, 17] {
            let error = Err::<(), _>(refused(code)).context("cannot fetch topics").context("again").unwrap_err();
            assert!(is_answer(&error), "{error:#}");
        }
        let gone = OperatorError::from(ClientError::NoAddress { broker: "b".to_owned() });
        assert!(!is_answer(&Err::<(), _>(gone).context("cannot fetch topics").unwrap_err()));
    }

    #[test]
    fn the_next_command_names_the_configuration_where_it_needs_one() {
        let (file, root) = (Path::new("conf/broker.conf"), Path::new("/store"));
        let plain = "gantry store repair --rocksdb --store /store";
        assert_eq!(next_command(None, root, false), plain);
        for has_queues in [false, true] {
            assert_eq!(next_command(Some(file), root, has_queues), format!("{plain} -c conf/broker.conf"));
        }
        assert!(next_command(None, root, true).starts_with(&format!("{plain} -c FILE")));
    }
}
