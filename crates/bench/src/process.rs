//! What a process of this machine takes, read from `/proc`, and what its disk does.

use std::convert::Infallible;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A disk, measured as `gantry doctor disk` does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Disk {
    /// The folder that it was measured in.
    pub folder: String,
    /// Sequential writing with a flush every 16 MiB, in MiB a second.
    pub sequential_write_mib_per_second: f64,
    /// Reading of the same without the page cache.
    pub sequential_read_mib_per_second: f64,
    /// What half of the flushes of 4 KiB took at most, in milliseconds.
    pub flush_p50_millis: f64,
    /// What 99 of 100 took at most.
    pub flush_p99_millis: f64,
    /// The longest one.
    pub flush_max_millis: f64,
}

/// Measures the disk of a folder. Whoever starts a load says how: the load generator knows no store.
pub type MeasureDisk = fn(&Path) -> anyhow::Result<Disk>;

/// Where the server runs, if that is on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerProcess {
    /// A process of this number, and no other.
    Pid(u32),
    /// Whatever process has the number that stands in this file: servers that are started again and again.
    Named(PathBuf),
}

impl FromStr for ServerProcess {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<ServerProcess, Infallible> {
        Ok(text.parse().map_or_else(|_| ServerProcess::Named(text.into()), ServerProcess::Pid))
    }
}

impl ServerProcess {
    /// Its number just now.
    pub fn pid(&self) -> Option<u32> {
        match self {
            ServerProcess::Pid(pid) => Some(*pid),
            ServerProcess::Named(file) => fs::read_to_string(file).ok()?.trim().parse().ok(),
        }
    }

    /// What it has taken; nothing if there is none just now.
    pub fn taken(&self) -> Option<Taken> {
        taken(self.pid()?)
    }
}

/// What a process has taken.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Taken {
    /// When it began, in clock ticks since the machine did: another process of the same number has another.
    pub started_ticks: u64,
    /// Processor time since its start, in seconds.
    pub cpu_seconds: f64,
    /// Memory that it has resident, mapped pages included.
    pub resident_bytes: u64,
    /// What of it is its own, not pages of files.
    pub anonymous_bytes: u64,
}

/// Looks at a process; nothing if there is none of that number.
pub fn taken(pid: u32) -> Option<Taken> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let (cpu, started_ticks) = ticks(&stat)?;
    Some(Taken {
        started_ticks,
        cpu_seconds: cpu as f64 / rustix::param::clock_ticks_per_second() as f64,
        resident_bytes: kilobytes(&status, "VmRSS")?,
        anonymous_bytes: kilobytes(&status, "RssAnon").unwrap_or(0),
    })
}

/// Ticks in user and kernel mode, and at its start. The name stands in brackets and may hold anything, so the fields are counted from its end.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    // Five more fields: children's times, priority and niceness, threads, and a timer.
    let started = fields.nth(6)?.parse().ok()?;
    Some((user + system, started))
}

/// A line such as `VmRSS:      1234 kB`, in bytes.
pub fn kilobytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let count: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    count.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_whose_name_looks_like_fields_is_read_right() {
        let stat = "7 (a) b) (c) S 1 7 7 0 -1 4194560 900 0 3 0 250 150 0 0 20 0 9 0 100 1000000 500";
        assert_eq!(ticks(stat), Some((400, 100)));
        assert_eq!(ticks("7 (a) S 1"), None);
    }

    #[test]
    fn this_process_takes_memory_and_the_machine_has_some() {
        let own = taken(std::process::id()).unwrap();
        assert!(own.resident_bytes > 1 << 16 && own.cpu_seconds >= 0.0, "{own:?}");
        assert!(own.resident_bytes < crate::machine::Machine::read().memory_bytes);
        assert_eq!(taken(u32::MAX), None);
    }

    #[test]
    fn a_server_is_found_by_its_number_and_by_a_file_that_names_it() {
        let own = std::process::id();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let named: ServerProcess = file.to_str().unwrap().parse().unwrap();
        assert_eq!(named.taken(), None);
        fs::write(&file, format!("{own}\n")).unwrap();
        let numbered: ServerProcess = own.to_string().parse().unwrap();
        let ticks = |server: &ServerProcess| server.taken().map(|taken| taken.started_ticks);
        assert_eq!((ticks(&named), ticks(&named).is_some()), (ticks(&numbered), true));
    }

    #[test]
    fn lines_of_status_files_are_read_in_bytes() {
        assert_eq!(kilobytes("Vm:  1 kB\nVmRSS:\t  12 kB\n", "VmRSS"), Some(12 * 1024));
        assert_eq!(kilobytes("VmRSS: x kB", "VmRSS"), None);
    }
}
