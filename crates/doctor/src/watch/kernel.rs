//! What the kernel counts: the store's device, network, processors, memory, and the broker's process.

use std::time::Duration;

use serde::Serialize;

use crate::patient::Patient;

/// `/proc/diskstats` counts in these, whatever the device.
const SECTOR: u64 = 512;

/// Counters at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counters {
    /// When, by a clock that never steps back.
    pub at: Duration,
    disk: Option<[u64; 6]>,
    /// Received and sent, without and with loopback.
    network: [u64; 4],
    /// All processors: busy, waiting for the device, stolen, all, in ticks.
    processors: [u64; 4],
    /// Of the broker: ticks, and pages that came from the device.
    process: Option<[u64; 2]>,
    memory: Memory,
    resident: Option<u64>,
    ticks_per_second: u64,
}

/// Bytes of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Memory {
    /// What can be had without swapping.
    pub available_bytes: u64,
    /// Page cache.
    pub cached_bytes: u64,
    /// Written and not on a device.
    pub dirty_bytes: u64,
    /// On their way to a device.
    pub writeback_bytes: u64,
    /// In swap.
    pub swap_used_bytes: u64,
}

/// What happened between two moments.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KernelRates {
    /// The store's device; nothing if it has none of its own.
    pub disk: Option<DiskRates>,
    /// Network.
    pub network: NetworkRates,
    /// Processors, in percent of all.
    pub processors: ProcessorRates,
    /// Memory now.
    pub memory: Memory,
    /// The broker's process; nothing if it is not seen.
    pub process: Option<ProcessRates>,
}

/// A device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DiskRates {
    /// Bytes read a second.
    pub read_bytes: f64,
    /// Bytes written a second.
    pub written_bytes: f64,
    /// Reads and writes a second.
    pub operations: f64,
    /// How long one of them took, in ms.
    pub wait_millis: f64,
    /// Of the time, in percent, in which there was something to do.
    pub busy_percent: f64,
}

/// Bytes a second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkRates {
    /// From other machines.
    pub received_bytes: f64,
    /// To other machines.
    pub sent_bytes: f64,
    /// Within this machine.
    pub loopback_bytes: f64,
}

/// In percent of all processors.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessorRates {
    /// Running something.
    pub busy_percent: f64,
    /// Idle, while something waited for a device.
    pub io_wait_percent: f64,
    /// Taken by the host.
    pub stolen_percent: f64,
}

/// The broker's process.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessRates {
    /// In percent of one processor.
    pub processor_percent: f64,
    /// Pages a second that it waited for a device for.
    pub major_faults: f64,
    /// Resident bytes.
    pub resident_bytes: u64,
}

impl Counters {
    /// Reads them; what cannot be read counts as nothing.
    pub fn read(patient: &Patient, device: Option<&str>, pid: Option<i32>) -> Counters {
        let host = &patient.host;
        let text = |path: &str| host.text(path).unwrap_or_default();
        let memory = |name: &str| host.memory(name).unwrap_or(0);
        Counters {
            at: patient.clock.elapsed(),
            disk: device.and_then(|device| disk(&text("/proc/diskstats"), device)),
            network: network(&text("/proc/net/dev")),
            processors: processors(&text("/proc/stat")),
            process: pid.and_then(|pid| process(&host.text(&format!("/proc/{pid}/stat"))?)),
            resident: pid.and_then(|pid| host.of_process(pid, "VmRSS")),
            memory: Memory {
                available_bytes: memory("MemAvailable"),
                cached_bytes: memory("Cached"),
                dirty_bytes: memory("Dirty"),
                writeback_bytes: memory("Writeback"),
                swap_used_bytes: memory("SwapTotal").saturating_sub(memory("SwapFree")),
            },
            ticks_per_second: rustix::param::clock_ticks_per_second(),
        }
    }

    /// Whether the broker's process was seen.
    pub fn has_process(&self) -> bool {
        self.process.is_some()
    }

    /// What happened since `before`, `seconds` ago. Counters that went back (a device or a process that came anew) count as still.
    pub fn since(&self, before: &Counters, seconds: f64) -> KernelRates {
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        let disk = self.disk.zip(before.disk).map(|(now, before)| {
            let [reads, read, writes, written, busy_ms, waited_ms] =
                std::array::from_fn(|at| now[at].saturating_sub(before[at]) as f64);
            DiskRates {
                read_bytes: read * SECTOR as f64 / seconds,
                written_bytes: written * SECTOR as f64 / seconds,
                operations: (reads + writes) / seconds,
                wait_millis: waited_ms / (reads + writes).max(1.0),
                busy_percent: (busy_ms / 10.0 / seconds).min(100.0),
            }
        });
        let [busy, io_wait, stolen, all] =
            std::array::from_fn(|at| self.processors[at].saturating_sub(before.processors[at]) as f64);
        let percent = |part: f64| part / all.max(1.0) * 100.0;
        let process = self.process.zip(before.process).map(|(now, before)| ProcessRates {
            processor_percent: rate(now[0], before[0]) / self.ticks_per_second.max(1) as f64 * 100.0,
            major_faults: rate(now[1], before[1]),
            resident_bytes: self.resident.unwrap_or(0),
        });
        let network = |at: usize| rate(self.network[at], before.network[at]);
        KernelRates {
            disk,
            network: NetworkRates { received_bytes: network(0), sent_bytes: network(1), loopback_bytes: network(2) },
            processors: ProcessorRates {
                busy_percent: percent(busy),
                io_wait_percent: percent(io_wait),
                stolen_percent: percent(stolen),
            },
            memory: self.memory,
            process,
        }
    }
}

fn numbers<'a>(words: impl Iterator<Item = &'a str>) -> Vec<u64> {
    words.map(|word| word.parse().unwrap_or(0)).collect()
}

/// Reads, sectors read, writes, sectors written, ms with something to do, and ms that all waited, of `major:minor`.
fn disk(text: &str, device: &str) -> Option<[u64; 6]> {
    let (major, minor) = device.split_once(':')?;
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        if words.next() != Some(major) || words.next() != Some(minor) {
            return None;
        }
        let n = numbers(words.skip(1));
        let waited = n.get(3)?.checked_add(*n.get(7)?)?;
        Some([*n.first()?, *n.get(2)?, *n.get(4)?, *n.get(6)?, *n.get(9)?, waited])
    })
}

/// Received and sent by all interfaces but loopback, and by loopback.
fn network(text: &str) -> [u64; 4] {
    let mut sums = [0_u64; 4];
    for (name, figures) in text.lines().filter_map(|line| line.split_once(':')) {
        let figures = numbers(figures.split_whitespace());
        let (Some(received), Some(sent)) = (figures.first(), figures.get(8)) else { continue };
        let at = if name.trim() == "lo" { 2 } else { 0 };
        sums[at] = sums[at].saturating_add(*received);
        sums[at + 1] = sums[at + 1].saturating_add(*sent);
    }
    sums
}

/// Busy, waiting for a device, stolen, and all ticks of all processors.
fn processors(text: &str) -> [u64; 4] {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or_default();
    // user, nice, system, idle, iowait, irq, softirq, steal; what follows is counted in the first two already.
    let n = numbers(line.split_whitespace().take(8));
    let at = |place: usize| n.get(place).copied().unwrap_or(0);
    let all = n.iter().sum::<u64>();
    [all.saturating_sub(at(3) + at(4) + at(7)), at(4), at(7), all]
}

/// Ticks of processor time, and major faults. The name may hold blanks and brackets, so what counts begins behind the last bracket.
fn process(text: &str) -> Option<[u64; 2]> {
    let (_, behind) = text.rsplit_once(')')?;
    let words: Vec<&str> = behind.split_whitespace().collect();
    let number = |place: usize| words.get(place)?.parse::<u64>().ok();
    Some([number(11)?.checked_add(number(12)?)?, number(9)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_the_kernel_are_found_by_place() {
        let stats = "   7       0 loop0 0 0 0 0 0 0 0 0 0 0 0 0\n 254       0 vda 10 2 800 5 20 3 1600 40 0 30 45 1 1 1 1 1 1\n";
        assert_eq!(disk(stats, "254:0"), Some([10, 800, 20, 1600, 30, 45]));
        assert_eq!(disk(stats, "254:1"), None);
        let dev = "Inter-| Receive | Transmit\n face |bytes packets\n    lo: 100 1 0 0 0 0 0 0 100 1 0 0 0 0 0 0\n  eth0: 7 1 0 0 0 0 0 0 9 1 0 0 0 0 0 0\n  eth1: 3 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n";
        assert_eq!(network(dev), [10, 10, 100, 100]);
        assert_eq!(processors("cpu  10 1 5 80 3 0 1 4 0 0\ncpu0 1 1\n"), [17, 3, 4, 104]);
        let stat = "42 (a) b) S 1 42 42 0 -1 4194304 500 0 7 0 250 50 0 0 20 0 9 0";
        assert_eq!(process(stat), Some([300, 7]));
        assert_eq!(process("42 (x"), None);
    }

    #[test]
    fn rates_are_differences_by_the_second() {
        let before = Counters { ticks_per_second: 100, ..Counters::default() };
        let before = Counters { disk: Some([0; 6]), process: Some([0, 0]), ..before };
        let now = Counters {
            disk: Some([10, 4096, 10, 8192, 1000, 40]),
            network: [2000, 4000, 8000, 0],
            processors: [150, 30, 20, 400],
            process: Some([300, 8]),
            resident: Some(77),
            ticks_per_second: 100,
            ..Counters::default()
        };
        let rates = now.since(&before, 2.0);
        let disk = rates.disk.unwrap();
        assert_eq!((disk.read_bytes, disk.written_bytes), (1_048_576.0, 2_097_152.0));
        assert_eq!((disk.operations, disk.wait_millis, disk.busy_percent), (10.0, 2.0, 50.0));
        assert_eq!(
            (rates.network.received_bytes, rates.network.sent_bytes, rates.network.loopback_bytes),
            (1000.0, 2000.0, 4000.0)
        );
        assert_eq!((rates.processors.busy_percent, rates.processors.io_wait_percent), (37.5, 7.5));
        let process = rates.process.unwrap();
        assert_eq!((process.processor_percent, process.major_faults, process.resident_bytes), (150.0, 4.0, 77));
        // A process that came anew.
        assert_eq!(before.since(&now, 1.0).process.unwrap().processor_percent, 0.0);
    }
}
