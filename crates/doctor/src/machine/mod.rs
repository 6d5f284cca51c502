//! The machine: each line of RocketMQ's `os.sh`, and what else a kernel, a container or a clock can do to a broker.
//!
//! The lines of `os.sh` were written for a Java process that maps every file and relies on the page cache. Most of them do nothing for this
//! broker, and each says so, with its reason.

pub mod clock;
mod groups;
pub mod kernel;
pub mod limits;
pub mod network;
pub mod swap;
pub mod writeback;

use super::finding::Finding;
use super::patient::Patient;

/// Where settings of the memory are.
const VM: &str = "/proc/sys/vm";

/// The number of a kernel setting below `/proc/sys/vm`; or a finding that says why there is none.
fn vm(patient: &Patient, name: &str) -> Result<u64, Box<Finding>> {
    let path = format!("{VM}/{name}");
    match patient.host.read(&path) {
        Ok(Some(text)) => text.parse().map_err(|_| {
            Box::new(Finding::note(format!("vm.{name} is no number")).seen(&path, &text).effect("it cannot be judged"))
        }),
        Ok(None) => Err(Box::new(
            Finding::ok(format!("vm.{name} does not exist on this kernel"))
                .seen(&path, "no such file")
                .effect("not needed"),
        )),
        Err(error) => Err(Box::new(
            Finding::note(format!("vm.{name} cannot be read"))
                .seen(&path, error)
                .effect("it cannot be judged from here; run as root to see it"),
        )),
    }
}

/// What a setting that is a number says of itself: `vm.NAME is N`, with the file as evidence.
fn number(severity: super::finding::Severity, name: &str, value: u64) -> Finding {
    Finding::new(severity, format!("vm.{name} is {value}")).seen(format!("{VM}/{name}"), value).figure("value", value)
}

/// What helps a setting of the memory that is a number: the command for people, the value for `--fix`.
fn set(finding: Finding, name: &str, now: u64, wanted: u64, more: &str) -> Finding {
    finding.fix(format!("sysctl -w vm.{name}={wanted}{more}")).change(format!("{VM}/{name}"), now, wanted)
}

/// Memory that the broker may use, in bytes: the machine's, or less where a cgroup says so.
pub fn usable_memory(patient: &Patient) -> Option<u64> {
    let limit = groups::memory(patient).map(|group| group.limit);
    limit.into_iter().chain(patient.host.memory("MemTotal")).min()
}
