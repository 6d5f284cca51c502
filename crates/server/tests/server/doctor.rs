//! `gantry doctor` and `gantry doctor watch` as an operator runs them: on a folder, on a file, on a server that runs.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use crate::support::{PATIENCE, Running, fails, gantry};
use net::{Client, ClientOptions};
use protocol::code::request;
use protocol::request::SendMessage;
use serde_json::Value;

/// What it printed, and its exit code.
fn doctor(arguments: &[&str]) -> (String, i32) {
    let words: Vec<&str> = ["doctor"].into_iter().chain(arguments.iter().copied()).collect();
    let Output { status, stdout, stderr } = gantry(&words).output().unwrap();
    let said = String::from_utf8(stdout).unwrap();
    (said + &String::from_utf8(stderr).unwrap(), status.code().unwrap())
}

/// Whatever is asked for, findings say what they promise to.
fn json(arguments: &[&str]) -> (Value, i32) {
    let (said, code) = doctor(&[arguments, &["--json"]].concat());
    let report: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
    report["findings"].as_array().unwrap().iter().for_each(assert_is_whole);
    (report, code)
}

/// What was read and where; of more than ok what it does; of what is bad what helps.
fn assert_is_whole(finding: &Value) {
    let says = |part: &Value| part.as_str().is_some_and(|text| !text.is_empty());
    assert!(["id", "family", "severity", "title"].iter().all(|part| says(&finding[part])), "{finding}");
    let evidence = finding["evidence"].as_array().unwrap();
    assert!(
        !evidence.is_empty() && evidence.iter().all(|seen| says(&seen["from"]) && seen["value"].is_string()),
        "{finding}"
    );
    let severity = finding["severity"].as_str().unwrap();
    assert!(severity == "ok" || says(&finding["effect"]), "{finding}");
    assert!(["ok", "note"].contains(&severity) || says(&finding["fix"]), "{finding}");
}

/// The findings of a check: subject and severity.
fn of<'a>(report: &'a Value, id: &str) -> Vec<(&'a str, &'a str)> {
    let findings = report["findings"].as_array().unwrap();
    let of_check = findings.iter().filter(|one| one["id"] == id);
    of_check.map(|one| (one["subject"].as_str().unwrap_or(""), one["severity"].as_str().unwrap())).collect()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn the_exit_code_is_that_of_the_worst_finding() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("broker.conf");
    for (line, code) in
        [("brokerName=a", 0), ("sendMessageThreadPoolNums=12", 0), ("brokerNam=a", 1), ("listenPort=ten", 2)]
    {
        std::fs::write(&file, format!("{line}\n")).unwrap();
        let (said, is) = doctor(&["-c", text(&file), "--only", "configuration", "--skip", "contradictions"]);
        assert_eq!(is, code, "{line}: {said}");
    }
    let missing = folder.path().join("missing.conf");
    let (said, code) = doctor(&["configuration", "-c", text(&missing)]);
    assert!(code == 3 && said.contains("missing.conf cannot be read"), "{said}");
    let (said, code) = doctor(&["server", "--data", text(folder.path()), "--server", "127.0.0.1:1"]);
    assert!(code == 3 && said.contains("does not answer"), "{said}");
    let (said, code) = doctor(&["nosuchcheck"]);
    assert!(code == 3 && said.contains("there is no check nosuchcheck"), "{said}");
}

#[test]
fn a_list_names_every_check_and_a_choice_makes_only_those() {
    let (said, code) = doctor(&["--list"]);
    assert_eq!(code, 0);
    assert!(
        said.lines().count() > 35 && said.contains("vm.extra_free_kbytes") && said.contains("io-scheduler"),
        "{said}"
    );
    let folder = tempfile::tempdir().unwrap();
    let data = text(folder.path());
    let (report, _) = json(&["vm.swappiness", "--data", data, "--only", "vm.dirty_ratio,nofile"]);
    let mut ids: Vec<&str> =
        report["findings"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap()).collect();
    ids.dedup();
    assert_eq!(ids, ["vm.swappiness", "vm.dirty_ratio", "nofile"]);
}

#[test]
fn this_machine_is_looked_at_in_full_and_nothing_of_it_stays() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    std::fs::create_dir_all(data.join("store")).unwrap();
    let (report, code) = json(&["--data", text(&data)]);
    assert_eq!(report["exitCode"], code);
    for finding in report["findings"].as_array().unwrap() {
        assert_is_whole(finding);
    }
    let flush = report["findings"].as_array().unwrap().iter().find(|one| one["id"] == "fdatasync").unwrap();
    assert!(flush["figures"]["p99Millis"].as_f64().unwrap() > 0.0, "{flush}");
    assert_eq!(std::fs::read_dir(data.join("store")).unwrap().count(), 0);

    let (said, _) = doctor(&["disk", "--data", text(&data), "--no-disk-test"]);
    assert!(said.contains("not measured, as was asked"), "{said}");
}

#[test]
fn a_port_that_is_taken_and_an_address_that_leads_nowhere_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("broker.conf");
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = holder.local_addr().unwrap().port();
    let lines = format!("brokerIP1=127.0.0.1\nbindAddress=127.0.0.1\nlistenPort={port}\nnamesrvAddr=192.0.2.1:9876\n");
    std::fs::write(&file, format!("{lines}storePathRootDir={}\n", text(folder.path()))).unwrap();
    let (report, code) = json(&["-c", text(&file), "advertised-address", "listen-port"]);
    assert_eq!(code, 2);
    assert_eq!(of(&report, "advertised-address"), [("", "error")]);
    assert_eq!(of(&report, "listen-port")[0], (port.to_string().as_str(), "error"));
}

#[test]
fn a_port_that_another_broker_has_is_an_error_and_what_that_one_tells_is_not_shown() {
    let folder = tempfile::tempdir().unwrap();
    let other = Running::server_with(&folder.path().join("data"), &["--set", "brokerName=broker-a"]);
    let at = other.address("broker").to_owned();
    let (_, port) = at.rsplit_once(':').unwrap();
    let (file, store) = (folder.path().join("broker.conf"), folder.path().join("store"));
    let lines = format!("brokerName=broker-b\nbrokerIP1=127.0.0.1\nbindAddress=127.0.0.1\nlistenPort={port}\n");
    std::fs::write(&file, format!("{lines}storePathRootDir={}\n", text(&store))).unwrap();
    let (report, code) = json(&["-c", text(&file), "listen-port", "server"]);
    assert_eq!(code, 2, "{report}");
    assert_eq!(of(&report, "listen-port"), [(port, "error")], "{report}");
    assert!(report.to_string().contains("its name is broker-a"), "{report}");
    assert_eq!(of(&report, "server"), [("", "ok")], "{report}");
    for id in ["refusals", "limits", "flush-lag", "deliveries", "process", "page-faults"] {
        assert!(of(&report, id).is_empty(), "{id}: {report}");
    }
    // Who names it means it.
    let (report, _) = json(&["-c", text(&file), "--server", &at, "limits", "listen-port"]);
    assert_eq!((of(&report, "limits"), of(&report, "listen-port")), (vec![("", "ok")], vec![("", "ok")]), "{report}");
    other.end("-TERM");
}

#[test]
fn a_server_that_runs_is_found_by_its_store_and_asked() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Running::server(&data);
    let at = server.address("broker").to_owned();
    let (_, port) = at.rsplit_once(':').unwrap();
    let (names, set) = (server.address("namesrv").to_owned(), format!("listenPort={port}"));
    let words = ["--data", text(&data), "--set", &set, "-n", &names];
    let (report, code) = json(&[&words[..], &["server", "store", "address"]].concat());
    assert_eq!(code, 0, "{report}");
    let ids = [
        "server",
        "limits",
        "flush-lag",
        "deliveries",
        "page-faults",
        "store-owner",
        "listen-port",
        "name-servers",
        "route",
    ];
    for id in ids {
        assert!(of(&report, id).iter().all(|(_, severity)| *severity == "ok"), "{id}: {report}");
        assert!(!of(&report, id).is_empty(), "{id}: {report}");
    }
    let owner = report["findings"].as_array().unwrap().iter().find(|one| one["id"] == "store-owner").unwrap();
    assert_eq!(owner["figures"]["pid"], server.pid());

    // Another broker of the same name, as a name server sees it.
    let (report, code) = json(&[&words[..], &["--set", "brokerIP1=127.0.0.2", "route"]].concat());
    assert!(code == 2 && of(&report, "route") == [(names.as_str(), "error")], "{report}");

    // The port does not answer on other addresses of this machine: the server listens on one only. So nothing is said of brokerIP2 there, but
    // that slaves are told to get the log at it.
    let second = ["--set", "brokerIP2=127.0.0.3", "advertised-address", "listen-port"];
    let (report, _) = json(&[&words[..], &second].concat());
    assert_eq!(of(&report, "advertised-address"), [("", "ok"), ("brokerIP2", "ok")], "{report}");
    assert_eq!(of(&report, "listen-port"), [("", "ok"), ("haListenPort", "warning")], "{report}");
    // Where it says that it listens on all of them, it is asked there.
    let (report, _) = json(&[&words[..], &["--set", "bindAddress=0.0.0.0"], &second].concat());
    assert!(of(&report, "listen-port").contains(&("brokerIP2", "warning")), "{report}");

    // Its own command line tells the same.
    let pid = server.pid().to_string();
    let (report, _) = json(&["--pid", &pid, "store-folder", "store-owner"]);
    assert!(report.to_string().contains(text(&data)), "{report}");
    assert_eq!(of(&report, "store-owner"), [("", "ok")]);

    let (code, said) = server.end("-KILL");
    assert_eq!(code, None, "{said}");
    let (report, code) = json(&["--data", text(&data), "store"]);
    assert_eq!(of(&report, "store-owner"), [("", "note")], "{report}");
    assert_eq!(code, 0);
}

#[test]
fn what_stops_a_start_is_found_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Running::server(&data);
    send(server.address("broker"), 1);
    server.end("-TERM");
    let store = data.join("store");
    let look = || {
        let (report, code) = json(&["--data", text(&data), "store-format"]);
        let found = of(&report, "store-format");
        let found: Vec<(String, String)> =
            found.iter().map(|(one, how)| ((*one).to_owned(), (*how).to_owned())).collect();
        (found, code)
    };
    assert_eq!(look(), (vec![(String::new(), "ok".to_owned())], 0));
    let journal = std::fs::read_dir(store.join("journal")).unwrap().map(|entry| entry.unwrap().path());
    let journal = journal.filter(|path| path.extension().is_some_and(|kind| kind == "journal")).max().unwrap();
    let name = |path: &Path| path.strip_prefix(&store).unwrap().display().to_string();
    let topics = store.join("config/topics.json");
    let queue = store.join("consumequeue/watched/0/00000000000000000000");
    for (path, damage) in [(&journal, 0), (&topics, 1), (&queue, 2), (&topics, 3)] {
        let whole = std::fs::read(path).unwrap();
        let mut bytes = whole.clone();
        match damage {
            0 => bytes[8] ^= 0x20,
            1 => bytes.truncate(bytes.len() / 2),
            2 => bytes.push(0),
            _ => bytes = br#"{"topicConfigTable":[]}"#.to_vec(),
        }
        std::fs::write(path, &bytes).unwrap();
        assert_eq!(look(), (vec![(name(path), "error".to_owned())], 2), "{}", path.display());
        fails(&["server", "--data", text(&data), "--namesrv-port", "0", "--broker-port", "0"]);
        std::fs::write(path, &whole).unwrap();
    }
    Running::server(&data).end("-TERM");
}

/// Sends messages of 100 bytes to a queue, one after the other; says how many were acknowledged.
fn send(broker: &str, messages: usize) -> usize {
    send_to(broker, "watched", std::iter::repeat_n(0, messages))
}

/// The same, to these queues of a topic.
fn send_to(broker: &str, topic: &str, queues: impl ExactSizeIterator<Item = i32>) -> usize {
    let messages = queues.len();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::new(ClientOptions::default());
        for queue_id in queues {
            let message = SendMessage {
                producer_group: "PG",
                topic,
                default_topic: "TBW102",
                default_topic_queue_nums: 1,
                queue_id,
                ..SendMessage::default()
            };
            let body = vec![b'x'; 100].into();
            let answer = client.call(broker, request::SEND_MESSAGE_V2, &message, body, PATIENCE).await.unwrap();
            assert_eq!(answer.code, 0, "{:?}", answer.remark);
        }
        messages
    })
}

/// `vm.max_map_count` is 65530 by default, and brokers that map the files of their queues need more for some ten thousand queues.
#[test]
fn mappings_of_a_broker_do_not_grow_with_its_queues() {
    const QUEUES: i32 = 4000;
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Running::server(&data);
    let broker = server.address("broker").to_owned();
    let queues = QUEUES.to_string();
    let made =
        gantry(&["admin", "updateTopic", "-b", &broker, "-t", "many", "-r", &queues, "-w", &queues]).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    // Whatever the first messages need: files, threads, the allocator's own.
    send_to(&broker, "many", 0..100);
    let mappings = || std::fs::read_to_string(format!("/proc/{}/maps", server.pid())).unwrap().lines().count();
    let before = mappings();
    send_to(&broker, "many", 0..QUEUES);
    let consume_queues = data.join("store/consumequeue/many");
    let deadline = std::time::Instant::now() + PATIENCE;
    let on_disk = || std::fs::read_dir(&consume_queues).map_or(0, Iterator::count);
    while on_disk() < QUEUES as usize {
        assert!(std::time::Instant::now() < deadline, "{} queues are on disk", on_disk());
        std::thread::sleep(Duration::from_millis(20));
    }
    let after = mappings();
    assert!(after < before + QUEUES as usize / 20, "{before} mappings before, {after} with {QUEUES} queues");
    server.end("-TERM");
}

#[test]
fn watch_counts_the_messages_that_were_sent() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Running::server(&data);
    let broker = server.address("broker").to_owned();
    let before = send(&broker, 1);
    let mut watch =
        gantry(&["doctor", "watch", "--data", text(&data), "--server", &broker, "--seconds", "60", "--json"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut look = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    let first = look();
    assert_eq!(first["broker"]["inTotal"], before as f64, "{first}");

    // What the rates of all looks come to is what was sent, whichever look they fall into; and the queue is named.
    let sent = send(&broker, 500);
    let (mut counted, mut queue) = (0.0, None);
    for _ in 0..30 {
        let look = look();
        counted += look["broker"]["inPerSecond"].as_f64().unwrap() * look["seconds"].as_f64().unwrap();
        let queues = look["broker"]["queues"].as_array().unwrap();
        queue = queue.or_else(|| queues.iter().find(|queue| queue["topic"] == "watched").cloned());
        let has_all = look["broker"]["inTotal"] == (before + sent) as f64;
        if has_all && queue.is_some() {
            assert!(look["process"]["residentBytes"].as_f64().unwrap() > 0.0, "{look}");
            break;
        }
    }
    // The looks of the broker and of the kernel are a moment apart.
    assert!((counted - sent as f64).abs() < sent as f64 / 4.0, "{counted} of {sent}");
    let queue = queue.expect("the queue was never shown");
    assert!(queue["queueId"] == 0 && queue["inPerSecond"].as_f64().unwrap() > 0.0, "{queue}");
    watch.kill().unwrap();
    watch.wait().unwrap();

    let line =
        gantry(&["doctor", "watch", "--data", text(&data), "--server", &broker, "--seconds", "1"]).output().unwrap();
    let said = String::from_utf8(line.stdout).unwrap();
    assert!(line.status.success() && said.contains("backlog") && said.contains("| net in "), "{said}");
    server.end("-TERM");

    let gone = Duration::from_secs(30);
    let began = std::time::Instant::now();
    let line =
        gantry(&["doctor", "watch", "--data", text(&data), "--server", &broker, "--seconds", "1"]).output().unwrap();
    assert!(String::from_utf8(line.stdout).unwrap().contains("broker does not answer") && began.elapsed() < gone);
}

#[test]
fn watch_shows_the_process_of_a_broker_of_which_only_the_address_is_said_or_says_why_not() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Running::server(&data);
    let broker = server.address("broker").to_owned();
    let look = |broker: &str| -> Value {
        let watch = gantry(&["doctor", "watch", "--server", broker, "--seconds", "1", "--json"])
            .current_dir(folder.path().join("elsewhere"))
            .output()
            .unwrap();
        let said = String::from_utf8(watch.stdout).unwrap();
        serde_json::from_str(said.lines().next().unwrap()).unwrap()
    };
    // No folder `data` here, where `gantry server` would have its store.
    std::fs::create_dir(folder.path().join("elsewhere")).unwrap();
    let here = look(&broker);
    assert!(here["process"]["residentBytes"].as_f64().is_some_and(|bytes| bytes > 0.0), "{here}");
    assert!(here["broker"].is_object(), "{here}");
    server.end("-TERM");
    let gone = look(&broker);
    assert!(gone["process"].is_null() && gone["processError"].as_str().unwrap().contains("nobody listens"), "{gone}");
    let far = look("203.0.113.9:10911");
    assert!(far["processError"].as_str().unwrap().contains("not an address of this machine"), "{far}");
}

#[test]
fn a_fix_is_shown_and_not_made_unless_somebody_agrees() {
    let swappiness = || std::fs::read_to_string("/proc/sys/vm/swappiness").unwrap();
    let before = swappiness();
    // Nobody is there to agree: standard input is empty.
    let (said, code) = doctor(&["vm.swappiness", "vm.zone_reclaim_mode", "--fix"]);
    assert!(code < 2 && said.contains("\nfix\n"), "{code} {said}");
    assert_eq!(swappiness(), before);
    for wrong in [&["--yes"][..], &["--fix", "--json"], &["--fix", "--list"]] {
        let (said, code) = doctor(wrong);
        assert!(code == 2 && said.contains("--fix"), "{wrong:?}: {code} {said}");
    }
}
