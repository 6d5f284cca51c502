//! Messages that a consumer gives back (36): stored again for the group, delayed, and after too many times as dead letters.

use std::sync::Arc;

use net::{Outgoing, ReplyTo, Request};
use protocol::code::ResponseCode;
use protocol::message_id::offset_message_id;
use protocol::names;
use protocol::properties::{self, name};
use protocol::record::{self, PROPERTIES_MAX, RecordView, Scanned};
use protocol::request::SendBack;
use protocol::sys_flag::{self, perm};
use protocol::tags;
use store::TagsCode;

use crate::broker::Broker;
use crate::cold;
use crate::refusal::Refusal;
use crate::sends::{Counted, Kind, Receipt};
use crate::session::Session;
use crate::state::groups::Group;
use crate::state::topics::Topic;
use crate::write::append;
use crate::write::facts::{self, Real};

/// From this version on a client may say how often a message is retried (V3_4_9's ordinal).
pub(crate) const VERSION_OF_MAX_RECONSUME_TIMES: i32 = 121;

/// The first retry comes after the third delay level, which is ten seconds.
const FIRST_RETRY_LEVEL: i32 = 3;

/// What is asked for, free of the request, since the message may have to come from the disk.
struct GivenBack {
    reply_to: ReplyTo,
    group: Arc<Group>,
    /// None: the group wants no retries.
    retry_topic: Option<Arc<Topic>>,
    delay_level: i32,
    retry_max: i32,
    offset: i64,
}

/// 36.
pub(crate) fn send_back(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let asked = SendBack::decode(&request.header.fields)?;
    let group = broker.groups.find(asked.group).map_err(|_| Refusal::group_not_exist(asked.group))?;
    let ip = broker.advertised.ip();
    if !perm::is_writable(broker.settings.load().broker_permission) {
        return Err(Refusal::new(ResponseCode::NoPermission, format!("the broker[{ip}] sending message is forbidden")));
    }
    let config = group.config.load_full();
    let reply_to = request.reply_to();
    let topic_sys_flag = if asked.unit_mode { sys_flag::topic::UNIT_SUB } else { 0 };
    let retry_name = names::retry_topic(asked.group);
    // Without retries it becomes a dead letter at once. Apache says that it has the message, and forgets it.
    let retry = (config.retry_queue_nums > 0)
        .then(|| broker.topics.create_for_group(&retry_name, config.retry_queue_nums, topic_sys_flag));
    if retry.as_ref().is_some_and(|retry| !perm::is_writable(retry.topic.settings().perm)) {
        let remark = format!("the topic[{retry_name}] sending message is forbidden");
        return Err(Refusal::new(ResponseCode::NoPermission, remark));
    }
    let retry_max = match asked.max_reconsume_times {
        Some(max) if request.header.version >= VERSION_OF_MAX_RECONSUME_TIMES => max,
        Some(_) | None => config.retry_max_times,
    };
    let given_back = GivenBack {
        reply_to,
        group,
        retry_topic: retry.as_ref().map(|retry| Arc::clone(&retry.topic)),
        delay_level: asked.delay_level,
        retry_max,
        offset: asked.offset,
    };
    let at = cold::log_offset(asked.offset).ok_or_else(|| not_found(asked.offset))?;
    cold::with_record(broker, session, at, out, move |broker, session, found, out| {
        session.durable_after(retry.map_or(0, |retry| retry.position));
        let gathered = found.and_then(|slice| {
            let scanned = slice.as_ref().map(|slice| record::scan(slice.as_ref(), false));
            let Some(Ok(Scanned::Record(view))) = scanned else { return Err(not_found(given_back.offset)) };
            gather(broker, session, &given_back, &view)
        });
        if let Err(refusal) = gathered {
            out.reply(given_back.reply_to, refusal.code, Some(&refusal.remark), &(), &[]);
        }
    })
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

/// A negative level asks for the dead-letter queue; 0 lets the broker choose, longer each time.
fn fate(reconsume_times: i32, retry_max: i32, delay_level: i32) -> Fate {
    if delay_level < 0 || reconsume_times >= retry_max {
        Fate::Dead
    } else if delay_level == 0 {
        Fate::Retry(reconsume_times.saturating_add(FIRST_RETRY_LEVEL))
    } else {
        Fate::Retry(delay_level)
    }
}

/// Adds the message to the session's batch, in its new place.
fn gather(
    broker: &Broker,
    session: &mut Session,
    given_back: &GivenBack,
    view: &RecordView<'_>,
) -> Result<(), Refusal> {
    if view.sys_flag() & sys_flag::INNER_BATCH != 0 {
        // As in Apache: the record is the whole batch. Consumers then send the one message that they mean to their retry topic.
        return Err(Refusal::new(
            ResponseCode::SystemError,
            "MESSAGE_ILLEGAL: the record is a batch, and one message of it cannot be given back by its place in the log",
        ));
    }
    let group = &given_back.group.name;
    let fate = fate(view.reconsume_times(), given_back.retry_max, given_back.delay_level);
    let (fate, topic, queues) = match (fate, &given_back.retry_topic) {
        (Fate::Retry(_), Some(retry)) => {
            let wanted = given_back.group.config.load().retry_queue_nums;
            // Consumers read no others, whatever the group's setting says.
            let queues = wanted.min(retry.settings().read_queue_nums);
            (fate, Arc::clone(retry), queues)
        }
        (Fate::Retry(_) | Fate::Dead, _) => {
            let dead = broker.topics.create_for_group(&names::dlq_topic(group), 1, 0);
            session.durable_after(dead.position);
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

    let sends = &mut session.sends;
    sends.properties.clear();
    write_properties(&mut sends.properties, view, fate, level, Real { topic: topic.name(), queue_id: queue_id as i32 });
    if sends.properties.len() > PROPERTIES_MAX {
        return Err(Refusal::new(
            ResponseCode::MessageIllegal,
            format!(
                "the message is illegal, its properties would have {}B with those of a retry, the limit is {PROPERTIES_MAX}B",
                sends.properties.len()
            ),
        ));
    }
    let mut draft = view.to_draft();
    draft.topic = if level > 0 { names::SCHEDULE_TOPIC } else { topic.name() };
    draft.queue_id = if level > 0 { level - 1 } else { queue_id as i32 };
    draft.store_host = broker.advertised;
    draft.reconsume_times = view.reconsume_times().saturating_add(1);
    draft.prepared_offset = 0;
    draft.properties = &sends.properties;
    let properties = view.properties();
    let stage =
        broker.stage_again(properties::get(&properties, name::RETRY_TOPIC).unwrap_or(view.topic()), &properties);
    let (first, gathered) = (sends.records(), sends.batch.bytes());
    append::push(&mut sends.batch, &lane, tags, &draft);
    append::check_fits(broker, &mut sends.batch, first, gathered)?;
    sends.receipts.push(Receipt {
        reply_to: given_back.reply_to,
        kind: Kind::Plain,
        queue_id: queue_id as i32,
        records: first..first + 1,
        text: 0..0,
        // The consumer commits its offset when it is told that the message is kept, and the journal that holds the commit is synced apart
        // from the log: told earlier, the commit could survive a loss of power and the retry not.
        stage,
        claim: None,
        part: None,
    });
    sends.touch(lane);
    let group = Arc::clone(group);
    sends.count(match fate {
        Fate::Retry(_) => Counted::Back { group, topic },
        Fate::Dead => Counted::Dead { group, topic },
    });
    Ok(())
}

/// The message's own properties, and where it comes from.
fn write_properties(out: &mut Vec<u8>, view: &RecordView<'_>, fate: Fate, level: i32, real: Real<'_>) {
    let is_dead = fate == Fate::Dead;
    facts::copy_except(out, &view.properties(), |key| {
        matches!(key, name::DELAY | name::WAIT | name::REAL_TOPIC | name::REAL_QID)
            // The delay of the retry wins over the time that the message once waited for.
            || !is_dead && matches!(key, name::TIMER_DELAY_SEC | name::TIMER_DELAY_MS | name::TIMER_DELIVER_MS)
            || is_dead && matches!(key, name::DLQ_ORIGIN_TOPIC | name::DLQ_ORIGIN_MESSAGE_ID)
    });
    let origin_topic = view.property(name::RETRY_TOPIC).unwrap_or(view.topic());
    if view.property(name::RETRY_TOPIC).is_none() {
        facts::put(out, name::RETRY_TOPIC, origin_topic);
    }
    let mut own_id = String::new();
    offset_message_id(&mut own_id, view.store_host(), view.log_offset());
    let origin_id = view.property(name::ORIGIN_MESSAGE_ID).unwrap_or(&own_id);
    if view.property(name::ORIGIN_MESSAGE_ID).is_none() {
        facts::put(out, name::ORIGIN_MESSAGE_ID, origin_id);
    }
    // Apache writes this into what was sent back, and consumers see it. Our answer waits for the flush all the same.
    facts::put(out, name::WAIT, "false");
    if is_dead {
        facts::put(out, name::DLQ_ORIGIN_TOPIC, origin_topic);
        facts::put(out, name::DLQ_ORIGIN_MESSAGE_ID, origin_id);
        facts::put(out, name::DELAY, "0");
    } else {
        facts::put(out, name::DELAY, &level.to_string());
        facts::put_real(out, real);
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
