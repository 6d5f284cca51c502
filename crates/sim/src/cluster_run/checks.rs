//! What has to be true of logs, reports, counts and queues.

use std::collections::BTreeSet;

use protocol::LogOffset;
use protocol::record::{self, Scanned};

use super::{Message, NAMES, Run, TOPICS};
use crate::log_run::body;
use crate::reading;
use crate::verdict::Verdict;

/// Bytes that are compared at once.
const COMPARED: usize = 16 << 10;

impl Run<'_> {
    /// The messages in the log of a broker, each of which is one that was sent, at its place.
    fn walk(&mut self, number: usize) -> anyhow::Result<Vec<u64>> {
        let side = &self.nodes[number].side;
        let _in_charge = side.world.turns.enter();
        let store = side.store()?;
        let (mut at, end) = (store.min_offset(), store.written().get());
        let mut ids = Vec::new();
        while at.0 < end {
            let Some(slice) = store.raw_bytes(at, usize::MAX)? else { break };
            let mut rest = slice.as_ref();
            while !rest.is_empty() {
                let place = at.0 + (slice.as_ref().len() - rest.len()) as u64;
                let bytes = match record::scan(rest, true) {
                    Ok(Scanned::Record(view)) => {
                        let id = reading::id_of(view.body());
                        let known = self.messages.get(&id);
                        let is_right = known.is_some_and(|message| {
                            message.at == place && view.log_offset() == place && view.body() == body(id, message.bytes)
                        });
                        if !is_right {
                            let what = format!("the {} has at {place} message {id}: {known:?}", NAMES[number]);
                            self.report.find(Verdict::Foreign, what);
                            return Ok(ids);
                        }
                        ids.push(id);
                        view.total_size()
                    }
                    Ok(Scanned::Blank { bytes }) => bytes,
                    Ok(Scanned::Nothing) | Err(_) => {
                        let what = format!("the {} has no record at {place}, its log ends at {end}", NAMES[number]);
                        self.report.find(Verdict::Foreign, what);
                        return Ok(ids);
                    }
                };
                rest = rest.get(bytes..).unwrap_or(&[]);
            }
            at.0 += slice.as_ref().len() as u64;
        }
        if at.0 < end {
            let what = format!("the log of the {} ends at {end}, and cannot be read at {}", NAMES[number], at.0);
            self.report.find(Verdict::Lost, what);
        }
        Ok(ids)
    }

    /// What the master's log has is what slaves have to get.
    pub(super) fn know_truth(&mut self) -> anyhow::Result<()> {
        self.truth = self.walk(self.master)?;
        let place = |id: &u64| self.messages.get(id).map(|message| (message.at, message.end));
        self.records = self.truth.iter().filter_map(place).collect();
        Ok(())
    }

    /// After a start: what the log of a slave has lost it need not have any more. That it may lose so much is looked at before.
    pub(super) fn what_is_left_of(&mut self, number: usize) -> anyhow::Result<()> {
        let ids: BTreeSet<u64> = self.walk(number)?.into_iter().collect();
        let min = self.nodes[number].side.store()?.min_offset().0;
        let bit = self.nodes[number].bit();
        for (id, message) in &mut self.messages {
            if message.at >= min && !ids.contains(id) {
                message.holds &= !bit;
            }
        }
        Ok(())
    }

    /// A report has come to the master.
    pub(super) fn reported(&mut self, slave: usize, life: u32, to: LogOffset) {
        let node = &self.nodes[slave];
        // What came late may be of a process that had what is lost now.
        let (bit, counts) = (node.bit(), life == node.life);
        for id in self.truth.iter().rev() {
            let Some(message) = self.messages.get_mut(id).filter(|message| message.end <= to.0) else { continue };
            if message.reported & bit != 0 && (message.holds & bit != 0 || !counts) {
                break;
            }
            message.reported |= bit;
            message.holds |= if counts { bit } else { 0 };
        }
    }

    /// What the master counts as the place that so many slaves have, so many have.
    pub(super) fn check_positions(&mut self) {
        let slaves = &self.nodes[self.master].slaves;
        for count in 1..=self.nodes.len() {
            let Some(position) = slaves.position(count) else { continue };
            let below = self.records.partition_point(|(_, end)| *end <= position.0);
            let last = below.checked_sub(1).and_then(|last| self.truth.get(last));
            let Some(message) = last.and_then(|id| self.messages.get(id)) else { continue };
            if (message.reported.count_ones() as usize) < count {
                let what = format!("the master counts {count} slaves up to {}, and {message:?}", position.0);
                self.report.find(Verdict::Lost, what);
            }
        }
    }

    /// Compares the logs of the master and a slave, from and up to log offsets that both have if the slave's is a copy. Says up to where they
    /// are the same.
    fn same(&mut self, slave: usize, from: u64, to: u64) -> anyhow::Result<u64> {
        let (master, slave) = (&self.nodes[self.master].side, &self.nodes[slave].side);
        let (one, other) = (master.store()?, slave.store()?);
        let _in_charge = master.world.turns.enter();
        let mut at = LogOffset(from);
        // Each turn compares a piece, or is the last.
        while at.0 < to {
            let max = COMPARED.min((to - at.0) as usize);
            let (left, right) = (one.raw_bytes(at, max)?, other.raw_bytes(at, max)?);
            let (Some(left), Some(right)) = (left, right) else { break };
            // Files may have other sizes.
            let bytes = left.as_ref().len().min(right.as_ref().len());
            if left.as_ref()[..bytes] != right.as_ref()[..bytes] {
                let (from, to) = (at.0, at.0 + bytes as u64);
                let what = format!("the log of the {} and the master's differ between {from} and {to}", slave.name);
                self.report.find(Verdict::Differs, what);
                return Ok(at.0);
            }
            at.0 += bytes as u64;
        }
        if at.0 < to {
            let what = format!("the {} has the log up to {to}, and the master not from {} on", slave.name, at.0);
            self.report.find(Verdict::Differs, what);
        }
        Ok(at.0)
    }

    /// Compares what has come since to slaves that follow, and what others have as far as they have not parted.
    pub(super) fn compare(&mut self) -> anyhow::Result<()> {
        for slave in 0..self.nodes.len() {
            let master = &self.nodes[self.master];
            if !master.is_up() || master.side.has_crashed() {
                return Ok(());
            }
            let node = &self.nodes[slave];
            if slave == self.master || !node.is_up() || node.side.has_crashed() || !self.report.is_well() {
                continue;
            }
            // A connection to a process of the master that has crashed says nothing.
            let Some(link) = node.began.filter(|link| master.feeds.iter().any(|feed| feed.link == *link)) else {
                continue;
            };
            // When they have just agreed, all is looked at.
            let same_to = node.agreed.filter(|(known, _)| *known == link).map_or(0, |(_, same_to)| same_to);
            let to = node.side.store()?.written().get();
            let min = node.side.store()?.min_offset().max(master.side.store()?.min_offset()).0;
            let same_to = self.same(slave, same_to.max(min), to)?;
            let node = &mut self.nodes[slave];
            (node.agreed, node.common) = (Some((link, same_to)), u64::MAX);
        }
        Ok(())
    }

    /// Looks at a broker that is up: its log is that of the master as far as it has not parted from it, and its queues show what the log has.
    pub(super) fn look(&mut self, number: usize) -> anyhow::Result<()> {
        if !self.nodes[number].is_up() || self.nodes[number].side.has_crashed() {
            return Ok(());
        }
        let ids = self.walk(number)?;
        let master = &self.nodes[self.master].side;
        if number != self.master && master.store.is_some() && !master.has_crashed() {
            let (one, other) = (master.store()?, self.nodes[number].side.store()?);
            let from = one.min_offset().max(other.min_offset()).0;
            let to = one.written().get().min(other.written().get()).min(self.nodes[number].common);
            self.same(number, from, to)?;
        }
        self.check_file_sizes(number)?;
        if self.report.is_well() {
            self.look_at_queues(number, &ids)?;
        }
        Ok(())
    }

    /// A slave whose files have another size has not come beyond the first end of a file.
    fn check_file_sizes(&mut self, number: usize) -> anyhow::Result<()> {
        let (one, other) = (&self.nodes[self.master].side.options, &self.nodes[number].side.options);
        let (bytes, least) = (one.segment_bytes, one.segment_bytes.min(other.segment_bytes));
        let store = self.nodes[number].side.store()?;
        let (min, end) = (store.min_offset().0, store.end().0);
        if other.segment_bytes != bytes && end > (min / least + 1) * least {
            let what = format!("the {} follows a log with other files from {min} to {end}", NAMES[number]);
            self.report.find(Verdict::Differs, what);
        }
        Ok(())
    }

    /// Queues show each message of the log once, in order and under the number that it was stored with.
    fn look_at_queues(&mut self, number: usize, ids: &[u64]) -> anyhow::Result<()> {
        let node = &mut self.nodes[number];
        let _in_charge = node.side.world.turns.enter();
        let store = node.side.store()?;
        node.gone = node.gone.max(store.min_offset().0);
        let (gone, confirmed) = (node.gone, store.confirmed().get());
        let mut shown = BTreeSet::new();
        for (topic, name) in TOPICS.iter().enumerate() {
            for (queue_id, queue) in store.queues_of(name) {
                let mut last = None;
                for seen in reading::read(store, &queue, self.report) {
                    let at =
                        format!("{name}/{queue_id} of the {} at {}: message {}", NAMES[number], seen.offset, seen.id);
                    let known = self.messages.get(&seen.id);
                    let Some(message) = known.filter(|message| seen.body == body(seen.id, message.bytes)) else {
                        self.report.find(Verdict::Foreign, format!("{at} is none that was sent"));
                        continue;
                    };
                    let Message { topic: of, queue, offset, .. } = *message;
                    if (of, queue, offset) != (topic, queue_id, seen.offset) || last.is_some_and(|last| last >= offset)
                    {
                        self.report.find(Verdict::Unordered, format!("{at} was stored as {message:?}"));
                    }
                    if !shown.insert(seen.id) {
                        self.report.find(Verdict::Duplicate, at);
                    }
                    last = Some(offset);
                }
            }
        }
        let missing = ids.iter().find(|id| {
            let message = &self.messages[*id];
            message.at >= gone && message.end <= confirmed && !shown.contains(*id)
        });
        if let Some(id) = missing {
            let message = &self.messages[id];
            let queue = store.existing_queue(TOPICS[message.topic], message.queue);
            let bounds = queue.map(|queue| queue.min_offset()..queue.max_offset());
            let min = store.min_offset().0;
            let what = format!(
                "the {} has message {id} and does not show it: {message:?}, in a queue of {bounds:?}; the log begins at {min}, once at {gone}",
                NAMES[number]
            );
            self.report.find(Verdict::Lost, what);
        }
        self.report.mix(shown.len() as u64);
        Ok(())
    }

    /// The new master has what one of the survivors has reported. What nobody has any more is forgotten.
    pub(super) fn check_survival(&mut self, survivors: u32) -> anyhow::Result<()> {
        let min = self.nodes[self.master].side.store()?.min_offset().0;
        let there: BTreeSet<u64> = self.truth.iter().copied().collect();
        let is_missing = |(id, message): &(&u64, &Message)| {
            message.holds & survivors != 0 && message.at >= min && !there.contains(*id)
        };
        if let Some((id, message)) = self.messages.iter().find(is_missing) {
            let what = format!("message {id} was reported and is not there after a promotion: {message:?}");
            self.report.find(Verdict::Lost, what);
        }
        let master = self.nodes[self.master].bit();
        for (id, message) in &mut self.messages {
            message.holds &= if there.contains(id) { !master } else { 0 };
        }
        Ok(())
    }

    /// Whether all slaves have the log, and the master knows.
    pub(super) fn is_settled(&self) -> bool {
        let master = &self.nodes[self.master];
        let Some(store) = master.side.store.as_ref().filter(|_| !master.side.has_crashed()) else { return false };
        let end = store.end().0;
        let has_all = |number: usize| {
            let node = &self.nodes[number];
            let to = node.side.store.as_ref().map(|store| store.written().get());
            number == self.master || node.agreed.is_some() && to == Some(end)
        };
        (0..self.nodes.len()).all(has_all)
            && master.slaves.position(self.nodes.len() - 1).is_some_and(|position| position.0 == end)
    }

    /// For people.
    pub(super) fn why_not_settled(&self) -> String {
        let ends = self.nodes.iter().map(|node| {
            let end = node.side.store.as_ref().map(|store| store.end().0);
            let failure = node.following.as_ref().and_then(|following| following.failure.as_ref());
            let failure = failure.map(ToString::to_string).unwrap_or_default();
            format!("the {} is at {end:?}, agreed {:?} {failure}", NAMES[node.number], node.agreed)
        });
        let position = self.nodes[self.master].slaves.position(self.nodes.len() - 1);
        format!("{}; the master counts {position:?}", ends.collect::<Vec<_>>().join("; "))
    }
}
