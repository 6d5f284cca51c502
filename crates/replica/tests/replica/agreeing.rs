//! What a slave finds out about its master's log before it follows, and while only heartbeats come.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use protocol::LogOffset;
use replica::asking::Extent;
use replica::follow::{FollowEnd, FollowOptions};
use store::{StoreOptions, TopicsUnknown};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::sleep;

use crate::support::*;

fn extent(min: u64, max: u64) -> Arc<Mutex<Extent>> {
    Arc::new(Mutex::new(Extent { min: LogOffset(min), max: LogOffset(max), has_journal: false }))
}

/// A master of Apache's that has nothing behind what a slave reports: it sends heartbeats that state the same, whatever that is.
async fn heartbeats() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut report = [0; 8];
                if socket.read_exact(&mut report).await.is_err() {
                    return;
                }
                let heartbeat = [report.as_slice(), &[0; 4]].concat();
                while socket.write_all(&heartbeat).await.is_ok() {
                    sleep(Duration::from_millis(20)).await;
                }
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_with_less_than_its_slave_is_not_followed_also_when_it_has_more_later() {
    let (of_master, of_slave) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (main, copy) = (open(of_master.path()), open(of_slave.path()));
    // Messages of the same sizes, so that records of the two logs begin and end at the same places.
    fill(&main, 1500..1520);
    fill(&copy, 0..40);
    let end = copy.end();
    let master = Master::of(&main);
    let slave = Slave::of(&copy, master.address, ask(&main));
    until_it_fails(&slave, &format!("the master's log ends at log offset {}", main.end())).await;
    fill(&main, 1520..1600);
    until_it_fails(&slave, "is another one in the master's log").await;
    assert_eq!((copy.end(), slave.status.connections()), (end, 0));
    assert!(!slave.status.agrees() && !slave.status.is_connected());
    slave.stop().await;
    master.stop().await;
}

/// Longer than what fits into a frame of 16 MiB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_last_record_is_compared_however_long_it_is() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [main, copy] = [0, 1].map(|number: usize| {
        let store = open_as(&StoreOptions { segment_bytes: 32 << 20, ..options(dirs[number].path()) });
        fill(&store, 0..10);
        put(&store, 10, vec![number as u8; 17 << 20]);
        store
    });
    let master = Master::of(&main);
    let slave = Slave::of(&copy, master.address, ask(&main));
    until_it_fails(&slave, "is another one in the master's log").await;
    assert_eq!(slave.status.connections(), 0);
    slave.stop().await;
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_whose_records_begin_elsewhere_is_not_followed() {
    let (of_master, of_slave) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (main, copy) = (open(of_master.path()), open(of_slave.path()));
    fill(&main, 7..60);
    fill(&copy, 0..10);
    let master = Master::of(&main);
    let slave = Slave::of(&copy, master.address, ask(&main));
    until_it_fails(&slave, "the logs differ").await;
    assert_eq!(slave.status.connections(), 0);
    slave.stop().await;
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_of_apache_that_begins_anew_is_not_followed_though_it_takes_any_report() {
    let dir = tempfile::tempdir().unwrap();
    let copy = open(dir.path());
    fill(&copy, 0..20);
    let slave = Slave::of(&copy, heartbeats().await, ask_told(&extent(0, 0), &copy));
    until_it_fails(&slave, "the master's log ends at log offset 0").await;
    assert!(!slave.status.agrees() && !slave.status.is_connected());
    slave.stop().await;
    // One that does not say it is not believed either.
    let slave = Slave::of(&copy, heartbeats().await, nobody_to_ask());
    until_it_fails(&slave, "cannot learn how the master's log lies").await;
    assert_eq!(slave.status.connections(), 0);
    slave.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_the_master_has_removed_are_missed_before_and_while_it_is_followed() {
    let dir = tempfile::tempdir().unwrap();
    let copy = open(dir.path());
    fill(&copy, 0..20);
    let (end, removed) = (copy.end().0, "the master has removed the files between");
    let behind = ask_told(&extent(3 * SEGMENT, 4 * SEGMENT), &copy);
    let slave = Slave::of(&copy, heartbeats().await, behind);
    until_it_fails(&slave, removed).await;
    assert_eq!(slave.status.connections(), 0);
    slave.stop().await;

    let options = FollowOptions { heartbeat: Duration::from_millis(50), ..FollowOptions::default() };
    let told = extent(0, end);
    let slave = Slave::with(&copy, heartbeats().await, ask_told(&told, &copy), options);
    eventually("the first heartbeat", || slave.status.is_connected()).await;
    assert!(slave.status.agrees());
    *told.lock().unwrap() = Extent { min: LogOffset(3 * SEGMENT), max: LogOffset(4 * SEGMENT), has_journal: false };
    until_it_fails(&slave, removed).await;
    assert_eq!(copy.end().0, end);
    slave.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_without_a_record_begins_again_where_the_master_s_log_does() {
    for (from_last_file, begins) in [(false, 3 * SEGMENT), (true, 5 * SEGMENT)] {
        let dir = tempfile::tempdir().unwrap();
        let copy = open(dir.path());
        copy.close().unwrap();
        drop(copy);
        let copy = begin_at(dir.path(), LogOffset(SEGMENT));
        let options = FollowOptions { from_last_file, ..FollowOptions::default() };
        let asking = ask_told(&extent(3 * SEGMENT, 5 * SEGMENT + 100), &copy);
        let slave = Slave::with(&copy, heartbeats().await, asking, options);
        assert_eq!(slave.ended().await, FollowEnd::BeginAt(LogOffset(begins)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_from_which_nothing_comes_is_gone_before_its_connection_is() {
    let dir = tempfile::tempdir().unwrap();
    let copy = open(dir.path());
    fill(&copy, 0..20);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    // While the master's answer stands for a heartbeat, a slow machine has to look.
    let options = FollowOptions { heartbeat: Duration::from_secs(2), ..FollowOptions::default() };
    let slave = Slave::with(&copy, listener.local_addr().unwrap(), ask(&copy), options);
    let (mut socket, _) = in_time("the slave", listener.accept()).await.unwrap();
    let mut report = [0; 8];
    in_time("the report", socket.read_exact(&mut report)).await.unwrap();
    let mut connection = slave.status.connection();
    in_time("the connection", connection.wait_for(|is_connected| *is_connected)).await.unwrap();
    in_time("the silence", connection.wait_for(|is_connected| !*is_connected)).await.unwrap();
    socket.write_all(&[report.as_slice(), &[0; 4]].concat()).await.unwrap();
    in_time("the heartbeat", connection.wait_for(|is_connected| *is_connected)).await.unwrap();
    slave.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_of_a_topic_that_is_not_known_is_not_taken_and_comes_again() {
    let (of_master, of_slave) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (main, copy) = (open(of_master.path()), open(of_slave.path()));
    fill(&main, 0..40);
    let master = Master::of(&main);
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let topics = move |_: &[&str]| match count.fetch_add(1, Ordering::Relaxed) {
        0 | 1 => Err(TopicsUnknown("the master does not answer".to_owned())),
        _ => Ok(HashSet::new()),
    };
    let slave = Slave::knowing(&copy, master.address, ask(&main), FollowOptions::default(), Arc::new(topics));
    until_it_fails(&slave, "the master does not answer").await;
    came_to(&copy, main.end()).await;
    assert_copied(&main, &copy);
    assert_eq!(asked.load(Ordering::Relaxed), 3);
    slave.stop().await;
    master.stop().await;
}
