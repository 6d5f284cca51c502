//! A master and a slave, each with a store of its own, over sockets of this machine.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs, reason = "tests")]

mod agreeing;
mod copies;
mod guards;
mod own;
mod support;
