//! A run of the store alone: messages, deleted topics, changes of the journal, crashes and stops.
//!
//! What is known of each message is where it landed and how far it was promised to be safe. After each start all queues are read and held against that;
//! what the crash was allowed to take is forgotten, and the run goes on with the rest (`checks.rs`).

mod ageing;
mod checks;
mod damage;
mod left;
#[cfg(test)]
mod tests;
mod trouble;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use env::{Random, TimeMs};
use protocol::record::RecordDraft;
use store::{
    AppendError, FlushMode, IndexOptions, PoolOptions, RecordBatch, RecoveryOptions, Retention, Store, StoreOptions,
    TagsCode,
};

use crate::disk::Crash;
use crate::tables::Tables;
use crate::verdict::{Report, Verdict};
use crate::world::{BEGIN_LONG_AGO_MS, BEGIN_MS, Twist, World};
use ageing::Ageing;
pub use left::{Left, LeftMessage};

const TOPICS: [&str; 3] = ["orders", "payments", "parcels"];
const QUEUES: u32 = 2;
/// Other dice than those of the run.
const BESIDES: u64 = 0x5EED_0F01_D1E5_0FD1;
/// Turns after which what should happen by itself has not.
const TURNS_MAX: u32 = 20_000;

/// A message that was appended.
#[derive(Clone, Debug)]
struct Message {
    topic: usize,
    queue: u32,
    offset: u64,
    /// The log offset behind it.
    end: u64,
    bytes: usize,
    /// How often its topic had been deleted before.
    generation: u32,
    /// When, by the store.
    stored_ms: i64,
}

/// How often a topic was deleted, and since when that is certain.
#[derive(Clone, Copy, Default)]
struct Deleted {
    generation: u32,
    /// The journal has the last deletion when it has come so far.
    position: u64,
    /// Generations below this are gone for good.
    certain: u32,
}

/// What a run leaves out, and what it plays besides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// What Apache RocketMQ cannot go on with. No topic is deleted: that stands in our journal. And files are not as small as
    /// elsewhere: 5.5.0 looks for the log's end in its newest ten files (`commitLogRecoverMaxNum`), and for that of a queue in its newest three.
    pub is_for_apache: bool,
    /// Old files go.
    pub ages: bool,
    /// The device refuses calls for a while.
    pub fails: bool,
    /// Consume queues are damaged while the store is closed.
    pub damages: bool,
    /// What any run may have.
    pub twist: Twist,
}

struct Run<'a> {
    plan: Plan,
    world: &'a mut World,
    report: &'a mut Report,
    options: StoreOptions,
    messages: BTreeMap<u64, Message>,
    deleted: [Deleted; TOPICS.len()],
    tables: Tables,
    next_id: u64,
    /// How far the log was seen to be on the device, and in the kernel's hands, and the journal to be written.
    flushed: u64,
    log_written: u64,
    written: u64,
    /// Decides what these runs have besides: the others keep their stories.
    dice: Random,
    ageing: Ageing,
    /// The log's end, as it was seen last.
    log_end: u64,
    /// The store of this life did not open: nothing is known of what is there but what was known before.
    is_unopened: bool,
    /// So many calls of this life failed before the device was said to work again, and the store has had its time since.
    forgiven: u64,
}

/// How a life ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Stopped.
    Closed,
    /// Not.
    Crashed(Crash),
}

impl End {
    /// Of a life, and one behind it that had nothing to say.
    fn or_worse(self, how: Crash) -> End {
        match (self, how) {
            (End::Closed, Crash::Killed) => End::Closed,
            (End::Crashed(Crash::Killed), Crash::Killed) => self,
            (End::Closed | End::Crashed(_), Crash::Power) | (End::Crashed(Crash::Power), Crash::Killed) => {
                End::Crashed(Crash::Power)
            }
        }
    }
}

/// Runs the seed's story. `keep` is shown what each crash left.
pub fn run(
    seed: u64,
    plan: Plan,
    report: &mut Report,
    keep: &mut dyn FnMut(&Left<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let begin = if plan.is_for_apache { BEGIN_LONG_AGO_MS } else { BEGIN_MS };
    let mut world = World::beginning(TimeMs(begin), seed, plan.twist)?;
    let turns = world.turns.clone();
    let _in_charge = turns.enter();
    let mut options = StoreOptions { pool: pool(seed), ..options(&world) };
    if plan.is_for_apache {
        (options.segment_bytes, options.queue_file_bytes) = (256 << 10, 20 * 1000);
    }
    report.tell(|| {
        format!(
            "{:?}, {:?}, files of {} and {} bytes, recovery by {} threads, index {}",
            options.flush,
            options.pool,
            options.segment_bytes,
            options.queue_file_bytes,
            options.recovery.threads,
            options.index.is_some()
        )
    });
    let lives = 2 + world.dice.below(4);
    let mut run = Run::new(seed, plan, &mut world, report, options);
    if plan.ages {
        run.age();
        let rules = &run.options.retention;
        run.report.tell(|| format!("{rules:?}"));
    }
    let mut before = End::Closed;
    for life in 0..lives {
        let end = run.live(before, life + 1 == lives)?;
        let how = match end {
            End::Crashed(how) => how,
            // The machine may lose power later.
            End::Closed => run.world.crash(),
        };
        run.report.crashes += 1;
        let image = run.world.next_life(how, run.report)?;
        run.report.tell(|| format!("life {life} ended: {end:?}"));
        if !run.report.is_well() {
            break;
        }
        keep(&run.left(life, end, &image))?;
        if plan.damages && matches!(end, End::Closed) {
            run.damage()?;
        }
        before = if run.is_unopened { before.or_worse(how) } else { end };
    }
    Ok(())
}

/// A write pool for one seed in five, none of which has found something without one. From dice of its own: what is sent stays the same.
pub(crate) fn pool(seed: u64) -> Option<PoolOptions> {
    let dice = Random::seeded(!seed);
    let buffers = 1 + dice.below(4) as usize;
    let buffer_bytes = [1 << 10, 8 << 10, 64 << 10][dice.below(3) as usize];
    (seed % 5 == 2).then_some(PoolOptions { buffers, buffer_bytes })
}

pub(crate) fn options(world: &World) -> StoreOptions {
    let root = world.root();
    StoreOptions {
        segment_bytes: world.pick(&[16 << 10, 64 << 10, 256 << 10]),
        queue_file_bytes: world.pick(&[20 * 4, 20 * 100]),
        flush: if world.one_in(2) { FlushMode::Sync } else { FlushMode::Async },
        flush_interval: Duration::from_millis(world.pick(&[1, 50, 500])),
        retention: Retention { delete_when: Vec::new(), ..Retention::default() },
        recovery: RecoveryOptions { threads: world.pick(&[1, 3]), block_bytes: 4 << 10, note_bytes: 20 << 10 },
        queue_descriptors_max: world.pick(&[1, 64]),
        queue_buffered_bytes: world.pick(&[200, 4 << 20]),
        cold_read_threads: 1,
        index: world.one_in(3).then(|| IndexOptions { dir: root.join("index"), slots: 100, entries: 200 }),
        ..StoreOptions::at(&root)
    }
}

/// Each life has a folder of its own.
pub(crate) fn move_to(options: &mut StoreOptions, root: &Path) {
    let moved = StoreOptions::at(root);
    options.root = moved.root;
    options.log_dirs = moved.log_dirs;
    options.queue_dir = moved.queue_dir;
    if let Some(index) = &mut options.index {
        index.dir = root.join("index");
    }
}

/// What a message says: its number, and bytes that follow from it.
pub(crate) fn body(id: u64, bytes: usize) -> Vec<u8> {
    let dice = Random::seeded(id);
    let mut body = id.to_be_bytes().to_vec();
    while body.len() < bytes {
        body.extend_from_slice(&dice.next_u64().to_be_bytes());
    }
    body.truncate(bytes.max(8));
    body
}

impl<'a> Run<'a> {
    fn new(seed: u64, plan: Plan, world: &'a mut World, report: &'a mut Report, options: StoreOptions) -> Run<'a> {
        Run {
            plan,
            world,
            report,
            options,
            messages: BTreeMap::new(),
            deleted: Default::default(),
            tables: Tables::default(),
            next_id: 1,
            flushed: 0,
            log_written: 0,
            written: 0,
            dice: Random::seeded(seed ^ BESIDES),
            ageing: Ageing::default(),
            log_end: 0,
            is_unopened: false,
            forgiven: 0,
        }
    }

    /// From a start to a crash or a stop.
    fn live(&mut self, before: End, is_last: bool) -> anyhow::Result<End> {
        move_to(&mut self.options, &self.world.root());
        let how = self.world.crash();
        if self.world.one_in(6) {
            // In the start, or soon after it.
            self.world.disk.crash_in(1 + u64::from(self.world.dice.below(60)), how);
        }
        let opened = self.open(how)?;
        self.is_unopened = opened.is_none();
        let Some((store, found)) = opened else { return Ok(End::Crashed(how)) };
        if self.plan.ages {
            self.ages_from_now(&store);
        }
        self.report
            .tell(|| format!("opened after {before:?}: the log ends at {}, {:?}", store.end().0, found.findings));
        self.check_start(&store, before);
        if self.world.disk.has_crashed() {
            // What the start found counts for the next one too: nothing was promised since.
            return Ok(End::Crashed(how));
        }
        if !self.report.is_well() {
            return Ok(End::Crashed(how));
        }
        if self.world.one_in(2) {
            self.world.disk.crash_in(1 + u64::from(self.world.dice.below(400)), how);
        }
        let mut steps = 10 + self.world.dice.below(60);
        if self.plan.ages {
            steps *= 2;
        }
        for _ in 0..steps {
            self.step(&store)?;
            if self.plan.fails && self.report.is_well() {
                self.step_of_trouble(&store);
                self.check_ended(false);
            }
            if self.plan.ages && !self.world.disk.has_crashed() && self.report.is_well() {
                self.step_of_ageing(&store);
            }
            if self.world.disk.has_crashed() || !self.report.is_well() {
                return Ok(End::Crashed(how));
            }
        }
        if is_last || self.world.one_in(3) {
            return Ok(self.close(&store, how));
        }
        // The crash comes before what follows here: ends of threads write nothing that counts.
        self.world.disk.crash_now(how)?;
        Ok(End::Crashed(how))
    }

    fn close(&mut self, store: &Arc<Store>, how: Crash) -> End {
        let closed = catch_unwind(AssertUnwindSafe(|| store.close()));
        self.see(store);
        if self.plan.fails {
            self.check_ended(true);
        }
        let closed = match closed {
            Ok(closed) => closed,
            Err(_) if self.world.turns.has_ended_process() => return End::Crashed(how),
            Err(panic) => std::panic::resume_unwind(panic),
        };
        if self.world.disk.has_crashed() {
            return End::Crashed(how);
        }
        if let Err(error) = &closed
            && self.is_troubled()
        {
            self.report.tell(|| format!("the store does not close: {error}"));
            return End::Crashed(how);
        }
        if let Err(error) = closed {
            self.report.find(Verdict::Refused, format!("the store does not close: {error}"));
        }
        self.flushed = store.end().0;
        self.written = u64::MAX;
        self.tables.see(u64::MAX);
        End::Closed
    }

    fn step(&mut self, store: &Arc<Store>) -> anyhow::Result<()> {
        let dice = self.world.dice.below(100);
        match dice {
            0..40 => self.send(store),
            40..62 => {
                let turns = self.world.dice.below(30);
                self.world.give(turns);
            }
            62..75 => {
                let ms = self.world.pick(&[1, 10, 100, 1_000, 11_000]);
                self.pass(ms);
                let turns = self.world.dice.below(40);
                self.world.give(turns);
            }
            75..83 => self.world.disk.write_back()?,
            83..91 => {
                for _ in 0..=self.world.dice.below(5) {
                    self.tables.put(store.journal(), self.world);
                }
            }
            91..93 if !self.plan.is_for_apache => self.delete(store),
            91..93 => {}
            93 => store.journal().snapshot(),
            94..97 => self.check_living(store),
            _ => self.settle(store),
        }
        self.see(store);
        Ok(())
    }

    /// Takes note of what the store promises, unless the crash was before.
    fn see(&mut self, store: &Store) {
        self.log_end = store.end().0;
        self.note_ageing(self.log_end);
        let (flushed, written) = (store.flushed().get(), store.journal().written().get());
        let log_written = store.written().get();
        if !self.world.disk.has_crashed() {
            self.ageing.gone = self.ageing.gone.max(store.min_offset().0);
            self.flushed = self.flushed.max(flushed);
            self.log_written = self.log_written.max(log_written);
            self.written = self.written.max(written);
            self.tables.see(written);
        }
    }

    fn send(&mut self, store: &Arc<Store>) {
        let (topic, queue) = (self.world.dice.below(TOPICS.len() as u32) as usize, self.world.dice.below(QUEUES));
        let count = if self.world.one_in(3) { 1 + self.world.dice.below(8) } else { 1 };
        let host = std::net::SocketAddr::from(([127, 0, 0, 1], 10911));
        let target = match store.queue(TOPICS[topic], queue) {
            Ok(target) => target,
            Err(_) if self.may_refuse() => return,
            Err(error) => return self.report.find(Verdict::Refused, format!("no queue: {error}")),
        };
        let mut batch = RecordBatch::new();
        let mut sent = Vec::new();
        for _ in 0..count {
            let id = self.next_id;
            self.next_id += 1;
            let bytes = 8 + self.world.pick(&[0, 50, 400, 1_500, 5_000]) + self.world.dice.below(100) as usize;
            let keys = format!("KEYS\u{1}key-{id}\u{2}");
            let draft = RecordDraft {
                queue_id: queue as i32,
                born_timestamp: self.world.clock.now().0,
                body: &body(id, bytes),
                properties: keys.as_bytes(),
                ..RecordDraft::plain(TOPICS[topic], host)
            };
            let mut encoded = Ok(());
            batch.push(&target, TagsCode::Code(0), |out| encoded = draft.encode(out).map(drop));
            if let Err(error) = encoded {
                return self.report.find(Verdict::Refused, format!("a record cannot be encoded: {error}"));
            }
            sent.push((id, bytes));
        }
        self.report.tell(|| format!("send {}..={} to {}/{queue}", sent[0].0, self.next_id - 1, TOPICS[topic]));
        self.report.messages += u64::from(count);
        let mut turns = 0;
        let appended = loop {
            match store.append(&mut batch, self.world.clock.now()) {
                Err(AppendError::NoRoomYet { .. } | AppendError::PoolFull { .. })
                    if turns < TURNS_MAX && !(self.plan.fails && self.world.disk.has_crashed()) =>
                {
                    self.world.give(1);
                    turns += 1;
                    if turns % 100 == 0 {
                        // A thread may rest for a while.
                        self.pass(100);
                    }
                }
                done => break done,
            }
        };
        if let Err(error) = &appended
            && self.may_refuse()
        {
            self.report.tell(|| format!("refused: {error}"));
        } else if let Err(error) = appended {
            self.report.find(Verdict::Refused, format!("a message is not taken: {error}"));
        }
        for ((id, bytes), landed) in sent.iter().zip(batch.landed()) {
            let message = Message {
                topic,
                queue,
                offset: landed.queue_offset,
                end: landed.end.0,
                bytes: *bytes,
                generation: self.deleted[topic].generation,
                stored_ms: landed.store_timestamp,
            };
            self.messages.insert(*id, message);
        }
        self.see(store);
        if store.is_sync_flush() && self.world.one_in(3) {
            self.wait_for_flush(store);
        }
    }

    /// Until all that was appended is on the device, or the crash has come.
    fn wait_for_flush(&mut self, store: &Store) {
        let end = store.end().0;
        for turn in 0..TURNS_MAX {
            if store.flushed().get() >= end || self.world.disk.has_crashed() {
                return self.see(store);
            }
            self.world.give(1);
            if turn % 50 == 49 {
                self.pass(100);
            }
        }
        self.report.find(Verdict::Late, format!("the log is flushed to {} of {end}", store.flushed().get()));
    }

    fn settle(&mut self, store: &Store) {
        self.wait_for_flush(store);
        // Queues are written, and the check-point moves.
        for _ in 0..20 {
            self.pass(700);
            self.world.give(20);
        }
        self.knows_how_full();
    }

    fn delete(&mut self, store: &Store) {
        let topic = self.world.dice.below(TOPICS.len() as u32) as usize;
        self.report.tell(|| format!("delete {}", TOPICS[topic]));
        store.delete_topic(TOPICS[topic]);
        let deleted = &mut self.deleted[topic];
        deleted.generation += 1;
        deleted.position = store.journal().position();
        if self.world.one_in(2) {
            store.remove_deleted();
        }
    }
}
