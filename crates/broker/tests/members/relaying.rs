//! Questions that the broker passes on to a consumer.

use std::sync::Arc;

use bytes::Bytes;
use net::{Client, ClientOptions, Connection, Inbound, Outgoing, ReplyTo, Request};
use protocol::code::{ResponseCode, request};
use protocol::record;
use protocol::request::{ConsumeMessageDirectly, PullMessage};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::support::{DEADLINE, Running, Setup, from, start};
use crate::{beat, make_topic};

/// Consumes what it is given, and tells the test.
struct Consumer(mpsc::UnboundedSender<(String, String)>);

impl Inbound for Consumer {
    fn request(&self, _: &Connection<()>, request: &Request<'_>, out: &mut Outgoing) {
        if request.header.code != request::CONSUME_MESSAGE_DIRECTLY {
            return;
        }
        let asked = ConsumeMessageDirectly::decode(&request.header.fields).unwrap();
        let fields = format!(
            "{} {} {} {:?} {:?}",
            asked.consumer_group,
            asked.client_id.unwrap(),
            asked.broker_name.unwrap(),
            asked.topic_sys_flag,
            asked.group_sys_flag
        );
        let record::Scanned::Record(view) = record::scan(request.body, true).unwrap() else { panic!("no record") };
        let body = String::from_utf8(view.body().to_vec()).unwrap();
        self.0.send((fields, body)).unwrap();
        out.reply(request.reply_to(), ResponseCode::Success, None, &(), br#"{"consumeResult":"CR_SUCCESS"}"#);
    }
}

async fn consume(running: &Running, client_id: &str, msg_id: &str) -> net::Response {
    let fields = ConsumeMessageDirectly {
        consumer_group: "G",
        client_id: Some(client_id),
        msg_id: Some(msg_id),
        broker_name: None,
        topic: Some("T"),
        topic_sys_flag: None,
        group_sys_flag: None,
    };
    running.call(request::CONSUME_MESSAGE_DIRECTLY, &fields, "").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_consumes_one_stored_message_for_an_operator() {
    let running = start(Setup::default()).await;
    make_topic(&running, "T").await;
    let sent = running.put("T", 1, "", "once more").await;
    let missing = consume(&running, "a", &sent.id).await;
    assert_eq!((missing.code, missing.remark.as_deref()), (1, Some("The Consumer <G> <a> not online")));

    let (sender, mut consumed) = mpsc::unbounded_channel();
    let client = Client::with_inbound(ClientOptions::default(), Arc::new(Consumer(sender)));
    beat(&running, &client, "a").await;
    let answer = consume(&running, "a", &sent.id).await;
    assert_eq!((answer.code, &answer.body[..]), (0, &br#"{"consumeResult":"CR_SUCCESS"}"#[..]));
    let (fields, body) = timeout(DEADLINE, consumed.recv()).await.unwrap().unwrap();
    assert_eq!((fields.as_str(), body.as_str()), ("G a broker-a Some(0) Some(0)", "once more"));

    let nowhere = format!("{}{:016X}", &sent.id[..16], 1_u64 << 40);
    let gone = consume(&running, "a", &nowhere).await;
    assert_eq!((gone.code, gone.remark.unwrap().contains("can not find message")), (1, true));
    assert_eq!(consume(&running, "a", "no id").await.code, ResponseCode::InvalidParameter as i32);
    running.stop().await;
}

/// Leaves the question what it subscribes to to the test.
struct Silent(mpsc::UnboundedSender<(Connection<()>, ReplyTo)>);

impl Inbound for Silent {
    fn request(&self, connection: &Connection<()>, request: &Request<'_>, _: &mut Outgoing) {
        if request.header.code == request::GET_CONSUMER_RUNNING_INFO {
            self.0.send((connection.clone(), request.reply_to())).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pulls_that_wait_for_what_their_client_subscribes_to_count_among_those_that_are_parked() {
    for limit in ["parkedPullsPerConnectionMax", "parkedPullsMax"] {
        let running = start(Setup::default()).await;
        make_topic(&running, "T").await;
        let changed = running.call(request::UPDATE_BROKER_CONFIG, &(), format!("{limit}=2\n")).await;
        assert_eq!(changed.code, 0, "{:?}", changed.remark);
        let (sender, mut asked) = mpsc::unbounded_channel();
        let client = Client::with_inbound(ClientOptions::default(), Arc::new(Silent(sender)));
        beat(&running, &client, "a").await;
        // Of a subscription that the broker has not heard of.
        let pull = async |queue_id: i32| {
            let pull = PullMessage { consumer_group: "G", sys_flag: 0, sub_version: 2, ..from("T", queue_id, 0) };
            client.call(&running.address, request::PULL_MESSAGE, &pull, Bytes::new(), DEADLINE).await.unwrap()
        };
        let one_too_many = async {
            running.until_parked(2).await;
            let refused = pull(2).await;
            let (connection, reply_to) = timeout(DEADLINE, asked.recv()).await.unwrap().unwrap();
            let mut out = Outgoing::new();
            out.reply(reply_to, ResponseCode::SystemError, None, &(), &[]);
            assert!(connection.send(out.take()));
            refused
        };
        let (refused, first, second) = tokio::join!(one_too_many, pull(0), pull(1));
        assert_eq!(refused.code, ResponseCode::SystemBusy as i32);
        let remark = refused.remark.unwrap();
        assert!(remark.contains("2 pulls") && remark.contains(limit), "{remark}");
        let not_latest = ResponseCode::SubscriptionNotLatest as i32;
        assert_eq!((first.code, second.code), (not_latest, not_latest), "when the client does not help");
        assert_eq!(running.broker.parked_pulls(), 0);
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_answer_of_a_client_lets_its_pull_come_again_like_a_short_one() {
    for pad in [10, 100_000] {
        let running = start(Setup::default()).await;
        make_topic(&running, "T").await;
        let (sender, mut asked) = mpsc::unbounded_channel();
        let client = Client::with_inbound(ClientOptions::default(), Arc::new(Silent(sender)));
        beat(&running, &client, "a").await;
        let pull = async {
            let pull = PullMessage { consumer_group: "G", sys_flag: 0, sub_version: 2, ..from("T", 0, 0) };
            client.call(&running.address, request::PULL_MESSAGE, &pull, Bytes::new(), DEADLINE).await.unwrap()
        };
        let answering = async {
            let (connection, reply_to) = timeout(DEADLINE, asked.recv()).await.unwrap().unwrap();
            let body = format!(
                r#"{{"subscriptionSet":[{{"topic":"T","subString":"*","subVersion":2}}],"pad":"{}"}}"#,
                "x".repeat(pad)
            );
            let mut out = Outgoing::new();
            out.reply(reply_to, ResponseCode::Success, None, &(), body.as_bytes());
            assert!(connection.send(out.take()));
        };
        let (pulled, ()) = tokio::join!(pull, answering);
        let again = (ResponseCode::PullRetryImmediately as i32, Some("SUBSCRIPTION_IS_LATEST"));
        assert_eq!((pulled.code, pulled.remark.as_deref()), again, "{pad} bytes more");
        running.stop().await;
    }
}
