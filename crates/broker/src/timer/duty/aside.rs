//! Timer messages that the device did not give when they were to be taken in, or delivered: set aside, so that their queue and their slot go on,
//! and tried again with growing pauses.
//!
//! The journal has a row for each. It is on the device before the timer log or the check-point passes the message, and gone when what became of
//! the message is on the device. Recalls that are dealt with meanwhile have rows, too: whom they take back may be aside.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use protocol::properties::name;
use protocol::{LogOffset, names};
use store::RecordAt;

use super::super::agenda::{AgendaEntry, TimerAction};
use super::super::state::aside::{ASIDE_MAX, RECALLS_MAX};
use super::super::state::{deletes, due_ms, out_ms};
use super::{Done, RETRY, Task, UnflushedTimers, view_of};
use crate::unreadable::WaitsFor;
use crate::waiting::fetch;

/// Why a message that the log should have is not there.
const NOT_THERE: &str = "it is not where it should be";

impl Task {
    /// With those that a start finds.
    pub(super) fn begin_aside(&mut self) {
        let timers = Arc::clone(&self.timers);
        let (now, end) = (self.broker.clock.now().0, self.broker.store.end());
        for at in timers.aside.places() {
            if self.delivered.contains(&at) {
                // Before a crash.
                self.unflushed.push_back(UnflushedTimers { end, done: Done::Aside(at) });
            } else {
                self.aside.failed(at, now);
            }
            // What the kernel has of a row the device may not have.
            self.rows_put = self.broker.store.journal().position();
        }
        self.count_unreadable();
    }

    pub(super) fn count_unreadable(&self) {
        self.broker.unreadable.are(WaitsFor::Timer, self.timers.aside.len() + self.held.len());
    }

    /// Waits until the device has all rows. False when it takes its time, and the caller has to come again.
    pub(super) async fn has_all_rows(&self) -> bool {
        let journal = self.broker.store.journal();
        if journal.synced().get() >= self.rows_put {
            return true;
        }
        journal.want_sync();
        tokio::time::timeout(RETRY, journal.synced().reached(self.rows_put)).await.is_ok()
    }

    /// Sets aside a message that is to be taken in, so that those behind it are. False when it has to be waited for.
    pub(super) async fn set_aside_in_queue(
        &mut self,
        offset: u64,
        at: LogOffset,
        error: Option<String>,
        now: i64,
    ) -> bool {
        let why = error.as_deref().unwrap_or(NOT_THERE);
        let Some(position) = self.timers.aside.add(self.broker.store.journal(), at.0, now) else {
            let most = ASIDE_MAX;
            tracing::error!(
                offset,
                at = at.0,
                why,
                most,
                "too many timer messages cannot be read; those behind this one wait"
            );
            return false;
        };
        self.rows_put = self.rows_put.max(position);
        self.timers.figures.pending.fetch_add(1, Ordering::Relaxed);
        self.aside.failed(at.0, now);
        let what =
            "timer message cannot be read; those behind it are taken in, and it is tried again with growing pauses";
        tracing::error!(offset, at = at.0, why, "{what}");
        self.count_unreadable();
        // Behind it there are units soon, which say that it was passed.
        self.has_all_rows().await
    }

    /// The device does not give a message whose time has come. Its slot goes on without it; if too many are aside, it stays open and holds the
    /// check-point, so that a start finds the message again.
    pub(super) fn set_aside(&mut self, entry: AgendaEntry, error: Option<String>, now: i64) {
        let (at, due) = (entry.at, entry.due);
        let why = error.as_deref().unwrap_or(NOT_THERE);
        if entry.kind == TimerAction::Delete {
            // What it takes back is due now.
            tracing::error!(at, why, "the recall of a timer message cannot be read; what it takes back is delivered");
            return self.finish(entry);
        }
        let what = "timer message cannot be read; others go on, and it is tried again with growing pauses";
        let kept = self.keep_recalls_of(entry.slot);
        let added = kept.and_then(|_| self.timers.aside.add(self.broker.store.journal(), at, entry.taken_in));
        if let Some(position) = added {
            self.rows_put = self.rows_put.max(position).max(kept.unwrap_or(0));
            self.held.is_done(&(entry.slot, at));
            self.aside.counted.insert(at);
            if self.aside.failed(at, now) {
                tracing::error!(at, due, why, "{what}");
            }
            self.agenda.done(entry.slot, 1);
        } else {
            let (is_first, pause) = self.held.failed((entry.slot, at));
            if is_first {
                let most = ASIDE_MAX;
                tracing::error!(
                    at,
                    due,
                    why,
                    most,
                    "{what}; too many are aside, and a start reads the log from its slot on"
                );
            }
            self.agenda.postpone(entry, now.saturating_add(pause));
        }
        self.count_unreadable();
    }

    fn keep_recalls_of(&self, slot: i64) -> Option<u64> {
        let Some(keys) = self.taken_back.get(&slot) else { return Some(0) };
        self.timers.aside.keep(self.broker.store.journal(), slot, keys.iter().map(|key| &**key))
    }

    /// A recall is dealt with: whom it takes back may be aside.
    pub(super) fn keep_recall(&mut self, slot: i64, key: &str) {
        if self.timers.aside.len() == 0 {
            return;
        }
        match self.timers.aside.keep(self.broker.store.journal(), slot, [key].into_iter()) {
            Some(position) => self.rows_put = self.rows_put.max(position),
            None => {
                let most = RECALLS_MAX;
                tracing::error!(
                    key,
                    most,
                    "too many recalls; if what this one takes back cannot be read now, it is delivered"
                );
            }
        }
    }

    /// A message that has a row came up once more: a crash was between the row and the check-point.
    pub(super) fn is_aside(&mut self, entry: &AgendaEntry) -> bool {
        if entry.kind == TimerAction::Delete || !self.timers.aside.has(entry.at) {
            return false;
        }
        self.aside.counted.insert(entry.at);
        self.agenda.done(entry.slot, 1);
        self.leave(std::slice::from_ref(entry));
        true
    }

    /// Tries one again that was set aside. Only when all that was stored before now is taken in, and all that is due is dealt with: so every
    /// recall is known whose slot has begun.
    pub(super) async fn try_again(&mut self, at: u64, now: i64) {
        let (store, timers) = (Arc::clone(&self.broker.store), Arc::clone(&self.timers));
        let Some(taken_in) = timers.aside.get(at) else { return };
        let slice = match fetch::record(&store, LogOffset(at)).await {
            Ok(RecordAt::Record(slice)) => slice,
            Ok(RecordAt::Damaged) => {
                tracing::error!(at, "timer message is damaged; it is not delivered, and those behind it are");
                return self.give_up(at);
            }
            Ok(RecordAt::Gone) if at < store.min_offset().0 => {
                tracing::error!(at, "timer message could not be read until the log had it no more");
                return self.give_up(at);
            }
            Ok(RecordAt::Gone) | Err(_) => {
                self.aside.failed(at, now);
                return;
            }
        };
        let view = view_of(&slice).filter(|view| view.topic() == names::TIMER_TOPIC);
        let Some((view, out)) = view.and_then(|view| Some((view, out_ms(&view)?))) else {
            tracing::error!(at, "what waits at this place is no timer message; it is passed over");
            return self.give_up(at);
        };
        let slot = out - out.rem_euclid(timers.precision);
        let due = due_ms(&view, out, timers.precision, now);
        let topic = view.property(name::REAL_TOPIC).unwrap_or_default();
        let is_recall = deletes(&view).is_some();
        if now > slot && is_recall {
            tracing::error!(
                at,
                "the recall of a timer message could not be read in time; what it takes back is delivered"
            );
            return self.give_up(at);
        }
        if now > slot && due > now {
            self.aside.due.insert((due, at));
            return;
        }
        if !is_recall && !self.aside.counted.remove(&at) {
            timers.count(topic, 1, now);
        }
        // One that is not due is stored once more, and waits as any other.
        let kind = if now > slot { TimerAction::Deliver } else { TimerAction::Roll };
        let entry = AgendaEntry { due, at, kind, slot, taken_in };
        self.batch.clear();
        self.mappings.clear();
        let uniq_key = view.property(name::UNIQ_KEY).unwrap_or_default();
        let lane = if !is_recall && timers.aside.takes_back(slot, topic, uniq_key) {
            timers.count(topic, -1, now);
            None
        } else {
            self.deal_with(&entry, &slice, now)
        };
        let Some(lane) = lane else { return self.give_up(at) };
        let refused = self.broker.append(&mut self.batch).await.err();
        self.mappings.clear();
        let Some(end) = self.batch.landed().last().map(|landed| landed.end) else {
            tracing::warn!(remark = refused.map(|refusal| refusal.remark), "timer messages wait for the store");
            self.aside.failed(at, now);
            return;
        };
        tracing::info!(at, due, "timer message can be read again");
        self.broker.wake(vec![lane], self.batch.light_queues(), end);
        self.is_dealt_with(&entry, end);
    }

    fn give_up(&mut self, at: u64) {
        let entry = AgendaEntry { due: 0, at, kind: TimerAction::Deliver, slot: 0, taken_in: 0 };
        self.is_dealt_with(&entry, self.broker.store.end());
    }

    fn is_dealt_with(&mut self, entry: &AgendaEntry, end: LogOffset) {
        self.aside.tries.is_done(&entry.at);
        self.aside.counted.remove(&entry.at);
        if !self.is_past_start() {
            // The check-point of the start may lie before it.
            self.delivered.insert(entry.at);
        }
        self.leave(std::slice::from_ref(entry));
        self.unflushed.push_back(UnflushedTimers { end, done: Done::Aside(entry.at) });
    }

    /// What became of it is on the device.
    pub(super) fn forget_aside(&self, at: u64) {
        self.timers.aside.forget(self.broker.store.journal(), at);
        self.count_unreadable();
    }
}
