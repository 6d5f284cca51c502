//! The life of lite topics and of subscriptions to them: both end by silence.

use std::sync::Arc;
use std::time::Duration;

use env::TimeMs;
use hashbrown::HashMap;
use protocol::{light, names};
use store::Store;

use crate::blocking;
use crate::broker::Broker;
use crate::lite::offer::Offers;
use crate::lite::{bound_groups, parents};
use crate::state::groups::Groups;
use crate::state::topics::Topics;
use crate::tasks::Stop;
use crate::wall_time::steady_ms;

/// Milliseconds of a minute, the unit of `lite.topic.expiration`.
const MINUTE_MS: i64 = 60_000;
/// How soon a changed setting is heeded, and the shortest pause between two looks.
const STEP: Duration = Duration::from_secs(1);

/// Lite topics whose newest message has a time that is still to come, or was when it was first seen: the end behind that message, and since when it is
/// known, by the clock that does not step. The log's times never go back, so after the clock was ahead they say nothing until it has come so far.
type Ahead = HashMap<Arc<str>, (u64, i64)>;

/// Removes lite topics and subscriptions whose time is over, where there are lite topics.
pub(crate) async fn keep(broker: Arc<Broker>, mut stop: Stop) {
    if !broker.store.has_light_queues() {
        return;
    }
    let (mut topics_at, mut subscriptions_at) = (broker.clock.elapsed(), broker.clock.elapsed());
    let mut ahead = Ahead::new();
    while !stop.is_asked() {
        tokio::select! {
            biased;
            () = stop.asked() => return,
            () = tokio::time::sleep(STEP) => {}
        }
        let settings = broker.settings.load_full();
        let topics = Duration::from_millis(settings.lite_ttl_check_interval);
        let subscriptions = Duration::from_millis(settings.lite_subscription_check_interval);
        let now = broker.clock.elapsed();
        if now.saturating_sub(subscriptions_at) >= subscriptions {
            subscriptions_at = now;
            let silent_ms = i64::try_from(settings.lite_subscription_check_timeout_mills).unwrap_or(i64::MAX);
            let gone = broker.lite.lock().expire(steady_ms(&broker.clock).saturating_sub(silent_ms));
            for left in gone {
                tracing::info!(client = left.client, silent_ms, "lite subscriptions of a silent client removed");
                Offers::of(&broker).hand_on(&left);
            }
        }
        if now.saturating_sub(topics_at) >= topics {
            topics_at = now;
            let (broker, before) = (Arc::clone(&broker), std::mem::take(&mut ahead));
            // Looks at records that may be on the device only. The task cannot be cancelled here.
            ahead = blocking::spawn(move || expire(&broker, &before)).await.unwrap_or_default();
        }
    }
}

/// Removes the lite topics that have been silent for longer than their parents state. Takes what the last look returned.
fn expire(broker: &Broker, before: &Ahead) -> Ahead {
    let mut ahead = Ahead::new();
    let parents = parents(&broker.topics);
    if !parents.values().any(|minutes| *minutes > 0) {
        return ahead;
    }
    let (now, steady) = (broker.clock.now(), steady_ms(&broker.clock));
    let min_ms = i64::try_from(broker.settings.load().min_lite_ttl).unwrap_or(i64::MAX);
    let (groups, offers) = (bound_groups(&broker.groups), Offers::of(broker));
    for queue in broker.store.light_queue_names() {
        let Some((parent, _)) = names::lite_parts(&queue) else { continue };
        let Some(minutes) = parents.get(parent).filter(|minutes| **minutes > 0) else { continue };
        let lives_ms = min_ms.max(i64::from(*minutes) * MINUTE_MS);
        let Some(mut silent) = silence(&broker.store, &queue, now) else { continue };
        let known = before.get(&queue).filter(|(end, _)| *end == silent.end);
        if silent.ms < 0 || known.is_some() {
            let since = known.map_or(steady, |(_, since)| *since);
            ahead.insert(Arc::clone(&queue), (silent.end, since));
            silent.ms = silent.ms.max(steady.saturating_sub(since));
        }
        if silent.ms > lives_ms {
            // A message that comes in this moment lets it live.
            let delete = || broker.topics.delete_light_up_to(&queue, silent.end);
            if remove(offers, &queue, groups.get(parent).into_iter().flatten().map(String::as_str), delete) {
                tracing::info!(%queue, minutes, "lite topic expired");
            }
        }
    }
    ahead
}

/// How long ago the newest message of a light queue was stored, negative if its time is still to come, and the offset behind it.
struct Silence {
    ms: i64,
    end: u64,
}

/// None where it cannot be told.
fn silence(store: &Store, queue: &str, now: TimeMs) -> Option<Silence> {
    let queue = store.existing_queue(queue, 0)?;
    let end = queue.max_offset();
    let unit = queue.unit_at(end.checked_sub(1)?).ok().flatten()?;
    let ms = match store.store_time_of(&unit) {
        Ok(Some(time)) => now.since(TimeMs(time)),
        // The log has it no more: it is older than everything.
        Ok(None) if unit.at < store.min_offset() => i64::MAX,
        Ok(None) | Err(_) => return None,
    };
    Some(Silence { ms, end })
}

/// The queue goes first, so that a pop which is under way sees it and leaves nothing behind either (`pop/lite.rs`); then the batches, or an
/// acknowledgement would note an offset where there is none any more. The groups' turns are held meanwhile: a pop of what is sent next,
/// and with which the lite topic begins anew, would lose what it has noted. Does nothing more if `delete` does not delete the queue, and says so.
fn remove<'a>(
    offers: Offers<'_>,
    queue: &str,
    groups: impl Iterator<Item = &'a str>,
    delete: impl FnOnce() -> bool,
) -> bool {
    let Offers { lite, store, offsets, pops, .. } = offers;
    let name: Arc<str> = Arc::from(queue);
    let claimed: Vec<_> = groups.map(|group| (group, lite.claim(group, &name))).collect();
    if !delete() {
        return false;
    }
    for (group, turn) in claimed {
        // Whoever has the turn clears away itself, unless it had looked before the queue went and is gone by now.
        let Some(_turn) = turn.or_else(|| {
            let is_anew = store.existing_queue(queue, light::QUEUE_ID).is_some();
            lite.claim(group, &name).filter(|_| !is_anew)
        }) else {
            continue;
        };
        pops.orders.clear(group, queue, 0);
        offsets.forget_one(group, queue);
        lite.is_done(group, queue);
    }
    lite.lock().forget_queue(queue);
    true
}

/// A topic is deleted, and its lite topics with it.
pub(crate) fn forget_parent(offers: Offers<'_>, topics: &Topics, groups: &Groups, parent: &str) {
    let groups = bound_groups(groups).remove(parent).unwrap_or_default();
    for queue in offers.store.light_queue_names() {
        if names::lite_parts(&queue).is_some_and(|(of, _)| of == parent) {
            remove(offers, &queue, groups.iter().map(String::as_str), || topics.delete(&queue).is_some());
        }
    }
}
