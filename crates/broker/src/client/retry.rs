//! Messages that a consumer gives back (36): stored again for the group, delayed, and after too many times as dead letters.

use std::sync::Arc;

use net::{Outgoing, ReplyTo, Request};
use protocol::LogOffset;
use protocol::code::ResponseCode;
use protocol::message_id::offset_message_id;
use protocol::names;
use protocol::properties::{self, name};
use protocol::record::{self, PROPERTIES_MAX, RecordView, Scanned};
use protocol::request::SendBack;
use protocol::sys_flag::{self, perm};
use protocol::tags;
use store::{LogSlice, TagsCode};

use crate::broker::Broker;
use crate::caller::Caller;
use crate::cold;
use crate::refusal::Refusal;
use crate::sends::{Counted, Receipt, Sends};
use crate::session::Session;
use crate::state::groups::Group;
use crate::state::topics::Topic;
use crate::waiting::hold::Lane;
use crate::write::append;
use crate::write::local::LocalSends;
use crate::write::send_properties::{self, Real};

/// From this version on a client may say how often a message is retried (V3_4_9's ordinal).
pub(crate) const VERSION_OF_MAX_RECONSUME_TIMES: i32 = 121;

/// The first retry comes after the third delay level, which is ten seconds.
const FIRST_RETRY_LEVEL: i32 = 3;

/// A consumer gives a message back.
#[derive(Clone, Copy, Debug)]
pub struct SendBackOrder<'a> {
    /// The group that could not consume it.
    pub group: &'a str,
    /// The place of the message in the log.
    pub offset: i64,
    /// A negative level asks for the dead-letter queue; 0 lets the broker choose, longer each time.
    pub delay_level: i32,
    /// Marks the retry topic as that of a unit (`isUnitMode` of the client).
    pub unit_mode: bool,
    /// In the place of the group's `retryMaxTimes`.
    pub retry_max: Option<i32>,
}

/// A message that may be given back. It is free of the request, since the message may have to come
/// from the disk.
pub(crate) struct GivenBack {
    pub(crate) at: LogOffset,
    group: Arc<Group>,
    /// None: the group wants no retries.
    retry_topic: Option<Arc<Topic>>,
    delay_level: i32,
    retry_max: i32,
    /// The place in the journal of the topics that were made for it. The answer waits until that is
    /// written.
    pub(crate) written_at: u64,
}

/// 36.
pub(crate) fn send_back(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let mut given_back = SendBackOrder::decode(request)?.admit(broker)?;
    let reply_to = request.reply_to();
    cold::with_record(broker, session, given_back.at, out, move |broker, session, found, out| {
        let gathered = found.and_then(|record| given_back.gather(broker, record, reply_to, &mut session.sends));
        session.durable_after(given_back.written_at);
        if let Err(refusal) = gathered {
            out.reply(reply_to, refusal.code, Some(&refusal.remark), &(), &[]);
        }
    })
}

impl<'a> SendBackOrder<'a> {
    fn decode(request: &Request<'a>) -> Result<SendBackOrder<'a>, Refusal> {
        let SendBack { group, offset, delay_level, unit_mode, max_reconsume_times, .. } =
            SendBack::decode(&request.header.fields)?;
        let retry_max = max_reconsume_times.filter(|_| request.header.version >= VERSION_OF_MAX_RECONSUME_TIMES);
        Ok(SendBackOrder { group, offset, delay_level, unit_mode, retry_max })
    }

    /// Carries it out for a caller in this process, which may commit the message's offset after that:
    /// the retry, or the dead letter, has come to the stages that the message asks for. It succeeds
    /// also if slaves are late or missing.
    pub async fn call(&self, broker: &Broker, caller: &mut Caller) -> Result<(), Refusal> {
        caller.begin();
        let mut given_back = self.admit(broker)?;
        let record = cold::record(&broker.store, given_back.at).await?;
        let mut local = LocalSends::new(broker);
        given_back.gather(broker, record, ReplyTo::NOBODY, local.sends())?;
        caller.durable_after(given_back.written_at);
        let stages = local.sends().receipts.stages;
        local.append(stages).await?;
        caller.settled(&broker.store).await
    }

    /// May this group give messages back? Creates its retry topic.
    pub(crate) fn admit(&self, broker: &Broker) -> Result<GivenBack, Refusal> {
        let group = broker.groups.find(self.group).map_err(|_| Refusal::group_not_exist(self.group))?;
        let ip = broker.advertised.ip();
        if !perm::is_writable(broker.settings.load().broker_permission) {
            let remark = format!("the broker[{ip}] sending message is forbidden");
            return Err(Refusal::new(ResponseCode::NoPermission, remark));
        }
        let config = group.config.load_full();
        let topic_sys_flag = if self.unit_mode { sys_flag::topic::UNIT_SUB } else { 0 };
        let retry_name = names::retry_topic(self.group);
        // Without retries it becomes a dead letter at once. Apache says that it has the message,
        // and forgets it.
        let retry = (config.retry_queue_nums > 0)
            .then(|| broker.topics.create_for_group(&retry_name, config.retry_queue_nums, topic_sys_flag));
        if retry.as_ref().is_some_and(|retry| !perm::is_writable(retry.topic.settings().perm)) {
            let remark = format!("the topic[{retry_name}] sending message is forbidden");
            return Err(Refusal::new(ResponseCode::NoPermission, remark));
        }
        Ok(GivenBack {
            at: cold::log_offset(self.offset).ok_or_else(|| not_found(self.offset))?,
            group,
            written_at: retry.as_ref().map_or(0, |retry| retry.position),
            retry_topic: retry.map(|retry| retry.topic),
            delay_level: self.delay_level,
            retry_max: self.retry_max.unwrap_or(config.retry_max_times),
        })
    }
}

fn not_found(offset: i64) -> Refusal {
    Refusal::new(ResponseCode::SystemError, format!("look message by offset failed, {offset}"))
}

/// How a message goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Again, after this level.
    Retry(i32),
    /// Not again.
    Dead,
}

fn fate(reconsume_times: i32, retry_max: i32, delay_level: i32) -> Fate {
    if delay_level < 0 || reconsume_times >= retry_max {
        Fate::Dead
    } else if delay_level == 0 {
        Fate::Retry(reconsume_times.saturating_add(FIRST_RETRY_LEVEL))
    } else {
        Fate::Retry(delay_level)
    }
}

/// The new place of a message.
struct RetryPlace {
    fate: Fate,
    topic: Arc<Topic>,
    queue_id: u32,
    lane: Arc<Lane>,
    tags: TagsCode,
    /// Of its delay; 0 for a dead letter.
    level: i32,
}

impl GivenBack {
    /// Adds the record, as it was found, to a batch, in its new place.
    pub(crate) fn gather(
        &mut self,
        broker: &Broker,
        record: Option<LogSlice>,
        reply_to: ReplyTo,
        sends: &mut Sends,
    ) -> Result<(), Refusal> {
        let scanned = record.as_ref().map(|record| record::scan(record.as_ref(), false));
        let Some(Ok(Scanned::Record(view))) = scanned else { return Err(not_found(self.at.0 as i64)) };
        if view.sys_flag() & sys_flag::INNER_BATCH != 0 {
            // As in Apache: the record is the whole batch. Consumers then send the one message that
            // they mean to their retry topic.
            return Err(Refusal::new(
                ResponseCode::SystemError,
                "MESSAGE_ILLEGAL: the record is a batch, and one message of it cannot be given back by its place in the log",
            ));
        }
        let RetryPlace { fate, topic, queue_id, lane, tags, level } = self.place(broker, &view)?;
        sends.properties.clear();
        let real = Real { topic: topic.name(), queue_id: queue_id as i32 };
        write_properties(&mut sends.properties, &view, fate, level, real);
        if sends.properties.len() > PROPERTIES_MAX {
            return Err(Refusal::new(
                ResponseCode::MessageIllegal,
                format!(
                    "the message is illegal, its properties would have {}B with those of a retry, the limit is {PROPERTIES_MAX}B",
                    sends.properties.len()
                ),
            ));
        }
        let mut draft = append::again(&view);
        draft.topic = if level > 0 { names::SCHEDULE_TOPIC } else { topic.name() };
        draft.queue_id = if level > 0 { level - 1 } else { queue_id as i32 };
        draft.store_host = broker.advertised;
        draft.reconsume_times = view.reconsume_times().saturating_add(1);
        draft.prepared_offset = 0;
        draft.properties = &sends.properties;
        let properties = view.properties();
        let stages =
            broker.stages_again(properties::get(&properties, name::RETRY_TOPIC).unwrap_or(view.topic()), &properties);
        let (first, gathered) = (sends.records(), sends.batch.bytes());
        append::push(&mut sends.batch, &lane, tags, &draft);
        append::check_fits(broker, &mut sends.batch, first, gathered)?;
        // The stages: the consumer commits its offset when it is told that the message is kept, and
        // the journal that holds the commit is synced apart from the log: told earlier, the commit
        // could survive a loss of power and the retry not. Slaves are waited for, and no error if
        // they are late or missing: to any error a stock consumer stores a retry of its own beside
        // this one, and each round would double what fails.
        sends.receipts.push(Receipt::plain(reply_to, first..first + 1, stages));
        sends.touch(lane);
        let group = Arc::clone(&self.group.name);
        sends.count(match fate {
            Fate::Retry(_) => Counted::Back { group, topic },
            Fate::Dead => Counted::Dead { group, topic },
        });
        Ok(())
    }

    /// Finds the place. Creates the dead-letter topic if it is that.
    fn place(&mut self, broker: &Broker, view: &RecordView<'_>) -> Result<RetryPlace, Refusal> {
        let fate = fate(view.reconsume_times(), self.retry_max, self.delay_level);
        let (fate, topic, queues) = match (fate, &self.retry_topic) {
            (Fate::Retry(_), Some(retry)) => {
                let wanted = self.group.config.load().retry_queue_nums;
                // Consumers read no others, whatever the group's setting says.
                let queues = wanted.min(retry.settings().read_queue_nums);
                (fate, Arc::clone(retry), queues)
            }
            (Fate::Retry(_) | Fate::Dead, _) => {
                let dead = broker.topics.create_for_group(&names::dlq_topic(&self.group.name), 1, 0);
                self.written_at = self.written_at.max(dead.position);
                (Fate::Dead, dead.topic, 1)
            }
        };
        let queue_id = broker.random.below(queues.max(1) as u32);
        let (lane, tags, level) = match fate {
            Fate::Retry(level) => {
                // A record may say that it was tried less than never.
                let level = level.min(broker.delay_levels.max_level()).max(1);
                let lane = broker.delay.topic().lane(&broker.store, level as u32 - 1);
                (lane, TagsCode::DeliverAfterMs(broker.delay_levels.delay_ms(level)), level)
            }
            Fate::Dead => {
                let code = tags::code(view.property(name::TAGS).unwrap_or_default());
                (topic.lane(&broker.store, queue_id), TagsCode::Code(code), 0)
            }
        };
        let lane = lane.map_err(Refusal::failed)?;
        Ok(RetryPlace { fate, topic, queue_id, lane, tags, level })
    }
}

/// The message's own properties, and where it comes from.
fn write_properties(out: &mut Vec<u8>, view: &RecordView<'_>, fate: Fate, level: i32, real: Real<'_>) {
    let is_dead = fate == Fate::Dead;
    send_properties::copy_except(out, &view.properties(), |key| {
        matches!(key, name::DELAY | name::WAIT | name::REAL_TOPIC | name::REAL_QID)
            // The delay of the retry wins over the time that the message once waited for.
            || !is_dead && matches!(key, name::TIMER_DELAY_SEC | name::TIMER_DELAY_MS | name::TIMER_DELIVER_MS)
            || is_dead && matches!(key, name::DLQ_ORIGIN_TOPIC | name::DLQ_ORIGIN_MESSAGE_ID)
    });
    let origin_topic = view.property(name::RETRY_TOPIC).unwrap_or(view.topic());
    if view.property(name::RETRY_TOPIC).is_none() {
        send_properties::put(out, name::RETRY_TOPIC, origin_topic);
    }
    let mut own_id = String::new();
    offset_message_id(&mut own_id, view.store_host(), view.log_offset());
    let origin_id = view.property(name::ORIGIN_MESSAGE_ID).unwrap_or(&own_id);
    if view.property(name::ORIGIN_MESSAGE_ID).is_none() {
        send_properties::put(out, name::ORIGIN_MESSAGE_ID, origin_id);
    }
    // Apache writes this into what was sent back, and consumers see it. Our answer waits for the flush all the same.
    send_properties::put(out, name::WAIT, "false");
    if is_dead {
        send_properties::put(out, name::DLQ_ORIGIN_TOPIC, origin_topic);
        send_properties::put(out, name::DLQ_ORIGIN_MESSAGE_ID, origin_id);
        send_properties::put(out, name::DELAY, "0");
    } else {
        send_properties::put(out, name::DELAY, &level.to_string());
        send_properties::put_real(out, real);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_retry_waits_longer_until_the_message_is_dead() {
        assert_eq!(fate(0, 16, 0), Fate::Retry(3));
        assert_eq!(fate(15, 16, 0), Fate::Retry(18));
        assert_eq!(fate(16, 16, 0), Fate::Dead);
    }

    #[test]
    fn a_consumer_may_choose_the_level_or_give_up() {
        assert_eq!(fate(0, 16, 5), Fate::Retry(5));
        assert_eq!(fate(0, 16, -1), Fate::Dead);
        assert_eq!(fate(0, 0, 5), Fate::Dead);
    }
}
