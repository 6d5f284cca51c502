//! What a connection asks of whoever answers its requests, and how it lends the requests out.

use std::future::Future;

use bytes::Bytes;
use protocol::code::ResponseCode;
use protocol::frame::{self, Serialization};
use protocol::header::{self, Header, HeaderError, HeaderScratch};
use tokio::time::Instant;

use crate::call::Calls;
use crate::connection::Connection;
use crate::outgoing::{Answered, Arrival, Outgoing, ReplyTo};

/// Answers requests. One value serves all connections of one or several listeners.
pub trait Service: Send + Sync + 'static {
    /// What is remembered about one connection. Only its task touches it.
    type Session: Send + 'static;
    /// Work that somebody hands back to a connection's own task (a woken pull, a finished cold read).
    type Work: Send + 'static;

    /// A connection has come, and its peer is known.
    fn open(&self, connection: &Connection<Self::Work>) -> Self::Session;

    /// Answers a burst: everything that had arrived when the task looked. Replies leave when this returns.
    ///
    /// While this waits, nothing is read from this connection: that is the back-pressure on its peer. One whose replies may be
    /// large asks [`Outgoing::is_full`] before each request and returns if so: what is left of the burst comes in another one,
    /// when the peer has taken its replies. One that keeps replies back may leave the rest, too: [`Burst::leave_rest`]. Requests left
    /// for any other reason are dropped.
    fn serve(
        &self,
        session: &mut Self::Session,
        burst: &mut Burst<'_>,
        out: &mut Outgoing,
    ) -> impl Future<Output = ()> + Send;

    /// Does work that came through [`Connection::post`].
    fn resume(
        &self,
        session: &mut Self::Session,
        work: Self::Work,
        out: &mut Outgoing,
    ) -> impl Future<Output = ()> + Send;

    /// Nothing has moved for two seconds: what is kept only so that the next burst finds it made can be given back. Called again each time it is so.
    fn rested(&self, _session: &mut Self::Session) {}

    /// The last of those replies was taken by the socket at that time. Called often, by whoever writes.
    fn answered(&self, _answered: &[Answered], _at: Instant) {}

    /// A listener accepts no more, another one goes on at its port ([`crate::Closing::GoesOn`]), and all its connections go away
    /// ([`Connection::goes_away`]): clients that know `GO_AWAY` ([`Request::knows_go_away`]) may be answered with it. Called by each
    /// listener, and once more before its connections drain.
    fn goes_away(&self) {}

    /// The connection is gone. Called once for each `open`, also when serving panicked.
    fn close(&self, session: Self::Session);
}

/// One request, lent until the next one is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Its header, borrowed from the read buffer.
    pub header: Header<'a>,
    /// The bytes of that header.
    pub head: &'a [u8],
    /// How the header was written, and so how the reply's will be.
    pub serialization: Serialization,
    /// Its body. A clone shares the read buffer of the whole burst: copy what you keep for long.
    pub body: &'a Bytes,
    /// When the last bytes of its burst were read.
    pub came: Arrival,
}

impl Request<'_> {
    /// What a reply needs to know, free of the borrow.
    pub fn reply_to(&self) -> ReplyTo {
        reply_to(&self.header, self.serialization, self.came)
    }

    /// Whether its client connects anew, and asks again there, when [`ResponseCode::GoAway`] answers it.
    pub fn knows_go_away(&self) -> bool {
        knows_go_away(&self.header)
    }

    /// The bytes of header and body.
    pub fn bytes(&self) -> usize {
        self.head.len() + self.body.len()
    }
}

/// A copy of a request that outlives its burst: it is carried out on another thread.
#[derive(Debug)]
pub struct OwnedRequest {
    head: Box<[u8]>,
    /// The number to answer under, which is another one than in the header if a broker asks in the
    /// name of a client.
    opaque: i32,
    serialization: Serialization,
    body: Bytes,
    came: Arrival,
}

impl OwnedRequest {
    /// A copy.
    pub fn of(request: &Request<'_>) -> OwnedRequest {
        OwnedRequest {
            head: request.head.into(),
            opaque: request.header.opaque,
            serialization: request.serialization,
            body: Bytes::copy_from_slice(request.body),
            came: request.came,
        }
    }

    /// Lends the request. Fails only if it was never one: its header was read before.
    pub fn lend<R>(&self, f: impl FnOnce(&Request<'_>) -> R) -> Result<R, HeaderError> {
        let mut scratch = HeaderScratch::new();
        let mut header = header::decode(&self.head, self.serialization, &mut scratch)?;
        let OwnedRequest { head, opaque, serialization, body, came } = self;
        header.opaque = *opaque;
        Ok(f(&Request { header, head, serialization: *serialization, body, came: *came }))
    }
}

fn reply_to(header: &Header<'_>, serialization: Serialization, came: Arrival) -> ReplyTo {
    let (code, opaque, is_oneway) = (header.code, header.opaque, header.is_oneway());
    ReplyTo { code, opaque, serialization, is_oneway, came, is_held: false }
}

/// The whole frames that one look at the socket brought.
pub struct Burst<'c> {
    frames: Bytes,
    came: Arrival,
    at: usize,
    remaining: usize,
    body: Bytes,
    scratch: &'c mut HeaderScratch,
    calls: &'c Calls,
    broken: Option<HeaderError>,
    /// Requests of those who know [`ResponseCode::GoAway`] are not lent out but answered with it.
    pub(crate) turns_away: bool,
    turned_away: Vec<ReplyTo>,
    /// See [`Burst::leave_rest`].
    pub(crate) is_left: bool,
}

/// Clients after 5.3.1 know `GO_AWAY`: the number of that version in a request's header.
const LAST_WITHOUT_GO_AWAY: i32 = 475;

fn knows_go_away(header: &Header<'_>) -> bool {
    header.version > LAST_WITHOUT_GO_AWAY
}

impl<'c> Burst<'c> {
    /// `frames` holds exactly `count` frames whose lengths were checked when they were cut, and which were read by then.
    pub(crate) fn new(
        frames: Bytes,
        count: usize,
        came: Instant,
        scratch: &'c mut HeaderScratch,
        calls: &'c Calls,
    ) -> Burst<'c> {
        Burst {
            frames,
            came: Arrival::at(came),
            at: 0,
            remaining: count,
            body: Bytes::new(),
            scratch,
            calls,
            broken: None,
            turns_away: false,
            turned_away: Vec::new(),
            is_left: false,
        }
    }

    /// The next request. Responses to our own requests are routed on the way and not seen here.
    ///
    /// A header that cannot be read ends the burst, and the connection after the replies so far: we do not know whom to answer.
    #[allow(clippy::should_implement_trait, reason = "an iterator cannot lend")]
    pub fn next(&mut self) -> Option<Request<'_>> {
        loop {
            let rest = self.frames.get(self.at..)?;
            // The limit was applied when the burst was cut.
            let layout = frame::peek(rest, usize::MAX).ok().flatten()?;
            let start = self.at;
            self.at += layout.frame_bytes;
            self.remaining = self.remaining.saturating_sub(1);
            self.body = if layout.body.is_empty() {
                Bytes::new()
            } else {
                self.frames.slice(start + layout.body.start..start + layout.body.end)
            };
            // SAFETY: `scratch` is borrowed exclusively by `self`, which stays borrowed as long as the header that is returned
            // lives. On the branches that loop, the header is dropped before the next reborrow. The borrow checker refuses
            // exactly this shape (a conditional return of a borrow inside a loop), so the lifetime is cut by hand.
            let scratch = unsafe { &mut *std::ptr::from_mut::<HeaderScratch>(self.scratch) };
            let head = start + layout.header.start..start + layout.header.end;
            match header::decode(&self.frames[head.clone()], layout.serialization, scratch) {
                Err(error) => {
                    self.broken = Some(error);
                    self.at = self.frames.len();
                    self.remaining = 0;
                    return None;
                }
                Ok(header) if header.is_response() => {
                    let frame = self.frames.slice(start..self.at);
                    self.calls.answered(&header, frame, &layout);
                }
                Ok(header) if self.turns_away && knows_go_away(&header) => {
                    self.turned_away.push(reply_to(&header, layout.serialization, self.came));
                }
                Ok(header) => {
                    let (serialization, came) = (layout.serialization, self.came);
                    return Some(Request { header, head: &self.frames[head], serialization, body: &self.body, came });
                }
            }
        }
    }

    /// Shows the requests once more that were lent out so far, in their order.
    pub fn again(&self, mut show: impl FnMut(&Request<'_>)) {
        let (mut scratch, mut at) = (HeaderScratch::new(), 0);
        // Ends with the last request that was lent out.
        while at < self.at {
            let Some(layout) = self.frames.get(at..).and_then(|rest| frame::peek(rest, usize::MAX).ok().flatten())
            else {
                return;
            };
            let part = |range: std::ops::Range<usize>| self.frames.slice(at + range.start..at + range.end);
            let (head, body) = (part(layout.header), part(layout.body));
            at += layout.frame_bytes;
            match header::decode(&head, layout.serialization, &mut scratch) {
                Ok(header) if !header.is_response() => {
                    let (serialization, came) = (layout.serialization, self.came);
                    show(&Request { header, head: &head, serialization, body: &body, came });
                }
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// How many frames are still to come; responses to our own requests count too.
    pub fn remaining(&self) -> usize {
        self.remaining
    }

    /// Whether the request lent out last was the last frame of this burst.
    pub fn is_last(&self) -> bool {
        self.remaining == 0
    }

    /// Leaves the rest, though there is room for replies: it comes again when something has come through [`Connection::post`] or
    /// [`Connection::send`], or sooner, and may be left again; nothing is read before. The last call of a service that knows that something
    /// will come, and that owes it ([`Connection::owe`]): until then the connection takes no request.
    pub fn leave_rest(&mut self) {
        self.is_left = true;
    }

    /// The frames that the service left, and how many there are. Those that were turned away so far are answered.
    pub(crate) fn rest(mut self, out: &mut Outgoing) -> (Bytes, usize) {
        self.answer_turned_away(out);
        (self.frames.split_off(self.at), self.remaining)
    }

    /// Skips what the service left over, so that responses among it find their callers, and answers those that are turned away.
    /// Says why the connection must end, if so.
    pub(crate) fn finish(mut self, out: &mut Outgoing) -> Result<(), HeaderError> {
        while self.next().is_some() {}
        self.answer_turned_away(out);
        self.broken.map_or(Ok(()), Err)
    }

    fn answer_turned_away(&mut self, out: &mut Outgoing) {
        for to in self.turned_away.drain(..) {
            out.reply(to, ResponseCode::GoAway, Some("please go away"), &(), &[]);
        }
    }
}
