//! The key of what is kept for a group and a topic.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A group and a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupTopic {
    pub(crate) group: Arc<str>,
    pub(crate) topic: Arc<str>,
}

/// The same, borrowed, so that a look-up allocates nothing.
pub(crate) struct GroupTopicRef<'a> {
    pub(crate) group: &'a str,
    pub(crate) topic: &'a str,
}

impl Hash for GroupTopic {
    fn hash<H: Hasher>(&self, state: &mut H) {
        GroupTopicRef { group: &self.group, topic: &self.topic }.hash(state);
    }
}

impl Hash for GroupTopicRef<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.group.hash(state);
        self.topic.hash(state);
    }
}

impl papaya::Equivalent<GroupTopic> for GroupTopicRef<'_> {
    fn equivalent(&self, key: &GroupTopic) -> bool {
        *self.group == *key.group && *self.topic == *key.topic
    }
}
