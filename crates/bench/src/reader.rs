//! What consumers do with messages: take them out of records, and enter them into the books.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use protocol::compression::{Compression, decompress};
use protocol::record::{RecordView, Scanned, scan};
use protocol::{batch, sys_flag};

use crate::scene::Scene;
use crate::stamp::Stamp;

/// A compressed body that would grow beyond this is not opened.
const BODY_BYTES_MAX: usize = 64 << 20;

/// Pairs of a queue and a thread that sends to it whose order is looked at, all together; more take too much memory.
pub const ORDERED_PAIRS_MAX: u64 = 4_000_000;

/// What one consumer of a group is.
#[derive(Clone)]
pub struct Reader {
    /// The stage.
    pub scene: Arc<Scene>,
    /// Its group among those of its topic.
    pub group: usize,
    /// Its number among all consumers.
    pub who: usize,
    /// Whether latencies mean anything: those of a backlog do not.
    pub has_latency: bool,
}

impl Reader {
    /// Counts messages that came together.
    pub fn take<'a>(&self, bodies: impl Iterator<Item = &'a [u8]>, mut order: Option<&mut Order>) {
        let Scene { clock, ledger, consumed, .. } = &*self.scene;
        let now = clock.elapsed();
        let (mut messages, mut bytes, mut latencies) = (0, 0, Vec::new());
        for body in bodies {
            let Some(stamp) = Stamp::read(body) else {
                ledger.foreign();
                continue;
            };
            if !ledger.receive(self.group, &stamp) {
                continue;
            }
            messages += 1;
            bytes += body.len() as u64;
            if self.has_latency {
                latencies.push(now.saturating_sub(Duration::from_nanos(stamp.due_ns)));
            }
            if order.as_deref_mut().is_some_and(|order| !order.comes(&stamp)) {
                self.scene.note_disordered();
            }
        }
        consumed.done_each(self.who, bytes, messages, latencies.into_iter());
    }

    /// Counts the messages of stored records, from a queue offset on. Returns an error in words if they cannot be read.
    pub fn take_records(&self, records: &Bytes, from: i64, mut order: Option<&mut Order>) -> Result<(), String> {
        let mut rest = &records[..];
        // Each turn takes at least a record's length off.
        while !rest.is_empty() {
            let view = match scan(rest, false) {
                Ok(Scanned::Record(view)) => view,
                Ok(Scanned::Blank { .. } | Scanned::Nothing) => {
                    return Err("records end before their length says".to_owned());
                }
                Err(error) => return Err(format!("a record cannot be read: {error}")),
            };
            self.take_record(&view, from, order.as_deref_mut());
            rest = &rest[view.total_size()..];
        }
        Ok(())
    }

    fn take_record(&self, view: &RecordView<'_>, from: i64, order: Option<&mut Order>) {
        let opened;
        let body = match Compression::of(view.sys_flag()) {
            Ok(None) => view.body(),
            Ok(Some(kind)) => match decompress(kind, view.body(), BODY_BYTES_MAX) {
                Ok(body) => {
                    opened = body;
                    &opened[..]
                }
                Err(_) => return self.scene.ledger.foreign(),
            },
            Err(_) => return self.scene.ledger.foreign(),
        };
        if view.sys_flag() & sys_flag::INNER_BATCH == 0 {
            return self.take(std::iter::once(body), order);
        }
        let base = view.property(protocol::properties::name::INNER_BASE).and_then(|base| base.parse::<i64>().ok());
        let first = base.unwrap_or_else(|| view.queue_offset() as i64);
        // What lies before the offset that was asked for came with an earlier pull.
        let skipped = usize::try_from(from.saturating_sub(first)).unwrap_or(0);
        // A message that cannot be read ends the batch, and has no stamp.
        self.take(batch::iter(body).skip(skipped).map(|inner| inner.map_or(&[][..], |inner| inner.body)), order);
    }
}

/// What came last to one queue, by who sent it.
#[derive(Default)]
pub struct Order {
    last: HashMap<(u32, u16), u64>,
}

impl Order {
    /// Whether a message, not seen before, is later than all others of its sender.
    pub fn comes(&mut self, stamp: &Stamp) -> bool {
        let last = self.last.entry((stamp.producer, stamp.lane)).or_insert(stamp.sequence);
        let is_later = *last <= stamp.sequence;
        *last = (*last).max(stamp.sequence);
        is_later
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::record::{RecordDraft, stamp as place};

    fn record(body: &[u8], sys_flag: i32, properties: &str) -> Vec<u8> {
        let host = "10.0.0.1:10911".parse().unwrap();
        let draft = RecordDraft { sys_flag, body, properties: properties.as_bytes(), ..RecordDraft::plain("t", host) };
        let mut out = Vec::new();
        draft.encode(&mut out).unwrap();
        place(&mut out, 40, 4096, 6);
        out
    }

    fn body(scene: &Scene, sequence: u64, lane: u16) -> Vec<u8> {
        let mut body = vec![0; 40];
        Stamp { lane, producer: 0, run: scene.run, sequence, due_ns: 0 }.write(&mut body);
        body
    }

    fn reader() -> Reader {
        let scene = Arc::new(Scene::new(1, 1, 40));
        scene.ledger.send(0, 0, 100);
        Reader { scene, group: 0, who: 0, has_latency: true }
    }

    #[test]
    fn messages_are_counted_out_of_records_batches_and_compressed_bodies() {
        let reader = reader();
        let scene = &reader.scene;
        let mut inner = Vec::new();
        for sequence in 1..4 {
            let body = body(scene, sequence, 0);
            batch::encode(&mut inner, &batch::InnerMessage { flag: 0, body: &body, properties: "" }).unwrap();
        }
        let packed = protocol::compression::compress(Compression::Lz4, &body(scene, 4, 0), 5).unwrap();
        let mut all = record(&body(scene, 0, 0), 0, "");
        all.extend(record(
            &inner,
            sys_flag::INNER_BATCH | sys_flag::NEED_UNWRAP,
            "INNER_NUM\u{1}3\u{2}INNER_BASE\u{1}40\u{2}",
        ));
        all.extend(record(&packed, Compression::Lz4.bits(), ""));
        all.extend(record(b"of somebody else", 0, ""));
        // From the second message of the batch on.
        reader.take_records(&all.into(), 41, None).unwrap();
        let (tally, counts) = (scene.ledger.tally(), scene.consumed.take());
        assert_eq!((tally.received, tally.duplicates, tally.foreign), (4, 0, 1));
        assert_eq!((counts.messages, counts.bytes, counts.latency.len()), (4, 160, 4));
        assert!(reader.take_records(&vec![1; 200].into(), 0, None).is_err());
    }

    #[test]
    fn what_comes_before_an_earlier_one_of_its_sender_is_disordered_and_what_comes_twice_is_not() {
        let reader = reader();
        let bodies: Vec<Vec<u8>> = [(0, 0), (3, 0), (1, 1), (2, 0), (2, 0), (4, 0), (5, 1)]
            .map(|(sequence, lane)| body(&reader.scene, sequence, lane))
            .into();
        reader.take(bodies.iter().map(|body| &body[..]), Some(&mut Order::default()));
        assert_eq!((reader.scene.disordered(), reader.scene.ledger.tally().duplicates), (1, 1));
    }
}
