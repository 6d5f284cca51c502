//! What a consumer wants of a topic: by tags, which a queue's units know, or by a condition on properties, for which the record is looked into.

use std::sync::Arc;

use filter::Expression;
use net::Connection;
use protocol::names;
use protocol::properties::name;
use protocol::record::{self, RecordView, Scanned};
use protocol::tags::Subscription;
use store::{Copies, Wanted};

use crate::clients::{ClientSubscription, ConsumerGroup};
use crate::session::Work;

/// RocketMQ's name of conditions on properties.
pub(crate) const SQL92: &str = "SQL92";

/// A filter, ready for any number of messages.
#[derive(Debug)]
pub(crate) enum Want {
    /// By tag codes. Clients look again, since codes may collide.
    Tags(Subscription),
    /// By properties. Null and an evaluation that fails are a no, as in Apache.
    Sql(Expression),
    /// Retries, by what the group wants of the topics that they come from (`filterSupportRetry`).
    Retries(Arc<ConsumerGroup<Connection<Work>>>),
}

impl Want {
    /// For a subscription by tags. `None`: everything.
    pub(crate) fn tags(subscription: Subscription) -> Option<Arc<Want>> {
        (!subscription.is_all()).then(|| Arc::new(Want::Tags(subscription)))
    }
}

/// A retry is wanted if its message would be: a group that changed its mind does not get what it does not want any more. What it wants
/// by tags its units have said.
fn wants_retry(group: &ConsumerGroup<Connection<Work>>, view: &RecordView<'_>) -> bool {
    let origin = view.property(name::RETRY_TOPIC).filter(|topic| !names::is_retry_topic(topic));
    let subscription = origin.and_then(|topic| group.subscription(topic));
    subscription.as_deref().and_then(ClientSubscription::sql).is_none_or(|sql| sql.matches(view.properties_bytes()))
}

fn view(record: &[u8]) -> Option<RecordView<'_>> {
    match record::scan(record, false) {
        Ok(Scanned::Record(view)) => Some(view),
        Ok(Scanned::Blank { .. } | Scanned::Nothing) | Err(_) => None,
    }
}

/// For one read: what is wanted, and who has what is copied for it.
pub(crate) struct Reader<'a>(pub(crate) Option<&'a Want>, pub(crate) Option<&'a Copies>);

impl Wanted for Reader<'_> {
    fn wants_unit(&mut self, tags: i64) -> bool {
        match self.0 {
            Some(Want::Tags(tags_wanted)) => tags_wanted.matches(tags),
            Some(Want::Sql(_) | Want::Retries(_)) | None => true,
        }
    }

    fn wants_record(&mut self, record: &[u8]) -> bool {
        match self.0 {
            Some(Want::Sql(sql)) => view(record).is_some_and(|view| sql.matches(view.properties_bytes())),
            Some(Want::Retries(group)) => view(record).is_some_and(|view| wants_retry(group, &view)),
            Some(Want::Tags(_)) | None => true,
        }
    }

    fn copies(&self) -> Option<&Copies> {
        self.1
    }
}
