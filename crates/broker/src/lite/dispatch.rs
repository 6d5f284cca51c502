//! From a lite topic that has something to the pops of a client that subscribes to it.
//!
//! An append tells one subscriber of each group, under the lock of the subscriptions, and wakes a pop of it. Nothing is lost between an
//! append and a new subscription: who appends publishes first and looks at the table afterwards, who subscribes looks at the queue
//! afterwards. A lite topic is popped in order, so what is behind an open batch is told when that is acknowledged, or over: the alarms
//! in `turns.rs`.

use std::cell::LazyCell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use env::{Clock, Random};
use net::{Connection, Outgoing, Request};
use parking_lot::{Mutex, MutexGuard};
use protocol::code::ResponseCode;
use protocol::names;
use protocol::request::TriggerLiteDispatch;
use store::ConsumeQueue;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use super::LiteGroup;
use super::subscriptions::{Behind, Left, Subscriptions, Woken, wildcard_parent};
use super::turns::{Key, Turns};
use crate::answer::reply_ok;
use crate::blocking;
use crate::broker::Broker;
use crate::hold::Work;
use crate::offsets::KeyRef;
use crate::pop::wait::Rooms;
use crate::pop::{free_at, is_blocked};
use crate::refusal::Refusal;
use crate::wall_time::steady_ms;

/// How soon a changed setting is heeded.
const STEP: Duration = Duration::from_secs(1);

/// Who subscribes to which lite topics, and who is told of what.
pub(crate) struct Lite {
    /// Taken by appends to lite topics, too; nothing is taken inside.
    table: Mutex<Subscriptions<Connection<Work>>>,
    /// Nothing is taken inside.
    turns: Mutex<Turns>,
    rooms: Arc<Rooms>,
    clock: Clock,
    random: Random,
    /// Rung when an alarm comes nearer, or somebody lacks something at once.
    bell: Notify,
}

impl Lite {
    pub(crate) fn new(rooms: &Arc<Rooms>, clock: Clock, random: Random) -> Lite {
        Lite {
            table: Mutex::new(Subscriptions::new()),
            turns: Mutex::default(),
            rooms: Arc::clone(rooms),
            clock,
            random,
            bell: Notify::new(),
        }
    }

    /// The subscriptions.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Subscriptions<Connection<Work>>> {
        self.table.lock()
    }

    /// Messages came to these light queues and can be seen.
    pub(crate) fn arrived(&self, queues: &[Arc<ConsumeQueue>]) {
        for queue in queues.iter().filter(|queue| names::lite_parts(queue.topic()).is_some()) {
            self.tell(queue.topic(), None);
        }
    }

    /// A light queue has something for a group, or for every one.
    fn tell(&self, queue: &str, only: Option<&str>) {
        let woken = self.table.lock().tell(queue, only, steady_ms(&self.clock), &self.random);
        self.wake(&woken);
    }

    fn wake(&self, woken: &[Woken]) {
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
        self.rooms.arrived(KeyRef { group, topic: &room_of(client) });
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

    /// What a client was to look into could not be: it is the next one again, or somebody else's when the client has gone.
    pub(crate) fn put_back(&self, client: &str, group: &str, queue: Arc<str>) {
        let is_back = self.lock().put_back(client, group, &queue);
        if !is_back {
            self.tell(&queue, Some(group));
        }
    }

    /// The turn to pop a light queue. None when somebody else has it; whoever that is tells the group again.
    pub(crate) fn claim(self: &Arc<Lite>, group: &str, queue: &Arc<str>) -> Option<Turn> {
        let key: Key = (Arc::from(group), Arc::clone(queue));
        self.turns.lock().take(&key).then(|| Turn { lite: Arc::clone(self), key })
    }

    /// Looks at a light queue again at that time, in milliseconds: the batch that a group has of it is over then.
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
    pub(super) fn look_for_all(&self, group: &str, client: Option<&str>) {
        self.table.lock().look_for_all(group, client);
        self.bell.notify_one();
    }
}

/// A turn to pop a light queue; ends when dropped.
pub(crate) struct Turn {
    lite: Arc<Lite>,
    key: Key,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let is_missed = self.lite.turns.lock().release(&self.key);
        if is_missed {
            let (group, queue) = &self.key;
            self.lite.tell(queue, Some(group));
        }
    }
}

/// Where pops of a client wait. No topic has such a name.
pub(crate) fn room_of(client: &str) -> String {
    ["\0", client].concat()
}

/// Tells a group of a light queue, if there is something for it now; else when its open batch is over.
pub(crate) fn offer(broker: &Broker, group: &str, queue: &str) {
    if !has_more(broker, group, queue) {
        return;
    }
    match blocked_until(broker, group, queue) {
        Some(at_ms) => broker.lite.look_at(group, queue, at_ms),
        None => broker.lite.tell(queue, Some(group)),
    }
}

/// Tells others what a client was told of that is gone.
pub(super) fn hand_on(broker: &Broker, left: &Left) {
    for queue in &left.queues {
        offer(broker, &left.group, queue);
    }
}

fn has_more(broker: &Broker, group: &str, name: &str) -> bool {
    let Some(queue) = broker.store.existing_queue(name, 0) else { return false };
    let max = queue.max_offset() as i64;
    let is_behind = || broker.offsets.committed(group, name, 0).is_none_or(|committed| committed < max);
    max > 0 && (broker.offsets.is_reset_pending(group, name, 0) || is_behind())
}

fn blocked_until(broker: &Broker, group: &str, queue: &str) -> Option<i64> {
    // The next pop forgets the batch of a queue that was set back.
    if broker.offsets.is_reset_pending(group, queue, 0) {
        return None;
    }
    is_blocked(broker, group, queue).then(|| free_at(broker, group, queue)).flatten()
}

/// Rings alarms, looks for what clients may lack, and gives what a silent client was told of to others, until the broker stops.
pub(crate) async fn dispatch(broker: Arc<Broker>, mut stop: watch::Receiver<bool>) {
    let lite = &broker.lite;
    let mut passed_on_at = broker.clock.elapsed();
    let mut looking: Option<JoinHandle<()>> = None;
    while !*stop.borrow() {
        let alarm = lite.turns.lock().next();
        let until_alarm = alarm.map(|at_ms| u64::try_from(at_ms.saturating_sub(broker.clock.now().0)).unwrap_or(0));
        let wait = until_alarm.map_or(STEP, |ms| STEP.min(Duration::from_millis(ms)));
        tokio::select! {
            biased;
            _ = stop.changed() => break,
            () = lite.bell.notified() => {}
            () = tokio::time::sleep(wait) => {}
            () = ended(&mut looking) => {}
        }
        let due = lite.turns.lock().take_due(broker.clock.now().0);
        for (group, queue) in due {
            offer(&broker, &group, &queue);
        }
        let settings = broker.settings.load_full();
        let now = broker.clock.elapsed();
        if now.saturating_sub(passed_on_at) >= Duration::from_millis(settings.lite_event_check_interval) {
            passed_on_at = now;
            let woken = lite.lock().pass_on(steady_ms(&broker.clock), &lite.random);
            lite.wake(&woken);
        }
        let (client_ms, all_ms) = (
            i64::try_from(settings.lite_event_full_dispatch_delay_time).unwrap_or(i64::MAX),
            i64::try_from(settings.lite_event_full_dispatch_delay_time_for_wildcard_group).unwrap_or(i64::MAX),
        );
        let delay = |queues: &BTreeSet<Arc<str>>| {
            // Appends wait meanwhile: of very many queues only the last one, which a client that gets all has no other beside.
            let gets_all = queues.last().is_some_and(|queue| wildcard_parent(queue).is_some());
            if gets_all { all_ms } else { client_ms }
        };
        if looking.is_some() {
            continue;
        }
        let behind = lite.lock().take_behind(steady_ms(&broker.clock), delay);
        if !behind.is_empty() {
            let broker = Arc::clone(&broker);
            // Looks at all lite topics of a parent; alarms ring meanwhile.
            looking = Some(blocking::spawn(move || {
                let light_queues = LazyCell::new(|| broker.store.light_queue_names());
                behind.iter().for_each(|one| look_for(&broker, one, &light_queues));
            }));
        }
    }
    if looking.is_some() {
        ended(&mut looking).await;
    }
}

/// Waits until a task has come to its end, and takes it away; for ever if there is none.
async fn ended(task: &mut Option<JoinHandle<()>>) {
    let Some(running) = task else { return std::future::pending().await };
    // It cannot be cancelled here.
    let _ = running.await;
    *task = None;
}

/// Tells a client of everything that there is for it. `light_queues`: all that there are, for clients that get all.
fn look_for<F>(broker: &Broker, behind: &Behind, light_queues: &LazyCell<Vec<Arc<str>>, F>)
where
    F: FnOnce() -> Vec<Arc<str>>,
{
    let Behind { client, group, queues } = behind;
    let parents: Vec<&str> = queues.iter().filter_map(|queue| wildcard_parent(queue)).collect();
    let named = queues.iter().filter(|queue| wildcard_parent(queue).is_none()).cloned();
    let mut all: Vec<Arc<str>> = named.collect();
    if !parents.is_empty() {
        let is_wanted = |name: &str| names::lite_parts(name).is_some_and(|(parent, _)| parents.contains(&parent));
        all.extend(light_queues.iter().filter(|name| is_wanted(name)).cloned());
    }
    all.retain(|queue| has_more(broker, group, queue));
    // What somebody has a batch of is told when that is over: it would take the places of what can be had.
    all.retain(|queue| match blocked_until(broker, group, queue) {
        Some(at_ms) => {
            broker.lite.look_at(group, queue, at_ms);
            false
        }
        None => true,
    });
    // From anywhere, or those at the end would have no room as long as those before have something.
    let first = broker.lite.random.below(u32::try_from(all.len()).unwrap_or(u32::MAX)) as usize;
    all.rotate_left(first);
    let woken = broker.lite.lock().fill(client, &all, steady_ms(&broker.clock));
    broker.lite.wake(woken.as_slice());
}

/// 200079: an operator wants clients to be told of everything once more.
pub(crate) fn trigger(broker: &Broker, request: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let asked = TriggerLiteDispatch::decode(&request.header.fields)?;
    let missing = || {
        let remark = format!("Group [{}] not exist.", asked.group);
        Refusal::new(ResponseCode::SubscriptionGroupNotExist, remark)
    };
    let group = broker.groups.get(asked.group).ok_or_else(missing)?;
    if LiteGroup::of(&group.config.load()).parent().is_none() {
        let remark = format!("Group [{}] is not a LITE group.", asked.group);
        return Err(Refusal::new(ResponseCode::InvalidParameter, remark));
    }
    broker.lite.look_for_all(asked.group, asked.client_id.filter(|client| !client.is_empty()));
    reply_ok(request, out);
    Ok(())
}
