//! Our own requests on a connection: their numbers, who waits for them, and the responses.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use protocol::frame::{FrameLayout, Serialization};
use protocol::header::{EncodeFields, FieldSink, Fields, Header, HeaderScratch};
use tokio::sync::oneshot;

use crate::tls::TlsError;

/// A response larger than this shares the read buffer; a smaller one is copied, so that it does not pin the buffer.
const SHARE_FRAME_FROM_BYTES: usize = 8 << 10;

/// Why a call of ours brought no response.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CallError {
    /// The address has no host, no port, or a name that nobody resolves.
    #[error("cannot resolve {address}: {cause}")]
    Resolve {
        /// As given.
        address: String,
        /// What the resolver said.
        cause: Arc<io::Error>,
    },
    /// No connection.
    #[error("cannot connect to {address}: {cause}")]
    Connect {
        /// As given.
        address: String,
        /// What the system said.
        cause: Arc<io::Error>,
    },
    /// The last attempt failed a moment ago; nothing was tried now.
    #[error("not connecting to {address} for another {retry_in:?}: {cause}")]
    BackingOff {
        /// As given.
        address: String,
        /// Of the last attempt.
        cause: String,
        /// When the next attempt will be made.
        retry_in: Duration,
    },
    /// TLS was asked for and cannot be set up.
    #[error(transparent)]
    Tls(Arc<TlsError>),
    /// No response in time. The peer may still do what it was asked.
    #[error("no response from {address} within {after:?}")]
    Timeout {
        /// Who was asked.
        address: String,
        /// The time that was given.
        after: Duration,
    },
    /// The connection ended before the response came. The peer may have done what it was asked.
    #[error("connection to {address} closed before the response")]
    Closed {
        /// Who was asked.
        address: String,
    },
    /// More is waiting on this connection than it may hold; nothing was sent.
    #[error("too much in flight to {address}")]
    Busy {
        /// Who should have been asked.
        address: String,
    },
}

/// A peer's answer.
#[derive(Debug)]
pub struct Response {
    /// 0 is success.
    pub code: i32,
    /// Text for people.
    pub remark: Option<String>,
    /// The `extFields`.
    pub fields: OwnedFields,
    /// The body.
    pub body: Bytes,
    /// The peer's version.
    pub version: i32,
}

/// The `extFields` of a response, kept.
pub struct OwnedFields {
    header: Bytes,
    scratch: HeaderScratch,
}

impl OwnedFields {
    /// The value of a field.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.as_fields().get(name)
    }

    /// In the form that the request tables decode.
    pub fn as_fields(&self) -> Fields<'_> {
        self.scratch.fields(&self.header)
    }
}

impl fmt::Debug for OwnedFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_fields().fmt(f)
    }
}

impl EncodeFields for OwnedFields {
    fn encode(&self, sink: &mut FieldSink<'_>) {
        self.as_fields().encode(sink);
    }
}

/// Who waits for which number on one connection.
#[derive(Debug)]
pub(crate) struct Calls {
    // Relaxed: a number has to be unlike its neighbours, nothing else.
    next: AtomicI32,
    /// Guards the waiting callers. Taken after no other lock.
    waiting: Mutex<Waiting>,
    waiting_max: usize,
}

#[derive(Debug, Default)]
struct Waiting {
    callers: HashMap<i32, oneshot::Sender<Response>>,
    is_closed: bool,
}

pub(crate) enum NotEntered {
    Closed,
    Full,
}

impl Calls {
    pub(crate) fn new(waiting_max: usize) -> Calls {
        Calls { next: AtomicI32::new(0), waiting: Mutex::default(), waiting_max }
    }

    /// A number for a request that nobody waits for.
    pub(crate) fn number(&self) -> i32 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// A place in the table, by its number. Whoever took it calls [`Calls::leave`] at the end, so that a caller that went away leaves
    /// nothing behind.
    pub(crate) fn enter(&self) -> Result<(i32, oneshot::Receiver<Response>), NotEntered> {
        let opaque = self.number();
        let (sender, receiver) = oneshot::channel();
        let mut waiting = self.waiting.lock();
        if waiting.is_closed {
            return Err(NotEntered::Closed);
        }
        if waiting.callers.len() >= self.waiting_max {
            return Err(NotEntered::Full);
        }
        // After 2^32 calls a number comes back; whoever still waits under it then is told that the connection failed it.
        waiting.callers.insert(opaque, sender);
        Ok((opaque, receiver))
    }

    /// Gives a place in the table back.
    pub(crate) fn leave(&self, opaque: i32) {
        self.waiting.lock().callers.remove(&opaque);
    }

    /// Gives a response to whoever waits for it; one that nobody waits for any more is dropped, as Apache does.
    pub(crate) fn answered(&self, header: &Header<'_>, frame: Bytes, layout: &FrameLayout) {
        let Some(caller) = self.waiting.lock().callers.remove(&header.opaque) else { return };
        let frame = if frame.len() < SHARE_FRAME_FROM_BYTES { Bytes::copy_from_slice(&frame) } else { frame };
        let response = Response {
            code: header.code,
            remark: header.remark.map(str::to_owned),
            fields: owned_fields(&frame, layout),
            body: frame.slice(layout.body.clone()),
            version: header.version,
        };
        // The caller may have gone away in this moment.
        drop(caller.send(response));
    }

    /// Tells everybody that no response will come.
    pub(crate) fn close(&self) {
        let mut waiting = self.waiting.lock();
        waiting.is_closed = true;
        waiting.callers.clear();
    }
}

fn owned_fields(frame: &Bytes, layout: &FrameLayout) -> OwnedFields {
    let mut owned = OwnedFields { header: frame.slice(layout.header.clone()), scratch: HeaderScratch::new() };
    let serialization: Serialization = layout.serialization;
    // It was decoded a moment ago from the same bytes; were that ever untrue, the response would have no fields.
    if protocol::header::decode(&owned.header, serialization, &mut owned.scratch).is_err() {
        owned.scratch = HeaderScratch::new();
    }
    owned
}
