//! A broker's figures, and what it can be told to clean up.

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::body::{BrokerConsumeStats, KvTable};
use protocol::code::request;
use protocol::request::{GetBrokerConsumeStats, ResetMasterFlushOffset, SwitchTimerEngine};
use serde_json::Value;

use crate::error::Result;
use crate::handle::Operator;

/// What a broker can be told to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cleaning {
    /// Consume queue files that no message needs.
    ConsumeQueues,
    /// Consume queues of topics that are gone.
    UnusedTopics,
    /// Commit log files that are past their time.
    CommitLog,
}

/// What times messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerEngine {
    /// A time line in RocksDB.
    RocksDb,
    /// The time wheel in files.
    File,
}

impl Operator {
    /// All figures that a broker tells, as texts.
    pub async fn runtime_info(&self, address: &str) -> Result<BTreeMap<String, String>> {
        let table: KvTable = self.admin.ask(address, request::GET_BROKER_RUNTIME_INFO, &()).await?;
        Ok(table.table)
    }

    /// How far all groups of a broker are behind. It may take the broker a while.
    pub async fn broker_consume_stats(
        &self,
        address: &str,
        is_order: bool,
        timeout: Duration,
    ) -> Result<BrokerConsumeStats> {
        let fields = GetBrokerConsumeStats { is_order };
        Ok(self.admin.within(timeout).ask(address, request::GET_BROKER_CONSUME_STATS, &fields).await?)
    }

    /// Lets a broker remove what it does not need.
    pub async fn clean(&self, address: &str, cleaning: Cleaning) -> Result<()> {
        let code = match cleaning {
            Cleaning::ConsumeQueues => request::CLEAN_EXPIRED_CONSUMEQUEUE,
            Cleaning::UnusedTopics => request::CLEAN_UNUSED_TOPIC,
            Cleaning::CommitLog => request::DELETE_EXPIRED_COMMITLOG,
        };
        self.admin.tell(address, code, &()).await?;
        Ok(())
    }

    /// Tells a slave how far its master has flushed.
    pub async fn reset_master_flush_offset(&self, address: &str, offset: i64) -> Result<()> {
        let fields = ResetMasterFlushOffset { master_flush_offset: offset };
        self.admin.tell(address, request::RESET_MASTER_FLUSH_OFFSET, &fields).await?;
        Ok(())
    }

    /// Switches the engine of timed messages.
    pub async fn switch_timer_engine(&self, address: &str, engine: TimerEngine) -> Result<()> {
        let engine_type = match engine {
            TimerEngine::RocksDb => "R",
            TimerEngine::File => "F",
        };
        self.admin.tell(address, request::SWITCH_TIMER_ENGINE, &SwitchTimerEngine { engine_type }).await?;
        Ok(())
    }

    /// Lets a broker write its records of popped messages into the log.
    pub async fn roll_back_pops(&self, address: &str) -> Result<()> {
        self.admin.tell(address, request::POP_ROLLBACK, &()).await?;
        Ok(())
    }

    /// The offsets of all groups of a broker, as its file spells them.
    pub async fn all_offsets(&self, address: &str) -> Result<Value> {
        Ok(self.admin.ask(address, request::GET_ALL_CONSUMER_OFFSET, &()).await?)
    }
}
