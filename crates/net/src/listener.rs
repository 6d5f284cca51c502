//! Listeners: accept, bound, and end.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use protocol::frame::{MAX_FRAME_BYTES, Serialization};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::bounds::{Budget, OWN_BYTES};
use crate::connection::{Connection, InboxLimits, ListenerTag, Shared, Stage};
use crate::connection_slots::{ConnectionSlots, Newcomer, NoPlace};
use crate::prelude::{self, NotBegun};
use crate::service::Service;
use crate::task::{self, Limits, SilentConnection};
use crate::tls::{ServerTls, TlsSettings};

/// Connections that the kernel completes before we accept them.
const BACKLOG: i32 = 1024;

/// After an accept that failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Longer than any connection lasts.
const NEVER: Duration = Duration::from_secs(1 << 30);

/// Refused connections are logged as often as this.
const REFUSALS_PERIOD: Duration = Duration::from_secs(1);

/// How a listener treats its connections.
#[derive(Clone, Debug)]
pub struct ListenerOptions {
    /// Handed to the service with each connection.
    pub tag: ListenerTag,
    /// `None`: TLS is not spoken.
    pub tls: Option<TlsSettings>,
    /// A larger frame closes its connection. Less than 352 MiB, where the first byte of a length begins a TLS handshake.
    pub frame_bytes_max: usize,
    /// A connection on which nothing moves for so long is closed; `None`: it may stay.
    pub idle_timeout: Option<Duration>,
    /// A connection whose first frame has not come by then is closed; `None`: it has as long as any.
    pub first_frame_timeout: Option<Duration>,
    /// A connection that takes nothing of what is owed to it for so long is closed, whatever it says meanwhile; `None`: as if it were idle.
    pub unread_timeout: Option<Duration>,
    /// From the first byte to the end of PROXY header and TLS handshake.
    pub handshake_timeout: Duration,
    /// With more than this to write, a connection is not read; with more than 64 KiB of copied replies and of our own requests it is
    /// not while those of all connections hold more than half of `budget`. The same holds for what is left in its inbox, and for what its
    /// service keeps back.
    pub out_bytes_max: usize,
    /// Pieces of work that may wait in a connection's inbox.
    pub inbox_work_max: usize,
    /// Requests of ours that may wait for a response on one connection.
    pub calls_max: usize,
    /// More connections are closed as they come, unless some have said nothing yet: of those the oldest goes.
    pub connections_max: usize,
    /// Shared by the listeners of a process. Where none is free, it is the same.
    pub places: Arc<ConnectionSlots>,
    /// Shared by the listeners of a process.
    pub budget: Arc<Budget>,
    /// `SO_SNDBUF`; the kernel's own choice when `None`.
    pub send_buffer_bytes: Option<usize>,
    /// `SO_RCVBUF`; the kernel's own choice when `None`.
    pub receive_buffer_bytes: Option<usize>,
    /// How long, at shutdown, requests are still taken: those of clients that know `GO_AWAY` are answered with it, so that they
    /// go elsewhere, and those of others are served. Over earlier when nobody is connected; zero leaves it out.
    pub go_away_time: Duration,
    /// How long connections may take to finish at shutdown, after that, before they are cut off.
    pub drain_timeout: Duration,
}

impl Default for ListenerOptions {
    fn default() -> ListenerOptions {
        ListenerOptions {
            tag: ListenerTag::MAIN,
            tls: Some(TlsSettings::default()),
            frame_bytes_max: MAX_FRAME_BYTES,
            idle_timeout: Some(Duration::from_secs(120)),
            first_frame_timeout: Some(Duration::from_secs(15)),
            unread_timeout: Some(Duration::from_secs(60)),
            handshake_timeout: Duration::from_secs(10),
            out_bytes_max: 4 << 20,
            inbox_work_max: 4096,
            calls_max: 1024,
            connections_max: 100_000,
            places: Arc::new(ConnectionSlots::new(usize::MAX)),
            budget: Arc::new(Budget::new(256 << 20)),
            send_buffer_bytes: None,
            receive_buffer_bytes: None,
            go_away_time: Duration::ZERO,
            drain_timeout: Duration::from_secs(5),
        }
    }
}

impl ListenerOptions {
    pub(crate) fn inbox(&self) -> InboxLimits {
        InboxLimits {
            frames_bytes_max: self.out_bytes_max,
            own_bytes: OWN_BYTES,
            budget: Arc::clone(&self.budget),
            work_max: self.inbox_work_max,
            calls_max: self.calls_max,
        }
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits {
            frame_bytes_max: self.frame_bytes_max,
            out_bytes_max: self.out_bytes_max,
            own_bytes: OWN_BYTES,
            idle_timeout: self.idle_timeout,
            unread_timeout: self.unread_timeout,
        }
    }
}

/// Where another listener goes on at a port, requests are still read, and answered with `GO_AWAY`, until nothing has come for so long.
const TOLD_TO_GO: Duration = Duration::from_millis(10);
/// Or for so long: clients that do not know `GO_AWAY` go on asking.
const TOLD_TO_GO_MAX: Duration = Duration::from_millis(60);

/// What becomes of a port when its listener ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// Nobody listens there any more.
    Ends,
    /// Another listener goes on with the connections that come from now on: the port is held ([`Port::again`]), and the kernel keeps them
    /// until then.
    GoesOn,
}

/// A port that is ours, at which nobody listens yet: whoever connects is refused, and whoever asks the kernel for a free one gets another.
#[derive(Debug)]
pub struct Port {
    socket: Socket,
    local: SocketAddr,
}

impl Port {
    /// Binds `address`; for port 0 the kernel chooses a free one. Somebody else may have bound it too, as long as nobody listens there.
    pub fn bind(address: SocketAddr) -> io::Result<Port> {
        // A restart must not wait until the last connections of the previous run have left TIME_WAIT.
        Port::bound(address, true)
    }

    /// Binds `address` if it is of no use to anybody: not bound, and without connections that have yet to leave TIME_WAIT.
    pub fn bind_free(address: SocketAddr) -> io::Result<Port> {
        Port::bound(address, false)
    }

    fn bound(address: SocketAddr, with_others: bool) -> io::Result<Port> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(with_others)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        let local = socket.local_addr()?.as_socket().ok_or(io::ErrorKind::Unsupported)?;
        Ok(Port { socket, local })
    }

    /// The address that was bound, with the port that the kernel chose if it was asked to.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The same port once more: while either is open, it stays this process's, and goes on to
    /// listen if it does. Connections that nobody accepts then wait.
    pub fn again(&self) -> io::Result<Port> {
        Ok(Port { socket: self.socket.try_clone()?, local: self.local })
    }

    /// Listens, inside a runtime. The kernel completes up to `backlog` connections before they are accepted.
    pub fn listen(self, backlog: i32) -> io::Result<TcpListener> {
        // Connections inherit it, and with it the next run may bind the port while they are in TIME_WAIT.
        self.socket.set_reuse_address(true)?;
        self.socket.listen(backlog)?;
        TcpListener::from_std(self.socket.into())
    }
}

/// A port at which we listen.
pub struct Listener<S: Service> {
    socket: TcpListener,
    local: SocketAddr,
    door: Arc<Door<S>>,
}

/// What the connections of a listener share.
struct Door<S: Service> {
    service: Arc<S>,
    options: ListenerOptions,
    tls: Option<ServerTls>,
    /// Those of this port.
    places: Arc<ConnectionSlots>,
    open: Mutex<Open<S::Work>>,
}

/// Guarded by the mutex around it; taken when a connection begins and ends.
struct Open<W> {
    connections: HashMap<u64, Arc<Shared<W>>>,
    /// How far all of them have come; new ones begin there.
    stage: Stage,
}

impl<S: Service> Door<S> {
    /// How often something was read on connections that are open.
    fn reads(&self) -> u64 {
        self.open.lock().connections.values().map(|connection| connection.reads()).fold(0, u64::wrapping_add)
    }

    /// Brings all connections on to `stage`, and those that will still come.
    fn come_to(&self, stage: Stage) {
        let open: Vec<_> = {
            let mut open = self.open.lock();
            open.stage = stage;
            open.connections.values().cloned().collect()
        };
        for connection in open {
            connection.come_to(stage);
        }
    }
}

impl<S: Service> Listener<S> {
    /// Binds the port and listens. Connections queue in the kernel until [`Listener::run`].
    pub fn bind(address: SocketAddr, options: ListenerOptions, service: Arc<S>) -> io::Result<Listener<S>> {
        Listener::on(Port::bind(address)?, options, service)
    }

    /// Listens on a port that is bound. Connections queue in the kernel until [`Listener::run`].
    pub fn on(port: Port, options: ListenerOptions, service: Arc<S>) -> io::Result<Listener<S>> {
        let tls = match &options.tls {
            Some(settings) => Some(
                ServerTls::new(settings.clone()).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?,
            ),
            None => None,
        };
        let Port { socket, local } = port;
        // Connections inherit it, and with it the next run may bind the port while they are in TIME_WAIT.
        socket.set_reuse_address(true)?;
        // Before `listen`: accepted sockets inherit them, and the window scale is fixed by the handshake.
        if let Some(bytes) = options.send_buffer_bytes {
            socket.set_send_buffer_size(bytes)?;
        }
        if let Some(bytes) = options.receive_buffer_bytes {
            socket.set_recv_buffer_size(bytes)?;
        }
        socket.listen(BACKLOG)?;
        let socket = TcpListener::from_std(socket.into())?;
        let open = Mutex::new(Open { connections: HashMap::new(), stage: Stage::Open });
        let places = Arc::new(ConnectionSlots::new(options.connections_max));
        Ok(Listener { socket, local, door: Arc::new(Door { service, options, tls, places, open }) })
    }

    /// The address that was bound, with the port that the kernel chose if it was asked to.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Accepts until `shutdown` is done, and goes on for the time of going away; then lets each connection finish what it has read
    /// and write what it owes, and returns when all are closed, after the drain time at the latest.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) {
        self.run_until(async {
            shutdown.await;
            Closing::Ends
        })
        .await;
    }

    /// The same, where `shutdown` says what becomes of the port.
    pub async fn run_until(self, shutdown: impl Future<Output = Closing> + Send) {
        let Listener { socket, local, door } = self;
        let (draining, begin_drain) = watch::channel(false);
        let mut tasks = JoinSet::new();
        let mut closing = Closing::Ends;
        accept(&socket, &door, &mut tasks, &begin_drain, async { closing = shutdown.await }).await;
        match closing {
            Closing::Ends => {
                let going_away = door.options.go_away_time;
                if !going_away.is_zero() && !tasks.is_empty() {
                    door.come_to(Stage::GoingAway);
                    accept(&socket, &door, &mut tasks, &begin_drain, tokio::time::sleep(going_away)).await;
                }
                drop(socket);
            }
            Closing::GoesOn => {
                // A client that is told to go away connects at once: this listener must not accept it.
                drop(socket);
                door.come_to(Stage::GoingAway);
                door.service.goes_away();
                let until = Instant::now() + TOLD_TO_GO_MAX;
                let mut read = door.reads();
                // Ends when those that were told have gone elsewhere: nothing comes any more.
                while !tasks.is_empty() && Instant::now() < until {
                    tokio::time::sleep(TOLD_TO_GO).await;
                    while let Some(ended) = tasks.try_join_next() {
                        note_end(ended);
                    }
                    let before = std::mem::replace(&mut read, door.reads());
                    if read == before {
                        break;
                    }
                }
                // What was read before its connection went away may have begun to wait since.
                door.service.goes_away();
            }
        }
        // Those that still tell their first words end now; those that are open drain.
        door.come_to(Stage::Draining);
        draining.send_replace(true);
        let deadline = Instant::now() + door.options.drain_timeout;
        loop {
            match tokio::time::timeout_at(deadline, tasks.join_next()).await {
                Ok(Some(ended)) => note_end(ended),
                Ok(None) => return,
                Err(_) => break,
            }
        }
        tracing::warn!(%local, connections = tasks.len(), "connections did not finish in time, cut off");
        tasks.shutdown().await;
    }
}

/// Accepts until `end`, or until nobody is connected while the listener goes away.
async fn accept<S: Service>(
    socket: &TcpListener,
    door: &Arc<Door<S>>,
    tasks: &mut JoinSet<()>,
    begin_drain: &watch::Receiver<bool>,
    end: impl Future<Output = ()> + Send,
) {
    let is_going_away = door.open.lock().stage == Stage::GoingAway;
    let mut end = std::pin::pin!(end);
    let mut paused_until = None;
    let mut refusals = Refusals::default();
    while !is_going_away || !tasks.is_empty() {
        tokio::select! {
            biased;
            () = &mut end => return,
            Some(ended) = tasks.join_next(), if !tasks.is_empty() => note_end(ended),
            () = at(refusals.say_at) => {
                let (of_port, of_process) = (door.options.connections_max, door.options.places.max());
                let Refusals { count: refused, of_address, silent, .. } = refusals.said();
                let local = socket.local_addr().ok();
                if refused > 0 {
                    tracing::warn!(?local, of_port, of_process, refused, "too many connections, closed as they came");
                }
                if silent > 0 {
                    let what = "too many connections, the oldest that said nothing made way";
                    tracing::warn!(?local, of_port, of_process, silent, "{what}");
                }
                if of_address > 0 {
                    let what = "too many connections of one address, closed as they came (connectionsPerAddressMax)";
                    tracing::warn!(?local, refused = of_address, "{what}");
                }
            }
            () = at(paused_until) => paused_until = None,
            accepted = socket.accept(), if paused_until.is_none() => match accepted {
                Ok((tcp, peer)) => {
                    let newcomer = Newcomer::new(peer.ip());
                    // The port's first: it refuses its own before others have to make way.
                    let places = door.places.take(&newcomer).and_then(|of_port| {
                        Ok([of_port, door.options.places.take(&newcomer)?])
                    });
                    match places {
                        Ok(places) => {
                            if places.iter().any(|place| place.cost_another) {
                                refusals.note_silent(Instant::now());
                            }
                            let silent = SilentConnection::new(newcomer, places, door.options.first_frame_timeout);
                            tasks.spawn(connection(tcp, peer, Arc::clone(door), begin_drain.clone(), silent));
                        }
                        Err(why) => refusals.note(why, Instant::now()),
                    }
                }
                Err(error) => {
                    tracing::warn!(local = ?socket.local_addr().ok(), %error, "cannot accept");
                    paused_until = Some(Instant::now() + ACCEPT_PAUSE);
                }
            },
        }
    }
}

/// Comes at a time, or never.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Connections that were closed as they came, or made way: told together, because whoever floods a port should not flood the log.
#[derive(Debug, Default)]
struct Refusals {
    count: u64,
    of_address: u64,
    /// Those that made way.
    silent: u64,
    /// When to tell of those that were counted; `None` when there are none.
    say_at: Option<Instant>,
}

impl Refusals {
    fn note(&mut self, why: NoPlace, now: Instant) {
        match why {
            NoPlace::Full => self.count += 1,
            NoPlace::OfAddress => self.of_address += 1,
        }
        self.say_at.get_or_insert(now + REFUSALS_PERIOD);
    }

    fn note_silent(&mut self, now: Instant) {
        self.silent += 1;
        self.say_at.get_or_insert(now + REFUSALS_PERIOD);
    }

    /// How many there were since the last time.
    fn said(&mut self) -> Refusals {
        std::mem::take(self)
    }
}

fn note_end(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        // A bug costs the connection that met it, and nobody else.
        tracing::error!(%error, "a connection ended by a bug");
    }
}

async fn connection<S: Service>(
    tcp: TcpStream,
    peer: SocketAddr,
    door: Arc<Door<S>>,
    mut draining: watch::Receiver<bool>,
    silent: SilentConnection,
) {
    // Until it ends, whatever becomes of it.
    let _places = silent.places();
    let options = &door.options;
    if let Err(error) = tcp.set_nodelay(true).and_then(|()| keep_alive(&tcp)) {
        tracing::debug!(%peer, %error, "gone before it began");
        return;
    }
    let tcp_local = tcp.local_addr().ok();
    // Boxed, so that what only the first words need does not weigh on the task for ever.
    let begin = Box::pin(prelude::begin(tcp, peer, door.tls.as_ref(), options.idle_timeout, options.handshake_timeout));
    let far = Instant::now() + NEVER;
    let begun = tokio::select! {
        begun = timeout_at(silent.until().unwrap_or(far), begin) => begun.unwrap_or(Err(NotBegun::Late)),
        _ = draining.changed() => return,
        () = poll_fn(|cx| silent.poll_told(cx)) => {
            tracing::debug!(%peer, "connection made way before its first frame");
            return;
        }
    };
    drop(draining);
    let begun = match begun {
        Ok(begun) => begun,
        Err(NotBegun::Gone) => return,
        // What whoever set up client or server has to change.
        Err(error @ (NotBegun::TlsDisabled | NotBegun::TlsOnly)) => {
            tracing::warn!(%peer, local = ?tcp_local, "{error}");
            return;
        }
        Err(error) => {
            tracing::debug!(%peer, %error, "connection closed before its first frame");
            return;
        }
    };
    let handle = Connection::new(begun.peer, begun.local, options.tag, options.inbox(), Serialization::Json);
    let _entry = {
        let mut open = door.open.lock();
        if open.stage >= Stage::Draining {
            return;
        }
        handle.shared.come_to(open.stage);
        open.connections.insert(handle.id(), Arc::clone(&handle.shared));
        ListedConnection { door: &door, id: handle.id() }
    };
    let (limits, budget) = (options.limits(), Arc::clone(&options.budget));
    task::run(begun.stream, begun.read, handle, &*door.service, limits, budget, Some(silent)).await;
}

/// Dead hosts are noticed by the kernel even while the connection owes nothing and hears nothing.
fn keep_alive(tcp: &TcpStream) -> io::Result<()> {
    SockRef::from(tcp).set_keepalive(true)
}

/// A line in the list of open connections; erased when dropped, also by a panic.
struct ListedConnection<'a, S: Service> {
    door: &'a Door<S>,
    id: u64,
}

impl<S: Service> Drop for ListedConnection<'_, S> {
    fn drop(&mut self) {
        self.door.open.lock().connections.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_within_a_second_are_told_together() {
        let mut refusals = Refusals::default();
        let start = Instant::now();
        for n in 0..1_000 {
            refusals.note(NoPlace::Full, start + Duration::from_micros(n));
        }
        refusals.note(NoPlace::OfAddress, start);
        assert_eq!(refusals.say_at, Some(start + Duration::from_secs(1)), "the first one starts the second");
        let said = refusals.said();
        assert_eq!((said.count, said.of_address, refusals.say_at), (1_000, 1, None));
        refusals.note(NoPlace::Full, start + Duration::from_secs(5));
        assert_eq!(refusals.say_at, Some(start + Duration::from_secs(6)));
    }
}
