//! Fills a store and measures one: what a start, a scan and an idle minute cost on this machine.
//!
//! `measure fill DIR MESSAGES BODY_BYTES [crash]` appends to topic `Measured`, 4 queues, and closes the store or dies.
//! `measure open DIR` says how long the start took, what was found, and what the process holds in memory.
//! `measure recover DIR THREADS TIMES [queues]` opens the store as after a crash that left no check-point, with so many threads and so many
//! times; with `queues` also without consume queues, as they are at a take-over that lost them.
//! `measure read DIR` reads every message of every queue and checks each one's place and CRC.
//! `measure idle DIR SECONDS` opens the store, does nothing, and says what that cost.
//! `measure light DIR QUEUES` appends a message to each of so many light queues, ten at a time, and says what each of them takes in
//! memory once they are at rest.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use env::{Clock, TimeMs};
use protocol::light;
use protocol::properties::name;
use protocol::record::{self, RecordDraft, Scanned};
use store::{AppendError, ReadLimits, RecordBatch, Store, StoreEnv, StoreOptions, TagsCode};

const TOPIC: &str = "Measured";

/// The server's own.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["fill", dir, messages, bytes] => fill(dir.as_ref(), messages.parse()?, bytes.parse()?)?.close()?,
        ["fill", dir, messages, bytes, "crash"] => {
            let _store = fill(dir.as_ref(), messages.parse()?, bytes.parse()?)?;
            std::process::abort();
        }
        ["open", dir] => {
            let store = open(dir.as_ref())?;
            println!("{}", memory()?);
            store.close()?;
        }
        ["recover", dir, threads, times] => recover(dir.as_ref(), threads.parse()?, times.parse()?, false)?,
        ["recover", dir, threads, times, "queues"] => recover(dir.as_ref(), threads.parse()?, times.parse()?, true)?,
        ["read", dir] => read(dir.as_ref())?,
        ["idle", dir, seconds] => idle(dir.as_ref(), Duration::from_secs(seconds.parse()?))?,
        ["light", dir, queues] => light_queues(dir.as_ref(), queues.parse()?)?,
        _ => bail!(
            "measure fill DIR MESSAGES BODY_BYTES [crash] | open DIR | recover DIR THREADS TIMES [queues] | read DIR | \
             idle DIR SECONDS | light DIR QUEUES"
        ),
    }
    Ok(())
}

fn open(dir: &Path) -> Result<Arc<Store>> {
    let began = Instant::now();
    let (store, found) = Store::open(StoreOptions::at(dir), StoreEnv::real())?;
    println!(
        "open: {:.1} ms, {} bytes of log",
        began.elapsed().as_secs_f64() * 1e3,
        store.end().0 - store.min_offset().0
    );
    println!("{found:?}");
    Ok(store)
}

fn recover(dir: &Path, threads: usize, times: usize, without_queues: bool) -> Result<()> {
    for _ in 0..times {
        std::fs::write(dir.join("abort"), "1")?;
        std::fs::remove_file(dir.join("checkpoint"))?;
        if without_queues {
            std::fs::remove_dir_all(dir.join("consumequeue"))?;
        }
        let mut options = StoreOptions::at(dir);
        options.recovery.threads = threads;
        let (began, cpu_before) = (Instant::now(), cpu()?);
        let (store, found) = Store::open(options, StoreEnv::real())?;
        let seconds = began.elapsed().as_secs_f64();
        let bytes = (store.end().0 - store.min_offset().0) as f64;
        println!(
            "{threads} threads: {:.1} ms ({} ms of processor), {} records, {:.2} million a second, {:.2} GiB a second, {} units added, {}",
            seconds * 1e3,
            (cpu()? - cpu_before) * 10,
            found.records_scanned,
            found.records_scanned as f64 / seconds / 1e6,
            bytes / seconds / f64::from(1 << 30),
            found.units_added,
            memory()?
        );
        store.close()?;
    }
    Ok(())
}

fn memory() -> Result<String> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let lines: Vec<_> = status.lines().filter(|line| line.starts_with("VmRSS") || line.starts_with("Rss")).collect();
    Ok(lines.join(", ").replace('\t', " "))
}

fn resident_kib() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).context("no RssAnon")?;
    Ok(line.split_whitespace().nth(1).context("no number")?.parse()?)
}

/// What the process holds when that does not change any more.
fn resident_at_rest_kib(queues: usize) -> Result<u64> {
    let (mut last, mut same) = (0, 0);
    while same < 3 {
        std::thread::park_timeout(Duration::from_secs(4));
        // What other threads freed of ours comes back to the allocator when we allocate.
        drop((0..queues).map(|_| Box::new([0u8; 80])).collect::<Vec<_>>());
        drop((0..queues).map(|_| Box::new([0u8; 20])).collect::<Vec<_>>());
        let now = resident_kib()?;
        same = if now.abs_diff(last) * 100 < now { same + 1 } else { 0 };
        last = now;
    }
    Ok(last)
}

fn light_queues(dir: &Path, queues: usize) -> Result<()> {
    let options = StoreOptions { light_queues_max: Some(queues), ..StoreOptions::at(dir) };
    let (store, _) = Store::open(options, StoreEnv::real())?;
    let before = resident_at_rest_kib(queues)?;
    let host = "127.0.0.1:10911".parse()?;
    let mut batch = RecordBatch::new();
    let own = store.queue(TOPIC, 0)?;
    for first in (0..queues).step_by(10) {
        let names: Vec<String> =
            (first..queues.min(first + 10)).map(|number| format!("%LMQ%device-{number:08}")).collect();
        let mut light = names.iter().map(|name| store.queue(name, 0)).collect::<Result<Vec<_>, _>>()?;
        let mut properties = format!("{}\u{1}{}\u{2}", name::INNER_MULTI_DISPATCH, names.join(",")).into_bytes();
        light::put_room(&mut properties, names.len());
        batch.clear();
        batch.push_light(&own, TagsCode::Code(0), &mut light, properties.len(), |out| {
            let draft = RecordDraft { body: b"hello", properties: &properties, ..RecordDraft::plain(TOPIC, host) };
            // Far below every limit.
            let _ = draft.encode(out);
        });
        append(&store, &mut batch, Clock::real().now())?;
    }
    drop((batch, own));
    // Units go to the files, which takes as long as the device makes that many; the next time, a queue that is at rest gives its memory back.
    let each = (resident_at_rest_kib(queues)?.saturating_sub(before)) * 1024 / queues.max(1) as u64;
    println!("{} light queues, {each} bytes each; {}", store.light_queues(), memory()?);
    store.close()?;
    Ok(())
}

fn fill(dir: &Path, messages: u64, bytes: usize) -> Result<Arc<Store>> {
    let store = open(dir)?;
    let clock = Clock::real();
    let queues = (0..4).map(|id| store.queue(TOPIC, id)).collect::<Result<Vec<_>, _>>()?;
    let host = "127.0.0.1:10911".parse()?;
    let mut batch = RecordBatch::new();
    let began = Instant::now();
    let mut number = 0;
    while number < messages {
        batch.clear();
        for _ in 0..64.min(messages - number) {
            let queue = (number % 4) as usize;
            let mut body = format!("message {number} ").into_bytes();
            body.resize(bytes.max(body.len()), b'.');
            let properties = format!("KEYS\x01key-{number}\x02TAGS\x01{}\x02", if number % 3 == 0 { "A" } else { "B" });
            let tags = protocol::tags::code(if number % 3 == 0 { "A" } else { "B" });
            batch.push(&queues[queue], TagsCode::Code(tags), |out| {
                let draft = RecordDraft {
                    queue_id: queue as i32,
                    born_timestamp: clock.now().0,
                    body: &body,
                    properties: properties.as_bytes(),
                    ..RecordDraft::plain(TOPIC, host)
                };
                let encoded = draft.encode(out);
                assert!(encoded.is_ok(), "{encoded:?}");
            });
            number += 1;
        }
        append(&store, &mut batch, clock.now())?;
    }
    let seconds = began.elapsed().as_secs_f64();
    println!("appended {messages} in {seconds:.2} s: {:.0} a second", messages as f64 / seconds);
    Ok(store)
}

fn append(store: &Store, batch: &mut RecordBatch, now: TimeMs) -> Result<()> {
    // Ends when all is appended, or nothing moves for long.
    loop {
        match store.append(batch, now) {
            Ok(()) => return Ok(()),
            Err(AppendError::NoRoomYet { needed }) => {
                let has_room = store.room().wait_until(needed, Instant::now() + Duration::from_secs(10));
                ensure!(has_room, "no room up to {needed}");
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn read(dir: &Path) -> Result<()> {
    let store = open(dir)?;
    let limits = ReadLimits {
        max_count: 32,
        count_memory: 32,
        bytes_memory: 1 << 20,
        count_disk: 32,
        bytes_disk: 1 << 20,
        scan_bytes: 16_000,
        may_fault: true,
    };
    let mut topics = store.topics();
    topics.sort();
    let mut slices = Vec::new();
    for (topic, (id, queue)) in
        topics.iter().flat_map(|topic| store.queues_of(topic).into_iter().map(move |queue| (topic, queue)))
    {
        let mut next = queue.min_offset();
        let mut bytes = 0;
        while next < queue.max_offset() {
            slices.clear();
            let read = store.read(&queue, next as i64, &limits, &mut |_| true, &mut slices);
            ensure!(read.count > 0, "{topic}/{id} at {next}: {read:?}");
            for slice in &slices {
                let scanned = record::scan(slice.as_ref(), true).context("a record")?;
                let Scanned::Record(view) = scanned else { bail!("{topic}/{id} at {next}: {scanned:?}") };
                ensure!(
                    view.queue_offset() == next && view.log_offset() == slice.at().0 && view.topic() == &**topic,
                    "{view:?}"
                );
                next += 1;
                bytes += view.body().len();
            }
        }
        println!("{topic}/{id}: {}..{next}, {bytes} bytes of bodies", queue.min_offset());
    }
    Ok(store.close()?)
}

fn idle(dir: &Path, span: Duration) -> Result<()> {
    let store = open(dir)?;
    let before = cpu()?;
    std::thread::park_timeout(span);
    println!("{}", memory()?);
    println!("CPU in {span:?}: {} ms", (cpu()? - before) * 10);
    for task in std::fs::read_dir("/proc/self/task")? {
        let task = task?.path();
        let status = std::fs::read_to_string(task.join("status"))?;
        let switches = status.lines().find(|line| line.starts_with("voluntary")).unwrap_or_default();
        println!("{}: {}", std::fs::read_to_string(task.join("comm"))?.trim(), switches.replace('\t', " "));
    }
    Ok(store.close()?)
}

/// Ticks of user and system time.
fn cpu() -> Result<u64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = stat.split_whitespace().collect();
    Ok(fields[13].parse::<u64>()? + fields[14].parse::<u64>()?)
}
