//! `gantry admin switchMaster`: a master hands over and takes back under a producer, and one that was killed comes back as a slave without what
//! the new master does not have.

use std::collections::{BTreeMap, HashSet};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use client::{Client, ClientConfig, Message, MessageQueue};
use protocol::body::{KvTable, MemberState};
use protocol::code::{ResponseCode, request};
use protocol::request::{PullMessage, SendMessage};
use protocol::sys_flag::pull;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::support::{PATIENCE, Running, gantry, until};

const SET: &str = "set";

/// A broker of the set, which may be down.
struct Member {
    folder: PathBuf,
    file: PathBuf,
    address: String,
    running: Option<Running>,
}

impl Member {
    fn start(&mut self) {
        self.running = Some(Running::start(&mut gantry(&["broker", "-c", self.file.to_str().unwrap()])));
    }

    fn running(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    fn kill(&mut self) {
        let (_, _) = self.running.take().unwrap().end("-KILL");
    }

    /// The bytes of the log up to this offset.
    fn log(&self, end: usize) -> Vec<u8> {
        let mut files: Vec<PathBuf> = files_of(&self.folder.join("store/commitlog"));
        files.sort();
        let mut bytes: Vec<u8> = files.iter().flat_map(|file| std::fs::read(file).unwrap()).collect();
        bytes.truncate(end);
        bytes
    }
}

fn files_of(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files_of(&path)) } else { found.push(path) }
    }
    found
}

/// A name server, and the brokers of a set: the first is the master.
struct Set {
    folder: tempfile::TempDir,
    names: Running,
    client: Client,
    members: Vec<Member>,
}

/// A port whose neighbours are free: that of the VIP channel, and that for slaves, which a slave binds only when it becomes the master. So none that
/// the system gives to clients.
pub fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let bind = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    let first = std::process::id() % 3_000;
    loop {
        let place = (first + 7 * u32::from(NEXT.fetch_add(1, Ordering::Relaxed))) % 3_000;
        let port = 20_002 + 4 * u16::try_from(place).unwrap();
        if (port - 2..=port + 1).all(bind) {
            return port;
        }
    }
}

impl Set {
    fn start(more: &str, brokers: usize) -> Set {
        let folder = tempfile::tempdir().unwrap();
        let names = Running::start(&mut gantry(&["namesrv", "--port", "0"]));
        let members = (0..brokers).map(|id| {
            let folder = folder.path().join(id.to_string());
            std::fs::create_dir(&folder).unwrap();
            let (file, port) = (folder.join("broker.conf"), port());
            let role = if id == 0 { "ASYNC_MASTER" } else { "SLAVE" };
            let text = format!(
                "brokerName={SET}\nbrokerClusterName=C\nbrokerRole={role}\nbrokerId={id}\nlistenPort={port}\nbrokerIP1=127.0.0.1\n\
                 namesrvAddr={}\nstorePathRootDir={}\nmappedFileSizeCommitLog=1048576\n{more}",
                names.address("namesrv"),
                folder.join("store").display()
            );
            std::fs::write(&file, text).unwrap();
            let mut member = Member { folder, file, address: format!("127.0.0.1:{port}"), running: None };
            member.start();
            member
        });
        let members = members.collect();
        let client = Client::start(ClientConfig::new(names.address("namesrv")));
        Set { folder, names, client, members }
    }

    async fn state(&self, member: usize) -> Option<MemberState> {
        let address = &self.members[member].address;
        self.client.admin().ask(address, request::GET_MEMBER_STATE, &()).await.ok()
    }

    /// Waits until a slave has all that the master has. Says where their logs end.
    async fn until_equal(&self, master: usize, slave: usize) -> usize {
        let mut end = 0;
        until("the slave has what the master has", async || {
            let (Some(of), Some(copy)) = (self.state(master).await, self.state(slave).await) else { return false };
            end = usize::try_from(of.log_end).unwrap();
            of.broker_role != "SLAVE" && copy.broker_role == "SLAVE" && copy.is_following && of.log_end == copy.log_end
        })
        .await;
        end
    }

    /// A master goes on if its slave is not there, or has not all of the log in a second: on a busy machine it is told again.
    fn switch(&self, to: i64, more: &[&str]) -> String {
        let (names, to) = (self.names.address("namesrv"), to.to_string());
        let words = [&["admin", "switchMaster", "-n", names, "-b", SET, "--to", &to], more].concat();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let ran = gantry(&words).output().unwrap();
            let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
            if ran.status.success() {
                return said;
            }
            let goes_on = said.contains("is the master still: not handed over");
            assert!(goes_on && Instant::now() < deadline, "{words:?}: {said}");
        }
    }

    /// Waits until name servers have the members at these ids.
    async fn until_listed(&self, ids: &[(i64, usize)]) {
        let wanted: BTreeMap<i64, String> =
            ids.iter().map(|(id, member)| (*id, self.members[*member].address.clone())).collect();
        until("all are listed with their ids", async || {
            let info = self.client.admin().cluster().await.unwrap();
            info.broker_addr_table.get(SET).is_some_and(|set| set.broker_addrs == wanted)
        })
        .await;
    }

    /// Sends one after the other, and each again until it is acknowledged, until it is told to stop.
    fn produce(&self, name: &'static str) -> Producing {
        let names = self.names.address("namesrv").to_owned();
        let (is_over, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stop, count) = (Arc::clone(&is_over), Arc::clone(&acknowledged));
        let sending = tokio::spawn(async move {
            let (mut sent, mut longest, mut last) = (Vec::new(), Duration::ZERO, Instant::now());
            // A client that has seen no route yet: one in use looks at its route twice a minute.
            let fresh = || Client::start(ClientConfig { timeout: Duration::from_secs(2), ..ClientConfig::new(&names) });
            let mut client = fresh();
            while !stop.load(Ordering::Relaxed) {
                let text = format!("{name}-{:06};", sent.len());
                match client.producer("p").send_to(&queue(), Message::new("T", text.clone())).await {
                    Ok(_) => {
                        sent.push(text);
                        count.fetch_add(1, Ordering::Relaxed);
                        longest = longest.max(last.elapsed());
                        last = Instant::now();
                    }
                    Err(_) => {
                        sleep(Duration::from_millis(10)).await;
                        client = fresh();
                    }
                }
            }
            (sent, longest)
        });
        Producing { is_over, acknowledged, sending }
    }

    fn end(self) {
        for member in self.members {
            if let Some(running) = member.running {
                running.end("-TERM");
            }
        }
        self.names.end("-TERM");
        drop(self.folder);
    }
}

/// A producer, and what it says in the end.
struct Producing<T = Vec<String>> {
    is_over: Arc<AtomicBool>,
    /// Messages so far.
    acknowledged: Arc<AtomicUsize>,
    sending: JoinHandle<(T, Duration)>,
}

impl<T> Producing<T> {
    /// Waits until some more messages are acknowledged.
    async fn goes_on(&self) {
        let wanted = self.acknowledged.load(Ordering::Relaxed) + 20;
        until("more messages are acknowledged", async || self.acknowledged.load(Ordering::Relaxed) >= wanted).await;
    }

    /// What it says (what was acknowledged, and then what failed), and the longest time without an acknowledgement.
    async fn stop(self) -> (T, Duration) {
        self.is_over.store(true, Ordering::Relaxed);
        self.sending.await.unwrap()
    }
}

fn queue() -> MessageQueue {
    MessageQueue { topic: "T".to_owned(), broker_name: SET.to_owned(), queue_id: 0 }
}

/// Those of these texts, which all begin alike, that do not stand in the bytes.
fn missing<'a>(bytes: &[u8], texts: &'a [String]) -> Vec<&'a String> {
    let Some((name, _)) = texts.first().and_then(|first| first.split_once('-')) else { return Vec::new() };
    let all = String::from_utf8_lossy(bytes);
    let found: HashSet<&str> =
        all.match_indices(&format!("{name}-")).filter_map(|(at, _)| all[at..].split_inclusive(';').next()).collect();
    texts.iter().filter(|text| !found.contains(text.as_str())).collect()
}

async fn make_topic(set: &Set) {
    let names = set.names.address("namesrv");
    until("the master is listed", async || {
        let words = ["admin", "updateTopic", "-n", names, "-c", "C", "-t", "T", "-r", "1", "-w", "1"];
        gantry(&words).output().unwrap().status.success()
    })
    .await;
    until("the topic is routed", async || set.client.admin().route("T").await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_master_hands_over_and_takes_back_under_a_producer_and_loses_nothing() {
    let set = Set::start("", 2);
    make_topic(&set).await;
    set.until_equal(0, 1).await;
    let producing = set.produce("planned");
    producing.goes_on().await;
    let said = tokio::task::block_in_place(|| set.switch(1, &[]));
    assert!(said.contains(&set.members[1].address) && said.contains("101"), "{said}");
    set.until_listed(&[(0, 1), (1, 0)]).await;
    producing.goes_on().await;
    // The other way round: the old master has the id that the new one had.
    let said = tokio::task::block_in_place(|| set.switch(1, &[]));
    assert!(said.contains(&set.members[0].address) && said.contains("201"), "{said}");
    set.until_listed(&[(0, 0), (1, 1)]).await;
    producing.goes_on().await;
    let (sent, longest) = producing.stop().await;
    let end = set.until_equal(0, 1).await;
    let logs = [set.members[0].log(end), set.members[1].log(end)];
    assert!(logs[0] == logs[1], "the copies differ");
    assert_eq!(missing(&logs[0], &sent), Vec::<&String>::new(), "acknowledged messages are lost");
    println!("{} messages acknowledged, none for {longest:?} at most", sent.len());
    let states = [set.state(0).await.unwrap(), set.state(1).await.unwrap()];
    assert_eq!(states.clone().map(|state| state.epoch), [201, 201]);
    assert_eq!(states[0].epochs, states[1].epochs);
    assert_eq!(states[0].epochs.iter().map(|one| one.epoch).collect::<Vec<_>>(), [101, 201]);
    set.end();
}

/// Sends one message after the other to one address, whichever broker is the master. As in a stock
/// client, a send is tried twice more if its connection ends, and never if it is refused.
fn produce_to(address: String) -> Producing<(Vec<String>, Vec<String>)> {
    let (is_over, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (stop, count) = (Arc::clone(&is_over), Arc::clone(&acknowledged));
    let sending = tokio::spawn(async move {
        let options = || net::ClientOptions { back_off_max: Duration::ZERO, ..net::ClientOptions::default() };
        let client = net::Client::new(options());
        let (mut sent, mut failed, mut longest, mut last) = (Vec::new(), Vec::new(), Duration::ZERO, Instant::now());
        while !stop.load(Ordering::Relaxed) {
            let text = format!("{address}-{:06};", sent.len());
            let message = SendMessage {
                producer_group: "p",
                topic: "T",
                default_topic: "TBW102",
                default_topic_queue_nums: 4,
                queue_id: 0,
                born_timestamp: 1,
                properties: Some(""),
                ..SendMessage::default()
            };
            let (mut tries, within) = (0, Duration::from_secs(3));
            let answer = loop {
                let body = text.clone().into_bytes().into();
                match client.call(&address, request::SEND_MESSAGE_V2, &message, body, within).await {
                    Ok(answer) => break Ok(answer),
                    Err(error) if tries == 2 => break Err(error),
                    Err(_) => tries += 1,
                }
            };
            match answer {
                Ok(answer) if answer.code == 0 => {
                    sent.push(text);
                    count.fetch_add(1, Ordering::Relaxed);
                    longest = longest.max(last.elapsed());
                    last = Instant::now();
                }
                other => failed.push(format!("{other:?}")),
            }
        }
        ((sent, failed), longest)
    });
    Producing { is_over, acknowledged, sending }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_producer_that_keeps_the_old_address_has_no_failed_send_when_masters_switch_and_switch_back() {
    let set = Set::start("", 2);
    make_topic(&set).await;
    set.until_equal(0, 1).await;
    // One at the first master, and one at the second, which is a slave before and after.
    let producing = [0, 1].map(|member| produce_to(set.members[member].address.clone()));
    let go_on = async || {
        for one in &producing {
            one.goes_on().await;
        }
    };
    go_on().await;
    for (now, before) in [(1, 0), (0, 1)] {
        tokio::task::block_in_place(|| set.switch(1, &[]));
        go_on().await;
        set.until_listed(&[(0, now), (1, before)]).await;
        set.until_equal(now, before).await;
        go_on().await;
    }
    let mut all = Vec::new();
    for one in producing {
        let ((sent, failed), longest) = one.stop().await;
        println!("{} messages acknowledged, none for {longest:?} at most", sent.len());
        assert_eq!(failed, Vec::<String>::new());
        all.push(sent);
    }
    let end = set.until_equal(0, 1).await;
    let log = String::from_utf8_lossy(&set.members[0].log(end)).into_owned();
    // In the order in which they were sent: a send that was tried twice may stand there twice.
    for sent in &all {
        let mut at = 0;
        for text in sent {
            at += log[at..].find(text.as_str()).unwrap_or_else(|| panic!("{text} is missing, or out of order"));
        }
    }
    set.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_pull_that_waits_is_answered_when_the_master_is_replaced() {
    let set = Set::start("", 2);
    make_topic(&set).await;
    set.until_equal(0, 1).await;
    let address = set.members[0].address.clone();
    let pulling = tokio::spawn(async move {
        let (sys_flag, suspend_timeout_millis) = (pull::SUBSCRIPTION | pull::SUSPEND, 60_000);
        let asked = PullMessage { sys_flag, suspend_timeout_millis, ..PullMessage::at("G", "T", 0, 0) };
        let client = net::Client::new(net::ClientOptions::default());
        client.call(&address, request::PULL_MESSAGE, &asked, Bytes::new(), PATIENCE).await.unwrap().code
    });
    until("the pull waits", async || {
        let asked = set.client.admin().ask(&set.members[0].address, request::GET_BROKER_RUNTIME_INFO, &()).await;
        let figures: Option<KvTable> = asked.ok();
        figures.is_some_and(|figures| figures.table.get("parkedPulls").is_some_and(|parked| parked == "1"))
    })
    .await;
    tokio::task::block_in_place(|| set.switch(1, &[]));
    // Neither after its 60 s, nor by the end of its connection: a stock consumer would ask again after 3 s, or after 30 s.
    assert_eq!(pulling.await.unwrap(), ResponseCode::PullNotFound as i32);
    set.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_master_that_was_killed_comes_back_as_a_slave_without_what_only_it_has() {
    let mut set = Set::start("", 2);
    make_topic(&set).await;
    let producing = set.produce("both");
    producing.goes_on().await;
    let (both, _) = producing.stop().await;
    set.until_equal(0, 1).await;
    let names = set.names.address("namesrv").to_owned();
    let words = ["admin", "switchMaster", "-n", &names, "-b", SET, "--to", "1", "--old-master-is-down"];
    let refused = String::from_utf8_lossy(&gantry(&words).output().unwrap().stderr).into_owned();
    assert!(refused.contains("answers"), "{refused}");

    set.members[1].kill();
    let producing = set.produce("alone");
    producing.goes_on().await;
    let (alone, _) = producing.stop().await;
    set.members[0].kill();
    set.members[1].start();
    until("the slave is listed alone", async || {
        let info = set.client.admin().cluster().await.unwrap();
        info.broker_addr_table.get(SET).is_some_and(|set| set.broker_addrs.keys().eq([&1]))
    })
    .await;
    tokio::task::block_in_place(|| set.switch(1, &["--old-master-is-down"]));
    let taken = usize::try_from(set.state(1).await.unwrap().log_end).unwrap();
    let producing = set.produce("after");
    producing.goes_on().await;
    let (after, _) = producing.stop().await;

    set.members[0].start();
    let end = set.until_equal(1, 0).await;
    set.until_listed(&[(0, 1), (1, 0)]).await;
    let logs = [set.members[0].log(end), set.members[1].log(end)];
    assert!(logs[0] == logs[1], "the copies differ");
    assert_eq!(missing(&logs[0], &both), Vec::<&String>::new());
    assert_eq!(missing(&logs[0], &after), Vec::<&String>::new());
    let lost: Vec<String> = missing(&logs[0], &alone).into_iter().cloned().collect();
    assert_eq!(lost.len(), alone.len());
    let cut: Vec<u8> = files_of(&set.members[0].folder.join("store/cut"))
        .iter()
        .flat_map(|file| std::fs::read(file).unwrap())
        .collect();
    assert_eq!(missing(&cut, &lost), Vec::<&String>::new(), "what was cut off is not kept");
    assert!(set.members[0].running().has_logged("are cut off and kept in"), "nothing says so");
    let by_topic = set.members[0].running().logged("that the new master does not have are cut off").await;
    let count =
        by_topic.split("messages=").nth(1).map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next().unwrap());
    let count: usize = count.unwrap().parse().unwrap();
    // One that was not answered in time was sent once more.
    assert!(by_topic.contains("topic=\"T\"") && count >= alone.len(), "{by_topic}");
    let kept = files_of(&set.members[0].folder.join("store/cut"));
    let mut words = vec!["store", "replay", "--to", &set.members[1].address];
    words.extend(kept.iter().map(|file| file.to_str().unwrap()));
    let ran = gantry(&words).output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    let end = set.until_equal(1, 0).await;
    assert_eq!(missing(&set.members[0].log(end), &alone), Vec::<&String>::new(), "{ran:?}");
    println!(
        "{} of {} messages of the old master alone are cut off, its log had {taken} bytes in common",
        lost.len(),
        alone.len()
    );
    set.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_master_that_hung_gives_way_when_it_goes_on() {
    let set = Set::start("haSendHeartbeatInterval=500\nhaHousekeepingInterval=2000\n", 2);
    make_topic(&set).await;
    set.until_equal(0, 1).await;
    let signal = |signal: &str| {
        let id = set.members[0].running().pid().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    };
    signal("-STOP");
    until("the slave has lost its master", async || set.state(1).await.is_some_and(|state| !state.is_following)).await;
    tokio::task::block_in_place(|| set.switch(1, &["--old-master-is-down"]));
    signal("-CONT");
    let line = set.members[0].running().logged("another broker of this set is master with a later epoch").await;
    assert!(line.contains(&set.members[1].address) && line.contains("epoch=201"), "{line}");
    let producing = set.produce("after");
    set.until_equal(1, 0).await;
    set.until_listed(&[(0, 1), (1, 0)]).await;
    let (after, _) = producing.stop().await;
    let end = set.until_equal(1, 0).await;
    let logs = [set.members[0].log(end), set.members[1].log(end)];
    assert!(logs[0] == logs[1], "the copies differ");
    assert_eq!(missing(&logs[0], &after), Vec::<&String>::new());
    set.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn how_a_master_acknowledges_that_was_set_while_it_ran_outlives_switches_and_the_loss_of_a_master() {
    let mut set = Set::start("", 2);
    make_topic(&set).await;
    set.until_equal(0, 1).await;
    for setting in ["brokerRole=SYNC_MASTER", "slaveTimeout=2900"] {
        let (key, value) = setting.split_once('=').unwrap();
        let ran = gantry(&["admin", "updateBrokerConfig", "-b", &set.members[0].address, "-k", key, "-v", value]);
        assert!({ ran }.status().unwrap().success());
    }
    tokio::task::block_in_place(|| set.switch(1, &[]));
    set.until_listed(&[(0, 1), (1, 0)]).await;
    assert_eq!(set.state(1).await.unwrap().broker_role, "SYNC_MASTER");
    tokio::task::block_in_place(|| set.switch(1, &[]));
    set.until_listed(&[(0, 0), (1, 1)]).await;
    assert_eq!(set.state(0).await.unwrap().broker_role, "SYNC_MASTER");
    let all = gantry(&["admin", "getBrokerConfig", "-b", &set.members[0].address]).output().unwrap();
    let all = String::from_utf8_lossy(&all.stdout).into_owned();
    assert!(all.lines().any(|line| line.contains("slaveTimeout") && line.contains("2900")), "{all}");
    set.until_equal(0, 1).await;
    set.members[0].kill();
    until("the slave has lost its master", async || set.state(1).await.is_some_and(|state| !state.is_following)).await;
    tokio::task::block_in_place(|| set.switch(1, &["--old-master-is-down"]));
    assert_eq!(set.state(1).await.unwrap().broker_role, "SYNC_MASTER", "that of its master");
    set.end();
}
