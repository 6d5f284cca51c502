//! What the id that a producer gave a message (`UNIQ_KEY`) tells of that producer.

use std::net::IpAddr;

use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan, Zoned};
use protocol::message_id::parse_unique_id;

/// The id counts from the beginning of the producer's month, in its zone, which may be this far from ours.
const ZONES_APART_MS: i64 = 27 * 3_600_000;

/// Where and when an id was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The producer's address.
    pub host: IpAddr,
    /// Its process, as far as 16 bits tell.
    pub pid: u16,
    /// Milliseconds since 1970, if the producer's zone is that of this machine.
    pub at: i64,
    /// The producer's counter.
    pub counter: u16,
}

/// Reads an id of a message that was born at `born`, in milliseconds since 1970.
///
/// `None` for what is no such id. Clients that are not Java's make ids of the same length with other contents; theirs do not fit the time.
pub fn origin(id: &str, born: i64) -> Option<Origin> {
    let id = parse_unique_id(id).ok()?;
    let month = Timestamp::from_millisecond(born).ok()?.to_zoned(TimeZone::system()).first_of_month().ok()?;
    // At the turn of a month the id may count from another one than the message's own.
    let months = [Some(month.clone()), month.checked_sub(1.month()).ok(), month.checked_add(1.month()).ok()];
    let times = months
        .into_iter()
        .flatten()
        .filter_map(|month| begin(&month))
        .map(|begin| begin + i64::from(id.since_month_ms));
    let at = times.min_by_key(|at| at.abs_diff(born)).filter(|at| at.abs_diff(born) <= ZONES_APART_MS as u64)?;
    Some(Origin { host: id.ip, pid: id.pid, at, counter: id.counter })
}

fn begin(month: &Zoned) -> Option<i64> {
    month.start_of_day().ok().map(|begin| begin.timestamp().as_millisecond())
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::message_id::unique_id;

    fn made(ip: &str, since_month_ms: i64) -> String {
        let mut id = String::new();
        unique_id(&mut id, ip.parse().unwrap(), 0x1_2345, 7, since_month_ms, 0, 9);
        id
    }

    fn month_of(born: i64) -> i64 {
        let born = Timestamp::from_millisecond(born).unwrap().to_zoned(TimeZone::system());
        begin(&born.first_of_month().unwrap()).unwrap()
    }

    #[test]
    fn an_id_tells_host_process_and_time_with_either_kind_of_address() {
        let born = 1_763_735_000_000;
        for ip in ["10.1.2.3", "2001:db8::7"] {
            let found = origin(&made(ip, born - month_of(born) - 5), born).unwrap();
            let wanted = Origin { host: ip.parse().unwrap(), pid: 0x2345, at: born - 5, counter: 9 };
            assert_eq!(found, wanted);
        }
    }

    #[test]
    fn at_the_turn_of_a_month_the_nearer_one_counts() {
        let begin = month_of(1_763_735_000_000);
        // Made in the last second of the month before, sent in this one.
        let before = month_of(begin - 1);
        assert_eq!(origin(&made("10.1.2.3", begin - 1_000 - before), begin + 20).unwrap().at, begin - 1_000);
        // Made by a clock that is ahead.
        assert_eq!(origin(&made("10.1.2.3", 5), begin - 20).unwrap().at, begin + 5);
    }

    #[test]
    fn what_is_no_id_of_java_tells_nothing() {
        let born = 1_763_735_000_000;
        let far = (born - month_of(born) + 40 * 3_600_000) % (27 * 86_400_000);
        for id in ["", "abc", &"Z".repeat(32), &made("10.1.2.3", far)] {
            assert_eq!(origin(id, born), None, "{id}");
        }
    }
}
