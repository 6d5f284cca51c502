//! Which queues a member has, and that nobody else has them: shares and locks.

use std::collections::BTreeMap;

use protocol::body::{LockBatch, MessageQueue};
use protocol::code::request;
use protocol::fastjson::{Dialect, to_vec};

use super::super::history::{Queue, Topic};
use super::super::{Around, GROUPS, QUEUES};
use super::{Asked, Consumer, Held, topic_name};

impl Consumer {
    /// Takes its share of the queues, and gives up what is others' now.
    pub(super) fn share(&mut self, around: &mut Around<'_>, members: &[String]) {
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
    pub(super) fn let_go(&mut self, around: &mut Around<'_>, queue: Queue) {
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
            let _ = self.line.ask(around, request::UNLOCK_BATCH_MQ, &(), &body, Asked::Unlock);
        }
    }

    pub(super) fn lock(&mut self, around: &mut Around<'_>, queues: Vec<Queue>) {
        if queues.is_empty() {
            return;
        }
        let body = lock_body(&self.name, self.group, &queues);
        let _ = self.line.ask(around, request::LOCK_BATCH_MQ, &(), &body, Asked::Lock { queues });
    }
}

pub(super) fn queue_name(group: usize, queue: Queue) -> MessageQueue {
    let topic = topic_name(group, queue.topic);
    MessageQueue { broker_name: "broker-a".to_owned(), queue_id: queue.id, topic }
}

pub(super) fn lock_body(client: &str, group: usize, queues: &[Queue]) -> Vec<u8> {
    let said = LockBatch {
        client_id: client.to_owned(),
        consumer_group: GROUPS[group].name.to_owned(),
        mq_set: queues.iter().map(|queue| queue_name(group, *queue)).collect(),
        only_this_broker: false,
    };
    to_vec(&said, Dialect::FastJson)
}

/// `AllocateMessageQueueAveragely`. Who is not in the list gets nothing.
pub(super) fn averagely(members: &[String], me: &str, queues: u32) -> std::ops::Range<u32> {
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
