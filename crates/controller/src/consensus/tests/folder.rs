//! A node's folder: who may open it, and what a crash leaves while a snapshot of the leader comes.

use disk::faults::{FaultDisk, Files};
use env::Random;
use openraft::storage::{RaftLogStorage, RaftLogStorageExt};
use openraft::{CommittedLeaderId, Entry, EntryPayload, LogId};

use super::suite::{member, open};
use super::*;
use crate::consensus::storage::StoredSnapshot;

#[tokio::test]
async fn a_folder_that_is_in_use_is_refused_and_its_node_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let node = started(alone(dir.path())).await;
    leads(&node).await;
    node.propose(name(1)).await.unwrap();
    // As the running one leaves it while it writes a snapshot of its journal.
    let unfinished = unsynced::journal_dir(dir.path()).join("7.tmp");
    std::fs::write(&unfinished, "half").unwrap();
    let text = refused(alone(dir.path())).await;
    let folder = dir.path().display();
    assert!(text.contains(&format!("{folder} is in use by another controller")), "{text}");
    assert!(unfinished.exists(), "the second start has changed the folder");
    // Also one that could not use the folder anyway.
    let text = refused(ConsensusOptions { group: "other".to_owned(), ..alone(dir.path()) }).await;
    assert!(text.contains("is in use"), "{text}");

    assert_eq!(node.propose(name(2)).await, Ok(2));
    node.stop().await;
    let again = started(alone(dir.path())).await;
    leads(&again).await;
    assert_eq!(all(&again), [name(1), name(2)]);
    again.stop().await;
}

#[tokio::test]
async fn a_node_alone_may_change_its_address_and_not_its_id() {
    let dir = tempfile::tempdir().unwrap();
    let at = |id: u64, address: &str| {
        ConsensusOptions::new("group", id, BTreeMap::from([(id, address.to_owned())]), dir.path())
    };
    for (count, address) in ["127.0.0.1:9", "10.0.0.7:9", "10.0.0.8:10"].into_iter().enumerate() {
        let node = started(at(1, address)).await;
        leads(&node).await;
        assert_eq!(node.propose(name(0)).await, Ok(count + 1));
        node.stop().await;
        let kept = Member { members: format!("1={address}"), ..member() };
        let found = Storage::open(dir.path(), &kept, Clock::real(), Arc::new(RealDisk)).unwrap();
        found.close();
    }
    let text = refused(at(2, "10.0.0.8:10")).await;
    assert!(text.contains("belongs to node 1"), "{text}");
    // The last address was kept, and a group of several is another one.
    let mut two = at(1, "10.0.0.8:10");
    two.peers.insert(2, "b:9".to_owned());
    let text = refused(two).await;
    assert!(text.contains("begun with the nodes 1=10.0.0.8:10, and"), "{text}");
    assert!(text.contains("the ids, masters and epochs of all brokers are lost then"), "{text}");
}

#[tokio::test]
async fn a_group_of_several_keeps_its_addresses() {
    let dir = tempfile::tempdir().unwrap();
    let with = |address: &str| {
        let peers = BTreeMap::from([(1, address.to_owned()), (2, "b:9".to_owned())]);
        ConsensusOptions::new("group", 1, peers, dir.path())
    };
    started(with("a:9")).await.stop().await;
    let text = refused(with("c:9")).await;
    assert!(text.contains("the configuration has 1=c:9,2=b:9"), "{text}");
}

/// The folder of a node alone that has made 20 changes and has a snapshot before the last of them.
async fn with_changes(dir: &Path, disk: &FaultDisk) -> Storage {
    let node = on_disk(ConsensusOptions { snapshot_every: 7, ..alone(dir) }, Arc::new(disk.clone())).await;
    leads(&node).await;
    for n in 1..=20 {
        node.propose(name(n)).await.unwrap();
    }
    let metrics = node.raft.metrics();
    until("a snapshot", || metrics.borrow().snapshot.is_some()).await;
    node.stop().await;
    let storage = Storage::open(dir, &member(), Clock::real(), Arc::new(disk.clone())).unwrap();
    let last = storage.clone().get_log_state().await.unwrap().last_log_id;
    assert!(storage.snapshot().unwrap().meta.last_log_id < last);
    storage
}

/// Ten entries behind the last one, as a leader has them in a snapshot.
async fn beyond(storage: &Storage) -> StoredSnapshot {
    let last = storage.clone().get_log_state().await.unwrap().last_log_id.unwrap();
    let place = LogId::new(last.leader_id, last.index + 10);
    let before = storage.snapshot().unwrap().meta;
    let meta = Meta { last_log_id: Some(place), snapshot_id: "of the leader".to_owned(), ..before };
    let ledger = Ledger { all: (1..=30).map(name).collect() };
    StoredSnapshot { meta, data: Arc::new(ledger.snapshot()) }
}

async fn all_is_on_the_device(storage: &Storage) {
    let position = storage.journal().position();
    storage.journal().mark_of(position, true).reached(position).await;
}

#[tokio::test]
async fn a_loss_of_power_before_the_snapshot_of_the_leader_is_stored_leaves_the_entries() {
    let dir = tempfile::tempdir().unwrap();
    let disk = FaultDisk::noting().keeping(Files::All);
    let mut storage = with_changes(dir.path(), &disk).await;
    let snapshot = beyond(&storage).await;
    let place = snapshot.meta.last_log_id.unwrap();

    // Raft has the snapshot installed by another task, and removes the entries meanwhile.
    storage.purge(place).await.unwrap();
    let state = storage.get_log_state().await.unwrap();
    assert_eq!((state.last_purged_log_id, state.last_log_id), (Some(place), Some(place)));
    all_is_on_the_device(&storage).await;
    for left in [image(&disk, dir.path(), None), copy(dir.path())] {
        let node = started(alone(left.path())).await;
        leads(&node).await;
        assert_eq!(all(&node), (1..=20).map(name).collect::<Vec<_>>());
        node.stop().await;
    }
    // What would leave a gap is not taken.
    let place = LogId::new(place.leader_id, place.index + 1);
    let entry = Entry { log_id: place, payload: EntryPayload::Blank };
    assert!(storage.blocking_append([entry.clone()]).await.is_err());

    storage.put_snapshot(snapshot.clone()).await.unwrap();
    let dice = Random::seeded(7);
    for left in [image(&disk, dir.path(), None), image(&disk, dir.path(), Some(&dice))] {
        let node = started(alone(left.path())).await;
        leads(&node).await;
        assert_eq!(all(&node), (1..=30).map(name).collect::<Vec<_>>());
        assert_eq!(node.raft.metrics().borrow().purged, snapshot.meta.last_log_id);
        node.stop().await;
    }
    storage.blocking_append([entry]).await.unwrap();
}

#[tokio::test]
async fn an_older_snapshot_does_not_replace_a_newer_one() {
    let dir = tempfile::tempdir().unwrap();
    let disk = FaultDisk::default();
    let mut storage = with_changes(dir.path(), &disk).await;
    let older = storage.snapshot().unwrap();
    let newer = beyond(&storage).await;
    storage.put_snapshot(newer.clone()).await.unwrap();
    storage.purge(newer.meta.last_log_id.unwrap()).await.unwrap();
    storage.put_snapshot(older).await.unwrap();
    storage.close();
    assert_eq!(open(dir.path()).snapshot().unwrap().meta, newer.meta);
}

#[tokio::test]
async fn entries_that_no_snapshot_has_are_missed_at_start() {
    let dir = tempfile::tempdir().unwrap();
    let storage = open(dir.path());
    let purged = format::encode(&LogId::new(CommittedLeaderId::<u64>::new(3, 1), 9)).unwrap();
    storage.journal().put(journal::TableId(2), b"purged", &purged);
    storage.close();
    let text = refused(alone(dir.path())).await;
    assert!(
        text.contains("the entries up to 9 were removed, and no snapshot has them; move the folder away"),
        "{text}"
    );
}
