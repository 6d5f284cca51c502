//! A queue, and maps by queue.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeOwned, Error as _, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// One queue of one topic on one broker.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MessageQueue {
    /// The broker's name.
    pub broker_name: String,
    /// Its number.
    pub queue_id: i32,
    /// The topic.
    pub topic: String,
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
