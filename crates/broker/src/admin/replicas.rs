//! What operators ask about replicas, of a master that has none: 907, 908.

use net::{Outgoing, Request};
use protocol::body::{HaClientRuntimeInfo, HaRuntimeInfo};
use protocol::request::ResetMasterFlushOffset;

use crate::admin::{reply_json, reply_ok};
use crate::broker::Broker;
use crate::refusal::Refusal;

/// 907: how replication goes. There are no slaves, so all there is to tell is where the log ends.
pub(crate) fn status(broker: &Broker, request: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let info = HaRuntimeInfo {
        // Apache sends the slave's part empty, where others leave it out.
        ha_client_runtime_info: Some(HaClientRuntimeInfo::default()),
        ha_connection_info: Vec::new(),
        in_sync_slave_nums: 0,
        master: true,
        master_commit_log_max_offset: broker.store.end().0 as i64,
    };
    reply_json(request, out, &info);
    Ok(())
}

/// 908: how far the master has flushed, said to a slave. A master has nothing to do with it, and says yes, as in Apache.
pub(crate) fn reset_flushed(request: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    ResetMasterFlushOffset::decode(&request.header.fields)?;
    reply_ok(request, out);
    Ok(())
}
