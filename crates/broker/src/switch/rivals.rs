//! A master that was deposed while it was away, or cut off: it looks for a master of its set with a later epoch, fences itself, and goes on as
//! a slave.
//!
//! It looks before it serves, and about once a second. Name servers say who is in the set; each broker of ours there is asked how it stands, and those
//! that were there before, since two masters take each other's place at the name servers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use config::BrokerRole;
use protocol::body::{BrokerData, MASTER_ID, MemberState};
use replica::asking;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::ask::member;
use crate::broker::Broker;
use crate::client::register::told_address;
use crate::master;
use crate::state::role;
use crate::state::switch::Kept;
use crate::tasks::Stop;

/// Pause between two looks.
const EVERY: Duration = Duration::from_secs(1);
/// For all of a look at a start, which goes on without an answer then.
const AT_START: Duration = Duration::from_secs(3);
/// Epochs by which another broker may be ahead: a number beyond it is none that a set comes to, and nobody could have a later one.
const AHEAD_MAX: u64 = 100_000_000;
/// For a question.
const PATIENCE: Duration = Duration::from_secs(1);

/// Another broker is the master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rival {
    pub(crate) address: String,
    pub(crate) epoch: u64,
    /// An id that is free for a slave.
    free_id: i64,
}

/// Looks until there is one, or it is told to stop.
pub(crate) async fn watch(broker: Arc<Broker>, mut stop: Stop) {
    while !stop.is_asked() && !broker.registry.servers.is_empty() {
        let look = async {
            tokio::time::sleep(EVERY).await;
            look(&broker).await
        };
        let rival = tokio::select! {
            biased;
            () = stop.asked() => return,
            rival = look => rival,
        };
        let Some(rival) = rival.filter(|_| !broker.switch.is_fenced()) else { continue };
        broker.switch.fence(&broker.store);
        give_way(&broker, &rival).await;
        broker.switch.begin_anew();
        return stop.asked().await;
    }
}

/// The same once, before anybody is served. What the next start needs is on the device then.
pub(crate) async fn at_start(broker: &Arc<Broker>) -> Option<Rival> {
    if broker.standing.is_slave() || broker.registry.servers.is_empty() {
        return None;
    }
    let rival = timeout(AT_START, look(broker)).await.ok().flatten()?;
    give_way(broker, &rival).await;
    Some(rival)
}

/// Lets the next life be a slave.
async fn give_way(broker: &Arc<Broker>, rival: &Rival) {
    let Rival { address, epoch, free_id } = rival;
    tracing::error!(
        master = address,
        epoch,
        own_epoch = broker.switch.kept().epoch,
        id = free_id,
        "another broker of this set is master with a later epoch: this one takes no messages any more, and goes on as its slave; messages that only \
         this one has are cut off and kept in cut/"
    );
    let next = Kept { epoch: *epoch, ..Kept::default() };
    let position = broker.switch.next_is(role::text(BrokerRole::Slave), *free_id, next);
    // Without it the next start finds the same.
    if let Err(error) = broker.switch.is_on_device(position).await {
        tracing::error!(%error, "that this broker is a slave is not on the device yet");
    }
}

/// The master of this set with the latest epoch, if that is later than this broker's.
async fn look(broker: &Arc<Broker>) -> Option<Rival> {
    let own = told_address(&broker.settings.load().broker_ip1, broker.advertised);
    let mut listed: Vec<(i64, String)> = Vec::new();
    for server in broker.registry.addresses() {
        // What one does not say, another may.
        if let Ok(Ok(Some(brokers))) = timeout(PATIENCE, master::brokers(broker, server)).await {
            listed.extend(brokers.into_iter().flat_map(|BrokerData { broker_addrs, .. }| broker_addrs));
        }
    }
    let others = listed.iter().map(|(_, address)| address.clone()).filter(|address| *address != own);
    let mut asked = JoinSet::new();
    for (address, is_ours) in broker.switch.see(others) {
        if address == own {
            continue;
        }
        let broker = Arc::clone(broker);
        asked.spawn(async move {
            let client = &broker.registry.client;
            // Others do not know the request.
            let is_ours = is_ours
                || timeout(PATIENCE, asking::about(client, &address))
                    .await
                    .is_ok_and(|told| told.is_ok_and(|told| told.1));
            let state = if is_ours { member(client, &address, PATIENCE).await.ok() } else { None };
            broker.switch.is_ours(&address, state.is_some());
            state.map(|state| (address, state))
        });
    }
    let mut rival: Option<(String, MemberState)> = None;
    let (identity, epoch) = (broker.identity(), broker.switch.kept().epoch);
    while let Some(told) = asked.join_next().await {
        let Ok(Some((address, state))) = told else { continue };
        let is_of_set = state.cluster_name == identity.cluster_name && state.broker_name == identity.broker_name;
        let is_later = u64::try_from(state.epoch).is_ok_and(|theirs| theirs > epoch && theirs - epoch <= AHEAD_MAX);
        let is_master = state.broker_role != "SLAVE" && !state.is_fenced;
        if is_of_set && is_later && is_master && rival.as_ref().is_none_or(|(_, before)| before.epoch < state.epoch) {
            rival = Some((address, state));
        }
    }
    let (address, state) = rival?;
    let taken: BTreeSet<i64> =
        listed.iter().filter(|(_, known)| *known != own && *known != address).map(|(id, _)| *id).collect();
    let is_free = |id: &i64| *id > MASTER_ID && !taken.contains(id);
    let free_id = state.former_id.filter(is_free).or_else(|| (1..=i64::MAX).find(is_free)).unwrap_or(1);
    Some(Rival { address, epoch: u64::try_from(state.epoch).unwrap_or(0), free_id })
}
