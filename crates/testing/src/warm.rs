//! A broker with one connection and no socket, asked in bursts of bytes.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test that cannot go on fails")]

use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use broker::{Broker, Start};
use bytes::{Bytes, BytesMut};
use config::{Machine, Role, Settings, Sources};
use env::{Clock, Random};
use net::{ClientOptions, Detached, Outgoing};
use protocol::code::request;
use protocol::frame::Serialization;
use protocol::header::{EncodeFields, Head, write_frame};
use protocol::request::{PullMessage, SendMessage};
use protocol::sys_flag::pull as bits;
use store::{FlushMode, Retention, Store, StoreEnv, StoreOptions};
use tempfile::TempDir;
use tokio::runtime::Runtime;

pub const TOPIC: &str = "orders";
pub const BODY: [u8; 1024] = [7; 1024];
pub const PROPERTIES: &str =
    "KEYS\u{1}order-1\u{2}UNIQ_KEY\u{1}7F0000010ED718B4AAC2127C41E90000\u{2}WAIT\u{1}true\u{2}TAGS\u{1}a\u{2}";

pub struct Warm {
    pub store: Arc<Store>,
    pub peer: Detached<Broker>,
    broker: Arc<Broker>,
    runtime: Runtime,
    _dir: TempDir,
}

/// A broker over a new store.
pub async fn start(dir: &Path, flush: FlushMode) -> (Arc<Store>, Arc<Broker>) {
    let machine = Machine { host_name: "localhost".into(), address: [127, 0, 0, 1].into(), home: dir.into() };
    let configuration =
        Settings::load(Sources { data: Some(dir.into()), ..Sources::new(Role::Broker, machine) }).unwrap();
    let (clock, random) = (Clock::real(), Random::seeded(1));
    // Whatever the machine's disk is at.
    let retention = Retention { disk_warning_percent: 100, ..Retention::default() };
    let options = StoreOptions { retention, flush, ..StoreOptions::at(dir) };
    let env = StoreEnv { clock: clock.clone(), random: random.clone(), ..StoreEnv::real() };
    let (store, _) = Store::open(options, env).unwrap();
    let start = Start {
        settings: configuration.broker().unwrap(),
        store_settings: configuration.store().unwrap(),
        store: Arc::clone(&store),
        advertised: ([127, 0, 0, 1], 10911).into(),
        name_servers: Vec::new(),
        configuration,
        config_file: None,
        log_port: None,
        calls: ClientOptions::default(),
        clock,
        random,
    };
    let broker = Broker::start(start).await.unwrap();
    (store, broker)
}

impl Warm {
    pub fn start(flush: FlushMode) -> Warm {
        let dir = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (store, broker) = runtime.block_on(start(dir.path(), flush));
        let peer = Detached::open(Arc::clone(&broker), ([127, 0, 0, 1], 40_000).into());
        let mut warm = Warm { store, peer, broker, runtime, _dir: dir };
        warm.make_topic();
        warm
    }

    /// By a send to queue 0, which nobody here looks at. Its answer waits for the journal, and must not come later than this.
    fn make_topic(&mut self) {
        let first = sends(1, 0);
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut frames = &first;
        let nothing = Bytes::new();
        while self.serve(frames).1.bytes() == 0 {
            assert!(Instant::now() < deadline, "the topic is not made");
            frames = &nothing;
            std::thread::yield_now();
        }
        self.serve(&nothing).1.discard();
    }

    /// Serves a burst. Says whether that needed no wait, and lends what it answered.
    pub fn serve(&mut self, frames: &Bytes) -> (bool, &mut Outgoing) {
        let _entered = self.runtime.enter();
        let mut served = pin!(self.peer.serve(frames));
        match served.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(out) => (true, out),
            Poll::Pending => (false, self.runtime.handle().block_on(served)),
        }
    }

    pub fn parked_pulls(&self) -> usize {
        self.broker.parked_pulls()
    }
}

pub fn message(queue_id: i32) -> SendMessage<'static> {
    SendMessage {
        producer_group: "producers",
        topic: TOPIC,
        default_topic: "TBW102",
        default_topic_queue_nums: 4,
        queue_id,
        born_timestamp: 1_700_000_000_000,
        properties: Some(PROPERTIES),
        ..SendMessage::default()
    }
}

fn frame(out: &mut BytesMut, code: i32, opaque: i32, fields: &dyn EncodeFields, body: &[u8]) {
    write_frame(out, Serialization::Json, &Head { code, opaque, ..Head::default() }, fields, body.len());
    out.extend_from_slice(body);
}

/// So many sends of 1 KB to one queue.
pub fn sends(count: usize, queue_id: i32) -> Bytes {
    sends_of(count, queue_id, &BODY)
}

pub fn sends_of(count: usize, queue_id: i32, body: &[u8]) -> Bytes {
    let mut out = BytesMut::new();
    (0..count).for_each(|_| frame(&mut out, request::SEND_MESSAGE_V2, 7, &message(queue_id), body));
    out.freeze()
}

/// So many sends, to one queue after the other.
pub fn sends_in_turn(count: usize, queues: i32, body: &[u8]) -> Bytes {
    let mut out = BytesMut::new();
    let queue_ids = (0..queues).cycle().take(count);
    queue_ids.for_each(|queue_id| frame(&mut out, request::SEND_MESSAGE_V2, 7, &message(queue_id), body));
    out.freeze()
}

/// A pull for 32 messages from `offset` on, that waits for so many ms. Its number is that of the queue.
pub fn pull(queue_id: i32, offset: i64, wait_ms: i64) -> Bytes {
    let sys_flag = if wait_ms > 0 { bits::SUBSCRIPTION | bits::SUSPEND } else { bits::SUBSCRIPTION };
    pull_with(queue_id, offset, wait_ms, sys_flag)
}

/// The same as consumers ask it: the group has done with all before `offset`.
pub fn pull_and_commit(queue_id: i32, offset: i64, wait_ms: i64) -> Bytes {
    pull_with(queue_id, offset, wait_ms, bits::SUBSCRIPTION | bits::SUSPEND | bits::COMMIT_OFFSET)
}

fn pull_with(queue_id: i32, offset: i64, wait_ms: i64, sys_flag: i32) -> Bytes {
    let fields = PullMessage {
        sys_flag,
        commit_offset: offset,
        suspend_timeout_millis: wait_ms,
        ..PullMessage::at("consumers", TOPIC, queue_id, offset)
    };
    let mut out = BytesMut::new();
    frame(&mut out, request::PULL_MESSAGE, queue_id, &fields, &[]);
    out.freeze()
}
