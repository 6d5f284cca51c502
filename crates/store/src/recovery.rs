//! Opening what is on disk: find the log's files, find where its valid bytes end, and let the consume queues say the same.
//!
//! Nothing found here is trusted and nothing is mended in silence: each repair is a sentence in [`Recovered`].

use std::path::Path;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use protocol::record::{self, Scanned};

use crate::checkpoint::Marks;
use crate::closed::{Closed, fingerprint};
use crate::commit_log::BLANK_BYTES;
use crate::disk::{Disk, OpenHow};
use crate::error::StoreError;
use crate::fold::place_of;
use crate::options::StoreOptions;
use crate::queue_log::{ConsumeQueue, PushedAt, QueueLogs, Unit};
use crate::segment::{Segment, file_name};

/// What opening a store found and mended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// The last process did not close it.
    pub was_abnormal: bool,
    /// Records read again.
    pub records_scanned: u64,
    /// Units that the consume queues lacked.
    pub units_added: u64,
    /// What was mended or looks strange, a sentence each.
    pub findings: Vec<String>,
}

/// The log's files.
pub(crate) struct LogFiles {
    pub segments: Vec<Arc<Segment>>,
    pub segment_bytes: u64,
    /// There was none.
    is_new: bool,
}

/// Bytes of a file of the log: RocketMQ states lengths in an i32, and a page is the least that can be prepared.
const SEGMENT_BYTES_MIN: u64 = 4096;
const SEGMENT_BYTES_MAX: u64 = i32::MAX as u64;

/// Lists and opens the files of the log; makes the first one if there is none.
pub(crate) fn open_segments(
    options: &StoreOptions,
    disk: &Arc<dyn Disk>,
    found: &mut Recovered,
) -> Result<LogFiles, StoreError> {
    let dir = &options.commit_log_dir;
    let failed = |doing: &'static str, path: &Path| {
        let path = path.to_owned();
        move |source| StoreError::Disk { doing, path, source }
    };
    let malformed = |name: &str, why: String| StoreError::Malformed { path: dir.join(name), why };
    disk.create_dir(dir).map_err(failed("make", dir))?;
    let mut files = Vec::new();
    for entry in disk.list(dir).map_err(failed("list", dir))? {
        match entry.name.parse::<u64>() {
            Ok(base) if !entry.is_dir && entry.name == file_name(base) => {
                let path = dir.join(&entry.name);
                files.push((base, disk.len(&path).map_err(failed("measure", &path))?));
            }
            Ok(_) | Err(_) => {
                found.findings.push(format!("{}: not a file of the log, left alone", dir.join(entry.name).display()))
            }
        }
    }
    files.sort_unstable();
    if let Some((base, 0)) = files.last().copied() {
        let path = dir.join(file_name(base));
        disk.remove(&path).map_err(failed("remove", &path))?;
        found.findings.push(format!("{}: empty, removed", path.display()));
        files.pop();
    }
    // A broker of another setting wrote these files: they say how large files are, not the configuration.
    let segment_bytes = files.first().map_or(options.segment_bytes, |(_, bytes)| *bytes);
    if segment_bytes != options.segment_bytes {
        found.findings.push(format!(
            "{}: files have {segment_bytes} bytes, mappedFileSizeCommitLog says {}: the files win",
            dir.display(),
            options.segment_bytes
        ));
    }
    if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&segment_bytes) {
        let (name, says) = match files.first() {
            Some((base, _)) => (file_name(*base), format!("has {segment_bytes} bytes")),
            None => (String::new(), format!("mappedFileSizeCommitLog is {segment_bytes}")),
        };
        return Err(malformed(
            &name,
            format!("{says}; a file of the log has {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX}"),
        ));
    }
    let last = files.len().saturating_sub(1);
    for (index, (base, bytes)) in files.iter().enumerate() {
        if *bytes != segment_bytes && (index != last || *bytes > segment_bytes) {
            return Err(malformed(
                &file_name(*base),
                format!("has {bytes} bytes, other files of the log have {segment_bytes}"),
            ));
        }
        if *bytes != segment_bytes {
            found
                .findings
                .push(format!("{}: {bytes} of {segment_bytes} bytes, extended", dir.join(file_name(*base)).display()));
        }
        if base.checked_add(segment_bytes).is_none_or(|end| i64::try_from(end).is_err()) {
            return Err(malformed(&file_name(*base), "begins beyond any log offset".to_owned()));
        }
        if index > 0 && files[index - 1].0 + segment_bytes != *base {
            let before = file_name(files[index - 1].0);
            return Err(malformed(
                &file_name(*base),
                format!("does not follow {before}: a file between them is missing"),
            ));
        }
    }
    let is_new = files.is_empty();
    if is_new {
        files.push((0, segment_bytes));
    }
    let mut segments = Vec::with_capacity(files.len() + 1);
    for (base, _) in &files {
        let segment = Segment::open(disk, dir, *base, segment_bytes)?;
        // Mapped is enough to be read, and there may be more files than descriptors.
        segment.rest();
        segments.push(segment);
    }
    Ok(LogFiles { segments, segment_bytes, is_new })
}

/// Where reading again has to begin, at a record.
///
/// After a clean stop that is where the log ended; after a crash the newest segment that began before the check-point; in any
/// case not above what the consume queues have, and the log's beginning if they are not what they were.
fn scan_from(files: &LogFiles, queues: &QueueLogs, before: &Before, found: &mut Recovered) -> u64 {
    let Before { rebuild_from, marks, closed } = *before;
    let was_abnormal = found.was_abnormal;
    let min = files.segments[0].base();
    if files.is_new || !was_abnormal && newest_record(files, queues) == Newest::NotThere {
        // Whatever else is on disk, it does not speak of this log. (A loss of power may well take the log's last records and
        // leave their units; the check-point knows how far that can go.)
        return min;
    }
    if let Some(closed) = closed
        && !was_abnormal
        && closed.min == min
        && begins(files, closed.end) == Begins::Nothing
    {
        if fingerprint(queues, min) != closed.queues {
            found.findings.push(format!(
                "consume queues are not what they were when the store was closed: the log is read again from {min} on"
            ));
            return min;
        }
        if rebuild_from.is_none() {
            return closed.end;
        }
    }
    let queues_end = queues.max_log_end().0.min(rebuild_from.unwrap_or(u64::MAX));
    if let Some(marks) = marks.filter(|_| !was_abnormal)
        && let Ok(confirmed) = u64::try_from(marks.confirmed)
        && confirmed == queues.max_log_end().0
        && rebuild_from.is_none()
        && begins(files, confirmed) != Begins::Otherwise
    {
        return confirmed;
    }
    let safe = if was_abnormal { marks.map_or(0, Marks::safe_timestamp) } else { i64::MAX };
    let newest = files.segments.iter().rev().find(|segment| {
        segment.base() <= queues_end && first_timestamp(segment).is_some_and(|timestamp| timestamp <= safe)
    });
    newest.map_or(min, |segment| segment.base())
}

/// What begins at a log offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begins {
    Record,
    Nothing,
    Otherwise,
}

fn begins(files: &LogFiles, at: u64) -> Begins {
    let Some(segment) = files.segments.iter().find(|segment| segment.base() <= at && at < segment.end()) else {
        return Begins::Otherwise;
    };
    match record::scan(&(**segment).as_ref()[(at - segment.base()) as usize..], true) {
        Ok(Scanned::Record(view)) if view.log_offset() == at => Begins::Record,
        Ok(Scanned::Nothing) => Begins::Nothing,
        Ok(Scanned::Record(_) | Scanned::Blank { .. }) | Err(_) => Begins::Otherwise,
    }
}

fn first_timestamp(segment: &Segment) -> Option<i64> {
    match record::scan(segment.as_ref(), false) {
        Ok(Scanned::Record(view)) if view.log_offset() == segment.base() => {
            Some(view.store_timestamp()).filter(|at| *at != 0)
        }
        Ok(Scanned::Record(_) | Scanned::Blank { .. } | Scanned::Nothing) | Err(_) => None,
    }
}

/// The log's end and the store time of its last record.
pub(crate) struct End {
    pub at: u64,
    pub last_timestamp: i64,
}

/// What was known before the log is looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Before<'a> {
    /// A consume queue lost units of records from here on.
    pub rebuild_from: Option<u64>,
    /// The check-point.
    pub marks: Option<&'a Marks>,
    /// How we closed the store, if it was us and it was the last time that somebody did.
    pub closed: Option<Closed>,
}

/// Reads the log from where it must, brings the queues up to it, and cuts off what is not valid.
pub(crate) fn recover(
    files: &mut LogFiles,
    queues: &QueueLogs,
    before: &Before,
    options: &StoreOptions,
    disk: &Arc<dyn Disk>,
    found: &mut Recovered,
) -> Result<End, StoreError> {
    // All bytes may be read while we look; what is not valid is taken back below.
    for segment in &files.segments {
        segment.publish(segment.end());
    }
    let from = scan_from(files, queues, before, found);
    let mut at = from;
    let mut last_timestamp = 0;
    let mut damage = None;
    let mut gaps = 0_u64;
    let mut let_go_at = from;
    let mut known = KnownUnits::default();
    let mut bruised = 0_u64;
    // What is gone from the log is gone from the queues first, so that a queue may begin anew behind it.
    queues.trim_below(protocol::LogOffset(files.segments[0].base()))?;
    'segments: for segment in &files.segments {
        // Each turn goes on by a record, or ends the segment or the log.
        while segment.base() <= at && at < segment.end() {
            if segment.end() - at < BLANK_BYTES {
                // Not even a marker fits. Nobody writes that, and nobody could write behind it.
                at = segment.end();
                break;
            }
            let mut scanned =
                record::scan(&(**segment).as_ref()[(at - segment.base()) as usize..], options.check_crc_on_recover);
            // After a crash the first damage is the end: what was not flushed may be torn anywhere. After a clean stop all of it
            // was whole once, and one bad bit must not cost what came after it.
            if !found.was_abnormal
                && let (Err(why), Some(view)) = (&scanned, bruised_record(segment, at))
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
                    if let Some(place) = place_of(&view, &options.delay_levels) {
                        let queue = queues.get_or_create(place.topic, place.queue_id);
                        let pushed = match known.has(&queue, place.offset, place.unit) {
                            true => Ok(PushedAt::Already),
                            false => queue.push_at(place.offset, place.unit),
                        };
                        match pushed {
                            Ok(PushedAt::Already) => {}
                            Ok(PushedAt::Added | PushedAt::Mended) => found.units_added += 1,
                            Err(error) => {
                                gaps += 1;
                                if gaps == 1 {
                                    found.findings.push(error.to_string());
                                }
                            }
                        }
                        if queues.is_backlogged() {
                            queues.flush_all()?;
                        }
                    }
                    last_timestamp = view.store_timestamp();
                    found.records_scanned += 1;
                    at += view.total_size() as u64;
                    if at - let_go_at > SCANNED_KEPT {
                        segment.let_go(segment.base(), at);
                        let_go_at = at;
                    }
                }
                Ok(Scanned::Blank { .. }) => at = segment.end(),
                Ok(Scanned::Nothing) => break 'segments,
                Ok(Scanned::Record(view)) => {
                    damage = Some(format!("a record that belongs at {}", view.log_offset()));
                    break 'segments;
                }
                Err(why) => {
                    damage = Some(why.to_string());
                    break 'segments;
                }
            }
        }
    }
    if gaps > 1 {
        found.findings.push(format!("{gaps} records in all have no place in their consume queue"));
    }
    if bruised > 1 {
        found.findings.push(format!(
            "{bruised} records in all are damaged and followed by whole ones: they stay in their places"
        ));
    }
    if let Some(damage) = damage {
        found.findings.push(format!("the log ends at {at}; behind it: {damage}"));
        if let Some(whole) = whole_record_after(files, at) {
            set_aside(files, at, whole, options, &**disk, found)?;
        }
    }
    cut(files, at, options, disk, found)?;
    if last_timestamp == 0 {
        let closed = before.closed.filter(|closed| closed.end == at).map_or(0, |closed| closed.last_timestamp);
        // Time must not run backwards across a restart either.
        last_timestamp = match newest_record(files, queues) {
            Newest::StoredAt(timestamp) => timestamp.max(closed),
            Newest::Unknown | Newest::NotThere => closed,
        };
    }
    if found.was_abnormal {
        // What we read may be in the kernel only: the process before us wrote it and died.
        for segment in files.segments.iter().filter(|segment| segment.end() > from && segment.base() < at) {
            segment.sync().map_err(|source| StoreError::Disk {
                doing: "sync",
                path: segment.path().to_owned(),
                source,
            })?;
            if segment.end() <= at {
                segment.rest();
            }
        }
    }
    let dir = &options.commit_log_dir;
    disk.sync_dir(dir).map_err(|source| StoreError::Disk { doing: "sync", path: dir.clone(), source })?;
    let cut_units = queues.truncate_above(protocol::LogOffset(at))?;
    if cut_units > 0 {
        found
            .findings
            .push(format!("{cut_units} units of consume queues pointed beyond the log's end and were cut off"));
    }
    queues.trim_below(protocol::LogOffset(files.segments[0].base()))?;
    Ok(End { at, last_timestamp })
}

/// A record whose lengths hold although its body does not: what begins behind it is a whole record, or the file's end.
fn bruised_record(segment: &Segment, at: u64) -> Option<record::RecordView<'_>> {
    let rest = (*segment).as_ref().get((at - segment.base()) as usize..)?;
    let Ok(Scanned::Record(view)) = record::scan(rest, false) else { return None };
    let next = at + view.total_size() as u64;
    let is_followed = match record::scan(rest.get(view.total_size()..)?, true) {
        Ok(Scanned::Record(following)) => following.log_offset() == next,
        Ok(Scanned::Blank { .. }) => true,
        Ok(Scanned::Nothing) | Err(_) => false,
    };
    (is_followed && view.log_offset() == at).then_some(view)
}

/// Where, behind damage, the next whole record begins: a record names its own place, so it cannot be mistaken.
fn whole_record_after(files: &LogFiles, at: u64) -> Option<u64> {
    for segment in files.segments.iter().filter(|segment| segment.end() > at) {
        let bytes = (**segment).as_ref();
        let mut place = (at.max(segment.base()) - segment.base()) as usize + usize::from(at >= segment.base());
        // Each turn steps over the magic code it found, or ends the segment.
        while let Some(rest) = bytes.get(place + MAGIC_AT..) {
            let Some(found) = rest.windows(MAGIC.len()).position(|four| four == MAGIC) else { break };
            place += found;
            let offset = segment.base() + place as u64;
            if let Ok(Scanned::Record(view)) = record::scan(&bytes[place..], true)
                && view.log_offset() == offset
            {
                return Some(offset);
            }
            place += 1;
        }
    }
    None
}

/// The magic code of records (their first version, which all but the longest topics have), and where it stands in them.
const MAGIC: [u8; 4] = 0xDAA3_20A7_u32.to_be_bytes();
const MAGIC_AT: usize = 4;

/// Keeps a copy of what is about to be cut off although whole records are in it: in the folder `cut` beside the log's, under
/// the log offset of its first byte.
fn set_aside(
    files: &LogFiles,
    end: u64,
    whole: u64,
    options: &StoreOptions,
    disk: &dyn Disk,
    found: &mut Recovered,
) -> Result<(), StoreError> {
    let dir = options.root.join("cut");
    let failed = |doing: &'static str, path: &Path| {
        let path = path.to_owned();
        move |source| StoreError::Disk { doing, path, source }
    };
    disk.create_dir(&dir).map_err(failed("make", &dir))?;
    for segment in files.segments.iter().filter(|segment| segment.end() > end) {
        let from = end.max(segment.base());
        let bytes = &(**segment).as_ref()[(from - segment.base()) as usize..];
        // To the end of the page: the last record may end with zeros of its own.
        let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| (last + 1).next_multiple_of(4096));
        let used = used.min(bytes.len());
        if used == 0 {
            continue;
        }
        let path = dir.join(file_name(from));
        let file = disk.open(&path, OpenHow::Create).map_err(failed("make", &path))?;
        file.set_len(0).map_err(failed("empty", &path))?;
        file.write_at(&bytes[..used], 0).map_err(failed("write", &path))?;
        file.sync_data().map_err(failed("sync", &path))?;
    }
    found.findings.push(format!(
        "records behind the damage are whole again from log offset {whole} on; what is cut off is kept in {}",
        dir.display()
    ));
    Ok(())
}

/// Leaves nothing behind the end that a later start, or Apache's broker, could take for a record.
fn cut(
    files: &mut LogFiles,
    end: u64,
    options: &StoreOptions,
    disk: &Arc<dyn Disk>,
    found: &mut Recovered,
) -> Result<(), StoreError> {
    let dir = &options.commit_log_dir;
    if files.segments.last().is_some_and(|last| last.end() == end) {
        files.segments.push(Segment::open(disk, dir, end, files.segment_bytes)?);
    }
    let has_bytes = |segment: &Segment, from: u64| {
        let start = (from - segment.base()) as usize;
        // What a torn append leaves is near; a look at every byte of a gigabyte of zeros would cost the start its speed.
        let looked_at = start..start.saturating_add(LOOKED_AT).min(segment.as_ref().len());
        segment.has_bytes(looked_at).map_err(|source| StoreError::Disk {
            doing: "look at",
            path: segment.path().to_owned(),
            source,
        })
    };
    for index in (0..files.segments.len()).rev() {
        let segment = Arc::clone(&files.segments[index]);
        if segment.base() > end {
            if has_bytes(&segment, segment.base())? {
                found.findings.push(format!("{}: lies beyond the log's end {end}, removed", segment.path().display()));
            }
            disk.remove(segment.path()).map_err(|source| StoreError::Disk {
                doing: "remove",
                path: segment.path().to_owned(),
                source,
            })?;
            files.segments.pop();
            continue;
        }
        if segment.end() > end {
            let has_remains = has_bytes(&segment, end)?;
            if found.was_abnormal || has_remains {
                if has_remains {
                    found.findings.push(format!("{}: zeroed from log offset {end} on", segment.path().display()));
                }
                segment.cut(end).map_err(|source| StoreError::Disk {
                    doing: "cut",
                    path: segment.path().to_owned(),
                    source,
                })?;
            }
            segment.unpublish(end);
        }
    }
    Ok(())
}

/// Units of consume queues, read a stretch at a time: a scan after a crash finds nearly all of them in their place, and one
/// system call for each would cost more than all the rest of it.
#[derive(Default)]
struct KnownUnits {
    /// By the queue's address, which the queue beside it keeps its own.
    stretches: HashMap<usize, Stretch, FixedState>,
}

struct Stretch {
    _queue: Arc<ConsumeQueue>,
    first: u64,
    units: Vec<Unit>,
}

impl KnownUnits {
    /// A page's worth.
    const UNITS: usize = 204;
    /// Queues remembered, some 30 MB in all. With more of them stretches are read more than once.
    const QUEUES_MAX: usize = 4096;

    /// Whether the queue has that unit at that offset. Where it cannot be told, it has not.
    fn has(&mut self, queue: &Arc<ConsumeQueue>, offset: u64, unit: Unit) -> bool {
        if offset < queue.min_offset() || offset >= queue.max_offset() {
            return false;
        }
        let key = Arc::as_ptr(queue) as usize;
        if self.stretches.len() >= Self::QUEUES_MAX && !self.stretches.contains_key(&key) {
            self.stretches.clear();
        }
        let stretch = self.stretches.entry(key).or_insert_with(|| Stretch {
            _queue: Arc::clone(queue),
            first: 0,
            units: Vec::new(),
        });
        if !(stretch.first..stretch.first + stretch.units.len() as u64).contains(&offset) {
            stretch.first = offset;
            stretch.units.clear();
            if queue.read_units(offset, Self::UNITS, true, &mut stretch.units).is_err() {
                return false;
            }
        }
        stretch.units.get((offset - stretch.first) as usize) == Some(&unit)
    }
}

/// Bytes that a scan keeps mapped behind it.
const SCANNED_KEPT: u64 = 16 << 20;

/// Bytes behind the log's end that are looked at for remains.
const LOOKED_AT: usize = 8 << 20;

/// The newest record that a consume queue knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Newest {
    /// No queue knows any.
    Unknown,
    NotThere,
    StoredAt(i64),
}

fn newest_record(files: &LogFiles, queues: &QueueLogs) -> Newest {
    let newest = queues.queues().into_iter().max_by_key(|queue| queue.log_end());
    let unit = newest.and_then(|queue| queue.unit_at(queue.max_offset().checked_sub(1)?).ok().flatten());
    let Some(unit) = unit else { return Newest::Unknown };
    let Some(segment) = files.segments.iter().find(|segment| segment.base() <= unit.at.0 && unit.at.0 < segment.end())
    else {
        return Newest::NotThere;
    };
    let rest = (**segment).as_ref().get((unit.at.0 - segment.base()) as usize..).unwrap_or_default();
    match record::scan(rest, false) {
        Ok(Scanned::Record(view)) if view.log_offset() == unit.at.0 => Newest::StoredAt(view.store_timestamp()),
        Ok(Scanned::Record(_) | Scanned::Blank { .. } | Scanned::Nothing) | Err(_) => Newest::NotThere,
    }
}
