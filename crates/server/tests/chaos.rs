//! kill -9 again and again, in the middle of a load and in the middle of starts, and then the history: what was promised against what is there.
//!
//! `CHAOS_SECONDS` says for how long (`make chaos`: ten minutes), `CHAOS_SEED` which kill moments. With `--nocapture` it says what happened.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail by panicking")]

mod support;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use bytes::Bytes;
use env::Random;
use protocol::code::request;
use protocol::request::{OffsetReply, QueryConsumerOffset, UpdateConsumerOffset};
use support::asking::Asking;
use support::{PATIENCE, Running, gantry};
use tokio::sync::watch;

const QUEUES: i32 = 4;
/// Topics by what their acknowledgements wait for: what the broker says, or the device whatever it says.
const TOPICS: [(&str, &str); 2] = [("plain", ""), ("durable", "+flush.disk.type=SYNC_FLUSH")];
const PRODUCERS: usize = 8;
const BATCH: u64 = 8;
const SYSTEM_BUSY: i32 = 2;
const FLUSH_DISK_TIMEOUT: i32 = 10;
/// Files of the log are small, so that kills meet their ends.
const SEGMENT: &str = "mappedFileSizeCommitLog=4194304";

/// A queue: topic, and id.
type Queue = (&'static str, i32);

/// A message: its producer, and how many that one had sent before.
type Name = (usize, u64);

fn body_of((producer, number): Name, length: u32) -> String {
    format!("{producer} {number} {length} {}", "x".repeat(length as usize))
}

/// Whose body this is, all of it.
fn name_of(body: &str) -> Name {
    let mut words = body.split(' ');
    let name = (words.next().unwrap().parse().unwrap(), words.next().unwrap().parse().unwrap());
    let length: usize = words.next().unwrap().parse().unwrap();
    assert_eq!(words.next().unwrap_or_default().len(), length, "{name:?} is not whole");
    name
}

/// What became of the messages of one producer, in the order in which it sent them.
#[derive(Default)]
struct History {
    /// Where an acknowledgement said that a message lies.
    acknowledged: Vec<(Name, Queue, u64)>,
    /// Sent, and not answered with success: they may be there, once.
    unanswered: Vec<Name>,
}

/// Where the broker is, while it is somewhere.
type Address = watch::Receiver<Option<Asking>>;

async fn broker(address: &mut Address) -> Option<Asking> {
    address.wait_for(Option::is_some).await.ok()?.clone()
}

/// One message or batch at a time, until there is no broker any more.
async fn produce(id: usize, mut address: Address) -> History {
    let mut history = History::default();
    let random = Random::seeded(id as u64);
    let own_word = if id % 4 == 2 { "flush.disk.type\u{1}SYNC_FLUSH\u{2}" } else { "" };
    let mut number = 0_u64;
    while let Some(asking) = broker(&mut address).await {
        let topic = TOPICS[id % 2].0;
        let queue_id = random.below(QUEUES as u32) as i32;
        let count: u64 = if id % 4 == 3 { BATCH } else { 1 };
        let names: Vec<Name> = (number..number + count).map(|number| (id, number)).collect();
        let bodies: Vec<String> = names.iter().map(|name| body_of(*name, random.below(500))).collect();
        number += count;
        let sent = match count {
            1 => asking.send(topic, queue_id, own_word, &bodies[0]).await,
            _ => asking.send_batch(topic, queue_id, &bodies).await,
        };
        match sent {
            Ok(answer) if answer.code == 0 => {
                let first: u64 = answer.fields.get("queueOffset").unwrap().parse().unwrap();
                let places = (first..).zip(names).map(|(offset, name)| (name, (topic, queue_id), offset));
                history.acknowledged.extend(places);
            }
            // Too slow for a promise.
            Ok(answer) if [SYSTEM_BUSY, FLUSH_DISK_TIMEOUT].contains(&answer.code) => history.unanswered.extend(names),
            Ok(answer) => panic!("refused: {} {:?}", answer.code, answer.remark),
            Err(_) => {
                history.unanswered.extend(names);
                // The broker is away; nobody need ask a thousand times a second where it is.
                let _ = tokio::time::timeout(Duration::from_millis(20), address.changed()).await;
            }
        }
    }
    history
}

/// Reads a queue on from where its group is, and commits. Says what it saw; the offsets that were acknowledged to it must never be forgotten.
async fn consume(queue: Queue, mut address: Address) -> BTreeMap<u64, Name> {
    let (topic, queue_id) = queue;
    let (mut seen, mut committed) = (BTreeMap::new(), 0);
    while let Some(asking) = broker(&mut address).await {
        let fields = QueryConsumerOffset { consumer_group: "CG", topic, queue_id, set_zero_if_not_found: Some(true) };
        let call = asking.client.call(&asking.broker, request::QUERY_CONSUMER_OFFSET, &fields, Bytes::new(), PATIENCE);
        let offset = match call.await {
            Ok(answer) if answer.code == 0 => OffsetReply::decode(&answer.fields.as_fields()).unwrap().offset as u64,
            // Nothing is committed yet.
            Ok(_) => 0,
            Err(_) => {
                let _ = tokio::time::timeout(Duration::from_millis(20), address.changed()).await;
                continue;
            }
        };
        assert!(offset >= committed, "{queue:?}: committed {committed}, and the group is at {offset}");
        let Ok((_, next, messages)) = asking.pull(topic, queue_id, offset).await else { continue };
        for (offset, body) in messages {
            let name = name_of(&body);
            let before = seen.insert(offset, name);
            assert!(before.is_none_or(|before| before == name), "{queue:?} {offset} was {before:?}, and is {name:?}");
        }
        if next == offset {
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        }
        let fields = UpdateConsumerOffset { consumer_group: "CG", topic, queue_id, commit_offset: next as i64 };
        let call = asking.client.call(&asking.broker, request::UPDATE_CONSUMER_OFFSET, &fields, Bytes::new(), PATIENCE);
        // Asked for again, an offset waits for its journal: what the next round is told is what a kill leaves.
        if call.await.is_ok() {
            let fields =
                QueryConsumerOffset { consumer_group: "CG", topic, queue_id, set_zero_if_not_found: Some(true) };
            let call =
                asking.client.call(&asking.broker, request::QUERY_CONSUMER_OFFSET, &fields, Bytes::new(), PATIENCE);
            if let Ok(answer) = call.await
                && answer.code == 0
            {
                committed = OffsetReply::decode(&answer.fields.as_fields()).unwrap().offset as u64;
            }
        }
    }
    seen
}

fn kill(running: Running) {
    assert_eq!(running.end("-KILL").0, None);
}

/// Kills a start in its middle: the next one finds a recovery that was cut short.
async fn kill_while_starting(data: &Path, settings: &[&str], random: &Random) {
    let data = data.to_str().unwrap();
    let arguments = ["server", "--data", data, "--namesrv-port", "0", "--broker-port", "0"];
    let mut child =
        gantry(&[&arguments, settings].concat()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    tokio::time::sleep(Duration::from_millis(u64::from(random.below(60)))).await;
    child.kill().unwrap();
    child.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_history_of_kills_keeps_every_promise() {
    history(&["--set", SEGMENT]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_history_of_kills_keeps_every_promise_where_sends_gather_in_a_pool() {
    // One buffer, and a small one, so that sends wait for each other.
    let pool = ["transientStorePoolEnable=true", "transientStorePoolSize=1", "memoryLimit=64M"];
    let pool: Vec<&str> = pool.iter().flat_map(|setting| ["--set", setting]).collect();
    history(&[&["--set", SEGMENT], &pool[..]].concat()).await;
}

/// Kills a broker with these settings again and again.
async fn history(settings: &[&str]) {
    let seconds: u64 = std::env::var("CHAOS_SECONDS").map_or(20, |text| text.parse().unwrap());
    let seed: u64 =
        std::env::var("CHAOS_SEED").map_or_else(|_| Random::from_entropy().next_u64(), |text| text.parse().unwrap());
    println!("kill moments come from CHAOS_SEED={seed}");
    let random = Random::seeded(seed);
    let data = tempfile::tempdir().unwrap();
    let (say, address) = watch::channel(None);
    let producers: Vec<_> = (0..PRODUCERS).map(|id| tokio::spawn(produce(id, address.clone()))).collect();
    let queues: Vec<Queue> = TOPICS.iter().flat_map(|(topic, _)| (0..QUEUES).map(move |id| (*topic, id))).collect();
    let consumers: Vec<_> = queues.iter().map(|queue| tokio::spawn(consume(*queue, address.clone()))).collect();

    let until = Instant::now() + Duration::from_secs(seconds);
    let mut starts = Vec::new();
    let mut cut_short = 0;
    // Ends with the time, and not before it has killed at least once.
    while Instant::now() < until || starts.len() < 2 {
        let mode = if random.below(2) == 0 { "flushDiskType=ASYNC_FLUSH" } else { "flushDiskType=SYNC_FLUSH" };
        let began = Instant::now();
        let running = Running::server_with(data.path(), &[settings, &["--set", mode]].concat());
        starts.push(began.elapsed());
        let asking = Asking::of(&running);
        if starts.len() == 1 {
            for (topic, attributes) in TOPICS {
                let made = asking.create(topic, QUEUES, attributes).await;
                assert_eq!(made.code, 0, "{:?}", made.remark);
            }
        }
        say.send_replace(Some(asking));
        tokio::time::sleep(Duration::from_millis(u64::from(200 + random.below(2500)))).await;
        // Before the kill: what is on its way finds it dead.
        say.send_replace(None);
        kill(running);
        if random.below(3) == 0 {
            kill_while_starting(data.path(), settings, &random).await;
            cut_short += 1;
        }
    }
    drop(say);
    let mut histories = Vec::new();
    for producer in producers {
        histories.push(producer.await.unwrap());
    }
    let mut seen = HashMap::new();
    for (queue, consumer) in queues.iter().zip(consumers) {
        seen.insert(*queue, consumer.await.unwrap());
    }

    let running = Running::server_with(data.path(), settings);
    check(&Asking::of(&running), &queues, &histories, &seen).await;
    assert_eq!(running.end("-TERM").0, Some(0));
    starts.sort();
    let acknowledged: usize = histories.iter().map(|history| history.acknowledged.len()).sum();
    let unanswered: usize = histories.iter().map(|history| history.unanswered.len()).sum();
    println!(
        "{} kills and {cut_short} of starts; {acknowledged} messages acknowledged, {unanswered} without an answer; ready after {:?} in the \
         middle, {:?} at most",
        starts.len(),
        starts[starts.len() / 2],
        starts[starts.len() - 1]
    );
    assert!(acknowledged > 0);
}

/// Nothing that was acknowledged is lost or elsewhere, nothing is there twice, each producer's messages are in order, and what consumers saw
/// is what is there.
async fn check(asking: &Asking, queues: &[Queue], histories: &[History], seen: &HashMap<Queue, BTreeMap<u64, Name>>) {
    let mut places = HashMap::new();
    for queue in queues {
        let mut last = HashMap::new();
        let mut offsets = 0;
        for (offset, body) in asking.all(queue.0, queue.1).await {
            assert_eq!(offset, offsets, "{queue:?} has a gap");
            offsets += 1;
            let name = name_of(&body);
            let before = last.insert(name.0, name.1);
            assert!(before.is_none_or(|before| before < name.1), "{queue:?} {offset}: {name:?} after {before:?}");
            if let Some(consumed) = seen[queue].get(&offset) {
                assert_eq!(*consumed, name, "{queue:?} {offset} is not what its consumer saw");
            }
            let other = places.insert(name, (*queue, offset));
            assert_eq!(other, None, "{queue:?} {offset} is there twice");
        }
        let behind = seen[queue].range(offsets..).next();
        assert_eq!(behind, None, "{queue:?} has lost what its consumer saw");
    }
    let mut known = 0;
    for history in histories {
        for (name, queue, offset) in &history.acknowledged {
            assert_eq!(places.get(name), Some(&(*queue, *offset)), "{name:?} was acknowledged at {queue:?} {offset}");
            known += 1;
        }
        known += history.unanswered.iter().filter(|name| places.contains_key(*name)).count();
    }
    assert_eq!(known, places.len(), "messages are there that nobody sent");
}
