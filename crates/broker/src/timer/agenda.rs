//! Which message is due when: a state machine that knows no log, no file, no task and no clock.
//!
//! Time is cut into slots, as in the files: a message whose slot is `s` is due behind `s` and no later than one precision behind it. The
//! messages of the slots from `read` up to `loaded_to` are in memory, later ones are in the files only. A slot is done with when each of its
//! messages is delivered and that is on the device; then `read` passes it, and it is never looked at again.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use crate::wall_time::STEP_MS;

/// Slots are read so much before their time, in ms.
pub(super) const AHEAD_MS: i64 = 2_000;

/// What a message wants when it is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TimerAction {
    /// To take another one of its slot back: before any of them.
    Delete,
    /// To be delivered.
    Deliver,
    /// To be stored in the timer topic again: it is due later than the wheel reaches.
    Roll,
}

/// A message in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct AgendaEntry {
    /// In ms; behind the beginning of its slot, but of a `Delete` and a `Roll`, which are due with it.
    pub due: i64,
    /// Where it lies in the log.
    pub at: u64,
    pub kind: TimerAction,
    /// In ms.
    pub slot: i64,
    /// When it was taken in, in ms.
    pub taken_in: i64,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Take in what is new in the queue.
    TakeIn,
    /// Read the slots from the first up to but not including the second time, and tell by [`Agenda::loaded`].
    Load(i64, i64),
    /// Something is due: ask [`Agenda::next_due`].
    Deliver,
    /// Nothing is to be done before this time.
    WaitUntil(i64),
    /// Nothing waits.
    Idle,
}

/// Where a new message belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AgendaPlace {
    pub slot: i64,
    pub is_rolled: bool,
}

#[derive(Debug)]
pub(super) struct Agenda {
    precision: i64,
    /// Messages that are due later than this from now are rolled, in ms.
    window: i64,
    read: i64,
    loaded_to: i64,
    /// So many in memory are enough: no further slot is read.
    loaded_max: usize,
    entries: BinaryHeap<Reverse<AgendaEntry>>,
    /// How many messages of each slot in memory are not done with.
    open: BTreeMap<i64, usize>,
    /// Everything that was stored before this time is taken in.
    caught_up: i64,
}

fn slot_of(precision: i64, time: i64) -> i64 {
    time - time.rem_euclid(precision)
}

/// The slot for a message that is due behind the slot `out`, and whether it is stored once more then.
pub(super) fn slot(precision: i64, window: i64, now: i64, out: i64) -> (i64, bool) {
    let now = slot_of(precision, now);
    let ahead = out.saturating_sub(now);
    if ahead < window {
        return (slot_of(precision, out), false);
    }
    // As in Apache: what would be left over for a short last wait is split in two.
    let step = if ahead - window < window / 3 { window / 2 } else { window };
    (slot_of(precision, now + step), true)
}

impl Agenda {
    /// `read` is the first slot that is not done with.
    pub fn new(precision: i64, window: i64, read: i64, loaded_max: usize) -> Agenda {
        let read = read - read.rem_euclid(precision);
        Agenda {
            precision,
            window: window.max(precision),
            read,
            loaded_to: read,
            loaded_max,
            entries: BinaryHeap::new(),
            open: BTreeMap::new(),
            caught_up: i64::MIN,
        }
    }

    /// The slot that a time lies in.
    fn slot_of(&self, time: i64) -> i64 {
        slot_of(self.precision, time)
    }

    /// The first slot that is not done with.
    pub fn read(&self) -> i64 {
        self.read
    }

    /// Slots before this one are in memory.
    pub fn loaded_to(&self) -> i64 {
        self.loaded_to
    }

    /// The slot for a message that is due behind the slot `out`. One whose slot is done with goes to the first that is not.
    pub fn place(&self, now: i64, out: i64) -> AgendaPlace {
        let (slot, is_rolled) = slot(self.precision, self.window, now, out);
        AgendaPlace { slot: slot.max(self.read), is_rolled }
    }

    /// A message was written to the files; it is kept if its slot is in memory.
    pub fn added(&mut self, entry: AgendaEntry) {
        if entry.slot < self.loaded_to {
            self.hold(entry);
        }
    }

    fn hold(&mut self, entry: AgendaEntry) {
        *self.open.entry(entry.slot).or_default() += 1;
        self.entries.push(Reverse(entry));
    }

    /// The messages of all slots before `to` are these and those that were in memory.
    pub fn loaded(&mut self, to: i64, entries: impl Iterator<Item = AgendaEntry>) {
        for entry in entries {
            self.hold(entry);
        }
        self.loaded_to = self.loaded_to.max(to);
    }

    /// Everything that was stored before `time` is taken in.
    pub fn caught_up(&mut self, time: i64) {
        self.caught_up = self.caught_up.max(time);
    }

    /// Takes the next message that is due. A message that may have been taken back before its slot began waits until that is known.
    pub fn next_due(&mut self, now: i64) -> Option<AgendaEntry> {
        let Reverse(first) = *self.entries.peek()?;
        if first.due > now || !self.is_free(&first) {
            return None;
        }
        if first.kind == TimerAction::Roll {
            // Its copy may take back what would be next.
            self.caught_up = i64::MIN;
        }
        self.entries.pop();
        Some(first)
    }

    /// Whether everything is taken in that could have taken this one back.
    fn is_free(&self, entry: &AgendaEntry) -> bool {
        entry.kind == TimerAction::Roll || entry.slot < self.caught_up
    }

    /// A message could not be dealt with; it is tried again at `due`.
    pub fn postpone(&mut self, entry: AgendaEntry, due: i64) {
        self.entries.push(Reverse(AgendaEntry { due, ..entry }));
    }

    /// So many messages of a slot are dealt with for good.
    pub fn done(&mut self, slot: i64, count: usize) {
        if let Some(open) = self.open.get_mut(&slot) {
            *open = open.saturating_sub(count);
            if *open == 0 {
                self.open.remove(&slot);
            }
        }
    }

    /// The first slot with a message in memory that is not done with.
    pub fn first_open(&self) -> Option<i64> {
        self.open.keys().next().copied()
    }

    /// Whether a slot has a message in memory that is not done with.
    pub fn is_open(&self, slot: i64) -> bool {
        self.open.contains_key(&slot)
    }

    /// Whether a slot up to and including this one has messages that are not done with, besides so many of it that are `aside`.
    pub fn has_open_up_to(&self, slot: i64, aside: impl Fn(i64) -> usize) -> bool {
        self.open.range(..=slot).any(|(slot, open)| *open > aside(*slot))
    }

    /// Drops what is due in slots behind this one, at a stop: it is in the files for the next start. From here on slots are passed by
    /// [`Agenda::pass`] only.
    pub fn leave_behind(&mut self, slot: i64) {
        self.entries.retain(|Reverse(entry)| entry.slot <= slot);
        self.open.retain(|open, _| *open <= slot);
    }

    /// Whether slots are done with, or in memory, whose time is still to come: the clock was set back. What is sent now belongs to them.
    pub fn is_ahead_of(&self, now: i64) -> bool {
        // A stop may pass the slot that has begun, and what is loaded ends with a slot.
        let next_to = |time: i64| self.slot_of(time) + self.precision + STEP_MS;
        self.read > next_to(now) || self.loaded_to > next_to(now.saturating_add(AHEAD_MS))
    }

    /// Where the messages lie that are in memory and not dealt with.
    pub fn in_memory(&self) -> impl Iterator<Item = u64> {
        self.entries.iter().map(|Reverse(entry)| entry.at)
    }

    /// The clock was set back: begins anew with this slot, with nothing in memory.
    pub fn set_back(&mut self, to: i64) {
        self.read = self.slot_of(to);
        self.loaded_to = self.read;
        self.entries.clear();
        self.open.clear();
        self.caught_up = i64::MIN;
    }

    /// Passes slots that are done with. `next_slot` is the first at or behind `loaded_to` that holds something in the files.
    pub fn advance(&mut self, now: i64, next_slot: Option<i64>) {
        let now = self.slot_of(now);
        self.loaded_to = self.loaded_to.max(next_slot.map_or(now, |next| now.min(next)));
        let open = self.first_open().unwrap_or(i64::MAX);
        self.read = self.read.max(now.min(self.loaded_to).min(open));
    }

    /// Passes all slots up to and including this one, of which nothing is open. At a stop: the rest of the slot is for nobody.
    pub fn pass(&mut self, slot: i64) {
        let open = self.first_open().unwrap_or(i64::MAX);
        let next = (slot + self.precision).min(self.loaded_to).min(open);
        self.read = self.read.max(next);
    }

    /// What to do at this time. `is_behind` is whether the queue holds messages that are not taken in.
    pub fn step(&self, now: i64, next_slot: Option<i64>, is_behind: bool) -> Step {
        let first = self.entries.peek().map(|Reverse(first)| *first);
        if first.is_some_and(|first| first.due <= now && self.is_free(&first)) {
            return Step::Deliver;
        }
        if is_behind {
            return Step::TakeIn;
        }
        let horizon = now.saturating_add(AHEAD_MS);
        if self.entries.len() < self.loaded_max && next_slot.is_some_and(|next| next <= horizon) {
            return Step::Load(self.loaded_to, self.slot_of(horizon) + self.precision);
        }
        // One that is due and held back finds `caught_up` moved behind the beginning of its slot.
        let due = first.map(|first| if self.is_free(&first) { first.due } else { first.due.max(first.slot + 1) });
        let load = next_slot.map(|next| next - AHEAD_MS);
        match (due, load) {
            (Some(due), Some(load)) if self.entries.len() < self.loaded_max => Step::WaitUntil(due.min(load)),
            (Some(due), _) => Step::WaitUntil(due),
            (None, Some(load)) => Step::WaitUntil(load),
            (None, None) => Step::Idle,
        }
    }
}
