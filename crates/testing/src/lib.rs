//! Shared by tests, and by nothing else.

pub mod circles;
pub mod imports;
