//! The binary where files fail: `strace` puts errors and delays in the place of what the kernel would answer.
//!
//! It counts the calls of each thread by itself.

use std::path::Path;
use std::process::Command;

use super::Running;
use super::asking::Asking;

/// A server of which these calls go wrong, as `inject=` of strace has it.
pub fn on_failing_device(data: &Path, injected: &str, settings: &[&str]) -> Running {
    with_failing_files(data, injected, &[], settings)
}

/// The same, where they are made on these files; on all if there are none.
pub fn with_failing_files(data: &Path, injected: &str, files: &[&str], settings: &[&str]) -> Running {
    let (call, _) = injected.split_once(':').unwrap();
    let mut command = Command::new("strace");
    for file in files {
        command.arg("-P").arg(data.canonicalize().unwrap().join(file));
    }
    // With -D it is the server that is our child, and not strace. With the filter it stops for this call only, and not for each that it makes.
    command.args(["--seccomp-bpf", "-D", "-f", "-qqq", "-o", "/dev/null", "-e", &format!("trace={call}")]);
    command.args(["-e", &format!("inject={injected}"), env!("CARGO_BIN_EXE_gantry")]);
    command.args(["server", "--data", data.to_str().unwrap(), "--namesrv-port", "0", "--broker-port", "0"]);
    for setting in settings {
        command.args(["--set", setting]);
    }
    super::without_environment(&mut command);
    Running::start(&mut command)
}

/// It ends itself, with a line that says this and names the file and what the device answered.
pub fn died_of(running: Running, said: &str, file: &str) {
    let (signal, log) = running.ended_by();
    assert_eq!(signal, Some(6), "{log}");
    let line = log.lines().find(|line| line.contains(said)).expect(&log);
    assert!(line.contains(file) && line.contains("Input/output error"), "{line}");
}

/// Where nothing fails any more these bodies are in the first queue of the topic, and a stop is clean.
pub async fn finds_again(data: &Path, topic: &str, bodies: &[String]) {
    let again = Running::server(data);
    assert_eq!(Asking::of(&again).bodies(topic, 0).await, bodies);
    assert_eq!(again.end("-TERM").0, Some(0));
}
