//! Sends: 10, 310, 320, and the checks that replies (324, 325) share. Checks in Apache's order, then the record, encoded once into the session's batch.
//!
//! Nothing is stored here: `append` writes what a burst has gathered under one lock and answers. A refusal leaves no trace in the
//! batch. Steady state allocates nothing: topic and queue come as counted handles, everything else lives in buffers of the session.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use config::BrokerSettings;
use net::{Outgoing, Request};
use protocol::batch::{self, InnerMessage};
use protocol::body::TopicFilterType;
use protocol::code::{ResponseCode, request};
use protocol::names;
use protocol::properties::{self, name};
use protocol::record::{PROPERTIES_MAX, RecordDraft};
use protocol::request::SendMessage;
use protocol::sys_flag::{self, perm};
use protocol::tags;
use store::{FlushMode, MessageKeys, Stage, TagsCode};

use crate::answer::{recall_extra, reply_extra};
use crate::broker::Broker;
use crate::client::inner_batch::{self, Content, Target};
use crate::client::retry::VERSION_OF_MAX_RECONSUME_TIMES;
use crate::refusal::Refusal;
use crate::sends::{Counted, Receipt, ReceiptKind, Sends};
use crate::session::Session;
use crate::state::topics::{Changed, Topic};
use crate::waiting::hold::Lane;
use crate::write::repeats::{self, Verdict};
use crate::write::send_properties::{self, Additions, Real, SendProperties};
use crate::write::{append, light};
use crate::{lite, static_topic, timer};

/// Where a message goes once everything about its topic is checked.
struct Route {
    topic: Arc<Topic>,
    queue_id: i32,
    sys_flag: i32,
    /// A retry that is over: it goes to the dead-letter topic.
    is_dead: bool,
}

/// Checks one send and adds what it asks for to the session's batch.
pub(crate) fn gather(broker: &Broker, session: &mut Session, request: &Request<'_>) -> Result<(), Refusal> {
    let message = if request.header.code == request::SEND_MESSAGE {
        SendMessage::decode_v1(&request.header.fields)?
    } else {
        SendMessage::decode_v2(&request.header.fields)?
    };
    gather_message(broker, session, request, message)
}

/// The same of a send whose fields are known. Of `request` everything else is looked at: its code too, which says whether it is a batch.
pub(crate) fn gather_message(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    mut message: SendMessage<'_>,
) -> Result<(), Refusal> {
    let settings = broker.settings.load();
    let topic = admit(broker, session, &settings, &message, request)?;
    let logical = static_topic::send::place(broker, &topic, request, &mut message)?;
    let queue_id = queue_of(broker, &topic, &message)?;
    let first = session.sends.records();
    let is_there = if is_batch(request, &message) {
        gather_batch(broker, session, &settings, request, &message, &topic, queue_id)?;
        true
    } else {
        let route = retarget(broker, session, request, &message, topic, queue_id)?;
        gather_one(broker, session, &settings, request, &message, &route)?
    };
    if let Some(logical) = logical.filter(|_| session.sends.records() > first) {
        let logical = if is_there { logical } else { logical.parked() };
        session.sends.receipts.keep_logical(first, logical);
    }
    Ok(())
}

/// Whether a send brings a batch.
pub(crate) fn is_batch(request: &Request<'_>, message: &SendMessage<'_>) -> bool {
    request.header.code == request::SEND_BATCH_MESSAGE || message.batch == Some(true)
}

/// Writes a refusal with the fields that producers expect in every answer to a send.
pub(crate) fn refuse(broker: &Broker, request: &Request<'_>, refusal: &Refusal, out: &mut Outgoing) {
    if request.header.is_oneway() {
        broker.oneway_refusals.note(refusal, broker.clock.now().0);
    }
    let settings = broker.settings.load();
    let is_recall = request.header.code == request::RECALL_MESSAGE;
    let extra = if is_recall { recall_extra(&settings) } else { reply_extra(&settings) };
    out.reply(request.reply_to(), refusal.code, Some(&refusal.remark), &extra, &[]);
}

/// May this producer send to this topic? Creates the topic if it may be created.
pub(crate) fn admit(
    broker: &Broker,
    session: &mut Session,
    settings: &BrokerSettings,
    message: &SendMessage<'_>,
    request: &Request<'_>,
) -> Result<Arc<Topic>, Refusal> {
    let now = broker.clock.now().0;
    if now < settings.start_accept_send_request_time_stamp {
        let until = settings.start_accept_send_request_time_stamp;
        return Err(Refusal::new(
            ResponseCode::SystemError,
            format!("broker unable to service, until {until} (startAcceptSendRequestTimeStamp; now is {now})"),
        ));
    }
    let found = session.topic(&broker.topics, message.topic);
    if !perm::is_writable(settings.broker_permission) && found.as_ref().is_some_and(|topic| topic.settings().order) {
        return Err(Refusal::new(
            ResponseCode::NoPermission,
            format!("the broker[{}] sending message is forbidden", broker.advertised.ip()),
        ));
    }
    if let Some(topic) = &found
        && topic.is_sendable()
    {
        session.durable_after(topic.unsynced_change(|| broker.store.journal().synced().get()));
        return Ok(Arc::clone(topic));
    }
    names::check_topic(message.topic)
        .map_err(|error| Refusal::new(ResponseCode::InvalidParameter, error.to_string()))?;
    if names::is_not_sendable(message.topic) {
        return Err(Refusal::new(
            ResponseCode::NoPermission,
            format!("Sending message to topic[{}] is forbidden.", message.topic),
        ));
    }
    if let Some(topic) = found {
        return Ok(topic);
    }
    broker.topics.check_room()?;
    let Changed { topic, position } =
        create(broker, settings, message).ok_or_else(|| Refusal::topic_not_exist(message.topic))?;
    tracing::debug!(
        topic = message.topic,
        producer_group = message.producer_group,
        opaque = request.header.opaque,
        "topic on demand"
    );
    session.durable_after(position);
    Ok(topic)
}

fn create(broker: &Broker, settings: &BrokerSettings, message: &SendMessage<'_>) -> Option<Changed> {
    let is_retry = names::is_retry_topic(message.topic);
    let topic_sys_flag = match (message.unit_mode, is_retry) {
        (Some(true), true) => sys_flag::topic::UNIT_SUB,
        (Some(true), false) => sys_flag::topic::UNIT,
        (Some(false) | None, _) => 0,
    };
    let from_template = broker.topics.create_for_send(
        settings,
        message.topic,
        message.default_topic,
        message.default_topic_queue_nums,
        topic_sys_flag,
    );
    if from_template.is_none() && is_retry {
        // A retry topic without its group is refused all the same; do not leave one behind.
        broker.groups.find(names::group_of(message.topic)?).ok()?;
        return Some(broker.topics.create_for_group(message.topic, 1, topic_sys_flag));
    }
    if let Some(created) = &from_template
        && !is_retry
        && broker.registry.addresses().next().is_some()
    {
        broker.placement.add(created.topic.shared_name(), message.default_topic);
    }
    from_template
}

/// The queue that the producer names, or any.
pub(crate) fn queue_of(broker: &Broker, topic: &Topic, message: &SendMessage<'_>) -> Result<i32, Refusal> {
    let config = topic.settings();
    let queues = config.write_queue_nums.max(config.read_queue_nums);
    if message.queue_id >= queues {
        return Err(Refusal::new(
            ResponseCode::InvalidParameter,
            format!(
                "request queueId[{}] is illegal, topic[{}] has {} write and {} read queues, Producer: {}",
                message.queue_id,
                message.topic,
                config.write_queue_nums,
                config.read_queue_nums,
                message.producer_group
            ),
        ));
    }
    if message.queue_id >= 0 {
        return Ok(message.queue_id);
    }
    match u32::try_from(config.write_queue_nums) {
        Ok(queues) if queues > 0 => Ok(broker.random.below(queues) as i32),
        Ok(_) | Err(_) => Err(Refusal::new(
            ResponseCode::InvalidParameter,
            format!("topic[{}] has no write queue (writeQueueNums is {})", message.topic, config.write_queue_nums),
        )),
    }
}

/// A retry that has been tried often enough, or that belongs to an orderly consumer, goes to the dead-letter topic.
fn retarget(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    message: &SendMessage<'_>,
    topic: Arc<Topic>,
    queue_id: i32,
) -> Result<Route, Refusal> {
    let mut sys_flag = message.sys_flag;
    if topic.settings().topic_filter_type == TopicFilterType::MultiTag {
        sys_flag |= sys_flag::MULTI_TAGS;
    }
    let mut route = Route { topic, queue_id, sys_flag, is_dead: false };
    if !route.topic.is_retry() {
        return Ok(route);
    }
    let group_name = names::group_of(message.topic).unwrap_or_default();
    let group = broker.groups.find(group_name).map_err(|_| Refusal::group_not_exist(group_name))?;
    let retry_max = match message.max_reconsume_times {
        Some(max) if request.header.version >= VERSION_OF_MAX_RECONSUME_TIMES => max,
        Some(_) | None => group.config.load().retry_max_times,
    };
    // An orderly consumer retries in place; what it sends here has used up its attempts.
    let is_dead = message.reconsume_times.unwrap_or(0) > retry_max || broker.order_locks.holds_any(group_name);
    if is_dead {
        let dead = broker.topics.create_for_group(&names::dlq_topic(group_name), 1, 0);
        session.durable_after(dead.position);
        route = Route { topic: dead.topic, queue_id: 0, is_dead, ..route };
    }
    Ok(route)
}

/// One message on its way into the batch: what was sent, and where the checks of its topic let it go.
#[derive(Clone, Copy)]
struct Single<'a> {
    settings: &'a BrokerSettings,
    request: &'a Request<'a>,
    message: &'a SendMessage<'a>,
    route: &'a Route,
    /// As the client wrote them.
    properties: &'a str,
    facts: &'a SendProperties<'a>,
    /// The queue that its priority names.
    priority: Option<i32>,
}

/// What keeps a message from its own queue for a while.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    Nothing,
    /// The end of its transaction.
    Half,
    /// A delay level, from 1.
    Level(i32),
    /// Its time, behind this slot, in ms.
    Timer(i64),
}

/// The queue that a message is stored in: its own, or the one where it waits.
struct StoredIn<'a> {
    wait: Wait,
    topic: &'a Arc<Topic>,
    queue_id: i32,
    lane: Arc<Lane>,
}

/// Whether the record goes to the queue that was sent to, not to one where it waits, or to dead letters.
fn gather_one(
    broker: &Broker,
    session: &mut Session,
    settings: &BrokerSettings,
    request: &Request<'_>,
    message: &SendMessage<'_>,
    route: &Route,
) -> Result<bool, Refusal> {
    let properties = message.properties.unwrap_or_default();
    let facts = &SendProperties::of(properties);
    let priority = priority_of(route, facts)?;
    let single = Single { settings, request, message, route, properties, facts, priority };
    let level = if route.is_dead { 0 } else { delay_level(facts)? };
    let is_half = single.admit_half(broker, session.sends.half_messages, level)?;
    let stage = single.stage(broker)?;
    check_size(broker, request.body, properties.len())?;
    let lite_queue = lite::queue_of(&broker.store, facts, route.topic.name())?;
    let light = light::wanted(&broker.store, lite_queue.as_deref().or(facts.light), route.topic.name())?;
    if facts.has_inner_num || message.sys_flag & sys_flag::INNER_BATCH != 0 {
        let is_plain = !is_half && level <= 0 && facts.timer().is_none() && !route.is_dead;
        single.gather_marked(broker, session, is_plain, stage)?;
        return Ok(true);
    }
    let wait = single.wait(broker, is_half, level)?;
    let stored_in = single.place(broker, wait)?;

    let sends = &mut session.sends;
    let mut text = sends.receipts.keep_uniq_key(facts.uniq_key, &broker.ids);
    let claimed = single
        .write_properties(broker, sends, &text, wait, lite_queue.as_deref(), light)
        // The last check: what is claimed here is stored, or given up by `append`.
        .and_then(|()| repeats::look(broker, &route.topic, facts.uniq_key));
    let claim = match claimed {
        Ok(Verdict::Store(claim)) => claim,
        Ok(Verdict::Repeated(first)) => {
            sends.receipts.forget(text);
            repeats::answer(broker, session, request.reply_to(), facts.uniq_key, stage, first)?;
            return Ok(true);
        }
        Err(refusal) => {
            sends.receipts.forget(text);
            return Err(refusal);
        }
    };
    let pushed = single.push(broker, session, &stored_in, &text);
    let sends = &mut session.sends;
    let record_bytes = match pushed {
        Ok(bytes) => bytes,
        Err(refusal) => {
            if let Some(claim) = &claim {
                broker.repeats.settle(claim, stored_in.queue_id, None);
            }
            sends.receipts.forget(text);
            return Err(refusal);
        }
    };
    let kind = single.keep_handle(sends, wait, &mut text);
    let last = sends.records();
    sends.receipts.push(Receipt {
        reply_to: request.reply_to(),
        kind,
        queue_id: priority.unwrap_or_else(|| message_queue(message, route)),
        records: last - 1..last,
        text,
        stage,
        claim,
        part: None,
    });
    // A half message counts for its topic when it is committed.
    let (topic, queue_id) = if is_half { (stored_in.topic, 0) } else { (&route.topic, single.queue_id()) };
    let (topic, message_type) = (Arc::clone(topic), facts.message_type());
    sends.touch(stored_in.lane);
    sends.half_messages += usize::from(is_half);
    sends.count(Counted::Sent { topic, queue_id, message_type, messages: 1, bytes: record_bytes });
    Ok(wait == Wait::Nothing && !route.is_dead)
}

impl<'a> Single<'a> {
    /// The queue that consumers find it in.
    fn queue_id(&self) -> i32 {
        self.priority.unwrap_or(self.route.queue_id)
    }

    /// Whether it is a half message, and may be one; `gathered`: half messages that the batch has already.
    fn admit_half(&self, broker: &Broker, gathered: usize, level: i32) -> Result<bool, Refusal> {
        let Single { settings, message, facts, .. } = *self;
        // Old consumers carry the mark of a half message into a retry of it; that is an ordinary delayed message.
        let is_half = facts.is_half && !(message.reconsume_times.unwrap_or(0) > 0 && level > 0);
        if is_half {
            check_half(settings, facts, level)?;
            broker.transactions.check_room(settings, gathered)?;
        } else if sys_flag::transaction(message.sys_flag) == sys_flag::TRANSACTION_PREPARED && !facts.is_half {
            return Err(Refusal::illegal(
                "sysFlag says that this is a half message (4), its properties do not (TRAN_MSG is not true)",
            ));
        }
        check_not_rolled_back(message.sys_flag)?;
        Ok(is_half)
    }

    /// The stage that its answer waits for.
    fn stage(&self, broker: &Broker) -> Result<Stage, Refusal> {
        let route = self.route;
        let stage = broker.stage_of(&route.topic, self.facts.flush()?);
        if !route.is_dead && !route.topic.is_retry() {
            return Ok(stage);
        }
        // A consumer sends it there, and takes it for kept.
        let origin = properties::get(self.properties, name::RETRY_TOPIC).unwrap_or_default();
        Ok(stage.max(broker.stage_again(origin, self.properties)))
    }

    /// What it waits for before it comes to its own queue. A delay level wins over a delivery time.
    fn wait(&self, broker: &Broker, is_half: bool, level: i32) -> Result<Wait, Refusal> {
        let level = level.min(broker.delay_levels.max_level());
        Ok(if is_half {
            Wait::Half
        } else if level > 0 {
            Wait::Level(level)
        } else if self.route.is_dead {
            Wait::Nothing
        } else {
            timer::when(broker, self.facts)?.slot().map_or(Wait::Nothing, Wait::Timer)
        })
    }

    /// The queue that it is stored in.
    fn place<'b>(&self, broker: &'b Broker, wait: Wait) -> Result<StoredIn<'b>, Refusal>
    where
        'a: 'b,
    {
        let own = (&self.route.topic, self.queue_id());
        let (topic, queue_id) = match wait {
            Wait::Nothing => own,
            Wait::Half => (broker.transactions.half(), 0),
            Wait::Level(level) => (broker.delay.topic(), level - 1),
            Wait::Timer(_) => broker.timers.as_ref().map_or(own, |timers| (timers.topic(), 0)),
        };
        let lane = topic.lane(&broker.store, queue_id as u32).map_err(Refusal::failed)?;
        Ok(StoredIn { wait, topic, queue_id, lane })
    }

    /// Writes the properties to store, and finds the light queues; `text`: the unique key that was kept for it.
    fn write_properties(
        &self,
        broker: &Broker,
        sends: &mut Sends,
        text: &Range<usize>,
        wait: Wait,
        lite_queue: Option<&str>,
        light: Option<&str>,
    ) -> Result<(), Refusal> {
        let Single { settings, route, properties, facts, .. } = *self;
        let uniq_key = sends.receipts.text(text);
        let is_parked = wait != Wait::Nothing;
        let additions = Additions {
            cluster: &settings.broker_cluster_name,
            region: &settings.region_id,
            trace_on: settings.trace_on,
            uniq_key: facts.uniq_key.is_empty().then_some(uniq_key),
            transaction_id: (wait == Wait::Half).then_some(uniq_key),
            real: is_parked.then(|| Real { topic: route.topic.name(), queue_id: self.queue_id() }),
            timer_out: wait.slot(),
            is_dead: route.is_dead,
            lite_queue,
        };
        send_properties::write(&mut sends.properties, properties, facts, &additions);
        sends.light.clear();
        let whole = sends.properties.len();
        if let Some(list) = light {
            light::open(&broker.store, list, &mut sends.properties, &mut sends.light)?;
        }
        if sends.properties.len() > PROPERTIES_MAX {
            let (body_bytes, bytes) = (self.request.body.len(), sends.properties.len());
            return Err(Refusal::too_large(&broker.store_settings.load(), body_bytes, bytes));
        }
        if is_parked {
            // It stands in its light queues when it stands in its own.
            sends.properties.truncate(whole);
            sends.light.clear();
        }
        Ok(())
    }

    /// Encodes the record into the batch, and says how many bytes it has.
    fn push(
        &self,
        broker: &Broker,
        session: &mut Session,
        stored_in: &StoredIn<'_>,
        text: &Range<usize>,
    ) -> Result<usize, Refusal> {
        let Single { message, route, facts, .. } = *self;
        let StoredIn { wait, topic, queue_id, lane } = stored_in;
        let sends = &mut session.sends;
        let draft = RecordDraft {
            topic: topic.name(),
            queue_id: *queue_id,
            flag: message.flag,
            sys_flag: match wait {
                Wait::Half => sys_flag::with_transaction(route.sys_flag, 0),
                Wait::Nothing | Wait::Level(_) | Wait::Timer(_) => route.sys_flag,
            },
            born_timestamp: message.born_timestamp,
            born_host: session.connection.peer(),
            store_host: broker.advertised,
            reconsume_times: message.reconsume_times.unwrap_or(0),
            prepared_offset: 0,
            body: self.request.body,
            properties: &sends.properties,
        };
        let tags = match wait {
            Wait::Level(level) => TagsCode::DeliverAfterMs(broker.delay_levels.delay_ms(*level)),
            Wait::Nothing | Wait::Half | Wait::Timer(_) => TagsCode::Code(tags::code(facts.tags)),
        };
        let (first, gathered) = (sends.batch.len(), sends.batch.bytes());
        if sends.light.is_empty() {
            let keys = MessageKeys { uniq_key: sends.receipts.text(text), ..facts.message_keys() };
            append::push_with_keys(broker, &mut sends.batch, lane, tags, &keys, &draft);
        } else {
            light::push(&mut sends.batch, lane, tags, &mut sends.light, &draft);
        }
        append::check_fits(broker, &mut sends.batch, first, gathered)?;
        Ok(sends.batch.bytes() - gathered)
    }

    /// What the answer is for. Adds to the text of one that waits for its time the handle that takes it back.
    fn keep_handle(&self, sends: &mut Sends, wait: Wait, text: &mut Range<usize>) -> ReceiptKind {
        let Some(out) = wait.slot().filter(|_| !self.route.topic.is_retry()) else { return ReceiptKind::Send };
        sends.receipts.keep_handle(text, |text, uniq_key| {
            timer::handle(text, self.route.topic.name(), &self.settings.broker_name, out, uniq_key);
        });
        ReceiptKind::Timer
    }

    /// Gathers a message of which the producer says that it is a batch.
    fn gather_marked(
        &self,
        broker: &Broker,
        session: &mut Session,
        is_plain: bool,
        stage: Stage,
    ) -> Result<(), Refusal> {
        let Single { settings, request, message, route, facts, .. } = *self;
        if message.sys_flag & sys_flag::INNER_BATCH == 0 {
            return Err(Refusal::illegal("INNER_NUM is there, but sysFlag does not say that this is a batch (128)"));
        }
        let queue_id = self.queue_id();
        let lane = route.topic.lane(&broker.store, queue_id as u32).map_err(Refusal::failed)?;
        if !lane.queue.is_batch() {
            let topic = route.topic.name();
            return Err(Refusal::illegal(format!(
                "sysFlag says that this is a batch (128), and topic {topic} has not queue.type=BatchCQ"
            )));
        }
        if !is_plain {
            return Err(Refusal::illegal(
                "a batch that is one record (sysFlag 128) cannot be delayed, transactional or dead",
            ));
        }
        let count = inner_batch::count_of_marked(message, request.body)?;
        let target = Target { topic: &route.topic, lane, queue_id, sys_flag: route.sys_flag, stage };
        inner_batch::gather(broker, session, settings, request, message, facts, target, Content::of_sealed(count))
    }
}

impl Wait {
    /// The slot of a message that waits for its time.
    fn slot(self) -> Option<i64> {
        match self {
            Wait::Timer(out) => Some(out),
            Wait::Nothing | Wait::Half | Wait::Level(_) => None,
        }
    }
}

/// The queue that a message's priority names, in a topic with any message type. Refuses a message without key to a topic that
/// is compacted by keys.
fn priority_of(route: &Route, facts: &SendProperties<'_>) -> Result<Option<i32>, Refusal> {
    let topic_settings = route.topic.settings();
    if facts.keys.is_empty()
        && topic_settings.attributes.get("cleanup.policy").is_some_and(|policy| policy == "COMPACTION")
    {
        return Err(Refusal::illegal("Required message key is missing"));
    }
    let last_queue = topic_settings.write_queue_nums - 1;
    let priority =
        facts.priority().filter(|_| !route.is_dead && last_queue >= 0).map(|priority| priority.min(last_queue));
    drop(topic_settings);
    static_topic::send::check_priority(&route.topic, priority)?;
    Ok(priority)
}

/// The answer names the queue that the producer asked for, or the one we chose for it, also when the message went elsewhere.
fn message_queue(message: &SendMessage<'_>, route: &Route) -> i32 {
    if message.queue_id >= 0 { message.queue_id } else { route.queue_id }
}

/// Several messages of one send, on their way into the batch.
struct Several<'a> {
    request: &'a Request<'a>,
    message: &'a SendMessage<'a>,
    topic: &'a Arc<Topic>,
    /// Of the batch as a whole.
    facts: &'a SendProperties<'a>,
    own_flush: Option<FlushMode>,
    queue_id: i32,
    sys_flag: i32,
    /// It becomes one record.
    is_inner: bool,
}

fn gather_batch(
    broker: &Broker,
    session: &mut Session,
    settings: &BrokerSettings,
    request: &Request<'_>,
    message: &SendMessage<'_>,
    topic: &Arc<Topic>,
    queue_id: i32,
) -> Result<(), Refusal> {
    let facts = &SendProperties::of(message.properties.unwrap_or_default());
    let own_flush = check_batch(broker, request, message, topic, facts)?;
    let mut sys_flag = message.sys_flag;
    if topic.settings().topic_filter_type == TopicFilterType::MultiTag {
        sys_flag |= sys_flag::MULTI_TAGS;
    }
    let lane = topic.lane(&broker.store, queue_id as u32).map_err(Refusal::failed)?;
    // As in Apache: what has no unique key as a whole (batches of clients before 5) is taken apart.
    let is_inner = lane.queue.is_batch() && !facts.uniq_key.is_empty();
    let several = Several { request, message, topic, facts, own_flush, queue_id, sys_flag, is_inner };
    if !is_inner {
        return several.gather_apart(broker, session, lane);
    }
    let (content, stage) = match inner_batch::stated_of_compressed(message)? {
        Some(count) => (Content::of_sealed(count), broker.stage_of(topic, own_flush)),
        None => several.say_keys(broker, session, &lane)?,
    };
    let target = Target { topic, lane, queue_id, sys_flag, stage };
    inner_batch::gather(broker, session, settings, request, message, facts, target, content)
}

/// What a batch as a whole must not be or ask for; says whether it names a flush mode of its own.
fn check_batch(
    broker: &Broker,
    request: &Request<'_>,
    message: &SendMessage<'_>,
    topic: &Topic,
    facts: &SendProperties<'_>,
) -> Result<Option<FlushMode>, Refusal> {
    if message.topic.len() > names::TOPIC_MAX {
        let limit = names::TOPIC_MAX;
        return Err(Refusal::illegal(format!("message topic length too long {} (limit {limit})", message.topic.len())));
    }
    if topic.is_retry() {
        return Err(Refusal::illegal(format!("batch request does not support retry group {}", message.topic)));
    }
    let own_flush = facts.flush()?;
    let level = delay_level(facts)?;
    if level > 0 {
        return Err(Refusal::illegal(format!("a batch cannot be delayed, its DELAY is {level}")));
    }
    if facts.is_half || sys_flag::transaction(message.sys_flag) == sys_flag::TRANSACTION_PREPARED {
        return Err(Refusal::illegal("a batch cannot be transactional (TRAN_MSG is true, or sysFlag has 4)"));
    }
    check_not_rolled_back(message.sys_flag)?;
    if let Some((timer, _)) = facts.timer() {
        return Err(Refusal::illegal(format!("a batch cannot be delayed, it has {timer}")));
    }
    if request.body.is_empty() {
        return Err(Refusal::too_large(&broker.store_settings.load(), 0, message.properties.map_or(0, str::len)));
    }
    let body_bytes_max = broker.store_settings.load().max_message_size;
    if request.body.len() > body_bytes_max {
        return Err(Refusal::too_large(&broker.store_settings.load(), request.body.len(), 0));
    }
    Ok(own_flush)
}

impl<'a> Several<'a> {
    /// The messages, each checked, with its facts and the stage that it asks for.
    fn messages(
        &self,
        broker: &Broker,
    ) -> impl Iterator<Item = Result<(InnerMessage<'a>, SendProperties<'a>, Stage), Refusal>> {
        let Several { message, topic, facts, own_flush, is_inner, .. } = *self;
        (0..).zip(batch::iter(self.request.body)).map(move |(place, inner)| {
            let inner = inner.map_err(|error| Refusal::illegal(format!("message {place} of the batch: {error}")))?;
            let inner_facts = SendProperties::of(inner.properties);
            check_inner(&inner, &inner_facts, place, facts)?;
            let own = if inner_facts.flush_disk_type.is_some() { inner_facts.flush()? } else { own_flush };
            let stage = broker.stage_of(topic, own);
            light::check_inner(&broker.store, &inner, &inner_facts, place, message.topic)?;
            if is_inner && light::wanted(&broker.store, inner_facts.light, message.topic)?.is_some() {
                return Err(Refusal::illegal(format!(
                    "message {place} of the batch names light queues (INNER_MULTI_DISPATCH); in a BatchCQ topic a batch stands in its own \
                     queue only"
                )));
            }
            Ok((inner, inner_facts, stage))
        })
    }

    /// Says which keys the one record will have. The answer waits for the latest stage that one of the messages asks for.
    fn say_keys(&self, broker: &Broker, session: &mut Session, lane: &Lane) -> Result<(Content, Stage), Refusal> {
        let are_keys_said = broker.store.has_key_index();
        let records = &mut session.sends.batch;
        records.begin_keys();
        let mut say_keys = |of: &SendProperties<'_>| {
            if are_keys_said {
                records.say_keys_of_next(&lane.queue, &of.message_keys());
            }
        };
        say_keys(self.facts);
        let (mut count, mut latest) = (0, Stage::Written);
        for inner in self.messages(broker) {
            let (_, inner_facts, stage) = inner?;
            say_keys(&inner_facts);
            latest = latest.max(stage);
            count += 1;
        }
        Ok((Content { count: inner_batch::checked(count)?, are_keys_said }, latest))
    }

    /// A record for each message; all of them or none. The answer is one for all.
    fn gather_apart(&self, broker: &Broker, session: &mut Session, lane: Arc<Lane>) -> Result<(), Refusal> {
        let Several { request, message, topic, facts, queue_id, .. } = *self;
        if facts.has_inner_num || message.sys_flag & sys_flag::INNER_BATCH != 0 {
            return Err(Refusal::illegal(
                "INNER_NUM and the sysFlag bit 128 mark a batch that is one record, which this batch or its topic is not",
            ));
        }
        let (first, gathered) = (session.sends.records(), session.sends.batch.bytes());
        session.sends.batch.begin_group();
        let pushed = self.push_each(broker, session, &lane);
        let sends = &mut session.sends;
        sends.batch.end_group();
        let stage = pushed.inspect_err(|_| sends.batch.truncate(first))?;
        let count = sends.records() - first;
        append::check_fits(broker, &mut sends.batch, first, gathered)?;
        let text = sends.receipts.keep(facts.uniq_key);
        sends.receipts.push(Receipt {
            reply_to: request.reply_to(),
            kind: ReceiptKind::Batch,
            queue_id,
            records: first..first + count,
            text,
            stage,
            claim: None,
            part: None,
        });
        sends.touch(lane);
        let (messages, bytes) = (count, request.body.len());
        let (topic, message_type) = (Arc::clone(topic), facts.message_type());
        sends.count(Counted::Sent { topic, queue_id, message_type, messages, bytes });
        Ok(())
    }

    /// Encodes each message into the batch, and says the latest stage that one of them asks for.
    fn push_each(&self, broker: &Broker, session: &mut Session, lane: &Arc<Lane>) -> Result<Stage, Refusal> {
        let message = self.message;
        let (born_host, records) = (session.connection.peer(), &mut session.sends.batch);
        let mut latest = Stage::Written;
        for inner in self.messages(broker) {
            let (inner, inner_facts, stage) = inner?;
            latest = latest.max(stage);
            let draft = RecordDraft {
                topic: message.topic,
                queue_id: self.queue_id,
                flag: inner.flag,
                sys_flag: self.sys_flag,
                born_timestamp: message.born_timestamp,
                born_host,
                store_host: broker.advertised,
                reconsume_times: message.reconsume_times.unwrap_or(0),
                prepared_offset: 0,
                body: inner.body,
                properties: inner.properties.as_bytes(),
            };
            let tags = TagsCode::Code(tags::code(inner_facts.tags));
            if inner_facts.light.is_none() && !inner_facts.has_light_numbers {
                append::push_with_keys(broker, records, lane, tags, &inner_facts.message_keys(), &draft);
            } else {
                light::push_again(&broker.store, records, lane, tags, &draft);
            }
        }
        Ok(latest)
    }
}

/// What all messages of a batch must have in common, and what none of them may have.
fn check_inner(
    inner: &InnerMessage<'_>,
    facts: &SendProperties<'_>,
    place: usize,
    batch: &SendProperties<'_>,
) -> Result<(), Refusal> {
    if let Some(delay) = facts.delay
        && delay != "0"
    {
        return Err(Refusal::illegal(format!(
            "message {place} of the batch has DELAY {delay}; a batch cannot be delayed"
        )));
    }
    if let Some((timer, _)) = facts.timer() {
        return Err(Refusal::illegal(format!("message {place} of the batch has {timer}; a batch cannot be delayed")));
    }
    if facts.is_half {
        return Err(Refusal::illegal(format!(
            "message {place} of the batch has TRAN_MSG true; a batch cannot be transactional"
        )));
    }
    if facts.has_inner_num {
        return Err(Refusal::illegal(format!(
            "message {place} of the batch has INNER_NUM, which only a broker may set"
        )));
    }
    if let Some(lite_topic) = facts.lite_topic {
        return Err(Refusal::illegal(format!(
            "message {place} of the batch has __LITE_TOPIC {lite_topic}; lite messages are sent one by one"
        )));
    }
    if facts.is_hasty != batch.is_hasty {
        return Err(Refusal::illegal(format!(
            "message {place} of the batch has WAIT {}, the batch has WAIT {}; all must have the same",
            !facts.is_hasty, !batch.is_hasty
        )));
    }
    if inner.properties.len() > PROPERTIES_MAX {
        return Err(Refusal::illegal(format!(
            "message {place} of the batch has properties of {} bytes, the limit is {PROPERTIES_MAX}",
            inner.properties.len()
        )));
    }
    Ok(())
}

fn delay_level(facts: &SendProperties<'_>) -> Result<i32, Refusal> {
    facts.delay_level().map_err(|text| Refusal::illegal(format!("property DELAY: \"{text}\" is not a number")))
}

/// No queue leads to a record that says that it was rolled back: only the end of a transaction
/// writes it.
fn check_not_rolled_back(sys_flag: i32) -> Result<(), Refusal> {
    if sys_flag::transaction(sys_flag) == sys_flag::TRANSACTION_ROLLBACK {
        return Err(Refusal::illegal("sysFlag says that this message is rolled back (12), which a producer cannot"));
    }
    Ok(())
}

/// May this half message be stored? Apache takes one with a delay, moves it past its check and drops it when its time has come.
fn check_half(settings: &BrokerSettings, facts: &SendProperties<'_>, level: i32) -> Result<(), Refusal> {
    if settings.reject_transaction_message {
        return Err(Refusal::new(
            ResponseCode::NoPermission,
            format!("the broker[{}] sending transaction message is forbidden", settings.broker_ip1),
        ));
    }
    if level > 0 {
        return Err(Refusal::illegal(format!("a half message cannot be delayed, its DELAY is {level}")));
    }
    if let Some((timer, _)) = facts.timer() {
        return Err(Refusal::illegal(format!("a half message cannot be delayed, it has {timer}")));
    }
    Ok(())
}

fn check_size(broker: &Broker, body: &Bytes, properties_bytes: usize) -> Result<(), Refusal> {
    let body_bytes_max = broker.store_settings.load().max_message_size;
    if body.is_empty() || body.len() > body_bytes_max || properties_bytes > PROPERTIES_MAX {
        return Err(Refusal::too_large(&broker.store_settings.load(), body.len(), properties_bytes));
    }
    Ok(())
}
