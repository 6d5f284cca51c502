//! Who is connected: 203, 204, 328.

use std::collections::BTreeMap;
use std::sync::Arc;

use env::Clock;
use net::{Outgoing, Request};
use protocol::body::{Connection, ConsumerConnection, ProducerConnection, ProducerInfo, ProducerTable};
use protocol::code::ResponseCode;
use protocol::request::{GetConsumerConnections, GetProducerConnections};

use crate::answer::reply_json;
use crate::client_handle::ClientHandle;
use crate::refusal::Refusal;
use crate::state::clients::{Clients, Member};

/// 203: the consumers of a group, and what they subscribe to.
pub(crate) fn consumers(
    clients: &Clients<ClientHandle>,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let name = GetConsumerConnections::decode(&request.header.fields)?.consumer_group;
    let Some(group) = clients.consumers(name) else {
        return Err(Refusal::new(ResponseCode::ConsumerNotOnline, format!("the consumer group[{name}] not online")));
    };
    let reply = ConsumerConnection {
        connection_set: connections(group.members()),
        consume_from_where: group.consume_from_where,
        consume_type: group.consume_type,
        message_model: group.message_model,
        subscription_table: group.subscriptions(),
    };
    reply_json(request, out, &reply);
    Ok(())
}

/// 204: the producers of a group.
pub(crate) fn producers(
    clients: &Clients<ClientHandle>,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let name = GetProducerConnections::decode(&request.header.fields)?.producer_group;
    let Some(members) = clients.producers(name) else {
        return Err(Refusal::new(ResponseCode::SystemError, format!("the producer group[{name}] not exist")));
    };
    reply_json(request, out, &ProducerConnection { connection_set: connections(&members) });
    Ok(())
}

/// 328: all producers.
pub(crate) fn all_producers(
    clients: &Clients<ClientHandle>,
    clock: &Clock,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let data: BTreeMap<String, Vec<ProducerInfo>> = clients
        .all_producers()
        .into_iter()
        .map(|(group, members)| (group, members.iter().map(|member| producer(member, clock)).collect()))
        .collect();
    reply_json(request, out, &ProducerTable { data });
    Ok(())
}

fn connections<C>(members: &[Arc<Member<C>>]) -> Vec<Connection> {
    let shown = members.iter().map(|member| Connection {
        client_addr: member.client.peer.to_string(),
        client_id: member.client.client_id.to_string(),
        language: member.client.language.to_owned(),
        version: member.client.version,
    });
    shown.collect()
}

fn producer<C>(member: &Member<C>, clock: &Clock) -> ProducerInfo {
    let silent_ms = clock.elapsed().saturating_sub(member.heard_at()).as_millis();
    ProducerInfo {
        client_id: member.client.client_id.to_string(),
        language: member.client.language.to_owned(),
        last_update_timestamp: clock.now().0.saturating_sub(i64::try_from(silent_ms).unwrap_or(i64::MAX)),
        // A Java socket address, port and all, whatever the field is called.
        remote_ip: format!("/{}", member.client.peer),
        version: member.client.version,
    }
}
