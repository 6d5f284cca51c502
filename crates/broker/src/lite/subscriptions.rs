//! Who subscribes to which lite topics: a table without I/O. What follows from a change (a client to be told, an offset to be reset) is
//! returned to the caller.
//!
//! A subscription is named by its client, as in Apache: one client has one group. It lives as long as the client
//! repeats it; a connection that closes ends nothing, since a proxy that reconnects speaks for the same clients.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hashbrown::HashMap;

/// What one client subscribes to.
struct Subscriber<C> {
    group: Arc<str>,
    /// Names of light queues; for a group that gets all lite topics, [`wildcard`].
    queues: BTreeSet<Arc<str>>,
    /// When it was last heard of, in the clock's milliseconds.
    heard_ms: i64,
    connection: C,
}

/// Who speaks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client<'a> {
    pub(crate) id: &'a str,
    pub(crate) group: &'a str,
    /// When, in the clock's milliseconds.
    pub(crate) now_ms: i64,
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
    pub(crate) heard_ms: i64,
}

/// All subscriptions.
pub(crate) struct Subscriptions<C> {
    clients: HashMap<String, Subscriber<C>>,
    /// By light queue, the clients that subscribe to it, and their groups.
    by_queue: HashMap<Arc<str>, BTreeMap<String, Arc<str>>>,
    /// Entries of `by_queue`, which are those of all clients.
    active: usize,
}

/// Stands for all lite topics of a parent topic, for one group.
pub(crate) fn wildcard(parent: &str, group: &str) -> String {
    format!("{parent}@{group}")
}

impl<C: Clone> Subscriptions<C> {
    pub(crate) fn new() -> Subscriptions<C> {
        Subscriptions { clients: HashMap::new(), by_queue: HashMap::new(), active: 0 }
    }

    /// How many subscriptions there are.
    pub(crate) fn active(&self) -> usize {
        self.active
    }

    /// Adds lite topics to what a client subscribes to. With `is_exclusive` the other clients of its group lose them.
    pub(crate) fn add(
        &mut self,
        client: Client<'_>,
        queues: &[String],
        is_exclusive: bool,
        quota: Quota,
        connection: C,
    ) -> Result<Vec<Excluded<C>>, QuotaError> {
        let known = self.clients.get(client.id).map(|known| &known.queues);
        let is_new = |queue: &&String| known.is_none_or(|known| !known.contains(queue.as_str()));
        let new = queues.iter().filter(is_new).collect::<BTreeSet<_>>().len();
        self.check(new, known.map_or(0, BTreeSet::len) + new, quota)?;
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
        client: Client<'_>,
        queues: &[String],
        quota: Quota,
        connection: C,
    ) -> Result<Vec<Arc<str>>, QuotaError> {
        let wanted: BTreeSet<&str> = queues.iter().map(String::as_str).collect();
        let known = self.clients.get(client.id).map(|known| &known.queues);
        let new = wanted.iter().filter(|queue| known.is_none_or(|known| !known.contains(**queue))).count();
        let gone: Vec<Arc<str>> =
            known.into_iter().flatten().filter(|queue| !wanted.contains(&***queue)).cloned().collect();
        self.check(new.saturating_sub(gone.len()), wanted.len(), quota)?;
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
    pub(crate) fn remove(&mut self, client: Client<'_>, queues: &[String]) -> Vec<Arc<str>> {
        if let Some(known) = self.clients.get_mut(client.id) {
            known.heard_ms = client.now_ms;
        }
        let gone = queues.iter().filter_map(|queue| self.unlink(client.id, queue)).collect();
        self.forget_if_idle(client.id);
        gone
    }

    /// Forgets a client.
    pub(crate) fn forget(&mut self, client: &str) {
        let queues = self.clients.get(client).map(|known| known.queues.clone()).unwrap_or_default();
        for queue in &queues {
            self.unlink(client, queue);
        }
        self.clients.remove(client);
    }

    /// Forgets clients that were last heard of before `since_ms`. Returns who they were.
    pub(crate) fn expire(&mut self, since_ms: i64) -> Vec<String> {
        let silent = self.clients.iter().filter(|(_, known)| known.heard_ms < since_ms);
        let silent: Vec<String> = silent.map(|(client, _)| client.clone()).collect();
        silent.iter().for_each(|client| self.forget(client));
        silent
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

    /// What a client subscribes to, so many at most.
    pub(crate) fn of(&self, client: &str, max: usize) -> Option<Seen> {
        let known = self.clients.get(client)?;
        let queues = known.queues.iter().take(max).cloned().collect();
        Some(Seen { queues, count: known.queues.len(), heard_ms: known.heard_ms })
    }

    fn check(&self, new: usize, of_client: usize, quota: Quota) -> Result<(), QuotaError> {
        if new > 0 && self.active.saturating_add(new) > quota.all {
            return Err(QuotaError::All { active: self.active, limit: quota.all });
        }
        if of_client > quota.client {
            return Err(QuotaError::Client { wanted: of_client, limit: quota.client });
        }
        Ok(())
    }

    /// Notes that a client spoke. Returns its group: that of its first word counts, as in Apache.
    fn hear(&mut self, client: Client<'_>, connection: C) -> Arc<str> {
        let Client { id, group, now_ms } = client;
        let known = self.clients.entry(id.to_owned()).or_insert_with(|| Subscriber {
            group: group.into(),
            queues: BTreeSet::new(),
            heard_ms: now_ms,
            connection: connection.clone(),
        });
        known.heard_ms = now_ms;
        known.connection = connection;
        Arc::clone(&known.group)
    }

    fn link(&mut self, client: &str, group: &Arc<str>, queue: &str) {
        let Some(known) = self.clients.get_mut(client) else { return };
        let name = self.by_queue.get_key_value(queue).map_or_else(|| Arc::from(queue), |(name, _)| Arc::clone(name));
        if known.queues.insert(Arc::clone(&name)) {
            self.by_queue.entry(name).or_default().insert(client.to_owned(), Arc::clone(group));
            self.active += 1;
        }
    }

    fn unlink(&mut self, client: &str, queue: &str) -> Option<Arc<str>> {
        let queue = self.clients.get_mut(client)?.queues.take(queue)?;
        self.active -= 1;
        if let Some(clients) = self.by_queue.get_mut(&queue) {
            clients.remove(client);
            if clients.is_empty() {
                self.by_queue.remove(&queue);
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

    fn who(id: &str) -> Client<'_> {
        Client { id, group: "G", now_ms: 10 }
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
        table.add(Client { group: "other", ..who("c") }, &queues(&["x"]), true, QUOTA, 3).unwrap();
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
    fn who_is_silent_for_too_long_is_forgotten() {
        let mut table = Subscriptions::new();
        table.add(who("a"), &queues(&["x"]), false, QUOTA, 1).unwrap();
        table.add(Client { now_ms: 50, ..who("b") }, &queues(&["x"]), false, QUOTA, 2).unwrap();
        assert_eq!(table.expire(50), ["a"]);
        assert_eq!(table.subscribers("x").len(), 1);
        table.replace(Client { now_ms: 90, ..who("b") }, &queues(&["x"]), QUOTA, 2).unwrap();
        assert!(table.expire(90).is_empty());
    }
}
