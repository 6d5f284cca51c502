//! What a start found, held against what was promised; and what is there without a crash.

use std::collections::BTreeSet;
use std::sync::Arc;

use store::{FlushMode, Store};

use super::{Deleted, End, Message, Run, TOPICS, body};
use crate::disk::Crash;
use crate::reading::{self, Seen};
use crate::verdict::Verdict;

/// Files below a queue's lower end while the store runs.
const LEFT_MAX: usize = 6;

impl Run<'_> {
    /// Whether a deletion counts after such an end.
    fn is_certain(&self, deleted: &Deleted, end: End) -> bool {
        let is_written = deleted.position <= self.written;
        match end {
            End::Closed => true,
            End::Crashed(Crash::Killed) => is_written,
            End::Crashed(Crash::Power) => is_written && self.options.flush == FlushMode::Sync,
        }
    }

    /// Whether a message has to be there after such an end.
    pub(super) fn is_promised(&self, message: &Message, end: End) -> bool {
        message.end <= self.flushed
            || end == End::Crashed(Crash::Killed) && message.end <= self.log_written
            || end == End::Closed
    }

    /// Holds what a start found against what was promised before, and goes on with it.
    pub(super) fn check_start(&mut self, store: &Arc<Store>, before: End) {
        self.tables.check(
            store.journal(),
            matches!(before, End::Closed | End::Crashed(Crash::Killed)) || self.options.flush == FlushMode::Sync,
            self.report,
        );
        for topic in 0..TOPICS.len() {
            if self.is_certain(&self.deleted[topic], before) {
                self.deleted[topic].certain = self.deleted[topic].generation;
            }
        }
        let end = store.end().0;
        let found = self.read(store);
        let min = store.min_offset().0;
        self.ageing.gone = self.ageing.gone.max(min);
        self.check_lower_end(store);
        if self.plan.ages {
            self.check_lower_ends(store, 1);
        }
        for (id, message) in &self.messages {
            let deleted = &self.deleted[message.topic];
            if found.contains(id) || message.generation < deleted.generation {
                continue;
            }
            if message.end <= min {
                continue;
            }
            let is_promised = self.is_promised(message, before);
            // The log has one end: what lies before it is there whoever was promised what.
            if message.end <= end || is_promised {
                self.report.find(
                    Verdict::Lost,
                    format!("message {id} {message:?}: the log ends at {end}, was on the device to {}", self.flushed),
                );
            }
        }
        self.messages.retain(|id, _| found.contains(id));
        for deleted in &mut self.deleted {
            deleted.position = 0;
        }
        // What came back of a topic whose deletion was not certain is its own again.
        for message in self.messages.values_mut() {
            message.generation = self.deleted[message.topic].generation;
        }
        self.flushed = self.flushed.min(end);
        (self.log_written, self.written) = (0, 0);
        self.report.mix(end);
        self.see(store);
    }

    /// Without a crash everything is there.
    pub(super) fn check_living(&mut self, store: &Arc<Store>) {
        self.see(store);
        self.check_lower_end(store);
        if self.plan.ages {
            self.check_lower_ends(store, if self.plan.fails { usize::MAX } else { LEFT_MAX });
        }
        let (min, confirmed) = (store.min_offset().0, store.confirmed().get());
        let found = self.read(store);
        let missing = self.messages.iter().find(|(id, message)| {
            message.generation == self.deleted[message.topic].generation
                && message.end <= confirmed
                && message.end > min
                && !found.contains(id)
        });
        if let Some((id, message)) = missing {
            let what = format!("message {id} {message:?} is gone without a crash");
            self.report.find(Verdict::Lost, what);
        }
    }

    /// All messages that can be read; each is one that was sent, at its place, and no deleted one.
    fn read(&mut self, store: &Arc<Store>) -> BTreeSet<u64> {
        let mut found = BTreeSet::new();
        for (topic, name) in TOPICS.iter().enumerate() {
            for (queue_id, queue) in store.queues_of(name) {
                let mut last = 0;
                for seen in reading::read(store, &queue, self.report) {
                    self.look_at(&seen, topic, queue_id, &mut last, &mut found);
                }
                self.report.tell(|| {
                    let (min, max) = (queue.min_offset(), queue.max_offset());
                    format!("{name}/{queue_id} has {min}..{max}, the last message is {last}")
                });
            }
        }
        found
    }

    fn look_at(&mut self, seen: &Seen, topic: usize, queue_id: u32, last: &mut u64, found: &mut BTreeSet<u64>) {
        let Seen { id, offset, .. } = *seen;
        let at = format!("{}/{queue_id} at {offset}: message {id}", TOPICS[topic]);
        let Some(sent) = self.messages.get(&id) else {
            return self.report.find(Verdict::Foreign, format!("{at} is none that could be there"));
        };
        let deleted = self.deleted[topic];
        if seen.body != body(id, sent.bytes) {
            self.report.find(Verdict::Foreign, format!("{at} has another body"));
        }
        if sent.generation < deleted.certain {
            self.report.find(Verdict::Resurrected, format!("{at} {sent:?}"));
        } else if (sent.topic, sent.queue, sent.offset) != (topic, queue_id, offset) {
            self.report.find(Verdict::Unordered, format!("{at} was stored as {sent:?}"));
        } else if id <= *last && deleted.certain == deleted.generation {
            self.report.find(Verdict::Unordered, format!("{at} stands behind {last}"));
        }
        if !found.insert(id) {
            self.report.find(Verdict::Duplicate, at);
        }
        *last = id;
    }
}
