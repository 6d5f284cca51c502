//! The log, held against what was promised.

use std::collections::BTreeMap;

use protocol::record::{self, Scanned};
use store::{ReadLimits, Store};

use super::history::{Ended, Kind, Sent};
use super::{DEALS, LAST_STEPS, LATER, NOW, Run};
use crate::log_run::body;
use crate::served::Served;
use crate::verdict::Verdict;

const LIMITS: ReadLimits = ReadLimits {
    max_count: 32,
    count_memory: 32,
    bytes_memory: 1 << 20,
    count_disk: 32,
    bytes_disk: 1 << 20,
    scan_bytes: 16_000,
    may_fault: true,
};

/// Of a broker that runs: threads have few turns, and a small pool makes a delivery wait for its room (`roomTimeoutMillis`) again and again.
const LATE_MS: i64 = 15_000;

impl Run<'_> {
    /// What must be so at any time.
    pub(super) fn check_log(&mut self, store: &std::sync::Arc<Store>) {
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

    fn check(&mut self, store: &std::sync::Arc<Store>, is_over: bool) {
        let mut found: BTreeMap<u64, u32> = BTreeMap::new();
        for topic in [NOW, LATER, DEALS] {
            self.read(store, topic, &mut found);
        }
        // Of what is above it a reader is told nothing yet.
        let confirmed = store.confirmed().get();
        for (id, sent) in &self.history.sent {
            let count = found.get(id).copied().unwrap_or(0);
            let may_come_twice = *id < self.history.once_from && matches!(sent.kind, Kind::Later { .. });
            if count > 1 && !may_come_twice {
                self.report.find(Verdict::Duplicate, format!("message {id} {sent:?} is there {count} times"));
            }
            let must_be = match sent.kind {
                Kind::Now => sent.is_sure && sent.end.is_some_and(|end| end <= confirmed),
                Kind::Later { .. } => sent.is_sure && is_over,
                Kind::Half(Some(half)) => {
                    matches!(half.ended, Ended::Surely { is_commit: true, end, .. } if end <= confirmed)
                }
                Kind::Half(None) | Kind::Task => false,
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

    /// What a topic's queues hold.
    fn read(&mut self, store: &std::sync::Arc<Store>, topic: &'static str, found: &mut BTreeMap<u64, u32>) {
        for (queue_id, queue) in store.queues_of(topic) {
            let mut next = queue.min_offset() as i64;
            // Ends at the queue's end, or where a read does not get on.
            loop {
                let mut slices = Vec::new();
                let read = store.read(&queue, next, &LIMITS, &mut |_| true, &mut slices);
                if let Some(failure) = read.failure {
                    self.report.find(Verdict::Lost, format!("{topic}/{queue_id} at {next}: {failure}"));
                }
                for slice in slices {
                    let Ok(Scanned::Record(view)) = record::scan(slice.as_ref(), true) else {
                        self.report.find(Verdict::Foreign, format!("no record in {topic}/{queue_id} from {next} on"));
                        continue;
                    };
                    let id = view.body().first_chunk().map_or(0, |id| u64::from_be_bytes(*id));
                    let at = format!("{topic}/{queue_id} at {}: message {id}", view.queue_offset());
                    let Some(Sent { topic: of, kind, bytes, .. }) = self.history.sent.get(&id) else {
                        self.report.find(Verdict::Foreign, format!("{at} was never sent"));
                        continue;
                    };
                    if *of != topic || view.body() != body(id, *bytes) {
                        self.report.find(Verdict::Foreign, format!("{at} is another one"));
                    }
                    if let Kind::Later { due } = kind {
                        let (came, is_of_this_life) = (view.store_timestamp(), id >= self.history.first_of_life);
                        let verdict = match came - due {
                            ..0 => Some(Verdict::Early),
                            LATE_MS.. if is_of_this_life => Some(Verdict::Late),
                            _ => None,
                        };
                        if let Some(verdict) = verdict {
                            self.report.find(verdict, format!("{at} was due at {due} and came at {came}"));
                        }
                    }
                    *found.entry(id).or_default() += 1;
                }
                if read.next <= next {
                    break;
                }
                next = read.next;
            }
        }
    }
}
