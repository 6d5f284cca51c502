//! What a node is told at start, and why it may refuse to start.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use journal::JournalError;

use super::member;
use crate::machine::RestoreError;

/// Nodes of a group at most: each proposal waits for a majority of them.
const PEERS_MAX: usize = 9;
/// Bytes of a group's name at most, as of other names of RocketMQ.
const GROUP_BYTES_MAX: usize = 127;

/// What a node is told at start.
#[derive(Clone, Debug)]
pub struct ConsensusOptions {
    /// The name of the group: messages of another group are refused.
    pub group: String,
    /// Which of `peers` this node is.
    pub id: u64,
    /// All nodes of the group, this one among them: id and `host:port`. The same on each node.
    pub peers: BTreeMap<u64, String>,
    /// The folder of log, vote and snapshot. No other node may use it.
    pub dir: PathBuf,
    /// How often a leader says that it is there.
    pub heartbeat: Duration,
    /// A node that hears from no leader proposes itself after a time out of this range, which is
    /// chosen at start. A vote for another node is refused until its end has passed since the leader
    /// was heard last. So a leader that died has a successor between the sum of both ends of the range and
    /// twice its upper end, and some 200 ms for the votes.
    pub election_timeout: Range<Duration>,
    /// How long [`Consensus::propose`](super::Consensus::propose) and
    /// [`Consensus::confirm_leader`](super::Consensus::confirm_leader) wait.
    pub propose_timeout: Duration,
    /// After so many entries a snapshot replaces those before it. The same number of entries is kept
    /// for nodes that are behind.
    pub snapshot_every: u64,
}

impl ConsensusOptions {
    /// With the times that suit one network: a heartbeat of 200 ms, elections after 500 to 700 ms,
    /// 3 s for a proposal, a snapshot each 1,000 entries.
    ///
    /// Measured: a leader that is killed has a successor after 1.31 to 1.57 s. With elections after 600
    /// to 1,200 ms it was 1.97 to 2.58 s.
    pub fn new(group: &str, id: u64, peers: BTreeMap<u64, String>, dir: &Path) -> ConsensusOptions {
        ConsensusOptions {
            group: group.to_owned(),
            id,
            peers,
            dir: dir.to_owned(),
            heartbeat: Duration::from_millis(200),
            election_timeout: Duration::from_millis(500)..Duration::from_millis(700),
            propose_timeout: Duration::from_secs(3),
            snapshot_every: 1_000,
        }
    }

    /// Refuses what cannot work.
    pub(super) fn check(&self) -> Result<(), ConsensusError> {
        let refuse = |field, value: String, limit| Err(ConsensusError::Option { field, value, limit });
        if self.group.is_empty() || self.group.len() > GROUP_BYTES_MAX {
            return refuse("group", self.group.clone(), "1 to 127 bytes");
        }
        if self.peers.is_empty() || self.peers.len() > PEERS_MAX {
            return refuse("peers", member::text(&self.peers), "1 to 9 nodes");
        }
        if let Some(address) = self.peers.values().find(|address| !is_address(address)) {
            return refuse("peers", address.clone(), "host:port for each node");
        }
        if !self.peers.contains_key(&self.id) {
            return refuse("id", self.id.to_string(), "one of the ids in peers");
        }
        let Range { start, end } = self.election_timeout;
        if self.heartbeat < Duration::from_millis(1) || self.heartbeat >= start || start >= end {
            let value = format!("{:?}, {start:?} to {end:?}", self.heartbeat);
            return refuse("heartbeat and election_timeout", value, "1 ms <= heartbeat < start < end");
        }
        if self.snapshot_every == 0 {
            return refuse("snapshot_every", "0".to_owned(), "1 entry or more");
        }
        Ok(())
    }
}

/// Also without the characters that separate members in their text.
fn is_address(address: &str) -> bool {
    let Some((host, port)) = address.rsplit_once(':') else { return false };
    !host.is_empty() && !host.contains([',', '=', ' ', '\n']) && port.parse::<u16>().is_ok_and(|port| port > 0)
}

/// Why a node does not start.
#[derive(Debug, thiserror::Error)]
pub enum ConsensusError {
    /// An option has a value that cannot work.
    #[error("{field} of the controller is {value}; it must be {limit}")]
    Option {
        /// Which.
        field: &'static str,
        /// As given.
        value: String,
        /// What it may be.
        limit: &'static str,
    },
    /// The journal of log and vote cannot be opened.
    #[error("{}", journal_text(.0))]
    Journal(#[from] JournalError),
    /// The journal has something that this release does not understand.
    #[error("{}: {row} cannot be read: {what}", dir.display())]
    Row {
        /// The folder.
        dir: PathBuf,
        /// What of it.
        row: String,
        /// Why.
        what: String,
    },
    /// The folder belongs to another node, or to another group.
    #[error(
        "{} belongs to node {found_id} of the controller group {found_group}, and this is node {id} of {group}; \
         give each node a folder of its own, and keep its id", dir.display()
    )]
    OtherNode {
        /// The folder.
        dir: PathBuf,
        /// Whose it is.
        found_id: u64,
        /// Of which group.
        found_group: String,
        /// As given.
        id: u64,
        /// As given.
        group: String,
    },
    /// The group was begun with other nodes.
    #[error(
        "the controller group was begun with the nodes {found}, and the configuration has {peers}; \
         a running group does not change its nodes: put the nodes back into the configuration of each, or stop all \
         nodes, move {} of each away, and start all with the new configuration: the ids, masters and epochs of all \
         brokers are lost then", dir.display()
    )]
    OtherPeers {
        /// The folder.
        dir: PathBuf,
        /// Those that it was begun with.
        found: String,
        /// As given.
        peers: String,
    },
    /// Another process, or another node of this one, has the folder open.
    #[error(
        "{} is in use by another controller; stop that one, or give this one a folder of its own", dir.display()
    )]
    Locked {
        /// The folder.
        dir: PathBuf,
    },
    /// Entries are gone, and what they did as well.
    #[error("{}: the entries up to {purged} were removed, and no snapshot has them; {REMEDY}", dir.display())]
    SnapshotMissing {
        /// The folder.
        dir: PathBuf,
        /// Index of the last entry that is gone.
        purged: u64,
    },
    /// The snapshot in the folder is not understood.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// Raft refused to start.
    #[error("the consensus of the controller cannot start: {0}")]
    Raft(String),
}

/// What to do about a folder that has lost something. Until the node has caught up it counts as one
/// that is down: what it had acknowledged may be with one other node only.
const REMEDY: &str = "move the folder away and start this node again while all other controllers run: it takes the \
                      state from them; stop no other controller until it has caught up";

/// The journal's own words, but for its remedy, which is that of a broker.
fn journal_text(error: &JournalError) -> String {
    match error {
        JournalError::Damaged { path, at, what } => {
            format!("{} is damaged at byte {at}: {what}; {REMEDY}", path.display())
        }
        JournalError::Missing { path, what } => format!("{}: {what}; {REMEDY}", path.display()),
        other @ (JournalError::Disk { .. } | JournalError::Thread(_)) => other.to_string(),
    }
}
