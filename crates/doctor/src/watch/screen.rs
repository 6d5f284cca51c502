//! A look as a screen for a terminal, and as a line for a file.

use super::Look;
use crate::finding::size;

/// To the upper left corner; and what is there goes.
const CLEAR: &str = "\x1b[H\x1b[J";

fn per_second(bytes: f64) -> String {
    format!("{}/s", size(bytes as u64))
}

/// Names come from brokers: what would play with the terminal is left out.
fn plain(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).collect()
}

/// The time of day in UTC.
fn time_of(ms: i64) -> String {
    let seconds = ms.div_euclid(1000).rem_euclid(86_400);
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// The whole screen.
pub fn screen(look: &Look, place: &str, server: &str) -> String {
    let kernel = &look.kernel;
    let mut out =
        format!("{CLEAR}gantry doctor watch   {} UTC   every {:.0} s\n\n", time_of(look.time_millis), look.seconds);
    let mut line = |text: String| {
        out.push_str(&text);
        out.push('\n');
    };
    line(match &kernel.disk {
        Some(disk) => format!(
            "disk      read {:>12}   written {:>12}   {:>7.0} calls/s of {:.2} ms   busy {:>3.0} %   ({place})",
            per_second(disk.read_bytes),
            per_second(disk.written_bytes),
            disk.operations,
            disk.wait_millis,
            disk.busy_percent
        ),
        None => format!("disk      no device of its own ({place})"),
    });
    let network = &kernel.network;
    line(format!(
        "network   in   {:>12}   out     {:>12}   loopback {}",
        per_second(network.received_bytes),
        per_second(network.sent_bytes),
        per_second(network.loopback_bytes)
    ));
    let processors = &kernel.processors;
    line(format!(
        "cpu       busy {:>10.0} %   waiting for disk {:.0} %   stolen {:.0} %",
        processors.busy_percent, processors.io_wait_percent, processors.stolen_percent
    ));
    let memory = &kernel.memory;
    line(format!(
        "memory    available {}   page cache {}   dirty {}   being written {}   swap {}",
        size(memory.available_bytes),
        size(memory.cached_bytes),
        size(memory.dirty_bytes),
        size(memory.writeback_bytes),
        size(memory.swap_used_bytes)
    ));
    if let Some(process) = &kernel.process {
        line(format!(
            "process   {:.0} % of a processor   resident {}   {:.0} page faults/s from disk",
            process.processor_percent,
            size(process.resident_bytes),
            process.major_faults
        ));
    } else if let Some(why) = &look.process_error {
        line(format!("process   ?   ({})", plain(why)));
    }
    line(String::new());
    match (&look.broker, &look.broker_error) {
        (Some(broker), _) => {
            line(format!(
                "broker    in {:>9.0}/s   out {:>9.0}/s   backlog {}   refused {:.0}   p99 {:.2} ms   not flushed {}   connections {:.0}   ({server})",
                broker.in_per_second,
                broker.out_per_second,
                broker.backlog.map_or("?".to_owned(), |backlog| backlog.to_string()),
                broker.refused,
                broker.put_latency99_millis,
                plain(&broker.unflushed),
                broker.connections
            ));
            if !broker.queues.is_empty() {
                line(format!("\n{:<48} {:>6} {:>10} {:>10} {:>12}", "topic", "queue", "in/s", "out/s", "backlog"));
            }
            for queue in &broker.queues {
                line(format!(
                    "{:<48} {:>6} {:>10.0} {:>10.0} {:>12}",
                    plain(&queue.topic),
                    queue.queue_id,
                    queue.in_per_second,
                    queue.out_per_second,
                    queue.backlog
                ));
            }
            if broker.are_topics_cut {
                line("queues of the first 32 topics by name only".to_owned());
            }
        }
        (None, Some(error)) => line(format!("broker    {server} does not answer: {}", plain(error))),
        (None, None) => line(format!("broker    {server}: a moment")),
    }
    out
}

/// One line.
pub fn line(look: &Look) -> String {
    let kernel = &look.kernel;
    let disk = match &kernel.disk {
        Some(disk) => format!(
            "disk r {} w {} busy {:.0}%",
            per_second(disk.read_bytes),
            per_second(disk.written_bytes),
            disk.busy_percent
        ),
        None => "disk ?".to_owned(),
    };
    let process = match (&kernel.process, &look.process_error) {
        (Some(process), _) => {
            format!(" | process cpu {:.0}% rss {}", process.processor_percent, size(process.resident_bytes))
        }
        (None, Some(why)) => format!(" | process ? ({})", plain(why)),
        (None, None) => String::new(),
    };
    let broker = match (&look.broker, &look.broker_error) {
        (Some(broker), _) => format!(
            "in {:.0}/s out {:.0}/s backlog {} refused {:.0} unflushed {}",
            broker.in_per_second,
            broker.out_per_second,
            broker.backlog.map_or("?".to_owned(), |backlog| backlog.to_string()),
            broker.refused,
            plain(&broker.unflushed)
        ),
        (None, Some(_)) => "broker does not answer".to_owned(),
        (None, None) => "broker ?".to_owned(),
    };
    format!(
        "{} {disk} | net in {} out {} | cpu {:.0}% iowait {:.0}% | dirty {}{process} | {broker}",
        time_of(look.time_millis),
        per_second(kernel.network.received_bytes),
        per_second(kernel.network.sent_bytes),
        kernel.processors.busy_percent,
        kernel.processors.io_wait_percent,
        size(kernel.memory.dirty_bytes),
    )
}

#[cfg(test)]
mod tests {
    use super::super::broker::{BrokerRates, QueueRates};
    use super::super::kernel::{DiskRates, KernelRates, Memory, NetworkRates, ProcessorRates};
    use super::*;

    fn look() -> Look {
        Look {
            time_millis: 3_661_000,
            seconds: 1.0,
            kernel: KernelRates {
                disk: Some(DiskRates {
                    read_bytes: 0.0,
                    written_bytes: 2_097_152.0,
                    operations: 12.0,
                    wait_millis: 0.5,
                    busy_percent: 45.0,
                }),
                network: NetworkRates { received_bytes: 1024.0, sent_bytes: 0.0, loopback_bytes: 0.0 },
                processors: ProcessorRates { busy_percent: 50.0, io_wait_percent: 1.0, stolen_percent: 0.0 },
                memory: Memory { dirty_bytes: 1024, ..Memory::default() },
                process: None,
            },
            process_error: Some("nobody has it open".to_owned()),
            broker: Some(BrokerRates {
                in_per_second: 1000.0,
                backlog: Some(12),
                unflushed: "1.0 MiB".to_owned(),
                queues: vec![QueueRates {
                    topic: "orders\x1b[2J".to_owned(),
                    queue_id: 3,
                    in_per_second: 250.0,
                    out_per_second: 240.0,
                    backlog: 12,
                }],
                ..BrokerRates::default()
            }),
            broker_error: None,
        }
    }

    #[test]
    fn a_line_says_what_iostat_iftop_and_top_would() {
        assert_eq!(
            line(&look()),
            "01:01:01 disk r 0 B/s w 2.0 MiB/s busy 45% | net in 1.0 KiB/s out 0 B/s | cpu 50% iowait 1% | dirty 1.0 KiB | \
             process ? (nobody has it open) | in 1000/s out 0/s backlog 12 refused 0 unflushed 1.0 MiB"
        );
    }

    #[test]
    fn a_screen_begins_anew_and_shows_queues_without_their_tricks() {
        let screen = screen(&look(), "/data", "127.0.0.1:10911");
        let text = screen.strip_prefix(CLEAR).unwrap();
        assert!(!text.contains('\x1b') && text.contains("process   ?   (nobody has it open)"), "{text}");
        let row = text.lines().find(|line| line.starts_with("orders")).unwrap();
        assert_eq!(row.split_whitespace().skip(1).collect::<Vec<_>>(), ["3", "250", "240", "12"]);
    }
}
