//! How units lie in files: fixed bytes a unit, so many units a file, files named by their first byte.
//!
//! Inside this room a unit is named by its place: how many units the queue had before it since its first file began.

use std::path::PathBuf;

/// Of one kind of queue.
pub(super) struct Layout {
    /// The folder of all topics.
    pub dir: PathBuf,
    /// Bytes of a file, a multiple of `unit_bytes`.
    pub file_bytes: u64,
    /// Bytes of a unit.
    pub unit_bytes: usize,
}

impl Layout {
    pub fn units_per_file(&self) -> u64 {
        self.file_bytes / self.unit_bytes as u64
    }

    /// The first place of the file that holds a place.
    pub fn file_start(&self, place: u64) -> u64 {
        place - place % self.units_per_file()
    }

    /// The first place of the file behind it.
    pub fn file_end(&self, place: u64) -> u64 {
        self.file_start(place) + self.units_per_file()
    }

    pub fn byte_in_file(&self, place: u64) -> u64 {
        (place % self.units_per_file()) * self.unit_bytes as u64
    }

    /// The first byte of the unit at a place, all files of the queue counted.
    pub fn byte_of(&self, place: u64) -> u64 {
        place * self.unit_bytes as u64
    }
}
