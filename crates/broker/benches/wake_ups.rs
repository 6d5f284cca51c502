//! How soon a pull that waits is answered, and how often tasks and threads are woken for it, from one message a second to full speed. The
//! whole way: sockets on loopback, connections, broker and store, with the threads that the server has.
//!
//! `cargo bench --profile fast -p broker --bench wake_ups`, or `-- quick` for a second of each.
#![allow(clippy::unwrap_used, missing_docs, reason = "a bench that cannot go on fails")]
#![allow(clippy::disallowed_methods, reason = "a load of so many messages a second is paced by the clock")]

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use broker::{Broker, Session, Work};
use net::{Burst, Connection, Outgoing, Service};
use store::FlushMode;
use testing::served::{Peer, Served};
use testing::warm::{pull, sends_in_turn};

const BODY: [u8; 100] = [7; 100];
const QUEUES: i32 = 4;
/// In flight at full speed.
const BURST: usize = 64;
/// Longer than all of it takes.
const WAIT_MS: i64 = 280_000;

/// The broker, with the notes counted that wake a connection's task for what others have laid down for it.
struct Counted {
    broker: Arc<Broker>,
    notes: AtomicU64,
}

impl Service for Counted {
    type Session = Session;
    type Work = Work;

    fn open(&self, connection: &Connection<Work>) -> Session {
        self.broker.open(connection)
    }

    async fn serve(&self, session: &mut Session, burst: &mut Burst<'_>, out: &mut Outgoing) {
        self.broker.serve(session, burst, out).await;
    }

    async fn resume(&self, session: &mut Session, work: Work, out: &mut Outgoing) {
        self.notes.fetch_add(1, Ordering::Relaxed);
        self.broker.resume(session, work, out).await;
    }

    fn close(&self, session: Session) {
        self.broker.close(session);
    }
}

/// How often the runtime's threads have gone to sleep, by the kernel's count.
fn sleeps() -> u64 {
    let threads = fs::read_dir("/proc/self/task").unwrap().map(|thread| thread.unwrap().path());
    let of_runtime = threads.filter(|path| fs::read_to_string(path.join("comm")).is_ok_and(|name| name == "gantry\n"));
    of_runtime
        .filter_map(|path| {
            let status = fs::read_to_string(path.join("status")).ok()?;
            status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse::<u64>().ok())
        })
        .sum()
}

/// What the consumer has seen, for the producer's side.
#[derive(Default)]
struct Seen {
    messages: Mutex<u64>,
    more: Condvar,
    answers: AtomicU64,
    /// When the last answer came, in ns after the bench began.
    last_ns: AtomicU64,
    is_over: AtomicBool,
}

/// Has a pull at each queue at all times.
fn consume(mut peer: Peer, began: Instant, seen: &Seen) {
    let mut offsets = [0; QUEUES as usize];
    (0..QUEUES).for_each(|queue_id| peer.send(&pull(queue_id, 0, WAIT_MS)));
    while !seen.is_over.load(Ordering::Relaxed) {
        let answer = peer.answer();
        let at = u64::try_from(began.elapsed().as_nanos()).unwrap();
        let offset = &mut offsets[answer.opaque as usize];
        let messages = (answer.next_offset - *offset) as u64;
        *offset = answer.next_offset;
        seen.last_ns.store(at, Ordering::Relaxed);
        seen.answers.fetch_add(1, Ordering::Relaxed);
        *seen.messages.lock().unwrap() += messages;
        seen.more.notify_one();
        peer.send(&pull(answer.opaque, answer.next_offset, WAIT_MS));
    }
}

fn until_seen(seen: &Seen, messages: u64) {
    let deadline = Duration::from_secs(60);
    let is_missing = |seen: &mut u64| *seen < messages;
    let counted = seen.messages.lock().unwrap();
    let (counted, waited) = seen.more.wait_timeout_while(counted, deadline, is_missing).unwrap();
    assert!(!waited.timed_out(), "{} of {messages} messages have come", *counted);
}

fn main() {
    let is_quick = std::env::args().any(|argument| argument == "quick");
    let mut counted = None;
    let served = Served::start(
        FlushMode::Async,
        || (),
        |broker| Arc::clone(counted.insert(Arc::new(Counted { broker, notes: AtomicU64::new(0) }))),
    );
    let counted = counted.unwrap();
    let mut producer = served.connect();
    let began = Instant::now();
    let seen = Arc::new(Seen::default());
    // Makes the topic, and all its queues.
    producer.exchange(&sends_in_turn(1, QUEUES, &BODY), 1);
    producer.exchange(&sends_in_turn(BURST, QUEUES, &BODY), BURST);
    let consuming = {
        let (peer, seen) = (served.connect(), Arc::clone(&seen));
        thread::spawn(move || consume(peer, began, &seen))
    };
    until_seen(&seen, 1 + BURST as u64);

    println!(
        "messages/s    messages   answer after, ms: median      most   for 1000 messages: answers  woken tasks  sleeping threads"
    );
    for (rate, seconds) in [(1, 30), (100, 10), (1_000, 10), (10_000, 10), (0, 10)] {
        let seconds = if is_quick { 1 } else { seconds };
        play(rate, Duration::from_secs(seconds), &served, &mut producer, &counted, &seen, began);
    }
    seen.is_over.store(true, Ordering::Relaxed);
    producer.exchange(&sends_in_turn(1, 1, &BODY), 1);
    consuming.join().unwrap();
}

/// Sends at this rate, or as fast as bursts are answered (0), and prints a line.
fn play(
    rate: u64,
    time: Duration,
    served: &Served,
    producer: &mut Peer,
    counted: &Counted,
    seen: &Seen,
    bench_began: Instant,
) {
    let (one, burst) = (sends_in_turn(1, 1, &BODY), sends_in_turn(BURST, QUEUES, &BODY));
    served.until_parked(QUEUES as usize);
    let before = *seen.messages.lock().unwrap();
    let answers = seen.answers.load(Ordering::Relaxed);
    let (notes, slept) = (counted.notes.load(Ordering::Relaxed), sleeps());
    let mut took: Vec<u64> = Vec::new();
    let mut sent = 0;
    let began = Instant::now();
    while began.elapsed() < time {
        if rate == 0 {
            producer.exchange(&burst, BURST);
            sent += BURST as u64;
            continue;
        }
        let due = began + Duration::from_secs(1) * u32::try_from(sent).unwrap() / u32::try_from(rate).unwrap();
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let from = u64::try_from(bench_began.elapsed().as_nanos()).unwrap();
        producer.exchange(&one, 1);
        sent += 1;
        if rate <= 100 {
            until_seen(seen, before + sent);
            took.push(seen.last_ns.load(Ordering::Relaxed) - from);
        }
    }
    let elapsed = began.elapsed();
    until_seen(seen, before + sent);
    let per_thousand = |count: u64| count as f64 * 1_000.0 / sent as f64;
    let answers = per_thousand(seen.answers.load(Ordering::Relaxed) - answers);
    let notes = per_thousand(counted.notes.load(Ordering::Relaxed) - notes);
    let slept = per_thousand(sleeps() - slept);
    took.sort_unstable();
    let ms = |ns: Option<&u64>| ns.map_or("-".to_owned(), |ns| format!("{:.3}", *ns as f64 / 1e6));
    println!(
        "{:>10.0} {sent:>11} {:>26} {:>9} {answers:>28.1} {notes:>12.1} {slept:>17.1}",
        sent as f64 / elapsed.as_secs_f64(),
        ms(took.get(took.len() / 2)),
        ms(took.last()),
    );
}
