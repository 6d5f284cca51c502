//! Writing headers: straight into a connection's out-buffer, lengths patched in afterwards.

use bytes::{BufMut, BytesMut};

use crate::VERSION;
use crate::code::ResponseCode;
use crate::frame::{MAX_FRAME_BYTES, PREFIX_BYTES, Serialization};

/// The fixed part of a header that we write. Version and language are ours: [`VERSION`] and JAVA, which every client knows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Head<'a> {
    /// Request code, or response code.
    pub code: i32,
    /// [`super::FLAG_RESPONSE`], [`super::FLAG_ONEWAY`].
    pub flag: i32,
    /// The requester's number of the exchange.
    pub opaque: i32,
    /// Text for people.
    pub remark: Option<&'a str>,
}

/// Something that becomes the `extFields` of a header.
pub trait EncodeFields {
    /// Writes each field that is present.
    fn encode(&self, sink: &mut FieldSink<'_>);
}

impl EncodeFields for () {
    fn encode(&self, _: &mut FieldSink<'_>) {}
}

impl<A: EncodeFields, B: EncodeFields> EncodeFields for (A, B) {
    fn encode(&self, sink: &mut FieldSink<'_>) {
        self.0.encode(sink);
        self.1.encode(sink);
    }
}

impl<T: EncodeFields + ?Sized> EncodeFields for &T {
    fn encode(&self, sink: &mut FieldSink<'_>) {
        (**self).encode(sink);
    }
}

impl<T: EncodeFields> EncodeFields for Option<T> {
    fn encode(&self, sink: &mut FieldSink<'_>) {
        if let Some(fields) = self {
            fields.encode(sink);
        }
    }
}

impl EncodeFields for super::Fields<'_> {
    fn encode(&self, sink: &mut FieldSink<'_>) {
        for (name, value) in self.iter() {
            sink.str(name, value);
        }
    }
}

/// Pairs of name and value, for fields that are not in any table.
impl EncodeFields for [(&str, &str)] {
    fn encode(&self, sink: &mut FieldSink<'_>) {
        for (name, value) in self {
            sink.str(name, value);
        }
    }
}

impl<const N: usize> EncodeFields for [(&str, &str); N] {
    fn encode(&self, sink: &mut FieldSink<'_>) {
        self.as_slice().encode(sink);
    }
}

/// Takes fields one by one and writes them in the form of the frame.
pub struct FieldSink<'a> {
    out: &'a mut BytesMut,
    serialization: Serialization,
    is_empty: bool,
}

impl FieldSink<'_> {
    /// Text.
    pub fn str(&mut self, name: &str, value: &str) {
        match self.serialization {
            Serialization::Json => {
                self.json_name(name);
                self.out.put_u8(b'"');
                put_escaped(self.out, value);
                self.out.put_u8(b'"');
            }
            Serialization::Binary => self.binary(name, value.as_bytes()),
        }
    }

    /// A number.
    pub fn i32(&mut self, name: &str, value: i32) {
        self.i64(name, i64::from(value));
    }

    /// A number.
    pub fn i64(&mut self, name: &str, value: i64) {
        let mut buffer = itoa::Buffer::new();
        self.plain(name, buffer.format(value));
    }

    /// `true` or `false`.
    pub fn bool(&mut self, name: &str, value: bool) {
        self.plain(name, if value { "true" } else { "false" });
    }

    /// Text, if any.
    pub fn opt_str(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.str(name, value);
        }
    }

    /// A number, if any.
    pub fn opt_i32(&mut self, name: &str, value: Option<i32>) {
        if let Some(value) = value {
            self.i32(name, value);
        }
    }

    /// A number, if any.
    pub fn opt_i64(&mut self, name: &str, value: Option<i64>) {
        if let Some(value) = value {
            self.i64(name, value);
        }
    }

    /// A truth value, if any.
    pub fn opt_bool(&mut self, name: &str, value: Option<bool>) {
        if let Some(value) = value {
            self.bool(name, value);
        }
    }

    /// A value that needs no escape.
    fn plain(&mut self, name: &str, value: &str) {
        match self.serialization {
            Serialization::Json => {
                self.json_name(name);
                self.out.put_u8(b'"');
                self.out.put_slice(value.as_bytes());
                self.out.put_u8(b'"');
            }
            Serialization::Binary => self.binary(name, value.as_bytes()),
        }
    }

    fn json_name(&mut self, name: &str) {
        self.out.put_slice(if self.is_empty { b",\"extFields\":{\"" } else { b",\"" });
        self.is_empty = false;
        put_escaped(self.out, name);
        self.out.put_slice(b"\":");
    }

    fn binary(&mut self, name: &str, value: &[u8]) {
        // Field names are ours and short; one from outside that is not is left out, with its value, rather than corrupt the frame.
        let Ok(name_bytes) = i16::try_from(name.len()) else { return };
        self.is_empty = false;
        self.out.put_i16(name_bytes);
        self.out.put_slice(name.as_bytes());
        self.out.put_i32(value.len() as i32);
        self.out.put_slice(value);
    }
}

/// Writes the length words and the header of a frame; the body of `body_len` bytes is for the caller to write after it.
///
/// A code that the binary form cannot hold (16 bits) is written as JSON, which every peer reads in any frame. A header that
/// would not fit into a frame of [`MAX_FRAME_BYTES`] is replaced by a refusal without fields (code 1, which no request has).
/// Whether header and body together fit is for the caller to know.
pub fn write_frame(
    out: &mut BytesMut,
    serialization: Serialization,
    head: &Head<'_>,
    fields: &dyn EncodeFields,
    body_len: usize,
) {
    let serialization = if i16::try_from(head.code).is_ok() { serialization } else { Serialization::Json };
    let start = out.len();
    out.reserve(256);
    out.put_u64(0);
    match serialization {
        Serialization::Json => write_json(out, head, fields),
        Serialization::Binary => write_binary(out, head, fields),
    }
    if out.len() - start > MAX_FRAME_BYTES {
        // Its length would spill into the byte of the serialization, and no peer would find the next frame.
        out.truncate(start + PREFIX_BYTES);
        let remark = Some("the header is longer than a frame can hold");
        let refusal = Head { code: ResponseCode::SystemError as i32, remark, ..*head };
        match serialization {
            Serialization::Json => write_json(out, &refusal, &()),
            Serialization::Binary => write_binary(out, &refusal, &()),
        }
    }
    let header_bytes = out.len() - start - PREFIX_BYTES;
    let total = (4 + header_bytes + body_len) as u32;
    let kind = match serialization {
        Serialization::Json => 0,
        Serialization::Binary => 1u32 << 24,
    };
    out[start..start + 4].copy_from_slice(&total.to_be_bytes());
    out[start + 4..start + 8].copy_from_slice(&(kind | header_bytes as u32).to_be_bytes());
}

fn write_json(out: &mut BytesMut, head: &Head<'_>, fields: &dyn EncodeFields) {
    let mut number = itoa::Buffer::new();
    out.put_slice(b"{\"code\":");
    out.put_slice(number.format(head.code).as_bytes());
    let mut sink = FieldSink { out, serialization: Serialization::Json, is_empty: true };
    fields.encode(&mut sink);
    if !sink.is_empty {
        out.put_u8(b'}');
    }
    out.put_slice(b",\"flag\":");
    out.put_slice(number.format(head.flag).as_bytes());
    out.put_slice(b",\"language\":\"JAVA\",\"opaque\":");
    out.put_slice(number.format(head.opaque).as_bytes());
    if let Some(remark) = head.remark {
        out.put_slice(b",\"remark\":\"");
        put_escaped(out, remark);
        out.put_u8(b'"');
    }
    out.put_slice(b",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":");
    out.put_slice(number.format(VERSION).as_bytes());
    out.put_u8(b'}');
}

fn write_binary(out: &mut BytesMut, head: &Head<'_>, fields: &dyn EncodeFields) {
    out.put_i16(head.code as i16);
    out.put_u8(0);
    out.put_i16(VERSION as i16);
    out.put_i32(head.opaque);
    out.put_i32(head.flag);
    let remark = head.remark.unwrap_or_default();
    out.put_i32(remark.len() as i32);
    out.put_slice(remark.as_bytes());
    let length_at = out.len();
    out.put_i32(0);
    fields.encode(&mut FieldSink { out, serialization: Serialization::Binary, is_empty: true });
    let fields_bytes = (out.len() - length_at - 4) as i32;
    out[length_at..length_at + 4].copy_from_slice(&fields_bytes.to_be_bytes());
}

/// For each byte below 0x60: 0 when it stands for itself in a JSON string, `u` for `\u00XX`, else the letter of its escape.
const ESCAPES: [u8; 0x60] = {
    let mut table = [0; 0x60];
    let mut byte = 0;
    while byte < 0x20 {
        table[byte] = b'u';
        byte += 1;
    }
    table[0x08] = b'b';
    table[0x09] = b't';
    table[0x0a] = b'n';
    table[0x0c] = b'f';
    table[0x0d] = b'r';
    table[b'"' as usize] = b'"';
    table[b'\\' as usize] = b'\\';
    table
};

fn put_escaped(out: &mut BytesMut, text: &str) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut rest = text.as_bytes();
    while let Some(at) = first_escaped(rest) {
        let byte = rest[at];
        out.put_slice(&rest[..at]);
        rest = &rest[at + 1..];
        match escape_of(byte) {
            b'u' => {
                let digits = [HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]];
                out.put_slice(&[b'\\', b'u', b'0', b'0', digits[0], digits[1]]);
            }
            letter => out.put_slice(&[b'\\', letter]),
        }
    }
    out.put_slice(rest);
}

fn escape_of(byte: u8) -> u8 {
    ESCAPES.get(usize::from(byte)).copied().unwrap_or(0)
}

/// Where the first byte is that does not stand for itself.
fn first_escaped(bytes: &[u8]) -> Option<usize> {
    // Without a way out of the inner loop it becomes vector instructions: the ids of a batch are tens of kilobytes without an escape.
    let is_escaped = |byte: &u8| *byte < b' ' || *byte == b'"' || *byte == b'\\';
    let (blocks, _) = bytes.as_chunks::<32>();
    let clean = blocks.iter().take_while(|block| !block.iter().fold(false, |any, byte| any | is_escaped(byte))).count();
    let begin = clean * 32;
    bytes[begin..].iter().position(is_escaped).map(|at| begin + at)
}
