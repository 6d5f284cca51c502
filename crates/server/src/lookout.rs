//! A thread that sees to it that sockets are polled while a worker computes.
//!
//! Of tokio's workers one waits in `epoll`, the others on a condition variable. The one that comes out of `epoll` with one task carries
//! it out itself and wakes nobody; while that takes long, no socket is read and no timer fires, though the other workers have nothing
//! to do. A worker that is woken for whatever reason looks for work and then waits in `epoll`, if nobody else does. So this thread looks
//! every [`PERIOD`] whether a worker has been busy since the last look while another one waits, and gives that one an empty task.
//!
//! It costs nothing while all workers wait: it sleeps until one of them wakes up. It says so with one load for each time that a worker has
//! slept, which is not each request.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use std::time::Duration;

use tokio::runtime::{Handle, RuntimeMetrics};

/// A worker that computes holds up the others for at most two of these.
const PERIOD: Duration = Duration::from_millis(5);
/// No longer than the kernel takes.
const NAME: &str = "lookout";

/// The thread, as far as the workers know it.
#[derive(Debug, Default)]
pub struct Lookout {
    thread: OnceLock<Thread>,
    /// It sleeps until a worker wakes up.
    is_asleep: AtomicBool,
}

impl Lookout {
    /// A worker has slept and has something to do.
    pub fn woken(&self) {
        // Pairs with the fence in `sleep`: either the thread sees that this worker is awake, or this sees that the thread sleeps.
        fence(Ordering::SeqCst);
        if self.is_asleep.load(Ordering::Relaxed)
            && self.is_asleep.swap(false, Ordering::Relaxed)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    /// Starts the thread, for as long as the process runs. Nothing to do with one worker.
    pub fn start(self: &Arc<Lookout>, runtime: &Handle) -> io::Result<()> {
        let (lookout, runtime) = (Arc::clone(self), runtime.clone());
        if runtime.metrics().num_workers() < 2 {
            return Ok(());
        }
        let started = thread::Builder::new().name(NAME.to_owned()).spawn(move || lookout.run(&runtime))?;
        // Set once: the workers were not told before.
        let _ = self.thread.set(started.thread().clone());
        Ok(())
    }

    #[allow(
        clippy::disallowed_methods,
        reason = "it looks again and again while somebody is awake; there is nothing to wait for"
    )]
    fn run(&self, runtime: &Handle) {
        let mut workers = Workers::new(runtime.metrics());
        // Ends with the process.
        loop {
            thread::sleep(PERIOD);
            match workers.look() {
                Seen::AllWait => self.sleep(&workers),
                Seen::SomebodyComputes => drop(runtime.spawn(async {})),
                Seen::Well => {}
            }
        }
    }

    fn sleep(&self, workers: &Workers) {
        self.is_asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // A worker that woke up before this finds nobody to wake.
        while workers.all_wait() && self.is_asleep.load(Ordering::Relaxed) {
            thread::park();
        }
        self.is_asleep.store(false, Ordering::Relaxed);
    }
}

/// What a look has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// Nobody has anything to do.
    AllWait,
    /// A worker has been busy since the last look, and another one waits.
    SomebodyComputes,
    /// All are busy, or none for long.
    Well,
}

/// How often each worker has gone to sleep and woken up.
struct Workers {
    metrics: RuntimeMetrics,
    /// At the last look. Odd: it waits.
    counts: Vec<u64>,
}

fn waits(count: u64) -> bool {
    count % 2 == 1
}

impl Workers {
    fn new(metrics: RuntimeMetrics) -> Workers {
        let counts = vec![0; metrics.num_workers()];
        Workers { metrics, counts }
    }

    fn all_wait(&self) -> bool {
        (0..self.counts.len()).all(|worker| waits(self.metrics.worker_park_unpark_count(worker)))
    }

    fn look(&mut self) -> Seen {
        let (mut waiting, mut computing) = (0, 0);
        for (worker, before) in self.counts.iter_mut().enumerate() {
            let count = self.metrics.worker_park_unpark_count(worker);
            let is_same = std::mem::replace(before, count) == count;
            waiting += usize::from(waits(count));
            computing += usize::from(!waits(count) && is_same);
        }
        match (waiting, computing) {
            (waiting, _) if waiting == self.counts.len() => Seen::AllWait,
            (1.., 1..) => Seen::SomebodyComputes,
            _ => Seen::Well,
        }
    }
}
