//! One node: what is there after a stop, a kill, and a loss of power.

use disk::faults::{Call, Fault, FaultDisk, Files, How};
use env::Random;
use openraft::storage::RaftLogStorage;
use openraft::{CommittedLeaderId, LogId};

use super::suite::open;
use super::*;

#[tokio::test]
async fn a_node_alone_leads_and_has_its_state_after_a_stop() {
    let dir = tempfile::tempdir().unwrap();
    let node = started(alone(dir.path())).await;
    leads(&node).await;
    for n in 1..=5 {
        assert_eq!(node.propose(name(n)).await, Ok(n as usize));
    }
    let term = node.term();
    node.stop().await;
    // As a process leaves it that ended itself for a sync that failed.
    std::fs::write(disk::Unsynced::path(dir.path()), "failed").unwrap();
    assert_eq!(node.propose(name(6)).await, Err(ProposeError::Stopped));
    assert_eq!(node.confirm_leader().await, Err(ProposeError::Stopped));
    until("nobody leads", || node.leader().is_none()).await;

    let node = started(alone(dir.path())).await;
    assert!(!disk::Unsynced::path(dir.path()).exists());
    leads(&node).await;
    assert_eq!(all(&node), (1..=5).map(name).collect::<Vec<_>>());
    assert!(node.term() >= term);
    assert_eq!(node.propose(name(6)).await, Ok(6));
    node.stop().await;
}

#[tokio::test]
async fn a_kill_at_any_moment_leaves_what_was_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let node = started(alone(dir.path())).await;
    leads(&node).await;
    for n in 1..=10 {
        node.propose(name(n)).await.unwrap();
        // The process ends here, for all that the copy knows.
        let killed = copy(dir.path());
        let again = started(alone(killed.path())).await;
        leads(&again).await;
        assert_eq!(all(&again), (1..=n).map(name).collect::<Vec<_>>());
        again.stop().await;
    }
    drop(node);
}

#[tokio::test]
async fn a_loss_of_power_at_any_moment_leaves_what_was_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let disk = FaultDisk::noting().keeping(Files::All);
    let node = on_disk(ConsensusOptions { snapshot_every: 7, ..alone(dir.path()) }, Arc::new(disk.clone())).await;
    leads(&node).await;
    let dice = Random::seeded(7);
    for n in 1..=20 {
        node.propose(name(n)).await.unwrap();
        for image in [image(&disk, dir.path(), None), image(&disk, dir.path(), Some(&dice))] {
            let again = started(alone(image.path())).await;
            leads(&again).await;
            assert_eq!(all(&again), (1..=n).map(name).collect::<Vec<_>>());
            again.stop().await;
        }
    }
    node.stop().await;
}

#[tokio::test]
async fn a_vote_is_on_the_device_before_it_is_given() {
    let dir = tempfile::tempdir().unwrap();
    let disk = FaultDisk::noting().keeping(Files::All);
    let peers: BTreeMap<u64, String> = (1..=3).map(|id| (id, format!("127.0.0.1:{id}"))).collect();
    let options = ConsensusOptions::new("group", 1, peers.clone(), dir.path());
    let node = on_disk(options, Arc::new(disk.clone())).await;
    let candidate = Member { group: "group".to_owned(), id: 2, members: member::text(&peers) };
    for term in 1_000..1_010 {
        let vote = Vote::new(term, 2);
        let asked = VoteRequest::new(vote, Some(LogId::new(CommittedLeaderId::new(term, 2), 9)));
        let answer = node.handle(request::RAFT_VOTE, &candidate.write(1, &asked).unwrap()).await.unwrap();
        let answer: openraft::raft::VoteResponse<u64> = format::decode(&answer).unwrap();
        assert!(answer.vote_granted);
        let image = image(&disk, dir.path(), None);
        let member = Member { id: 1, ..candidate.clone() };
        let mut found = Storage::open(image.path(), &member, Clock::real(), Arc::new(RealDisk)).unwrap();
        assert_eq!(found.read_vote().await.unwrap(), Some(vote));
    }
    node.stop().await;
}

#[tokio::test]
async fn a_full_disk_acknowledges_nothing_and_goes_on_when_there_is_room() {
    const FULL: Fault = Fault::new(&[Call::Write, Call::Allocate], Files::All, How::HalfDone);
    let dir = tempfile::tempdir().unwrap();
    let disk = FaultDisk::default();
    let options = ConsensusOptions { propose_timeout: Duration::from_millis(200), ..alone(dir.path()) };
    let node = on_disk(options, Arc::new(disk.clone())).await;
    leads(&node).await;
    disk.set(FULL, true);
    // Room that was made before takes some.
    let long = "x".repeat(30_000);
    let mut acknowledged = 0;
    let late = loop {
        match node.propose(long.clone()).await {
            Ok(number) => {
                acknowledged = number;
                assert!(acknowledged < 100, "a full disk takes all");
            }
            Err(error) => break error,
        }
    };
    assert_eq!(late, ProposeError::Late);
    assert_eq!(all(&node).len(), acknowledged);
    disk.set(FULL, false);
    // The late one is made after all.
    until("it is written", || all(&node).len() > acknowledged).await;
    leads(&node).await;
    assert_eq!(node.propose("after".to_owned()).await, Ok(acknowledged + 2));
    node.stop().await;
}

#[tokio::test]
async fn snapshots_keep_the_log_short_and_the_state_whole() {
    let dir = tempfile::tempdir().unwrap();
    let options = ConsensusOptions { snapshot_every: 10, ..alone(dir.path()) };
    let node = started(options.clone()).await;
    leads(&node).await;
    for n in 1..=95 {
        node.propose(name(n)).await.unwrap();
    }
    let metrics = node.raft.metrics();
    until("entries are purged", || metrics.borrow().purged.is_some_and(|purged| purged.index >= 70)).await;
    node.stop().await;
    let found = open(dir.path());
    let entries = found.clone().get_log_state().await.unwrap();
    assert!(entries.last_purged_log_id.unwrap().index >= 70 && found.snapshot().is_some());
    drop(found);
    let node = started(options).await;
    leads(&node).await;
    assert_eq!(all(&node), (1..=95).map(name).collect::<Vec<_>>());
    node.stop().await;
}

#[tokio::test]
async fn the_journal_begins_anew_with_all_rows() {
    let dir = tempfile::tempdir().unwrap();
    let node = started(ConsensusOptions { snapshot_every: 10, ..alone(dir.path()) }).await;
    leads(&node).await;
    for n in 1..=33 {
        node.propose(name(n)).await.unwrap();
    }
    let journal = node.storage.journal();
    journal.snapshot();
    until("a snapshot of the journal", || journal.stats().snapshots == 1).await;
    node.propose(name(34)).await.unwrap();
    node.stop().await;
    let node = started(alone(dir.path())).await;
    leads(&node).await;
    assert_eq!(all(&node), (1..=34).map(name).collect::<Vec<_>>());
    node.stop().await;
}

#[tokio::test]
async fn a_folder_of_another_node_or_group_or_set_of_peers_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let node = started(alone(dir.path())).await;
    node.stop().await;
    let two: BTreeMap<u64, String> = BTreeMap::from([(1, "127.0.0.1:9".to_owned()), (2, "b:9".to_owned())]);
    let text = refused(ConsensusOptions { peers: two.clone(), ..alone(dir.path()) }).await;
    assert!(text.contains("1=127.0.0.1:9, and the configuration has 1=127.0.0.1:9,2=b:9"), "{text}");
    let text = refused(ConsensusOptions { peers: two, id: 2, ..alone(dir.path()) }).await;
    assert!(text.contains("belongs to node 1 of the controller group group, and this is node 2"), "{text}");
    let text = refused(ConsensusOptions { group: "other".to_owned(), ..alone(dir.path()) }).await;
    assert!(text.contains("this is node 1 of other"), "{text}");
}

#[tokio::test]
async fn options_that_cannot_work_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let of = |change: fn(&mut ConsensusOptions)| {
        let mut options = alone(dir.path());
        change(&mut options);
        refused(options)
    };
    for (text, part) in [
        (of(|options| options.id = 2).await, "id of the controller is 2; it must be one of the ids in peers"),
        (of(|options| options.group.clear()).await, "group of the controller is ; it must be 1 to 127 bytes"),
        (of(|options| options.peers.clear()).await, "it must be 1 to 9 nodes"),
        (of(|options| _ = options.peers.insert(1, "host".to_owned())).await, "is host; it must be host:port"),
        (of(|options| _ = options.peers.insert(1, "a,2=b:1".to_owned())).await, "it must be host:port"),
        (of(|options| options.heartbeat = Duration::from_secs(1)).await, "1 ms <= heartbeat < start < end"),
        (of(|options| options.snapshot_every = 0).await, "snapshot_every of the controller is 0"),
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[tokio::test]
async fn a_command_that_is_too_long_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let node = started(alone(dir.path())).await;
    leads(&node).await;
    let bytes = COMMAND_BYTES_MAX + 1;
    assert_eq!(node.propose("x".repeat(bytes - 2)).await, Err(ProposeError::TooLong { bytes }));
    assert_eq!(node.propose("x".repeat(bytes - 3)).await, Ok(1));
    node.stop().await;
}

#[tokio::test]
async fn rows_that_are_not_understood_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let storage = open(dir.path());
    storage.journal().put(journal::TableId(2), b"vote", br#"{"v":2,"body":{}}"#);
    storage.close();
    let text = refused(alone(dir.path())).await;
    assert!(text.contains("vote cannot be read: it has format version 2"), "{text}");
}

/// Writes what it does not read: JSON has no such number.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Number(f64);

#[derive(Debug)]
struct Sum(f64);

impl Machine for Sum {
    type Command = Number;
    type Reply = ();

    fn apply(&mut self, command: &Number) {
        self.0 += command.0;
    }

    fn snapshot(&self) -> Vec<u8> {
        Vec::new()
    }

    fn restore(_: &[u8]) -> Result<Sum, RestoreError> {
        Ok(Sum(0.0))
    }
}

#[tokio::test]
async fn a_command_that_could_not_be_applied_is_not_proposed() {
    let dir = tempfile::tempdir().unwrap();
    let node =
        Consensus::start(alone(dir.path()), Sum(0.0), client(), Clock::real(), Arc::new(RealDisk)).await.unwrap();
    until("it leads", || node.is_leader()).await;
    assert!(matches!(node.propose(Number(f64::NAN)).await, Err(ProposeError::Unreadable(_))));
    assert_eq!(node.propose(Number(2.0)).await, Ok(()));
    assert!(node.read(|sum| sum.0 > 1.0));
    node.stop().await;
}

/// The changes of the leader end, and nobody leads.
async fn ends(node: &Node) {
    let mut changes = node.leader_changes();
    let end = async { while changes.changed().await.is_ok() {} };
    tokio::time::timeout(DEADLINE, end).await.unwrap();
    assert_eq!((changes.borrow().leader, node.is_leader()), (None, false));
    assert_eq!(node.propose(name(2)).await, Err(ProposeError::Stopped));
    assert_eq!(node.confirm_leader().await, Err(ProposeError::Stopped));
}

#[tokio::test]
async fn a_storage_that_fails_ends_the_changes_of_the_leader() {
    let dir = tempfile::tempdir().unwrap();
    let node = started(alone(dir.path())).await;
    leads(&node).await;
    node.storage.give_up();
    // Whether the device takes it first is left to chance.
    let late = async { while node.propose(name(1)).await != Err(ProposeError::Late) {} };
    tokio::time::timeout(DEADLINE, late).await.unwrap();
    ends(&node).await;
    node.stop().await;
}

#[tokio::test]
async fn a_machine_that_fails_ends_the_changes_of_the_leader() {
    let dir = tempfile::tempdir().unwrap();
    let node = started(alone(dir.path())).await;
    leads(&node).await;
    assert!(node.raft.client_write("no JSON".to_owned()).await.is_err());
    ends(&node).await;
    node.stop().await;
}

#[tokio::test]
async fn raft_that_ends_without_a_word_leaves_no_leader() {
    let (raft, metrics) = watch::channel(RaftMetrics { current_leader: Some(2), ..RaftMetrics::new_initial(1) });
    let (sender, mut changes) = watch::channel(Leadership::default());
    tokio::spawn(follow_leadership(metrics, Duration::from_secs(1), sender));
    changes.wait_for(|known| known.leader == Some(2)).await.unwrap();
    // As a panic of its task does.
    drop(raft);
    changes.wait_for(|known| known.leader.is_none()).await.unwrap();
    assert!(changes.changed().await.is_err());
}
