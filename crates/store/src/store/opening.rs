//! Opening a store: locks, recovers, and starts.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize};
use std::time::{Duration, Instant};

use disk::worker::Bell;
use disk::{Disk, FilePages, Unsynced, Watermark, governed};
use env::{Buggify, Clock};
use journal::{Journal, JournalOptions};
use parking_lot::{Mutex, RwLock};
use protocol::LogOffset;

use super::{RetentionFloor, Shared, Store};
use crate::checkpoint::Checkpoint;
use crate::closed::Closed;
use crate::cold::ColdReads;
use crate::commit_log::CommitLog;
use crate::cut::Cut;
use crate::deleted::Deleted;
use crate::error::StoreError;
use crate::governor::{ColdPages, Governor, Shares};
use crate::index::{KeyIndex, LogNow};
use crate::lock::{AbortFile, Left, StoreLock};
use crate::options::{FlushMode, StoreEnv, StoreOptions};
use crate::queue_log::{QueueLogOptions, QueueLogs};
use crate::recovery::{self, Before, End, LogFiles, Recovered, Unfinished, Went};
use crate::resume::{self, Mark, Resume};
use crate::rocksdb;
use crate::stage::{Confirmed, Copied};
use crate::{again, prepare};

/// A journal that takes nothing for so long does not keep a store from opening.
const MARKS_PATIENCE: Duration = Duration::from_secs(2);

impl Store {
    /// Locks the store, recovers what is in it, and starts the threads. Says what was found and mended.
    pub fn open(options: StoreOptions, env: StoreEnv) -> Result<(Arc<Store>, Recovered), StoreError> {
        let StoreEnv { clock, disk, buggify, random: _ } = env;
        let root = options.root.clone();
        let lock = folders(&options, &*disk)?;
        rocksdb::refuse(&*disk, &root, &options.queue_dir)?;
        let mut found = Recovered::default();
        let unsynced = Unsynced::find(&root, &disk).map_err(failed("read", &Unsynced::path(&root)))?;
        let disk = unsynced.watched();
        let cut = Cut::begin(&options, &disk, &mut found)?;
        let (abort, left) = AbortFile::find(&root, &disk);
        let was_copied = left == Left::OpenAndCopied;
        let has_failed_sync = unsynced.found().is_some();
        // Also a stop may have ended with a sync that failed.
        let was_abnormal = left != Left::Closed || has_failed_sync;
        (found.was_abnormal, found.was_copied) = (was_abnormal, was_copied);
        let index_dir = options.index.as_ref().map(|index| index.dir.as_path());
        let files_again =
            if has_failed_sync { again::write_files(&root, index_dir, &*disk, &mut found.findings)? } else { 0 };
        let (mut checkpoint, marks) = Checkpoint::open(&*disk, &root)?;
        let journal = open_journal(&options, &clock, &disk, &buggify, &checkpoint, &mut found)?;
        let memory = Memory::new(&options, &disk);
        let queue_options = queue_options(&options, &buggify);
        let (queues, loaded) = QueueLogs::open(&options.queue_dir, queue_options, Arc::clone(&memory.files_disk))?;
        let closed = Closed::recall(&journal).filter(|_| cut.is_none() && !was_copied);
        let went = Went {
            known_end: queues.max_log_end().0.max(closed.map_or(0, |closed| closed.end)),
            closed_end: closed.filter(|_| !was_abnormal).map_or(0, |closed| closed.end),
        };
        let mut files = recovery::open_segments(&options, &disk, &memory.cold_pages, went, &mut found)?;
        found.findings.extend(loaded.findings);
        let deleted = Deleted::recall(&journal);
        let batch_topics = options.batch_topics.map(|batch_topics| batch_topics(&journal)).unwrap_or_default();
        let resume = Resume::new(&root, &disk);
        let is_noted = |mark: &Mark| {
            was_abnormal
                && !has_failed_sync
                && queues_are_beside(&options, &*disk)
                && resume::is_in_memory(&files.segments, *mark)
        };
        let noted = resume.recall(abort.path()).filter(is_noted);
        let before = Before {
            noted,
            batch_topics: &batch_topics,
            deleted: &deleted,
            // Each file of a copy is of another moment: the check-point vouches for none of them.
            rebuild_from: if was_copied { Some(0) } else { loaded.rebuild_from.map(|at| at.0) },
            queue_ends: &loaded.ends,
            marks: marks.as_ref(),
            closed,
            unfinished: Unfinished { abort: &abort, checkpoint: &checkpoint, resume: &resume },
            has_failed_sync,
        };
        let end = recovery::recover(&mut files, &queues, &before, &options, &disk, &memory.cold_pages, &mut found)?;
        found.findings.splice(0..0, was_copied.then(|| copied(&root, end.at)));
        if was_abnormal && end.noted.is_none() {
            queues.clear_behind(&loaded.with_remains)?;
        }
        if let Some(position) = deleted.follow_log(&journal, files.segments[0].base(), end.at) {
            // New messages will lie below the marks as they were: were these there again after a loss of power, they would take them away.
            journal.mark_of(position, true).wait_until(position, Instant::now() + MARKS_PATIENCE);
        }

        if let Some(what) = unsynced.found() {
            let bytes = files_again + end.written_again;
            found
                .findings
                .push(format!("after a failed sync, {bytes} bytes were written again and are on the device: {what}"));
        }
        let log_now = LogNow { min: files.segments[0].base(), end: end.at, was_abnormal, was_copied };
        let open_index = |options| KeyIndex::open(options, &memory.files_disk, &journal, log_now, &mut found.findings);
        let index = options.index.as_ref().map(open_index).transpose()?;
        let log = open_log(&options, files, &end, &memory)?;
        let shared = share(Shared::new(options, clock, disk, log, queues, index, &end), memory, resume, buggify, &end)?;
        let log = Arc::downgrade(&shared);
        journal.count_beside(Box::new(move || log.upgrade().map_or(0, |shared| shared.log.end.get())));
        make_first_room(&shared, end.at, &mut found)?;
        abort.raise()?;
        shared.resume.begin(abort.path(), end.noted);
        // Without its name on the device, a loss of power would look like a clean stop.
        shared.disk.sync_dir(&root).map_err(failed("sync", &root))?;
        checkpoint.note_journal()?;
        if let Some(cut) = cut {
            found.cut_off = Some(cut.end(&mut checkpoint, marks.as_ref(), &end, &journal)?);
        }
        unsynced.clear();
        let StoreOptions { cold_read_threads, cold_reads_max, .. } = shared.options;
        let (cold, mut threads) = ColdReads::start("cold", cold_read_threads, cold_reads_max)?;
        let (filters, filter_threads) = ColdReads::start("filter", 1, cold_reads_max)?;
        threads.extend(filter_threads);
        let store = Arc::new(Store {
            shared,
            journal: Arc::new(journal),
            cold,
            filters,
            checkpointed: AtomicI64::new(checkpoint.last()),
            checkpoint: Mutex::new(checkpoint),
            has_unsure_queues: AtomicBool::new(was_abnormal),
            was_abnormal,
            was_copied,
            may_have_lost: was_abnormal && noted.is_none(),
            abort,
            threads: Mutex::new(threads),
            lock: Mutex::new(Some(lock)),
        });
        store.start_threads()?;
        Ok((store, found))
    }
}

/// What there is to say of a folder that was copied while somebody had the store open.
fn copied(root: &Path, end: u64) -> String {
    format!(
        "{} was copied while a broker had it open, or had not closed it: its files are of different moments. Consume queues and key index are \
         built again from the log, which ends at {end}. Topics, groups, offsets, and how far delayed messages, timer messages and transactions \
         had come, may be older or newer than the log: such messages may come again, or be missing. A copy of a stopped broker has all of it",
        root.display()
    )
}

/// Opens the journal, and says what it found.
fn open_journal(
    options: &StoreOptions,
    clock: &Clock,
    disk: &Arc<dyn Disk>,
    buggify: &Buggify,
    checkpoint: &Checkpoint,
    found: &mut Recovered,
) -> Result<Journal, StoreError> {
    let dir = options.root.join("journal");
    if checkpoint.knows_journal() && !journal::expect(&dir, &**disk)? {
        let what = format!("{} is not there, and the store had one: {}", dir.display(), journal::WITHOUT);
        found.findings.push(what);
    }
    let sync = options.flush.journal_sync(options.flush_interval);
    let journal_options = JournalOptions { sync, ..options.journal.clone() };
    let journal = Journal::open_with(&dir, journal_options, clock.clone(), Arc::clone(disk), buggify.clone())?;
    found.findings.extend(journal.findings().iter().cloned());
    Ok(journal)
}

fn queue_options(options: &StoreOptions, buggify: &Buggify) -> QueueLogOptions {
    QueueLogOptions {
        file_bytes: options.queue_file_bytes,
        batch_dir: Some(options.root.join("batchconsumequeue")),
        batch_file_bytes: options.batch_queue_file_bytes,
        descriptors: options.queue_descriptors_max,
        buffered_bytes: options.queue_buffered_bytes,
        buggify: buggify.clone(),
        ..QueueLogOptions::default()
    }
}

/// Where pages of the store's files are accounted for, if memory is governed.
struct Memory {
    shares: Option<Shares>,
    bell: Arc<Bell>,
    cold_pages: Arc<ColdPages>,
    file_pages: Option<Arc<FilePages>>,
    /// For what is neither log nor journal.
    files_disk: Arc<dyn Disk>,
}

impl Memory {
    fn new(options: &StoreOptions, disk: &Arc<dyn Disk>) -> Memory {
        let shares = options.governor.as_ref().map(|governor| governor.shares);
        let bell = Arc::new(Bell::default());
        let is_exact = shares.is_some_and(|shares| shares.ahead < prepare::WINDOW_MAX);
        let cold_pages = Arc::new(ColdPages::new(shares.map(|shares| shares.cold), is_exact, Arc::clone(&bell)));
        let file_pages = shares.map(|shares| Arc::new(FilePages::new(shares.files, disk)));
        let files_disk = file_pages.as_ref().map_or_else(|| Arc::clone(disk), |pages| governed(disk, pages));
        Memory { shares, bell, cold_pages, file_pages, files_disk }
    }
}

/// The log, to be appended to from its end on.
fn open_log(options: &StoreOptions, files: LogFiles, end: &End, memory: &Memory) -> Result<CommitLog, StoreError> {
    // What is full may lie on a device that cannot be written.
    if let Some(tail) = files.segments.iter().find(|segment| segment.holds(end.at) && segment.is_read_only()) {
        return Err(StoreError::Disk {
            doing: "append to",
            path: tail.path().to_owned(),
            source: io::ErrorKind::ReadOnlyFilesystem.into(),
        });
    }
    let log = CommitLog::new(files.segments, files.segment_bytes, end.at, end.last_timestamp).ok_or_else(|| {
        StoreError::Malformed {
            path: options.log_dirs.first().to_owned(),
            why: format!("no file holds the log's end {}", end.at),
        }
    })?;
    let log = match options.pool {
        None => log,
        Some(pool) => log.with_pool(pool),
    };
    if memory.cold_pages.is_bounded()
        && !memory.cold_pages.is_exact()
        && let Some(tail) = log.segment_at(end.at)
    {
        tail.touch_around(end.at);
    }
    Ok(log)
}

/// Adds to what the threads share where memory is accounted for, and how far queues are known to be written.
fn share(
    shared: Shared,
    memory: Memory,
    resume: Resume,
    buggify: Buggify,
    end: &End,
) -> Result<Arc<Shared>, StoreError> {
    let Memory { shares, bell, cold_pages, file_pages, files_disk } = memory;
    // What the process before us left in memory of the newest stretch is of use still. What it left below and the device has not yet is
    // dropped once it is there.
    let kept_from = shares.map_or(0, |shares| end.at.saturating_sub(shares.hot));
    cold_pages.keep_from(kept_from);
    let governor = shared.options.governor.clone().zip(file_pages);
    let governor = governor.map(|(options, pages)| Governor::new(options, pages, kept_from));
    let shared = Arc::new(Shared { resume, cold_pages, governor, governor_bell: bell, files_disk, buggify, ..shared });
    shared.queues.begin_to_count_ends(end.at)?;
    let noted_in = Arc::downgrade(&shared);
    shared.queues.before_removal(move || {
        noted_in.upgrade().inspect(|shared| shared.resume.forget_ends());
    });
    Ok(shared)
}

/// Makes room for the first message. A start without any would be taken for one that worked, where there is nothing to be read either.
fn make_first_room(shared: &Arc<Shared>, end: u64, found: &mut Recovered) -> Result<(), StoreError> {
    if prepare::prepare_to(shared, end + prepare::WINDOW_MIN) {
        return Ok(());
    }
    let reason = shared.no_room.lock().clone();
    match reason {
        Some(reason) if end == shared.log.min() => return Err(reason.into()),
        Some(reason) => found.not_mended.push(format!("messages are read, and none is taken: {reason}")),
        None => {}
    }
    Ok(())
}

impl Shared {
    fn new(
        options: StoreOptions,
        clock: Clock,
        disk: Arc<dyn Disk>,
        log: CommitLog,
        queues: QueueLogs,
        index: Option<KeyIndex>,
        end: &End,
    ) -> Shared {
        Shared {
            clock,
            resume: Resume::new(&options.root, &disk),
            files_disk: Arc::clone(&disk),
            disk,
            buggify: Buggify::never(),
            confirmed: Confirmed::new(options.flush == FlushMode::Sync, log.end.get(), end.flushed),
            copied: Copied::new(),
            log,
            queues,
            index,
            cold_pages: Arc::new(ColdPages::unbounded()),
            governor: None,
            flush_wanted: AtomicBool::new(false),
            governor_bell: Arc::default(),
            is_room_held: AtomicBool::new(false),
            flushed: Watermark::new(end.flushed),
            last_timestamp: AtomicI64::new(end.last_timestamp),
            flushed_timestamp: AtomicI64::new(end.flushed_timestamp),
            needed_room: AtomicU64::new(0),
            opened_at: end.at,
            had_reads: AtomicBool::new(false),
            segments_bell: Bell::default(),
            damaged: crate::damaged::Damaged::default(),
            mending: crate::mending::Mending::default(),
            flush_bell: Bell::default(),
            retention_bell: Bell::default(),
            no_room: Mutex::new(None),
            unwritten_queues: Mutex::new(None),
            disk_full: Mutex::new(None),
            is_writable: AtomicBool::new(true),
            retention: Mutex::new(options.retention.clone()),
            retention_floor: RwLock::new(
                options.is_protected.then(|| Box::new(|| Some(LogOffset(0))) as RetentionFloor),
            ),
            delete_expired: AtomicBool::new(false),
            checkpoint_bell: Bell::default(),
            checkpoint_wanted: AtomicBool::new(false),
            queues_rest: AtomicBool::new(false),
            light_queues_max: AtomicUsize::new(options.light_queues_max.unwrap_or(0)),
            light_queues_looked_ms: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            options,
        }
    }
}

/// Whether consume queues lie on the volume of the root, where it is noted how far the kernel has them: then whoever took one away took the
/// other, too. A volume of their own may be one that was put back as it was earlier.
fn queues_are_beside(options: &StoreOptions, disk: &dyn Disk) -> bool {
    let is_beside =
        |dir: &Path| disk.device(dir).is_ok_and(|of| disk.device(&options.root).is_ok_and(|root| of == root));
    let batches = options.root.join("batchconsumequeue");
    is_beside(&options.queue_dir) && (disk.device(&batches).is_err() || is_beside(&batches))
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError + use<> {
    let path = path.to_owned();
    move |source| StoreError::Disk { doing, path, source }
}

/// Makes the folders, and locks the store.
fn folders(options: &StoreOptions, disk: &dyn Disk) -> Result<StoreLock, StoreError> {
    let root = &*options.root;
    let is_new = disk.list(root).is_ok_and(|entries| entries.is_empty());
    // Where names of folders are made, those above ours included.
    let mut parents = BTreeSet::new();
    for dir in [root, &*options.queue_dir].into_iter().chain(options.log_dirs.taking().iter().map(PathBuf::as_path)) {
        let missing = dir.ancestors().take_while(|dir| !dir.as_os_str().is_empty() && disk.len(dir).is_err());
        parents.extend(missing.filter_map(parent_of).map(Path::to_owned));
        disk.create_dir(dir).map_err(failed("make", dir))?;
    }
    let lock = StoreLock::take(root)?;
    if is_new {
        // An empty folder may have been made just now, too.
        parents.extend([Some(root), parent_of(root)].into_iter().flatten().map(Path::to_owned));
    }
    // Without it a loss of power would take away whatever is in a folder.
    for dir in &parents {
        disk.sync_dir(dir).map_err(failed("sync", dir))?;
    }
    Ok(lock)
}

/// The folder that has its name. The parent of a bare name is empty.
fn parent_of(dir: &Path) -> Option<&Path> {
    dir.parent().map(|parent| if parent.as_os_str().is_empty() { Path::new(".") } else { parent })
}
