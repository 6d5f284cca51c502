//! One message: what it waits for, where it is stored meanwhile, and its record, encoded into the
//! batch.

use std::ops::Range;
use std::sync::Arc;

use config::BrokerSettings;
use protocol::code::ResponseCode;
use protocol::properties::{self, name};
use protocol::record::{PROPERTIES_MAX, RecordDraft};
use protocol::sys_flag;
use protocol::tags;
use store::{MessageKeys, Stages, TagsCode};

use super::order::SendOrder;
use super::sending::{Gathered, Route, Sending, delay_level};
use crate::broker::Broker;
use crate::client::inner_batch::{self, Content, Target};
use crate::refusal::Refusal;
use crate::sends::{Counted, Receipt, ReceiptKind, Sends};
use crate::state::topics::Topic;
use crate::waiting::hold::Lane;
use crate::write::repeats::{self, Repeated, Verdict};
use crate::write::send_properties::{self, Additions, Real, SendProperties};
use crate::write::{append, light};
use crate::{lite, static_topic, timer};

/// One message on its way into the batch: what was sent, and where the checks of its topic let it
/// go.
#[derive(Clone, Copy)]
struct Single<'a> {
    sending: Sending<'a>,
    route: &'a Route,
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

/// Adds a message to a batch.
pub(super) fn gather(
    broker: &Broker,
    sends: &mut Sends,
    sending: Sending<'_>,
    route: &Route,
) -> Result<Gathered, Refusal> {
    let order = sending.order;
    let facts = &SendProperties::of(order.properties);
    let priority = priority_of(route, facts)?;
    let single = Single { sending, route, facts, priority };
    let level = if route.is_dead { 0 } else { delay_level(facts)? };
    let is_half = single.admit_half(broker, sends.half_messages, level)?;
    let stages = single.stages(broker)?;
    check_size(broker, order)?;
    let lite_queue = lite::queue_of(&broker.store, facts, route.topic.name())?;
    let light = light::wanted(&broker.store, lite_queue.as_deref().or(facts.light), route.topic.name())?;
    if facts.has_inner_num || order.has_flag(sys_flag::INNER_BATCH) {
        let is_plain = !is_half && level <= 0 && facts.timer().is_none() && !route.is_dead;
        single.gather_marked(broker, sends, is_plain, stages)?;
        return Ok(Gathered::InPlace);
    }
    let wait = single.wait(broker, is_half, level)?;
    let stored_in = single.place(broker, wait)?;

    let mut text = sends.receipts.keep_uniq_key(facts.uniq_key, &broker.ids);
    let claimed = single
        .write_properties(broker, sends, &text, wait, lite_queue.as_deref(), light)
        // The last check: what is claimed here is stored, or given up by `append`.
        .and_then(|()| repeats::look(broker, &route.topic, facts.uniq_key));
    let claim = match claimed {
        Ok(Verdict::Store(claim)) => claim,
        Ok(Verdict::Repeated(first)) => {
            sends.receipts.forget(text);
            return Ok(Gathered::Repeated(Repeated { uniq_key: facts.uniq_key.into(), stages, first }));
        }
        Err(refusal) => {
            sends.receipts.forget(text);
            return Err(refusal);
        }
    };
    let record_bytes = match single.push(broker, sends, &stored_in, &text) {
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
        reply_to: sending.reply_to,
        kind,
        queue_id: priority.unwrap_or_else(|| message_queue(order, route)),
        records: last - 1..last,
        text,
        stages,
        claim,
        part: None,
    });
    // A half message counts for its topic when it is committed.
    let (topic, queue_id) = if is_half { (stored_in.topic, 0) } else { (&route.topic, single.queue_id()) };
    let (topic, message_type) = (Arc::clone(topic), facts.message_type());
    sends.touch(stored_in.lane);
    sends.half_messages += usize::from(is_half);
    sends.count(Counted::Sent { topic, queue_id, message_type, messages: 1, bytes: record_bytes });
    Ok(if wait == Wait::Nothing && !route.is_dead { Gathered::InPlace } else { Gathered::Elsewhere })
}

impl<'a> Single<'a> {
    /// The queue that consumers find it in.
    fn queue_id(&self) -> i32 {
        self.priority.unwrap_or(self.route.queue_id)
    }

    /// Whether it is a half message, and may be one. `gathered`: half messages that the batch has
    /// already.
    fn admit_half(&self, broker: &Broker, gathered: usize, level: i32) -> Result<bool, Refusal> {
        let Single { sending: Sending { order, settings, .. }, facts, .. } = *self;
        // Old consumers carry the mark of a half message into a retry of it; that is an ordinary
        // delayed message.
        let is_half = facts.is_half && !(order.reconsume_times.unwrap_or(0) > 0 && level > 0);
        if is_half {
            check_half(settings, facts, level)?;
            broker.transactions.check_room(settings, gathered)?;
        } else if order.says_half() && !facts.is_half {
            return Err(Refusal::illegal(
                "sysFlag says that this is a half message (4), its properties do not (TRAN_MSG is not true)",
            ));
        }
        order.check_not_rolled_back()?;
        Ok(is_half)
    }

    /// The stages that its answer waits for.
    fn stages(&self, broker: &Broker) -> Result<Stages, Refusal> {
        let route = self.route;
        let stages = broker.stages_of(&route.topic, self.facts.own_words()?)?;
        if !route.is_dead && !route.topic.is_retry() {
            return Ok(stages);
        }
        // A consumer sends it there, and takes it for kept.
        let properties = self.sending.order.properties;
        let origin = properties::get(properties, name::RETRY_TOPIC).unwrap_or_default();
        Ok(stages.and(broker.stages_again(origin, properties)))
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

    /// Writes the properties to store, and finds the light queues. `text`: the unique key that was
    /// kept for it.
    fn write_properties(
        &self,
        broker: &Broker,
        sends: &mut Sends,
        text: &Range<usize>,
        wait: Wait,
        lite_queue: Option<&str>,
        light: Option<&str>,
    ) -> Result<(), Refusal> {
        let Single { sending: Sending { order, settings, .. }, route, facts, .. } = *self;
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
        send_properties::write(&mut sends.properties, order.properties, facts, &additions);
        sends.light.clear();
        let whole = sends.properties.len();
        if let Some(list) = light {
            light::open(&broker.store, list, &mut sends.properties, &mut sends.light)?;
        }
        if sends.properties.len() > PROPERTIES_MAX {
            let (body_bytes, bytes) = (order.body.len(), sends.properties.len());
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
        sends: &mut Sends,
        stored_in: &StoredIn<'_>,
        text: &Range<usize>,
    ) -> Result<usize, Refusal> {
        let Single { sending, route, facts, .. } = *self;
        let StoredIn { wait, topic, queue_id, lane } = stored_in;
        let draft = RecordDraft {
            topic: topic.name(),
            queue_id: *queue_id,
            sys_flag: match wait {
                Wait::Half => sys_flag::with_transaction(route.sys_flag, 0),
                Wait::Nothing | Wait::Level(_) | Wait::Timer(_) => route.sys_flag,
            },
            properties: &sends.properties,
            ..sending.order.draft(sending.born_host, broker.advertised)
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

    /// The kind of its receipt. A message that waits for its time gets the handle that takes it back
    /// added to its text.
    fn keep_handle(&self, sends: &mut Sends, wait: Wait, text: &mut Range<usize>) -> ReceiptKind {
        let Some(out) = wait.slot().filter(|_| !self.route.topic.is_retry()) else { return ReceiptKind::Send };
        sends.receipts.keep_handle(text, |text, uniq_key| {
            timer::handle(text, self.route.topic.name(), &self.sending.settings.broker_name, out, uniq_key);
        });
        ReceiptKind::Timer
    }

    /// Gathers a message of which the producer says that it is a batch.
    fn gather_marked(&self, broker: &Broker, sends: &mut Sends, is_plain: bool, stages: Stages) -> Result<(), Refusal> {
        let Single { sending, route, facts, .. } = *self;
        if !sending.order.has_flag(sys_flag::INNER_BATCH) {
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
        let count = inner_batch::count_of_marked(sending.order)?;
        let target = Target { topic: &route.topic, lane, queue_id, sys_flag: route.sys_flag, stages };
        inner_batch::gather(broker, sends, sending, facts, target, Content::of_sealed(count))
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

/// The queue that a message's priority names, in a topic with any message type. Refuses a message
/// without key to a topic that is compacted by keys.
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

/// The answer names the queue that the producer asked for, or the one that was chosen for it, also
/// when the message went elsewhere.
fn message_queue(order: &SendOrder<'_>, route: &Route) -> i32 {
    if order.queue_id >= 0 { order.queue_id } else { route.queue_id }
}

/// May this half message be stored? Apache takes one with a delay, moves it past its check and drops
/// it when its time has come.
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

fn check_size(broker: &Broker, order: &SendOrder<'_>) -> Result<(), Refusal> {
    let (body, properties_bytes) = (order.body, order.properties.len());
    let body_bytes_max = broker.store_settings.load().max_message_size;
    if body.is_empty() || body.len() > body_bytes_max || properties_bytes > PROPERTIES_MAX {
        return Err(Refusal::too_large(&broker.store_settings.load(), body.len(), properties_bytes));
    }
    Ok(())
}
