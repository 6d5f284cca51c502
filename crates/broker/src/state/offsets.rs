//! How far each group has come in each queue.
//!
//! A commit changes one number in memory and marks it; the task of `housekeeping.rs` carries marked numbers to the journal `journalOffsetsMillis`
//! later (5 ms if nobody changes it, 10 s at most), those that came meanwhile with them (Apache writes them every 5 s). So a commit costs one look-up, no allocation and no
//! lock that a reader of another group would feel. Pulled offsets and pending resets live in memory only, as in Apache.

pub(crate) mod after_loss;
mod carrier;
mod ended;
mod moved;
pub(crate) mod rows;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use env::{Clock, TimeMs};
use hashbrown::HashMap;
use parking_lot::{Mutex, RwLock};
use protocol::body::DataVersion;
use protocol::code::ResponseCode;
use protocol::names;
use tokio::sync::Notify;

pub(crate) use self::carrier::Carrier;
pub use self::ended::OffsetClient;
use self::ended::{Ended, Ends};
use self::moved::Moves;
pub(crate) use crate::group_topic::{GroupTopic, GroupTopicRef};
use crate::hashing::{self, Hashing};
use crate::refusal::Refusal;
use crate::state::topics::QUEUES_MAX;

/// Pairs of group and topic that have offsets, up to which more are made for a group or a light queue that is not there, as in Apache: any
/// client can name any number of those.
const ROWS_MAX: usize = 1_000_000;

/// The data version changes once in so many commits (`consumerOffsetUpdateVersionStep`), since only slaves compare it.
const COMMITS_PER_VERSION: u64 = 500;
/// Between topic and group in RocketMQ's keys; neither name may hold it.
pub(crate) const SEPARATOR: char = '@';
/// No offset.
const NONE: i64 = -1;

/// Topic and group of a key. Names of light queues may hold the separator; others may not, and at most one of the two is a light queue's
/// where that matters.
pub(crate) fn split_key(key: &str) -> Option<(&str, &str)> {
    match key.rfind(LIGHT_GROUP) {
        Some(at) => Some((&key[..at], &key[at + SEPARATOR.len_utf8()..])),
        None => key.rsplit_once(SEPARATOR),
    }
}

/// Where the group is named like a light queue.
const LIGHT_GROUP: &str = "@%LMQ%";

/// One queue. Relaxed throughout: each number stands alone, and the last writer wins, as it does in Apache.
struct Slot {
    committed: AtomicI64,
    pulled: AtomicI64,
    /// Where somebody has set that the group goes on. The next pull is told, wherever it asks, and no commit counts until then. [`NONE`]: nobody
    /// has, or it was told.
    reset: AtomicI64,
    /// How a loss of power left it, if that matters to the group. Looked up when somebody first asks or commits after a loss.
    ended: OnceLock<Option<Box<Ended>>>,
    is_marked: AtomicBool,
}

impl Slot {
    fn empty() -> Slot {
        Slot {
            committed: AtomicI64::new(NONE),
            pulled: AtomicI64::new(NONE),
            reset: AtomicI64::new(NONE),
            ended: OnceLock::new(),
            is_marked: AtomicBool::new(false),
        }
    }

    fn is_reset(&self) -> bool {
        self.reset.load(Ordering::Relaxed) >= 0
    }

    fn take_reset(&self) -> Option<i64> {
        // Nearly always there is nothing; a swap would make every pull write.
        self.is_reset().then(|| self.reset.swap(NONE, Ordering::Relaxed)).filter(|to| *to >= 0)
    }
}

struct OffsetEntry {
    key: GroupTopic,
    /// By queue id. The lock is for growing; numbers change under its read side.
    slots: RwLock<Vec<Slot>>,
    is_marked: AtomicBool,
    /// When something was last committed that was news, in milliseconds; [`NONE`] if never. Relaxed: the number stands alone.
    committed_at: AtomicI64,
    /// Position in the journal of what was last put there. Written under `bundle`; who reads it has taken that lock since the change.
    put_at: AtomicU64,
    /// Deleted: what is still marked must not come back into the journal.
    is_gone: AtomicBool,
    /// Deleted from the journal too. Whoever still holds this entry cannot touch what came after it.
    is_buried: AtomicBool,
}

impl OffsetEntry {
    fn new(key: GroupTopic) -> Arc<OffsetEntry> {
        Arc::new(OffsetEntry {
            key,
            slots: RwLock::default(),
            is_marked: AtomicBool::new(false),
            committed_at: AtomicI64::new(NONE),
            put_at: AtomicU64::new(0),
            is_gone: AtomicBool::new(false),
            is_buried: AtomicBool::new(false),
        })
    }

    fn with<R>(&self, queue_id: usize, f: impl FnOnce(&Slot) -> R) -> R {
        {
            let slots = self.slots.read();
            if let Some(slot) = slots.get(queue_id) {
                return f(slot);
            }
        }
        let mut slots = self.slots.write();
        if slots.len() <= queue_id {
            slots.resize_with(queue_id + 1, Slot::empty);
        }
        f(&slots[queue_id])
    }

    fn peek<R>(&self, queue_id: usize, f: impl FnOnce(&Slot) -> R) -> Option<R> {
        self.slots.read().get(queue_id).map(f)
    }

    fn change(&self, queue_id: i32, offset: Option<i64>) -> Change<'_> {
        let committed_at = TimeMs(self.committed_at.load(Ordering::Relaxed));
        Change { topic: &self.key.topic, group: &self.key.group, queue_id, offset, committed_at }
    }

    fn has_committed(&self) -> bool {
        self.slots.read().iter().any(|slot| slot.committed.load(Ordering::Relaxed) >= 0)
    }

    fn committed(&self) -> BTreeMap<i32, i64> {
        let slots = self.slots.read();
        let numbers = slots.iter().map(|slot| slot.committed.load(Ordering::Relaxed));
        (0..).zip(numbers).filter(|(_, offset)| *offset >= 0).collect()
    }
}

/// How far a group has come in a topic, in hand: what is noted here after the group or the topic was forgotten is forgotten as well, and what comes
/// under their names then knows nothing of it.
pub(crate) struct Progress(Arc<OffsetEntry>);

impl Progress {
    /// How far the group has come.
    pub(crate) fn committed(&self, queue_id: i32) -> Option<i64> {
        let committed = self.0.peek(index(queue_id)?, |slot| slot.committed.load(Ordering::Relaxed));
        committed.filter(|offset| *offset >= 0)
    }

    /// Where the group was set to, which one is told.
    pub(crate) fn take_reset(&self, queue_id: i32) -> Option<i64> {
        self.0.peek(index(queue_id)?, Slot::take_reset).flatten()
    }
}

/// One change on its way to the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change<'a> {
    pub(crate) topic: &'a str,
    pub(crate) group: &'a str,
    pub(crate) queue_id: i32,
    /// None: the group has none any more.
    pub(crate) offset: Option<i64>,
    /// When the group last committed in the topic, in any of its queues.
    pub(crate) committed_at: TimeMs,
}

/// All offsets by `topic@group` and queue, as RocketMQ's JSON holds them.
pub(crate) type OffsetTable = BTreeMap<String, BTreeMap<i32, i64>>;

/// What whoever carries changes to the journal needs.
#[derive(Default)]
struct Bundle {
    /// Buffers; empty between bundles.
    entries: Vec<Arc<OffsetEntry>>,
    key: Vec<u8>,
    /// How many changes had gone to the journal when the data version was last looked at.
    looked_at: u64,
}

/// The offsets of all groups.
pub struct Offsets {
    table: papaya::HashMap<GroupTopic, Arc<OffsetEntry>, Hashing>,
    /// Guards who is marked. Taken once for the first commit of an entry in a bundle, and by the task that takes the bundle.
    marked: Mutex<Vec<Arc<OffsetEntry>>>,
    /// Makes taking changes and putting them into the journal one step: of two changes of one key the newer is put last. Taken before
    /// `marked`, and before the leases of pops; journal puts happen under it, which never wait. The buffers live on, so that a bundle of one
    /// allocates nothing.
    bundle: Mutex<Bundle>,
    /// Something is marked.
    changed: Notify,
    commits: AtomicU64,
    version: ArcSwap<DataVersion>,
    /// Where queues ended, if this process began after a loss of power.
    ends: OnceLock<Ends>,
    moves: Moves,
    clock: Clock,
}

impl Offsets {
    pub(crate) fn new(clock: Clock) -> Offsets {
        Offsets {
            table: papaya::HashMap::with_hasher(hashing::new()),
            marked: Mutex::default(),
            bundle: Mutex::default(),
            changed: Notify::new(),
            commits: AtomicU64::new(0),
            version: ArcSwap::from_pointee(DataVersion::default()),
            ends: OnceLock::new(),
            moves: Moves::default(),
            clock,
        }
    }

    /// Notes how far a group has come, as the broker itself knows it. A smaller offset than before is taken too; a negative one is not. While a
    /// reset is pending nothing is noted: whoever it is for does not know of it yet, and would undo it.
    pub fn commit(&self, group: &str, topic: &str, queue_id: i32, offset: i64) {
        self.commit_if(group, topic, queue_id, offset, |_, _| true);
    }

    fn commit_if(
        &self,
        group: &str,
        topic: &str,
        queue_id: i32,
        offset: i64,
        counts: impl FnOnce(&OffsetEntry, &Slot) -> bool,
    ) {
        let Some(queue) = index(queue_id).filter(|_| offset >= 0) else { return };
        self.commit_to(&self.entry(group, topic), queue, offset, counts);
    }

    fn commit_to(
        &self,
        entry: &Arc<OffsetEntry>,
        queue: usize,
        offset: i64,
        counts: impl FnOnce(&OffsetEntry, &Slot) -> bool,
    ) {
        let is_news = entry.with(queue, |slot| !slot.is_reset() && counts(entry, slot) && set(slot, offset));
        if is_news {
            entry.committed_at.store(self.clock.now().0, Ordering::Relaxed);
            self.mark(entry);
        }
    }

    /// How far a group has come in a topic, for who notes it over a while in which both may be forgotten and made anew.
    pub(crate) fn progress(&self, group: &str, topic: &str) -> Progress {
        Progress(self.entry(group, topic))
    }

    /// [`Offsets::commit`], for who has it in hand.
    pub(crate) fn commit_in(&self, progress: &Progress, queue_id: i32, offset: i64) {
        let Some(queue) = index(queue_id).filter(|_| offset >= 0) else { return };
        self.commit_to(&progress.0, queue, offset, |_, _| true);
    }

    /// How far a group has come.
    pub fn committed(&self, group: &str, topic: &str, queue_id: i32) -> Option<i64> {
        self.look(group, topic, queue_id, |slot| slot.committed.load(Ordering::Relaxed))
    }

    /// The journal's position that holds what a group has committed in a topic, as far as it has been put there.
    pub(crate) fn put_at(&self, group: &str, topic: &str) -> u64 {
        self.table.pin().get(&GroupTopicRef { group, topic }).map_or(0, |entry| entry.put_at.load(Ordering::Relaxed))
    }

    /// Notes what a group has asked for last; shown to operators. Of a light queue only where the group has committed something: there may be
    /// very many that are read once and never again, and each would stay for good.
    pub fn pulled(&self, group: &str, topic: &str, queue_id: i32, offset: i64) {
        let Some(queue) = index(queue_id) else { return };
        let note = |slot: &Slot| slot.pulled.store(offset, Ordering::Relaxed);
        if !names::is_lmq(topic) {
            self.entry(group, topic).with(queue, note);
        } else if let Some(entry) = self.table.pin().get(&GroupTopicRef { group, topic }) {
            entry.with(queue, note);
        }
    }

    /// What a group has asked for last.
    pub fn last_pulled(&self, group: &str, topic: &str, queue_id: i32) -> Option<i64> {
        self.look(group, topic, queue_id, |slot| slot.pulled.load(Ordering::Relaxed))
    }

    /// Sets where a group goes on, whatever its clients think: their next pull is told, and until then their commits are ignored.
    pub(crate) fn reset(&self, group: &str, topic: &str, queue_id: i32, offset: i64) {
        let Some(queue) = index(queue_id).filter(|_| offset >= 0) else { return };
        self.forget_end(group, topic, queue_id);
        let entry = self.entry(group, topic);
        entry.with(queue, |slot| {
            slot.reset.store(offset, Ordering::Relaxed);
            slot.pulled.store(NONE, Ordering::Relaxed);
            set(slot, offset);
        });
        // Somebody wants the group to read from there.
        entry.committed_at.store(self.clock.now().0, Ordering::Relaxed);
        self.mark(&entry);
    }

    /// Whether a reset waits for the next pull.
    pub(crate) fn is_reset_pending(&self, group: &str, topic: &str, queue_id: i32) -> bool {
        self.peek(group, topic, queue_id, Slot::is_reset) == Some(true)
    }

    /// Where the group was set to, which one pull is told.
    pub(crate) fn take_reset(&self, group: &str, topic: &str, queue_id: i32) -> Option<i64> {
        self.peek(group, topic, queue_id, Slot::take_reset).flatten()
    }

    /// The committed offsets of a group in a topic, by queue.
    pub fn of(&self, group: &str, topic: &str) -> BTreeMap<i32, i64> {
        self.table.pin().get(&GroupTopicRef { group, topic }).map(|entry| entry.committed()).unwrap_or_default()
    }

    /// The topics that a group has offsets in.
    pub fn topics_of(&self, group: &str) -> BTreeSet<Arc<str>> {
        self.names(|key| (*key.group == *group).then_some(&key.topic))
    }

    /// The same for all groups.
    pub(crate) fn topics_by_group(&self) -> HashMap<Arc<str>, BTreeSet<Arc<str>>> {
        let mut topics = HashMap::<_, BTreeSet<_>>::new();
        for (key, _) in self.table.pin().iter().filter(|(_, entry)| entry.has_committed()) {
            topics.entry(Arc::clone(&key.group)).or_default().insert(Arc::clone(&key.topic));
        }
        topics
    }

    /// The topics that any group has offsets in.
    fn topics(&self) -> BTreeSet<Arc<str>> {
        self.names(|key| Some(&key.topic))
    }

    /// The groups that have offsets in a topic.
    pub fn groups_of(&self, topic: &str) -> BTreeSet<Arc<str>> {
        self.names(|key| (*key.topic == *topic).then_some(&key.group))
    }

    /// Copies the offsets of a group to another, in one topic.
    pub fn copy(&self, from: &str, to: &str, topic: &str) {
        for (queue_id, offset) in self.of(from, topic) {
            self.forget_end(to, topic, queue_id);
            self.commit(to, topic, queue_id, offset);
        }
    }

    /// Forgets a group.
    pub fn forget_group(&self, group: &str) {
        self.forget(|key| *key.group == *group);
    }

    /// Forgets how far a group has come in one queue, unless it has been told where to go on there and does not know yet.
    pub(crate) fn forget_queue(&self, group: &str, topic: &str, queue_id: i32) {
        let Some(queue) = index(queue_id) else { return };
        let table = self.table.pin();
        let Some(entry) = table.get(&GroupTopicRef { group, topic }) else { return };
        let is_news = entry.peek(queue, |slot| !slot.is_reset() && set(slot, NONE));
        if is_news == Some(true) {
            self.mark(entry);
        }
    }

    /// Forgets a group in a topic.
    pub(crate) fn forget_one(&self, group: &str, topic: &str) {
        if let Some(entry) = self.table.pin().get(&GroupTopicRef { group, topic }) {
            self.bury(entry);
        }
    }

    /// Forgets a topic, for all groups.
    pub fn forget_topic(&self, topic: &str) {
        self.forget(|key| *key.topic == *topic);
    }

    /// Refuses to keep more for `missing`, a group or light queue that is not there, if too many pairs of group and topic are kept.
    pub(crate) fn check_room_for(&self, missing: impl fmt::Display) -> Result<(), Refusal> {
        check_rows(self.table.len(), missing)
    }

    /// How many groups have come some way, each counted by topic.
    pub(crate) fn len(&self) -> usize {
        self.table.pin().values().filter(|entry| entry.has_committed()).count()
    }

    /// Everything, as RocketMQ's JSON holds it.
    pub(crate) fn table(&self) -> OffsetTable {
        let mut table = BTreeMap::new();
        for (key, entry) in &self.table.pin() {
            let offsets = entry.committed();
            if !offsets.is_empty() {
                table.insert(format!("{}{SEPARATOR}{}", key.topic, key.group), offsets);
            }
        }
        table
    }

    /// Puts another table in the place of this one.
    pub(crate) fn replace(&self, table: &OffsetTable) {
        self.forget(|key| !table.contains_key(&format!("{}{SEPARATOR}{}", key.topic, key.group)));
        for (key, offsets) in table {
            let Some((topic, group)) = split_key(key) else { continue };
            for queue_id in self.of(group, topic).into_keys().filter(|id| !offsets.contains_key(id)) {
                self.unset(group, topic, queue_id);
            }
            for (queue_id, offset) in offsets {
                self.commit(group, topic, *queue_id, *offset);
            }
        }
    }

    /// Of what age the table is.
    pub(crate) fn version(&self) -> DataVersion {
        DataVersion::clone(&self.version.load())
    }

    /// Takes over a version: from the journal, or from an imported file.
    pub(crate) fn set_version(&self, version: DataVersion) {
        self.version.store(Arc::new(version));
    }

    /// Waits until something is marked.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Takes what was marked since the last time, with a buffer for keys; `take` returns the journal's position of the change. Says
    /// whether the version has changed too.
    ///
    /// A commit that comes in between marks again; so every number reaches the journal at least once after its last change. `take`
    /// runs under a lock and must not come back here.
    pub(crate) fn take_changes(&self, take: &mut dyn FnMut(Change<'_>, &mut Vec<u8>) -> u64) -> bool {
        let mut bundle = self.bundle.lock();
        let Bundle { entries, key, looked_at } = &mut *bundle;
        std::mem::swap(entries, &mut *self.marked.lock());
        let mut taken = 0;
        for entry in entries.drain(..) {
            // Unmarked before the numbers are read. All marks are SeqCst: a commit that finds one set is one whose number is read here.
            entry.is_marked.store(false, Ordering::SeqCst);
            let is_gone = entry.is_gone.load(Ordering::Acquire);
            if is_gone && entry.is_buried.swap(true, Ordering::AcqRel) {
                continue;
            }
            // What came after a deleted entry may be in the journal already (`Carrier`), and must not be deleted there with it.
            let successor = if is_gone { self.table.pin().get(&entry.key).cloned() } else { None };
            let after = successor.as_ref().map(|successor| successor.committed()).unwrap_or_default();
            let told = successor.as_ref().unwrap_or(&entry);
            for (queue_id, slot) in (0..).zip(entry.slots.read().iter()) {
                if !slot.is_marked.swap(false, Ordering::SeqCst) && !is_gone {
                    continue;
                }
                let offset = match is_gone {
                    true => after.get(&queue_id).copied(),
                    false => Some(slot.committed.load(Ordering::Relaxed)).filter(|offset| *offset >= 0),
                };
                taken += 1;
                let position = take(told.change(queue_id, offset), key);
                entry.put_at.store(position, Ordering::Relaxed);
            }
        }
        let commits = self.commits.fetch_add(taken, Ordering::Relaxed) + taken;
        let is_new_version = commits / COMMITS_PER_VERSION != *looked_at / COMMITS_PER_VERSION;
        *looked_at = commits;
        if is_new_version {
            self.advance_version(self.clock.now());
        }
        is_new_version
    }

    fn advance_version(&self, now: TimeMs) {
        let mut version = self.version();
        version.advance(now.0);
        self.set_version(version);
    }

    /// From the journal: as it was, and nothing is marked.
    pub(crate) fn restore(&self, topic: &str, group: &str, queue_id: i32, offset: i64, committed_at: TimeMs) {
        if let Some(queue) = index(queue_id) {
            let entry = self.entry(group, topic);
            entry.committed_at.fetch_max(committed_at.0, Ordering::Relaxed);
            entry.with(queue, |slot| slot.committed.store(offset, Ordering::Relaxed));
        }
    }

    /// Every committed offset, for a snapshot.
    pub(crate) fn for_each(&self, f: &mut dyn FnMut(Change<'_>)) {
        for entry in self.table.pin().values() {
            for (queue_id, offset) in entry.committed() {
                f(entry.change(queue_id, Some(offset)));
            }
        }
    }

    /// Committed offsets of groups and topics where something was committed since then, or of which `is_active` says that it reads them.
    pub(crate) fn for_each_active(
        &self,
        since: TimeMs,
        is_active: &dyn Fn(&str, &str) -> bool,
        f: &mut dyn FnMut(Change<'_>),
    ) {
        for (key, entry) in &self.table.pin() {
            if entry.committed_at.load(Ordering::Relaxed) < since.0 && !is_active(&key.group, &key.topic) {
                continue;
            }
            for (queue_id, offset) in entry.committed() {
                f(entry.change(queue_id, Some(offset)));
            }
        }
    }

    /// How many changes have gone to the journal.
    pub(crate) fn changes(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    fn entry(&self, group: &str, topic: &str) -> Arc<OffsetEntry> {
        let table = self.table.pin();
        if let Some(entry) = table.get(&GroupTopicRef { group, topic }) {
            return Arc::clone(entry);
        }
        let key = GroupTopic { group: group.into(), topic: topic.into() };
        Arc::clone(table.get_or_insert_with(key.clone(), || OffsetEntry::new(key.clone())))
    }

    fn look(&self, group: &str, topic: &str, queue_id: i32, f: impl FnOnce(&Slot) -> i64) -> Option<i64> {
        self.peek(group, topic, queue_id, f).filter(|offset| *offset >= 0)
    }

    fn peek<R>(&self, group: &str, topic: &str, queue_id: i32, f: impl FnOnce(&Slot) -> R) -> Option<R> {
        self.table.pin().get(&GroupTopicRef { group, topic })?.peek(index(queue_id)?, f)
    }

    fn names<'a>(&self, pick: impl Fn(&GroupTopic) -> Option<&Arc<str>> + 'a) -> BTreeSet<Arc<str>> {
        let table = self.table.pin();
        // The name first: it costs less than a look at all queues.
        let picked = table.iter().filter_map(|(key, entry)| Some((pick(key)?, entry)));
        picked.filter(|(_, entry)| entry.has_committed()).map(|(name, _)| Arc::clone(name)).collect()
    }

    fn unset(&self, group: &str, topic: &str, queue_id: i32) {
        if let Some(queue) = index(queue_id) {
            let entry = self.entry(group, topic);
            entry.with(queue, |slot| {
                slot.committed.store(NONE, Ordering::Relaxed);
                slot.is_marked.store(true, Ordering::SeqCst);
            });
            self.mark(&entry);
        }
    }

    fn forget(&self, is_meant: impl Fn(&GroupTopic) -> bool) {
        let table = self.table.pin();
        let meant: Vec<Arc<OffsetEntry>> =
            table.iter().filter(|(key, _)| is_meant(key)).map(|(_, entry)| Arc::clone(entry)).collect();
        meant.iter().for_each(|entry| self.bury(entry));
    }

    fn bury(&self, entry: &Arc<OffsetEntry>) {
        // It leaves the table first: whoever carries a commit to the journal once the deletion is there finds what comes after it. Only this one:
        // somebody else may have deleted it too, and another one has its place.
        let _ = self.table.pin().remove_if(&entry.key, |_, found| Arc::ptr_eq(found, entry));
        entry.is_gone.store(true, Ordering::Release);
        self.mark(entry);
    }

    fn mark(&self, entry: &Arc<OffsetEntry>) {
        if entry.is_marked.swap(true, Ordering::SeqCst) {
            return;
        }
        let mut marked = self.marked.lock();
        marked.push(Arc::clone(entry));
        if marked.len() == 1 {
            self.changed.notify_one();
        }
    }
}

/// Sets the committed offset; says whether that is news.
fn set(slot: &Slot, offset: i64) -> bool {
    let is_news = slot.committed.swap(offset, Ordering::Relaxed) != offset;
    if is_news {
        slot.is_marked.store(true, Ordering::SeqCst);
    }
    is_news
}

fn index(queue_id: i32) -> Option<usize> {
    usize::try_from(queue_id).ok().filter(|_| queue_id < QUEUES_MAX)
}

/// Refuses one more for `missing`, which is not there, if there are too many.
fn check_rows(rows: usize, missing: impl fmt::Display) -> Result<(), Refusal> {
    if rows < ROWS_MAX {
        return Ok(());
    }
    let remark = format!(
        "no offset is kept: {missing} is not there, and {rows} pairs of group and topic have offsets, the limit is {ROWS_MAX}"
    );
    Err(Refusal::new(ResponseCode::SystemError, remark))
}

#[cfg(test)]
mod tests;
