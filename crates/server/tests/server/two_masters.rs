//! Two masters behind one name server: they take their shares of a load, and a consumer of both hears of each in time.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::{PATIENCE, Running, gantry};
use bench::{RunResult, Tally};
use client::{Admin, Client, ClientConfig, ConsumeFromWhere, Message, MessageQueue, Outcome, PushConfig, Received};
use protocol::body::{TopicConfigTable, TopicStatsTable};
use protocol::code::request;
use protocol::request::{CreateTopic, GetAllTopicConfig, GetTopicStats};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

/// Longer than anybody here has patience: a pull that is not answered when something comes fails the test.
const HOLD: Duration = Duration::from_secs(300);

const MASTERS: [&str; 2] = ["broker-a", "broker-b"];

/// A name server with one master in its process, and another master.
struct Pair {
    folder: tempfile::TempDir,
    first: Running,
    second: Running,
}

impl Pair {
    fn start() -> Pair {
        let folder = tempfile::tempdir().unwrap();
        let [a, b] = MASTERS.map(|name| {
            let root = folder.path().join(name);
            let file = folder.path().join(format!("{name}.conf"));
            let text =
                format!("brokerName={name}\nbrokerIP1=127.0.0.1\nlistenPort=0\nstorePathRootDir={}\n", root.display());
            std::fs::write(&file, text).unwrap();
            file.to_str().unwrap().to_owned()
        });
        let first = Running::server_with(&folder.path().join("data"), &["-c", &a]);
        let second = Running::start(&mut gantry(&["broker", "-c", &b, "-n", first.address("namesrv")]));
        first.until_logged("broker=\"broker-b\"");
        Pair { folder, first, second }
    }

    fn names(&self) -> &str {
        self.first.address("namesrv")
    }

    fn addresses(&self) -> [&str; 2] {
        [&self.first, &self.second].map(|running| running.address("broker"))
    }

    /// A load of `gantry bench`, by keys and values, that has to succeed. Its topics stay.
    fn load(&self, values: &[&str]) -> RunResult {
        let json = self.folder.path().join("result.json");
        let mut words = vec!["bench", "run", "-n", self.names(), "--quiet", "--check", "--keep-topics", "--json"];
        words.push(json.to_str().unwrap());
        words.extend(values.iter().flat_map(|value| ["--set", value]));
        let ran = gantry(&words).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{values:?}: {said}");
        RunResult::read(&json).unwrap().remove(0)
    }

    /// Makes a topic with two queues at each master.
    async fn create_topic(&self, client: &Client, topic: &str) {
        let fields = CreateTopic {
            topic,
            default_topic: Some(protocol::names::AUTO_CREATE_TOPIC),
            read_queue_nums: 2,
            write_queue_nums: 2,
            perm: 6,
            topic_filter_type: "SINGLE_TAG",
            topic_sys_flag: Some(0),
            order: false,
            attributes: None,
            force: false,
        };
        for address in self.addresses() {
            client.admin().tell(address, request::UPDATE_AND_CREATE_TOPIC, &fields).await.unwrap();
        }
        // Without the client's own memory, which keeps what it saw first for half a minute.
        let admin = client.admin();
        let has_all = async || admin.route(topic).await.is_ok_and(|route| route.queue_datas.len() == 2);
        let deadline = Instant::now() + PATIENCE;
        while !has_all().await {
            assert!(Instant::now() < deadline, "{topic} is not at both masters");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn end(self) {
        self.second.end("-TERM");
        self.first.end("-TERM");
    }
}

fn is_all_there(tally: &Tally, sent: u64) {
    assert_eq!(*tally, Tally { sent, acknowledged: sent, received: sent, ..Tally::default() });
}

/// Messages of each queue of the topics of loads, at one master.
async fn stored(admin: &Admin, address: &str) -> Vec<i64> {
    let fields = GetAllTopicConfig { topic_seq: None, data_version: None, max_topic_num: None };
    let table: TopicConfigTable = admin.ask(address, request::GET_ALL_TOPIC_CONFIG, &fields).await.unwrap();
    let mut all = Vec::new();
    for topic in table.topic_config_table.keys().filter(|topic| topic.starts_with("bench-")) {
        let stats: TopicStatsTable =
            admin.ask(address, request::GET_TOPIC_STATS_INFO, &GetTopicStats { topic }).await.unwrap();
        all.extend(stats.offset_table.values().map(|queue| queue.max_offset));
    }
    all
}

fn queue(topic: &str, broker: &str, queue_id: i32) -> MessageQueue {
    MessageQueue { topic: topic.to_owned(), broker_name: broker.to_owned(), queue_id }
}

/// What a message says, and which master it came from.
fn words(message: &Received) -> (String, String) {
    (message.broker_name.to_string(), String::from_utf8(message.body.to_vec()).unwrap())
}

#[test]
fn two_masters_behind_one_name_server_are_one_target() {
    let pair = Pair::start();
    for mode in ["consumeMode=pull", "consumeMode=push", "consumeMode=pop"] {
        let result = pair.load(&["messages=2000", "partitionsPerTopic=3", "consumerPerSubscription=2", mode]);
        assert_eq!((result.brokers, result.summary.stored), (2, Some(2000)), "{mode}");
        is_all_there(&result.summary.messages, 2000);
    }
    pair.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_of_more_and_more_threads_are_all_taken_and_each_master_has_its_half() {
    let pair = Pair::start();
    let client = Client::start(ClientConfig::new(pair.names()));
    let mut before = [0, 0];
    for (threads, consumers) in
        [("threads=32", "consumerPerSubscription=2"), ("threads=64", "consumerPerSubscription=1")]
    {
        // 600 batches, 100 for each of the six queues.
        let shape = ["messages=60000", "batchSize=100", "sendMode=sync", "partitionsPerTopic=3", "consumeMode=push"];
        let result = tokio::task::block_in_place(|| pair.load(&[&shape[..], &[threads, consumers]].concat()));
        assert_eq!((result.brokers, result.summary.stored), (2, Some(60_000)), "{threads}");
        is_all_there(&result.summary.messages, 60_000);
        for (address, before) in pair.addresses().into_iter().zip(&mut before) {
            let queues = stored(&client.admin(), address).await;
            let now = queues.iter().sum::<i64>();
            // A refreshed route may begin the round anew, so a batch more or less a queue is no wonder.
            assert!((29_700..=30_300).contains(&(now - *before)), "{threads}: {queues:?} at {address}");
            *before = now;
        }
    }
    client.stop().await;
    pair.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_hears_of_the_quiet_master_while_the_other_one_is_hot() {
    let pair = Pair::start();
    let client = Client::start(ClientConfig::new(pair.names()));
    pair.create_topic(&client, "T").await;
    let (say, mut heard) = mpsc::unbounded_channel();
    let config = PushConfig {
        from: ConsumeFromWhere::ConsumeFromFirstOffset,
        pull_wait: HOLD,
        batch: 32,
        rebalance_every: Duration::from_millis(200),
        ..PushConfig::new("g")
    };
    let handler = move |messages: Arc<[Received]>| {
        let told = messages.iter().all(|message| say.send(words(message)).is_ok());
        async move { if told { Outcome::Done } else { Outcome::Again { delay_level: 0 } } }
    };
    let consumer = client.push_consumer(config.subscribe("T", "*").unwrap(), handler).await.unwrap();
    let producer = client.producer("p");
    for (hot, quiet) in [(0, 1), (1, 0)].map(|(hot, quiet)| (MASTERS[hot], MASTERS[quiet])) {
        let is_over = Arc::new(AtomicBool::new(false));
        let mut senders = JoinSet::new();
        for sender in 0..8 {
            let (producer, is_over, at) = (producer.clone(), Arc::clone(&is_over), queue("T", hot, sender % 2));
            senders.spawn(async move {
                let mut sent = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let text = format!("{} {sender} {sent}", at.broker_name);
                    producer.send_to(&at, Message::new("T", text)).await.unwrap();
                    sent += 1;
                }
                (sender, sent)
            });
        }
        let (mut of_hot, mut longest) = (HashSet::new(), Duration::ZERO);
        let mut hears = async |of_hot: &mut HashSet<String>| {
            let (broker, text) = timeout(PATIENCE, heard.recv()).await.expect("a pull was not answered").unwrap();
            if broker == hot {
                assert!(of_hot.insert(text.clone()), "{text} came twice");
                None
            } else {
                Some(text)
            }
        };
        // Hot it is when something has come from there.
        assert_eq!(hears(&mut of_hot).await, None);
        let mut served = Vec::new();
        for probe in 0..100 {
            let (text, sent_at) = (format!("{quiet} probe {probe}"), Instant::now());
            producer.send_to(&queue("T", quiet, probe % 2), Message::new("T", text.clone())).await.unwrap();
            let told = loop {
                if let Some(told) = hears(&mut of_hot).await {
                    break told;
                }
            };
            assert_eq!(told, text);
            longest = longest.max(sent_at.elapsed());
            served.push(of_hot.len());
        }
        assert!(served[0] < served[99], "the hot master was not served meanwhile: {served:?}");
        is_over.store(true, Ordering::Relaxed);
        let mut expected = BTreeSet::new();
        for (sender, sent) in senders.join_all().await {
            expected.extend((0..sent).map(|number| format!("{hot} {sender} {number}")));
        }
        while of_hot.len() < expected.len() {
            assert_eq!(hears(&mut of_hot).await, None);
        }
        assert!(of_hot.iter().all(|text| expected.contains(text)));
        println!("{quiet} quiet: 100 messages heard in {longest:?} at most, beside {} of {hot}", served[99]);
    }
    consumer.stop().await;
    client.stop().await;
    pair.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_at_one_master_does_not_keep_a_consumer_from_the_other() {
    const BACKLOG: usize = 2_000;
    let pair = Pair::start();
    let client = Client::start(ClientConfig::new(pair.names()));
    pair.create_topic(&client, "T").await;
    let producer = client.producer("p");
    for number in 0..BACKLOG {
        let at = queue("T", MASTERS[0], i32::try_from(number % 2).unwrap());
        producer.send_to(&at, Message::new("T", format!("hot {number}"))).await.unwrap();
    }
    // Two handlers at once, and the test says when one is done with a message of the backlog.
    let (say, mut heard) = mpsc::unbounded_channel();
    let done = Arc::new(Semaphore::new(0));
    let config = PushConfig {
        from: ConsumeFromWhere::ConsumeFromFirstOffset,
        pull_wait: HOLD,
        concurrency: 2,
        ..PushConfig::new("g")
    };
    let handler = {
        let done = Arc::clone(&done);
        move |messages: Arc<[Received]>| {
            let (done, say) = (Arc::clone(&done), say.clone());
            async move {
                let (broker, text) = words(&messages[0]);
                if broker == MASTERS[0] {
                    done.acquire().await.unwrap().forget();
                }
                // The test is over, or listens.
                let _ = say.send((broker, text));
                Outcome::Done
            }
        }
    };
    let consumer = client.push_consumer(config.subscribe("T", "*").unwrap(), handler).await.unwrap();
    done.add_permits(1);
    let mut backlog = HashSet::new();
    let (broker, text) = timeout(PATIENCE, heard.recv()).await.unwrap().unwrap();
    assert!(broker == MASTERS[0] && backlog.insert(text));
    producer.send_to(&queue("T", MASTERS[1], 0), Message::new("T", "quiet")).await.unwrap();
    // All handlers are taken by the backlog, which goes on slowly. Whoever reads it to its end first comes to the other one after 20 s.
    loop {
        match timeout(Duration::from_millis(10), heard.recv()).await {
            Ok(told) => {
                let (broker, text) = told.unwrap();
                if broker == MASTERS[1] {
                    assert_eq!(text, "quiet");
                    break;
                }
                assert!(backlog.insert(text));
            }
            Err(_) => done.add_permits(1),
        }
        assert!(backlog.len() < BACKLOG, "the backlog came first");
    }
    done.add_permits(BACKLOG);
    while backlog.len() < BACKLOG {
        let (broker, text) = timeout(PATIENCE, heard.recv()).await.unwrap().unwrap();
        assert!(broker == MASTERS[0] && backlog.insert(text));
    }
    consumer.stop().await;
    client.stop().await;
    pair.end();
}
