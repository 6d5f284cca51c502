//! Who else comes to a master's port for slaves, and slaves that do not belong to it: no acknowledgement changes, and nobody's log.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::ledger::Ledger;
use crate::row::{Outcome, Row};
use crate::set::{Node, SLAVE, Set, end_of, log_files, set, signal, until_refused, until_same_end};
use crate::support::asking::Asking;
use crate::support::{PATIENCE, Running, until};

const CONNECTS: usize = 10_000;
/// Connections that say nothing, held at a time.
const SILENT: usize = 200;
/// With patience, so that a slave on a busy machine is not late.
const SYNC: [&str; 3] = ["brokerRole=SYNC_MASTER", "inSyncReplicas=2", "slaveTimeout=15000"];
/// What all of them may cost the master.
const KIB_MAX: u64 = 32 << 10;

fn port_for_slaves(master: &Running) -> SocketAddr {
    let main: SocketAddr = master.address("broker").parse().unwrap();
    SocketAddr::new(main.ip(), main.port() + 1)
}

/// Says this, and reads until the other side ends it, for a second at most.
async fn says(port: SocketAddr, bytes: &[u8]) {
    let Ok(mut stream) = TcpStream::connect(port).await else { return };
    let _ = stream.write_all(bytes).await;
    let mut heard = [0; 4096];
    let reads = async { while stream.read(&mut heard).await.is_ok_and(|read| read > 0) {} };
    let _ = tokio::time::timeout(Duration::from_secs(1), reads).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f17_strangers_at_the_port_change_no_acknowledgement_and_cost_no_memory() {
    let mode = "SYNC_MASTER inSyncReplicas=2, 10,000 strangers";
    let row = Row { id: "F17", mode, time: "strangers", may_lose: false, may_vanish: false };
    row.play(async || {
        let pair = Set::start(&SYNC).await;
        let (master, slave) = (Asking::of(&pair.master), Asking::of(&pair.slave));
        let port = port_for_slaves(&pair.master);
        let ledger = Ledger::begin(&master);
        ledger.acknowledges(1_000).await;
        let (before, began) = (pair.master.own_kib(), Instant::now());

        let mut silent = Vec::new();
        for _ in 0..SILENT {
            silent.push(TcpStream::connect(port).await.unwrap());
        }
        for number in 0..CONNECTS {
            let stream = TcpStream::connect(port).await.unwrap();
            // Its port is free at once.
            stream.set_zero_linger().unwrap();
            if number % 100 == 0 {
                let mut scan = format!("GET /{number} HTTP/1.1\r\n\r\n").into_bytes();
                scan.resize(64 << 10, 0xff);
                says(port, &scan).await;
            }
        }
        ledger.acknowledges(200).await;
        let refused = ledger.refused();
        assert_eq!(refused, 0, "{:?}", ledger.first_refusal());
        assert!(
            pair.master.own_kib() < before + KIB_MAX,
            "{before} KiB before, {} KiB beside them",
            pair.master.own_kib()
        );

        // Reports that cannot be true, while nobody has what is sent.
        set(&master, "slaveTimeout=2500").await;
        signal(&pair.slave, "-STOP");
        ledger.forbid();
        let since = Instant::now();
        while ledger.refused() < refused + 16 {
            assert!(since.elapsed() < PATIENCE, "sends are not answered");
            let end = end_of(&master).await as i64;
            for false_end in [1 << 50, i64::MAX, end + 1_000_000_000, -1, i64::MIN] {
                says(port, &false_end.to_be_bytes()).await;
            }
        }
        assert_eq!(ledger.allow(), 0, "acknowledged by a stranger's word");
        signal(&pair.slave, "-CONT");
        ledger.acknowledges(500).await;
        let time = began.elapsed();
        drop(silent);
        let outcome = ledger.check(&master, 0).await;
        until_same_end(&master, &slave).await;
        until("its slave is the only one", async || master.figure("slavesConnected").await == 1).await;
        let after = pair.master.own_kib();
        assert!(after < before + KIB_MAX, "{before} KiB before, {after} KiB after");
        Outcome { time, ..outcome }
    })
    .await;
}

/// All bytes of the log of a broker that does not run.
fn log_of(node: &Node) -> Vec<Vec<u8>> {
    log_files(&node.store()).iter().map(|file| std::fs::read(file).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f19_a_slave_of_other_files_or_with_another_log_is_refused_and_keeps_what_it_has() {
    let mode = "SYNC_MASTER inSyncReplicas=2, slaves that do not fit";
    let row = Row { id: "F19", mode, time: "refused", may_lose: false, may_vanish: false };
    row.play(async || {
        let pair = Set::start(&SYNC).await;
        let (master, slave) = (Asking::of(&pair.master), Asking::of(&pair.slave));
        let ledger = Ledger::begin(&master);
        // The second file of the log has begun.
        until("two files", async || end_of(&master).await > crate::set::SEGMENT + 100_000).await;

        // The log of another set, by the same name server.
        let stranger = Node::new(pair.folder(), "stranger");
        let running = stranger.start(pair.names(), &["brokerName=broker-b"]);
        let asking = Asking::of(&running);
        assert_eq!(asking.create("theirs", 1, "").await.code, 0);
        for number in 0..100 {
            assert_eq!(asking.send("theirs", 0, "", &format!("{number} theirs")).await.unwrap().code, 0);
        }
        assert_eq!(running.end("-TERM").0, Some(0));
        let theirs = log_of(&stranger);

        let began = Instant::now();
        let mut second = SLAVE;
        second[1] = "brokerId=2";
        let running = stranger.start(pair.names(), &second);
        until_refused(&Asking::of(&running), "differ").await;
        let time = began.elapsed();
        assert_eq!(running.end("-TERM").0, Some(0));
        assert!(log_of(&stranger) == theirs, "its log was changed");
        // As it was, it is the other set's again.
        let running = stranger.start(pair.names(), &["brokerName=broker-b"]);
        assert_eq!(Asking::of(&running).bodies("theirs", 0).await.len(), 100);
        assert_eq!(running.end("-TERM").0, Some(0));

        let sized = Node::new(pair.folder(), "sized");
        let size = format!("mappedFileSizeCommitLog={}", 2 * crate::set::SEGMENT);
        let running = sized.start(pair.names(), &[&second[..], &[size.as_str()]].concat());
        until_refused(&Asking::of(&running), "mappedFileSizeCommitLog").await;
        assert!(end_of(&Asking::of(&running)).await <= crate::set::SEGMENT, "it went on where its file does not end");
        assert_eq!(running.end("-TERM").0, Some(0));

        // A slave of another set that is led to this master's port by hand.
        let astray = Node::new(pair.folder(), "astray");
        let port = format!("haMasterAddress={}", port_for_slaves(&pair.master));
        let running = astray.start(pair.names(), &[&second[..], &["brokerName=broker-b", port.as_str()]].concat());
        until_refused(&Asking::of(&running), "no master of the set \"broker-b\" of the cluster").await;
        assert_eq!(end_of(&Asking::of(&running)).await, 0, "it has a log of another set");
        assert_eq!(running.end("-TERM").0, Some(0));

        ledger.acknowledges(200).await;
        assert_eq!((ledger.refused(), ledger.first_refusal()), (0, None));
        let outcome = ledger.check(&master, 0).await;
        until_same_end(&master, &slave).await;
        Outcome { time, ..outcome }
    })
    .await;
}
