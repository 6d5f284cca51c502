//! Carries out what is ordered: hands the master over, takes it over, and asks a successor until it has.

use std::sync::Arc;
use std::time::Duration;

use config::BrokerRole;
use protocol::LogOffset;
use protocol::body::MemberState;
use replica::epochs;
use tokio::time::{Instant, sleep, timeout};

use super::ask::{self, MemberError, member};
use crate::broker::Broker;
use crate::client::register::told_address;
use crate::slave;
use crate::state::role;
use crate::state::switch::{Handed, Kept, Order, TRY_AGAIN};
use crate::tasks::Stop;

/// A slave that is further behind is not handed anything: it would not catch up while sends wait.
const BEHIND_BYTES_MAX: i64 = 64 << 20;
/// How long sends wait for the successor to have all of the log.
const HELD_MAX: Duration = Duration::from_secs(1);
/// Pause between two looks at how far it is.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// For a question to another broker.
const PATIENCE: Duration = Duration::from_millis(900);
/// How long the old master stays for the successor, which gets tables from it: offsets, topics, groups.
const STAYS: Duration = Duration::from_secs(2);
/// How long it stays to pass on what its clients ask of a master (`to_master`), until the successor
/// is that and clients find it.
const PASSES_ON: Duration = Duration::from_secs(5);
/// How long it waits for the last of that before it begins anew.
const LAST_PASSED_ON: Duration = Duration::from_secs(1);
/// How long a successor takes for the last tables.
const LAST_TABLES: Duration = Duration::from_secs(1);

/// Until it is told to stop.
pub(crate) async fn run(broker: Arc<Broker>, mut stop: Stop) {
    let mut has_complained = false;
    while !stop.is_asked() {
        let handed = broker.switch.kept().handed;
        let work = async {
            tokio::select! {
                order = broker.switch.ordered() => carry_out(&broker, order).await,
                () = insist(&broker, handed.as_ref(), &mut has_complained) => {}
            }
        };
        tokio::select! {
            biased;
            () = stop.asked() => return,
            () = work => {}
        }
    }
}

async fn carry_out(broker: &Arc<Broker>, order: Order) {
    match order {
        Order::HandOver { address, broker_id } => {
            let said = match hand_over(broker, &address, broker_id).await {
                Ok(epoch) => format!("handed over to {address}, epoch {epoch}"),
                Err(why) => {
                    tracing::warn!(to = address, why, "the master is not handed over: this broker goes on");
                    format!("not handed over to {address}: {why}")
                }
            };
            broker.switch.done(said);
        }
        Order::Begin { is_there } => begin(broker, is_there).await,
    }
}

/// Lets another broker be the master. Says why it does not; then this one goes on.
async fn hand_over(broker: &Arc<Broker>, address: &str, broker_id: i64) -> Result<u64, String> {
    let client = &broker.registry.client;
    let state = member(client, address, PATIENCE).await.map_err(|error| format!("{address}: {error}"))?;
    check(broker, &state, broker_id)?;
    let known = broker.switch.kept().epoch.max(u64::try_from(state.epoch).unwrap_or(0));
    let epoch = epochs::next(known, broker_id);

    let held = Held { broker, goes_on: true };
    let end = broker.switch.hold(&broker.store);
    has_all(broker, address, end).await?;
    if broker.switch.is_fenced() {
        return Err("another broker has become the master".to_owned());
    }
    let broker_role = role::text(broker.settings.load().broker_role).to_owned();
    let handed = Handed { address: address.to_owned(), epoch, log_end: end.0, broker_role };
    let handed_at = Some(broker.clock.now().0);
    let next = Kept { epoch, handed: Some(handed.clone()), handed_at, ..Kept::default() };
    // From here on there is no way back: the row may be on the device at any moment. It is put first: a fenced broker answers pulls if the row
    // says that it has been the master until now.
    let position = broker.switch.next_is(role::text(BrokerRole::Slave), broker_id, next);
    held.fence();
    tracing::info!(to = address, epoch, %end, "this broker hands the master over, and takes no messages any more");
    // Ends when the device has it: the successor must not hear of it before.
    while let Err(error) = broker.switch.is_on_device(position).await {
        tracing::error!(%error, "the switch of masters waits for the device");
    }
    let passes_on = broker.settings.load().forward_to_master;
    let until = Instant::now() + if passes_on { PASSES_ON } else { STAYS };
    let mut is_told = false;
    while Instant::now() < until {
        if !is_told {
            match ask::take_over(client, &handed, PATIENCE).await {
                Ok(()) => is_told = true,
                Err(error) => {
                    tracing::debug!(to = address, %error, "the successor does not take over, asking again");
                    sleep(LOOK_AGAIN).await;
                }
            }
        } else if is_awaited(member(client, address, PATIENCE).await, epoch, passes_on) {
            sleep(LOOK_AGAIN).await;
        } else {
            // Nothing is to be had from here any more.
            break;
        }
    }
    let until = Instant::now() + LAST_PASSED_ON;
    while broker.to_master.waiting() > 0 && Instant::now() < until {
        sleep(LOOK_AGAIN).await;
    }
    broker.switch.begin_anew();
    Ok(epoch)
}

/// While the log is held. Dropped before the broker is fenced, also by a stop, it lets appends be made again.
struct Held<'a> {
    broker: &'a Broker,
    goes_on: bool,
}

impl Held<'_> {
    fn fence(mut self) {
        self.goes_on = false;
        self.broker.switch.fence(&self.broker.store);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.goes_on {
            self.broker.switch.release(&self.broker.store);
        }
    }
}

/// Whether the successor, as it has answered, is not there yet: it gets tables from here; or, if
/// clients are served on meanwhile, it begins anew, or name servers do not know it as the master.
fn is_awaited(state: Result<MemberState, MemberError>, epoch: u64, passes_on: bool) -> bool {
    match state {
        Ok(state) => {
            let is_of_epoch = u64::try_from(state.epoch).is_ok_and(|known| known == epoch);
            is_holder(&state, epoch) || passes_on && is_of_epoch && (state.is_fenced || !state.is_registered)
        }
        Err(_) => passes_on,
    }
}

/// Whether a broker is still what it was when it was told to be the master of this epoch.
fn is_holder(state: &MemberState, epoch: u64) -> bool {
    state.broker_role == "SLAVE" && u64::try_from(state.epoch).is_ok_and(|known| known == epoch)
}

/// Whether the master may be handed over to this broker.
fn check(broker: &Broker, state: &MemberState, broker_id: i64) -> Result<(), String> {
    let identity = broker.identity();
    let MemberState { broker_addr: address, .. } = state;
    if (&state.cluster_name, &state.broker_name) != (&identity.cluster_name, &identity.broker_name) {
        return Err(format!("{address} is broker {} of cluster {}", state.broker_name, state.cluster_name));
    }
    if state.broker_role != "SLAVE" {
        return Err(format!("{address} is no slave"));
    }
    if state.broker_id != broker_id {
        return Err(format!("{address} has id {}, not {broker_id}", state.broker_id));
    }
    if !state.is_following {
        return Err(format!("{address} does not get the log from this master at the moment"));
    }
    if state.awaits_journal {
        return Err(format!("{address} has not all of this master's journal yet (masterJournalFollowed there)"));
    }
    let own = told_address(&broker.settings.load().broker_ip1, broker.advertised);
    if let Some(other) = state.master_addr.as_ref().filter(|master| **master != own) {
        return Err(format!("{address} follows {other}"));
    }
    let behind = i64::try_from(broker.store.end().0).unwrap_or(i64::MAX).saturating_sub(state.log_end);
    if behind > BEHIND_BYTES_MAX {
        return Err(format!("{address} is {behind} bytes behind, the limit is {BEHIND_BYTES_MAX}"));
    }
    Ok(())
}

/// Waits until the successor has all of the log, which is held.
async fn has_all(broker: &Arc<Broker>, address: &str, end: LogOffset) -> Result<(), String> {
    let until = Instant::now() + HELD_MAX;
    let mut last = None;
    while Instant::now() < until {
        match member(&broker.registry.client, address, PATIENCE).await {
            // What gathers in a pool is not in the log yet.
            Ok(state) if u64::try_from(state.log_end) == Ok(end.0) && broker.store.end() == end => return Ok(()),
            Ok(state) => last = Some(format!("{address} has the log up to {}, it ends at {end}", state.log_end)),
            Err(error) => last = Some(format!("{address}: {error}")),
        }
        sleep(LOOK_AGAIN).await;
    }
    let last = last.unwrap_or_else(|| format!("{address} does not answer"));
    Err(format!("{last}, after {} ms in which sends were held", HELD_MAX.as_millis()))
}

/// Takes over: with what the old master still has, if it is there.
async fn begin(broker: &Arc<Broker>, is_there: bool) {
    // The device has the row when the request is answered; a crash before that finds the old role, and the request comes again.
    let position = broker.store.journal().position();
    while let Err(error) = broker.switch.is_on_device(position).await {
        tracing::error!(%error, "the switch of masters waits for the device");
    }
    let last = async {
        has_journal(broker).await;
        slave::take_last(broker).await;
    };
    if is_there && timeout(LAST_TABLES, last).await.is_err() {
        tracing::warn!("the old master does not tell its last offsets in time: some messages may come again");
    }
    if broker.standing.is_slave() && !has_exact_tables(broker, is_there) {
        tracing::warn!(
            "the journal of the old master is not here up to its end: topics, offsets, delays and leases are those that came last, and messages may come again"
        );
    }
    // Held to the end: this broker is not stopped between the rows of a piece.
    let _taking = timeout(LAST_TABLES, broker.master_journal.taking.lock()).await;
    broker.switch.fence(&broker.store);
    broker.switch.done("takes over".to_owned());
    broker.switch.begin_anew();
    // Until it is stopped.
    std::future::pending::<()>().await;
}

/// Whether the tables here are those of the old master's journal, up to where that was heard of.
fn has_exact_tables(broker: &Broker, is_there: bool) -> bool {
    let journal = &broker.master_journal;
    // A master that is gone is not followed any more.
    let is_followed = journal.is_followed() || !is_there;
    is_followed && journal.gathered().is_none() && journal.place().is_some()
}

/// Waits until all of the old master's journal is here, if it is followed.
async fn has_journal(broker: &Arc<Broker>) {
    let (Some(address), journal) = (broker.following.master(), &broker.master_journal) else { return };
    let mut end = None;
    // Ends with the journal, or the caller's patience.
    while journal.is_followed() {
        if end.is_none() {
            let state = member(&broker.registry.client, &address, PATIENCE).await.ok();
            end = state.and_then(|state| u64::try_from(state.journal_end).ok());
        }
        if end.is_some_and(|end| journal.place().is_some_and(|place| place.position >= end)) {
            return;
        }
        sleep(LOOK_AGAIN).await;
    }
}

/// Asks a successor, to whom this broker has handed the master over, until it has taken over.
async fn insist(broker: &Arc<Broker>, handed: Option<&Handed>, has_complained: &mut bool) {
    let Some(handed) = handed else { return std::future::pending().await };
    let client = &broker.registry.client;
    let is_over = match member(client, &handed.address, PATIENCE).await {
        Ok(state)
            if state.broker_role != "SLAVE" && u64::try_from(state.epoch).is_ok_and(|epoch| epoch >= handed.epoch) =>
        {
            true
        }
        // Another switch came in between.
        Ok(state) if u64::try_from(state.epoch).is_ok_and(|epoch| epoch > handed.epoch) => true,
        Ok(_) | Err(_) => false,
    };
    if is_over {
        broker.switch.put(|kept| kept.handed = None);
        tracing::info!(to = handed.address, epoch = handed.epoch, "the successor has taken over");
        *has_complained = false;
        return;
    }
    match ask::take_over(client, handed, PATIENCE).await {
        Ok(()) => {}
        Err(error) if !std::mem::replace(has_complained, true) => tracing::error!(
            to = handed.address,
            epoch = handed.epoch,
            %error,
            "the successor of this broker as master does not take over, asking again: until then this set has no master"
        ),
        Err(_) => {}
    }
    sleep(TRY_AGAIN).await;
}
