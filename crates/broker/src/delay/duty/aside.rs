//! Delayed messages that the device did not give when they were due: set aside, so that their level goes on, and tried again with growing pauses.
//!
//! The journal has a row for each, written before its level's progress passes it, and gone when its delivery is on the device.

use std::sync::Arc;

use protocol::LogOffset;
use store::RecordAt;

use super::super::state::aside::AsideKey;
use super::{Delivery, Done, Prepared, UnflushedDelivery};
use crate::static_topic::late;
use crate::unreadable::WaitsFor;
use crate::waiting::fetch;
use crate::waiting::hold::Lane;
use crate::write::append;

/// So many are set aside, a row of the journal each. With more of them a level waits for its head.
const ASIDE_MAX: usize = 10_000;
/// Messages of one look at a level that the device may refuse.
pub(super) const UNREAD_MAX: usize = 8;
/// Why a message that the log should have is not there.
pub(super) const NOT_THERE: &str = "it is not where its queue says";

impl Delivery {
    /// Sets a message aside that cannot be read, so that its level can pass it. False when there are too many already.
    pub(super) fn set_aside(&mut self, level: usize, offset: u64, at: LogOffset, why: &str) -> bool {
        let (broker, key) = (Arc::clone(&self.broker), (level as u32, offset));
        let rows = &broker.delay.aside;
        if rows.at(key).is_none() && rows.len() >= ASIDE_MAX {
            let most = ASIDE_MAX;
            tracing::error!(
                level,
                offset,
                at = at.0,
                why,
                most,
                "too many delayed messages cannot be read; their level waits"
            );
            return false;
        }
        rows.add(&broker.store, key, at.0);
        if self.aside.failed(key, broker.clock.now().0) {
            let what = "delayed message cannot be read; its level goes on, and it is tried again with growing pauses";
            tracing::error!(level, offset, at = at.0, why, "{what}");
        }
        self.count_aside();
        true
    }

    pub(super) fn count_aside(&self) {
        self.broker.unreadable.are(WaitsFor::Delay, self.broker.delay.aside.len());
    }

    /// Tries one again that was set aside.
    pub(super) async fn try_again(&mut self, key: AsideKey) {
        let broker = Arc::clone(&self.broker);
        let (store, rows) = (&broker.store, &broker.delay.aside);
        let Some(at) = rows.at(key) else { return };
        let (level, offset) = key;
        if self.delivered.remove(&at) {
            // Before a crash.
            return self.give_up(key);
        }
        let slice = match fetch::record(store, LogOffset(at)).await {
            Ok(RecordAt::Record(slice)) => slice,
            Ok(RecordAt::Damaged) => {
                tracing::error!(level, at, "delayed message is damaged; it is not delivered, and its level goes on");
                return self.give_up(key);
            }
            Ok(RecordAt::Gone) if at < store.min_offset().0 => {
                tracing::error!(level, offset, at, "delayed message could not be read until the log had it no more");
                return self.give_up(key);
            }
            found @ (Ok(RecordAt::Gone) | Err(_)) => {
                if found.is_ok() {
                    rows.is_nowhere(key);
                }
                self.aside.failed(key, broker.clock.now().0);
                return;
            }
        };
        self.batch.clear();
        self.mappings.clear();
        let lane = match self.prepare(slice.as_ref(), LogOffset(at)) {
            Prepared::Added(lane) => lane,
            Prepared::Dropped => return self.give_up(key),
            Prepared::Elsewhere(_) => match self.hand_on(slice.as_ref(), LogOffset(at)) {
                Some(lane) => lane,
                None => return self.give_up(key),
            },
        };
        let refused = broker.append(&mut self.batch).await.err();
        self.mappings.clear();
        let Some(end) = self.batch.landed().last().map(|landed| landed.end) else {
            tracing::warn!(remark = refused.map(|refusal| refusal.remark), "delayed messages wait for the store");
            self.aside.failed(key, broker.clock.now().0);
            return;
        };
        tracing::info!(level, offset, at, "delayed message can be read again, and is delivered");
        self.aside.tries.is_done(&key);
        broker.wake(vec![lane], self.batch.light_queues(), end);
        self.unflushed.push_back(UnflushedDelivery { end, done: Done::Aside(key) });
    }

    fn give_up(&mut self, key: AsideKey) {
        self.aside.tries.is_done(&key);
        self.broker.delay.aside.forget(&self.broker.store, key);
        self.count_aside();
    }

    /// Adds a message whose queue another broker leads to those that are sent there.
    fn hand_on(&mut self, scheduled: &[u8], at: LogOffset) -> Option<Arc<Lane>> {
        let view = super::view_of(scheduled)?;
        let mut draft = append::again(&view);
        draft.prepared_offset = !(at.0 as i64);
        let (lane, tags) = late::waiting(&self.broker, &mut draft, late::SOON)?;
        append::push(&mut self.batch, &lane, tags, &draft);
        Some(lane)
    }
}
