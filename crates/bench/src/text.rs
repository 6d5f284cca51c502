//! Results for a terminal: a line a second while a load runs, a summary, and a table of several runs.

use std::fmt::Write;

use env::counted;

use crate::drops::Steadiness;
use crate::echo::{Echoed, Side};
use crate::machine::{FileSystem, Link, Machine};
use crate::meter::Latency;
use crate::process::Disk;
use crate::result::{RunResult, Window};

/// One second of a run.
pub fn progress(window: &Window) -> String {
    let a_second = |count: u64| grouped(count as f64 / window.seconds);
    let mut line = format!("{:>7.1} s  {:<8}", window.at_seconds + window.seconds, window.phase.word());
    let _ = write!(line, "  sent {:>9}/s  received {:>9}/s", a_second(window.sent), a_second(window.received));
    if window.failed > 0 {
        let _ = write!(line, "  failed {}/s", a_second(window.failed));
    }
    let _ = write!(line, "  open {}", window.outstanding);
    for (name, brief) in [("publish", window.publish), ("end to end", window.end_to_end)] {
        if let Some(brief) = brief {
            let _ = write!(line, "  {name} p50 {:.2} p99 {:.2} max {:.1} ms", brief.p50, brief.p99, brief.max);
        }
    }
    if let (Some(cores), Some(bytes)) = (window.server_cpu_cores, window.server_resident_bytes) {
        let _ = write!(line, "  server {cores:.2} cores {} MiB", bytes >> 20);
    }
    line
}

/// A run, in a screenful.
pub fn summary(result: &RunResult) -> String {
    let (summary, tally) = (&result.summary, &result.summary.messages);
    let mut out = String::new();
    let mut row = |name: &str, text: String| {
        let _ = writeln!(out, "{name:<14} {text}");
    };
    row(
        "run",
        format!("{} of {}{}", result.name, result.started, if result.was_interrupted { ", ended early" } else { "" }),
    );
    row(
        "target",
        format!(
            "{}, {}, at {}",
            counted(result.brokers as u64, "broker"),
            known(&result.target_version),
            result.driver.namesrv_addr
        ),
    );
    row("machine", machine(&result.machine));
    if let Some(found) = &result.machine.file_system {
        row("file system", file_system(found));
    }
    if !result.machine.links.is_empty() {
        row("network", result.machine.links.iter().map(link).collect::<Vec<_>>().join(", "));
    }
    if let Some(disk) = &result.machine.disk {
        row("disk", self::disk(disk));
    }
    row("load", load(result));
    let asked =
        if summary.asked_rate > 0.0 { format!(" of {} asked for", grouped(summary.asked_rate)) } else { String::new() };
    row("measured", format!("{:.1} s", summary.measured_seconds));
    row("sent", format!("{}/s{asked}, {}", grouped(summary.produce_rate), mebibytes(summary.produce_bytes_rate)));
    let ratio =
        summary.consume_per_produce.map_or(String::new(), |ratio| format!(", {ratio:.3} for each that was sent"));
    row("received", format!("{}/s, {}{ratio}", grouped(summary.consume_rate), mebibytes(summary.consume_bytes_rate)));
    row("publish", distribution(summary.publish));
    row("end to end", distribution(summary.end_to_end));
    row(
        "messages",
        format!(
            "{} given to the client, {} acknowledged, {} failed, {} due and never sent; {} received",
            tally.sent, tally.acknowledged, tally.failed, summary.due_and_never_sent, tally.received
        ),
    );
    row("accounting", accounting(result));
    for (what, reasons) in [
        ("not sent", &summary.produce_failures),
        ("sent, but", &summary.produce_remarks),
        ("not consumed", &summary.consume_failures),
    ] {
        for (reason, count) in reasons {
            row(what, format!("{count} × {reason}"));
        }
    }
    if let Some(server) = summary.server {
        let each = a_million(server.cpu_seconds_per_million);
        row(
            "server",
            format!(
                "{:.2} cores, {:.2} CPU-s{each}; resident {} MiB at most, {} MiB of it its own{}",
                server.cpu_cores,
                server.cpu_seconds,
                server.resident_bytes_max >> 20,
                server.anonymous_bytes_max >> 20,
                if summary.server_restarts > 0 {
                    format!("; started again {}", counted(summary.server_restarts, "time"))
                } else {
                    String::new()
                }
            ),
        );
    }
    let each = a_million(summary.loader_cpu_seconds_per_million);
    row("loader", format!("{:.2} cores{each}", summary.loader_cpu_cores));
    row(
        "steadiness",
        format!("sending {}; receiving {}", steady(&summary.produce_steadiness), steady(&summary.consume_steadiness)),
    );
    for left in &summary.left_behind {
        row("left behind", left.clone());
    }
    for problem in result.problems() {
        row("PROBLEM", problem);
    }
    out
}

/// What became of the messages of a run.
fn accounting(result: &RunResult) -> String {
    let (summary, tally) = (&result.summary, &result.summary.messages);
    let stored = summary.stored.map_or("unknown".to_owned(), |stored| stored.to_string());
    if result.workload.groups() == 0 {
        let untraced = tally.untraced;
        return format!(
            "{untraced} untraced; losses, duplicates and order not looked at: nobody consumed; stored {stored}"
        );
    }
    let disordered = summary.disordered.map_or("order not looked at".to_owned(), |count| format!("{count} disordered"));
    format!(
        "{} lost, {} duplicates, {} failed and yet received, {disordered}, {} foreign, {} untraced; stored {stored}",
        tally.lost, tally.duplicates, tally.failed_and_received, tally.foreign, tally.untraced,
    )
}

/// An echo, in a few lines.
pub fn echo(echoed: &Echoed) -> String {
    let side = |side: &Side| {
        let each = side.cpu_seconds_per_million.map_or(String::new(), |each| format!(", {each:.2} CPU-s a million"));
        format!("{:.2} cores{each}", side.cpu_cores)
    };
    let rows = [
        ("machine", machine(&echoed.machine)),
        (
            "echo",
            format!(
                "{}, {} on each side; {} B there and {} B back, as a send of {} B and its answer, {} headers",
                counted(echoed.connections as u64, "connection"),
                counted(echoed.threads as u64, "thread"),
                echoed.request_bytes,
                echoed.reply_bytes,
                echoed.message_size,
                echoed.header.word()
            ),
        ),
        ("measured", format!("{:.1} s", echoed.measured_seconds)),
        ("round trips", format!("{}/s", grouped(echoed.round_trip_rate))),
        ("latency", distribution(echoed.latency)),
        ("server", side(&echoed.server)),
        ("loader", side(&echoed.loader)),
    ];
    rows.into_iter().map(|(name, text)| format!("{name:<14} {text}\n")).collect()
}

fn a_million(seconds: Option<f64>) -> String {
    seconds.map_or(String::new(), |each| format!(", {each:.2} CPU-s a million messages"))
}

/// Several runs, a line each, with ratios to the first.
pub fn table(results: &[RunResult]) -> String {
    let mut rows = vec![
        [
            "run",
            "sent/s",
            "ratio",
            "received/s",
            "ratio",
            "publish p50 / p99 / p99.9 ms",
            "end to end p50 / p99 / p99.9 ms",
            "CPU-s/M",
            "MiB",
            "problems",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    let first = results.first().map(|result| &result.summary);
    for result in results {
        let summary = &result.summary;
        let ratio = |value: f64, base: Option<f64>| match base {
            Some(base) if base > 0.0 => format!("{:.2}", value / base),
            Some(_) | None => "–".to_owned(),
        };
        let brief = |latency: Option<Latency>| {
            latency.map_or("–".to_owned(), |l| format!("{:.2} / {:.2} / {:.2}", l.p50, l.p99, l.p999))
        };
        let server = summary.server;
        rows.push(vec![
            result.name.clone(),
            grouped(summary.produce_rate),
            ratio(summary.produce_rate, first.map(|first| first.produce_rate)),
            grouped(summary.consume_rate),
            ratio(summary.consume_rate, first.map(|first| first.consume_rate)),
            brief(summary.publish),
            brief(summary.end_to_end),
            server
                .and_then(|server| server.cpu_seconds_per_million)
                .map_or("–".to_owned(), |each| format!("{each:.2}")),
            server.map_or("–".to_owned(), |server| (server.resident_bytes_max >> 20).to_string()),
            result.problems().len().to_string(),
        ]);
    }
    aligned(&rows)
}

/// Rows of equal length, as columns; the first is text, the others end at the same place.
pub fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cell = |row: &Vec<String>, column: usize| row.get(column).map_or(0, |cell| cell.chars().count());
    let widths: Vec<usize> =
        (0..columns).map(|column| rows.iter().map(|row| cell(row, column)).max().unwrap_or(0)).collect();
    let mut out = String::new();
    for row in rows {
        for (column, (text, width)) in row.iter().zip(&widths).enumerate() {
            let _ = if column == 0 { write!(out, "{text:<width$}") } else { write!(out, "  {text:>width$}") };
        }
        out.truncate(out.trim_end_matches(' ').len());
        out.push('\n');
    }
    out
}

/// The machine in a line.
pub fn machine(machine: &Machine) -> String {
    format!(
        "{} × {}, {:.0} GiB, Linux {}, load {} before",
        machine.processors,
        known(&machine.processor),
        machine.memory_bytes as f64 / f64::from(1 << 30),
        known(&machine.kernel),
        known(&machine.load_before)
    )
}

/// The file system of the store in a line.
fn file_system(found: &FileSystem) -> String {
    format!("{} ({}) on {}, for {}", found.kind, found.options, found.source, found.folder)
}

/// A network link in a few words.
fn link(link: &Link) -> String {
    let driver = link.driver.as_ref().map_or("virtual".to_owned(), |driver| format!("driver {driver}"));
    let speed = link.megabits_per_second.map_or("of unknown speed".to_owned(), |speed| format!("{speed} Mbit/s"));
    format!("{} {speed}, {driver}", link.name)
}

/// The disk in a line.
pub fn disk(disk: &Disk) -> String {
    format!(
        "{:.0} MiB/s written, {:.0} MiB/s read, flush p50 {:.2} ms, p99 {:.2} ms, longest {:.2} ms, in {}",
        disk.sequential_write_mib_per_second,
        disk.sequential_read_mib_per_second,
        disk.flush_p50_millis,
        disk.flush_p99_millis,
        disk.flush_max_millis,
        disk.folder
    )
}

/// The load in a line.
pub fn load(result: &RunResult) -> String {
    let (workload, driver) = (&result.workload, &result.driver);
    let batch = match driver.batch_size {
        1 if driver.auto_batch => {
            let queues = if driver.chosen_queues { " to chosen queues" } else { "" };
            let together = if driver.send_together { ", together" } else { "" };
            let (bytes, ms) = (driver.batch_max_bytes, driver.batch_max_delay_ms);
            format!(", auto-batch up to {bytes} B, {ms} ms{queues}{together}")
        }
        1 => String::new(),
        size => format!(" in batches of {size}"),
    };
    let mut text = format!(
        "{} × {}, {} B, {} × {} in flight, {}{batch}",
        counted(u64::from(workload.topics), "topic"),
        counted(u64::from(workload.partitions_per_topic), "queue"),
        workload.message_size,
        counted(u64::from(workload.topics) * u64::from(workload.producers_per_topic), "producer"),
        driver.in_flight,
        driver.send_mode.word(),
    );
    if workload.groups() > 0 {
        let _ = write!(
            text,
            "; {} × {}, {}",
            counted(workload.groups(), "group"),
            counted(u64::from(workload.consumer_per_subscription), "consumer"),
            driver.consume_mode.word()
        );
    }
    for (name, value) in &driver.topic_attributes {
        let _ = write!(text, "; {name}={value}");
    }
    if result.processes > 1 {
        let _ = write!(text, "; by {} load processes", result.processes);
    }
    text
}

/// All that is known of latencies.
pub fn distribution(latency: Option<Latency>) -> String {
    latency.map_or("–".to_owned(), |l| {
        format!(
            "mean {:.3}, p50 {:.3}, p75 {:.3}, p90 {:.3}, p95 {:.3}, p99 {:.3}, p99.9 {:.3}, p99.99 {:.3}, max {:.3} ms",
            l.mean, l.p50, l.p75, l.p90, l.p95, l.p99, l.p999, l.p9999, l.max
        )
    })
}

/// What the detector found, in words.
pub fn steady(steadiness: &Option<Steadiness>) -> String {
    match steadiness {
        None => "cannot be told: less than 20 s, or nothing at all".to_owned(),
        Some(found) => {
            let slowest = found.slowest_share * 100.0;
            let word = if found.drops.is_empty() { "is steady" } else { "is not steady" };
            format!("{word}: its slowest ten seconds reached {slowest:.0} % of the median")
        }
    }
}

/// Bytes a second.
pub fn mebibytes(bytes: f64) -> String {
    format!("{:.1} MiB/s", bytes / f64::from(1 << 20))
}

/// A whole number with commas.
pub fn grouped(number: f64) -> String {
    let digits = format!("{:.0}", number.max(0.0));
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

fn known(text: &str) -> &str {
    if text.is_empty() { "unknown" } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_commas_and_columns_end_at_the_same_place() {
        assert_eq!([0.4, 999.0, 1000.0, 1_234_567.8].map(grouped), ["0", "999", "1,000", "1,234,568"]);
        let rows = [vec!["run".to_owned(), "sent".to_owned()], vec!["a".to_owned(), "12,345".to_owned()]];
        assert_eq!(aligned(&rows), "run    sent\na    12,345\n");
    }
}
