//! Log, vote and snapshot, in memory and in a journal.
//!
//! The journal keeps no copy of what it has written, so all rows are here too; snapshots keep the
//! log short. Changes go into the journal in the order in which Raft makes them, and a loss of power
//! leaves those before some place: so nothing follows what is missing. Whatever Raft promises to
//! others (a vote, entries, a snapshot from the leader) is waited for until the device has it.
//!
//! Raft removes the entries that a snapshot of the leader replaces while that snapshot is still being
//! stored. In memory they are gone then; the journal removes them together with the row of the
//! snapshot, so that a crash leaves either the entries or the snapshot.
//!
//! Rows: `entries` by index, big-endian; `marks`: `member`, `vote`, `committed`, `purged`;
//! `snapshots`: `snapshot`, its head and behind it the state. All are written by [`format`].

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::ops::RangeBounds;
use std::path::Path;
use std::sync::Arc;

use disk::Disk;
use env::Clock;
use journal::{Change, Journal, JournalOptions, Table, TableId};
use openraft::storage::{LogFlushed, LogState, RaftLogReader, RaftLogStorage};
use openraft::{Entry, LogId, StorageError, StorageIOError, Vote};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::format::{self, FormatError};
use super::lock::FolderLock;
use super::member::Member;
use super::options::ConsensusError;
use super::{Meta, Types, unsynced};

const ENTRIES: TableId = TableId(1);
const MARKS: TableId = TableId(2);
const SNAPSHOTS: TableId = TableId(3);
const TABLES: [TableId; 3] = [ENTRIES, MARKS, SNAPSHOTS];

const MEMBER: &[u8] = b"member";
const VOTE: &[u8] = b"vote";
const COMMITTED: &[u8] = b"committed";
const PURGED: &[u8] = b"purged";
const SNAPSHOT: &[u8] = b"snapshot";

/// The state machine's state at some place of the log.
#[derive(Clone)]
pub(super) struct StoredSnapshot {
    pub meta: Meta,
    pub data: Arc<Vec<u8>>,
}

/// See the module's head. Clones are the same storage.
#[derive(Clone)]
pub(super) struct Storage {
    inner: Arc<Inner>,
}

struct Inner {
    journal: Journal,
    /// Guards all rows; the journal's own lock is taken inside it, since a change and its row are one step.
    rows: Arc<Mutex<Rows>>,
    /// True: nobody waits for the device any more.
    has_given_up: watch::Sender<bool>,
    /// Behind the journal, so that it is released when that has ended.
    lock: FolderLock,
}

type Key = Box<[u8]>;
type Row = Arc<[u8]>;

#[derive(Default)]
struct Rows {
    /// All rows as they are written, also those of a later release that this one does not know.
    written: BTreeMap<(TableId, Key), Row>,
    entries: BTreeMap<u64, Entry<Types>>,
    member: Option<Member>,
    vote: Option<Vote<u64>>,
    committed: Option<LogId<u64>>,
    purged: Option<LogId<u64>>,
    snapshot: Option<StoredSnapshot>,
}

impl Storage {
    /// Opens the storage of `member` in `dir`, or begins one. Blocks.
    pub fn open(dir: &Path, member: &Member, clock: Clock, disk: Arc<dyn Disk>) -> Result<Storage, ConsensusError> {
        // First: already opening the journal changes its files.
        let lock = FolderLock::take(dir, &*disk)?;
        let disk = unsynced::watched(dir, &disk)?;
        let journal = Journal::open(&unsynced::journal_dir(dir), JournalOptions::default(), clock, disk)?;
        for finding in journal.findings() {
            tracing::info!(finding, "mended the journal of the controller");
        }
        let mut rows = Rows::load(&journal, dir)?;
        match &rows.member {
            Some(found) => check_member(dir, found, member)?,
            None if rows.written.is_empty() => {}
            None => return Err(unreadable(dir, "member", &"it is missing")),
        }
        if rows.member.as_ref() != Some(member) {
            let row = format::encode(member).map_err(|error| unreadable(dir, "member", &error))?;
            rows.change(&journal, vec![mark(MEMBER, row)]);
            rows.member = Some(member.clone());
        }
        let rows = Arc::new(Mutex::new(rows));
        for table in TABLES {
            journal.attach(table, Arc::new(Owner { rows: Arc::clone(&rows), table }));
        }
        Ok(Storage { inner: Arc::new(Inner { journal, rows, has_given_up: watch::Sender::new(false), lock }) })
    }

    /// The newest snapshot.
    pub fn snapshot(&self) -> Option<StoredSnapshot> {
        self.inner.rows.lock().snapshot.clone()
    }

    /// Replaces the snapshot, unless there is a newer one; returns when the device has it.
    pub async fn put_snapshot(&self, snapshot: StoredSnapshot) -> Result<(), StorageError<u64>> {
        let signature = snapshot.meta.signature();
        let failed = |error: FormatError| StorageIOError::write_snapshot(Some(signature.clone()), any(&error));
        let head = format::encode(&snapshot.meta).map_err(failed)?;
        let row = format::join(head, &snapshot.data);
        let position = {
            let mut rows = self.inner.rows.lock();
            let last = snapshot.meta.last_log_id;
            // Raft builds a snapshot of its own beside the installation of one from the leader.
            if rows.snapshot.as_ref().is_some_and(|stored| stored.meta.last_log_id > last) {
                return Ok(());
            }
            rows.snapshot = Some(snapshot);
            let mut changes = vec![(SNAPSHOTS, SNAPSHOT.into(), Some(row.into()))];
            changes.extend(rows.purge_changes().map_err(failed)?);
            rows.change(&self.inner.journal, changes)
        };
        let written = self.on_device(position).await;
        Ok(written.map_err(|error| StorageIOError::write_snapshot(Some(signature), any(&error)))?)
    }

    #[cfg(test)]
    pub fn journal(&self) -> &Journal {
        &self.inner.journal
    }

    /// Nobody waits for the device any more: calls that wait end with an error.
    pub fn give_up(&self) {
        self.inner.has_given_up.send_replace(true);
    }

    /// Brings everything to the device and ends; another node may open the folder then. Blocks. Says
    /// whether everything is there.
    pub fn close(&self) -> bool {
        let is_written = self.inner.journal.close();
        self.inner.lock.release();
        is_written
    }

    /// Waits until the device has what was put at `position`.
    async fn on_device(&self, position: u64) -> io::Result<()> {
        let mut given_up = self.inner.has_given_up.subscribe();
        tokio::select! {
            () = self.inner.journal.mark_of(position, true).reached(position) => Ok(()),
            _ = given_up.wait_for(|given_up| *given_up) => Err(io::Error::other("this controller is stopping")),
        }
    }

    /// Changes rows, and what they say. Returns their position.
    fn change(&self, changes: Vec<RowChange>, set: impl FnOnce(&mut Rows)) -> u64 {
        let mut rows = self.inner.rows.lock();
        set(&mut rows);
        rows.change(&self.inner.journal, changes)
    }
}

impl RaftLogReader<Types> for Storage {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + Send>(
        &mut self,
        range: R,
    ) -> Result<Vec<Entry<Types>>, StorageError<u64>> {
        Ok(self.inner.rows.lock().entries.range(range).map(|(_, entry)| entry.clone()).collect())
    }
}

impl RaftLogStorage<Types> for Storage {
    type LogReader = Storage;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, StorageError<u64>> {
        let rows = self.inner.rows.lock();
        let last = rows.entries.last_key_value().map(|(_, entry)| entry.log_id);
        Ok(LogState { last_purged_log_id: rows.purged, last_log_id: last.or(rows.purged) })
    }

    async fn get_log_reader(&mut self) -> Storage {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<u64>) -> Result<(), StorageError<u64>> {
        let row = format::encode(vote).map_err(|error| StorageIOError::write_vote(any(&error)))?;
        let position = self.change(vec![mark(VOTE, row)], |rows| rows.vote = Some(*vote));
        Ok(self.on_device(position).await.map_err(|error| StorageIOError::write_vote(any(&error)))?)
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<u64>>, StorageError<u64>> {
        Ok(self.inner.rows.lock().vote)
    }

    async fn save_committed(&mut self, committed: Option<LogId<u64>>) -> Result<(), StorageError<u64>> {
        let row = format::encode(&committed).map_err(|error| StorageIOError::write(any(&error)))?;
        // Nobody waits for it: without it a start learns from the leader what is committed.
        self.change(vec![mark(COMMITTED, row)], |rows| rows.committed = committed);
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId<u64>>, StorageError<u64>> {
        Ok(self.inner.rows.lock().committed)
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<Types>) -> Result<(), StorageError<u64>>
    where
        I: IntoIterator<Item = Entry<Types>> + Send,
        I::IntoIter: Send,
    {
        let (mut changes, mut added) = (Vec::new(), Vec::new());
        for entry in entries {
            let LogId { index, .. } = entry.log_id;
            let row =
                format::encode(&entry).map_err(|error| StorageIOError::write_log_entry(entry.log_id, any(&error)))?;
            changes.push((ENTRIES, key(index), Some(row.into())));
            added.push((index, entry));
        }
        if let Some((index, entry)) = added.first()
            && self.inner.rows.lock().would_leave_gap(*index)
        {
            let error = openraft::AnyError::error("the snapshot before it is not stored yet");
            return Err(StorageIOError::write_log_entry(entry.log_id, error).into());
        }
        let position = self.change(changes, |rows| rows.entries.extend(added));
        // Raft does nothing else until it is called back, so it can be waited for here.
        callback.log_io_completed(self.on_device(position).await);
        Ok(())
    }

    async fn truncate(&mut self, log_id: LogId<u64>) -> Result<(), StorageError<u64>> {
        let removed: Vec<u64> = self.inner.rows.lock().entries.range(log_id.index..).map(|(index, _)| *index).collect();
        let changes = removed.iter().map(|index| (ENTRIES, key(*index), None)).collect();
        self.change(changes, |rows| rows.entries.retain(|index, _| *index < log_id.index));
        Ok(())
    }

    async fn purge(&mut self, log_id: LogId<u64>) -> Result<(), StorageError<u64>> {
        let mut rows = self.inner.rows.lock();
        rows.entries.retain(|index, _| *index > log_id.index);
        rows.purged = Some(log_id);
        let changes = rows.purge_changes().map_err(|error| StorageIOError::write(any(&error)))?;
        rows.change(&self.inner.journal, changes);
        Ok(())
    }
}

/// Table, key, and the row that is there from now on.
type RowChange = (TableId, Key, Option<Row>);

fn key(index: u64) -> Key {
    index.to_be_bytes().into()
}

fn mark(key: &[u8], row: Vec<u8>) -> RowChange {
    (MARKS, key.into(), Some(row.into()))
}

impl Rows {
    /// What the journal has found.
    fn load(journal: &Journal, dir: &Path) -> Result<Rows, ConsensusError> {
        let mut rows = Rows::default();
        let mut failed = None;
        for table in TABLES {
            journal.load(table, |key, row| {
                rows.written.insert((table, key.into()), row.into());
                if failed.is_none() {
                    failed = rows.take(table, key, row).err().map(|error| (name(table, key), error));
                }
            });
        }
        if let Some((row, error)) = failed {
            return Err(unreadable(dir, &row, &error));
        }
        if let Some(purged) = rows.purged
            && !rows.has_snapshot_of(&purged)
        {
            return Err(ConsensusError::SnapshotMissing { dir: dir.to_owned(), purged: purged.index });
        }
        // Each entry follows the one before, and the first what was purged.
        let mut next = rows.purged.map(|purged| purged.index + 1);
        for index in rows.entries.keys() {
            if next.is_some_and(|next| next != *index) {
                return Err(unreadable(dir, &format!("entry {index}"), &"an entry before it is missing"));
            }
            next = Some(index + 1);
        }
        Ok(rows)
    }

    fn take(&mut self, table: TableId, key: &[u8], row: &[u8]) -> Result<(), FormatError> {
        match (table, key) {
            (ENTRIES, _) => {
                let entry: Entry<Types> = format::decode(row)?;
                self.entries.insert(entry.log_id.index, entry);
            }
            (MARKS, MEMBER) => self.member = Some(format::decode(row)?),
            (MARKS, VOTE) => self.vote = Some(format::decode(row)?),
            (MARKS, COMMITTED) => self.committed = format::decode(row)?,
            (MARKS, PURGED) => self.purged = Some(format::decode(row)?),
            (SNAPSHOTS, SNAPSHOT) => {
                let (head, data) = format::split(row);
                self.snapshot = Some(StoredSnapshot { meta: format::decode(head)?, data: Arc::new(data.to_vec()) });
            }
            // A row of a later release that this one may skip.
            _ => {}
        }
        Ok(())
    }

    /// Whether the snapshot has what the entries up to `place` did.
    fn has_snapshot_of(&self, place: &LogId<u64>) -> bool {
        self.snapshot.as_ref().is_some_and(|snapshot| snapshot.meta.last_log_id.as_ref() >= Some(place))
    }

    /// What removes the purged entries from the journal: nothing, as long as no snapshot has them.
    fn purge_changes(&self) -> Result<Vec<RowChange>, FormatError> {
        let Some(purged) = self.purged.filter(|purged| self.has_snapshot_of(purged)) else { return Ok(Vec::new()) };
        let removed = self.written.range((ENTRIES, key(0))..=(ENTRIES, key(purged.index)));
        let mut changes: Vec<RowChange> = removed.map(|((table, key), _)| (*table, key.clone(), None)).collect();
        changes.push(mark(PURGED, format::encode(&purged)?));
        Ok(changes)
    }

    /// Whether the journal would lack an entry before `index`, if it took that one now: the snapshot
    /// from the leader that replaces it is not stored yet. Raft lets entries wait for that snapshot.
    fn would_leave_gap(&self, index: u64) -> bool {
        let waits = self.purged.is_some_and(|purged| !self.has_snapshot_of(&purged));
        waits && index.checked_sub(1).is_some_and(|before| !self.written.contains_key(&(ENTRIES, key(before))))
    }

    fn change(&mut self, journal: &Journal, changes: Vec<RowChange>) -> u64 {
        let each = changes.iter().map(|(table, key, row)| Change { table: *table, key, value: row.as_deref() });
        let position = journal.put_together(&each.collect::<Vec<_>>());
        for (table, key, row) in changes {
            match row {
                Some(row) => self.written.insert((table, key), row),
                None => self.written.remove(&(table, key)),
            };
        }
        position
    }
}

/// Shows a table to the journal, when that begins anew.
struct Owner {
    rows: Arc<Mutex<Rows>>,
    table: TableId,
}

impl Table for Owner {
    fn for_each(&self, show: &mut dyn FnMut(&[u8], &[u8])) {
        // Shared, so that no lock is held while the journal writes.
        let written: Vec<(Key, Row)> = {
            let rows = self.rows.lock();
            let own = rows.written.iter().filter(|((table, _), _)| *table == self.table);
            own.map(|((_, key), row)| (key.clone(), Arc::clone(row))).collect()
        };
        written.iter().for_each(|(key, row)| show(key, row));
    }
}

fn check_member(dir: &Path, found: &Member, member: &Member) -> Result<(), ConsensusError> {
    if (found.id, &found.group) != (member.id, &member.group) {
        return Err(ConsensusError::OtherNode {
            dir: dir.to_owned(),
            found_id: found.id,
            found_group: found.group.clone(),
            id: member.id,
            group: member.group.clone(),
        });
    }
    // Nobody calls a node that is alone: its address may change.
    if found.members != member.members && !(found.is_alone() && member.is_alone()) {
        let (found, peers) = (found.members.clone(), member.members.clone());
        return Err(ConsensusError::OtherPeers { dir: dir.to_owned(), found, peers });
    }
    Ok(())
}

fn unreadable(dir: &Path, row: &str, why: &dyn std::fmt::Display) -> ConsensusError {
    ConsensusError::Row { dir: dir.to_owned(), row: row.to_owned(), what: why.to_string() }
}

fn name(table: TableId, key: &[u8]) -> String {
    match <[u8; 8]>::try_from(key) {
        Ok(index) if table == ENTRIES => format!("entry {}", u64::from_be_bytes(index)),
        _ => String::from_utf8_lossy(key).into_owned(),
    }
}

pub(super) fn any(error: &(impl std::error::Error + 'static)) -> openraft::AnyError {
    openraft::AnyError::new(error)
}
