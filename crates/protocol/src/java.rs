//! The two Java functions whose results are part of the protocol.

/// `String.hashCode()`: over UTF-16 units, wrapping.
pub fn string_hash(text: &str) -> i32 {
    if text.is_ascii() {
        return text.bytes().fold(0i32, |hash, byte| hash.wrapping_mul(31).wrapping_add(i32::from(byte)));
    }
    text.encode_utf16().fold(0i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)))
}

/// CRC32 as RocketMQ stores it: without the sign bit.
pub fn crc32(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes) & 0x7fff_ffff
}
