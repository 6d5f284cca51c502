//! SYNC_MASTER: acknowledgements that wait for slaves. These are scripted, and speak the plain stream.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use protocol::code::ResponseCode;
use protocol::code::request;
use protocol::message_id::parse_offset_message_id;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::batch_queues::{create, send_batch};
use crate::in_process::{caller, message, put};
use crate::support::*;
use crate::taking_and_giving::back_of;

const REFUSED: i32 = 1;
pub const DISK_LATE: i32 = 10;
pub const NO_SLAVE: i32 = 11;
pub const SLAVE_LATE: i32 = 12;
const ILLEGAL: i32 = 13;

pub const PATIENT: &[(&str, &str)] = &[("brokerRole", "SYNC_MASTER"), ("slaveTimeout", "60000")];

/// A master with a port for slaves.
pub async fn master(more: &'static [(&'static str, &'static str)]) -> Arc<Running> {
    Arc::new(start(Setup { main_port: Some(0), more, ..Setup::default() }).await)
}

/// A `SYNC_MASTER` whose `syncFlushTimeout` is short, in milliseconds, and that waits for slaves without a limit.
pub async fn patient_on(device: &Device, sync_flush_timeout: &'static str) -> Arc<Running> {
    let setup = Setup {
        is_sync: true,
        sync_flush_timeout,
        device: device.clone(),
        main_port: Some(0),
        more: PATIENT,
        ..Setup::default()
    };
    Arc::new(start(setup).await)
}

pub async fn stop(running: Arc<Running>) {
    Arc::into_inner(running).unwrap().stop().await;
}

pub async fn set(running: &Running, line: &str) {
    let changed = running.call(request::UPDATE_BROKER_CONFIG, &(), line.to_owned()).await;
    assert_eq!(changed.code, 0, "{:?}", changed.remark);
}

pub async fn code_of(running: &Running, topic: &str, properties: &str) -> i32 {
    running.send(&to(topic, 0, properties), "x").await.code
}

pub fn own(word: &str) -> String {
    properties(&[("replica.ack", word)])
}

/// A send that is under way.
pub fn begin(running: &Arc<Running>, topic: &'static str, properties: &str) -> JoinHandle<i32> {
    let (running, properties) = (Arc::clone(running), properties.to_owned());
    tokio::spawn(async move { code_of(&running, topic, &properties).await })
}

/// A message that a consumer gives back: it is under way.
pub fn give_back(running: &Arc<Running>, message: &Message) -> JoinHandle<i32> {
    let (running, message) = (Arc::clone(running), message.clone());
    tokio::spawn(
        async move { running.call(request::CONSUMER_SEND_MSG_BACK, &back_of(&message), Vec::new()).await.code },
    )
}

/// A slave. Dropped, it is gone.
pub struct Slave {
    acknowledges: watch::Sender<bool>,
    /// What it has said that it has.
    pub acknowledged: Arc<AtomicU64>,
    /// What it was sent.
    pub got: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Slave {
    /// Connects from this address of the machine with nothing, and gets the log as it is.
    async fn at(running: &Running, ip: &str) -> Slave {
        let stream = connect(running, ip, 0).await;
        let (address, end) = (stream.local_addr().unwrap(), running.store().end());
        let (acknowledges, told) = watch::channel(true);
        let (acknowledged, got) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let task = tokio::spawn(follow(stream, told, Arc::clone(&acknowledged), Arc::clone(&got)));
        let slaves = running.broker.slaves();
        let has_all = || slaves.list().iter().any(|slave| slave.peer.address == address && slave.acknowledged >= end);
        until("the slave", has_all).await;
        judge(running);
        Slave { acknowledges, acknowledged, got, task }
    }

    pub async fn of(running: &Running) -> Slave {
        Slave::at(running, "127.0.0.1").await
    }

    /// From now on it says what it has, or nothing.
    pub fn acknowledge(&self, is_asked: bool) {
        self.acknowledges.send_replace(is_asked);
    }

    /// Ends, and waits until its master knows.
    pub async fn leave(self, running: &Running) {
        let count = running.broker.slaves().list().len();
        drop(self);
        until("the slave to be gone", || running.broker.slaves().list().len() < count).await;
        judge(running);
    }
}

/// What a slave has or has not counts for sends a moment after it is seen in the list, or now.
fn judge(running: &Running) {
    // The page is made of what the slaves are at this moment.
    running.metrics();
}

impl Drop for Slave {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn connect(running: &Running, ip: &str, report: u64) -> TcpStream {
    let deadline = Instant::now() + DEADLINE;
    // Until a task of the broker listens at the port, which is bound, nobody gets through.
    let mut stream = loop {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(ip.parse::<IpAddr>().unwrap(), 0)).unwrap();
        match socket.connect(running.log.unwrap()).await {
            Ok(stream) => break stream,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    };
    stream.write_all(&report.to_be_bytes()).await.unwrap();
    stream
}

/// Reads frames, and reports each when it is asked to. Otherwise it says again what it has said, so that nobody takes it for gone, however long a
/// test takes.
async fn follow(stream: TcpStream, mut told: watch::Receiver<bool>, acknowledged: Arc<AtomicU64>, got: Arc<AtomicU64>) {
    let (mut reader, mut writer) = stream.into_split();
    let of_reader = Arc::clone(&got);
    let (frames, mut came) = watch::channel(());
    let reading = async move {
        let (mut header, mut body) = ([0; 12], Vec::new());
        while reader.read_exact(&mut header).await.is_ok() {
            let at = u64::from_be_bytes(header[..8].try_into().unwrap());
            body.resize(u32::from_be_bytes(header[8..].try_into().unwrap()) as usize, 0);
            if reader.read_exact(&mut body).await.is_err() {
                return;
            }
            of_reader.fetch_max(at + body.len() as u64, Ordering::SeqCst);
            frames.send_replace(());
        }
    };
    let reporting = async move {
        loop {
            let end = got.load(Ordering::SeqCst);
            if *told.borrow_and_update() {
                acknowledged.store(end, Ordering::SeqCst);
            }
            if writer.write_all(&acknowledged.load(Ordering::SeqCst).to_be_bytes()).await.is_err() {
                return;
            }
            tokio::select! {
                changed = told.changed() => if changed.is_err() { return },
                changed = came.changed() => if changed.is_err() { return },
            }
        }
    };
    tokio::join!(reading, reporting);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_send_is_acknowledged_when_a_slave_has_it_and_consumers_see_it_before() {
    let running = master(PATIENT).await;
    let slave = Slave::of(&running).await;
    running.put("Orders", 0, "", "first").await;
    assert!(slave.acknowledged.load(Ordering::SeqCst) >= running.store().end().0);

    slave.acknowledge(false);
    let parked = {
        let running = Arc::clone(&running);
        tokio::spawn(async move { running.pull(&waiting(from("Orders", 0, 1), 30_000)).await })
    };
    running.until_parked(1).await;
    let sent = begin(&running, "Orders", "");
    assert_eq!(parked.await.unwrap().messages.len(), 1, "a consumer that waits is woken");
    until("the slave to get it", || slave.got.load(Ordering::SeqCst) >= running.store().end().0).await;
    assert!(running.store().flushed().wait_until(running.store().end().0, Instant::now() + DEADLINE));
    assert!(!sent.is_finished(), "written, flushed and seen, and no slave has said that it has it");
    // It is others that do not wait.
    assert_eq!(code_of(&running, "Orders", &own("NONE")).await, 0);
    assert_eq!(code_of(&running, "Orders", &properties(&[("WAIT", "false")])).await, 0);
    assert!(!sent.is_finished());
    slave.acknowledge(true);
    assert_eq!(sent.await.unwrap(), 0);
    drop(slave);
    stop(running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_slave_is_named_with_what_is_missing() {
    let running = master(PATIENT).await;
    let slave = Slave::of(&running).await;
    running.put("Orders", 0, "", "first").await;
    // Those that are to be late have a short limit, the others time enough on a busy machine.
    set(&running, "slaveTimeout=300").await;
    slave.acknowledge(false);
    let before = running.store().end().0;
    let late = running.send(&to("Orders", 0, ""), "second").await;
    assert_eq!(late.code, SLAVE_LATE, "{:?}", late.remark);
    let missing = format!("{} bytes behind", running.store().end().0 - before);
    let remark = late.remark.clone().unwrap();
    for part in [
        "stored, but not on enough slaves within 300 ms (slaveTimeout)",
        "1 needed, 1 connected, 1 in sync",
        missing.as_str(),
    ] {
        assert!(remark.contains(part), "{remark}");
    }
    assert_eq!(Sent::of(&late).queue_offset, 1, "late is stored");
    // Also in this process.
    let local = message("Orders", 0, "", "third").call(&running.broker, &mut caller()).await.unwrap();
    assert_eq!(local.code, ResponseCode::FlushSlaveTimeout);
    let batch = send_batch(&running, "Orders", "", batch_of(&[("a", ""), ("b", "")])).await;
    assert_eq!(batch.code, SLAVE_LATE, "{:?}", batch.remark);
    assert_eq!(code_of(&running, "Orders", &properties(&[("DELAY", "1")])).await, SLAVE_LATE);

    slave.acknowledge(true);
    set(&running, "slaveTimeout=60000").await;
    running.put("Orders", 0, "", "fourth").await;
    put(&running, message("Orders", 0, "", "fifth")).await;
    drop(slave);
    stop(running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_slave_a_send_is_stored_and_told_so() {
    let running = master(PATIENT).await;
    let alone = running.send(&to("Orders", 0, ""), "first").await;
    assert_eq!(alone.code, NO_SLAVE, "{:?}", alone.remark);
    let remark = alone.remark.unwrap();
    assert!(remark.contains("stored, but there are not enough slaves: 1 needed, 0 connected, 0 in sync"), "{remark}");
    assert_eq!(running.wait_for("Orders", 0, 1).await[0].body, "first");
    let local = message("Orders", 0, "", "second").call(&running.broker, &mut caller()).await.unwrap();
    assert_eq!(local.code, ResponseCode::SlaveNotAvailable);
    assert_eq!(send_batch(&running, "Orders", "", batch_of(&[("a", "")])).await.code, NO_SLAVE);

    let slave = Slave::of(&running).await;
    running.put("Orders", 0, "", "third").await;
    // What waits when it goes is not told of a slave that is late.
    slave.acknowledge(false);
    let sent = begin(&running, "Orders", "");
    until("the slave to get it", || slave.got.load(Ordering::SeqCst) >= running.store().end().0).await;
    slave.leave(&running).await;
    assert_eq!(sent.await.unwrap(), NO_SLAVE);
    stop(running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slave_that_is_back_soon_enough_is_no_reason_to_tell_anybody() {
    let (setup, hand) = Setup { main_port: Some(0), more: PATIENT, ..Setup::default() }.standing();
    let running = Arc::new(start(setup).await);
    let slave = Slave::of(&running).await;
    running.put("Orders", 0, "", "first").await;
    slave.leave(&running).await;
    let sent = begin(&running, "Orders", "");
    running.wait_for("Orders", 0, 2).await;
    hand.advance(Duration::from_millis(900));
    let slave = Slave::of(&running).await;
    assert_eq!(sent.await.unwrap(), 0);

    slave.leave(&running).await;
    let sent = begin(&running, "Orders", "");
    running.wait_for("Orders", 0, 3).await;
    assert!(!sent.is_finished());
    hand.advance(Duration::from_millis(1000));
    assert_eq!(sent.await.unwrap(), NO_SLAVE);
    stop(running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_slaves_are_two_addresses_and_false_reports_acknowledge_nothing() {
    const THREE: &[(&str, &str)] = &[("brokerRole", "SYNC_MASTER"), ("slaveTimeout", "60000"), ("inSyncReplicas", "3")];
    let running = master(THREE).await;
    let first = Slave::at(&running, "127.0.0.1").await;
    let twin = Slave::at(&running, "127.0.0.1").await;
    let short = running.send(&to("Orders", 0, ""), "x").await;
    assert_eq!(short.code, NO_SLAVE, "{:?}", short.remark);
    assert!(short.remark.unwrap().contains("2 needed, 1 connected"));
    let second = Slave::at(&running, "127.0.0.2").await;
    running.put("Orders", 0, "", "on both").await;
    // The slower one of both counts.
    second.acknowledge(false);
    let sent = begin(&running, "Orders", "");
    until("the others", || first.acknowledged.load(Ordering::SeqCst) >= running.store().end().0).await;
    until("the twin", || twin.acknowledged.load(Ordering::SeqCst) >= running.store().end().0).await;
    assert!(!sent.is_finished());
    second.acknowledge(true);
    assert_eq!(sent.await.unwrap(), 0);
    drop((first, twin, second));
    until("all to be gone", || running.broker.slaves().list().is_empty()).await;

    set(&running, "inSyncReplicas=2").await;
    let sent = running.broker.slaves().sent();
    for report in [running.store().end().0 + 1000, 1 << 50, u64::MAX >> 1, u64::MAX] {
        let mut liar = connect(&running, "127.0.0.1", report).await;
        // One that begins like a hello is told why.
        let _ = liar.read_to_end(&mut Vec::new()).await;
        assert_eq!(running.broker.slaves().sent(), sent, "closed: it cannot have so much");
        assert_eq!(code_of(&running, "Orders", "").await, NO_SLAVE);
    }
    stop(running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_rocketmq_5_has_it_no_slave_is_waited_for_unless_somebody_says_so() {
    const ONE: &[(&str, &str)] = &[("brokerRole", "SYNC_MASTER"), ("inSyncReplicas", "1")];
    let running = master(ONE).await;
    assert_eq!(code_of(&running, "Orders", "").await, 0);
    assert_eq!(code_of(&running, "Orders", &own("SYNC")).await, NO_SLAVE);
    stop(running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_itself_a_master_goes_on_alone_and_says_so_or_refuses_what_it_may_not_take_alone() {
    const AUTO: &[(&str, &str)] =
        &[("brokerRole", "SYNC_MASTER"), ("slaveTimeout", "60000"), ("enableAutoInSyncReplicas", "true")];
    let running = master(AUTO).await;
    let is_alone = || {
        running
            .metrics()
            .lines()
            .any(|line| line.starts_with("gantry_replica_acknowledges_alone{") && line.ends_with(" 1"))
    };
    assert_eq!(code_of(&running, "Orders", "").await, 0);
    assert!(is_alone(), "{}", running.metrics());
    // Who asks for a slave is not told of success without one.
    assert_eq!(code_of(&running, "Orders", &own("SYNC")).await, NO_SLAVE);
    assert_eq!(code_of(&running, "Orders", &own("ALL")).await, NO_SLAVE);
    let slave = Slave::of(&running).await;
    assert!(!is_alone());
    slave.acknowledge(false);
    let sent = begin(&running, "Orders", "");
    until("the slave to get it", || slave.got.load(Ordering::SeqCst) >= running.store().end().0).await;
    assert!(!sent.is_finished());
    slave.leave(&running).await;
    assert_eq!(sent.await.unwrap(), 0, "it is judged by what there is now");

    set(&running, "minInSyncReplicas=2").await;
    let before = running.store().end();
    let refused = running.send(&to("Orders", 0, ""), "x").await;
    assert_eq!(refused.code, REFUSED, "{:?}", refused.remark);
    let remark = refused.remark.unwrap();
    assert!(remark.starts_with("in-sync replicas not enough: 1 in sync") && remark.contains("2 needed"), "{remark}");
    assert_eq!(running.store().end(), before, "and nothing is stored");
    assert_eq!(send_batch(&running, "Orders", "", batch_of(&[("a", "")])).await.code, REFUSED);
    assert_eq!(code_of(&running, "Orders", &properties(&[("WAIT", "false")])).await, 0, "as in RocketMQ");
    let slave = Slave::of(&running).await;
    assert_eq!(code_of(&running, "Orders", "").await, 0);
    drop(slave);
    stop(running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_promised_changes_while_the_broker_runs() {
    const ASYNC: &[(&str, &str)] = &[("slaveTimeout", "60000")];
    let running = master(ASYNC).await;
    let slave = Slave::of(&running).await;
    slave.acknowledge(false);
    assert_eq!(code_of(&running, "Orders", "").await, 0);
    set(&running, "brokerRole=SYNC_MASTER").await;
    let sent = begin(&running, "Orders", "");
    let asked = begin(&running, "Orders", &own("SYNC"));
    running.wait_for("Orders", 0, 3).await;
    assert!(!sent.is_finished() && !asked.is_finished());
    // Those that waited by the broker's word wait no more; one that asked for itself does.
    set(&running, "brokerRole=ASYNC_MASTER").await;
    assert_eq!(sent.await.unwrap(), 0);
    assert_eq!(code_of(&running, "Orders", "").await, 0);
    assert!(!asked.is_finished());
    set(&running, "brokerRole=SYNC_MASTER").await;
    let sent = begin(&running, "Orders", "");
    running.wait_for("Orders", 0, 5).await;
    assert!(!sent.is_finished());
    slave.acknowledge(true);
    assert_eq!((sent.await.unwrap(), asked.await.unwrap()), (0, 0));

    set(&running, "inSyncReplicas=3").await;
    assert_eq!(code_of(&running, "Orders", "").await, NO_SLAVE);
    set(&running, "inSyncReplicas=2").await;
    assert_eq!(code_of(&running, "Orders", "").await, 0);
    set(&running, "slaveTimeout=200").await;
    slave.acknowledge(false);
    assert_eq!(code_of(&running, "Orders", "").await, SLAVE_LATE);
    let refused = running.call(request::UPDATE_BROKER_CONFIG, &(), "brokerRole=SLAVE").await;
    assert!(refused.remark.unwrap().contains("brokerRole=SLAVE"), "{}", refused.code);
    drop(slave);
    stop(running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_and_a_message_say_for_themselves_which_slaves_they_wait_for() {
    const ASYNC: &[(&str, &str)] = &[("slaveTimeout", "60000")];
    let running = master(ASYNC).await;
    assert_eq!(create(&running, "Payments", "+replica.ack=SYNC").await.0, 0);
    assert_eq!(code_of(&running, "Payments", "").await, NO_SLAVE);
    assert_eq!(code_of(&running, "Payments", &own("NONE")).await, 0);
    assert_eq!(code_of(&running, "Payments", &properties(&[("WAIT", "false")])).await, 0);
    assert_eq!(code_of(&running, "Orders", "").await, 0);
    assert_eq!(code_of(&running, "Orders", &own("SYNC")).await, NO_SLAVE);
    assert_eq!(send_batch(&running, "Orders", "", batch_of(&[("a", ""), ("b", &own("SYNC"))])).await.code, NO_SLAVE);
    let wrong = running.send(&to("Orders", 0, &own("TWO")), "x").await;
    assert_eq!(wrong.code, ILLEGAL);
    assert!(wrong.remark.unwrap().contains("replica.ack: \"TWO\" is none of NONE, SYNC, ALL"));
    let (code, remark) = create(&running, "Payments", "+replica.ack=TWO").await;
    assert!(code != 0 && remark.contains("TWO"), "{remark}");

    let (first, second) = (Slave::at(&running, "127.0.0.1").await, Slave::at(&running, "127.0.0.2").await);
    second.acknowledge(false);
    assert_eq!(code_of(&running, "Payments", "").await, 0, "one is enough");
    set(&running, "slaveTimeout=300").await;
    let late = running.send(&to("Payments", 0, &own("ALL")), "x").await;
    assert_eq!(late.code, SLAVE_LATE);
    assert!(late.remark.unwrap().contains("2 needed, 2 connected"));
    assert_eq!(create(&running, "Payments", "+replica.ack=ALL").await.0, 0);
    assert_eq!(code_of(&running, "Payments", "").await, SLAVE_LATE);
    set(&running, "slaveTimeout=60000").await;
    second.acknowledge(true);
    assert_eq!(code_of(&running, "Payments", "").await, 0);
    // What is given back to such a topic is as safe as it was.
    second.acknowledge(false);
    let stored = running.wait_for("Payments", 0, 1).await;
    let end = running.store().end().0;
    let giving = give_back(&running, &stored[0]);
    until("the retry", || running.store().end().0 > end).await;
    until("the others to have it", || first.acknowledged.load(Ordering::SeqCst) >= running.store().end().0).await;
    assert!(!giving.is_finished());
    second.acknowledge(true);
    assert_eq!(giving.await.unwrap(), 0);
    second.acknowledge(false);
    assert_eq!(create(&running, "Payments", "-replica.ack").await.0, 0);
    assert_eq!(code_of(&running, "Payments", "").await, 0);
    drop((first, second));
    stop(running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_device_and_slaves_are_waited_for_beside_each_other() {
    let device = Device::default();
    let running = patient_on(&device, "60000").await;
    let slave = Slave::of(&running).await;
    running.put("Orders", 0, "", "first").await;
    device.hold_flush(true);
    // The slave gets it although the device does not. What is not to be late has time enough on a busy machine.
    set(&running, "syncFlushTimeout=300").await;
    assert_eq!(code_of(&running, "Orders", "").await, DISK_LATE);
    set(&running, "syncFlushTimeout=60000").await;
    until("the slave", || slave.acknowledged.load(Ordering::SeqCst) >= running.store().end().0).await;
    let by_slave = properties(&[("flush.disk.type", "ASYNC_FLUSH")]);
    assert_eq!(code_of(&running, "Orders", &by_slave).await, 0);
    device.hold_flush(false);
    running.wait_for("Orders", 0, 3).await;
    set(&running, "slaveTimeout=200").await;
    slave.acknowledge(false);
    assert_eq!(code_of(&running, "Orders", "").await, SLAVE_LATE);
    assert_eq!(code_of(&running, "Orders", &own("NONE")).await, 0);
    drop(slave);
    stop(running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_producer_of_many_hears_of_success_before_the_slave_has_its_message() {
    const PRODUCERS: usize = 16;
    const SENDS: usize = 40;
    let running = master(PATIENT).await;
    let slave = Arc::new(Slave::of(&running).await);
    // All of them are of one length.
    let (_, at) = parse_offset_message_id(&running.put("Orders", 0, "", "x").await.id).unwrap();
    let bytes = running.store().end().0 - at;
    let producers: Vec<JoinHandle<()>> = (0..PRODUCERS)
        .map(|number| {
            let (running, slave) = (Arc::clone(&running), Arc::clone(&slave));
            tokio::spawn(async move {
                for _ in 0..SENDS {
                    let sent = running.put("Orders", (number % 4) as i32, "", "x").await;
                    let (_, at) = parse_offset_message_id(&sent.id).unwrap();
                    assert!(slave.acknowledged.load(Ordering::SeqCst) >= at + bytes, "{at}");
                }
            })
        })
        .collect();
    for producer in producers {
        producer.await.unwrap();
    }
    let mut found = 0;
    for queue_id in 0..4 {
        found += running.all("Orders", queue_id).await.len();
    }
    assert_eq!(found, PRODUCERS * SENDS + 1);
    drop(slave);
    stop(running).await;
}
