//! Bursts of sends of which answers, or consumers, wait for stages: until they are written
//! (`transientStorePoolEnable`), flushed (SYNC_FLUSH), confirmed, or on slaves (SYNC_MASTER).
//!
//! One task answers them all: what a flush or an acknowledgement of a slave has covered is answered
//! in one go, so that it costs one wake-up, and one more for each connection that hears of it. Each
//! answer is given when the burst has come to the stages that it asks for, in whatever order.
//! Consumers are woken when the store has confirmed the burst, whatever its answers ask for. A
//! burst that is late for a stage is answered with the code that names it (FLUSH_DISK_TIMEOUT,
//! FLUSH_SLAVE_TIMEOUT; SLAVE_NOT_AVAILABLE at once if there are not enough slaves), and stays until
//! consumers are woken.

use std::sync::Arc;
use std::time::Duration;

use disk::Watermark;
use net::Outgoing;
use protocol::LogOffset;
use protocol::code::ResponseCode;
use store::{ConsumeQueue, Landed, Stage, Stages, Store};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use crate::broker::Broker;
use crate::caller::JOURNAL_TIMEOUT;
use crate::client_handle::OwedAnswer;
use crate::inbox::{Errand, Inbox};
use crate::sends::{Answer, Receipt, Receipts};
use crate::state::copies::Copies;
use crate::state::falls::Cause;
use crate::tasks::Stop;
use crate::waiting::hold::{Lane, ParkedPull};
use crate::write::came::{Came, Sleep, Wish, Wishes};

/// How often it is checked whether a burst is late for the device or for slaves.
const LOOK: Duration = Duration::from_millis(100);

/// How long a send may wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// For the pool's thread and the device (`syncFlushTimeout`).
    pub(crate) flush: Duration,
    /// For slaves (`slaveTimeout`).
    pub(crate) copies: Duration,
}

impl Limits {
    pub(crate) fn of(broker: &Broker) -> Limits {
        let settings = broker.store_settings.load();
        let (flush, copies) = (settings.sync_flush_timeout, settings.slave_timeout);
        Limits { flush: Duration::from_millis(flush), copies: Duration::from_millis(copies) }
    }

    /// When a stage is late. `began`: the append, `since`: the wait, which follows it once the
    /// connection has room for one more burst and the journal has the topic. Slaves have no more time
    /// for that: a client that has given up does not hear that they are late.
    fn end_of(self, stage: Stage, began: Duration, since: Duration) -> Duration {
        if Stage::COPIED.contains(&stage) { began + self.copies } else { since + self.flush }
    }
}

/// A burst that is appended, and has not come to all stages that are waited for.
pub(crate) struct UnflushedBurst {
    pub(crate) receipts: Receipts,
    pub(crate) landed: Vec<Landed>,
    /// Whom to wake when it is confirmed; nobody once that is done.
    pub(crate) lanes: Vec<Arc<Lane>>,
    pub(crate) light: Vec<Arc<ConsumeQueue>>,
    pub(crate) end: LogOffset,
    /// What it has come to. Answers that ask for no more are given.
    pub(crate) reached: Stages,
    /// When the append began, by the clock's elapsed time.
    pub(crate) began: Duration,
    pub(crate) inbox: Arc<Inbox>,
    /// Room of its connection, given back when it is done.
    pub(crate) _permit: Option<OwnedSemaphorePermit>,
}

/// One that waits its turn.
struct Waiting {
    burst: UnflushedBurst,
    /// Since when it has waited for the device, by the clock's elapsed time.
    since: Duration,
    limits: Limits,
    /// Its topic was not in the journal in time, here or at slaves.
    late_topic: Option<Missed>,
    /// Stages that have not come in time: answers that ask for one of them are given.
    given_up: Stages,
    /// What answers still wait for; see [`Waiting::look`].
    left: Stages,
    /// Until all of it is answered, its connection stays.
    debt: Option<OwedAnswer>,
}

/// What an answer names as late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missed {
    /// The journal, with the topic of the burst, within this time.
    Journal(Duration),
    /// The journals of slaves, with the topic of the burst, within this time.
    Topic(Duration),
    /// This stage of the burst.
    Stage(Stage),
    /// Slaves that this stage needs: they are not there.
    Slaves(Stage),
}

impl Missed {
    /// Whether the record is in the log, however late all else is.
    pub(crate) fn is_stored(self) -> bool {
        self != Missed::Stage(Stage::Written)
    }

    /// What was waited for.
    fn cause(self) -> Cause {
        match self {
            Missed::Journal(_) => Cause::Flush,
            Missed::Topic(_) => Cause::Replica,
            Missed::Stage(stage) | Missed::Slaves(stage) => cause(Stages::NONE.with(stage)),
        }
    }
}

/// What a wait for these stages is put down to.
fn cause(stages: Stages) -> Cause {
    if stages.ask_for_copies() { Cause::Replica } else { Cause::Flush }
}

impl UnflushedBurst {
    fn has_consumers(&self) -> bool {
        !(self.lanes.is_empty() && self.light.is_empty())
    }
}

impl Waiting {
    /// Whether what asks for these stages has no answer yet.
    fn is_open(&self, stages: Stages) -> bool {
        self.debt.is_some() && !stages.are_among(self.burst.reached) && !stages.meet(self.given_up)
    }

    /// Looks what its answers still wait for, after one of them was given.
    fn look(&mut self) {
        self.left = self.burst.receipts.left(|stages| self.is_open(stages)).beyond(self.burst.reached);
    }

    /// When a stage is late that its answers wait for, and which one.
    fn late_at(&self) -> Option<(Duration, Stage)> {
        let late_at = |stage| (self.limits.end_of(stage, self.burst.began, self.since), stage);
        self.left.each().map(late_at).min_by_key(|(at, _)| *at)
    }
}

impl Wishes for Waiting {
    fn wish(&self) -> Wish {
        // One that is late already has its answers at once.
        let answers = if let Some(Missed::Journal(_)) = self.late_topic { Stages::NONE } else { self.left };
        Wish { answers, has_consumers: self.burst.has_consumers(), end: self.burst.end }
    }
}

/// All that wait.
#[derive(Default)]
pub(crate) struct Acknowledgements {
    came: Came<Waiting>,
}

impl Acknowledgements {
    /// Sees to the answers of a burst, when it has come to their stages, and when the journal is
    /// written up to `durable_after`. Where one of them waits for the device, the journal is there
    /// too: a message whose topic is lost with the power cannot be asked for.
    pub(crate) fn begin(self: &Arc<Self>, broker: &Broker, burst: UnflushedBurst, durable_after: u64) {
        let (limits, since) = (Limits::of(broker), broker.clock.elapsed());
        let debt = Some(burst.inbox.owe());
        let (given_up, left) = (Stages::NONE, Stages::NONE);
        let mut waiting = Waiting { burst, since, limits, late_topic: None, given_up, left, debt };
        waiting.look();
        let is_on_device = waiting.burst.receipts.stages.ask_for_device();
        let mark = broker.store.journal().mark_of(durable_after, is_on_device);
        let asks_for_copies = durable_after > 0 && waiting.burst.receipts.stages.ask_for_copies();
        let copying = asks_for_copies.then(|| broker.copying()).filter(|copying| !copying.has(durable_after));
        if mark.get() >= durable_after && copying.is_none() {
            self.came.push(waiting);
            return;
        }
        // The first messages of a topic: the journal is nearly always there before the log.
        let (mark, clock, acknowledgements) = (Arc::clone(mark), broker.clock.clone(), Arc::clone(self));
        tokio::spawn(async move {
            let is_late = timeout(JOURNAL_TIMEOUT, mark.reached(durable_after)).await.is_err();
            waiting.late_topic = is_late.then_some(Missed::Journal(JOURNAL_TIMEOUT));
            if let Some(copying) = copying.filter(|_| !is_late) {
                let late = copying.come(durable_after).await.err();
                waiting.late_topic = late.map(|late| Missed::Topic(late.limit()));
            }
            waiting.since = clock.elapsed();
            acknowledgements.came.push(waiting);
        });
    }
}

/// The task. When it ends, those that still wait hear nothing any more.
pub(crate) async fn acknowledge(broker: Arc<Broker>, mut stop: Stop) {
    let came = &broker.acknowledgements.came;
    let (marks, clock) = (Stage::ALL.map(|stage| broker.store.mark(stage)), &broker.clock);
    let (mut waiting, mut desk) = (Vec::new(), Replier::default());
    while !stop.is_asked() {
        came.take(&mut waiting);
        let reached = marks.map(Watermark::get);
        waiting.retain_mut(|waiting| !desk.is_over(&broker, waiting, reached));
        desk.tell_late(&broker, &mut waiting);
        let sleep = Sleep::until(waiting.iter().map(Waiting::wish), broker.store.stages().has(Stage::Flushed));
        if !came.may_sleep(sleep) {
            continue;
        }
        if waiting.is_empty() {
            tokio::select! {
                biased;
                () = stop.asked() => {}
                () = came.rung() => {}
            }
            continue;
        }
        let reached = |stage: Stage| marks[stage as usize].reached(sleep.first(stage).unwrap_or(u64::MAX));
        let is_for = |stage: Stage| sleep.first(stage).is_some();
        let now = clock.elapsed();
        let late_at = waiting.iter().filter_map(|waiting| Some(waiting.late_at()?.0)).min();
        let look_at = late_at.map_or(LOOK, |late_at| late_at.saturating_sub(now).min(LOOK));
        tokio::select! {
            biased;
            () = stop.asked() => {}
            () = reached(Stage::Confirmed), if is_for(Stage::Confirmed) => {}
            () = reached(Stage::Flushed), if is_for(Stage::Flushed) => {}
            () = reached(Stage::Written), if is_for(Stage::Written) => {}
            () = reached(Stage::CopiedBySetting), if is_for(Stage::CopiedBySetting) => {}
            () = reached(Stage::CopiedByOne), if is_for(Stage::CopiedByOne) => {}
            () = reached(Stage::CopiedByAll), if is_for(Stage::CopiedByAll) => {}
            () = tokio::time::sleep(look_at) => {}
            () = came.rung() => {}
        }
    }
}

/// What answering needs again and again.
#[derive(Default)]
struct Replier {
    ids: String,
    woken: Vec<ParkedPull>,
    /// When slaves were judged last, by the clock's elapsed time.
    judged_at: Duration,
}

impl Replier {
    /// Sees to what a burst has come to by now, and says whether nothing of it waits any more.
    /// `reached`: how far the log has come, by stage.
    fn is_over(&mut self, broker: &Broker, waiting: &mut Waiting, reached: [u64; Stage::ALL.len()]) -> bool {
        if let Some(missed) = waiting.late_topic {
            self.give_up(broker, waiting, missed);
        }
        let (before, end) = (waiting.burst.reached, waiting.burst.end.0);
        let has_come = |stage: &Stage| reached[*stage as usize] >= end;
        let now = Stage::ALL.into_iter().filter(has_come).fold(before, Stages::with);
        let left = waiting.left;
        if now != before {
            if !before.has(Stage::Written) {
                broker.flush_for(&waiting.burst.receipts);
            }
            self.reply(broker, waiting, None, |receipt| receipt.stages.are_among(now));
            waiting.burst.reached = now;
            waiting.look();
        }
        self.settle(broker, waiting, cause(left));
        if now.has(Stage::Confirmed) && waiting.burst.has_consumers() {
            self.wake(broker, &mut waiting.burst);
        }
        waiting.debt.is_none() && !waiting.burst.has_consumers()
    }

    /// Answers those that wait for what is late, or for slaves that are not there.
    fn tell_late(&mut self, broker: &Broker, all: &mut [Waiting]) {
        let now = broker.clock.elapsed();
        let mut missing = Stages::NONE;
        if all.iter().any(|waiting| waiting.left.ask_for_copies()) {
            // A slave that stands still says nothing, and a send may have begun by a rule that has changed since.
            if now.saturating_sub(self.judged_at) >= LOOK {
                self.judged_at = now;
                broker.copies.judge();
            }
            missing = broker.copies.missing();
        }
        for waiting in all {
            // Each round gives a stage up.
            while let Some((late_at, stage)) = waiting.late_at()
                && late_at <= now
            {
                // What no thread has written yet no slave can have, and it is not stored.
                let stage = if waiting.left.has(Stage::Written) { Stage::Written } else { stage };
                self.give_up(broker, waiting, Missed::Stage(stage));
            }
            for stage in missing.each() {
                if waiting.left.has(stage) && !waiting.left.has(Stage::Written) {
                    self.give_up(broker, waiting, Missed::Slaves(stage));
                }
            }
        }
    }

    /// Answers what asks for a stage that has not come, and has no answer yet.
    fn give_up(&mut self, broker: &Broker, waiting: &mut Waiting, missed: Missed) {
        let late = match missed {
            // All of them wait for the journal.
            Missed::Journal(_) => Stages::WRITTEN,
            Missed::Topic(_) => Stage::COPIED.into_iter().fold(Stages::NONE, Stages::with),
            Missed::Stage(stage) | Missed::Slaves(stage) => Stages::NONE.with(stage),
        };
        if let Missed::Stage(stage) | Missed::Slaves(stage) = missed
            && Stage::COPIED.contains(&stage)
        {
            self.forgo(broker, waiting, stage);
        }
        self.reply(broker, waiting, Some(missed), |receipt| receipt.stages.meet(late));
        waiting.given_up = waiting.given_up.and(late);
        waiting.look();
        self.settle(broker, waiting, missed.cause());
    }

    /// Has what succeeds without slaves wait for this stage no longer, and answers it if nothing else
    /// is left: it may still wait for the device.
    fn forgo(&mut self, broker: &Broker, waiting: &mut Waiting, stage: Stage) {
        let reached = waiting.burst.reached;
        let is_due =
            |receipt: &Receipt| receipt.succeeds_without_slaves() && receipt.stages.without(stage).are_among(reached);
        self.reply(broker, waiting, None, is_due);
        waiting.burst.receipts.forgo(stage);
    }

    /// Counts a burst whose answers are all given, once, and lets its connection go.
    fn settle(&self, broker: &Broker, waiting: &mut Waiting, waited_for: Cause) {
        if !waiting.left.is_empty() {
            return;
        }
        let Some(_debt) = waiting.debt.take() else { return };
        let burst = &waiting.burst;
        let took = broker.clock.elapsed().saturating_sub(burst.began);
        broker.stats.put_times.stored(burst.landed.len(), took);
        broker.stats.waits.add(waited_for, took);
    }

    /// Answers what `is_due`, and has no answer yet.
    fn reply(&mut self, broker: &Broker, waiting: &Waiting, missed: Option<Missed>, is_due: impl Fn(&Receipt) -> bool) {
        let burst = &waiting.burst;
        let is_due = |receipt: &Receipt| waiting.is_open(receipt.stages) && is_due(receipt);
        if !burst.receipts.list.iter().any(is_due) {
            return;
        }
        let settings = broker.settings.load();
        let late = missed.map(|missed| {
            late(&broker.store, &broker.copies, burst.receipts.stages, burst.end, missed, waiting.limits)
        });
        let (code, remark) = match &late {
            None => (ResponseCode::Success, None),
            Some((code, remark)) => (*code, Some(&**remark)),
        };
        let is_stored = missed.is_none_or(Missed::is_stored);
        let answer = Answer { code, remark, is_stored, host: broker.advertised, settings: &settings };
        let mut out = Outgoing::new();
        let told = burst.receipts.reply_to(is_due, &burst.landed, &answer, &mut self.ids, &mut out);
        broker.copies.note_unacknowledged(code, told);
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

/// Waits until the log has come to these stages up to `end`, and the journal up to `durable_after`;
/// says what is late, or which slaves are not there.
pub(crate) async fn reached(
    store: &Store,
    copies: &Copies,
    stages: Stages,
    end: LogOffset,
    durable_after: u64,
    limits: Limits,
) -> Result<(), Missed> {
    let topics = store.journal().mark_of(durable_after, stages.ask_for_device());
    let own = async {
        let mut under_way = None;
        let all = async {
            for stage in stages.without_copies().each() {
                under_way = Some(stage);
                store.mark(stage).reached(end.0).await;
            }
            under_way = None;
            topics.reached(durable_after).await;
        };
        let is_in_time = timeout(limits.flush, all).await.is_ok();
        match under_way {
            _ if is_in_time => Ok(()),
            _ if topics.get() < durable_after => Err(Missed::Journal(limits.flush)),
            Some(stage) => Err(Missed::Stage(stage)),
            None => Ok(()),
        }
    };
    let copied = async {
        for stage in stages.each().filter(|stage| Stage::COPIED.contains(stage)) {
            copied(store, copies, stage, end, limits.copies).await?;
        }
        Ok::<(), Missed>(())
    };
    tokio::try_join!(own, copied).map(|_| ())
}

/// The same of a stage that slaves bring.
async fn copied(store: &Store, copies: &Copies, stage: Stage, end: LogOffset, limit: Duration) -> Result<(), Missed> {
    let all = async {
        // Ends with the limit.
        loop {
            if timeout(LOOK, store.mark(stage).reached(end.0)).await.is_ok() {
                return Ok(());
            }
            copies.judge();
            if store.mark(stage).get() < end.0 && copies.missing().has(stage) {
                return Err(Missed::Slaves(stage));
            }
        }
    };
    let copied = timeout(limit, all).await.unwrap_or(Err(Missed::Stage(stage)));
    // What no thread has written yet no slave can have, and it is not stored.
    copied.map_err(|missed| if store.written().get() < end.0 { Missed::Stage(Stage::Written) } else { missed })
}

/// The same of a send that was stored before, by the rule and the slaves of this moment: marks never
/// go back, and a rule that asked for fewer slaves may have raised them.
pub(crate) async fn copied_again(
    copies: &Copies,
    stages: Stages,
    end: LogOffset,
    limit: Duration,
) -> Result<(), Missed> {
    let lacks = || Stage::COPIED.into_iter().find(|stage| stages.has(*stage) && !copies.have(*stage, end));
    let all = async {
        // Ends with the limit.
        while let Some(stage) = lacks() {
            if copies.missing().has(stage) {
                return Err(Missed::Slaves(stage));
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    };
    let in_time = timeout(limit, all).await;
    in_time.unwrap_or_else(|_| lacks().map_or(Ok(()), |stage| Err(Missed::Stage(stage))))
}

/// Code and remark of the answer to a send that asked for `stages` up to `end`, and for which
/// something is late.
pub(crate) fn late(
    store: &Store,
    copies: &Copies,
    stages: Stages,
    end: LogOffset,
    missed: Missed,
    limits: Limits,
) -> (ResponseCode, String) {
    let limit = limits.flush.as_millis();
    match missed {
        Missed::Journal(limit) => {
            let stored =
                if stages.ask_for_device() { "on the device with the journal" } else { "written into the journal" };
            let limit = limit.as_millis();
            (ResponseCode::FlushDiskTimeout, format!("stored, but its topic is not {stored} within {limit} ms"))
        }
        Missed::Topic(limit) => {
            let limit = limit.as_millis();
            (
                ResponseCode::FlushSlaveTimeout,
                format!("stored, but slaves do not have its topic within {limit} ms (slaveTimeout)"),
            )
        }
        Missed::Slaves(stage) => copies.not_copied(stage, end, None),
        Missed::Stage(stage @ (Stage::CopiedBySetting | Stage::CopiedByOne | Stage::CopiedByAll)) => {
            copies.not_copied(stage, end, Some(limits.copies))
        }
        Missed::Stage(Stage::Written) => (
            ResponseCode::FlushDiskTimeout,
            format!(
                "not written to the log within {limit} ms (syncFlushTimeout), and in memory only (transientStorePoolEnable=true)"
            ),
        ),
        Missed::Stage(Stage::Confirmed) if store.replicated().get() < end.0 => (
            ResponseCode::FlushSlaveTimeout,
            format!("stored, but not on enough replicas within {limit} ms (syncFlushTimeout)"),
        ),
        Missed::Stage(Stage::Flushed | Stage::Confirmed) => {
            (ResponseCode::FlushDiskTimeout, format!("stored, but not flushed within {limit} ms (syncFlushTimeout)"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slaves_have_their_time_from_the_append_on_and_the_device_from_when_it_is_waited_for() {
        let ms = Duration::from_millis;
        let limits = Limits { flush: ms(5000), copies: ms(2500) };
        // The topic was not in the journal for 1.9 s.
        let end_of = |stage| limits.end_of(stage, ms(100), ms(2000));
        assert_eq!(Stage::COPIED.map(end_of), [ms(2600); 3]);
        assert_eq!(end_of(Stage::Flushed), ms(7000));
    }
}
