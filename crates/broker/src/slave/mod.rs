//! A slave of a master: the copy of its log, and the tables that are not in the log.
//!
//! `follow.rs` has the log, by the stream of Gantry or Apache's plain one; nobody else appends to it. `tables.rs` asks the master, as Apache's slaves do, for topics (21),
//! offsets (43, 45), groups (201), ways of consuming (402) and timer messages (60, 61), and puts what is new into the journal. `master.rs` has the
//! requests. `owed.rs` gives the master what clients have committed here. All of them deal only with a master whose log continues the one here
//! (`check.rs`, `replica/asking.rs`). All of it goes on where it was after a crash: the log says itself how far it goes, and tables come as a whole.
//!
//! `readers.rs` wakes pulls that wait here for what the copy brings.
//!
//! Of a master of ours a slave follows the journal instead (`journal.rs`, `copy.rs`, `rows.rs`), once its log has come near the master's.

mod check;
mod copy;
mod epochs;
mod follow;
mod journal;
mod master;
mod owed;
mod readers;
mod rows;
mod tables;

pub(crate) use follow::follow;
pub(crate) use journal::follow_journal;
pub(crate) use readers::wake_readers;
pub(crate) use tables::{keep_tables, take_last};
