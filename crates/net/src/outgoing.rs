//! Replies and requests on their way out: one buffer for what we encode, and slices of the log written from where they lie.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use protocol::code::ResponseCode;
use protocol::frame::Serialization;
use protocol::header::{EncodeFields, FLAG_ONEWAY, FLAG_RESPONSE, Head, write_frame};
use tokio::time::Instant;

use crate::bounds::{Account, Budget, OWN_BYTES};

/// From here on a slice is written from where it lies. For us alone sharing costs about 20 ns a slice and copying about 25 ns a
/// KiB (bench `connection`), so the two meet near 1 KiB; the rest of the way to 4 KiB pays for the kernel's work on one more
/// entry of a `writev`, of which there are at most 64 a call.
pub const SHARE_FROM_BYTES: usize = 4 << 10;

/// The same while replies hold more than they may, for a connection that has half of its own: far enough above what a place costs. What is
/// smaller is copied, however it is.
pub const COPIED_BELOW_BYTES: usize = 256;

/// Room for more lent slices, or for more runs of answers, is given back when all are written.
const KEPT_PLACES: usize = 256;

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

impl ReplyTo {
    /// For what came by no connection: nothing will be written.
    pub const NOBODY: ReplyTo = ReplyTo {
        code: 0,
        opaque: 0,
        serialization: Serialization::Json,
        is_oneway: true,
        came: Arrival(0),
        is_held: false,
    };
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

/// How much may wait in a place. It belongs to the place, not to the frames: they come and go without it.
#[derive(Debug)]
pub(crate) struct Room {
    /// From so many bytes on it is full.
    full_from: usize,
    /// And from so many bytes of memory on while replies of all connections hold more than they may.
    own_bytes: usize,
    account: Account,
    /// It was full when somebody asked, and nothing has left since. What others hold changes at any time: without this, a service
    /// that stopped because it was full, and its caller, could be told different things.
    is_full: bool,
}

/// Frames that wait to be written.
#[derive(Debug, Default)]
pub struct Outgoing {
    /// What waits begins at `written`. A buffer that is advanced would not say any more how much memory it holds.
    copied: BytesMut,
    written: usize,
    /// The place of the first copied byte that waits among all bytes ever copied here.
    front: u64,
    lent: VecDeque<Placed>,
    lent_bytes: usize,
    /// Memory of the lent pieces that nobody else counts: bodies of our own requests, each as a whole until all of it is written.
    owned_bytes: usize,
    /// `None` when there is no bound.
    room: Option<Room>,
    /// Where an answer is made apart while replies hold more than they may: from so many copied bytes on it saves memory.
    saves_from: Option<usize>,
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

    /// Memory that is held for them. Slices are counted by whoever lends them.
    pub fn memory_bytes(&self) -> usize {
        self.0.memory_bytes()
    }
}

impl Outgoing {
    /// Empty, without an allocation.
    pub fn new() -> Outgoing {
        Outgoing::default()
    }

    /// Empty; [`Outgoing::is_full`] from `bytes_max` bytes on, and from `own_bytes` of memory on while `budget` is short.
    pub(crate) fn bounded(bytes_max: usize, own_bytes: usize, budget: Arc<Budget>) -> Outgoing {
        let room = Room { full_from: bytes_max.max(1), own_bytes, account: Account::new(budget), is_full: false };
        Outgoing { room: Some(room), ..Outgoing::default() }
    }

    /// Empty, for one answer that is made apart, since it may have to wait before it comes here: it saves memory where this place would.
    pub fn apart(&self) -> Outgoing {
        let saves_from = self.saves_from().map(|from| from.saturating_sub(self.waiting().len()));
        Outgoing { saves_from, ..Outgoing::default() }
    }

    /// Bytes that wait to be written.
    pub fn bytes(&self) -> usize {
        self.copied.len() - self.written + self.lent_bytes
    }

    /// Whether so much waits that no more should be added before some of it is written. A service that stops here gets the rest
    /// of its burst later. Once it is, it stays so until the peer has taken some.
    pub fn is_full(&mut self) -> bool {
        let bytes = self.bytes();
        let memory = self.waiting().len() + self.lent.len() * size_of::<Placed>() + self.owned_bytes;
        let Some(room) = &self.room else { return false };
        if room.is_full {
            return true;
        }
        let mut is_full = bytes >= room.full_from;
        if !is_full && memory >= room.own_bytes {
            // What was added last counts already.
            self.settle();
            is_full = self.is_short();
            // It grew by doubling, and gets nothing more for now.
            let has_spare = self.copied.capacity() - self.copied.len() > OWN_BYTES;
            // Given back with each bit that the peer takes, what is written would cost a copy of all that waits for each bit.
            let is_mostly_written = self.written > OWN_BYTES.max(self.waiting().len());
            if is_full && (has_spare || is_mostly_written) {
                self.copied = BytesMut::from(self.waiting());
                self.written = 0;
                self.settle();
            }
        }
        if let Some(room) = &mut self.room {
            room.is_full = is_full;
        }
        is_full
    }

    /// Whether replies of all connections hold more than they may.
    fn is_short(&self) -> bool {
        self.room.as_ref().is_some_and(|room| room.account.budget().replies_are_many())
    }

    /// From how many copied bytes on small slices are lent, too, if they are now: copied, they would be the memory that there is too little of.
    fn saves_from(&self) -> Option<usize> {
        if self.is_short() { Some(OWN_BYTES / 2) } else { self.saves_from }
    }

    /// Counts what is held now against the budget. A comparison while that does not change.
    pub(crate) fn settle(&mut self) {
        let excess = self.excess_bytes();
        if let Some(room) = &mut self.room {
            room.account.is_now(excess);
        }
    }

    /// Nothing is bounded or counted here any more. To be dropped where somebody may be woken.
    pub(crate) fn give_up_room(&mut self) -> Option<Room> {
        self.room.take()
    }

    /// Bytes that went before what waits.
    pub(crate) fn gone_bytes(&self) -> u64 {
        self.gone
    }

    /// Copied bytes that wait.
    fn waiting(&self) -> &[u8] {
        &self.copied[self.written..]
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
        let mut room = self.room.take();
        if let Some(room) = &mut room {
            room.is_full = false;
        }
        Frames(std::mem::replace(self, Outgoing { room, ..Outgoing::default() }))
    }

    /// Takes what waits in another place of the same connection, and what counts for it; exchanges the buffers where nothing waits here.
    pub(crate) fn take_from(&mut self, other: &mut Outgoing) {
        if self.is_empty() {
            std::mem::swap(self, other);
            std::mem::swap(&mut self.room, &mut other.room);
        } else {
            self.extend(other.take());
        }
        if let Some(theirs) = &mut other.room {
            theirs.is_full = false;
            if let Some(mine) = &mut self.room {
                mine.account.take_over(&mut theirs.account);
            }
        }
        if self.room.is_none() {
            // Nothing is counted here: what is left there is all that counts.
            other.settle();
        }
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

    /// The same with a body that nobody else needs: a large one is written from where it lies.
    pub fn reply_owned(
        &mut self,
        to: ReplyTo,
        code: ResponseCode,
        remark: Option<&str>,
        fields: &dyn EncodeFields,
        body: Vec<u8>,
    ) {
        if body.len() < SHARE_FROM_BYTES {
            return self.reply(to, code, remark, fields, &body);
        }
        if to.is_oneway {
            return;
        }
        self.reply_head(to, code, remark, fields, body.len());
        self.owned_bytes += body.len();
        self.put_lent(Lent::Bytes(body.into()));
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
        let saves_from = self.saves_from();
        let mut total = 0;
        let mut run: Option<SharedSlice> = None;
        for part in parts {
            total += part.range.len();
            match &mut run {
                Some(before) if part.continues(before) => before.range.end = part.range.end,
                Some(_) | None => {
                    if let Some(done) = run.replace(part) {
                        self.put_shared(done, saves_from);
                    }
                }
            }
        }
        if let Some(last) = run {
            self.put_shared(last, saves_from);
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
        self.close_gap();
        write_frame(&mut self.copied, serialization, &Head { code, flag, opaque, remark: None }, fields, body.len());
        if body.len() < SHARE_FROM_BYTES {
            self.copied.put_slice(body);
        } else {
            self.owned_bytes += body.len();
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
            other.room = self.room.take();
            other.saves_from = self.saves_from;
            other.gone = self.gone;
            other.last = self.last.take();
            other.earlier = std::mem::take(&mut self.earlier);
            let mine = std::mem::replace(self, other);
            if self.copied.capacity() < mine.copied.capacity() && self.copied.is_empty() {
                self.copied = mine.copied;
            }
            return;
        }
        self.close_gap();
        let shift = (self.front + self.waiting().len() as u64).wrapping_sub(other.front);
        self.copied.put_slice(other.waiting());
        self.lent_bytes += other.lent_bytes;
        self.owned_bytes += other.owned_bytes;
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
        self.close_gap();
        write_frame(&mut self.copied, to.serialization, &head, fields, body_len);
    }

    fn put_shared(&mut self, slice: SharedSlice, saves_from: Option<usize>) {
        let is_saving = saves_from.is_some_and(|from| self.waiting().len() >= from);
        let share_from = if is_saving { COPIED_BELOW_BYTES } else { SHARE_FROM_BYTES };
        if slice.range.len() < share_from {
            self.copied.put_slice(slice.bytes());
        } else {
            self.put_lent(Lent::Slice(slice));
        }
    }

    fn put_lent(&mut self, lent: Lent) {
        self.lent_bytes += lent.bytes().len();
        self.lent.push_back(Placed { after: self.front + self.waiting().len() as u64, lent, written: 0 });
    }

    /// Before something is added: moves what waits to the front of its buffer, unless that is more than was written from there.
    fn close_gap(&mut self) {
        let left = self.waiting().len();
        if self.written > 0 && left <= self.written {
            self.copied.copy_within(self.written.., 0);
            self.copied.truncate(left);
            self.written = 0;
        }
    }

    /// What to write next, in order. Returns how many of `slices` were filled.
    pub(crate) fn fill<'a>(&'a self, slices: &mut [IoSlice<'a>; WRITE_SLICES]) -> usize {
        let copied = self.waiting();
        let mut filled = 0;
        let mut at = 0;
        for placed in &self.lent {
            let until = (placed.after - self.front) as usize;
            if until > at {
                if filled == WRITE_SLICES {
                    return filled;
                }
                slices[filled] = IoSlice::new(&copied[at..until]);
                filled += 1;
                at = until;
            }
            if filled == WRITE_SLICES {
                return filled;
            }
            slices[filled] = IoSlice::new(&placed.lent.bytes()[placed.written..]);
            filled += 1;
        }
        if at < copied.len() && filled < WRITE_SLICES {
            slices[filled] = IoSlice::new(&copied[at..]);
            filled += 1;
        }
        filled
    }

    /// Forgets the first `bytes`, which are written.
    pub(crate) fn advance(&mut self, mut bytes: usize) {
        self.gone += bytes as u64;
        if let Some(room) = &mut self.room {
            room.is_full = false;
        }
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
                let gone = self.lent.pop_front();
                if let Some(Placed { lent: Lent::Bytes(owned), .. }) = gone {
                    self.owned_bytes -= owned.len();
                }
            }
        }
    }

    fn drop_copied(&mut self, bytes: usize) {
        assert!(bytes <= self.waiting().len(), "more was written than waited");
        self.written += bytes;
        self.front += bytes as u64;
        let left = self.waiting().len();
        if left == 0 {
            self.copied.clear();
            self.written = 0;
        } else if self.copied.capacity() > OWN_BYTES && left <= self.copied.capacity() / 4 {
            // The peer may never take the rest: it alone must not keep what all of it needed.
            self.copied = BytesMut::from(self.waiting());
            self.written = 0;
        }
    }

    /// Gives back buffers that are empty and, unless `all`, larger than worth keeping.
    pub(crate) fn release(&mut self, all: bool) {
        if self.is_empty() {
            if all || self.copied.capacity() > OWN_BYTES {
                self.copied = BytesMut::new();
            }
            if all || self.lent.capacity() > KEPT_PLACES {
                self.lent = VecDeque::new();
            }
            if all || self.earlier.capacity() > KEPT_PLACES {
                self.earlier.shrink_to_fit();
            }
        }
    }

    /// Memory held. Slices are counted by whoever lends them.
    fn memory_bytes(&self) -> usize {
        let beside = self.lent.capacity() * size_of::<Placed>() + self.earlier.capacity() * size_of::<Answered>();
        self.copied.capacity() + beside + self.owned_bytes
    }

    /// The same beyond what every connection may hold anyway.
    fn excess_bytes(&self) -> usize {
        self.memory_bytes().saturating_sub(OWN_BYTES)
    }

    /// Everything as one vector, for tests and for callers without a socket.
    pub fn to_vec(&self) -> Vec<u8> {
        let copied = self.waiting();
        let mut all = Vec::with_capacity(self.bytes());
        let mut at = 0;
        for placed in &self.lent {
            let until = (placed.after - self.front) as usize;
            all.extend_from_slice(&copied[at..until]);
            at = until;
            all.extend_from_slice(&placed.lent.bytes()[placed.written..]);
        }
        all.extend_from_slice(&copied[at..]);
        all
    }
}

impl Frames {
    /// Everything as one vector, for tests and for callers without a socket.
    pub fn to_vec(&self) -> Vec<u8> {
        self.0.to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: usize = 512 << 10;
    const ANSWER: usize = 20 << 10;

    fn to() -> ReplyTo {
        let came = Arrival::at(Instant::now());
        ReplyTo { code: 11, opaque: 1, serialization: Serialization::Json, is_oneway: false, came, is_held: false }
    }

    fn place(budget: &Arc<Budget>) -> Outgoing {
        Outgoing::bounded(4 << 20, OWN_BYTES, Arc::clone(budget))
    }

    fn answer(out: &mut Outgoing, bytes: usize) {
        out.reply(to(), ResponseCode::Success, None, &(), &vec![7; bytes]);
    }

    fn ask(out: &mut Outgoing, body: &Bytes) {
        out.request(Serialization::Json, 39, 1, true, &(), body);
    }

    /// An answer of slices that do not continue each other.
    fn answer_shared(out: &mut Outgoing, owner: &Arc<Vec<u8>>, slices: usize, bytes: usize) {
        let slice = |n| SharedSlice { owner: owner.clone(), range: n * bytes * 2..n * bytes * 2 + bytes };
        out.reply_shared(to(), ResponseCode::Success, None, &(), slices * bytes, (0..slices).map(slice));
    }

    #[test]
    fn those_that_have_their_own_get_no_more_while_replies_are_many_until_their_peers_take_some() {
        let budget = Arc::new(Budget::new(2 * HALF));
        let mut all: Vec<Outgoing> = (0..40).map(|_| place(&budget)).collect();
        for out in &mut all {
            while !out.is_full() {
                answer(out, ANSWER);
            }
            assert!(out.bytes() >= OWN_BYTES, "its own is everybody's");
            assert!(
                out.copied.capacity() - out.bytes() <= OWN_BYTES,
                "what it grew by and does not need is given back"
            );
        }
        let used = budget.used_bytes();
        assert!(used > HALF / 2 && used <= HALF + all.len() * (2 * ANSWER), "{used} bytes are held");

        // One that reads gets on, however many do not.
        let last = all.last_mut().unwrap();
        last.advance(last.bytes() - 1);
        assert!(!last.is_full());
        while !last.is_full() {
            answer(last, ANSWER);
        }
        assert!(last.bytes() < OWN_BYTES + 2 * ANSWER);

        // Most are given up. The rest has been told that it is full, and is so until it moves.
        all.truncate(2);
        assert!(budget.used_bytes() > 0 && all[1].is_full());
        all.swap_remove(0);
        assert!(budget.used_bytes() < HALF && all[0].is_full());
        all[0].advance(1);
        assert!(!all[0].is_full());
        drop(all);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn who_took_most_of_much_holds_as_much_as_is_left() {
        let budget = Arc::new(Budget::new(100 << 20));
        let mut out = place(&budget);
        while !out.is_full() {
            answer(&mut out, ANSWER);
        }
        out.settle();
        assert!(budget.used_bytes() >= (4 << 20) - OWN_BYTES);
        let all = out.to_vec();
        // As a socket takes it.
        while out.bytes() > 10_000 {
            out.advance((out.bytes() - 10_000).min(70_000));
        }
        out.settle();
        assert_eq!(budget.used_bytes(), 0);
        assert!(out.to_vec() == all[all.len() - 10_000..]);
    }

    #[test]
    fn a_large_buffer_is_not_copied_again_for_each_bit_that_leaves_while_replies_are_many() {
        let budget = Arc::new(Budget::new(2 * HALF));
        let mut out = place(&budget);
        answer(&mut out, 4 * HALF);
        assert!(out.is_full());
        let all = out.to_vec();
        let mut copies = 0;
        while out.bytes() > OWN_BYTES {
            let before = out.copied.as_ptr();
            out.advance(out.bytes().min(70_000));
            if out.is_full() {
                assert!(out.copied.capacity() <= 2 * out.bytes(), "what was written goes in the end");
            }
            copies += usize::from(out.copied.as_ptr() != before);
        }
        assert!(copies <= 8, "{copies} copies");
        assert!(out.to_vec() == all[all.len() - out.bytes()..]);
    }

    #[test]
    fn while_replies_are_many_small_slices_are_lent_too() {
        let budget = Arc::new(Budget::new(2 * HALF));
        let log = Arc::new(vec![9; 2 << 20]);
        let (mut short, mut usual) = (place(&budget), place(&budget));
        for out in [&mut short, &mut usual] {
            answer(out, OWN_BYTES / 2);
        }
        answer_shared(&mut usual, &log, 250, 1_000);
        usual.settle();
        assert!(budget.used_bytes() >= 250_000 - OWN_BYTES, "they are copied");

        let mut others = place(&budget);
        answer(&mut others, HALF + OWN_BYTES);
        others.settle();
        let before = budget.used_bytes();
        answer_shared(&mut short, &log, 250, 1_000);
        short.settle();
        assert!(budget.used_bytes() <= before + (16 << 10), "places are all that is added");
        assert!(short.to_vec() == usual.to_vec());
    }

    #[test]
    fn what_lies_in_one_place_of_a_connection_counts_on_in_the_other() {
        let budget = Arc::new(Budget::new(100 << 20));
        let (mut out, mut inbox) = (place(&budget), place(&budget));
        for round in 1..=2 {
            answer(&mut inbox, 200_000);
            inbox.settle();
            let before = budget.used_bytes();
            out.take_from(&mut inbox);
            inbox.settle();
            assert_eq!(budget.used_bytes(), before, "round {round}");
            out.settle();
            assert!(budget.used_bytes() >= round * 200_000 - OWN_BYTES, "round {round}");
        }
        out.advance(out.bytes());
        out.release(true);
        out.settle();
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn the_bodies_of_our_own_requests_count_until_they_are_written() {
        let budget = Arc::new(Budget::new(100 << 20));
        let (mut out, mut inbox) = (place(&budget), place(&budget));
        let body = Bytes::from(vec![7; 200_000]);
        for round in 1..=2 {
            ask(&mut inbox, &body);
            inbox.settle();
            assert!(budget.used_bytes() >= round * body.len() - round * OWN_BYTES, "round {round}, in the inbox");
            out.take_from(&mut inbox);
            inbox.settle();
            out.settle();
            let used = budget.used_bytes();
            assert!(used >= round * body.len() - OWN_BYTES && used <= round * body.len(), "round {round}: {used}");
        }
        out.advance(out.bytes() - 1);
        out.settle();
        assert!(budget.used_bytes() >= body.len() - OWN_BYTES, "it is held as a whole");
        out.advance(1);
        out.settle();
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn who_does_not_take_our_requests_has_its_own_of_them_while_replies_are_many() {
        let budget = Arc::new(Budget::new(2 * HALF));
        let (mut out, mut others) = (place(&budget), place(&budget));
        answer(&mut others, HALF + OWN_BYTES);
        others.settle();
        let body = Bytes::from(vec![7; 8 << 10]);
        let mut asked = 0;
        while !out.is_full() {
            ask(&mut out, &body);
            asked += 1;
        }
        assert_eq!(asked, OWN_BYTES / body.len());
    }

    #[test]
    fn a_place_without_a_bound_takes_what_is_there_and_leaves_it_empty_and_uncounted() {
        for waits_already in [false, true] {
            let budget = Arc::new(Budget::new(100 << 20));
            let (mut out, mut inbox) = (Outgoing::new(), place(&budget));
            if waits_already {
                answer(&mut out, ANSWER);
            }
            while !inbox.is_full() {
                answer(&mut inbox, ANSWER);
            }
            inbox.settle();
            assert!(budget.used_bytes() > 0);
            out.take_from(&mut inbox);
            assert!(out.bytes() >= 4 << 20 && inbox.is_empty());
            assert!(!inbox.is_full(), "it has room again");
            assert_eq!(budget.used_bytes(), 0);
        }
    }

    #[test]
    fn an_answer_that_is_made_apart_saves_memory_as_its_place_would() {
        let budget = Arc::new(Budget::new(2 * HALF));
        let log = Arc::new(vec![9; 2 << 20]);
        let mut out = place(&budget);
        answer(&mut out, OWN_BYTES / 4);
        let mut usual = out.apart();
        answer_shared(&mut usual, &log, 250, 1_000);

        let mut others = place(&budget);
        answer(&mut others, HALF + OWN_BYTES);
        others.settle();
        let mut saving = out.apart();
        answer_shared(&mut saving, &log, 250, 1_000);
        assert!(saving.to_vec() == usual.to_vec());
        let (usual, saving) = (usual.take(), saving.take());
        assert!(usual.memory_bytes() >= 250_000, "it is copied");
        // A quarter of its own is copied, as the place has the other one.
        assert!(saving.memory_bytes() <= OWN_BYTES, "{} bytes", saving.memory_bytes());

        // It is over with what was made apart.
        let mut empty = place(&budget);
        empty.extend(saving);
        drop(others);
        let before = empty.lent.len();
        answer_shared(&mut empty, &log, 250, 1_000);
        assert_eq!(empty.lent.len(), before);
    }

    #[test]
    fn what_is_too_small_to_be_lent_is_copied_while_replies_are_many_too() {
        let budget = Arc::new(Budget::new(2 * HALF));
        let mut out = place(&budget);
        answer(&mut out, HALF + OWN_BYTES);
        assert!(out.is_full());
        let piece = COPIED_BELOW_BYTES - 1;
        answer_shared(&mut out, &Arc::new(vec![9; 1 << 20]), 1_000, piece);
        assert_eq!(out.lent.len(), 0);
        out.settle();
        assert!(budget.reply_bytes() >= HALF + 1_000 * piece);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Copied(usize),
        Shared {
            slices: usize,
            bytes: usize,
        },
        Moved(usize),
        /// So many thousandths of what waits.
        Written(usize),
    }

    fn steps() -> impl proptest::strategy::Strategy<Value = Vec<Step>> {
        use proptest::prelude::*;
        let step = prop_oneof![
            (0usize..100_000).prop_map(Step::Copied),
            (1usize..20, 1usize..9_000).prop_map(|(slices, bytes)| Step::Shared { slices, bytes }),
            (0usize..100_000).prop_map(Step::Moved),
            (0usize..=1_000).prop_map(Step::Written),
        ];
        proptest::collection::vec(step, 1..40)
    }

    proptest::proptest! {
        #[test]
        fn whatever_is_written_when_what_leaves_is_what_was_added(steps in steps()) {
            let log = Arc::new((0..400_000).map(|at: u32| (at % 253) as u8).collect::<Vec<u8>>());
            // Too small for what is added, so that it is short of memory now and then.
            let mut out = place(&Arc::new(Budget::new(200_000)));
            let (mut added, mut left) = (Vec::new(), Vec::new());
            for (number, step) in steps.into_iter().enumerate() {
                let mut same = Outgoing::new();
                match step {
                    Step::Copied(bytes) => {
                        for out in [&mut out, &mut same] {
                            out.reply(to(), ResponseCode::Success, None, &(), &vec![number as u8; bytes]);
                        }
                    }
                    Step::Shared { slices, bytes } => {
                        for out in [&mut out, &mut same] {
                            answer_shared(out, &log, slices, bytes);
                        }
                    }
                    Step::Moved(bytes) => {
                        answer(&mut same, bytes);
                        let mut elsewhere = Outgoing::new();
                        answer(&mut elsewhere, bytes);
                        out.extend(elsewhere.take());
                    }
                    Step::Written(share) => {
                        let bytes = out.bytes() * share / 1_000;
                        left.extend_from_slice(&out.to_vec()[..bytes]);
                        out.advance(bytes);
                    }
                }
                added.extend(same.to_vec());
                out.settle();
                assert_eq!(left.len() + out.bytes(), added.len());
            }
            left.extend(out.to_vec());
            assert!(left == added);
        }
    }
}
