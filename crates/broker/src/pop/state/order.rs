//! Queues that are popped in order: one batch at a time, and the next one only when every message of it is acknowledged or visible again.
//!
//! The group's offset stays at the first message that is not acknowledged, so nothing else has to survive for nothing to be lost; what is
//! kept beside it, here and in the journal, says who has the batch and how often it was tried. The rows are Apache's `OrderInfo`.

use std::collections::BTreeMap;
use std::sync::Arc;

use journal::Table;
use parking_lot::Mutex;
use protocol::names;
use serde::{Deserialize, Serialize};
use store::Store;

use super::handle::{self, Origin};
use super::ledger::{LEASE_MESSAGES_MAX, QueueRef};
use crate::state::offsets::{SEPARATOR, split_key};
use crate::tables::{self, Keeper};

/// One batch, as `consumerOrderInfo.json` has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Batch {
    #[serde(rename = "popTime")]
    pop_time: i64,
    #[serde(rename = "i")]
    invisible_ms: Option<i64>,
    /// The first offset, then distances from it.
    #[serde(rename = "o")]
    offsets: Vec<u64>,
    /// By offset, where it is not what follows from the pop.
    #[serde(rename = "ot")]
    visible_at: BTreeMap<u64, i64>,
    /// By offset, where it is not 0.
    #[serde(rename = "oc")]
    consumed: BTreeMap<u64, i32>,
    #[serde(rename = "l")]
    last_consumed: i64,
    /// Bit by place.
    #[serde(rename = "cm")]
    acked: u64,
    #[serde(rename = "a")]
    attempt_id: Option<String>,
}

impl Batch {
    fn offsets(&self) -> impl Iterator<Item = u64> {
        let first = self.offsets.first().copied().unwrap_or(0);
        self.offsets
            .iter()
            .enumerate()
            .map(move |(place, offset)| if place == 0 { first } else { first.saturating_add(*offset) })
    }

    fn is_acked(&self, place: usize) -> bool {
        self.acked.checked_shr(place as u32).is_some_and(|bits| bits & 1 == 1)
    }

    fn open(&self) -> impl Iterator<Item = u64> {
        self.offsets().enumerate().filter(|(place, _)| !self.is_acked(*place)).map(|(_, offset)| offset)
    }

    fn visible_at(&self, offset: u64) -> i64 {
        let usual = || self.pop_time.saturating_add(self.invisible_ms.unwrap_or(0));
        self.visible_at.get(&offset).copied().unwrap_or_else(usual)
    }

    /// Whether nobody else may pop: some message is neither acknowledged nor visible.
    fn is_blocked(&self, attempt_id: Option<&str>, now: i64) -> bool {
        let is_same = attempt_id.is_some() && self.attempt_id.as_deref() == attempt_id;
        !is_same && self.open().any(|offset| now < self.visible_at(offset))
    }

    /// When the queue is free at the latest, unless messages are acknowledged before.
    fn free_at(&self) -> Option<i64> {
        self.open().map(|offset| self.visible_at(offset)).max()
    }

    /// How many of the first of these messages, which were read from where the group stood, are of this batch and done with.
    fn done_since(&self, read: &[u64]) -> usize {
        let next = self.next().unwrap_or(0);
        read.iter().take_while(|offset| **offset < next && self.offsets().any(|of_batch| of_batch == **offset)).count()
    }

    /// The pop time is the batch's name, and stays. True if something is visible earlier.
    fn set_back(&mut self, by: i64) -> bool {
        let mut is_earlier = false;
        if let Some(invisible_ms) = self.invisible_ms.as_mut().filter(|ms| **ms > 0) {
            *invisible_ms = invisible_ms.saturating_sub(by);
            is_earlier = true;
        }
        // What was changed since is visible by the clock of now.
        for at in self.visible_at.values_mut().filter(|at| **at > self.pop_time) {
            *at = at.saturating_sub(by);
            is_earlier = true;
        }
        is_earlier
    }

    /// The first offset that is not acknowledged.
    fn next(&self) -> Option<u64> {
        self.open().next().or_else(|| self.offsets().last().map(|last| last + 1))
    }
}

/// `consumerOrderInfo.json`: batches by `topic@group` and queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct OrderTable {
    pub(crate) table: BTreeMap<String, BTreeMap<i32, Batch>>,
}

/// What an acknowledgement does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrderAck {
    /// The group has come further, or will when what is before it is acknowledged.
    Next,
    /// Somebody has popped the queue since.
    Late,
    /// The offset is not in the batch; the group could go on from `next`.
    Unknown,
}

/// A batch that is somebody's now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pop) struct Taken {
    /// Where the journal knows of it.
    pub(in crate::pop) position: u64,
    /// How many of the first messages that were to be in it are done with.
    pub(in crate::pop) done: usize,
}

/// A queue as it is known here.
type PopQueueKey = (Arc<str>, Arc<str>, i32);

/// All queues that are popped in order.
pub(crate) struct Orders {
    /// By topic, group and queue. Guards the order of its journal puts too, which never wait, and of the offsets that follow from
    /// acknowledgements.
    batches: Mutex<BTreeMap<PopQueueKey, Batch>>,
    keeper: Keeper,
}

impl Orders {
    /// What the journal holds.
    pub(in crate::pop) fn load(store: &Arc<Store>) -> Orders {
        let mut batches = BTreeMap::new();
        store.journal().load(tables::POP_ORDERS, |key, value| match (parse_key(key), serde_json::from_slice(value)) {
            (Some(key), Ok(batch)) => {
                batches.insert(key, batch);
            }
            (None, _) | (_, Err(_)) => tracing::error!("batch that is popped in order not understood"),
        });
        Orders { batches: Mutex::new(batches), keeper: Keeper::of(store) }
    }

    fn put(&self, key: &PopQueueKey, batch: Option<&Batch>) -> u64 {
        let bytes = key_bytes(key);
        match batch {
            Some(batch) => {
                let row = serde_json::to_vec(batch).unwrap_or_default();
                self.keeper.put(tables::POP_ORDERS, &bytes, &row)
            }
            None => self.keeper.delete(tables::POP_ORDERS, &bytes),
        }
    }

    /// Whether the queue may not be popped now by this attempt.
    pub(in crate::pop) fn is_blocked(&self, name: QueueRef<'_>, attempt_id: Option<&str>, now: i64) -> bool {
        let key = key_of(name);
        self.batches.lock().get(&key).is_some_and(|batch| batch.is_blocked(attempt_id, now))
    }

    /// Until when the queue may not be popped by this attempt, unless messages are acknowledged before; `None`: it may be popped now.
    pub(in crate::pop) fn blocked_until(&self, name: QueueRef<'_>, attempt_id: Option<&str>, now: i64) -> Option<i64> {
        let batches = self.batches.lock();
        let batch = batches.get(&key_of(name)).filter(|batch| batch.is_blocked(attempt_id, now));
        batch.and_then(Batch::free_at)
    }

    /// When the queue may be popped again, if it may not now.
    pub(in crate::pop) fn free_at(&self, name: QueueRef<'_>) -> Option<i64> {
        self.batches.lock().get(&key_of(name)).and_then(Batch::free_at)
    }

    /// Notes a new batch, and how often its messages were consumed before. `None` if there is nothing of it left, or the life of the queue is over: then
    /// nothing is noted. Asked under the lock: a deletion that is not seen forgets the batch afterwards.
    pub(in crate::pop) fn take(
        &self,
        name: QueueRef<'_>,
        pop: &OrderPop<'_>,
        counts: &mut String,
        is_gone: impl FnOnce() -> bool,
    ) -> Option<Taken> {
        let key = key_of(name);
        let mut batches = self.batches.lock();
        if is_gone() {
            return None;
        }
        let mut offsets = pop.offsets;
        // Somebody may have acknowledged them since it was looked where the group stands.
        let done = batches.get(&key).map_or(0, |before| before.done_since(offsets));
        offsets = offsets.get(done..).filter(|left| !left.is_empty())?;
        offsets = &offsets[..offsets.len().min(LEASE_MESSAGES_MAX)];
        let first = offsets.first().copied().unwrap_or(0);
        let mut batch = Batch {
            pop_time: pop.pop_time,
            invisible_ms: Some(pop.invisible_ms),
            offsets: offsets
                .iter()
                .zip(0..)
                .map(|(offset, place)| if place == 0 { first } else { offset - first })
                .collect(),
            last_consumed: pop.pop_time,
            attempt_id: pop.attempt_id.map(str::to_owned),
            ..Batch::default()
        };
        if let Some(before) = batches.get(&key) {
            if pop.attempt_id.is_some() && before.attempt_id == batch.attempt_id {
                batch.consumed = before.consumed.clone();
            } else {
                let offsets: Vec<u64> = batch.open().collect();
                for offset in offsets.into_iter().filter(|offset| before.offsets().any(|other| other == *offset)) {
                    let times = before.consumed.get(&offset).copied().unwrap_or(0).saturating_add(1);
                    batch.consumed.insert(offset, times);
                }
            }
        }
        let mark = Origin::of(name.topic);
        for (offset, times) in &batch.consumed {
            handle::add_count(counts, mark, name.queue_id, *offset, *times);
        }
        let is_new = batch.open().any(|offset| !batch.consumed.contains_key(&offset));
        let least = if is_new { 0 } else { batch.consumed.values().copied().min().unwrap_or(0) };
        handle::add_queue_count(counts, mark, name.queue_id, least);
        let position = self.put(&key, Some(&batch));
        batches.insert(key, batch);
        Some(Taken { position, done })
    }

    /// One message is done with. Also says where the journal knows of it. `commit` notes where the group goes on, before anybody else
    /// acknowledges or looks: of two acknowledgements the later one is to be noted last.
    pub(in crate::pop) fn ack(
        &self,
        name: QueueRef<'_>,
        pop_time: i64,
        offset: u64,
        commit: impl FnOnce(u64),
    ) -> (OrderAck, u64) {
        let key = key_of(name);
        let mut batches = self.batches.lock();
        let Some(batch) = batches.get_mut(&key) else { return (OrderAck::Late, 0) };
        if batch.pop_time != pop_time {
            return (OrderAck::Late, 0);
        }
        let Some(place) = batch.offsets().position(|other| other == offset) else { return (OrderAck::Unknown, 0) };
        batch.acked |= 1u64.checked_shl(place as u32).unwrap_or(0);
        let Some(next) = batch.next() else { return (OrderAck::Unknown, 0) };
        let position = self.put(&key, Some(batch));
        commit(next);
        (OrderAck::Next, position)
    }

    /// One message becomes visible at another time. False when nobody has it by that pop.
    pub(in crate::pop) fn change(
        &self,
        name: QueueRef<'_>,
        pop_time: i64,
        offset: u64,
        visible_at: i64,
    ) -> Option<u64> {
        let key = key_of(name);
        let mut batches = self.batches.lock();
        let batch = batches.get_mut(&key).filter(|batch| batch.pop_time == pop_time)?;
        if !batch.open().any(|other| other == offset) {
            return None;
        }
        batch.visible_at.insert(offset, visible_at);
        Some(self.put(&key, Some(batch)))
    }

    /// The queue of a batch is put off as a whole: nothing of it counts as a try. None when nobody has it by that pop.
    pub(in crate::pop) fn suspend(&self, name: QueueRef<'_>, pop_time: i64, visible_at: i64) -> Option<u64> {
        let key = key_of(name);
        let mut batches = self.batches.lock();
        let batch = batches.get_mut(&key).filter(|batch| batch.pop_time == pop_time)?;
        for times in batch.consumed.values_mut() {
            *times = (*times - 1).max(0);
        }
        batch.visible_at.clear();
        batch.invisible_ms = Some(visible_at.saturating_sub(pop_time));
        Some(self.put(&key, Some(batch)))
    }

    /// The clock was set back by so much, and shows this now: batches that were given out by the clock as it was are free as much earlier. Returns how many.
    pub(in crate::pop) fn set_back(&self, by: i64, now: i64) -> usize {
        let mut batches = self.batches.lock();
        let mut changed = 0;
        for (key, batch) in batches.iter_mut().filter(|(_, batch)| batch.pop_time > now) {
            changed += usize::from(batch.set_back(by));
            self.put(key, Some(batch));
        }
        changed
    }

    /// When the latest batch was given out.
    pub(in crate::pop) fn latest_pop(&self) -> Option<i64> {
        let batches = self.batches.lock();
        batches.values().filter(|batch| batch.free_at() > Some(batch.pop_time)).map(|batch| batch.pop_time).max()
    }

    /// How often each of these messages was consumed before.
    pub(in crate::pop) fn times(&self, name: QueueRef<'_>, offsets: &[u64]) -> Vec<i32> {
        let batches = self.batches.lock();
        let batch = batches.get(&key_of(name));
        let times = |offset| batch.and_then(|batch| batch.consumed.get(offset)).copied().unwrap_or(0);
        offsets.iter().map(times).collect()
    }

    /// Lite topics that somebody has messages of.
    pub(crate) fn lite_count(&self) -> usize {
        self.batches.lock().keys().filter(|(topic, _, _)| names::lite_parts(topic).is_some()).count()
    }

    /// Whether all of the last batch is acknowledged, and it is still known.
    pub(in crate::pop) fn is_finished(&self, name: QueueRef<'_>) -> bool {
        self.batches.lock().get(&key_of(name)).is_some_and(|batch| batch.free_at().is_none())
    }

    /// Forgets the last batch if all of it is acknowledged. Only for whoever has the turn to pop the queue: of a batch that others have
    /// read but not taken yet, this would forget what is done with.
    pub(in crate::pop) fn clear_finished(&self, name: QueueRef<'_>) {
        let key = key_of(name);
        let mut batches = self.batches.lock();
        if batches.get(&key).is_some_and(|batch| batch.free_at().is_none()) {
            batches.remove(&key);
            self.put(&key, None);
        }
    }

    /// The queue was set back: the batch does not matter any more.
    pub(crate) fn clear(&self, group: &str, topic: &str, queue_id: i32) {
        self.clear_if(group, topic, queue_id, || true);
    }

    /// The same if that is so under the lock.
    pub(in crate::pop) fn clear_if(&self, group: &str, topic: &str, queue_id: i32, is_meant: impl FnOnce() -> bool) {
        let key = key_of(QueueRef { group, topic, queue_id });
        let mut batches = self.batches.lock();
        if is_meant() && batches.remove(&key).is_some() {
            self.put(&key, None);
        }
    }

    /// Forgets batches that reach behind the end of their queue, after a crash: what they say of lost messages would be taken for those that get
    /// the numbers next, and one that counts as acknowledged does not come. `end_of` says where the queue of a topic ends, if it is to be looked
    /// at. Returns how many went.
    pub(crate) fn cut(&self, end_of: impl Fn(&str, i32) -> Option<i64>) -> usize {
        let mut batches = self.batches.lock();
        let gone = batches.extract_if(.., |(topic, _, queue_id), batch| {
            let end = end_of(topic, *queue_id).and_then(|end| u64::try_from(end).ok());
            end.is_some_and(|end| batch.offsets().any(|offset| offset >= end))
        });
        let gone: Vec<PopQueueKey> = gone.map(|(key, _)| key).collect();
        gone.iter().for_each(|key| _ = self.put(key, None));
        gone.len()
    }

    /// Everything, as RocketMQ's JSON holds it: without lite topics, of which Apache keeps this in memory only.
    pub(crate) fn table(&self) -> BTreeMap<String, BTreeMap<i32, Batch>> {
        let mut table: BTreeMap<String, BTreeMap<i32, Batch>> = BTreeMap::new();
        let batches = self.batches.lock();
        for ((topic, group, queue_id), batch) in batches.iter().filter(|(key, _)| is_in_table(key)) {
            table.entry(format!("{topic}{SEPARATOR}{group}")).or_default().insert(*queue_id, batch.clone());
        }
        table
    }

    /// Puts another table in the place of this one.
    pub(crate) fn replace(&self, table: BTreeMap<String, BTreeMap<i32, Batch>>) {
        let mut batches = self.batches.lock();
        let gone = batches.extract_if(.., |key, _| is_in_table(key));
        for (key, _) in gone {
            self.put(&key, None);
        }
        for (names, queues) in table {
            let Some((topic, group)) = split_key(&names) else { continue };
            for (queue_id, batch) in queues {
                let key: PopQueueKey = (topic.into(), group.into(), queue_id);
                self.put(&key, Some(&batch));
                batches.insert(key, batch);
            }
        }
    }

    /// Takes over a row of a master. False if it is not understood.
    pub(crate) fn take_row(&self, key: &[u8], value: Option<&[u8]>) -> bool {
        let (Some(key), Ok(batch)) = (parse_key(key), value.map(serde_json::from_slice::<Batch>).transpose()) else {
            return false;
        };
        let mut batches = self.batches.lock();
        self.put(&key, batch.as_ref());
        match batch {
            Some(batch) => _ = batches.insert(key, batch),
            None => _ = batches.remove(&key),
        }
        true
    }

    /// Changes whenever [`Orders::table`] does.
    pub(crate) fn stamp(&self) -> (i64, u64) {
        let batches = self.batches.lock();
        let (mut sum, mut count) = (0i64, 0);
        for (_, batch) in batches.iter().filter(|(key, _)| is_in_table(key)) {
            let acked = batch.acked as i64;
            let visible = batch.visible_at.values().fold(0i64, |sum, at| sum.wrapping_add(*at));
            sum = sum.wrapping_mul(31).wrapping_add(batch.pop_time).wrapping_mul(31).wrapping_add(acked);
            sum = sum.wrapping_add(visible);
            count += 1;
        }
        (sum, count)
    }

    pub(in crate::pop) fn forget(&self, is_gone: &impl Fn(&str, &str) -> bool) {
        let mut batches = self.batches.lock();
        for (key, _) in batches.extract_if(.., |(topic, group, _), _| is_gone(group, topic)) {
            self.put(&key, None);
        }
    }
}

/// A batch that is taken.
#[derive(Clone, Copy)]
pub(in crate::pop) struct OrderPop<'a> {
    pub(in crate::pop) attempt_id: Option<&'a str>,
    pub(in crate::pop) pop_time: i64,
    pub(in crate::pop) invisible_ms: i64,
    pub(in crate::pop) offsets: &'a [u64],
}

/// Whether RocketMQ's JSON holds the batch.
fn is_in_table((topic, _, _): &PopQueueKey) -> bool {
    names::lite_parts(topic).is_none()
}

fn key_of(name: QueueRef<'_>) -> PopQueueKey {
    (name.topic.into(), name.group.into(), name.queue_id)
}

fn key_bytes((topic, group, queue_id): &PopQueueKey) -> Vec<u8> {
    let mut bytes = format!("{topic}{SEPARATOR}{group}\0").into_bytes();
    bytes.extend_from_slice(&queue_id.to_be_bytes());
    bytes
}

fn parse_key(bytes: &[u8]) -> Option<PopQueueKey> {
    let (names, queue_id) = bytes.split_last_chunk::<4>()?;
    let names = std::str::from_utf8(names.strip_suffix(&[0])?).ok()?;
    let (topic, group) = split_key(names)?;
    Some((topic.into(), group.into(), i32::from_be_bytes(*queue_id)))
}

/// For the journal's snapshots.
impl Table for Orders {
    fn for_each(&self, f: &mut dyn FnMut(&[u8], &[u8])) {
        let rows: Vec<(PopQueueKey, Batch)> =
            self.batches.lock().iter().map(|(key, batch)| (key.clone(), batch.clone())).collect();
        for (key, batch) in rows {
            f(&key_bytes(&key), &serde_json::to_vec(&batch).unwrap_or_default());
        }
    }
}

#[cfg(test)]
mod tests {
    use store::{StoreEnv, StoreOptions};

    use super::*;

    #[test]
    fn batches_are_read_as_they_were_written_also_where_a_name_holds_the_separator() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(StoreOptions::at(dir.path()), StoreEnv::real()).unwrap();
        let orders = Orders::load(&store);
        let names =
            [("%LMQ%GID@@@device", "G"), ("%LMQ%$Chat$user@example.com", "G"), ("T", "%LMQ%GID@@@device"), ("T", "G")];
        let name = |(topic, group)| QueueRef { group, topic, queue_id: 0 };
        let pop = OrderPop { attempt_id: None, pop_time: 5, invisible_ms: 1000, offsets: &[0, 1] };
        for names in names {
            orders.take(name(names), &pop, &mut String::new(), || false);
        }
        let table = orders.table();
        assert_eq!(table.len(), 3, "the lite topic is not in the file");
        orders.replace(table.clone());
        assert_eq!(orders.table(), table);
        assert!(names.iter().all(|names| orders.is_blocked(name(*names), None, 6)), "after an import");
        store.close().unwrap();
        let (store, _) = Store::open(StoreOptions::at(dir.path()), StoreEnv::real()).unwrap();
        let orders = Orders::load(&store);
        assert!(names.iter().all(|names| orders.is_blocked(name(*names), None, 6)), "after a start");
        store.close().unwrap();
    }

    #[test]
    fn a_batch_of_a_lite_topic_does_not_have_the_json_written_anew() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(StoreOptions::at(dir.path()), StoreEnv::real()).unwrap();
        let orders = Orders::load(&store);
        let pop = OrderPop { attempt_id: None, pop_time: 5, invisible_ms: 1000, offsets: &[0, 1] };
        let take = |topic| orders.take(QueueRef { group: "G", topic, queue_id: 0 }, &pop, &mut String::new(), || false);
        let at_first = orders.stamp();
        take("%LMQ%$Chat$a");
        assert_eq!((orders.stamp(), orders.table().len(), orders.lite_count()), (at_first, 0, 1));
        take("T");
        assert_ne!(orders.stamp(), at_first);
        store.close().unwrap();
    }

    #[test]
    fn a_batch_that_reaches_behind_the_end_of_its_queue_is_forgotten_after_a_crash() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(StoreOptions::at(dir.path()), StoreEnv::real()).unwrap();
        let orders = Orders::load(&store);
        let name = |topic| QueueRef { group: "G", topic, queue_id: 0 };
        for topic in ["T", "U", "Elsewhere"] {
            let pop = OrderPop { attempt_id: None, pop_time: 5, invisible_ms: 1000, offsets: &[3, 4, 5] };
            orders.take(name(topic), &pop, &mut String::new(), || false);
            orders.ack(name(topic), 5, 5, |_| {});
        }
        let ends = |topic: &str, _: i32| match topic {
            "T" => Some(5),
            "U" => Some(6),
            _ => None,
        };
        assert_eq!(orders.cut(ends), 1);
        let left = orders.table();
        assert!(!left.contains_key("T@G"));
        assert!(["U@G", "Elsewhere@G"].iter().all(|key| left[*key][&0].is_acked(2)));
        store.close().unwrap();
        let (store, _) = Store::open(StoreOptions::at(dir.path()), StoreEnv::real()).unwrap();
        assert_eq!(Orders::load(&store).table().len(), 2);
        store.close().unwrap();
    }
}
