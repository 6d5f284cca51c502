//! What Prometheus is shown, in its text form: RocketMQ's names and labels where it has such a figure, `gantry_…` where it has none.
//!
//! Everything is read where it is counted; nothing is kept for this, and nobody counts more because of it.

mod exposition;

use std::collections::BTreeMap;

use env::TimeMs;
use exposition::{Exposition, Kind};
use store::MemoryFigures;

use crate::broker::Broker;
use crate::falls::{Cause, Waited};
use crate::offsets::split_key;
use crate::stats::GroupCounted;

/// What a process says of itself beside its broker.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessFigures {
    /// Page faults that waited for a device, of all threads.
    pub major_faults: u64,
    /// Those of the threads that append.
    pub network_major_faults: u64,
}

impl Broker {
    /// How long was waited since the start, by cause.
    pub(crate) fn waited(&self) -> Waited {
        self.stats.waits.all(self.store.lock_waited(), self.limits.unread())
    }

    /// All figures, in the text form of Prometheus. May wait for the device.
    pub fn metrics(&self, process: ProcessFigures) -> String {
        let settings = self.settings.load();
        let common = [
            ("cluster", settings.broker_cluster_name.as_str()),
            ("node_type", "broker"),
            ("node_id", settings.broker_name.as_str()),
        ];
        let mut page = Exposition::new(&common);
        page.metric("rocketmq_broker_permission", Kind::Gauge, "Read 4, write 2");
        page.value(&[], settings.broker_permission);
        page.metric("rocketmq_topic_number", Kind::Gauge, "Topics");
        page.value(&[], self.topics.all().len());
        page.metric("rocketmq_consumer_group_number", Kind::Gauge, "Consumer groups");
        page.value(&[], self.groups.len());
        traffic(self, &mut page);
        lags(self, &mut page);
        storage(self, &mut page);
        if let Some(memory) = self.store.memory() {
            shares(&memory, &mut page);
        }
        journal(self, &mut page);
        page.metric("gantry_waited_seconds_total", Kind::Counter, "What was waited for, of all who did together");
        for (cause, waited) in Cause::ALL.into_iter().zip(self.waited()) {
            page.value(&[("cause", cause.name())], waited.as_secs_f64());
        }
        let damaged =
            "Reads that met a message that was not what was stored, each time that somebody would have got it";
        page.metric("gantry_damaged_messages_total", Kind::Counter, damaged);
        page.value(&[], self.store.damaged_messages());
        page.metric(
            "gantry_unreadable_messages",
            Kind::Gauge,
            "Messages that wait for something and that the device does not give",
        );
        for (waits_for, count) in self.unreadable.all() {
            page.value(&[("waits_for", waits_for)], count);
        }
        page.metric("gantry_major_faults_total", Kind::Counter, "Page faults that waited for a device");
        page.value(&[("threads", "all")], process.major_faults);
        page.value(&[("threads", "network")], process.network_major_faults);
        for (name, figure) in crate::limits::figures(self) {
            if let Ok(number) = figure.parse::<u64>() {
                page.metric(&format!("gantry_{}", snake(name)), Kind::Gauge, name);
                page.value(&[], number);
            }
        }
        page.into_text()
    }
}

fn traffic(broker: &Broker, page: &mut Exposition) {
    let is = |yes: bool| if yes { "true" } else { "false" };
    let mut topics = Vec::new();
    broker.stats.each_topic(&mut |name, is_system, sent| topics.push((name.to_owned(), is_system, sent)));
    topics.sort_unstable_by(|one, other| one.0.cmp(&other.0));
    page.metric("rocketmq_messages_in_total", Kind::Counter, "Messages stored");
    for (topic, is_system, sent) in &topics {
        page.value(&[("topic", topic), ("is_system", is(*is_system))], sent.messages);
    }
    page.metric("rocketmq_throughput_in_total", Kind::Counter, "Bytes stored");
    for (topic, is_system, sent) in &topics {
        page.value(&[("topic", topic), ("is_system", is(*is_system))], sent.bytes);
    }
    // By group and topic.
    let mut groups = BTreeMap::new();
    broker.stats.each_group(&mut |GroupCounted { group, topic, is_system, got, dead }| {
        groups.insert((group.to_owned(), topic.to_owned()), (is_system, got, dead));
    });
    page.metric("rocketmq_messages_out_total", Kind::Counter, "Messages that consumers got");
    for ((group, topic), (is_system, got, _)) in &groups {
        page.value(&group_labels(group, topic, Some(*is_system)), got.messages);
    }
    page.metric("rocketmq_throughput_out_total", Kind::Counter, "Bytes that consumers got");
    for ((group, topic), (is_system, got, _)) in &groups {
        page.value(&group_labels(group, topic, Some(*is_system)), got.bytes);
    }
    page.metric("rocketmq_send_to_dlq_messages_total", Kind::Counter, "Messages given up");
    for ((group, topic), (is_system, _, dead)) in groups.iter().filter(|(_, (_, _, dead))| *dead > 0) {
        page.value(&group_labels(group, topic, Some(*is_system)), *dead);
    }
    page.metric("rocketmq_half_messages", Kind::Gauge, "Transactions that nobody has ended");
    page.value(&[], broker.transactions.open());
}

fn group_labels<'a>(group: &'a str, topic: &'a str, is_system: Option<bool>) -> Vec<(&'static str, &'a str)> {
    let is = |yes: bool| if yes { "true" } else { "false" };
    let is_retry = topic.starts_with("%RETRY%");
    let mut labels = vec![("topic", topic), ("consumer_group", group), ("is_retry", is(is_retry))];
    labels.extend(is_system.map(|is_system| ("is_system", is(is_system))));
    labels
}

/// How far each group is behind in what it has committed offsets of, all queues together.
fn lags(broker: &Broker, page: &mut Exposition) {
    page.metric("rocketmq_consumer_lag_messages", Kind::Gauge, "Messages that a group has not consumed");
    for (key, offsets) in broker.offsets.table() {
        let Some((topic, group)) = split_key(&key) else { continue };
        let lag = |(queue_id, offset): (&i32, &i64)| {
            let queue = broker.store.existing_queue(topic, u32::try_from(*queue_id).ok()?)?;
            let end = i64::try_from(broker.store.visible_end(&queue)).unwrap_or(i64::MAX);
            Some(end.saturating_sub(*offset).max(0))
        };
        page.value(&group_labels(group, topic, None), offsets.iter().filter_map(lag).sum::<i64>());
    }
}

fn storage(broker: &Broker, page: &mut Exposition) {
    let store = &broker.store;
    let place = [("storage_type", "local"), ("storage_medium", "disk")];
    let (min, end) = (store.min_offset().0, store.end().0);
    page.metric("rocketmq_storage_size", Kind::Gauge, "Bytes of the log");
    page.value(&place, end - min);
    page.metric("rocketmq_storage_flush_behind_bytes", Kind::Gauge, "Bytes of the log that are not on the device");
    page.value(&place, end.saturating_sub(store.flushed().get()));
    page.metric(
        "rocketmq_storage_dispatch_behind_bytes",
        Kind::Gauge,
        "Bytes of the log that are not in the key index",
    );
    page.value(&place, store.index_behind());
    page.metric("rocketmq_storage_message_reserve_time", Kind::Gauge, "Age of the oldest message in ms");
    // One that cannot be read has no age.
    if let Ok(Some(stored)) = store.about_record_cold(store.min_offset(), |oldest| oldest.store_timestamp()) {
        page.value(&place, broker.clock.now().since(TimeMs(stored)).max(0));
    }
}

fn journal(broker: &Broker, page: &mut Exposition) {
    for figure in crate::journal::figures(broker) {
        let (kind, end) = if figure.is_count { (Kind::Counter, "_total") } else { (Kind::Gauge, "") };
        page.metric(&format!("gantry_{}{end}", snake(figure.name)), kind, figure.about);
        page.value(&[], figure.value);
    }
}

fn shares(memory: &MemoryFigures, page: &mut Exposition) {
    page.metric("gantry_memory_limit_bytes", Kind::Gauge, "memoryLimit, or what was found for it");
    page.value(&[], memory.limit);
    page.metric("gantry_memory_occupied_bytes", Kind::Gauge, "What is occupied of it");
    page.value(&[], memory.occupied());
    page.metric("gantry_memory_bytes", Kind::Gauge, "What each part occupies");
    for (part, bytes) in [("heap", memory.heap), ("log", memory.log), ("cold", memory.cold), ("files", memory.files)] {
        page.value(&[("part", part)], bytes);
    }
    page.metric("gantry_memory_share_bytes", Kind::Gauge, "What each part may occupy");
    let parts = [
        ("log", memory.log_share),
        ("hot", memory.hot_share),
        ("cold", memory.cold_share),
        ("files", memory.files_share),
    ];
    for (part, bytes) in parts {
        page.value(&[("part", part)], bytes);
    }
    page.metric("gantry_cold_copies_bytes", Kind::Gauge, "Copies of messages that their readers have not taken yet");
    page.value(&[], memory.copied);
    page.metric("gantry_cold_copies_max_bytes", Kind::Gauge, "What such copies may hold together");
    page.value(&[], memory.copied_max);
    page.metric("gantry_cold_reads_without_copy_total", Kind::Counter, "Reads that found no room for a copy");
    page.value(&[], memory.uncopied);
    page.metric("gantry_mapped_bytes", Kind::Gauge, "Pages of files in the page table, the program's own among them");
    page.value(&[], memory.mapped);
    page.metric("gantry_log_dirty_bytes", Kind::Gauge, "Changed pages of the log, those made ready ahead among them");
    page.value(&[], memory.dirty);
    page.metric("gantry_log_writeback_bytes", Kind::Gauge, "Pages of the log on their way to the device");
    page.value(&[], memory.writeback);
    page.metric("gantry_log_write_back_lag_bytes", Kind::Gauge, "Bytes appended that are not on the device");
    page.value(&[], memory.write_back_lag);
    page.metric("gantry_log_dropped_bytes_total", Kind::Counter, "Bytes of the log that were dropped from memory");
    page.value(&[], memory.dropped);
}

/// `parkedPullsMax` as Prometheus writes names.
fn snake(name: &str) -> String {
    let mut snake = String::with_capacity(name.len() + 4);
    for letter in name.chars() {
        if letter.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_limits_read_as_prometheus_has_them() {
        assert_eq!(snake("parkedPullsPerConnectionMax"), "parked_pulls_per_connection_max");
    }
}
