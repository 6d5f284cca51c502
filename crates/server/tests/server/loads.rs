//! How a load of `gantry bench` goes and ends, as a user sees it: interrupts, exit codes, servers that die, and several load processes.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::time::Instant;

use crate::support::{PATIENCE, Running, gantry};
use bench::{RunResult, Tally};

/// A process that is not left behind, however the test ends.
struct Guarded(Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        // It has ended already, if all went well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Guarded {
    fn out(&mut self) -> ChildStdout {
        self.0.stdout.take().unwrap()
    }
}

/// A load that has begun.
struct Load {
    child: Guarded,
    /// What it says on standard error.
    lines: mpsc::Receiver<String>,
}

impl Load {
    fn start(names: &str, more: &[&str]) -> Load {
        let words = [&["bench", "run", "-n", names], more].concat();
        let mut child = gantry(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let errors = BufReader::new(child.stderr.take().unwrap());
        let (say, lines) = mpsc::channel();
        std::thread::spawn(move || errors.lines().map_while(Result::ok).try_for_each(|line| say.send(line)));
        Load { child: Guarded(child), lines }
    }

    /// Waits for a line on standard error.
    fn until(&self, words: &str) {
        let deadline = Instant::now() + PATIENCE;
        let mut said = Vec::new();
        while !said.last().is_some_and(|line: &String| line.contains(words)) {
            let left = deadline.saturating_duration_since(Instant::now());
            said.push(self.lines.recv_timeout(left).unwrap_or_else(|_| panic!("no {words} in {said:?}")));
        }
    }

    fn signal(&self, name: &str) {
        signal(self.child.0.id(), name);
    }

    /// How it ended, and what it said on standard output and, since the line that was waited for last, on standard error.
    fn end(mut self) -> (ExitStatus, String, String) {
        let mut out = String::new();
        self.child.out().read_to_string(&mut out).unwrap();
        let status = self.child.0.wait().unwrap();
        (status, out, self.lines.iter().map(|line| line + "\n").collect())
    }
}

fn signal(pid: u32, name: &str) {
    assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
}

fn run(names: &str, more: &[&str]) -> Output {
    gantry(&[&["bench", "run", "-n", names, "--quiet"], more].concat()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn result(path: &Path) -> RunResult {
    RunResult::read(path).unwrap().remove(0)
}

fn nothing_else(tally: &Tally, sent: u64, groups: u64) {
    let expected = Tally { sent, acknowledged: sent, received: sent * groups, ..Tally::default() };
    assert_eq!(*tally, expected);
}

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        Place { dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn server(&self) -> Running {
        Running::server(&self.path("data"))
    }
}

#[test]
fn the_first_interrupt_ends_a_load_early_with_a_sound_result() {
    let place = Place::new();
    let (server, json) = (place.server(), place.text("a.json"));
    let more = ["--set", "producerRate=200", "--seconds", "3600", "--warmup", "0", "--json", &json];
    let load = Load::start(server.address("namesrv"), &more);
    load.until("measure");
    load.signal("-INT");
    load.until("once more ends it at once");
    let (status, out, _) = load.end();
    assert_eq!(status.code(), Some(0), "{out}");
    assert!(out.contains("ended early") && out.contains("0 lost, 0 duplicates"), "{out}");
    let result = result(&place.path("a.json"));
    let tally = result.summary.messages;
    assert!(result.was_interrupted && tally.sent > 0);
    nothing_else(&tally, tally.sent, 1);
    server.end("-TERM");
}

#[test]
fn the_second_interrupt_ends_a_load_at_once() {
    let place = Place::new();
    let server = place.server();
    let more = ["--set", "producerRate=200", "--set", "sendTimeoutMillis=600000", "--seconds", "3600", "--warmup", "0"];
    let load = Load::start(server.address("namesrv"), &more);
    load.until("measure");
    // What is on its way does not come any more, and would be waited for.
    signal(server.pid(), "-STOP");
    load.signal("-INT");
    load.until("once more ends it at once");
    load.signal("-INT");
    let (status, out, _) = load.end();
    assert_eq!((status.code(), out.as_str()), (Some(130), ""));
    signal(server.pid(), "-CONT");
    server.end("-TERM");
}

#[test]
fn with_check_the_exit_code_says_whether_all_went_well() {
    let place = Place::new();
    let server = place.server();
    let names = server.address("namesrv");
    let well = run(names, &["--set", "messages=100", "--check"]);
    assert_eq!(well.status.code(), Some(0), "{}{}", text(&well.stdout), text(&well.stderr));
    // It ends in its warm-up.
    let ill = ["--set", "messages=100", "--warmup", "60"];
    let told = run(names, &ill);
    assert!(told.status.success() && text(&told.stdout).contains("PROBLEM        nothing was measured"));
    let checked = run(names, &[&ill[..], &["--check"]].concat());
    assert_eq!(checked.status.code(), Some(1));
    assert!(text(&checked.stdout).contains("PROBLEM        nothing was measured"), "{}", text(&checked.stdout));
    server.end("-TERM");
}

#[test]
fn a_load_whose_server_dies_goes_on_to_its_end_and_accounts_for_what_failed() {
    let place = Place::new();
    let (server, json) = (place.server(), place.text("a.json"));
    let pid = server.pid().to_string();
    let more = [
        "--set",
        "producerRate=200",
        "--set",
        "sendMode=sync",
        "--set",
        "threads=2",
        "--set",
        "sendTimeoutMillis=500",
        "--seconds",
        "5",
        "--warmup",
        "0",
        "--check",
        "--server-pid",
        &pid,
        "--json",
        &json,
    ];
    let load = Load::start(server.address("namesrv"), &more);
    load.until("measure");
    signal(server.pid(), "-KILL");
    let (status, out, _) = load.end();
    assert_eq!(status.code(), Some(1), "{out}");
    for words in ["PROBLEM        the server's process ended while the load ran", "left behind", "stored unknown"] {
        assert!(out.contains(words), "no {words} in {out}");
    }
    let summary = result(&place.path("a.json")).summary;
    let tally = summary.messages;
    assert!(tally.acknowledged > 0 && tally.failed > 0, "{tally:?}");
    // Each message has one end: what was answered and not consumed in time is lost, as far as anybody can tell.
    assert_eq!(tally.sent, tally.acknowledged + tally.failed);
    assert_eq!(tally.acknowledged, tally.received - tally.failed_and_received + tally.lost);
    assert_eq!(summary.produce_failures.values().sum::<u64>(), tally.failed);
}

#[test]
fn several_processes_play_one_load_and_its_books_come_out_even() {
    let place = Place::new();
    let (server, json) = (place.server(), place.text("a.json"));
    let shape = [
        "--processes",
        "3",
        "--set",
        "topics=2",
        "--set",
        "producersPerTopic=2",
        "--set",
        "subscriptionsPerTopic=2",
        "--set",
        "consumerPerSubscription=2",
        "--set",
        "partitionsPerTopic=4",
        "--json",
        &json,
    ];
    let loads: [&[&str]; 4] = [
        &["--set", "messages=5003", "--set", "sendMode=sync", "--set", "threads=3"],
        &["--set", "messages=5003", "--set", "consumeMode=push", "--set", "batchSize=10"],
        &["--set", "messages=2003", "--set", "consumeMode=pop", "--set", "producerRate=4000"],
        &["--set", "consumerBacklogSizeGB=0.002", "--set", "messageSize=200", "--set", "batchSize=50"],
    ];
    for (more, messages) in loads.iter().zip([5003, 5003, 2003, 10_738]) {
        // A busy machine does not hold every rate, and says so.
        let has_rate = more.iter().any(|word| word.starts_with("producerRate="));
        let check: &[&str] = if has_rate { &[] } else { &["--check"] };
        let ran = run(server.address("namesrv"), &[&shape[..], more, check].concat());
        assert!(ran.status.success(), "{more:?}: {}{}", text(&ran.stdout), text(&ran.stderr));
        assert!(text(&ran.stdout).contains("by 3 load processes"), "{}", text(&ran.stdout));
        let result = result(&place.path("a.json"));
        let summary = &result.summary;
        assert_eq!((result.processes, summary.stored), (3, Some(messages)), "{more:?}");
        nothing_else(&summary.messages, messages, 2);
        let seen = |count: fn(&bench::Window) -> u64| result.windows.iter().map(count).sum::<u64>();
        assert_eq!((seen(|window| window.sent), seen(|window| window.received)), (messages, 2 * messages), "{more:?}");
        let is_sync = more.contains(&"sendMode=sync");
        assert_eq!(summary.disordered, is_sync.then_some(0), "{more:?}");
        // Latencies of a run that has any are those of all processes.
        if let Some(latency) = summary.publish {
            assert_eq!(
                latency.count,
                seen(|window| if window.phase == bench::Phase::Measure { window.sent } else { 0 })
            );
        }
    }
    server.end("-TERM");
}

#[test]
fn a_rate_is_shared_out_over_processes() {
    let place = Place::new();
    let (server, json) = (place.server(), place.text("a.json"));
    let more = ["--processes", "2", "--set", "producersPerTopic=3", "--set", "producerRate=500", "--seconds", "3"];
    let ran = run(server.address("namesrv"), &[&more[..], &["--warmup", "0", "--json", &json]].concat());
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let result = result(&place.path("a.json"));
    let summary = &result.summary;
    let all_seconds: f64 = result.windows.iter().map(|window| window.seconds).sum();
    // A busy machine ends late, and what is due until then is sent; each process alone at the rate, or at a half of its share, is further off.
    let due = 500.0 * summary.measured_seconds * 0.95..=500.0 * all_seconds * 1.05;
    let sent = (summary.messages.sent + summary.due_and_never_sent) as f64;
    assert!(due.contains(&sent), "{sent} of {due:?}");
    assert_eq!((summary.messages.lost, summary.messages.duplicates), (0, 0));
    server.end("-TERM");
}

/// The processes that a process has started.
fn children(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().map_while(Result::ok);
    let told = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    told.flat_map(|told| told.split_whitespace().map(|child| child.parse().unwrap()).collect::<Vec<u32>>()).collect()
}

/// A load of two processes that is being measured, and they.
fn two_processes(server: &Running) -> (Load, Vec<u32>) {
    let more = ["--processes", "2", "--set", "producerRate=100", "--seconds", "3600", "--warmup", "0"];
    let load = Load::start(server.address("namesrv"), &more);
    load.until("measure");
    let processes = children(load.child.0.id());
    assert_eq!(processes.len(), 2);
    (load, processes)
}

#[test]
fn a_load_one_of_whose_processes_dies_fails_with_the_reason_and_leaves_nobody_behind() {
    let place = Place::new();
    let server = place.server();
    let (load, processes) = two_processes(&server);
    signal(processes[1], "-KILL");
    let (status, out, errors) = load.end();
    assert_eq!((status.code(), out.as_str()), (Some(1), ""));
    let last = errors.lines().last().unwrap();
    assert_eq!(last, "gantry: load process 2 of 2 ended: signal: 9 (SIGKILL)");
    assert!(!Path::new(&format!("/proc/{}", processes[0])).exists());
    server.end("-TERM");
}

#[test]
fn load_processes_end_when_the_one_that_began_the_load_is_gone() {
    let place = Place::new();
    let server = place.server();
    let (load, processes) = two_processes(&server);
    load.signal("-KILL");
    // They hold its standard error, too: it ends with the last of them.
    let deadline = Instant::now() + PATIENCE;
    while load.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_ok() {}
    assert!(Instant::now() < deadline, "{processes:?} go on");
    server.end("-TERM");
}

#[test]
fn a_load_process_is_nothing_to_be_started_by_hand() {
    let alone = gantry(&["bench", "worker"]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(alone.status.code(), Some(1));
    assert!(text(&alone.stderr).contains("not by hand"), "{}", text(&alone.stderr));
}

#[test]
fn the_null_server_takes_loads_and_gives_messages_back() {
    let place = Place::new();
    let mut child = Guarded(gantry(&["bench", "sink"]).stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(child.out()).lines().map_while(Result::ok);
    let ready = lines.next().unwrap();
    let names = ready.strip_prefix("gantry bench sink: ready ").unwrap();
    let (pid, json) = (child.0.id().to_string(), place.text("a.json"));
    let more = ["--set", "messages=20000", "--processes", "2", "--server-pid", &pid, "--check", "--json", &json];
    let ran = run(names, &more);
    assert!(ran.status.success(), "{}{}", text(&ran.stdout), text(&ran.stderr));
    let result = result(&place.path("a.json"));
    nothing_else(&result.summary.messages, 20_000, 1);
    assert!(result.target_version.starts_with("null server of gantry "), "{}", result.target_version);
    assert!(result.summary.loader_cpu_seconds_per_million.is_some() && result.summary.server.is_some());
    signal(child.0.id(), "-TERM");
    assert!(lines.next().unwrap().starts_with("20,000 messages taken, 20,000 given, "));
    assert!(child.0.wait().unwrap().success());
}

#[test]
fn an_echo_says_what_the_machine_itself_can_do() {
    let place = Place::new();
    let json = place.text("a.json");
    let words = ["bench", "echo", "--connections", "5", "--threads", "2", "--seconds", "2", "--warmup", "0"];
    let ran = gantry(&[&words[..], &["--message-size", "200000", "--json", &json]].concat()).output().unwrap();
    let said = text(&ran.stdout);
    assert!(ran.status.success(), "{said}{}", text(&ran.stderr));
    assert!(said.contains("5 connections, 2 threads on each side; 200"), "{said}");
    let written: serde_json::Value = serde_json::from_slice(&std::fs::read(place.path("a.json")).unwrap()).unwrap();
    assert!(written["roundTripRate"].as_f64().unwrap() > 0.0 && written["requestBytes"].as_u64().unwrap() > 200_000);
    assert!(written["latency"]["count"].as_u64().unwrap() > 0, "{written}");
    let refused = gantry(&["bench", "echo", "--connections", "0"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
}
