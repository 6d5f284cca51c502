//! Topics of light queues. There may be very many of these queues, so none is in the table of
//! topics, in the journal or at a name server: what is known of one is its consume queue, and while
//! somebody uses it, a [`Topic`] of its own.

use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use parking_lot::Mutex;
use store::ConsumeQueue;

use super::Topic;

/// Entries of topics that nobody uses any more are looked for from here on.
const SWEPT_FROM: usize = 1024;

/// The topics of light queues that are in use: by a pull that waits, or a request.
pub(crate) struct LightTopics {
    /// Nothing is taken inside. An append to a light queue takes it afterwards: a pull is parked on
    /// a topic that is found here, or has put it here before it looks at the queue.
    used: Mutex<Used>,
}

#[derive(Default)]
struct Used {
    topics: HashMap<Arc<str>, Weak<Topic>, FixedState>,
    /// So many entries, and dead ones are taken out.
    sweep_at: usize,
}

impl LightTopics {
    pub(crate) fn new() -> LightTopics {
        LightTopics { used: Mutex::new(Used { sweep_at: SWEPT_FROM, ..Used::default() }) }
    }

    /// The topic of a light queue of this name; `make` makes it if nobody uses it.
    pub(crate) fn get(&self, name: &str, make: impl FnOnce() -> Topic) -> Arc<Topic> {
        let mut used = self.used.lock();
        if let Some(topic) = used.topics.get(name).and_then(Weak::upgrade) {
            return topic;
        }
        let topic = Arc::new(make());
        if used.topics.len() >= used.sweep_at {
            used.topics.retain(|_, topic| topic.strong_count() > 0);
            used.sweep_at = (used.topics.len() * 2).max(SWEPT_FROM);
        }
        used.topics.insert(Arc::clone(topic.shared_name()), Arc::downgrade(&topic));
        topic
    }

    /// Takes out the topic of a light queue that is deleted.
    pub(crate) fn remove(&self, name: &str) -> Option<Arc<Topic>> {
        self.used.lock().topics.remove(name)?.upgrade()
    }

    /// Shows the topics of those of the queues that somebody may wait on. Called after they were
    /// appended to.
    pub(crate) fn for_used(&self, queues: &[Arc<ConsumeQueue>], shown: impl FnMut(Arc<Topic>)) {
        if queues.is_empty() {
            return;
        }
        // A pull that waits has opened its lane, with a fence, before it looked at the queue:
        // either we see the lane, or it sees the message.
        fence(Ordering::SeqCst);
        let used = self.used.lock();
        queues.iter().filter_map(|queue| used.topics.get(queue.topic())?.upgrade()).for_each(shown);
    }
}
