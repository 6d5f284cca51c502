//! A running broker, and the requests that the tests ask it.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test that cannot go on fails")]

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use broker::{Broker, PageOptions, ProcessFigures, Start};
use bytes::Bytes;
use config::{Machine, Role, Settings, Sources};
use env::{Clock, ManualClock, Random, TimeMs};
use net::{CallError, Client, ClientOptions, Listener, ListenerOptions, Port, Response};
use protocol::batch::{self, InnerMessage};
use protocol::code::request;
use protocol::delay::DelayLevels;
use protocol::header::EncodeFields;
use protocol::record::{self, RecordView, Scanned};
use protocol::request::{PullMessage, SendMessage};
use protocol::sys_flag::pull as bits;
use store::{FlushMode, IndexOptions, PoolOptions, Retention, Store, StoreEnv, StoreOptions};
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

pub use crate::device::Device;

/// Longer than anything here may take on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(60);

pub struct Running {
    pub broker: Arc<Broker>,
    pub client: Client,
    pub address: String,
    /// Where slaves get its log.
    pub log: Option<SocketAddr>,
    stop: Option<oneshot::Sender<()>>,
    listening: tokio::task::JoinHandle<()>,
    store: Arc<Store>,
    dir: Arc<TempDir>,
}

/// How a broker is started.
#[derive(Clone)]
pub struct Setup {
    /// `messageDelayLevel`.
    pub levels: &'static str,
    /// SYNC_FLUSH.
    pub is_sync: bool,
    /// Bytes of a file of the log.
    pub segment_bytes: u64,
    /// `syncFlushTimeout`, in milliseconds.
    pub sync_flush_timeout: &'static str,
    /// Where its files lie.
    pub device: Device,
    /// Pause between flushes otherwise.
    pub flush_interval: Duration,
    /// `repeatedSendWindowMillis`.
    pub repeated_send_window: &'static str,
    /// The time, if not the machine's.
    pub clock: Option<Clock>,
    /// `maxLmqConsumeQueueNum`, and light queues at all.
    pub light_queues: Option<&'static str>,
    /// Whether messages can be looked up by key.
    pub has_index: bool,
    /// Where records gather before they are written.
    pub pool: Option<PoolOptions>,
    /// The port that it listens at, with the one behind it for slaves; 0: free ones; none: a free one, and no slaves.
    pub main_port: Option<u16>,
    /// Where it registers.
    pub name_servers: Vec<String>,
    /// Which old files go.
    pub retention: Retention,
    /// Further settings.
    pub more: &'static [(&'static str, &'static str)],
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            levels: "1s 5s",
            is_sync: false,
            // Copies write the holes of a file, too.
            segment_bytes: 16 << 20,
            sync_flush_timeout: "5000",
            device: Device::default(),
            flush_interval: Duration::from_millis(500),
            repeated_send_window: "0",
            clock: None,
            light_queues: None,
            has_index: false,
            pool: None,
            main_port: None,
            name_servers: Vec::new(),
            retention: Retention::default(),
            more: &[],
        }
    }
}

/// What a clock shows that stands. A slot of timer messages begins there, whatever its length. Whoever moves it to where another slot begins does
/// so when the messages of the slots before are taken in: one that comes later belongs to the new slot, and waits until the clock goes on.
pub const STANDS_AT: i64 = 1_800_000_000_000;

impl Setup {
    /// The same with a clock that stands but for what its hand moves it: on a slow machine nothing is due, late or over before the test says so.
    pub fn standing(self) -> (Setup, ManualClock) {
        let (clock, hand) = Clock::manual(TimeMs(STANDS_AT));
        (Setup { clock: Some(clock), ..self }, hand)
    }
}

/// A broker on an empty store.
pub async fn start(setup: Setup) -> Running {
    start_on(setup, Arc::new(tempfile::tempdir().unwrap())).await
}

/// A broker on what another one has left.
pub async fn start_on(setup: Setup, dir: Arc<TempDir>) -> Running {
    let mut given = vec![
        ("brokerName", "broker-a"),
        ("messageDelayLevel", setup.levels),
        ("flushDiskType", if setup.is_sync { "SYNC_FLUSH" } else { "ASYNC_FLUSH" }),
        ("syncFlushTimeout", setup.sync_flush_timeout),
        ("repeatedSendWindowMillis", setup.repeated_send_window),
        ("enableLmq", if setup.light_queues.is_some() { "true" } else { "false" }),
        ("enableMultiDispatch", if setup.light_queues.is_some() { "true" } else { "false" }),
        ("maxLmqConsumeQueueNum", setup.light_queues.unwrap_or("20000")),
        // Copies of the folder stay small.
        ("mappedFileSizeTimerLog", "65536"),
    ];
    given.extend(setup.more);
    let machine =
        Machine { host_name: "localhost".into(), address: "127.0.0.1".parse().unwrap(), home: dir.path().into() };
    let mut configuration = Settings::load(Sources {
        command_line: given.into_iter().map(|(key, value)| (key.into(), value.into(), "test".into())).collect(),
        data: Some(dir.path().into()),
        ..Sources::new(Role::Broker, machine)
    })
    .unwrap();
    let (clock, random) = (setup.clock.clone().unwrap_or_else(Clock::real), Random::seeded(1));
    let options = StoreOptions {
        segment_bytes: setup.segment_bytes,
        pool: setup.pool,
        flush_interval: setup.flush_interval,
        flush: if setup.is_sync { FlushMode::Sync } else { FlushMode::Async },
        delay_levels: DelayLevels::parse(setup.levels).unwrap(),
        light_queues_max: setup.light_queues.map(|max| max.parse().unwrap()),
        batch_topics: Some(broker::batch_topics),
        is_protected: true,
        retention: setup.retention,
        index: setup.has_index.then(|| IndexOptions { dir: dir.path().join("index"), slots: 1000, entries: 10_000 }),
        ..StoreOptions::at(dir.path())
    };
    let env = StoreEnv { clock: clock.clone(), random: random.clone(), disk: setup.device.disk(), ..StoreEnv::real() };
    let (store, _) = Store::open(options, env).unwrap();
    broker::role_in_force(store.journal(), &mut configuration).unwrap();
    let (settings, store_settings) = (configuration.broker().unwrap(), configuration.store().unwrap());
    let advertised = "127.0.0.1:10911".parse().unwrap();
    let (main_port, log_port) = ports(setup.main_port);
    let log = log_port.as_ref().map(Port::local_addr);
    let name_servers = setup.name_servers.clone();
    let store_of_broker = Arc::clone(&store);
    let start = Start {
        settings,
        store_settings,
        store: store_of_broker,
        advertised,
        name_servers,
        calls: ClientOptions::default(),
        configuration,
        config_file: None,
        log_port,
        clock,
        random,
    };
    let broker = Broker::start(start).await.unwrap();
    let (address, stop, listening) = Running::listen(main_port, Arc::clone(&broker)).await;
    let client = Client::new(ClientOptions::default());
    Running { broker, client, address, log, stop: Some(stop), listening, store, dir }
}

/// The main port, and the one for slaves.
fn ports(main_port: Option<u16>) -> (Port, Option<Port>) {
    let at = |port: u16| Port::bind((Ipv4Addr::LOCALHOST, port).into()).unwrap();
    let Some(wanted) = main_port else { return (at(0), None) };
    // Ends with a port whose next one is nobody's.
    loop {
        let main = at(wanted);
        let next = main.local_addr().port() + 1;
        let log = if wanted > 0 { Ok(at(next)) } else { Port::bind_free((Ipv4Addr::LOCALHOST, next).into()) };
        if let Ok(log) = log {
            return (main, Some(log));
        }
    }
}

impl Running {
    /// Tells the port to stop, and waits for nothing.
    pub fn begin_stop(&mut self) {
        let _ = self.stop.take().map(|stop| stop.send(()));
    }

    /// Whether the port and all its connections are gone.
    pub fn is_quiet(&self) -> bool {
        self.listening.is_finished()
    }

    /// Shuts down in order, and gives back what it left.
    pub async fn stop(self) -> Arc<TempDir> {
        self.end().await.1
    }

    /// The same, with a look at the store that does not keep it.
    pub async fn end(mut self) -> (Weak<Store>, Arc<TempDir>) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        let _ = timeout(DEADLINE, &mut self.listening).await;
        // Some have made sure that it cannot write everything down.
        let _ = self.broker.stop().await;
        self.store.close().unwrap();
        (Arc::downgrade(&self.store), Arc::clone(&self.dir))
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    /// To keep beside the broker, not longer than that.
    pub fn shared_store(&self) -> Arc<Store> {
        Arc::clone(&self.store)
    }

    /// The page for Prometheus.
    pub fn metrics(&self) -> String {
        let options = PageOptions { labels: Vec::new(), label_sets_max: 1000 };
        self.broker.metrics(ProcessFigures::default(), &options)
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// What the disk would hold if the process died now: what is in the kernel is there.
    pub fn image(&self) -> Arc<TempDir> {
        copy_of(self.dir.path())
    }

    /// What it would hold behind a loss of power, as far as the journal goes. Of [`Device::to_lose_power`].
    pub fn image_without_power(&self, device: &Device) -> Arc<TempDir> {
        let image = self.image();
        device.take_power(self.dir(), image.path());
        image
    }

    async fn listen(port: Port, broker: Arc<Broker>) -> (String, oneshot::Sender<()>, tokio::task::JoinHandle<()>) {
        let options = ListenerOptions { tls: None, ..ListenerOptions::default() };
        let listener = Listener::on(port, options, broker).unwrap();
        let address = listener.local_addr().to_string();
        let (stop, stopped) = oneshot::channel::<()>();
        let listening = tokio::spawn(listener.run(async move {
            let _ = stopped.await;
        }));
        (address, stop, listening)
    }

    pub async fn call(&self, code: i32, fields: &(dyn EncodeFields + Sync), body: impl Into<Bytes>) -> Response {
        self.client.call(&self.address, code, fields, body.into(), DEADLINE).await.unwrap()
    }

    pub async fn send(&self, message: &SendMessage<'_>, body: &str) -> Response {
        self.call(request::SEND_MESSAGE_V2, message, body.to_owned()).await
    }

    /// Sends to a topic and expects success.
    pub async fn put(&self, topic: &str, queue_id: i32, properties: &str, body: &str) -> Sent {
        let response = self.send(&to(topic, queue_id, properties), body).await;
        assert_eq!((response.code, &response.remark), (0, &None));
        Sent::of(&response)
    }

    /// Waits until exactly so many pulls are parked.
    pub async fn until_parked(&self, count: usize) {
        let deadline = Instant::now() + DEADLINE;
        while self.broker.parked_pulls() != count {
            assert!(Instant::now() < deadline, "{} pulls are parked, not {count}", self.broker.parked_pulls());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    pub async fn try_pull(&self, pull: &PullMessage<'_>) -> Result<Response, CallError> {
        self.client.call(&self.address, request::PULL_MESSAGE, pull, Bytes::new(), DEADLINE).await
    }

    pub async fn pull(&self, pull: &PullMessage<'_>) -> Pulled {
        Pulled::of(self.call(request::PULL_MESSAGE, pull, Bytes::new()).await)
    }

    /// Everything a queue holds.
    pub async fn all(&self, topic: &str, queue_id: i32) -> Vec<Message> {
        let mut all = Vec::new();
        loop {
            // How much one pull gives depends on where the messages lie.
            let found = self.pull(&from(topic, queue_id, all.len() as i64)).await;
            if found.code != 0 {
                return all;
            }
            all.extend(found.messages);
        }
    }

    /// Pulls from a queue until it holds `count` messages, and returns them.
    pub async fn wait_for(&self, topic: &str, queue_id: i32, count: usize) -> Vec<Message> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let found = self.all(topic, queue_id).await;
            if found.len() >= count {
                return found;
            }
            assert!(Instant::now() < deadline, "{topic}/{queue_id} holds {} of {count} messages", found.len());
            // Wait for the next one where it will come.
            let offset = found.len() as i64;
            let _ = timeout(DEADLINE, self.pull(&waiting(from(topic, queue_id, offset), 200))).await;
        }
    }
}

/// The same of a store that nobody works on.
pub fn copy_of(dir: &Path) -> Arc<TempDir> {
    let image = tempfile::tempdir().unwrap();
    copy(dir, image.path());
    Arc::new(image)
}

/// The journal knows of each file of the configuration before it is in its place, and says of what is in the log only; so the copy of a store
/// that works on holds no more of the first than the second says, and so on.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    let mut entries: Vec<_> = std::fs::read_dir(from).unwrap().map(Result::unwrap).collect();
    entries
        .sort_by_key(|entry| ["config", "journal"].iter().position(|first| entry.file_name() == *first).unwrap_or(2));
    for entry in entries {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
            continue;
        }
        if entry.file_name() == "abort" {
            // It names itself, and this is what a crash leaves, not a copy.
            std::fs::write(&target, "1").unwrap();
            continue;
        }
        match std::fs::copy(entry.path(), &target) {
            Ok(_) => {}
            // Replaced or removed since it was listed.
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{}", entry.path().display()),
        }
    }
}

/// Waits until something is so.
pub async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The value of a metric without labels of its own.
pub fn metric(page: &str, name: &str) -> u64 {
    let line = page.lines().find(|line| line.starts_with(&format!("{name}{{")));
    let Some(line) = line else { panic!("no {name} in {page}") };
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

/// What a producer says.
pub fn to<'a>(topic: &'a str, queue_id: i32, properties: &'a str) -> SendMessage<'a> {
    SendMessage {
        producer_group: "PG",
        topic,
        default_topic: "TBW102",
        default_topic_queue_nums: 4,
        queue_id,
        born_timestamp: 1_700_000_000_000,
        properties: Some(properties),
        ..SendMessage::default()
    }
}

/// What a consumer says that brings its subscription along.
pub fn from(topic: &str, queue_id: i32, offset: i64) -> PullMessage<'_> {
    PullMessage::at("CG", topic, queue_id, offset)
}

/// The same, ready to wait.
pub fn waiting(pull: PullMessage<'_>, ms: i64) -> PullMessage<'_> {
    PullMessage { sys_flag: pull.sys_flag | bits::SUSPEND, suspend_timeout_millis: ms, ..pull }
}

/// A batch body.
pub fn batch_of(messages: &[(&str, &str)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (text, properties) in messages {
        batch::encode(&mut body, &InnerMessage { flag: 0, body: text.as_bytes(), properties }).unwrap();
    }
    body
}

/// Properties from pairs.
pub fn properties(pairs: &[(&str, &str)]) -> String {
    pairs.iter().map(|(name, value)| format!("{name}\u{1}{value}\u{2}")).collect()
}

/// The answer to a send.
#[derive(Debug, PartialEq, Eq)]
pub struct Sent {
    pub id: String,
    pub queue_id: i32,
    pub queue_offset: i64,
    pub transaction_id: Option<String>,
}

impl Sent {
    pub fn of(response: &Response) -> Sent {
        let field = |name: &str| response.fields.get(name).map(str::to_owned);
        Sent {
            id: field("msgId").unwrap(),
            queue_id: field("queueId").unwrap().parse().unwrap(),
            queue_offset: field("queueOffset").unwrap().parse().unwrap(),
            transaction_id: field("transactionId"),
        }
    }
}

/// The answer to a pull.
#[derive(Debug)]
pub struct Pulled {
    pub code: i32,
    pub remark: Option<String>,
    pub next: i64,
    pub min: i64,
    pub max: i64,
    pub messages: Vec<Message>,
}

/// A record, as far as the tests look at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub topic: String,
    pub queue_id: i32,
    pub queue_offset: u64,
    pub log_offset: u64,
    pub body: String,
    pub properties: String,
    pub reconsume_times: i32,
    pub store_timestamp: i64,
}

impl Message {
    pub fn property(&self, name: &str) -> Option<&str> {
        protocol::properties::get(&self.properties, name)
    }

    fn of(view: &RecordView<'_>) -> Message {
        Message {
            topic: view.topic().to_owned(),
            queue_id: view.queue_id(),
            queue_offset: view.queue_offset(),
            log_offset: view.log_offset(),
            body: String::from_utf8(view.body().to_vec()).unwrap(),
            properties: view.properties().into_owned(),
            reconsume_times: view.reconsume_times(),
            store_timestamp: view.store_timestamp(),
        }
    }
}

/// The records of a body, their checksums checked.
pub fn messages(body: &[u8]) -> Vec<Message> {
    let mut rest = body;
    let mut found = Vec::new();
    while !rest.is_empty() {
        let Scanned::Record(view) = record::scan(rest, true).unwrap() else { panic!("not a record") };
        found.push(Message::of(&view));
        rest = &rest[view.total_size()..];
    }
    found
}

impl Pulled {
    pub fn of(response: Response) -> Pulled {
        let number = |name: &str| response.fields.get(name).map_or(-1, |text| text.parse().unwrap());
        Pulled {
            code: response.code,
            next: number("nextBeginOffset"),
            min: number("minOffset"),
            max: number("maxOffset"),
            messages: messages(&response.body),
            remark: response.remark,
        }
    }
}
