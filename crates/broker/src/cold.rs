//! Reads that may wait for the disk: on a cold-read thread, and the answer comes back through the connection's inbox.

use std::sync::Arc;

use config::StoreSettings;
use net::{Outgoing, ReplyTo};
use protocol::LogOffset;
use protocol::code::ResponseCode;
use store::queue_log::UNIT_BYTES;
use store::{ColdRead, ColdReadRefused, LogSlice, ReadLimits, RecordAt, Store, StoreError};
use tokio::sync::oneshot;

use crate::broker::Broker;
use crate::inbox::{Errand, Inbox};
use crate::refusal::{Refusal, SOON};
use crate::session::Session;
use crate::state::message_filter::At;

/// A position that a request names; none if it is before the log.
pub(crate) fn log_offset(offset: i64) -> Option<LogOffset> {
    u64::try_from(offset).ok().map(LogOffset)
}

/// How much one read of a queue may give to a client that asks for so many messages and bytes.
pub(crate) fn limits(settings: &StoreSettings, count: usize, bytes: usize, may_fault: bool) -> ReadLimits {
    let count_memory = settings.max_transfer_count_on_message_in_memory.max(1);
    ReadLimits {
        max_count: count,
        count_memory,
        bytes_memory: settings.max_transfer_bytes_on_message_in_memory.min(bytes).max(1),
        count_disk: settings.max_transfer_count_on_message_in_disk.max(1),
        bytes_disk: settings.max_transfer_bytes_on_message_in_disk.min(bytes).max(1),
        // By what a reply can hold: a client that asks for everything does not make us pass over everything at once.
        scan_bytes: settings.max_filter_message_size.max(count.min(count_memory).saturating_mul(UNIT_BYTES)),
        may_fault,
    }
}

/// Does something with a record: at once when it is in memory, else when a cold-read thread has fetched it. A damaged one is refused.
pub(crate) fn with_record(
    broker: &Broker,
    session: &mut Session,
    at: LogOffset,
    out: &mut Outgoing,
    then: impl FnOnce(&Broker, &mut Session, Result<Option<LogSlice>, Refusal>, &mut Outgoing) + Send + 'static,
) -> Result<(), Refusal> {
    match broker.store.record_at(at) {
        Ok(found) => {
            then(broker, session, Ok(found), out);
            Ok(())
        }
        Err(_) => read(&broker.store, session, move |store| checked(store, at), then),
    }
}

/// The record that begins at a log offset, checked. May wait for the disk.
pub(crate) fn checked(store: &Store, at: LogOffset) -> Result<Option<LogSlice>, Refusal> {
    sound(at, store.record_at_cold(at))
}

/// As [`checked`], also of a record that no consumer may see yet.
pub(crate) fn written(store: &Store, at: LogOffset) -> Result<Option<LogSlice>, Refusal> {
    sound(at, store.written_record_at_cold(at))
}

fn sound(at: LogOffset, found: Result<RecordAt, StoreError>) -> Result<Option<LogSlice>, Refusal> {
    match found {
        Ok(RecordAt::Record(slice)) => Ok(Some(slice)),
        Ok(RecordAt::Gone) => Ok(None),
        Ok(RecordAt::Damaged) => {
            let remark = format!("the message by the offset, {}, is damaged: its body is not what was stored", at.0);
            Err(Refusal::new(ResponseCode::SystemError, remark))
        }
        Err(error) => Err(Refusal::failed(error)),
    }
}

/// Runs `look` on a cold-read thread, and `then` on the connection's own task.
pub(crate) fn read<T: Send + 'static>(
    store: &Arc<Store>,
    session: &Session,
    look: impl FnOnce(&Store) -> T + Send + 'static,
    then: impl FnOnce(&Broker, &mut Session, T, &mut Outgoing) + Send + 'static,
) -> Result<(), Refusal> {
    elsewhere(store, session, Store::cold_read, look, then)
}

/// The same where a read of messages goes on, unless its connection is over by then.
pub(crate) fn read_at<T: Send + 'static>(
    at: At,
    store: &Arc<Store>,
    session: &Session,
    look: impl FnOnce(&Store) -> T + Send + 'static,
    then: impl FnOnce(&Broker, &mut Session, T, &mut Outgoing) + Send + 'static,
) -> Result<(), Refusal> {
    let inbox = Arc::clone(&session.inbox);
    let submit = |store: &Store, job: ColdRead| {
        at.submit(
            store,
            Box::new(move || {
                if !inbox.is_gone() {
                    job();
                }
            }),
        )
    };
    elsewhere(store, session, submit, look, then)
}

fn elsewhere<T: Send + 'static>(
    store: &Arc<Store>,
    session: &Session,
    submit: impl FnOnce(&Store, ColdRead) -> Result<(), ColdReadRefused>,
    look: impl FnOnce(&Store) -> T + Send + 'static,
    then: impl FnOnce(&Broker, &mut Session, T, &mut Outgoing) + Send + 'static,
) -> Result<(), Refusal> {
    let reader = Arc::clone(store);
    let inbox = Arc::clone(&session.inbox);
    let debt = inbox.owe();
    let asked = session.asked();
    let job: ColdRead = Box::new(move || {
        let unanswered = Unanswered::new(&inbox, asked);
        let found = look(&reader);
        drop(unanswered);
        inbox.push(Errand::then_gather(asked, move |broker, session, out| {
            session.answering(broker, asked, out, |session, out| then(broker, session, found, out));
        }));
        drop(debt);
    });
    submit(store, job).map_err(|full| Refusal::busy(full, SOON))
}

/// For a call in this process: has something done there, and waits for it.
pub(crate) async fn done_at<T: Send + 'static>(
    at: At,
    store: &Store,
    look: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Refusal> {
    let (found, come) = oneshot::channel();
    let job = move || {
        // If the call was dropped before, nothing is changed in its name.
        if !found.is_closed() {
            let _ = found.send(look());
        }
    };
    at.submit(store, Box::new(job)).map_err(|full| Refusal::busy(full, SOON))?;
    // The job was thrown away, or has panicked.
    come.await.map_err(|_| {
        let remark = "[GANTRY]the read was given up: the broker stops, or it failed by a bug, which is in the log";
        Refusal::new(ResponseCode::SystemError, remark)
    })
}

/// For a call in this process: a record, from memory or by way of a cold-read thread. A damaged one is refused.
pub(crate) async fn record(store: &Arc<Store>, at: LogOffset) -> Result<Option<LogSlice>, Refusal> {
    if let Ok(found) = store.record_at(at) {
        return Ok(found);
    }
    let reader = Arc::clone(store);
    done_at(At::Cold, store, move || checked(&reader, at)).await?
}

fn read_failed() -> Refusal {
    Refusal::new(ResponseCode::SystemError, "[GANTRY]the read failed by a bug, which is in the log")
}

/// Answers in the place of a read that panics: the client would wait for nothing.
pub(crate) struct Unanswered {
    inbox: Arc<Inbox>,
    asked: Option<ReplyTo>,
}

impl Unanswered {
    pub(crate) fn new(inbox: &Arc<Inbox>, asked: Option<ReplyTo>) -> Unanswered {
        Unanswered { inbox: Arc::clone(inbox), asked }
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(reply_to) = self.asked.filter(|_| std::thread::panicking()) {
            let (mut out, refusal) = (Outgoing::new(), read_failed());
            out.reply(reply_to, refusal.code, Some(&refusal.remark), &(), &[]);
            self.inbox.push(Errand::Frames(out.take()));
        }
    }
}
