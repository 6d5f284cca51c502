//! `gantry profile` of a running server, as an operator takes it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStderr, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::support::{PATIENCE, Running, gantry};
use net::{Client, ClientOptions};
use protocol::code::request;
use protocol::request::SendMessage;

/// Eight producers, each with one message on the way, until it is dropped.
struct Load {
    acknowledged: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
    producers: Option<JoinHandle<()>>,
}

impl Load {
    fn on(broker: &str) -> Load {
        let (acknowledged, is_over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, end, broker) = (Arc::clone(&acknowledged), Arc::clone(&is_over), broker.to_owned());
        let producers = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let client = Client::new(ClientOptions::default());
                let mut producers = tokio::task::JoinSet::new();
                for queue_id in 0..8 {
                    let (client, broker, count, end) =
                        (client.clone(), broker.clone(), Arc::clone(&count), Arc::clone(&end));
                    producers.spawn(async move {
                        while !end.load(Ordering::Relaxed) {
                            let message = SendMessage {
                                producer_group: "PG",
                                topic: "load",
                                default_topic: "TBW102",
                                default_topic_queue_nums: 8,
                                queue_id,
                                ..SendMessage::default()
                            };
                            let body = vec![b'x'; 1024].into();
                            match client.call(&broker, request::SEND_MESSAGE_V2, &message, body, PATIENCE).await {
                                Ok(answer) => assert_eq!(answer.code, 0, "{:?}", answer.remark),
                                // The test has ended the server.
                                Err(_) => return,
                            }
                            count.fetch_add(1, Ordering::Relaxed);
                        }
                    });
                }
                producers.join_all().await;
            });
        });
        Load { acknowledged, is_over, producers: Some(producers) }
    }

    fn acknowledged(&self) -> usize {
        self.acknowledged.load(Ordering::Relaxed)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // A producer that was refused has failed the test.
        let ended = self.producers.take().unwrap().join();
        assert!(std::thread::panicking() || ended.is_ok());
    }
}

/// Begins a profile and waits until it looks. Nothing if this machine's kernel forbids it, as in some containers.
fn begin(server: &Running, seconds: &str, folder: &Path) -> Option<(Child, BufReader<ChildStderr>)> {
    let (pid, path) = (server.pid().to_string(), |name: &str| folder.join(name).to_str().unwrap().to_owned());
    let mut child = gantry(&[
        "profile",
        "--pid",
        &pid,
        "--seconds",
        seconds,
        "--frequency",
        "499",
        "-o",
        &path("a.svg"),
        "--folded",
        &path("a.txt"),
    ])
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    if line.contains("the kernel does not let this user look") {
        eprintln!("what a profile shows is not tested: {line}");
        assert_eq!(child.wait().unwrap().code(), Some(1));
        return None;
    }
    assert_eq!(line, format!("looking at process {pid} for {seconds} s\n"));
    Some((child, said))
}

/// For how long it looked, as the first line of what a profile tells says: `N samples in 3.0 s …`.
fn seconds_in(told: &str) -> f64 {
    let (_, after) = told.split_once(" samples in ").unwrap_or_else(|| panic!("{told}"));
    after.split(' ').next().unwrap().parse().unwrap_or_else(|_| panic!("{told}"))
}

/// What the program said on standard error; it must have failed with this code.
fn refused(arguments: &[&str], code: i32) -> String {
    let Output { status, stderr, .. } = gantry(arguments).output().unwrap();
    let said = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(code), "{said}");
    said
}

#[test]
fn a_profile_of_a_server_under_load_names_threads_and_functions_and_holds_up_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::server(&dir.path().join("data"));
    let load = Load::on(server.address("broker"));
    let Some((mut profile, _said)) = begin(&server, "3", dir.path()) else { return };

    let before = load.acknowledged();
    let pid = server.pid().to_string();
    let second = refused(&["profile", "--pid", &pid, "-o", dir.path().join("b.svg").to_str().unwrap()], 1);
    assert!(second.contains(&format!("a profile of process {pid} is being taken")), "{second}");
    assert!(!dir.path().join("b.svg").exists());

    let out = BufReader::new(profile.stdout.take().unwrap());
    let told: Vec<String> = out.lines().map(Result::unwrap).collect();
    assert!(profile.wait().unwrap().success(), "{told:?}");
    assert!(load.acknowledged() > before, "nothing was acknowledged meanwhile");
    assert!(seconds_in(&told[0]) >= 3.0, "{told:?}");
    assert!(told.iter().any(|line| line.starts_with("  gantry ")), "{told:?}");

    let picture = std::fs::read_to_string(dir.path().join("a.svg")).unwrap();
    assert!(picture.starts_with("<?xml") && picture.contains("<title>gantry (") && picture.contains("samples, "));

    // From the thread down to the log, in one stack: what is seen is up to chance, so this looks until it is.
    let serves =
        |line: &&str| line.starts_with("gantry;") && line.contains("broker::") && line.contains("store::commit_log");
    let deadline = Instant::now() + PATIENCE;
    let mut folded = std::fs::read_to_string(dir.path().join("a.txt")).unwrap();
    while !folded.lines().any(|line| serves(&line)) {
        assert!(Instant::now() < deadline, "no append in\n{folded}");
        let Some((mut profile, _said)) = begin(&server, "3", dir.path()) else { panic!("it was allowed a moment ago") };
        profile.wait().unwrap();
        folded = std::fs::read_to_string(dir.path().join("a.txt")).unwrap();
    }

    // The turn is free again, and the server as it was.
    let Some((mut profile, _said)) = begin(&server, "1", dir.path()) else { panic!("it was allowed a moment ago") };
    profile.wait().unwrap();
    let before = load.acknowledged();
    let deadline = Instant::now() + PATIENCE;
    while load.acknowledged() == before {
        assert!(Instant::now() < deadline, "the server does not serve any more");
        std::thread::park_timeout(Duration::from_millis(5));
    }
    drop(load);
    let (code, said) = server.end("-TERM");
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn a_server_that_ends_is_shown_as_far_as_it_was_seen() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::server(&dir.path().join("data"));
    let load = Load::on(server.address("broker"));
    let Some((profile, _said)) = begin(&server, "60", dir.path()) else { return };
    let (deadline, enough) = (Instant::now() + PATIENCE / 2, load.acknowledged() + 5_000);
    while load.acknowledged() < enough {
        assert!(Instant::now() < deadline, "{} acknowledged", load.acknowledged());
        std::thread::park_timeout(Duration::from_millis(5));
    }
    assert_eq!(server.end("-TERM").0, Some(0));
    drop(load);
    let output = profile.wait_with_output().unwrap();
    assert!(output.status.success());
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(seconds_in(&told) < 60.0, "{told}");
    let picture = std::fs::read_to_string(dir.path().join("a.svg")).unwrap();
    assert!(picture.contains("<title>gantry ("));
}

#[test]
fn what_cannot_be_is_refused_with_its_name_value_and_limit() {
    for (option, value, limits) in [
        ("--seconds", "0", "1..=60"),
        ("--seconds", "61", "1..=60"),
        ("--frequency", "0", "1..=499"),
        ("--frequency", "500", "1..=499"),
    ] {
        let said = refused(&["profile", option, value], 2);
        for part in [option, &format!("'{value}'"), limits] {
            assert!(said.contains(part), "no {part} in {said}");
        }
    }
    let said = refused(&["profile", "--pid", "2147483647"], 1);
    assert!(said.contains("--pid 2147483647: there is no such process"), "{said}");

    let dir = tempfile::tempdir().unwrap();
    let server = Running::server(&dir.path().join("data"));
    let (pid, file) = (server.pid().to_string(), dir.path().join("no/such/folder/a.svg"));
    let said = refused(&["profile", "--pid", &pid, "--seconds", "60", "-o", file.to_str().unwrap()], 1);
    assert!(said.contains("no/such/folder/a.svg") || said.contains("does not let this user look"), "{said}");
    server.end("-TERM");
}
