//! What producers send to the master.

use std::net::SocketAddr;
use std::sync::Arc;

use protocol::record::RecordDraft;
use store::{AppendError, ConsumeQueue, RecordBatch, TagsCode};

use super::{Message, Run, TOPICS};
use crate::log_run::body;
use crate::verdict::Verdict;

const QUEUES: u32 = 2;
const HOST: ([u8; 4], u16) = ([127, 0, 0, 1], 10911);
/// Turns after which there should be room.
const TURNS_MAX: u32 = 20_000;

fn push(batch: &mut RecordBatch, queue: &Arc<ConsumeQueue>, draft: &RecordDraft<'_>) -> anyhow::Result<()> {
    let mut encoded = Ok(());
    batch.push(queue, TagsCode::Code(0), |out| encoded = draft.encode(out).map(drop));
    Ok(encoded?)
}

impl Run<'_> {
    /// Appends a message, or some of one queue, at the master if that is up.
    pub(super) fn send(&mut self) -> anyhow::Result<()> {
        let master = &self.nodes[self.master].side;
        let Some(store) = &master.store else { return Ok(()) };
        if master.has_crashed() {
            return Ok(());
        }
        let _in_charge = master.world.turns.enter();
        let (topic, queue) = (self.dice.below(TOPICS.len() as u32) as usize, self.dice.below(QUEUES));
        let count = if self.one_in(3) { 1 + self.dice.below(8) } else { 1 };
        let target = store.queue(TOPICS[topic], queue)?;
        let mut batch = RecordBatch::new();
        let mut sent = Vec::new();
        for _ in 0..count {
            let id = self.next_id;
            self.next_id += 1;
            let bytes = 8 + self.pick(&[0, 50, 400, 1_500, 5_000]) as usize + self.dice.below(100) as usize;
            let keys = format!("KEYS\u{1}key-{id}\u{2}");
            let draft = RecordDraft {
                queue_id: queue as i32,
                born_timestamp: master.world.clock.now().0,
                body: &body(id, bytes),
                properties: keys.as_bytes(),
                ..RecordDraft::plain(TOPICS[topic], SocketAddr::from(HOST))
            };
            push(&mut batch, &target, &draft)?;
            sent.push((id, bytes));
        }
        self.report.messages += u64::from(count);
        self.report.tell(|| format!("send {count} to {}/{queue}, up to {}", TOPICS[topic], self.next_id - 1));
        for turn in 1..TURNS_MAX {
            match store.append(&mut batch, master.world.clock.now()) {
                Ok(()) => break,
                Err(AppendError::NoRoomYet { .. } | AppendError::PoolFull { .. }) if !master.has_crashed() => {
                    master.world.give(1);
                    if turn % 100 == 0 {
                        master.world.pass(100);
                    }
                }
                Err(_) if master.has_crashed() => break,
                Err(error) => {
                    self.report.find(Verdict::Refused, format!("a message is not taken: {error}"));
                    return Ok(());
                }
            }
        }
        if !batch.is_appended() && !master.has_crashed() {
            self.report.find(Verdict::Late, "there is no room for a message");
        }
        for ((id, bytes), landed) in sent.into_iter().zip(batch.landed()) {
            let (at, end, offset) = (landed.at.0, landed.end.0, landed.queue_offset);
            let message = Message { topic, queue, offset, at, end, bytes, holds: 0, reported: 0 };
            self.messages.insert(id, message);
            self.truth.push(id);
            self.records.push((at, end));
        }
        Ok(())
    }

    /// The lie: what has come of a record stays, and zeros stand for the rest.
    pub(super) fn keep_incomplete(&mut self, at: u64, to: u64) -> anyhow::Result<()> {
        let begun = self.messages.iter().find(|(_, message)| message.at == at && message.end > to);
        let Some((id, message)) = begun else { return Ok(()) };
        let mut kept = body(*id, message.bytes);
        let share = kept.len() * (to - at) as usize / (message.end - at) as usize;
        kept[share.max(8)..].fill(0);
        let side = &self.nodes[self.master].side;
        let _in_charge = side.world.turns.enter();
        let queue = side.store()?.queue(TOPICS[message.topic], message.queue)?;
        let mut batch = RecordBatch::new();
        let draft = RecordDraft {
            queue_id: message.queue as i32,
            body: &kept,
            ..RecordDraft::plain(TOPICS[message.topic], SocketAddr::from(HOST))
        };
        push(&mut batch, &queue, &draft)?;
        // If there is no room, the lie is told another time.
        drop(side.store()?.append(&mut batch, side.world.clock.now()));
        Ok(())
    }
}
