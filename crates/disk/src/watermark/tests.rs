mod under_shuttle;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use super::Watermark;

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn it_only_grows() {
    let mark = Watermark::new(5);
    mark.advance(3);
    assert_eq!(mark.get(), 5);
    mark.advance(8);
    assert_eq!(mark.get(), 8);
}

#[test]
fn an_advance_wakes_those_it_reaches_and_nobody_else() {
    let mark = Watermark::new(0);
    let counts: Vec<_> = (0..3).map(|_| Arc::new(Count::default())).collect();
    let wakers: Vec<_> = counts.iter().map(|count| Waker::from(Arc::clone(count))).collect();
    let mut waits: Vec<_> = [5, 7, 5].into_iter().map(|height| Box::pin(mark.reached(height))).collect();
    for (wait, waker) in waits.iter_mut().zip(&wakers) {
        assert_eq!(wait.as_mut().poll(&mut Context::from_waker(waker)), Poll::Pending);
    }
    mark.advance(6);
    assert_eq!(counts.iter().map(|count| count.0.load(Ordering::SeqCst)).collect::<Vec<_>>(), [1, 0, 1]);
    assert_eq!(mark.waiters(), 1);
    assert!(waits[0].as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    assert!(waits[1].as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(waits);
    assert_eq!(mark.waiters(), 0);
}

#[test]
fn the_greatest_height_can_be_waited_for() {
    let mark = Watermark::new(0);
    let mut wait = pin!(mark.reached(u64::MAX));
    assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    mark.advance(u64::MAX);
    assert!(wait.poll(&mut Context::from_waker(Waker::noop())).is_ready());
}

#[test]
fn a_dropped_waiter_leaves_nothing_behind() {
    let mark = Watermark::new(0);
    for _ in 0..100 {
        let mut wait = Box::pin(mark.reached(1));
        assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    assert_eq!(mark.waiters(), 0);
}

#[test]
fn a_thread_waits_until_its_deadline_and_not_longer() {
    let mark = Watermark::new(0);
    assert!(!mark.wait_until(1, Instant::now() + Duration::from_millis(5)));
    assert_eq!(mark.waiters(), 0);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| mark.wait_until(9, Instant::now() + Duration::from_secs(30)));
        mark.advance(9);
        assert!(waiting.join().unwrap());
    });
}
