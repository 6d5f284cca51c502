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

use net::{Outgoing, ReplyTo};
use protocol::code::ResponseCode;
use protocol::message_id::offset_message_id;
use store::{Stage, Stages, Store};

use crate::broker::Broker;
use crate::caller::JOURNAL_TIMEOUT;
use crate::inbox::Errand;
use crate::parts::Stored;
use crate::refusal::{Refusal, SOON};
use crate::sends::SendOutcome;
use crate::session::Session;
use crate::state::copies::Copies;
use crate::state::repeats::{Claim, First};
use crate::state::topics::Topic;
use crate::write::acknowledgements::{Limits, Missed, copied_again, late, reached};

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

/// A send that was stored before. It is answered as the first one was: in its mode, when what it
/// waits for has come.
pub(crate) struct Repeated {
    pub(crate) uniq_key: Box<str>,
    pub(crate) stages: Stages,
    pub(crate) first: First,
}

impl Repeated {
    /// What the producer is told.
    fn stored<'a>(&'a self, code: ResponseCode, remark: Option<&'a str>) -> Stored<'a> {
        let (queue_id, queue_offset) = (self.first.queue_id, self.first.queue_offset as i64);
        Stored { code, remark, queue_id, queue_offset, uniq_key: Some(&self.uniq_key), recall_handle: None }
    }

    /// Waits for its stages, and for the journal up to `durable_after`; says what is late.
    async fn late(
        &self,
        store: &Store,
        copies: &Copies,
        durable_after: u64,
        limits: Limits,
    ) -> Option<(ResponseCode, String)> {
        let (own, end) = (self.stages.without_copies(), self.first.end);
        let own = reached(store, copies, own, end, durable_after, limits);
        let copied = copied_again(copies, self.stages, end, limits.copies);
        let missed = tokio::try_join!(own, copied).err()?;
        let missed = match missed {
            // The first one is stored, whatever became of the pool since.
            Missed::Stage(Stage::Written) => Missed::Stage(Stage::Flushed),
            Missed::Journal(_) | Missed::Topic(_) | Missed::Stage(_) | Missed::Slaves(_) => missed,
        };
        let (code, remark) = late(store, copies, self.stages, end, missed, limits);
        copies.note_unacknowledged(code, 1);
        Some((code, remark))
    }

    /// For a caller in this process, once its stages have come.
    pub(crate) async fn outcome(self, broker: &Broker, durable_after: u64) -> SendOutcome {
        let late = self.late(&broker.store, &broker.copies, durable_after, limits(broker)).await;
        let (code, remark) = late.map_or((ResponseCode::Success, None), |(code, remark)| (code, Some(remark)));
        SendOutcome::of(&self.stored(code, remark.as_deref()), std::iter::once(self.first.at))
    }
}

fn limits(broker: &Broker) -> Limits {
    let limits = Limits::of(broker);
    Limits { flush: limits.flush.max(JOURNAL_TIMEOUT), ..limits }
}

/// Answers a repeated send of a remoting client, unless it is refused: the caller answers refusals.
pub(crate) fn answer(
    broker: &Broker,
    session: &mut Session,
    reply_to: ReplyTo,
    repeated: Repeated,
) -> Result<(), Refusal> {
    let journal = session.waits_for();
    let (store, copies) = (Arc::clone(&broker.store), Arc::clone(&broker.copies));
    let topics = store.journal().mark_of(journal, repeated.stages.ask_for_device());
    let end = repeated.first.end;
    let has_come = |stage: Stage| {
        if Stage::COPIED.contains(&stage) { copies.have(stage, end) } else { store.mark(stage).get() >= end.0 }
    };
    let is_durable = repeated.stages.each().all(has_come) && topics.get() >= journal;
    let permit = if is_durable { None } else { Some(session.sends.may_wait()?) };
    // From here on it is answered: a part of a request that was taken out before would never be.
    let part = session.sends.receipts.take_part();
    let (settings, host) = (broker.settings.load_full(), broker.advertised);
    let frames = move |repeated: &Repeated, code: ResponseCode, remark: Option<&str>| {
        let mut out = Outgoing::new();
        let (stored, at) = (repeated.stored(code, remark), repeated.first.at.0);
        if let Some(part) = &part {
            part.is_stored(&stored, std::iter::once(at), &settings, &mut out);
            return out.take();
        }
        let mut msg_id = String::new();
        offset_message_id(&mut msg_id, host, at);
        stored.encode(reply_to, &msg_id, false, &settings, &mut out);
        out.take()
    };
    let Some(permit) = permit else {
        session.inbox.push(Errand::Frames(frames(&repeated, ResponseCode::Success, None)));
        return Ok(());
    };
    let limits = limits(broker);
    let inbox = Arc::clone(&session.inbox);
    let debt = inbox.owe();
    tokio::spawn(async move {
        let answer = match repeated.late(&store, &copies, journal, limits).await {
            None => frames(&repeated, ResponseCode::Success, None),
            Some((code, late)) => frames(&repeated, code, Some(&late)),
        };
        inbox.push(Errand::Frames(answer));
        drop((debt, permit));
    });
    Ok(())
}
