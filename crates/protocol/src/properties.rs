//! The property string of a message: `name \x01 value \x02`, repeated.

/// Between a name and its value.
pub const NAME_VALUE: u8 = 1;
/// After each property.
pub const PROPERTY_END: u8 = 2;

/// The names that RocketMQ reserves (`MessageConst`).
#[allow(missing_docs, reason = "RocketMQ's names; messages.md §2.1")]
pub mod name {
    pub const KEYS: &str = "KEYS";
    pub const TAGS: &str = "TAGS";
    pub const WAIT: &str = "WAIT";
    pub const DELAY: &str = "DELAY";
    pub const RETRY_TOPIC: &str = "RETRY_TOPIC";
    pub const REAL_TOPIC: &str = "REAL_TOPIC";
    pub const REAL_QID: &str = "REAL_QID";
    pub const TRAN_MSG: &str = "TRAN_MSG";
    pub const PGROUP: &str = "PGROUP";
    pub const MIN_OFFSET: &str = "MIN_OFFSET";
    pub const MAX_OFFSET: &str = "MAX_OFFSET";
    pub const BUYER_ID: &str = "BUYER_ID";
    pub const ORIGIN_MESSAGE_ID: &str = "ORIGIN_MESSAGE_ID";
    pub const TRANSFER_FLAG: &str = "TRANSFER_FLAG";
    pub const CORRECTION_FLAG: &str = "CORRECTION_FLAG";
    pub const MQ2_FLAG: &str = "MQ2_FLAG";
    pub const RECONSUME_TIME: &str = "RECONSUME_TIME";
    pub const MSG_REGION: &str = "MSG_REGION";
    pub const TRACE_ON: &str = "TRACE_ON";
    pub const UNIQ_KEY: &str = "UNIQ_KEY";
    pub const EXTEND_UNIQ_INFO: &str = "EXTEND_UNIQ_INFO";
    pub const MAX_RECONSUME_TIMES: &str = "MAX_RECONSUME_TIMES";
    pub const CONSUME_START_TIME: &str = "CONSUME_START_TIME";
    pub const INNER_NUM: &str = "INNER_NUM";
    pub const INNER_BASE: &str = "INNER_BASE";
    pub const DUP_INFO: &str = "DUP_INFO";
    pub const CHECK_IMMUNITY_TIME_IN_SECONDS: &str = "CHECK_IMMUNITY_TIME_IN_SECONDS";
    pub const TRAN_PREPARED_QUEUE_OFFSET: &str = "TRAN_PREPARED_QUEUE_OFFSET";
    pub const TRANSACTION_ID: &str = "__transactionId__";
    pub const TRANSACTION_CHECK_TIMES: &str = "TRANSACTION_CHECK_TIMES";
    pub const INSTANCE_ID: &str = "INSTANCE_ID";
    pub const CORRELATION_ID: &str = "CORRELATION_ID";
    pub const REPLY_TO_CLIENT: &str = "REPLY_TO_CLIENT";
    pub const TTL: &str = "TTL";
    pub const ARRIVE_TIME: &str = "ARRIVE_TIME";
    pub const PUSH_REPLY_TIME: &str = "PUSH_REPLY_TIME";
    pub const CLUSTER: &str = "CLUSTER";
    pub const MSG_TYPE: &str = "MSG_TYPE";
    pub const POP_CK: &str = "POP_CK";
    pub const POP_CK_OFFSET: &str = "POP_CK_OFFSET";
    pub const FIRST_POP_TIME: &str = "1ST_POP_TIME";
    pub const PRIORITY: &str = "_SYS_MSG_PRIORITY_";
    pub const SHARDING_KEY: &str = "__SHARDINGKEY";
    pub const FORWARD_QUEUE_ID: &str = "PROPERTY_FORWARD_QUEUE_ID";
    pub const REDIRECT: &str = "REDIRECT";
    pub const INNER_MULTI_DISPATCH: &str = "INNER_MULTI_DISPATCH";
    pub const INNER_MULTI_QUEUE_OFFSET: &str = "INNER_MULTI_QUEUE_OFFSET";
    pub const TRACE_CONTEXT: &str = "TRACE_CONTEXT";
    pub const TIMER_DELAY_SEC: &str = "TIMER_DELAY_SEC";
    pub const TIMER_DELAY_MS: &str = "TIMER_DELAY_MS";
    pub const TIMER_DELIVER_MS: &str = "TIMER_DELIVER_MS";
    pub const TIMER_OUT_MS: &str = "TIMER_OUT_MS";
    pub const TIMER_ENQUEUE_MS: &str = "TIMER_ENQUEUE_MS";
    pub const TIMER_DEQUEUE_MS: &str = "TIMER_DEQUEUE_MS";
    pub const TIMER_ROLL_TIMES: &str = "TIMER_ROLL_TIMES";
    pub const TIMER_DEL_UNIQKEY: &str = "TIMER_DEL_UNIQKEY";
    pub const TIMER_DELAY_LEVEL: &str = "TIMER_DELAY_LEVEL";
    pub const BORN_HOST: &str = "__BORNHOST";
    pub const BORN_TIMESTAMP: &str = "BORN_TIMESTAMP";
    pub const CRC32: &str = "__CRC32#";
    pub const DLQ_ORIGIN_TOPIC: &str = "DLQ_ORIGIN_TOPIC";
    pub const DLQ_ORIGIN_MESSAGE_ID: &str = "DLQ_ORIGIN_MESSAGE_ID";
    pub const LITE_TOPIC: &str = "__LITE_TOPIC";
}

/// The properties in their order. What Java drops is dropped: a segment without a name, without a value, or without the
/// separator. The last separator may be missing.
pub fn iter(properties: &str) -> Properties<'_> {
    Properties { rest: properties }
}

/// The value of a property; of several with the same name, the last, as in a Java map.
pub fn get<'a>(properties: &'a str, name: &str) -> Option<&'a str> {
    // The value lies between ASCII bytes, so it is text again.
    get_in_bytes(properties.as_bytes(), name).and_then(|value| std::str::from_utf8(value).ok())
}

/// As [`get`], of properties that need not be text.
pub(crate) fn get_in_bytes<'a>(bytes: &'a [u8], name: &str) -> Option<&'a [u8]> {
    // Most properties are not the one asked for, so this looks for the name and then at what stands around it.
    let mut end = bytes.len();
    loop {
        let at = memchr::memmem::rfind(&bytes[..end], name.as_bytes())?;
        let value_at = at + name.len() + 1;
        let is_name_start = at == 0 || bytes[at - 1] == PROPERTY_END;
        if !name.is_empty() && is_name_start && bytes.get(value_at - 1) == Some(&NAME_VALUE) {
            let length = memchr::memchr(PROPERTY_END, &bytes[value_at..]).unwrap_or(bytes.len() - value_at);
            if length > 0 {
                return Some(&bytes[value_at..value_at + length]);
            }
        }
        if name.is_empty() {
            return None;
        }
        // Overlapping occurrences ("aa" in "aaa") must be seen too: step back by one byte, not by the name.
        end = at + name.len() - 1;
    }
}

/// The values of several properties at one look, of properties that need not be text. Each name is as with [`get`].
pub fn select<'a, const N: usize>(properties: &'a [u8], names: [&str; N]) -> [Option<&'a [u8]>; N] {
    let mut values = [None; N];
    let mut rest = properties;
    while let Some(first) = rest.first() {
        let end = memchr::memchr(PROPERTY_END, rest).unwrap_or(rest.len());
        let property = &rest[..end];
        for (name, value) in names.iter().zip(&mut values) {
            // Most properties are none of these.
            if name.as_bytes().first() == Some(first) {
                *value = value_of(property, name).or(*value);
            }
        }
        rest = rest.get(end + 1..).unwrap_or_default();
    }
    values
}

/// The value of this property, if it has this name and a value.
fn value_of<'a>(property: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let value = property.strip_prefix(name.as_bytes())?.strip_prefix(&[NAME_VALUE])?;
    (!value.is_empty()).then_some(value)
}

/// See [`iter`].
#[derive(Clone, Debug)]
pub struct Properties<'a> {
    rest: &'a str,
}

impl<'a> Iterator for Properties<'a> {
    type Item = (&'a str, &'a str);

    fn next(&mut self) -> Option<Self::Item> {
        while !self.rest.is_empty() {
            let rest = self.rest;
            let end = memchr::memchr(PROPERTY_END, rest.as_bytes()).unwrap_or(rest.len());
            let segment = &rest[..end];
            self.rest = rest.get(end + 1..).unwrap_or_default();
            if let Some(separator) = memchr::memchr(NAME_VALUE, segment.as_bytes())
                && separator > 0
                && separator + 1 < segment.len()
            {
                return Some((&segment[..separator], &segment[separator + 1..]));
            }
        }
        None
    }
}

/// Writes a property string.
#[derive(Clone, Debug, Default)]
pub struct PropertiesWriter {
    text: String,
}

impl PropertiesWriter {
    /// Empty.
    pub fn new() -> PropertiesWriter {
        PropertiesWriter::default()
    }

    /// Writes into a buffer that was used before; what it holds is dropped.
    pub fn reuse(mut text: Vec<u8>) -> PropertiesWriter {
        text.clear();
        // Nothing is text.
        PropertiesWriter { text: String::from_utf8(text).unwrap_or_default() }
    }

    /// Adds one property; nothing when the value is empty, since readers drop such a property.
    pub fn put(&mut self, name: &str, value: &str) -> &mut Self {
        if !name.is_empty() && !value.is_empty() {
            self.text.push_str(name);
            self.text.push(char::from(NAME_VALUE));
            self.text.push_str(value);
            self.text.push(char::from(PROPERTY_END));
        }
        self
    }

    /// Adds a number.
    pub fn put_i64(&mut self, name: &str, value: i64) -> &mut Self {
        self.put(name, itoa::Buffer::new().format(value))
    }

    /// Adds all properties of a string but those that `is_dropped` names.
    pub fn copy_except(&mut self, properties: &str, is_dropped: impl Fn(&str) -> bool) -> &mut Self {
        for (name, value) in iter(properties) {
            if !is_dropped(name) {
                self.put(name, value);
            }
        }
        self
    }

    /// What was written so far.
    pub fn as_bytes(&self) -> &[u8] {
        self.text.as_bytes()
    }

    /// What was written so far, as text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The buffer.
    pub fn into_bytes(self) -> Vec<u8> {
        self.text.into_bytes()
    }

    /// Forgets what was written; keeps the buffer.
    pub fn clear(&mut self) {
        self.text.clear();
    }
}
