//! A stretch of the log that is damaged while what follows it is whole: closed, so that whoever walks the log comes past it.
//!
//! The stretch becomes records that nobody consumes (they say that they belong to a transaction that was rolled back), with the damaged
//! bytes as bodies; or, up to the end of its file, what every file ends with. Both are RocketMQ's own forms, so its broker passes over
//! them too. A message that was lost in it keeps its number: its place in its queue points at the first of these records.

use protocol::LogOffset;
use protocol::record::{self, RecordDraft, RecordView, Scanned};
use protocol::sys_flag;

use super::files::LogFiles;
use crate::commit_log::{BLANK_BYTES, blank};
use crate::error::StoreError;
use crate::queue_log::Unit;
use crate::segment::Segment;

/// What the records are called. Short, so that they fit wherever a record was.
const TOPIC: &str = "L";
/// A larger stretch becomes several records, none longer than what a broker takes by default.
const RECORD_BYTES_MAX: u64 = 4 << 20;

/// A stretch that is closed, in log offsets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gap {
    pub from: u64,
    pub to: u64,
    /// What stands in a queue for a message that was lost in it.
    pub unit: Unit,
}

/// The store time of what is whole at `whole`; none if it is older than what stands before the damage. Then it does not follow that: it was
/// left behind when the log was cut there once, and the log has grown since.
pub(crate) fn follows(files: &LogFiles, whole: u64, last_timestamp: i64) -> Result<Option<i64>, StoreError> {
    let stored = files.record_at(whole)?.map(|view| view.store_timestamp());
    Ok(stored.filter(|timestamp| *timestamp >= last_timestamp))
}

/// Closes the stretch from `from` to `whole`, as far as it lies in this segment. None where it is too short for a record.
pub(super) fn close(segment: &Segment, from: u64, whole: u64, timestamp: i64) -> Result<Option<Gap>, StoreError> {
    let to = whole.min(segment.end());
    let mend = |at: u64, bytes: &[u8]| {
        segment.mend(at, bytes).map_err(|source| StoreError::Disk {
            doing: "close a gap in",
            path: segment.path().to_owned(),
            source,
        })
    };
    if whole >= segment.end() {
        if to - from < BLANK_BYTES {
            return Ok(None);
        }
        mend(from, &blank(to - from))?;
        let unit = Unit { at: LogOffset(from), size: BLANK_BYTES as u32, tags: Unit::LOST };
        return Ok(Some(Gap { from, to, unit }));
    }
    let shortest = draft(&[]).encoded_bytes() as u64;
    if to - from < shortest {
        return Ok(None);
    }
    let mut at = from;
    let mut unit = None;
    // Each turn writes a record.
    while at < to {
        let left = to - at;
        let bytes = match left {
            _ if left <= RECORD_BYTES_MAX => left,
            // So that there is enough for one more.
            _ if left < RECORD_BYTES_MAX + shortest => left / 2,
            _ => RECORD_BYTES_MAX,
        };
        // The damaged header and what would be its body's end make room for the new one's.
        let start = (at - segment.base()) as usize;
        segment.bring_in(start..start + bytes as usize)?;
        let body = &segment.as_ref()[start..start + (bytes - shortest) as usize];
        let mut record = Vec::with_capacity(bytes as usize);
        draft(body).encode(&mut record).map_err(|why| StoreError::Malformed {
            path: segment.path().to_owned(),
            why: format!("the gap at log offset {at} cannot be closed: {why}"),
        })?;
        record::stamp(&mut record, 0, at, timestamp);
        mend(at, &record)?;
        unit.get_or_insert(Unit { at: LogOffset(at), size: bytes as u32, tags: Unit::LOST });
        at += bytes;
    }
    Ok(unit.map(|unit| Gap { from, to, unit }))
}

fn draft(body: &[u8]) -> RecordDraft<'_> {
    let nobody = std::net::SocketAddr::from(([0, 0, 0, 0], 0));
    RecordDraft { sys_flag: sys_flag::TRANSACTION_ROLLBACK, body, ..RecordDraft::plain(TOPIC, nobody) }
}

/// Why no record begins here; none where there are zeros, as behind the log's end.
pub(crate) fn why_not(scanned: Result<Scanned<'_>, record::Corrupt>, bytes: &[u8]) -> Option<String> {
    match scanned {
        Ok(Scanned::Record(view)) => Some(belongs_elsewhere(&view)),
        Ok(Scanned::Nothing | Scanned::Blank { .. }) => {
            let stated = bytes.first_chunk().map_or(0, |total| u32::from_be_bytes(*total));
            (stated != 0).then(|| format!("a record of {stated} bytes, more than its file has left"))
        }
        Err(why) => Some(why.to_string()),
    }
}

fn belongs_elsewhere(view: &RecordView<'_>) -> String {
    format!("a record that belongs at {}", view.log_offset())
}
