//! How rows on disk and messages between nodes are written.
//!
//! Each is one line of JSON, `{"v":1,"body":…}`, and may have raw bytes behind a line feed, which
//! JSON never contains. The rule for nodes of different releases: a field that a node does not know
//! is skipped, and a version above its own is refused. So a field that an older node must not skip
//! raises the version.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The version that is written, and the highest that is read.
pub(super) const VERSION: u32 = 1;

/// Bytes that this release does not understand.
#[derive(Debug, thiserror::Error)]
pub(super) enum FormatError {
    #[error("it is not what a controller writes: {0}")]
    Json(#[from] serde_json::Error),
    #[error("it has format version {found}, and this release reads versions up to {VERSION}; update this node first")]
    Version { found: u32 },
}

#[derive(Serialize)]
struct Written<'a, T> {
    v: u32,
    body: &'a T,
}

#[derive(Deserialize)]
struct Versioned {
    v: u32,
}

#[derive(Deserialize)]
struct Read<T> {
    body: T,
}

/// The line for `body`, without a line feed.
pub(super) fn encode<T: Serialize>(body: &T) -> Result<Vec<u8>, FormatError> {
    Ok(serde_json::to_vec(&Written { v: VERSION, body })?)
}

/// What [`encode`] was given.
pub(super) fn decode<T: DeserializeOwned>(line: &[u8]) -> Result<T, FormatError> {
    // The version first: of a later one the rest may look different.
    let Versioned { v } = serde_json::from_slice(line)?;
    if v > VERSION {
        return Err(FormatError::Version { found: v });
    }
    let Read { body } = serde_json::from_slice(line)?;
    Ok(body)
}

/// The line, and bytes behind it.
pub(super) fn join(mut line: Vec<u8>, data: &[u8]) -> Vec<u8> {
    line.reserve_exact(data.len() + 1);
    line.push(b'\n');
    line.extend_from_slice(data);
    line
}

/// The line, and the bytes behind it; none if there is a line only.
pub(super) fn split(bytes: &[u8]) -> (&[u8], &[u8]) {
    match bytes.iter().position(|byte| *byte == b'\n') {
        Some(end) => (&bytes[..end], &bytes[end + 1..]),
        None => (bytes, &[]),
    }
}
