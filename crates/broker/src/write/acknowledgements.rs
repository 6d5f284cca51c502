//! Bursts of sends of which answers, or consumers, wait for a stage: until they are written
//! (`transientStorePoolEnable`), flushed (SYNC_FLUSH) or replicated.
//!
//! One task answers them all: what a flush has covered is answered in one go, so that a flush costs
//! one wake-up, and one more for each connection that hears of it. Each answer is given at the
//! stage that it asks for. Consumers are woken when the store has confirmed the burst, whatever its
//! answers ask for. A burst that is late for a stage is answered with the code that names it
//! (FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT), and stays until consumers are woken.

use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::time::Duration;

use disk::Watermark;
use net::Outgoing;
use parking_lot::Mutex;
use protocol::LogOffset;
use protocol::code::ResponseCode;
use store::{ConsumeQueue, Landed, Stage, Store};
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::timeout;

use crate::broker::Broker;
use crate::caller::JOURNAL_TIMEOUT;
use crate::client_handle::OwedAnswer;
use crate::inbox::{Errand, Inbox};
use crate::sends::{Answer, Receipts};
use crate::state::falls::Cause;
use crate::tasks::Stop;
use crate::waiting::hold::{Lane, ParkedPull};

/// Answers of a burst and its consumers wait for the same stage.
const BOTH_FLUSHED: (Stage, Stage) = (Stage::Flushed, Stage::Flushed);
/// How often the task looks who is late, where the device is.
const LOOK: Duration = Duration::from_millis(100);

/// A burst that is appended, and has not come to all stages that are waited for.
pub(crate) struct UnflushedBurst {
    pub(crate) receipts: Receipts,
    pub(crate) landed: Vec<Landed>,
    /// Whom to wake when it is confirmed; nobody once that is done.
    pub(crate) lanes: Vec<Arc<Lane>>,
    pub(crate) light: Vec<Arc<ConsumeQueue>>,
    pub(crate) end: LogOffset,
    /// The stage that it comes to next. Answers that ask for an earlier one are given.
    pub(crate) next: Stage,
    /// When the append began, by the clock's elapsed time.
    pub(crate) began: Duration,
    pub(crate) inbox: Arc<Inbox>,
    /// Room of its connection, given back when it is done.
    pub(crate) _permit: Option<OwnedSemaphorePermit>,
}

/// One that waits its turn.
struct Waiting {
    burst: UnflushedBurst,
    /// When its producer is told that the device is late, by the clock's elapsed time.
    late_at: Duration,
    limit: Duration,
    /// What has not happened in time.
    missed: Option<Missed>,
    /// Until it is answered, its connection stays.
    debt: Option<OwedAnswer>,
}

/// What an answer names as late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missed {
    /// The journal, with the topic of the burst.
    Journal,
    /// This stage of the burst.
    Stage(Stage),
}

impl UnflushedBurst {
    fn has_consumers(&self) -> bool {
        !(self.lanes.is_empty() && self.light.is_empty())
    }
}

/// What has come since the task looked last.
#[derive(Default)]
struct Came {
    bursts: Vec<Waiting>,
    /// The task sleeps without end: whoever comes first wakes it.
    is_asleep: bool,
}

/// All that wait.
#[derive(Default)]
pub(crate) struct Acknowledgements {
    /// Guards nothing else.
    came: Mutex<Came>,
    bell: Notify,
}

impl Acknowledgements {
    /// Sees to the answers of a burst, when it is flushed, and when the journal is written up to
    /// `durable_after`. Where one of them waits for the device, the journal is there too: a message
    /// whose topic is lost with the power cannot be asked for.
    pub(crate) fn begin(self: &Arc<Self>, broker: &Broker, burst: UnflushedBurst, durable_after: u64) {
        let limit = Duration::from_millis(broker.store_settings.load().sync_flush_timeout);
        let late_at = broker.clock.elapsed() + limit;
        let debt = Some(burst.inbox.owe());
        let mut waiting = Waiting { burst, late_at, limit, missed: None, debt };
        let mark = broker.store.journal().mark_of(durable_after, waiting.burst.receipts.stage > Stage::Written);
        if mark.get() >= durable_after {
            self.push(waiting);
            return;
        }
        // The first messages of a topic: the journal is nearly always there before the log.
        let (mark, clock, acknowledgements) = (Arc::clone(mark), broker.clock.clone(), Arc::clone(self));
        tokio::spawn(async move {
            waiting.missed = timeout(JOURNAL_TIMEOUT, mark.reached(durable_after)).await.err().map(|_| Missed::Journal);
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
}

/// The task. When it ends, those that still wait hear nothing any more.
pub(crate) async fn acknowledge(broker: Arc<Broker>, mut stop: Stop) {
    let all = Arc::clone(&broker.acknowledgements);
    let (marks, clock) = (Stage::ALL.map(|stage| broker.store.mark(stage)), &broker.clock);
    let (mut came, mut waiting, mut desk) = (Vec::new(), Vec::new(), Replier::default());
    while !stop.is_asked() {
        let has_none = {
            let mut state = all.came.lock();
            std::mem::swap(&mut state.bursts, &mut came);
            state.is_asleep = came.is_empty() && waiting.is_empty();
            state.is_asleep
        };
        if has_none {
            tokio::select! {
                biased;
                () = stop.asked() => {}
                () = all.bell.notified() => {}
            }
            continue;
        }
        waiting.append(&mut came);
        let (reached, now) = (marks.map(Watermark::get), clock.elapsed());
        waiting.retain_mut(|waiting| !desk.is_over(&broker, waiting, reached));
        for late in waiting.iter_mut().filter(|waiting| waiting.late_at <= now) {
            late.missed = Some(Missed::Stage(late.burst.next));
            desk.answer(&broker, late);
        }
        // Without one it looks once more who has come, and sleeps.
        if waiting.is_empty() {
            continue;
        }
        let asked = broker.store.stage();
        let first = |stage: Stage| {
            let bursts = waiting.iter().map(|waiting| &waiting.burst);
            // Where both wait for the flush, one mark is enough: the store raises what is confirmed
            // before it.
            let is_for = |burst: &&UnflushedBurst| {
                burst.next == stage
                    || stage == Stage::Replicated && burst.has_consumers() && (burst.next, asked) != BOTH_FLUSHED
            };
            bursts.filter(is_for).map(|burst| burst.end.0).min()
        };
        let [written, flushed, confirmed] = Stage::ALL.map(|stage| {
            let first = first(stage);
            (first.is_some(), marks[stage as usize].reached(first.unwrap_or_default()))
        });
        let late_at = waiting.iter().filter(|waiting| waiting.debt.is_some()).map(|waiting| waiting.late_at).min();
        let look_at = late_at.map_or(LOOK, |late_at| late_at.saturating_sub(now).min(LOOK));
        tokio::select! {
            biased;
            () = stop.asked() => {}
            () = confirmed.1, if confirmed.0 => {}
            () = flushed.1, if flushed.0 => {}
            () = written.1, if written.0 => {}
            // Also at who has come meanwhile.
            () = tokio::time::sleep(look_at) => {}
            () = all.bell.notified() => {}
        }
    }
}

/// What answering needs again and again.
#[derive(Default)]
struct Replier {
    ids: String,
    woken: Vec<ParkedPull>,
}

impl Replier {
    /// Sees to what a burst has come to by now, and says whether nothing of it waits any more.
    /// `reached`: how far the log has come, by stage.
    fn is_over(&mut self, broker: &Broker, waiting: &mut Waiting, reached: [u64; 3]) -> bool {
        let (burst, end) = (&waiting.burst, waiting.burst.end.0);
        let is_confirmed = reached[Stage::Replicated as usize] >= end;
        let (from, mut next) = (burst.next, Some(burst.next));
        // Ends behind the last stage.
        while let Some(stage) = next.filter(|stage| reached[*stage as usize] >= end) {
            let answers = Stage::ALL.get(stage as usize + 1).and_then(|after| burst.receipts.next_stage(*after));
            next = answers.or_else(|| (burst.has_consumers() && !is_confirmed).then_some(Stage::Replicated));
        }
        match next {
            None => self.answer(broker, waiting),
            Some(next) if next > from => {
                if from == Stage::Written {
                    broker.flush_for(&burst.receipts);
                }
                if burst.receipts.next_stage(next).is_none() {
                    // Only consumers wait from here on.
                    self.answer(broker, waiting);
                } else if waiting.debt.is_some() {
                    self.reply(broker, waiting, ..next);
                }
                waiting.burst.next = next;
            }
            Some(_) => {}
        }
        if is_confirmed && waiting.burst.has_consumers() {
            self.wake(broker, &mut waiting.burst);
        }
        next.is_none()
    }

    /// Answers what has no answer yet of a burst: all of it has come to its stage, or something is
    /// late.
    fn answer(&mut self, broker: &Broker, waiting: &mut Waiting) {
        // Given back when the answer lies in the inbox.
        let Some(_debt) = waiting.debt.take() else { return };
        let burst = &waiting.burst;
        let took = broker.clock.elapsed().saturating_sub(burst.began);
        broker.stats.put_times.stored(burst.landed.len(), took);
        broker.stats.waits.add(Cause::Flush, took);
        self.reply(broker, waiting, ..);
    }

    /// Answers what asks for these stages of a burst, and has no answer yet.
    fn reply(&mut self, broker: &Broker, waiting: &Waiting, stages: impl RangeBounds<Stage>) {
        let Waiting { burst, limit, missed, .. } = waiting;
        let settings = broker.settings.load();
        let late = missed.map(|missed| match missed {
            Missed::Journal => late_topic(burst.receipts.stage, JOURNAL_TIMEOUT),
            Missed::Stage(stage) => late(&broker.store, stage, burst.end, *limit),
        });
        let (code, remark) = match &late {
            None => (ResponseCode::Success, None),
            Some((code, remark)) => (*code, Some(&**remark)),
        };
        let is_stored = *missed != Some(Missed::Stage(Stage::Written));
        let answer = Answer { code, remark, is_stored, host: broker.advertised, settings: &settings };
        let mut out = Outgoing::new();
        let stages = (Bound::Included(&burst.next), stages.end_bound());
        burst.receipts.reply_to(stages, &burst.landed, &answer, &mut self.ids, &mut out);
        if !out.is_empty() {
            // Through the inbox, which cannot be full: a reply that got lost would be sent a second
            // time by its producer.
            burst.inbox.push(Errand::Frames(out.take()));
        }
    }

    /// Wakes who waits for what a burst brought, once.
    fn wake(&mut self, broker: &Broker, burst: &mut UnflushedBurst) {
        let (mut lanes, light) = (std::mem::take(&mut burst.lanes), std::mem::take(&mut burst.light));
        broker.lite.arrived(&light);
        broker.topics.light_lanes(&light, &mut lanes);
        broker.hold.arrived(lanes.iter(), &mut self.woken);
    }
}

/// Waits until the log has come to a stage up to `end`, and the journal up to `durable_after`, for
/// `limit` at most.
pub(crate) async fn reached(
    store: &Store,
    stage: Stage,
    end: LogOffset,
    durable_after: u64,
    limit: Duration,
) -> Result<(), Missed> {
    let topics = store.journal().mark_of(durable_after, stage > Stage::Written);
    let both = async {
        store.mark(stage).reached(end.0).await;
        topics.reached(durable_after).await;
    };
    match timeout(limit, both).await {
        Ok(()) => Ok(()),
        Err(_) if topics.get() < durable_after => Err(Missed::Journal),
        Err(_) => Err(Missed::Stage(stage)),
    }
}

/// Code and remark of the answer to a send whose topic is not in the journal within `limit`.
pub(crate) fn late_topic(stage: Stage, limit: Duration) -> (ResponseCode, String) {
    let stored = match stage {
        Stage::Written => "written into the journal",
        Stage::Flushed | Stage::Replicated => "on the device with the journal",
    };
    let limit = limit.as_millis();
    (ResponseCode::FlushDiskTimeout, format!("stored, but its topic is not {stored} within {limit} ms"))
}

/// Code and remark of the answer to a send that has not come to this stage within `limit`.
pub(crate) fn late(store: &Store, stage: Stage, end: LogOffset, limit: Duration) -> (ResponseCode, String) {
    let limit = limit.as_millis();
    match stage {
        Stage::Written => (
            ResponseCode::FlushDiskTimeout,
            format!(
                "not written to the log within {limit} ms (syncFlushTimeout), and in memory only (transientStorePoolEnable=true)"
            ),
        ),
        Stage::Replicated if store.replicated().get() < end.0 => (
            ResponseCode::FlushSlaveTimeout,
            format!("stored, but not on enough replicas within {limit} ms (syncFlushTimeout)"),
        ),
        Stage::Flushed | Stage::Replicated => {
            (ResponseCode::FlushDiskTimeout, format!("stored, but not flushed within {limit} ms (syncFlushTimeout)"))
        }
    }
}
