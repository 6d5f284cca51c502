//! The one loop: a connection's task, the only one that touches its socket.
//!
//! It waits in one place ([`wait`]) for whatever comes first (bytes, room to write, the inbox, the time) and changes things
//! in another ([`run`]). What is owed is written whenever there is room; with too much owed nothing is read and the inbox is
//! left to fill up to its bound, so a peer that does not read costs what the bounds say and no more. How much is too much depends
//! on what others owe, too; but once it is, only this peer can change it, by taking some.

use std::future::{Future, poll_fn};
use std::io;
use std::mem;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use protocol::frame::FrameError;
use protocol::header::{HeaderError, HeaderScratch};
use tokio::time::{Instant, Sleep, sleep_until, timeout};

use crate::bounds::Budget;
use crate::connection::{Connection, ListenerTag, Shared, Stage};
use crate::connection_slots::{ConnectionSlot, Newcomer};
use crate::outgoing::{Answered, Outgoing};
use crate::reader::{Cut, Reader};
use crate::service::{Burst, Service};
use crate::strangers::Stranger;
use crate::stream::Stream;

/// A connection that rested so long gives its buffers back.
const REST: Duration = Duration::from_secs(2);

/// How long we read on and discard after our last byte, so that a reset does not overtake it (see [`farewell`]).
const FAREWELL: Duration = Duration::from_secs(1);

/// Half a frame may take the idle time, and a second more for each of these that came.
const SLOWEST_BYTES_A_SECOND: usize = 16 << 10;

/// A peer that sends half a large frame, or takes the replies that its requests wait behind, slower than that while others wait for
/// the memory is given up after this long.
const HOLD_UP: Duration = Duration::from_secs(10);

/// How long half a frame and a last word may take where an idle connection may stay for ever.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub frame_bytes_max: usize,
    pub out_bytes_max: usize,
    /// The memory that what is owed may take however much others owe.
    pub own_bytes: usize,
    /// `None`: a connection may be idle for ever.
    pub idle_timeout: Option<Duration>,
    /// A peer that takes nothing of what is owed for so long is given up; `None`: as if it were idle.
    pub unread_timeout: Option<Duration>,
}

impl Limits {
    /// For what was begun: a frame, a farewell.
    fn patience(&self) -> Duration {
        self.idle_timeout.unwrap_or(PATIENCE)
    }
}

/// A connection of which no whole frame has come yet.
pub(crate) struct SilentConnection {
    newcomer: Arc<Newcomer>,
    places: Arc<[ConnectionSlot; 2]>,
    until: Option<Instant>,
}

impl SilentConnection {
    pub(crate) fn new(
        newcomer: Arc<Newcomer>,
        places: [ConnectionSlot; 2],
        timeout: Option<Duration>,
    ) -> SilentConnection {
        SilentConnection { newcomer, places: Arc::new(places), until: timeout.map(|timeout| Instant::now() + timeout) }
    }

    /// The places of its port and of its process, to be held until it ends.
    pub(crate) fn places(&self) -> Arc<[ConnectionSlot; 2]> {
        Arc::clone(&self.places)
    }

    /// When its first frame has to be there.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Ready when it is to make way for another one.
    pub(crate) fn poll_told(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.newcomer.poll_told(cx)
    }
}

/// For how long a peer has been holding up others, and how far it was when that was looked at last: what had come of its frame, or
/// what it had taken where the rest of a burst waits for that.
#[derive(Clone, Copy, Debug)]
struct HeldUp {
    slow: Duration,
    looked: Instant,
    done: u64,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error("closed by the peer")]
    Peer,
    #[error("closed by us")]
    Us,
    #[error("nothing moved in time")]
    Idle,
    #[error("no frame came in time")]
    Silent,
    #[error("said nothing, and made way for another one")]
    MadeWay,
    #[error("what is owed to it was not taken in time")]
    Unread,
    #[error("a frame began and did not end in time")]
    HalfFrame,
    #[error("a large frame came, or replies were taken, too slowly while others waited for the memory")]
    HoldsUp,
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("{0}")]
    Header(#[from] HeaderError),
}

impl End {
    /// Whether the peer may still want what we owe.
    fn is_orderly(&self) -> bool {
        match self {
            End::Peer | End::Us | End::Frame(_) | End::Header(_) => true,
            End::Idle | End::Silent | End::MadeWay | End::Unread | End::HalfFrame | End::HoldsUp | End::Io(_) => false,
        }
    }
}

/// Serves a connection until it ends.
pub(crate) async fn run<S: Service>(
    stream: Stream,
    read: BytesMut,
    handle: Connection<S::Work>,
    service: &S,
    limits: Limits,
    budget: Arc<Budget>,
    silent: Option<SilentConnection>,
) {
    let mut session = Opened { service, session: Some(service.open(&handle)), handle: &handle };
    let told = |answered: &[Answered], at: Instant| service.answered(answered, at);
    let now = Instant::now();
    let mut socket = Socket {
        stream,
        reader: Reader::new(read, limits.frame_bytes_max, Arc::clone(&budget), handle.id()),
        out: Outgoing::bounded(limits.out_bytes_max, limits.own_bytes, Arc::clone(&budget)),
        budget,
        told: &told,
        limits,
        has_ended: false,
        moved: now,
        read: now,
        silent,
        unread_since: None,
        stuck_since: None,
        partial_since: None,
        held_up: None,
    };
    let end = match session.session.as_mut() {
        Some(opened) => serve(&mut socket, &handle, service, opened).await,
        None => End::Us,
    };
    // From here on nothing can be left for this connection.
    handle.shared.come_to(Stage::Ending);
    // Who does not take his last replies is no client any more: a group goes on without him.
    drop(session);
    let is_cut_off = matches!(end, End::Frame(_));
    let stranger = is_cut_off.then(|| Stranger::of(socket.reader.uncut())).flatten();
    socket.reader.stop();
    if end.is_orderly() {
        farewell(&mut socket).await;
    }
    if let Some(stranger) = stranger {
        return stranger.tell(handle.peer(), handle.local());
    }
    match &end {
        End::Frame(_) | End::Header(_) => tracing::warn!(peer = %handle.peer(), reason = %end, "connection closed"),
        End::Unread => {
            let unread = limits.unread_timeout.unwrap_or_default();
            tracing::warn!(peer = %handle.peer(), ?unread, owed = socket.out.bytes(), reason = %end, "connection closed");
        }
        End::Peer | End::Us | End::Idle | End::Silent | End::MadeWay | End::HalfFrame | End::HoldsUp | End::Io(_) => {
            tracing::debug!(peer = %handle.peer(), reason = %end, "connection closed");
        }
    }
}

/// The session and the handle, ended in the right order whatever happens, a panic included.
struct Opened<'a, S: Service> {
    service: &'a S,
    session: Option<S::Session>,
    handle: &'a Connection<S::Work>,
}

impl<S: Service> Drop for Opened<'_, S> {
    fn drop(&mut self) {
        self.handle.shared.closed();
        if let Some(session) = self.session.take() {
            self.service.close(session);
        }
    }
}

/// Everything about the socket, apart from what is said on it.
struct Socket<'a> {
    stream: Stream,
    reader: Reader,
    out: Outgoing,
    budget: Arc<Budget>,
    /// Hears which replies the socket has taken, and when.
    told: &'a (dyn Fn(&[Answered], Instant) + Send + Sync),
    limits: Limits,
    /// The peer has finished; we may still write.
    has_ended: bool,
    /// When bytes last moved, in either direction.
    moved: Instant,
    /// When bytes were last read.
    read: Instant,
    /// Until its first frame has come.
    silent: Option<SilentConnection>,
    /// Since when the peer has taken nothing of what is owed.
    stuck_since: Option<Instant>,
    /// Since when the peer does not take what is owed, as far as that is not counted yet.
    unread_since: Option<Instant>,
    /// Since when half a frame waits for the rest.
    partial_since: Option<Instant>,
    /// Kept while it holds memory that others wait for.
    held_up: Option<HeldUp>,
}

async fn serve<S: Service>(
    socket: &mut Socket<'_>,
    handle: &Connection<S::Work>,
    service: &S,
    session: &mut S::Session,
) -> End {
    let mut scratch = HeaderScratch::new();
    let mut work = Vec::new();
    let first_look = socket.moved + socket.rest();
    let first_look =
        socket.silent.as_ref().and_then(SilentConnection::until).map_or(first_look, |until| first_look.min(until));
    let mut clock = pin!(sleep_until(first_look));
    let mut stage = handle.shared.stage();
    let mut rest: Option<Rest> = None;
    // Where we connected, the other side goes away, and what it asks is answered.
    let is_outbound = handle.listener() == ListenerTag::OUTBOUND;
    let mut is_going_away = false;
    // Ends with the connection: at the latest, when nothing has moved for the idle time.
    loop {
        if !socket.is_full() {
            // What was read before the connection began to go away is served.
            is_going_away |= stage == Stage::GoingAway && !is_outbound;
            stage = handle.shared.take_left(&mut socket.out, &mut work);
            for piece in work.drain(..) {
                service.resume(session, piece, &mut socket.out).await;
            }
            let next = rest.take();
            let next = next.or_else(|| socket.reader.cut().map(|cut| Rest { cut, is_going_away, waits: false }));
            if let Some(Rest { cut, is_going_away, waits }) = next {
                // A frame ended: what is left over belongs to the next one.
                socket.partial_since = None;
                if waits {
                    // Nothing was read, which is not the peer's doing.
                    socket.held_up = None;
                }
                if cut.count > 0
                    && let Some(silent) = socket.silent.take()
                {
                    silent.places.iter().for_each(ConnectionSlot::has_spoken);
                }
                let mut burst = Burst::new(cut.frames, cut.count, socket.read, &mut scratch, &handle.shared.calls);
                burst.turns_away = is_going_away;
                service.serve(session, &mut burst, &mut socket.out).await;
                let waits = burst.is_left;
                if burst.remaining() > 0 && (waits || socket.is_full()) {
                    let (frames, count) = burst.rest(&mut socket.out);
                    rest = Some(Rest { cut: Cut { frames, count, error: cut.error }, is_going_away, waits });
                } else {
                    if let Err(error) = burst.finish(&mut socket.out) {
                        return error.into();
                    }
                    if let Some(error) = cut.error {
                        return error.into();
                    }
                }
                // More may have been read than one look allows, or left in the inbox meanwhile: the wait returns at once then.
            }
            if rest.is_none() {
                socket.note_partial();
            }
            socket.reader.yield_if_tight(rest.as_mut().map(|rest| &mut rest.cut.frames));
            socket.out.settle();
            if socket.has_ended && stage < Stage::Draining {
                // It may have closed its own direction only, and still wait for answers.
                stage = Stage::Draining;
                handle.shared.come_to(stage);
            }
            if stage >= Stage::Draining && rest.is_none() {
                // All whole frames were cut. What is owed may take a while, and half a frame holds up nobody meanwhile.
                socket.reader.stop();
                socket.partial_since = None;
                if handle.shared.has_all() {
                    return if socket.has_ended { End::Peer } else { End::Us };
                }
            }
        }
        let woken = poll_fn(|cx| wait(socket, &handle.shared, stage, rest.as_ref(), clock.as_mut(), cx)).await;
        match woken {
            Ok(Woken::ToServe) => {}
            Ok(Woken::ToMakeWay) => return End::MadeWay,
            Ok(Woken::Time) => match socket.look_at_the_time(rest.as_mut()) {
                Ok(next) => {
                    if socket.reader.is_released() {
                        handle.shared.release();
                        service.rested(session);
                        scratch = HeaderScratch::new();
                        work = Vec::new();
                    }
                    clock.as_mut().reset(next);
                }
                Err(end) => return end,
            },
            Err(error) => return error.into(),
        }
    }
}

/// What is left of a burst whose replies came to more than may be owed, or that waits. Until it is served nothing is read.
struct Rest {
    cut: Cut,
    /// How it was with the connection when it was cut.
    is_going_away: bool,
    /// Until something is left for the connection: see [`Burst::leave_rest`].
    waits: bool,
}

enum Woken {
    /// Something was read, or lies in the inbox, or the peer has ended.
    ToServe,
    /// It is new, and another one needs its place.
    ToMakeWay,
    Time,
}

/// Writes what is owed, reads if that is little enough and still wanted, and is ready when there is something to do.
fn wait<W>(
    socket: &mut Socket<'_>,
    shared: &Shared<W>,
    stage: Stage,
    rest: Option<&Rest>,
    mut clock: Pin<&mut Sleep>,
    cx: &mut Context<'_>,
) -> Poll<io::Result<Woken>> {
    let (was_full, was_stuck) = (socket.is_full(), socket.stuck_since.is_some());
    // Pending or not: what matters is how much is still owed.
    let _: Poll<()> = socket.poll_write(cx)?;
    if let Some(until) = socket.stuck_until().filter(|until| !was_stuck && *until < clock.deadline()) {
        // The next look may be as far away as the idle time.
        clock.as_mut().reset(until);
    }
    if let Some(silent) = &socket.silent
        && silent.poll_told(cx).is_ready()
    {
        return Poll::Ready(Ok(Woken::ToMakeWay));
    }
    let rest_waits = rest.is_some_and(|rest| rest.waits);
    if rest_waits {
        // Nothing is read before the rest is served.
        socket.reader.step_aside();
    }
    if !socket.is_full() {
        if stage < Stage::Draining && rest.is_none() {
            let was_released = socket.reader.is_released();
            match socket.reader.poll_read(&mut socket.stream, cx) {
                Poll::Ready(Ok(bytes)) => {
                    socket.has_ended = bytes == 0;
                    socket.read = Instant::now();
                    socket.moved = socket.read;
                    shared.count_read();
                    if was_released {
                        // It rested until the idle time; now it holds buffers again, which want to be given back sooner.
                        clock.as_mut().reset(socket.moved + socket.rest());
                    }
                    return Poll::Ready(Ok(Woken::ToServe));
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {}
            }
        }
        if was_full || rest.is_some() && !rest_waits || shared.poll_left(stage, cx).is_ready() {
            return Poll::Ready(Ok(Woken::ToServe));
        }
    } else {
        socket.reader.step_aside();
    }
    clock.as_mut().poll(cx).map(|()| Ok(Woken::Time))
}

impl Socket<'_> {
    /// After how long of nothing buffers are given back.
    fn rest(&self) -> Duration {
        REST.min(self.limits.patience())
    }

    /// Whether so much is owed that nothing more is taken on.
    fn is_full(&mut self) -> bool {
        self.out.is_full()
    }

    /// When a peer that takes nothing is given up.
    fn stuck_until(&self) -> Option<Instant> {
        Some(self.stuck_since? + self.limits.unread_timeout?)
    }

    /// Writes until nothing is owed or the socket takes no more.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> io::Result<Poll<()>> {
        if let Some(since) = self.unread_since.take() {
            self.budget.was_unread(since.elapsed());
        }
        if self.out.is_empty() {
            // TLS may hold back what it could not send last time.
            return self.poll_flush(cx);
        }
        while !self.out.is_empty() {
            match self.stream.poll_write(cx, &mut self.out) {
                Poll::Ready(Ok(_)) => {
                    self.moved = Instant::now();
                    self.stuck_since = None;
                }
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => {
                    let now = Instant::now();
                    self.unread_since = Some(now);
                    self.stuck_since.get_or_insert(now);
                    self.tell();
                    self.out.settle();
                    return Ok(Poll::Pending);
                }
            }
        }
        self.tell();
        self.out.release(false);
        self.out.settle();
        self.poll_flush(cx)
    }

    /// Tells of the replies that the socket has taken, the last of them when it took something last.
    fn tell(&mut self) {
        let (told, at) = (self.told, self.moved);
        self.out.tell(|answered| told(answered, at));
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> io::Result<Poll<()>> {
        match self.stream.poll_flush(cx) {
            Poll::Ready(Ok(())) => Ok(Poll::Ready(())),
            Poll::Ready(Err(error)) => Err(error),
            Poll::Pending => Ok(Poll::Pending),
        }
    }

    fn note_partial(&mut self) {
        if !self.reader.is_partial() {
            self.partial_since = None;
        } else if self.partial_since.is_none() {
            self.partial_since = Some(self.moved);
        }
    }

    /// Whether this peer has let others wait for the memory of its half frame, or of its requests that wait until it takes replies, for
    /// too long. Asked with every look at the time, which comes soon while there is a buffer.
    fn is_held_up(&mut self, now: Instant, rest: Option<&Rest>) -> bool {
        // A rest that waits for us is not the peer's doing.
        if rest.is_some_and(|rest| rest.waits) || !self.reader.holds_up(rest.is_some()) {
            self.held_up = None;
            return false;
        }
        // While there is a rest nothing is read: all that the peer can do is take.
        let done = if rest.is_some() { self.out.gone_bytes() } else { self.reader.buffered() as u64 };
        let before = self.held_up.unwrap_or(HeldUp { slow: Duration::ZERO, looked: now, done });
        let came = done.saturating_sub(before.done);
        let elapsed = now.duration_since(before.looked);
        // A frame that ended meanwhile counts as fast enough.
        let is_fast = done < before.done || came as f64 > elapsed.as_secs_f64() * SLOWEST_BYTES_A_SECOND as f64;
        // While a request was being served nobody looked, and nothing was read: that time is not the peer's.
        let slow = if is_fast { Duration::ZERO } else { before.slow + elapsed.min(REST * 2) };
        self.held_up = Some(HeldUp { slow, looked: now, done });
        slow >= HOLD_UP
    }

    /// When the clock rings: gives back what a resting connection does not need, ends one that has stopped, and says when to
    /// look again.
    fn look_at_the_time(&mut self, rest: Option<&mut Rest>) -> Result<Instant, End> {
        let now = Instant::now();
        // Without an idle time there is nothing to look for while nothing is buffered; looking now and then costs nothing.
        let mut next = self.moved + self.limits.patience();
        if now >= next {
            if self.limits.idle_timeout.is_some() {
                return Err(End::Idle);
            }
            next = now + self.limits.patience();
        }
        if let Some(until) = self.stuck_until() {
            if now >= until {
                return Err(End::Unread);
            }
            next = next.min(until);
        }
        if let Some(until) = self.silent.as_ref().and_then(SilentConnection::until) {
            // One that is sending its first frame has the time that any frame has, and is not to blame where it is we who do not read.
            let extra = Duration::from_secs((self.reader.buffered() / SLOWEST_BYTES_A_SECOND) as u64);
            let until = if self.reader.waits_for_memory() { now + self.rest() } else { until + extra };
            if now >= until {
                return Err(End::Silent);
            }
            next = next.min(until);
        }
        if self.is_held_up(now, rest.as_deref()) {
            return Err(End::HoldsUp);
        }
        if let Some(since) = self.partial_since {
            let extra = Duration::from_secs((self.reader.buffered() / SLOWEST_BYTES_A_SECOND) as u64);
            let until = since + self.limits.patience() + extra;
            if now >= until {
                return Err(End::HalfFrame);
            }
            next = next.min(until);
        }
        let is_resting = now >= self.moved + self.rest();
        self.reader.trim(is_resting, rest.map(|rest| &mut rest.cut.frames));
        if is_resting {
            self.out.release(true);
            self.out.settle();
        }
        if !self.reader.is_released() {
            next = next.min(now + self.rest());
        }
        Ok(next)
    }
}

/// Writes what is owed, says that no more comes, and waits a moment for the peer to do the same.
///
/// Closing a socket while unread bytes lie in it sends a reset, and a reset makes the peer's kernel throw away replies that its
/// program has not read yet. So we read and discard until the peer closes, or the moment is over.
async fn farewell(socket: &mut Socket<'_>) {
    // A slow peer gets as long as a silent one, and one that takes nothing as long as anywhere; a shutdown cuts this short by its own
    // deadline.
    let patience = socket.limits.patience();
    let mut clock = pin!(sleep_until(Instant::now() + patience));
    let last_words = poll_fn(|cx| -> Poll<io::Result<()>> {
        if socket.poll_write(cx)?.is_pending() {
            let Some(until) = socket.stuck_until() else { return Poll::Pending };
            clock.as_mut().reset(until);
            return clock.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()));
        }
        socket.stream.poll_shutdown(cx)
    });
    match timeout(patience, last_words).await {
        Ok(Ok(())) if !socket.has_ended => {}
        _ => return,
    }
    let mut discarded = BytesMut::with_capacity(SLOWEST_BYTES_A_SECOND);
    let discard = poll_fn(|cx| {
        loop {
            discarded.clear();
            match socket.stream.poll_read(cx, &mut discarded) {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(()),
                Poll::Ready(Ok(_)) => {}
                Poll::Pending => return Poll::Pending,
            }
        }
    });
    // Either way it is closed now.
    let _: Result<(), _> = timeout(FAREWELL, discard).await;
    mem::take(&mut socket.out);
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use bytes::Bytes;
    use protocol::frame::Serialization;
    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::bounds::OWN_BYTES;

    /// A connection whose one frame, of 1 MiB, is the rest of a burst, and another one that waits for the memory.
    #[tokio::test]
    async fn who_takes_no_replies_while_his_requests_hold_memory_that_others_wait_for_is_given_up() {
        let budget = Arc::new(Budget::new(1 << 20));
        let limits = Limits {
            frame_bytes_max: 16 << 20,
            out_bytes_max: 4 << 20,
            own_bytes: OWN_BYTES,
            idle_timeout: None,
            unread_timeout: None,
        };
        let mut frame = vec![0; 1 << 20];
        frame[..4].copy_from_slice(&((1 << 20) - 4_u32).to_be_bytes());
        let (ours, mut theirs) = tokio::io::duplex(2 << 20);
        theirs.write_all(&frame).await.unwrap();
        let (told, begun) = (|_: &[Answered], _: Instant| {}, Instant::now());
        let mut socket = Socket {
            stream: Stream::Given(Box::new(ours)),
            reader: Reader::new(BytesMut::new(), limits.frame_bytes_max, Arc::clone(&budget), 1),
            out: Outgoing::bounded(limits.out_bytes_max, limits.own_bytes, Arc::clone(&budget)),
            budget: Arc::clone(&budget),
            told: &told,
            limits,
            has_ended: false,
            moved: begun,
            read: begun,
            silent: None,
            unread_since: None,
            stuck_since: None,
            partial_since: None,
            held_up: None,
        };
        while socket.reader.buffered() < frame.len() {
            poll_fn(|cx| socket.reader.poll_read(&mut socket.stream, cx)).await.unwrap();
        }
        let mut rest = Rest { cut: socket.reader.cut().unwrap(), is_going_away: false, waits: false };
        socket.out.request(Serialization::Json, 1, 1, true, &(), &Bytes::from(vec![7; 500_000]));
        let mut look = {
            let mut seconds = 0;
            move || {
                seconds += 2;
                begun + Duration::from_secs(seconds)
            }
        };
        assert!((0..10).all(|_| !socket.is_held_up(look(), Some(&rest))), "nobody needs it");
        assert!(!budget.take(1 << 20, 0, 2, Waker::noop()));
        for _ in 0..10 {
            assert!(!socket.is_held_up(look(), Some(&rest)), "he takes them");
            socket.out.advance(2 * SLOWEST_BYTES_A_SECOND + 1);
        }
        rest.waits = true;
        assert!((0..10).all(|_| !socket.is_held_up(look(), Some(&rest))), "it is we who let it wait");
        rest.waits = false;
        let looks: Vec<bool> = (0..6).map(|_| socket.is_held_up(look(), Some(&rest))).collect();
        assert_eq!(looks, [false, false, false, false, false, true]);
    }
}
