//! The [`Machine`] of a node as Raft drives it.

use std::io::Cursor;
use std::sync::Arc;

use openraft::storage::RaftStateMachine;
use openraft::{
    BasicNode, Entry, EntryPayload, LogId, RaftSnapshotBuilder, Snapshot, StorageError, StorageIOError,
    StoredMembership,
};
use parking_lot::RwLock;
use tracing::error;

use super::storage::{Storage, StoredSnapshot, any};
use super::{Meta, Types};
use crate::machine::{Machine, RestoreError};

/// Bytes of a snapshot at most: what a node takes from a leader.
pub(super) const SNAPSHOT_BYTES_MAX: u64 = 64 << 20;

/// The state, and how far it has come.
pub(super) struct Applied<M> {
    pub machine: M,
    last: Option<LogId<u64>>,
    membership: StoredMembership<u64, BasicNode>,
}

impl<M: Machine> Applied<M> {
    /// As a snapshot left it, or `machine` from the beginning.
    pub fn begin(machine: M, snapshot: Option<&StoredSnapshot>) -> Result<Applied<M>, RestoreError> {
        Ok(match snapshot {
            Some(StoredSnapshot { meta, data }) => Applied::of(M::restore(data)?, meta),
            None => Applied { machine, last: None, membership: StoredMembership::default() },
        })
    }

    fn of(machine: M, meta: &Meta) -> Applied<M> {
        Applied { machine, last: meta.last_log_id, membership: meta.last_membership.clone() }
    }

    /// The state as it is now.
    fn snapshot(&self, id: u64) -> StoredSnapshot {
        // Of two nodes the bytes may differ, so each names its own.
        let place = self.last.map_or_else(|| "0".to_owned(), |last| format!("{}-{}", last.leader_id.term, last.index));
        let meta = Meta {
            last_log_id: self.last,
            last_membership: self.membership.clone(),
            snapshot_id: format!("{place}@{id}"),
        };
        let data = self.machine.snapshot();
        if data.len() as u64 > SNAPSHOT_BYTES_MAX {
            error!(
                bytes = data.len(),
                SNAPSHOT_BYTES_MAX, "the state is too large for a node that is behind to take it"
            );
        }
        StoredSnapshot { meta, data: Arc::new(data) }
    }
}

pub(super) struct StateMachine<M> {
    pub id: u64,
    pub applied: Arc<RwLock<Applied<M>>>,
    pub storage: Storage,
}

/// A snapshot that was taken and is not yet kept.
pub(super) struct Taken {
    snapshot: StoredSnapshot,
    storage: Storage,
}

impl RaftSnapshotBuilder<Types> for Taken {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>, StorageError<u64>> {
        self.storage.put_snapshot(self.snapshot.clone()).await?;
        Ok(shown(&self.snapshot))
    }
}

fn shown(snapshot: &StoredSnapshot) -> Snapshot<Types> {
    Snapshot { meta: snapshot.meta.clone(), snapshot: Box::new(Cursor::new(snapshot.data.to_vec())) }
}

impl<M: Machine> StateMachine<M> {
    /// Makes one change; what came of it, as JSON.
    fn change(machine: &mut M, command: &str) -> Result<String, serde_json::Error> {
        let command = serde_json::from_str(command)?;
        serde_json::to_string(&machine.apply(&command))
    }
}

impl<M: Machine> RaftStateMachine<Types> for StateMachine<M> {
    type SnapshotBuilder = Taken;

    async fn applied_state(
        &mut self,
    ) -> Result<(Option<LogId<u64>>, StoredMembership<u64, BasicNode>), StorageError<u64>> {
        let applied = self.applied.read();
        Ok((applied.last, applied.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Option<String>>, StorageError<u64>>
    where
        I: IntoIterator<Item = Entry<Types>> + Send,
        I::IntoIter: Send,
    {
        let mut replies = Vec::new();
        for Entry { log_id, payload } in entries {
            // An entry at a time, so that readers get their turn.
            let mut applied = self.applied.write();
            replies.push(match payload {
                EntryPayload::Blank => None,
                // A command that is not understood ends this node: to skip it would be another state than that of the others.
                EntryPayload::Normal(command) => Some(
                    StateMachine::change(&mut applied.machine, &command)
                        .map_err(|error| StorageIOError::apply(log_id, any(&error)))?,
                ),
                EntryPayload::Membership(membership) => {
                    applied.membership = StoredMembership::new(Some(log_id), membership);
                    None
                }
            });
            applied.last = Some(log_id);
        }
        Ok(replies)
    }

    async fn get_snapshot_builder(&mut self) -> Taken {
        Taken { snapshot: self.applied.read().snapshot(self.id), storage: self.storage.clone() }
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Cursor<Vec<u8>>>, StorageError<u64>> {
        Ok(Box::default())
    }

    async fn install_snapshot(&mut self, meta: &Meta, snapshot: Box<Cursor<Vec<u8>>>) -> Result<(), StorageError<u64>> {
        let data = snapshot.into_inner();
        let machine =
            M::restore(&data).map_err(|error| StorageIOError::read_snapshot(Some(meta.signature()), any(&error)))?;
        self.storage.put_snapshot(StoredSnapshot { meta: meta.clone(), data: Arc::new(data) }).await?;
        *self.applied.write() = Applied::of(machine, meta);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Types>>, StorageError<u64>> {
        Ok(self.storage.snapshot().as_ref().map(shown))
    }
}
