//! What the null server remembers: how many messages each queue was sent, and the stamps of the last ones for as long as there is a group
//! that could ask for them.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use protocol::batch;
use protocol::compression::{Compression, decompress};
use protocol::record::{RecordDraft, stamp};
use tokio::sync::watch;

use super::Served;
use crate::reader::BODY_BYTES_MAX;
use crate::stamp::STAMP_BYTES;

/// Queues of all topics together.
const QUEUES_MAX: usize = 1_000_000;

/// Stamps of all queues of a topic together; about 40 bytes each.
const KEPT_MAX: usize = 4 << 20;

/// Records of a page are cut off here, as a broker does that is left as it is (`maxTransferBytesOnMessageInMemory`).
const PAGE_BYTES: usize = 256 << 10;

/// The topics.
#[derive(Default)]
pub struct Topics {
    /// Guards the list of topics; held for a look-up or a change.
    table: RwLock<HashMap<String, Arc<Topic>>>,
    /// Guards the list of groups; held for a change.
    groups: Mutex<HashSet<String>>,
    // Relaxed, as are the counts: nothing is published through them.
    has_groups: AtomicBool,
    taken: AtomicU64,
    /// Of topics that are gone.
    given: AtomicU64,
}

/// A topic.
pub struct Topic {
    /// Its name.
    pub name: String,
    /// Its queues.
    pub queues: Vec<Queue>,
    /// Stamps that each queue keeps.
    kept_max: usize,
    // Relaxed: a count.
    given: AtomicU64,
}

/// A queue.
pub struct Queue {
    id: i32,
    /// Guards what is known of its messages; held for a send, or to make a page.
    sent: Mutex<Sent>,
    /// Told of each send.
    pub arrivals: watch::Sender<()>,
}

#[derive(Default)]
struct Sent {
    end: u64,
    /// Of the messages before `end`.
    kept: VecDeque<Kept>,
}

/// What is left of a message.
#[derive(Clone, Copy)]
struct Kept {
    stamp: [u8; STAMP_BYTES],
    body_bytes: u32,
}

/// What a pull gets.
pub struct Page {
    /// Records, one behind the other; empty if there are none from the offset on.
    pub records: Vec<u8>,
    /// Where to go on.
    pub next: u64,
    /// The first offset that is still there.
    pub min: u64,
    /// One past the last offset.
    pub end: u64,
}

impl Topics {
    /// The topic of a name.
    pub fn get(&self, name: &str) -> Option<Arc<Topic>> {
        self.table.read().get(name).cloned()
    }

    /// Makes a topic, or leaves the one that is there. An error says what is wrong.
    pub fn create(&self, name: &str, queues: usize) -> Result<(), String> {
        let mut table = self.table.write();
        let known: usize = table.values().map(|topic| topic.queues.len()).sum();
        if queues == 0 || known + queues > QUEUES_MAX {
            return Err(format!("{queues} queues for {name} beside {known}; 1 to {QUEUES_MAX} in all are expected"));
        }
        table.entry(name.to_owned()).or_insert_with(|| Arc::new(Topic::new(name, queues, (KEPT_MAX / queues).max(1))));
        Ok(())
    }

    /// Forgets a topic.
    pub fn delete(&self, name: &str) {
        if let Some(topic) = self.table.write().remove(name) {
            self.given.fetch_add(topic.given.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// From now on somebody may pull.
    pub fn create_group(&self, name: &str) {
        self.groups.lock().insert(name.to_owned());
        self.has_groups.store(true, Ordering::Relaxed);
    }

    /// Without groups nobody pulls.
    pub fn delete_group(&self, name: &str) {
        let mut groups = self.groups.lock();
        groups.remove(name);
        self.has_groups.store(!groups.is_empty(), Ordering::Relaxed);
    }

    /// Takes the messages of a send. Returns the offset of the first one and how many there are; an error says what is wrong with them.
    pub fn take(
        &self,
        topic: &Topic,
        queue: usize,
        sys_flag: i32,
        is_batch: bool,
        body: &[u8],
    ) -> Result<(u64, u64), String> {
        let (mut kept, keeps) = (Vec::new(), self.has_groups.load(Ordering::Relaxed));
        let count = if is_batch {
            let mut count = 0;
            for message in batch::iter(body) {
                let message = message.map_err(|error| error.to_string())?;
                count += 1;
                if keeps {
                    kept.push(Kept::of(message.body));
                }
            }
            count
        } else {
            if keeps {
                kept.push(match Compression::of(sys_flag).map_err(|error| error.to_string())? {
                    None => Kept::of(body),
                    Some(kind) => Kept::of(&decompress(kind, body, BODY_BYTES_MAX).map_err(|error| error.to_string())?),
                });
            }
            1
        };
        self.taken.fetch_add(count, Ordering::Relaxed);
        let queue = &topic.queues[queue];
        let mut sent = queue.sent.lock();
        let first = sent.end;
        sent.end += count;
        if kept.is_empty() {
            // What comes later would else stand at the offsets of these.
            sent.kept.clear();
        } else {
            sent.kept.extend(kept);
            let surplus = sent.kept.len().saturating_sub(topic.kept_max);
            sent.kept.drain(..surplus);
            drop(sent);
            queue.arrivals.send_replace(());
        }
        Ok((first, count))
    }

    /// What was taken and given so far.
    pub fn served(&self) -> Served {
        let there: u64 = self.table.read().values().map(|topic| topic.given.load(Ordering::Relaxed)).sum();
        Served { taken: self.taken.load(Ordering::Relaxed), given: self.given.load(Ordering::Relaxed) + there }
    }
}

impl Topic {
    fn new(name: &str, queues: usize, kept_max: usize) -> Topic {
        let queue = |id| Queue {
            id: i32::try_from(id).unwrap_or(i32::MAX),
            sent: Mutex::default(),
            arrivals: watch::Sender::new(()),
        };
        Topic { name: name.to_owned(), queues: (0..queues).map(queue).collect(), kept_max, given: AtomicU64::new(0) }
    }
}

impl Kept {
    /// A body without a stamp comes back as one that is no message of any run.
    fn of(body: &[u8]) -> Kept {
        let mut stamp = [0; STAMP_BYTES];
        let bytes = body.len().min(STAMP_BYTES);
        stamp[..bytes].copy_from_slice(&body[..bytes]);
        Kept { stamp, body_bytes: u32::try_from(body.len()).unwrap_or(u32::MAX) }
    }
}

impl Queue {
    /// One past the last offset.
    pub fn end(&self) -> u64 {
        self.sent.lock().end
    }

    /// Up to `max` messages from an offset on. Where the offset is not there any more, or not yet, `next` is the nearest that is.
    pub fn page(&self, offset: u64, max: usize, topic: &Topic, host: SocketAddr) -> Page {
        let (kept, min, end) = {
            let sent = self.sent.lock();
            let min = sent.end - sent.kept.len() as u64;
            let from = usize::try_from(offset.saturating_sub(min)).unwrap_or(usize::MAX).min(sent.kept.len());
            let mut bytes = 0;
            let fits = |kept: &&Kept| {
                let is_first = bytes == 0;
                bytes += kept.body_bytes as usize;
                is_first || bytes <= PAGE_BYTES
            };
            let is_there = (min..sent.end).contains(&offset);
            let wanted = if is_there { max } else { 0 };
            let kept: Vec<Kept> = sent.kept.range(from..).take(wanted).take_while(fits).copied().collect();
            (kept, min, sent.end)
        };
        let mut records = Vec::new();
        let mut next = offset.clamp(min, end);
        let mut body = Vec::new();
        for one in &kept {
            body.resize((one.body_bytes as usize).max(STAMP_BYTES), 0);
            body[..STAMP_BYTES].copy_from_slice(&one.stamp);
            let start = records.len();
            let draft = RecordDraft {
                topic: &topic.name,
                queue_id: self.id,
                flag: 0,
                sys_flag: 0,
                born_timestamp: 0,
                born_host: host,
                store_host: host,
                reconsume_times: 0,
                prepared_offset: 0,
                body: &body[..one.body_bytes as usize],
                properties: &[],
            };
            // The name of a topic that could be made, and a body that came in a frame: nothing is too long for a record.
            if draft.encode(&mut records).is_err() {
                break;
            }
            stamp(&mut records[start..], next, next, 0);
            next += 1;
        }
        topic.given.fetch_add(kept.len() as u64, Ordering::Relaxed);
        Page { records, next, min, end }
    }
}

#[cfg(test)]
mod tests {
    use protocol::record::{Scanned, scan};

    use super::*;
    use crate::stamp::Stamp;

    fn host() -> SocketAddr {
        "127.0.0.1:10911".parse().unwrap()
    }

    fn body(sequence: u64) -> Vec<u8> {
        let mut body = vec![7; 100];
        Stamp { lane: 1, producer: 2, run: 3, sequence, due_ns: 5 }.write(&mut body);
        body
    }

    fn sequences(page: &Page) -> Vec<(u64, u64)> {
        let (mut rest, mut found) = (&page.records[..], Vec::new());
        while let Ok(Scanned::Record(view)) = scan(rest, true) {
            assert_eq!((view.topic(), view.body().len()), ("t", 100));
            found.push((view.queue_offset(), Stamp::read(view.body()).unwrap().sequence));
            rest = &rest[view.total_size()..];
        }
        found
    }

    #[test]
    fn what_was_sent_comes_back_with_its_stamp_from_any_offset() {
        let topics = Topics::default();
        topics.create("t", 2).unwrap();
        let topic = topics.get("t").unwrap();
        topics.create_group("g");
        for sequence in 0..5 {
            let taken = topics.take(&topic, 1, 0, false, &body(sequence)).unwrap();
            assert_eq!(taken, (sequence, 1));
        }
        let queue = &topic.queues[1];
        assert_eq!(sequences(&queue.page(0, 3, &topic, host())), [(0, 0), (1, 1), (2, 2)]);
        let rest = queue.page(3, 100, &topic, host());
        assert_eq!((sequences(&rest), rest.next, rest.end), (vec![(3, 3), (4, 4)], 5, 5));
        let end = queue.page(5, 100, &topic, host());
        assert_eq!((end.records.len(), end.next), (0, 5));
        assert_eq!(queue.page(50, 100, &topic, host()).next, 5);
        assert_eq!(topic.queues[0].page(0, 100, &topic, host()).next, 0);
        assert_eq!(topics.served(), Served { taken: 5, given: 5 });
    }

    #[test]
    fn a_batch_and_a_compressed_body_are_taken_as_their_messages() {
        let topics = Topics::default();
        topics.create("t", 1).unwrap();
        let topic = topics.get("t").unwrap();
        topics.create_group("g");
        let mut packed = Vec::new();
        for sequence in 0..3 {
            let body = body(sequence);
            batch::encode(&mut packed, &batch::InnerMessage { flag: 0, body: &body, properties: "" }).unwrap();
        }
        assert_eq!(topics.take(&topic, 0, 0, true, &packed), Ok((0, 3)));
        let zipped = protocol::compression::compress(Compression::Zlib, &body(3), 5).unwrap();
        assert_eq!(topics.take(&topic, 0, Compression::Zlib.bits(), false, &zipped), Ok((3, 1)));
        let page = topic.queues[0].page(0, 100, &topic, host());
        assert_eq!(sequences(&page), [(0, 0), (1, 1), (2, 2), (3, 3)]);
        assert!(topics.take(&topic, 0, 0, true, &packed[..50]).is_err());
    }

    #[test]
    fn memory_is_bounded_and_what_was_forgotten_is_not_given_under_another_offset() {
        let topics = Topics::default();
        let topic = Topic::new("t", 1, 2);
        topics.create_group("g");
        (0..3).for_each(|sequence| assert!(topics.take(&topic, 0, 0, false, &body(sequence)).is_ok()));
        let queue = &topic.queues[0];
        assert_eq!((queue.page(0, 9, &topic, host()).next, queue.page(0, 9, &topic, host()).min), (1, 1));
        assert_eq!(sequences(&queue.page(1, 9, &topic, host())), [(1, 1), (2, 2)]);
        // While nobody could ask for it nothing is kept.
        topics.delete_group("g");
        topics.take(&topic, 0, 0, false, &body(3)).unwrap();
        topics.create_group("g");
        topics.take(&topic, 0, 0, false, &body(4)).unwrap();
        assert_eq!(sequences(&queue.page(4, 9, &topic, host())), [(4, 4)]);
        assert_eq!(queue.page(2, 9, &topic, host()).next, 4);
        assert!(topics.create("u", QUEUES_MAX + 1).is_err() && topics.create("u", 0).is_err());
    }
}
