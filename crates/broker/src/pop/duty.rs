//! The task that gives messages whose lease is over to their group again: into the group's retry topic, as Apache does.
//!
//! Once, over a crash at any moment: a message that is given back names its original in its prepared offset, as `!log_offset`, a negative
//! number that clients do not look at; its lease is settled only when the log is flushed so far. The journal holds from where the log has
//! to be read for such messages, and holds it before the first of them is appended. A start settles what it finds.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use env::Clock;
use hashbrown::HashMap;
use protocol::LogOffset;
use protocol::names;
use protocol::properties::name;
use protocol::record::{self, PROPERTIES_MAX, RecordView, Scanned};
use store::{LogSlice, RecordAt, RecordBatch, Store, StoreError, TagsCode, Unit};

use super::state::handle::{Origin, origin_topic, retry_topic};
use super::state::ledger::{LeaseId, QueueName};
use super::state::{PAGE, Pops};
use crate::blocking;
use crate::broker::Broker;
use crate::state::offsets::{GroupTopicRef, Offsets};
use crate::state::stats::MessageType;
use crate::state::topics::{Topic, Topics};
use crate::tasks::Stop;
use crate::unreadable::{Tries, WaitsFor};
use crate::waiting::fetch;
use crate::waiting::hold::Lane;
use crate::wall_time::{self, Steps};
use crate::write::{append, light, send_properties};

/// Messages given back under one lock of the log.
const BATCH_MAX: usize = 512;
/// A batch is closed when it holds this much, whatever the size of one message.
const BATCH_BYTES_MAX: usize = 4 << 20;
/// After a refusal of the store (disk full, no room) so much later again.
const RETRY_MS: i64 = 1000;
/// How long a stop waits for the device to have what came again last.
const LAST_FLUSH: Duration = Duration::from_secs(1);
/// A property that Apache adds: which group gave the message up.
const ORIGIN_GROUP: &str = "ORIGIN_GROUP";

/// Messages that are in a retry topic again and whose leases are not settled.
struct UnflushedRevival {
    end: u64,
    messages: Vec<(LeaseId, u64)>,
}

/// Works until it is told to end.
pub(crate) async fn revive(broker: Arc<Broker>, mut stop: Stop) {
    let pops = &broker.pops;
    let mut work = Revival {
        batch: RecordBatch::new(),
        retries: Vec::new(),
        unflushed: VecDeque::new(),
        is_noted: false,
        unread: Tries::default(),
        partly: Vec::new(),
    };
    let mut steps = Steps::new(&broker.clock);
    while !stop.is_asked() {
        work.settle(pops, &broker.store);
        let seen = steps.back().unwrap_or(0);
        let now = broker.clock.now().0;
        if pops.go_with_the_clock(seen, now) {
            broker.lite.look_at_all();
        }
        let mut due = Vec::new();
        pops.ledger.lock().take_due(now, BATCH_MAX, &mut due);
        if !due.is_empty() {
            work.give_back(&broker, &due).await;
            tokio::task::yield_now().await;
            continue;
        }
        let next = pops.ledger.lock().next_due();
        let wait = next.map_or(wall_time::LOOK_AGAIN, |due| wall_time::until(due, now));
        let flushed_to = work.unflushed.front().map(|first| first.end);
        tokio::select! {
            biased;
            () = stop.asked() => {}
            // It rings rarely, and the other one with every pop.
            () = pops.revive_bell.notified() => super::apache::take_in(&broker).await,
            () = pops.bell.notified() => {}
            () = flushed(&broker.store, flushed_to) => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
    work.flush(&broker.store).await;
    work.settle(pops, &broker.store);
}

async fn flushed(store: &Store, end: Option<u64>) {
    match end {
        Some(end) => store.flushed().reached(end).await,
        None => std::future::pending().await,
    }
}

struct Revival {
    batch: RecordBatch,
    /// The topics of the batch's records.
    retries: Vec<Arc<Topic>>,
    unflushed: VecDeque<UnflushedRevival>,
    /// The journal says from where to look for what is not settled.
    is_noted: bool,
    /// Messages that the device did not give.
    unread: Tries<(LeaseId, u64)>,
    /// Leases of the batch that have such messages, and when they are tried again.
    partly: Vec<(LeaseId, i64)>,
}

impl Revival {
    /// Has the device take what came again, so that it can be settled: whoever goes on with the files may be Apache's broker, which would bring
    /// again whatever is on lease.
    async fn flush(&self, store: &Store) {
        let Some(last) = self.unflushed.back() else { return };
        store.want_flush();
        tokio::select! {
            biased;
            () = store.flushed().reached(last.end) => {}
            () = tokio::time::sleep(LAST_FLUSH) => {
                tracing::warn!("the device does not take the last messages that came again; Apache's broker would repeat them");
            }
        }
    }

    /// Settles what is flushed.
    fn settle(&mut self, pops: &Pops, store: &Store) {
        let flushed = store.flushed().get();
        while let Some(first) = self.unflushed.pop_front_if(|first| first.end <= flushed) {
            let mut ledger = pops.ledger.lock();
            for (id, offset) in first.messages {
                ledger.settle(id, offset);
                pops.put(&ledger, id);
            }
        }
        if self.is_noted && self.unflushed.is_empty() {
            pops.set_reviving_from(None);
            self.is_noted = false;
        }
    }

    /// Appends the messages of leases that are over to their retry topics.
    async fn give_back(&mut self, broker: &Broker, due: &[LeaseId]) {
        let pops = &broker.pops;
        if !self.is_noted {
            let position = pops.set_reviving_from(Some(broker.store.end().0));
            broker.store.journal().written().reached(position).await;
            self.is_noted = true;
        }
        if self.unread.len() > 0 {
            let ledger = pops.ledger.lock();
            self.unread.retain(|(id, _)| ledger.get(*id).is_some());
        }
        let mut messages = Vec::new();
        let mut touched: Vec<(Arc<Lane>, QueueName)> = Vec::new();
        for id in due {
            let name = pops.ledger.lock().name(id.queue).cloned();
            // Forgotten since, with all of its leases.
            let Some(name) = name else { continue };
            let lanes = self.gather(broker, *id, &name, &mut messages).await;
            match lanes {
                Ok(Some(lane)) => touched.push((lane, name)),
                Ok(None) => {}
                Err(error) => {
                    tracing::error!(%error, topic = &*name.topic, "messages on lease cannot be read, trying again");
                    messages.retain(|(other, _)| other != id);
                    self.batch.truncate(messages.len());
                    self.retries.truncate(messages.len());
                    pops.ledger.lock().put_off(*id, broker.clock.now().0.saturating_add(RETRY_MS));
                }
            }
            if self.batch.bytes() >= BATCH_BYTES_MAX {
                self.append(broker, &mut messages, &mut touched).await;
            }
        }
        self.append(broker, &mut messages, &mut touched).await;
    }

    /// Adds the open messages of a lease to the batch. `None`: there is nothing left to give back.
    async fn gather(
        &mut self,
        broker: &Broker,
        id: LeaseId,
        name: &QueueName,
        messages: &mut Vec<(LeaseId, u64)>,
    ) -> Result<Option<Arc<Lane>>, StoreError> {
        let pops = &broker.pops;
        let (open, is_suspended) = {
            let ledger = pops.ledger.lock();
            let Some(lease) = ledger.get(id) else { return Ok(None) };
            (lease.open().map(|distance| id.offset(distance)).collect::<Vec<u64>>(), lease.is_suspended)
        };
        let topic = broker.topics.get(&name.topic);
        let (Some(topic), Some(_)) = (topic, broker.groups.get(&name.group)) else {
            drop_messages(pops, id, &open);
            return Ok(None);
        };
        let from = topic.lane(&broker.store, name.queue_id.max(0) as u32)?;
        let retry = retry_name(name, broker.settings.load().enable_retry_topic_v2);
        let retry = retry_of(&broker.topics, &broker.store, &broker.offsets, &name.group, &retry).await;
        let lane = retry.lane(&broker.store, 0)?;
        let mut units: Vec<Unit> = Vec::new();
        let mut gone = Vec::new();
        let mut damaged = Vec::new();
        let mut again = i64::MAX;
        for offset in open {
            fetch::units(&broker.store, &from.queue, offset, 1, &mut units).await?;
            let at =
                units.first().filter(|unit| unit.is_message() && offset >= from.queue.min_offset()).map(|unit| unit.at);
            let found = match at {
                Some(at) => fetch::record(&broker.store, at).await,
                None => Ok(RecordAt::Gone),
            };
            let found = match found {
                Ok(found) => found,
                Err(error) => {
                    let (is_first, pause) = self.unread.failed((id, offset));
                    if is_first {
                        let (topic, group, at) = (&*name.topic, &*name.group, at.map(|at| at.0));
                        let what =
                            "message on lease cannot be read; others come again, and it is tried with growing pauses";
                        tracing::error!(topic, group, queue_id = name.queue_id, offset, at, %error, "{what}");
                    }
                    again = again.min(pause);
                    continue;
                }
            };
            if self.unread.is_done(&(id, offset)) {
                tracing::info!(
                    topic = &*name.topic,
                    group = &*name.group,
                    offset,
                    "message on lease can be read again"
                );
            }
            let view = match &found {
                RecordAt::Record(slice) => view_of(slice),
                RecordAt::Gone => None,
                RecordAt::Damaged => {
                    // In the retry topic its body would get a sum that is right.
                    damaged.push(offset);
                    continue;
                }
            };
            let Some(view) = view else {
                gone.push(offset);
                continue;
            };
            self.push(broker, &lane, &retry, &view, id, &name.group, is_suspended);
            messages.push((id, offset));
        }
        broker.unreadable.are(WaitsFor::Lease, self.unread.len());
        if again < i64::MAX {
            self.partly.push((id, again));
        }
        if !gone.is_empty() {
            tracing::warn!(
                topic = &*name.topic,
                group = &*name.group,
                messages = gone.len(),
                "messages on lease are gone from the log"
            );
            drop_messages(pops, id, &gone);
        }
        if !damaged.is_empty() {
            tracing::error!(
                topic = &*name.topic,
                group = &*name.group,
                messages = damaged.len(),
                "messages on lease are damaged and do not come again"
            );
            drop_messages(pops, id, &damaged);
        }
        Ok(Some(lane))
    }

    /// Adds one message.
    #[allow(clippy::too_many_arguments, reason = "one step of `gather`, split off to be read at a sitting")]
    fn push(
        &mut self,
        broker: &Broker,
        lane: &Lane,
        retry: &Arc<Topic>,
        view: &RecordView<'_>,
        id: LeaseId,
        group: &str,
        is_suspended: bool,
    ) {
        let mut properties = view.properties_bytes().to_vec();
        if properties.last().is_some_and(|last| *last != protocol::properties::PROPERTY_END) {
            properties.push(protocol::properties::PROPERTY_END);
        }
        let mut add = |key: &str, value: &str| {
            let before = properties.len();
            send_properties::put(&mut properties, key, value);
            if properties.len() > PROPERTIES_MAX {
                properties.truncate(before);
            }
        };
        if view.property(name::FIRST_POP_TIME).is_none() {
            add(name::FIRST_POP_TIME, &id.pop_time.to_string());
        }
        if view.property(ORIGIN_GROUP).is_none() {
            add(ORIGIN_GROUP, group);
        }
        let mut draft = append::again(view);
        draft.topic = retry.name();
        draft.queue_id = 0;
        draft.store_host = broker.advertised;
        draft.reconsume_times = view.reconsume_times().saturating_add(i32::from(!is_suspended));
        draft.prepared_offset = !view.log_offset() as i64;
        draft.properties = &properties;
        // A retry topic takes no light queues: only the numbers there go.
        light::push_again(&broker.store, &mut self.batch, lane, TagsCode::Code(view.tags_code()), &draft);
        self.retries.push(Arc::clone(retry));
    }

    /// Leases of which the device did not give all stay for what is missing. What has landed of them is settled when it is on the device, before they
    /// are looked at again: it must not come a second time.
    async fn part_with(
        &mut self,
        pops: &Pops,
        store: &Store,
        clock: &Clock,
        messages: &mut Vec<(LeaseId, u64)>,
        end: Option<u64>,
    ) {
        if self.partly.is_empty() {
            return;
        }
        if let Some(end) = end {
            store.want_flush();
            store.flushed().reached(end).await;
        }
        let now = clock.now().0;
        let mut ledger = pops.ledger.lock();
        for (id, pause) in self.partly.drain(..) {
            for (_, done) in messages.extract_if(.., |(other, _)| *other == id) {
                ledger.settle(id, done);
            }
            ledger.put_off(id, now.saturating_add(pause));
            pops.put(&ledger, id);
        }
    }

    /// Appends what is gathered, and wakes the groups.
    async fn append(
        &mut self,
        broker: &Broker,
        messages: &mut Vec<(LeaseId, u64)>,
        touched: &mut Vec<(Arc<Lane>, QueueName)>,
    ) {
        if !self.batch.is_empty() {
            if let Err(refusal) = broker.append(&mut self.batch).await {
                tracing::warn!(remark = refusal.remark, "messages whose lease is over wait for the store");
            }
            let landed = self.batch.landed();
            for (retry, record) in self.retries.iter().zip(landed) {
                let bytes = (record.end.0 - record.at.0) as usize;
                broker.stats.sent(retry, 0, MessageType::Normal, 1, bytes);
            }
            let rest = messages.split_off(landed.len().min(messages.len()));
            {
                let until = broker.clock.now().0.saturating_add(RETRY_MS);
                let mut ledger = broker.pops.ledger.lock();
                for (id, _) in &rest {
                    // What has landed of the same lease must not come again with the rest: it is settled at once.
                    for (_, done) in messages.iter().filter(|(other, _)| other == id) {
                        ledger.settle(*id, *done);
                    }
                    ledger.put_off(*id, until);
                    broker.pops.put(&ledger, *id);
                }
            }
            let end = landed.last().map(|last| last.end.0);
            self.part_with(&broker.pops, &broker.store, &broker.clock, messages, end).await;
            if let Some(end) = end {
                self.unflushed.push_back(UnflushedRevival { end, messages: std::mem::take(messages) });
                broker.store.confirmed().reached(end).await;
            }
        }
        self.part_with(&broker.pops, &broker.store, &broker.clock, messages, None).await;
        messages.clear();
        self.batch.clear();
        self.retries.clear();
        broker.hold.arrived(touched.iter().map(|(lane, _)| lane), &mut Vec::new());
        for (_, name) in touched.drain(..) {
            let topic = origin_topic(&name.topic, &name.group);
            broker.hold.pops.arrived(GroupTopicRef { group: &name.group, topic });
        }
    }
}

/// Messages of a lease do not come again.
fn drop_messages(pops: &Pops, id: LeaseId, offsets: &[u64]) {
    let mut ledger = pops.ledger.lock();
    for offset in offsets {
        ledger.settle(id, *offset);
    }
    pops.put(&ledger, id);
}

fn view_of(slice: &LogSlice) -> Option<RecordView<'_>> {
    match record::scan(slice.as_ref(), false) {
        Ok(Scanned::Record(view)) => Some(view),
        Ok(_) | Err(_) => None,
    }
}

/// The name of the topic where messages of a queue come again.
fn retry_name(name: &QueueName, is_v2: bool) -> String {
    if names::is_retry_topic(&name.topic) {
        return name.topic.to_string();
    }
    retry_topic(&name.topic, &name.group, if is_v2 { Origin::RetryV2 } else { Origin::RetryV1 })
}

/// That topic, made if it is missing: one queue, from whose beginning the group reads.
async fn retry_of(topics: &Topics, store: &Store, offsets: &Offsets, group: &str, retry: &str) -> Arc<Topic> {
    let made = topics.create_for_group(retry, 1, 0);
    store.journal().written().reached(made.position).await;
    if offsets.committed(group, retry, 0).is_none() {
        offsets.commit(group, retry, 0, 0);
    }
    made.topic
}

/// Settles what was given back, takes over what another broker has left, and goes back with the clock. Before anybody pops.
pub(crate) async fn load(broker: &Arc<Broker>) -> Result<(), StoreError> {
    blocking::beside(broker, settle_revived).await?;
    super::apache::take_over(broker).await?;
    broker.pops.begin(broker.clock.now().0);
    Ok(())
}

/// Settles what was given back before a crash.
fn settle_revived(broker: &Broker) -> Result<(), StoreError> {
    let pops = &broker.pops;
    let Some(from) = pops.state.lock().reviving_from else { return Ok(()) };
    let from = LogOffset(from.clamp(broker.store.min_offset().0.min(broker.store.end().0), broker.store.end().0));
    // By retry topic and the log offset of the original: when it was given back last.
    let mut given_back: HashMap<(String, u64), i64> = HashMap::new();
    let mut visit = |_: LogOffset, view: &RecordView<'_>| {
        if view.prepared_offset() < 0 && names::is_retry_topic(view.topic()) {
            let original = !view.prepared_offset() as u64;
            given_back.insert((view.topic().to_owned(), original), view.store_timestamp());
        }
    };
    if let Err(error) = broker.store.scan(from, &mut visit) {
        tracing::warn!(%error, "the journal's place in the log is no record; looking for retries in the whole log");
        broker.store.scan(broker.store.min_offset(), &mut visit)?;
    }
    let mut settled = 0;
    let mut after = None;
    // Ends behind the last lease.
    loop {
        let page: Vec<_> = {
            let ledger = pops.ledger.lock();
            let leases = ledger.page(after, PAGE);
            leases
                .map(|(id, lease)| (id, lease.open().map(|distance| id.offset(distance)).collect::<Vec<_>>()))
                .collect()
        };
        for (id, open) in &page {
            let name = pops.ledger.lock().name(id.queue).cloned();
            let Some(name) = name.filter(|_| !given_back.is_empty()) else { continue };
            let Some(topic) = broker.topics.get(&name.topic) else { continue };
            let lane = topic.lane(&broker.store, name.queue_id.max(0) as u32)?;
            for offset in open {
                let Some(unit) = lane.queue.unit_at(*offset)? else { continue };
                let is_back = [false, true].iter().any(|is_v2| {
                    given_back.get(&(retry_name(&name, *is_v2), unit.at.0)).is_some_and(|at| *at >= id.pop_time)
                });
                if is_back {
                    let mut ledger = pops.ledger.lock();
                    ledger.settle(*id, *offset);
                    pops.put(&ledger, *id);
                    settled += 1;
                }
            }
        }
        after = page.last().map(|(id, _)| *id);
        if page.len() < PAGE {
            break;
        }
    }
    pops.set_reviving_from(None);
    if settled > 0 {
        tracing::info!(messages = settled, "messages were given back before the last stop");
    }
    Ok(())
}
