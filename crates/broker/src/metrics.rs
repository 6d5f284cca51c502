//! What Prometheus is shown, in its text form: RocketMQ's names and labels where it has such a figure, `gantry_…` where it has none.
//!
//! Everything is read where it is counted, when somebody asks; a page keeps nothing.

mod exposition;
mod groups;
mod traffic;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use config::StoreSettings;
use env::{Clock, TimeMs};
use exposition::{Exposition, MetricKind};
use protocol::LogOffset;
use protocol::code::ResponseCode;
use store::{MemoryFigures, Stage, Store};

use crate::broker::Broker;
use crate::config_files::ConfigFiles;
use crate::retention_floor;
use crate::state::copies::Copies;
use crate::state::falls::{Cause, Waited};
use crate::state::role::Standing;

/// What RocketMQ says of where messages are, in each figure of the store.
const STORAGE: [(&str, &str); 2] = [("storage_type", "local"), ("storage_medium", "disk")];

/// What a process says of itself beside its broker.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessFigures {
    /// Page faults that waited for a device, of all threads.
    pub major_faults: u64,
    /// Those of the threads that append.
    pub network_major_faults: u64,
}

/// How the figures are to be written.
#[derive(Clone, Debug)]
pub struct PageOptions {
    /// Labels that each value has besides its own.
    pub labels: Vec<(String, String)>,
    /// Sets of labels that a metric may have; what is left out is counted.
    pub label_sets_max: usize,
}

impl Broker {
    /// How long was waited since the start, by cause.
    pub(crate) fn waited(&self) -> Waited {
        self.stats.waits.all(self.store.lock_waited(), self.limits.unread())
    }

    /// All figures, in the text form of Prometheus. May wait for the device.
    pub fn metrics(&self, process: ProcessFigures, options: &PageOptions) -> String {
        let settings = self.settings.load();
        let mut common = vec![
            ("cluster", settings.broker_cluster_name.as_str()),
            ("node_type", "broker"),
            ("node_id", settings.broker_name.as_str()),
        ];
        common.extend(options.labels.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        let mut page = Exposition::new(&common, options.label_sets_max);
        page.metric("rocketmq_broker_permission", MetricKind::Gauge, "Read 4, write 2");
        page.value(&[], settings.broker_permission);
        page.metric("rocketmq_topic_number", MetricKind::Gauge, "Topics");
        page.value(&[], self.topics.all().len());
        page.metric("rocketmq_consumer_group_number", MetricKind::Gauge, "Consumer groups");
        page.value(&[], self.groups.len());
        traffic::show(self, &mut page);
        groups::show_clients(&self.clients, &mut page);
        groups::show_lags(self, &mut page);
        storage(&self.store, &self.clock, &mut page);
        following(self, self.store.end(), &mut page);
        to_master(self, &mut page);
        slaves(self, &mut page);
        copies(&self.standing, &self.copies, &mut page);
        groups::show_needs(self, &mut page);
        if let Some(memory) = self.store.memory() {
            shares(&memory, &mut page);
        }
        journal(&self.store, &self.store_settings.load(), &self.config_files, &mut page);
        page.metric("gantry_waited_seconds_total", MetricKind::Counter, "What was waited for, of all who did together");
        for (cause, waited) in Cause::ALL.into_iter().zip(self.waited()) {
            page.value(&[("cause", cause.name())], waited.as_secs_f64());
        }
        let damaged =
            "Reads that met a message that was not what was stored, each time that somebody would have got it";
        page.metric("gantry_damaged_messages_total", MetricKind::Counter, damaged);
        page.value(&[], self.store.damaged_messages());
        let units = "Units of consume queues that were not what the log says, and were looked for in it";
        page.metric("gantry_damaged_units_total", MetricKind::Counter, units);
        page.value(&[], self.store.damaged_units());
        page.metric(
            "gantry_unreadable_messages",
            MetricKind::Gauge,
            "Messages that wait for something and that the device does not give",
        );
        for (waits_for, count) in self.unreadable.all() {
            page.value(&[("waits_for", waits_for)], count);
        }
        page.metric(
            "gantry_oneway_refused_total",
            MetricKind::Counter,
            "One-way sends that were refused, which their producers are not told",
        );
        for (code, count) in self.oneway_refusals.all() {
            page.value(&[("response_code", &code.to_string())], count);
        }
        let moved = "Reads of groups that asked where their queue has nothing, and were told where to go on";
        page.metric("gantry_offsets_moved_total", MetricKind::Counter, moved);
        for (reason, count) in self.offsets.moves() {
            page.value(&[("reason", reason)], count);
        }
        page.metric("gantry_major_faults_total", MetricKind::Counter, "Page faults that waited for a device");
        page.value(&[("threads", "all")], process.major_faults);
        page.value(&[("threads", "network")], process.network_major_faults);
        for (name, figure) in crate::limits::figures(self) {
            if let Ok(number) = figure.parse::<u64>() {
                page.metric(&format!("gantry_{}", snake(name)), MetricKind::Gauge, name);
                page.value(&[], number);
            }
        }
        page.into_text()
    }
}

fn is(yes: bool) -> &'static str {
    if yes { "true" } else { "false" }
}

/// Requests of clients for the master. Nothing of a broker that has had none.
fn to_master(broker: &Broker, page: &mut Exposition) {
    let to_master = &broker.to_master;
    let counts = to_master.counts.all();
    if counts.iter().all(|(_, count)| *count == 0) {
        return;
    }
    let became = "Requests of clients that only the master may carry out: passed on, held until there was one, refused, not answered by it";
    page.metric("gantry_requests_for_master_total", MetricKind::Counter, became);
    for (became, count) in counts {
        page.value(&[("outcome", became)], count);
    }
    let under_way = "Requests of clients that wait here for the master, or for its answer";
    page.metric("gantry_requests_for_master", MetricKind::Gauge, under_way);
    page.value(&[], to_master.under_way());
}

fn following(broker: &Broker, end: LogOffset, page: &mut Exposition) {
    let Broker { standing, following, master_journal: journal, .. } = broker;
    if !standing.is_slave() {
        return;
    }
    page.metric("gantry_replica_connected", MetricKind::Gauge, "Whether the log comes from the master");
    page.value(&[], u64::from(following.is_connected()));
    if let Some(bytes) = following.behind_bytes(end) {
        let behind = "Bytes that the master's log had and this one has not, as of some seconds ago";
        page.metric("gantry_replica_lag_bytes", MetricKind::Gauge, behind);
        page.value(&[], bytes);
    }
    let followed = "Whether what is not in the log comes from the master's journal; else its tables are asked for";
    page.metric("gantry_replica_journal_followed", MetricKind::Gauge, followed);
    page.value(&[], u64::from(journal.is_followed()));
    if let Some(changes) = journal.behind() {
        let behind = "Changes that the master's journal had and this broker has not, as of its last answer";
        page.metric("gantry_replica_journal_lag", MetricKind::Gauge, behind);
        page.value(&[], changes);
    }
}

/// What acknowledgements of a master stand for.
fn copies(standing: &Standing, copies: &Copies, page: &mut Exposition) {
    if standing.is_slave() {
        return;
    }
    let judged = copies.judge();
    let needed = "Slaves that the acknowledgement of a send waits for, where its topic and itself say nothing";
    page.metric("gantry_replica_needed", MetricKind::Gauge, needed);
    page.value(&[], judged.needed(Stage::CopiedBySetting));
    page.metric(
        "gantry_replica_addresses",
        MetricKind::Gauge,
        "Copies of the log at slaves: those of Gantry by broker id, others by address",
    );
    page.value(&[], judged.connected());
    let in_sync = "Slaves that are less than haMaxGapNotInSync bytes behind";
    page.metric("gantry_replica_in_sync", MetricKind::Gauge, in_sync);
    page.value(&[], judged.in_sync());
    let alone = "Whether a SYNC_MASTER acknowledges with its own copy alone, as no slave is in sync";
    page.metric("gantry_replica_acknowledges_alone", MetricKind::Gauge, alone);
    page.value(&[], u64::from(judged.is_alone()));
    let unacknowledged =
        "Answers to sends that are stored, and that slaves did not have: 11 for want of slaves, 12 late ones";
    page.metric("gantry_replica_unacknowledged_sends_total", MetricKind::Counter, unacknowledged);
    let codes = [ResponseCode::SlaveNotAvailable, ResponseCode::FlushSlaveTimeout];
    for (code, count) in codes.into_iter().zip(copies.unacknowledged()) {
        page.value(&[("response_code", &(code as i32).to_string())], count);
    }
}

/// The slaves of a master. Several connections of one, and several plain ones at one address, are one value, that of the one that is furthest behind.
fn slaves(broker: &Broker, page: &mut Exposition) {
    if broker.standing.is_slave() {
        return;
    }
    let (now, end, slaves) = (broker.clock.elapsed(), broker.store.end(), broker.slaves.list());
    page.metric("gantry_replica_slaves", MetricKind::Gauge, "Slaves that are connected");
    page.value(&[], slaves.len());
    let mut lags: BTreeMap<(IpAddr, Option<i64>), (u64, Duration)> = BTreeMap::new();
    for slave in &slaves {
        let bytes = end.0.saturating_sub(slave.acknowledged.0);
        let this = (slave.peer.address.ip().to_canonical(), slave.peer.broker_id);
        let (bytes_max, time_max) = lags.entry(this).or_default();
        *bytes_max = bytes.max(*bytes_max);
        *time_max = slave.lag.behind(now, slave.acknowledged, end).max(*time_max);
    }
    page.metric("gantry_replica_slave_lag_bytes", MetricKind::Gauge, "Bytes of the log that a slave does not have");
    for (who, (bytes, _)) in &lags {
        page.value(&labelled(&labels_of(who)), *bytes);
    }
    let seconds = "For how long the log has had bytes that a slave does not have";
    page.metric("gantry_replica_slave_lag_seconds", MetricKind::Gauge, seconds);
    for (who, (_, time)) in &lags {
        page.value(&labelled(&labels_of(who)), time.as_secs_f64());
    }
    if let Some(at) = retention_floor::slaves_need_from(broker) {
        let needed = "Bytes of the log that are kept because a slave has yet to get them";
        page.metric("gantry_log_needed_by_slaves_bytes", MetricKind::Gauge, needed);
        page.value(&[], end.0.saturating_sub(at.0));
    }
    page.metric("gantry_replica_sent_bytes_total", MetricKind::Counter, "Bytes of the log that went to slaves");
    page.value(&[], broker.slaves.sent());
    let closed = "Connections to the port for slaves that ended, by reason";
    page.metric("gantry_replica_closed_connections_total", MetricKind::Counter, closed);
    broker.slaves.closed().for_each(|(reason, count)| page.value(&[("reason", reason)], count));
}

/// A slave by its address and, if it says so, its id.
fn labels_of((slave, broker_id): &(IpAddr, Option<i64>)) -> [(&'static str, String); 2] {
    let broker_id = broker_id.map_or_else(String::new, |id| id.to_string());
    [("slave", slave.to_string()), ("broker_id", broker_id)]
}

fn labelled<'a>(labels: &'a [(&'static str, String); 2]) -> [(&'static str, &'a str); 2] {
    labels.each_ref().map(|(name, value)| (*name, value.as_str()))
}

fn storage(store: &Store, clock: &Clock, page: &mut Exposition) {
    let (min, end) = (store.min_offset().0, store.end().0);
    page.metric("rocketmq_storage_size_bytes", MetricKind::Gauge, "Bytes of the log");
    page.value(&STORAGE, end - min);
    page.metric(
        "rocketmq_storage_flush_behind_bytes",
        MetricKind::Gauge,
        "Bytes of the log that are not on the device",
    );
    page.value(&STORAGE, end.saturating_sub(store.flushed().get()));
    page.metric(
        "rocketmq_storage_dispatch_behind_bytes",
        MetricKind::Gauge,
        "Bytes of the log that are not in the key index",
    );
    page.value(&STORAGE, store.index_behind());
    page.metric(
        "rocketmq_storage_message_reserve_time_milliseconds",
        MetricKind::Gauge,
        "Age of the oldest message in ms",
    );
    // One that cannot be read has no age.
    if let Ok(Some(stored)) = store.about_record_cold(store.min_offset(), |oldest| oldest.store_timestamp()) {
        page.value(&STORAGE, clock.now().since(TimeMs(stored)).max(0));
    }
}

fn journal(store: &Store, store_settings: &StoreSettings, config_files: &ConfigFiles, page: &mut Exposition) {
    for figure in crate::journal::figures(store, store_settings, config_files) {
        let (kind, end) = if figure.is_count { (MetricKind::Counter, "_total") } else { (MetricKind::Gauge, "") };
        page.metric(&format!("gantry_{}{end}", snake(figure.name)), kind, figure.about);
        page.value(&[], figure.value);
    }
}

fn shares(memory: &MemoryFigures, page: &mut Exposition) {
    page.metric("gantry_memory_limit_bytes", MetricKind::Gauge, "memoryLimit, or what was found for it");
    page.value(&[], memory.limit);
    page.metric("gantry_memory_occupied_bytes", MetricKind::Gauge, "What is occupied of it");
    page.value(&[], memory.occupied());
    page.metric("gantry_memory_bytes", MetricKind::Gauge, "What each part occupies");
    let parts = [
        ("heap", memory.heap),
        ("program", memory.program),
        ("log", memory.log),
        ("cold", memory.cold),
        ("files", memory.files),
        ("journal", memory.journal),
    ];
    for (part, bytes) in parts {
        page.value(&[("part", part)], bytes);
    }
    page.metric("gantry_memory_share_bytes", MetricKind::Gauge, "What each part may occupy");
    let parts = [
        ("log", memory.log_share),
        ("hot", memory.hot_share),
        ("cold", memory.cold_share),
        ("files", memory.files_share),
    ];
    for (part, bytes) in parts {
        page.value(&[("part", part)], bytes);
    }
    page.metric(
        "gantry_cold_copies_bytes",
        MetricKind::Gauge,
        "Copies of messages that their readers have not taken yet",
    );
    page.value(&[], memory.copied);
    page.metric("gantry_cold_copies_max_bytes", MetricKind::Gauge, "What such copies may hold together");
    page.value(&[], memory.copied_max);
    page.metric("gantry_cold_reads_without_copy_total", MetricKind::Counter, "Reads that found no room for a copy");
    page.value(&[], memory.uncopied);
    page.metric(
        "gantry_mapped_bytes",
        MetricKind::Gauge,
        "Pages of files in the page table, the program's own among them",
    );
    page.value(&[], memory.mapped);
    // Old kernels do not say: then there is no such metric, since 0 would be a figure.
    if let Some(dirty) = memory.dirty {
        let about = "Changed pages of the log, those made ready ahead among them";
        page.metric("gantry_log_dirty_bytes", MetricKind::Gauge, about);
        page.value(&[], dirty);
    }
    if let Some(writeback) = memory.writeback {
        page.metric("gantry_log_writeback_bytes", MetricKind::Gauge, "Pages of the log on their way to the device");
        page.value(&[], writeback);
    }
    page.metric("gantry_log_write_back_lag_bytes", MetricKind::Gauge, "Bytes appended that are not on the device");
    page.value(&[], memory.write_back_lag);
    page.metric(
        "gantry_log_dropped_bytes_total",
        MetricKind::Counter,
        "Bytes of the log that were dropped from memory",
    );
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
