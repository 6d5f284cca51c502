//! A master of ours and its slaves: what comes over, what is kept for them, who is let in, and what operators are told.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use protocol::body::HaRuntimeInfo;
use protocol::code::{ResponseCode, request};
use protocol::fastjson;
use store::{HourOfDay, Retention};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, sleep};

use crate::gates::Gates;
use crate::slaves::{figure, put_some, same_messages, until, until_connected, until_equal};
use crate::support::{self, Setup, start, start_on, to};
use crate::{DEADLINE, Running, committed, make_topic, pop_of};

pub(crate) const FILE: u64 = 256 << 10;

/// However long a test takes, nobody is closed for silence.
pub(crate) const STANDING: (&str, &str) = ("haHousekeepingInterval", "600000");

fn a_master(main_port: u16) -> Setup {
    Setup { main_port: Some(main_port), ..Setup::default() }
}

fn a_slave_of(master: &Running) -> Setup {
    let log: &'static str = master.log.unwrap().to_string().leak();
    let more = vec![("brokerRole", "SLAVE"), ("brokerId", "1"), ("slaveReadEnable", "true"), ("haMasterAddress", log)];
    Setup { more: more.leak(), ..Setup::default() }
}

async fn status(running: &Running) -> HaRuntimeInfo {
    fastjson::from_slice(&running.call(request::GET_BROKER_HA_STATUS, &(), "").await.body).unwrap()
}

async fn until_in_sync(master: &Running, slave: &Running) {
    until_equal(master, slave).await;
    until("the master knows", || async {
        let status = status(master).await;
        status.in_sync_slave_nums == 1 && status.ha_connection_info.iter().all(|slave| slave.diff == 0)
    })
    .await;
}

pub(crate) async fn fill(running: &Running, files: u64) {
    let body = "x".repeat(60 << 10);
    let end = running.store().end().0 + files * FILE;
    while running.store().end().0 < end {
        running.put("Fill", 0, "", &body).await;
    }
}

async fn update(running: &Running, text: &str) {
    let answer = running.call(request::UPDATE_BROKER_CONFIG, &(), text.to_owned()).await;
    assert_eq!(answer.code, 0, "{:?}", answer.remark);
}

/// The value of a metric on the page, with these labels.
fn metric(page: &str, name: &str, labels: &str) -> Option<f64> {
    let line = page.lines().find(|line| line.starts_with(&format!("{name}{{")) && line.contains(labels))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// Connections that ended for this reason.
fn closed(running: &Running, reason: &str) -> u64 {
    running.broker.slaves().closed().find(|(known, _)| *known == reason).unwrap().1
}

/// A slave that reports a place, and takes nothing.
pub(crate) async fn standing_at(log: SocketAddr, place: u64) -> TcpStream {
    standing_from("127.0.0.1", log, place).await
}

/// The same from this address of the machine.
pub(crate) async fn standing_from(ip: &str, log: SocketAddr, place: u64) -> TcpStream {
    let deadline = Instant::now() + DEADLINE;
    // A task of the broker listens a moment after the start.
    let mut stream = loop {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((ip.parse::<IpAddr>().unwrap(), 0).into()).unwrap();
        match socket.connect(log).await {
            Ok(stream) => break stream,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        sleep(Duration::from_millis(2)).await;
    };
    stream.write_all(&place.to_be_bytes()).await.unwrap();
    stream
}

/// Pops messages of the first queue, which nobody acknowledges. The answer's code.
pub(crate) async fn pop(running: &Running, consumer_group: &str, topic: &str, max_msg_nums: i32) -> i32 {
    running.call(request::POP_MESSAGE, &pop_of(consumer_group, topic, 0, max_msg_nums), "").await.code
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slave_of_ours_has_the_log_and_the_tables_and_either_side_may_start_again() {
    let master = start(a_master(0)).await;
    let _member = put_some(&master).await;
    let gates = Gates::before(&master).await;
    let slave = gates.slave(Arc::new(tempfile::tempdir().unwrap())).await;
    until_in_sync(&master, &slave).await;
    until("offsets have come over", || async { committed(&slave, 0).await == Ok(3) }).await;
    same_messages(&master, &slave).await;

    let told = status(&master).await;
    let row = &told.ha_connection_info[0];
    let end = master.store().end().0 as i64;
    assert!(told.master && row.in_sync && row.addr.starts_with("127.0.0.1:"), "{told:?}");
    assert_eq!((told.master_commit_log_max_offset, row.slave_ack_offset, row.transfer_from_where), (end, end, end));
    assert_eq!(figure(&master, "slavesConnected").await.as_deref(), Some("1"));
    let page = master.metrics();
    assert_eq!(metric(&page, "gantry_replica_slaves", ""), Some(1.0), "{page}");
    assert_eq!(metric(&page, "gantry_replica_slave_lag_bytes", "slave=\"127.0.0.1\""), Some(0.0), "{page}");
    assert_eq!(metric(&page, "gantry_replica_slave_lag_seconds", "slave=\"127.0.0.1\""), Some(0.0), "{page}");
    // The first record is asked for at the main port.
    let sent = metric(&page, "gantry_replica_sent_bytes_total", "").unwrap();
    assert!(sent > 0.0 && sent < end as f64, "{page}");

    // The master starts again.
    let left = master.stop().await;
    let master = start_on(a_master(0), left).await;
    gates.lead_to(&master);
    for number in 20..30 {
        master.put("T", number % 4, "", &format!("message {number}")).await;
    }
    until_in_sync(&master, &slave).await;
    // The slave is killed, and goes on with what it left.
    let image = slave.image();
    slave.stop().await;
    until("the slave is gone", || async { status(&master).await.ha_connection_info.is_empty() }).await;
    for number in 30..40 {
        master.put("T", number % 4, "", &format!("message {number}")).await;
    }
    let slave = gates.slave(image).await;
    until_in_sync(&master, &slave).await;
    same_messages(&master, &slave).await;
    assert_eq!(slave.all("T", 0).await.len(), 10);

    // As a master it has slaves itself.
    let left = slave.stop().await;
    master.stop().await;
    let promoted = start_on(a_master(0), left).await;
    let other = start(a_slave_of(&promoted)).await;
    promoted.put("T", 0, "", "of the new master").await;
    until_in_sync(&promoted, &other).await;
    same_messages(&promoted, &other).await;
    other.stop().await;
    promoted.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn duties_that_end_and_begin_again_serve_slaves_at_the_same_port() {
    let master = start(a_master(0)).await;
    make_topic(&master, "T").await;
    master.put("T", 0, "", "one").await;
    let slave = start(a_slave_of(&master)).await;
    until_in_sync(&master, &slave).await;
    master.broker.end_duties().await;
    assert!(master.broker.slaves().list().is_empty());
    assert!(TcpStream::connect(master.log.unwrap()).await.is_err(), "nobody listens");
    master.broker.begin_duties().await.unwrap();
    master.put("T", 0, "", "two").await;
    until_in_sync(&master, &slave).await;
    slave.stop().await;
    master.stop().await;
}

/// Has the log shortened to 512 KiB, and returns when that was tried.
async fn retention_has_looked(running: &Running) {
    // The hour is asked for before a file is looked at: with the second one the look before has ended.
    for _ in 0..2 {
        let has_begun = Arc::new(AtomicBool::new(false));
        let begins = Arc::clone(&has_begun);
        let hour_of_day = HourOfDay::new(move |_| {
            begins.store(true, Ordering::Relaxed);
            0
        });
        running.store().retain(Retention {
            delete_when: Vec::new(),
            hour_of_day,
            clean_forcibly: false,
            log_bytes_max: Some(512 << 10),
            ..Retention::default()
        });
        until("retention looks", || async { has_begun.load(Ordering::Relaxed) }).await;
    }
}

/// Where the slave is that is behind.
const NEEDED: u64 = 4 * FILE + 1000;

fn with_small_files() -> Setup {
    // Whatever the machine's disk is at.
    Setup { segment_bytes: FILE, more: &[("cleanFileForciblyEnable", "false"), STANDING], ..a_master(0) }
}

/// A master of eight files, and a slave that is to get the fifth.
async fn with_slave_behind() -> (Running, TcpStream) {
    let master = start(with_small_files()).await;
    fill(&master, 8).await;
    // What there was when it started a slave may have.
    let master = start_on(with_small_files(), master.stop().await).await;
    let slave = standing_at(master.log.unwrap(), NEEDED).await;
    until("the slave is known", || async { master.broker.slaves().list().len() == 1 }).await;
    (master, slave)
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_a_slave_has_yet_to_get_are_kept_as_long_as_is_said() {
    let (master, slave) = with_slave_behind().await;
    update(&master, "commitLogBytesMax=512K\n").await;
    let min = || master.store().min_offset().0;
    until("the files before its place are gone", || async { min() + FILE > NEEDED }).await;
    assert!(min() <= NEEDED, "a file is gone that it has yet to get");
    let end = master.store().end().0;
    assert_eq!(metric(&master.metrics(), "gantry_log_needed_by_slaves_bytes", ""), Some((end - NEEDED) as f64));

    // It goes, and has yet to come back.
    drop(slave);
    until("the slave is gone", || async { master.broker.slaves().list().is_empty() }).await;
    fill(&master, 1).await;
    update(&master, "replicaRetentionMax=100\n").await;
    retention_has_looked(&master).await;
    assert!(min() <= NEEDED, "a file is gone that it has yet to get");
    let end = master.store().end().0;
    assert_eq!(metric(&master.metrics(), "gantry_log_needed_by_slaves_bytes", ""), Some((end - NEEDED) as f64));

    update(&master, "commitLogBytesMax=512K\nreplicaRetentionMax=0\n").await;
    until("nothing is kept for it any more", || async { min() > NEEDED }).await;
    let mut late = standing_at(master.log.unwrap(), NEEDED).await;
    until("it is told that it is too far behind", || async { closed(&master, "behind") == 1 }).await;
    assert_eq!(late.read(&mut [0; 64]).await.unwrap_or(0), 0);
    master.stop().await;
}

/// Retention may look before slaves are back.
#[tokio::test(flavor = "multi_thread")]
async fn files_that_a_slave_has_yet_to_get_are_kept_behind_a_restart_of_its_master() {
    let (master, slave) = with_slave_behind().await;
    let left = master.stop().await;
    drop(slave);

    let master = start_on(with_small_files(), left).await;
    let min = || master.store().min_offset().0;
    retention_has_looked(&master).await;
    until("the files before its place are gone", || async { min() + FILE > NEEDED }).await;
    retention_has_looked(&master).await;
    assert!(min() <= NEEDED, "a file is gone that it has yet to get");
    let _slave = standing_at(master.log.unwrap(), NEEDED).await;
    until("it is back", || async { master.broker.slaves().list().len() == 1 }).await;
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_connections_change_nothing_for_a_slave_and_for_producers() {
    let master = start(Setup { more: &[STANDING], ..a_master(0) }).await;
    make_topic(&master, "T").await;
    let slave = start(a_slave_of(&master)).await;
    master.put("T", 0, "", "before").await;
    until_in_sync(&master, &slave).await;
    let ended = || master.broker.slaves().closed().map(|(_, count)| count).sum::<u64>();
    // The slave connects twice: it greets first.
    until("its first connection has ended", || async { ended() > 0 }).await;
    let before = ended();
    let log = master.log.unwrap();
    let mut half_open = Vec::new();
    for number in 0..10_000_u32 {
        let mut socket = TcpStream::connect(log).await.unwrap();
        match number % 8 {
            // It says nothing, and stays.
            0 | 4 if half_open.len() < 200 => half_open.push(socket),
            // A scanner, whose first bytes are a huge number.
            1 => _ = socket.write_all(b"GET / HTTP/1.1\r\n\r\n").await,
            // What is no log offset.
            5 => _ = socket.write_all(&[0xff; 16]).await,
            // Half of a report.
            2 | 6 => _ = socket.write_all(&[0; 4]).await,
            // Half of a hello.
            3 => _ = socket.write_all(b"\x9fGantry\n\0\x01\0").await,
            // False acknowledgements.
            _ => _ = socket.write_all(&(1_u64 << 50).to_be_bytes()).await,
        }
        if number % 1000 == 0 {
            master.put("T", 1, "", "meanwhile").await;
        }
    }
    until_in_sync(&master, &slave).await;
    assert_eq!(slave.all("T", 1).await.len(), 10);
    assert_eq!(master.broker.slaves().list().len(), 1);
    drop(half_open);
    until("the others are gone", || async { ended() >= before + 10_000 }).await;
    assert!(closed(&master, "ahead") > 0 && closed(&master, "misread") > 0 && closed(&master, "madeWay") > 0);
    let page = master.metrics();
    assert_eq!(metric(&page, "gantry_replica_closed_connections_total", "reason=\"silent\""), Some(0.0), "{page}");
    slave.stop().await;
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_of_a_master_change_for_slaves_that_are_connected() {
    let setup = Setup {
        more: &[
            ("haFlowControlEnable", "true"),
            ("maxHaTransferByteInSecond", "1024"),
            ("haTransferBatchSize", "1024"),
        ],
        ..a_master(0)
    };
    let master = start(setup).await;
    fill(&master, 4).await;
    let slave = start(a_slave_of(&master)).await;
    until("the slave is connected", || async { !status(&master).await.ha_connection_info.is_empty() }).await;
    assert!(slave.store().end() < master.store().end(), "a kilobyte a second");
    for (wrong, limit) in [
        ("maxHaTransferByteInSecond=1", "1024"),
        ("haTransferBatchSize=4M", "4000000"),
        ("replicaAllow=10.0.0.0/40", "32"),
        ("replicaRetentionMax=101", "100"),
    ] {
        let answer = master.call(request::UPDATE_BROKER_CONFIG, &(), format!("{wrong}\n")).await;
        let (remark, (key, value)) = (answer.remark.unwrap(), wrong.split_once('=').unwrap());
        assert_eq!(answer.code, ResponseCode::InvalidParameter as i32);
        assert!(remark.contains(key) && remark.contains(value) && remark.contains(limit), "{remark}");
    }
    update(&master, "haFlowControlEnable=false\nhaTransferBatchSize=32768\n").await;
    until_in_sync(&master, &slave).await;
    // A gap of nothing is never small enough.
    update(&master, "haMaxGapNotInSync=0\n").await;
    let told = status(&master).await;
    assert!(told.in_sync_slave_nums == 0 && !told.ha_connection_info[0].in_sync, "{told:?}");
    slave.stop().await;
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_change_for_slaves_that_are_connected_and_what_needs_a_start_says_so() {
    const RARE: (&str, &str) = ("haSendHeartbeatInterval", "600000");
    let master = start(Setup { more: &[RARE, STANDING], ..a_master(0) }).await;
    make_topic(&master, "T").await;
    master.put("T", 0, "", "one").await;
    let log: &'static str = master.log.unwrap().to_string().leak();
    let of_slave = vec![("brokerRole", "SLAVE"), ("brokerId", "1"), ("haMasterAddress", log), RARE, STANDING];
    let slave = start(Setup { more: of_slave.leak(), ..Setup::default() }).await;
    until_in_sync(&master, &slave).await;
    let told = async || status(&slave).await.ha_client_runtime_info.unwrap();
    let before = told().await;
    // It has nothing to report.
    update(&slave, "haSendHeartbeatInterval=20\n").await;
    until("it repeats its report", || async { told().await.last_write_timestamp > before.last_write_timestamp }).await;
    // Its master has nothing to send.
    let before = told().await;
    update(&master, "haSendHeartbeatInterval=20\n").await;
    until("a heartbeat comes", || async { told().await.last_read_timestamp > before.last_read_timestamp }).await;
    for key in ["haListenPort=1", "brokerIP2=127.0.0.2"] {
        let answer = master.call(request::UPDATE_BROKER_CONFIG, &(), format!("{key}\n")).await;
        let remark = answer.remark.unwrap();
        assert!(answer.code != 0 && remark.contains(key.split_once('=').unwrap().0), "{remark}");
        assert!(remark.contains("read at start only"), "{remark}");
    }
    slave.stop().await;
    master.stop().await;
}

/// Without this a slave would have what the master lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_slave_that_is_ahead_of_its_master_is_told_and_gets_nothing() {
    let master = start(a_master(0)).await;
    make_topic(&master, "T").await;
    master.put("T", 0, "", "one").await;
    let before = master.image();
    master.put("T", 0, "", "two").await;
    let gates = Gates::before(&master).await;
    let slave = gates.slave(Arc::new(tempfile::tempdir().unwrap())).await;
    until_in_sync(&master, &slave).await;
    master.stop().await;
    let master = start_on(a_master(0), before).await;
    gates.lead_to(&master);
    until("the slave says so", || async {
        figure(&slave, "masterFailure").await.is_some_and(|why| why.contains("the master's log ends at"))
    })
    .await;
    assert_eq!(slave.all("T", 0).await.len(), 2);
    assert!(status(&master).await.ha_connection_info.is_empty());
    slave.stop().await;
    master.stop().await;
}

/// Whether a slave has all of the log when its master has stopped. The check-points of open leases are appended last.
async fn has_all_that_its_master_leaves() -> bool {
    let master = start(a_master(0)).await;
    make_topic(&master, "T").await;
    let slave = start(a_slave_of(&master)).await;
    for number in 0..8 {
        master.put("T", 0, "", &format!("message {number}")).await;
    }
    assert_eq!(pop(&master, "G", "T", 8).await, 0);
    until_in_sync(&master, &slave).await;
    // One that hangs besides.
    let hangs = standing_at(master.log.unwrap(), 0).await;
    let (store, before) = (master.shared_store(), master.store().end());
    until("both are slaves", || async { master.broker.slaves().list().len() == 2 }).await;
    tokio::time::timeout(Duration::from_secs(60), master.stop()).await.unwrap();
    assert!(store.end() > before, "leases were handed over");
    let has_all = slave.store().end() == store.end();
    drop(hangs);
    slave.stop().await;
    has_all
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_stops_leaves_its_slave_all_of_the_log() {
    // A master gives its slaves 1.5 s, and on a starved machine one may not have them.
    for _ in 0..5 {
        if has_all_that_its_master_leaves().await {
            return;
        }
    }
    panic!("a slave does not get the end of the log");
}

/// What a slave has that its master has lost is no copy of what the master appends then, at the same places.
#[tokio::test(flavor = "multi_thread")]
async fn a_slave_with_more_than_its_master_has_left_acknowledges_nothing_when_that_has_as_much_again() {
    let sync = || Setup { more: &[("brokerRole", "SYNC_MASTER"), ("slaveTimeout", "60000")], ..a_master(0) };
    let master = start(a_master(0)).await;
    make_topic(&master, "T").await;
    master.put("T", 0, "", "one").await;
    let before = master.image();
    master.put("T", 0, "", "two").await;
    let has = master.store().end().0;
    master.stop().await;

    let master = start_on(sync(), before).await;
    let log = master.log.unwrap();
    let left = master.store().end().0;
    assert!(left < has, "it has lost a message");
    // Nobody is there, so each is answered 11 after a while.
    while master.store().end().0 < has {
        assert_eq!(master.send(&to("T", 0, ""), "another").await.code, 11);
    }
    let mut slave = standing_at(log, has).await;
    until("it is turned away", || async { closed(&master, "ahead") == 1 }).await;
    assert_eq!(slave.read(&mut [0; 64]).await.unwrap_or(0), 0);
    // One that has what the master has left goes on from there.
    let mut other = standing_at(log, left).await;
    let has_left = || async { master.broker.slaves().list().iter().any(|slave| slave.acknowledged.0 == left) };
    until("it is let in, with what it has", has_left).await;
    let mut header = [0; 12];
    other.read_exact(&mut header).await.unwrap();
    assert_eq!(header[..8], left.to_be_bytes());
    drop(other);
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_of_what_only_the_master_has_is_not_led_past_it() {
    let small = |setup: Setup| Setup { segment_bytes: FILE, ..setup };
    let master = start(small(a_master(0))).await;
    fill(&master, 4).await;
    let slave = start(small(a_slave_of(&master))).await;
    until_in_sync(&master, &slave).await;
    update(&slave, "commitLogBytesMax=512K\n").await;
    until("the slave has removed its first file", || async { slave.store().min_offset().0 > 0 }).await;
    let asked = async || {
        let answer = slave.call(request::PULL_MESSAGE, &support::from("Fill", 0, 1), "").await;
        let field = |name: &str| answer.fields.get(name).unwrap_or("none").to_owned();
        (answer.code, field("nextBeginOffset"), field("suggestWhichBrokerId"))
    };
    assert_eq!(asked().await, (20, "1".to_owned(), "0".to_owned()));
    master.stop().await;
    until_connected(&slave, false).await;
    assert_eq!(asked().await, (20, "1".to_owned(), "1".to_owned()), "it waits for its master");
    slave.stop().await;
}
