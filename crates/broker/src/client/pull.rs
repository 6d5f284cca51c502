//! Pulls: 11 and 361. Checks in Apache's order, then a read, then slices of the log; or the pull is parked until there is something.
//!
//! A pull that has passed its checks is a [`PullOrder`]: handles and numbers, no borrowed text, so the same thing is read at once, parked,
//! woken, or carried to the cold-read threads and back.

use std::sync::Arc;
use std::time::Duration;

use config::BrokerSettings;
use filter::Expression;
use net::{Outgoing, Request, SharedSlice};
use protocol::body::MASTER_ID;
use protocol::code::{ResponseCode, request};
use protocol::request::{PullForbidden, PullMessage, PullReply};
use protocol::sys_flag::{perm, pull as bits};
use protocol::{light, names};
use store::queue_log::UNIT_BYTES;
use store::{Copies, LogSlice, Read, ReadLimits, ReadStatus, Store};

use crate::broker::Broker;
use crate::client::late_subscription;
use crate::cold::Unanswered;
use crate::inbox::Errand;
use crate::parked::{Parked, PullOrder};
use crate::refusal::{Refusal, SEE_FAQ, SOON};
use crate::session::Session;
use crate::state::clients::is_tag;
use crate::state::message_filter::{At, Effort, MessageFilter, Reader, SQL92, check_property_filter};
use crate::state::offsets::OffsetClient;
use crate::static_topic;
use crate::static_topic::pull::{OFFSET_RESET, ReadPlace};
use crate::waiting::hold::{Lane, Wake};

/// Why a pull is forbidden; 5.x clients read it from the answer.
mod forbidden {
    pub(crate) const BROKER: i32 = 1;
    pub(crate) const GROUP: i32 = 2;
    pub(crate) const TOPIC: i32 = 3;
    pub(crate) const BROADCAST: i32 = 4;
    pub(crate) const SUBSCRIPTION: i32 = 5;
}

/// Why a pull is refused, and what the answer says beside it.
struct PullRefusal {
    refusal: Refusal,
    forbidden_type: Option<i32>,
}

impl From<Refusal> for PullRefusal {
    fn from(refusal: Refusal) -> PullRefusal {
        PullRefusal { refusal, forbidden_type: None }
    }
}

fn forbid(forbidden_type: i32, remark: String) -> PullRefusal {
    PullRefusal { refusal: Refusal::new(ResponseCode::NoPermission, remark), forbidden_type: Some(forbidden_type) }
}

impl PullOrder {
    fn queue_id(&self) -> i32 {
        self.lane.queue.id() as i32
    }
}

/// What may still be done with a pull that finds nothing.
#[derive(Clone, Copy)]
enum Patience {
    /// It has just come and may be parked for so long; zero: it wants an answer.
    Fresh(Duration),
    /// It was parked, and may be again until this tick.
    Woken(u64),
    /// Its time is over.
    Over,
}

/// 11 and 361.
pub(crate) fn pull(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let mut message = PullMessage::decode(&request.header.fields)?;
    let asked = message.queue_offset;
    // Made ready, or looked for among those that are.
    session.took(message.subscription.map_or(0, |text| text.len() as u64));
    let order = match check(broker, session, request, &mut message) {
        Ok(Some(order)) => order,
        Ok(None) => return Ok(()),
        Err(PullRefusal { refusal, forbidden_type: None }) if refusal.code == ResponseCode::SubscriptionNotLatest => {
            // Of a static topic it is another offset by now.
            message.queue_offset = asked;
            return late_subscription::ask(broker, session, request, &message, refusal);
        }
        Err(PullRefusal { refusal, forbidden_type: None }) => return Err(refusal),
        Err(PullRefusal { refusal, forbidden_type: Some(forbidden_type) }) => {
            let fields = PullForbidden { forbidden_type };
            out.reply(request.reply_to(), refusal.code, Some(&refusal.remark), &fields, &[]);
            return Ok(());
        }
    };
    let (group, has_subscription) = (&order.group.name, message.sys_flag & bits::SUBSCRIPTION != 0);
    // Before its heartbeat: who says with each pull what it subscribes to, reads by itself.
    let asks_first = || broker.clients.asks_first(group).unwrap_or(!has_subscription);
    let client = OffsetClient { connection: session.connection.id(), asks_first: &asks_first };
    if message.sys_flag & bits::COMMIT_OFFSET != 0 {
        let (topic, queue_id) = (order.topic.name(), order.queue_id());
        broker.offsets.commit_by(&client, group, topic, queue_id, message.commit_offset);
    }
    if let Some(commit) =
        order.logical.as_ref().and_then(|logical| logical.commit(broker, &order.group.name, &order.topic))
    {
        commit.note();
    }
    let (topic, queue_id) = (order.topic.name(), order.queue_id());
    if let Some(to) = broker.offsets.tell(&client, group, topic, queue_id, order.offset) {
        tracing::info!(%group, topic, queue_id, asked = order.offset, to, "a pull is told where its group goes on");
        let (min, max) = bounds(&order.lane);
        let read = Read::nothing(ReadStatus::OffsetReset, to, min, max);
        answer(broker, &order, &read, ResponseCode::PullOffsetMoved, OFFSET_RESET, out);
        return Ok(());
    }
    let patience = if message.sys_flag & bits::SUSPEND == 0 {
        Duration::ZERO
    } else {
        let settings = broker.settings.load();
        Duration::from_millis(if settings.long_polling_enable {
            u64::try_from(message.suspend_timeout_millis).unwrap_or(0)
        } else {
            settings.short_polling_time_mills
        })
    };
    read(broker, session, order, Patience::Fresh(patience), out);
    Ok(())
}

/// A parked pull has come back.
pub(crate) fn resume(broker: &Broker, session: &mut Session, order: PullOrder, wake: Wake, out: &mut Outgoing) {
    let patience = match wake {
        Wake::Arrived { expires_at } => Patience::Woken(expires_at),
        Wake::Expired => Patience::Over,
    };
    if let Some(logical) = &order.logical
        && let Err(refusal) = static_topic::pull::still_led(&order.topic, logical)
    {
        out.reply(order.reply_to, refusal.code, Some(&refusal.remark), &(), &[]);
        return;
    }
    read(broker, session, order, patience, out);
}

/// `None`: another broker was asked in its place, and its answer is the answer.
fn check(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    message: &mut PullMessage<'_>,
) -> Result<Option<PullOrder>, PullRefusal> {
    let settings = broker.settings.load();
    if !perm::is_readable(settings.broker_permission) {
        let ip = broker.advertised.ip();
        return Err(forbid(forbidden::BROKER, format!("the broker[{ip}] pulling message is forbidden")));
    }
    if request.header.code == request::LITE_PULL_MESSAGE && !settings.lite_pull_message_enable {
        let ip = broker.advertised.ip();
        return Err(forbid(
            forbidden::BROKER,
            format!("the broker[{ip}] for lite pull consumer is forbidden (litePullMessageEnable is false)"),
        ));
    }
    let group = broker.groups.find(message.consumer_group).map_err(|_| {
        let remark = format!("subscription group [{}] does not exist, {SEE_FAQ}", message.consumer_group);
        Refusal::new(ResponseCode::SubscriptionGroupNotExist, remark)
    })?;
    let group_config = group.config.load();
    if !group_config.consume_enable {
        return Err(forbid(forbidden::GROUP, format!("subscription group no permission, {}", message.consumer_group)));
    }
    let topic = session.topic(&broker.topics, message.topic).ok_or_else(|| {
        let remark = format!("topic[{}] not exist, apply first please! {SEE_FAQ}", message.topic);
        Refusal::new(ResponseCode::TopicNotExist, remark)
    })?;
    let config = topic.settings();
    if !perm::is_readable(config.perm) {
        return Err(forbid(forbidden::TOPIC, format!("the topic[{}] pulling message is forbidden", message.topic)));
    }
    let logical = match static_topic::pull::place(broker, session, request, &topic, message)? {
        ReadPlace::Here(logical) => logical,
        ReadPlace::Elsewhere => return Ok(None),
    };
    let queue_id = match u32::try_from(message.queue_id) {
        Ok(queue_id) if message.queue_id < config.read_queue_nums => queue_id,
        Ok(_) | Err(_) => {
            let remark = format!(
                "queueId[{}] is illegal, topic:[{}] topicConfig.readQueueNums:[{}] consumer:[{}]",
                message.queue_id,
                message.topic,
                config.read_queue_nums,
                session.connection.peer()
            );
            return Err(Refusal::new(ResponseCode::InvalidParameter, remark).into());
        }
    };
    drop(config);
    let filter = subscription(broker, session, &settings, message, group_config.consume_broadcast_enable)?;
    if settings.reject_pull_consumer_enable {
        let consumers = broker.clients.consumers(message.consumer_group);
        if consumers.is_none_or(|consumers| consumers.is_active_pull()) {
            let remark = format!(
                "the consumer's group info not exist: group {} pulls actively (rejectPullConsumerEnable is true){SEE_FAQ}",
                message.consumer_group
            );
            return Err(Refusal::new(ResponseCode::SubscriptionNotExist, remark).into());
        }
    }
    let lite_queue = message.lite_topic.filter(|name| !name.trim().is_empty() && broker.store.has_light_queues());
    let lite_queue = lite_queue.map(|lite_topic| names::lite_queue(message.topic, lite_topic));
    let topic = match &lite_queue {
        Some(queue) => broker.topics.get(queue).ok_or_else(|| Refusal::topic_not_exist(queue))?,
        None => topic,
    };
    if lite_queue.is_some() && queue_id != light::QUEUE_ID {
        let remark = format!("queueId[{queue_id}] is illegal, a lite topic has queue {} only", light::QUEUE_ID);
        return Err(Refusal::new(ResponseCode::InvalidParameter, remark).into());
    }
    let lane = topic.lane(&broker.store, queue_id).map_err(Refusal::failed)?;
    Ok(Some(PullOrder {
        reply_to: request.reply_to(),
        lane,
        logical: logical.map(Box::new),
        asked: message.queue_offset,
        offset: message.queue_offset,
        count_max: message.max_msg_nums,
        bytes_max: message.max_msg_bytes,
        filter,
        topic,
        group: Arc::clone(&group),
    }))
}

/// The filter of this pull: from the request itself, or as the group's heartbeats have it.
fn subscription(
    broker: &Broker,
    session: &mut Session,
    settings: &BrokerSettings,
    message: &PullMessage<'_>,
    may_broadcast: bool,
) -> Result<Option<Arc<MessageFilter>>, PullRefusal> {
    if message.sys_flag & bits::SUBSCRIPTION != 0 {
        let expression = message.subscription.unwrap_or_default();
        let kind = message.expression_type.unwrap_or_default();
        if !is_tag(kind) {
            check_property_filter(settings, kind)?;
            return broker.filters.condition(expression).map(Some).map_err(|why| Refusal::unparsed(&why).into());
        }
        return broker.filters.tags(expression).map_err(|why| Refusal::unparsed(&why).into());
    }
    let Some(consumers) = broker.clients.consumers(message.consumer_group) else {
        let remark = format!("the consumer's group info not exist{SEE_FAQ}");
        return Err(Refusal::new(ResponseCode::SubscriptionNotExist, remark).into());
    };
    if !may_broadcast && consumers.is_broadcasting() {
        let remark = format!("the consumer group[{}] can not consume by broadcast way", message.consumer_group);
        return Err(forbid(forbidden::BROADCAST, remark));
    }
    if broker.groups.is_read_forbidden(message.consumer_group, message.topic) {
        let remark =
            format!("the consumer group[{}] is forbidden for topic[{}]", message.consumer_group, message.topic);
        return Err(forbid(forbidden::SUBSCRIPTION, remark));
    }
    let Some(subscription) = consumers.subscription(message.topic) else {
        let remark = format!("the consumer's subscription not exist{SEE_FAQ}");
        return Err(Refusal::new(ResponseCode::SubscriptionNotExist, remark).into());
    };
    if subscription.version < message.sub_version {
        let remark = format!(
            "the consumer's subscription not latest: the group's heartbeat has version {}, the pull {}",
            subscription.version, message.sub_version
        );
        return Err(Refusal::new(ResponseCode::SubscriptionNotLatest, remark).into());
    }
    if !subscription.is_compiled() {
        session.took(subscription.data.sub_string.len() as u64);
    }
    if !is_tag(&subscription.expression_type) {
        if subscription.want().is_none() {
            session.took(subscription.data.sub_string.len() as u64);
            let why = Expression::compile(&subscription.data.sub_string).err();
            let why = why.filter(|_| subscription.expression_type == SQL92).map(|error| error.remark());
            let remark = format!(
                "The broker's consumer filter data is not exist!Your expression may be wrong! {}",
                why.unwrap_or_else(|| format!("There is no expression type \"{}\"", subscription.expression_type))
            );
            return Err(Refusal::new(ResponseCode::FilterDataNotExist, remark).into());
        }
        check_property_filter(settings, &subscription.expression_type)?;
        return Ok(subscription.want().cloned());
    }
    if settings.filter_support_retry && names::is_retry_topic(message.topic) {
        return Ok(Some(Arc::new(MessageFilter::Retries(consumers))));
    }
    Ok(subscription.want().cloned())
}

/// Reads for a pull and answers it, parks it, or sends it on to a thread that may wait for the device, or to the one for filters that
/// take long.
fn read(broker: &Broker, session: &mut Session, mut order: PullOrder, mut patience: Patience, out: &mut Outgoing) {
    // Ends when nothing came between a read and its parking.
    loop {
        if order.filter.as_ref().is_some_and(|filter| filter.takes_long()) {
            return fetch(broker, session, order, patience, At::Filter, out);
        }
        session.slices.clear();
        let limits = limits(broker, &order, At::Worker);
        let effort = At::Worker.effort();
        let found = look(&broker.store, &order, &limits, &effort, &session.inbox.copies, &mut session.slices);
        session.took(effort.spent());
        if found.status == ReadStatus::Cold {
            return fetch(broker, session, order, patience, At::Cold, out);
        }
        if found.status == ReadStatus::Undecided {
            return fetch(broker, session, order, patience, At::Filter, out);
        }
        match conclude(broker, session, order, patience, &found, out) {
            Some(again) => (order, patience) = again,
            None => return,
        }
    }
}

/// Answers or parks a pull after a read. Gives it back if it must be read for again.
fn conclude(
    broker: &Broker,
    session: &mut Session,
    mut order: PullOrder,
    patience: Patience,
    found: &Read,
    out: &mut Outgoing,
) -> Option<(PullOrder, Patience)> {
    // Nothing there yet, or nothing that matches up to the end: both wait for the next message.
    let is_at_end = match found.status {
        ReadStatus::OffsetOverflowOne => true,
        ReadStatus::NoMessageInQueue | ReadStatus::NoMatchedLogicQueue => order.offset == 0,
        ReadStatus::NoMatchedMessage => matches!(patience, Patience::Woken(_)) && found.next >= found.max,
        ReadStatus::Found
        | ReadStatus::MessageWasRemoving
        | ReadStatus::OffsetFoundNull
        | ReadStatus::OffsetOverflowBadly
        | ReadStatus::OffsetTooSmall
        | ReadStatus::OffsetReset
        | ReadStatus::Cold
        | ReadStatus::Failed
        | ReadStatus::Undecided => false,
    };
    // A reader that is sent back to the master does not wait here; one that is ahead of a copy waits for the master.
    let is_at_end = match broker.standing.is_slave() {
        true if broker.following.is_connected() => false,
        true => is_at_end || found.status == ReadStatus::OffsetOverflowBadly,
        false => is_at_end,
    };
    let is_at_end =
        is_at_end && order.logical.as_ref().is_none_or(|logical| static_topic::pull::may_wait(&order.topic, logical));
    let expires_at = match patience {
        Patience::Fresh(wait) if is_at_end && !wait.is_zero() => broker.hold.deadline(wait),
        Patience::Woken(expires_at) if is_at_end => expires_at,
        Patience::Fresh(_) | Patience::Woken(_) | Patience::Over => {
            respond(broker, session, &order, found, out);
            return None;
        }
    };
    if found.status == ReadStatus::NoMatchedMessage {
        order.offset = found.next;
    }
    let lane = Arc::clone(&order.lane);
    let seen = order.offset;
    let logical = order.logical.as_ref().map(|logical| (Arc::clone(&order.topic), **logical));
    let reply_to = order.reply_to;
    // From here on its answer is that of a long poll.
    order.reply_to.is_held = true;
    let slot = session.parked.put(Parked::Pull(order));
    let ticket = match broker.hold.park(&session.inbox.waiter, &lane, slot, expires_at, &broker.settings.load()) {
        Ok(ticket) => ticket,
        Err(full) => {
            session.parked.take(slot);
            let what = format_args!("[GANTRY]system busy, start flow control for a while: {full}");
            let refusal = Refusal::busy(what, SOON);
            out.reply(reply_to, refusal.code, Some(&refusal.remark), &(), &[]);
            return None;
        }
    };
    broker.limits.parked(session.inbox.parked());
    // A message may have come between the read and the parking. If it is not confirmed yet, its wake-up is still to come.
    let is_visible = u64::try_from(seen).is_ok_and(|seen| broker.store.is_visible(&lane.queue, seen));
    // So may a mapping by which nothing will come here any more.
    let may_stay = logical.is_none_or(|(topic, logical)| static_topic::pull::may_wait(&topic, &logical));
    if !is_visible && may_stay {
        return None;
    }
    // Woken in between: it comes back by that.
    let slot = broker.hold.take_back(&lane, ticket)?;
    let Some(Parked::Pull(mut taken)) = session.parked.take(slot) else { return None };
    taken.reply_to.is_held = false;
    Some((taken, Patience::Woken(expires_at)))
}

fn look(
    store: &Store,
    order: &PullOrder,
    limits: &ReadLimits,
    effort: &Effort,
    copies: &Copies,
    slices: &mut Vec<LogSlice>,
) -> Read {
    let mut reader = Reader { want: order.filter.as_deref(), effort, copies: Some(copies) };
    let found = store.read(&order.lane.queue, order.offset, limits, &mut reader, slices);
    match &order.logical {
        Some(logical) => logical.cut(found, slices),
        None => found,
    }
}

fn limits(broker: &Broker, order: &PullOrder, at: At) -> ReadLimits {
    let settings = broker.store_settings.load();
    let count = usize::try_from(order.count_max).unwrap_or(0).max(1);
    let bytes =
        order.bytes_max.and_then(|bytes| usize::try_from(bytes).ok()).filter(|bytes| *bytes > 0).unwrap_or(usize::MAX);
    ReadLimits {
        max_count: count,
        count_memory: settings.max_transfer_count_on_message_in_memory.max(1),
        bytes_memory: settings.max_transfer_bytes_on_message_in_memory.min(bytes).max(1),
        count_disk: settings.max_transfer_count_on_message_in_disk.max(1),
        bytes_disk: settings.max_transfer_bytes_on_message_in_disk.min(bytes).max(1),
        // By what a reply can hold: a client that asks for everything does not make us pass over everything at once.
        scan_bytes: settings
            .max_filter_message_size
            .max(count.min(settings.max_transfer_count_on_message_in_memory).saturating_mul(UNIT_BYTES)),
        may_fault: at.may_fault(),
    }
}

/// Reads on another thread; the answer comes back through the inbox.
fn fetch(broker: &Broker, session: &mut Session, order: PullOrder, patience: Patience, at: At, out: &mut Outgoing) {
    let inbox = Arc::clone(&session.inbox);
    let store = Arc::clone(&broker.store);
    let limits = limits(broker, &order, at);
    let reply_to = order.reply_to;
    let debt = inbox.owe();
    let job = move || {
        if inbox.is_gone() {
            return;
        }
        let unanswered = Unanswered::new(&inbox, Some(reply_to));
        let mut slices = Vec::new();
        let found = look(&store, &order, &limits, &at.effort(), &inbox.copies, &mut slices);
        drop(unanswered);
        inbox.push(Errand::then(move |broker, session, out| {
            if found.status == ReadStatus::Cold {
                return fetch(broker, session, order, patience, At::Cold, out);
            }
            session.slices = slices;
            if let Some((order, patience)) = conclude(broker, session, order, patience, &found, out) {
                read(broker, session, order, patience, out);
            }
        }));
        drop(debt);
    };
    if let Err(full) = at.submit(&broker.store, Box::new(job)) {
        let refusal = Refusal::busy(full, SOON);
        out.reply(reply_to, refusal.code, Some(&refusal.remark), &(), &[]);
    }
}

/// Turns what a read found into an answer.
fn respond(broker: &Broker, session: &mut Session, order: &PullOrder, found: &Read, out: &mut Outgoing) {
    broker.offsets.pulled(&order.group.name, order.topic.name(), order.queue_id(), found.next);
    if let Some(error) = &found.failure {
        broker.stats.missed();
        out.reply(order.reply_to, ResponseCode::SystemError, Some(&error.to_string()), &(), &[]);
        return;
    }
    // What did not match was skipped while the pull waited: the client goes on behind it.
    let has_moved = order.offset != order.asked;
    let (code, status) = match found.status {
        ReadStatus::Found => (ResponseCode::Success, "FOUND"),
        ReadStatus::MessageWasRemoving => (ResponseCode::PullRetryImmediately, "MESSAGE_WAS_REMOVING"),
        ReadStatus::NoMatchedMessage => (ResponseCode::PullRetryImmediately, "NO_MATCHED_MESSAGE"),
        ReadStatus::NoMatchedLogicQueue if order.offset != 0 => {
            (ResponseCode::PullOffsetMoved, "NO_MATCHED_LOGIC_QUEUE")
        }
        ReadStatus::NoMatchedLogicQueue => (ResponseCode::PullNotFound, "NO_MATCHED_LOGIC_QUEUE"),
        ReadStatus::NoMessageInQueue if order.offset != 0 => (ResponseCode::PullOffsetMoved, "NO_MESSAGE_IN_QUEUE"),
        ReadStatus::NoMessageInQueue => (ResponseCode::PullNotFound, "NO_MESSAGE_IN_QUEUE"),
        ReadStatus::OffsetFoundNull => (ResponseCode::PullNotFound, "OFFSET_FOUND_NULL"),
        ReadStatus::OffsetOverflowOne if has_moved => (ResponseCode::PullRetryImmediately, "NO_MATCHED_MESSAGE"),
        ReadStatus::OffsetOverflowOne => (ResponseCode::PullNotFound, "OFFSET_OVERFLOW_ONE"),
        ReadStatus::OffsetOverflowBadly => (ResponseCode::PullOffsetMoved, "OFFSET_OVERFLOW_BADLY"),
        ReadStatus::OffsetTooSmall => (ResponseCode::PullOffsetMoved, "OFFSET_TOO_SMALL"),
        ReadStatus::OffsetReset => (ResponseCode::PullOffsetMoved, OFFSET_RESET),
        ReadStatus::Cold | ReadStatus::Failed => (ResponseCode::PullRetryImmediately, "MESSAGE_WAS_REMOVING"),
        ReadStatus::Undecided => (ResponseCode::PullRetryImmediately, "NO_MATCHED_MESSAGE"),
    };
    if code != ResponseCode::Success {
        broker.stats.missed();
        if answer(broker, order, found, code, status, out) == ResponseCode::PullOffsetMoved {
            broker.offsets.moved(&order.group.name, order.topic.name(), order.queue_id(), order.offset, found);
        }
        return;
    }
    broker.stats.got(&order.group.name, &order.topic, order.queue_id(), found.count, found.bytes);
    let (code, fields) = fields(broker, order, found, code);
    if code != ResponseCode::Success {
        // By now the queue has ended before.
        session.slices.clear();
        out.reply(order.reply_to, code, Some(status), &fields, &[]);
        return;
    }
    let parts = session.slices.drain(..).map(|slice| {
        let (owner, range) = slice.into_parts();
        SharedSlice { owner, range }
    });
    out.reply_shared(order.reply_to, code, Some(status), &fields, found.bytes, parts);
}

/// An answer without messages; says with which code.
fn answer(
    broker: &Broker,
    order: &PullOrder,
    found: &Read,
    code: ResponseCode,
    status: &str,
    out: &mut Outgoing,
) -> ResponseCode {
    let (code, fields) = fields(broker, order, found, code);
    out.reply(order.reply_to, code, Some(status), &fields, &[]);
    code
}

fn fields(broker: &Broker, order: &PullOrder, found: &Read, code: ResponseCode) -> (ResponseCode, PullReply) {
    let (code, next_begin_offset) = match broker.standing.is_slave() {
        true => of_slave(broker, order, found, code),
        false => (code, found.next),
    };
    let fields = PullReply {
        // No slave takes readers off the master, and a slave has those that the master cannot serve.
        suggest_which_broker_id: MASTER_ID,
        next_begin_offset,
        min_offset: found.min,
        max_offset: found.max,
        offset_delta: None,
        topic_sys_flag: Some(order.topic.settings().topic_sys_flag),
        group_sys_flag: Some(order.group.config.load().group_sys_flag),
        forbidden_type: None,
    };
    if !order.topic.is_static() {
        return (code, fields);
    }
    let mapping = order.logical.as_ref().and_then(|_| order.topic.mapping());
    // Whoever reads a static topic takes this for the end of the physical queue, and goes on to the next one. What is stored and not
    // flushed yet still belongs to this one.
    let fields = PullReply { max_offset: found.max.max(bounds(&order.lane).1), ..fields };
    match &order.logical {
        Some(logical) => static_topic::pull::tell(mapping.as_deref(), logical, order.asked, found, code, fields),
        None => (code, fields),
    }
}

/// What a slave says where a master would say that nothing is there, or somewhere else: the master may have it. So the client tries again, there if
/// it can; nobody is led away from an offset that only the copy does not have.
fn of_slave(broker: &Broker, order: &PullOrder, found: &Read, code: ResponseCode) -> (ResponseCode, i64) {
    let is_ahead = found.status == ReadStatus::OffsetOverflowBadly;
    if code == ResponseCode::Success || !(is_ahead || broker.following.is_connected()) {
        return (code, found.next);
    }
    let next = if code == ResponseCode::PullOffsetMoved { order.offset } else { found.next };
    (ResponseCode::PullRetryImmediately, next)
}

fn bounds(lane: &Lane) -> (i64, i64) {
    (lane.queue.min_offset() as i64, lane.queue.max_offset() as i64)
}
