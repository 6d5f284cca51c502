//! All that the broker keeps of pops: leases, open batches, and how groups get the messages of a
//! topic. Without a clock and a socket.
//!
//! Leases are in the ledger (`ledger.rs`, a state machine without a clock) and in the journal,
//! a row a lease, put there under the ledger's lock and together with the group's offset: whatever
//! a crash leaves of the journal, a message that is not done with is on one lease or ahead of its
//! group.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use journal::{Journal, Table};
use parking_lot::Mutex;
use store::Store;
use tokio::sync::Notify;

use crate::state::offsets::{OffsetTable, Offsets, Progress, SEPARATOR, rows, split_key};
use crate::state::topics::Topics;
use crate::tables::{self, Keeper};
use crate::wall_time::STEP_MS;

mod copied;
pub(in crate::pop) mod handle;
pub(in crate::pop) mod ledger;
pub(in crate::pop) mod modes;
pub(in crate::pop) mod order;

use handle::Handle;
use ledger::{Change, Counts, Lease, LeaseId, Ledger, NoChange, NoLease, PopQueue, QueueName, QueueRef};
use modes::Modes;
use order::Orders;

/// Rows that a snapshot copies under the lock at once.
pub(in crate::pop) const PAGE: usize = 256;
/// Key of [`tables::POP_STATE`]: a log offset (8 bytes big-endian). Messages that were given back
/// from there on may still be on lease.
const REVIVING_FROM: &[u8] = b"revivingFrom";
/// Key of [`tables::POP_STATE`]: where the revive queues ended when leases were handed over, as
/// JSON.
const HANDED_OVER: &[u8] = b"handedOver";

/// All that the broker knows of pops.
pub(crate) struct Pops {
    /// Guards leases; journal puts happen under it, which never wait.
    pub(in crate::pop) ledger: Mutex<Ledger>,
    pub(crate) orders: Arc<Orders>,
    pub(crate) modes: Arc<Modes>,
    keeper: Keeper,
    /// Values of [`tables::POP_STATE`], for the journal's snapshots.
    pub(in crate::pop) state: Mutex<PopStart>,
    /// Rung when something is over earlier than was known.
    pub(in crate::pop) bell: Notify,
    /// Rung when the revive topic grows.
    pub(in crate::pop) revive_bell: Arc<Notify>,
    /// Pops so far: who is next among the revive queues.
    pub(in crate::pop) pops: AtomicU64,
    /// When the latest pop was, by the wall clock. Relaxed: it stands alone.
    pub(in crate::pop) latest: AtomicI64,
}

/// What a start has to know.
#[derive(Clone, Default)]
pub(in crate::pop) struct PopStart {
    pub(in crate::pop) reviving_from: Option<u64>,
    pub(in crate::pop) handed_over: Option<Vec<u8>>,
}

/// What a message of a lease is called: by its queue, and by the client's handle.
#[derive(Clone, Copy)]
pub(in crate::pop) struct Held<'a> {
    pub(in crate::pop) name: QueueRef<'a>,
    pub(in crate::pop) handle: Handle,
    pub(in crate::pop) offset: u64,
}

impl Pops {
    /// What the journal holds.
    pub(crate) fn load(store: &Arc<Store>, topics: &Topics) -> Pops {
        let journal = store.journal();
        let mut ledger = Ledger::default();
        journal.load(tables::POP_QUEUES, |key, value| match parse_queue(key, value) {
            Some((queue, name)) => ledger.restore_name(queue, name),
            None => tracing::error!("queue of a pop in the journal not understood"),
        });
        journal.load(tables::POP_LEASES, |key, value| match (LeaseId::of_bytes(key), Lease::read(value)) {
            (Some(id), Some(lease)) => ledger.restore(id, lease),
            (None, _) | (_, None) => tracing::error!("lease in the journal not understood"),
        });
        let mut state = PopStart::default();
        journal.load(tables::POP_STATE, |key, value| match key {
            REVIVING_FROM => state.reviving_from = value.try_into().ok().map(u64::from_be_bytes),
            HANDED_OVER => state.handed_over = Some(value.to_vec()),
            _ => tracing::error!("state of pops in the journal not understood"),
        });
        Pops {
            ledger: Mutex::new(ledger),
            orders: Arc::new(Orders::load(store)),
            modes: Arc::new(Modes::load(store)),
            keeper: Keeper::of(store),
            state: Mutex::new(state),
            bell: Notify::new(),
            revive_bell: Arc::clone(topics.revive_bell()),
            pops: AtomicU64::new(0),
            latest: AtomicI64::new(i64::MIN),
        }
    }

    /// How many leases there are.
    pub(crate) fn leases(&self) -> usize {
        self.ledger.lock().len()
    }

    /// How long it is until the next lease is over.
    pub(in crate::pop) fn next_over(&self, now: i64) -> Duration {
        let due = self.ledger.lock().next_due().unwrap_or(now);
        Duration::from_millis(due.saturating_sub(now).max(0) as u64)
    }

    /// When the open batch of a lite topic is over, if a group may not pop it before. Otherwise
    /// `None`.
    pub(crate) fn lite_blocked_until(&self, group: &str, queue: &str, now: i64) -> Option<i64> {
        self.orders.blocked_until(QueueRef { group, topic: queue, queue_id: 0 }, None, now)
    }

    /// Messages of a queue that somebody has.
    pub(crate) fn open_messages(&self, group: &str, topic: &str, queue_id: i32) -> usize {
        let ledger = self.ledger.lock();
        ledger.find(QueueRef { group, topic, queue_id }).map_or(0, |queue| ledger.open_messages(queue))
    }

    /// The same, with the one that somebody has had for longest.
    pub(crate) fn open_since(&self, group: &str, topic: &str, queue_id: i32) -> Option<(usize, u64)> {
        let ledger = self.ledger.lock();
        let queue = ledger.find(QueueRef { group, topic, queue_id })?;
        Some((ledger.open_messages(queue), ledger.oldest_open(queue)?))
    }

    /// The lowest offset that is on lease, of each queue that has such. Looks at all leases,
    /// without keeping others from them for long: one whose invisible time changes meanwhile moves
    /// behind its old place, so that it is met there or here.
    pub(crate) fn first_open(&self) -> Vec<(QueueName, u64)> {
        let (mut lowest, mut after) = (BTreeMap::new(), None);
        // Ends behind the last lease: each turn passes a page of them.
        loop {
            after = self.ledger.lock().lowest_open(after, PAGE, &mut lowest);
            if after.is_none() {
                break;
            }
        }
        let ledger = self.ledger.lock();
        lowest.into_iter().filter_map(|(queue, offset)| Some((ledger.name(queue)?.clone(), offset))).collect()
    }

    /// For brokers that hear of no leases: of a queue that has messages on lease, the offset of the first of them in place of the committed one.
    pub(crate) fn lower_to_leases(&self, table: &mut OffsetTable) {
        for (name, first) in self.first_open() {
            let key = format!("{}{SEPARATOR}{}", name.topic, name.group);
            let offset = table.get_mut(&key).and_then(|queues| queues.get_mut(&name.queue_id));
            if let (Some(offset), Ok(first)) = (offset, i64::try_from(first)) {
                *offset = first.min(*offset);
            }
        }
    }

    /// The number of a queue, which it gets when it is first popped. Under the ledger's lock.
    fn number(&self, ledger: &mut Ledger, name: QueueRef<'_>) -> PopQueue {
        if let Some(queue) = ledger.find(name) {
            return queue;
        }
        let name = QueueName { group: name.group.into(), topic: name.topic.into(), queue_id: name.queue_id };
        let queue = ledger.add(name.clone());
        let (key, value) = queue_row(queue, &name);
        self.keeper.put(tables::POP_QUEUES, &key, &value);
        queue
    }

    /// The turn to pop from a queue, unless somebody else has it. A caller that gets it ends it
    /// with [`Pops::release`].
    pub(in crate::pop) fn claim(&self, name: QueueRef<'_>) -> Option<PopQueue> {
        let mut ledger = self.ledger.lock();
        let queue = self.number(&mut ledger, name);
        ledger.claim(queue).then_some(queue)
    }

    /// Ends a turn. The queue, if somebody has missed the turn and is to be woken.
    pub(in crate::pop) fn release(&self, queue: PopQueue) -> Option<QueueName> {
        self.ledger.lock().release(queue)
    }

    /// Adds a lease that another broker gave out, with its offsets that are done with. Nobody's
    /// limit counts: what was given out has to come again. Nothing changes if the lease is known.
    pub(in crate::pop) fn take_in(&self, name: QueueRef<'_>, pop_time: i64, start: u64, lease: Lease, done: &[u64]) {
        let mut ledger = self.ledger.lock();
        let id = LeaseId { queue: self.number(&mut ledger, name), pop_time, start };
        if ledger.lease(id, lease, usize::MAX).is_err() {
            return;
        }
        for offset in done {
            ledger.ack(id, *offset);
        }
        self.put(&ledger, id);
        drop(ledger);
        self.bell.notify_one();
    }

    /// Messages of a lease that another broker gave out are done with.
    pub(in crate::pop) fn take_in_acks(&self, name: QueueRef<'_>, pop_time: i64, start: u64, offsets: &[u64]) {
        let mut ledger = self.ledger.lock();
        let Some(queue) = ledger.find(name) else { return };
        let id = LeaseId { queue, pop_time, start };
        for offset in offsets {
            ledger.ack(id, *offset);
        }
        self.put(&ledger, id);
    }

    /// Forgets all leases.
    pub(crate) fn drop_leases(&self) -> usize {
        let mut ledger = self.ledger.lock();
        let count = ledger.len();
        self.forget_in(&mut ledger, |_, _| true);
        count
    }

    /// Whether somebody has the turn to pop from a queue, asked for a pop that waits: the end of
    /// that turn wakes it.
    pub(in crate::pop) fn is_missed(&self, name: QueueRef<'_>) -> bool {
        let mut ledger = self.ledger.lock();
        ledger.find(name).is_some_and(|queue| ledger.miss(queue))
    }

    /// Gives messages to somebody, and moves the group to `next` in their queue. The position is
    /// where the journal knows of both.
    pub(in crate::pop) fn lease(
        &self,
        given: (LeaseId, Lease),
        max: usize,
        offsets: &Offsets,
        (progress, queue_id): (&Progress, i32),
        next: i64,
    ) -> Result<u64, NoLease> {
        let (id, lease) = given;
        let carrier = offsets.carry();
        let mut ledger = self.ledger.lock();
        let until = lease.until;
        let is_next = ledger.next_due().is_none_or(|next| until < next);
        ledger.lease(id, lease, max)?;
        let position = carrier.commit(progress, queue_id, next, |change| {
            let mut key = Vec::new();
            rows::write_key(&mut key, &change);
            let value = change.offset.map(|offset| rows::value(offset, change.committed_at));
            let value = value.as_ref().map(<[u8; 16]>::as_slice);
            self.put_with(&ledger, &[id], Some(journal::Change { table: tables::OFFSETS, key: &key, value }))
        });
        drop(ledger);
        drop(carrier);
        if is_next {
            self.bell.notify_one();
        }
        Ok(position)
    }

    /// Messages that one handle gave out are done with; `None` when nobody has one of them by that
    /// handle.
    pub(in crate::pop) fn ack(
        &self,
        name: QueueRef<'_>,
        handle: Handle,
        offsets: impl Iterator<Item = u64>,
    ) -> Option<Acked> {
        let mut ledger = self.ledger.lock();
        let id = Held { name, handle, offset: handle.start }.id(&ledger)?;
        let counts = ledger.ack_all(id, offsets);
        // One row for all of them: what is journalled is what is left.
        (counts.acked > 0).then(|| Acked { counts, position: self.put(&ledger, id) })
    }

    /// The invisible time of one message begins anew: the new pop time, and where the journal knows
    /// of it. There may be `max` leases.
    pub(in crate::pop) fn change(&self, held: Held<'_>, change: &Change, max: usize) -> Result<(i64, u64), NoChange> {
        let mut ledger = self.ledger.lock();
        let old = held.id(&ledger).ok_or(NoChange::Unknown)?;
        let new = ledger.change(old, held.offset, change, max)?;
        let position = self.put_with(&ledger, &[old, new], None);
        drop(ledger);
        self.bell.notify_one();
        Ok((new.pop_time, position))
    }

    /// Puts a lease as it is now into the journal. Under the ledger's lock.
    pub(in crate::pop) fn put(&self, ledger: &Ledger, id: LeaseId) -> u64 {
        self.put_with(ledger, &[id], None)
    }

    /// Puts leases as they are now, and another change, of which a crash must leave all or none.
    fn put_with(&self, ledger: &Ledger, ids: &[LeaseId], other: Option<journal::Change<'_>>) -> u64 {
        let row = |id: &LeaseId| {
            let lease = ledger.get(*id).map(|lease| {
                let mut row = Vec::with_capacity(16);
                lease.write(&mut row);
                row
            });
            (id.to_bytes(), lease)
        };
        let rows: Vec<_> = ids.iter().map(row).collect();
        let leases =
            rows.iter().map(|(key, row)| journal::Change { table: tables::POP_LEASES, key, value: row.as_deref() });
        let changes: Vec<_> = leases.chain(other).collect();
        self.keeper.put_together(&changes)
    }

    /// Gives up what a crash has taken of messages on lease; says of how many leases. See
    /// [`Ledger::cut`].
    pub(crate) fn cut(&self, end_of: impl Fn(&str, i32) -> Option<i64>) -> usize {
        let mut ledger = self.ledger.lock();
        let end_of = |name: &QueueName| end_of(&name.topic, name.queue_id).and_then(|end| u64::try_from(end).ok());
        let changed = ledger.cut(end_of);
        changed.iter().for_each(|id| _ = self.put(&ledger, *id));
        changed.len()
    }

    /// The clock was set back by so much: what was given out by the clock as it was comes again as
    /// much earlier, and not so much later than it was to. Without keeping others from the leases
    /// for long.
    fn set_back(&self, by: i64, now: i64) {
        let (mut after, mut changed, mut leases) = (None, Vec::new(), 0);
        // Ends behind the last lease.
        loop {
            let mut ledger = self.ledger.lock();
            after = ledger.set_back(after, PAGE, (by, now), &mut changed);
            leases += changed.len();
            changed.drain(..).for_each(|id| _ = self.put(&ledger, id));
            if after.is_none() {
                break;
            }
        }
        let batches = self.orders.set_back(by, now);
        if leases + batches > 0 {
            tracing::info!(
                by_ms = by,
                leases,
                batches,
                "messages on lease come again by the time that the clock shows now"
            );
        }
    }

    /// At a start, before anybody pops: finds when the last pop of the process before was, and goes
    /// back with the clock if that is ahead of it. Not by the first look of a task, before which
    /// time may pass, that would count as less to go back.
    pub(crate) fn begin(&self, now: i64) {
        let popped_at = self.ledger.lock().latest_pop().into_iter().chain(self.orders.latest_pop());
        popped_at.for_each(|at| _ = self.latest.fetch_max(at, Ordering::Relaxed));
        self.go_with_the_clock(0, now);
    }

    /// Goes back with the clock, which was set back by so much as far as anybody has seen, and by
    /// as much at least as the latest pop is ahead of it. Says whether that was anything.
    pub(in crate::pop) fn go_with_the_clock(&self, seen: i64, now: i64) -> bool {
        let ahead = self.latest.load(Ordering::Relaxed).saturating_sub(now);
        let by = seen.max(ahead);
        if by < STEP_MS {
            return false;
        }
        self.latest.store(now, Ordering::Relaxed);
        self.set_back(by, now);
        true
    }

    /// Forgets what a group or a topic that is gone has on lease.
    pub(crate) fn forget(&self, is_gone: impl Fn(&str, &str) -> bool) {
        self.forget_in(&mut self.ledger.lock(), &is_gone);
        self.orders.forget(&is_gone);
        self.modes.forget(&is_gone);
    }

    fn forget_in(&self, ledger: &mut Ledger, is_gone: impl Fn(&str, &str) -> bool) {
        let (queues, ids) = ledger.forget(|name| is_gone(&name.group, &name.topic));
        for id in ids {
            self.keeper.delete(tables::POP_LEASES, &id.to_bytes());
        }
        for queue in queues {
            self.keeper.delete(tables::POP_QUEUES, &queue.0.to_be_bytes());
        }
    }

    pub(in crate::pop) fn set_reviving_from(&self, from: Option<u64>) -> u64 {
        let mut state = self.state.lock();
        state.reviving_from = from;
        match from {
            Some(from) => self.keeper.put(tables::POP_STATE, REVIVING_FROM, &from.to_be_bytes()),
            None => self.keeper.delete(tables::POP_STATE, REVIVING_FROM),
        }
    }

    pub(in crate::pop) fn set_handed_over(&self, ends: Option<Vec<u8>>) -> u64 {
        let mut state = self.state.lock();
        state.handed_over = ends;
        match &state.handed_over {
            Some(ends) => self.keeper.put(tables::POP_STATE, HANDED_OVER, ends),
            None => self.keeper.delete(tables::POP_STATE, HANDED_OVER),
        }
    }
}

/// What became of acknowledgements.
pub(in crate::pop) struct Acked {
    pub(in crate::pop) counts: Counts,
    /// Where the journal knows of it.
    pub(in crate::pop) position: u64,
}

impl Held<'_> {
    fn id(&self, ledger: &Ledger) -> Option<LeaseId> {
        let queue = ledger.find(self.name)?;
        Some(LeaseId { queue, pop_time: self.handle.pop_time, start: self.handle.start })
    }
}

fn queue_row(queue: PopQueue, name: &QueueName) -> ([u8; 4], Vec<u8>) {
    let mut value = name.queue_id.to_be_bytes().to_vec();
    value.extend_from_slice(name.topic.as_bytes());
    value.push(SEPARATOR as u8);
    value.extend_from_slice(name.group.as_bytes());
    (queue.0.to_be_bytes(), value)
}

fn parse_queue(key: &[u8], value: &[u8]) -> Option<(PopQueue, QueueName)> {
    let queue = PopQueue(u32::from_be_bytes(key.try_into().ok()?));
    let (queue_id, names) = value.split_first_chunk::<4>()?;
    let (topic, group) = split_key(std::str::from_utf8(names).ok()?)?;
    let queue_id = i32::from_be_bytes(*queue_id);
    Some((queue, QueueName { group: group.into(), topic: topic.into(), queue_id }))
}

/// The queues that are popped, for the journal's snapshots.
struct PopQueues(Arc<Pops>);

impl Table for PopQueues {
    fn for_each(&self, f: &mut dyn FnMut(&[u8], &[u8])) {
        let rows: Vec<_> = self.0.ledger.lock().names().map(|(queue, name)| queue_row(queue, name)).collect();
        for (key, value) in rows {
            f(&key, &value);
        }
    }
}

/// The leases, for the journal's snapshots.
struct PopLeases(Arc<Pops>);

impl Table for PopLeases {
    fn for_each(&self, f: &mut dyn FnMut(&[u8], &[u8])) {
        let mut page: Vec<(LeaseId, Lease)> = Vec::new();
        let mut row = Vec::new();
        // Ends behind the last lease.
        loop {
            let after = page.last().map(|(id, _)| *id);
            page.clear();
            page.extend(self.0.ledger.lock().page(after, PAGE).map(|(id, lease)| (id, lease.clone())));
            for (id, lease) in &page {
                row.clear();
                lease.write(&mut row);
                f(&id.to_bytes(), &row);
            }
            if page.len() < PAGE {
                return;
            }
        }
    }
}

/// What a start has to know, for the journal's snapshots.
struct PopState(Arc<Pops>);

impl Table for PopState {
    fn for_each(&self, f: &mut dyn FnMut(&[u8], &[u8])) {
        let state = self.0.state.lock().clone();
        if let Some(from) = state.reviving_from {
            f(REVIVING_FROM, &from.to_be_bytes());
        }
        if let Some(ends) = &state.handed_over {
            f(HANDED_OVER, ends);
        }
    }
}

/// Says to the journal who holds which table, so that it can take snapshots.
pub(crate) fn attach(journal: &Journal, pops: &Arc<Pops>) {
    journal.attach(tables::POP_QUEUES, Arc::new(PopQueues(Arc::clone(pops))));
    journal.attach(tables::POP_LEASES, Arc::new(PopLeases(Arc::clone(pops))));
    journal.attach(tables::POP_STATE, Arc::new(PopState(Arc::clone(pops))));
    journal.attach(tables::POP_ORDERS, Arc::clone(&pops.orders) as Arc<dyn Table>);
    journal.attach(tables::REQUEST_MODES, Arc::clone(&pops.modes) as Arc<dyn Table>);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_row_of_a_queue_is_read_as_it_was_written_also_where_a_name_holds_the_separator() {
        for (topic, group) in [
            ("T", "G"),
            ("%LMQ%GID@@@device", "G"),
            ("%LMQ%$Chat$user@example.com", "G"),
            ("T", "%LMQ%GID@@@device"),
            ("%RETRY%%LMQ%GID@@@device_T", "%LMQ%GID@@@device"),
        ] {
            let name = QueueName { group: group.into(), topic: topic.into(), queue_id: 3 };
            let (key, value) = queue_row(PopQueue(7), &name);
            assert_eq!(parse_queue(&key, &value), Some((PopQueue(7), name)));
        }
    }
}
