//! The file `timerwheel`: for each tick the newest unit of the timer log that is due in it. There are as many as seconds in two weeks, whatever a
//! tick is: half of them for what is to come.
//!
//! ```text
//! slot, 32 bytes   time / precision i64, position of its first unit i64, of its last i64, messages i32, magic i32 (0)
//! ```
//!
//! Big-endian. The slot of a time is `time / precision` modulo their count; one that holds another time is empty. In memory there is a bit
//! for each slot, so that the next one that holds something is found without reading.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use disk::{Disk, DiskFile, OpenHow};

use super::TimerOptions;
use crate::error::StoreError;

/// RocketMQ's `slotsTotal`: so many ticks ahead have slots of their own, seven days of seconds.
pub const TIMER_SLOTS_AHEAD: i64 = 604_800;
const SLOT_BYTES: usize = 32;
/// How many slots there are: those ahead, and as many for times that are past.
fn slots(ahead: i64) -> u64 {
    2 * ahead.unsigned_abs().max(1)
}

/// The file's length.
pub(super) fn file_bytes(slots_ahead: i64) -> u64 {
    slots(slots_ahead) * SLOT_BYTES as u64
}

/// Slots that are read at once by a start.
const CHUNK: usize = 8192;

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    /// In ms, a multiple of the precision.
    pub time: i64,
    /// -1 for none.
    pub first: i64,
    /// -1 for none.
    pub last: i64,
    pub count: i32,
}

impl Slot {
    pub fn empty(time: i64) -> Slot {
        Slot { time, first: -1, last: -1, count: 0 }
    }

    fn encode(&self, precision: i64) -> [u8; SLOT_BYTES] {
        let mut bytes = [0; SLOT_BYTES];
        bytes[..24]
            .copy_from_slice([self.time / precision, self.first, self.last].map(i64::to_be_bytes).as_flattened());
        bytes[24..28].copy_from_slice(&self.count.to_be_bytes());
        bytes
    }

    fn decode(bytes: &[u8; SLOT_BYTES], precision: i64) -> Slot {
        let (longs, rest) = bytes.as_chunks::<8>().0.split_at(3);
        let long = |place: usize| i64::from_be_bytes(longs[place]);
        let count = i32::from_be_bytes([rest[0][0], rest[0][1], rest[0][2], rest[0][3]]);
        Slot { time: long(0).saturating_mul(precision), first: long(1), last: long(2), count }
    }
}

/// What a wheel holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Contents {
    /// The first slot that is not done with, in ms.
    pub first: Option<i64>,
    /// Messages of the slots that are not done with.
    pub count: i64,
    /// The slot of the newest unit, done with or not.
    pub newest: Option<Slot>,
}

#[derive(Debug)]
pub(super) struct Wheel {
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    precision: i64,
    slots: u64,
    /// One for each slot: it may hold something.
    bits: Vec<u64>,
}

impl Wheel {
    /// Opens the file, or makes an empty one, with slots for as many ticks ahead and again for as many that are past. `keep` is whether what it
    /// holds counts.
    pub fn open(disk: &dyn Disk, options: &TimerOptions, keep: bool) -> Result<Wheel, StoreError> {
        let TimerOptions { root, precision_ms, slots_ahead, .. } = options;
        let path = root.join("timerwheel");
        let failed = |doing| {
            let path = path.clone();
            move |source| StoreError::Disk { doing, path, source }
        };
        let file = disk.open(&path, OpenHow::Create).map_err(failed("open"))?;
        if !keep {
            file.set_len(0).map_err(failed("empty"))?;
        }
        file.set_len(file_bytes(*slots_ahead)).map_err(failed("extend"))?;
        let slots = slots(*slots_ahead);
        Ok(Wheel { path, file, precision: *precision_ms, slots, bits: vec![0; slots.div_ceil(64) as usize] })
    }

    /// Reads the whole file: notes the slots from `read_time` on that hold something.
    pub fn load(&mut self, read_time: i64) -> Result<Contents, StoreError> {
        let mut found = Contents::default();
        let mut chunk = vec![0; CHUNK * SLOT_BYTES];
        let mut at = 0;
        // Ends with the file: each turn moves on.
        while let Some(from) = self.file.data_from(at).map_err(|source| self.failed("read", source))? {
            let from = from / SLOT_BYTES as u64 * SLOT_BYTES as u64;
            let read = self.file.read_at(&mut chunk, from).map_err(|source| self.failed("read", source))?;
            for (index, bytes) in (from / SLOT_BYTES as u64..).zip(chunk[..read].as_chunks::<SLOT_BYTES>().0) {
                let slot = Slot::decode(bytes, self.precision);
                if slot.last < 0 || slot.time <= 0 || self.index(slot.time) != index {
                    continue;
                }
                if found.newest.is_none_or(|newest| newest.last < slot.last) {
                    found.newest = Some(slot);
                }
                if slot.time >= read_time {
                    self.set(index, true);
                    found.count += i64::from(slot.count.max(0));
                    found.first = Some(found.first.map_or(slot.time, |first| first.min(slot.time)));
                }
            }
            at = from + read as u64;
            if read < chunk.len() {
                break;
            }
        }
        Ok(found)
    }

    fn failed(&self, doing: &'static str, source: std::io::Error) -> StoreError {
        StoreError::Disk { doing, path: self.path.clone(), source }
    }

    fn index(&self, time: i64) -> u64 {
        u64::try_from(time / self.precision).unwrap_or(0) % self.slots
    }

    fn set(&mut self, index: u64, is_used: bool) {
        if let Some(word) = usize::try_from(index / 64).ok().and_then(|word| self.bits.get_mut(word)) {
            let bit = 1 << (index % 64);
            *word = if is_used { *word | bit } else { *word & !bit };
        }
    }

    /// The first time from `from` on whose slot holds something.
    pub fn next_from(&self, from: i64) -> Option<i64> {
        let tick = from.div_euclid(self.precision).max(0);
        let start = u64::try_from(tick).unwrap_or(0) % self.slots;
        let mut place = 0;
        while place < self.slots {
            let index = (start + place) % self.slots;
            let word = usize::try_from(index / 64).ok().and_then(|word| self.bits.get(word)).copied().unwrap_or(0);
            let rest = word >> (index % 64);
            if rest == 0 {
                // To the beginning of the next word, or of the wheel.
                place += (64 - index % 64).min(self.slots - index);
                continue;
            }
            let found = place + u64::from(rest.trailing_zeros());
            return (found < self.slots).then(|| (tick + i64::try_from(found).unwrap_or(0)) * self.precision);
        }
        None
    }

    /// This slot is read; it need not be found again.
    pub fn passed(&mut self, time: i64) {
        let index = self.index(time);
        self.set(index, false);
    }

    /// What the slot of a time holds; also that of another time, if that is in its place.
    pub fn raw(&self, time: i64) -> Result<Slot, StoreError> {
        let mut bytes = [0; SLOT_BYTES];
        self.file
            .read_at(&mut bytes, self.index(time) * SLOT_BYTES as u64)
            .map_err(|source| self.failed("read", source))?;
        Ok(Slot::decode(&bytes, self.precision))
    }

    /// What the slot of a time holds.
    pub fn slot(&self, time: i64) -> Result<Slot, StoreError> {
        let slot = self.raw(time)?;
        Ok(if slot.time == time && slot.last >= 0 { slot } else { Slot::empty(time) })
    }

    /// As `slot`; `None` where the slot is not free yet: it holds another time, from `read_time` on.
    pub fn slot_to_write(&self, time: i64, read_time: i64) -> Result<Option<Slot>, StoreError> {
        let slot = self.raw(time)?;
        if slot.time == time && slot.last >= 0 {
            return Ok(Some(slot));
        }
        let is_free = slot.last < 0 || slot.time < read_time || slot.time == 0;
        Ok(is_free.then(|| Slot::empty(time)))
    }

    pub fn write(&mut self, slot: &Slot) -> Result<(), StoreError> {
        let index = self.index(slot.time);
        self.file
            .write_at(&slot.encode(self.precision), index * SLOT_BYTES as u64)
            .map_err(|source| self.failed("write", source))?;
        self.set(index, true);
        Ok(())
    }

    pub fn file(&self) -> (&Path, &Arc<dyn DiskFile>) {
        (&self.path, &self.file)
    }
}

#[cfg(test)]
mod tests {
    use disk::RealDisk;

    use super::*;

    fn wheel(dir: &Path) -> Wheel {
        let options = TimerOptions {
            root: dir.to_owned(),
            log_file_bytes: 4096,
            precision_ms: 1000,
            slots_ahead: TIMER_SLOTS_AHEAD,
        };
        Wheel::open(&RealDisk, &options, true).unwrap()
    }

    /// Once around, in ms.
    const LAP: i64 = 2 * TIMER_SLOTS_AHEAD * 1000;

    #[test]
    fn the_next_slot_is_found_across_the_end_of_the_wheel() {
        let dir = tempfile::tempdir().unwrap();
        let mut wheel = wheel(dir.path());
        let last = LAP;
        assert_eq!(wheel.next_from(last - 5000), None);
        wheel.write(&Slot { time: last + 3000, first: 0, last: 0, count: 1 }).unwrap();
        assert_eq!(wheel.next_from(last - 5000), Some(last + 3000));
        assert_eq!(wheel.next_from(last + 3000), Some(last + 3000));
        wheel.passed(last + 3000);
        assert_eq!(wheel.next_from(last - 5000), None);
    }

    #[test]
    fn a_slot_is_not_given_to_a_time_two_weeks_later_before_it_is_done_with() {
        let dir = tempfile::tempdir().unwrap();
        let mut wheel = wheel(dir.path());
        let held = Slot { time: 5000, first: 0, last: 52, count: 2 };
        wheel.write(&held).unwrap();
        let later = 5000 + LAP;
        assert_eq!(wheel.slot_to_write(later, 5000).unwrap(), None);
        assert_eq!(wheel.slot_to_write(later, 6000).unwrap(), Some(Slot::empty(later)));
        assert_eq!(wheel.slot(5000).unwrap(), held);
        assert_eq!(wheel.slot(later).unwrap(), Slot::empty(later));
    }

    #[test]
    fn a_start_finds_what_is_still_to_come() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = wheel(dir.path());
        for (time, last, count) in [(5000, 0, 2), (9000, 52, 3), (600_000_000, 104, 4)] {
            first.write(&Slot { time, first: 0, last, count }).unwrap();
        }
        let mut second = wheel(dir.path());
        let newest = Slot { time: 600_000_000, first: 0, last: 104, count: 4 };
        let found = second.load(6000).unwrap();
        assert_eq!(found, Contents { first: Some(9000), count: 7, newest: Some(newest) });
        assert_eq!(second.next_from(0), Some(9000));
        assert_eq!(second.next_from(10_000), Some(600_000_000));
    }
}
