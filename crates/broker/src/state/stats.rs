//! What passes through the broker: meters by topic, queue and group, and totals.
//!
//! Counting is a relaxed addition; the totals, which every connection touches, are spread over cells by thread and added up when read.
//! One task takes samples (`housekeeping.rs`): every 10 s for the last minute, every 10 minutes for the last hour, every hour for the last
//! day, as Apache does. A figure is the present count less the oldest sample's, so it is right at once and not a sample late.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use env::{Clock, TimeMs};
use jiff::civil::Date;
use parking_lot::Mutex;
use protocol::body::{BrokerStatsData, BrokerStatsItem};
use protocol::names;

use crate::put_times::PutTimes;
use crate::state::falls::Waits;
use crate::state::offsets::{GroupTopic, GroupTopicRef};
use crate::state::topics::Topic;

mod counted;
mod ends;
mod meter;
mod rpc;
mod sorts;
mod total;

pub(crate) use counted::{GroupCounted, TopicCounted};
pub(crate) use ends::AGES;
use ends::Ends;
use meter::{HOUR_EVERY_MS, Meter, Queues};
use rpc::Rpcs;
pub(crate) use rpc::{LATENCIES_MS, RpcCounted};
pub use sorts::MessageType;
pub(crate) use sorts::SIZES;
use sorts::Sorts;
use total::Total;

/// How often the shortest span is sampled.
pub(crate) const SAMPLE_MS: i64 = 10_000;
const MINUTE_MS: i64 = 60_000;
/// Samples of the totals: ten minutes.
const TOTAL_SAMPLES: usize = 61;

/// A figure that 315 can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "RocketMQ's names")]
pub enum Stat {
    TopicPutNums,
    TopicPutSize,
    QueuePutNums,
    QueuePutSize,
    GroupGetNums,
    GroupGetSize,
    QueueGetNums,
    QueueGetSize,
    SndbckPutNums,
    DlqPutNums,
    BrokerPutNums,
    BrokerGetNums,
    BrokerPutNumsWithoutSystemTopic,
    BrokerGetNumsWithoutSystemTopic,
    BrokerAckNums,
    BrokerCkNums,
    GroupAckNums,
    GroupCkNums,
}

impl Stat {
    /// By RocketMQ's name.
    pub fn named(name: &str) -> Option<Stat> {
        Some(match name {
            "TOPIC_PUT_NUMS" => Stat::TopicPutNums,
            "TOPIC_PUT_SIZE" => Stat::TopicPutSize,
            "QUEUE_PUT_NUMS" => Stat::QueuePutNums,
            "QUEUE_PUT_SIZE" => Stat::QueuePutSize,
            "GROUP_GET_NUMS" => Stat::GroupGetNums,
            "GROUP_GET_SIZE" => Stat::GroupGetSize,
            "QUEUE_GET_NUMS" => Stat::QueueGetNums,
            "QUEUE_GET_SIZE" => Stat::QueueGetSize,
            "SNDBCK_PUT_NUMS" => Stat::SndbckPutNums,
            "DLQ_PUT_NUMS" => Stat::DlqPutNums,
            "BROKER_PUT_NUMS" => Stat::BrokerPutNums,
            "BROKER_GET_NUMS" => Stat::BrokerGetNums,
            "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC" => Stat::BrokerPutNumsWithoutSystemTopic,
            "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC" => Stat::BrokerGetNumsWithoutSystemTopic,
            "BROKER_ACK_NUMS" => Stat::BrokerAckNums,
            "BROKER_CK_NUMS" => Stat::BrokerCkNums,
            "GROUP_ACK_NUMS" => Stat::GroupAckNums,
            "GROUP_CK_NUMS" => Stat::GroupCkNums,
            _ => return None,
        })
    }
}

/// What is counted of a topic.
pub(crate) struct TopicMeters {
    put_nums: Meter,
    put_size: Meter,
    queues: Queues,
    sorts: Sorts,
    ends: Ends,
    is_system: bool,
    /// No longer in the table: whoever has kept it looks the name up again. Relaxed: what is counted this moment may be lost.
    is_dropped: AtomicBool,
}

impl TopicMeters {
    fn drop_out(&self) {
        self.is_dropped.store(true, Ordering::Relaxed);
    }
}

struct GroupMeters {
    get_nums: Meter,
    get_size: Meter,
    sent_back: Meter,
    dead: Meter,
    acked: Meter,
    leased: Meter,
    queues: Queues,
    is_system: bool,
}

impl GroupMeters {
    /// Nothing was counted in a day: something has counted once, and nothing does any more.
    fn is_idle(&self) -> bool {
        let meters = [&self.get_nums, &self.sent_back, &self.dead, &self.acked, &self.leased];
        meters.iter().any(|meter| meter.is_idle()) && meters.iter().all(|meter| meter.is_idle() || meter.is_unused())
    }
}

/// The totals at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) put_messages: u64,
    pub(crate) put_bytes: u64,
    pub(crate) put_user_messages: u64,
    pub(crate) got_messages: u64,
    pub(crate) got_bytes: u64,
    pub(crate) got_user_messages: u64,
    pub(crate) acked_messages: u64,
    pub(crate) leases: u64,
    /// Pulls that found something, and that did not.
    pub(crate) pulls_found: u64,
    pub(crate) pulls_missed: u64,
    /// Timer messages taken in from their queue, and dealt with when they were due.
    pub(crate) timers_taken_in: u64,
    pub(crate) timers_dealt_with: u64,
}

/// Messages put and got up to the last two midnights, in the machine's time zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mornings {
    pub(crate) put_yesterday: u64,
    pub(crate) put_today: u64,
    pub(crate) got_yesterday: u64,
    pub(crate) got_today: u64,
}

struct History {
    samples: VecDeque<(TimeMs, Totals)>,
    mornings: Mornings,
    day: Option<Date>,
}

impl History {
    /// The newest sample that is so old, or the oldest there is.
    fn before(&self, now: TimeMs, span_ms: i64) -> Option<&(TimeMs, Totals)> {
        let old_enough = self.samples.iter().rev().find(|(at, _)| now.since(*at) >= span_ms);
        old_enough.or(self.samples.front())
    }
}

/// All figures of this broker.
pub struct Stats {
    topics: papaya::HashMap<Arc<str>, Arc<TopicMeters>, foldhash::fast::RandomState>,
    groups: papaya::HashMap<GroupTopic, Arc<GroupMeters>, foldhash::fast::RandomState>,
    put_messages: Total,
    put_bytes: Total,
    put_user_messages: Total,
    got_messages: Total,
    got_bytes: Total,
    got_user_messages: Total,
    acked_messages: Total,
    leases: Total,
    pulls_found: Total,
    pulls_missed: Total,
    timers_taken_in: Total,
    timers_dealt_with: Total,
    /// The name under which all light queues are counted, and all groups named like one; none: each under its own.
    light: Option<Arc<str>>,
    /// Shared with the tasks that wait for a flush.
    pub(crate) put_times: Arc<PutTimes>,
    /// What was waited for.
    pub(crate) waits: Waits,
    /// Requests and how long they took.
    pub(crate) rpcs: Rpcs,
    /// Written by the sampling task, read by operators.
    history: Mutex<History>,
    started_at: TimeMs,
    clock: Clock,
}

impl Stats {
    /// `sums_light`: light queues are counted together, since there may be very many (`enableLmqStats` is false).
    pub(crate) fn new(clock: Clock, sums_light: bool) -> Stats {
        let started_at = clock.now();
        Stats {
            topics: papaya::HashMap::with_hasher(foldhash::fast::RandomState::default()),
            groups: papaya::HashMap::with_hasher(foldhash::fast::RandomState::default()),
            put_messages: Total::default(),
            put_bytes: Total::default(),
            put_user_messages: Total::default(),
            got_messages: Total::default(),
            got_bytes: Total::default(),
            got_user_messages: Total::default(),
            acked_messages: Total::default(),
            leases: Total::default(),
            pulls_found: Total::default(),
            pulls_missed: Total::default(),
            timers_taken_in: Total::default(),
            timers_dealt_with: Total::default(),
            light: sums_light.then(|| names::LMQ_PREFIX.into()),
            put_times: Arc::new(PutTimes::new()),
            waits: Waits::default(),
            rpcs: Rpcs::default(),
            history: Mutex::new(History {
                samples: VecDeque::from([(started_at, Totals::default())]),
                mornings: Mornings::default(),
                day: None,
            }),
            started_at,
            clock,
        }
    }

    /// Messages were stored.
    pub fn sent(&self, topic: &Topic, queue_id: i32, message_type: MessageType, messages: usize, bytes: usize) {
        let (messages, bytes) = (messages as u64, bytes as u64);
        self.with_topic(topic, |meters| {
            meters.put_nums.add(messages);
            meters.put_size.add(bytes);
            meters.queues.add(queue_id, messages, bytes, || self.clock.now());
            meters.sorts.add(message_type, messages, bytes);
            if !meters.is_system {
                self.put_user_messages.add(messages);
            }
        });
        self.put_messages.add(messages);
        self.put_bytes.add(bytes);
    }

    /// A transaction of a topic was committed, so long after its half message was sent.
    pub(crate) fn committed(&self, topic: &Topic, age_ms: i64) {
        self.with_topic(topic, |meters| meters.ends.committed(age_ms));
    }

    /// A transaction of a topic was rolled back.
    pub(crate) fn rolled_back(&self, topic: &Topic) {
        self.with_topic(topic, |meters| meters.ends.rolled_back());
    }

    #[inline]
    fn with_topic(&self, topic: &Topic, count: impl FnOnce(&TopicMeters)) {
        // Not by name each time: with ten thousand topics that look-up alone is several waits for memory.
        let kept = topic.meters.load();
        let found;
        let meters = match &*kept {
            Some(meters) if !meters.is_dropped.load(Ordering::Relaxed) => meters,
            Some(_) | None => {
                found = self.topic(topic.shared_name());
                topic.meters.store(Some(Arc::clone(&found)));
                &found
            }
        };
        count(meters);
    }

    /// Timer messages were taken in from their queue.
    pub(crate) fn timers_taken_in(&self, messages: usize) {
        self.timers_taken_in.add(messages as u64);
    }

    /// Timer messages were delivered, or taken back, or stored once more.
    pub(crate) fn timers_dealt_with(&self, messages: usize) {
        self.timers_dealt_with.add(messages as u64);
    }

    /// A group got messages.
    pub fn got(&self, group: &Arc<str>, topic: &Topic, queue_id: i32, messages: usize, bytes: usize) {
        let (messages, bytes) = (messages as u64, bytes as u64);
        let meters = self.group(group, topic.shared_name());
        meters.get_nums.add(messages);
        meters.get_size.add(bytes);
        meters.queues.add(queue_id, messages, bytes, || self.clock.now());
        self.got_messages.add(messages);
        self.got_bytes.add(bytes);
        self.pulls_found.add(1);
        if !meters.is_system {
            self.got_user_messages.add(messages);
        }
    }

    /// A pull found nothing.
    pub fn missed(&self) {
        self.pulls_missed.add(1);
    }

    /// A group got messages on lease.
    pub fn leased(&self, group: &Arc<str>, topic: &Arc<str>) {
        self.group(group, topic).leased.add(1);
        self.leases.add(1);
    }

    /// A group acknowledged messages that it had popped.
    pub fn acked(&self, group: &str, topic: &str, messages: u64) {
        let known = self.groups.pin().get(&GroupTopicRef { group, topic }).cloned();
        known.unwrap_or_else(|| self.group(&group.into(), &topic.into())).acked.add(messages);
        self.acked_messages.add(messages);
    }

    /// A group sent a message back, to be retried.
    pub fn sent_back(&self, group: &str, topic: &str) {
        self.group(&group.into(), &topic.into()).sent_back.add(1);
    }

    /// A group gave a message up: it went to the dead-letter queue.
    pub fn sent_dead(&self, group: &str, topic: &str) {
        self.group(&group.into(), &topic.into()).dead.add(1);
    }

    /// A figure by RocketMQ's key: a topic, `topic@group`, `topic@queueId`, or `topic@queueId@group`. Totals take any key.
    pub fn window(&self, stat: Stat, key: &str) -> Option<BrokerStatsData> {
        let now = self.clock.now();
        let topic = |key: &str| self.topics.pin().get(key).cloned();
        let group = |group: &str, topic: &str| self.groups.pin().get(&GroupTopicRef { group, topic }).cloned();
        let by_group = || key.split_once('@').and_then(|(topic, name)| group(name, topic));
        let put_queue = || {
            let (name, queue) = key.split_once('@')?;
            topic(name)?.queues.get(queue.parse().ok()?)
        };
        let get_queue = || {
            let (name, rest) = key.split_once('@')?;
            let (queue, of) = rest.split_once('@')?;
            group(of, name)?.queues.get(queue.parse().ok()?)
        };
        Some(match stat {
            Stat::TopicPutNums => topic(key)?.put_nums.read(now),
            Stat::TopicPutSize => topic(key)?.put_size.read(now),
            Stat::QueuePutNums => put_queue()?.nums.read(now),
            Stat::QueuePutSize => put_queue()?.size.read(now),
            Stat::GroupGetNums => by_group()?.get_nums.read(now),
            Stat::GroupGetSize => by_group()?.get_size.read(now),
            Stat::QueueGetNums => get_queue()?.nums.read(now),
            Stat::QueueGetSize => get_queue()?.size.read(now),
            Stat::SndbckPutNums => by_group()?.sent_back.read(now),
            Stat::DlqPutNums => by_group()?.dead.read(now),
            Stat::GroupAckNums => by_group()?.acked.read(now),
            Stat::GroupCkNums => by_group()?.leased.read(now),
            Stat::BrokerAckNums => self.total(now, |totals| totals.acked_messages),
            Stat::BrokerCkNums => self.total(now, |totals| totals.leases),
            Stat::BrokerPutNums => self.total(now, |totals| totals.put_messages),
            Stat::BrokerGetNums => self.total(now, |totals| totals.got_messages),
            Stat::BrokerPutNumsWithoutSystemTopic => self.total(now, |totals| totals.put_user_messages),
            Stat::BrokerGetNumsWithoutSystemTopic => self.total(now, |totals| totals.got_user_messages),
        })
    }

    /// Messages a second that a group gets from a topic.
    pub(crate) fn consume_tps(&self, group: &str, topic: &str) -> f64 {
        let meters = self.groups.pin().get(&GroupTopicRef { group, topic }).cloned();
        meters.map_or(0.0, |meters| meters.get_nums.read(self.clock.now()).stats_minute.tps)
    }

    /// The totals now.
    pub(crate) fn totals(&self) -> Totals {
        Totals {
            put_messages: self.put_messages.get(),
            put_bytes: self.put_bytes.get(),
            put_user_messages: self.put_user_messages.get(),
            got_messages: self.got_messages.get(),
            got_bytes: self.got_bytes.get(),
            got_user_messages: self.got_user_messages.get(),
            acked_messages: self.acked_messages.get(),
            leases: self.leases.get(),
            pulls_found: self.pulls_found.get(),
            pulls_missed: self.pulls_missed.get(),
            timers_taken_in: self.timers_taken_in.get(),
            timers_dealt_with: self.timers_dealt_with.get(),
        }
    }

    /// The totals at midnight.
    pub(crate) fn mornings(&self) -> Mornings {
        self.history.lock().mornings
    }

    /// When counting began.
    pub(crate) fn started_at(&self) -> TimeMs {
        self.started_at
    }

    /// How fast a total grows: over the last ten seconds, minute, and ten minutes.
    pub(crate) fn rates(&self, pick: impl Fn(&Totals) -> u64) -> [f64; 3] {
        let now = self.clock.now();
        let present = pick(&self.totals());
        let history = self.history.lock();
        [10_000, MINUTE_MS, 600_000].map(|span| {
            let Some((at, totals)) = history.before(now, span) else { return 0.0 };
            let ms = now.since(*at);
            if ms > 0 { present.saturating_sub(pick(totals)) as f64 * 1000.0 / ms as f64 } else { 0.0 }
        })
    }

    /// Messages that consumers got in the last minute for each that was stored in it, without those of system topics. Nothing if none
    /// was stored. Two groups that keep up make 2.
    pub(crate) fn consumed_per_produced(&self) -> Option<f64> {
        let (now, present) = (self.clock.now(), self.totals());
        let history = self.history.lock();
        let (_, past) = history.before(now, MINUTE_MS)?;
        let stored = present.put_user_messages.saturating_sub(past.put_user_messages);
        let got = present.got_user_messages.saturating_sub(past.got_user_messages);
        (stored > 0).then(|| got as f64 / stored as f64)
    }

    /// Takes the samples that are due; called every [`SAMPLE_MS`].
    pub(crate) fn sample(&self) {
        let now = self.clock.now();
        let topics = self.topics.pin();
        for meters in topics.values() {
            meters.put_nums.sample(now);
            meters.put_size.sample(now);
            meters.queues.sample(now);
        }
        let groups = self.groups.pin();
        for meters in groups.values() {
            meters.get_nums.sample(now);
            meters.get_size.sample(now);
            meters.sent_back.sample(now);
            meters.dead.sample(now);
            meters.acked.sample(now);
            meters.leased.sample(now);
            meters.queues.sample(now);
        }
        topics.retain(|_, meters| {
            let is_idle = meters.put_nums.is_idle();
            if is_idle {
                meters.drop_out();
            }
            !is_idle
        });
        groups.retain(|_, meters| !meters.is_idle());
        self.put_times.sample();
        self.sample_totals(now, local_date(now));
    }

    fn sample_totals(&self, now: TimeMs, today: Date) {
        let totals = self.totals();
        let mut history = self.history.lock();
        if history.samples.len() >= TOTAL_SAMPLES {
            history.samples.pop_front();
        }
        history.samples.push_back((now, totals));
        if history.day.replace(today).is_some_and(|day| day != today) {
            history.mornings = Mornings {
                put_yesterday: history.mornings.put_today,
                put_today: totals.put_messages,
                got_yesterday: history.mornings.got_today,
                got_today: totals.got_messages,
            };
        }
    }

    /// Forgets what was counted of a topic.
    pub(crate) fn forget_topic(&self, name: &str) {
        if let Some(meters) = self.topics.pin().remove(name) {
            meters.drop_out();
        }
        self.groups.pin().retain(|key, _| *key.topic != *name);
    }

    /// Forgets what was counted of a group.
    pub(crate) fn forget_group(&self, name: &str) {
        self.groups.pin().retain(|key, _| *key.group != *name);
    }

    /// The totals have one history for all spans, since nobody but 315 asks for theirs.
    fn total(&self, now: TimeMs, pick: impl Fn(&Totals) -> u64) -> BrokerStatsData {
        let [_, minute, ten_minutes] = self.rates(&pick);
        let item = |tps: f64, ms: i64| {
            let ms = ms.min(now.since(self.started_at));
            BrokerStatsItem { avgpt: 0.0, sum: (tps * ms as f64 / 1000.0).round() as i64, tps }
        };
        let all = pick(&self.totals()) as f64 * 1000.0 / now.since(self.started_at).max(1) as f64;
        BrokerStatsData {
            stats_day: item(all, i64::MAX),
            stats_hour: item(ten_minutes, HOUR_EVERY_MS),
            stats_minute: item(minute, 60_000),
        }
    }

    /// Under which name it is counted.
    fn counted<'a>(&'a self, name: &'a Arc<str>) -> &'a Arc<str> {
        self.light.as_ref().filter(|_| names::is_lmq(name)).unwrap_or(name)
    }

    fn topic(&self, name: &Arc<str>) -> Arc<TopicMeters> {
        let name = self.counted(name);
        let topics = self.topics.pin();
        if let Some(meters) = topics.get(&**name) {
            return Arc::clone(meters);
        }
        let now = self.clock.now();
        Arc::clone(topics.get_or_insert_with(Arc::clone(name), || {
            Arc::new(TopicMeters {
                put_nums: Meter::new(now),
                put_size: Meter::new(now),
                queues: Queues::default(),
                sorts: Sorts::default(),
                ends: Ends::default(),
                is_system: names::is_system_topic(name),
                is_dropped: AtomicBool::new(false),
            })
        }))
    }

    fn group(&self, group: &Arc<str>, topic: &Arc<str>) -> Arc<GroupMeters> {
        let (group, topic) = (self.counted(group), self.counted(topic));
        let groups = self.groups.pin();
        if let Some(meters) = groups.get(&GroupTopicRef { group, topic }) {
            return Arc::clone(meters);
        }
        let now = self.clock.now();
        let key = GroupTopic { group: Arc::clone(group), topic: Arc::clone(topic) };
        Arc::clone(groups.get_or_insert_with(key, || {
            Arc::new(GroupMeters {
                get_nums: Meter::new(now),
                get_size: Meter::new(now),
                sent_back: Meter::new(now),
                dead: Meter::new(now),
                acked: Meter::new(now),
                leased: Meter::new(now),
                queues: Queues::default(),
                is_system: names::is_system_topic(topic),
            })
        }))
    }
}

fn local_date(now: TimeMs) -> Date {
    let timestamp = jiff::Timestamp::from_millisecond(now.0).unwrap_or_default();
    timestamp.to_zoned(jiff::tz::TimeZone::system()).date()
}

#[cfg(test)]
mod tests;
