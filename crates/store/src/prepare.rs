//! The `segments` thread: keeps the next stretch of the log ready, and lets go of what lies behind.
//!
//! Ready means that its blocks are allocated and its pages are in memory, so that an append neither faults nor meets a full
//! device. With a write pool the thread `commit` makes the pages. With SYNC_FLUSH it also means that zeros were written there, and are on the device: a flush into blocks that are allocated only
//! waits for the file system's journal besides. It does not go beyond what the memory limit lets the log have (`governor.rs`): then appends wait
//! until older pages are given back. The stretch is small when the log rests and grows with the rate of writing.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tracing::{info, warn};

use crate::error::{NotWritable, StoreError};
use crate::flush;
use crate::fullness::with_remedy;
use crate::segment::{Segment, file_name};
use crate::store::Shared;

/// The stretch of a log at rest.
pub(crate) const WINDOW_MIN: u64 = 1 << 20;
/// The stretch at full speed.
pub(crate) const WINDOW_MAX: u64 = 64 << 20;
/// In a log of small files it is no longer than so many of them (or than that of a log at rest), since each is held open.
const FILES_AHEAD: u64 = 8;
/// How much writing the stretch should last for.
const AHEAD: Duration = Duration::from_millis(200);
/// Prepared at once; appends may use one piece while the next is made.
const PIECE: u64 = 8 << 20;
/// The same where zeros go to the device: a flush that comes meanwhile waits behind them, half a millisecond on a device of 2 GB/s.
const WRITTEN_PIECE: u64 = 1 << 20;
/// A log that may have so much ahead may also have what the kernel makes beyond, half of what the device reads ahead: some MiB.
const ROOMY: u64 = 16 << 20;
/// How often the rate is looked at while something is written.
const LOOK: Duration = Duration::from_millis(200);
/// Pages kept mapped behind the end of the log, where consumers read: while it is written, and at rest.
const KEPT_BUSY: u64 = 32 << 20;
const KEPT_RESTING: u64 = 1 << 20;
/// How long to wait before a device that had no room is asked again; where there are several folders, also if somebody calls.
const RETRY: Duration = Duration::from_secs(1);
/// How long to wait for memory that is to be given back, before a look at what is flushed meanwhile.
const HELD: Duration = Duration::from_millis(20);

pub(crate) fn run(shared: &Shared) {
    let shares = shared.governor.as_ref().map(|governor| governor.options.shares);
    let ahead_max = shares.map_or(WINDOW_MAX, |shares| shares.ahead.min(WINDOW_MAX));
    let window_max = shared.log.segment_bytes.saturating_mul(FILES_AHEAD).clamp(WINDOW_MIN, ahead_max.max(WINDOW_MIN));
    let kept_busy = shares.map_or(KEPT_BUSY, |shares| (shares.hot / 4).min(KEPT_BUSY));
    let mut window = WINDOW_MIN;
    let mut last = (shared.log.appended(), shared.clock.elapsed());
    let mut let_go_at = 0;
    let are_several = shared.options.log_dirs.taking().len() > 1;
    while !shared.is_stopping() {
        let end = shared.log.appended();
        let now = shared.clock.elapsed();
        let elapsed = now.saturating_sub(last.1);
        if elapsed >= LOOK {
            let per_second = (end - last.0) as f64 / elapsed.as_secs_f64();
            let wanted = (per_second * AHEAD.as_secs_f64()) as u64;
            // Falls slowly, so that a pause of a moment does not cost the stretch.
            window = wanted.max(window / 2).clamp(WINDOW_MIN, window_max);
            last = (end, now);
        }
        let needed = shared.needed_room.load(Ordering::Acquire);
        if needed > shared.log.room.get() {
            // A burst that ran out of room needs more before the next look at the rate.
            window = (window * 2).min(window_max);
        }
        // What somebody waits for lies in the tail's segment or the next one.
        let target = (end + window).max(needed.saturating_add(WINDOW_MIN).min(end + 2 * shared.log.segment_bytes));
        let flushed = shared.flushed.get();
        if shares.is_some_and(|shares| end - flushed.min(end) >= shares.dirty) {
            shared.want_flush();
        }
        let allowed = shared.governor.as_ref().map_or(u64::MAX, |governor| governor.room_to(end, flushed, needed));
        let is_held = target > allowed;
        // Announced before the governor looks, which calls back for it.
        shared.is_room_held.store(is_held, Ordering::SeqCst);
        if is_held {
            shared.want_flush();
            shared.governor_bell.ring();
        }
        let is_ready = prepare_to(shared, target.min(allowed));
        let call_at = if is_held { u64::MAX } else { shared.log.room.get().saturating_sub(window / 2) };
        shared.log.call_at.store(call_at, Ordering::Relaxed);

        let is_resting = window == WINDOW_MIN && last.0 == end;
        let keep = if is_resting { KEPT_RESTING } else { kept_busy };
        let behind = end.saturating_sub(keep);
        if behind > let_go_at || shared.take_had_reads() {
            // What was written since the last time, and what was read: a log of a thousand files has few such.
            for segment in shared.log.segments() {
                if segment.end() > let_go_at || segment.take_was_read() {
                    segment.let_go(segment.base(), behind);
                }
            }
            let_go_at = behind;
        }
        if !is_ready && are_several {
            // No call ends it: each message that is refused calls, and each folder that is asked costs a file, a mapping and a sync.
            shared.segments_bell.rest(RETRY);
            continue;
        }
        let timeout = match (is_ready, is_resting) {
            (false, _) => Some(RETRY),
            (true, _) if is_held => Some(HELD),
            (true, false) => Some(LOOK),
            // At rest nothing changes until somebody writes (`call_at`) or reads far back.
            (true, true) => Some(Duration::from_secs(5)),
        };
        shared.segments_bell.wait(timeout, || {
            let end = shared.log.appended();
            shared.is_stopping()
                || is_held && !shared.is_room_held.load(Ordering::SeqCst)
                || !is_held && shared.needed_room.load(Ordering::Acquire) > shared.log.room.get() && is_ready
                || !is_held && end >= shared.log.call_at.load(Ordering::Relaxed) && is_ready && end != last.0
        });
    }
}

/// Prepares the log up to `target`. Says whether the device had room.
pub(crate) fn prepare_to(shared: &Shared, target: u64) -> bool {
    let log = &shared.log;
    // Each turn prepares a piece or ends the loop.
    while log.room.get() < target {
        let from = log.room.get();
        let piece = if shared.is_sync_flush() { WRITTEN_PIECE } else { PIECE };
        let to = target.min(from + piece);
        let Some(segment) = log.segment_at(from).or_else(|| next_segment(shared, from, to)) else { return false };
        let to = to.min(segment.end());
        if let Err(error) = segment.allocate(from, to, shared.is_sync_flush()) {
            note(shared, from, to - from, segment.path(), with_remedy(&*shared.disk, segment.path(), &error));
            return false;
        }
        if shared.is_sync_flush() {
            // Before the pages are made ready: a sync takes the right to write from them.
            flush::sync(shared, &segment, from, to);
        }
        if log.pool.is_none()
            && let Err(error) = segment.populate(from, to, shares_are_roomy(shared))
        {
            note(shared, from, to - from, segment.path(), with_remedy(&*shared.disk, segment.path(), &error));
            return false;
        }
        // Before anybody appends there: who then needs more than this piece is to wait for the next one, and not to hear of what is over.
        forget_refusal(shared);
        log.room.advance(to);
    }
    forget_refusal(shared);
    true
}

fn forget_refusal(shared: &Shared) {
    if shared.no_room.lock().take().is_some() {
        info!("there is room for the log again");
    }
}

fn shares_are_roomy(shared: &Shared) -> bool {
    shared.governor.as_ref().is_none_or(|governor| governor.options.shares.ahead >= ROOMY)
}

/// Makes the file of the log that begins at `base`, in the first folder that takes it with what is wanted of it at once, up to `to`. `None` if none
/// does, which is noted; and where what one of them refused cannot be removed, which no other one is asked for then.
fn next_segment(shared: &Shared, base: u64, to: u64) -> Option<Arc<Segment>> {
    let (log, disk) = (&shared.log, &*shared.disk);
    let full_percent = shared.retention.lock().disk_clean_forcibly_percent;
    let dirs = shared.options.log_dirs.for_file(disk, base / log.segment_bytes, full_percent);
    let are_several = dirs.len() > 1;
    // If there is no other one, room may come where the file is.
    let wanted = base..if are_several { to } else { base };
    let mut refused: Vec<(PathBuf, String)> = Vec::new();
    for dir in dirs {
        let path = dir.join(file_name(base));
        let error = match make(shared, dir, wanted.clone()) {
            Ok(segment) => {
                let made = segment.path().display();
                for (path, reason) in &refused {
                    warn!(path = %path.display(), reason, %made, "a folder of the log takes no file; another one does");
                }
                log.add(Arc::clone(&segment));
                return Some(segment);
            }
            Err(error) => error,
        };
        let mut reason = with_remedy(disk, dir, &error);
        // What was made of it before it failed. If it were in two folders, the next start would not know which one counts: so it is gone from the
        // device, too, before another one is asked.
        let is_made = disk.len(&path).is_ok();
        let removed =
            disk.remove(&path).and_then(|()| if is_made && are_several { disk.sync_dir(dir) } else { Ok(()) });
        let left = removed.err().filter(|_| is_made);
        if let Some(error) = &left {
            reason = format!("{reason}; what was made of it cannot be removed for good: {error}");
        }
        refused.push((path, reason));
        if left.is_some() {
            break;
        }
    }
    let reasons: Vec<&str> = refused.iter().map(|(_, reason)| &**reason).collect();
    if let Some((path, _)) = refused.first() {
        note(shared, base, to - base, path, reasons.join(". "));
    }
    None
}

/// Makes the file that begins where `wanted` does, with room for that, and its name durable.
fn make(shared: &Shared, dir: &Path, wanted: Range<u64>) -> Result<Arc<Segment>, StoreError> {
    let segment = Segment::open(&shared.disk, dir, wanted.start, shared.log.segment_bytes, &shared.cold_pages)?;
    let failed = |doing, path: &Path| {
        let path = path.to_owned();
        move |source| StoreError::Disk { doing, path, source }
    };
    let allocated = segment.allocate(wanted.start, wanted.end, shared.is_sync_flush());
    allocated.map_err(failed("make room in", segment.path()))?;
    // Whatever is written into a file could go with its name. If that fails it is made anew, since a second sync of the same name may say yes
    // without having done anything.
    shared.disk.sync_dir(dir).map_err(failed("make durable the names in", dir))?;
    Ok(segment)
}

fn note(shared: &Shared, at: u64, bytes: u64, path: &Path, reason: String) {
    let mut no_room = shared.no_room.lock();
    if no_room.is_none() {
        warn!(at, bytes, path = %path.display(), reason, "no room for the log");
    }
    *no_room = Some(NotWritable::NoRoom { path: path.to_owned(), bytes, reason });
}
