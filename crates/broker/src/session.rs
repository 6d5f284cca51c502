//! What the broker remembers about one connection, and work that comes back to it.
//!
//! A session belongs to its connection's task; nobody else touches it. Others reach the connection through its handle.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Weak};

use net::{Connection, Frames, KeptBack, Outgoing, ReplyTo};
use protocol::code::ResponseCode;
use tokio::sync::Semaphore;

use crate::broker::Broker;
use crate::caller::{Caller, Journalled, Waits, journal_is_late};
use crate::client_handle::{ClientHandle, Work};
use crate::inbox::{Errand, Inbox, LetGo};
use crate::parked::{Question, Slots};
use crate::refusal::Refusal;
use crate::sends::Sends;
use crate::waiting::hold::{Hold, Slot, Wake};

/// Bursts of one connection whose replies wait for the journal. Above it we stop reading the connection, for
/// [`JOURNAL_TIMEOUT`](crate::caller::JOURNAL_TIMEOUT) at most.
const OWING_BURSTS_MAX: usize = 256;

/// What becomes of replies that the journal is too late for.
pub(crate) enum Late {
    /// They leave all the same.
    Send,
    /// These requests are refused.
    Refuse(Vec<ReplyTo>),
}

/// What a request that is carried out on another thread needs of its connection's session. It does not hold the inbox: answers that lie there
/// hold the turn that this waits for, and must go with the connection.
pub(crate) struct Apart {
    connection: Connection<Work>,
    inbox: Weak<Inbox>,
    parts_max: usize,
    asked: ReplyTo,
}

impl Apart {
    /// A session that shares the connection and the inbox, and knows nothing else. What the answer has to wait for, and what is remembered
    /// of it, goes back by [`Session::take_over`]. None if the connection is gone.
    pub(crate) fn open(self) -> Option<Session> {
        let mut session = Session::with(self.connection, self.inbox.upgrade()?, 0, 0);
        session.parts_max = self.parts_max;
        session.asked = Some(self.asked);
        Some(session)
    }
}

/// What a request that was carried out on another thread leaves to its connection's session.
pub(crate) struct Done {
    waits: Waits,
    parts_max: usize,
}

/// Replies that must not leave before the journal has come so far.
struct Owed {
    /// The position up to which it has to be written …
    written: u64,
    /// … and that up to which the device has to have it.
    synced: u64,
    /// … and that up to which slaves have to have it.
    copied: u64,
    replies: Frames,
    late: Late,
}

impl Owed {
    /// What it takes in memory.
    fn bytes(&self) -> usize {
        size_of::<Owed>() + self.replies.memory_bytes()
    }
}

/// The broker's side of one connection: a caller, and what the protocol needs besides.
pub struct Session {
    caller: Caller,
    /// The handle that outlives a burst.
    pub connection: Connection<Work>,
    /// Sends of the current burst, and buffers that live on so that the next burst allocates nothing.
    pub(crate) sends: Sends,
    /// What others have for this connection's task: woken requests, bytes from the disk.
    pub(crate) inbox: Arc<Inbox>,
    /// The buffer that goes to and fro between here and the inbox; empty between errands.
    pub(crate) errands: Vec<Errand>,
    /// The same for what was woken.
    pub(crate) woken: Vec<(Slot, Wake)>,
    /// What the client was asked about its subscriptions, by group.
    pub(crate) questions: Vec<Question>,
    /// How many sends this client was told that it may put into one request; 0: it was not told that it may.
    pub(crate) parts_max: usize,
    /// Of the current burst.
    owed: Vec<Owed>,
    owing: Arc<Semaphore>,
    /// Counts what is owed, of this burst and of those before, until it lies in the connection's output.
    kept_back: KeptBack,
}

impl Deref for Session {
    type Target = Caller;

    fn deref(&self) -> &Caller {
        &self.caller
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut Caller {
        &mut self.caller
    }
}

impl Session {
    pub(crate) fn open(broker: &Broker, connection: &Connection<Work>) -> Session {
        broker.limits.opened(connection.listener());
        let inbox = Arc::new(Inbox::new(ClientHandle::Remoting(connection.clone())));
        let unflushed_max = broker.settings.load().unflushed_bursts_per_connection_max;
        Session::with(connection.clone(), inbox, unflushed_max, OWING_BURSTS_MAX)
    }

    fn with(connection: Connection<Work>, inbox: Arc<Inbox>, unflushed_max: usize, owing_max: usize) -> Session {
        Session {
            caller: Caller::new(Arc::clone(&inbox.waiter), inbox.copies.clone()),
            sends: Sends::new(unflushed_max),
            inbox,
            errands: Vec::new(),
            woken: Vec::new(),
            questions: Vec::new(),
            parts_max: 0,
            owed: Vec::new(),
            owing: Arc::new(Semaphore::new(owing_max)),
            kept_back: connection.kept_back(),
            connection,
        }
    }

    /// Who sends, and the sends of the burst.
    pub(crate) fn sending(&mut self) -> (&mut Caller, &mut Sends) {
        (&mut self.caller, &mut self.sends)
    }

    /// For one request that is carried out on another thread.
    pub(crate) fn apart(&self, asked: ReplyTo) -> Apart {
        Apart {
            connection: self.connection.clone(),
            inbox: Arc::downgrade(&self.inbox),
            parts_max: self.parts_max,
            asked,
        }
    }

    /// What is left of a session that was [`apart`](Session::apart).
    pub(crate) fn done(&self) -> Done {
        Done { waits: self.waits, parts_max: self.parts_max }
    }

    /// Goes on where a request that was carried out elsewhere has come to. In [`Session::answering`].
    pub(crate) fn take_over(&mut self, done: &Done) {
        self.durable_after(done.waits.written);
        self.on_device_after(done.waits.synced);
        self.copied_after(done.waits.copied);
        self.waits.may_be_late |= done.waits.may_be_late;
        self.parts_max = done.parts_max;
    }

    /// Whether somebody still waits for the answer under way. For steps of long ones: a peer that has ended, and a broker that stops, do not.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.connection.is_closed()
    }

    /// The same, as the refusal that ends it.
    pub(crate) fn check_wanted(&self) -> Result<(), Refusal> {
        if self.is_wanted() {
            return Ok(());
        }
        Err(Refusal::new(ResponseCode::SystemError, "[GANTRY]given up: the connection is ending, or the broker stops"))
    }

    /// Drops what the connection has parked, and what it was woken for, when it ends.
    pub(crate) fn forget(mut self, hold: &Hold) {
        hold.forget(&self.inbox.waiter);
        // Undone work goes first: others may be woken for it.
        self.parked = Slots::new();
        self.inbox.take(&mut self.errands);
        self.errands = Vec::new();
        hold.pops.forget(&self.inbox.waiter);
    }

    /// Gives back what bursts have left for the next one: a connection that rests is one of very many, perhaps.
    pub(crate) fn rest(&mut self) {
        self.sends.rest();
        self.errands = Vec::new();
        self.woken = Vec::new();
        self.parked.rest();
        self.slices = Vec::new();
    }

    /// Lets `answer` write the reply to a request, and keeps it back if it has to wait for the journal. A request that gathers a record
    /// has no reply yet: what it waits for is then that of the sends.
    pub(crate) fn answering(
        &mut self,
        broker: &Broker,
        asked: Option<ReplyTo>,
        out: &mut Outgoing,
        answer: impl FnOnce(&mut Session, &mut Outgoing),
    ) {
        let of_sends = self.take_durable_after();
        let mut reply = out.apart();
        self.asked = asked;
        answer(self, &mut reply);
        self.asked = None;
        let Waits { written, synced, copied, may_be_late } =
            std::mem::replace(&mut self.waits, Waits { written: of_sends, ..Waits::default() });
        if reply.is_empty() {
            self.durable_after(written);
        } else if Journalled::of(&broker.store).covers(written, synced) && broker.has_copied(copied) {
            out.extend(reply.take());
        } else {
            let late = if may_be_late { Late::Send } else { Late::Refuse(asked.into_iter().collect()) };
            self.keep_back(Owed { written, synced, copied, replies: reply.take(), late });
        }
    }

    /// Keeps replies back until the journal is written up to `position`.
    pub(crate) fn owe(&mut self, position: u64, replies: Frames, late: Late) {
        self.keep_back(Owed { written: position, synced: 0, copied: 0, replies, late });
    }

    fn keep_back(&mut self, owed: Owed) {
        self.kept_back.add(owed.bytes());
        self.owed.push(owed);
    }

    /// Whether so many replies are kept back that no more requests should be carried out before some are let go: as many as the peer may leave
    /// lying in the output. Asked at the end of a burst ([`Session::settle`]), a yes says that the inbox will be noted: a task waits in the
    /// name of those that are kept back, for [`JOURNAL_TIMEOUT`](crate::caller::JOURNAL_TIMEOUT) at most.
    pub(crate) fn keeps_too_many(&self) -> bool {
        self.kept_back.is_full()
    }

    /// Takes the replies that were let go since, however full the output is: they come from one bound under the other.
    pub(crate) fn take_let_go(&mut self, out: &mut Outgoing) {
        for LetGo { replies, bytes } in self.inbox.take_let_go() {
            self.kept_back.remove(bytes);
            replies.into_iter().for_each(|frames| out.extend(frames));
        }
    }

    /// At the end of a burst: replies that were kept back leave, or a task waits for the journal in their name, so that this connection
    /// is read on.
    pub(crate) async fn settle(&mut self, broker: &Broker, out: &mut Outgoing) {
        self.waits.written = 0;
        let Some(written) = self.owed.iter().map(|owed| owed.written).max() else { return };
        let synced = self.owed.iter().map(|owed| owed.synced).max().unwrap_or_default();
        let copied = self.owed.iter().map(|owed| owed.copied).max().unwrap_or_default();
        let owed = std::mem::take(&mut self.owed);
        let bytes: usize = owed.iter().map(Owed::bytes).sum();
        let journal = Journalled::of(&broker.store);
        if journal.covers(written, synced) && broker.has_copied(copied) {
            self.kept_back.remove(bytes);
            owed.into_iter().for_each(|owed| out.extend(owed.replies));
            return;
        }
        journal.want(&broker.store, synced);
        let copying = (copied > 0).then(|| broker.copying());
        let inbox = Arc::clone(&self.inbox);
        let debt = inbox.owe();
        let wait = async move {
            // Slaves have as long as the journal, beside it.
            let (has_come, not_copied) = tokio::join!(journal.come(written, synced), async {
                match &copying {
                    Some(copying) => copying.come(copied).await.err(),
                    None => None,
                }
            });
            let answered = owed.into_iter().map(|Owed { written, synced, copied, replies, late }| match late {
                Late::Refuse(requests) if !has_come && !journal.covers(written, synced) => {
                    refuse(&requests, &journal_is_late())
                }
                Late::Refuse(requests) if copying.as_ref().is_some_and(|copying| !copying.has(copied)) => {
                    not_copied.map_or(replies, |late| refuse(&requests, &late.refusal()))
                }
                Late::Refuse(_) | Late::Send => replies,
            });
            inbox.let_go(LetGo { replies: answered.collect(), bytes });
            drop(debt);
        };
        // Never closed; a closed one would only mean that nothing is counted.
        let permit = Arc::clone(&self.owing).acquire_owned().await.ok();
        tokio::spawn(async move {
            wait.await;
            drop(permit);
        });
    }
}

fn refuse(requests: &[ReplyTo], refusal: &Refusal) -> Frames {
    let mut out = Outgoing::new();
    for request in requests {
        out.reply(*request, refusal.code, Some(&refusal.remark), &(), &[]);
    }
    out.take()
}
