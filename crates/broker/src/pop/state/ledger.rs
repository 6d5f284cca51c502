//! Which messages are whose, and until when: a state machine without a clock and without a disk.
//!
//! A pop of a queue is one [`Lease`] of up to 32 messages. Each of them is acknowledged, moved to a lease of its own by a change of its
//! invisible time, or given to the group again when the lease is over; whichever comes first, once. While a lease is being given up
//! nothing else is done with it, so an acknowledgement that comes too late finds nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use disk::invariant;
use hashbrown::{Equivalent, HashMap};

/// Messages of one pop. Apache's bit map has so many bits.
pub(crate) const LEASE_MESSAGES_MAX: usize = 32;

/// A queue of a topic as one group pops it. Names are long and leases are many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PopQueue(pub(crate) u32);

/// What a [`PopQueue`] stands for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QueueName {
    pub(crate) group: Arc<str>,
    pub(crate) topic: Arc<str>,
    pub(crate) queue_id: i32,
}

/// The same, borrowed.
#[derive(Clone, Copy, Hash)]
pub(crate) struct QueueRef<'a> {
    pub(crate) group: &'a str,
    pub(crate) topic: &'a str,
    pub(crate) queue_id: i32,
}

impl Equivalent<QueueName> for QueueRef<'_> {
    fn equivalent(&self, name: &QueueName) -> bool {
        self.queue_id == name.queue_id && *self.topic == *name.topic && *self.group == *name.group
    }
}

/// One pop of one queue. Clients carry pop time and start in their handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LeaseId {
    pub(crate) queue: PopQueue,
    /// In milliseconds.
    pub(crate) pop_time: i64,
    /// Queue offset at which the pop began to read.
    pub(crate) start: u64,
}

/// Messages that somebody has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    /// When it is over, in milliseconds.
    pub(crate) until: i64,
    /// The revive queue that the client's handle names; Apache looks there.
    pub(crate) revive_qid: u16,
    /// What comes again was put off, not failed: it does not count as a try.
    pub(crate) is_suspended: bool,
    /// Messages that are not done with, by their place.
    left: u32,
    count: u8,
    /// Distances of the messages from the start; `None`: they follow each other from the start on.
    distances: Option<Box<[u32]>>,
    is_ending: bool,
}

impl Lease {
    /// `offsets` rise from `start` on, and are at most [`LEASE_MESSAGES_MAX`].
    pub(crate) fn new(start: u64, offsets: &[u64], until: i64, revive_qid: u16) -> Option<Lease> {
        if offsets.is_empty() || offsets.len() > LEASE_MESSAGES_MAX {
            return None;
        }
        let distance = |offset: &u64| offset.checked_sub(start).and_then(|distance| u32::try_from(distance).ok());
        let distances: Vec<u32> = offsets.iter().map(distance).collect::<Option<_>>()?;
        let is_run = distances.iter().zip(0..).all(|(distance, place)| *distance == place);
        Some(Lease {
            until,
            revive_qid,
            is_suspended: false,
            left: u32::MAX >> (LEASE_MESSAGES_MAX - offsets.len()),
            count: offsets.len() as u8,
            distances: (!is_run).then(|| distances.into_boxed_slice()),
            is_ending: false,
        })
    }

    /// Distances from the start, of all messages.
    pub(crate) fn distances(&self) -> impl Iterator<Item = u32> {
        (0..u32::from(self.count)).map(|place| match &self.distances {
            Some(distances) => distances[place as usize],
            None => place,
        })
    }

    /// Distances from the start, of the messages that are not done with.
    pub(crate) fn open(&self) -> impl Iterator<Item = u32> {
        self.distances().enumerate().filter(|(place, _)| self.left >> place & 1 == 1).map(|(_, distance)| distance)
    }

    /// Bit by place: done with. Apache's `bm`.
    pub(crate) fn done(&self) -> u32 {
        !self.left & u32::MAX >> (LEASE_MESSAGES_MAX - usize::from(self.count))
    }

    /// The bit of an open message. A client names up to 65,536 of them at once, so this is quick to say no.
    fn bit(&self, distance: u64) -> Option<u32> {
        let distance = u32::try_from(distance).ok()?;
        let place = match &self.distances {
            Some(distances) => distances.iter().position(|other| *other == distance)?,
            None => distance as usize,
        };
        let bit = 1u32.checked_shl(u32::try_from(place).ok()?)?;
        (self.left & bit != 0).then_some(bit)
    }

    /// As the journal keeps it: until (8 bytes), revive queue (2), suspended (1), count (1), open messages (4), and distances (4 each)
    /// unless the messages follow each other. Numbers are big-endian.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let (count, messages_max) = (u64::from(self.count), LEASE_MESSAGES_MAX as u64);
        invariant::not_above("messages of a lease", messages_max, count);
        let beyond = u64::from(self.left) >> count;
        invariant::equal("bits of a lease beyond its messages", 0, beyond);
        out.extend_from_slice(&self.until.to_be_bytes());
        out.extend_from_slice(&self.revive_qid.to_be_bytes());
        out.extend_from_slice(&[u8::from(self.is_suspended), self.count]);
        out.extend_from_slice(&self.left.to_be_bytes());
        for distance in self.distances.iter().flatten() {
            out.extend_from_slice(&distance.to_be_bytes());
        }
    }

    /// The reverse of [`Lease::write`].
    pub(crate) fn read(bytes: &[u8]) -> Option<Lease> {
        let (until, rest) = bytes.split_first_chunk::<8>()?;
        let (revive_qid, rest) = rest.split_first_chunk::<2>()?;
        let ([is_suspended, count], rest) = rest.split_first_chunk::<2>()?;
        let (left, rest) = rest.split_first_chunk::<4>()?;
        let (chunks, more) = rest.as_chunks::<4>();
        let is_whole = more.is_empty() && (chunks.is_empty() || chunks.len() == usize::from(*count));
        if !is_whole || *count == 0 || usize::from(*count) > LEASE_MESSAGES_MAX {
            return None;
        }
        Some(Lease {
            until: i64::from_be_bytes(*until),
            revive_qid: u16::from_be_bytes(*revive_qid),
            is_suspended: *is_suspended != 0,
            left: u32::from_be_bytes(*left) & u32::MAX >> (LEASE_MESSAGES_MAX - usize::from(*count)),
            count: *count,
            distances: (!chunks.is_empty()).then(|| chunks.iter().map(|bytes| u32::from_be_bytes(*bytes)).collect()),
            is_ending: false,
        })
    }
}

impl LeaseId {
    /// As the journal keeps it; sorts as the ids do.
    pub(crate) fn to_bytes(self) -> [u8; 20] {
        let mut bytes = [0; 20];
        bytes[..4].copy_from_slice(&self.queue.0.to_be_bytes());
        bytes[4..12].copy_from_slice(&self.pop_time.to_be_bytes());
        bytes[12..].copy_from_slice(&self.start.to_be_bytes());
        bytes
    }

    /// The reverse of [`LeaseId::to_bytes`].
    pub(crate) fn of_bytes(bytes: &[u8]) -> Option<LeaseId> {
        let (queue, rest) = bytes.split_first_chunk::<4>()?;
        let (pop_time, rest) = rest.split_first_chunk::<8>()?;
        Some(LeaseId {
            queue: PopQueue(u32::from_be_bytes(*queue)),
            pop_time: i64::from_be_bytes(*pop_time),
            start: u64::from_be_bytes(rest.try_into().ok()?),
        })
    }

    /// The offset of a message of this lease.
    pub(crate) fn offset(self, distance: u32) -> u64 {
        self.start + u64::from(distance)
    }
}

/// Why there is no lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoLease {
    /// There are as many as there may be.
    Full,
    /// One with this id is there already: the queue was set back within a millisecond.
    Taken,
    /// The queue was forgotten since its number was looked up: its topic or its group is deleted.
    Gone,
}

/// Why an invisible time does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoChange {
    /// The lease does not hold the message, or not any more.
    Unknown,
    /// The message would need one more lease, and there are as many as there may be.
    Full,
}

/// The leases of all groups.
#[derive(Debug)]
pub(crate) struct Ledger {
    numbers: HashMap<QueueName, PopQueue>,
    names: BTreeMap<PopQueue, QueueName>,
    leases: BTreeMap<LeaseId, Lease>,
    /// When leases are over; those that are being given up are not here.
    due: BTreeSet<(i64, LeaseId)>,
    /// Open messages, of queues that have some.
    open: HashMap<PopQueue, usize>,
    /// Queues that somebody is reading for a pop, and whether somebody else waits for that to end.
    claimed: HashMap<PopQueue, bool>,
    next_queue: u32,
}

impl Default for Ledger {
    fn default() -> Ledger {
        Ledger {
            numbers: HashMap::new(),
            names: BTreeMap::new(),
            leases: BTreeMap::new(),
            due: BTreeSet::new(),
            open: HashMap::new(),
            claimed: HashMap::new(),
            next_queue: 1,
        }
    }
}

impl Ledger {
    /// The queue's number, if it was popped before.
    pub(crate) fn find(&self, name: QueueRef<'_>) -> Option<PopQueue> {
        self.numbers.get(&name).copied()
    }

    /// What a number stands for.
    pub(crate) fn name(&self, queue: PopQueue) -> Option<&QueueName> {
        self.names.get(&queue)
    }

    /// A number for a queue that has none.
    pub(crate) fn add(&mut self, name: QueueName) -> PopQueue {
        let queue = PopQueue(self.next_queue);
        self.restore_name(queue, name);
        queue
    }

    /// From the journal.
    pub(crate) fn restore_name(&mut self, queue: PopQueue, name: QueueName) {
        self.next_queue = self.next_queue.max(queue.0.saturating_add(1));
        self.numbers.insert(name.clone(), queue);
        self.names.insert(queue, name);
    }

    /// From the journal.
    pub(crate) fn restore(&mut self, id: LeaseId, lease: Lease) {
        if lease.left == 0 || !self.names.contains_key(&id.queue) {
            return;
        }
        self.insert(id, lease);
    }

    /// From the journal of a master: this number stands for another queue now, or for none.
    pub(crate) fn take_name(&mut self, queue: PopQueue, name: Option<QueueName>) {
        if let Some(before) = self.names.remove(&queue)
            && self.numbers.get(&before) == Some(&queue)
        {
            self.numbers.remove(&before);
        }
        if let Some(name) = name {
            self.restore_name(queue, name);
        }
    }

    /// From the journal of a master: this is the lease now, or it is gone. False if it is of a queue that is not known.
    pub(crate) fn take_lease(&mut self, id: LeaseId, lease: Option<Lease>) -> bool {
        if let Some(before) = self.leases.get_mut(&id) {
            let messages = std::mem::take(&mut before.left).count_ones() as usize;
            self.closed(id, messages);
        }
        let Some(lease) = lease else { return true };
        let is_known = self.names.contains_key(&id.queue);
        self.restore(id, lease);
        is_known
    }

    /// Takes the turn to pop from a queue; false when somebody else has it.
    pub(crate) fn claim(&mut self, queue: PopQueue) -> bool {
        self.claimed.try_insert(queue, false).is_ok()
    }

    /// Ends the turn. Says of which queue, when somebody has missed it in the meantime.
    pub(crate) fn release(&mut self, queue: PopQueue) -> Option<QueueName> {
        let is_missed = self.claimed.remove(&queue)?;
        is_missed.then(|| self.names.get(&queue).cloned()).flatten()
    }

    /// Whether somebody is popping from this queue, for one who waits and would: the end of that turn says so.
    pub(crate) fn miss(&mut self, queue: PopQueue) -> bool {
        let Some(is_missed) = self.claimed.get_mut(&queue) else { return false };
        *is_missed = true;
        true
    }

    /// Gives messages to somebody. There may be `max` leases.
    pub(crate) fn lease(&mut self, id: LeaseId, lease: Lease, max: usize) -> Result<(), NoLease> {
        if !self.names.contains_key(&id.queue) {
            return Err(NoLease::Gone);
        }
        if self.leases.contains_key(&id) {
            return Err(NoLease::Taken);
        }
        if self.leases.len() >= max {
            return Err(NoLease::Full);
        }
        self.insert(id, lease);
        Ok(())
    }

    fn insert(&mut self, id: LeaseId, lease: Lease) {
        *self.open.entry(id.queue).or_default() += lease.left.count_ones() as usize;
        self.due.insert((lease.until, id));
        self.leases.insert(id, lease);
    }

    /// One message is done with. False when this lease does not hold it, or not any more.
    pub(crate) fn ack(&mut self, id: LeaseId, offset: u64) -> bool {
        self.ack_all(id, std::iter::once(offset)).acked > 0
    }

    /// Messages are done with, by one look for their lease.
    pub(crate) fn ack_all(&mut self, id: LeaseId, offsets: impl Iterator<Item = u64>) -> Counts {
        let Some(lease) = self.leases.get_mut(&id).filter(|lease| !lease.is_ending) else {
            return Counts { acked: 0, unknown: offsets.count() };
        };
        let mut counts = Counts { acked: 0, unknown: 0 };
        for offset in offsets {
            match offset.checked_sub(id.start).and_then(|distance| lease.bit(distance)) {
                Some(bit) => {
                    lease.left &= !bit;
                    counts.acked += 1;
                }
                None => counts.unknown += 1,
            }
        }
        if counts.acked > 0 {
            self.closed(id, counts.acked);
        }
        counts
    }

    /// Moves one message to a lease of its own. There may be `max` leases: with as many, only the last message of one moves.
    pub(crate) fn change(
        &mut self,
        id: LeaseId,
        offset: u64,
        change: &Change,
        max: usize,
    ) -> Result<LeaseId, NoChange> {
        let lease = self.leases.get(&id).filter(|lease| !lease.is_ending).ok_or(NoChange::Unknown)?;
        offset.checked_sub(id.start).and_then(|distance| lease.bit(distance)).ok_or(NoChange::Unknown)?;
        if lease.left.count_ones() > 1 && self.leases.len() >= max {
            return Err(NoChange::Full);
        }
        let revive_qid = lease.revive_qid;
        // Behind the old one, also when the clock was set back: who looks through all leases in turn must not miss the message between two looks.
        let mut new =
            LeaseId { queue: id.queue, pop_time: change.now.max(id.pop_time.saturating_add(1)), start: offset };
        // The old handle must not fit the new lease. Ends at the first millisecond that is free.
        while self.leases.contains_key(&new) {
            new.pop_time += 1;
        }
        let until = change.now.saturating_add(change.invisible_ms);
        let lease = Lease::new(offset, &[offset], until, revive_qid).ok_or(NoChange::Unknown)?;
        self.insert(new, Lease { is_suspended: change.is_suspended, ..lease });
        self.ack(id, offset);
        Ok(new)
    }

    /// After bits were cleared, as many as `messages`.
    fn closed(&mut self, id: LeaseId, messages: usize) {
        if let Some(open) = self.open.get_mut(&id.queue) {
            *open = open.saturating_sub(messages);
            if *open == 0 {
                self.open.remove(&id.queue);
            }
        }
        if let Some(lease) = self.leases.get(&id).filter(|lease| lease.left == 0) {
            self.due.remove(&(lease.until, id));
            self.leases.remove(&id);
        }
    }

    /// Leases that are over now, oldest first, with up to `messages` open messages and one lease at least. They are being given up until
    /// [`Ledger::settle`] or [`Ledger::put_off`].
    pub(crate) fn take_due(&mut self, now: i64, messages: usize, out: &mut Vec<LeaseId>) {
        let mut taken = 0;
        while let Some((until, id)) = self.due.first().copied() {
            if until > now || taken >= messages {
                return;
            }
            self.due.pop_first();
            if let Some(lease) = self.leases.get_mut(&id) {
                lease.is_ending = true;
                taken += lease.left.count_ones() as usize;
                out.push(id);
            }
        }
    }

    /// The clock was set back by so much, and shows this now: leases that were given out by the clock as it was end as much earlier. One that was changed
    /// since ends by the clock of now. Looks at up to `count` leases behind `after`; says which was the last of them, and adds those that have changed.
    pub(crate) fn set_back(
        &mut self,
        after: Option<LeaseId>,
        count: usize,
        (by, now): (i64, i64),
        changed: &mut Vec<LeaseId>,
    ) -> Option<LeaseId> {
        let page: Vec<(LeaseId, i64)> = self
            .page(after, count)
            .map(|(id, lease)| (id, if lease.is_ending { i64::MIN } else { lease.until }))
            .collect();
        for (id, until) in &page {
            if id.pop_time > now && *until > id.pop_time {
                self.put_off(*id, until.saturating_sub(by).max(now));
                changed.push(*id);
            }
        }
        page.last().map(|(id, _)| *id)
    }

    /// One message of a lease that is being given up is its group's again.
    pub(crate) fn settle(&mut self, id: LeaseId, offset: u64) {
        let Some(lease) = self.leases.get_mut(&id) else { return };
        let Some(bit) = offset.checked_sub(id.start).and_then(|distance| lease.bit(distance)) else { return };
        lease.left &= !bit;
        self.closed(id, 1);
    }

    /// Giving up did not succeed: what is left of the lease stays until then.
    pub(crate) fn put_off(&mut self, id: LeaseId, until: i64) {
        if let Some(lease) = self.leases.get_mut(&id) {
            self.due.remove(&(lease.until, id));
            lease.until = until;
            lease.is_ending = false;
            self.due.insert((until, id));
        }
    }

    /// Gives up messages at the end of their queue and behind it, which a crash has taken: others get their numbers. `end_of`: the end of a queue;
    /// none of those that are not to be looked at. Says which leases have changed.
    pub(crate) fn cut(&mut self, end_of: impl Fn(&QueueName) -> Option<u64>) -> Vec<LeaseId> {
        let ends: BTreeMap<PopQueue, u64> =
            self.names.iter().filter_map(|(queue, name)| Some((*queue, end_of(name)?))).collect();
        let gone = |(id, lease): (&LeaseId, &Lease)| {
            let end = ends.get(&id.queue)?;
            let offsets: Vec<u64> = lease.open().map(|place| id.offset(place)).filter(|offset| offset >= end).collect();
            (!offsets.is_empty()).then_some((*id, offsets))
        };
        let gone: Vec<(LeaseId, Vec<u64>)> = self.leases.iter().filter_map(gone).collect();
        for (id, offsets) in &gone {
            offsets.iter().for_each(|offset| self.settle(*id, *offset));
        }
        gone.into_iter().map(|(id, _)| id).collect()
    }

    /// A lease.
    pub(crate) fn get(&self, id: LeaseId) -> Option<&Lease> {
        self.leases.get(&id)
    }

    /// When the next lease is over.
    pub(crate) fn next_due(&self) -> Option<i64> {
        self.due.first().map(|(until, _)| *until)
    }

    /// Messages of a queue that somebody has.
    pub(crate) fn open_messages(&self, queue: PopQueue) -> usize {
        self.open.get(&queue).copied().unwrap_or(0)
    }

    /// The message of a queue that somebody has had for longest.
    pub(crate) fn oldest_open(&self, queue: PopQueue) -> Option<u64> {
        let first = LeaseId { queue, pop_time: i64::MIN, start: 0 };
        let of_queue = self.leases.range(first..).take_while(|(id, _)| id.queue == queue);
        // Leases that are done with are not kept.
        of_queue.take(1).find_map(|(id, lease)| Some(id.offset(lease.open().next()?)))
    }

    /// The lowest open message of each queue, among up to `count` leases behind `after`. Says which lease was the last of them; none: there are no more.
    pub(crate) fn lowest_open(
        &self,
        after: Option<LeaseId>,
        count: usize,
        lowest: &mut BTreeMap<PopQueue, u64>,
    ) -> Option<LeaseId> {
        let mut last = None;
        for (id, lease) in self.page(after, count) {
            last = Some(id);
            // Distances rise.
            if let Some(offset) = lease.open().next().map(|first| id.offset(first)) {
                let found = lowest.entry(id.queue).or_insert(offset);
                *found = offset.min(*found);
            }
        }
        last
    }

    /// When the latest of the leases was given out. One whose time is changed is named by a later time than it has.
    pub(crate) fn latest_pop(&self) -> Option<i64> {
        self.leases.iter().filter(|(id, lease)| lease.until > id.pop_time).map(|(id, _)| id.pop_time).max()
    }

    /// How many leases there are.
    pub(crate) fn len(&self) -> usize {
        self.leases.len()
    }

    /// Up to `count` leases behind `after`, in order.
    pub(crate) fn page(&self, after: Option<LeaseId>, count: usize) -> impl Iterator<Item = (LeaseId, &Lease)> {
        use std::ops::Bound;
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.leases.range((from, Bound::Unbounded)).map(|(id, lease)| (*id, lease)).take(count)
    }

    /// All names.
    pub(crate) fn names(&self) -> impl Iterator<Item = (PopQueue, &QueueName)> {
        self.names.iter().map(|(queue, name)| (*queue, name))
    }

    /// Forgets queues and their leases; says which.
    pub(crate) fn forget(&mut self, is_gone: impl Fn(&QueueName) -> bool) -> (Vec<PopQueue>, Vec<LeaseId>) {
        let queues: Vec<PopQueue> =
            self.names.iter().filter(|(_, name)| is_gone(name)).map(|(queue, _)| *queue).collect();
        let mut ids = Vec::new();
        for queue in &queues {
            let from = LeaseId { queue: *queue, pop_time: i64::MIN, start: 0 };
            ids.extend(self.leases.range(from..).map(|(id, _)| *id).take_while(|id| id.queue == *queue));
            if let Some(name) = self.names.remove(queue) {
                self.numbers.remove(&name);
            }
            self.open.remove(queue);
        }
        for id in &ids {
            if let Some(lease) = self.leases.remove(id) {
                self.due.remove(&(lease.until, *id));
            }
        }
        (queues, ids)
    }
}

/// What became of acknowledgements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Messages that are done with.
    pub(crate) acked: usize,
    /// Those that the lease does not hold, or not any more.
    pub(crate) unknown: usize,
}

/// How an invisible time changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    /// In milliseconds.
    pub(crate) now: i64,
    /// From now on.
    pub(crate) invisible_ms: i64,
    /// See [`Lease::is_suspended`].
    pub(crate) is_suspended: bool,
}

#[cfg(test)]
mod tests;
