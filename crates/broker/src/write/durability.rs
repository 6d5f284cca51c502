//! What an acknowledgement waits for: the kernel (ASYNC_FLUSH) or the device (SYNC_FLUSH), and slaves (SYNC_MASTER).
//!
//! The message, its topic and the broker can each say so; the message wins over its topic, and the topic over the broker. For the device they
//! say it with the property and the attribute [`FLUSH_DISK_TYPE`], and with `flushDiskType`. For slaves they say it with the property and the
//! attribute [`REPLICA_ACK`], and with `brokerRole` and `inSyncReplicas`. `WAIT=false`, which all clients can set, waits for neither. The result
//! is a set of [`Stages`]. When consumers see a message depends on the broker's `flushDiskType` alone.

use protocol::properties;
use store::{FlushMode, Stage, Stages};

use crate::broker::Broker;
use crate::refusal::Refusal;
use crate::state::topics::Topic;
use crate::state::topics::flush::{self, ASYNC_FLUSH, FLUSH_DISK_TYPE, SYNC_FLUSH};
use crate::state::topics::replica_ack::{self, ALL, NONE, REPLICA_ACK, ReplicaAck, SYNC};
use crate::write::send_properties::SendProperties;

/// What a message says for itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnWords {
    flush: Option<FlushMode>,
    copies: Option<ReplicaAck>,
}

impl OwnWords {
    /// These, and where they are silent, the others'.
    pub(crate) fn or(self, others: OwnWords) -> OwnWords {
        OwnWords { flush: self.flush.or(others.flush), copies: self.copies.or(others.copies) }
    }
}

impl SendProperties<'_> {
    /// What the message itself says.
    pub(crate) fn own_words(&self) -> Result<OwnWords, Refusal> {
        let words = self.named_words()?;
        let hasty = OwnWords { flush: Some(FlushMode::Async), copies: Some(ReplicaAck::None) };
        // Who names something means it.
        Ok(if self.is_hasty { words.or(hasty) } else { words })
    }

    /// The same without `WAIT`.
    pub(crate) fn named_words(&self) -> Result<OwnWords, Refusal> {
        let flush = self.flush_disk_type.map(|text| {
            flush::read(text).ok_or_else(|| {
                Refusal::illegal(format!(
                    "property {FLUSH_DISK_TYPE}: \"{text}\" is neither {ASYNC_FLUSH} nor {SYNC_FLUSH}"
                ))
            })
        });
        let copies = self.replica_ack.map(|text| {
            replica_ack::read(text).ok_or_else(|| {
                Refusal::illegal(format!("property {REPLICA_ACK}: \"{text}\" is none of {NONE}, {SYNC}, {ALL}"))
            })
        });
        Ok(OwnWords { flush: flush.transpose()?, copies: copies.transpose()? })
    }
}

impl Broker {
    /// The stages that the acknowledgement of a message to this topic waits for. `own`: the message's own words. Refused if fewer copies are
    /// in sync than a broker that waits for them is to have.
    pub(crate) fn stages_of(&self, topic: &Topic, own: OwnWords) -> Result<Stages, Refusal> {
        let flush = own.flush.or_else(|| topic.flush.get()).map_or_else(|| self.store.stages(), FlushMode::stages);
        let copies = self.copies.asked(own.copies.or_else(|| topic.replica_ack.get()))?;
        Ok(flush.and(copies))
    }

    /// The same of a record that is stored once more. Its first place is forgotten then: it is no
    /// less safe than it was there, and never less than the broker promises.
    pub(crate) fn stages_again(&self, topic: &str, properties: &str) -> Stages {
        let topic = self.topics.get(topic);
        let topic = topic.as_deref();
        let own = properties::get(properties, FLUSH_DISK_TYPE).and_then(flush::read);
        let asks_for_device = own == Some(FlushMode::Sync) || topic.is_some_and(|topic| topic.flush.asks_for_device());
        let stages = self.store.stages();
        let stages = if asks_for_device { stages.with(Stage::Flushed) } else { stages };
        let own = properties::get(properties, REPLICA_ACK).and_then(replica_ack::read);
        stages.and(self.copies.asked_again([own, topic.and_then(|topic| topic.replica_ack.get())]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(client: &str) -> Result<OwnWords, String> {
        SendProperties::of(client).own_words().map_err(|refusal| refusal.remark)
    }

    #[test]
    fn a_message_says_what_it_waits_for() {
        let words = |flush, copies| Ok(OwnWords { flush, copies });
        let hasty = words(Some(FlushMode::Async), Some(ReplicaAck::None));
        assert_eq!(own("TAGS\u{1}a\u{2}"), words(None, None));
        // All clients of Java set it, so that it asks for nothing.
        assert_eq!(own("WAIT\u{1}true\u{2}"), words(None, None));
        assert_eq!(own("WAIT\u{1}false\u{2}"), hasty);
        assert_eq!(own("flush.disk.type\u{1}ASYNC_FLUSH\u{2}"), words(Some(FlushMode::Async), None));
        assert_eq!(own("flush.disk.type\u{1}SYNC_FLUSH\u{2}"), words(Some(FlushMode::Sync), None));
        assert_eq!(own("replica.ack\u{1}NONE\u{2}"), words(None, Some(ReplicaAck::None)));
        assert_eq!(own("replica.ack\u{1}SYNC\u{2}"), words(None, Some(ReplicaAck::Sync)));
        assert_eq!(own("replica.ack\u{1}ALL\u{2}"), words(None, Some(ReplicaAck::All)));
        // Who names the device, or slaves, means it.
        let device = words(Some(FlushMode::Sync), Some(ReplicaAck::None));
        assert_eq!(own("flush.disk.type\u{1}SYNC_FLUSH\u{2}WAIT\u{1}false\u{2}"), device);
        let slaves = words(Some(FlushMode::Async), Some(ReplicaAck::All));
        assert_eq!(own("replica.ack\u{1}ALL\u{2}WAIT\u{1}false\u{2}"), slaves);
        let remark = own("flush.disk.type\u{1}sync\u{2}").unwrap_err();
        assert!(remark.contains("\"sync\" is neither ASYNC_FLUSH nor SYNC_FLUSH"), "{remark}");
        let remark = own("replica.ack\u{1}2\u{2}").unwrap_err();
        assert!(remark.contains("\"2\" is none of NONE, SYNC, ALL"), "{remark}");
    }
}
