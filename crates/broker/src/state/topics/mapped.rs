//! The mappings of static topics: kept with their topics, in the journal under the topic's name, and gone with them.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use journal::{Change, Table};
use protocol::body::{DataVersion, TopicConfig, TopicQueueMappingDetail};
use tokio::sync::watch;

use super::{Changed, Topic, Topics};
use crate::refusal::Refusal;
use crate::state::topics::mapping::Mapping;
use crate::tables;

/// What a change of a mapping did.
pub(crate) struct Remapped {
    pub(crate) changed: Changed,
    /// Of the mappings before that sends still hold: closed when they do not any more.
    pub(crate) held: Vec<watch::Receiver<()>>,
}

/// Mappings that were replaced, as long as somebody holds them.
#[derive(Default)]
pub(super) struct Replaced(Vec<Weak<Mapping>>);

impl Replaced {
    /// Those that are left.
    fn held(&mut self) -> Vec<watch::Receiver<()>> {
        let mut held = Vec::new();
        self.0.retain(|mapping| {
            mapping.upgrade().is_some_and(|mapping| {
                held.push(mapping.held());
                true
            })
        });
        held
    }
}

impl Topic {
    /// Whether its queues are those of a static topic. The one check that every other topic pays.
    pub(crate) fn is_static(&self) -> bool {
        // Pairs with the Release in `set_mapping`: who sees the mark sees the mapping.
        self.is_static.load(Ordering::Acquire)
    }

    /// Its mapping, if it is static.
    pub(crate) fn mapping(&self) -> Option<Arc<Mapping>> {
        if self.is_static() { self.mapping.load_full() } else { None }
    }

    /// Gives the mappings before that somebody still holds.
    fn set_mapping(&self, mapping: Mapping) -> Vec<watch::Receiver<()>> {
        let mut replaced = self.replaced.lock();
        let old = self.mapping.swap(Some(Arc::new(mapping)));
        self.is_static.store(true, Ordering::Release);
        replaced.0.extend(old.as_ref().map(Arc::downgrade));
        drop(old);
        replaced.held()
    }
}

impl Topics {
    /// Looks into a static topic. Where there never was one, that costs nothing.
    pub(crate) fn with_static<T>(&self, name: &str, look: impl FnOnce(&Topic) -> Option<T>) -> Option<T> {
        if !self.has_static.load(Ordering::Acquire) {
            return None;
        }
        self.table.pin().get(name).filter(|topic| topic.is_static()).and_then(|topic| look(topic))
    }

    fn map(&self, topic: &Topic, mapping: Mapping) -> Vec<watch::Receiver<()>> {
        // First, so that who comes after the answer finds it.
        self.has_static.store(true, Ordering::Release);
        topic.set_mapping(mapping)
    }

    /// What the journal holds, once the topics are loaded.
    pub(super) fn load_mappings(&self, store: &store::Store) {
        let mut orphans = Vec::new();
        store.journal().load(tables::MAPPINGS, |name, value| {
            match serde_json::from_slice::<TopicQueueMappingDetail>(value) {
                Ok(detail) => match self.table.pin().get(detail.topic.as_str()) {
                    Some(topic) => drop(self.map(topic, Mapping::new(detail))),
                    // It was being put when the process died; nobody was told of it.
                    None => orphans.push(detail.topic),
                },
                Err(error) => {
                    tracing::error!(topic = %String::from_utf8_lossy(name), %error, "mapping in the journal not understood")
                }
            }
        });
        for topic in orphans {
            self.keeper.delete(tables::MAPPINGS, topic.as_bytes());
        }
        store.journal().load(tables::VERSIONS, |name, value| {
            if name == tables::MAPPINGS_VERSION
                && let Ok(version) = serde_json::from_slice::<DataVersion>(value)
            {
                self.mapping_version.store(Arc::new(version));
            }
        });
    }

    /// Of what age the mappings are.
    pub(crate) fn mapping_version(&self) -> DataVersion {
        DataVersion::clone(&self.mapping_version.load())
    }

    /// Takes over the version of an imported `topicQueueMapping.json`.
    pub(crate) fn set_mapping_version(&self, version: DataVersion) -> u64 {
        let _changing = self.changing.lock();
        self.put_mapping_version(version)
    }

    /// Gives a topic a mapping, which `decide` makes of the one before; and this configuration. Name servers are told.
    pub(crate) fn remap(
        &self,
        config: TopicConfig,
        decide: impl FnOnce(Option<&TopicQueueMappingDetail>) -> Result<TopicQueueMappingDetail, Refusal>,
    ) -> Result<Remapped, Refusal> {
        let remapped = {
            let _changing = self.changing.lock();
            let before = self.get(&config.topic_name).and_then(|topic| topic.mapping());
            let detail = decide(before.as_ref().map(|mapping| mapping.detail()))?;
            drop(before);
            // Together: a topic without its mapping would take messages for any of its queues, and a mapping without the topic's new
            // queues none for some of its own.
            let (name, value) = (config.topic_name.clone(), json(&detail));
            let beside = Change { table: tables::MAPPINGS, key: name.as_bytes(), value: Some(&value) };
            let mut held = Vec::new();
            // And who hears of the topic's new version finds the mapping.
            let mut changed = self.put_with(config, Some(beside), |topic| held = self.map(topic, Mapping::new(detail)));
            changed.position = self.bump_mapping_version();
            Remapped { changed, held }
        };
        self.tell(&remapped.changed.topic);
        Ok(remapped)
    }

    /// Changes the mapping of a static topic in a way that concerns this broker only, unless it has changed meanwhile.
    pub(crate) fn amend_mapping(
        &self,
        topic: &Topic,
        seen: &TopicQueueMappingDetail,
        detail: TopicQueueMappingDetail,
    ) -> bool {
        let _changing = self.changing.lock();
        let is_seen = topic.mapping().is_some_and(|now| now.detail() == seen);
        if topic.is_gone() || !is_seen {
            return false;
        }
        self.put_mapping(topic.name(), &detail);
        self.map(topic, Mapping::new(detail));
        self.bump_mapping_version();
        true
    }

    /// Takes over the mappings that another broker has written, in the place of all that are here. Those of unknown topics are left out.
    pub(crate) fn replace_mappings(&self, mut mappings: BTreeMap<String, TopicQueueMappingDetail>) {
        let _changing = self.changing.lock();
        for (topic, _) in self.mappings() {
            if !mappings.contains_key(topic.name()) {
                topic.is_static.store(false, Ordering::Release);
                topic.mapping.store(None);
                self.keeper.delete(tables::MAPPINGS, topic.name().as_bytes());
            }
        }
        for (name, topic) in &self.table.pin() {
            if let Some(detail) = mappings.remove(&**name) {
                self.put_mapping(name, &detail);
                self.map(topic, Mapping::new(detail));
            }
        }
        for topic in mappings.into_keys() {
            tracing::warn!(topic, "mapping without a topic left out");
        }
        self.bump_mapping_version();
    }

    /// Forgets the mapping of a topic that goes, under `changing`.
    pub(super) fn drop_mapping(&self, topic: &Topic) {
        if topic.is_static() {
            self.keeper.delete(tables::MAPPINGS, topic.name().as_bytes());
            self.bump_mapping_version();
        }
    }

    /// The static topics among all.
    pub(crate) fn mappings(&self) -> Vec<(Arc<Topic>, Arc<Mapping>)> {
        let table = self.table.pin();
        table.values().filter_map(|topic| Some((Arc::clone(topic), topic.mapping()?))).collect()
    }

    /// The mappings of those of these topics that are static.
    pub(crate) fn mappings_of<'a>(&self, names: impl Iterator<Item = &'a String>) -> Vec<(String, Arc<Mapping>)> {
        names.filter_map(|name| self.with_static(name, |topic| Some((name.clone(), topic.mapping()?)))).collect()
    }

    fn put_mapping(&self, topic: &str, detail: &TopicQueueMappingDetail) {
        self.keeper.put(tables::MAPPINGS, topic.as_bytes(), &json(detail));
    }

    /// Under `changing`.
    fn bump_mapping_version(&self) -> u64 {
        let mut version = self.mapping_version();
        version.timestamp = self.clock.now().0;
        version.counter += 1;
        self.put_mapping_version(version)
    }

    fn put_mapping_version(&self, version: DataVersion) -> u64 {
        let value = serde_json::to_vec(&version).unwrap_or_default();
        self.mapping_version.store(Arc::new(version));
        self.keeper.put(tables::VERSIONS, tables::MAPPINGS_VERSION, &value)
    }
}

fn json(detail: &TopicQueueMappingDetail) -> Vec<u8> {
    // A map of strings and numbers always serialises.
    serde_json::to_vec(detail).unwrap_or_default()
}

/// The mappings, for the journal's snapshots.
pub(crate) struct Mappings(pub(crate) Arc<Topics>);

impl Table for Mappings {
    fn for_each(&self, f: &mut dyn FnMut(&[u8], &[u8])) {
        // Whoever has put a change into the journal before this snapshot began has it in the table when he lets go.
        drop(self.0.changing.lock());
        for (topic, mapping) in self.0.mappings() {
            f(topic.name().as_bytes(), &json(mapping.detail()));
        }
    }
}
