//! The log read again, from a record on to where it ends, and the queues brought up to it.

use std::sync::Arc;

use disk::Disk;
use protocol::LogOffset;
use protocol::record::Scanned;

use super::before::Before;
use super::blocks::{self, Block};
use super::damage::{bruised_record, set_aside, whole_record_after};
use super::files::LogFiles;
use super::found::Recovered;
use super::gap::{self, why_not};
use super::rebuild::{KnownUnits, Rebuild, Suspects};
use crate::checkpoint::Marks;
use crate::commit_log::BLANK_BYTES;
use crate::deleted::Deleted;
use crate::error::StoreError;
use crate::fold::scan_after_crash;
use crate::options::StoreOptions;
use crate::queue_log::{Cut, QueueLogs};

/// Bytes that a scan keeps mapped behind it.
const SCANNED_KEPT: u64 = 16 << 20;

/// How it went.
pub(super) struct Again {
    /// Where the log ends.
    pub end: u64,
    /// Store time of the last record that was read; 0 if there was none.
    pub last_timestamp: i64,
    /// Units that queues lacked.
    pub units_added: u64,
    /// See [`Rebuild::has_overtaken`].
    pub has_overtaken: bool,
    /// See [`Rebuild::lacking`].
    pub lacking: Option<String>,
    suspects: Suspects,
}

impl Again {
    /// Whether there are queues that [`Again::forget_misleading`] may take something out of.
    pub fn has_suspects(&self, queues: &QueueLogs) -> bool {
        self.suspects.iter().next().is_some() || queues.max_log_end().0 > self.end
    }

    /// Takes out of queues what points beyond the log's end, as it has turned out, and misled us about what was read. (What does so at a queue's
    /// end, and nothing else, stays.) Says from where the log is to be read once more for them, if there is any: from `from` on, as before, or
    /// from its beginning, where queues lack units of records before.
    pub fn forget_misleading(
        &mut self,
        files: &LogFiles,
        queues: &QueueLogs,
        deleted: &Deleted,
        from: u64,
    ) -> Result<Option<u64>, StoreError> {
        let end = LogOffset(self.end);
        for queue in queues.queues().iter().filter(|queue| queue.log_end() > end) {
            self.suspects.note(queue);
        }
        let mut read_from = None;
        for suspect in self.suspects.iter() {
            let begun = LogOffset(deleted.end_of(suspect.queue.topic()));
            let begin = match queues.cut(&suspect.queue, suspect.wrong_from(end), end, begun)? {
                Cut::Nothing => continue,
                Cut::There => from,
                Cut::Earlier => files.segments[0].base(),
            };
            read_from = Some(read_from.map_or(begin, |earlier: u64| earlier.min(begin)));
        }
        Ok(read_from)
    }
}

/// Reads the log from a record on. What can be mended is, and said; where it cannot, the log ends.
pub(super) fn read_again(
    files: &LogFiles,
    queues: &QueueLogs,
    before: &Before,
    from: u64,
    options: &StoreOptions,
    disk: &Arc<dyn Disk>,
    found: &mut Recovered,
) -> Result<Again, StoreError> {
    let mut at = from;
    let mut last_timestamp = 0;
    let mut damage = None;
    let mut lost = 0_u64;
    // After a crash what was not flushed may be torn anywhere: the first damage is the end. What the check-point vouches for was whole
    // once, as all of it was after a clean stop, and one bad page must not cost what came after it.
    let vouched = if found.was_abnormal { before.marks.map_or(0, Marks::vouched_timestamp) } else { i64::MAX };
    let hot = options.governor.as_ref().map(|governor| governor.shares.hot);
    let kept = SCANNED_KEPT.min(hot.map_or(SCANNED_KEPT, |hot| hot / 4));
    let mut let_go_at = from;
    let checkpointed = before.marks.map_or(i64::MIN, |marks| marks.queues_timestamp);
    let known = match before.noted {
        Some(_) => KnownUnits::handed_over(queues.queues().len(), files, from, before.queue_ends)?,
        None => KnownUnits::of(queues.queues().len()),
    };
    let mut rebuild = Rebuild::new(files, queues, before.deleted, before.batch_topics, checkpointed, known);
    let mut bruised = 0_u64;
    'segments: for segment in &files.segments {
        // Each turn goes on by a record, or ends the segment or the log.
        while segment.base() <= at && at < segment.end() {
            at = blocks::whole_records(segment, at, options, &mut |block| {
                rebuild.put_all(block)?;
                if block.records > 0 {
                    last_timestamp = block.last_timestamp;
                }
                found.records_scanned += block.records;
                if block.to - let_go_at > kept {
                    segment.let_go(segment.base(), block.to);
                    // Nobody else looks after memory yet.
                    if let Some(hot) = hot {
                        segment.forget_cached(segment.base(), block.to.saturating_sub(hot));
                    }
                    let_go_at = block.to;
                }
                Ok(())
            })?;
            // What stands there now is no whole record.
            if segment.end() - at < BLANK_BYTES {
                // Not even a marker fits. Nobody writes that, and nobody could write behind it.
                at = segment.end();
                break;
            }
            let mut scanned = scan_after_crash(segment.record_at(at)?, options.check_crc_on_recover);
            if let Err(why) = &scanned
                && let Some(view) = bruised_record(segment, at)?
                && view.store_timestamp() < vouched
            {
                bruised += 1;
                if bruised == 1 {
                    found
                        .findings
                        .push(format!("the record at log offset {at} is damaged ({why}); what follows it is whole"));
                }
                scanned = Ok(Scanned::Record(view));
            }
            match scanned {
                Ok(Scanned::Record(view)) if view.log_offset() == at => {
                    rebuild.put_all(&Block::of(view, options))?;
                    last_timestamp = view.store_timestamp();
                    found.records_scanned += 1;
                    at += view.total_size() as u64;
                }
                Ok(Scanned::Blank { .. }) => at = segment.end(),
                no_record => {
                    let why = why_not(no_record, segment.record_at(at)?);
                    if why.is_none() && is_known_end(before, found.was_abnormal, at) {
                        break 'segments;
                    }
                    let whole = whole_record_after(&files.segments, at)?;
                    damage = why.or_else(|| whole.map(|_| "zeros".to_owned()));
                    let Some(whole) = whole else { break 'segments };
                    let follower = gap::follows(files, whole, last_timestamp)?.filter(|timestamp| *timestamp < vouched);
                    let Some(timestamp) = follower else { break 'segments };
                    set_aside(files, at, whole.min(segment.end()), options, &**disk)?;
                    let Some(gap) = gap::close(segment, at, whole, timestamp)? else { break 'segments };
                    lost += 1;
                    if let Some(damage) = damage.take().filter(|_| lost == 1) {
                        found.findings.push(format!(
                            "the log is damaged from {at} to {}: {damage}; what follows is whole and goes on being served",
                            gap.to
                        ));
                    }
                    rebuild.lose(gap);
                    at = gap.to;
                }
            }
        }
    }
    rebuild.finish()?;
    let units_added = rebuild.added;
    let has_overtaken = rebuild.has_overtaken;
    let suspects = std::mem::take(&mut rebuild.suspects);
    let lacking = rebuild.lacking.take();
    let (mended, not_mended) = rebuild.findings();
    found.findings.extend(mended);
    found.not_mended.extend(not_mended);
    say_damaged(bruised, lost, options, found);
    if let Some(damage) = damage {
        found.findings.push(format!("the log ends at {at}; behind it: {damage}"));
        keep_cut_off(files, at, options, disk, found)?;
    }
    Ok(Again { end: at, last_timestamp, units_added, has_overtaken, lacking, suspects })
}

/// Says how many records and stretches of the log are damaged in all.
fn say_damaged(bruised: u64, lost: u64, options: &StoreOptions, found: &mut Recovered) {
    if bruised > 1 {
        found.findings.push(format!(
            "{bruised} records in all are damaged and followed by whole ones: they stay in their places"
        ));
    }
    if lost > 0 {
        let root = options.root.display();
        found.findings.push(format!("{lost} stretches of the log in all were damaged; copies are in {root}/cut"));
    }
}

/// Keeps a copy of what lies behind the log's end `at`, if records there are whole again.
fn keep_cut_off(
    files: &LogFiles,
    at: u64,
    options: &StoreOptions,
    disk: &Arc<dyn Disk>,
    found: &mut Recovered,
) -> Result<(), StoreError> {
    let Some(whole) = whole_record_after(&files.segments, at)? else { return Ok(()) };
    let kept = set_aside(files, at, u64::MAX, options, &**disk)?;
    found.findings.push(format!(
        "records behind the damage are whole again from log offset {whole} on; what is cut off is kept in {}",
        kept.display()
    ));
    Ok(())
}

/// Whether it is written down that the log ends there.
fn is_known_end(before: &Before, was_abnormal: bool, at: u64) -> bool {
    let confirmed = before.marks.and_then(|marks| u64::try_from(marks.confirmed).ok());
    !was_abnormal && (before.closed.map(|closed| closed.end) == Some(at) || confirmed == Some(at))
}
