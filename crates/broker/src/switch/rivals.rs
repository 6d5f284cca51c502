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

/// The ids and addresses of this set's brokers that name servers list. They are asked at once: of several that do not answer each would take the time of
/// a start that is left for the others.
async fn listed(broker: &Arc<Broker>) -> Vec<(i64, String)> {
    let mut asked = JoinSet::new();
    for server in broker.registry.addresses() {
        let (broker, server) = (Arc::clone(broker), server.to_owned());
        asked.spawn(async move { timeout(PATIENCE, master::brokers(&broker, &server)).await });
    }
    let mut listed = Vec::new();
    while let Some(told) = asked.join_next().await {
        // What one does not say, another may.
        if let Ok(Ok(Ok(Some(brokers)))) = told {
            listed.extend(brokers.into_iter().flat_map(|BrokerData { broker_addrs, .. }| broker_addrs));
        }
    }
    listed
}

/// The master of this set with the latest epoch, if that is later than this broker's.
async fn look(broker: &Arc<Broker>) -> Option<Rival> {
    let own = told_address(&broker.settings.load().broker_ip1, broker.advertised);
    let listed = listed(broker).await;
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

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use net::{Burst, Connection, Listener, ListenerOptions, Outgoing, Service};
    use parking_lot::Mutex;
    use protocol::body::{KvTable, TopicRoute};
    use protocol::code::{ResponseCode, request};
    use protocol::fastjson::{self, Dialect};

    use super::*;
    use crate::started;

    /// A name server and the only broker that it knows.
    #[derive(Default)]
    struct Played {
        set: Mutex<Option<BrokerData>>,
        state: Mutex<MemberState>,
    }

    impl Service for Played {
        type Session = ();
        type Work = ();

        fn open(&self, _: &Connection<()>) {}

        async fn serve(&self, _: &mut (), burst: &mut Burst<'_>, out: &mut Outgoing) {
            while let Some(asked) = burst.next() {
                let body = match asked.header.code {
                    request::GET_ROUTEINFO_BY_TOPIC => {
                        let broker_datas = self.set.lock().clone().into_iter().collect();
                        fastjson::to_vec(&TopicRoute { broker_datas, ..TopicRoute::default() }, Dialect::FastJson)
                    }
                    request::GET_BROKER_RUNTIME_INFO => {
                        let told = ["commitLogMinOffset", "commitLogMaxOffset", "gantryVersion"];
                        let table = told.map(|key| (key.to_owned(), "0".to_owned())).into();
                        fastjson::to_vec(&KvTable { table }, Dialect::FastJson)
                    }
                    request::GET_MEMBER_STATE => fastjson::to_vec(&*self.state.lock(), Dialect::FastJson),
                    _ => Vec::new(),
                };
                out.reply(asked.reply_to(), ResponseCode::Success, None, &(), &body);
            }
        }

        async fn resume(&self, _: &mut (), (): (), _: &mut Outgoing) {}

        fn close(&self, (): ()) {}
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn name_servers_that_do_not_answer_do_not_keep_a_start_from_what_another_one_says() {
        let played = Arc::new(Played::default());
        let options = ListenerOptions { tls: None, ..ListenerOptions::default() };
        let listener = Listener::bind((Ipv4Addr::LOCALHOST, 0).into(), options, Arc::clone(&played)).unwrap();
        let address = listener.local_addr().to_string();
        tokio::spawn(listener.run(std::future::pending()));
        let silent: Vec<TcpListener> = (0..4).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()).collect();
        let servers = silent.iter().map(|server| server.local_addr().unwrap().to_string());
        let servers = servers.chain([address.clone()]).collect();
        let dir = tempfile::tempdir().unwrap();
        let (store, broker) = started::at(dir.path(), servers).await;
        let identity = broker.identity();
        *played.state.lock() = MemberState {
            cluster_name: identity.cluster_name.clone(),
            broker_name: identity.broker_name.clone(),
            broker_role: "ASYNC_MASTER".to_owned(),
            epoch: 101,
            former_id: Some(1),
            ..MemberState::default()
        };
        *played.set.lock() = Some(BrokerData {
            cluster: identity.cluster_name,
            broker_name: identity.broker_name,
            broker_addrs: [(MASTER_ID, address.clone())].into(),
            ..BrokerData::default()
        });
        assert_eq!(at_start(&broker).await, Some(Rival { address, epoch: 101, free_id: 1 }));
        broker.stop().await.unwrap();
        store.close().unwrap();
    }
}
