//! `gantry store` on stores that were closed, damaged, cut short, or left by another broker.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::{Running, fails, gantry};
use disk::{Disk, RealDisk};
use env::TimeMs;
use protocol::LogOffset;
use protocol::record::RecordDraft;
use serde_json::Value;
use store::{
    AppendError, IndexOptions, LogState, RecordBatch, Store, StoreEnv, StoreOptions, TIMER_SLOTS_AHEAD, TagsCode,
    TimerFiles, TimerOptions, TimerUnit, timer_magic,
};

const MESSAGES: u64 = 200;

/// A store with messages in two queues, closed well.
fn store() -> (tempfile::TempDir, PathBuf) {
    store_of("orders", 1 << 30)
}

/// The same of another topic, and in files of another length.
fn store_of(topic: &str, segment_bytes: u64) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("store");
    let index = Some(IndexOptions::at(root.join("index")));
    let options = StoreOptions { index, segment_bytes, ..StoreOptions::at(&root) };
    let (store, _) = Store::open(options, StoreEnv::real()).unwrap();
    let host = "127.0.0.1:10911".parse().unwrap();
    for number in 0..MESSAGES {
        let queue_id = (number % 2) as u32;
        let body = format!("message number {number}");
        let draft = RecordDraft {
            queue_id: queue_id as i32,
            born_timestamp: 1_700_000_000_000,
            body: body.as_bytes(),
            properties: b"KEYS\x01key\x02TAGS\x01red\x02",
            ..RecordDraft::plain(topic, host)
        };
        let mut batch = RecordBatch::new();
        let queue = store.queue(topic, queue_id).unwrap();
        let tags = protocol::tags::code("red");
        batch.push(&queue, TagsCode::Code(tags), |out| {
            draft.encode(out).unwrap();
        });
        while let Err(error) = store.append(&mut batch, TimeMs(1_700_000_000_000 + number as i64)) {
            let AppendError::NoRoomYet { needed } = error else { panic!("{error}") };
            store.room().wait_until(needed, Instant::now() + Duration::from_secs(10));
        }
    }
    store.close().unwrap();
    (folder, root)
}

/// Exit code and standard output of `gantry store COMMAND --store ROOT …`.
fn run(command: &str, root: &Path, more: &[&str]) -> (i32, String) {
    let root = root.to_str().unwrap();
    let output = gantry(&[&["store", command, "--store", root], more].concat()).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    (output.status.code().unwrap(), said)
}

fn json(command: &str, root: &Path, more: &[&str]) -> (i32, Value) {
    let (code, said) = run(command, root, &[&["--json"], more].concat());
    (code, serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}")))
}

fn log_file(root: &Path) -> PathBuf {
    root.join("commitlog/00000000000000000000")
}

/// Where the body of a message lies in the log.
fn body_at(root: &Path, number: u64) -> u64 {
    let wanted = format!("message number {number}KEYS");
    // A topic stands between body and properties: look for the body and its topic's length and name.
    let wanted = wanted.replace("KEYS", "\u{6}orders");
    let mut bytes = vec![0; 1 << 20];
    fs::File::open(log_file(root)).unwrap().read_at(&mut bytes, 0).unwrap();
    bytes.windows(wanted.len()).position(|window| window == wanted.as_bytes()).unwrap() as u64
}

fn flip(path: &Path, at: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x20], at).unwrap();
}

/// Names and times of change of all files, to see that nothing was touched.
fn files(root: &Path) -> Vec<(PathBuf, u64, std::time::SystemTime)> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let meta = entry.metadata().unwrap();
            if meta.is_dir() {
                folders.push(entry.path());
            } else {
                found.push((entry.path(), meta.len(), meta.modified().unwrap()));
            }
        }
    }
    found.sort();
    found
}

#[test]
fn a_sound_store_has_no_findings_and_is_not_touched() {
    let (_folder, root) = store();
    let before = files(&root);
    let (code, said) = json("verify", &root, &[]);
    assert_eq!((code, &said["findings"]), (0, &serde_json::json!([])), "{said}");
    assert_eq!((&said["records"], &said["units"]), (&MESSAGES.into(), &MESSAGES.into()));
    let (code, said) = json("inspect", &root, &["--topic", "orders"]);
    assert_eq!(code, 0);
    assert_eq!(said["topics"][0], serde_json::json!({ "topic": "orders", "queues": 2, "messages": MESSAGES }));
    assert_eq!(said["queues"][1]["max"], MESSAGES / 2);
    assert_eq!((&said["asGantryClosedIt"], &said["abort"]), (&true.into(), &false.into()));
    assert_eq!(said["commitLog"]["lastStoreTime"], 1_700_000_000_000 + MESSAGES - 1);
    assert!(said["index"]["keys"].as_u64().unwrap() >= MESSAGES);
    assert_eq!(files(&root), before);
}

#[test]
fn a_flipped_bit_of_a_body_is_named_with_file_and_place_and_all_else_is_checked() {
    let (_folder, root) = store();
    flip(&log_file(&root), body_at(&root, 77) + 3);
    let (code, said) = json("verify", &root, &[]);
    assert_eq!(code, 1, "{said}");
    let findings = said["findings"].as_array().unwrap();
    assert_eq!(findings.len(), 1, "{said}");
    assert_eq!(findings[0]["file"], log_file(&root).to_str().unwrap());
    let at = findings[0]["at"].as_u64().unwrap();
    assert!(at < body_at(&root, 78) && at > body_at(&root, 76), "{at}");
    assert!(findings[0]["what"].as_str().unwrap().contains("message 38 of orders/1"), "{said}");
    assert_eq!(said["units"], MESSAGES);
}

#[test]
fn what_is_found_before_a_check_cannot_go_on_is_told_with_the_reason() {
    let (_folder, root) = store();
    flip(&log_file(&root), body_at(&root, 77) + 3);
    // A file that nobody can open.
    let name = "20991231235959999";
    std::os::unix::fs::symlink("nowhere", root.join("index").join(name)).unwrap();
    let output = gantry(&["store", "verify", "--json", "--store", root.to_str().unwrap()]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(said["error"].as_str().unwrap().contains(name), "{said}");
    assert_eq!(said["findings"].as_array().unwrap().len(), 1, "{said}");
    assert!(said["findings"][0]["what"].as_str().unwrap().contains("message 38 of orders/1"), "{said}");
}

#[test]
fn a_unit_that_says_something_else_than_its_record_is_named() {
    let (_folder, root) = store();
    let file = root.join("consumequeue/orders/1/00000000000000000000");
    flip(&file, 30 * 20 + 11);
    let (code, said) = json("verify", &root, &[]);
    assert_eq!(code, 1, "{said}");
    let finding = &said["findings"][0];
    assert_eq!((&finding["file"], &finding["at"]), (&file.to_str().unwrap().into(), &(30 * 20).into()), "{said}");
    assert!(finding["what"].as_str().unwrap().starts_with("unit 30 of orders/1"), "{said}");
    let (code, said) = run("repair", &root, &["--queues"]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(run("verify", &root, &[]).0, 0);
    assert!(root.join("cut/repair-1/consumequeue/orders/1/00000000000000000000").exists());
}

#[test]
fn queues_that_are_gone_are_found_and_built_again() {
    let (_folder, root) = store();
    fs::remove_dir_all(root.join("consumequeue/orders/0")).unwrap();
    let (code, said) = run("verify", &root, &[]);
    assert_eq!(code, 1);
    assert!(said.contains("there is no consume queue orders/0, and the log has 100 records of it"), "{said}");
    let before = files(&root);
    let (code, said) = run("repair", &root, &["--dry-run", "--queues"]);
    assert_eq!(code, 0);
    assert!(said.contains("would be moved into"), "{said}");
    assert_eq!(files(&root), before);
    assert_eq!(run("repair", &root, &["--queues", "--index"]).0, 0);
    let (code, said) = json("verify", &root, &[]);
    assert_eq!((code, &said["units"]), (0, &MESSAGES.into()), "{said}");
    assert!(said["keys"].as_u64().unwrap() >= MESSAGES, "{said}");
}

#[test]
fn units_that_are_cut_off_are_missed() {
    let (_folder, root) = store();
    let file = root.join("consumequeue/orders/1/00000000000000000000");
    OpenOptions::new().write(true).open(&file).unwrap().write_all_at(&[0; 20 * 10], 90 * 20).unwrap();
    let (code, said) = run("verify", &root, &[]);
    assert_eq!(code, 1);
    assert!(said.contains("queue orders/1 ends at 90, and the log has 10 records more"), "{said}");
    assert!(said.contains(", byte 1800:"), "{said}");
}

#[test]
fn a_torn_end_is_found_cut_off_and_kept() {
    let (_folder, root) = store();
    let (_, said) = json("inspect", &root, &[]);
    let end = said["commitLog"]["end"].as_u64().unwrap();
    let file = OpenOptions::new().write(true).open(log_file(&root)).unwrap();
    file.write_all_at(b"what a crash left of a record", end).unwrap();
    fs::write(root.join("abort"), "1").unwrap();
    let (code, said) = json("verify", &root, &[]);
    assert_eq!(code, 1);
    assert_eq!(said["findings"][0]["at"], end, "{said}");
    assert!(said["findings"][0]["what"].as_str().unwrap().contains("the log ends at"), "{said}");
    let (code, said) = run("repair", &root, &[]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(run("verify", &root, &[]).0, 0);
    assert!(root.join("abort").exists(), "the next start still looks after timers");
}

#[test]
fn a_stretch_in_the_middle_is_damage_and_what_follows_is_checked() {
    let (_folder, root) = store();
    let (from, to) = (body_at(&root, 100), body_at(&root, 103));
    let file = OpenOptions::new().write(true).open(log_file(&root)).unwrap();
    file.write_all_at(&vec![0xAA; (to - from) as usize], from).unwrap();
    let (code, said) = json("verify", &root, &[]);
    assert_eq!(code, 1);
    let damage = said["findings"][0]["what"].as_str().unwrap();
    assert!(damage.contains("the log is damaged from log offset") || damage.contains("is damaged:"), "{said}");
    assert!(said["records"].as_u64().unwrap() >= MESSAGES - 5, "{said}");
}

/// Damages the journal, and says which file.
fn damage_journal(root: &Path) -> PathBuf {
    let journal = fs::read_dir(root.join("journal")).unwrap().map(|entry| entry.unwrap().path());
    let path = journal.filter(|path| path.extension().is_some_and(|kind| kind == "journal")).max().unwrap();
    flip(&path, 8);
    path
}

#[test]
fn a_damaged_journal_is_named() {
    let (_folder, root) = store();
    let path = damage_journal(&root);
    let (code, said) = json("verify", &root, &[]);
    assert_eq!(code, 1, "{said}");
    assert_eq!(said["findings"][0]["file"], path.to_str().unwrap(), "{said}");
}

#[test]
fn a_repair_that_cannot_go_on_says_first_what_is_wrong() {
    let (_folder, root) = store();
    let path = damage_journal(&root);
    let before = files(&root);
    let ways: [&[&str]; 2] = [&[], &["--dry-run"]];
    for more in ways {
        let (code, said) = run("repair", &root, more);
        assert!(code == 1 && said.contains(path.to_str().unwrap()) && said.contains("remedy: "), "{said}");
    }
    assert_eq!(files(&root), before);
}

#[test]
fn a_queue_file_of_another_length_is_told_of_and_repaired() {
    let (_folder, root) = store();
    let file = root.join("consumequeue/orders/1/00000000000000000000");
    let bytes = fs::metadata(&file).unwrap().len();
    OpenOptions::new().write(true).open(&file).unwrap().set_len(bytes + 1).unwrap();
    let before = files(&root);
    let (code, said) = run("repair", &root, &[]);
    assert!(code == 1 && said.contains("no queue was looked at"), "{code} {said}");
    assert!(said.contains("gantry store repair --queues moves that queue aside"), "{said}");
    let (code, said) = run("repair", &root, &["--queues", "--dry-run"]);
    assert!(code == 0 && said.contains("no queue was looked at") && said.contains("would be moved into"), "{said}");
    assert_eq!(files(&root), before);
    let (code, said) = run("repair", &root, &["--queues"]);
    assert_eq!(code, 0, "{said}");
    for queue in ["0", "1"] {
        let aside = root.join("cut/repair-1/consumequeue/orders").join(queue);
        assert!(aside.join("00000000000000000000").exists(), "{said}");
    }
    let (code, said) = json("verify", &root, &[]);
    assert_eq!((code, &said["units"]), (0, &MESSAGES.into()), "{said}");
}

#[test]
fn bodies_are_checked_though_a_start_would_not_do_it() {
    let (folder, root) = store();
    flip(&log_file(&root), body_at(&root, 77) + 3);
    let settings = folder.path().join("broker.conf");
    fs::write(&settings, "checkCRCOnRecover=false\n").unwrap();
    let settings = settings.to_str().unwrap();
    let (code, said) = run("verify", &root, &["-c", settings]);
    assert!(code == 1 && said.contains("message 38 of orders/1"), "{code} {said}");
    let messages = folder.path().join("messages");
    let (code, said) = run("export", &root, &["-c", settings, "--messages", messages.to_str().unwrap()]);
    assert!(code == 1 && said.contains("passed over: message 38 of orders/1"), "{code} {said}");
}

#[test]
fn a_store_that_a_broker_has_open_is_not_checked_but_can_be_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    let server = Running::server(folder.path());
    let root = folder.path().join("store");
    for command in ["verify", "repair", "export"] {
        let (code, said) = run(command, &root, &[]);
        assert_eq!(code, if command == "verify" { 2 } else { 1 }, "{said}");
        assert!(said.contains(&format!("{}/lock is locked: process {}", root.display(), server.pid())), "{said}");
    }
    let (code, said) = run("inspect", &root, &[]);
    assert_eq!(code, 0);
    assert!(said.contains("what it has not written yet is not seen"), "{said}");
    server.end("-TERM");
    assert_eq!(run("verify", &root, &[]).0, 0);
}

#[test]
fn messages_are_written_as_lines_of_json() {
    let (folder, root) = store();
    let file = folder.path().join("messages");
    let (code, said) = run("export", &root, &["--messages", file.to_str().unwrap(), "--topic", "orders"]);
    assert_eq!(code, 0, "{said}");
    let text = fs::read_to_string(&file).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len() as u64, MESSAGES);
    assert_eq!(
        (&lines[7]["queue"], &lines[7]["offset"], &lines[7]["body"]),
        (&1.into(), &3.into(), &"message number 7".into())
    );
    assert_eq!((&lines[7]["keys"], &lines[7]["tags"]), (&"key".into(), &"red".into()));
}

/// Bodies that `export --messages` writes, its exit code, and what it says.
fn exported(root: &Path) -> (Vec<String>, i32, String) {
    let file = root.join("messages");
    let (code, said) = run("export", root, &["--messages", file.to_str().unwrap()]);
    let text = fs::read_to_string(&file).unwrap();
    let body = |line: &str| serde_json::from_str::<Value>(line).unwrap()["body"].as_str().unwrap().to_owned();
    (text.lines().map(body).collect(), code, said)
}

#[test]
fn messages_behind_damage_are_written_too_and_what_is_passed_over_is_named() {
    let (_folder, root) = store();
    flip(&log_file(&root), body_at(&root, 50) + 3);
    let (from, to) = (body_at(&root, 100), body_at(&root, 103));
    let file = OpenOptions::new().write(true).open(log_file(&root)).unwrap();
    file.write_all_at(&vec![0xAA; (to - from) as usize], from).unwrap();
    let (bodies, code, said) = exported(&root);
    assert_eq!(code, 1, "{said}");
    let whole = (0..50).chain(51..100).chain(104..MESSAGES).map(|number| format!("message number {number}"));
    assert_eq!(bodies, whole.collect::<Vec<_>>(), "{said}");
    assert!(said.contains("passed over: message 25 of orders/0, at log offset"), "{said}");
    assert!(said.contains("passed over: 2 damaged places"), "{said}");
    let stretch = said.lines().find(|line| line.starts_with("passed over: log offset")).unwrap();
    assert!(stretch.contains(log_file(&root).to_str().unwrap()) && stretch.contains(" to "), "{said}");
}

#[test]
fn messages_behind_a_missing_file_of_the_log_are_written_too_and_a_missing_end_is_named() {
    const FILE: u64 = 8192;
    let (_folder, root) = store_of("orders", FILE);
    let (bodies, code, said) = exported(&root);
    assert_eq!((bodies.len() as u64, code), (MESSAGES, 0), "{said}");
    let log = |number: u64| root.join("commitlog").join(format!("{:020}", number * FILE));
    fs::remove_file(log(1)).unwrap();
    let (bodies, code, said) = exported(&root);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains(&format!("passed over: log offset {FILE} to {}", 2 * FILE)), "{said}");
    assert_eq!(bodies.last().unwrap(), &format!("message number {}", MESSAGES - 1));
    let (_, inspected) = json("inspect", &root, &[]);
    let last = inspected["commitLog"]["end"].as_u64().unwrap() / FILE;
    // Behind it there are files that were made ahead of time.
    (last..).map(&log).take_while(|file| file.exists()).for_each(|file| fs::remove_file(file).unwrap());
    let (bodies, code, said) = exported(&root);
    assert!(
        code == 1 && said.contains("on; no record follows") && said.contains("when the store was closed"),
        "{said}"
    );
    assert!(!bodies.contains(&format!("message number {}", MESSAGES - 1)), "{said}");
}

#[test]
fn a_group_that_has_come_further_than_its_queue_is_named() {
    let (_folder, root) = store();
    fs::create_dir_all(root.join("config")).unwrap();
    let topics =
        r#"{"topicConfigTable":{"orders":{"topicName":"orders","readQueueNums":4,"writeQueueNums":4,"perm":6}}}"#;
    fs::write(root.join("config/topics.json"), topics).unwrap();
    let file = root.join("config/consumerOffset.json");
    // What a group has left in a topic that is no more is nobody's concern.
    let offsets =
        r#"{"offsetTable":{"orders@late":{"0":101,"1":100,"3":1},"orders@other":{"1":7},"gone@late":{"0":5}}}"#;
    fs::write(&file, offsets).unwrap();
    let (code, said) = json("verify", &root, &[]);
    assert_eq!(code, 1, "{said}");
    let findings = said["findings"].as_array().unwrap();
    let mut what: Vec<&str> = findings.iter().map(|finding| finding["what"].as_str().unwrap()).collect();
    what.sort_unstable();
    let expected = [
        "group late has committed 1 in queue orders/3, which ends at 0",
        "group late has committed 101 in queue orders/0, which ends at 100",
    ];
    assert_eq!(what, expected);
    assert_eq!(findings[0]["file"], file.to_str().unwrap());
}

#[test]
fn a_committed_offset_is_held_against_the_records_where_the_queue_lacks_units() {
    let (_folder, root) = store();
    let units = root.join("consumequeue/orders/1/00000000000000000000");
    OpenOptions::new().write(true).open(&units).unwrap().write_all_at(&[0; 20 * 10], 90 * 20).unwrap();
    fs::create_dir_all(root.join("config")).unwrap();
    fs::write(root.join("config/consumerOffset.json"), r#"{"offsetTable":{"orders@all":{"1":100}}}"#).unwrap();
    let (code, said) = json("verify", &root, &[]);
    assert_eq!((code, said["findings"].as_array().unwrap().len()), (1, 1), "the units that are missing: {said}");
}

#[test]
fn a_unit_of_the_timer_log_that_leads_to_no_timer_message_is_named() {
    const TIMERS: &str = "rmq_sys_wheel_timer";
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let append = |root: &Path, at: u64, size: u32| {
        let options = TimerOptions {
            root: root.to_owned(),
            log_file_bytes: 4096,
            precision_ms: 1000,
            slots_ahead: TIMER_SLOTS_AHEAD,
        };
        let state = LogState { end: LogOffset(u64::MAX), was_abnormal: false };
        let mut files = TimerFiles::open(&disk, &options, state, &|_| true).unwrap();
        let unit = TimerUnit {
            slot: 5000,
            due: 5007,
            written: 100,
            at: LogOffset(at),
            size,
            magic: timer_magic::DEFAULT,
            topic_hash: 5,
        };
        assert_eq!(files.append(&[unit], 0).unwrap(), 1);
    };
    let first_bytes = |root: &Path| {
        let mut length = [0; 4];
        fs::File::open(log_file(root)).unwrap().read_at(&mut length, 0).unwrap();
        u32::from_be_bytes(length)
    };
    let (_folder, root) = store_of(TIMERS, 1 << 30);
    append(&root, 0, first_bytes(&root));
    let (code, said) = json("verify", &root, &[]);
    assert_eq!((code, &said["timers"]), (0, &1.into()), "{said}");
    append(&root, 1, first_bytes(&root));
    append(&root, 0, first_bytes(&root) + 1);
    let (code, said) = json("verify", &root, &[]);
    let what = said["findings"][0]["what"].as_str().unwrap();
    assert!(
        code == 1 && what.starts_with("2 timer messages that wait lead to no record of rmq_sys_wheel_timer"),
        "{said}"
    );

    let (_folder, root) = store();
    append(&root, 0, first_bytes(&root));
    let (code, said) = json("verify", &root, &[]);
    assert_eq!((code, said["findings"].as_array().unwrap().len()), (1, 1), "a record of another topic: {said}");
}

#[test]
fn messages_of_a_topic_that_is_not_there_are_an_error_and_overwrite_nothing() {
    let (folder, root) = store();
    let file = folder.path().join("messages");
    fs::write(&file, "of yesterday").unwrap();
    let to = file.to_str().unwrap();
    let (code, said) = run("export", &root, &["--messages", to, "--topic", "nosuch"]);
    assert!(code == 1 && said.contains("there is no topic nosuch in "), "{code} {said}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "of yesterday");
    // One that was made and has no message is there.
    fs::create_dir_all(root.join("config")).unwrap();
    let tables =
        r#"{"topicConfigTable":{"empty":{"topicName":"empty","readQueueNums":1,"writeQueueNums":1,"perm":6}}}"#;
    fs::write(root.join("config/topics.json"), tables).unwrap();
    let (code, said) = run("export", &root, &["--messages", to, "--topic", "empty"]);
    assert!(code == 0 && said.starts_with("0 records written"), "{code} {said}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "");
    let (code, said) = run("inspect", &root, &["--topic", "nosuch"]);
    assert!(code == 1 && said.contains("there is no topic nosuch in "), "{code} {said}");
    let (code, said) = json("inspect", &root, &["--topic", "orders", "--queue", "1"]);
    assert_eq!((code, &said["topicsKnown"], &said["queues"][0]["queue"]), (0, &1.into(), &1.into()), "{said}");
    let (code, said) = run("inspect", &root, &["--topic", "orders", "--queue", "9"]);
    assert!(code == 1 && said.contains("there is no queue orders/9 in "), "{code} {said}");
}

#[test]
fn after_a_kill_the_configuration_can_be_written_without_serving() {
    let folder = tempfile::tempdir().unwrap();
    let server = Running::server(folder.path());
    let address = server.address("broker").to_owned();
    let made = gantry(&["admin", "updateTopic", "-b", &address, "-t", "made-before-the-kill", "-r", "3", "-w", "3"])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    server.end("-KILL");
    let root = folder.path().join("store");
    for name in ["topics.json", "topics.json.bak"] {
        let _ = fs::remove_file(root.join("config").join(name));
    }
    let (code, said) = run("export", &root, &[]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("the store was not closed"), "{said}");
    let topics: Value = serde_json::from_slice(&fs::read(root.join("config/topics.json")).unwrap()).unwrap();
    assert_eq!(topics["topicConfigTable"]["made-before-the-kill"]["readQueueNums"], 3);
    let (_, said) = json("inspect", &root, &[]);
    let files = said["config"].as_array().unwrap();
    assert!(files.iter().all(|file| file["countsAtNextStart"] == false), "{said}");
    // What another broker writes wins, and is seen to.
    let other = r#"{"topicConfigTable":{"other":{"topicName":"other","readQueueNums":2,"writeQueueNums":2,"perm":6}}}"#;
    fs::write(root.join("config/topics.json"), other).unwrap();
    let (_, said) = run("inspect", &root, &[]);
    assert!(said.contains("topics.json: 1 entr") && said.contains("counts at the next start"), "{said}");
    let again = Running::server(folder.path());
    assert_eq!(again.end("-TERM").0, Some(0));
}

fn database(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("CURRENT"), "MANIFEST-000005\n").unwrap();
    fs::write(folder.join("MANIFEST-000005"), "").unwrap();
}

#[test]
fn offsets_in_rocksdb_are_refused_at_the_start_with_the_way_out() {
    for (name, remedy) in [
        ("config/consumerOffsets", "gantry store fetch -b HOST:PORT"),
        ("config/metadata", "gantry store fetch -b HOST:PORT"),
        ("config/rdb", "gantry store fetch -b HOST:PORT"),
        ("kvStore", "gantry store fetch --popped -b HOST:PORT"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("store");
        database(&root.join(name));
        let data = folder.path().to_str().unwrap();
        let said = fails(&["server", "--data", data, "--namesrv-port", "0", "--broker-port", "0"]);
        assert!(said.contains(root.join(name).to_str().unwrap()) && said.contains(remedy), "{said}");
        let (_, inspected) = run("inspect", &root, &[]);
        assert!(inspected.contains(remedy), "{inspected}");
        let (code, said) = run("repair", &root, &["--rocksdb"]);
        assert!(code == 1 && said.contains("stays, since") && said.contains(remedy), "nothing was fetched: {said}");
        assert!(root.join(name).join("CURRENT").exists());
        fs::remove_dir_all(root.join(name)).unwrap();
        Running::server(folder.path()).end("-TERM");
    }
}

#[test]
fn queues_in_rocksdb_are_refused_and_repair_builds_them_from_the_log() {
    let (folder, root) = store();
    fs::remove_dir_all(root.join("consumequeue")).unwrap();
    database(&root.join("consumequeue"));
    let Err(error) = Store::open(StoreOptions::at(&root), StoreEnv::real()) else { panic!("it opened") };
    assert!(error.to_string().contains("gantry store repair --rocksdb"), "{error}");
    for way in ["--rocksdb", "--queues"] {
        let (code, said) = run("repair", &root, &[way]);
        assert!(code == 1 && said.contains("messageDelayLevel") && said.contains("(-c FILE)"), "{way}: {said}");
    }
    assert!(root.join("consumequeue/CURRENT").exists());
    let settings = folder.path().join("broker.conf");
    fs::write(&settings, "brokerName=broker-a\n").unwrap();
    let (code, said) = run("repair", &root, &["--rocksdb", "-c", settings.to_str().unwrap()]);
    assert_eq!(code, 0, "{said}");
    let (code, said) = json("verify", &root, &[]);
    assert_eq!((code, &said["units"]), (0, &MESSAGES.into()), "{said}");
    assert!(root.join("cut/repair-1/consumequeue/CURRENT").exists());
}

#[test]
fn what_is_fetched_of_a_broker_lets_its_databases_be_moved_aside() {
    let data = tempfile::tempdir().unwrap();
    let running = Running::server(data.path());
    let broker = running.address("broker").to_owned();
    let (_folder, root) = store();
    let (code, said) = run("fetch", &root, &["-b", &broker]);
    assert!(code == 1 && said.contains("keeps nothing in RocksDB") && said.contains("--force"), "{said}");
    assert!(!root.join("config").exists());

    fs::create_dir(root.join("config")).unwrap();
    fs::write(root.join("config/topics.json"), "{}").unwrap();
    for _ in 0..2 {
        let (code, said) = run("fetch", &root, &["-b", &broker, "--force", "--popped"]);
        assert!(code == 0 && said.contains("gantry store repair --rocksdb"), "{said}");
    }
    assert_eq!(fs::read(root.join("config/topics.json.bak")).unwrap(), b"{}", "what was there before the first one");
    let read =
        |name: &str| -> Value { serde_json::from_slice(&fs::read(root.join("config").join(name)).unwrap()).unwrap() };
    assert_eq!(read("topics.json")["topicConfigTable"]["TBW102"]["topicName"], "TBW102");
    assert!(read("subscriptionGroup.json")["subscriptionGroupTable"].is_object());
    assert!(read("consumerOffset.json")["offsetTable"].is_object());
    running.end("-TERM");

    for name in ["config/topics", "config/rdb", "kvStore"] {
        database(&root.join(name));
    }
    let (code, said) = run("repair", &root, &["--rocksdb", "--dry-run"]);
    assert!(code == 0 && said.contains("would be moved into") && root.join("kvStore").exists(), "{said}");
    let (code, said) = run("repair", &root, &["--rocksdb"]);
    assert_eq!(code, 0, "{said}");
    for name in ["config/topics", "config/rdb", "config/fetched.json", "kvStore"] {
        assert!(!root.join(name).exists() && root.join("cut/repair-1").join(name).exists(), "{name}");
    }
    let (code, said) = json("verify", &root, &[]);
    assert_eq!((code, &said["units"]), (0, &MESSAGES.into()), "{said}");
}

/// A broker that answers each request with these settings, as Apache's answers request 26.
fn says_of_itself(settings: &'static str) -> String {
    answers(move |_| (0, settings))
}

/// A broker that answers a request with the response code and the body that `answer` has for the request's code.
fn answers(answer: impl Fn(i64) -> (i64, &'static str) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    // Ends with the process.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            // Whoever asks may go away between two requests.
            while let Ok((asked, opaque)) = read_request(&mut stream) {
                let (code, body) = answer(asked);
                let header = serde_json::json!({
                    "code": code, "flag": 1, "opaque": opaque, "version": 0, "language": "JAVA", "serializeTypeCurrentRPC": "JSON",
                });
                let header = header.to_string();
                let mut frame = ((4 + header.len() + body.len()) as u32).to_be_bytes().to_vec();
                frame.extend((header.len() as u32).to_be_bytes());
                frame.extend([header.as_bytes(), body.as_bytes()].concat());
                stream.write_all(&frame).unwrap();
            }
        }
    });
    at
}

/// Reads a request, and says its code and which answer it waits for.
fn read_request(stream: &mut TcpStream) -> std::io::Result<(i64, i64)> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut frame = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut frame)?;
    let header_bytes = usize::from(frame[2]) << 8 | usize::from(frame[3]);
    let header: Value = serde_json::from_slice(&frame[4..4 + header_bytes]).unwrap();
    Ok((header["code"].as_i64().unwrap(), header["opaque"].as_i64().unwrap()))
}

#[test]
fn timers_and_half_messages_in_rocksdb_are_told_of_where_nothing_can_be_fetched_and_refused_at_the_start() {
    let broker = says_of_itself("brokerName=b\nstoreType=default\ntimerRocksDBEnable=true\ntransRocksDBEnable=TRUE\n");
    let (_folder, root) = store();
    let (code, said) = run("fetch", &root, &["-b", &broker]);
    assert!(code == 1 && said.contains("keeps nothing in RocksDB that can be fetched"), "{said}");
    for note in
        ["timerRocksDBEnable=true: timer messages that wait", "transRocksDBEnable=true: half messages that wait"]
    {
        assert!(said.contains(note), "{note}: {said}");
    }
    for key in ["timerRocksDBEnable", "transRocksDBEnable"] {
        let data = tempfile::tempdir().unwrap();
        let (data, set) = (data.path().to_str().unwrap(), format!("{key}=true"));
        let said = fails(&["server", "--data", data, "--namesrv-port", "0", "--broker-port", "0", "--set", &set]);
        assert!(said.contains(&format!("{key}=true")) && said.contains("would be lost"), "{said}");
    }
}

#[test]
fn queues_in_rocksdb_beside_files_do_not_matter() {
    let (_folder, root) = store();
    database(&root.join("consumequeue"));
    database(&root.join("rocksdbstore"));
    let (store, _) = Store::open(StoreOptions::at(&root), StoreEnv::real()).unwrap();
    assert_eq!(store.existing_queue("orders", 1).unwrap().max_offset(), MESSAGES / 2);
    store.close().unwrap();
}

#[test]
fn a_place_without_a_store_is_no_sound_store() {
    let folder = tempfile::tempdir().unwrap();
    let (code, said) = run("verify", &folder.path().join("nowhere"), &[]);
    assert_eq!(code, 2);
    assert!(said.contains("there is no store in"), "{said}");
}

#[test]
fn numbers_of_queues_that_a_broker_does_not_tell_are_not_left_out_in_silence() {
    // Only a topic that is no more has none.
    for (code, is_fetched) in [(17, true), (1, false), (2, false), (16, false)] {
        let broker = answers(move |request| match request {
            26 => (0, "brokerName=b\nstoreType=defaultRocksDB\n"),
            21 => (0, r#"{"topicConfigTable":{"orders":{"topicName":"orders"}}}"#),
            201 => (0, r#"{"subscriptionGroupTable":{}}"#),
            43 => (0, r#"{"offsetTable":{}}"#),
            _numbers => (code, ""),
        });
        let folder = tempfile::tempdir().unwrap();
        let (ended, said) = run("fetch", folder.path(), &["-b", &broker]);
        assert_eq!(ended, i32::from(!is_fetched), "{code}: {said}");
        assert_eq!(folder.path().join("config/fetched.json").exists(), is_fetched, "{code}: {said}");
        assert!(is_fetched || said.contains("cannot fetch the numbers of orders"), "{code}: {said}");
    }
}

/// Arguments of a server on a folder.
fn server_on(folder: &Path) -> [&str; 7] {
    ["server", "--data", folder.to_str().unwrap(), "--namesrv-port", "0", "--broker-port", "0"]
}

#[test]
fn a_start_that_fails_leaves_a_store_closed_or_not_as_it_was() {
    let (folder, root) = store();
    fs::create_dir_all(root.join("config")).unwrap();
    fs::write(root.join("config/topics.json"), "{").unwrap();
    for was_closed in [true, false] {
        if !was_closed {
            fs::write(root.join("abort"), "1").unwrap();
        }
        let said = fails(&server_on(folder.path()));
        assert!(said.contains("topics.json"), "{said}");
        assert_eq!(root.join("abort").exists(), !was_closed, "{said}");
    }
}

#[test]
fn a_stop_that_cannot_write_the_configuration_says_so_and_ends_with_1() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("store");
    // In the place of the file that is written first.
    let in_the_way = root.join("config/topics.json.tmp");
    fs::create_dir_all(&in_the_way).unwrap();
    let (code, said) = Running::server(folder.path()).end("-TERM");
    assert_eq!(code, Some(1), "{said}");
    let last = said.lines().last().unwrap();
    assert!(last.contains("gantry store export") && last.contains("topics.json.tmp"), "{said}");
    assert!(!root.join("abort").exists(), "all else is in good order: {said}");
    fs::remove_dir(in_the_way).unwrap();
    let (code, said) = run("export", &root, &[]);
    assert_eq!(code, 0, "{said}");
}

#[test]
fn an_export_after_a_crash_leaves_no_offset_behind_the_end_of_its_queue() {
    let (_folder, root) = store();
    fs::create_dir_all(root.join("config")).unwrap();
    let topics =
        r#"{"topicConfigTable":{"orders":{"topicName":"orders","readQueueNums":4,"writeQueueNums":4,"perm":6}}}"#;
    fs::write(root.join("config/topics.json"), topics).unwrap();
    let file = root.join("config/consumerOffset.json");
    fs::write(&file, r#"{"offsetTable":{"orders@late":{"0":101,"1":100}}}"#).unwrap();
    fs::write(root.join("abort"), "1").unwrap();
    let (code, said) = run("export", &root, &[]);
    assert!(code == 0 && root.join("abort").exists(), "{said}");
    let text: String = fs::read_to_string(&file).unwrap().split_whitespace().collect();
    assert!(text.contains("orders@late") && text.contains(":100") && !text.contains(":101"), "{text}");
    // What the journal has is the same.
    let (code, said) = run("verify", &root, &[]);
    assert!(code == 0 && !said.contains("has committed"), "{said}");
}

#[test]
fn records_without_a_place_in_their_queue_are_not_called_mended() {
    let (_folder, root) = store_of("orders", 8192);
    // As an Apache broker would leave it, and a queue that lacks what lies before the last file of the log.
    fs::remove_dir_all(root.join("journal")).unwrap();
    fs::remove_file(root.join("checkpoint")).unwrap();
    let units = root.join("consumequeue/orders/1/00000000000000000000");
    OpenOptions::new().write(true).open(units).unwrap().write_all_at(&[0; 20 * 90], 10 * 20).unwrap();
    let (code, said) = run("repair", &root, &[]);
    let line = said.lines().find(|line| line.starts_with("not mended: ")).unwrap_or_default();
    assert!(code == 1 && line.contains("orders/1 ends at offset 10") && line.contains("--queues"), "{code} {said}");
    let (code, said) = run("repair", &root, &["--queues"]);
    assert!(code == 0 && !said.contains("not mended"), "{code} {said}");
    let (store, _) = Store::open(StoreOptions::at(&root), StoreEnv::real()).unwrap();
    assert_eq!(store.existing_queue("orders", 1).unwrap().max_offset(), MESSAGES / 2);
    store.close().unwrap();
}

#[test]
fn a_repair_that_asks_for_the_configuration_says_first_what_is_wrong() {
    let (_folder, root) = store_of("SCHEDULE_TOPIC_XXXX", 1 << 30);
    fs::create_dir_all(root.join("config")).unwrap();
    fs::write(root.join("config/topics.json"), "{").unwrap();
    let (code, said) = run("repair", &root, &["--queues"]);
    assert!(code == 1 && said.contains("messageDelayLevel"), "{code} {said}");
    assert!(said.contains(root.join("config/topics.json").to_str().unwrap()) && said.contains("remedy: "), "{said}");
}

/// A store whose log has lost its first file, as retention does it. Also how many messages are left.
fn store_of_old() -> (tempfile::TempDir, PathBuf, u64) {
    let (folder, root) = store_of("orders", 16 << 10);
    fs::remove_file(log_file(&root)).unwrap();
    let (code, said) = json("verify", &root, &[]);
    assert_eq!(code, 0, "{said}");
    let left = said["records"].as_u64().unwrap();
    assert!(0 < left && left < MESSAGES, "{said}");
    (folder, root, left)
}

/// Leaves what `fetch` writes, of a queue of which the log has no message.
fn leave_fetched(root: &Path) {
    let fetched = r#"{"broker":"b:10911","at":0,"hasPopped":false,"queues":{"gone":{"0":1000}}}"#;
    fs::create_dir_all(root.join("config")).unwrap();
    fs::write(root.join("config/fetched.json"), fetched).unwrap();
}

/// The next number of that queue.
fn next_of_gone(root: &Path) -> Option<u64> {
    let (store, _) = Store::open(StoreOptions::at(root), StoreEnv::real()).unwrap();
    let next = store.existing_queue("gone", 0).map(|queue| queue.max_offset());
    store.close().unwrap();
    next
}

#[test]
fn a_repair_that_was_interrupted_comes_to_its_end_before_a_start() {
    let (folder, root, _) = store_of_old();
    // The databases are aside already.
    leave_fetched(&root);
    let said = fails(&server_on(folder.path()));
    assert!(said.contains("config/fetched.json") && said.contains("gantry store repair --rocksdb"), "{said}");
    for command in ["export", "verify"] {
        let (code, said) = run(command, &root, &[]);
        assert!(code == 1 && said.contains("gantry store repair --rocksdb"), "{command}: {code} {said}");
    }
    let (code, said) = run("repair", &root, &["--rocksdb"]);
    assert_eq!(code, 0, "{said}");
    assert!(root.join("cut/repair-1/config/fetched.json").exists(), "{said}");
    assert_eq!(next_of_gone(&root), Some(1000), "{said}");
    assert_eq!(Running::server(folder.path()).end("-TERM").0, Some(0));
}

#[test]
fn queues_in_rocksdb_that_are_built_with_all_others_go_on_at_the_numbers_that_were_fetched() {
    for name in ["consumequeue", "consumequeue_rocksdb"] {
        let (folder, root, left) = store_of_old();
        fs::remove_dir_all(root.join("consumequeue")).unwrap();
        database(&root.join(name));
        let said = fails(&server_on(folder.path()));
        assert!(said.contains(root.join(name).to_str().unwrap()) && said.contains("are in RocksDB"), "{said}");
        let (_, said) = run("verify", &root, &[]);
        assert!(said.contains(root.join(name).to_str().unwrap()) && said.contains("are in RocksDB"), "{said}");
        leave_fetched(&root);
        let settings = folder.path().join("broker.conf");
        fs::write(&settings, "brokerName=broker-a\n").unwrap();
        let (code, said) = run("repair", &root, &["--queues", "-c", settings.to_str().unwrap()]);
        assert_eq!(code, 0, "{said}");
        assert!(root.join("cut/repair-1").join(name).join("CURRENT").exists(), "{said}");
        let (code, said) = json("verify", &root, &[]);
        assert_eq!((code, &said["units"]), (0, &left.into()), "{said}");
        assert_eq!(next_of_gone(&root), Some(1000));
    }
}

#[test]
fn a_cause_is_said_once() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("lock")).unwrap();
    let root = folder.path().to_str().unwrap();
    let said = fails(&["store", "inspect", "--store", root]);
    assert_eq!(said, format!("gantry: cannot open {root}/lock: Is a directory (os error 21)"));
}
