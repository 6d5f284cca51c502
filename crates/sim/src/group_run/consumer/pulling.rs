//! A member asks for messages, and says how far it has come.

use protocol::code::{ResponseCode, request};
use protocol::record::{self, Scanned};
use protocol::request::{PullMessage, QueryConsumerOffset, UpdateConsumerOffset};
use protocol::sys_flag::pull;

use super::super::history::Queue;
use super::super::{Around, GROUPS};
use super::{Asked, Consumer, Held, LATE_MS, PULL_LATER_MS, Undone, topic_name};
use crate::reading::id_of;
use crate::served::Answer;
use crate::verdict::Verdict;

/// Messages of a queue that are not done with, at which nothing more is pulled.
const UNDONE_MAX: usize = 24;

impl Consumer {
    pub(super) fn commit(&mut self, around: &mut Around<'_>, queue: Queue) {
        let Some(held) = self.held.get_mut(&queue).filter(|held| held.next.is_some()) else { return };
        let offset = held.progress();
        // Also what it has said before: who had the queue before may have said less since.
        held.committed = offset;
        self.send_commit(around, queue, offset);
    }

    pub(super) fn send_commit(&mut self, around: &mut Around<'_>, queue: Queue, commit_offset: i64) {
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
            self.line.ask(around, request::UPDATE_CONSUMER_OFFSET, &fields, &[], asked).is_ok()
        };
        if !is_sent {
            around.history.register(self.group, queue).may_happen(written, now);
        }
    }

    /// Asks for more of each queue that wants it.
    pub(super) fn pull(&mut self, around: &mut Around<'_>) {
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
                let _ = self.line.ask(around, request::QUERY_CONSUMER_OFFSET, &fields, &[], asked);
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
                max_msg_nums: 1 + around.dice.below(32) as i32,
                sys_flag: pull::SUSPEND | if commits { pull::COMMIT_OFFSET } else { 0 },
                commit_offset,
                suspend_timeout_millis: around.rules.suspend_ms,
                subscription: None,
                sub_version: 1,
                expression_type: Some("TAG"),
                ..PullMessage::at(group, &topic, queue.id, from)
            };
            let asked = Asked::Pull { queue, term, from, life: around.life, commit };
            let what = (request::PULL_MESSAGE, around.rules.suspend_ms * 2);
            if let Err(Asked::Pull { .. }) = self.line.ask_within(around, what, &fields, &[], asked) {
                held_pull_later(self.held.get_mut(&queue), now);
            }
        }
    }

    pub(super) fn pulled(
        &mut self,
        around: &mut Around<'_>,
        (queue, term, from, life): (Queue, u64, i64, u32),
        answer: &Answer,
    ) {
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
            let id = id_of(view.body());
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
}

pub(super) fn held_pull_later(held: Option<&mut Held>, now: i64) {
    if let Some(held) = held {
        (held.is_pulling, held.pull_at) = (false, now + PULL_LATER_MS);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::super::history::Topic;
    use super::super::super::tests::found;
    use super::super::super::{TOPIC, around};
    use super::*;
    use crate::reading::LIMITS;

    /// Has a member told `code`, those of the first three messages of a queue that `taken` names, and that it goes on at `next`, when it asked
    /// from the first one on.
    fn pulled(code: ResponseCode, taken: &[usize], next: i64) -> Vec<Verdict> {
        found(|run, served| {
            let queues = served.store.queues_of(TOPIC);
            let (id, queue) = queues.into_iter().max_by_key(|(_, queue)| queue.max_offset()).unwrap();
            let (from, mut slices) = (queue.min_offset() as i64, Vec::new());
            served.store.read(&queue, from, &LIMITS, &mut |_| true, &mut slices);
            assert!(from == 0 && slices.len() >= 3);
            let body = taken.iter().flat_map(|at| AsRef::<[u8]>::as_ref(&slices[*at]).to_vec()).collect();
            let fields = BTreeMap::from([("nextBeginOffset".to_owned(), next.to_string())]);
            let answer = Answer { code: code as i32, fields, body, ..Answer::default() };
            let queue = Queue { topic: Topic::Main, id: id as i32 };
            let consumer = run.consumers.iter_mut().find(|consumer| consumer.held.contains_key(&queue)).unwrap();
            let (term, life) = (consumer.held[&queue].term, run.life);
            let mut around = around!(run, None, 0);
            consumer.pulled(&mut around, (queue, term, from, life), &answer);
        })
    }

    #[test]
    fn a_message_that_a_pull_passes_over_is_lost() {
        assert_eq!(pulled(ResponseCode::Success, &[0, 1, 2], 3), []);
        assert_eq!(pulled(ResponseCode::Success, &[0, 2], 3), [Verdict::Lost], "between two");
        assert_eq!(pulled(ResponseCode::Success, &[1, 2], 3), [Verdict::Lost], "in front");
        assert_eq!(pulled(ResponseCode::Success, &[0, 1], 3), [Verdict::Lost], "behind them");
        for code in [ResponseCode::PullNotFound, ResponseCode::PullRetryImmediately] {
            assert_eq!(pulled(code, &[], 0), []);
            assert_eq!(pulled(code, &[], 1), [Verdict::Lost], "where nothing is found");
        }
    }
}
