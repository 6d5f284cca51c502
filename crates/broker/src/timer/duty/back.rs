//! The clock was set back: slots are done with, or in memory, whose time is still to come.
//!
//! The agenda and the files go back to the slot of the time that the clock shows now (`store::TimerFiles::set_back`), so that what is sent from now on is
//! delivered in time. Nothing that was delivered is delivered again. A message that was to wait for so long, sent by the clock as it was, waits as long
//! as is left of that; one that was to be delivered at a time is delivered then.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use protocol::LogOffset;
use protocol::properties::name;
use protocol::record::RecordView;
use store::{Store, TimerFiles, TimerUnit, Turned, timer_magic};

use super::{RETRY, Task};
use crate::timer::state::{deletes, is_of_later};
use crate::wall_time::STEP_MS;

/// Recalls of which is known whom they take back, when units are moved.
const RECALLS_MAX: usize = 100_000;

/// What is to become of units.
struct Move {
    store: Arc<Store>,
    now: i64,
    /// By how much the clock was set back.
    by: i64,
    precision: i64,
    window: i64,
    /// Nothing that is sent by the clock of now is due later than this.
    due_max: i64,
    /// Slots before this one were done with.
    read: i64,
    /// Those before this one were in memory, and these of them are not dealt with.
    loaded_to: i64,
    in_memory: HashSet<u64>,
    /// What a start has found delivered.
    delivered: HashSet<u64>,
    /// Whom recalls take back that wait in the slot of a time that has not come.
    recalled: HashSet<Box<str>>,
}

impl Task {
    /// Goes back with the clock, if it was set back. False when that is not done yet, and nothing else is to be done before.
    pub(super) async fn goes_with_the_clock(&mut self) -> bool {
        let now = self.broker.clock.now().0;
        if let Some(step) = self.steps.look() {
            self.back_by = self.back_by.saturating_sub(step).max(0);
        }
        if self.back_by < STEP_MS && !self.agenda.is_ahead_of(now) {
            self.back_by = 0;
            return true;
        }
        let by = self.back_by.max(self.agenda.read().saturating_sub(now));
        let is_done = self.go_back(now, by).await;
        if is_done {
            self.back_by = 0;
        }
        is_done
    }

    async fn go_back(&mut self, now: i64, by: i64) -> bool {
        let store = Arc::clone(&self.broker.store);
        // What was delivered is marked in the files, so the device has to have it.
        self.note_flushed();
        if let Some(last) = self.unflushed.back() {
            store.want_flush();
            let _ = tokio::time::timeout(RETRY, store.flushed().reached(last.end.0)).await;
            self.note_flushed();
        }
        if !self.unflushed.is_empty() || !self.has_all_rows().await {
            return false;
        }
        if !self.delivered.is_empty() && !self.has_start_flushed().await {
            return false;
        }
        // An older check-point must not come after the one of here.
        if let Some((noting, state)) = self.noting.take()
            && noting.await.unwrap_or(false)
        {
            self.noted = state;
        }
        let (precision, read) = (self.timers.precision, self.agenda.read());
        let to = read.min(now - now.rem_euclid(precision));
        let max_ms = self.broker.store_settings.load().timer_max_delay_sec.saturating_mul(1000);
        let mut moves = Move {
            store,
            now,
            by,
            precision,
            window: self.timers.window,
            due_max: now.saturating_add(max_ms).saturating_add(precision),
            read,
            loaded_to: self.agenda.loaded_to(),
            in_memory: self.agenda.in_memory().collect(),
            delivered: self.delivered.clone(),
            recalled: HashSet::new(),
        };
        self.aside.set_back(by, now);
        let next = self.next;
        let act = move |files: &mut TimerFiles| {
            moves.find_recalls(files)?;
            files.set_back(to, next, now, &mut |unit| moves.decide(unit))?;
            let mut waiting: HashMap<i32, i64> = HashMap::new();
            files.for_each(&mut |unit| {
                if unit.magic & timer_magic::DELETE == 0 {
                    *waiting.entry(unit.topic_hash).or_default() += 1;
                }
            })?;
            Ok((files.next_slot(to), waiting))
        };
        let Some((next_slot, waiting)) = self.with_files(act).await else {
            tokio::time::sleep(RETRY).await;
            return false;
        };
        // What a start has found delivered is not met any more.
        self.timers.count_anew(&waiting);
        self.agenda.set_back(to);
        self.next_slot = next_slot;
        self.noted = (to, next);
        self.goal = None;
        self.last_slot = i64::MIN;
        self.scan_from_next = None;
        self.started_at.0 = self.started_at.0.min(to - 1);
        tracing::info!(by_ms = by, now, "timer messages are delivered by the time that the clock shows now");
        true
    }
}

impl Move {
    fn about<T>(&self, at: LogOffset, about: impl Fn(&RecordView<'_>) -> Option<T>) -> Option<T> {
        self.store.about_record_cold(at, about).ok()??
    }

    fn find_recalls(&mut self, files: &TimerFiles) -> Result<(), store::StoreError> {
        let mut recalls = Vec::new();
        files.for_each(&mut |unit| {
            if unit.magic & timer_magic::DELETE != 0 && recalls.len() < RECALLS_MAX {
                recalls.push(unit.at);
            }
        })?;
        for at in recalls {
            let key = self.about(at, |view| deletes(view).map(Box::<str>::from));
            self.recalled.extend(key);
        }
        Ok(())
    }

    fn decide(&self, unit: &TimerUnit) -> Turned {
        let is_recall = unit.magic & timer_magic::DELETE != 0;
        let is_dealt_with =
            self.delivered.contains(&unit.at.0) || unit.slot < self.loaded_to && !self.in_memory.contains(&unit.at.0);
        // A recall of a slot that is not done with is needed when the slot is read again.
        if unit.slot < self.read || is_dealt_with && !is_recall {
            return Turned::Done;
        }
        if is_recall || !is_of_later(unit, self.now) {
            return Turned::Stays;
        }
        let due = if unit.due > 0 { unit.due } else { unit.slot.saturating_add(self.precision) };
        if due > self.due_max || self.is_for_a_while(unit.at) {
            return Turned::Moves(self.moved(unit, due));
        }
        // The time holds, whatever the clock showed when it was sent.
        Turned::Moves(TimerUnit { written: self.now, ..*unit })
    }

    /// Whether a message was to wait for so long, and nothing takes it back.
    fn is_for_a_while(&self, at: LogOffset) -> bool {
        let is_so = |view: &RecordView<'_>| {
            let is_delay =
                [name::TIMER_DELAY_SEC, name::TIMER_DELAY_MS].iter().any(|name| view.property(name).is_some());
            let topic = view.property(name::REAL_TOPIC).unwrap_or_default();
            let key = view.property(name::UNIQ_KEY).unwrap_or_default();
            let is_recalled = !self.recalled.is_empty()
                && (self.recalled.contains(key) || self.recalled.contains(format!("{topic}+{key}").as_str()));
            Some(is_delay && !is_recalled)
        };
        self.about(at, is_so).unwrap_or(false)
    }

    fn moved(&self, unit: &TimerUnit, due: i64) -> TimerUnit {
        let due = due.saturating_sub(self.by).max(self.now + 1);
        let slot_of = |time: i64| time - time.rem_euclid(self.precision);
        let mut moved = TimerUnit { written: self.now, due, slot: slot_of(due - 1), ..*unit };
        if unit.magic & timer_magic::ROLL != 0 {
            if due - self.now < self.window {
                moved.magic &= !timer_magic::ROLL;
            } else {
                moved.slot = slot_of(unit.slot.saturating_sub(self.by).max(self.now));
            }
        }
        moved
    }
}
