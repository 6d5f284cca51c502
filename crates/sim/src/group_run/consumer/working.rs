//! A member consumes what it has, and gives back what it cannot.

use protocol::code::request;
use protocol::request::SendBack;

use super::super::history::{Begun, Queue};
use super::super::{Around, GROUPS, TOPIC};
use super::{Asked, Consumer, Held};

impl Consumer {
    /// Consumes.
    pub(super) fn work(&mut self, around: &mut Around<'_>) {
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
                if self.line.ask(around, request::CONSUMER_SEND_MSG_BACK, &fields, &[], asked).is_err()
                    && let Some(undone) = self.of_term(queue, term).and_then(|held| held.undone.get_mut(&offset))
                {
                    undone.done_at = Some(now + 500);
                }
            }
        }
    }

    /// One message of all queues at a time, those of a queue one after the other, and only under its lock.
    pub(super) fn work_in_order(&mut self, around: &mut Around<'_>) {
        let now = around.now;
        if let Some(queue) = self.at_work {
            let first = self.held.get(&queue).and_then(|held| held.undone.first_key_value());
            if first.is_some_and(|(_, undone)| undone.done_at.is_some_and(|at| at > now)) {
                return;
            }
            if let Some((offset, id)) = first.map(|(offset, undone)| (*offset, undone.id)) {
                around.history.consumed(self.group, id);
                around.history.consumed_in_order(self.group, queue, offset);
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

/// A message is done with.
pub(super) fn finish(held: &mut Held, offset: i64) {
    held.undone.remove(&offset);
    held.done = held.done.max(offset + 1);
}
