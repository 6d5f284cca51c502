//! Records and blank ends of files in the bytes of another log, checked before they are taken.

use protocol::record::{self, Corrupt, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN, RecordView, Scanned, at};

use crate::commit_log::BLANK_BYTES;

/// Length and magic code.
pub(super) const HEAD_BYTES: usize = 8;
/// Bytes of the longest record that is taken, and of the longest blank end of a file: either may wait in memory until it is whole.
pub const COPIED_RECORD_BYTES_MAX: u64 = 64 << 20;

/// Why bytes of another log are not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// It is no record.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// Zeros, where the other log should have a record.
    #[error("there are only zeros")]
    Zeros,
    /// A record of another place.
    #[error("the record says that it belongs at {stated}")]
    Elsewhere {
        /// As the record says.
        stated: u64,
    },
    /// Longer than can be.
    #[error(
        "it states {bytes} bytes; {limit} can be there: it is damaged, or files of the two logs have different sizes \
         (mappedFileSizeCommitLog)"
    )]
    TooLong {
        /// As stated.
        bytes: u64,
        /// How many there can be before the end of the file.
        limit: u64,
    },
    /// The other log has files of another size.
    #[error(
        "the marker at a file's end states {stated} bytes and {left} are left here: files of the two logs have different sizes, set \
         mappedFileSizeCommitLog as there and copy the log anew"
    )]
    OtherFileSize {
        /// As the marker says.
        stated: u64,
        /// Up to the end of our file.
        left: u64,
    },
}

/// A piece of a log.
#[derive(Debug)]
pub(super) enum Item<'a> {
    Record(RecordView<'a>),
    /// The rest of the file, so many bytes.
    Blank(usize),
    /// Less than that.
    Incomplete,
}

/// The piece at the beginning of these bytes, whose place is the log offset `place` in a file that
/// ends at `file_end`.
pub(super) fn item(bytes: &[u8], place: u64, file_end: u64) -> Result<Item<'_>, Misfit> {
    let Some(whole) = length(bytes, place, file_end)?.and_then(|length| bytes.get(..length)) else {
        return Ok(Item::Incomplete);
    };
    match record::scan(whole, true)? {
        Scanned::Record(view) if view.log_offset() == place => Ok(Item::Record(view)),
        Scanned::Record(view) => Err(Misfit::Elsewhere { stated: view.log_offset() }),
        Scanned::Blank { bytes } => Ok(Item::Blank(bytes)),
        Scanned::Nothing => Ok(Item::Incomplete),
    }
}

/// How many bytes it has, if these are enough to say.
pub(super) fn length(bytes: &[u8], place: u64, file_end: u64) -> Result<Option<usize>, Misfit> {
    let word = |at: usize| bytes.get(at..)?.first_chunk().map(|word| u32::from_be_bytes(*word));
    let (Some(stated), Some(magic)) = (word(at::TOTAL_SIZE), word(at::MAGIC_CODE)) else { return Ok(None) };
    let left = file_end - place;
    let total = u64::from(stated);
    let limit = match magic {
        MAGIC_V1 | MAGIC_V2 if total < RECORD_BYTES_MIN as u64 => {
            let (length, total_bytes) = (i64::from(stated), stated as usize);
            return Err(Corrupt::Length { what: "record", length, total_bytes }.into());
        }
        // Behind each record there is room for the marker.
        MAGIC_V1 | MAGIC_V2 => left.saturating_sub(BLANK_BYTES).min(COPIED_RECORD_BYTES_MAX),
        MAGIC_BLANK if total != left => return Err(Misfit::OtherFileSize { stated: total, left }),
        MAGIC_BLANK => COPIED_RECORD_BYTES_MAX + BLANK_BYTES,
        0 if total == 0 => return Err(Misfit::Zeros),
        other => return Err(Corrupt::Magic(other).into()),
    };
    if total > limit {
        return Err(Misfit::TooLong { bytes: total, limit });
    }
    Ok(Some(stated as usize))
}
