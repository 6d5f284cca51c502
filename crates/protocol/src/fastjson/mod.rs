//! JSON bodies in both dialects that RocketMQ's peers write and read.
//!
//! fastjson 1.x, which Java peers use, writes numeric map keys without quotes and object keys as objects
//! (`{0:"a"}`, `{{"brokerName":"b"}:9}`). Other languages need standard JSON. We read either and write what is asked for:
//! members in the order of their struct (alphabetical, as fastjson sorts them), null members left out.

mod read;
mod write;

pub use read::from_slice;
pub use write::{to_vec, write};

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeOwned, Error as _, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::body::MessageQueue;

/// Which JSON to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Numeric keys without quotes, object keys as objects: what Java peers and tools read.
    FastJson,
    /// Every key a string; an object key is the text of the object.
    Standard,
}

/// Why a body is not what it should be.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// Not JSON in either dialect, or not of the shape.
    #[error("{0}")]
    Shape(#[from] serde_json::Error),
    /// Nested deeper than any body of RocketMQ.
    #[error("nested deeper than {0} levels")]
    TooDeep(usize),
    /// A key that is an object or a list, and holds another such key.
    #[error("a key that is an object holds another one")]
    KeyInKey,
}

/// A map by queue. On the wire its keys are objects (fastjson) or the text of objects (standard).
#[derive(Clone, Debug, PartialEq)]
pub struct QueueMap<V>(pub BTreeMap<MessageQueue, V>);

impl<V> Default for QueueMap<V> {
    fn default() -> Self {
        QueueMap(BTreeMap::new())
    }
}

impl<V> FromIterator<(MessageQueue, V)> for QueueMap<V> {
    fn from_iter<I: IntoIterator<Item = (MessageQueue, V)>>(pairs: I) -> Self {
        QueueMap(pairs.into_iter().collect())
    }
}

impl<V> std::ops::Deref for QueueMap<V> {
    type Target = BTreeMap<MessageQueue, V>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<V> std::ops::DerefMut for QueueMap<V> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl<V: Serialize> Serialize for QueueMap<V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (queue, value) in &self.0 {
            map.serialize_entry(queue, value)?;
        }
        map.end()
    }
}

impl<'de, V: DeserializeOwned> Deserialize<'de> for QueueMap<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Queues<V>(std::marker::PhantomData<V>);

        impl<'de, V: DeserializeOwned> Visitor<'de> for Queues<V> {
            type Value = QueueMap<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map by message queue")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
                let mut map = BTreeMap::new();
                while let Some((key, value)) = access.next_entry::<String, V>()? {
                    let queue: MessageQueue = serde_json::from_str(&key).map_err(A::Error::custom)?;
                    map.insert(queue, value);
                }
                Ok(QueueMap(map))
            }
        }

        deserializer.deserialize_map(Queues(std::marker::PhantomData))
    }
}

#[cfg(test)]
mod tests;
