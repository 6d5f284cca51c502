//! Who asks for something, and what the answer has to wait for. Handlers that take an order know their caller, and not the protocol that
//! brought it: a session of a remoting connection is one, and a call in this process is another.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use disk::Watermark;
use net::ReplyTo;
use protocol::code::ResponseCode;
use store::{Copies, LogSlice, Store};
use tokio::time::timeout;

use crate::client_handle::{ClientHandle, LocalClient};
use crate::parked::{Parked, Slots};
use crate::refusal::Refusal;
use crate::state::topics::{Topic, Topics};
use crate::waiting::hold::{Waiter, Wake};
use crate::waiting::sent_back::SentBack;

/// How long a reply waits for the journal. Clients wait three seconds or more, so they hear why.
pub(crate) const JOURNAL_TIMEOUT: Duration = Duration::from_secs(2);

/// Steps of filters, about a millisecond, after which a caller's task gives way. One read more may be under way then, which takes as much at
/// most.
const TURN_STEPS: u64 = 100_000;

/// What an answer has to wait for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Waits {
    /// The journal is written up to here …
    pub(crate) written: u64,
    /// … and the device has it up to here.
    pub(crate) synced: u64,
    /// Slaves that the broker waits for have it up to here.
    pub(crate) copied: u64,
    /// The answer leaves also when the journal is late.
    pub(crate) may_be_late: bool,
}

/// How far the journal is written, and how far the device has it.
pub(crate) struct Journalled {
    written: Arc<Watermark>,
    synced: Arc<Watermark>,
}

impl Journalled {
    pub(crate) fn of(store: &Store) -> Journalled {
        let journal = store.journal();
        Journalled { written: Arc::clone(journal.written()), synced: Arc::clone(journal.synced()) }
    }

    pub(crate) fn covers(&self, written: u64, synced: u64) -> bool {
        self.written.get() >= written && self.synced.get() >= synced
    }

    /// Has the device brought on, if it is waited for.
    pub(crate) fn want(&self, store: &Store, synced: u64) {
        if self.synced.get() < synced {
            store.journal().want_sync();
        }
    }

    /// Waits for both, for [`JOURNAL_TIMEOUT`] at most, and says whether they have come.
    pub(crate) async fn come(&self, written: u64, synced: u64) -> bool {
        let come = async {
            self.written.reached(written).await;
            self.synced.reached(synced).await;
        };
        timeout(JOURNAL_TIMEOUT, come).await.is_ok()
    }
}

/// What is said instead of an answer that the journal is too late for.
pub(crate) fn journal_is_late() -> Refusal {
    let what = format!(
        "[GANTRY]broker busy, start flow control for a while: done, but not written into the journal within {} ms, and it may be gone after a crash; the disk is full or \
         does not keep up",
        JOURNAL_TIMEOUT.as_millis()
    );
    Refusal::busy(what, JOURNAL_TIMEOUT)
}

/// What a client hears that has ended, of what it still waits for.
pub(crate) fn ended() -> Refusal {
    Refusal::new(ResponseCode::SystemError, "[GANTRY]given up: the client is ending")
}

/// One that asks. It belongs to one task, which asks one thing after the other.
pub struct Caller {
    /// The client, as those see it who wake what it has parked.
    pub(crate) waiter: Arc<Waiter>,
    /// What was copied from the device for it and is not written yet.
    pub(crate) copies: Copies,
    /// What the read under way found; empty between requests.
    pub(crate) slices: Vec<LogSlice>,
    /// Its requests that wait.
    pub(crate) parked: Slots<Parked>,
    /// The client in whose name a broker of this set asks what is asked now.
    stands_for: Option<SocketAddr>,
    /// The user that it has proved to be.
    user: Option<Arc<str>>,
    /// Where the answer under way goes, on a remoting connection. In this process it is the call's result.
    pub(crate) asked: Option<ReplyTo>,
    /// What the answer under way has to wait for, or those to the sends gathered so far.
    pub(crate) waits: Waits,
    /// The topic of the last request: clients send in runs to the same one.
    last_topic: Option<Arc<Topic>>,
    /// What a slave has sent back to the master.
    pub(crate) sent_back: SentBack,
    /// Steps of filters since its task has given way to others.
    steps: u64,
}

impl Caller {
    pub(crate) fn new(waiter: Arc<Waiter>, copies: Copies) -> Caller {
        Caller {
            waiter,
            copies,
            slices: Vec::new(),
            parked: Slots::new(),
            stands_for: None,
            user: None,
            asked: None,
            waits: Waits::default(),
            last_topic: None,
            sent_back: SentBack::default(),
            steps: 0,
        }
    }

    /// A client of this process, and the user that it has proved to be.
    pub fn local(client: Arc<LocalClient>, user: Option<Arc<str>>) -> Caller {
        let waiter = Arc::new(Waiter::new(ClientHandle::Local(client)));
        Caller { user, ..Caller::new(waiter, Copies::default()) }
    }

    /// The client that asks, for those that ask it something.
    pub fn client(&self) -> &ClientHandle {
        self.waiter.client()
    }

    /// Its address; in a request that a slave passes on, that of the client.
    pub fn peer(&self) -> SocketAddr {
        self.stands_for.unwrap_or_else(|| self.client().peer())
    }

    /// What it asks from now on is asked for this client; none: for itself.
    #[inline]
    pub(crate) fn stand_for(&mut self, client: Option<SocketAddr>) {
        self.stands_for = client;
    }

    /// The user that it has proved to be.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The topic, through the memory of the last one.
    pub(crate) fn topic(&mut self, topics: &Topics, name: &str) -> Option<Arc<Topic>> {
        if let Some(last) = &self.last_topic
            && last.name() == name
            && !last.is_gone()
        {
            return Some(Arc::clone(last));
        }
        let found = topics.get(name)?;
        self.last_topic = Some(Arc::clone(&found));
        Some(found)
    }

    /// Keeps back the answer under way until the journal is written up to `position`; when that takes too long, the request is
    /// refused. A handler calls this after it changed something that is not in the log.
    pub(crate) fn durable_after(&mut self, position: u64) {
        self.waits.written = self.waits.written.max(position);
    }

    /// The same until the device has the journal up to `position`. For requests that are answered at once, not for sends.
    pub(crate) fn on_device_after(&mut self, position: u64) {
        self.waits.synced = self.waits.synced.max(position);
    }

    /// As [`Caller::durable_after`], of what an administrator has changed: also until the slaves that the broker waits for have it, if it waits for
    /// any (SYNC_MASTER) and they follow its journal. For requests that are answered at once, not for sends.
    pub(crate) fn copied_after(&mut self, position: u64) {
        self.durable_after(position);
        self.waits.copied = self.waits.copied.max(position);
    }

    /// As [`Caller::durable_after`], for an answer that is better given late than not at all.
    pub(crate) fn durable_or_late_after(&mut self, position: u64) {
        self.durable_after(position);
        self.waits.may_be_late = true;
    }

    /// What the answer under way has to wait for, as far as is known.
    pub(crate) fn waits_for(&self) -> u64 {
        self.waits.written
    }

    /// What the answers to the sends gathered so far have to wait for; the next ones begin anew.
    pub(crate) fn take_durable_after(&mut self) -> u64 {
        std::mem::take(&mut self.waits.written)
    }

    /// Where the answer under way goes, for the part of it that is done later.
    pub(crate) fn asked(&self) -> Option<ReplyTo> {
        self.asked
    }

    /// Counts the steps that a filter has taken on this task.
    pub(crate) fn took(&mut self, steps: u64) {
        self.steps = self.steps.saturating_add(steps);
    }

    /// Lets others have the thread, if filters of this one have had it for long enough.
    pub(crate) async fn give_way(&mut self) {
        if self.steps >= TURN_STEPS {
            self.steps = 0;
            tokio::task::yield_now().await;
        }
    }

    /// For a call in this process: waits until its answer may be given.
    pub(crate) async fn settled(&mut self, store: &Store) -> Result<(), Refusal> {
        let Waits { written, synced, copied: _, may_be_late } = std::mem::take(&mut self.waits);
        let journal = Journalled::of(store);
        journal.want(store, synced);
        if journal.covers(written, synced) || journal.come(written, synced).await || may_be_late {
            return Ok(());
        }
        Err(journal_is_late())
    }

    /// For a call in this process: waits until one of its requests that are parked was woken.
    /// `None` if its client has ended.
    pub(crate) async fn woken(&mut self) -> Option<(Parked, Wake)> {
        let ClientHandle::Local(client) = self.client().clone() else { return None };
        let mut woken = Vec::new();
        // Ends with a wake-up: each wait ends some time.
        loop {
            let mut rung = pin!(client.rung());
            // Before the look: a wake-up after that rings.
            rung.as_mut().enable();
            if self.waiter.is_gone() {
                return None;
            }
            self.waiter.take(&mut woken);
            // One at most: a call waits for one request.
            if let Some((slot, wake)) = woken.pop() {
                return Some((self.parked.take(slot)?, wake));
            }
            rung.await;
        }
    }

    /// For a call in this process: forgets what an earlier call has parked and did not wait for. What wakes that wakes nobody.
    pub(crate) fn begin(&mut self) {
        if !self.parked.is_empty() {
            self.parked = Slots::new();
            self.waiter = Arc::new(Waiter::new(self.client().clone()));
        }
        self.waits = Waits::default();
    }
}
