//! From a time to an offset, by RocketMQ's rules, oddities included: `resetOffsetByTime` must land where it always did.

use std::sync::atomic::Ordering;

use protocol::LogOffset;

use super::error::QueueError;
use super::queue::ConsumeQueue;
use super::unit::Unit;

/// Which side of a time is wanted where no message, or more than one, has exactly that time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Boundary {
    /// The first message stored at that time or later.
    #[default]
    Lower,
    /// The last message stored at that time or earlier.
    Upper,
}

impl ConsumeQueue {
    /// The offset for a store time. May wait for the device.
    ///
    /// `unit_at` reads the unit of an offset, or gives one that stands for it where that is
    /// damaged; of a queue of batches it is shown each place before that is read, and may mend it.
    /// `store_time` reads the time from a record in the log, `None` if it cannot; `min_log_offset`
    /// is the log's lower end. As in RocketMQ: a time after the newest message gives the end
    /// (lower) or the newest message (upper); a time before the oldest gives the first unit of its
    /// file (lower) or 0 (upper); an unreadable record on the way gives 0.
    pub fn offset_by_time(
        &self,
        timestamp: i64,
        boundary: Boundary,
        min_log_offset: LogOffset,
        unit_at: impl Fn(u64) -> Result<Option<Unit>, QueueError>,
        mut store_time: impl FnMut(&Unit) -> Option<i64>,
    ) -> Result<u64, QueueError> {
        if self.is_batch() {
            return self.batch_by_time(timestamp, boundary, &|place| unit_at(place).map(|_| ()));
        }
        let (first_file, next) = (self.first_file.load(Ordering::Acquire), self.max_offset());
        if next <= first_file {
            return Ok(0);
        }
        let mut time_at = |offset: u64| -> Result<Option<i64>, QueueError> {
            Ok(unit_at(offset)?.and_then(|unit| store_time(&unit)))
        };
        let file = self.file_by_time(timestamp, boundary, (first_file, next), &mut time_at)?;
        let Some(file) = file else { return Ok(0) };
        let (floor, end) = (self.min_offset().max(file), self.layout().file_end(file).min(next));
        if floor >= end {
            return Ok(end);
        }
        if time_at(end - 1)?.unwrap_or(-1) < timestamp {
            return Ok(match boundary {
                Boundary::Lower => end,
                Boundary::Upper => end - 1,
            });
        }
        if time_at(floor)?.unwrap_or(-1) > timestamp {
            return Ok(match boundary {
                Boundary::Lower => file,
                Boundary::Upper => 0,
            });
        }
        // Store times do not fall along a queue, so the ends of a run of equal times are found by halving too, where
        // RocketMQ reads its way through the run.
        let mut is_unreadable = false;
        let found = self.first_that(floor, end, |offset| {
            let unit = unit_at(offset)?;
            let Some(unit) = unit.filter(|unit| !unit.is_blank() && unit.at >= min_log_offset) else {
                return Ok(false);
            };
            let Some(time) = store_time(&unit) else {
                is_unreadable = true;
                return Ok(true);
            };
            Ok(match boundary {
                Boundary::Lower => time >= timestamp,
                Boundary::Upper => time > timestamp,
            })
        })?;
        Ok(match boundary {
            _unreadable if is_unreadable => 0,
            Boundary::Lower => found,
            Boundary::Upper => found.saturating_sub(1).max(floor),
        })
    }

    /// The first unit of the file to search, as RocketMQ chooses it: for the lower boundary the first file whose last
    /// message is not older than the time, else the last file; for the upper one the last file whose first message is not
    /// newer, else none. A time that cannot be read counts as older than any.
    fn file_by_time(
        &self,
        timestamp: i64,
        boundary: Boundary,
        (first_file, next): (u64, u64),
        time_at: &mut impl FnMut(u64) -> Result<Option<i64>, QueueError>,
    ) -> Result<Option<u64>, QueueError> {
        let units_per_file = self.layout().units_per_file();
        let files = (next - first_file).div_ceil(units_per_file);
        let start = |file: u64| first_file + file * units_per_file;
        match boundary {
            Boundary::Lower => {
                let file =
                    self.first_that(0, files - 1, |file| Ok(time_at(start(file + 1) - 1)?.unwrap_or(-1) >= timestamp))?;
                Ok(Some(start(file)))
            }
            Boundary::Upper => {
                let newer = self.first_that(0, files, |file| Ok(time_at(start(file))?.unwrap_or(-1) > timestamp))?;
                Ok(newer.checked_sub(1).map(start))
            }
        }
    }
}
