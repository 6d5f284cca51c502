//! Starts, stops and crashes of brokers.

use std::sync::Arc;

use protocol::LogOffset;
use replica::lag::Slaves;
use store::LogCopy;

use super::following::Following;
use super::{NAMES, Run};
use crate::disk::Crash;
use crate::log_run::move_to;
use crate::verdict::Verdict;

impl Run<'_> {
    /// A broker is stopped, and started again.
    pub(super) fn restart(&mut self, number: usize) -> anyhow::Result<()> {
        if !self.nodes[number].is_up() {
            return Ok(());
        }
        self.end(number, true)?;
        self.start(number)
    }

    /// A broker's process ends, by a stop or a crash.
    pub(super) fn end(&mut self, number: usize, closes: bool) -> anyhow::Result<()> {
        // Who is on the other side is told by the kernel, unless that is gone too.
        let node = &mut self.nodes[number];
        let is_told = closes || node.side.how == Crash::Killed;
        node.forget();
        self.links.lose(number, is_told, self.now);
        let node = &mut self.nodes[number];
        node.side.end(closes, self.report)
    }

    /// A broker starts, as what it is.
    pub(super) fn start(&mut self, number: usize) -> anyhow::Result<()> {
        let node = &mut self.nodes[number];
        node.side.is_calm |= self.is_calm;
        node.side.start(self.report)?;
        if !self.report.is_well() {
            return Ok(());
        }
        if number == self.master {
            let end = self.nodes[number].side.store()?.end().0;
            self.nodes[number].slaves = Arc::new(Slaves::of(LogOffset(end)));
            for other in &mut self.nodes {
                (other.common, other.agreed) = (other.common.min(end), None);
            }
            self.know_truth()?;
        } else {
            self.what_is_left_of(number)?;
            let (master, options) = (self.master, self.follow);
            self.nodes[number].follow(master, options);
        }
        self.look(number)
    }

    /// An empty slave is to begin elsewhere.
    pub(super) fn begin_at(&mut self, number: usize, at: LogOffset) -> anyhow::Result<()> {
        self.report.tell(|| format!("the log of the {} is to begin at {at}", NAMES[number]));
        let closes = !self.nodes[number].side.has_crashed();
        self.end(number, closes)?;
        let side = &mut self.nodes[number].side;
        {
            let _in_charge = side.world.turns.enter();
            if !self.is_calm && side.world.one_in(4) {
                side.world.disk.crash_in(1 + u64::from(side.world.dice.below(12)), side.how);
            }
            move_to(&mut side.options, &side.world.root());
            match LogCopy::begin_at(&side.options, &side.env(), at) {
                Ok(()) => {}
                Err(error) if side.has_crashed() => self.report.tell(|| format!("{error}")),
                Err(error) => self.report.find(Verdict::Refused, format!("a copy does not begin at {at}: {error}")),
            }
        }
        if side.has_crashed() {
            side.end(false, self.report)?;
        } else {
            (side.flushed, side.written) = (at.0, at.0);
        }
        self.start(number)
    }

    /// Starts again what has crashed, or leaves it for a while; or has a slave promoted.
    pub(super) fn mind_crashes(&mut self) -> anyhow::Result<()> {
        for (number, name) in NAMES.into_iter().enumerate().take(self.nodes.len()) {
            if !self.nodes[number].is_up() || !self.nodes[number].side.has_crashed() || !self.report.is_well() {
                continue;
            }
            let begun = self.nodes[number].following.as_ref().and_then(Following::begun_record);
            self.report.tell(|| format!("the {} has crashed, with a copy up to {begun:?}", name));
            self.end(number, false)?;
            if number == self.master && !self.is_calm && self.one_in(3) && self.promote()? {
                continue;
            }
            if !self.is_calm && self.one_in(3) {
                self.nodes[number].down_until = Some(self.now + u64::from(self.dice.below(30_000)));
            } else {
                self.start(number)?;
            }
        }
        Ok(())
    }
}
