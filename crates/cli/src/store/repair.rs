//! `gantry store repair`: says what is wrong and what will be done, then does what a start does.
//!
//! The mending is the store's own recovery. Queues and index are built again by moving their files aside: a start builds what is missing.
//! Databases of RocksDB are moved aside too, once `fetch` has written what a start needs of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use store::look::{Look, QueueSurvey};
use store::{RocksDbKind, Store, StoreEnv, StoreError, StoreOptions, rocksdb_in};

use super::fetched::Fetched;
use super::{Configuration, Place, time, verify};

/// Messages that are newer than a fetch by more than this, in ms, are a sign that the broker was used after it.
const AGE_MAX_MS: i64 = 10_000;

/// What can be said to it.
#[derive(Debug, Args)]
pub struct RepairArgs {
    /// Which store.
    #[command(flatten)]
    pub place: Place,
    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Move the consume queues aside and build them again from the log
    #[arg(long)]
    queues: bool,
    /// Move Apache's RocksDB databases aside: what they held was fetched (gantry store fetch), or is built from the log
    #[arg(long)]
    rocksdb: bool,
    /// Move the key index aside and build it again from the log
    #[arg(long)]
    index: bool,
}

/// Runs it.
pub fn run(
    args: &RepairArgs,
    options: StoreOptions,
    read: &dyn Fn(&Look) -> Configuration,
) -> anyhow::Result<ExitCode> {
    let verified = verify::check(options.clone(), read, &mut |finding| verify::print(&finding))?;
    for note in &verified.notes {
        println!("note: {note}");
    }
    println!("{} findings", verified.findings);
    let was_abnormal = options.root.join("abort").exists();
    let aside = aside(&options.root)?;
    let fetched = if args.rocksdb { Fetched::read(&options.root)? } else { None };
    let mut moves = moves(args, &options)?;
    if args.rocksdb {
        say_what_came_since(&options, fetched.as_ref())?;
        moves.extend(databases(&options, fetched.as_ref())?);
        moves.sort();
        moves.dedup();
    }
    let will = if args.dry_run { "would be" } else { "will be" };
    println!(
        "the log {will} read as a start reads it: a torn end is cut off and gaps are closed, with copies in {}/cut",
        options.root.display()
    );
    for from in &moves {
        println!("{} {will} moved into {}", from.display(), aside.display());
    }
    let kept = kept(args, &options)?;
    if args.queues {
        println!("{} queues of which the log has no message any more stay as they are", kept.len());
        if verified.of_deleted > 0 {
            println!("{} records of topics that are no more get their queues back", verified.of_deleted);
        }
    }
    if args.dry_run {
        return Ok(ExitCode::SUCCESS);
    }
    if !moves.is_empty() {
        move_all(&moves, &options.root, &aside)?;
        put_back(&kept, &options, &aside)?;
    }
    let root = options.root.clone();
    let (store, found) = Store::open(options, StoreEnv::real())?;
    for finding in &found.findings {
        println!("mended: {finding}");
    }
    println!("{} records read, {} units added to queues", found.records_scanned, found.units_added);
    if let Some(fetched) = &fetched {
        keep_numbers(&store, fetched)?;
    }
    store.close().context("the store did not close well; the next start recovers")?;
    if fetched.is_some() {
        // Not before: whoever is interrupted can do it again. And not left there: what it says is of that broker's queues, not of those to come.
        move_all(&[Fetched::path(&root)], &root, &aside)?;
    }
    if was_abnormal {
        // What a broker looks at after a crash beside the log (timers), the next start has still to look at.
        fs::write(root.join("abort"), "gantry store repair").context("cannot put the file abort back")?;
        println!("the store still counts as not closed, so that the next start looks after timer messages too");
    }
    Ok(ExitCode::SUCCESS)
}

/// The folder for what is moved: one that is not there yet.
fn aside(root: &Path) -> anyhow::Result<PathBuf> {
    let folder = |number: u32| root.join("cut").join(format!("repair-{number}"));
    let number = (1..=u32::MAX).find(|number| !folder(*number).exists());
    number.map(folder).context("there is no name left for what is moved aside")
}

/// What is to be moved, as far as it is there.
fn moves(args: &RepairArgs, options: &StoreOptions) -> anyhow::Result<Vec<PathBuf>> {
    let mut moves = Vec::new();
    if args.queues {
        let databases = rocksdb_in(&store::disk::RealDisk, &options.root, &options.queue_dir)?;
        let others = databases.iter().filter(|one| one.kind != RocksDbKind::Queues && !args.rocksdb);
        if let Some(why) = others.filter_map(store::RocksDb::refusal).next() {
            anyhow::bail!("{why}");
        }
        moves.extend([options.queue_dir.clone(), options.root.join("batchconsumequeue")]);
    }
    if args.index {
        moves.push(options.index.as_ref().map_or_else(|| options.root.join("index"), |index| index.dir.clone()));
    }
    moves.retain(|path| path.exists());
    Ok(moves)
}

/// Folders of queues that the log cannot build again, below the store's folder: they keep the numbers that their next messages get.
fn kept(args: &RepairArgs, options: &StoreOptions) -> anyhow::Result<Vec<PathBuf>> {
    if !args.queues {
        return Ok(Vec::new());
    }
    let survey = Look::stopped(options.clone())?.survey()?;
    let gone = survey.queues.iter().filter(|queue| queue.log_end <= survey.log.min);
    let folder = |queue: &QueueSurvey| {
        let kind = if queue.is_batch { Path::new("batchconsumequeue") } else { Path::new("consumequeue") };
        kind.join(&queue.topic).join(queue.id.to_string())
    };
    Ok(gone.map(folder).collect())
}

fn put_back(kept: &[PathBuf], options: &StoreOptions, aside: &Path) -> anyhow::Result<()> {
    for queue in kept {
        let (from, to) = (aside.join(queue), options.root.join(queue));
        let Some(topic) = to.parent().filter(|_| from.exists()) else { continue };
        fs::create_dir_all(topic).with_context(|| format!("cannot make {}", topic.display()))?;
        fs::rename(&from, &to).with_context(|| format!("cannot move {} back to {}", from.display(), to.display()))?;
    }
    Ok(())
}

/// Databases that a start does not need any more, and what was fetched of them. Refuses where it would.
fn databases(options: &StoreOptions, fetched: Option<&Fetched>) -> anyhow::Result<Vec<PathBuf>> {
    let mut moves = Vec::new();
    for database in rocksdb_in(&store::disk::RealDisk, &options.root, &options.queue_dir)? {
        let Some(why) = database.refusal() else { continue };
        let lacks = match database.kind {
            RocksDbKind::Configuration | RocksDbKind::ConfigurationV2 => {
                Fetched::missing(&options.root).map(|path| format!("{} is not there", path.display()))
            }
            RocksDbKind::Leases => (!fetched.is_some_and(|fetched| fetched.has_popped))
                .then(|| "gantry store fetch was not run with --popped".to_owned()),
            RocksDbKind::Queues | RocksDbKind::QueuesBesideFiles | RocksDbKind::Unused => None,
        };
        if let Some(lacks) = lacks {
            anyhow::bail!("{} stays, since {lacks}: {why}", database.path.display());
        }
        moves.push(database.path);
    }
    Ok(moves)
}

/// What was made after the fetch is in no file.
fn say_what_came_since(options: &StoreOptions, fetched: Option<&Fetched>) -> anyhow::Result<()> {
    let Some(fetched) = fetched else { return Ok(()) };
    let newest = Look::stopped(options.clone())?.survey()?.log.last_store_time;
    if let Some(newest) = newest.filter(|newest| newest.saturating_sub(fetched.at) > AGE_MAX_MS) {
        println!(
            "note: {} was asked at {}, and the last message was stored at {}: offsets that were committed in between are not known, and topics and \
             groups that were made in between neither",
            fetched.broker,
            time(fetched.at),
            time(newest)
        );
    }
    Ok(())
}

/// Lets queues of which the log has no message any more go on at their numbers: what groups have committed is behind their end else, and new
/// messages would be passed over.
fn keep_numbers(store: &Store, fetched: &Fetched) -> anyhow::Result<()> {
    let mut kept = 0;
    for (topic, queues) in &fetched.queues {
        for (id, next) in queues {
            let has = store.existing_queue(topic, *id).map_or(0, |queue| queue.max_offset());
            if has >= *next {
                continue;
            }
            match store.keep_number(topic, *id, *next) {
                Ok(true) => kept += 1,
                Ok(false) => {
                    println!("note: queue {topic}/{id} ended at {next} when it was asked for, and the log says {has}")
                }
                Err(StoreError::NoSuchQueue { .. }) => println!("note: there can be no queue {topic}/{id}"),
                Err(error) => return Err(error.into()),
            }
        }
    }
    println!("{kept} queues of which the log has no message go on at their numbers");
    Ok(())
}

/// Moves what lies in the store's folder to the same place below `aside`, and anything else into it.
fn move_all(moves: &[PathBuf], root: &Path, aside: &Path) -> anyhow::Result<()> {
    for from in moves {
        let place = from.strip_prefix(root).ok().or_else(|| from.file_name().map(Path::new));
        let to = aside.join(place.context("a folder without a name")?);
        let folder = to.parent().unwrap_or(aside);
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        fs::rename(from, &to).with_context(|| format!("cannot move {} to {}", from.display(), to.display()))?;
    }
    Ok(())
}
