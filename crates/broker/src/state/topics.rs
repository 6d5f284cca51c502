//! Topics: what they are called, how many queues they have, and who may do what with them.
//!
//! Readers get a topic from a concurrent map and its configuration as a snapshot; whoever changes one holds `changing`. Each change is
//! in the journal, under the topic's name, before anybody is told of it, and bumps the data version that name servers compare.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use arc_swap::{ArcSwap, ArcSwapOption};
use config::BrokerSettings;
use env::Clock;
use journal::{Change, Journal, Table};
use parking_lot::Mutex;
use protocol::body::{DataVersion, TopicConfig, TopicFilterType};
use protocol::code::ResponseCode;
use protocol::delay::DelayLevels;
use protocol::light as known_light;
use protocol::names as known;
use protocol::sys_flag::perm;
use store::{ConsumeQueue, Store, StoreError};
use tokio::sync::Notify;

use crate::hashing::{self, Hashing};
use crate::per_queue::PerQueue;
use crate::refusal::Refusal;
use crate::state::stats::TopicMeters;
use crate::state::topics::flush::TopicFlush;
use crate::state::topics::light::LightTopics;
use crate::state::topics::mapping::Mapping;
use crate::state::topics::replica_ack::TopicReplicaAck;
use crate::tables::{self, Keeper};
use crate::waiting::hold::Lane;

pub(crate) mod flush;
mod light;
pub(crate) mod logical;
pub(crate) mod mapped;
pub(crate) mod mapping;
pub(crate) mod of_another;
pub(crate) mod queues;
pub(crate) mod replica_ack;

/// More queues than any topic has; a larger number in a request is a mistake that would cost memory.
pub(crate) const QUEUES_MAX: i32 = store::QUEUES_MAX as i32;

/// Topics that a broker keeps: where topics are made on demand, any client can make one by naming it.
pub(crate) const TOPICS_MAX: usize = 1_000_000;

/// A change that is being put into the journal, at a position that is not known yet.
const PUTTING: u64 = u64::MAX;

const READ_WRITE: i32 = perm::READ | perm::WRITE;

/// One topic.
pub struct Topic {
    name: Arc<str>,
    config: ArcSwap<TopicConfig>,
    /// By queue id; filled when a queue is first used.
    lanes: PerQueue<Lane>,
    /// Where its messages are counted: looked up by name once, and again if that is no longer the table's.
    pub(crate) meters: ArcSwapOption<TopicMeters>,
    /// What its attributes say of acknowledgements.
    pub(crate) flush: TopicFlush,
    /// What it asks of slaves.
    pub(crate) replica_ack: TopicReplicaAck,
    /// See `mapped.rs`.
    is_static: AtomicBool,
    mapping: ArcSwapOption<Mapping>,
    /// Guards nothing else; taken when a mapping changes.
    replaced: Mutex<mapped::Replaced>,
    /// Deleted: whoever still holds it looks the name up again.
    is_gone: AtomicBool,
    /// Clients may send to it, as far as its name goes.
    is_sendable: bool,
    is_retry: bool,
    /// For its lanes.
    bell: Option<Arc<Notify>>,
    /// Position in the journal of the topic's last change; 0 once that is known to be on the device.
    changed_at: AtomicU64,
    /// Held while a change is in memory and not yet in the journal: whoever finds [`PUTTING`] waits here for the position.
    putting: Mutex<()>,
}

impl Topic {
    fn new(config: TopicConfig, changed_at: u64, bells: &Bells) -> Topic {
        let name = config.topic_name.as_str();
        Topic {
            is_sendable: known::check_topic(name).is_ok() && !known::is_not_sendable(name),
            is_retry: known::is_retry_topic(name),
            bell: bells.of(name).cloned(),
            name: Arc::from(config.topic_name.as_str()),
            flush: TopicFlush::of(&config.attributes),
            replica_ack: TopicReplicaAck::of(&config.attributes),
            config: ArcSwap::from_pointee(config),
            lanes: PerQueue::default(),
            meters: ArcSwapOption::empty(),
            is_static: AtomicBool::new(false),
            mapping: ArcSwapOption::empty(),
            replaced: Mutex::default(),
            is_gone: AtomicBool::new(false),
            changed_at: AtomicU64::new(changed_at),
            putting: Mutex::new(()),
        }
    }

    /// Its name, namespace and prefixes included.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The same, to keep.
    pub fn shared_name(&self) -> &Arc<str> {
        &self.name
    }

    /// Its configuration at this moment.
    pub fn config(&self) -> Arc<TopicConfig> {
        self.config.load_full()
    }

    /// Its configuration, for the length of one check.
    pub(crate) fn settings(&self) -> arc_swap::Guard<Arc<TopicConfig>> {
        self.config.load()
    }

    /// Whether it was deleted.
    pub fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }

    /// Whether its configuration has a queue with this id, to write or to read.
    pub(crate) fn has_queue(&self, queue_id: i32) -> bool {
        let config = self.config.load();
        (0..config.write_queue_nums.max(config.read_queue_nums)).contains(&queue_id)
    }

    pub(crate) fn is_sendable(&self) -> bool {
        self.is_sendable
    }

    pub(crate) fn is_retry(&self) -> bool {
        self.is_retry
    }

    /// The queue with this id, opened or created.
    ///
    /// The caller has checked the id against the configuration; ids of a topic that shrank stay usable for who holds them.
    pub(crate) fn lane(&self, store: &Store, queue_id: u32) -> Result<Arc<Lane>, StoreError> {
        let lane = self.lanes.get_or_make(queue_id as usize, || {
            let queue = match has_batch_queues(&self.config.load()) {
                true => store.batch_queue(&self.name, queue_id)?,
                false => store.queue(&self.name, queue_id)?,
            };
            Ok::<_, StoreError>(Lane::new(queue, self.bell.clone()))
        })?;
        // Pairs with the one of whoever appends to a light queue and looks for its lane: the next look is at the queue.
        fence(Ordering::SeqCst);
        Ok(lane)
    }

    /// The queue with this id, if it was opened.
    pub(crate) fn opened_lane(&self, queue_id: u32) -> Option<Arc<Lane>> {
        self.lanes.get(queue_id as usize)
    }

    /// The journal position that an acknowledgement for this topic has to wait for, whether it waits for the kernel or for the device; 0 when
    /// the device, of which `synced` tells, has it already.
    pub(crate) fn unsynced_change(&self, synced: impl Fn() -> u64) -> u64 {
        let mut changed_at = self.changed_at.load(Ordering::Acquire);
        if changed_at == PUTTING {
            drop(self.putting.lock());
            changed_at = self.changed_at.load(Ordering::Acquire);
        }
        if changed_at == 0 {
            return 0;
        }
        if synced() >= changed_at {
            // A change in between sets a larger value, which must stay.
            let _ = self.changed_at.compare_exchange(changed_at, 0, Ordering::AcqRel, Ordering::Relaxed);
            return 0;
        }
        changed_at
    }
}

/// Rung when queues grow that a task of the broker waits for.
#[derive(Default)]
struct Bells {
    /// Delayed messages.
    schedule: Arc<Notify>,
    /// Half messages.
    half: Arc<Notify>,
    /// Timer messages.
    timer: Arc<Notify>,
    /// Check-points of pops.
    revive: Arc<Notify>,
}

impl Bells {
    fn of(&self, topic: &str) -> Option<&Arc<Notify>> {
        match topic {
            known::SCHEDULE_TOPIC => Some(&self.schedule),
            known::TRANS_HALF_TOPIC => Some(&self.half),
            known::TIMER_TOPIC => Some(&self.timer),
            _ if topic.starts_with(known::REVIVE_TOPIC_PREFIX) => Some(&self.revive),
            _ => None,
        }
    }
}

/// What a change did.
#[derive(Clone)]
pub struct Changed {
    /// The topic as it is now.
    pub topic: Arc<Topic>,
    /// Acknowledge when the journal is written up to here.
    pub position: u64,
}

/// Told of each change, after it is in force: `register` tells the name servers.
pub type OnChange = Box<dyn Fn(&TopicConfig) + Send + Sync>;

/// All topics of this broker.
pub struct Topics {
    table: papaya::HashMap<Arc<str>, Arc<Topic>, Hashing>,
    /// No more are made by sending to them or by request; those that the broker itself needs are.
    max: usize,
    /// Guards every change of `table`, and with it the order of changes in the journal. Journal puts happen under it, which never wait.
    changing: Mutex<()>,
    version: ArcSwap<DataVersion>,
    /// Of the mappings of static topics.
    mapping_version: ArcSwap<DataVersion>,
    /// There is a static topic, or was one.
    has_static: AtomicBool,
    on_change: ArcSwap<Option<OnChange>>,
    bells: Bells,
    /// Topics that are not in the table; none if `%LMQ%…` is a name like others.
    light: Option<LightTopics>,
    keeper: Keeper,
    clock: Clock,
}

impl Topics {
    /// What the journal holds.
    pub(crate) fn load(store: &Arc<Store>, clock: Clock) -> Topics {
        let topics = Topics {
            table: papaya::HashMap::with_hasher(hashing::new()),
            max: TOPICS_MAX,
            changing: Mutex::new(()),
            version: ArcSwap::from_pointee(DataVersion::default()),
            mapping_version: ArcSwap::from_pointee(DataVersion::default()),
            has_static: AtomicBool::new(false),
            on_change: ArcSwap::from_pointee(None),
            bells: Bells::default(),
            light: store.has_light_queues().then(LightTopics::new),
            keeper: Keeper::of(store),
            clock,
        };
        store.journal().load(tables::TOPICS, |name, value| match serde_json::from_slice::<TopicConfig>(value) {
            Ok(config) => {
                let topic = Topic::new(config, 0, &topics.bells);
                topics.table.pin().insert(Arc::clone(&topic.name), Arc::new(topic));
            }
            // The journal's checksums hold, so this was written by a broker that knows more than we do.
            Err(error) => {
                tracing::error!(topic = %String::from_utf8_lossy(name), %error, "topic in the journal not understood")
            }
        });
        store.journal().load(tables::VERSIONS, |name, value| {
            if name == tables::TOPICS_VERSION
                && let Ok(version) = serde_json::from_slice::<DataVersion>(value)
            {
                topics.version.store(Arc::new(version));
            }
        });
        topics.load_mappings(store);
        topics
    }

    /// The topic of this name. Each light queue has one, without anybody making it.
    pub fn get(&self, name: &str) -> Option<Arc<Topic>> {
        if let Some(light) = self.light.as_ref().filter(|_| known::is_lmq(name)) {
            known_light::check_name(name).ok()?;
            return Some(light.get(name, || Topic::new(plain(name, 1, READ_WRITE), 0, &self.bells)));
        }
        self.table.pin().get(name).cloned()
    }

    /// Whether the name is that of a light queue, of which no topic is made, changed or listed.
    pub(crate) fn is_light(&self, name: &str) -> bool {
        self.light.is_some() && known::is_lmq(name)
    }

    /// Adds the lanes of light queues, which have just been appended to and made visible, that somebody may wait on.
    pub(crate) fn light_lanes(&self, queues: &[Arc<ConsumeQueue>], lanes: &mut Vec<Arc<Lane>>) {
        if let Some(light) = &self.light {
            light.for_used(queues, |topic| lanes.extend(topic.opened_lane(known_light::QUEUE_ID)));
        }
    }

    /// The topic where delayed messages wait.
    pub(crate) fn schedule(&self) -> Arc<Topic> {
        self.create_missing(known::SCHEDULE_TOPIC, || plain(known::SCHEDULE_TOPIC, 18, READ_WRITE)).topic
    }

    pub(crate) fn schedule_bell(&self) -> &Arc<Notify> {
        &self.bells.schedule
    }

    /// The topic of half messages.
    pub(crate) fn half(&self) -> Arc<Topic> {
        self.create_missing(known::TRANS_HALF_TOPIC, || plain(known::TRANS_HALF_TOPIC, 1, READ_WRITE)).topic
    }

    pub(crate) fn half_bell(&self) -> &Arc<Notify> {
        &self.bells.half
    }

    /// The topic where messages wait for their time.
    pub(crate) fn timer(&self) -> Arc<Topic> {
        self.create_missing(known::TIMER_TOPIC, || plain(known::TIMER_TOPIC, 1, READ_WRITE)).topic
    }

    pub(crate) fn timer_bell(&self) -> &Arc<Notify> {
        &self.bells.timer
    }

    pub(crate) fn revive_bell(&self) -> &Arc<Notify> {
        &self.bells.revive
    }

    /// The topic of the ends of transactions.
    pub(crate) fn op(&self) -> Arc<Topic> {
        self.create_missing(known::TRANS_OP_HALF_TOPIC, || plain(known::TRANS_OP_HALF_TOPIC, 1, READ_WRITE)).topic
    }

    /// Every topic.
    pub fn all(&self) -> Vec<Arc<Topic>> {
        self.table.pin().values().cloned().collect()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Refuses one topic too many.
    pub(crate) fn check_room(&self) -> Result<(), Refusal> {
        self.check_room_for(1)
    }

    /// Refuses so many new topics if that is too many.
    pub(crate) fn check_room_for(&self, new: usize) -> Result<(), Refusal> {
        if self.len() + new <= self.max {
            return Ok(());
        }
        let what = if new == 1 { "the topic is".to_owned() } else { format!("{new} new topics are") };
        let remark = format!("{what} not created: this broker has {} topics, the limit is {}", self.len(), self.max);
        Err(Refusal::new(ResponseCode::SystemError, remark))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Of what age the table is.
    pub fn version(&self) -> DataVersion {
        DataVersion::clone(&self.version.load())
    }

    /// Takes over the version of an imported `topics.json`.
    pub fn set_version(&self, version: DataVersion) -> u64 {
        let _changing = self.changing.lock();
        self.put_version(version)
    }

    /// Who is told of changes.
    pub fn on_change(&self, hook: OnChange) {
        self.on_change.store(Arc::new(Some(hook)));
    }

    /// Creates a topic, or gives an existing one this configuration.
    pub fn create(&self, config: TopicConfig) -> Changed {
        let changed = {
            let _changing = self.changing.lock();
            self.put(config)
        };
        self.tell(&changed.topic);
        changed
    }

    /// Creates a topic unless it is there.
    pub fn create_missing(&self, name: &str, config: impl FnOnce() -> TopicConfig) -> Changed {
        if let Some(topic) = self.get(name) {
            return self.unchanged(topic);
        }
        let changed = {
            let _changing = self.changing.lock();
            if let Some(topic) = self.get(name) {
                return self.unchanged(topic);
            }
            self.put(config())
        };
        tracing::info!(topic = name, queues = changed.topic.settings().write_queue_nums, "topic created");
        self.tell(&changed.topic);
        changed
    }

    /// Forgets a topic and its queues; its messages stay in the log until that is deleted.
    pub fn delete(&self, name: &str) -> Option<u64> {
        let _changing = self.changing.lock();
        if let Some(light) = self.light.as_ref().filter(|_| known::is_lmq(name)) {
            let store = self.keeper.store()?;
            store.delete_topic(name);
            // Behind it, as one that is made before has the queue that goes.
            if let Some(topic) = light.remove(name) {
                topic.is_gone.store(true, Ordering::Release);
            }
            return Some(store.journal().position());
        }
        let topic = self.table.pin().remove(name).cloned()?;
        topic.is_gone.store(true, Ordering::Release);
        self.keeper.delete(tables::TOPICS, name.as_bytes());
        self.drop_mapping(&topic);
        let position = self.bump();
        let Some(store) = self.keeper.store() else { return Some(position) };
        store.delete_topic(name);
        // Behind the mark that keeps the messages of this life out of the next one.
        Some(store.journal().position())
    }

    /// Deletes a light queue if nothing stands at or behind `end` in it. Says whether it is gone.
    pub(crate) fn delete_light_up_to(&self, name: &str, end: u64) -> bool {
        let _changing = self.changing.lock();
        let Some(store) = self.keeper.store() else { return false };
        let is_over =
            || store.existing_queue(name, protocol::light::QUEUE_ID).is_none_or(|queue| queue.max_offset() <= end);
        if !store.delete_topic_if(name, is_over) {
            return false;
        }
        if let Some(topic) = self.light.as_ref().and_then(|light| light.remove(name)) {
            topic.is_gone.store(true, Ordering::Release);
        }
        true
    }

    /// Removes the queues of topics that are not in the table: leftovers of another broker, or of a topic whose deletion a crash
    /// cut short. Returns the topics.
    pub(crate) fn delete_unknown_queues(&self) -> Vec<Arc<str>> {
        let Some(store) = self.keeper.store() else { return Vec::new() };
        // Apache leaves light queues alone, also where they are switched off.
        let is_unknown =
            |topic: &str| !known::is_lmq(topic) && self.get(topic).is_none() && !known::is_system_topic(topic);
        let mut unknown = store.topics();
        unknown.retain(|topic| is_unknown(topic));
        unknown.retain(|topic| {
            // Nobody makes this topic meanwhile: its queues would go with the leftovers of its name. The lock is taken for one topic at
            // a time, because a send that makes a topic waits for it on a network worker.
            let _changing = self.changing.lock();
            let is_left_over = is_unknown(topic);
            if is_left_over {
                store.delete_topic(topic);
            }
            is_left_over
        });
        unknown
    }

    /// Forgets a topic that another broker has deleted; its queues are that broker's business.
    pub(crate) fn forget(&self, name: &str) {
        let _changing = self.changing.lock();
        if let Some(topic) = self.table.pin().remove(name) {
            topic.is_gone.store(true, Ordering::Release);
            self.keeper.delete(tables::TOPICS, name.as_bytes());
            self.drop_mapping(topic);
            self.bump();
        }
    }

    /// A topic for a message that was sent to a name that does not exist yet: queues and permissions come from the template that the
    /// client names, if that may be inherited from.
    pub(crate) fn create_for_send(
        &self,
        settings: &BrokerSettings,
        name: &str,
        template: &str,
        queues_wanted: i32,
        topic_sys_flag: i32,
    ) -> Option<Changed> {
        if self.is_light(name) {
            return None;
        }
        let template_config = self.get(template)?.config();
        let may_inherit = perm::is_inherited(template_config.perm)
            && (template != known::AUTO_CREATE_TOPIC || settings.auto_create_topic_enable);
        if !may_inherit {
            return None;
        }
        let queues = queues_wanted.min(template_config.write_queue_nums).max(0);
        Some(self.create_missing(name, || TopicConfig {
            topic_name: name.to_owned(),
            read_queue_nums: queues,
            write_queue_nums: queues,
            perm: template_config.perm & !perm::INHERIT,
            topic_filter_type: template_config.topic_filter_type,
            topic_sys_flag,
            ..TopicConfig::default()
        }))
    }

    /// `%RETRY%` and `%DLQ%` topics, which need no template.
    pub fn create_for_group(&self, name: &str, queues: i32, topic_sys_flag: i32) -> Changed {
        self.create_missing(name, || TopicConfig { topic_sys_flag, ..plain(name, queues, READ_WRITE) })
    }

    /// The topics that every broker has (messages.md §1.1), created where they are missing.
    pub(crate) fn create_system_topics(&self, settings: &BrokerSettings, levels: &DelayLevels) {
        let mut created = 0;
        for config in system_topics(settings, levels) {
            if self.get(&config.topic_name).is_none() {
                tracing::debug!(topic = config.topic_name, queues = config.write_queue_nums, "system topic created");
                self.create(config);
                created += 1;
            }
        }
        if created > 0 {
            tracing::info!(topics = created, "system topics created");
        }
    }

    fn unchanged(&self, topic: Arc<Topic>) -> Changed {
        let position = topic.unsynced_change(|| self.keeper.synced());
        Changed { topic, position }
    }

    /// Under `changing`.
    fn put(&self, config: TopicConfig) -> Changed {
        self.put_with(config, None, |_| ())
    }

    /// `change` is made in the same step: before a new topic is seen, and before the version says that an old one has changed. So is the
    /// change `beside` it in the journal: a crash leaves both or neither.
    fn put_with(&self, config: TopicConfig, beside: Option<Change<'_>>, change: impl FnOnce(&Topic)) -> Changed {
        let name = config.topic_name.clone();
        // A map of strings and numbers always serialises.
        let value = serde_json::to_vec(&config).unwrap_or_default();
        let known = self.get(&name);
        let topic = known.clone().unwrap_or_else(|| Arc::new(Topic::new(TopicConfig::clone(&config), 0, &self.bells)));
        let putting = topic.putting.lock();
        topic.changed_at.store(PUTTING, Ordering::Release);
        // Memory first: a snapshot that is being taken must not miss what the journal has already.
        match known {
            Some(known) => {
                known.flush.follow(&config.attributes);
                known.replica_ack.follow(&config.attributes);
                known.config.store(Arc::new(config));
                change(&known);
            }
            None => {
                change(&topic);
                self.table.pin().insert(Arc::clone(&topic.name), Arc::clone(&topic));
            }
        }
        let put = Change { table: tables::TOPICS, key: name.as_bytes(), value: Some(&value) };
        match beside {
            Some(beside) => self.keeper.put_together(&[put, beside]),
            None => self.keeper.put_together(&[put]),
        };
        let position = self.bump();
        topic.changed_at.store(position, Ordering::Release);
        drop(putting);
        Changed { topic, position }
    }

    /// Under `changing`: the next data version.
    fn bump(&self) -> u64 {
        let mut version = self.version();
        version.timestamp = self.clock.now().0;
        version.counter += 1;
        self.put_version(version)
    }

    fn put_version(&self, version: DataVersion) -> u64 {
        let value = serde_json::to_vec(&version).unwrap_or_default();
        self.version.store(Arc::new(version));
        self.keeper.put(tables::VERSIONS, tables::TOPICS_VERSION, &value)
    }

    fn tell(&self, topic: &Topic) {
        if let Some(hook) = self.on_change.load().as_ref() {
            hook(&topic.settings());
        }
    }
}

impl Table for Topics {
    fn for_each(&self, f: &mut dyn FnMut(&[u8], &[u8])) {
        // Whoever has put a change into the journal before this snapshot began has it in the table when he lets go.
        drop(self.changing.lock());
        for (name, topic) in &self.table.pin() {
            let value = serde_json::to_vec(&**topic.settings()).unwrap_or_default();
            f(name.as_bytes(), &value);
        }
    }
}

/// A topic as Apache makes them when nobody says more.
/// Whether the queues of a topic index records that may be batches. It is so from its creation on.
pub(crate) fn has_batch_queues(config: &TopicConfig) -> bool {
    config.attributes.get("queue.type").is_some_and(|kind| kind == "BatchCQ")
}

/// The topics with `queue.type=BatchCQ` that the journal knows, for a start of the store.
pub fn batch_topics(journal: &Journal) -> HashSet<String> {
    let mut topics = HashSet::new();
    journal.load(tables::TOPICS, |_, value| {
        // What is not understood is said when the topics are loaded.
        if let Ok(config) = serde_json::from_slice::<TopicConfig>(value)
            && has_batch_queues(&config)
        {
            topics.insert(config.topic_name);
        }
    });
    topics
}

pub(crate) fn plain(name: &str, queues: i32, perm: i32) -> TopicConfig {
    TopicConfig {
        topic_name: name.to_owned(),
        read_queue_nums: queues,
        write_queue_nums: queues,
        perm,
        topic_filter_type: TopicFilterType::SingleTag,
        ..TopicConfig::default()
    }
}

fn system_topics(settings: &BrokerSettings, levels: &DelayLevels) -> Vec<TopicConfig> {
    let all = READ_WRITE | perm::INHERIT;
    let open_if = |is_open: bool| if is_open { all } else { perm::INHERIT };
    let cluster = settings.broker_cluster_name.as_str();
    let broker = settings.broker_name.as_str();
    let mut topics = vec![
        plain(known::SELF_TEST_TOPIC, 1, READ_WRITE),
        plain(known::BENCHMARK_TOPIC, 1024, READ_WRITE),
        plain(cluster, 16, open_if(settings.cluster_topic_enable)),
        plain(broker, 1, open_if(settings.broker_topic_enable)),
        plain(known::OFFSET_MOVED_EVENT, 1, READ_WRITE),
        plain(known::SCHEDULE_TOPIC, levels.max_level(), READ_WRITE),
        plain(&format!("{cluster}_REPLY_TOPIC"), 1, READ_WRITE),
        plain(&format!("{}{cluster}", known::REVIVE_TOPIC_PREFIX), settings.revive_queue_num, READ_WRITE),
        plain(&format!("{}{broker}", known::BROKER_MEMBER_PREFIX), 1, perm::INHERIT),
        plain(known::TRANS_HALF_TOPIC, 1, READ_WRITE),
        plain(known::TRANS_OP_HALF_TOPIC, 1, READ_WRITE),
        plain(known::TIMER_TOPIC, 1, READ_WRITE),
    ];
    if settings.auto_create_topic_enable {
        topics.push(plain(known::AUTO_CREATE_TOPIC, settings.default_topic_queue_nums, all));
    }
    if settings.trace_topic_enable {
        topics.push(plain(&settings.msg_trace_topic_name, 1, READ_WRITE));
    }
    topics
}

#[cfg(test)]
mod tests;
