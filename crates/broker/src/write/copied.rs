//! Whether slaves have what an answer speaks of in their journals: settings, and topics that sends make.

use std::sync::Arc;
use std::time::Duration;

use crate::broker::Broker;
use crate::caller::JOURNAL_TIMEOUT;
use crate::state::journal_copies::{Copying, Needed};

impl Broker {
    /// Whether the slaves that a change of settings waits for have the journal up to `position`.
    pub(crate) fn has_copied(&self, position: u64) -> bool {
        position == 0 || self.copying().has(position)
    }

    /// A wait for them.
    pub(crate) fn copying(&self) -> Copying {
        let needed = Needed::of(&self.copies, &self.slaves, &self.journal_copies);
        let limit = Duration::from_millis(self.store_settings.load().slave_timeout).min(JOURNAL_TIMEOUT);
        Copying::new(Arc::clone(&self.journal_copies), needed, limit)
    }
}
