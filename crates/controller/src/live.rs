//! Which brokers live, by their heartbeats (904).
//!
//! Brokers send them to every controller, so each keeps this table for itself, and none of it is
//! replicated. A broker is dead when its connection has ended and its port refuses another one, or
//! when it has been silent for as long as it asked to be waited for. Pure: the time is an argument.

use std::collections::BTreeMap;
use std::time::Duration;

/// How long a broker may be silent that does not say so, as in RocketMQ.
const SILENCE: Duration = Duration::from_secs(10);
/// What a broker may ask for.
const SILENCE_MIN: Duration = Duration::from_millis(200);
const SILENCE_MAX: Duration = Duration::from_secs(600);

/// What a broker says of itself with each heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The last epoch in its log.
    pub epoch: i32,
    /// Where its log ends.
    pub max_offset: i64,
    /// The lower one of two equal brokers is elected.
    pub election_priority: i32,
}

impl Default for Report {
    fn default() -> Report {
        Report { epoch: -1, max_offset: -1, election_priority: i32::MAX }
    }
}

#[derive(Clone, Debug)]
struct Row {
    /// The connection of its last heartbeat.
    connection: u64,
    heard: Duration,
    silence: Duration,
    /// Its connection has ended, and its port refuses another one.
    is_gone: bool,
    report: Report,
}

/// A broker: the name of its set and its id.
pub type Who = (String, i64);

/// The table. Times are those of a clock that only goes forward, since any moment.
#[derive(Debug, Default)]
pub struct Live {
    rows: BTreeMap<Who, Row>,
    /// When brokers registered last, by their own clocks, in milliseconds since 1970.
    registered: BTreeMap<Who, i64>,
    /// Silence before this does not make a broker dead.
    since: Duration,
}

impl Live {
    /// Silence counts from `now` on: this controller has just become the leader, or has stood still.
    pub fn begin(&mut self, now: Duration) {
        self.since = now;
    }

    /// A heartbeat. `silence`: how long this broker is waited for, in milliseconds.
    pub fn beat(&mut self, who: Who, connection: u64, silence: Option<i64>, report: Report, now: Duration) {
        let asked = silence.and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis);
        let silence = asked.unwrap_or(SILENCE).clamp(SILENCE_MIN, SILENCE_MAX);
        self.rows.insert(who, Row { connection, heard: now, silence, is_gone: false, report });
    }

    /// Something else came by that connection. While the answer to it is waited for, no heartbeat
    /// is read there.
    pub fn touch(&mut self, connection: u64, now: Duration) {
        let rows = self.rows.values_mut().filter(|row| row.connection == connection && !row.is_gone);
        rows.for_each(|row| row.heard = now);
    }

    /// A broker registers. Says whether it has started since it was heard of last: it comes by another
    /// connection, and this is no late copy of an earlier request. What it reported before does not
    /// count then.
    pub fn registers(&mut self, who: &Who, connection: u64, invoked_at: i64) -> bool {
        let is_late = self.registered.insert(who.clone(), invoked_at).is_some_and(|before| invoked_at <= before);
        let is_same = self.rows.get(who).is_some_and(|row| row.connection == connection);
        if is_late || is_same {
            return false;
        }
        self.rows.remove(who);
        true
    }

    /// The brokers whose last heartbeat came by that connection, which has ended.
    pub fn disconnected(&self, connection: u64) -> Vec<Who> {
        self.rows.iter().filter(|(_, row)| row.connection == connection).map(|(who, _)| who.clone()).collect()
    }

    /// Whether that connection, which has ended, is still the last one by which the broker was heard
    /// of, and the broker not dead by its silence.
    pub fn awaits(&self, who: &Who, connection: u64, now: Duration) -> bool {
        self.rows.get(who).is_some_and(|row| row.connection == connection) && !self.is_dead(&who.0, who.1, now)
    }

    /// The port of that broker refuses connections. Not counted if a heartbeat has come by another
    /// connection meanwhile. Says whether it was counted.
    pub fn refused(&mut self, who: &Who, connection: u64) -> bool {
        match self.rows.get_mut(who) {
            Some(row) if row.connection == connection => {
                row.is_gone = true;
                true
            }
            _ => false,
        }
    }

    /// What that broker has reported, if its last heartbeat is recent enough. A change of the leader
    /// makes no old heartbeat recent.
    pub fn report(&self, broker_name: &str, broker_id: i64, now: Duration) -> Option<Report> {
        let row = self.row(broker_name, broker_id)?;
        (!row.is_gone && now.saturating_sub(row.heard) < row.silence).then_some(row.report)
    }

    /// Whether that broker is dead. One of which no heartbeat has come yet is after a while.
    ///
    /// A broker may be neither dead nor have a [`report`](Live::report): nobody knows yet.
    pub fn is_dead(&self, broker_name: &str, broker_id: i64, now: Duration) -> bool {
        match self.row(broker_name, broker_id) {
            Some(row) => row.is_gone || now.saturating_sub(row.heard.max(self.since)) >= row.silence,
            None => now.saturating_sub(self.since) >= SILENCE,
        }
    }

    /// Takes out the brokers that `is_known` does not know.
    pub fn keep(&mut self, is_known: impl Fn(&str, i64) -> bool) {
        self.rows.retain(|(broker_name, broker_id), _| is_known(broker_name, *broker_id));
        self.registered.retain(|(broker_name, broker_id), _| is_known(broker_name, *broker_id));
    }

    fn row(&self, broker_name: &str, broker_id: i64) -> Option<&Row> {
        self.rows.get(&(broker_name.to_owned(), broker_id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn who() -> Who {
        ("a".to_owned(), 1)
    }

    #[test]
    fn a_broker_lives_as_long_as_it_asks_to_be_waited_for() {
        let mut live = Live::default();
        live.beat(who(), 7, Some(3_000), Report { epoch: 4, ..Report::default() }, MS(1_000));
        assert_eq!(live.report("a", 1, MS(3_999)).map(|report| report.epoch), Some(4));
        assert!(!live.is_dead("a", 1, MS(3_999)) && live.is_dead("a", 1, MS(4_000)));
        assert_eq!(live.report("a", 1, MS(4_000)), None);
        // A fresh leader waits for it anew, and does not take it for living.
        live.begin(MS(4_000));
        assert!(!live.is_dead("a", 1, MS(6_999)) && live.is_dead("a", 1, MS(7_000)));
        assert_eq!(live.report("a", 1, MS(4_001)), None);
        // One that was never heard of is waited for, too.
        assert!(!live.is_dead("a", 2, MS(13_999)) && live.is_dead("a", 2, MS(14_000)));
    }

    #[test]
    fn a_refused_connection_ends_it_unless_it_came_back() {
        let mut live = Live::default();
        live.beat(who(), 7, None, Report::default(), MS(0));
        assert_eq!(live.disconnected(7), [who()]);
        assert_eq!(live.disconnected(8), []);
        assert!(live.awaits(&who(), 7, MS(9_999)) && !live.awaits(&who(), 7, MS(10_000)));
        assert!(!live.awaits(&who(), 8, MS(0)));
        live.beat(who(), 8, None, Report::default(), MS(10));
        assert!(!live.refused(&who(), 7), "it is there again");
        assert!(live.refused(&who(), 8));
        assert!(live.is_dead("a", 1, MS(10)), "at once");
        live.beat(who(), 9, None, Report::default(), MS(20));
        assert!(!live.is_dead("a", 1, MS(20)));
    }

    #[test]
    fn a_broker_that_registers_by_another_connection_has_started_anew() {
        let mut live = Live::default();
        assert!(live.registers(&who(), 7, 100), "of which nothing is known");
        live.beat(who(), 7, None, Report::default(), MS(0));
        assert!(!live.registers(&who(), 7, 200), "by the same connection");
        assert!(!live.registers(&who(), 8, 200), "a late copy of that");
        assert!(live.report("a", 1, MS(1)).is_some());
        assert!(live.registers(&who(), 8, 300));
        assert_eq!(live.report("a", 1, MS(1)), None, "what it said before does not count");
    }

    #[test]
    fn what_comes_by_the_connection_of_heartbeats_is_a_sign_of_life() {
        let mut live = Live::default();
        live.beat(who(), 7, Some(3_000), Report::default(), MS(0));
        live.touch(8, MS(2_000));
        assert!(live.is_dead("a", 1, MS(3_000)));
        live.touch(7, MS(2_000));
        assert!(!live.is_dead("a", 1, MS(4_999)) && live.is_dead("a", 1, MS(5_000)));
    }

    #[test]
    fn what_nobody_knows_is_not_kept() {
        let mut live = Live::default();
        live.beat(who(), 7, None, Report::default(), MS(0));
        live.keep(|name, id| (name, id) == ("a", 2));
        assert_eq!(live.disconnected(7), []);
    }

    #[test]
    fn silence_that_is_asked_for_has_its_limits() {
        let mut live = Live::default();
        for (asked, silence) in [(Some(0), 200), (Some(-1), 10_000), (Some(i64::MAX), 600_000), (None, 10_000)] {
            live.beat(who(), 7, asked, Report::default(), MS(0));
            assert!(!live.is_dead("a", 1, MS(silence - 1)) && live.is_dead("a", 1, MS(silence)), "{asked:?}");
        }
    }
}
