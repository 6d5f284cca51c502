//! The end of a transaction (37), and a half message that was given up and gets another chance (323).

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use env::{Clock, TimeMs};
use net::{Outgoing, ReplyTo, Request};
use protocol::code::ResponseCode;
use protocol::message_id::parse_offset_message_id;
use protocol::names;
use protocol::properties::{self, name};
use protocol::record::{self, PROPERTIES_MAX, RecordDraft, RecordView, Scanned};
use protocol::request::{EndTransaction, ResumeCheckHalfMessage};
use protocol::sys_flag;
use protocol::tags;
use store::{Landed, RecordBatch, Stages, Store, TagsCode};

use super::state::{Transactions, immunity_ms};
use crate::broker::Broker;
use crate::caller::Caller;
use crate::refusal::Refusal;
use crate::sends::{Counted, Ending, Receipt, Sends};
use crate::session::Session;
use crate::state::stats::MessageType;
use crate::state::topics::mapping::Mapping;
use crate::static_topic::late::{self, Destination};
use crate::waiting::hold::Lane;
use crate::write::local::LocalSends;
use crate::write::{append, light, send_properties};
use crate::{cold, tables};

/// The tag of every message in the queue of ends: "deleted".
const OP_TAG: &str = "d";
/// An end waits for nothing, as in Apache: if it is lost, the half message is still there, and its producer is asked again.
const STAGES: Stages = Stages::WRITTEN;

impl Transactions {
    /// Tells what became of the ends in a batch: those that landed count, the others may be tried
    /// again.
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
}

/// What a producer says about a half message, free of the request, since the message may have to come from the disk.
#[derive(Clone, Debug)]
pub struct EndOrder {
    /// The producer's group.
    pub group: Box<str>,
    /// `None`: it does not know yet, and will be asked.
    pub is_commit: Option<bool>,
    /// It was asked.
    pub is_from_check: bool,
    /// Of the half message in its queue.
    pub half_offset: i64,
    /// And in the log.
    pub log_offset: i64,
}

impl EndOrder {
    fn decode(request: &Request<'_>) -> Result<EndOrder, Refusal> {
        let fields = EndTransaction::decode(&request.header.fields)?;
        let is_commit = match fields.commit_or_rollback {
            sys_flag::TRANSACTION_COMMIT => Some(true),
            sys_flag::TRANSACTION_ROLLBACK => Some(false),
            sys_flag::TRANSACTION_NONE => None,
            other => {
                return Err(Refusal::new(
                    ResponseCode::SystemError,
                    format!("field commitOrRollback: {other} is neither 8 (commit), 12 (rollback) nor 0 (unknown)"),
                ));
            }
        };
        Ok(EndOrder {
            is_commit,
            is_from_check: fields.from_transaction_check,
            group: fields.producer_group.into(),
            half_offset: fields.tran_state_table_offset,
            log_offset: fields.commit_log_offset,
        })
    }

    /// Carries it out for a caller in this process, which hears what has become of it.
    pub async fn call(&self, broker: &Broker, caller: &mut Caller) -> Result<(), Refusal> {
        caller.begin();
        let Some(is_commit) = self.is_commit else { return Ok(()) };
        let at = cold::log_offset(self.log_offset).ok_or_else(not_found)?;
        let found = cold::record(&broker.store, at).await?;
        let mut local = LocalSends::new(broker);
        {
            let half = found.as_ref().and_then(|slice| half_message(slice.as_ref())).ok_or_else(not_found)?;
            gather(broker, local.sends(), self, is_commit, &half)?;
        }
        // It keeps a file of the log in memory.
        drop(found);
        local.append(STAGES).await?;
        caller.settled(&broker.store).await
    }
}

/// 37. Nothing is answered to a producer that does not know yet: it will be asked.
pub(crate) fn end(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let order = EndOrder::decode(request)?;
    let Some(is_commit) = order.is_commit else { return Ok(()) };
    let (at, reply_to) = (cold::log_offset(order.log_offset).ok_or_else(not_found)?, request.reply_to());
    cold::with_record(broker, session, at, out, move |broker, session, found, out| {
        let ended = found.and_then(|slice| {
            let half = slice.as_ref().and_then(|slice| half_message(slice.as_ref())).ok_or_else(not_found)?;
            let records = gather(broker, &mut session.sends, &order, is_commit, &half)?;
            session.sends.receipts.push(Receipt::plain(reply_to, records, STAGES));
            Ok(())
        });
        if let Err(refusal) = ended {
            out.reply(reply_to, refusal.code, Some(&refusal.remark), &(), &[]);
        }
    })
}

fn not_found() -> Refusal {
    Refusal::new(ResponseCode::SystemError, "Find prepared transaction message failed")
}

fn half_message(bytes: &[u8]) -> Option<RecordView<'_>> {
    match record::scan(bytes, false) {
        Ok(Scanned::Record(view)) => Some(view).filter(|view| view.topic() == names::TRANS_HALF_TOPIC),
        Ok(_) | Err(_) => None,
    }
}

/// Is it the message that the producer means, and may the producer still end it? In Apache's order and words.
fn check(clock: &Clock, order: &EndOrder, half: &RecordView<'_>) -> Result<(), Refusal> {
    if !order.is_from_check
        && let Some(immunity_ms) = immunity_ms(half)
    {
        let age_ms = clock.now().0.saturating_sub(half.born_timestamp());
        if age_ms > immunity_ms {
            return Err(Refusal::new(
                ResponseCode::IllegalOperation,
                format!(
                    "Check half message commit/rollback failed: the message is {age_ms} ms old, its CHECK_IMMUNITY_TIME_IN_SECONDS allows an \
                     end without a check until {immunity_ms} ms"
                ),
            ));
        }
    }
    let wrong = |remark: &str| Err(Refusal::new(ResponseCode::SystemError, remark));
    if half.property(name::PGROUP) != Some(&order.group) {
        return wrong("The producer group wrong");
    }
    if u64::try_from(order.half_offset) != Ok(half.queue_offset()) {
        return wrong("The transaction state table offset wrong");
    }
    if u64::try_from(order.log_offset) != Ok(half.log_offset()) {
        return wrong("The commit log offset wrong");
    }
    Ok(())
}

/// Adds the committed message, if it is one, and the end to a batch, as one group. Says which records these are.
fn gather(
    broker: &Broker,
    sends: &mut Sends,
    order: &EndOrder,
    is_commit: bool,
    half: &RecordView<'_>,
) -> Result<Range<usize>, Refusal> {
    check(&broker.clock, order, half)?;
    let transactions = &broker.transactions;
    let half_offset = half.queue_offset();
    let op_lane = transactions.op.lane(&broker.store, 0).map_err(Refusal::failed)?;
    let target = if is_commit { Some(target(broker, half)?) } else { None };
    if !transactions.ledger.lock().claim(half_offset) {
        return Err(Refusal::new(
            ResponseCode::SystemError,
            format!("the transaction has been ended before (half queue offset {half_offset})"),
        ));
    }
    let (first, gathered) = (sends.records(), sends.batch.bytes());
    sends.batch.begin_group();
    if let Some(Target { lane, tags, draft, .. }) = &target {
        light::push_again(&broker.store, &mut sends.batch, lane, *tags, draft);
    }
    push_op(&broker.clock, broker.advertised, &mut sends.batch, &op_lane, half_offset);
    sends.batch.end_group();
    if let Err(refusal) = append::check_fits(broker, &mut sends.batch, first, gathered) {
        transactions.ledger.lock().release(half_offset);
        return Err(refusal);
    }
    let end = sends.records();
    sends.endings.push(Ending { half_offset, record: end - 1 });
    if let Some(Target { lane, draft, mapping, .. }) = target {
        sends.receipts.hold(mapping);
        if let Some(topic) = broker.topics.get(draft.topic) {
            let (queue_id, bytes) = (draft.queue_id, draft.body.len());
            let message_type = MessageType::Transaction;
            sends.count(Counted::Sent { topic, queue_id, message_type, messages: 1, bytes });
        }
        sends.touch(lane);
    }
    if let Some(topic) = half.property(name::REAL_TOPIC).and_then(|topic| broker.topics.get(topic)) {
        let committed_of = is_commit.then(|| TimeMs(half.born_timestamp()));
        sends.count(Counted::Ended { topic, committed_of });
    }
    Ok(first..end)
}

/// A committed message, and where it goes.
struct Target<'a> {
    lane: Arc<Lane>,
    tags: TagsCode,
    draft: RecordDraft<'a>,
    /// Held until the message is stored, if its topic is static.
    mapping: Option<Arc<Mapping>>,
}

/// The message as it will be in its own queue. Its properties stay as they are, REAL_TOPIC and TRAN_MSG included: consumers of Apache see
/// them too.
fn target<'a>(broker: &Broker, half: &RecordView<'a>) -> Result<Target<'a>, Refusal> {
    let topic = half.property(name::REAL_TOPIC).unwrap_or_default();
    let queue_id = half.property(name::REAL_QID).and_then(|text| text.parse::<u32>().ok());
    let Some(queue_id) = queue_id.filter(|_| !topic.is_empty()) else {
        let remark = format!("the half message at log offset {} has no REAL_TOPIC and REAL_QID", half.log_offset());
        return Err(Refusal::new(ResponseCode::SystemError, remark));
    };
    light::make_room(&broker.store, topic);
    let mut draft = half.to_draft();
    draft.sys_flag = sys_flag::with_transaction(half.sys_flag(), sys_flag::TRANSACTION_COMMIT);
    draft.prepared_offset = half.log_offset() as i64;
    let (queue_id, mapping) = match late::destination(broker, topic, queue_id) {
        Destination::Here(queue_id, mapping) => (queue_id, mapping),
        Destination::Elsewhere(_) => {
            let (lane, tags) = late::waiting(broker, &mut draft, late::SOON).ok_or_else(|| {
                Refusal::failed("the message cannot wait for its queue's broker, there are no delay levels")
            })?;
            return Ok(Target { lane, tags, draft, mapping: None });
        }
    };
    // A topic that was deleted meanwhile gets its message all the same, as in Apache.
    let lane = match broker.topics.get(topic) {
        Some(topic) => topic.lane(&broker.store, queue_id),
        None => broker.store.queue(topic, queue_id).map(|queue| Arc::new(Lane::new(queue, None))),
    };
    draft.topic = topic;
    draft.queue_id = queue_id as i32;
    let tags = TagsCode::Code(tags::code(half.property(name::TAGS).unwrap_or_default()));
    Ok(Target { lane: lane.map_err(Refusal::failed)?, tags, draft, mapping })
}

/// Adds the message that says a half message is ended.
pub(super) fn push_op(clock: &Clock, advertised: SocketAddr, batch: &mut RecordBatch, lane: &Lane, half_offset: u64) {
    let (mut properties, mut body) = (Vec::new(), String::new());
    write_op(&mut properties, &mut body, half_offset);
    let draft = RecordDraft {
        born_timestamp: clock.now().0,
        body: body.as_bytes(),
        properties: &properties,
        ..RecordDraft::plain(names::TRANS_OP_HALF_TOPIC, advertised)
    };
    append::push(batch, lane, TagsCode::Code(tags::code(OP_TAG)), &draft);
}

/// The properties and the body of a message that ends one half message: its offset without a comma
/// behind it, which brokers before 5.0 could not read. They would ask again.
fn write_op(properties: &mut Vec<u8>, body: &mut String, half_offset: u64) {
    use std::fmt::Write;
    properties.clear();
    send_properties::put(properties, name::TAGS, OP_TAG);
    body.clear();
    let _ = write!(body, "{half_offset}");
}

/// 323: a half message that was given up is stored as a new one, about which nobody was asked yet.
pub(crate) fn resume(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let fields = ResumeCheckHalfMessage::decode(&request.header.fields)?;
    let msg_id: Box<str> = fields.msg_id.unwrap_or_default().into();
    let (_, at) = parse_offset_message_id(&msg_id)
        .map_err(|error| Refusal::new(ResponseCode::SystemError, format!("field msgId: \"{msg_id}\": {error}")))?;
    let reply_to = request.reply_to();
    cold::with_record(broker, session, protocol::LogOffset(at), out, move |broker, session, found, out| {
        let gathered = found.and_then(|slice| {
            let topic = names::TRANS_CHECK_MAX_TIME_TOPIC;
            let scanned = slice.as_ref().map(|slice| record::scan(slice.as_ref(), false));
            match scanned {
                Some(Ok(Scanned::Record(view))) if view.topic() == topic => {
                    gather_again(broker, session, reply_to, &view)
                }
                _ => Err(Refusal::new(ResponseCode::SystemError, format!("no message of {topic} has the id {msg_id}"))),
            }
        });
        if let Err(refusal) = gathered {
            out.reply(reply_to, refusal.code, Some(&refusal.remark), &(), &[]);
        }
    })
}

fn gather_again(
    broker: &Broker,
    session: &mut Session,
    reply_to: ReplyTo,
    given_up: &RecordView<'_>,
) -> Result<(), Refusal> {
    let lane = broker.transactions.half.lane(&broker.store, 0).map_err(Refusal::failed)?;
    let sends = &mut session.sends;
    sends.properties.clear();
    send_properties::copy_except(&mut sends.properties, &given_up.properties(), |key| {
        // The last are those of another broker, which lets half messages stand in light queues.
        matches!(key, name::TRANSACTION_CHECK_TIMES | name::TRAN_PREPARED_QUEUE_OFFSET | name::INNER_MULTI_QUEUE_OFFSET)
    });
    send_properties::put(&mut sends.properties, name::TRANSACTION_CHECK_TIMES, "0");
    if sends.properties.len() > PROPERTIES_MAX {
        let bytes = sends.properties.len();
        let remark =
            format!("the properties would have {bytes}B with TRANSACTION_CHECK_TIMES, the limit is {PROPERTIES_MAX}B");
        return Err(Refusal::new(ResponseCode::MessageIllegal, remark));
    }
    let properties = given_up.properties();
    let stages = broker.stages_again(properties::get(&properties, name::REAL_TOPIC).unwrap_or_default(), &properties);
    let mut draft = append::again(given_up);
    draft.topic = names::TRANS_HALF_TOPIC;
    draft.queue_id = 0;
    draft.store_host = broker.advertised;
    draft.prepared_offset = 0;
    draft.properties = &sends.properties;
    let (first, gathered) = (sends.records(), sends.batch.bytes());
    append::push(&mut sends.batch, &lane, TagsCode::Code(given_up.tags_code()), &draft);
    append::check_fits(broker, &mut sends.batch, first, gathered)?;
    sends.receipts.push(Receipt::plain(reply_to, first..first + 1, stages));
    sends.touch(lane);
    sends.half_messages += 1;
    Ok(())
}
