//! Whether the master is still the one whose log is copied.

use replica::asking;

use super::master::MasterError;
use crate::broker::Broker;

/// Whether the master's log continues the one here. The master may have begun anew a moment ago, and the connection not have ended yet.
pub(super) async fn check_log(broker: &Broker, address: &str) -> Result<(), MasterError> {
    // Looked at before the master is asked: its log grows.
    let end = broker.store.end();
    Ok(asking::extent(&broker.registry.client, address).await?.continues(end)?)
}
