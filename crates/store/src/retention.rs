//! The `retention` thread: old files go, oldest first, one at a time.
//!
//! A file is expired when its newest record is older than `fileReservedTime`. Expired files go at the hour of `deleteWhen`, or at
//! once when a file system is fuller than `diskMaxUsedSpaceRatio`; `deleteFileBatchMax` of them in one look at most. All of them go when an
//! operator asks (329). What makes the log longer than `commitLogBytesMax` is expired too, and goes at any hour. What the device does not have
//! yet stays. What is
//! still to be consumed, delivered, ended or copied by a slave stays (the broker says how far that reaches), except above `diskSpaceCleanForciblyRatio`,
//! where the device comes first and the log says so. Above `diskSpaceWarningLevelRatio` the store takes no more messages until
//! there is room again. Which file systems count is said in `fullness.rs`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use protocol::LogOffset;
use protocol::record::{self, Scanned};
use tracing::{info, warn};

use crate::error::NotWritable;
use crate::fullness::{Fullness, StoreFullness};
use crate::log_dirs::Unmeasured;
use crate::options::Retention;
use crate::segment::Segment;
use crate::store::Shared;

/// Between two files that go: deletion is spread, because a file system may stall on a gigabyte that is freed at once.
const PAUSE: Duration = Duration::from_millis(100);

/// Why a file may go.
#[derive(Clone, Copy, Debug)]
enum Why<'a> {
    Expired,
    LogTooLong,
    DiskFull(Fullness<'a>),
}

/// What became of the oldest file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RetentionTurn {
    Removed,
    /// There is none that may go, or it does not let itself be removed.
    Stays,
    /// It would go because the log is too long, but somebody needs it.
    IsNeeded,
    /// It would go, and the device does not have it yet.
    Unflushed,
}

/// What stands in the log output already, so that the next look does not say it again.
#[derive(Default)]
struct Told {
    /// The folders that do not say how full they are.
    unmeasured: BTreeSet<PathBuf>,
    /// Where the file begins whose first message has no time that can be read.
    timeless: Option<u64>,
    /// The removal of the last file is not brought to the device.
    is_unsynced: bool,
}

impl Told {
    fn unmeasured(&mut self, folders: Vec<Unmeasured>) {
        let before = std::mem::take(&mut self.unmeasured);
        for Unmeasured { path, source } in folders {
            if !before.contains(&path) && !self.unmeasured.contains(&path) {
                warn!(path = %path.display(), error = %source, "cannot tell how full a disk is: the limits hold for the others");
            }
            self.unmeasured.insert(path);
        }
    }
}

pub(crate) fn run(shared: &Shared) {
    let (mut is_held, mut told, mut removed) = (false, Told::default(), None);
    while !shared.is_stopping() {
        let is_held_now = look(shared, &mut told, &mut removed);
        if is_held_now && !is_held {
            warn!(
                bytes = shared.log.end.get().saturating_sub(shared.log.min()),
                "the log is longer than commitLogBytesMax, and its oldest file is kept: a message there is still to be consumed, delivered, ended, or copied by a slave"
            );
        }
        is_held = is_held_now;
        // What an operator asked for, and the device did not have yet.
        let is_asked = shared.delete_expired.load(Ordering::Relaxed);
        let interval = shared.options.clean_interval.min(if is_asked { PAUSE } else { Duration::MAX });
        shared.retention_bell.wait(Some(interval), || shared.is_stopping());
    }
}

/// One look at the devices and at the oldest files. Says whether the log stays longer than it may be because of what is in it. `removed`: the last
/// file that went, until the device knows of it.
fn look(shared: &Shared, told: &mut Told, removed: &mut Option<PathBuf>) -> bool {
    let (options, mut retention) = (&shared.options, shared.retention.lock().clone());
    let mut unmeasured = Vec::new();
    let mut places = StoreFullness::of(options, &*shared.disk, &mut unmeasured);
    told.unmeasured(unmeasured);
    let Some(mut fullest) = places.fullest() else {
        // Nothing is known of any disk: what they hold is left as it is.
        return false;
    };
    let is_asked = shared.delete_expired.swap(false, Ordering::Relaxed);
    let files_max = if is_asked { usize::MAX } else { retention.delete_batch_max.max(1) };
    let mut is_held = false;
    // Each turn removes a file or ends the look. What is left over has its turn at the next one.
    for _ in 0..files_max {
        if shared.is_stopping() {
            break;
        }
        let turn = if is_removal_safe(shared, told, removed) {
            remove_oldest(shared, &retention, &places, is_asked, told, removed)
        } else {
            RetentionTurn::Stays
        };
        is_held = turn == RetentionTurn::IsNeeded;
        if is_asked && turn == RetentionTurn::Unflushed {
            shared.delete_expired.store(true, Ordering::Relaxed);
        }
        if turn != RetentionTurn::Removed {
            break;
        }
        // It may be the room that the log's next file has not found.
        shared.segments_bell.ring();
        shared.retention_bell.wait(Some(PAUSE), || shared.is_stopping());
        // Each file frees space: what was forced before it may not be any more. Nor may it be what is wanted.
        retention = shared.retention.lock().clone();
        let now = StoreFullness::of(options, &*shared.disk, &mut Vec::new());
        if let Some(fullest_now) = now.fullest() {
            (places, fullest) = (now, fullest_now);
        }
    }
    let mut full = shared.disk_full.lock();
    if fullest.used > retention.disk_warning_percent {
        let now = NotWritable::DiskFull {
            path: fullest.path.to_owned(),
            used_percent: fullest.used,
            limit_percent: retention.disk_warning_percent,
        };
        if full.is_none() {
            warn!(reason = %now, "the store takes no more messages");
        }
        *full = Some(now);
    } else if full.take().is_some() {
        info!(used_percent = fullest.used, "the store takes messages again");
    }
    shared.is_writable.store(full.is_none(), Ordering::Release);
    is_held
}

/// Whether the device knows that the last file is gone, so that the next one may go.
fn is_removal_safe(shared: &Shared, told: &mut Told, removed: &mut Option<PathBuf>) -> bool {
    let Some(path) = removed.as_deref() else { return true };
    let synced = shared.options.log_dirs.sync_removal(&*shared.disk, path);
    let is_news = synced.is_err() && !told.is_unsynced;
    told.is_unsynced = synced.is_err();
    match synced {
        Ok(()) => {
            *removed = None;
            true
        }
        Err(error) => {
            if is_news {
                warn!(
                    path = %path.display(), %error,
                    "it is not sure that a file of the log which was removed stays away: no other one goes until it is"
                );
            }
            false
        }
    }
}

fn remove_oldest(
    shared: &Shared,
    retention: &Retention,
    places: &StoreFullness<'_>,
    is_asked: bool,
    told: &mut Told,
    removed: &mut Option<PathBuf>,
) -> RetentionTurn {
    let segments = shared.log.segments();
    let Some(oldest) = segments.first() else { return RetentionTurn::Stays };
    let Some(why) = why_remove(shared, retention, oldest, places, is_asked, told) else { return RetentionTurn::Stays };
    // Its name may come back with a loss of power, without what was in it, and the log would end there.
    if oldest.end() > shared.flushed.get() {
        return RetentionTurn::Unflushed;
    }
    let floor = shared.retention_floor.read().as_ref().and_then(|floor| floor());
    if floor.is_some_and(|floor| floor.0 < oldest.end()) {
        match why {
            Why::Expired => return RetentionTurn::Stays,
            Why::LogTooLong => return RetentionTurn::IsNeeded,
            Why::DiskFull(full) => warn!(
                path = %oldest.path().display(), disk = %full.path.display(), used_percent = full.used,
                limit_percent = retention.disk_clean_forcibly_percent,
                "removing messages that may still have to be consumed, delivered, ended, or copied by a slave: the disk is fuller than diskSpaceCleanForciblyRatio"
            ),
        }
    }
    // First the file: one that stays on disk stays part of the log, or the next start would find a gap behind it.
    if let Err(error) = shared.disk.remove(oldest.path()) {
        warn!(path = %oldest.path().display(), %error, "cannot remove a file of the log");
        return RetentionTurn::Stays;
    }
    *removed = Some(oldest.path().to_owned());
    shared.log.forget_oldest();
    if let Err(error) = shared.queues.trim_below(LogOffset(oldest.end())) {
        warn!(%error, "cannot trim the consume queues");
    }
    if let Some(index) = &shared.index {
        index.trim_below(oldest.end());
    }
    info!(path = %oldest.path().display(), ?why, "removed a file of the log");
    RetentionTurn::Removed
}

fn why_remove<'a>(
    shared: &Shared,
    retention: &Retention,
    oldest: &Segment,
    places: &StoreFullness<'a>,
    is_asked: bool,
    told: &mut Told,
) -> Option<Why<'a>> {
    if oldest.end() > shared.log.end.get() {
        return None;
    }
    if retention.clean_forcibly
        && let Some(full) = places.forcing(shared, retention.disk_clean_forcibly_percent)
    {
        return Some(Why::DiskFull(full));
    }
    let is_time = is_asked || retention.delete_when.contains(&retention.hour_of_day.at(shared.clock.now()));
    let is_above = places.fullest().is_some_and(|fullest| fullest.used > retention.disk_max_used_percent);
    if (is_time || is_above) && is_old(shared, retention, oldest, told) {
        return Some(Why::Expired);
    }
    retention.log_bytes_max.is_some_and(|max| shared.log.end.get() - oldest.base() > max).then_some(Why::LogTooLong)
}

fn is_old(shared: &Shared, retention: &Retention, oldest: &Segment, told: &mut Told) -> bool {
    let Some(newest) = newest_timestamp(shared, oldest, told) else { return false };
    let reserved = i64::try_from(retention.file_reserved.as_millis()).unwrap_or(i64::MAX);
    shared.clock.now().since(env::TimeMs(newest)) > reserved
}

/// When the last record of a full segment was stored, at the latest: the first record of the next one is no earlier. If that does not say it (it is
/// damaged, or a gap was closed there), the next that does makes the file seem newer than it is: it goes later, and not never.
///
/// The time at which the file was changed would be nearer, but says nothing sure: with a clock that was behind for a while, time stands still in the
/// log, and the file would seem older than its messages.
fn newest_timestamp(shared: &Shared, segment: &Segment, told: &mut Told) -> Option<i64> {
    let end = shared.log.end.get();
    for next in shared.log.segments().iter().filter(|next| segment.end() <= next.base() && next.base() < end) {
        let why = match next.record_at(next.base()).map(|bytes| record::scan(bytes, false)) {
            Ok(Ok(Scanned::Record(view))) if view.log_offset() == next.base() => return Some(view.store_timestamp()),
            Ok(Ok(Scanned::Record(_) | Scanned::Blank { .. } | Scanned::Nothing)) => {
                "no message begins there".to_owned()
            }
            Ok(Err(damage)) => damage.to_string(),
            Err(error) => error.to_string(),
        };
        // In the order of the log, so that each is told once.
        if told.timeless.is_none_or(|timeless| timeless < next.base()) {
            told.timeless = Some(next.base());
            warn!(
                path = %next.path().display(), why,
                "the first message of a file of the log has no time that can be read: the files before it are as old as those behind it"
            );
        }
    }
    None
}
