//! What slaves have, and what is remembered of them.

use super::*;

const NOTHING: [LogOffset; 2] = [LogOffset(0); 2];

impl Slaves {
    fn enter(&self, number: u64, slave: Slave) {
        self.rows.lock().insert(number, slave);
        self.changed();
    }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn slave(address: &str, acknowledged: u64) -> Slave {
    Slave {
        peer: address.parse::<SocketAddr>().unwrap().into(),
        turn: 0,
        began: LogOffset(0),
        next: LogOffset(acknowledged),
        acknowledged: LogOffset(acknowledged),
        flushed: LogOffset(0),
        rate: Rate::default(),
        lag: Lag::new(ms(0), LogOffset(0)),
    }
}

#[test]
fn a_rate_is_that_of_the_last_whole_second() {
    let mut rate = Rate::default();
    rate.add(ms(100), 10);
    rate.add(ms(900), 20);
    assert_eq!(rate.per_second(ms(950)), 0);
    assert_eq!(rate.per_second(ms(1000)), 30);
    rate.add(ms(1500), 5);
    assert_eq!((rate.per_second(ms(1999)), rate.per_second(ms(2000)), rate.per_second(ms(3000))), (30, 5, 0));
}

#[test]
fn a_lag_is_the_time_since_the_follower_had_all_that_there_was() {
    let mut lag = Lag::new(ms(0), LogOffset(0));
    let (at, end) = (LogOffset(100), LogOffset(1000));
    lag.came(ms(10), at, LogOffset(100));
    assert_eq!(lag.behind(ms(50), at, LogOffset(100)), ms(0));
    // The log goes on, and the follower stands still.
    lag.grew(ms(1000), at, end);
    lag.grew(ms(2000), at, LogOffset(1500));
    assert_eq!(lag.behind(ms(3000), at, end), ms(2000), "at 1000 ms it had all that there was");
    // It has come to the end of that time, and the log has gone on.
    lag.came(ms(3000), end, LogOffset(2000));
    assert_eq!(lag.behind(ms(3500), end, LogOffset(2000)), ms(2500));
    lag.came(ms(4000), LogOffset(2000), LogOffset(2000));
    assert_eq!(lag.behind(ms(9000), LogOffset(2000), LogOffset(2000)), ms(0));
}

#[test]
fn an_address_is_one_copy_however_many_connections_it_has() {
    let slaves = Slaves::default();
    assert_eq!((slaves.position(0), slaves.position(1)), (Some(LogOffset(u64::MAX)), None));
    slaves.enter(1, slave("10.0.0.1:1000", 500));
    slaves.enter(2, slave("10.0.0.1:1001", 700));
    assert_eq!((slaves.position(1), slaves.position(2)), (Some(LogOffset(700)), None));
    slaves.enter(3, slave("10.0.0.2:1000", 600));
    assert_eq!((slaves.position(1), slaves.position(2)), (Some(LogOffset(700)), Some(LogOffset(600))));
    slaves.update(3, |slave| slave.acknowledged = LogOffset(800));
    slaves.leave(2, ms(0));
    assert_eq!((slaves.position(1), slaves.position(2)), (Some(LogOffset(800)), Some(LogOffset(500))));
}

#[test]
fn each_change_of_the_slaves_is_told_without_a_lock_held() {
    let (slaves, told) = (Slaves::default(), std::sync::Arc::new(Mutex::new(Vec::new())));
    let of_callback = std::sync::Arc::clone(&told);
    assert!(slaves.on_change(move |slaves| of_callback.lock().push(slaves.positions())));
    assert!(!slaves.on_change(|_| {}), "one callback");
    slaves.enter(1, slave("10.0.0.1:1000", 0));
    slaves.acknowledge(1, ms(1), LogOffset(70), LogOffset(100));
    // A frame that goes out is nothing that anybody has.
    slaves.update(1, |slave| slave.next = LogOffset(100));
    slaves.enter(2, slave("10.0.0.2:1000", 90));
    slaves.leave(1, ms(2));
    let positions = |offsets: &[u64]| offsets.iter().copied().map(LogOffset).collect::<Vec<_>>();
    assert_eq!(*told.lock(), [positions(&[0]), positions(&[70]), positions(&[90, 70]), positions(&[90])]);
}

#[test]
fn a_slave_needs_what_it_does_not_have_also_for_a_while_after_it_left() {
    let slaves = Slaves::default();
    let kept = ms(300);
    slaves.enter(1, slave("10.0.0.1:1000", 500));
    // Its log is empty, and ours begins at 200.
    slaves.enter(2, Slave { began: LogOffset(200), ..slave("10.0.0.2:1000", 0) });
    slaves.leave(1, ms(1000));
    assert_eq!(slaves.needs(ms(1100), kept), [LogOffset(200), LogOffset(500)]);
    assert_eq!(slaves.needs(ms(1300), kept), [LogOffset(200)]);
    slaves.leave(2, ms(2000));
    (0..LEFT_MAX as u64).for_each(|number| {
        slaves.enter(number, slave(&format!("10.0.1.{number}:1000"), 1000 + number));
        slaves.leave(number, ms(2000));
    });
    let needs = slaves.needs(ms(2000), kept);
    assert_eq!((needs.len(), needs[0]), (LEFT_MAX, LogOffset(1000)), "the oldest makes way");
}

/// As recorded from 5.5.0.
#[test]
fn the_status_is_what_apache_answers() {
    let slaves = Slaves::default();
    slaves.enter(1, slave("127.0.0.1:51556", 980));
    slaves.enter(2, slave("127.0.0.1:51557", 100));
    let status = slaves.status(ms(0), LogOffset(980), 880);
    assert_eq!((status.in_sync_slave_nums, status.master, status.master_commit_log_max_offset), (1, true, 980));
    let first = HaConnectionRuntimeInfo {
        addr: "127.0.0.1:51556".to_owned(),
        diff: 0,
        in_sync: true,
        slave_ack_offset: 980,
        transfer_from_where: 980,
        transferred_byte_in_second: 0,
        broker_id: None,
        slave_flush_offset: None,
    };
    assert_eq!(status.ha_connection_info[0], first);
    assert_eq!((status.ha_connection_info[1].diff, status.ha_connection_info[1].in_sync), (880, false));
}

#[test]
fn many_connections_that_end_are_counted_and_logged_once_a_second() {
    let slaves = Slaves::default();
    let told = |line| {
        let lines = (0..2500).map(|now| slaves.may_tell(ms(now), line));
        lines.flatten().collect::<Vec<_>>()
    };
    assert_eq!(told(Line::Stranger), [0, 999, 999]);
    // Slaves that are lost together are all named; one that comes and goes all the time is not each time.
    for line in [Line::Begun, Line::Gone] {
        let lines = told(line);
        assert_eq!((lines.len(), lines.iter().sum::<u64>()), (18, 999 - 15 + 999));
    }
    (0..2500).for_each(|_| slaves.note_closed(&Closed::NotAllowed));
    assert_eq!(slaves.closed().next(), Some(("notAllowed", 2500)));
}

#[test]
fn a_slave_that_was_ahead_is_known_again_by_its_address() {
    let slaves = Slaves::of(LogOffset(900));
    let address = |number: u64| IpAddr::from(std::net::Ipv4Addr::from_bits(number as u32));
    let refused = |report, given| Refused { report, given };
    let ahead_of = |number, now| slaves.ahead_of(address(number), ms(now));
    slaves.note_ahead(address(1), refused(1000, 900), ms(0));
    slaves.sending(1, ms(0), LogOffset(1100), 200, LogOffset(1100));
    slaves.sending(1, ms(0), LogOffset(1000), 100, LogOffset(1100));
    slaves.note_ahead(address(1), refused(1000, 1100), ms(5000));
    assert_eq!((slaves.given(), ahead_of(1, 5000)), (LogOffset(1100), Some(refused(1000, 900))));
    assert_eq!(ahead_of(2, 5000), None);
    // One that does not try any more is forgotten.
    assert!(ahead_of(1, 604_999).is_some() && ahead_of(1, 605_000).is_none());
    (2..2 + AHEAD_MAX as u64).for_each(|number| slaves.note_ahead(address(number), refused(2000, 1100), ms(5000)));
    assert_eq!((ahead_of(1, 5000), slaves.ahead.lock().len()), (None, AHEAD_MAX));
}

/// It has copied the log anew, and what it has now is this master's.
#[test]
fn a_slave_that_was_ahead_is_forgotten_when_it_has_come_so_far_here() {
    let slaves = Slaves::of(LogOffset(900));
    let (address, end) = ("10.0.0.1:1000".parse::<SocketAddr>().unwrap(), LogOffset(2000));
    let is_known = || slaves.ahead_of(address.ip(), ms(0)).is_some();
    slaves.note_ahead(address.ip(), Refused { report: 1000, given: 900 }, ms(0));
    // Another one there, which is known by its id.
    slaves.begun(1, Peer { address, broker_id: Some(1) }, ms(0), LogOffset(0), NOTHING, end);
    slaves.acknowledge(1, ms(0), LogOffset(1500), end);
    slaves.begun(2, address.into(), ms(0), LogOffset(0), NOTHING, end);
    slaves.acknowledge(2, ms(0), LogOffset(999), end);
    assert!(is_known());
    slaves.acknowledge(2, ms(0), LogOffset(1000), end);
    assert!(!is_known());
}

#[test]
fn a_broker_is_one_copy_by_its_newest_connection_wherever_it_comes_from() {
    let slaves = Slaves::default();
    let peer = |host: u8, broker_id| Peer { address: ([10, 0, 0, host], 1000).into(), broker_id };
    let begun = |number, host, broker_id, at, flushed| {
        slaves.begun(number, peer(host, broker_id), ms(0), LogOffset(0), NOTHING, LogOffset(0));
        slaves.acknowledge(number, ms(0), LogOffset(at), LogOffset(1000));
        slaves.flushed(number, LogOffset(flushed));
    };
    let positions = |positions: Vec<LogOffset>| positions.into_iter().map(|at| at.0).collect::<Vec<_>>();
    begun(1, 1, Some(1), 700, 300);
    begun(2, 1, Some(2), 600, 600);
    begun(3, 1, None, 900, 0);
    begun(4, 2, None, 500, 0);
    assert_eq!(positions(slaves.positions()), [700, 600, 500], "the plain one may be either of the two");
    assert_eq!(positions(slaves.positions_on_device()), [600, 500, 300], "plain ones do not tell");
    begun(5, 3, Some(1), 400, 400);
    assert_eq!(positions(slaves.positions()), [600, 500, 400]);
    // One that is back counts at once with what it has.
    let has = [LogOffset(450), LogOffset(440)];
    slaves.begun(6, peer(3, Some(1)), ms(0), LogOffset(450), has, LogOffset(1000));
    assert_eq!(positions(slaves.positions()), [600, 500, 450]);
    slaves.leave(6, ms(0));
    slaves.leave(1, ms(0));
    assert_eq!(positions(slaves.positions()), [600, 500, 400]);
    // It is still there.
    assert_eq!(slaves.left.lock().len(), 0);
}

#[test]
fn a_slave_that_comes_and_goes_is_remembered_where_it_was_last_and_an_address_also_where_it_was_first() {
    let slaves = Slaves::default();
    let needs = |now| {
        let mut needs: Vec<u64> = slaves.needs(ms(now), ms(300)).into_iter().map(|at| at.0).collect();
        needs.sort_unstable();
        needs
    };
    for (number, at) in (0..LEFT_MAX as u64 * 2).zip(100..) {
        for (peer, at) in [("10.0.0.1:1", at), ("10.0.0.2:1", 1000 + at)] {
            let broker_id = peer.starts_with("10.0.0.2").then_some(7);
            let peer = Peer { address: peer.parse().unwrap(), broker_id };
            slaves.begun(number, peer, ms(0), LogOffset(at), NOTHING, LogOffset(at));
            slaves.leave(number, ms(0));
        }
    }
    assert_eq!(needs(100), [100, 227, 1227]);
    // The broker is back, and needs no more than it says now.
    let peer = Peer { address: "10.0.0.9:1".parse().unwrap(), broker_id: Some(7) };
    slaves.begun(1, peer, ms(0), LogOffset(5000), NOTHING, LogOffset(5000));
    assert_eq!(needs(100), [100, 227, 5000]);
    assert_eq!(needs(300), [5000]);
}
