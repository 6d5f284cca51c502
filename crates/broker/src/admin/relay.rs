//! Questions that the broker passes on to a client, and answers with what the client says: 223 (as 221), 307 and 309.
//!
//! A client may take seconds to answer, or not answer; so a task of its own waits, and lays the reply into the asker's inbox.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use net::{CallError, Outgoing, ReplyTo, Request};
use protocol::LogOffset;
use protocol::body::ConsumerStatus;
use protocol::code::ResponseCode;
use protocol::fastjson::{self, Dialect};
use protocol::message_id::parse_offset_message_id;
use protocol::request::{ConsumeMessageDirectly, GetConsumerRunningInfo, GetConsumerStatus};

use crate::beside::SMALL_BYTES;
use crate::broker::Broker;
use crate::client_handle::{ClientAnswer, ClientHandle, ClientQuestion};
use crate::inbox::{Errand, Inbox};
use crate::refusal::Refusal;
use crate::session::Session;
use crate::state::clients::VERSION_WITH_ANSWERS;
use crate::state::clients::{Clients, Member};
use crate::{blocking, cold};

/// How long a client has to describe itself, or to consume a message.
const ANSWER: Duration = Duration::from_secs(10);
/// How long a client has to list its offsets.
const LIST: Duration = Duration::from_secs(5);
/// Clients before this (3.0.7) cannot list their offsets.
const VERSION_WITH_STATUS: i32 = 28;

/// 307: what a consumer is doing. Its answer is passed on as it is.
pub(crate) fn running_info(
    clients: &Clients<ClientHandle>,
    session: &mut Session,
    request: &Request<'_>,
    _: &mut Outgoing,
) -> Result<(), Refusal> {
    let asked = GetConsumerRunningInfo::decode(&request.header.fields)?;
    let (group, client_id, jstack_enable) =
        (asked.consumer_group.to_owned(), asked.client_id.to_owned(), asked.jstack_enable);
    let member = consumer(clients, &group, &client_id)?;
    let (asker, reply_to) = (Arc::clone(&session.inbox), request.reply_to());
    let debt = asker.owe();
    tokio::spawn(async move {
        let fields = GetConsumerRunningInfo { consumer_group: &group, client_id: &client_id, jstack_enable };
        let answer = member.client.connection.ask(ClientQuestion::RunningInfo(fields), ANSWER).await;
        pass_on(&asker, reply_to, &group, &client_id, answer);
        drop(debt);
    });
    Ok(())
}

/// 309: has a consumer consume one stored message, now, and says what came of it. Its offsets do not move.
pub(crate) fn consume_directly(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let asked = ConsumeMessageDirectly::decode(&request.header.fields)?;
    let invalid = |remark: String| Refusal::new(ResponseCode::InvalidParameter, remark);
    let msg_id = asked.msg_id.unwrap_or_default().to_owned();
    let (_, at) = parse_offset_message_id(&msg_id).map_err(|error| invalid(format!("msgId={msg_id}: {error}")))?;
    let (group, client_id) = (asked.consumer_group.to_owned(), asked.client_id.unwrap_or_default().to_owned());
    let member = consumer(&broker.clients, &group, &client_id)?;
    let topic = asked.topic.filter(|topic| !topic.is_empty()).map(str::to_owned);
    // What the consumer needs to know of topic and group, where there are such.
    let topic_sys_flag = topic.as_deref().and_then(|topic| broker.topics.get(topic));
    let topic_sys_flag = topic_sys_flag.map_or(asked.topic_sys_flag, |topic| Some(topic.config().topic_sys_flag));
    let known = broker.groups.get(&group);
    let group_sys_flag = known.map_or(asked.group_sys_flag, |known| Some(known.config.load().group_sys_flag));
    let broker_name = broker.settings.load().broker_name.clone();
    let reply_to = request.reply_to();
    cold::with_record(broker, session, LogOffset(at), out, move |broker, session, found, out| {
        let missing = || Refusal::new(ResponseCode::SystemError, format!("can not find message by the offset, {at}"));
        let record = match found.and_then(|record| record.ok_or_else(missing)) {
            Ok(record) => record,
            Err(refusal) => return out.reply(reply_to, refusal.code, Some(&refusal.remark), &(), &[]),
        };
        let held = match broker.limits.hold(record.as_ref().len()) {
            Ok(held) => held,
            Err(refusal) => return out.reply(reply_to, refusal.code, Some(&refusal.remark), &(), &[]),
        };
        let asker = Arc::clone(&session.inbox);
        let debt = asker.owe();
        tokio::spawn(async move {
            let fields = ConsumeMessageDirectly {
                consumer_group: &group,
                client_id: Some(&client_id),
                msg_id: Some(&msg_id),
                broker_name: Some(&broker_name),
                topic: topic.as_deref(),
                topic_sys_flag,
                group_sys_flag,
            };
            let body = Bytes::copy_from_slice(record.as_ref());
            // It keeps a file of the log in memory, and a consumer may take its time.
            drop(record);
            let answer = member.client.connection.ask(ClientQuestion::Consume(fields, body), ANSWER).await;
            pass_on(&asker, reply_to, &group, &client_id, answer);
            drop((held, debt));
        });
    })
}

/// A consumer that is connected and knows how to answer.
fn consumer(
    clients: &Clients<ClientHandle>,
    group: &str,
    client_id: &str,
) -> Result<Arc<Member<ClientHandle>>, Refusal> {
    let refuse = |remark: String| Refusal::new(ResponseCode::SystemError, remark);
    let consumers = clients.consumers(group);
    let Some(member) = consumers.and_then(|consumers| consumers.member(client_id).cloned()) else {
        return Err(refuse(format!("The Consumer <{group}> <{client_id}> not online")));
    };
    if member.client.version < VERSION_WITH_ANSWERS {
        return Err(refuse(format!(
            "The Consumer <{client_id}> Version <{}> too low to finish, please upgrade it to V3_1_8_SNAPSHOT",
            member.client.version
        )));
    }
    Ok(member)
}

/// Gives the asker what the client said.
fn pass_on(asker: &Inbox, reply_to: ReplyTo, group: &str, client_id: &str, answer: Result<ClientAnswer, CallError>) {
    match answer {
        Ok(answer) => {
            let code = ResponseCode::from_i32(answer.code).unwrap_or(ResponseCode::SystemError);
            send(asker, reply_to, code, answer.remark.as_deref(), &answer.body);
        }
        Err(error) => {
            let remark = format!("consumer <{group}> <{client_id}>: {error}");
            send(asker, reply_to, failure_code(&error), Some(&remark), &[]);
        }
    }
}

/// 223: the offsets that the consumers of a group hold, of all of them or of one.
pub(crate) fn consumer_status(
    clients: &Clients<ClientHandle>,
    session: &mut Session,
    request: &Request<'_>,
    _: &mut Outgoing,
) -> Result<(), Refusal> {
    let asked = GetConsumerStatus::decode(&request.header.fields)?;
    let (topic, group) = (asked.topic.to_owned(), asked.group.to_owned());
    let wanted = asked.client_addr.filter(|id| !id.is_empty()).map(str::to_owned);
    let members = clients.consumers(&group).map(|consumers| consumers.members().to_vec()).unwrap_or_default();
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
    let asker = Arc::clone(&session.inbox);
    let debt = asker.owe();
    tokio::spawn(async move {
        let (topic, group) = (Arc::<str>::from(topic), Arc::<str>::from(group));
        let mut asked = tokio::task::JoinSet::new();
        for member in members {
            let (topic, group) = (Arc::clone(&topic), Arc::clone(&group));
            asked.spawn(async move {
                let fields = GetConsumerStatus { topic: &topic, group: &group, client_addr: None };
                let answer = member.client.connection.ask(ClientQuestion::Offsets(fields), LIST).await;
                let answer = answer.ok().filter(|answer| answer.code == ResponseCode::Success as i32);
                (member.client.client_id.to_string(), answer)
            });
        }
        let mut consumer_table = BTreeMap::new();
        while let Some(answer) = asked.join_next().await {
            // A client that does not answer is left out, as in Apache.
            if let Ok((client_id, Some(answer))) = answer
                && let Some(status) = status(answer.body).await
            {
                consumer_table.insert(client_id, status.message_queue_table);
            }
        }
        let body = ConsumerStatus { consumer_table, ..ConsumerStatus::default() };
        // Of many clients it is long, too.
        if let Ok(body) = blocking::spawn(move || fastjson::to_vec(&body, Dialect::FastJson)).await {
            send(&asker, reply_to, ResponseCode::Success, None, &body);
        }
        drop(debt);
    });
    Ok(())
}

/// The offsets that a client lists. It decides how many, so a long list is not read on a network worker.
async fn status(body: Bytes) -> Option<ConsumerStatus> {
    if body.len() <= SMALL_BYTES {
        return fastjson::from_slice(&body).ok();
    }
    blocking::spawn(move || fastjson::from_slice(&body).ok()).await.ok().flatten()
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
fn send(asker: &Inbox, to: ReplyTo, code: ResponseCode, remark: Option<&str>, body: &[u8]) {
    let mut out = Outgoing::new();
    out.reply(to, code, remark, &(), body);
    asker.push(Errand::Frames(out.take()));
}
