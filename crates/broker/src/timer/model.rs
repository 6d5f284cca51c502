//! The agenda against a model of everything around it: whatever order sends, recalls, flushes, check-points and crashes come in, no message
//! is early, lost or delivered twice, and none that was taken back in time is delivered.

use std::collections::HashSet;

use proptest::prelude::*;

use super::agenda::{Agenda, AgendaEntry, Step, TimerAction};

const PRECISION: i64 = 10;
/// Messages further away than this are rolled.
const WINDOW: i64 = 200;

#[derive(Clone, Debug)]
enum Act {
    /// A message that is due so much later.
    Send(i64),
    /// Takes back one of those that were sent, if it is not too late.
    Recall(usize),
    Pass(i64),
    Flush,
    Note,
    /// The process dies: what is in the kernel stays.
    Kill,
    /// The power goes: what is not flushed or noted is lost.
    Loss,
}

/// A message in the queue.
#[derive(Clone, Copy, Debug)]
struct Stored {
    id: usize,
    out: i64,
    due: i64,
    is_delete: bool,
}

#[derive(Clone, Copy, Debug)]
struct Unit {
    slot: i64,
    place: usize,
    kind: TimerAction,
}

#[derive(Debug)]
struct World {
    now: i64,
    queue: Vec<Stored>,
    units: Vec<Unit>,
    /// By place in the queue: delivered, rolled.
    log: Vec<usize>,
    flushed: usize,
    /// Read time, next in the queue, units on the device.
    noted: (i64, usize, usize),
    taken_back: HashSet<usize>,
    delivered: Vec<(usize, i64)>,
    sent: usize,

    agenda: Agenda,
    next: usize,
    goal: Option<(i64, usize)>,
    keys: HashSet<(i64, usize)>,
    known: HashSet<usize>,
    unflushed: Vec<(usize, i64)>,
}

impl World {
    fn new() -> World {
        let now = 1_000;
        World {
            now,
            queue: Vec::new(),
            units: Vec::new(),
            log: Vec::new(),
            flushed: 0,
            noted: (now, 0, 0),
            taken_back: HashSet::new(),
            delivered: Vec::new(),
            sent: 0,
            agenda: Agenda::new(PRECISION, WINDOW, now, 8),
            next: 0,
            goal: None,
            keys: HashSet::new(),
            known: HashSet::new(),
            unflushed: Vec::new(),
        }
    }

    fn start(&mut self) {
        let first = self.units.iter().map(|unit| unit.slot).filter(|slot| *slot >= self.noted.0).min();
        self.agenda = Agenda::new(PRECISION, WINDOW, self.noted.0.max(first.unwrap_or(self.now)), 8);
        self.next = self.units.last().map_or(0, |unit| unit.place + 1).max(self.noted.1);
        self.goal = None;
        self.keys.clear();
        self.known = self.log.iter().copied().collect();
        self.unflushed.clear();
    }

    fn entry(&self, unit: &Unit) -> AgendaEntry {
        let stored = self.queue[unit.place];
        let due = if unit.kind == TimerAction::Deliver { stored.due.max(unit.slot + 1) } else { unit.slot };
        AgendaEntry { due, at: unit.place as u64, kind: unit.kind, slot: unit.slot, taken_in: 0 }
    }

    fn next_slot(&self) -> Option<i64> {
        self.units.iter().map(|unit| unit.slot).filter(|slot| *slot >= self.agenda.loaded_to()).min()
    }

    /// What the task does, until there is nothing to do at this time.
    fn work(&mut self) {
        for _ in 0..100_000 {
            if let Some((time, goal)) = self.goal
                && self.next >= goal
            {
                self.agenda.caught_up(time);
                self.goal = None;
            }
            let is_behind = self.next < self.queue.len();
            if is_behind {
                self.goal.get_or_insert((self.now, self.queue.len()));
            } else {
                self.agenda.caught_up(self.now);
            }
            match self.agenda.step(self.now, self.next_slot(), is_behind) {
                Step::TakeIn => self.take_in(),
                Step::Load(from, to) => {
                    let found: Vec<AgendaEntry> = self
                        .units
                        .iter()
                        .filter(|unit| (from..to).contains(&unit.slot))
                        .map(|unit| self.entry(unit))
                        .collect();
                    self.agenda.loaded(to, found.into_iter());
                }
                Step::Deliver => self.deliver(),
                Step::WaitUntil(time) if time <= self.now => panic!("waits for the past: {time}, now is {}", self.now),
                Step::WaitUntil(_) | Step::Idle => return self.agenda.advance(self.now, self.next_slot()),
            }
            self.agenda.advance(self.now, self.next_slot());
        }
        panic!("the task does not come to rest: {self:?}");
    }

    fn take_in(&mut self) {
        for place in self.next..self.queue.len().min(self.next + 3) {
            let stored = self.queue[place];
            let to = self.agenda.place(self.now, stored.out);
            let kind = match (to.is_rolled, stored.is_delete) {
                (true, _) => TimerAction::Roll,
                (false, true) => TimerAction::Delete,
                (false, false) => TimerAction::Deliver,
            };
            let unit = Unit { slot: to.slot, place, kind };
            self.units.push(unit);
            self.agenda.added(self.entry(&unit));
            self.next = place + 1;
        }
    }

    fn deliver(&mut self) {
        let Some(entry) = self.agenda.next_due(self.now) else { panic!("nothing is due after all") };
        if entry.kind == TimerAction::Roll {
            self.goal = None;
        }
        let place = entry.at as usize;
        let stored = self.queue[place];
        if !self.known.remove(&place) {
            match entry.kind {
                TimerAction::Delete => drop(self.keys.insert((entry.slot, stored.id))),
                TimerAction::Deliver if self.keys.contains(&(entry.slot, stored.id)) => {}
                TimerAction::Deliver => {
                    self.delivered.push((stored.id, self.now));
                    self.log.push(place);
                }
                TimerAction::Roll => {
                    self.queue.push(stored);
                    self.log.push(place);
                }
            }
        }
        self.unflushed.push((self.log.len(), entry.slot));
    }

    fn flush(&mut self) {
        self.flushed = self.log.len();
        for (_, slot) in std::mem::take(&mut self.unflushed) {
            self.agenda.done(slot, 1);
        }
        self.agenda.advance(self.now, self.next_slot());
    }

    fn act(&mut self, act: &Act) {
        match *act {
            Act::Send(delay) => {
                let due = self.now + delay;
                let stored = Stored { id: self.sent, out: (due - 1) / PRECISION * PRECISION, due, is_delete: false };
                self.queue.push(stored);
                self.sent += 1;
            }
            Act::Recall(which) if self.sent > 0 => {
                let id = which % self.sent;
                let found = self.queue.iter().find(|stored| stored.id == id && !stored.is_delete).copied();
                // The handle says `out + 1`, and what is not in the future is refused.
                if let Some(stored) = found.filter(|stored| stored.out + 1 > self.now) {
                    self.queue.push(Stored { is_delete: true, ..stored });
                    self.taken_back.insert(id);
                }
            }
            Act::Recall(_) => {}
            Act::Pass(ms) => self.now += ms,
            Act::Flush => self.flush(),
            Act::Note => self.noted = (self.agenda.read(), self.next, self.units.len()),
            Act::Kill => self.start(),
            Act::Loss => {
                // What was delivered and is lost will be delivered again, and rolled copies that are lost made again.
                for place in self.log.split_off(self.flushed) {
                    let id = self.queue[place].id;
                    self.delivered.retain(|(delivered, _)| *delivered != id);
                }
                self.units.truncate(self.noted.2);
                self.start();
            }
        }
        self.work();
    }
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (1i64..600).prop_map(Act::Send),
        3 => any::<usize>().prop_map(Act::Recall),
        6 => (1i64..60).prop_map(Act::Pass),
        1 => (100i64..900).prop_map(Act::Pass),
        3 => Just(Act::Flush),
        3 => Just(Act::Note),
        2 => Just(Act::Kill),
    ]
}

fn check(world: &mut World) -> Result<(), TestCaseError> {
    for _ in 0..300 {
        world.now += 13;
        world.work();
        world.flush();
    }
    let due: Vec<i64> = (0..world.sent)
        .map(|id| world.queue.iter().find(|stored| stored.id == id && !stored.is_delete).map_or(0, |stored| stored.due))
        .collect();
    let mut times = vec![0; world.sent];
    for (id, at) in &world.delivered {
        prop_assert!(*at >= due[*id], "{id} is early: due {}, delivered {at}", due[*id]);
        prop_assert!(!world.taken_back.contains(id), "{id} was taken back and is delivered");
        times[*id] += 1;
    }
    for (id, times) in times.into_iter().enumerate() {
        let expected = usize::from(!world.taken_back.contains(&id));
        prop_assert_eq!(times, expected, "{} is delivered so often", id);
    }
    prop_assert!(world.agenda.first_open().is_none());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn each_message_is_delivered_once_and_not_early(acts in prop::collection::vec(act(), 1..120)) {
        let mut world = World::new();
        acts.iter().for_each(|act| world.act(act));
        check(&mut world)?;
    }

    #[test]
    fn a_loss_of_power_takes_back_deliveries_and_no_messages(
        acts in prop::collection::vec(prop_oneof![9 => act(), 1 => Just(Act::Loss)], 1..120)
    ) {
        let mut world = World::new();
        for act in &acts {
            // Without messages that are rolled: a copy that is lost leaves the queue, which the model's does not.
            let near = if let Act::Send(delay) = act { Act::Send(delay % 150 + 1) } else { act.clone() };
            world.act(&near);
        }
        check(&mut world)?;
    }
}
