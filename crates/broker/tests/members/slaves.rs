//! A slave of a broker of ours that gives its log by Apache's plain stream: the log, the tables, and what it refuses.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use env::Clock;
use net::{Burst, Client, ClientOptions, Connection, Listener, ListenerOptions, Outgoing, Response, Service};
use parking_lot::Mutex;
use protocol::body::{
    BrokerData, HaRuntimeInfo, KvTable, LogicQueueMappingItem, RegisterBrokerBody, TopicConfig,
    TopicConfigAndQueueMapping, TopicConfigList, TopicQueueMappingDetail, TopicRoute,
};
use protocol::code::{ResponseCode, request};
use protocol::fastjson;
use protocol::request::{CopyJournal, CreateTopic, GetTopicConfig, PullMessage, RegisterBrokerReply};
use protocol::sys_flag::pull as bits;
use replica::feed::{Allowed, FeedPort, PortOptions};
use tempfile::TempDir;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::gates::Gates;
use crate::support::{self, Setup, from, start, start_on, to, waiting};
use crate::{
    DEADLINE, Running, beat, commit, committed, json, listening_client, make_group, make_topic, make_topic_with,
};

/// The port at which a broker gives its log: the one behind its own, as if nobody had set another one.
pub(crate) struct Log {
    pub(crate) address: SocketAddr,
    stop: oneshot::Sender<()>,
    ending: JoinHandle<()>,
}

impl Log {
    fn of(master: &Running) -> Option<Log> {
        let main: SocketAddr = master.address.parse().unwrap();
        let port = main.port().checked_add(1)?;
        Log::at((Ipv4Addr::LOCALHOST, port).into(), master)
    }

    fn at(address: SocketAddr, master: &Running) -> Option<Log> {
        let options = PortOptions::new(Allowed::new(|_| true));
        let slaves = Arc::clone(master.broker.slaves());
        let port = FeedPort::bind(address, master.shared_store(), Clock::real(), options, slaves).ok()?;
        let address = port.local_addr();
        let (stop, stopped) = oneshot::channel();
        let ending = tokio::spawn(port.run(async move {
            let _ = stopped.await;
        }));
        Some(Log { address, stop, ending })
    }

    pub(crate) async fn close(self) {
        let _ = self.stop.send(());
        self.ending.await.unwrap();
    }
}

async fn master() -> (Running, Log) {
    master_with(&[]).await
}

pub(crate) async fn master_with(more: &'static [(&'static str, &'static str)]) -> (Running, Log) {
    // Ends when the port behind the chosen one is nobody's.
    loop {
        let master = start(Setup { more, ..Setup::default() }).await;
        if let Some(log) = Log::of(&master) {
            return (master, log);
        }
        master.stop().await;
    }
}

/// A slave of the master that gives its log there.
pub(crate) async fn slave_on(log: &Log, dir: Arc<TempDir>) -> Running {
    slave_at(log.address, dir).await
}

/// The same of a master that gives its log there.
pub(crate) async fn slave_at(log: SocketAddr, dir: Arc<TempDir>) -> Running {
    let address: &'static str = log.to_string().leak();
    let more =
        vec![("brokerRole", "SLAVE"), ("brokerId", "1"), ("slaveReadEnable", "true"), ("haMasterAddress", address)];
    start_on(Setup { more: more.leak(), ..Setup::default() }, dir).await
}

/// A name server that says where the master is: its main port, and where it gives its log.
#[derive(Default)]
pub(crate) struct Places {
    pub(crate) master: Mutex<Option<(String, String)>>,
    /// The brokers of the set by their ids, in the answer to who is asked for a route.
    pub(crate) brokers: Mutex<BTreeMap<i64, String>>,
    /// How many topics each registration told.
    told: Mutex<Vec<usize>>,
    /// The epoch that the last one told.
    pub(crate) epoch: Mutex<Option<i64>>,
}

impl Places {
    pub(crate) fn listen(self: &Arc<Self>) -> String {
        let options = ListenerOptions { tls: None, ..ListenerOptions::default() };
        let listener = Listener::bind((Ipv4Addr::LOCALHOST, 0).into(), options, Arc::clone(self)).unwrap();
        let address = listener.local_addr().to_string();
        tokio::spawn(listener.run(std::future::pending()));
        address
    }

    pub(crate) fn tell_front(&self, front: &str, log: &Log) {
        *self.master.lock() = Some((front.to_owned(), log.address.to_string()));
    }

    fn tell(&self, master: &Running, log: &Log) {
        *self.master.lock() = Some((master.address.clone(), log.address.to_string()));
    }

    fn registrations(&self) -> usize {
        self.told.lock().len()
    }
}

impl Service for Places {
    type Session = ();
    type Work = ();

    fn open(&self, _: &Connection<()>) {}

    async fn serve(&self, _: &mut (), burst: &mut Burst<'_>, out: &mut Outgoing) {
        while let Some(request) = burst.next() {
            if request.header.code == request::GET_ROUTEINFO_BY_TOPIC {
                let set = BrokerData {
                    broker_name: "broker-a".to_owned(),
                    cluster: "DefaultCluster".to_owned(),
                    broker_addrs: self.brokers.lock().clone(),
                    ..BrokerData::default()
                };
                let route = TopicRoute { broker_datas: vec![set], ..TopicRoute::default() };
                out.reply(request.reply_to(), ResponseCode::Success, None, &(), &json(&route));
                continue;
            }
            let master = self.master.lock().clone();
            let (main, log) = master.unzip();
            let fields = RegisterBrokerReply { ha_server_addr: log.as_deref(), master_addr: main.as_deref() };
            out.reply(request.reply_to(), ResponseCode::Success, None, &fields, &[]);
            if request.header.code == request::REGISTER_BROKER {
                let body = RegisterBrokerBody::decode(request.body, false, 0).unwrap();
                self.told.lock().push(body.topics.topic_config_table.len());
                *self.epoch.lock() = Some(body.topics.data_version.state_version);
            }
        }
    }

    async fn resume(&self, _: &mut (), (): (), _: &mut Outgoing) {}

    fn close(&self, (): ()) {}
}

/// A slave that hears of its master from a name server, to which it says everything once a minute.
pub(crate) async fn slave_by(names: &Arc<Places>) -> Running {
    slave_by_on(names, Arc::new(tempfile::tempdir().unwrap())).await
}

/// The same on what another one has left.
pub(crate) async fn slave_by_on(names: &Arc<Places>, dir: Arc<TempDir>) -> Running {
    let more: &[_] = &[
        ("brokerRole", "SLAVE"),
        ("brokerId", "1"),
        ("slaveReadEnable", "true"),
        ("registerNameServerPeriod", "60000"),
        // Its log is asked about every half minute.
        ("haSendHeartbeatInterval", "15000"),
    ];
    start_on(Setup { name_servers: vec![names.listen()], more, ..Setup::default() }, dir).await
}

/// Stands before a master's main port: it passes requests on, and may answer something else, or later.
pub(crate) struct Front {
    master: String,
    client: Client,
    /// Says that the log has nothing.
    is_empty: AtomicBool,
    /// Questions about the log (28).
    asked: AtomicUsize,
    /// Takes no commit (15).
    pub(crate) refuses_commits: AtomicBool,
    /// How many it has not taken.
    pub(crate) refused: AtomicUsize,
    /// Does not say that the master gives its journal, as a broker of Apache does not.
    pub(crate) hides_journal: AtomicBool,
    /// Codes of all requests.
    pub(crate) codes: Mutex<BTreeSet<i32>>,
    /// The positions from which the journal was asked for (30002).
    pub(crate) journal_from: Mutex<Vec<String>>,
    /// Cuts off the end of each piece of the journal.
    pub(crate) cuts_journal: AtomicBool,
    /// Passes no request for the journal on while it is true.
    pub(crate) holds_journal: watch::Sender<bool>,
    /// How many it has kept.
    pub(crate) held_journal: AtomicUsize,
    /// Keeps answers with topics (21) while it is true.
    holds: watch::Sender<bool>,
    /// How many it has kept.
    held: AtomicUsize,
}

impl Front {
    pub(crate) fn of(master: &Running) -> (Arc<Front>, String) {
        let front = Arc::new(Front {
            master: master.address.clone(),
            client: Client::new(ClientOptions::default()),
            is_empty: AtomicBool::new(false),
            asked: AtomicUsize::new(0),
            refuses_commits: AtomicBool::new(false),
            refused: AtomicUsize::new(0),
            hides_journal: AtomicBool::new(false),
            codes: Mutex::default(),
            journal_from: Mutex::default(),
            cuts_journal: AtomicBool::new(false),
            holds_journal: watch::Sender::new(false),
            held_journal: AtomicUsize::new(0),
            holds: watch::Sender::new(false),
            held: AtomicUsize::new(0),
        });
        let options = ListenerOptions { tls: None, ..ListenerOptions::default() };
        let listener = Listener::bind((Ipv4Addr::LOCALHOST, 0).into(), options, Arc::clone(&front)).unwrap();
        let address = listener.local_addr().to_string();
        tokio::spawn(listener.run(std::future::pending()));
        (front, address)
    }
}

impl Service for Front {
    type Session = ();
    type Work = ();

    fn open(&self, _: &Connection<()>) {}

    async fn serve(&self, _: &mut (), burst: &mut Burst<'_>, out: &mut Outgoing) {
        while let Some(asked) = burst.next() {
            let (code, sent) = (asked.header.code, Bytes::copy_from_slice(asked.body));
            self.codes.lock().insert(code);
            if code == request::COPY_JOURNAL {
                let fields = CopyJournal::decode(&asked.header.fields).unwrap();
                self.journal_from.lock().push(format!("{} {}", fields.life, fields.from));
                if *self.holds_journal.borrow() {
                    self.held_journal.fetch_add(1, Ordering::Relaxed);
                    self.holds_journal.subscribe().wait_for(|holds| !holds).await.unwrap();
                }
            }
            if code == request::UPDATE_CONSUMER_OFFSET && self.refuses_commits.load(Ordering::Relaxed) {
                self.refused.fetch_add(1, Ordering::Relaxed);
                out.reply(asked.reply_to(), ResponseCode::NoPermission, Some("not you"), &(), &[]);
                continue;
            }
            // The master is gone: so is its answer.
            let answer = self.client.call(&self.master, code, &asked.header.fields, sent, DEADLINE).await;
            let Ok(mut answer) = answer else { return };
            if code == request::GET_BROKER_RUNTIME_INFO {
                self.asked.fetch_add(1, Ordering::Relaxed);
                let mut told: KvTable = fastjson::from_slice(&answer.body).unwrap();
                if self.hides_journal.load(Ordering::Relaxed) {
                    told.table.remove("replicaJournal");
                    answer.body = json(&told);
                }
                if self.is_empty.load(Ordering::Relaxed) {
                    let ends = ["commitLogMinOffset", "commitLogMaxOffset"].map(|end| (end.to_owned(), "0".to_owned()));
                    told.table.extend(ends);
                    answer.body = json(&told);
                }
            }
            if code == request::COPY_JOURNAL && self.cuts_journal.load(Ordering::Relaxed) && !answer.body.is_empty() {
                answer.body.truncate(answer.body.len() - 1);
            }
            if code == request::GET_ALL_TOPIC_CONFIG && *self.holds.borrow() {
                self.held.fetch_add(1, Ordering::Relaxed);
                self.holds.subscribe().wait_for(|holds| !holds).await.unwrap();
            }
            let code = ResponseCode::from_i32(answer.code).unwrap();
            out.reply(asked.reply_to(), code, answer.remark.as_deref(), &answer.fields, &answer.body);
        }
    }

    async fn resume(&self, _: &mut (), (): (), _: &mut Outgoing) {}

    fn close(&self, (): ()) {}
}

async fn has_topic(running: &Running, topic: &'static str) -> bool {
    running.call(request::GET_TOPIC_CONFIG, &GetTopicConfig { topic, lo: None }, "").await.code == 0
}

async fn until_it_follows(slave: &Running, master: &Running) {
    // In one answer: two may be about two masters. It says why the one before is gone until the next one is there.
    until("the slave follows", || async {
        let told = figures(slave).await;
        told.get("masterConnected").is_some_and(|is_connected| is_connected == "true")
            && told.get("masterAddress") == Some(&master.address)
            && !told.contains_key("masterFailure")
    })
    .await;
}

pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    let deadline = Instant::now() + DEADLINE;
    while !is_so().await {
        assert!(Instant::now() < deadline, "not in time: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) async fn until_equal(master: &Running, slave: &Running) {
    support::until("the slave has the log", || slave.store().end() == master.store().end()).await;
}

/// Twenty messages in the four queues of a topic, and a group with a member that has come to the third in the first queue.
pub(crate) async fn put_some(master: &Running) -> Client {
    make_topic(master, "T").await;
    make_topic_with(master, "%RETRY%G", 1).await;
    let (client, _) = listening_client();
    beat(master, &client, "c").await;
    for number in 0..20 {
        master.put("T", number % 4, "", &format!("message {number}")).await;
    }
    assert_eq!(commit(master, 0, 3).await.0, 0);
    client
}

pub(crate) async fn same_messages(master: &Running, slave: &Running) {
    let bodies = |messages: Vec<support::Message>| messages.into_iter().map(|one| one.body).collect::<Vec<_>>();
    for queue in 0..4 {
        assert_eq!(bodies(slave.all("T", queue).await), bodies(master.all("T", queue).await));
    }
}

/// Waits until the slave says that the log comes from its master, or does not.
pub(crate) async fn until_connected(slave: &Running, is_connected: bool) {
    let wanted = is_connected.to_string();
    until("the slave has noticed", || async { figure(slave, "masterConnected").await.as_ref() == Some(&wanted) }).await;
}

/// A pull that is under way.
pub(crate) fn begin_pull(running: &Running, pull: PullMessage<'static>) -> JoinHandle<Response> {
    let (client, address) = (running.client.clone(), running.address.clone());
    tokio::spawn(async move { client.call(&address, request::PULL_MESSAGE, &pull, "".into(), DEADLINE).await.unwrap() })
}

/// All figures of 28.
async fn figures(running: &Running) -> BTreeMap<String, String> {
    let answer = running.call(request::GET_BROKER_RUNTIME_INFO, &(), "").await;
    fastjson::from_slice::<KvTable>(&answer.body).unwrap().table
}

pub(crate) async fn figure(running: &Running, name: &str) -> Option<String> {
    figures(running).await.remove(name)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slave_has_the_log_and_the_tables_of_its_master_and_goes_on_after_a_kill() {
    let (master, log) = master().await;
    let _member = put_some(&master).await;
    let slave = slave_on(&log, Arc::new(tempfile::tempdir().unwrap())).await;
    until_equal(&master, &slave).await;
    until("offsets have come over", || async { committed(&slave, 0).await == Ok(3) }).await;
    same_messages(&master, &slave).await;
    let info: HaRuntimeInfo =
        fastjson::from_slice(&slave.call(request::GET_BROKER_HA_STATUS, &(), "").await.body).unwrap();
    let own = info.ha_client_runtime_info.unwrap();
    assert!(!info.master && own.activated);
    assert_eq!(own.max_offset, slave.store().end().0 as i64);
    assert_eq!(own.master_addr, Some(log.address.to_string()));
    until("the lag is known", || async { figure(&slave, "masterBehindBytes").await.as_deref() == Some("0") }).await;
    assert_eq!(figure(&slave, "brokerRole").await.as_deref(), Some("SLAVE"));
    let page = slave.metrics();
    for (metric, value) in [("gantry_replica_connected{", "} 1"), ("gantry_replica_lag_bytes{", "} 0")] {
        assert!(page.lines().any(|line| line.starts_with(metric) && line.ends_with(value)), "{page}");
    }

    // Killed: another process goes on with what it left.
    let image = slave.image();
    slave.stop().await;
    for number in 20..40 {
        master.put("T", number % 4, "", &format!("message {number}")).await;
    }
    assert_eq!(commit(&master, 0, 7).await.0, 0);
    let slave = slave_on(&log, image).await;
    until_equal(&master, &slave).await;
    until("offsets have come over", || async { committed(&slave, 0).await == Ok(7) }).await;
    same_messages(&master, &slave).await;
    slave.stop().await;
    log.close().await;
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_of_a_slave_go_back_to_its_master_while_that_is_there() {
    let master = start(Setup { main_port: Some(0), ..Setup::default() }).await;
    make_topic(&master, "T").await;
    master.put("T", 0, "", "one").await;
    let gates = Gates::before(&master).await;
    let slave = gates.slave(Arc::new(tempfile::tempdir().unwrap())).await;
    until_equal(&master, &slave).await;
    until_connected(&slave, true).await;
    let code = |pull: PullMessage<'static>| {
        let slave = &slave;
        async move { slave.call(request::PULL_MESSAGE, &pull, "").await }
    };
    // 20: at once again, and where the answer says.
    let answer = code(waiting(from("T", 0, 1), 60_000)).await;
    assert_eq!((answer.code, answer.fields.get("suggestWhichBrokerId")), (20, Some("0")));
    let ahead = code(from("T", 0, 99)).await;
    assert_eq!((ahead.code, ahead.fields.get("nextBeginOffset")), (20, Some("99")));

    gates.shut();
    until_connected(&slave, false).await;
    let waits = begin_pull(&slave, waiting(from("T", 0, 1), 60_000));
    slave.until_parked(1).await;
    gates.lead_to(&master);
    assert_eq!(waits.await.unwrap().code, 20, "it is sent back when the master is there again");

    // What operators ask it refuses. So it does with what clients ask, if it may not ask its
    // master.
    assert_eq!(slave.call(request::UPDATE_AND_CREATE_TOPIC, &to("T", 0, ""), "x").await.code, 1);
    assert_eq!(slave.call(request::UPDATE_BROKER_CONFIG, &(), "forwardToMaster=false").await.code, 0);
    for (request, code) in [
        (request::SEND_MESSAGE_V2, 2),
        (request::CONSUMER_SEND_MSG_BACK, 2),
        (request::END_TRANSACTION, 11),
        (request::POP_MESSAGE, 14),
    ] {
        assert_eq!(slave.call(request, &to("T", 0, ""), "x").await.code, code, "{request}");
    }
    slave.stop().await;
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slave_keeps_its_tables_while_its_master_s_log_is_another_one() {
    let (old, old_log) = master().await;
    make_topic(&old, "T").await;
    make_topic_with(&old, "%RETRY%G", 1).await;
    let (client, _heard) = listening_client();
    beat(&old, &client, "c").await;
    for number in 0..8 {
        old.put("T", number % 4, "", &format!("message {number}")).await;
    }
    assert_eq!(commit(&old, 0, 2).await.0, 0);
    let slave = slave_on(&old_log, Arc::new(tempfile::tempdir().unwrap())).await;
    until_equal(&old, &slave).await;
    until("offsets have come over", || async { committed(&slave, 0).await == Ok(2) }).await;
    let dir = slave.stop().await;
    old_log.close().await;
    old.stop().await;

    // It has lost its disk.
    let (new, new_log) = master().await;
    let slave = slave_on(&new_log, dir).await;
    until("the slave finds out", || async {
        figure(&slave, "masterFailure").await.is_some_and(|why| why.contains("the master's log ends at log offset 0"))
    })
    .await;
    // Tables were looked at each second.
    sleep(Duration::from_secs(3)).await;
    assert_eq!(committed(&slave, 0).await, Ok(2));
    assert_eq!(slave.all("T", 0).await.len(), 2);
    assert_eq!(figure(&slave, "masterConnected").await.as_deref(), Some("false"));
    slave.stop().await;
    new_log.close().await;
    new.stop().await;
}

/// Two masters with the same log, of one message.
async fn two_of_one_log() -> ((Running, Log), (Running, Log)) {
    let first = master().await;
    make_topic(&first.0, "T").await;
    first.0.put("T", 0, "", "one").await;
    let second = start_on(Setup::default(), first.0.image()).await;
    let second_log = Log::at((Ipv4Addr::LOCALHOST, 0).into(), &second).unwrap();
    (first, (second, second_log))
}

/// A slave that follows a master which this name server names.
async fn slave_that_follows(names: &Arc<Places>, master: &Running, log: &Log) -> Running {
    names.tell(master, log);
    let slave = slave_by(names).await;
    until_equal(master, &slave).await;
    until_it_follows(&slave, master).await;
    slave
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slave_asks_where_its_master_is_as_soon_as_it_has_lost_one() {
    let ((first, first_log), (second, second_log)) = two_of_one_log().await;
    let names = Arc::new(Places::default());
    let slave = slave_that_follows(&names, &first, &first_log).await;
    let before = names.registrations();
    names.tell(&second, &second_log);
    first_log.close().await;
    until_it_follows(&slave, &second).await;
    assert_eq!(figure(&slave, "masterFailure").await, None, "nothing is to be done");
    let told = names.told.lock().clone();
    assert!(told[before..].iter().all(|topics| *topics < told[0]), "not with the next full registration: {told:?}");
    slave.stop().await;
    second_log.close().await;
    second.stop().await;
    first.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_was_named_while_another_one_was_there_is_followed_behind_it() {
    let ((first, first_log), (second, second_log)) = two_of_one_log().await;
    let names = Arc::new(Places::default());
    let slave = slave_that_follows(&names, &first, &first_log).await;
    names.tell(&second, &second_log);
    // A topic that comes over is told at once.
    let before = names.registrations();
    make_topic(&first, "U").await;
    until("the slave has registered the topic", || async { names.registrations() > before }).await;
    assert_eq!(figure(&slave, "masterAddress").await.as_deref(), Some(first.address.as_str()));
    // From now on it says nothing of a master.
    *names.master.lock() = None;
    first_log.close().await;
    until_it_follows(&slave, &second).await;
    slave.stop().await;
    second_log.close().await;
    second.stop().await;
    first.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slave_that_looks_for_its_master_tells_name_servers_one_topic_again_and_again() {
    let names = Arc::new(Places::default());
    let slave = slave_by(&names).await;
    let of_one_topic = || names.told.lock().iter().filter(|topics| **topics == 1).count();
    until("it has asked twice", || async { of_one_topic() >= 2 }).await;
    let told = names.told.lock().clone();
    assert!(told[0] > 1 && told.iter().filter(|topics| **topics == told[0]).count() == 1, "{told:?}");
    slave.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn static_topics_come_over_though_one_answer_does_not_hold_all_topics() {
    let (master, log) = master().await;
    let item = LogicQueueMappingItem {
        bname: "broker-a".to_owned(),
        end_offset: -1,
        time_of_end: -1,
        time_of_start: -1,
        ..LogicQueueMappingItem::default()
    };
    let detail = TopicQueueMappingDetail {
        bname: "broker-a".to_owned(),
        epoch: 7,
        hosted_queues: [(0, vec![item])].into(),
        topic: "A".to_owned(),
        total_queues: 4,
        ..TopicQueueMappingDetail::default()
    };
    let fields = CreateTopic {
        topic: "A",
        default_topic: Some("TBW102"),
        read_queue_nums: 4,
        write_queue_nums: 4,
        perm: 6,
        topic_filter_type: "SINGLE_TAG",
        topic_sys_flag: None,
        order: false,
        attributes: None,
        force: false,
    };
    assert_eq!(master.call(request::UPDATE_AND_CREATE_STATIC_TOPIC, &fields, json(&detail)).await.code, 0);
    // An answer holds 2000, in the order of their names.
    let named = |number| TopicConfig { topic_name: format!("Z{number:04}"), ..TopicConfig::default() };
    let list = TopicConfigList { topic_config_list: (0..2000).map(named).collect() };
    assert_eq!(master.call(request::UPDATE_AND_CREATE_TOPIC_LIST, &(), json(&list)).await.code, 0);

    let slave = slave_on(&log, Arc::new(tempfile::tempdir().unwrap())).await;
    let config = |topic: &'static str| {
        let slave = &slave;
        async move {
            let answer = slave.call(request::GET_TOPIC_CONFIG, &GetTopicConfig { topic, lo: Some(true) }, "").await;
            fastjson::from_slice::<TopicConfigAndQueueMapping>(&answer.body).ok().filter(|_| answer.code == 0)
        }
    };
    until("the last topic is here", || async { config("Z1999").await.is_some() }).await;
    until("the mapping is here", || async {
        config("A").await.and_then(|config| config.mapping_detail).is_some_and(|detail| detail.epoch == 7)
    })
    .await;
    slave.stop().await;
    log.close().await;
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_that_have_come_further_than_a_copy_are_not_led_back_nor_believed() {
    let master = start(Setup { main_port: Some(0), ..Setup::default() }).await;
    make_topic(&master, "T").await;
    make_group(&master, "G", 1).await;
    master.put("T", 0, "", "one").await;
    let gates = Gates::before(&master).await;
    let slave = gates.slave(Arc::new(tempfile::tempdir().unwrap())).await;
    until_equal(&master, &slave).await;
    until_connected(&slave, true).await;
    gates.shut();
    until_connected(&slave, false).await;

    // Queue 3 has no message here. What the reader has seen there the copy has lost.
    let answer = slave.call(request::PULL_MESSAGE, &from("T", 3, 5), "").await;
    assert_eq!((answer.code, answer.fields.get("nextBeginOffset")), (20, Some("5")));
    let fresh = slave.call(request::PULL_MESSAGE, &from("T", 3, 0), "").await;
    assert_eq!((fresh.code, fresh.fields.get("nextBeginOffset")), (19, Some("0")));
    let waits = begin_pull(&slave, waiting(from("T", 3, 5), 3_000));
    slave.until_parked(1).await;
    assert_eq!(waits.await.unwrap().code, 20);

    // A commit that a pull carries, as one of its own.
    let pull = PullMessage::at("G", "T", 0, 1);
    let pull = PullMessage { sys_flag: pull.sys_flag | bits::COMMIT_OFFSET, commit_offset: 9, ..pull };
    slave.call(request::PULL_MESSAGE, &pull, "").await;
    assert_eq!(committed(&slave, 0).await, Ok(1));
    slave.stop().await;
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_have_come_further_than_a_slave_that_is_promoted_skip_nothing() {
    let (master, log) = master().await;
    make_topic(&master, "T").await;
    for number in 0..5 {
        master.put("T", 0, "", &number.to_string()).await;
    }
    let slave = slave_on(&log, Arc::new(tempfile::tempdir().unwrap())).await;
    until_equal(&master, &slave).await;
    until("the topic is here", || async { slave.call(request::PULL_MESSAGE, &from("T", 0, 0), "").await.code != 17 })
        .await;
    let left = slave.stop().await;
    log.close().await;
    master.stop().await;

    // Its consumers have seen up to 8 there. Other messages get these places now.
    let promoted = start_on(Setup::default(), left).await;
    for number in 5..10 {
        assert_eq!(promoted.put("T", 0, "", &number.to_string()).await.queue_offset, number);
    }
    let told = promoted.call(request::PULL_MESSAGE, &from("T", 0, 8), "").await;
    assert_eq!((told.code, told.fields.get("nextBeginOffset")), (21, Some("0")), "nothing was committed");
    let read_on = promoted.call(request::PULL_MESSAGE, &from("T", 0, 5), "").await;
    assert_eq!(read_on.code, 0);

    // They may come behind another start, also of one that was killed.
    let killed = promoted.image();
    let stopped = promoted.stop().await;
    for left in [killed, stopped] {
        let again = start_on(Setup::default(), left).await;
        let told = again.call(request::PULL_MESSAGE, &from("T", 0, 8), "").await;
        assert_eq!((told.code, told.fields.get("nextBeginOffset")), (21, Some("0")));
        assert_eq!(again.call(request::PULL_MESSAGE, &from("T", 0, 5), "").await.code, 0);
        again.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slave_keeps_its_tables_while_its_master_says_to_have_nothing_on_a_connection_that_stays() {
    let (master, log) = master().await;
    make_topic(&master, "T").await;
    make_group(&master, "G", 1).await;
    master.put("T", 0, "", "one").await;
    let (front, main) = Front::of(&master);
    let names = Arc::new(Places::default());
    *names.master.lock() = Some((main, log.address.to_string()));
    let slave = slave_by(&names).await;
    until_equal(&master, &slave).await;
    until_connected(&slave, true).await;
    until("a topic is here", || has_topic(&slave, "T")).await;
    front.is_empty.store(true, Ordering::Relaxed);
    // The round before that is over when it is asked again.
    let before = front.asked.load(Ordering::Relaxed);
    support::until("the slave asks again", || front.asked.load(Ordering::Relaxed) > before).await;
    make_topic(&master, "U").await;
    assert_eq!(commit(&master, 0, 1).await.0, 0);
    let before = front.asked.load(Ordering::Relaxed);
    support::until("tables were to be taken", || front.asked.load(Ordering::Relaxed) >= before + 3).await;
    assert!(!has_topic(&slave, "U").await);
    assert!(committed(&slave, 0).await.is_err());
    front.is_empty.store(false, Ordering::Relaxed);
    until("tables come again", || has_topic(&slave, "U")).await;
    slave.stop().await;
    log.close().await;
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_a_master_that_is_not_followed_any_more_is_not_taken() {
    let ((first, first_log), (second, second_log)) = two_of_one_log().await;
    let (front, main) = Front::of(&first);
    front.hides_journal.store(true, Ordering::Relaxed);
    let names = Arc::new(Places::default());
    *names.master.lock() = Some((main, first_log.address.to_string()));
    let slave = slave_by(&names).await;
    until_equal(&first, &slave).await;
    until_connected(&slave, true).await;
    names.tell(&second, &second_log);
    // With this topic the slave registers, and hears of the other one.
    let before = names.registrations();
    make_topic(&first, "V").await;
    until("the slave has registered the topic", || async { names.registrations() > before }).await;
    front.holds.send_replace(true);
    make_topic(&first, "U").await;
    support::until("topics are told", || front.held.load(Ordering::Relaxed) > 0).await;
    first_log.close().await;
    until_it_follows(&slave, &second).await;
    front.holds.send_replace(false);
    let deadline = Instant::now() + Duration::from_secs(2);
    while Instant::now() < deadline {
        assert!(!has_topic(&slave, "U").await);
        sleep(Duration::from_millis(5)).await;
    }
    slave.stop().await;
    second_log.close().await;
    second.stop().await;
    first.stop().await;
}
