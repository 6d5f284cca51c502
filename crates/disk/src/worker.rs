//! Threads of their own, as the store's and the journal's: how they are started, called and
//! stopped.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread::{Builder, Scope};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use tracing::error;

use crate::turns::{self, Handle, Joins};

/// Calls a thread that waits. A ring while nobody waits is not lost: the next wait ends at once.
///
/// Callers publish their work by a SeqCst operation before they call: of that and the thread's announcement that it waits
/// one comes first, so either the thread's last look sees the work or the caller sees that the thread waits.
#[derive(Default)]
pub struct Bell {
    /// Guards nothing but itself.
    heard: Mutex<Heard>,
    changed: Condvar,
    /// Whether the thread is about to wait or waits. SeqCst on both sides: see above.
    is_idle: AtomicBool,
}

/// What a thread has not answered yet.
#[derive(Default)]
struct Heard {
    /// There is work. A call that met the thread on its way to a wait may be heard after the thread has found the work by itself.
    call: bool,
    /// Whatever the thread does, it is to look up.
    ring: bool,
}

impl Bell {
    /// Calls, at the cost of one load if the thread is busy anyway: it looks once more before it waits.
    pub fn call(&self) {
        if self.is_idle.load(Ordering::SeqCst) && self.is_idle.swap(false, Ordering::SeqCst) {
            self.heard.lock().call = true;
            self.changed.notify_one();
        }
    }

    /// Rings.
    pub fn ring(&self) {
        self.heard.lock().ring = true;
        self.changed.notify_one();
    }

    /// Waits until somebody calls or rings or `timeout` is over, unless `has_work` finds something once callers know that we wait.
    pub fn wait(&self, timeout: Option<Duration>, has_work: impl FnOnce() -> bool) {
        self.is_idle.store(true, Ordering::SeqCst);
        // Whatever `has_work` loads, and however, is loaded after the announcement.
        fence(Ordering::SeqCst);
        if !has_work() {
            let mut heard = self.heard.lock();
            if !heard.call && !heard.ring {
                self.sleep(&mut heard, timeout);
            }
            *heard = Heard::default();
        }
        self.is_idle.store(false, Ordering::SeqCst);
    }

    /// Waits until somebody rings or `timeout` is over, and says whether somebody rang. Calls do not end it: the thread knows of the work and
    /// lets it gather.
    pub fn rest(&self, timeout: Duration) -> bool {
        let begin = Instant::now();
        let mut heard = self.heard.lock();
        if turns::wait(&mut heard, Some(timeout), |heard| heard.ring) {
            return std::mem::take(&mut *heard).ring;
        }
        // Ends with the time: a call wakes this thread, and it sleeps on.
        while !heard.ring && !self.changed.wait_for(&mut heard, timeout.saturating_sub(begin.elapsed())).timed_out() {}
        std::mem::take(&mut *heard).ring
    }

    fn sleep(&self, heard: &mut MutexGuard<'_, Heard>, timeout: Option<Duration>) {
        if turns::wait(heard, timeout, |heard| heard.call || heard.ring) {
            return;
        }
        match timeout {
            Some(timeout) => {
                self.changed.wait_for(heard, timeout);
            }
            None => self.changed.wait(heard),
        }
    }
}

/// A thread could not be started.
#[derive(Debug, thiserror::Error)]
#[error("cannot start thread {name}: {source}")]
pub struct NotStarted {
    /// Its name.
    pub name: String,
    /// What the system said.
    pub source: io::Error,
}

/// Starts a thread under a name that shows in `top -H`.
///
/// A panic in it ends the process: an assertion of the store does not hold, and without the thread everybody would wait for
/// what it does.
pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<Handle, NotStarted> {
    try_spawn(name, run).map_err(|source| NotStarted { name: name.to_owned(), source })
}

/// The same for those who tell of a failure in their own words.
pub fn try_spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<Handle> {
    let joins = turns::seat(name);
    let ends_process = EndsProcess { name: name.to_owned(), joins: Some(joins.share()) };
    let spawned = Builder::new().name(name.to_owned()).spawn(move || {
        if let Some(joins) = &ends_process.joins {
            joins.sit_down();
        }
        run();
        drop(ends_process);
    });
    match spawned {
        Ok(thread) => Ok(joins.handle(thread)),
        Err(error) => {
            joins.give_up();
            Err(error)
        }
    }
}

/// The same for a thread that ends with what started it.
pub fn spawn_scoped<'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    run: impl FnOnce() + Send + 'scope,
) -> Result<(), NotStarted> {
    let ends_process = EndsProcess { name: name.to_owned(), joins: None };
    let run = move || {
        run();
        drop(ends_process);
    };
    let spawned = Builder::new().name(name.to_owned()).spawn_scoped(scope, run);
    spawned.map(drop).map_err(|source| NotStarted { name: name.to_owned(), source })
}

/// Ends the process when a panic drops it, unless somebody gives turns and takes note.
struct EndsProcess {
    name: String,
    joins: Option<Joins>,
}

impl Drop for EndsProcess {
    fn drop(&mut self) {
        let is_panicking = std::thread::panicking();
        let is_noted = self.joins.as_ref().is_some_and(|joins| joins.get_up(is_panicking));
        if is_panicking && !is_noted {
            error!(thread = self.name, "a thread of the store panicked: ending the process");
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn a_call_is_never_lost() {
        let (bell, work) = (Arc::new(Bell::default()), Arc::new(AtomicU64::new(0)));
        let total = 20_000;
        let seen = Arc::new(AtomicU64::new(0));
        let thread = {
            let (bell, work, seen) = (Arc::clone(&bell), Arc::clone(&work), Arc::clone(&seen));
            std::thread::spawn(move || {
                let mut done = 0;
                while done < total {
                    done = work.load(Ordering::Acquire);
                    seen.store(done, Ordering::Release);
                    if done < total {
                        bell.wait(None, || work.load(Ordering::Acquire) > done);
                    }
                }
            })
        };
        for number in 1..=total {
            work.fetch_max(number, Ordering::SeqCst);
            bell.call();
            let deadline = Instant::now() + Duration::from_secs(30);
            let mut looks = 0;
            // One at a time, so that each call meets a thread that goes to sleep.
            while number % 3 == 0 && seen.load(Ordering::Acquire) < number {
                assert!(Instant::now() < deadline, "the call of {number} was lost");
                looks += 1;
                if looks < 1_000 {
                    std::hint::spin_loop();
                } else {
                    // It may need the processor that we have.
                    std::thread::yield_now();
                }
            }
        }
        thread.join().unwrap();
    }

    #[test]
    fn a_ring_before_the_wait_ends_it() {
        let bell = Bell::default();
        bell.ring();
        bell.wait(None, || false);
        bell.ring();
        assert!(bell.rest(Duration::from_secs(3600)));
    }

    #[test]
    fn a_call_that_meets_a_thread_on_its_way_to_a_wait_ends_no_rest() {
        let bell = Bell::default();
        bell.wait(None, || {
            bell.call();
            true
        });
        assert!(!bell.rest(Duration::from_millis(1)), "the thread knows of the work");
        bell.wait(None, || {
            bell.call();
            false
        });
        assert!(!bell.rest(Duration::from_millis(1)), "the wait has ended by it");
    }
}
