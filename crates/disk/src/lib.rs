//! The file system as a seam, its layers, and the threads that wait for it.
//!
//! [`Disk`] is all that a crate may do to files other than through a mapping; [`RealDisk`] is the
//! machine's own, and [`Unchanged`] changes nothing of it. Layers ([`DiskLayer`]) stand before it:
//! [`Unsynced`] marks a sync that failed, [`governed`] keeps what files occupy in memory within a
//! budget, and `faults`, for tests, fails as it is told.
//! [`worker`] starts and calls threads, [`turns`] lets the simulator order them, a [`Watermark`] says how far
//! something has come, and a broken [`invariant`] ends the process.

#[cfg(feature = "faults")]
pub mod faults;
mod governed;
pub mod invariant;
mod layer;
pub mod pages;
mod seam;
pub mod turns;
mod unchanged;
mod unsynced;
mod watermark;
pub mod worker;

pub use governed::{FilePages, governed};
pub use layer::{DiskLayer, FileLayer};
pub use seam::{DirEntry, Disk, DiskFile, DiskUse, OpenHow, RealDisk, sync_or_end, was_begun};
pub use unchanged::Unchanged;
pub use unsynced::Unsynced;
pub use watermark::{Reached, Watermark};
