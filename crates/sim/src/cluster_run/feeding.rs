//! A master's driver of one slave: gives [`Feed`] what has come over the link, and sends what it says, without waiting for anything.

use std::net::SocketAddr;
use std::time::Duration;

use protocol::LogOffset;
use protocol::record::at;
use replica::feed::{Closed, Event, Feed, LogRange, Outgoing};
use replica::lag::{Peer, Slaves};
use store::Store;

use super::Lie;
use super::links::{End, Link, Links};
use super::node::Node;

/// Frames that go out in one turn.
const FRAMES_MAX: u32 = 16;

/// What surrounds a feed in a turn.
pub(super) struct Around<'a> {
    pub links: &'a mut Links,
    pub now: u64,
    pub lie: Option<Lie>,
    /// Where records of the master's log begin and end.
    pub records: &'a [(u64, u64)],
    /// A byte of the next frame with a whole body is to be flipped; what that did.
    pub damage: &'a mut Damage,
}

/// Damage on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Damage {
    None,
    /// Of a byte of the record, at this place of it, counted from where its body begins if `in_body`.
    Due {
        in_body: bool,
        at: usize,
    },
    /// It was done to the record at this log offset.
    Done {
        at: u64,
    },
}

/// See the module's head.
pub(super) struct Feeding {
    pub link: Link,
    pub slave: usize,
    /// The slave's life that connected.
    pub slave_life: u32,
    number: u64,
    feed: Feed,
    /// What was given of the log when the slave came.
    given: LogOffset,
    out: Vec<u8>,
    sent: usize,
}

impl Feeding {
    pub fn new(link: Link, slave: usize, slave_life: u32, feed: Feed, given: LogOffset) -> Feeding {
        Feeding { link, slave, slave_life, number: link, feed, given, out: Vec::new(), sent: 0 }
    }

    /// The slave's row goes with the connection.
    pub fn end(&self, slaves: &Slaves, elapsed: Duration) {
        slaves.leave(self.number, elapsed);
    }

    /// The slave is told why, if its stream has words, before the connection is closed.
    pub fn take_leave(&self, why: &Closed, links: &mut Links, now: u64) {
        if let Some(words) = self.feed.farewell(why).filter(|_| self.sent == 0) {
            links.send(self.link, End::Master, &words, now);
        }
    }

    /// Goes on. Says what the slave has acknowledged, or why the connection ends.
    pub fn step(&mut self, master: &Node, around: &mut Around<'_>) -> Result<Option<LogOffset>, Closed> {
        let Some(store) = &master.side.store else { return Err(Closed::Stopping) };
        let mut acknowledged = None;
        let (bytes, is_over) = around.links.receive(self.link, End::Master);
        if !bytes.is_empty() {
            self.take(master, store, Event::Heard(&bytes), around, &mut acknowledged)?;
        }
        if is_over {
            return Err(Closed::Ended);
        }
        for _ in 0..FRAMES_MAX {
            if master.side.has_crashed() {
                return Ok(acknowledged);
            }
            if !self.out.is_empty() {
                self.sent += around.links.send(self.link, End::Master, &self.out[self.sent..], around.now);
                if self.sent < self.out.len() {
                    break;
                }
                (self.out, self.sent) = (Vec::new(), 0);
                self.take(master, store, Event::Sent, around, &mut acknowledged)?;
                continue;
            }
            let has_grown = self.feed.waits_above().is_some_and(|above| store.written().get() > above.0);
            if !has_grown && self.feed.due() > master.side.world.clock.elapsed() {
                break;
            }
            self.take(master, store, Event::Due, around, &mut acknowledged)?;
            if self.out.is_empty() {
                break;
            }
        }
        Ok(acknowledged)
    }

    fn take(
        &mut self,
        master: &Node,
        store: &Store,
        event: Event<'_>,
        around: &mut Around<'_>,
        acknowledged: &mut Option<LogOffset>,
    ) -> Result<(), Closed> {
        let elapsed = master.side.world.clock.elapsed();
        let end = store.written().get();
        let range = LogRange {
            min: store.min_offset().0,
            end,
            given: self.given.max(master.slaves.first()).0,
            segment_bytes: store.options().segment_bytes,
        };
        let effects = self.feed.step(elapsed, range, event)?;
        let end = LogOffset(end);
        if let Some(at) = effects.begun {
            let has = [effects.acknowledged.unwrap_or_default(), effects.flushed.unwrap_or_default()];
            master.slaves.begun(self.number, self.peer(around.lie), elapsed, at, has, end);
        }
        if let Some(to) = effects.flushed {
            master.slaves.flushed(self.number, to);
        }
        if let Some(to) = effects.acknowledged {
            master.slaves.acknowledge(self.number, elapsed, to, end);
            *acknowledged = Some(to);
        }
        match effects.send {
            Some(Outgoing::Answer(bytes)) => self.out = bytes,
            Some(Outgoing::Heartbeat { at }) => {
                self.out = self.feed.header(at, 0, store.is_sync_flush()).as_ref().to_vec()
            }
            Some(Outgoing::Frame { at, max }) => {
                let _in_charge = master.side.world.turns.enter();
                let gone = || Closed::Behind { report: at.0, min: store.min_offset().0 };
                let slice = store.raw_bytes(at, max)?.ok_or_else(gone)?;
                let mut body = slice.as_ref().to_vec();
                around.damage(at.0, &mut body);
                self.out = self.feed.header(at, body.len() as u32, store.is_sync_flush()).as_ref().to_vec();
                self.out.extend_from_slice(&body);
                self.feed.step(elapsed, range, Event::Read(body.len()))?;
                master.slaves.sending(self.number, elapsed, self.feed.next(), body.len(), end);
            }
            None => {}
        }
        Ok(())
    }

    /// One host a slave, unless they say who they are: then all have the same.
    fn peer(&self, lie: Option<Lie>) -> Peer {
        let is_split = lie == Some(Lie::ConnectionsAreCopies);
        let broker_id = self.feed.who().map(|who| if is_split { self.number as i64 + 1 } else { who.broker_id });
        let host = match broker_id {
            Some(_) => 0,
            None if is_split => self.number as u8,
            None => self.slave as u8,
        };
        Peer { address: SocketAddr::from(([10, 0, 0, host], 40_000 + self.number as u16 % 10_000)), broker_id }
    }
}

impl Around<'_> {
    /// Flips a byte of a frame that begins at `from`, if that is due and the frame has the record for it: of the body, or of those numbers in
    /// front of a record that are held against others. The plain stream has no checksum, and what else there is in a record has none either.
    fn damage(&mut self, from: u64, frame: &mut [u8]) {
        let Damage::Due { in_body, at: byte } = *self.damage else { return };
        let to = from + frame.len() as u64;
        let lies_inside = |(begin, end): &&(u64, u64)| *begin >= from && *end <= to;
        let body_lies_inside = |(begin, _): &&(u64, u64)| begin + at::BODY as u64 >= from && begin + 96 <= to;
        // Whoever does not check a frame takes a body for what it states: the checksum is made to fit.
        let is_unchecked = self.lie == Some(Lie::FramesAreNotChecked);
        let record = if is_unchecked || !in_body {
            self.records.iter().find(lies_inside)
        } else {
            self.records.iter().find(body_lies_inside)
        };
        let Some(&(begin, end)) = record else { return };
        let place = |within: usize| (begin + within as u64 - from) as usize;
        if in_body || is_unchecked {
            // A body has eight bytes at least.
            frame[place(at::BODY + byte % 8)] ^= 1 << (byte % 7);
        } else {
            let fields = [at::TOTAL_SIZE, at::MAGIC_CODE, at::BODY_CRC, at::LOG_OFFSET];
            frame[place(fields[byte % 4] + byte / 4 % 4)] ^= 1 << (byte % 7);
        }
        if is_unchecked {
            let record = &mut frame[place(0)..][..(end - begin) as usize];
            let bytes = record[at::BODY_SIZE..].first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes)) as usize;
            let crc = crc32fast::hash(&record[at::BODY..][..bytes]) & 0x7FFF_FFFF;
            record[at::BODY_CRC..][..4].copy_from_slice(&crc.to_be_bytes());
        }
        *self.damage = Damage::Done { at: begin };
    }
}
