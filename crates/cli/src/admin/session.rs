//! What every command begins with: the operator that asks, the way out, and how the two come together.

use std::time::Duration;

use anyhow::Result;
use client::Credentials;
use env::{Stdout, sentence};
use operator::progress::Progress;
use operator::static_topic::ByPhysicalQueue;
use operator::{Operator, OperatorError};
use protocol::body::ConsumeStats;

use super::output::Output;
use super::target::Target;

/// One run of a command.
pub struct Session {
    /// Asks and changes.
    pub operator: Operator,
    /// Where answers are shown.
    pub out: Output,
}

impl Session {
    /// Begins. Nothing is connected before it is needed.
    pub fn start(name_servers: &str, credentials: Option<Credentials>, out: Output) -> Session {
        Session { operator: Operator::start(name_servers, credentials), out }
    }

    /// Between two rounds of a command that shows something again and again: hands out what was said, and waits. Whether there is
    /// another round: not if nobody reads on.
    pub async fn again_after(&self, pause: Duration) -> Result<bool> {
        self.out.flush()?;
        if Stdout::is_closed() {
            return Ok(false);
        }
        tokio::time::sleep(pause).await;
        Ok(true)
    }

    /// The masters that a command is for.
    pub async fn masters(&self, target: &Target) -> Result<Vec<String>, OperatorError> {
        self.operator.masters(target.meant()).await
    }

    /// The brokers that a command is for, slaves included.
    pub async fn replicas(&self, target: &Target) -> Result<Vec<String>, OperatorError> {
        self.operator.replicas(target.meant()).await
    }

    /// How far a group is behind; says of which topics that is told by physical queue.
    pub async fn consume_stats(&self, group: &str, topic: Option<&str>, parent: Option<&str>) -> Result<ConsumeStats> {
        let Progress { stats, by_physical_queue } = self.operator.progress(group, topic, parent).await?;
        self.say_physical(&by_physical_queue)?;
        Ok(stats)
    }

    /// Says of which topics progress was told by physical queue.
    pub fn say_physical(&self, topics: &[ByPhysicalQueue]) -> Result<()> {
        for ByPhysicalQueue { group, topic, cause } in topics {
            self.out.say(format!(
                "group {group} is shown by physical queue in static topic {topic}, whose queues are not known now: {}",
                sentence(cause)
            ))?;
        }
        Ok(())
    }
}
