//! The reads of a pull: at once, and on another thread where bytes have to come from the device or where much has to be passed over, so that
//! no connection's task waits for one. Each read ends in an answer, in a place to wait, or in the next read.

use std::sync::Arc;
use std::time::Duration;

use net::ReplyTo;
use protocol::code::ResponseCode;
use store::{Copies, LogSlice, Read, ReadLimits, ReadStatus, Store};

use super::outcome::{PullOutcome, PullStatus, is_outside};
use super::suggest;
use crate::broker::Broker;
use crate::caller::Caller;
use crate::cold;
use crate::parked::{CheckedPull, Parked};
use crate::refusal::{Refusal, SOON};
use crate::state::message_filter::{At, Effort, Reader};
use crate::static_topic;
use crate::static_topic::pull::OFFSET_RESET;
use crate::waiting::hold::{Wake, Wanted};

/// For so long a slave keeps a reader that it has sent back to the master, and that has come again. It may find the master by then.
/// What the copy brings meanwhile, it gets here.
const HELD: Duration = Duration::from_millis(700);

/// What may still be done with a pull that finds nothing.
#[derive(Clone, Copy)]
pub(super) enum Patience {
    /// It has just come and may be parked for so long; zero: it wants an answer.
    Fresh(Duration),
    /// It was parked, and may be again until this tick.
    Woken(u64),
    /// Its time is over.
    Over,
}

/// How far a pull has come on its caller's task.
pub(super) enum Step {
    Answered(Result<PullOutcome, Refusal>),
    /// It waits, or comes back by a wake-up already.
    Parked,
    /// The next read runs there.
    Elsewhere(CheckedPull, Patience, At),
}

/// How a read has ended.
enum Concluded {
    Answered(Result<PullOutcome, Refusal>),
    Parked,
    /// It must be read for again: something came between the read and the parking.
    Again(CheckedPull, Patience),
}

impl CheckedPull {
    pub(super) fn queue_id(&self) -> i32 {
        self.lane.queue.id() as i32
    }

    /// Where its queue begins and ends.
    pub(super) fn bounds(&self) -> (i64, i64) {
        (self.lane.queue.min_offset() as i64, self.lane.queue.max_offset() as i64)
    }
}

/// Reads until there is an answer, the pull has found a place to wait, or it goes on elsewhere.
pub(super) fn step(broker: &Broker, caller: &mut Caller, mut order: CheckedPull, mut patience: Patience) -> Step {
    // Ends when nothing came between a read and its parking.
    loop {
        if order.filter.as_ref().is_some_and(|filter| filter.takes_long()) {
            return Step::Elsewhere(order, patience, At::Filter);
        }
        caller.slices.clear();
        let limits = limits(broker, &order, At::Worker);
        let effort = At::Worker.effort();
        let found = look(&broker.store, &order, &limits, &effort, &caller.copies, &mut caller.slices);
        caller.took(effort.spent());
        if found.status == ReadStatus::Cold {
            return Step::Elsewhere(order, patience, At::Cold);
        }
        if found.status == ReadStatus::Undecided {
            return Step::Elsewhere(order, patience, At::Filter);
        }
        match conclude(broker, caller, order, patience, &found) {
            Concluded::Answered(answer) => return Step::Answered(answer),
            Concluded::Parked => return Step::Parked,
            Concluded::Again(again, until) => (order, patience) = (again, until),
        }
    }
}

/// Goes on after a read elsewhere.
pub(super) fn step_after(
    broker: &Broker,
    caller: &mut Caller,
    order: CheckedPull,
    patience: Patience,
    found: &Read,
    slices: Vec<LogSlice>,
) -> Step {
    if found.status == ReadStatus::Cold {
        return Step::Elsewhere(order, patience, At::Cold);
    }
    caller.slices = slices;
    match conclude(broker, caller, order, patience, found) {
        Concluded::Answered(answer) => Step::Answered(answer),
        Concluded::Parked => Step::Parked,
        Concluded::Again(order, patience) => step(broker, caller, order, patience),
    }
}

/// Goes on with a pull that was parked.
pub(super) fn back(broker: &Broker, caller: &mut Caller, order: CheckedPull, wake: Wake) -> Step {
    let patience = match wake {
        Wake::Arrived { expires_at } => Patience::Woken(expires_at),
        Wake::Expired => Patience::Over,
    };
    if let Some(logical) = &order.logical
        && let Err(refusal) = static_topic::pull::still_led(&order.topic, logical)
    {
        return Step::Answered(Err(refusal));
    }
    step(broker, caller, order, patience)
}

/// A read on another thread: the pull, what it found, and the bytes.
pub(super) fn look_on(
    broker: &Broker,
    caller: &Caller,
    order: CheckedPull,
    at: At,
) -> impl FnOnce(&Store) -> (CheckedPull, Read, Vec<LogSlice>) + Send + use<> {
    let (limits, copies) = (limits(broker, &order, at), caller.copies.clone());
    move |store: &Store| {
        let mut slices = Vec::new();
        let found = look(store, &order, &limits, &at.effort(), &copies, &mut slices);
        (order, found, slices)
    }
}

/// Answers or parks a pull after a read, whose bytes lie with the caller.
fn conclude(
    broker: &Broker,
    caller: &mut Caller,
    mut order: CheckedPull,
    patience: Patience,
    found: &Read,
) -> Concluded {
    // Nothing there yet, or nothing that matches up to the end: both wait for the next message.
    let is_at_end = match found.status {
        ReadStatus::OffsetOverflowOne => true,
        ReadStatus::NoMessageInQueue | ReadStatus::NoMatchedLogicQueue => order.offset == 0,
        ReadStatus::NoMatchedMessage => matches!(patience, Patience::Woken(_)) && found.next >= found.max,
        ReadStatus::Found
        | ReadStatus::MessageWasRemoving
        | ReadStatus::OffsetFoundNull
        | ReadStatus::OffsetOverflowBadly
        | ReadStatus::OffsetTooSmall
        | ReadStatus::OffsetReset
        | ReadStatus::Cold
        | ReadStatus::Failed
        | ReadStatus::Undecided => false,
    };
    let (is_at_end, patience) = match broker.standing.is_slave() {
        true => at_slave(broker, caller, &order, patience, found, is_at_end),
        false => (is_at_end, patience),
    };
    let is_at_end =
        is_at_end && order.logical.as_ref().is_none_or(|logical| static_topic::pull::may_wait(&order.topic, logical));
    let expires_at = match patience {
        Patience::Fresh(wait) if is_at_end && !wait.is_zero() => broker.hold.deadline(wait),
        Patience::Woken(expires_at) if is_at_end => expires_at,
        Patience::Fresh(_) | Patience::Woken(_) | Patience::Over => {
            return Concluded::Answered(respond(broker, caller, &order, found));
        }
    };
    if found.status == ReadStatus::NoMatchedMessage {
        order.offset = found.next;
    }
    let lane = Arc::clone(&order.lane);
    let seen = order.offset;
    let logical = order.logical.as_ref().map(|logical| (Arc::clone(&order.topic), **logical));
    // Its answer is that of a long poll then.
    let reply_to = caller.asked().map(|reply_to| ReplyTo { is_held: true, ..reply_to });
    let slot = caller.parked.put(Parked::Pull(order, reply_to));
    let wanted = Wanted { slot, offset: seen, expires_at };
    let ticket = match broker.hold.park(&caller.waiter, &lane, wanted, &broker.settings.load()) {
        Ok(ticket) => ticket,
        Err(full) => {
            caller.parked.take(slot);
            let what = format_args!("[GANTRY]system busy, start flow control for a while: {full}");
            return Concluded::Answered(Err(Refusal::busy(what, SOON)));
        }
    };
    broker.limits.parked(caller.waiter.parked());
    // A message may have come between the read and the parking. If it is not confirmed yet, its wake-up is still to come.
    let is_visible = u64::try_from(seen).is_ok_and(|seen| broker.store.is_visible(&lane.queue, seen));
    // So may a mapping by which nothing will come here any more.
    let may_stay = logical.is_none_or(|(topic, logical)| static_topic::pull::may_wait(&topic, &logical));
    if !is_visible && may_stay {
        return Concluded::Parked;
    }
    // Woken in between: it comes back by that.
    let taken = broker.hold.take_back(&lane, ticket).and_then(|slot| caller.parked.take(slot));
    let Some(Parked::Pull(order, _)) = taken else { return Concluded::Parked };
    Concluded::Again(order, Patience::Woken(expires_at))
}

/// Whether a pull waits at a slave, and for how long. One that wants what a copy does not have waits for the master. One that is sent back to the
/// master does not wait here, unless its client comes again: that finds no master, and would ask as fast as it is answered.
fn at_slave(
    broker: &Broker,
    caller: &mut Caller,
    order: &CheckedPull,
    patience: Patience,
    found: &Read,
    is_at_end: bool,
) -> (bool, Patience) {
    if suggest::keeps_readers(broker, found) {
        return (is_at_end || is_outside(order, found), patience);
    }
    // It would come again with the same offset.
    let leads_nowhere = is_at_end || is_outside(order, found) || order.offset < 0;
    // For a client with an old route this broker is the master: it would come back at once.
    let comes_back = |caller: &mut Caller| {
        caller.sent_back.is_here_again(&order.lane, order.offset) || broker.switch.is_in_old_routes(broker.clock.now())
    };
    match patience {
        Patience::Fresh(wait) if leads_nowhere && comes_back(caller) => (true, Patience::Fresh(wait.min(HELD))),
        Patience::Fresh(_) | Patience::Woken(_) | Patience::Over => (false, patience),
    }
}

/// Turns what a read found into an answer.
fn respond(broker: &Broker, caller: &mut Caller, order: &CheckedPull, found: &Read) -> Result<PullOutcome, Refusal> {
    broker.offsets.pulled(&order.group.name, order.topic.name(), order.queue_id(), found.next);
    if let Some(error) = &found.failure {
        broker.stats.missed();
        return Err(Refusal::failed(error));
    }
    // What did not match was skipped while the pull waited: the client goes on behind it.
    let has_moved = order.offset != order.asked;
    let (code, status) = match found.status {
        ReadStatus::Found => (ResponseCode::Success, "FOUND"),
        ReadStatus::MessageWasRemoving => (ResponseCode::PullRetryImmediately, "MESSAGE_WAS_REMOVING"),
        ReadStatus::NoMatchedMessage => (ResponseCode::PullRetryImmediately, "NO_MATCHED_MESSAGE"),
        ReadStatus::NoMatchedLogicQueue if order.offset != 0 => {
            (ResponseCode::PullOffsetMoved, "NO_MATCHED_LOGIC_QUEUE")
        }
        ReadStatus::NoMatchedLogicQueue => (ResponseCode::PullNotFound, "NO_MATCHED_LOGIC_QUEUE"),
        ReadStatus::NoMessageInQueue if order.offset != 0 => (ResponseCode::PullOffsetMoved, "NO_MESSAGE_IN_QUEUE"),
        ReadStatus::NoMessageInQueue => (ResponseCode::PullNotFound, "NO_MESSAGE_IN_QUEUE"),
        ReadStatus::OffsetFoundNull => (ResponseCode::PullNotFound, "OFFSET_FOUND_NULL"),
        ReadStatus::OffsetOverflowOne if has_moved => (ResponseCode::PullRetryImmediately, "NO_MATCHED_MESSAGE"),
        ReadStatus::OffsetOverflowOne => (ResponseCode::PullNotFound, "OFFSET_OVERFLOW_ONE"),
        ReadStatus::OffsetOverflowBadly => (ResponseCode::PullOffsetMoved, "OFFSET_OVERFLOW_BADLY"),
        ReadStatus::OffsetTooSmall => (ResponseCode::PullOffsetMoved, "OFFSET_TOO_SMALL"),
        ReadStatus::OffsetReset => (ResponseCode::PullOffsetMoved, OFFSET_RESET),
        ReadStatus::Cold | ReadStatus::Failed => (ResponseCode::PullRetryImmediately, "MESSAGE_WAS_REMOVING"),
        ReadStatus::Undecided => (ResponseCode::PullRetryImmediately, "NO_MATCHED_MESSAGE"),
    };
    let mut outcome = PullOutcome::without_messages(broker, order, found, code, status);
    if code != ResponseCode::Success {
        broker.stats.missed();
        if outcome.status() == PullStatus::OffsetMoved {
            broker.offsets.moved(&order.group.name, order.topic.name(), order.queue_id(), order.offset, found);
        }
        return Ok(outcome);
    }
    broker.stats.got(&order.group.name, &order.topic, order.queue_id(), found.count, found.bytes);
    // By now a logical queue may have ended before.
    if outcome.status() == PullStatus::Found {
        outcome.bring(found.bytes, std::mem::take(&mut caller.slices));
    } else {
        caller.slices.clear();
    }
    Ok(outcome)
}

fn look(
    store: &Store,
    order: &CheckedPull,
    limits: &ReadLimits,
    effort: &Effort,
    copies: &Copies,
    slices: &mut Vec<LogSlice>,
) -> Read {
    let mut reader = Reader { want: order.filter.as_deref(), effort, copies: Some(copies) };
    let found = store.read(&order.lane.queue, order.offset, limits, &mut reader, slices);
    match &order.logical {
        Some(logical) => logical.cut(found, slices),
        None => found,
    }
}

fn limits(broker: &Broker, order: &CheckedPull, at: At) -> ReadLimits {
    let settings = broker.store_settings.load();
    let count = usize::try_from(order.count_max).unwrap_or(0).max(1);
    let bytes =
        order.bytes_max.and_then(|bytes| usize::try_from(bytes).ok()).filter(|bytes| *bytes > 0).unwrap_or(usize::MAX);
    cold::limits(&settings, count, bytes, at.may_fault())
}
