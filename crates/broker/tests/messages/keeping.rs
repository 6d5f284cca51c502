//! What retention leaves alone though it is old and nobody subscribes to it: messages that wait for their time or their end, or are on lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use env::ManualClock;
use protocol::request::PopMessage;
use store::{HourOfDay, Retention};

use super::popping::{ack, from, pop};
use super::support::{Running, Setup, metric, properties, start, start_on, until};
use super::transactions::{COMMIT, end, half};

/// Bytes of a file of the log.
const FILE: u64 = 256 << 10;

/// A broker whose log is old as soon as the clock is moved, and its topic `Fill`, which nobody consumes.
struct Keeping {
    broker: Running,
    setup: Setup,
    hand: ManualClock,
    /// Looks of retention at its oldest file.
    looks: Arc<AtomicU64>,
    retention: Retention,
}

impl Keeping {
    async fn start() -> Keeping {
        let (setup, hand) = Setup { segment_bytes: FILE, ..Setup::default() }.standing();
        // Each look at the oldest file asks for the hour.
        let looks = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&looks);
        let hour_of_day = HourOfDay::new(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            0
        });
        let retention = Retention {
            file_reserved: Duration::ZERO,
            delete_when: vec![0],
            hour_of_day,
            clean_forcibly: false,
            ..Retention::default()
        };
        let keeping = Keeping { broker: start(setup.clone()).await, setup, hand, looks, retention };
        // So that the first file holds nothing that is asked about.
        keeping.fill(2).await;
        keeping
    }

    /// Stops, and starts with old files that may go from the first moment.
    async fn start_again(self) -> Keeping {
        let dir = self.broker.stop().await;
        let setup = Setup { retention: self.retention.clone(), ..self.setup };
        Keeping { broker: start_on(setup.clone(), dir).await, setup, ..self }
    }

    /// Makes the log longer by so many files, and old.
    async fn fill(&self, files: u64) {
        let body = "x".repeat(60 << 10);
        let end = self.broker.store().end().0 + files * FILE;
        while self.broker.store().end().0 < end {
            self.broker.put("Fill", 0, "", &body).await;
        }
        self.hand.advance(Duration::from_millis(1));
    }

    fn min(&self) -> u64 {
        self.broker.store().min_offset().0
    }

    /// Has old files go until those before a message are gone and another look has begun and ended, and says whether the message is there.
    async fn keeps(&self, at: u64) -> bool {
        self.fill(3).await;
        until("the files before the message are gone", || self.min() + FILE > at || self.asks()).await;
        let looks = self.looks.load(Ordering::SeqCst);
        until("two looks more", || self.looks.load(Ordering::SeqCst) >= looks + 2 || self.asks()).await;
        assert_eq!(metric(&self.broker.metrics(), "gantry_log_needed_bytes"), self.broker.store().end().0 - at);
        self.min() <= at
    }

    async fn until_gone(&self, at: u64) {
        self.fill(2).await;
        until("the message's file is gone", || self.min() > at || self.asks()).await;
    }

    /// Has retention look.
    fn asks(&self) -> bool {
        self.broker.store().retain(self.retention.clone());
        false
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delayed_message_stays_until_it_is_delivered() {
    let keeping = Keeping::start().await;
    keeping.broker.put("Orders", 1, &properties(&[("DELAY", "1")]), "late").await;
    let at = keeping.broker.all("SCHEDULE_TOPIC_XXXX", 0).await[0].log_offset;
    assert!(keeping.keeps(at).await);
    keeping.hand.advance(Duration::from_secs(1));
    assert_eq!(keeping.broker.wait_for("Orders", 1, 1).await[0].body, "late");
    keeping.until_gone(at).await;
    keeping.broker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_message_stays_until_it_is_ended() {
    let keeping = Keeping::start().await;
    let open = half(&keeping.broker, "open").await;
    assert!(keeping.keeps(open.log_offset).await);
    assert_eq!(end(&keeping.broker, &open, COMMIT).await.code, 0);
    assert_eq!(keeping.broker.wait_for("Orders", 1, 1).await[0].body, "open");
    keeping.until_gone(open.log_offset).await;
    keeping.broker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_popped_message_stays_until_it_is_acknowledged() {
    let keeping = Keeping::start().await;
    for body in ["first", "second"] {
        keeping.broker.put("T", 0, "", body).await;
    }
    let all = keeping.broker.all("T", 0).await;
    let popped = pop(&keeping.broker, &PopMessage { queue_id: 0, ..from("T", 60_000) }).await;
    assert_eq!(popped.bodies(), ["first", "second"]);
    // What comes before the oldest that is open does not count.
    assert_eq!(ack(&keeping.broker, "T", &popped.handle(0)).await, 0);
    assert!(keeping.keeps(all[1].log_offset).await);
    assert_eq!(ack(&keeping.broker, "T", &popped.handle(1)).await, 0);
    keeping.until_gone(all[1].log_offset).await;
    keeping.broker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_is_kept_by_a_start_that_may_remove_files_before_its_broker_knows_of_it() {
    let keeping = Keeping::start().await;
    let open = half(&keeping.broker, "open").await;
    keeping.broker.put("Late", 1, &properties(&[("DELAY", "1")]), "late").await;
    keeping.fill(4).await;
    let keeping = keeping.start_again().await;
    assert!(keeping.keeps(open.log_offset).await);
    assert_eq!(end(&keeping.broker, &open, COMMIT).await.code, 0);
    assert_eq!(keeping.broker.wait_for("Orders", 1, 1).await[0].body, "open");
    keeping.hand.advance(Duration::from_secs(1));
    assert_eq!(keeping.broker.wait_for("Late", 1, 1).await[0].body, "late");
    keeping.until_gone(open.log_offset).await;
    keeping.broker.stop().await;
}
