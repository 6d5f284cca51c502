//! What operators do from a terminal. [`admin`] takes the commands and letters of RocketMQ's
//! `mqadmin`; [`store`] looks at a store that no broker has open, checks and mends it; [`pages`]
//! writes manual pages and completions.

#![deny(clippy::print_stdout, clippy::print_stderr, reason = "both panic when their reader has gone: env::say")]

pub mod admin;
pub mod pages;
pub mod store;
