//! The 46 bytes that the queue of a BatchCQ topic keeps of a record, which may hold a batch of messages.

use super::unit::Unit;

/// Bytes of a unit on disk.
pub(super) const BATCH_UNIT_BYTES: usize = 46;

/// Where the fields of a unit sit; all big-endian, as in RocketMQ's files. The first three are those of an ordinary unit.
mod at {
    pub const STORE_TIME: usize = 20;
    pub const BASE: usize = 28;
    pub const COUNT: usize = 36;
    pub const COMPACTED: usize = 38;
    pub const RESERVED: usize = 42;
}

const _: () = assert!(at::STORE_TIME == super::unit::UNIT_BYTES && at::RESERVED + 4 == BATCH_UNIT_BYTES);

/// A record and the messages in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchUnit {
    pub unit: Unit,
    /// When the record was stored, in ms.
    pub store_time: i64,
    /// The offset of the first message.
    pub base: u64,
    /// How many messages, 1 to 32767.
    pub count: u16,
}

impl BatchUnit {
    /// One more than the offset of the last message.
    pub fn next(&self) -> u64 {
        self.base.saturating_add(u64::from(self.count))
    }

    pub fn encode(&self) -> [u8; BATCH_UNIT_BYTES] {
        let mut raw = [0; BATCH_UNIT_BYTES];
        raw[..at::STORE_TIME].copy_from_slice(&self.unit.encode());
        raw[at::STORE_TIME..at::BASE].copy_from_slice(&self.store_time.to_be_bytes());
        raw[at::BASE..at::COUNT].copy_from_slice(&self.base.to_be_bytes());
        raw[at::COUNT..at::COMPACTED].copy_from_slice(&self.count.to_be_bytes());
        // RocketMQ's "not compacted".
        raw[at::COMPACTED..at::RESERVED].copy_from_slice(&(-1_i32).to_be_bytes());
        raw
    }

    /// The unit in `raw`; `None` where none was written yet, by RocketMQ's rule: offset and base ≥ 0, size and count > 0.
    pub fn decode(raw: &[u8]) -> Option<BatchUnit> {
        let unit = Unit::decode(raw)?;
        let store_time = i64::from_be_bytes(*raw.get(at::STORE_TIME..)?.first_chunk()?);
        let base = i64::from_be_bytes(*raw.get(at::BASE..)?.first_chunk()?);
        let count = i16::from_be_bytes(*raw.get(at::COUNT..)?.first_chunk()?);
        let (Ok(base), Ok(count)) = (u64::try_from(base), u16::try_from(count)) else { return None };
        (count > 0).then_some(BatchUnit { unit, store_time, base, count })
    }
}

#[cfg(test)]
mod tests {
    use protocol::LogOffset;

    use super::*;

    #[test]
    fn a_unit_has_the_bytes_that_apache_wrote() {
        // Recorded from the published 5.5.0 classes: BatchConsumeQueue.putBatchMessagePositionInfo(0x1234, 0x567, 0x27A807,
        // 1700000000000, 42, 3).
        let raw = [
            0, 0, 0, 0, 0, 0, 0x12, 0x34, 0, 0, 0x05, 0x67, 0, 0, 0, 0, 0, 0x27, 0xa8, 0x07, 0, 0, 0x01, 0x8b, 0xcf,
            0xe5, 0x68, 0, 0, 0, 0, 0, 0, 0, 0, 42, 0, 3, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0,
        ];
        let unit = BatchUnit {
            unit: Unit { at: LogOffset(0x1234), size: 0x567, tags: 0x27_A807 },
            store_time: 1_700_000_000_000,
            base: 42,
            count: 3,
        };
        assert_eq!(unit.encode(), raw);
        assert_eq!(BatchUnit::decode(&raw), Some(unit));
    }

    #[test]
    fn what_apache_takes_for_the_end_is_no_unit() {
        let unit = BatchUnit { unit: Unit { at: LogOffset(0), size: 1, tags: 0 }, store_time: 0, base: 0, count: 1 };
        assert_eq!(BatchUnit::decode(&unit.encode()), Some(unit));
        assert_eq!(BatchUnit::decode(&[0; BATCH_UNIT_BYTES]), None);
        for (byte, value) in [(0, 0x80), (8, 0x80), (11, 0), (28, 0x80), (36, 0x80), (37, 0)] {
            let mut raw = unit.encode();
            raw[byte] = value;
            assert_eq!(BatchUnit::decode(&raw), None, "byte {byte}");
        }
    }
}
