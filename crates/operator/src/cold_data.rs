//! How much old data groups may read, and how the log is read ahead.

use bytes::Bytes;
use protocol::code::request;
use protocol::request::SetCommitLogReadMode;
use serde_json::Value;

use crate::configuration::Setting;
use crate::error::{OperatorError, Result};
use crate::handle::Operator;

impl Operator {
    /// Which groups read old data, and how much they may, as a broker spells it.
    pub async fn cold_data(&self, address: &str) -> Result<Value> {
        let response = self.admin.tell(address, request::GET_COLD_DATA_FLOW_CTR_INFO, &()).await?;
        if response.body.is_empty() {
            return Ok(Value::Null);
        }
        let read = serde_json::from_slice(&response.body);
        read.map_err(|error| OperatorError::from(error).during("the broker's answer is not JSON"))
    }

    /// Sets how much old data a group may read: a setting with the group for its key.
    pub async fn set_cold_data(&self, address: &str, threshold: &Setting) -> Result<()> {
        self.admin.call(address, request::UPDATE_COLD_DATA_FLOW_CTR_CONFIG, &(), threshold.0.clone()).await?;
        Ok(())
    }

    /// Lets a group read old data as all others.
    pub async fn remove_cold_data(&self, address: &str, group: &str) -> Result<()> {
        let body = Bytes::from(group.to_owned());
        self.admin.call(address, request::REMOVE_COLD_DATA_FLOW_CTR_CONFIG, &(), body).await?;
        Ok(())
    }

    /// Sets how the commit log is read ahead: `0` as the kernel does by default, `1` not at all. Returns what the broker says of it.
    pub async fn set_read_ahead(&self, address: &str, read_ahead_mode: &str) -> Result<String> {
        let fields = SetCommitLogReadMode { read_ahead_mode };
        let response = self.admin.tell(address, request::SET_COMMITLOG_READ_MODE, &fields).await?;
        Ok(response.remark.unwrap_or_default())
    }
}
