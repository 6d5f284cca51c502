//! What the null server remembers of messages: how many each queue was sent, and the stamps of the last ones for as long as there is a
//! group that could ask for them.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use protocol::batch;
use protocol::compression::{Compression, decompress};
use protocol::names::check_topic;
use protocol::record::{RecordDraft, stamp};
use tokio::sync::watch;

use super::Served;
use super::groups::Groups;
use crate::stamp::STAMP_BYTES;
use crate::workload::MESSAGE_BYTES_MAX;

/// Queues of all topics together.
const QUEUES_MAX: usize = 1_000_000;

/// Stamps of all queues of all topics together; about 40 bytes each.
const KEPT_MAX: usize = 4 << 20;

/// Records of a page are cut off here, as a broker does that is left as it is (`maxTransferBytesOnMessageInMemory`).
const PAGE_BYTES: usize = 256 << 10;

/// A compressed body that would grow beyond this is not taken: it comes back as it was before it was compressed, in one frame.
const OPENED_BYTES_MAX: usize = MESSAGE_BYTES_MAX;

/// The topics.
pub struct Topics {
    /// Guards the list of topics; held for a look-up or a change.
    table: RwLock<HashMap<String, Arc<Topic>>>,
    /// Who could ask for messages.
    pub groups: Groups,
    // Relaxed, as are the counts: nothing is published through them.
    /// Stamps that each queue keeps.
    share: AtomicUsize,
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

impl Default for Topics {
    fn default() -> Topics {
        Topics {
            table: RwLock::default(),
            groups: Groups::default(),
            share: AtomicUsize::new(KEPT_MAX),
            taken: AtomicU64::new(0),
            given: AtomicU64::new(0),
        }
    }
}

impl Topics {
    /// The topic of a name.
    pub fn get(&self, name: &str) -> Option<Arc<Topic>> {
        self.table.read().get(name).cloned()
    }

    /// Makes a topic, or leaves the one that is there. An error says what is wrong.
    pub fn create(&self, name: &str, queues: usize) -> Result<(), String> {
        check_topic(name).map_err(|error| error.to_string())?;
        let mut table = self.table.write();
        let known: usize = table.values().map(|topic| topic.queues.len()).sum();
        if queues == 0 || known.saturating_add(queues) > QUEUES_MAX {
            return Err(format!("{queues} queues for {name} beside {known}; 1 to {QUEUES_MAX} in all are expected"));
        }
        if table.contains_key(name) {
            return Ok(());
        }
        table.insert(name.to_owned(), Arc::new(Topic::new(name, queues)));
        let (share, before) = (share_of(known + queues), self.share.load(Ordering::Relaxed));
        self.share.store(share, Ordering::Relaxed);
        if share < before {
            let topics: Vec<Arc<Topic>> = table.values().cloned().collect();
            drop(table);
            topics.iter().flat_map(|topic| &topic.queues).for_each(|queue| queue.shrink(share));
        }
        Ok(())
    }

    /// Forgets a topic.
    pub fn delete(&self, name: &str) {
        let mut table = self.table.write();
        if let Some(topic) = table.remove(name) {
            let left = table.values().map(|topic| topic.queues.len()).sum();
            self.share.store(share_of(left), Ordering::Relaxed);
            self.given.fetch_add(topic.given.load(Ordering::Relaxed), Ordering::Relaxed);
        }
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
        let (mut kept, keeps) = (Vec::new(), self.groups.are_any());
        let count = if is_batch {
            let mut count = 0;
            for message in batch::iter(body) {
                let message = message.map_err(|error| error.to_string())?;
                count += 1;
                if keeps {
                    kept.push(Kept::of(message.body));
                }
            }
            if count == 0 {
                return Err("a batch of no messages".to_owned());
            }
            count
        } else {
            if keeps {
                kept.push(match Compression::of(sys_flag).map_err(|error| error.to_string())? {
                    None => Kept::of(body),
                    Some(kind) => {
                        Kept::of(&decompress(kind, body, OPENED_BYTES_MAX).map_err(|error| error.to_string())?)
                    }
                });
            }
            1
        };
        self.taken.fetch_add(count, Ordering::Relaxed);
        let queue = &topic.queues[queue];
        let mut sent = queue.sent.lock();
        let first = sent.end;
        sent.end += count;
        if !keeps {
            // What comes later would else stand at the offsets of these.
            sent.kept.clear();
        } else {
            sent.kept.extend(kept);
            sent.forget(self.share.load(Ordering::Relaxed));
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

/// Stamps that each of so many queues keeps. In steps, since every topic that comes or goes changes the number of queues.
fn share_of(queues: usize) -> usize {
    KEPT_MAX / queues.clamp(1, QUEUES_MAX).next_power_of_two()
}

impl Sent {
    /// Keeps so many stamps, the last ones.
    fn forget(&mut self, kept_max: usize) {
        let surplus = self.kept.len().saturating_sub(kept_max);
        self.kept.drain(..surplus);
    }
}

impl Topic {
    fn new(name: &str, queues: usize) -> Topic {
        let queue = |id| Queue {
            id: i32::try_from(id).unwrap_or(i32::MAX),
            sent: Mutex::default(),
            arrivals: watch::Sender::new(()),
        };
        Topic { name: name.to_owned(), queues: (0..queues).map(queue).collect(), given: AtomicU64::new(0) }
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

    fn shrink(&self, kept_max: usize) {
        let mut sent = self.sent.lock();
        sent.forget(kept_max);
        sent.kept.shrink_to(kept_max);
    }

    /// Up to `max` messages from an offset on, as many as a page has room for; at least one. Where the offset is not there any more, or not yet, `next` is the nearest that is.
    pub fn page(&self, offset: u64, max: usize, topic: &Topic, host: SocketAddr) -> Page {
        let (kept, min, end) = {
            let sent = self.sent.lock();
            let min = sent.end - sent.kept.len() as u64;
            let from = usize::try_from(offset.saturating_sub(min)).unwrap_or(usize::MAX).min(sent.kept.len());
            let mut bytes = 0;
            let around = self.draft(&topic.name, host, &[]).encoded_bytes();
            let fits = |kept: &&Kept| {
                let is_first = bytes == 0;
                bytes += around + kept.body_bytes as usize;
                is_first || bytes <= PAGE_BYTES
            };
            let is_there = (min..sent.end).contains(&offset);
            let wanted = if is_there { max } else { 0 };
            let kept: Vec<Kept> = sent.kept.range(from..).take(wanted).take_while(fits).copied().collect();
            (kept, min, sent.end)
        };
        let mut records = Vec::new();
        let mut next = offset.clamp(min, end);
        let first = next;
        let mut body = Vec::new();
        for one in &kept {
            body.resize((one.body_bytes as usize).max(STAMP_BYTES), 0);
            body[..STAMP_BYTES].copy_from_slice(&one.stamp);
            let start = records.len();
            let draft = self.draft(&topic.name, host, &body[..one.body_bytes as usize]);
            // The name was looked at when the topic was made, and the body when it came: nothing is too long for a record.
            if draft.encode(&mut records).is_err() {
                break;
            }
            stamp(&mut records[start..], next, next, 0);
            next += 1;
        }
        topic.given.fetch_add(next - first, Ordering::Relaxed);
        Page { records, next, min, end }
    }

    fn draft<'a>(&self, topic: &'a str, host: SocketAddr, body: &'a [u8]) -> RecordDraft<'a> {
        RecordDraft { queue_id: self.id, body, ..RecordDraft::plain(topic, host) }
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
        topics.groups.create("g").unwrap();
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
        topics.groups.create("g").unwrap();
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
        let topic = Topic::new("t", 1);
        topics.share.store(2, Ordering::Relaxed);
        topics.groups.create("g").unwrap();
        (0..3).for_each(|sequence| assert!(topics.take(&topic, 0, 0, false, &body(sequence)).is_ok()));
        let queue = &topic.queues[0];
        assert_eq!((queue.page(0, 9, &topic, host()).next, queue.page(0, 9, &topic, host()).min), (1, 1));
        assert_eq!(sequences(&queue.page(1, 9, &topic, host())), [(1, 1), (2, 2)]);
        // While nobody could ask for it nothing is kept.
        topics.groups.delete("g");
        topics.take(&topic, 0, 0, false, &body(3)).unwrap();
        topics.groups.create("g").unwrap();
        topics.take(&topic, 0, 0, false, &body(4)).unwrap();
        assert_eq!(sequences(&queue.page(4, 9, &topic, host())), [(4, 4)]);
        assert_eq!(queue.page(2, 9, &topic, host()).next, 4);
        assert!(topics.create("u", QUEUES_MAX + 1).is_err() && topics.create("u", 0).is_err());
    }

    #[test]
    fn all_topics_share_what_is_kept() {
        let topics = Topics::default();
        let kept = |name: &str| topics.get(name).unwrap().queues[0].sent.lock().kept.len();
        topics.create("t", 1).unwrap();
        topics.get("t").unwrap().queues[0].sent.lock().kept.extend(vec![Kept::of(&[]); 100]);
        topics.create("u", KEPT_MAX / 64 - 1).unwrap();
        assert_eq!((topics.share.load(Ordering::Relaxed), kept("t")), (64, 64));
        // It is there already.
        topics.create("u", 1).unwrap();
        topics.delete("u");
        assert_eq!(topics.share.load(Ordering::Relaxed), KEPT_MAX);
    }

    #[test]
    fn a_page_is_bounded_by_the_bytes_of_its_records() {
        let topics = Topics::default();
        topics.create("t", 1).unwrap();
        topics.groups.create("g").unwrap();
        let topic = topics.get("t").unwrap();
        (0..5000).for_each(|_| assert!(topics.take(&topic, 0, 0, false, b"").is_ok()));
        let page = topic.queues[0].page(0, usize::MAX, &topic, host());
        assert!((PAGE_BYTES / 2..=PAGE_BYTES).contains(&page.records.len()), "{}", page.records.len());
        assert_eq!(topics.served().given, page.next);
        // One that is larger than a page comes alone.
        let first = topics.take(&topic, 0, 0, false, &vec![0; PAGE_BYTES]).unwrap().0;
        assert_eq!(topics.take(&topic, 0, 0, false, b""), Ok((first + 1, 1)));
        assert_eq!(topic.queues[0].page(first, 10, &topic, host()).next, first + 1);
    }

    #[test]
    fn names_and_batches_that_make_no_sense_are_refused() {
        let topics = Topics::default();
        for name in ["", "a b", &"x".repeat(300)] {
            assert!(topics.create(name, 1).is_err(), "{name}");
        }
        topics.create("t", 1).unwrap();
        topics.groups.create("g").unwrap();
        let topic = topics.get("t").unwrap();
        topics.take(&topic, 0, 0, false, &body(0)).unwrap();
        assert!(topics.take(&topic, 0, 0, true, b"").is_err());
        // What is there stays.
        assert_eq!(sequences(&topic.queues[0].page(0, 9, &topic, host())), [(0, 0)]);
    }
}
