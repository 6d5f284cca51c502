//! Looking at a store without changing it: what is there ([`Look::survey`]), whether it is sound ([`Look::verify`]), and its messages
//! ([`Look::records`]).
//!
//! Nothing here writes. Files are opened to be read, the log is mapped read-only, and code of the start that mends what it finds runs on a
//! file system that leaves it undone. Memory is bounded: the log is read a block at a time, and pages behind are let go.

mod finding;
mod index;
mod keys;
mod log;
mod offsets;
mod opened;
mod records;
mod survey;
mod timers;
mod times;
mod units;
mod verify;

pub use finding::Finding;
pub use index::IndexFileSurvey;
pub use log::LogSurvey;
pub use offsets::{Committed, KnownTables};
pub use opened::Look;
pub use records::{Lost, Part};
pub use survey::{QueueSurvey, Survey};
pub use timers::TimerSurvey;
pub use verify::Verified;
