//! Wakes the pulls that wait at a slave when the copy of the log brings their messages, as a task.
//!
//! While no pull waits, copying costs nothing here. While one does, each advance of what consumers
//! may see costs a look at the queues that are waited for.

use std::sync::Arc;
use std::time::Duration;

use crate::broker::Broker;
use crate::tasks::Stop;

/// Behind a look at more queues than this there is a pause.
const QUEUES_MANY: usize = 64;
/// That long: with 1,000 queues, looks take some 5 % of a core then, however small the pieces are
/// that come.
const PAUSE: Duration = Duration::from_millis(1);

/// Until it is told to stop.
pub(crate) async fn wake_readers(broker: Arc<Broker>, mut stop: Stop) {
    let (store, hold) = (&broker.store, &broker.hold);
    let is_there = |queue: &_, offset| u64::try_from(offset).is_ok_and(|offset| store.is_visible(queue, offset));
    while !stop.is_asked() {
        // Before the look: what comes during it gets another one.
        let seen = store.confirmed().get();
        let queues = hold.wake_if(is_there);
        if queues > QUEUES_MANY {
            tokio::time::sleep(PAUSE).await;
        }
        let is_waited_for = hold.parked() > 0;
        tokio::select! {
            biased;
            () = stop.asked() => return,
            () = hold.began() => {}
            () = store.confirmed().reached(seen.saturating_add(1)), if is_waited_for => {}
        }
    }
}
