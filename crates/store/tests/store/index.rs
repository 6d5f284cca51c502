//! Messages by key: found at once, after a stop, after a crash, and by nobody else's key.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use env::TimeMs;
use protocol::batch::InnerMessage;
use protocol::properties::{self, name};
use protocol::record::{self, INNER_BASE_PLACE};
use protocol::{sys_flag, tags};
use store::look::{KnownTables, Look};
use store::{IndexOptions, KeyKind, KeyQuery, MessageKeys, RecordBatch, Store, StoreEnv, StoreOptions, TagsCode};

use crate::support::{
    Budget, Call, Fault, Files, How, TOPIC, append_batch, encode, eventually, fault_disk, open_as, open_on, options,
    overwrite, segment_path, try_open,
};

const NOW: i64 = 1_700_000_000_000;

fn open(root: &Path, entries: u32) -> Arc<Store> {
    let index = IndexOptions { slots: 7, entries, ..IndexOptions::at(root.join("index")) };
    open_as(&StoreOptions { index: Some(index), ..options(root) }).0
}

fn send(store: &Store, at: i64, body: &str, properties: &str) {
    let queue = store.queue(TOPIC, 0).unwrap();
    let mut batch = RecordBatch::new();
    let code = TagsCode::Code(tags::code(properties::get(properties, name::TAGS).unwrap_or_default()));
    batch.push(&queue, code, |out| encode(TOPIC, 0, body.as_bytes(), properties.as_bytes(), out));
    append_batch(store, &mut batch, TimeMs(at)).unwrap();
}

fn ask(store: &Store, kind: KeyKind, key: &str, begin: i64, end: i64) -> Vec<String> {
    let query = KeyQuery { topic: TOPIC.into(), key: key.into(), kind, max: 32, begin, end };
    let found = store.query(&query).unwrap();
    let body = |found: &store::KeyMatch| match record::scan(found.bytes(), true) {
        Ok(record::Scanned::Record(view)) => String::from_utf8(view.body().to_vec()).unwrap(),
        other => panic!("no record: {other:?}"),
    };
    found.found.iter().map(body).collect()
}

fn find(store: &Store, key: &str) -> Vec<String> {
    ask(store, KeyKind::Key, key, 0, i64::MAX)
}

fn index_files(root: &Path) -> usize {
    std::fs::read_dir(root.join("index")).unwrap().count()
}

#[test]
fn a_message_is_found_by_each_of_its_keys_by_its_id_and_by_its_tag() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 1000);
    send(&store, NOW, "one", "KEYS\u{1}red  green\u{2}UNIQ_KEY\u{1}id-1\u{2}TAGS\u{1}paint\u{2}");
    send(&store, NOW, "two", "KEYS\u{1}green\u{2}UNIQ_KEY\u{1}id-2\u{2}");
    send(&store, NOW, "three", "");
    assert_eq!(find(&store, "red"), ["one"]);
    assert_eq!(find(&store, "green"), ["two", "one"], "the newest comes first");
    assert_eq!(find(&store, "id-2"), ["two"]);
    assert_eq!(find(&store, "paint"), [""; 0], "a tag is no key");
    assert_eq!(ask(&store, KeyKind::Tag, "paint", 0, i64::MAX), ["one"]);
    // With seven slots, most keys share one, and these two share a hash.
    send(&store, NOW, "four", "KEYS\u{1}Aa\u{2}");
    assert_eq!(find(&store, "BB"), [""; 0]);
}

#[test]
fn a_time_range_is_kept_to_the_millisecond() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 1000);
    for (at, body) in [(0, "a"), (1_999, "b"), (2_000, "c")] {
        send(&store, NOW + at, body, "KEYS\u{1}k\u{2}");
    }
    assert_eq!(ask(&store, KeyKind::Key, "k", NOW + 1_999, NOW + 1_999), ["b"]);
    assert_eq!(ask(&store, KeyKind::Key, "k", NOW, NOW + 1_999), ["b", "a"]);
    assert_eq!(ask(&store, KeyKind::Key, "k", NOW + 2_001, i64::MAX), [""; 0]);
}

#[test]
fn keys_are_found_after_a_stop_and_after_a_crash_and_once_each() {
    let dir = tempfile::tempdir().unwrap();
    let mut sent = Vec::new();
    for life in 0..6 {
        let store = open(dir.path(), 10);
        for number in 0..7 {
            let body = format!("{life}.{number}");
            send(&store, NOW, &body, &format!("KEYS\u{1}all k{body}\u{2}"));
            sent.insert(0, body);
        }
        if life % 3 > 0 {
            assert_eq!(find(&store, "all"), sent[..sent.len().min(32)]);
        }
        if life % 2 == 0 {
            store.close().unwrap();
        }
    }
    let store = open(dir.path(), 10);
    assert_eq!(find(&store, "all"), sent[..32]);
    for body in &sent {
        assert_eq!(find(&store, &format!("k{body}")), std::slice::from_ref(body));
    }
    assert!(index_files(dir.path()) > 5);
}

#[test]
fn a_clean_stop_leaves_every_key_in_the_files() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 1000);
    for number in 0..30 {
        send(&store, NOW, "body", &format!("KEYS\u{1}k{number}\u{2}UNIQ_KEY\u{1}id{number}\u{2}"));
    }
    store.close().unwrap();
    let file = std::fs::read_dir(dir.path().join("index")).unwrap().next().unwrap().unwrap().path();
    // `indexCount`, which counts from 1.
    let count: [u8; 4] = std::fs::read(file).unwrap()[36..40].try_into().unwrap();
    assert_eq!(u32::from_be_bytes(count), 61);
}

/// Sends three messages as one burst. The keys of some are told with them.
fn send_burst(store: &Store, burst: i64) {
    let mut batch = RecordBatch::new();
    for place in 0..3 {
        let number = burst * 3 + place;
        let (id, keys, tag) = (format!("id{number}"), format!("k{} k{number}", number % 7), format!("t{}", number % 3));
        let properties = format!("KEYS\u{1}{keys}\u{2}UNIQ_KEY\u{1}{id}\u{2}TAGS\u{1}{tag}\u{2}");
        let body = number.to_string();
        let topic = if burst % 5 == 0 { "other" } else { TOPIC };
        let queue = store.queue(topic, (number % 2) as u32).unwrap();
        let code = TagsCode::Code(tags::code(&tag));
        let encode = |out: &mut Vec<u8>| encode(topic, queue.id(), body.as_bytes(), properties.as_bytes(), out);
        // Whole bursts that are told, whole ones that are not, and mixed ones.
        if burst % 4 < 2 || burst % 4 == 2 && place == 1 {
            let keys = MessageKeys { uniq_key: &id, keys: &keys, tag: &tag };
            batch.push_with_keys(&queue, code, &keys, encode);
        } else {
            batch.push(&queue, code, encode);
        }
    }
    append_batch(store, &mut batch, TimeMs(NOW + burst)).unwrap();
}

/// Sends a batch of three messages as one record. Its keys are told, with those of another record that is given up, or are not.
fn send_inner_batch(store: &Store, burst: i64) {
    let queue = store.batch_queue("batches", (burst % 2) as u32).unwrap();
    let mut batch = RecordBatch::new();
    batch.begin_keys();
    if burst % 3 == 0 {
        batch.say_keys_of_next(&queue, &MessageKeys { uniq_key: "never sent", ..MessageKeys::default() });
        batch.begin_keys();
    }
    let id = format!("batch{burst}");
    batch.say_keys_of_next(&queue, &MessageKeys { uniq_key: &id, ..MessageKeys::default() });
    let mut body = Vec::new();
    for place in 0..3 {
        let (id, keys) = (format!("id{burst}-{place}"), format!("k{}", burst % 7));
        let properties = format!("UNIQ_KEY\u{1}{id}\u{2}KEYS\u{1}{keys}\u{2}");
        protocol::batch::encode(&mut body, &InnerMessage { flag: 0, body: b"inner", properties: &properties }).unwrap();
        batch.say_keys_of_next(&queue, &MessageKeys { uniq_key: &id, keys: &keys, tag: "" });
    }
    let properties = format!("UNIQ_KEY\u{1}{id}\u{2}INNER_NUM\u{1}3\u{2}{INNER_BASE_PLACE}");
    let encode = |out: &mut Vec<u8>| {
        encode("batches", queue.id(), &body, properties.as_bytes(), out);
        let flag = sys_flag::INNER_BATCH | sys_flag::NEED_UNWRAP;
        out[record::at::SYS_FLAG..][..4].copy_from_slice(&flag.to_be_bytes());
    };
    if burst % 4 < 2 {
        batch.push_inner_batch_with_keys(&queue, TagsCode::Code(0), 3, encode);
    } else {
        batch.push_inner_batch(&queue, TagsCode::Code(0), 3, encode);
    }
    append_batch(store, &mut batch, TimeMs(NOW + burst)).unwrap();
}

#[test]
fn keys_that_are_told_give_the_same_files_as_those_that_are_read() {
    let files = |root: &Path| -> Vec<(String, Vec<u8>)> {
        let entries = std::fs::read_dir(root.join("index")).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = entries
            .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read(path).unwrap()))
            .collect();
        files.sort();
        files
    };
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 3000);
    for burst in 0..2000 {
        send_burst(&store, burst);
        if burst % 3 == 0 {
            send_inner_batch(&store, burst);
        }
        // The index follows at changing distances.
        if burst % 170 == 1 {
            let number = burst * 3;
            assert_eq!(find(&store, &format!("id{number}")), [number.to_string()]);
        }
    }
    store.close().unwrap();
    drop(store);
    let told = files(dir.path());
    assert_eq!(told.len(), 10, "6,000 messages of 4 keys, and 667 batches of 7 keys, in files of 2,999");

    std::fs::remove_dir_all(dir.path().join("index")).unwrap();
    let store = open(dir.path(), 3000);
    assert_eq!(find(&store, "id5998"), ["5998"]);
    store.close().unwrap();
    let read = files(dir.path());
    let names = |files: &[(String, Vec<u8>)]| files.iter().map(|file| file.0.clone()).collect::<Vec<_>>();
    assert_eq!(names(&told), names(&read));
    assert!(told == read, "the files differ");
}

#[test]
fn every_key_is_found_after_writes_that_failed_half_way() {
    // Entries, and one or two pages of slots.
    for (writes, is_stopped_meanwhile) in [(2, false), (3, false), (2, true), (3, true)] {
        fail_half_way(writes, is_stopped_meanwhile);
    }
}

fn fail_half_way(writes: u64, is_stopped_meanwhile: bool) {
    let dir = tempfile::tempdir().unwrap();
    let disk = fault_disk();
    let index = IndexOptions { slots: 4096, entries: 10_000, ..IndexOptions::at(dir.path().join("index")) };
    let open = || open_on(&disk, StoreOptions { index: Some(index.clone()), ..options(dir.path()) }).0;
    let send_round = |store: &Store, round: i32| {
        for number in 0..100 {
            let properties = format!("KEYS\u{1}old{} new{round}-{number}\u{2}", number % 50);
            send(store, NOW, &format!("{round}-{number}"), &properties);
        }
    };
    let mut store = open();
    send_round(&store, 0);
    assert_eq!(find(&store, "old7"), ["0-57", "0-7"]);
    if is_stopped_meanwhile {
        // What is in the index so far is noted as such.
        store.close().unwrap();
        drop(store);
        store = open();
    }
    let no_writes = Fault::new(&[Call::Write], Files::Under("index"), How::Fails(ErrorKind::StorageFull));
    let no_writes = no_writes.after(Budget::Calls(writes));
    disk.set(no_writes.clone(), true);
    send_round(&store, 1);
    eventually("the index could not be written", || {
        find(&store, "old7");
        disk.left(&no_writes) == Some(Budget::Calls(0))
    });
    if is_stopped_meanwhile {
        store.close().unwrap();
        drop(store);
        disk.set(no_writes.clone(), false);
        store = open();
        // Of a round that is put by itself, entries take the places of those that slots may still lead to.
        assert_eq!(find(&store, "new1-99").len(), 1);
    }
    send_round(&store, 2);
    disk.set(no_writes, false);
    eventually("the index has come as far as the log", || !find(&store, "new2-99").is_empty());
    for number in 0..50 {
        let both = |round: i32| [format!("{round}-{}", number + 50), format!("{round}-{number}")];
        assert_eq!(find(&store, &format!("old{number}")), [both(2), both(1), both(0)].concat());
    }
    for (round, number) in (0..3).flat_map(|round| (0..100).map(move |number| (round, number))) {
        assert_eq!(find(&store, &format!("new{round}-{number}")), [format!("{round}-{number}")]);
    }
}

#[test]
fn an_index_that_was_deleted_or_is_damaged_is_built_again() {
    let dir = tempfile::tempdir().unwrap();
    for damage in [0, 1, 2] {
        let store = open(dir.path(), 1000);
        send(&store, NOW, &damage.to_string(), "KEYS\u{1}k\u{2}");
        assert_eq!(find(&store, "k").len(), damage + 1);
        store.close().unwrap();
        for file in std::fs::read_dir(dir.path().join("index")).unwrap() {
            let path = file.unwrap().path();
            match damage {
                0 => std::fs::remove_file(path).unwrap(),
                _ => std::fs::write(path, b"cut").unwrap(),
            }
        }
    }
    assert_eq!(find(&open(dir.path(), 1000), "k"), ["2", "1", "0"]);
}

#[test]
fn a_start_that_ends_while_it_removes_damaged_files_of_the_index_leaves_no_gap() {
    for removed in 0..3 {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path(), 10);
        for number in 0..40 {
            send(&store, NOW, &number.to_string(), &format!("KEYS\u{1}k{number}\u{2}"));
        }
        store.close().unwrap();
        drop(store);
        let mut files: Vec<_> =
            std::fs::read_dir(dir.path().join("index")).unwrap().map(|file| file.unwrap().path()).collect();
        files.sort_unstable();
        assert!(files.len() >= 4);
        std::fs::write(&files[1], b"cut").unwrap();
        let disk = fault_disk();
        let cannot_remove = Fault::new(&[Call::Remove], Files::Under("index"), How::Breaks);
        disk.set(cannot_remove.after(Budget::Calls(removed)), true);
        let index = IndexOptions { slots: 7, entries: 10, ..IndexOptions::at(dir.path().join("index")) };
        let env = StoreEnv { disk, ..StoreEnv::real() };
        Store::open(StoreOptions { index: Some(index), ..options(dir.path()) }, env).unwrap_err();
        let store = open(dir.path(), 10);
        for number in 0..40 {
            assert_eq!(find(&store, &format!("k{number}")), [number.to_string()], "{removed} files were removed");
        }
        store.close().unwrap();
    }
}

#[test]
fn what_leads_beyond_the_end_of_the_log_is_gone_for_good_before_the_log_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 10);
    for number in 0..40 {
        send(&store, NOW, &number.to_string(), &format!("KEYS\u{1}k{number}\u{2}"));
    }
    let half = store.existing_queue(TOPIC, 0).unwrap().unit_at(20).unwrap().unwrap().at;
    store.cut_on_reopen(half).unwrap();
    store.close().unwrap();
    drop(store);
    let disk = fault_disk();
    let index = IndexOptions { slots: 7, entries: 10, ..IndexOptions::at(dir.path().join("index")) };
    let (store, _) = open_on(&disk, StoreOptions { index: Some(index), ..options(dir.path()) });
    let folder = dir.path().join("index");
    let calls = disk.paths(&[Call::Remove, Call::SyncDir]);
    let removed = calls.iter().rposition(|path| path.parent() == Some(&folder)).expect("files were removed");
    assert!(calls[removed..].contains(&folder), "{calls:?}");
    send(&store, NOW, "new", "KEYS\u{1}new\u{2}");
    assert_eq!(find(&store, "new"), ["new"]);
    assert_eq!(find(&store, "k19"), ["19"]);
    assert_eq!(find(&store, "k20"), [""; 0]);
    store.close().unwrap();
}

#[test]
fn damage_in_the_log_costs_the_index_the_messages_that_it_hit_and_none_behind_them() {
    let dir = tempfile::tempdir().unwrap();
    let (plain, _) = try_open(options(dir.path())).unwrap();
    for number in 0..20 {
        send(&plain, NOW, &number.to_string(), &format!("KEYS\u{1}k{number}\u{2}"));
    }
    let damaged = plain.existing_queue(TOPIC, 0).unwrap().unit_at(7).unwrap().unwrap().at.0;
    plain.close().unwrap();
    drop(plain);
    // The magic code: no record begins there.
    overwrite(&segment_path(dir.path(), 0), damaged + 4, &[0xff; 4]);
    let store = open(dir.path(), 1000);
    send(&store, NOW, "new", "KEYS\u{1}new\u{2}");
    eventually("the index is built", || find(&store, "new") == ["new"]);
    for number in (0..20).filter(|number| *number != 7) {
        assert_eq!(find(&store, &format!("k{number}")), [number.to_string()]);
    }
    store.close().unwrap();
}

#[test]
fn a_store_that_got_its_index_later_finds_what_came_before() {
    let dir = tempfile::tempdir().unwrap();
    let (plain, _) = try_open(options(dir.path())).unwrap();
    for number in 0..300 {
        send(&plain, NOW, &format!("{number}{}", "x".repeat(900)), &format!("KEYS\u{1}k{number}\u{2}"));
    }
    plain.close().unwrap();
    drop(plain);
    let store = open(dir.path(), 1000);
    eventually("the index is built", || find(&store, "k299").len() == 1);
    assert_eq!(find(&store, "k0").len(), 1);
}

/// Both files are of a broker of Apache 5.5.0 with `maxHashSlotNum=7` and `maxIndexNum=32`: the log as far as it was written, and what its
/// index says after a clean stop. Of five messages one has no keys, one two with two blanks between them, two stand in one slot with others,
/// and the last three came two seconds later.
#[test]
fn of_the_same_log_the_index_has_the_bytes_that_apache_gives_it() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("commitlog/00000000000000000000");
    std::fs::create_dir(dir.path().join("commitlog")).unwrap();
    std::fs::write(&log, include_bytes!("../data/apache-index/commitlog.bin")).unwrap();
    let file = std::fs::File::options().write(true).open(&log).unwrap();
    file.set_len(options(dir.path()).segment_bytes).unwrap();
    let store = open(dir.path(), 32);
    let query =
        KeyQuery { topic: "Orders".into(), key: "red".into(), kind: KeyKind::Key, max: 32, begin: 0, end: i64::MAX };
    assert_eq!(store.query(&query).unwrap().found.len(), 2);
    store.close().unwrap();
    let mut files = std::fs::read_dir(dir.path().join("index")).unwrap();
    let ours = std::fs::read(files.next().unwrap().unwrap().path()).unwrap();
    assert!(files.next().is_none());
    let apaches = include_bytes!("../data/apache-index/index.bin");
    let at = ours.iter().zip(apaches).position(|(ours, theirs)| ours != theirs);
    assert_eq!((at, ours.len()), (None, apaches.len()));
}

/// A store that was closed with 30 messages, one a second, each with a key of its own (`k7`) and
/// one that all have; the options of that, and its one index file with the bytes of it. Slots are
/// so many that no two of the keys share one.
fn closed_with_keys(dir: &Path) -> (StoreOptions, std::path::PathBuf, Vec<u8>) {
    let index = IndexOptions { slots: SLOTS as u32, entries: 1000, ..IndexOptions::at(dir.join("index")) };
    let options = StoreOptions { index: Some(index), ..options(dir) };
    let store = open_as(&options).0;
    for number in 0..30 {
        send(&store, NOW + number * 1000, &number.to_string(), &format!("KEYS\u{1}all k{number}\u{2}"));
    }
    store.close().unwrap();
    let file = std::fs::read_dir(dir.join("index")).unwrap().next().unwrap().unwrap().path();
    let bytes = std::fs::read(&file).unwrap();
    (options, file, bytes)
}

const SLOTS: usize = 10_007;
/// Where slots and entries begin in a file of the index.
const SLOTS_AT: usize = 40;
const ENTRIES_AT: usize = SLOTS_AT + SLOTS * 4;

/// What `gantry store verify` says of the index.
fn verified(options: &StoreOptions) -> Vec<String> {
    let mut findings = Vec::new();
    let look = Look::stopped(options.clone()).unwrap();
    look.verify(&KnownTables::default(), &mut |finding| findings.push(finding), &mut |_, _| {}).unwrap();
    let dir = options.root.join("index");
    findings.into_iter().filter(|finding| finding.file.starts_with(&dir)).map(|finding| finding.what).collect()
}

/// The numbers of `0..30`, the newest first, but for some.
fn all_but(missing: &[i32]) -> Vec<String> {
    (0..30).rev().filter(|number| !missing.contains(number)).map(|number: i32| number.to_string()).collect()
}

#[test]
fn a_damaged_entry_of_the_index_hides_no_message_but_its_own_and_verify_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let (options, file, whole) = closed_with_keys(dir.path());
    assert_eq!(verified(&options), [""; 0]);
    // Two entries for each message, numbered from 1.
    for entry in [1, 2, 31, 60] {
        let own = (entry as i32 - 1) / 2;
        for byte in 0..20 {
            let place = ENTRIES_AT + entry * 20 + byte;
            overwrite(&file, place as u64, &[whole[place] ^ 1]);
            // Hash, place of the record, and way to the entry before. When it was stored is not
            // looked at.
            let is_found_by_verify = !(12..16).contains(&byte);
            if is_found_by_verify {
                assert!(!verified(&options).is_empty(), "entry {entry}, byte {byte}");
            }
            let store = open_as(&options).0;
            let of_all = find(&store, "all");
            assert!(of_all == all_but(&[]) || of_all == all_but(&[own]), "entry {entry}, byte {byte}: {of_all:?}");
            for number in 0..30 {
                let found = find(&store, &format!("k{number}"));
                let is_hidden = found.is_empty() && number == own;
                assert!(
                    is_hidden || found == [number.to_string()],
                    "entry {entry}, byte {byte}: {number} gave {found:?}"
                );
            }
            store.close().unwrap();
            overwrite(&file, place as u64, &[whole[place]]);
        }
    }
    assert_eq!(verified(&options), [""; 0]);
}

#[test]
fn damaged_slots_of_the_index_hide_no_message_and_verify_names_them() {
    // The lowest and the highest byte of each slot that is used.
    for byte in [3, 0] {
        let dir = tempfile::tempdir().unwrap();
        let (options, file, mut bytes) = closed_with_keys(dir.path());
        let slots = &mut bytes[SLOTS_AT..ENTRIES_AT];
        slots.chunks_exact_mut(4).filter(|slot| slot.iter().any(|byte| *byte != 0)).for_each(|slot| slot[byte] ^= 1);
        std::fs::write(&file, &bytes).unwrap();
        let found = verified(&options);
        assert_eq!(found.len(), 4, "three and the sum: {found:?}");
        assert!(found[3].starts_with("31 of its keys and slots"), "{found:?}");
        let store = open_as(&options).0;
        assert_eq!(find(&store, "all"), all_but(&[]));
        for number in 0..30 {
            assert_eq!(find(&store, &format!("k{number}")), [number.to_string()], "byte {byte}");
        }
    }
}

#[test]
fn an_entry_of_the_index_whose_time_is_too_early_does_not_end_the_look() {
    let dir = tempfile::tempdir().unwrap();
    let (options, file, _) = closed_with_keys(dir.path());
    for entry in [41, 42] {
        // Message 20 seems to be as old as the file.
        overwrite(&file, (ENTRIES_AT + entry * 20 + 12) as u64, &[0; 4]);
    }
    let store = open_as(&options).0;
    let found = ask(&store, KeyKind::Key, "all", NOW + 10_000, i64::MAX);
    assert_eq!(found, all_but(&[])[..20]);
}

/// A file of the index without one of its entries, as if it had never been put.
fn without_entry(bytes: &[u8], entry: usize) -> Vec<u8> {
    let moved = |at: usize, bytes: &mut [u8]| {
        let number = u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        let is_gone = number as usize == entry;
        let number = if is_gone { 0 } else { number - u32::from(number as usize > entry) };
        bytes[at..at + 4].copy_from_slice(&number.to_be_bytes());
        is_gone
    };
    let mut found = bytes.to_vec();
    found.copy_within(ENTRIES_AT + (entry + 1) * 20.., ENTRIES_AT + entry * 20);
    let count = u32::from_be_bytes(bytes[36..40].try_into().unwrap()) as usize;
    for number in 1..count - 1 {
        moved(ENTRIES_AT + number * 20 + 16, &mut found);
    }
    let emptied = (0..SLOTS).filter(|slot| moved(SLOTS_AT + slot * 4, &mut found)).count();
    let used = u32::from_be_bytes(bytes[32..36].try_into().unwrap()) - emptied as u32;
    found[32..36].copy_from_slice(&used.to_be_bytes());
    found[36..40].copy_from_slice(&(count as u32 - 1).to_be_bytes());
    found
}

#[test]
fn verify_names_an_entry_that_leads_to_no_record_and_the_message_that_lacks_it() {
    let dir = tempfile::tempdir().unwrap();
    let (options, file, whole) = closed_with_keys(dir.path());
    // The key that message 15 has alone.
    let place = ENTRIES_AT + 32 * 20 + 4;
    let at = u64::from_be_bytes(whole[place..place + 8].try_into().unwrap());
    overwrite(&file, place as u64, &(at + 1).to_be_bytes());
    let expected = [
        format!("of message 15 of {TOPIC}/0, at log offset {at}, it does not have 1 key"),
        format!("key 32 leads to log offset {}, and no record that has it begins there", at + 1),
    ];
    assert_eq!(verified(&options), expected);
    // It leads to a record that does not have it.
    overwrite(&file, place as u64, &whole[place - 40..place - 32]);
    let found = verified(&options);
    assert!(found.iter().any(|what| what.starts_with("key 32 leads to log offset ")), "{found:?}");
    assert!(found.contains(&expected[0]), "{found:?}");
    std::fs::write(&file, &whole).unwrap();
    assert_eq!(verified(&options), [""; 0]);
}

#[test]
fn verify_names_a_message_of_whose_keys_one_is_not_in_the_index() {
    let dir = tempfile::tempdir().unwrap();
    let (options, file, whole) = closed_with_keys(dir.path());
    std::fs::write(&file, without_entry(&whole, 32)).unwrap();
    let found = verified(&options);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with(&format!("of message 15 of {TOPIC}/0, ")), "{found:?}");
    // Of more than three the others are counted.
    let missing = (1..15).rev().fold(whole, |bytes, number| without_entry(&bytes, number * 2 + 2));
    std::fs::write(&file, missing).unwrap();
    let found = verified(&options);
    assert_eq!(found.len(), 4, "{found:?}");
    assert_eq!(found[3], "14 messages in all have keys that it does not have");
}

#[test]
fn keys_of_a_message_that_the_log_has_lost_are_no_damage_of_the_index() {
    let dir = tempfile::tempdir().unwrap();
    let (options, _, whole) = closed_with_keys(dir.path());
    let place = ENTRIES_AT + 15 * 20 + 4;
    let at = u64::from_be_bytes(whole[place..place + 8].try_into().unwrap());
    // The magic code of message 7: no record begins there.
    overwrite(&segment_path(dir.path(), 0), at + 4, &[0xff; 4]);
    assert_eq!(verified(&options), [""; 0]);
    // As after a crash, whose start closes the gap.
    std::fs::write(dir.path().join("abort"), "").unwrap();
    let (store, found) = open_as(&options);
    assert!(!found.findings.is_empty());
    assert_eq!(find(&store, "all"), all_but(&[7]));
    store.close().unwrap();
    drop(store);
    assert_eq!(verified(&options), [""; 0]);
}

#[test]
fn an_index_is_sound_without_what_it_need_not_have() {
    let dir = tempfile::tempdir().unwrap();
    let index = IndexOptions { slots: SLOTS as u32, entries: 100, ..IndexOptions::at(dir.path().join("index")) };
    let with_index = StoreOptions { index: Some(index), ..options(dir.path()) };
    let send_all = |options: &StoreOptions, numbers: std::ops::Range<i64>| {
        let store = open_as(options).0;
        for number in numbers {
            let properties = format!("KEYS\u{1}all k{number}\u{2}TAGS\u{1}t{number}\u{2}");
            send(&store, NOW + number, &"x".repeat(900), &properties);
        }
        store.close().unwrap();
    };
    send_all(&with_index, 0..200);
    assert!(index_files(dir.path()) > 3);
    assert_eq!(verified(&with_index), [""; 0]);
    // The log goes on behind it.
    send_all(&options(dir.path()), 200..230);
    assert_eq!(verified(&with_index), [""; 0]);
    // Tags, of which Apache's older brokers put none.
    let mut files: Vec<_> =
        std::fs::read_dir(dir.path().join("index")).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    let whole = std::fs::read(&files[1]).unwrap();
    let tag = (1..90).find(|entry| {
        let said = u32::from_be_bytes(whole[ENTRIES_AT + entry * 20..][..4].try_into().unwrap());
        (0..200).any(|number| java_hash(&format!("{TOPIC}#T#t{number}")) == said)
    });
    std::fs::write(&files[1], without_entry(&whole, tag.unwrap())).unwrap();
    assert_eq!(verified(&with_index), [""; 0]);
    std::fs::write(&files[1], &whole).unwrap();
    // Its oldest file, and the log's.
    std::fs::remove_file(&files[0]).unwrap();
    assert_eq!(verified(&with_index), [""; 0]);
    std::fs::remove_file(segment_path(dir.path(), 0)).unwrap();
    std::fs::remove_file(segment_path(dir.path(), crate::support::SEGMENT)).unwrap();
    assert_eq!(verified(&with_index), [""; 0]);
}

/// Java's `String.hashCode`, as the index has it.
fn java_hash(text: &str) -> u32 {
    text.bytes().fold(0_i32, |hash, byte| hash.wrapping_mul(31).wrapping_add(i32::from(byte))).unsigned_abs()
}

#[test]
fn an_index_that_apache_wrote_is_sound_and_damage_in_it_is_named() {
    let dir = tempfile::tempdir().unwrap();
    for folder in ["commitlog", "index"] {
        std::fs::create_dir(dir.path().join(folder)).unwrap();
    }
    let (log, file) = (dir.path().join("commitlog/00000000000000000000"), dir.path().join("index/20260101000000000"));
    std::fs::write(&log, include_bytes!("../data/apache-index/commitlog.bin")).unwrap();
    std::fs::File::options().write(true).open(&log).unwrap().set_len(options(dir.path()).segment_bytes).unwrap();
    let mut bytes = include_bytes!("../data/apache-index/index.bin").to_vec();
    std::fs::write(&file, &bytes).unwrap();
    let index = IndexOptions { slots: 7, entries: 32, ..IndexOptions::at(dir.path().join("index")) };
    let options = StoreOptions { index: Some(index), ..options(dir.path()) };
    assert_eq!(verified(&options), [""; 0]);
    // The hash of the fourth entry; there are seven slots, so that it stays in its own.
    let place = 40 + 7 * 4 + 4 * 20;
    let hash = u32::from_be_bytes(bytes[place..place + 4].try_into().unwrap());
    let other = if hash > 7 { hash - 7 } else { hash + 7 };
    bytes[place..place + 4].copy_from_slice(&other.to_be_bytes());
    std::fs::write(&file, &bytes).unwrap();
    let found = verified(&options);
    assert!(found.iter().any(|what| what.starts_with("key 4 leads to log offset ")), "{found:?}");
}
