//! The 20 bytes that a consume queue keeps of a message.

use protocol::LogOffset;

/// Bytes of a unit on disk.
pub const UNIT_BYTES: usize = 20;

/// Bytes of the largest unit of any kind of queue.
pub(super) const RAW_BYTES_MAX: usize = super::batch_unit::BATCH_UNIT_BYTES;

/// A unit as it lies on disk and in memory.
pub(super) type RawUnit = [u8; UNIT_BYTES];

/// Where the fields of a unit sit; all big-endian, as in RocketMQ's files.
mod at {
    pub const LOG_OFFSET: usize = 0;
    pub const SIZE: usize = 8;
    pub const TAGS: usize = 12;
}

const _: () = assert!(at::TAGS + size_of::<i64>() == UNIT_BYTES);

/// Where a message lies in the log, and what a tag filter needs to know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Where its record begins.
    pub at: LogOffset,
    /// The record's bytes.
    pub size: u32,
    /// The hash of its tag; in the schedule topic, the time of its delivery.
    pub tags: i64,
}

impl Unit {
    /// What RocketMQ writes before the first unit of a queue that does not begin at a file's start.
    pub const BLANK: Unit = Unit { at: LogOffset(0), size: 0x7FFF_FFFF, tags: 0 };

    /// In the place of the tags: the message was lost to damage of the log, and the unit keeps its number. No hash of a tag and no time.
    pub const LOST: i64 = i64::MAX;

    /// Where its record ends.
    pub fn end(&self) -> LogOffset {
        LogOffset(self.at.0.saturating_add(u64::from(self.size)))
    }

    /// Whether it stands before the first unit of its queue.
    pub(crate) fn is_blank(&self) -> bool {
        *self == Unit::BLANK
    }

    /// Whether it stands for a message at all.
    pub fn is_message(&self) -> bool {
        self.tags != Unit::LOST && !self.is_blank()
    }

    pub(super) fn encode(&self) -> RawUnit {
        let mut raw = [0; UNIT_BYTES];
        raw[at::LOG_OFFSET..at::SIZE].copy_from_slice(&self.at.0.to_be_bytes());
        raw[at::SIZE..at::TAGS].copy_from_slice(&self.size.to_be_bytes());
        raw[at::TAGS..].copy_from_slice(&self.tags.to_be_bytes());
        raw
    }

    /// The unit in `raw`; `None` where none was written yet, by RocketMQ's rule: offset ≥ 0 and size > 0.
    pub(super) fn decode(raw: &[u8]) -> Option<Unit> {
        let [o0, o1, o2, o3, o4, o5, o6, o7, s0, s1, s2, s3, t0, t1, t2, t3, t4, t5, t6, t7] = *raw.first_chunk()?;
        let at = i64::from_be_bytes([o0, o1, o2, o3, o4, o5, o6, o7]);
        let size = i32::from_be_bytes([s0, s1, s2, s3]);
        let tags = i64::from_be_bytes([t0, t1, t2, t3, t4, t5, t6, t7]);
        match (u64::try_from(at), u32::try_from(size)) {
            (Ok(at), Ok(size)) if size > 0 => Some(Unit { at: LogOffset(at), size, tags }),
            (Ok(_) | Err(_), Ok(_) | Err(_)) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_has_the_bytes_that_apache_wrote() {
        // Recorded from the published 5.3.3 classes: second message of a queue, filter extension on.
        let raw = [0, 0, 0, 0, 0, 0, 0, 0xb3, 0, 0, 0, 0xb3, 0x80, 0, 0, 0, 0, 0, 0, 0x14];
        let unit = Unit { at: LogOffset(0xb3), size: 0xb3, tags: i64::MIN + 0x14 };
        assert_eq!(unit.encode(), raw);
        assert_eq!(Unit::decode(&raw), Some(unit));
    }

    #[test]
    fn bytes_that_nobody_wrote_are_no_unit() {
        assert_eq!(Unit::decode(&[0; UNIT_BYTES]), None);
        assert_eq!(Unit::decode(&[0xff; UNIT_BYTES]), None);
        assert_eq!(Unit::decode(&Unit::BLANK.encode()), Some(Unit::BLANK));
    }
}
