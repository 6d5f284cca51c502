//! The tables that the broker keeps in `store::journal`. Numbers are on disk: never reuse one.

use store::journal::{Table, TableId};

/// Topic name → its configuration as JSON.
pub(crate) const TOPICS: TableId = TableId(1);
/// Name of a table → its data version as JSON.
pub(crate) const VERSIONS: TableId = TableId(2);
/// The row of [`VERSIONS`] for [`TOPICS`].
pub(crate) const TOPICS_VERSION: &[u8] = b"topics";
/// Delay level → offset of the next message to deliver; see `delay.rs`.
pub(crate) const DELAYS: TableId = TableId(3);

/// A table whose owner is a function: it gives every row.
pub(crate) struct Rows<F>(pub(crate) F);

impl<F: Fn(&mut dyn FnMut(&[u8], &[u8])) + Send + Sync> Table for Rows<F> {
    fn for_each(&self, f: &mut dyn FnMut(&[u8], &[u8])) {
        (self.0)(f);
    }
}
