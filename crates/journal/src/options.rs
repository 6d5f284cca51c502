//! What may be tuned, and the rule that says when a snapshot is due.

use std::time::Duration;

use crate::window::{ROOM_BYTES_MAX, ROOM_BYTES_MIN};

/// When a change is safe from a loss of power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalSync {
    /// Before `written` reaches it.
    Always,
    /// That long after it was written, at most. A crash of the process loses nothing either way.
    Every(Duration),
}

/// What may be tuned, also while running ([`Journal::configure`](crate::Journal::configure)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalOptions {
    /// When changes are made safe from a loss of power.
    pub sync: JournalSync,
    /// How long a bundle waits for company while nobody waits for it. Zero, the default, is rarely beaten: while a bundle is written,
    /// the next one gathers anyway. Anything else has the thread write each change.
    pub bundle_delay: Duration,
    /// The same when somebody waits for one of its changes.
    pub complete_delay: Duration,
    /// A snapshot is due when the journal is larger than this share of the last snapshot, in percent …
    pub snapshot_ratio_percent: u64,
    /// … and larger than this …
    pub snapshot_min_bytes: u64,
    /// … and what was written since the last one began is so much that the last one was at most this share of it, in percent.
    pub maintenance_percent: u64,
    /// When nothing changed for so long, a quarter of the first two will do.
    pub idle_after: Duration,
    /// Changes that wait to be written, in bytes, from where on only the newest of each key is kept.
    pub pending_bytes: usize,
    /// A bundle that waits is folded at this length at the latest, and is full when more than half of that is left. What is put together with its
    /// last change still goes into it, and what is full is folded with the next one, up to four times this.
    pub bundle_bytes: usize,
    /// Bytes of the file that are made ready at a time for whoever puts changes, within [`JournalOptions::ROOM_BYTES`].
    pub room_bytes: u64,
}

/// What was written since the last snapshot began, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Since {
    /// Changes that no snapshot has.
    pub journal: u64,
    /// These changes and whatever else was written on behalf of users.
    pub foreground: u64,
    /// The last snapshot; 0 if there is none.
    pub snapshot: u64,
}

impl JournalOptions {
    /// What `room_bytes` may be; anything else is taken for the nearest of these.
    pub const ROOM_BYTES: std::ops::RangeInclusive<u64> = ROOM_BYTES_MIN..=ROOM_BYTES_MAX;

    /// Whether a change may go by the thread that bundles and syncs.
    pub(super) fn may_copy(&self) -> bool {
        let delay = self.bundle_delay.max(self.complete_delay);
        matches!(self.sync, JournalSync::Every(_)) && delay.is_zero()
    }

    /// Whether a snapshot is due by what was written.
    ///
    /// Each snapshot is paid by what is written between its beginning and the next one's. So all snapshots but the last are never more
    /// than `maintenance_percent` of what users had written, however large the state is and however little comes.
    pub(super) fn is_snapshot_due(&self, since: Since, is_idle: bool) -> bool {
        let limit = percent(since.snapshot, self.snapshot_ratio_percent).max(self.snapshot_min_bytes);
        let is_paid = percent(since.foreground, self.maintenance_percent) >= since.snapshot;
        let is_worth_it = since.journal > if is_idle { limit / 4 } else { limit };
        since.journal > 0 && is_worth_it && is_paid
    }
}

impl Default for JournalOptions {
    fn default() -> Self {
        JournalOptions {
            sync: JournalSync::Every(Duration::from_millis(500)),
            bundle_delay: Duration::ZERO,
            complete_delay: Duration::ZERO,
            snapshot_ratio_percent: 200,
            snapshot_min_bytes: 4 << 20,
            maintenance_percent: 2,
            idle_after: Duration::from_secs(10),
            pending_bytes: 4 << 20,
            bundle_bytes: 256 << 20,
            room_bytes: 256 << 10,
        }
    }
}

fn percent(of: u64, percent: u64) -> u64 {
    (u128::from(of) * u128::from(percent) / 100).try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    fn since(journal: u64, foreground: u64, snapshot: u64) -> Since {
        Since { journal, foreground, snapshot }
    }

    #[test]
    fn a_snapshot_is_due_when_the_journal_is_large_for_the_state_and_the_last_one_is_paid() {
        let options = JournalOptions::default();
        for (now, when_busy, when_idle) in [
            // The first costs what it costs.
            (since(4 * KIB * KIB, 4 * KIB * KIB, 0), false, true),
            (since(4 * KIB * KIB + 1, 4 * KIB * KIB + 1, 0), true, true),
            // Small beside the state.
            (since(5 * KIB * KIB, 1 << 40, 3 * KIB * KIB), false, true),
            (since(1024 * KIB, 1 << 40, 3 * KIB * KIB), false, false),
            // Large, and not paid: one byte less than fifty times the last one.
            (since(10 * KIB * KIB, 50 * 3 * KIB * KIB - 1, 3 * KIB * KIB), false, false),
            (since(10 * KIB * KIB, 50 * 3 * KIB * KIB, 3 * KIB * KIB), true, true),
            // Nothing to take a snapshot of.
            (since(0, 1 << 40, 0), false, false),
        ] {
            assert_eq!(options.is_snapshot_due(now, false), when_busy, "{now:?}");
            assert_eq!(options.is_snapshot_due(now, true), when_idle, "{now:?}");
        }
    }

    #[test]
    fn snapshots_stay_below_two_percent_of_what_users_have_written_whatever_the_state_and_the_rate() {
        for state in [100, 20 * KIB, 4 * KIB * KIB, 700 * KIB * KIB] {
            // Bytes of the journal and of messages between two looks.
            for (changes, messages) in [(50, 0), (200, 1_300), (3 * KIB * KIB, 0), (100, 40 * KIB * KIB)] {
                let options = JournalOptions { snapshot_min_bytes: 4 * KIB, ..JournalOptions::default() };
                let (mut now, mut written, mut maintenance, mut snapshots) = (since(0, 0, 0), 0, 0, 0);
                for look in 0..200_000u64 {
                    now.journal += changes;
                    now.foreground += changes + messages;
                    written += changes + messages;
                    if options.is_snapshot_due(now, look % 3 == 0) {
                        // Paid before the next one: what was taken until now.
                        assert!(maintenance * 50 <= written, "{maintenance} of {written}, state {state}");
                        now = since(0, 0, state);
                        maintenance += state;
                        snapshots += 1;
                    }
                }
                assert!(snapshots > 0 && (maintenance - state) * 50 <= written, "state {state}, {changes}, {messages}");
            }
        }
    }
}
