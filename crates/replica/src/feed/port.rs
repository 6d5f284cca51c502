//! The port at which slaves connect (`haListenPort`): who may come, how many, and what becomes of them.
//!
//! A connection is new until its first report. New ones make way for each other by the rule of `net::ConnectionSlots`, so scanners and hosts that
//! are half gone cost nothing, and take no place from a slave that has reported. Where addresses that are no member's may connect as well, as they may
//! prove a secret, those of them that are new have half of the places: however many come, a member's connection lives until it has reported.

use std::collections::HashMap;
use std::fmt;
use std::future::{Future, pending, poll_fn};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use env::Clock;
use net::{ConnectionSlot, ConnectionSlots, Newcomer, NoPlace, Port};
use parking_lot::Mutex;
use protocol::LogOffset;
use store::Store;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use super::driver::{Driver, Ended, Told, take_leave};
use super::{Closed, Feed, FeedOptions, Refused};
use crate::lag::{Line, Peer, Slaves};
use crate::wire::own::Member;
use crate::wire::secret::nonce;

/// Connections that the kernel completes before we accept them.
const BACKLOG: i32 = 128;
/// After an accept that failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// See [`PortOptions::last_frames`].
const LAST_FRAMES: Duration = Duration::from_millis(1500);

/// Says whether an address may have the log, and whether its reports count.
#[derive(Clone)]
pub struct Allowed {
    may: Arc<dyn Fn(IpAddr) -> bool + Send + Sync>,
    /// Of those that may.
    is_member: Arc<dyn Fn(IpAddr) -> bool + Send + Sync>,
    changes: watch::Receiver<()>,
}

impl Allowed {
    /// As `may` says, which does not wait. What it says of an address does not change.
    pub fn new(may: impl Fn(IpAddr) -> bool + Send + Sync + 'static) -> Allowed {
        Allowed::changing(may, watch::channel(()).1)
    }

    /// The same, asked again of those that are connected with each change.
    pub fn changing(may: impl Fn(IpAddr) -> bool + Send + Sync + 'static, changes: watch::Receiver<()>) -> Allowed {
        Allowed { may: Arc::new(may), is_member: Arc::new(|_| true), changes }
    }

    /// Some of those that may connect are members, which does not take waiting to say; the others have half of the places until they have reported.
    #[must_use]
    pub fn with_members(self, is_member: impl Fn(IpAddr) -> bool + Send + Sync + 'static) -> Allowed {
        Allowed { is_member: Arc::new(is_member), ..self }
    }

    /// Ready when the address may no longer have the log, which it could at the first change that `changes` has not seen.
    async fn revoked(&self, address: IpAddr, mut changes: watch::Receiver<()>) {
        while changes.changed().await.is_ok() {
            if !(self.may)(address) {
                return;
            }
        }
        pending().await
    }
}

impl fmt::Debug for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Allowed")
    }
}

/// How a port treats those that connect.
#[derive(Clone, Debug)]
pub struct PortOptions {
    /// How slaves are fed, also those that are connected when it changes.
    pub feed: watch::Receiver<FeedOptions>,
    /// Connections at this port, of one address too.
    pub connections_max: usize,
    /// Shared by the ports of a process.
    pub places: Arc<ConnectionSlots>,
    /// Others are closed as they come.
    pub allowed: Allowed,
    /// As which broker of its set the master shows itself to slaves of Gantry; none: the port speaks Apache's plain stream only.
    pub member: Option<Arc<Member>>,
    /// For so long slaves get what was appended last when the port closes. A slave that hangs holds up the end no longer.
    pub last_frames: Duration,
}

impl PortOptions {
    /// With as many connections as a set needs, for those that are allowed.
    pub fn new(allowed: Allowed) -> PortOptions {
        let places = Arc::new(ConnectionSlots::new(usize::MAX));
        let feed = FeedOptions::default().fixed();
        PortOptions { feed, connections_max: 64, places, allowed, member: None, last_frames: LAST_FRAMES }
    }
}

/// A port at which slaves connect.
pub struct FeedPort {
    socket: TcpListener,
    local: SocketAddr,
    shared: Arc<Shared>,
}

/// What the connections share.
struct Shared {
    store: Arc<Store>,
    clock: Clock,
    options: PortOptions,
    slaves: Arc<Slaves>,
    /// Those of this port.
    places: Arc<ConnectionSlots>,
    /// Of these, for new connections of others than members.
    for_strangers: Arc<ConnectionSlots>,
    /// Relaxed: numbers have to differ.
    next_number: AtomicU64,
    /// By broker id the connection that counts, and how it is told that another one does. Guards itself only.
    brokers: Mutex<HashMap<i64, (u64, Arc<Notify>)>>,
}

impl FeedPort {
    /// Binds the port and listens, inside a runtime. `slaves` gets a row for each slave, and tells of it ([`Slaves::on_change`]).
    pub fn bind(
        address: SocketAddr,
        store: Arc<Store>,
        clock: Clock,
        options: PortOptions,
        slaves: Arc<Slaves>,
    ) -> io::Result<FeedPort> {
        FeedPort::on(Port::bind(address)?, store, clock, options, slaves)
    }

    /// The same at a port that is bound.
    pub fn on(
        port: Port,
        store: Arc<Store>,
        clock: Clock,
        options: PortOptions,
        slaves: Arc<Slaves>,
    ) -> io::Result<FeedPort> {
        let local = port.local_addr();
        let socket = port.listen(BACKLOG)?;
        let places = Arc::new(ConnectionSlots::new(options.connections_max));
        let for_strangers = Arc::new(ConnectionSlots::new((options.connections_max / 2).max(1)));
        let next_number = AtomicU64::new(0);
        let brokers = Mutex::default();
        let shared = Arc::new(Shared { store, clock, options, slaves, places, for_strangers, next_number, brokers });
        Ok(FeedPort { socket, local, shared })
    }

    /// The address that was bound.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Accepts until `shutdown` is done. Then each slave gets what is left of the log, in [`PortOptions::last_frames`] at most; all connections are closed.
    /// What is appended after `shutdown` may be missed.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) {
        let FeedPort { socket, shared, .. } = self;
        let (stopping, stop) = watch::channel(false);
        let mut tasks = JoinSet::new();
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                Some(ended) = tasks.join_next(), if !tasks.is_empty() => note_end(ended),
                accepted = socket.accept() => match accepted {
                    Ok((tcp, peer)) => shared.admit(tcp, peer, &stop, &mut tasks),
                    Err(error) => {
                        warn!(%error, "cannot accept a slave");
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        drop(socket);
        stopping.send_replace(true);
        while let Some(ended) = tasks.join_next().await {
            note_end(ended);
        }
    }
}

fn note_end(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        // A bug costs the connection that met it.
        tracing::error!(%error, "the connection of a slave ended by a bug");
    }
}

/// The places that a connection has.
struct Places {
    /// At the port, and in the process.
    kept: [ConnectionSlot; 2],
    /// Until the first report. Guards itself only.
    as_stranger: Mutex<Option<ConnectionSlot>>,
}

impl Places {
    /// From now on nobody takes them.
    fn has_spoken(&self) {
        self.kept.iter().for_each(ConnectionSlot::has_spoken);
        drop(self.as_stranger.lock().take());
    }
}

/// A connection that has come.
struct Came {
    tcp: TcpStream,
    peer: SocketAddr,
    newcomer: Arc<Newcomer>,
    /// What was given of the log by then.
    given: LogOffset,
}

impl Shared {
    fn admit(
        self: &Arc<Self>,
        tcp: TcpStream,
        peer: SocketAddr,
        stop: &watch::Receiver<bool>,
        tasks: &mut JoinSet<()>,
    ) {
        // One slave is one address, whichever way it is written.
        let address = peer.ip().to_canonical();
        let peer = SocketAddr::new(address, peer.port());
        // A change from here on is seen.
        let changes = self.options.allowed.changes.clone();
        if !(self.options.allowed.may)(address) {
            self.turned_away(peer, &Closed::NotAllowed);
            return;
        }
        let newcomer = Newcomer::new(address);
        match self.places_for(&newcomer, address) {
            Ok(places) => {
                let (shared, stop) = (Arc::clone(self), stop.clone());
                let came = Came { tcp, peer, newcomer, given: self.slaves.given() };
                tasks.spawn(async move {
                    let revoked = shared.options.allowed.revoked(address, changes);
                    shared.serve(came, &places, stop, revoked).await;
                });
            }
            Err(_) => self.turned_away(peer, &Closed::Full),
        }
    }

    fn places_for(&self, newcomer: &Arc<Newcomer>, address: IpAddr) -> Result<Places, NoPlace> {
        let is_stranger = !(self.options.allowed.is_member)(address);
        let as_stranger = is_stranger.then(|| self.for_strangers.take(newcomer)).transpose()?;
        let kept = [self.places.take(newcomer)?, self.options.places.take(newcomer)?];
        Ok(Places { kept, as_stranger: Mutex::new(as_stranger) })
    }

    fn turned_away(&self, peer: SocketAddr, why: &Closed) {
        self.slaves.note_closed(why);
        self.tell_end(peer, false, why);
    }

    async fn serve(
        self: &Arc<Self>,
        came: Came,
        places: &Places,
        stop: watch::Receiver<bool>,
        revoked: impl Future<Output = ()> + Send,
    ) {
        let Came { mut tcp, peer, newcomer, given } = came;
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let warm_from = self.store.written().get();
        let mut options = self.options.feed.clone();
        let feed = Feed::new(options.borrow_and_update().clone(), self.clock.elapsed());
        let feed = feed.after(self.slaves.ahead_of(peer.ip(), self.clock.elapsed()));
        let (row, replaced) = (Row { shared: self, number }, Arc::new(Notify::new()));
        let mut is_own = false;
        // None before the first report.
        let (acknowledged, has) = watch::channel(None);
        let mut told = |told: Told| {
            if let Told::Acknowledged { to } = told {
                acknowledged.send_replace(Some(to));
            }
            self.told(peer, number, places, &replaced, told);
        };
        let driver = Driver { store: &self.store, clock: &self.clock, slaves: &self.slaves, given, warm_from };
        let mut has_to_end = pin!(async {
            tokio::select! {
                () = self.had_all(stop, has) => Closed::Stopping,
                () = revoked => Closed::NotAllowed,
                // Told only while it is new.
                () = poll_fn(|cx| newcomer.poll_told(cx)) => Closed::MadeWay,
                () = replaced.notified() => Closed::Replaced,
            }
        });
        let Ended { closed, is_told, words } = match self.ready(&tcp, feed) {
            Ok(mut feed) => {
                let ended = driver.run(&mut tcp, &mut feed, options, has_to_end.as_mut(), &mut told).await;
                is_own = feed.is_own();
                ended
            }
            Err(error) => Ended { closed: Closed::Socket(error), is_told: false, words: None },
        };
        if let Closed::Ahead { report, given } = closed
            && !is_own
        {
            self.slaves.note_ahead(peer.ip(), Refused { report, given }, self.clock.elapsed());
        }
        // Who sees that a slave is gone sees why.
        self.slaves.note_closed(&closed);
        drop(row);
        let acknowledged = *acknowledged.borrow();
        let end = self.store.written().get();
        if let (Closed::Stopping, Some(LogOffset(at))) = (&closed, acknowledged)
            && at < end
        {
            warn!(%peer, at, end, "a slave does not have all of the log when the master stops");
        }
        self.tell_end(peer, acknowledged.is_some(), &closed);
        // It counts for nothing any more.
        if let Some(words) = words {
            tokio::select! {
                () = take_leave(&mut tcp, &words) => {}
                _ = has_to_end, if !is_told => {}
            }
        }
    }

    /// Lets the connection begin.
    fn ready(&self, tcp: &TcpStream, feed: Feed) -> io::Result<Feed> {
        tcp.set_nodelay(true)?;
        match &self.options.member {
            Some(member) => Ok(feed.greeting(Arc::clone(member), nonce()?)),
            None => Ok(feed),
        }
    }

    /// A connection of this broker has begun, and counts from now on. One that the broker had before ends.
    fn begin_broker(&self, broker_id: i64, number: u64, replaced: &Arc<Notify>) {
        let before = self.brokers.lock().insert(broker_id, (number, Arc::clone(replaced)));
        if let Some((_, before)) = before {
            before.notify_one();
        }
    }

    /// Ready when the port closes and the slave has all of the log, or has had the time to get it. One that has not reported gets nothing.
    async fn had_all(&self, mut stop: watch::Receiver<bool>, mut acknowledged: watch::Receiver<Option<LogOffset>>) {
        // An error: the port is gone.
        let _ = stop.wait_for(|is_stopping| *is_stopping).await;
        let has_all = |at: &Option<LogOffset>| at.is_none_or(|at| at.0 >= self.store.written().get());
        // Too late is as good as never.
        let _ = timeout(self.options.last_frames, acknowledged.wait_for(has_all)).await;
    }

    fn told(&self, peer: SocketAddr, number: u64, places: &Places, replaced: &Arc<Notify>, told: Told) {
        let now = self.clock.elapsed();
        let end = LogOffset(self.store.written().get());
        match told {
            Told::Begun { at, broker_id, has } => {
                places.has_spoken();
                self.slaves.begun(number, Peer { address: peer, broker_id }, now, at, has, end);
                if let Some(broker_id) = broker_id {
                    self.begin_broker(broker_id, number, replaced);
                }
                if let Some(untold) = self.slaves.may_tell(now, Line::Begun) {
                    info!(%peer, broker_id, %at, end = end.0, untold, "a slave copies the log");
                }
            }
            Told::Flushed { to } => self.slaves.flushed(number, to),
            Told::Acknowledged { to } => self.slaves.acknowledge(number, now, to, end),
            Told::Sending { next, bytes } => self.slaves.sending(number, now, next, bytes, end),
        }
    }

    fn tell_end(&self, peer: SocketAddr, has_begun: bool, why: &Closed) {
        let now = self.clock.elapsed();
        // Anybody can connect, and report: nobody floods the log.
        let line = if has_begun { Line::Gone } else { Line::Stranger };
        let Some(untold) = self.slaves.may_tell(now, line) else { return };
        if has_begun {
            if matches!(why, Closed::Stopping) {
                debug!(%peer, untold, "a slave is let go: {why}");
            } else {
                warn!(%peer, untold, "a slave is gone: {why}");
            }
            return;
        }
        if why.is_common() {
            debug!(%peer, untold, "a connection for the log ended before its first report: {why}");
        } else {
            warn!(%peer, untold, "a connection for the log was closed: {why}");
        }
    }
}

/// The slave's row; it goes when this is dropped, also by a panic.
struct Row<'a> {
    shared: &'a Shared,
    number: u64,
}

impl Drop for Row<'_> {
    fn drop(&mut self) {
        self.shared.brokers.lock().retain(|_, (number, _)| *number != self.number);
        self.shared.slaves.leave(self.number, self.shared.clock.elapsed());
    }
}
