//! One field of a header: its kind, how it is read and written, and the macro that makes a struct of a table of them.

use crate::header::{FieldSink, Fields, Name};

/// What a field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// Any text.
    Str,
    /// A decimal number of 32 bits.
    I32,
    /// A decimal number of 64 bits.
    I64,
    /// `true`, in any case; all else is false, as in Java.
    Bool,
}

impl FieldKind {
    fn name(self) -> &'static str {
        match self {
            FieldKind::Str => "a string",
            FieldKind::I32 => "an i32",
            FieldKind::I64 => "an i64",
            FieldKind::Bool => "a bool",
        }
    }
}

/// One row of a header's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldSpec {
    /// The name on the wire.
    pub name: &'static str,
    /// What it holds.
    pub kind: FieldKind,
    /// Whether a request without it is refused.
    pub is_required: bool,
}

/// A field that is missing or holds something else.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// Not there.
    #[error("field {name} is missing")]
    Missing {
        /// The name on the wire.
        name: &'static str,
    },
    /// Not of its kind.
    #[error("field {name}: \"{value}\" is not {}", .kind.name())]
    Invalid {
        /// The name on the wire.
        name: &'static str,
        /// What stands there, cut to a readable length.
        value: Box<str>,
        /// What should.
        kind: FieldKind,
    },
}

impl FieldError {
    fn invalid(name: &'static str, value: &str, kind: FieldKind) -> FieldError {
        FieldError::Invalid { name, value: value.chars().take(64).collect(), kind }
    }
}

/// The types that a field can have.
pub(super) trait Value<'a>: Sized {
    const KIND: FieldKind;
    const IS_REQUIRED: bool = true;

    fn read(name: &'static str, text: &'a str) -> Result<Self, FieldError>;

    /// What a field that is not there reads as.
    fn missing(name: &'static str) -> Result<Self, FieldError> {
        Err(FieldError::Missing { name })
    }

    fn write(&self, name: &'static str, sink: &mut FieldSink<'_>);
}

impl<'a> Value<'a> for &'a str {
    const KIND: FieldKind = FieldKind::Str;

    #[inline(always)]
    fn read(_: &'static str, text: &'a str) -> Result<Self, FieldError> {
        Ok(text)
    }

    fn write(&self, name: &'static str, sink: &mut FieldSink<'_>) {
        sink.str(name, self);
    }
}

/// A number without a sign that cannot overflow: nearly every one. Anything else is for the standard library to judge.
#[inline(always)]
fn short_number(text: &str) -> Option<i64> {
    let mut number = 0i64;
    if text.is_empty() || text.len() > 18 {
        return None;
    }
    for byte in text.bytes() {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number = number * 10 + i64::from(digit);
    }
    Some(number)
}

impl Value<'_> for i32 {
    const KIND: FieldKind = FieldKind::I32;

    #[inline(always)]
    fn read(name: &'static str, text: &str) -> Result<Self, FieldError> {
        let short = short_number(text).and_then(|number| i32::try_from(number).ok());
        match short {
            Some(number) => Ok(number),
            None => text.parse().map_err(|_| FieldError::invalid(name, text, FieldKind::I32)),
        }
    }

    fn write(&self, name: &'static str, sink: &mut FieldSink<'_>) {
        sink.i32(name, *self);
    }
}

impl Value<'_> for i64 {
    const KIND: FieldKind = FieldKind::I64;

    #[inline(always)]
    fn read(name: &'static str, text: &str) -> Result<Self, FieldError> {
        match short_number(text) {
            Some(number) => Ok(number),
            None => text.parse().map_err(|_| FieldError::invalid(name, text, FieldKind::I64)),
        }
    }

    fn write(&self, name: &'static str, sink: &mut FieldSink<'_>) {
        sink.i64(name, *self);
    }
}

impl Value<'_> for bool {
    const KIND: FieldKind = FieldKind::Bool;

    #[inline(always)]
    fn read(_: &'static str, text: &str) -> Result<Self, FieldError> {
        Ok(text.eq_ignore_ascii_case("true"))
    }

    fn write(&self, name: &'static str, sink: &mut FieldSink<'_>) {
        sink.bool(name, *self);
    }
}

impl<'a, T: Value<'a>> Value<'a> for Option<T> {
    const KIND: FieldKind = T::KIND;
    const IS_REQUIRED: bool = false;

    #[inline(always)]
    fn read(name: &'static str, text: &'a str) -> Result<Self, FieldError> {
        // Java clients never write an empty number, but the binary form of others may: it means that there is none.
        if text.is_empty() && T::KIND != FieldKind::Str {
            return Ok(None);
        }
        T::read(name, text).map(Some)
    }

    fn missing(_: &'static str) -> Result<Self, FieldError> {
        Ok(None)
    }

    fn write(&self, name: &'static str, sink: &mut FieldSink<'_>) {
        if let Some(value) = self {
            value.write(name, sink);
        }
    }
}

#[inline(always)]
pub(super) fn read_field<'a, T: Value<'a>>(fields: &Fields<'a>, name: Name<'static>) -> Result<T, FieldError> {
    match fields.find(name) {
        Some(text) => T::read(name.text, text),
        None => T::missing(name.text),
    }
}

/// Makes header structs from their tables.
macro_rules! headers {
    ($( $(#[$doc:meta])* $name:ident $(<$lifetime:lifetime>)? {
        $( $field:ident: $kind:ty = $wire:literal $(or $default:expr)? ),* $(,)?
    } )*) => { $(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name $(<$lifetime>)? {
            $( #[doc = concat!("`", $wire, "`")] pub $field: $kind, )*
        }

        impl $(<$lifetime>)? $name $(<$lifetime>)? {
            /// The table of this header.
            pub const FIELDS: &'static [crate::request::field::FieldSpec] = &[
                $( crate::request::field::FieldSpec {
                    name: $wire,
                    kind: <$kind as crate::request::field::Value<'_>>::KIND,
                    is_required: <$kind as crate::request::field::Value<'_>>::IS_REQUIRED $( && { let _ = $default; false } )?,
                } ),*
            ];
        }

        headers!(@decode $name, $($lifetime)?; $( $field: $kind = $wire $(or $default)? ),* );

        impl $(<$lifetime>)? crate::header::EncodeFields for $name $(<$lifetime>)? {
            fn encode(&self, sink: &mut crate::header::FieldSink<'_>) {
                $( crate::request::field::Value::write(&self.$field, $wire, sink); )*
            }
        }
    )* };
    (@decode $name:ident, ; $($rest:tt)*) => {
        impl $name {
            /// Reads the fields of a header.
            pub fn decode(fields: &crate::header::Fields<'_>) -> Result<Self, crate::request::field::FieldError> {
                headers!(@body fields; $($rest)*)
            }
        }
    };
    (@decode $name:ident, $lifetime:lifetime; $($rest:tt)*) => {
        impl<$lifetime> $name<$lifetime> {
            /// Reads the fields of a header.
            pub fn decode(fields: &crate::header::Fields<$lifetime>) -> Result<Self, crate::request::field::FieldError> {
                headers!(@body fields; $($rest)*)
            }
        }
    };
    (@body $fields:ident; $( $field:ident: $kind:ty = $wire:literal $(or $default:expr)? ),*) => {
        Ok(Self { $( $field: headers!(@read $fields, $kind, $wire $(, $default)?), )* })
    };
    (@read $fields:ident, $kind:ty, $wire:literal) => {
        crate::request::field::read_field::<$kind>($fields, const { crate::header::Name::new($wire) })?
    };
    (@read $fields:ident, $kind:ty, $wire:literal, $default:expr) => {
        crate::request::field::read_field::<Option<$kind>>($fields, const { crate::header::Name::new($wire) })?
            .unwrap_or($default)
    };
}
pub(super) use headers;
