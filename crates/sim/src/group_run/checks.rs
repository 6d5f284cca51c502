//! What must be so when a broker has started, and in the end, when all is quiet.

use std::collections::{BTreeMap, BTreeSet};

use protocol::body::ConsumerIdList;
use protocol::code::request;
use protocol::fastjson::from_slice;
use protocol::request::{GetConsumerList, QueryConsumerOffset};
use store::Store;

use super::consumer::topic_name;
use super::history::{Queue, Topic};
use super::register::NONE;
use super::{Around, EXPIRED_MS, GROUPS, Group, QUEUES, Run, TOPIC, around};
use crate::reading::{self, Seen};
use crate::served::{Request, Served};
use crate::verdict::Verdict;

/// How long nothing may come of what is owed to a group: until a member that is gone is taken out, which housekeeping looks for every ten seconds, its locks
/// are over, and what was given back has waited.
const IDLE_MS_MAX: i64 = EXPIRED_MS as i64 + 10_000 + 6_000 + 10_000 + 7_000;
/// Looks at an offset that is not at its end yet, a second or more apart.
const LATE_TRIES: u32 = 5;
/// How long all of it may take.
const LAST_MS_MAX: i64 = 300_000;
/// How long a group may take until everybody in it knows who is there.
const SETTLED_MS: i64 = EXPIRED_MS as i64 + 10_000 + 6_000;

impl Run<'_> {
    /// What a start has found.
    pub(super) fn look_at_start(&mut self, served: &mut Served) -> anyhow::Result<()> {
        let now = self.world.clock.now().0;
        for group in 0..GROUPS.len() {
            for (topic, queues) in [(Topic::Main, QUEUES), (Topic::Retry, 1)] {
                let ends: BTreeMap<u32, u64> = served
                    .store
                    .queues_of(&topic_name(group, topic))
                    .into_iter()
                    .map(|(id, queue)| (id, queue.max_offset()))
                    .collect();
                for id in 0..queues {
                    let end = ends.get(&id).copied().unwrap_or(0) as i64;
                    self.history.queue_ends(Queue { topic, id: id as i32 }, end, now);
                }
            }
        }
        self.check_log(&served.store);
        for group in 0..GROUPS.len() {
            for (topic, queues) in [(Topic::Main, QUEUES), (Topic::Retry, 1)] {
                for id in 0..queues as i32 {
                    if self.offset(served, group, Queue { topic, id })?.is_none() {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    /// How far the broker says that a group has come. None: the disk has crashed meanwhile.
    fn offset(&mut self, served: &mut Served, group: usize, queue: Queue) -> anyhow::Result<Option<i64>> {
        let (name, topic) = (GROUPS[group].name, topic_name(group, queue.topic));
        let fields = QueryConsumerOffset {
            consumer_group: name,
            topic: &topic,
            queue_id: queue.id,
            set_zero_if_not_found: Some(false),
        };
        let request = Request { code: request::QUERY_CONSUMER_OFFSET, fields: &fields, body: &[] };
        let from = self.world.clock.now().0;
        let Some(answer) = served.ask(self.world, &[request])?.pop().flatten() else { return Ok(None) };
        let told = if answer.code == 0 { answer.number("offset") } else { NONE };
        let now = self.world.clock.now().0;
        self.report.tell(|| format!("at {now} {name} have come to {told} in {queue:?}"));
        if !self.history.register(group, queue).told(told, from, now) {
            let what = format!("{name} are told {told} for {queue:?}, which was replaced or never committed");
            self.report.find(Verdict::WentBack, what);
        }
        Ok(Some(told))
    }

    /// Each message is in its queue, as often as its producer may have stored it, and behind those that it was sent after.
    fn check_log(&mut self, store: &Store) {
        let mut found: BTreeMap<u64, u32> = BTreeMap::new();
        let mut places: BTreeMap<i32, Vec<u64>> = BTreeMap::new();
        for (queue_id, queue) in store.queues_of(TOPIC) {
            let queue_id = queue_id as i32;
            for Seen { id, offset, body, .. } in reading::read(store, &queue, self.report) {
                let at = format!("{TOPIC}/{queue_id} at {offset}");
                if let Some(what) = self.history.is_foreign(id, &body) {
                    self.report.find(Verdict::Foreign, format!("{at}: {what}"));
                }
                if let Some(sent) = self.history.sent.get(&id).filter(|sent| sent.queue != queue_id) {
                    self.report.find(Verdict::Unordered, format!("{at}: message {id} was sent as {sent:?}"));
                }
                let count = found.entry(id).or_default();
                *count += 1;
                if *count == 1 {
                    places.entry(queue_id).or_default().push(id);
                }
            }
        }
        // Of what is above it a reader is told nothing yet.
        let confirmed = store.confirmed().get();
        for (id, sent) in &self.history.sent {
            let count = found.get(id).copied().unwrap_or(0);
            if count > 1 + sent.unanswered {
                self.report.find(Verdict::Duplicate, format!("message {id} {sent:?} is there {count} times"));
            }
            if count == 0 && sent.is_sure && sent.end.is_some_and(|end| end <= confirmed) {
                self.report.find(Verdict::Lost, format!("message {id} {sent:?} is not there"));
            }
        }
        for ((producer, queue), ids) in self.history.in_order() {
            let there = places.get(&queue).into_iter().flatten().filter(|id| ids.contains(id));
            let mut last = 0;
            for id in there {
                if *id < last {
                    let what = format!("message {id} of producer {producer} stands behind {last} in {TOPIC}/{queue}");
                    self.report.find(Verdict::Unordered, what);
                }
                last = *id;
            }
        }
    }

    fn missing(&self) -> usize {
        (0..GROUPS.len()).map(|group| self.history.missing(group).count()).sum()
    }

    /// Lets everything be done that is open, and looks whether it is.
    pub(super) fn finish(&mut self, served: &mut Served) -> anyhow::Result<()> {
        let now = self.world.clock.now().0;
        self.report.tell(|| format!("at {now} all is quiet from now on"));
        self.producers.iter_mut().for_each(|producer| producer.rests = true);
        for group in 0..GROUPS.len() {
            if self.members(group) == 0 {
                self.join(group);
            }
        }
        let begun = self.world.clock.now().0;
        let (mut left, mut since) = (usize::MAX, begun);
        // Ends when all is consumed, or nothing comes any more.
        loop {
            self.beat(served, true);
            if !self.goes_on() {
                return Ok(());
            }
            let (now, missing) = (self.world.clock.now().0, self.missing());
            let is_idle = self.producers.iter().all(|producer| producer.is_idle());
            if missing != left || !is_idle {
                (left, since) = (missing, now);
            }
            if missing == 0 && is_idle && now - begun >= SETTLED_MS {
                break;
            }
            if now - since >= IDLE_MS_MAX || now - begun >= LAST_MS_MAX {
                self.find_missing(now);
                return Ok(());
            }
        }
        self.check_log(&served.store);
        self.check_members(served)?;
        if self.goes_on() {
            self.check_wake_up(served);
        }
        if self.goes_on() {
            self.check_offsets(served)?;
        }
        Ok(())
    }

    fn find_missing(&mut self, now: i64) {
        for consumer in &self.consumers {
            self.report.tell(|| consumer.tell(now));
        }
        for (group, Group { name, .. }) in GROUPS.iter().enumerate() {
            let missing: Vec<_> = self.history.missing(group).collect();
            if let Some((id, sent)) = missing.first() {
                let what = format!("{name} do not get {} messages, the first is {id} {sent:?}", missing.len());
                self.report.find(Verdict::Lost, what);
            }
        }
        if self.producers.iter().any(|producer| !producer.is_idle()) {
            self.report.find(Verdict::Late, "a send does not come to its end");
        }
    }

    /// The broker knows the members that there are, and each queue is with one of them; where heartbeats wait behind messages in a small window, it
    /// may take longer.
    pub(super) fn check_members(&mut self, served: &mut Served) -> anyhow::Result<()> {
        let until = self.world.clock.now().0 + self.rules.settled_late_ms_max;
        loop {
            let Some(wrong) = self.wrong_shares(served)? else { return Ok(()) };
            if wrong.is_empty() {
                return Ok(());
            }
            if self.world.clock.now().0 >= until {
                wrong.into_iter().for_each(|what| self.report.find(Verdict::Late, what));
                return Ok(());
            }
            for _ in 0..100 {
                self.beat(served, true);
            }
            if !self.goes_on() {
                return Ok(());
            }
        }
    }

    /// What is wrong with who has what. None: the disk has crashed meanwhile.
    fn wrong_shares(&mut self, served: &mut Served) -> anyhow::Result<Option<Vec<String>>> {
        let mut wrong = Vec::new();
        for (group, Group { name, .. }) in GROUPS.iter().enumerate() {
            let fields = GetConsumerList { consumer_group: name };
            let request = Request { code: request::GET_CONSUMER_LIST_BY_GROUP, fields: &fields, body: &[] };
            let Some(answer) = served.ask(self.world, &[request])?.pop().flatten() else { return Ok(None) };
            let told = from_slice::<ConsumerIdList>(&answer.body).unwrap_or_default().consumer_id_list;
            let members = self.consumers.iter().filter(|consumer| consumer.group == group && consumer.lives());
            let mut there: Vec<String> = members.clone().map(|consumer| consumer.name.clone()).collect();
            there.sort();
            if told != there {
                wrong.push(format!("{name} are {there:?}, and the broker says {told:?}"));
            }
            let mut with: BTreeSet<Queue> = BTreeSet::new();
            let mut twice = false;
            members.flat_map(|consumer| consumer.queues()).for_each(|queue| twice |= !with.insert(queue));
            if twice || with.len() != QUEUES as usize + 1 {
                wrong.push(format!("{name} have {with:?}, one of them twice: {twice}"));
            }
        }
        Ok(Some(wrong))
    }

    /// Whether each member has asked from the end of each of its queues on.
    fn everybody_waits(&self, served: &Served) -> bool {
        let end = |group, Queue { topic, id }: Queue| {
            let queue = served.store.existing_queue(&topic_name(group, topic), id as u32);
            queue.map_or(0, |queue| queue.max_offset() as i64)
        };
        let mut members = self.consumers.iter().filter(|consumer| consumer.lives());
        members.all(|consumer| consumer.waits_at(|queue| end(consumer.group, queue)))
    }

    /// What is sent when everybody waits comes at once.
    pub(super) fn check_wake_up(&mut self, served: &mut Served) {
        self.history.nobody_fails = true;
        // A queue may have just changed hands, with much that was consumed before and not committed.
        let until = self.world.clock.now().0 + LAST_MS_MAX;
        while !self.everybody_waits(served) {
            self.beat(served, true);
            if !self.goes_on() {
                return;
            }
            let now = self.world.clock.now().0;
            if now >= until {
                self.report.find(Verdict::Late, "not everybody comes to the end of its queues");
                return self.find_missing(now);
            }
        }
        let end = served.store.end().0;
        let mut around = around!(self, None, end);
        around.report.tell(|| "one message more from each".to_owned());
        for (producer, queue) in self.producers.iter_mut().zip(0..) {
            producer.begin(&mut around, queue);
        }
        let (mut stored_at, begun) = (None, self.world.clock.now().0);
        // Ends when all is consumed, or it has taken too long.
        loop {
            self.beat(served, true);
            if !self.goes_on() {
                return;
            }
            let now = self.world.clock.now().0;
            if stored_at.is_none() && self.producers.iter().all(|producer| producer.is_idle()) {
                stored_at = Some(now);
            }
            if stored_at.is_some() && self.missing() == 0 {
                break;
            }
            if stored_at.is_some_and(|at| now - at > self.rules.wake_ms_max) || now - begun >= LAST_MS_MAX {
                self.report.find(Verdict::Late, "what is sent while everybody waits does not come");
                return self.find_missing(now);
            }
        }
        // Until it is committed.
        let until = self.world.clock.now().0 + 2_000;
        while self.world.clock.now().0 < until && self.goes_on() {
            self.beat(served, true);
        }
    }

    /// Groups have come to the ends of their queues.
    fn check_offsets(&mut self, served: &mut Served) -> anyhow::Result<()> {
        for (group, Group { name, .. }) in GROUPS.iter().enumerate() {
            for id in 0..QUEUES as i32 {
                let queue = Queue { topic: Topic::Main, id };
                let mut at = (0, 0);
                // A send that was lost on the way may be carried out late.
                for _ in 0..LATE_TRIES {
                    let there = served.store.queues_of(TOPIC).into_iter().find(|(queue_id, _)| *queue_id == id as u32);
                    let end = there.map_or(0, |(_, queue)| queue.max_offset() as i64);
                    let Some(told) = self.offset(served, group, queue)? else { return Ok(()) };
                    at = (told.max(0), end);
                    if at.0 == end {
                        break;
                    }
                    for _ in 0..100 {
                        self.beat(served, true);
                    }
                    if !self.goes_on() {
                        return Ok(());
                    }
                }
                if at.0 != at.1 {
                    let what = format!("{name} have consumed {queue:?} to {}, and the broker says {}", at.1, at.0);
                    self.report.find(Verdict::WentBack, what);
                }
            }
        }
        Ok(())
    }
}
