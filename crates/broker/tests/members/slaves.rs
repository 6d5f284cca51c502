//! A slave of a broker of ours that gives its log by Apache's plain stream: the log, the tables, and what it refuses.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use env::Clock;
use protocol::body::{
    HaRuntimeInfo, KvTable, LogicQueueMappingItem, TopicConfig, TopicConfigAndQueueMapping, TopicConfigList,
    TopicQueueMappingDetail,
};
use protocol::code::request;
use protocol::fastjson;
use protocol::request::{CreateTopic, GetTopicConfig, PullMessage};
use protocol::sys_flag::pull as bits;
use replica::feed::{Allowed, FeedPort, PortOptions};
use replica::lag::Slaves;
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::support::{self, Setup, from, start, start_on, to, waiting};
use crate::{
    DEADLINE, Running, beat, commit, committed, json, listening_client, make_group, make_topic, make_topic_with,
};

/// The port at which a broker gives its log: the one behind its own, as if nobody had set another one.
struct Log {
    address: SocketAddr,
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
        let slaves = Arc::new(Slaves::default());
        let port = FeedPort::bind(address, master.shared_store(), Clock::real(), options, slaves, |_| ()).ok()?;
        let (stop, stopped) = oneshot::channel();
        let ending = tokio::spawn(port.run(async move {
            let _ = stopped.await;
        }));
        Some(Log { address, stop, ending })
    }

    async fn close(self) {
        let _ = self.stop.send(());
        self.ending.await.unwrap();
    }
}

async fn master() -> (Running, Log) {
    // Ends when the port behind the chosen one is nobody's.
    loop {
        let master = start(Setup::default()).await;
        if let Some(log) = Log::of(&master) {
            return (master, log);
        }
        master.stop().await;
    }
}

async fn slave_on(log: &Log, dir: Arc<TempDir>) -> Running {
    let address: &'static str = log.address.to_string().leak();
    let more =
        vec![("brokerRole", "SLAVE"), ("brokerId", "1"), ("slaveReadEnable", "true"), ("haMasterAddress", address)];
    start_on(Setup { more: more.leak(), ..Setup::default() }, dir).await
}

async fn until<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    let deadline = Instant::now() + DEADLINE;
    while !is_so().await {
        assert!(Instant::now() < deadline, "not in time: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}

async fn until_equal(master: &Running, slave: &Running) {
    support::until("the slave has the log", || slave.store().end() == master.store().end()).await;
}

async fn figure(running: &Running, name: &str) -> Option<String> {
    let answer = running.call(request::GET_BROKER_RUNTIME_INFO, &(), "").await;
    fastjson::from_slice::<KvTable>(&answer.body).unwrap().table.remove(name)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slave_has_the_log_and_the_tables_of_its_master_and_goes_on_after_a_kill() {
    let (master, log) = master().await;
    make_topic(&master, "T").await;
    make_topic_with(&master, "%RETRY%G", 1).await;
    let (client, _heard) = listening_client();
    beat(&master, &client, "c").await;
    for number in 0..20 {
        master.put("T", number % 4, "", &format!("message {number}")).await;
    }
    assert_eq!(commit(&master, 0, 3).await.0, 0);

    let slave = slave_on(&log, Arc::new(tempfile::tempdir().unwrap())).await;
    until_equal(&master, &slave).await;
    until("offsets have come over", || async { committed(&slave, 0).await == Ok(3) }).await;
    let bodies = |messages: Vec<support::Message>| messages.into_iter().map(|one| one.body).collect::<Vec<_>>();
    for queue in 0..4 {
        assert_eq!(bodies(slave.all("T", queue).await), bodies(master.all("T", queue).await));
    }
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
    for queue in 0..4 {
        assert_eq!(bodies(slave.all("T", queue).await), bodies(master.all("T", queue).await));
    }
    slave.stop().await;
    log.close().await;
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_of_a_slave_go_back_to_its_master_while_that_is_there() {
    let (master, log) = master().await;
    make_topic(&master, "T").await;
    master.put("T", 0, "", "one").await;
    let slave = slave_on(&log, Arc::new(tempfile::tempdir().unwrap())).await;
    until_equal(&master, &slave).await;
    let code = |pull: PullMessage<'static>| {
        let slave = &slave;
        async move { slave.call(request::PULL_MESSAGE, &pull, "").await }
    };
    // 20: at once again, and where the answer says.
    let answer = code(waiting(from("T", 0, 1), 60_000)).await;
    assert_eq!((answer.code, answer.fields.get("suggestWhichBrokerId")), (20, Some("0")));
    let ahead = code(from("T", 0, 99)).await;
    assert_eq!((ahead.code, ahead.fields.get("nextBeginOffset")), (20, Some("99")));

    let address = log.address;
    log.close().await;
    until("the slave has noticed", || async { figure(&slave, "masterConnected").await.as_deref() == Some("false") })
        .await;
    let waits = tokio::spawn({
        let (client, address) = (slave.client.clone(), slave.address.clone());
        async move {
            let pull = waiting(from("T", 0, 1), 60_000);
            client.call(&address, request::PULL_MESSAGE, &pull, "".into(), DEADLINE).await.unwrap().code
        }
    });
    slave.until_parked(1).await;
    let log = Log::at(address, &master).unwrap();
    assert_eq!(waits.await.unwrap(), 20, "it is sent back when the master is there again");

    for (request, code) in [
        (request::SEND_MESSAGE_V2, 2),
        (request::CONSUMER_SEND_MSG_BACK, 2),
        (request::END_TRANSACTION, 11),
        (request::UPDATE_AND_CREATE_TOPIC, 1),
        (request::POP_MESSAGE, 14),
    ] {
        assert_eq!(slave.call(request, &to("T", 0, ""), "x").await.code, code, "{request}");
    }
    slave.stop().await;
    log.close().await;
    master.stop().await;
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
    let (master, log) = master().await;
    make_topic(&master, "T").await;
    make_group(&master, "G", 1).await;
    master.put("T", 0, "", "one").await;
    let slave = slave_on(&log, Arc::new(tempfile::tempdir().unwrap())).await;
    until_equal(&master, &slave).await;
    log.close().await;
    until("the slave has noticed", || async { figure(&slave, "masterConnected").await.as_deref() == Some("false") })
        .await;

    // Queue 3 has no message here. What the reader has seen there the copy has lost.
    let answer = slave.call(request::PULL_MESSAGE, &from("T", 3, 5), "").await;
    assert_eq!((answer.code, answer.fields.get("nextBeginOffset")), (20, Some("5")));
    let fresh = slave.call(request::PULL_MESSAGE, &from("T", 3, 0), "").await;
    assert_eq!((fresh.code, fresh.fields.get("nextBeginOffset")), (19, Some("0")));
    let waits = tokio::spawn({
        let (client, address) = (slave.client.clone(), slave.address.clone());
        async move {
            let pull = waiting(from("T", 3, 5), 500);
            client.call(&address, request::PULL_MESSAGE, &pull, "".into(), DEADLINE).await.unwrap().code
        }
    });
    slave.until_parked(1).await;
    assert_eq!(waits.await.unwrap(), 20);

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

    // It is a master like others from the next start on.
    let left = promoted.stop().await;
    let master = start_on(Setup::default(), left).await;
    assert_eq!(master.call(request::PULL_MESSAGE, &from("T", 0, 8), "").await.code, 0);
    master.stop().await;
}
