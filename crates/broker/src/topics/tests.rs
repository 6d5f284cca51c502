use std::sync::atomic::AtomicBool;

use store::{StoreEnv, StoreOptions};

use super::*;

fn topics() -> (Topics, Arc<Store>, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(StoreOptions::at(dir.path()), StoreEnv::real()).unwrap();
    (Topics::load(&store, Clock::real()), store, dir)
}

fn rows(topics: &Topics) -> Vec<(String, i32)> {
    let mut rows = Vec::new();
    topics.for_each(&mut |name, value| {
        let config: TopicConfig = serde_json::from_slice(value).unwrap();
        rows.push((String::from_utf8(name.to_vec()).unwrap(), config.write_queue_nums));
    });
    rows
}

#[test]
fn a_change_is_in_memory_and_in_the_journal_and_owes_its_position_until_that_is_written() {
    let (topics, store, _dir) = topics();
    let first = topics.create(plain("T", 1, READ_WRITE));
    let second = topics.create(plain("T", 2, READ_WRITE));
    assert!(Arc::ptr_eq(&first.topic, &second.topic));
    assert!(first.position > 0 && first.position < second.position);
    assert!(store.journal().position() >= second.position);
    assert_eq!(rows(&topics), [("T".to_owned(), 2)]);

    let topic = second.topic;
    // What is written up to the first change says nothing of the second.
    assert_eq!(topic.unwritten_change(|| first.position), second.position);
    assert_eq!(topic.unwritten_change(|| second.position), 0);
    assert_eq!(topic.unwritten_change(|| 0), 0, "written stays written");
    let third = topics.create(plain("T", 3, READ_WRITE));
    assert_eq!(topic.unwritten_change(|| second.position), third.position);
    store.close().unwrap();
}

#[test]
fn whoever_sees_a_change_waits_for_it_and_not_for_the_one_before() {
    const CHANGES: i32 = 2_000;
    let (topics, store, _dir) = topics();
    let first = topics.create(plain("T", 1, READ_WRITE));
    let mut position_of = vec![0, first.position];
    let is_done = AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut seen = Vec::new();
            while !is_done.load(Ordering::Acquire) {
                let queues = first.topic.config().write_queue_nums;
                let owed = first.topic.unwritten_change(|| 0);
                if seen.last().is_none_or(|(last, _)| *last != queues) {
                    seen.push((queues, owed));
                }
            }
            seen
        });
        for queues in 2..=CHANGES {
            position_of.push(topics.create(plain("T", queues, READ_WRITE)).position);
        }
        is_done.store(true, Ordering::Release);
        reader.join().unwrap()
    });
    for (queues, owed) in seen {
        let position = position_of[queues as usize];
        assert!(owed >= position, "{queues} queues were seen before {position} was owed: {owed}");
    }
    store.close().unwrap();
}

#[test]
fn whoever_comes_while_a_change_is_being_put_gets_its_position() {
    let (topics, store, _dir) = topics();
    let topic = topics.create(plain("T", 1, READ_WRITE)).topic;
    let putting = topic.putting.lock();
    topic.changed_at.store(PUTTING, Ordering::Release);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| topic.unwritten_change(|| 0));
        // Whether it has begun to wait or not, it must not be told anything but this.
        topic.changed_at.store(42, Ordering::Release);
        drop(putting);
        assert_eq!(waiting.join().unwrap(), 42);
    });
    store.close().unwrap();
}

#[test]
fn a_broker_that_is_full_of_topics_refuses_one_more_and_keeps_those_it_has() {
    let (topics, store, _dir) = topics();
    let topics = Topics { max: 2, ..topics };
    topics.create_missing("A", || plain("A", 1, READ_WRITE));
    assert!(topics.check_room().is_ok());
    topics.create_missing("B", || plain("B", 1, READ_WRITE));
    assert!(topics.check_room().unwrap_err().remark.contains("the limit is 2"));
    assert!(topics.get("A").is_some());
    store.close().unwrap();
}
