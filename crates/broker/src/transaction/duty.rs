//! The task that takes in new half messages and asks their producers about those that wait for too long.
//!
//! It sleeps until the half queue grows or somebody has to be asked. A producer is asked `transactionTimeOut` after the message was stored,
//! then every `transactionCheckInterval`; a message whose producer was asked `transactionCheckMax` times, or that is as old as the log is
//! kept, is given up: it goes to `TRANS_CHECK_MAX_TIME_TOPIC`, from where 323 brings it back.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use config::BrokerSettings;
use protocol::LogOffset;
use protocol::message_id::offset_message_id;
use protocol::names;
use protocol::properties::name;
use protocol::record::{self, RecordView, Scanned};
use protocol::request::CheckTransactionState;
use store::{LogSlice, RecordAt, RecordBatch, Store, StoreError, TagsCode, Unit};

use super::requests::push_op;
use super::state::ledger::Open;
use super::state::{GROUP, Transactions, first_wait_ms, kept_ms};
use crate::broker::Broker;
use crate::client_handle::{ClientHandle, ClientQuestion};
use crate::refusal::Refusal;
use crate::sends::Ending;
use crate::state::clients::Clients;
use crate::state::needs::Needs;
use crate::state::offsets::Offsets;
use crate::tasks::Stop;
use crate::unreadable::{Tries, WaitsFor};
use crate::waiting::fetch;
use crate::wall_time::{self, Steps};
use crate::write::append;
use crate::{blocking, tables};

/// Half messages taken in, and questions put, before others get their turn.
const BATCH: usize = 64;
/// After a failure of the store, so much later again.
const RETRY_MS: i64 = 1000;

/// Reads which half messages are open.
pub(crate) async fn load(broker: &Arc<Broker>) -> Result<(), StoreError> {
    let read = |broker: &Broker| {
        let timeout_ms = broker.settings.load().transaction_time_out;
        let kept_ms = kept_ms(&broker.store_settings.load());
        broker.transactions.load(&broker.store, &broker.offsets, timeout_ms, kept_ms, broker.clock.now().0)
    };
    blocking::beside(broker, read).await
}

/// Writes the end of a message that was committed before a crash. Before anybody is served: behind other ends, nobody would miss it.
pub(crate) async fn mend(broker: &Broker) -> Result<(), Refusal> {
    let lost_end = broker.transactions.lost_end.lock().take();
    let Some(half_offset) = lost_end else { return Ok(()) };
    let lane = broker.transactions.op.lane(&broker.store, 0).map_err(Refusal::failed)?;
    let mut batch = RecordBatch::new();
    push_op(&broker.clock, broker.advertised, &mut batch, &lane, half_offset);
    append_ending(broker, &mut batch, Ending { half_offset, record: 0 }).await
}

async fn append_ending(broker: &Broker, batch: &mut RecordBatch, ending: Ending) -> Result<(), Refusal> {
    let appended = broker.append(batch).await;
    broker.transactions.settle(&broker.store, &mut vec![ending], batch.landed());
    appended
}

/// Works until it is told to end.
pub(crate) async fn ask(broker: Arc<Broker>, mut stop: Stop) {
    let transactions = &broker.transactions;
    let mut progress = Progress::default();
    let mut steps = Steps::new(&broker.clock);
    // By offset in the half queue.
    let mut unread = Tries::default();
    while !stop.is_asked() {
        let taken = take_in(&broker).await;
        if let Some(by) = steps.back() {
            transactions.ledger.lock().set_back(by, broker.clock.now().0);
        }
        let now = broker.clock.now().0;
        let mut asked = 0;
        while asked < BATCH {
            let Some(open) = transactions.ledger.lock().due(now) else { break };
            look(&broker, open, now, &mut unread).await;
            asked += 1;
        }
        progress.note(&broker.store, &broker.offsets, &broker.transactions);
        if unread.len() > 0 {
            let ledger = transactions.ledger.lock();
            unread.retain(|offset| ledger.is_open(*offset));
            broker.unreadable.are(WaitsFor::Transaction, unread.len());
        }
        if taken == Taken::Some || asked == BATCH {
            tokio::task::yield_now().await;
            continue;
        }
        let next = transactions.ledger.lock().next_due();
        let wait = next.map(|due| wall_time::until(due, broker.clock.now().0));
        tokio::select! {
            biased;
            () = stop.asked() => {}
            () = transactions.bell.notified() => {}
            () = progress.flushed(&broker.store) => {}
            () = confirmed(&broker.store, taken) => {}
            () = sleep(wait) => {}
        }
    }
    progress.note(&broker.store, &broker.offsets, &broker.transactions);
}

async fn sleep(wait: Option<Duration>) {
    match wait {
        Some(wait) => tokio::time::sleep(wait).await,
        None => std::future::pending().await,
    }
}

/// Ready when the half message that was not confirmed yet is.
async fn confirmed(store: &Store, taken: Taken) {
    match taken {
        Taken::Unconfirmed(end) => store.confirmed().reached(end.0).await,
        Taken::Some | Taken::All => std::future::pending().await,
    }
}

/// How far half messages and ends are dealt with, committed for the next start and for Apache's.
///
/// Offsets are safe sooner than the log is. Committed before the ends that they stand for are on the device, they would make a start after a
/// loss of power pass over half messages that are open again.
#[derive(Default)]
struct Progress {
    committed: (u64, u64),
    /// To be committed once the log is flushed up to here.
    next: Option<((u64, u64), u64)>,
}

impl Progress {
    fn note(&mut self, store: &Store, offsets: &Offsets, transactions: &Transactions) {
        if let Some((done, end)) = self.next
            && store.flushed().get() >= end
        {
            offsets.commit(GROUP, names::TRANS_HALF_TOPIC, 0, done.0 as i64);
            offsets.commit(GROUP, names::TRANS_OP_HALF_TOPIC, 0, done.1 as i64);
            self.committed = done;
            self.next = None;
        }
        if self.next.is_none() {
            let done = {
                let mut ledger = transactions.ledger.lock();
                (ledger.half_base(), ledger.op_base())
            };
            self.go_on(done, store.end().0);
        }
    }

    /// The queues are done with up to these offsets, which may be committed once the log is flushed up to `end`.
    fn go_on(&mut self, offsets: (u64, u64), end: u64) {
        let before = self.committed;
        // The task is critical: this ends the process, before the journal hears of it.
        assert!(
            offsets.0 >= before.0 && offsets.1 >= before.1,
            "half messages and their ends are done with up to {offsets:?}, and had been up to {before:?}"
        );
        self.next = (offsets != before).then_some((offsets, end));
    }

    /// Ready when there is something to commit.
    async fn flushed(&self, store: &Store) {
        match self.next {
            Some((_, end)) => store.flushed().reached(end).await,
            None => std::future::pending().await,
        }
    }
}

/// How taking in half messages ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    /// There may be more.
    Some,
    /// What there is.
    All,
    /// The next one is to be had once the log is confirmed up to here.
    Unconfirmed(LogOffset),
}

/// Takes in half messages that are new in the queue.
async fn take_in(broker: &Broker) -> Taken {
    let transactions = &broker.transactions;
    let lane = match transactions.half.lane(&broker.store, 0) {
        Ok(lane) => lane,
        Err(error) => {
            tracing::error!(%error, "queue of half messages cannot be opened");
            return Taken::All;
        }
    };
    let from = transactions.ledger.lock().next();
    let mut units: Vec<Unit> = Vec::new();
    if let Err(error) = fetch::units(&broker.store, &lane.queue, from, BATCH, &mut units).await {
        tracing::error!(%error, "queue of half messages cannot be read");
        return Taken::All;
    }
    // After the read of the units, so that what is behind it is behind it for certain.
    let confirmed = broker.store.confirmed().get();
    let timeout_ms = broker.settings.load().transaction_time_out;
    let kept_ms = kept_ms(&broker.store_settings.load());
    for unit in &units {
        if !unit.is_message() {
            transactions.ledger.lock().skip();
            continue;
        }
        if unit.end().0 > confirmed {
            // The queue has it before the record may be read. Taken for a record that is gone, it could never be ended.
            return Taken::Unconfirmed(unit.end());
        }
        if transactions.ledger.lock().is_next_ended() {
            transactions.ledger.lock().skip();
            continue;
        }
        let due = match fetch::record(&broker.store, unit.at).await {
            Ok(RecordAt::Record(slice)) => view_of(&slice).map(|view| {
                let wait_ms = first_wait_ms(&view, timeout_ms, kept_ms);
                // The log's times never go back: after the clock stood ahead, they are ahead of it.
                view.store_timestamp().min(broker.clock.now().0).saturating_add(wait_ms)
            }),
            Ok(RecordAt::Gone) => None,
            Ok(RecordAt::Damaged) => {
                tracing::error!(at = unit.at.0, "half message is damaged; its producer is not asked about it");
                None
            }
            // It is open, and looked at when it is due.
            Err(_) => Some(broker.clock.now().0),
        };
        let mut ledger = transactions.ledger.lock();
        match due {
            Some(due) => ledger.take_in(unit.at, 0, due),
            None => ledger.skip(),
        }
    }
    if units.len() == BATCH { Taken::Some } else { Taken::All }
}

fn view_of(slice: &LogSlice) -> Option<RecordView<'_>> {
    match record::scan(slice.as_ref(), false) {
        Ok(Scanned::Record(view)) => Some(view),
        Ok(_) | Err(_) => None,
    }
}

/// Asks about one message, or gives it up.
async fn look(broker: &Broker, open: Open, now: i64, unread: &mut Tries<u64>) {
    let transactions = &broker.transactions;
    let slice = match fetch::record(&broker.store, open.at).await {
        Ok(RecordAt::Record(slice)) => {
            if unread.is_done(&open.offset) {
                tracing::info!(at = open.at.0, "half message can be read again");
                broker.unreadable.are(WaitsFor::Transaction, unread.len());
            }
            slice
        }
        Ok(RecordAt::Gone) => {
            unread.is_done(&open.offset);
            tracing::warn!(at = open.at.0, "half message was deleted before it was ended");
            return forget(&broker.transactions, &broker.store, open);
        }
        Ok(RecordAt::Damaged) => {
            unread.is_done(&open.offset);
            // It cannot be committed either: its body would get a sum that is right.
            tracing::error!(at = open.at.0, "half message is damaged; its producer is not asked about it any more");
            return forget(&broker.transactions, &broker.store, open);
        }
        Err(error) => {
            let (is_first, pause) = unread.failed(open.offset);
            if is_first {
                let what = "half message cannot be read; others go on, and it is tried again with growing pauses";
                tracing::error!(at = open.at.0, half_queue_offset = open.offset, %error, "{what}");
            }
            broker.unreadable.are(WaitsFor::Transaction, unread.len());
            return transactions.ledger.lock().postpone(open.offset, open.checks, now.saturating_add(pause));
        }
    };
    let Some(view) = view_of(&slice) else {
        tracing::error!(at = open.at.0, "half message cannot be read");
        return forget(&broker.transactions, &broker.store, open);
    };
    let settings = broker.settings.load_full();
    let age_ms = now.saturating_sub(view.store_timestamp());
    if open.checks >= settings.transaction_check_max || age_ms >= kept_ms(&broker.store_settings.load()) {
        if let Err(refusal) = give_up(broker, open, &view).await {
            tracing::warn!(remark = refusal.remark, "half message that nobody knows about waits for the store");
            transactions.ledger.lock().postpone(open.offset, open.checks, now.saturating_add(RETRY_MS));
        }
        return;
    }
    // Asking nobody is not asking: a producer that is away for an hour finds its messages when it comes back.
    let checks = open.checks + u32::from(put_question(&broker.clients, &broker.settings.load(), open, &view));
    let due = now.saturating_add(settings.transaction_check_interval);
    transactions.ledger.lock().postpone(open.offset, checks, due);
    if checks > open.checks {
        broker.store.journal().put(tables::CHECKS, &open.offset.to_be_bytes(), &checks.to_be_bytes());
    }
}

fn forget(transactions: &Transactions, store: &Store, open: Open) {
    transactions.ledger.lock().forget(open.offset);
    if open.checks > 0 {
        store.journal().delete(tables::CHECKS, &open.offset.to_be_bytes());
    }
}

/// 39, to one producer of the group. False when none can be reached.
fn put_question(clients: &Clients<ClientHandle>, settings: &BrokerSettings, open: Open, half: &RecordView<'_>) -> bool {
    let Some(producers) = half.property(name::PGROUP).and_then(|group| clients.producers(group)) else {
        return false;
    };
    let topic = half.property(name::REAL_TOPIC).unwrap_or_default();
    let queue_id = half.property(name::REAL_QID).and_then(|text| text.parse().ok()).unwrap_or(0);
    let mut draft = half.to_draft();
    draft.topic = topic;
    draft.queue_id = queue_id;
    let mut body = Vec::with_capacity(draft.encoded_bytes());
    if draft.encode(&mut body).is_err() {
        tracing::error!(at = open.at.0, topic, "half message cannot be shown to its producer");
        return false;
    }
    record::stamp(&mut body, half.queue_offset(), half.log_offset(), half.store_timestamp());
    let mut offset_id = String::new();
    offset_message_id(&mut offset_id, half.store_host(), half.log_offset());
    let uniq_key = half.property(name::UNIQ_KEY);
    let fields = CheckTransactionState {
        topic: Some(topic),
        tran_state_table_offset: open.offset as i64,
        commit_log_offset: open.at.0 as i64,
        msg_id: uniq_key,
        transaction_id: uniq_key,
        offset_msg_id: Some(&offset_id),
        broker_name: Some(&settings.broker_name),
    };
    let question = ClientQuestion::CheckTransaction(fields, Bytes::from(body));
    // Another one each time; one whose connection is full or closing leaves it to the next.
    let first = (open.offset as usize).wrapping_add(open.checks as usize);
    (0..producers.len()).any(|place| {
        let member = &producers[first.wrapping_add(place) % producers.len()];
        member.client.connection.tell(&question)
    })
}

/// Stores the message where it waits for a person, and ends it, as one group.
async fn give_up(broker: &Broker, open: Open, half: &RecordView<'_>) -> Result<(), Refusal> {
    let transactions = &broker.transactions;
    let given_up = broker.topics.create_for_group(names::TRANS_CHECK_MAX_TIME_TOPIC, 1, 0);
    broker.store.journal().written().reached(given_up.position).await;
    let lane = given_up.topic.lane(&broker.store, 0).map_err(Refusal::failed)?;
    let op_lane = transactions.op.lane(&broker.store, 0).map_err(Refusal::failed)?;
    if !transactions.ledger.lock().claim(open.offset) {
        return Ok(());
    }
    let mut draft = append::again(half);
    draft.topic = names::TRANS_CHECK_MAX_TIME_TOPIC;
    draft.queue_id = 0;
    draft.prepared_offset = 0;
    let mut batch = RecordBatch::new();
    batch.begin_group();
    append::push(&mut batch, &lane, TagsCode::Code(half.tags_code()), &draft);
    push_op(&broker.clock, broker.advertised, &mut batch, &op_lane, open.offset);
    batch.end_group();
    append_ending(broker, &mut batch, Ending { half_offset: open.offset, record: 1 }).await?;
    tracing::warn!(
        topic = half.property(name::REAL_TOPIC),
        producer_group = half.property(name::PGROUP),
        uniq_key = half.property(name::UNIQ_KEY),
        checks = open.checks,
        "half message given up; it is in TRANS_CHECK_MAX_TIME_TOPIC"
    );
    if let Some(last) = batch.landed().last() {
        broker.wake(vec![lane], &[], last.end);
    }
    Ok(())
}

/// Where the oldest half message lies that may be open: from where a start reads. Called by a
/// thread that may wait.
pub(crate) fn needed_from(store: &Store, needs: &Needs, offsets: &Offsets) -> Option<LogOffset> {
    let committed = offsets.committed(GROUP, names::TRANS_HALF_TOPIC, 0).and_then(|offset| u64::try_from(offset).ok());
    needs.first_from(store, names::TRANS_HALF_TOPIC, 0, committed.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "done with up to (7, 4), and had been up to (7, 5)")]
    fn what_is_committed_of_half_messages_does_not_go_back() {
        let mut progress = Progress { committed: (7, 5), next: None };
        progress.go_on((8, 5), 100);
        assert_eq!(progress.next, Some(((8, 5), 100)));
        progress.go_on((7, 4), 200);
    }
}
