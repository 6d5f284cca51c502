//! A run of a broker: messages for now, for later and under a condition, pops and their acknowledgements, offsets of a group; crashes and stops.
//!
//! One client asks; the tasks of the broker deliver, give up leases and write progress meanwhile, in an order that the seed decides. What the
//! client was answered is a promise, as far as the flush mode and the crash let it be one ([`history`]); after each start, and when all that was to
//! happen has had its time, the log is held against it ([`checks`]).

mod checks;
mod history;
mod pops;
#[cfg(test)]
mod tests;
mod words;

use protocol::code::{ResponseCode, request};
use protocol::message_id::parse_offset_message_id;
use protocol::properties::{PropertiesWriter, name};
use protocol::request::{EndTransaction, QueryConsumerOffset, SendMessage, UpdateConsumerOffset};
use store::{ConsumeQueue, FlushMode, Store, StoreOptions};

use crate::disk::Crash;
use crate::log_run::{self, End, body};
use crate::served::{self, Answer, Request, Served};
use crate::verdict::{Report, Verdict};
use crate::world::{Twist, World};
use history::{Ended, Half, History, Kind, Sent};
use words::Words;

const LEVEL_MS: [i64; 3] = [1_000, 3_000, 10_000];
const QUEUES: u32 = 2;
/// Where messages for now go; for later; under a condition; and those that are popped.
const NOW: &str = "orders";
const LATER: &str = "reminders";
const DEALS: &str = "deals";
const TASKS: &str = "tasks";
/// Who has offsets in [`NOW`].
const READERS: &str = "readers";
/// In steps of a second: longer than anything that was asked for takes.
const LAST_STEPS: u32 = 90;
const COMMIT: i32 = 8;
const ROLLBACK: i32 = 12;

struct Run<'a> {
    world: &'a mut World,
    report: &'a mut Report,
    options: StoreOptions,
    history: History,
    /// Messages and topics have a word in what an answer waits for.
    words: Option<Words>,
    /// Since the start of this life, the broker's own word was SYNC_FLUSH.
    is_sync_life: bool,
}

/// Runs the seed's story.
pub fn run(seed: u64, twist: Twist, report: &mut Report) -> anyhow::Result<()> {
    let mut world = World::new(seed, twist)?;
    let turns = world.turns.clone();
    let _in_charge = turns.enter();
    let options = served::options(&world, log_run::pool(seed))?;
    report.tell(|| format!("{:?}, {:?}, files of {} bytes", options.flush, options.pool, options.segment_bytes));
    let lives = 2 + world.dice.below(3);
    let words = Words::of(seed);
    if words.is_some() {
        // As in runs of groups: no earlier story of such a seed is to stay.
        world.counts_no_reading();
    }
    let mut run = Run::new(words, &mut world, report, options);
    let mut before = End::Closed;
    for life in 0..lives {
        let end = run.live(before, life + 1 == lives)?;
        let how = match end {
            End::Crashed(how) => how,
            // The machine may lose power later.
            End::Closed => run.world.crash(),
        };
        run.report.crashes += 1;
        run.world.next_life(how, run.report)?;
        run.report.tell(|| format!("life {life} ended: {end:?}"));
        if !run.report.is_well() {
            break;
        }
        run.history.end_of_life(end, run.is_sync_life);
        before = end;
    }
    Ok(())
}

impl<'a> Run<'a> {
    fn new(words: Option<Words>, world: &'a mut World, report: &'a mut Report, options: StoreOptions) -> Run<'a> {
        Run { world, report, options, history: History::default(), words, is_sync_life: false }
    }

    /// From a start to a crash or a stop.
    fn live(&mut self, before: End, is_last: bool) -> anyhow::Result<End> {
        log_run::move_to(&mut self.options, &self.world.root());
        self.is_sync_life = self.options.flush == FlushMode::Sync;
        let how = self.world.crash();
        if self.world.one_in(6) {
            // In the start, or soon after it.
            self.world.disk.crash_in(1 + u64::from(self.world.dice.below(200)), how);
        }
        let settings = self.settings_of_words();
        let Some(mut served) = Served::begin(self.world, &self.options, &settings, before, self.report) else {
            return Ok(End::Crashed(how));
        };
        let done = self.serve(&mut served, is_last, how);
        served.end(self.world, done, how, self.report)
    }

    /// What the broker is asked in one life. True: it is to be stopped in order.
    fn serve(&mut self, served: &mut Served, is_last: bool, how: Crash) -> anyhow::Result<bool> {
        self.see(&served.store);
        self.check_log(&served.store);
        self.check_offsets(served)?;
        if self.goes_on() {
            self.begin_words(served)?;
        }
        if !self.goes_on() {
            return Ok(false);
        }
        if !is_last && self.world.one_in(2) {
            self.world.disk.crash_in(1 + u64::from(self.world.dice.below(800)), how);
        }
        let steps = 10 + self.world.dice.below(50);
        for _ in 0..steps {
            self.step(served)?;
            if self.goes_on() {
                self.step_of_words(served)?;
            }
            if !self.goes_on() {
                return Ok(false);
            }
        }
        if !is_last {
            return Ok(self.world.one_in(3));
        }
        self.finish(served)?;
        Ok(true)
    }

    fn goes_on(&self) -> bool {
        !self.world.disk.has_crashed() && self.report.is_well()
    }

    fn step(&mut self, served: &mut Served) -> anyhow::Result<()> {
        match self.world.dice.below(100) {
            0..18 => self.send(served, NOW)?,
            18..28 => self.send(served, LATER)?,
            28..38 => self.send(served, DEALS)?,
            38..48 => self.end_one(served)?,
            48..58 => self.send(served, TASKS)?,
            58..68 => drop(self.pop(served, self.world.pick(&[2_000, 5_000, 11_000]))?),
            68..78 => self.acknowledge(served)?,
            78..82 => self.commit(served)?,
            82..84 => self.check_offsets(served)?,
            84..93 => served.pass(self.world, self.world.pick(&[1, 50, 500, 2_000, 12_000])),
            93..97 => self.world.disk.write_back()?,
            97 => self.check_log(&served.store),
            _ => {
                for _ in 0..self.world.dice.below(20) {
                    served.round(self.world, self.world.dice.below(6));
                }
            }
        }
        self.see(&served.store);
        Ok(())
    }

    /// Takes note of what the store promises, unless the crash was before.
    fn see(&mut self, store: &Store) {
        let flushed = store.flushed().get();
        if !self.world.disk.has_crashed() {
            self.history.flushed_to(flushed);
        }
    }

    /// Asks one thing; none: the disk has crashed.
    fn ask(&mut self, served: &mut Served, request: Request<'_>) -> anyhow::Result<Option<Answer>> {
        Ok(served.ask(self.world, &[request])?.pop().flatten())
    }

    /// One to four messages at once.
    fn send(&mut self, served: &mut Served, topic: &'static str) -> anyhow::Result<()> {
        let now = self.world.clock.now().0;
        let mut drafts = Vec::new();
        for _ in 0..1 + self.world.dice.below(4) {
            let id = self.history.next_id();
            let mut properties = PropertiesWriter::new();
            properties.put(name::UNIQ_KEY, &format!("id-{id}")).put(name::KEYS, &format!("key-{id}"));
            let kind = match topic {
                LATER if self.world.one_in(2) => {
                    let level = self.world.dice.below(LEVEL_MS.len() as u32) as usize;
                    properties.put_i64(name::DELAY, level as i64 + 1);
                    Kind::Later { due: now + LEVEL_MS[level] }
                }
                LATER => {
                    let due = now + i64::from(self.world.pick(&[700, 2_500, 9_000, 40_000]));
                    properties.put_i64(name::TIMER_DELIVER_MS, due);
                    Kind::Later { due }
                }
                DEALS => {
                    properties.put(name::TRAN_MSG, "true").put(name::PGROUP, "dealers");
                    Kind::Half(None)
                }
                TASKS => Kind::Task,
                _ => Kind::Now,
            };
            let own = self.words.as_ref().and_then(|words| words.say(&mut properties));
            let bytes = 8 + self.world.pick(&[0, 50, 400, 1_500]) + self.world.dice.below(100) as usize;
            drafts.push((id, kind, bytes, self.world.dice.below(QUEUES) as i32, properties, own));
        }
        self.report.messages += drafts.len() as u64;
        self.report.tell(|| {
            format!(
                "at {now} send {:?} to {topic}",
                drafts.iter().map(|draft| (draft.0, &draft.1, draft.5)).collect::<Vec<_>>()
            )
        });
        let fields: Vec<_> = drafts
            .iter()
            .map(|(_, _, _, queue_id, properties, _)| SendMessage {
                producer_group: "dealers",
                topic,
                default_topic: "TBW102",
                default_topic_queue_nums: QUEUES as i32,
                queue_id: *queue_id,
                born_timestamp: now,
                properties: Some(properties.as_str()),
                ..SendMessage::default()
            })
            .collect();
        let bodies: Vec<_> = drafts.iter().map(|draft| body(draft.0, draft.2)).collect();
        let requests: Vec<_> = fields
            .iter()
            .zip(&bodies)
            .map(|(fields, body)| Request { code: request::SEND_MESSAGE_V2, fields, body })
            .collect();
        for (id, kind, bytes, queue, ..) in &drafts {
            // Before the answer: whatever comes of it may be there.
            let (offset, end, is_sure) = (None, None, false);
            let sent = Sent { topic, kind: *kind, bytes: *bytes, queue: *queue, offset, end, is_sure };
            self.history.sent.insert(*id, sent);
        }
        let answers = served.ask(self.world, &requests)?;
        let end = served.store.end().0;
        for ((id, .., own), answer) in drafts.iter().zip(answers) {
            let Some(answer) = answer else { continue };
            if answer.code != ResponseCode::Success as i32 {
                self.report.find(Verdict::Refused, format!("message {id}: {} {}", answer.code, answer.remark));
                continue;
            }
            let is_safe = self.answer_is_safe(topic, *own);
            let Some(sent) = self.history.sent.get_mut(id) else { continue };
            (sent.end, sent.is_sure) = (Some(end), true);
            if sent.kind.has_place() {
                sent.offset = Some(answer.number("queueOffset"));
                let queue = answer.number("queueId");
                if queue != i64::from(sent.queue) {
                    let what = format!("message {id} {sent:?} is stored in queue {queue}");
                    self.report.find(Verdict::Unordered, what);
                }
            }
            if let Kind::Half(half) = &mut sent.kind {
                let at = parse_offset_message_id(answer.field("msgId"))?.1;
                *half = Some(Half { at: at as i64, queue_offset: answer.number("queueOffset"), ended: Ended::Open });
            }
            if is_safe {
                self.history.is_safe(*id);
            }
        }
        Ok(())
    }

    /// Ends a half message; now and then one that was ended before.
    fn end_one(&mut self, served: &mut Served) -> anyhow::Result<()> {
        let halves: Vec<u64> = self.history.halves().collect();
        let Some(id) = (!halves.is_empty()).then(|| self.world.pick(&halves)) else { return Ok(()) };
        let Some(Sent { kind: Kind::Half(Some(half)), end: stored, is_sure, .. }) = self.history.sent.get(&id).cloned()
        else {
            return Ok(());
        };
        let how = if self.world.one_in(3) { ROLLBACK } else { COMMIT };
        self.report.tell(|| format!("end {id} by {how}"));
        let fields = EndTransaction {
            topic: None,
            producer_group: "dealers",
            tran_state_table_offset: half.queue_offset,
            commit_log_offset: half.at,
            commit_or_rollback: how,
            from_transaction_check: false,
            msg_id: "",
            transaction_id: None,
        };
        // With SYNC_FLUSH what did not wait for the device itself is not found before the device has it: the producer is asked later.
        let is_shown = stored.is_some_and(|end| end <= served.store.confirmed().get());
        if half.ended == Ended::Open {
            self.history.end_half(id, Ended::Perhaps);
        }
        let answer = self.ask(served, Request { code: request::END_TRANSACTION, fields: &fields, body: &[] })?;
        let Some(answer) = answer else { return Ok(()) };
        let end = served.store.end().0;
        let ended = match (half.ended, answer.code) {
            (Ended::Open, 0) | (Ended::Perhaps, 0) => Ended::Surely { is_commit: how == COMMIT, end },
            (before @ Ended::Surely { .. }, 0) => {
                self.report.find(Verdict::Duplicate, format!("half message {id} is ended twice, before: {before:?}"));
                before
            }
            (Ended::Open, code) => {
                if is_sure && is_shown {
                    let what = format!("half message {id} cannot be ended: {code} {}", answer.remark);
                    self.report.find(Verdict::Lost, what);
                }
                Ended::Perhaps
            }
            (before, _) => before,
        };
        self.history.end_half(id, ended);
        Ok(())
    }

    fn commit(&mut self, served: &mut Served) -> anyhow::Result<()> {
        let queue_id = self.world.dice.below(QUEUES);
        let max = served.store.queues_of(NOW).into_iter().find(|(id, _)| *id == queue_id);
        // What is not shown was not consumed.
        let shown = |queue: &ConsumeQueue| (0..queue.max_offset()).rev().find(|at| served.store.is_visible(queue, *at));
        let Some(max) = max.map(|(_, queue)| shown(&queue).map_or(0, |last| last + 1)) else { return Ok(()) };
        let least = self.history.offsets[queue_id as usize].most;
        let commit_offset = least.max(0) + i64::from(self.world.dice.below(3));
        if commit_offset > max as i64 {
            return Ok(());
        }
        self.report.tell(|| format!("commit {commit_offset} of {NOW}/{queue_id}"));
        let fields =
            UpdateConsumerOffset { consumer_group: READERS, topic: NOW, queue_id: queue_id as i32, commit_offset };
        self.history.offsets[queue_id as usize].most = commit_offset;
        let answer = self.ask(served, Request { code: request::UPDATE_CONSUMER_OFFSET, fields: &fields, body: &[] })?;
        let Some(answer) = answer else { return Ok(()) };
        if answer.code == ResponseCode::SubscriptionGroupNotExist as i32 {
            // As the heartbeat of a consumer does. A loss of power may have taken it again.
            let group = format!("{{\"groupName\":\"{READERS}\"}}");
            let code = request::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP;
            self.ask(served, Request { code, fields: &(), body: group.as_bytes() })?;
            return Ok(());
        }
        // A loss of power may have taken the topic, where nothing was promised of it.
        let may_be_gone = answer.code == ResponseCode::TopicNotExist as i32 && !self.history.has_safe_of(NOW);
        if answer.code != 0 && !may_be_gone {
            let what = format!("a commit of {commit_offset} in {NOW}/{queue_id}: {} {}", answer.code, answer.remark);
            self.report.find(Verdict::Refused, what);
        } else if answer.code == 0 && answer.remark.is_empty() {
            // Else it was passed over: after a loss of power the group does not know yet where it goes on.
            self.history.offsets[queue_id as usize].committed(commit_offset);
        }
        Ok(())
    }

    /// What the broker says of the group's offsets: told once, they do not go back.
    fn check_offsets(&mut self, served: &mut Served) -> anyhow::Result<()> {
        for queue_id in 0..QUEUES {
            let fields = QueryConsumerOffset {
                consumer_group: READERS,
                topic: NOW,
                queue_id: queue_id as i32,
                set_zero_if_not_found: Some(false),
            };
            let request = Request { code: request::QUERY_CONSUMER_OFFSET, fields: &fields, body: &[] };
            let Some(answer) = self.ask(served, request)? else { return Ok(()) };
            let told = if answer.code == 0 { answer.number("offset") } else { -1 };
            self.report.tell(|| format!("{READERS} are told {told} for {NOW}/{queue_id}"));
            if let Some((verdict, what)) = self.history.offsets[queue_id as usize].told(told) {
                self.report.find(verdict, format!("{NOW}/{queue_id}: {what}"));
            }
        }
        Ok(())
    }
}
