//! An order on its way into a batch of records.

use std::net::SocketAddr;
use std::sync::Arc;

use config::BrokerSettings;
use net::ReplyTo;

use super::order::SendOrder;
use crate::refusal::Refusal;
use crate::state::topics::Topic;
use crate::write::repeats::Repeated;
use crate::write::send_properties::SendProperties;

/// An order that its topic admits, with what its records need besides.
#[derive(Clone, Copy)]
pub(crate) struct Sending<'a> {
    pub(crate) order: &'a SendOrder<'a>,
    pub(crate) settings: &'a BrokerSettings,
    pub(crate) reply_to: ReplyTo,
    /// The producer.
    pub(crate) born_host: SocketAddr,
}

/// Where a message goes once everything about its topic is checked.
pub(super) struct Route {
    pub(super) topic: Arc<Topic>,
    pub(super) queue_id: i32,
    pub(super) sys_flag: i32,
    /// A retry that is over: it goes to the dead-letter topic.
    pub(super) is_dead: bool,
}

/// What has become of an order that passed its checks. What is in the batch is answered by its
/// receipt, at the receipt's stage.
pub(crate) enum Gathered {
    /// It is in the batch, for the queue that it was sent to.
    InPlace,
    /// It is in the batch, for a queue where it waits, or for dead letters.
    Elsewhere,
    /// It was stored before.
    Repeated(Repeated),
}

pub(super) fn delay_level(facts: &SendProperties<'_>) -> Result<i32, Refusal> {
    facts.delay_level().map_err(|text| Refusal::illegal(format!("property DELAY: \"{text}\" is not a number")))
}
