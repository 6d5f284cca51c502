use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use journal::TableId;
use net::{Client, ClientOptions};
use protocol::code::request;
use protocol::request::{
    CreateTopic, GetMaxOffset, OffsetReply, PullMessage, QueryConsumerOffset, UpdateConsumerOffset, ViewMessage,
};
use tempfile::TempDir;
use tokio::time::{Instant, timeout};

use crate::light::listed;
use crate::support::*;
use crate::transactions::cut_log;

/// Delay level → the next offset to deliver.
const DELAYS: TableId = TableId(3);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topics_and_messages_are_there_after_a_restart() {
    let running = start(Setup::default()).await;
    for n in 0..10 {
        running.put("Orders", 0, "", &n.to_string()).await;
    }
    let dir = running.stop().await;
    let running = start_on(Setup::default(), dir).await;
    assert_eq!(running.all("Orders", 0).await.len(), 10);
    assert_eq!(running.put("Orders", 0, "", "next").await.queue_offset, 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_is_there_after_a_crash() {
    for is_sync in [false, true] {
        let setup = Setup { is_sync, ..Setup::default() };
        let running = start(setup.clone()).await;
        running.put("Orders", 0, "", "one").await;
        running.put("Orders", 0, "", "two").await;
        let image = running.image();
        let again = start_on(setup, image).await;
        let bodies: Vec<String> =
            again.pull(&from("Orders", 0, 0)).await.messages.into_iter().map(|message| message.body).collect();
        assert_eq!(bodies, ["one", "two"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delayed_messages_come_once_though_the_broker_crashes_before_between_and_after() {
    let running = start(Setup::default()).await;
    let delay = properties(&[("DELAY", "1")]);
    for body in ["a", "b", "c"] {
        running.put("Orders", 0, &delay, body).await;
    }
    let before = running.image();
    running.wait_for("Orders", 0, 3).await;
    // The journal may not know yet that they were delivered; the log does.
    let after = running.image();

    for image in [before, after] {
        let again = start_on(Setup::default(), image).await;
        again.put("Orders", 0, &delay, "last").await;
        let mut bodies: Vec<String> =
            again.wait_for("Orders", 0, 4).await.into_iter().map(|message| message.body).collect();
        bodies.sort_unstable();
        assert_eq!(bodies, ["a", "b", "c", "last"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_the_device_does_not_give_cost_their_reader_an_answer_and_nobody_else_anything() {
    let running = start(Setup::default()).await;
    let at = running.put("Orders", 0, "", "lost").await;
    let dir = running.stop().await;
    let running = start_on(Setup::default(), dir).await;
    // A mapping of a file that was cut fails as that of a device does.
    let file = running.dir().join("commitlog").join(format!("{:020}", 0));
    std::fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(0).unwrap();
    let pulled = running.pull(&from("Orders", 0, 0)).await;
    assert_eq!((pulled.code, pulled.messages.len()), (1, 0));
    let remark = pulled.remark.unwrap();
    assert!(remark.contains(file.to_str().unwrap()) && remark.contains("at log offset 0"), "{remark}");
    let offset = i64::from_str_radix(&at.id[16..], 16).unwrap();
    let viewed = running.call(request::VIEW_MESSAGE_BY_ID, &ViewMessage { topic: None, offset }, "").await;
    assert_eq!(viewed.code, 1);
    assert!(viewed.remark.unwrap().contains(file.to_str().unwrap()));
    // Whoever asks for something else is served.
    assert_eq!(
        running
            .call(request::GET_MAX_OFFSET, &GetMaxOffset { topic: "Orders", queue_id: 0, committed: true }, "")
            .await
            .code,
        0
    );
}

async fn commit(running: &Running, commit_offset: i64) {
    commit_in(running, "Orders", 0, commit_offset).await;
}

async fn commit_in(running: &Running, topic: &str, queue_id: i32, commit_offset: i64) {
    let group = r#"{"groupName":"CG"}"#;
    assert_eq!(running.call(request::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, &(), group).await.code, 0);
    let fields = UpdateConsumerOffset { consumer_group: "CG", topic, queue_id, commit_offset };
    assert_eq!(running.call(request::UPDATE_CONSUMER_OFFSET, &fields, "").await.code, 0);
}

async fn committed(running: &Running) -> i64 {
    committed_in(running, "Orders", 0).await
}

async fn committed_in(running: &Running, topic: &str, queue_id: i32) -> i64 {
    let fields = QueryConsumerOffset { consumer_group: "CG", topic, queue_id, set_zero_if_not_found: Some(false) };
    let answer = running.call(request::QUERY_CONSUMER_OFFSET, &fields, "").await;
    assert_eq!(answer.code, 0);
    OffsetReply::decode(&answer.fields.as_fields()).unwrap().offset
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_had_come_further_than_what_a_crash_left_misses_nothing_that_comes_after() {
    let running = start(Setup::default()).await;
    running.put("Orders", 0, "", "kept").await;
    // As after a loss of power: the journal remembers as consumed what the log has lost.
    commit(&running, 3).await;
    assert_eq!(committed(&running).await, 3);
    let again = start_on(Setup::default(), running.image()).await;
    assert_eq!(committed(&again).await, 1);
    assert_eq!(again.put("Orders", 0, "", "new").await.queue_offset, 1);
    // A stop in good order loses nothing, and whoever says that a group is there may be right.
    commit(&running, 9).await;
    let again = start_on(Setup::default(), running.stop().await).await;
    assert_eq!(committed(&again).await, 9);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_was_taken_back_misses_nothing_though_another_loss_of_power_follows() {
    // The journal goes to the device once an hour, unless somebody waits for it.
    let on = |device: &Device| Setup {
        device: device.clone(),
        flush_interval: Duration::from_secs(3600),
        ..Setup::default()
    };
    let device = Device::to_lose_power();
    let running = start(on(&device)).await;
    running.put("Orders", 0, "", "kept").await;
    commit(&running, 3).await;
    assert_eq!(committed(&running).await, 3);
    let journal = running.store().journal();
    journal.mark_of(journal.position(), true).reached(journal.position()).await;
    let image = running.image();
    let device = device.moved(running.dir(), image.path());
    let again = start_on(on(&device), image).await;
    for body in ["other", "others", "more"] {
        again.put("Orders", 0, "", body).await;
    }
    // The log has these on the device. What the journal did not bring there is gone.
    let last = start_on(Setup::default(), again.image_without_power(&device)).await;
    let next = committed(&last).await;
    let found = bodies_from(&last, "Orders", 0, next).await;
    for stopped in [last, again, running] {
        stopped.stop().await;
    }
    assert_eq!(found, ["other", "others", "more"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delays_that_had_come_further_than_what_a_crash_left_pass_over_nothing_that_comes_after() {
    // The journal goes to the device once an hour, unless somebody waits for it.
    let on = |device: &Device| Setup {
        device: device.clone(),
        flush_interval: Duration::from_secs(3600),
        ..Setup::default()
    };
    let device = Device::to_lose_power();
    let running = start(on(&device)).await;
    let delay = properties(&[("DELAY", "1")]);
    running.put("Orders", 0, &delay, "kept").await;
    running.wait_for("Orders", 0, 1).await;
    // As at a slave that has lost its power: the journal remembers as delivered what the log has lost.
    let journal = running.store().journal();
    journal.put(DELAYS, &1u32.to_be_bytes(), &3u64.to_be_bytes());
    journal.mark_of(journal.position(), true).reached(journal.position()).await;
    let image = running.image();
    let device = device.moved(running.dir(), image.path());
    let again = start_on(on(&device), image).await;
    for body in ["other", "others", "more"] {
        again.put("Orders", 1, &delay, body).await;
    }
    // What the journal did not bring to the device is gone with another loss of power; the log has these.
    let last = start_on(Setup::default(), again.image_without_power(&device)).await;
    let found = last.wait_for("Orders", 1, 3).await;
    assert_eq!(found.iter().map(|message| message.body.as_str()).collect::<Vec<_>>(), ["other", "others", "more"]);
    for stopped in [last, again, running] {
        stopped.stop().await;
    }
}

/// What a pull without patience finds.
async fn bodies_from(running: &Running, topic: &str, queue_id: i32, offset: i64) -> Vec<String> {
    let found = running.pull(&from(topic, queue_id, offset)).await;
    found.messages.into_iter().map(|message| message.body).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_survived_a_loss_of_power_is_taken_back_to_what_it_has_not_seen() {
    // Nothing reaches the device by itself, so the log may end anywhere.
    let running = start(Setup { flush_interval: Duration::from_secs(3600), ..Setup::default() }).await;
    for n in 0..11 {
        running.put("Orders", 0, "", &n.to_string()).await;
    }
    let lost = running.all("Orders", 0).await[7].log_offset;
    // All of them are with a consumer that has said so, or has not yet.
    for said in [11, 4] {
        commit(&running, said).await;
        assert_eq!(committed(&running).await, said);
        let image = running.image();
        cut_log(image.path(), lost);
        let again = start_on(Setup::default(), image).await;
        let left = said.min(7);
        assert_eq!(committed(&again).await, left);
        // Others take the lost numbers, and more, before it comes back.
        for n in 0..6 {
            assert_eq!(again.put("Orders", 0, "", &format!("new {n}")).await.queue_offset, 7 + n);
        }
        commit(&again, 11).await;
        assert_eq!(committed(&again).await, left, "it was {said}");
        // Where its group has come to: what it had got below the end, and not consumed, it drops.
        for _ in 0..2 {
            let told = again.pull(&from("Orders", 0, 11)).await;
            assert_eq!((told.code, told.next, told.max, told.messages.len()), (21, left, 13, 0), "it was {said}");
        }
        // With the pull that a client makes it may commit too.
        let behind = from("Orders", 0, 11);
        let sys_flag = behind.sys_flag | protocol::sys_flag::pull::COMMIT_OFFSET;
        assert_eq!(again.pull(&PullMessage { sys_flag, commit_offset: 11, ..behind }).await.code, 21);
        assert_eq!(committed(&again).await, left);
        // It commits what it was told, and goes on there.
        commit(&again, left).await;
        let old = (left..7).map(|n| n.to_string());
        let all: Vec<String> = old.chain((0..6).map(|n| format!("new {n}"))).collect();
        assert_eq!(bodies_from(&again, "Orders", 0, left).await, all);
        commit(&again, 13).await;
        assert_eq!(committed(&again).await, 13);
        // From now on it may go where it likes.
        assert_eq!(bodies_from(&again, "Orders", 0, 11).await, ["new 4", "new 5"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_is_ahead_misses_nothing_though_another_one_of_its_group_reads_on_from_the_end() {
    let running = start(Setup { flush_interval: Duration::from_secs(3600), ..Setup::default() }).await;
    for n in 0..9 {
        running.put("Orders", 0, "", &n.to_string()).await;
    }
    let lost = running.all("Orders", 0).await[5].log_offset;
    commit(&running, 9).await;
    assert_eq!(committed(&running).await, 9);
    let image = running.image();
    cut_log(image.path(), lost);
    let again = start_on(Setup::default(), image).await;
    // The member that takes the queue asks where to go on; the one that had it is late with what it has to say.
    assert_eq!(committed(&again).await, 5);
    again.put("Orders", 0, "", "new 5").await;
    let other = Client::new(ClientOptions::default());
    let found = other.call(&again.address, request::PULL_MESSAGE, &from("Orders", 0, 5), Bytes::new(), DEADLINE).await;
    assert_eq!(Pulled::of(found.unwrap()).next, 6);
    commit(&again, 8).await;
    assert_eq!(committed(&again).await, 5);
    // It has the queue again.
    for n in 6..9 {
        again.put("Orders", 0, "", &format!("new {n}")).await;
    }
    let told = again.pull(&from("Orders", 0, 9)).await;
    assert_eq!((told.code, told.next), (21, 5));
    assert_eq!(bodies_from(&again, "Orders", 0, 5).await, ["new 5", "new 6", "new 7", "new 8"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_whose_offsets_a_loss_of_power_took_misses_nothing_and_one_that_begins_is_left_alone() {
    let running = start(Setup { flush_interval: Duration::from_secs(3600), ..Setup::default() }).await;
    for n in 0..9 {
        running.put("Orders", 0, "", &n.to_string()).await;
    }
    let lost = running.all("Orders", 0).await[5].log_offset;
    let image = running.image();
    cut_log(image.path(), lost);
    let again = start_on(Setup::default(), image).await;
    for n in 5..12 {
        again.put("Orders", 0, "", &format!("new {n}")).await;
    }
    // It had come to 9, and the journal with its commits is gone.
    let told = again.pull(&from("Orders", 0, 9)).await;
    assert_eq!((told.code, told.next), (21, 0));
    let fields = QueryConsumerOffset {
        consumer_group: "Young",
        topic: "Orders",
        queue_id: 0,
        set_zero_if_not_found: Some(false),
    };
    assert_eq!(again.call(request::QUERY_CONSUMER_OFFSET, &fields, "").await.code, 22);
    let last = again.pull(&PullMessage { consumer_group: "Young", ..from("Orders", 0, 11) }).await;
    assert_eq!((last.code, last.next), (0, 12));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_lost_nothing_notices_nothing_of_a_crash() {
    let running = start(Setup::default()).await;
    for n in 0..5 {
        running.put("Orders", 0, "", &n.to_string()).await;
    }
    commit(&running, 5).await;
    assert_eq!(committed(&running).await, 5);
    let again = start_on(Setup::default(), running.image()).await;
    // The pull that waits at the end, as before the crash.
    let pull = from("Orders", 0, 5);
    let (found, sent) = tokio::join!(async { again.pull(&waiting(pull, 20_000)).await }, async {
        again.until_parked(1).await;
        again.put("Orders", 0, "", "new").await
    });
    assert_eq!((found.code, found.next, found.messages.len(), sent.queue_offset), (0, 6, 1, 5));
    commit(&again, 6).await;
    assert_eq!(committed(&again).await, 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_of_light_queues_and_of_queues_above_a_topics_number_are_taken_back_too() {
    let setup = Setup { light_queues: Some("100"), ..Setup::default() };
    let running = start(Setup { flush_interval: Duration::from_secs(3600), ..setup.clone() }).await;
    let queues = ["Orders", "%LMQ%device"];
    for n in 0..5 {
        running.put("Orders", 3, &listed("%LMQ%device"), &n.to_string()).await;
    }
    let lost = running.all("Orders", 3).await[2].log_offset;
    for (topic, queue_id) in queues.into_iter().zip([3, 0]) {
        commit_in(&running, topic, queue_id, 5).await;
    }
    let smaller = CreateTopic {
        topic: "Orders",
        default_topic: None,
        read_queue_nums: 1,
        write_queue_nums: 1,
        perm: 6,
        topic_filter_type: "SINGLE_TAG",
        topic_sys_flag: None,
        order: false,
        attributes: None,
        force: false,
    };
    assert_eq!(running.call(request::UPDATE_AND_CREATE_TOPIC, &smaller, "").await.code, 0);
    for (topic, queue_id) in queues.into_iter().zip([3, 0]) {
        assert_eq!(committed_in(&running, topic, queue_id).await, 5);
    }
    let image = running.image();
    cut_log(image.path(), lost);
    let again = start_on(setup, image).await;
    for (topic, queue_id) in queues.into_iter().zip([3, 0]) {
        assert_eq!(committed_in(&again, topic, queue_id).await, 2, "{topic}");
    }
    for n in 0..4 {
        again.put("Orders", 0, &listed("%LMQ%device"), &format!("new {n}")).await;
    }
    let told = again.pull(&from("%LMQ%device", 0, 5)).await;
    assert_eq!((told.code, told.next), (21, 2));
    assert_eq!(bodies_from(&again, "%LMQ%device", 0, 2).await, ["new 0", "new 1", "new 2", "new 3"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_offset_that_somebody_has_seen_survives_a_crash_right_after() {
    let running = start(Setup::default()).await;
    for body in 0..7 {
        running.put("Orders", 0, "", &body.to_string()).await;
    }
    for offset in [1, 7] {
        commit(&running, offset).await;
        assert_eq!(committed(&running).await, offset);
        let again = start_on(Setup::default(), running.image()).await;
        assert_eq!(committed(&again).await, offset);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_waits_for_no_timer_on_its_way_to_the_journal() {
    let running = start(Setup::default()).await;
    running.put("Orders", 0, "", "one").await;
    let journal = running.store().journal();
    let deadline = Instant::now() + DEADLINE;
    let mut offset = 1;
    // The group is made with its first commit, which is a change of its own: let both be written before we look.
    commit(&running, offset).await;
    assert_eq!(committed(&running).await, offset);
    let mut fast_in_a_row = 0;
    // Commits gather for some milliseconds. A busy machine may be late any number of times, and an export of JSON files is a change too; but
    // with a timer as Apache's, of 5 s, five commits running would not all be fast.
    while fast_in_a_row < 5 {
        let before = journal.position();
        offset += 1;
        commit(&running, offset).await;
        let began = Instant::now();
        timeout(DEADLINE, journal.written().reached(before + 1)).await.unwrap();
        fast_in_a_row = if began.elapsed() < Duration::from_millis(500) { fast_in_a_row + 1 } else { 0 };
        assert!(Instant::now() < deadline, "commits do not reach the journal within half a second");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_a_stopped_broker_stays_and_its_store_opens_again_in_place() {
    let running = start(Setup::default()).await;
    running.put("Orders", 0, "", "one").await;
    let (store, dir) = running.end().await;
    let deadline = Instant::now() + DEADLINE;
    while store.strong_count() > 0 {
        assert!(Instant::now() < deadline, "{} hold the store", store.strong_count());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let again = start_on(Setup::default(), Arc::clone(&dir)).await;
    assert_eq!(again.all("Orders", 0).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_own_file_stays_our_own_however_often_replacing_it_fails() {
    let dir = start(Setup::default()).await.stop().await;
    // Nobody can write a file where a folder is.
    std::fs::create_dir(dir.path().join("config/topics.json.tmp")).unwrap();
    let mut dir = dir;
    for n in 0..7 {
        let running = start_on(Setup::default(), dir).await;
        running.put(&format!("Orders{n}"), 0, "", "x").await;
        dir = running.stop().await;
    }
    let running = start_on(Setup::default(), dir).await;
    for n in 0..7 {
        assert_eq!(running.all(&format!("Orders{n}"), 0).await.len(), 1, "Orders{n}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_loss_of_power_leaves_of_a_file_that_was_being_replaced_the_journal_counts() {
    let with_topic = async |topic: &str, dir| {
        let running = start_on(Setup::default(), dir).await;
        running.put(topic, 0, "", "x").await;
        running.stop().await
    };
    let text_in = |dir: &TempDir| std::fs::read(dir.path().join("config/topics.json")).unwrap();
    let dir = with_topic("Older", Arc::new(tempfile::tempdir().unwrap())).await;
    let older = text_in(&dir);
    let dir = with_topic("Old", dir).await;
    let old = text_in(&dir);
    // Nobody can write a file where a folder is: the journal has heard of the next file, and of one more, and the old one is in its place.
    let hindrance = "config/topics.json.tmp";
    std::fs::create_dir(dir.path().join(hindrance)).unwrap();
    let dir = with_topic("New", dir).await;
    let new = {
        let image = copy_of(dir.path());
        std::fs::remove_dir(image.path().join(hindrance)).unwrap();
        let image = start_on(Setup::default(), image).await.stop().await;
        text_in(&image)
    };
    let dir = with_topic("Newest", dir).await;
    assert_eq!(text_in(&dir), old);
    std::fs::remove_dir(dir.path().join(hindrance)).unwrap();

    // The two renames reach the device in any order, the bytes of the new file before both.
    let in_place = [(Some(&old), &older), (None, &old), (Some(&new), &older), (Some(&new), &old)];
    let beside = [None, Some(0), Some(new.len() / 2), Some(new.len())];
    for (main, backup) in in_place {
        for written in beside {
            let image = copy_of(dir.path());
            let place = |name: &str, bytes: Option<&[u8]>| {
                let path = image.path().join("config").join(name);
                match bytes {
                    Some(bytes) => std::fs::write(path, bytes).unwrap(),
                    None => std::fs::remove_file(path).unwrap_or(()),
                }
            };
            place("topics.json", main.map(Vec::as_slice));
            place("topics.json.bak", Some(backup));
            place("topics.json.tmp", written.map(|bytes| &new[..bytes]));
            let running = start_on(Setup::default(), image).await;
            for topic in ["Older", "Old", "New", "Newest"] {
                let is_new = main.map(|main| *main == new);
                assert_eq!(
                    running.all(topic, 0).await.len(),
                    1,
                    "{topic}; new in place: {is_new:?}, beside it {written:?}"
                );
            }
            let dir = running.stop().await;
            let text = String::from_utf8(text_in(&dir)).unwrap();
            assert!(text.contains("\"Newest\""), "the stop after that writes the file: {text}");
        }
    }
}
