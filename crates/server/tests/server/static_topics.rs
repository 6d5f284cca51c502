//! Static topics on two brokers, as our own client and our own tool see them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::support::{Running, gantry, until};
use client::{
    Client, ClientConfig, ConsumeFromWhere, Message, MessageQueue, Outcome, PullStatus, PushConfig, Received,
};

const LOGICAL: &str = "__syslo__global__";
const T: &str = "Fixed";

/// A name server and two brokers.
struct Cluster {
    first: Running,
    _second: Running,
    folders: [tempfile::TempDir; 2],
}

impl Cluster {
    async fn start() -> Cluster {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let write = |at: usize, text: String| {
            let file = folders[at].path().join("broker.conf");
            std::fs::write(&file, text).unwrap();
            file.to_str().unwrap().to_owned()
        };
        let file = write(0, "brokerName=broker-a\nbrokerIP1=127.0.0.1\n".to_owned());
        let first = Running::server_with(&folders[0].path().join("data"), &["-c", &file]);
        let root = folders[1].path().join("store");
        let settings =
            format!("brokerName=broker-b\nbrokerIP1=127.0.0.1\nlistenPort=0\nstorePathRootDir={}\n", root.display());
        let file = write(1, settings);
        let second = Running::start(&mut gantry(&["broker", "-c", &file, "-n", first.address("namesrv")]));
        let cluster = Cluster { first, _second: second, folders };
        let admin = cluster.client().admin();
        until("both brokers are registered", async || admin.cluster().await.unwrap().broker_addr_table.len() == 2)
            .await;
        cluster
    }

    fn names(&self) -> &str {
        self.first.address("namesrv")
    }

    fn client(&self) -> Client {
        Client::start(ClientConfig::new(self.names()))
    }

    /// Makes the topic with so many queues on the first broker, and waits until the name server says that it leads all of them: it hears of a
    /// new static topic from one broker after the other.
    async fn make(&self, client: &Client, queues: i32) {
        self.admin(&["updateStaticTopic", "-b", "broker-a", "-t", T, "-qn", &queues.to_string()]).await;
        until("the topic has its queues", async || {
            client.route(T).await.is_ok_and(|route| {
                route.writable == (0..queues).map(queue).collect::<Vec<_>>()
                    && route.writable.iter().all(|queue| route.broker_of(queue) == Some("broker-a"))
            })
        })
        .await;
    }

    /// What the tool prints.
    async fn admin(&self, words: &[&str]) -> String {
        let out = self.try_admin(words).await;
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success(), "{words:?}: {said}{}", String::from_utf8_lossy(&out.stderr));
        said
    }

    async fn try_admin(&self, words: &[&str]) -> std::process::Output {
        let command = [&["admin", "-n", self.names()], words].concat();
        // Files of the tool lie in the folder of this test.
        let folder = Path::new(self.folders[0].path()).to_owned();
        let command: Vec<String> = command.into_iter().map(str::to_owned).collect();
        let out = tokio::task::spawn_blocking(move || {
            let words: Vec<&str> = command.iter().map(String::as_str).collect();
            gantry(&words).env("TMPDIR", folder).output().unwrap()
        });
        out.await.unwrap()
    }
}

fn now_ms() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()
}

fn queue(queue_id: i32) -> MessageQueue {
    MessageQueue { topic: T.to_owned(), broker_name: LOGICAL.to_owned(), queue_id }
}

/// By queue: the numbers that came, in their order.
type Came = Arc<Mutex<BTreeMap<i32, Vec<usize>>>>;

fn note(came: &Came, message: &Received) {
    assert_eq!(&*message.broker_name, LOGICAL);
    let number = std::str::from_utf8(&message.body).unwrap().parse().unwrap();
    came.lock().unwrap().entry(message.queue_id).or_default().push(number);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_and_each_queue_keeps_its_order_while_all_queues_move_to_another_broker() {
    const QUEUES: i32 = 3;
    let cluster = Cluster::start().await;
    let client = cluster.client();
    cluster.make(&client, QUEUES).await;

    let came = Came::default();
    let heard = Arc::clone(&came);
    let handler = move |messages: Arc<[Received]>| {
        messages.iter().for_each(|message| note(&heard, message));
        async { Outcome::Done }
    };
    let config =
        PushConfig { is_orderly: true, from: ConsumeFromWhere::ConsumeFromFirstOffset, ..PushConfig::new("G") };
    let config = PushConfig { rebalance_every: Duration::from_secs(1), ..config }.subscribe(T, "*").unwrap();
    let consumer = cluster.client().push_consumer(config, handler).await.unwrap();

    let has_moved = Arc::new(AtomicBool::new(false));
    let mut senders = Vec::new();
    for queue_id in 0..QUEUES {
        let (producer, has_moved) = (client.producer("P"), Arc::clone(&has_moved));
        senders.push(tokio::spawn(async move {
            let (mut by, mut left) = (Vec::new(), 30);
            // Thirty before the move, and thirty after it.
            for number in 0.. {
                let sent = producer.send_to(&queue(queue_id), Message::new(T, number.to_string())).await.unwrap();
                assert_eq!(sent.queue, queue(queue_id));
                by.push(sent.broker_name);
                left -= i32::from(number < 30 || has_moved.load(Ordering::SeqCst));
                if left <= -30 {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            by
        }));
    }
    until("some have come", async || came.lock().unwrap().values().map(Vec::len).sum::<usize>() > 30).await;
    cluster.admin(&["remappingStaticTopic", "-b", "broker-b", "-t", T]).await;
    has_moved.store(true, Ordering::SeqCst);
    let mut counts = BTreeMap::new();
    for (queue_id, sender) in (0..).zip(senders) {
        let by = sender.await.unwrap();
        assert_eq!((by.first().unwrap().as_str(), by.last().unwrap().as_str()), ("broker-a", "broker-b"));
        counts.insert(queue_id, by.len());
    }
    let wanted: BTreeMap<i32, Vec<usize>> = counts.iter().map(|(id, count)| (*id, (0..*count).collect())).collect();
    until("all have come", async || {
        let came = came.lock().unwrap();
        wanted.iter().all(|(id, numbers)| came.get(id).is_some_and(|came| came.len() >= numbers.len()))
    })
    .await;
    assert_eq!(*came.lock().unwrap(), wanted);
    consumer.stop().await;

    let reader = client.pull_consumer("G");
    for queue in (0..QUEUES).map(queue) {
        let (begin, end) = (reader.min_offset(&queue).await.unwrap(), reader.max_offset(&queue).await.unwrap());
        assert_eq!((begin, end > 10_000), (0, true), "the second place begins at a round number");
        assert_eq!(reader.committed(&queue).await.unwrap(), Some(end), "what the consumer committed at its stop");
        assert_eq!(reader.offset_by_time(&queue, 0).await.unwrap(), 0);
        let (mut at, mut read) = (begin, Vec::new());
        while at < end {
            let pulled = reader.pull(&queue, at, 32, "*", Duration::ZERO).await.unwrap();
            assert!(matches!(pulled.status, PullStatus::Found | PullStatus::NothingMatched), "{pulled:?}");
            for message in &pulled.messages {
                assert!((at..pulled.next_offset).contains(&message.queue_offset), "{message:?}");
                read.push(std::str::from_utf8(&message.body).unwrap().parse::<usize>().unwrap());
            }
            at = pulled.next_offset;
        }
        assert_eq!(read, wanted[&queue.queue_id]);
    }
    let rewound = queue(0);
    reader.commit(&rewound, 5).await.unwrap();
    assert_eq!(reader.committed(&rewound).await.unwrap(), Some(5), "back in the first place, at the other broker");
    client.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_given_back_comes_again_from_whatever_broker_it_lies_on() {
    let cluster = Cluster::start().await;
    let client = cluster.client();
    cluster.make(&client, 1).await;
    client.producer("P").send(Message::new(T, "again")).await.unwrap();
    cluster.admin(&["remappingStaticTopic", "-b", "broker-b", "-t", T]).await;
    let tries = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&tries);
    let handler = move |messages: Arc<[Received]>| {
        noted.lock().unwrap().push((messages[0].topic.clone(), messages[0].reconsume_times));
        let is_first = messages[0].reconsume_times == 0;
        async move { if is_first { Outcome::Again { delay_level: 1 } } else { Outcome::Done } }
    };
    let config = PushConfig { from: ConsumeFromWhere::ConsumeFromFirstOffset, ..PushConfig::new("G") };
    let config = PushConfig { rebalance_every: Duration::from_secs(1), ..config }.subscribe(T, "*").unwrap();
    let consumer = cluster.client().push_consumer(config, handler).await.unwrap();
    until("it has come twice", async || tries.lock().unwrap().len() == 2).await;
    assert_eq!(*tries.lock().unwrap(), [(T.to_owned(), 0), (T.to_owned(), 1)]);
    consumer.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tool_shows_logical_queues_and_how_far_groups_are_in_them() {
    let cluster = Cluster::start().await;
    let client = cluster.client();
    cluster.make(&client, 1).await;
    let producer = client.producer("P");
    for body in ["a", "b", "c"] {
        producer.send(Message::new(T, body)).await.unwrap();
    }
    cluster.admin(&["remappingStaticTopic", "-b", "broker-b", "-t", T]).await;
    let sent = producer.send(Message::new(T, "d")).await.unwrap();
    assert_eq!((sent.broker_name.as_str(), sent.queue_offset), ("broker-b", 10_000));
    let group = client.pull_consumer("G");
    // A pull makes the group on the brokers that it reads from.
    group.pull(&queue(0), 0, 32, "*", Duration::ZERO).await.unwrap();
    group.commit(&queue(0), 2).await.unwrap();

    let route = cluster.admin(&["topicRoute", "-t", T]).await;
    assert!(route.contains("topicQueueMappingByBroker"), "{route}");
    let row = |said: &str| -> Vec<String> {
        let row =
            said.lines().find(|line| line.contains(LOGICAL)).unwrap_or_else(|| panic!("no logical queue: {said}"));
        row.split_whitespace().map(str::to_owned).collect()
    };
    let status = row(&cluster.admin(&["topicStatus", "-t", T]).await);
    assert_eq!(status[..4], [LOGICAL, "0", "0", "10001"]);
    let progress = cluster.admin(&["consumerProgress", "-g", "G", "-t", T]).await;
    assert_eq!(row(&progress)[..5], [T, LOGICAL, "0", "10001", "2"]);
    assert!(!progress.contains("broker-a"), "physical queues are not what the group reads: {progress}");
    let printed = cluster.admin(&["printMsg", "-t", T]).await;
    assert!(printed.contains("minOffset=0, maxOffset=10001"), "{printed}");
    // Offsets go to a group that is there.
    cluster.admin(&["updateSubGroup", "-c", "DefaultCluster", "-g", "Other"]).await;
    let cloned = cluster.admin(&["cloneGroupOffset", "-s", "G", "-d", "Other", "-t", T]).await;
    assert_eq!(row(&cloned)[..3], [LOGICAL, "0", "2"]);
    client.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tool_shows_how_far_a_group_is_behind_that_went_before_its_queue_moved() {
    let cluster = Cluster::start().await;
    let client = cluster.client();
    cluster.make(&client, 1).await;
    let producer = client.producer("P");
    producer.send(Message::new(T, "a")).await.unwrap();
    // A group that is pushed to makes its retry topic where it is, which is on the first broker only.
    cluster.admin(&["updateSubGroup", "-b", cluster.first.address("broker"), "-g", "G"]).await;
    cluster
        .admin(&["updateTopic", "-b", cluster.first.address("broker"), "-t", "%RETRY%G", "-r", "1", "-w", "1"])
        .await;
    client.pull_consumer("G").commit(&queue(0), 1).await.unwrap();
    cluster.admin(&["remappingStaticTopic", "-b", "broker-b", "-t", T]).await;
    producer.send(Message::new(T, "b")).await.unwrap();
    until("the retry topic is known", async || client.route("%RETRY%G").await.is_ok()).await;
    let said = cluster.admin(&["consumerProgress", "-g", "G"]).await;
    let row = said.lines().find(|line| line.contains(LOGICAL)).unwrap_or_else(|| panic!("no logical queue: {said}"));
    assert_eq!(row.split_whitespace().collect::<Vec<_>>()[..5], [T, LOGICAL, "0", "10001", "1"]);
    client.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_to_a_time_before_a_move_goes_back_into_the_place_of_that_time() {
    let cluster = Cluster::start().await;
    let client = cluster.client();
    cluster.make(&client, 1).await;
    let producer = client.producer("P");
    producer.send(Message::new(T, "a")).await.unwrap();
    let stored = now_ms();
    until("a millisecond is over", async || now_ms() > stored).await;
    let now = now_ms().to_string();
    producer.send(Message::new(T, "b")).await.unwrap();
    cluster.admin(&["remappingStaticTopic", "-b", "broker-b", "-t", T]).await;
    producer.send(Message::new(T, "c")).await.unwrap();
    cluster.admin(&["updateSubGroup", "-c", "DefaultCluster", "-g", "G"]).await;
    let group = client.pull_consumer("G");
    let second =
        cluster.client().admin().cluster().await.unwrap().broker_addr_table["broker-b"].broker_addrs[&0].clone();
    let ways: [&[&str]; 3] = [
        &["resetOffsetByTimeOld", "-g", "G", "-t", T, "-s", &now],
        &["resetOffsetByTime", "-g", "G", "-t", T, "-s", &now],
        &["resetOffsetByTime", "-g", "G", "-t", T, "-s", &now, "-b", &second, "-q", "0"],
    ];
    for way in ways {
        group.commit(&queue(0), 10_001).await.unwrap();
        let said = cluster.admin(way).await;
        assert_eq!(group.committed(&queue(0)).await.unwrap(), Some(1), "{said}");
    }
    let skipped = cluster.admin(&["skipAccumulatedMessage", "-g", "G", "-t", T]).await;
    assert_eq!(group.committed(&queue(0)).await.unwrap(), Some(10_001), "{skipped}");

    let config = PushConfig::new("G").subscribe(T, "*").unwrap();
    let consumer = cluster.client().push_consumer(config, |_: Arc<[Received]>| async { Outcome::Done }).await.unwrap();
    until("the group is known to have a consumer", async || {
        !cluster.try_admin(&["resetOffsetByTime", "-g", "G", "-t", T, "-s", &now]).await.status.success()
    })
    .await;
    consumer.stop().await;
    client.stop().await;
}
