//! A pull that another broker is asked in place of this one: it holds the physical queue of a static topic.

use protocol::code::request;
use protocol::request::PullMessage;
use protocol::sys_flag::pull as bits;

use super::{PullOrder, PullOutcome};
use crate::refusal::Refusal;
use crate::static_topic::forward::Forward;
use crate::static_topic::pull::HeldElsewhere;

/// What is asked, and of which broker.
///
/// What the pull commits is left to 15: by the time the holder has answered, and so made the checks of a pull, a later commit may be done.
pub(super) struct PassedOn {
    held: HeldElsewhere,
    group: String,
    topic: String,
    /// The expression, and its type.
    subscription: Option<(String, Option<String>)>,
    subscription_version: i64,
    bytes_max: Option<i32>,
}

impl PassedOn {
    pub(super) fn new(order: &PullOrder<'_>, held: HeldElsewhere) -> PassedOn {
        PassedOn {
            held,
            group: order.group.to_owned(),
            topic: order.topic.to_owned(),
            subscription: order
                .subscription
                .map(|brought| (brought.expression.to_owned(), brought.expression_type.map(str::to_owned))),
            subscription_version: order.subscription_version,
            bytes_max: order.bytes_max,
        }
    }

    /// Asks the holder.
    pub(super) async fn ask(&self, forward: &Forward) -> Result<PullOutcome, Refusal> {
        let pull = &self.held.pull;
        let (expression, expression_type) = self
            .subscription
            .as_ref()
            .map_or((None, None), |(expression, kind)| (Some(expression.as_str()), kind.as_deref()));
        let question = PullMessage {
            max_msg_nums: pull.count_max,
            // The holder must not wait for a message that will not come.
            sys_flag: if expression.is_some() { bits::SUBSCRIPTION } else { 0 },
            subscription: expression,
            sub_version: self.subscription_version,
            expression_type,
            max_msg_bytes: self.bytes_max,
            ..PullMessage::at(&self.group, &self.topic, pull.queue_id, pull.offset)
        };
        let answer = forward.ask(&self.held.holder, request::PULL_MESSAGE, &question).await?;
        self.held.told(answer).map(PullOutcome::told)
    }
}
