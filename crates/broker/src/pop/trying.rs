//! The tries of a pop: at once, and on another thread where bytes have to come from the device or where much has to be passed over, so that
//! no connection's task waits for one. Each try ends in an answer, in a place to wait, or in the next try.

use net::{Outgoing, ReplyTo};

use super::collect::{Basket, Shelf};
use crate::broker::Broker;
use crate::cold;
use crate::session::Session;
use crate::state::want::At;

/// A pop that has passed its checks: handles and numbers, no borrowed text, so that it can be tried anywhere.
pub(super) trait Order: Sized + Send + 'static {
    /// Where its answer goes.
    fn reply_to(&self) -> ReplyTo;

    /// Whether what it wants takes long to find.
    fn takes_long(&self) -> bool;

    /// One try.
    fn fill(&self, shelf: &Shelf, at: At) -> Basket;

    /// Answers or parks it after a try. Gives it back if it must be tried again.
    fn conclude(self, broker: &Broker, session: &mut Session, basket: &Basket, out: &mut Outgoing) -> Option<Self>;
}

/// Tries until there is an answer, or the pop has found a place to wait.
pub(super) fn run<O: Order>(broker: &Broker, session: &mut Session, mut order: O, out: &mut Outgoing) {
    // Ends when nothing came between a look and the parking.
    loop {
        if order.takes_long() {
            return fetch(broker, session, order, At::Filter, out);
        }
        let basket = order.fill(&Shelf::of_session(broker, session), At::Worker);
        session.took(basket.steps());
        if let Some(at) = elsewhere(&basket) {
            return fetch(broker, session, order, at, out);
        }
        match order.conclude(broker, session, &basket, out) {
            Some(again) => order = again,
            None => return,
        }
    }
}

/// Where a try goes on that found nothing and has not seen everything.
fn elsewhere(basket: &Basket) -> Option<At> {
    match basket.count {
        0 if basket.is_cold => Some(At::Cold),
        0 if basket.is_undone && basket.failure.is_none() => Some(At::Filter),
        _ => None,
    }
}

/// Looks on another thread; the answer comes back through the inbox. What is passed over there is behind the group, so each look of those that
/// follow each other gets on.
fn fetch<O: Order>(broker: &Broker, session: &mut Session, order: O, at: At, out: &mut Outgoing) {
    let (shelf, reply_to) = (Shelf::of_session(broker, session), order.reply_to());
    let look = move |_: &_| {
        let basket = order.fill(&shelf, at);
        (order, basket)
    };
    let looking = cold::read_at(at, broker, session, look, move |broker, session, (order, basket), out| {
        if let Some(at) = elsewhere(&basket).filter(|next| *next != At::Cold || at != At::Cold) {
            return fetch(broker, session, order, at, out);
        }
        if let Some(order) = order.conclude(broker, session, &basket, out) {
            run(broker, session, order, out);
        }
    });
    if let Err(full) = looking {
        out.reply(reply_to, full.code, Some(&full.remark), &(), &[]);
    }
}
