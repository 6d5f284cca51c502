//! Logical queues, as clients and tools see them, on one broker and on two.

mod brokers;
mod late;
mod mappings;
mod offsets;
mod queues;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::slice::from_ref;
use std::sync::Arc;

use bytes::Bytes;
use net::{Burst, Connection, Listener, ListenerOptions, Outgoing, Service};
use parking_lot::Mutex;
use protocol::body::{
    BrokerData, ClusterInfo, ConsumeStats, LogicQueueMappingItem, TopicConfigAndQueueMapping, TopicConfigTable,
    TopicQueueMappingDetail,
};
use protocol::code::{ResponseCode, request};
use protocol::fastjson;
use protocol::message_id::parse_offset_message_id;
use protocol::request::{
    CreateTopic, DeleteTopic, EarliestStoreTimeReply, EndTransaction, ExpectedEpoch, GetAllTopicConfig,
    GetConsumeStats, GetEarliestStoreTime, GetMaxOffset, GetMinOffset, GetTopicConfig, OffsetReply, PullMessage,
    QueryConsumerOffset, ResetOffset, SearchOffset, UpdateConsumerOffset, WhichQueue,
};
use protocol::sys_flag::{self, pull as bits};

use crate::support::{Device, Pulled, Running, Sent, Setup, from, start, start_on, to, until, waiting};
use crate::{json, make_group};

const T: &str = "T";

fn item(generation: i32, bname: &str, queue_id: i32, logic_offset: i64) -> LogicQueueMappingItem {
    LogicQueueMappingItem {
        bname: bname.to_owned(),
        end_offset: -1,
        generation,
        logic_offset,
        queue_id,
        start_offset: 0,
        time_of_end: -1,
        time_of_start: -1,
    }
}

fn detail(bname: &str, epoch: i64, queues: &[(i32, &[LogicQueueMappingItem])]) -> TopicQueueMappingDetail {
    TopicQueueMappingDetail {
        bname: bname.to_owned(),
        epoch,
        hosted_queues: queues.iter().map(|(id, items)| (*id, items.to_vec())).collect(),
        topic: T.to_owned(),
        total_queues: 4,
        ..TopicQueueMappingDetail::default()
    }
}

async fn map(running: &Running, detail: &TopicQueueMappingDetail, is_forced: bool) -> (i32, Option<String>) {
    let fields = CreateTopic {
        topic: T,
        default_topic: Some("TBW102"),
        read_queue_nums: 4,
        write_queue_nums: 4,
        perm: 6,
        topic_filter_type: "SINGLE_TAG",
        topic_sys_flag: None,
        order: false,
        attributes: None,
        force: is_forced,
    };
    let answer = running.call(request::UPDATE_AND_CREATE_STATIC_TOPIC, &fields, json(detail)).await;
    (answer.code, answer.remark)
}

async fn put(running: &Running, queue_id: i32, body: &str) -> (i32, i64) {
    let response = running.send(&to(T, queue_id, ""), body).await;
    assert_eq!((response.code, &response.remark), (0, &None));
    let sent = Sent::of(&response);
    (sent.queue_id, sent.queue_offset)
}

async fn mapping(running: &Running) -> Option<TopicQueueMappingDetail> {
    let answer = running.call(request::GET_TOPIC_CONFIG, &GetTopicConfig { topic: T, lo: Some(true) }, "").await;
    fastjson::from_slice::<TopicConfigAndQueueMapping>(&answer.body).unwrap().mapping_detail
}

async fn commit(running: &Running, queue_id: i32, commit_offset: i64) -> i32 {
    let fields = UpdateConsumerOffset { consumer_group: "CG", topic: T, queue_id, commit_offset };
    running.call(request::UPDATE_CONSUMER_OFFSET, &fields, "").await.code
}

async fn committed(running: &Running, queue_id: i32) -> Result<i64, i32> {
    let fields = QueryConsumerOffset { consumer_group: "CG", topic: T, queue_id, set_zero_if_not_found: Some(false) };
    let answer = running.call(request::QUERY_CONSUMER_OFFSET, &fields, "").await;
    if answer.code != 0 {
        Err(answer.code)
    } else {
        Ok(OffsetReply::decode(&answer.fields.as_fields()).unwrap().offset)
    }
}

async fn bounds(running: &Running, queue_id: i32) -> (i64, i64) {
    let offset = |answer: net::Response| {
        assert_eq!((answer.code, &answer.remark), (0, &None));
        OffsetReply::decode(&answer.fields.as_fields()).unwrap().offset
    };
    let min = running.call(request::GET_MIN_OFFSET, &GetMinOffset { topic: T, queue_id }, "").await;
    let max = GetMaxOffset { topic: T, queue_id, committed: true };
    (offset(min), offset(running.call(request::GET_MAX_OFFSET, &max, "").await))
}

async fn at_time(running: &Running, queue_id: i32, timestamp: i64, boundary_type: &str) -> i64 {
    let fields = SearchOffset { topic: T, queue_id, timestamp, boundary_type: Some(boundary_type), lite_topic: None };
    let answer = running.call(request::SEARCH_OFFSET_BY_TIMESTAMP, &fields, "").await;
    OffsetReply::decode(&answer.fields.as_fields()).unwrap().offset
}

/// Everything a logical queue holds, with the offsets that clients make of it, and where the next pull would begin.
async fn read(running: &Running, queue_id: i32, mut at: i64) -> (Vec<(i64, String)>, i64) {
    let mut all = Vec::new();
    loop {
        let response = running.call(request::PULL_MESSAGE, &from(T, queue_id, at), "").await;
        let delta: i64 = response.fields.get("offsetDelta").map_or(0, |delta| delta.parse().unwrap());
        let pulled = Pulled::of(response);
        match pulled.code {
            0 => {
                all.extend(pulled.messages.into_iter().map(|found| (found.queue_offset as i64 + delta, found.body)));
                at = pulled.next;
            }
            20 => {
                assert_ne!(pulled.next, at, "turns on the spot");
                at = pulled.next;
            }
            19 => return (all, pulled.next),
            code => panic!("{code}: {:?}", pulled.remark),
        }
    }
}

fn bodies(read: &(Vec<(i64, String)>, i64)) -> Vec<(i64, &str)> {
    read.0.iter().map(|(at, body)| (*at, body.as_str())).collect()
}

fn create() -> CreateTopic<'static> {
    CreateTopic {
        topic: T,
        default_topic: None,
        read_queue_nums: 4,
        write_queue_nums: 4,
        perm: 6,
        topic_filter_type: "SINGLE_TAG",
        topic_sys_flag: None,
        order: false,
        attributes: None,
        force: false,
    }
}

fn listen<S: Service>(service: &Arc<S>) -> String {
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let options = ListenerOptions { tls: None, ..ListenerOptions::default() };
    let listener = Listener::bind(any, options, Arc::clone(service)).unwrap();
    let address = listener.local_addr().to_string();
    tokio::spawn(listener.run(std::future::pending()));
    address
}

/// The settings of the second broker.
const OF_B: &[(&str, &str)] = &[("brokerName", "broker-b"), ("autoCreateSubscriptionGroup", "false")];

/// A name server that knows where brokers are, and nothing else.
#[derive(Default)]
struct Names(Mutex<BTreeMap<String, String>>);

impl Service for Names {
    type Session = ();
    type Work = ();

    fn open(&self, _: &Connection<()>) {}

    async fn serve(&self, _: &mut (), burst: &mut Burst<'_>, out: &mut Outgoing) {
        while let Some(request) = burst.next() {
            let brokers = self.0.lock().clone().into_iter().map(|(name, address)| {
                let data = BrokerData {
                    broker_name: name.clone(),
                    broker_addrs: [(0, address)].into(),
                    ..BrokerData::default()
                };
                (name, data)
            });
            let info = ClusterInfo { broker_addr_table: brokers.collect(), ..ClusterInfo::default() };
            let body = if request.header.code == request::GET_BROKER_CLUSTER_INFO { json(&info) } else { Bytes::new() };
            out.reply(request.reply_to(), ResponseCode::Success, None, &(), &body);
        }
    }

    async fn resume(&self, _: &mut (), (): (), _: &mut Outgoing) {}

    fn close(&self, (): ()) {}
}
