//! The binary as a process: what it prints, how it fails to start, how it ends.

use std::collections::BTreeSet;
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use crate::support::{PATIENCE, Running, fails, gantry};
use bytes::Bytes;
use net::{Client, ClientOptions};
use protocol::body::{SubscriptionGroupConfig, SubscriptionGroupList};
use protocol::code::request;
use protocol::fastjson::{self, Dialect};
use protocol::record::{self, Scanned};
use protocol::request::{GetBrokerConsumeStats, PullMessage, SendMessage, UpdateConsumerOffset};

#[test]
fn it_says_where_it_is_and_ends_in_good_order() {
    for signal in ["-TERM", "-INT"] {
        let data = tempfile::tempdir().unwrap();
        let running = Running::server(data.path());
        assert!(running.ready.starts_with("gantry: ready namesrv=127.0.0.1:"), "{}", running.ready);
        for of in ["namesrv", "broker"] {
            TcpStream::connect(running.address(of)).unwrap();
        }
        let (host, port) = running.address("broker").rsplit_once(':').unwrap();
        TcpStream::connect((host, port.parse::<u16>().unwrap() - 2)).expect("the VIP port");
        let store = data.path().join("store");
        assert!(store.join("abort").exists());
        let (code, said) = running.end(signal);
        assert_eq!(code, Some(0), "{said}");
        assert!(!store.join("abort").exists() && store.join("checkpoint").exists(), "{said}");
        assert!(store.join("config/topics.json").exists());
        assert!(said.contains("unregistered"), "{said}");
    }
}

/// Groups that have come some way in a topic: what 317 looks at.
async fn make_groups(client: &Client, broker: &str, count: usize) {
    let group =
        |at: usize| SubscriptionGroupConfig { group_name: format!("G{at}"), ..SubscriptionGroupConfig::default() };
    let groups = SubscriptionGroupList { group_config_list: (0..count).map(group).collect() };
    let body = Bytes::from(fastjson::to_vec(&groups, Dialect::FastJson));
    let code = request::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST;
    assert_eq!(client.call(broker, code, &(), body, PATIENCE).await.unwrap().code, 0);
    for at in 0..count {
        let group = format!("G{at}");
        let fields = UpdateConsumerOffset { consumer_group: &group, topic: "TBW102", queue_id: 0, commit_offset: 0 };
        let answer = client.call(broker, request::UPDATE_CONSUMER_OFFSET, &fields, Bytes::new(), PATIENCE).await;
        assert_eq!(answer.unwrap().code, 0);
    }
}

#[tokio::test]
async fn a_stop_waits_for_no_long_request() {
    const ASKED: usize = 60;
    let data = tempfile::tempdir().unwrap();
    let running = Running::server(data.path());
    let broker = running.address("broker").to_owned();
    let client = Client::new(ClientOptions::default());
    make_groups(&client, &broker, 2_000).await;
    let mut asked = tokio::task::JoinSet::new();
    for _ in 0..ASKED {
        let (client, broker) = (client.clone(), broker.clone());
        asked.spawn(async move {
            let fields = GetBrokerConsumeStats { is_order: false };
            client.call(&broker, request::GET_BROKER_CONSUME_STATS, &fields, Bytes::new(), PATIENCE).await
        });
    }
    let first = asked.join_next().await.unwrap().unwrap().unwrap();
    assert_eq!(first.code, 0, "{:?}", first.remark);
    let (code, said) = tokio::task::spawn_blocking(move || running.end("-TERM")).await.unwrap();
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("does not end"), "{said}");
}

const TOPIC: &str = "load";
const QUEUES: i32 = 4;

/// 64 producers on 4 connections, each with one message of 1 KB on the way, until their connection ends. Says when `enough` are
/// acknowledged, and returns the numbers of all that were.
async fn load(broker: &str, enough: usize, is_enough: mpsc::Sender<()>) -> BTreeSet<usize> {
    let next = Arc::new(AtomicUsize::new(0));
    let acknowledged = Arc::new(AtomicUsize::new(0));
    let mut producers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let client = Client::new(ClientOptions::default());
        for _ in 0..16 {
            let (client, broker, next) = (client.clone(), broker.to_owned(), Arc::clone(&next));
            let (acknowledged, is_enough) = (Arc::clone(&acknowledged), is_enough.clone());
            producers.spawn(async move {
                let mut own = BTreeSet::new();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let message = SendMessage {
                        producer_group: "PG",
                        topic: TOPIC,
                        default_topic: "TBW102",
                        default_topic_queue_nums: QUEUES,
                        queue_id: number as i32 % QUEUES,
                        ..SendMessage::default()
                    };
                    let mut body = number.to_string().into_bytes();
                    body.resize(1024, b' ');
                    let sent = client.call(&broker, request::SEND_MESSAGE_V2, &message, body.into(), PATIENCE).await;
                    match sent {
                        Ok(answer) if answer.code == 0 => own.insert(number),
                        Ok(answer) => panic!("refused: {} {:?}", answer.code, answer.remark),
                        Err(_) => return own,
                    };
                    if acknowledged.fetch_add(1, Ordering::Relaxed) + 1 == enough {
                        is_enough.send(()).unwrap();
                    }
                }
            });
        }
    }
    let mut all = BTreeSet::new();
    while let Some(own) = producers.join_next().await {
        all.append(&mut own.unwrap());
    }
    all
}

/// The numbers of all messages that the broker has, and how many messages that are.
async fn stored(broker: &str) -> (BTreeSet<usize>, usize) {
    let client = Client::new(ClientOptions::default());
    let (mut numbers, mut count) = (BTreeSet::new(), 0);
    for queue_id in 0..QUEUES {
        let mut offset = 0;
        loop {
            let pull = PullMessage { max_msg_nums: 1000, ..PullMessage::at("CG", TOPIC, queue_id, offset) };
            let found = client.call(broker, request::PULL_MESSAGE, &pull, Bytes::new(), PATIENCE).await.unwrap();
            if found.code != 0 {
                break;
            }
            let mut rest: &[u8] = &found.body;
            while !rest.is_empty() {
                let Scanned::Record(view) = record::scan(rest, true).unwrap() else { panic!("not a record") };
                numbers.insert(std::str::from_utf8(view.body()).unwrap().trim().parse().unwrap());
                count += 1;
                offset += 1;
                rest = &rest[view.total_size()..];
            }
        }
    }
    (numbers, count)
}

/// `--nocapture` shows how long each stop took; `LOAD_MESSAGES` says how many have to be acknowledged before it.
#[test]
fn a_stop_under_load_loses_nothing_that_was_acknowledged_and_acknowledges_all_that_was_stored() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let enough = std::env::var("LOAD_MESSAGES").map_or(5_000, |text| text.parse().unwrap());
    for mode in ["ASYNC_FLUSH", "SYNC_FLUSH"] {
        let data = tempfile::tempdir().unwrap();
        let setting = format!("flushDiskType={mode}");
        let running = Running::server_with(data.path(), &["--set", &setting]);
        let broker = running.address("broker").to_owned();
        let (say, hear) = mpsc::channel();
        let load = runtime.spawn(async move { load(&broker, enough, say).await });
        hear.recv_timeout(PATIENCE + Duration::from_millis(enough as u64)).expect("there is load");
        let began = Instant::now();
        let (code, said) = running.end("-TERM");
        let took = began.elapsed();
        assert_eq!(code, Some(0), "{said}");
        assert!(!said.contains("cut off"), "{said}");
        assert!(!data.path().join("store/abort").exists(), "{said}");
        let acknowledged = runtime.block_on(load).unwrap();
        println!("{mode}: stopped in {took:?} under load, {} messages acknowledged", acknowledged.len());

        let again = Running::server(data.path());
        let (stored, count) = runtime.block_on(stored(again.address("broker")));
        assert!(stored == acknowledged, "{mode}: {:?} differ", stored.symmetric_difference(&acknowledged));
        assert_eq!(count, stored.len(), "each once");
        assert_eq!(again.end("-TERM").0, Some(0));
    }
}

/// Six measured; what the commands of `gantry admin` take would be another five.
#[test]
fn an_idle_server_holds_no_more_than_nine_megabytes_of_its_own() {
    let data = tempfile::tempdir().unwrap();
    let running = Running::server(data.path());
    let own_kib = running.own_kib();
    assert!(own_kib < 9 << 10, "{own_kib} KiB");
}

/// A pipe that nobody reads stands for a device that does not answer.
#[test]
fn a_second_signal_ends_a_stop_that_hangs() {
    let data = tempfile::tempdir().unwrap();
    let running = Running::server(data.path());
    let config = data.path().join("store/config");
    std::fs::create_dir_all(&config).unwrap();
    for file in ["topics.json.tmp", "consumerOffset.json.tmp", "subscriptionGroup.json.tmp"] {
        let _: std::io::Result<()> = std::fs::remove_file(config.join(file));
        assert!(Command::new("mkfifo").arg(config.join(file)).status().unwrap().success());
    }
    let pid = running.pid().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    running.until_logged("unregistered");
    let (code, said) = running.end("-TERM");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("came again before everything was written down"), "{said}");
}

#[test]
fn a_change_at_the_name_server_holds_from_the_next_request_on_and_after_a_restart() {
    let data = tempfile::tempdir().unwrap();
    let admin = |running: &Running, words: &[&str]| {
        let output = gantry(&[&["admin"], words, &["-n", running.address("namesrv")]].concat()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let set =
        |running: &Running, value| admin(running, &["updateNamesrvConfig", "-k", "orderMessageEnable", "-v", value]);
    let has_order = |running: &Running| admin(running, &["topicRoute", "-t", "TBW102"]).contains("a:4");
    let running = Running::server(data.path());
    let deadline = Instant::now() + PATIENCE;
    while !admin(&running, &["topicList"]).contains("TBW102") {
        assert!(Instant::now() < deadline, "not registered");
    }
    admin(&running, &["updateOrderConf", "-t", "TBW102", "-m", "put", "-v", "a:4"]);
    assert!(!has_order(&running));
    set(&running, "true");
    assert!(has_order(&running));
    set(&running, "false");
    assert!(!has_order(&running));
    set(&running, "true");
    assert_eq!(running.end("-TERM").0, Some(0));
    let running = Running::server(data.path());
    assert!(
        admin(&running, &["getNamesrvConfig"])
            .lines()
            .any(|line| line.contains("orderMessageEnable") && line.contains("true"))
    );
    assert_eq!(running.end("-TERM").0, Some(0));
}

#[test]
fn a_second_process_on_the_same_store_is_refused() {
    let data = tempfile::tempdir().unwrap();
    let running = Running::server(data.path());
    let said = fails(&["server", "--data", data.path().to_str().unwrap(), "--namesrv-port", "0", "--broker-port", "0"]);
    assert!(said.contains("is locked"), "{said}");
    assert_eq!(running.end("-TERM").0, Some(0));
}

#[test]
fn a_taken_port_is_named_before_the_store_is_touched() {
    let data = tempfile::tempdir().unwrap();
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = holder.local_addr().unwrap().port().to_string();
    let data_text = data.path().to_str().unwrap();
    let said = fails(&["server", "--data", data_text, "--namesrv-port", &port, "--broker-port", "0"]);
    assert!(said.contains(&format!("127.0.0.1:{port} for the name server")), "{said}");
    let said = fails(&["server", "--data", data_text, "--namesrv-port", "0", "--broker-port", &port]);
    assert!(said.contains(&format!("127.0.0.1:{port} for the broker")), "{said}");
    assert!(!data.path().join("store").exists());
}

#[test]
fn a_folder_that_cannot_be_used_is_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let said = fails(&["server", "--data", file.path().to_str().unwrap(), "--namesrv-port", "0", "--broker-port", "0"]);
    assert!(said.contains(file.path().to_str().unwrap()), "{said}");
}

#[test]
fn a_file_that_asks_for_a_slave_or_is_not_there_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broker.conf");
    std::fs::write(&path, "brokerRole=SLAVE\n").unwrap();
    let said = fails(&["broker", "-c", path.to_str().unwrap()]);
    assert!(said.contains("brokerRole=SLAVE") && said.contains("broker.conf:1"), "{said}");
    let said = fails(&["broker", "-c", "/nowhere/broker.conf"]);
    assert!(said.contains("cannot read /nowhere/broker.conf"), "{said}");
    let said = fails(&["namesrv", "--set", "xyzzy=1"]);
    assert!(said.contains("there is no key xyzzy"), "{said}");
}

#[test]
fn the_settings_in_force_are_printed_with_their_origins() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broker.conf");
    std::fs::write(&path, "# a\nbrokerName=broker-a\n").unwrap();
    let run = |arguments: &[&str]| {
        let mut command = gantry(arguments);
        command.env("NAMESRV_ADDR", "ns:9876").env("GANTRY_SET_maxMessageSize", "1M").env("JAVA_OPT", "-Xms8g");
        let output = command.output().unwrap();
        assert!(output.status.success());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("JAVA_OPT: sets up a Java machine"), "{said}");
        String::from_utf8(output.stdout).unwrap()
    };
    let path = path.to_str().unwrap();
    let all = run(&["broker", "-c", path, "--print-config", "--set", "listenPort=12345"]);
    let origin = |line: &str| {
        all.lines().find(|printed| printed.starts_with(line)).unwrap_or_else(|| panic!("{all}")).to_owned()
    };
    assert!(origin("brokerName=broker-a ").ends_with("broker.conf:2"));
    assert!(origin("namesrvAddr=ns:9876 ").ends_with("environment NAMESRV_ADDR"));
    assert!(origin("listenPort=12345 ").ends_with("option --set"));
    assert!(origin("maxMessageSize=1M ").ends_with("environment GANTRY_SET_maxMessageSize"));
    assert!(origin("fileReservedTime=72 ").ends_with("default"));
    assert_eq!(run(&["broker", "-c", path, "-m"]).lines().count(), 3);
}

#[test]
fn whoever_prints_the_settings_is_told_what_a_start_says_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broker.conf");
    std::fs::write(&path, "brokerNam=a\nregisterNameServerPeriod=5000\n").unwrap();
    for option in ["--print-config", "-m"] {
        let output = gantry(&["broker", "-c", path.to_str().unwrap(), option]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("brokerNam (line 1): not a key of RocketMQ"), "{said}");
        assert!(said.contains("registerNameServerPeriod (line 2): 5000 is outside 10000 to 60000"), "{said}");
        assert!(!String::from_utf8(output.stdout).unwrap().contains("not a key"));
    }
}

#[test]
fn broker_and_name_server_run_apart_and_log_json() {
    let folder = tempfile::tempdir().unwrap();
    let names = Running::start(&mut gantry(&["namesrv", "--set", "listenPort=0"]));
    let conf = folder.path().join("broker.conf");
    let root = folder.path().join("store");
    std::fs::write(
        &conf,
        format!("brokerIP1=localhost\nlistenPort=0\nstorePathRootDir={}\nunheardOf=1\n", root.display()),
    )
    .unwrap();
    let broker = Running::start(&mut gantry(&[
        "broker",
        "-c",
        conf.to_str().unwrap(),
        "-n",
        names.address("namesrv"),
        "--log-format",
        "json",
    ]));
    assert!(broker.ready.starts_with("gantry: ready broker=localhost:"), "{}", broker.ready);
    let (code, said) = broker.end("-TERM");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.lines().all(|line| line.starts_with('{') && line.ends_with('}')), "{said}");
    assert!(said.contains("unheardOf (line 4): not a key of RocketMQ"), "{said}");
    assert!(said.contains("without access control"), "{said}");
    assert!(root.join("commitlog").exists());
    assert_eq!(names.end("-INT").0, Some(0));
}

#[test]
fn a_service_manager_is_told_when_the_server_is_ready_and_when_it_stops() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let heard = || {
        let mut said = [0; 64];
        let count = manager.recv(&mut said).unwrap();
        String::from_utf8(said[..count].to_vec()).unwrap()
    };
    let data = folder.path().join("data");
    let arguments = ["server", "--data", data.to_str().unwrap(), "--namesrv-port", "0", "--broker-port", "0"];
    let running = Running::start(gantry(&arguments).env("NOTIFY_SOCKET", &path));
    assert_eq!(heard(), "READY=1");
    let (code, said) = running.end("-TERM");
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(heard(), "STOPPING=1");
}
