//! The stream between brokers of Gantry: who is let in, what is proved, and what counts as a copy.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use protocol::LogOffset;
use replica::feed::{Allowed, FeedOptions, PortOptions};
use replica::follow::FollowOptions;
use replica::wire::own::{Answered, Greeting, Hello, Identity, Member, Note};
use store::{Store, StoreOptions};
use tokio::io::AsyncWriteExt;

use crate::support::*;

const SECRET: &str = "known to this set only";
const OTHER: &str = "known to another one";

fn proving(secret: Option<&str>) -> PortOptions {
    PortOptions { member: Some(member(0, secret)), ..PortOptions::new(Allowed::new(|_| true)) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn brokers_behind_one_address_are_as_many_copies_and_a_plain_connection_beside_them_is_none() {
    let dirs: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let [main, one, other]: [Arc<Store>; 3] = std::array::from_fn(|number| open(dirs[number].path()));
    fill(&main, 0..50);
    let master = Master::of(&main);
    let one_follows = Slave::own(&one, master.address, ask(&main), member(1, None));
    came_to(&one, main.end()).await;
    let end = main.end();
    eventually("one copy", || master.slaves.positions() == [end]).await;
    let other_follows = Slave::own(&other, master.address, ask(&main), member(2, None));
    eventually("two copies", || master.slaves.positions() == [end, end]).await;
    let mut plain = Guest::of(Wire::Plain, master.address).await;
    plain.report(end.0).await;
    eventually("three connections", || master.slaves.list().len() == 3).await;
    assert_eq!(master.slaves.positions(), [end, end]);
    let status = master.slaves.status(Duration::ZERO, end, 256 << 20);
    let mut ids: Vec<_> = status.ha_connection_info.iter().map(|row| row.broker_id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [None, Some(1), Some(2)]);
    one_follows.stop().await;
    other_follows.stop().await;
    eventually("the plain one alone", || master.slaves.positions() == [end]).await;
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_newest_connection_of_a_broker_counts_and_the_one_before_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let main = open(dir.path());
    fill(&main, 0..20);
    let (master, end) = (Master::of(&main), main.end());
    // Half of it is gone, and nobody has noticed.
    let mut before = Guest::of(Wire::Own, master.address).await;
    before.report(end.0).await;
    eventually("the acknowledgement", || master.slaves.positions() == [end]).await;
    let mut now = Guest::of(Wire::Own, master.address).await;
    now.report(0).await;
    eventually("the newest counts", || master.slaves.positions() == [LogOffset(0)]).await;
    let words = before.words().await;
    assert!(words.contains("has connected again") && words.contains("same brokerId"), "{words}");
    eventually("it is gone", || master.slaves.list().len() == 1).await;
    assert_eq!(master.closed("replaced"), 1);
    // Also one that greeted before the other did.
    let mut slow = Guest::of(Wire::Own, master.address).await;
    let mut fast = Guest::of(Wire::Own, master.address).await;
    fast.report(0).await;
    now.is_closed().await;
    slow.report(end.0).await;
    fast.is_closed().await;
    eventually("the last that reported", || master.slaves.positions() == [end]).await;
    eventually("they are counted", || master.closed("replaced") == 3).await;
    master.stop().await;
}

/// What a master says to a hello, and under which name it is counted.
async fn refusal(main: &Arc<Store>, greeting: Greeting) -> (String, Vec<&'static str>) {
    let master = Master::of(main);
    let mut guest = Guest::silent(Wire::Own, master.address).await;
    let Answered::Ends(why) = guest.answer(greeting).await else { panic!("it is let in") };
    guest.is_closed().await;
    drop(guest);
    eventually("it is counted", || master.slaves.closed().any(|(_, count)| count > 0)).await;
    let counted = master.slaves.closed().filter(|(_, count)| *count > 0).map(|(name, _)| name).collect();
    assert!(master.slaves.list().is_empty() && master.slaves.positions().is_empty());
    master.stop().await;
    (why, counted)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slave_that_is_not_of_this_set_is_told_why_it_is_not_let_in() {
    let dir = tempfile::tempdir().unwrap();
    let main = open(dir.path());
    let who = |cluster: &str, set: &str, broker_id| {
        let who = Identity { cluster: cluster.into(), set: set.into(), broker_id };
        Greeting { who, ..greeting(1) }
    };
    for (greeting, says, name) in [
        (who("DefaultCluster", "broker-b", 1), "broker-b", "otherSet"),
        (who("Another", "broker-a", 1), "brokerClusterName", "otherSet"),
        (who("DefaultCluster", "broker-a", 0), "brokerId 0", "brokerId"),
        (who("DefaultCluster", "broker-a", -1), "brokerId -1", "brokerId"),
        (Greeting { segment_bytes: SEGMENT * 2, ..greeting(1) }, "mappedFileSizeCommitLog", "fileSize"),
        (Greeting { version: 0, ..greeting(1) }, "version 0", "version"),
    ] {
        let (why, counted) = refusal(&main, greeting).await;
        assert!(why.contains(says), "{why}");
        assert_eq!(counted, [name], "{why}");
    }
    // A later version speaks this one.
    let master = Master::of(&main);
    let mut later = Guest::silent(Wire::Own, master.address).await;
    let answered = later.answer(Greeting { version: 9, ..greeting(1) }).await;
    assert!(matches!(answered, Answered::Goes(answer) if answer.greeting.version == 1));
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slave_of_another_set_takes_nothing_of_the_log() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let (main, copy) = (open(dirs[0].path()), open(dirs[1].path()));
    fill(&main, 0..20);
    let master = Master::of(&main);
    let who = Identity { set: "broker-b".into(), ..member(1, None).who.clone() };
    let slave = Slave::own(&copy, master.address, ask(&main), Arc::new(Member { who, secret: None }));
    until_it_fails(&slave, "the slave is of the set \"broker-b\"").await;
    assert_eq!((copy.end().0, master.slaves.sent()), (0, 0), "not even the first record, which is asked for elsewhere");
    slave.stop().await;
    master.stop().await;
}

/// Whether the log comes over, between a master and a slave that have these secrets.
async fn comes_over(of_master: Option<&str>, of_slave: Option<&str>) -> Result<(), (String, u64)> {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let (main, copy) = (open(dirs[0].path()), open(dirs[1].path()));
    fill(&main, 0..20);
    let master = Master::with(&main, proving(of_master));
    let slave = Slave::own(&copy, master.address, ask(&main), member(1, of_slave));
    eventually("success or failure", || {
        master.slaves.positions() == [main.end()] || slave.status.failure().is_some() && master.closed("unproven") > 0
    })
    .await;
    let result = match slave.status.failure() {
        None => Ok(()),
        Some(why) => Err((why, master.closed("unproven"))),
    };
    // Neither the stream nor the first record, which is asked for at the main port.
    assert!(result.is_ok() || master.slaves.sent() == 0 && copy.end().0 == 0);
    slave.stop().await;
    master.stop().await;
    result
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_sides_have_to_have_the_secret_and_each_says_what_is_wrong() {
    assert_eq!(comes_over(Some(SECRET), Some(SECRET)).await, Ok(()));
    for (of_master, of_slave, says) in [
        (Some(SECRET), Some(OTHER), "the master's proof is wrong"),
        (
            Some(SECRET),
            None,
            "the master has a replicaSecret, and this slave has none: set replicaSecret here as there",
        ),
        (None, Some(SECRET), "the master proves nothing"),
    ] {
        let (why, counted) = comes_over(of_master, of_slave).await.unwrap_err();
        assert!(why.contains(says), "{why}");
        assert!(counted > 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_slave_gets_nothing_of_a_master_that_has_a_secret() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let (main, copy) = (open(dirs[0].path()), open(dirs[1].path()));
    fill(&main, 0..20);
    let master = Master::with(&main, proving(Some(SECRET)));
    let mut plain = Guest::of(Wire::Plain, master.address).await;
    plain.report(0).await;
    assert_eq!(plain.is_closed().await, b"");
    assert_eq!((master.closed("plain"), master.slaves.list().len()), (1, 0));
    // And a slave with a secret follows no master that has nothing to prove.
    let others = Master::of(&main);
    let without = Slave::start(
        &copy,
        others.address,
        ask(&main),
        FollowOptions::default(),
        Arc::new(|_| Ok(HashSet::new())),
        Some(member(1, Some(SECRET))),
    );
    until_it_fails(&without, "does not have the stream on which it could prove").await;
    assert!(copy.end().0 == 0 && others.slaves.list().is_empty());
    without.stop().await;
    others.stop().await;
    master.stop().await;
}

/// With a secret any address may connect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_that_prove_nothing_take_no_place_of_a_slave_whose_address_is_listed() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let (main, copy) = (open(dirs[0].path()), open(dirs[1].path()));
    fill(&main, 0..20);
    let allowed = Allowed::new(|_| true).with_members(|address| address == IpAddr::from([127, 0, 0, 1]));
    // However long it takes, nobody is closed for silence.
    let feed = FeedOptions { silence: 10 * PATIENCE, ..FeedOptions::default() }.fixed();
    let master = Master::with(&main, PortOptions { allowed, feed, ..proving(Some(SECRET)) });
    let ended = || master.slaves.closed().map(|(_, count)| count).sum::<u64>();
    // It is slow: more strangers than there are places come between its first byte and its report.
    let mut slow = Guest::silent(Wire::Own, master.address).await;
    let (half, mut strangers) = (&Hello::new(greeting(1)).unwrap().bytes, Vec::new());
    for number in 0..200 {
        let mut stranger = Guest::silent_from("127.0.0.2", Wire::Own, master.address).await;
        // It may be gone by then.
        let _ = stranger.socket.write_all(&half[..number % half.len()]).await;
        strangers.push(stranger);
    }
    eventually("half of the places are theirs", || ended() >= 168).await;
    slow.proves(SECRET).await;
    slow.report(0).await;
    assert_eq!(slow.frame().await.0, 0, "it has its place");

    let slave = Slave::own(&copy, master.address, ask(&main), member(1, Some(SECRET)));
    came_to(&copy, main.end()).await;
    slave.stop().await;
    // One that proves the secret from elsewhere has a place as well, and then no stranger takes it.
    let mut elsewhere = Guest::silent_from("127.0.0.2", Wire::Own, master.address).await;
    elsewhere.proves(SECRET).await;
    elsewhere.report(0).await;
    assert_eq!(elsewhere.frame().await.0, 0);
    for _ in 0..64 {
        strangers.push(Guest::silent_from("127.0.0.2", Wire::Own, master.address).await);
    }
    eventually("they have come", || ended() >= 235).await;
    assert_eq!(master.slaves.list().len(), 1, "it is there");
    master.stop().await;
}

/// A proof is of this connection's nonces.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proof_that_was_overheard_is_worth_nothing_on_another_connection() {
    let dir = tempfile::tempdir().unwrap();
    let main = open(dir.path());
    fill(&main, 0..20);
    let master = Master::with(&main, proving(Some(SECRET)));
    let mut overheard = None;
    for _ in 0..2 {
        let mut guest = Guest::silent(Wire::Own, master.address).await;
        let proof = guest.proof(SECRET).await;
        let first = overheard.replace(proof);
        guest.socket.write_all(&Note::Proof(first.unwrap_or(proof)).encode()).await.unwrap();
        guest.report(0).await;
        match first {
            None => assert_eq!(guest.frame().await.0, 0, "it is proved"),
            Some(first) => {
                assert_ne!(first, proof);
                assert!(guest.words().await.contains("its proof is wrong"));
            }
        }
    }
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_with_sync_flush_counts_what_is_on_the_devices_of_its_slaves() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let main = open_sync(dirs[0].path());
    // By itself it flushes in an hour.
    let rarely = StoreOptions { flush_interval: Duration::from_secs(3600), ..options(dirs[1].path()) };
    let copy = open_as(&rarely);
    fill(&main, 0..20);
    let master = Master::of(&main);
    let slave = Slave::on(Wire::Own, &copy, master.address, ask(&main));
    for upto in [40, 60] {
        fill(&main, upto - 20..upto);
        let end = main.end();
        eventually("it is on the slave's device", || master.slaves.positions_on_device() == [end]).await;
        assert!(copy.flushed().get() >= end.0);
    }
    slave.stop().await;
    // One that only says what it has written.
    let mut guest = Guest::of(Wire::Own, master.address).await;
    let end = main.end();
    guest.has(end.0, 0).await;
    eventually("it has it", || master.slaves.positions() == [end]).await;
    assert_eq!(master.slaves.positions_on_device(), [LogOffset(0)]);
    guest.has(end.0, end.0 - 1).await;
    eventually("some of it is flushed", || master.slaves.positions_on_device() == [LogOffset(end.0 - 1)]).await;
    for (flushed, reason) in [(end.0 + 1, "unsent"), (end.0 - 2, "back")] {
        let mut liar = Guest::of(Wire::Own, master.address).await;
        liar.has(end.0, end.0 - 1).await;
        liar.has(end.0, flushed).await;
        liar.is_closed().await;
        eventually(reason, || master.closed(reason) == 1).await;
    }
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slave_of_gantry_follows_a_master_that_only_has_the_plain_stream() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let (main, copy) = (open(dirs[0].path()), open(dirs[1].path()));
    fill(&main, 0..20);
    let master = Master::of(&main);
    let (options, none) = (FollowOptions::default(), Arc::new(|_: &[&str]| Ok(HashSet::new())));
    let slave = Slave::start(&copy, master.address, ask(&main), options, none, Some(member(1, None)));
    came_to(&copy, main.end()).await;
    eventually("the slave", || master.slaves.list().len() == 1).await;
    assert!(master.slaves.list()[0].peer.broker_id.is_none() && !slave.status.is_own());
    slave.stop().await;
    master.stop().await;
}
