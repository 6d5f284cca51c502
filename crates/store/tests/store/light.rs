//! Light queues: a record stands in them with the numbers that it carries, also after a crash, a clean stop and a deletion.

use std::collections::BTreeMap;
use std::sync::Arc;

use env::{Random, TimeMs};
use protocol::light;
use protocol::properties::{PropertiesWriter, name};
use protocol::record::{self, Scanned};
use store::{Landed, RecordBatch, Store, StoreError, StoreOptions, TagsCode};

use crate::support::*;

fn light_options(root: &std::path::Path) -> StoreOptions {
    StoreOptions { light_queues_max: Some(1000), ..options(root) }
}

fn open_light(root: &std::path::Path) -> (Arc<Store>, store::Recovered) {
    try_open(light_options(root)).unwrap()
}

fn push_light(store: &Store, batch: &mut RecordBatch, names: &[String], body: &[u8]) {
    let mut properties = PropertiesWriter::new().put(name::INNER_MULTI_DISPATCH, &names.join(",")).as_bytes().to_vec();
    light::put_room(&mut properties, names.len());
    let mut queues: Vec<_> = names.iter().map(|name| store.queue(name, 0).unwrap()).collect();
    let queue = store.queue(TOPIC, 0).unwrap();
    batch.push_light(&queue, TagsCode::Code(0), &mut queues, properties.len(), |out| {
        encode(TOPIC, 0, body, &properties, out);
    });
}

fn append_light(store: &Store, names: &[String], body: &[u8]) -> Landed {
    let mut batch = RecordBatch::new();
    push_light(store, &mut batch, names, body);
    append_batch(store, &mut batch, TimeMs(1_700_000_000_000)).unwrap();
    batch.landed()[0]
}

/// What a light queue holds: bodies, in the order of its numbers. Each record must carry the number that it is found under.
fn read_light(store: &Store, queue_name: &str) -> Vec<(u64, Vec<u8>)> {
    let Some(queue) = store.existing_queue(queue_name, 0) else { return Vec::new() };
    let mut found = Vec::new();
    for offset in queue.min_offset()..queue.max_offset() {
        let (_, slices) = read(store, queue_name, 0, offset as i64, &limits(1));
        let Ok(Scanned::Record(view)) = record::scan(slices[0].as_ref(), true) else { panic!("no record") };
        assert!(light::places(&view).any(|place| place == (queue_name, offset)), "{queue_name} {offset}: {view:?}");
        found.push((offset, view.body().to_vec()));
    }
    found
}

fn name_of(number: u64) -> String {
    format!("%LMQ%q{number}")
}

/// What ought to be where: by light queue, the bodies in order.
#[derive(Clone, Default)]
struct Model(BTreeMap<String, Vec<Vec<u8>>>, Vec<Vec<u8>>);

impl Model {
    fn put(&mut self, names: &[String], body: &[u8]) {
        self.1.push(body.to_vec());
        for name in names {
            self.0.entry(name.clone()).or_default().push(body.to_vec());
        }
    }

    #[track_caller]
    fn check(&self, store: &Store) {
        assert_eq!(store.existing_queue(TOPIC, 0).map_or(0, |queue| queue.max_offset()), self.1.len() as u64);
        for (name, bodies) in &self.0 {
            let expected: Vec<_> = (0..).zip(bodies.iter().cloned()).collect();
            assert!(read_light(store, name) == expected, "{name}: {:?}", store.existing_queue(name, 0));
        }
    }
}

/// Appends messages of random length in random light queues, some of them in groups, some without any.
fn run(store: &Store, random: &Random, model: &mut Model, messages: u64) {
    let mut batch = RecordBatch::new();
    for number in 0..messages {
        let is_group = random.below(4) == 0;
        batch.clear();
        if is_group {
            batch.begin_group();
        }
        for place in 0..if is_group { 3 } else { 1 } {
            let body = body(number * 3 + place);
            let mut names: Vec<String> = (0..random.below(4)).map(|_| name_of(u64::from(random.below(6)))).collect();
            names.sort();
            names.dedup();
            if names.is_empty() {
                push(store, &mut batch, TOPIC, 0, &body);
            } else {
                push_light(store, &mut batch, &names, &body);
            }
            model.put(&names, &body);
        }
        batch.end_group();
        append_batch(store, &mut batch, TimeMs(1_700_000_000_000)).unwrap();
    }
}

#[test]
fn a_message_stands_in_its_own_queue_and_in_each_of_its_light_queues() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open_light(dir.path());
    let mut model = Model::default();
    run(&store, &Random::seeded(1), &mut model, 300);
    model.check(&store);
    assert_eq!(store.light_queues(), 6);
    // Apache keeps them where it keeps other queues.
    store.close().unwrap();
    assert!(queue_file(dir.path(), "%LMQ%q0", 0, 0).exists());
}

#[test]
fn after_a_crash_at_any_time_light_queues_are_what_the_log_says() {
    for seed in 0..12 {
        let random = Random::seeded(seed);
        let first = tempfile::tempdir().unwrap();
        let mut model = Model::default();
        let (mut store, _) = open_light(first.path());
        let mut images = vec![first];
        for turn in 0..4 {
            run(&store, &random, &mut model, 60);
            let image = image(images.last().unwrap().path());
            match turn {
                // Everything is built anew.
                1 => std::fs::remove_dir_all(image.path().join("consumequeue")).unwrap(),
                // One light queue is.
                2 => {
                    let _ = std::fs::remove_dir_all(image.path().join("consumequeue").join(name_of(2)));
                    std::fs::remove_file(image.path().join("checkpoint")).unwrap();
                }
                _ => {}
            }
            let (next, found) = open_light(image.path());
            assert!(found.was_abnormal);
            assert_eq!(damage(&found), Vec::<String>::new(), "seed {seed}, turn {turn}");
            model.check(&next);
            store = next;
            images.push(image);
        }
        store.close().unwrap();
        drop(store);
        let (store, found) = open_light(images.last().unwrap().path());
        assert_eq!((found.was_abnormal, found.records_scanned), (false, 0));
        model.check(&store);
    }
}

#[test]
fn a_torn_record_leaves_no_unit_in_a_light_queue() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open_light(dir.path());
    append_light(&store, &[name_of(0)], b"whole");
    let last = append_light(&store, &[name_of(0), name_of(1)], &[7; 3000]);
    let image = image(dir.path());
    overwrite(&segment_path(image.path(), 0), last.at.0 + 1500, &[0; 2000]);
    let (store, _) = open_light(image.path());
    assert_eq!(store.end(), last.at);
    assert_eq!(read_light(&store, "%LMQ%q0"), [(0, b"whole".to_vec())]);
    assert_eq!(read_light(&store, "%LMQ%q1"), []);
    append_light(&store, &[name_of(0), name_of(1)], b"next");
    assert_eq!(read_light(&store, "%LMQ%q0").len(), 2);
    assert_eq!(read_light(&store, "%LMQ%q1"), [(0, b"next".to_vec())]);
}

#[test]
fn a_light_queue_that_was_deleted_does_not_come_back_with_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open_light(dir.path());
    append_light(&store, &[name_of(0), name_of(1)], b"old");
    store.delete_topic(&name_of(0));
    assert_eq!(store.light_queues(), 1);
    append_light(&store, &[name_of(0), name_of(1)], b"new");
    store.journal().written().wait_until(store.journal().position(), deadline());
    let image = image(dir.path());
    let (store, _) = open_light(image.path());
    assert_eq!(read_light(&store, "%LMQ%q0"), [(0, b"new".to_vec())]);
    assert_eq!(read_light(&store, "%LMQ%q1"), [(0, b"old".to_vec()), (1, b"new".to_vec())]);
}

#[test]
fn light_queues_follow_the_log_when_its_old_files_go() {
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions {
        retention: store::Retention { file_reserved: std::time::Duration::ZERO, ..options(dir.path()).retention },
        ..light_options(dir.path())
    };
    let (store, _) = try_open(options).unwrap();
    for number in 0..600 {
        append_light(&store, &[name_of(number % 3), name_of(3)], &body(number));
    }
    let last_file = store.end().0 / store.options().segment_bytes * store.options().segment_bytes;
    store.delete_expired();
    eventually("all files but the last are gone", || store.min_offset().0 == last_file);
    eventually("light queues are trimmed", || {
        (0..4).all(|number| {
            let queue = store.existing_queue(&name_of(number), 0).unwrap();
            let first = queue.unit_at(queue.min_offset()).unwrap();
            queue.min_offset() > 0 && first.is_some_and(|unit| unit.at.0 >= last_file)
        })
    });
    for number in 0..4 {
        let found = read_light(&store, &name_of(number));
        let all = if number == 3 { 600 } else { 200 };
        assert!(!found.is_empty() && (found.len() as u64) < all, "{number}: {}", found.len());
        assert_eq!(found.last().unwrap().0 + 1, all);
    }
}

#[test]
fn one_light_queue_too_many_is_refused_and_what_was_only_asked_for_makes_room() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = try_open(StoreOptions { light_queues_max: Some(3), ..options(dir.path()) }).unwrap();
    append_light(&store, &[name_of(0), name_of(1)], b"x");
    let held = store.queue(&name_of(2), 0).unwrap();
    let refused = store.queue(&name_of(3), 0).unwrap_err();
    assert!(matches!(refused, StoreError::TooManyLightQueues { count: 3, limit: 3, .. }));
    assert!(refused.to_string().starts_with("[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]lmq consume queue num exceeded"));
    assert!(store.queue(&name_of(0), 0).is_ok() && store.queue("orders", 0).is_ok());
    drop(held);
    eventually("room", || store.queue(&name_of(3), 0).is_ok());
    assert!(store.existing_queue(&name_of(2), 0).is_none() && store.existing_queue(&name_of(1), 0).is_some());
    store.limit_light_queues(4);
    assert!(store.queue(&name_of(4), 0).is_ok());
    // They are loaded, however many there are.
    store.close().unwrap();
    drop(store);
    let (store, _) = try_open(StoreOptions { light_queues_max: Some(1), ..options(dir.path()) }).unwrap();
    assert_eq!(store.light_queues(), 2);
    assert!(store.queue(&name_of(1), 0).is_ok() && store.queue(&name_of(5), 0).is_err());
}

#[test]
fn without_light_queues_the_property_is_one_like_others() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open_light(dir.path());
    append_light(&store, &[name_of(0)], b"x");
    store.close().unwrap();
    drop(store);
    // As if it had been killed.
    std::fs::write(dir.path().join("abort"), "1").unwrap();
    std::fs::remove_dir_all(dir.path().join("consumequeue")).unwrap();
    let (store, _) = open(dir.path());
    assert!(store.existing_queue("%LMQ%q0", 0).is_none());
    assert_eq!(store.existing_queue(TOPIC, 0).unwrap().max_offset(), 1);
}

#[test]
fn a_damaged_unit_of_a_light_queue_is_mended_by_the_numbers_that_records_carry() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open_light(dir.path());
    let mut model = Model::default();
    for number in 0..60 {
        let names = [name_of(number % 2), name_of(3)];
        append_light(&store, &names, &body(number));
        model.put(&names, &body(number));
    }
    store.close().unwrap();
    drop(store);
    let path = queue_file(dir.path(), &name_of(3), 0, 0);
    let byte = std::fs::read(&path).unwrap()[17 * 20 + 6];
    overwrite(&path, 17 * 20 + 6, &[byte ^ 0x40]);
    let (store, found) = open_light(dir.path());
    assert_eq!(found, Default::default());
    model.check(&store);
    assert_eq!(store.damaged_units(), 1);
    store.close().unwrap();
}
