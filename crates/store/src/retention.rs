//! The `retention` thread: old files go, oldest first, one at a time.
//!
//! A file is expired when its newest record is older than `fileReservedTime`. Expired files go at the hour of `deleteWhen`, or at
//! once when the device is fuller than `diskMaxUsedSpaceRatio`; `deleteFileBatchMax` of them in one look at most. All of them go when an
//! operator asks (329). What the device does not have yet stays. What an active
//! consumer group has not consumed yet stays (the broker says how far that reaches), except above `diskSpaceCleanForciblyRatio`,
//! where the device comes first and the log says so. Above `diskSpaceWarningLevelRatio` the store takes no more messages until
//! there is room again.

use std::sync::atomic::Ordering;
use std::time::Duration;

use protocol::LogOffset;
use protocol::record::{self, Scanned};
use tracing::{info, warn};

use crate::error::NotWritable;
use crate::options::Retention;
use crate::segment::Segment;
use crate::store::Shared;

/// Between two files that go: deletion is spread, because a file system may stall on a gigabyte that is freed at once.
const PAUSE: Duration = Duration::from_millis(100);

/// Why a file may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Expired,
    DiskFull,
}

pub(crate) fn run(shared: &Shared) {
    while !shared.is_stopping() {
        look(shared);
        shared.retention_bell.wait(Some(shared.options.clean_interval), || shared.is_stopping());
    }
}

/// One look at the device and at the oldest files.
pub(crate) fn look(shared: &Shared) {
    let (options, retention) = (&shared.options, shared.retention.lock().clone());
    let mut used = match options.log_dirs.space(&*shared.disk) {
        Ok(disk) => disk.used_percent(),
        Err(error) => {
            warn!(path = %options.log_dirs.first().display(), %error, "cannot tell how full the disk is");
            return;
        }
    };
    let is_asked = shared.delete_expired.swap(false, Ordering::Relaxed);
    let files_max = if is_asked { usize::MAX } else { retention.delete_batch_max.max(1) };
    // Each turn removes a file or ends the look. What is left over has its turn at the next one.
    for _ in 0..files_max {
        if shared.is_stopping() || !remove_oldest(shared, &retention, used, is_asked) {
            break;
        }
        shared.retention_bell.wait(Some(PAUSE), || shared.is_stopping());
        // Each file frees space: what was forced before it may not be any more.
        used = options.log_dirs.space(&*shared.disk).map_or(used, |disk| disk.used_percent());
    }
    let mut full = shared.disk_full.lock();
    if used > retention.disk_warning_percent {
        let now = NotWritable::DiskFull {
            path: options.log_dirs.first().to_owned(),
            used_percent: used,
            limit_percent: retention.disk_warning_percent,
        };
        if full.is_none() {
            warn!(reason = %now, "the store takes no more messages");
        }
        *full = Some(now);
    } else if full.take().is_some() {
        info!(used_percent = used, "the store takes messages again");
    }
    shared.is_writable.store(full.is_none(), Ordering::Release);
}

fn remove_oldest(shared: &Shared, retention: &Retention, used_percent: u8, is_asked: bool) -> bool {
    let segments = shared.log.segments();
    let Some(oldest) = segments.first() else { return false };
    let Some(why) = why_remove(shared, retention, oldest, used_percent, is_asked) else { return false };
    let floor = shared.retention_floor.read().as_ref().and_then(|floor| floor());
    if floor.is_some_and(|floor| floor.0 < oldest.end()) {
        if why != Why::DiskFull || used_percent <= retention.disk_clean_forcibly_percent || !retention.clean_forcibly {
            return false;
        }
        warn!(
            path = %oldest.path().display(), used_percent, limit_percent = retention.disk_clean_forcibly_percent,
            "removing messages that an active group has not consumed: the disk is fuller than diskSpaceCleanForciblyRatio"
        );
    }
    // First the file: one that stays on disk stays part of the log, or the next start would find a gap behind it.
    if let Err(error) = shared.disk.remove(oldest.path()) {
        warn!(path = %oldest.path().display(), %error, "cannot remove a file of the log");
        return false;
    }
    shared.log.forget_oldest();
    if let Err(error) = shared.queues.trim_below(LogOffset(oldest.end())) {
        warn!(%error, "cannot trim the consume queues");
    }
    if let Some(index) = &shared.index {
        index.trim_below(oldest.end());
    }
    info!(path = %oldest.path().display(), ?why, "removed a file of the log");
    true
}

fn why_remove(
    shared: &Shared,
    retention: &Retention,
    oldest: &Segment,
    used_percent: u8,
    is_asked: bool,
) -> Option<Why> {
    // What is not on the device stays: its name may come back with a loss of power, without what was in it, and the log would end there.
    if oldest.end() > shared.flushed.get() {
        return None;
    }
    if used_percent > retention.disk_clean_forcibly_percent && retention.clean_forcibly {
        return Some(Why::DiskFull);
    }
    let is_time = is_asked || retention.delete_when.contains(&retention.hour_of_day.at(shared.clock.now()));
    if !is_time && used_percent <= retention.disk_max_used_percent {
        return None;
    }
    let newest = newest_timestamp(shared, oldest)?;
    let reserved = i64::try_from(retention.file_reserved.as_millis()).unwrap_or(i64::MAX);
    (shared.clock.now().since(env::TimeMs(newest)) > reserved).then_some(Why::Expired)
}

/// When the last record of a full segment was stored: that of the first record of the next one, which is no earlier.
fn newest_timestamp(shared: &Shared, segment: &Segment) -> Option<i64> {
    let next = shared.log.segment_at(segment.end())?;
    let first = match next.record_at(next.base()) {
        Ok(bytes) => record::scan(bytes, false),
        Err(error) => {
            warn!(%error, "cannot tell how old a file of the log is");
            return None;
        }
    };
    match first {
        Ok(Scanned::Record(view)) => Some(view.store_timestamp()),
        Ok(Scanned::Blank { .. } | Scanned::Nothing) | Err(_) => None,
    }
}
