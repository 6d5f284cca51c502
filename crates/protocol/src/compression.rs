//! Compressed bodies: zlib, LZ4 frame, Zstandard. Brokers pass them through; whoever looks inside does it here.

use std::io::{Read, Write};

use crate::sys_flag;

/// The largest window that a Zstandard body may ask us to keep: 8 MiB, as much as RFC 8878 recommends to decoders and levels up
/// to 19 use. The frame names it, so a few bytes could ask for 128 MiB.
const ZSTD_WINDOW_LOG_MAX: u32 = 23;

/// How a body is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// LZ4 frame format.
    Lz4,
    /// A Zstandard frame.
    Zstd,
    /// RFC 1950; what clients before 5.0 use.
    Zlib,
}

/// Why a body stays closed.
#[derive(Debug, thiserror::Error)]
pub enum CompressionError {
    /// A kind that nobody defined.
    #[error("sysFlag names compression kind {0}, which is unknown")]
    UnknownKind(i32),
    /// More than the reader allows.
    #[error("the body would take more than {max_bytes} bytes")]
    TooLarge {
        /// What is allowed.
        max_bytes: usize,
    },
    /// Not what it says it is.
    #[error("{kind:?} body cannot be read: {source}")]
    Corrupt {
        /// What it says it is.
        kind: Compression,
        /// From the library.
        source: std::io::Error,
    },
}

impl Compression {
    /// The kind that a `sysFlag` states; `None` when the body is not compressed.
    pub fn of(sys_flag: i32) -> Result<Option<Compression>, CompressionError> {
        if sys_flag & sys_flag::COMPRESSED == 0 {
            return Ok(None);
        }
        match sys_flag & sys_flag::COMPRESSION_MASK {
            0 | sys_flag::COMPRESSION_ZLIB => Ok(Some(Compression::Zlib)),
            sys_flag::COMPRESSION_LZ4 => Ok(Some(Compression::Lz4)),
            sys_flag::COMPRESSION_ZSTD => Ok(Some(Compression::Zstd)),
            other => Err(CompressionError::UnknownKind(other >> 8)),
        }
    }

    /// The bits of `sysFlag` that state this kind.
    pub fn bits(self) -> i32 {
        sys_flag::COMPRESSED
            | match self {
                Compression::Lz4 => sys_flag::COMPRESSION_LZ4,
                Compression::Zstd => sys_flag::COMPRESSION_ZSTD,
                Compression::Zlib => sys_flag::COMPRESSION_ZLIB,
            }
    }
}

/// Unpacks a body of at most `max_bytes`, so that a small message cannot fill our memory.
pub fn decompress(kind: Compression, body: &[u8], max_bytes: usize) -> Result<Vec<u8>, CompressionError> {
    let corrupt = |source| CompressionError::Corrupt { kind, source };
    match kind {
        Compression::Lz4 => read_bounded(lz4_flex::frame::FrameDecoder::new(body), kind, max_bytes),
        Compression::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(body).map_err(corrupt)?;
            decoder.window_log_max(ZSTD_WINDOW_LOG_MAX).map_err(corrupt)?;
            read_bounded(decoder, kind, max_bytes)
        }
        Compression::Zlib => read_bounded(flate2::read::ZlibDecoder::new(body), kind, max_bytes),
    }
}

fn read_bounded(reader: impl Read, kind: Compression, max_bytes: usize) -> Result<Vec<u8>, CompressionError> {
    let mut out = Vec::new();
    let limit = (max_bytes as u64).saturating_add(1);
    reader.take(limit).read_to_end(&mut out).map_err(|source| CompressionError::Corrupt { kind, source })?;
    if out.len() > max_bytes {
        return Err(CompressionError::TooLarge { max_bytes });
    }
    Ok(out)
}

/// Packs a body. `level` is zlib's (0 to 9) and is translated for the others; RocketMQ's default is 5.
pub fn compress(kind: Compression, body: &[u8], level: u32) -> Result<Vec<u8>, CompressionError> {
    let corrupt = |source| CompressionError::Corrupt { kind, source };
    match kind {
        Compression::Lz4 => {
            let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::with_capacity(body.len() / 2));
            encoder.write_all(body).map_err(corrupt)?;
            encoder.finish().map_err(|error| corrupt(error.into()))
        }
        Compression::Zstd => zstd::stream::encode_all(body, level.min(19) as i32).map_err(corrupt),
        Compression::Zlib => {
            let level = flate2::Compression::new(level.min(9));
            let mut encoder = flate2::write::ZlibEncoder::new(Vec::with_capacity(body.len() / 2), level);
            encoder.write_all(body).map_err(corrupt)?;
            encoder.finish().map_err(corrupt)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [Compression; 3] = [Compression::Lz4, Compression::Zstd, Compression::Zlib];

    #[test]
    fn every_kind_gives_back_what_it_took() {
        let body = b"the same words again and again ".repeat(100);
        for kind in KINDS {
            let packed = compress(kind, &body, 5).unwrap();
            assert!(packed.len() < body.len());
            assert_eq!(decompress(kind, &packed, body.len()).unwrap(), body);
            assert_eq!(Compression::of(kind.bits()).unwrap(), Some(kind));
        }
    }

    #[test]
    fn a_bomb_is_refused_at_the_limit() {
        for kind in KINDS {
            let packed = compress(kind, &vec![0; 1 << 20], 5).unwrap();
            let refused = decompress(kind, &packed, (1 << 20) - 1);
            assert!(matches!(refused, Err(CompressionError::TooLarge { .. })), "{kind:?}: {refused:?}");
        }
    }

    #[test]
    fn a_zstandard_body_may_not_ask_for_a_window_beyond_the_limit() {
        for (window_log, is_read) in [(ZSTD_WINDOW_LOG_MAX, true), (ZSTD_WINDOW_LOG_MAX + 1, false)] {
            let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 3).unwrap();
            encoder.window_log(window_log).unwrap();
            encoder.write_all(b"a few").unwrap();
            // Before the end is known the frame states the window and not its own size.
            encoder.flush().unwrap();
            let read = decompress(Compression::Zstd, &encoder.finish().unwrap(), 1000);
            assert_eq!(read.is_ok(), is_read, "{window_log}: {read:?}");
        }
    }

    #[test]
    fn garbage_and_unknown_kinds_are_errors() {
        for kind in KINDS {
            assert!(decompress(kind, b"not compressed at all", 1000).is_err(), "{kind:?}");
        }
        assert!(matches!(Compression::of(0x401), Err(CompressionError::UnknownKind(4))));
        assert!(matches!(Compression::of(0x300), Ok(None)));
    }
}
