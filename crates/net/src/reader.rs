//! The read buffer of a connection: grows for large frames as far as their bytes really come, shrinks when they stop.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use protocol::frame::{self, FrameError};

use crate::bounds::{Budget, OWN_BYTES};
use crate::stream::Stream;

/// The first buffer of a connection that speaks.
const FIRST_BYTES: usize = 8 << 10;
/// Below this much spare room a read is not worth a call.
const SPARE_BYTES: usize = 2 << 10;

pub(crate) struct Reader {
    buffer: BytesMut,
    /// The size of the buffer behind `buffer` and the bursts cut from it; 0 when there is none.
    size: usize,
    /// The size of a fresh buffer: doubles while reads fill it.
    usual: usize,
    /// The largest frame of this period that came whole: as much is reserved for the next one at once.
    largest: usize,
    frame_bytes_max: usize,
    budget: Arc<Budget>,
    taken: usize,
    /// Whether it stands in the budget's line.
    is_waiting: bool,
    /// Whether a frame ended since the last look at the budget.
    has_cut: bool,
    id: u64,
}

/// What the buffer holds.
pub(crate) struct Cut {
    pub frames: Bytes,
    pub count: usize,
    /// The stream cannot be cut any further.
    pub error: Option<FrameError>,
}

impl Reader {
    pub(crate) fn new(read: BytesMut, frame_bytes_max: usize, budget: Arc<Budget>, id: u64) -> Reader {
        let size = read.capacity();
        Reader {
            buffer: read,
            size,
            usual: FIRST_BYTES,
            largest: 0,
            frame_bytes_max,
            budget,
            taken: 0,
            is_waiting: false,
            has_cut: false,
            id,
        }
    }

    /// Whether part of a frame waits for its rest.
    pub(crate) fn is_partial(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// What was read and is not cut off yet.
    pub(crate) fn uncut(&self) -> &[u8] {
        &self.buffer
    }

    pub(crate) fn buffered(&self) -> usize {
        self.buffer.len()
    }

    /// Whether it is for the budget, and not for its peer, that no more is read.
    pub(crate) fn waits_for_memory(&self) -> bool {
        self.is_waiting
    }

    /// Whether there is no buffer at all.
    pub(crate) fn is_released(&self) -> bool {
        self.size == 0
    }

    /// Reads what the socket holds: until the buffer is full, or longer while it holds no whole frame. 0 means that the peer
    /// has finished.
    pub(crate) fn poll_read(&mut self, stream: &mut Stream, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.is_released() {
            let read = stream.poll_first(cx, &mut self.buffer, self.usual);
            self.size = self.buffer.capacity();
            return read;
        }
        let mut total = 0;
        loop {
            if !self.make_room(cx) {
                return if total > 0 { Poll::Ready(Ok(total)) } else { Poll::Pending };
            }
            let spare = self.buffer.capacity() - self.buffer.len();
            let bytes = match stream.poll_read(cx, &mut self.buffer) {
                Poll::Ready(Ok(bytes)) => bytes,
                // What came before the error or the pause is served first; the next look meets the error again.
                Poll::Ready(Err(_)) | Poll::Pending if total > 0 => return Poll::Ready(Ok(total)),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            };
            total += bytes;
            if bytes < spare {
                return Poll::Ready(Ok(total));
            }
            self.usual = (self.usual * 2).min(OWN_BYTES);
            if frame::needed(&self.buffer).is_none_or(|needed| needed <= self.buffer.len()) {
                return Poll::Ready(Ok(total));
            }
        }
    }

    /// Makes room to read into. False when the budget has none; the task is woken when it has.
    ///
    /// What is charged is the buffer beyond a connection's own share, before it grows: at most twice what came of the frame, or
    /// the size of a whole frame that came before. So an announcement costs its sender the bytes. Where this leaves several
    /// waiting with half a frame each, the budget's turn lets one after the other finish. All of it is given back when the
    /// buffer goes: at once after a frame while the budget is tight, else when the connection rests. Of a burst that is left over
    /// more than a connection's own share keeps the buffer, and its price, until it is served.
    fn make_room(&mut self, cx: &mut Context<'_>) -> bool {
        let held = self.buffer.len();
        let needed = frame::needed(&self.buffer).map_or(0, |bytes| bytes.min(self.frame_bytes_max));
        // A stranger's word is worth twice what he has sent so far; one who sent a large frame before is believed at once.
        let trusted = needed.min((held * 2).max(self.largest));
        let want = trusted.max(self.usual);
        let spare = self.buffer.capacity() - held;
        // An empty buffer that has moved to the end of its memory goes back to the front: that is what `reserve` does then.
        let has_room =
            if held == 0 { spare >= self.usual } else { spare >= SPARE_BYTES.min(want.saturating_sub(held).max(1)) };
        if has_room && self.buffer.capacity() >= trusted {
            return true;
        }
        let price = want.saturating_sub(OWN_BYTES);
        if price > self.taken {
            self.is_waiting = !self.budget.take(price - self.taken, self.taken, self.id, cx.waker());
            if self.is_waiting {
                return false;
            }
            self.taken = price;
        }
        let additional = want.saturating_sub(held).max(SPARE_BYTES);
        if !self.buffer.try_reclaim(additional) {
            // `reserve` would double what there is: up to twice of what was charged.
            let mut grown = BytesMut::with_capacity(held + additional);
            grown.extend_from_slice(&self.buffer);
            self.buffer = grown;
        }
        self.size = self.size.max(held + additional);
        true
    }

    /// Whether it is the peer who keeps others waiting: half a frame of his holds memory that they wait for, and he could send; or
    /// `has_rest` of a burst holds it, which is served when he has taken replies.
    pub(crate) fn holds_up(&self, has_rest: bool) -> bool {
        self.taken > 0 && !self.is_waiting && (has_rest || self.is_partial()) && self.budget.is_wanted()
    }

    /// Called when nothing may be read for now: leaves the budget's line, so that those behind do not wait for a peer that
    /// does not take its replies.
    pub(crate) fn step_aside(&mut self) {
        if std::mem::take(&mut self.is_waiting) {
            self.budget.forget(self.id);
        }
    }

    /// Cuts off the whole frames at the front.
    pub(crate) fn cut(&mut self) -> Option<Cut> {
        let (mut end, mut count, mut error) = (0, 0, None);
        loop {
            match frame::peek(&self.buffer[end..], self.frame_bytes_max) {
                Ok(Some(layout)) => {
                    end += layout.frame_bytes;
                    count += 1;
                    self.largest = self.largest.max(layout.frame_bytes);
                }
                Ok(None) => break,
                Err(found) => {
                    error = Some(found);
                    break;
                }
            }
        }
        if count == 0 && error.is_none() {
            return None;
        }
        self.has_cut = count > 0;
        Some(Cut { frames: self.buffer.split_to(end).freeze(), count, error })
    }

    /// Called after each burst, with what is left of it. Gives the buffer of a large frame back at once when others need the memory.
    pub(crate) fn yield_if_tight(&mut self, rest: Option<&mut Bytes>) {
        if is_much(rest.as_deref()) {
            return;
        }
        let has_cut = std::mem::take(&mut self.has_cut);
        let is_little = self.buffer.is_empty() || has_cut && self.buffer.len() <= OWN_BYTES;
        if self.taken > 0 && is_little && self.budget.is_tight() {
            // What came of the next frame needs no more than a connection's own buffer.
            let tail = BytesMut::from(&self.buffer[..]);
            self.give_back(rest);
            self.size = tail.capacity();
            self.buffer = tail;
        }
    }

    /// Called now and then, with what is left of a burst. Gives the buffer back when the connection rests, or when it has become too
    /// large for what comes.
    pub(crate) fn trim(&mut self, is_resting: bool, rest: Option<&mut Bytes>) {
        let is_too_large = self.size > OWN_BYTES && self.largest < self.size / 4;
        if self.buffer.is_empty() && !is_much(rest.as_deref()) && (is_resting || is_too_large) {
            self.give_back(rest);
            if is_resting {
                self.usual = FIRST_BYTES;
            }
        }
        self.largest = 0;
    }

    /// Called when nothing is read any more: half a frame is nobody's then, and nobody waits behind it.
    pub(crate) fn stop(&mut self) {
        self.step_aside();
        self.give_back(None);
    }

    fn give_back(&mut self, rest: Option<&mut Bytes>) {
        if self.taken > 0
            && let Some(rest) = rest
        {
            // It would keep the whole buffer, which counts no more.
            *rest = Bytes::copy_from_slice(rest);
        }
        self.buffer = BytesMut::new();
        self.size = 0;
        self.budget.give_back(std::mem::take(&mut self.taken), self.id);
    }
}

/// Whether so much of a burst is left that it keeps the buffer that it lies in.
fn is_much(rest: Option<&Bytes>) -> bool {
    rest.is_some_and(|rest| rest.len() > OWN_BYTES)
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.budget.give_back(self.taken, self.id);
        self.budget.forget(self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    const MIB: usize = 1 << 20;

    fn reader(budget: &Arc<Budget>) -> Reader {
        Reader::new(BytesMut::new(), 16 * MIB, Arc::clone(budget), 1)
    }

    /// A frame of so many bytes.
    fn frame(bytes: usize) -> Vec<u8> {
        let mut frame = vec![0; bytes];
        frame[..4].copy_from_slice(&(bytes as u32 - 4).to_be_bytes());
        frame
    }

    fn has_room(reader: &mut Reader) -> bool {
        reader.make_room(&mut Context::from_waker(Waker::noop()))
    }

    /// What a socket does that holds all of it.
    fn bring(reader: &mut Reader, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            assert!(has_room(reader));
            let spare = reader.buffer.capacity() - reader.buffer.len();
            let (now, later) = bytes.split_at(bytes.len().min(spare));
            reader.buffer.extend_from_slice(now);
            bytes = later;
        }
    }

    /// What is left of a burst when a large frame is served, in the buffer of a larger one.
    fn bring_rest(reader: &mut Reader, bytes: usize) -> Bytes {
        bring(reader, &frame(MIB));
        assert_eq!(reader.cut().map(|cut| cut.count), Some(1));
        bring(reader, &[frame(MIB / 2), frame(bytes)].concat());
        let mut cut = reader.cut().unwrap();
        assert_eq!(cut.count, 2);
        cut.frames.split_off(MIB / 2)
    }

    #[test]
    fn a_buffer_grows_to_what_was_charged_for_it() {
        let budget = Arc::new(Budget::new(64 * MIB));
        let mut reader = reader(&budget);
        bring(&mut reader, &frame(9 * MIB));
        let held = reader.buffer.capacity();
        assert!(held <= budget.used_bytes() + OWN_BYTES + SPARE_BYTES, "{held} bytes are held");
    }

    #[test]
    fn a_little_that_is_left_of_a_burst_does_not_keep_the_buffer_of_a_large_frame() {
        for (max_bytes, is_tight) in [(MIB, true), (64 * MIB, false)] {
            let budget = Arc::new(Budget::new(max_bytes));
            let mut reader = reader(&budget);
            let mut rest = bring_rest(&mut reader, 1_000);
            let in_buffer = rest.as_ptr();
            assert!(budget.used_bytes() > MIB / 2);
            reader.yield_if_tight(Some(&mut rest));
            assert_eq!(budget.used_bytes() == 0, is_tight);
            // The connection rests.
            reader.trim(true, Some(&mut rest));
            assert_eq!(budget.used_bytes(), 0);
            assert!(rest.as_ptr() != in_buffer && rest == frame(1_000), "it is a copy");
        }
    }

    #[test]
    fn much_that_is_left_of_a_burst_keeps_its_buffer_and_the_price_until_it_is_served() {
        let budget = Arc::new(Budget::new(MIB));
        let mut reader = reader(&budget);
        let mut rest = bring_rest(&mut reader, OWN_BYTES + 1);
        let price = budget.used_bytes();
        assert!(price > MIB / 2);
        reader.trim(true, Some(&mut rest));
        bring(&mut reader, &frame(100)[..50]);
        reader.yield_if_tight(Some(&mut rest));
        assert_eq!(budget.used_bytes(), price);
        drop(rest);
        reader.yield_if_tight(None);
        assert_eq!((budget.used_bytes(), reader.buffered()), (0, 50));
    }

    #[test]
    fn who_is_not_read_any_more_holds_nothing_and_nobody_waits_behind_him() {
        let budget = Arc::new(Budget::new(MIB));
        let whole = frame(2 * MIB);
        let half = &whole[..MIB / 2];
        let mut stopped = reader(&budget);
        bring(&mut stopped, half);
        assert!(budget.used_bytes() > 0);
        stopped.stop();
        assert_eq!((budget.used_bytes(), stopped.is_partial()), (0, false));

        let _held = budget.try_hold(MIB).unwrap();
        let mut waiting = reader(&budget);
        bring(&mut waiting, &half[..OWN_BYTES]);
        assert!(!has_room(&mut waiting) && budget.is_wanted());
        waiting.stop();
        assert!(!budget.is_wanted() && !waiting.waits_for_memory());
    }
}
