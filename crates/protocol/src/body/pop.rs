//! Pop consumption.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::client::SetMessageRequestMode;

/// 200151: messages of several pops are done with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BatchAckBody {
    /// What is done with, by pop.
    pub acks: Vec<BatchAck>,
    /// The broker's name.
    pub broker_name: String,
}

/// Messages of one pop of one queue that are done with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BatchAck {
    /// Distances from the start offset, as bits of a Java `BitSet`: the lowest first. Base64 on the wire.
    #[serde(rename = "b", serialize_with = "to_base64", deserialize_with = "from_base64")]
    pub bit_set: Vec<u8>,
    /// The group.
    #[serde(rename = "c")]
    pub consumer_group: String,
    /// In milliseconds.
    #[serde(rename = "it")]
    pub invisible_time: i64,
    /// In milliseconds.
    #[serde(rename = "pt")]
    pub pop_time: i64,
    /// The queue.
    #[serde(rename = "q")]
    pub queue_id: i32,
    /// `0`: popped from the topic; `1`, `2`: from its retry topic of that form.
    #[serde(rename = "r")]
    pub retry: String,
    /// As the handle says.
    #[serde(rename = "rq")]
    pub revive_queue_id: i32,
    /// Where the pop began to read.
    #[serde(rename = "so")]
    pub start_offset: i64,
    /// The topic, without what makes it a retry topic.
    #[serde(rename = "t")]
    pub topic: String,
}

/// The answer to 402, and `messageRequestMode.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MessageRequestModes {
    /// By topic and group.
    pub message_request_mode_map: BTreeMap<String, BTreeMap<String, SetMessageRequestMode>>,
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn to_base64<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().zip([16, 8, 0]).fold(0u32, |word, (byte, shift)| word | u32::from(*byte) << shift);
        for place in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    serializer.serialize_str(&text)
}

fn from_base64<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(Vec::new()) };
    let digits = text.trim_end_matches('=');
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    let (mut word, mut bits) = (0u32, 0);
    for digit in digits.bytes() {
        let Some(value) = DIGITS.iter().position(|other| *other == digit) else {
            return Err(serde::de::Error::custom("b is not base64"));
        };
        word = word << 6 | value as u32;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((word >> bits) as u8);
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fastjson::{self, Dialect};

    /// What BatchAckMessageRequestBody.encode of 5.5.0 writes.
    const JAVA: &str =
        r#"{"acks":[{"b":"AQI=","c":"g","it":4,"pt":3,"q":1,"r":"0","rq":2,"so":5,"t":"t"}],"brokerName":"bn"}"#;

    #[test]
    fn a_batch_is_read_and_written_as_java_does() {
        let body: BatchAckBody = fastjson::from_slice(JAVA.as_bytes()).unwrap();
        assert_eq!(body.acks[0].bit_set, [1, 2]);
        assert_eq!((body.acks[0].start_offset, body.acks[0].revive_queue_id), (5, 2));
        assert_eq!(String::from_utf8(fastjson::to_vec(&body, Dialect::FastJson)).unwrap(), JAVA);
    }

    #[test]
    fn bits_of_any_length_survive_and_other_text_is_refused() {
        for length in 0..10u8 {
            let bit_set: Vec<u8> = (0..length).map(|byte| byte.wrapping_mul(77)).collect();
            let body = BatchAckBody { acks: vec![BatchAck { bit_set, ..BatchAck::default() }], ..Default::default() };
            let text = fastjson::to_vec(&body, Dialect::Standard);
            assert_eq!(fastjson::from_slice::<BatchAckBody>(&text).unwrap(), body);
        }
        assert!(fastjson::from_slice::<BatchAckBody>(br#"{"acks":[{"b":"*"}]}"#).is_err());
    }
}
