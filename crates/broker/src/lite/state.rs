//! Which clients subscribe to which lite topics, and which of them are told of what comes to these.
//!
//! An append tells one subscriber of each group, under the lock of the subscriptions, and wakes a
//! pop of it. Nothing is lost between an append and a new subscription: an append publishes first
//! and looks at the table afterwards, a subscription is entered first and looks at the queue
//! afterwards. A lite topic is popped in order, so what is behind an open batch is told when that
//! is acknowledged, or over: the alarms in `turns.rs`.

use std::sync::Arc;

use env::{Clock, Random};
use parking_lot::{Mutex, MutexGuard};
use protocol::body::{SubscriptionGroupConfig, TopicConfig};
use protocol::names;
use store::ConsumeQueue;
use tokio::sync::Notify;

use crate::state::offsets::GroupTopicRef;
use crate::waiting::hold::Hold;
use crate::wall_time::steady_ms;

mod events;
pub(in crate::lite) mod subscriptions;
mod turns;

use subscriptions::{Subscriptions, Woken};
use turns::{LiteKey, Turns};

/// Who subscribes to which lite topics, and who is told of what.
pub(crate) struct Lite<C> {
    /// Taken by appends to lite topics, too; nothing is taken inside.
    table: Mutex<Subscriptions<C>>,
    /// Nothing is taken inside.
    pub(in crate::lite) turns: Mutex<Turns>,
    /// Where pops wait.
    hold: Arc<Hold>,
    clock: Clock,
    pub(in crate::lite) random: Random,
    /// Rung when an alarm comes nearer, or somebody lacks something at once.
    pub(in crate::lite) bell: Notify,
}

impl<C: Clone> Lite<C> {
    pub(crate) fn new(hold: &Arc<Hold>, clock: Clock, random: Random) -> Lite<C> {
        Lite {
            table: Mutex::new(Subscriptions::new()),
            turns: Mutex::default(),
            hold: Arc::clone(hold),
            clock,
            random,
            bell: Notify::new(),
        }
    }

    /// The subscriptions.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Subscriptions<C>> {
        self.table.lock()
    }

    /// Messages came to these light queues and can be seen.
    pub(crate) fn arrived(&self, queues: &[Arc<ConsumeQueue>]) {
        for queue in queues.iter().filter(|queue| names::lite_parts(queue.topic()).is_some()) {
            self.tell(queue.topic(), None);
        }
    }

    /// A light queue has something for a group, or for every one.
    pub(in crate::lite) fn tell(&self, queue: &str, only: Option<&str>) {
        let woken = self.table.lock().tell(queue, only, steady_ms(&self.clock), &self.random);
        self.wake(&woken);
    }

    pub(in crate::lite) fn wake(&self, woken: &[Woken]) {
        for Woken { client, group } in woken {
            self.wake_next(client, group);
        }
    }

    /// Batches are over earlier since the clock was set back: looks at all that are waited for.
    pub(crate) fn look_at_all(&self) {
        self.turns.lock().ring_all();
        self.bell.notify_one();
    }

    /// Wakes one pop of a client.
    pub(crate) fn wake_next(&self, client: &str, group: &str) {
        self.hold.pops.arrived(GroupTopicRef { group, topic: &waiting_name(client) });
    }

    /// What a client is to look into next.
    pub(crate) fn next(&self, client: &str, group: &str) -> Option<Arc<str>> {
        let mut table = self.table.lock();
        let queue = table.take_event(client, group, steady_ms(&self.clock));
        let must_look = queue.is_none() && table.behind().1;
        drop(table);
        if must_look {
            self.bell.notify_one();
        }
        queue
    }

    /// What a client was to look into could not be: it is the next one again, or somebody else's
    /// when the client has gone.
    pub(crate) fn put_back(&self, client: &str, group: &str, queue: Arc<str>) {
        let is_back = self.lock().put_back(client, group, &queue);
        if !is_back {
            self.tell(&queue, Some(group));
        }
    }

    /// The turn to pop a light queue. None when somebody else has it; whoever that is tells the
    /// group again.
    pub(crate) fn claim(self: &Arc<Lite<C>>, group: &str, queue: &Arc<str>) -> Option<LiteTurn<C>> {
        let key: LiteKey = (Arc::from(group), Arc::clone(queue));
        self.turns.lock().take(&key).then(|| LiteTurn { lite: Arc::clone(self), key })
    }

    /// Looks at a light queue again at that time, in milliseconds: the batch that a group has of it
    /// is over then.
    pub(crate) fn look_at(&self, group: &str, queue: &str, at_ms: i64) {
        let is_first = self.turns.lock().set((Arc::from(group), Arc::from(queue)), at_ms);
        if is_first {
            self.bell.notify_one();
        }
    }

    /// Nobody has a batch of the light queue any more.
    pub(crate) fn is_done(&self, group: &str, queue: &str) {
        self.turns.lock().clear(&(Arc::from(group), Arc::from(queue)));
    }

    /// Looks for everything that there is for a group, or for one client of it.
    pub(in crate::lite) fn look_for_all(&self, group: &str, client: Option<&str>) {
        self.table.lock().look_for_all(group, client);
        self.bell.notify_one();
    }
}

/// A turn to pop a light queue; ends when dropped.
pub(crate) struct LiteTurn<C: Clone> {
    lite: Arc<Lite<C>>,
    key: LiteKey,
}

impl<C: Clone> Drop for LiteTurn<C> {
    fn drop(&mut self) {
        let is_missed = self.lite.turns.lock().release(&self.key);
        if is_missed {
            let (group, queue) = &self.key;
            self.lite.tell(queue, Some(group));
        }
    }
}

/// The name in place of a topic under which pops of a client wait for its lite topics. No topic has such a name.
pub(crate) fn waiting_name(client: &str) -> String {
    ["\0", client].concat()
}

/// Whether a topic holds lite topics.
pub(crate) fn is_parent(config: &TopicConfig) -> bool {
    config.attributes.get("message.type").is_some_and(|kind| kind == "LITE")
}

/// Minutes that a lite topic lives without a message; -1 for ever.
pub(crate) fn expiration_minutes(config: &TopicConfig) -> i32 {
    let minutes = config.attributes.get("lite.topic.expiration").and_then(|text| text.parse().ok());
    minutes.filter(|_| is_parent(config)).unwrap_or(-1)
}

/// What the attributes of a group say of lite topics.
pub(crate) struct LiteGroup<'a>(&'a SubscriptionGroupConfig);

impl<'a> LiteGroup<'a> {
    pub(crate) fn of(config: &'a SubscriptionGroupConfig) -> LiteGroup<'a> {
        LiteGroup(config)
    }

    fn attribute(&self, name: &str) -> Option<&'a str> {
        self.0.attributes.get(name).map(String::as_str)
    }

    /// The topic whose lite topics its clients subscribe to.
    pub(crate) fn parent(&self) -> Option<&'a str> {
        self.attribute("lite.bind.topic").filter(|topic| !topic.is_empty())
    }

    /// A lite topic has one subscriber in the group, the last one.
    pub(in crate::lite) fn is_exclusive(&self) -> bool {
        self.attribute("lite.sub.model") == Some("Exclusive")
    }

    /// Who takes a lite topic from another client begins at its beginning.
    pub(in crate::lite) fn resets_when_excluded(&self) -> bool {
        self.is_on("lite.sub.reset.offset.exclusive")
    }

    /// Whoever subscribes again begins at the beginning.
    pub(in crate::lite) fn resets_when_unsubscribed(&self) -> bool {
        self.is_on("lite.sub.reset.offset.unsubscribe")
    }

    /// Its clients get all lite topics and name none.
    pub(in crate::lite) fn is_wildcard(&self) -> bool {
        self.attribute("lite.sub.wildcard").is_some()
    }

    /// Lite topics that one client may subscribe to.
    pub(in crate::lite) fn client_quota(&self) -> usize {
        // Apache's default; below zero there is no limit.
        let quota = self.attribute("lite.sub.client.quota").and_then(|text| text.parse::<i64>().ok()).unwrap_or(2000);
        usize::try_from(quota).unwrap_or(usize::MAX)
    }

    /// Lite topics that one client is told of at once; none where the broker's setting counts.
    pub(in crate::lite) fn events_max(&self) -> Option<usize> {
        self.attribute("lite.sub.client.max.event.cnt").and_then(|text| text.parse().ok()).filter(|max| *max > 0)
    }

    fn is_on(&self, name: &str) -> bool {
        self.attribute(name).is_some_and(|text| text.eq_ignore_ascii_case("true"))
    }
}
