//! The controller of a cluster: what its members agree on about brokers, by Raft.
//!
//! A [`Machine`] is the state and what changes it, without a clock or a socket. [`Consensus`] has
//! several nodes apply the same commands to it in the same order.

mod consensus;
mod machine;

pub use consensus::{Consensus, ConsensusError, ConsensusOptions, HandleError, Leadership, ProposeError};
pub use machine::{Machine, RestoreError};
