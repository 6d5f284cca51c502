//! What came in and went out: by topic and sort of message, by group, ends of transactions, timer messages.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use env::Clock;
use protocol::names;
use store::Store;

use super::exposition::{Exposition, MetricKind};
use super::is;
use crate::admin::progress::store_time;
use crate::broker::Broker;
use crate::state::stats::{AGES, GroupCounted, LATENCIES_MS, RpcCounted, SIZES, Stats, TopicCounted};
use crate::timer::Timers;
use crate::transaction::Transactions;

/// What each topic was sent, and each group got.
pub(super) fn show(broker: &Broker, page: &mut Exposition) {
    let topics = broker.stats.of_topics();
    sent(&topics, page);
    got(&broker.stats, page);
    ends(&broker.transactions, &topics, page);
    let (bounds, counts, sum) = broker.stats.put_times.histogram();
    page.metric("gantry_store_seconds", MetricKind::Histogram, "How long messages took until they were stored");
    page.histogram(&[], &bounds, &counts, sum.as_secs_f64());
    answered(&broker.stats, page);
    if let Some(timers) = &broker.timers {
        waiting(&broker.clock, &broker.store, timers, page);
    }
}

fn answered(stats: &Stats, page: &mut Exposition) {
    let about = "Ms from a request's arrival until the socket took its answer";
    page.metric("rocketmq_rpc_latency_milliseconds", MetricKind::Histogram, about);
    let bounds = LATENCIES_MS.map(|bound| bound as f64);
    for RpcCounted { request, response, is_held, by_ms, sum_ms } in stats.rpcs.all() {
        // RocketMQ writes names in lower case, and a number where it has none; any number is one of these.
        let request = request.map_or_else(|| "other".to_owned(), str::to_ascii_lowercase);
        let response = response.name().to_ascii_lowercase();
        let labels = [
            ("protocol_type", "remoting"),
            ("request_code", request.as_str()),
            ("response_code", response.as_str()),
            ("is_long_polling", is(is_held)),
            ("result", "success"),
        ];
        page.histogram(&labels, &bounds, &by_ms, sum_ms);
    }
}

fn sent(topics: &[TopicCounted], page: &mut Exposition) {
    let sorts = || {
        topics.iter().flat_map(|topic| {
            topic.sorts.iter().map(|sort| {
                let labels = [
                    ("topic", topic.topic.as_str()),
                    ("message_type", sort.message_type.name()),
                    ("is_system", is(topic.is_system)),
                ];
                (labels, sort)
            })
        })
    };
    page.metric("rocketmq_messages_in_total", MetricKind::Counter, "Messages stored");
    sorts().for_each(|(labels, sort)| page.value(&labels, sort.messages()));
    page.metric("rocketmq_throughput_in_total", MetricKind::Counter, "Bytes stored");
    sorts().for_each(|(labels, sort)| page.value(&labels, sort.bytes));
    page.metric("rocketmq_message_size", MetricKind::Histogram, "Bytes of a message; each of a batch has its share");
    let bounds = SIZES.map(|bound| bound as f64);
    sorts().for_each(|(labels, sort)| page.histogram(&labels, &bounds, &sort.by_size, sort.bytes));
}

fn got(stats: &Stats, page: &mut Exposition) {
    // By group and topic.
    let mut groups = BTreeMap::new();
    stats.each_group(&mut |GroupCounted { group, topic, got, dead }| {
        groups.insert((group.to_owned(), topic.to_owned()), (got, dead));
    });
    page.metric("rocketmq_messages_out_total", MetricKind::Counter, "Messages that consumers got");
    for ((group, topic), (got, _)) in &groups {
        page.value(&group_labels(group, topic), got.messages);
    }
    page.metric("rocketmq_throughput_out_total", MetricKind::Counter, "Bytes that consumers got");
    for ((group, topic), (got, _)) in &groups {
        page.value(&group_labels(group, topic), got.bytes);
    }
    page.metric("rocketmq_send_to_dlq_messages_total", MetricKind::Counter, "Messages given up");
    for ((group, topic), (_, dead)) in groups.iter().filter(|(_, (_, dead))| *dead > 0) {
        page.value(&group_labels(group, topic), *dead);
    }
}

/// Of a group in a topic.
pub(super) fn group_labels<'a>(group: &'a str, topic: &'a str) -> [(&'static str, &'a str); 4] {
    let is_retry = names::is_retry_topic(topic);
    let is_system = names::is_system_topic(topic) || names::is_system_group(group);
    [("topic", topic), ("consumer_group", group), ("is_retry", is(is_retry)), ("is_system", is(is_system))]
}

fn ends(transactions: &Transactions, topics: &[TopicCounted], page: &mut Exposition) {
    page.metric("rocketmq_half_messages", MetricKind::Gauge, "Transactions that nobody has ended");
    page.value(&[], transactions.open());
    let ends = || {
        let ended = topics.iter().filter_map(|topic| topic.ends.as_ref().map(|ends| (topic.topic.as_str(), ends)));
        ended.map(|(topic, ends)| ([("topic", topic)], ends))
    };
    page.metric("rocketmq_commit_messages_total", MetricKind::Counter, "Transactions committed");
    ends().for_each(|(labels, ends)| page.value(&labels, ends.committed()));
    page.metric("rocketmq_rollback_messages_total", MetricKind::Counter, "Transactions rolled back");
    ends().for_each(|(labels, ends)| page.value(&labels, ends.rolled_back));
    page.metric(
        "rocketmq_finish_message_latency_milliseconds",
        MetricKind::Histogram,
        "Seconds from a half message to its commit",
    );
    let bounds = AGES.map(|bound| bound as f64);
    ends().for_each(|(labels, ends)| page.histogram(&labels, &bounds, &ends.by_age, ends.seconds));
}

/// Timer messages, which RocketMQ counts with the labels of the store.
fn waiting(clock: &Clock, store: &Store, timers: &Timers, page: &mut Exposition) {
    let [kind, medium] = super::STORAGE;
    let now = clock.now().0;
    let next = timers.figures.next.load(Ordering::Relaxed);
    let lag = timers.behind(store);
    let first = store.existing_queue(names::TIMER_TOPIC, 0).filter(|_| lag > 0);
    let first_at = first.map_or(0, |queue| store_time(store, &queue, i64::try_from(next).unwrap_or(i64::MAX)));
    let pending = timers.figures.pending.load(Ordering::Relaxed).max(0);
    let late_ms = now.saturating_sub(timers.figures.read_time.load(Ordering::Relaxed)).max(0);
    page.metric("rocketmq_timer_enqueue_lag", MetricKind::Gauge, "Timer messages that are not taken in");
    page.value(&super::STORAGE, lag);
    page.metric("rocketmq_timer_enqueue_latency_milliseconds", MetricKind::Gauge, "Age of the first of them in ms");
    page.value(&super::STORAGE, if first_at > 0 { now.saturating_sub(first_at).max(0) } else { 0 });
    page.metric("rocketmq_timer_dequeue_lag", MetricKind::Gauge, "Timer messages that wait");
    page.value(&super::STORAGE, pending);
    page.metric("rocketmq_timer_dequeue_latency_milliseconds", MetricKind::Gauge, "How late the next ones are in ms");
    page.value(&super::STORAGE, if pending > 0 { late_ms } else { 0 });
    let mut counted = timers.counted();
    counted.sort_unstable_by(|one, other| one.topic.cmp(&other.topic));
    let labels = |topic| [kind, medium, ("topic", topic)];
    page.metric("rocketmq_timing_messages", MetricKind::Gauge, "Timer messages that wait, by topic");
    counted.iter().for_each(|count| page.value(&labels(&count.topic), count.waiting));
    page.metric("rocketmq_timer_enqueue_total", MetricKind::Counter, "Timer messages taken in");
    counted.iter().for_each(|count| page.value(&labels(&count.topic), count.taken_in));
    page.metric("rocketmq_timer_dequeue_total", MetricKind::Counter, "Timer messages whose time came");
    counted.iter().for_each(|count| page.value(&labels(&count.topic), count.dealt_with));
}
