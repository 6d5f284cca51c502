//! How long each request occupies a network worker when the broker's tables are large, and how long another connection waits meanwhile.
//! Alone in its binary, because it measures.
//!
//! What it prints is what counts: on a quiet machine no request occupies a worker for more than some 2 ms, and nobody waits for more
//! than 20 ms. Asserted is ten times that, and the machine's own lateness is taken off. `STALL_ROWS=1000000` fills the tables with so many rows.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test")]
#![allow(
    clippy::disallowed_methods,
    reason = "the pauses between questions, and how long they are, are what is measured"
)]

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use broker::Broker;
use bytes::{Bytes, BytesMut};
use net::Detached;
use protocol::body::{
    ConsumerData, Heartbeat, LockBatch, MessageQueue, ProducerData, SubscriptionData, SubscriptionGroupConfig,
    SubscriptionGroupList, TopicConfig, TopicConfigList,
};
use protocol::code::{REQUESTS, Runs, request};
use protocol::fastjson::{self, Dialect};
use protocol::frame::{self, Serialization};
use protocol::header::{self, EncodeFields, FieldSink, Head, HeaderScratch, write_frame};
use protocol::request::{GetTopicConfig, UpdateConsumerOffset};
use serde::Serialize;
use store::FlushMode;
use testing::served::Served;

const DEADLINE: Duration = Duration::from_secs(120);
/// Ten times what a quiet machine should show, of a worker as of another connection.
const LONGEST: Duration = Duration::from_millis(200);
/// The tables are filled for so long at most.
const FILLED_IN: Duration = Duration::from_secs(30);
/// Members of the one group that is a crowd.
const CROWD: usize = 3_000;
/// Rows of one request that fills a table.
const PIECE: usize = 2_000;

fn rows() -> usize {
    std::env::var("STALL_ROWS").ok().and_then(|rows| rows.parse().ok()).unwrap_or(100_000)
}

fn json<T: Serialize>(value: &T) -> Vec<u8> {
    fastjson::to_vec(value, Dialect::FastJson)
}

fn frame(code: i32, fields: &dyn EncodeFields, body: &[u8]) -> Bytes {
    let mut out = BytesMut::new();
    write_frame(&mut out, Serialization::Json, &Head { code, opaque: 7, ..Head::default() }, fields, body.len());
    out.extend_from_slice(body);
    out.freeze()
}

/// The fields of all requests at once: each reads its own.
struct Anything {
    /// Deleted, and otherwise not touched.
    victim: bool,
}

impl EncodeFields for Anything {
    fn encode(&self, sink: &mut FieldSink<'_>) {
        let (topic, group) = if self.victim { ("T1", "G1") } else { ("T0", "G0") };
        for (name, value) in [
            ("topic", topic),
            ("group", group),
            ("groupName", group),
            ("consumerGroup", group),
            ("producerGroup", group),
            ("clientID", "nobody"),
            ("clientId", "nobody"),
            ("srcGroup", "G0"),
            ("destGroup", "G2"),
            ("compareGroup", "G0"),
            ("parentTopic", "T0"),
            ("liteTopic", "l"),
            ("statsName", "TOPIC_PUT_NUMS"),
            ("statsKey", "T0"),
            ("key", "K"),
            ("msgId", "7F0000010ED718B4AAC2127C41E90000"),
            ("extraInfo", "0 1 2 3 0 b 0 0"),
            ("subscription", "*"),
            ("E_T", "F"),
            ("username", "u"),
            ("subject", "User:u"),
            ("defaultTopic", "TBW102"),
            ("topicFilterType", "SINGLE_TAG"),
        ] {
            sink.str(name, value);
        }
        for name in [
            "queueId",
            "queueOffset",
            "offset",
            "commitOffset",
            "sysFlag",
            "suspendTimeoutMillis",
            "subVersion",
            "index",
            "timestamp",
            "commitLogOffset",
            "tranStateTableOffset",
            "maxNum",
            "beginTimestamp",
            "initMode",
            "bornTime",
            "invisibleTime",
            "pollTime",
            "order",
            "topK",
            "delayLevel",
        ] {
            sink.i64(name, 0);
        }
        for name in ["maxMsgNums", "count", "readQueueNums", "writeQueueNums", "perm"] {
            sink.i64(name, 4);
        }
        sink.i64("endTimestamp", i64::MAX);
        sink.bool("isForce", true);
        sink.bool("isOrder", false);
    }
}

fn subscription(topic: &str) -> SubscriptionData {
    SubscriptionData { topic: topic.to_owned(), sub_string: "*".to_owned(), sub_version: 1, ..Default::default() }
}

fn heartbeat(client: &str, group: &str, topics: &[String]) -> Vec<u8> {
    json(&Heartbeat {
        client_id: client.to_owned(),
        consumer_data_set: vec![ConsumerData {
            group_name: group.to_owned(),
            subscription_data_set: topics.iter().map(|topic| subscription(topic)).collect(),
            ..ConsumerData::default()
        }],
        producer_data_set: vec![ProducerData { group_name: group.to_owned() }],
        ..Heartbeat::default()
    })
}

/// The body that makes a request do as much as it can.
fn body(code: i32) -> Vec<u8> {
    let queues = || {
        let queue = |id| MessageQueue { broker_name: "b".to_owned(), queue_id: id, topic: "T0".to_owned() };
        (0..20_000).map(queue).collect()
    };
    match code {
        request::LOCK_BATCH_MQ | request::UNLOCK_BATCH_MQ => json(&LockBatch {
            client_id: "c0".to_owned(),
            consumer_group: "G0".to_owned(),
            mq_set: queues(),
            only_this_broker: false,
        }),
        request::HEART_BEAT => {
            let topics: Vec<String> = (0..8_000).map(|at| format!("T{at}")).collect();
            heartbeat("long", "G0", &topics)
        }
        request::UPDATE_AND_CREATE_TOPIC_LIST => json(&topics(0..PIECE)),
        request::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST => json(&groups(0..PIECE)),
        request::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP => {
            // Refused for its length, once it is read.
            let attributes = (0..50_000).map(|at| (format!("+a{at}"), "x".to_owned())).collect();
            json(&SubscriptionGroupConfig { group_name: "G0".to_owned(), attributes, ..Default::default() })
        }
        request::BATCH_ACK_MESSAGE => {
            let ack = r#"{"b":"AQ==","c":"G0","it":1,"pt":1,"q":0,"r":"0","rq":0,"so":0,"t":"T0"}"#;
            format!(r#"{{"acks":[{}]}}"#, vec![ack; 50_000].join(",")).into_bytes()
        }
        request::QUERY_ASSIGNMENT => br#"{"clientId":"c0","consumerGroup":"crowd","messageModel":"CLUSTERING","strategyName":"AVG","topic":"T0"}"#.to_vec(),
        request::SET_MESSAGE_REQUEST_MODE => br#"{"consumerGroup":"G0","mode":"POP","popShareQueueNum":0,"topic":"T0"}"#.to_vec(),
        request::UPDATE_BROKER_CONFIG => b"autoCreateTopicEnable=true\n".to_vec(),
        request::CHECK_CLIENT_CONFIG => {
            let names: Vec<String> = (0..5_000).map(|at| format!("a = 'x{at}'")).collect();
            let condition = names.join(" OR ");
            format!(r#"{{"clientId":"c","group":"G0","subscriptionData":{{"topic":"T0","subString":"{condition}","expressionType":"SQL92"}}}}"#).into_bytes()
        }
        _ => Vec::new(),
    }
}

fn topics(range: std::ops::Range<usize>) -> TopicConfigList {
    let topic = |at| TopicConfig { topic_name: format!("T{at}"), ..TopicConfig::default() };
    TopicConfigList { topic_config_list: range.map(topic).collect() }
}

fn groups(range: std::ops::Range<usize>) -> SubscriptionGroupList {
    let group = |at| SubscriptionGroupConfig {
        group_name: format!("G{at}"),
        // Its members have no retry topic to be made, and hear nothing of each other.
        retry_queue_nums: 0,
        notify_consumer_ids_changed_enable: false,
        ..SubscriptionGroupConfig::default()
    };
    SubscriptionGroupList { group_config_list: range.map(group).collect() }
}

/// A connection without a socket, whose task is polled here: the longest poll is what its requests cost a network worker.
struct Peer<'a> {
    served: &'a Served,
    connection: Detached<Broker>,
}

impl<'a> Peer<'a> {
    fn open(served: &'a Served) -> Peer<'a> {
        let connection = Detached::open(Arc::clone(&served.broker), ([127, 0, 0, 1], 40_000).into());
        Peer { served, connection }
    }

    fn poll(&mut self, frames: &Bytes, longest: &mut Duration) -> Vec<u8> {
        self.served.runtime.block_on(async {
            let mut serving = pin!(self.connection.serve(frames));
            let out = poll_fn(|cx| {
                let began = Instant::now();
                let polled = serving.as_mut().poll(cx);
                *longest = (*longest).max(began.elapsed());
                polled
            })
            .await;
            let answer = out.to_vec();
            out.discard();
            answer
        })
    }

    /// Asks and waits for the answer: its code and remark, and the longest that a worker was occupied.
    fn ask(&mut self, code: i32, fields: &dyn EncodeFields, body: &[u8]) -> (i32, String, Duration) {
        let mut longest = Duration::ZERO;
        let mut answer = self.poll(&frame(code, fields, body), &mut longest);
        let deadline = Instant::now() + DEADLINE;
        while answer.is_empty() {
            assert!(Instant::now() < deadline, "no answer to {code}");
            std::thread::sleep(Duration::from_micros(200));
            answer = self.poll(&Bytes::new(), &mut longest);
        }
        let layout = frame::peek(&answer, usize::MAX).unwrap().unwrap();
        let mut scratch = HeaderScratch::new();
        let header = header::decode(&answer[layout.header], layout.serialization, &mut scratch).unwrap();
        (header.code, header.remark.unwrap_or_default().to_owned(), longest)
    }

    fn must(&mut self, code: i32, fields: &dyn EncodeFields, body: &[u8]) {
        let (answer, remark, _) = self.ask(code, fields, body);
        assert_eq!(answer, 0, "{code}: {remark}");
    }
}

/// Topics, groups and offsets, so many of each, and as many connections of which each is a consumer and a producer. Fewer if that takes too
/// long: an unoptimised build on a busy machine says what it can.
fn fill(served: &Served, rows: usize) -> Vec<Peer<'_>> {
    let mut filler = Peer::open(served);
    let commit = |group: &str, topic: &str| {
        let fields = UpdateConsumerOffset { consumer_group: group, topic, queue_id: 0, commit_offset: 1 };
        frame(request::UPDATE_CONSUMER_OFFSET, &fields, &[])
    };
    let (began, mut clients) = (Instant::now(), Vec::new());
    let join = |at: usize, group: &str| {
        let mut client = Peer::open(served);
        let said = heartbeat(&format!("c{at}"), group, &["T0".to_owned()]);
        client.poll(&frame(request::HEART_BEAT, &(), &said), &mut Duration::default());
        client
    };
    for first in (0..rows).step_by(PIECE) {
        if began.elapsed() > FILLED_IN {
            break;
        }
        let piece = first..(first + PIECE).min(rows);
        filler.must(request::UPDATE_AND_CREATE_TOPIC_LIST, &(), &json(&topics(piece.clone())));
        filler.must(request::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, &(), &json(&groups(piece.clone())));
        // All groups in one topic, and one group in all topics: whatever looks by one of the two finds many.
        let mut burst = BytesMut::new();
        for at in piece.clone().step_by(2) {
            burst.extend_from_slice(&commit(&format!("G{at}"), "T0"));
            burst.extend_from_slice(&commit("G0", &format!("T{at}")));
        }
        filler.poll(&burst.freeze(), &mut Duration::default());
        clients.extend(piece.map(|at| join(at, &format!("G{at}"))));
    }
    println!("{} rows of each table after {:?}", clients.len(), began.elapsed());
    let mut crowd = groups(0..1).group_config_list.remove(0);
    crowd.group_name = "crowd".to_owned();
    filler.must(request::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, &(), &json(&crowd));
    clients.extend((rows..rows + CROWD).map(|at| join(at, "crowd")));
    clients
}

/// How late this machine wakes a thread that has nothing to do with the broker.
fn metronome(longest_us: Arc<AtomicU64>, is_over: Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    const BEAT: Duration = Duration::from_millis(1);
    std::thread::spawn(move || {
        while !is_over.load(Ordering::Relaxed) {
            let began = Instant::now();
            std::thread::sleep(BEAT);
            longest_us.fetch_max(micros(began.elapsed().saturating_sub(BEAT)), Ordering::Relaxed);
        }
    })
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Asks the same small question again and again over a socket, and keeps the longest wait.
fn probe(served: &Served, longest_us: Arc<AtomicU64>, is_over: Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    let mut socket = served.connect();
    let question = frame(request::GET_TOPIC_CONFIG, &GetTopicConfig { topic: "T2", lo: None }, &[]);
    std::thread::spawn(move || {
        while !is_over.load(Ordering::Relaxed) {
            let began = Instant::now();
            socket.exchange(&question, 1);
            longest_us.fetch_max(micros(began.elapsed()), Ordering::Relaxed);
            std::thread::sleep(Duration::from_micros(500));
        }
    })
}

/// What was measured of one request.
struct Measured {
    /// The longest that a worker did nothing else.
    occupied: Duration,
    /// The longest that the other connection waited.
    waited: Duration,
    /// Until the answer was there.
    answered: Duration,
    /// How late the machine itself was.
    late: Duration,
    what: String,
}

impl Measured {
    fn show(&self) {
        let Measured { occupied, waited, answered, late, what } = self;
        println!("{occupied:>10.1?} {waited:>10.1?} {answered:>10.1?} {late:>10.1?}  {what}");
    }

    /// What is left when the machine's own lateness is taken off, which may come twice: to the broker and to who asks.
    fn check(&self) {
        for (what, time) in [("occupied a worker for", self.occupied), ("let another connection wait for", self.waited)]
        {
            assert!(
                time < LONGEST + self.late * 4,
                "{} {what} {time:?}, the machine is late by {:?}",
                self.what,
                self.late
            );
        }
    }
}

#[test]
fn no_request_holds_up_other_connections_however_large_the_tables_are() {
    let served = Served::start(FlushMode::Async, || {}, |broker| broker);
    let clients = fill(&served, rows());
    let mut peer = Peer::open(&served);
    peer.poll(&frame(request::HEART_BEAT, &(), &heartbeat("me", "G0", &["T0".to_owned()])), &mut Duration::default());

    let (waited_us, late_us, is_over) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default(), Arc::default());
    let probing = probe(&served, Arc::clone(&waited_us), Arc::clone(&is_over));
    let beating = metronome(Arc::clone(&late_us), Arc::clone(&is_over));
    let begin = || {
        waited_us.store(0, Ordering::Relaxed);
        late_us.store(0, Ordering::Relaxed);
        Instant::now()
    };
    let end = |began: Instant, occupied: Duration, what: String| {
        let answered = began.elapsed();
        // What the answer itself cost the others is seen by the questions after it.
        std::thread::sleep(Duration::from_millis(3));
        let of = |us: &AtomicU64| Duration::from_micros(us.load(Ordering::Relaxed));
        Measured { occupied, waited: of(&waited_us), answered, late: of(&late_us), what }
    };
    let deletes = [request::DELETE_TOPIC_IN_BROKER, request::DELETE_SUBSCRIPTIONGROUP];
    // What changes settings, or is answered when something comes, is no question of tables.
    let not_asked = [request::UPDATE_BROKER_CONFIG, request::SEND_TOGETHER, request::POP_MESSAGE];
    let mut measured = Vec::new();
    for row in REQUESTS.iter().filter(|row| row.runs != Runs::Unserved && !not_asked.contains(&row.number)) {
        let began = begin();
        let victim = deletes.contains(&row.number);
        let (code, remark, occupied) = peer.ask(row.number, &Anything { victim }, &body(row.number));
        let remark: String = remark.chars().take(60).collect();
        measured.push(end(began, occupied, format!("{} {} {:?} {code} {remark}", row.number, row.name, row.runs)));
    }
    let began = begin();
    let mut longest = Duration::ZERO;
    for client in clients {
        let began = Instant::now();
        served.runtime.block_on(async { drop(client) });
        longest = longest.max(began.elapsed());
    }
    measured.push(end(began, longest, "connections that end".to_owned()));
    is_over.store(true, Ordering::Relaxed);
    probing.join().unwrap();
    beating.join().unwrap();

    measured.sort_by_key(|one| std::cmp::Reverse(one.occupied));
    println!("{:>10} {:>10} {:>10} {:>10}  request", "occupied", "waited", "answered", "late");
    measured.iter().for_each(Measured::show);
    measured.iter().for_each(Measured::check);
}
