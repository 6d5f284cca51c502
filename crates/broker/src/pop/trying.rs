//! The tries of a pop: at once, and on another thread where bytes have to come from the device or where much has to be passed over, so that
//! no connection's task waits for one. Each try ends in an answer, in a place to wait, or in the next try.
//!
//! [`step`] and [`step_after`] know no protocol. [`run`] answers a remoting connection, whose task goes on with a pop that has come back;
//! [`call`] is for a caller in this process, which waits for it.

use std::sync::Arc;

use net::{Outgoing, ReplyTo};

use super::collect::{PopFound, PopSources};
use super::wait::Waiting;
use crate::broker::Broker;
use crate::caller::{Caller, ended};
use crate::cold;
use crate::parked::Parked;
use crate::refusal::Refusal;
use crate::session::Session;
use crate::state::groups::Groups;
use crate::state::message_filter::At;
use crate::state::stats::Stats;
use crate::waiting::hold::{Waiter, Wake};
use crate::waiting::pop_waiters::PopWaiterTable;

/// A pop that has passed its checks: handles and numbers, no borrowed text, so that it can be tried anywhere.
pub(super) trait Try: Sized + Send + 'static {
    /// What it brings.
    type Outcome;

    /// Whether what it wants takes long to find.
    fn takes_long(&self) -> bool;

    /// One try.
    fn fill(&self, sources: &PopSources, at: At) -> PopFound;

    /// Answers or parks it after a try.
    fn conclude(self, sources: &PopSources, stats: &Stats, caller: &mut Caller, basket: PopFound) -> Concluded<Self>;

    /// One that has waited, if it is of this kind, and may go on.
    fn back(groups: &Groups, waiting: Waiting, wake: Wake) -> Result<Self, Refusal>;

    /// Writes the answer.
    fn encode(outcome: Self::Outcome, reply_to: ReplyTo, out: &mut Outgoing);
}

/// How a try has ended.
pub(super) enum Concluded<T: Try> {
    Answered(Result<T::Outcome, Refusal>),
    /// It waits, or comes back by a wake-up already.
    Parked,
    /// It must be tried again: nothing came between a look and the parking.
    Again(T),
}

/// How far a pop has come on its caller's task.
pub(super) enum Step<T: Try> {
    Answered(Result<T::Outcome, Refusal>),
    Parked,
    /// The next try runs there.
    Elsewhere(T, At),
}

/// Tries until there is an answer, the pop has found a place to wait, or it goes on elsewhere.
fn step<T: Try>(sources: &PopSources, stats: &Stats, caller: &mut Caller, mut order: T) -> Step<T> {
    // Ends when nothing came between a look and the parking.
    loop {
        if order.takes_long() {
            return Step::Elsewhere(order, At::Filter);
        }
        let basket = order.fill(sources, At::Worker);
        caller.took(basket.steps());
        if let Some(at) = elsewhere(&basket) {
            return Step::Elsewhere(order, at);
        }
        match order.conclude(sources, stats, caller, basket) {
            Concluded::Answered(answer) => return Step::Answered(answer),
            Concluded::Parked => return Step::Parked,
            Concluded::Again(again) => order = again,
        }
    }
}

/// Goes on after a try elsewhere.
fn step_after<T: Try>(
    sources: &PopSources,
    stats: &Stats,
    caller: &mut Caller,
    order: T,
    (at, basket): (At, PopFound),
) -> Step<T> {
    if let Some(next) = elsewhere(&basket).filter(|next| *next != At::Cold || at != At::Cold) {
        return Step::Elsewhere(order, next);
    }
    match order.conclude(sources, stats, caller, basket) {
        Concluded::Answered(answer) => Step::Answered(answer),
        Concluded::Parked => Step::Parked,
        Concluded::Again(again) => step(sources, stats, caller, again),
    }
}

/// Where a try goes on that found nothing and has not seen everything.
fn elsewhere(basket: &PopFound) -> Option<At> {
    match basket.count {
        0 if basket.is_cold => Some(At::Cold),
        0 if basket.is_undone && basket.failure.is_none() => Some(At::Filter),
        _ => None,
    }
}

/// Carries out a pop of a remoting connection.
pub(super) fn run<T: Try>(broker: &Broker, session: &mut Session, order: T, reply_to: ReplyTo, out: &mut Outgoing) {
    let sources = PopSources::of(broker, session);
    let step = step(&sources, &broker.stats, session, order);
    go_on(sources, session, step, reply_to, out);
}

/// Answers it, or looks on another thread, whose answer comes back through the inbox. What is passed over there is behind the group, so each
/// look of those that follow each other gets on.
fn go_on<T: Try>(sources: PopSources, session: &mut Session, step: Step<T>, reply_to: ReplyTo, out: &mut Outgoing) {
    let refused = match step {
        Step::Parked => return,
        Step::Answered(Ok(outcome)) => return T::encode(outcome, reply_to, out),
        Step::Answered(Err(refusal)) => Err(refusal),
        Step::Elsewhere(order, at) => {
            let store = Arc::clone(&sources.store);
            let look = move |_: &_| {
                let basket = order.fill(&sources, at);
                (order, basket)
            };
            cold::read_at(at, &store, session, look, move |broker, session, (order, basket), out| {
                let sources = PopSources::of(broker, session);
                let step = step_after(&sources, &broker.stats, session, order, (at, basket));
                go_on(sources, session, step, reply_to, out);
            })
        }
    };
    if let Err(refusal) = refused {
        out.reply(reply_to, refusal.code, Some(&refusal.remark), &(), &[]);
    }
}

/// Carries out a pop of a caller in this process. Dropped, it waits no more, and others are woken in its place.
pub(super) async fn call<T: Try>(broker: &Broker, caller: &mut Caller, order: T) -> Result<T::Outcome, Refusal> {
    // From the first wait to the answer: one that was woken may still be dropped on its next try.
    let mut place: Option<WaitingCaller> = None;
    let mut next = step(&PopSources::of(broker, caller), &broker.stats, caller, order);
    // Each round ends as a try does: with an answer, with a wait, which is over some time, or on another thread.
    loop {
        if matches!(next, Step::Parked) {
            place.get_or_insert_with(|| WaitingCaller::new(broker, caller));
        }
        caller.give_way().await;
        next = match next {
            Step::Answered(answer) => {
                if let Some(place) = place {
                    place.answered();
                }
                caller.settled(&broker.store).await?;
                return answer;
            }
            Step::Elsewhere(order, at) => {
                let sources = PopSources::of(broker, caller);
                let look = move || {
                    let basket = order.fill(&sources, at);
                    (order, basket)
                };
                let (order, basket) = cold::done_at(at, &broker.store, look).await?;
                step_after(&PopSources::of(broker, caller), &broker.stats, caller, order, (at, basket))
            }
            Step::Parked => {
                let (waiting, wake) = caller.woken().await.and_then(waiting).ok_or_else(ended)?;
                let order = T::back(&broker.groups, waiting, wake)?;
                step(&PopSources::of(broker, caller), &broker.stats, caller, order)
            }
        };
    }
}

/// What was woken, if it is a pop or a question for something to pop.
pub(super) fn waiting((parked, wake): (Parked, Wake)) -> Option<(Waiting, Wake)> {
    let Parked::Pop(waiting, _) = parked else { return None };
    Some((*waiting.downcast::<Waiting>().ok()?, wake))
}

/// Where a caller waits. Dropped, it waits there no more, and others are woken for what it was woken for.
pub(super) struct WaitingCaller {
    table: Arc<PopWaiterTable>,
    waiter: Arc<Waiter>,
    /// Until there is an answer.
    waits: bool,
}

impl WaitingCaller {
    pub(super) fn new(broker: &Broker, caller: &Caller) -> WaitingCaller {
        let (table, waiter) = (Arc::clone(&broker.hold.pops), Arc::clone(&caller.waiter));
        WaitingCaller { table, waiter, waits: true }
    }

    /// There is an answer.
    pub(super) fn answered(mut self) {
        self.waits = false;
    }
}

impl Drop for WaitingCaller {
    fn drop(&mut self) {
        if self.waits {
            self.table.forget(&self.waiter);
        }
    }
}
