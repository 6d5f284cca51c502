//! What the broker remembers about one connection, and work that comes back to it.
//!
//! A session belongs to its connection's task; nobody else touches it. Others reach the connection through its handle.

use std::sync::Arc;

use net::Connection;
use store::LogSlice;

use crate::append::Sends;
use crate::broker::Broker;
use crate::hold::{Errand, Inbox};
use crate::topics::Topic;

/// Work that is handed back to a connection's own task.
pub enum Work {
    /// There is something in the session's own inbox: woken pulls, bytes that came from the disk.
    Errands,
}

/// The broker's side of one connection.
pub struct Session {
    /// The handle that outlives a burst.
    pub connection: Connection<Work>,
    /// Sends of the current burst, and buffers that live on so that the next burst allocates nothing.
    pub(crate) sends: Sends,
    /// What others have for this connection's task: woken pulls, bytes from the disk.
    pub(crate) inbox: Arc<Inbox>,
    /// The buffer that goes to and fro between here and the inbox; empty between errands.
    pub(crate) errands: Vec<Errand>,
    /// What the read under way found; empty between requests.
    pub(crate) slices: Vec<LogSlice>,
    /// The topic of the last request: clients send in runs to the same one.
    last_topic: Option<Arc<Topic>>,
    /// Replies of the current burst may leave when the journal is written up to here.
    durable_after: u64,
}

impl Session {
    pub(crate) fn open(broker: &Broker, connection: &Connection<Work>) -> Session {
        broker.limits.opened(connection.listener());
        Session {
            connection: connection.clone(),
            sends: Sends::new(broker.settings.load().unflushed_bursts_per_connection_max),
            inbox: Arc::new(Inbox::new(connection.clone())),
            errands: Vec::new(),
            slices: Vec::new(),
            last_topic: None,
            durable_after: 0,
        }
    }

    pub(crate) fn close(self, broker: &Broker) {
        broker.limits.closed(self.connection.listener());
        crate::heartbeat::closed(broker, self.connection.id());
        broker.hold.forget(&self.inbox);
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

    /// Keeps back the replies of this burst until the journal is written up to `position`.
    ///
    /// A handler calls this after it changed something that is not in the log; `serve` waits once for all of them.
    pub(crate) fn durable_after(&mut self, position: u64) {
        self.durable_after = self.durable_after.max(position);
    }

    /// What the replies of this burst have to wait for so far.
    pub(crate) fn durable_after_so_far(&self) -> u64 {
        self.durable_after
    }

    /// Waits until the replies of this burst may leave.
    pub(crate) async fn durable(&mut self, broker: &Broker) {
        let position = std::mem::take(&mut self.durable_after);
        if position > 0 {
            broker.store.journal().written().reached(position).await;
        }
    }
}
