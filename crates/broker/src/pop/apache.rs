//! Check-points of pops in Apache's form: taken over from its revive topic at start, and handed back at a clean stop.
//!
//! Apache keeps a check-point (`ck`) of each pop and its acknowledgements (`ack`, `bAck`) as messages of `rmq_sys_REVIVE_LOG_<cluster>`,
//! and the offset of the last one that it is done with under `CID_RMQ_SYS_REVIVE_GROUP`. What lies behind becomes leases here, once: a
//! check-point whose lease is known is passed over. A clean stop writes every lease there, and notes where the queues ended; if they still
//! end there at the next start, nobody has been here in between and the journal's leases hold. Otherwise another broker has had them, and
//! what it left in the topic counts alone.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use env::{Clock, TimeMs};
use protocol::names;
use protocol::names::REVIVE_GROUP;
use protocol::properties::name;
use protocol::record::{self, RecordDraft, Scanned};
use protocol::tags;
use serde::{Deserialize, Serialize};
use store::{RecordAt, RecordBatch, Store, StoreError, TagsCode, Unit};

use super::state::ledger::{Lease, LeaseId, QueueName, QueueRef};
use super::state::{PAGE, Pops};
use crate::broker::Broker;
use crate::caller::JOURNAL_TIMEOUT;
use crate::refusal::Refusal;
use crate::state::offsets::{Offsets, rows};
use crate::state::topics::Topic;
use crate::waiting::fetch;
use crate::waiting::hold::Lane;
use crate::write::{append, send_properties};

const CHECK_POINT: &str = "ck";
const ACK: &str = "ack";
const BATCH_ACK: &str = "bAck";
/// Units read at once.
const UNITS: usize = 256;
/// Check-points appended at once.
const BATCH_MAX: usize = 512;
/// What another broker gave out is not taken back at once: acknowledgements may lie behind its check-point. In milliseconds.
const GRACE_MS: i64 = 5000;
/// How long before the end of a lease Apache wants to see its check-point, in milliseconds.
const AHEAD_MS: i64 = 1000;

/// A check-point.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct CheckPoint {
    /// Bit by place: acknowledged.
    #[serde(rename = "bm")]
    done: i32,
    #[serde(rename = "bn")]
    broker_name: String,
    #[serde(rename = "c")]
    group: String,
    /// Distances from the start; empty in old versions, where the messages follow each other.
    #[serde(rename = "d")]
    distances: Vec<u32>,
    #[serde(rename = "it")]
    invisible_ms: i64,
    #[serde(rename = "n")]
    count: u8,
    #[serde(rename = "pt")]
    pop_time: i64,
    #[serde(rename = "q")]
    queue_id: i32,
    #[serde(rename = "so")]
    start: u64,
    #[serde(rename = "sp")]
    is_suspended: bool,
    #[serde(rename = "t")]
    topic: String,
}

/// An acknowledgement, or several of one pop.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Acks {
    #[serde(rename = "ao")]
    offset: u64,
    #[serde(rename = "aol")]
    offsets: Vec<u64>,
    #[serde(rename = "c")]
    group: String,
    #[serde(rename = "pt")]
    pop_time: i64,
    #[serde(rename = "q")]
    queue_id: i32,
    #[serde(rename = "so")]
    start: u64,
    #[serde(rename = "t")]
    topic: String,
}

impl CheckPoint {
    fn offsets(&self) -> Vec<u64> {
        if self.distances.is_empty() {
            return (0..u64::from(self.count)).map(|place| self.start.saturating_add(place)).collect();
        }
        self.distances.iter().map(|distance| self.start.saturating_add(u64::from(*distance))).collect()
    }

    fn of(id: LeaseId, lease: &Lease, name: &QueueName, broker_name: &str) -> CheckPoint {
        let distances: Vec<u32> = lease.distances().collect();
        CheckPoint {
            done: lease.done() as i32,
            broker_name: broker_name.to_owned(),
            group: name.group.to_string(),
            count: distances.len() as u8,
            distances,
            invisible_ms: lease.until.saturating_sub(id.pop_time),
            pop_time: id.pop_time,
            queue_id: name.queue_id,
            start: id.start,
            is_suspended: lease.is_suspended,
            topic: name.topic.to_string(),
        }
    }
}

/// Where one revive queue stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Stand {
    /// The last offset that is done with; -1: none.
    done: i64,
    /// One more than the highest offset.
    end: u64,
}

type Stands = BTreeMap<i32, Stand>;

/// The revive topic, and what says how far it is read.
struct ReviveQueues<'a> {
    topic: Arc<Topic>,
    store: &'a Arc<Store>,
    offsets: &'a Offsets,
}

impl<'a> ReviveQueues<'a> {
    /// None where no broker of Apache's has been.
    fn of(broker: &'a Broker) -> Option<ReviveQueues<'a>> {
        let cluster = &broker.settings.load().broker_cluster_name;
        let topic = broker.topics.get(&[names::REVIVE_TOPIC_PREFIX, cluster].concat())?;
        Some(ReviveQueues { topic, store: &broker.store, offsets: &broker.offsets })
    }

    fn lanes(&self) -> Result<Vec<Arc<Lane>>, StoreError> {
        let queues = self.topic.settings().read_queue_nums.max(0);
        (0..queues).map(|queue_id| self.topic.lane(self.store, queue_id as u32)).collect()
    }

    /// The last offset of a queue that is done with; -1: none.
    fn done(&self, queue_id: i32) -> i64 {
        self.offsets.committed(REVIVE_GROUP, self.topic.name(), queue_id).unwrap_or(-1)
    }

    fn stands(&self) -> Result<Stands, StoreError> {
        let lanes = self.lanes()?;
        let stand = |(queue_id, lane): (i32, &Arc<Lane>)| {
            (queue_id, Stand { done: self.done(queue_id), end: lane.queue.max_offset() })
        };
        Ok((0..).zip(&lanes).map(stand).collect())
    }

    /// Everything in the revive queues is known.
    fn pass_over(&self) -> Result<(), StoreError> {
        for (queue_id, stand) in self.stands()? {
            if stand.end > 0 {
                self.offsets.commit(REVIVE_GROUP, self.topic.name(), queue_id, stand.end as i64 - 1);
            }
        }
        self.note();
        Ok(())
    }

    /// Has the journal know how far the revive queues are read, before it hears of an acknowledgement: a start that read a check-point again
    /// would not know that its messages are done with.
    fn note(&self) {
        rows::put(self.store, self.offsets);
    }

    /// Takes in what is new in the revive queues.
    async fn take_in(&self, pops: &Pops, clock: &Clock) -> Result<(), StoreError> {
        let (mut check_points, mut acks) = (Vec::new(), Vec::new());
        let mut ends = Vec::new();
        for (queue_id, lane) in (0..).zip(self.lanes()?) {
            let done = self.done(queue_id);
            let mut from = u64::try_from(done.saturating_add(1)).unwrap_or(0).max(lane.queue.min_offset());
            let mut units: Vec<Unit> = Vec::new();
            // Ends at the end of the queue.
            loop {
                fetch::units(self.store, &lane.queue, from, UNITS, &mut units).await?;
                if units.is_empty() {
                    break;
                }
                for unit in units.iter().filter(|unit| unit.is_message()) {
                    let slice = match fetch::record(self.store, unit.at).await? {
                        RecordAt::Record(slice) => slice,
                        RecordAt::Gone => continue,
                        RecordAt::Damaged => {
                            tracing::error!(at = unit.at.0, "a record of the revive topic is damaged and passed over");
                            continue;
                        }
                    };
                    let Ok(Scanned::Record(view)) = record::scan(slice.as_ref(), false) else { continue };
                    let body = view.body();
                    let is_understood = match view.property(name::TAGS) {
                        Some(CHECK_POINT) => serde_json::from_slice(body)
                            .map(|point: CheckPoint| check_points.push((queue_id, point)))
                            .is_ok(),
                        Some(ACK | BATCH_ACK) => serde_json::from_slice(body).map(|ack: Acks| acks.push(ack)).is_ok(),
                        Some(_) | None => false,
                    };
                    if !is_understood {
                        tracing::warn!(at = unit.at.0, "a record of the revive topic is not understood");
                    }
                }
                from += units.len() as u64;
            }
            if from as i64 - 1 > done {
                ends.push((queue_id, from as i64 - 1));
            }
        }
        if ends.is_empty() {
            return Ok(());
        }
        let now = clock.now().0;
        let count = check_points.len();
        for (revive_qid, point) in check_points {
            take_in_point(pops, revive_qid, &point, now);
        }
        for ack in acks {
            take_in_acks(pops, &ack);
        }
        // Behind the leases in the journal: a crash in between finds the check-points a second time, and passes over them.
        for (queue_id, done) in ends {
            self.offsets.commit(REVIVE_GROUP, self.topic.name(), queue_id, done);
        }
        self.note();
        if count > 0 {
            tracing::info!(check_points = count, "check-points of another broker taken over");
        }
        Ok(())
    }

    /// Adds a check-point to a batch. `now`: when it is made.
    fn push(
        &self,
        now: TimeMs,
        advertised: SocketAddr,
        batch: &mut RecordBatch,
        lane: &Lane,
        queue_id: i32,
        point: &CheckPoint,
    ) {
        let body = serde_json::to_vec(point).unwrap_or_default();
        let mut properties = Vec::new();
        send_properties::put(&mut properties, name::TAGS, CHECK_POINT);
        let CheckPoint { group, start, pop_time, broker_name, .. } = point;
        let unique =
            format!("{}@{}@{start}@{group}@{pop_time}@{broker_name}@{CHECK_POINT}", point.topic, point.queue_id);
        send_properties::put(&mut properties, name::UNIQ_KEY, &unique);
        // Apache measures time in this topic by the moment at which its timer let each record go.
        let out_at = pop_time.saturating_add(point.invisible_ms).saturating_sub(AHEAD_MS);
        send_properties::put(&mut properties, name::TIMER_DELIVER_MS, &out_at.to_string());
        let draft = RecordDraft {
            queue_id,
            born_timestamp: now.0,
            body: &body,
            properties: &properties,
            ..RecordDraft::plain(self.topic.name(), advertised)
        };
        append::push(batch, lane, TagsCode::Code(tags::code(CHECK_POINT)), &draft);
    }
}

/// Takes over what another broker has left, or finds that nobody was here. After its offsets were imported, before anybody is served.
pub(super) async fn take_over(broker: &Broker) -> Result<(), StoreError> {
    let Some(queues) = ReviveQueues::of(broker) else { return Ok(()) };
    let handed_over = broker.pops.state.lock().handed_over.clone();
    if let Some(row) = &handed_over {
        let is_same = serde_json::from_slice::<Stands>(row).ok() == Some(queues.stands()?);
        if !is_same {
            let dropped = broker.pops.drop_leases();
            tracing::info!(leases = dropped, "another broker has had the leases of this one since it stopped");
        }
        // Before the journal hears how far the revive queues are read: a loss of power between the two would look as if another broker had read
        // them, and the leases would be dropped. What is read again is known.
        broker.pops.set_handed_over(None);
        if is_same {
            queues.pass_over()?;
        }
    }
    queues.take_in(&broker.pops, &broker.clock).await
}

/// Takes in the check-points that a timer of another broker has let go since.
pub(super) async fn take_in(broker: &Broker) {
    let Some(queues) = ReviveQueues::of(broker) else { return };
    if let Err(error) = queues.take_in(&broker.pops, &broker.clock).await {
        tracing::error!(%error, "check-points of another broker cannot be read");
    }
}

fn take_in_point(pops: &Pops, revive_qid: i32, point: &CheckPoint, now: i64) {
    // A clock that is behind the one by which it was given out cannot tell how long ago that was.
    let popped_at = point.pop_time.min(now);
    let until = popped_at.saturating_add(point.invisible_ms).max(now.saturating_add(GRACE_MS));
    let offsets = point.offsets();
    let Some(mut lease) = Lease::new(point.start, &offsets, until, revive_qid as u16) else { return };
    lease.is_suspended = point.is_suspended;
    let name = QueueRef { group: &point.group, topic: &point.topic, queue_id: point.queue_id };
    let is_done = |place: usize| point.done >> place & 1 == 1;
    let done: Vec<u64> =
        offsets.iter().enumerate().filter(|(place, _)| is_done(*place)).map(|(_, offset)| *offset).collect();
    pops.take_in(name, point.pop_time, point.start, lease, &done);
}

fn take_in_acks(pops: &Pops, acks: &Acks) {
    let name = QueueRef { group: &acks.group, topic: &acks.topic, queue_id: acks.queue_id };
    let one = [acks.offset];
    let offsets = if acks.offsets.is_empty() { &one[..] } else { &acks.offsets };
    pops.take_in_acks(name, acks.pop_time, acks.start, offsets);
}

/// Writes every lease where Apache looks for it. At a clean stop, when nobody is served any more.
pub(crate) async fn hand_over(broker: &Broker) -> Result<(), Refusal> {
    let Some(revive) = ReviveQueues::of(broker) else { return Ok(()) };
    let mut leases: Vec<(LeaseId, Lease, QueueName)> = Vec::new();
    // Ends behind the last lease.
    loop {
        let ledger = broker.pops.ledger.lock();
        let after = leases.last().map(|(id, _, _)| *id);
        let before = leases.len();
        for (id, lease) in ledger.page(after, PAGE) {
            if let Some(name) = ledger.name(id.queue) {
                leases.push((id, lease.clone(), name.clone()));
            }
        }
        if leases.len() == before {
            break;
        }
    }
    // Apache stops reading a queue at the first check-point that is not over.
    leases.sort_by_key(|(id, lease, _)| (lease.until, *id));
    let lanes = revive.lanes().map_err(Refusal::failed)?;
    let queues = lanes.len().max(1);
    let broker_name = broker.settings.load().broker_name.clone();
    let mut end = 0;
    for part in leases.chunks(BATCH_MAX) {
        let mut batch = RecordBatch::new();
        for (id, lease, name) in part {
            let queue_id = usize::from(lease.revive_qid) % queues;
            let Some(lane) = lanes.get(queue_id) else { continue };
            let point = CheckPoint::of(*id, lease, name, &broker_name);
            revive.push(broker.clock.now(), broker.advertised, &mut batch, lane, queue_id as i32, &point);
        }
        broker.append(&mut batch).await?;
        end = batch.landed().last().map_or(end, |last| last.end.0);
    }
    // Before the journal says where the queues end: if a loss of power took the check-points, it would look as if another broker had been here,
    // and the leases would be dropped.
    if broker.store.flushed().get() < end {
        broker.store.want_flush();
        broker.store.flushed().reached(end).await;
    }
    let stands = revive.stands().map_err(Refusal::failed)?;
    let position = broker.pops.set_handed_over(Some(serde_json::to_vec(&stands).unwrap_or_default()));
    let written = broker.store.journal().written().reached(position);
    if tokio::time::timeout(JOURNAL_TIMEOUT, written).await.is_err() {
        return Err(Refusal::failed("the journal is not written in time"));
    }
    if !leases.is_empty() {
        tracing::info!(leases = leases.len(), "leases are handed over as check-points");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_points_are_read_as_java_writes_them() {
        let java = r#"{"bm":1,"bn":"b","c":"g","d":[0,3],"it":2,"n":2,"pt":1,"q":0,"reviveTime":3,"ro":0,"so":3,"sp":false,"t":"t"}"#;
        let point: CheckPoint = serde_json::from_str(java).unwrap();
        assert_eq!((point.offsets(), point.done, point.start), (vec![3, 6], 1, 3));
        let old: CheckPoint = serde_json::from_str(r#"{"n":3,"so":7}"#).unwrap();
        assert_eq!(old.offsets(), [7, 8, 9]);
        let acks: Acks = serde_json::from_str(r#"{"ao":0,"aol":[4],"c":"g","pt":0,"q":0,"so":0}"#).unwrap();
        assert_eq!(acks.offsets, [4]);
    }
}
