//! A memory cgroup around the binary, and somebody who looks all the time at what is occupied.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// A memory cgroup of our own, below the one that we are in.
pub struct Cage {
    dir: PathBuf,
    is_second: bool,
}

impl Cage {
    /// None where we may not make one, or `NO_CAGE=1` says that none is to be made.
    pub fn make(bytes: u64) -> Option<Cage> {
        if std::env::var("NO_CAGE").is_ok() {
            return None;
        }
        let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
        groups.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, group) = (parts.next()?, parts.next()?);
            let (root, file) = match controllers {
                "" => (Path::new("/sys/fs/cgroup").to_owned(), "memory.max"),
                _ if controllers.split(',').any(|name| name == "memory") => {
                    (Path::new("/sys/fs/cgroup/memory").to_owned(), "memory.limit_in_bytes")
                }
                _ => return None,
            };
            let dir = root.join(group.trim_start_matches('/')).join(format!("gantry-test-{}", std::process::id()));
            fs::create_dir(&dir).ok()?;
            let cage = Cage { dir, is_second: controllers.is_empty() };
            // Of version 2 the controller may not be there below.
            fs::write(cage.dir.join(file), bytes.to_string()).ok()?;
            Some(cage)
        })
    }

    /// The command as it has to be for its process to be inside: whoever begins there has all of his memory charged there.
    pub fn around(&self, inside: &Command) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0\"/cgroup.procs && exec \"$@\""]).arg(&self.dir);
        command.arg(inside.get_program()).args(inside.get_args());
        for (name, value) in inside.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }

    fn number(&self, file: &str) -> u64 {
        fs::read_to_string(self.dir.join(file)).unwrap().trim().parse().unwrap()
    }

    fn counted(&self, file: &str, name: &str) -> u64 {
        let lines = fs::read_to_string(self.dir.join(file)).unwrap();
        let found = lines.lines().filter_map(|line| line.split_once(' ')).find(|(first, _)| *first == name);
        found.map_or(0, |(_, count)| count.trim().parse().unwrap())
    }

    fn used(&self) -> u64 {
        self.number(if self.is_second { "memory.current" } else { "memory.usage_in_bytes" })
    }

    /// How often somebody in it did not get memory at once.
    pub fn failed(&self) -> u64 {
        if self.is_second { self.counted("memory.events", "max") } else { self.number("memory.failcnt") }
    }

    /// How many processes the kernel killed in it for want of memory.
    pub fn killed(&self) -> u64 {
        self.counted(if self.is_second { "memory.events" } else { "memory.oom_control" }, "oom_kill")
    }
}

impl Drop for Cage {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.dir);
    }
}

/// Looks all the time at what is occupied, and remembers the most.
pub struct Watch {
    seen: Arc<Seen>,
    looking: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Seen {
    pid: AtomicU32,
    is_over: AtomicBool,
    caged: AtomicU64,
    counted: AtomicU64,
}

impl Watch {
    pub fn begin(cage: Option<Arc<Cage>>, store: PathBuf) -> Watch {
        let seen = Arc::new(Seen::default());
        let looked = Arc::clone(&seen);
        let looking = std::thread::spawn(move || {
            while !looked.is_over.load(Ordering::Relaxed) {
                if let Some(cage) = &cage {
                    looked.caged.fetch_max(cage.used(), Ordering::Relaxed);
                }
                let own = resident(looked.pid.load(Ordering::Relaxed));
                // Removed while it is looked at.
                let files = store::resident_below(&store).unwrap_or(0);
                let before = looked.counted.fetch_max(own + files, Ordering::Relaxed);
                if own + files > before && std::env::var("SHOW_MEMORY").is_ok() {
                    println!("own {} KiB, files {} KiB", own >> 10, files >> 10);
                }
                std::thread::park_timeout(Duration::from_millis(20));
            }
        });
        Watch { seen, looking: Some(looking) }
    }

    /// From now on this process is looked at.
    pub fn watch(&self, pid: u32) {
        self.seen.pid.store(pid, Ordering::Relaxed);
    }

    /// The most so far: that the cage held, and of the process and the pages of its files together.
    pub fn most(&self) -> (u64, u64) {
        (self.seen.caged.load(Ordering::Relaxed), self.seen.counted.load(Ordering::Relaxed))
    }
}

impl Drop for Watch {
    /// Or the cage would stay for ever.
    fn drop(&mut self) {
        self.seen.is_over.store(true, Ordering::Relaxed);
        if let Some(looking) = self.looking.take() {
            let _ = looking.join();
        }
    }
}

/// `VmRSS`; 0 if the process is gone.
fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.map_or(0, |rest| rest.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10)
}
