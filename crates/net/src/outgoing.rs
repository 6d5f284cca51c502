//! Replies and requests on their way out: one buffer for what we encode, and slices of the log written from where they lie.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use protocol::code::ResponseCode;
use protocol::frame::Serialization;
use protocol::header::{EncodeFields, FLAG_ONEWAY, FLAG_RESPONSE, Head, write_frame};
use tokio::time::Instant;

/// From here on a slice is written from where it lies. For us alone sharing costs about 20 ns a slice and copying about 25 ns a
/// KiB (bench `connection`), so the two meet near 1 KiB; the rest of the way to 4 KiB pays for the kernel's work on one more
/// entry of a `writev`, of which there are at most 64 a call.
pub const SHARE_FROM_BYTES: usize = 4 << 10;

/// An empty buffer larger than this is given back instead of kept.
const KEPT_BYTES: usize = 64 << 10;

/// The number of slices given to one `writev`.
pub(crate) const WRITE_SLICES: usize = 64;

/// When something came, as small as it can be: there is one for each request that waits for its answer. In microseconds since the first that the
/// process saw; they begin anew after 71 minutes, so only what is younger knows its age.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival(u32);

impl Arrival {
    /// At that time.
    pub fn at(time: Instant) -> Arrival {
        static FIRST: OnceLock<Instant> = OnceLock::new();
        let since = time.saturating_duration_since(*FIRST.get_or_init(|| time));
        Arrival(since.as_micros() as u32)
    }

    /// How long before `time` that was.
    pub fn until(self, time: Instant) -> Duration {
        Duration::from_micros(Arrival::at(time).0.wrapping_sub(self.0).into())
    }
}

/// What a reply needs to know about its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyTo {
    /// The request's code.
    pub code: i32,
    /// The request's number at the requester.
    pub opaque: i32,
    /// How the reply's header is written.
    pub serialization: Serialization,
    /// Nobody waits: nothing will be written.
    pub is_oneway: bool,
    /// When the last bytes of its burst were read.
    pub came: Arrival,
    /// It was held until there was something to answer (a long poll).
    pub is_held: bool,
}

/// Answers of one kind to requests that came together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The requests' code.
    pub request: i32,
    /// The answers' code.
    pub response: ResponseCode,
    /// When they came.
    pub came: Arrival,
    /// They were held until there was something to answer.
    pub is_held: bool,
    /// How many.
    pub count: u64,
    /// Where the last of them ends among all bytes of its connection.
    pub end: u64,
}

/// Bytes that somebody else owns and that must not change or go away until they are written.
#[derive(Clone)]
pub struct SharedSlice {
    /// Keeps them alive.
    pub owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    /// Which of the owner's bytes.
    pub range: Range<usize>,
}

impl SharedSlice {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.range.clone()]
    }

    fn continues(&self, before: &SharedSlice) -> bool {
        before.range.end == self.range.start && std::ptr::addr_eq(Arc::as_ptr(&before.owner), Arc::as_ptr(&self.owner))
    }
}

impl std::fmt::Debug for SharedSlice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedSlice").field("range", &self.range).finish_non_exhaustive()
    }
}

#[derive(Debug)]
enum Lent {
    Slice(SharedSlice),
    Bytes(Bytes),
}

impl Lent {
    fn bytes(&self) -> &[u8] {
        match self {
            Lent::Slice(slice) => slice.bytes(),
            Lent::Bytes(bytes) => bytes,
        }
    }
}

/// Lent bytes, and their place between the copied ones.
#[derive(Debug)]
struct Placed {
    /// How many copied bytes, counted from the beginning of this connection's output, go before it.
    after: u64,
    lent: Lent,
    /// How much of it is already written.
    written: usize,
}

/// Frames that wait to be written.
#[derive(Debug, Default)]
pub struct Outgoing {
    copied: BytesMut,
    /// The place of `copied`'s first byte among all bytes ever copied here.
    front: u64,
    lent: VecDeque<Placed>,
    lent_bytes: usize,
    /// From so many bytes on it is full; 0 when there is no bound. It belongs to the place, not to the frames: they come and go
    /// without it.
    full_from: usize,
    /// Bytes that went before what waits.
    gone: u64,
    /// The replies that are not told of yet, in runs of one kind: the last run, and those before it, which are seldom any.
    last: Option<Answered>,
    earlier: Vec<Answered>,
}

/// Whole frames taken out of an [`Outgoing`], to be sent through a connection's handle.
#[derive(Debug, Default)]
pub struct Frames(Outgoing);

impl Frames {
    /// How many bytes there are.
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

impl Outgoing {
    /// Empty, without an allocation.
    pub fn new() -> Outgoing {
        Outgoing::default()
    }

    /// Empty; [`Outgoing::is_full`] from `bytes_max` bytes on.
    pub(crate) fn bounded(bytes_max: usize) -> Outgoing {
        Outgoing { full_from: bytes_max.max(1), ..Outgoing::default() }
    }

    /// Bytes that wait to be written.
    pub fn bytes(&self) -> usize {
        self.copied.len() + self.lent_bytes
    }

    /// Whether so much waits that no more should be added before some of it is written. A service that stops here gets the rest
    /// of its burst later.
    pub fn is_full(&self) -> bool {
        self.full_from > 0 && self.bytes() >= self.full_from
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.copied.is_empty() && self.lent.is_empty()
    }

    /// Forgets what waits, and keeps the buffer.
    pub fn discard(&mut self) {
        self.advance(self.bytes());
        self.last = None;
        self.earlier.clear();
    }

    /// Tells of the replies that are gone and were not told of yet.
    pub(crate) fn tell(&mut self, told: impl FnOnce(&[Answered])) {
        let gone = self.gone;
        self.earlier.extend(self.last.take_if(|run| run.end <= gone));
        let count = self.earlier.partition_point(|run| run.end <= gone);
        if count > 0 {
            told(&self.earlier[..count]);
            self.earlier.drain(..count);
        }
    }

    /// A reply was added, whole.
    fn answered(&mut self, to: ReplyTo, response: ResponseCode) {
        let end = self.gone + self.bytes() as u64;
        let ReplyTo { code: request, came, is_held, .. } = to;
        match &mut self.last {
            Some(run) if (run.request, run.response, run.came, run.is_held) == (request, response, came, is_held) => {
                run.count += 1;
                run.end = end;
            }
            last => {
                let run = Answered { request, response, came, is_held, count: 1, end };
                self.earlier.extend(last.replace(run));
            }
        }
    }

    /// Takes everything out.
    pub fn take(&mut self) -> Frames {
        let emptied = Outgoing { full_from: self.full_from, ..Outgoing::default() };
        Frames(Outgoing { full_from: 0, ..std::mem::replace(self, emptied) })
    }

    /// Gives everything, buffers included, for what the other has.
    pub(crate) fn exchange(&mut self, other: &mut Outgoing) {
        std::mem::swap(self, other);
        std::mem::swap(&mut self.full_from, &mut other.full_from);
    }

    /// Answers a request; writes nothing if it was oneway.
    pub fn reply(
        &mut self,
        to: ReplyTo,
        code: ResponseCode,
        remark: Option<&str>,
        fields: &dyn EncodeFields,
        body: &[u8],
    ) {
        if to.is_oneway {
            return;
        }
        self.reply_head(to, code, remark, fields, body.len());
        self.copied.put_slice(body);
        self.answered(to, code);
    }

    /// Answers a request with a body of `body_len` bytes that lies in several places; writes nothing if it was oneway.
    ///
    /// Slices that continue each other become one; small ones are copied, large ones written from where they lie.
    pub fn reply_shared(
        &mut self,
        to: ReplyTo,
        code: ResponseCode,
        remark: Option<&str>,
        fields: &dyn EncodeFields,
        body_len: usize,
        parts: impl Iterator<Item = SharedSlice>,
    ) {
        if to.is_oneway {
            return;
        }
        self.reply_head(to, code, remark, fields, body_len);
        let mut total = 0;
        let mut run: Option<SharedSlice> = None;
        for part in parts {
            total += part.range.len();
            match &mut run {
                Some(before) if part.continues(before) => before.range.end = part.range.end,
                Some(_) | None => {
                    if let Some(done) = run.replace(part) {
                        self.put_shared(done);
                    }
                }
            }
        }
        if let Some(last) = run {
            self.put_shared(last);
        }
        // The length stands in the frame already; a wrong one would misplace every later byte of this connection.
        assert_eq!(total, body_len, "the parts of a body do not add up to its length");
        self.answered(to, code);
    }

    /// Writes a request of ours.
    pub(crate) fn request(
        &mut self,
        serialization: Serialization,
        code: i32,
        opaque: i32,
        is_oneway: bool,
        fields: &dyn EncodeFields,
        body: &Bytes,
    ) {
        let flag = if is_oneway { FLAG_ONEWAY } else { 0 };
        write_frame(&mut self.copied, serialization, &Head { code, flag, opaque, remark: None }, fields, body.len());
        if body.len() < SHARE_FROM_BYTES {
            self.copied.put_slice(body);
        } else {
            self.put_lent(Lent::Bytes(body.clone()));
        }
    }

    /// Appends frames that were made elsewhere. Takes over their buffer when there is nothing to append to.
    pub fn extend(&mut self, frames: Frames) {
        let Frames(mut other) = frames;
        // Their places are counted on from ours.
        let places = (self.gone + self.bytes() as u64).wrapping_sub(other.gone);
        let moved = |run: Answered| Answered { end: run.end.wrapping_add(places), ..run };
        self.earlier.extend(self.last.take());
        self.earlier.extend(other.earlier.drain(..).map(moved));
        self.last = other.last.take().map(moved);
        if self.is_empty() {
            other.full_from = self.full_from;
            other.gone = self.gone;
            other.last = self.last.take();
            other.earlier = std::mem::take(&mut self.earlier);
            let mine = std::mem::replace(self, other);
            if self.copied.capacity() < mine.copied.capacity() && self.copied.is_empty() {
                self.copied = mine.copied;
            }
            return;
        }
        let shift = (self.front + self.copied.len() as u64).wrapping_sub(other.front);
        self.copied.put_slice(&other.copied);
        self.lent_bytes += other.lent_bytes;
        for mut placed in other.lent.drain(..) {
            placed.after = placed.after.wrapping_add(shift);
            self.lent.push_back(placed);
        }
    }

    fn reply_head(
        &mut self,
        to: ReplyTo,
        code: ResponseCode,
        remark: Option<&str>,
        fields: &dyn EncodeFields,
        body_len: usize,
    ) {
        let head = Head { code: code as i32, flag: FLAG_RESPONSE, opaque: to.opaque, remark };
        write_frame(&mut self.copied, to.serialization, &head, fields, body_len);
    }

    fn put_shared(&mut self, slice: SharedSlice) {
        if slice.range.len() < SHARE_FROM_BYTES {
            self.copied.put_slice(slice.bytes());
        } else {
            self.put_lent(Lent::Slice(slice));
        }
    }

    fn put_lent(&mut self, lent: Lent) {
        self.lent_bytes += lent.bytes().len();
        self.lent.push_back(Placed { after: self.front + self.copied.len() as u64, lent, written: 0 });
    }

    /// What to write next, in order. Returns how many of `slices` were filled.
    pub(crate) fn fill<'a>(&'a self, slices: &mut [IoSlice<'a>; WRITE_SLICES]) -> usize {
        let mut filled = 0;
        let mut at = 0;
        for placed in &self.lent {
            let until = (placed.after - self.front) as usize;
            if until > at {
                if filled == WRITE_SLICES {
                    return filled;
                }
                slices[filled] = IoSlice::new(&self.copied[at..until]);
                filled += 1;
                at = until;
            }
            if filled == WRITE_SLICES {
                return filled;
            }
            slices[filled] = IoSlice::new(&placed.lent.bytes()[placed.written..]);
            filled += 1;
        }
        if at < self.copied.len() && filled < WRITE_SLICES {
            slices[filled] = IoSlice::new(&self.copied[at..]);
            filled += 1;
        }
        filled
    }

    /// Forgets the first `bytes`, which are written.
    pub(crate) fn advance(&mut self, mut bytes: usize) {
        self.gone += bytes as u64;
        while bytes > 0 {
            let Some(placed) = self.lent.front_mut() else {
                self.drop_copied(bytes);
                return;
            };
            let before = (placed.after - self.front) as usize;
            if before > 0 {
                let step = before.min(bytes);
                self.drop_copied(step);
                bytes -= step;
                continue;
            }
            let left = placed.lent.bytes().len() - placed.written;
            let step = left.min(bytes);
            placed.written += step;
            self.lent_bytes -= step;
            bytes -= step;
            if step == left {
                self.lent.pop_front();
            }
        }
    }

    fn drop_copied(&mut self, bytes: usize) {
        self.copied.advance(bytes);
        self.front += bytes as u64;
    }

    /// Gives back buffers that are empty and, unless `all`, larger than worth keeping.
    pub(crate) fn release(&mut self, all: bool) {
        if self.is_empty() {
            if all || self.copied.capacity() > KEPT_BYTES {
                self.copied = BytesMut::new();
            }
            if all {
                self.lent = VecDeque::new();
                self.earlier.shrink_to_fit();
            }
        }
    }

    /// Memory held beyond what every connection may hold anyway.
    pub(crate) fn excess_bytes(&self) -> usize {
        self.copied.capacity().saturating_sub(KEPT_BYTES)
    }

    /// Everything as one vector, for tests and for callers without a socket.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.bytes());
        let mut at = 0;
        for placed in &self.lent {
            let until = (placed.after - self.front) as usize;
            all.extend_from_slice(&self.copied[at..until]);
            at = until;
            all.extend_from_slice(&placed.lent.bytes()[placed.written..]);
        }
        all.extend_from_slice(&self.copied[at..]);
        all
    }
}

impl Frames {
    /// Everything as one vector, for tests and for callers without a socket.
    pub fn to_vec(&self) -> Vec<u8> {
        self.0.to_vec()
    }
}
