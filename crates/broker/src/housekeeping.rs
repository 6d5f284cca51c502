//! What the broker does by itself: offsets into the journal, samples, expiry, JSON files.
//!
//! Each is a task that sleeps until there is something to do; all end when the broker stops, which then does each a last time.

use std::sync::Arc;
use std::time::Duration;

use config::BrokerSettings;
use env::Clock;
use journal::Table;
use store::Store;

use crate::blocking::beside;
use crate::broker::Broker;
use crate::caller::JOURNAL_TIMEOUT;
use crate::client::heartbeat;
use crate::client_handle::ClientHandle;
use crate::config_files::{ConfigFilesError, Exports, Extras, When};
use crate::minute_log::{Minute, MinuteLog};
use crate::state::clients::Clients;
use crate::state::conditions::Conditions;
use crate::state::falls::{Fall, Falls};
use crate::state::groups::{ForbiddenTable, Groups};
use crate::state::offsets::{Offsets, rows};
use crate::state::stats::SAMPLE_MS;
use crate::state::topics::Topics;
use crate::state::topics::mapped::Mappings;
use crate::tables;
use crate::tasks::Stop;
use crate::wall_time::{STEP_MS, Steps};

/// How often it is looked whether offsets are written, where the journal did not take them at once.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Does a last time what the tasks did, which have ended. Nobody is served any more. An error if `config/*.json` are behind the journal then:
/// another broker would go on with what they say.
pub(crate) async fn finish(broker: &Broker) -> Result<(), ConfigFilesError> {
    tend_conditions(&broker.settings.load(), &broker.conditions, &broker.clients, &broker.clock);
    let position = rows::put(&broker.store, &broker.offsets);
    let written = broker.store.journal().written().reached(position);
    let exported = if tokio::time::timeout(JOURNAL_TIMEOUT, written).await.is_err() {
        // An export would wait for the journal once more.
        tracing::error!("the journal is not written in time; it may lack the offsets that were committed last");
        Err(ConfigFilesError::Journal { path: broker.store.options().root.join("config") })
    } else {
        broker.config_files.export(broker, When::Changed).await
    };
    if let Err(error) = broker.config_files.export_timer_counts(broker.timers.as_deref()).await {
        tracing::error!(%error, "counts of timer messages not exported; Apache's broker would count them anew");
    }
    exported
}

/// Carries committed offsets to the journal, `journalOffsetsMillis` after the first of them, of each key the newest. Whoever is told
/// an offset (14) has it carried there before.
pub(crate) async fn keep_offsets(broker: Arc<Broker>, mut stop: Stop) {
    while !stop.is_asked() {
        tokio::select! {
            biased;
            () = stop.asked() => return,
            () = broker.offsets.changed() => {}
        }
        let gather = Duration::from_millis(broker.store_settings.load().journal_offsets_millis);
        tokio::select! {
            biased;
            () = stop.asked() => return,
            () = tokio::time::sleep(gather) => {}
        }
        let position = rows::put(&broker.store, &broker.offsets);
        // Who waits for a change hurries the journal, and nobody waits for these: so this looks, and does not wait.
        while broker.store.journal().written().get() < position {
            tokio::select! {
                biased;
                () = stop.asked() => return,
                () = tokio::time::sleep(LOOK_AGAIN) => {}
            }
        }
    }
}

/// Says why fewer messages are stored than usual.
pub(crate) async fn watch_throughput(broker: Arc<Broker>, mut stop: Stop) {
    let (mut falls, mut looked_at, mut window) = (Falls::default(), broker.clock.elapsed(), 0);
    while !stop.is_asked() {
        let set = broker.settings.load().throughput_window_millis;
        if std::mem::replace(&mut window, set) != set {
            // Windows of another length say nothing of this one.
            falls = Falls::default();
        }
        tokio::select! {
            biased;
            () = stop.asked() => return,
            () = tokio::time::sleep(Duration::from_millis(window)) => {}
        }
        let now = broker.clock.elapsed();
        let took = now.saturating_sub(std::mem::replace(&mut looked_at, now));
        let messages = broker.stats.totals().put_messages;
        if let Some(Fall { messages, usual, cause, waited }) = falls.look(messages, broker.waited(), took) {
            let (cause, waited_ms, window_ms) = (cause.name(), waited.as_millis() as u64, took.as_millis() as u64);
            tracing::warn!(cause, waited_ms, messages, usual, window_ms, "fewer messages are stored than usual");
        }
    }
}

/// Samples, and whatever expires.
pub(crate) async fn keep_house(broker: Arc<Broker>, mut stop: Stop) {
    let every = Duration::from_millis(SAMPLE_MS.unsigned_abs());
    let mut minutes = MinuteLog::default();
    let mut steps = Steps::new(&broker.clock);
    tell_behind(&broker.store, &broker.clock);
    while !stop.is_asked() {
        tokio::select! {
            biased;
            () = stop.asked() => return,
            () = tokio::time::sleep(every) => {}
        }
        beside(&broker, |broker| broker.stats.sample()).await;
        if let Some(minute) = minutes.look(&broker.stats) {
            tell(&minute);
        }
        if let Some(by_ms) = steps.look() {
            tracing::warn!(
                by_ms,
                "the wall clock was set; timer messages, leases and what else is due at a time go with it"
            );
        }
        beside(&broker, tidy).await;
    }
}

/// Says that the clock stands behind what the last process has stored: it was ahead then, or is behind now.
fn tell_behind(store: &Store, clock: &Clock) {
    let by_ms = store.last_timestamp().saturating_sub(clock.now().0);
    if by_ms >= STEP_MS {
        tracing::warn!(
            by_ms,
            "the wall clock is behind the newest message of the log; messages are stored with the time of that one until the clock has come so far"
        );
    }
}

/// Each looks through a table.
fn tidy(broker: &Broker) {
    broker.order_locks.expire();
    let idle = broker.settings.load().pop_polling_map_expire_time_seconds;
    broker.hold.pops.sweep(Duration::from_secs(idle));
    broker.routes.expire(broker.clock.now());
    broker.journal_copies.end_silent(broker.clock.elapsed());
    // Those of a master are there, and its journal says when they leave.
    if !broker.master_journal.is_followed() && broker.master_journal.place().is_none() {
        tend_conditions(&broker.settings.load(), &broker.conditions, &broker.clients, &broker.clock);
    }
    heartbeat::close_silent(broker);
    broker.offsets.end_watch(broker.store.journal());
    let untold = std::mem::take(&mut *broker.untold.lock());
    heartbeat::tell_late(&broker.clients, untold);
}

fn tell(minute: &Minute) {
    let Minute { put_tps, transferred_tps, found_tps, missed_tps, put_messages, put_bytes, failed, p99_ms } = *minute;
    tracing::info!(
        put_tps,
        get_found_tps = found_tps,
        get_miss_tps = missed_tps,
        get_transferred_tps = transferred_tps,
        put_messages,
        put_bytes,
        failed,
        p99_ms,
        "the last minute"
    );
}

fn tend_conditions(settings: &BrokerSettings, conditions: &Conditions, clients: &Clients<ClientHandle>, clock: &Clock) {
    let keep_ms = settings.filter_data_clean_time_span;
    conditions.tend(clients, clock.now().0, keep_ms);
}

/// Writes RocketMQ's JSON files when their state has changed.
pub(crate) async fn keep_files(broker: Arc<Broker>, mut stop: Stop) {
    let mut has_complained = false;
    while !stop.is_asked() {
        let every = broker.settings.load().flush_consumer_offset_interval;
        let every = Duration::from_millis(every.max(100));
        tokio::select! {
            biased;
            () = stop.asked() => return,
            () = tokio::time::sleep(every) => {}
        }
        let runtime = tokio::runtime::Handle::current();
        match beside(&broker, move |broker| runtime.block_on(broker.config_files.export(broker, When::Paid))).await {
            Ok(()) => has_complained = false,
            // The state is safe in the journal; say it once, not every few seconds.
            Err(error) if !has_complained => {
                tracing::error!(%error, "configuration not exported");
                has_complained = true;
            }
            Err(_) => {}
        }
    }
}

/// Says to the journal who holds which table, so that it can take snapshots.
pub(crate) fn attach(broker: &Broker) {
    let journal = broker.store.journal();
    let (topics, groups, offsets) = (&broker.topics, &broker.groups, &broker.offsets);
    journal.attach(tables::MAPPINGS, Arc::new(Mappings(Arc::clone(topics))));
    journal.attach(tables::GROUPS, Arc::clone(groups) as Arc<dyn Table>);
    journal.attach(tables::FORBIDDEN, Arc::new(ForbiddenTable(Arc::clone(groups))));
    journal.attach(tables::OFFSETS, Arc::new(rows::OffsetTable(Arc::clone(offsets))));
    journal.attach(tables::OWED, Arc::clone(&broker.owed) as Arc<dyn Table>);
    journal.attach(tables::CONDITIONS, Arc::clone(&broker.conditions) as Arc<dyn Table>);
    journal.attach(tables::EXPORTS, Arc::new(Exports(Arc::clone(&broker.config_files))));
    journal.attach(tables::EXTRAS, Arc::new(Extras(Arc::clone(&broker.config_files))));
    let versions = Versions { topics: Arc::clone(topics), groups: Arc::clone(groups), offsets: Arc::clone(offsets) };
    journal.attach(tables::VERSIONS, Arc::new(versions));
}

/// The data versions of all tables.
struct Versions {
    topics: Arc<Topics>,
    groups: Arc<Groups>,
    offsets: Arc<Offsets>,
}

impl Table for Versions {
    fn for_each(&self, f: &mut dyn FnMut(&[u8], &[u8])) {
        for (name, version) in [
            (tables::TOPICS_VERSION, self.topics.version()),
            (tables::MAPPINGS_VERSION, self.topics.mapping_version()),
            (tables::GROUPS_VERSION, self.groups.version()),
            (tables::OFFSETS_VERSION, self.offsets.version()),
        ] {
            f(name, &serde_json::to_vec(&version).unwrap_or_default());
        }
    }
}
