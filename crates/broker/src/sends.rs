//! Sends of one connection, or of one call in this process, that are gathered and not appended yet:
//! their records, and how each is answered.
//!
//! A receipt is data. `append.rs` writes the records; the answers are written there, or by
//! `acknowledgements.rs` after a flush. A call hears its outcome from `local.rs`.

use std::ops::Range;
use std::sync::Arc;

use config::BrokerSettings;
use env::{Clock, TimeMs};
use net::{Outgoing, ReplyTo};
use protocol::LogOffset;
use protocol::code::ResponseCode;
use protocol::message_id::offset_message_ids;
use protocol::request::RecallMessageReply;
use store::{ConsumeQueue, Landed, RecordBatch, Stage, Stages};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::answer::{recall_extra, reply_extra};
use crate::ids::Ids;
use crate::parts::{Part, Stored};
use crate::refusal::{Refusal, SOON};
use crate::state::stats::{MessageType, Stats};
use crate::state::topics::Topic;
use crate::state::topics::logical::Logical;
use crate::state::topics::mapping::Mapping;
use crate::waiting::hold::{Lane, ParkedPull};

/// A burst of sends is appended at the latest when it has gathered this much: what is not appended
/// cannot be answered.
const GATHERED_BYTES_MAX: usize = 4 << 20;
/// And this many records.
const GATHERED_RECORDS_MAX: usize = 4096;
/// What a receipt is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiptKind {
    /// One message.
    Send,
    /// One message that waits for its time: its text is the unique key, a line break and the handle
    /// that takes it back.
    Timer,
    /// Several, with one answer.
    Batch,
    /// Several in one record.
    InnerBatch,
    /// A timer message is taken back (370).
    Recall,
    /// What is answered with a code alone: a message that a consumer gave back (36), the end of a
    /// transaction (37), a half message that gets another chance (323). As in Apache it succeeds once
    /// it is stored here, also if slaves are late or missing: its client would store it once more.
    Plain,
    /// The reply to a request (324): its answer is about the push to whom it is for, whatever
    /// becomes of the record.
    Reply,
}

/// The answer that is owed for records of a batch.
#[derive(Clone, Debug)]
pub(crate) struct Receipt {
    pub(crate) reply_to: ReplyTo,
    pub(crate) kind: ReceiptKind,
    /// For the answer.
    pub(crate) queue_id: i32,
    /// Which records of the batch.
    pub(crate) records: Range<usize>,
    /// Where the unique key stands among the receipts' text; for a reply, why it did not get to
    /// whom it is for.
    pub(crate) text: Range<usize>,
    /// Is answered when its records have come to these stages.
    pub(crate) stages: Stages,
    /// Its name in the window of repeated sends.
    pub(crate) claim: Option<Arc<str>>,
    /// It is for a part of a request, of which there are several: `None` where a receipt is made,
    /// and filled in by [`Receipts::push`].
    pub(crate) part: Option<Part>,
}

impl Receipt {
    /// For what is answered with a code alone.
    pub(crate) fn plain(reply_to: ReplyTo, records: Range<usize>, stages: Stages) -> Receipt {
        let kind = ReceiptKind::Plain;
        Receipt { reply_to, kind, queue_id: 0, records, text: 0..0, stages, claim: None, part: None }
    }

    /// Whether it is answered with success where only slaves are late or missing.
    pub(crate) fn succeeds_without_slaves(&self) -> bool {
        self.kind == ReceiptKind::Plain
    }

    /// Whether its answer says what is late with a record that is stored.
    pub(crate) fn tells_what_is_late(&self) -> bool {
        !matches!(self.kind, ReceiptKind::Recall | ReceiptKind::Reply)
    }
}

/// What has become of a send for a caller in this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendOutcome {
    /// Success; or what the message is late for, though it is stored.
    pub code: ResponseCode,
    /// For people, where it is late.
    pub remark: Option<Box<str>>,
    /// The queue that it was sent to, also when it waits elsewhere.
    pub queue_id: i32,
    /// Its place in that queue, or where it waits; of a batch, that of the first message.
    pub queue_offset: i64,
    /// Where its records lie in the log: a batch may have one for each message.
    pub places: Box<[LogOffset]>,
    /// The key that the producer gave it, or the broker.
    pub uniq_key: Option<Box<str>>,
    /// Takes a message back that waits for its time.
    pub recall_handle: Option<Box<str>>,
}

impl SendOutcome {
    pub(crate) fn of(stored: &Stored<'_>, places: impl Iterator<Item = LogOffset>) -> SendOutcome {
        SendOutcome {
            code: stored.code,
            remark: stored.remark.map(Into::into),
            queue_id: stored.queue_id,
            queue_offset: stored.queue_offset,
            places: places.collect(),
            uniq_key: stored.uniq_key.map(Into::into),
            recall_handle: stored.recall_handle.map(Into::into),
        }
    }
}

/// Receipts of one batch, with the text that they need after the requests are gone.
#[derive(Default)]
pub(crate) struct Receipts {
    pub(crate) list: Vec<Receipt>,
    text: String,
    /// Of sends to static topics: the first record of each, and the logical queue that its answer
    /// speaks of.
    logical: Vec<(usize, Logical)>,
    /// Mappings by which messages that waited were given their queues: held until all of this is
    /// stored.
    held: Vec<Arc<Mapping>>,
    /// All stages that one of them asks for.
    pub(crate) stages: Stages,
    /// The part of a request that is being gathered.
    part: Option<Part>,
}

impl Receipts {
    /// Notes that what is gathered next is for this part of a request.
    pub(crate) fn begin_part(&mut self, part: Part) {
        self.part = Some(part);
    }

    /// The part that was begun, for whoever answers it; nothing if its receipt has it already, or
    /// if there is none.
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
        self.stages = self.stages.and(receipt.stages);
        self.list.push(Receipt { part, ..receipt });
    }

    /// Those that succeed without slaves wait for this stage no longer.
    pub(crate) fn forgo(&mut self, stage: Stage) {
        for receipt in self.list.iter_mut().filter(|receipt| receipt.succeeds_without_slaves()) {
            receipt.stages = receipt.stages.without(stage);
        }
    }

    /// None of them waits for slaves.
    pub(crate) fn ask_for_no_copies(&mut self) {
        self.stages = self.stages.without_copies();
        for receipt in &mut self.list {
            receipt.stages = receipt.stages.without_copies();
        }
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
        // Nearly always empty. In the order of the records, because receipts are gathered in that
        // order.
        match self.logical.binary_search_by_key(&receipt.records.start, |(first, _)| *first) {
            Ok(at) => (self.logical[at].1.queue_id(), self.logical[at].1.offset(physical)),
            Err(_) => (receipt.queue_id, physical),
        }
    }

    /// Takes all of it, for a burst that waits. The next one is expected to be of its size, and
    /// need not grow to it step by step.
    pub(crate) fn take(&mut self) -> Receipts {
        let (list, text) = (Vec::with_capacity(self.list.len()), String::with_capacity(self.text.len()));
        std::mem::replace(self, Receipts { list, text, ..Receipts::default() })
    }

    fn clear(&mut self) {
        self.list.clear();
        self.stages = Stages::WRITTEN;
        self.logical.clear();
        self.held.clear();
        self.text.clear();
    }

    /// What those wait for that `is_open` says have no answer yet, by the stages that they ask for.
    pub(crate) fn left(&self, is_open: impl Fn(Stages) -> bool) -> Stages {
        let open = self.list.iter().map(|receipt| receipt.stages).filter(|stages| is_open(*stages));
        open.fold(Stages::NONE, Stages::and)
    }

    /// Answers those of which `is_due` says so. Says how many of them heard the answer's code.
    pub(crate) fn reply_to(
        &self,
        is_due: impl Fn(&Receipt) -> bool,
        landed: &[Landed],
        answer: &Answer<'_>,
        ids: &mut String,
        out: &mut Outgoing,
    ) -> u64 {
        let mut told = 0;
        for receipt in self.list.iter().filter(|receipt| is_due(receipt)) {
            self.reply(receipt, landed, answer, ids, out);
            told += u64::from(receipt.tells_what_is_late());
        }
        told
    }

    /// What the producer is told of a send whose first record has landed there.
    fn stored<'a>(
        &'a self,
        receipt: &Receipt,
        first: &Landed,
        code: ResponseCode,
        remark: Option<&'a str>,
    ) -> Stored<'a> {
        let text = self.text(&receipt.text);
        let (queue_id, queue_offset) = self.place_of(receipt, first);
        let named = |code, remark, uniq_key: &'a str, recall_handle| {
            let uniq_key = (!uniq_key.is_empty()).then_some(uniq_key);
            Stored { code, remark, queue_id, queue_offset, uniq_key, recall_handle }
        };
        match receipt.kind {
            ReceiptKind::Reply => {
                let (code, remark) = outcome(text);
                named(code, remark, "", None)
            }
            ReceiptKind::Timer => match text.split_once('\n') {
                Some((uniq_key, handle)) => named(code, remark, uniq_key, Some(handle)),
                None => named(code, remark, text, None),
            },
            ReceiptKind::Send
            | ReceiptKind::Batch
            | ReceiptKind::InnerBatch
            | ReceiptKind::Plain
            | ReceiptKind::Recall => named(code, remark, text, None),
        }
    }

    /// What a caller in this process is told of its one send, whose records have landed.
    pub(crate) fn first_outcome(
        &self,
        landed: &[Landed],
        code: ResponseCode,
        remark: Option<&str>,
    ) -> Option<SendOutcome> {
        let receipt = self.list.first()?;
        let records = landed.get(receipt.records.clone())?;
        let stored = self.stored(receipt, records.first()?, code, remark);
        Some(SendOutcome::of(&stored, records.iter().map(|record| record.at)))
    }

    /// Writes one answer.
    pub(crate) fn reply(
        &self,
        receipt: &Receipt,
        landed: &[Landed],
        answer: &Answer<'_>,
        ids: &mut String,
        out: &mut Outgoing,
    ) {
        let records = &landed[receipt.records.clone()];
        if receipt.kind == ReceiptKind::Recall && !answer.is_stored {
            let late = Refusal::new(answer.code, answer.remark.unwrap_or_default());
            return self.refuse(receipt, &late, answer.settings, out);
        }
        if receipt.kind == ReceiptKind::Recall {
            // Stored is taken back, also when the device is late with it.
            let reply = (RecallMessageReply { msg_id: self.text(&receipt.text) }, recall_extra(answer.settings));
            out.reply(receipt.reply_to, ResponseCode::Success, None, &reply, &[]);
            return;
        }
        let (
            Some(first),
            ReceiptKind::Send | ReceiptKind::Timer | ReceiptKind::Batch | ReceiptKind::InnerBatch | ReceiptKind::Reply,
        ) = (records.first(), receipt.kind)
        else {
            out.reply(receipt.reply_to, answer.code, answer.remark, &(), &[]);
            return;
        };
        let stored = self.stored(receipt, first, answer.code, answer.remark);
        if let Some(part) = &receipt.part {
            part.is_stored(&stored, records.iter().map(|record| record.at.0), answer.settings, out);
            return;
        }
        ids.clear();
        offset_message_ids(ids, answer.host, records.iter().map(|record| record.at.0));
        stored.encode(receipt.reply_to, ids, receipt.kind == ReceiptKind::InnerBatch, answer.settings, out);
    }

    /// Answers one whose records were not stored.
    pub(crate) fn refuse(&self, receipt: &Receipt, refusal: &Refusal, settings: &BrokerSettings, out: &mut Outgoing) {
        if let Some(part) = &receipt.part {
            part.is_refused(refusal, settings, out);
            return;
        }
        match receipt.kind {
            ReceiptKind::Reply => {
                let (code, remark) = outcome(self.text(&receipt.text));
                nowhere(receipt.queue_id, code, remark).encode(receipt.reply_to, NOWHERE, false, settings, out);
            }
            ReceiptKind::Recall => {
                let remark = format!("recall failed, execute error: {}", refusal.remark);
                out.reply(receipt.reply_to, ResponseCode::SystemError, Some(&remark), &recall_extra(settings), &[]);
            }
            ReceiptKind::Send
            | ReceiptKind::Timer
            | ReceiptKind::Batch
            | ReceiptKind::InnerBatch
            | ReceiptKind::Plain => {
                out.reply(receipt.reply_to, refusal.code, Some(&refusal.remark), &reply_extra(settings), &[]);
            }
        }
    }
}

/// What the sender of a reply is told of the push; an empty `failure` says that the reply got
/// there.
pub(crate) fn outcome(failure: &str) -> (ResponseCode, Option<&str>) {
    if failure.is_empty() { (ResponseCode::Success, None) } else { (ResponseCode::SystemError, Some(failure)) }
}

/// The message id of a reply that is not stored.
pub(crate) const NOWHERE: &str = "0";

/// What is told of a reply that is not stored.
pub(crate) fn nowhere(queue_id: i32, code: ResponseCode, remark: Option<&str>) -> Stored<'_> {
    Stored { code, remark, queue_id, queue_offset: 0, uniq_key: None, recall_handle: None }
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

impl Counted {
    /// Counts it: its record is stored.
    pub(crate) fn note(self, stats: &Stats, clock: &Clock) {
        match self {
            Counted::Sent { topic, queue_id, message_type, messages, bytes } => {
                stats.sent(&topic, queue_id, message_type, messages, bytes);
            }
            Counted::Ended { topic, committed_of: Some(sent_at) } => {
                stats.committed(&topic, clock.now().since(sent_at));
            }
            Counted::Ended { topic, committed_of: None } => stats.rolled_back(&topic),
            Counted::Back { group, topic } => stats.sent_back(&group, topic.name()),
            Counted::Dead { group, topic } => stats.sent_dead(&group, topic.name()),
        }
    }
}

/// An end of a transaction that is in a batch: which half message, and which record of the batch
/// says so.
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
    pub(crate) lanes: Vec<Arc<Lane>>,
    /// Pulls on their way from a queue to their connections; empty between batches.
    pub(crate) woken: Vec<ParkedPull>,
    /// Transactions that the batch ends.
    pub(crate) endings: Vec<Ending>,
    /// What to count when so many records of the batch are stored.
    pub(crate) counts: Vec<(usize, Counted)>,
    /// Half messages of the batch.
    pub(crate) half_messages: usize,
    /// For the properties of the record under way.
    pub(crate) properties: Vec<u8>,
    /// For its light queues.
    pub(crate) light: Vec<Arc<ConsumeQueue>>,
    /// Sends that another broker has to store, since it has become the master.
    pub(crate) for_master: Vec<ReplyTo>,
    /// For the message ids of the answer under way.
    pub(crate) ids: String,
    pub(crate) unflushed: Arc<Semaphore>,
    pub(crate) unflushed_max: usize,
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
            for_master: Vec::new(),
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
                "[GANTRY]broker busy, start flow control for a while: {} bursts of sends of this connection wait for the device or for slaves, which is the limit \
                 (unflushedBurstsPerConnectionMax)",
                self.unflushed_max
            );
            Refusal::busy(what, SOON)
        })
    }

    /// Whether what is gathered waits for answers and this does not, or the other way round: they
    /// wait for room in different ways.
    pub(crate) fn is_of_another_kind(&self, is_oneway: bool) -> bool {
        self.receipts.list.last().is_some_and(|last| last.reply_to.is_oneway != is_oneway)
    }

    /// Enough is gathered to be appended before more is read.
    pub(crate) fn is_full(&self) -> bool {
        self.batch.bytes() >= GATHERED_BYTES_MAX || self.batch.len() >= GATHERED_RECORDS_MAX
    }

    /// Takes aside those whose records were not appended, for the broker that has become the
    /// master. A part of a request of several sends is not: the others may have been stored.
    pub(crate) fn leave_for_master(&mut self) {
        let landed = self.batch.landed().len();
        let is_left = |receipt: &mut Receipt| receipt.records.end > landed && receipt.part.is_none();
        self.for_master.extend(self.receipts.list.extract_if(.., is_left).map(|receipt| receipt.reply_to));
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
        // Producers send in runs to the same few queues, and waking one twice costs a look at a
        // counter: no set is needed.
        if !self.lanes.iter().rev().take(8).any(|known| Arc::ptr_eq(known, &lane)) {
            self.lanes.push(lane);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.batch.clear();
        self.receipts.clear();
        self.counts.clear();
        self.half_messages = 0;
        self.lanes.clear();
    }
}
