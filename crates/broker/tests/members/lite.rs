//! Lite topics: who subscribes, who is told, what operators see, and what becomes of silent ones.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use net::{Client, ClientOptions, Connection, Inbound, Outgoing, Request};
use protocol::body::{
    BrokerLiteInfo, ClientGroup, LiteClientInfo, LiteGroupInfo, LiteTopicInfo, ParentTopicInfo, SubscriptionGroupConfig,
};
use protocol::code::request;
use protocol::fastjson;
use protocol::header::EncodeFields;
use protocol::request::{
    CreateTopic, DeleteTopic, GetLiteClientInfo, GetLiteGroupInfo, GetLiteTopicInfo, GetParentTopicInfo,
    NotifyUnsubscribeLite, PullMessage, SendMessage, UpdateConsumerOffset,
};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::json;
use crate::support::*;

/// Hears which lite topics a client lost.
struct Ear(mpsc::UnboundedSender<(String, String, String)>);

impl Inbound for Ear {
    fn request(&self, _: &Connection<()>, request: &Request<'_>, _: &mut Outgoing) {
        if request.header.code == request::NOTIFY_UNSUBSCRIBE_LITE {
            let fields = NotifyUnsubscribeLite::decode(&request.header.fields).unwrap();
            let heard = [fields.consumer_group, fields.client_id, fields.lite_topic].map(str::to_owned);
            let [group, client, lite_topic] = heard;
            self.0.send((group, client, lite_topic)).unwrap();
        }
    }
}

pub(super) fn setup() -> Setup {
    Setup { light_queues: Some("100"), ..Setup::default() }
}

pub(super) async fn make_parent(running: &Running, topic: &str, attributes: &str) -> (i32, String) {
    let fields = CreateTopic {
        topic,
        default_topic: None,
        read_queue_nums: 1,
        write_queue_nums: 1,
        perm: 6,
        topic_filter_type: "SINGLE_TAG",
        topic_sys_flag: None,
        order: false,
        attributes: Some(attributes),
        force: false,
    };
    let made = running.call(request::UPDATE_AND_CREATE_TOPIC, &fields, "").await;
    (made.code, made.remark.unwrap_or_default())
}

pub(super) async fn make_group(running: &Running, name: &str, attributes: &[(&str, &str)]) {
    let attributes = attributes.iter().map(|(key, value)| (format!("+{key}"), (*value).to_owned())).collect();
    let group =
        SubscriptionGroupConfig { group_name: name.to_owned(), attributes, ..SubscriptionGroupConfig::default() };
    let made = running.call(request::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, &(), json(&group)).await;
    assert_eq!((made.code, made.remark), (0, None));
}

/// A broker with the parent topic `Chat` and a group that is bound to it.
pub(super) async fn chat(attributes: &[(&str, &str)]) -> Running {
    chat_as(setup(), attributes).await
}

pub(super) async fn chat_as(setup: Setup, attributes: &[(&str, &str)]) -> Running {
    let running = start(setup).await;
    assert_eq!(make_parent(&running, "Chat", "+message.type=LITE,+lite.topic.expiration=60").await.0, 0);
    make_group(&running, "G", &[&[("lite.bind.topic", "Chat")], attributes].concat()).await;
    running
}

/// One change of subscriptions, as Apache's proxy writes it.
pub(super) fn change(action: &str, client: &str, group: &str, lite_topics: &[&str], option: &str) -> String {
    format!(
        r#"{{"subscriptionSet":[{{"action":"{action}","clientId":"{client}","group":"{group}","topic":"Chat","liteTopicSet":{},"version":1{option}}}]}}"#,
        serde_json::to_string(lite_topics).unwrap()
    )
}

pub(super) async fn subscribe(running: &Running, change: String) -> (i32, String) {
    let answer = running.call(request::LITE_SUBSCRIPTION_CTL, &(), change).await;
    (answer.code, answer.remark.unwrap_or_default())
}

pub(super) async fn ask<T: DeserializeOwned>(running: &Running, code: i32, fields: &(dyn EncodeFields + Sync)) -> T {
    let answer = running.call(code, fields, "").await;
    assert_eq!((answer.code, answer.remark), (0, None));
    fastjson::from_slice(&answer.body).unwrap()
}

pub(super) async fn say(running: &Running, lite_topic: &str, body: &str) {
    running.put("Chat", 0, &properties(&[("__LITE_TOPIC", lite_topic)]), body).await;
}

pub(super) async fn client_info(running: &Running, client_id: &str) -> LiteClientInfo {
    let fields =
        GetLiteClientInfo { parent_topic: Some("Chat"), group: Some("G"), client_id: Some(client_id), max_count: 100 };
    ask(running, request::GET_LITE_CLIENT_INFO, &fields).await
}

fn set(names: &[&str]) -> Option<BTreeSet<String>> {
    Some(names.iter().map(|name| (*name).to_owned()).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lite_message_is_found_in_its_lite_topic_and_by_its_name() {
    let running = chat(&[]).await;
    say(&running, "room-1", "hello").await;
    say(&running, "room-2", "other").await;
    let found = running.all("%LMQ%$Chat$room-1", 0).await;
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].topic.as_str(), found[0].body.as_str()), ("Chat", "hello"));
    assert_eq!(found[0].property("INNER_MULTI_DISPATCH"), Some("%LMQ%$Chat$room-1"));
    assert_eq!(found[0].property("__LITE_TOPIC"), Some("room-1"));
    // A pull may name the lite topic beside its parent.
    let pulled = running.pull(&PullMessage { lite_topic: Some("room-2"), ..from("Chat", 0, 0) }).await;
    assert_eq!((pulled.code, pulled.messages[0].body.as_str()), (0, "other"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_a_lite_message_is_refused() {
    let running = chat(&[]).await;
    let refused = async |pairs: &[(&str, &str)]| {
        let properties = properties(pairs);
        let answer = running.send(&to("Chat", 0, &properties), "x").await;
        assert_eq!(answer.code, 13);
        answer.remark.unwrap()
    };
    assert!(refused(&[("__LITE_TOPIC", "a$b")]).await.contains("has no $"));
    assert!(refused(&[("__LITE_TOPIC", "a/b")]).await.contains("no /"));
    let both = refused(&[("__LITE_TOPIC", "a"), ("INNER_MULTI_DISPATCH", "%LMQ%b")]).await;
    assert!(both.contains("%LMQ%$Chat$a") && both.contains("other light queues"), "{both}");
    let named = properties(&[("__LITE_TOPIC", "a")]);
    let batch = SendMessage { batch: Some(true), ..to("Chat", 0, "") };
    let answer = running.call(request::SEND_BATCH_MESSAGE, &batch, batch_of(&[("1", ""), ("2", &named)])).await;
    assert!(answer.code == 13 && answer.remark.as_ref().unwrap().contains("__LITE_TOPIC"), "{:?}", answer.remark);
    assert!(running.all("Chat", 0).await.is_empty(), "nothing that was refused is stored");
    let off = start(Setup::default()).await;
    let properties = properties(&[("__LITE_TOPIC", "a")]);
    let answer = off.send(&to("Chat", 0, &properties), "x").await;
    assert!(answer.code == 13 && answer.remark.unwrap().contains("enableLmq"));
    let (code, remark) = make_parent(&off, "Chat", "+message.type=LITE").await;
    assert!(code == 29 && remark.contains("enableLmq"), "{remark}");
    assert_eq!(
        off.call(request::LITE_SUBSCRIPTION_CTL, &(), change("PARTIAL_ADD", "c", "G", &["a"], "")).await.code,
        3
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn subscriptions_come_and_go_and_operators_see_them() {
    let running = chat(&[]).await;
    assert_eq!(subscribe(&running, change("PARTIAL_ADD", "c1", "G", &["a", "b"], "")).await.0, 0);
    assert_eq!(subscribe(&running, change("COMPLETE_ADD", "c2", "G", &["b", "c"], "")).await.0, 0);
    let seen = client_info(&running, "c1").await;
    assert_eq!((seen.lite_topic_count, seen.lite_topic_set), (2, set(&["a", "b"])));
    assert_eq!(subscribe(&running, change("PARTIAL_REMOVE", "c1", "G", &["a"], "")).await.0, 0);
    assert_eq!(subscribe(&running, change("COMPLETE_ADD", "c2", "G", &["c", "d", "e"], "")).await.0, 0);
    assert_eq!(client_info(&running, "c1").await.lite_topic_set, set(&["b"]));
    assert_eq!(client_info(&running, "c2").await.lite_topic_set, set(&["c", "d", "e"]));

    say(&running, "c", "1").await;
    say(&running, "c", "2").await;
    let fields = GetLiteTopicInfo { parent_topic: Some("Chat"), lite_topic: Some("c") };
    let topic: LiteTopicInfo = ask(&running, request::GET_LITE_TOPIC_INFO, &fields).await;
    assert_eq!(topic.subscriber, Some(vec![ClientGroup { client_id: "c2".into(), group: "G".into() }]));
    let offset = topic.topic_offset.unwrap();
    assert_eq!((offset.min_offset, offset.max_offset, offset.last_update_timestamp > 0), (0, 2, true));
    let parent: ParentTopicInfo =
        ask(&running, request::GET_PARENT_TOPIC_INFO, &GetParentTopicInfo { topic: "Chat" }).await;
    assert_eq!((parent.lite_topic_count, parent.ttl, parent.groups), (1, 60, set(&["G"]).unwrap()));
    let broker: BrokerLiteInfo = ask(&running, request::GET_BROKER_LITE_INFO, &()).await;
    assert_eq!((broker.current_lmq_num, broker.max_lmq_num, broker.lite_subscription_count), (1, 100, 4));
    assert_eq!(broker.topic_meta.get("Chat"), Some(&60));

    assert_eq!(subscribe(&running, change("COMPLETE_REMOVE", "c2", "G", &[], "")).await.0, 0);
    assert_eq!(client_info(&running, "c2").await.lite_topic_count, -1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_that_loses_a_lite_topic_of_an_exclusive_group_is_told() {
    let running = chat(&[("lite.sub.model", "Exclusive"), ("lite.sub.reset.offset.exclusive", "true")]).await;
    let (sender, mut heard) = mpsc::unbounded_channel();
    let first = Client::with_inbound(ClientOptions::default(), Arc::new(Ear(sender)));
    let added = change("PARTIAL_ADD", "c1", "G", &["a", "b"], "");
    let answer =
        first.call(&running.address, request::LITE_SUBSCRIPTION_CTL, &(), added.into(), DEADLINE).await.unwrap();
    assert_eq!(answer.code, 0);
    say(&running, "a", "1").await;
    let committed = UpdateConsumerOffset { consumer_group: "G", topic: "%LMQ%$Chat$a", queue_id: 0, commit_offset: 1 };
    assert_eq!(running.call(request::UPDATE_CONSUMER_OFFSET, &committed, "").await.code, 0);
    assert_eq!(lag(&running, "a").await, 0);
    assert_eq!(subscribe(&running, change("PARTIAL_ADD", "c2", "G", &["a"], "")).await.0, 0);
    let told = timeout(DEADLINE, heard.recv()).await.unwrap().unwrap();
    assert_eq!(told, ("G".to_owned(), "c1".to_owned(), "a".to_owned()));
    assert_eq!(client_info(&running, "c1").await.lite_topic_set, set(&["b"]));
    assert_eq!(lag(&running, "a").await, 1, "the new one begins at the beginning");
}

async fn group_info(running: &Running, lite_topic: &str) -> LiteGroupInfo {
    let fields = GetLiteGroupInfo { group: "G", lite_topic: Some(lite_topic), top_k: 0 };
    ask(running, request::GET_LITE_GROUP_INFO, &fields).await
}

async fn lag(running: &Running, lite_topic: &str) -> i64 {
    group_info(running, lite_topic).await.total_lag_count
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_may_begin_at_the_end_at_an_offset_or_so_many_messages_before() {
    let running = chat(&[]).await;
    for number in 0..10 {
        say(&running, "a", &number.to_string()).await;
    }
    for (option, behind) in [
        (r#"{"type":"POLICY","value":2}"#, 0),
        (r#"{"type":"OFFSET","value":7}"#, 3),
        (r#"{"type":"TAIL_N","value":2}"#, 5),
        (r#"{"type":"POLICY","value":0}"#, 5),
        (r#"{"type":"POLICY","value":1}"#, 10),
    ] {
        let added = change("PARTIAL_ADD", "c1", "G", &["a"], &format!(",\"offsetOption\":{option}"));
        assert_eq!(subscribe(&running, added).await.0, 0);
        assert_eq!(lag(&running, "a").await, behind, "{option}");
    }
    say(&running, "b", "1").await;
    let added = change("PARTIAL_ADD", "c1", "G", &["b"], r#","offsetOption":{"type":"POLICY","value":1}"#);
    assert_eq!(subscribe(&running, added).await.0, 0);
    let fields = GetLiteGroupInfo { group: "G", lite_topic: None, top_k: 1 };
    let info: LiteGroupInfo = ask(&running, request::GET_LITE_GROUP_INFO, &fields).await;
    let most: Vec<_> = info.lag_count_top_k.unwrap().into_iter().map(|lag| (lag.lite_topic, lag.lag_count)).collect();
    assert_eq!((info.total_lag_count, most), (11, vec![("a".to_owned(), 10)]));
    assert_eq!(info.lag_timestamp_top_k.unwrap()[0].lite_topic, "a");
    assert!(info.earliest_unconsumed_timestamp > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_gets_all_lite_topics_names_none() {
    let running = chat(&[("lite.sub.wildcard", "true")]).await;
    let (code, remark) = subscribe(&running, change("PARTIAL_ADD", "c1", "G", &["a"], "")).await;
    assert_eq!((code, remark.as_str()), (604, "subscribe lite operation is not supported for this group"));
    assert_eq!(subscribe(&running, change("COMPLETE_ADD", "c1", "G", &[], "")).await.0, 0);
    let fields = GetLiteTopicInfo { parent_topic: Some("Chat"), lite_topic: Some("any") };
    let topic: LiteTopicInfo = ask(&running, request::GET_LITE_TOPIC_INFO, &fields).await;
    assert_eq!(topic.subscriber, Some(vec![ClientGroup { client_id: "*".into(), group: "G".into() }]));
    for topic in ["no topic!", &"t".repeat(1000)] {
        let of_topic = change("COMPLETE_ADD", "c2", "G", &[], "").replace("\"Chat\"", &format!("\"{topic}\""));
        assert_eq!(subscribe(&running, of_topic).await.0, 604, "{topic}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_subscriptions_are_refused_and_nothing_of_them_is_kept() {
    let running = chat(&[("lite.sub.client.quota", "2")]).await;
    for (body, code, why) in [
        (String::new(), 604, "no body"),
        ("{}".to_owned(), 604, "is empty"),
        ("[1".to_owned(), 604, "not what it should be"),
        (change("SOMETIMES", "c", "G", &["a"], ""), 604, "SOMETIMES"),
        (change("PARTIAL_ADD", " ", "G", &["a"], ""), 604, "clientId is blank"),
        (
            change("PARTIAL_ADD", &"c".repeat(256), "G", &["a"], ""),
            604,
            "the client id has 256 bytes, the limit is 255",
        ),
        (change("PARTIAL_ADD", "c", "no body!", &["a"], ""), 604, "not allowed to consume"),
        (change("PARTIAL_ADD", "c", "G", &["a", "b/c"], ""), 604, "\"b/c\""),
        (change("PARTIAL_ADD", "c", "G", &["a$b"], ""), 604, "\"a$b\""),
        (change("PARTIAL_ADD", "c", "G", &["a", " "], ""), 604, "\" \""),
        (change("PARTIAL_ADD", "c", "G", &[&"n".repeat(300)], ""), 604, "cannot be the name"),
        (change("COMPLETE_ADD", "c", "G", &["1", "2", "3"], ""), 2018, "lite.sub.client.quota"),
    ] {
        let (found, remark) = subscribe(&running, body).await;
        assert!(found == code && remark.contains(why), "{found} {remark} instead of {why}");
    }
    assert_eq!(running.call(request::UPDATE_BROKER_CONFIG, &(), "maxLiteSubscriptionCount=1").await.code, 0);
    assert_eq!(subscribe(&running, change("PARTIAL_ADD", "c", "G", &["a"], "")).await.0, 0);
    let (code, remark) = subscribe(&running, change("PARTIAL_ADD", "d", "G", &["a"], "")).await;
    assert!(code == 2018 && remark.starts_with("lite subscription quota exceeded 1"), "{remark}");
    let broker: BrokerLiteInfo = ask(&running, request::GET_BROKER_LITE_INFO, &()).await;
    assert_eq!(broker.lite_subscription_count, 1);
    let wrong = GetParentTopicInfo { topic: "TBW102" };
    assert_eq!(running.call(request::GET_PARENT_TOPIC_INFO, &wrong, "").await.code, 29);
    let wrong = GetLiteGroupInfo { group: "TOOLS_CONSUMER", lite_topic: None, top_k: 1 };
    assert_eq!(running.call(request::GET_LITE_GROUP_INFO, &wrong, "").await.code, 29);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_speaks_for_another_group_is_refused_until_it_has_left_the_first() {
    let running = chat(&[]).await;
    make_group(&running, "H", &[("lite.bind.topic", "Chat")]).await;
    assert_eq!(subscribe(&running, change("PARTIAL_ADD", "c1", "G", &["a"], "")).await.0, 0);
    for action in ["PARTIAL_ADD", "COMPLETE_ADD", "PARTIAL_REMOVE", "COMPLETE_REMOVE"] {
        let (code, remark) = subscribe(&running, change(action, "c1", "H", &["a"], "")).await;
        assert!(code == 604 && remark.contains("for group G already"), "{action}: {code} {remark}");
    }
    assert_eq!(client_info(&running, "c1").await.lite_topic_set, set(&["a"]));
    assert_eq!(subscribe(&running, change("COMPLETE_REMOVE", "c1", "G", &[], "")).await.0, 0);
    assert_eq!(subscribe(&running, change("PARTIAL_ADD", "c1", "H", &["a"], "")).await.0, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn subscriptions_of_a_silent_client_end() {
    let running = chat(&[]).await;
    assert_eq!(subscribe(&running, change("PARTIAL_ADD", "c1", "G", &["a"], "")).await.0, 0);
    let settings = "liteSubscriptionCheckTimeoutMills=0\nliteSubscriptionCheckInterval=100\nliteTtlCheckInterval=100";
    assert_eq!(running.call(request::UPDATE_BROKER_CONFIG, &(), settings).await.code, 0);
    let gone = async {
        while client_info(&running, "c1").await.lite_topic_count > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(DEADLINE, gone).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn with_its_parent_a_lite_topic_goes_and_so_do_offsets_and_subscriptions() {
    let running = chat(&[]).await;
    assert_eq!(subscribe(&running, change("PARTIAL_ADD", "c1", "G", &["a"], "")).await.0, 0);
    say(&running, "a", "1").await;
    let committed = UpdateConsumerOffset { consumer_group: "G", topic: "%LMQ%$Chat$a", queue_id: 0, commit_offset: 1 };
    assert_eq!(running.call(request::UPDATE_CONSUMER_OFFSET, &committed, "").await.code, 0);
    assert_eq!(running.call(request::DELETE_TOPIC_IN_BROKER, &DeleteTopic { topic: "Chat" }, "").await.code, 0);
    let broker: BrokerLiteInfo = ask(&running, request::GET_BROKER_LITE_INFO, &()).await;
    assert_eq!((broker.current_lmq_num, broker.lite_subscription_count), (0, 0));
    assert_eq!(make_parent(&running, "Chat", "+message.type=LITE").await.0, 0);
    say(&running, "a", "anew").await;
    let info = group_info(&running, "a").await;
    assert!(info.lite_topic_offset_wrapper.is_none(), "nothing is committed in the new one");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_lite_topic_goes_though_the_clock_was_ahead_when_its_last_message_came() {
    const LONG_MS: i64 = 100 * 86_400_000;
    let (setup, hand) = setup().standing();
    let running = start(setup).await;
    assert_eq!(make_parent(&running, "Chat", "+message.type=LITE,+lite.topic.expiration=60").await.0, 0);
    assert_eq!(make_parent(&running, "Hall", "+message.type=LITE").await.0, 0);
    assert_eq!(running.call(request::UPDATE_BROKER_CONFIG, &(), "liteTtlCheckInterval=100").await.code, 0);
    hand.set_by(LONG_MS);
    say(&running, "ahead", "1").await;
    running.put("Hall", 0, &properties(&[("__LITE_TOPIC", "ahead")]), "for ever").await;
    hand.set_by(-LONG_MS);
    say(&running, "after", "1").await;
    // It counts from the first look at it, which nobody sees: so an hour passes now and then, a few weeks at most in all.
    let mut polls = 0;
    for silent in ["%LMQ%$Chat$ahead", "%LMQ%$Chat$after"] {
        until("the silent one is gone", || {
            polls += 1;
            if polls % 100 == 0 {
                hand.advance(Duration::from_secs(61 * 60));
            }
            running.store().existing_queue(silent, 0).is_none()
        })
        .await;
    }
    assert!(running.store().existing_queue("%LMQ%$Hall$ahead", 0).is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lite_topic_that_is_silent_for_longer_than_its_parent_says_goes_and_others_stay() {
    let (setup, hand) = setup().standing();
    let running = start(setup.clone()).await;
    assert_eq!(make_parent(&running, "Chat", "+message.type=LITE,+lite.topic.expiration=60").await.0, 0);
    make_group(&running, "G", &[("lite.bind.topic", "Chat")]).await;
    assert_eq!(make_parent(&running, "Hall", "+message.type=LITE").await.0, 0);
    assert_eq!(subscribe(&running, change("PARTIAL_ADD", "c1", "G", &["old", "young"], "")).await.0, 0);
    let settings = "liteTtlCheckInterval=100\nliteSubscriptionCheckTimeoutMills=2000000000";
    assert_eq!(running.call(request::UPDATE_BROKER_CONFIG, &(), settings).await.code, 0);
    say(&running, "old", "1").await;
    running.put("Hall", 0, &properties(&[("__LITE_TOPIC", "old")]), "for ever").await;
    running.put("Hall", 0, &properties(&[("INNER_MULTI_DISPATCH", "%LMQ%plain")]), "no lite topic").await;
    hand.advance(Duration::from_secs(59 * 60));
    say(&running, "young", "1").await;
    assert!(running.store().existing_queue("%LMQ%$Chat$old", 0).is_some());
    hand.advance(Duration::from_secs(2 * 60));
    until("the silent one is gone", || running.store().existing_queue("%LMQ%$Chat$old", 0).is_none()).await;
    for stays in ["%LMQ%$Chat$young", "%LMQ%$Hall$old", "%LMQ%plain"] {
        assert!(running.store().existing_queue(stays, 0).is_some(), "{stays}");
    }
    let left = async {
        while client_info(&running, "c1").await.lite_topic_set != set(&["young"]) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(DEADLINE, left).await.unwrap();
    // It begins anew, also after a crash.
    say(&running, "old", "2").await;
    let image = running.image();
    let again = start_on(setup, image).await;
    let bodies: Vec<_> = again.all("%LMQ%$Chat$old", 0).await.into_iter().map(|found| found.body).collect();
    assert_eq!(bodies, ["2"]);
}
