//! Who a node is, and the envelope of what nodes say to each other.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::format::{self, FormatError};

/// Bytes of a message at most, on both sides. An append has 32 entries of 64 KiB at most, which JSON
/// may double.
pub(super) const MESSAGE_BYTES_MAX: usize = 8 << 20;

/// A node of a group, as its messages and its folder say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Member {
    pub group: String,
    pub id: u64,
    /// All nodes, as [`text`] writes them.
    pub members: String,
}

/// `1=host:port,2=host:port`, by id.
pub(super) fn text(peers: &BTreeMap<u64, String>) -> String {
    let each: Vec<String> = peers.iter().map(|(id, address)| format!("{id}={address}")).collect();
    each.join(",")
}

#[derive(Serialize)]
struct Sent<'a, T> {
    from: &'a Member,
    to: u64,
    message: &'a T,
}

#[derive(Deserialize)]
struct Received<T> {
    from: Member,
    to: u64,
    message: T,
}

/// Why a message of a peer is not taken. The text is the remark of the answer.
#[derive(Debug, thiserror::Error)]
pub enum HandleError {
    /// It is no request of a controller to its peers.
    #[error("request {0} is none of controllers to each other")]
    Code(i32),
    /// It is longer than any of them.
    #[error("the message has {bytes} bytes, controllers send {MESSAGE_BYTES_MAX} at most")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// Its bytes are not understood.
    #[error("the message of a controller cannot be read: {0}")]
    Unreadable(String),
    /// It comes from another group.
    #[error("this controller is of the group {ours}, and the message of node {from} is of the group {theirs}")]
    OtherGroup {
        /// Ours.
        ours: String,
        /// The sender.
        from: u64,
        /// Its own.
        theirs: String,
    },
    /// It is meant for another node.
    #[error("this controller is node {ours}, and node {from} takes it for node {to}; compare the peers of both")]
    OtherNode {
        /// Ours.
        ours: u64,
        /// The sender.
        from: u64,
        /// Whom it means.
        to: u64,
    },
    /// The sender's configuration has other nodes.
    #[error("this controller has the peers {ours}, and node {from} has {theirs}; each node needs the same")]
    OtherPeers {
        /// Ours.
        ours: String,
        /// The sender.
        from: u64,
        /// Its own.
        theirs: String,
    },
    /// What it says cannot be.
    #[error("the message of controller {from} cannot be: {what}")]
    Impossible {
        /// The sender.
        from: u64,
        /// Why.
        what: &'static str,
    },
    /// This node is stopping, or has ended.
    #[error("this controller is stopping")]
    Stopped,
}

impl Member {
    /// Whether the group has no other node.
    pub fn is_alone(&self) -> bool {
        !self.members.contains(',')
    }

    /// A message to node `to`.
    pub fn write<T: Serialize>(&self, to: u64, message: &T) -> Result<Vec<u8>, FormatError> {
        format::encode(&Sent { from: self, to, message })
    }

    /// The sender of a message to us, what it says, and the bytes behind.
    pub fn read<'a, T: DeserializeOwned>(&self, body: &'a [u8]) -> Result<(u64, T, &'a [u8]), HandleError> {
        if body.len() > MESSAGE_BYTES_MAX {
            return Err(HandleError::TooLong { bytes: body.len() });
        }
        let (line, data) = format::split(body);
        let unreadable = |error: FormatError| HandleError::Unreadable(error.to_string());
        // Who it is first: another group may say other things.
        let Received::<serde::de::IgnoredAny> { from, to, .. } = format::decode(line).map_err(unreadable)?;
        if from.group != self.group {
            let (ours, theirs) = (self.group.clone(), from.group);
            return Err(HandleError::OtherGroup { ours, from: from.id, theirs });
        }
        if to != self.id || from.id == self.id {
            return Err(HandleError::OtherNode { ours: self.id, from: from.id, to });
        }
        if from.members != self.members {
            let (ours, theirs) = (self.members.clone(), from.members);
            return Err(HandleError::OtherPeers { ours, from: from.id, theirs });
        }
        let Received { message, .. } = format::decode(line).map_err(unreadable)?;
        Ok((from.id, message, data))
    }
}
