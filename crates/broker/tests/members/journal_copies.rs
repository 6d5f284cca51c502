//! A slave of ours follows the journal of a master of ours: what is not in the log is there as it is at the master.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use env::Clock;
use journal::{Change, TableId};
use protocol::body::ConsumerOffsets;
use protocol::code::request;
use protocol::fastjson;
use protocol::request::{
    AckMessage, CopyJournal, CopyJournalReply, CreateTopic, DeleteGroup, DeleteTopic, EndTransaction, GetTopicConfig,
    PopMessage,
};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::slaves::{Front, Log, Places, figure, master_with, slave_at, slave_on, until, until_equal};
use crate::support::{Message, Setup, messages, properties, start, start_on, to};
use crate::{DEADLINE, Running, commit, committed, make_group, make_topic, make_topic_with, pop_of, topic};

/// Numbers of the tables that a slave gets, but that of versions, which a start of the slave may advance.
const COPIED: [u8; 13] = [1, 3, 4, 5, 6, 9, 20, 21, 22, 23, 24, 30, 31];
const CHECKS: TableId = TableId(9);

type Rows = BTreeMap<(u8, Vec<u8>), Vec<u8>>;

/// The rows that a broker has of these tables.
fn rows(running: &Running) -> Rows {
    let mut rows = Rows::new();
    for table in COPIED {
        running.store().journal().show(TableId(table), &mut |key, value| {
            // Where a start looks for deliveries that no row tells of is each broker's own until there is one.
            if (table, key) == (3, &[255; 4]) {
                return;
            }
            // When a group has committed is kept once for all its queues.
            let value = if table == 6 { &value[..8] } else { value };
            rows.insert((table, key.to_vec()), value.to_vec());
        });
    }
    rows
}

/// Waits until the slave has all that the master's journal has.
async fn until_copied(master: &Running, slave: &Running) {
    // What was committed goes to the journal a moment later.
    let answer = master.call(request::GET_ALL_CONSUMER_OFFSET, &(), "").await;
    assert_eq!(answer.code, 0);
    until("the slave has the journal", || async {
        let end = master.store().journal().position();
        let position = figure(slave, "masterJournalPosition").await.and_then(|text| text.parse::<u64>().ok());
        let is_followed = figure(slave, "masterJournalFollowed").await.as_deref() == Some("true");
        is_followed && position.is_some_and(|position| position >= end) && rows(slave) == rows(master)
    })
    .await;
}

pub(crate) fn order(topic: &str, is_ordered: bool, messages: i32) -> PopMessage<'_> {
    // However slow the machine is, it is over when the hand of a clock says so.
    PopMessage { invisible_time: 600_000, order: is_ordered, ..pop_of("G", topic, -1, messages) }
}

/// Pops, and gives the messages with their handles.
pub(crate) async fn pop(running: &Running, order: &PopMessage<'_>) -> Vec<(Message, String)> {
    let answer = running.call(request::POP_MESSAGE, order, Bytes::new()).await;
    let field = |name: &str| answer.fields.get(name).unwrap_or_default().to_owned();
    if answer.code != 0 {
        return Vec::new();
    }
    let start = field("startOffsetInfo").split(';').next().unwrap_or_default().to_owned();
    let start = start.split(' ').nth(2).unwrap_or_default().to_owned();
    let handle = |message: &Message| match message.property("POP_CK") {
        Some(handle) => handle.to_owned(),
        None => format!(
            "{start} {} {} {} 0 broker-a {} {}",
            field("popTime"),
            field("invisibleTime"),
            field("reviveQid"),
            message.queue_id,
            message.queue_offset
        ),
    };
    messages(&answer.body).into_iter().map(|message| (message.clone(), handle(&message))).collect()
}

pub(crate) fn bodies(popped: &[(Message, String)]) -> Vec<&str> {
    popped.iter().map(|(message, _)| message.body.as_str()).collect()
}

pub(crate) async fn ack(running: &Running, topic: &str, (message, handle): &(Message, String)) -> i32 {
    let offset = message.queue_offset as i64;
    let (queue_id, extra_info) = (message.queue_id, handle.as_str());
    let ack = AckMessage { consumer_group: "G", topic, queue_id, extra_info, offset, lite_topic: None };
    running.call(request::ACK_MESSAGE, &ack, "").await.code
}

/// A master on what a slave has left, with a clock that stands at the time of now.
async fn promote(left: Arc<TempDir>) -> (Running, env::ManualClock) {
    let (clock, hand) = Clock::manual(Clock::real().now());
    (start_on(Setup { clock: Some(clock), ..Setup::default() }, left).await, hand)
}

/// The master is gone from one moment to the next: what the slave leaves when it is killed then, and when it is stopped.
async fn killed(master: Running, log: Log, slave: Running) -> [Arc<TempDir>; 2] {
    // Nothing of a stop comes over.
    log.close().await;
    let image = slave.image();
    let stopped = slave.stop().await;
    master.stop().await;
    [image, stopped]
}

async fn make_all(master: &Running) {
    make_topic(master, "T").await;
    make_topic_with(master, "%RETRY%G", 1).await;
    make_group(master, "G", 1).await;
}

fn empty() -> Arc<TempDir> {
    Arc::new(tempfile::tempdir().unwrap())
}

/// A slave that asks through a front.
async fn slave_by(front: &str, log: &Log, dir: Arc<TempDir>) -> Running {
    let names = Arc::new(Places::default());
    names.tell_front(front, log);
    let more: &[_] = &[("brokerRole", "SLAVE"), ("brokerId", "1"), ("registerNameServerPeriod", "60000")];
    start_on(Setup { name_servers: vec![names.listen()], more, ..Setup::default() }, dir).await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_changes_at_a_master_changes_at_its_slave_and_no_table_is_asked_for() {
    let (master, log) = master_with(&[]).await;
    make_all(&master).await;
    make_topic(&master, "Gone").await;
    for number in 0..20 {
        master.put("T", number % 4, "", &format!("message {number}")).await;
    }
    assert_eq!(commit(&master, 0, 3).await.0, 0);
    let (front, address) = Front::of(&master);
    let slave = slave_by(&address, &log, empty()).await;
    until_copied(&master, &slave).await;
    assert_eq!(committed(&slave, 0).await, Ok(3));
    let asked = std::mem::take(&mut *front.codes.lock());
    for table in [43, 45, 201, 402] {
        assert!(!asked.contains(&table), "{table} was asked for");
    }

    make_topic_with(&master, "T", 7).await;
    make_topic(&master, "New").await;
    make_group(&master, "NewGroup", 2).await;
    let gone = master.call(request::DELETE_TOPIC_IN_BROKER, &DeleteTopic { topic: "Gone" }, "").await;
    assert_eq!(gone.code, 0);
    for offset in 4..=5 {
        assert_eq!(commit(&master, 0, offset).await.0, 0);
    }
    // It goes back, too.
    assert_eq!(commit(&master, 0, 2).await.0, 0);
    until_copied(&master, &slave).await;
    assert_eq!(committed(&slave, 0).await, Ok(2));
    assert_eq!(topic(&slave, "T").await, topic(&master, "T").await);
    assert_eq!(topic(&slave, "T").await.read_queue_nums, 7);
    let has = |name: &'static str| {
        let slave = &slave;
        async move { slave.call(request::GET_TOPIC_CONFIG, &GetTopicConfig { topic: name, lo: None }, "").await.code == 0 }
    };
    assert!(has("New").await && !has("Gone").await);
    until("nothing is missing", || async { figure(&slave, "masterJournalBehind").await.as_deref() == Some("0") }).await;
    for (metric, value) in [("gantry_replica_journal_followed{", "} 1"), ("gantry_replica_journal_lag{", "} 0")] {
        let is_shown = || slave.metrics().lines().any(|line| line.starts_with(metric) && line.ends_with(value));
        until(metric, || async { is_shown() }).await;
    }
    let asked = front.codes.lock().clone();
    for table in [21, 43, 45, 201, 402] {
        assert!(!asked.contains(&table), "{table} was asked for");
    }

    // It goes on where it was.
    let place = figure(&slave, "masterJournalPosition").await.unwrap();
    let left = slave.stop().await;
    assert_eq!(commit(&master, 1, 1).await.0, 0);
    front.journal_from.lock().clear();
    let slave = slave_by(&address, &log, left).await;
    until_copied(&master, &slave).await;
    assert_eq!(committed(&slave, 1).await, Ok(1));
    let first = front.journal_from.lock().first().cloned().unwrap();
    assert!(first.ends_with(&format!(" {place}")), "{first}, and it was at {place}");
    slave.stop().await;
    log.close().await;
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_goes_at_a_master_while_its_slave_is_away_is_gone_there_too_behind_a_restart_and_a_snapshot() {
    let (master, log) = master_with(&[]).await;
    make_all(&master).await;
    make_topic(&master, "Gone").await;
    make_group(&master, "GoneGroup", 1).await;
    for number in 0..8 {
        master.put("T", 0, "", &format!("message {number}")).await;
    }
    assert_eq!(commit(&master, 0, 3).await.0, 0);
    let slave = slave_on(&log, empty()).await;
    until_copied(&master, &slave).await;
    let left = slave.stop().await;

    // A snapshot passes it.
    let gone = master.call(request::DELETE_TOPIC_IN_BROKER, &DeleteTopic { topic: "Gone" }, "").await;
    assert_eq!(gone.code, 0);
    assert_eq!(commit(&master, 0, 5).await.0, 0);
    let before = master.store().journal().stats().snapshots;
    master.store().journal().snapshot();
    until("there is a snapshot", || async { master.store().journal().stats().snapshots > before }).await;
    make_topic(&master, "BehindTheSnapshot").await;
    let slave = slave_on(&log, left).await;
    until_copied(&master, &slave).await;
    let left = slave.stop().await;

    // The master starts again: another life.
    let fields = DeleteGroup { group_name: "GoneGroup", clean_offset: true };
    assert_eq!(master.call(request::DELETE_SUBSCRIPTIONGROUP, &fields, "").await.code, 0);
    log.close().await;
    let of_master = master.stop().await;
    let master = start_on(Setup { main_port: Some(0), ..Setup::default() }, of_master).await;
    let slave = slave_at(master.log.unwrap(), left).await;
    until_copied(&master, &slave).await;
    assert_eq!(committed(&slave, 0).await, Ok(5));
    assert!(!rows(&slave).keys().any(|(table, key)| *table == 4 && key == b"GoneGroup"));
    assert!(!rows(&slave).keys().any(|(table, key)| *table == 1 && key == b"Gone"));
    slave.stop().await;
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn popped_messages_come_again_from_a_slave_that_is_promoted_when_their_time_is_over_and_not_before() {
    let (master, log) = master_with(&[]).await;
    make_topic_with(&master, "T", 1).await;
    make_topic_with(&master, "Ordered", 1).await;
    make_group(&master, "G", 1).await;
    for number in 0..6 {
        master.put("T", 0, "", &format!("message {number}")).await;
        master.put("Ordered", 0, "", &format!("ordered {number}")).await;
    }
    let slave = slave_on(&log, empty()).await;
    until_copied(&master, &slave).await;
    let first = pop(&master, &order("T", false, 2)).await;
    assert_eq!(bodies(&first), ["message 0", "message 1"]);
    assert_eq!(ack(&master, "T", &first[0]).await, 0);
    assert_eq!(bodies(&pop(&master, &order("T", false, 1)).await), ["message 2"]);
    let ordered = pop(&master, &order("Ordered", true, 2)).await;
    assert_eq!(bodies(&ordered), ["ordered 0", "ordered 1"]);
    assert_eq!(ack(&master, "Ordered", &ordered[0]).await, 0);
    until_equal(&master, &slave).await;
    until_copied(&master, &slave).await;
    let [left, stopped] = killed(master, log, slave).await;
    // An Apache broker that takes over the slave's store knows of no lease: what is on lease comes again there.
    let of_apache = std::fs::read(stopped.path().join("config/consumerOffset.json")).unwrap();
    let of_apache: ConsumerOffsets = fastjson::from_slice(&of_apache).unwrap();
    assert_eq!(of_apache.offset_table["T@G"], [(0, 1)].into());
    let (promoted, hand) = promote(left).await;

    // What nobody has popped is there at once, and nothing else.
    assert_eq!(bodies(&pop(&promoted, &order("T", false, 32)).await), ["message 3", "message 4", "message 5"]);
    assert_eq!(bodies(&pop(&promoted, &order("T", false, 32)).await), [""; 0]);
    assert_eq!(bodies(&pop(&promoted, &order("Ordered", true, 32)).await), [""; 0], "somebody has the queue");
    // A client that has one of them may acknowledge it here.
    assert_eq!(ack(&promoted, "Ordered", &ordered[1]).await, 0);
    let next = pop(&promoted, &order("Ordered", true, 32)).await;
    assert_eq!(bodies(&next), ["ordered 2", "ordered 3", "ordered 4", "ordered 5"]);

    hand.advance(Duration::from_secs(300));
    assert_eq!(bodies(&pop(&promoted, &order("T", false, 32)).await), [""; 0], "their time is not over");
    hand.advance(Duration::from_secs(301));
    let (mut again, deadline) = (Vec::new(), Instant::now() + DEADLINE);
    while again.len() < 5 {
        let popped = pop(&promoted, &order("T", false, 32)).await;
        again.extend(popped.into_iter().map(|(message, _)| message.body));
        assert!(Instant::now() < deadline, "they do not come again: {again:?}");
        sleep(Duration::from_millis(20)).await;
    }
    again.sort();
    assert_eq!(again, ["message 1", "message 2", "message 3", "message 4", "message 5"]);
    promoted.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn how_often_a_producer_was_asked_and_how_far_delays_are_is_known_to_a_slave_that_is_promoted() {
    let (master, log) = master_with(&[]).await;
    make_all(&master).await;
    let slave = slave_on(&log, empty()).await;
    until_copied(&master, &slave).await;
    let marked = properties(&[("TRAN_MSG", "true"), ("PGROUP", "PG"), ("UNIQ_KEY", "u")]);
    master.put("T", 0, &marked, "half").await;
    master.put("T", 0, &marked, "committed").await;
    let half = master.all("RMQ_SYS_TRANS_HALF_TOPIC", 0).await.pop().unwrap();
    let fields = EndTransaction {
        topic: None,
        producer_group: "PG",
        tran_state_table_offset: half.queue_offset as i64,
        commit_log_offset: half.log_offset as i64,
        commit_or_rollback: 8,
        from_transaction_check: false,
        msg_id: "x",
        transaction_id: None,
    };
    assert_eq!(master.call(request::END_TRANSACTION, &fields, "").await.code, 0);
    // As the task does it that asks producers.
    master.store().journal().put(CHECKS, &0u64.to_be_bytes(), &3u32.to_be_bytes());
    master.put("T", 1, &properties(&[("DELAY", "1")]), "delayed").await;
    master.wait_for("T", 1, 1).await;
    until("the level has come further", || async { rows(&master).contains_key(&(3, 1u32.to_be_bytes().to_vec())) })
        .await;
    until("the slave has it", || async {
        let checks = rows(&slave).get(&(9, 0u64.to_be_bytes().to_vec())).cloned();
        let level = rows(&slave).get(&(3, 1u32.to_be_bytes().to_vec())).cloned();
        checks == Some(3u32.to_be_bytes().to_vec()) && level == Some(1u64.to_be_bytes().to_vec())
    })
    .await;
    until_equal(&master, &slave).await;
    let [left, _] = killed(master, log, slave).await;
    let (promoted, hand) = promote(left).await;
    let asked = rows(&promoted).get(&(9, 0u64.to_be_bytes().to_vec())).cloned();
    assert_eq!(asked, Some(3u32.to_be_bytes().to_vec()));
    assert_eq!(figure(&promoted, "openHalfMessages").await.as_deref(), Some("1"));
    hand.advance(Duration::from_secs(5));
    promoted.put("T", 1, &properties(&[("DELAY", "1")]), "delayed later").await;
    hand.advance(Duration::from_secs(2));
    let delivered = promoted.wait_for("T", 1, 2).await;
    let delivered: Vec<&str> = delivered.iter().map(|message| message.body.as_str()).collect();
    assert_eq!(delivered, ["delayed", "delayed later"], "none comes twice");
    promoted.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_journal_that_does_not_add_up_is_not_taken_and_tables_are_asked_for() {
    let (master, log) = master_with(&[]).await;
    make_all(&master).await;
    for number in 0..8 {
        master.put("T", 0, "", &number.to_string()).await;
    }
    assert_eq!(commit(&master, 0, 3).await.0, 0);
    let (front, address) = Front::of(&master);
    front.cuts_journal.store(true, Ordering::Relaxed);
    let slave = slave_by(&address, &log, empty()).await;
    until("it says why", || async {
        figure(&slave, "masterJournalFailure").await.is_some_and(|why| why.contains("do not add up"))
    })
    .await;
    until("offsets have come over", || async { committed(&slave, 0).await == Ok(3) }).await;
    assert_eq!(figure(&slave, "masterJournalFollowed").await.as_deref(), Some("false"));
    assert!(front.codes.lock().contains(&request::GET_ALL_CONSUMER_OFFSET));
    slave.stop().await;
    log.close().await;
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_does_not_say_that_it_gives_its_journal_is_not_asked_for_it_but_for_tables() {
    let (master, log) = master_with(&[]).await;
    make_all(&master).await;
    make_topic(&master, "Gone").await;
    for number in 0..8 {
        master.put("T", 0, "", &number.to_string()).await;
    }
    assert_eq!(commit(&master, 0, 3).await.0, 0);
    let (front, address) = Front::of(&master);
    front.hides_journal.store(true, Ordering::Relaxed);
    let slave = slave_by(&address, &log, empty()).await;
    until("offsets have come over", || async { committed(&slave, 0).await == Ok(3) }).await;
    let asked = front.codes.lock().clone();
    assert!(asked.contains(&request::GET_ALL_CONSUMER_OFFSET) && !asked.contains(&request::COPY_JOURNAL), "{asked:?}");
    assert_eq!(figure(&slave, "masterJournalFollowed").await.as_deref(), Some("false"));
    // It is of another version now.
    let gone = master.call(request::DELETE_TOPIC_IN_BROKER, &DeleteTopic { topic: "Gone" }, "").await;
    assert_eq!(gone.code, 0);
    front.hides_journal.store(false, Ordering::Relaxed);
    until_copied(&master, &slave).await;
    // Nothing changes any more, and a slave that starts again follows it all the same.
    let left = slave.stop().await;
    let slave = slave_by(&address, &log, left).await;
    until_copied(&master, &slave).await;
    slave.stop().await;
    log.close().await;
    master.stop().await;
}

/// A master that waits for one slave, a slave of it that asks through a front, and the front.
async fn sync_pair() -> (Running, Running, Arc<Front>) {
    let more: &[_] = &[("brokerRole", "SYNC_MASTER"), ("inSyncReplicas", "2")];
    let master = start(Setup { main_port: Some(0), more, ..Setup::default() }).await;
    make_all(&master).await;
    let (front, address) = Front::of(&master);
    let names = Arc::new(Places::default());
    *names.master.lock() = Some((address, master.log.unwrap().to_string()));
    let more: &[_] = &[("brokerRole", "SLAVE"), ("brokerId", "1"), ("registerNameServerPeriod", "60000")];
    let slave = start(Setup { name_servers: vec![names.listen()], more, ..Setup::default() }).await;
    until_copied(&master, &slave).await;
    (master, slave, front)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_settings_that_is_answered_with_success_is_at_the_slave_that_a_sync_master_waits_for() {
    let (master, slave, front) = sync_pair().await;
    front.holds_journal.send_replace(true);
    until("the slave hears of no change", || async { front.held_journal.load(Ordering::Relaxed) > 0 }).await;
    let create = |topic: &'static str| CreateTopic {
        topic,
        default_topic: None,
        read_queue_nums: 1,
        write_queue_nums: 1,
        perm: 6,
        topic_filter_type: "SINGLE_TAG",
        topic_sys_flag: None,
        order: false,
        attributes: None,
        force: false,
    };
    let group = r#"{"groupName":"Late"}"#;
    let (late, first) = (create("Late"), to("Auto", 0, ""));
    let (topic, group, sent) = tokio::join!(
        master.call(request::UPDATE_AND_CREATE_TOPIC, &late, ""),
        master.call(request::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, &(), group),
        master.send(&first, "to a topic that it makes"),
    );
    for answer in [topic, group] {
        let remark = answer.remark.unwrap_or_default();
        assert!(answer.code == 1 && remark.contains("done here") && remark.contains("1 of 1 slaves"), "{remark}");
    }
    let remark = sent.remark.unwrap_or_default();
    assert!(sent.code == 12 && remark.contains("do not have its topic"), "{} {remark}", sent.code);
    // It is in force all the same. Who waits for nothing changes nothing of it.
    master.put("Late", 0, "", "x").await;
    assert_eq!(commit(&master, 0, 1).await.0, 0);
    front.holds_journal.send_replace(false);
    until_copied(&master, &slave).await;

    // Each of them is there when it is answered, not a moment later.
    for number in 0..20 {
        let name: &'static str = format!("Topic{number}").leak();
        let answer = master.call(request::UPDATE_AND_CREATE_TOPIC, &create(name), "").await;
        assert_eq!((answer.code, answer.remark), (0, None));
        let there = slave.call(request::GET_TOPIC_CONFIG, &GetTopicConfig { topic: name, lo: None }, "").await;
        assert_eq!(there.code, 0, "{name}");
        let gone = master.call(request::DELETE_TOPIC_IN_BROKER, &DeleteTopic { topic: name }, "").await;
        assert_eq!((gone.code, gone.remark), (0, None));
        let gone = slave.call(request::GET_TOPIC_CONFIG, &GetTopicConfig { topic: name, lo: None }, "").await;
        assert_ne!(gone.code, 0, "{name}");
    }
    // Nobody waits for a slave that is gone.
    slave.stop().await;
    until("it is gone", || async { master.broker.slaves().list().is_empty() }).await;
    assert_eq!(master.call(request::UPDATE_AND_CREATE_TOPIC, &create("Alone"), "").await.code, 0);
    master.stop().await;
}

fn asking<'a>() -> CopyJournal<'a> {
    CopyJournal {
        broker_name: "broker-a",
        broker_cluster_name: "DefaultCluster",
        broker_id: 7,
        life: "0",
        from: 0,
        piece: 0,
        wait_millis: 0,
        max_bytes: 1 << 20,
        written: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_for_the_journal_that_make_no_sense_are_refused_by_name_and_one_that_waits_gets_what_comes() {
    let (master, log) = master_with(&[]).await;
    let answer = master.call(request::COPY_JOURNAL, &asking(), "").await;
    assert_eq!((answer.code, answer.remark), (0, None));
    let told = CopyJournalReply::decode(&answer.fields.as_fields()).unwrap();
    assert!(told.position > 0 && told.from == 0 && !told.has_more && told.log_end == master.store().end().0 as i64);
    let life = told.life.to_owned();
    let far = told.position + 1_000_000;
    let cases = [
        (CopyJournal { broker_name: "other", ..asking() }, 29, "brokerName=other"),
        (CopyJournal { broker_cluster_name: "other", ..asking() }, 29, "brokerClusterName=other"),
        (CopyJournal { broker_id: 0, ..asking() }, 29, "brokerId=0"),
        (CopyJournal { life: "soon", ..asking() }, 29, "life=soon"),
        (CopyJournal { life: "-1", ..asking() }, 29, "life=-1"),
        (CopyJournal { from: -1, ..asking() }, 29, "from=-1"),
        (CopyJournal { life: &life, from: far, ..asking() }, 29, "is ahead of the journal"),
        (CopyJournal { piece: -1, ..asking() }, 29, "piece=-1"),
        (CopyJournal { life: &life, piece: 9, ..asking() }, 22, "piece=9"),
        (CopyJournal { wait_millis: 600_000, ..asking() }, 29, "waitMillis=600000: 0 to 10000"),
        (CopyJournal { wait_millis: -1, ..asking() }, 29, "waitMillis=-1"),
        (CopyJournal { max_bytes: 1 << 30, ..asking() }, 29, "maxBytes=1073741824: 1024 to 1048576"),
        (CopyJournal { max_bytes: 0, ..asking() }, 29, "maxBytes=0"),
    ];
    for (fields, code, words) in cases {
        let refused = master.call(request::COPY_JOURNAL, &fields, "").await;
        let remark = refused.remark.unwrap_or_default();
        assert!(refused.code == code && remark.contains(words), "{words}: {} {remark}", refused.code);
    }
    // Positions of another life are none: all comes anew.
    let of_another = CopyJournal { life: "5", from: far, piece: 3, ..asking() };
    let answer = master.call(request::COPY_JOURNAL, &of_another, "").await;
    let all = CopyJournalReply::decode(&answer.fields.as_fields()).unwrap();
    assert_eq!((all.life, all.from, all.piece), (life.as_str(), 0, 0));

    // A bundle that does not go into one small piece, whatever else was written together.
    let value = [b'v'; 300];
    let keys: Vec<String> = (0..8).map(|number| format!("long{number}")).collect();
    let rows: Vec<Change<'_>> =
        keys.iter().map(|key| Change { table: CHECKS, key: key.as_bytes(), value: Some(&value) }).collect();
    let end = master.store().journal().put_together(&rows) as i64;
    let waits = async {
        let mut from = end;
        // Something else may come before it.
        loop {
            let waiting = CopyJournal { life: &life, from, wait_millis: 10_000, ..asking() };
            let answer = master.call(request::COPY_JOURNAL, &waiting, "").await;
            let told = CopyJournalReply::decode(&answer.fields.as_fields()).unwrap();
            assert!(told.from == from && told.position >= from && !told.has_more);
            let changes = journal::read_changes(&answer.body).unwrap();
            if changes.iter().any(|change| change.table == TableId(1) && change.key == b"Waited") {
                return;
            }
            from = told.position;
        }
    };
    let waits = tokio::time::timeout(DEADLINE, waits);
    let (came, ()) = tokio::join!(waits, make_topic(&master, "Waited"));
    came.unwrap();

    // Small pieces are the same, one after the other.
    let (mut from, mut piece, mut rows) = (0, 0, 0);
    let (mut pieces, mut repeated) = (0, 0);
    while from < end {
        let fields = CopyJournal { life: &life, from, piece, max_bytes: 1 << 10, ..asking() };
        let answer = master.call(request::COPY_JOURNAL, &fields, "").await;
        if piece > 0 {
            // A slave that has not got it in time.
            let again = master.call(request::COPY_JOURNAL, &fields, "").await;
            assert_eq!(
                (again.code, again.fields.get("position"), &again.body),
                (0, answer.fields.get("position"), &answer.body)
            );
            repeated += 1;
        }
        let told = CopyJournalReply::decode(&answer.fields.as_fields()).unwrap();
        rows += journal::read_changes(&answer.body).unwrap().len();
        (from, piece) = if told.has_more { (from, piece + 1) } else { (told.position, 0) };
        pieces += 1;
    }
    assert!(pieces > 3 && rows > 20 && repeated > 0, "{pieces} pieces, {rows} rows, {repeated} twice");
    log.close().await;

    let slave = slave_at(([127, 0, 0, 1], 9).into(), empty()).await;
    let refused = slave.call(request::COPY_JOURNAL, &asking(), "").await;
    assert_eq!(refused.code, 14, "{:?}", refused.remark);
    slave.stop().await;
    master.stop().await;
}
