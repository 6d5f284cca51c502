//! How close this broker is to its limits: what request 28 shows beside RocketMQ's own figures.
//!
//! A limit of the whole broker is shown with what there is now, one of each connection or request with the most that there ever was.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use net::{Budget, ConnectionSlots, Held, ListenerTag, PlaceFigures};

use crate::beside;
use crate::broker::Broker;
use crate::refusal::{Refusal, SOON};

/// Counts and high-water marks, which are shown; and since when there is no room, by which sends wait or are refused. Relaxed throughout: each stands
/// alone, and one that is seen late costs a send some milliseconds.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    /// Connections of the advertised port.
    connections: AtomicUsize,
    parked_peak: AtomicUsize,
    unflushed_peak: AtomicUsize,
    room_wait_ms_peak: AtomicU64,
    /// When a send has waited for room in vain last, in ms of the clock's elapsed time; 0: never.
    in_vain_ms: AtomicU64,
    /// Since when the log takes nothing, in ms of the same; 0: it does, as far as anybody has tried.
    full_since_ms: AtomicU64,
    parts_peak: AtomicUsize,
    budget: OnceLock<Arc<Budget>>,
    places: OnceLock<Arc<ConnectionSlots>>,
}

impl Limits {
    pub(crate) fn opened(&self, listener: ListenerTag) {
        if listener == ListenerTag::MAIN {
            self.connections.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn closed(&self, listener: ListenerTag) {
        if listener == ListenerTag::MAIN {
            self.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// One connection has so many parked pulls.
    pub(crate) fn parked(&self, count: usize) {
        self.parked_peak.fetch_max(count, Ordering::Relaxed);
    }

    /// One connection has so many bursts that wait for the device.
    pub(crate) fn unflushed(&self, count: usize) {
        self.unflushed_peak.fetch_max(count, Ordering::Relaxed);
    }

    /// One request has brought so many sends.
    pub(crate) fn together(&self, parts: usize) {
        self.parts_peak.fetch_max(parts, Ordering::Relaxed);
    }

    /// How long peers have not taken their replies, all connections together.
    pub(crate) fn unread(&self) -> Duration {
        self.budget.get().map_or(Duration::ZERO, |budget| budget.unread())
    }

    /// A send has waited so long for room in the log.
    pub(crate) fn waited_for_room(&self, wait: Duration) {
        self.room_wait_ms_peak.fetch_max(millis(wait), Ordering::Relaxed);
    }

    /// A send has waited for room as long as it may, and there was none.
    pub(crate) fn waited_in_vain(&self, now: Duration) {
        self.in_vain_ms.store(millis(now).max(1), Ordering::Relaxed);
    }

    /// For how long the log has taken nothing, which a send has just found.
    pub(crate) fn full_for(&self, now: Duration) -> Duration {
        let now = millis(now).max(1);
        let since = match self.full_since_ms.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => now,
            Err(since) => since,
        };
        Duration::from_millis(now.saturating_sub(since))
    }

    /// A send has found room.
    pub(crate) fn has_room(&self) {
        // Each send comes here: nearly all of them only read.
        if self.full_since_ms.load(Ordering::Relaxed) > 0 {
            self.full_since_ms.store(0, Ordering::Relaxed);
        }
    }

    /// Whether a send that finds no room need not wait: others did until a moment ago, in vain, and it would be behind those that still do.
    pub(crate) fn is_hopeless(&self, now: Duration) -> bool {
        let last = self.in_vain_ms.load(Ordering::Relaxed);
        last > 0 && millis(now) <= last.saturating_add(millis(SOON))
    }

    /// Takes `bytes` of what requests may hold together, for what waits longer than its connection's turn. Refused where there is no room.
    pub(crate) fn hold(&self, bytes: usize) -> Result<Option<Held>, Refusal> {
        // Without ports nobody has a budget.
        let Some(budget) = self.budget.get() else { return Ok(None) };
        budget.try_hold(bytes).map(Some).ok_or_else(|| {
            let (used, max) = (budget.used_bytes(), budget.max_bytes());
            let what =
                format_args!("[GANTRY]system busy, start flow control for a while: requests hold {used} bytes, the limit is {max} (requestBytesMax)");
            Refusal::busy(what, SOON)
        })
    }

    pub(crate) fn show(&self, budget: Arc<Budget>, places: Arc<ConnectionSlots>) {
        // The first stays: a broker has one set of ports.
        let _ = self.budget.set(budget);
        let _ = self.places.set(places);
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Figures and limits, by the names that request 28 gives them.
pub(crate) fn figures(broker: &Broker) -> Vec<(&'static str, String)> {
    let settings = broker.settings.load();
    let limits = &broker.limits;
    let peak = |peak: &AtomicUsize| peak.load(Ordering::Relaxed).to_string();
    let mut figures = vec![
        ("connections", peak(&limits.connections)),
        ("connectionsMax", settings.connections_max.to_string()),
        ("parkedPulls", broker.hold.parked().to_string()),
        ("parkedPullsMax", settings.parked_pulls_max.to_string()),
        ("parkedPullsPerConnectionPeak", peak(&limits.parked_peak)),
        ("parkedPullsPerConnectionMax", settings.parked_pulls_per_connection_max.to_string()),
        ("popLeases", broker.pops.leases().to_string()),
        ("popLeasesMax", settings.pop_leases_max.to_string()),
        ("waitingPops", broker.hold.pops.waiting().to_string()),
        ("longRequestsWaiting", broker.beside.waiting().to_string()),
        ("longRequestsWaitingMax", beside::WAITING_MAX.to_string()),
        ("maxPopPollingSize", settings.max_pop_polling_size.to_string()),
        ("openHalfMessagesMax", settings.open_half_messages_max.to_string()),
        ("repeatedSends", broker.repeats.count().to_string()),
        ("repeatedSendsMax", settings.repeated_sends_max.to_string()),
        ("roomWaitMillisPeak", limits.room_wait_ms_peak.load(Ordering::Relaxed).to_string()),
        ("roomTimeoutMillis", settings.room_timeout_millis.to_string()),
        ("throughputWindowMillis", settings.throughput_window_millis.to_string()),
        ("unflushedBurstsPerConnectionPeak", peak(&limits.unflushed_peak)),
        ("sendTogetherPartsPeak", peak(&limits.parts_peak)),
        ("sendTogetherPartsMax", settings.send_together_parts_max.to_string()),
        ("unflushedBurstsPerConnectionMax", settings.unflushed_bursts_per_connection_max.to_string()),
    ];
    figures.push(("commitLogBytes", broker.store.log_bytes().to_string()));
    figures.push(("commitLogBytesMax", broker.store_settings.load().commit_log_bytes_max.to_string()));
    if let (Some(pool), Some(free)) = (broker.store.options().pool, broker.store.free_buffers()) {
        figures.push(("writePoolBuffers", pool.buffers.saturating_sub(free).to_string()));
        figures.push(("writePoolBuffersMax", pool.buffers.to_string()));
    }
    if let Some(places) = limits.places.get() {
        let PlaceFigures { taken, new, given_up } = places.figures();
        figures.push(("connectionsOfAllPorts", taken.to_string()));
        figures.push(("connectionsOfAllPortsMax", places.max().to_string()));
        figures.push(("connectionsThatSaidNothing", new.to_string()));
        figures.push(("connectionsThatMadeWay", given_up.to_string()));
    }
    if let Some(budget) = limits.budget.get() {
        figures.push(("requestBytes", budget.used_bytes().to_string()));
        figures.push(("requestBytesMax", budget.max_bytes().to_string()));
        // Of these the answers, and from where on each connection gets no more than its own until its peer takes some.
        figures.push(("replyBytes", budget.reply_bytes().to_string()));
        figures.push(("replyBytesMax", budget.reply_bytes_max().to_string()));
    }
    figures
}
