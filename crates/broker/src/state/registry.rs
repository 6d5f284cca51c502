//! The name servers of this broker, and what each has yet to be told. `register.rs` tells them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use net::{Client, ClientOptions};
use parking_lot::Mutex;
use replica::asking::RECORD_FRAME_BYTES_MAX;
use tokio::sync::Notify;

/// The longest pause while there is no connection: clients have no route from a name server that has just started.
pub(crate) const PAUSE_UNCONNECTED_MAX: Duration = Duration::from_secs(1);
/// More changed topics than this are told by telling everything.
const CHANGES_MAX: usize = 200;

/// What a name server has yet to be told.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Owed {
    Everything,
    /// The topics that have changed; none: nothing.
    Topics(BTreeSet<String>),
}

impl Owed {
    pub(crate) fn add(&mut self, topic: &str) {
        match self {
            Owed::Everything => {}
            Owed::Topics(topics) if topics.len() >= CHANGES_MAX => *self = Owed::Everything,
            Owed::Topics(topics) => {
                topics.insert(topic.to_owned());
            }
        }
    }
}

/// A name server.
pub(crate) struct Server {
    pub(crate) address: String,
    pub(crate) owed: Mutex<Owed>,
    pub(crate) changed: Notify,
}

/// The name servers of this broker.
pub(crate) struct Registry {
    pub(crate) servers: Vec<Arc<Server>>,
    /// At least one name server has registered this broker since its start. Relaxed: it stands
    /// alone.
    pub(crate) has_registered: AtomicBool,
    pub(crate) client: Client,
    /// The same for records of a master's log, which may be longer than frames of clients.
    pub(crate) records: Client,
}

/// The identity that a broker registers at name servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// `brokerClusterName`.
    pub cluster_name: String,
    /// `brokerName`.
    pub broker_name: String,
    /// `brokerId`: 0 is a master.
    pub broker_id: i64,
}

impl Registry {
    pub(crate) fn new(addresses: &[String], calls: ClientOptions) -> Registry {
        let calls = ClientOptions { back_off_max: calls.back_off_max.min(PAUSE_UNCONNECTED_MAX), ..calls };
        let addresses: BTreeSet<&String> = addresses.iter().collect();
        let server = |address: &String| {
            Arc::new(Server { address: address.clone(), owed: Mutex::new(Owed::Everything), changed: Notify::new() })
        };
        let servers = addresses.into_iter().map(server).collect();
        let frame_bytes_max = calls.frame_bytes_max.max(RECORD_FRAME_BYTES_MAX);
        let records = Client::new(ClientOptions { frame_bytes_max, ..calls.clone() });
        Registry { servers, has_registered: AtomicBool::new(false), client: Client::new(calls), records }
    }

    /// The addresses, each once.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = &str> {
        self.servers.iter().map(|server| server.address.as_str())
    }

    /// Whether clients may have heard of this broker: one name server at least has registered it
    /// since its start, or there are none.
    pub(crate) fn has_registered(&self) -> bool {
        self.servers.is_empty() || self.has_registered.load(Ordering::Relaxed)
    }

    /// A topic has changed.
    pub(crate) fn topic_changed(&self, topic: &str) {
        for server in &self.servers {
            server.owed.lock().add(topic);
            server.changed.notify_one();
        }
    }

    /// Everything is to be told again, soon.
    pub(crate) fn all_changed(&self) {
        for server in &self.servers {
            *server.owed.lock() = Owed::Everything;
            server.changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_changes_are_told_as_one() {
        let mut owed = Owed::Topics(BTreeSet::new());
        owed.add("T");
        owed.add("T");
        assert_eq!(owed, Owed::Topics(BTreeSet::from(["T".to_owned()])));
        for number in 0..=CHANGES_MAX {
            owed.add(&number.to_string());
        }
        assert_eq!(owed, Owed::Everything);
    }

    #[test]
    fn a_name_server_that_is_named_twice_is_told_once() {
        let registry = Registry::new(&["a:1".to_owned(), "b:1".to_owned(), "a:1".to_owned()], ClientOptions::default());
        assert_eq!(registry.addresses().collect::<Vec<_>>(), ["a:1", "b:1"]);
    }
}
