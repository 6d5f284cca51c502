//! What a node says to its peers: requests of the remoting protocol, by the process's [`Client`].

use std::iter;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use net::{CallError, Client, Connection};
use openraft::BasicNode;
use openraft::error::{
    InstallSnapshotError, NetworkError, PayloadTooLarge, RPCError, RaftError, RemoteError, SnapshotMismatch,
    Unreachable,
};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse, VoteRequest,
    VoteResponse,
};
use protocol::code::{ResponseCode, request};
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;
use tracing::warn;

use super::Types;
use super::format::{self, FormatError};
use super::member::{MESSAGE_BYTES_MAX, Member};

/// Bytes of a snapshot in one message.
pub(super) const CHUNK_BYTES: u64 = 1 << 20;
/// How long a peer that cannot be reached is left alone. Short beside an election, so that one that
/// comes back hears from its leader first.
const UNREACHABLE_PAUSE: Duration = Duration::from_millis(200);
/// After so many calls without an answer the connection is made anew: what a cut network lost is sent
/// again by TCP after pauses that grow to many seconds.
const SILENT_CALLS_MAX: u32 = 3;

type Refused<E> = RPCError<u64, BasicNode, RaftError<u64, E>>;

/// Makes the links of a node.
pub(super) struct Network {
    pub member: Arc<Member>,
    pub client: Client,
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Link;

    async fn new_client(&mut self, target: u64, node: &BasicNode) -> Link {
        Link {
            member: Arc::clone(&self.member),
            client: self.client.clone(),
            target,
            address: node.addr.clone(),
            connecting: None,
            silent_calls: 0,
            refusal: String::new(),
        }
    }
}

/// The way to one peer.
pub(super) struct Link {
    member: Arc<Member>,
    client: Client,
    target: u64,
    address: String,
    /// A connection takes the client's time, which is longer than a call's: it goes on when the call is given up.
    connecting: Option<JoinHandle<Result<Connection<()>, CallError>>>,
    silent_calls: u32,
    /// What the peer said last when it took no message; said in the log once.
    refusal: String,
}

/// Why a message brought nothing.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("controller {target} at {address} does not take it: {remark}")]
    Refused { target: u64, address: String, remark: String },
    #[error("controller {target} at {address} answers what cannot be read: {source}")]
    Answer { target: u64, address: String, source: FormatError },
    #[error(transparent)]
    Format(FormatError),
}

impl Failed {
    /// As Raft takes it: who is unreachable is left alone for a moment.
    fn rpc<E: std::error::Error>(self) -> Refused<E> {
        match self {
            Failed::Call(CallError::Timeout { .. } | CallError::Closed { .. } | CallError::Busy { .. }) => {
                RPCError::Network(NetworkError::new(&self))
            }
            Failed::Call(_) | Failed::Refused { .. } | Failed::Answer { .. } | Failed::Format(_) => {
                RPCError::Unreachable(Unreachable::new(&self))
            }
        }
    }
}

impl Link {
    /// Sends a message and waits for the answer, `timeout` at most.
    async fn ask<A: DeserializeOwned>(&mut self, code: i32, body: Vec<u8>, timeout: Duration) -> Result<A, Failed> {
        let body = Bytes::from(body);
        // Raft gives a call up when its time is over, without waiting for the error: silence is counted before.
        self.silent_calls += 1;
        if self.silent_calls > SILENT_CALLS_MAX {
            self.silent_calls = 0;
            self.client.disconnect(&self.address);
        }
        self.connect().await?;
        let response = self.client.call(&self.address, code, &(), body, timeout).await?;
        self.silent_calls = 0;
        let (target, address) = (self.target, self.address.clone());
        if response.code != ResponseCode::Success as i32 {
            let remark = response.remark.unwrap_or_else(|| format!("code {}", response.code));
            if self.refusal != remark {
                warn!(target, address, remark, "a controller does not take a message of this one");
                self.refusal.clone_from(&remark);
            }
            return Err(Failed::Refused { target, address, remark });
        }
        self.refusal.clear();
        format::decode(&response.body).map_err(|source| Failed::Answer { target, address, source })
    }

    async fn connect(&mut self) -> Result<(), CallError> {
        let connecting = self.connecting.get_or_insert_with(|| {
            let (client, address) = (self.client.clone(), self.address.clone());
            tokio::spawn(async move { client.connect(&address).await })
        });
        let connected = connecting.await;
        self.connecting = None;
        let closed = || CallError::Closed { address: self.address.clone() };
        connected.map_err(|_| closed())?.map(drop)
    }
}

impl RaftNetwork<Types> for Link {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, RPCError<u64, BasicNode, RaftError<u64>>> {
        let body = self.member.write(self.target, &rpc).map_err(|error| Failed::Format(error).rpc())?;
        if body.len() > MESSAGE_BYTES_MAX && rpc.entries.len() > 1 {
            let fewer = rpc.entries.len() as u64 / 2;
            return Err(PayloadTooLarge::new_entries_hint(fewer).into());
        }
        self.ask(request::RAFT_APPEND_ENTRIES, body, option.hard_ttl()).await.map_err(Failed::rpc)
    }

    async fn install_snapshot(
        &mut self,
        mut rpc: InstallSnapshotRequest<Types>,
        option: RPCOption,
    ) -> Result<InstallSnapshotResponse<u64>, Refused<InstallSnapshotError>> {
        let data = std::mem::take(&mut rpc.data);
        let line = self.member.write(self.target, &rpc).map_err(|error| Failed::Format(error).rpc())?;
        let body = format::join(line, &data);
        let answer = self.ask(request::RAFT_INSTALL_SNAPSHOT, body, option.hard_ttl()).await.map_err(Failed::rpc)?;
        let answer: Result<InstallSnapshotResponse<u64>, SnapshotMismatch> = answer;
        answer.map_err(|mismatch| {
            let source = RaftError::APIError(InstallSnapshotError::SnapshotMismatch(mismatch));
            RPCError::RemoteError(RemoteError::new(self.target, source))
        })
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<u64>,
        option: RPCOption,
    ) -> Result<VoteResponse<u64>, RPCError<u64, BasicNode, RaftError<u64>>> {
        let body = self.member.write(self.target, &rpc).map_err(|error| Failed::Format(error).rpc())?;
        self.ask(request::RAFT_VOTE, body, option.hard_ttl()).await.map_err(Failed::rpc)
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(iter::repeat(UNREACHABLE_PAUSE))
    }
}
