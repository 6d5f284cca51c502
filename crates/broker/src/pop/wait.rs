//! Pops, and questions for something to pop, while they wait: they lie with their connection, and
//! `rooms.rs` has their numbers.

use std::any::Any;
use std::sync::Arc;

use config::BrokerSettings;
use net::Outgoing;

use super::lite::LiteOrder;
use super::look::NotifyOrder;
use super::take::PopOrder;
use crate::broker::Broker;
use crate::group_topic::KeyRef;
use crate::parked::Parked;
use crate::session::Session;
use crate::waiting::hold::{Lane, Slot, Wake};
use crate::waiting::rooms::{ANY_QUEUE, CannotWait, PopWait, Ticket};

/// A request that waits.
pub(crate) enum Waiting {
    Pop(PopOrder),
    Lite(LiteOrder),
    Notify(NotifyOrder),
}

impl Waiting {
    /// The queue that it names, and whether it takes what there is.
    fn sought(&self) -> (i32, bool) {
        match self {
            Waiting::Pop(order) => (order.queue_id, true),
            Waiting::Lite(_) => (ANY_QUEUE, true),
            Waiting::Notify(order) => (order.queue_id, false),
        }
    }

    /// Sets whether its answer is that of a long poll, and says whether it was before.
    fn set_held(&mut self, is_held: bool) -> bool {
        let reply_to = match self {
            Waiting::Pop(order) => &mut order.reply_to,
            Waiting::Lite(order) => &mut order.pop.reply_to,
            Waiting::Notify(order) => &mut order.reply_to,
        };
        std::mem::replace(&mut reply_to.is_held, is_held)
    }
}

/// Parks a request. Look at the queues again afterwards, and [`take_back`] it if there is
/// something. Gives the request back with why it cannot wait.
pub(super) fn park<'a>(
    broker: &Broker,
    session: &mut Session,
    key: KeyRef<'_>,
    lanes: impl Iterator<Item = &'a Arc<Lane>>,
    tick: u64,
    mut waiting: Waiting,
    settings: &BrokerSettings,
) -> Result<Ticket, (Option<Box<Waiting>>, Box<CannotWait>)> {
    let (queue_id, takes) = waiting.sought();
    let was_held = waiting.set_held(true);
    let slot = session.parked.put(Parked::Pop(Box::new(waiting)));
    let wait = PopWait { slot, tick, queue_id, takes };
    let parked = broker.hold.rooms.park(&session.inbox.waiter, wait, key, lanes, settings);
    parked.map_err(|why| (taken(session, slot, was_held), why))
}

/// Takes a request back, unless it was woken in between.
pub(super) fn take_back(broker: &Broker, session: &mut Session, ticket: &Ticket) -> Option<Box<Waiting>> {
    let slot = broker.hold.rooms.take_back(ticket)?;
    taken(session, slot, false)
}

/// One that does not wait any more.
fn taken(session: &mut Session, slot: Slot, is_held: bool) -> Option<Box<Waiting>> {
    let Some(Parked::Pop(waiting)) = session.parked.take(slot) else { return None };
    let mut waiting = waiting.downcast::<Waiting>().ok()?;
    waiting.set_held(is_held);
    Some(waiting)
}

/// One has come back.
pub(crate) fn resume(
    broker: &Broker,
    session: &mut Session,
    waiting: Box<dyn Any + Send>,
    wake: Wake,
    out: &mut Outgoing,
) {
    let Ok(waiting) = waiting.downcast::<Waiting>() else { return };
    let is_over = wake == Wake::Expired;
    match *waiting {
        Waiting::Pop(order) => super::take::resume(broker, session, order, is_over, out),
        Waiting::Lite(order) => super::lite::resume(broker, session, order, is_over, out),
        Waiting::Notify(order) => super::look::resume(broker, session, order, is_over, out),
    }
}
