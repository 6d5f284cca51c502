//! What makes several nodes apply the same commands: Raft, by openraft.
//!
//! No other module of Gantry names openraft. Its tasks run on the runtime on which
//! [`Consensus::start`] is called; waiting for the device is done by the journal's own thread.
//! Invariant: a command whose proposal returned its reply is on the devices of a majority.

mod format;
mod lock;
mod member;
mod network;
mod options;
mod state;
mod storage;
#[cfg(test)]
mod tests;
mod unsynced;

use std::collections::BTreeMap;
use std::io::Cursor;
use std::sync::Arc;
use std::time::Duration;

use disk::Disk;
use env::Clock;
use openraft::error::{CheckIsLeaderError, Fatal, InstallSnapshotError, RaftError, SnapshotMismatch};
use openraft::metrics::RaftMetrics;
use openraft::raft::{AppendEntriesRequest, InstallSnapshotRequest, InstallSnapshotResponse, VoteRequest};
use openraft::{BasicNode, Config, Raft, ServerState, SnapshotMeta, SnapshotPolicy, Vote};
use parking_lot::RwLock;
use protocol::code::request;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout};
use tracing::{error, info, warn};

pub use self::member::HandleError;
use self::member::Member;
use self::network::{CHUNK_BYTES, Network};
pub use self::options::{ConsensusError, ConsensusOptions};
use self::state::{Applied, SNAPSHOT_BYTES_MAX, StateMachine};
use self::storage::Storage;
use crate::machine::Machine;

openraft::declare_raft_types!(
    /// Commands and replies are JSON: what they are is the machine's alone.
    pub(crate) Types:
        D = String,
        R = Option<String>,
);

type Meta = SnapshotMeta<u64, BasicNode>;

/// A command's JSON at most.
const COMMAND_BYTES_MAX: usize = 64 << 10;
/// Entries of one append at most; with commands of the greatest length they still fit into a message.
const APPEND_ENTRIES_MAX: u64 = 32;
/// Proposals that wait, and entries that a majority has not confirmed, at most.
const PROPOSALS_MAX: usize = 1_024;
/// Terms above this are no terms: each is an election.
const TERM_MAX: u64 = 1 << 48;
/// How long a peer may take for a part of a snapshot, the last of which waits for its device.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long after too few answers they are asked for again.
const CONFIRM_AGAIN: Duration = Duration::from_millis(20);
/// How long a stop waits for the device before it gives up.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// Who leads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leadership {
    /// None: nobody, as far as this node knows. A leader that has not heard from a majority for the
    /// longest election timeout does not take itself for one any more.
    pub leader: Option<u64>,
    /// How many elections there were.
    pub term: u64,
}

/// Why a proposal has no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// Nothing was proposed: another node leads, or nobody.
    #[error("this controller does not lead; the leader is {}", leader.map_or("not known".to_owned(), |id| format!("node {id}")))]
    NotLeader {
        /// Who does.
        leader: Option<u64>,
    },
    /// Whether it is done, now or later, is not known.
    #[error("no majority of the controllers has confirmed the change in time; it may still be made")]
    Late,
    /// Nothing was proposed: as many changes as may wait do.
    #[error("{PROPOSALS_MAX} changes wait for the other controllers, more are not taken")]
    Busy,
    /// Nothing was proposed: the command is too long.
    #[error("the change has {bytes} bytes, {COMMAND_BYTES_MAX} are allowed")]
    TooLong {
        /// Of its JSON.
        bytes: usize,
    },
    /// Nothing was proposed: the machine would not read what it writes of the command.
    #[error("the change cannot be read: {0}")]
    Unreadable(String),
    /// This node is stopping, or has ended.
    #[error("this controller is stopping")]
    Stopped,
}

/// A node of a group that applies the same commands to a [`Machine`].
pub struct Consensus<M: Machine> {
    member: Arc<Member>,
    peers: BTreeMap<u64, String>,
    propose_timeout: Duration,
    raft: Raft<Types>,
    storage: Storage,
    /// Guards the machine; held in memory only, never while something waits.
    applied: Arc<RwLock<Applied<M>>>,
    leadership: watch::Receiver<Leadership>,
    proposals: Semaphore,
    runtime: Handle,
}

impl<M: Machine> Consensus<M> {
    /// Starts a node. `machine` is the state before the first command. The first start begins the
    /// group with `options.peers`; a later one goes on where the folder says.
    ///
    /// `client` calls the peers: its `back_off_max` should not exceed some 200 ms, so that a node that
    /// comes back is found at once.
    ///
    /// # Errors
    /// If an option cannot work, if the folder cannot be read, or is that of another node, group or
    /// set of peers.
    pub async fn start(
        options: ConsensusOptions,
        machine: M,
        client: net::Client,
        clock: Clock,
        disk: Arc<dyn Disk>,
    ) -> Result<Arc<Consensus<M>>, ConsensusError> {
        options.check()?;
        let config = config(&options)?;
        let ConsensusOptions { group, id, peers, dir, election_timeout, propose_timeout, .. } = options;
        let member = Arc::new(Member { group, id, members: member::text(&peers) });
        let opened = {
            let member = Arc::clone(&member);
            tokio::task::spawn_blocking(move || Storage::open(&dir, &member, clock, disk)).await
        };
        let storage = opened.map_err(|panicked| ConsensusError::Raft(panicked.to_string()))??;
        let applied = Arc::new(RwLock::new(Applied::begin(machine, storage.snapshot().as_ref())?));
        let state = StateMachine { id, applied: Arc::clone(&applied), storage: storage.clone() };
        let network = Network::new(Arc::clone(&member), client);
        let raft = Raft::new(id, config, network, storage.clone(), state).await;
        let raft = raft.map_err(|fatal| ConsensusError::Raft(fatal.to_string()))?;
        if let Err(error) = begin_group(&raft, &peers).await {
            let _ = raft.shutdown().await;
            return Err(error);
        }
        let (sender, leadership) = watch::channel(Leadership::default());
        tokio::spawn(follow_leadership(raft.metrics(), election_timeout.end, sender));
        Ok(Arc::new(Consensus {
            member,
            peers,
            propose_timeout,
            raft,
            storage,
            applied,
            leadership,
            proposals: Semaphore::new(PROPOSALS_MAX),
            runtime: Handle::current(),
        }))
    }

    /// Which node this is.
    #[cfg(test)]
    pub fn id(&self) -> u64 {
        self.member.id
    }

    /// All nodes of the group: id and `host:port`.
    pub fn peers(&self) -> &BTreeMap<u64, String> {
        &self.peers
    }

    /// Has the group make a change. It is applied here, and on the devices of a majority, when this
    /// returns.
    ///
    /// # Errors
    /// [`ProposeError::Late`] if nobody knows whether it is made; after every other error it is not.
    pub async fn propose(&self, command: M::Command) -> Result<M::Reply, ProposeError> {
        let unreadable = |error: serde_json::Error| ProposeError::Unreadable(error.to_string());
        let command = serde_json::to_string(&command).map_err(unreadable)?;
        // One that cannot be read back would end every node that applies it.
        serde_json::from_str::<M::Command>(&command).map_err(unreadable)?;
        if command.len() > COMMAND_BYTES_MAX {
            return Err(ProposeError::TooLong { bytes: command.len() });
        }
        self.expect_leader()?;
        let unconfirmed = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow();
            let applied = metrics.last_applied.map_or(0, |applied| applied.index);
            metrics.last_log_index.unwrap_or(0).saturating_sub(applied)
        };
        // A leader that is cut off appends, and nothing takes it away.
        if unconfirmed >= PROPOSALS_MAX as u64 {
            return Err(ProposeError::Busy);
        }
        let Ok(_place) = self.proposals.try_acquire() else { return Err(ProposeError::Busy) };
        match timeout(self.propose_timeout, self.raft.client_write(command)).await {
            Ok(Ok(written)) => serde_json::from_str(&written.data.unwrap_or_default()).map_err(|error| {
                error!(%error, "the reply to a change that was made cannot be read");
                ProposeError::Late
            }),
            // It led a moment ago, so the entry may have been appended, and come to others, before it was removed here, or before the node ended.
            Err(_) | Ok(Err(_)) => Err(ProposeError::Late),
        }
    }

    /// Looks at the state that this node has applied. Others may have applied more:
    /// [`Consensus::confirm_leader`] before it makes sure that none had.
    pub fn read<R>(&self, look: impl FnOnce(&M) -> R) -> R {
        look(&self.applied.read().machine)
    }

    /// Whether this node leads: a majority has confirmed it within the longest election timeout.
    pub fn is_leader(&self) -> bool {
        self.leader() == Some(self.member.id)
    }

    /// The node that leads, as far as this one knows.
    pub fn leader(&self) -> Option<u64> {
        self.leadership.borrow().leader
    }

    /// How many elections there were.
    pub fn term(&self) -> u64 {
        self.leadership.borrow().term
    }

    /// Who leads, and each change of it. Ends when the node does: if it was not stopped, that is a fault.
    pub fn leader_changes(&self) -> watch::Receiver<Leadership> {
        self.leadership.clone()
    }

    /// Asks a majority whether this node still leads, and waits until it has applied all that was
    /// confirmed before.
    ///
    /// # Errors
    /// If it does not lead, or no majority answers in time ([`ProposeError::Late`]).
    pub async fn confirm_leader(&self) -> Result<(), ProposeError> {
        match timeout(self.propose_timeout, self.confirm()).await {
            Ok(confirmed) => confirmed,
            Err(_) => Err(ProposeError::Late),
        }
    }

    async fn confirm(&self) -> Result<(), ProposeError> {
        // Ends when a majority has answered, or with the leadership, or with the caller's time.
        loop {
            self.expect_leader()?;
            match self.raft.ensure_linearizable().await {
                Ok(_) => return Ok(()),
                Err(RaftError::APIError(CheckIsLeaderError::ForwardToLeader(to))) => {
                    return Err(ProposeError::NotLeader { leader: to.leader_id });
                }
                // Each is asked once, for as long as a heartbeat takes: its device may be busy.
                Err(RaftError::APIError(CheckIsLeaderError::QuorumNotEnough(_))) => {
                    tokio::time::sleep(CONFIRM_AGAIN).await;
                }
                Err(RaftError::Fatal(_)) => return Err(ProposeError::Stopped),
            }
        }
    }

    /// Answers a message of a peer: the body of a request, and that of its answer.
    ///
    /// # Errors
    /// If it is not taken; the text is the remark of the answer.
    pub async fn handle(&self, code: i32, body: &[u8]) -> Result<Vec<u8>, HandleError> {
        match code {
            request::RAFT_APPEND_ENTRIES => {
                let (from, message, _): (_, AppendEntriesRequest<Types>, _) = self.received(body)?;
                check_vote(from, &message.vote)?;
                check_entries(from, &message)?;
                answer(&self.raft.append_entries(message).await.map_err(|_| HandleError::Stopped)?)
            }
            request::RAFT_VOTE => {
                let (from, message, _): (_, VoteRequest<u64>, _) = self.received(body)?;
                check_vote(from, &message.vote)?;
                answer(&self.raft.vote(message).await.map_err(|_| HandleError::Stopped)?)
            }
            request::RAFT_INSTALL_SNAPSHOT => {
                let (from, mut message, data): (_, InstallSnapshotRequest<Types>, _) = self.received(body)?;
                check_vote(from, &message.vote)?;
                if message.offset.saturating_add(data.len() as u64) > SNAPSHOT_BYTES_MAX {
                    return Err(HandleError::Impossible { from, what: "a snapshot of more than 64 MiB" });
                }
                message.data = data.to_vec();
                let installed: Result<InstallSnapshotResponse<u64>, SnapshotMismatch> =
                    match self.raft.install_snapshot(message).await {
                        Ok(installed) => Ok(installed),
                        Err(RaftError::APIError(InstallSnapshotError::SnapshotMismatch(mismatch))) => Err(mismatch),
                        Err(RaftError::Fatal(_)) => return Err(HandleError::Stopped),
                    };
                answer(&installed)
            }
            other => Err(HandleError::Code(other)),
        }
    }

    /// Ends the node: everything that it has is on the device then. Calls that wait end with an error.
    pub async fn stop(&self) {
        if timeout(STOP_PATIENCE, self.raft.shutdown()).await.is_err() {
            // The device takes nothing; what it has not confirmed was acknowledged to nobody.
            self.storage.give_up();
            let _ = self.raft.shutdown().await;
        }
        // A snapshot may still be written.
        self.storage.give_up();
        let storage = self.storage.clone();
        let closed = tokio::task::spawn_blocking(move || storage.close()).await;
        if !closed.unwrap_or(false) {
            warn!("the journal of the controller could not be written to its end");
        }
    }

    fn expect_leader(&self) -> Result<(), ProposeError> {
        if self.raft.metrics().borrow().running_state.is_err() {
            return Err(ProposeError::Stopped);
        }
        let leader = self.leader();
        if leader == Some(self.member.id) { Ok(()) } else { Err(ProposeError::NotLeader { leader }) }
    }

    fn received<'a, T: DeserializeOwned>(&self, body: &'a [u8]) -> Result<(u64, T, &'a [u8]), HandleError> {
        let (from, message, data) = self.member.read(body)?;
        if !self.peers.contains_key(&from) {
            return Err(HandleError::Impossible { from, what: "its sender is none of the peers" });
        }
        Ok((from, message, data))
    }
}

impl<M: Machine> Drop for Consensus<M> {
    fn drop(&mut self) {
        // Its tasks hold themselves.
        let (raft, storage) = (self.raft.clone(), self.storage.clone());
        self.runtime.spawn(async move {
            storage.give_up();
            raft.shutdown().await
        });
    }
}

fn config(options: &ConsensusOptions) -> Result<Arc<Config>, ConsensusError> {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let config = Config {
        cluster_name: options.group.clone(),
        // It looks at its clock each one and a half of these, and says then that it is there.
        heartbeat_interval: millis(options.heartbeat * 2 / 3).max(1),
        election_timeout_min: millis(options.election_timeout.start),
        election_timeout_max: millis(options.election_timeout.end),
        install_snapshot_timeout: millis(SNAPSHOT_TIMEOUT),
        max_payload_entries: APPEND_ENTRIES_MAX,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(options.snapshot_every),
        snapshot_max_chunk_size: CHUNK_BYTES,
        max_in_snapshot_log_to_keep: options.snapshot_every,
        // A node that is behind by less takes entries.
        replication_lag_threshold: options.snapshot_every.saturating_mul(5),
        ..Config::default()
    };
    Ok(Arc::new(config.validate().map_err(|error| ConsensusError::Raft(error.to_string()))?))
}

/// At its first start each node writes the same first entry, before it hears from anybody; so it does
/// not matter which of them is elected.
async fn begin_group(raft: &Raft<Types>, peers: &BTreeMap<u64, String>) -> Result<(), ConsensusError> {
    let refused = |error: &dyn std::fmt::Display| ConsensusError::Raft(error.to_string());
    if raft.is_initialized().await.map_err(|error| refused(&error))? {
        return Ok(());
    }
    let members: BTreeMap<u64, BasicNode> =
        peers.iter().map(|(id, address)| (*id, BasicNode::new(address.clone()))).collect();
    raft.initialize(members).await.map_err(|error| refused(&error))
}

fn answer<T: Serialize>(message: &T) -> Result<Vec<u8>, HandleError> {
    format::encode(message).map_err(|error| HandleError::Unreadable(error.to_string()))
}

/// A node speaks for itself only.
fn check_vote(from: u64, vote: &Vote<u64>) -> Result<(), HandleError> {
    if vote.leader_id.node_id != from {
        return Err(HandleError::Impossible { from, what: "its vote is for another node" });
    }
    if vote.leader_id.term > TERM_MAX {
        return Err(HandleError::Impossible { from, what: "its term is above 2^48" });
    }
    Ok(())
}

/// Entries follow each other, behind the one that the sender names.
fn check_entries(from: u64, message: &AppendEntriesRequest<Types>) -> Result<(), HandleError> {
    let mut next = message.prev_log_id.map_or(Some(0), |previous| previous.index.checked_add(1));
    for entry in &message.entries {
        if next != Some(entry.log_id.index) {
            return Err(HandleError::Impossible { from, what: "its entries do not follow each other" });
        }
        next = entry.log_id.index.checked_add(1);
    }
    Ok(())
}

/// Tells of changes of the leader, until the node ends: nobody leads then, as far as it knows, and
/// receivers see that no change follows.
async fn follow_leadership(
    mut metrics: watch::Receiver<RaftMetrics<u64, BasicNode>>,
    lease: Duration,
    sender: watch::Sender<Leadership>,
) {
    let (mut confirmed_at, mut is_fresh) = (None, true);
    loop {
        let (now, failure) = {
            let metrics = metrics.borrow_and_update();
            if metrics.state != ServerState::Leader {
                confirmed_at = None;
            } else if is_fresh && let Some(ago) = metrics.millis_since_quorum_ack {
                // `ago` ends when the metrics were written, and Raft writes none while its device stands
                // still. So it is turned into a moment once, when they come, and that gets old by the clock.
                confirmed_at = confirmed_at.max(Instant::now().checked_sub(Duration::from_millis(ago)));
            }
            (leadership(&metrics, confirmed_at, lease), metrics.running_state.clone().err())
        };
        sender.send_if_modified(|known| {
            let is_news = *known != now;
            if is_news {
                info!(leader = now.leader, term = now.term, "the leader of the controllers has changed");
                *known = now;
            }
            is_news
        });
        match failure {
            Some(Fatal::Stopped) => return,
            Some(failure) => {
                error!(error = %failure, "the consensus of this controller has ended; restart it when the cause is mended");
                return;
            }
            None => {}
        }
        // Without news the confirmation gets old.
        is_fresh = match timeout(lease / 4, metrics.changed()).await {
            Ok(Ok(())) => true,
            Ok(Err(_)) => {
                error!("the consensus of this controller has ended without a reason; restart it");
                sender.send_modify(|known| known.leader = None);
                return;
            }
            Err(_) => false,
        };
    }
}

fn leadership(metrics: &RaftMetrics<u64, BasicNode>, confirmed_at: Option<Instant>, lease: Duration) -> Leadership {
    let is_confirmed = confirmed_at.is_some_and(|at| at.elapsed() <= lease);
    let is_alive = metrics.running_state.is_ok();
    let is_known = metrics.current_leader != Some(metrics.id) || is_confirmed;
    Leadership { leader: metrics.current_leader.filter(|_| is_alive && is_known), term: metrics.current_term }
}
