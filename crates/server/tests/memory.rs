//! A limit of memory that holds, the short form of `bench/cage`: the binary in a cage of twice its limit, messages sent and consumed at the
//! rates that it is held to, and a reader of an older backlog beside them; once without a cage, and once with the limit that a cage gives a
//! broker to which nobody says one. Where no cage can be made, what the process and the pages of its
//! files occupy is looked at all the same, and a line says so. `--nocapture` shows the rates that were reached, `SHOW_MEMORY=1` how it
//! came to the most that was occupied, and `NO_CAGE=1` does without a cage.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail by panicking")]

mod support;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use net::{Client, ClientOptions};
use protocol::code::request;

use protocol::record::{self, Scanned};
use protocol::request::{GetMaxOffset, PullMessage, SendMessage};
use protocol::sys_flag::pull;
use support::cage::{Cage, Watch};
use support::prometheus::{ask, value};
use support::{PATIENCE, Running, gantry};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

const QUEUES: i32 = 16;

#[derive(Clone, Copy)]
struct Topic {
    name: &'static str,
    queues: i32,
    body: usize,
    /// A queue.
    messages: u64,
}

impl Topic {
    /// What was sent before.
    fn backlog(bytes: u64) -> Topic {
        Topic { name: "old", queues: 4, body: 16 << 10, messages: bytes / (16 << 10) / 4 }
    }

    /// So many messages a second for so many seconds.
    fn at_rate(body: usize, rate: u64, seconds: u64) -> Topic {
        Topic { name: "new", queues: QUEUES, body, messages: rate * seconds / QUEUES as u64 }
    }

    fn all(self) -> u64 {
        self.messages * self.queues as u64
    }

    /// Says whose it is, so that what is foreign or comes twice is found out.
    fn body(self, queue_id: i32, number: u64) -> Bytes {
        let mut body = format!("{} {queue_id} {number} ", self.name).into_bytes();
        body.resize(self.body, b'a' + (number % 26) as u8);
        body.into()
    }

    /// Sends to each queue in order, one after the other; of each queue a message is due every so often, as fast as it goes without.
    async fn write(self, broker: &str, every: Option<Duration>) {
        let client = Arc::new(Client::new(ClientOptions::default()));
        let mut producers = JoinSet::new();
        for queue_id in 0..self.queues {
            let (client, broker) = (Arc::clone(&client), broker.to_owned());
            producers.spawn(async move {
                let mut due = every.map(tokio::time::interval);
                // Who is late makes up for it.
                due.iter_mut().for_each(|due| due.set_missed_tick_behavior(MissedTickBehavior::Burst));
                for number in 0..self.messages {
                    if let Some(due) = &mut due {
                        due.tick().await;
                    }
                    self.send(&client, &broker, queue_id, number).await;
                }
            });
        }
        all_of(producers).await;
    }

    /// As producers do: what the broker has no room for, because the device is behind, is not stored, and is sent again.
    async fn send(self, client: &Client, broker: &str, queue_id: i32, number: u64) {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            let message = SendMessage {
                producer_group: "PG",
                topic: self.name,
                default_topic: "TBW102",
                default_topic_queue_nums: self.queues,
                queue_id,
                ..SendMessage::default()
            };
            let body = self.body(queue_id, number);
            let answer = client.call(broker, request::SEND_MESSAGE_V2, &message, body, PATIENCE).await.unwrap();
            match answer.code {
                0 => return,
                2 => println!("queue {queue_id}, message {number}, is sent again: {:?}", answer.remark),
                other => panic!("queue {queue_id}, message {number}: {other}, {:?}", answer.remark),
            }
        }
        panic!("queue {queue_id}, message {number}: there is never room");
    }

    /// Reads each queue from its first message to its last, waiting for those that do not yet exist, and looks at every byte.
    async fn read(self, broker: &str) {
        let client = Arc::new(Client::new(ClientOptions::default()));
        let mut consumers = JoinSet::new();
        for queue_id in 0..self.queues {
            let (client, broker) = (Arc::clone(&client), broker.to_owned());
            consumers.spawn(async move {
                let mut number = 0;
                while number < self.messages {
                    let mut pull = PullMessage::at("CG", self.name, queue_id, number as i64);
                    pull.sys_flag |= pull::SUSPEND;
                    pull.suspend_timeout_millis = 5_000;
                    let found =
                        client.call(&broker, request::PULL_MESSAGE, &pull, Bytes::new(), PATIENCE).await.unwrap();
                    // The topic comes into being with its first message; the others: nothing yet, and look again.
                    match found.code {
                        0 => number += self.check(queue_id, number, &found.body),
                        17 => tokio::time::sleep(Duration::from_millis(10)).await,
                        19 | 20 => {}
                        other => panic!("{number} of {}: {other}, {:?}", self.messages, found.remark),
                    }
                }
                assert_eq!(number, self.messages);
                // Or a message would be there twice, behind the last.
                let end = GetMaxOffset { topic: self.name, queue_id, committed: true };
                let end = client.call(&broker, request::GET_MAX_OFFSET, &end, Bytes::new(), PATIENCE).await.unwrap();
                assert_eq!(end.fields.get("offset"), Some(self.messages.to_string().as_str()));
            });
        }
        all_of(consumers).await;
    }

    /// How many records these are, each the next one.
    fn check(self, queue_id: i32, first: u64, mut records: &[u8]) -> u64 {
        let mut number = first;
        while !records.is_empty() {
            let Scanned::Record(view) = record::scan(records, true).unwrap() else { panic!("not a record") };
            assert_eq!(view.body(), &self.body(queue_id, number)[..], "queue {queue_id}, message {number}");
            number += 1;
            records = &records[view.total_size()..];
        }
        number - first
    }
}

async fn all_of(mut tasks: JoinSet<()>) {
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

/// Messages of the rate are sent and consumed while the backlog is read from its beginning, again and again. Returns what was reached.
///
/// The rate is shown and not asserted: beside other work on the machine it is a matter of chance.
async fn load(broker: &str, backlog: Topic, topic: Topic, rate: u64) -> String {
    let every = Duration::from_secs(QUEUES as u64).div_f64(rate as f64);
    let is_over = AtomicBool::new(false);
    let beside = async {
        let mut passes = 0;
        while !is_over.load(Ordering::Relaxed) {
            backlog.read(broker).await;
            passes += 1;
        }
        passes
    };
    let began = Instant::now();
    let both = async {
        tokio::join!(topic.write(broker, Some(every)), topic.read(broker));
        is_over.store(true, Ordering::Relaxed);
        began.elapsed()
    };
    let (took, passes) = tokio::join!(both, beside);
    let reached = topic.all() as f64 / took.as_secs_f64();
    format!("{reached:.0} of {rate} messages a second sent and consumed, a backlog read {passes} times beside them")
}

/// What is run, and within which limit.
struct Case {
    /// Bytes of the cage, if there is to be one.
    cage: Option<u64>,
    /// In bytes; none: nobody says one.
    limit: Option<u64>,
    backlog: Topic,
    topic: Topic,
    rate: u64,
}

impl Case {
    fn start(&self, cage: Option<&Cage>, data: &Path) -> Running {
        let limit = self.limit.map(|limit| format!("memoryLimit={limit}"));
        let settings = ["mappedFileSizeCommitLog=268435456", "defaultTopicQueueNums=16", "metricsExporterType=PROM"];
        let settings = settings.into_iter().chain(["metricsPromExporterPort=0"]).chain(limit.as_deref());
        let mut arguments =
            vec!["server", "--data", data.to_str().unwrap(), "--namesrv-port", "0", "--broker-port", "0"];
        arguments.extend(settings.flat_map(|setting| ["--set", setting]));
        let mut inside = gantry(&arguments);
        match cage {
            Some(cage) => Running::start(&mut cage.around(&inside)),
            None => Running::start(&mut inside),
        }
    }

    /// A backlog, the load beside its reader, a kill, and all that was sent once more.
    fn holds(&self) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        // On a disk: what is written to a file system in memory cannot be given back.
        let data = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let cage = self.cage.and_then(Cage::make).map(Arc::new);
        // Of a cage three quarters are taken where nobody says anything.
        let found = cage.as_ref().and(self.cage).map(|bytes| bytes / 100 * 75);
        let Some(limit) = self.limit.or(found) else {
            println!("not looked at: no cage can be made");
            return;
        };
        let watch = Watch::begin(cage.clone(), data.path().join("store"));
        let mut stages = Vec::new();
        let mut stage = |name: &str| {
            let (caged, counted) = watch.most();
            stages.push(format!("{name}: cage {} KiB, counted {} KiB", caged >> 10, counted >> 10));
        };

        let running = self.start(cage.as_deref(), data.path());
        watch.watch(running.pid());
        let page = || ask(metrics_port(&running), "GET /metrics").1;
        assert_eq!(value(&page(), "gantry_memory_limit_bytes{", ""), limit as f64);
        let broker = running.address("broker").to_owned();
        let waits = || value(&page(), "gantry_major_faults_total{", "threads=\"network\"");
        let before = waits();
        runtime.block_on(self.backlog.write(&broker, None));
        // Pages of the program itself, which others may have driven out, are among them.
        assert!(waits() - before < 10.0, "appends waited {} times for the device", waits() - before);
        stage("backlog written");
        let reached = runtime.block_on(load(&broker, self.backlog, self.topic, self.rate));
        println!("the threads that append waited {} times for the device in all", waits());
        stage("load");
        let (code, _) = running.end("-KILL");
        assert_eq!(code, None);
        let running = self.start(cage.as_deref(), data.path());
        watch.watch(running.pid());
        stage("recovered");
        let broker = running.address("broker").to_owned();
        runtime.block_on(self.topic.read(&broker));
        stage("read again");
        let (code, said) = running.end("-TERM");
        assert_eq!(code, Some(0), "{said}");

        let (caged, counted) = watch.most();
        let (stages, most) = (stages.join("\n"), limit + limit / 20);
        let looked_at = if cage.is_some() { "in a cage, and" } else { "without a cage," };
        println!(
            "memoryLimit {} MiB, {looked_at} by VmRSS and resident pages of its files: {reached}; at most {} MiB in the cage, {} MiB counted",
            limit >> 20,
            caged >> 20,
            counted >> 20
        );
        assert!(counted <= most, "{counted} bytes were occupied, the limit is {limit}\n{stages}\n{said}");
        if let Some(cage) = cage {
            assert_eq!((cage.killed(), cage.failed()), (0, 0), "killed, and did not get memory at once\n{stages}");
            assert!(caged <= most, "{caged} bytes were charged, the limit is {limit}\n{stages}");
        }
    }
}

fn metrics_port(running: &Running) -> u16 {
    running.until_logged("metrics are served at /metrics");
    let line = running.log_line("metrics are served at /metrics").unwrap();
    line.rsplit_once(':').unwrap().1.parse().unwrap()
}

/// One case after the other: beside each other they would take the processors from each other.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The backlog is twenty times the smaller limit, ten times the larger.
#[test]
fn promised_rates_beside_a_reader_of_an_older_backlog_stay_within_the_limit() {
    let _turn = turn();
    let backlog = Topic::backlog(1280 << 20);
    let case = |cage, body, rate, seconds| Case {
        cage: Some(cage),
        limit: Some(cage / 2),
        backlog,
        topic: Topic::at_rate(body, rate, seconds),
        rate,
    };
    case(128 << 20, 1 << 10, 10_000, 9).holds();
    case(256 << 20, 4 << 10, 7_000, 6).holds();
}

/// The kernel does nothing for it here.
#[test]
fn a_broker_without_a_cage_stays_within_its_limit() {
    let _turn = turn();
    let (limit, rate) = (96 << 20, 5_000);
    let (backlog, topic) = (Topic::backlog(640 << 20), Topic::at_rate(2 << 10, rate, 5));
    Case { cage: None, limit: Some(limit), backlog, topic, rate }.holds();
}

/// Three quarters of the cage, and what the kernel charges besides fits into the rest.
#[test]
fn a_broker_to_which_nobody_says_a_limit_stays_within_the_cage() {
    let _turn = turn();
    let (cage, rate) = (200 << 20, 5_000);
    let (backlog, topic) = (Topic::backlog(640 << 20), Topic::at_rate(2 << 10, rate, 5));
    Case { cage: Some(cage), limit: None, backlog, topic, rate }.holds();
}
