//! Subscription groups: what a group of consumers may do, and how its messages are retried.
//!
//! Readers get a group from a concurrent map and its configuration as a snapshot; whoever changes one holds `changing`. Each change is in
//! the journal, under the group's name, before anybody is told of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use env::Clock;
use hashbrown::HashMap;
use journal::Table;
use parking_lot::{Mutex, RwLock};
use protocol::body::{DataVersion, SubscriptionGroupConfig};
use protocol::code::ResponseCode;
use protocol::{light, names};
use store::Store;

use crate::hashing::{self, Hashing};
use crate::refusal::Refusal;
use crate::state::offsets::SEPARATOR;
use crate::tables::{self, Keeper};

/// Groups that a broker keeps: any client can make one by naming it.
pub(crate) const GROUPS_MAX: usize = 1_000_000;
/// Pairs of group and topic with something forbidden: neither has to be there, so any client can name any number.
const FORBIDDEN_MAX: usize = 100_000;
/// The bit of a forbidden table that stands for reading.
const READ_FORBIDDEN: i32 = 1 << 2;

/// One group.
pub struct Group {
    /// Its name, namespace included.
    pub name: Arc<str>,
    /// Its configuration.
    pub config: ArcSwap<SubscriptionGroupConfig>,
}

/// What groups may not do, as `subscriptionGroup.json` holds it: bits by group and topic.
pub(crate) type Forbidden = BTreeMap<String, BTreeMap<String, i32>>;

/// All groups of this broker.
pub struct Groups {
    table: papaya::HashMap<Arc<str>, Arc<Group>, Hashing>,
    max: usize,
    /// Guards every change of `table` and `forbidden`, and with it the order of changes in the journal.
    changing: Mutex<()>,
    /// Bits by `group@topic`. Nearly always empty, so every pull only looks at `has_forbidden`.
    forbidden: RwLock<HashMap<Box<str>, i32>>,
    forbidden_max: usize,
    /// Relaxed: a pull that races with the prohibition may come first.
    has_forbidden: AtomicBool,
    version: ArcSwap<DataVersion>,
    /// `autoCreateSubscriptionGroup`; relaxed: it stands alone.
    creates_missing: AtomicBool,
    /// There are light queues.
    has_light: bool,
    keeper: Keeper,
    clock: Clock,
}

impl Groups {
    /// What the journal holds, and the groups that every broker has.
    pub(crate) fn load(store: &Arc<Store>, clock: Clock, creates_missing: bool) -> Groups {
        let groups = Groups {
            table: papaya::HashMap::with_hasher(hashing::new()),
            max: GROUPS_MAX,
            changing: Mutex::new(()),
            forbidden: RwLock::default(),
            forbidden_max: FORBIDDEN_MAX,
            has_forbidden: AtomicBool::new(false),
            version: ArcSwap::from_pointee(DataVersion::default()),
            creates_missing: AtomicBool::new(creates_missing),
            has_light: store.has_light_queues(),
            keeper: Keeper::of(store),
            clock,
        };
        let journal = store.journal();
        journal.load(tables::GROUPS, |name, value| match serde_json::from_slice(value) {
            Ok(config) => drop(groups.put_in_memory(config)),
            // The journal's checksums hold, so this was written by a broker that knows more than we do.
            Err(error) => {
                tracing::error!(group = %String::from_utf8_lossy(name), %error, "group in the journal not understood")
            }
        });
        journal.load(tables::FORBIDDEN, |key, value| {
            if let (Ok(key), Ok(bits)) = (std::str::from_utf8(key), <[u8; 4]>::try_from(value)) {
                groups.forbidden.write().insert(key.into(), i32::from_le_bytes(bits));
            }
        });
        groups.note_forbidden();
        journal.load(tables::VERSIONS, |name, value| {
            if name == tables::GROUPS_VERSION
                && let Ok(version) = serde_json::from_slice::<DataVersion>(value)
            {
                groups.version.store(Arc::new(version));
            }
        });
        for name in names::PREDEFINED_GROUPS {
            groups.create_missing(name, || plain(name));
        }
        groups
    }

    /// The group of this name. One that is named like a light queue is there without anybody making it, and is not kept.
    pub fn get(&self, name: &str) -> Option<Arc<Group>> {
        if self.is_light(name) {
            light::check_name(name).ok()?;
            return Some(Arc::new(Group { name: name.into(), config: ArcSwap::from_pointee(plain(name)) }));
        }
        self.table.pin().get(name).cloned()
    }

    /// The group of this name, made if it is missing and may be.
    pub fn find(&self, name: &str) -> Result<Arc<Group>, Refusal> {
        if let Some(group) = self.get(name) {
            return Ok(group);
        }
        if self.is_light(name) {
            return Err(Refusal::group_not_exist(name));
        }
        let may_create = self.creates_missing.load(Ordering::Relaxed) || name.starts_with(names::SYSTEM_GROUP_PREFIX);
        if !may_create || names::check_group(name).is_err() {
            return Err(Refusal::group_not_exist(name));
        }
        if self.table.len() >= self.max {
            let remark =
                format!("subscription group not exist, {name}, and not created: this broker has {} groups", self.max);
            return Err(Refusal::new(ResponseCode::SubscriptionGroupNotExist, remark));
        }
        Ok(self.create_missing(name, || plain(name)))
    }

    /// Whether the name is that of a light queue, of which no group is made, changed or listed.
    pub(crate) fn is_light(&self, name: &str) -> bool {
        self.has_light && names::is_lmq(name)
    }

    /// Every group.
    pub fn all(&self) -> Vec<Arc<Group>> {
        self.table.pin().values().cloned().collect()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Refuses new groups that would exceed the limit of groups.
    pub(crate) fn check_room_for(&self, new: usize) -> Result<(), Refusal> {
        if new == 0 || self.len() + new <= self.max {
            return Ok(());
        }
        let remark =
            format!("{new} more groups are not created: this broker has {}, the limit is {}", self.len(), self.max);
        Err(Refusal::new(ResponseCode::SystemError, remark))
    }

    /// Whether an operator has forbidden the group to read the topic.
    pub fn is_read_forbidden(&self, group: &str, topic: &str) -> bool {
        self.has_forbidden.load(Ordering::Relaxed) && self.forbidden_bits(group, topic) & READ_FORBIDDEN != 0
    }

    /// Forbids or allows the group to read the topic. Returns the journal position of the change.
    ///
    /// # Errors
    /// If as much is forbidden as may be.
    pub fn set_readable(&self, group: &str, topic: &str, is_readable: bool) -> Result<u64, Refusal> {
        let _changing = self.changing.lock();
        let before = self.forbidden_bits(group, topic);
        let after = if is_readable { before & !READ_FORBIDDEN } else { before | READ_FORBIDDEN };
        let count = self.forbidden.read().len();
        if before == 0 && after != 0 && count >= self.forbidden_max {
            let remark = format!(
                "group {group} is not forbidden to read topic {topic}: {count} pairs of group and topic are, the limit is {}",
                self.forbidden_max
            );
            return Err(Refusal::new(ResponseCode::SystemError, remark));
        }
        self.put_forbidden(group, topic, after);
        Ok(self.bump())
    }

    /// What groups may not do.
    pub(crate) fn forbidden(&self) -> Forbidden {
        let mut table = Forbidden::new();
        for (key, bits) in self.forbidden.read().iter() {
            if let Some((group, topic)) = key.split_once(SEPARATOR) {
                table.entry(group.to_owned()).or_default().insert(topic.to_owned(), *bits);
            }
        }
        table
    }

    /// Of what age the table is.
    pub fn version(&self) -> DataVersion {
        DataVersion::clone(&self.version.load())
    }

    /// Makes a group, or gives an existing one this configuration. Returns the journal position of the change.
    pub fn put(&self, config: SubscriptionGroupConfig) -> u64 {
        let _changing = self.changing.lock();
        self.put_locked(config);
        self.bump()
    }

    /// Forgets a group, if it is there. Returns the journal position of the change.
    pub fn delete(&self, name: &str) -> Option<u64> {
        let _changing = self.changing.lock();
        self.table.pin().remove(name)?;
        self.keeper.delete(tables::GROUPS, name.as_bytes());
        let topics = self.forbidden().remove(name).unwrap_or_default();
        for topic in topics.keys() {
            self.put_forbidden(name, topic, 0);
        }
        Some(self.bump())
    }

    /// Puts the tables of an imported file in the place of ours. Groups that every broker has stay.
    pub(crate) fn replace(
        &self,
        configs: BTreeMap<String, SubscriptionGroupConfig>,
        forbidden: &Forbidden,
        version: DataVersion,
    ) {
        for group in self.all() {
            if !configs.contains_key(&*group.name) && !names::PREDEFINED_GROUPS.contains(&&*group.name) {
                self.delete(&group.name);
            }
        }
        let _changing = self.changing.lock();
        for (name, config) in configs {
            // Apache keys the table by name and trusts the key.
            self.put_locked(SubscriptionGroupConfig { group_name: name, ..config });
        }
        for (group, topics) in self.forbidden() {
            for topic in
                topics.keys().filter(|topic| !forbidden.get(&group).is_some_and(|topics| topics.contains_key(*topic)))
            {
                self.put_forbidden(&group, topic, 0);
            }
        }
        for (group, topics) in forbidden {
            for (topic, bits) in topics {
                self.put_forbidden(group, topic, *bits);
            }
        }
        self.put_version(version);
    }

    /// Takes over a row of prohibitions of a master, by `group@topic`. False if it is not understood, or one too many.
    pub(crate) fn take_forbidden(&self, key: &[u8], value: Option<&[u8]>) -> bool {
        let bits = value.map(|value| value.try_into().map(i32::from_le_bytes));
        let (Ok(key), Ok(bits)) = (std::str::from_utf8(key), bits.transpose()) else { return false };
        let Some((group, topic)) = key.split_once(SEPARATOR) else { return false };
        let _changing = self.changing.lock();
        let has_room = bits.is_none() || self.forbidden.read().len() < self.forbidden_max;
        if has_room {
            self.put_forbidden(group, topic, bits.unwrap_or(0));
        }
        has_room
    }

    /// Takes over the version of a master.
    pub(crate) fn set_version(&self, version: DataVersion) {
        let _changing = self.changing.lock();
        self.put_version(version);
    }

    /// The setting has been changed.
    pub(crate) fn set_creates_missing(&self, creates_missing: bool) {
        self.creates_missing.store(creates_missing, Ordering::Relaxed);
    }

    fn create_missing(&self, name: &str, config: impl FnOnce() -> SubscriptionGroupConfig) -> Arc<Group> {
        let _changing = self.changing.lock();
        if let Some(group) = self.get(name) {
            return group;
        }
        let group = self.put_locked(config());
        self.bump();
        tracing::info!(group = name, "group created");
        group
    }

    /// Under `changing`.
    fn put_locked(&self, config: SubscriptionGroupConfig) -> Arc<Group> {
        // Strings, numbers and maps of strings always serialise.
        let value = serde_json::to_vec(&config).unwrap_or_default();
        // Memory first: a snapshot that is being taken must not miss what the journal has already.
        let group = self.put_in_memory(config);
        self.keeper.put(tables::GROUPS, group.name.as_bytes(), &value);
        group
    }

    fn put_in_memory(&self, config: SubscriptionGroupConfig) -> Arc<Group> {
        if let Some(group) = self.get(&config.group_name) {
            group.config.store(Arc::new(config));
            return group;
        }
        let group = Arc::new(Group { name: config.group_name.as_str().into(), config: ArcSwap::from_pointee(config) });
        self.table.pin().insert(Arc::clone(&group.name), Arc::clone(&group));
        group
    }

    fn forbidden_bits(&self, group: &str, topic: &str) -> i32 {
        let key = format!("{group}{SEPARATOR}{topic}");
        self.forbidden.read().get(key.as_str()).copied().unwrap_or(0)
    }

    /// Under `changing`.
    fn put_forbidden(&self, group: &str, topic: &str, bits: i32) {
        let key = format!("{group}{SEPARATOR}{topic}");
        if bits == 0 {
            self.forbidden.write().remove(key.as_str());
            self.keeper.delete(tables::FORBIDDEN, key.as_bytes());
        } else {
            self.forbidden.write().insert(key.as_str().into(), bits);
            self.keeper.put(tables::FORBIDDEN, key.as_bytes(), &bits.to_le_bytes());
        }
        self.note_forbidden();
    }

    fn note_forbidden(&self) {
        self.has_forbidden.store(!self.forbidden.read().is_empty(), Ordering::Relaxed);
    }

    /// Under `changing`: the next data version.
    fn bump(&self) -> u64 {
        let mut version = self.version();
        version.advance(self.clock.now().0);
        self.put_version(version)
    }

    fn put_version(&self, version: DataVersion) -> u64 {
        let value = serde_json::to_vec(&version).unwrap_or_default();
        self.version.store(Arc::new(version));
        self.keeper.put(tables::VERSIONS, tables::GROUPS_VERSION, &value)
    }
}

impl Table for Groups {
    fn for_each(&self, f: &mut dyn FnMut(&[u8], &[u8])) {
        for (name, group) in &self.table.pin() {
            let value = serde_json::to_vec(&**group.config.load()).unwrap_or_default();
            f(name.as_bytes(), &value);
        }
    }
}

/// The table of prohibitions, for the journal's snapshots.
pub(crate) struct ForbiddenTable(pub(crate) Arc<Groups>);

impl Table for ForbiddenTable {
    fn for_each(&self, f: &mut dyn FnMut(&[u8], &[u8])) {
        // A copy: showing an entry may take a while, and pulls look at this table.
        let forbidden = self.0.forbidden.read().clone();
        for (key, bits) in &forbidden {
            f(key.as_bytes(), &bits.to_le_bytes());
        }
    }
}

/// A group as Apache makes them when nobody says more.
fn plain(name: &str) -> SubscriptionGroupConfig {
    SubscriptionGroupConfig { group_name: name.to_owned(), ..SubscriptionGroupConfig::default() }
}

#[cfg(test)]
mod tests {
    use store::{StoreEnv, StoreOptions};

    use super::*;

    fn groups(max: usize, forbidden_max: usize) -> (Groups, Arc<Store>, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(StoreOptions::at(dir.path()), StoreEnv::real()).unwrap();
        let groups = Groups::load(&store, Clock::real(), true);
        let max = groups.len() + max;
        (Groups { max, forbidden_max, ..groups }, store, dir)
    }

    #[test]
    fn a_broker_that_is_full_of_groups_refuses_one_more_and_keeps_those_it_has() {
        let (groups, store, _dir) = groups(2, 1);
        assert!(groups.check_room_for(2).is_ok());
        assert!(groups.check_room_for(3).unwrap_err().remark.contains("3 more groups are not created"));
        groups.find("a").unwrap();
        groups.put(plain("b"));
        assert!(groups.check_room_for(1).is_err() && groups.check_room_for(0).is_ok());
        assert!(groups.find("c").is_err() && groups.find("a").is_ok());
        store.close().unwrap();
    }

    #[test]
    fn as_many_pairs_are_forbidden_as_may_be_and_one_that_is_allowed_again_makes_room() {
        let (groups, store, _dir) = groups(1, 2);
        groups.set_readable("nobody", "t", false).unwrap();
        groups.set_readable("nobody", "u", false).unwrap();
        let refused = groups.set_readable("nobody", "v", false).unwrap_err();
        assert!(refused.remark.contains("the limit is 2"), "{}", refused.remark);
        assert!(!groups.is_read_forbidden("nobody", "v"));
        // What is forbidden already stays so, and what is not takes no room.
        groups.set_readable("nobody", "u", false).unwrap();
        groups.set_readable("nobody", "w", true).unwrap();
        groups.set_readable("nobody", "t", true).unwrap();
        groups.set_readable("nobody", "v", false).unwrap();
        assert!(groups.is_read_forbidden("nobody", "v") && !groups.is_read_forbidden("nobody", "t"));
        store.close().unwrap();
    }
}
