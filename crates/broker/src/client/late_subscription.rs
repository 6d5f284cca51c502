//! Pulls that know a newer subscription than the group's heartbeats: we ask their client what it subscribes to.
//!
//! A stock 5.x consumer gives its subscriptions a new version whenever its share of the queues changes, its first share included, and
//! sends a heartbeat with it; but it leaves that heartbeat out while its regular one, due at the same second of its life, is under way.
//! Apache refuses its pulls until the next regular heartbeat, so now and then a consumer stands still for the first half minute.
//! What the client says of itself (307) holds the same subscriptions, so we ask for that, and let it pull again.
//!
//! Likewise for pulls that come before the first heartbeat, just after a start.

use std::sync::{Arc, Weak};
use std::time::Duration;

use net::{Outgoing, Request};
use protocol::body::{ConsumerRunningInfo, MASTER_ID};
use protocol::code::ResponseCode;
use protocol::fastjson;
use protocol::request::{GetConsumerRunningInfo, PullReply};
use tokio::time::{Instant, sleep};

use crate::beside::SMALL_BYTES;
use crate::broker::Broker;
use crate::client::heartbeat::{SUBSCRIPTIONS_MAX, check_subscription};
use crate::client::pull::PullOrder;
use crate::client_handle::{ClientQuestion, OwedAnswer};
use crate::inbox::{Errand, Inbox};
use crate::parked::{LatePull, Question};
use crate::refusal::{Refusal, SOON};
use crate::session::Session;
use crate::state::clients::VERSION_WITH_ANSWERS;

/// How long a client has to say it. Shorter than any client waits for a pull.
const ANSWER: Duration = Duration::from_secs(3);
/// How long a pull waits for its group's heartbeat.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Between two looks for it.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How long after the start of a broker pulls may come before heartbeats.
const CLIENTS_COME_FOR_MS: i64 = 30_000;

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
    let Some(group) = take_on(broker, session, request, order, refusal)? else { return Ok(()) };
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

/// Takes on a pull that came before its group's heartbeat. A stock client that knows `GO_AWAY` sends both as soon as it has connected, in no
/// order, and asks again only after 3 s if the pull is refused. So for a while after the start, when all clients connect, the pull waits for
/// the heartbeat. Gives the refusal back where it does not.
pub(crate) fn wait_for_heartbeat(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    order: &PullOrder<'_>,
    refusal: Refusal,
) -> Result<(), Refusal> {
    let age_ms = broker.clock.now().0.saturating_sub(broker.stats.started_at().0);
    if age_ms >= CLIENTS_COME_FOR_MS || !request.knows_go_away() {
        return Err(refusal);
    }
    let consumers = broker.clients.consumers(order.group);
    let known = consumers.as_ref().and_then(|consumers| consumers.subscription(order.topic));
    if known.is_some_and(|known| known.version >= order.subscription_version) {
        // It is refused for something else than a heartbeat that is not here.
        return Err(refusal);
    }
    if let Some(group) = take_on(broker, session, request, order, refusal)? {
        let (inbox, owed) = (Arc::downgrade(&session.inbox), session.inbox.owe());
        Awaited { group, inbox, until: Instant::now() + HEARTBEAT, _owed: owed }.look_later();
    }
    Ok(())
}

/// A heartbeat for which pulls of a connection wait.
struct Awaited {
    group: Arc<str>,
    /// It lies in there while its turn is to come.
    inbox: Weak<Inbox>,
    until: Instant,
    /// The connection stays until the pulls are answered.
    _owed: OwedAnswer,
}

impl Awaited {
    /// Looks for it after a pause.
    fn look_later(self) {
        tokio::spawn(async move {
            sleep(LOOK_AGAIN).await;
            let Some(inbox) = self.inbox.upgrade() else { return };
            inbox.push(Errand::then(move |broker, session, out| {
                // On one that is about to end no heartbeat comes.
                let is_over = Instant::now() >= self.until || session.connection.is_closed();
                if is_over || is_known(broker, session, &self.group) {
                    heard(broker, session, &self.group, out);
                } else {
                    self.look_later();
                }
            }));
        });
    }
}

/// Whether all is known that pulls of this group wait for.
fn is_known(broker: &Broker, session: &Session, group: &str) -> bool {
    let Some(question) = session.questions.iter().find(|question| &*question.group == group) else { return true };
    let consumers = broker.clients.consumers(group);
    let is_there = |pull: &LatePull| {
        let known = consumers.as_ref().and_then(|consumers| consumers.subscription(&pull.topic));
        known.is_some_and(|known| known.version >= pull.sub_version)
    };
    question.pulls.iter().all(is_there)
}

/// Lets a pull wait for what its client says. Gives the group if nobody waits for that yet.
fn take_on(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    order: &PullOrder<'_>,
    refusal: Refusal,
) -> Result<Option<Arc<str>>, Refusal> {
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
        return Ok(None);
    }
    let group: Arc<str> = order.group.into();
    session.questions.push(Question { group: Arc::clone(&group), pulls: vec![waiting] });
    Ok(Some(group))
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
