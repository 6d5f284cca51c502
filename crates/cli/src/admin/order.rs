//! Which queues an ordered topic has, and who would get which.

use anyhow::{Result, bail};
use clap::Args;

use super::output::{Facts, Table};
use super::session::Session;

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct UpdateOrderConf {
    /// The topic
    #[arg(short, long)]
    topic: String,
    /// For put: broker:queues, separated by semicolons
    #[arg(short = 'v', long)]
    order_conf: Option<String>,
    /// put, get or delete
    #[arg(short, long)]
    method: String,
}

impl UpdateOrderConf {
    pub async fn run(&self, session: &Session) -> Result<()> {
        session.operator.need_names()?;
        let topic = self.topic.trim();
        match self.method.trim() {
            "get" => {
                let order = session.operator.order(topic).await?;
                let facts = Facts::new().with("Topic", topic).with("Order Conf", order);
                session.out.facts(&facts)?;
            }
            "put" => {
                let Some(order) = self.order_conf.as_deref().map(str::trim).filter(|order| !order.is_empty()) else {
                    bail!("put needs the order: -v broker:queues");
                };
                session.operator.set_order(topic, order, true).await?;
                session.out.say(format!("update orderConf success. topic=[{topic}], orderConf=[{order}]"))?;
            }
            "delete" => {
                session.operator.delete_order(topic).await?;
                session.out.say(format!("delete orderConf success. topic=[{topic}]"))?;
            }
            other => bail!("-m is put, get or delete, not \"{other}\""),
        }
        Ok(())
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct AllocateMQ {
    /// The topic
    #[arg(short, long)]
    topic: String,
    /// Client ids, separated by commas
    #[arg(short, long)]
    ip_list: String,
}

impl AllocateMQ {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let topic = self.topic.trim();
        let clients: Vec<String> = self.ip_list.split(',').map(|one| one.trim().to_owned()).collect();
        let shares = session.operator.shares(topic, &clients).await?;
        if session.out.is_json() {
            session.out.value("result", &shares)?;
            return Ok(());
        }
        let mut table = Table::new(["Client", "Broker Name", "QID"]);
        for (client, queues) in &shares {
            for queue in queues {
                table.row([client.as_str().into(), (&queue.broker_name).into(), queue.queue_id.into()]);
            }
        }
        session.out.table("result", &table)?;
        Ok(())
    }
}
