//! Which broker of a set is the master, changed by hand.

use anyhow::Result;
use clap::Args;
use operator::switch::Switched;

use super::output::Facts;
use super::session::Session;

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct SwitchMaster {
    /// The name of the set: that of its brokers
    #[arg(short, long, value_name = "NAME")]
    broker_name: String,
    /// Its cluster, if that is to be checked
    #[arg(short, long, value_name = "CLUSTER")]
    cluster_name: Option<String>,
    /// The id of the broker that is to be the master
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(i64).range(0..))]
    to: i64,
    /// The old master is gone: nobody hands over
    #[arg(long = "old-master-is-down")]
    old_master_is_down: bool,
}

impl SwitchMaster {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let cluster = self.cluster_name.as_deref().map(str::trim);
        let name = self.broker_name.trim();
        let switched = match self.old_master_is_down {
            true => session.operator.replace_master(cluster, name, self.to).await?,
            false => session.operator.switch_master(cluster, name, self.to).await?,
        };
        let Switched { master, epoch, old_master, is_following, not_asked } = switched;
        let facts = Facts::new().with("MasterAddr", master.as_str()).with("Epoch", epoch);
        let facts = match &old_master {
            Some(old) => facts.with("SlaveAddr", old.as_str()).with("Following", is_following),
            None => facts,
        };
        session.out.facts(&facts)?;
        for address in not_asked {
            session.out.say(format!(
                "{address} could not be asked how much of the log it has: if it has more than {master}, that is cut off"
            ))?;
        }
        Ok(())
    }
}
