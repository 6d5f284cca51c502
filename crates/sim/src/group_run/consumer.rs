//! A consumer of a group, as the stock client behaves: it lives by heartbeats, shares queues with the others by the sorted list of their names,
//! pulls what is its, consumes, commits, and gives back what it cannot do. In order, it locks its queues.
//!
//! Times are a tenth of the stock client's.

mod pulling;
mod sharing;
mod working;

use std::collections::BTreeMap;

use protocol::body::{ConsumeFromWhere, ConsumerData, ConsumerIdList, Heartbeat, LockBatchReply, SubscriptionData};
use protocol::code::{ResponseCode, request};
use protocol::fastjson::{Dialect, from_slice, to_vec};
use protocol::names;
use protocol::request::{GetConsumerList, UnregisterClient};

use self::sharing::queue_name;
use self::working::finish;
use super::history::{Queue, Topic};
use super::line::{Event, Line};
use super::register::{NONE, Written};
use super::{Around, GROUPS, HEARTBEAT_MS, Order, TOPIC};
use crate::network::Link;
use crate::served::Answer;

const REBALANCE_MS: i64 = 2_000;
const LOCK_EVERY_MS: i64 = 2_000;
/// After which it takes a lock that was not renewed for lost.
const LOCK_HELD_MS: i64 = 3_000;
const COMMIT_EVERY_MS: i64 = 700;
/// A pull that failed.
const PULL_LATER_MS: i64 = 300;
/// How long a request that was lost may still be carried out by the broker that got it.
const LATE_MS: i64 = 3_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Lives,
    /// Says good-bye; until then it waits for answers.
    Leaves(i64),
    Gone,
}

enum Asked {
    Heartbeat,
    Members,
    Offset { queue: Queue, term: u64, at: i64 },
    Pull { queue: Queue, term: u64, from: i64, life: u32, commit: Option<Written> },
    Commit { queue: Queue, written: Written },
    Lock { queues: Vec<Queue> },
    Unlock,
    Back { queue: Queue, term: u64, offset: i64, id: u64 },
    Leave,
}

/// A message that is not done with.
struct Undone {
    id: u64,
    log_offset: i64,
    /// In which life of the broker it came.
    life: u32,
    /// When it will be; none: it waits for its turn, or for an answer.
    done_at: Option<i64>,
}

/// A queue that it has.
struct Held {
    /// Different each time that it takes one.
    term: u64,
    /// Where it reads on; none: it does not know yet.
    next: Option<i64>,
    is_asking: bool,
    is_pulling: bool,
    pull_at: i64,
    undone: BTreeMap<i64, Undone>,
    /// Behind the last one that is done with.
    done: i64,
    committed: i64,
    /// Since when it is locked, and in which life of the broker.
    locked: Option<(i64, u32)>,
    is_dropped: bool,
}

impl Held {
    /// What may be committed.
    fn progress(&self) -> i64 {
        self.undone.keys().next().copied().unwrap_or(self.done)
    }

    fn is_locked(&self, now: i64) -> Option<u32> {
        self.locked.filter(|(at, _)| now - at <= LOCK_HELD_MS).map(|(_, life)| life)
    }
}

/// See the module.
pub struct Consumer {
    pub name: String,
    pub group: usize,
    line: Line<Asked>,
    state: State,
    held: BTreeMap<Queue, Held>,
    last_term: u64,
    heartbeat_at: i64,
    rebalance_at: i64,
    lock_at: i64,
    commit_at: i64,
    /// What it is at, in order.
    at_work: Option<Queue>,
}

impl Consumer {
    pub fn new(number: u16, group: usize) -> Consumer {
        Consumer {
            name: format!("10.0.0.{number}@1"),
            group,
            line: Line::new(number),
            state: State::Lives,
            held: BTreeMap::new(),
            last_term: 0,
            heartbeat_at: 0,
            rebalance_at: 0,
            lock_at: 0,
            commit_at: 0,
            at_work: None,
        }
    }

    pub fn link(&self) -> Option<Link> {
        self.line.link()
    }

    pub fn lives(&self) -> bool {
        self.state == State::Lives
    }

    pub fn is_gone(&self) -> bool {
        self.state == State::Gone
    }

    /// The queues that it has, for the last look.
    pub fn queues(&self) -> impl Iterator<Item = Queue> + '_ {
        self.held.keys().copied()
    }

    /// Whether it reads on at the end of each of its queues.
    pub fn waits_at(&self, end: impl Fn(Queue) -> i64) -> bool {
        self.held.iter().all(|(queue, held)| held.next == Some(end(*queue)))
    }

    /// Takes a queue anew with the next share.
    fn forget(&mut self, around: &mut Around<'_>, queue: Queue) {
        if self.held.remove(&queue).is_some() {
            around.history.stops_work(self.group, queue, &self.name);
            self.at_work = self.at_work.filter(|at_work| *at_work != queue);
        }
    }

    /// In words, for whoever looks why something does not come.
    pub fn tell(&self, now: i64) -> String {
        let mut said = format!("{} in {} {:?}, {:?}:", self.name, self.group().name, self.state, self.line.link());
        for (queue, held) in &self.held {
            let (next, undone, lock) = (held.next, held.undone.len(), held.is_locked(now));
            said.push_str(&format!(
                " {queue:?} at {next:?} pulling {} undone {undone} committed {} locked {lock:?} dropped {};",
                held.is_pulling, held.committed, held.is_dropped
            ));
        }
        said
    }

    fn group(&self) -> &'static super::Group {
        &GROUPS[self.group]
    }

    fn in_order(&self) -> bool {
        self.group().order == Order::InOrder
    }

    /// The process is gone without a word.
    pub fn vanish(&mut self, around: &mut Around<'_>) {
        if let Some(link) = self.line.link() {
            around.network.silence(link);
        }
        self.state = State::Gone;
        for queue in std::mem::take(&mut self.held).into_keys() {
            around.history.stops_work(self.group, queue, &self.name);
        }
    }

    /// Says good-bye.
    pub fn leave(&mut self, around: &mut Around<'_>) {
        if self.state != State::Lives {
            return;
        }
        self.state = State::Leaves(around.now + 500);
        for queue in self.held.keys().copied().collect::<Vec<_>>() {
            self.let_go(around, queue);
        }
        let fields = UnregisterClient {
            client_id: &self.name.clone(),
            producer_group: None,
            consumer_group: Some(self.group().name),
        };
        let _ = self.line.ask_within(around, (request::UNREGISTER_CLIENT, 500), &fields, &[], Asked::Leave);
    }

    pub fn step(&mut self, around: &mut Around<'_>) {
        if self.state == State::Gone {
            return;
        }
        for event in self.line.step(around) {
            match event {
                Event::Connected => {
                    let (now, dice) = (around.now, around.dice);
                    self.heartbeat_at = now + i64::from(dice.below(around.rules.first_heartbeat_ms_max + 1));
                    self.rebalance_at = self.rebalance_at.min(self.heartbeat_at + 50);
                }
                Event::Told(told) => {
                    if told.code == request::NOTIFY_CONSUMER_IDS_CHANGED {
                        self.rebalance_at = around.now;
                    }
                }
                Event::Answered(asked, answer) => self.answered(around, asked, &answer),
                Event::Lost(asked) => self.lost(around, asked),
            }
        }
        match self.state {
            State::Lives => self.live(around),
            State::Leaves(until) if around.now >= until || !self.line.is_waiting() => {
                self.line.close(around);
                self.state = State::Gone;
            }
            State::Leaves(_) | State::Gone => {}
        }
    }

    fn live(&mut self, around: &mut Around<'_>) {
        let now = around.now;
        self.work(around);
        if self.line.link().is_none() {
            return;
        }
        if now >= self.heartbeat_at {
            self.heartbeat_at = now + HEARTBEAT_MS;
            self.heartbeat(around);
        }
        if now >= self.rebalance_at {
            self.rebalance_at = now + REBALANCE_MS;
            let fields = GetConsumerList { consumer_group: self.group().name };
            let _ = self.line.ask(around, request::GET_CONSUMER_LIST_BY_GROUP, &fields, &[], Asked::Members);
        }
        if now >= self.lock_at && self.in_order() {
            self.lock_at = now + LOCK_EVERY_MS;
            let held: Vec<Queue> =
                self.held.iter().filter(|(_, held)| !held.is_dropped).map(|(queue, _)| *queue).collect();
            self.lock(around, held);
        }
        if now >= self.commit_at {
            self.commit_at = now + COMMIT_EVERY_MS;
            for queue in self.held.keys().copied().collect::<Vec<_>>() {
                self.commit(around, queue);
            }
        }
        self.pull(around);
    }

    fn heartbeat(&mut self, around: &mut Around<'_>) {
        let group = self.group().name;
        let subscribe = |topic: &str| SubscriptionData {
            topic: topic.to_owned(),
            sub_string: "*".to_owned(),
            sub_version: 1,
            ..SubscriptionData::default()
        };
        let retry = names::retry_topic(group);
        let data = ConsumerData {
            group_name: group.to_owned(),
            consume_from_where: ConsumeFromWhere::ConsumeFromFirstOffset,
            subscription_data_set: vec![subscribe(TOPIC), subscribe(&retry)],
            ..ConsumerData::default()
        };
        let said = Heartbeat { client_id: self.name.clone(), consumer_data_set: vec![data], ..Heartbeat::default() };
        let body = to_vec(&said, Dialect::FastJson);
        let _ = self.line.ask(around, request::HEART_BEAT, &(), &body, Asked::Heartbeat);
    }

    fn answered(&mut self, around: &mut Around<'_>, asked: Asked, answer: &Answer) {
        match asked {
            Asked::Heartbeat if answer.code != 0 => {
                around.refused(format!("a heartbeat of {}: {} {}", self.name, answer.code, answer.remark));
            }
            Asked::Heartbeat | Asked::Unlock => {}
            Asked::Leave => {
                if answer.code != 0 {
                    around.refused(format!("{} leaves: {} {}", self.name, answer.code, answer.remark));
                }
            }
            Asked::Members => {
                if let Ok(list) = from_slice::<ConsumerIdList>(&answer.body)
                    && answer.code == 0
                    && self.lives()
                {
                    self.share(around, &list.consumer_id_list);
                }
            }
            Asked::Offset { queue, term, at } => {
                let told = match answer.code {
                    0 => answer.number("offset"),
                    code if code == ResponseCode::QueryNotFound as i32 => NONE,
                    code => {
                        around.report.tell(|| format!("{queue:?} has no offset: {code} {}", answer.remark));
                        if let Some(held) = self.of_term(queue, term) {
                            (held.is_asking, held.pull_at) = (false, around.now + PULL_LATER_MS);
                        }
                        return;
                    }
                };
                around.is_told(self.group, queue, told, at);
                if let Some(held) = self.of_term(queue, term) {
                    held.is_asking = false;
                    held.next = Some(told.max(0));
                    (held.done, held.committed) = (told.max(0), told.max(0));
                }
            }
            Asked::Pull { queue, term, from, life, commit } => {
                let was_reset = answer.code == ResponseCode::PullOffsetMoved as i32;
                if let Some(written) = commit {
                    let register = around.history.register(self.group, queue);
                    if was_reset || answer.code == ResponseCode::SubscriptionNotExist as i32 {
                        register.may_happen(written, around.now);
                    } else {
                        register.happened(written, around.now);
                    }
                }
                self.pulled(around, (queue, term, from, life), answer);
            }
            Asked::Commit { queue, written } => {
                let (now, register) = (around.now, around.history.register(self.group, queue));
                // Passed over: the client does not know yet where its group goes on.
                if answer.code == 0 && answer.remark.is_empty() {
                    register.happened(written, now);
                } else {
                    register.may_happen(written, now);
                }
            }
            Asked::Lock { queues } => {
                let reply = from_slice::<LockBatchReply>(&answer.body).unwrap_or_default();
                let is_ok = |queue: &Queue| reply.lock_ok_mq_set.contains(&queue_name(self.group, *queue));
                let (now, life) = (around.now, around.life);
                let group = GROUPS[self.group].name;
                around.report.tell(|| {
                    format!(
                        "at {now} {} of {group} locks {queues:?}: {:?}",
                        self.name,
                        reply
                            .lock_ok_mq_set
                            .iter()
                            .map(|queue| (&queue.topic[..2], queue.queue_id))
                            .collect::<Vec<_>>()
                    )
                });
                let locked: Vec<(Queue, bool)> = queues.iter().map(|queue| (*queue, is_ok(queue))).collect();
                for (queue, is_locked) in locked {
                    if let Some(held) = self.held.get_mut(&queue) {
                        held.locked = is_locked.then_some((now, life));
                    }
                }
            }
            Asked::Back { queue, term, offset, id } => {
                let is_kept = answer.code == 0;
                around.report.tell(|| format!("{id} is given back: {} {}", answer.code, answer.remark));
                if is_kept {
                    around.history.given_back(self.group, id, around.end);
                }
                let later = around.now + 500;
                if let Some(held) = self.of_term(queue, term) {
                    if is_kept {
                        finish(held, offset);
                    } else if let Some(undone) = held.undone.get_mut(&offset) {
                        undone.done_at = Some(later);
                    }
                }
            }
        }
    }

    fn lost(&mut self, around: &mut Around<'_>, asked: Asked) {
        let (now, later) = (around.now, around.now + PULL_LATER_MS);
        match asked {
            Asked::Heartbeat | Asked::Members | Asked::Lock { .. } | Asked::Unlock | Asked::Leave => {}
            Asked::Offset { queue, term, .. } => {
                if let Some(held) = self.of_term(queue, term) {
                    (held.is_asking, held.pull_at) = (false, later);
                }
            }
            Asked::Pull { queue, term, commit, .. } => {
                if let Some(written) = commit {
                    around.history.register(self.group, queue).may_happen(written, now + LATE_MS);
                }
                if let Some(held) = self.of_term(queue, term) {
                    (held.is_pulling, held.pull_at) = (false, later);
                }
            }
            Asked::Commit { queue, written } => {
                around.history.register(self.group, queue).may_happen(written, now + LATE_MS);
            }
            Asked::Back { queue, term, offset, .. } => {
                // It does it again itself.
                if let Some(undone) = self.of_term(queue, term).and_then(|held| held.undone.get_mut(&offset)) {
                    undone.done_at = Some(now + 500);
                }
            }
        }
    }

    fn of_term(&mut self, queue: Queue, term: u64) -> Option<&mut Held> {
        self.held.get_mut(&queue).filter(|held| held.term == term)
    }
}

/// The name of a topic of a group.
pub fn topic_name(group: usize, topic: Topic) -> String {
    match topic {
        Topic::Main => TOPIC.to_owned(),
        Topic::Retry => names::retry_topic(GROUPS[group].name),
    }
}
