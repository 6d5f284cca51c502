//! Commands whose reader has gone, as in `gantry store inspect --store S | head -3`.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{Running, gantry};

/// The writing end of a pipe that nobody reads.
fn unread() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

/// Exit code and standard error of a command whose output nobody reads.
fn unheard(words: &[&str]) -> (Option<i32>, String) {
    let ended = gantry(words).stdin(Stdio::null()).stdout(unread()).output().unwrap();
    (ended.status.code(), String::from_utf8_lossy(&ended.stderr).into_owned())
}

/// Runs a command with a reader, without one, and without a reader of standard error as well: it ends alike.
fn ends_alike(words: &[&str]) {
    let heard = gantry(words).stdin(Stdio::null()).output().unwrap();
    let expected = heard.status.code();
    assert!(!heard.stdout.is_empty(), "{words:?} says nothing: {}", String::from_utf8_lossy(&heard.stderr));
    let (code, errors) = unheard(words);
    assert!(
        code == expected && !errors.contains("panicked"),
        "{words:?} ends with {code:?}, not {expected:?}: {errors}"
    );
    let both = gantry(words).stdin(Stdio::null()).stdout(unread()).stderr(unread()).status().unwrap();
    assert_eq!(both.code(), expected, "{words:?} without a reader of standard error");
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_command_whose_output_nobody_reads_ends_quietly_and_as_it_would_with_a_reader() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let server = Running::server(&data);
    let (names, broker) = (server.address("namesrv").to_owned(), server.address("broker").to_owned());
    for words in [
        &["--help"][..],
        &["--version"],
        &["admin", "--help"],
        &["completion", "bash"],
        &["admin", "topicList"],
        &["admin", "topicList", "--json"],
        &["admin", "clusterList"],
        &["admin", "brokerStatus", "-c", "DefaultCluster"],
        &["admin", "topicRoute", "-t", "SELF_TEST_TOPIC"],
        &["admin", "updateTopic", "-c", "DefaultCluster", "-t", "unheard"],
        &["admin", "sendMessage", "-t", "unheard", "-p", "a"],
        &["admin", "printMsg", "-t", "unheard"],
        &["doctor", "--list"],
        &["doctor", "machine"],
        &["doctor", "machine", "--json"],
        &["doctor", "watch", "--seconds", "1"],
        &["bench", "presets"],
        &["bench", "presets", "sync-16"],
        &["bench", "run", "--quiet", "--set", "messages=10", "--set", "messageSize=64", "--warmup", "0"],
        &["server", "--print-config"],
        &["broker", "-p"],
        &["namesrv", "-p"],
    ] {
        let at_names: &[&str] = match words {
            ["admin", verb, ..] if !verb.starts_with("--") => &["-n", &names],
            ["bench", "run", ..] => &["-n", &names],
            ["doctor", "watch", ..] => &["--server", &broker],
            _ => &[],
        };
        ends_alike(&[words, at_names].concat());
    }
    // These would go on for ever.
    for words in [
        &["admin", "startMonitoring", "-n", &names][..],
        &["admin", "clusterList", "-i", "1", "-n", &names],
        &["admin", "clusterRT", "-a", "1", "-i", "1", "-n", &names],
        &["admin", "haStatus", "-c", "DefaultCluster", "-i", "1", "-n", &names],
        &["doctor", "watch", "--server", &broker],
    ] {
        let (code, errors) = unheard(words);
        assert_eq!(code, Some(0), "{words:?}: {errors}");
    }
    assert_eq!(server.end("-TERM").0, Some(0));

    let store = data.join("store");
    for command in ["inspect", "verify", "export", "repair"] {
        ends_alike(&["store", command, "--store", text(&store)]);
    }
    ends_alike(&["store", "export", "--messages", "-", "--store", text(&store)]);
    // The exit code tells what was found, with or without a reader.
    let log = store.join("commitlog/00000000000000000000");
    std::fs::OpenOptions::new().write(true).open(log).and_then(|file| file.set_len(4096)).unwrap();
    ends_alike(&["store", "verify", "--store", text(&store)]);
}

#[test]
fn a_work_that_nobody_reads_of_is_done_to_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::server(&dir.path().join("data"));
    let names = ["-n", server.address("namesrv")];
    let made =
        unheard(&[&["admin", "updateTopic", "-c", "DefaultCluster", "-t", "made", "-o", "true"], &names[..]].concat());
    assert_eq!(made, (Some(0), String::new()));
    let shown =
        gantry(&[&["admin", "updateOrderConf", "-t", "made", "-m", "get"], &names[..]].concat()).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains(":8"), "what follows the first sentence was not done: {shown}");
    server.end("-TERM");
}

#[test]
fn output_that_cannot_be_written_is_a_failure_that_is_told() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let ended = gantry(&["doctor", "--list"]).stdout(full).output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_ne!(ended.status.code(), Some(0), "{said}");
    assert!(said.starts_with("gantry: cannot write to standard output: No space left"), "{said}");
}

#[test]
fn a_server_whose_log_nobody_reads_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let words = ["server", "--data", text(&data), "--namesrv-port", "0", "--broker-port", "0"];
    let mut child = gantry(&words).stdout(Stdio::piped()).stderr(unread()).spawn().unwrap();
    let mut ready = String::new();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut out, &mut ready).unwrap();
    // From here on standard output is closed as well.
    drop(out);
    let names = ready.split(" namesrv=").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or_default();
    let sent =
        gantry(&["admin", "updateTopic", "-c", "DefaultCluster", "-t", "unheard", "-n", names]).output().unwrap();
    assert!(sent.status.success(), "{ready}{}", String::from_utf8_lossy(&sent.stderr));
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
