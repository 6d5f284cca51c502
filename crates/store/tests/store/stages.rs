//! Stages: what the mode asks for is what consumers may see. Replicas are played by hand.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use protocol::LogOffset;
use store::{FlushMode, ReadStatus, RecordAt, Stage, Stages, StoreOptions};

use crate::support::*;

#[test]
fn with_replicas_what_enough_of_them_have_is_shown_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    let first = append(&store, TOPIC, 0, b"one");
    assert_eq!((store.stages(), store.replicated().get()), (Stages::WRITTEN, 0));
    store.wait_for_replicas(true);
    assert_eq!(
        (store.stages(), store.confirmed().get()),
        (Stages::WRITTEN.with(Stage::Confirmed), first.end.0),
        "what was shown stays"
    );
    let (second, third) = (append(&store, TOPIC, 0, b"two"), append(&store, TOPIC, 0, b"three"));
    let queue = store.existing_queue(TOPIC, 0).unwrap();
    assert!(store.flushed().wait_until(third.end.0, deadline()));
    assert_eq!((store.confirmed().get(), store.visible_end(&queue)), (first.end.0, 1));
    // A replica that has it, and asks whether we do, is told.
    assert!(store.record_at(third.at).unwrap().is_none());
    assert!(store.written_record_at(third.at).unwrap().is_some());
    assert!(matches!(store.written_record_at_cold(third.at), Ok(RecordAt::Record(_))));

    let mut waits = [second.end, third.end].map(|end| Box::pin(store.mark(Stage::Confirmed).reached(end.0)));
    let mut are_woken = || waits.each_mut().map(|wait| wait.as_mut().poll(&mut Context::from_waker(Waker::noop())));
    assert_eq!(are_woken(), [Poll::Pending, Poll::Pending]);
    assert_eq!(store.replicated_to(second.end), Ok(()));
    assert_eq!(are_woken(), [Poll::Ready(()), Poll::Pending]);
    let (seen, _) = read(&store, TOPIC, 0, 0, &limits(32));
    assert_eq!((seen.status, seen.count, seen.max), (ReadStatus::Found, 2, 2));

    // A replica that says less than before, or more than there is, changes nothing.
    assert_eq!(store.replicated_to(first.end), Ok(()));
    assert_eq!(store.replicated_to(LogOffset(third.end.0 + 1)), Err(third.end));
    assert_eq!((store.replicated().get(), store.confirmed().get()), (second.end.0, second.end.0));

    store.wait_for_replicas(false);
    assert_eq!((store.stages(), store.confirmed().get()), (Stages::WRITTEN, third.end.0));
    assert_eq!(read_all(&store, TOPIC, 0).len(), 3);
    drop(waits);
    store.close().unwrap();
}

#[test]
fn with_sync_flush_and_replicas_the_later_of_both_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let disk = fault_disk();
    let (store, _) = open_on(&disk, StoreOptions { flush: FlushMode::Sync, ..options(dir.path()) });
    store.wait_for_replicas(true);
    let first = append(&store, TOPIC, 0, b"one");
    assert!(store.flushed().wait_until(first.end.0, deadline()));
    let mut wait = pin!(store.confirmed().reached(first.end.0));
    assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    store.replicated_to(first.end).unwrap();
    assert!(wait.poll(&mut Context::from_waker(Waker::noop())).is_ready());

    let resumes = until_dropped(&disk, STALLED);
    let second = append(&store, TOPIC, 0, b"two");
    store.replicated_to(second.end).unwrap();
    assert_eq!(store.confirmed().get(), first.end.0);
    drop(resumes);
    // The store raises what is confirmed before it wakes those that wait for the flush.
    assert!(store.flushed().wait_until(second.end.0, deadline()));
    assert_eq!(store.confirmed().get(), second.end.0);
    store.close().unwrap();
}

#[test]
fn what_consumers_could_see_stays_when_the_device_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let disk = fault_disk();
    let (store, _) = open_on(&disk, options(dir.path()));
    let resumes = until_dropped(&disk, STALLED);
    let first = append(&store, TOPIC, 0, b"one");
    assert_eq!(store.confirmed().get(), first.end.0);
    store.set_flush(FlushMode::Sync);
    let second = append(&store, TOPIC, 0, b"two");
    assert!(store.flushed().get() < first.end.0);
    let (seen, _) = read(&store, TOPIC, 0, 0, &limits(32));
    assert_eq!((store.confirmed().get(), seen.count, seen.max), (first.end.0, 1, 1));
    drop(resumes);
    assert!(store.confirmed().wait_until(second.end.0, deadline()));
    assert_eq!(read_all(&store, TOPIC, 0).len(), 2);
    store.close().unwrap();
}

#[test]
fn copies_come_beside_the_device_and_hide_nothing_from_consumers() {
    let dir = tempfile::tempdir().unwrap();
    let disk = fault_disk();
    let (store, _) = open_on(&disk, options(dir.path()));
    let resumes = until_dropped(&disk, STALLED);
    let (first, second) = (append(&store, TOPIC, 0, b"one"), append(&store, TOPIC, 0, b"two"));
    let reached = |stage| store.mark(stage).get();
    assert_eq!(Stage::COPIED.map(reached), [0, 0, 0]);
    assert_eq!(read_all(&store, TOPIC, 0).len(), 2, "no slave has them, and all see them");

    let mut wait = pin!(store.mark(Stage::CopiedByOne).reached(first.end.0));
    assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    store.copied_to(Stage::CopiedByOne, first.end);
    assert!(wait.poll(&mut Context::from_waker(Waker::noop())).is_ready());
    assert!(store.flushed().get() < first.end.0, "a slave has it before the device has");
    // It never goes back, and never beyond the log.
    store.copied_to(Stage::CopiedByOne, LogOffset(1));
    store.copied_to(Stage::CopiedByAll, LogOffset(u64::MAX));
    assert_eq!(Stage::COPIED.map(reached), [0, first.end.0, second.end.0]);
    // Of the device nobody else says anything.
    store.copied_to(Stage::Flushed, second.end);
    assert!(store.flushed().get() < first.end.0);
    drop(resumes);
    store.close().unwrap();
}
