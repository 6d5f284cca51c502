//! What the broker remembers about one connection, and work that comes back to it.
//!
//! A session belongs to its connection's task; nobody else touches it. Others reach the connection through its handle.

use std::sync::{Arc, Weak};
use std::time::Duration;

use disk::Watermark;
use net::{Connection, Frames, KeptBack, Outgoing, ReplyTo};
use protocol::code::ResponseCode;
use store::LogSlice;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::broker::Broker;
use crate::inbox::{Errand, Inbox, LetGo};
use crate::parked::{Parked, Question, Slots};
use crate::refusal::Refusal;
use crate::sends::Sends;
use crate::state::topics::Topic;
use crate::waiting::hold::{Slot, Wake, Work};

/// How long a reply waits for the journal. Clients wait three seconds or more, so they hear why.
pub(crate) const JOURNAL_TIMEOUT: Duration = Duration::from_secs(2);
/// Bursts of one connection whose replies wait for the journal. Above it we stop reading the connection, for [`JOURNAL_TIMEOUT`] at most.
const OWING_BURSTS_MAX: usize = 256;

/// Steps of filters, about a millisecond, after which a connection's task gives way. One read more may be under way then, which takes as
/// much at most.
const TURN_STEPS: u64 = 100_000;

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
        Some(Session {
            inbox: self.inbox.upgrade()?,
            sends: Sends::new(0),
            errands: Vec::new(),
            woken: Vec::new(),
            parked: Slots::new(),
            slices: Vec::new(),
            questions: Vec::new(),
            parts_max: self.parts_max,
            last_topic: None,
            durable_after: 0,
            on_device_after: 0,
            may_be_late: false,
            asked: Some(self.asked),
            steps: 0,
            owed: Vec::new(),
            owing: Arc::new(Semaphore::new(0)),
            kept_back: self.connection.kept_back(),
            connection: self.connection,
        })
    }
}

/// What a request that was carried out on another thread leaves to its connection's session.
pub(crate) struct Done {
    durable_after: u64,
    on_device_after: u64,
    may_be_late: bool,
    parts_max: usize,
}

/// Replies that must not leave before the journal has come so far.
struct Owed {
    /// The position up to which it has to be written …
    written: u64,
    /// … and that up to which the device has to have it.
    synced: u64,
    replies: Frames,
    late: Late,
}

impl Owed {
    /// What it takes in memory.
    fn bytes(&self) -> usize {
        size_of::<Owed>() + self.replies.memory_bytes()
    }
}

/// How far the journal is written, and how far the device has it.
struct Journalled {
    written: Arc<Watermark>,
    synced: Arc<Watermark>,
}

impl Journalled {
    fn of(broker: &Broker) -> Journalled {
        let journal = broker.store.journal();
        Journalled { written: Arc::clone(journal.written()), synced: Arc::clone(journal.synced()) }
    }

    fn covers(&self, written: u64, synced: u64) -> bool {
        self.written.get() >= written && self.synced.get() >= synced
    }
}

/// The broker's side of one connection.
pub struct Session {
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
    /// Requests of this connection that wait.
    pub(crate) parked: Slots<Parked>,
    /// What the read under way found; empty between requests.
    pub(crate) slices: Vec<LogSlice>,
    /// What the client was asked about its subscriptions, by group.
    pub(crate) questions: Vec<Question>,
    /// How many sends this client was told that it may put into one request; 0: it was not told that it may.
    pub(crate) parts_max: usize,
    /// The topic of the last request: clients send in runs to the same one.
    last_topic: Option<Arc<Topic>>,
    /// The reply to the request under way, or those to the sends gathered so far, may leave when the journal is written up to here.
    durable_after: u64,
    /// And the reply to the request under way when the device has it up to here.
    on_device_after: u64,
    /// The reply to the request under way leaves also when the journal is late.
    may_be_late: bool,
    /// Whose answer is under way.
    asked: Option<ReplyTo>,
    /// Steps of filters since this task has given way to others.
    steps: u64,
    /// Of the current burst.
    owed: Vec<Owed>,
    owing: Arc<Semaphore>,
    /// Counts what is owed, of this burst and of those before, until it lies in the connection's output.
    kept_back: KeptBack,
}

impl Session {
    pub(crate) fn open(broker: &Broker, connection: &Connection<Work>) -> Session {
        broker.limits.opened(connection.listener());
        Session {
            connection: connection.clone(),
            sends: Sends::new(broker.settings.load().unflushed_bursts_per_connection_max),
            inbox: Arc::new(Inbox::new(connection.clone())),
            errands: Vec::new(),
            woken: Vec::new(),
            parked: Slots::new(),
            slices: Vec::new(),
            questions: Vec::new(),
            parts_max: 0,
            last_topic: None,
            durable_after: 0,
            on_device_after: 0,
            may_be_late: false,
            asked: None,
            steps: 0,
            owed: Vec::new(),
            owing: Arc::new(Semaphore::new(OWING_BURSTS_MAX)),
            kept_back: connection.kept_back(),
        }
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
        let Session { durable_after, on_device_after, may_be_late, parts_max, .. } = *self;
        Done { durable_after, on_device_after, may_be_late, parts_max }
    }

    /// Goes on where a request that was carried out elsewhere has come to. In [`Session::answering`].
    pub(crate) fn take_over(&mut self, done: &Done) {
        self.durable_after(done.durable_after);
        self.on_device_after(done.on_device_after);
        self.may_be_late |= done.may_be_late;
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
    pub(crate) fn forget(mut self, broker: &Broker) {
        broker.hold.forget(&self.inbox.waiter);
        // Undone work goes first: others may be woken for it.
        self.parked = Slots::new();
        self.inbox.take(&mut self.errands);
        self.errands = Vec::new();
        broker.hold.rooms.forget(&self.inbox.waiter);
    }

    /// Gives back what bursts have left for the next one: a connection that rests is one of very many, perhaps.
    pub(crate) fn rest(&mut self) {
        self.sends.rest();
        self.errands = Vec::new();
        self.woken = Vec::new();
        self.parked.rest();
        self.slices = Vec::new();
    }

    /// The topic, through the memory of the last one.
    pub(crate) fn topic(&mut self, broker: &Broker, name: &str) -> Option<Arc<Topic>> {
        if let Some(last) = &self.last_topic
            && last.name() == name
            && !last.is_gone()
        {
            return Some(Arc::clone(last));
        }
        let found = broker.topics.get(name)?;
        self.last_topic = Some(Arc::clone(&found));
        Some(found)
    }

    /// Keeps back the reply to this request until the journal is written up to `position`; when that takes too long, the request is
    /// refused. A handler calls this after it changed something that is not in the log.
    pub(crate) fn durable_after(&mut self, position: u64) {
        self.durable_after = self.durable_after.max(position);
    }

    /// The same until the device has the journal up to `position`. For requests that are answered at once, not for sends.
    pub(crate) fn on_device_after(&mut self, position: u64) {
        self.on_device_after = self.on_device_after.max(position);
    }

    /// As [`Session::durable_after`], for a reply that is better given late than not at all.
    pub(crate) fn durable_or_late_after(&mut self, position: u64) {
        self.durable_after(position);
        self.may_be_late = true;
    }

    /// A filter has taken so many steps on this task.
    pub(crate) fn took(&mut self, steps: u64) {
        self.steps = self.steps.saturating_add(steps);
    }

    /// Lets other connections have the thread, if filters of this one have had it for long enough.
    pub(crate) async fn give_way(&mut self) {
        if self.steps >= TURN_STEPS {
            self.steps = 0;
            tokio::task::yield_now().await;
        }
    }

    /// Whose answer is under way, for the part of it that is done later.
    pub(crate) fn asked(&self) -> Option<ReplyTo> {
        self.asked
    }

    /// What the reply under way has to wait for, as far as is known.
    pub(crate) fn waits_for(&self) -> u64 {
        self.durable_after
    }

    /// What the replies to the sends gathered so far have to wait for; the next ones begin anew.
    pub(crate) fn take_durable_after(&mut self) -> u64 {
        std::mem::take(&mut self.durable_after)
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
        let position = std::mem::replace(&mut self.durable_after, of_sends);
        let may_be_late = std::mem::take(&mut self.may_be_late);
        let synced = std::mem::take(&mut self.on_device_after);
        if reply.is_empty() {
            self.durable_after(position);
        } else if broker.store.journal().written().get() >= position && broker.store.journal().synced().get() >= synced
        {
            out.extend(reply.take());
        } else {
            let late = if may_be_late { Late::Send } else { Late::Refuse(asked.into_iter().collect()) };
            self.keep_back(Owed { written: position, synced, replies: reply.take(), late });
        }
    }

    /// Keeps replies back until the journal is written up to `position`.
    pub(crate) fn owe(&mut self, position: u64, replies: Frames, late: Late) {
        self.keep_back(Owed { written: position, synced: 0, replies, late });
    }

    fn keep_back(&mut self, owed: Owed) {
        self.kept_back.add(owed.bytes());
        self.owed.push(owed);
    }

    /// Whether so many replies are kept back that no more requests should be carried out before some are let go: as many as the peer may leave
    /// lying in the output. Asked at the end of a burst ([`Session::settle`]), a yes says that the inbox will be noted: a task waits in the
    /// name of those that are kept back, for [`JOURNAL_TIMEOUT`] at most.
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
        self.durable_after = 0;
        let Some(written) = self.owed.iter().map(|owed| owed.written).max() else { return };
        let synced = self.owed.iter().map(|owed| owed.synced).max().unwrap_or_default();
        let owed = std::mem::take(&mut self.owed);
        let bytes: usize = owed.iter().map(Owed::bytes).sum();
        let journal = Journalled::of(broker);
        if journal.covers(written, synced) {
            self.kept_back.remove(bytes);
            owed.into_iter().for_each(|owed| out.extend(owed.replies));
            return;
        }
        if journal.synced.get() < synced {
            broker.store.journal().want_sync();
        }
        let inbox = Arc::clone(&self.inbox);
        let debt = inbox.owe();
        let wait = async move {
            let come = async {
                journal.written.reached(written).await;
                journal.synced.reached(synced).await;
            };
            let has_come = timeout(JOURNAL_TIMEOUT, come).await.is_ok();
            let answered = owed.into_iter().map(|Owed { written, synced, replies, late }| match late {
                Late::Refuse(requests) if !has_come && !journal.covers(written, synced) => {
                    let mut out = Outgoing::new();
                    refuse(&requests, &mut out);
                    out.take()
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

fn refuse(requests: &[ReplyTo], out: &mut Outgoing) {
    let what = format!(
        "[GANTRY]broker busy, start flow control for a while: done, but not written into the journal within {} ms, and it may be gone after a crash; the disk is full or \
         does not keep up",
        JOURNAL_TIMEOUT.as_millis()
    );
    let refusal = Refusal::busy(what, JOURNAL_TIMEOUT);
    for request in requests {
        out.reply(*request, refusal.code, Some(&refusal.remark), &(), &[]);
    }
}
