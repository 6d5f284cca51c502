//! A set: a name server, and brokers of one name, each a process with a folder of its own.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use client::{Client, ClientConfig};
use protocol::code::request;
use protocol::request::GetAllTopicConfig;

use crate::support::asking::Asking;
use crate::support::{PATIENCE, Running, gantry};

/// Files of the log are small, so that a copy has several.
pub const SEGMENT: u64 = 4 << 20;
pub const TOPIC: &str = "ledger";
pub const QUEUES: i32 = 4;

/// The folder of a broker, whichever process has it.
pub struct Node {
    folder: PathBuf,
}

impl Node {
    pub fn new(folder: &Path, name: &str) -> Node {
        let folder = folder.join(name);
        std::fs::create_dir_all(&folder).unwrap();
        Node { folder }
    }

    pub fn store(&self) -> PathBuf {
        self.folder.join("store")
    }

    /// Starts it with these lines behind those that all have.
    pub fn start(&self, names: &str, lines: &[&str]) -> Running {
        let file = self.folder.join("broker.conf");
        let mut text = format!(
            "brokerName=broker-a\nbrokerIP1=127.0.0.1\nbindAddress=127.0.0.1\nlistenPort=0\nmemoryLimit=256M\nmappedFileSizeCommitLog={SEGMENT}\n\
             storePathRootDir={}\n",
            self.store().display()
        );
        for line in lines {
            text.push_str(line);
            text.push('\n');
        }
        std::fs::write(&file, text).unwrap();
        Running::start(&mut gantry(&["broker", "-c", file.to_str().unwrap(), "-n", names]))
    }

    /// `gantry store verify` finds nothing.
    pub fn is_sound(&self) {
        let file = self.folder.join("broker.conf");
        let ran = gantry(&["store", "verify", "-c", file.to_str().unwrap()]).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{}: {said}", self.folder.display());
    }
}

/// A master and a slave, and their name server.
pub struct Set {
    pub folder: tempfile::TempDir,
    pub names: Running,
    pub first: Node,
    pub second: Node,
    pub master: Running,
    pub slave: Running,
}

pub const SLAVE: [&str; 3] = ["brokerRole=SLAVE", "brokerId=1", "slaveReadEnable=true"];

pub fn names(folder: &Path) -> Running {
    let file = folder.join("namesrv.conf");
    let text = format!("listenPort=0\nbindAddress=127.0.0.1\nkvConfigPath={}\n", folder.join("kv.json").display());
    std::fs::write(&file, text).unwrap();
    Running::start(&mut gantry(&["namesrv", "-c", file.to_str().unwrap()]))
}

impl Set {
    /// Both are up, and the slave has the topic and the log.
    pub async fn start(master_lines: &[&str]) -> Set {
        let folder = tempfile::tempdir().unwrap();
        let names = names(folder.path());
        let (first, second) = (Node::new(folder.path(), "first"), Node::new(folder.path(), "second"));
        let at = names.address("namesrv");
        let master = first.start(at, master_lines);
        let asking = Asking::of(&master);
        assert_eq!(asking.create(TOPIC, QUEUES, "").await.code, 0);
        let slave = second.start(at, &SLAVE);
        until_known(&Asking::of(&slave), TOPIC).await;
        until_same_end(&asking, &Asking::of(&slave)).await;
        Set { folder, names, first, second, master, slave }
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn names(&self) -> &str {
        self.names.address("namesrv")
    }

    /// Kills the master, makes one of the slave by hand, and says when a client that asks the name server has its first message acknowledged.
    /// The folder stays as long as what is returned.
    pub async fn promote(self) -> (Asking, Duration, impl Drop) {
        let Set { folder, names, first, second, master, slave } = self;
        let began = Instant::now();
        assert_eq!(master.end("-KILL").0, None);
        assert_eq!(slave.end("-TERM").0, Some(0));
        let master = second.start(names.address("namesrv"), &["brokerRole=ASYNC_MASTER"]);
        let client = Client::start(ClientConfig::new(names.address("namesrv")));
        let asking = Asking::of(&master);
        let deadline = began + PATIENCE;
        loop {
            let route = client.admin().route(TOPIC).await;
            let is_led_there = route.is_ok_and(|route| {
                let addresses = route.broker_datas.iter().flat_map(|data| data.broker_addrs.get(&0));
                addresses.into_iter().any(|address| *address == asking.broker)
            });
            if is_led_there && asking.send(TOPIC, 0, "", crate::ledger::PROBE).await.is_ok_and(|sent| sent.code == 0) {
                break;
            }
            assert!(Instant::now() < deadline, "no client is led to the new master");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let rto = began.elapsed();
        client.stop().await;
        (asking, rto, Kept((folder, names, first, second, master)))
    }
}

struct Kept<T>(#[allow(dead_code, reason = "held")] T);

impl<T> Drop for Kept<T> {
    fn drop(&mut self) {}
}

/// Waits until the broker has the topic in its table.
pub async fn until_known(asking: &Asking, topic: &str) {
    let fields = GetAllTopicConfig { topic_seq: None, data_version: None, max_topic_num: None };
    crate::support::until("the slave knows the topic", async || {
        let call = asking.client.call(&asking.broker, request::GET_ALL_TOPIC_CONFIG, &fields, Bytes::new(), PATIENCE);
        call.await.is_ok_and(|answer| String::from_utf8_lossy(&answer.body).contains(&format!("\"{topic}\"")))
    })
    .await;
}

pub async fn end_of(asking: &Asking) -> u64 {
    asking.figure("commitLogMaxOffset").await
}

/// The same of a broker that may be away for a moment: a slave whose log is to begin elsewhere opens its store anew.
pub async fn try_end_of(asking: &Asking) -> Option<u64> {
    let call = asking.client.call(&asking.broker, request::GET_BROKER_RUNTIME_INFO, &(), Bytes::new(), PATIENCE);
    let answer = call.await.ok()?;
    let status: serde_json::Value = serde_json::from_slice(&answer.body).ok()?;
    status["table"]["commitLogMaxOffset"].as_str()?.parse().ok()
}

/// Waits until the slave's log ends where the master's does.
pub async fn until_same_end(master: &Asking, slave: &Asking) {
    crate::support::until("the slave has the log", async || end_of(master).await == end_of(slave).await).await;
}

/// Waits until the slave says why it does not follow, with these words.
pub async fn until_refused(slave: &Asking, words: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let said = slave.status("masterFailure").await.unwrap_or_default();
        if said.contains(words) {
            return;
        }
        assert!(Instant::now() < deadline, "nothing about {words:?}: {said:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Changes settings of a broker that runs, a `key=value` a line.
pub async fn set(asking: &Asking, lines: &str) {
    let body = Bytes::copy_from_slice(lines.as_bytes());
    let answer = asking.client.call(&asking.broker, request::UPDATE_BROKER_CONFIG, &(), body, PATIENCE).await.unwrap();
    assert_eq!(answer.code, 0, "{lines}: {:?}", answer.remark);
}

/// Sends a signal, and waits until a stop has come to all threads.
pub fn signal(running: &Running, signal: &str) {
    let id = running.pid().to_string();
    assert!(std::process::Command::new("kill").args([signal, &id]).status().unwrap().success());
    let deadline = Instant::now() + PATIENCE;
    while signal == "-STOP" && !is_stopped(running.pid()) {
        assert!(Instant::now() < deadline, "{id} goes on");
        std::thread::yield_now();
    }
}

fn is_stopped(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.flatten().all(|task| {
        std::fs::read_to_string(task.path().join("stat"))
            .is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')))
    })
}

/// The files of the log, by their names.
pub fn log_files(store: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> =
        std::fs::read_dir(store.join("commitlog")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.file_name().unwrap().len() == 20);
    files.sort();
    files
}

/// Both logs are the same below `end`, byte for byte.
pub fn same_bytes(one: &Path, other: &Path, end: u64) {
    let mut compared = 0;
    for file in log_files(one) {
        let base: u64 = file.file_name().unwrap().to_str().unwrap().parse().unwrap();
        if base >= end {
            continue;
        }
        let bytes = (end - base).min(SEGMENT) as usize;
        let [here, there] =
            [&file, &other.join("commitlog").join(file.file_name().unwrap())].map(|file| std::fs::read(file).unwrap());
        assert!(here[..bytes] == there[..bytes], "{} differs", file.display());
        compared += bytes as u64;
    }
    assert_eq!(compared, end, "not all of the log was compared");
}
