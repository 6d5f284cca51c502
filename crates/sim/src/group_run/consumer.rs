//! A consumer of a group, as the stock client behaves: it lives by heartbeats, shares queues with the others by the sorted list of their names,
//! pulls what is its, consumes, commits, and gives back what it cannot do. In order, it locks its queues.
//!
//! Times are a tenth of the stock client's.

use std::collections::BTreeMap;

use protocol::body::{
    ConsumeFromWhere, ConsumerData, ConsumerIdList, Heartbeat, LockBatch, LockBatchReply, MessageQueue,
    SubscriptionData,
};
use protocol::code::{ResponseCode, request};
use protocol::fastjson::{Dialect, from_slice, to_vec};
use protocol::names;
use protocol::record::{self, Scanned};
use protocol::request::{
    GetConsumerList, PullMessage, QueryConsumerOffset, SendBack, UnregisterClient, UpdateConsumerOffset,
};
use protocol::sys_flag::pull;

use super::history::{Begun, Queue, Topic};
use super::line::{Event, Line};
use super::register::{NONE, Written};
use super::{Around, GROUPS, HEARTBEAT_MS, Order, QUEUES, RPC_MS, TOPIC};
use crate::network::Link;
use crate::served::Answer;
use crate::verdict::Verdict;

const REBALANCE_MS: i64 = 2_000;
const LOCK_EVERY_MS: i64 = 2_000;
/// After which it takes a lock that was not renewed for lost.
const LOCK_HELD_MS: i64 = 3_000;
const COMMIT_EVERY_MS: i64 = 700;
/// A pull that failed.
const PULL_LATER_MS: i64 = 300;
/// Messages of a queue that are not done with, at which nothing more is pulled.
const UNDONE_MAX: usize = 24;
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
        let _ = self.line.ask(around, (request::UNREGISTER_CLIENT, 500), &fields, &[], Asked::Leave);
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
            let what = (request::GET_CONSUMER_LIST_BY_GROUP, RPC_MS);
            let _ = self.line.ask(around, what, &fields, &[], Asked::Members);
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
        let _ = self.line.ask(around, (request::HEART_BEAT, RPC_MS), &(), &body, Asked::Heartbeat);
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

    /// Takes its share of the queues, and gives up what is others' now.
    fn share(&mut self, around: &mut Around<'_>, members: &[String]) {
        let mut mine = Vec::new();
        for (topic, queues) in [(Topic::Main, QUEUES), (Topic::Retry, 1)] {
            mine.extend(averagely(members, &self.name, queues).map(|id| Queue { topic, id: id as i32 }));
        }
        for queue in self.held.keys().copied().collect::<Vec<_>>() {
            if !mine.contains(&queue) {
                self.let_go(around, queue);
            }
        }
        let new: Vec<Queue> = mine.into_iter().filter(|queue| !self.held.contains_key(queue)).collect();
        for queue in &new {
            self.last_term += 1;
            let held = Held {
                term: self.last_term,
                next: None,
                is_asking: false,
                is_pulling: false,
                pull_at: around.now,
                undone: BTreeMap::new(),
                done: 0,
                committed: 0,
                locked: None,
                is_dropped: false,
            };
            self.held.insert(*queue, held);
        }
        if !new.is_empty() {
            let (now, name, group) = (around.now, &self.name, self.group().name);
            around.report.tell(|| format!("at {now} {name} of {group} takes {new:?} as one of {members:?}"));
            if self.in_order() {
                self.lock(around, new);
            }
        }
    }

    /// Gives up a queue: what is not done with is the next one's. In order, what it is at is done first.
    fn let_go(&mut self, around: &mut Around<'_>, queue: Queue) {
        if self.at_work == Some(queue) && self.lives() {
            if let Some(held) = self.held.get_mut(&queue) {
                held.is_dropped = true;
            }
            return;
        }
        self.commit(around, queue);
        let Some(held) = self.held.remove(&queue) else { return };
        if self.at_work == Some(queue) {
            self.at_work = None;
        }
        around.history.stops_work(self.group, queue, &self.name);
        let (now, name, group) = (around.now, &self.name, self.group().name);
        around.report.tell(|| format!("at {now} {name} of {group} lets go of {queue:?}"));
        if held.locked.is_some() {
            let body = lock_body(&self.name, self.group, &[queue]);
            let _ = self.line.ask(around, (request::UNLOCK_BATCH_MQ, RPC_MS), &(), &body, Asked::Unlock);
        }
    }

    fn lock(&mut self, around: &mut Around<'_>, queues: Vec<Queue>) {
        if queues.is_empty() {
            return;
        }
        let body = lock_body(&self.name, self.group, &queues);
        let _ = self.line.ask(around, (request::LOCK_BATCH_MQ, RPC_MS), &(), &body, Asked::Lock { queues });
    }

    fn commit(&mut self, around: &mut Around<'_>, queue: Queue) {
        let Some(held) = self.held.get_mut(&queue).filter(|held| held.next.is_some()) else { return };
        let offset = held.progress();
        // Also what it has said before: who had the queue before may have said less since.
        held.committed = offset;
        self.send_commit(around, queue, offset);
    }

    fn send_commit(&mut self, around: &mut Around<'_>, queue: Queue, commit_offset: i64) {
        let topic = topic_name(self.group, queue.topic);
        let fields = UpdateConsumerOffset {
            consumer_group: self.group().name,
            topic: &topic,
            queue_id: queue.id,
            commit_offset,
        };
        let (now, name) = (around.now, &self.name);
        let group = self.group().name;
        around.report.tell(|| format!("at {now} {name} of {group} commits {commit_offset} in {queue:?}"));
        let written = around.history.register(self.group, queue).sent(commit_offset, now);
        let is_sent = if around.dice.below(2) == 0 {
            let is_sent = self.line.tell(around, request::UPDATE_CONSUMER_OFFSET, &fields);
            around.history.register(self.group, queue).may_happen(written, now + LATE_MS);
            is_sent
        } else {
            let asked = Asked::Commit { queue, written };
            self.line.ask(around, (request::UPDATE_CONSUMER_OFFSET, RPC_MS), &fields, &[], asked).is_ok()
        };
        if !is_sent {
            around.history.register(self.group, queue).may_happen(written, now);
        }
    }

    /// Asks for more of each queue that wants it.
    fn pull(&mut self, around: &mut Around<'_>) {
        let now = around.now;
        for queue in self.held.keys().copied().collect::<Vec<_>>() {
            let in_order = self.in_order();
            let Some(held) = self.held.get_mut(&queue) else { continue };
            if now < held.pull_at || held.is_pulling || held.is_asking || held.is_dropped {
                continue;
            }
            if in_order && held.is_locked(now).is_none() {
                continue;
            }
            let topic = topic_name(self.group, queue.topic);
            let (group, term) = (GROUPS[self.group].name, held.term);
            let Some(from) = held.next else {
                held.is_asking = true;
                let fields = QueryConsumerOffset {
                    consumer_group: group,
                    topic: &topic,
                    queue_id: queue.id,
                    set_zero_if_not_found: Some(false),
                };
                let asked = Asked::Offset { queue, term, at: now };
                let _ = self.line.ask(around, (request::QUERY_CONSUMER_OFFSET, RPC_MS), &fields, &[], asked);
                continue;
            };
            if held.undone.len() >= UNDONE_MAX {
                held.pull_at = now + 50;
                continue;
            }
            held.is_pulling = true;
            let commit_offset = held.progress();
            let commits = around.rules.pulls_commit && commit_offset > 0;
            let commit = commits.then(|| around.history.register(self.group, queue).sent(commit_offset, now));
            let fields = PullMessage {
                consumer_group: group,
                topic: &topic,
                queue_id: queue.id,
                queue_offset: from,
                max_msg_nums: 1 + around.dice.below(32) as i32,
                sys_flag: pull::SUSPEND | if commits { pull::COMMIT_OFFSET } else { 0 },
                commit_offset,
                suspend_timeout_millis: around.rules.suspend_ms,
                subscription: None,
                sub_version: 1,
                expression_type: Some("TAG"),
                max_msg_bytes: None,
                request_source: None,
                proxy_forward_client_id: None,
                lite_topic: None,
                broker_name: None,
            };
            let asked = Asked::Pull { queue, term, from, life: around.life, commit };
            let what = (request::PULL_MESSAGE, around.rules.suspend_ms * 2);
            if let Err(Asked::Pull { .. }) = self.line.ask(around, what, &fields, &[], asked) {
                held_pull_later(self.held.get_mut(&queue), now);
            }
        }
    }

    fn pulled(&mut self, around: &mut Around<'_>, (queue, term, from, life): (Queue, u64, i64, u32), answer: &Answer) {
        let (now, name, group) = (around.now, self.name.clone(), self.group);
        let at = format!("{} {queue:?} from {from}", GROUPS[group].name);
        let in_order = self.in_order();
        let Some(held) = self.of_term(queue, term) else { return };
        held.is_pulling = false;
        let next = answer.number("nextBeginOffset");
        let Some(code) = ResponseCode::from_i32(answer.code) else { return };
        #[allow(clippy::wildcard_enum_match_arm, reason = "all else is a refusal, and asked again")]
        match code {
            ResponseCode::Success => {}
            ResponseCode::PullNotFound | ResponseCode::PullRetryImmediately => {
                if next != from && life == around.life {
                    around.report.find(Verdict::Lost, format!("{at}: nothing is found, and goes on at {next}"));
                }
                return;
            }
            ResponseCode::PullOffsetMoved => {
                around.report.tell(|| format!("at {now} {name} in {at} is told to go on at {next}"));
                // After a crash, or a stop of which the device does not know, the broker believes nobody on a new connection.
                if around.life == 0 {
                    around.report.find(Verdict::WentBack, format!("{at}: told to go on at {next}: {}", answer.remark));
                }
                self.forget(around, queue);
                self.send_commit(around, queue, next);
                return;
            }
            _ => {
                around.report.tell(|| format!("at {now} {name} in {at}: {} {}", answer.code, answer.remark));
                held.pull_at = now + PULL_LATER_MS;
                return;
            }
        }
        let mut rest = answer.body.as_slice();
        let mut expected = from;
        while !rest.is_empty() {
            let Ok(Scanned::Record(view)) = record::scan(rest, true) else {
                return around.report.find(Verdict::Foreign, format!("{at}: no record"));
            };
            let offset = view.queue_offset() as i64;
            let id = view.body().first_chunk().map_or(0, |id| u64::from_be_bytes(*id));
            if offset != expected {
                around.report.find(Verdict::Lost, format!("{at}: {offset} is found, where {expected} should be"));
            }
            expected = offset + 1;
            if let Some(what) = around.history.is_foreign(id, view.body()) {
                around.report.find(Verdict::Foreign, format!("{at} at {offset}: {what}"));
            }
            let done_at = (!in_order).then(|| now + i64::from(around.dice.below(around.rules.work_ms_max + 1)));
            held.undone.insert(offset, Undone { id, log_offset: view.log_offset() as i64, life, done_at });
            rest = &rest[view.total_size()..];
        }
        if next != expected {
            around.report.find(Verdict::Lost, format!("{at}: goes on at {next}, behind {expected}"));
        }
        let ids: Vec<u64> = held.undone.range(from..).map(|(_, undone)| undone.id).collect();
        around.report.tell(|| format!("at {now} {name} gets {ids:?} of {at}"));
        held.next = Some(next);
    }

    /// Consumes.
    fn work(&mut self, around: &mut Around<'_>) {
        let now = around.now;
        if self.in_order() {
            return self.work_in_order(around);
        }
        for queue in self.held.keys().copied().collect::<Vec<_>>() {
            let Some(held) = self.held.get_mut(&queue) else { continue };
            let term = held.term;
            let due: Vec<(i64, u64, i64)> = held
                .undone
                .iter()
                .filter(|(_, undone)| undone.done_at.is_some_and(|at| at <= now))
                .map(|(offset, undone)| (*offset, undone.id, undone.log_offset))
                .collect();
            for (offset, id, log_offset) in due {
                let fails = around.dice.below(8) == 0 && around.history.may_fail(self.group, id);
                let Some(held) = self.held.get_mut(&queue) else { break };
                if !fails {
                    around.history.consumed(self.group, id);
                    finish(held, offset);
                    continue;
                }
                if let Some(undone) = held.undone.get_mut(&offset) {
                    undone.done_at = None;
                }
                let fields = SendBack {
                    offset: log_offset,
                    group: GROUPS[self.group].name,
                    delay_level: around.dice.below(3) as i32,
                    origin_msg_id: None,
                    origin_topic: Some(TOPIC),
                    unit_mode: false,
                    max_reconsume_times: Some(16),
                    broker_name: None,
                };
                let asked = Asked::Back { queue, term, offset, id };
                let what = (request::CONSUMER_SEND_MSG_BACK, RPC_MS);
                if self.line.ask(around, what, &fields, &[], asked).is_err()
                    && let Some(undone) = self.of_term(queue, term).and_then(|held| held.undone.get_mut(&offset))
                {
                    undone.done_at = Some(now + 500);
                }
            }
        }
    }

    /// One message of all queues at a time, those of a queue one after the other, and only under its lock.
    fn work_in_order(&mut self, around: &mut Around<'_>) {
        let now = around.now;
        if let Some(queue) = self.at_work {
            let first = self.held.get(&queue).and_then(|held| held.undone.first_key_value());
            if first.is_some_and(|(_, undone)| undone.done_at.is_some_and(|at| at > now)) {
                return;
            }
            if let Some((offset, id)) = first.map(|(offset, undone)| (*offset, undone.id)) {
                around.history.consumed(self.group, id);
                if let Some(held) = self.held.get_mut(&queue) {
                    finish(held, offset);
                }
            }
            self.at_work = None;
            around.history.stops_work(self.group, queue, &self.name);
            if self.held.get(&queue).is_some_and(|held| held.is_dropped) {
                self.let_go(around, queue);
            }
        }
        let ready = |held: &Held| held.is_locked(now).filter(|_| !held.is_dropped && !held.undone.is_empty());
        let may: Vec<(Queue, u32)> =
            self.held.iter().filter_map(|(queue, held)| Some((*queue, ready(held)?))).collect();
        if may.is_empty() {
            return;
        }
        let (queue, life) = may[around.dice.below(may.len() as u32) as usize];
        let done_at = now + i64::from(around.dice.below(around.rules.work_ms_max + 1));
        let Some(mut first) = self.held.get_mut(&queue).and_then(|held| held.undone.first_entry()) else { return };
        let (offset, id, came_in) = (*first.key(), first.get().id, first.get().life);
        first.get_mut().done_at = Some(done_at);
        self.at_work = Some(queue);
        let is_old = came_in < around.life;
        around.begins_work(self.group, queue, &self.name, life, &Begun { offset, id, is_old });
    }
}

fn held_pull_later(held: Option<&mut Held>, now: i64) {
    if let Some(held) = held {
        (held.is_pulling, held.pull_at) = (false, now + PULL_LATER_MS);
    }
}

/// A message is done with.
fn finish(held: &mut Held, offset: i64) {
    held.undone.remove(&offset);
    held.done = held.done.max(offset + 1);
}

/// The name of a topic of a group.
pub fn topic_name(group: usize, topic: Topic) -> String {
    match topic {
        Topic::Main => TOPIC.to_owned(),
        Topic::Retry => names::retry_topic(GROUPS[group].name),
    }
}

fn queue_name(group: usize, queue: Queue) -> MessageQueue {
    let topic = topic_name(group, queue.topic);
    MessageQueue { broker_name: "broker-a".to_owned(), queue_id: queue.id, topic }
}

fn lock_body(client: &str, group: usize, queues: &[Queue]) -> Vec<u8> {
    let said = LockBatch {
        client_id: client.to_owned(),
        consumer_group: GROUPS[group].name.to_owned(),
        mq_set: queues.iter().map(|queue| queue_name(group, *queue)).collect(),
        only_this_broker: false,
    };
    to_vec(&said, Dialect::FastJson)
}

/// `AllocateMessageQueueAveragely`. Who is not in the list gets nothing.
fn averagely(members: &[String], me: &str, queues: u32) -> std::ops::Range<u32> {
    let mut sorted: Vec<&str> = members.iter().map(String::as_str).collect();
    sorted.sort_unstable();
    let Some(place) = sorted.iter().position(|name| *name == me) else { return 0..0 };
    let (place, count) = (place as u32, sorted.len() as u32);
    let (share, more) = (queues / count, queues % count);
    let begin = place * share + place.min(more);
    begin..begin + share + u32::from(place < more)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_share_all_queues_and_none_is_shared() {
        let names: Vec<String> = (0..5).map(|number| format!("c{number}")).collect();
        for count in 1..=5 {
            let members = &names[..count];
            let shares: Vec<u32> = members.iter().flat_map(|name| averagely(members, name, 4)).collect();
            assert_eq!(shares, [0, 1, 2, 3]);
        }
        assert_eq!(averagely(&names[..3], "c0", 4), 0..2);
        assert_eq!(averagely(&names, "stranger", 4), 0..0);
    }
}
