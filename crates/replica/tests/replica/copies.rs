//! Copies: whole, cut off, begun anew.

use std::sync::{Arc, Mutex};

use protocol::LogOffset;
use protocol::record::at;
use replica::feed::{FeedOptions, PortOptions};
use replica::follow::{FollowEnd, FollowOptions};
use store::Store;

use crate::support::*;

/// Where the records of a log begin.
fn records(store: &Store) -> Vec<u64> {
    let log = log_of(store);
    let mut places = vec![];
    let mut place = 0;
    while place < log.len() {
        places.push(place as u64);
        place += u32::from_be_bytes(log[place..][..4].try_into().unwrap()) as usize;
    }
    places
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slave_gets_all_of_a_log_of_several_files_and_what_comes_then() {
    for wire in BOTH {
        all_of_a_log_is_copied_on(wire).await;
    }
}

async fn all_of_a_log_is_copied_on(wire: Wire) {
    let (of_master, of_slave) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (main, copy) = (open(of_master.path()), open(of_slave.path()));
    fill(&main, 0..400);
    assert!(main.end().0 > 4 * SEGMENT);
    let master = Master::of(&main);
    let slave = Slave::on(wire, &copy, master.address, ask(&main));
    came_to(&copy, main.end()).await;
    assert_copied(&main, &copy);
    // What is appended now is in the master's memory.
    for first in (400..700).step_by(50) {
        fill(&main, first..first + 50);
        tokio::task::yield_now().await;
    }
    came_to(&copy, main.end()).await;
    assert_copied(&main, &copy);

    let end = main.end();
    eventually("the last acknowledgement", || master.slaves.position(1) == Some(end)).await;
    let status = master.slaves.status(std::time::Duration::ZERO, end, 256 << 20);
    let row = &status.ha_connection_info[0];
    assert_eq!((status.in_sync_slave_nums, row.diff, row.in_sync), (1, 0, true));
    assert_eq!((row.slave_ack_offset, row.transfer_from_where), (end.0 as i64, end.0 as i64));
    let first = LogOffset(records(&main)[1]);
    assert_eq!(master.slaves.list()[0].began, first, "the first record came by itself");
    let info = slave.status.client_info(&env::Clock::real(), copy.end());
    assert_eq!((info.activated, info.master_addr), (true, Some(master.address.to_string())));
    assert!(info.last_read_timestamp > 0 && info.last_write_timestamp > 0);
    assert_eq!((slave.status.connections(), slave.status.failure()), (1, None));
    assert_eq!((slave.status.is_own(), row.broker_id), (wire == Wire::Own, (wire == Wire::Own).then_some(1)));
    slave.stop().await;
    eventually("the slave to be gone", || master.slaves.list().is_empty()).await;
    // The greeting has a connection of its own.
    let connections = if wire == Wire::Own { 2 } else { 1 };
    eventually("its connections to be counted", || master.closed("ended") == connections).await;
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_cut_anywhere_costs_nothing() {
    for wire in BOTH {
        a_cut_costs_nothing_on(wire).await;
    }
}

async fn a_cut_costs_nothing_on(wire: Wire) {
    let (of_master, of_slave) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (main, copy) = (open(of_master.path()), open(of_slave.path()));
    fill(&main, 0..300);
    let master = Master::of(&main);
    // In a header, behind one, in a record, behind a file, and then not any more.
    let cuts = [5, 12, 13, 14, 700, SEGMENT as usize + 40, 40_000];
    let cuts = cuts.map(|cut| wire.greeting_bytes() + cut);
    let harm = move |number: usize| Harm { cut_after: cuts.get(number).copied(), ..Harm::default() };
    let slave = Slave::on(wire, &copy, relay(master.address, of_the_log(wire, harm)).await, ask(&main));
    came_to(&copy, main.end()).await;
    fill(&main, 300..320);
    came_to(&copy, main.end()).await;
    assert_copied(&main, &copy);
    assert!(slave.status.connections() > cuts.len() as u64);
    slave.stop().await;
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_greeting_that_is_cut_anywhere_is_begun_again() {
    let (of_master, of_slave) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let main = open(of_master.path());
    fill(&main, 0..20);
    let master = Master::of(&main);
    let answer = Wire::Own.greeting_bytes();
    // The first greeting, on a connection of its own, and the second, on that with the log.
    let all_cuts = [vec![0, 1, 13, 14, 40, answer - 1], vec![14, answer - 1]];
    for (which, cuts) in all_cuts.into_iter().enumerate() {
        let copy = open(&of_slave.path().join(which.to_string()));
        let of_this = move |number: usize| (number % 2 != which).then_some(number / 2);
        let harm = move |number: usize| Harm {
            cut_after: of_this(number).and_then(|turn| cuts.get(turn).copied()),
            ..Harm::default()
        };
        let slave = Slave::on(Wire::Own, &copy, relay(master.address, harm).await, ask(&main));
        came_to(&copy, main.end()).await;
        assert_copied(&main, &copy);
        slave.stop().await;
    }
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slave_that_starts_again_in_the_middle_of_a_record_goes_on_there() {
    for wire in BOTH {
        it_goes_on_in_a_record_on(wire).await;
    }
}

async fn it_goes_on_in_a_record_on(wire: Wire) {
    let (of_master, of_slave) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let main = open(of_master.path());
    fill(&main, 0..200);
    let places = records(&main);
    let master = Master::of(&main);
    for (is_closed, cut_in) in [(false, 20), (true, 60)] {
        let copy = open(of_slave.path());
        // The stream begins with a header at the end of what is there.
        let begins = if copy.end().0 == 0 { places[1] } else { copy.end().0 };
        let cut_after = Some((places[cut_in] + 50 - begins) as usize + wire.header_bytes() + wire.greeting_bytes());
        let slave = Slave::on(
            wire,
            &copy,
            relay(master.address, move |_| Harm { cut_after, ..Harm::default() }).await,
            ask(&main),
        );
        came_to(&copy, LogOffset(places[cut_in])).await;
        slave.stop().await;
        assert!(places.contains(&copy.end().0), "the log ends with a whole record");
        if is_closed {
            copy.close().unwrap();
        }
        drop(copy);
    }
    let copy = open(of_slave.path());
    assert!(copy.end().0 >= places[60]);
    let slave = Slave::on(wire, &copy, master.address, ask(&main));
    came_to(&copy, main.end()).await;
    assert_copied(&main, &copy);
    slave.stop().await;
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_whose_first_files_are_gone_is_copied_from_where_it_begins() {
    let (of_master, of_slave) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let main = open(of_master.path());
    fill(&main, 0..300);
    main.close().unwrap();
    drop(main);
    std::fs::remove_file(of_master.path().join("commitlog/00000000000000000000")).unwrap();
    let main = open(of_master.path());
    let begin = main.min_offset();
    assert_eq!(begin.0, SEGMENT);
    let master = Master::of(&main);

    let copy = open(of_slave.path());
    let slave = Slave::of(&copy, master.address, ask(&main));
    assert_eq!(slave.ended().await, FollowEnd::BeginAt(begin));
    copy.close().unwrap();
    drop(copy);
    let copy = begin_at(of_slave.path(), begin);
    let slave = Slave::of(&copy, master.address, ask(&main));
    came_to(&copy, main.end()).await;
    assert_eq!(copy.min_offset(), begin);
    assert!(log_of(&main) == log_of(&copy));
    slave.stop().await;
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_file_alone_is_copied_where_the_slave_or_an_apache_master_has_it_so() {
    let (of_master, of_slave) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (main, copy) = (open(of_master.path()), open(of_slave.path()));
    fill(&main, 0..300);
    let last = LogOffset(main.end().0 / SEGMENT * SEGMENT);
    assert!(last.0 > 0);
    let mut options = PortOptions::new(replica::feed::Allowed::new(|_| true));
    options.feed = FeedOptions { from_last_file: true, ..FeedOptions::default() }.fixed();
    let master = Master::with(&main, options);
    let from_last_file = FollowOptions { from_last_file: true, ..FollowOptions::default() };
    // It does not ask where the log begins.
    let slave = Slave::with(&copy, master.address, nobody_to_ask(), from_last_file);
    // The first heartbeat or frame says where.
    fill(&main, 300..301);
    assert_eq!(slave.ended().await, FollowEnd::BeginAt(last));
    copy.close().unwrap();
    drop(copy);
    let copy = begin_at(of_slave.path(), last);
    let slave = Slave::with(&copy, master.address, ask(&main), from_last_file);
    came_to(&copy, main.end()).await;
    assert!(log_of(&main)[last.0 as usize..] == log_of(&copy));
    slave.stop().await;
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_were_damaged_on_the_way_are_refused_and_asked_for_again() {
    for wire in BOTH {
        damage_is_refused_on(wire).await;
    }
}

async fn damage_is_refused_on(wire: Wire) {
    let (of_master, of_slave) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (main, copy) = (open(of_master.path()), open(of_slave.path()));
    fill(&main, 0..100);
    let places = records(&main);
    let master = Master::of(&main);
    // A byte of a body, in the first frame of the first three connections.
    let before = wire.header_bytes() + wire.greeting_bytes();
    let flip_at = Some((places[3] - places[1]) as usize + before + at::BODY + 9);
    let harm = move |number| Harm { flip_at: flip_at.filter(|_| number == 0), ..Harm::default() };
    let slave = Slave::on(wire, &copy, relay(master.address, of_the_log(wire, harm)).await, ask(&main));
    came_to(&copy, main.end()).await;
    assert_copied(&main, &copy);
    assert_eq!(slave.status.connections(), 2);
    slave.stop().await;

    // Where it comes so each time, the log ends before it, and the failure says where that is.
    let of_other = tempfile::tempdir().unwrap();
    let other = open(of_other.path());
    let flip_at = |at: u64| Some((places[3] - at) as usize + before + at::BODY + 9);
    let (first, again) = (flip_at(places[1]), flip_at(places[3]));
    let harm = move |number| Harm { flip_at: if number == 0 { first } else { again }, ..Harm::default() };
    let slave = Slave::on(wire, &other, relay(master.address, of_the_log(wire, harm)).await, ask(&main));
    eventually("another attempt", || slave.status.connections() >= 2).await;
    eventually("the failure", || slave.status.failure().is_some()).await;
    let failure = slave.status.failure().unwrap();
    assert!(failure.contains(&places[3].to_string()), "{failure}");
    assert_eq!(other.end(), LogOffset(places[3]));
    slave.stop().await;
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slave_goes_to_another_master_when_it_is_told() {
    let dirs: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let stores: Vec<_> = dirs.iter().map(|dir| open(dir.path())).collect();
    fill(&stores[0], 0..100);
    let first = Master::of(&stores[0]);
    let asked = Arc::new(Mutex::new(Arc::clone(&stores[0])));
    let [one, two] = [1, 2].map(|place: usize| Slave::of(&stores[place], first.address, ask_any(&asked)));
    came_to(&stores[1], stores[0].end()).await;
    came_to(&stores[2], stores[0].end()).await;
    first.stop().await;
    one.stop().await;
    // One of the two goes on as master, from the same end.
    fill(&stores[1], 100..150);
    let second = Master::of(&stores[1]);
    *asked.lock().unwrap() = Arc::clone(&stores[1]);
    two.masters.send_replace(Some(second.address.to_string().into()));
    came_to(&stores[2], stores[1].end()).await;
    assert_copied(&stores[1], &stores[2]);
    two.stop().await;
    second.stop().await;
}
