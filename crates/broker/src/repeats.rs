//! Sends that come a second time: the window in which a message with a known `UNIQ_KEY` is not stored again.
//!
//! A producer that heard nothing sends once more, with the same key, often to another queue. With `repeatedSendWindowMillis` the second
//! one is answered with the place of the first. Keys live in memory only: a restart forgets them. Off by default, and then never locked.
//! Left out are batches, retries (a consumer sends the same message back again and again, under its first key), static topics (the queue
//! of the first one may have moved to another broker) and keys that are too long.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use net::{Outgoing, ReplyTo};
use parking_lot::Mutex;
use protocol::LogOffset;
use protocol::code::ResponseCode;
use protocol::message_id::offset_message_id;
use protocol::request::SendReply;
use store::{Landed, Stage};
use tokio::time::timeout;

use crate::acknowledgements;
use crate::answer::reply_extra;
use crate::broker::Broker;
use crate::inbox::Errand;
use crate::parts::Stored;
use crate::refusal::{Refusal, SOON};
use crate::session::{JOURNAL_TIMEOUT, Session};
use crate::topics::Topic;

/// Longest key that is remembered, in bytes. Clients make them 32 long.
const KEY_MAX: usize = 128;

/// Where the first of several equal sends went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct First {
    at: LogOffset,
    end: LogOffset,
    queue_id: i32,
    queue_offset: u64,
}

/// What a claim finds.
#[derive(Debug, PartialEq, Eq)]
enum Claim {
    /// Nobody sent it before: it is to be stored, under this name.
    New(Arc<str>),
    /// It is there.
    Stored(First),
    /// Another connection is about to store it.
    UnderWay,
}

#[derive(Debug)]
struct Sent<T> {
    claimed_at: Duration,
    topic: T,
    /// None until it is stored.
    first: Option<First>,
}

/// The sends of the last while. `T` is the topic's handle.
#[derive(Debug)]
struct Known<T> {
    by_name: HashMap<Arc<str>, Sent<T>>,
    /// Oldest first. A name that was given up stays here until its time, and then removes nothing.
    in_order: VecDeque<(Duration, Arc<str>)>,
}

impl<T> Known<T> {
    /// Forgets what is older than `window`, and the oldest if there would be more than `max`.
    fn claim(
        &mut self,
        name: &str,
        topic: T,
        is_gone: impl Fn(&T) -> bool,
        now: Duration,
        window: Duration,
        max: usize,
    ) -> Claim {
        while self.in_order.front().is_some_and(|(at, _)| now.saturating_sub(*at) >= window) {
            self.forget_oldest();
        }
        match self.by_name.get(name) {
            // What a deleted topic held is gone, and its name may belong to another one.
            Some(sent) if is_gone(&sent.topic) => {}
            Some(Sent { first: Some(first), .. }) => return Claim::Stored(*first),
            Some(Sent { first: None, .. }) => return Claim::UnderWay,
            None => {}
        }
        while self.in_order.len() >= max.max(1) {
            self.forget_oldest();
        }
        let name: Arc<str> = name.into();
        self.in_order.push_back((now, Arc::clone(&name)));
        self.by_name.insert(Arc::clone(&name), Sent { claimed_at: now, topic, first: None });
        Claim::New(name)
    }

    fn forget_oldest(&mut self) {
        if let Some((at, name)) = self.in_order.pop_front()
            && self.by_name.get(&name).is_some_and(|sent| sent.claimed_at == at)
        {
            self.by_name.remove(&name);
        }
    }

    fn settle(&mut self, name: &str, first: Option<First>) {
        match (self.by_name.get_mut(name), first) {
            (Some(sent), Some(_)) => sent.first = first,
            (Some(sent), None) if sent.first.is_none() => {
                self.by_name.remove(name);
            }
            (Some(_) | None, _) => {}
        }
    }
}

/// The window.
pub(crate) struct Repeats {
    /// Zero: off.
    window: Duration,
    max: usize,
    known: Mutex<Known<Arc<Topic>>>,
}

impl Repeats {
    pub(crate) fn new(window_ms: u64, max: usize) -> Repeats {
        let known = Known { by_name: HashMap::new(), in_order: VecDeque::new() };
        Repeats { window: Duration::from_millis(window_ms), max, known: Mutex::new(known) }
    }

    /// How many sends are remembered.
    pub(crate) fn count(&self) -> usize {
        self.known.lock().in_order.len()
    }

    /// What became of a claimed send: where it landed, or that it did not.
    pub(crate) fn settle(&self, name: &str, queue_id: i32, landed: Option<&Landed>) {
        let first =
            landed.map(|landed| First { at: landed.at, end: landed.end, queue_id, queue_offset: landed.queue_offset });
        self.known.lock().settle(name, first);
    }
}

/// How a send goes on.
pub(crate) enum Verdict {
    /// It is stored; the name is settled once that is done.
    Store(Option<Arc<str>>),
    /// It was stored before.
    Repeated(First),
}

/// Looks whether this message was sent before, and notes it.
pub(crate) fn look(broker: &Broker, topic: &Arc<Topic>, uniq_key: &str) -> Result<Verdict, Refusal> {
    let repeats = &broker.repeats;
    if repeats.window.is_zero()
        || uniq_key.is_empty()
        || uniq_key.len() > KEY_MAX
        || topic.is_retry()
        || topic.is_static()
    {
        return Ok(Verdict::Store(None));
    }
    let name = format!("{}\u{1}{uniq_key}", topic.name());
    let claimed = repeats.known.lock().claim(
        &name,
        Arc::clone(topic),
        |topic| topic.is_gone(),
        broker.clock.elapsed(),
        repeats.window,
        repeats.max,
    );
    match claimed {
        Claim::New(name) => Ok(Verdict::Store(Some(name))),
        Claim::Stored(first) => Ok(Verdict::Repeated(first)),
        // Producers send again after this code.
        Claim::UnderWay => Err(Refusal::busy(
            format_args!(
                "[GANTRY]broker busy, start flow control for a while: a message with the UNIQ_KEY {uniq_key} is being stored"
            ),
            SOON,
        )),
    }
}

/// Answers a repeated send as the first one was answered: in its mode, when what it waits for has come. One that is refused is left to whoever
/// answers refusals.
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

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(10);
    const FIRST: First = First { at: LogOffset(7), end: LogOffset(9), queue_id: 1, queue_offset: 5 };

    fn known() -> Known<bool> {
        Known { by_name: HashMap::new(), in_order: VecDeque::new() }
    }

    fn claim(known: &mut Known<bool>, name: &str, seconds: u64) -> Claim {
        known.claim(name, false, |is_gone| *is_gone, Duration::from_secs(seconds), WINDOW, 3)
    }

    #[test]
    fn a_send_is_known_until_its_window_is_over() {
        let mut known = known();
        assert_eq!(claim(&mut known, "a", 0), Claim::New("a".into()));
        assert_eq!(claim(&mut known, "a", 1), Claim::UnderWay);
        known.settle("a", Some(FIRST));
        assert_eq!(claim(&mut known, "a", 9), Claim::Stored(FIRST));
        assert_eq!(claim(&mut known, "a", 10), Claim::New("a".into()));
    }

    #[test]
    fn a_send_that_was_not_stored_may_come_again() {
        let mut known = known();
        claim(&mut known, "a", 0);
        known.settle("a", None);
        assert_eq!(claim(&mut known, "a", 5), Claim::New("a".into()));
        known.settle("a", Some(FIRST));
        // The end of the first claim's time is not that of the second.
        assert_eq!(claim(&mut known, "a", 12), Claim::Stored(FIRST));
    }

    #[test]
    fn there_is_an_end_to_what_is_remembered_and_the_oldest_goes_first() {
        let mut known = known();
        for name in ["a", "b", "c", "d"] {
            claim(&mut known, name, 0);
            known.settle(name, Some(FIRST));
        }
        assert_eq!((known.by_name.len(), known.in_order.len()), (3, 3));
        assert_eq!(claim(&mut known, "d", 1), Claim::Stored(FIRST));
        assert_eq!(claim(&mut known, "a", 1), Claim::New("a".into()));
        for _ in 0..10 {
            known.settle("a", None);
            claim(&mut known, "a", 1);
        }
        assert!(known.in_order.len() <= 3);
    }

    #[test]
    fn what_a_deleted_topic_held_does_not_count() {
        let mut known = known();
        known.claim("a", true, |is_gone| *is_gone, Duration::ZERO, WINDOW, 3);
        known.settle("a", Some(FIRST));
        assert_eq!(claim(&mut known, "a", 1), Claim::New("a".into()));
    }
}
