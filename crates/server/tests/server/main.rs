//! The binary, as whoever runs it meets it. What loads a machine for long, or says something of how fast it goes, is a program of its own beside
//! this one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods, missing_docs, reason = "tests")]

mod admin;
mod alike;
mod auto_batch;
mod bench;
mod closed_pipes;
mod codes;
mod controllers;
mod descriptors;
mod doctor;
mod failing_device;
mod failing_files;
mod flipped_bits;
mod loads;
mod many_lines;
mod metrics;
mod named;
mod outsiders;
mod placement;
mod process;
mod profile;
mod settings_file;
mod stalled_readers;
mod static_topics;
mod store;
#[path = "../support/mod.rs"]
mod support;
mod switching;
mod tls;
mod two_masters;
