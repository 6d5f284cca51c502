//! Unique ids for messages whose client made none.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU16, Ordering};

use env::{Clock, Random};
use parking_lot::Mutex;
use protocol::message_id;

const DAY_MS: i64 = 86_400_000;

/// Makes `UNIQ_KEY`s in RocketMQ's form. The broker stands in for the client here, with its own address and process.
pub(crate) struct Ids {
    ip: IpAddr,
    hash: u32,
    counter: AtomicU16,
    /// The month that ids count from, and when it ends.
    month: Mutex<(i64, i64)>,
    clock: Clock,
}

impl Ids {
    pub(crate) fn new(ip: IpAddr, clock: Clock, random: &Random) -> Ids {
        Ids { ip, hash: random.next_u64() as u32, counter: AtomicU16::new(0), month: Mutex::new((0, 0)), clock }
    }

    /// Appends one.
    pub(crate) fn write(&self, out: &mut String) {
        let now = self.clock.now().0;
        let month_start = {
            let mut month = self.month.lock();
            if !(month.0..month.1).contains(&now) {
                *month = month_of(now);
            }
            month.0
        };
        let counter = self.counter.fetch_add(1, Ordering::Relaxed);
        message_id::unique_id(out, self.ip, std::process::id(), self.hash, now, month_start, counter);
    }
}

/// The first millisecond of the month of `now` and of the next one, in UTC.
fn month_of(now: i64) -> (i64, i64) {
    let (year, month) = civil(now.div_euclid(DAY_MS));
    let next = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
    (first_day(year, month) * DAY_MS, first_day(next.0, next.1) * DAY_MS)
}

/// Year and month of a day since 1970-01-01, by counting in eras of 400 years that begin in March.
fn civil(day: i64) -> (i64, i64) {
    let day = day + 719_468;
    let era = day.div_euclid(146_097);
    let of_era = day.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * of_year + 2) / 153;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month)
}

/// Days from 1970-01-01 to the first of a month.
fn first_day(year: i64, month: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let march_month = if month > 2 { month - 3 } else { month + 9 };
    let of_year = (153 * march_month + 2) / 5;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;
    use env::TimeMs;

    #[test]
    fn months_begin_and_end_where_the_calendar_says() {
        // 2024-02-29T12:00Z lies in 2024-02-01 .. 2024-03-01.
        assert_eq!(month_of(1_709_208_000_000), (1_706_745_600_000, 1_709_251_200_000));
        // 1970-01-01 and the last millisecond of 1999.
        assert_eq!(month_of(0), (0, 31 * DAY_MS));
        assert_eq!(month_of(946_684_799_999).1, 946_684_800_000);
    }

    #[test]
    fn ids_differ_and_have_rocketmqs_length() {
        let (clock, _) = Clock::manual(TimeMs(1_709_208_000_000));
        let ids = Ids::new("10.0.0.1".parse().unwrap(), clock, &Random::seeded(1));
        let mut both = (String::new(), String::new());
        ids.write(&mut both.0);
        ids.write(&mut both.1);
        assert_eq!((both.0.len(), both.1.len()), (32, 32));
        assert_ne!(both.0, both.1);
        assert!(both.0.starts_with("0A000001"));
    }
}
