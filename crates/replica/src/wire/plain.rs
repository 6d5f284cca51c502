//! The plain HA stream of RocketMQ 4.x and 5.x (`DefaultHAService`).
//!
//! A slave sends reports of 8 bytes: how far its log goes. The master sends frames: a header of 12 bytes, which states the log offset and
//! the length of the body, and the body, bytes of the log as they are. A frame of 0 bytes is a heartbeat, and states where the next frame
//! will begin. There is no handshake. All numbers are big-endian and signed; a negative one is refused.

use protocol::LogOffset;

use super::Gathered;

/// Bytes of a report.
pub const REPORT_BYTES: usize = 8;
/// Bytes in front of a body.
pub const HEADER_BYTES: usize = 12;
/// The longest body that Apache's master sends (`haTransferBatchSize`).
pub const BODY_BYTES: usize = 32 << 10;
/// The longest frame, with its header: Apache's slave reads into a buffer of this size, and a longer frame never completes there.
pub const FRAME_BYTES_MAX: usize = 4 << 20;

/// Bytes that are no report, or no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misread {
    /// A report that is no log offset.
    #[error("{0} was reported, which is no log offset")]
    Report(i64),
    /// A frame whose place is no log offset.
    #[error("a frame states {0}, which is no log offset")]
    Offset(i64),
    /// A frame that is too long, or has a negative length.
    #[error("the frame at log offset {at} states {bytes} bytes, the limit is {limit}")]
    Length {
        /// Where it begins.
        at: u64,
        /// As stated.
        bytes: i32,
        /// How many there may be.
        limit: usize,
    },
}

/// A report: the log goes up to `end`.
pub fn report(end: LogOffset) -> [u8; REPORT_BYTES] {
    end.0.to_be_bytes()
}

/// The header in front of a body; of 0 bytes: a heartbeat.
pub fn header(at: LogOffset, body_bytes: u32) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    let (offset, bytes) = header.split_at_mut(8);
    offset.copy_from_slice(&at.0.to_be_bytes());
    bytes.copy_from_slice(&body_bytes.to_be_bytes());
    header
}

/// Reads the reports of a slave.
#[derive(Debug)]
pub struct Reports(Gathered<REPORT_BYTES>);

impl Default for Reports {
    fn default() -> Reports {
        Reports(Gathered::new())
    }
}

impl Reports {
    /// The next report of `bytes`, which are shortened by it. None: the rest is less than one, and is kept.
    pub fn next(&mut self, bytes: &mut &[u8]) -> Result<Option<LogOffset>, Misread> {
        let Some(report) = self.0.take(bytes) else { return Ok(None) };
        let stated = i64::from_be_bytes(report);
        u64::try_from(stated).map(|end| Some(LogOffset(end))).map_err(|_| Misread::Report(stated))
    }
}

/// A part of the stream of a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// A frame begins.
    Header {
        /// The log offset of its first byte.
        at: LogOffset,
        /// Bytes of the body; 0: a heartbeat.
        body_bytes: u32,
    },
    /// Bytes of the body, in order: the first ones, or those that follow.
    Body(&'a [u8]),
}

/// Reads the frames of a master. Holds no body.
#[derive(Debug)]
pub struct Frames {
    header: Gathered<HEADER_BYTES>,
    /// Of the frame's body.
    left: usize,
}

impl Default for Frames {
    fn default() -> Frames {
        Frames { header: Gathered::new(), left: 0 }
    }
}

impl Frames {
    /// The next piece of `bytes`, which are shortened by it. None: the rest is less than a header, and is kept.
    pub fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<Option<Piece<'a>>, Misread> {
        if self.left > 0 {
            if bytes.is_empty() {
                return Ok(None);
            }
            let (body, rest) = bytes.split_at(self.left.min(bytes.len()));
            self.left -= body.len();
            *bytes = rest;
            return Ok(Some(Piece::Body(body)));
        }
        let Some(header) = self.header.take(bytes) else { return Ok(None) };
        let [a, b, c, d, e, f, g, h, i, j, k, l] = header;
        let stated = i64::from_be_bytes([a, b, c, d, e, f, g, h]);
        let at = u64::try_from(stated).map_err(|_| Misread::Offset(stated))?;
        let stated = i32::from_be_bytes([i, j, k, l]);
        let limit = FRAME_BYTES_MAX - HEADER_BYTES;
        let body_bytes = u32::try_from(stated).ok().filter(|bytes| *bytes as usize <= limit);
        let body_bytes = body_bytes.ok_or(Misread::Length { at, bytes: stated, limit })?;
        self.left = body_bytes as usize;
        Ok(Some(Piece::Header { at: LogOffset(at), body_bytes }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits.chunks(2).map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap()).collect()
    }

    /// Frames of a stream that comes in parts of such sizes: place and body.
    fn frames(stream: &[u8], sizes: &[usize]) -> Result<Vec<(u64, Vec<u8>)>, Misread> {
        let (mut frames, mut all, mut at) = (Frames::default(), Vec::new(), 0);
        for size in sizes.iter().cycle() {
            if at == stream.len() {
                break;
            }
            let end = stream.len().min(at + size.max(&1));
            let mut part = &stream[at..end];
            at = end;
            while let Some(piece) = frames.next(&mut part)? {
                match piece {
                    Piece::Header { at, body_bytes } => all.push((at.0, Vec::with_capacity(body_bytes as usize))),
                    Piece::Body(body) => all.last_mut().unwrap().1.extend_from_slice(body),
                }
            }
            assert!(part.is_empty(), "what is not whole is kept");
        }
        Ok(all)
    }

    /// Recorded from 5.5.0 on both sides: an idle connection, and one message of 245 bytes.
    #[test]
    fn the_stream_of_apache_s_brokers_byte_for_byte() {
        assert_eq!(report(LogOffset(0)).to_vec(), bytes("0000000000000000"));
        assert_eq!(header(LogOffset(0), 0).to_vec(), bytes("0000000000000000 00000000"));
        assert_eq!(header(LogOffset(0), 245).to_vec(), bytes("0000000000000000 000000f5"));
        assert_eq!(report(LogOffset(245)).to_vec(), bytes("00000000000000f5"));
        assert_eq!(header(LogOffset(245), 245).to_vec(), bytes("00000000000000f5 000000f5"));
        let mut stream = bytes("0000000000000000 00000000 0000000000000000 000000f5");
        let body = vec![7; 245];
        stream.extend_from_slice(&body);
        stream.extend(bytes("00000000000000f5 00000000"));
        for sizes in [[usize::MAX >> 1, 1], [1, 1], [11, 3], [12, 257]] {
            assert_eq!(frames(&stream, &sizes).unwrap(), [(0, vec![]), (0, body.clone()), (245, vec![])]);
        }
    }

    #[test]
    fn reports_come_in_any_parts_and_each_is_seen() {
        let stream = bytes("0000000000000000 00000000000000f5 00000000000001ea");
        for size in 1..=stream.len() {
            let (mut reports, mut seen) = (Reports::default(), Vec::new());
            for mut part in stream.chunks(size) {
                while let Some(report) = reports.next(&mut part).unwrap() {
                    seen.push(report.0);
                }
            }
            assert_eq!(seen, [0, 245, 490], "{size}");
        }
    }

    #[test]
    fn negative_numbers_and_lengths_beyond_the_limit_are_refused() {
        let mut negative: &[u8] = &bytes("ffffffffffffffff");
        assert_eq!(Reports::default().next(&mut negative), Err(Misread::Report(-1)));
        let limit = FRAME_BYTES_MAX - HEADER_BYTES;
        let refused = |hex| frames(&bytes(hex), &[5]).unwrap_err();
        assert_eq!(refused("ffffffffffffffff 00000000"), Misread::Offset(-1));
        assert_eq!(refused("0000000000000001 ffffffff"), Misread::Length { at: 1, bytes: -1, limit });
        assert_eq!(refused("0000000000000001 003ffff5"), Misread::Length { at: 1, bytes: limit as i32 + 1, limit });
        assert_eq!(frames(&bytes("0000000000000001 003ffff4"), &[5]).unwrap(), [(1, vec![])]);
        // An HTTP request that came to the wrong port.
        assert!(matches!(frames(b"HTTP/1.1 400 Bad Request\r\n", &[9]), Err(Misread::Length { .. })));
    }

    proptest! {
        #[test]
        fn any_frames_in_any_parts_come_out_as_they_went_in(
            sent in prop::collection::vec((0..1_u64 << 62, prop::collection::vec(any::<u8>(), 0..60)), 0..20),
            sizes in prop::collection::vec(1_usize..50, 1..9),
        ) {
            let mut stream = Vec::new();
            for (at, body) in &sent {
                stream.extend_from_slice(&header(LogOffset(*at), body.len() as u32));
                stream.extend_from_slice(body);
            }
            prop_assert_eq!(frames(&stream, &sizes).unwrap(), sent);
        }

        #[test]
        fn any_bytes_are_frames_and_reports_or_refused(
            stream in prop::collection::vec(any::<u8>(), 0..400),
            size in 1_usize..50,
        ) {
            drop(frames(&stream, &[size]));
            let mut reports = Reports::default();
            for mut part in stream.chunks(size) {
                // Each turn takes bytes, or is the last.
                while let Ok(Some(report)) = reports.next(&mut part) {
                    prop_assert!(i64::try_from(report.0).is_ok());
                }
            }
        }
    }
}
