//! Pop consumption as a client sees it.

use std::time::Duration;

use bytes::Bytes;
use env::ManualClock;
use protocol::code::request;
use protocol::request::{AckMessage, ChangeInvisibleTime, Notification, PeekMessage, PollingInfo, PopMessage};
use tokio::time::{Instant, timeout};

use super::support::{DEADLINE, Device, Message, Running, Setup, messages, properties, start, start_on, until};

/// The answer to a pop.
#[derive(Debug)]
pub struct Popped {
    pub code: i32,
    pub remark: Option<String>,
    fields: std::collections::BTreeMap<String, String>,
    pub messages: Vec<Message>,
}

impl Popped {
    pub fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    /// As the stock client makes it.
    pub fn handle(&self, place: usize) -> String {
        let message = &self.messages[place];
        if let Some(handle) = message.property("POP_CK") {
            return handle.to_owned();
        }
        let queue = message.queue_id.to_string();
        let start = self.field("startOffsetInfo").split(';').find_map(|part| {
            let parts: Vec<&str> = part.split(' ').collect();
            (parts[0] == "0" && parts[1] == queue).then(|| parts[2].to_owned())
        });
        format!(
            "{} {} {} {} 0 broker-a {} {}",
            start.unwrap(),
            self.field("popTime"),
            self.field("invisibleTime"),
            self.field("reviveQid"),
            message.queue_id,
            message.queue_offset
        )
    }

    pub fn bodies(&self) -> Vec<&str> {
        self.messages.iter().map(|message| message.body.as_str()).collect()
    }
}

const FIELDS: [&str; 7] =
    ["popTime", "invisibleTime", "reviveQid", "restNum", "startOffsetInfo", "msgOffsetInfo", "orderCountInfo"];

pub fn from(topic: &str, invisible_ms: i64) -> PopMessage<'_> {
    PopMessage {
        consumer_group: "CG",
        topic,
        queue_id: -1,
        max_msg_nums: 32,
        invisible_time: invisible_ms,
        poll_time: 0,
        born_time: 0,
        init_mode: 0,
        exp_type: None,
        exp: None,
        order: false,
        attempt_id: None,
    }
}

pub async fn pop(broker: &Running, pop: &PopMessage<'_>) -> Popped {
    let response = broker.call(request::POP_MESSAGE, pop, Bytes::new()).await;
    let fields = FIELDS.iter().filter_map(|name| Some((name.to_string(), response.fields.get(name)?.to_owned())));
    Popped {
        code: response.code,
        fields: fields.collect(),
        messages: messages(&response.body),
        remark: response.remark,
    }
}

/// The topic that a handle means.
fn topic_of<'a>(handle: &str, topic: &'a str, retry: &'a str) -> &'a str {
    if handle.split(' ').nth(4) == Some("0") { topic } else { retry }
}

pub async fn ack(broker: &Running, topic: &str, handle: &str) -> i32 {
    let retry = format!("%RETRY%CG_{topic}");
    let mut parts = handle.split(' ').skip(6);
    let queue_id = parts.next().unwrap().parse().unwrap();
    let offset = parts.next().unwrap().parse().unwrap();
    let topic = topic_of(handle, topic, &retry);
    let ack = AckMessage { consumer_group: "CG", topic, queue_id, extra_info: handle, offset, lite_topic: None };
    broker.call(request::ACK_MESSAGE, &ack, Bytes::new()).await.code
}

pub async fn change(broker: &Running, topic: &str, handle: &str, invisible_time: i64) -> (i32, String) {
    let mut parts = handle.split(' ').skip(6);
    let queue_id = parts.next().unwrap();
    let offset = parts.next().unwrap();
    let change = ChangeInvisibleTime {
        consumer_group: "CG",
        topic,
        queue_id: queue_id.parse().unwrap(),
        extra_info: handle,
        offset: offset.parse().unwrap(),
        invisible_time,
        lite_topic: None,
        suspend: false,
    };
    let response = broker.call(request::CHANGE_MESSAGE_INVISIBLETIME, &change, Bytes::new()).await;
    let field = |name: &str| response.fields.get(name).unwrap_or_default().to_owned();
    let new = format!(
        "{offset} {} {} {} 0 broker-a {queue_id} {offset}",
        field("popTime"),
        field("invisibleTime"),
        field("reviveQid")
    );
    (response.code, new)
}

/// A broker whose clock stands still but for what a test moves it, so a slow machine ends no lease.
pub fn standing() -> (Setup, ManualClock) {
    Setup::default().standing()
}

/// Pops until something comes.
pub async fn pop_any(broker: &Running, order: &PopMessage<'_>) -> Popped {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let found = pop(broker, &PopMessage { poll_time: 5000, ..order.clone() }).await;
        if found.code == 0 {
            return found;
        }
        assert_eq!(found.code, 210, "{:?}", found.remark);
        assert!(Instant::now() < deadline, "nothing to pop");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_popped_is_nobody_elses_and_what_is_acknowledged_does_not_come_again() {
    let (setup, hand) = standing();
    let broker = start(setup).await;
    for number in 0..10 {
        broker.put("T", number % 4, "", &number.to_string()).await;
    }
    let first = pop(&broker, &from("T", 1500)).await;
    assert_eq!((first.code, first.remark.as_deref()), (0, Some("FOUND")));
    let mut bodies = first.bodies();
    bodies.sort_unstable();
    assert_eq!(bodies, ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]);
    assert_eq!((first.field("restNum"), first.field("invisibleTime")), ("0", "1500"));
    assert_eq!(pop(&broker, &from("T", 1500)).await.code, 210, "everything is on lease");

    let kept = first.messages.iter().position(|message| message.body == "7").unwrap();
    for place in (0..10).filter(|place| *place != kept) {
        assert_eq!(ack(&broker, "T", &first.handle(place)).await, 0);
    }
    hand.advance(Duration::from_millis(1500));
    let again = pop_any(&broker, &from("T", 60_000)).await;
    assert_eq!(again.bodies(), ["7"]);
    let message = &again.messages[0];
    assert_eq!((message.topic.as_str(), message.reconsume_times), ("T", 1));
    assert_eq!(message.property("1ST_POP_TIME"), Some(first.field("popTime")));
    assert_eq!(message.property("ORIGIN_GROUP"), Some("CG"));

    assert_eq!(ack(&broker, "T", &first.handle(kept)).await, 208, "the first lease is over");
    assert_eq!(ack(&broker, "T", &again.handle(0)).await, 0);
    assert_eq!(ack(&broker, "T", &again.handle(0)).await, 0, "the answer may have got lost");
    assert_eq!(pop(&broker, &from("T", 1000)).await.code, 210);
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_message_with_large_properties_comes_again_whole() {
    let (setup, hand) = standing();
    let broker = start(setup).await;
    let (body, note) = ("x".repeat(20_000), "y".repeat(5_000));
    broker.put("T", 0, &properties(&[("note", &note)]), &body).await;
    assert_eq!(pop(&broker, &from("T", 1500)).await.bodies(), [body.as_str()]);
    hand.advance(Duration::from_millis(1500));
    let again = pop_any(&broker, &from("T", 60_000)).await;
    assert_eq!(again.bodies(), [body.as_str()]);
    let message = &again.messages[0];
    assert_eq!((message.topic.as_str(), message.property("note")), ("T", Some(note.as_str())));
    assert_eq!(ack(&broker, "T", &again.handle(0)).await, 0);
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_time_ends_the_old_handle_and_counts_from_now() {
    let broker = start(Setup::default()).await;
    broker.put("T", 1, "", "a").await;
    let first = pop(&broker, &from("T", 60_000)).await;
    let (code, new) = change(&broker, "T", &first.handle(0), 600).await;
    assert_eq!(code, 0);
    assert_eq!(change(&broker, "T", &first.handle(0), 600).await.0, 208, "the old handle has nothing");
    let again = pop_any(&broker, &from("T", 60_000)).await;
    assert_eq!((again.bodies(), again.messages[0].reconsume_times), (vec!["a"], 1));
    assert_eq!(ack(&broker, "T", &new).await, 208);
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_handle_says_when_its_lease_ends_also_when_the_clock_was_set_back() {
    let (setup, hand) = standing();
    let broker = start(setup).await;
    broker.put("T", 1, "", "a").await;
    let first = pop(&broker, &from("T", 7_200_000)).await;
    hand.set_by(-3_600_000);
    let (code, new) = change(&broker, "T", &first.handle(0), 300).await;
    assert_eq!(code, 0);
    hand.advance(Duration::from_millis(300));
    assert_eq!(pop_any(&broker, &from("T", 60_000)).await.bodies(), ["a"]);
    assert_eq!(ack(&broker, "T", &new).await, 208, "somebody else has it");
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pop_waits_for_a_message_of_any_queue_and_one_message_wakes_one_pop() {
    let broker = start(Setup::default()).await;
    broker.put("T", 0, "", "first").await;
    assert_eq!(pop(&broker, &from("T", 60_000)).await.code, 0);
    let waiting = PopMessage { poll_time: 10_000, ..from("T", 60_000) };
    let (one, two, ()) = tokio::join!(pop(&broker, &waiting), pop(&broker, &waiting), async {
        super::support::until("two pops wait", || broker.broker.waiting_pops() == 2).await;
        let info = PollingInfo { consumer_group: "CG", topic: "T", queue_id: -1 };
        let info = broker.call(request::POLLING_INFO, &info, Bytes::new()).await;
        assert_eq!(info.fields.get("pollingNum"), Some("2"));
        broker.put("T", 3, "", "second").await;
        super::support::until("one pop waits", || broker.broker.waiting_pops() == 1).await;
        broker.put("T", 2, "", "third").await;
    });
    let mut bodies = [one.bodies(), two.bodies()].concat();
    bodies.sort_unstable();
    assert_eq!(bodies, ["second", "third"]);

    let over = timeout(DEADLINE, pop(&broker, &PopMessage { poll_time: 50, ..from("T", 1000) })).await.unwrap();
    assert_eq!(over.code, 210);
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pops_filter_by_tags_and_by_conditions() {
    let broker = start(Setup::default()).await;
    for (tag, size) in [("a", "1"), ("b", "2"), ("a", "3"), ("c", "4")] {
        broker.put("T", 0, &properties(&[("TAGS", tag), ("size", size)]), size).await;
    }
    let tags = PopMessage { exp_type: Some("TAG"), exp: Some("a || c"), ..from("T", 60_000) };
    let found = pop(&broker, &tags).await;
    assert_eq!(found.bodies(), ["1", "3", "4"]);
    assert_eq!((found.field("startOffsetInfo"), found.field("msgOffsetInfo")), ("0 0 0", "0 0 0,2,3"));
    for place in 0..3 {
        assert_eq!(ack(&broker, "T", &found.handle(place)).await, 0);
    }
    let sql =
        PopMessage { consumer_group: "OTHER", exp_type: Some("SQL92"), exp: Some("size > 2"), ..from("T", 60_000) };
    let refused = pop(&broker, &sql).await;
    assert_eq!(refused.code, 1, "enablePropertyFilter is false by default");
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_popped_in_order_gives_the_next_batch_only_after_the_last_one() {
    let (setup, hand) = standing();
    let broker = start(setup).await;
    for number in 0..4 {
        broker.put("T", 0, "", &number.to_string()).await;
    }
    let order = PopMessage { order: true, queue_id: 0, max_msg_nums: 2, attempt_id: Some("one"), ..from("T", 1200) };
    let first = pop(&broker, &order).await;
    assert_eq!((first.bodies(), first.field("reviveQid")), (vec!["0", "1"], "999"));
    assert_eq!(first.field("orderCountInfo"), "0 0 0");
    let other = PopMessage { attempt_id: Some("two"), ..order.clone() };
    assert_eq!(pop(&broker, &other).await.code, 210, "somebody has the queue");
    let same = pop(&broker, &order).await;
    assert_eq!(same.bodies(), ["0", "1"], "the answer to the attempt may have got lost");

    assert_eq!(ack(&broker, "T", &same.handle(1)).await, 0);
    hand.advance(Duration::from_millis(1200));
    let expired = pop_any(&broker, &other).await;
    assert_eq!(expired.bodies(), ["0", "1"], "as in Apache, also what was acknowledged behind it");
    assert_eq!(expired.field("orderCountInfo"), "0 qo0%0 1;0 qo0%1 1;0 0 1");
    assert_eq!(ack(&broker, "T", &expired.handle(1)).await, 0);
    assert_eq!(ack(&broker, "T", &expired.handle(0)).await, 0);
    let next = pop(&broker, &PopMessage { attempt_id: None, ..order.clone() }).await;
    assert_eq!(next.bodies(), ["2", "3"]);
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_from_a_message_on_that_is_put_off_come_again_in_order() {
    let (setup, hand) = standing();
    let broker = start(setup).await;
    for number in 1..=4 {
        broker.put("T", 0, "", &number.to_string()).await;
    }
    let order = PopMessage { order: true, queue_id: 0, max_msg_nums: 3, ..from("T", 60_000) };
    let first = pop(&broker, &order).await;
    assert_eq!(first.bodies(), ["1", "2", "3"]);
    assert_eq!(ack(&broker, "T", &first.handle(0)).await, 0);
    assert_eq!(ack(&broker, "T", &first.handle(2)).await, 0);
    assert_eq!(change(&broker, "T", &first.handle(1), 1_000).await.0, 0);
    assert_eq!(pop(&broker, &order).await.code, 210, "it is not visible yet");
    hand.advance(Duration::from_secs(1));
    let second = pop_any(&broker, &order).await;
    assert_eq!(second.bodies(), ["2", "3", "4"]);
    for place in 0..3 {
        assert_eq!(ack(&broker, "T", &second.handle(place)).await, 0);
    }
    assert_eq!(pop(&broker, &order).await.code, 210, "nothing is left");
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_takes_nothing_and_a_question_waits_for_its_answer() {
    let broker = start(Setup::default()).await;
    broker.put("T", 0, "", "a").await;
    let peek = PeekMessage { topic: "T", queue_id: -1, max_msg_nums: 32, consumer_group: "CG" };
    for _ in 0..2 {
        let seen = broker.call(request::PEEK_MESSAGE, &peek, Bytes::new()).await;
        assert_eq!((seen.code, messages(&seen.body).len()), (0, 1));
    }
    let question = |poll_time: i64| Notification {
        consumer_group: "CG",
        topic: "T",
        queue_id: -1,
        poll_time,
        born_time: 0,
        order: false,
        attempt_id: None,
        exp_type: None,
        exp: None,
    };
    let has = |response: &net::Response| response.fields.get("hasMsg").unwrap().to_owned();
    assert_eq!(has(&broker.call(request::NOTIFICATION, &question(0), Bytes::new()).await), "true");
    assert_eq!(pop(&broker, &from("T", 60_000)).await.bodies(), ["a"]);
    assert_eq!(has(&broker.call(request::NOTIFICATION, &question(0), Bytes::new()).await), "false");
    let asked = question(10_000);
    let (answer, ()) = tokio::join!(broker.call(request::NOTIFICATION, &asked, Bytes::new()), async {
        super::support::until("the question waits", || broker.broker.waiting_pops() == 1).await;
        broker.put("T", 2, "", "b").await;
    });
    assert_eq!(has(&answer), "true");
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pops_and_acknowledgements_that_make_no_sense_are_refused_by_name() {
    let broker = start(Setup::default()).await;
    broker.put("T", 0, "", "a").await;
    let good = from("T", 60_000);
    for (order, code, words) in [
        (PopMessage { max_msg_nums: 33, ..good.clone() }, 29, "num is greater than 32: maxMsgNums is 33"),
        (PopMessage { max_msg_nums: 0, ..good.clone() }, 29, "maxMsgNums is 0"),
        (PopMessage { invisible_time: -1, ..good.clone() }, 29, "invisibleTime is -1"),
        (PopMessage { invisible_time: i64::MAX, ..good.clone() }, 29, "it must be from 0 to 259200000"),
        (PopMessage { init_mode: 7, ..good.clone() }, 29, "initMode is 7"),
        (PopMessage { topic: "NO", ..good.clone() }, 17, "topic[NO] not exist"),
        (PopMessage { queue_id: 4, ..good.clone() }, 29, "queueId[4] is illegal"),
        (PopMessage { queue_id: i32::MAX, ..good.clone() }, 29, "is illegal"),
        (PopMessage { born_time: 1, ..good.clone() }, 210, "timeout too much"),
        (PopMessage { exp: Some("||"), ..good.clone() }, 23, "holds no tag"),
        (PopMessage { exp: Some("a >"), exp_type: Some("XPATH"), ..good.clone() }, 1, "XPATH"),
    ] {
        let refused = pop(&broker, &order).await;
        let remark = refused.remark.unwrap_or_default();
        assert!(refused.code == code && remark.contains(words), "{} {remark}, not {code} {words}", refused.code);
    }
    let found = pop(&broker, &good).await;
    let handle = found.handle(0);
    let good =
        AckMessage { consumer_group: "CG", topic: "T", queue_id: 0, extra_info: &handle, offset: 0, lite_topic: None };
    for (ack, code, words) in [
        (AckMessage { topic: "NO", ..good.clone() }, 17, "topic[NO]"),
        (AckMessage { queue_id: -1, ..good.clone() }, 13, "queueId[-1]"),
        (AckMessage { queue_id: 9, ..good.clone() }, 13, "queueId[9]"),
        (AckMessage { extra_info: "", ..good.clone() }, 13, "no start offset"),
        (AckMessage { extra_info: "1 2", ..good.clone() }, 13, "no handle"),
        (AckMessage { offset: 99, ..good.clone() }, 208, "store:0~1"),
        (AckMessage { offset: -1, ..good.clone() }, 208, "commit:-1"),
    ] {
        let refused = broker.call(request::ACK_MESSAGE, &ack, Bytes::new()).await;
        let remark = refused.remark.unwrap_or_default();
        assert!(refused.code == code && remark.contains(words), "{} {remark}, not {code} {words}", refused.code);
    }
    // Of another group, and made up: neither takes the message from who has it.
    let foreign = AckMessage { consumer_group: "OTHER", ..good.clone() };
    broker.call(request::ACK_MESSAGE, &foreign, Bytes::new()).await;
    let parts: Vec<&str> = handle.split(' ').collect();
    let forged = format!("0 {} 60000 0 0 broker-a 0 0", parts[1].parse::<i64>().unwrap() - 1);
    broker.call(request::ACK_MESSAGE, &AckMessage { extra_info: &forged, ..good.clone() }, Bytes::new()).await;
    let (code, _) = change(&broker, "T", &handle, -5).await;
    assert_eq!(code, 13);
    assert_eq!(change(&broker, "T", &handle, 60_000).await.0, 0, "it is held still");
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_with_most_properties_is_given_back_and_popped() {
    let broker = start(Setup::default()).await;
    let large = "x".repeat(32_000);
    broker.put("T", 0, &properties(&[("TAGS", "a"), ("large", &large)]), "a").await;
    assert_eq!(pop(&broker, &from("T", 100)).await.bodies(), ["a"]);
    let again = pop_any(&broker, &from("T", 60_000)).await;
    assert_eq!(ack(&broker, "T", &again.handle(0)).await, 0);
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn check_points_of_apache_become_leases() {
    let broker = start(Setup::default()).await;
    for number in 0..4 {
        broker.put("T", 0, "", &number.to_string()).await;
    }
    // As another broker popped them: 0 to 2, of which 0 is acknowledged in the check-point and 1 beside it.
    let revive = "rmq_sys_REVIVE_LOG_DefaultCluster";
    let (start, pop_time) = ("0", "1000000");
    let point = format!(
        r#"{{"bm":1,"bn":"broker-a","c":"CG","d":[0,1,2],"it":1000,"n":3,"pt":{pop_time},"q":0,"ro":0,"so":{start},"t":"T"}}"#
    );
    let ack_record = format!(r#"{{"ao":1,"bn":"broker-a","c":"CG","pt":{pop_time},"q":0,"so":{start},"t":"T"}}"#);
    broker.put(revive, 5, &properties(&[("TAGS", "ack")]), &ack_record).await;
    let image = broker.image();
    broker.stop().await;
    let broker = start_on(Setup::default(), image).await;
    broker.put(revive, 5, &properties(&[("TAGS", "ck")]), &point).await;
    broker.put(revive, 5, &properties(&[("TAGS", "ack")]), &ack_record).await;
    let mut bodies = Vec::new();
    let deadline = Instant::now() + DEADLINE;
    while !bodies.contains(&("2".to_owned(), 1)) {
        assert!(Instant::now() < deadline, "{bodies:?}");
        let retries = broker.all("%RETRY%CG_T", 0).await;
        bodies = retries.into_iter().map(|message| (message.body, message.reconsume_times)).collect();
    }
    assert_eq!(bodies, [("2".to_owned(), 1)]);
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn request_modes_are_kept_and_shown() {
    let broker = start(Setup::default()).await;
    broker.put("T", 0, "", "a").await;
    let set = |topic: &str, group: &str| {
        format!(r#"{{"consumerGroup":"{group}","mode":"POP","popShareQueueNum":2,"topic":"{topic}"}}"#)
    };
    let call = |body: String| broker.call(request::SET_MESSAGE_REQUEST_MODE, &(), body);
    assert_eq!(call(set("%RETRY%CG", "CG")).await.code, 16);
    assert_eq!(call(set("NO", "CG")).await.code, 17);
    assert_eq!(call("{".to_owned()).await.code, 29);
    assert_eq!(call(set("T", "CG")).await.code, 0);
    let dir = broker.stop().await;
    assert!(std::fs::read_to_string(dir.path().join("config/messageRequestMode.json")).unwrap().contains("POP"));
    let broker = start_on(Setup::default(), dir).await;
    let shown = broker.call(request::GET_ALL_MESSAGE_REQUEST_MODE, &(), Bytes::new()).await;
    let expected = r#"{"messageRequestModeMap":{"T":{"CG":{"consumerGroup":"CG","mode":"POP","popShareQueueNum":2,"topic":"T"}}}}"#;
    assert_eq!(String::from_utf8(shown.body.to_vec()).unwrap(), expected);
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_acknowledges_what_its_bits_say() {
    let (setup, hand) = standing();
    let broker = start(setup).await;
    for number in 0..10 {
        broker.put("T", 0, "", &number.to_string()).await;
    }
    let found = pop(&broker, &from("T", 1500)).await;
    let (pop_time, revive) = (found.field("popTime"), found.field("reviveQid"));
    // Bits 0 and 9, and 40, which is no message of this pop.
    let body = format!(
        r#"{{"acks":[{{"b":"AQIAAAAB","c":"CG","it":1500,"pt":{pop_time},"q":0,"r":"0","rq":{revive},"so":0,"t":"T"}},
            {{"b":"AQ==","c":"CG","it":1500,"pt":1,"q":99,"r":"1","rq":0,"so":0,"t":"NO"}}],"brokerName":"broker-a"}}"#
    );
    assert_eq!(broker.call(request::BATCH_ACK_MESSAGE, &(), body).await.code, 0);
    for place in 1..8 {
        assert_eq!(ack(&broker, "T", &found.handle(place)).await, 0);
    }
    hand.advance(Duration::from_millis(1500));
    assert_eq!(pop_any(&broker, &from("T", 60_000)).await.bodies(), ["8"]);
    assert_eq!(broker.call(request::BATCH_ACK_MESSAGE, &(), Bytes::new()).await.code, 29);
    assert_eq!(broker.call(request::BATCH_ACK_MESSAGE, &(), r#"{"acks":[{"b":"*"}]}"#).await.code, 29);
    assert_eq!(broker.call(request::POP_ROLLBACK, &(), Bytes::new()).await.code, 0);
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_batch_of_acks_is_carried_out_and_one_of_too_many_pops_is_refused() {
    let (setup, hand) = standing();
    let broker = start(setup).await;
    for body in ["first", "second"] {
        broker.put("T", 0, "", body).await;
    }
    let found = pop(&broker, &from("T", 1500)).await;
    let (pop_time, revive) = (found.field("popTime"), found.field("reviveQid"));
    let first =
        format!(r#"{{"b":"AQ==","c":"CG","it":1500,"pt":{pop_time},"q":0,"r":"0","rq":{revive},"so":0,"t":"T"}}"#);
    let batch = |others: usize| {
        let others = vec![r#"{"c":"CG","q":99,"t":"NO"}"#; others].join(",");
        format!(r#"{{"acks":[{others},{first}]}}"#)
    };
    let refused = broker.call(request::BATCH_ACK_MESSAGE, &(), batch(65_536)).await;
    let remark = "acks of the batch names 65537 pops, the limit is 65536";
    assert_eq!((refused.code, refused.remark.as_deref()), (13, Some(remark)));
    // Long enough to be carried out beside the network worker.
    assert_eq!(broker.call(request::BATCH_ACK_MESSAGE, &(), batch(2_000)).await.code, 0);
    hand.advance(Duration::from_millis(1500));
    assert_eq!(pop_any(&broker, &from("T", 60_000)).await.bodies(), ["second"]);
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_again_stands_in_no_light_queue_a_second_time_and_a_light_queue_can_be_popped() {
    let setup = Setup { light_queues: Some("100"), ..Setup::default() };
    let broker = start(setup.clone()).await;
    let listed = properties(&[("INNER_MULTI_DISPATCH", "%LMQ%a")]);
    let waiting = PopMessage { poll_time: 10_000, ..from("%LMQ%a", 500) };
    let (of_light, ()) = tokio::join!(pop(&broker, &waiting), async {
        super::support::until("a pop waits", || broker.broker.waiting_pops() == 1).await;
        broker.put("T", 0, &listed, "x").await;
    });
    assert_eq!((of_light.code, of_light.bodies()), (0, vec!["x"]));
    assert_eq!(pop(&broker, &from("T", 500)).await.bodies(), ["x"]);
    let again = pop_any(&broker, &from("T", 60_000)).await;
    let again_of_light = pop_any(&broker, &from("%LMQ%a", 60_000)).await;
    for again in [again, again_of_light] {
        let message = &again.messages[0];
        assert_eq!((message.body.as_str(), message.reconsume_times), ("x", 1));
        assert_eq!(message.property("INNER_MULTI_QUEUE_OFFSET"), None, "it has no number there");
    }
    let image = broker.image();
    for broker in [broker, start_on(setup, image).await] {
        assert_eq!(broker.all("%LMQ%a", 0).await.len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_pop_of_what_only_the_device_has_holds_nobody_up() {
    let running = start(Setup::default()).await;
    running.put("Orders", 0, "", "one").await;
    let dir = running.stop().await;
    let device = Device::default();
    let running = start_on(Setup { device: device.clone(), ..Setup::default() }, dir).await;
    device.hold_reads(true);
    let peek = PeekMessage { consumer_group: "Other", topic: "Orders", queue_id: 0, max_msg_nums: 32 };
    let popping = async {
        let peeking = running.call(request::PEEK_MESSAGE, &peek, Bytes::new());
        let order = from("Orders", 60_000);
        let (popped, peeked) = tokio::join!(pop(&running, &order), peeking);
        assert_eq!(popped.bodies(), ["one"]);
        assert_eq!(messages(&peeked.body).len(), 1);
    };
    let others = async {
        until("both wait for the device", || device.reads_waiting() == 2).await;
        // On the same connection, whose task has the only thread.
        assert_eq!(running.put("Orders", 0, "", "two").await.queue_offset, 1);
        assert_eq!(device.reads_waiting(), 2);
        device.hold_reads(false);
    };
    tokio::join!(popping, others);
}
