//! Writing: a small serializer of our own, because no JSON library leaves a key without quotes.

use serde::ser::{self, Serialize};

use super::Dialect;

/// The JSON of a body.
pub fn to_vec<T: Serialize + ?Sized>(value: &T, dialect: Dialect) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    write(&mut out, value, dialect);
    out
}

/// Appends the JSON of a body.
///
/// # Panics
/// If a type of ours refuses to be serialized, which none does.
pub fn write<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T, dialect: Dialect) {
    let written = value.serialize(&mut Writer { out, dialect });
    assert!(written.is_ok(), "a body refused to be written: {written:?}");
}

/// Nothing here fails by itself; only a type's own `Serialize` could.
#[derive(Debug)]
pub(super) struct Refused(String);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

impl ser::Error for Refused {
    fn custom<T: std::fmt::Display>(message: T) -> Self {
        Refused(message.to_string())
    }
}

struct Writer<'a> {
    out: &'a mut Vec<u8>,
    dialect: Dialect,
}

impl Writer<'_> {
    fn raw(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
    }

    fn integer(&mut self, value: impl itoa::Integer) {
        let mut buffer = itoa::Buffer::new();
        self.out.extend_from_slice(buffer.format(value).as_bytes());
    }

    fn open(&mut self, opener: u8, closer: &'static [u8]) -> Members<'_> {
        self.out.push(opener);
        Members { out: self.out, dialect: self.dialect, is_first: true, closer, key_at: 0 }
    }

    fn variant(&mut self, variant: &str) {
        self.out.push(b'{');
        escape(self.out, variant);
        self.out.push(b':');
    }
}

/// An object or an array that is being written.
struct Members<'a> {
    out: &'a mut Vec<u8>,
    dialect: Dialect,
    is_first: bool,
    closer: &'static [u8],
    /// Where the member that is being written began, comma included.
    key_at: usize,
}

impl Members<'_> {
    fn comma(&mut self) {
        self.key_at = self.out.len();
        if !self.is_first {
            self.out.push(b',');
        }
        self.is_first = false;
    }

    fn value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Refused> {
        value.serialize(&mut Writer { out: self.out, dialect: self.dialect })
    }

    /// Writes the value of a member; a null takes its key back.
    fn member<T: Serialize + ?Sized>(&mut self, was_first: bool, value: &T) -> Result<(), Refused> {
        let at = self.out.len();
        self.value(value)?;
        if self.out[at..] == *b"null" {
            self.out.truncate(self.key_at);
            self.is_first = was_first;
        }
        Ok(())
    }

    fn key(&mut self, key: &(impl Serialize + ?Sized)) -> Result<(), Refused> {
        let at = self.out.len();
        self.value(key)?;
        let text = self.out[at..].to_vec();
        let is_string = text.first() == Some(&b'"');
        if !is_string && self.dialect == Dialect::Standard {
            self.out.truncate(at);
            // What is not a string consists of whole characters: it was written as text just now.
            escape(self.out, &String::from_utf8_lossy(&text));
        }
        self.out.push(b':');
        Ok(())
    }

    fn close(self) {
        self.out.extend_from_slice(self.closer);
    }
}

impl<'w> ser::Serializer for &'w mut Writer<'_> {
    type Ok = ();
    type Error = Refused;
    type SerializeSeq = Members<'w>;
    type SerializeTuple = Members<'w>;
    type SerializeTupleStruct = Members<'w>;
    type SerializeTupleVariant = Members<'w>;
    type SerializeMap = Members<'w>;
    type SerializeStruct = Members<'w>;
    type SerializeStructVariant = Members<'w>;

    fn serialize_bool(self, value: bool) -> Result<(), Refused> {
        self.raw(if value { "true" } else { "false" });
        Ok(())
    }

    fn serialize_i8(self, value: i8) -> Result<(), Refused> {
        self.integer(value);
        Ok(())
    }

    fn serialize_i16(self, value: i16) -> Result<(), Refused> {
        self.integer(value);
        Ok(())
    }

    fn serialize_i32(self, value: i32) -> Result<(), Refused> {
        self.integer(value);
        Ok(())
    }

    fn serialize_i64(self, value: i64) -> Result<(), Refused> {
        self.integer(value);
        Ok(())
    }

    fn serialize_u8(self, value: u8) -> Result<(), Refused> {
        self.integer(value);
        Ok(())
    }

    fn serialize_u16(self, value: u16) -> Result<(), Refused> {
        self.integer(value);
        Ok(())
    }

    fn serialize_u32(self, value: u32) -> Result<(), Refused> {
        self.integer(value);
        Ok(())
    }

    fn serialize_u64(self, value: u64) -> Result<(), Refused> {
        self.integer(value);
        Ok(())
    }

    fn serialize_f32(self, value: f32) -> Result<(), Refused> {
        self.serialize_f64(f64::from(value))
    }

    fn serialize_f64(self, value: f64) -> Result<(), Refused> {
        // JSON has no infinity; fastjson writes null, which readers take for 0. A member so written would vanish.
        let value = if value.is_finite() { value } else { 0.0 };
        self.raw(&format!("{value:?}"));
        Ok(())
    }

    fn serialize_char(self, value: char) -> Result<(), Refused> {
        self.serialize_str(value.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, value: &str) -> Result<(), Refused> {
        escape(self.out, value);
        Ok(())
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<(), Refused> {
        let mut members = self.open(b'[', b"]");
        for byte in value {
            members.comma();
            members.value(byte)?;
        }
        members.close();
        Ok(())
    }

    fn serialize_none(self) -> Result<(), Refused> {
        self.raw("null");
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Refused> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), Refused> {
        self.serialize_none()
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), Refused> {
        self.serialize_none()
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<(), Refused> {
        self.serialize_str(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Result<(), Refused> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), Refused> {
        self.variant(variant);
        value.serialize(&mut *self)?;
        self.out.push(b'}');
        Ok(())
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Members<'w>, Refused> {
        Ok(self.open(b'[', b"]"))
    }

    fn serialize_tuple(self, _: usize) -> Result<Members<'w>, Refused> {
        Ok(self.open(b'[', b"]"))
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Members<'w>, Refused> {
        Ok(self.open(b'[', b"]"))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Members<'w>, Refused> {
        self.variant(variant);
        Ok(self.open(b'[', b"]}"))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Members<'w>, Refused> {
        Ok(self.open(b'{', b"}"))
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Members<'w>, Refused> {
        Ok(self.open(b'{', b"}"))
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Members<'w>, Refused> {
        self.variant(variant);
        Ok(self.open(b'{', b"}}"))
    }
}

impl ser::SerializeSeq for Members<'_> {
    type Ok = ();
    type Error = Refused;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Refused> {
        self.comma();
        self.value(value)
    }

    fn end(self) -> Result<(), Refused> {
        self.close();
        Ok(())
    }
}

impl ser::SerializeTuple for Members<'_> {
    type Ok = ();
    type Error = Refused;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Refused> {
        ser::SerializeSeq::serialize_element(self, value)
    }

    fn end(self) -> Result<(), Refused> {
        ser::SerializeSeq::end(self)
    }
}

impl ser::SerializeTupleStruct for Members<'_> {
    type Ok = ();
    type Error = Refused;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Refused> {
        ser::SerializeSeq::serialize_element(self, value)
    }

    fn end(self) -> Result<(), Refused> {
        ser::SerializeSeq::end(self)
    }
}

impl ser::SerializeTupleVariant for Members<'_> {
    type Ok = ();
    type Error = Refused;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Refused> {
        ser::SerializeSeq::serialize_element(self, value)
    }

    fn end(self) -> Result<(), Refused> {
        ser::SerializeSeq::end(self)
    }
}

impl ser::SerializeMap for Members<'_> {
    type Ok = ();
    type Error = Refused;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Refused> {
        self.comma();
        self.key(key)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Refused> {
        let was_first = self.out.get(self.key_at) != Some(&b',');
        self.member(was_first, value)
    }

    fn end(self) -> Result<(), Refused> {
        self.close();
        Ok(())
    }
}

impl ser::SerializeStruct for Members<'_> {
    type Ok = ();
    type Error = Refused;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), Refused> {
        let was_first = self.is_first;
        self.comma();
        escape(self.out, key);
        self.out.push(b':');
        self.member(was_first, value)
    }

    fn end(self) -> Result<(), Refused> {
        self.close();
        Ok(())
    }
}

impl ser::SerializeStructVariant for Members<'_> {
    type Ok = ();
    type Error = Refused;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), Refused> {
        ser::SerializeStruct::serialize_field(self, key, value)
    }

    fn end(self) -> Result<(), Refused> {
        self.close();
        Ok(())
    }
}

fn escape(out: &mut Vec<u8>, text: &str) {
    // serde_json writes strings as we want them; into memory it cannot fail.
    let written = serde_json::to_writer(&mut *out, text);
    debug_assert!(written.is_ok());
}
