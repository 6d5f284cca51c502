//! The network between clients and a broker: bytes take their time, come in pieces, and are lost with their connection.
//!
//! A connection is a pair of directed streams. The broker's end of it is what the loop of `net` reads and writes; the client's end is asked by
//! the client between the turns of everybody else. What is sent comes in the order in which it was sent, or not at all. A connection may be cut,
//! which loses what is under way in both directions and is told to both ends, or fall silent, which is told to nobody.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use env::Random;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Which connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Link(u64);

/// How a network is.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// The longest way of a piece, in ms.
    pub latency_ms_max: u32,
    /// Bytes that may be under way in a direction before its writer has to wait.
    pub window_bytes: usize,
}

/// See the module.
pub struct Network {
    weather: Weather,
    dice: Random,
    links: BTreeMap<Link, Arc<Mutex<Wire>>>,
    last: u64,
}

/// One connection.
#[derive(Default)]
struct Wire {
    to_broker: Way,
    to_client: Way,
    /// Both ends know.
    is_cut: bool,
    /// Nobody knows: nothing moves any more.
    is_silent: bool,
    /// The client takes nothing any more.
    is_left: bool,
    window_bytes: usize,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// One direction of it.
#[derive(Default)]
struct Way {
    /// Written, and not sent off yet.
    written: VecDeque<Vec<u8>>,
    /// Pieces, and when each of them comes.
    under_way: VecDeque<(i64, Vec<u8>)>,
    arrived: VecDeque<u8>,
    /// Nothing will be written any more; and when the reader learns that.
    is_ended: bool,
    ends_at: Option<i64>,
    has_ended: bool,
}

/// What has come to a client.
#[derive(Default)]
pub struct Received {
    /// In the order in which they were sent.
    pub bytes: Vec<u8>,
    /// Nothing more will.
    pub is_over: bool,
}

impl Way {
    fn bytes(&self) -> usize {
        let written: usize = self.written.iter().map(Vec::len).sum();
        written + self.under_way.iter().map(|(_, piece)| piece.len()).sum::<usize>() + self.arrived.len()
    }

    /// Sends off what was written, and lets come what has been long enough under way. Says whether something came.
    fn step(&mut self, now: i64, weather: Weather, dice: &Random) -> bool {
        let mut last = self.under_way.back().map_or(now, |(due, _)| *due);
        while let Some(mut bytes) = self.written.pop_front() {
            // Now and then in pieces that come apart.
            while !bytes.is_empty() {
                let count = if dice.below(6) == 0 { 1 + dice.below(bytes.len() as u32) as usize } else { bytes.len() };
                let rest = bytes.split_off(count);
                last = last.max(now + i64::from(dice.below(weather.latency_ms_max + 1)));
                self.under_way.push_back((last, bytes));
                bytes = rest;
            }
        }
        if self.is_ended && self.ends_at.is_none() {
            self.ends_at = Some(last);
        }
        let mut has_come = false;
        while let Some((_, piece)) = self.under_way.pop_front_if(|(due, _)| *due <= now) {
            self.arrived.extend(piece);
            has_come = true;
        }
        if !self.has_ended && self.under_way.is_empty() && self.ends_at.is_some_and(|at| at <= now) {
            (self.has_ended, has_come) = (true, true);
        }
        has_come
    }
}

impl Wire {
    fn wake(&mut self) {
        for waker in [self.reader.take(), self.writer.take()].into_iter().flatten() {
            waker.wake();
        }
    }
}

impl Network {
    /// One without connections.
    pub fn new(weather: Weather, dice: Random) -> Network {
        Network { weather, dice, links: BTreeMap::new(), last: 0 }
    }

    /// A new connection, and the broker's end of it.
    pub fn connect(&mut self) -> (Link, BrokerEnd) {
        self.last += 1;
        let link = Link(self.last);
        let wire = Wire { window_bytes: self.weather.window_bytes, ..Wire::default() };
        let wire = Arc::new(Mutex::new(wire));
        self.links.insert(link, Arc::clone(&wire));
        (link, BrokerEnd { wire })
    }

    /// The client writes.
    pub fn send(&self, link: Link, bytes: Vec<u8>) {
        if let Some(wire) = self.links.get(&link) {
            wire.lock().to_broker.written.push_back(bytes);
        }
    }

    /// What has come to the client since it was asked last.
    pub fn receive(&mut self, link: Link) -> Received {
        let Some(wire) = self.links.get(&link) else { return Received { bytes: Vec::new(), is_over: true } };
        let mut wire = wire.lock();
        if wire.is_cut {
            drop(wire);
            self.links.remove(&link);
            return Received { bytes: Vec::new(), is_over: true };
        }
        let bytes = wire.to_client.arrived.drain(..).collect();
        if let Some(writer) = wire.writer.take() {
            writer.wake();
        }
        Received { bytes, is_over: wire.to_client.has_ended }
    }

    /// The client ends it in order: what it has sent still comes.
    pub fn close(&mut self, link: Link) {
        if let Some(wire) = self.links.get(&link) {
            let mut wire = wire.lock();
            (wire.to_broker.is_ended, wire.is_left) = (true, true);
        }
    }

    /// All that is under way is lost, and both ends are told.
    pub fn cut(&mut self, link: Link) {
        let Some(wire) = self.links.get(&link) else { return };
        let mut wire = wire.lock();
        if wire.is_silent {
            return;
        }
        wire.is_cut = true;
        (wire.to_broker, wire.to_client) = (Way::default(), Way::default());
        wire.wake();
    }

    /// Nothing moves any more, and nobody is told.
    pub fn silence(&mut self, link: Link) {
        if let Some(wire) = self.links.get(&link) {
            wire.lock().is_silent = true;
        }
    }

    /// The client lets go of a connection that is silent or over.
    pub fn forget(&mut self, link: Link) {
        let Some(wire) = self.links.get(&link) else { return };
        if !wire.lock().is_silent {
            self.cut(link);
        }
        self.links.remove(&link);
    }

    /// The broker's process is gone, and all connections with it.
    pub fn lose_all(&mut self) {
        for wire in std::mem::take(&mut self.links).into_values() {
            let mut wire = wire.lock();
            wire.is_cut = true;
            wire.wake();
        }
    }

    /// Lets come what is due.
    pub fn step(&mut self, now: i64) {
        for wire in self.links.values() {
            let mut wire = wire.lock();
            if wire.is_silent || wire.is_cut {
                continue;
            }
            if wire.to_broker.step(now, self.weather, &self.dice)
                && let Some(reader) = wire.reader.take()
            {
                reader.wake();
            }
            wire.to_client.step(now, self.weather, &self.dice);
            if wire.is_left {
                wire.to_client.arrived.clear();
                if let Some(writer) = wire.writer.take() {
                    writer.wake();
                }
            }
        }
        // Both ends have let go of it.
        self.links.retain(|_, wire| {
            let wire = wire.lock();
            !(wire.to_broker.has_ended && wire.to_client.has_ended && wire.to_client.arrived.is_empty())
        });
    }

    /// Whether something is on its way, or about to be.
    pub fn is_busy(&self) -> bool {
        self.links.values().any(|wire| {
            let wire = wire.lock();
            !wire.is_silent && wire.to_broker.bytes() + wire.to_client.bytes() > 0
        })
    }
}

/// What the broker reads and writes. Dropped, the connection is closed.
pub struct BrokerEnd {
    wire: Arc<Mutex<Wire>>,
}

impl Drop for BrokerEnd {
    fn drop(&mut self) {
        self.wire.lock().to_client.is_ended = true;
    }
}

impl AsyncRead for BrokerEnd {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut wire = self.wire.lock();
        if wire.is_cut {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if wire.to_broker.arrived.is_empty() && !wire.to_broker.has_ended {
            wire.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let count = out.remaining().min(wire.to_broker.arrived.len());
        for byte in wire.to_broker.arrived.drain(..count) {
            out.put_slice(&[byte]);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for BrokerEnd {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut wire = self.wire.lock();
        if wire.is_cut {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = wire.window_bytes.saturating_sub(wire.to_client.bytes());
        if room == 0 {
            wire.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let count = room.min(bytes.len());
        wire.to_client.written.push_back(bytes[..count].to_vec());
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.wire.lock().to_client.is_ended = true;
        Poll::Ready(Ok(()))
    }
}
