//! A limit of memory that holds: the binary in a cage of twice that, a log of more than ten times that, and a consumer that starts with
//! the first message. Where no cage can be made, what the process and the pages of its files occupy is looked at all the same.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail by panicking")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use net::{Client, ClientOptions};
use protocol::code::request;
use protocol::record::{self, Scanned};
use protocol::request::{PullMessage, SendMessage};
use support::{PATIENCE, Running, gantry};

const LIMIT: u64 = 64 << 20;
const CAGE: u64 = 2 * LIMIT;
/// What a limit may be overstepped by: 5 %.
const MOST: u64 = LIMIT + LIMIT / 20;
const TOPIC: &str = "flood";
const QUEUES: i32 = 4;
const BODY: usize = 16 << 10;
/// A queue.
const MESSAGES: u64 = 10 * LIMIT / BODY as u64 / QUEUES as u64 + 1;

/// A memory cgroup of our own, below the one that we are in.
struct Cage {
    dir: PathBuf,
    is_second: bool,
}

impl Cage {
    /// None where we may not make one.
    fn make() -> Option<Cage> {
        let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
        groups.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, group) = (parts.next()?, parts.next()?);
            let (root, file) = match controllers {
                "" => (Path::new("/sys/fs/cgroup").to_owned(), "memory.max"),
                _ if controllers.split(',').any(|name| name == "memory") => {
                    (Path::new("/sys/fs/cgroup/memory").to_owned(), "memory.limit_in_bytes")
                }
                _ => return None,
            };
            let dir = root.join(group.trim_start_matches('/')).join(format!("gantry-test-{}", std::process::id()));
            fs::create_dir(&dir).ok()?;
            let cage = Cage { dir, is_second: controllers.is_empty() };
            // Of version 2 the controller may not be there below.
            fs::write(cage.dir.join(file), CAGE.to_string()).ok()?;
            Some(cage)
        })
    }

    fn number(&self, file: &str) -> u64 {
        fs::read_to_string(self.dir.join(file)).unwrap().trim().parse().unwrap()
    }

    fn used(&self) -> u64 {
        self.number(if self.is_second { "memory.current" } else { "memory.usage_in_bytes" })
    }

    /// How often somebody in it did not get memory at once.
    fn failed(&self) -> u64 {
        if !self.is_second {
            return self.number("memory.failcnt");
        }
        let events = fs::read_to_string(self.dir.join("memory.events")).unwrap();
        events.lines().filter_map(|line| line.strip_prefix("max ")).map(|count| count.parse::<u64>().unwrap()).sum()
    }
}

impl Drop for Cage {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.dir);
    }
}

/// Looks all the time at what is occupied, and remembers the most.
struct Watch {
    pid: Arc<AtomicU32>,
    is_over: Arc<AtomicBool>,
    caged: Arc<AtomicU64>,
    counted: Arc<AtomicU64>,
    looking: Option<JoinHandle<()>>,
}

impl Watch {
    fn begin(cage: Option<Arc<Cage>>, store: PathBuf) -> Watch {
        let (pid, is_over) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let (caged, counted) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let looking = {
            let (pid, is_over, caged, counted) =
                (Arc::clone(&pid), Arc::clone(&is_over), Arc::clone(&caged), Arc::clone(&counted));
            std::thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    if let Some(cage) = &cage {
                        caged.fetch_max(cage.used(), Ordering::Relaxed);
                    }
                    let own = resident(pid.load(Ordering::Relaxed));
                    // Removed while it is looked at.
                    let files = store::resident_below(&store).unwrap_or(0);
                    let before = counted.fetch_max(own + files, Ordering::Relaxed);
                    if own + files > before && std::env::var("SHOW_MEMORY").is_ok() {
                        println!("own {} KiB, files {} KiB", own >> 10, files >> 10);
                    }
                    std::thread::park_timeout(Duration::from_millis(20));
                }
            })
        };
        Watch { pid, is_over, caged, counted, looking: Some(looking) }
    }

    fn watch(&self, pid: u32) {
        self.pid.store(pid, Ordering::Relaxed);
    }

    /// The most that the cage held, and that was counted.
    fn end(mut self) -> (u64, u64) {
        self.stop();
        (self.caged.load(Ordering::Relaxed), self.counted.load(Ordering::Relaxed))
    }
}

impl Watch {
    fn stop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(looking) = self.looking.take() {
            looking.join().unwrap();
        }
    }
}

impl Drop for Watch {
    /// Or the cage would stay for ever.
    fn drop(&mut self) {
        self.stop();
    }
}

/// `VmRSS`; 0 if the process is gone.
fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.map_or(0, |rest| rest.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10)
}

fn start(cage: Option<&Cage>, data: &Path) -> Running {
    let limit = format!("memoryLimit={LIMIT}");
    let arguments = ["server", "--data", data.to_str().unwrap(), "--namesrv-port", "0", "--broker-port", "0"];
    let settings = ["--set", &limit, "--set", "mappedFileSizeCommitLog=268435456"];
    let inside = gantry(&[&arguments[..], &settings[..]].concat());
    let Some(cage) = cage else { return Running::start(&mut { inside }) };
    // Whoever begins inside has all of his memory charged there.
    let mut command = Command::new("sh");
    command.args(["-c", "echo $$ > \"$0\"/cgroup.procs && exec \"$@\""]).arg(&cage.dir);
    command.arg(inside.get_program()).args(inside.get_args());
    command.env_remove("NAMESRV_ADDR").env_remove("ROCKETMQ_HOME").env("RUST_LOG", "info");
    Running::start(&mut command)
}

fn body(queue_id: i32, number: u64) -> Bytes {
    let mut body = format!("{queue_id} {number} ").into_bytes();
    body.resize(BODY, b'a' + (number % 26) as u8);
    body.into()
}

/// Sends to each queue in order, one after the other.
async fn write(broker: &str) {
    let mut producers = tokio::task::JoinSet::new();
    for queue_id in 0..QUEUES {
        let broker = broker.to_owned();
        producers.spawn(async move {
            let client = Client::new(ClientOptions::default());
            for number in 0..MESSAGES {
                let message = SendMessage {
                    producer_group: "PG",
                    topic: TOPIC,
                    default_topic: "TBW102",
                    default_topic_queue_nums: QUEUES,
                    queue_id,
                    ..SendMessage::default()
                };
                let body = body(queue_id, number);
                let answer = client.call(&broker, request::SEND_MESSAGE_V2, &message, body, PATIENCE).await.unwrap();
                assert_eq!(answer.code, 0, "{:?}", answer.remark);
            }
        });
    }
    while let Some(done) = producers.join_next().await {
        done.unwrap();
    }
}

/// Reads each queue from its first message to its last, and looks at every byte.
async fn read(broker: &str) {
    let mut consumers = tokio::task::JoinSet::new();
    for queue_id in 0..QUEUES {
        let broker = broker.to_owned();
        consumers.spawn(async move {
            let client = Client::new(ClientOptions::default());
            let mut number = 0;
            while number < MESSAGES {
                let pull = PullMessage::at("CG", TOPIC, queue_id, number as i64);
                let found = client.call(&broker, request::PULL_MESSAGE, &pull, Bytes::new(), PATIENCE).await.unwrap();
                assert_eq!(found.code, 0, "{number} of {MESSAGES}: {:?}", found.remark);
                let mut rest: &[u8] = &found.body;
                while !rest.is_empty() {
                    let Scanned::Record(view) = record::scan(rest, true).unwrap() else { panic!("not a record") };
                    assert_eq!(view.body(), &body(queue_id, number)[..], "queue {queue_id}, message {number}");
                    number += 1;
                    rest = &rest[view.total_size()..];
                }
            }
            assert_eq!(number, MESSAGES);
        });
    }
    while let Some(done) = consumers.join_next().await {
        done.unwrap();
    }
}

/// `SHOW_MEMORY=1` and `--nocapture` show how it came to the most.
#[test]
fn ten_times_its_memory_is_written_read_and_recovered_within_the_limit() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    // On a disk: what is written to a file system in memory cannot be given back.
    let data = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let cage = Cage::make().map(Arc::new);
    let watch = Watch::begin(cage.clone(), data.path().join("store"));
    let mut stages = Vec::new();

    let running = start(cage.as_deref(), data.path());
    watch.watch(running.pid());
    let broker = running.address("broker").to_owned();
    let mut stage = |name: &str| {
        let most = (watch.caged.load(Ordering::Relaxed), watch.counted.load(Ordering::Relaxed));
        stages.push(format!("{name}: cage {} KiB, counted {} KiB", most.0 >> 10, most.1 >> 10));
    };
    runtime.block_on(write(&broker));
    stage("written");
    runtime.block_on(read(&broker));
    stage("read");
    // Whatever the next one has to read, it reads again.
    let (code, _) = running.end("-KILL");
    assert_eq!(code, None);
    let running = start(cage.as_deref(), data.path());
    watch.watch(running.pid());
    stage("recovered");
    let broker = running.address("broker").to_owned();
    runtime.block_on(read(&broker));
    stage("read again");
    let (code, said) = running.end("-TERM");
    assert_eq!(code, Some(0), "{said}");

    let (caged, counted) = watch.end();
    let stages = stages.join("\n");
    assert!(counted <= MOST, "{counted} bytes were occupied, the limit is {LIMIT}\n{stages}\n{said}");
    if let Some(cage) = cage {
        assert_eq!(cage.failed(), 0, "somebody waited for memory\n{stages}");
        assert!(caged <= MOST, "{caged} bytes were charged, the limit is {LIMIT}\n{stages}");
    }
}
