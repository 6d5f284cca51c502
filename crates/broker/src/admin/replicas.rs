//! Requests of operators, other replicas and controllers about replication: 905 to 908, 1007, 1008.

use std::net::SocketAddr;

use net::{Outgoing, Request};
use protocol::LogOffset;
use protocol::body::{HaClientRuntimeInfo, HaRuntimeInfo, SyncStateSet};
use protocol::code::ResponseCode;
use protocol::request::{
    ExchangeHaInfo, ExchangeHaInfoReply, FieldError, NotifyBrokerRoleChanged, NotifyMinBrokerIdChange,
    ResetMasterFlushOffset,
};
use replica::asking::{self, HAS_JOURNAL};
use replica::wire::own;

use crate::answer::{body, reply_json, reply_ok};
use crate::broker::Broker;
use crate::refusal::Refusal;

/// 907: how replication goes. A slave tells of its master, a master of its slaves.
pub(crate) fn status(broker: &Broker, request: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let end = broker.store.end();
    if broker.standing.is_slave() {
        let info = HaRuntimeInfo {
            ha_client_runtime_info: Some(broker.following.status.client_info(&broker.clock, end)),
            ..HaRuntimeInfo::default()
        };
        reply_json(request, out, &info);
        return Ok(());
    }
    let gap_max = broker.settings.load().ha_max_gap_not_in_sync;
    let info = HaRuntimeInfo {
        // Apache sends the slave's part empty, where others leave it out.
        ha_client_runtime_info: Some(HaClientRuntimeInfo::default()),
        master: broker.standing.is_master(),
        ..broker.slaves.status(broker.clock.elapsed(), end, gap_max)
    };
    reply_json(request, out, &info);
    Ok(())
}

/// The part of 28 that is about the broker's role, of a slave about its master, and of a master about its slaves.
pub(crate) fn figures(broker: &Broker) -> Vec<(&'static str, String)> {
    if !broker.standing.is_slave() {
        let end = broker.store.end();
        let slaves = broker.slaves.list();
        let behind = slaves.iter().map(|slave| end.0.saturating_sub(slave.acknowledged.0)).max();
        let mut figures = vec![("brokerRole", "MASTER".to_owned()), ("slavesConnected", slaves.len().to_string())];
        // To slaves of ours.
        figures.push((HAS_JOURNAL, "1".to_owned()));
        figures.extend(behind.map(|bytes| ("slavesBehindBytesMax", bytes.to_string())));
        figures.extend(broker.log_port.as_ref().map(|_| (asking::STREAM, own::VERSION.to_string())));
        figures.extend(of_switches(broker));
        return figures;
    }
    let following = &broker.following;
    let mut figures =
        vec![("brokerRole", "SLAVE".to_owned()), ("masterConnected", following.is_connected().to_string())];
    figures.extend(following.master().map(|master| ("masterAddress", master.to_string())));
    let behind = following.behind_bytes(broker.store.end());
    figures.extend(behind.map(|bytes| ("masterBehindBytes", bytes.to_string())));
    figures.push(("offsetsForMaster", broker.owed.len().to_string()));
    let journal = &broker.master_journal;
    figures.push(("masterJournalFollowed", journal.is_followed().to_string()));
    figures.extend(journal.gathered().map(|rows| ("masterJournalGathered", rows.to_string())));
    figures.extend(journal.place().map(|place| ("masterJournalPosition", place.position.to_string())));
    figures.extend(journal.behind().map(|changes| ("masterJournalBehind", changes.to_string())));
    figures.extend(journal.failure().map(|why| ("masterJournalFailure", why)));
    // Which one it was is nothing to be told when it does not come.
    let stream = if following.status.is_own() { "gantry" } else { "plain" };
    figures.extend(following.is_connected().then(|| ("masterStream", stream.to_owned())));
    // Why an earlier connection ended is nothing to be looked after once the log comes.
    let failure = following.status.failure().filter(|_| !following.is_connected());
    figures.extend(failure.map(|why| ("masterFailure", why)));
    figures.extend(following.status.why_blocked().map(|why| ("copyBlocked", why)));
    figures.extend(of_switches(broker));
    let names =
        ["requestsPassedToMaster", "requestsHeldForMaster", "requestsMasterNotAsked", "requestsMasterNotAnswered"];
    let counts = broker.to_master.counts.all().map(|(_, count)| count);
    figures.extend(names.into_iter().zip(counts).map(|(name, count)| (name, count.to_string())));
    figures
}

/// Nothing of a set whose master has never changed.
fn of_switches(broker: &Broker) -> impl Iterator<Item = (&'static str, String)> {
    let kept = broker.switch.kept();
    let epoch = Some(kept.epoch).filter(|epoch| *epoch > 0).map(|epoch| ("masterEpoch", epoch.to_string()));
    epoch.into_iter().chain(kept.handed.map(|handed| ("masterHandedTo", handed.address)))
}

/// 908: how far the master has flushed, said to a slave. A master has nothing to do with it, and says yes, as in Apache.
pub(crate) fn reset_flushed(request: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    ResetMasterFlushOffset::decode(&request.header.fields)?;
    reply_ok(request, out);
    Ok(())
}

/// 905: a name server says who has the smallest id of this name now. Only who may act for a master that is gone has to know.
pub(crate) fn min_broker_id_changed(request: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let change = NotifyMinBrokerIdChange::decode(&request.header.fields)?;
    change.min_broker_id.ok_or(FieldError::Missing { name: "minBrokerId" })?;
    reply_ok(request, out);
    Ok(())
}

/// 906: a slave that starts asks its master where its log is to be had, and how far it had flushed when it started. Who is told where
/// another master is, is meant as a slave; a master says yes and changes nothing, as in Apache.
pub(crate) fn exchange(
    advertised: SocketAddr,
    ha_address: &str,
    log_end_at_start: LogOffset,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let told = ExchangeHaInfo::decode(&request.header.fields)?;
    if told.master_ha_address.is_some() {
        reply_ok(request, out);
        return Ok(());
    }
    let address = advertised.to_string();
    let fields = ExchangeHaInfoReply {
        master_ha_address: Some(ha_address),
        master_flush_offset: i64::try_from(log_end_at_start.0).ok(),
        master_address: Some(&address),
    };
    out.reply(request.reply_to(), ResponseCode::Success, None, &fields, &[]);
    Ok(())
}

/// 1007: the epochs of the log, which a controller hands out. Apache's sentence, trailing blank included.
pub(crate) fn epochs() -> Refusal {
    Refusal::new(ResponseCode::SystemError, "this request only for controllerMode ")
}

/// 1008: a controller says who is master. Without controller mode nobody may; Apache answers with success and does nothing, and so do we,
/// but say it.
pub(crate) fn role_changed(request: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    NotifyBrokerRoleChanged::decode(&request.header.fields)?;
    if !request.body.is_empty() {
        body::<SyncStateSet>(request)?;
    }
    let remark =
        "without effect: this broker is not in controller mode (enableControllerMode is false), its role stays";
    out.reply(request.reply_to(), ResponseCode::Success, Some(remark), &(), &[]);
    Ok(())
}
