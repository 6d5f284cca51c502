//! A run of two stores: one takes messages, the other copies its log. Each has a disk and a clock
//! of its own, and either may crash at any call.
//!
//! A crash may take back from the first what the other one has copied already: then the end of the
//! copy is cut, which a crash may interrupt as well. After each start, and now and then between,
//! this has to be true: below the ends of both, the logs are the same, and so are the queues;
//! neither has lost what it promised, but for what was cut.

use std::collections::HashSet;
use std::sync::Arc;

use protocol::LogOffset;
use protocol::record::RecordDraft;
use store::{AppendError, ConsumeQueue, CopyError, LogCopy, RecordBatch, Store, TagsCode, Unit};

use crate::disk::Crash;
use crate::log_run::body;
use crate::reading;
use crate::side::{STARTS_MAX, Side};
use crate::verdict::{Report, Verdict};
use crate::world::Twist;

const TOPICS: [&str; 3] = ["orders", "payments", "parcels"];
const QUEUES: u32 = 2;
/// Other dice than those of the first store.
const COPY: u64 = 0x0C09_1E50_5EED_0F02;
/// Turns after which what should happen by itself has not.
const TURNS_MAX: u32 = 20_000;
/// Blocks that the copy takes before the first store loses them.
const BLOCKS_AHEAD: u32 = 12;
/// Bytes that are compared at once.
const COMPARED: usize = 16 << 10;

struct Run<'a> {
    /// Into the copy, while both are open. The first field, so that it is dropped before the stores.
    log: Option<LogCopy>,
    main: Side,
    copy: Side,
    report: &'a mut Report,
    next_id: u64,
}

/// Runs the seed's story.
pub fn run(seed: u64, twist: Twist, report: &mut Report) -> anyhow::Result<()> {
    let mut run = Run::new(seed, twist, report)?;
    run.start_main()?;
    let steps = 40 + run.main.world.dice.below(120);
    for _ in 0..steps {
        if !run.report.is_well() {
            break;
        }
        run.step()?;
    }
    run.finish()
}

impl<'a> Run<'a> {
    fn new(seed: u64, twist: Twist, report: &'a mut Report) -> anyhow::Result<Run<'a>> {
        let main = Side::new("main store", seed, twist)?;
        let mut copy = Side::new("copy", seed ^ COPY, twist)?;
        copy.options.segment_bytes = main.options.segment_bytes;
        Ok(Run { log: None, main, copy, report, next_id: 1 })
    }

    /// Opens the first store, and lets the other one follow it.
    fn start_main(&mut self) -> anyhow::Result<()> {
        self.log = None;
        self.main.start(self.report)?;
        self.follow()
    }

    /// Opens the other store, and takes from it what the first one does not have.
    fn follow(&mut self) -> anyhow::Result<()> {
        self.log = None;
        let Run { main, copy, report, .. } = self;
        for _ in 0..STARTS_MAX {
            if copy.store.is_some() && copy.has_crashed() {
                copy.end(false, report)?;
            }
            if copy.store.is_none() && report.is_well() {
                copy.start(report)?;
            }
            if !report.is_well() {
                return Ok(());
            }
            let (end, main_end) = (copy.store()?.end().0, main.store()?.end().0);
            if end <= main_end {
                self.log = Some(LogCopy::new(Arc::clone(copy.store()?), Box::new(|_| Ok(HashSet::new()))));
                return Ok(());
            }
            report.tell(|| format!("the copy is to be cut at {main_end}"));
            let in_charge = copy.world.turns.enter();
            let noted = copy.store()?.cut_on_reopen(LogOffset(main_end));
            drop(in_charge);
            if let Err(error) = noted {
                report.find(Verdict::Refused, format!("the copy cannot be cut: {error}"));
                return Ok(());
            }
            copy.promise_no_more_than(main_end);
            let closes = copy.world.one_in(3);
            copy.end(closes, report)?;
            copy.promise_no_more_than(main_end);
        }
        self.report.find(Verdict::Late, "the copy is not cut after many starts");
        Ok(())
    }

    fn step(&mut self) -> anyhow::Result<()> {
        let (main, copy) = (&self.main.world, &self.copy.world);
        match main.dice.below(100) {
            0..30 => self.send()?,
            30..62 => self.copy_some()?,
            62..74 => {
                let turns = (main.dice.below(30), main.dice.below(30));
                self.main.give(turns.0);
                self.copy.give(turns.1);
            }
            74..82 => {
                let ms = main.pick(&[1, 10, 100, 1_000, 11_000]);
                main.pass(ms);
                copy.pass(ms);
                self.main.give(20);
                self.copy.give(20);
            }
            82..85 => main.disk.write_back()?,
            85..88 => copy.disk.write_back()?,
            88..90 => main.disk.crash_now(self.main.how)?,
            90..92 => copy.disk.crash_now(self.copy.how)?,
            92 => {
                self.log = None;
                self.copy.end(true, self.report)?;
                self.follow()?;
            }
            93..96 => self.lose_what_is_copied()?,
            _ => self.check()?,
        }
        self.main.see();
        self.copy.see();
        self.mind_crashes()
    }

    /// Starts again what has crashed.
    fn mind_crashes(&mut self) -> anyhow::Result<()> {
        if !self.report.is_well() {
            return Ok(());
        }
        if self.main.has_crashed() {
            self.main.end(false, self.report)?;
            self.start_main()?;
        } else if self.copy.has_crashed() {
            self.follow()?;
        } else {
            return Ok(());
        }
        if self.report.is_well() { self.check() } else { Ok(()) }
    }

    fn send(&mut self) -> anyhow::Result<()> {
        let Run { main, report, next_id, .. } = self;
        let _in_charge = main.world.turns.enter();
        let store = main.store()?;
        let world = &main.world;
        let (topic, queue) = (TOPICS[world.dice.below(TOPICS.len() as u32) as usize], world.dice.below(QUEUES));
        let count = if world.one_in(3) { 1 + world.dice.below(8) } else { 1 };
        let host = std::net::SocketAddr::from(([127, 0, 0, 1], 10911));
        let target = store.queue(topic, queue)?;
        let mut batch = RecordBatch::new();
        for _ in 0..count {
            let id = *next_id;
            *next_id += 1;
            let bytes = 8 + world.pick(&[0, 50, 400, 1_500, 5_000]) + world.dice.below(100) as usize;
            let keys = format!("KEYS\u{1}key-{id}\u{2}");
            let draft = RecordDraft {
                queue_id: queue as i32,
                born_timestamp: world.clock.now().0,
                body: &body(id, bytes),
                properties: keys.as_bytes(),
                ..RecordDraft::plain(topic, host)
            };
            let mut encoded = Ok(());
            batch.push(&target, TagsCode::Code(0), |out| encoded = draft.encode(out).map(drop));
            encoded?;
        }
        report.messages += u64::from(count);
        report.tell(|| format!("send {count} to {topic}/{queue}, up to {}", *next_id - 1));
        for turn in 1..TURNS_MAX {
            match store.append(&mut batch, world.clock.now()) {
                Ok(()) => return Ok(()),
                Err(AppendError::NoRoomYet { .. } | AppendError::PoolFull { .. }) => {
                    world.give(1);
                    if turn % 100 == 0 {
                        world.pass(100);
                    }
                }
                Err(error) => {
                    report.find(Verdict::Refused, format!("a message is not taken: {error}"));
                    return Ok(());
                }
            }
        }
        report.find(Verdict::Late, "there is no room for a message");
        Ok(())
    }

    /// Copies a block of some length, which need not end where a record does.
    fn copy_some(&mut self) -> anyhow::Result<()> {
        let Run { main, copy, report, log, .. } = self;
        let Some(log) = log else { return Ok(()) };
        let max = main.world.pick(&[10, 500, 9_000]);
        let max = 1 + main.world.dice.below(max);
        let at = log.next();
        let in_charge = main.world.turns.enter();
        let block = main.store()?.raw_bytes(at, max as usize)?;
        drop(in_charge);
        let Some(block) = block else { return Ok(()) };
        let _in_charge = copy.world.turns.enter();
        match log.append(at, block.as_ref()) {
            Ok(()) => report.tell(|| format!("copied {} bytes from {}", block.as_ref().len(), at.0)),
            Err(CopyError::Append(AppendError::NoRoomYet { .. } | AppendError::PoolFull { .. })) => {
                copy.world.give(5);
                copy.world.pass(10);
            }
            Err(error) => report.find(Verdict::Refused, format!("the copy does not take a block: {error}")),
        }
        Ok(())
    }

    /// Lets the first store lose what the copy has: its threads have no turn between a send and a
    /// loss of power.
    fn lose_what_is_copied(&mut self) -> anyhow::Result<()> {
        self.send()?;
        for _ in 0..BLOCKS_AHEAD {
            self.copy_some()?;
        }
        let main = &mut self.main;
        if !main.has_crashed() {
            main.how = Crash::Power;
            main.world.disk.crash_now(main.how)?;
        }
        Ok(())
    }

    /// Whether both have the same, as far as both have something.
    fn check(&mut self) -> anyhow::Result<()> {
        let Run { main, copy, report, .. } = self;
        let (one, other) = (main.store()?, copy.store()?);
        let common = one.written().get().min(other.written().get());
        report.tell(|| format!("both have the log up to {common}"));
        let in_charge = main.world.turns.enter();
        let mut at = one.min_offset().max(other.min_offset());
        // Each turn compares a piece, or is the last.
        while at.0 < common {
            let max = COMPARED.min((common - at.0) as usize);
            let (Some(left), Some(right)) = (one.raw_bytes(at, max)?, other.raw_bytes(at, max)?) else { break };
            if left.as_ref() != right.as_ref() {
                report.find(Verdict::Differs, format!("the logs differ between {} and {}", at.0, at.0 + max as u64));
                return Ok(());
            }
            at.0 += left.as_ref().len() as u64;
        }
        drop(in_charge);
        if at.0 < common {
            report.find(Verdict::Lost, format!("both have the log up to {common}, and it cannot be read at {}", at.0));
        }
        for topic in TOPICS {
            for id in 0..QUEUES {
                let units = |store: &Store| {
                    store.existing_queue(topic, id).map_or_else(Vec::new, |queue| units(&queue, common))
                };
                let (left, right) = (units(one), units(other));
                if left != right {
                    let first = left.iter().zip(&right).position(|(one, other)| one != other);
                    let what = format!(
                        "{topic}/{id} has {} units, and {} in the copy, the same up to {first:?}",
                        left.len(),
                        right.len()
                    );
                    report.find(Verdict::Differs, what);
                }
            }
        }
        let _in_charge = copy.world.turns.enter();
        for topic in TOPICS {
            for (_, queue) in other.queues_of(topic) {
                let seen = reading::read(other, &queue, report);
                report.mix(seen.len() as u64);
            }
        }
        Ok(())
    }

    /// Copies the rest, and looks at both once more, before and after a stop.
    fn finish(mut self) -> anyhow::Result<()> {
        for is_stopped in [false, true] {
            if is_stopped && self.report.is_well() {
                self.log = None;
                self.main.end(true, self.report)?;
                self.copy.end(true, self.report)?;
                self.start_main()?;
            }
            self.copy_all()?;
            if self.report.is_well() {
                self.check()?;
            }
        }
        self.log = None;
        self.main.end(false, self.report)?;
        self.copy.end(false, self.report)
    }

    fn copy_all(&mut self) -> anyhow::Result<()> {
        for turn in 0..TURNS_MAX {
            if !self.report.is_well() {
                return Ok(());
            }
            let end = self.main.store()?.end().0;
            if self.copy.store()?.written().get() == end && self.main.store()?.written().get() == end {
                return Ok(());
            }
            self.copy_some()?;
            self.main.give(2);
            self.copy.give(2);
            if turn % 50 == 49 {
                self.main.world.pass(100);
                self.copy.world.pass(100);
            }
            self.mind_crashes()?;
        }
        self.report.find(Verdict::Late, "the copy does not come to the end of the log");
        Ok(())
    }
}

/// The units of a queue whose records lie below `to`.
fn units(queue: &ConsumeQueue, to: u64) -> Vec<(u64, Option<Unit>)> {
    let numbers = queue.min_offset()..queue.max_offset();
    let units = numbers.map(|number| (number, queue.unit_at(number).ok().flatten()));
    units.filter(|(_, unit)| unit.is_none_or(|unit| unit.end().0 <= to)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has both stores with messages, lets `doctor` do something, looks once more, and says what
    /// that found.
    fn found(doctor: impl FnOnce(&mut Run<'_>)) -> Vec<Verdict> {
        let mut report = Report::new(false);
        let mut run = Run::new(1, Twist::default(), &mut report).unwrap();
        for side in [&mut run.main, &mut run.copy] {
            side.options.pool = None;
        }
        run.start_main().unwrap();
        for _ in 0..20 {
            run.send().unwrap();
        }
        run.copy_all().unwrap();
        run.check().unwrap();
        assert_eq!(run.report.findings, []);
        doctor(&mut run);
        run.report.verdicts()
    }

    #[test]
    fn a_copy_with_another_message_differs() {
        let differing = found(|run| {
            // The same place in both, another message.
            run.send().unwrap();
            std::mem::swap(&mut run.main, &mut run.copy);
            run.next_id += 7;
            run.send().unwrap();
            run.check().unwrap();
        });
        assert!(differing.contains(&Verdict::Differs), "{differing:?}");
    }

    #[test]
    fn an_end_below_what_was_promised_is_lost() {
        let lost = found(|run| {
            run.copy.see();
            let end = run.copy.written;
            run.copy.check_end(end - 1, run.report);
        });
        assert_eq!(lost, [Verdict::Lost]);
    }
}
