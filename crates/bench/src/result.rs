//! What a run found out: the file that `--json` writes, complete enough to be understood elsewhere and shown again later.

use std::collections::BTreeMap;
use std::path::Path;

use env::counted;
use serde::{Deserialize, Serialize};

use crate::driver::Driver;
use crate::drops::Steadiness;
use crate::error::BenchError;
use crate::fields;
use crate::ledger::Tally;
use crate::machine::Machine;
use crate::meter::Latency;
use crate::workload::Workload;

/// What the file says it is. Another number is another format.
pub const FORMAT: &str = "gantry-bench/1";

/// A larger file is not read.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunResult {
    /// [`FORMAT`].
    pub format: String,
    /// What it is called: the workload's name, and what a sweep adds.
    pub name: String,
    /// When it began, in UTC.
    pub started: String,
    /// The version of the load generator.
    pub version: String,
    /// What the target says of its version.
    pub target_version: String,
    /// Masters of the target.
    pub brokers: usize,
    /// The machine of the load generator.
    pub machine: Machine,
    /// Processes that played the load; older files do not have it.
    #[serde(default = "one")]
    pub processes: usize,
    /// What was asked for.
    pub workload: Workload,
    /// How it was done.
    pub driver: Driver,
    /// The setting of the target that a sweep changed, and its value.
    pub setting: Option<(String, String)>,
    /// Whether somebody ended it early.
    pub was_interrupted: bool,
    /// The figures.
    pub summary: Summary,
    /// Second by second.
    pub windows: Vec<Window>,
    /// Which unit a figure has, by the end of its name or by its name.
    pub units: BTreeMap<String, String>,
}

/// The figures of a run. Rates, latencies and processor time are those of the measured part; counts of messages are of the whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// How long was measured.
    pub measured_seconds: f64,
    /// Messages a second that were asked for; 0 if as many as possible were.
    pub asked_rate: f64,
    /// Messages a second sent with success.
    pub produce_rate: f64,
    /// Their bytes.
    pub produce_bytes_rate: f64,
    /// Messages a second received, by all groups together.
    pub consume_rate: f64,
    /// Their bytes.
    pub consume_bytes_rate: f64,
    /// Received for each that was sent and should be received; nothing without both.
    pub consume_per_produce: Option<f64>,
    /// From the time a send was due to its answer, in ms.
    pub publish: Option<Latency>,
    /// From the time a send was due to its receipt, in ms.
    pub end_to_end: Option<Latency>,
    /// What became of the messages.
    pub messages: Tally,
    /// Lost is what had not come so long after the last one that did.
    pub quiet_seconds: f64,
    /// Received before one that was sent earlier; nothing where no order is promised.
    pub disordered: Option<u64>,
    /// What the target's queues hold afterwards; nothing if it could not be asked.
    pub stored: Option<u64>,
    /// Due by the schedule and never sent, because those before took too long.
    pub due_and_never_sent: u64,
    /// Failed sends, by reason.
    pub produce_failures: BTreeMap<String, u64>,
    /// Stored with less than was asked for, by the answer's name.
    pub produce_remarks: BTreeMap<String, u64>,
    /// Failed requests of consumers, by reason.
    pub consume_failures: BTreeMap<String, u64>,
    /// What the server's process took.
    pub server: Option<ServerUse>,
    /// Whether the server's process ended while the load ran; what it took is known until then.
    pub server_ended: bool,
    /// Processes that took its place, where others were expected; older files do not have it.
    #[serde(default)]
    pub server_restarts: u64,
    /// Processor time of the load generator, in cores.
    pub loader_cpu_cores: f64,
    /// The same for each million messages, sent or received, whichever are more; older files do not have it.
    #[serde(default)]
    pub loader_cpu_seconds_per_million: Option<f64>,
    /// Whether sending was steady; nothing if it was too short to tell.
    pub produce_steadiness: Option<Steadiness>,
    /// Whether receiving was steady.
    pub consume_steadiness: Option<Steadiness>,
    /// Topics and groups that could not be removed.
    pub left_behind: Vec<String>,
}

/// What the server's process took while it was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerUse {
    /// Processor time.
    pub cpu_seconds: f64,
    /// The same, in cores.
    pub cpu_cores: f64,
    /// The same for each million messages, sent or received, whichever are more.
    pub cpu_seconds_per_million: Option<f64>,
    /// The most that was resident.
    pub resident_bytes_max: u64,
    /// The most of it that was no page of a file.
    pub anonymous_bytes_max: u64,
}

/// The part of a run that a second belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The backlog is sent.
    Fill,
    /// Not counted.
    Warmup,
    /// Counted.
    Measure,
    /// Nothing is sent any more, and what is missing is waited for.
    Drain,
}

impl Phase {
    /// In a word.
    pub fn word(self) -> &'static str {
        match self {
            Phase::Fill => "fill",
            Phase::Warmup => "warm-up",
            Phase::Measure => "measure",
            Phase::Drain => "drain",
        }
    }
}

/// A second, or what is left of one at the end of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Window {
    /// When it began, in seconds after the run's beginning.
    pub at_seconds: f64,
    /// How long it was.
    pub seconds: f64,
    /// What it belongs to.
    pub phase: Phase,
    /// Messages sent with success.
    pub sent: u64,
    /// Messages that were not.
    pub failed: u64,
    /// Messages received, by all groups together.
    pub received: u64,
    /// From due to answer.
    pub publish: Option<Brief>,
    /// From due to receipt.
    pub end_to_end: Option<Brief>,
    /// Answered, and not received yet, over all groups.
    pub outstanding: u64,
    /// Processor time of the server, in cores.
    pub server_cpu_cores: Option<f64>,
    /// What it has resident.
    pub server_resident_bytes: Option<u64>,
    /// Processor time of the load generator, in cores.
    pub loader_cpu_cores: f64,
}

/// A distribution in few words, in ms.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Brief {
    /// Half took no longer.
    pub p50: f64,
    /// 99 percent took no longer.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

impl From<Latency> for Brief {
    fn from(latency: Latency) -> Brief {
        Brief { p50: latency.p50, p99: latency.p99, max: latency.max }
    }
}

fn one() -> usize {
    1
}

/// For [`RunResult::units`].
pub fn units() -> BTreeMap<String, String> {
    let all = [
        ("…Rate", "messages a second"),
        ("…BytesRate", "bytes a second"),
        ("publish, endToEnd", "milliseconds from the time a send was due"),
        ("…Seconds", "seconds"),
        ("…Cores", "processor seconds a second"),
        ("…Bytes, …BytesMax", "bytes"),
        ("cpuSecondsPerMillion, loaderCpuSecondsPerMillion", "processor seconds for a million messages"),
        ("drops.from, drops.to", "seconds of the measured part, from 0"),
    ];
    all.map(|(name, unit)| (name.to_owned(), unit.to_owned())).into()
}

impl RunResult {
    /// What a user should know before he believes the rest, in sentences. None: all is well.
    pub fn problems(&self) -> Vec<String> {
        let summary = &self.summary;
        let tally = &summary.messages;
        let mut found = Vec::new();
        if summary.measured_seconds <= 0.0 {
            found.push("nothing was measured: the load ended before its warm-up did".to_owned());
        }
        if summary.server_ended {
            found.push("the server's process ended while the load ran".to_owned());
        }
        if tally.lost > 0 {
            found.push(format!(
                "acknowledged and not received, {:.0} s after the last that was: {}",
                summary.quiet_seconds,
                counted(tally.lost, "message")
            ));
        }
        if tally.duplicates > 0 {
            found.push(format!("received again: {}", counted(tally.duplicates, "message")));
        }
        if let Some(disordered) = summary.disordered.filter(|count| *count > 0) {
            found.push(format!("received before one that was sent earlier: {}", counted(disordered, "message")));
        }
        if tally.failed > 0 {
            found.push(format!("not sent with success: {}", counted(tally.failed, "message")));
        }
        if tally.untraced > 0 {
            found.push(format!(
                "of {} it is not known what became of them: the time was over, or too many were open at once",
                counted(tally.untraced, "message")
            ));
        }
        if tally.foreign > 0 {
            found.push(format!("received, and not sent by this run: {}", counted(tally.foreign, "message")));
        }
        if !self.is_rate_held() {
            let (held, asked) = (summary.produce_rate, summary.asked_rate);
            found.push(format!("{held:.0} messages a second were sent of {asked:.0} that were asked for"));
        }
        for (what, steadiness) in [("sending", &summary.produce_steadiness), ("receiving", &summary.consume_steadiness)]
        {
            for drop in steadiness.iter().flat_map(|steadiness| &steadiness.drops) {
                let median = steadiness.as_ref().map_or(0.0, |steadiness| steadiness.median);
                found.push(format!(
                    "{what} fell to {:.0} a second between second {} and {} of the measured part; the median of ten seconds is {median:.0}",
                    drop.rate, drop.from, drop.to
                ));
            }
        }
        found
    }

    /// For a run without [problems](RunResult::problems): what was looked at and is well, and what was not looked at, and why.
    pub fn verdict(&self) -> String {
        let summary = &self.summary;
        let is_consumed = self.workload.groups() > 0;
        let unconsumed = "nobody consumed";
        let short = "less than 20 s, or nothing at all";
        let looks = [
            ("losses", is_consumed, unconsumed),
            ("duplicates", is_consumed, unconsumed),
            (
                "order",
                summary.disordered.is_some(),
                if is_consumed { "nothing promises it with this load" } else { unconsumed },
            ),
            ("failed sends", summary.messages.sent > 0, "nothing was sent"),
            ("falls of the sending rate", summary.produce_steadiness.is_some(), short),
            (
                "falls of the receiving rate",
                summary.consume_steadiness.is_some(),
                if is_consumed { short } else { unconsumed },
            ),
        ];
        let well: Vec<&str> = looks.iter().filter(|(_, is_seen, _)| *is_seen).map(|(what, ..)| *what).collect();
        let unseen: Vec<String> =
            looks.iter().filter(|(_, is_seen, _)| !is_seen).map(|(what, _, why)| format!("{what} ({why})")).collect();
        let well = if well.is_empty() { "nothing".to_owned() } else { well.join(", ") };
        let unseen = if unseen.is_empty() { String::new() } else { format!(" Not looked for: {}.", unseen.join(", ")) };
        format!("Looked for, and none found: {well}.{unseen}")
    }

    /// Whether as many messages a second were answered as were due. The answers to what was due last come later by as long as an
    /// answer takes, which is much of a short run.
    fn is_rate_held(&self) -> bool {
        let summary = &self.summary;
        let late = summary.publish.map_or(0.0, |latency| latency.p50 / 1000.0);
        let due = summary.asked_rate * (summary.measured_seconds - late);
        summary.produce_rate * summary.measured_seconds >= due * 0.99
    }

    /// Writes the file.
    pub fn write(results: &[RunResult], path: &Path) -> Result<(), BenchError> {
        let failed = |cause| BenchError::File { path: path.to_owned(), cause };
        let mut text = serde_json::to_string_pretty(results).map_err(|error| failed(error.into()))?;
        text.push('\n');
        std::fs::write(path, text).map_err(failed)
    }

    /// Reads a file: one run, or those of a sweep.
    pub fn read(path: &Path) -> Result<Vec<RunResult>, BenchError> {
        let failed = |cause| BenchError::File { path: path.to_owned(), cause };
        let none = |cause: String| BenchError::NoResult { path: path.to_owned(), cause };
        let bytes = fields::read_at_most(path, FILE_BYTES_MAX).map_err(failed)?;
        let Some(bytes) = bytes else {
            return Err(none(format!("it has more than the {FILE_BYTES_MAX} bytes that are read")));
        };
        let text = String::from_utf8(bytes).map_err(|error| none(error.to_string()))?;
        let results: Vec<RunResult> = serde_json::from_str(&text).map_err(|error| none(error.to_string()))?;
        match results.iter().find(|result| result.format != FORMAT) {
            Some(other) => Err(none(format!("its format is \"{}\"; {FORMAT} is expected", other.format))),
            None => Ok(results),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::case::Case;
    use crate::drops;

    /// A run of so many seconds at these rates, of which nothing bad is known.
    pub(crate) fn sample(rates: &[u64]) -> RunResult {
        let (workload, driver) = Case::new().finish().unwrap();
        let windows = rates.iter().enumerate().map(|(second, rate)| Window {
            at_seconds: second as f64,
            seconds: 1.0,
            phase: Phase::Measure,
            sent: *rate,
            failed: 0,
            received: *rate,
            publish: Some(Brief { p50: 1.0, p99: 2.0, max: 3.0 }),
            end_to_end: None,
            outstanding: 0,
            server_cpu_cores: None,
            server_resident_bytes: None,
            loader_cpu_cores: 0.5,
        });
        let sent = rates.iter().sum();
        let all: Vec<f64> = rates.iter().map(|rate| *rate as f64).collect();
        let messages = Tally { sent, acknowledged: sent, received: sent, ..Tally::default() };
        RunResult {
            format: FORMAT.to_owned(),
            name: workload.name.clone(),
            started: "2026-01-01T00:00:00Z".to_owned(),
            version: "0".to_owned(),
            target_version: String::new(),
            brokers: 1,
            machine: Machine::default(),
            processes: 1,
            setting: None,
            was_interrupted: false,
            summary: Summary {
                messages,
                quiet_seconds: 10.0,
                measured_seconds: rates.len() as f64,
                produce_steadiness: drops::find(&all),
                ..Summary::default()
            },
            windows: windows.collect(),
            units: units(),
            workload,
            driver,
        }
    }

    #[test]
    fn whatever_is_wrong_is_said_and_of_a_good_run_nothing() {
        let mut result = sample(&[1000; 30]);
        assert_eq!(result.problems(), Vec::<String>::new());
        result.summary.messages.lost = 3;
        result.summary.messages.duplicates = 2;
        result.summary.disordered = Some(1);
        result.summary.messages.failed = 4;
        (result.summary.asked_rate, result.summary.produce_rate) = (1000.0, 900.0);
        assert_eq!(
            result.problems(),
            [
                "acknowledged and not received, 10 s after the last that was: 3 messages",
                "received again: 2 messages",
                "received before one that was sent earlier: 1 message",
                "not sent with success: 4 messages",
                "900 messages a second were sent of 1000 that were asked for",
            ]
        );
    }

    #[test]
    fn a_good_run_claims_nothing_that_was_not_looked_at() {
        let mut result = sample(&[1000; 30]);
        result.summary.disordered = None;
        result.summary.consume_steadiness = None;
        result.workload.subscriptions_per_topic = 1;
        assert_eq!(
            result.verdict(),
            "Looked for, and none found: losses, duplicates, failed sends, falls of the sending rate. Not looked for: order \
             (nothing promises it with this load), falls of the receiving rate (less than 20 s, or nothing at all)."
        );
        result.workload.subscriptions_per_topic = 0;
        result.summary.produce_steadiness = None;
        assert!(
            result
                .verdict()
                .starts_with("Looked for, and none found: failed sends. Not looked for: losses (nobody consumed), ")
        );
        result.workload.subscriptions_per_topic = 1;
        result.summary.disordered = Some(0);
        result.summary.produce_steadiness = drops::find(&[5.0; 30]);
        result.summary.consume_steadiness = drops::find(&[5.0; 30]);
        assert!(!result.verdict().contains("Not looked for"), "{}", result.verdict());
    }

    #[test]
    fn ten_seconds_below_nine_tenths_of_the_median_are_a_problem_with_a_place() {
        let mut rates = [1000; 60];
        rates[30..34].fill(100);
        let said = sample(&rates).problems();
        assert_eq!(said.len(), 1);
        assert!(
            said[0].starts_with("sending fell to 640 a second between second 22 and 42 of the measured part"),
            "{said:?}"
        );
    }
}
