//! Opening what is on disk: find the log's files, find where its valid bytes end, and let the consume queues say the same.
//!
//! Nothing found here is trusted and nothing is mended in silence: each repair is a sentence in [`Recovered`].

mod again;
mod before;
mod blocks;
mod damage;
mod files;
mod found;
mod gap;
mod rebuild;
mod unfinished;

use std::sync::Arc;

use disk::Disk;
use env::counted;
use protocol::LogOffset;
use protocol::record::{self, Scanned};

use crate::checkpoint::Marks;
use crate::closed::fingerprint;
use crate::deleted::Deleted;
use crate::error::StoreError;
use crate::fold::whole_at;
use crate::governor::ColdPages;
use crate::options::{FlushMode, StoreOptions};
use crate::queue_log::QueueLogs;
use crate::resume::Mark;
use crate::segment::Segment;
use again::read_again;
pub(crate) use before::Before;
pub(crate) use blocks::{Block, Parser, whole_records};
pub(crate) use damage::{bruised_record, cut, set_aside, whole_record_after};
pub(crate) use files::{LogFiles, Went, open_segments};
pub use found::{CutOff, Recovered};
pub(crate) use gap::{follows, why_not};
pub(crate) use rebuild::{KnownUnits, Rebuild};
pub(crate) use unfinished::Unfinished;

/// Where reading again has to begin, at a record.
///
/// After a clean stop that is where the log ended; after a crash the newest segment that began before the check-point; in any
/// case not above what the consume queues have, and the log's beginning if they are not what they were.
fn scan_from(files: &LogFiles, queues: &QueueLogs, before: &Before, found: &mut Recovered) -> Result<u64, StoreError> {
    let Before { rebuild_from, marks, closed, .. } = *before;
    let was_abnormal = found.was_abnormal;
    let min = files.segments[0].base();
    if files.is_new || !was_abnormal && newest_record(files, queues)? == Newest::NotThere {
        // Whatever else is on disk, it does not speak of this log. (A loss of power may well take the log's last records and
        // leave their units; the check-point knows how far that can go.)
        return Ok(min);
    }
    // Also after a loss of power, which may take it back that the store was closed, and nothing else.
    if let Some(closed) = closed
        && (!was_abnormal || before.noted.is_none())
        && closed.min == min
        && begins(files, closed.end)? == Begins::Nothing
    {
        if fingerprint(queues, min) != closed.queues {
            found.findings.push(format!(
                "consume queues are not what they were when the store was closed: the log is read again from {min} on"
            ));
            return Ok(min);
        }
        if rebuild_from.is_none() && !was_abnormal {
            return Ok(closed.end);
        }
    }
    let queues_end = queues.max_log_end().0.min(rebuild_from.unwrap_or(u64::MAX));
    if let Some(marks) = marks.filter(|_| !was_abnormal)
        && let Ok(confirmed) = u64::try_from(marks.confirmed)
        && confirmed == queues.max_log_end().0
        && rebuild_from.is_none()
        && begins(files, confirmed)? != Begins::Otherwise
    {
        return Ok(confirmed);
    }
    let safe = safe_timestamp(before, was_abnormal);
    for segment in files.segments.iter().rev().filter(|segment| segment.base() <= queues_end) {
        if first_timestamp(segment)?.is_some_and(|timestamp| timestamp <= safe) {
            return Ok(segment.base());
        }
    }
    Ok(min)
}

/// Up to which store time a start relies on queues that have the record.
fn safe_timestamp(before: &Before, was_abnormal: bool) -> i64 {
    if was_abnormal { before.marks.map_or(0, Marks::safe_timestamp) } else { i64::MAX }
}

/// Whether a start that finds queues half built may begin behind `from`, by how far the furthest of them has come: others would lack what lies
/// between.
fn may_begin_later(files: &LogFiles, from: u64, before: &Before, was_abnormal: bool) -> Result<bool, StoreError> {
    let safe = safe_timestamp(before, was_abnormal);
    for segment in files.segments.iter().filter(|segment| segment.base() > from) {
        if first_timestamp(segment)?.is_some_and(|timestamp| timestamp <= safe) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether queues have all that was noted, as far as they say so themselves, and the log goes on there. Somebody may have removed them, so that
/// they are built again.
fn is_usable(mark: Mark, files: &LogFiles, queues: &QueueLogs, before: &Before) -> Result<bool, StoreError> {
    let has_queues = queues.max_log_end().0 >= mark.written || mark.written == files.segments[0].base();
    let is_kept = has_queues && before.rebuild_from.is_none() && files.segments[0].base() <= mark.flushed;
    Ok(is_kept && begins(files, mark.written)? != Begins::Otherwise)
}

/// What begins at a log offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begins {
    Record,
    Nothing,
    Otherwise,
}

fn begins(files: &LogFiles, at: u64) -> Result<Begins, StoreError> {
    let Some(segment) = files.segment_of(at) else {
        return Ok(Begins::Otherwise);
    };
    Ok(match record::scan(segment.record_at(at)?, true) {
        Ok(Scanned::Record(view)) if view.log_offset() == at => Begins::Record,
        Ok(Scanned::Nothing) => Begins::Nothing,
        Ok(Scanned::Record(_) | Scanned::Blank { .. }) | Err(_) => Begins::Otherwise,
    })
}

fn first_timestamp(segment: &Segment) -> Result<Option<i64>, StoreError> {
    let first = whole_at(segment.record_at(segment.base())?, segment.base(), false);
    Ok(first.map(|view| view.store_timestamp()).filter(|at| *at != 0))
}

/// The log's end and the store time of its last record, and the same of what is known to be on the device.
pub(crate) struct End {
    pub at: u64,
    pub last_timestamp: i64,
    pub flushed: u64,
    pub flushed_timestamp: i64,
    /// What was noted of the kernel's memory, if that was where reading began.
    pub noted: Option<Mark>,
    /// Bytes of log and queues that were written again after a failed sync.
    pub written_again: u64,
}

/// Removes what is left of the queues of deleted topics: a removal that was not finished, or not yet on the device.
fn finish_deletions(queues: &QueueLogs, deleted: &Deleted) -> Result<(), StoreError> {
    for (topic, end) in deleted.iter() {
        let left = queues.queues_of(topic);
        let is_over = |log_end: u64| (1..=end).contains(&log_end);
        if !left.iter().any(|queue| is_over(queue.log_end().0)) {
            continue;
        }
        if left.iter().all(|queue| queue.log_end().0 <= end) {
            queues.delete_topic(topic, || Some(((), 0)));
            continue;
        }
        // The topic lives again, in some of its queues.
        for queue in left.iter().filter(|queue| is_over(queue.log_end().0)) {
            queue.begin_at(0)?;
        }
    }
    Ok(queues.remove_deleted()?)
}

/// Reads the log from where it must, brings the queues up to it, and cuts off what is not valid.
pub(crate) fn recover(
    files: &mut LogFiles,
    queues: &QueueLogs,
    before: &Before,
    options: &StoreOptions,
    disk: &Arc<dyn Disk>,
    cold: &Arc<ColdPages>,
    found: &mut Recovered,
) -> Result<End, StoreError> {
    // All bytes may be read while we look; what is not valid is taken back below.
    for segment in &files.segments {
        segment.publish(segment.end());
    }
    finish_deletions(queues, before.deleted)?;
    let min = files.segments[0].base();
    let lost = match before.noted.and_then(|mark| Some((mark.written, mark.ends?))) {
        Some((written, ends)) if queues.ends_below(written)? != ends => {
            found.findings.push(format!(
                "consume queues are not what they were when the process was killed: the log is read again from {min} on"
            ));
            Some(min)
        }
        Some(_) | None => None,
    };
    let before = &Before { rebuild_from: lost.or(before.rebuild_from), ..*before };
    let noted = match before.noted {
        Some(mark) if is_usable(mark, files, queues, before)? => Some(mark),
        Some(_) | None => None,
    };
    let vouched = scan_from(files, queues, before, found)?;
    let from = noted.map_or(vouched, |mark| mark.written.max(vouched));
    let before = &Before { noted, ..*before };
    // Before it is read, which may take it out of memory.
    let mut written_again = if before.has_failed_sync { write_log_again(files, before)? } else { 0 };
    let mut queues_from = vouched;
    let on_device = noted.map_or(from, |mark| mark.flushed.max(vouched));
    trim_to_log(queues, LogOffset(min), options, &**disk)?;
    let mut is_told = may_begin_later(files, from, before, found.was_abnormal)?;
    if is_told {
        before.unfinished.begin(before, found.was_abnormal, options, &**disk)?;
    }
    let mut again = read_again(files, queues, before, from, options, disk, found)?;
    found.units_added += again.units_added;
    let (at, mut last_timestamp, mut has_overtaken) = (again.end, again.last_timestamp, again.has_overtaken);
    // Its files are gone, or the device never had them: what lies before `from` is not in it.
    let lacking = again.lacking.take().filter(|_| from > min);
    if !is_told && (lacking.is_some() || again.has_suspects(queues)) {
        // What is taken out of queues may be of records before `from`.
        before.unfinished.begin(before, found.was_abnormal, options, &**disk)?;
        is_told = true;
    }
    if let Some(queue) = &lacking {
        found.findings.push(format!(
            "consume queue {queue} has no file, though the log has messages of it: the log is read again from {min} on"
        ));
    }
    let misleading = again.forget_misleading(files, queues, before.deleted, from)?;
    if let Some(from) = lacking.map(|_| min).or(misleading) {
        // Nothing of that is there any more, and the log is as it was.
        queues_from = queues_from.min(from);
        let mut found_again = Recovered { was_abnormal: found.was_abnormal, ..Recovered::default() };
        let second = read_again(
            files,
            queues,
            // What queues had in the end is not what they have now.
            &Before { noted: None, ..*before },
            from,
            options,
            disk,
            &mut found_again,
        )?;
        found.units_added += second.units_added;
        // What had no place may have one now.
        found.not_mended = found_again.not_mended;
        has_overtaken = true;
    }
    for segment in files.segments.iter().filter(|segment| segment.end() > at) {
        segment.let_go(at, segment.end());
    }
    cut(files, at, options, disk, cold, found)?;
    if last_timestamp == 0 {
        let closed = before.closed.filter(|closed| closed.end == at).map_or(0, |closed| closed.last_timestamp);
        // Time must not run backwards across a restart either.
        last_timestamp = match newest_record(files, queues)? {
            Newest::StoredAt(timestamp) => timestamp.max(closed),
            Newest::Unknown | Newest::NotThere => closed,
        };
    }
    // What we read may be in the kernel only: the process before us wrote it and died. With ASYNC_FLUSH nobody was promised that it is on the
    // device, so that it may go there while messages come and go: the thread `flush` begins with it. Then gigabytes of it cost the start nothing.
    let (mut flushed, mut flushed_timestamp) = (at, last_timestamp);
    match options.flush {
        _ if !found.was_abnormal => {}
        FlushMode::Async => {
            flushed = on_device.min(at);
            flushed_timestamp = before.marks.map_or(0, |marks| marks.log_timestamp.min(last_timestamp));
        }
        // Consumers are shown what is on the device, and they have seen nearly all of this.
        FlushMode::Sync => sync_from(files, on_device, at)?,
    }
    options.log_dirs.sync(&**disk)?;
    let cut_units = queues.truncate_above(LogOffset(at), &|topic| before.deleted.end_of(topic))?;
    if cut_units > 0 {
        found.findings.push(format!(
            "pointed beyond the log's end and cut off: {} of consume queues",
            counted(cut_units, "unit")
        ));
    }
    queues.trim_below(LogOffset(min))?;
    if before.has_failed_sync {
        written_again += queues.write_again(LogOffset(queues_from))?;
    }
    if before.has_failed_sync || has_overtaken || found.units_added > 0 && !found.was_abnormal || cut_units > 0 {
        // The check-point vouches for all of it already, so that nobody would make it survive a loss of power. And units that were cut off
        // would come back with one, when the log holds other records where they point.
        queues.sync_all()?;
    }
    if is_told {
        before.unfinished.end(before)?;
    }
    Ok(End { at, last_timestamp, flushed, flushed_timestamp, noted, written_again })
}

/// Takes what is gone from the log out of the queues, so that a queue may begin anew behind it.
fn trim_to_log(queues: &QueueLogs, min: LogOffset, options: &StoreOptions, disk: &dyn Disk) -> Result<(), StoreError> {
    if min > LogOffset(0) {
        // Files that retention removed just before the process ended may be there again after a
        // loss of power. What leads into them goes when the device knows that they are gone.
        options.log_dirs.sync(disk)?;
    }
    queues.trim_below(min)?;
    Ok(())
}

/// Writes again what the check-point does not vouch for of the log, whatever it says of queues, and brings it to the device: files from the newest one
/// on that began before it. Returns how many bytes.
fn write_log_again(files: &LogFiles, before: &Before) -> Result<u64, StoreError> {
    let vouched = before.marks.map_or(0, Marks::vouched_timestamp);
    let mut written = 0;
    for segment in files.segments.iter().rev() {
        let failed = |source| StoreError::Disk { doing: "write again", path: segment.path().to_owned(), source };
        written += segment.write_again().map_err(failed)?;
        segment.rest();
        if first_timestamp(segment)?.is_some_and(|timestamp| timestamp <= vouched) {
            break;
        }
    }
    Ok(written)
}

/// Brings the log from one offset to another to the device.
fn sync_from(files: &LogFiles, from: u64, to: u64) -> Result<(), StoreError> {
    for segment in files.segments.iter().filter(|segment| segment.end() > from && segment.base() < to) {
        segment.sync().map_err(|source| StoreError::Disk { doing: "sync", path: segment.path().to_owned(), source })?;
        if segment.end() <= to {
            segment.rest();
        }
    }
    Ok(())
}

/// The newest record that a consume queue knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Newest {
    /// No queue knows any.
    Unknown,
    NotThere,
    StoredAt(i64),
}

fn newest_record(files: &LogFiles, queues: &QueueLogs) -> Result<Newest, StoreError> {
    let newest = queues.queues().into_iter().max_by_key(|queue| queue.log_end());
    let unit = newest.and_then(|queue| queue.unit_at(queue.max_offset().checked_sub(1)?).ok().flatten());
    let Some(unit) = unit else { return Ok(Newest::Unknown) };
    let record = files.record_at(unit.at.0)?;
    Ok(record.map_or(Newest::NotThere, |view| Newest::StoredAt(view.store_timestamp())))
}
