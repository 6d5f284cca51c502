use std::sync::atomic::AtomicBool;

use store::{StoreEnv, StoreOptions};

use super::*;
use crate::state::stats::{MessageType, Stat, Stats};

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
fn a_change_is_in_memory_and_in_the_journal_and_owes_its_position_until_the_device_has_it() {
    let (topics, store, _dir) = topics();
    let first = topics.create(plain("T", 1, READ_WRITE));
    let second = topics.create(plain("T", 2, READ_WRITE));
    assert!(Arc::ptr_eq(&first.topic, &second.topic));
    assert!(first.position > 0 && first.position < second.position);
    assert!(store.journal().position() >= second.position);
    assert_eq!(rows(&topics), [("T".to_owned(), 2)]);

    let topic = second.topic;
    // What the device has up to the first change says nothing of the second.
    assert_eq!(topic.unsynced_change(|| first.position), second.position);
    assert_eq!(topic.unsynced_change(|| second.position), 0);
    assert_eq!(topic.unsynced_change(|| 0), 0, "safe stays safe");
    let third = topics.create(plain("T", 3, READ_WRITE));
    assert_eq!(topic.unsynced_change(|| second.position), third.position);
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
                let owed = first.topic.unsynced_change(|| 0);
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
        let waiting = scope.spawn(|| topic.unsynced_change(|| 0));
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

/// The files of a folder and what they hold.
fn files_of(dir: &std::path::Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        files.filter(|path| path.is_file()).map(|path| (path.clone(), std::fs::read(path).unwrap())).collect();
    files.sort();
    files
}

fn remap_to(topics: &Topics, store: &Store, queues: i32, epoch: i64) {
    let place = protocol::body::LogicQueueMappingItem {
        bname: "a".to_owned(),
        queue_id: queues - 1,
        ..protocol::body::LogicQueueMappingItem::default()
    };
    let detail = protocol::body::TopicQueueMappingDetail {
        bname: "a".to_owned(),
        epoch,
        hosted_queues: [(0, vec![place])].into(),
        topic: "T".to_owned(),
        total_queues: 1,
        ..protocol::body::TopicQueueMappingDetail::default()
    };
    topics.remap(plain("T", queues, READ_WRITE), |_| Ok(detail)).unwrap();
    let position = store.journal().position();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while store.journal().written().get() < position {
        assert!(std::time::Instant::now() < deadline, "the journal is not written");
        std::thread::yield_now();
    }
}

#[test]
fn a_crash_within_a_change_of_a_static_topic_leaves_it_and_its_mapping_as_they_were_or_as_they_became() {
    let options = |dir: &std::path::Path| StoreOptions { segment_bytes: 1 << 20, ..StoreOptions::at(dir) };
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(options(dir.path()), StoreEnv::real()).unwrap();
    let topics = Topics::load(&store, Clock::real());
    remap_to(&topics, &store, 4, 1);
    let before = files_of(&dir.path().join("journal"));
    remap_to(&topics, &store, 8, 2);
    let after = files_of(&dir.path().join("journal"));
    let changed = before.iter().zip(&after).filter(|((_, before), (_, after))| before != after);
    let [((path, old), (_, new))] = changed.collect::<Vec<_>>()[..] else { panic!("one file takes the changes") };
    let differs: Vec<usize> = (0..new.len()).filter(|at| old.get(*at) != new.get(*at)).collect();
    let (first, last) = (differs[0], differs[differs.len() - 1]);
    let mut seen = std::collections::BTreeSet::new();
    for cut in (first..=last).step_by(16).chain([last + 1]) {
        let crashed = tempfile::tempdir().unwrap();
        std::fs::create_dir(crashed.path().join("journal")).unwrap();
        for (other, bytes) in &after {
            std::fs::write(crashed.path().join("journal").join(other.file_name().unwrap()), bytes).unwrap();
        }
        let torn = [&new[..cut], old.get(cut..).unwrap_or_default()].concat();
        std::fs::write(crashed.path().join("journal").join(path.file_name().unwrap()), torn).unwrap();
        let (store, _) = Store::open(options(crashed.path()), StoreEnv::real()).unwrap();
        let topics = Topics::load(&store, Clock::real());
        let topic = topics.get("T").unwrap();
        seen.insert((topic.config().write_queue_nums, topic.mapping().map(|mapping| mapping.detail().epoch)));
        store.close().unwrap();
    }
    assert_eq!(seen, [(4, Some(1)), (8, Some(2))].into());
    store.close().unwrap();
}

#[test]
fn what_a_topic_is_sent_after_its_figures_were_forgotten_is_found_by_its_name() {
    let (topics, store, _dir) = topics();
    let topic = topics.create(plain("T", 8, READ_WRITE)).topic;
    let (clock, hand) = Clock::manual(env::TimeMs(0));
    let stats = Stats::new(clock, false);
    let figures = || {
        [(Stat::TopicPutNums, "T"), (Stat::QueuePutNums, "T@0"), (Stat::QueuePutNums, "T@7")]
            .map(|(stat, key)| stats.window(stat, key).map(|window| window.stats_day.sum))
    };
    stats.sent(&topic, 0, MessageType::Normal, 2, 20);
    stats.sent(&topic, 7, MessageType::Normal, 1, 10);
    assert_eq!(figures(), [Some(3), Some(2), Some(1)]);
    for _ in 0..26 {
        hand.advance(std::time::Duration::from_secs(3600));
        stats.sample();
    }
    assert_eq!(figures(), [None; 3], "idle for a day");
    stats.sent(&topic, 7, MessageType::Normal, 5, 50);
    assert_eq!(figures(), [Some(5), None, Some(5)]);
    stats.forget_topic("T");
    assert_eq!(figures(), [None; 3]);
    stats.sent(&topic, 0, MessageType::Normal, 1, 10);
    assert_eq!(figures(), [Some(1), Some(1), None]);
    store.close().unwrap();
}
