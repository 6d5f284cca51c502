//! A client as the broker reaches it, on a remoting connection or in this process: to wake what it has parked, and to ask it something.

use std::fmt;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use net::{CallError, Connection, Debt, Response};
use protocol::code::request;
use protocol::header::EncodeFields;
use protocol::request::{
    CheckTransactionState, ConsumeMessageDirectly, GetConsumerRunningInfo, GetConsumerStatus, NotifyConsumerIdsChanged,
    NotifyUnsubscribeLite, PushReply, ResetOffset,
};
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

/// Numbers of clients in this process begin here. Those of connections count from 1, and do not come so far.
const FIRST_LOCAL_ID: u64 = 1 << 63;

static NEXT_LOCAL_ID: AtomicU64 = AtomicU64::new(FIRST_LOCAL_ID);
static NO_BODY: Bytes = Bytes::new();

/// Work that is handed back to a connection's own task.
pub enum Work {
    /// There is something in the session's own inbox: woken requests, bytes that came from the
    /// disk.
    Errands,
}

/// What the broker asks a client, or tells it. The fields are those of the request that a remoting client gets.
#[derive(Clone)]
pub enum ClientQuestion<'a> {
    /// 39: is the transaction committed? With the half message, as a record.
    CheckTransaction(CheckTransactionState<'a>, Bytes),
    /// 40: the members of a group have changed.
    GroupChanged(NotifyConsumerIdsChanged<'a>),
    /// 220: where the group goes on, as JSON.
    ResetOffsets(ResetOffset<'a>, Bytes),
    /// 221: how far has the client come?
    Offsets(GetConsumerStatus<'a>),
    /// 307: what is the client doing?
    RunningInfo(GetConsumerRunningInfo<'a>),
    /// 309: consume this record now.
    Consume(ConsumeMessageDirectly<'a>, Bytes),
    /// 326: the reply to a request that the client sent, with its body.
    Reply(PushReply<'a>, Bytes),
    /// 200073: another client has taken over a lite topic.
    LiteUnsubscribed(NotifyUnsubscribeLite<'a>),
}

impl ClientQuestion<'_> {
    /// Code, fields and body of the request that asks it.
    fn as_request(&self) -> (i32, &(dyn EncodeFields + Sync), &Bytes) {
        match self {
            ClientQuestion::CheckTransaction(fields, half) => (request::CHECK_TRANSACTION_STATE, fields, half),
            ClientQuestion::GroupChanged(fields) => (request::NOTIFY_CONSUMER_IDS_CHANGED, fields, &NO_BODY),
            ClientQuestion::ResetOffsets(fields, body) => (request::RESET_CONSUMER_CLIENT_OFFSET, fields, body),
            ClientQuestion::Offsets(fields) => (request::GET_CONSUMER_STATUS_FROM_CLIENT, fields, &NO_BODY),
            ClientQuestion::RunningInfo(fields) => (request::GET_CONSUMER_RUNNING_INFO, fields, &NO_BODY),
            ClientQuestion::Consume(fields, record) => (request::CONSUME_MESSAGE_DIRECTLY, fields, record),
            ClientQuestion::Reply(fields, body) => (request::PUSH_REPLY_MESSAGE_TO_CLIENT, fields, body),
            ClientQuestion::LiteUnsubscribed(fields) => (request::NOTIFY_UNSUBSCRIBE_LITE, fields, &NO_BODY),
        }
    }
}

/// What a client answers.
#[derive(Clone, Debug)]
pub struct ClientAnswer {
    /// 0 is success.
    pub code: i32,
    /// Text for people.
    pub remark: Option<String>,
    /// JSON, where the question asks for a body.
    pub body: Bytes,
}

impl From<Response> for ClientAnswer {
    fn from(response: Response) -> ClientAnswer {
        ClientAnswer { code: response.code, remark: response.remark, body: response.body }
    }
}

/// Takes what the broker asks a client of this process, and where the answer goes if one is awaited. False if the client cannot be asked now.
pub type Hears = dyn Fn(&ClientQuestion<'_>, Option<oneshot::Sender<ClientAnswer>>) -> bool + Send + Sync;

/// A client in this process.
pub struct LocalClient {
    id: u64,
    peer: SocketAddr,
    hears: Box<Hears>,
    /// Rung when something that the client has parked was woken: its callers look which of them it was.
    bell: Notify,
    /// Release and acquire: what it has parked is looked for after that.
    is_over: AtomicBool,
}

impl LocalClient {
    /// A client at that address, which `hears` what the broker asks. It must not block.
    pub fn new(peer: SocketAddr, hears: Box<Hears>) -> Arc<LocalClient> {
        let id = NEXT_LOCAL_ID.fetch_add(1, Ordering::Relaxed);
        Arc::new(LocalClient { id, peer, hears, bell: Notify::new(), is_over: AtomicBool::new(false) })
    }

    /// Rings when something was woken, or when it has ended.
    pub(crate) fn rung(&self) -> Notified<'_> {
        self.bell.notified()
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    async fn ask(&self, question: &ClientQuestion<'_>, within: Duration) -> Result<ClientAnswer, CallError> {
        let address = || self.peer.to_string();
        let (answer, answered) = oneshot::channel();
        if self.is_over() {
            return Err(CallError::Closed { address: address() });
        }
        if !(self.hears)(question, Some(answer)) {
            return Err(CallError::Busy { address: address() });
        }
        tokio::select! {
            biased;
            answered = timeout(within, answered) => match answered {
                Ok(answer) => answer.map_err(|_| CallError::Closed { address: address() }),
                Err(_) => Err(CallError::Timeout { address: address(), after: within }),
            },
            () = self.over() => Err(CallError::Closed { address: address() }),
        }
    }

    /// Ready when it has ended.
    async fn over(&self) {
        // Ends with the client: each round waits for a ring.
        loop {
            let mut rung = pin!(self.rung());
            // Before the look: an end after that rings.
            rung.as_mut().enable();
            if self.is_over() {
                return;
            }
            rung.await;
        }
    }
}

impl fmt::Debug for LocalClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalClient").field("id", &self.id).field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// A client. Clones are the same client.
#[derive(Clone, Debug)]
pub enum ClientHandle {
    /// On a remoting connection.
    Remoting(Connection<Work>),
    /// In this process.
    Local(Arc<LocalClient>),
}

/// An answer that is owed to a client: a remoting connection that drains waits until it is dropped.
#[must_use = "dropped, it holds nothing back"]
pub(crate) struct OwedAnswer {
    _debt: Option<Debt<Work>>,
}

impl ClientHandle {
    /// Different for every client of this process.
    pub fn id(&self) -> u64 {
        match self {
            ClientHandle::Remoting(connection) => connection.id(),
            ClientHandle::Local(client) => client.id,
        }
    }

    /// Where it is.
    pub fn peer(&self) -> SocketAddr {
        match self {
            ClientHandle::Remoting(connection) => connection.peer(),
            ClientHandle::Local(client) => client.peer,
        }
    }

    /// Tells it something, and drops the answer. False if it is gone, or has too much to hear.
    pub fn tell(&self, question: &ClientQuestion<'_>) -> bool {
        match self {
            ClientHandle::Remoting(connection) => {
                let (code, fields, body) = question.as_request();
                connection.oneway(code, fields, body)
            }
            ClientHandle::Local(client) => !client.is_over() && (client.hears)(question, None),
        }
    }

    /// Asks it something, and awaits the answer.
    pub async fn ask(&self, question: ClientQuestion<'_>, within: Duration) -> Result<ClientAnswer, CallError> {
        match self {
            ClientHandle::Remoting(connection) => {
                let begun = {
                    let (code, fields, body) = question.as_request();
                    connection.begin(code, fields, body)?
                };
                Ok(begun.response(within).await?.into())
            }
            ClientHandle::Local(client) => client.ask(&question, within).await,
        }
    }

    /// Ends it.
    pub fn close(&self) {
        match self {
            ClientHandle::Remoting(connection) => connection.close(),
            ClientHandle::Local(client) => {
                client.is_over.store(true, Ordering::Release);
                client.bell.notify_waiters();
            }
        }
    }

    /// Whether it takes no answer any more.
    pub(crate) fn is_over(&self) -> bool {
        match self {
            ClientHandle::Remoting(connection) => connection.is_over(),
            ClientHandle::Local(client) => client.is_over(),
        }
    }

    /// For an answer that will be pushed.
    pub(crate) fn owe(&self) -> OwedAnswer {
        match self {
            ClientHandle::Remoting(connection) => OwedAnswer { _debt: Some(connection.owe()) },
            ClientHandle::Local(_) => OwedAnswer { _debt: None },
        }
    }

    /// Has its task look into its inbox.
    pub(crate) fn note(&self) {
        match self {
            // An inbox that is full needs no note: the task looks there after each piece of work. One that is closed will not be
            // looked into any more, and what lies there goes with it.
            ClientHandle::Remoting(connection) => {
                let _ = connection.post(Work::Errands);
            }
            ClientHandle::Local(client) => client.bell.notify_waiters(),
        }
    }
}
