//! 401 and 402: how groups are to get the messages of a topic, and what was set.

use net::{Outgoing, Request};
use protocol::body::SetMessageRequestMode;
use protocol::code::ResponseCode;
use protocol::names;

use super::state::modes::MODES_MAX;
use crate::answer::{body, reply_json, reply_ok};
use crate::broker::Broker;
use crate::refusal::Refusal;
use crate::session::Session;

/// 401: how is a group to get the messages of a topic?
pub(crate) fn set(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let wanted: SetMessageRequestMode = body(request)?;
    if names::is_retry_topic(&wanted.topic) {
        return Err(Refusal::new(ResponseCode::NoPermission, "retry topic is not allowed to set mode"));
    }
    if broker.topics.get(&wanted.topic).is_none() {
        return Err(Refusal::topic_not_exist(&wanted.topic));
    }
    broker.groups.find(&wanted.consumer_group)?;
    if !broker.pops.modes.has_room_for(&wanted.topic, &wanted.consumer_group) {
        let remark = format!("mode of group {}: {MODES_MAX} modes are set, which is the limit", wanted.consumer_group);
        return Err(Refusal::new(ResponseCode::InvalidParameter, remark));
    }
    session.durable_after(broker.pops.modes.set(wanted));
    reply_ok(request, out);
    Ok(())
}

/// 402: everything that was set.
pub(crate) fn all(broker: &Broker, request: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    reply_json(request, out, &broker.pops.modes.table());
    Ok(())
}
