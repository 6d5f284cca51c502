//! The property file: what a start refuses of it, all at once; what a change by request leaves of it; and a store that is not where it says.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::{Running, fails, gantry, without_environment};

/// `gantry admin` at a broker.
fn admin(running: &Running, words: &[&str]) -> Output {
    let address = running.address("broker").to_owned();
    gantry(&[&["admin"], words, &["-b", &address]].concat()).output().unwrap()
}

fn set(running: &Running, key: &str, value: &str) -> Output {
    admin(running, &["updateBrokerConfig", "-k", key, "-v", value])
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn in_force(running: &Running, key: &str) -> String {
    let shown = text(&admin(running, &["getBrokerConfig"]).stdout);
    let line =
        shown.lines().find(|line| line.split_whitespace().next() == Some(key)).unwrap_or_else(|| panic!("{shown}"));
    line.rsplit(' ').next().unwrap().to_owned()
}

fn broker_with(file: &Path) -> Vec<String> {
    ["broker", "-c", file.to_str().unwrap(), "--port", "0"].map(str::to_owned).to_vec()
}

fn started(file: &Path) -> Running {
    let words = broker_with(file);
    // In our own home there may be a store.
    let home = file.parent().unwrap().join("home");
    Running::start(gantry(&words.iter().map(String::as_str).collect::<Vec<_>>()).env("HOME", home))
}

#[test]
fn a_change_is_in_the_file_when_it_is_acknowledged_and_all_else_of_the_file_is_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let (real, link) = (folder.path().join("real.conf"), folder.path().join("broker.conf"));
    let root = folder.path().join("store");
    // A comment in GBK, line ends of Windows, and a last line that would go on.
    let mut before = b"# \xc5\xe4\xd6\xc3\r\nbrokerIP1=127.0.0.1\r\nmaxMessageSize=1024\r\n".to_vec();
    before.extend(format!("storePathRootDir={}\\", root.display()).into_bytes());
    fs::write(&real, &before).unwrap();
    symlink("real.conf", &link).unwrap();
    let running = started(&link);
    let told = set(&running, "brokerPermission", "4");
    assert!(told.status.success(), "{}", text(&told.stderr));
    assert!(set(&running, "maxMessageSize", "2048").status.success());
    // No stop in good order: what is acknowledged is there.
    let mut expected = b"# \xc5\xe4\xd6\xc3\r\nbrokerIP1=127.0.0.1\r\nmaxMessageSize=2048\r\n".to_vec();
    expected.extend(format!("storePathRootDir={}\\\r\n\r\nbrokerPermission=4", root.display()).into_bytes());
    assert_eq!(text(&fs::read(&real).unwrap()), text(&expected));
    assert_eq!(fs::read(&real).unwrap(), expected);
    assert!(link.is_symlink());
    running.end("-KILL");
    let running = started(&link);
    assert_eq!(
        (in_force(&running, "brokerPermission").as_str(), in_force(&running, "maxMessageSize").as_str()),
        ("4", "2048")
    );
    assert!(
        running
            .log_line("store opened")
            .is_some_and(|line| line.contains(&format!("{:?}", root.display().to_string())))
    );
    assert_eq!(running.end("-TERM").0, Some(0));
}

/// As containers mount a single file: nothing can take its place.
#[test]
fn a_file_that_is_a_mount_of_its_own_is_written_in_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broker.conf");
    let text_before = format!(
        "# mine\nbrokerIP1=127.0.0.1\nbrokerPermission=6\nstorePathRootDir={}\n",
        folder.path().join("store").display()
    );
    fs::write(&path, &text_before).unwrap();
    let mounted = "mount --bind \"$1\" \"$1\" && shift && exec \"$@\"";
    let in_namespace = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-c", mounted, "sh", path.to_str().unwrap()]).args(words);
        without_environment(&mut command);
        command
    };
    if !in_namespace(&["true"]).status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: this user may not mount a file on itself");
        return;
    }
    let words = broker_with(&path);
    let words: Vec<&str> = [env!("CARGO_BIN_EXE_gantry")].into_iter().chain(words.iter().map(String::as_str)).collect();
    let running = Running::start(&mut in_namespace(&words));
    let told = set(&running, "brokerPermission", "4");
    assert!(told.status.success(), "{}", text(&told.stderr));
    let expected = text_before.replace("brokerPermission=6", "brokerPermission=4");
    assert_eq!(fs::read_to_string(&path).unwrap(), expected);
    assert!(set(&running, "messageDelayLevel", "1s").status.code() != Some(0), "it is read at start only");
    assert!(set(&running, "transactionTimeOut", "7000").status.success());
    assert_eq!(fs::read_to_string(&path).unwrap(), format!("{expected}transactionTimeOut=7000\n"));
    let mut beside: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    beside.sort();
    assert_eq!(beside, ["broker.conf", "store"]);
    assert_eq!(running.end("-TERM").0, Some(0));
}

#[test]
fn a_change_that_cannot_be_written_is_in_force_and_the_answer_says_so_and_why() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broker.conf");
    fs::write(&path, format!("brokerIP1=127.0.0.1\nstorePathRootDir={}\n", folder.path().join("store").display()))
        .unwrap();
    let running = started(&path);
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let told = set(&running, "brokerPermission", "4");
    let said = text(&told.stderr);
    assert!(!told.status.success(), "{}", text(&told.stdout));
    for part in ["brokerPermission: in force until the broker stops, not written", path.to_str().unwrap()] {
        assert!(said.contains(part), "{said}");
    }
    assert_eq!(in_force(&running, "brokerPermission"), "4");
    // The next one that can be written takes along what could not.
    fs::remove_dir(&path).unwrap();
    fs::write(&path, "# anew\n").unwrap();
    assert!(set(&running, "transactionTimeOut", "7000").status.success());
    assert_eq!(fs::read_to_string(&path).unwrap(), "# anew\nbrokerPermission=4\ntransactionTimeOut=7000\n");
    let empty = set(&running, "brokerPermission", "");
    assert!(!empty.status.success() && text(&empty.stderr).contains("brokerPermission= "), "{}", text(&empty.stderr));
    assert_eq!(in_force(&running, "brokerPermission"), "4");
    assert_eq!(running.end("-TERM").0, Some(0));
}

#[test]
fn a_name_server_keeps_changes_as_a_broker_does() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("namesrv.conf");
    let before = b"# \xc5\xe4\xd6\xc3\norderMessageEnable=false\n".to_vec();
    fs::write(&path, &before).unwrap();
    let kv = format!("kvConfigPath={}", folder.path().join("kvConfig.json").display());
    let running = Running::start(&mut gantry(&[
        "namesrv",
        "-c",
        path.to_str().unwrap(),
        "--port",
        "0",
        "--set",
        &kv,
        "--set",
        "bindAddress=127.0.0.1",
    ]));
    let set = |key: &str, value: &str| {
        let names = running.address("namesrv");
        gantry(&["admin", "updateNamesrvConfig", "-k", key, "-v", value, "-n", names]).output().unwrap()
    };
    assert!(set("orderMessageEnable", "true").status.success());
    assert_eq!(fs::read(&path).unwrap(), b"# \xc5\xe4\xd6\xc3\norderMessageEnable=true\n");
    let unknown = set("orderMessageEnabel", "true");
    assert!(!unknown.status.success() && text(&unknown.stderr).contains("there is no key orderMessageEnabel"));
    assert_eq!(fs::read(&path).unwrap(), b"# \xc5\xe4\xd6\xc3\norderMessageEnable=true\n");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let unwritten = set("needWaitForService", "true");
    let said = text(&unwritten.stderr);
    assert!(
        !unwritten.status.success() && said.contains("in force until the name server stops, not written"),
        "{said}"
    );
    let shown = gantry(&["admin", "getNamesrvConfig", "-n", running.address("namesrv")]).output().unwrap();
    assert!(text(&shown.stdout).lines().any(|line| line.starts_with("needWaitForService") && line.ends_with("true")));
    assert_eq!(running.end("-TERM").0, Some(0));
}

#[test]
fn a_change_that_an_option_or_a_variable_overrides_at_the_next_start_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broker.conf");
    let before = format!(
        "brokerIP1=127.0.0.1\nbrokerPermission=6\ntransactionTimeOut=6000\nmaxMessageSize=4194304\nstorePathRootDir={}\n",
        folder.path().join("store").display()
    );
    fs::write(&path, &before).unwrap();
    let start = || {
        let words = [broker_with(&path), ["--set", "transactionTimeOut=8000"].map(str::to_owned).to_vec()].concat();
        let mut command = gantry(&words.iter().map(String::as_str).collect::<Vec<_>>());
        Running::start(command.env("HOME", folder.path().join("home")).env("GANTRY_SET_brokerPermission", "6"))
    };
    let running = start();
    for (key, value, wins) in [
        ("brokerPermission", "4", "the next start takes \"6\" from environment GANTRY_SET_brokerPermission"),
        ("transactionTimeOut", "7000", "the next start takes \"8000\" from option --set"),
    ] {
        let told = set(&running, key, value);
        assert!(told.status.success() && text(&told.stdout).contains(wins), "{}", text(&told.stdout));
        assert_eq!(in_force(&running, key), value);
    }
    let told = set(&running, "maxMessageSize", "2048");
    assert!(told.status.success() && !text(&told.stdout).contains("next start"), "{}", text(&told.stdout));
    let after = before
        .replace("brokerPermission=6", "brokerPermission=4")
        .replace("transactionTimeOut=6000", "transactionTimeOut=7000")
        .replace("maxMessageSize=4194304", "maxMessageSize=2048");
    assert_eq!(fs::read_to_string(&path).unwrap(), after);
    let (code, log) = running.end("-TERM");
    assert_eq!(code, Some(0));
    let warned = |line: &&str| line.contains("changed settings do not hold after the next start");
    assert_eq!(log.lines().filter(warned).count(), 2, "{log}");
    // And so it is.
    let running = start();
    assert_eq!(
        (in_force(&running, "brokerPermission"), in_force(&running, "maxMessageSize")),
        ("6".to_owned(), "2048".to_owned())
    );
    assert_eq!(running.end("-TERM").0, Some(0));
}

#[test]
fn a_change_of_a_broker_without_a_file_is_said_to_be_forgotten() {
    let data = tempfile::tempdir().unwrap();
    let running = Running::server(data.path());
    let told = set(&running, "brokerPermission", "4");
    assert!(told.status.success() && text(&told.stdout).contains("until the broker stops"), "{}", text(&told.stdout));
    assert_eq!(running.end("-TERM").0, Some(0));
}

#[test]
fn printing_the_settings_refuses_what_a_start_refuses_all_of_it_with_its_lines() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broker.conf");
    fs::write(
        &path,
        "brokerIP1=change me\nmessageDelayLevel=1s,5s\nmappedFileSizeCommitLog=10\nnamesrvAddr=127.0.0.1\nbrokerRole=SLAVE\n",
    )
    .unwrap();
    let path_text = path.to_str().unwrap();
    let said = |words: &[&str]| text(&gantry(words).output().unwrap().stderr);
    let (printed, started) = (said(&["broker", "-c", path_text, "-p"]), said(&["broker", "-c", path_text]));
    assert_eq!(printed, started);
    let lines: Vec<String> = (1..=5).map(|line| format!("({path_text}:{line})")).collect();
    assert!(lines.iter().all(|line| started.contains(line)), "{started}");
    let doctor = gantry(&["doctor", "configuration", "-c", path_text]).output().unwrap();
    let told = text(&doctor.stdout);
    for key in ["brokerIP1=change me", "messageDelayLevel=1s,5s", "mappedFileSizeCommitLog=10", "namesrvAddr=127.0.0.1"]
    {
        assert!(told.contains(key), "{key}: {told}");
    }
    // A file that is not there is named with the line that names it.
    let pem = folder.path().join("no.pem");
    fs::write(
        &path,
        format!("# one\ntls.test.mode.enable=false\ntls.server.certPath={0}\ntls.server.keyPath={0}\n", pem.display()),
    )
    .unwrap();
    let said = fails(&["broker", "-c", path_text, "-p"]);
    assert!(said.contains(&format!("tls.server.certPath={}, {path_text}:3", pem.display())), "{said}");
    assert_eq!(said.matches("No such file").count(), 1, "{said}");
}

#[test]
fn a_file_of_something_else_starts_no_broker() {
    let folder = tempfile::tempdir().unwrap();
    let acl = folder.path().join("plain_acl.yml");
    fs::write(
        &acl,
        "globalWhiteRemoteAddresses:\n- 10.10.103.*\naccounts:\n- accessKey: RocketMQ\n  secretKey: 12345678\n",
    )
    .unwrap();
    let binary = env!("CARGO_BIN_EXE_gantry");
    for file in [acl.to_str().unwrap(), binary] {
        let said = fails(&["broker", "-c", file, "-p"]);
        assert!(
            said.contains(file) && (said.contains("is not a property file") || said.contains("a property file has")),
            "{said}"
        );
    }
}

#[test]
fn a_new_store_is_called_new_and_others_beside_it_and_other_names_in_it_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broker.conf");
    let conf = |store: &str, name: &str| {
        let store = folder.path().join(store);
        fs::write(&path, format!("brokerIP1=127.0.0.1\nbrokerName={name}\nstorePathRootDir={}\n", store.display()))
            .unwrap();
    };
    conf("store", "broker-a");
    let first = started(&path);
    let (_, said) = first.end("-TERM");
    assert!(said.contains("a new store is begun") && said.contains("store=\"new\""), "{said}");
    assert!(!said.contains("stores beside it"), "{said}");
    let (_, said) = started(&path).end("-TERM");
    assert!(!said.contains("a new store is begun") && said.contains("store=\"as found\""), "{said}");
    conf("stroe", "broker-a");
    let (_, said) = started(&path).end("-TERM");
    assert!(
        said.contains("stores beside it") && said.contains(folder.path().join("store").to_str().unwrap()),
        "{said}"
    );
    conf("store", "broker-b");
    let (_, said) = started(&path).end("-TERM");
    assert!(said.contains("brokerName is broker-b, and the store was that of broker-a"), "{said}");
    let (_, said) = started(&path).end("-TERM");
    assert!(!said.contains("was that of broker-a"), "it is said once: {said}");
}

#[test]
fn a_file_of_topics_with_a_mark_is_read_and_one_without_topics_takes_none_away() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broker.conf");
    let store = folder.path().join("store");
    fs::write(&path, format!("brokerIP1=127.0.0.1\nstorePathRootDir={}\n", store.display())).unwrap();
    let running = started(&path);
    assert!(admin(&running, &["updateTopic", "-t", "orders"]).status.success());
    assert_eq!(running.end("-TERM").0, Some(0));
    let topics = store.join("config/topics.json");
    let before = fs::read(&topics).unwrap();
    // An editor that leaves a mark: Apache's broker reads it too.
    fs::write(&topics, [b"\xef\xbb\xbf", before.as_slice()].concat()).unwrap();
    let (code, said) = started(&path).end("-TERM");
    assert!(code == Some(0) && said.contains("topics.json changed by another broker"), "{said}");
    for nothing in ["{}", "{\"topicConfigTable\":{}}"] {
        fs::write(&topics, nothing).unwrap();
        let words = broker_with(&path);
        let said = fails(&words.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(said.contains("topics.json") && said.contains("nothing in topicConfigTable"), "{said}");
    }
    fs::write(&topics, before).unwrap();
    let running = started(&path);
    assert!(text(&admin(&running, &["brokerStatus"]).stdout).contains("bootTimestamp"));
    assert_eq!(running.end("-TERM").0, Some(0));
}
