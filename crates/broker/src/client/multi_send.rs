//! Sends that travel together: 30001, a request of our own, for messages and batches of several topics and queues.
//!
//! A part goes the way of a single send, through the same checks, into the same batch of records, and is answered for itself. The answers
//! gather in the request's [`MultiSend`], and the task that adds the last one writes the reply: with SYNC_FLUSH the one that waits
//! for the device.
//!
//! Only a client that asked sends this, on the connection on which it was told that it may: its heartbeat asks. What a connection was told
//! holds as long as it lives, also where the setting changes: what is on its way is taken, and a later heartbeat is not told so any more.

use config::BrokerSettings;
use net::{Outgoing, Request};
use protocol::code::ResponseCode;
use protocol::request::{AskTogether, OfferTogether, SendTogether};
use protocol::together;

use crate::broker::Broker;
use crate::client::send;
use crate::client::send::order::SendOrder;
use crate::parts::MultiSend;
use crate::refusal::Refusal;
use crate::session::Session;
use crate::static_topic::is_physical;
use crate::write::append;

/// What a heartbeat is told, if it asks.
pub(crate) fn offer(
    session: &mut Session,
    settings: &BrokerSettings,
    request: &Request<'_>,
) -> Result<Option<OfferTogether>, Refusal> {
    if !AskTogether::decode(&request.header.fields)?.send_together {
        return Ok(None);
    }
    let parts_max = settings.send_together_parts_max;
    // Who was told that he may goes on until he has read that he may not.
    session.parts_max = session.parts_max.max(parts_max);
    Ok(i32::try_from(parts_max)
        .ok()
        .filter(|max| *max > 0)
        .map(|send_together_parts_max| OfferTogether { send_together_parts_max }))
}

/// Gathers all parts of a request, and answers those that are refused.
pub(crate) async fn gather(broker: &Broker, session: &mut Session, request: &Request<'_>, out: &mut Outgoing) {
    let (common, count) = match admit(session, request) {
        Ok(admitted) => admitted,
        Err(refusal) => return out.reply(request.reply_to(), refusal.code, Some(&refusal.remark), &(), &[]),
    };
    broker.limits.together(count);
    let reply_to = request.reply_to();
    let together = (!reply_to.is_oneway).then(|| {
        let mut body = Vec::new();
        together::put_host(&mut body, broker.advertised);
        MultiSend::new(reply_to, body, count)
    });
    let mut durable_after = 0;
    for (number, part) in together::parts(request.body).enumerate() {
        if let Some(of) = &together {
            session.sends.receipts.begin_part(of.part(number));
        }
        let gathered = part
            .map_err(|error| Refusal::illegal(error.to_string()))
            .and_then(|part| send::gather(broker, session, order_of(request, &common, &part), reply_to));
        let unanswered = session.sends.receipts.take_part();
        if let Err(refusal) = gathered
            && let Some(part) = unanswered
        {
            part.is_refused(&refusal, &broker.settings.load(), out);
        }
        if session.sends.is_full() {
            // What the parts so far wait for, their common answer waits for.
            durable_after = session.waits_for().max(durable_after);
            append::append(broker, session, out).await;
            session.durable_after(durable_after);
        }
    }
}

/// May this be sent here, and is it whole? How many parts there are is said twice, and both must agree.
fn admit<'a>(session: &Session, request: &Request<'a>) -> Result<(SendTogether<'a>, usize), Refusal> {
    if session.parts_max == 0 {
        let mut refusal = Refusal::not_registered(request.header.code);
        refusal.remark.push_str(
            ": it is not RocketMQ's, and the heartbeats of this connection were not told that it may be sent \
             (sendTogetherPartsMax)",
        );
        return Err(refusal);
    }
    let invalid = |remark: String| Refusal::new(ResponseCode::InvalidParameter, remark);
    let common = SendTogether::decode(&request.header.fields)?;
    let stated = usize::try_from(common.parts).ok().filter(|parts| (1..=session.parts_max).contains(parts));
    let Some(stated) = stated else {
        let limit = session.parts_max;
        return Err(invalid(format!("parts is {}; 1 to {limit} are allowed (sendTogetherPartsMax)", common.parts)));
    };
    let count = together::count(request.body).map_err(|error| invalid(error.to_string()))?;
    if count != stated {
        return Err(invalid(format!("parts is {stated}, and the body holds {count}")));
    }
    Ok((common, count))
}

/// One part, as the single send that it stands for.
fn order_of<'a>(request: &Request<'a>, common: &SendTogether<'a>, part: &together::Part<'a>) -> SendOrder<'a> {
    SendOrder {
        group: common.producer_group,
        topic: part.topic,
        default_topic: common.default_topic,
        default_topic_queue_nums: common.default_topic_queue_nums,
        queue_id: part.queue_id,
        is_physical: is_physical(request),
        sys_flag: part.sys_flag,
        born_ms: common.born_timestamp,
        flag: part.flag,
        properties: part.properties,
        reconsume_times: Some(0),
        retry_max: None,
        unit_mode: false,
        is_batch: part.is_batch,
        body: request.body.get(part.body.clone()).unwrap_or_default(),
    }
}
