//! Who subscribes to which lite topics: a table without I/O. What follows from a change (a client to be told, an offset to be reset) is
//! returned to the caller.
//!
//! A subscription is named by its client, as in Apache: one client has one group. It lives as long as the client
//! repeats it; a connection that closes ends nothing, since a proxy that reconnects speaks for the same clients.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hashbrown::HashMap;
use protocol::names;

use super::events::Events;

mod telling;

pub(crate) use telling::{Behind, Woken};

/// What one client subscribes to.
struct Subscriber<C> {
    group: Arc<str>,
    /// Names of light queues; for a group that gets all lite topics, [`wildcard`].
    queues: BTreeSet<Arc<str>>,
    /// When it was last heard of, in milliseconds of the clock that does not step.
    heard_ms: i64,
    connection: C,
    /// Those that have something.
    events: Events,
}

/// Who speaks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LiteClient<'a> {
    pub(crate) id: &'a str,
    pub(crate) group: &'a str,
    /// When, in the clock's milliseconds.
    pub(crate) now_ms: i64,
    /// Lite topics that it is told of at once.
    pub(crate) events_max: usize,
}

/// Limits of what may be added.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quota {
    /// Subscriptions of all clients (`maxLiteSubscriptionCount`).
    pub(crate) all: usize,
    /// Those of one client.
    pub(crate) client: usize,
}

/// One subscription too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum QuotaError {
    #[error(
        "lite subscription quota exceeded {limit}: all clients have {active} subscriptions (maxLiteSubscriptionCount)"
    )]
    All { active: usize, limit: usize },
    #[error("lite subscription quota exceeded {limit}: there are as many clients (maxLiteSubscriptionCount)")]
    Clients { limit: usize },
    #[error("lite subscription quota exceeded {limit}: this client would have {wanted} (lite.sub.client.quota)")]
    Client { wanted: usize, limit: usize },
}

/// A client that lost a lite topic to another one of its group.
#[derive(Debug)]
pub(crate) struct Excluded<C> {
    pub(crate) client: String,
    pub(crate) queue: Arc<str>,
    pub(crate) connection: C,
}

/// What an operator sees of one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) queues: Vec<Arc<str>>,
    /// In all.
    pub(crate) count: usize,
    /// When it popped last; none if it never did.
    pub(crate) popped_ms: Option<i64>,
}

/// All subscriptions.
pub(crate) struct Subscriptions<C> {
    clients: HashMap<String, Subscriber<C>>,
    /// By light queue, the clients that subscribe to it, and their groups.
    by_queue: HashMap<Arc<str>, BTreeMap<String, Arc<str>>>,
    /// By parent topic, the groups that get all of its lite topics.
    wildcards: HashMap<String, BTreeSet<String>>,
    /// Clients that may lack some of what there is, and since when, in the clock's milliseconds.
    behind: BTreeMap<String, i64>,
    /// Entries of `by_queue`, which are those of all clients.
    active: usize,
}

/// A client that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) client: String,
    pub(crate) group: Arc<str>,
    /// What it was told of and did not look into.
    pub(crate) queues: Vec<Arc<str>>,
}

/// Stands for all lite topics of a parent topic, for one group.
pub(crate) fn wildcard(parent: &str, group: &str) -> String {
    format!("{parent}@{group}")
}

/// The parent topic, if this stands for all of its lite topics.
pub(crate) fn wildcard_parent(queue: &str) -> Option<&str> {
    queue.split_once('@').map(|(parent, _)| parent).filter(|_| !names::is_lmq(queue))
}

impl<C: Clone> Subscriptions<C> {
    pub(crate) fn new() -> Subscriptions<C> {
        Subscriptions {
            clients: HashMap::new(),
            by_queue: HashMap::new(),
            wildcards: HashMap::new(),
            behind: BTreeMap::new(),
            active: 0,
        }
    }

    /// How many subscriptions there are.
    pub(crate) fn active(&self) -> usize {
        self.active
    }

    /// Adds lite topics to what a client subscribes to. With `is_exclusive` the other clients of its group lose them.
    pub(crate) fn add(
        &mut self,
        client: LiteClient<'_>,
        queues: &[String],
        is_exclusive: bool,
        quota: Quota,
        connection: C,
    ) -> Result<Vec<Excluded<C>>, QuotaError> {
        let known = self.clients.get(client.id).map(|known| &known.queues);
        let is_new = |queue: &&String| known.is_none_or(|known| !known.contains(queue.as_str()));
        let new = queues.iter().filter(is_new).collect::<BTreeSet<_>>().len();
        self.check(client.id, new, known.map_or(0, BTreeSet::len) + new, quota)?;
        let group = self.hear(client, connection);
        let mut excluded = Vec::new();
        for queue in queues {
            if is_exclusive {
                self.exclude(client.id, &group, queue, &mut excluded);
            }
            self.link(client.id, &group, queue);
        }
        Ok(excluded)
    }

    /// Replaces what a client subscribes to. Returns what it does not subscribe to any more.
    pub(crate) fn replace(
        &mut self,
        client: LiteClient<'_>,
        queues: &[String],
        quota: Quota,
        connection: C,
    ) -> Result<Vec<Arc<str>>, QuotaError> {
        let wanted: BTreeSet<&str> = queues.iter().map(String::as_str).collect();
        let known = self.clients.get(client.id).map(|known| &known.queues);
        let new = wanted.iter().filter(|queue| known.is_none_or(|known| !known.contains(**queue))).count();
        let gone: Vec<Arc<str>> =
            known.into_iter().flatten().filter(|queue| !wanted.contains(&***queue)).cloned().collect();
        self.check(client.id, new.saturating_sub(gone.len()), wanted.len(), quota)?;
        let group = self.hear(client, connection);
        for queue in &gone {
            self.unlink(client.id, queue);
        }
        for queue in wanted {
            self.link(client.id, &group, queue);
        }
        Ok(gone)
    }

    /// Takes lite topics from what a client subscribes to. Returns those that it did.
    pub(crate) fn remove(&mut self, client: LiteClient<'_>, queues: &[String]) -> Vec<Arc<str>> {
        if let Some(known) = self.clients.get_mut(client.id) {
            known.heard_ms = client.now_ms;
        }
        let gone = queues.iter().filter_map(|queue| self.unlink(client.id, queue)).collect();
        self.forget_if_idle(client.id);
        gone
    }

    /// Forgets a client. Returns what it was told of, for others of its group.
    pub(crate) fn forget(&mut self, client: &str) -> Option<Left> {
        let known = self.clients.get_mut(client)?;
        let left = Left { client: client.to_owned(), group: Arc::clone(&known.group), queues: known.events.drain() };
        for queue in known.queues.clone() {
            self.unlink(client, &queue);
        }
        self.clients.remove(client);
        self.behind.remove(client);
        Some(left)
    }

    /// Forgets clients that were last heard of before `since_ms`. Returns who they were.
    pub(crate) fn expire(&mut self, since_ms: i64) -> Vec<Left> {
        let silent = self.clients.iter().filter(|(_, known)| known.heard_ms < since_ms);
        let silent: Vec<String> = silent.map(|(client, _)| client.clone()).collect();
        silent.iter().filter_map(|client| self.forget(client)).collect()
    }

    /// Takes a light queue that is gone from all who subscribe to it.
    pub(crate) fn forget_queue(&mut self, queue: &str) {
        let clients: Vec<String> = self.by_queue.get(queue).into_iter().flat_map(BTreeMap::keys).cloned().collect();
        for client in clients {
            self.unlink(&client, queue);
            self.forget_if_idle(&client);
        }
    }

    /// The clients that subscribe to a light queue, with their groups.
    pub(crate) fn subscribers(&self, queue: &str) -> Vec<(String, Arc<str>)> {
        let clients = self.by_queue.get(queue).into_iter().flatten();
        clients.map(|(client, group)| (client.clone(), Arc::clone(group))).collect()
    }

    /// The group that a client first spoke for.
    pub(crate) fn group_of(&self, client: &str) -> Option<&Arc<str>> {
        self.clients.get(client).map(|known| &known.group)
    }

    /// What a client subscribes to, so many at most.
    pub(crate) fn of(&self, client: &str, max: usize) -> Option<Seen> {
        let known = self.clients.get(client)?;
        let queues = known.queues.iter().take(max).cloned().collect();
        Some(Seen { queues, count: known.queues.len(), popped_ms: known.events.popped_ms() })
    }

    fn check(&self, client: &str, new: usize, of_client: usize, quota: Quota) -> Result<(), QuotaError> {
        if new > 0 && self.active.saturating_add(new) > quota.all {
            return Err(QuotaError::All { active: self.active, limit: quota.all });
        }
        // One that subscribes to nothing is kept as well, until it is silent.
        if self.clients.len() >= quota.all && !self.clients.contains_key(client) {
            return Err(QuotaError::Clients { limit: quota.all });
        }
        if of_client > quota.client {
            return Err(QuotaError::Client { wanted: of_client, limit: quota.client });
        }
        Ok(())
    }

    /// Notes that a client spoke. Returns its group: that of its first word counts, as in Apache.
    fn hear(&mut self, client: LiteClient<'_>, connection: C) -> Arc<str> {
        let LiteClient { id, group, now_ms, events_max } = client;
        let known = self.clients.entry(id.to_owned()).or_insert_with(|| Subscriber {
            group: group.into(),
            queues: BTreeSet::new(),
            heard_ms: now_ms,
            connection: connection.clone(),
            events: Events::new(events_max, now_ms),
        });
        known.events.max = events_max;
        known.heard_ms = now_ms;
        known.connection = connection;
        Arc::clone(&known.group)
    }

    fn link(&mut self, client: &str, group: &Arc<str>, queue: &str) {
        let Some(known) = self.clients.get_mut(client) else { return };
        let name = self.by_queue.get_key_value(queue).map_or_else(|| Arc::from(queue), |(name, _)| Arc::clone(name));
        if known.queues.insert(Arc::clone(&name)) {
            if let Some(parent) = wildcard_parent(&name) {
                self.wildcards.entry(parent.to_owned()).or_default().insert(group.to_string());
            }
            self.by_queue.entry(name).or_default().insert(client.to_owned(), Arc::clone(group));
            self.active += 1;
        }
    }

    fn unlink(&mut self, client: &str, queue: &str) -> Option<Arc<str>> {
        let known = self.clients.get_mut(client)?;
        let queue = known.queues.take(queue)?;
        known.events.remove(&queue);
        self.active -= 1;
        if let Some(clients) = self.by_queue.get_mut(&queue) {
            let group = clients.remove(client);
            if clients.is_empty() {
                self.by_queue.remove(&queue);
                if let Some((parent, group)) = wildcard_parent(&queue).zip(group)
                    && let Some(groups) = self.wildcards.get_mut(parent)
                {
                    groups.remove(&*group);
                    if groups.is_empty() {
                        self.wildcards.remove(parent);
                    }
                }
            }
        }
        Some(queue)
    }

    /// The other clients of a group lose a light queue.
    fn exclude(&mut self, client: &str, group: &Arc<str>, queue: &str, excluded: &mut Vec<Excluded<C>>) {
        let others = self.by_queue.get(queue).into_iter().flatten();
        let others: Vec<String> =
            others.filter(|(other, of)| *other != client && *of == group).map(|(other, _)| other.clone()).collect();
        for other in others {
            let connection = self.clients.get(&other).map(|known| known.connection.clone());
            if let (Some(queue), Some(connection)) = (self.unlink(&other, queue), connection) {
                excluded.push(Excluded { client: other.clone(), queue, connection });
            }
            self.forget_if_idle(&other);
        }
    }

    fn forget_if_idle(&mut self, client: &str) {
        if self.clients.get(client).is_some_and(|known| known.queues.is_empty()) {
            self.clients.remove(client);
            self.behind.remove(client);
        }
    }
}

impl<C> std::fmt::Debug for Subscriptions<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Subscriptions({} of {} clients)", self.active, self.clients.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUOTA: Quota = Quota { all: 5, client: 3 };

    fn who(id: &str) -> LiteClient<'_> {
        LiteClient { id, group: "G", now_ms: 10, events_max: 2 }
    }

    fn queues(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn of(table: &Subscriptions<u32>, client: &str) -> Vec<String> {
        table.of(client, 100).map(|seen| seen.queues.iter().map(ToString::to_string).collect()).unwrap_or_default()
    }

    #[test]
    fn lite_topics_are_added_removed_and_replaced() {
        let mut table = Subscriptions::new();
        table.add(who("a"), &queues(&["x", "y", "x"]), false, QUOTA, 1).unwrap();
        table.add(who("b"), &queues(&["y"]), false, QUOTA, 2).unwrap();
        assert_eq!((of(&table, "a"), table.active()), (queues(&["x", "y"]), 3));
        assert_eq!(table.subscribers("y").len(), 2);
        assert_eq!(table.remove(who("a"), &queues(&["y", "z"])), [Arc::from("y")]);
        assert_eq!(table.replace(who("a"), &queues(&["z"]), QUOTA, 1).unwrap(), [Arc::from("x")]);
        assert_eq!((of(&table, "a"), table.active()), (queues(&["z"]), 2));
        table.forget("a");
        table.forget_queue("y");
        assert_eq!((table.active(), table.clients.len(), table.by_queue.len()), (0, 0, 0));
    }

    #[test]
    fn the_last_client_of_an_exclusive_group_has_the_lite_topic_and_the_one_before_is_named() {
        let mut table = Subscriptions::new();
        table.add(who("a"), &queues(&["x", "y"]), true, QUOTA, 1).unwrap();
        assert!(table.add(who("a"), &queues(&["x"]), true, QUOTA, 1).unwrap().is_empty(), "nobody excludes himself");
        table.add(LiteClient { group: "other", ..who("c") }, &queues(&["x"]), true, QUOTA, 3).unwrap();
        let excluded = table.add(who("b"), &queues(&["x"]), true, QUOTA, 2).unwrap();
        let excluded: Vec<_> = excluded.iter().map(|one| (one.client.as_str(), &*one.queue, one.connection)).collect();
        assert_eq!(excluded, [("a", "x", 1)]);
        assert_eq!(
            (of(&table, "a"), of(&table, "b"), of(&table, "c")),
            (queues(&["y"]), queues(&["x"]), queues(&["x"]))
        );
    }

    #[test]
    fn one_subscription_too_many_is_refused_and_changes_nothing() {
        let mut table = Subscriptions::new();
        table.add(who("a"), &queues(&["1", "2", "3"]), false, QUOTA, 1).unwrap();
        let refused = table.add(who("a"), &queues(&["4"]), false, QUOTA, 1).unwrap_err();
        assert_eq!(refused, QuotaError::Client { wanted: 4, limit: 3 });
        let refused = table.add(who("b"), &queues(&["1", "2", "3"]), false, QUOTA, 1).unwrap_err();
        assert_eq!(refused, QuotaError::All { active: 3, limit: 5 });
        assert!(refused.to_string().starts_with("lite subscription quota exceeded 5"));
        assert_eq!((table.active(), of(&table, "b").len()), (3, 0));
        // What is replaced makes room.
        table.replace(who("a"), &queues(&["4", "5", "6"]), QUOTA, 1).unwrap();
        assert_eq!((table.active(), of(&table, "a")), (3, queues(&["4", "5", "6"])));
        table.add(who("a"), &queues(&["4"]), false, Quota { all: 3, client: 3 }, 1).unwrap();
    }

    #[test]
    fn clients_that_subscribe_to_nothing_are_limited_too() {
        let mut table = Subscriptions::new();
        for id in ["1", "2", "3", "4"] {
            table.add(who(id), &[], false, QUOTA, 1).unwrap();
        }
        table.replace(who("5"), &[], QUOTA, 1).unwrap();
        for _ in 0..2 {
            assert_eq!(table.add(who("6"), &[], false, QUOTA, 1).unwrap_err(), QuotaError::Clients { limit: 5 });
            assert_eq!(table.replace(who("6"), &[], QUOTA, 1).unwrap_err(), QuotaError::Clients { limit: 5 });
        }
        table.replace(LiteClient { now_ms: 50, ..who("5") }, &queues(&["x"]), QUOTA, 1).unwrap();
        assert_eq!(table.expire(50).len(), 4);
        table.replace(who("6"), &[], QUOTA, 1).unwrap();
    }

    #[test]
    fn who_is_silent_for_too_long_is_forgotten() {
        let mut table = Subscriptions::new();
        table.add(who("a"), &queues(&["x"]), false, QUOTA, 1).unwrap();
        table.add(LiteClient { now_ms: 50, ..who("b") }, &queues(&["x"]), false, QUOTA, 2).unwrap();
        let gone: Vec<String> = table.expire(50).into_iter().map(|left| left.client).collect();
        assert_eq!(gone, ["a"]);
        assert_eq!(table.subscribers("x").len(), 1);
        table.replace(LiteClient { now_ms: 90, ..who("b") }, &queues(&["x"]), QUOTA, 2).unwrap();
        assert!(table.expire(90).is_empty());
    }

    #[test]
    fn one_client_of_each_group_is_told_and_rather_one_that_reads() {
        const LITE: &str = "%LMQ%$P$x";
        let random = env::Random::seeded(3);
        let mut table = Subscriptions::new();
        let later = |id| LiteClient { now_ms: 40_000, ..who(id) };
        table.add(who("silent"), &queues(&[LITE]), false, QUOTA, 1).unwrap();
        table.add(later("reads"), &queues(&[LITE]), false, QUOTA, 2).unwrap();
        table.replace(LiteClient { group: "all", ..later("w") }, &[wildcard("P", "all")], QUOTA, 3).unwrap();
        for _ in 0..5 {
            let mut woken = table.tell(LITE, None, 40_000, &random);
            woken.sort_by(|one, other| one.client.cmp(&other.client));
            let woken: Vec<_> = woken.iter().map(|woken| (woken.client.as_str(), &*woken.group)).collect();
            assert_eq!(woken, [("reads", "G"), ("w", "all")]);
        }
        assert_eq!((table.take_event("reads", "all", 40_000), table.told()), (None, 2), "of another group");
        assert_eq!(table.take_event("reads", "G", 40_000).as_deref(), Some(LITE));
        assert_eq!(table.take_event("reads", "G", 40_000), None, "once");
        assert!(table.tell(LITE, Some("nobody"), 40_000, &random).is_empty());

        // Told, and gone silent: somebody else gets it.
        assert_eq!(table.tell(LITE, Some("G"), 40_000, &random)[0].client, "reads");
        assert!(table.pass_on(45_000, &random).is_empty());
        assert_eq!(table.take_event("silent", "G", 60_000), None);
        assert_eq!(table.pass_on(60_000, &random)[0].client, "silent");
        assert_eq!(table.forget("silent").unwrap().queues, [Arc::from(LITE)]);
    }

    #[test]
    fn what_could_not_be_looked_into_goes_back_to_whoever_still_subscribes() {
        const LITE: &str = "%LMQ%$P$x";
        let random = env::Random::seeded(3);
        let mut table = Subscriptions::new();
        table.add(who("a"), &queues(&[LITE]), false, QUOTA, 1).unwrap();
        table.add(LiteClient { group: "all", ..who("w") }, &[wildcard("P", "all")], false, QUOTA, 2).unwrap();
        assert_eq!(table.tell(LITE, None, 10, &random).len(), 2);
        for (client, group) in [("a", "G"), ("w", "all")] {
            let taken = table.take_event(client, group, 10).unwrap();
            assert!(table.put_back(client, group, &taken), "{client}");
            assert_eq!(table.take_event(client, group, 10).as_deref(), Some(LITE));
            table.forget(client);
            assert!(!table.put_back(client, group, &taken), "{client} is gone");
        }
        table.add(who("a"), &queues(&["%LMQ%$P$other"]), false, QUOTA, 1).unwrap();
        assert!(!table.put_back("a", "G", &Arc::from(LITE)), "it wants another one now");
        assert!(!table.has_event("a", "G"));
    }

    #[test]
    fn a_client_that_is_always_busy_is_looked_for_all_the_same() {
        let random = env::Random::seeded(3);
        let names = queues(&["%LMQ%$P$1", "%LMQ%$P$2", "%LMQ%$P$3"]);
        let mut table = Subscriptions::new();
        table.add(who("a"), &names, false, QUOTA, 1).unwrap();
        for now in [10, 50, 90] {
            names.iter().for_each(|name| drop(table.tell(name, None, now, &random)));
        }
        assert!(table.take_event("a", "G", 100).is_some() && table.take_event("a", "G", 100).is_some());
        assert_eq!(table.take_behind(110, |_| 100).len(), 1, "so long after the first that had no room");
    }

    #[test]
    fn what_has_no_room_is_looked_for_when_the_rest_is_taken_or_after_a_while() {
        let random = env::Random::seeded(3);
        let names = queues(&["%LMQ%$P$1", "%LMQ%$P$2", "%LMQ%$P$3"]);
        let mut table = Subscriptions::new();
        table.add(who("a"), &names, false, QUOTA, 1).unwrap();
        let told: Vec<usize> = names.iter().map(|name| table.tell(name, None, 10, &random).len()).collect();
        assert_eq!((told, table.behind()), (vec![1, 1, 0], (true, false)));
        assert!(table.take_behind(500, |_| 100).is_empty(), "there is no room yet");
        assert!(table.take_event("a", "G", 500).is_some() && table.take_event("a", "G", 500).is_some());
        assert!(table.take_behind(501, |_| 100).is_empty(), "a moment ago");
        assert_eq!((table.take_event("a", "G", 501), table.behind()), (None, (true, true)));
        let behind = table.take_behind(502, |_| 100);
        assert_eq!((behind[0].client.as_str(), behind[0].queues.len()), ("a", 3));
        assert_eq!(table.behind(), (false, false));
        assert!(table.fill("a", &behind[0].queues, 502).is_some());
        assert!(table.behind().0, "two of three had room");
    }
}
