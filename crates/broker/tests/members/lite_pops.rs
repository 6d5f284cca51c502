//! Lite topics popped by the clients that subscribe to them (200070).

use std::time::{Duration, Instant};

use bytes::Bytes;
use net::{Client, Response};
use protocol::body::BrokerLiteInfo;
use protocol::code::request;
use protocol::request::{
    AckMessage, ChangeInvisibleTime, PopLiteMessage, ResetOffset, TriggerLiteDispatch, UpdateConsumerOffset,
};

use super::lite::*;
use super::pop_of;
use crate::support::*;

/// The answer to a pop.
pub(super) struct Popped {
    pub(super) code: i32,
    pub(super) remark: String,
    pub(super) pop_time: String,
    pub(super) invisible: String,
    pub(super) revive_queue: String,
    /// How often each message was consumed before.
    pub(super) times: Vec<i32>,
    pub(super) messages: Vec<Message>,
}

impl Popped {
    pub(super) fn of(response: &Response) -> Popped {
        let field = |name: &str| response.fields.get(name).unwrap_or_default().to_owned();
        let times = field("orderCountInfo");
        Popped {
            code: response.code,
            remark: response.remark.clone().unwrap_or_default(),
            pop_time: field("popTime"),
            invisible: field("invisibleTime"),
            revive_queue: field("reviveQid"),
            times: times.split(';').filter(|part| !part.is_empty()).map(|part| part.parse().unwrap()).collect(),
            messages: messages(&response.body),
        }
    }

    pub(super) fn bodies(&self) -> Vec<&str> {
        self.messages.iter().map(|message| message.body.as_str()).collect()
    }

    pub(super) fn offset(&self, place: usize) -> i64 {
        self.messages[place].property("INNER_MULTI_QUEUE_OFFSET").unwrap().parse().unwrap()
    }

    /// As the stock client makes it.
    pub(super) fn handle(&self, place: usize) -> String {
        let Popped { pop_time, invisible, revive_queue, .. } = self;
        format!("0 {pop_time} {invisible} {revive_queue} 0 broker-a 0 {}", self.offset(place))
    }

    pub(super) fn lite_topic(&self, place: usize) -> &str {
        self.messages[place].property("__LITE_TOPIC").unwrap()
    }
}

pub(super) fn order(client: &str) -> PopLiteMessage<'_> {
    PopLiteMessage {
        client_id: client,
        consumer_group: "G",
        topic: "Chat",
        max_msg_num: 32,
        invisible_time: 60_000,
        poll_time: 0,
        born_time: 0,
        attempt_id: None,
    }
}

/// A pop that waits.
pub(super) fn patient(client: &str) -> PopLiteMessage<'_> {
    PopLiteMessage { poll_time: 15_000, ..order(client) }
}

pub(super) async fn pop(running: &Running, order: &PopLiteMessage<'_>) -> Popped {
    Popped::of(&running.call(request::POP_LITE_MESSAGE, order, Bytes::new()).await)
}

pub(super) async fn ack(running: &Running, popped: &Popped, place: usize) -> i32 {
    ack_by(running, &running.client, popped, place).await
}

/// An acknowledgement over the connection of somebody else.
pub(super) async fn ack_by(running: &Running, client: &Client, popped: &Popped, place: usize) -> i32 {
    let handle = popped.handle(place);
    let ack = AckMessage {
        consumer_group: "G",
        topic: "Chat",
        queue_id: 0,
        extra_info: &handle,
        offset: popped.offset(place),
        lite_topic: Some(popped.lite_topic(place)),
    };
    client.call(&running.address, request::ACK_MESSAGE, &ack, Bytes::new(), DEADLINE).await.unwrap().code
}

pub(super) async fn put_off(
    running: &Running,
    popped: &Popped,
    place: usize,
    invisible_time: i64,
    suspend: bool,
) -> i32 {
    let handle = popped.handle(place);
    let change = ChangeInvisibleTime {
        consumer_group: "G",
        topic: "Chat",
        queue_id: 0,
        extra_info: &handle,
        offset: popped.offset(place),
        invisible_time,
        lite_topic: Some(popped.lite_topic(place)),
        suspend,
    };
    running.call(request::CHANGE_MESSAGE_INVISIBLETIME, &change, Bytes::new()).await.code
}

pub(super) async fn add(running: &Running, client: &str, lite_topics: &[&str]) {
    let (code, remark) = subscribe(running, change("PARTIAL_ADD", client, "G", lite_topics, "")).await;
    assert_eq!(code, 0, "{remark}");
}

pub(super) async fn until_waiting(running: &Running, count: usize) {
    until("pops wait", || running.broker.waiting_pops() == count).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_pops_what_its_lite_topics_hold_and_nothing_else() {
    let running = chat(&[]).await;
    // A group that is new begins with the last message of what is not in memory; here all is.
    for (lite_topic, body) in [("a", "a0"), ("b", "b0"), ("a", "a1"), ("c", "c0")] {
        say(&running, lite_topic, body).await;
    }
    add(&running, "c1", &["a", "b"]).await;
    let first = pop(&running, &order("c1")).await;
    assert_eq!((first.code, first.remark.as_str()), (0, "FOUND"));
    assert_eq!(first.bodies(), ["a0", "a1", "b0"]);
    assert_eq!((first.offset(0), first.offset(1), first.offset(2)), (0, 1, 0));
    assert_eq!((first.revive_queue.as_str(), first.invisible.as_str()), ("999", "60000"));
    assert_eq!(first.times, [0, 0, 0]);
    let none = pop(&running, &order("c1")).await;
    assert_eq!((none.code, none.remark.as_str()), (210, "NO_MESSAGE_IN_QUEUE"));
    for place in 0..3 {
        assert_eq!(ack(&running, &first, place).await, 0);
        assert_eq!(ack(&running, &first, place).await, 0, "the answer may have got lost");
    }
    say(&running, "b", "b1").await;
    assert_eq!(pop(&running, &order("c1")).await.bodies(), ["b1"]);
    assert_eq!(pop(&running, &order("stranger")).await.code, 210);
    let info: BrokerLiteInfo = ask(&running, request::GET_BROKER_LITE_INFO, &()).await;
    assert_eq!((info.order_info_count, info.event_map_size), (1, 0), "what is done with is forgotten");
    assert!(client_info(&running, "c1").await.last_access_time > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lite_topic_goes_on_when_all_of_its_batch_is_acknowledged() {
    let running = chat(&[]).await;
    add(&running, "c1", &["a"]).await;
    for body in ["0", "1", "2", "3", "4"] {
        say(&running, "a", body).await;
    }
    let first = pop(&running, &PopLiteMessage { max_msg_num: 2, ..order("c1") }).await;
    assert_eq!(first.bodies(), ["0", "1"]);
    say(&running, "a", "5").await;
    assert_eq!(pop(&running, &order("c1")).await.code, 210, "one batch at a time");
    assert_eq!(ack(&running, &first, 1).await, 0);
    assert_eq!(pop(&running, &order("c1")).await.code, 210, "the first one is open");
    let (waiting, request) = (patient("c1"), async {
        until_waiting(&running, 1).await;
        ack(&running, &first, 0).await
    });
    let (rest, acked) = tokio::join!(pop(&running, &waiting), request);
    assert_eq!((acked, rest.bodies()), (0, vec!["2", "3", "4", "5"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pop_that_waits_gets_what_comes_and_who_subscribes_meanwhile_too() {
    let running = chat(&[]).await;
    add(&running, "c1", &["a"]).await;
    let one = patient("c1");
    let (first, ()) = tokio::join!(pop(&running, &one), async {
        until_waiting(&running, 1).await;
        say(&running, "other", "x").await;
        say(&running, "a", "0").await;
    });
    assert_eq!(first.bodies(), ["0"]);
    say(&running, "b", "1").await;
    let (second, ()) = tokio::join!(pop(&running, &one), async {
        until_waiting(&running, 1).await;
        add(&running, "c1", &["b"]).await;
    });
    assert_eq!(second.bodies(), ["1"]);
    let brief = PopLiteMessage { poll_time: 50, ..order("c1") };
    assert_eq!(pop(&running, &brief).await.code, 210, "its time is over");
    // Many waiting pops: one message wakes one of them.
    let (third, fourth, ()) = tokio::join!(pop(&running, &one), pop(&running, &one), async {
        until_waiting(&running, 2).await;
        add(&running, "c1", &["c", "d"]).await;
        say(&running, "c", "c").await;
        until_waiting(&running, 1).await;
        say(&running, "d", "d").await;
    });
    let mut both = [third.bodies(), fourth.bodies()].concat();
    both.sort_unstable();
    assert_eq!(both, ["c", "d"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_waits_for_the_disk_wakes_a_pop_when_it_may_be_seen() {
    let running = start(Setup { is_sync: true, ..setup() }).await;
    assert_eq!(make_parent(&running, "Chat", "+message.type=LITE").await.0, 0);
    make_group(&running, "G", &[("lite.bind.topic", "Chat")]).await;
    add(&running, "c1", &["a"]).await;
    let one = patient("c1");
    let (popped, ()) = tokio::join!(pop(&running, &one), async {
        until_waiting(&running, 1).await;
        say(&running, "a", "0").await;
    });
    assert_eq!(popped.bodies(), ["0"]);
    assert_eq!(ack(&running, &popped, 0).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_acknowledged_in_time_comes_again_and_says_how_often() {
    let (setup, hand) = setup().standing();
    let running = chat_as(setup, &[]).await;
    add(&running, "c1", &["a", "b"]).await;
    say(&running, "a", "0").await;
    say(&running, "a", "1").await;
    say(&running, "b", "b").await;
    let brief = PopLiteMessage { invisible_time: 300, ..order("c1") };
    let first = pop(&running, &brief).await;
    assert_eq!((first.bodies(), first.times.clone()), (vec!["0", "1", "b"], vec![0, 0, 0]));
    assert_eq!(ack(&running, &first, 2).await, 0);
    assert_eq!(ack(&running, &first, 1).await, 0);
    say(&running, "a", "2").await;
    hand.advance(Duration::from_millis(300));
    // The batch is read anew with what came behind it, as in Apache also what was acknowledged behind the first that was not.
    let again = pop(&running, &patient("c1")).await;
    assert_eq!((again.bodies(), again.times.clone()), (vec!["0", "1", "2"], vec![1, 1, 0]));
    assert_eq!(ack(&running, &first, 0).await, 0, "late, and without effect");
    assert_eq!(pop(&running, &order("c1")).await.code, 210);
    for place in 0..3 {
        assert_eq!(ack(&running, &again, place).await, 0);
    }
    say(&running, "a", "3").await;
    assert_eq!(pop(&running, &order("c1")).await.bodies(), ["3"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_time_counts_as_a_try_and_a_queue_that_is_put_off_does_not() {
    let running = chat(&[]).await;
    add(&running, "c1", &["a"]).await;
    say(&running, "a", "0").await;
    let first = pop(&running, &order("c1")).await;
    assert_eq!(put_off(&running, &first, 0, 100, false).await, 0);
    let second = pop(&running, &patient("c1")).await;
    assert_eq!((second.bodies(), second.times.clone()), (vec!["0"], vec![1]));
    assert_eq!(put_off(&running, &first, 0, 100, false).await, 208, "somebody else has it");
    assert_eq!(put_off(&running, &second, 0, 100, true).await, 0);
    let third = pop(&running, &patient("c1")).await;
    assert_eq!((third.bodies(), third.times.clone()), (vec!["0"], vec![1]), "one try, as before");
    assert_eq!(ack(&running, &third, 0).await, 0);
    assert_eq!(put_off(&running, &third, 0, 100, true).await, 0, "done with; nothing is put off");
    assert_eq!(pop(&running, &PopLiteMessage { poll_time: 400, ..order("c1") }).await.code, 210);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_one_group_share_and_groups_do_not() {
    let running = chat(&[]).await;
    make_group(&running, "H", &[("lite.bind.topic", "Chat")]).await;
    for (client, group) in [("c1", "G"), ("c2", "G"), ("d1", "H")] {
        assert_eq!(subscribe(&running, change("PARTIAL_ADD", client, group, &["a", "b", "c"], "")).await.0, 0);
    }
    for lite_topic in ["a", "b", "c"] {
        say(&running, lite_topic, lite_topic).await;
    }
    let mut of_group = Vec::new();
    for client in ["c1", "c2", "c1", "c2"] {
        of_group.extend(pop(&running, &order(client)).await.bodies().into_iter().map(str::to_owned));
    }
    of_group.sort_unstable();
    assert_eq!(of_group, ["a", "b", "c"]);
    let other = PopLiteMessage { consumer_group: "H", ..order("d1") };
    assert_eq!(pop(&running, &other).await.bodies(), ["a", "b", "c"]);
    assert_eq!(pop(&running, &PopLiteMessage { consumer_group: "H", ..order("c1") }).await.code, 210);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_takes_over_a_lite_topic_of_an_exclusive_group_gets_what_comes() {
    let running = chat(&[("lite.sub.model", "Exclusive"), ("lite.sub.reset.offset.exclusive", "true")]).await;
    add(&running, "c1", &["a"]).await;
    say(&running, "a", "0").await;
    let first = pop(&running, &order("c1")).await;
    assert_eq!(ack(&running, &first, 0).await, 0);
    say(&running, "a", "1").await;
    add(&running, "c2", &["a"]).await;
    assert_eq!(pop(&running, &order("c1")).await.code, 210, "it lost it, and what it was told of");
    let taken = pop(&running, &order("c2")).await;
    assert_eq!(taken.bodies(), ["0", "1"], "from the beginning, as its group wants it");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_was_told_of_goes_to_others_when_it_leaves_or_does_not_read() {
    let (setup, hand) = setup().standing();
    let running = start(setup).await;
    assert_eq!(make_parent(&running, "Chat", "+message.type=LITE").await.0, 0);
    make_group(&running, "G", &[("lite.bind.topic", "Chat")]).await;
    let names: Vec<String> = (0..10).map(|number| format!("l{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for client in ["c1", "c2", "c3"] {
        add(&running, client, &names).await;
    }
    for name in &names {
        say(&running, name, name).await;
    }
    let mut got: Vec<String> = pop(&running, &order("c1")).await.bodies().into_iter().map(str::to_owned).collect();
    assert_eq!(subscribe(&running, change("COMPLETE_REMOVE", "c2", "G", &[], "")).await.0, 0);
    hand.advance(Duration::from_secs(9));
    let second = pop(&running, &order("c1")).await;
    got.extend(second.bodies().into_iter().map(str::to_owned));
    assert!(got.len() < 10, "c3 reads, for all that is known");
    hand.advance(Duration::from_secs(2));
    let deadline = Instant::now() + DEADLINE;
    while got.len() < 10 {
        assert!(Instant::now() < deadline, "{got:?}");
        let more = pop(&running, &order("c1")).await;
        got.extend(more.bodies().into_iter().map(str::to_owned));
        tokio::time::sleep(Duration::from_millis(5)).await;
        hand.advance(Duration::from_millis(5));
    }
    got.sort_unstable();
    assert_eq!(got, names);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_gets_all_though_it_is_told_of_few_at_once() {
    let setup = Setup { more: &[("maxClientEventCount", "3")], ..setup() };
    for wildcard in [false, true] {
        let running = start(setup.clone()).await;
        assert_eq!(make_parent(&running, "Chat", "+message.type=LITE").await.0, 0);
        let all: &[(&str, &str)] = if wildcard { &[("lite.sub.wildcard", "true")] } else { &[] };
        make_group(&running, "G", &[&[("lite.bind.topic", "Chat")], all].concat()).await;
        let names: Vec<String> = (0..20).map(|number| format!("l{number:02}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let wanted: &[&str] = if wildcard { &[] } else { &names };
        assert_eq!(subscribe(&running, change("COMPLETE_ADD", "c1", "G", wanted, "")).await.0, 0);
        for name in &names {
            say(&running, name, name).await;
        }
        let mut got = Vec::new();
        while got.len() < names.len() {
            let popped = pop(&running, &patient("c1")).await;
            assert_eq!(popped.code, 0, "after {}", got.len());
            got.extend(popped.bodies().into_iter().map(str::to_owned));
        }
        got.sort_unstable();
        assert_eq!(got, names);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_is_repeated_gets_its_batch_again() {
    let running = chat(&[]).await;
    add(&running, "c1", &["a"]).await;
    say(&running, "a", "0").await;
    let attempt = PopLiteMessage { attempt_id: Some("x"), ..patient("c1") };
    assert_eq!(pop(&running, &attempt).await.bodies(), ["0"]);
    say(&running, "a", "1").await;
    let again = pop(&running, &attempt).await;
    assert_eq!(
        (again.bodies(), again.times.clone()),
        (vec!["0", "1"], vec![0, 0]),
        "the answer got lost, no try failed"
    );
    assert_eq!((ack(&running, &again, 0).await, ack(&running, &again, 1).await), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_has_clients_told_once_more() {
    let running = chat(&[]).await;
    add(&running, "c1", &["a"]).await;
    say(&running, "a", "0").await;
    let first = pop(&running, &order("c1")).await;
    assert_eq!(ack(&running, &first, 0).await, 0);
    // Set back behind the back of those who pop.
    let set_back = UpdateConsumerOffset { consumer_group: "G", topic: "%LMQ%$Chat$a", queue_id: 0, commit_offset: 0 };
    assert_eq!(running.call(request::UPDATE_CONSUMER_OFFSET, &set_back, "").await.code, 0);
    assert_eq!(pop(&running, &order("c1")).await.code, 210);
    for client_id in [Some("c1"), None] {
        let trigger = TriggerLiteDispatch { group: "G", client_id };
        assert_eq!(running.call(request::TRIGGER_LITE_DISPATCH, &trigger, "").await.code, 0);
        let brief = PopLiteMessage { invisible_time: 0, ..patient("c1") };
        assert_eq!(pop(&running, &brief).await.bodies(), ["0"]);
    }
    let nobody = TriggerLiteDispatch { group: "nobody", client_id: None };
    assert_eq!(running.call(request::TRIGGER_LITE_DISPATCH, &nobody, "").await.code, 26);
    let ordinary = TriggerLiteDispatch { group: "TOOLS_CONSUMER", client_id: None };
    assert_eq!(running.call(request::TRIGGER_LITE_DISPATCH, &ordinary, "").await.code, 29);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_survives_a_kill_and_its_messages_come_from_the_disk() {
    let (setup, hand) = setup().standing();
    let running = chat_as(setup.clone(), &[]).await;
    add(&running, "c1", &["a", "b"]).await;
    for (lite_topic, body) in [("a", "0"), ("a", "1"), ("b", "2")] {
        say(&running, lite_topic, body).await;
    }
    let brief = PopLiteMessage { invisible_time: 2500, ..order("c1") };
    let first = pop(&running, &brief).await;
    assert_eq!(first.bodies(), ["0", "1", "2"]);
    assert_eq!(ack(&running, &first, 0).await, 0);
    let image = running.image();
    running.stop().await;

    let running = start_on(setup, image).await;
    add(&running, "c1", &["a", "b"]).await;
    assert_eq!(ack(&running, &first, 2).await, 0, "the batch is known");
    assert_eq!(pop(&running, &order("c1")).await.code, 210, "and held");
    hand.advance(Duration::from_millis(2500));
    let again = pop(&running, &patient("c1")).await;
    assert_eq!((again.bodies(), again.times.clone()), (vec!["1"], vec![1]));
    assert_eq!(ack(&running, &again, 0).await, 0);
    // Nothing of it stands in the file that Apache keeps for ordered pops.
    let dir = running.stop().await;
    let orders = std::fs::read_to_string(dir.path().join("config/consumerOrderInfo.json")).unwrap_or_default();
    assert!(!orders.contains("%LMQ%"), "{orders}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_a_lite_topic_whose_name_holds_a_separator_survives_a_kill() {
    let (setup, _hand) = setup().standing();
    let running = chat_as(setup.clone(), &[]).await;
    add(&running, "c1", &["user@example.com"]).await;
    say(&running, "user@example.com", "0").await;
    let first = pop(&running, &order("c1")).await;
    assert_eq!(first.bodies(), ["0"]);
    let image = running.image();
    running.stop().await;

    let running = start_on(setup, image).await;
    add(&running, "c1", &["user@example.com"]).await;
    assert_eq!(pop(&running, &order("c1")).await.code, 210, "it is held");
    assert_eq!(put_off(&running, &first, 0, 60_000, false).await, 0, "and by whom is known");
    assert_eq!(ack(&running, &first, 0).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_acknowledgements_that_names_no_lite_topic_is_refused() {
    let running = chat(&[]).await;
    add(&running, "c1", &["a"]).await;
    say(&running, "a", "0").await;
    let popped = pop(&running, &order("c1")).await;
    let body = format!(
        r#"{{"acks":[{{"b":"AQ==","c":"G","it":60000,"pt":{},"q":0,"r":"0","rq":999,"so":0,"t":"Chat"}}]}}"#,
        popped.pop_time
    );
    let refused = running.call(request::BATCH_ACK_MESSAGE, &(), body).await;
    assert_eq!((refused.code, refused.remark.unwrap().contains("one by one")), (29, true));
    assert_eq!(put_off(&running, &popped, 0, 60_000, false).await, 0, "it is still held");
    assert_eq!(ack(&running, &popped, 0).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pop_that_waits_gets_what_its_group_is_set_back_to() {
    let running = chat(&[]).await;
    let settings = "useServerSideResetOffset=true";
    assert_eq!(running.call(request::UPDATE_BROKER_CONFIG, &(), settings).await.code, 0);
    add(&running, "c1", &["a"]).await;
    let reset =
        ResetOffset { group: "G", topic: "%LMQ%$Chat$a", queue_id: 0, offset: Some(0), timestamp: -1, is_force: true };
    say(&running, "a", "0").await;
    let first = pop(&running, &order("c1")).await;
    for is_held in [true, false] {
        let waiting = patient("c1");
        let (again, code) = tokio::join!(pop(&running, &waiting), async {
            until_waiting(&running, 1).await;
            running.call(request::INVOKE_BROKER_TO_RESET_OFFSET, &reset, "").await.code
        });
        assert_eq!((code, again.bodies()), (0, vec!["0"]), "while it is held: {is_held}");
        assert_eq!(ack(&running, &first, 0).await, 0, "late, and without effect");
        assert_eq!(ack(&running, &again, 0).await, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_popped_is_refused_with_apaches_codes() {
    let running = chat(&[]).await;
    make_group(&running, "plain", &[]).await;
    assert_eq!(make_parent(&running, "Other", "+message.type=LITE").await.0, 0);
    running.put("T", 0, "", "x").await;
    let good = order("c1");
    for (order, code, words) in [
        (PopLiteMessage { born_time: 1, ..good.clone() }, 210, "timeout too much"),
        (PopLiteMessage { max_msg_num: 33, ..good.clone() }, 29, "greater than 32"),
        (PopLiteMessage { max_msg_num: 0, ..good.clone() }, 29, "from 1 to 32"),
        (PopLiteMessage { invisible_time: -1, ..good.clone() }, 29, "invisibleTime"),
        (PopLiteMessage { topic: "NO", ..good.clone() }, 17, "NO"),
        (PopLiteMessage { topic: "T", ..good.clone() }, 29, "type not match"),
        (PopLiteMessage { topic: "Other", ..good.clone() }, 29, "bind topic not match"),
        (PopLiteMessage { consumer_group: "plain", ..good.clone() }, 29, "bind topic not match"),
    ] {
        let refused = pop(&running, &order).await;
        assert!(
            refused.code == code && refused.remark.contains(words),
            "{} {}, not {words}",
            refused.code,
            refused.remark
        );
    }
    add(&running, "c1", &["a"]).await;
    say(&running, "a", "0").await;
    let popped = pop(&running, &good).await;
    let handle = popped.handle(0);
    let unordered = handle.replace(" 999 ", " 1 ");
    let good = AckMessage {
        consumer_group: "G",
        topic: "Chat",
        queue_id: 0,
        extra_info: &handle,
        offset: 0,
        lite_topic: Some("a"),
    };
    for (ack, code, words) in [
        (AckMessage { topic: "NO", ..good.clone() }, 17, "NO"),
        (AckMessage { queue_id: 7, ..good.clone() }, 13, "queueId[7]"),
        (AckMessage { consumer_group: "plain", ..good.clone() }, 29, "bind topic not match"),
        (AckMessage { consumer_group: "nobody", ..good.clone() }, 29, "bind topic not match"),
        (AckMessage { offset: 2, ..good.clone() }, 208, "store:0~1"),
        (AckMessage { offset: -2, ..good.clone() }, 208, "offset -2"),
        (AckMessage { lite_topic: Some("none"), offset: 1, ..good.clone() }, 208, "store:0~0"),
        (AckMessage { extra_info: "1 2", ..good.clone() }, 13, "no handle"),
        (AckMessage { extra_info: &unordered, ..good.clone() }, 29, "queue illegal"),
        (AckMessage { offset: 1, ..good.clone() }, 13, "not in the"),
    ] {
        let refused = running.call(request::ACK_MESSAGE, &ack, "").await;
        let remark = refused.remark.unwrap_or_default();
        assert!(refused.code == code && remark.contains(words), "{} {remark}, not {code} {words}", refused.code);
    }
    assert_eq!(ack(&running, &popped, 0).await, 0);
    let off = start(Setup::default()).await;
    assert_eq!(pop(&off, &order("c1")).await.code, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_light_queue_that_is_popped_by_its_name_counts_its_own_messages() {
    let running = chat(&[]).await;
    // The parent's numbers and the lite topic's differ.
    for body in ["0", "1", "2"] {
        say(&running, "before", body).await;
    }
    say(&running, "a", "hello").await;
    let found = running.call(request::POP_MESSAGE, &pop_of("G", "%LMQ%$Chat$a", 0, 32), "").await;
    assert_eq!(found.code, 0);
    assert_eq!(found.fields.get("msgOffsetInfo"), Some("0 0 0"));
    let field = |name: &str| found.fields.get(name).unwrap_or_default().to_owned();
    let handle = format!("0 {} 60000 {} 0 broker-a 0 0", field("popTime"), field("reviveQid"));
    let ack = AckMessage {
        consumer_group: "G",
        topic: "%LMQ%$Chat$a",
        queue_id: 0,
        extra_info: &handle,
        offset: 0,
        lite_topic: None,
    };
    assert_eq!(running.call(request::ACK_MESSAGE, &ack, "").await.code, 0);
    let change = ChangeInvisibleTime {
        consumer_group: "G",
        topic: "%LMQ%$Chat$a",
        queue_id: 0,
        extra_info: &handle,
        offset: 0,
        invisible_time: 1000,
        lite_topic: None,
        suspend: false,
    };
    let changed = running.call(request::CHANGE_MESSAGE_INVISIBLETIME, &change, "").await;
    assert_eq!(changed.code, 208, "the lease had found its message");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_pop_of_a_lite_topic_that_only_the_device_has_holds_nobody_up() {
    let running = chat(&[]).await;
    say(&running, "a", "one").await;
    let dir = running.stop().await;
    let device = Device::default();
    let running = start_on(Setup { device: device.clone(), ..setup() }, dir).await;
    device.hold_reads(true);
    add(&running, "c1", &["a"]).await;
    let popping = async {
        assert_eq!(pop(&running, &order("c1")).await.bodies(), ["one"]);
    };
    let others = async {
        until("it waits for the device", || device.reads_waiting() == 1).await;
        // On the same connection, whose task has the only thread.
        say(&running, "b", "two").await;
        assert_eq!(device.reads_waiting(), 1);
        device.hold_reads(false);
    };
    tokio::join!(popping, others);
}
