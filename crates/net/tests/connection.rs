//! The loop, seen through real sockets.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod support;

use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use net::{
    Budget, CallError, Client, ClientOptions, Closing, Frames, Listener, ListenerOptions, ListenerTag, Outgoing, Port,
};
use protocol::code::ResponseCode;
use protocol::frame::Serialization;
use protocol::header::{FLAG_ONEWAY, FLAG_RESPONSE};
use support::{PATIENCE, Probe, Server, does, request, request_as, request_of_version, until};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::Instant;

fn options() -> ListenerOptions {
    ListenerOptions::default()
}

#[tokio::test]
async fn a_burst_is_answered_in_order_and_in_the_serialization_of_each_request() {
    let server = Server::start(options());
    let mut peer = server.peer().await;
    let mut all = Vec::new();
    for opaque in 0..500 {
        let s = if opaque % 2 == 0 { Serialization::Json } else { Serialization::Binary };
        all.extend(request_as(s, does::ECHO, opaque, 0, &[], format!("body {opaque}").as_bytes()));
    }
    peer.write(&all).await;
    for opaque in 0..500 {
        let reply = peer.reply().await.unwrap();
        assert_eq!((reply.opaque, reply.flag & FLAG_RESPONSE), (opaque, 1));
        assert_eq!(reply.body, format!("body {opaque}").as_bytes());
        let s = if opaque % 2 == 0 { Serialization::Json } else { Serialization::Binary };
        assert_eq!(reply.serialization, s);
    }
    assert!(server.probe.bursts.load(Ordering::SeqCst) < 500, "requests came in bursts");
}

#[tokio::test]
async fn of_a_burst_with_large_replies_only_as_much_is_served_as_may_be_owed_and_the_rest_before_the_end() {
    let server = Server::start(ListenerOptions { out_bytes_max: 2 << 20, ..options() });
    let mut peer = server.peer().await;
    // The first look at a connection takes a few bytes only. What follows is read in one go: what is not read when the connection
    // is closed is not served.
    peer.echo(0, b"").await;
    let all: Vec<u8> = (0..50).flat_map(|n| request(does::SHARED, n, 0, &[("slices", "0")], b"")).collect();
    peer.write(&all).await;
    assert_eq!(peer.reply().await.unwrap().opaque, 0);
    // What the sockets and the peer hold comes on top of what is owed.
    let served = server.probe.served.load(Ordering::SeqCst);
    assert!(served < 30, "{served} of 50 replies of 1 MiB were made while the peer took one");
    server.probe.last().close();
    for n in 1..50 {
        let reply = peer.reply().await.unwrap_or_else(|| panic!("request {n} was read and is not answered"));
        assert_eq!((reply.opaque, reply.body.len()), (n, 1 << 20));
    }
    assert!(peer.is_closed_by_the_server().await);
}

#[tokio::test]
async fn the_rest_of_a_burst_that_its_service_left_comes_again_with_what_is_left_for_the_connection() {
    let server = Server::start(options());
    let mut peer = server.peer().await;
    // What follows is read in one go.
    peer.echo(0, b"").await;
    let before = server.probe.bursts.load(Ordering::SeqCst);
    let [first, leaves, last] =
        [does::ECHO, does::LEAVES, does::ECHO].map(|code| request(code, code, 0, &[], b"something"));
    peer.write(&[first, leaves, last.clone(), last].concat()).await;
    assert_eq!(peer.reply().await.unwrap().opaque, does::ECHO);
    // Others are served meanwhile.
    let mut other = server.peer().await;
    for opaque in 0..100 {
        other.echo(opaque, b"").await;
    }
    let served = server.probe.bursts.load(Ordering::SeqCst) - before;
    assert!(served < 110, "{served} bursts: what was left came again and again");
    assert_eq!(server.probe.served.load(Ordering::SeqCst), 103);
    server.probe.gate.notify_one();
    for opaque in [does::LEAVES, does::ECHO, does::ECHO] {
        assert_eq!(peer.reply().await.unwrap().opaque, opaque);
    }
}

#[tokio::test]
async fn a_connection_that_drains_serves_what_was_left_of_a_burst_before_it_ends() {
    let mut server = Server::start(options());
    let mut peer = server.peer().await;
    peer.echo(0, b"").await;
    peer.write(&[does::LEAVES, does::ECHO].map(|code| request(code, code, 0, &[], b"")).concat()).await;
    until("it is left", || server.probe.served.load(Ordering::SeqCst) == 2).await;
    server.begin_stop();
    until("the connection drains", || server.probe.last().is_closed()).await;
    server.probe.gate.notify_one();
    let mut answered = [peer.reply().await.unwrap().opaque, peer.reply().await.unwrap().opaque];
    answered.sort_unstable();
    assert_eq!(answered, [does::ECHO, does::LEAVES]);
    assert!(peer.is_closed_by_the_server().await);
}

#[tokio::test]
async fn a_frame_that_comes_byte_by_byte_is_answered() {
    let server = Server::start(options());
    let mut peer = server.peer().await;
    for byte in request(does::ECHO, 7, 0, &[], b"slow") {
        peer.write(&[byte]).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(peer.reply().await.unwrap().body, "slow");
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(48))]
    #[test]
    fn however_the_stream_is_split_the_frames_are_the_same(
        sizes in proptest::collection::vec(0usize..20_000, 1..30),
        splits in proptest::collection::vec(1usize..9_000, 1..60),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let server = Server::start(options());
            let mut peer = server.peer().await;
            let bodies: Vec<Vec<u8>> = sizes.iter().enumerate().map(|(n, size)| vec![n as u8; *size]).collect();
            let frames = bodies.iter().enumerate().flat_map(|(n, body)| request(does::ECHO, n as i32, 0, &[], body));
            let stream: Vec<u8> = frames.collect();
            let mut rest = &stream[..];
            let mut splits = splits.iter().cycle();
            while !rest.is_empty() {
                let (now, later) = rest.split_at(rest.len().min(*splits.next().unwrap()));
                peer.write(now).await;
                tokio::task::yield_now().await;
                rest = later;
            }
            for (n, body) in bodies.iter().enumerate() {
                let reply = peer.reply().await.unwrap();
                assert_eq!(reply.opaque, n as i32);
                assert!(reply.body == *body);
            }
        });
    }
}

#[tokio::test]
async fn frames_of_every_size_come_through_one_connection() {
    let server = Server::start(options());
    let mut peer = server.peer().await;
    for (opaque, size) in
        [0, 1, 8_000, 8_192, 70_000, 4 << 20, 3, 4 << 20, 65_536, 9 << 20, 100].into_iter().enumerate()
    {
        let body: Vec<u8> = (0..size).map(|at: u32| (at % 253) as u8).collect();
        let frame = request(does::ECHO, opaque as i32, 0, &[], &body);
        let (mut reading, mut writing) = tokio::io::split(&mut peer.stream);
        let mut back = vec![0; 8];
        let (_, ()) = tokio::join!(async { writing.write_all(&frame).await.unwrap() }, async {
            use tokio::io::AsyncReadExt;
            reading.read_exact(&mut back).await.unwrap();
            let rest = u32::from_be_bytes(back[..4].try_into().unwrap()) as usize - 4;
            back.resize(8 + rest, 0);
            reading.read_exact(&mut back[8..]).await.unwrap();
        });
        assert!(back.ends_with(&body), "{size} bytes");
    }
}

#[tokio::test]
async fn a_oneway_request_is_served_and_not_answered() {
    let server = Server::start(options());
    let mut peer = server.peer().await;
    let mut all = request(does::ECHO, 1, FLAG_ONEWAY, &[], b"x");
    all.extend(request(does::SHARED, 2, FLAG_ONEWAY, &[("slices", "3")], b""));
    all.extend(request(does::LATER, 3, FLAG_ONEWAY, &[], b""));
    all.extend(request(does::ECHO, 4, 0, &[], b"y"));
    peer.write(&all).await;
    assert_eq!(peer.reply().await.unwrap().opaque, 4);
    assert_eq!(server.probe.served.load(Ordering::SeqCst), 4);
}

#[tokio::test]
async fn a_bad_frame_closes_its_connection_after_the_replies_before_it_and_no_other() {
    let bad: [(&str, Vec<u8>); 6] = [
        ("oversize", vec![0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0]),
        ("negative length", vec![0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]),
        ("too short", vec![0, 0, 0, 3, 0, 0, 0, 0]),
        ("header beyond the frame", vec![0, 0, 0, 8, 0, 0, 0, 9, 0, 0, 0, 0]),
        ("unknown serialization", vec![0, 0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0]),
        ("header that is not JSON", [&[0, 0, 0, 8, 0, 0, 0, 4][..], b"nope"].concat()),
    ];
    let server = Server::start(options());
    let mut other = server.peer().await;
    other.echo(1, b"before").await;
    for (what, bytes) in bad {
        let mut peer = server.peer().await;
        peer.write(&[request(does::ECHO, 5, 0, &[], b"good"), bytes].concat()).await;
        assert_eq!(peer.reply().await.expect(what).opaque, 5, "{what}");
        assert!(peer.is_closed_by_the_server().await, "{what}");
    }
    assert_eq!(other.echo(2, b"after").await.opaque, 2);
}

#[tokio::test]
async fn a_peer_that_never_reads_is_bounded_and_then_closed() {
    let probe = Probe::new();
    let idle_timeout = Duration::from_millis(400);
    let server = Server::serving(
        probe,
        ListenerOptions { idle_timeout: Some(idle_timeout), out_bytes_max: 1 << 20, ..options() },
    );
    let mut peer = server.peer().await;
    // Each asks for 1 MiB. The kernel's buffers take a few, the connection's bound one or two.
    for n in 0..200 {
        let frame = request(does::SHARED, n, 0, &[("slices", "0")], b"");
        if peer.stream.write_all(&frame).await.is_err() {
            break;
        }
        tokio::task::yield_now().await;
    }
    until("the connection is closed", || server.probe.closed.load(Ordering::SeqCst) == 1).await;
    assert!(!server.probe.last().send(Frames::default()), "a closed connection takes nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_that_never_read_hold_together_what_the_bound_says_and_who_reads_is_served() {
    const PEERS: usize = 20;
    const OWN: usize = 64 << 10;
    let budget = Arc::new(Budget::new(2 << 20));
    let server =
        Server::start(ListenerOptions { budget: Arc::clone(&budget), send_buffer_bytes: Some(16 << 10), ..options() });
    let frame = request(does::ECHO, 1, 0, &[], &[5; 30_000]);
    let mut stalled = tokio::task::JoinSet::new();
    for _ in 0..PEERS {
        let (mut peer, frame) = (server.peer().await, frame.clone());
        stalled.spawn(async move {
            // Ends with the test: the server stops reading.
            while peer.stream.write_all(&frame).await.is_ok() {}
        });
    }
    let (mut before, mut looks) = (0, 0);
    until("all have what they may have", || {
        let served = server.probe.served.load(Ordering::SeqCst);
        looks = if served == before && budget.used_bytes() > 1 << 20 { looks + 1 } else { 0 };
        before = served;
        looks > 100
    })
    .await;
    // Half of it, one buffer that grew beyond that, and what each may have; its own share is not counted.
    let used = budget.used_bytes();
    assert!(used <= (2 << 20) + PEERS * OWN, "{used} bytes are held");

    let mut reader = server.peer().await;
    let all = frame.repeat(50);
    let (mut reading, mut writing) = tokio::io::split(&mut reader.stream);
    let mut answers = vec![0; 50 * 30_000];
    let both = async {
        use tokio::io::AsyncReadExt;
        tokio::try_join!(writing.write_all(&all), reading.read_exact(&mut answers))
    };
    tokio::time::timeout(PATIENCE, both).await.expect("whoever reads is served").unwrap();
    stalled.shutdown().await;
    drop(reader);
    until("everything is given back", || budget.used_bytes() == 0).await;
}

#[tokio::test]
async fn the_inbox_of_a_connection_that_is_stuck_fills_up_and_then_refuses() {
    let server = Server::start(ListenerOptions { inbox_work_max: 10, out_bytes_max: 10_000, ..options() });
    let mut peer = server.peer().await;
    peer.write(&request(does::GATED, 1, 0, &[], b"")).await;
    until("it is served", || server.probe.served.load(Ordering::SeqCst) == 1).await;
    let connection = server.probe.last();
    let came = net::Arrival::at(tokio::time::Instant::now());
    let (serialization, is_oneway, is_held) = (Serialization::Json, false, false);
    let to = |opaque| net::ReplyTo { code: 0, opaque, serialization, is_oneway, came, is_held };
    let posted = (0..100).filter(|n| connection.post(to(*n))).count();
    assert_eq!(posted, 10);
    let sent = (0..100)
        .filter(|n| {
            let mut out = Outgoing::new();
            out.reply(to(*n), ResponseCode::Success, None, &(), &[0; 1_000]);
            connection.send(out.take())
        })
        .count();
    assert!((8..=11).contains(&sent), "{sent}");
    server.probe.gate.notify_one();
    for _ in 0..1 + posted + sent {
        assert!(peer.reply().await.is_some());
    }
}

#[tokio::test]
async fn half_a_frame_that_never_ends_closes_the_connection_even_while_bytes_trickle() {
    let server = Server::start(ListenerOptions { idle_timeout: Some(Duration::from_millis(300)), ..options() });
    let mut peer = server.peer().await;
    let frame = request(does::ECHO, 1, 0, &[], &[1; 10_000]);
    peer.write(&frame[..100]).await;
    let mut sent = 100;
    let trickle = async {
        loop {
            if peer.stream.write_all(&frame[sent..=sent]).await.is_err() {
                return;
            }
            sent += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, trickle).await.expect("the server closes");
    assert_eq!(server.probe.served.load(Ordering::SeqCst), 0);
    assert!(sent < 9_000);
}

/// At no look is the buffer empty: the tail of each read is the next frame.
#[tokio::test]
async fn a_stream_whose_frames_complete_is_not_half_a_frame_however_long_it_lasts() {
    // So long that a busy machine comes to each frame within it.
    let idle_timeout = Duration::from_secs(5);
    let server = Server::start(ListenerOptions { idle_timeout: Some(idle_timeout), ..options() });
    let mut peer = server.peer().await;
    let frame = request(does::NOTHING, 1, 0, &[], &[1; 100]);
    let (start, end) = frame.split_at(50);
    peer.write(start).await;
    let (begun, mut round) = (Instant::now(), 0);
    while begun.elapsed() < idle_timeout * 5 / 4 {
        round += 1;
        peer.write(&[end, start].concat()).await;
        until("the frame is served", || server.probe.served.load(Ordering::SeqCst) == round).await;
        tokio::time::sleep(Duration::from_millis(15)).await;
        assert_eq!(server.probe.closed.load(Ordering::SeqCst), 0, "closed after {round} frames");
    }
}

#[tokio::test]
async fn a_connection_on_which_nothing_moves_is_closed_and_one_that_speaks_is_not() {
    let server = Server::start(ListenerOptions { idle_timeout: Some(Duration::from_secs(5)), ..options() });
    let (mut silent, mut mute, mut alive) = (server.peer().await, server.peer().await, server.peer().await);
    silent.echo(1, b"hello").await;
    let closed = async { (silent.is_closed_by_the_server().await, mute.is_closed_by_the_server().await) };
    tokio::pin!(closed);
    let mut opaque = 0;
    let ended = loop {
        opaque += 1;
        assert_eq!(alive.echo(opaque, b"still here").await.opaque, opaque);
        if let Ok(ended) = tokio::time::timeout(Duration::from_millis(50), &mut closed).await {
            break ended;
        }
    };
    assert_eq!(ended, (true, true));
}

#[tokio::test]
async fn work_that_is_posted_runs_on_the_connection_and_a_bug_costs_only_its_own() {
    let server = Server::start(options());
    let (mut good, mut bad) = (server.peer().await, server.peer().await);
    good.echo(1, b"").await;
    bad.write(&request(does::BUG, 1, 0, &[], b"")).await;
    assert!(bad.is_closed_by_the_server().await);
    until("the session is closed", || server.probe.closed.load(Ordering::SeqCst) == 1).await;
    good.write(&request(does::LATER, 2, 0, &[], b"")).await;
    let reply = good.reply().await.unwrap();
    assert_eq!((reply.opaque, reply.remark.as_deref()), (2, Some("later")));
}

#[tokio::test]
async fn shared_slices_arrive_whole_between_copied_ones() {
    let server = Server::start(options());
    let mut peer = server.peer().await;
    let mut all = Vec::new();
    for opaque in 0..4 {
        all.extend(request(does::SHARED, opaque, 0, &[("slices", "90")], b""));
        all.extend(request(does::ECHO, 100 + opaque, 0, &[], b"between"));
    }
    peer.write(&all).await;
    let log = &server.probe.log;
    let mut wanted: Vec<u8> = (0..90).flat_map(|n| log[n * 2_000..n * 2_000 + 1_000].iter().copied()).collect();
    wanted.extend(&log[1 << 20..2 << 20]);
    for opaque in 0..4 {
        let reply = peer.reply().await.unwrap();
        assert_eq!(reply.opaque, opaque);
        assert!(reply.body == wanted);
        assert_eq!(peer.reply().await.unwrap().body, "between");
    }
}

#[tokio::test]
async fn the_server_asks_the_client_and_times_out_when_it_does_not_answer() {
    let server = Server::start(options());
    let mut peer = server.peer().await;
    peer.echo(1, b"").await;
    let connection = server.probe.last();
    let ask = |timeout| {
        let connection = connection.clone();
        tokio::spawn(async move { connection.request(220, &[("a", "b")], Bytes::from_static(b"?"), timeout).await })
    };
    let asked = ask(PATIENCE);
    let request = peer.reply().await.unwrap();
    assert_eq!((request.code, request.flag, &request.body[..]), (220, 0, &b"?"[..]));
    peer.write(&support::request(0, request.opaque + 1_000, FLAG_RESPONSE, &[], b"to nobody")).await;
    peer.write(&support::request(0, request.opaque, FLAG_RESPONSE, &[("k", "v\"\u{e9}")], b"!")).await;
    let response = asked.await.unwrap().unwrap();
    assert_eq!((response.code, response.fields.get("k"), &response.body[..]), (0, Some("v\"\u{e9}"), &b"!"[..]));

    assert!(connection.oneway(40, &(), &Bytes::new()));
    assert_eq!(peer.reply().await.map(|told| (told.code, told.flag)), Some((40, FLAG_ONEWAY)));

    let late = ask(Duration::from_millis(30)).await.unwrap();
    assert!(matches!(late, Err(CallError::Timeout { .. })), "{late:?}");
    assert!(!connection.is_closed(), "silence so short says nothing about the peer");
    let late = ask(Duration::from_millis(3_100)).await.unwrap();
    assert!(matches!(late, Err(CallError::Timeout { .. })), "{late:?}");
    assert!(!connection.is_closed(), "it may be busy with what it was asked, and have nothing to say");
    assert_eq!(peer.reply().await.map(|asked| asked.code), Some(220));
    assert_eq!(peer.reply().await.map(|asked| asked.code), Some(220));
    assert_eq!(peer.echo(2, b"still here").await.opaque, 2);
    drop(peer);
    until("it is gone", || connection.is_closed()).await;
    let closed = ask(PATIENCE).await.unwrap();
    assert!(matches!(closed, Err(CallError::Closed { .. })), "{closed:?}");
}

#[tokio::test]
async fn a_peer_that_closes_its_half_still_gets_its_replies() {
    let server = Server::start(options());
    let mut peer = server.peer().await;
    let all: Vec<u8> = (0..50).flat_map(|n| request(does::SHARED, n, 0, &[("slices", "1")], b"")).collect();
    peer.write(&all).await;
    peer.stream.shutdown().await.unwrap();
    for opaque in 0..50 {
        assert_eq!(peer.reply().await.unwrap().opaque, opaque);
    }
    assert!(peer.is_closed_by_the_server().await);
    until("the session is closed", || server.probe.closed.load(Ordering::SeqCst) == 1).await;
}

#[tokio::test]
async fn a_peer_that_does_not_take_its_last_replies_has_no_session_any_more() {
    let server = Server::start(ListenerOptions { out_bytes_max: 64 << 20, ..options() });
    let mut peer = server.peer().await;
    let all: Vec<u8> = (0..30).flat_map(|n| request(does::SHARED, n, 0, &[("slices", "0")], b"")).collect();
    peer.write(&all).await;
    until("all are served", || server.probe.served.load(Ordering::SeqCst) == 30).await;
    server.probe.last().close();
    // The kernel's buffers do not hold all of them, and the rest is waited with for as long as a connection may be idle.
    until("the session is closed", || server.probe.closed.load(Ordering::SeqCst) == 1).await;
    assert!(peer.reply().await.is_some(), "the connection is still there");
}

/// It stays for an answer that comes later, and for replies that are not taken yet.
#[tokio::test]
async fn half_a_large_frame_of_a_peer_that_has_said_all_is_given_back_while_its_connection_stays() {
    for (code, asks) in [(does::OWED, 1), (does::SHARED, 30)] {
        let budget = Arc::new(Budget::new(3 << 20));
        let server =
            Server::start(ListenerOptions { budget: Arc::clone(&budget), out_bytes_max: 64 << 20, ..options() });
        let mut peer = server.peer().await;
        let all: Vec<u8> = (0..asks).flat_map(|n| request(code, n, 0, &[("slices", "0")], b"")).collect();
        peer.write(&all).await;
        peer.write(&request(does::ECHO, asks, 0, &[], &vec![5; 2 << 20])[..1 << 20]).await;
        until("half a frame is held", || budget.used_bytes() > 512 << 10).await;
        peer.stream.shutdown().await.unwrap();
        until("it is given back", || budget.used_bytes() == 0).await;
        server.probe.gate.notify_one();
        for opaque in 0..asks {
            assert_eq!(peer.reply().await.unwrap().opaque, opaque);
        }
        assert!(peer.is_closed_by_the_server().await);
    }
}

#[tokio::test]
async fn a_reset_closes_the_session() {
    let server = Server::start(options());
    let mut peer = server.peer().await;
    peer.echo(1, b"").await;
    socket2::SockRef::from(&peer.stream).set_linger(Some(Duration::ZERO)).unwrap();
    drop(peer);
    until("the session is closed", || server.probe.closed.load(Ordering::SeqCst) == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_under_load_loses_no_reply_that_was_begun() {
    let mut server = Server::start(options());
    let mut clients = Vec::new();
    for _ in 0..8 {
        let mut peer = server.peer().await;
        clients.push(tokio::spawn(async move {
            let mut answered = 0;
            for opaque in 0.. {
                let burst: Vec<u8> = (0..20).flat_map(|_| request(does::ECHO, opaque, 0, &[], &[9; 3_000])).collect();
                let wrote = peer.stream.write_all(&burst).await;
                for _ in 0..20 {
                    match peer.reply().await {
                        Some(_) => answered += 1,
                        None => return answered,
                    }
                }
                if wrote.is_err() {
                    break;
                }
            }
            answered
        }));
    }
    until("there is load", || server.probe.served.load(Ordering::SeqCst) > 2_000).await;
    server.begin_stop();
    let mut answered = 0;
    for client in clients {
        answered += client.await.unwrap();
    }
    let probe = Arc::clone(&server.probe);
    server.stopped().await;
    assert_eq!(answered, probe.served.load(Ordering::SeqCst), "what was served was received");
    assert_eq!(probe.opened.load(Ordering::SeqCst), probe.closed.load(Ordering::SeqCst));
}

#[tokio::test]
async fn a_request_that_is_being_served_at_shutdown_is_answered() {
    let mut server = Server::start(options());
    let mut peer = server.peer().await;
    peer.write(&request(does::GATED, 9, 0, &[], b"held")).await;
    until("it is served", || server.probe.served.load(Ordering::SeqCst) == 1).await;
    server.begin_stop();
    let connection = server.probe.last();
    until("it drains", || connection.is_closed()).await;
    server.probe.gate.notify_one();
    assert_eq!(peer.reply().await.unwrap().body, "held");
    assert!(peer.is_closed_by_the_server().await);
    server.stopped().await;
}

#[tokio::test]
async fn a_connection_that_drains_waits_for_the_answers_it_owes_and_takes_no_more() {
    let mut server = Server::start(options());
    let mut peer = server.peer().await;
    let mut other = server.peer().await;
    other.echo(1, b"").await;
    peer.write(&[request(does::OWED, 7, 0, &[], b""), request(does::OWED, 8, 0, &[], b"")].concat()).await;
    until("both are owed", || server.probe.served.load(Ordering::SeqCst) == 3).await;
    server.begin_stop();
    assert!(other.is_closed_by_the_server().await, "who owes nothing goes at once");
    peer.write(&request(does::ECHO, 9, 0, &[], b"too late")).await;
    let gate = Arc::clone(&server.probe.gate);
    // One that is answered does not end the wait for the other.
    gate.notify_one();
    assert_eq!(peer.reply().await.unwrap().remark.as_deref(), Some("owed"));
    gate.notify_one();
    assert_eq!(peer.reply().await.unwrap().remark.as_deref(), Some("owed"));
    assert!(peer.is_closed_by_the_server().await);
    server.stopped().await;
}

#[tokio::test]
async fn an_answer_that_never_comes_is_waited_for_no_longer_than_the_drain_time() {
    let mut server = Server::start(ListenerOptions { drain_timeout: Duration::from_millis(50), ..options() });
    let mut peer = server.peer().await;
    peer.write(&request(does::OWED, 7, 0, &[], b"")).await;
    until("it is owed", || server.probe.served.load(Ordering::SeqCst) == 1).await;
    server.begin_stop();
    assert!(peer.is_closed_by_the_server().await);
    let probe = Arc::clone(&server.probe);
    server.stopped().await;
    assert_eq!(probe.closed.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_peer_that_has_said_all_still_gets_the_answers_it_is_owed() {
    let server = Server::start(options());
    let mut peer = server.peer().await;
    peer.write(&request(does::OWED, 7, 0, &[], b"")).await;
    peer.stream.shutdown().await.unwrap();
    let connection = || server.probe.connections.lock().unwrap().first().cloned();
    until("it drains", || connection().is_some_and(|connection| connection.is_closed())).await;
    server.probe.gate.notify_one();
    assert_eq!(peer.reply().await.unwrap().opaque, 7);
    assert!(peer.is_closed_by_the_server().await);
}

#[tokio::test]
async fn who_knows_go_away_gets_it_while_the_port_goes_away_and_others_are_served() {
    let mut server = Server::start(ListenerOptions { go_away_time: PATIENCE, ..options() });
    let mut peer = server.peer().await;
    peer.write(&request_of_version(476, does::GATED, 1)).await;
    until("it is served", || server.probe.served.load(Ordering::SeqCst) == 1).await;
    let mut latecomer = server.peer().await;
    server.begin_stop();
    server.probe.gate.notify_one();
    let before = peer.reply().await.unwrap();
    assert_eq!((before.opaque, before.code), (1, 0), "what came before is served");

    // The stop may take a moment to come through.
    let mut opaque = 1;
    let away = loop {
        opaque += 1;
        peer.write(&request_of_version(476, does::ECHO, opaque)).await;
        let reply = peer.reply().await.unwrap();
        assert_eq!(reply.opaque, opaque);
        if reply.code != 0 {
            break reply;
        }
    };
    assert_eq!(away.code, ResponseCode::GoAway as i32);
    assert_eq!((away.remark.as_deref(), away.serialization), (Some("please go away"), Serialization::Binary));

    // A burst of both kinds, on a connection that begins only now.
    let mixed = [476, 475, 479, 0].iter().zip(10..).flat_map(|(v, n)| request_of_version(*v, does::ECHO, n));
    latecomer.write(&mixed.collect::<Vec<u8>>()).await;
    let mut answers = Vec::new();
    for _ in 0..4 {
        let reply = latecomer.reply().await.unwrap();
        answers.push((reply.opaque, reply.code));
    }
    answers.sort_unstable();
    assert_eq!(answers, [(10, 1500), (11, 0), (12, 1500), (13, 0)]);
    // Nobody is left to be told: the time is not waited for.
    drop((peer, latecomer));
    server.stopped().await;
}

#[tokio::test]
async fn no_call_fails_when_another_listener_goes_on_at_the_port() {
    let port = Port::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let address = port.local_addr().to_string();
    let held = port.again().unwrap();
    let (first, second) = (Probe::new(), Probe::new());
    let listener = Listener::on(port, options(), Arc::clone(&first)).unwrap();
    let (end, ended) = oneshot::channel::<()>();
    let running = tokio::spawn(listener.run_until(async {
        let _ = ended.await;
        Closing::GoesOn
    }));
    let (client, is_over) = (Client::new(ClientOptions::default()), Arc::new(AtomicBool::new(false)));
    let calling: Vec<_> = (0..8)
        .map(|_| {
            let (client, address, is_over) = (client.clone(), address.clone(), Arc::clone(&is_over));
            tokio::spawn(async move {
                while !is_over.load(Ordering::SeqCst) {
                    let answer =
                        client.call(&address, does::ECHO, &(), Bytes::from_static(b"x"), PATIENCE).await.unwrap();
                    assert_eq!((answer.code, &*answer.body), (0, &b"x"[..]), "{:?}", answer.remark);
                }
            })
        })
        .collect();
    until("the first one answers", || first.served.load(Ordering::SeqCst) > 100).await;
    end.send(()).unwrap();
    running.await.unwrap();
    // Nobody serves the port now: calls wait.
    let listener = Listener::on(held, options(), Arc::clone(&second)).unwrap();
    tokio::spawn(listener.run(std::future::pending()));
    until("the second one answers", || second.served.load(Ordering::SeqCst) > 100).await;
    is_over.store(true, Ordering::SeqCst);
    for calls in calling {
        calls.await.unwrap();
    }
}

#[tokio::test]
async fn two_listeners_share_a_service_and_tell_it_which_one_a_connection_came_through() {
    let probe = Probe::new();
    let main = Server::serving(Arc::clone(&probe), options());
    let vip = Server::serving(probe, ListenerOptions { tag: ListenerTag::VIP, ..options() });
    assert_eq!(main.peer().await.echo(1, b"").await.tag.as_deref(), Some("main"));
    assert_eq!(vip.peer().await.echo(1, b"").await.tag.as_deref(), Some("vip"));
}

#[tokio::test]
async fn large_frames_wait_for_the_shared_budget_and_all_get_through() {
    let budget = Arc::new(Budget::new(3 << 20));
    let server = Server::start(ListenerOptions { budget: Arc::clone(&budget), ..options() });
    let mut clients = Vec::new();
    for _ in 0..6 {
        let mut peer = server.peer().await;
        clients.push(tokio::spawn(async move {
            let frame = request(does::NOTHING, 1, 0, &[], &vec![5; 2 << 20]);
            peer.write(&frame).await;
            peer.echo(2, b"through").await.opaque
        }));
    }
    for client in clients {
        assert_eq!(client.await.unwrap(), 2);
    }
    until("everything is given back", || budget.used_bytes() == 0).await;
}

#[tokio::test]
async fn frames_that_are_only_announced_keep_nobody_from_sending_a_large_one() {
    let budget = Arc::new(Budget::new(4 << 20));
    let server = Server::start(ListenerOptions { budget: Arc::clone(&budget), ..options() });
    let announcement = request(does::ECHO, 1, 0, &[], &vec![5; 2 << 20]);
    let mut strangers = Vec::new();
    for _ in 0..8 {
        let mut stranger = server.peer().await;
        stranger.write(&announcement[..8]).await;
        strangers.push(stranger);
    }
    until("each has begun", || server.probe.opened.load(Ordering::SeqCst) == 8).await;
    assert_eq!(server.peer().await.echo(1, &[7; 2 << 20]).await.body.len(), 2 << 20);
    assert!(budget.used_bytes() <= 2 << 20, "{}", budget.used_bytes());
}

#[tokio::test]
async fn whoever_stops_in_the_middle_of_large_frames_is_given_up_when_others_need_the_memory() {
    let budget = Arc::new(Budget::new(3 << 20));
    let server = Server::start(ListenerOptions { budget: Arc::clone(&budget), ..options() });
    let frame = request(does::ECHO, 1, 0, &[], &vec![5; 2 << 20]);
    let mut stopped = Vec::new();
    for _ in 0..3 {
        let mut peer = server.peer().await;
        peer.write(&frame[..frame.len() - 1_000_000]).await;
        stopped.push(peer);
    }
    until("they hold nearly everything", || budget.used_bytes() > 2 << 20).await;
    assert_eq!(server.peer().await.echo(1, &[7; 2 << 20]).await.body.len(), 2 << 20);
}

#[tokio::test]
async fn a_service_hears_of_each_rest_of_a_connection() {
    let server = Server::start(ListenerOptions { idle_timeout: None, ..options() });
    let mut peer = server.peer().await;
    for rests in 1..=2 {
        assert_eq!(peer.echo(rests, b"hello").await.opaque, rests);
        until("the connection rests", || server.probe.rested.load(Ordering::SeqCst) == rests as usize).await;
    }
}

#[tokio::test]
async fn without_an_idle_time_connections_stay() {
    let server = Server::start(ListenerOptions { idle_timeout: None, ..options() });
    let (mut mute, mut alive) = (server.peer().await, server.peer().await);
    alive.echo(1, b"hello").await;
    // The first look at the time comes after two seconds; what is closed by mistake is closed at once.
    let closed = tokio::time::timeout(Duration::from_millis(2_500), alive.is_closed_by_the_server()).await;
    assert!(closed.is_err(), "{closed:?}");
    assert_eq!(alive.echo(2, b"still here").await.opaque, 2);
    assert_eq!(mute.echo(3, b"at last").await.opaque, 3);
}

/// Each holds the buffer of its first frame and the beginning of a larger one when it asks for more.
#[tokio::test]
async fn connections_that_hold_memory_while_they_wait_for_more_all_get_through() {
    let budget = Arc::new(Budget::new(3 << 20));
    let server = Server::start(ListenerOptions { budget: Arc::clone(&budget), ..options() });
    let first = request(does::ECHO, 1, 0, &[], &vec![5; 1 << 20]);
    let second = request(does::NOTHING, 2, 0, &[], &vec![5; 3 << 20]);
    let mut peers = Vec::new();
    for _ in 0..3 {
        let mut peer = server.peer().await;
        peer.write(&first[..first.len() / 2]).await;
        peers.push(peer);
    }
    until("each has begun", || budget.used_bytes() > 2 << 20).await;
    let mut clients = Vec::new();
    for mut peer in peers {
        let rest = [&first[first.len() / 2..], &second[..]].concat();
        clients.push(tokio::spawn(async move {
            let (mut reading, mut writing) = tokio::io::split(&mut peer.stream);
            let read = async {
                use tokio::io::AsyncReadExt;
                let mut size = [0; 4];
                reading.read_exact(&mut size).await.unwrap();
                let mut reply = vec![0; u32::from_be_bytes(size) as usize];
                reading.read_exact(&mut reply).await.unwrap();
            };
            let ((), wrote) = tokio::join!(read, writing.write_all(&rest));
            wrote.unwrap();
            peer.echo(3, b"through").await.opaque
        }));
    }
    for client in clients {
        assert_eq!(tokio::time::timeout(PATIENCE, client).await.expect("none waits for the others").unwrap(), 3);
    }
    until("everything is given back", || budget.used_bytes() == 0).await;
}

#[tokio::test]
async fn a_proxy_header_is_followed_by_its_first_frame_as_late_as_any_connection_may_speak() {
    let handshake_timeout = Duration::from_millis(500);
    let server = Server::start(ListenerOptions { handshake_timeout, ..options() });
    let mut peer = server.peer().await;
    peer.write(b"PROXY TCP4 192.0.2.9 10.0.0.1 12345 10911\r\n").await;
    tokio::time::sleep(handshake_timeout * 3).await;
    assert_eq!(peer.echo(1, b"").await.peer.as_deref(), Some("192.0.2.9:12345"));
}

#[tokio::test]
async fn a_proxy_header_names_the_client_and_a_malformed_one_closes() {
    let server = Server::start(options());
    let frame = request(does::ECHO, 1, 0, &[], b"");
    let mut v2 = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0f".to_vec();
    v2.extend([192, 0, 2, 9, 10, 0, 0, 1, 0x30, 0x39, 0x2a, 0x9f]);
    v2.extend([0x04, 0, 0]);
    for header in [b"PROXY TCP4 192.0.2.9 10.0.0.1 12345 10911\r\n".to_vec(), v2] {
        let mut peer = server.peer().await;
        for byte in &header {
            peer.write(&[*byte]).await;
            tokio::task::yield_now().await;
        }
        peer.write(&frame).await;
        assert_eq!(peer.reply().await.unwrap().peer.as_deref(), Some("192.0.2.9:12345"));
        let mut peer = server.peer().await;
        peer.write(&[header, frame.clone()].concat()).await;
        assert_eq!(peer.reply().await.unwrap().peer.as_deref(), Some("192.0.2.9:12345"));
    }
    let mut peer = server.peer().await;
    peer.write(&[b"PROXY TCP4 nobody\r\n".to_vec(), frame].concat()).await;
    assert!(peer.is_closed_by_the_server().await);
}

#[tokio::test]
async fn a_bound_port_is_nobody_elses_and_refuses_until_it_is_listened_at() {
    let any = "127.0.0.1:0".parse().unwrap();
    for port in [Port::bind(any).unwrap(), Port::bind_free(any).unwrap()] {
        let at = port.local_addr();
        assert_eq!(Port::bind_free(at).unwrap_err().kind(), ErrorKind::AddrInUse);
        assert_eq!(TcpStream::connect(at).await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        let listener = Listener::on(port, options(), Probe::new()).unwrap();
        assert_eq!(listener.local_addr(), at);
        TcpStream::connect(at).await.unwrap();
        assert_eq!(Port::bind(at).unwrap_err().kind(), ErrorKind::AddrInUse);
    }
}

#[tokio::test]
async fn one_connection_too_many_is_closed() {
    let server = Server::start(ListenerOptions { connections_max: 2, ..options() });
    let (mut first, mut second) = (server.peer().await, server.peer().await);
    first.echo(1, b"").await;
    second.echo(1, b"").await;
    let mut third = server.peer().await;
    assert!(third.is_closed_by_the_server().await);
    assert_eq!(first.echo(2, b"").await.opaque, 2);
}

#[tokio::test]
async fn answers_are_told_of_as_the_socket_takes_them_though_there_are_always_more() {
    let server = Server::start(ListenerOptions { out_bytes_max: 64 << 20, ..options() });
    let mut peer = server.peer().await;
    let answered = || server.probe.answered.load(Ordering::SeqCst);
    for n in 0..30 {
        // One by one, so that each is a burst.
        peer.write(&request(does::SHARED, n, 0, &[("slices", "0")], b"")).await;
        until("it is served", || server.probe.served.load(Ordering::SeqCst) == n as usize + 1).await;
    }
    until("the socket has taken some", || answered() > 0).await;
    assert!(answered() < 30, "30 MiB are more than sockets hold");
    for n in 0..30 {
        assert_eq!(peer.reply().await.unwrap().opaque, n);
    }
    until("all are told of", || answered() == 30).await;
}
