//! How far slaves have come: figures for `haStatus` (907), and the place that enough of them have.
//!
//! [`Slaves`] has a row for each slave that has reported, written by its driver. On the stream of Gantry a slave says which broker it is, and a broker is
//! one copy: that of its newest connection. A plain connection names nobody, so an address is one copy however many of these it has, and
//! none beside a broker that has said who it is there: two connections of one slave acknowledge nothing twice.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use protocol::LogOffset;
use protocol::body::{HaConnectionRuntimeInfo, HaRuntimeInfo};

use crate::feed::{CLOSED, Closed, Refused};

/// Slaves that left whose places are remembered.
const LEFT_MAX: usize = 64;
/// Addresses of which it is remembered that their slave was ahead.
const AHEAD_MAX: usize = 64;
/// For so long after it tried last: a slave that is turned away tries every few seconds.
const AHEAD_FOR: Duration = Duration::from_secs(600);
/// Each second gives one more line about connections.
const LINE_EVERY: Duration = Duration::from_secs(1);
/// Lines about slaves that may come at once: as many as a set has slaves, as a rule.
const SLAVE_LINES_MAX: u32 = 16;

/// Bytes a second, of the last whole second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rate {
    /// The second that is counted.
    second: u64,
    bytes: u64,
    last: u64,
}

impl Rate {
    /// Counts `bytes` that passed now.
    pub fn add(&mut self, now: Duration, bytes: u64) {
        self.turn(now);
        self.bytes += bytes;
    }

    /// How many there were.
    pub fn per_second(mut self, now: Duration) -> u64 {
        self.turn(now);
        self.last
    }

    fn turn(&mut self, now: Duration) {
        let second = now.as_secs();
        if second != self.second {
            self.last = if second == self.second + 1 { self.bytes } else { 0 };
            (self.second, self.bytes) = (second, 0);
        }
    }
}

/// How long a follower has been behind, in constant space: it has what there was at `caught_up_at`.
#[derive(Clone, Copy, Debug)]
pub struct Lag {
    /// An end of the log, seen at `marked_at`.
    mark: u64,
    marked_at: Duration,
    caught_up_at: Duration,
}

impl Lag {
    /// Of a follower that begins now, with a log that ends at `end`.
    pub fn new(now: Duration, end: LogOffset) -> Lag {
        Lag { mark: end.0, marked_at: now, caught_up_at: now }
    }

    /// The follower has come to `has`, of a log that ends at `end`.
    pub fn came(&mut self, now: Duration, has: LogOffset, end: LogOffset) {
        if has >= end {
            *self = Lag::new(now, end);
        } else if has.0 >= self.mark {
            *self = Lag { mark: end.0, marked_at: now, caught_up_at: self.marked_at };
        }
    }

    /// The log of a follower at `has` has grown to `end` a moment ago. One that had all of it before was not behind until now.
    pub fn grew(&mut self, now: Duration, has: LogOffset, end: LogOffset) {
        if has.0 >= self.mark {
            *self = Lag::new(now, end);
        }
    }

    /// For how long the log has had bytes that the follower, which is at `has`, does not have.
    pub fn behind(&self, now: Duration, has: LogOffset, end: LogOffset) -> Duration {
        if has >= end { Duration::ZERO } else { now.saturating_sub(self.caught_up_at) }
    }
}

/// Who a slave is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Where it connects from.
    pub address: SocketAddr,
    /// Its `brokerId`, on the stream of Gantry.
    pub broker_id: Option<i64>,
}

/// On the plain stream, which does not say more.
impl From<SocketAddr> for Peer {
    fn from(address: SocketAddr) -> Peer {
        Peer { address, broker_id: None }
    }
}

/// What is one copy, whatever connections it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Copier {
    Broker(i64),
    Address(IpAddr),
}

impl Peer {
    fn copier(&self) -> Copier {
        self.broker_id.map_or(Copier::Address(self.address.ip()), Copier::Broker)
    }
}

/// A slave, as its master sees it.
#[derive(Clone, Copy, Debug)]
pub struct Slave {
    /// Who it is.
    pub peer: Peer,
    /// How many slaves began before it.
    turn: u64,
    /// Where the transfer began.
    pub began: LogOffset,
    /// Where the next frame begins.
    pub next: LogOffset,
    /// It has what lies below.
    pub acknowledged: LogOffset,
    /// It has it on its device. On the plain stream nothing is said of that; what it has counts.
    pub flushed: LogOffset,
    /// Bytes of the log that go to it.
    pub rate: Rate,
    /// How long it has been behind.
    pub lag: Lag,
}

impl Slave {
    /// Where the bytes begin that it has yet to get.
    fn needs(&self) -> LogOffset {
        self.acknowledged.max(self.began)
    }
}

/// A slave that left.
#[derive(Clone, Copy, Debug)]
struct Left {
    /// None: it left before the start, and was remembered.
    copier: Option<Copier>,
    needs: LogOffset,
    at: Duration,
}

/// A slave that was turned away.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    address: IpAddr,
    refused: Refused,
    /// When it tried last.
    at: Duration,
}

/// What is called when slaves have changed.
type OnChange = Box<dyn Fn(&Slaves) + Send + Sync>;

/// The slaves of a master, and why connections ended.
pub struct Slaves {
    /// Guards the rows; taken for an acknowledgement, a frame and a look, also inside `left`. Nothing is taken inside.
    rows: Mutex<HashMap<u64, Slave>>,
    /// Slaves that left, the newest last; a broker once, an address also where it needed most. Held while a slave comes or goes.
    left: Mutex<VecDeque<Left>>,
    /// [`Slaves::given`]. Release before the bytes go out, Acquire where a report of them is judged.
    given: AtomicU64,
    /// [`Slaves::first`]. As `given`.
    first: AtomicU64,
    /// Slaves on the plain stream that were turned away as ahead, the newest last; an address once. Guards itself only.
    ahead: Mutex<VecDeque<Ahead>>,
    /// Relaxed: numbers have to differ, and to grow.
    turns: AtomicU64,
    /// Bytes of the log that went out. Relaxed: it stands alone.
    sent: AtomicU64,
    /// By [`Closed::kind`]. Relaxed: they stand alone.
    closed: [AtomicU64; CLOSED.len()],
    /// By [`Line`]. Guards itself only.
    lines: Mutex<[Lines; 3]>,
    on_change: OnceLock<OnChange>,
}

/// Of an empty log.
impl Default for Slaves {
    fn default() -> Slaves {
        Slaves::of(LogOffset(0))
    }
}

/// Something that is logged of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// One that has not reported has ended: anybody's.
    Stranger,
    /// A slave copies the log.
    Begun,
    /// It is gone.
    Gone,
}

/// Lines of one kind: one a second, and some at once after a while without, with how many were left out.
#[derive(Debug)]
struct Lines {
    max: u32,
    left: u32,
    /// When `left` was counted.
    at: Duration,
    untold: u64,
}

impl Lines {
    fn new(max: u32) -> Lines {
        Lines { max, left: max, at: Duration::ZERO, untold: 0 }
    }

    fn take(&mut self, now: Duration) -> Option<u64> {
        let seconds = now.saturating_sub(self.at).as_secs() / LINE_EVERY.as_secs();
        if seconds > 0 {
            self.left = self.left.saturating_add(u32::try_from(seconds).unwrap_or(u32::MAX)).min(self.max);
            self.at = now;
        }
        if self.left == 0 {
            self.untold += 1;
            return None;
        }
        if self.left == self.max {
            self.at = now;
        }
        self.left -= 1;
        Some(std::mem::take(&mut self.untold))
    }
}

impl Slaves {
    /// Of a log that ended here when the store was opened.
    pub fn of(opened: LogOffset) -> Slaves {
        Slaves {
            rows: Mutex::default(),
            left: Mutex::default(),
            given: AtomicU64::new(opened.0),
            first: AtomicU64::new(0),
            ahead: Mutex::default(),
            turns: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            closed: std::array::from_fn(|_| AtomicU64::new(0)),
            lines: Mutex::new([Lines::new(1), Lines::new(SLAVE_LINES_MAX), Lines::new(SLAVE_LINES_MAX)]),
            on_change: OnceLock::new(),
        }
    }
}

impl fmt::Debug for Slaves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slaves").field("rows", &self.rows).finish_non_exhaustive()
    }
}

impl Slaves {
    /// Calls this from now on when a slave has entered, has acknowledged more, or is gone: on the task of that slave, without a lock held,
    /// so it must not wait. Two calls may overlap. Once: a second callback is not taken, and the answer says so.
    pub fn on_change(&self, callback: impl Fn(&Slaves) + Send + Sync + 'static) -> bool {
        self.on_change.set(Box::new(callback)).is_ok()
    }

    fn changed(&self) {
        if let Some(callback) = self.on_change.get() {
            callback(self);
        }
    }

    /// The connection of this number has brought its first report: this slave `has` so much, the second on its device, and is sent the log from `at`
    /// on. The log ends at `end`.
    pub fn begun(&self, number: u64, peer: Peer, now: Duration, at: LogOffset, has: [LogOffset; 2], end: LogOffset) {
        let (rate, lag) = (Rate::default(), Lag::new(now, end));
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        let [acknowledged, flushed] = has;
        let slave = Slave { peer, turn, began: at, next: at, acknowledged, flushed, rate, lag };
        {
            // Who asks what is needed finds it here or there.
            let mut left = self.left.lock();
            if peer.broker_id.is_some() {
                // It is back, and its row says what it needs.
                left.retain(|left| left.copier != Some(peer.copier()));
            }
            self.rows.lock().insert(number, slave);
        }
        self.changed();
    }

    /// The slave of this number has what lies below `to`, of a log that ends at `end`.
    pub fn acknowledge(&self, number: u64, now: Duration, to: LogOffset, end: LogOffset) {
        let mut plain = None;
        self.update(number, |slave| {
            slave.acknowledged = to;
            slave.lag.came(now, to, end);
            plain = slave.peer.broker_id.is_none().then_some(slave.peer.address.ip());
        });
        if let Some(address) = plain {
            // It has been given by now what it had from elsewhere.
            self.ahead.lock().retain(|ahead| ahead.address != address || ahead.refused.report > to.0);
        }
        self.changed();
    }

    /// The slave of this number has on its device what lies below `to`.
    pub fn flushed(&self, number: u64, to: LogOffset) {
        self.update(number, |slave| slave.flushed = to);
        self.changed();
    }

    /// A frame with so many bytes of the log goes to the slave of this number; the one after it begins at `next`.
    pub fn sending(&self, number: u64, now: Duration, next: LogOffset, bytes: usize, end: LogOffset) {
        self.given.fetch_max(next.0, Ordering::Release);
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        self.update(number, |slave| {
            slave.next = next;
            slave.rate.add(now, bytes as u64);
            slave.lag.grew(now, slave.acknowledged, end);
        });
    }

    fn update(&self, number: u64, change: impl FnOnce(&mut Slave)) {
        if let Some(slave) = self.rows.lock().get_mut(&number) {
            change(slave);
        }
    }

    /// The slave is gone.
    pub fn leave(&self, number: u64, now: Duration) {
        // As in `begun`.
        let mut left = self.left.lock();
        let Some(slave) = self.rows.lock().remove(&number) else { return };
        let copier = Some(slave.peer.copier());
        // One that has connected again meanwhile has not left.
        let is_here = |slaves: &HashMap<u64, Slave>| {
            slave.peer.broker_id.is_some() && slaves.values().any(|other| Some(other.peer.copier()) == copier)
        };
        if !is_here(&self.rows.lock()) {
            // On the plain stream it may be another slave's that needs more.
            let is_plain = slave.peer.broker_id.is_none();
            let lowest = left.iter().filter(|left| left.copier == copier).map(|left| left.needs).min();
            let stays = |left: &Left| is_plain && Some(left.needs) == lowest && left.needs < slave.needs();
            left.retain(|left| left.copier != copier || stays(left));
            if left.len() >= LEFT_MAX {
                left.pop_front();
            }
            left.push_back(Left { copier, needs: slave.needs(), at: now });
        }
        drop(left);
        self.changed();
    }

    /// The log's first record, which ends here, is about to be told to a slave that asks for it. That one may be connected already.
    pub fn note_first(&self, end: LogOffset) {
        self.first.fetch_max(end.0, Ordering::Release);
    }

    /// Where the first record ends, if it was told to a slave; 0 otherwise.
    pub fn first(&self) -> LogOffset {
        LogOffset(self.first.load(Ordering::Acquire))
    }

    /// What a slave that connects now can have ends here: where the log ended when the store was opened, or what was sent to a slave since.
    pub fn given(&self) -> LogOffset {
        LogOffset(self.given.load(Ordering::Acquire))
    }

    /// A slave of this address was turned away as ahead; it will try again.
    pub(crate) fn note_ahead(&self, address: IpAddr, refused: Refused, now: Duration) {
        let mut ahead = self.ahead.lock();
        ahead.retain(|known| now.saturating_sub(known.at) < AHEAD_FOR);
        match ahead.iter_mut().find(|known| known.address == address) {
            // What it could not have at first counts.
            Some(known) if known.refused.report == refused.report => known.at = now,
            Some(known) => (known.refused, known.at) = (refused, now),
            None => {
                if ahead.len() == AHEAD_MAX {
                    ahead.pop_front();
                }
                ahead.push_back(Ahead { address, refused, at: now });
            }
        }
    }

    /// What a slave of this address reported last while nobody could have it.
    pub(crate) fn ahead_of(&self, address: IpAddr, now: Duration) -> Option<Refused> {
        let ahead = self.ahead.lock();
        let known = ahead.iter().find(|known| known.address == address)?;
        (now.saturating_sub(known.at) < AHEAD_FOR).then_some(known.refused)
    }

    /// Bytes of the log that went to slaves since the start.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Of each slave that is connected, or left no longer than `kept_for` ago, where the bytes begin that it has yet to get.
    pub fn needs(&self, now: Duration, kept_for: Duration) -> Vec<LogOffset> {
        let mut left = self.left.lock();
        let mut needs: Vec<LogOffset> = self.rows.lock().values().map(Slave::needs).collect();
        left.retain(|left| now.saturating_sub(left.at) < kept_for);
        needs.extend(left.iter().map(|left| left.needs));
        needs
    }

    /// Slaves of an earlier run, which have yet to come back, need the log from these places. As if they had left now.
    pub fn remember(&self, needs: &[LogOffset], now: Duration) {
        let mut left = self.left.lock();
        left.extend(needs.iter().take(LEFT_MAX).map(|needs| Left { copier: None, needs: *needs, at: now }));
    }

    /// Counts why a connection ended.
    pub(crate) fn note_closed(&self, why: &Closed) {
        self.closed[why.kind()].fetch_add(1, Ordering::Relaxed);
    }

    /// Whether this may be logged now, and how many before were not.
    pub(crate) fn may_tell(&self, now: Duration, line: Line) -> Option<u64> {
        self.lines.lock()[line as usize].take(now)
    }

    /// How many connections ended since the start, by reason.
    pub fn closed(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        CLOSED.into_iter().zip(self.closed.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// The slaves, by address.
    pub fn list(&self) -> Vec<Slave> {
        let mut slaves: Vec<Slave> = self.rows.lock().values().copied().collect();
        slaves.sort_unstable_by_key(|slave| slave.peer.address);
        slaves
    }

    /// Whether this is so of one of them. `is_so` runs under the lock, and takes no other.
    pub fn any(&self, is_so: impl Fn(&Slave) -> bool) -> bool {
        self.rows.lock().values().any(is_so)
    }

    /// The log offset below which at least `slaves` slaves have the log. None if there are fewer. For 0 slaves that is everything.
    pub fn position(&self, slaves: usize) -> Option<LogOffset> {
        let Some(last) = slaves.checked_sub(1) else { return Some(LogOffset(u64::MAX)) };
        self.positions().get(last).copied()
    }

    /// How far each copy has come, the furthest one first. See the module for what is one.
    pub fn positions(&self) -> Vec<LogOffset> {
        self.positions_by(|slave| slave.acknowledged)
    }

    /// The same of what copies have on their devices.
    pub fn positions_on_device(&self) -> Vec<LogOffset> {
        self.positions_by(|slave| if slave.peer.broker_id.is_some() { slave.flushed } else { slave.acknowledged })
    }

    fn positions_by(&self, position: impl Fn(&Slave) -> LogOffset) -> Vec<LogOffset> {
        // With the turn of the connection that counts; plain ones count together.
        let mut copies: BTreeMap<Copier, (u64, LogOffset)> = BTreeMap::new();
        let rows = self.rows.lock();
        let named = |address: IpAddr| {
            rows.values().any(|slave| slave.peer.broker_id.is_some() && slave.peer.address.ip() == address)
        };
        for slave in rows.values() {
            let this = match slave.peer.copier() {
                Copier::Broker(_) => (slave.turn, position(slave)),
                Copier::Address(address) if named(address) => continue,
                Copier::Address(_) => (0, position(slave)),
            };
            let counts = copies.entry(slave.peer.copier()).or_insert(this);
            *counts = this.max(*counts);
        }
        drop(rows);
        let mut positions: Vec<LogOffset> = copies.into_values().map(|(_, position)| position).collect();
        positions.sort_unstable_by(|one, other| other.cmp(one));
        positions
    }

    /// The answer to 907 of a master whose log ends at `end`. A slave is in sync if it is less than `gap_max` bytes behind
    /// (`haMaxGapNotInSync`).
    pub fn status(&self, now: Duration, end: LogOffset, gap_max: u64) -> HaRuntimeInfo {
        let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let rows = self.list().into_iter().map(|slave| {
            // It may be ahead of an end that was read before its acknowledgement.
            let diff = end.0.saturating_sub(slave.acknowledged.0);
            HaConnectionRuntimeInfo {
                addr: slave.peer.address.to_string(),
                broker_id: slave.peer.broker_id,
                slave_flush_offset: slave.peer.broker_id.map(|_| signed(slave.flushed.0)),
                diff: signed(diff),
                in_sync: diff < gap_max,
                slave_ack_offset: signed(slave.acknowledged.0),
                transfer_from_where: signed(slave.next.0),
                transferred_byte_in_second: signed(slave.rate.per_second(now)),
            }
        });
        let rows: Vec<HaConnectionRuntimeInfo> = rows.collect();
        HaRuntimeInfo {
            ha_client_runtime_info: None,
            in_sync_slave_nums: i32::try_from(rows.iter().filter(|row| row.in_sync).count()).unwrap_or(i32::MAX),
            ha_connection_info: rows,
            master: true,
            master_commit_log_max_offset: signed(end.0),
        }
    }
}

#[cfg(test)]
mod tests;
