//! Which addresses may have the log: this machine's own, those of `replicaAllow`, and those of the set's brokers, as name servers list them. With
//! `replicaSecret` all may ask for it, and the port has each prove that it has the secret (`replica/feed/hearing.rs`).
//!
//! The port must not wait for a name server, so it looks into a snapshot that a task refreshes. An address that is turned away has the task ask at
//! once: a slave that has registered a moment ago is let in at its next try.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use net::CallError;
use protocol::body::{BrokerData, ClusterInfo, TopicRoute};
use protocol::code::{ResponseCode, request};
use protocol::fastjson;
use protocol::request::GetRouteInfo;
use replica::lag::Slave;
use tokio::net::lookup_host;
use tokio::time::timeout;

use crate::broker::Broker;
use crate::state::members::Listed;
use crate::tasks::Stop;

/// Name servers are asked as often as this when nobody is turned away.
const PERIOD: Duration = Duration::from_secs(30);
/// They are asked no more often than this, however many are turned away.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// How long an address stays a member's after name servers listed it last: a slave that starts again is let in before they list it again.
const KEPT: Duration = Duration::from_secs(600);
/// Addresses of a set.
const MEMBERS_MAX: usize = 1_000;
/// For a request, and for looking up a name.
const PATIENCE: Duration = Duration::from_secs(3);

/// Whether an address may connect for the log. With a secret that is proved there.
pub(super) fn may(broker: &Broker, address: IpAddr) -> bool {
    broker.settings.load().replica_secret.is_some() || is_listed(broker, address)
}

/// Whether the address is that of a broker of this set, where nothing is proved.
pub(super) fn is_listed(broker: &Broker, address: IpAddr) -> bool {
    address.is_loopback() || broker.settings.load().replica_allow.contains(address) || broker.members.has(address)
}

/// Whether the broker at this address belongs to this set: it is listed, or a slave there has proved
/// the secret at the port for slaves.
pub(crate) fn is_member(broker: &Broker, address: IpAddr) -> bool {
    let has_proved = || {
        let is_there = |slave: &Slave| slave.peer.broker_id.is_some() && slave.peer.address.ip() == address;
        broker.settings.load().replica_secret.is_some() && broker.slaves.any(is_there)
    };
    is_listed(broker, address) || has_proved()
}

/// Keeps the snapshot until it is told to stop.
pub(crate) async fn keep(broker: Arc<Broker>, mut stop: Stop) {
    // When an address was listed last, and with which ids.
    let mut listed_at: HashMap<IpAddr, (Duration, BTreeSet<i64>)> = HashMap::new();
    let mut heard_at = broker.clock.elapsed();
    while !stop.is_asked() && !broker.registry.servers.is_empty() {
        let listed = tokio::select! {
            biased;
            () = stop.asked() => return,
            listed = listed(&broker) => listed,
        };
        // If no name server answers, the set stays as it was.
        if let Some(listed) = listed {
            let now = broker.clock.elapsed();
            // While no name server answers, nobody can be listed: no address grows older by that.
            let unheard = now.saturating_sub(heard_at).saturating_sub(PERIOD);
            listed_at.values_mut().for_each(|(at, _)| *at += unheard);
            heard_at = now;
            listed_at.extend(listed.into_iter().map(|(address, ids)| (address, (now, ids))));
            listed_at.retain(|_, (at, _)| now.saturating_sub(*at) < KEPT);
            broker.members.are(listed_at.iter().map(|(address, (_, ids))| (*address, ids.clone())).collect());
        }
        tokio::select! {
            biased;
            () = stop.asked() => return,
            () = tokio::time::sleep(PAUSE_MIN) => {}
        }
        tokio::select! {
            biased;
            () = stop.asked() => return,
            () = broker.members.refused() => {}
            () = tokio::time::sleep(PERIOD) => {}
        }
    }
}

/// The addresses of the brokers of this set with their ids, as all name servers together say; none: no one answers.
async fn listed(broker: &Broker) -> Option<Listed> {
    let mut hosts: Option<BTreeMap<String, BTreeSet<i64>>> = None;
    for server in broker.registry.addresses() {
        match told(broker, server).await {
            Ok(Some(told)) => {
                let hosts = hosts.get_or_insert_default();
                told.into_iter().for_each(|(host, id)| _ = hosts.entry(host).or_default().insert(id));
            }
            Ok(None) => tracing::debug!(name_server = server, "refuses to say who is in this set"),
            Err(error) => tracing::debug!(name_server = server, %error, "does not say who is in this set"),
        }
    }
    let mut addresses = Listed::new();
    for (host, ids) in hosts? {
        let mut add = |address: IpAddr| addresses.entry(address.to_canonical()).or_default().extend(&ids);
        match host.parse::<IpAddr>() {
            Ok(address) => add(address),
            // One that leads nowhere is no slave's.
            Err(_) => {
                if let Ok(Ok(found)) = timeout(PATIENCE, lookup_host((host.as_str(), 0))).await {
                    found.for_each(|address| add(address.ip()));
                }
            }
        }
        if addresses.len() > MEMBERS_MAX {
            break;
        }
    }
    Some(addresses)
}

/// The hosts of this set's brokers, each with the broker's id. None if that is refused.
async fn told(broker: &Broker, server: &str) -> Result<Option<Vec<(String, i64)>>, CallError> {
    let brokers = brokers(broker, server).await?;
    let addresses = |brokers: &Vec<BrokerData>| {
        let addresses = brokers.iter().flat_map(|of| &of.broker_addrs);
        addresses.filter_map(|(id, address)| Some((host_of(address)?.to_owned(), *id))).collect()
    };
    Ok(brokers.as_ref().map(addresses))
}

/// This set's brokers, as a name server knows them. Each broker has a topic of its own name, as a rule, and its route is short; name servers of any version know it.
/// Where it does not lead to this set, as others may have a topic of that name, the whole cluster is looked through. None if that is refused.
pub(crate) async fn brokers(broker: &Broker, server: &str) -> Result<Option<Vec<BrokerData>>, CallError> {
    let (identity, client) = (broker.identity(), &broker.registry.client);
    let topic = identity.broker_name.as_str();
    let fields = GetRouteInfo { topic, accept_standard_json_only: Some(true), zone_mode: None, zone_name: None };
    let route = client.call(server, request::GET_ROUTEINFO_BY_TOPIC, &fields, Bytes::new(), PATIENCE).await?;
    let is_ours = |of: &&BrokerData| of.broker_name == identity.broker_name && of.cluster == identity.cluster_name;
    let mut brokers: Vec<BrokerData> = Vec::new();
    if route.code == ResponseCode::Success as i32 {
        brokers = fastjson::from_slice::<TopicRoute>(&route.body).map(|route| route.broker_datas).unwrap_or_default();
    }
    if !brokers.iter().any(|of| is_ours(&of)) {
        let all = client.call(server, request::GET_BROKER_CLUSTER_INFO, &(), Bytes::new(), PATIENCE).await?;
        if all.code != ResponseCode::Success as i32 {
            return Ok(None);
        }
        let all = fastjson::from_slice::<ClusterInfo>(&all.body).unwrap_or_default();
        brokers = all.broker_addr_table.into_values().collect();
    }
    brokers.retain(|of| is_ours(&of));
    Ok(Some(brokers))
}

/// The host of `HOST:PORT`.
fn host_of(address: &str) -> Option<&str> {
    let (host, _) = address.rsplit_once(':')?;
    Some(host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use config::{BrokerSettings, Networks};
    use net::{Burst, Connection, Listener, ListenerOptions, Outgoing, Service};
    use parking_lot::Mutex;
    use protocol::fastjson::Dialect;
    use tokio::time::{Instant, sleep};

    use super::*;
    use crate::started;

    /// A name server that knows these brokers.
    #[derive(Default)]
    struct Names {
        of_route: Mutex<Vec<BrokerData>>,
        of_cluster: Mutex<Vec<BrokerData>>,
    }

    impl Service for Names {
        type Session = ();
        type Work = ();

        fn open(&self, _: &Connection<()>) {}

        async fn serve(&self, _: &mut (), burst: &mut Burst<'_>, out: &mut Outgoing) {
            while let Some(asked) = burst.next() {
                let route = TopicRoute { broker_datas: self.of_route.lock().clone(), ..TopicRoute::default() };
                let all = self.of_cluster.lock().iter().map(|of| (of.broker_name.clone(), of.clone())).collect();
                let all = ClusterInfo { broker_addr_table: all, ..ClusterInfo::default() };
                let body = match asked.header.code {
                    request::GET_ROUTEINFO_BY_TOPIC => fastjson::to_vec(&route, Dialect::FastJson),
                    request::GET_BROKER_CLUSTER_INFO => fastjson::to_vec(&all, Dialect::FastJson),
                    _ => Vec::new(),
                };
                out.reply(asked.reply_to(), ResponseCode::Success, None, &(), &body);
            }
        }

        async fn resume(&self, _: &mut (), (): (), _: &mut Outgoing) {}

        fn close(&self, (): ()) {}
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_slave_that_registers_is_let_in_soon_and_others_are_not() {
        let names = Arc::new(Names::default());
        let options = ListenerOptions { tls: None, ..ListenerOptions::default() };
        let listener = Listener::bind((Ipv4Addr::LOCALHOST, 0).into(), options, Arc::clone(&names)).unwrap();
        let address = listener.local_addr().to_string();
        let listening = tokio::spawn(listener.run(std::future::pending()));
        let dir = tempfile::tempdir().unwrap();
        let (store, broker) = started::at(dir.path(), vec![address]).await;
        let may = |address: &str| may(&broker, address.parse().unwrap());
        assert!(may("127.0.0.1") && may("::1") && !may("10.0.0.5"));

        let mut changes = broker.members.changes();
        let identity = broker.identity();
        let of = |cluster: &str, id: i64, address: &str| BrokerData {
            broker_name: identity.broker_name.clone(),
            cluster: cluster.to_owned(),
            broker_addrs: [(id, address.to_owned())].into(),
            ..BrokerData::default()
        };
        *names.of_route.lock() = vec![
            of(&identity.cluster_name, 1, "10.0.0.5:10911"),
            of(&identity.cluster_name, 0, "10.0.0.8:10911"),
            of("another", 1, "10.0.0.6:10911"),
        ];
        let deadline = Instant::now() + Duration::from_secs(60);
        while !may("10.0.0.5") {
            assert!(Instant::now() < deadline, "it is not let in");
            sleep(Duration::from_millis(20)).await;
        }
        assert!(!may("10.0.0.6"), "of another cluster");
        let may_be = |id, address: &str| broker.members.may_be(id, address.parse().unwrap());
        assert!(may_be(1, "10.0.0.5") && !may_be(2, "10.0.0.5"));
        assert!(may_be(1, "127.0.0.1") && may_be(2, "127.0.0.1"), "nobody is listed there");
        assert!(
            may_be(1, "10.0.0.8") && may_be(2, "10.0.0.8"),
            "a slave beside its master is none of those that are listed"
        );
        changes.changed().await.unwrap();
        // Somebody else's topic has the set's name.
        *names.of_route.lock() = vec![of("another", 1, "10.0.0.6:10911")];
        *names.of_cluster.lock() = vec![of(&identity.cluster_name, 2, "10.0.0.7:10911")];
        while !may("10.0.0.7") {
            assert!(Instant::now() < deadline, "it is not let in");
            sleep(Duration::from_millis(20)).await;
        }
        assert!(!may("10.0.0.6"), "of another cluster");
        changes.changed().await.unwrap();

        let replica_allow = Networks::parse("10.0.1.0/24").unwrap();
        broker
            .settings
            .store(Arc::new(BrokerSettings { replica_allow, ..BrokerSettings::clone(&broker.settings.load()) }));
        assert!(may("10.0.1.77") && may("10.0.0.5") && !may("10.0.2.1"));
        broker.stop().await.unwrap();
        store.close().unwrap();
        listening.abort();
    }

    #[test]
    fn a_host_stands_before_the_port() {
        assert_eq!(host_of("10.0.0.1:10911"), Some("10.0.0.1"));
        assert_eq!(host_of("[fd00::1]:10911"), Some("fd00::1"));
        assert_eq!((host_of("broker-0.set:10911"), host_of("nothing")), (Some("broker-0.set"), None));
    }
}
