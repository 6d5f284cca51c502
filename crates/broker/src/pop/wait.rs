//! Pops, and questions for something to pop, while they wait: they lie with their connection, and
//! `pop_waiters.rs` has their numbers.

use std::any::Any;
use std::sync::Arc;

use net::{Outgoing, ReplyTo};

use super::collect::PopSources;
use super::lite::CheckedLitePop;
use super::look::CheckedNotify;
use super::take::CheckedPop;
use super::trying::{self, Try};
use crate::broker::Broker;
use crate::caller::Caller;
use crate::group_topic::GroupTopicRef;
use crate::parked::Parked;
use crate::session::Session;
use crate::waiting::hold::{Lane, Slot, Wake};
use crate::waiting::pop_waiters::{ANY_QUEUE, CannotWait, PopWait, Ticket};

/// A request that waits.
pub(crate) enum Waiting {
    Pop(CheckedPop),
    Lite(CheckedLitePop),
    Notify(CheckedNotify),
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
}

/// Parks a request. Look at the queues again afterwards, and [`take_back`] it if there is
/// something. Gives the request back with why it cannot wait.
pub(super) fn park<'a>(
    sources: &PopSources,
    caller: &mut Caller,
    key: GroupTopicRef<'_>,
    lanes: impl Iterator<Item = &'a Arc<Lane>>,
    tick: u64,
    waiting: Waiting,
) -> Result<Ticket, (Option<Box<Waiting>>, Box<CannotWait>)> {
    let (queue_id, takes) = waiting.sought();
    // Its answer is that of a long poll then.
    let reply_to = caller.asked().map(|reply_to| ReplyTo { is_held: true, ..reply_to });
    let slot = caller.parked.put(Parked::Pop(Box::new(waiting), reply_to));
    let wait = PopWait { slot, tick, queue_id, takes };
    let parked = sources.hold.pops.park(&caller.waiter, wait, key, lanes, &sources.settings);
    parked.map_err(|why| (taken(caller, slot), why))
}

/// Takes a request back, unless it was woken in between.
pub(super) fn take_back(sources: &PopSources, caller: &mut Caller, ticket: &Ticket) -> Option<Box<Waiting>> {
    let slot = sources.hold.pops.take_back(ticket)?;
    taken(caller, slot)
}

/// One that does not wait any more.
fn taken(caller: &mut Caller, slot: Slot) -> Option<Box<Waiting>> {
    let Some(Parked::Pop(waiting, _)) = caller.parked.take(slot) else { return None };
    waiting.downcast::<Waiting>().ok()
}

/// One of a remoting connection has come back.
pub(crate) fn resume(
    broker: &Broker,
    session: &mut Session,
    waiting: Box<dyn Any + Send>,
    reply_to: Option<ReplyTo>,
    wake: Wake,
    out: &mut Outgoing,
) {
    let (Ok(waiting), Some(reply_to)) = (waiting.downcast::<Waiting>(), reply_to) else { return };
    session.answering(broker, Some(reply_to), out, |session, out| match *waiting {
        Waiting::Pop(_) => go_on::<CheckedPop>(broker, session, *waiting, wake, reply_to, out),
        Waiting::Lite(_) => go_on::<CheckedLitePop>(broker, session, *waiting, wake, reply_to, out),
        Waiting::Notify(order) => super::look::resume(broker, session, order, wake, reply_to, out),
    });
}

fn go_on<T: Try>(
    broker: &Broker,
    session: &mut Session,
    waiting: Waiting,
    wake: Wake,
    reply_to: ReplyTo,
    out: &mut Outgoing,
) {
    match T::back(&broker.groups, waiting, wake) {
        Ok(order) => trying::run(broker, session, order, reply_to, out),
        Err(refusal) => out.reply(reply_to, refusal.code, Some(&refusal.remark), &(), &[]),
    }
}
