//! The life of lite topics and of subscriptions to them: both end by silence.

use std::sync::Arc;
use std::time::Duration;

use env::TimeMs;
use protocol::names;
use store::Store;
use tokio::sync::watch;

use super::dispatch::hand_on;
use super::{bound_groups, parents};
use crate::broker::Broker;

/// Milliseconds of a minute, the unit of `lite.topic.expiration`.
const MINUTE_MS: i64 = 60_000;
/// How soon a changed setting is heeded, and the shortest pause between two looks.
const STEP: Duration = Duration::from_secs(1);

/// Removes lite topics and subscriptions whose time is over, until the broker stops.
pub(crate) async fn keep(broker: Arc<Broker>, mut stop: watch::Receiver<bool>) {
    let (mut topics_at, mut subscriptions_at) = (broker.clock.elapsed(), broker.clock.elapsed());
    while !*stop.borrow() {
        tokio::select! {
            () = tokio::time::sleep(STEP) => {}
            _ = stop.changed() => return,
        }
        let settings = broker.settings.load_full();
        let topics = Duration::from_millis(settings.lite_ttl_check_interval);
        let subscriptions = Duration::from_millis(settings.lite_subscription_check_interval);
        let now = broker.clock.elapsed();
        if now.saturating_sub(subscriptions_at) >= subscriptions {
            subscriptions_at = now;
            let silent_ms = i64::try_from(settings.lite_subscription_check_timeout_mills).unwrap_or(i64::MAX);
            let gone = broker.lite.lock().expire(broker.clock.now().0.saturating_sub(silent_ms));
            for left in gone {
                tracing::info!(client = left.client, silent_ms, "lite subscriptions of a silent client removed");
                hand_on(&broker, &left);
            }
        }
        if now.saturating_sub(topics_at) >= topics {
            topics_at = now;
            let broker = Arc::clone(&broker);
            // Looks at records that may be on the device only. The task cannot be cancelled here.
            let _ = tokio::task::spawn_blocking(move || expire(&broker)).await;
        }
    }
}

/// Removes the lite topics that have been silent for longer than their parents state.
fn expire(broker: &Broker) {
    let parents = parents(broker);
    if !parents.values().any(|minutes| *minutes > 0) {
        return;
    }
    let now = broker.clock.now();
    let min_ms = i64::try_from(broker.settings.load().min_lite_ttl).unwrap_or(i64::MAX);
    let groups = bound_groups(broker);
    for queue in broker.store.light_queue_names() {
        let Some((parent, _)) = names::lite_parts(&queue) else { continue };
        let Some(minutes) = parents.get(parent).filter(|minutes| **minutes > 0) else { continue };
        let lives_ms = min_ms.max(i64::from(*minutes) * MINUTE_MS);
        if silent_ms(&broker.store, &queue, now).is_some_and(|silent| silent > lives_ms) {
            tracing::info!(%queue, minutes, "lite topic expired");
            remove(broker, &queue, groups.get(parent).into_iter().flatten().map(String::as_str));
        }
    }
}

/// How long ago the newest message of a light queue was stored; none where that cannot be told.
fn silent_ms(store: &Store, queue: &str, now: TimeMs) -> Option<i64> {
    let queue = store.existing_queue(queue, 0)?;
    let last = queue.max_offset().checked_sub(1)?;
    let unit = queue.unit_at(last).ok().flatten()?;
    match store.store_time_of(&unit) {
        Ok(Some(time)) => Some(now.since(TimeMs(time))),
        // The log has it no more: it is older than everything.
        Ok(None) if unit.at < store.min_offset() => Some(i64::MAX),
        Ok(None) | Err(_) => None,
    }
}

/// The queue goes first, so that a pop which is under way sees it and leaves nothing behind either (`pop/lite.rs`); then the batches, or an
/// acknowledgement would note an offset where there is none any more.
fn remove<'a>(broker: &Broker, queue: &str, groups: impl Iterator<Item = &'a str>) {
    broker.topics.delete(queue);
    for group in groups {
        broker.pops.orders.clear(group, queue, 0);
        broker.offsets.forget_one(group, queue);
        broker.lite.is_done(group, queue);
    }
    broker.lite.lock().forget_queue(queue);
}

/// A topic is deleted, and its lite topics with it.
pub(crate) fn forget_parent(broker: &Broker, parent: &str) {
    let groups = bound_groups(broker).remove(parent).unwrap_or_default();
    for queue in broker.store.light_queue_names() {
        if names::lite_parts(&queue).is_some_and(|(of, _)| of == parent) {
            remove(broker, &queue, groups.iter().map(String::as_str));
        }
    }
}
