//! The log, where clients cause lines without end.

use std::io::{Read, Write};
use std::net::TcpStream;

use net::{Client, ClientOptions};
use protocol::body::{ConsumerData, Heartbeat};
use protocol::code::request;

use crate::support::{PATIENCE, Running};

/// More than a place in the code may log in a minute.
const TIMES: usize = 300;
/// A machine that takes minutes for this test has several shares.
const LINES_MAX: usize = 60 * 4;

#[test]
fn lines_that_clients_cause_are_so_many_and_then_counted_and_strangers_are_told_by_name() {
    let data = tempfile::tempdir().unwrap();
    let running = Running::server(data.path());
    let broker = running.address("broker").to_owned();
    let send = |bytes: &[u8]| {
        let mut stranger = TcpStream::connect(&broker).unwrap();
        stranger.set_read_timeout(Some(PATIENCE)).unwrap();
        stranger.write_all(bytes).unwrap();
        // Until it is closed, in whatever way.
        let _ = stranger.read_to_end(&mut Vec::new());
    };
    for _ in 0..TIMES {
        send(b"GET /health HTTP/1.1\r\nHost: broker\r\n\r\n");
    }
    send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    send(b"\x7f\xff\xff\xff\0\0\0\0");
    let group = |number: usize| ConsumerData { group_name: format!("G{number}"), ..ConsumerData::default() };
    let consumer_data_set = (0..TIMES).map(group).collect();
    let beat = Heartbeat { client_id: "many".to_owned(), consumer_data_set, ..Heartbeat::default() };
    let body = serde_json::to_vec(&beat).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let answer = runtime.block_on(async {
        let client = Client::new(ClientOptions::default());
        client.call(&broker, request::HEART_BEAT, &(), body.into(), PATIENCE).await.unwrap()
    });
    assert_eq!(answer.code, 0, "{:?}", answer.remark);

    let (code, said) = running.end("-TERM");
    assert_eq!(code, Some(0), "{said}");
    for like in ["an HTTP request came", "group created"] {
        let (summed, single): (Vec<&str>, Vec<&str>) =
            said.lines().filter(|line| line.contains(like)).partition(|line| line.contains("left_out="));
        let left_out = |line: &&str| -> usize {
            let rest = line.split_once("left_out=").unwrap().1;
            rest.split(' ').next().unwrap().parse().unwrap()
        };
        assert!(single.len() <= LINES_MAX && !summed.is_empty(), "{like}: {} lines\n{said}", single.len());
        // The broker has some groups of its own.
        let all = single.len() + summed.iter().map(left_out).sum::<usize>();
        assert!((TIMES..TIMES + 20).contains(&all), "{like}: {all}\n{said}");
    }
    let line = |what: &str| said.lines().find(|line| line.contains(what)).unwrap_or_else(|| panic!("{what}: {said}"));
    assert!(line("HTTP/2 came").contains("peer=127.0.0.1:"));
    assert!(line("frame of 2147483651 bytes is over the limit").contains("peer=127.0.0.1:"));
    assert!(!said.contains("1195725860"), "{said}");
}
