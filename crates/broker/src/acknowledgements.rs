//! Bursts of sends of which answers wait for a flush (SYNC_FLUSH), or until they are written (`transientStorePoolEnable`).
//!
//! One task answers them all: what a flush has covered is answered in one go, so that a flush costs one wake-up, and one more for each
//! connection that hears of it. A burst that the device is late for is answered with FLUSH_DISK_TIMEOUT, and stays until it is
//! flushed: only then may consumers be woken. A burst that is in the write pool waits until it is written; then whoever does not wait for the
//! device is answered, and with ASYNC_FLUSH consumers are woken.

use std::sync::Arc;
use std::time::Duration;

use net::{Debt, Outgoing};
use parking_lot::Mutex;
use protocol::LogOffset;
use protocol::code::ResponseCode;
use store::{ConsumeQueue, Landed};
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::timeout;

use crate::broker::Broker;
use crate::falls::Cause;
use crate::hold::{Lane, ParkedPull, Work};
use crate::inbox::{Errand, Inbox};
use crate::sends::{Answer, Receipts};
use crate::session::JOURNAL_TIMEOUT;

/// How often the task looks who is late, where the device is.
const LOOK: Duration = Duration::from_millis(100);

/// A burst that is appended and not flushed, or not even written.
pub(crate) struct Unflushed {
    pub(crate) receipts: Receipts,
    pub(crate) landed: Vec<Landed>,
    /// Whom to wake when it is flushed; nobody where consumers see what is not flushed.
    pub(crate) lanes: Vec<Arc<Lane>>,
    pub(crate) light: Vec<Arc<ConsumeQueue>>,
    pub(crate) end: LogOffset,
    /// It is in the log's file; then those are answered that do not wait for the device.
    pub(crate) is_written: bool,
    /// When the append began, by the clock's elapsed time.
    pub(crate) began: Duration,
    pub(crate) inbox: Arc<Inbox>,
    /// Room of its connection, given back when it is done.
    pub(crate) _permit: Option<OwnedSemaphorePermit>,
}

/// One that waits its turn.
struct Waiting {
    burst: Unflushed,
    /// When its producer is told that the device is late, by the clock's elapsed time.
    late_at: Duration,
    limit: Duration,
    /// Its topic was written into the journal, or was there on the device, in time.
    is_journalled: bool,
    /// Until it is answered, its connection stays.
    debt: Option<Debt<Work>>,
}

/// What has come since the task looked last.
#[derive(Default)]
struct Came {
    bursts: Vec<Waiting>,
    /// The task sleeps without end: whoever comes first wakes it.
    is_asleep: bool,
    has_stopped: bool,
}

/// All that wait.
#[derive(Default)]
pub(crate) struct Acknowledgements {
    /// Guards nothing else.
    came: Mutex<Came>,
    bell: Notify,
}

impl Acknowledgements {
    /// Sees to the answers of a burst, when it is flushed, and when the journal is written up to `durable_after`. Where one of them waits for the
    /// device, the journal is there too: a message whose topic is lost with the power cannot be asked for.
    pub(crate) fn begin(self: &Arc<Self>, broker: &Broker, burst: Unflushed, durable_after: u64) {
        let limit = Duration::from_millis(broker.store_settings.load().sync_flush_timeout);
        let late_at = broker.clock.elapsed() + limit;
        let debt = Some(burst.inbox.owe());
        let mut waiting = Waiting { burst, late_at, limit, is_journalled: true, debt };
        let mark = broker.store.journal().mark_of(durable_after, waiting.burst.receipts.any_waits);
        if mark.get() >= durable_after {
            self.push(waiting);
            return;
        }
        // The first messages of a topic: the journal is nearly always there before the log.
        let (mark, clock, acknowledgements) = (Arc::clone(mark), broker.clock.clone(), Arc::clone(self));
        tokio::spawn(async move {
            waiting.is_journalled = timeout(JOURNAL_TIMEOUT, mark.reached(durable_after)).await.is_ok();
            waiting.late_at = clock.elapsed() + limit;
            acknowledgements.push(waiting);
        });
    }

    fn push(&self, waiting: Waiting) {
        let mut came = self.came.lock();
        came.bursts.push(waiting);
        let is_asleep = std::mem::take(&mut came.is_asleep);
        drop(came);
        if is_asleep {
            self.bell.notify_one();
        }
    }

    /// Ends the task. Whoever still waits hears nothing any more.
    pub(crate) fn stop(&self) {
        self.came.lock().has_stopped = true;
        self.bell.notify_one();
    }
}

/// The task.
pub(crate) async fn acknowledge(broker: Arc<Broker>) {
    let all = Arc::clone(&broker.acknowledgements);
    let (flushed, written, clock) = (broker.store.flushed(), broker.store.written(), &broker.clock);
    let (mut came, mut waiting, mut desk) = (Vec::new(), Vec::new(), Desk::default());
    // Ends with the broker.
    loop {
        let has_none = {
            let mut state = all.came.lock();
            if state.has_stopped {
                return;
            }
            std::mem::swap(&mut state.bursts, &mut came);
            state.is_asleep = came.is_empty() && waiting.is_empty();
            state.is_asleep
        };
        if has_none {
            all.bell.notified().await;
            continue;
        }
        waiting.append(&mut came);
        // What is flushed was written before.
        let (at, written_to, now) = (flushed.get(), written.get(), clock.elapsed());
        waiting.retain_mut(|waiting| {
            let is_news = !waiting.burst.is_written && waiting.burst.end.0 <= written_to;
            !(is_news && desk.is_over_when_written(&broker, waiting))
        });
        for mut done in waiting.extract_if(.., |waiting: &mut Waiting| waiting.burst.end.0 <= at) {
            desk.answer(&broker, &mut done, true);
            desk.wake(&broker, &mut done.burst);
        }
        for late in waiting.iter_mut().filter(|waiting| waiting.late_at <= now) {
            desk.answer(&broker, late, false);
        }
        // Without one it looks once more who has come, and sleeps.
        if waiting.is_empty() {
            continue;
        }
        let first = |is_written: bool| {
            let bursts = waiting.iter().map(|waiting| &waiting.burst);
            bursts.filter(|burst| burst.is_written == is_written).map(|burst| burst.end.0).min()
        };
        let (to_write, to_flush) = (first(false), first(true));
        let late_at = waiting.iter().filter(|waiting| waiting.debt.is_some()).map(|waiting| waiting.late_at).min();
        let look_at = late_at.map_or(LOOK, |late_at| late_at.saturating_sub(now).min(LOOK));
        tokio::select! {
            biased;
            () = flushed.reached(to_flush.unwrap_or_default()), if to_flush.is_some() => {}
            () = written.reached(to_write.unwrap_or_default()), if to_write.is_some() => {}
            // Also at who has come meanwhile.
            () = tokio::time::sleep(look_at) => {}
            () = all.bell.notified() => {}
        }
    }
}

/// What answering needs again and again.
#[derive(Default)]
struct Desk {
    ids: String,
    woken: Vec<ParkedPull>,
}

impl Desk {
    /// Sees to a burst of the write pool that has come into the log's file, and says whether nothing of it waits for the device.
    fn is_over_when_written(&mut self, broker: &Broker, waiting: &mut Waiting) -> bool {
        // After the look at what is written: see `store::flush::Mode`.
        let is_shown = !broker.is_sync_flush();
        let any_waits = waiting.burst.receipts.any_waits;
        if !any_waits {
            self.answer(broker, waiting, true);
        } else if waiting.debt.is_some() {
            self.reply(broker, waiting, &[false], true);
        }
        waiting.burst.is_written = true;
        if is_shown {
            if any_waits {
                broker.store.want_flush();
            }
            self.wake(broker, &mut waiting.burst);
        }
        is_shown && !any_waits
    }

    /// Answers a burst, if it has no answer yet. `is_safe`: what it waits for has come.
    fn answer(&mut self, broker: &Broker, waiting: &mut Waiting, is_safe: bool) {
        // Given back when the answer lies in the inbox.
        let Some(_debt) = waiting.debt.take() else { return };
        let burst = &waiting.burst;
        let took = broker.clock.elapsed().saturating_sub(burst.began);
        broker.stats.put_times.stored(burst.landed.len(), took);
        broker.stats.waits.add(Cause::Flush, took);
        // Those that do not wait for the device were answered when it was written.
        self.reply(broker, waiting, if burst.is_written { &[true] } else { &[false, true] }, is_safe);
    }

    /// Answers those of a burst that wait for the device, or those that do not.
    fn reply(&mut self, broker: &Broker, waiting: &Waiting, which: &[bool], is_safe: bool) {
        let Waiting { burst, limit, is_journalled, .. } = waiting;
        let settings = broker.settings.load();
        let late = match (is_safe, *is_journalled) {
            (true, true) => None,
            (true, false) => Some(format!(
                "stored, but its topic is not {} within {} ms",
                if burst.receipts.any_waits { "on the device with the journal" } else { "written into the journal" },
                JOURNAL_TIMEOUT.as_millis()
            )),
            (false, _) if burst.is_written => {
                Some(format!("stored, but not flushed within {} ms (syncFlushTimeout)", limit.as_millis()))
            }
            (false, _) => Some(format!(
                "not written to the log within {} ms (syncFlushTimeout), and in memory only (transientStorePoolEnable=true)",
                limit.as_millis()
            )),
        };
        let code = if late.is_none() { ResponseCode::Success } else { ResponseCode::FlushDiskTimeout };
        let is_stored = is_safe || burst.is_written;
        let answer = Answer { code, remark: late.as_deref(), is_stored, host: broker.advertised, settings: &settings };
        let mut out = Outgoing::new();
        for waits in which {
            burst.receipts.reply_to(*waits, &burst.landed, &answer, &mut self.ids, &mut out);
        }
        if !out.is_empty() {
            // Through the inbox, which cannot be full: a reply that got lost would be sent a second time by its producer.
            burst.inbox.push(Errand::Frames(out.take()));
        }
    }

    /// Wakes who waits for what a burst brought, once.
    fn wake(&mut self, broker: &Broker, burst: &mut Unflushed) {
        let (mut lanes, light) = (std::mem::take(&mut burst.lanes), std::mem::take(&mut burst.light));
        broker.topics.light_lanes(&light, &mut lanes);
        broker.hold.arrived(lanes.iter(), &mut self.woken);
    }
}
