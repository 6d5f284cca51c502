//! Ids that this process gives to messages before it sends them (`UNIQ_KEY`).

use std::net::IpAddr;
use std::sync::atomic::{AtomicU16, Ordering};

use env::{Clock, Random, TimeMs};

const DAY_MS: i64 = 24 * 60 * 60 * 1000;

/// Makes ids in the form of RocketMQ's Java client, so that its tools can read the time and the host from them.
#[derive(Debug)]
pub(crate) struct UniqueIds {
    ip: IpAddr,
    pid: u32,
    hash: u32,
    clock: Clock,
    // Relaxed: ids of one millisecond have to differ, and 65,536 of them do.
    counter: AtomicU16,
}

impl UniqueIds {
    pub(crate) fn new(ip: IpAddr, clock: Clock, random: &Random) -> UniqueIds {
        let hash = random.next_u64() as u32;
        UniqueIds { ip, pid: std::process::id(), hash, clock, counter: AtomicU16::new(0) }
    }

    pub(crate) fn next(&self) -> String {
        let now = self.clock.now();
        let counter = self.counter.fetch_add(1, Ordering::Relaxed);
        let mut id = String::with_capacity(56);
        protocol::message_id::unique_id(&mut id, self.ip, self.pid, self.hash, now.0, month_start(now).0, counter);
        id
    }
}

/// The first millisecond of the month of `now`, UTC. (Days to a date as in Howard Hinnant's `civil_from_days`.)
fn month_start(now: TimeMs) -> TimeMs {
    let days = now.0.div_euclid(DAY_MS);
    let day_of_era = (days + 719_468).rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month_from_march + 2) / 5;
    TimeMs((days - day_of_month) * DAY_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_month_begins_on_its_first_day_at_midnight() {
        // 2024-02-29T12:34:56Z, 2026-11-21T08:00:00Z, 1970-01-01.
        for (now, start) in [(1_709_210_096_000, 1_706_745_600_000), (1_795_248_000_000, 1_793_491_200_000), (0, 0)] {
            assert_eq!(month_start(TimeMs(now)), TimeMs(start));
        }
    }

    #[test]
    fn ids_differ_within_a_millisecond_and_say_where_and_when_they_were_made() {
        let (clock, _hand) = Clock::manual(TimeMs(1_795_248_000_000));
        let ids = UniqueIds::new("10.1.2.3".parse().unwrap(), clock, &Random::seeded(1));
        let all: std::collections::HashSet<String> = (0..10_000).map(|_| ids.next()).collect();
        assert_eq!(all.len(), 10_000);
        let parsed = protocol::message_id::parse_unique_id(&ids.next()).unwrap();
        assert_eq!(parsed.ip, "10.1.2.3".parse::<IpAddr>().unwrap());
        assert_eq!(i64::from(parsed.since_month_ms), 1_795_248_000_000 - 1_793_491_200_000);
    }
}
