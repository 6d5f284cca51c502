//! A name server and a broker in this process.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bench::{Case, Driver, Options, RunResult, ServerProcess, SweepWatcher, Watcher, Window, Workload};
use broker::{Broker, Start};
use config::{Machine, Role, Settings, Sources};
use env::{Clock, Random};
use names::Names;
use net::{ClientOptions, Listener, ListenerOptions, Port};
use protocol::delay::DelayLevels;
use store::{Store, StoreEnv, StoreOptions};
use tempfile::TempDir;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

/// Longer than anything here may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// What a load can be put on.
pub struct Cluster {
    pub names: SocketAddr,
    at: SocketAddr,
    broker: Arc<Broker>,
    store: Arc<Store>,
    stops: Vec<oneshot::Sender<()>>,
    listening: Vec<JoinHandle<()>>,
    expiry: JoinHandle<()>,
    _dir: TempDir,
}

impl Cluster {
    pub async fn start() -> Cluster {
        let dir = tempfile::tempdir().unwrap();
        let options = names::Options { kv_config_path: dir.path().join("kv.json"), ..names::Options::default() };
        let names_service = Names::new(options, ClientOptions::default(), Clock::real()).unwrap();
        let names_port = Listener::bind(any(), ListenerOptions::default(), Arc::clone(&names_service)).unwrap();
        let names = names_port.local_addr();
        // The broker tells its address before it listens.
        let broker_port = Port::bind(any()).unwrap();
        let at = broker_port.local_addr();
        let (port, names_text) = (at.port().to_string(), names.to_string());
        let given = [
            ("brokerName", "broker-a"),
            ("brokerIP1", "127.0.0.1"),
            ("listenPort", &port),
            ("namesrvAddr", &names_text),
        ];
        let machine =
            Machine { host_name: "localhost".into(), address: "127.0.0.1".parse().unwrap(), home: dir.path().into() };
        let configuration = Settings::load(Sources {
            command_line: given.map(|(key, value)| (key.into(), value.into(), "test".into())).into(),
            data: Some(dir.path().into()),
            ..Sources::new(Role::Broker, machine)
        })
        .unwrap();
        let (clock, random) = (Clock::real(), Random::from_entropy());
        let options = StoreOptions {
            segment_bytes: 64 << 20,
            delay_levels: DelayLevels::parse("1s").unwrap(),
            batch_topics: Some(broker::batch_topics),
            ..StoreOptions::at(dir.path())
        };
        let env = StoreEnv { clock: clock.clone(), random: random.clone(), ..StoreEnv::real() };
        let (store, _) = Store::open(options, env).unwrap();
        let broker = Broker::start(Start {
            settings: configuration.broker().unwrap(),
            store_settings: configuration.store().unwrap(),
            store: Arc::clone(&store),
            advertised: at,
            name_servers: vec![names_text.clone()],
            calls: ClientOptions::default(),
            configuration,
            config_file: None,
            log_port: None,
            clock,
            random,
        })
        .await
        .unwrap();
        let port = Listener::on(broker_port, ListenerOptions::default(), Arc::clone(&broker)).unwrap();
        let (mut stops, mut listening) = (Vec::new(), Vec::new());
        let (stop, stopped) = oneshot::channel::<()>();
        stops.push(stop);
        listening.push(tokio::spawn(names_port.run(async move { drop(stopped.await) })));
        let (stop, stopped) = oneshot::channel::<()>();
        stops.push(stop);
        listening.push(tokio::spawn(port.run(async move { drop(stopped.await) })));
        let expiry = tokio::spawn(names_service.expire());
        until_registered(&names_text).await;
        Cluster { names, at, broker, store, stops, listening, expiry, _dir: dir }
    }

    pub async fn stop(self) {
        for stop in self.stops {
            // A port that is closed already needs no word.
            let _ = stop.send(());
        }
        for port in self.listening {
            tokio::time::timeout(PATIENCE, port).await.unwrap().unwrap();
        }
        self.expiry.abort();
        self.broker.stop().await.unwrap();
        self.store.close().unwrap();
    }

    /// A small load, changed by values.
    pub fn case(&self, values: &[(&str, &str)]) -> (Workload, Driver) {
        case_at(self.names, values)
    }

    /// A setting of the broker, as it tells it.
    pub async fn setting(&self, key: &str) -> Option<String> {
        let client = client::Client::start(client::ClientConfig::new(&self.names.to_string()));
        let told = client.admin().tell(&self.at.to_string(), protocol::code::request::GET_BROKER_CONFIG, &()).await;
        let text = String::from_utf8(told.unwrap().body.to_vec()).unwrap();
        let found = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).map(str::to_owned);
        client.stop().await;
        found
    }

    /// The broker's topics whose names hold a text.
    pub async fn topics(&self, text: &str) -> Vec<String> {
        let client = client::Client::start(client::ClientConfig::new(&self.names.to_string()));
        let fields = protocol::request::GetAllTopicConfig { topic_seq: None, data_version: None, max_topic_num: None };
        let request = protocol::code::request::GET_ALL_TOPIC_CONFIG;
        let table: protocol::body::TopicConfigTable =
            client.admin().ask(&self.at.to_string(), request, &fields).await.unwrap();
        client.stop().await;
        table.topic_config_table.into_keys().filter(|topic| topic.contains(text)).collect()
    }

    pub async fn run(&self, values: &[(&str, &str)]) -> RunResult {
        run_at(self.names, values).await
    }
}

/// A small load on whatever is there, changed by values.
pub fn case_at(names: SocketAddr, values: &[(&str, &str)]) -> (Workload, Driver) {
    let mut case = Case::new();
    let names = names.to_string();
    let usual = [
        ("namesrvAddr", names.as_str()),
        ("partitionsPerTopic", "4"),
        ("messageSize", "100"),
        ("warmupDurationMinutes", "0"),
        ("testDurationMinutes", "2"),
    ];
    for (key, value) in usual.iter().chain(values) {
        case.set(key, value, "test").unwrap();
    }
    case.finish().unwrap()
}

/// Runs it.
pub async fn run_at(names: SocketAddr, values: &[(&str, &str)]) -> RunResult {
    let (workload, driver) = case_at(names, values);
    let (_stop, stopped) = watch::channel(false);
    let options = Options { server: Some(ServerProcess::Pid(std::process::id())), ..Options::default() };
    tokio::time::timeout(PATIENCE, bench::run(&workload, &driver, &options, &mut Seen::default(), stopped))
        .await
        .unwrap()
        .unwrap()
}

/// Waits until the name server knows the broker.
async fn until_registered(names: &str) {
    let client = client::Client::start(client::ClientConfig::new(names));
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !client.admin().cluster().await.is_ok_and(|info| !info.broker_addr_table.is_empty()) {
        assert!(tokio::time::Instant::now() < deadline, "the broker does not register");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    client.stop().await;
}

fn any() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// Remembers what it was told.
#[derive(Default)]
pub struct Seen {
    pub windows: Vec<Window>,
    pub said: Vec<String>,
    /// Told to stop at the first second in which something was received.
    pub stop: Option<watch::Sender<bool>>,
}

impl Watcher for Seen {
    fn second(&mut self, window: &Window) {
        self.windows.push(*window);
        if let Some(stop) = self.stop.as_ref().filter(|_| window.received > 0) {
            stop.send_replace(true);
        }
    }
}

impl SweepWatcher for Seen {
    fn value(&mut self, key: &str, value: &str) {
        self.said.push(format!("{key}={value}"));
    }

    fn note(&mut self, text: &str) {
        self.said.push(text.to_owned());
    }
}
