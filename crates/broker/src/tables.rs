//! The tables that the broker keeps in `store::journal`. Numbers are on disk: never reuse one.

use store::journal::TableId;

/// Topic name → its configuration as JSON.
pub(crate) const TOPICS: TableId = TableId(1);
/// Name of a table → its data version as JSON.
pub(crate) const VERSIONS: TableId = TableId(2);
/// Delay level → offset of the next message to deliver; see `delay.rs`.
pub(crate) const DELAYS: TableId = TableId(3);
