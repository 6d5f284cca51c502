//! Bytes on this machine: commit log, consume queues, journal.

pub mod disk;
pub mod journal;
pub mod queue_log;
pub mod watermark;

pub use watermark::Watermark;
