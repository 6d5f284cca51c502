//! The beat of an open load: when each send is due, and a thread that lets it go then.
//!
//! The schedule does not wait for answers. Whoever sends later than was due counts from the time that was due, so that a target which
//! stands still for a second shows a second of latencies, and not one late message.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use env::Clock;
use tokio::sync::Semaphore;

/// Sends due within so much time are let go together: the thread would else take a processor for itself at high rates.
const QUANTUM: Duration = Duration::from_micros(100);

/// The longest look away from the clock.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The sends of one producer.
pub struct Schedule {
    begin_ns: f64,
    interval_ns: f64,
    /// There are no more than these.
    sends: u64,
    /// One for each send that is due and not taken yet.
    pub permits: Semaphore,
}

impl Schedule {
    /// The `sends` of one of `members` producers that together send `rate` times a second, one after the other.
    pub fn shared(begin: Duration, rate: f64, member: usize, members: usize, sends: u64) -> Schedule {
        let between_ns = 1e9 / rate;
        Schedule {
            begin_ns: begin.as_nanos() as f64 + between_ns * member as f64,
            interval_ns: between_ns * members as f64,
            sends,
            permits: Semaphore::new(0),
        }
    }

    /// When a send is due, counted from 0.
    pub fn due(&self, send: u64) -> Duration {
        Duration::from_nanos((self.begin_ns + self.interval_ns * send as f64) as u64)
    }

    /// How many are due by now.
    pub fn due_by(&self, now: Duration) -> u64 {
        let passed = now.as_nanos() as f64 - self.begin_ns;
        let due = if passed < 0.0 { 0 } else { (passed / self.interval_ns) as u64 + 1 };
        due.min(self.sends)
    }
}

/// The thread `pacer`. It ends when this is dropped.
pub struct Pacer {
    // Relaxed: it publishes nothing, and the thread looks again soon.
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Pacer {
    /// Starts the thread, which lets the sends of all schedules go.
    pub fn start(clock: Clock, schedules: Vec<Arc<Schedule>>) -> std::io::Result<Pacer> {
        let is_over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&is_over);
        let thread =
            std::thread::Builder::new().name("pacer".to_owned()).spawn(move || beat(&clock, &schedules, &told))?;
        Ok(Pacer { is_over, thread: Some(thread) })
    }
}

impl Drop for Pacer {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It has nothing to say; a panic in it was told when it happened.
            let _ = thread.join();
        }
    }
}

fn beat(clock: &Clock, schedules: &[Arc<Schedule>], is_over: &AtomicBool) {
    let mut released = vec![0; schedules.len()];
    while !is_over.load(Ordering::Relaxed) {
        let now = clock.elapsed();
        let mut next = now + LOOK_EVERY;
        for (schedule, released) in schedules.iter().zip(&mut released) {
            let due = schedule.due_by(now);
            if due > *released {
                schedule.permits.add_permits(
                    usize::try_from(due - *released).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS >> 8),
                );
                *released = due;
            }
            if due < schedule.sends {
                next = next.min(schedule.due(due));
            }
        }
        std::thread::park_timeout(next.saturating_sub(clock.elapsed()).max(QUANTUM));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sends_are_due_by_the_clock_alone_and_shared_out_evenly() {
        let begin = Duration::from_secs(2);
        let schedules: Vec<Schedule> =
            (0..4).map(|member| Schedule::shared(begin, 1000.0, member, 4, u64::MAX)).collect();
        let due = |now: Duration| -> Vec<u64> { schedules.iter().map(|schedule| schedule.due_by(now)).collect() };
        assert_eq!(due(Duration::from_millis(1999)), [0, 0, 0, 0]);
        assert_eq!(due(begin), [1, 0, 0, 0]);
        assert_eq!(due(begin + Duration::from_micros(2500)), [1, 1, 1, 0]);
        assert_eq!(due(begin + Duration::from_millis(10_000)).iter().sum::<u64>(), 10_001);
        assert_eq!(schedules[1].due(2), begin + Duration::from_millis(9));
        let three = Schedule::shared(begin, 1000.0, 0, 1, 3);
        assert_eq!([2000, 2002, 2003, 9000].map(|ms| three.due_by(Duration::from_millis(ms))), [1, 3, 3, 3]);
    }

    #[test]
    fn what_is_due_is_let_go_and_nothing_else() {
        let clock = Clock::real();
        let far = Arc::new(Schedule::shared(Duration::from_secs(3600), 1.0, 0, 1, u64::MAX));
        let near = Arc::new(Schedule::shared(Duration::ZERO, 1.0 / 3600.0, 0, 1, u64::MAX));
        let _pacer = Pacer::start(clock.clone(), vec![Arc::clone(&far), Arc::clone(&near)]).unwrap();
        while near.permits.available_permits() == 0 {
            assert!(clock.elapsed() < Duration::from_secs(20));
            std::thread::yield_now();
        }
        assert_eq!((near.permits.available_permits(), far.permits.available_permits()), (1, 0));
    }
}
