//! Calls to other processes: one connection an address, shared by all callers, made when needed and made again when lost.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use protocol::code::ResponseCode;
use protocol::frame::{MAX_FRAME_BYTES, Serialization};
use protocol::header::EncodeFields;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

use crate::bounds::Budget;
use crate::call::{CallError, Response};
use crate::connection::{Begun, Connection, InboxLimits, ListenerTag};
use crate::outgoing::Outgoing;
use crate::service::{Burst, Request, Service};
use crate::stream::Stream;
use crate::task::{self, Limits};
use crate::tls::{self, ClientTls, ServerCheck};

/// The first pause after a failed attempt to connect; doubled with each further one.
const BACK_OFF_FIRST: Duration = Duration::from_millis(50);

/// How long the failures of an address that nobody calls are remembered; longer than any pause.
const FAILURE_KEPT: Duration = Duration::from_secs(60);

/// How outgoing connections behave.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// `None`: plain TCP.
    pub tls: Option<ClientTls>,
    /// How the headers of our requests are written.
    pub serialization: Serialization,
    /// For TCP and TLS together.
    pub connect_timeout: Duration,
    /// The longest pause between two attempts.
    pub back_off_max: Duration,
    /// A connection on which nothing moves for so long is closed.
    pub idle_timeout: Duration,
    /// A larger frame from the other side closes the connection.
    pub frame_bytes_max: usize,
    /// With more than this to write, a connection takes no further request.
    pub out_bytes_max: usize,
    /// Calls that may wait for a response on one connection.
    pub calls_max: usize,
    /// Bounds what responses and requests of all its connections hold.
    pub budget: Arc<Budget>,
}

impl Default for ClientOptions {
    fn default() -> ClientOptions {
        ClientOptions {
            tls: None,
            serialization: Serialization::Json,
            connect_timeout: Duration::from_secs(3),
            back_off_max: Duration::from_secs(2),
            idle_timeout: Duration::from_secs(120),
            frame_bytes_max: MAX_FRAME_BYTES,
            out_bytes_max: 32 << 20,
            calls_max: 65_535,
            budget: Arc::new(Budget::new(256 << 20)),
        }
    }
}

/// Answers requests that the other side sends us.
pub trait Inbound: Send + Sync + 'static {
    /// Called on the connection's task: must not block, and should leave anything long to another task.
    fn request(&self, connection: &Connection<()>, request: &Request<'_>, out: &mut Outgoing);
}

/// For a client that is never asked anything: says so.
#[derive(Clone, Copy, Debug, Default)]
pub struct RefuseInbound;

impl Inbound for RefuseInbound {
    fn request(&self, _: &Connection<()>, request: &Request<'_>, out: &mut Outgoing) {
        let remark = format!(" request type {} not supported", request.header.code);
        out.reply(request.reply_to(), ResponseCode::RequestCodeNotSupported, Some(&remark), &(), &[]);
    }
}

/// Calls other processes. Clones share the connections; they close when the last clone is gone.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    options: ClientOptions,
    inbound: Arc<dyn Inbound>,
    /// Guards the table only; each peer has a lock of its own.
    peers: Mutex<HashMap<String, Arc<Peer>>>,
    /// Made at the first TLS connection.
    tls: Mutex<Option<Arc<ClientConfig>>>,
}

#[derive(Default)]
struct Peer {
    /// Guards what is known; held for a look.
    known: Mutex<KnownPeer>,
    /// Held while one caller connects, so that the others share its connection. The only lock of this crate that is held
    /// across a wait.
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct KnownPeer {
    connection: Option<Connection<()>>,
    failures: u32,
    failed: Option<(Instant, String)>,
}

/// A request that is on its way. Dropped, it throws the response away.
#[derive(Debug)]
#[must_use = "dropped, it throws the response away"]
pub struct Call<'a> {
    begun: Begun<()>,
    address: &'a str,
    timeout: Duration,
    /// When `timeout` began.
    started: Instant,
}

impl Call<'_> {
    /// The connection that the request was left on, see [`Client::begin_on`]. No other one of this process has its number.
    pub fn connection(&self) -> u64 {
        self.begun.connection()
    }

    /// Waits for the response, for what is left of the time that began with [`Client::begin`]; one that has come is there also later.
    pub async fn response(self) -> Result<Response, CallError> {
        let Call { begun, address, timeout, started } = self;
        let left = timeout.saturating_sub(started.elapsed());
        begun.response(left).await.map_err(|error| named(error, address, timeout))
    }
}

impl Client {
    /// Without a connection yet.
    pub fn new(options: ClientOptions) -> Client {
        Client::with_inbound(options, Arc::new(RefuseInbound))
    }

    /// With somebody to answer what the other sides ask.
    pub fn with_inbound(options: ClientOptions, inbound: Arc<dyn Inbound>) -> Client {
        let inner = Inner { options, inbound, peers: Mutex::default(), tls: Mutex::default() };
        Client { inner: Arc::new(inner) }
    }

    /// Asks `address` (`host:port`) and waits for the response; `timeout` covers connecting too. If `GO_AWAY` is the response, asks once
    /// more on a new connection.
    pub async fn call(
        &self,
        address: &str,
        code: i32,
        fields: &(dyn EncodeFields + Sync),
        body: Bytes,
        timeout: Duration,
    ) -> Result<Response, CallError> {
        let started = Instant::now();
        let response = self.begin(address, code, fields, &body, timeout).await?.response().await?;
        if response.code != ResponseCode::GoAway as i32 {
            return Ok(response);
        }
        let left = timeout.saturating_sub(started.elapsed());
        self.begin(address, code, fields, &body, left).await?.response().await
    }

    /// Leaves a request for `address`, behind all that was left for it before: two calls of this, one after the other, put their
    /// requests in order, if both find the same connection. Nothing was sent if this fails. `timeout` covers connecting, and the
    /// response.
    pub async fn begin<'a>(
        &self,
        address: &'a str,
        code: i32,
        fields: &(dyn EncodeFields + Sync),
        body: &Bytes,
        timeout: Duration,
    ) -> Result<Call<'a>, CallError> {
        let started = Instant::now();
        let late = || CallError::Timeout { address: address.to_owned(), after: timeout };
        let connection = match self.known(address) {
            Some(connection) => connection,
            None => tokio::time::timeout(timeout, self.connect(address)).await.map_err(|_| late())??,
        };
        if started.elapsed() > timeout {
            return Err(late());
        }
        let begun = connection.begin(code, fields, body).map_err(|error| named(error, address, timeout))?;
        Ok(Call { begun, address, timeout, started })
    }

    /// As [`Client::begin`], on one connection only: for what a peer may be asked because of what it said there. Nothing, and nothing is
    /// sent, if that is not the open connection to `address` any more.
    pub fn begin_on<'a>(
        &self,
        address: &'a str,
        connection: u64,
        code: i32,
        fields: &(dyn EncodeFields + Sync),
        body: &Bytes,
        timeout: Duration,
    ) -> Option<Result<Call<'a>, CallError>> {
        let started = Instant::now();
        let known = self.known(address).filter(|known| known.id() == connection)?;
        let begun = known.begin(code, fields, body).map_err(|error| named(error, address, timeout));
        Some(begun.map(|begun| Call { begun, address, timeout, started }))
    }

    /// Waits until a connection to `address` has ended, see [`Call::connection`]; not at all if it is not the open one any more.
    pub async fn ended(&self, address: &str, connection: u64) {
        if let Some(known) = self.known(address).filter(|known| known.id() == connection) {
            known.ended().await;
        }
    }

    /// Sends a request that nobody answers; returns when it is on its way, which says nothing about its arrival.
    pub async fn oneway(
        &self,
        address: &str,
        code: i32,
        fields: &(dyn EncodeFields + Sync),
        body: Bytes,
    ) -> Result<(), CallError> {
        let connection = match self.known(address) {
            Some(connection) => connection,
            None => self.connect(address).await?,
        };
        if connection.oneway(code, fields, &body) {
            return Ok(());
        }
        let address = address.to_owned();
        Err(if connection.is_closed() { CallError::Closed { address } } else { CallError::Busy { address } })
    }

    /// The connection to `address`, made if there is none.
    pub async fn connect(&self, address: &str) -> Result<Connection<()>, CallError> {
        let peer = self.peer(address);
        let _turn = peer.connecting.lock().await;
        // Whoever had the turn before may have done it.
        if let Some(connection) = peer.open() {
            return Ok(connection);
        }
        if let Some(error) = peer.pause(address, self.inner.options.back_off_max) {
            return Err(error);
        }
        let attempt = timeout(self.inner.options.connect_timeout, self.dial(address)).await;
        let dialled = attempt.unwrap_or_else(|_| {
            let cause = Arc::new(io::Error::from(io::ErrorKind::TimedOut));
            Err(CallError::Connect { address: address.to_owned(), cause })
        });
        let is_wanted = self.inner.peers.lock().get(address).is_some_and(|known| Arc::ptr_eq(known, &peer));
        if let Some(connection) = dialled.as_ref().ok().filter(|_| !is_wanted) {
            // It was disconnected meanwhile: nobody would find this connection again to close it.
            connection.close();
            return Err(CallError::Closed { address: address.to_owned() });
        }
        let mut known = peer.known.lock();
        match &dialled {
            Ok(connection) => *known = KnownPeer { connection: Some(connection.clone()), failures: 0, failed: None },
            Err(error) => {
                known.failures = known.failures.saturating_add(1);
                known.failed = Some((Instant::now(), error.to_string()));
            }
        }
        dialled
    }

    /// Closes the connection to `address`, if there is one.
    pub fn disconnect(&self, address: &str) {
        let peer = self.inner.peers.lock().remove(address);
        if let Some(connection) = peer.and_then(|peer| peer.known.lock().connection.take()) {
            connection.close();
        }
    }

    fn known(&self, address: &str) -> Option<Connection<()>> {
        let peer = self.inner.peers.lock().get(address).cloned()?;
        peer.open()
    }

    fn peer(&self, address: &str) -> Arc<Peer> {
        let mut peers = self.inner.peers.lock();
        match peers.get(address) {
            Some(peer) => Arc::clone(peer),
            None => {
                // Brokers come and go, in containers under ever new addresses.
                peers.retain(|_, peer| Arc::strong_count(peer) > 1 || peer.is_in_use());
                Arc::clone(peers.entry(address.to_owned()).or_default())
            }
        }
    }

    async fn dial(&self, address: &str) -> Result<Connection<()>, CallError> {
        let options = &self.inner.options;
        let resolve = |cause: io::Error| CallError::Resolve { address: address.to_owned(), cause: Arc::new(cause) };
        let failed = |cause: io::Error| CallError::Connect { address: address.to_owned(), cause: Arc::new(cause) };
        let deadline = Instant::now() + options.connect_timeout;
        let candidates: Vec<SocketAddr> = lookup_host(address).await.map_err(resolve)?.collect();
        if candidates.is_empty() {
            return Err(resolve(io::ErrorKind::NotFound.into()));
        }
        let tcp = connect_to_one(&candidates, deadline).await.map_err(failed)?;
        tcp.set_nodelay(true).map_err(failed)?;
        let (peer, local) = (tcp.peer_addr().map_err(failed)?, tcp.local_addr().map_err(failed)?);
        let stream = match self.tls_config()? {
            None => Stream::Plain(tcp),
            Some(config) => {
                let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
                let name = match (ServerName::try_from(host.to_owned()), options.tls.as_ref().map(|tls| tls.check)) {
                    (Ok(name), _) => name,
                    (Err(error), Some(ServerCheck::AuthorityAndHost)) => {
                        return Err(resolve(io::Error::new(io::ErrorKind::InvalidInput, error)));
                    }
                    // The system knows names that DNS does not allow (`rmq_namesrv`). Nobody compares this one.
                    (Err(_), _) => ServerName::from(peer.ip()),
                };
                Stream::Client(Box::new(TlsConnector::from(config).connect(name, tcp).await.map_err(failed)?))
            }
        };
        // What others do not take is nothing to a caller: were responses not read for it, two sides could wait for each other.
        let own_bytes = usize::MAX;
        let inbox = InboxLimits {
            frames_bytes_max: options.out_bytes_max,
            own_bytes,
            budget: Arc::clone(&options.budget),
            work_max: 1,
            calls_max: options.calls_max,
        };
        let connection = Connection::new(peer, local, ListenerTag::OUTBOUND, inbox, options.serialization);
        let limits = Limits {
            frame_bytes_max: options.frame_bytes_max,
            // The task takes the inbox as a whole, so the bound on it must not stop the reading of responses.
            out_bytes_max: options.out_bytes_max.saturating_mul(2),
            own_bytes,
            idle_timeout: Some(options.idle_timeout),
            unread_timeout: None,
        };
        let (handle, budget) = (connection.clone(), Arc::clone(&options.budget));
        let outbound = Outbound { inbound: Arc::clone(&self.inner.inbound) };
        tokio::spawn(async move { task::run(stream, BytesMut::new(), handle, &outbound, limits, budget, None).await });
        Ok(connection)
    }

    fn tls_config(&self) -> Result<Option<Arc<ClientConfig>>, CallError> {
        let Some(settings) = &self.inner.options.tls else { return Ok(None) };
        if let Some(config) = &*self.inner.tls.lock() {
            return Ok(Some(Arc::clone(config)));
        }
        let config = tls::client_config(settings).map_err(|error| CallError::Tls(Arc::new(error)))?;
        *self.inner.tls.lock() = Some(Arc::clone(&config));
        Ok(Some(config))
    }
}

/// Connects to the first that answers. Each has its share of the time that is left: a name may have an address where nobody is.
async fn connect_to_one(candidates: &[SocketAddr], deadline: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::TimedOut);
    for (place, candidate) in candidates.iter().enumerate() {
        let left = deadline.saturating_duration_since(Instant::now());
        let share = left / u32::try_from(candidates.len() - place).unwrap_or(u32::MAX);
        match timeout(share, TcpStream::connect(candidate)).await {
            Ok(Ok(tcp)) => return Ok(tcp),
            Ok(Err(error)) => last = error,
            Err(_) => last = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(last)
}

/// A connection knows its peer's address as numbers and the time that was left; its caller knows what it asked for.
fn named(error: CallError, asked: &str, timeout: Duration) -> CallError {
    let address = asked.to_owned();
    match error {
        CallError::Timeout { .. } => CallError::Timeout { address, after: timeout },
        CallError::Closed { .. } => CallError::Closed { address },
        CallError::Busy { .. } => CallError::Busy { address },
        CallError::Resolve { .. } | CallError::Connect { .. } | CallError::BackingOff { .. } | CallError::Tls(_) => {
            error
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for peer in self.peers.get_mut().values() {
            if let Some(connection) = &peer.known.lock().connection {
                connection.close();
            }
        }
    }
}

impl Peer {
    fn open(&self) -> Option<Connection<()>> {
        self.known.lock().connection.as_ref().filter(|connection| !connection.goes_away()).cloned()
    }

    /// Whether there is a connection, or a pause after a failure that may still last.
    fn is_in_use(&self) -> bool {
        let is_recent = |(at, _): &(Instant, String)| at.elapsed() < FAILURE_KEPT;
        self.open().is_some() || self.known.lock().failed.as_ref().is_some_and(is_recent)
    }

    /// An error while the pause after the last failure lasts: callers with another address to try should try it now.
    fn pause(&self, address: &str, max: Duration) -> Option<CallError> {
        let known = self.known.lock();
        let (at, cause) = known.failed.as_ref()?;
        let pause = BACK_OFF_FIRST.saturating_mul(1 << (known.failures.saturating_sub(1)).min(16)).min(max);
        let retry_in = pause.checked_sub(at.elapsed()).filter(|left| !left.is_zero())?;
        Some(CallError::BackingOff { address: address.to_owned(), cause: cause.clone(), retry_in })
    }
}

/// The service of our own connections: only the inbound handler.
struct Outbound {
    inbound: Arc<dyn Inbound>,
}

impl Service for Outbound {
    type Session = Connection<()>;
    type Work = ();

    fn open(&self, connection: &Connection<()>) -> Connection<()> {
        connection.clone()
    }

    async fn serve(&self, session: &mut Connection<()>, burst: &mut Burst<'_>, out: &mut Outgoing) {
        while let Some(request) = burst.next() {
            self.inbound.request(session, &request, out);
        }
    }

    async fn resume(&self, _: &mut Connection<()>, (): (), _: &mut Outgoing) {}

    fn close(&self, _: Connection<()>) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A port whose queue of connections is full: whoever connects hears nothing.
    fn silent() -> (socket2::Socket, SocketAddr, Vec<socket2::Socket>) {
        let socket = || socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        let listener = socket();
        listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        listener.listen(0).unwrap();
        let at = listener.local_addr().unwrap().as_socket().unwrap();
        let waiting: Vec<_> = (0..4).map(|_| socket()).collect();
        for one in &waiting {
            one.set_nonblocking(true).unwrap();
            // In progress, or refused a place in the queue: either way it is on its way.
            let _ = one.connect(&at.into());
        }
        (listener, at, waiting)
    }

    #[tokio::test]
    async fn an_address_where_nobody_answers_leaves_time_for_the_next() {
        let (_listener, silent, _waiting) = silent();
        let live = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = live.local_addr().unwrap();
        let deadline = Instant::now() + Duration::from_secs(4);
        let connected = connect_to_one(&[silent, at], deadline).await.unwrap();
        assert_eq!(connected.peer_addr().unwrap(), at);
        let late = connect_to_one(&[silent], Instant::now() + Duration::from_millis(50)).await;
        assert_eq!(late.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn whoever_is_not_called_any_more_is_forgotten() {
        let live = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = live.local_addr().unwrap().to_string();
        let client = Client::new(ClientOptions::default());
        let connection = client.connect(&at).await.unwrap();
        drop(client.peer("a:1"));
        drop(client.peer("b:1"));
        let known = || client.inner.peers.lock().keys().cloned().collect::<std::collections::BTreeSet<_>>();
        assert_eq!(known(), [at, "b:1".to_owned()].into());
        drop(connection);
    }
}
