//! The journal as operators see it: its settings, and what it does, by request 28 and at `/metrics`.

use std::time::Duration;

use config::StoreSettings;
use journal::JournalOptions;
use store::Store;

use crate::config_files::ConfigFiles;

/// What the settings say of the journal. When its changes are synced is not in them: that is the store's flush mode.
pub fn options(settings: &StoreSettings) -> JournalOptions {
    JournalOptions {
        bundle_delay: Duration::from_millis(settings.journal_bundle_delay_millis),
        complete_delay: Duration::from_millis(settings.journal_complete_delay_millis),
        snapshot_min_bytes: settings.journal_snapshot_min_bytes,
        snapshot_ratio_percent: settings.journal_snapshot_ratio_percent,
        maintenance_percent: settings.journal_maintenance_percent,
        idle_after: Duration::from_millis(settings.journal_idle_millis),
        pending_bytes: settings.journal_pending_bytes_max,
        room_bytes: settings.journal_room_bytes,
        ..JournalOptions::default()
    }
}

/// A number of the journal.
pub(crate) struct Figure {
    /// As request 28 has it; `/metrics` writes it in its own way.
    pub(crate) name: &'static str,
    /// It only grows, and begins anew with the process.
    pub(crate) is_count: bool,
    /// A line.
    pub(crate) about: &'static str,
    pub(crate) value: u64,
}

/// The settings, and what there is beside them.
pub(crate) fn figures(store: &Store, store_settings: &StoreSettings, config_files: &ConfigFiles) -> [Figure; 27] {
    let journal = store.journal();
    let (stats, options) = (journal.stats(), journal.options());
    let now = |name, value, about| Figure { name, is_count: false, about, value };
    let count = |name, value, about| Figure { name, is_count: true, about, value };
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let micros = u64::try_from(stats.snapshot_took.as_micros()).unwrap_or(u64::MAX);
    [
        now("journalBytes", stats.journal_bytes, "Bytes of changes that no snapshot has"),
        now("journalSnapshotMinBytes", options.snapshot_min_bytes, "From where on a snapshot is worth it"),
        now("journalSnapshotRatioPercent", options.snapshot_ratio_percent, "The same in percent of the last snapshot"),
        now("journalIdleMillis", millis(options.idle_after), "After so long without a change a quarter will do"),
        now(
            "journalMaintenancePercent",
            options.maintenance_percent,
            "What snapshots and config/*.json may be of what was written",
        ),
        now("journalLastSnapshotBytes", stats.snapshot_bytes, "Bytes of the last snapshot"),
        now("journalLastSnapshotMicros", micros, "How long the last snapshot since start took"),
        count("journalSnapshots", stats.snapshots, "Snapshots"),
        count(
            "journalSnapshotsFailed",
            stats.snapshots_failed,
            "Snapshots that failed, and are tried again later each time",
        ),
        count("journalMaintenanceBytes", stats.maintenance_bytes, "Bytes of snapshots and of heads of files"),
        count("configurationBytes", config_files.written(), "Bytes of config/*.json written, each time whole"),
        count("configurationUnpaidBytes", config_files.unpaid(), "Of these, what was due before it was paid"),
        now(
            "journalUnpaidMillis",
            store_settings.journal_unpaid_millis,
            "How long a change waits for that at most until it is in config/*.json",
        ),
        count("journalForegroundBytes", stats.foreground_bytes, "Bytes of changes and of the log"),
        count("journalWrittenBytes", stats.written_bytes, "Bytes of changes"),
        count("journalEntries", stats.entries_since_start, "Changes"),
        count("journalBundles", stats.bundles, "Writes, each of one change or of several together"),
        now("journalBundleDelayMillis", millis(options.bundle_delay), "How long a write waits for more"),
        now("journalCompleteDelayMillis", millis(options.complete_delay), "The same when somebody waits for it"),
        now(
            "journalOffsetsMillis",
            store_settings.journal_offsets_millis,
            "How long committed offsets gather before they become a change",
        ),
        now("journalWaiting", journal.written().waiters() as u64, "Who waits for a change to be written"),
        count("journalSyncs", stats.syncs, "Times the device was asked to make changes safe"),
        now("journalPendingBytes", stats.pending_bytes, "Bytes of changes that wait to be written"),
        now("journalPendingBytesMax", options.pending_bytes as u64, "Above it the newest of each key is kept"),
        now("journalReadyBytes", stats.room_bytes, "Bytes of the file that are ready for changes"),
        now("journalRoomBytes", options.room_bytes, "Bytes that are made ready at a time"),
        now("journalFailing", u64::from(stats.is_failing), "1: the last attempt to write failed, and is repeated"),
    ]
}
