//! Requests that are carried out beside the network workers ([`Runs`]), one at a time: while they look through the tables, others are served.
//!
//! The connection that asked waits, and is not read meanwhile. So each has one such request under way, and they take turns in the order in
//! which they came.

use std::sync::Arc;

use net::{Frames, Outgoing, OwnedRequest, Request};
use protocol::code::{RequestCode, ResponseCode, Runs};

use crate::names::{Names, Refusal, Session};

/// Requests up to this many bytes count as small and stay on the network worker.
const SMALL_BYTES: usize = 16 << 10;

/// Whether a request is too much for the network worker.
pub(crate) fn is_wanted_for(code: RequestCode, asked: &Request<'_>) -> bool {
    match code.row().runs {
        Runs::OnWorker | Runs::Unserved => false,
        Runs::BySize => asked.bytes() > SMALL_BYTES,
        Runs::Beside => true,
    }
}

/// Whether a request of those that [`Names::answer_here`] answers changes the route table.
pub(crate) fn changes(code: RequestCode) -> bool {
    matches!(
        code,
        RequestCode::UNREGISTER_BROKER
            | RequestCode::WIPE_WRITE_PERM_OF_BROKER
            | RequestCode::ADD_WRITE_PERM_OF_BROKER
            | RequestCode::DELETE_TOPIC_IN_NAMESRV
            | RequestCode::REGISTER_TOPIC_IN_NAMESRV
            | RequestCode::QUERY_DATA_VERSION
            | RequestCode::BROKER_HEARTBEAT
    )
}

/// Has a request answered on a thread that serves no connection.
pub(crate) async fn answer(
    names: &Names,
    session: &Session,
    code: RequestCode,
    asked: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let given_up = "given up: the connection is ending, or the name server stops";
    let (owned, changes) = (OwnedRequest::of(asked), changes(code));
    let turn = Arc::clone(&names.beside).lock_owned().await;
    // Its peer may have gone while it waited, or we stop: then nobody waits for the answer.
    let Some(names) = names.myself.upgrade().filter(|_| !session.connection.is_closed()) else {
        return Err(Refusal::new(ResponseCode::SystemError, given_up));
    };
    let work = move || -> Result<Frames, Refusal> {
        let _turn = turn;
        let mut out = Outgoing::new();
        let (_change, _look) = match changes {
            true => (Some(names.entry.blocking_write()), None),
            false => (None, Some(names.entry.blocking_read())),
        };
        let answered = owned.lend(|asked| names.answer_here(code, asked, &mut out));
        answered.map_err(|error| Refusal::new(ResponseCode::SystemError, error.to_string()))??;
        Ok(out.take())
    };
    let answered = tokio::task::spawn_blocking(work).await;
    let failed = |panicked: tokio::task::JoinError| Refusal::new(ResponseCode::SystemError, panicked.to_string());
    out.extend(answered.map_err(failed)??);
    Ok(())
}
