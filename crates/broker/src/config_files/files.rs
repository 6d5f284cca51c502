//! Which files there are, and between which state and which text each of them translates.

use std::path::Path;

use env::Clock;
use protocol::body::{
    ConsumerFilterTable, ConsumerOffsets, DataVersion, DelayOffsets, LmqConsumerOffsets, MessageRequestModes,
    SubscriptionGroupTable, TopicConfigTable, TopicQueueMappingTable,
};
use serde_json::Value;
use store::Store;

use super::ConfigFilesError;
use super::state::{ALL, Json};
use super::text::{parse, text, whole};
use crate::admin;
use crate::broker::Broker;
use crate::delay::Delay;
use crate::pop::{OrderTable, Pops};
use crate::refusal::Refusal;
use crate::state::conditions::Conditions;
use crate::state::groups::Groups;
use crate::state::offsets::{OffsetTable, Offsets, split_key};
use crate::state::topics::{QUEUES_MAX, Topics};
use crate::static_topic::accept;

/// The files that are exchanged.
pub(super) fn used(store: &Store) -> impl Iterator<Item = Json> {
    let has_light_queues = store.has_light_queues();
    ALL.into_iter().filter(move |json| *json != Json::LightOffsets || has_light_queues)
}

/// The tables that the files hold.
#[derive(Clone, Copy)]
pub(super) struct FileTables<'a> {
    topics: &'a Topics,
    groups: &'a Groups,
    offsets: &'a Offsets,
    delay: &'a Delay,
    pops: &'a Pops,
    conditions: &'a Conditions,
    store: &'a Store,
    clock: &'a Clock,
    is_slave: bool,
}

impl<'a> FileTables<'a> {
    pub(super) fn of(broker: &'a Broker) -> FileTables<'a> {
        let Broker { topics, groups, offsets, delay, pops, conditions, store, clock, .. } = broker;
        let is_slave = broker.standing.is_slave();
        FileTables { topics, groups, offsets, delay, pops, conditions, store, clock, is_slave }
    }

    /// The offsets for another broker. A master leaves its leases in the log when it stops, where that one finds them; a slave appends nothing.
    fn offsets_to_go_on_with(&self) -> OffsetTable {
        let mut table = self.offsets.table();
        if self.is_slave {
            self.pops.lower_to_leases(&mut table);
        }
        table
    }

    /// Refuses a file without a table that this broker has entries of. No broker writes one, and they would all be gone with it.
    pub(super) fn refuse_empty(&self, json: Json, path: &Path, bytes: &[u8]) -> Result<(), ConfigFilesError> {
        let (member, known) = match json {
            Json::Topics => ("topicConfigTable", self.topics.len()),
            Json::Groups => ("subscriptionGroupTable", self.groups.len()),
            Json::Offsets => ("offsetTable", self.offsets.table().len()),
            Json::LightOffsets | Json::Delays | Json::Modes | Json::Orders | Json::Mappings | Json::Conditions => {
                return Ok(());
            }
        };
        let is_there =
            whole(path, bytes)?.get(member).and_then(Value::as_object).is_some_and(|table| !table.is_empty());
        if is_there || known == 0 {
            return Ok(());
        }
        let cause = format!("it has nothing in {member}, of which this broker knows {known} entries");
        Err(ConfigFilesError::Content { path: path.to_owned(), cause })
    }

    /// Puts what a file says in the place of the state. Returns how many entries it has, and the members that we do not know.
    pub(super) fn take(&self, json: Json, path: &Path, bytes: &[u8]) -> Result<(usize, Value), ConfigFilesError> {
        Ok(match json {
            Json::Topics => {
                let (table, extras) = parse::<TopicConfigTable>(path, bytes)?;
                for topic in self.topics.all() {
                    if !table.topic_config_table.contains_key(topic.name())
                        && !protocol::names::is_system_topic(topic.name())
                    {
                        self.topics.forget(topic.name());
                    }
                }
                let count = table.topic_config_table.len();
                for (topic_name, config) in table.topic_config_table {
                    self.topics.create(protocol::body::TopicConfig { topic_name, ..config });
                }
                self.topics.set_version(table.data_version);
                (count, extras)
            }
            Json::Groups => {
                let (table, extras) = parse::<SubscriptionGroupTable>(path, bytes)?;
                let count = table.subscription_group_table.len();
                self.groups.replace(table.subscription_group_table, &table.forbidden_table, table.data_version);
                (count, extras)
            }
            Json::Offsets => {
                let (mut table, extras) = parse::<ConsumerOffsets>(path, bytes)?;
                if self.store.has_light_queues() {
                    // It says nothing of these groups.
                    table.offset_table.extend(light_groups(self.offsets.table(), true));
                }
                self.offsets.replace(&table.offset_table);
                self.offsets.set_version(table.data_version.unwrap_or_default());
                (table.offset_table.len(), extras)
            }
            Json::LightOffsets => {
                let (mut table, extras) = parse::<LmqConsumerOffsets>(path, bytes)?;
                let of_light_groups = table.lmq_offset_table.into_iter();
                table.offset_table.extend(of_light_groups.map(|(key, offset)| (key, [(0, offset)].into())));
                self.offsets.replace(&table.offset_table);
                self.offsets.set_version(table.data_version.unwrap_or_default());
                (table.offset_table.len(), extras)
            }
            Json::Delays => {
                let (table, extras) = parse::<DelayOffsets>(path, bytes)?;
                for (level, offset) in &table.offset_table {
                    self.delay.import(self.store, *level, *offset);
                }
                (table.offset_table.len(), extras)
            }
            Json::Modes => {
                let (modes, extras) = parse::<MessageRequestModes>(path, bytes)?;
                (self.pops.modes.replace(modes), extras)
            }
            Json::Orders => {
                let (orders, extras) = parse::<OrderTable>(path, bytes)?;
                let count = orders.table.len();
                self.pops.orders.replace(orders.table);
                (count, extras)
            }
            Json::Conditions => {
                let (table, _) = parse::<ConsumerFilterTable>(path, bytes)?;
                // Members that we do not know belong to a subscription, and would outlive it.
                (self.conditions.replace(table, self.clock.now().0), Value::Null)
            }
            Json::Mappings => {
                let (mut table, extras) = parse::<TopicQueueMappingTable>(path, bytes)?;
                let bad = |refusal: Refusal| ConfigFilesError::Content { path: path.to_owned(), cause: refusal.remark };
                for (topic, detail) in &mut table.topic_queue_mapping_info_map {
                    let owner = detail.bname.clone();
                    accept::check(detail, &owner, topic, QUEUES_MAX).map_err(bad)?;
                }
                let count = table.topic_queue_mapping_info_map.len();
                self.topics.replace_mappings(table.topic_queue_mapping_info_map);
                self.topics.set_mapping_version(table.data_version.unwrap_or_default());
                (count, extras)
            }
        })
    }

    /// Changes whenever the state does.
    pub(super) fn stamp(&self, json: Json) -> (i64, i64, u64) {
        match json {
            Json::Topics => {
                let version = self.topics.version();
                (version.counter, version.timestamp, self.topics.len() as u64)
            }
            Json::Groups => {
                let version = self.groups.version();
                (version.counter, version.timestamp, self.groups.len() as u64)
            }
            Json::Offsets | Json::LightOffsets => (0, 0, self.offsets.changes()),
            Json::Modes => (0, 0, self.pops.modes.changes()),
            Json::Conditions => (0, 0, self.conditions.changes()),
            Json::Orders => {
                let (sum, count) = self.pops.orders.stamp();
                (0, sum, count)
            }
            Json::Mappings => {
                let version = self.topics.mapping_version();
                (version.counter, version.timestamp, 0)
            }
            Json::Delays => (0, self.delay.offsets().map(|(_, offset)| offset).sum(), 0),
        }
    }

    /// The file's text.
    pub(super) fn render(&self, json: Json, extras: &Value) -> String {
        match json {
            Json::Topics => {
                let topics = self.topics.all();
                let table = TopicConfigTable {
                    data_version: self.topics.version(),
                    topic_config_table: topics
                        .iter()
                        .map(|topic| (topic.name().to_owned(), protocol::body::TopicConfig::clone(&topic.config())))
                        .collect(),
                    ..TopicConfigTable::default()
                };
                text(&table, extras)
            }
            Json::Groups => text(&admin::groups::table(self.groups), extras),
            Json::Offsets => {
                let all = self.offsets_to_go_on_with();
                let offset_table = if self.store.has_light_queues() { light_groups(all, false) } else { all };
                text(
                    &ConsumerOffsets { data_version: Some(version_of_offsets(self.offsets.version())), offset_table },
                    extras,
                )
            }
            Json::LightOffsets => {
                let of_light_groups = light_groups(self.offsets.table(), true).into_iter();
                let table = LmqConsumerOffsets {
                    data_version: Some(version_of_offsets(self.offsets.version())),
                    lmq_offset_table: of_light_groups
                        .filter_map(|(key, offsets)| Some((key, offsets.into_values().next()?)))
                        .collect(),
                    offset_table: light_groups(self.offsets.table(), false),
                };
                text(&table, extras)
            }
            Json::Modes => text(&self.pops.modes.table(), extras),
            Json::Conditions => text(&self.conditions.table(), extras),
            Json::Orders => text(&OrderTable { table: self.pops.orders.table() }, extras),
            Json::Mappings => {
                let mappings = self.topics.mappings().into_iter();
                let table = TopicQueueMappingTable {
                    data_version: Some(self.topics.mapping_version()),
                    topic_queue_mapping_info_map: mappings
                        .map(|(topic, mapping)| (topic.name().to_owned(), mapping.detail().clone()))
                        .collect(),
                };
                text(&table, extras)
            }
            Json::Delays => {
                let offset_table = self.delay.offsets().filter(|(_, offset)| *offset > 0).collect();
                text(&DelayOffsets { data_version: Some(DataVersion::default()), offset_table }, extras)
            }
        }
    }
}

/// A broker of Apache's with `storeType=defaultRocksDB` takes the offsets of a file whose version counts more than that of its database, which is 0
/// where the database is new; and nobody counts the first commits.
fn version_of_offsets(version: DataVersion) -> DataVersion {
    DataVersion { counter: version.counter.max(1), ..version }
}

/// The offsets of groups that are named like a light queue, or those of the others.
fn light_groups(mut table: OffsetTable, is_light: bool) -> OffsetTable {
    table.retain(|key, _| split_key(key).is_some_and(|(_, group)| protocol::names::is_lmq(group)) == is_light);
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_written_with_a_version_that_counts_more_than_none() {
        let version = DataVersion { timestamp: 5, ..DataVersion::default() };
        assert_eq!(version_of_offsets(version), DataVersion { counter: 1, ..version });
        let version = DataVersion { counter: 7, ..version };
        assert_eq!(version_of_offsets(version), version);
    }
}
