//! Before the log of a master is copied: whether its epoch is not earlier than what is known here, and what of the log here it does not have.

use std::sync::Arc;
use std::time::Duration;

use replica::asking::{self, AskError, Extent};
use replica::epochs::Point;

use crate::broker::Broker;
use crate::switch::ask;

const PATIENCE: Duration = Duration::from_secs(3);

/// Where the master's log lies. Its epochs are known here, on the device, when this returns without an error. A master of Apache has none.
///
/// If the log here has what the master's does not have, that is noted, and this broker begins anew without it.
pub(super) async fn agree(broker: &Arc<Broker>, address: &str) -> Result<Extent, AskError> {
    // Looked at before the master is asked: its log grows.
    let end = broker.store.end();
    let client = &broker.registry.client;
    let (extent, is_ours) = asking::about(client, address).await?;
    if !is_ours {
        return Ok(extent);
    }
    let failed = |why: String| AskError::Epochs { address: address.to_owned(), why };
    let state = ask::member(client, address, PATIENCE).await.map_err(|error| failed(error.to_string()))?;
    if state.broker_role == "SLAVE" || state.is_fenced {
        return Err(AskError::IsNoMaster { address: address.to_owned() });
    }
    broker.switch.note_master_role(&state.broker_role);
    let epoch = u64::try_from(state.epoch).unwrap_or(0);
    let theirs = ask::epochs(&state.epochs).ok_or_else(|| failed("they are not those of one log".to_owned()))?;
    let (kept, own) = (broker.switch.kept(), broker.switch.epochs());
    let earlier =
        || AskError::EarlierEpoch { address: address.to_owned(), theirs: epoch, ours: kept.epoch.max(own.last()) };
    if epoch < kept.epoch || theirs.last() > epoch {
        return Err(earlier());
    }
    match own.point(end, &theirs) {
        Point::IsLater => Err(earlier()),
        Point::Continues => {
            broker.switch.take_epochs(epoch, theirs).await.map_err(|error| failed(error.to_string()))?;
            Ok(extent)
        }
        Point::CutAt(at) => {
            let store = Arc::clone(&broker.store);
            let noted = tokio::task::spawn_blocking(move || store.cut_on_reopen(at)).await;
            let noted = noted.map_err(|error| failed(error.to_string()))?;
            noted.map_err(|error| AskError::CannotCut { at, epoch, why: error.to_string() })?;
            tracing::warn!(%at, %end, master = address, epoch, "the log here goes beyond that of the new master: it is cut");
            broker.switch.begin_anew();
            Err(AskError::Cuts { at, epoch })
        }
    }
}
