//! What half messages whose producers are asked cost those who send: so many of them (`HALF`, 100,000 unless it says otherwise) come due
//! within a second, while somebody else sends 2,000 messages a second. Sender, producer and broker are this process; it takes half a minute.
#![allow(clippy::unwrap_used, missing_docs, reason = "a measurement that cannot go on fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use net::{Client, ClientOptions, Connection, Inbound, Outgoing, Request};
use protocol::body::{Heartbeat, ProducerData};
use protocol::code::request;
use protocol::fastjson::{self, Dialect};
use testing::running::*;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// How long the load without questions is measured.
const QUIET: Duration = Duration::from_secs(8);
const PAUSE: Duration = Duration::from_micros(500);

/// A producer that counts what it is asked, and does not answer.
struct Asked(Arc<AtomicU64>);

impl Inbound for Asked {
    fn request(&self, _: &Connection<()>, request: &Request<'_>, _: &mut Outgoing) {
        if request.header.code == request::CHECK_TRANSACTION_STATE {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

async fn send_halves(running: &Arc<Running>, count: u64) {
    let mut tasks = JoinSet::new();
    for task in 0..256u64 {
        let running = Arc::clone(running);
        tasks.spawn(async move {
            for n in (0..count).filter(|n| n % 256 == task) {
                let id = n.to_string();
                let marked = properties(&[("TRAN_MSG", "true"), ("PGROUP", "PG"), ("UNIQ_KEY", &id)]);
                let sent = running.send(&to("Orders", 1, &marked), "a message of some length, one hundred bytes").await;
                assert_eq!(sent.code, 0);
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

/// Sends at a fixed rate until `is_over`; a late start counts as a wait. Latencies in microseconds, sorted.
async fn load(running: &Arc<Running>, client: &Arc<Client>, is_over: impl Fn() -> bool) -> Vec<u64> {
    let mut tasks = JoinSet::new();
    let mut due = Instant::now();
    while !is_over() {
        sleep_until(due).await;
        let (running, client, began) = (Arc::clone(running), Arc::clone(client), due);
        tasks.spawn(async move {
            let message = to("Others", 0, "");
            let sent =
                client.call(&running.address, request::SEND_MESSAGE_V2, &message, "a message".into(), DEADLINE).await;
            assert_eq!(sent.unwrap().code, 0);
            began.elapsed().as_micros() as u64
        });
        due += PAUSE;
    }
    let mut took = Vec::new();
    while let Some(done) = tasks.join_next().await {
        took.push(done.unwrap());
    }
    took.sort_unstable();
    took
}

fn show(what: &str, took: &[u64]) {
    let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize];
    println!(
        "{what}: {} sends, p50 {} us, p99 {} us, p99.9 {} us, max {} us",
        took.len(),
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0)
    );
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let count: u64 = std::env::var("HALF").ok().and_then(|text| text.parse().ok()).unwrap_or(100_000);
    let more = &[("transactionTimeOut", "15000"), ("transactionCheckInterval", "3600000")];
    let running = Arc::new(start(Setup { segment_bytes: 1 << 30, more, ..Setup::default() }).await);
    let asked = Arc::new(AtomicU64::new(0));
    let producer = Client::with_inbound(ClientOptions::default(), Arc::new(Asked(Arc::clone(&asked))));
    let group = ProducerData { group_name: "PG".to_owned() };
    let said = Heartbeat { client_id: "p".to_owned(), producer_data_set: vec![group], ..Heartbeat::default() };
    let said = fastjson::to_vec(&said, Dialect::FastJson);
    assert_eq!(producer.call(&running.address, request::HEART_BEAT, &(), said.into(), DEADLINE).await.unwrap().code, 0);
    let began = Instant::now();
    send_halves(&running, count).await;
    println!("{count} half messages sent in {:.1} s", began.elapsed().as_secs_f64());

    let client = Arc::new(Client::new(ClientOptions::default()));
    load(&running, &client, || began.elapsed() > Duration::from_secs(4)).await;
    let quiet_since = Instant::now();
    let quiet = load(&running, &client, || quiet_since.elapsed() > QUIET).await;
    assert_eq!(asked.load(Ordering::Relaxed), 0, "they came due too early for this machine: {:?}", began.elapsed());
    show("while they wait", &quiet);
    load(&running, &client, || asked.load(Ordering::Relaxed) > 0).await;
    let asking_since = Instant::now();
    let busy = load(&running, &client, || asked.load(Ordering::Relaxed) >= count).await;
    println!("{} questions put in {:.1} s", asked.load(Ordering::Relaxed), asking_since.elapsed().as_secs_f64());
    show("while their producer is asked", &busy);
}
