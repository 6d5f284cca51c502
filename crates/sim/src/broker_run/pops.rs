//! Pops and acknowledgements: whose a message is, until when, and that it comes again until it is done with.

use protocol::code::{ResponseCode, request};
use protocol::properties::{self, name};
use protocol::record::{self, Scanned};
use protocol::request::{AckMessage, PopMessage};

use super::history::{Kind, Sent};
use super::words::making;
use super::{Run, TASKS};
use crate::reading::id_of;
use crate::served::{Answer, Request, Served};
use crate::verdict::Verdict;

/// Answers to a pop of which nothing is wrong.
const NOTHING_WRONG: [i32; 4] = [
    ResponseCode::Success as i32,
    ResponseCode::PullNotFound as i32,
    ResponseCode::PollingTimeout as i32,
    ResponseCode::TopicNotExist as i32,
];
const WORKERS: &str = "workers";
/// Tries of the last look for what is left, a second each: longer than any lease.
const LAST_POPS: u32 = 40;

/// Who has a task.
#[derive(Clone, Debug, Default)]
pub struct Lease {
    /// By which it is acknowledged; empty: nobody has it.
    handle: String,
    /// It is nobody else's until then. Only if no crash may have taken that back.
    until: Option<i64>,
    done: Done,
}

/// Whether a task is done with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Done {
    #[default]
    No,
    /// It was asked for, and what the broker made of it is not known.
    Perhaps,
    Surely,
}

impl Lease {
    /// A crash has taken back what was promised of it, or not.
    pub fn may_be_lost(&mut self) {
        self.until = None;
        if self.done == Done::Surely {
            self.done = Done::Perhaps;
        }
    }
}

/// The handle of a popped message, as the stock client makes it.
fn handle(answer: &Answer, queue_id: i32, queue_offset: u64, properties: &str) -> Option<String> {
    if let Some(handle) = properties::get(properties, name::POP_CK) {
        return Some(handle.to_owned());
    }
    let start = answer.field("startOffsetInfo").split(';').find_map(|part| {
        let parts: Vec<&str> = part.split(' ').collect();
        (parts.first() == Some(&"0") && parts.get(1) == Some(&queue_id.to_string().as_str()))
            .then(|| parts[2].to_owned())
    })?;
    let (popped, invisible, revive) =
        (answer.field("popTime"), answer.field("invisibleTime"), answer.field("reviveQid"));
    Some(format!("{start} {popped} {invisible} {revive} 0 broker-a {queue_id} {queue_offset}"))
}

impl Run<'_> {
    /// Pops what there is for so long. Says how many messages that were; none where the broker does not know the topic.
    pub(super) fn pop(&mut self, served: &mut Served, invisible_ms: i64) -> anyhow::Result<Option<usize>> {
        let now = self.world.clock.now().0;
        let fields = PopMessage {
            consumer_group: WORKERS,
            topic: TASKS,
            queue_id: -1,
            max_msg_nums: 1 + self.world.dice.below(8) as i32,
            invisible_time: invisible_ms,
            poll_time: 0,
            born_time: now,
            init_mode: 0,
            exp_type: None,
            exp: None,
            order: false,
            attempt_id: None,
        };
        let Some(answer) = self.ask(served, Request { code: request::POP_MESSAGE, fields: &fields, body: &[] })? else {
            return Ok(Some(0));
        };
        let mut rest = answer.body.as_slice();
        let (mut popped, mut foreign) = (Vec::new(), Vec::new());
        while !rest.is_empty() {
            let Ok(Scanned::Record(view)) = record::scan(rest, true) else {
                self.report.find(Verdict::Foreign, "a popped message is no record");
                return Ok(Some(0));
            };
            let id = id_of(view.body());
            foreign.extend(self.history.is_foreign(id, TASKS, view.body()));
            let handle = handle(&answer, view.queue_id(), view.queue_offset(), &view.properties());
            popped.push((id, handle.unwrap_or_default()));
            rest = &rest[view.total_size()..];
        }
        let code = answer.code;
        self.report.tell(|| format!("at {now} pop for {invisible_ms} ms: {code}, {popped:?}"));
        if !NOTHING_WRONG.contains(&code) {
            self.report.find(Verdict::Refused, format!("a pop: {code} {}", answer.remark));
        }
        for what in foreign {
            self.report.find(Verdict::Foreign, format!("popped as a task: {what}"));
        }
        for (id, handle) in &popped {
            let Some(Sent { kind: Kind::Task, .. }) = self.history.sent.get(id) else { continue };
            let lease = self.history.leases.entry(*id).or_default();
            if *id < self.history.once_from {
                // A lease that was over, and is known no more, may have left a copy.
                lease.done = Done::No;
            }
            if lease.done == Done::Surely {
                self.report.find(Verdict::Resurrected, format!("task {id} is given again, and was acknowledged"));
            }
            // By the clock of the answer: later than that of the pop, and earlier than its lease's end.
            if let Some(until) =
                lease.until.filter(|until| *id >= self.history.once_from && *until > self.world.clock.now().0)
            {
                let what =
                    format!("task {id} is given at {} and somebody has it until {until}", self.world.clock.now());
                self.report.find(Verdict::Duplicate, what);
            }
            lease.handle.clone_from(handle);
            lease.until = Some(answer.number("popTime") + invisible_ms);
        }
        Ok((code != ResponseCode::TopicNotExist as i32).then_some(popped.len()))
    }

    /// With ASYNC_FLUSH a loss of power may take a topic that was made a moment before and leave its first messages, of which nothing was
    /// promised. They are there again with the topic, which the next send would make.
    fn make_topic_again(&mut self, served: &mut Served) -> anyhow::Result<()> {
        if self.history.has_safe_of(TASKS) {
            self.report.find(
                Verdict::Lost,
                format!("of topic {TASKS} something was promised, and the broker does not know it"),
            );
        }
        let request = Request { code: request::UPDATE_AND_CREATE_TOPIC, fields: &making(TASKS, None), body: &[] };
        let Some(answer) = self.ask(served, request)? else { return Ok(()) };
        self.report.tell(|| format!("{TASKS} is made again: {}", answer.code));
        Ok(())
    }

    fn has_open_tasks(&self) -> bool {
        let done = |id: &u64| self.history.leases.get(id).map_or(Done::No, |lease| lease.done);
        self.history.sent.iter().any(|(id, sent)| sent.kind == Kind::Task && sent.is_sure && done(id) == Done::No)
    }

    /// Acknowledges one of those that are out.
    pub(super) fn acknowledge(&mut self, served: &mut Served) -> anyhow::Result<()> {
        let open = self.history.leases.iter().filter(|(_, lease)| !lease.handle.is_empty() && lease.done == Done::No);
        let open: Vec<u64> = open.map(|(id, _)| *id).collect();
        if open.is_empty() {
            return Ok(());
        }
        let id = self.world.pick(&open);
        self.acknowledge_one(served, id)
    }

    fn acknowledge_one(&mut self, served: &mut Served, id: u64) -> anyhow::Result<()> {
        let Some(lease) = self.history.leases.get_mut(&id) else { return Ok(()) };
        let handle = std::mem::take(&mut lease.handle);
        let until = lease.until;
        lease.done = Done::Perhaps;
        let parts: Vec<&str> = handle.split(' ').collect();
        let (Some(is_first), Some(queue_id), Some(offset)) = (parts.get(4), parts.get(6), parts.get(7)) else {
            self.report.find(Verdict::Foreign, format!("task {id} has the handle {handle:?}"));
            return Ok(());
        };
        let retry = format!("%RETRY%{WORKERS}_{TASKS}");
        let topic = if *is_first == "0" { TASKS } else { retry.as_str() };
        let fields = AckMessage {
            consumer_group: WORKERS,
            topic,
            queue_id: queue_id.parse()?,
            extra_info: &handle,
            offset: offset.parse()?,
            lite_topic: None,
        };
        let answer = self.ask(served, Request { code: request::ACK_MESSAGE, fields: &fields, body: &[] })?;
        let Some(answer) = answer else { return Ok(()) };
        let now = self.world.clock.now().0;
        self.report.tell(|| format!("at {now} acknowledge {id}: {}", answer.code));
        let Some(lease) = self.history.leases.get_mut(&id) else { return Ok(()) };
        if answer.code == ResponseCode::Success as i32 {
            // Of a lease that was lost the broker cannot tell whether it was acknowledged before.
            lease.done = if until.is_some() { Done::Surely } else { Done::Perhaps };
            lease.until = None;
            return Ok(());
        }
        lease.done = Done::No;
        if until.is_some_and(|until| until > now) {
            let what = format!("task {id}, which is ours until {until:?}, cannot be acknowledged: {}", answer.remark);
            self.report.find(Verdict::Lost, what);
        }
        Ok(())
    }

    /// Pops and acknowledges until nothing comes any more. Then each task that is there was given to somebody.
    pub(super) fn drain(&mut self, served: &mut Served) -> anyhow::Result<()> {
        let mut idle = 0;
        while idle < LAST_POPS && self.goes_on() {
            let popped = self.pop(served, 60_000)?;
            if popped.is_none() && self.has_open_tasks() {
                self.make_topic_again(served)?;
            }
            for id in self
                .history
                .leases
                .iter()
                .filter(|(_, lease)| !lease.handle.is_empty())
                .map(|(id, _)| *id)
                .collect::<Vec<_>>()
            {
                self.acknowledge_one(served, id)?;
            }
            let is_idle = popped.is_none_or(|popped| popped == 0);
            idle = if is_idle { idle + 1 } else { 0 };
            if is_idle {
                served.pass(self.world, 1_000);
            }
        }
        if !self.goes_on() {
            return Ok(());
        }
        for (id, sent) in &self.history.sent {
            let done = self.history.leases.get(id).map_or(Done::No, |lease| lease.done);
            if sent.kind == Kind::Task && sent.is_sure && done == Done::No {
                self.report.find(Verdict::Lost, format!("task {id} does not come to anybody who could do it"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::found;
    use super::*;

    #[test]
    fn a_task_that_is_given_to_two_is_a_duplicate_and_one_that_was_done_resurrected() {
        let held = Lease { handle: String::new(), until: Some(i64::MAX), done: Done::No };
        let done = Lease { done: Done::Surely, ..Lease::default() };
        for (lease, expected) in [(held, Verdict::Duplicate), (done, Verdict::Resurrected)] {
            let found = found(|run, served| {
                let tasks = run.history.sent.iter().filter(|(_, sent)| sent.kind == Kind::Task);
                run.history.leases = tasks.map(|(id, _)| (*id, lease.clone())).collect();
                assert!(run.pop(served, 60_000).unwrap() > Some(0));
            });
            assert!(!found.is_empty() && found.iter().all(|verdict| *verdict == expected), "{found:?}");
        }
    }

    #[test]
    fn a_task_with_another_body_than_was_sent_is_foreign() {
        let found = found(|run, served| {
            run.history.sent.values_mut().filter(|sent| sent.topic == TASKS).for_each(|sent| sent.bytes += 1);
            assert!(run.pop(served, 2_000).unwrap() > Some(0));
        });
        assert!(!found.is_empty() && found.iter().all(|verdict| *verdict == Verdict::Foreign), "{found:?}");
    }

    #[test]
    fn a_lease_that_is_ours_and_cannot_be_acknowledged_is_lost() {
        let found = found(|run, served| {
            assert!(run.pop(served, 2_000).unwrap() > Some(0));
            let (id, lease) = run.history.leases.first_key_value().map(|(id, lease)| (*id, lease.clone())).unwrap();
            // Of a queue that there is not.
            let handle = lease.handle.rsplitn(3, ' ').last().map(|front| format!("{front} 99 0"));
            let until = Some(i64::MAX);
            run.history.leases.insert(id, Lease { handle: handle.unwrap(), until, ..lease });
            run.acknowledge_one(served, id).unwrap();
        });
        assert_eq!(found, [Verdict::Lost]);
    }
}
