//! Connections that say nothing, or read nothing: how long they stay, and who makes way for whom.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use net::{ConnectionSlots, ListenerOptions};
use protocol::header::FLAG_ONEWAY;
use support::{PATIENCE, Server, does, request, until};
use tokio::io::AsyncWriteExt;
use tokio::time::Instant;

fn options() -> ListenerOptions {
    ListenerOptions::default()
}

/// The first has spoken and stays; of those that say nothing the oldest goes for each that comes.
#[tokio::test]
async fn a_port_that_is_full_of_silence_takes_who_speaks_and_keeps_who_has_spoken() {
    for of_process in [false, true] {
        let places = Arc::new(ConnectionSlots::new(if of_process { 8 } else { usize::MAX }));
        let connections_max = if of_process { 1_000 } else { 8 };
        let server = Server::start(ListenerOptions { connections_max, places: Arc::clone(&places), ..options() });
        let mut established = server.peer().await;
        established.echo(1, b"first").await;
        let mut silent = Vec::new();
        for number in 0..50 {
            let mut peer = server.peer().await;
            // Half a frame is no word.
            if number % 2 == 0 {
                peer.write(&request(does::ECHO, 1, 0, &[], b"never ends")[..10]).await;
            }
            silent.push(peer);
        }
        let deadline = Instant::now() + PATIENCE;
        // One that came while another one was still on its way out is closed as it came, and comes again.
        loop {
            assert!(Instant::now() < deadline, "nobody gets in");
            let mut newcomer = server.peer().await;
            if newcomer.stream.write_all(&request(does::ECHO, 2, 0, &[], b"let me in")).await.is_ok()
                && let Some(reply) = newcomer.reply().await
            {
                assert_eq!(reply.body, "let me in");
                break;
            }
        }
        assert_eq!(established.echo(3, b"still here").await.body, "still here");
        if of_process {
            let figures = places.figures();
            assert!(figures.taken <= 8 && figures.given_up > 0, "{figures:?}");
        }
        drop((established, silent));
        if of_process {
            until("all places are free", || places.figures().taken == 0 && places.figures().new == 0).await;
        }
    }
}

#[tokio::test]
async fn a_connection_that_never_says_a_whole_frame_is_closed_soon_and_one_that_did_may_be_silent() {
    // So long that a busy machine comes to the first frame of the one that speaks.
    let first_frame_timeout = Some(Duration::from_secs(1));
    let server = Server::start(ListenerOptions { first_frame_timeout, ..options() });
    let mut spoke = server.peer().await;
    spoke.echo(1, b"hello").await;
    let mut mute = server.peer().await;
    let mut half = server.peer().await;
    half.write(&request(does::ECHO, 1, 0, &[], b"half")[..9]).await;
    let mut proxied = server.peer().await;
    proxied.write(b"PROXY TCP4 192.0.2.9 10.0.0.1 12345 10911\r\n").await;
    for (what, peer) in [("mute", &mut mute), ("half", &mut half), ("proxied", &mut proxied)] {
        assert!(peer.is_closed_by_the_server().await, "{what}");
    }
    assert_eq!(spoke.echo(2, b"still here").await.opaque, 2);
}

/// What it says keeps it from being idle; what it does not read is nobody's to keep for ever.
#[tokio::test]
async fn a_peer_that_speaks_and_never_reads_is_given_up_and_one_that_reads_slowly_is_not() {
    use tokio::io::AsyncReadExt;
    // So long that a busy machine comes to the next read of the slow one.
    let time = Duration::from_secs(3);
    let unread_timeout = Some(time);
    let options =
        ListenerOptions { unread_timeout, send_buffer_bytes: Some(64 << 10), out_bytes_max: 64 << 20, ..options() };
    let server = Server::start(options);
    let mut slow = server.peer().await;
    let stuck = server.peer().await;
    let ask: Vec<u8> = (0..16).flat_map(|n| request(does::SHARED, n, 0, &[("slices", "0")], b"")).collect();
    slow.write(&ask).await;
    let (_kept, mut speaking) = stuck.stream.into_split();
    speaking.write_all(&ask).await.unwrap();
    let begun = Instant::now();
    let talk = async {
        // Ends when the server has closed, which the peer learns by a reset.
        while speaking.write_all(&request(does::NOTHING, 99, FLAG_ONEWAY, &[], b"")).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let read_slowly = async {
        let mut some = vec![0; 64 << 10];
        while begun.elapsed() < time * 4 / 3 {
            assert!(slow.stream.read(&mut some).await.unwrap() > 0, "closed, though it reads");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, async { tokio::join!(talk, read_slowly) }).await.expect("the stuck one is closed");
    assert_eq!(server.probe.closed.load(Ordering::SeqCst), 1);
}

/// Both have said all; what keeps their connections is what they are owed.
#[tokio::test]
async fn a_peer_that_takes_nothing_of_its_last_replies_is_given_up_and_one_that_takes_them_slowly_gets_all() {
    use tokio::io::AsyncReadExt;
    // So long that a busy machine comes to the next read of the slow one.
    let unread_timeout = Duration::from_secs(3);
    let places = Arc::new(ConnectionSlots::new(8));
    let server = Server::start(ListenerOptions {
        unread_timeout: Some(unread_timeout),
        places: Arc::clone(&places),
        send_buffer_bytes: Some(64 << 10),
        out_bytes_max: 64 << 20,
        ..options()
    });
    let (mut slow, mut stuck) = (server.peer().await, server.peer().await);
    let ask: Vec<u8> = (0..16).flat_map(|n| request(does::SHARED, n, 0, &[("slices", "0")], b"")).collect();
    for peer in [&mut slow, &mut stuck] {
        peer.write(&ask).await;
        peer.stream.shutdown().await.unwrap();
    }
    let begun = Instant::now();
    let read_slowly = async {
        let (mut some, mut taken) = (vec![0; 64 << 10], 0);
        loop {
            match slow.stream.read(&mut some).await.unwrap() {
                0 => return taken,
                bytes => taken += bytes,
            }
            if begun.elapsed() < unread_timeout * 4 / 3 {
                tokio::time::sleep(Duration::from_millis(25)).await;
            }
        }
    };
    let taken = tokio::time::timeout(PATIENCE, read_slowly).await.expect("all replies come");
    assert!(taken > 16 << 20, "{taken} bytes came");
    until("the stuck one is given up", || places.figures().taken == 0).await;
    drop(stuck);
}
