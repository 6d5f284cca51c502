//! What a node says to its peers: requests of the remoting protocol, by the process's [`Client`].

use std::collections::BTreeMap;
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
use parking_lot::Mutex;
use protocol::code::{ResponseCode, request};
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::{info, warn};

use super::Types;
use super::format::{self, FormatError};
use super::member::{MESSAGE_BYTES_MAX, Member};

/// Bytes of a snapshot in one message.
pub(super) const CHUNK_BYTES: u64 = 1 << 20;
/// How long a peer that cannot be reached is left alone. Short beside an election, so that one that
/// comes back hears from its leader first.
const UNREACHABLE_PAUSE: Duration = Duration::from_millis(200);
/// After so long without an answer the connection is made anew: what a cut network lost is sent again
/// by TCP after pauses that grow to many seconds.
const SILENCE_MAX: Duration = Duration::from_secs(1);

type Refused<E> = RPCError<u64, BasicNode, RaftError<u64, E>>;

/// Makes the links of a node.
pub(super) struct Network {
    shared: Arc<Shared>,
}

/// What the links of a node share.
struct Shared {
    member: Arc<Member>,
    client: Client,
    /// Why peers do not answer, as it was logged last: each change is a line, not each call.
    failures: Mutex<BTreeMap<u64, String>>,
}

impl Network {
    /// Of `member`, whose peers `client` calls.
    pub fn new(member: Arc<Member>, client: Client) -> Network {
        Network { shared: Arc::new(Shared { member, client, failures: Mutex::default() }) }
    }
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Link;

    async fn new_client(&mut self, target: u64, node: &BasicNode) -> Link {
        let (shared, address) = (Arc::clone(&self.shared), node.addr.clone());
        Link { shared, target, address, connecting: None, unanswered_since: None }
    }
}

/// The way to one peer.
pub(super) struct Link {
    shared: Arc<Shared>,
    target: u64,
    address: String,
    /// A connection takes the client's time, which is longer than a call's: it goes on when the call is given up.
    connecting: Option<JoinHandle<Result<Connection<()>, CallError>>>,
    /// When the first call began that has no answer, nor has any since.
    unanswered_since: Option<Instant>,
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
        // Noted before, since Raft gives a call up when its time is over.
        let since = *self.unanswered_since.get_or_insert_with(Instant::now);
        if since.elapsed() > SILENCE_MAX {
            self.unanswered_since = Some(Instant::now());
            self.note("it does not answer");
            self.shared.client.disconnect(&self.address);
        }
        let answer = self.answer(code, body, timeout).await;
        match &answer {
            Ok(_) => self.note(""),
            // Silence is told of above, when it is long.
            Err(Failed::Call(CallError::Timeout { .. } | CallError::Closed { .. })) => {}
            // As of the attempt that failed.
            Err(Failed::Call(CallError::BackingOff { cause, .. })) => self.note(cause),
            Err(failed) => self.note(&failed.to_string()),
        }
        answer
    }

    async fn answer<A: DeserializeOwned>(&mut self, code: i32, body: Vec<u8>, timeout: Duration) -> Result<A, Failed> {
        self.connect().await?;
        let response = self.shared.client.call(&self.address, code, &(), Bytes::from(body), timeout).await?;
        self.unanswered_since = None;
        let (target, address) = (self.target, self.address.clone());
        if response.code != ResponseCode::Success as i32 {
            let remark = response.remark.unwrap_or_else(|| format!("code {}", response.code));
            return Err(Failed::Refused { target, address, remark });
        }
        format::decode(&response.body).map_err(|source| Failed::Answer { target, address, source })
    }

    async fn connect(&mut self) -> Result<(), CallError> {
        let connecting = self.connecting.get_or_insert_with(|| {
            let (client, address) = (self.shared.client.clone(), self.address.clone());
            tokio::spawn(async move { client.connect(&address).await })
        });
        let connected = connecting.await;
        self.connecting = None;
        let closed = || CallError::Closed { address: self.address.clone() };
        connected.map_err(|_| closed())?.map(drop)
    }

    /// Logs why the peer does not answer, or that it does (empty), when that is news.
    fn note(&self, failure: &str) {
        let mut failures = self.shared.failures.lock();
        let known = failures.entry(self.target).or_default();
        if known == failure {
            return;
        }
        failure.clone_into(known);
        drop(failures);
        let (peer, address) = (self.target, &self.address);
        match failure {
            "" => info!(peer, address, "a controller answers again"),
            failure => warn!(peer, address, failure, "a controller does not answer this one"),
        }
    }
}

impl RaftNetwork<Types> for Link {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, RPCError<u64, BasicNode, RaftError<u64>>> {
        let body = self.shared.member.write(self.target, &rpc).map_err(|error| Failed::Format(error).rpc())?;
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
        let line = self.shared.member.write(self.target, &rpc).map_err(|error| Failed::Format(error).rpc())?;
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
        let body = self.shared.member.write(self.target, &rpc).map_err(|error| Failed::Format(error).rpc())?;
        self.ask(request::RAFT_VOTE, body, option.hard_ttl()).await.map_err(Failed::rpc)
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(iter::repeat(UNREACHABLE_PAUSE))
    }
}
