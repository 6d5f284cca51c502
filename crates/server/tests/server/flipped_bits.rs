//! A bit of a message turns over on the device: the message is named and nobody gets it; all others are there.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::asking::Asking;
use crate::support::{PATIENCE, Running, gantry};
use bytes::Bytes;
use protocol::code::request;
use protocol::record;
use protocol::request::{EndTransaction, PopMessage, SendBack, ViewMessage};

const TOPIC: &str = "orders";
const DAMAGED: u64 = 23;

fn flip(file: &Path, words: &str) {
    let bytes = std::fs::read(file).unwrap();
    let at = bytes.windows(words.len()).position(|window| window == words.as_bytes()).unwrap();
    let file = OpenOptions::new().write(true).open(file).unwrap();
    file.write_all_at(&[bytes[at] ^ 1], at as u64).unwrap();
}

/// Leaves no record where the one with these words begins.
fn flip_head(file: &Path, words: &str) {
    let bytes = std::fs::read(file).unwrap();
    let body = bytes.windows(words.len()).position(|window| window == words.as_bytes()).unwrap();
    let magic = record::MAGIC_V1.to_be_bytes();
    let head = bytes[..body].windows(magic.len()).rposition(|window| window == magic).unwrap();
    let file = OpenOptions::new().write(true).open(file).unwrap();
    file.write_all_at(&[magic[1] ^ 1], head as u64 + 1).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_message_is_named_and_nobody_gets_it_and_all_others_are_there() {
    let data = tempfile::tempdir().unwrap();
    let running = Running::server_with(data.path(), &["--set", "mappedFileSizeCommitLog=4194304"]);
    let asking = Asking::of(&running);
    let mut places = Vec::new();
    for number in 0..50 {
        let sent = asking.send(TOPIC, 0, "", &format!("order number {number}.")).await.unwrap();
        assert_eq!(sent.code, 0, "{:?}", sent.remark);
        places.push(protocol::message_id::parse_offset_message_id(sent.fields.get("msgId").unwrap()).unwrap().1);
    }
    assert_eq!(running.end("-TERM").0, Some(0));
    let log = data.path().join("store/commitlog/00000000000000000000");
    flip(&log, &format!("order number {DAMAGED}."));

    let running = Running::server(data.path());
    let asking = Asking::of(&running);
    let numbers: Vec<u64> = asking.all(TOPIC, 0).await.into_iter().map(|(offset, _)| offset).collect();
    let others: Vec<u64> = (0..50).filter(|number| *number != DAMAGED).collect();
    assert_eq!(numbers, others);
    let (code, next, _) = asking.pull(TOPIC, 0, DAMAGED).await.unwrap();
    assert_eq!((code, next), (0, 50), "a reader that comes to it goes on behind it");
    let at = places[DAMAGED as usize];
    let line = running.logged("a message is damaged and passed over").await;
    for part in ["topic=\"orders\"", "queue_id=0", "queue_offset=23", &format!("log_offset={at}"), "body CRC"] {
        assert!(line.contains(part), "{part}: {line}");
    }

    // Not by its place in the log either, nor by way of a retry, which would store it anew with a sum that is right.
    let view = ViewMessage { offset: at as i64, topic: Some(TOPIC) };
    let call = asking.client.call(&asking.broker, request::VIEW_MESSAGE_BY_ID, &view, Bytes::new(), PATIENCE);
    assert_ne!(call.await.unwrap().code, 0);
    let back = SendBack {
        offset: at as i64,
        group: "CG",
        delay_level: 0,
        origin_msg_id: None,
        origin_topic: None,
        unit_mode: false,
        max_reconsume_times: None,
        broker_name: None,
    };
    let call = asking.client.call(&asking.broker, request::CONSUMER_SEND_MSG_BACK, &back, Bytes::new(), PATIENCE);
    let answer = call.await.unwrap();
    assert!(
        answer.remark.as_deref().unwrap_or_default().contains("is damaged: its body is not what was stored"),
        "{answer:?}"
    );
    // The queue goes on as if nothing were wrong.
    assert_eq!(asking.send(TOPIC, 0, "", "next").await.unwrap().fields.get("queueOffset"), Some("50"));
    assert_eq!(running.end("-TERM").0, Some(0));

    let store = data.path().join("store");
    let verify = gantry(&["store", "verify", "--store", store.to_str().unwrap()]).output().unwrap();
    let said = String::from_utf8(verify.stdout).unwrap();
    assert_eq!(verify.status.code(), Some(1), "{said}");
    assert!(said.contains("message 23 of orders/0"), "{said}");

    // Who would rather have it than not says so.
    let running = Running::server_with(data.path(), &["--set", "checkCRCOnRead=false"]);
    let found = Asking::of(&running);
    let pulled = found.client.call(&found.broker, request::VIEW_MESSAGE_BY_ID, &view, Bytes::new(), PATIENCE);
    assert_eq!(pulled.await.unwrap().code, 0);
    assert_eq!(running.end("-TERM").0, Some(0));
}

/// Bodies of queue 0 of a topic, once there are so many.
async fn bodies(asking: &Asking, topic: &str, count: usize) -> Vec<String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let bodies = asking.bodies(topic, 0).await;
        if bodies.len() >= count {
            return bodies;
        }
        assert!(Instant::now() < deadline, "{topic} has {bodies:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_message_that_waits_for_its_time_is_named_once_and_holds_up_none_behind_it() {
    let data = tempfile::tempdir().unwrap();
    let settings = ["--set", "mappedFileSizeCommitLog=4194304", "--set", "messageDelayLevel=20s"];
    let running = Running::server_with(data.path(), &settings);
    let asking = Asking::of(&running);
    let due = env::Clock::real().now().0 + 20_000;
    for number in 0..6 {
        for (topic, time) in [
            ("delayed", "DELAY\u{1}1\u{2}".to_owned()),
            ("timed", format!("TIMER_DELIVER_MS\u{1}{}\u{2}", due + number)),
        ] {
            let sent = asking.send(topic, 0, &time, &format!("{topic} number {number}.")).await.unwrap();
            assert_eq!(sent.code, 0, "{:?}", sent.remark);
        }
    }
    assert_eq!(running.end("-TERM").0, Some(0));
    let log = data.path().join("store/commitlog/00000000000000000000");
    for body in ["delayed number 0.", "delayed number 3.", "timed number 1."] {
        flip(&log, body);
    }
    flip_head(&log, "delayed number 4.");

    let running = Running::server_with(data.path(), &settings);
    let asking = Asking::of(&running);
    for (topic, others) in [("delayed", &[1, 2, 5][..]), ("timed", &[0, 2, 3, 4, 5])] {
        let others: Vec<String> = others.iter().map(|number| format!("{topic} number {number}.")).collect();
        assert_eq!(bodies(&asking, topic, others.len()).await, others);
        // What comes now comes behind them.
        asking.send(topic, 0, "", "next").await.unwrap();
        assert_eq!(bodies(&asking, topic, others.len() + 1).await.last().unwrap(), "next");
    }
    let (code, said) = running.end("-TERM");
    assert_eq!(code, Some(0), "{said}");
    let lines = |words: &[&str]| said.lines().filter(|line| words.iter().all(|word| line.contains(word))).count();
    let waiting = [("delayed", "SCHEDULE_TOPIC_XXXX", &[0, 3][..]), ("timed", "rmq_sys_wheel_timer", &[1])];
    for (topic, waits_in, damaged) in waiting {
        let [topic, waits_in] = [format!("real_topic=\"{topic}\""), format!(" topic=\"{waits_in}\"")];
        for number in damaged {
            let offset = format!("queue_offset={number} ");
            let words = ["a message is damaged", &topic, &waits_in, &offset, "log_offset=", "body CRC"];
            assert_eq!(lines(&words), 1, "{words:?}: {said}");
        }
    }
    assert_eq!(lines(&["a message is damaged", "magic code"]), 1, "{said}");
    assert_eq!(lines(&["delayed message is damaged; it is not delivered, and its level goes on"]), 3, "{said}");
    assert_eq!(lines(&["timer message is damaged; it is not delivered, and those behind it are"]), 1, "{said}");
    assert_eq!(lines(&["trying again"]), 0, "{said}");

    let store = data.path().join("store");
    let verify = gantry(&["store", "verify", "--store", store.to_str().unwrap()]).output().unwrap();
    let said = String::from_utf8(verify.stdout).unwrap();
    assert_eq!(verify.status.code(), Some(1), "{said}");
    for (_, waits_in, damaged) in waiting {
        for number in damaged {
            assert!(said.contains(&format!("message {number} of {waits_in}/0")), "{said}");
        }
    }
}

/// Turns over a bit in the body of the first record of a topic whose body has so many bytes: it stands before the topic and its length.
fn flip_body_of_topic(file: &Path, topic: &str, body_bytes: usize) {
    let bytes = std::fs::read(file).unwrap();
    let at = bytes.windows(topic.len()).position(|window| window == topic.as_bytes()).unwrap() - 1 - body_bytes;
    let file = OpenOptions::new().write(true).open(file).unwrap();
    file.write_all_at(&[bytes[at] ^ 1], at as u64).unwrap();
}

/// Commits the half message with this number in its queue, and says how that went.
async fn commit(asking: &Asking, half_queue_offset: i64, at: u64) -> net::Response {
    const COMMIT: i32 = 8;
    let end = EndTransaction {
        topic: None,
        producer_group: "PG",
        tran_state_table_offset: half_queue_offset,
        commit_log_offset: at as i64,
        commit_or_rollback: COMMIT,
        from_transaction_check: false,
        msg_id: "x",
        transaction_id: None,
    };
    let call = asking.client.call(&asking.broker, request::END_TRANSACTION, &end, Bytes::new(), PATIENCE);
    call.await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_half_message_is_never_committed_and_whose_end_is_damaged_is_open_once_more() {
    let data = tempfile::tempdir().unwrap();
    let settings = ["--set", "mappedFileSizeCommitLog=4194304"];
    let running = Running::server_with(data.path(), &settings);
    let asking = Asking::of(&running);
    assert_eq!(asking.create("paid", 1, "").await.code, 0);
    let mut places = Vec::new();
    for number in 0..3 {
        let marked = format!("TRAN_MSG\u{1}true\u{2}PGROUP\u{1}PG\u{2}UNIQ_KEY\u{1}{number}\u{2}");
        let sent = asking.send("paid", 0, &marked, &format!("half number {number}.")).await.unwrap();
        assert_eq!(sent.code, 0, "{:?}", sent.remark);
        places.push(protocol::message_id::parse_offset_message_id(sent.fields.get("msgId").unwrap()).unwrap().1);
    }
    assert_eq!(commit(&asking, 2, places[2]).await.code, 0);
    assert_eq!(asking.bodies("paid", 0).await, ["half number 2."]);
    assert_eq!(running.end("-TERM").0, Some(0));
    let log = data.path().join("store/commitlog/00000000000000000000");
    flip(&log, "half number 0.");
    // "2": which half message has ended.
    flip_body_of_topic(&log, "RMQ_SYS_TRANS_OP_HALF_TOPIC", 1);

    let running = Running::server_with(data.path(), &settings);
    let asking = Asking::of(&running);
    // Nobody is asked about the damaged one; the end of the last is not known any more.
    assert_eq!(asking.figure("openHalfMessages").await, 2);
    running.logged("a message is damaged and not given out").await;
    let line = running.logged(&format!("log_offset={} ", places[0])).await;
    for part in ["a message is damaged", "RMQ_SYS_TRANS", "body CRC"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    running.logged("a record of a transaction is damaged; what it says is not known").await;
    let answer = commit(&asking, 0, places[0]).await;
    assert_eq!(asking.bodies("paid", 0).await, ["half number 2."], "{answer:?}");
    assert_eq!(commit(&asking, 1, places[1]).await.code, 0);
    assert_eq!(asking.bodies("paid", 0).await, ["half number 2.", "half number 1."]);
    // Its producer says once more that it is to be.
    assert_eq!(commit(&asking, 2, places[2]).await.code, 0);
    assert_eq!(asking.bodies("paid", 0).await, ["half number 2.", "half number 1.", "half number 2."]);
    assert_eq!(asking.figure("openHalfMessages").await, 0);
    let (code, said) = running.end("-TERM");
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("trying again"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_message_on_lease_does_not_come_again_and_the_others_of_its_lease_do() {
    let data = tempfile::tempdir().unwrap();
    let settings = ["--set", "mappedFileSizeCommitLog=4194304"];
    let running = Running::server_with(data.path(), &settings);
    let asking = Asking::of(&running);
    assert_eq!(asking.create("popped", 1, "").await.code, 0);
    for number in 0..4 {
        assert_eq!(asking.send("popped", 0, "", &format!("popped number {number}.")).await.unwrap().code, 0);
    }
    let pop = PopMessage {
        consumer_group: "CG",
        topic: "popped",
        queue_id: 0,
        max_msg_nums: 32,
        // Long enough for a stop and what is done to the file.
        invisible_time: 20_000,
        poll_time: 0,
        born_time: 0,
        init_mode: 0,
        exp_type: None,
        exp: None,
        order: false,
        attempt_id: None,
    };
    let call = asking.client.call(&asking.broker, request::POP_MESSAGE, &pop, Bytes::new(), PATIENCE);
    let popped = call.await.unwrap();
    assert_eq!(popped.code, 0, "{:?}", popped.remark);
    assert_eq!(asking.figure("popLeases").await, 1);
    assert_eq!(running.end("-TERM").0, Some(0));
    flip(&data.path().join("store/commitlog/00000000000000000000"), "popped number 1.");

    let running = Running::server_with(data.path(), &settings);
    let asking = Asking::of(&running);
    let others = ["popped number 0.", "popped number 2.", "popped number 3."];
    assert_eq!(bodies(&asking, "%RETRY%CG_popped", others.len()).await, others);
    running.logged("messages on lease are damaged and do not come again").await;
    let deadline = Instant::now() + PATIENCE;
    while asking.figure("popLeases").await > 0 {
        assert!(Instant::now() < deadline, "the lease stays");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(bodies(&asking, "%RETRY%CG_popped", others.len()).await, others, "nothing more comes");
    let (code, said) = running.end("-TERM");
    assert_eq!(code, Some(0), "{said}");
    let named = said.lines().filter(|line| line.contains("a message is damaged") && line.contains("topic=\"popped\""));
    assert_eq!(named.count(), 1, "{said}");
}
