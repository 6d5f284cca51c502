//! Takes requests of clients for the master.

use std::sync::Arc;

use bytes::Bytes;
use net::{Burst, ListenerTag, Outgoing, ReplyTo, Request};
use protocol::code::{RequestCode, ResponseCode};
use protocol::frame;
use tokio::time::Instant;

use super::asked::{is_passed_on, refuse_asked};
use crate::answer::reply_extra;
use crate::broker::Broker;
use crate::inbox::Errand;
use crate::refusal::Refusal;
use crate::session::Session;
use crate::state::role::BUSY;
use crate::state::to_master::{Counts, Deliver, HELD_MAX, Passed};

/// Takes a request that this broker may not carry out, because of `refusal`, for the master.
/// Refuses it if this broker asks no master for such a request.
pub(crate) async fn pass_on(
    broker: &Broker,
    session: &mut Session,
    code: RequestCode,
    request: &Request<'_>,
    refusal: Refusal,
) -> Result<(), Refusal> {
    let row = code.row();
    let is_elsewhere = row.is_main_port_only && session.connection.listener() == ListenerTag::VIP;
    if is_elsewhere || !is_passed_on(code) || !has_own_master(broker) {
        return Err(refusal);
    }
    let bytes = frame::PREFIX_BYTES + request.bytes();
    let frame = || frame::of_parts(request.serialization, request.head, request.body);
    queue(broker, session, Asked { code, reply_to: request.reply_to(), bytes }, frame, refusal).await
}

/// Whether this broker asks its master for its clients: that of a broker of Apache does not.
fn has_own_master(broker: &Broker) -> bool {
    let is_apaches = !broker.switch.is_fenced() && broker.following.agrees() && !broker.following.status.is_own();
    broker.settings.load().forward_to_master && !is_apaches
}

/// A request that is to be passed on.
#[derive(Clone, Copy)]
struct Asked {
    code: RequestCode,
    reply_to: ReplyTo,
    /// Of its frame.
    bytes: usize,
}

/// Queues it, once there is room; `frame` makes its frame then.
async fn queue(
    broker: &Broker,
    session: &mut Session,
    Asked { code, reply_to, bytes }: Asked,
    frame: impl FnOnce() -> Bytes,
    refusal: Refusal,
) -> Result<(), Refusal> {
    let to_master = &broker.to_master;
    let until = Instant::now() + HELD_MAX;
    let full = |why: String| {
        Counts::count(&to_master.counts.refused);
        Refusal::new(refusal.code, format!("{}; {why}", refusal.remark))
    };
    // An answer that nobody reads takes memory.
    drop(session.connection.lay_aside(0).map_err(|many| full(many.to_string()))?);
    let room = to_master.room(bytes, until).await.map_err(full)?;
    let (client, deliver) = (session.connection.peer(), deliver(session, code));
    to_master.push(Passed { frame: frame(), client, reply_to, until, deliver, refusal, _room: room });
    Ok(())
}

/// Lays the answer into the inbox of the connection.
fn deliver(session: &Session, code: RequestCode) -> Deliver {
    // A connection that has ended is not kept by what the master still works on.
    let (inbox, connection) = (Arc::downgrade(&session.inbox), session.connection.clone());
    // A connection that ends does not wait until there are messages, here as at a master.
    let waits_long =
        matches!(code, RequestCode::POP_MESSAGE | RequestCode::NOTIFICATION | RequestCode::POP_LITE_MESSAGE);
    let debt = (!waits_long).then(|| session.inbox.owe());
    Box::new(move |frames| {
        let Some(inbox) = inbox.upgrade() else { return };
        // It has come, and is given, however much others have filled meanwhile.
        let laid = connection.lay_aside(frames.memory_bytes()).ok();
        inbox.push(Errand::then(move |_, _, out| {
            out.extend(frames);
            drop(laid);
        }));
        drop(debt);
    })
}

/// What a burst has of a request that is left.
enum Found {
    /// The client's own, with its frame.
    OfClient(Asked, Bytes),
    /// Another broker has asked for its client, and holds the request itself.
    OfBroker,
}

/// Takes for the master what this broker has gathered as a master and could not append, because
/// another one took its place. The requests stand in the burst.
pub(crate) async fn pass_on_left(broker: &Broker, session: &mut Session, burst: &Burst<'_>, out: &mut Outgoing) {
    let left = std::mem::take(&mut session.sends.for_master);
    let mut all: Vec<(ReplyTo, Option<Found>)> = left.into_iter().map(|left| (left, None)).collect();
    burst.again(|request| {
        let (asked, Some(code)) = (request.reply_to(), RequestCode::from_i32(request.header.code)) else { return };
        let is_of_broker = code == RequestCode::ASK_FOR_CLIENT;
        let is_it = |(left, found): &&mut (ReplyTo, Option<Found>)| {
            found.is_none() && left.opaque == asked.opaque && (left.code == asked.code || is_of_broker)
        };
        let Some((_, found)) = all.iter_mut().find(is_it) else { return };
        if is_of_broker {
            *found = Some(Found::OfBroker);
        } else if is_passed_on(code) {
            let frame = frame::of_parts(request.serialization, request.head, request.body);
            *found = Some(Found::OfClient(Asked { code, reply_to: asked, bytes: frame.len() }, frame));
        }
    });
    for (left, found) in all {
        let passed = match found {
            Some(Found::OfBroker) => {
                refuse_asked(broker, left, out);
                continue;
            }
            Some(Found::OfClient(asked, frame)) if has_own_master(broker) => {
                queue(broker, session, asked, || frame, replaced()).await
            }
            Some(Found::OfClient(..)) | None => Err(replaced()),
        };
        if let Err(refusal) = passed {
            refuse(broker, left, &refusal, out);
        }
    }
}

/// Refuses them: they do not stand in a burst.
pub(crate) fn refuse_left(broker: &Broker, session: &mut Session, out: &mut Outgoing) {
    for left in std::mem::take(&mut session.sends.for_master) {
        refuse(broker, left, &replaced(), out);
    }
}

fn refuse(broker: &Broker, left: ReplyTo, refusal: &Refusal, out: &mut Outgoing) {
    if left.is_oneway {
        broker.oneway_refusals.note(refusal, broker.clock.now().0);
    }
    out.reply(left, refusal.code, Some(&refusal.remark), &reply_extra(&broker.settings.load()), &[]);
}

/// What a send hears that a master had taken and that another one has to store.
fn replaced() -> Refusal {
    Refusal::new(ResponseCode::SystemBusy, BUSY)
}
