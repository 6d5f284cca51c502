//! 30003 to 30005: how a broker stands, and what it is to become.

use config::BrokerRole;
use net::{Outgoing, Request};
use protocol::body::{EpochStart, MASTER_ID, MemberState};
use protocol::code::ResponseCode;
use protocol::request::{HandOverMaster, TakeOverMaster};
use replica::epochs;

use crate::answer::{reply_json, reply_ok};
use crate::broker::Broker;
use crate::client::register::told_address;
use crate::refusal::Refusal;
use crate::session::Session;
use crate::state::role;
use crate::state::switch::{Kept, MASTER_ROLES, Order};

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn refused(remark: impl Into<String>) -> Refusal {
    Refusal::new(ResponseCode::SystemError, remark)
}

/// How this broker stands.
fn state_of(broker: &Broker) -> MemberState {
    let (settings, identity, kept) = (broker.settings.load(), broker.identity(), broker.switch.kept());
    let end = broker.store.end();
    let (following, is_slave) = (&broker.following, broker.standing.is_slave());
    let journal = &broker.master_journal;
    let epochs = broker.switch.epochs();
    let starts = epochs.list().iter().map(|one| EpochStart { epoch: signed(one.number), start: signed(one.start.0) });
    MemberState {
        cluster_name: identity.cluster_name,
        broker_name: identity.broker_name,
        broker_id: identity.broker_id,
        broker_addr: told_address(&settings.broker_ip1, broker.advertised),
        broker_role: role::text(settings.broker_role).to_owned(),
        is_fenced: broker.switch.is_fenced(),
        is_registered: broker.has_registered(),
        epoch: signed(kept.epoch),
        epochs: starts.collect(),
        log_min: signed(broker.store.min_offset().0),
        log_end: signed(end.0),
        journal_end: signed(broker.store.journal().position()),
        master_addr: following.master().filter(|_| is_slave).map(|master| master.to_string()),
        is_following: is_slave && following.is_connected() && following.agrees(),
        awaits_journal: is_slave && following.status.is_own() && !journal.is_followed() && journal.failure().is_none(),
        behind_bytes: following.behind_bytes(end).filter(|_| is_slave).map(signed),
        former_id: kept.former_id.filter(|_| !is_slave),
        handed_to: kept.handed.map(|handed| handed.address),
        last_switch: broker.switch.said(),
    }
}

/// 30003.
pub(crate) fn state(broker: &Broker, request: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    reply_json(request, out, &state_of(broker));
    Ok(())
}

/// 30004: begins a planned switch; 30003 says how it goes. The same order once more changes nothing.
pub(crate) fn hand_over(broker: &Broker, request: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let HandOverMaster { broker_addr, broker_id } = HandOverMaster::decode(&request.header.fields)?;
    if !broker.standing.is_master() {
        return Err(refused("this broker is no master, so it has nothing to hand over"));
    }
    if broker.registry.servers.is_empty() {
        let why = "namesrvAddr is empty: neither clients nor this broker would find the new master";
        return Err(refused(why));
    }
    if broker_id <= MASTER_ID {
        return Err(refused(format!("brokerId: {broker_id} is the id of no slave")));
    }
    if !broker.switch.order(Order::HandOver { address: broker_addr.to_owned(), broker_id }) {
        return Err(refused("another switch of this broker is under way"));
    }
    reply_ok(request, out);
    Ok(())
}

/// 30005: this broker is to be the master of an epoch. Success means that the device has it, and that nothing but another switch changes it.
pub(crate) fn take_over(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let TakeOverMaster { epoch, log_end, broker_role } = TakeOverMaster::decode(&request.header.fields)?;
    let kept = broker.switch.kept();
    let number = u64::try_from(epoch).unwrap_or(0);
    if kept.is_holder && kept.epoch == number {
        // It was told before. What was written then may not be on the device yet.
        session.on_device_after(broker.store.journal().position());
        reply_ok(request, out);
        return Ok(());
    }
    if broker.switch.is_fenced() || kept.is_holder && broker.standing.is_slave() {
        return Err(refused(format!("another switch of this broker is under way, to epoch {}", kept.epoch)));
    }
    check(broker, &kept, number, log_end)?;
    if log_end.is_some_and(|needed| signed(broker.store.flushed().get()) < needed) {
        // The role must not be on the device before what the old master may have acknowledged as there.
        broker.store.want_flush();
        return Err(refused("the device here does not have all of the log yet"));
    }
    let id = broker.standing.broker_id;
    let role = broker_role.or(kept.master_role.as_deref()).filter(|role| MASTER_ROLES.contains(role));
    let role = role.unwrap_or(match broker.settings.load().broker_role {
        BrokerRole::Slave => role::text(BrokerRole::AsyncMaster),
        master @ (BrokerRole::AsyncMaster | BrokerRole::SyncMaster) => role::text(master),
    });
    if !broker.switch.order(Order::Begin { is_there: log_end.is_some() }) {
        return Err(refused("another switch of this broker is under way"));
    }
    let former_id = if broker.standing.is_slave() { Some(id) } else { kept.former_id };
    // Until it begins anew it is a slave, which readers may still take for the master.
    let handed_at = kept.handed_at;
    let next = Kept { epoch: number, is_holder: true, former_id, handed_at, ..Kept::default() };
    let position = broker.switch.next_is(role, MASTER_ID, next);
    tracing::info!(epoch, peer = %session.connection.peer(), "this broker is to be the master");
    session.on_device_after(position);
    reply_ok(request, out);
    Ok(())
}

/// Whether this broker may be the master of the epoch.
fn check(broker: &Broker, kept: &Kept, epoch: u64, log_end: Option<i64>) -> Result<(), Refusal> {
    let id = broker.standing.broker_id;
    if !epochs::is_for(epoch, id) {
        let next = epochs::next(kept.epoch, id);
        return Err(refused(format!("epoch {epoch} is not for the broker with id {id}: its next one is {next}")));
    }
    if epoch <= kept.epoch {
        let next = epochs::next(kept.epoch, id);
        return Err(refused(format!(
            "epoch {epoch} is over: this broker knows epoch {}, its next one is {next}",
            kept.epoch
        )));
    }
    let end = broker.store.end();
    match log_end {
        Some(_) if !broker.standing.is_slave() => Err(refused("this broker is a master, of another epoch")),
        Some(needed) if signed(end.0) < needed => {
            Err(refused(format!("the log here ends at {end}, that of the master at {needed}: it is not whole here")))
        }
        // It may go on there with messages that were never here.
        Some(needed) if signed(end.0) > needed => {
            Err(refused(format!("the log here ends at {end}, behind that of the master, which ends at {needed}")))
        }
        None if broker.standing.is_master() && kept.is_holder => Err(refused("this broker is the master already")),
        None if broker.standing.is_slave() && broker.following.is_connected() => {
            let master = broker.following.master();
            let master = master.as_deref().unwrap_or("the master");
            Err(refused(format!("{master} still gives its log to this broker: it is not down")))
        }
        Some(_) | None => Ok(()),
    }
}
