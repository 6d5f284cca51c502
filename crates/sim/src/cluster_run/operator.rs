//! What an operator does: promotes a slave when the master is dead for good, and has a broker copy the log anew that cannot follow.

use replica::follow::deciding::Failure;
use store::{CopyError, Misfit};

use super::following::{Following, is_for_operators, is_of_file_size, is_removed};
use super::node::Node;
use super::{Lie, NAMES, Run, TOPICS};
use crate::side::Side;
use crate::verdict::Verdict;

/// An operator looks after so many ms.
const LOOKS_AFTER: u64 = 5_000;

impl Run<'_> {
    /// Slaves that may be promoted: they follow, or would if the master were there. If there is none, those that have refused the master.
    pub(super) fn candidates(&self) -> (Vec<usize>, bool) {
        let segment_bytes = self.nodes[self.master].side.options.segment_bytes;
        let may = |node: &&Node| {
            node.number != self.master
                && node.is_up()
                && !node.side.has_crashed()
                && node.side.options.segment_bytes == segment_bytes
                && self.knows_numbers(node)
        };
        let numbers = |is_refused: bool| {
            let fits = |node: &&Node| {
                // One that was down has not refused it yet, and would.
                let has_parted = node.side.store.as_ref().is_some_and(|store| store.end().0 > node.common);
                let has_refused = node.following.as_ref().is_none_or(|following| following.refused_at.is_some());
                (has_parted || has_refused) == is_refused
            };
            self.nodes.iter().filter(may).filter(fits).map(|node| node.number).collect::<Vec<_>>()
        };
        let following = numbers(false);
        if following.is_empty() { (numbers(true), true) } else { (following, false) }
    }

    /// Whether a slave can go on with the numbers of all queues. Neither the plain stream nor a table says where a queue ends: one that has no
    /// message in a copy which begins above 0 would begin anew with 0, and so hide its older messages on a slave that has them.
    fn knows_numbers(&self, node: &Node) -> bool {
        let Some(store) = &node.side.store else { return false };
        let end = store.end().0;
        self.messages.values().filter(|message| message.end <= end).all(|message| {
            let queue = store.existing_queue(TOPICS[message.topic], message.queue);
            queue.is_some_and(|queue| queue.max_offset() > 0)
        })
    }

    /// Promotes the slave with the longest log. The master is down, and comes back as a slave. False: there is none.
    pub(super) fn promote(&mut self) -> anyhow::Result<bool> {
        let (candidates, is_refused) = self.candidates();
        let end = |number: &usize| self.nodes[*number].side.store.as_ref().map_or(0, |store| store.written().get());
        let Some(chosen) = candidates.iter().copied().max_by_key(end).filter(|chosen| end(chosen) > 0) else {
            return Ok(false);
        };
        let old = self.master;
        self.nodes[old].down_until = Some(self.now + 1_000 + u64::from(self.dice.below(20_000)));
        if self.one_in(2) {
            self.wipe(old)?;
        }
        // A slave that has refused the master knows of its own log only.
        let survivors = if is_refused { vec![chosen] } else { candidates };
        self.switch_to(chosen, &survivors)?;
        Ok(true)
    }

    /// Makes the chosen slave the master. What one of the survivors has reported has to be there.
    fn switch_to(&mut self, chosen: usize, survivors: &[usize]) -> anyhow::Result<()> {
        let begun = self.nodes[chosen].following.as_ref().and_then(Following::begun_record);
        self.report.tell(|| format!("the {} is promoted", NAMES[chosen]));
        let survivors = survivors.iter().fold(0, |bits, number| bits | self.nodes[*number].bit());
        let closes = self.one_in(2);
        let node = &mut self.nodes[chosen];
        if !closes {
            node.side.how = crate::disk::Crash::Killed;
        }
        node.side.world.disk.crash_in(u64::MAX / 2, crate::disk::Crash::Killed);
        let was_calm = std::mem::replace(&mut node.side.is_calm, true);
        // Power may fail after a stop as well, which has brought all to the device.
        self.end(chosen, closes)?;
        let differs_from = self.nodes[chosen].common;
        self.master = chosen;
        self.start(chosen)?;
        self.nodes[chosen].side.is_calm = was_calm;
        if !self.report.is_well() {
            return Ok(());
        }
        let end = self.nodes[chosen].side.store()?.end().0;
        for node in &mut self.nodes {
            node.common = node.common.min(differs_from).min(end);
        }
        self.nodes[chosen].common = u64::MAX;
        self.check_survival(survivors)?;
        if self.lie == Some(Lie::IncompleteRecordsStay)
            && let Some(to) = begun.filter(|to| *to > end)
        {
            self.keep_incomplete(end, to)?;
        }
        let options = self.follow;
        for number in 0..self.nodes.len() {
            if number != chosen && self.nodes[number].is_up() && !self.nodes[number].side.has_crashed() {
                self.nodes[number].follow(chosen, options);
            }
        }
        if self.report.is_well() { self.look(chosen) } else { Ok(()) }
    }

    /// The master is dead for good, though it could go on.
    pub(super) fn give_up_master(&mut self) -> anyhow::Result<()> {
        let master = self.master;
        if !self.nodes[master].is_up() || self.candidates().0.is_empty() {
            return Ok(());
        }
        self.report.tell(|| format!("the {} is dead for good", NAMES[master]));
        let side = &self.nodes[master].side;
        side.world.disk.crash_now(side.how)?;
        self.end(master, false)?;
        if !self.promote()? {
            self.start(master)?;
        }
        Ok(())
    }

    /// Does what a slave that has refused its master for a while asks for; at once if `now`.
    pub(super) fn operate(&mut self, now: bool) -> anyhow::Result<()> {
        for (number, name) in NAMES.into_iter().enumerate().take(self.nodes.len()) {
            let node = &self.nodes[number];
            let Some(following) = node.following.as_ref().filter(|_| !node.side.has_crashed()) else { continue };
            let Some(failure) = &following.failure else { continue };
            let has_waited = following.refused_at.is_some_and(|at| self.now >= at + LOOKS_AFTER);
            let master = &self.nodes[self.master];
            let is_odd = node.side.options.segment_bytes != master.side.options.segment_bytes;
            // A record in parts that goes beyond the end of a shorter file.
            let is_cut =
                is_odd && matches!(failure, Failure::Copy(CopyError::Refused { why: Misfit::TooLong { .. }, .. }));
            if !(is_for_operators(failure) || is_cut) || !(has_waited || now) || !self.report.is_well() {
                continue;
            }
            let (is_of_size, is_removed) = (is_of_file_size(failure), is_removed(failure));
            let why = failure.to_string();
            self.report.tell(|| format!("an operator reads of the {}: {why}", name));
            if is_of_size && !is_odd || is_cut && !why.contains("mappedFileSizeCommitLog") {
                let what = format!("files have the same size: {}; and the {} says: {why}", !is_odd, name);
                self.report.find(Verdict::Refused, what);
                continue;
            }
            // What the master has lost is in the log of the one that has refused it.
            let may = !now && !is_odd && !is_removed && self.knows_numbers(node);
            if may && master.is_up() && !master.side.has_crashed() && self.one_in(2) {
                let old = self.master;
                self.end(old, true)?;
                self.nodes[old].down_until = Some(self.now + 1_000);
                self.switch_to(number, &[number])?;
            } else {
                self.end(number, true)?;
                self.wipe(number)?;
                self.start(number)?;
            }
        }
        Ok(())
    }

    /// Moves the store of a broker that is down away: it begins with an empty one, with files as the master has them.
    fn wipe(&mut self, number: usize) -> anyhow::Result<()> {
        self.report.tell(|| format!("the store of the {} is moved away", NAMES[number]));
        let old = &self.nodes[number];
        let seed = Run::seed_of(self.seed, number as u64) ^ (u64::from(old.life) << 40);
        let mut side = Side::new(NAMES[number], seed, self.twist)?;
        side.options = store::StoreOptions {
            segment_bytes: self.nodes[self.master].side.options.segment_bytes,
            ..old.side.options.clone()
        };
        side.is_calm = old.side.is_calm;
        let mut node = Node::new(number, side, old.rate);
        node.member = old.member.clone();
        (node.life, node.down_until) = (old.life + 1, old.down_until);
        node.side.world.pass(self.now);
        self.nodes[number] = node;
        let bit = self.nodes[number].bit();
        self.messages.values_mut().for_each(|message| message.holds &= !bit);
        Ok(())
    }
}
