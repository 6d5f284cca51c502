//! Timer messages in numbers: what so many that wait cost in memory (`PENDING`, a million unless it says otherwise), and how late
//! the last of ten thousand is that are due at once. Sender and broker are this process; it takes a minute.
#![allow(clippy::unwrap_used, missing_docs, reason = "a measurement that cannot go on fails")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use protocol::code::request;
use testing::running::*;
use tokio::task::JoinSet;

fn with(more: &'static [(&'static str, &'static str)]) -> Setup {
    Setup { more, ..Setup::default() }
}

fn now() -> i64 {
    env::Clock::real().now().0
}

/// A line of /proc/self/status, in MiB.
fn memory_mib(line: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let found = status.lines().find_map(|text| text.strip_prefix(line)).unwrap();
    found.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

/// Sends so many messages, 256 at a time.
async fn send_many(running: &Arc<Running>, count: u64, topic: &'static str, due: impl Fn(u64) -> String) {
    let mut tasks = JoinSet::new();
    for task in 0..256u64 {
        let mine: Vec<String> = (0..count).filter(|n| n % 256 == task).map(&due).collect();
        let running = Arc::clone(running);
        tasks.spawn(async move {
            for timed in mine {
                assert_eq!(
                    running.send(&to(topic, 1, &timed), "a message of some length, one hundred bytes").await.code,
                    0
                );
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

async fn figure(running: &Running, key: &str) -> i64 {
    let answer = running.call(request::GET_BROKER_RUNTIME_INFO, &(), "").await;
    let text = String::from_utf8(answer.body.to_vec()).unwrap();
    let found = text.split(&format!("\"{key}\":\"")).nth(1).and_then(|rest| rest.split('"').next());
    found.unwrap().parse().unwrap()
}

/// How late the last of ten thousand messages was that were due at once, by the time of its record.
async fn late_ms(running: &Arc<Running>, topic: &'static str, ask: impl Fn(i64) -> (&'static str, i64)) -> i64 {
    let due = now() + 20_000;
    send_many(running, 10_000, topic, |_| {
        let (name, value) = ask(due);
        properties(&[(name, &value.to_string())])
    })
    .await;
    loop {
        let found = running.pull(&waiting(from(topic, 1, 9_999), 1_000)).await;
        if let Some(last) = found.messages.first() {
            let first = running.pull(&from(topic, 1, 0)).await.messages[0].store_timestamp;
            println!("{topic}: from the first to the last {} ms", last.store_timestamp - first);
            return last.store_timestamp - due;
        }
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let pending: u64 = std::env::var("PENDING").ok().and_then(|text| text.parse().ok()).unwrap_or(1_000_000);
    let running = start(Setup { segment_bytes: 1 << 30, ..with(&[("mappedFileSizeTimerLog", "104857600")]) }).await;
    let running = Arc::new(running);
    let base = now() + 3_600_000;
    let timed = |n: u64| properties(&[("TIMER_DELIVER_MS", &(base + (n % 3_600_000) as i64).to_string())]);
    send_many(&running, 5_000, "Warm", timed).await;
    let before = (memory_mib("VmRSS"), memory_mib("RssAnon"));
    let began = Instant::now();
    // In parts, so that what this side keeps of them stays small.
    for part in 0..10 {
        send_many(&running, pending / 10, "Far", |n| timed(n + part * pending / 10)).await;
    }
    println!("{pending} sent in {:.1} s", began.elapsed().as_secs_f64());
    while figure(&running, "timerOffsetBehind").await > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!(
        "{} wait, taken in after {:.1} s",
        figure(&running, "timerCongestNum").await,
        began.elapsed().as_secs_f64()
    );
    let after = (memory_mib("VmRSS"), memory_mib("RssAnon"));
    println!("VmRSS {} to {} MiB, of it RssAnon {} to {} MiB", before.0, after.0, before.1, after.1);
    let late = late_ms(&running, "Due", |due| ("TIMER_DELIVER_MS", due)).await;
    println!("10,000 due at once: the last is delivered {late} ms behind its time");
    late_ms(&running, "Level", |_| ("DELAY", 1)).await;
}
