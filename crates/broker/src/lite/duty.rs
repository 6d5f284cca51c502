//! The task of lite topics: it rings alarms, looks for what clients may lack, and gives
//! what a silent client was told of to others. `life.rs` removes lite topics and subscriptions
//! whose time is over.

use std::cell::LazyCell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use protocol::names;
use tokio::task::JoinHandle;

use super::offer::Offers;
use super::state::subscriptions::{Behind, wildcard_parent};
use crate::blocking;
use crate::broker::Broker;
use crate::tasks::Stop;
use crate::wall_time::steady_ms;

mod life;

pub(crate) use life::{forget_parent, keep};

/// How soon a changed setting is heeded.
const STEP: Duration = Duration::from_secs(1);

/// Rings alarms, looks for what clients may lack, and gives what a silent client was told of to others, where there are lite topics.
pub(crate) async fn dispatch(broker: Arc<Broker>, mut stop: Stop) {
    if !broker.store.has_light_queues() {
        return;
    }
    let lite = &broker.lite;
    let mut passed_on_at = broker.clock.elapsed();
    let mut looking: Option<JoinHandle<()>> = None;
    while !stop.is_asked() {
        let alarm = lite.turns.lock().next();
        let until_alarm = alarm.map(|at_ms| u64::try_from(at_ms.saturating_sub(broker.clock.now().0)).unwrap_or(0));
        let wait = until_alarm.map_or(STEP, |ms| STEP.min(Duration::from_millis(ms)));
        tokio::select! {
            biased;
            () = stop.asked() => break,
            () = lite.bell.notified() => {}
            () = tokio::time::sleep(wait) => {}
            () = ended(&mut looking) => {}
        }
        let due = lite.turns.lock().take_due(broker.clock.now().0);
        for (group, queue) in due {
            Offers::of(&broker).offer(&group, &queue);
        }
        let settings = broker.settings.load_full();
        let now = broker.clock.elapsed();
        if now.saturating_sub(passed_on_at) >= Duration::from_millis(settings.lite_event_check_interval) {
            passed_on_at = now;
            let woken = lite.lock().pass_on(steady_ms(&broker.clock), &lite.random);
            lite.wake(&woken);
        }
        let (client_ms, all_ms) = (
            i64::try_from(settings.lite_event_full_dispatch_delay_time).unwrap_or(i64::MAX),
            i64::try_from(settings.lite_event_full_dispatch_delay_time_for_wildcard_group).unwrap_or(i64::MAX),
        );
        let delay = |queues: &BTreeSet<Arc<str>>| {
            // Appends wait meanwhile: of very many queues only the last one, which a client that
            // gets all has no other beside.
            let gets_all = queues.last().is_some_and(|queue| wildcard_parent(queue).is_some());
            if gets_all { all_ms } else { client_ms }
        };
        if looking.is_some() {
            continue;
        }
        let behind = lite.lock().take_behind(steady_ms(&broker.clock), delay);
        if !behind.is_empty() {
            let broker = Arc::clone(&broker);
            // Looks at all lite topics of a parent; alarms ring meanwhile.
            looking = Some(blocking::spawn(move || {
                let light_queues = LazyCell::new(|| broker.store.light_queue_names());
                behind.iter().for_each(|one| look_for(Offers::of(&broker), one, &light_queues));
            }));
        }
    }
    if looking.is_some() {
        ended(&mut looking).await;
    }
}

/// Waits until a task has come to its end, and takes it away; for ever if there is none.
async fn ended(task: &mut Option<JoinHandle<()>>) {
    let Some(running) = task else { return std::future::pending().await };
    // It cannot be cancelled here.
    let _ = running.await;
    *task = None;
}

/// Tells a client of everything that there is for it. `light_queues`: all that there are, for
/// clients that get all.
fn look_for<F>(offers: Offers<'_>, behind: &Behind, light_queues: &LazyCell<Vec<Arc<str>>, F>)
where
    F: FnOnce() -> Vec<Arc<str>>,
{
    let Behind { client, group, queues } = behind;
    let parents: Vec<&str> = queues.iter().filter_map(|queue| wildcard_parent(queue)).collect();
    let named = queues.iter().filter(|queue| wildcard_parent(queue).is_none()).cloned();
    let mut all: Vec<Arc<str>> = named.collect();
    if !parents.is_empty() {
        let is_wanted = |name: &str| names::lite_parts(name).is_some_and(|(parent, _)| parents.contains(&parent));
        all.extend(light_queues.iter().filter(|name| is_wanted(name)).cloned());
    }
    all.retain(|queue| offers.has_more(group, queue));
    // What somebody has a batch of is told when that is over: it would take the places of what can
    // be had.
    all.retain(|queue| match offers.blocked_until(group, queue) {
        Some(at_ms) => {
            offers.lite.look_at(group, queue, at_ms);
            false
        }
        None => true,
    });
    // From anywhere, or those at the end would have no room as long as those before have something.
    let first = offers.lite.random.below(u32::try_from(all.len()).unwrap_or(u32::MAX)) as usize;
    all.rotate_left(first);
    let woken = offers.lite.lock().fill(client, &all, steady_ms(offers.clock));
    offers.lite.wake(woken.as_slice());
}
