//! Traces: what producers and consumers wrote down about a message.

use anyhow::Result;
use clap::Args;
use protocol::names::TRACE_TOPIC;

use super::output::{Cell, Table};
use super::session::Session;

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct QueryMsgTraceById {
    /// The id that the producer gave
    #[arg(short = 'i', long)]
    msg_id: String,
    /// The topic of the traces
    #[arg(short, long, default_value = TRACE_TOPIC)]
    trace_topic: String,
    /// Stored at this time or later, in milliseconds
    #[arg(short, long, default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..))]
    begin_timestamp: i64,
    /// Stored at this time or before, in milliseconds
    #[arg(short, long, default_value_t = i64::MAX, value_parser = clap::value_parser!(i64).range(0..))]
    end_timestamp: i64,
    /// Traces at most, from each broker
    #[arg(short = 'c', long, default_value_t = 64, value_parser = clap::value_parser!(i32).range(1..))]
    max_num: i32,
}

impl QueryMsgTraceById {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let span = (self.begin_timestamp, self.end_timestamp);
        let (topic, id) = (self.trace_topic.trim(), self.msg_id.trim());
        let contexts = session.operator.traces(topic, id, span, self.max_num).await?;
        let mut table = Table::new(["Type", "Group", "ClientHost", "Time", "CostTimes", "Status"]);
        for context in contexts {
            table.row([
                context.kind.into(),
                context.group.into(),
                context.client_host.into(),
                Cell::time(context.at),
                context.cost_ms.map(|cost| Cell::of(format!("{cost}ms"), cost)).into(),
                context.status.into(),
            ]);
        }
        session.out.table("traces", &table)?;
        Ok(())
    }
}
