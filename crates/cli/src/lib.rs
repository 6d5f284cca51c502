//! What operators do from a terminal. [`admin`] takes the commands and letters of RocketMQ's `mqadmin`; [`doctor`] looks for what could
//! make a broker slow, unsafe or unreachable; [`profile`] shows where a running server spends its processor time; [`store`] looks at a
//! store that no broker has open, checks and mends it; [`pages`] writes manual pages and completions.

#![deny(clippy::print_stdout, clippy::print_stderr, reason = "both panic when their reader has gone: env::say")]

pub mod admin;
pub mod doctor;
pub mod pages;
pub mod profile;
pub mod store;
