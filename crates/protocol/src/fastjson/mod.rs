//! JSON bodies in both dialects that RocketMQ's peers write and read.
//!
//! fastjson 1.x, which Java peers use, writes numeric map keys without quotes and object keys as objects
//! (`{0:"a"}`, `{{"brokerName":"b"}:9}`). Other languages need standard JSON. We read either and write what is asked for:
//! members in the order of their struct (alphabetical, as fastjson sorts them), null members left out.

mod read;
mod write;

pub use read::from_slice;
pub use write::{to_vec, write};

/// Which JSON to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Numeric keys without quotes, object keys as objects: what Java peers and tools read.
    FastJson,
    /// Every key a string; an object key is the text of the object.
    Standard,
}

/// Why a body is not what it should be.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// Not JSON in either dialect, or not of the shape.
    #[error("{0}")]
    Shape(#[from] serde_json::Error),
    /// Nested deeper than any body of RocketMQ.
    #[error("nested deeper than {0} levels")]
    TooDeep(usize),
    /// A key that is an object or a list, and holds another such key.
    #[error("a key that is an object holds another one")]
    KeyInKey,
}

#[cfg(test)]
mod tests;
