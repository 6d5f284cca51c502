//! The tries of a pop: at once, and on a cold-read thread where bytes have to come from the device, so that no connection's task waits
//! for one. Each try ends in an answer, in a place to wait, or in the next try.

use net::{Outgoing, ReplyTo};

use super::collect::{Basket, Shelf};
use crate::broker::Broker;
use crate::session::Session;
use crate::view;

/// A pop that has passed its checks: handles and numbers, no borrowed text, so that it can be tried anywhere.
pub(super) trait Order: Sized + Send + 'static {
    /// Where its answer goes.
    fn reply_to(&self) -> ReplyTo;

    /// One try; it may wait for the device if it may fault.
    fn fill(&self, shelf: &Shelf, may_fault: bool) -> Basket;

    /// Answers or parks it after a try. Gives it back if it must be tried again.
    fn conclude(self, broker: &Broker, session: &mut Session, basket: &Basket, out: &mut Outgoing) -> Option<Self>;
}

/// Tries until there is an answer, or the pop has found a place to wait.
pub(super) fn run<O: Order>(broker: &Broker, session: &mut Session, mut order: O, out: &mut Outgoing) {
    // Ends when nothing came between a look and the parking.
    loop {
        let basket = order.fill(&Shelf::of_session(broker, session), false);
        if basket.is_cold && basket.count == 0 {
            return fetch(broker, session, order, out);
        }
        match order.conclude(broker, session, &basket, out) {
            Some(again) => order = again,
            None => return,
        }
    }
}

/// Looks on a cold-read thread; the answer comes back through the inbox.
fn fetch<O: Order>(broker: &Broker, session: &mut Session, order: O, out: &mut Outgoing) {
    let (shelf, reply_to) = (Shelf::of_session(broker, session), order.reply_to());
    let look = move |_: &_| {
        let basket = order.fill(&shelf, true);
        (order, basket)
    };
    let looking = view::in_the_cold(broker, session, look, |broker, session, (order, basket), out| {
        if let Some(order) = order.conclude(broker, session, &basket, out) {
            run(broker, session, order, out);
        }
    });
    if let Err(full) = looking {
        out.reply(reply_to, full.code, Some(&full.remark), &(), &[]);
    }
}
