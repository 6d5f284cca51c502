//! Who of a group is told of a lite topic that has something: one of its subscribers, by chance, and rather one that reads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use env::Random;
use hashbrown::HashMap;
use protocol::names;

use super::{Subscriber, Subscriptions, wildcard};

/// Looks for everything at the next opportunity.
const AT_ONCE: i64 = i64::MIN;

/// A client whose pops are to be woken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Woken {
    pub(crate) client: String,
    pub(crate) group: Arc<str>,
}

/// A client that may lack some of what there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Behind {
    pub(crate) client: String,
    pub(crate) group: Arc<str>,
    /// Where to look.
    pub(crate) queues: Vec<Arc<str>>,
}

impl<C: Clone> Subscriptions<C> {
    /// A light queue has something: somebody of each group that subscribes to it is told. `only`: of this group.
    pub(crate) fn tell(&mut self, queue: &str, only: Option<&str>, now_ms: i64, random: &Random) -> Vec<Woken> {
        let Subscriptions { clients, by_queue, wildcards, behind, .. } = self;
        let is_meant = |group: &str| only.is_none_or(|only| only == group);
        let mut woken = Vec::new();
        let mut shared: Option<Arc<str>> = None;
        if let Some((name, subscribers)) = by_queue.get_key_value(queue) {
            let mut groups: Vec<&Arc<str>> = Vec::new();
            for group in subscribers.values().filter(|group| is_meant(group)) {
                if !groups.contains(&group) {
                    groups.push(group);
                }
            }
            for group in groups {
                let of_group = subscribers.iter().filter(|(_, of)| *of == group).map(|(client, _)| client);
                woken.extend(choose(clients, behind, of_group, None, name, now_ms, random));
            }
            shared = Some(Arc::clone(name));
        }
        let parent = names::lite_parts(queue).map(|(parent, _)| parent);
        let all = parent.and_then(|parent| Some((parent, wildcards.get(parent)?)));
        for (parent, group) in all.into_iter().flat_map(|(parent, groups)| groups.iter().map(move |g| (parent, g))) {
            let Some(subscribers) = by_queue.get(wildcard(parent, group).as_str()).filter(|_| is_meant(group)) else {
                continue;
            };
            let name = shared.get_or_insert_with(|| Arc::from(queue));
            woken.extend(choose(clients, behind, subscribers.keys(), None, name, now_ms, random));
        }
        woken
    }

    /// What a client is to look into next. Who asks in the name of another group gets nothing.
    pub(crate) fn take_event(&mut self, client: &str, group: &str, now_ms: i64) -> Option<Arc<str>> {
        let known = self.clients.get_mut(client).filter(|known| *known.group == *group)?;
        let queue = known.events.take(now_ms);
        if queue.is_none()
            && let Some(since) = self.behind.get_mut(client)
        {
            *since = AT_ONCE;
        }
        queue
    }

    /// The reverse of [`Subscriptions::take_event`]. False when the client does not subscribe to it any more: somebody else is to be told.
    pub(crate) fn put_back(&mut self, client: &str, group: &str, queue: &Arc<str>) -> bool {
        let Some(known) = self.clients.get_mut(client).filter(|known| *known.group == *group) else { return false };
        let parent = names::lite_parts(queue).map(|(parent, _)| parent);
        let gets_all = parent.is_some_and(|parent| known.queues.contains(wildcard(parent, group).as_str()));
        if !gets_all && !known.queues.contains(queue) {
            return false;
        }
        known.events.put_back(Arc::clone(queue));
        true
    }

    /// Whether a client is told of something.
    pub(crate) fn has_event(&self, client: &str, group: &str) -> bool {
        self.clients.get(client).is_some_and(|known| *known.group == *group && !known.events.is_empty())
    }

    /// Clients that are told of something.
    pub(crate) fn told(&self) -> usize {
        self.clients.values().filter(|known| !known.events.is_empty()).count()
    }

    /// All that there is for a client of a group, or for all of them, is to be looked for.
    pub(crate) fn look_for_all(&mut self, group: &str, only: Option<&str>) {
        let clients = self
            .clients
            .iter()
            .filter(|(client, known)| *known.group == *group && only.is_none_or(|only| only == client.as_str()));
        self.behind.extend(clients.map(|(client, _)| (client.clone(), AT_ONCE)));
    }

    /// Whether somebody may lack something, and whether it is to be looked for at once.
    pub(crate) fn behind(&self) -> (bool, bool) {
        (!self.behind.is_empty(), self.behind.values().any(|since| *since == AT_ONCE))
    }

    /// Clients for which everything is to be looked for now: `delay_ms` after there was no room for it, or sooner when they have taken all.
    pub(crate) fn take_behind(&mut self, now_ms: i64, delay_ms: impl Fn(&BTreeSet<Arc<str>>) -> i64) -> Vec<Behind> {
        let mut due = Vec::new();
        let clients = &self.clients;
        self.behind.retain(|client, since| {
            let Some(known) = clients.get(client) else { return false };
            if *since != AT_ONCE && now_ms.saturating_sub(*since) < delay_ms(&known.queues) {
                return true;
            }
            if !known.events.is_low() {
                *since = now_ms;
                return true;
            }
            let queues = known.queues.iter().cloned().collect();
            due.push(Behind { client: client.clone(), group: Arc::clone(&known.group), queues });
            false
        });
        due
    }

    /// Tells a client of what was found for it. What has no room is looked for again.
    pub(crate) fn fill(&mut self, client: &str, queues: &[Arc<str>], now_ms: i64) -> Option<Woken> {
        let known = self.clients.get_mut(client)?;
        if !queues.iter().all(|queue| known.events.offer(queue)) {
            self.behind.entry(client.to_owned()).or_insert(now_ms);
        }
        (!known.events.is_empty()).then(|| Woken { client: client.to_owned(), group: Arc::clone(&known.group) })
    }

    /// What clients were told of and do not look into is told to others.
    pub(crate) fn pass_on(&mut self, now_ms: i64, random: &Random) -> Vec<Woken> {
        let silent =
            self.clients.iter().filter(|(_, known)| !known.events.is_empty() && !known.events.is_reading(now_ms));
        let silent: Vec<String> = silent.map(|(client, _)| client.clone()).collect();
        let mut woken = Vec::new();
        for client in silent {
            let Some(known) = self.clients.get_mut(&client) else { continue };
            let (group, events) = (Arc::clone(&known.group), known.events.drain());
            for queue in events {
                let all = names::lite_parts(&queue).map(|(parent, _)| wildcard(parent, &group));
                let all = all.and_then(|all| self.by_queue.get(all.as_str()));
                let subscribers = self.by_queue.get(&queue).or(all).into_iter().flatten();
                let others = subscribers.filter(|(_, of)| **of == group).map(|(other, _)| other);
                let behind = &mut self.behind;
                woken.extend(choose(&mut self.clients, behind, others, Some(&client), &queue, now_ms, random));
            }
        }
        woken
    }
}

/// Tells one of the clients, `last` after all others. Whoever reads is asked first.
fn choose<'a, C>(
    clients: &mut HashMap<String, Subscriber<C>>,
    behind: &mut BTreeMap<String, i64>,
    candidates: impl Iterator<Item = &'a String> + Clone,
    last: Option<&str>,
    queue: &Arc<str>,
    now_ms: i64,
    random: &Random,
) -> Option<Woken> {
    let count = u32::try_from(candidates.clone().count()).unwrap_or(u32::MAX);
    let first = random.below(count) as usize;
    let turns = candidates.clone().skip(first).chain(candidates.clone().take(first));
    let is_last = |client: &str| last == Some(client);
    for (is_reading, is_last_turn) in [(true, false), (false, false), (false, true)] {
        for client in turns.clone().filter(|client| is_last(client) == is_last_turn) {
            let Some(known) = clients.get_mut(client) else { continue };
            if known.events.is_reading(now_ms) == is_reading && known.events.offer(queue) {
                return Some(Woken { client: client.clone(), group: Arc::clone(&known.group) });
            }
        }
    }
    // Since the first that had no room, or a busy client would never be looked for.
    candidates.for_each(|client| {
        behind.entry(client.clone()).or_insert(now_ms);
    });
    None
}
