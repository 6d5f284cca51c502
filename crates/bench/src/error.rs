//! What can go wrong before and while a load runs.

use std::path::PathBuf;

use client::ClientError;

/// Why a run does not begin, or does not end with a result.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A file that cannot be read or written.
    #[error("{}: {cause}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why not.
        cause: std::io::Error,
    },
    /// A line that is not `key: value`.
    #[error("{origin} line {line}: {problem}")]
    Syntax {
        /// The file's name.
        origin: String,
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// A key that nobody knows.
    #[error("{origin}: {key} is no key of a {kind}; known are {known}")]
    UnknownKey {
        /// Where it stands.
        origin: String,
        /// The key.
        key: String,
        /// `workload` or `driver`.
        kind: &'static str,
        /// All keys of that kind.
        known: String,
    },
    /// A value that cannot be.
    #[error("{origin}: {key} is \"{value}\"; {expected}")]
    BadValue {
        /// Where it stands.
        origin: String,
        /// The key.
        key: String,
        /// As it was given.
        value: String,
        /// What would be right, with its limits.
        expected: String,
    },
    /// Values that do not go together, or one that is missing.
    #[error("{0}")]
    Invalid(String),
    /// A result file that is none, or of another format.
    #[error("{} is no result of `gantry bench`: {cause}", path.display())]
    NoResult {
        /// Which.
        path: PathBuf,
        /// Why not.
        cause: String,
    },
    /// The target did not do its part while things were made ready.
    #[error("{what}: {cause}")]
    Target {
        /// What was asked of it.
        what: String,
        /// Its answer.
        cause: ClientError,
    },
}

impl BenchError {
    /// For `map_err` on requests to the target.
    pub fn target(what: impl Into<String>) -> impl FnOnce(ClientError) -> BenchError {
        let what = what.into();
        move |cause| BenchError::Target { what, cause }
    }
}
