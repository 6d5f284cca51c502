//! How far groups are behind, what they keep of the log, and who is connected.

use std::collections::BTreeMap;
use std::time::Duration;

use config::BrokerSettings;
use protocol::body::ConsumeType;
use protocol::names;
use protocol::version;

use super::exposition::{Exposition, MetricKind};
use super::is;
use super::traffic::group_labels;
use crate::admin::progress::store_time;
use crate::broker::Broker;
use crate::client_handle::ClientHandle;
use crate::retention_floor;
use crate::state::clients::Clients;
use crate::state::offsets::split_key;

/// How old messages are stands in them, and they may lie on the disk: after so long nobody looks for more of them. What was not looked at
/// is left out.
const AGES_TIME: Duration = Duration::from_secs(1);

/// A group in a topic, all queues together that it has committed offsets of.
#[derive(Default)]
struct Behind {
    /// Messages that it has, and is not done with.
    in_flight: i64,
    /// Messages that it may have.
    ready: i64,
    /// How old the oldest of both is, and the oldest that it may have, in ms; unknown where nobody looked.
    lag_ms: Option<i64>,
    queueing_ms: Option<i64>,
}

/// How far each group is behind.
pub(super) fn show_lags(broker: &Broker, page: &mut Exposition) {
    let until = broker.clock.elapsed() + AGES_TIME;
    let settings = broker.settings.load();
    let mut groups = Vec::new();
    for (key, offsets) in broker.offsets.table() {
        let Some((topic, group)) = split_key(&key) else { continue };
        if is_left_out(&settings, topic) || is_left_out(&settings, group) {
            continue;
        }
        groups.push((topic.to_owned(), group.to_owned(), behind(broker, group, topic, &offsets, until)));
    }
    let mut metric = |name: &str, about: &str, figure: fn(&Behind) -> Option<i64>| {
        page.metric(name, MetricKind::Gauge, about);
        for (topic, group, behind) in &groups {
            if let Some(figure) = figure(behind) {
                page.value(&group_labels(group, topic), figure);
            }
        }
    };
    metric("rocketmq_consumer_lag_messages", "Messages that a group is not done with", |behind| {
        Some(behind.in_flight + behind.ready)
    });
    metric("rocketmq_consumer_inflight_messages", "Messages that a group has, and is not done with", |behind| {
        Some(behind.in_flight)
    });
    metric("rocketmq_consumer_ready_messages", "Messages that a group may have", |behind| Some(behind.ready));
    metric(
        "rocketmq_consumer_lag_latency_milliseconds",
        "Age in ms of the oldest that a group is not done with",
        |behind| behind.lag_ms,
    );
    metric(
        "rocketmq_consumer_queueing_latency_milliseconds",
        "Age in ms of the oldest that a group may have",
        |behind| behind.queueing_ms,
    );
}

fn behind(broker: &Broker, group: &str, topic: &str, offsets: &BTreeMap<i32, i64>, until: Duration) -> Behind {
    let Broker { clock, store, pops, .. } = broker;
    let now = clock.now().0;
    let mut behind = Behind { lag_ms: Some(0), queueing_ms: Some(0), ..Behind::default() };
    for (queue_id, committed) in offsets {
        let queue = u32::try_from(*queue_id).ok().and_then(|id| store.existing_queue(topic, id));
        let Some(queue) = queue else { continue };
        let end = i64::try_from(store.visible_end(&queue)).unwrap_or(i64::MAX);
        let pulled = broker.offsets.last_pulled(group, topic, *queue_id).unwrap_or(-1);
        // What lies before the last pull is on its way, or there.
        let given = pulled.max(*committed).min(end);
        let popped = pops.open_since(group, topic, *queue_id);
        let of_pops = popped.map_or(0, |(messages, _)| i64::try_from(messages).unwrap_or(i64::MAX));
        behind.in_flight += (given - committed).max(0).saturating_add(of_pops);
        behind.ready += (end - given).max(0);
        let age = |offset: i64| -> Option<i64> {
            if clock.elapsed() > until {
                return None;
            }
            match store_time(store, &queue, offset) {
                // Gone, or not to be read.
                0 => Some(0),
                stored => Some(now.saturating_sub(stored).max(0)),
            }
        };
        let oldest = popped.and_then(|(_, oldest)| i64::try_from(oldest).ok()).map(|popped| popped.min(*committed));
        let ready_ms = if given < end { age(given) } else { Some(0) };
        let lag_ms = match oldest.or_else(|| (*committed < end).then_some(*committed)) {
            Some(oldest) if oldest == given => ready_ms,
            Some(oldest) => age(oldest),
            None => Some(0),
        };
        behind.queueing_ms = behind.queueing_ms.zip(ready_ms).map(|(one, other)| one.max(other));
        behind.lag_ms = behind.lag_ms.zip(lag_ms).map(|(one, other)| one.max(other));
    }
    behind
}

/// What of the log stays because somebody needs it.
pub(super) fn show_needs(broker: &Broker, page: &mut Exposition) {
    let (end, needs) = (broker.store.end().0, retention_floor::needs(broker));
    let of_all = "Bytes from the oldest message that a group has yet to consume or has on lease, or that waits, to the log's end";
    page.metric("gantry_log_needed_bytes", MetricKind::Gauge, of_all);
    let oldest = needs.values().copied().chain(retention_floor::waiting_from(broker)).min();
    page.value(&[], oldest.map_or(0, |at| end.saturating_sub(at.0)));
    let of_one = "Bytes from the oldest message that a group has yet to consume, or has on lease, to the log's end";
    page.metric("gantry_log_needed_by_group_bytes", MetricKind::Gauge, of_one);
    let settings = broker.settings.load();
    for ((group, topic), at) in needs {
        if !is_left_out(&settings, &group) && !is_left_out(&settings, &topic) {
            page.value(&group_labels(&group, &topic), end.saturating_sub(at.0));
        }
    }
}

/// Light queues may be very many: as everywhere, they are told apart if somebody asks for that.
fn is_left_out(settings: &BrokerSettings, name: &str) -> bool {
    names::is_lmq(name) && !settings.enable_lmq_stats
}

/// How many clients are connected, by what they say of themselves.
pub(super) fn show_clients(clients: &Clients<ClientHandle>, page: &mut Exposition) {
    let named =
        |language: &str, number: i32| (language.to_ascii_lowercase(), version::name(number).to_ascii_lowercase());
    let mut producers = BTreeMap::new();
    for client in clients.all_producers().values().flat_map(|members| members.iter()).map(|member| &member.client) {
        *producers.entry(named(client.language, client.version)).or_insert(0u64) += 1;
    }
    let mut consumers = BTreeMap::new();
    clients.each_consumers(&mut |group| {
        let mode = match group.consume_type {
            ConsumeType::ConsumeActively => "pull",
            ConsumeType::ConsumePassively => "push",
            ConsumeType::ConsumePop => "pop",
        };
        for client in group.members().iter().map(|member| &member.client) {
            let key = (group.name.to_string(), named(client.language, client.version), mode);
            *consumers.entry(key).or_insert(0u64) += 1;
        }
    });
    let protocol = ("protocol_type", "remoting");
    page.metric("rocketmq_producer_connections", MetricKind::Gauge, "Producers that are connected");
    for ((language, version), count) in &producers {
        page.value(&[("language", language), ("version", version), protocol], *count);
    }
    page.metric("rocketmq_consumer_connections", MetricKind::Gauge, "Consumers that are connected");
    for ((group, (language, version), mode), count) in &consumers {
        let is_system = ("is_system", is(names::is_system_group(group)));
        let labels = [
            ("consumer_group", group.as_str()),
            ("language", language),
            ("version", version),
            ("consume_mode", mode),
            protocol,
            is_system,
        ];
        page.value(&labels, *count);
    }
}
