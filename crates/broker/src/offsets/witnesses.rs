//! Which clients have missed nothing behind the end that a crash left of a queue.
//!
//! Several clients of a group may be at one queue soon after a start, since they learn of each other one by one: one that was ahead of what the crash
//! left and still has the queue, and one that takes it and reads on from its end. That the second one misses nothing says nothing about the
//! first: what it commits stands for lost messages, and the new ones under their numbers would be passed over by whoever comes next. So each
//! connection has to show that it knows: it asked where the group is (14), or pulled at the end or before it. Others are told, and what they
//! commit behind the end does not count.
//!
//! Nobody holds on for longer to a place from before the crash than [`KNOWN`]; after it nothing is looked at any more.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;

use super::notice::Notice;
use super::{Entry, Offsets, index, set};

/// A client that does not pull for so long has lost its queues to others of its group (`channelExpiredTimeout` is two minutes).
const KNOWN: Duration = Duration::from_secs(300);
/// Beyond so many a queue's end is forgotten with the first pull that is not behind it.
const WITNESSES_MAX: usize = 100_000;

/// A client, and where it is: the address of the entry, and the queue.
type Witness = (By, usize, i32);

/// By what a client is known.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum By {
    /// Some client.
    Any,
    Connection(u64),
    Name(Arc<str>),
}

/// Who asks.
#[derive(Clone, Copy)]
pub(crate) struct Asker<'a> {
    /// The connection's number.
    pub(crate) connection: u64,
    /// The name of the client, if it is known by now. Only asked for while a crash's ends are remembered.
    pub(crate) name: &'a dyn Fn() -> Option<Arc<str>>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Witnesses {
    /// Guards nothing else; nothing is taken inside. Only touched while a crash's ends are remembered.
    known: Mutex<HashSet<Witness>>,
    /// By the clock's `elapsed`; none without a crash.
    until: OnceLock<Duration>,
}

impl Offsets {
    /// A start has set ends.
    pub(super) fn remember_ends(&self) {
        let _ = self.witnesses.until.set(self.clock.elapsed() + KNOWN);
    }

    /// Whether a crash was before this start.
    fn has_ends(&self) -> bool {
        self.witnesses.until.get().is_some()
    }

    /// The end that a crash left, as long as it counts.
    fn end(&self, entry: &Entry, queue_id: i32) -> Option<i64> {
        let Notice::Ended(end) = entry.peek(index(queue_id)?, |slot| slot.pending.get())? else { return None };
        let is_over = self.witnesses.until.get().is_none_or(|until| self.clock.elapsed() >= *until);
        if is_over {
            self.witnesses.known.lock().clear();
            self.forget_end(&entry.key.group, &entry.key.topic, queue_id);
        }
        (!is_over).then_some(end)
    }

    fn is_witness(&self, client: Asker<'_>, entry: &Entry, queue_id: i32) -> bool {
        let by_connection = witness(By::Connection(client.connection), entry, queue_id);
        let by_name = (client.name)().map(|name| witness(By::Name(name), entry, queue_id));
        let mut known = self.witnesses.known.lock();
        if !known.contains(&by_connection) {
            return by_name.is_some_and(|by_name| known.contains(&by_name));
        }
        if let Some(by_name) = by_name.filter(|_| known.len() < WITNESSES_MAX) {
            // It had not said it when it was noted.
            known.insert(by_name);
        }
        true
    }

    fn add_witness(&self, client: Asker<'_>, entry: &Entry, queue_id: i32) {
        let by_name = (client.name)().map(By::Name);
        let mut known = self.witnesses.known.lock();
        if known.len() + 3 <= WITNESSES_MAX {
            let all = [Some(By::Any), Some(By::Connection(client.connection)), by_name];
            known.extend(all.into_iter().flatten().map(|by| witness(by, entry, queue_id)));
            return;
        }
        drop(known);
        self.forget_end(&entry.key.group, &entry.key.topic, queue_id);
    }

    /// A client was told where the group is.
    pub(crate) fn was_told(&self, client: Asker<'_>, group: &str, topic: &str, queue_id: i32) {
        if self.has_ends()
            && let Some(entry) = self.existing(group, topic)
            && self.end(&entry, queue_id).is_some()
        {
            self.add_witness(client, &entry, queue_id);
        }
    }

    /// Where the pull of a client at `asked` is to go on instead: see [`Offsets::take_pending_reset`].
    pub(crate) fn tell(&self, client: Asker<'_>, group: &str, topic: &str, queue_id: i32, asked: i64) -> Option<i64> {
        let entry = self.has_ends().then(|| self.existing(group, topic)).flatten();
        let ended = entry.and_then(|entry| Some((self.end(&entry, queue_id)?, entry)));
        let Some((end, entry)) = ended else { return self.take_pending_reset(group, topic, queue_id, asked) };
        if asked <= end {
            self.add_witness(client, &entry, queue_id);
            return None;
        }
        // Who has not said his name yet is most likely one that lost its connection, once somebody reads on there: he is told when he has said it, if
        // he is not. Until then he commits nothing behind the end.
        let is_unknown = (client.name)().is_none();
        let is_let_be = || is_unknown && self.witnesses.known.lock().contains(&witness(By::Any, &entry, queue_id));
        (!self.is_witness(client, &entry, queue_id) && !is_let_be()).then_some(end)
    }

    /// Whether a commit of this client would be passed over.
    pub(crate) fn passes_over(&self, client: Asker<'_>, group: &str, topic: &str, queue_id: i32, offset: i64) -> bool {
        let entry = self.has_ends().then(|| self.existing(group, topic)).flatten();
        match entry.and_then(|entry| Some((self.end(&entry, queue_id)?, entry))) {
            Some((end, entry)) => offset > end && !self.is_witness(client, &entry, queue_id),
            None => self.is_passed_over(group, topic, queue_id, offset),
        }
    }

    /// What a client commits: see [`Offsets::commit`].
    pub(crate) fn commit_of(&self, client: Asker<'_>, group: &str, topic: &str, queue_id: i32, offset: i64) {
        let entry = self.has_ends().then(|| self.existing(group, topic)).flatten();
        let ended = entry.filter(|entry| self.end(entry, queue_id).is_some());
        let Some(entry) = ended else { return self.commit(group, topic, queue_id, offset) };
        let Some(queue) = index(queue_id).filter(|_| offset >= 0) else { return };
        if !self.passes_over(client, group, topic, queue_id, offset) && entry.with(queue, |slot| set(slot, offset)) {
            self.is_news(&entry);
        }
    }
}

fn witness(by: By, entry: &Entry, queue_id: i32) -> Witness {
    (by, std::ptr::from_ref(entry) as usize, queue_id)
}

#[cfg(test)]
mod tests {
    use env::{Clock, TimeMs};

    use super::super::after_loss::tests::cut_at;
    use super::*;

    fn named(connection: u64, name: &dyn Fn() -> Option<Arc<str>>) -> Asker<'_> {
        Asker { connection, name }
    }

    #[test]
    fn who_was_ahead_commits_nothing_though_another_client_of_the_group_reads_on_from_the_end() {
        let (clock, hand) = Clock::manual(TimeMs(1_800_000_000_000));
        let offsets = Offsets::new(clock);
        offsets.commit("G", "T", 0, 95);
        cut_at(&offsets, 100);
        let [one, two, three] = ["one", "two", "three"].map(|name| move || Some(Arc::from(name)));
        let (one, two, three) = (named(1, &one), named(2, &two), named(3, &three));
        // The first had come to 103 and says so when it gives the queue up; the second takes it.
        offsets.was_told(two, "G", "T", 0);
        assert_eq!(offsets.tell(two, "G", "T", 0, 95), None);
        assert!(offsets.passes_over(one, "G", "T", 0, 103));
        offsets.commit_of(one, "G", "T", 0, 103);
        assert_eq!(offsets.committed("G", "T", 0), Some(95));
        assert_eq!(offsets.tell(one, "G", "T", 0, 103), Some(100));
        // The second has read the new ones.
        assert_eq!(offsets.tell(two, "G", "T", 0, 102), None);
        offsets.commit_of(two, "G", "T", 0, 102);
        assert_eq!(offsets.committed("G", "T", 0), Some(102));
        // The first goes on where it was told to.
        assert_eq!(offsets.tell(one, "G", "T", 0, 100), None);
        offsets.commit_of(one, "G", "T", 0, 104);
        assert_eq!(offsets.committed("G", "T", 0), Some(104));
        assert_eq!(offsets.tell(three, "G", "T", 0, 110), Some(100), "it knows nothing of it");
        hand.advance(KNOWN);
        assert_eq!(offsets.tell(three, "G", "T", 0, 110), None);
        offsets.commit_of(three, "G", "T", 0, 110);
        assert_eq!(offsets.committed("G", "T", 0), Some(110));
        assert!(offsets.witnesses.known.lock().is_empty());
    }

    #[test]
    fn a_client_that_was_told_is_left_alone_also_by_another_connection() {
        let offsets = Offsets::new(Clock::real());
        offsets.commit("G", "T", 0, 95);
        cut_at(&offsets, 100);
        let (nobody, one) = (|| None, || Some(Arc::from("one")));
        assert_eq!(offsets.tell(named(1, &nobody), "G", "T", 0, 105), Some(100), "nobody has read on there");
        // It says its name only then.
        offsets.was_told(named(1, &nobody), "G", "T", 0);
        assert_eq!(offsets.tell(named(1, &one), "G", "T", 0, 105), None);
        assert_eq!(offsets.tell(named(2, &nobody), "G", "T", 0, 105), None, "it may be the same");
        assert!(offsets.passes_over(named(2, &nobody), "G", "T", 0, 105), "and may not");
        assert_eq!(offsets.tell(named(2, &one), "G", "T", 0, 105), None);
        assert!(!offsets.passes_over(named(2, &one), "G", "T", 0, 105));
    }
}
