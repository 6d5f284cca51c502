//! `gantry bench` against `gantry server`, as a user runs them.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Running, gantry};

/// How long the server stands still.
const STILL: Duration = Duration::from_secs(2);

fn arguments<'a>(server: &'a Running, more: &[&'a str]) -> Vec<&'a str> {
    [&["bench", "run", "-n", server.address("namesrv"), "--quiet"], more].concat()
}

#[test]
fn a_run_writes_a_result_and_a_page_and_a_report_shows_results_again() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::server(&dir.path().join("data"));
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (json, html, again, pid) = (path("a.json"), path("a.html"), path("b.html"), server.pid().to_string());
    std::fs::write(
        dir.path().join("small.yaml"),
        "messageSize: 64\npartitionsPerTopic: 2\nwarmupDurationMinutes: 0\nmessages: 1000\n",
    )
    .unwrap();
    std::fs::write(dir.path().join("driver.yaml"), "sendMode: sync\nthreads: 4\n").unwrap();
    let (workload, driver) = (path("small.yaml"), path("driver.yaml"));
    let files = ["-w", &workload, "-d", &driver, "--json", &json, "--html", &html, "--server-pid", &pid, "--check"];
    let disk = ["--disk", dir.path().to_str().unwrap()];
    let ran = gantry(&arguments(&server, &[&files[..], &disk].concat())).output().unwrap();
    let said = String::from_utf8(ran.stdout).unwrap();
    assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    for words in [
        "run            small of 20",
        "1000 acknowledged, 0 failed",
        "0 lost, 0 duplicates",
        "0 disordered",
        "stored 1000",
        "CPU-s",
    ] {
        assert!(said.contains(words), "no {words} in\n{said}");
    }
    assert!(std::fs::read_to_string(&html).unwrap().contains("<h2>small</h2>"));
    let result: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    let measured = &result[0]["machine"]["disk"];
    assert!(measured["sequentialWriteMibPerSecond"].as_f64().unwrap() > 0.0, "{measured}");
    assert!(measured["flushP99Millis"].as_f64() >= measured["flushP50Millis"].as_f64(), "{measured}");
    assert!(said.contains("\ndisk           ") && said.contains(" ms, in "), "{said}");

    let shown = gantry(&["bench", "report", &json, &json, "--html", &again]).output().unwrap();
    let shown_text = String::from_utf8(shown.stdout).unwrap();
    assert!(
        shown.status.success() && shown_text.contains(&said) && shown_text.contains("publish p50 / p99"),
        "{shown_text}"
    );
    assert!(Path::new(&again).exists());
    server.end("-TERM");
}

#[test]
fn a_bad_value_ends_the_command_with_field_value_and_limit() {
    let said = crate::support::fails(&["bench", "run", "--preset", "sync-16", "--set", "messageSize=1"]);
    assert_eq!(said, "gantry: --set: messageSize is \"1\"; a number from 32 to 15728640 is expected");
    // Before a load runs for an hour, and not after it.
    let said = crate::support::fails(&["bench", "run", "--set", "messages=1", "--json", "/nowhere/a.json"]);
    assert!(said.starts_with("gantry: /nowhere/a.json: "), "{said}");
    let said = crate::support::fails(&["bench", "run", "--set", "messages=1", "--disk", "/nowhere"]);
    assert!(said.starts_with("gantry: --disk: cannot measure the disk of /nowhere: "), "{said}");
    let listed = gantry(&["bench", "presets"]).output().unwrap();
    assert!(String::from_utf8(listed.stdout).unwrap().contains("queues-10000"));
}

#[test]
fn a_server_that_stands_still_shows_in_the_latency_of_every_send_that_was_due_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::server(&dir.path().join("data"));
    let json = dir.path().join("a.json").to_str().unwrap().to_owned();
    let load = [
        "--set",
        "producerRate=50",
        "--set",
        "sendMode=sync",
        "--set",
        "sendTimeoutMillis=30000",
        "--seconds",
        "8",
        "--warmup",
        "0",
        "--json",
        &json,
    ];
    // With a line a second, so that we know when it has begun.
    let words: Vec<&str> = arguments(&server, &load).into_iter().filter(|word| *word != "--quiet").collect();
    let mut bench = gantry(&words).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(bench.stderr.take().unwrap()).lines();
    let first = lines.find_map(|line| line.ok().filter(|line| line.contains("measure"))).unwrap();
    assert!(first.contains("sent"), "{first}");
    let pid = server.pid().to_string();
    let signal = |name: &str| assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    signal("-STOP");
    let stopped = Instant::now();
    while stopped.elapsed() < STILL {
        std::thread::sleep(STILL.saturating_sub(stopped.elapsed()));
    }
    signal("-CONT");
    lines.for_each(drop);
    assert!(bench.wait().unwrap().success());
    let results = bench::RunResult::read(Path::new(&json)).unwrap();
    let summary = &results[0].summary;
    let publish = summary.publish.unwrap();
    // Two of eight seconds: a quarter of the messages was due while it stood still, and waited for a second on average. Counted from
    // when each was really sent, only one message would have waited.
    assert!(publish.max > 1900.0 && publish.p90 > 500.0, "{publish:?}");
    let all_seconds: f64 = results[0].windows.iter().map(|window| window.seconds).sum();
    // A busy machine ends late, and what is due until then is sent.
    let due = 50.0 * summary.measured_seconds * 0.95..=50.0 * all_seconds * 1.05;
    let sent = (summary.messages.sent + summary.due_and_never_sent) as f64;
    assert!(due.contains(&sent), "{sent} of {due:?}");
    assert!(summary.due_and_never_sent < summary.messages.sent / 2, "{summary:?}");
    assert_eq!((summary.messages.lost, summary.messages.failed), (0, 0));
    server.end("-TERM");
}
