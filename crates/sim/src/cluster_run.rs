//! A run of two or three brokers: a master, and slaves that copy its log over links which delay, stop and break.
//!
//! Each broker has a disk, threads and a clock of its own, and may crash at any call. What is played are the store and both ends of a
//! stream, Apache's or that of Gantry, `replica::feed::Feed` and `replica::follow::Follow`; in place of tokio's drivers are those of [`feeding`] and [`following`].
//! [`operator`] promotes a slave when the master is dead for good, and does what a slave that refuses its master asks for.
//!
//! What has to be true (`checks.rs`): the log of a slave that follows is the beginning of its master's; no report and no count is above what
//! is there; what was reported survives; queues show what the log has; and when all faults are over, slaves come to the end of the log.

mod checks;
mod feeding;
mod following;
mod links;
mod lives;
mod node;
mod operator;
mod sending;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use env::Random;
use protocol::LogOffset;
use protocol::code::{ResponseCode, request};
use replica::asking::{AskError, Extent};
use replica::feed::{Feed, FeedOptions};
use replica::follow::FollowOptions;
use replica::wire::own::{Identity, Member};
use replica::wire::secret::{Nonce, Secret};
use store::{RecordAt, Retention, Store};

use crate::disk::Crash;
use crate::side::Side;
use crate::verdict::{Report, Verdict};
use crate::world::Twist;
use feeding::{Damage, Feeding};
use following::{Answer, Following, Question, Told};
use links::{Links, Weather};
use node::Node;

const TOPICS: [&str; 3] = ["orders", "payments", "parcels"];
const NAMES: [&str; 3] = ["first broker", "second broker", "third broker"];
/// Other dice than those of the stores.
const OTHERS: u64 = 0x0C15_7E80_5EED_0F03;
/// Others that say which stream is spoken.
const STREAMS: u64 = 0x57E4_A3D5_0F0E_1D26;
/// Turns of each broker's threads, from one moment to the next.
const TURNS: u32 = 4;
/// Moments of a time that passes.
const MOMENTS: u64 = 10;
/// When all faults are over, slaves have the log after this, in ms of simulated time.
const PATIENCE_MS: u64 = 400_000;

/// Something that is done wrong: a run that finds nothing then would find nothing ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// A slave reports what it has received, before its log has it.
    ReportsBeforeAppends,
    /// A slave with SYNC_FLUSH reports what its device does not have yet.
    ReceivedIsFlushed,
    /// Nobody holds a frame against its checksum.
    FramesAreNotChecked,
    /// The master counts two connections of one slave as two copies.
    ConnectionsAreCopies,
    /// A promoted slave keeps the record of which it has a part.
    IncompleteRecordsStay,
    /// A slave follows without asking whether the logs agree.
    NobodyAsks,
    /// A slave waits for ever for a master that says nothing.
    SilenceIsBorne,
}

/// A message that was appended.
#[derive(Clone, Debug)]
struct Message {
    topic: usize,
    queue: u32,
    offset: u64,
    /// Its log offset, and the one behind it.
    at: u64,
    end: u64,
    bytes: usize,
    /// The slaves that have reported it and have to have it; a bit each.
    holds: u32,
    /// Those that ever reported it.
    reported: u32,
}

struct Run<'a> {
    nodes: Vec<Node>,
    /// Which of them.
    master: usize,
    links: Links,
    /// The time of the links, in ms since the beginning.
    now: u64,
    dice: Random,
    lie: Option<Lie>,
    seed: u64,
    twist: Twist,
    feed: FeedOptions,
    follow: FollowOptions,
    messages: BTreeMap<u64, Message>,
    /// Those that the master's log has, in order; and where each of them begins and ends.
    truth: Vec<u64>,
    records: Vec<(u64, u64)>,
    damage: Damage,
    next_id: u64,
    /// All faults are over.
    is_calm: bool,
    report: &'a mut Report,
}

/// Another one for each connection.
fn nonce_of(link: links::Link) -> Nonce {
    let mut nonce = Nonce::default();
    nonce[..8].copy_from_slice(&link.to_be_bytes());
    nonce
}

/// Runs the seed's story.
pub fn run(seed: u64, twist: Twist, lie: Option<Lie>, report: &mut Report) -> anyhow::Result<()> {
    let mut run = Run::new(seed, twist, lie, report)?;
    for node in 0..run.nodes.len() {
        run.start(node)?;
    }
    let steps = 60 + run.dice.below(140);
    for _ in 0..steps {
        if !run.report.is_well() {
            break;
        }
        run.step()?;
    }
    run.finish()
}

impl<'a> Run<'a> {
    fn new(seed: u64, twist: Twist, lie: Option<Lie>, report: &'a mut Report) -> anyhow::Result<Run<'a>> {
        let dice = Random::seeded(seed ^ OTHERS);
        let pick = |from: &[u64]| from[dice.below(from.len() as u32) as usize];
        let count = 2 + usize::from(dice.below(2) == 0);
        let ages = dice.below(3) == 0;
        let is_odd = dice.below(12) == 0;
        let mut nodes: Vec<Node> = Vec::new();
        for (number, name) in NAMES.iter().enumerate().take(count) {
            let mut side = Side::new(name, Run::seed_of(seed, number as u64), twist)?;
            let options = &mut side.options;
            if let Some(first) = nodes.first() {
                let bytes = first.side.options.segment_bytes;
                let other = if bytes == 16 << 10 { 64 << 10 } else { 16 << 10 };
                options.segment_bytes = if is_odd && number + 1 == count { other } else { bytes };
            }
            if ages {
                let file_reserved = Duration::from_secs(3600);
                options.retention = Retention { file_reserved, delete_when: (0..24).collect(), ..Retention::default() };
                options.clean_interval = Duration::from_secs(1);
                options.segment_bytes = options.segment_bytes.min(64 << 10);
            }
            nodes.push(Node::new(number, side, 990 + u64::from(dice.below(21))));
        }
        let [heartbeat, silence] = [[5, 20], [1, 4]][dice.below(2) as usize].map(Duration::from_secs);
        let from_last_file = dice.below(6) == 0;
        let feed = FeedOptions {
            body_bytes: pick(&[100, 1_000, 32 << 10]) as usize,
            heartbeat,
            silence,
            from_last_file: dice.below(6) == 0,
            bytes_per_second: (dice.below(5) == 0).then(|| pick(&[20_000, 500_000])),
        };
        let borne = if lie == Some(Lie::SilenceIsBorne) { Duration::from_secs(1 << 40) } else { silence };
        let follow = FollowOptions { heartbeat, silence: borne, from_last_file };
        let weather = Weather {
            latency_ms_max: pick(&[0, 5, 40, 300]) as u32,
            window_bytes: pick(&[300, 4_000, 256 << 10]) as usize,
        };
        // Other dice, so that the rest of a seed's story is the same.
        let is_own = Random::seeded(seed ^ STREAMS).below(2) == 0;
        if is_own {
            for node in &mut nodes {
                let (cluster, set) = ("cluster".to_owned(), "set".to_owned());
                let who = Identity { cluster, set, broker_id: node.number as i64 + 1 };
                let secret = (seed % 4 < 2).then(|| Secret::new("of the cluster"));
                node.member = Some(Arc::new(Member { who, secret }));
            }
        }
        let stream = if is_own { "of Gantry" } else { "of Apache" };
        report.tell(|| format!("{count} brokers, the stream {stream}, {weather:?}, {feed:?}, {follow:?}"));
        let links = Links::new(weather, Random::seeded(dice.next_u64()));
        let (messages, truth, records) = (BTreeMap::new(), Vec::new(), Vec::new());
        let (damage, next_id) = (Damage::None, 1);
        Ok(Run {
            nodes,
            master: 0,
            links,
            now: 0,
            dice,
            lie,
            seed,
            twist,
            feed,
            follow,
            messages,
            truth,
            records,
            damage,
            next_id,
            is_calm: false,
            report,
        })
    }

    /// Other dice for each store.
    fn seed_of(seed: u64, nth: u64) -> u64 {
        seed ^ (nth << 56) ^ (nth << 17)
    }

    fn one_in(&self, many: u32) -> bool {
        self.dice.below(many) == 0
    }

    fn pick(&self, from: &[u64]) -> u64 {
        from[self.dice.below(from.len() as u32) as usize]
    }

    fn some_node(&self) -> usize {
        self.dice.below(self.nodes.len() as u32) as usize
    }

    fn step(&mut self) -> anyhow::Result<()> {
        let node = self.some_node();
        match self.dice.below(100) {
            0..26 => self.send()?,
            26..56 => self.pass(self.pick(&[1, 5, 20, 100]))?,
            56..64 => self.pass(self.pick(&[1_000, 6_000, 25_000]))?,
            64..69 => {
                let other = self.some_node();
                self.links.cut(node, other, true);
                self.report.tell(|| format!("the way from the {} to the {} is cut", NAMES[node], NAMES[other]));
                if self.one_in(2) {
                    self.links.cut(other, node, true);
                }
            }
            69..75 => self.links.heal(),
            75..80 => self.break_off(),
            80..84 => {
                let (in_body, at) = (self.one_in(2), self.dice.below(1000) as usize);
                self.damage = Damage::Due { in_body, at };
            }
            84..86 => {
                let side = &self.nodes[node].side;
                side.world.disk.crash_now(side.how)?;
            }
            86 => self.restart(node)?,
            87..90 => {
                let ms = self.pick(&[1_000, 3_601_000, 90_000_000]) as i64;
                let ms = if self.one_in(3) { -ms } else { ms };
                self.report.tell(|| format!("the clock of the {} is set by {ms} ms", NAMES[node]));
                self.nodes[node].side.world.hand.set_by(ms);
            }
            90..92 => self.nodes[node].side.world.disk.write_back()?,
            92..95 => self.operate(false)?,
            95 => self.give_up_master()?,
            _ => self.look(node)?,
        }
        self.moment()
    }

    fn break_off(&mut self) {
        if let Some(link) = self.links.some() {
            let told = [self.one_in(2), self.one_in(2)];
            self.report.tell(|| format!("connection {link} breaks, and is told of: {told:?}"));
            self.links.break_off(link, self.now, told);
        }
    }

    /// Lets time pass, moment by moment.
    fn pass(&mut self, ms: u64) -> anyhow::Result<()> {
        let end = self.now + ms;
        while self.now < end && self.report.is_well() {
            let step = (ms / MOMENTS).clamp(1, end - self.now);
            self.now += step;
            self.nodes.iter_mut().for_each(|node| node.pass(step));
            self.moment()?;
        }
        Ok(())
    }

    /// All brokers do what there is to do now.
    fn moment(&mut self) -> anyhow::Result<()> {
        self.links.step(self.now);
        for node in 0..self.nodes.len() {
            if self.nodes[node].down_until.is_some_and(|until| until <= self.now) && self.report.is_well() {
                self.nodes[node].down_until = None;
                self.start(node)?;
            }
        }
        self.accept();
        self.answer();
        for node in 0..self.nodes.len() {
            if self.nodes[node].is_up() && !self.nodes[node].side.has_crashed() && self.report.is_well() {
                self.nodes[node].see();
                self.feed(node);
                self.follow(node)?;
                self.nodes[node].see();
            }
            if self.nodes[node].is_up() {
                self.nodes[node].side.give(TURNS);
                self.nodes[node].see();
            }
        }
        self.check_positions();
        self.compare()?;
        self.mind_crashes()
    }

    /// Connections that have come.
    fn accept(&mut self) {
        for master in 0..self.nodes.len() {
            while let Some((link, slave)) = self.links.accept(master, self.now) {
                let is_served = master == self.master && self.nodes[master].is_up();
                let life = self.nodes[slave].life;
                let node = &mut self.nodes[master];
                if is_served {
                    let mut feed = Feed::new(self.feed.clone(), node.side.world.clock.elapsed());
                    if let Some(member) = &node.member {
                        feed = feed.greeting(Arc::clone(member), nonce_of(link));
                    }
                    node.feeds.push(Feeding::new(link, slave, life, feed, node.slaves.given()));
                } else {
                    self.links.break_off(link, self.now, [true, true]);
                    self.links.close(link, links::End::Master, self.now);
                }
            }
        }
    }

    /// Answers questions that have come, at the main ports.
    fn answer(&mut self) {
        for slave in 0..self.nodes.len() {
            let Some(following) = &mut self.nodes[slave].following else { continue };
            let master = following.master;
            let (is_open, is_open_back) = (self.links.is_open(slave, master), self.links.is_open(master, slave));
            let (now, latency) = (self.now, self.links.latency());
            let Some(ask) = following.asks() else { continue };
            if let Some((due, _)) = &mut ask.answer {
                *due = if is_open_back { *due } else { (*due).max(now + 1) };
                continue;
            }
            if ask.arrives > now || !is_open {
                continue;
            }
            let question = ask.question;
            let Node { side, slaves, .. } = &self.nodes[master];
            let _in_charge = side.world.turns.enter();
            let answer = side.store.as_ref().filter(|_| !side.has_crashed()).map(|store| answer_of(store, question));
            if let (Question::Record(LogOffset(0)), Some(Answer::Record(Ok(record)))) = (question, &answer) {
                slaves.note_first(LogOffset(record.len() as u64));
            }
            if let Some(ask) = self.nodes[slave].following.as_mut().and_then(Following::asks) {
                ask.answer = Some((now + latency, answer));
            }
        }
    }

    /// A broker feeds its slaves.
    fn feed(&mut self, number: usize) {
        let mut reported = Vec::new();
        for mut feed in std::mem::take(&mut self.nodes[number].feeds) {
            let Run { nodes, links, records, damage, report, lie, now, .. } = &mut *self;
            let was_due = matches!(damage, Damage::Due { .. });
            let mut around = feeding::Around { links, now: *now, lie: *lie, records: records.as_slice(), damage };
            let done = feed.step(&nodes[number], &mut around);
            let name = NAMES[feed.slave];
            if let (true, Damage::Done { at }) = (was_due, &*around.damage) {
                report.tell(|| format!("a byte of the record at {at} is flipped on the way to the {name}"));
            }
            match done {
                Ok(acknowledged) => {
                    reported.extend(acknowledged.map(|to| (feed.slave, feed.slave_life, to)));
                    nodes[number].feeds.push(feed);
                }
                Err(closed) => {
                    report.tell(|| format!("the master lets the {name} go: {closed}"));
                    feed.end(&nodes[number].slaves, nodes[number].side.world.clock.elapsed());
                    feed.take_leave(&closed, links, *now);
                    links.close(feed.link, links::End::Master, *now);
                }
            }
        }
        for (slave, life, to) in reported {
            self.reported(slave, life, to);
        }
    }

    /// A slave follows.
    fn follow(&mut self, number: usize) -> anyhow::Result<()> {
        let Run { nodes, links, report, now, lie, .. } = self;
        let Node { following: Some(following), side, .. } = &mut nodes[number] else { return Ok(()) };
        let mut around = following::Around { links, now: *now, lie: *lie, report };
        match following.step(side, &mut around) {
            Some(Told::Began { link }) => {
                nodes[number].began = Some(link);
                Ok(())
            }
            Some(Told::BeginAt(at)) => self.begin_at(number, at),
            None => Ok(()),
        }
    }

    /// Ends all faults, waits until slaves have the log, and looks at everything once more, before and after a stop.
    fn finish(mut self) -> anyhow::Result<()> {
        self.is_calm = true;
        self.links.heal();
        self.damage = Damage::None;
        for node in &mut self.nodes {
            node.side.is_calm = true;
            node.side.world.disk.crash_in(u64::MAX / 2, Crash::Killed);
            node.down_until = node.down_until.map(|_| self.now);
        }
        for is_stopped in [false, true] {
            if is_stopped && self.report.is_well() {
                for number in 0..self.nodes.len() {
                    self.restart(number)?;
                }
            }
            if self.report.is_well() {
                self.send()?;
                self.wait()?;
            }
            for number in 0..self.nodes.len() {
                if self.report.is_well() {
                    self.look(number)?;
                }
            }
        }
        for number in 0..self.nodes.len() {
            if self.nodes[number].is_up() {
                self.end(number, false)?;
            }
        }
        Ok(())
    }

    /// Until all slaves have the log, and the master knows.
    fn wait(&mut self) -> anyhow::Result<()> {
        let end = self.now + PATIENCE_MS;
        while self.now < end && self.report.is_well() {
            self.operate(true)?;
            self.pass(self.pick(&[20, 200]))?;
            if self.is_settled() {
                self.report.tell(|| format!("all have the log after {} ms", self.now + PATIENCE_MS - end));
                return Ok(());
            }
        }
        if self.report.is_well() {
            let why = self.why_not_settled();
            self.report.find(Verdict::Late, format!("slaves do not come to the end of the log: {why}"));
        }
        Ok(())
    }
}

fn answer_of(store: &Store, question: Question) -> Answer {
    let at = match question {
        Question::Extent => {
            return Answer::Extent(Extent { min: store.min_offset(), max: store.end(), has_journal: false });
        }
        Question::Record(at) => at,
    };
    let refused = |remark: String| {
        let code = ResponseCode::SystemError as i32;
        Err(AskError::Refused { request: request::VIEW_MESSAGE_BY_ID, code, remark })
    };
    Answer::Record(match store.written_record_at_cold(at) {
        Ok(RecordAt::Record(slice)) => Ok(Bytes::copy_from_slice(slice.as_ref())),
        Ok(RecordAt::Gone | RecordAt::Damaged) => refused(format!("can not find message by the offset, {at}")),
        Err(error) => refused(error.to_string()),
    })
}
