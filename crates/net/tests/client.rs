//! Outgoing calls against a listener of our own.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use net::{CallError, Client, ClientOptions, Connection, Inbound, ListenerOptions, Outgoing, Port, Request};
use protocol::code::ResponseCode;
use protocol::frame::Serialization;
use support::{PATIENCE, Server, does, until};

fn client() -> Client {
    Client::new(ClientOptions::default())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_many_tasks_share_one_connection_and_get_their_own_answers() {
    let server = Server::start(ListenerOptions::default());
    let address = server.address.to_string();
    let client = client();
    let mut tasks = Vec::new();
    for n in 0..200 {
        let (client, address) = (client.clone(), address.clone());
        tasks.push(tokio::spawn(async move {
            for m in 0..20 {
                let body = Bytes::from(vec![n as u8; n * 50 + m]);
                let response = client.call(&address, does::ECHO, &(), body.clone(), PATIENCE).await.unwrap();
                assert_eq!(response.body, body);
                assert_eq!(response.fields.get("tag"), Some("main"));
                assert_eq!(response.version, protocol::VERSION);
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(server.probe.opened.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_call_without_an_answer_times_out_and_leaves_nothing_behind() {
    let server = Server::start(ListenerOptions::default());
    let address = server.address.to_string();
    let client = client();
    let short = Duration::from_millis(30);
    let late = client.call(&address, does::NOTHING, &(), Bytes::new(), short).await;
    assert!(matches!(&late, Err(CallError::Timeout { address: at, .. }) if *at == address), "{late:?}");
    assert!(client.call(&address, does::ECHO, &(), Bytes::new(), PATIENCE).await.is_ok(), "on a fresh connection");
}

#[tokio::test]
async fn the_time_of_a_call_runs_from_its_beginning_also_while_nobody_awaits_it() {
    let server = Server::start(ListenerOptions::default());
    let address = server.address.to_string();
    let client = client();
    let time = Duration::from_secs(2);
    // Answered meanwhile, or never.
    let answered = client.begin(&address, does::ECHO, &(), &Bytes::from_static(b"!"), time).await.unwrap();
    let lost = client.begin(&address, does::NOTHING, &(), &Bytes::new(), time).await.unwrap();
    let later = tokio::time::sleep(time + time / 2);
    tokio::time::sleep(time).await;
    assert_eq!(answered.response().await.unwrap().body, "!");
    tokio::select! {
        biased;
        late = lost.response() => assert!(matches!(late, Err(CallError::Timeout { after, .. }) if after == time)),
        () = later => panic!("it has more time than it was given"),
    }
}

#[tokio::test]
async fn a_peer_that_is_silent_for_a_whole_time_out_of_three_seconds_is_called_on_a_fresh_connection() {
    let server = Server::start(ListenerOptions::default());
    let address = server.address.to_string();
    let client = client();
    let time = Duration::from_secs(3);
    assert!(client.call(&address, does::ECHO, &(), Bytes::new(), PATIENCE).await.is_ok());
    let late = client.call(&address, does::NOTHING, &(), Bytes::new(), time).await;
    assert!(matches!(late, Err(CallError::Timeout { .. })), "{late:?}");
    assert!(client.call(&address, does::ECHO, &(), Bytes::new(), PATIENCE).await.is_ok());
    assert_eq!(server.probe.opened.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_lost_connection_fails_its_calls_and_is_made_again() {
    let server = Server::start(ListenerOptions::default());
    let address = server.address.to_string();
    let client = client();
    let call = {
        let (client, address) = (client.clone(), address.clone());
        tokio::spawn(async move { client.call(&address, does::NOTHING, &(), Bytes::new(), PATIENCE).await })
    };
    until("it is served", || server.probe.served.load(Ordering::SeqCst) == 1).await;
    server.probe.last().close();
    assert!(matches!(call.await.unwrap(), Err(CallError::Closed { .. })));
    assert!(client.call(&address, does::ECHO, &(), Bytes::new(), PATIENCE).await.is_ok());
    assert_eq!(server.probe.opened.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn nobody_there_is_said_at_once_and_again_without_another_attempt() {
    let silent = Port::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = silent.local_addr().to_string();
    let client = client();
    let first = client.call(&address, 1, &(), Bytes::new(), PATIENCE).await;
    assert!(matches!(first, Err(CallError::Connect { .. })), "{first:?}");
    // A busy machine may ask when the pause is over, which is longer each time.
    let mut attempts = 1;
    let again = loop {
        match client.call(&address, 1, &(), Bytes::new(), PATIENCE).await {
            Err(CallError::Connect { .. }) if attempts < 6 => attempts += 1,
            other => break other,
        }
    };
    assert!(matches!(again, Err(CallError::BackingOff { .. })), "{again:?}");
    let unknown = client.call("no port here", 1, &(), Bytes::new(), PATIENCE).await;
    assert!(matches!(unknown, Err(CallError::Resolve { .. })), "{unknown:?}");
}

struct Answering(AtomicUsize);

impl Inbound for Answering {
    fn request(&self, _: &Connection<()>, request: &Request<'_>, out: &mut Outgoing) {
        self.0.fetch_add(1, Ordering::SeqCst);
        let code = request.header.code.to_string();
        out.reply(request.reply_to(), ResponseCode::Success, None, &[("asked", code.as_str())], request.body);
    }
}

#[tokio::test]
async fn the_other_side_may_ask_too_and_large_codes_come_as_json_in_either_serialization() {
    let server = Server::start(ListenerOptions::default());
    let inbound = Arc::new(Answering(AtomicUsize::new(0)));
    let options = ClientOptions { serialization: Serialization::Binary, ..ClientOptions::default() };
    let client = Client::with_inbound(options, inbound.clone());
    let address = server.address.to_string();
    // 200050 does not fit the 16 bits of a binary header: the request goes out as JSON and is understood.
    let response = client.call(&address, 200_050, &(), Bytes::new(), PATIENCE).await.unwrap();
    assert_eq!(response.code, 0);
    let asked = server.probe.last().request(220, &(), Bytes::from_static(b"x"), PATIENCE).await.unwrap();
    assert_eq!((asked.fields.get("asked"), &asked.body[..]), (Some("220"), &b"x"[..]));
    assert!(server.probe.last().oneway(40, &(), &Bytes::new()));
    until("it was told", || inbound.0.load(Ordering::SeqCst) == 2).await;

    client.oneway(&address, does::ECHO, &(), Bytes::new()).await.unwrap();
    until("the oneway was served", || server.probe.served.load(Ordering::SeqCst) == 2).await;
    drop(client);
    until("the connection closes with its client", || server.probe.closed.load(Ordering::SeqCst) == 1).await;
}

#[tokio::test]
async fn a_client_that_is_asked_and_knows_no_answer_says_so() {
    let server = Server::start(ListenerOptions::default());
    let client = client();
    client.call(&server.address.to_string(), does::ECHO, &(), Bytes::new(), PATIENCE).await.unwrap();
    let asked = server.probe.last().request(220, &(), Bytes::new(), PATIENCE).await.unwrap();
    assert_eq!((asked.code, asked.remark.as_deref()), (3, Some(" request type 220 not supported")));
}
