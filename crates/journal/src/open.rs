//! Opening a journal: the newest snapshot, then every change after it.
//!
//! A bundle that is not whole ends the journal if nothing shows that it ever was: that is what a crash leaves, and the end
//! is cut there. If something shows it, the file is damaged, and to go on would be to forget what was acknowledged.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use disk::{Disk, OpenHow, Watermark, worker};
use env::{Buggify, Clock};
use parking_lot::{Condvar, Mutex};

use crate::bundle::{self, BundleKind, HEADER_BYTES, Head};
use crate::change::{Entries, TableId, apply};
use crate::error::JournalError;
use crate::files::{self, journal_path, snapshot_path};
use crate::front::Front;
use crate::journal::{Inner, Journal, Owner, Shared};
use crate::options::JournalOptions;
use crate::pending::Pending;
use crate::stats::Gauges;
use crate::window::UNUSED_BYTES_MAX;
use crate::writer::{self, Writer};

type Tables = BTreeMap<TableId, Entries>;

impl Journal {
    /// Opens the journal in `dir`, or begins one, and starts its thread.
    pub fn open(
        dir: &Path,
        options: JournalOptions,
        clock: Clock,
        disk: Arc<dyn Disk>,
    ) -> Result<Journal, JournalError> {
        Journal::open_with(dir, options, clock, disk, Buggify::never())
    }

    /// The same; `buggify` says which rare branches are taken without need.
    pub fn open_with(
        dir: &Path,
        options: JournalOptions,
        clock: Clock,
        disk: Arc<dyn Disk>,
        buggify: Buggify,
    ) -> Result<Journal, JournalError> {
        disk.create_dir(dir).map_err(|source| JournalError::disk("make", dir, source))?;
        let found = files::list(&*disk, dir)?;
        for path in &found.unfinished {
            disk.remove(path).map_err(|source| JournalError::disk("remove", path, source))?;
        }
        let Replayed { tables, findings, base, snapshot_bytes, end } = replay(dir, &*disk, &found)?;
        files::remove_before(&*disk, dir, base)?;

        let path = journal_path(dir, end.start);
        let failed = |doing| {
            let path = &path;
            move |source| JournalError::disk(doing, path, source)
        };
        if end.at == 0 {
            writer::begin_file(&*disk, dir, end.start)?;
        }
        let file = disk.open(&path, OpenHow::Write).map_err(failed("open"))?;
        // What a process before us wrote may be in the kernel only. From here on everything below
        // `position` is safe. What no sync brings, since one has failed before, was written again
        // by whoever opens the store.
        file.sync_data().map_err(failed("sync"))?;
        // It was read, and left by a process before us perhaps. A hint: what stays costs memory,
        // not bytes.
        let _ = file.forget_cached(0, end.at);

        let gauges = Gauges::default();
        gauges.journal_bytes.store(end.journal_bytes, Ordering::Relaxed);
        gauges.snapshot_bytes.store(snapshot_bytes, Ordering::Relaxed);
        let tables = tables.into_iter().map(|(table, entries)| (table, Owner::Held(Arc::new(entries)))).collect();
        let shared = Arc::new(Shared {
            dir: dir.to_owned(),
            disk,
            clock,
            written: Arc::new(Watermark::new(end.position)),
            synced: Arc::new(Watermark::new(end.position)),
            inner: Mutex::new(Inner {
                options,
                window: None,
                is_told: false,
                is_told_low: false,
                scratch: Vec::new(),
                pending: Pending::default(),
                last: end.position,
                tables,
                snapshot_wanted: false,
                sync_wanted_to: end.position,
                sync_done: false,
                snapshot_done: None,
            }),
            work: Condvar::new(),
            is_closing: AtomicBool::new(false),
            gauges,
            buggify,
            opened_at: end.position,
            beside: OnceLock::new(),
        });
        let at = end.at.max(HEADER_BYTES as u64);
        let writer = Writer::new(Arc::clone(&shared), file, end.start, at, end.position);
        let thread = worker::try_spawn("journal", move || writer.run()).map_err(JournalError::Thread)?;
        Ok(Journal { shared, thread: Mutex::new(Some(thread)), findings })
    }
}

/// What a journal's files say.
struct Replayed {
    tables: Tables,
    findings: Vec<String>,
    /// The position of the snapshot.
    base: u64,
    snapshot_bytes: u64,
    end: End,
}

fn replay(dir: &Path, disk: &dyn Disk, found: &files::Files) -> Result<Replayed, JournalError> {
    let mut state = Replay { disk, dir, tables: Tables::new(), findings: Vec::new() };
    let mut snapshot_bytes = 0;
    let base = match found.snapshots.last() {
        Some(&position) => {
            snapshot_bytes = state.snapshot(position)?;
            position
        }
        None => 0,
    };
    let journals: Vec<u64> = found.journals.iter().copied().filter(|start| *start >= base).collect();
    let end = state.journals(base, &journals, found.snapshots.is_empty())?;
    let Replay { tables, findings, .. } = state;
    Ok(Replayed { tables, findings, base, snapshot_bytes, end })
}

/// What the files of a journal say, read without opening it.
#[derive(Debug)]
pub struct JournalLook {
    tables: Tables,
    /// What opening would mend, a sentence each.
    pub findings: Vec<String>,
    /// Changes since it began.
    pub changes: u64,
    /// Entries that there are now, of all tables.
    pub entries: usize,
    /// Bytes of the last snapshot and of what came after it.
    pub bytes: u64,
}

impl JournalLook {
    /// Reads the journal in `dir` through a `disk` that changes nothing; none if there is none.
    pub fn read(dir: &Path, disk: &dyn Disk) -> Result<Option<JournalLook>, JournalError> {
        let found = files::list(disk, dir)?;
        if found.journals.is_empty() && found.snapshots.is_empty() {
            return Ok(None);
        }
        let Replayed { tables, findings, snapshot_bytes, end, .. } = replay(dir, disk, &found)?;
        let entries = tables.values().map(Entries::len).sum();
        Ok(Some(JournalLook {
            tables,
            findings,
            changes: end.position,
            entries,
            bytes: snapshot_bytes + end.journal_bytes,
        }))
    }

    /// Shows a table's entries, by key.
    pub fn load(&self, table: TableId, mut show: impl FnMut(&[u8], &[u8])) {
        for (key, value) in self.tables.get(&table).into_iter().flatten() {
            show(key, value);
        }
    }
}

/// Looks for the journal of a store that is known to have had one, before it is opened. Says
/// whether its folder is there; an error if that has no file of it.
///
/// A folder that is moved away means to begin anew. One without a file that was begun is what an
/// accident leaves.
pub fn expect(dir: &Path, disk: &dyn Disk) -> Result<bool, JournalError> {
    let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) else { return Ok(true) };
    let beside = disk.list(parent).map_err(|source| JournalError::disk("list", parent, source))?;
    if !beside.iter().any(|entry| entry.is_dir && name == entry.name.as_str()) {
        return Ok(false);
    }
    let found = files::list(disk, dir)?;
    let state = Replay { disk, dir, tables: Tables::new(), findings: Vec::new() };
    let mut is_begun = !found.snapshots.is_empty();
    for &start in &found.journals {
        is_begun = is_begun || !state.is_headless(start)?;
    }
    match is_begun {
        true => Ok(true),
        false => {
            let what = "the store had a journal, and no file of it is here".to_owned();
            Err(JournalError::Missing { path: dir.to_owned(), what })
        }
    }
}

/// Where writing goes on.
struct End {
    /// The file's first position.
    start: u64,
    /// The byte in it; 0 if it is to be made.
    at: u64,
    position: u64,
    journal_bytes: u64,
}

struct Replay<'a> {
    disk: &'a dyn Disk,
    dir: &'a Path,
    tables: Tables,
    findings: Vec<String>,
}

impl Replay<'_> {
    fn snapshot(&mut self, position: u64) -> Result<u64, JournalError> {
        let path = snapshot_path(self.dir, position);
        let mut front = Front::open(self.disk, &path)?;
        let damaged = |at, what| JournalError::Damaged { path: path.clone(), at, what };
        let mut at = 0;
        // Ends with the bundle that says so, or the first that is not whole: each turn takes one.
        loop {
            let (head, payload) =
                front.bundle(at)?.ok_or_else(|| damaged(at, "this part of the snapshot is not what was written"))?;
            let is_expected = match head.kind {
                BundleKind::SnapshotHead => at == 0,
                BundleKind::Entries | BundleKind::End => at > 0,
                BundleKind::JournalHead => false,
            };
            if !is_expected || head.last != position {
                return Err(damaged(at, "this part of the snapshot does not belong here"));
            }
            self.apply(payload).ok_or_else(|| damaged(at, "an entry does not add up"))?;
            at += (HEADER_BYTES + payload.len()) as u64;
            if head.kind == BundleKind::End {
                return Ok(front.len());
            }
        }
    }

    /// Replays the journals that begin at `starts`; they must join without a gap, and begin where the snapshot was taken.
    fn journals(&mut self, base: u64, starts: &[u64], is_without_snapshot: bool) -> Result<End, JournalError> {
        if starts.is_empty() && is_without_snapshot {
            return Ok(End { start: 0, at: 0, position: 0, journal_bytes: 0 });
        }
        let mut begun = Vec::new();
        let mut headless = Vec::new();
        for &start in starts {
            if self.is_headless(start)? { &mut headless } else { &mut begun }.push(start);
        }
        if begun.is_empty() && !headless.contains(&base) {
            let what = format!("the journal of the changes from {base} on is missing");
            return Err(JournalError::Missing { path: self.dir.to_owned(), what });
        }
        let mut end = End { start: base, at: 0, position: base, journal_bytes: 0 };
        for (place, &start) in begun.iter().enumerate() {
            if start != end.position {
                let what = format!("the journal of the changes {} to {start} is missing", end.position);
                return Err(JournalError::Missing { path: self.dir.to_owned(), what });
            }
            let before = end.journal_bytes;
            end = self.journal(start, place + 1 == begun.len())?;
            end.journal_bytes += before;
        }
        // Just made when the process ended; or the device refused the head, and then that the file goes, and the one before it was written on.
        // Nothing was ever in them, so that one which still cannot be removed does no harm.
        for start in headless {
            let _ = self.disk.remove(&journal_path(self.dir, start));
        }
        Ok(end)
    }

    fn is_headless(&self, start: u64) -> Result<bool, JournalError> {
        let mut front = Front::open(self.disk, &journal_path(self.dir, start))?;
        // The head is on the device before anything follows it.
        Ok(front.len() <= HEADER_BYTES as u64 && front.bundle(0)?.is_none())
    }

    fn journal(&mut self, start: u64, is_last: bool) -> Result<End, JournalError> {
        let path = journal_path(self.dir, start);
        let mut front = Front::open(self.disk, &path)?;
        let damaged = |at, what| JournalError::Damaged { path: path.clone(), at, what };
        let (mut at, mut position) = (0, start);
        while at < front.len() {
            let Some((head, payload)) = front.bundle(at)? else {
                let rest = front.rest(at)?;
                let is_unused = at > 0 && rest.iter().all(|byte| *byte == 0);
                if is_unused && !is_last {
                    break;
                }
                if at == 0 || !is_last || !is_torn_end(rest, position) {
                    return Err(damaged(at, "these changes are not what was written"));
                }
                let lost = rest.len() as u64;
                self.disk
                    .open(&path, OpenHow::Write)
                    .and_then(|file| file.set_len(at))
                    .map_err(|source| JournalError::disk("cut", &path, source))?;
                // Room was made ahead of what was written.
                if !is_unused || lost > UNUSED_BYTES_MAX {
                    self.findings
                        .push(format!("{}: cut {lost} bytes of an unfinished write at byte {at}", path.display()));
                }
                break;
            };
            let Head { kind, previous, last, synced: _ } = head;
            let is_in_order = match kind {
                BundleKind::JournalHead => at == 0 && last == start,
                BundleKind::Entries | BundleKind::End => at > 0 && previous == position && last >= position,
                BundleKind::SnapshotHead => false,
            };
            if !is_in_order {
                return Err(damaged(at, "changes before this place are missing"));
            }
            self.apply(payload).ok_or_else(|| damaged(at, "an entry does not add up"))?;
            position = last;
            at += (HEADER_BYTES + payload.len()) as u64;
        }
        Ok(End { start, at, position, journal_bytes: at })
    }

    fn apply(&mut self, payload: &[u8]) -> Option<()> {
        for entry in bundle::entries(payload) {
            let entry = entry?;
            apply(self.tables.entry(entry.table).or_default(), entry.key, entry.value);
        }
        Some(())
    }
}

/// Whether a crash explains that no whole bundle stands at the start of `rest`, which follows `position`.
///
/// Nothing valid behind it: the last write was cut short. Something valid: power was lost when the device had written a later
/// page and not this one; unless a later bundle says that the device had confirmed this place.
fn is_torn_end(rest: &[u8], position: u64) -> bool {
    bundle::synced_by_later(rest).is_none_or(|synced| synced <= position)
}
