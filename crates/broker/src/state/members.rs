//! The brokers of this set by address, of which slaves may have the log, and their ids. `master/members.rs` keeps them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use protocol::body::MASTER_ID;
use tokio::sync::{Notify, watch};

/// By address, the ids of the brokers that name servers list there.
pub(crate) type Listed = BTreeMap<IpAddr, BTreeSet<i64>>;

/// A snapshot, which the port looks into without waiting.
#[derive(Default)]
pub(crate) struct Members {
    known: ArcSwap<Listed>,
    /// An address was turned away.
    refused: Notify,
    /// Who may have the log has changed, by these or by the settings.
    changes: watch::Sender<()>,
}

impl Members {
    /// Whether a broker of this set has the address. If not, [`Members::refused`] is ready.
    pub(crate) fn has(&self, address: IpAddr) -> bool {
        let is_known = self.known.load().contains_key(&address);
        if !is_known {
            self.refused.notify_one();
        }
        is_known
    }

    /// Whether the slave that connects from the address may be the one of this id: it is listed there, or no slave is.
    pub(crate) fn may_be(&self, id: i64, address: IpAddr) -> bool {
        let known = self.known.load();
        let mut slaves = known.get(&address).into_iter().flatten().filter(|id| **id != MASTER_ID).peekable();
        slaves.peek().is_none() || slaves.any(|known| *known == id)
    }

    /// These are all.
    pub(crate) fn are(&self, known: Listed) {
        if **self.known.load() != known {
            tracing::debug!(?known, "addresses of the brokers of this set");
            self.known.store(Arc::new(known));
            self.changed();
        }
    }

    /// Has slaves that are connected looked at again, behind a change of the settings.
    pub(crate) fn changed(&self) {
        self.changes.send_replace(());
    }

    /// Tells of each change.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Ready once for all addresses that were not known since the last time.
    pub(crate) async fn refused(&self) {
        self.refused.notified().await;
    }
}
