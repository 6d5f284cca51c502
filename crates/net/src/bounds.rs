//! How much memory the requests of all connections together may hold.

use std::task::Waker;

use parking_lot::Mutex;

/// A bound on buffered bytes that connections share. What each may hold anyway (64 KiB) is not counted.
///
/// A connection takes the whole size of a large frame before it reads on, so those that were let in can always finish.
#[derive(Debug)]
pub struct Budget {
    max_bytes: usize,
    /// Guards the count and who waits for it to fall; innermost, held for a few instructions.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    used_bytes: usize,
    waiting: Vec<(u64, Waker)>,
}

impl Budget {
    /// `max_bytes` for all connections that share it.
    pub fn new(max_bytes: usize) -> Budget {
        Budget { max_bytes, state: Mutex::default() }
    }

    /// What is taken now.
    pub fn used_bytes(&self) -> usize {
        self.state.lock().used_bytes
    }

    /// The bound.
    pub fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    /// Takes `bytes` on top of the `own` that this connection holds, or remembers whom to wake when some come back.
    /// While nobody else holds anything it is let in, whatever it needs.
    pub(crate) fn take(&self, bytes: usize, own: usize, connection: u64, waker: &Waker) -> bool {
        let mut state = self.state.lock();
        if state.used_bytes > own && state.used_bytes.saturating_add(bytes) > self.max_bytes {
            match state.waiting.iter_mut().find(|(id, _)| *id == connection) {
                Some((_, known)) => known.clone_from(waker),
                None => state.waiting.push((connection, waker.clone())),
            }
            return false;
        }
        state.used_bytes += bytes;
        true
    }

    /// Whether it is time to give back at once what would otherwise be kept for the next large frame.
    pub(crate) fn is_tight(&self) -> bool {
        self.used_bytes() > self.max_bytes / 2
    }

    /// Takes `bytes` that are already there (replies): the next large frame waits for them.
    pub(crate) fn take_anyway(&self, bytes: usize) {
        self.state.lock().used_bytes += bytes;
    }

    /// Gives back `bytes`.
    pub(crate) fn give(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let woken = {
            let mut state = self.state.lock();
            assert!(state.used_bytes >= bytes, "more bytes given back than taken");
            state.used_bytes -= bytes;
            std::mem::take(&mut state.waiting)
        };
        for (_, waker) in woken {
            waker.wake();
        }
    }

    /// A connection that waited is gone.
    pub(crate) fn forget(&self, connection: u64) {
        self.state.lock().waiting.retain(|(id, _)| *id != connection);
    }
}
