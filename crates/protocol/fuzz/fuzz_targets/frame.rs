//! A stream of bytes is cut into frames that lie within it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use protocol::frame::{MAX_FRAME_BYTES, peek};

fuzz_target!(|data: &[u8]| {
    let mut rest = data;
    while let Ok(Some(layout)) = peek(rest, MAX_FRAME_BYTES) {
        assert!(layout.header.start <= layout.header.end && layout.header.end == layout.body.start);
        assert!(layout.body.end == layout.frame_bytes && layout.frame_bytes <= rest.len());
        rest = &rest[layout.frame_bytes..];
    }
});
