//! Transaction messages: half messages that nobody sees until their producer commits them.
//!
//! On disk as in Apache: a half message lies in queue 0 of `RMQ_SYS_TRANS_HALF_TOPIC`, and its end, commit or rollback, is a message in
//! `RMQ_SYS_TRANS_OP_HALF_TOPIC` whose body lists half queue offsets. The offsets that group `CID_RMQ_SYS_TRANS` has committed on both say
//! from where a start has to read. A committed message and its end are appended as one group, so that no crash separates them but one that
//! cuts the log between the two; the start finds that message at the end of the log and writes its end again.
//!
//! Unlike in Apache, a half message is not stored again each time its producer is asked: how often that was is in the journal.

mod check;
mod end;
mod ledger;
mod load;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use config::{BrokerSettings, StoreSettings};
use journal::Table;
use parking_lot::Mutex;
use protocol::properties::name;
use protocol::record::RecordView;
use protocol::{LogOffset, names};
use store::{Landed, Store, StoreError};
use tokio::sync::Notify;

use crate::broker::Broker;
use crate::facts;
use crate::offsets::Offsets;
use crate::protect;
use crate::refusal::Refusal;
use crate::sends::Ending;
use crate::tables;
use crate::topics::{Topic, Topics};

pub(crate) use check::{ask, mend};
pub(crate) use end::{end, resume};
use ledger::Ledger;

/// Whose offsets say how far half messages and ends are dealt with.
const GROUP: &str = "CID_RMQ_SYS_TRANS";

const HOUR_MS: i64 = 3_600_000;

/// The tag of every message in the queue of ends: "deleted".
const OP_TAG: &str = "d";

/// Half messages and what is known of them.
pub(crate) struct Transactions {
    half: Arc<Topic>,
    op: Arc<Topic>,
    ledger: Mutex<Ledger>,
    /// A half message that was committed before the start, and whose end is not in the log.
    lost_end: Mutex<Option<u64>>,
    /// Rung when the half queue grows.
    bell: Arc<Notify>,
    is_stopping: AtomicBool,
    has_stopped: Notify,
}

impl Transactions {
    pub(crate) fn new(topics: &Topics) -> Transactions {
        Transactions {
            half: topics.half(),
            op: topics.op(),
            ledger: Mutex::default(),
            lost_end: Mutex::default(),
            bell: Arc::clone(topics.half_bell()),
            is_stopping: AtomicBool::new(false),
            has_stopped: Notify::new(),
        }
    }

    /// Reads which half messages are open. After the offsets of another broker have been imported, and before anybody is served.
    pub(crate) fn load(
        &self,
        store: &Arc<Store>,
        offsets: &Offsets,
        timeout_ms: i64,
        kept_ms: i64,
        now: i64,
    ) -> Result<(), StoreError> {
        let (ledger, lost_end) = load::load(store, offsets, &self.half, &self.op, timeout_ms, kept_ms, now)?;
        *self.ledger.lock() = ledger;
        *self.lost_end.lock() = lost_end;
        Ok(())
    }

    /// The topic of half messages.
    pub(crate) fn half(&self) -> &Arc<Topic> {
        &self.half
    }

    /// How many half messages wait for their end.
    pub(crate) fn open(&self) -> usize {
        self.ledger.lock().len()
    }

    /// The same, with those that are stored and that the task has not taken in yet. A few of these may be ended already.
    fn coming(&self) -> usize {
        // Opened when the first one comes.
        let lane = self.half.opened_lane(0);
        let ledger = self.ledger.lock();
        let stored = lane.map_or(0, |lane| lane.queue.max_offset());
        ledger.len().saturating_add(usize::try_from(stored.saturating_sub(ledger.next())).unwrap_or(usize::MAX))
    }

    /// Refuses one half message too many: producers that do not come back leave theirs open for days. `gathered`: those that the connection is
    /// about to store.
    pub(crate) fn check_room(&self, settings: &BrokerSettings, gathered: usize) -> Result<(), Refusal> {
        let (open, limit) = (self.coming().saturating_add(gathered), settings.open_half_messages_max);
        if open < limit {
            return Ok(());
        }
        let what = format_args!(
            "[GANTRY]system busy, start flow control for a while: {open} half messages are open, the limit is {limit} (openHalfMessagesMax)"
        );
        // When producers are asked about theirs the next time.
        Err(Refusal::busy(what, Duration::from_millis(settings.transaction_check_interval.max(0) as u64)))
    }

    /// Tells what became of the ends in a batch: those that landed count, the others may be tried again.
    pub(crate) fn settle(&self, store: &Store, endings: &mut Vec<Ending>, landed: &[Landed]) {
        if endings.is_empty() {
            return;
        }
        let mut ledger = self.ledger.lock();
        for ending in endings.drain(..) {
            let Some(record) = landed.get(ending.record) else {
                ledger.release(ending.half_offset);
                continue;
            };
            if ledger.ended(ending.half_offset, record.queue_offset) > 0 {
                store.journal().delete(tables::CHECKS, &ending.half_offset.to_be_bytes());
            }
        }
        drop(ledger);
        // For the task, which notes how far the ends have come.
        self.bell.notify_one();
    }

    /// Lets the task finish what it is at, and waits for it.
    pub(crate) async fn stop(&self) {
        let stopped = self.has_stopped.notified();
        if !self.is_stopping.swap(true, Ordering::AcqRel) {
            self.bell.notify_one();
            stopped.await;
        }
    }
}

/// Half queue offset → how often a producer was asked, for open half messages about which one was.
impl Table for Transactions {
    fn for_each(&self, f: &mut dyn FnMut(&[u8], &[u8])) {
        let asked: Vec<(u64, u32)> =
            self.ledger.lock().open().filter(|open| open.checks > 0).map(|open| (open.offset, open.checks)).collect();
        for (offset, checks) in asked {
            f(&offset.to_be_bytes(), &checks.to_be_bytes());
        }
    }
}

/// The properties and the body of a message that ends one half message: its offset without a comma behind it, which brokers before 5.0 could
/// not read. They would ask again.
fn write_op(properties: &mut Vec<u8>, body: &mut String, half_offset: u64) {
    use std::fmt::Write;
    properties.clear();
    facts::put(properties, name::TAGS, OP_TAG);
    body.clear();
    let _ = write!(body, "{half_offset}");
}

/// The half queue offsets that the body of an end lists. Brokers before 5.0 wrote one, without a comma behind it.
fn ended_offsets(body: &[u8]) -> impl Iterator<Item = u64> {
    let text = std::str::from_utf8(body).unwrap_or_default();
    text.split(',').filter_map(|number| number.trim().parse().ok())
}

/// Where the oldest half message lies that may be open: from where a start reads. Called by a thread that may wait.
pub(crate) fn needed_from(broker: &Broker) -> Option<LogOffset> {
    let committed =
        broker.offsets.committed(GROUP, names::TRANS_HALF_TOPIC, 0).and_then(|offset| u64::try_from(offset).ok());
    protect::first_from(broker, names::TRANS_HALF_TOPIC, 0, committed.unwrap_or(0))
}

/// How long after it was stored a half message is looked at first, in ms: its producer is asked, or it is given up because it is as old as the
/// log is kept. So it waits no longer, whatever its immunity.
fn first_wait_ms(view: &RecordView<'_>, timeout_ms: i64, kept_ms: i64) -> i64 {
    immunity_ms(view).unwrap_or(timeout_ms).min(kept_ms)
}

/// A half message that is as old is given up.
pub(crate) fn kept_ms(settings: &StoreSettings) -> i64 {
    i64::try_from(settings.file_reserved_time).unwrap_or(i64::MAX).saturating_mul(HOUR_MS)
}

/// How long after its birth a half message may be ended by its producer without being asked, if the producer says so, in ms.
fn immunity_ms(view: &RecordView<'_>) -> Option<i64> {
    let seconds = view.property(name::CHECK_IMMUNITY_TIME_IN_SECONDS)?.trim().parse::<i64>().ok()?;
    (seconds >= 0).then(|| seconds.saturating_mul(1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_old_and_new_brokers_are_understood() {
        assert_eq!(ended_offsets(b"12,15,16,").collect::<Vec<_>>(), [12, 15, 16]);
        assert_eq!(ended_offsets(b"7").collect::<Vec<_>>(), [7]);
        assert_eq!(ended_offsets(b"x,,-1,3").collect::<Vec<_>>(), [3]);
        assert_eq!(ended_offsets(&[0xff]).count(), 0);
    }
}
