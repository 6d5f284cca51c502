//! 103: what a broker tells a name server, in plain JSON and in the compressed form.

use std::collections::BTreeMap;
use std::io::{self, BufReader, Read, Take};

use flate2::read::ZlibDecoder;
use serde::{Deserialize, Serialize};

use super::data_version::DataVersion;
use super::topic::{TopicConfig, TopicConfigTable, TopicFilterType, TopicQueueMappingInfo};
use crate::compression::{Compression, CompressionError, compress};
use crate::fastjson::{self, Dialect, JsonError};

/// A compressed registration may unfold to this much, in bytes: more than a million topics with short names.
pub const REGISTER_BYTES_MAX: usize = 64 << 20;

/// One topic, mapping or list of filter servers of a compressed registration, in bytes: the memory that unfolding takes beside
/// what comes of it.
const BLOCK_BYTES_MAX: usize = 1 << 20;

/// Requests from this version on (5.0.0) carry mappings at the end of the compressed form.
const VERSION_WITH_MAPPINGS: i32 = 413;

/// The body of a registration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RegisterBrokerBody {
    /// Filter servers of old.
    pub filter_server_list: Vec<String>,
    /// The topics.
    #[serde(rename = "topicConfigSerializeWrapper")]
    pub topics: TopicConfigTable,
}

/// Why a registration cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// Not the JSON that it should be.
    #[error("{what}: {source}")]
    Json {
        /// Which part.
        what: &'static str,
        /// What is wrong.
        source: JsonError,
    },
    /// Cannot be unfolded.
    #[error(transparent)]
    Compression(#[from] CompressionError),
    /// Ends too early.
    #[error("ends inside {0}")]
    Truncated(&'static str),
    /// Not `name read write perm filter [attributes]`.
    #[error("\"{0}\" is not a topic")]
    Topic(String),
}

impl RegisterBrokerBody {
    /// Reads a body; `version` is the request's, and decides what the compressed form ends with.
    pub fn decode(body: &[u8], is_compressed: bool, version: i32) -> Result<RegisterBrokerBody, RegisterError> {
        if !is_compressed {
            return json("registration", body);
        }
        let mut reader = Reader::new(body);
        let data_version: DataVersion = json("data version", reader.block("data version")?)?;
        let mut table = BTreeMap::new();
        for _ in 0..reader.count("topic count")? {
            let topic = parse_topic(reader.block("topic")?)?;
            table.insert(topic.topic_name.clone(), topic);
        }
        let filter_server_list = json("filter servers", reader.block("filter servers")?)?;
        let mut mappings = BTreeMap::new();
        if version >= VERSION_WITH_MAPPINGS && !reader.is_at_end()? {
            for _ in 0..reader.count("mapping count")? {
                let mapping: TopicQueueMappingInfo = json("mapping", reader.block("mapping")?)?;
                mappings.insert(mapping.topic.clone(), mapping);
            }
        }
        let topics = TopicConfigTable {
            data_version,
            topic_config_table: table,
            topic_queue_mapping_info_map: Some(mappings),
            ..TopicConfigTable::default()
        };
        Ok(RegisterBrokerBody { filter_server_list, topics })
    }

    /// Plain JSON.
    pub fn to_json(&self) -> Vec<u8> {
        fastjson::to_vec(self, Dialect::FastJson)
    }

    /// The compressed form, as brokers of our version write it.
    pub fn to_compressed(&self) -> Result<Vec<u8>, CompressionError> {
        let mut plain = Vec::new();
        put_block(&mut plain, &fastjson::to_vec(&self.topics.data_version, Dialect::FastJson));
        put_count(&mut plain, self.topics.topic_config_table.len());
        for topic in self.topics.topic_config_table.values() {
            put_block(&mut plain, topic_line(topic).as_bytes());
        }
        put_block(&mut plain, &fastjson::to_vec(&self.filter_server_list, Dialect::FastJson));
        let mappings = self.topics.topic_queue_mapping_info_map.as_ref();
        put_count(&mut plain, mappings.map_or(0, BTreeMap::len));
        for mapping in mappings.into_iter().flat_map(BTreeMap::values) {
            put_block(&mut plain, &fastjson::to_vec(mapping, Dialect::FastJson));
        }
        compress(Compression::Zlib, &plain, 9)
    }
}

fn json<T: serde::de::DeserializeOwned>(what: &'static str, text: &[u8]) -> Result<T, RegisterError> {
    fastjson::from_slice(text).map_err(|source| RegisterError::Json { what, source })
}

fn topic_line(topic: &TopicConfig) -> String {
    format!(
        "{} {} {} {} {} {}",
        topic.topic_name,
        topic.read_queue_nums,
        topic.write_queue_nums,
        topic.perm,
        topic.topic_filter_type.name(),
        String::from_utf8_lossy(&fastjson::to_vec(&topic.attributes, Dialect::FastJson)),
    )
}

fn parse_topic(line: &[u8]) -> Result<TopicConfig, RegisterError> {
    let bad = || RegisterError::Topic(String::from_utf8_lossy(line).chars().take(200).collect());
    let text = std::str::from_utf8(line).map_err(|_| bad())?;
    // Attributes are JSON and may hold blanks; brokers of 4.x write none.
    let mut parts = text.splitn(6, ' ');
    let mut part = || parts.next().ok_or_else(bad);
    let topic_name = part()?.to_owned();
    let read_queue_nums = part()?.parse().map_err(|_| bad())?;
    let write_queue_nums = part()?.parse().map_err(|_| bad())?;
    let perm = part()?.parse().map_err(|_| bad())?;
    let topic_filter_type = TopicFilterType::from_name(part()?).ok_or_else(bad)?;
    let attributes = match parts.next() {
        Some(text) if !text.trim().is_empty() => json("attributes", text.as_bytes())?,
        Some(_) | None => BTreeMap::new(),
    };
    Ok(TopicConfig {
        attributes,
        perm,
        read_queue_nums,
        topic_filter_type,
        topic_name,
        write_queue_nums,
        ..TopicConfig::default()
    })
}

/// Unfolds a body block by block, so that a small one that unfolds to much is refused before it has filled our memory.
struct Reader<'a> {
    plain: BufReader<Take<ZlibDecoder<&'a [u8]>>>,
    block: Vec<u8>,
}

impl<'a> Reader<'a> {
    fn new(body: &'a [u8]) -> Reader<'a> {
        let plain = BufReader::new(ZlibDecoder::new(body).take(REGISTER_BYTES_MAX as u64));
        Reader { plain, block: Vec::new() }
    }

    fn is_at_end(&mut self) -> Result<bool, RegisterError> {
        match io::BufRead::fill_buf(&mut self.plain) {
            Ok(ahead) => Ok(ahead.is_empty()),
            Err(source) => Err(corrupt(source)),
        }
    }

    fn count(&mut self, what: &'static str) -> Result<usize, RegisterError> {
        let mut bytes = [0; 4];
        let read = self.plain.read_exact(&mut bytes);
        read.map_err(|error| self.broken(what, error))?;
        usize::try_from(i32::from_be_bytes(bytes)).map_err(|_| RegisterError::Truncated(what))
    }

    /// The next block, until the one after it.
    fn block(&mut self, what: &'static str) -> Result<&[u8], RegisterError> {
        let length = self.count(what)?;
        if length > BLOCK_BYTES_MAX {
            return Err(CompressionError::TooLarge { max_bytes: BLOCK_BYTES_MAX }.into());
        }
        self.block.resize(length, 0);
        let read = self.plain.read_exact(&mut self.block);
        read.map_err(|error| self.broken(what, error))?;
        Ok(&self.block)
    }

    fn broken(&self, what: &'static str, error: io::Error) -> RegisterError {
        if error.kind() != io::ErrorKind::UnexpectedEof {
            return corrupt(error);
        }
        if self.plain.get_ref().limit() == 0 {
            return CompressionError::TooLarge { max_bytes: REGISTER_BYTES_MAX }.into();
        }
        RegisterError::Truncated(what)
    }
}

fn corrupt(source: io::Error) -> RegisterError {
    CompressionError::Corrupt { kind: Compression::Zlib, source }.into()
}

fn put_count(out: &mut Vec<u8>, count: usize) {
    out.extend_from_slice(&(count as u32).to_be_bytes());
}

fn put_block(out: &mut Vec<u8>, block: &[u8]) {
    put_count(out, block.len());
    out.extend_from_slice(block);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A compressed registration of `topics` equal topics that says it had more than anybody has.
    fn repeated(line: &str, topics: usize) -> Vec<u8> {
        let mut plain = Vec::new();
        put_block(&mut plain, &fastjson::to_vec(&DataVersion::default(), Dialect::FastJson));
        put_count(&mut plain, i32::MAX as usize);
        for _ in 0..topics {
            put_block(&mut plain, line.as_bytes());
        }
        compress(Compression::Zlib, &plain, 9).unwrap()
    }

    fn is_too_large(body: &[u8], limit: usize) -> bool {
        let refused = RegisterBrokerBody::decode(body, true, 513);
        matches!(refused, Err(RegisterError::Compression(CompressionError::TooLarge { max_bytes })) if max_bytes == limit)
    }

    #[test]
    fn a_registration_that_unfolds_to_much_is_refused_as_a_whole_and_in_each_part() {
        let line = format!("t 1 1 6 SINGLE_TAG {{\"a\":\"{}\"}}", "x".repeat(1 << 18));
        let in_all = repeated(&line, REGISTER_BYTES_MAX / line.len() + 1);
        assert!(in_all.len() < 1 << 20, "little goes over the wire: {} bytes", in_all.len());
        assert!(is_too_large(&in_all, REGISTER_BYTES_MAX));
        let in_one = repeated(&"x".repeat(BLOCK_BYTES_MAX + 1), 1);
        assert!(is_too_large(&in_one, BLOCK_BYTES_MAX));
    }

    #[test]
    fn a_registration_that_ends_too_early_says_where() {
        let ended = RegisterBrokerBody::decode(&repeated("t 1 1 6 SINGLE_TAG", 2), true, 513);
        assert!(matches!(ended, Err(RegisterError::Truncated("topic"))), "{ended:?}");
    }
}
