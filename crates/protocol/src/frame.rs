//! Frames: where one ends in a stream of bytes.
//!
//! ```text
//! 0        4               8          8+H        8+H+B
//! | total  | S:u8 | H:u24  | header   | body     |      total = 4 + H + B, big-endian
//! ```
//! Nothing is copied or decoded here; a layout is four numbers.

use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};

/// What a frame may hold at most, its length word included, as in Apache's `frameMaxLength`.
pub const MAX_FRAME_BYTES: usize = 16 << 20;

/// Bytes in front of the header: the length word, and the word of serialization and header length.
pub const PREFIX_BYTES: usize = 8;

/// The largest header that the 24-bit length can state.
pub const MAX_HEADER_BYTES: usize = 0x00ff_ffff;

/// How a header is written. A peer may change it from frame to frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serialization {
    /// A JSON object: what every client speaks by default.
    Json,
    /// RocketMQ's own binary form (`rocketmq.serialize.type=ROCKETMQ`).
    Binary,
}

/// Where the parts of the first frame in a buffer lie, from the frame's first byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameLayout {
    /// The whole frame, length word included.
    pub frame_bytes: usize,
    /// The header.
    pub header: Range<usize>,
    /// The body; empty when there is none.
    pub body: Range<usize>,
    /// How the header is written.
    pub serialization: Serialization,
}

/// Why a stream cannot be cut into frames any more. The only answer is to close the connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Larger than the receiver allows.
    #[error("frame of {frame_bytes} bytes is over the limit of {max_bytes}")]
    TooLarge {
        /// What the length word says, itself included.
        frame_bytes: u64,
        /// What is allowed.
        max_bytes: usize,
    },
    /// A frame always holds at least the word of the header length.
    #[error("frame length {0} is too small for a header length")]
    TooSmall(i32),
    /// The header would reach beyond the frame.
    #[error("header of {header_bytes} bytes does not fit a frame of {frame_bytes}")]
    HeaderBeyondFrame {
        /// What the header length says.
        header_bytes: usize,
        /// The frame, length word included.
        frame_bytes: usize,
    },
    /// Neither JSON nor ROCKETMQ.
    #[error("unknown serialization {0}")]
    UnknownSerialization(u8),
}

/// Looks at the first frame of `buffer`: its layout, or `None` while it is not whole.
///
/// A bad length is reported as soon as its bytes are there, so that nobody buffers 2 GB on a stranger's word.
pub fn peek(buffer: &[u8], max_bytes: usize) -> Result<Option<FrameLayout>, FrameError> {
    let Some(total) = word(buffer, 0) else { return Ok(None) };
    if total < 4 {
        return Err(FrameError::TooSmall(total));
    }
    let frame_bytes = total as usize + 4;
    if frame_bytes > max_bytes {
        return Err(FrameError::TooLarge { frame_bytes: frame_bytes as u64, max_bytes });
    }
    let Some(second) = word(buffer, 4) else { return Ok(None) };
    let serialization = match buffer[4] {
        0 => Serialization::Json,
        1 => Serialization::Binary,
        other => return Err(FrameError::UnknownSerialization(other)),
    };
    let header_bytes = second as usize & MAX_HEADER_BYTES;
    let body_at = PREFIX_BYTES + header_bytes;
    if body_at > frame_bytes {
        return Err(FrameError::HeaderBeyondFrame { header_bytes, frame_bytes });
    }
    if buffer.len() < frame_bytes {
        return Ok(None);
    }
    Ok(Some(FrameLayout { frame_bytes, header: PREFIX_BYTES..body_at, body: body_at..frame_bytes, serialization }))
}

/// A frame of a header and a body that were cut from one, which fit into [`MAX_FRAME_BYTES`].
pub fn of_parts(serialization: Serialization, header: &[u8], body: &[u8]) -> Bytes {
    let kind = match serialization {
        Serialization::Json => 0,
        Serialization::Binary => 1u32 << 24,
    };
    let mut frame = BytesMut::with_capacity(PREFIX_BYTES + header.len() + body.len());
    frame.put_u32((4 + header.len() + body.len()) as u32);
    frame.put_u32(kind | header.len() as u32);
    frame.put_slice(header);
    frame.put_slice(body);
    frame.freeze()
}

/// The bytes that the first frame will need, when its length word is already there. For sizing a read buffer.
pub fn needed(buffer: &[u8]) -> Option<usize> {
    word(buffer, 0).filter(|total| *total >= 4).map(|total| total as usize + 4)
}

fn word(buffer: &[u8], at: usize) -> Option<i32> {
    buffer.get(at..at + 4)?.try_into().ok().map(i32::from_be_bytes)
}
