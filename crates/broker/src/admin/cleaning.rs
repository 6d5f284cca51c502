//! What operators have cleaned up: 306, 316, 329.

use net::{Outgoing, Request};
use store::Store;

use crate::answer::reply_ok;
use crate::refusal::Refusal;
use crate::session::Session;
use crate::state::topics::Topics;

/// 306: entries of queues that lead to nothing. They go together with the file of the log that they led to, so there are none,
/// and what Apache's answer promises holds already.
pub(crate) fn expired_queues(request: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    reply_ok(request, out);
    Ok(())
}

/// 316: queues of topics that do not exist.
pub(crate) fn unused_topics(
    topics: &Topics,
    session: &Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    for topic in topics.delete_unknown_queues() {
        tracing::info!(%topic, peer = %session.connection.peer(), "queues of an unknown topic deleted by request");
    }
    reply_ok(request, out);
    Ok(())
}

/// 329: expired files of the log go now, whatever the hour. The answer does not wait for it, as in Apache.
pub(crate) fn expired_files(
    store: &Store,
    session: &Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    tracing::info!(peer = %session.connection.peer(), "deletion of expired files requested");
    store.delete_expired();
    reply_ok(request, out);
    Ok(())
}
