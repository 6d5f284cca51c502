//! From a gathered batch to acknowledgements: one append for a burst, then a reply for each send when its mode says so.
//!
//! ASYNC_FLUSH: the reply goes into the burst's own output. SYNC_FLUSH: the burst goes to `acknowledgements.rs`, which lays the replies
//! into the connection's inbox after the flush that covers it, while the connection reads on; only so many bursts of a connection may
//! wait there. Which stage it is, `durability.rs` says for each send. With a write pool (`transientStorePoolEnable`) all bursts go there,
//! since none is stored before the pool's thread has written it.

use std::ops::{Range, RangeBounds};
use std::sync::Arc;
use std::time::Duration;

use config::BrokerSettings;
use env::TimeMs;
use net::{Outgoing, ReplyTo};
use protocol::LogOffset;
use protocol::code::ResponseCode;
use protocol::message_id::offset_message_ids;
use protocol::record::RecordDraft;
use protocol::request::{RecallMessageReply, SendReply};
use store::{AppendError, ConsumeQueue, Landed, MessageKeys, NotWritable, RecordBatch, Stage, TagsCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::acknowledgements::Unflushed;
use crate::answer::{recall_extra, reply_extra};
use crate::broker::Broker;
use crate::falls::Cause;
use crate::hold::{Lane, ParkedPull};
use crate::ids::Ids;
use crate::parts::{Part, Stored};
use crate::refusal::{Refusal, SOON};
use crate::session::{Late, Session};
use crate::stats::MessageType;
use crate::topics::Topic;
use crate::topics::logical::Logical;
use crate::topics::mapping::Mapping;

/// A burst of sends is appended at the latest when it has gathered this much: what is not appended cannot be answered.
const GATHERED_BYTES_MAX: usize = 4 << 20;
/// And this many records.
const GATHERED_RECORDS_MAX: usize = 4096;
/// How often it looks whether waiting still makes sense.
const ROOM_STEP: Duration = Duration::from_millis(100);

/// Apache's sentence, to which the store's own is added: which path, how full, what the limit is.
const NOT_AVAILABLE: &str = "service not available now. It may be caused by one of the following reasons: the broker's disk is full, \
                             messages are put to the slave, message store has been shut down, etc.";

/// Apache's sentence where no buffer of the write pool is free.
const REJECTED: &str = "[REJECTREQUEST]system busy, start flow control for a while.";

/// What a receipt is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One message.
    Send,
    /// One message that waits for its time: its text is the unique key, a line break and the handle that takes it back.
    Timer,
    /// Several, with one answer.
    Batch,
    /// Several in one record.
    InnerBatch,
    /// A timer message is taken back (370).
    Recall,
    /// What is answered with a code alone: a message that a consumer gave back (36), the end of a transaction (37).
    Plain,
    /// The reply to a request (324): its answer is about the push to whom it is for, whatever becomes of the record.
    Reply,
}

/// The answer that is owed for records of a batch.
#[derive(Clone, Debug)]
pub(crate) struct Receipt {
    pub(crate) reply_to: ReplyTo,
    pub(crate) kind: Kind,
    /// For the answer.
    pub(crate) queue_id: i32,
    /// Which records of the batch.
    pub(crate) records: Range<usize>,
    /// Where the unique key stands among the receipts' text; for a reply, why it did not get to whom it is for.
    pub(crate) text: Range<usize>,
    /// Is answered when its records have come to this stage.
    pub(crate) stage: Stage,
    /// Its name in the window of repeated sends.
    pub(crate) claim: Option<Arc<str>>,
    /// It is for a part of a request, of which there are several: `None` where a receipt is made, and filled in by [`Receipts::push`].
    pub(crate) part: Option<Part>,
}

/// Receipts of one batch, with the text that they need after the requests are gone.
#[derive(Default)]
pub(crate) struct Receipts {
    list: Vec<Receipt>,
    text: String,
    /// Of sends to static topics: the first record of each, and the logical queue that its answer speaks of.
    logical: Vec<(usize, Logical)>,
    /// Mappings by which messages that waited were given their queues: held until all of this is stored.
    held: Vec<Arc<Mapping>>,
    /// The latest stage that one of them asks for.
    pub(crate) stage: Stage,
    /// The part of a request that is being gathered.
    part: Option<Part>,
}

impl Receipts {
    /// Notes that what is gathered next is for this part of a request.
    pub(crate) fn begin_part(&mut self, part: Part) {
        self.part = Some(part);
    }

    /// The part that was begun, for whoever answers it; nothing if its receipt has it already, or if there is none.
    pub(crate) fn take_part(&mut self) -> Option<Part> {
        self.part.take()
    }

    /// Keeps a text for the answer.
    pub(crate) fn keep(&mut self, text: &str) -> Range<usize> {
        let start = self.text.len();
        self.text.push_str(text);
        start..self.text.len()
    }

    /// Keeps the client's unique key, or makes one.
    pub(crate) fn keep_uniq_key(&mut self, uniq_key: &str, ids: &Ids) -> Range<usize> {
        if !uniq_key.is_empty() {
            return self.keep(uniq_key);
        }
        let start = self.text.len();
        ids.write(&mut self.text);
        start..self.text.len()
    }

    /// Adds the handle that takes a message back to the unique key that was kept last.
    pub(crate) fn keep_handle(&mut self, kept: &mut Range<usize>, write: impl FnOnce(&mut String, &str)) {
        let uniq_key = self.text[kept.clone()].to_owned();
        self.text.push('\n');
        write(&mut self.text, &uniq_key);
        kept.end = self.text.len();
    }

    /// Drops what was kept last.
    pub(crate) fn forget(&mut self, kept: Range<usize>) {
        self.text.truncate(kept.start);
    }

    pub(crate) fn text(&self, kept: &Range<usize>) -> &str {
        &self.text[kept.clone()]
    }

    pub(crate) fn push(&mut self, receipt: Receipt) {
        let part = self.take_part();
        self.stage = self.stage.max(receipt.stage);
        self.list.push(Receipt { part, ..receipt });
    }

    /// Holds a mapping until all of this is stored.
    pub(crate) fn hold(&mut self, mapping: Option<Arc<Mapping>>) {
        self.held.extend(mapping);
    }

    /// Notes the logical queue that the send whose first record this is was for.
    pub(crate) fn keep_logical(&mut self, first: usize, logical: Logical) {
        self.logical.push((first, logical));
    }

    /// What a producer is told of the queue and offset of its message.
    fn place_of(&self, receipt: &Receipt, first: &Landed) -> (i32, i64) {
        let physical = first.queue_offset as i64;
        // Nearly always empty. In the order of the records, because receipts are gathered in that order.
        match self.logical.binary_search_by_key(&receipt.records.start, |(first, _)| *first) {
            Ok(at) => (self.logical[at].1.queue_id(), self.logical[at].1.offset(physical)),
            Err(_) => (receipt.queue_id, physical),
        }
    }

    /// Takes all of it, for a burst that waits. The next one is expected to be of its size, and need not grow to it step by step.
    fn take(&mut self) -> Receipts {
        let (list, text) = (Vec::with_capacity(self.list.len()), String::with_capacity(self.text.len()));
        std::mem::replace(self, Receipts { list, text, ..Receipts::default() })
    }

    fn clear(&mut self) {
        self.list.clear();
        self.stage = Stage::Written;
        self.logical.clear();
        self.held.clear();
        self.text.clear();
    }

    /// The stage that comes next of those that are asked for, from this one on.
    pub(crate) fn next_stage(&self, from: Stage) -> Option<Stage> {
        self.list.iter().map(|receipt| receipt.stage).filter(|stage| *stage >= from).min()
    }

    /// Answers all that ask for one of these stages.
    pub(crate) fn reply_to(
        &self,
        stages: impl RangeBounds<Stage>,
        landed: &[Landed],
        answer: &Answer<'_>,
        ids: &mut String,
        out: &mut Outgoing,
    ) {
        for receipt in self.list.iter().filter(|receipt| stages.contains(&receipt.stage)) {
            self.reply(receipt, landed, answer, ids, out);
        }
    }

    /// Writes one answer.
    fn reply(&self, receipt: &Receipt, landed: &[Landed], answer: &Answer<'_>, ids: &mut String, out: &mut Outgoing) {
        let records = &landed[receipt.records.clone()];
        let text = self.text(&receipt.text);
        if receipt.kind == Kind::Recall && !answer.is_stored {
            let late = Refusal::new(answer.code, answer.remark.unwrap_or_default());
            return self.refuse(receipt, &late, answer.settings, out);
        }
        if receipt.kind == Kind::Recall {
            // Stored is taken back, also when the device is late with it.
            let reply = (RecallMessageReply { msg_id: text }, recall_extra(answer.settings));
            out.reply(receipt.reply_to, ResponseCode::Success, None, &reply, &[]);
            return;
        }
        let (text, recall_handle) = match text.split_once('\n').filter(|_| receipt.kind == Kind::Timer) {
            Some((uniq_key, handle)) => (uniq_key, Some(handle)),
            None => (text, None),
        };
        let (Some(first), Kind::Send | Kind::Timer | Kind::Batch | Kind::InnerBatch | Kind::Reply) =
            (records.first(), receipt.kind)
        else {
            out.reply(receipt.reply_to, answer.code, answer.remark, &(), &[]);
            return;
        };
        let (code, remark, uniq_key) = match receipt.kind {
            Kind::Reply => {
                let (code, remark) = outcome(text);
                (code, remark, None)
            }
            Kind::Send | Kind::Timer | Kind::Batch | Kind::InnerBatch | Kind::Plain | Kind::Recall => {
                (answer.code, answer.remark, (!text.is_empty()).then_some(text))
            }
        };
        if let Some(part) = &receipt.part {
            let (queue_id, queue_offset) = self.place_of(receipt, first);
            let stored = Stored { code, remark, queue_id, queue_offset, recall_handle };
            part.is_stored(&stored, records.iter().map(|record| record.at.0), answer.settings, out);
            return;
        }
        ids.clear();
        offset_message_ids(ids, answer.host, records.iter().map(|record| record.at.0));
        let (queue_id, queue_offset) = self.place_of(receipt, first);
        let reply = SendReply {
            msg_id: ids,
            queue_id,
            queue_offset,
            transaction_id: uniq_key,
            batch_uniq_id: uniq_key.filter(|_| receipt.kind == Kind::InnerBatch),
            recall_handle,
        };
        out.reply(receipt.reply_to, code, remark, &(reply, reply_extra(answer.settings)), &[]);
    }

    /// Answers one whose records were not stored.
    fn refuse(&self, receipt: &Receipt, refusal: &Refusal, settings: &BrokerSettings, out: &mut Outgoing) {
        if let Some(part) = &receipt.part {
            part.is_refused(refusal, settings, out);
            return;
        }
        match receipt.kind {
            Kind::Reply => {
                let (code, remark) = outcome(self.text(&receipt.text));
                let place = nowhere(receipt.queue_id);
                out.reply(receipt.reply_to, code, remark, &(place, reply_extra(settings)), &[]);
            }
            Kind::Recall => {
                let remark = format!("recall failed, execute error: {}", refusal.remark);
                out.reply(receipt.reply_to, ResponseCode::SystemError, Some(&remark), &recall_extra(settings), &[]);
            }
            Kind::Send | Kind::Timer | Kind::Batch | Kind::InnerBatch | Kind::Plain => {
                out.reply(receipt.reply_to, refusal.code, Some(&refusal.remark), &reply_extra(settings), &[]);
            }
        }
    }
}

/// What the sender of a reply is told of the push; an empty `failure` says that the reply got there.
pub(crate) fn outcome(failure: &str) -> (ResponseCode, Option<&str>) {
    if failure.is_empty() { (ResponseCode::Success, None) } else { (ResponseCode::SystemError, Some(failure)) }
}

/// The place of a reply that is not stored.
pub(crate) fn nowhere(queue_id: i32) -> SendReply<'static> {
    SendReply { msg_id: "0", queue_id, queue_offset: 0, transaction_id: None, batch_uniq_id: None, recall_handle: None }
}

/// What the answers of one batch have in common.
pub(crate) struct Answer<'a> {
    pub(crate) code: ResponseCode,
    pub(crate) remark: Option<&'a str>,
    /// Its records are in the log, however late whatever else is.
    pub(crate) is_stored: bool,
    pub(crate) host: std::net::SocketAddr,
    pub(crate) settings: &'a BrokerSettings,
}

/// What is counted once its record is stored.
pub(crate) enum Counted {
    /// Messages of a queue, with their bytes.
    Sent { topic: Arc<Topic>, queue_id: i32, message_type: MessageType, messages: usize, bytes: usize },
    /// A transaction that was committed, with the time of its half message, or rolled back.
    Ended { topic: Arc<Topic>, committed_of: Option<TimeMs> },
    /// A message that a group gave back.
    Back { group: Arc<str>, topic: Arc<Topic> },
    /// One that it gave up.
    Dead { group: Arc<str>, topic: Arc<Topic> },
}

/// An end of a transaction that is in a batch: which half message, and which record of the batch says so.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ending {
    pub(crate) half_offset: u64,
    pub(crate) record: usize,
}

/// Sends of the current burst, and buffers that live on.
pub(crate) struct Sends {
    pub(crate) batch: RecordBatch,
    pub(crate) receipts: Receipts,
    /// Queues that the batch touches; pulls that wait on them are woken.
    lanes: Vec<Arc<Lane>>,
    /// Pulls on their way from a queue to their connections; empty between batches.
    woken: Vec<ParkedPull>,
    /// Transactions that the batch ends.
    pub(crate) endings: Vec<Ending>,
    /// What to count when so many records of the batch are stored.
    counts: Vec<(usize, Counted)>,
    /// Half messages of the batch.
    pub(crate) half_messages: usize,
    /// For the properties of the record under way.
    pub(crate) properties: Vec<u8>,
    /// For its light queues.
    pub(crate) light: Vec<Arc<ConsumeQueue>>,
    /// For the message ids of the answer under way.
    ids: String,
    unflushed: Arc<Semaphore>,
    unflushed_max: usize,
}

impl Sends {
    /// `unflushed_max` bursts may wait for a flush; above it we stop reading the connection.
    pub(crate) fn new(unflushed_max: usize) -> Sends {
        Sends {
            batch: RecordBatch::new(),
            receipts: Receipts::default(),
            lanes: Vec::new(),
            woken: Vec::new(),
            endings: Vec::new(),
            counts: Vec::new(),
            half_messages: 0,
            properties: Vec::new(),
            light: Vec::new(),
            ids: String::new(),
            unflushed: Arc::new(Semaphore::new(unflushed_max)),
            unflushed_max,
        }
    }

    /// Gives back the buffers, which may have grown to a megabyte.
    pub(crate) fn rest(&mut self) {
        if self.is_empty() {
            let unflushed = Arc::clone(&self.unflushed);
            *self = Sends { unflushed, ..Sends::new(self.unflushed_max) };
        }
    }

    /// Nothing is gathered.
    pub(crate) fn is_empty(&self) -> bool {
        self.receipts.list.is_empty()
    }

    /// Room to wait for a flush; refused where there is none.
    pub(crate) fn may_wait(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        Arc::clone(&self.unflushed).try_acquire_owned().map_err(|_| {
            let what = format_args!(
                "[GANTRY]broker busy, start flow control for a while: {} bursts of sends of this connection wait for the device, which is the limit \
                 (unflushedBurstsPerConnectionMax)",
                self.unflushed_max
            );
            Refusal::busy(what, SOON)
        })
    }

    /// Whether what is gathered waits for answers and this does not, or the other way round: they wait for room in different ways.
    pub(crate) fn is_of_another_kind(&self, is_oneway: bool) -> bool {
        self.receipts.list.last().is_some_and(|last| last.reply_to.is_oneway != is_oneway)
    }

    /// Enough is gathered to be appended before more is read.
    pub(crate) fn is_full(&self) -> bool {
        self.batch.bytes() >= GATHERED_BYTES_MAX || self.batch.len() >= GATHERED_RECORDS_MAX
    }

    /// How many records are gathered.
    pub(crate) fn records(&self) -> usize {
        self.batch.len()
    }

    /// Notes what is counted when the records gathered so far are stored.
    pub(crate) fn count(&mut self, counted: Counted) {
        self.counts.push((self.batch.len(), counted));
    }

    /// Notes a queue that the batch touches.
    pub(crate) fn touch(&mut self, lane: Arc<Lane>) {
        // Producers send in runs to the same few queues, and waking one twice costs a look at a counter: no set is needed.
        if !self.lanes.iter().rev().take(8).any(|known| Arc::ptr_eq(known, &lane)) {
            self.lanes.push(lane);
        }
    }

    /// Gives up what was gathered and is not appended, when the connection ends in the middle of a burst: who else wants to send or end the same
    /// must not wait for us.
    pub(crate) fn give_up(&mut self, broker: &Broker) {
        let landed = self.batch.landed();
        broker.transactions.settle(&broker.store, &mut self.endings, landed);
        for receipt in &self.receipts.list {
            if let Some(claim) = &receipt.claim {
                broker.repeats.settle(claim, receipt.queue_id, landed.get(receipt.records.start));
            }
        }
        self.clear();
    }

    fn clear(&mut self) {
        self.batch.clear();
        self.receipts.clear();
        self.counts.clear();
        self.half_messages = 0;
        self.lanes.clear();
    }
}

/// Appends what is gathered and answers it, now or when it is flushed.
pub(crate) async fn append(broker: &Broker, session: &mut Session, out: &mut Outgoing) {
    let began = broker.clock.elapsed();
    let durable_after = session.take_durable_after();
    // All of them are of one kind: see `Sends::is_of_another_kind`.
    let is_oneway = session.sends.receipts.list.last().is_some_and(|receipt| receipt.reply_to.is_oneway);
    let who = if is_oneway { Who::Oneway } else { Who::Producers };
    let refused = broker.append_from(who, &mut session.sends.batch).await.err();
    let is_durable = broker.store.journal().written().get() >= durable_after;
    let sends = &mut session.sends;
    let landed = sends.batch.landed();
    broker.transactions.settle(&broker.store, &mut sends.endings, landed);
    let end = landed.last().map(|record| record.end);
    for (_, counted) in sends.counts.drain(..).filter(|(records, _)| *records <= landed.len()) {
        match counted {
            Counted::Sent { topic, queue_id, message_type, messages, bytes } => {
                broker.stats.sent(&topic, queue_id, message_type, messages, bytes);
            }
            Counted::Ended { topic, committed_of: Some(sent_at) } => {
                broker.stats.committed(&topic, broker.clock.now().since(sent_at));
            }
            Counted::Ended { topic, committed_of: None } => broker.stats.rolled_back(&topic),
            Counted::Back { group, topic } => broker.stats.sent_back(&group, topic.name()),
            Counted::Dead { group, topic } => broker.stats.sent_dead(&group, topic.name()),
        }
    }
    for receipt in &sends.receipts.list {
        if let Some(claim) = &receipt.claim {
            broker.repeats.settle(claim, receipt.queue_id, landed.get(receipt.records.start));
        }
    }

    if let Some(refusal) = &refused {
        broker.stats.put_times.failed(sends.batch.len() - landed.len());
        // Records behind the last one that landed were not stored.
        let settings = broker.settings.load();
        for receipt in sends.receipts.list.iter().filter(|receipt| receipt.records.end > landed.len()) {
            sends.receipts.refuse(receipt, refusal, &settings, out);
            if is_oneway {
                broker.unheard.note(refusal, broker.clock.now().0);
            }
        }
        sends.receipts.list.retain(|receipt| receipt.records.end <= landed.len());
    }
    let Some(end) = end else {
        sends.clear();
        return;
    };

    let settings = broker.settings.load();
    let (code, host) = (ResponseCode::Success, broker.advertised);
    let answer = Answer { code, remark: None, is_stored: true, host, settings: &settings };
    let is_shown = broker.store.confirmed().get() >= end.0;
    if is_shown && sends.receipts.stage == Stage::Written {
        broker.stats.put_times.stored(landed.len(), broker.clock.elapsed().saturating_sub(began));
        let mut ids = std::mem::take(&mut sends.ids);
        // A topic that was made for these is not written down yet.
        let mut early = Outgoing::new();
        for receipt in &sends.receipts.list {
            let out = if is_durable { &mut *out } else { &mut early };
            sends.receipts.reply(receipt, landed, &answer, &mut ids, out);
        }
        sends.ids = ids;
        broker.lite.arrived(sends.batch.light_queues());
        broker.topics.light_lanes(sends.batch.light_queues(), &mut sends.lanes);
        broker.hold.arrived(sends.lanes.iter(), &mut sends.woken);
        let late = (!is_durable).then(|| {
            let mut requests: Vec<ReplyTo> = sends.receipts.list.iter().map(|receipt| receipt.reply_to).collect();
            // The parts of one request share its number.
            requests.dedup();
            Late::Refuse(requests)
        });
        sends.clear();
        if let Some(late) = late {
            session.owe(durable_after, early.take(), late);
        }
        return;
    }

    let mut next = Stage::Written;
    if broker.store.written().get() >= end.0 {
        for receipt in sends.receipts.list.iter_mut().filter(|_| !is_durable) {
            receipt.stage = receipt.stage.max(Stage::Flushed);
        }
        sends.receipts.reply_to(..=Stage::Written, landed, &answer, &mut sends.ids, out);
        // If nobody waits for an answer, consumers do.
        next = sends.receipts.next_stage(Stage::Flushed).unwrap_or(Stage::Replicated);
        broker.flush_for(&sends.receipts);
    }
    drop(settings);
    let (receipts, landed) = (sends.receipts.take(), landed.to_vec());
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
    broker.acknowledgements.begin(
        broker,
        Unflushed {
            receipts,
            landed,
            lanes,
            light,
            end,
            began,
            next,
            inbox: Arc::clone(&session.inbox),
            _permit: permit,
        },
        durable_after,
    );
}

/// Takes back what was gathered from record number `first` on, if no file of the log can hold it: left in the batch, it would cost all that
/// stands behind it. `gathered`: the batch's bytes before.
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

/// Encodes a record into a batch. Its parts were checked against their limits by whoever made the draft.
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
enum Who {
    /// Clients that wait for no answer: there is nobody to be told that there is no room, so they wait until there is, and their connection
    /// is not read meanwhile. Where the device is full they wait as long as others do where it is late.
    Oneway,
    /// Clients: where they do not want to wait for a full write pool (`fastFailIfNoBufferInStorePool`), they need not.
    Producers,
    /// Ourselves, who would only try again.
    Broker,
}

impl Broker {
    /// Lets the flush thread go round now, and not at the end of its interval, if one of these answers waits for the device.
    pub(crate) fn flush_for(&self, receipts: &Receipts) {
        if !self.store.is_sync_flush() && receipts.next_stage(Stage::Flushed) == Some(Stage::Flushed) {
            self.store.want_flush();
        }
    }

    /// Wakes who waits for messages that were appended up to `end`, also to light queues: at once, or when they may be seen.
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

    /// Appends a batch, waiting for room within the time that a producer waits. On an error some records may have landed.
    pub(crate) async fn append(&self, batch: &mut RecordBatch) -> Result<(), Refusal> {
        self.append_from(Who::Broker, batch).await
    }

    async fn append_from(&self, who: Who, batch: &mut RecordBatch) -> Result<(), Refusal> {
        let mut waiting: Option<Duration> = None;
        // Ends with room, or with the time for it; for who waits for no answer, with his connection.
        loop {
            let error = match self.store.append(batch, self.clock.now()) {
                Ok(()) => {
                    self.limits.has_room();
                    return Ok(());
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
                AppendError::NotWritable(why) => {
                    let now = self.clock.elapsed();
                    let full_for = self.limits.full_for(now);
                    // Retention may make room within seconds, and nobody else can try again. Once for all of them, however many come one after the other.
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
            // In steps: if the device turns out to be full meanwhile, the next append says so, and nobody rings for that.
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
