//! Questions that the broker passes on to a client, and answers with what the client says: 223 (as 221) and 307.
//!
//! A client may take seconds to answer, or not answer; so a task of its own waits, and lays the reply into the asker's inbox.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use net::{CallError, Connection, Outgoing, ReplyTo, Request};
use protocol::body::ConsumerStatus;
use protocol::code::{ResponseCode, request};
use protocol::fastjson::{self, Dialect};
use protocol::request::{GetConsumerRunningInfo, GetConsumerStatus};

use crate::broker::Broker;
use crate::refusal::Refusal;
use crate::session::{Session, Work};

/// How long a client has to describe itself.
const DESCRIBE: Duration = Duration::from_secs(10);
/// How long a client has to list its offsets.
const LIST: Duration = Duration::from_secs(5);
/// Clients before this (3.1.8) cannot describe themselves.
const VERSION_WITH_DESCRIPTION: i32 = 62;
/// Clients before this (3.0.7) cannot list their offsets.
const VERSION_WITH_STATUS: i32 = 28;

/// 307: what a consumer is doing. Its answer is passed on as it is.
pub(crate) fn running_info(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    _: &mut Outgoing,
) -> Result<(), Refusal> {
    let asked = GetConsumerRunningInfo::decode(&request.header.fields)?;
    let (group, client_id, jstack_enable) =
        (asked.consumer_group.to_owned(), asked.client_id.to_owned(), asked.jstack_enable);
    let consumers = broker.clients.consumers(&group);
    let Some(member) = consumers.and_then(|consumers| consumers.member(&client_id).cloned()) else {
        return Err(Refusal::new(
            ResponseCode::SystemError,
            format!("The Consumer <{group}> <{client_id}> not online"),
        ));
    };
    if member.client.version < VERSION_WITH_DESCRIPTION {
        let remark = format!(
            "The Consumer <{client_id}> Version <{}> too low to finish, please upgrade it to V3_1_8_SNAPSHOT",
            member.client.version
        );
        return Err(Refusal::new(ResponseCode::SystemError, remark));
    }
    let reply_to = request.reply_to();
    let asker = session.connection.clone();
    tokio::spawn(async move {
        let fields = GetConsumerRunningInfo { consumer_group: &group, client_id: &client_id, jstack_enable };
        let answer =
            member.client.connection.request(request::GET_CONSUMER_RUNNING_INFO, &fields, Bytes::new(), DESCRIBE).await;
        match answer {
            Ok(answer) => {
                let code = ResponseCode::from_i32(answer.code).unwrap_or(ResponseCode::SystemError);
                send(&asker, reply_to, code, answer.remark.as_deref(), &answer.body);
            }
            Err(error) => send(
                &asker,
                reply_to,
                failure_code(&error),
                Some(&format!("consumer <{group}> <{client_id}>: {error}")),
                &[],
            ),
        }
    });
    Ok(())
}

/// 223: the offsets that the consumers of a group hold, of all of them or of one.
pub(crate) fn consumer_status(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    _: &mut Outgoing,
) -> Result<(), Refusal> {
    let asked = GetConsumerStatus::decode(&request.header.fields)?;
    let (topic, group) = (asked.topic.to_owned(), asked.group.to_owned());
    let wanted = asked.client_addr.filter(|id| !id.is_empty()).map(str::to_owned);
    let members = broker.clients.consumers(&group).map(|consumers| consumers.members().to_vec()).unwrap_or_default();
    if members.is_empty() {
        return Err(Refusal::new(
            ResponseCode::SystemError,
            format!("No Any Consumer online in the consumer group: [{group}]"),
        ));
    }
    if let Some(old) = members.iter().find(|member| member.client.version < VERSION_WITH_STATUS) {
        let remark = format!("the client does not support this feature. version={}", old.client.version);
        return Err(Refusal::new(ResponseCode::SystemError, remark));
    }
    let members: Vec<_> = members
        .into_iter()
        .filter(|member| wanted.as_ref().is_none_or(|wanted| *wanted == *member.client.client_id))
        .collect();
    let reply_to = request.reply_to();
    let asker = session.connection.clone();
    tokio::spawn(async move {
        let (topic, group) = (Arc::<str>::from(topic), Arc::<str>::from(group));
        let mut asked = tokio::task::JoinSet::new();
        for member in members {
            let (topic, group) = (Arc::clone(&topic), Arc::clone(&group));
            asked.spawn(async move {
                let fields = GetConsumerStatus { topic: &topic, group: &group, client_addr: None };
                let answer = member
                    .client
                    .connection
                    .request(request::GET_CONSUMER_STATUS_FROM_CLIENT, &fields, Bytes::new(), LIST)
                    .await;
                let status = answer.ok().filter(|answer| answer.code == ResponseCode::Success as i32);
                let status = status.and_then(|answer| fastjson::from_slice::<ConsumerStatus>(&answer.body).ok());
                (member.client.client_id.to_string(), status)
            });
        }
        let mut consumer_table = BTreeMap::new();
        while let Some(answer) = asked.join_next().await {
            // A client that does not answer is left out, as in Apache.
            if let Ok((client_id, Some(status))) = answer {
                consumer_table.insert(client_id, status.message_queue_table);
            }
        }
        let body = ConsumerStatus { consumer_table, ..ConsumerStatus::default() };
        send(&asker, reply_to, ResponseCode::Success, None, &fastjson::to_vec(&body, Dialect::FastJson));
    });
    Ok(())
}

fn failure_code(error: &CallError) -> ResponseCode {
    match error {
        CallError::Timeout { .. } => ResponseCode::ConsumeMsgTimeout,
        CallError::Resolve { .. }
        | CallError::Connect { .. }
        | CallError::BackingOff { .. }
        | CallError::Tls(_)
        | CallError::Closed { .. }
        | CallError::Busy { .. } => ResponseCode::SystemError,
    }
}

/// The asker may have gone meanwhile; then nobody misses the reply.
fn send(asker: &Connection<Work>, to: ReplyTo, code: ResponseCode, remark: Option<&str>, body: &[u8]) {
    let mut out = Outgoing::new();
    out.reply(to, code, remark, &(), body);
    asker.send(out.take());
}
