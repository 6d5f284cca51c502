//! Pulls that know a newer subscription than the group's heartbeats: we ask their client what it subscribes to.
//!
//! A stock 5.x consumer gives its subscriptions a new version whenever its share of the queues changes, its first share included, and
//! sends a heartbeat with it; but it leaves that heartbeat out while its regular one, due at the same second of its life, is under way.
//! Apache refuses its pulls until the next regular heartbeat, so now and then a consumer stands still for the first half minute.
//! What the client says of itself (307) holds the same subscriptions, so we ask for that, and let it pull again.

use std::sync::Arc;
use std::time::Duration;

use net::{Outgoing, Request};
use protocol::body::{ConsumerRunningInfo, MASTER_ID};
use protocol::code::ResponseCode;
use protocol::fastjson;
use protocol::request::{GetConsumerRunningInfo, PullReply};

use crate::beside::SMALL_BYTES;
use crate::broker::Broker;
use crate::client::heartbeat::{SUBSCRIPTIONS_MAX, check_subscription};
use crate::client::pull::PullOrder;
use crate::client_handle::ClientQuestion;
use crate::inbox::Errand;
use crate::parked::{LatePull, Question};
use crate::refusal::{Refusal, SOON};
use crate::session::Session;
use crate::state::clients::VERSION_WITH_ANSWERS;

/// How long a client has to say it. Shorter than any client waits for a pull.
const ANSWER: Duration = Duration::from_secs(3);

/// Takes on a pull that was refused because its subscription is not known yet. Gives the refusal back when its client cannot be asked, and
/// another one when too many pulls wait already.
pub(crate) fn ask(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    order: &PullOrder<'_>,
    refusal: Refusal,
) -> Result<(), Refusal> {
    let member = broker.clients.consumers(order.group).and_then(|group| group.at(session.connection.id()).cloned());
    let Some(member) = member.filter(|member| member.client.version >= VERSION_WITH_ANSWERS) else {
        return Err(refusal);
    };
    let aside = broker.hold.aside(&session.inbox.waiter, &broker.settings.load()).map_err(|full| {
        Refusal::busy(format_args!("[GANTRY]system busy, start flow control for a while: {full}"), SOON)
    })?;
    broker.limits.parked(session.inbox.parked());
    let waiting = LatePull {
        reply_to: request.reply_to(),
        topic: order.topic.into(),
        sub_version: order.subscription_version,
        queue_offset: order.offset,
        refusal,
        _aside: aside,
    };
    if let Some(question) = session.questions.iter_mut().find(|question| *question.group == *order.group) {
        question.pulls.push(waiting);
        return Ok(());
    }
    let group: Arc<str> = order.group.into();
    session.questions.push(Question { group: Arc::clone(&group), pulls: vec![waiting] });
    let inbox = Arc::clone(&session.inbox);
    let debt = inbox.owe();
    let (beside, connection_id) = (broker.beside.of_clients(), session.connection.id());
    tokio::spawn(async move {
        let client_id = &*member.client.client_id;
        let fields = GetConsumerRunningInfo { consumer_group: &group, client_id, jstack_enable: false };
        let said = member.client.connection.ask(ClientQuestion::RunningInfo(fields), ANSWER).await;
        let said = said.ok().filter(|said| said.code == ResponseCode::Success as i32);
        let body = said.map(|said| said.body).unwrap_or_default();
        if body.len() <= SMALL_BYTES {
            inbox.push(Errand::then(move |broker, session, out| {
                learn(broker, &group, connection_id, &body);
                heard(broker, session, &group, out);
            }));
            drop(debt);
            return;
        }
        // The client decides how long its answer is, so a long one is not read on a network worker.
        let (asker, owed, asked) = (Arc::clone(&inbox), inbox.owe(), Arc::clone(&group));
        let is_taken = beside.submit(connection_id, body.len(), move |broker| {
            learn(broker, &asked, connection_id, &body);
            asker.push(Errand::then(move |broker, session, out| heard(broker, session, &asked, out)));
            drop(owed);
        });
        if !is_taken {
            inbox.push(Errand::then(move |broker, session, out| heard(broker, session, &group, out)));
        }
        drop(debt);
    });
    Ok(())
}

/// Takes what a client said of its subscriptions; nothing if it did not say, or more than a heartbeat may.
fn learn(broker: &Broker, group: &str, connection_id: u64, body: &[u8]) {
    let info = fastjson::from_slice::<ConsumerRunningInfo>(body).ok();
    let Some(mut subscriptions) = info.map(|info| info.subscription_set).filter(|all| all.len() <= SUBSCRIPTIONS_MAX)
    else {
        return;
    };
    subscriptions.retain(|one| check_subscription(group, one).is_ok());
    broker.clients.subscribe(group, connection_id, subscriptions);
}

/// The client has spoken, or not: its pulls come again at once, or are refused as they would have been.
fn heard(broker: &Broker, session: &mut Session, group: &Arc<str>, out: &mut Outgoing) {
    let Some(place) = session.questions.iter().position(|question| question.group == *group) else { return };
    let consumers = broker.clients.consumers(group);
    for waiting in session.questions.swap_remove(place).pulls {
        let LatePull { reply_to, topic, sub_version, queue_offset, refusal, .. } = waiting;
        let known = consumers.as_ref().and_then(|consumers| consumers.subscription(&topic));
        if known.is_none_or(|known| known.version < sub_version) {
            out.reply(reply_to, refusal.code, Some(&refusal.remark), &(), &[]);
            continue;
        }
        let fields = PullReply {
            suggest_which_broker_id: MASTER_ID,
            next_begin_offset: queue_offset,
            min_offset: 0,
            max_offset: 0,
            offset_delta: None,
            topic_sys_flag: None,
            group_sys_flag: None,
            forbidden_type: None,
        };
        out.reply(reply_to, ResponseCode::PullRetryImmediately, Some("SUBSCRIPTION_IS_LATEST"), &fields, &[]);
    }
}
