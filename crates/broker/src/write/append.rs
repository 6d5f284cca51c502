//! From a gathered batch to acknowledgements: one append for a burst, then a reply for each send
//! when its mode says so.
//!
//! ASYNC_FLUSH: the reply goes into the burst's own output. SYNC_FLUSH, SYNC_MASTER: the burst goes
//! to `acknowledgements.rs`, which lays the replies into the connection's inbox when the flush that
//! covers it, or enough slaves, are there, while the connection reads on. How many bursts of a
//! connection may wait there is limited. What is waited for, `durability.rs` says for each send. With a write pool
//! (`transientStorePoolEnable`) all bursts go there, since none is stored before the pool's thread
//! has written it.

use std::sync::Arc;
use std::time::Duration;

use config::BrokerSettings;
use net::{Outgoing, ReplyTo};
use protocol::LogOffset;
use protocol::code::ResponseCode;
use protocol::record::{RecordDraft, RecordView};
use protocol::sys_flag;
use store::{AppendError, ConsumeQueue, MessageKeys, NotWritable, RecordBatch, Stage, Stages, TagsCode};
use tokio::time::timeout;

use crate::broker::Broker;
use crate::refusal::{NOT_AVAILABLE, Refusal, SOON};
use crate::sends::{Answer, Receipt, Receipts, Sends};
use crate::session::{Late, Session};
use crate::state::falls::Cause;
use crate::state::role::BUSY;
use crate::waiting::hold::Lane;
use crate::write::acknowledgements::UnflushedBurst;

/// How often it looks whether waiting still makes sense.
const ROOM_STEP: Duration = Duration::from_millis(100);

/// Apache's sentence where no buffer of the write pool is free.
const REJECTED: &str = "[REJECTREQUEST]system busy, start flow control for a while.";

/// A burst of which something has landed.
#[derive(Clone, Copy)]
struct Appended {
    /// Where its last record ends.
    end: LogOffset,
    /// When the append began, by the clock's elapsed time.
    began: Duration,
    /// Up to here the journal has to be before producers may be told.
    durable_after: u64,
    /// It is already.
    is_durable: bool,
    /// Consumers may see it.
    is_shown: bool,
}

/// Appends what is gathered and answers it, now or when it is flushed.
pub(crate) async fn append(broker: &Broker, session: &mut Session, out: &mut Outgoing) {
    let began = broker.clock.elapsed();
    let durable_after = session.take_durable_after();
    // All of them are of one kind: see `Sends::is_of_another_kind`.
    let is_oneway = session.sends.receipts.list.last().is_some_and(|receipt| receipt.reply_to.is_oneway);
    let who = if is_oneway { Who::Oneway } else { Who::Producers };
    if is_oneway && session.sends.receipts.stages.ask_for_copies() {
        // Nobody hears what became of them, and later sends of the connection are not held up.
        session.sends.receipts.ask_for_no_copies();
    }
    let refused = broker.append_from(who, &mut session.sends.batch).await.err();
    let is_durable = broker.store.journal().written().get() >= durable_after;
    let sends = &mut session.sends;
    settle(broker, sends);
    count(broker, sends);
    if let Some(refusal) = &refused {
        if broker.switch.is_fenced() {
            sends.leave_for_master();
        }
        refuse_rest(broker, sends, refusal, is_oneway, out);
    }
    let Some(end) = sends.batch.landed().last().map(|record| record.end) else {
        sends.clear();
        return;
    };
    let is_shown = broker.store.confirmed().get() >= end.0;
    let appended = Appended { end, began, durable_after, is_durable, is_shown };
    if is_shown && sends.receipts.stages == Stages::WRITTEN {
        answer_now(broker, session, &appended, out);
    } else {
        answer_later(broker, session, &appended, out).await;
    }
}

/// Tells transactions and the window of repeated sends what became of theirs.
pub(super) fn settle(broker: &Broker, sends: &mut Sends) {
    let landed = sends.batch.landed();
    broker.transactions.settle(&broker.store, &mut sends.endings, landed);
    for receipt in &mut sends.receipts.list {
        if let Some(claim) = receipt.claim.take() {
            broker.repeats.settle(&claim, receipt.queue_id, landed.get(receipt.records.start));
        }
    }
}

/// Counts what has landed.
pub(super) fn count(broker: &Broker, sends: &mut Sends) {
    let landed = sends.batch.landed().len();
    for (_, counted) in sends.counts.drain(..).filter(|(records, _)| *records <= landed) {
        counted.note(&broker.stats, &broker.clock);
    }
}

/// Refuses the records behind the last one that landed: they were not stored.
fn refuse_rest(broker: &Broker, sends: &mut Sends, refusal: &Refusal, is_oneway: bool, out: &mut Outgoing) {
    let landed = sends.batch.landed().len();
    let rest = sends.receipts.list.iter().map(|receipt| receipt.records.end.saturating_sub(landed)).max();
    broker.stats.put_times.failed(rest.unwrap_or_default());
    let settings = broker.settings.load();
    for receipt in sends.receipts.list.iter().filter(|receipt| receipt.records.end > landed) {
        sends.receipts.refuse(receipt, refusal, &settings, out);
        if is_oneway {
            broker.oneway_refusals.note(refusal, broker.clock.now().0);
        }
    }
    sends.receipts.list.retain(|receipt| receipt.records.end <= landed);
}

/// What the answers to stored records say.
fn success<'a>(broker: &Broker, settings: &'a BrokerSettings) -> Answer<'a> {
    Answer { code: ResponseCode::Success, remark: None, is_stored: true, host: broker.advertised, settings }
}

/// Answers a burst that waits for nothing but, perhaps, the journal.
fn answer_now(broker: &Broker, session: &mut Session, appended: &Appended, out: &mut Outgoing) {
    let settings = broker.settings.load();
    let (answer, sends) = (success(broker, &settings), &mut session.sends);
    let landed = sends.batch.landed();
    broker.stats.put_times.stored(landed.len(), broker.clock.elapsed().saturating_sub(appended.began));
    let mut ids = std::mem::take(&mut sends.ids);
    // A topic that was made for these is not written down yet.
    let mut early = Outgoing::new();
    for receipt in &sends.receipts.list {
        let out = if appended.is_durable { &mut *out } else { &mut early };
        sends.receipts.reply(receipt, landed, &answer, &mut ids, out);
    }
    sends.ids = ids;
    broker.lite.arrived(sends.batch.light_queues());
    broker.topics.light_lanes(sends.batch.light_queues(), &mut sends.lanes);
    broker.hold.arrived(sends.lanes.iter(), &mut sends.woken);
    let late = (!appended.is_durable).then(|| {
        let mut requests: Vec<ReplyTo> = sends.receipts.list.iter().map(|receipt| receipt.reply_to).collect();
        // The parts of one request share its number.
        requests.dedup();
        Late::Refuse(requests)
    });
    sends.clear();
    if let Some(late) = late {
        session.owe(appended.durable_after, early.take(), late);
    }
}

/// Answers what waits for nothing, and hands on the burst for the rest.
async fn answer_later(broker: &Broker, session: &mut Session, appended: &Appended, out: &mut Outgoing) {
    let Appended { end, began, durable_after, is_durable, is_shown } = *appended;
    let sends = &mut session.sends;
    let mut reached = Stages::NONE;
    if broker.store.written().get() >= end.0 {
        broker.flush_for(&sends.receipts);
        // Until their topic is in the journal, all of them wait.
        if is_durable {
            let settings = broker.settings.load();
            let answer = success(broker, &settings);
            reached = Stages::WRITTEN;
            let is_due = |receipt: &Receipt| receipt.stages == Stages::WRITTEN;
            sends.receipts.reply_to(is_due, sends.batch.landed(), &answer, &mut sends.ids, out);
        }
    }
    let (receipts, landed) = (sends.receipts.take(), sends.batch.landed().to_vec());
    let (mut lanes, mut light) = (std::mem::take(&mut sends.lanes), sends.batch.light_queues().to_vec());
    if is_shown {
        broker.lite.arrived(&light);
        broker.topics.light_lanes(&light, &mut lanes);
        broker.hold.arrived(lanes.iter(), &mut sends.woken);
        (lanes, light) = (Vec::new(), Vec::new());
    }
    sends.clear();
    let permits = Arc::clone(&sends.unflushed);
    // Never closed; a closed one would only mean that nothing is counted.
    let permit = permits.acquire_owned().await.ok();
    let sends = &session.sends;
    broker.limits.unflushed(sends.unflushed_max.saturating_sub(sends.unflushed.available_permits()));
    let inbox = Arc::clone(&session.inbox);
    let burst = UnflushedBurst { receipts, landed, lanes, light, end, began, reached, inbox, _permit: permit };
    broker.acknowledgements.begin(broker, burst, durable_after);
}

/// Gives up what was gathered and is not appended, when the connection ends in the middle of a
/// burst: others that want to send or end the same must not wait for it.
pub(crate) fn give_up(broker: &Broker, sends: &mut Sends) {
    settle(broker, sends);
    sends.clear();
}

/// Takes back what was gathered from record number `first` on, if no file of the log can hold it:
/// left in the batch, it would cost all that stands behind it. `gathered`: the batch's bytes
/// before.
pub(crate) fn check_fits(
    broker: &Broker,
    batch: &mut RecordBatch,
    first: usize,
    gathered: usize,
) -> Result<(), Refusal> {
    let (bytes, limit) = (batch.bytes() - gathered, broker.store.record_bytes_max());
    if bytes as u64 <= limit {
        return Ok(());
    }
    batch.truncate(first);
    Err(Refusal::new(
        ResponseCode::MessageIllegal,
        format!("the message is illegal, {}", AppendError::TooLong { bytes, limit }),
    ))
}

/// Refuses what a store that reports no error has not appended all the same: each answer names
/// where its records came to lie.
fn check_landed(batch: &RecordBatch) -> Result<(), Refusal> {
    if batch.is_appended() {
        return Ok(());
    }
    let (expected, found) = (batch.len(), batch.landed().len());
    tracing::error!(expected, found, "the store says that records are appended, and they are not");
    Err(Refusal::new(
        ResponseCode::SystemError,
        format!("the message is not stored: {found} of {expected} records of its batch were appended"),
    ))
}

/// A stored message that is stored once more. A queue has led to it, and one leads to the new
/// record. So the new record is neither a half message of a broker before 4.3 nor one that was
/// rolled back, which stand in no queue, whatever the old record's `sysFlag` says.
pub(crate) fn again<'a>(stored: &RecordView<'a>) -> RecordDraft<'a> {
    let mut draft = stored.to_draft();
    if sys_flag::transaction(draft.sys_flag) != sys_flag::TRANSACTION_COMMIT {
        draft.sys_flag = sys_flag::with_transaction(draft.sys_flag, sys_flag::TRANSACTION_NONE);
    }
    draft
}

/// Encodes a record into a batch. Its parts were checked against their limits by whoever made the
/// draft.
pub(crate) fn push(batch: &mut RecordBatch, lane: &Lane, tags: TagsCode, draft: &RecordDraft<'_>) {
    batch.push(&lane.queue, tags, |out| encode(draft, out));
}

/// The same of a message whose keys are at hand.
pub(crate) fn push_with_keys(
    broker: &Broker,
    batch: &mut RecordBatch,
    lane: &Lane,
    tags: TagsCode,
    keys: &MessageKeys<'_>,
    draft: &RecordDraft<'_>,
) {
    if broker.store.has_key_index() {
        batch.push_with_keys(&lane.queue, tags, keys, |out| encode(draft, out));
    } else {
        push(batch, lane, tags, draft);
    }
}

/// The same, without the batch.
pub(crate) fn encode(draft: &RecordDraft<'_>, out: &mut Vec<u8>) {
    let encoded = draft.encode(out);
    assert!(encoded.is_ok(), "a checked message cannot be encoded: {encoded:?}");
}

/// For whom a batch is appended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    /// Clients that wait for no answer: there is nobody to be told that there is no room, so they
    /// wait until there is, and their connection is not read meanwhile. Where the device is full
    /// they wait as long as others do where it is late.
    Oneway,
    /// Clients: where they do not want to wait for a full write pool
    /// (`fastFailIfNoBufferInStorePool`), they need not.
    Producers,
    /// Ourselves, who would only try again.
    Broker,
}

impl Broker {
    /// Lets the flush thread go round now, and not at the end of its interval, if one of these
    /// answers waits for the device.
    pub(crate) fn flush_for(&self, receipts: &Receipts) {
        if !self.store.is_sync_flush() && receipts.stages.has(Stage::Flushed) {
            self.store.want_flush();
        }
    }

    /// Wakes who waits for messages that were appended up to `end`, also to light queues: at once,
    /// or when they may be seen.
    pub(crate) fn wake(&self, mut lanes: Vec<Arc<Lane>>, light: &[Arc<ConsumeQueue>], end: LogOffset) {
        if self.store.confirmed().get() >= end.0 {
            self.lite.arrived(light);
            self.topics.light_lanes(light, &mut lanes);
            self.hold.arrived(lanes.iter(), &mut Vec::new());
            return;
        }
        let (store, hold, topics) = (Arc::clone(&self.store), Arc::clone(&self.hold), Arc::clone(&self.topics));
        let (lite, light) = (Arc::clone(&self.lite), light.to_vec());
        tokio::spawn(async move {
            store.confirmed().reached(end.0).await;
            lite.arrived(&light);
            topics.light_lanes(&light, &mut lanes);
            hold.arrived(lanes.iter(), &mut Vec::new());
        });
    }

    /// Appends a batch, waiting for room within the time that a producer waits. On an error some
    /// records may have landed.
    pub(crate) async fn append(&self, batch: &mut RecordBatch) -> Result<(), Refusal> {
        self.append_from(Who::Broker, batch).await
    }

    pub(super) async fn append_from(&self, who: Who, batch: &mut RecordBatch) -> Result<(), Refusal> {
        let mut waiting: Option<Duration> = None;
        // Ends with room, or with the time for it; for who waits for no answer, with his
        // connection.
        loop {
            let error = match self.store.append(batch, self.clock.now()) {
                Ok(()) => {
                    self.limits.has_room();
                    return check_landed(batch);
                }
                Err(error) => error,
            };
            let limit = Duration::from_millis(self.settings.load().room_timeout_millis);
            let said = error.to_string();
            let (mark, needed) = match error {
                AppendError::NoRoomYet { needed } => (self.store.room(), needed),
                AppendError::PoolFull { .. }
                    if who == Who::Producers && self.store_settings.load().fast_fail_if_no_buffer_in_store_pool =>
                {
                    return Err(Refusal::busy(
                        format_args!("{REJECTED} {said}; fastFailIfNoBufferInStorePool=true"),
                        SOON,
                    ));
                }
                AppendError::PoolFull { from, .. } => (self.store.written(), from + 1),
                AppendError::NotWritable(NotWritable::Held) => {
                    // Not for long: the master changes, or it is decided that it does not.
                    if self.switch.goes_on().await {
                        continue;
                    }
                    return Err(Refusal::new(ResponseCode::SystemBusy, BUSY));
                }
                AppendError::NotWritable(why) => {
                    let now = self.clock.elapsed();
                    let full_for = self.limits.full_for(now);
                    // Retention may make room within seconds, and nobody else can try again. Once
                    // for all of them, however many come one after the other.
                    if who == Who::Oneway && why != NotWritable::Closed && full_for < limit {
                        self.limits.waited_for_room(full_for);
                        tokio::time::sleep(ROOM_STEP).await;
                        self.stats.waits.add(Cause::Disk, self.clock.elapsed().saturating_sub(now));
                        continue;
                    }
                    return Err(Refusal::new(ResponseCode::ServiceNotAvailable, format!("{NOT_AVAILABLE} {why}")));
                }
                AppendError::TooLong { .. } => {
                    return Err(Refusal::new(ResponseCode::MessageIllegal, format!("the message is illegal, {error}")));
                }
            };
            let now = self.clock.elapsed();
            if who == Who::Producers && waiting.is_none() && self.limits.is_hopeless(now) {
                return Err(Refusal::busy(
                    format_args!(
                        "[GANTRY]broker busy, start flow control for a while: no room in the commit log, and sends before it have waited for that time in vain, {} ms \
                         (roomTimeoutMillis); the disk does not keep up: {said}",
                        limit.as_millis()
                    ),
                    limit,
                ));
            }
            let waited = now.saturating_sub(*waiting.get_or_insert(now));
            self.limits.waited_for_room(waited);
            let left = if who == Who::Oneway { ROOM_STEP } else { limit.saturating_sub(waited) };
            // In steps: if the device turns out to be full meanwhile, the next append says so, and
            // nobody rings for that.
            let cause = if self.store.waits_for_memory() { Cause::Reclaim } else { Cause::Disk };
            let _ = timeout(left.min(ROOM_STEP), mark.reached(needed)).await;
            self.stats.waits.add(cause, self.clock.elapsed().saturating_sub(now));
            if left.is_zero() {
                self.limits.waited_in_vain(self.clock.elapsed());
                return Err(Refusal::busy(
                    format_args!(
                        "[GANTRY]broker busy, start flow control for a while: no room in the commit log within {} ms (roomTimeoutMillis); the disk does not keep up: {said}",
                        limit.as_millis()
                    ),
                    limit,
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use store::queue_log::{QueueLogOptions, QueueLogs};

    use super::*;

    #[test]
    fn a_batch_of_which_a_record_has_not_landed_is_refused_with_both_numbers() {
        let dir = tempfile::tempdir().unwrap();
        let disk = Arc::new(disk::RealDisk);
        let (queues, _) = QueueLogs::open(dir.path(), QueueLogOptions::default(), disk).unwrap();
        let mut batch = RecordBatch::new();
        assert_eq!(check_landed(&batch), Ok(()));
        batch.push(&queues.get_or_create("Orders", 0), TagsCode::Code(0), |out| out.push(0));
        let refusal = check_landed(&batch).unwrap_err();
        assert_eq!(refusal.code, ResponseCode::SystemError);
        assert!(refusal.remark.contains("0 of 1 records"), "{}", refusal.remark);
    }
}
