//! Readers between a master and its slave: where each sends them, and how far they have come.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use net::Response;
use protocol::body::SubscriptionGroupConfig;
use protocol::code::request;
use protocol::message_id::parse_offset_message_id;
use protocol::request::{OffsetReply, PullMessage, QueryConsumerOffset, UpdateConsumerOffset};
use tokio::time::{Instant, sleep, timeout};

use crate::gates::Gates;
use crate::masters::{FILE, STANDING, fill, pop, standing_at, standing_from};
use crate::slaves::{
    Front, Places, begin_pull, figure, master_with, slave_by, slave_on, until, until_connected, until_equal,
};
use crate::support::{self, Sent, Setup, from, start, start_on, waiting};
use crate::{DEADLINE, Running, commit, committed, json, make_group, make_topic, make_topic_with};

/// A master that counts each message as old.
const AT_ONCE: &[(&str, &str)] = &[("slaveReadEnable", "true"), ("accessMessageInMemoryMaxRatio", "0")];

/// The code of a pull's answer, and the broker that it names.
async fn asked(running: &Running, pull: PullMessage<'static>) -> (i32, String) {
    told(&running.call(request::PULL_MESSAGE, &pull, "").await)
}

fn told(answer: &Response) -> (i32, String) {
    (answer.code, answer.fields.get("suggestWhichBrokerId").unwrap_or("none").to_owned())
}

async fn set(running: &Running, line: &'static str) {
    assert_eq!(running.call(request::UPDATE_BROKER_CONFIG, &(), line).await.code, 0, "{line}");
}

async fn until_in_sync(master: &Running, slave: &Running) {
    until_equal(master, slave).await;
    let has_all = || master.broker.slaves().position(1) == Some(master.store().end());
    support::until("the master knows that the slave has its log", has_all).await;
}

fn found(broker: &str) -> (i32, String) {
    (0, broker.to_owned())
}

/// Where the readers' group reads, and where it does when it is slow.
async fn regroup(master: &Running, broker_id: i64, which_broker_when_consume_slowly: i64) {
    let group = SubscriptionGroupConfig {
        group_name: "CG".to_owned(),
        broker_id,
        which_broker_when_consume_slowly,
        ..SubscriptionGroupConfig::default()
    };
    assert_eq!(master.call(request::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, &(), json(&group)).await.code, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_sends_readers_of_old_messages_to_a_slave_that_is_there() {
    let (master, log) = master_with(AT_ONCE).await;
    make_topic(&master, "T").await;
    for number in 0..3 {
        master.put("T", 0, "", &number.to_string()).await;
    }
    assert_eq!(asked(&master, from("T", 0, 0)).await, found("0"), "there is no slave");
    let slave = slave_on(&log, Arc::new(tempfile::tempdir().unwrap())).await;
    until_in_sync(&master, &slave).await;
    assert_eq!(asked(&master, from("T", 0, 0)).await, found("1"));
    assert_eq!(asked(&master, from("T", 0, 3)).await, (19, "0".to_owned()), "nobody is behind at the end");

    regroup(&master, 0, 2).await;
    assert_eq!(asked(&master, from("T", 0, 0)).await, found("2"));
    set(&master, "accessMessageInMemoryMaxRatio=40").await;
    assert_eq!(asked(&master, from("T", 0, 0)).await, found("0"));
    regroup(&master, 1, 2).await;
    assert_eq!(asked(&master, from("T", 0, 0)).await, found("1"), "the group likes to read there");
    set(&master, "slaveReadEnable=false").await;
    assert_eq!(asked(&master, from("T", 0, 0)).await, found("0"));
    set(&master, "slaveReadEnable=true\naccessMessageInMemoryMaxRatio=0").await;
    assert_eq!(asked(&master, from("T", 0, 0)).await, found("2"));
    let config = master.call(request::GET_BROKER_CONFIG, &(), "").await.body;
    let has = |line: &str| std::str::from_utf8(&config).unwrap().lines().any(|one| one == line);
    assert!(has("slaveReadEnable=true") && has("accessMessageInMemoryMaxRatio=0"));

    slave.stop().await;
    support::until("the slave is gone", || master.broker.slaves().list().is_empty()).await;
    assert_eq!(asked(&master, from("T", 0, 0)).await, found("0"));
    log.close().await;
    master.stop().await;
}

/// A master with three messages and a slave of it, behind gates.
async fn pair() -> (Running, Gates, Running) {
    let master = start(Setup { main_port: Some(0), more: AT_ONCE, ..Setup::default() }).await;
    make_topic(&master, "T").await;
    for number in 0..3 {
        master.put("T", 0, "", &number.to_string()).await;
    }
    let gates = Gates::before(&master).await;
    let slave = gates.slave(Arc::new(tempfile::tempdir().unwrap())).await;
    until_in_sync(&master, &slave).await;
    until_connected(&slave, true).await;
    (master, gates, slave)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slave_keeps_readers_of_old_messages_and_all_while_its_master_is_away() {
    let (master, gates, slave) = pair().await;
    assert_eq!(asked(&slave, from("T", 0, 0)).await, found("0"), "near the end it goes back");
    set(&slave, "accessMessageInMemoryMaxRatio=0").await;
    assert_eq!(asked(&slave, from("T", 0, 0)).await, found("1"));
    assert_eq!(asked(&slave, from("T", 0, 3)).await, (20, "0".to_owned()), "what comes, the master has first");

    gates.shut();
    until_connected(&slave, false).await;
    set(&slave, "accessMessageInMemoryMaxRatio=40").await;
    assert_eq!(asked(&slave, from("T", 0, 0)).await, found("1"));
    assert_eq!(asked(&slave, from("T", 0, 3)).await, (19, "1".to_owned()));
    gates.lead_to(&master);
    until("the slave follows", || async { asked(&slave, from("T", 0, 0)).await == found("0") }).await;
    slave.stop().await;
    master.stop().await;
}

/// The logs differ.
#[tokio::test(flavor = "multi_thread")]
async fn a_slave_that_cannot_follow_sends_its_readers_to_the_master_that_is_there() {
    let (master, gates, slave) = pair().await;
    gates.shut();
    until_connected(&slave, false).await;
    let waits = begin_pull(&slave, waiting(from("T", 0, 3), 60_000));
    slave.until_parked(1).await;
    let other = start(Setup { main_port: Some(0), ..Setup::default() }).await;
    make_topic(&other, "T").await;
    for number in 0..30 {
        other.put("T", 0, "", &format!("another {number}")).await;
    }
    gates.lead_to(&other);
    assert_eq!(told(&waits.await.unwrap()), (20, "0".to_owned()), "it does not wait for what does not come");
    assert_eq!(asked(&slave, from("T", 0, 0)).await, found("0"));
    set(&slave, "accessMessageInMemoryMaxRatio=0").await;
    assert_eq!(asked(&slave, from("T", 0, 0)).await, found("0"), "however far it is behind");
    until("the slave says why", || async {
        figure(&slave, "masterFailure").await.is_some_and(|why| why.contains("differ"))
    })
    .await;
    gates.shut();
    until("nobody has it but this", || async { asked(&slave, from("T", 0, 0)).await == found("1") }).await;
    slave.stop().await;
    other.stop().await;
    master.stop().await;
}

/// The client's route has no master, so it asks the slave again at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_comes_back_to_a_slave_as_it_finds_no_master_waits_a_moment() {
    let (master, _gates, slave) = pair().await;
    for offset in [3, 99] {
        let pull = || waiting(from("T", 0, offset), 60_000);
        assert_eq!(asked(&slave, pull()).await, (20, "0".to_owned()), "it goes to the master at once");
        // One that has waited is answered with the next look at the master, which may come at once.
        until("one waits", || async {
            let waits = begin_pull(&slave, pull());
            while !waits.is_finished() && slave.broker.parked_pulls() == 0 {
                sleep(Duration::from_millis(1)).await;
            }
            let has_waited = !waits.is_finished();
            assert_eq!(told(&waits.await.unwrap()), (20, "0".to_owned()));
            has_waited
        })
        .await;
    }
    let waits = begin_pull(&slave, waiting(from("T", 0, 3), 60_000));
    master.put("T", 0, "", "3").await;
    let (mut answer, deadline) = (told(&waits.await.unwrap()), Instant::now() + DEADLINE);
    while answer != found("0") {
        assert!(Instant::now() < deadline && answer == (20, "0".to_owned()), "{answer:?}");
        answer = asked(&slave, waiting(from("T", 0, 3), 60_000)).await;
    }
    slave.stop().await;
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_that_waits_at_a_slave_gets_its_message_when_the_copy_has_it() {
    // If each waited until the slave looks after its readers, or until its own time is over, these would take longer than the deadline.
    const MESSAGES: i64 = 300;
    let (master, _gates, slave) = pair().await;
    let all = async {
        for offset in 3..3 + MESSAGES {
            // Ends with the message: it was sent back before, or its time was over.
            let mut is_sent = false;
            let code = loop {
                let waits = begin_pull(&slave, waiting(from("T", 0, offset), 60_000));
                while !waits.is_finished() && slave.broker.parked_pulls() == 0 {
                    sleep(Duration::from_millis(1)).await;
                }
                if !waits.is_finished() && !std::mem::replace(&mut is_sent, true) {
                    master.put("T", 0, "", "x").await;
                }
                match told(&waits.await.unwrap()).0 {
                    20 => {}
                    code => break code,
                }
            };
            assert_eq!(code, 0, "{offset}");
        }
    };
    timeout(DEADLINE, all).await.expect("a message has not woken the pull that waits for it");
    slave.stop().await;
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_that_waits_at_a_slave_is_not_woken_by_messages_of_other_queues() {
    let (master, _gates, slave) = pair().await;
    // Whatever else ends its wait does so now and then.
    until("one has waited all the time", || async {
        let waits = begin_pull(&slave, waiting(from("T", 1, 0), 60_000));
        while !waits.is_finished() && slave.broker.parked_pulls() == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        for _ in 0..20 {
            master.put("T", 0, "", "x").await;
        }
        until_equal(&master, &slave).await;
        let has_waited = !waits.is_finished();
        assert_eq!(told(&waits.await.unwrap()), (20, "0".to_owned()));
        has_waited
    })
    .await;
    slave.stop().await;
    master.stop().await;
}

/// Name servers know which slave is which.
#[tokio::test(flavor = "multi_thread")]
async fn a_master_names_a_slave_if_that_one_has_what_the_reader_wants() {
    const MORE: &[(&str, &str)] = &[AT_ONCE[0], AT_ONCE[1], STANDING];
    let setup = || Setup { segment_bytes: FILE, more: MORE, main_port: Some(0), ..Setup::default() };
    let master = start(setup()).await;
    make_topic(&master, "T").await;
    let first = master.put("T", 0, "", "first").await;
    let second = master.put("T", 0, "", "second").await;
    fill(&master, 2).await;
    let third = master.put("T", 0, "", "third").await;
    let [at, of_second, of_third] =
        [&first, &second, &third].map(|sent: &Sent| parse_offset_message_id(&sent.id).unwrap().1);
    assert!(at < of_second && of_second < FILE && of_third > FILE);
    let names = Arc::new(Places::default());
    let brokers = [(0, "127.0.0.1:1"), (1, "127.0.0.2:1"), (2, "127.0.0.3:1")];
    *names.brokers.lock() = brokers.map(|(id, address)| (id, address.to_owned())).into();
    // What there was when it started a slave may have.
    let setup = Setup { name_servers: vec![names.listen()], ..setup() };
    let master = start_on(setup, master.stop().await).await;
    let (log, end) = (master.log.unwrap(), master.store().end().0);
    let one = |offset| PullMessage { max_msg_nums: 1, ..from("T", 0, offset) };
    let is_there = |count| {
        let slaves = master.broker.slaves();
        move || slaves.list().iter().filter(|slave| slave.acknowledged.0 > 0).count() == count
    };

    let _second = standing_from("127.0.0.3", log, end).await;
    support::until("the second slave", is_there(1)).await;
    until("it is known which one that is", || async { asked(&master, one(0)).await == found("0") }).await;
    regroup(&master, 0, 2).await;
    assert_eq!(asked(&master, one(0)).await, found("2"));
    regroup(&master, 0, 1).await;
    // The first one has less.
    let behind = standing_from("127.0.0.2", log, of_second).await;
    support::until("the first slave", is_there(2)).await;
    assert_eq!(asked(&master, one(0)).await, found("1"));
    assert_eq!(asked(&master, one(1)).await, found("0"), "it has not come so far");
    drop(behind);
    support::until("it is gone", is_there(1)).await;
    // It has begun with a file of the log.
    let _late = standing_from("127.0.0.2", log, FILE).await;
    support::until("the first slave", is_there(2)).await;
    assert_eq!(asked(&master, one(0)).await, found("0"), "it does not have so old ones");
    // Nobody knows which one this is.
    let _unknown = standing_at(log, end).await;
    support::until("the third slave", is_there(3)).await;
    assert_eq!(asked(&master, one(2)).await, found("1"));
    master.stop().await;
}

async fn commit_of(running: &Running, group: &str, queue_id: i32, commit_offset: i64) -> i32 {
    let fields = UpdateConsumerOffset { consumer_group: group, topic: "T", queue_id, commit_offset };
    running.call(request::UPDATE_CONSUMER_OFFSET, &fields, "").await.code
}

async fn committed_by(running: &Running, group: &str, queue_id: i32) -> Option<i64> {
    let fields =
        QueryConsumerOffset { consumer_group: group, topic: "T", queue_id, set_zero_if_not_found: Some(false) };
    let answer = running.call(request::QUERY_CONSUMER_OFFSET, &fields, "").await;
    (answer.code == 0).then(|| OffsetReply::decode(&answer.fields.as_fields()).unwrap().offset)
}

#[tokio::test(flavor = "multi_thread")]
async fn offsets_that_were_committed_at_a_slave_come_to_its_master_and_none_goes_back() {
    let master = start(Setup { main_port: Some(0), ..Setup::default() }).await;
    make_topic(&master, "T").await;
    make_group(&master, "G", 1).await;
    for number in 0..40 {
        master.put("T", number % 4, "", &number.to_string()).await;
    }
    for (queue_id, offset) in [(0, 3), (2, 6), (3, 2)] {
        assert_eq!(commit(&master, queue_id, offset).await.0, 0);
    }
    let gates = Gates::before(&master).await;
    let slave = gates.slave(Arc::new(tempfile::tempdir().unwrap())).await;
    until_equal(&master, &slave).await;
    until("offsets have come over", || async { committed(&slave, 3).await == Ok(2) }).await;

    gates.shut();
    until_connected(&slave, false).await;
    // Higher, of a queue where the master has none, lower, behind the end, and less than the master has by the time that it is there again.
    for (queue_id, offset) in [(0, 5), (1, 4), (2, 1), (3, 3)] {
        assert_eq!(commit(&slave, queue_id, offset).await.0, 0);
    }
    assert_eq!(commit(&master, 3, 7).await.0, 0);
    // A group that only the slave knows.
    assert_eq!(asked(&slave, from("T", 0, 0)).await.0, 0);
    assert_eq!(commit_of(&slave, "CG", 0, 99).await, 0);
    assert_eq!(figure(&slave, "offsetsForMaster").await.as_deref(), Some("5"));
    // The slave is killed meanwhile.
    let image = slave.image();
    slave.stop().await;
    let slave = gates.slave(image).await;
    assert_eq!(figure(&slave, "offsetsForMaster").await.as_deref(), Some("5"));

    gates.lead_to(&master);
    until("offsets have come to the master", || async {
        (committed(&master, 0).await, committed(&master, 1).await) == (Ok(5), Ok(4))
    })
    .await;
    until("they are settled", || async { figure(&slave, "offsetsForMaster").await.as_deref() == Some("1") }).await;
    for running in [&master, &slave] {
        until("both have the same", || async {
            let mut all = Vec::new();
            for queue_id in 0..4 {
                all.push(committed(running, queue_id).await.unwrap());
            }
            all == [5, 4, 6, 7]
        })
        .await;
    }
    assert_eq!(committed_by(&master, "CG", 0).await, None, "the master does not have the group");
    make_group(&master, "CG", 1).await;
    until("its offset comes, up to the end of the queue", || async {
        committed_by(&master, "CG", 0).await == Some(10)
    })
    .await;
    until("nothing is left", || async { figure(&slave, "offsetsForMaster").await.as_deref() == Some("0") }).await;
    slave.stop().await;
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn offsets_that_a_master_does_not_take_are_offered_again_and_stay_until_then() {
    let (master, log) = master_with(&[]).await;
    // More queues than one round hands over.
    make_topic_with(&master, "T", 300).await;
    make_group(&master, "G", 1).await;
    master.put("T", 0, "", "one").await;
    assert_eq!(commit(&master, 0, 0).await.0, 0);
    let (front, main) = Front::of(&master);
    // It answers one request of a connection after the other, and the journal waits.
    front.hides_journal.store(true, Ordering::Relaxed);
    let names = Arc::new(Places::default());
    *names.master.lock() = Some((main, log.address.to_string()));
    let slave = slave_by(&names).await;
    until_equal(&master, &slave).await;
    until("offsets have come over", || async { committed(&slave, 0).await == Ok(0) }).await;
    front.refuses_commits.store(true, Ordering::Relaxed);
    assert_eq!(commit(&slave, 0, 1).await.0, 0);
    for queue_id in 1..300 {
        assert_eq!(commit(&slave, queue_id, 0).await.0, 0);
    }
    support::until("two rounds are over", || front.refused.load(Ordering::Relaxed) >= 2).await;
    assert_eq!((committed(&master, 0).await, committed(&slave, 0).await), (Ok(0), Ok(1)));
    front.refuses_commits.store(false, Ordering::Relaxed);
    until("the master has all", || async { figure(&slave, "offsetsForMaster").await.as_deref() == Some("0") }).await;
    assert_eq!((committed(&master, 0).await, committed(&master, 299).await), (Ok(1), Ok(0)));
    slave.stop().await;
    log.close().await;
    master.stop().await;
}

/// A master that gives no journal tells a slave less than was committed: where the first message lies that nobody has acknowledged.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_at_a_slave_does_not_take_it_past_messages_that_are_popped_at_its_master() {
    let master = start(Setup { main_port: Some(0), ..Setup::default() }).await;
    make_topic(&master, "T").await;
    make_group(&master, "G", 1).await;
    for number in 0..8 {
        master.put("T", 0, "", &number.to_string()).await;
    }
    assert_eq!(commit(&master, 0, 1).await.0, 0);
    let (front, main) = Front::of(&master);
    front.hides_journal.store(true, Ordering::Relaxed);
    let gates = Gates::before(&master).await;
    gates.lead_by(&main);
    let slave = gates.slave(Arc::new(tempfile::tempdir().unwrap())).await;
    until_equal(&master, &slave).await;
    until_connected(&slave, true).await;
    until("offsets have come over", || async { committed(&slave, 0).await == Ok(1) }).await;
    gates.shut();
    until_connected(&slave, false).await;
    assert_eq!(commit(&slave, 0, 5).await.0, 0);
    assert_eq!(pop(&master, "G", "T", 8).await, 0);
    assert_eq!(committed(&master, 0).await, Ok(8));
    gates.lead_to(&master);
    gates.lead_by(&main);
    until("the master has all", || async { figure(&slave, "offsetsForMaster").await.as_deref() == Some("0") }).await;
    until("what the master tells is here", || async {
        let here = committed(&slave, 0).await;
        assert!(here == Ok(5) || here == Ok(1), "{here:?}");
        here == Ok(1)
    })
    .await;
    slave.stop().await;
    master.stop().await;
}
