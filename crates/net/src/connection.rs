//! The handle of a connection: what other tasks may know of it and do to it.
//!
//! Everything goes through an inbox with a bound. The connection's task takes the inbox as a whole and is woken once for
//! whatever gathers in it meanwhile.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use protocol::code::ResponseCode;
use protocol::frame::Serialization;
use protocol::header::EncodeFields;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::bounds::{Account, Budget, KeptBack};
use crate::call::{CallError, Calls, NotEntered, Response};
use crate::outgoing::{Frames, Outgoing};

/// A silence shorter than this says nothing about the peer: others use the connection too, and a collector may pause it. A little less
/// than the three seconds that most callers wait: of those a part has passed when the request lies here.
const SILENCE_MIN: Duration = Duration::from_millis(2_900);

/// Which listener a connection came through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenerTag(pub &'static str);

impl ListenerTag {
    /// The port that is advertised.
    pub const MAIN: ListenerTag = ListenerTag("main");
    /// RocketMQ's second port, two below the first, which does not serve pulls.
    pub const VIP: ListenerTag = ListenerTag("vip");
    /// None: we connected.
    pub const OUTBOUND: ListenerTag = ListenerTag("outbound");
}

/// What one connection may hold.
#[derive(Clone, Debug)]
pub(crate) struct InboxLimits {
    pub frames_bytes_max: usize,
    /// The memory that frames may take however much those of others hold.
    pub own_bytes: usize,
    /// What frames count against beyond what every connection may hold anyway.
    pub budget: Arc<Budget>,
    pub work_max: usize,
    pub calls_max: usize,
}

// Relaxed: ids have to differ, nothing else.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

pub(crate) struct Shared<W> {
    id: u64,
    peer: SocketAddr,
    local: SocketAddr,
    listener: ListenerTag,
    limits: InboxLimits,
    serialization: Serialization,
    pub(crate) calls: Calls,
    /// How often something was read. Relaxed: compared with itself only.
    reads: AtomicU64,
    /// Bytes of replies that wait elsewhere. Relaxed: two that look at once lay one reply more there.
    aside: AtomicUsize,
    /// Guards everything that others leave for the task. Held for an encode at most, never while waiting.
    inbox: Mutex<Inbox<W>>,
    /// Rung at the end, after the stage says so.
    ended: Notify,
}

pub(crate) struct Inbox<W> {
    pub out: Outgoing,
    pub work: Vec<W>,
    pub stage: Stage,
    /// Answers that somebody works on elsewhere. While there are any, a draining connection stays.
    owed: usize,
    waker: Option<Waker>,
}

/// How far a connection's life has come. It only moves down this list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// Reads and writes.
    Open,
    /// The same, but requests of those who know `GO_AWAY` are answered with it instead of being served.
    GoingAway,
    /// Reads no more; finishes what it read and waits for the answers that it owes.
    Draining,
    /// Has all its answers: writes them, then closes. Nothing can be left for it any more.
    Ending,
    /// Gone.
    Closed,
}

/// An answer that will come through [`Connection::send`] or [`Connection::post`]: while it is held, the connection stays to write
/// it, even if it was told to close meanwhile. Drop it when the answer has been left there.
#[must_use = "dropped, it holds nothing back"]
pub struct Debt<W> {
    shared: Arc<Shared<W>>,
}

impl<W> std::fmt::Debug for Debt<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Debt").field("connection", &self.shared.id).finish()
    }
}

impl<W> Drop for Debt<W> {
    fn drop(&mut self) {
        let mut inbox = self.shared.inbox.lock();
        inbox.owed -= 1;
        // An open connection does not care; a draining one may have waited for this.
        let waker = if inbox.owed == 0 && inbox.stage == Stage::Draining { inbox.waker.take() } else { None };
        drop(inbox);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Replies that wait elsewhere than in a connection's inbox or output, counted with those of all connections. Given back when dropped.
#[must_use = "dropped, it counts nothing"]
pub struct LaidAside<W> {
    shared: Arc<Shared<W>>,
    bytes: usize,
    _account: Account,
}

impl<W> std::fmt::Debug for LaidAside<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LaidAside").field("connection", &self.shared.id).field("bytes", &self.bytes).finish()
    }
}

impl<W> Drop for LaidAside<W> {
    fn drop(&mut self) {
        self.shared.aside.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Replies of all connections hold more than they may, and this one has its own share of them laid aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("replies hold {reply_bytes} bytes of {max_bytes}, of which half is theirs, and with requests {used_bytes}")]
pub struct RepliesAreMany {
    /// What replies hold.
    pub reply_bytes: usize,
    /// What replies and requests hold.
    pub used_bytes: usize,
    /// What both may hold.
    pub max_bytes: usize,
}

/// A handle to a connection. Clones are the same connection.
pub struct Connection<W> {
    pub(crate) shared: Arc<Shared<W>>,
}

impl<W> Clone for Connection<W> {
    fn clone(&self) -> Self {
        Connection { shared: Arc::clone(&self.shared) }
    }
}

impl<W> std::fmt::Debug for Connection<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("id", &self.shared.id)
            .field("peer", &self.shared.peer)
            .finish_non_exhaustive()
    }
}

/// A request that was left for a connection's task. Dropped, it throws the response away.
#[must_use = "dropped, it throws the response away"]
pub struct Begun<W> {
    connection: Connection<W>,
    opaque: i32,
    response: oneshot::Receiver<Response>,
    begun: Instant,
    reads_before: u64,
}

impl<W> std::fmt::Debug for Begun<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Begun").field("connection", &self.connection).field("opaque", &self.opaque).finish()
    }
}

impl<W> Drop for Begun<W> {
    fn drop(&mut self) {
        self.connection.shared.calls.leave(self.opaque);
    }
}

impl<W> Begun<W> {
    /// The number of the connection that it was left on.
    pub(crate) fn connection(&self) -> u64 {
        self.connection.id()
    }

    /// Waits for the peer's response, from now on for so long.
    ///
    /// Where we connected, a peer from which nothing at all has come since the request, for about three seconds or more, is taken for
    /// gone, and the connection closed. A client that connected to us may be busy with what we asked; its pulls wait here
    /// meanwhile and it has nothing to say, so it is not given up: its idle time decides.
    pub async fn response(mut self, timeout: Duration) -> Result<Response, CallError> {
        let answered = tokio::time::timeout(timeout, &mut self.response).await;
        let shared = &self.connection.shared;
        let address = || shared.peer.to_string();
        match answered {
            Ok(Ok(response)) => {
                if response.code == ResponseCode::GoAway as i32 && shared.listener == ListenerTag::OUTBOUND {
                    // What was asked before is answered here, what is asked from now on on another connection.
                    shared.come_to(Stage::GoingAway);
                }
                Ok(response)
            }
            Ok(Err(_)) => Err(CallError::Closed { address: address() }),
            Err(_) => {
                let is_silent = shared.reads.load(Ordering::Relaxed) == self.reads_before;
                if shared.listener == ListenerTag::OUTBOUND && self.begun.elapsed() >= SILENCE_MIN && is_silent {
                    self.connection.close();
                }
                Err(CallError::Timeout { address: address(), after: timeout })
            }
        }
    }
}

impl<W> Connection<W> {
    pub(crate) fn new(
        peer: SocketAddr,
        local: SocketAddr,
        listener: ListenerTag,
        limits: InboxLimits,
        serialization: Serialization,
    ) -> Connection<W> {
        let out = Outgoing::bounded(limits.frames_bytes_max, limits.own_bytes, Arc::clone(&limits.budget));
        Connection {
            shared: Arc::new(Shared {
                id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
                peer,
                local,
                listener,
                serialization,
                calls: Calls::new(limits.calls_max),
                limits,
                reads: AtomicU64::new(0),
                aside: AtomicUsize::new(0),
                inbox: Mutex::new(Inbox { out, work: Vec::new(), stage: Stage::Open, owed: 0, waker: None }),
                ended: Notify::new(),
            }),
        }
    }

    /// Different for every connection of this process.
    pub fn id(&self) -> u64 {
        self.shared.id
    }

    /// The other end; where a PROXY protocol header named one, that.
    pub fn peer(&self) -> SocketAddr {
        self.shared.peer
    }

    /// This end, as the peer sees it.
    pub fn local(&self) -> SocketAddr {
        self.shared.local
    }

    /// The listener that it came through.
    pub fn listener(&self) -> ListenerTag {
        self.shared.listener
    }

    /// Notes that an answer will come. A draining connection stays until all who hold a debt have dropped it.
    pub fn owe(&self) -> Debt<W> {
        self.shared.inbox.lock().owed += 1;
        Debt { shared: Arc::clone(&self.shared) }
    }

    /// For the replies that whoever serves it keeps back for a while.
    pub fn kept_back(&self) -> KeptBack {
        let limits = &self.shared.limits;
        KeptBack::new(limits.frames_bytes_max, limits.own_bytes, Arc::clone(&limits.budget))
    }

    /// Counts a reply of so many bytes, which waits elsewhere until the connection's task takes it. Refused while replies of all connections
    /// hold more than they may, where this one has its own share laid aside already.
    pub fn lay_aside(&self, bytes: usize) -> Result<LaidAside<W>, RepliesAreMany> {
        let (shared, limits) = (&self.shared, &self.shared.limits);
        let budget = &limits.budget;
        if shared.aside.load(Ordering::Relaxed) >= limits.own_bytes {
            self.check_long_reply()?;
        }
        let mut account = Account::new(Arc::clone(budget));
        account.is_now(bytes);
        shared.aside.fetch_add(bytes, Ordering::Relaxed);
        Ok(LaidAside { shared: Arc::clone(shared), bytes, _account: account })
    }

    /// Refused while replies of all connections hold more than they may, also where this one has nothing yet. For a reply that is far longer
    /// than its share.
    pub fn check_long_reply(&self) -> Result<(), RepliesAreMany> {
        let budget = &self.shared.limits.budget;
        if !budget.replies_are_many() {
            return Ok(());
        }
        let (reply_bytes, used_bytes, max_bytes) = (budget.reply_bytes(), budget.used_bytes(), budget.max_bytes());
        Err(RepliesAreMany { reply_bytes, used_bytes, max_bytes })
    }

    /// Sends frames that were made elsewhere. False when the connection is closed or its inbox is full: nothing is sent then.
    pub fn send(&self, frames: Frames) -> bool {
        self.leave(Stage::Draining, |inbox, _| {
            if inbox.out.is_full() {
                return false;
            }
            inbox.out.extend(frames);
            true
        })
    }

    /// Hands work to the connection's task. False when the connection is closed or its inbox is full.
    pub fn post(&self, work: W) -> bool {
        self.leave(Stage::Draining, |inbox, limits| {
            if inbox.work.len() >= limits.work_max {
                return false;
            }
            inbox.work.push(work);
            true
        })
    }

    /// Reads no more; waits for the answers that are owed, writes them, as far as the peer takes them, then closes.
    pub fn close(&self) {
        self.shared.come_to(Stage::Draining);
    }

    /// Whether it is closed, or about to be.
    pub fn is_closed(&self) -> bool {
        self.shared.inbox.lock().stage >= Stage::Draining
    }

    /// Whether its task has ended: no answer is taken any more, where one that is about to be closed still takes those that are owed.
    pub fn is_over(&self) -> bool {
        self.shared.inbox.lock().stage >= Stage::Ending
    }

    /// Whether it is about to end, or has ended: its client is to ask on another one.
    pub fn goes_away(&self) -> bool {
        self.shared.stage() > Stage::Open
    }

    /// Waits until it is closed, by whichever side.
    pub async fn ended(&self) {
        let mut ended = pin!(self.shared.ended.notified());
        // Before the look at the stage: an end after that look rings it.
        ended.as_mut().enable();
        if self.shared.stage() < Stage::Closed {
            ended.await;
        }
    }

    /// Sends a request that nobody answers. False when the connection is closed or its inbox is full.
    pub fn oneway(&self, code: i32, fields: &dyn EncodeFields, body: &Bytes) -> bool {
        let opaque = self.shared.calls.number();
        let serialization = self.shared.serialization;
        self.leave(Stage::GoingAway, |inbox, _| {
            if inbox.out.is_full() {
                return false;
            }
            inbox.out.request(serialization, code, opaque, true, fields, body);
            true
        })
    }

    /// Asks the peer and waits for its response, see [`Begun::response`].
    pub async fn request(
        &self,
        code: i32,
        fields: &(dyn EncodeFields + Sync),
        body: Bytes,
        timeout: Duration,
    ) -> Result<Response, CallError> {
        self.begin(code, fields, &body)?.response(timeout).await
    }

    /// Leaves a request for the connection's task, behind all that was left there before. Nothing was sent if this fails.
    pub fn begin(&self, code: i32, fields: &dyn EncodeFields, body: &Bytes) -> Result<Begun<W>, CallError> {
        let address = || self.shared.peer.to_string();
        let reads_before = self.shared.reads.load(Ordering::Relaxed);
        let (opaque, response) = self.shared.calls.enter().map_err(|refused| match refused {
            NotEntered::Closed => CallError::Closed { address: address() },
            NotEntered::Full => CallError::Busy { address: address() },
        })?;
        let begun = Begun { connection: self.clone(), opaque, response, begun: Instant::now(), reads_before };
        let serialization = self.shared.serialization;
        // On a draining connection the response would not be read.
        let was_left = self.leave(Stage::GoingAway, |inbox, _| {
            if inbox.out.is_full() {
                return false;
            }
            inbox.out.request(serialization, code, opaque, false, fields, body);
            true
        });
        match was_left {
            true => Ok(begun),
            false if self.is_closed() => Err(CallError::Closed { address: address() }),
            false => Err(CallError::Busy { address: address() }),
        }
    }

    /// Puts something into the inbox, unless the connection has come further than `last`.
    fn leave(&self, last: Stage, put: impl FnOnce(&mut Inbox<W>, &InboxLimits) -> bool) -> bool {
        let mut inbox = self.shared.inbox.lock();
        if inbox.stage > last || !put(&mut inbox, &self.shared.limits) {
            return false;
        }
        inbox.out.settle();
        let waker = inbox.waker.take();
        drop(inbox);
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }
}

impl<W> Shared<W> {
    pub(crate) fn stage(&self) -> Stage {
        self.inbox.lock().stage
    }

    /// Brings the connection on to `stage`, unless it has come further already.
    pub(crate) fn come_to(&self, stage: Stage) {
        let mut inbox = self.inbox.lock();
        inbox.stage = inbox.stage.max(stage);
        let waker = inbox.waker.take();
        drop(inbox);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// For the task: whether a draining connection has all that it waited for. From then on nothing can be left for it.
    pub(crate) fn has_all(&self) -> bool {
        let mut inbox = self.inbox.lock();
        let has_all = inbox.owed == 0 && inbox.out.is_empty() && inbox.work.is_empty();
        if has_all {
            inbox.stage = inbox.stage.max(Stage::Ending);
        }
        has_all
    }

    /// For the task: ready when something was left, when the stage is not `seen` any more, or when nothing more is to come.
    pub(crate) fn poll_left(&self, seen: Stage, cx: &mut Context<'_>) -> Poll<()> {
        let mut inbox = self.inbox.lock();
        let is_over = inbox.stage >= Stage::Draining && inbox.owed == 0;
        if !inbox.out.is_empty() || !inbox.work.is_empty() || inbox.stage != seen || is_over {
            return Poll::Ready(());
        }
        match &mut inbox.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => inbox.waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// For the task: takes what was left. `work` comes empty and goes into the inbox, so both vectors live on.
    pub(crate) fn take_left(&self, out: &mut Outgoing, work: &mut Vec<W>) -> Stage {
        let mut inbox = self.inbox.lock();
        if !inbox.out.is_empty() {
            out.take_from(&mut inbox.out);
        }
        std::mem::swap(work, &mut inbox.work);
        inbox.stage
    }

    /// For the task, when the connection rests: gives back what the inbox holds in reserve.
    pub(crate) fn release(&self) {
        let mut inbox = self.inbox.lock();
        inbox.out.release(true);
        if inbox.work.is_empty() {
            inbox.work = Vec::new();
        }
    }

    pub(crate) fn count_read(&self) {
        // One writer, the task: no read-modify-write needed.
        self.reads.store(self.reads.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// How often something was read.
    pub(crate) fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// For the task, at its end.
    pub(crate) fn closed(&self) {
        let left = {
            let mut inbox = self.inbox.lock();
            inbox.stage = Stage::Closed;
            let (room, frames) = (inbox.out.give_up_room(), inbox.out.take());
            (std::mem::take(&mut inbox.work), frames, room, inbox.waker.take())
        };
        // Dropped outside the lock: work may hold anything, this handle included.
        drop(left);
        self.calls.close();
        self.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use protocol::code::ResponseCode;

    use super::*;
    use crate::bounds::OWN_BYTES;
    use crate::outgoing::{Arrival, ReplyTo};

    fn answer() -> Frames {
        let (serialization, came) = (Serialization::Json, Arrival::at(Instant::now()));
        let to = ReplyTo { code: 11, opaque: 1, serialization, is_oneway: false, came, is_held: false };
        let mut out = Outgoing::new();
        out.reply(to, ResponseCode::Success, None, &(), &[7; 30_000]);
        out.take()
    }

    fn connection(budget: &Arc<Budget>) -> Connection<()> {
        let limits = InboxLimits {
            frames_bytes_max: 4 << 20,
            own_bytes: OWN_BYTES,
            budget: Arc::clone(budget),
            work_max: 1,
            calls_max: 1,
        };
        let address = "127.0.0.1:1".parse().unwrap();
        Connection::new(address, address, ListenerTag::MAIN, limits, Serialization::Json)
    }

    #[test]
    fn what_is_laid_aside_counts_from_its_first_byte_and_is_refused_beyond_its_own_while_replies_are_many() {
        let budget = Arc::new(Budget::new(4 << 20));
        let (first, second) = (connection(&budget), connection(&budget));
        let little = first.lay_aside(1).unwrap();
        assert_eq!(budget.reply_bytes(), 1);
        assert_eq!(second.check_long_reply(), Ok(()));
        let much = first.lay_aside(3 << 20).unwrap();
        let bytes = (3 << 20) + 1;
        let many = RepliesAreMany { reply_bytes: bytes, used_bytes: bytes, max_bytes: 4 << 20 };
        assert_eq!(first.lay_aside(1).unwrap_err(), many);
        assert_eq!(second.check_long_reply(), Err(many), "also where another one has nothing");
        let own = second.lay_aside(OWN_BYTES).unwrap();
        assert!(second.lay_aside(1).is_err(), "another one has its own, and no more");
        drop(much);
        assert!(first.lay_aside(1).is_ok() && second.lay_aside(1).is_ok());
        drop((little, own));
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn an_inbox_takes_its_own_while_replies_are_many_and_what_it_holds_is_given_back_with_the_connection() {
        let budget = Arc::new(Budget::new(4 << 20));
        let connection = connection(&budget);
        let mut others = Account::new(Arc::clone(&budget));
        others.is_now(3 << 20);
        let fits = || (0..200).take_while(|_| connection.send(answer())).count();
        assert_eq!(fits(), 3, "64 KiB and what is begun there");
        assert!(budget.used_bytes() > 3 << 20, "it counts");

        let (mut out, mut work) = (Outgoing::bounded(4 << 20, OWN_BYTES, Arc::clone(&budget)), Vec::new());
        connection.shared.take_left(&mut out, &mut work);
        assert!(out.is_full(), "what came from the inbox is owed like any other");
        assert_eq!(fits(), 3);
        others.is_now(0);
        connection.shared.take_left(&mut out, &mut work);
        assert!(fits() > 10, "there is room");
        drop(out);
        connection.shared.closed();
        assert_eq!(budget.used_bytes(), 0);
    }
}
