//! Sends that come a second time: the window in which a message with a known `UNIQ_KEY` is not
//! stored again.
//!
//! A producer that heard nothing sends once more, with the same key, often to another queue. With
//! `repeatedSendWindowMillis` the second one is answered with the place of the first. Keys live in
//! memory only: a restart forgets them. Off by default, and then never locked. Left out are
//! batches, retries (a consumer sends the same message back again and again, under its first key),
//! static topics (the queue of the first one may have moved to another broker) and keys that are
//! too long.

use std::sync::Arc;
use std::time::Duration;

use net::{Outgoing, ReplyTo};
use protocol::code::ResponseCode;
use protocol::message_id::offset_message_id;
use protocol::request::SendReply;
use store::Stage;
use tokio::time::timeout;

use crate::answer::reply_extra;
use crate::broker::Broker;
use crate::caller::JOURNAL_TIMEOUT;
use crate::inbox::Errand;
use crate::parts::Stored;
use crate::refusal::{Refusal, SOON};
use crate::session::Session;
use crate::state::repeats::{Claim, First};
use crate::state::topics::Topic;
use crate::write::acknowledgements;

/// How a send goes on.
pub(crate) enum Verdict {
    /// It is stored; the name is settled once that is done.
    Store(Option<Arc<str>>),
    /// It was stored before.
    Repeated(First),
}

/// Looks whether this message was sent before, and notes it.
pub(crate) fn look(broker: &Broker, topic: &Arc<Topic>, uniq_key: &str) -> Result<Verdict, Refusal> {
    match broker.repeats.claim(topic, uniq_key, &broker.clock) {
        None => Ok(Verdict::Store(None)),
        Some(Claim::New(name)) => Ok(Verdict::Store(Some(name))),
        Some(Claim::Stored(first)) => Ok(Verdict::Repeated(first)),
        // Producers send again after this code.
        Some(Claim::UnderWay) => Err(Refusal::busy(
            format_args!(
                "[GANTRY]broker busy, start flow control for a while: a message with the UNIQ_KEY {uniq_key} is being stored"
            ),
            SOON,
        )),
    }
}

/// Answers a repeated send as the first one was answered: in its mode, when what it waits for has
/// come. One that is refused is left to whoever answers refusals.
pub(crate) fn answer(
    broker: &Broker,
    session: &mut Session,
    reply_to: ReplyTo,
    uniq_key: &str,
    stage: Stage,
    first: First,
) -> Result<(), Refusal> {
    let journal = session.waits_for();
    let store = Arc::clone(&broker.store);
    let topics = Arc::clone(store.journal().mark_of(journal, stage > Stage::Written));
    let is_durable = store.mark(stage).get() >= first.end.0 && topics.get() >= journal;
    let permit = if is_durable { None } else { Some(session.sends.may_wait()?) };
    // From here on it is answered: a part of a request that was taken out before would never be.
    let part = session.sends.receipts.take_part();
    let (settings, host) = (broker.settings.load_full(), broker.advertised);
    let uniq_key = uniq_key.to_owned();
    let frames = move |code: ResponseCode, remark: Option<&str>| {
        let mut out = Outgoing::new();
        if let Some(part) = &part {
            let (queue_id, queue_offset) = (first.queue_id, first.queue_offset as i64);
            let stored = Stored { code, remark, queue_id, queue_offset, recall_handle: None };
            part.is_stored(&stored, std::iter::once(first.at.0), &settings, &mut out);
            return out.take();
        }
        let mut msg_id = String::new();
        offset_message_id(&mut msg_id, host, first.at.0);
        let reply = SendReply {
            msg_id: &msg_id,
            queue_id: first.queue_id,
            queue_offset: first.queue_offset as i64,
            transaction_id: Some(&uniq_key),
            batch_uniq_id: None,
            recall_handle: None,
        };
        out.reply(reply_to, code, remark, &(reply, reply_extra(&settings)), &[]);
        out.take()
    };
    let Some(permit) = permit else {
        session.inbox.push(Errand::Frames(frames(ResponseCode::Success, None)));
        return Ok(());
    };
    let limit = JOURNAL_TIMEOUT.max(Duration::from_millis(broker.store_settings.load().sync_flush_timeout));
    let inbox = Arc::clone(&session.inbox);
    let debt = inbox.owe();
    tokio::spawn(async move {
        let durable = async {
            store.mark(stage).reached(first.end.0).await;
            topics.reached(journal).await;
        };
        let answer = if timeout(limit, durable).await.is_ok() {
            frames(ResponseCode::Success, None)
        } else {
            let (code, late) = if topics.get() < journal {
                let limit = limit.as_millis();
                let late = format!("stored, but its topic is not on the device with the journal within {limit} ms");
                (ResponseCode::FlushDiskTimeout, late)
            } else {
                acknowledgements::late(&store, stage.max(Stage::Flushed), first.end, limit)
            };
            frames(code, Some(&late))
        };
        inbox.push(Errand::Frames(answer));
        drop((debt, permit));
    });
    Ok(())
}
