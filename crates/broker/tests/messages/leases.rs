//! Leases of popped messages over the end of a process. The clock stands still but for what a test moves it, so a slow machine ends no lease.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use disk::RealDisk;
use env::{Clock, ManualClock};
use journal::{Journal, JournalOptions, TableId};
use protocol::body::ConsumerOffsets;
use protocol::code::request;
use protocol::fastjson;
use protocol::request::PopMessage;

use super::popping::{ack, change, from, pop, pop_any, standing};
use super::support::{Running, Setup, start, start_on};

/// What has come again so far, when everything has that is to by now.
async fn come_again(broker: &Running, hand: &ManualClock) -> Vec<String> {
    broker.put("T", 0, "", "last").await;
    let last = pop(broker, &from("T", 100)).await;
    assert_eq!(last.bodies(), ["last"]);
    hand.advance(Duration::from_millis(100));
    // Leases are given up in the order of their ends, so nothing comes behind this one.
    assert_eq!(pop_any(broker, &from("T", 60_000)).await.bodies(), ["last"]);
    let all = broker.all("%RETRY%CG_T", 0).await;
    all.into_iter().map(|message| message.body).filter(|body| body != "last").collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_and_acknowledgements_survive_a_kill() {
    let (setup, hand) = standing();
    let broker = start(setup.clone()).await;
    for number in 0..6 {
        broker.put("T", 0, "", &number.to_string()).await;
    }
    let first = pop(&broker, &PopMessage { max_msg_nums: 4, queue_id: 0, ..from("T", 300) }).await;
    assert_eq!(first.bodies(), ["0", "1", "2", "3"]);
    assert_eq!(first.field("restNum"), "2");
    for place in [0, 2] {
        assert_eq!(ack(&broker, "T", &first.handle(place)).await, 0);
    }
    let image = broker.image();
    broker.stop().await;

    let broker = start_on(setup.clone(), image).await;
    let rest = pop(&broker, &from("T", 60_000)).await;
    assert_eq!(rest.bodies(), ["4", "5"], "the others are on lease still");
    assert_eq!(ack(&broker, "T", &first.handle(1)).await, 0, "its lease lives on");
    hand.advance(Duration::from_millis(300));
    let again = pop_any(&broker, &from("T", 60_000)).await;
    assert_eq!(again.bodies(), ["3"]);

    // The message came again and its lease may not be settled: a start does not bring it a second time.
    let image = broker.image();
    broker.stop().await;
    let broker = start_on(setup, image).await;
    assert_eq!(ack(&broker, "T", &again.handle(0)).await, 0);
    assert_eq!(come_again(&broker, &hand).await, ["3"]);
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slave_hears_of_the_first_message_that_is_on_lease() {
    let (setup, _hand) = standing();
    let broker = start(setup).await;
    for number in 0..4 {
        broker.put("T", 0, "", &number.to_string()).await;
    }
    let popped = pop(&broker, &PopMessage { max_msg_nums: 4, queue_id: 0, ..from("T", 60_000) }).await;
    assert_eq!(popped.bodies(), ["0", "1", "2", "3"]);
    // What is acknowledged, and where a slave that becomes a master would go on.
    for (acknowledged, goes_on) in [(0, 1), (2, 1), (1, 3), (3, 4)] {
        assert_eq!(ack(&broker, "T", &popped.handle(acknowledged)).await, 0);
        let answer = broker.call(request::GET_ALL_CONSUMER_OFFSET, &(), "").await;
        let offsets: ConsumerOffsets = fastjson::from_slice(&answer.body).unwrap();
        assert_eq!(offsets.offset_table["T@CG"][&0], goes_on, "after {acknowledged}");
    }
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clean_stop_hands_leases_over_and_the_next_start_keeps_them() {
    let (setup, hand) = standing();
    let broker = start(setup.clone()).await;
    for number in 0..3 {
        broker.put("T", 0, "", &number.to_string()).await;
    }
    let first = pop(&broker, &from("T", 400)).await;
    assert_eq!(ack(&broker, "T", &first.handle(1)).await, 0);
    let dir = broker.stop().await;

    let broker = start_on(setup, dir).await;
    let mut handed = Vec::new();
    for queue_id in 0..8 {
        handed.extend(broker.all("rmq_sys_REVIVE_LOG_DefaultCluster", queue_id).await);
    }
    let [point] = handed.as_slice() else { panic!("{} check-points", handed.len()) };
    assert_eq!(point.property("TAGS"), Some("ck"));
    let pop_time = first.field("popTime");
    for part in [r#""bm":2,"bn":"broker-a","c":"CG","d":[0,1,2],"it":400,"n":3"#, &format!(r#""pt":{pop_time},"q":0"#)]
    {
        assert!(point.body.contains(part), "{} lacks {part}", point.body);
    }
    assert_eq!(ack(&broker, "T", &first.handle(0)).await, 0, "the lease lives on");
    hand.advance(Duration::from_millis(400));
    let again = pop_any(&broker, &from("T", 60_000)).await;
    assert_eq!(again.bodies(), ["2"]);
    assert_eq!(come_again(&broker, &hand).await, ["2"], "once");
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_acknowledged_after_a_clean_stop_does_not_come_again_after_a_kill() {
    let (setup, hand) = standing();
    // Offsets of groups are written down when nobody waits for them any more.
    let setup = Setup { more: &[("journalOffsetsMillis", "10000")], ..setup };
    let broker = start(setup.clone()).await;
    for number in 0..2 {
        broker.put("T", 0, "", &number.to_string()).await;
    }
    let first = pop(&broker, &from("T", 400)).await;
    assert_eq!(first.bodies(), ["0", "1"]);
    // The stop hands the lease to whoever starts next.
    let broker = start_on(setup.clone(), broker.stop().await).await;
    assert_eq!(ack(&broker, "T", &first.handle(0)).await, 0);
    assert_eq!(ack(&broker, "T", &first.handle(1)).await, 0);
    let image = broker.image();
    broker.stop().await;
    let broker = start_on(setup, image).await;
    hand.advance(Duration::from_secs(10));
    assert_eq!(come_again(&broker, &hand).await, Vec::<String>::new());
    broker.stop().await;
}

/// Offsets of messages on lease in a journal, and how far the group has come; nothing where there is no whole journal yet.
fn leased(journal: &[u8]) -> (Vec<u64>, u64) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(FIRST_JOURNAL), journal).unwrap();
    let journal = Journal::open(dir.path(), JournalOptions::default(), Clock::real(), Arc::new(RealDisk)).unwrap();
    let (mut starts, mut committed) = (Vec::new(), 0);
    journal.load(TableId(21), |lease, _| starts.push(u64::from_be_bytes(lease[12..].try_into().unwrap())));
    journal.load(TableId(6), |key, value| {
        if key.starts_with(b"T@CG\0") {
            committed = u64::from_le_bytes(value[..8].try_into().unwrap());
        }
    });
    (starts, committed)
}

const FIRST_JOURNAL: &str = "00000000000000000000.journal";

/// A message that a start finds both on lease and ahead of its group would be given to two: popped anew and acknowledged, it would come again
/// when the lease is over, of which nobody was told.
#[tokio::test(flavor = "multi_thread")]
async fn whatever_of_the_journal_survives_each_message_is_on_one_lease_or_ahead_of_its_group() {
    let broker = start(Setup::default()).await;
    for number in 0..100 {
        broker.put("T", 0, "", &number.to_string()).await;
    }
    for number in 0..100 {
        let popped = pop(&broker, &PopMessage { max_msg_nums: 1, queue_id: 0, ..from("T", 60_000) }).await;
        if number % 3 == 0 {
            assert_eq!(change(&broker, "T", &popped.handle(0), 70_000).await.0, 0);
        }
    }
    let image = broker.image();
    broker.stop().await;
    let journal = std::fs::read(image.path().join("journal").join(FIRST_JOURNAL)).unwrap();
    let mut last = 0;
    for end in bundle_ends(&journal) {
        // As a crash leaves it: with the room that was made ahead.
        let mut image = journal[..end].to_vec();
        image.resize(end.max(journal.len().min(end + 4_096)), 0);
        let (starts, committed) = leased(&image);
        assert_eq!(starts.iter().copied().collect::<BTreeSet<_>>(), (0..committed).collect(), "at byte {end}");
        assert_eq!(starts.len() as u64, committed, "at byte {end}");
        last = committed;
    }
    assert_eq!(last, 100);
    assert!((100..1_000).contains(&bundle_ends(&journal).count()));
}

/// Where a crash of the process may have ended a journal. A header has 40 bytes, of which those from 8 to 12 say how many follow it;
/// behind the last bundle there may be zeros, the room that was made ahead.
fn bundle_ends(journal: &[u8]) -> impl Iterator<Item = usize> {
    let mut end = 0;
    std::iter::from_fn(move || {
        let header = journal.get(end..end + 40).filter(|header| header.iter().any(|byte| *byte != 0))?;
        end += 40 + u32::from_le_bytes(header[8..12].try_into().unwrap()) as usize;
        Some(end)
    })
}

const DAY_MS: i64 = 86_400_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_of_a_time_when_the_clock_was_a_day_ahead_ends_in_time() {
    for is_order in [false, true] {
        let (setup, hand) = standing();
        let broker = start(setup.clone()).await;
        for number in 0..2 {
            broker.put("T", 0, "", &number.to_string()).await;
        }
        let order = PopMessage { order: is_order, queue_id: 0, ..from("T", 60_000) };
        hand.set_by(DAY_MS);
        let first = pop(&broker, &PopMessage { max_msg_nums: 1, ..order.clone() }).await;
        assert_eq!(first.bodies(), ["0"]);
        let image = broker.image();
        hand.set_by(-DAY_MS);
        // Here, after a crash, and after a stop.
        let crashed = start_on(setup.clone(), image).await;
        hand.advance(Duration::from_secs(30));
        for broker in [&broker, &crashed] {
            let others = pop(broker, &order).await;
            assert_eq!(others.bodies(), if is_order { [""; 0].to_vec() } else { vec!["1"] }, "in order: {is_order}");
            for place in 0..others.messages.len() {
                assert_eq!(ack(broker, "T", &others.handle(place)).await, 0);
            }
        }
        let stopped = start_on(setup, broker.stop().await).await;
        // A start cannot tell how long it is since the last pop.
        hand.advance(Duration::from_secs(60));
        for broker in [&crashed, &stopped] {
            let again = pop_any(broker, &order).await;
            assert_eq!(again.bodies(), if is_order { vec!["0", "1"] } else { vec!["0"] }, "in order: {is_order}");
        }
    }
}

// On one thread no task of a start runs before the test waits for something.
#[tokio::test]
async fn a_lease_goes_back_with_the_clock_at_a_start_however_late_its_tasks_run() {
    let (setup, hand) = standing();
    let broker = start(setup.clone()).await;
    broker.put("T", 0, "", "0").await;
    let order = PopMessage { queue_id: 0, ..from("T", 60_000) };
    hand.set_by(DAY_MS);
    assert_eq!(pop(&broker, &order).await.bodies(), ["0"]);
    let image = broker.image();
    hand.set_by(-DAY_MS);
    let crashed = start_on(setup, image).await;
    hand.advance(Duration::from_secs(60));
    assert_eq!(pop_any(&crashed, &order).await.bodies(), ["0"]);
}
