//! Which queues exist, by topic. There may be a million topics of one queue each (light queues), so an entry is two words, and the name is
//! that of the queue itself.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::queue::ConsumeQueue;

/// The queues of a topic, by id, ascending; never none.
#[derive(Clone)]
pub(super) enum TopicQueues {
    /// Without a list.
    One(Arc<ConsumeQueue>),
    /// With room to grow: ten thousand queues may come within a second, and each of them is to copy few of the others.
    #[expect(clippy::box_collection, reason = "an entry is two words")]
    Many(Box<Vec<Arc<ConsumeQueue>>>),
}

const _: () = assert!(size_of::<TopicQueues>() == 2 * size_of::<usize>());

impl TopicQueues {
    pub(super) fn all(&self) -> &[Arc<ConsumeQueue>] {
        match self {
            TopicQueues::One(queue) => std::slice::from_ref(queue),
            TopicQueues::Many(queues) => queues,
        }
    }

    fn name(&self) -> &str {
        self.all().first().map_or("", |queue| queue.topic())
    }

    /// Adds a queue at its place, unless there is one of its number.
    fn insert(&mut self, queue: Arc<ConsumeQueue>) {
        let Err(place) = self.all().binary_search_by_key(&queue.id(), |queue| queue.id()) else { return };
        match self {
            TopicQueues::One(first) => {
                let mut queues = Box::new(vec![Arc::clone(first)]);
                queues.insert(place, queue);
                *self = TopicQueues::Many(queues);
            }
            TopicQueues::Many(queues) => queues.insert(place, queue),
        }
    }
}

/// All queues.
#[derive(Default)]
pub(super) struct Table {
    topics: HashTable<TopicQueues>,
    hasher: FixedState,
}

impl Table {
    /// The queues of a topic; none if there is no such topic.
    pub(super) fn of(&self, topic: &str) -> &[Arc<ConsumeQueue>] {
        let found = self.topics.find(self.hasher.hash_one(topic), |queues| queues.name() == topic);
        found.map_or(&[], TopicQueues::all)
    }

    /// One queue of a topic.
    pub(super) fn get(&self, topic: &str, id: u32) -> Option<&Arc<ConsumeQueue>> {
        let queues = self.of(topic);
        let place = queues.binary_search_by_key(&id, |queue| queue.id()).ok()?;
        queues.get(place)
    }

    /// Adds a queue, unless its topic has one of its number.
    pub(super) fn insert(&mut self, queue: Arc<ConsumeQueue>) {
        let Table { topics, hasher } = self;
        let hash = hasher.hash_one(queue.topic());
        let is_its_topic = |queues: &TopicQueues| queues.name() == queue.topic();
        match topics.entry(hash, is_its_topic, |queues| hasher.hash_one(queues.name())) {
            Entry::Occupied(mut queues) => queues.get_mut().insert(queue),
            Entry::Vacant(place) => {
                place.insert(TopicQueues::One(queue));
            }
        }
    }

    /// Takes a topic out.
    pub(super) fn remove(&mut self, topic: &str) -> Option<TopicQueues> {
        let found = self.topics.find_entry(self.hasher.hash_one(topic), |queues| queues.name() == topic).ok()?;
        Some(found.remove().0)
    }

    /// Keeps the topics of which `stays` says so.
    pub(super) fn retain(&mut self, mut stays: impl FnMut(&str, &[Arc<ConsumeQueue>]) -> bool) {
        self.topics.retain(|queues| stays(queues.name(), queues.all()));
    }

    /// How many topics there are.
    pub(super) fn len(&self) -> usize {
        self.topics.len()
    }

    /// The queues of each topic.
    pub(super) fn iter(&self) -> impl Iterator<Item = &[Arc<ConsumeQueue>]> {
        self.topics.iter().map(TopicQueues::all)
    }
}
