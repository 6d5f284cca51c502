//! Clusters, their brokers, and where these are.

use std::collections::BTreeMap;

use protocol::body::{BrokerData, ClusterInfo, MASTER_ID, TopicRoute};
use protocol::code::request;

use crate::error::{OperatorError, Result, ensure};
use crate::handle::Operator;

/// One broker of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broker {
    /// The cluster.
    pub cluster: String,
    /// The broker's name.
    pub name: String,
    /// Its id: 0 is a master.
    pub id: i64,
    /// Where it is.
    pub address: String,
}

/// Which brokers something is for.
#[derive(Clone, Copy, Debug)]
pub enum Target<'a> {
    /// The one at this address.
    Broker(&'a str),
    /// Those of this cluster.
    Cluster(&'a str),
    /// All that the name server knows.
    All,
}

impl Operator {
    /// The clusters and their brokers.
    pub async fn cluster(&self) -> Result<ClusterInfo> {
        self.need_names()?;
        let info = self.admin.cluster().await;
        info.map_err(|error| OperatorError::from(error).during("cannot learn the clusters from the name server"))
    }

    /// The same, as one name server knows them.
    pub async fn cluster_at(&self, name_server: &str) -> Result<ClusterInfo> {
        Ok(self.admin.ask(name_server, request::GET_BROKER_CLUSTER_INFO, &()).await?)
    }

    /// All brokers of a cluster, by name and id.
    pub async fn brokers(&self, cluster: &str) -> Result<Vec<Broker>> {
        brokers_in(&self.cluster().await?, cluster)
    }

    /// The masters of a cluster, by name. It may have none.
    pub async fn masters_of_cluster(&self, cluster: &str) -> Result<Vec<Broker>> {
        let mut brokers = self.brokers(cluster).await?;
        brokers.retain(|broker| broker.id == MASTER_ID);
        Ok(brokers)
    }

    /// The masters that something is for, at least one.
    pub async fn masters(&self, target: Target<'_>) -> Result<Vec<String>> {
        self.addresses(target, |broker| broker.id == MASTER_ID).await
    }

    /// The brokers that something is for, slaves included, at least one.
    pub async fn replicas(&self, target: Target<'_>) -> Result<Vec<String>> {
        self.addresses(target, |_| true).await
    }

    async fn addresses(&self, target: Target<'_>, is_meant: impl Fn(&Broker) -> bool) -> Result<Vec<String>> {
        let brokers = match target {
            Target::Broker(address) => return Ok(vec![address.to_owned()]),
            Target::Cluster(_) | Target::All => self.registered(target).await?,
        };
        let addresses: Vec<String> = brokers.into_iter().filter(is_meant).map(|broker| broker.address).collect();
        let cluster = if let Target::Cluster(name) = target { name } else { "" };
        ensure!(!addresses.is_empty(), Unfit, "cluster {cluster} has no broker for this at the moment");
        Ok(addresses)
    }

    /// The brokers of a cluster, or of all, as the name server knows them: perhaps none. Nothing is known of a single broker's address.
    pub async fn registered(&self, target: Target<'_>) -> Result<Vec<Broker>> {
        let info = self.cluster().await?;
        let names = match target {
            Target::Broker(_) => return Ok(Vec::new()),
            Target::Cluster(name) => return brokers_in(&info, name),
            Target::All => info.cluster_addr_table.keys(),
        };
        let mut brokers = Vec::new();
        for name in names {
            brokers.extend(brokers_in(&info, name)?);
        }
        Ok(brokers)
    }

    /// The masters of all clusters.
    pub async fn all_masters(&self) -> Result<Vec<String>> {
        Ok(masters_in(self.cluster().await?))
    }

    /// Where the master of a broker name is.
    pub async fn master_of(&self, broker_name: &str) -> Result<String> {
        let cluster = self.cluster().await?;
        let broker = cluster.broker_addr_table.get(broker_name);
        let master = broker.and_then(|broker| broker.broker_addrs.get(&MASTER_ID)).cloned();
        let unknown = || OperatorError::NotFound(format!("the name server knows no master of broker {broker_name}"));
        master.ok_or_else(unknown)
    }

    /// The name of the broker at an address.
    pub async fn broker_name(&self, address: &str) -> Result<String> {
        let cluster = self.cluster().await?;
        let found = cluster.broker_addr_table.into_iter().find(|(_, broker)| has_address(broker, address));
        let unknown = || OperatorError::NotFound(format!("the name server knows no broker at {address}"));
        found.map(|(name, _)| name).ok_or_else(unknown)
    }

    /// The replicas of a broker name.
    pub async fn replicas_of(&self, broker_name: &str) -> Result<Vec<String>> {
        let mut info = self.cluster().await?;
        let broker = info.broker_addr_table.remove(broker_name);
        let unknown = || OperatorError::NotFound(format!("the name server knows no broker {broker_name}"));
        Ok(broker.ok_or_else(unknown)?.broker_addrs.into_values().collect())
    }

    /// The names of the brokers of a cluster.
    pub async fn names_in(&self, cluster: &str) -> Result<Vec<String>> {
        let mut info = self.cluster().await?;
        let names = info.cluster_addr_table.remove(cluster.trim());
        let unknown = || OperatorError::NotFound(format!("the name server knows no cluster {cluster}"));
        Ok(names.ok_or_else(unknown)?.into_iter().collect())
    }
}

fn has_address(broker: &BrokerData, address: &str) -> bool {
    broker.broker_addrs.values().any(|known| known == address)
}

pub(crate) fn masters_in(info: ClusterInfo) -> Vec<String> {
    let brokers = info.broker_addr_table.into_values();
    brokers.filter_map(|mut broker| broker.broker_addrs.remove(&MASTER_ID)).collect()
}

/// The brokers of a route by name: the master, or else any replica.
pub fn readable(route: &TopicRoute) -> impl Iterator<Item = (String, String)> {
    let brokers: BTreeMap<String, String> = route
        .broker_datas
        .iter()
        .filter_map(|broker| {
            let addresses = &broker.broker_addrs;
            let address = addresses.get(&MASTER_ID).or_else(|| addresses.values().next())?;
            Some((broker.broker_name.clone(), address.clone()))
        })
        .collect();
    brokers.into_iter()
}

/// The masters of a route by name.
pub fn masters(route: &TopicRoute) -> impl Iterator<Item = (&str, &str)> {
    let brokers: BTreeMap<&str, &str> = route
        .broker_datas
        .iter()
        .filter_map(|broker| Some((broker.broker_name.as_str(), broker.broker_addrs.get(&MASTER_ID)?.as_str())))
        .collect();
    brokers.into_iter()
}

/// All brokers of a cluster, by name and id.
pub fn brokers_in(info: &ClusterInfo, cluster: &str) -> Result<Vec<Broker>> {
    let Some(names) = info.cluster_addr_table.get(cluster) else {
        let known: Vec<&str> = info.cluster_addr_table.keys().map(String::as_str).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        return Err(OperatorError::NotFound(format!("the name server knows no cluster {cluster}: it knows {known}")));
    };
    let mut brokers = Vec::new();
    for name in names {
        let Some(data) = info.broker_addr_table.get(name) else { continue };
        brokers.extend(data.broker_addrs.iter().map(|(id, address)| Broker {
            cluster: cluster.to_owned(),
            name: name.clone(),
            id: *id,
            address: address.clone(),
        }));
    }
    Ok(brokers)
}
