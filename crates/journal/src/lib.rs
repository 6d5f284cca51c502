//! State that is not in the log: topics, groups, offsets and whatever else is a table from keys to
//! values.
//!
//! A [`Journal`] is an append-only file of small absolute changes and, now and then, a snapshot
//! that lets it begin anew. The state itself stays with its owners ([`Table`]); the journal keeps
//! no copy, so its memory does not grow with its file. Where the kernel's having a change is
//! enough, whoever puts it copies it into the mapped end of the file ([`window`]). Else, and when
//! that has no room, changes gather in memory while the thread `journal` writes the bundle before,
//! so the pace is the device's own. A second machine reads the same files by a [`Follower`].
//! Invariant: a change is in the kernel (in sync mode: on the device) before `written` reaches its
//! position, and opening finds the state as of some position at or above the last `written`, never
//! half a bundle.

mod bundle;
mod change;
mod copy;
mod entries;
mod error;
mod files;
mod follow;
mod front;
mod journal;
mod open;
mod options;
mod pending;
mod snapshot;
mod stats;
#[cfg(test)]
mod tests;
mod window;
mod writer;

pub use change::{Change, Table, TableId};
pub use copy::{JournalCopier, Piece};
pub use entries::{EntriesError, read_changes, write_change};
pub use error::{JournalError, REMEDY, WITHOUT};
pub use files::resident;
pub use follow::{FollowError, Follower, Part, PartOf};
pub use journal::Journal;
pub use open::{JournalLook, expect};
pub use options::{JournalOptions, JournalSync};
pub use stats::JournalStats;
