//! A master and its slave as processes of their own, and what they promise each other: a row of `make ha` a test.
//!
//! `REPEAT=n` plays each row so often. A row ends with one line (`row.rs`), which `HA_REPORT` names a file for; `tests/ha` holds the file against the
//! list of rows. docs/testing.md says what each of them shows.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail by panicking")]

mod ledger;
mod promises;
mod room;
mod row;
mod set;
mod strangers;
#[path = "../support/mod.rs"]
mod support;
