//! Requests that are carried out beside the network workers: who gets how much of that, and what ends it.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use net::Detached;
use protocol::body::KvTable;
use protocol::code::{ResponseCode, request};
use protocol::fastjson;
use protocol::frame::{self, Serialization};
use protocol::header::{self, EncodeFields, Head, HeaderScratch, write_frame};
use protocol::request::DeleteTopic;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use crate::support::{DEADLINE, Running, Setup, start};
use crate::{make_topic, topic};

fn frame(code: i32, opaque: i32, fields: &dyn EncodeFields, body: &[u8]) -> Bytes {
    let mut out = BytesMut::new();
    write_frame(&mut out, Serialization::Json, &Head { code, opaque, ..Head::default() }, fields, body.len());
    out.extend_from_slice(body);
    out.freeze()
}

/// A client that is a socket, and asks without waiting.
struct Asker {
    socket: TcpStream,
    read: BytesMut,
}

impl Asker {
    async fn connect(running: &Running) -> Asker {
        Asker { socket: TcpStream::connect(&running.address).await.unwrap(), read: BytesMut::new() }
    }

    /// Asks for all topics so many times, numbered.
    async fn flood(&mut self, count: i32) {
        let mut flood = BytesMut::new();
        for opaque in 0..count {
            flood.extend_from_slice(&frame(request::GET_ALL_TOPIC_CONFIG, opaque, &(), &[]));
        }
        self.socket.write_all(&flood).await.unwrap();
    }

    /// The next answer: its number, code and remark.
    async fn answer(&mut self) -> (i32, i32, String) {
        loop {
            if let Some(layout) = frame::peek(&self.read, usize::MAX).unwrap() {
                let whole = self.read.split_to(layout.frame_bytes);
                let mut scratch = HeaderScratch::new();
                let header = header::decode(&whole[layout.header], layout.serialization, &mut scratch).unwrap();
                return (header.opaque, header.code, header.remark.unwrap_or_default().to_owned());
            }
            let bytes = timeout(DEADLINE, self.socket.read_buf(&mut self.read)).await.expect("answers come").unwrap();
            assert!(bytes > 0, "closed before all is answered");
        }
    }
}

async fn until_none_waits(running: &Running) {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let status = running.call(request::GET_BROKER_RUNTIME_INFO, &(), "").await;
        let status: KvTable = fastjson::from_slice(&status.body).unwrap();
        if status.table["longRequestsWaiting"] == "0" {
            return;
        }
        assert!(Instant::now() < deadline, "{:?} long requests wait", status.table["longRequestsWaiting"]);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_connection_that_asks_too_much_at_once_is_told_the_limit_and_each_request_is_answered() {
    const ASKED: i32 = 2_000;
    let running = start(Setup::default()).await;
    let mut asker = Asker::connect(&running).await;
    asker.flood(ASKED).await;
    let mut answers = Vec::new();
    for _ in 0..ASKED {
        answers.push(asker.answer().await);
    }
    let mut opaques: Vec<i32> = answers.iter().map(|(opaque, ..)| *opaque).collect();
    opaques.sort_unstable();
    assert_eq!(opaques, (0..ASKED).collect::<Vec<_>>(), "each is answered once");
    let (served, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(|(_, code, _)| *code == 0);
    assert!(served.len() >= 64, "{} were served", served.len());
    let (_, code, remark) = refused.first().expect("more than may wait were asked");
    assert_eq!(*code, ResponseCode::SystemBusy as i32);
    assert!(remark.contains("64 long requests of this connection"), "{remark}");
    until_none_waits(&running).await;
    running.stop().await;
}

#[tokio::test]
async fn what_a_client_asked_before_it_hung_up_is_not_begun() {
    let running = start(Setup::default()).await;
    make_topic(&running, "Kept").await;
    let mut client = Detached::open(Arc::clone(&running.broker), ([127, 0, 0, 1], 40_000).into());
    // The second one waits for the turn of its connection, which nobody who reads gives on.
    let mut burst = BytesMut::new();
    burst.extend_from_slice(&frame(request::GET_ALL_TOPIC_CONFIG, 1, &(), &[]));
    burst.extend_from_slice(&frame(request::DELETE_TOPIC_IN_BROKER, 2, &DeleteTopic { topic: "Kept" }, &[]));
    client.serve(&burst.freeze()).await.discard();
    drop(client);
    until_none_waits(&running).await;
    assert_eq!(topic(&running, "Kept").await.topic_name, "Kept");
    running.stop().await;
}

#[tokio::test]
async fn a_broker_that_stops_answers_all_long_requests_that_it_has_read() {
    const ASKED: i32 = 60;
    let mut running = start(Setup::default()).await;
    let mut asker = Asker::connect(&running).await;
    asker.flood(ASKED).await;
    // It has read them.
    asker.answer().await;
    running.begin_stop();
    for _ in 1..ASKED {
        asker.answer().await;
    }
    let deadline = Instant::now() + DEADLINE;
    while !running.is_quiet() {
        assert!(Instant::now() < deadline, "the port is not closed");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    running.stop().await;
}
