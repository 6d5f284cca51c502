//! The store over real files: what goes in comes out, whatever happens in between.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods, missing_docs, reason = "tests")]

mod appending;
mod batches;
mod blocks;
mod clean_start;
mod closing;
mod copied_open;
mod copies;
mod crash;
mod damaged_units;
mod device;
mod files;
mod flipped_bits;
mod generations;
mod governor;
mod in_memory;
mod index;
mod killed;
mod light;
mod log_dirs;
mod losses;
mod lost_journal;
mod pool;
mod read_mode;
mod reading;
mod retention;
mod stages;
mod support;
mod unreadable;
mod unsynced;
