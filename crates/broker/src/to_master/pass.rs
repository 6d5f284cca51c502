//! Takes requests of clients for the master.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use net::{Burst, Connection, Frames, ListenerTag, Outgoing, ReplyTo, Request};
use protocol::code::{RequestCode, ResponseCode};
use protocol::frame;
use tokio::time::Instant;

use super::asked::{is_passed_on, refuse_asked};
use crate::answer::reply_extra;
use crate::broker::Broker;
use crate::client_handle::{OwedAnswer, Work};
use crate::inbox::{Errand, Inbox};
use crate::refusal::Refusal;
use crate::session::Session;
use crate::state::role::BUSY;
use crate::state::to_master::{Asker, Counts, HELD_MAX, Passed};

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
    let asked = Asked::of(code, request);
    let frame = || frame::of_parts(request.serialization, request.head, request.body);
    queue(broker, session, asked, frame, refusal).await
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
    knows_go_away: bool,
}

impl Asked {
    fn of(code: RequestCode, request: &Request<'_>) -> Asked {
        let bytes = frame::PREFIX_BYTES + request.bytes();
        Asked { code, reply_to: request.reply_to(), bytes, knows_go_away: request.knows_go_away() }
    }
}

/// Queues it, once there is room; `frame` makes its frame then.
async fn queue(
    broker: &Broker,
    session: &mut Session,
    Asked { code, reply_to, bytes, knows_go_away }: Asked,
    frame: impl FnOnce() -> Bytes,
    refusal: Refusal,
) -> Result<(), Refusal> {
    let to_master = &broker.to_master;
    // Since it came: those of a burst wait together, and what a master has held before it was replaced counts.
    let now = Instant::now();
    let until = now + HELD_MAX.saturating_sub(reply_to.came.until(now));
    let full = |why: String| {
        Counts::count(&to_master.counts.refused);
        Refusal::new(refusal.code, format!("{}; {why}", refusal.remark))
    };
    // An answer that nobody reads takes memory.
    drop(session.connection.lay_aside(0).map_err(|many| full(many.to_string()))?);
    let room = to_master.room(bytes, until).await.map_err(full)?;
    let waits_long =
        matches!(code, RequestCode::POP_MESSAGE | RequestCode::NOTIFICATION | RequestCode::POP_LITE_MESSAGE);
    to_master.push(Passed {
        number: 0,
        frame: frame(),
        client: session.connection.peer(),
        reply_to,
        is_held: false,
        until,
        asker: Box::new(OfConnection::of(session, waits_long)),
        knows_go_away,
        waits_long,
        refusal,
        _room: room,
    });
    Ok(())
}

/// The connection of a client. It is not kept by what the master still works on when it has ended.
struct OfConnection {
    inbox: Weak<Inbox>,
    connection: Connection<Work>,
    /// The connection stays until the answer is there.
    debt: Option<OwedAnswer>,
}

impl OfConnection {
    /// A connection that ends does not wait until there are messages, here as at a master.
    fn of(session: &Session, waits_long: bool) -> OfConnection {
        let debt = (!waits_long).then(|| session.inbox.owe());
        OfConnection { inbox: Arc::downgrade(&session.inbox), connection: session.connection.clone(), debt }
    }
}

impl Asker for OfConnection {
    fn answer(self: Box<Self>, answer: Frames) {
        let Some(inbox) = self.inbox.upgrade() else { return };
        // It has come, and is given, however much others have filled meanwhile.
        let laid = self.connection.lay_aside(answer.memory_bytes()).ok();
        inbox.push(Errand::then(move |_, _, out| {
            out.extend(answer);
            drop(laid);
        }));
        drop(self.debt);
    }

    fn goes_away(&self) -> bool {
        self.connection.goes_away()
    }
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
    let mut shown: Vec<(ReplyTo, Found)> = Vec::new();
    burst.again(|request| {
        let (asked, Some(code)) = (request.reply_to(), RequestCode::from_i32(request.header.code)) else { return };
        let is_of_broker = code == RequestCode::ASK_FOR_CLIENT;
        let is_it = |left: &ReplyTo| left.opaque == asked.opaque && (left.code == asked.code || is_of_broker);
        if !left.iter().any(is_it) {
            return;
        }
        if is_of_broker {
            shown.push((asked, Found::OfBroker));
        } else if is_passed_on(code) {
            let frame = frame::of_parts(request.serialization, request.head, request.body);
            shown.push((asked, Found::OfClient(Asked::of(code, request), frame)));
        }
    });
    // From the end: what was appended came before what is left, also if its number is the same.
    let mut all: Vec<(ReplyTo, Option<Found>)> = Vec::with_capacity(left.len());
    for left in left.into_iter().rev() {
        let is_it = |(asked, found): &(ReplyTo, Found)| {
            asked.opaque == left.opaque && (asked.code == left.code || matches!(found, Found::OfBroker))
        };
        let place = shown.iter().rposition(is_it);
        all.push((left, place.map(|place| shown.remove(place).1)));
    }
    all.reverse();
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
