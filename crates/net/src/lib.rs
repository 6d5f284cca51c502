//! Connections: the one loop, listeners, TLS, PROXY protocol, outgoing calls.
//!
//! One task owns one socket. It reads whatever the socket holds, cuts it into frames, hands the whole burst to a [`Service`]
//! and writes all replies with one call. Others reach a connection through its [`Connection`] handle, whose inbox is bounded.
//! Calls go out through [`Client`], which runs the very same loop. No request code is known here.

mod bounds;
mod call;
mod client;
mod connection;
mod connection_slots;
mod detached;
mod listener;
mod outgoing;
mod prelude;
mod proxy_protocol;
mod reader;
mod service;
mod strangers;
mod stream;
mod task;
mod tls;

pub use bounds::{Budget, Held, KeptBack};
pub use call::{CallError, OwnedFields, Response};
pub use client::{Call, Client, ClientOptions, Inbound, RefuseInbound};
pub use connection::{Begun, Connection, Debt, LaidAside, ListenerTag, RepliesAreMany};
pub use connection_slots::{ConnectionSlot, ConnectionSlots, Newcomer, NoPlace, PlaceFigures};
#[doc(hidden)]
pub use detached::{Detached, over};
pub use listener::{Closing, Listener, ListenerOptions, Port};
pub use outgoing::{Answered, Arrival, COPIED_BELOW_BYTES, Frames, Outgoing, ReplyTo, SHARE_FROM_BYTES, SharedSlice};
pub use service::{Burst, OwnedRequest, Request, Service};
#[doc(hidden)]
pub use stream::Bytewise;
pub use tls::{ClientAuth, ClientTls, ServerCheck, TlsError, TlsMode, TlsSettings};
