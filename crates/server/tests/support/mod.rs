//! Starts the binary and ends it.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub mod asking;
pub mod cage;
pub mod failing;
pub mod hangs;
pub mod prometheus;

pub const PATIENCE: Duration = Duration::from_secs(60);

/// The binary with these arguments, and nothing of what our own environment says of name servers and homes.
pub fn gantry(arguments: &[&str]) -> Command {
    hangs::watch();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gantry"));
    without_environment(command.args(arguments));
    command
}

/// Leaves out what this machine's environment says to a server, and sets the level of the log.
pub fn without_environment(command: &mut Command) {
    let of_keys = config::environment::OF_KEYS.map(|(variable, _)| variable);
    for variable in of_keys.iter().chain(&config::environment::OF_JAVA).chain(&["NOTIFY_SOCKET"]) {
        command.env_remove(variable);
    }
    let of_settings = std::env::vars_os().map(|(name, _)| name);
    let of_settings = of_settings.filter(|name| name.to_string_lossy().starts_with(config::environment::PREFIX));
    for name in of_settings {
        command.env_remove(name);
    }
    command.env("RUST_LOG", "info");
}

/// Waits until it is so; what that is, is said when [`PATIENCE`] is over.
pub async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so().await {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Runs to the end. For starts that must fail.
pub fn fails(arguments: &[&str]) -> String {
    let Output { status, stderr, .. } = gantry(arguments).output().unwrap();
    let said = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(1), "{said}");
    let last = said.lines().last().unwrap().to_owned();
    assert!(last.starts_with("gantry: "), "{said}");
    last
}

/// The binary, once it has said that it is ready.
pub struct Running {
    child: Child,
    /// The line for programs.
    pub ready: String,
    /// What it has logged so far.
    log: Arc<Mutex<String>>,
    /// Told of each line, and hung up at the end of the log.
    lines: mpsc::Receiver<()>,
    reading: Option<JoinHandle<()>>,
}

impl Running {
    pub fn start(command: &mut Command) -> Running {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (say, hear) = mpsc::channel();
        std::thread::spawn(move || say.send(out.lines().next().and_then(Result::ok)));
        let log = Arc::new(Mutex::new(String::new()));
        let (written, errors) = (Arc::clone(&log), BufReader::new(child.stderr.take().unwrap()));
        let (tell, lines) = mpsc::channel();
        let reading = std::thread::spawn(move || {
            for line in errors.lines().map_while(Result::ok) {
                let mut written = written.lock().unwrap();
                written.push_str(&line);
                written.push('\n');
                drop(written);
                // Whoever does not listen reads the log at the end.
                let _ = tell.send(());
            }
        });
        let Ok(Some(ready)) = hear.recv_timeout(PATIENCE) else {
            child.kill().unwrap();
            reading.join().unwrap();
            panic!("not ready: {}", log.lock().unwrap());
        };
        Running { child, ready, log, lines, reading: Some(reading) }
    }

    pub fn server(data: &Path) -> Running {
        Running::server_with(data, &[])
    }

    pub fn server_with(data: &Path, more: &[&str]) -> Running {
        let data = data.to_str().unwrap();
        let arguments = ["server", "--data", data, "--namesrv-port", "0", "--broker-port", "0"];
        Running::start(&mut gantry(&[&arguments, more].concat()))
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// KiB of its own memory, that no file backs.
    pub fn own_kib(&self) -> u64 {
        self.kib("RssAnon:")
    }

    /// KiB of files that stand in its page table.
    pub fn of_files_kib(&self) -> u64 {
        self.kib("RssFile:")
    }

    fn kib(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let found = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        found.trim().trim_end_matches(" kB").parse().unwrap()
    }

    pub fn address(&self, of: &str) -> &str {
        let (_, rest) = self.ready.split_once(&format!(" {of}=")).unwrap();
        rest.split(' ').next().unwrap()
    }

    /// The exit code, and what was logged.
    pub fn end(self, signal: &str) -> (Option<i32>, String) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
        let (status, said) = self.ended();
        (status.code(), said)
    }

    /// The signal that it ends with by itself, and what was logged.
    pub fn ended_by(self) -> (Option<i32>, String) {
        let (status, said) = self.ended();
        (status.signal(), said)
    }

    /// Waits for its end.
    fn ended(mut self) -> (ExitStatus, String) {
        let deadline = Instant::now() + PATIENCE;
        while self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now()))
            != Err(RecvTimeoutError::Disconnected)
        {
            assert!(Instant::now() < deadline, "does not end: {}", self.log.lock().unwrap());
        }
        self.reading.take().unwrap().join().unwrap();
        (self.child.wait().unwrap(), self.log.lock().unwrap().clone())
    }

    /// The first line with these words that the log has by now.
    pub fn log_line(&self, words: &str) -> Option<String> {
        self.log.lock().unwrap().lines().find(|line| line.contains(words)).map(str::to_owned)
    }

    /// Whether the log has these words by now.
    pub fn has_logged(&self, words: &str) -> bool {
        self.log.lock().unwrap().contains(words)
    }

    /// Waits until the log has a line with these words, and returns it.
    pub async fn logged(&self, words: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(line) = self.log_line(words) {
                return line;
            }
            assert!(Instant::now() < deadline, "nothing about {words} in: {}", self.log.lock().unwrap());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The same for tests without a runtime, and the line for nobody.
    pub fn until_logged(&self, words: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !self.log.lock().unwrap().contains(words) {
            assert!(Instant::now() < deadline, "nothing about {words} in: {}", self.log.lock().unwrap());
            // A line, the end of its time, or the end of the log: looked at in either case.
            let _ = self.lines.recv_timeout(Duration::from_millis(100));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Only what a failed test leaves behind; a process that has ended is not there any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
