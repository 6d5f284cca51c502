//! Replies to requests, pushed to the client that asked.

use std::sync::Arc;

use net::{Budget, Client, ClientOptions, Connection, Inbound, Outgoing, Request, Response};
use protocol::body::{Heartbeat, ProducerData};
use protocol::code::{ResponseCode, request};
use protocol::properties::get;
use protocol::request::{PushReply, SendMessage};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::json;
use crate::support::{DEADLINE, Running, Setup, properties, start, to, until};

const REPLIES: &str = "DefaultCluster_REPLY_TOPIC";

/// Takes replies and tells the test, or refuses them.
struct Asker {
    replies: mpsc::UnboundedSender<(String, String)>,
    code: ResponseCode,
}

impl Inbound for Asker {
    fn request(&self, _: &Connection<()>, request: &Request<'_>, out: &mut Outgoing) {
        if request.header.code != request::PUSH_REPLY_MESSAGE_TO_CLIENT {
            return;
        }
        let reply = PushReply::decode(&request.header.fields).unwrap();
        let text = reply.properties.unwrap();
        let fields = format!(
            "{} {} {} {} {} {} {:?} {}",
            reply.producer_group,
            reply.topic,
            reply.default_topic,
            reply.queue_id,
            reply.store_host,
            get(text, "CORRELATION_ID").unwrap(),
            get(text, "PUSH_REPLY_TIME").map(|time| time.parse::<i64>().unwrap() == reply.store_timestamp),
            reply.born_host.starts_with("127.0.0.1:")
        );
        self.replies.send((fields, String::from_utf8(request.body.to_vec()).unwrap())).unwrap();
        out.reply(request.reply_to(), self.code, None, &(), &[]);
    }
}

async fn asker(running: &Running, id: &str, code: ResponseCode) -> (Client, mpsc::UnboundedReceiver<(String, String)>) {
    let (replies, taken) = mpsc::unbounded_channel();
    let client = Client::with_inbound(ClientOptions::default(), Arc::new(Asker { replies, code }));
    let producer = ProducerData { group_name: "Askers".to_owned() };
    let body = Heartbeat { client_id: id.to_owned(), producer_data_set: vec![producer], ..Heartbeat::default() };
    let answer = client.call(&running.address, request::HEART_BEAT, &(), json(&body), DEADLINE).await.unwrap();
    assert_eq!(answer.code, 0);
    (client, taken)
}

/// The properties of a reply as clients make them.
fn for_client(id: &str) -> String {
    properties(&[("CORRELATION_ID", "c1"), ("REPLY_TO_CLIENT", id), ("MSG_TYPE", "reply"), ("TTL", "3000")])
}

async fn reply(running: &Running, message: &SendMessage<'_>, body: &str) -> Response {
    running.call(request::SEND_REPLY_MESSAGE_V2, message, body.to_owned()).await
}

fn place(response: &Response) -> (i32, Option<&str>, Option<&str>, Option<&str>) {
    let field = |name| response.fields.get(name);
    (response.code, response.remark.as_deref(), field("queueId"), field("queueOffset"))
}

async fn replies_reach_whom_they_are_for(is_sync: bool) {
    let running = start(Setup { is_sync, ..Setup::default() }).await;
    let (_client, mut taken) = asker(&running, "me@1", ResponseCode::Success).await;
    let text = for_client("me@1");
    let answer = reply(&running, &to(REPLIES, 0, &text), "forty-two").await;
    assert_eq!(place(&answer), (0, None, Some("0"), Some("0")));
    assert_eq!(answer.fields.get("msgId").unwrap().len(), 32, "the id of the stored reply");
    assert_eq!(answer.fields.get("MSG_REGION"), Some("DefaultRegion"));
    let (fields, body) = timeout(DEADLINE, taken.recv()).await.unwrap().unwrap();
    assert_eq!(fields, format!("PG {REPLIES} TBW102 0 127.0.0.1:10911 c1 Some(true) true"));
    assert_eq!(body, "forty-two");
    let stored = running.wait_for(REPLIES, 0, 1).await;
    assert_eq!(stored[0].body, "forty-two");
    assert_eq!(get(&stored[0].properties, "CORRELATION_ID"), Some("c1"));
    assert_eq!(get(&stored[0].properties, "PUSH_REPLY_TIME"), None, "stored as it came");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_reaches_the_client_that_asked_and_is_stored() {
    replies_reach_whom_they_are_for(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_is_stored_with_sync_flush_too() {
    replies_reach_whom_they_are_for(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_gets_to_nobody_is_stored_and_its_sender_hears_why() {
    let running = start(Setup::default()).await;
    let text = for_client("gone@1");
    let gone = reply(&running, &to(REPLIES, 0, &text), "too late").await;
    let remark = "push reply message fail, channel of <gone@1> not found.";
    assert_eq!(place(&gone), (1, Some(remark), Some("0"), Some("0")));

    let nobody = reply(&running, &to(REPLIES, 0, ""), "to whom").await;
    let remark = "reply message properties[REPLY_TO_CLIENT] is null";
    assert_eq!(place(&nobody), (1, Some(remark), Some("0"), Some("1")));

    let (_client, _taken) = asker(&running, "deaf@1", ResponseCode::SystemError).await;
    let text = for_client("deaf@1");
    let deaf = reply(&running, &to(REPLIES, 0, &text), "refused").await;
    assert_eq!(place(&deaf), (1, Some("push reply message to deaf@1fail."), Some("0"), Some("2")));
    assert_eq!(running.wait_for(REPLIES, 0, 3).await.len(), 3);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_is_only_pushed_when_storing_is_switched_off() {
    let running = start(Setup::default()).await;
    let answer = running.call(request::UPDATE_BROKER_CONFIG, &(), "storeReplyMessageEnable=false\n").await;
    assert_eq!(answer.code, 0, "{:?}", answer.remark);
    let (_client, mut taken) = asker(&running, "me@1", ResponseCode::Success).await;
    let text = for_client("me@1");
    let answer = reply(&running, &to(REPLIES, 0, &text), "unstored").await;
    assert_eq!((place(&answer), answer.fields.get("msgId")), ((0, None, Some("0"), Some("0")), Some("0")));
    assert_eq!(timeout(DEADLINE, taken.recv()).await.unwrap().unwrap().1, "unstored");
    assert!(running.all(REPLIES, 0).await.is_empty());
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_cannot_be_stored_arrives_all_the_same() {
    let running = start(Setup::default()).await;
    let (_client, mut taken) = asker(&running, "me@1", ResponseCode::Success).await;
    let text = for_client("me@1");
    let answer = reply(&running, &to(REPLIES, 0, &text), "").await;
    assert_eq!((place(&answer), answer.fields.get("msgId")), ((0, None, Some("0"), Some("0")), Some("0")));
    assert_eq!(timeout(DEADLINE, taken.recv()).await.unwrap().unwrap().1, "");
    let missing = reply(&running, &to(REPLIES, 7, &text), "no such queue").await;
    assert!(missing.remark.unwrap().starts_with("request queueId[7] is illegal"));
    running.stop().await;
}

/// Takes what it is given, and says nothing.
struct Deaf(mpsc::UnboundedSender<()>);

impl Inbound for Deaf {
    fn request(&self, _: &Connection<()>, _: &Request<'_>, _: &mut Outgoing) {
        self.0.send(()).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_that_nobody_acknowledges_count_among_what_requests_may_hold() {
    let running = Arc::new(start(Setup::default()).await);
    let budget = Arc::new(Budget::new(64 << 10));
    running.broker.show(Arc::clone(&budget), Arc::new(net::ConnectionSlots::new(100)));
    let (taken, mut takes) = mpsc::unbounded_channel();
    let client = Client::with_inbound(ClientOptions::default(), Arc::new(Deaf(taken)));
    let producer = ProducerData { group_name: "Askers".to_owned() };
    let body = Heartbeat { client_id: "deaf@1".to_owned(), producer_data_set: vec![producer], ..Heartbeat::default() };
    assert_eq!(client.call(&running.address, request::HEART_BEAT, &(), json(&body), DEADLINE).await.unwrap().code, 0);
    let first = tokio::spawn({
        let running = Arc::clone(&running);
        async move { reply(&running, &to(REPLIES, 0, &for_client("deaf@1")), &"x".repeat(40 << 10)).await }
    });
    timeout(DEADLINE, takes.recv()).await.unwrap().unwrap();
    let refused = reply(&running, &to(REPLIES, 0, &for_client("deaf@1")), &"x".repeat(40 << 10)).await;
    assert_eq!(refused.code, ResponseCode::SystemBusy as i32);
    assert!(refused.remark.unwrap().contains("requestBytesMax"));
    // Whoever asked goes away: the first reply is given up, and its bytes given back.
    drop(client);
    assert_eq!(timeout(DEADLINE, first).await.unwrap().unwrap().code, ResponseCode::SystemError as i32);
    until("the bytes are given back", || budget.used_bytes() == 0).await;
}
