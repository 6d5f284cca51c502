//! The attribute `flush.disk.type` of a topic: whether acknowledgements wait for the device.
//!
//! It is read from the topic's attributes when these change, not when a message comes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};

use store::FlushMode;

/// Name of the attribute, and of the property.
pub(crate) const FLUSH_DISK_TYPE: &str = "flush.disk.type";
/// Its values.
pub(crate) const FLUSH_DISK_TYPES: &[&str] = &[ASYNC_FLUSH, SYNC_FLUSH];

pub(crate) const ASYNC_FLUSH: &str = "ASYNC_FLUSH";
pub(crate) const SYNC_FLUSH: &str = "SYNC_FLUSH";

/// The mode of that name.
pub(crate) fn read(text: &str) -> Option<FlushMode> {
    match text {
        ASYNC_FLUSH => Some(FlushMode::Async),
        SYNC_FLUSH => Some(FlushMode::Sync),
        _ => None,
    }
}

/// The mode that a topic asks for. Relaxed: it stands alone.
pub(crate) struct TopicFlush(AtomicU8);

const NOTHING: u8 = 0;
const ASYNC: u8 = 1;
const SYNC: u8 = 2;

impl TopicFlush {
    pub(crate) fn of(attributes: &BTreeMap<String, String>) -> TopicFlush {
        let word = TopicFlush(AtomicU8::new(NOTHING));
        word.follow(attributes);
        word
    }

    /// The topic has these attributes now.
    pub(crate) fn follow(&self, attributes: &BTreeMap<String, String>) {
        // Another broker may have left what we would refuse.
        let word = match attributes.get(FLUSH_DISK_TYPE).and_then(|text| read(text)) {
            None => NOTHING,
            Some(FlushMode::Async) => ASYNC,
            Some(FlushMode::Sync) => SYNC,
        };
        self.0.store(word, Ordering::Relaxed);
    }

    /// Whether messages of the topic that say nothing wait for the device.
    pub(crate) fn asks_for_device(&self) -> bool {
        self.get() == Some(FlushMode::Sync)
    }

    /// Its mode; none if it leaves that to the broker.
    pub(crate) fn get(&self) -> Option<FlushMode> {
        match self.0.load(Ordering::Relaxed) {
            ASYNC => Some(FlushMode::Async),
            SYNC => Some(FlushMode::Sync),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_says_it_until_its_attributes_say_something_else() {
        let attributes = |value: &str| BTreeMap::from([(FLUSH_DISK_TYPE.to_owned(), value.to_owned())]);
        let word = TopicFlush::of(&attributes("SYNC_FLUSH"));
        assert_eq!(word.get(), Some(FlushMode::Sync));
        word.follow(&attributes("ASYNC_FLUSH"));
        assert_eq!(word.get(), Some(FlushMode::Async));
        word.follow(&BTreeMap::new());
        assert_eq!(word.get(), None);
        word.follow(&attributes("SOMETIMES"));
        assert_eq!(word.get(), None);
    }
}
