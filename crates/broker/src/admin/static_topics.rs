//! 513: an operator's tool gives a static topic its mapping on this broker.

use std::sync::Arc;
use std::time::Duration;

use net::{Outgoing, Request};
use protocol::body::TopicQueueMappingDetail;
use protocol::code::ResponseCode;
use protocol::request::{CreateTopic, ExpectedEpoch};

use crate::admin::topics;
use crate::answer::{body, reply_ok};
use crate::broker::Broker;
use crate::inbox::Errand;
use crate::refusal::{Refusal, SOON};
use crate::session::Session;
use crate::state::topics::Topic;
use crate::state::topics::mapped::Remapped;
use crate::static_topic::accept;
use crate::waiting::hold::Hold;

/// How long the answer waits for sends that began under mappings before. Tools wait for five seconds.
const SENDS_TIMEOUT: Duration = Duration::from_secs(3);

/// 513: the topic and its mapping, both or neither.
///
/// When a queue leaves, the tool asks next where it ended; so the answer leaves when all that was accepted for it is stored.
pub(crate) fn create(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let wanted = CreateTopic::decode(&request.header.fields)?;
    let ExpectedEpoch { expected_epoch } = ExpectedEpoch::decode(&request.header.fields)?;
    let mut detail: TopicQueueMappingDetail = body(request)?;
    let config = topics::wanted_config(&wanted)?;
    if broker.topics.is_light(wanted.topic) {
        let remark = format!("topic {} is a light queue, which has no mapping", wanted.topic);
        return Err(Refusal::new(ResponseCode::InvalidParameter, remark));
    }
    let config = topics::checked(&broker.settings.load(), &broker.topics, &broker.store, config)?;
    let broker_name = broker.settings.load().broker_name.clone();
    let physical_queues = config.read_queue_nums.min(config.write_queue_nums);
    accept::check(&mut detail, &broker_name, wanted.topic, physical_queues)?;
    let (epoch, queues, is_forced) = (detail.epoch, detail.hosted_queues.len(), wanted.force);
    let Remapped { changed, held } = broker.topics.remap(config, |old| {
        accept::check_expected(old, &detail, expected_epoch)?;
        let detail = accept::succeed(old, detail, is_forced)?;
        // What is kept from before must fit to what is new.
        accept::check_places(&detail, physical_queues)?;
        Ok(detail)
    })?;
    tracing::info!(
        topic = wanted.topic,
        epoch,
        queues,
        is_forced,
        peer = %session.connection.peer(),
        "static topic created or changed by request"
    );
    wake(&broker.hold, &changed.topic);
    let position = changed.position;
    if held.is_empty() {
        topics::wait_for(session, &changed.topic, position);
        reply_ok(request, out);
        return Ok(());
    }
    let (inbox, reply_to) = (Arc::clone(&session.inbox), request.reply_to());
    let (debt, topic) = (inbox.owe(), Arc::clone(&changed.topic));
    tokio::spawn(async move {
        let all = async {
            for mut mapping in held {
                // Nothing is sent; it fails when the mapping is gone.
                while mapping.changed().await.is_ok() {}
            }
        };
        let is_settled = tokio::time::timeout(SENDS_TIMEOUT, all).await.is_ok();
        inbox.push(Errand::then(move |broker, session, out| {
            session.answering(broker, Some(reply_to), out, |session, out| {
                topics::wait_for(session, &topic, position);
                if is_settled {
                    return out.reply(reply_to, ResponseCode::Success, None, &(), &[]);
                }
                let what = format!(
                    "[GANTRY]broker busy, start flow control for a while: the mapping is changed, but messages that were accepted before are not stored within {} ms, \
                     as long as their senders wait; apply it again before asking where queues end",
                    SENDS_TIMEOUT.as_millis()
                );
                let refusal = Refusal::busy(what, SOON);
                out.reply(reply_to, refusal.code, Some(&refusal.remark), &(), &[]);
            });
        }));
        drop(debt);
    });
    Ok(())
}

/// Pulls that wait look again: their queue may have moved, or go on elsewhere.
fn wake(hold: &Hold, topic: &Topic) {
    let config = topic.config();
    let queues = u32::try_from(config.read_queue_nums.max(config.write_queue_nums)).unwrap_or(0);
    let lanes: Vec<_> = (0..queues).filter_map(|id| topic.opened_lane(id)).collect();
    hold.arrived(lanes.iter(), &mut Vec::new());
}
