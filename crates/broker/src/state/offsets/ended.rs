//! Clients that have seen what a loss of power took.
//!
//! With ASYNC_FLUSH a queue may end before what its consumers had got. They live on, and hold offsets behind that end; the next messages get the
//! numbers of the lost ones, and whoever goes on where it was would never see those. So a process that begins after a loss of power remembers for
//! [`WATCHED`] where each queue ended. A connection is believed in a queue when it has pulled where its group may be: at that end, before it, or at
//! what the group has committed since. Until then none of its commits behind that counts, and wherever else it asks, it is told to go on at what the
//! group has committed: a client that is told so drops what it has not consumed, some of which may lie before the end. What another member does
//! changes nothing for it: that one may read from the end on while this one is ahead.
//!
//! The journal may lose a topic with its queues, and the next send makes it anew: a queue that such a start does not know ended at 0. Members that
//! share queues ask where their group is before they read one, so that those of a queue that is really new are believed. Who reads by itself, or
//! broadcasts, keeps its offsets where it likes and need not ask: there it is left alone.
//!
//! A client that was believed and connects anew goes back to what its group has committed, as it does with any queue that it takes over. A group
//! that has lost all its offsets in a queue is watched as well; who is told that there is none is believed, since it begins anew.
//!
//! All of it lives in memory: another crash leaves other ends. Those of a slave that has become a master lie in the journal as well ([`Kept`]): the
//! clients that were ahead of it may come at any time, also behind a second start.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use journal::{Journal, Table};
use parking_lot::Mutex;
use protocol::names;

use super::{GroupTopic, OffsetEntry, Offsets, Slot, index};
use crate::tables;

/// How long a process looks at where clients are. Those that are ahead and connected ask within seconds; one whose memory is full of messages asks when
/// it has consumed some, which may take the 15 minutes of `consumeTimeout` for each.
const WATCHED: Duration = Duration::from_secs(3600);
/// Connections of one group that are believed in a queue; the oldest makes room, and goes back to what is committed. A queue has one reader at a
/// time, and another one with each change of the group.
const BELIEVED_MAX: usize = 64;

/// A client that is told to go on elsewhere has no message that lies so far before its place and is not consumed: above that distance
/// (`consumeConcurrentlyMaxSpan` of the stock client) it does not ask. Where a group has no offset, it goes back by so much.
const SPAN: i64 = 2_000;

/// Who pulls or commits.
pub struct OffsetClient<'a> {
    /// The id of its connection.
    pub connection: u64,
    /// Whether members of its group ask where that is before they read a queue. Asked for when it matters, which is hardly ever.
    pub asks_first: &'a dyn Fn() -> bool,
}

/// Where queues ended: by topic, one for each queue id. What is not here, or none, is new, or ended at 0 and is lost.
pub(super) type Topics = HashMap<Arc<str>, Vec<Option<i64>>>;

/// Where the queues ended that clients knew.
pub(super) struct Ends {
    topics: Topics,
    /// On [`Clock::elapsed`](env::Clock::elapsed).
    until: Duration,
    /// Another start is to know them. Relaxed: a snapshot may have them once too often.
    are_kept: AtomicBool,
}

/// The row of [`tables::ENDS`] that is there whenever others may be.
const ARE_KEPT: &[u8] = b"";

/// The rows of [`tables::ENDS`].
pub(super) struct Kept(pub(super) Arc<Offsets>);

impl Table for Kept {
    fn for_each(&self, f: &mut dyn FnMut(&[u8], &[u8])) {
        let ends = self.0.ends.get().filter(|ends| ends.are_kept.load(Ordering::Relaxed));
        for (topic, ends) in ends.iter().flat_map(|ends| &ends.topics) {
            f(topic.as_bytes(), &written(ends));
        }
        if ends.is_some() {
            f(ARE_KEPT, &[]);
        }
    }
}

/// -1 for none.
fn written(ends: &[Option<i64>]) -> Vec<u8> {
    ends.iter().flat_map(|end| end.unwrap_or(-1).to_le_bytes()).collect()
}

/// Where queues ended that another start has kept, none if none has. Before [`keep`].
pub(super) fn kept(journal: &Journal) -> Option<Topics> {
    let mut kept = None;
    journal.load(tables::ENDS, |topic, ends| {
        let topics = kept.get_or_insert_with(Topics::new);
        let (ends, _) = ends.as_chunks::<8>();
        if topic != ARE_KEPT
            && let Ok(topic) = std::str::from_utf8(topic)
        {
            let ends = ends.iter().map(|end| Some(i64::from_le_bytes(*end)).filter(|end| *end >= 0));
            topics.insert(topic.into(), ends.collect());
        }
    });
    kept
}

/// Has the journal keep where queues ended, for other starts.
pub(super) fn keep(offsets: &Arc<Offsets>, journal: &Journal) {
    let owner = Kept(Arc::clone(offsets));
    owner.for_each(&mut |topic, ends| _ = journal.put(tables::ENDS, topic, ends));
    journal.attach(tables::ENDS, Arc::new(owner));
}

/// The log is a copy again, so that what it ended with some time ago does not matter.
pub(super) fn forget_kept(journal: &Journal) {
    let mut topics = Vec::new();
    journal.load(tables::ENDS, |topic, _| topics.push(topic.to_vec()));
    topics.iter().for_each(|topic| _ = journal.delete(tables::ENDS, topic));
}

/// One of these queues, for one group.
pub(super) struct Ended {
    end: i64,
    /// The start did not know it.
    is_new: bool,
    /// The ids of connections.
    believed: Mutex<Vec<u64>>,
    /// Somebody who knows has said where the group goes on. Relaxed: who comes at the same time may be told either way.
    is_over: AtomicBool,
}

impl Ends {
    fn of(&self, topic: &str, queue: usize) -> Ended {
        let known = self.topics.get(topic).and_then(|ends| ends.get(queue)).copied().flatten();
        let (end, is_new) = (known.unwrap_or(0), known.is_none());
        Ended { end, is_new, believed: Mutex::default(), is_over: AtomicBool::new(false) }
    }
}

impl Ended {
    /// All before it was consumed by somebody who knows the queue as it is, or before the loss.
    fn frontier(&self, slot: &Slot) -> i64 {
        self.end.max(slot.committed.load(Ordering::Relaxed))
    }

    fn believes(&self, connection: u64) -> bool {
        self.believed.lock().contains(&connection)
    }

    fn believe(&self, connection: u64) {
        let mut believed = self.believed.lock();
        if !believed.contains(&connection) {
            if believed.len() >= BELIEVED_MAX {
                believed.remove(0);
            }
            believed.push(connection);
        }
    }

    fn lets_commit(&self, slot: &Slot, connection: u64, offset: i64) -> bool {
        offset <= self.frontier(slot) || self.believes(connection)
    }

    /// Where a pull at `asked` is to go on instead.
    fn tell(&self, slot: &Slot, connection: u64, asked: i64) -> Option<i64> {
        let frontier = self.frontier(slot);
        if asked <= frontier {
            self.believe(connection);
            return None;
        }
        let committed = slot.committed.load(Ordering::Relaxed);
        let to = if committed >= 0 { committed } else { self.end.min(asked - SPAN).max(0) };
        (!self.believes(connection)).then_some(to)
    }
}

impl Offsets {
    /// From now on clients are watched. Once, before anybody is served.
    pub(super) fn watch(&self, topics: Topics, are_kept: bool) {
        let until = self.clock.elapsed() + WATCHED;
        // A second one would be a start within the process, and there is none.
        let _ = self.ends.set(Ends { topics, until, are_kept: AtomicBool::new(are_kept) });
    }

    /// Once clients were watched for long enough, no other start has to.
    pub(crate) fn end_watch(&self, journal: &Journal) {
        let over = self.ends.get().filter(|ends| self.clock.elapsed() >= ends.until);
        let Some(ends) = over.filter(|ends| ends.are_kept.swap(false, Ordering::Relaxed)) else { return };
        for topic in ends.topics.keys() {
            journal.delete(tables::ENDS, topic.as_bytes());
        }
        journal.delete(tables::ENDS, ARE_KEPT);
    }

    /// Where queues ended, while that matters; nearly always nowhere.
    fn ends(&self) -> Option<&Ends> {
        self.ends.get().filter(|ends| self.clock.elapsed() < ends.until)
    }

    /// How a queue ended, if that matters to the group. `asks_first`: see [`OffsetClient`].
    fn ended<'a>(
        &self,
        entry: &OffsetEntry,
        slot: &'a Slot,
        queue: usize,
        asks_first: &dyn Fn() -> bool,
    ) -> Option<&'a Ended> {
        let ends = self.ends()?;
        let find = || {
            let GroupTopic { group, topic } = &entry.key;
            // The broker reads for its own groups, and tools read where they like.
            let is_watched = !names::is_system_group(group) && !names::is_system_topic(topic);
            is_watched.then(|| Box::new(ends.of(topic, queue)))
        };
        let ended = slot.ended.get_or_init(find).as_deref();
        ended.filter(|ended| !ended.is_over.load(Ordering::Relaxed) && (!ended.is_new || asks_first()))
    }

    /// Does something with how a queue ended, where that matters.
    fn with_ended<R>(
        &self,
        (group, topic, queue_id): (&str, &str, i32),
        asks_first: &dyn Fn() -> bool,
        f: impl FnOnce(&Slot, &Ended) -> R,
    ) -> Option<R> {
        self.ends()?;
        let queue = index(queue_id)?;
        let entry = self.entry(group, topic);
        entry.with(queue, |slot| self.ended(&entry, slot, queue, asks_first).map(|ended| f(slot, ended)))
    }

    /// Notes how far a group has come, as a client says it. As [`commit`](Self::commit); what lies behind the end that a loss of power left counts
    /// only from who is known to have read from there on.
    pub fn commit_by(&self, client: &OffsetClient<'_>, group: &str, topic: &str, queue_id: i32, offset: i64) {
        self.commit_if(group, topic, queue_id, offset, |entry, slot| {
            let ended = index(queue_id).and_then(|queue| self.ended(entry, slot, queue, client.asks_first));
            ended.is_none_or(|ended| ended.lets_commit(slot, client.connection, offset))
        });
    }

    /// Whether a commit of this offset would be passed over: the client that sends it is to be told first where to go on.
    pub(crate) fn passes_over(
        &self,
        client: &OffsetClient<'_>,
        group: &str,
        topic: &str,
        queue_id: i32,
        offset: i64,
    ) -> bool {
        let is_ahead = |slot: &Slot, ended: &Ended| !ended.lets_commit(slot, client.connection, offset);
        self.is_reset_pending(group, topic, queue_id)
            || self.with_ended((group, topic, queue_id), client.asks_first, is_ahead) == Some(true)
    }

    /// Where a pull at `asked` is to go on instead: where the group was set to, which one pull is told; or after a loss of power what the group has
    /// committed, which each connection is told that asks behind all that its group can have consumed, until it has not.
    pub fn tell(&self, client: &OffsetClient<'_>, group: &str, topic: &str, queue_id: i32, asked: i64) -> Option<i64> {
        if let Some(to) = self.take_reset(group, topic, queue_id) {
            return Some(to);
        }
        let tell = |slot: &Slot, ended: &Ended| ended.tell(slot, client.connection, asked);
        self.with_ended((group, topic, queue_id), client.asks_first, tell).flatten()
    }

    /// A client is told that its group has no offset in a queue: it begins where it likes.
    pub(crate) fn begins(&self, connection: u64, group: &str, topic: &str, queue_id: i32) {
        self.with_ended((group, topic, queue_id), &|| true, |_, ended| ended.believe(connection));
    }

    /// Somebody who knows decides where the group goes on in a queue: clients need not be told of the end that a loss of power left.
    pub(crate) fn forget_end(&self, group: &str, topic: &str, queue_id: i32) {
        self.with_ended((group, topic, queue_id), &|| true, |_, ended| ended.is_over.store(true, Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use env::{Clock, TimeMs};
    use store::{Store, StoreEnv, StoreOptions};

    use super::*;

    const ONE: u64 = 1;
    const TWO: u64 = 2;

    fn offsets(ends: &[i64]) -> (Offsets, env::ManualClock) {
        let (clock, hand) = Clock::manual(TimeMs(1_800_000_000_000));
        let offsets = Offsets::new(clock);
        offsets.watch([("T".into(), ends.iter().copied().map(Some).collect())].into(), false);
        (offsets, hand)
    }

    fn client(connection: u64) -> OffsetClient<'static> {
        OffsetClient { connection, asks_first: &|| true }
    }

    fn tells(offsets: &Offsets, connection: u64, asked: i64) -> Option<i64> {
        offsets.tell(&client(connection), "G", "T", 0, asked)
    }

    /// Says whether it counts.
    fn commits(offsets: &Offsets, connection: u64, offset: i64) -> bool {
        let client = client(connection);
        let passes = offsets.passes_over(&client, "G", "T", 0, offset);
        let before = offsets.committed("G", "T", 0);
        offsets.commit_by(&client, "G", "T", 0, offset);
        let after = offsets.committed("G", "T", 0);
        assert_eq!(after, if passes { before } else { Some(offset) }, "{connection} {offset}");
        !passes
    }

    #[test]
    fn who_is_ahead_is_told_until_it_asks_where_its_group_may_be() {
        let (offsets, _) = offsets(&[100]);
        offsets.commit("G", "T", 0, 90);
        assert!(!commits(&offsets, ONE, 110));
        // What it has of the last ten is dropped, consumed or not.
        assert_eq!([110, 105, 101].map(|asked| tells(&offsets, ONE, asked)), [Some(90); 3]);
        assert!(commits(&offsets, ONE, 90));
        assert_eq!(tells(&offsets, ONE, 90), None);
        // From there it may go on, and where it likes.
        assert_eq!(tells(&offsets, ONE, 110), None);
        assert!(commits(&offsets, ONE, 110));
    }

    #[test]
    fn who_is_ahead_commits_nothing_though_another_member_reads_on_from_the_end() {
        let (offsets, _) = offsets(&[100]);
        offsets.commit("G", "T", 0, 95);
        // The first had come to 103; the second has the queue now.
        assert_eq!(tells(&offsets, TWO, 95), None);
        assert!(!commits(&offsets, ONE, 103));
        assert_eq!(offsets.committed("G", "T", 0), Some(95));
        assert_eq!(tells(&offsets, TWO, 102), None);
        assert!(commits(&offsets, TWO, 102));
        // What the second has consumed, the group has.
        assert_eq!(
            [tells(&offsets, ONE, 103), tells(&offsets, ONE, 102), tells(&offsets, ONE, 104)],
            [Some(102), None, None]
        );
        assert!(commits(&offsets, ONE, 104));
    }

    #[test]
    fn a_group_that_has_lost_its_offsets_is_watched_and_one_that_begins_is_not() {
        let (offsets, _) = offsets(&[5_000]);
        assert_eq!(
            [5_007, 7_000, 9_000].map(|asked| tells(&offsets, ONE, asked)),
            [Some(3_007), Some(5_000), Some(5_000)]
        );
        assert!(!commits(&offsets, ONE, 5_007));
        // It asks, hears that there is none, and begins at the queue's end.
        offsets.begins(TWO, "G", "T", 0);
        assert_eq!(tells(&offsets, TWO, 6_000), None);
        assert!(commits(&offsets, TWO, 6_000));
        assert_eq!(offsets.tell(&client(ONE), "TOOLS_CONSUMER", "T", 0, 5_007), None);
    }

    #[test]
    fn a_queue_that_the_loss_took_with_its_topic_ended_at_0() {
        let offsets = Offsets::new(Clock::manual(TimeMs(1_800_000_000_000)).0);
        offsets.watch([("T".into(), vec![Some(5_000)]), ("Half".into(), vec![None, Some(9)])].into(), false);
        for (topic, queue_id) in [("T", 1), ("Lost", 0), ("Half", 0)] {
            // It has seen the first message of a queue that is gone, and another one is first now.
            let tells = |client: &OffsetClient<'_>, asked| offsets.tell(client, "G", topic, queue_id, asked);
            assert!(offsets.passes_over(&client(ONE), "G", topic, queue_id, 1), "{topic}");
            assert_eq!(tells(&client(ONE), 1), Some(0), "{topic}");
            assert_eq!(tells(&client(ONE), 0), None, "{topic}");
            assert_eq!(tells(&client(ONE), 1), None, "{topic}");
            // Who begins where there was nothing goes on where it likes; and who never asks is left alone.
            offsets.begins(TWO, "G", topic, queue_id);
            assert_eq!(tells(&client(TWO), 7), None, "{topic}");
            let reader = OffsetClient { connection: 3, asks_first: &|| false };
            assert_eq!(tells(&reader, 7), None, "{topic}");
            assert!(!offsets.passes_over(&reader, "G", topic, queue_id, 7), "{topic}");
        }
        let reader = OffsetClient { connection: 3, asks_first: &|| false };
        assert_eq!(offsets.tell(&reader, "G", "T", 0, 5_007), Some(3_007), "of a queue that the start knew");
        assert_eq!(offsets.tell(&client(ONE), "G", names::SCHEDULE_TOPIC, 0, 7), None, "the broker's own");
    }

    #[test]
    fn nobody_is_watched_for_ever_nor_where_nothing_was_lost() {
        let (watched, hand) = offsets(&[100]);
        assert_eq!(tells(&watched, ONE, 107), Some(0));
        hand.advance(WATCHED);
        assert_eq!(tells(&watched, ONE, 107), None);
        assert!(commits(&watched, ONE, 107));
        let offsets = Offsets::new(Clock::real());
        assert_eq!(tells(&offsets, ONE, 107), None);
        assert!(commits(&offsets, ONE, 107));
    }

    #[test]
    fn starts_know_ends_that_are_kept_until_one_has_watched_for_long_enough() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Store::open(StoreOptions::at(dir.path()), StoreEnv::real()).unwrap().0;
        let ends = Topics::from([("T".into(), vec![Some(5), None]), ("U".into(), vec![])]);
        for (waits, before) in [(WATCHED / 2, None), (WATCHED, Some(&ends))] {
            let store = open();
            assert_eq!(kept(store.journal()).as_ref(), before);
            let (clock, hand) = Clock::manual(TimeMs(1_800_000_000_000));
            let offsets = Arc::new(Offsets::new(clock));
            offsets.watch(ends.clone(), true);
            keep(&offsets, store.journal());
            hand.advance(waits);
            offsets.end_watch(store.journal());
            store.close().unwrap();
        }
        let store = open();
        assert_eq!(kept(store.journal()), None);
        store.close().unwrap();
    }

    #[test]
    fn however_many_connect_some_are_believed() {
        let (offsets, _) = offsets(&[100]);
        for connection in 0..1_000 {
            assert_eq!(tells(&offsets, connection, 100), None);
        }
        assert_eq!((tells(&offsets, 999, 107), tells(&offsets, 0, 107)), (None, Some(0)));
        let believed = offsets.with_ended(("G", "T", 0), &|| true, |_, ended| ended.believed.lock().len());
        assert_eq!(believed, Some(BELIEVED_MAX));
    }
}
