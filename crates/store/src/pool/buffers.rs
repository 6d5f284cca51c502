//! The buffers of the pool, and what is gathered in them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use disk::worker::Bell;
use parking_lot::Mutex;

use crate::error::AppendError;
use crate::segment::Segment;

/// How much may be gathered and not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// `transientStorePoolSize`, as far as there is memory for them; at least 1.
    pub buffers: usize,
    /// Bytes of one; at least 1.
    pub buffer_bytes: usize,
}

/// What appends and the thread share.
pub(crate) struct Pool {
    pub options: PoolOptions,
    /// Calls the thread.
    pub bell: Bell,
    /// The log's end with what is gathered. SeqCst, as the bell demands.
    end: AtomicU64,
    /// Guards nothing else; taken inside the log's tail, with nothing inside.
    buffers: Mutex<Buffers>,
}

/// The buffers of the pool.
#[derive(Default)]
struct Buffers {
    /// How many hold something; more than there are if one group needed them.
    used: usize,
    /// Memory of others. The one that was used last comes first: it is in the processor's cache.
    spare: Vec<Vec<u8>>,
}

/// Bytes of one file of the log, one behind the other.
pub(crate) struct Buffer {
    pub(super) segment: Arc<Segment>,
    /// The log offset of the first.
    pub(super) at: u64,
    pub(super) bytes: Vec<u8>,
    /// What is to be published with them: to behind them, or to the file's end where they end with its marker.
    pub(super) end: u64,
    /// How many of the pool's it stands for.
    pub(super) count: usize,
}

impl Pool {
    /// A pool before a log that ends at `end`.
    pub fn new(options: PoolOptions, end: u64) -> Pool {
        let options = PoolOptions { buffers: options.buffers.max(1), buffer_bytes: options.buffer_bytes.max(1) };
        Pool { options, bell: Bell::default(), end: AtomicU64::new(end), buffers: Mutex::default() }
    }

    /// The log's end with what is gathered.
    pub fn end(&self) -> u64 {
        self.end.load(Ordering::SeqCst)
    }

    /// So much is gathered now.
    pub fn gathered_to(&self, end: u64) {
        self.end.fetch_max(end, Ordering::SeqCst);
    }

    /// Buffers that hold nothing.
    pub fn free(&self) -> usize {
        self.options.buffers.saturating_sub(self.buffers.lock().used)
    }

    /// Memory for `need` bytes and for what may come behind them, and how many buffers that is; none if they are not free. What is larger than
    /// the pool gets it when nothing else is in it.
    fn take(&self, need: usize) -> Option<(Vec<u8>, usize)> {
        let PoolOptions { buffers: all, buffer_bytes } = self.options;
        let count = need.div_ceil(buffer_bytes).max(1);
        let mut buffers = self.buffers.lock();
        if buffers.used > 0 && buffers.used + count > all {
            return None;
        }
        buffers.used += count;
        let spare = if count == 1 { buffers.spare.pop() } else { None };
        drop(buffers);
        Some((spare.unwrap_or_else(|| Vec::with_capacity(need.max(buffer_bytes))), count))
    }

    /// Gives back what [`Pool::take`] gave.
    pub(super) fn give_back(&self, mut bytes: Vec<u8>, count: usize) {
        bytes.clear();
        let is_kept = bytes.capacity() == self.options.buffer_bytes;
        let mut buffers = self.buffers.lock();
        buffers.used -= count;
        if is_kept {
            buffers.spare.push(bytes);
        }
    }

    /// Keeps no memory that is not in use.
    pub(super) fn give_up_spare(&self) {
        let spare = std::mem::take(&mut self.buffers.lock().spare);
        drop(spare);
    }

    pub(super) fn has_spare(&self) -> bool {
        !self.buffers.lock().spare.is_empty()
    }

    fn is_full(&self, from: u64) -> AppendError {
        let PoolOptions { buffers, buffer_bytes } = self.options;
        AppendError::PoolFull {
            waiting: self.end() - from.min(self.end()),
            limit: (buffers * buffer_bytes) as u64,
            from,
        }
    }
}

/// What has gathered, in the order of the log. Part of the log's tail.
#[derive(Default)]
pub(crate) struct Gathered {
    buffers: Vec<Buffer>,
}

impl Gathered {
    /// Sees to it that `need` bytes can be put at the log offset `at` of the segment. `written`: what the thread has written.
    pub fn make_way(
        &mut self,
        pool: &Pool,
        segment: &Arc<Segment>,
        at: u64,
        need: usize,
        written: u64,
    ) -> Result<(), AppendError> {
        if let Some(last) = self.buffers.last()
            && Arc::ptr_eq(&last.segment, segment)
            && last.bytes.capacity() - last.bytes.len() >= need
        {
            return Ok(());
        }
        let (bytes, count) = pool.take(need).ok_or_else(|| pool.is_full(written))?;
        self.buffers.push(Buffer { segment: Arc::clone(segment), at, bytes, end: at, count });
        Ok(())
    }

    /// Puts bytes for which [`Gathered::make_way`] was asked, behind the others. `end`: see [`Buffer::end`].
    pub fn put(&mut self, at: u64, bytes: &[u8], end: u64) {
        let last = self.buffers.last_mut().filter(|last| last.at + last.bytes.len() as u64 == at);
        assert!(last.is_some(), "what is gathered has no holes");
        if let Some(last) = last {
            last.bytes.extend_from_slice(bytes);
            last.end = end;
        }
    }

    /// Takes all of it.
    pub fn take(&mut self) -> Vec<Buffer> {
        std::mem::take(&mut self.buffers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(buffers: usize) -> Pool {
        Pool::new(PoolOptions { buffers, buffer_bytes: 1000 }, 0)
    }

    #[test]
    fn a_pool_gives_no_more_buffers_than_it_has() {
        let pool = pool(3);
        let (one, one_count) = pool.take(1).unwrap();
        let (two, two_count) = pool.take(1001).unwrap();
        assert_eq!((one.capacity(), one_count, two_count, pool.free()), (1000, 1, 2, 0));
        assert!(pool.take(1).is_none());
        pool.give_back(two, two_count);
        assert!(pool.take(2001).is_none() && pool.free() == 2);
        pool.give_back(one, one_count);
        assert_eq!(pool.free(), 3);
    }

    #[test]
    fn what_is_larger_than_the_pool_goes_alone() {
        let pool = pool(2);
        let (large, count) = pool.take(5000).unwrap();
        assert_eq!((large.capacity() >= 5000, count, pool.free()), (true, 5, 0));
        assert!(pool.take(1).is_none());
        pool.give_back(large, count);
        assert!(!pool.has_spare(), "memory beyond a buffer's is not kept");
        let (small, count) = pool.take(1).unwrap();
        assert!(pool.take(5000).is_none());
        pool.give_back(small, count);
        assert!(pool.has_spare());
        pool.give_up_spare();
        assert!(!pool.has_spare());
    }
}
