//! What comes to the port and is no slave, what a slave is told that is not true, and the bytes on the wire.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use protocol::LogOffset;
use replica::feed::{Allowed, FeedOptions, PortOptions};
use replica::follow::FollowOptions;
use replica::wire::own::{self, Greeting, Hello, Identity};
use store::Store;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::support::*;

async fn connect(address: SocketAddr) -> TcpStream {
    Guest::silent(Wire::Plain, address).await.socket
}

async fn report(socket: &mut TcpStream, end: u64) {
    socket.write_all(&end.to_be_bytes()).await.unwrap();
}

/// A frame as Apache's slave reads it: place and body.
async fn frame(socket: &mut TcpStream) -> (u64, Vec<u8>) {
    let mut header = [0; 12];
    in_time("a frame", socket.read_exact(&mut header)).await.unwrap();
    let mut body = vec![0; u32::from_be_bytes(header[8..].try_into().unwrap()) as usize];
    in_time("a body", socket.read_exact(&mut body)).await.unwrap();
    (u64::from_be_bytes(header[..8].try_into().unwrap()), body)
}

/// The other side has closed it; what came before does not matter.
async fn is_closed(socket: &mut TcpStream) {
    let mut bytes = vec![0; 64 << 10];
    in_time("the close", async { while socket.read(&mut bytes).await.is_ok_and(|bytes| bytes > 0) {} }).await;
}

fn all() -> Allowed {
    Allowed::new(|_| true)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_are_those_of_apache() {
    let dir = tempfile::tempdir().unwrap();
    let main = open(dir.path());
    let mut options = PortOptions::new(all());
    options.feed = FeedOptions { heartbeat: Duration::from_millis(300), ..FeedOptions::default() }.fixed();
    let master = Master::with(&main, options);
    let mut slave = connect(master.address).await;
    report(&mut slave, 0).await;
    assert_eq!(frame(&mut slave).await, (0, vec![]), "a heartbeat of an empty log");
    fill(&main, 0..300);
    let mut log = vec![];
    while (log.len() as u64) < main.end().0 {
        let (at, body) = frame(&mut slave).await;
        assert_eq!(at, log.len() as u64);
        assert!(body.len() <= 32 << 10);
        let last = (at + body.len() as u64).saturating_sub(1).max(at);
        assert_eq!(at / SEGMENT, last / SEGMENT, "a frame lies in one file");
        log.extend(body);
        report(&mut slave, log.len() as u64).await;
    }
    assert!(log == log_of(&main));
    assert_eq!(frame(&mut slave).await, (main.end().0, vec![]), "a heartbeat states where the next frame begins");
    let end = main.end();
    eventually("the acknowledgement", || master.slaves.position(1) == Some(end)).await;
    assert!(master.acknowledged.load(Ordering::Relaxed) > 0);
    // As recorded: a slave whose log ends at the first record gets the rest from there.
    let mut other = connect(master.address).await;
    let first = u32::from_be_bytes(log[..4].try_into().unwrap()) as usize;
    report(&mut other, first as u64).await;
    let (at, body) = frame(&mut other).await;
    assert_eq!((at as usize, body.len()), (first, 32 << 10));
    assert!(body == log[first..][..body.len()]);
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn false_reports_acknowledge_nothing_and_end_the_connection() {
    let dir = tempfile::tempdir().unwrap();
    let main = open(dir.path());
    fill(&main, 0..20);
    let end = main.end().0;
    for wire in BOTH {
        let master = Master::of(&main);
        for (reports, reason) in [
            (vec![1 << 50], "ahead"),
            (vec![i64::MAX as u64], "ahead"),
            (vec![end + 1000], "ahead"),
            (vec![u64::MAX], "misread"),
            (vec![end, end + 1], "unsent"),
            (vec![end, 0], "back"),
        ] {
            // A first byte above 0x7f begins a hello.
            let reason_count = master.closed(reason);
            let mut stranger = Guest::of(wire, master.address).await;
            for end in &reports {
                stranger.report(*end).await;
            }
            stranger.is_closed().await;
            eventually(reason, || master.closed(reason) > reason_count).await;
            eventually("no slave", || master.slaves.list().is_empty()).await;
        }
        assert_eq!(master.closed("ahead"), 3, "{wire:?}");
        assert_eq!(master.slaves.position(1), None);
        let mut http = connect(master.address).await;
        http.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").await.unwrap();
        is_closed(&mut http).await;
        master.stop().await;
    }
}

/// The master has lost what the slave has, and then has as much again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slave_with_other_bytes_acknowledges_nothing_also_when_the_log_is_longer_than_its_own() {
    let (of_master, of_slave) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (main, copy) = (open(of_master.path()), open(of_slave.path()));
    fill(&main, 0..20);
    let opened = main.end().0;
    let (master, has) = (Master::of(&main), opened + 100);
    for turn in 1..=3 {
        let mut ahead = connect(master.address).await;
        report(&mut ahead, has).await;
        is_closed(&mut ahead).await;
        eventually("it is turned away", || master.closed("ahead") == turn).await;
        assert!(master.slaves.positions().iter().all(|at| at.0 != has));
        match turn {
            1 => fill(&main, 20..40),
            // Another slave gets all of it.
            _ if copy.end() < main.end() => {
                fill(&copy, 0..20);
                let slave = Slave::on(Wire::Own, &copy, master.address, ask(&main));
                came_to(&copy, main.end()).await;
                slave.stop().await;
            }
            _ => {}
        }
    }
    // From a place at which the log ended at the opening, it goes on.
    let mut slave = connect(master.address).await;
    report(&mut slave, opened).await;
    assert_eq!(frame(&mut slave).await.0, opened);
    master.stop().await;
}

/// A slave of Apache says nothing for seconds after it has connected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slave_that_reports_late_has_nothing_of_what_went_to_others_meanwhile() {
    let (of_master, of_slave) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (main, copy) = (open(of_master.path()), open(of_slave.path()));
    fill(&main, 0..20);
    let opened = main.end().0;
    let feed = FeedOptions { silence: 10 * PATIENCE, ..FeedOptions::default() };
    let master = Master::with(&main, PortOptions { feed: feed.fixed(), ..PortOptions::new(all()) });
    let mut late = connect(master.address).await;
    fill(&main, 20..40);
    let slave = Slave::of(&copy, master.address, ask(&main));
    came_to(&copy, main.end()).await;
    report(&mut late, opened + 100).await;
    is_closed(&mut late).await;
    eventually("it is turned away", || master.closed("ahead") == 1).await;
    slave.stop().await;
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slave_that_may_no_longer_have_the_log_is_let_go() {
    let dir = tempfile::tempdir().unwrap();
    let main = open(dir.path());
    fill(&main, 0..20);
    let (may, (changed, changes)) = (Arc::new(AtomicBool::new(true)), watch::channel(()));
    let of_port = Arc::clone(&may);
    let allowed = Allowed::changing(move |_| of_port.load(Ordering::Relaxed), changes);
    let master = Master::with(&main, PortOptions::new(allowed));
    for (wire, upto) in BOTH.into_iter().zip([30, 40]) {
        may.store(true, Ordering::Relaxed);
        let mut slave = Guest::of(wire, master.address).await;
        slave.report(main.end().0).await;
        eventually("the slave", || master.slaves.positions() == [main.end()]).await;
        // Something else has changed.
        changed.send(()).unwrap();
        fill(&main, upto - 10..upto);
        let mut has = 0;
        while has < main.end().0 {
            let (at, body) = slave.frame().await;
            has = at + body.len() as u64;
        }
        slave.report(main.end().0).await;
        eventually("the acknowledgement", || master.slaves.positions() == [main.end()]).await;
        may.store(false, Ordering::Relaxed);
        changed.send(()).unwrap();
        match wire {
            Wire::Plain => _ = slave.is_closed().await,
            Wire::Own => assert!(slave.words().await.contains("replicaAllow")),
        }
        eventually("it is gone", || master.slaves.list().is_empty()).await;
    }
    assert_eq!(master.closed("notAllowed"), 2);
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_that_closes_gives_slaves_what_is_left_of_the_log() {
    for wire in BOTH {
        let (of_master, of_slave) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (main, copy) = (open(of_master.path()), open(of_slave.path()));
        fill(&main, 0..20);
        let options = PortOptions { last_frames: PATIENCE, ..PortOptions::new(all()) };
        let master = Master::with(&main, options);
        let slave = Slave::on(wire, &copy, master.address, ask(&main));
        came_to(&copy, main.end()).await;
        let mut silent = connect(master.address).await;
        fill(&main, 20..400);
        master.stop().await;
        assert_copied(&main, &copy);
        is_closed(&mut silent).await;
        slave.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slave_that_hangs_does_not_keep_a_port_from_closing() {
    let dir = tempfile::tempdir().unwrap();
    let main = open(dir.path());
    fill(&main, 0..20);
    for wire in BOTH {
        let options = PortOptions { last_frames: Duration::from_millis(50), ..PortOptions::new(all()) };
        let master = Master::with(&main, options);
        let mut hangs = Guest::of(wire, master.address).await;
        hangs.report(0).await;
        eventually("the slave", || master.slaves.list().len() == 1).await;
        let slaves = Arc::clone(&master.slaves);
        master.stop().await;
        assert!(slaves.list().is_empty());
        hangs.is_closed().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_say_nothing_or_half_a_hello_make_way_for_a_slave() {
    for wire in BOTH {
        make_way_for(wire).await;
    }
}

async fn make_way_for(wire: Wire) {
    let (of_master, of_slave) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (main, copy) = (open(of_master.path()), open(of_slave.path()));
    fill(&main, 0..50);
    let mut options = PortOptions::new(all());
    options.connections_max = 16;
    let master = Master::with(&main, options);
    let mut scanners = Vec::new();
    let half = &Hello::new(greeting(1)).unwrap().bytes;
    for number in 0..300 {
        let mut scanner = connect(master.address).await;
        // It may be gone by then.
        let _ = scanner.write_all(&half[..number % half.len()]).await;
        scanners.push(scanner);
    }
    let slave = Slave::on(wire, &copy, master.address, ask(&main));
    came_to(&copy, main.end()).await;
    // The crowd before it may have cost it an attempt.
    let connections = slave.status.connections();
    for _ in 0..100 {
        scanners.push(connect(master.address).await);
    }
    fill(&main, 50..100);
    came_to(&copy, main.end()).await;
    assert_copied(&main, &copy);
    // Half a hello that is held for long ends for another reason.
    let ended = || master.slaves.closed().map(|(_, count)| count).sum::<u64>();
    eventually("the scanners to be counted", || ended() >= 384).await;
    assert!(master.closed("madeWay") > 0);
    assert_eq!(slave.status.connections(), connections, "a slave that has reported stays");
    slave.stop().await;
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_is_not_allowed_gets_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let main = open(dir.path());
    let master = Master::with(&main, PortOptions::new(Allowed::new(|address| !address.is_loopback())));
    let mut stranger = connect(master.address).await;
    is_closed(&mut stranger).await;
    assert_eq!((master.closed("notAllowed"), master.slaves.list().len()), (1, 0));
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slave_with_more_than_its_master_is_let_go_and_keeps_what_it_has() {
    let (of_master, of_slave) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (main, copy) = (open(of_master.path()), open(of_slave.path()));
    fill(&main, 0..20);
    fill(&copy, 0..40);
    let end = copy.end();
    let master = Master::of(&main);
    // Another broker answers at the main port.
    let slave = Slave::of(&copy, master.address, ask(&copy));
    eventually("a second attempt", || master.closed("ahead") >= 2).await;
    eventually("the failure", || slave.status.failure().is_some()).await;
    eventually("the end of the connection", || !slave.status.is_connected()).await;
    assert_eq!(copy.end(), end);
    slave.stop().await;
    master.stop().await;
}

/// A slave on this stream takes nothing of a master that says this to it, and says why.
async fn takes_nothing(wire: Wire, copy: &Arc<Store>, stream: Vec<u8>, says: &str) {
    let end = copy.end();
    let slave = Slave::on(wire, copy, answering(stream).await, ask(copy));
    until_it_fails(&slave, says).await;
    assert_eq!(copy.end(), end, "{wire:?}: {says}");
    slave.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slave_takes_nothing_that_does_not_follow_its_log() {
    let dir = tempfile::tempdir().unwrap();
    let copy = open(dir.path());
    fill(&copy, 0..20);
    let end = copy.end();
    for wire in BOTH {
        for (at, bytes, body, says) in [
            (end.0 + 8, 0, vec![], "the logs differ"),
            (end.0 - 8, 0, vec![], "the logs differ"),
            (u64::MAX, 0, vec![], "no log offset"),
            (end.0, 5 << 20, vec![], "limit"),
            (end.0, SEGMENT as u32, vec![], "mappedFileSizeCommitLog"),
            (end.0, 100, vec![0; 100], "zeros"),
            (end.0, 100, vec![0xEE; 100], &*end.0.to_string()),
        ] {
            takes_nothing(wire, &copy, [wire.answer(), wire.header(at, bytes), body].concat(), says).await;
        }
    }
    takes_nothing(Wire::Plain, &copy, Wire::Plain.header(end.0, u32::MAX), "-1 bytes").await;
}

/// On that of Gantry it looks at what its master says first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slave_says_what_was_wrong_with_its_masters_answer() {
    let dir = tempfile::tempdir().unwrap();
    let copy = open(dir.path());
    fill(&copy, 0..20);
    let answer = |greeting: Greeting| own::answer(&greeting.encode().unwrap(), None);
    let who = Identity { set: "broker-b".into(), ..greeting(0).who };
    for (stream, says) in [
        (own::end("not you"), "does not let this slave in: not you"),
        (answer(Greeting { version: 2, ..greeting(0) }), "version 2"),
        (answer(Greeting { who, ..greeting(0) }), "the master is of the set \"broker-b\""),
        (
            answer(Greeting { segment_bytes: SEGMENT * 2, ..greeting(0) }),
            "files of the master's log have 131072 bytes, and those of the log here 65536",
        ),
        (b"HTTP/1.1 400 Bad Request\r\n".to_vec(), "not readable"),
        (Wire::Own.header(copy.end().0, 5), "not readable"),
        ([Wire::Own.answer(), own::end("enough")].concat(), "the master ends the connection: enough"),
    ] {
        takes_nothing(Wire::Own, &copy, stream, says).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slave_with_sync_flush_reports_what_is_on_the_device_and_never_less_than_before() {
    let (of_master, of_slave) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (main, copy) = (open(of_master.path()), open_sync(of_slave.path()));
    fill(&main, 0..200);
    let log = log_of(&main);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let options = FollowOptions { heartbeat: Duration::from_millis(50), ..FollowOptions::default() };
    let slave = Slave::with(&copy, listener.local_addr().unwrap(), ask(&main), options);
    let (mut socket, _) = in_time("the slave", listener.accept()).await.unwrap();
    let mut reported = 0;
    let mut sent = 0;
    while reported < log.len() as u64 {
        let mut report = [0; 8];
        in_time("a report", socket.read_exact(&mut report)).await.unwrap();
        let report = u64::from_be_bytes(report);
        assert!(report >= reported && report <= copy.flushed().get(), "{report} after {reported}");
        reported = report;
        if sent == 0 {
            sent = report as usize;
        }
        let bytes = (log.len() - sent).min(9000).min(SEGMENT as usize - sent % SEGMENT as usize);
        if bytes > 0 {
            socket.write_all(&Wire::Plain.header(sent as u64, bytes as u32)).await.unwrap();
            socket.write_all(&log[sent..][..bytes]).await.unwrap();
            sent += bytes;
        }
    }
    assert_eq!(copy.end(), LogOffset(log.len() as u64));
    slave.stop().await;
}
