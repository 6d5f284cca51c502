//! What is replicated.

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A pure state machine. Each node of a group applies the same commands in the same order, so the
/// state must follow from them alone: no clock, no dice, no order of a hash map.
pub trait Machine: Send + Sync + 'static {
    /// A change that somebody proposes. It is kept in the log and sent to other nodes as JSON, so
    /// nodes of the release before and after must read it.
    type Command: Serialize + DeserializeOwned + Clone + Debug + Send + Sync + 'static;
    /// What the node that proposed it gets back.
    type Reply: Serialize + DeserializeOwned + Clone + Debug + Send + Sync + 'static;

    /// Makes the change. A command that is not possible in this state changes nothing and says so in
    /// its reply.
    fn apply(&mut self, command: &Self::Command) -> Self::Reply;

    /// The whole state. The bytes carry a version of their own.
    fn snapshot(&self) -> Vec<u8>;

    /// The state that [`Machine::snapshot`] wrote.
    ///
    /// # Errors
    /// If the bytes are not understood.
    fn restore(bytes: &[u8]) -> Result<Self, RestoreError>
    where
        Self: Sized;
}

/// Bytes that are no snapshot that this release understands.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot read a snapshot of the controller's state: {what}")]
pub struct RestoreError {
    /// Why.
    pub what: String,
}
