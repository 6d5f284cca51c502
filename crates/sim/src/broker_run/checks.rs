//! The log, held against what was promised.

use std::collections::BTreeMap;

use store::Store;

use super::history::{Ended, Kind};
use super::{DEALS, LAST_STEPS, LATER, NOW, Run, TASKS};
use crate::reading::{self, Seen};
use crate::served::Served;
use crate::verdict::Verdict;

/// Of a broker that runs: threads have few turns, and a small pool makes a delivery wait for its room (`roomTimeoutMillis`) again and again.
const LATE_MS: i64 = 15_000;

impl Run<'_> {
    /// What must be so at any time.
    pub(super) fn check_log(&mut self, store: &Store) {
        self.check(store, false);
    }

    /// Lets all that was asked for happen, and looks whether it has.
    pub(super) fn finish(&mut self, served: &mut Served) -> anyhow::Result<()> {
        for _ in 0..LAST_STEPS {
            served.pass(self.world, 1_000);
        }
        if !self.goes_on() {
            return Ok(());
        }
        self.see(&served.store);
        self.check(&served.store, true);
        if self.report.is_well() {
            self.drain(served)?;
        }
        Ok(())
    }

    /// `is_over`: all that was asked for has had its time.
    fn check(&mut self, store: &Store, is_over: bool) {
        let mut found: BTreeMap<u64, u32> = BTreeMap::new();
        for topic in [NOW, LATER, DEALS, TASKS] {
            self.read(store, topic, &mut found);
        }
        // Of what is above it a reader is told nothing yet. In the end all is shown, also where a start has thrown the log back.
        let confirmed = store.confirmed().get();
        let is_shown = |end: u64| is_over || end <= confirmed;
        for (id, sent) in &self.history.sent {
            let count = found.get(id).copied().unwrap_or(0);
            let may_come_twice = *id < self.history.once_from && matches!(sent.kind, Kind::Later { .. });
            if count > 1 && !may_come_twice {
                self.report.find(Verdict::Duplicate, format!("message {id} {sent:?} is there {count} times"));
            }
            let must_be = match sent.kind {
                Kind::Now | Kind::Task => sent.is_sure && sent.end.is_some_and(is_shown),
                Kind::Later { .. } => sent.is_sure && is_over,
                Kind::Half(Some(half)) => {
                    matches!(half.ended, Ended::Surely { is_commit: true, end } if is_shown(end))
                }
                Kind::Half(None) => false,
            };
            if must_be && count == 0 {
                self.report.find(Verdict::Lost, format!("message {id} {sent:?}; the log is seen to {confirmed}"));
            }
            let verdict = match sent.kind {
                Kind::Half(None) => Some(Verdict::Early),
                Kind::Half(Some(half)) => match half.ended {
                    Ended::Open => Some(Verdict::Early),
                    Ended::Surely { is_commit: false, .. } => Some(Verdict::Resurrected),
                    Ended::Perhaps | Ended::Surely { is_commit: true, .. } => None,
                },
                Kind::Now | Kind::Later { .. } | Kind::Task => None,
            };
            if let Some(verdict) = verdict.filter(|_| count > 0) {
                self.report.find(verdict, format!("message {id} {sent:?} is there"));
            }
        }
    }

    /// What a topic's queues hold, and where.
    fn read(&mut self, store: &Store, topic: &'static str, found: &mut BTreeMap<u64, u32>) {
        for (queue_id, queue) in store.queues_of(topic) {
            let mut last = 0;
            for seen in reading::read(store, &queue, self.report) {
                let Seen { id, offset, stored_ms, .. } = seen;
                let at = format!("{topic}/{queue_id} at {offset}");
                if let Some((verdict, what)) = self.history.wrong(topic, queue_id as i32, &seen, last) {
                    self.report.find(verdict, format!("{at}: {what}"));
                }
                let Some(sent) = self.history.sent.get(&id) else { continue };
                if sent.kind.has_place() {
                    last = id;
                }
                if let Kind::Later { due } = sent.kind {
                    let (came, is_of_this_life) = (stored_ms, id >= self.history.first_of_life);
                    let verdict = match came - due {
                        ..0 => Some(Verdict::Early),
                        LATE_MS.. if is_of_this_life => Some(Verdict::Late),
                        _ => None,
                    };
                    if let Some(verdict) = verdict {
                        let what = format!("{at}: message {id} was due at {due} and came at {came}");
                        self.report.find(verdict, what);
                    }
                }
                *found.entry(id).or_default() += 1;
            }
        }
    }
}
