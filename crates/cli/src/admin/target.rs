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
