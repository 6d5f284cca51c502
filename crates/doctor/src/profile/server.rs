//! The process that is looked at.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// The sub-commands that serve.
const SERVES: [&str; 3] = ["server", "broker", "namesrv"];

/// A running process.
pub struct Server {
    /// Its number.
    pub pid: i32,
    /// Readable once it has ended.
    process: OwnedFd,
}

impl Server {
    /// The process of this number.
    pub fn of(pid: i32) -> anyhow::Result<Server> {
        let number = Pid::from_raw(pid).ok_or_else(|| anyhow!("--pid {pid}: a process has a number above 0"))?;
        let process = match pidfd_open(number, PidfdFlags::empty()) {
            Err(Errno::SRCH) => bail!("--pid {pid}: there is no such process"),
            other => other.with_context(|| format!("--pid {pid}: cannot be looked at"))?,
        };
        Ok(Server { pid, process })
    }

    /// The one server that runs here.
    pub fn only() -> anyhow::Result<Server> {
        let found = running()?;
        match found.as_slice() {
            [(pid, _)] => Server::of(*pid),
            [] => bail!("no server runs here that this user may look at: name its process with --pid"),
            several => {
                let listed: Vec<String> = several.iter().map(|(pid, words)| format!("{pid} ({words})")).collect();
                bail!("several servers run here, name one with --pid: {}", listed.join(", "))
            }
        }
    }

    /// Waits, and says whether the process has ended.
    pub fn ends_within(&self, time: Duration) -> anyhow::Result<bool> {
        let timeout = Timespec::try_from(time)?;
        match poll(&mut [PollFd::new(&self.process, PollFlags::IN)], Some(&timeout)) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error).context("cannot wait for the process"),
        }
    }

    /// Its threads: number and name. Those that end meanwhile are left out.
    pub fn threads(&self) -> Vec<(i32, String)> {
        let Ok(listed) = fs::read_dir(format!("/proc/{}/task", self.pid)) else { return Vec::new() };
        listed
            .flatten()
            .filter_map(|entry| {
                let id = entry.file_name().to_str()?.parse().ok()?;
                let name = fs::read_to_string(entry.path().join("comm")).ok()?;
                Some((id, name.trim_end().to_owned()))
            })
            .collect()
    }
}

/// All processes that run a program of our file's name and serve: number and command line.
pub(crate) fn running() -> anyhow::Result<Vec<(i32, String)>> {
    let own = std::env::current_exe().context("cannot find out which program this is")?;
    let mut found: Vec<(i32, String)> = fs::read_dir("/proc")
        .context("cannot list processes")?
        .flatten()
        .filter_map(|entry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            let program = fs::read_link(entry.path().join("exe")).ok()?;
            let line = fs::read(entry.path().join("cmdline")).ok()?;
            Some((pid, serves(&program, &own, &line)?))
        })
        .collect();
    found.sort_unstable();
    Ok(found)
}

/// The words behind the program, if it is the same as `own` and serves. A file that was replaced since is shown as deleted.
fn serves(program: &Path, own: &Path, line: &[u8]) -> Option<String> {
    let name = program.file_name()?.to_str()?;
    let name = name.strip_suffix(" (deleted)").unwrap_or(name);
    let line = String::from_utf8_lossy(line);
    let words: Vec<&str> = line.trim_end_matches('\0').split('\0').skip(1).collect();
    let is_server = words.first().is_some_and(|word| SERVES.contains(word));
    (own.file_name()?.to_str()? == name && is_server).then(|| words.join(" "))
}

/// The right to take a profile of a process. Ends with its holder, whatever becomes of that.
pub struct Turn {
    /// A name that one process can have at a time, and that is in no folder.
    _name: UnixListener,
}

impl Turn {
    /// Takes the turn, or says that somebody else has it.
    pub fn take(pid: i32) -> anyhow::Result<Turn> {
        let name = SocketAddr::from_abstract_name(format!("gantry-profile-{pid}"))?;
        match UnixListener::bind_addr(&name) {
            Ok(name) => Ok(Turn { _name: name }),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                bail!("a profile of process {pid} is being taken: one at a time, try again when it has ended")
            }
            Err(error) => Err(error).context("cannot find out whether another profile is being taken"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_serves_is_found_and_other_commands_are_not() {
        let own = Path::new("/usr/bin/gantry");
        let serves = |program: &str, line: &[u8]| serves(Path::new(program), own, line);
        assert_eq!(serves("/opt/gantry", b"gantry\0server\0--data\0d\0").as_deref(), Some("server --data d"));
        assert_eq!(serves("/opt/gantry (deleted)", b"x\0broker\0").as_deref(), Some("broker"));
        assert_eq!(serves("/opt/gantry", b"gantry\0admin\0server\0"), None);
        assert_eq!(serves("/opt/java", b"java\0server\0"), None);
        assert_eq!(serves("/opt/gantry", b""), None);
    }

    #[test]
    fn one_profile_of_a_process_at_a_time() {
        let own = i32::try_from(std::process::id()).unwrap();
        let turn = Turn::take(own).unwrap();
        let refused = Turn::take(own).err().unwrap().to_string();
        assert!(refused.contains(&format!("a profile of process {own} is being taken")), "{refused}");
        drop(turn);
        Turn::take(own).unwrap();
    }

    #[test]
    fn this_process_has_threads_and_has_not_ended() {
        let server = Server::of(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(server.threads().iter().any(|(id, _)| *id == server.pid));
        assert!(!server.ends_within(Duration::ZERO).unwrap());
        let missing = Server::of(i32::MAX).err().unwrap().to_string();
        assert!(missing.contains("there is no such process"), "{missing}");
    }
}
