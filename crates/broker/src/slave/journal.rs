//! The journal of the master, as a task: what is not in the log arrives as it does there, change by change.
//!
//! Only from a master of ours, which says in its answer to 28 that it can (`tables.rs` asks, and offers it here). `copy.rs` puts the pieces
//! together, `rows.rs` takes them over. A piece is taken when the log here has come as far as the master's had when it was read: so nothing here
//! speaks of a message that is not here, and a slave that becomes a master has lost no message that its tables take for delivered.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use protocol::LogOffset;
use protocol::code::ResponseCode;
use tokio::time::timeout;

use super::check::check_master;
use super::copy::{Copy, CopyError, Step};
use super::master::{Master, MasterError};
use super::rows;
use crate::blocking::beside;
use crate::broker::Broker;
use crate::state::master_journal::Place;
use crate::tasks::Stop;

/// Pause before a master that did not answer is asked again.
const TRY_AGAIN: Duration = Duration::from_millis(200);
/// How long what has come of a journal is kept while no master's journal is to be followed.
const KEPT_FOR: Duration = Duration::from_secs(60);
const BUSY: i32 = ResponseCode::SystemBusy as i32;
/// Between two looks at whether the journal is to be followed, while that here is written.
const LOOK_AT_MASTER: Duration = Duration::from_millis(250);
/// Between two looks at the end of the log.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Why the journal is not followed any further.
#[derive(Debug, thiserror::Error)]
enum Ended {
    /// The master does not answer, or refuses.
    #[error(transparent)]
    Master(#[from] MasterError),
    /// Its answers are no journal.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// Another master is to be followed, or none.
    #[error("the journal of this master is not to be followed any more")]
    NotOffered,
}

/// Follows the journal of each master that is offered, until it is told to stop.
pub(crate) async fn follow_journal(broker: Arc<Broker>, mut stop: Stop) {
    let mut begun = None;
    while !stop.is_asked() {
        let round = async {
            let master = match timeout(KEPT_FOR, broker.master_journal.offered()).await {
                Ok(master) => master,
                Err(_) => {
                    begun = None;
                    broker.master_journal.offered().await
                }
            };
            let Err(ended) = follow(&broker, &master, &mut begun).await;
            (master, ended)
        };
        let (master, ended) = tokio::select! {
            biased;
            () = stop.asked() => return,
            ended = round => ended,
        };
        match ended {
            // It is gone, or not the master any more: those that look after that know. Or it has much to do.
            Ended::NotOffered
            | Ended::Master(MasterError::Call(_) | MasterError::Another | MasterError::Refused { code: BUSY, .. }) => {
                tracing::debug!(master = &*master, why = %ended, "the journal of the master is asked for again");
            }
            Ended::Master(_) | Ended::Copy(_) => {
                tracing::warn!(master = &*master, why = %ended, "the journal of the master cannot be followed, asking for its tables");
                begun = None;
                broker.master_journal.fail(ended.to_string(), broker.clock.elapsed());
            }
        }
        tokio::select! {
            biased;
            () = stop.asked() => return,
            () = tokio::time::sleep(TRY_AGAIN) => {}
        }
    }
}

/// A journal of which some has come, when its master did not answer: it goes on from there.
struct Begun {
    master: Box<str>,
    at: Option<Place>,
    copy: Copy,
}

/// Follows the journal of a master, from where `begun` has come to if that is of it. What can be gone on with is there when it ends.
async fn follow(broker: &Arc<Broker>, address: &str, begun: &mut Option<Begun>) -> Result<Infallible, Ended> {
    let master = Master { client: &broker.registry.client, address };
    let identity = broker.identity();
    // Where the tables here are, by what is asked for. If they are elsewhere, or nowhere, when an answer is here, that is not for them.
    let mut at = broker.master_journal.place();
    let mut copy = match begun.take() {
        Some(before) if *before.master == *address && before.at == at => before.copy,
        Some(_) | None => Copy::new(at),
    };
    // Ends with an error: the master is gone, or another one.
    loop {
        if !broker.master_journal.is_offered(address) {
            *begun = Some(Begun { master: address.into(), at, copy });
            return Err(Ended::NotOffered);
        }
        let wanted = copy.wanted();
        let written = at.filter(|at| at.life == wanted.place.life && copy.gathered().is_none()).map(|at| at.position);
        let told = match master.journal(&identity, &wanted, written).await {
            // The rest of a bundle that it does not have at hand any more: it comes whole.
            Err(MasterError::Refused { code, .. })
                if code == ResponseCode::QueryNotFound as i32 && copy.begin_bundle_again() =>
            {
                continue;
            }
            Err(error) => {
                *begun = Some(Begun { master: address.into(), at, copy });
                return Err(error.into());
            }
            Ok(told) => told,
        };
        broker.master_journal.note_end(told.journal_end);
        let log_end = told.log_end;
        let step = copy.take(told)?;
        let is_for_tables = || broker.master_journal.is_offered(address) && broker.master_journal.place() == at;
        if let Step::Nothing = step {
            let _taking = broker.master_journal.taking.lock().await;
            if !is_for_tables() {
                return Err(Ended::NotOffered);
            }
            match copy.gathered() {
                None => broker.master_journal.follows(),
                Some(rows) => broker.master_journal.gathers(rows),
            }
            continue;
        }
        if let Step::Replace(rows, _) = &step
            && is_for_tables()
        {
            broker.master_journal.gathers(rows.len());
        }
        until_log_has(broker, address, log_end).await?;
        {
            let _taking = broker.master_journal.taking.lock().await;
            check_master(broker, address)?;
            if !is_for_tables() {
                return Err(Ended::NotOffered);
            }
            beside(broker, move |broker| rows::take(broker, step)).await.map_err(CopyError::from)?;
            at = broker.master_journal.place();
            if at.is_some() {
                broker.master_journal.follows();
            }
        }
        until_written(broker, address).await?;
    }
}

/// Waits until the log here has come so far, while it comes from this master. With `SYNC_FLUSH` the device has it: a master forgets what it has
/// delivered when that is flushed, and a loss of power must not take the delivery and leave the row.
async fn until_log_has(broker: &Broker, address: &str, end: LogOffset) -> Result<(), Ended> {
    let store = &broker.store;
    let has_come = || if store.is_sync_flush() { store.flushed().get() >= end.0 } else { store.end() >= end };
    // Ends when the log has come, or does not come any more.
    while !has_come() {
        check_master(broker, address)?;
        if !broker.master_journal.is_offered(address) {
            return Err(Ended::NotOffered);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}

/// Waits until the journal here is written, while that of this master is to be followed. The master answers by it what must not be lost with itself.
async fn until_written(broker: &Broker, address: &str) -> Result<(), Ended> {
    let journal = broker.store.journal();
    let (written, position) = (journal.written(), journal.position());
    // Ends when it is written, or when another master is to be followed.
    while timeout(LOOK_AT_MASTER, written.reached(position)).await.is_err() {
        if !broker.master_journal.is_offered(address) {
            return Err(Ended::NotOffered);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
