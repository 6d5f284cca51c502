//! Ids that this process gives to messages before it sends them (`UNIQ_KEY`).

use std::net::IpAddr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use env::{Clock, Random, TimeMs};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use parking_lot::Mutex;

/// How long a month that was looked up is believed: not across a change of the clocks or the end of the month.
const LOOK_UP_EVERY_MS: i64 = 60 * 1000;

/// How long a time that was read from the clock is put into ids: they tell milliseconds.
const READ_EVERY: Duration = Duration::from_millis(1);

/// Makes ids in the form of RocketMQ's Java client, so that its tools can read the time and the host from them.
#[derive(Debug)]
pub(crate) struct UniqueIds {
    /// What all of them begin with.
    start: String,
    clock: Clock,
    // Relaxed: ids of one millisecond have to differ, and 65,536 of them do.
    counter: AtomicU16,
    zone: TimeZone,
    /// Guards itself.
    read: Mutex<Read>,
}

/// The clock, as it was read last.
#[derive(Debug)]
struct Read {
    /// When, by the clock's elapsed time; nothing before the first time.
    at: Option<Duration>,
    since_month_ms: u32,
    /// The minute that was looked up last and the beginning of its month.
    month: (i64, TimeMs),
}

impl UniqueIds {
    pub(crate) fn new(ip: IpAddr, clock: Clock, random: &Random) -> UniqueIds {
        let mut start = String::new();
        protocol::message_id::unique_id_start(&mut start, ip, std::process::id(), random.next_u64() as u32);
        UniqueIds {
            start,
            clock,
            counter: AtomicU16::new(0),
            zone: TimeZone::system(),
            read: Mutex::new(Read { at: None, since_month_ms: 0, month: (i64::MIN, TimeMs(0)) }),
        }
    }

    pub(crate) fn next(&self) -> String {
        let mut id = String::with_capacity(56);
        self.put(&mut id, self.clock.elapsed());
        id
    }

    /// Appends an id. `elapsed`: the clock's elapsed time, for whoever needs it besides.
    pub(crate) fn put(&self, out: &mut String, elapsed: Duration) {
        let counter = self.counter.fetch_add(1, Ordering::Relaxed);
        out.push_str(&self.start);
        protocol::message_id::unique_id_end(out, self.since_month_ms(elapsed), counter);
    }

    fn since_month_ms(&self, elapsed: Duration) -> u32 {
        let mut read = self.read.lock();
        // To read the clock takes as long as the rest of an id.
        if read.at.is_none_or(|at| elapsed.saturating_sub(at) >= READ_EVERY) {
            let now = self.clock.now();
            let minute = now.0.div_euclid(LOOK_UP_EVERY_MS);
            if read.month.0 != minute {
                read.month = (minute, month_start(now, &self.zone));
            }
            read.since_month_ms = now.since(read.month.1) as u32;
            read.at = Some(elapsed);
        }
        read.since_month_ms
    }
}

/// The first millisecond of the month of `now`, where this process is.
fn month_start(now: TimeMs, zone: &TimeZone) -> TimeMs {
    let local = Timestamp::from_millisecond(now.0).map(|now| now.to_zoned(zone.clone()));
    let start = local.and_then(|local| local.first_of_month()?.start_of_day());
    // A clock beyond the year 9999 has no month; an id is unique without one.
    start.map_or(now, |start| TimeMs(start.timestamp().as_millisecond()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_month_begins_on_its_first_day_at_midnight_where_the_process_is() {
        // 2024-02-29T12:34:56Z, 2026-11-21T08:00:00Z, 1970-01-01.
        for (now, start) in [(1_709_210_096_000, 1_706_745_600_000), (1_795_248_000_000, 1_793_491_200_000), (0, 0)] {
            assert_eq!(month_start(TimeMs(now), &TimeZone::UTC), TimeMs(start));
        }
        // 2026-11-30T20:00:00Z is December in Shanghai, which begins eight hours before it does in Greenwich.
        let shanghai = TimeZone::fixed(jiff::tz::offset(8));
        assert_eq!(month_start(TimeMs(1_796_068_800_000), &shanghai), TimeMs(1_796_054_400_000));
    }

    #[test]
    fn ids_differ_within_a_millisecond_and_say_where_and_when_they_were_made() {
        let (clock, hand) = Clock::manual(TimeMs(1_795_248_000_000));
        let ids = UniqueIds::new("10.1.2.3".parse().unwrap(), clock, &Random::seeded(1));
        let ids = UniqueIds { zone: TimeZone::UTC, ..ids };
        let all: std::collections::HashSet<String> = (0..10_000).map(|_| ids.next()).collect();
        assert_eq!(all.len(), 10_000);
        let parsed = protocol::message_id::parse_unique_id(&ids.next()).unwrap();
        assert_eq!(parsed.ip, "10.1.2.3".parse::<IpAddr>().unwrap());
        assert_eq!(i64::from(parsed.since_month_ms), 1_795_248_000_000 - 1_793_491_200_000);
        // Into the next month.
        hand.advance(Duration::from_secs(30 * 24 * 3600));
        let parsed = protocol::message_id::parse_unique_id(&ids.next()).unwrap();
        assert_eq!(i64::from(parsed.since_month_ms), 1_797_840_000_000 - 1_796_083_200_000);
    }
}
