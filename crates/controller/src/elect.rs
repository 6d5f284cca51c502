//! Which broker of a set becomes its master.
//!
//! As RocketMQ 5.5.0 elects, but with offsets compared as the 64-bit numbers that they are: there
//! a difference of more than 2 GiB may choose the shorter log.

use crate::live::Report;
use crate::state::Set;

/// What is known of a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It lives, and has reported this.
    Lives(Report),
    /// No heartbeat has come since this controller leads, and the broker may live all the same.
    Unknown,
    /// It does not live.
    Dead,
}

impl Health {
    fn report(self) -> Option<Report> {
        match self {
            Health::Lives(report) => Some(report),
            Health::Unknown | Health::Dead => None,
        }
    }
}

/// The broker that becomes the master of `set`; none if none can, or if that is not decided yet.
///
/// The master stays unless it is dead or another broker is `designated`. Only brokers in sync can
/// become it; with `is_unclean` any other one, if all of those are dead. As long as nothing is known
/// of a broker in sync, nobody is elected: it may have more than those that are known to live.
pub fn choose(set: &Set, health: impl Fn(i64) -> Health, designated: Option<i64>, is_unclean: bool) -> Option<i64> {
    let stays = |id: &i64| health(*id) != Health::Dead && designated.is_none_or(|designated| designated == *id);
    if let Some(master) = set.master.filter(stays) {
        return Some(master);
    }
    let in_sync: Vec<(i64, Health)> =
        set.in_sync.iter().filter(|id| set.members.contains_key(id)).map(|id| (*id, health(*id))).collect();
    let are_dead = in_sync.iter().all(|(_, health)| *health == Health::Dead);
    let candidates: Vec<(i64, Health)> = match are_dead && is_unclean {
        true => set.members.keys().map(|id| (*id, health(*id))).collect(),
        false => in_sync,
    };
    if designated.is_some() {
        let lives = |id: &i64| candidates.iter().any(|(one, health)| one == id && health.report().is_some());
        return designated.filter(lives);
    }
    if candidates.iter().any(|(_, health)| *health == Health::Unknown) {
        return None;
    }
    // The smaller id of two equal ones, so that every look at the same comes to the same.
    let alive = candidates.iter().filter_map(|(id, health)| Some((*id, health.report()?)));
    let best =
        alive.max_by_key(|(id, report)| (report.epoch, report.max_offset, -i64::from(report.election_priority), -id));
    best.map(|(id, _)| id)
}

/// The epoch that begins with an election: above all that was, also above what those brokers that
/// live have in their logs, which may have had masters before they came here.
pub fn next_epoch(set: &Set, health: impl Fn(i64) -> Health) -> i32 {
    let known = set.members.keys().filter_map(|id| health(*id).report()).map(|report| report.epoch);
    known.max().unwrap_or(0).max(set.master_epoch).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::state::Member;

    fn set(master: Option<i64>, in_sync: &[i64]) -> Set {
        let members = (1..=4).map(|id| (id, Member::default())).collect();
        Set { master, members, master_epoch: 7, in_sync: in_sync.iter().copied().collect(), ..Set::default() }
    }

    fn report(epoch: i32, max_offset: i64) -> Report {
        Report { epoch, max_offset, ..Report::default() }
    }

    /// Those in `live` live, and all others are dead.
    fn of(live: &BTreeMap<i64, Report>) -> impl Fn(i64) -> Health {
        |id| live.get(&id).map_or(Health::Dead, |report| Health::Lives(*report))
    }

    #[test]
    fn of_those_in_sync_that_live_the_one_with_the_most_becomes_master() {
        let live = BTreeMap::from([(2, report(7, 10)), (3, report(7, 11)), (4, report(7, 99))]);
        assert_eq!(choose(&set(Some(1), &[1, 2, 3]), of(&live), None, false), Some(3));
        assert_eq!(choose(&set(Some(1), &[1]), of(&live), None, false), None, "nobody in sync lives");
        assert_eq!(choose(&set(Some(1), &[1]), of(&live), None, true), Some(4), "unclean");
        // A higher epoch counts for more than a longer log.
        let live = BTreeMap::from([(2, report(8, 10)), (3, report(7, 11))]);
        assert_eq!(choose(&set(None, &[2, 3]), of(&live), None, false), Some(2));
        // Also where the difference does not fit into 32 bits.
        let live = BTreeMap::from([(2, report(7, 1)), (3, report(7, 1 + (3 << 30)))]);
        assert_eq!(choose(&set(None, &[2, 3]), of(&live), None, false), Some(3));
        let preferred = Report { election_priority: 1, ..report(7, 10) };
        let live = BTreeMap::from([(2, report(7, 10)), (3, preferred)]);
        assert_eq!(choose(&set(None, &[2, 3]), of(&live), None, false), Some(3));
    }

    #[test]
    fn a_master_that_is_not_dead_stays_unless_another_one_is_designated() {
        let live: BTreeMap<_, _> = (1..4).map(|id| (id, report(7, 10 + id))).collect();
        let set = set(Some(1), &[1, 2]);
        assert_eq!(choose(&set, of(&live), None, false), Some(1));
        assert_eq!(choose(&set, of(&live), Some(1), false), Some(1));
        assert_eq!(choose(&set, of(&live), Some(2), false), Some(2));
        assert_eq!(choose(&set, of(&live), Some(3), false), None, "not in sync");
        assert_eq!(choose(&set, of(&live), Some(4), true), None, "does not live");
        // Nothing is known of it yet.
        let without = |id| if id == 1 { Health::Unknown } else { of(&live)(id) };
        assert_eq!(choose(&set, without, None, false), Some(1));
    }

    #[test]
    fn nobody_is_elected_while_a_broker_in_sync_may_live_and_have_more() {
        let live = BTreeMap::from([(2, report(7, 10)), (4, report(7, 99))]);
        let unknown = |id| if id == 3 { Health::Unknown } else { of(&live)(id) };
        assert_eq!(choose(&set(None, &[2, 3]), unknown, None, false), None);
        assert_eq!(choose(&set(None, &[2, 3]), unknown, Some(2), false), Some(2), "an operator says so");
        assert_eq!(choose(&set(None, &[3]), unknown, None, true), None, "unclean is the last resort");
        assert_eq!(choose(&set(None, &[2, 3]), of(&live), None, false), Some(2));
    }

    #[test]
    fn an_epoch_is_above_all_that_members_know() {
        let set = set(None, &[]);
        assert_eq!(next_epoch(&set, |_| Health::Dead), 8);
        let one = BTreeMap::from([(2, report(301, 0))]);
        assert_eq!(next_epoch(&set, of(&one)), 302);
    }
}
