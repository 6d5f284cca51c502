//! Three nodes in one process, over connections of the machine.

use std::collections::BTreeSet;

use bytes::Bytes;
use disk::faults::Files;
use net::{Burst, Connection, Listener, ListenerOptions, Outgoing, Port, Service};
use parking_lot::Mutex;
use protocol::code::ResponseCode;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::*;

/// Pairs of sender and receiver between which nothing arrives.
type Cuts = Arc<Mutex<BTreeSet<(u64, u64)>>>;

/// Answers what peers ask, as the controller's server does.
struct Door {
    node: Arc<Node>,
    cuts: Cuts,
}

fn sender(body: &Bytes) -> u64 {
    let (line, _) = format::split(body);
    let message: serde_json::Value = serde_json::from_slice(line).unwrap();
    message["body"]["from"]["id"].as_u64().unwrap()
}

impl Service for Door {
    type Session = ();
    type Work = ();

    fn open(&self, _: &Connection<()>) {}

    async fn serve(&self, (): &mut (), burst: &mut Burst<'_>, out: &mut Outgoing) {
        while let Some(request) = burst.next() {
            let (to, code, body) = (request.reply_to(), request.header.code, request.body.clone());
            let from = sender(&body);
            let is_cut = |from, to| self.cuts.lock().contains(&(from, to));
            if is_cut(from, self.node.id()) {
                continue;
            }
            let answer = self.node.handle(code, &body).await;
            if is_cut(self.node.id(), from) {
                continue;
            }
            match answer {
                Ok(body) => out.reply_owned(to, ResponseCode::Success, None, &(), body),
                Err(error) => out.reply(to, ResponseCode::SystemError, Some(&error.to_string()), &(), &[]),
            }
        }
    }

    async fn resume(&self, (): &mut (), (): (), _: &mut Outgoing) {}

    fn close(&self, (): ()) {}
}

struct Place {
    address: SocketAddr,
    dir: TempDir,
    disk: FaultDisk,
    /// While no node is there: connections are refused.
    port: Option<Port>,
    running: Option<Running>,
}

struct Running {
    node: Arc<Node>,
    end: oneshot::Sender<()>,
    listening: JoinHandle<()>,
}

/// A disk of which it is known what a loss of power leaves.
fn kept() -> FaultDisk {
    FaultDisk::noting().keeping(Files::All)
}

struct Group {
    places: BTreeMap<u64, Place>,
    cuts: Cuts,
    /// What differs from the defaults.
    change: fn(&mut ConsensusOptions),
    proposed: AtomicU64,
    /// In their order.
    acknowledged: Vec<String>,
}

impl Group {
    /// Three nodes; none runs.
    fn of_three(change: fn(&mut ConsensusOptions)) -> Group {
        let place = |id| {
            let port = Port::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
            let (address, port) = (port.local_addr(), Some(port));
            (id, Place { address, dir: tempfile::tempdir().unwrap(), disk: kept(), port, running: None })
        };
        let places = (1..=3).map(place).collect();
        Group { places, cuts: Cuts::default(), change, proposed: AtomicU64::new(0), acknowledged: Vec::new() }
    }

    async fn running(change: fn(&mut ConsensusOptions)) -> Group {
        let mut group = Group::of_three(change);
        for id in 1..=3 {
            group.start(id).await;
        }
        group
    }

    fn options(&self, id: u64) -> ConsensusOptions {
        let peers = self.places.iter().map(|(id, place)| (*id, place.address.to_string())).collect();
        let mut options = ConsensusOptions::new("group", id, peers, self.places[&id].dir.path());
        (self.change)(&mut options);
        options
    }

    async fn start(&mut self, id: u64) {
        let node = on_disk(self.options(id), Arc::new(self.places[&id].disk.clone())).await;
        let door = Door { node: Arc::clone(&node), cuts: Arc::clone(&self.cuts) };
        let place = self.places.get_mut(&id).unwrap();
        let options = ListenerOptions { tls: None, ..ListenerOptions::default() };
        let listener = Listener::on(place.port.take().unwrap(), options, Arc::new(door)).unwrap();
        let (end, ended) = oneshot::channel();
        let listening = tokio::spawn(listener.run(async { _ = ended.await }));
        place.running = Some(Running { node, end, listening });
    }

    async fn stop(&mut self, id: u64) {
        let place = self.places.get_mut(&id).unwrap();
        let Running { node, end, listening } = place.running.take().unwrap();
        end.send(()).unwrap();
        listening.await.unwrap();
        place.port = Some(Port::bind(place.address).unwrap());
        node.stop().await;
    }

    async fn stop_all(&mut self) {
        for id in 1..=3 {
            if self.places[&id].running.is_some() {
                self.stop(id).await;
            }
        }
    }

    /// A node that does not run loses its folder.
    fn empty(&mut self, id: u64) {
        let place = self.places.get_mut(&id).unwrap();
        (place.dir, place.disk) = (tempfile::tempdir().unwrap(), kept());
    }

    fn node(&self, id: u64) -> &Arc<Node> {
        &self.places[&id].running.as_ref().unwrap().node
    }

    fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.places.values().filter_map(|place| place.running.as_ref()).map(|running| &running.node)
    }

    /// Power is lost at some nodes at once: each starts again with what its device has.
    async fn lose_power(&mut self, ids: &[u64], dice: &Random) {
        for id in ids {
            // What it says from now on nobody hears.
            self.isolate(*id);
        }
        for id in ids {
            let place = &self.places[id];
            let left = image(&place.disk, place.dir.path(), Some(dice));
            self.stop(*id).await;
            if let Some(place) = self.places.get_mut(id) {
                (place.dir, place.disk) = (left, kept());
            }
        }
        self.cuts.lock().clear();
        for id in ids {
            self.start(*id).await;
        }
    }

    fn isolate(&self, id: u64) {
        let others = (1..=3).filter(|other| *other != id);
        self.cuts.lock().extend(others.flat_map(|other| [(id, other), (other, id)]));
    }

    /// The node that leads, when there is one among `nodes`.
    async fn leader_of(&self, nodes: &[u64]) -> u64 {
        until("a leader", || nodes.iter().any(|id| self.node(*id).is_leader())).await;
        *nodes.iter().find(|id| self.node(**id).is_leader()).unwrap()
    }

    /// Proposes a new command to the leader among `nodes`, again until one is acknowledged.
    async fn propose_to(&mut self, nodes: &[u64]) {
        let deadline = StdInstant::now() + DEADLINE;
        loop {
            assert!(StdInstant::now() < deadline, "nothing is acknowledged");
            let leader = self.leader_of(nodes).await;
            // One that is late may be made: so each is another one.
            let command = name(self.proposed.fetch_add(1, Ordering::Relaxed));
            if self.node(leader).propose(command.clone()).await.is_ok() {
                return self.acknowledged.push(command);
            }
        }
    }

    async fn propose(&mut self, commands: usize, nodes: &[u64]) {
        for _ in 0..commands {
            self.propose_to(nodes).await;
        }
    }

    /// All nodes that run come to the same state, which has all that was acknowledged in its order.
    async fn agree(&self) {
        until("all have the same", || {
            let states: Vec<_> = self.nodes().map(|node| all(node)).collect();
            states.windows(2).all(|pair| pair[0] == pair[1]) && is_in_order(&self.acknowledged, &states[0])
        })
        .await;
    }
}

fn is_in_order(some: &[String], all: &[String]) -> bool {
    let mut all = all.iter();
    some.iter().all(|one| all.any(|other| other == one))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_agree_on_a_leader_and_the_order_of_commands() {
    let mut group = Group::running(|_| {}).await;
    let leader = group.leader_of(&[1, 2, 3]).await;
    group.propose(20, &[1, 2, 3]).await;
    group.agree().await;
    assert_eq!(group.node(leader).peers().len(), 3);

    let leader = group.leader_of(&[1, 2, 3]).await;
    until("all know the leader", || group.nodes().all(|node| node.leader() == Some(leader))).await;
    for id in (1..=3).filter(|id| *id != leader) {
        let follower = group.node(id);
        assert_eq!(follower.propose("x".to_owned()).await, Err(ProposeError::NotLeader { leader: Some(leader) }));
        assert_eq!(follower.confirm_leader().await, Err(ProposeError::NotLeader { leader: Some(leader) }));
        assert!(!follower.is_leader());
    }
    assert_eq!(group.node(leader).confirm_leader().await, Ok(()));
    group.stop_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_node_leads_when_the_leader_is_gone_and_nothing_acknowledged_is_lost() {
    let mut group = Group::running(|_| {}).await;
    for _ in 0..3 {
        group.propose(5, &[1, 2, 3]).await;
        let leader = group.leader_of(&[1, 2, 3]).await;
        group.stop(leader).await;
        let rest: Vec<u64> = (1..=3).filter(|id| *id != leader).collect();
        let mut changes = group.node(rest[0]).leader_changes();
        let next = group.leader_of(&rest).await;
        assert_ne!(next, leader);
        let is_next = |leadership: &Leadership| leadership.leader == Some(next);
        tokio::time::timeout(DEADLINE, changes.wait_for(is_next)).await.unwrap().unwrap();
        group.propose(5, &rest).await;
        group.agree().await;
        group.start(leader).await;
        group.agree().await;
    }
    group.stop_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_away_catches_up_by_entries() {
    let mut group = Group::running(|_| {}).await;
    group.propose(5, &[1, 2, 3]).await;
    let leader = group.leader_of(&[1, 2, 3]).await;
    let away = leader % 3 + 1;
    group.stop(away).await;
    let rest: Vec<u64> = (1..=3).filter(|id| *id != away).collect();
    group.propose(100, &rest).await;
    group.start(away).await;
    group.agree().await;
    assert_eq!(group.node(away).raft.metrics().borrow().snapshot, None);
    group.stop_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_away_for_long_catches_up_by_a_snapshot() {
    let mut group = Group::running(|options| options.snapshot_every = 10).await;
    group.propose(5, &[1, 2, 3]).await;
    group.agree().await;
    let leader = group.leader_of(&[1, 2, 3]).await;
    let away = leader % 3 + 1;
    group.stop(away).await;
    let rest: Vec<u64> = (1..=3).filter(|id| *id != away).collect();
    group.propose(60, &rest).await;
    let leader = group.leader_of(&rest).await;
    let metrics = group.node(leader).raft.metrics();
    until("entries are purged", || metrics.borrow().purged.is_some_and(|purged| purged.index > 20)).await;
    group.start(away).await;
    group.agree().await;
    let purged = group.node(away).raft.metrics().borrow().purged;
    assert!(purged.is_some_and(|purged| purged.index > 20), "{purged:?}");
    // And what came by the snapshot is there after a restart.
    group.stop(away).await;
    group.start(away).await;
    group.agree().await;
    group.propose(1, &[1, 2, 3]).await;
    group.agree().await;
    group.stop_all().await;
}

/// A follower loses its folder while the leader goes on, twice; in between there are `commands` more.
async fn is_emptied_and_catches_up(commands: usize, change: fn(&mut ConsensusOptions)) {
    let mut group = Group::running(change).await;
    group.propose(commands, &[1, 2, 3]).await;
    group.agree().await;
    for _ in 0..2 {
        let leader = group.leader_of(&[1, 2, 3]).await;
        let emptied = leader % 3 + 1;
        group.stop(emptied).await;
        group.empty(emptied);
        group.start(emptied).await;
        group.agree().await;
        group.propose(commands, &[1, 2, 3]).await;
        group.agree().await;
        for node in group.nodes() {
            assert!(node.raft.metrics().borrow().running_state.is_ok());
        }
        // It can be the one that makes the majority.
        let third = emptied % 3 + 1;
        group.stop(third).await;
        let rest: Vec<u64> = (1..=3).filter(|id| *id != third).collect();
        group.propose(3, &rest).await;
        group.agree().await;
        group.start(third).await;
        group.agree().await;
    }
    group.stop_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_lost_its_folder_takes_all_entries_from_the_leader() {
    is_emptied_and_catches_up(20, |_| {}).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_lost_its_folder_takes_the_snapshot_and_the_entries_behind_it() {
    is_emptied_and_catches_up(60, |options| options.snapshot_every = 10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_cut_off_acknowledges_nothing_and_follows_when_it_is_back() {
    let mut group = Group::running(|_| {}).await;
    group.propose(5, &[1, 2, 3]).await;
    let old = group.leader_of(&[1, 2, 3]).await;
    group.isolate(old);
    let rest: Vec<u64> = (1..=3).filter(|id| *id != old).collect();
    // Until it knows that it does not lead any more, and after that.
    let mut refusals = 0;
    while refusals < 2 {
        match group.node(old).propose("alone".to_owned()).await {
            Err(ProposeError::Late) => {}
            Err(ProposeError::NotLeader { leader: None }) => refusals += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(group.node(old).confirm_leader().await, Err(ProposeError::NotLeader { leader: None }));
    group.propose(5, &rest).await;
    assert!(!all(group.node(old)).contains(&"alone".to_owned()));

    group.cuts.lock().clear();
    group.agree().await;
    for node in group.nodes() {
        assert!(!all(node).contains(&"alone".to_owned()), "what nobody else had is gone");
    }
    group.propose(5, &[1, 2, 3]).await;
    group.agree().await;
    group.stop_all().await;
}

/// `CONSENSUS_SEEDS=500` plays more, from `CONSENSUS_SEED` on.
fn seeds() -> std::ops::Range<u64> {
    let of = |name, default| std::env::var(name).map_or(default, |text: String| text.parse().unwrap());
    let first = of("CONSENSUS_SEED", 1);
    first..first + of("CONSENSUS_SEEDS", 3)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn losses_of_power_and_cuts_at_moments_of_a_seed_lose_nothing_that_was_acknowledged() {
    for seed in seeds() {
        println!("CONSENSUS_SEED={seed}");
        let dice = Random::seeded(seed);
        let mut group = Group::running(|options| {
            options.heartbeat = Duration::from_millis(40);
            options.election_timeout = Duration::from_millis(150)..Duration::from_millis(400);
            options.propose_timeout = Duration::from_millis(500);
            options.snapshot_every = 5;
        })
        .await;
        for _ in 0..8 {
            group.propose(dice.below(7) as usize, &[1, 2, 3]).await;
            let id = u64::from(dice.below(3)) + 1;
            let other = id % 3 + 1;
            match dice.below(6) {
                0 => group.lose_power(&[1, 2, 3], &dice).await,
                1 => group.lose_power(&[id, other], &dice).await,
                2 | 3 => group.lose_power(&[id], &dice).await,
                4 => {
                    group.isolate(id);
                    let rest: Vec<u64> = (1..=3).filter(|rest| *rest != id).collect();
                    group.propose(dice.below(7) as usize, &rest).await;
                    group.cuts.lock().clear();
                }
                _ => {
                    // One way only.
                    group.cuts.lock().insert((id, other));
                    group.propose(dice.below(7) as usize, &[1, 2, 3]).await;
                    group.cuts.lock().clear();
                }
            }
        }
        group.propose(1, &[1, 2, 3]).await;
        group.agree().await;
        group.stop_all().await;
    }
}
