//! The version that tables carry.

use serde::{Deserialize, Serialize};

/// Which of two states is newer: it changes with every change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DataVersion {
    /// Changes since the start.
    pub counter: i64,
    /// The epoch of the master that made them.
    pub state_version: i64,
    /// When the last one was made.
    pub timestamp: i64,
}

impl DataVersion {
    /// Notes a change.
    pub fn advance(&mut self, now_ms: i64) {
        self.counter += 1;
        self.timestamp = now_ms;
    }
}
