//! Errands for one connection's task, from any thread.

use std::sync::Arc;

use net::{Frames, Outgoing, ReplyTo};
use store::Copies;

use crate::broker::Broker;
use crate::client_handle::{ClientHandle, OwedAnswer};
use crate::session::Session;
use crate::waiting::hold::Waiter;
use crate::waiting::wake_up::Errands;

/// What is left to do of a request, on its connection's task.
pub(crate) type Then = Box<dyn FnOnce(&Broker, &mut Session, &mut Outgoing) + Send>;

/// What waits for a connection's own task, beside the parked requests that were woken.
pub(crate) enum Errand {
    /// Replies that had to wait for the disk.
    Frames(Frames),
    /// The rest of a request whose bytes came from the disk, or that has waited for somebody.
    Then {
        /// The kind of the records that it may gather: whether nobody waits for its answer. `None`
        /// where it gathers none.
        is_oneway: Option<bool>,
        then: Then,
    },
}

impl Errand {
    /// The rest of a request that gathers no record.
    pub(crate) fn then(then: impl FnOnce(&Broker, &mut Session, &mut Outgoing) + Send + 'static) -> Errand {
        Errand::Then { is_oneway: None, then: Box::new(then) }
    }

    /// That of one that may gather records, if it is answered there.
    pub(crate) fn then_gather(
        reply_to: Option<ReplyTo>,
        then: impl FnOnce(&Broker, &mut Session, &mut Outgoing) + Send + 'static,
    ) -> Errand {
        Errand::Then { is_oneway: reply_to.map(|reply_to| reply_to.is_oneway), then: Box::new(then) }
    }
}

/// Replies that were kept back and may leave.
pub(crate) struct LetGo {
    pub(crate) replies: Vec<Frames>,
    /// What the session counts for them.
    pub(crate) bytes: usize,
}

/// What others have for one connection.
pub(crate) struct Inbox {
    /// The connection, and what it has parked that was woken.
    pub(crate) waiter: Arc<Waiter>,
    errands: Errands<Errand>,
    /// Apart from the errands, which wait for them where too many are kept back.
    let_go: Errands<LetGo>,
    /// What was copied from the device for it and is not written yet.
    pub(crate) copies: Copies,
}

impl Inbox {
    pub(crate) fn new(client: ClientHandle) -> Inbox {
        Inbox {
            waiter: Arc::new(Waiter::new(client)),
            errands: Errands::new(),
            let_go: Errands::new(),
            copies: Copies::default(),
        }
    }

    /// How many pulls of this connection are parked, or wait aside.
    pub(crate) fn parked(&self) -> usize {
        self.waiter.parked()
    }

    /// Whether nobody takes an answer any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.waiter.is_gone()
    }

    /// For an answer that will be pushed: until the debt is dropped, a connection that drains waits
    /// for it.
    pub(crate) fn owe(&self) -> OwedAnswer {
        self.waiter.owe()
    }

    pub(crate) fn push(&self, errand: Errand) {
        self.errands.push(errand, || self.note());
    }

    pub(crate) fn let_go(&self, replies: LetGo) {
        self.let_go.push(replies, || self.note());
    }

    /// Puts the rest of what was taken back in front of what has come since, without a note: the
    /// caller sees to it that the task comes back.
    pub(crate) fn put_back(&self, rest: impl Iterator<Item = Errand>) {
        self.errands.put_back(rest);
    }

    /// Takes what is there. `into` comes empty and stays here, so both vectors live on.
    pub(crate) fn take(&self, into: &mut Vec<Errand>) {
        self.errands.take(into);
    }

    /// Takes what was let go.
    pub(crate) fn take_let_go(&self) -> Vec<LetGo> {
        let mut replies = Vec::new();
        self.let_go.take(&mut replies);
        replies
    }

    /// Has the task look here once it may owe more.
    pub(crate) fn note(&self) {
        self.waiter.note();
    }
}
