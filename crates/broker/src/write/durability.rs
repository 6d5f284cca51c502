//! What an acknowledgement waits for: the kernel (ASYNC_FLUSH) or the device (SYNC_FLUSH).
//!
//! Three may say so, and the one who is nearest to the message counts: the message itself, its topic, the broker. The broker's word is
//! `flushDiskType`, the topic's the attribute [`FLUSH_DISK_TYPE`], the message's a property of that name; and `WAIT=false`, which all clients
//! can set, asks not to wait. The word becomes a [`Stage`]. Consumers see what the broker's word
//! says, whatever was asked for single messages.

use protocol::properties;
use store::{FlushMode, Stage};

use crate::broker::Broker;
use crate::refusal::Refusal;
use crate::state::topics::Topic;
use crate::state::topics::flush::{ASYNC_FLUSH, FLUSH_DISK_TYPE, SYNC_FLUSH, read};
use crate::write::send_properties::SendProperties;

impl SendProperties<'_> {
    /// What the message itself says.
    pub(crate) fn flush(&self) -> Result<Option<FlushMode>, Refusal> {
        let Some(text) = self.flush_disk_type else {
            return Ok(self.is_hasty.then_some(FlushMode::Async));
        };
        match read(text) {
            Some(mode) => Ok(Some(mode)),
            None => Err(Refusal::illegal(format!(
                "property {FLUSH_DISK_TYPE}: \"{text}\" is neither {ASYNC_FLUSH} nor {SYNC_FLUSH}"
            ))),
        }
    }
}

impl Broker {
    /// The stage that the acknowledgement of a message to this topic waits for. `own`: the
    /// message's own word.
    pub(crate) fn stage_of(&self, topic: &Topic, own: Option<FlushMode>) -> Stage {
        own.or_else(|| topic.flush.get()).map_or_else(|| self.store.stage(), FlushMode::stage)
    }

    /// The same of a record that is stored once more. Its first place is forgotten then: it is no
    /// less safe than it was there, and never less than the broker promises.
    pub(crate) fn stage_again(&self, topic: &str, properties: &str) -> Stage {
        let own = properties::get(properties, FLUSH_DISK_TYPE).and_then(read);
        let asks = || self.topics.get(topic).is_some_and(|topic| topic.flush.asks_for_device());
        match self.store.stage() {
            Stage::Written if own == Some(FlushMode::Sync) || asks() => Stage::Flushed,
            stage @ (Stage::Written | Stage::Flushed | Stage::Replicated) => stage,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(client: &str) -> Result<Option<FlushMode>, String> {
        SendProperties::of(client).flush().map_err(|refusal| refusal.remark)
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
}
