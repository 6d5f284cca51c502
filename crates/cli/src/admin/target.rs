//! Which brokers a command is for.

use clap::Args;

/// One broker, or those of a cluster.
#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
#[group(required = true, multiple = false)]
pub struct Target {
    /// This broker
    #[arg(short = 'b', long, value_name = "HOST:PORT")]
    pub broker_addr: Option<String>,
    /// The brokers of this cluster
    #[arg(short = 'c', long, alias = "cluster", value_name = "CLUSTER")]
    pub cluster_name: Option<String>,
}

impl Target {
    /// In the operator's words.
    pub fn meant(&self) -> operator::Target<'_> {
        meant(self.broker_addr.as_deref(), self.cluster_name.as_deref())
    }
}

/// One broker, those of a cluster, or all.
#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
#[group(multiple = false)]
pub struct AnyTarget {
    /// This broker
    #[arg(short = 'b', long, value_name = "HOST:PORT")]
    pub broker_addr: Option<String>,
    /// The brokers of this cluster; without either, all that the name server knows
    #[arg(short = 'c', long, alias = "clusterName", value_name = "CLUSTER")]
    pub cluster: Option<String>,
}

impl AnyTarget {
    /// In the operator's words.
    pub fn meant(&self) -> operator::Target<'_> {
        meant(self.broker_addr.as_deref(), self.cluster.as_deref())
    }
}

fn meant<'a>(broker: Option<&'a str>, cluster: Option<&'a str>) -> operator::Target<'a> {
    match (broker, cluster) {
        (Some(address), _) => operator::Target::Broker(address.trim()),
        (None, Some(cluster)) => operator::Target::Cluster(cluster.trim()),
        (None, None) => operator::Target::All,
    }
}
