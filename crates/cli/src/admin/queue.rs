//! The units of a consume queue.

use anyhow::Result;
use clap::Args;
use operator::queue::Units;

use super::output::{Facts, Table};
use super::session::Session;

#[derive(Debug, Args)]
pub struct QueryCq {
    /// The topic
    #[arg(short, long)]
    topic: String,
    /// The queue
    #[arg(short, long, value_parser = clap::value_parser!(i32).range(0..))]
    queue: i32,
    /// The first unit
    #[arg(short, long, value_parser = clap::value_parser!(i64).range(0..))]
    index: i64,
    /// How many units
    #[arg(short, long, default_value_t = 10, value_parser = clap::value_parser!(i32).range(1..))]
    count: i32,
    /// The broker; without it, the first one of the topic
    #[arg(short, long, value_name = "HOST:PORT")]
    broker: Option<String>,
    /// See whether the units match what this group subscribes to
    #[arg(short = 'g', long)]
    consumer: Option<String>,
}

impl QueryCq {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let units = Units {
            topic: self.topic.trim(),
            queue_id: self.queue,
            index: self.index,
            count: self.count,
            group: self.consumer.as_deref().map(str::trim),
        };
        let found = session.operator.units(self.broker.as_deref().map(str::trim), &units).await?;
        if let Some(subscription) = &found.subscription_data {
            session.out.note("Subscription data:")?;
            session.out.value("subscriptionData", subscription)?;
        }
        if let Some(filter) = &found.filter_data {
            session.out.facts(&Facts::new().with("Filter data", filter))?;
        }
        let facts =
            Facts::new().with("Max Queue Index", found.max_queue_index).with("Min Queue Index", found.min_queue_index);
        session.out.facts(&facts)?;
        let mut table =
            Table::new(["Index", "Physic Offset", "Physic Size", "Tags Code", "Eval", "Bit Map", "Extend Data", "Msg"]);
        for (index, unit) in (self.index..).zip(&found.queue_data) {
            table.row([
                index.into(),
                unit.physic_offset.into(),
                unit.physic_size.into(),
                unit.tags_code.into(),
                unit.eval.into(),
                unit.bit_map.as_deref().into(),
                unit.extend_data_json.as_deref().into(),
                unit.msg.as_deref().into(),
            ]);
        }
        session.out.table("units", &table)?;
        Ok(())
    }
}
