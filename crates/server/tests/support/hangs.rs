//! Ends processes of ours that hang, and says what they were doing.
//!
//! A test that waits for the end of a command waits for ever if the command does, and the run that
//! it is part of is cut off without a word of why.

use std::fs;
use std::io::Write;
use std::process::Command;
use std::sync::Once;
use std::thread;
use std::time::{Duration, Instant};

/// Longer than any test has one process run.
const LIMIT: Duration = Duration::from_secs(20 * 60);
const LOOK: Duration = Duration::from_secs(10);

/// From now on a child of this process that runs for longer than [`LIMIT`] is killed.
#[allow(clippy::disallowed_methods, reason = "it looks again and again; nobody tells of a hang")]
pub fn watch() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        thread::spawn(|| {
            let mut seen: Vec<(u32, Instant)> = Vec::new();
            loop {
                thread::sleep(LOOK);
                let children = children();
                seen.retain(|(pid, _)| children.contains(pid));
                for pid in children {
                    match seen.iter().find(|(known, _)| *known == pid) {
                        Some((_, since)) if since.elapsed() > LIMIT => end(pid),
                        Some(_) => {}
                        None => seen.push((pid, Instant::now())),
                    }
                }
            }
        });
    });
}

/// Past the test's captured output: the test may never print that.
fn end(pid: u32) {
    let mut said = format!("process {pid} hangs: {}\n", text(&format!("/proc/{pid}/cmdline")).replace('\0', " "));
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let of = |what: &str| text(&format!("{}/{what}", task.path().display()));
        said.push_str(&format!("  {} {} {}\n", of("comm"), of("wchan"), of("syscall")));
    }
    let _ = std::io::stderr().write_all(said.as_bytes());
    let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
}

fn text(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn children() -> Vec<u32> {
    let ours = std::process::id().to_string();
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    // Behind the name, which may hold anything: the state, and whose child it is.
    let is_ours = |stat: String| stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)) == Some(&ours);
    pids.filter(|pid| is_ours(text(&format!("/proc/{pid}/stat")))).collect()
}
