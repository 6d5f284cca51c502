//! Something that is wrong with a store, as an operator is told of it.

use std::path::PathBuf;

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file, or the folder if a file is not there.
    pub file: PathBuf,
    /// Where in the file, in bytes.
    pub at: Option<u64>,
    /// What is wrong.
    pub what: String,
    /// What follows from it, for clients.
    pub effect: &'static str,
    /// What to do.
    pub remedy: &'static str,
}
