//! Measuring sends.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use operator::check::Probe;

use super::output::{Facts, Table};
use super::send::status;
use super::session::Session;
use super::time;
use super::truth;

/// More than a broker takes in one message, unless its `maxMessageSize` is far above the default.
const BODY_BYTES_MAX: i64 = 15 << 20;

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// The first message pays for connecting, so it does not count.
fn average(times: &[Duration]) -> f64 {
    let counted = times.get(1..).filter(|rest| !rest.is_empty()).unwrap_or(times);
    counted.iter().map(|time| millis(*time)).sum::<f64>() / counted.len().max(1) as f64
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct SendMsgStatus {
    /// The broker's name
    #[arg(short, long)]
    broker_name: String,
    /// Bytes of each message
    #[arg(short = 's', long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=BODY_BYTES_MAX))]
    message_size: u32,
    /// How many messages
    #[arg(short, long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
}

impl SendMsgStatus {
    /// A broker has a topic of its own name for this.
    pub async fn run(&self, session: &Session) -> Result<()> {
        session.operator.need_names()?;
        let probe = session.operator.probe("PID_SMSC");
        let topic = self.broker_name.trim();
        probe.send(topic, 16).await.1?;
        let mut table = Table::new(["RT(ms)", "Send Result", "MsgId", "Broker Name", "QID", "Queue Offset"]);
        for _ in 0..self.count {
            let (time, sent) = probe.send(topic, self.message_size).await;
            let sent = sent?;
            table.row([
                millis(time).into(),
                status(sent.status).into(),
                sent.message_id.into(),
                sent.broker_name.into(),
                sent.queue.queue_id.into(),
                sent.queue_offset.into(),
            ]);
        }
        session.out.table("sends", &table)?;
        session.operator.stop().await;
        Ok(())
    }
}

#[derive(Debug, Args)]
pub struct CheckMsgSendRT {
    /// The topic
    #[arg(short, long)]
    topic: String,
    /// How many messages
    #[arg(short, long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    amount: u32,
    /// Bytes of each message
    #[arg(short, long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=BODY_BYTES_MAX))]
    size: u32,
}

impl CheckMsgSendRT {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let queues = session.operator.writable(self.topic.trim()).await?;
        let probe = session.operator.probe("TOOLS_PRODUCER");
        let mut table = Table::new(["Broker Name", "QID", "Send Result", "RT(ms)"]);
        let mut times = Vec::new();
        let mut failed = None;
        for queue in queues.iter().cycle().take(self.amount as usize) {
            let (time, sent) = probe.send_to(queue, self.size).await;
            let is_sent = sent.is_ok();
            failed = sent.err().or(failed);
            times.push(time);
            table.row([(&queue.broker_name).into(), queue.queue_id.into(), is_sent.into(), millis(time).into()]);
        }
        session.out.table("sends", &table)?;
        session.out.note("")?;
        session.out.facts(&Facts::new().with("Avg RT", average(&times)))?;
        session.operator.stop().await;
        failed.map_or(Ok(()), |error| Err(error).context("not every message was sent"))
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct ClusterRT {
    /// How many messages to each broker
    #[arg(short, long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    amount: u32,
    /// Bytes of each message
    #[arg(short, long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=BODY_BYTES_MAX))]
    size: u32,
    /// One cluster
    #[arg(short, long)]
    cluster: Option<String>,
    /// Whether to print lines of time|room|cluster|broker|ms: true or false (default)
    #[arg(short = 'p', long = "print-log", alias = "print log", value_parser = truth)]
    print_log: Option<bool>,
    /// The room in these lines
    #[arg(short = 'm', long = "machine-room", alias = "machine room", default_value = "noname")]
    machine_room: String,
    /// Again after so many seconds
    #[arg(short, long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    interval: u64,
}

impl ClusterRT {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let probe = session.operator.probe("TOOLS_PRODUCER");
        loop {
            let info = session.operator.cluster().await?;
            let mut table = Table::new(["Cluster Name", "Broker Name", "RT", "successCount", "failCount"]);
            for (cluster, brokers) in &info.cluster_addr_table {
                if self.cluster.as_deref().is_some_and(|only| only.trim() != cluster) {
                    continue;
                }
                for broker in brokers {
                    let (rt, done) = self.measure(&probe, broker).await;
                    if self.print_log == Some(true) {
                        let at = time::to_seconds(session.operator.now());
                        session.out.say(format!("{at}|{}|{cluster}|{broker}|{rt:.0}", self.machine_room))?;
                    }
                    let (done, failed) = (u64::from(done), u64::from(self.amount - done));
                    table.row([cluster.into(), broker.into(), rt.into(), done.into(), failed.into()]);
                }
            }
            if table.len() == 0 {
                bail!("the name server knows no such cluster");
            }
            if self.print_log != Some(true) {
                session.out.table("brokers", &table)?;
            }
            if !session.again_after(Duration::from_secs(self.interval)).await? {
                session.operator.stop().await;
                return Ok(());
            }
        }
    }

    /// Milliseconds on average, and how many messages were sent. A broker has a topic of its own name for this.
    async fn measure(&self, probe: &Probe<'_>, broker: &str) -> (f64, u32) {
        let mut times = Vec::new();
        let mut done = 0;
        for _ in 0..self.amount {
            let (time, sent) = probe.send(broker, self.size).await;
            done += u32::from(sent.is_ok());
            times.push(time);
        }
        (average(&times), done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_message_does_not_count_unless_it_is_the_only_one() {
        let ms = Duration::from_millis;
        assert_eq!(average(&[ms(90), ms(1), ms(3)]), 2.0);
        assert_eq!(average(&[ms(90)]), 90.0);
        assert_eq!(average(&[]), 0.0);
    }
}
