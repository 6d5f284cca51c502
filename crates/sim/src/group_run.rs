//! A run of groups of consumers: producers and members of two groups, each with a connection of its own over a simulated network, and a broker that
//! crashes and stops.
//!
//! Clients live on while the broker does not, and keep what they hold: places in queues, locks, what is not done with. Members come, leave in
//! order, and vanish without a word; connections are cut and fall silent. What must hold at any time is looked at where it is told (`consumer.rs`,
//! `history.rs`); what must have come in the end, when all is quiet, in `checks.rs`.

mod checks;
mod consumer;
mod history;
mod line;
mod producer;
mod register;
#[cfg(test)]
mod tests;

use std::time::Duration;

use env::Random;
use store::{FlushMode, StoreOptions};

use crate::disk::Crash;
use crate::log_run::{self, End};
use crate::network::{Link, Network, Weather};
use crate::served::{self, Served, Setting};
use crate::verdict::{Report, Verdict};
use crate::world::{Twist, World};
use consumer::Consumer;
use history::{Begun, History, Queue};
use producer::Producer;

/// Where everything is sent to, and how many queues it has.
const TOPIC: &str = "orders";
const QUEUES: u32 = 3;
const PRODUCERS: u16 = 2;
/// Of a group at a time, at most.
const MEMBERS_MAX: usize = 3;

/// A tenth of the stock client's times, as all others here.
const HEARTBEAT_MS: i64 = 3_000;
/// `channelExpiredTimeout` and `rocketmq.broker.rebalance.lockMaxLiveTime`.
const EXPIRED_MS: u32 = 12_000;
const LOCK_MS: u32 = 6_000;
/// How long connections have to end in order when the broker stops: `drain_timeout`.
const DRAIN_MS: u64 = 5_000;

/// How a group consumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Any,
    InOrder,
}

struct Group {
    name: &'static str,
    order: Order,
}

const GROUPS: [Group; 2] =
    [Group { name: "packers", order: Order::Any }, Group { name: "clerks", order: Order::InOrder }];

/// What a seed decides for all of its story.
struct Rules {
    weather: Weather,
    /// How long an answer may take.
    rpc_ms: i64,
    suspend_ms: i64,
    /// Pulls say how far the group has come.
    pulls_commit: bool,
    work_ms_max: u32,
    send_ms_max: u32,
    /// How long after it has connected a client says that it lives.
    first_heartbeat_ms_max: u32,
    settings: Vec<Setting>,
    /// How long what is there may wait for a member that waits for it.
    wake_ms_max: i64,
    /// How much longer than usual a group may take until everybody knows who is there.
    settled_late_ms_max: i64,
}

impl Rules {
    fn new(world: &World) -> Rules {
        let is_held = !world.one_in(5);
        let is_told_at_once = !world.one_in(5);
        let suspend_ms = world.pick(&[1_500, 15_000]);
        let parked_max = world.pick(&[1, 100_000, 100_000]);
        let settings = vec![
            ("channelExpiredTimeout", EXPIRED_MS.to_string()),
            ("rocketmq.broker.rebalance.lockMaxLiveTime", LOCK_MS.to_string()),
            ("longPollingEnable", is_held.to_string()),
            ("shortPollingTimeMills", world.pick(&[100, 1_000]).to_string()),
            ("realTimeNotifyConsumerChange", is_told_at_once.to_string()),
            ("maxTransferCountOnMessageInMemory", world.pick(&[1, 3, 1_024]).to_string()),
            ("maxTransferBytesOnMessageInMemory", world.pick(&[6_000, 262_144]).to_string()),
            ("parkedPullsPerConnectionMax", parked_max.to_string()),
            ("journalOffsetsMillis", world.pick(&[0, 5, 1_000]).to_string()),
        ];
        let latency_ms_max = world.pick(&[1, 20, 200]);
        let weather = Weather { latency_ms_max, window_bytes: world.pick(&[2_000, 64 << 10]) };
        let is_narrow = weather.window_bytes < 64 << 10;
        let work_ms_max = world.pick(&[5, 100]);
        Rules {
            weather,
            // Answers to pulls take seconds there: who gave up each connection after one would read the same messages for ever.
            rpc_ms: if is_narrow && latency_ms_max == 200 { 5_000 } else { 1_000 },
            suspend_ms,
            pulls_commit: world.one_in(2),
            work_ms_max,
            send_ms_max: world.pick(&[200, 1_000, 3_000]),
            first_heartbeat_ms_max: world.pick(&[0, 3_000]),
            settings,
            // Who may park one pull only asks again and again for its other queues, and waits while the answer to one is on its way.
            wake_ms_max: if parked_max == 1 { 10_000 } else { 2_500 },
            settled_late_ms_max: if is_narrow { 60_000 } else { 0 },
        }
    }

    /// When a producer sends its next message.
    fn send_every(&self, dice: &Random) -> i64 {
        i64::from(dice.below(self.send_ms_max))
    }
}

/// What a client sees and does when it is its turn.
struct Around<'a> {
    now: i64,
    dice: &'a Random,
    rules: &'a Rules,
    network: &'a mut Network,
    /// None: nobody listens.
    served: Option<&'a mut Served>,
    history: &'a mut History,
    report: &'a mut Report,
    /// Which life of the broker it is.
    life: u32,
    /// Where the log ends.
    end: u64,
}

impl Around<'_> {
    fn connect(&mut self, client: u16) -> Option<Link> {
        let served = self.served.as_mut()?;
        let (link, end) = self.network.connect();
        served.accept(end, client).then_some(link)
    }

    fn refused(&mut self, what: String) {
        self.report.find(Verdict::Refused, what);
    }

    /// Somebody asked at `from` how far a group has come.
    fn is_told(&mut self, group: usize, queue: Queue, told: i64, from: i64) {
        let name = GROUPS[group].name;
        self.report.tell(|| format!("{name} are told {told} for {queue:?}"));
        let now = self.now;
        if !self.history.register(group, queue).told(told, from, now) {
            self.report.find(Verdict::WentBack, format!("{name} are told {told} for {queue:?}, which was replaced"));
        }
    }

    fn begins_work(&mut self, group: usize, queue: Queue, member: &str, life: u32, begun: &Begun) {
        let (now, name) = (self.now, GROUPS[group].name);
        let Begun { id, offset, .. } = begun;
        self.report.tell(|| format!("at {now} {member} of {name} begins with {id} at {offset} of {queue:?}"));
        if let Some(what) = self.history.begins_work(group, queue, member, life, begun) {
            self.report.find(Verdict::Unordered, format!("{name} in {queue:?}: {what}"));
        }
    }
}

/// What is around a client, of the parts of a run; not by a method, since the clients are another part.
macro_rules! around {
    ($run:ident, $served:expr, $end:expr) => {
        Around {
            now: $run.world.clock.now().0,
            dice: &$run.world.dice,
            rules: &$run.rules,
            network: &mut $run.network,
            served: $served,
            history: &mut $run.history,
            report: &mut *$run.report,
            life: $run.life,
            end: $end,
        }
    };
}
use around;

struct Run<'a> {
    world: &'a mut World,
    report: &'a mut Report,
    options: StoreOptions,
    rules: Rules,
    network: Network,
    history: History,
    consumers: Vec<Consumer>,
    producers: Vec<Producer>,
    last_client: u16,
    life: u32,
}

/// Runs the seed's story.
pub fn run(seed: u64, twist: Twist, report: &mut Report) -> anyhow::Result<()> {
    let mut world = World::new(seed, twist)?;
    let turns = world.turns.clone();
    let _in_charge = turns.enter();
    let options = served::options(&world, log_run::pool(seed))?;
    world.counts_no_reading();
    let rules = Rules::new(&world);
    report.tell(|| format!("{:?}, {:?}, files of {} bytes", options.flush, options.pool, options.segment_bytes));
    report.tell(|| format!("{:?}, pulls wait for {} ms, {:?}", rules.weather, rules.suspend_ms, rules.settings));
    let lives = 1 + world.dice.below(3);
    let network = Network::new(rules.weather, Random::seeded(world.dice.next_u64()));
    let mut run = Run::new(&mut world, report, options, rules, network);
    for group in 0..GROUPS.len() {
        run.join(group);
    }
    let mut before = End::Closed;
    for life in 0..lives {
        run.life = life;
        let end = run.live(before, life + 1 == lives)?;
        run.network.lose_all();
        let how = match end {
            End::Crashed(how) => how,
            End::Closed => run.world.crash(),
        };
        run.report.crashes += 1;
        run.world.next_life(how, run.report)?;
        let now = run.world.clock.now().0;
        run.report.tell(|| format!("at {now} life {life} ended: {end:?}"));
        if !run.report.is_well() {
            break;
        }
        run.history.end_of_life(end, run.options.flush == FlushMode::Sync, now);
        before = end;
    }
    Ok(())
}

impl<'a> Run<'a> {
    fn new(
        world: &'a mut World,
        report: &'a mut Report,
        options: StoreOptions,
        rules: Rules,
        network: Network,
    ) -> Run<'a> {
        Run {
            world,
            report,
            options,
            rules,
            network,
            history: History::new(),
            consumers: Vec::new(),
            producers: (0..PRODUCERS).map(Producer::new).collect(),
            last_client: PRODUCERS,
            life: 0,
        }
    }

    /// From a start of the broker to a crash or a stop.
    fn live(&mut self, before: End, is_last: bool) -> anyhow::Result<End> {
        log_run::move_to(&mut self.options, &self.world.root());
        let how = self.world.crash();
        if !is_last && self.world.one_in(8) {
            // In the start, or soon after it.
            self.world.disk.crash_in(1 + u64::from(self.world.dice.below(200)), how);
        }
        let settings = &self.rules.settings;
        let Some(mut served) = Served::begin(self.world, &self.options, settings, before, self.report) else {
            return Ok(End::Crashed(how));
        };
        let done = self.serve(&mut served, is_last, how);
        if matches!(done, Ok(true)) && self.goes_on() {
            self.drain(&mut served);
        }
        served.end(self.world, done, how, self.report)
    }

    /// One life of clients with it. True: it is to be stopped in order.
    fn serve(&mut self, served: &mut Served, is_last: bool, how: Crash) -> anyhow::Result<bool> {
        self.look_at_start(served)?;
        if !self.goes_on() {
            return Ok(false);
        }
        if !is_last && self.world.one_in(2) {
            self.world.disk.crash_in(1 + u64::from(self.world.dice.below(2_000)), how);
        }
        let end = self.world.clock.now().0 + i64::from(self.world.pick(&[3_000, 10_000, 30_000]));
        while self.world.clock.now().0 < end {
            self.happen(served)?;
            self.beat(served, true);
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

    /// Now and then something happens to clients, to the network, or to the disk.
    fn happen(&mut self, served: &Served) -> anyhow::Result<()> {
        match self.world.dice.below(400) {
            0..3 => {
                let group = self.world.dice.below(GROUPS.len() as u32) as usize;
                if self.members(group) < MEMBERS_MAX {
                    self.join(group);
                }
            }
            3 => self.with_one(served, Consumer::leave),
            4 => self.with_one(served, Consumer::vanish),
            5..9 => self.hurt(Network::cut),
            9 => self.hurt(Network::silence),
            10..20 => self.world.disk.write_back()?,
            _ => {}
        }
        Ok(())
    }

    fn members(&self, group: usize) -> usize {
        self.consumers.iter().filter(|consumer| consumer.group == group && consumer.lives()).count()
    }

    fn join(&mut self, group: usize) {
        self.last_client += 1;
        let consumer = Consumer::new(self.last_client, group);
        let now = self.world.clock.now().0;
        self.report.tell(|| format!("at {now} {} joins {}", consumer.name, GROUPS[group].name));
        self.consumers.push(consumer);
    }

    /// Lets one of the members do something that ends it.
    fn with_one(&mut self, served: &Served, act: impl Fn(&mut Consumer, &mut Around<'_>)) {
        let living = self.consumers.iter().filter(|consumer| consumer.lives()).count() as u32;
        let chosen = self.world.dice.below(living) as usize;
        let end = served.store.end().0;
        let Some(consumer) = self.consumers.iter_mut().filter(|consumer| consumer.lives()).nth(chosen) else { return };
        let mut around = around!(self, None, end);
        act(consumer, &mut around);
        let (now, name) = (around.now, &consumer.name);
        around.report.tell(|| format!("at {now} {name} leaves, or vanishes: {}", consumer.is_gone()));
    }

    /// Does something to one of the connections.
    fn hurt(&mut self, how: impl Fn(&mut Network, Link)) {
        let all = self.consumers.iter().map(|consumer| (consumer.link(), &consumer.name));
        let all = all.chain(self.producers.iter().map(|producer| (producer.link(), &producer.name)));
        let links: Vec<(Link, &String)> = all.filter_map(|(link, name)| Some((link?, name))).collect();
        if links.is_empty() {
            return;
        }
        let (link, name) = links[self.world.dice.below(links.len() as u32) as usize];
        let now = self.world.clock.now().0;
        self.report.tell(|| format!("at {now} the connection of {name} is hurt"));
        how(&mut self.network, link);
    }

    /// Lets a little time pass, and everybody have a turn.
    fn beat(&mut self, served: &mut Served, may_connect: bool) {
        let ms = if self.network.is_busy() { self.world.pick(&[1, 3, 10]) } else { self.world.pick(&[5, 20, 50]) };
        self.world.pass(ms);
        served.advance(ms);
        let now = self.world.clock.now().0;
        self.network.step(now);
        served.round(self.world, 2 + self.world.dice.below(6));
        let flushed = served.store.flushed().get();
        if self.world.disk.has_crashed() {
            return;
        }
        self.history.flushed_to(flushed);
        self.network.step(now);
        let end = served.store.end().0;
        let mut around = around!(self, may_connect.then_some(served), end);
        for consumer in &mut self.consumers {
            consumer.step(&mut around);
        }
        for producer in &mut self.producers {
            producer.step(&mut around);
        }
        self.consumers.retain(|consumer| !consumer.is_gone());
        self.network.step(now);
    }

    /// Lets connections finish what they have read, as a broker does that stops.
    fn drain(&mut self, served: &mut Served) {
        served.drain();
        let end = self.world.clock.elapsed() + Duration::from_millis(DRAIN_MS);
        while served.connections() > 0 && self.world.clock.elapsed() < end && !self.world.disk.has_crashed() {
            self.beat(served, false);
        }
    }
}
