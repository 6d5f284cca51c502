//! How following goes, for those that ask while it does.

use std::sync::Arc;
use std::time::Duration;

use env::{Clock, TimeMs};
use parking_lot::Mutex;
use protocol::LogOffset;
use protocol::body::HaClientRuntimeInfo;
use tokio::sync::watch;

use crate::lag::Rate;

/// How a slave gets on with its master.
#[derive(Debug, Default)]
pub struct FollowStatus {
    /// Guards itself only; taken for a read of the socket, a report and a look.
    now: Mutex<Now>,
    /// The master is there: see [`FollowStatus::is_connected`].
    connected: watch::Sender<bool>,
}

#[derive(Clone, Debug, Default)]
struct Now {
    master: Option<Arc<str>>,
    /// The master's log continues the one here, as far as the present connection is concerned.
    agrees: bool,
    /// The log comes on the stream of Gantry.
    is_own: bool,
    heard_at: Option<TimeMs>,
    reported_at: Option<TimeMs>,
    rate: Rate,
    connections: u64,
    /// Why the last connection ended, or the last attempt failed.
    failure: Option<String>,
    /// Why the log takes nothing at this moment.
    blocked: Option<String>,
}

impl FollowStatus {
    pub(super) fn trying(&self, master: &Arc<str>) {
        self.now.lock().master = Some(Arc::clone(master));
    }

    /// The master's log continues the one here, and gets a report, on the stream of Gantry or on the plain one.
    pub(super) fn begun(&self, is_own: bool) {
        let mut now = self.now.lock();
        (now.agrees, now.is_own) = (true, is_own);
        now.connections += 1;
    }

    /// Whether the master is there.
    pub(super) fn connected(&self, is_connected: bool) {
        self.connected.send_if_modified(|known| std::mem::replace(known, is_connected) != is_connected);
    }

    pub(super) fn ended(&self, failure: Option<String>) {
        {
            let mut now = self.now.lock();
            (now.agrees, now.failure, now.blocked) = (false, failure, None);
        }
        self.connected(false);
    }

    pub(super) fn heard(&self, at: TimeMs, now: Duration, bytes: u64) {
        let mut state = self.now.lock();
        state.heard_at = Some(at);
        state.rate.add(now, bytes);
    }

    pub(super) fn reported(&self, at: TimeMs) {
        self.now.lock().reported_at = Some(at);
    }

    pub(super) fn blocked(&self, why: Option<String>) {
        self.now.lock().blocked = why;
    }

    /// Whether the log comes from the master at this moment: there is a connection, and the last that was heard of the master is younger than two
    /// and a half heartbeats.
    pub fn is_connected(&self) -> bool {
        *self.connected.borrow()
    }

    /// Shows the same, now and whenever it changes.
    pub fn connection(&self) -> watch::Receiver<bool> {
        self.connected.subscribe()
    }

    /// Whether there is a connection to a master whose log continues the one here. It may stand still.
    pub fn agrees(&self) -> bool {
        self.now.lock().agrees
    }

    /// Whether the last connection was on the stream of Gantry.
    pub fn is_own(&self) -> bool {
        self.now.lock().is_own
    }

    /// Connections since the start.
    pub fn connections(&self) -> u64 {
        self.now.lock().connections
    }

    /// Why the last connection ended, or the last attempt failed.
    pub fn failure(&self) -> Option<String> {
        self.now.lock().failure.clone()
    }

    /// Why the log takes nothing at this moment, though the master sends.
    pub fn why_blocked(&self) -> Option<String> {
        self.now.lock().blocked.clone()
    }

    /// The slave's part of the answer to 907, with a log that ends at `end`. The plain stream does not say how far the master has flushed.
    pub fn client_info(&self, clock: &Clock, end: LogOffset) -> HaClientRuntimeInfo {
        let now = self.now.lock().clone();
        let ms = |time: Option<TimeMs>| time.map_or(0, |time| time.0);
        HaClientRuntimeInfo {
            activated: self.is_connected(),
            last_read_timestamp: ms(now.heard_at),
            last_write_timestamp: ms(now.reported_at),
            master_addr: now.master.map(|master| master.to_string()),
            master_flush_offset: 0,
            max_offset: i64::try_from(end.0).unwrap_or(i64::MAX),
            transferred_byte_in_second: i64::try_from(now.rate.per_second(clock.elapsed())).unwrap_or(i64::MAX),
            failure: now.failure.filter(|_| !self.is_connected()),
        }
    }
}
