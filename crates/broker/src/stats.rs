//! What passes through the broker: meters by topic, queue and group, and totals.
//!
//! Counting is a relaxed addition; the totals, which every connection touches, are spread over cells by thread and added up when read.
//! One task takes samples (`upkeep.rs`): every 10 s for the last minute, every 10 minutes for the last hour, every hour for the last
//! day, as Apache does. A figure is the present count less the oldest sample's, so it is right at once and not a sample late.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use env::{Clock, TimeMs};
use jiff::civil::Date;
use parking_lot::{Mutex, RwLock};
use protocol::body::{BrokerStatsData, BrokerStatsItem};
use protocol::names;

use crate::offsets::{Key, KeyRef};
use crate::put_times::PutTimes;
use crate::topics::Topic;

/// How often the shortest span is sampled.
pub(crate) const SAMPLE_MS: i64 = 10_000;
const MINUTE_SAMPLES: usize = 7;
const HOUR_EVERY_MS: i64 = 600_000;
const HOUR_SAMPLES: usize = 7;
const DAY_EVERY_MS: i64 = 3_600_000;
const DAY_SAMPLES: usize = 25;
/// Samples of the totals: ten minutes.
const TOTAL_SAMPLES: usize = 61;
/// Cells of a total. More than cores is waste, fewer is contention.
const CELLS: usize = 16;

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sample {
    at: TimeMs,
    sum: u64,
    times: u64,
}

/// Samples of the three spans, oldest first.
#[derive(Debug, Default)]
struct Windows {
    minute: VecDeque<Sample>,
    hour: VecDeque<Sample>,
    day: VecDeque<Sample>,
}

/// One figure over time.
#[derive(Debug)]
struct Meter {
    /// Relaxed: a figure may miss what happens this moment.
    sum: AtomicU64,
    times: AtomicU64,
    made_at: TimeMs,
    /// Made when the first sample is taken: most meters of a large broker have never counted anything.
    windows: Mutex<Option<Box<Windows>>>,
}

impl Meter {
    fn new(now: TimeMs) -> Meter {
        Meter { sum: AtomicU64::new(0), times: AtomicU64::new(0), made_at: now, windows: Mutex::new(None) }
    }

    #[inline]
    fn add(&self, amount: u64) {
        self.sum.fetch_add(amount, Ordering::Relaxed);
        self.times.fetch_add(1, Ordering::Relaxed);
    }

    fn at(&self, now: TimeMs) -> Sample {
        Sample { at: now, sum: self.sum.load(Ordering::Relaxed), times: self.times.load(Ordering::Relaxed) }
    }

    fn sample(&self, now: TimeMs) {
        let sample = self.at(now);
        let mut windows = self.windows.lock();
        if windows.is_none() && sample.times == 0 {
            return;
        }
        let start = Sample { at: self.made_at, sum: 0, times: 0 };
        let windows = windows.get_or_insert_default();
        for (samples, every, most) in [
            (&mut windows.minute, SAMPLE_MS, MINUTE_SAMPLES),
            (&mut windows.hour, HOUR_EVERY_MS, HOUR_SAMPLES),
            (&mut windows.day, DAY_EVERY_MS, DAY_SAMPLES),
        ] {
            if samples.is_empty() {
                samples.push_back(start);
            }
            // The task may come a little early or late; half a step decides.
            if samples.back().is_some_and(|last| now.since(last.at) < every - SAMPLE_MS / 2) {
                continue;
            }
            if samples.len() >= most {
                samples.pop_front();
            }
            samples.push_back(sample);
        }
    }

    fn read(&self, now: TimeMs) -> BrokerStatsData {
        let present = self.at(now);
        let start = Sample { at: self.made_at, sum: 0, times: 0 };
        let windows = self.windows.lock();
        let span = |pick: fn(&Windows) -> &VecDeque<Sample>| {
            let oldest = windows.as_ref().and_then(|windows| pick(windows).front().copied());
            between(oldest.unwrap_or(start), present)
        };
        BrokerStatsData {
            stats_day: span(|windows| &windows.day),
            stats_hour: span(|windows| &windows.hour),
            stats_minute: span(|windows| &windows.minute),
        }
    }

    /// Nothing was ever counted.
    fn is_unused(&self) -> bool {
        self.times.load(Ordering::Relaxed) == 0
    }

    /// Nothing was counted in a day.
    fn is_idle(&self) -> bool {
        let windows = self.windows.lock();
        windows.as_ref().is_some_and(|windows| {
            windows.day.len() == DAY_SAMPLES
                && windows.day.front().is_some_and(|oldest| oldest.times == self.times.load(Ordering::Relaxed))
        })
    }
}

fn between(from: Sample, to: Sample) -> BrokerStatsItem {
    let sum = to.sum.saturating_sub(from.sum);
    let times = to.times.saturating_sub(from.times);
    let ms = to.at.since(from.at);
    BrokerStatsItem {
        avgpt: if times > 0 { sum as f64 / times as f64 } else { 0.0 },
        sum: i64::try_from(sum).unwrap_or(i64::MAX),
        tps: if ms > 0 { sum as f64 * 1000.0 / ms as f64 } else { 0.0 },
    }
}

#[derive(Debug)]
struct QueueMeters {
    nums: Meter,
    size: Meter,
}

/// Meters by queue id, made when a queue is first used.
#[derive(Debug, Default)]
struct Queues(RwLock<Vec<Option<Arc<QueueMeters>>>>);

impl Queues {
    fn add(&self, queue_id: i32, messages: u64, bytes: u64, now: impl Fn() -> TimeMs) {
        let Ok(at) = usize::try_from(queue_id) else { return };
        if let Some(Some(meters)) = self.0.read().get(at) {
            meters.nums.add(messages);
            meters.size.add(bytes);
            return;
        }
        let mut queues = self.0.write();
        if queues.len() <= at {
            queues.resize(at + 1, None);
        }
        let made = || Arc::new(QueueMeters { nums: Meter::new(now()), size: Meter::new(now()) });
        let meters = queues[at].get_or_insert_with(made);
        meters.nums.add(messages);
        meters.size.add(bytes);
    }

    fn get(&self, queue_id: usize) -> Option<Arc<QueueMeters>> {
        self.0.read().get(queue_id).cloned().flatten()
    }

    fn sample(&self, now: TimeMs) {
        for meters in self.0.read().iter().flatten() {
            meters.nums.sample(now);
            meters.size.sample(now);
        }
    }
}

#[derive(Debug)]
struct TopicMeters {
    put_nums: Meter,
    put_size: Meter,
    queues: Queues,
    is_system: bool,
}

#[derive(Debug)]
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

#[derive(Debug, Default)]
#[repr(align(64))]
struct CacheLine(AtomicU64);

/// A counter that every core adds to.
#[derive(Debug, Default)]
struct Total([CacheLine; CELLS]);

thread_local! {
    static CELL: Cell<usize> = const { Cell::new(usize::MAX) };
}
static NEXT_CELL: AtomicUsize = AtomicUsize::new(0);

impl Total {
    #[inline]
    fn add(&self, amount: u64) {
        let cell = CELL.get();
        let cell = if cell < CELLS {
            cell
        } else {
            let next = NEXT_CELL.fetch_add(1, Ordering::Relaxed) % CELLS;
            CELL.set(next);
            next
        };
        self.0[cell].0.fetch_add(amount, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.iter().map(|cell| cell.0.load(Ordering::Relaxed)).sum()
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

/// All figures of this broker.
pub struct Stats {
    topics: papaya::HashMap<Arc<str>, Arc<TopicMeters>, foldhash::fast::RandomState>,
    groups: papaya::HashMap<Key, Arc<GroupMeters>, foldhash::fast::RandomState>,
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
    pub fn sent(&self, topic: &Topic, queue_id: i32, messages: usize, bytes: usize) {
        let (messages, bytes) = (messages as u64, bytes as u64);
        let meters = self.topic(topic.shared_name());
        meters.put_nums.add(messages);
        meters.put_size.add(bytes);
        meters.queues.add(queue_id, messages, bytes, || self.clock.now());
        self.put_messages.add(messages);
        self.put_bytes.add(bytes);
        if !meters.is_system {
            self.put_user_messages.add(messages);
        }
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
        let known = self.groups.pin().get(&KeyRef { group, topic }).cloned();
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
        let group = |group: &str, topic: &str| self.groups.pin().get(&KeyRef { group, topic }).cloned();
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
        let meters = self.groups.pin().get(&KeyRef { group, topic }).cloned();
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
        [10_000, 60_000, 600_000].map(|span| {
            // The newest sample that is old enough, or the oldest there is.
            let old_enough = history.samples.iter().rev().find(|(at, _)| now.since(*at) >= span);
            let Some((at, totals)) = old_enough.or(history.samples.front()) else { return 0.0 };
            let ms = now.since(*at);
            if ms > 0 { present.saturating_sub(pick(totals)) as f64 * 1000.0 / ms as f64 } else { 0.0 }
        })
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
        topics.retain(|_, meters| !meters.put_nums.is_idle());
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
        self.topics.pin().remove(name);
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
                is_system: names::is_system_topic(name),
            })
        }))
    }

    fn group(&self, group: &Arc<str>, topic: &Arc<str>) -> Arc<GroupMeters> {
        let (group, topic) = (self.counted(group), self.counted(topic));
        let groups = self.groups.pin();
        if let Some(meters) = groups.get(&KeyRef { group, topic }) {
            return Arc::clone(meters);
        }
        let now = self.clock.now();
        let key = Key { group: Arc::clone(group), topic: Arc::clone(topic) };
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
mod tests {
    use super::*;
    use std::time::Duration;

    fn topic(name: &str) -> Arc<str> {
        name.into()
    }

    #[test]
    fn a_meter_shows_the_last_minute_hour_and_day() {
        let meter = Meter::new(TimeMs(0));
        let mut now = 0;
        // Ten messages of two each every ten seconds, for two hours.
        for _ in 0..720 {
            (0..10).for_each(|_| meter.add(2));
            now += SAMPLE_MS;
            meter.sample(TimeMs(now));
        }
        let read = meter.read(TimeMs(now));
        assert_eq!(read.stats_minute, BrokerStatsItem { avgpt: 2.0, sum: 120, tps: 2.0 });
        assert_eq!(read.stats_hour.sum, 7200);
        assert_eq!(read.stats_hour.tps, 2.0);
        assert_eq!(read.stats_day.sum, 14_400);
    }

    #[test]
    fn a_meter_is_right_before_its_first_sample() {
        let meter = Meter::new(TimeMs(1000));
        meter.add(5);
        let read = meter.read(TimeMs(2000));
        assert_eq!(read.stats_minute, BrokerStatsItem { avgpt: 5.0, sum: 5, tps: 5.0 });
        meter.sample(TimeMs(3000));
        assert_eq!(meter.read(TimeMs(3000)).stats_day.sum, 5);
    }

    #[test]
    fn a_meter_that_counts_nothing_holds_no_samples_and_one_that_stopped_is_idle_after_a_day() {
        let meter = Meter::new(TimeMs(0));
        meter.sample(TimeMs(SAMPLE_MS));
        assert!(meter.windows.lock().is_none());
        meter.add(1);
        for hour in 1..=25 {
            assert!(!meter.is_idle());
            meter.sample(TimeMs(hour * DAY_EVERY_MS));
        }
        assert!(meter.is_idle());
    }

    #[test]
    fn a_group_that_only_sent_back_is_forgotten_when_it_stops_and_not_before() {
        let (clock, hand) = Clock::manual(TimeMs(0));
        let stats = Stats::new(clock, false);
        stats.sent_back("Stops", "T");
        stats.sent_back("Goes on", "T");
        for _ in 0..26 {
            stats.group(&topic("Goes on"), &topic("T")).get_nums.add(1);
            hand.advance(Duration::from_millis(DAY_EVERY_MS as u64));
            stats.sample();
        }
        assert!(stats.window(Stat::SndbckPutNums, "T@Stops").is_none());
        assert!(stats.window(Stat::SndbckPutNums, "T@Goes on").is_some());
    }

    #[test]
    fn totals_of_all_threads_add_up_and_mornings_follow_the_calendar() {
        let (clock, hand) = Clock::manual(TimeMs(0));
        let stats = Stats::new(clock, false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| stats.put_messages.add(1)));
            }
        });
        assert_eq!(stats.totals().put_messages, 4000);
        hand.advance(Duration::from_secs(10));
        assert_eq!(stats.rates(|totals| totals.put_messages)[0], 400.0);
        let day = jiff::civil::date(2026, 3, 1);
        stats.sample_totals(TimeMs(10_000), day);
        assert_eq!(stats.mornings(), Mornings::default());
        stats.sample_totals(TimeMs(20_000), day.tomorrow().unwrap());
        assert_eq!(stats.mornings(), Mornings { put_today: 4000, ..Mornings::default() });
    }

    #[test]
    fn figures_are_found_by_rocketmqs_keys() {
        let (clock, hand) = Clock::manual(TimeMs(0));
        let stats = Stats::new(clock, false);
        let group = stats.group(&topic("G"), &topic("T"));
        group.get_nums.add(7);
        group.queues.add(3, 7, 70, || TimeMs(0));
        stats.topic(&topic("T")).queues.add(2, 1, 10, || TimeMs(0));
        hand.advance(Duration::from_secs(1));
        let sum = |stat, key: &str| stats.window(stat, key).map(|window| window.stats_minute.sum);
        assert_eq!(sum(Stat::GroupGetNums, "T@G"), Some(7));
        assert_eq!(sum(Stat::QueueGetSize, "T@3@G"), Some(70));
        assert_eq!(sum(Stat::QueuePutNums, "T@2"), Some(1));
        assert_eq!(sum(Stat::QueuePutNums, "T@9"), None);
        assert_eq!(sum(Stat::TopicPutNums, "U"), None);
        stats.forget_group("G");
        assert_eq!(sum(Stat::GroupGetNums, "T@G"), None);
    }
}
