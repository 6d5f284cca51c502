//! `gantry store repair`: says what is wrong and what will be done, then does what a start does.
//!
//! The mending is the store's own recovery. Queues and index are built again by moving their files aside: a start builds what is missing.
//! Databases of RocksDB are moved aside too, once `fetch` has written what a start needs of them. From the first look until all is moved no broker
//! can open the store.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use env::{counted, say};
use protocol::names;
use store::look::{Look, QueueSurvey, Survey, Verified};
use store::{QueueError, RocksDbKind, Store, StoreEnv, StoreError, StoreOptions, rocksdb_in};

use super::fetched::Fetched;
use super::{Configuration, Place, look_at, tell_mended, time, verify};

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
    mut options: StoreOptions,
    read: &dyn Fn(&Look) -> Configuration,
) -> anyhow::Result<ExitCode> {
    let aside = aside(&options.root)?;
    let Some((look, survey)) = surveyed(args, &mut options, &aside, read)? else { return Ok(ExitCode::SUCCESS) };
    let verified = tell_findings(&look, read)?;
    let fetched = Fetched::read(&options.root)?;
    refuse_guesses(args, &survey, fetched.as_ref())?;
    let kept = kept(args, &options, &survey);
    let queues = queue_moves(args, &options, &kept, &aside)?;
    let mut moves: Vec<PathBuf> = index(args, &options).into_iter().collect();
    say_what_came_since(&survey, fetched.as_ref())?;
    moves.extend(databases(args, &options, fetched.as_ref())?);
    let mut all: Vec<PathBuf> = moves.iter().chain(&queues).cloned().collect();
    all.sort();
    // What goes with its folder does not go by itself.
    all.dedup_by(|path, before| path.starts_with(before));
    refuse_other_devices(&all, &aside, &device_of)?;
    if fetched.is_some() {
        refuse_other_devices(&[Fetched::path(&options.root)], &aside, &device_of)?;
    }
    let will = if args.dry_run { "would be" } else { "will be" };
    say!(
        "the log {will} read as a start reads it: a torn end is cut off and gaps are closed, with copies in {}/cut",
        options.root.display()
    )?;
    for from in &moves {
        say!("{} {will} moved into {}", from.display(), aside.display())?;
    }
    if args.queues {
        for dir in queue_dirs(&options).iter().filter(|dir| queues.iter().any(|queue| queue.starts_with(dir))) {
            say!("the queues in {} {will} moved into {}", dir.display(), aside.display())?;
        }
        say!("stays as it is, since the log has no message of it any more: {}", counted(kept.len(), "queue"))?;
        if verified.of_deleted > 0 {
            say!("gets its queue back: {} of topics that are no more", counted(verified.of_deleted, "record"))?;
        }
    }
    if args.dry_run {
        return Ok(ExitCode::SUCCESS);
    }
    move_all(&all, &options.root, &aside)?;
    let root = options.root.clone();
    // Whoever opens the store takes its lock himself.
    drop(look);
    let (store, found) = Store::open(options, StoreEnv::real())?;
    let is_mended = tell_mended(&found, args.queues)?;
    say!("{} read, {} added to queues", counted(found.records_scanned, "record"), counted(found.units_added, "unit"))?;
    if let Some(fetched) = &fetched {
        keep_numbers(&store, fetched)?;
    }
    store.close_as_found().context("the store did not close well; the next start recovers")?;
    if fetched.is_some() {
        // Not before: whoever is interrupted can do it again. And not left there: what it says is of that broker's queues, not of those to come.
        move_all(&[Fetched::path(&root)], &root, &aside)?;
    }
    if store.was_abnormal() {
        say!("the store still counts as not closed, so that the next start looks after timer messages too")?;
    }
    Ok(if is_mended { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A look at the store, which keeps brokers out, and what there is; none if a dry run can say no more.
///
/// While a file of a consume queue has a length that none has, nobody can say what else there is, and no broker starts. So the folder of such a queue goes
/// first.
fn surveyed(
    args: &RepairArgs,
    options: &mut StoreOptions,
    aside: &Path,
    read: &dyn Fn(&Look) -> Configuration,
) -> anyhow::Result<Option<(Look, Survey)>> {
    // Each turn moves a queue aside, or learns that there are light queues, or is the last.
    loop {
        let look = look_at(options.clone())?;
        // What is refused in the end is refused before anything is moved.
        let fetched = Fetched::read(&options.root)?;
        let mut others = databases(args, options, fetched.as_ref())?;
        let (path, bytes, expected) = match look.survey() {
            Ok(survey) => {
                if options.light_queues_max.is_none() && survey.queues.iter().any(|queue| names::is_lmq(&queue.topic)) {
                    // Whether the configuration has them or was not said: those that are there are built as they were, or their groups would be ahead
                    // of them.
                    options.light_queues_max = Some(usize::MAX);
                    continue;
                }
                return Ok(Some((look, survey)));
            }
            Err(StoreError::Queue(QueueError::FileLength { path, bytes, expected })) => (path, bytes, expected),
            Err(error) => {
                // Should that fail too, it is for the same reason as a rule, and one is enough.
                let _ = tell_findings(&look, read);
                return Err(error.into());
            }
        };
        let what = format!("{} has {bytes} bytes, other files of consume queues have {expected}", path.display());
        if !args.queues || args.dry_run {
            tell_findings(&look, read)?;
        }
        if !args.queues {
            bail!("{what}: gantry store repair --queues moves that queue aside and builds it again from the log");
        }
        // Of a queue that cannot be read nobody knows what the log has of it.
        if args.place.config.is_none() && options.queue_dir.join(names::SCHEDULE_TOPIC).exists() {
            bail!(
                "{what}, and until it is moved nobody can say whether the log has delayed messages. When those are due follows from messageDelayLevel: \
                 name the broker's configuration (-c FILE)"
            );
        }
        let folder = path.parent().context("a file without a folder")?;
        let topic = folder.parent().and_then(Path::file_name).context("a queue without a topic")?;
        if names::is_lmq(&topic.to_string_lossy()) {
            options.light_queues_max.get_or_insert(usize::MAX);
        }
        others.extend(index(args, options));
        others.extend(queue_dirs(options).into_iter().filter(|dir| dir.exists()));
        others.extend(fetched.map(|_| Fetched::path(&options.root)));
        let moves = [folder.to_owned()];
        refuse_other_devices(&moves, aside, &device_of)?;
        refuse_other_devices(&others, aside, &device_of)?;
        let will = if args.dry_run { "would be" } else { "will be" };
        say!(
            "{what}: {} {will} moved into {}, and the queue built again; its next number is then what the log says",
            folder.display(),
            aside.display()
        )?;
        if args.dry_run {
            say!("what else is to be done can be said when that is done")?;
            return Ok(None);
        }
        move_all(&moves, &options.root, aside)?;
    }
}

/// Says what `verify` says.
fn tell_findings(look: &Look, read: &dyn Fn(&Look) -> Configuration) -> anyhow::Result<Verified> {
    let verified = verify::check(look, read, &mut |finding| verify::print(&finding))?;
    for note in &verified.notes {
        say!("note: {note}")?;
    }
    say!("{}", counted(verified.findings, "finding"))?;
    Ok(verified)
}

/// The folder for what is moved: one that is not there yet.
fn aside(root: &Path) -> anyhow::Result<PathBuf> {
    let folder = |number: u32| root.join("cut").join(format!("repair-{number}"));
    let number = (1..=u32::MAX).find(|number| !folder(*number).exists());
    number.map(folder).context("there is no name left for what is moved aside")
}

/// Refuses what could only be guessed. When a delayed message is due stands in its queue alone, by the levels that its broker had.
fn refuse_guesses(args: &RepairArgs, survey: &Survey, fetched: Option<&Fetched>) -> anyhow::Result<()> {
    // A repair before this one may have moved queues in RocksDB aside, for which it was told the configuration.
    let is_begun = fetched.is_some() && (survey.has_abort || survey.queues.is_empty());
    if args.place.config.is_none() && is_begun && survey.log.end > survey.log.min {
        bail!(
            "queues are built from the log, and it is not known how far a repair before this one came. When delayed messages are due follows from \
             messageDelayLevel, and whether there are light queues from enableLmq and enableMultiDispatch: name the broker's configuration (-c FILE)"
        );
    }
    let builds_queues = args.queues || survey.has_abort;
    let is_delayed = |queue: &QueueSurvey| queue.topic == names::SCHEDULE_TOPIC && queue.log_end > survey.log.min;
    if args.place.config.is_none() && builds_queues && survey.queues.iter().any(is_delayed) {
        bail!(
            "the log has delayed messages, and when they are due follows from messageDelayLevel: name the broker's configuration (-c FILE)"
        );
    }
    Ok(())
}

/// The folder of the key index, if it is to be moved.
fn index(args: &RepairArgs, options: &StoreOptions) -> Option<PathBuf> {
    let dir = options.index.as_ref().map_or_else(|| options.root.join("index"), |index| index.dir.clone());
    (args.index && dir.exists()).then_some(dir)
}

/// Where queues lie.
fn queue_dirs(options: &StoreOptions) -> [PathBuf; 2] {
    [options.queue_dir.clone(), options.root.join("batchconsumequeue")]
}

/// Folders of queues that the log cannot build again: they keep the numbers that their next messages get.
fn kept(args: &RepairArgs, options: &StoreOptions, survey: &Survey) -> BTreeSet<PathBuf> {
    let [simple, batches] = queue_dirs(options);
    let gone = survey.queues.iter().filter(|queue| args.queues && queue.log_end <= survey.log.min);
    let folder = |queue: &QueueSurvey| {
        let dir = if queue.is_batch { &batches } else { &simple };
        dir.join(&queue.topic).join(queue.id.to_string())
    };
    gone.map(folder).collect()
}

/// What is to be moved of the queues, topic by topic. Those that are kept stay in their place: whoever is interrupted leaves none without its
/// number, and what is moved by then the next start builds.
fn queue_moves(
    args: &RepairArgs,
    options: &StoreOptions,
    kept: &BTreeSet<PathBuf>,
    aside: &Path,
) -> anyhow::Result<Vec<PathBuf>> {
    if !args.queues {
        return Ok(Vec::new());
    }
    let holds_kept = |path: &PathBuf| kept.range(path.clone()..).next().is_some_and(|queue| queue.starts_with(path));
    // A topic of which a queue is aside already cannot follow as a whole.
    let is_begun = |topic: &PathBuf| place_in(aside, &options.root, topic).is_some_and(|place| place.exists());
    let mut moves = Vec::new();
    for dir in queue_dirs(options).iter().filter(|dir| dir.exists()) {
        let (split, whole): (Vec<PathBuf>, Vec<PathBuf>) =
            entries(dir)?.into_iter().partition(|topic| holds_kept(topic) || is_begun(topic));
        moves.extend(whole);
        for topic in split {
            moves.extend(entries(&topic)?.into_iter().filter(|queue| !holds_kept(queue)));
        }
    }
    Ok(moves)
}

fn entries(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let listed = fs::read_dir(dir).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
    listed.with_context(|| format!("cannot list {}", dir.display()))
}

/// Databases that are to be moved. Refuses where a start would miss them, and where what is built in their place would be guessed.
fn databases(args: &RepairArgs, options: &StoreOptions, fetched: Option<&Fetched>) -> anyhow::Result<Vec<PathBuf>> {
    let mut moves = Vec::new();
    for database in rocksdb_in(&disk::RealDisk, &options.root, &options.queue_dir)? {
        let Some(why) = database.refusal() else { continue };
        let has_queues = database.kind == RocksDbKind::Queues;
        if has_queues && (args.rocksdb || args.queues) && args.place.config.is_none() {
            bail!(
                "the consume queues are in RocksDB ({}), so all of them are built from the log. When delayed messages are due follows from messageDelayLevel, \
                 and whether there are light queues from enableLmq and enableMultiDispatch: name the broker's configuration (-c FILE)",
                database.path.display()
            );
        }
        if !args.rocksdb {
            if args.queues && !has_queues {
                bail!("{why}");
            }
            // Queues go with those in files, whatever they are kept in. What lies in the folder of those goes with it.
            if args.queues && database.path != options.queue_dir {
                moves.push(database.path);
            }
            continue;
        }
        let lacks = match database.kind {
            RocksDbKind::Configuration | RocksDbKind::ConfigurationV2 => {
                Fetched::missing(&options.root).map(|path| format!("{} is not there", path.display()))
            }
            RocksDbKind::Leases => (!fetched.is_some_and(|fetched| fetched.has_popped))
                .then(|| "gantry store fetch was not run with --popped".to_owned()),
            RocksDbKind::Queues | RocksDbKind::QueuesBesideFiles | RocksDbKind::Unused => None,
        };
        if let Some(lacks) = lacks {
            bail!("{} stays, since {lacks}: {why}", database.path.display());
        }
        moves.push(database.path);
    }
    Ok(moves)
}

/// What was made after the fetch is in no file.
fn say_what_came_since(survey: &Survey, fetched: Option<&Fetched>) -> io::Result<()> {
    let Some(fetched) = fetched else { return Ok(()) };
    let newest = survey.log.last_store_time;
    if let Some(newest) = newest.filter(|newest| newest.saturating_sub(fetched.at) > AGE_MAX_MS) {
        say!(
            "note: {} was asked at {}, and the last message was stored at {}: offsets that were committed in between are not known, and topics and \
             groups that were made in between neither",
            fetched.broker,
            time(fetched.at),
            time(newest)
        )?;
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
                    say!("note: queue {topic}/{id} ended at {next} when it was asked for, and the log says {has}")?
                }
                Err(StoreError::NoSuchQueue { .. }) => say!("note: there can be no queue {topic}/{id}")?,
                Err(error) => return Err(error.into()),
            }
        }
    }
    say!("goes on at its number, since the log has no message of it: {}", counted(kept, "queue"))?;
    Ok(())
}

/// Where something goes: what lies in the store's folder to the same place below `aside`, and anything else into it.
fn place_in(aside: &Path, root: &Path, from: &Path) -> Option<PathBuf> {
    let place = from.strip_prefix(root).ok().or_else(|| from.file_name().map(Path::new))?;
    Some(aside.join(place))
}

/// Refuses what no rename brings into the folder `aside`: what is a mount of its own, or lies in one.
fn refuse_other_devices(
    moves: &[PathBuf],
    aside: &Path,
    device_of: &dyn Fn(&Path) -> io::Result<u64>,
) -> anyhow::Result<()> {
    let device = |path: &Path| device_of(path).with_context(|| format!("cannot look at {}", path.display()));
    // It is not there yet.
    let there = device(aside.ancestors().find(|folder| folder.exists()).unwrap_or(aside))?;
    for path in moves {
        if device(path)? != there {
            bail!(
                "{} lies on another file system than {}, and cannot be moved there. While no broker runs, move it, and whatever else is to be built again, to \
                 another place on its own file system: a start builds what is missing. Leave the folders of queues of which the log has no message any more, \
                 or they begin at 0",
                path.display(),
                aside.display()
            );
        }
    }
    Ok(())
}

fn device_of(path: &Path) -> io::Result<u64> {
    fs::metadata(path).map(|about| about.dev())
}

/// Moves each to its place below `aside`.
fn move_all(moves: &[PathBuf], root: &Path, aside: &Path) -> anyhow::Result<()> {
    for from in moves {
        let to = place_in(aside, root, from).context("a folder without a name")?;
        let folder = to.parent().unwrap_or(aside);
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        fs::rename(from, &to).with_context(|| format!("cannot move {} to {}", from.display(), to.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use env::TimeMs;
    use protocol::light;
    use protocol::properties::{PropertiesWriter, name};
    use protocol::record::RecordDraft;
    use store::{AppendError, RecordBatch, TagsCode};

    use super::*;

    const LIGHT: &str = "%LMQ%parent$one";

    fn open(options: StoreOptions) -> Arc<Store> {
        Store::open(options, StoreEnv::real()).unwrap().0
    }

    fn with_light_queues(root: &Path) -> StoreOptions {
        StoreOptions { light_queues_max: Some(10), ..StoreOptions::at(root) }
    }

    /// Appends a message, which stands in light queues too.
    fn append(store: &Store, topic: &str, light_queues: &[&str], more: &[u8]) {
        let mut properties = more.to_vec();
        if !light_queues.is_empty() {
            let names = light_queues.join(",");
            properties.extend(PropertiesWriter::new().put(name::INNER_MULTI_DISPATCH, &names).as_bytes());
            light::put_room(&mut properties, light_queues.len());
        }
        let host = "127.0.0.1:10911".parse().unwrap();
        let draft = RecordDraft { body: b"body", properties: &properties, ..RecordDraft::plain(topic, host) };
        let mut light: Vec<_> = light_queues.iter().map(|name| store.queue(name, 0).unwrap()).collect();
        let queue = store.queue(topic, 0).unwrap();
        let mut batch = RecordBatch::new();
        let tags = match topic {
            names::SCHEDULE_TOPIC => TagsCode::DeliverAfterMs(1000),
            _ => TagsCode::Code(0),
        };
        batch.push_light(&queue, tags, &mut light, properties.len(), |out| {
            draft.encode(out).unwrap();
        });
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while let Err(error) = store.append(&mut batch, TimeMs(1_700_000_000_000)) {
            let AppendError::NoRoomYet { needed } = error else { panic!("{error}") };
            assert!(store.room().wait_until(needed, deadline));
        }
    }

    /// `gantry store repair --queues`, with or without a configuration.
    fn repair(root: &Path, config: Option<&str>) -> anyhow::Result<ExitCode> {
        run(&args(root, config), StoreOptions::at(root), &|_| Configuration::default())
    }

    fn args(root: &Path, config: Option<&str>) -> RepairArgs {
        let place = Place { store: Some(root.to_owned()), config: config.map(PathBuf::from) };
        RepairArgs { place, dry_run: false, queues: true, rocksdb: false, index: false }
    }

    /// Gives the first file of a queue a length that none has.
    fn lengthen(root: &Path, topic: &str) {
        let path = root.join("consumequeue").join(topic).join("0").join(format!("{:020}", 0));
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        file.set_len(file.metadata().unwrap().len() + 1).unwrap();
    }

    fn ends(store: &Store, topics: &[&str]) -> Vec<Option<u64>> {
        topics.iter().map(|topic| store.existing_queue(topic, 0).map(|queue| queue.max_offset())).collect()
    }

    #[test]
    fn light_queues_are_built_again_though_nobody_says_that_there_are_such_things() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(with_light_queues(dir.path()));
        for _ in 0..3 {
            append(&store, "parent", &[LIGHT], b"");
            append(&store, "parent", &[], b"");
        }
        store.close().unwrap();
        drop(store);
        repair(dir.path(), None).unwrap();
        let store = open(with_light_queues(dir.path()));
        assert_eq!(ends(&store, &["parent", LIGHT]), [Some(6), Some(3)]);
        store.close().unwrap();
    }

    #[test]
    fn the_times_of_delayed_messages_are_not_guessed() {
        assert_delayed_wait_for_levels(|_| {});
    }

    #[test]
    fn a_queue_with_a_file_of_another_length_is_moved_aside_and_built_again() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(with_light_queues(dir.path()));
        append(&store, "parent", &[LIGHT], b"");
        append(&store, "other", &[], b"");
        store.close().unwrap();
        drop(store);
        lengthen(dir.path(), LIGHT);
        let plain = RepairArgs { queues: false, ..args(dir.path(), None) };
        let refused = run(&plain, StoreOptions::at(dir.path()), &|_| Configuration::default()).unwrap_err().to_string();
        assert!(refused.contains("6000001 bytes") && refused.contains("--queues"), "{refused}");
        let dry = RepairArgs { dry_run: true, ..args(dir.path(), None) };
        run(&dry, StoreOptions::at(dir.path()), &|_| Configuration::default()).unwrap();
        assert!(!dir.path().join("cut").exists());
        repair(dir.path(), None).unwrap();
        assert!(dir.path().join("cut/repair-1/consumequeue").join(LIGHT).join("0").is_dir());
        let store = open(with_light_queues(dir.path()));
        assert_eq!(ends(&store, &["parent", LIGHT, "other"]), [Some(1), Some(1), Some(1)]);
        store.close().unwrap();
    }

    #[test]
    fn a_queue_of_delayed_messages_with_a_file_of_another_length_stays_until_the_levels_are_known() {
        assert_delayed_wait_for_levels(|dir| lengthen(dir, names::SCHEDULE_TOPIC));
    }

    /// A store with a delayed message, to which something is done, is repaired when the configuration says what the levels are, and not before.
    fn assert_delayed_wait_for_levels(damage: impl FnOnce(&Path)) {
        let dir = tempfile::tempdir().unwrap();
        let store = open(StoreOptions::at(dir.path()));
        append(&store, names::SCHEDULE_TOPIC, &[], b"DELAY\x011\x02");
        store.close().unwrap();
        drop(store);
        damage(dir.path());
        let refused = repair(dir.path(), None).unwrap_err().to_string();
        assert!(refused.contains("messageDelayLevel") && refused.contains("-c FILE"), "{refused}");
        assert!(!dir.path().join("cut").exists());
        repair(dir.path(), Some("broker.conf")).unwrap();
        let store = open(StoreOptions::at(dir.path()));
        assert_eq!(ends(&store, &[names::SCHEDULE_TOPIC]), [Some(1)]);
        store.close().unwrap();
    }

    #[test]
    fn brokers_are_kept_out_from_the_first_look_until_all_is_moved() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(StoreOptions::at(dir.path()));
        append(&store, "there", &[], b"");
        store.close().unwrap();
        drop(store);
        lengthen(dir.path(), "there");
        let (mut options, aside) = (StoreOptions::at(dir.path()), aside(dir.path()).unwrap());
        let read = |_: &Look| Configuration::default();
        let (look, _) = surveyed(&args(dir.path(), None), &mut options, &aside, &read).unwrap().unwrap();
        assert!(matches!(Store::open(options.clone(), StoreEnv::real()), Err(StoreError::Locked { .. })));
        drop(look);
        open(options).close().unwrap();
    }

    #[test]
    fn what_lies_on_another_device_is_refused_before_anything_is_moved() {
        let aside = Path::new("/no-such-store/cut/repair-1");
        let queues = Path::new("/no-such-store/consumequeue");
        let moves = [PathBuf::from("/no-such-store/index"), queues.join("orders")];
        let all_on_one = |_: &Path| -> io::Result<u64> { Ok(7) };
        refuse_other_devices(&moves, aside, &all_on_one).unwrap();
        let is_mounted = |path: &Path| -> io::Result<u64> { Ok(if path.starts_with(queues) { 8 } else { 7 }) };
        let refused = refuse_other_devices(&moves, aside, &is_mounted).unwrap_err().to_string();
        assert!(refused.starts_with("/no-such-store/consumequeue/orders lies on another file system"), "{refused}");
        let unseen = |_: &Path| -> io::Result<u64> { Err(io::ErrorKind::PermissionDenied.into()) };
        assert!(refuse_other_devices(&moves, aside, &unseen).is_err());
    }

    #[test]
    fn queues_that_the_log_has_nothing_of_keep_their_numbers_wherever_a_repair_is_interrupted() {
        let dir = tempfile::tempdir().unwrap();
        let small_files = StoreOptions { segment_bytes: 64 << 10, ..StoreOptions::at(dir.path()) };
        let store = open(small_files.clone());
        while store.end().0 < small_files.segment_bytes {
            append(&store, "there", &[], b"");
        }
        append(&store, "half-gone", &[], b"");
        store.close().unwrap();
        drop(store);
        // As retention does.
        fs::remove_file(small_files.log_dirs.taking()[0].join(format!("{:020}", 0))).unwrap();
        let store = open(small_files);
        let there = ends(&store, &["there"])[0];
        for (topic, id) in [("gone", 0), ("half-gone", 1)] {
            assert!(store.keep_number(topic, id, 1000).unwrap());
        }
        store.close().unwrap();
        drop(store);
        let queues = |store: &Store| {
            let end = |topic, id| store.existing_queue(topic, id).map(|queue| queue.max_offset());
            [end("gone", 0), end("half-gone", 0), end("half-gone", 1), end("there", 0)]
        };
        let expected = [Some(1000), Some(1), Some(1000), there];
        let options = StoreOptions::at(dir.path());
        let survey = Look::stopped(options.clone()).unwrap().survey().unwrap();
        let args = args(dir.path(), None);
        let nowhere = aside(dir.path()).unwrap();
        let moves = queue_moves(&args, &options, &kept(&args, &options, &survey), &nowhere).unwrap();
        assert_eq!(moves.len(), 2, "{moves:?}");
        for interrupted_after in 0..=moves.len() {
            let aside = aside(dir.path()).unwrap();
            let moved: Vec<_> = moves[..interrupted_after].to_vec();
            move_all(&moved, dir.path(), &aside).unwrap();
            let store = open(options.clone());
            assert_eq!(queues(&store), expected, "after {interrupted_after} of {moves:?}");
            store.close().unwrap();
        }
        repair(dir.path(), None).unwrap();
        let store = open(options);
        assert_eq!(queues(&store), expected);
        store.close().unwrap();
    }
}
