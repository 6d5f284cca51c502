//! The controller: which broker of a set is its master, and which are in sync.
//!
//! RocketMQ's controller mode, for brokers of RocketMQ and of ours. What controllers agree on is a
//! pure state machine (`state`, behind the seam `machine`); the leader alone decides, from that
//! and from which brokers live (`live`), and has all of them carry it out (`consensus`).

mod consensus;
mod controller;
mod duty;
mod elect;
mod live;
mod machine;
mod options;
mod requests;
mod settings;
mod state;

pub use consensus::ConsensusError;
pub use controller::{Controller, Session};
pub use machine::RestoreError;
pub use options::{Options, Peer, PeersError, Setting, read_addresses, read_peers};
