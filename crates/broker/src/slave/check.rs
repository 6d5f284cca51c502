//! Whether the master is still the one whose log is copied.

use replica::asking::{self, Extent};

use super::master::MasterError;
use crate::broker::Broker;

/// Whether the master's log continues the one here, and where that lies. The master may have begun anew a moment ago, and the connection not have
/// ended yet.
pub(super) async fn check_log(broker: &Broker, address: &str) -> Result<Extent, MasterError> {
    // Looked at before the master is asked: its log grows.
    let end = broker.store.end();
    let extent = asking::extent(&broker.registry.client, address).await?;
    extent.continues(end)?;
    Ok(extent)
}

/// Whether the log still comes from the master whose answer is here: it may have taken seconds.
pub(super) fn check_master(broker: &Broker, address: &str) -> Result<(), MasterError> {
    let following = &broker.following;
    // An empty log agrees with any, and topics are asked for before its first record is here.
    let agrees = following.agrees() || broker.store.end().0 == 0;
    if agrees && following.master().as_deref() == Some(address) { Ok(()) } else { Err(MasterError::Another) }
}
