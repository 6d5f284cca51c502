//! What an acknowledgement waits for: the kernel (ASYNC_FLUSH) or the device (SYNC_FLUSH).
//!
//! Three may say so, and the one who is nearest to the message counts: the message itself, its topic, the broker. The broker's word is
//! `flushDiskType`, the topic's the attribute [`FLUSH_DISK_TYPE`], the message's a property of that name; and `WAIT=false`, which all clients
//! can set, asks not to wait. Consumers see what the broker's word says, whatever was asked for single messages.
//!
//! A topic's word is read from its attributes when these change, not when a message comes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};

use protocol::properties;
use store::FlushMode;

use crate::broker::Broker;
use crate::facts::Facts;
use crate::refusal::Refusal;
use crate::send::illegal;
use crate::topics::Topic;

/// Name of the attribute, and of the property.
pub(crate) const FLUSH_DISK_TYPE: &str = "flush.disk.type";
/// What they may be.
pub(crate) const FLUSH_DISK_TYPES: &[&str] = &[ASYNC_FLUSH, SYNC_FLUSH];

const ASYNC_FLUSH: &str = "ASYNC_FLUSH";
const SYNC_FLUSH: &str = "SYNC_FLUSH";

fn read(text: &str) -> Option<FlushMode> {
    match text {
        ASYNC_FLUSH => Some(FlushMode::Async),
        SYNC_FLUSH => Some(FlushMode::Sync),
        _ => None,
    }
}

/// What a topic says. Relaxed: it stands alone.
pub(crate) struct TopicsWord(AtomicU8);

const NOTHING: u8 = 0;
const ASYNC: u8 = 1;
const SYNC: u8 = 2;

impl TopicsWord {
    pub(crate) fn of(attributes: &BTreeMap<String, String>) -> TopicsWord {
        let word = TopicsWord(AtomicU8::new(NOTHING));
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

    fn get(&self) -> Option<FlushMode> {
        match self.0.load(Ordering::Relaxed) {
            ASYNC => Some(FlushMode::Async),
            SYNC => Some(FlushMode::Sync),
            _ => None,
        }
    }
}

impl Facts<'_> {
    /// What the message itself says.
    pub(crate) fn flush(&self) -> Result<Option<FlushMode>, Refusal> {
        let Some(text) = self.flush_disk_type else {
            return Ok(self.is_hasty.then_some(FlushMode::Async));
        };
        match read(text) {
            Some(mode) => Ok(Some(mode)),
            None => Err(illegal(format!(
                "property {FLUSH_DISK_TYPE}: \"{text}\" is neither {ASYNC_FLUSH} nor {SYNC_FLUSH}"
            ))),
        }
    }
}

impl Broker {
    /// Whether the acknowledgement of a message, of which `own` is its own word, to this topic waits for the device.
    pub(crate) fn waits_for_device(&self, topic: &Topic, own: Option<FlushMode>) -> bool {
        match own.or_else(|| topic.flush.get()) {
            Some(mode) => mode == FlushMode::Sync,
            None => self.is_sync_flush(),
        }
    }

    /// Whether a record that is stored once more has to be on the device before that is acknowledged. Its first place is forgotten then:
    /// it is no less safe than it was there, and never less than the broker promises.
    pub(crate) fn waits_again(&self, topic: &str, properties: &str) -> bool {
        let own = properties::get(properties, FLUSH_DISK_TYPE).and_then(read);
        self.is_sync_flush()
            || own == Some(FlushMode::Sync)
            || self.topics.get(topic).is_some_and(|topic| topic.flush.asks_for_device())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(client: &str) -> Result<Option<FlushMode>, String> {
        Facts::of(client).flush().map_err(|refusal| refusal.remark)
    }

    #[test]
    fn a_message_says_what_it_waits_for() {
        assert_eq!(own("TAGS\u{1}a\u{2}"), Ok(None));
        // All clients of Java set it, so that it asks for nothing.
        assert_eq!(own("WAIT\u{1}true\u{2}"), Ok(None));
        assert_eq!(own("WAIT\u{1}false\u{2}"), Ok(Some(FlushMode::Async)));
        assert_eq!(own("flush.disk.type\u{1}ASYNC_FLUSH\u{2}"), Ok(Some(FlushMode::Async)));
        assert_eq!(own("flush.disk.type\u{1}SYNC_FLUSH\u{2}"), Ok(Some(FlushMode::Sync)));
        // Who names the device means it.
        assert_eq!(own("flush.disk.type\u{1}SYNC_FLUSH\u{2}WAIT\u{1}false\u{2}"), Ok(Some(FlushMode::Sync)));
        let remark = own("flush.disk.type\u{1}sync\u{2}").unwrap_err();
        assert!(remark.contains("\"sync\" is neither ASYNC_FLUSH nor SYNC_FLUSH"), "{remark}");
    }

    #[test]
    fn a_topic_says_it_until_its_attributes_say_something_else() {
        let attributes = |value: &str| BTreeMap::from([(FLUSH_DISK_TYPE.to_owned(), value.to_owned())]);
        let word = TopicsWord::of(&attributes("SYNC_FLUSH"));
        assert_eq!(word.get(), Some(FlushMode::Sync));
        word.follow(&attributes("ASYNC_FLUSH"));
        assert_eq!(word.get(), Some(FlushMode::Async));
        word.follow(&BTreeMap::new());
        assert_eq!(word.get(), None);
        word.follow(&attributes("SOMETIMES"));
        assert_eq!(word.get(), None);
    }
}
