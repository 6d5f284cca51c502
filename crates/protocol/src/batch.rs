//! The body of a batch (code 320): the messages of one topic behind each other.
//!
//! ```text
//! total i32 · magic i32 = 0 · crc i32 = 0 · flag i32 · body i32 + n · properties i16 + n
//! ```

const FIXED_BYTES: usize = 4 + 4 + 4 + 4 + 4;

/// One message of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InnerMessage<'a> {
    /// The user's own value.
    pub flag: i32,
    /// The body.
    pub body: &'a [u8],
    /// The property string.
    pub properties: &'a str,
}

/// Why a batch cannot be taken apart.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// A length reaches beyond its message, or the message beyond the batch.
    #[error("message {index} of the batch: {what} has length {length}, and {room} bytes are left")]
    BadLength {
        /// Which message, from 0.
        index: usize,
        /// Of what.
        what: &'static str,
        /// As stated.
        length: i64,
        /// As there is.
        room: usize,
    },
    /// Text that is not UTF-8.
    #[error("message {index} of the batch: properties are not UTF-8")]
    NotUtf8 {
        /// Which message, from 0.
        index: usize,
    },
}

/// The messages of a batch, in their order. After an error nothing follows.
pub fn iter(body: &[u8]) -> Batch<'_> {
    Batch { rest: body, index: 0 }
}

/// See [`iter`].
#[derive(Clone, Debug)]
pub struct Batch<'a> {
    rest: &'a [u8],
    index: usize,
}

impl<'a> Iterator for Batch<'a> {
    type Item = Result<InnerMessage<'a>, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let message = self.message();
        if message.is_err() {
            self.rest = &[];
        }
        self.index += 1;
        Some(message)
    }
}

impl<'a> Batch<'a> {
    fn message(&mut self) -> Result<InnerMessage<'a>, BatchError> {
        let total = i64::from(i32::from_be_bytes(self.fixed(self.rest, 0, "message")?));
        if total < FIXED_BYTES as i64 + 2 || total > self.rest.len() as i64 {
            return Err(self.bad("message", total, self.rest.len()));
        }
        let (message, rest) = self.rest.split_at(total as usize);
        let flag = i32::from_be_bytes(self.fixed(message, 12, "flag")?);
        let body_bytes = i32::from_be_bytes(self.fixed(message, 16, "body")?);
        let (body, after) = self.part(message, FIXED_BYTES, "body", i64::from(body_bytes))?;
        let properties_bytes = i16::from_be_bytes(self.fixed(message, after, "properties")?);
        let (properties, end) = self.part(message, after + 2, "properties", i64::from(properties_bytes))?;
        if end != message.len() {
            return Err(self.bad("message", total, end));
        }
        let properties = std::str::from_utf8(properties).map_err(|_| BatchError::NotUtf8 { index: self.index })?;
        self.rest = rest;
        Ok(InnerMessage { flag, body, properties })
    }

    fn fixed<const N: usize>(&self, message: &[u8], at: usize, what: &'static str) -> Result<[u8; N], BatchError> {
        let bytes = message.get(at..at + N).and_then(|bytes| bytes.try_into().ok());
        bytes.ok_or_else(|| self.bad(what, N as i64, message.len().saturating_sub(at)))
    }

    fn part<'m>(
        &self,
        message: &'m [u8],
        at: usize,
        what: &'static str,
        length: i64,
    ) -> Result<(&'m [u8], usize), BatchError> {
        let room = message.len().saturating_sub(at);
        if length < 0 || length > room as i64 {
            return Err(self.bad(what, length, room));
        }
        let end = at + length as usize;
        Ok((&message[at..end], end))
    }

    fn bad(&self, what: &'static str, length: i64, room: usize) -> BatchError {
        BatchError::BadLength { index: self.index, what, length, room }
    }
}

/// How many bytes a message takes in a batch.
///
/// Properties above [`crate::record::PROPERTIES_MAX`] are refused, since their length has 16 bits.
pub fn encoded_len(message: &InnerMessage<'_>) -> Result<usize, crate::record::RecordError> {
    if message.properties.len() > crate::record::PROPERTIES_MAX {
        return Err(crate::record::RecordError::PropertiesTooLong(message.properties.len()));
    }
    let total = FIXED_BYTES + message.body.len() + 2 + message.properties.len();
    match i32::try_from(total) {
        Ok(_) => Ok(total),
        Err(_) => Err(crate::record::RecordError::BodyTooLong(message.body.len())),
    }
}

/// Appends one message to the body of a batch. What [`encoded_len`] refuses is refused, and nothing appended.
pub fn encode(out: &mut Vec<u8>, message: &InnerMessage<'_>) -> Result<(), crate::record::RecordError> {
    let total = encoded_len(message)?;
    out.reserve(total);
    out.extend_from_slice(&(total as i32).to_be_bytes());
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&message.flag.to_be_bytes());
    out.extend_from_slice(&(message.body.len() as i32).to_be_bytes());
    out.extend_from_slice(message.body);
    out.extend_from_slice(&(message.properties.len() as i16).to_be_bytes());
    out.extend_from_slice(message.properties.as_bytes());
    Ok(())
}
