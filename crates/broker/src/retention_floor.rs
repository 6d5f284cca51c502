//! How far back messages are still needed, so that retention does not take from a group what it has yet to consume, nor what waits for its time
//! or its end, nor from a slave what it has yet to copy.
//!
//! A group counts in a topic while it is connected and subscribes to it, or has committed there within `activeGroupHours`, restarts in
//! between or not; one that went away for longer has lost its claim, as in Apache. What was popped and is on lease counts in any case: it comes
//! again, unless it is acknowledged. A slave counts while it is connected and for a while longer, also behind a restart of ours, unless it is too far behind
//! (`replicaRetentionMax`). Retention and the page of metrics ask on threads that may wait, so a look into a queue's file is allowed
//! here.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use config::StoreSettings;
use protocol::LogOffset;
use store::{HourOfDay, Retention};

use crate::broker::Broker;
use crate::tasks::Stop;
use crate::transaction;

const HOUR_MS: i64 = 3_600_000;
/// How long files are kept for a slave that left: longer than it takes to start again.
const SLAVES_KEPT_FOR: Duration = Duration::from_secs(300);
/// How often it is noted for the next start what slaves need.
const SLAVES_NOTED_EVERY: Duration = Duration::from_secs(1);

/// Which old files of the store go, and when, by the settings. Hours are those of the machine's zone, as in Apache; UTC where it has none.
pub fn retention(settings: &StoreSettings) -> Retention {
    let percent = |ratio: u32| u8::try_from(ratio).unwrap_or(100);
    Retention {
        file_reserved: Duration::from_secs(settings.file_reserved_time.saturating_mul(3600)),
        delete_when: settings.delete_when.clone(),
        hour_of_day: HourOfDay::new(|now| {
            let time = jiff::Timestamp::from_millisecond(now.0).unwrap_or_default();
            u8::try_from(time.to_zoned(jiff::tz::TimeZone::system()).hour()).unwrap_or(0)
        }),
        delete_batch_max: settings.delete_file_batch_max,
        disk_max_used_percent: percent(settings.disk_max_used_space_ratio),
        disk_clean_forcibly_percent: percent(settings.disk_space_clean_forcibly_ratio),
        disk_warning_percent: percent(settings.disk_space_warning_level_ratio),
        clean_forcibly: settings.clean_file_forcibly_enable,
        log_bytes_max: Some(settings.commit_log_bytes_max).filter(|bytes| *bytes > 0),
    }
}

/// Hours after its last commit for which a group without connections is active.
fn active_group_hours(settings: &StoreSettings) -> u64 {
    if settings.active_group_hours == 0 { settings.file_reserved_time } else { settings.active_group_hours }
}

/// Has the store ask us from now on.
pub(crate) fn begin(broker: &Arc<Broker>) {
    let broker_of = Arc::downgrade(broker);
    // A broker that is gone says nothing of what is needed.
    let floor = move || Weak::upgrade(&broker_of).map_or(Some(LogOffset(0)), |broker| needed_from(&broker));
    broker.store.protect(Box::new(floor));
}

/// Where the oldest message lies that a group has yet to consume, or that waits; none: nobody needs any.
fn needed_from(broker: &Broker) -> Option<LogOffset> {
    let mut oldest: Option<LogOffset> = None;
    each_not_consumed(broker, &mut |_, _, at| oldest = Some(oldest.map_or(at, |oldest| oldest.min(at))));
    oldest.into_iter().chain(waiting_from(broker)).chain(slaves_need_from(broker)).min()
}

/// Where the slave is that is furthest behind, of those that files are kept for.
pub(crate) fn slaves_need_from(broker: &Broker) -> Option<LogOffset> {
    let needs = broker.slaves.needs(broker.clock.elapsed(), SLAVES_KEPT_FOR);
    if needs.is_empty() {
        return None;
    }
    let percent = broker.settings.load().replica_retention_max;
    // Of a disk that does not say how large it is nothing is known to be too much.
    let disk_bytes = broker.store.disk_use().map_or(u64::MAX, |disk| disk.total);
    let bytes_max = u64::try_from(u128::from(disk_bytes) * u128::from(percent) / 100).unwrap_or(u64::MAX);
    let end = broker.store.end().0;
    needs.into_iter().filter(|at| end.saturating_sub(at.0) <= bytes_max).min()
}

/// Notes in the journal what slaves need, so that the next start keeps it for them until they are back.
pub(crate) async fn keep_slave_places(broker: Arc<Broker>, mut stop: Stop) {
    let keep = || broker.slave_places.keep(&broker.slaves.needs(broker.clock.elapsed(), SLAVES_KEPT_FOR));
    while !stop.is_asked() {
        keep();
        tokio::select! {
            biased;
            () = stop.asked() => {}
            () = tokio::time::sleep(SLAVES_NOTED_EVERY) => {}
        }
    }
    // They are still connected.
    keep();
}

/// Where the oldest message lies that waits for its time, or for its end: timer messages, those of delay levels, half messages.
pub(crate) fn waiting_from(broker: &Broker) -> Option<LogOffset> {
    let Broker { store, needs, delay, offsets, timers, .. } = broker;
    let (delayed, half) = (delay.needed_from(store, needs), transaction::needed_from(store, needs, offsets));
    let of_timers = timers.as_ref().and_then(|timers| timers.needed_from(store, needs));
    of_timers.into_iter().chain(delayed).chain(half).min()
}

/// Of each group and topic that keeps something of the log, where the oldest message lies that the group has yet to consume, or has on lease.
pub(crate) fn needs(broker: &Broker) -> BTreeMap<(String, String), LogOffset> {
    let mut needs = BTreeMap::new();
    each_not_consumed(broker, &mut |group, topic, at| {
        let oldest = needs.entry((group.to_owned(), topic.to_owned())).or_insert(at);
        *oldest = at.min(*oldest);
    });
    needs
}

/// Group, topic, and the oldest message that the group has yet to consume, of each queue where an active group has not consumed all; and the
/// oldest that it has on lease, of each queue that is popped.
fn each_not_consumed(broker: &Broker, f: &mut dyn FnMut(&str, &str, LogOffset)) {
    let hours = active_group_hours(&broker.store_settings.load());
    let since = broker.clock.now() - i64::try_from(hours).unwrap_or(i64::MAX).saturating_mul(HOUR_MS);
    let first_from = |topic: &str, queue_id, offset| broker.needs.first_from(&broker.store, topic, queue_id, offset);
    // A client that pulls queues of its own choice may say nothing of topics.
    let is_active = |group: &str, topic: &str| {
        let connected = broker.clients.consumers(group);
        connected.is_some_and(|group| !group.has_subscriptions() || group.subscription(topic).is_some())
    };
    broker.offsets.for_each_active(since, &is_active, &mut |change| {
        let offset = change.offset.and_then(|offset| u64::try_from(offset).ok());
        let first = offset.and_then(|offset| first_from(change.topic, change.queue_id, offset));
        if let Some(at) = first {
            f(change.group, change.topic, at);
        }
    });
    for (name, offset) in broker.pops.first_open() {
        if let Some(at) = first_from(&name.topic, name.queue_id, offset) {
            f(&name.group, &name.topic, at);
        }
    }
}
