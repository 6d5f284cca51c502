//! Bloom filters over consumers, as RocketMQ computes them.
//!
//! A broker with `enableCalcFilterBitMap` evaluates the expressions of all consumers when a message arrives and keeps the result in
//! the extension of the consume queue, as a bitmap of `m` bits: a consumer whose bits are all set may want the message. Its
//! bits are in `consumerFilter.json` too. Both files are exchanged with Apache, so everything here equals
//! `org.apache.rocketmq.filter.util` bit for bit.

mod murmur3;

/// Largest number of consumers for which a filter is made; the bitmap of each message then has about 1.2 MB at an error of 1 %.
pub const CONSUMERS_MAX: u32 = 1_000_000;

/// The sizes of a filter are out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BloomError {
    /// `maxErrorRateOfBloomFilter`.
    #[error("the error rate of a bloom filter is 1 to 99 percent, not {0}")]
    ErrorPercent(u32),
    /// `expectConsumerNumUseFilter`.
    #[error("a bloom filter is for 1 to {CONSUMERS_MAX} consumers, not {0}")]
    Consumers(u32),
}

/// How many bits a filter has, and how many of them belong to a consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BloomFilter {
    hashes: u32,
    bits: u32,
}

/// The bits of one consumer (`bloomFilterData` of `consumerFilter.json`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BloomFilterData {
    /// `bitPos`: where its bits are; one position can occur twice.
    pub positions: Vec<u32>,
    /// `bitNum`: the size of the filter that they were computed for.
    pub bits: u32,
}

impl BloomFilter {
    /// For this percentage of false hits (Apache's default 20) with this number of consumers (32).
    pub fn new(error_percent: u32, consumers: u32) -> Result<BloomFilter, BloomError> {
        if !(1..100).contains(&error_percent) {
            return Err(BloomError::ErrorPercent(error_percent));
        }
        if !(1..=CONSUMERS_MAX).contains(&consumers) {
            return Err(BloomError::Consumers(consumers));
        }
        let error = f64::from(error_percent) / 100.0;
        // The same operations in the same order as in Java: one unit in the last place can cost a bit.
        let log = |base: f64, value: f64| value.ln() / base.ln();
        let hashes = log(0.5, error).ceil();
        let bits = (f64::from(consumers) * log(2.0, 1.0 / error) * log(2.0, std::f64::consts::E)).ceil();
        Ok(BloomFilter { hashes: hashes as u32, bits: (bits as u32).next_multiple_of(8) })
    }

    /// `k`: bits of a consumer.
    pub fn hashes(&self) -> u32 {
        self.hashes
    }

    /// `m`: bits of the bitmap, a multiple of eight.
    pub fn bits(&self) -> u32 {
        self.bits
    }

    /// An empty bitmap.
    pub fn bitmap(&self) -> Vec<u8> {
        vec![0; self.bits as usize / 8]
    }

    /// The bits of a consumer; Apache names it `group#topic`.
    pub fn data(&self, name: &str) -> BloomFilterData {
        let hash = murmur3::hash_64(name.as_bytes());
        let (low, high) = (hash as u32 as i32, (hash >> 32) as i32);
        let position = |index: i32| {
            let combined = low.wrapping_add(index.wrapping_mul(high));
            (if combined < 0 { !combined } else { combined }) as u32 % self.bits
        };
        BloomFilterData { positions: (1..=self.hashes as i32).map(position).collect(), bits: self.bits }
    }

    /// Whether data that was read from a file is of this filter. Other data says nothing: such a consumer has to be evaluated.
    pub fn is_valid(&self, data: &BloomFilterData) -> bool {
        data.bits == self.bits
            && data.positions.len() == self.hashes as usize
            && data.positions.iter().all(|position| *position < self.bits)
    }

    /// Sets the bits of a consumer that wants the message. Data or a bitmap of another filter is left alone.
    pub fn set(&self, data: &BloomFilterData, bitmap: &mut [u8]) {
        if self.is_valid(data) && self.is_bitmap(bitmap) {
            for position in &data.positions {
                bitmap[*position as usize / 8] |= 1 << (position % 8);
            }
        }
    }

    /// Whether a consumer may want the message of this bitmap. `None` if either belongs to another filter, and so nothing is
    /// known.
    pub fn is_hit(&self, data: &BloomFilterData, bitmap: &[u8]) -> Option<bool> {
        if !self.is_valid(data) || !self.is_bitmap(bitmap) {
            return None;
        }
        Some(data.positions.iter().all(|position| bitmap[*position as usize / 8] & (1 << (position % 8)) != 0))
    }

    fn is_bitmap(&self, bitmap: &[u8]) -> bool {
        bitmap.len() * 8 == self.bits as usize
    }
}
