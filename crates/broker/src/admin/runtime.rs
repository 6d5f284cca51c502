//! What the broker does at this moment: 28, 45, 315.

use std::collections::BTreeMap;

use net::{Outgoing, Request};
use protocol::body::{DataVersion, DelayOffsets, KvTable};
use protocol::code::ResponseCode;
use protocol::request::ViewBrokerStats;

use crate::answer::reply_json;
use crate::broker::Broker;
use crate::delay::Delay;
use crate::refusal::Refusal;
use crate::state::falls::Cause;
use crate::state::stats::{Stat, Stats};
use crate::state::topics::queues::ends;

/// Ordinal and name of the RocketMQ version that we answer as.
const VERSION_NAME: &str = "V5_3_3";

/// 28: everything at a glance.
pub(crate) fn info(broker: &Broker, request: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    // The oldest record, which says since when there is something, may have to come from the disk. One that cannot be read has no time; the
    // rest of the answer is not its fault.
    let store = &broker.store;
    let earliest = store.about_record_cold(store.min_offset(), |oldest| oldest.store_timestamp());
    reply_json(request, out, &KvTable { table: table(broker, earliest.ok().flatten()) });
    Ok(())
}

fn table(broker: &Broker, earliest: Option<i64>) -> BTreeMap<String, String> {
    let mut table = BTreeMap::new();
    let mut put = |key: &str, value: String| {
        table.insert(key.to_owned(), value);
    };
    let Broker { store, clock, stats, timers, .. } = broker;
    let (min, end) = (store.min_offset().0, store.end().0);
    put("commitLogMinOffset", min.to_string());
    put("commitLogMaxOffset", end.to_string());
    // Keys of our own: which program this is, since `brokerVersion` says whose protocol it speaks; and transactions that nobody has ended yet.
    put("gantryVersion", env!("CARGO_PKG_VERSION").to_owned());
    put("openHalfMessages", broker.transactions.open().to_string());
    // A figure that the system does not give is left out rather than made up.
    if let Ok(disk) = store.disk_use() {
        let ratio = f64::from(disk.used_percent()) / 100.0;
        put("commitLogDiskRatio", ratio.to_string());
        put(
            "commitLogDirCapacity",
            format!("Total : {}, Free : {}.", size_text(disk.total), size_text(disk.available)),
        );
    }
    for dir in store.options().log_dirs.taking() {
        if let Ok(disk) = store.disk_use_of(dir) {
            let ratio = f64::from(disk.used_percent()) / 100.0;
            put(&format!("commitLogDiskRatio_{}", dir.display()), ratio.to_string());
        }
    }
    if let Ok(disk) = store.queue_disk_use() {
        put("consumeQueueDiskRatio", (f64::from(disk.used_percent()) / 100.0).to_string());
    }
    let now = clock.now();
    let started = stats.started_at();
    put("bootTimestamp", started.0.to_string());
    put("runtime", span_text(now.since(started)));
    put("brokerVersion", protocol::VERSION.to_string());
    put("brokerVersionDesc", VERSION_NAME.to_owned());
    // Whether it delivers what waits.
    put("brokerActive", broker.standing.is_master().to_string());
    put("startAcceptSendRequestTimeStamp", broker.settings.load().start_accept_send_request_time_stamp.to_string());

    let totals = stats.totals();
    let mornings = stats.mornings();
    put("putMessageTimesTotal", totals.put_messages.to_string());
    put("putMessageSizeTotal", totals.put_bytes.to_string());
    let average = if totals.put_messages > 0 { totals.put_bytes as f64 / totals.put_messages as f64 } else { 0.0 };
    put("putMessageAverageSize", decimal(average));
    let times = &stats.put_times;
    put("putMessageFailedTimes", times.failures().to_string());
    put("putMessageEntireTimeMax", times.longest_ms().to_string());
    put("putMessageDistributeTime", times.distribution());
    put("putLatency99", format!("{:.2}", times.percentile_ms(0.99)));
    put("putLatency999", format!("{:.2}", times.percentile_ms(0.999)));
    // Not measured: pulls read from memory, or on threads of their own. Exporters stumble over a key that is missing.
    put("getMessageEntireTimeMax", "0".to_owned());
    put("msgPutTotalYesterdayMorning", mornings.put_yesterday.to_string());
    put("msgPutTotalTodayMorning", mornings.put_today.to_string());
    put("msgPutTotalTodayNow", totals.put_messages.to_string());
    put("msgGetTotalYesterdayMorning", mornings.got_yesterday.to_string());
    put("msgGetTotalTodayMorning", mornings.got_today.to_string());
    put("msgGetTotalTodayNow", totals.got_messages.to_string());
    put("putTps", rates_text(stats.rates(|totals| totals.put_messages)));
    put("getFoundTps", rates_text(stats.rates(|totals| totals.pulls_found)));
    put("getMissTps", rates_text(stats.rates(|totals| totals.pulls_missed)));
    put("getTotalTps", rates_text(stats.rates(|totals| totals.pulls_found + totals.pulls_missed)));
    put("getTransferredTps", rates_text(stats.rates(|totals| totals.got_messages)));
    // A key of our own, which says whether consumers keep up.
    if let Some(ratio) = stats.consumed_per_produced() {
        put("consumeProduceRatio", decimal(ratio));
    }

    // Queue entries are made when a record is appended; the key index follows.
    put("dispatchBehindBytes", store.index_behind().to_string());
    put("dispatchMaxBuffer", "0".to_owned());
    // Apache's word for "none".
    put("earliestMessageTimeStamp", earliest.unwrap_or(-1).to_string());
    // Without a pool of write buffers Apache says the largest number there is.
    let free_buffers = store.free_buffers().map_or(i32::MAX, |free| i32::try_from(free).unwrap_or(i32::MAX));
    put("remainTransientStoreBufferNumbs", free_buffers.to_string());
    put("remainHowManyDataToFlush", size_text(end.saturating_sub(store.flushed().get())));
    // No pools and no queues before them, so their sizes and what they could hold are 0.
    for pool in ["send", "pull", "litePull", "query", "ack"] {
        put(&format!("{pool}ThreadPoolQueueSize"), "0".to_owned());
        put(&format!("{pool}ThreadPoolQueueCapacity"), "0".to_owned());
        put(&format!("{pool}ThreadPoolQueueHeadWaitTimeMills"), "0".to_owned());
    }
    let zero = ["pageCacheLockTimeMills", "EndTransactionQueueSize", "EndTransactionThreadPoolQueueCapacity"];
    zero.into_iter().for_each(|key| put(key, "0".to_owned()));
    let of_timers = super::timers::figures(timers.as_deref(), store, clock, stats);
    of_timers.into_iter().chain(super::replicas::figures(broker)).for_each(|(key, value)| put(key, value));
    let topic = broker.delay.topic();
    for (level, offset) in broker.delay.offsets() {
        let queue = u32::try_from(level - 1).ok().and_then(|id| store.existing_queue(topic.name(), id));
        let max = queue.map_or(0, |queue| ends(&queue).1);
        put(&format!("scheduleMessageOffset_{level}"), format!("{offset},{max}"));
    }
    crate::limits::figures(broker).into_iter().for_each(|(key, value)| put(key, value));
    let of_journal = crate::journal::figures(store, &broker.store_settings.load(), &broker.config_files);
    of_journal.into_iter().for_each(|figure| put(figure.name, figure.value.to_string()));
    if let Some(memory) = store.memory() {
        put("memoryBytes", memory.occupied().to_string());
        put("memoryLimit", memory.limit.to_string());
        put("memoryLogBytes", memory.log.to_string());
        put("memoryLogShare", memory.log_share.to_string());
        memory.dirty.into_iter().for_each(|dirty| put("memoryDirtyBytes", dirty.to_string()));
        put("coldCopyBytes", memory.copied.to_string());
        put("coldCopyBytesMax", memory.copied_max.to_string());
        put("coldReadsWithoutCopy", memory.uncopied.to_string());
    }
    for (cause, waited) in Cause::ALL.into_iter().zip(broker.waited()) {
        put(&format!("waitedMillis_{}", cause.name()), waited.as_millis().to_string());
    }
    table
}

/// Three rates, as Apache prints them.
fn rates_text(rates: [f64; 3]) -> String {
    rates.map(decimal).join(" ")
}

/// A number as Java prints a double: never without a point.
fn decimal(number: f64) -> String {
    format!("{number:?}")
}

/// `1.5 GiB`, as Apache prints sizes and as exporters read them.
fn size_text(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut size = bytes as f64;
    let mut unit = 0;
    while size >= 1024.0 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{size:.1} {}", UNITS[unit]) }
}

fn span_text(ms: i64) -> String {
    let seconds = ms.max(0) / 1000;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    format!("[ {days} days, {hours} hours, {minutes} minutes, {} seconds ]", seconds % 60)
}

/// 315: one figure over the last minute, hour and day.
pub(crate) fn stats(stats: &Stats, request: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let asked = ViewBrokerStats::decode(&request.header.fields)?;
    let found = Stat::named(asked.stats_name).and_then(|stat| stats.window(stat, asked.stats_key));
    let Some(windows) = found else {
        let remark = format!("The stats <{}> <{}> not exist", asked.stats_name, asked.stats_key);
        return Err(Refusal::new(ResponseCode::SystemError, remark));
    };
    reply_json(request, out, &windows);
    Ok(())
}

/// 45: how far each delay level has been delivered, for a slave.
pub(crate) fn delay_offsets(delay: &Delay, request: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let offset_table = delay.offsets().filter(|(_, offset)| *offset > 0).collect();
    reply_json(request, out, &DelayOffsets { data_version: Some(DataVersion::default()), offset_table });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_read_as_apache_prints_them() {
        assert_eq!(span_text(90_061_000), "[ 1 days, 1 hours, 1 minutes, 1 seconds ]");
        assert_eq!(size_text(0), "0 B");
        assert_eq!(size_text(1023), "1023 B");
        assert_eq!(size_text(1536), "1.5 KiB");
        assert_eq!(size_text(500 << 30), "500.0 GiB");
        assert_eq!(size_text(252 << 40), "252.0 TiB");
        assert_eq!(rates_text([1.0, 0.5, 0.0]), "1.0 0.5 0.0");
    }
}
