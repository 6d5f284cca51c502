//! What a broker of Apache's keeps in RocksDB. Its files are read by that broker only: there is no RocksDB in here.

use protocol::code::request;
use protocol::request::{CheckRocksdbCqWriteProgress, ExportRocksdbConfig};
use serde::Deserialize;

use crate::error::Result;
use crate::handle::Operator;

/// The answer to 354.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct QueueCheck {
    /// 0 agree, 1 not, 2 under way, 3 failed.
    pub check_status: i32,
    /// What differs.
    pub check_result: Option<String>,
}

impl Operator {
    /// Lets a broker compare its consume queues in RocksDB with those in files: messages stored since `from`, of one topic or, if it is
    /// empty, of all.
    pub async fn check_rocksdb_queues(&self, address: &str, topic: &str, from: i64) -> Result<QueueCheck> {
        let fields = CheckRocksdbCqWriteProgress { topic, check_store_time: from };
        Ok(self.admin.ask(address, request::CHECK_ROCKSDB_CQ_WRITE_PROGRESS, &fields).await?)
    }

    /// Lets a broker write what RocksDB holds into JSON files. Semicolons separate the types.
    pub async fn export_rocksdb(&self, address: &str, types: &str) -> Result<()> {
        let fields = ExportRocksdbConfig { config_type: types };
        self.admin.tell(address, request::EXPORT_ROCKSDB_CONFIG_TO_JSON, &fields).await?;
        Ok(())
    }
}
