//! The stream of the log between brokers of Gantry: copies by broker id, secrets, and who is turned away.

use protocol::body::HaRuntimeInfo;
use protocol::code::request;
use protocol::fastjson;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::slaves::{figure, until, until_equal};
use crate::support::{Setup, start, to};
use crate::{Running, make_topic};

const SECRET: (&str, &str) = ("replicaSecret", "known to this set only");

type Pairs = Vec<(&'static str, &'static str)>;

async fn master(more: Pairs) -> Running {
    start(Setup { main_port: Some(0), more: more.leak(), ..Setup::default() }).await
}

async fn slave(master: &Running, broker_id: &'static str, more: Pairs) -> Running {
    let log: &'static str = master.log.unwrap().to_string().leak();
    let own = vec![("brokerRole", "SLAVE"), ("brokerId", broker_id), ("haMasterAddress", log)];
    start(Setup { more: [own, more].concat().leak(), ..Setup::default() }).await
}

async fn rows(master: &Running) -> Vec<(Option<i64>, i64)> {
    let answer = master.call(request::GET_BROKER_HA_STATUS, &(), "").await;
    let status: HaRuntimeInfo = fastjson::from_slice(&answer.body).unwrap();
    let mut rows: Vec<_> = status.ha_connection_info.iter().map(|row| (row.broker_id, row.diff)).collect();
    rows.sort_unstable();
    rows
}

async fn until_it_fails(slave: &Running, says: &str) {
    until(says, || async { figure(slave, "masterFailure").await.is_some_and(|why| why.contains(says)) }).await;
}

fn closed(master: &Running, reason: &str) -> u64 {
    master.broker.slaves().closed().find(|(known, _)| *known == reason).unwrap().1
}

#[tokio::test(flavor = "multi_thread")]
async fn two_slaves_behind_one_address_are_two_copies_that_an_acknowledgement_waits_for() {
    let sync = vec![("brokerRole", "SYNC_MASTER"), ("inSyncReplicas", "3"), ("slaveTimeout", "60000")];
    let master = master(sync).await;
    make_topic(&master, "T").await;
    let one = slave(&master, "1", vec![]).await;
    until("the first", || async { rows(&master).await == [(Some(1), 0)] }).await;
    // 11: one copy is missing.
    assert_eq!(master.send(&to("T", 0, ""), "x").await.code, 11);
    let other = slave(&master, "2", vec![]).await;
    until("both", || async { rows(&master).await == [(Some(1), 0), (Some(2), 0)] }).await;
    let sent = master.send(&to("T", 0, ""), "y").await;
    assert_eq!(sent.code, 0, "{:?}", sent.remark);
    let end = master.store().end();
    assert!(one.store().end() >= end && other.store().end() >= end, "both have it when it is acknowledged");
    assert_eq!(figure(&one, "masterStream").await.as_deref(), Some("gantry"));
    let page = master.metrics();
    for label in ["broker_id=\"1\"", "broker_id=\"2\""] {
        let line = page.lines().find(|line| line.starts_with("gantry_replica_slave_lag_bytes") && line.contains(label));
        assert!(line.is_some_and(|line| line.contains("slave=\"127.0.0.1\"") && line.ends_with(" 0")), "{page}");
    }
    other.stop().await;
    until("it is gone", || async { rows(&master).await.len() == 1 }).await;
    assert_eq!(master.send(&to("T", 0, ""), "z").await.code, 11);
    one.stop().await;
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_secret_only_who_proves_it_gets_the_log() {
    let master = master(vec![SECRET]).await;
    make_topic(&master, "T").await;
    master.put("T", 0, "", "one").await;
    let wrong = slave(&master, "2", vec![("replicaSecret", "known to another set")]).await;
    until_it_fails(&wrong, "the master's proof is wrong: replicaSecret").await;
    let none = slave(&master, "3", vec![]).await;
    until_it_fails(&none, "the master has a replicaSecret, and this slave has none").await;
    // An end of the log that it could have: it gets nothing all the same.
    let mut plain = TcpStream::connect(master.log.unwrap()).await.unwrap();
    plain.write_all(&0_u64.to_be_bytes()).await.unwrap();
    assert_eq!(plain.read(&mut [0; 64]).await.unwrap_or(0), 0);
    until("they are counted", || async { closed(&master, "unproven") >= 2 && closed(&master, "plain") == 1 }).await;
    assert_eq!((rows(&master).await, master.broker.slaves().sent()), (vec![], 0));

    let right = slave(&master, "1", vec![SECRET]).await;
    until_equal(&master, &right).await;
    until("it is in sync", || async { rows(&master).await == [(Some(1), 0)] }).await;
    for running in [&master, &right] {
        let all = running.call(request::GET_BROKER_CONFIG, &(), "").await;
        let all = String::from_utf8_lossy(&all.body);
        assert!(all.contains("replicaSecret=") && !all.contains(SECRET.1), "{all}");
        let changed = running.call(request::UPDATE_BROKER_CONFIG, &(), "replicaSecret=short\n").await;
        assert!(changed.code != 0 && !changed.remark.unwrap().contains("short\""));
    }
    for running in [wrong, none, right, master] {
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slave_with_a_secret_does_not_follow_a_master_without() {
    let master = master(vec![]).await;
    make_topic(&master, "T").await;
    master.put("T", 0, "", "one").await;
    let slave = slave(&master, "1", vec![SECRET]).await;
    until_it_fails(&slave, "the master proves nothing: set replicaSecret there as here").await;
    until("it is counted", || async { closed(&master, "unproven") > 0 }).await;
    assert_eq!((rows(&master).await, master.broker.slaves().sent()), (vec![], 0));
    slave.stop().await;
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slave_of_another_set_or_with_other_files_is_told_so() {
    let master = master(vec![]).await;
    make_topic(&master, "T").await;
    master.put("T", 0, "", "one").await;
    let set = slave(&master, "1", vec![("brokerName", "broker-b")]).await;
    until_it_fails(&set, "the slave is of the set \"broker-b\"").await;
    let answer = set.call(request::GET_BROKER_HA_STATUS, &(), "").await;
    let status: HaRuntimeInfo = fastjson::from_slice(&answer.body).unwrap();
    let says = status.ha_client_runtime_info.unwrap().failure.unwrap();
    assert!(says.contains("\"broker-b\"") && says.contains("\"broker-a\"") && says.contains("brokerName"), "{says}");
    let cluster = slave(&master, "1", vec![("brokerClusterName", "Another")]).await;
    until_it_fails(&cluster, "of the cluster \"Another\"").await;
    until("they are counted", || async { closed(&master, "otherSet") >= 2 }).await;
    let log: &'static str = master.log.unwrap().to_string().leak();
    let more: &[_] = &[("brokerRole", "SLAVE"), ("brokerId", "1"), ("haMasterAddress", log)];
    let files = start(Setup { segment_bytes: 1 << 20, more: more.to_vec().leak(), ..Setup::default() }).await;
    until_it_fails(&files, "set mappedFileSizeCommitLog there as here").await;
    assert!(closed(&master, "fileSize") > 0);
    assert_eq!((rows(&master).await, master.broker.slaves().sent()), (vec![], 0));
    let ends = [&set, &cluster, &files].map(|slave| slave.store().end().0);
    assert_eq!(ends, [0; 3], "not even the first record, which is asked for at the main port");
    for running in [set, cluster, files, master] {
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_slaves_with_one_id_are_one_copy_and_hear_of_each_other() {
    let sync = vec![("brokerRole", "SYNC_MASTER"), ("inSyncReplicas", "3"), ("slaveTimeout", "60000")];
    let master = master(sync).await;
    make_topic(&master, "T").await;
    let (one, other) = (slave(&master, "1", vec![]).await, slave(&master, "1", vec![]).await);
    until("one has made way", || async { closed(&master, "replaced") >= 2 }).await;
    assert_eq!(master.send(&to("T", 0, ""), "x").await.code, 11);
    let says = "has connected again: it has lost this connection, or two slaves have the same brokerId";
    until("either says so", || async {
        let (one, other) = (figure(&one, "masterFailure").await, figure(&other, "masterFailure").await);
        one.into_iter().chain(other).any(|why| why.contains(says))
    })
    .await;
    one.stop().await;
    other.stop().await;
    master.stop().await;
}
