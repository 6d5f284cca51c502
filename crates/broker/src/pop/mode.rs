//! 401 and 402: how groups are to get the messages of a topic, and what was set.

use net::{Outgoing, Request};
use protocol::body::SetMessageRequestMode;
use protocol::code::ResponseCode;
use protocol::names;

use super::state::modes::MODES_MAX;
use crate::answer::{body, reply_json, reply_ok};
use crate::pop::Pops;
use crate::refusal::Refusal;
use crate::session::Session;
use crate::state::groups::Groups;
use crate::state::topics::Topics;

/// 401: how is a group to get the messages of a topic?
pub(crate) fn set(
    topics: &Topics,
    groups: &Groups,
    pops: &Pops,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let wanted: SetMessageRequestMode = body(request)?;
    if names::is_retry_topic(&wanted.topic) {
        return Err(Refusal::new(ResponseCode::NoPermission, "retry topic is not allowed to set mode"));
    }
    if topics.get(&wanted.topic).is_none() {
        return Err(Refusal::topic_not_exist(&wanted.topic));
    }
    groups.find(&wanted.consumer_group)?;
    if !pops.modes.has_room_for(&wanted.topic, &wanted.consumer_group) {
        let remark = format!("mode of group {}: {MODES_MAX} modes are set, which is the limit", wanted.consumer_group);
        return Err(Refusal::new(ResponseCode::InvalidParameter, remark));
    }
    session.copied_after(pops.modes.set(wanted));
    reply_ok(request, out);
    Ok(())
}

/// 402: everything that was set.
pub(crate) fn all(pops: &Pops, request: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    reply_json(request, out, &pops.modes.table());
    Ok(())
}
