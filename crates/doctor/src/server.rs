//! A broker that runs: what it tells about itself (request 28), and what the kernel tells about its process.

use super::finding::{Finding, Severity, size};
use super::host::Host;
use super::patient::{Lock, Patient};

/// Of a limit, in percent, from where on it is told.
const CLOSE_PERCENT: f64 = 80.0;
/// A send that took this long, of which a client hears nothing but its time-out.
const LONG_SEND_MS: f64 = 1000.0;
/// Behind the log, in bytes: more than a second of a disk's work.
const BEHIND_MAX: f64 = (256 << 20) as f64;
/// Later than this is not a matter of rounding.
const LATE_SECONDS: f64 = 10.0;
/// Of the machine's mappings or descriptors that the process may have, in percent.
const PROCESS_PERCENT: u64 = 80;
/// Threads that append, by their names: tokio's workers, and that of a write pool.
const APPENDING: [&str; 2] = ["gantry", "commit"];
/// So many times they may wait for memory to come from the disk, whenever that was; and, beyond that, so many times a second of the broker's life.
const FAULTS_MAX: u64 = 1000;
const FAULTS_PER_SECOND_MAX: f64 = 1.0;
/// Where the kernel says it, counted in words behind the name: pages that were waited for, and when the process began.
const MAJOR_FAULTS: usize = 9;
const STARTED: usize = 19;

/// What there is, how much there may be (by the name of its setting, if one sets it), and what happens at that.
const LIMITS: [(&str, &str, &str); 10] = [
    ("connections", "connectionsMax", "more connections are closed as they come"),
    (
        "connectionsOfAllPorts",
        OF_ALL_PORTS_MAX,
        "more connections are closed as they come, whatever connectionsMax says",
    ),
    (
        "requestBytes",
        "requestBytesMax",
        "large requests are not read until there is room, and a connection that has its own 64 KiB of answers gets no more until its peer takes some",
    ),
    (
        "replyBytes",
        REPLIES_MAX,
        "a connection that has its own 64 KiB of answers gets no more until its peer takes some: clients ask for much and do not read it",
    ),
    ("parkedPulls", "parkedPullsMax", "more pulls that wait for a message are refused"),
    ("parkedPullsPerConnectionPeak", "parkedPullsPerConnectionMax", "more pulls of one connection are refused"),
    (
        "popLeases",
        "popLeasesMax",
        "nothing is popped until leases end: consumers take messages and do not acknowledge them",
    ),
    ("waitingPops", "maxPopPollingSize", "more pops that wait for a message are refused"),
    (
        "openHalfMessages",
        "openHalfMessagesMax",
        "more half messages are refused: producers do not end their transactions",
    ),
    (
        "unflushedBurstsPerConnectionPeak",
        "unflushedBurstsPerConnectionMax",
        "the connection is not read until the device has caught up",
    ),
];
/// No setting, but what the descriptors of the process leave beside the store's.
const OF_ALL_PORTS_MAX: &str = "connectionsOfAllPortsMax";
/// No setting either: it follows from `requestBytesMax`.
const REPLIES_MAX: &str = "replyBytesMax";

/// Whether there is a broker to be asked. Every other check of this family is quiet without one.
pub fn answers(patient: &Patient) -> Vec<Finding> {
    let server = patient.server();
    let from = format!("request 28 to {server}");
    vec![match patient.runtime_info() {
        Ok(info) => {
            let say = |name: &str| info.get(name).map_or("", String::as_str);
            Finding::ok(format!("the broker at {server} answers"))
                .seen(from, format!("version {}, runs {}", say("brokerVersionDesc"), say("runtime")))
        }
        Err(error) if patient.server.is_some() => Finding::unknown(format!("the broker at {server} does not answer"))
            .seen(from, error)
            .effect("nothing can be said about it; its clients fare no better, if they reach it the same way")
            .fix("gantry doctor address store shows whether it runs, and where"),
        Err(error) => {
            match patient.lock() {
                Lock::Held(Some(pid)) => Finding::error(format!(
                    "process {pid} has the store open and does not answer at {server}"
                ))
                .seen(from, error)
                .seen(patient.target.store.join("lock").display().to_string(), format!("locked by process {pid}"))
                .effect("the broker is starting or stopping, hangs, or listens elsewhere (listenPort=0, --broker-port)")
                .fix("give its address with --server HOST:PORT; gantry profile --pid shows what it does"),
                Lock::Held(None) | Lock::Free => Finding::ok("no broker runs here")
                    .seen(from, error)
                    .effect("start one, or name one with --server, and there is more to see"),
            }
        }
    }]
}

fn from(patient: &Patient) -> String {
    format!("request 28 to {}", patient.server())
}

/// R1.41, R1.43 to R1.45: sends that were refused, and how long sends took.
pub fn refusals(patient: &Patient) -> Vec<Finding> {
    let Some(failed) = patient.told("putMessageFailedTimes") else { return Vec::new() };
    let [p99, p999, longest] =
        ["putLatency99", "putLatency999", "putMessageEntireTimeMax"].map(|name| patient.told(name).unwrap_or(0.0));
    let total = patient.told("putMessageTimesTotal").unwrap_or(0.0);
    let mut findings = vec![if failed > 0.0 {
        Finding::warning(format!("{failed} sends were refused since the broker started"))
            .effect("producers got an error, and sent again or gave up. The broker's log and the answers name the limit that was reached")
            .fix("gantry doctor disk limits shows which limit is near")
    } else {
        Finding::ok("no send was refused since the broker started")
    }
    .seen(from(patient), format!("putMessageFailedTimes {failed}, putMessageTimesTotal {total}"))
    .figure("failed", failed)];
    let times = format!("p99 {p99:.2} ms, p99.9 {p999:.2} ms, longest {longest:.0} ms");
    findings.push(
        if longest >= LONG_SEND_MS {
            Finding::note(format!("a send took {longest:.0} ms"))
                .effect("at some moment the store waited for memory or for the device; clients that wait less saw a time-out")
                .fix("gantry doctor watch while it happens; gantry doctor fdatasync swap pressure")
        } else {
            Finding::ok(format!("sends: {times}"))
        }
        .of("times")
        .seen(from(patient), times)
        .figure("p99Millis", p99)
        .figure("p999Millis", p999)
        .figure("maxMillis", longest),
    );
    if let Some(waited) = patient.told("roomWaitMillisPeak").filter(|waited| *waited > 0.0) {
        let limit = patient.told("roomTimeoutMillis").unwrap_or(0.0);
        findings.push(
            Finding::new(if waited >= limit { Severity::Warning } else { Severity::Note }, format!("a send waited {waited} ms for room in the log"))
                .of("room")
                .seen(from(patient), format!("roomWaitMillisPeak {waited}, roomTimeoutMillis {limit}"))
                .effect("messages came faster than the device took them; those that wait for longer than roomTimeoutMillis are refused")
                .fix("a faster device, fewer or smaller messages; gantry doctor disk-throughput shows what it takes"),
        );
    }
    findings
}

/// How close the broker is to its limits.
pub fn limits(patient: &Patient) -> Vec<Finding> {
    if patient.runtime_info().is_err() {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let mut fine = Vec::new();
    for (now, most, effect) in LIMITS {
        let Some((now_is, most_is)) = patient.told(now).zip(patient.told(most)).filter(|(_, most)| *most > 0.0) else {
            continue;
        };
        let percent = now_is / most_is * 100.0;
        if percent < CLOSE_PERCENT {
            fine.push(format!("{now} {now_is} of {most_is}"));
            continue;
        }
        let (severity, is, when) = match (now.ends_with("Peak"), percent >= 100.0) {
            // It never falls: what was reached once is no alarm until the next start.
            (true, _) => (Severity::Note, "was, since the start,", "when it is reached"),
            (false, true) => (Severity::Error, "is", "now"),
            (false, false) => (Severity::Warning, "is", "when it is reached"),
        };
        findings.push(
            Finding::new(severity, format!("{now} {is} at {percent:.0} % of {most}"))
                .of(most)
                .seen(from(patient), format!("{now} {now_is}, {most} {most_is}"))
                .effect(format!("{when}: {effect}"))
                .fix(match most {
                    OF_ALL_PORTS_MAX => "LimitNOFILE=65536 in the systemd unit, or `* hard nofile 65536` in /etc/security/limits.conf: each \
                         connection is an open file, and the store has its own first"
                        .to_owned(),
                    REPLIES_MAX => "find the clients that do not read their answers; raise requestBytesMax, if the machine has room".to_owned(),
                    _ => format!("raise {most}, if the machine has room; else find who needs so much"),
                }),
        );
    }
    if let Some(count) = patient.told("connectionsThatMadeWay").filter(|count| *count > 0.0) {
        findings.push(
            Finding::note(format!("{count} connections that had said nothing made way for others since the start"))
                .of("connectionsThatMadeWay")
                .seen(from(patient), format!("connectionsThatMadeWay {count}"))
                .effect("all places for connections were taken at some moment; who has spoken kept his")
                .fix("gantry doctor nofile; find who connects and says nothing, as port scanners and checks of load balancers do"),
        );
    }
    let ratio = patient.told("commitLogDiskRatio").map(|ratio| (ratio * 100.0).round());
    let refuse = patient.target.settings.store().map_or(90, |store| store.disk_space_warning_level_ratio);
    if let Some(percent) = ratio.filter(|percent| *percent > f64::from(refuse)) {
        findings.push(
            Finding::error(format!("the broker's disk is {percent} % full"))
                .of("diskSpaceWarningLevelRatio")
                .seen(from(patient), format!("commitLogDiskRatio {percent} %"))
                .effect("every send is refused until there is room")
                .fix("gantry admin deleteExpiredCommitLog, or free space"),
        );
    } else if let Some(percent) = ratio {
        fine.push(format!("commitLogDiskRatio {percent} %"));
    }
    if findings.is_empty() {
        findings.push(Finding::ok("the broker is far from each of its limits").seen(from(patient), fine.join(", ")));
    }
    findings
}

/// Bytes of a text like `1.5 KiB`.
fn bytes_of(text: &str) -> Option<f64> {
    let (number, unit) = text.split_once(' ')?;
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let power = units.iter().position(|known| *known == unit)?;
    Some(number.parse::<f64>().ok()? * 1024_f64.powi(i32::try_from(power).ok()?))
}

/// What is behind the log: the device, and the key index.
pub fn flush_lag(patient: &Patient) -> Vec<Finding> {
    let Ok(info) = patient.runtime_info() else { return Vec::new() };
    let text = info.get("remainHowManyDataToFlush").cloned().unwrap_or_default();
    let unflushed = bytes_of(&text).unwrap_or(0.0);
    let index = patient.told("dispatchBehindBytes").unwrap_or(0.0);
    let seen = |finding: Finding| {
        finding
            .seen(from(patient), format!("remainHowManyDataToFlush {text}, dispatchBehindBytes {index}"))
            .figure("unflushedBytes", unflushed)
            .figure("indexBehindBytes", index)
    };
    let mut findings = Vec::new();
    if unflushed > BEHIND_MAX {
        findings.push(seen(
            Finding::warning(format!("{text} of the log are not on the device"))
                .of("flush")
                .effect("a loss of power would lose them, acknowledged or not (ASYNC_FLUSH). The device does not keep up with what comes in")
                .fix("gantry doctor disk shows what the device takes"),
        ));
    }
    if index > BEHIND_MAX {
        findings.push(seen(
            Finding::warning(format!("the key index is {} behind the log", size(index as u64)))
                .of("index")
                .effect("questions by key wait until it has caught up; sends and pulls do not")
                .fix("messageIndexEnable=false where nobody asks by key"),
        ));
    }
    if findings.is_empty() {
        findings.push(seen(Finding::ok(format!(
            "{text} of the log are not on the device yet, {} not in the key index",
            size(index as u64)
        ))));
    }
    findings
}

/// What the broker has still to deliver.
pub fn deliveries(patient: &Patient) -> Vec<Finding> {
    let Ok(info) = patient.runtime_info() else { return Vec::new() };
    let waiting: i64 = info
        .iter()
        .filter(|(name, _)| name.starts_with("scheduleMessageOffset_"))
        .filter_map(|(_, value)| {
            let (done, end) = value.split_once(',')?;
            Some((end.trim().parse::<i64>().ok()? - done.trim().parse::<i64>().ok()?).max(0))
        })
        .sum();
    let [late, behind, timers, half] = ["timerReadBehind", "timerOffsetBehind", "timerCongestNum", "openHalfMessages"]
        .map(|name| patient.told(name).unwrap_or(0.0));
    let said = format!("{waiting} delayed, {timers} timer messages ({behind} not taken in), {half} half messages");
    vec![
        if late > LATE_SECONDS {
            Finding::warning(format!("timer messages are {late} s late"))
                .effect("the device does not bring them in as fast as they are due, or timerStopDequeue=true holds them back")
                .fix("gantry doctor disk; gantry admin getBrokerConfig shows timerStopDequeue")
        } else {
            Finding::ok(format!("waiting for delivery: {said}"))
        }
        .seen(from(patient), format!("{said}, timerReadBehind {late} s"))
        .figure("delayed", waiting)
        .figure("timers", timers)
        .figure("halfMessages", half),
    ]
}

/// The broker's process, as the kernel sees it.
pub fn process(patient: &Patient) -> Vec<Finding> {
    let Some(pid) = patient.broker_pid() else { return Vec::new() };
    let host = &patient.host;
    let status = format!("/proc/{pid}/status");
    let Some(resident) = host.of_process(pid, "VmRSS") else {
        let finding = Finding::note(format!("process {pid} cannot be looked at")).seen(status, "not readable");
        return vec![finding.effect("run as its user or as root to see its memory")];
    };
    let swapped = host.of_process(pid, "VmSwap").unwrap_or(0);
    let own = host.of_process(pid, "RssAnon").unwrap_or(0);
    let mut findings = vec![
        if swapped > 0 {
            Finding::warning(format!("{} of the broker's memory are in swap", size(swapped)))
                .of("swap")
                .effect("whoever needs them waits for the disk: sends and pulls of some moments take as long as the disk is busy")
                .fix("swapoff -a brings them back, if there is room; then see the check swap")
        } else {
            Finding::ok(format!("process {pid}: {} resident, of which {} are its own", size(resident), size(own)))
                .effect("the rest are pages of the log, which the kernel takes back when it needs them")
        }
        .seen(status, format!("VmRSS {}, RssAnon {}, VmSwap {}", size(resident), size(own), size(swapped)))
        .figure("residentBytes", resident)
        .figure("ownBytes", own)
        .figure("swappedBytes", swapped),
    ];
    let maps = host.text(&format!("/proc/{pid}/maps")).map(|text| text.lines().count() as u64);
    let files = Some(host.list(&format!("/proc/{pid}/fd")).len() as u64).filter(|files| *files > 0);
    let open_max = host.text(&format!("/proc/{pid}/limits")).and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    });
    for (what, now, most, fix) in [
        ("mappings", maps, host.number("/proc/sys/vm/max_map_count"), "sysctl -w vm.max_map_count=1048576"),
        ("open files", files, open_max, "LimitNOFILE=1048576 in the systemd unit"),
    ] {
        let Some((now, most)) = now.zip(most).filter(|(_, most)| *most > 0) else { continue };
        let finding = if now.saturating_mul(100) / most >= PROCESS_PERCENT {
            Finding::warning(format!("{now} {what} of {most}"))
                .effect(format!("at {most} new files of the log or new connections fail"))
                .fix(fix)
        } else {
            Finding::ok(format!("{now} {what} of {most}"))
        };
        findings.push(finding.of(what).seen(format!("/proc/{pid}"), format!("{now} {what}, limit {most}")));
    }
    findings
}

/// How often threads that append have waited for memory that was not there.
pub fn page_faults(patient: &Patient) -> Vec<Finding> {
    let Some(pid) = patient.broker_pid() else { return Vec::new() };
    let host = &patient.host;
    let tasks = format!("/proc/{pid}/task");
    let faults_of = |task: &String| {
        let stat = host.text(&format!("{tasks}/{task}/stat"))?;
        let (name, words) = of_stat(&stat)?;
        if !APPENDING.contains(&name) {
            return None;
        }
        words.get(MAJOR_FAULTS)?.parse::<u64>().ok()
    };
    // The first thread has the program's name, which is that of the workers, and appends nothing.
    let first = pid.to_string();
    let faults: Vec<u64> = host.list(&tasks).iter().filter(|task| **task != first).filter_map(faults_of).collect();
    if faults.is_empty() {
        // Another broker's process, or one that cannot be looked at: the check before this one says it.
        return Vec::new();
    }
    let count: u64 = faults.iter().sum();
    let lived = lived_seconds(host, pid).filter(|seconds| *seconds > 0.0);
    let since = lived.map_or_else(|| "in an unknown time".to_owned(), |seconds| format!("in {seconds:.0} s"));
    let title = format!("threads that append waited {count} times for memory to come from the disk, {since}");
    let finding = match lived {
        Some(seconds) if count > FAULTS_MAX && count as f64 > seconds * FAULTS_PER_SECOND_MAX => Finding::warning(title)
            .effect("sends stood still that often until the disk had brought back what had been taken out of memory, and so did all others on that thread")
            .fix(
                "less pressure of swap (gantry doctor swap pressure), a larger cgroup or machine, or a smaller memoryLimit of the neighbours that take \
                 the memory",
            ),
        None if count > FAULTS_MAX => Finding::note(title)
            .effect("how long the process has run cannot be read, so that nobody can say whether these are many"),
        Some(_) | None => Finding::ok(title),
    };
    let seen = format!("majflt of {} threads ({}): {count}", faults.len(), APPENDING.join(", "));
    let finding = finding.seen(tasks, seen).figure("faults", count);
    vec![match lived {
        Some(seconds) => finding
            .seen(format!("/proc/{pid}/stat"), format!("runs for {seconds:.0} s"))
            .figure("uptimeSeconds", seconds),
        None => finding,
    }]
}

/// How long a process has run.
fn lived_seconds(host: &Host, pid: i32) -> Option<f64> {
    let stat = host.text(&format!("/proc/{pid}/stat"))?;
    let (_, words) = of_stat(&stat)?;
    let started: u64 = words.get(STARTED)?.parse().ok()?;
    let now: f64 = host.text("/proc/uptime")?.split_whitespace().next()?.parse().ok()?;
    Some(now - started as f64 / rustix::param::clock_ticks_per_second().max(1) as f64)
}

/// The name of a process or a thread, which may hold anything, and the words behind it, by its line below `/proc`.
fn of_stat(stat: &str) -> Option<(&str, Vec<&str>)> {
    let (name, behind) = stat.split_once('(')?.1.rsplit_once(')')?;
    Some((name, behind.split_whitespace().collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeHost;
    use crate::patient::fake::{patient, told_by};

    fn one(look: fn(&Patient) -> Vec<Finding>, figures: &[(&str, &str)]) -> Vec<(Option<String>, Severity)> {
        let fake = FakeHost::with(&[]);
        look(&told_by(&fake, figures)).into_iter().map(|one| (one.subject, one.severity)).collect()
    }

    fn of(subject: &str, severity: Severity) -> (Option<String>, Severity) {
        (Some(subject.to_owned()), severity)
    }

    #[test]
    fn a_named_broker_that_does_not_answer_is_unknown_and_the_rest_is_quiet() {
        let fake = FakeHost::with(&[]);
        let patient = patient(&fake, "");
        assert_eq!(answers(&patient).remove(0).severity, Severity::Unknown);
        for look in [refusals, limits, flush_lag, deliveries, process, page_faults] {
            assert_eq!(look(&patient), []);
        }
    }

    #[test]
    fn refusals_long_sends_and_waits_for_room_are_told() {
        let quiet = [("putMessageFailedTimes", "0"), ("putMessageEntireTimeMax", "3"), ("roomWaitMillisPeak", "0")];
        assert_eq!(one(refusals, &quiet), [(None, Severity::Ok), of("times", Severity::Ok)]);
        let busy = [
            ("putMessageFailedTimes", "7"),
            ("putMessageEntireTimeMax", "2500"),
            ("roomWaitMillisPeak", "3000"),
            ("roomTimeoutMillis", "2500"),
        ];
        let expected = [(None, Severity::Warning), of("times", Severity::Note), of("room", Severity::Warning)];
        assert_eq!(one(refusals, &busy), expected);
    }

    #[test]
    fn a_limit_that_is_near_is_a_warning_and_one_that_is_reached_an_error() {
        let figures = [
            ("connections", "10"),
            ("connectionsMax", "100"),
            ("popLeases", "90"),
            ("popLeasesMax", "100"),
            ("openHalfMessages", "100"),
            ("openHalfMessagesMax", "100"),
            ("commitLogDiskRatio", "0.97"),
        ];
        let expected = [
            of("popLeasesMax", Severity::Warning),
            of("openHalfMessagesMax", Severity::Error),
            of("diskSpaceWarningLevelRatio", Severity::Error),
        ];
        assert_eq!(one(limits, &figures), expected);
        assert_eq!(one(limits, &figures[..2]), [(None, Severity::Ok)]);
    }

    #[test]
    fn a_peak_that_is_over_is_a_note_of_the_past() {
        let figures = [("parkedPullsPerConnectionPeak", "100"), ("parkedPullsPerConnectionMax", "100")];
        assert_eq!(one(limits, &figures), [of("parkedPullsPerConnectionMax", Severity::Note)]);
        let found = limits(&told_by(&FakeHost::with(&[]), &figures)).remove(0);
        assert!(found.title.contains("was, since the start, at 100 %"), "{found:?}");
    }

    #[test]
    fn few_descriptors_are_the_limit_of_connections_long_before_connections_max() {
        let figures = [
            ("connections", "500"),
            ("connectionsMax", "100000"),
            ("connectionsOfAllPorts", "512"),
            ("connectionsOfAllPortsMax", "512"),
            ("connectionsThatMadeWay", "3"),
        ];
        let expected = [of(OF_ALL_PORTS_MAX, Severity::Error), of("connectionsThatMadeWay", Severity::Note)];
        assert_eq!(one(limits, &figures), expected);
        let found = limits(&told_by(&FakeHost::with(&[]), &figures)).remove(0);
        assert!(found.fix.unwrap().contains("LimitNOFILE"));
    }

    #[test]
    fn answers_that_nobody_takes_are_told_apart_from_requests() {
        let figures =
            [("requestBytes", "130"), ("requestBytesMax", "256"), ("replyBytes", "130"), ("replyBytesMax", "128")];
        assert_eq!(one(limits, &figures), [of("replyBytesMax", Severity::Error)]);
        let found = limits(&told_by(&FakeHost::with(&[]), &figures)).remove(0);
        assert!(found.effect.contains("until its peer takes some"), "{found:?}");
        assert!(found.fix.unwrap().contains("raise requestBytesMax"));
        // A broker that does not count them.
        assert_eq!(one(limits, &figures[..2]), [(None, Severity::Ok)]);
    }

    /// A line of `/proc/PID/stat` or of a thread.
    fn stat(name: &str, faults: u64, started: u64) -> String {
        format!("9 ({name}) S 1 9 9 0 -1 4194304 500 0 {faults} 0 250 50 0 0 20 0 9 0 {started} 1000 20\n")
    }

    #[test]
    fn many_page_faults_of_threads_that_append_are_a_warning() {
        let fake =
            FakeHost::with(&[("/proc/7/stat", &stat("gantry", 90_000, 0)), ("/proc/uptime", "1500.25 2000.00\n")]);
        // The first thread, one that appends nothing, and two that do.
        fake.write("/proc/7/task/7/stat", &stat("gantry", 50_000, 0));
        fake.write("/proc/7/task/8/stat", &stat("gantry-blocking", 50_000, 0));
        fake.write("/proc/7/task/9/stat", &stat("gantry", 900, 0));
        let mut patient = patient(&fake, "");
        patient.pid = Some(7);
        for (of_pool, uptime, expected) in [
            (100, "1500.25 1.0", Severity::Ok),
            (601, "1500.25 1.0", Severity::Warning),
            (601, "100000.00 1.0", Severity::Ok),
            (601, "", Severity::Note),
            (1, "", Severity::Ok),
        ] {
            fake.write("/proc/7/task/10/stat", &stat("commit", of_pool, 0));
            fake.write("/proc/uptime", uptime);
            let found = page_faults(&patient).remove(0);
            assert_eq!(
                (found.severity, found.figures["faults"].as_u64()),
                (expected, Some(900 + of_pool)),
                "{found:?}"
            );
        }
    }

    #[test]
    fn a_process_without_threads_of_ours_has_no_page_faults_to_tell_of() {
        let fake = FakeHost::with(&[("/proc/7/task/8/stat", &stat("SendMessageThre", 50_000, 0))]);
        let mut patient = patient(&fake, "");
        patient.pid = Some(7);
        assert_eq!(page_faults(&patient), []);
    }

    #[test]
    fn what_is_behind_the_log_is_counted_in_bytes() {
        assert_eq!(bytes_of("1.5 KiB"), Some(1536.0));
        assert_eq!((bytes_of("12 B"), bytes_of("12"), bytes_of("x MiB")), (Some(12.0), None, None));
        let fine = [("remainHowManyDataToFlush", "10.0 MiB"), ("dispatchBehindBytes", "0")];
        assert_eq!(one(flush_lag, &fine), [(None, Severity::Ok)]);
        let behind = [("remainHowManyDataToFlush", "2.0 GiB"), ("dispatchBehindBytes", "1000000000")];
        assert_eq!(one(flush_lag, &behind), [of("flush", Severity::Warning), of("index", Severity::Warning)]);
    }

    #[test]
    fn messages_that_wait_for_delivery_are_added_up() {
        let fake = FakeHost::with(&[]);
        let figures =
            [("scheduleMessageOffset_1", "5,7"), ("scheduleMessageOffset_2", "0,10"), ("timerReadBehind", "60")];
        let found = deliveries(&told_by(&fake, &figures)).remove(0);
        assert_eq!((found.severity, found.figures["delayed"].as_i64()), (Severity::Warning, Some(12)));
    }

    #[test]
    fn memory_in_swap_and_files_near_the_limit_are_warnings() {
        let fake = FakeHost::with(&[
            ("/proc/7/status", "VmRSS:\t 2048 kB\nRssAnon:\t 1024 kB\nVmSwap:\t 512 kB\n"),
            ("/proc/7/limits", "Max open files            3                4                files\n"),
            ("/proc/7/fd/0", ""),
            ("/proc/7/fd/1", ""),
            ("/proc/7/fd/2", ""),
            ("/proc/7/maps", "a\nb\n"),
            ("/proc/sys/vm/max_map_count", "65530"),
        ]);
        let mut patient = patient(&fake, "");
        patient.pid = Some(7);
        let found: Vec<_> = process(&patient).into_iter().map(|one| (one.subject, one.severity)).collect();
        let expected =
            [of("swap", Severity::Warning), of("mappings", Severity::Ok), of("open files", Severity::Warning)];
        assert_eq!(found, expected);
    }
}
