//! `mark.rs` once more, on shuttle's primitives: its parked threads never wake by themselves, so a lost wake-up is a
//! deadlock, which shuttle reports.

mod sync {
    pub(super) use shuttle::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
    pub(super) use shuttle::thread::{Thread, current, park_timeout};

    /// Shuttle gives the turns.
    pub(super) fn wait_in_turns(_: std::time::Duration, _: impl FnMut() -> bool) -> Option<bool> {
        None
    }

    #[derive(Default)]
    pub(super) struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Mutex<T> {
            Mutex(shuttle::sync::Mutex::new(value))
        }

        pub fn lock(&self) -> shuttle::sync::MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }
    }
}

#[path = "../mark.rs"]
#[allow(dead_code, clippy::duplicate_mod)]
mod mark;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mark::Watermark;

const RUNS: usize = 3_000;

#[test]
fn no_wake_up_is_lost_between_two_advancers_and_two_threads() {
    shuttle::check_random(
        || {
            let mark = Arc::new(Watermark::new(0));
            let far = Instant::now() + Duration::from_secs(3_600);
            let mut threads = Vec::new();
            for height in [1, 2] {
                let mark = Arc::clone(&mark);
                threads.push(shuttle::thread::spawn(move || assert!(mark.wait_until(height, far))));
            }
            for height in [1, 2] {
                let mark = Arc::clone(&mark);
                threads.push(shuttle::thread::spawn(move || mark.advance(height)));
            }
            for thread in threads {
                thread.join().unwrap();
            }
            assert_eq!(mark.waiters(), 0);
        },
        RUNS,
    );
}

#[test]
fn a_task_that_is_dropped_takes_nobody_elses_wake_up() {
    shuttle::check_random(
        || {
            let mark = Arc::new(Watermark::new(0));
            let (a, b, c) = (Arc::clone(&mark), Arc::clone(&mark), Arc::clone(&mark));
            let waiting = shuttle::thread::spawn(move || shuttle::future::block_on(a.reached(1)));
            let dropped = shuttle::thread::spawn(move || {
                let mut wait = Box::pin(b.reached(1));
                let _ = wait.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
            });
            let advancing = shuttle::thread::spawn(move || c.advance(1));
            for thread in [waiting, dropped, advancing] {
                thread.join().unwrap();
            }
            assert_eq!(mark.waiters(), 0);
        },
        RUNS,
    );
}
