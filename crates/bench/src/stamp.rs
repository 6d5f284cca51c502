//! What stands at the beginning of each body: which message of which run this is, and when it should have been sent.
//!
//! ```text
//! magic u16 · lane u16 · producer u32 · run u64 · sequence u64 · due u64, ns after the run's beginning     (big-endian)
//! ```

/// Bytes of a stamp; a message cannot be smaller.
pub const STAMP_BYTES: usize = 32;

const MAGIC: u16 = 0x4762;

/// Which message this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Who of a producer's threads sent it.
    pub lane: u16,
    /// Its producer, counted over all topics.
    pub producer: u32,
    /// Its run.
    pub run: u64,
    /// Its number among the producer's.
    pub sequence: u64,
    /// When it was to be sent, in nanoseconds after the run's beginning.
    pub due_ns: u64,
}

impl Stamp {
    /// Writes it over the beginning of a body, which must be large enough.
    pub fn write(&self, body: &mut [u8]) {
        body[0..2].copy_from_slice(&MAGIC.to_be_bytes());
        body[2..4].copy_from_slice(&self.lane.to_be_bytes());
        body[4..8].copy_from_slice(&self.producer.to_be_bytes());
        body[8..16].copy_from_slice(&self.run.to_be_bytes());
        body[16..24].copy_from_slice(&self.sequence.to_be_bytes());
        body[24..32].copy_from_slice(&self.due_ns.to_be_bytes());
    }

    /// Reads it; nothing if a body is not one of ours.
    pub fn read(body: &[u8]) -> Option<Stamp> {
        let long = |at: usize| Some(u64::from_be_bytes(body.get(at..at + 8)?.try_into().ok()?));
        let (head, due_ns) = (long(0)?, long(24)?);
        (head >> 48 == u64::from(MAGIC)).then_some(Stamp {
            lane: (head >> 32) as u16,
            producer: head as u32,
            run: long(8)?,
            sequence: long(16)?,
            due_ns,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_read_as_it_was_written_and_other_bodies_have_none() {
        let stamp = Stamp { lane: 7, producer: 0x8000_0001, run: u64::MAX - 1, sequence: 1 << 40, due_ns: 123_456_789 };
        let mut body = vec![9; 40];
        stamp.write(&mut body);
        assert_eq!(Stamp::read(&body), Some(stamp));
        assert_eq!(body[32..], [9; 8]);
        assert_eq!(Stamp::read(&body[..31]), None);
        assert_eq!(Stamp::read(&[0; 64]), None);
    }
}
