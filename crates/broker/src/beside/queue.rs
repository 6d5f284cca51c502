//! Work that waits for a thread, connection by connection: of each connection one piece is under way at most, and connections take
//! turns. So a connection that asks a thousand times delays another one by one piece of its work, not by a thousand.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

/// Pieces of one connection that wait.
pub(super) const OF_CONNECTION_MAX: usize = 64;
/// Pieces of all connections that wait.
pub(crate) const WAITING_MAX: usize = 4096;
/// Bytes of the requests that wait or are carried out. One request fits in any case.
pub(super) const BYTES_MAX: usize = 64 << 20;

/// Why a piece of work is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Full {
    #[error("{OF_CONNECTION_MAX} long requests of this connection wait already, which is the limit")]
    OfConnection,
    #[error("{WAITING_MAX} long requests of all connections wait already, which is the limit")]
    OfAll,
    #[error("long requests that wait hold {0} bytes, and the limit is {BYTES_MAX}")]
    Bytes(usize),
}

struct Piece<W> {
    work: W,
    bytes: usize,
}

/// What one connection has waiting.
struct Line<W> {
    pieces: VecDeque<Piece<W>>,
    /// One of its pieces is under way, so it is not among the ready ones.
    is_busy: bool,
}

struct FairQueueState<W> {
    lines: HashMap<u64, Line<W>>,
    /// Connections whose next piece may begin, in the order of their turns. Each stands here once.
    ready: VecDeque<u64>,
    waiting: usize,
    bytes: usize,
    is_stopped: bool,
}

/// The queue. The mutex guards nothing else; nothing is carried out or dropped under it.
pub(crate) struct FairQueue<W> {
    state: Mutex<FairQueueState<W>>,
    /// A connection became ready, or the queue was stopped.
    changed: Notify,
    /// The queue was stopped, for those that rest.
    stopped: Notify,
}

/// The turn of a connection: its next piece may begin when this is dropped.
pub(crate) struct BesideTurn<W> {
    queue: Arc<FairQueue<W>>,
    connection: u64,
    bytes: usize,
}

impl<W> FairQueue<W> {
    pub(super) fn new() -> FairQueue<W> {
        let (lines, ready) = (HashMap::new(), VecDeque::new());
        let state = FairQueueState { lines, ready, waiting: 0, bytes: 0, is_stopped: false };
        FairQueue { state: Mutex::new(state), changed: Notify::new(), stopped: Notify::new() }
    }

    /// Lets a piece of work wait for its turn. Between [`FairQueue::stop`] and [`FairQueue::open`] it is dropped.
    pub(super) fn push(&self, connection: u64, bytes: usize, work: W) -> Result<(), Full> {
        let state = self.state.lock();
        if state.is_stopped {
            drop(state);
            drop(work);
            return Ok(());
        }
        if state.waiting >= WAITING_MAX {
            return Err(Full::OfAll);
        }
        if state.bytes > 0 && state.bytes.saturating_add(bytes) > BYTES_MAX {
            return Err(Full::Bytes(state.bytes));
        }
        if state.lines.get(&connection).is_some_and(|line| line.pieces.len() >= OF_CONNECTION_MAX) {
            return Err(Full::OfConnection);
        }
        self.add(state, connection, Piece { work, bytes });
        Ok(())
    }

    /// The last piece of a connection that has ended, whatever waits.
    pub(super) fn push_last(&self, connection: u64, work: W) {
        let state = self.state.lock();
        if state.is_stopped {
            drop(state);
            drop(work);
            return;
        }
        self.add(state, connection, Piece { work, bytes: 0 });
    }

    fn add(&self, mut state: MutexGuard<'_, FairQueueState<W>>, connection: u64, piece: Piece<W>) {
        state.waiting += 1;
        state.bytes += piece.bytes;
        let line = state.lines.entry(connection).or_insert_with(|| Line { pieces: VecDeque::new(), is_busy: false });
        line.pieces.push_back(piece);
        if !line.is_busy && line.pieces.len() == 1 {
            state.ready.push_back(connection);
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Whether a piece of this connection waits or is under way.
    pub(super) fn has(&self, connection: u64) -> bool {
        self.state.lock().lines.contains_key(&connection)
    }

    /// The next piece, when there is one; none after [`FairQueue::stop`].
    pub(super) async fn next(self: &Arc<Self>) -> Option<(W, BesideTurn<W>)> {
        loop {
            if let Some(next) = self.take()? {
                return Some(next);
            }
            self.changed.notified().await;
        }
    }

    /// The outer `None`: it is stopped.
    fn take(self: &Arc<Self>) -> Option<Option<(W, BesideTurn<W>)>> {
        let mut state = self.state.lock();
        if state.is_stopped {
            drop(state);
            // Another thread may wait for the same word.
            self.changed.notify_one();
            return None;
        }
        let Some(connection) = state.ready.pop_front() else { return Some(None) };
        let next = state.lines.get_mut(&connection).and_then(|line| {
            line.is_busy = true;
            line.pieces.pop_front()
        });
        state.waiting -= usize::from(next.is_some());
        Some(next.map(|Piece { work, bytes }| (work, BesideTurn { queue: Arc::clone(self), connection, bytes })))
    }

    /// Waits for so long, and no longer than until [`FairQueue::stop`].
    pub(super) async fn rest(&self, time: Duration) {
        // Hears of a stop from here on.
        let stopped = self.stopped.notified();
        if self.is_stopped() {
            return;
        }
        let _ = tokio::time::timeout(time, stopped).await;
    }

    fn is_stopped(&self) -> bool {
        self.state.lock().is_stopped
    }

    /// How many pieces wait.
    pub(super) fn waiting(&self) -> usize {
        self.state.lock().waiting
    }

    /// Takes what comes from now on, after a stop too.
    pub(super) fn open(&self) {
        self.state.lock().is_stopped = false;
    }

    /// Drops what waits, and all that comes from now on.
    pub(super) fn stop(&self) {
        let dropped = {
            let mut state = self.state.lock();
            state.is_stopped = true;
            state.ready.clear();
            state.waiting = 0;
            std::mem::take(&mut state.lines)
        };
        drop(dropped);
        self.changed.notify_one();
        self.stopped.notify_waiters();
    }

    fn is_over(&self, connection: u64, bytes: usize) {
        let mut state = self.state.lock();
        state.bytes -= bytes.min(state.bytes);
        let Some(line) = state.lines.get_mut(&connection) else { return };
        line.is_busy = false;
        if line.pieces.is_empty() {
            state.lines.remove(&connection);
            return;
        }
        state.ready.push_back(connection);
        drop(state);
        self.changed.notify_one();
    }
}

impl<W> Drop for BesideTurn<W> {
    fn drop(&mut self) {
        self.queue.is_over(self.connection, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(pieces: &[(u64, &'static str)]) -> Arc<FairQueue<&'static str>> {
        let queue = Arc::new(FairQueue::new());
        for (connection, work) in pieces {
            queue.push(*connection, 1, *work).unwrap();
        }
        queue
    }

    fn take(queue: &Arc<FairQueue<&'static str>>) -> Option<(&'static str, BesideTurn<&'static str>)> {
        queue.take().flatten()
    }

    #[test]
    fn connections_take_turns_however_much_one_of_them_asks() {
        let queue = queue(&[(1, "a"), (1, "b"), (1, "c"), (2, "x")]);
        let order: Vec<_> = std::iter::from_fn(|| take(&queue).map(|(work, _)| work)).collect();
        assert_eq!(order, ["a", "x", "b", "c"]);
        let left = queue.state.lock();
        assert_eq!((left.waiting, left.bytes, left.lines.len()), (0, 0, 0));
    }

    #[test]
    fn of_one_connection_one_piece_is_under_way_at_most() {
        let queue = queue(&[(1, "a"), (1, "b"), (2, "x")]);
        let (first, turn) = take(&queue).unwrap();
        let (other, _held) = take(&queue).unwrap();
        assert_eq!((first, other), ("a", "x"));
        assert!(take(&queue).is_none());
        drop(turn);
        assert_eq!(take(&queue).unwrap().0, "b");
    }

    #[test]
    fn what_is_too_much_is_refused_by_the_limit_and_others_are_taken() {
        let queue = Arc::new(FairQueue::new());
        for _ in 0..OF_CONNECTION_MAX {
            queue.push(1, 0, ()).unwrap();
        }
        assert_eq!(queue.push(1, 0, ()), Err(Full::OfConnection));
        queue.push(2, 0, ()).unwrap();
        for connection in 3.. {
            if queue.waiting() == WAITING_MAX {
                break;
            }
            queue.push(connection, 0, ()).unwrap();
        }
        assert_eq!(queue.push(2, 0, ()), Err(Full::OfAll));
    }

    #[test]
    fn bytes_are_bounded_and_one_request_fits_in_any_case() {
        let queue = Arc::new(FairQueue::new());
        queue.push(1, BYTES_MAX + 1, ()).unwrap();
        assert_eq!(queue.push(2, 1, ()), Err(Full::Bytes(BYTES_MAX + 1)));
        let (_, turn) = queue.take().flatten().unwrap();
        assert_eq!(queue.push(2, 1, ()), Err(Full::Bytes(BYTES_MAX + 1)), "it is still in memory");
        drop(turn);
        queue.push(2, 1, ()).unwrap();
    }

    #[tokio::test]
    async fn a_stop_ends_a_rest() {
        let queue = Arc::new(FairQueue::<()>::new());
        let resting = {
            let queue = Arc::clone(&queue);
            tokio::spawn(async move { queue.rest(Duration::from_secs(3_600)).await })
        };
        tokio::task::yield_now().await;
        queue.stop();
        let deadline = Duration::from_secs(30);
        tokio::time::timeout(deadline, resting).await.unwrap().unwrap();
        tokio::time::timeout(deadline, queue.rest(Duration::from_secs(3_600))).await.unwrap();
    }

    #[tokio::test]
    async fn a_queue_that_is_stopped_drops_what_waits_and_ends_all_that_wait_for_it() {
        let queue = Arc::new(FairQueue::new());
        let held = Arc::new(());
        queue.push(1, 1, Arc::clone(&held)).unwrap();
        let (_, turn) = queue.next().await.unwrap();
        queue.push(1, 1, Arc::clone(&held)).unwrap();
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let queue = Arc::clone(&queue);
                tokio::spawn(async move { queue.next().await.is_none() })
            })
            .collect();
        tokio::task::yield_now().await;
        queue.stop();
        for waiter in waiters {
            assert!(waiter.await.unwrap());
        }
        queue.push(2, 1, Arc::clone(&held)).unwrap();
        drop(turn);
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
