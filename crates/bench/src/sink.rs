//! The null server, `gantry bench sink`: a name server and a broker on one port, which answers sends at once and stores nothing.
//!
//! A load on it shows what the load generator itself can do. Pulls get messages too: records made anew from the stamps that sends brought
//! (`sink/topics.rs`), so that the books of a run come out even. What else a broker does, pops and groups of push consumers among it,
//! is refused.

mod groups;
mod held;
mod topics;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use net::{Burst, Connection, Listener, ListenerOptions, Outgoing, ReplyTo, Request, Service};
use protocol::body::{
    BrokerData, ClusterInfo, KvTable, MASTER_ID, MessageQueue, QueueData, SubscriptionGroupConfig, TopicOffset,
    TopicRoute, TopicStatsTable,
};
use protocol::code::{ResponseCode, request};
use protocol::fastjson::{self, Dialect};
use protocol::message_id::offset_message_id;
use protocol::request::{
    CreateTopic, DeleteGroup, DeleteTopic, FieldError, GetRouteInfo, GetTopicStats, PullMessage, PullReply,
    SendMessage, SendReply, SendReplyExtra,
};
use protocol::sys_flag::{perm, pull};
use serde::Serialize;
use tokio::time::Instant;

use crate::error::BenchError;
use held::{Held, Room};
use topics::{Page, Topic, Topics};

/// Its cluster, and the name of its broker.
const CLUSTER: &str = "NullCluster";
const BROKER: &str = "null-broker";

/// A pull is held for so long at most, whatever it asks for.
const HOLD_MAX: Duration = Duration::from_secs(60);

/// The region that a broker names unless it is told another.
const REGION: &str = "DefaultRegion";

/// A null server that listens.
pub struct Sink {
    listener: Listener<Null>,
    topics: Arc<Topics>,
}

/// What a null server has answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Messages that it was sent.
    pub taken: u64,
    /// Messages that pulls got.
    pub given: u64,
}

impl Sink {
    /// Opens a port of this machine; 0: any that is free. Needs a tokio runtime.
    pub fn bind(address: SocketAddr) -> Result<Sink, BenchError> {
        Sink::with_room(address, Room::default())
    }

    /// With another number of pulls that are held.
    fn with_room(address: SocketAddr, room: Room) -> Result<Sink, BenchError> {
        let topics = Arc::new(Topics::default());
        let options = ListenerOptions { tls: None, idle_timeout: None, ..ListenerOptions::default() };
        let failed = |cause| BenchError::Invalid(format!("port {address} cannot be opened: {cause}"));
        let listener = Listener::bind(address, options, Arc::new(Null { topics: Arc::clone(&topics), room }));
        Ok(Sink { listener: listener.map_err(failed)?, topics })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// Serves until `end`.
    pub async fn run(self, end: impl Future<Output = ()> + Send) -> Served {
        self.listener.run(end).await;
        self.topics.served()
    }
}

/// The service.
struct Null {
    topics: Arc<Topics>,
    /// For pulls that are held.
    room: Room,
}

/// A connection.
struct Peer {
    connection: Connection<Again>,
    room: Room,
}

/// Before a pull that waited is handed to its connection again, if there was no room.
const ROOM_EVERY: Duration = Duration::from_millis(5);

/// A pull that waited, when something has come or its time is over.
#[derive(Clone)]
struct Again {
    to: ReplyTo,
    topic: Arc<Topic>,
    queue: usize,
    offset: u64,
    max: usize,
    until: Instant,
    /// Its place among the pulls that are held, once it has waited.
    held: Option<Arc<Held>>,
}

/// Why a request is refused.
#[derive(Debug)]
struct Refusal {
    code: ResponseCode,
    remark: String,
}

impl Refusal {
    fn new(code: ResponseCode, remark: impl Into<String>) -> Refusal {
        Refusal { code, remark: remark.into() }
    }
}

impl From<FieldError> for Refusal {
    fn from(error: FieldError) -> Refusal {
        Refusal::new(ResponseCode::SystemError, error.to_string())
    }
}

impl Service for Null {
    type Session = Peer;
    type Work = Again;

    fn open(&self, connection: &Connection<Again>) -> Peer {
        Peer { connection: connection.clone(), room: self.room.another() }
    }

    async fn serve(&self, peer: &mut Peer, burst: &mut Burst<'_>, out: &mut Outgoing) {
        while !out.is_full()
            && let Some(asked) = burst.next()
        {
            if let Err(refusal) = self.answer(peer, &asked, out) {
                refuse(asked.reply_to(), &refusal, out);
            }
        }
    }

    async fn resume(&self, peer: &mut Peer, work: Again, out: &mut Outgoing) {
        let to = work.to;
        if let Err(refusal) = give(peer, work, out) {
            refuse(to, &refusal, out);
        }
    }

    fn close(&self, _peer: Peer) {}
}

fn refuse(to: ReplyTo, refusal: &Refusal, out: &mut Outgoing) {
    out.reply(to, refusal.code, Some(&refusal.remark), &(), &[]);
}

impl Null {
    fn answer(&self, peer: &Peer, asked: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
        let (fields, connection) = (&asked.header.fields, &peer.connection);
        match asked.header.code {
            request::SEND_MESSAGE => self.send(connection, asked, &SendMessage::decode_v1(fields)?, out)?,
            request::SEND_MESSAGE_V2 | request::SEND_BATCH_MESSAGE => {
                self.send(connection, asked, &SendMessage::decode_v2(fields)?, out)?;
            }
            request::PULL_MESSAGE | request::LITE_PULL_MESSAGE => self.pull(peer, asked, out)?,
            request::HEART_BEAT | request::UNREGISTER_CLIENT => done(asked, out),
            request::GET_BROKER_CLUSTER_INFO => json(asked, out, &cluster(connection.local())),
            request::GET_ROUTEINFO_BY_TOPIC => {
                let topic = self.topic(GetRouteInfo::decode(fields)?.topic)?;
                json(asked, out, &route(topic.queues.len(), connection.local()));
            }
            request::UPDATE_AND_CREATE_TOPIC => {
                let wanted = CreateTopic::decode(fields)?;
                let queues = usize::try_from(wanted.write_queue_nums.max(wanted.read_queue_nums)).unwrap_or(0);
                let made = self.topics.create(wanted.topic, queues);
                made.map_err(|text| Refusal::new(ResponseCode::SystemError, text))?;
                done(asked, out);
            }
            request::DELETE_TOPIC_IN_BROKER => {
                self.topics.delete(DeleteTopic::decode(fields)?.topic);
                done(asked, out);
            }
            // Gone with the broker's.
            request::DELETE_TOPIC_IN_NAMESRV => done(asked, out),
            request::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP => {
                let config: SubscriptionGroupConfig = fastjson::from_slice(asked.body)
                    .map_err(|error| Refusal::new(ResponseCode::SystemError, format!("a group: {error}")))?;
                self.topics.groups.create(&config.group_name)?;
                done(asked, out);
            }
            request::DELETE_SUBSCRIPTIONGROUP => {
                self.topics.groups.delete(DeleteGroup::decode(fields)?.group_name);
                done(asked, out);
            }
            request::GET_TOPIC_STATS_INFO => {
                let name = GetTopicStats::decode(fields)?.topic;
                let topic = self.topic(name)?;
                json(asked, out, &stats(name, &topic));
            }
            request::GET_BROKER_RUNTIME_INFO => {
                let version = format!("null server of gantry {}", env!("CARGO_PKG_VERSION"));
                let table = BTreeMap::from([("brokerVersionDesc".to_owned(), version)]);
                json(asked, out, &KvTable { table });
            }
            code => {
                let text = format!("request {code} is nothing for the null server, which takes sends and pulls only");
                return Err(Refusal::new(ResponseCode::RequestCodeNotSupported, text));
            }
        }
        Ok(())
    }

    fn topic(&self, name: &str) -> Result<Arc<Topic>, Refusal> {
        let missing = || Refusal::new(ResponseCode::TopicNotExist, format!("the null server has no topic {name}"));
        self.topics.get(name).ok_or_else(missing)
    }

    /// Success, with an id and an offset for each message.
    fn send(
        &self,
        connection: &Connection<Again>,
        asked: &Request<'_>,
        message: &SendMessage<'_>,
        out: &mut Outgoing,
    ) -> Result<(), Refusal> {
        let topic = self.topic(message.topic)?;
        let queue = index(&topic, message.queue_id)?;
        let is_batch = asked.header.code == request::SEND_BATCH_MESSAGE || message.batch == Some(true);
        let taken = self.topics.take(&topic, queue, message.sys_flag, is_batch, asked.body);
        let (first, count) = taken.map_err(|text| Refusal::new(ResponseCode::MessageIllegal, text))?;
        let mut ids = String::with_capacity(33 * count as usize);
        for offset in first..first + count {
            if offset > first {
                ids.push(',');
            }
            offset_message_id(&mut ids, connection.local(), offset);
        }
        let reply = SendReply {
            msg_id: &ids,
            queue_id: message.queue_id,
            queue_offset: i64::try_from(first).unwrap_or(i64::MAX),
            transaction_id: None,
            batch_uniq_id: None,
            recall_handle: None,
        };
        let extra = SendReplyExtra { msg_region: REGION, trace_on: Some("true") };
        out.reply(asked.reply_to(), ResponseCode::Success, None, &(reply, extra), &[]);
        Ok(())
    }

    fn pull(&self, peer: &Peer, asked: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
        let wanted = PullMessage::decode(&asked.header.fields)?;
        let topic = self.topic(wanted.topic)?;
        let wait = match wanted.sys_flag & pull::SUSPEND {
            0 => Duration::ZERO,
            _ => Duration::from_millis(u64::try_from(wanted.suspend_timeout_millis).unwrap_or(0)).min(HOLD_MAX),
        };
        let again = Again {
            to: asked.reply_to(),
            queue: index(&topic, wanted.queue_id)?,
            topic,
            offset: u64::try_from(wanted.queue_offset).unwrap_or(0),
            max: usize::try_from(wanted.max_msg_nums).unwrap_or(1).max(1),
            until: Instant::now() + wait,
            held: None,
        };
        give(peer, again, out)
    }
}

/// Answers a pull, or lets it wait if there is room.
fn give(peer: &Peer, mut again: Again, out: &mut Outgoing) -> Result<(), Refusal> {
    let Again { to, topic, queue, offset, max, until, held } = &mut again;
    let queue = &topic.queues[*queue];
    // Before the look, so that nothing comes between the look and the wait.
    let arrivals = queue.arrivals.subscribe();
    let page = queue.page(*offset, *max, topic, peer.connection.local());
    let reply = |next: u64, page: &Page| PullReply {
        suggest_which_broker_id: MASTER_ID,
        next_begin_offset: i64::try_from(next).unwrap_or(i64::MAX),
        min_offset: i64::try_from(page.min).unwrap_or(i64::MAX),
        max_offset: i64::try_from(page.end).unwrap_or(i64::MAX),
        offset_delta: None,
        topic_sys_flag: None,
        group_sys_flag: None,
        forbidden_type: None,
    };
    if !page.records.is_empty() {
        let fields = reply(page.next, &page);
        out.reply(*to, ResponseCode::Success, Some("FOUND"), &fields, &page.records);
    } else if page.next != *offset {
        // Forgotten, or never there.
        let fields = reply(page.next, &page);
        out.reply(*to, ResponseCode::PullOffsetMoved, Some("OFFSET_MOVED"), &fields, &[]);
    } else if Instant::now() >= *until {
        let fields = reply(*offset, &page);
        out.reply(*to, ResponseCode::PullNotFound, Some("NOTHING"), &fields, &[]);
    } else {
        if held.is_none() {
            let place = peer.room.take().map_err(|full| Refusal::new(ResponseCode::SystemBusy, full))?;
            *held = Some(Arc::new(place));
        }
        wait(peer.connection.clone(), again, arrivals);
    }
    Ok(())
}

/// Hands a pull back to its connection when something comes, or its time is over.
fn wait(connection: Connection<Again>, again: Again, mut arrivals: tokio::sync::watch::Receiver<()>) {
    tokio::spawn(async move {
        // Either way it is looked at again: what is missing then is told.
        let _ = tokio::time::timeout_at(again.until, arrivals.changed()).await;
        // Many pulls may end at once, and not all of them find room in the connection's inbox. One that is gone waits for nothing.
        while !connection.post(again.clone()) && !connection.is_closed() {
            tokio::time::sleep(ROOM_EVERY).await;
        }
    });
}

fn index(topic: &Topic, queue_id: i32) -> Result<usize, Refusal> {
    let found = usize::try_from(queue_id).ok().filter(|queue| *queue < topic.queues.len());
    found.ok_or_else(|| {
        let text = format!("queue {queue_id} of {} is not there: it has {}", topic.name, topic.queues.len());
        Refusal::new(ResponseCode::SystemError, text)
    })
}

fn done(asked: &Request<'_>, out: &mut Outgoing) {
    out.reply(asked.reply_to(), ResponseCode::Success, None, &(), &[]);
}

fn json<T: Serialize>(asked: &Request<'_>, out: &mut Outgoing, body: &T) {
    let body = fastjson::to_vec(body, Dialect::FastJson);
    out.reply(asked.reply_to(), ResponseCode::Success, None, &(), &body);
}

/// Whoever asks has found us under this address.
fn broker(local: SocketAddr) -> BrokerData {
    BrokerData {
        broker_addrs: BTreeMap::from([(MASTER_ID, local.to_string())]),
        broker_name: BROKER.to_owned(),
        cluster: CLUSTER.to_owned(),
        ..BrokerData::default()
    }
}

fn cluster(local: SocketAddr) -> ClusterInfo {
    ClusterInfo {
        broker_addr_table: BTreeMap::from([(BROKER.to_owned(), broker(local))]),
        cluster_addr_table: BTreeMap::from([(CLUSTER.to_owned(), [BROKER.to_owned()].into())]),
    }
}

fn route(queues: usize, local: SocketAddr) -> TopicRoute {
    let count = i32::try_from(queues).unwrap_or(i32::MAX);
    TopicRoute {
        broker_datas: vec![broker(local)],
        queue_datas: vec![QueueData {
            broker_name: BROKER.to_owned(),
            perm: perm::READ | perm::WRITE,
            read_queue_nums: count,
            topic_sys_flag: 0,
            write_queue_nums: count,
        }],
        ..TopicRoute::default()
    }
}

fn stats(name: &str, topic: &Topic) -> TopicStatsTable {
    let row = |(queue_id, queue): (usize, &topics::Queue)| {
        let queue_id = i32::try_from(queue_id).unwrap_or(i32::MAX);
        let key = MessageQueue { broker_name: BROKER.to_owned(), queue_id, topic: name.to_owned() };
        let max_offset = i64::try_from(queue.end()).unwrap_or(i64::MAX);
        (key, TopicOffset { max_offset, ..TopicOffset::default() })
    };
    TopicStatsTable { offset_table: topic.queues.iter().enumerate().map(row).collect(), topic_put_tps: 0.0 }
}

#[cfg(test)]
mod tests;
