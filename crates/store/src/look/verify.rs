//! Whether a store is sound: all of the log is read, and everything else is held against it.

use std::path::PathBuf;

use journal::{JournalError, JournalLook};

use super::finding::Finding;
use super::index;
use super::keys::Keys;
use super::log::{KEPT_BYTES, Log, Stumble};
use super::offsets::KnownTables;
use super::opened::Look;
use super::timers;
use super::times::Times;
use super::units::Units;

use crate::checkpoint;
use crate::closed::Closed;
use crate::commit_log::BLANK_BYTES;
use crate::deleted::Deleted;
use crate::error::StoreError;
use crate::fold::whole_at;
use crate::options::StoreOptions;
use crate::queue_log::QueueError;
use crate::recovery::{Block, whole_records};
use crate::rocksdb::{fetched_file, rocksdb_in, unfinished_repair};
use crate::segment::Segment;

const LOST: &str = "the messages in it are lost; those before and after it are served";
const CUT: &str =
    "nothing that was acknowledged, if the broker was killed; the next start cuts it off and keeps a copy in cut/";

/// What was looked at, and how much of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Bytes of the log.
    pub log_bytes: u64,
    /// Records in it that are whole.
    pub records: u64,
    /// Units of consume queues that were held against their records.
    pub units: u64,
    /// Keys in the index.
    pub keys: u64,
    /// Units of the timer log.
    pub timers: u64,
    /// Records of topics that there are no more. Nobody is given them; building queues again brings back those of a topic that Apache deleted.
    pub of_deleted: u64,
    /// How many findings there were.
    pub findings: u64,
    /// What a start would mend by itself, a sentence each.
    pub notes: Vec<String>,
}

impl Look {
    /// Reads the whole log and holds queues, timers and the keys of the index against it, committed
    /// offsets against the queues, heads of the index and the journal's word of a stop against its
    /// ends, and the keys of the index against each other. Shows findings as they come, and how far the log is read,
    /// in bytes of all.
    pub fn verify(
        &self,
        tables: &KnownTables,
        tell: &mut dyn FnMut(Finding),
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Verified, StoreError> {
        let mut verified = Verified::default();
        let mut findings = 0;
        let mut tell = |finding| {
            findings += 1;
            tell(finding);
        };
        self.verify_rocksdb(&mut tell)?;
        let journal = self.verified_journal(&mut tell, &mut verified)?;
        let log = Log::open(&self.options, &self.disk)?;
        for (file, why) in &log.findings {
            tell(Finding {
                file: file.clone(),
                at: None,
                what: format!("{why}: a file is missing, was cut short, or is there twice"),
                effect: "no broker starts with this store",
                remedy: "put the missing file back from a copy; without one, move away the files on one side of the gap, or one of two that are the same",
            });
        }
        let (queues, loaded) = match self.queues() {
            Ok(opened) => opened,
            Err(StoreError::Queue(QueueError::FileLength { path, bytes, expected })) => {
                tell(Finding {
                    file: path,
                    at: None,
                    what: format!("has {bytes} bytes, files of this kind have {expected}; no queue was looked at"),
                    effect: "no broker starts with this store",
                    remedy: "gantry store repair --queues builds the queues again from the log",
                });
                verified.findings = findings;
                return Ok(verified);
            }
            Err(error) => return Err(error),
        };
        for what in loaded.findings {
            // Each of them names its file.
            verified.notes.push(format!("a start says: {what}"));
        }
        let deleted = journal.as_ref().map(Deleted::in_look).unwrap_or_default();
        let mut units = Units::new(&queues, &deleted, tables);
        // What the log tells comes first, also where the index cannot be opened.
        let mut keys = Keys::open(&self.options, &self.disk, log.min());
        let followed = keys.as_mut().ok().and_then(Option::as_mut);
        let end = self.read_log(&log, &mut units, followed, &mut verified, &mut tell, progress)?;
        if let Some(closed) = journal.as_ref().and_then(Closed::in_look)
            && closed.end > end
            && !self.options.root.join("abort").exists()
        {
            let segment = log.files.segment_of(end);
            tell(Finding {
                file: segment
                    .map_or_else(|| self.options.log_dirs.first().to_owned(), |segment| segment.path().to_owned()),
                at: segment.map(|segment| end - segment.base()),
                what: format!("the log ends at {end}; it ended at {} when the store was closed", closed.end),
                effect: "the messages behind it are lost",
                remedy: "put the file back from a copy, if there is one",
            });
        }
        (verified.units, verified.of_deleted) = units.finish(&log, end, &mut tell)?;
        keys?.map_or(Ok(()), |keys| keys.finish(end, &mut tell))?;
        verified.keys = index::verify(&self.options, &*self.disk, end, &mut tell)?;
        verified.timers = timers::verify(&self.options.root, &self.disk, &log, end, &mut tell)?;
        verified.findings = findings;
        Ok(verified)
    }

    fn verify_rocksdb(&self, tell: &mut dyn FnMut(Finding)) -> Result<(), StoreError> {
        let StoreOptions { root, queue_dir, .. } = &self.options;
        let found = rocksdb_in(&*self.disk, root, queue_dir).map_err(|source| StoreError::Disk {
            doing: "list",
            path: root.clone(),
            source,
        })?;
        for database in found {
            if let Some(what) = database.refusal() {
                let remedy = "as it says; docs/migrate.md has the details";
                tell(Finding { file: database.path, at: None, what, effect: "no start", remedy });
            }
        }
        if let Some(what) = unfinished_repair(root) {
            let remedy = "as it says; docs/migrate.md has the details";
            tell(Finding { file: fetched_file(root), at: None, what, effect: "no start", remedy });
        }
        Ok(())
    }

    fn verified_journal(
        &self,
        tell: &mut dyn FnMut(Finding),
        verified: &mut Verified,
    ) -> Result<Option<JournalLook>, StoreError> {
        if checkpoint::knows_journal(&*self.disk, &self.options.root) && self.is_journal_lost(tell)? {
            return Ok(None);
        }
        let (path, at, what): (PathBuf, _, String) = match self.journal() {
            Ok(journal) => {
                let mended = journal.iter().flat_map(|journal| &journal.findings);
                verified.notes.extend(mended.map(|what| format!("a start says: {what}")));
                return Ok(journal);
            }
            Err(JournalError::Damaged { path, at, what }) => (path, Some(at), what.to_owned()),
            Err(JournalError::Missing { path, what }) => (path, None, what),
            Err(error @ (JournalError::Disk { .. } | JournalError::Thread(_))) => return Err(error.into()),
        };
        tell(Finding {
            file: path,
            at,
            what,
            effect: "no start: topics, groups and offsets since the last snapshot would be forgotten",
            remedy: journal::REMEDY,
        });
        Ok(None)
    }

    /// There was a journal, as the check-point says: whether nothing of it is here.
    fn is_journal_lost(&self, tell: &mut dyn FnMut(Finding)) -> Result<bool, StoreError> {
        let file = self.options.root.join("journal");
        let (what, effect) = match journal::expect(&file, &*self.disk) {
            Ok(true) => return Ok(false),
            Ok(false) => ("the store had a journal, and its folder is not here".to_owned(), journal::WITHOUT),
            Err(JournalError::Missing { what, .. }) => {
                (what, "no start: topics, groups and offsets since config/*.json were last written would be forgotten")
            }
            Err(error) => return Err(error.into()),
        };
        tell(Finding { file, at: None, what, effect, remedy: journal::REMEDY });
        Ok(true)
    }

    /// Reads the log from its first byte on, and says where it ends.
    fn read_log(
        &self,
        log: &Log,
        units: &mut Units<'_>,
        mut keys: Option<&mut Keys<'_>>,
        verified: &mut Verified,
        tell: &mut dyn FnMut(Finding),
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<u64, StoreError> {
        let mut at = log.min();
        let all = log.files.segments.last().map_or(0, |segment| segment.end() - at);
        let begin = at;
        let mut last_timestamp = 0;
        let mut times = Times::default();
        'segments: for segment in &log.files.segments {
            // A file that is missing was told of.
            at = at.max(segment.base());
            let mut let_go_at = at;
            // Each turn goes on by a record, or ends the segment or the log.
            while segment.holds(at) {
                at = whole_records(segment, at, &self.options, &mut |block| {
                    units.compare_all(block, tell)?;
                    if let Some(keys) = &mut keys {
                        compare_keys(segment, block, keys, tell)?;
                    }
                    for (_, place) in &block.places {
                        let odd = times.next(place.unit.at.0, place.store_time);
                        odd.into_iter().for_each(|odd| tell_time(segment, odd, tell));
                    }
                    if block.records > 0 {
                        last_timestamp = block.last_timestamp;
                    }
                    verified.records += block.records;
                    if block.to - let_go_at > KEPT_BYTES {
                        segment.let_go(segment.base(), block.to);
                        let_go_at = block.to;
                        progress(block.to - begin, all);
                    }
                    Ok(())
                })?;
                if segment.end() - at < BLANK_BYTES {
                    at = segment.end();
                    break;
                }
                at = match self.stumble(log, segment, at, last_timestamp, units, tell)? {
                    Some(next) => next,
                    None => break 'segments,
                };
            }
            segment.let_go(segment.base(), segment.end());
        }
        if let Some(odd) = times.end()
            && let Some(segment) = log.files.segment_of(odd.0)
        {
            tell_time(segment, odd, tell);
        }
        verified.log_bytes = at - begin;
        progress(all, all);
        Ok(at)
    }

    /// Looks at what is no whole record: says where to go on, or that the log ends here.
    fn stumble(
        &self,
        log: &Log,
        segment: &Segment,
        at: u64,
        last_timestamp: i64,
        units: &mut Units<'_>,
        tell: &mut dyn FnMut(Finding),
    ) -> Result<Option<u64>, StoreError> {
        let place = Some(at - segment.base());
        let file = || segment.path().to_owned();
        match log.stumble(segment, at, last_timestamp, self.options.check_crc_on_recover)? {
            Stumble::Blank => Ok(Some(segment.end())),
            Stumble::Bruised(view, why) => {
                let what = format!(
                    "message {} of {}/{}, at log offset {at}, is damaged: {why}",
                    view.queue_offset(),
                    view.topic(),
                    view.queue_id()
                );
                let effect = "clients that check the body refuse this message; all others are served";
                let remedy = "none for this message: send it again from where it came; the record stays in its place";
                tell(Finding { file: file(), at: place, what, effect, remedy });
                units.compare_all(&Block::of(view, &self.options), tell)?;
                Ok(Some(at + view.total_size() as u64))
            }
            Stumble::Lost { to, why: None } => Ok(to),
            Stumble::Lost { to: Some(next), why: Some(why) } => {
                let what = format!("the log is damaged from log offset {at} to {next}: {why}");
                let remedy =
                    "gantry store repair (or the next start after a crash) closes the gap and keeps a copy in cut/";
                tell(Finding { file: file(), at: place, what, effect: LOST, remedy });
                Ok(Some(next))
            }
            Stumble::Lost { to: None, why: Some(why) } => {
                let what = format!("the log ends at {at}; behind it: {why}");
                let remedy = "gantry store repair, or start the broker";
                tell(Finding { file: file(), at: place, what, effect: CUT, remedy });
                Ok(None)
            }
        }
    }
}

/// The records of a block once more, for their keys.
fn compare_keys(
    segment: &Segment,
    block: &Block<'_>,
    keys: &mut Keys<'_>,
    tell: &mut dyn FnMut(Finding),
) -> Result<(), StoreError> {
    let mut at = block.from;
    while at < block.to {
        let Some(view) = whole_at(segment.record_at(at)?, at, false) else { break };
        keys.compare(&view, tell);
        at += view.total_size() as u64;
    }
    Ok(())
}

/// A record lies at that log offset whose store time is of another day than those on either side.
fn tell_time(segment: &Segment, (at, time): (u64, i64), tell: &mut dyn FnMut(Finding)) {
    tell(Finding {
        file: segment.path().to_owned(),
        at: at.checked_sub(segment.base()),
        what: format!("the record at log offset {at} says that it was stored at {time} ms, and those beside it do not"),
        effect: "the message is served; a search by time may miss it and others, and retention may keep its file too long, or not long enough",
        remedy: "none for this message: send it again from where it came; reset groups by offset, not by time, around it",
    });
}
