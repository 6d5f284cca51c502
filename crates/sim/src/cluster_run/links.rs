//! The links between brokers: connections whose bytes take their time, come in pieces, and stop or are lost in the middle of whatever they are.
//!
//! A way from one broker to another may be cut, which is told to nobody: what is sent waits until it is open again, as with TCP. A connection may
//! break: a part of what is under way still comes, and each end learns of it or does not.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use env::Random;

/// A connection, by its number.
pub(super) type Link = u64;

/// Who writes or reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Slave,
    Master,
}

/// How the links of a run are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weather {
    /// The longest way of a piece, in ms.
    pub latency_ms_max: u32,
    /// Bytes that may be under way before a writer has to wait.
    pub window_bytes: usize,
}

/// One direction of a connection.
#[derive(Default)]
struct Way {
    /// Pieces, and when each of them comes.
    pieces: VecDeque<(u64, Vec<u8>)>,
    arrived: Vec<u8>,
    /// When the reader learns that nothing more comes.
    ends_at: Option<u64>,
    has_ended: bool,
    /// Nothing comes any more that is written now. What is, waits for ever.
    is_broken: bool,
    /// And nobody says so.
    is_dead: bool,
}

struct Connection {
    slave: usize,
    master: usize,
    /// When it is there.
    ready_at: u64,
    to_master: Way,
    to_slave: Way,
    /// Neither end has let go of it: slave, master.
    is_held: [bool; 2],
    is_accepted: bool,
}

/// See the module.
pub(super) struct Links {
    weather: Weather,
    dice: Random,
    connections: BTreeMap<Link, Connection>,
    cut: BTreeSet<(usize, usize)>,
    last: Link,
}

impl Way {
    fn bytes(&self) -> usize {
        self.arrived.len() + self.pieces.iter().map(|(_, piece)| piece.len()).sum::<usize>()
    }

    fn step(&mut self, now: u64) {
        if self.is_dead {
            return;
        }
        while let Some((_, piece)) = self.pieces.pop_front_if(|(due, _)| *due <= now) {
            self.arrived.extend(piece);
        }
        let is_empty = self.pieces.is_empty() || self.is_broken;
        self.has_ended |= is_empty && self.ends_at.is_some_and(|at| at <= now);
    }

    /// Breaks, in the middle of a piece if there is one: some of it comes yet.
    fn break_off(&mut self, now: u64, is_told: bool, dice: &Random) {
        if self.is_broken {
            return;
        }
        if let Some((_, mut piece)) = self.pieces.pop_front() {
            piece.truncate(dice.below(piece.len() as u32 + 1) as usize);
            self.arrived.extend(piece);
        }
        self.pieces.clear();
        self.is_broken = true;
        if is_told {
            self.ends_at = Some(now);
        } else {
            self.is_dead = true;
        }
    }
}

impl Connection {
    /// The way that an end writes to, and between whom it is.
    fn written_by(&mut self, end: End) -> (&mut Way, (usize, usize)) {
        match end {
            End::Slave => (&mut self.to_master, (self.slave, self.master)),
            End::Master => (&mut self.to_slave, (self.master, self.slave)),
        }
    }

    /// The way that an end reads.
    fn read_by(&mut self, end: End) -> &mut Way {
        match end {
            End::Slave => &mut self.to_slave,
            End::Master => &mut self.to_master,
        }
    }

    fn let_go(&mut self, end: End) {
        self.is_held[end as usize] = false;
    }
}

impl Links {
    /// Without connections; all ways are open.
    pub fn new(weather: Weather, dice: Random) -> Links {
        Links { weather, dice, connections: BTreeMap::new(), cut: BTreeSet::new(), last: 0 }
    }

    /// Cuts a way, or opens it.
    pub fn cut(&mut self, from: usize, to: usize, is_cut: bool) {
        if is_cut {
            self.cut.insert((from, to));
        } else {
            self.cut.remove(&(from, to));
        }
    }

    /// Opens all ways.
    pub fn heal(&mut self) {
        self.cut.clear();
    }

    /// Whether a way is open.
    pub fn is_open(&self, from: usize, to: usize) -> bool {
        !self.cut.contains(&(from, to))
    }

    /// How long something takes.
    pub fn latency(&self) -> u64 {
        u64::from(self.dice.below(self.weather.latency_ms_max + 1))
    }

    /// A slave connects; none if a way is cut.
    pub fn connect(&mut self, slave: usize, master: usize, now: u64) -> Option<Link> {
        if !self.is_open(slave, master) || !self.is_open(master, slave) {
            return None;
        }
        self.last += 1;
        let (to_master, to_slave) = (Way::default(), Way::default());
        let ready_at = now + self.latency();
        let connection =
            Connection { slave, master, ready_at, to_master, to_slave, is_held: [true; 2], is_accepted: false };
        self.connections.insert(self.last, connection);
        Some(self.last)
    }

    /// A connection that a broker has to accept, and whose it is.
    pub fn accept(&mut self, master: usize, now: u64) -> Option<(Link, usize)> {
        let is_new = |of: &&mut Connection| !of.is_accepted && of.master == master && of.ready_at <= now;
        let (link, new) = self.connections.iter_mut().map(|(link, of)| (*link, of)).find(|(_, of)| is_new(of))?;
        new.is_accepted = true;
        Some((link, new.slave))
    }

    /// Whether the slave's end is connected.
    pub fn is_ready(&self, link: Link, now: u64) -> bool {
        self.connections.get(&link).is_some_and(|connection| connection.ready_at <= now)
    }

    /// Sends what there is room for, and says how much that is.
    pub fn send(&mut self, link: Link, end: End, bytes: &[u8], now: u64) -> usize {
        let Links { connections, dice, weather, .. } = self;
        let Some(connection) = connections.get_mut(&link) else { return bytes.len() };
        let (way, _) = connection.written_by(end);
        let count = bytes.len().min(weather.window_bytes.saturating_sub(way.bytes()));
        let mut last = if way.is_broken { u64::MAX } else { way.pieces.back().map_or(now, |(due, _)| *due) };
        let mut rest = &bytes[..count];
        // Now and then in pieces that come apart.
        while !rest.is_empty() {
            let bytes = if dice.below(4) == 0 { 1 + dice.below(rest.len() as u32) as usize } else { rest.len() };
            let (piece, left) = rest.split_at(bytes);
            last = last.max(now + u64::from(dice.below(weather.latency_ms_max + 1)));
            way.pieces.push_back((last, piece.to_vec()));
            rest = left;
        }
        count
    }

    /// What has come to an end, and whether nothing more will.
    pub fn receive(&mut self, link: Link, end: End) -> (Vec<u8>, bool) {
        let Some(connection) = self.connections.get_mut(&link) else { return (Vec::new(), true) };
        let way = connection.read_by(end);
        (std::mem::take(&mut way.arrived), way.has_ended)
    }

    /// An end closes it in order: what it has sent still comes.
    pub fn close(&mut self, link: Link, end: End, now: u64) {
        let Some(connection) = self.connections.get_mut(&link) else { return };
        let (way, _) = connection.written_by(end);
        let last = way.pieces.back().map_or(now, |(due, _)| *due);
        way.ends_at.get_or_insert(last);
        connection.let_go(end);
    }

    /// Breaks a connection; slave and master learn of it or not.
    pub fn break_off(&mut self, link: Link, now: u64, told: [bool; 2]) {
        let Links { connections, dice, .. } = self;
        let Some(connection) = connections.get_mut(&link) else { return };
        connection.to_slave.break_off(now, told[0], dice);
        connection.to_master.break_off(now, told[1], dice);
    }

    /// A broker is gone; others learn of it or not.
    pub fn lose(&mut self, broker: usize, is_told: bool, now: u64) {
        let Links { connections, dice, .. } = self;
        for connection in connections.values_mut() {
            for (end, of) in [(End::Slave, connection.slave), (End::Master, connection.master)] {
                if of == broker && connection.is_held[end as usize] {
                    connection.written_by(end).0.break_off(now, is_told, dice);
                    connection.let_go(end);
                }
            }
        }
    }

    /// One of the connections that both ends hold.
    pub fn some(&self) -> Option<Link> {
        let held: Vec<Link> =
            self.connections.iter().filter(|(_, of)| of.is_held == [true; 2]).map(|(link, _)| *link).collect();
        (!held.is_empty()).then(|| held[self.dice.below(held.len() as u32) as usize])
    }

    /// Lets come what is due.
    pub fn step(&mut self, now: u64) {
        let Links { connections, cut, .. } = self;
        for connection in connections.values_mut() {
            for end in [End::Slave, End::Master] {
                let (way, between) = connection.written_by(end);
                if !cut.contains(&between) {
                    way.step(now);
                }
            }
        }
        connections.retain(|_, connection| connection.is_held != [false; 2]);
    }
}
