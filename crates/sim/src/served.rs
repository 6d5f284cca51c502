//! A broker in a simulated world, and who asks it: one client by a direct call, or many over a simulated network.
//!
//! The broker's tasks run on the thread that is in charge of the store's threads, between their turns; time passes for both alike. A request goes in
//! as the bytes of a frame, and what comes out are the bytes of its answer: the code that serves, without a socket. Over a network each
//! connection has its task, which is the one that serves a socket.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use broker::{Broker, Start, Work};
use bytes::{Bytes, BytesMut};
use config::{Machine, Role, Settings, Sources};
use env::Random;
use net::{ClientOptions, Connection, Detached, ListenerOptions};
use protocol::delay::DelayLevels;
use protocol::frame::{self, Serialization};
use protocol::header::{self, EncodeFields, Head, HeaderScratch};
use store::{PoolOptions, Store, StoreEnv, StoreOptions};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use crate::disk::Crash;
use crate::log_run::{self, End};
use crate::network::BrokerEnd;
use crate::verdict::{Report, Verdict};
use crate::world::World;

/// How often each task may run before threads have their turns.
const TASK_ROUNDS: usize = 6;
/// Rounds in which whatever has to happen by itself has happened; time passes meanwhile.
const ROUNDS_MAX: u32 = 30_000;

/// See the module.
pub struct Served {
    // Dropped in this order: tasks before the store that they use.
    peer: Option<Detached<Broker>>,
    connections: Vec<(Connection<Work>, JoinHandle<()>)>,
    broker: Option<Arc<Broker>>,
    runtime: Runtime,
    pub store: Arc<Store>,
    opaque: i32,
}

/// One request.
pub struct Request<'a> {
    pub code: i32,
    pub fields: &'a dyn EncodeFields,
    pub body: &'a [u8],
}

/// The answer to one.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    pub code: i32,
    pub remark: String,
    pub fields: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    /// A field that is a number; -1 where there is none.
    pub fn number(&self, name: &str) -> i64 {
        self.field(name).parse().unwrap_or(-1)
    }
}

/// A setting and its value.
pub type Setting = (&'static str, String);

/// `messageDelayLevel` of all simulated brokers.
const LEVELS: &str = "1s 3s 10s";

/// Each image holds the wheel: 1 MiB, where Apache's has 37.
const SLOTS_AHEAD: i64 = 16_384;

/// Settings of all simulated brokers. No file is written now and then beside the simulated disk; half messages are kept open.
const SETTINGS: [(&str, &str); 6] = [
    ("brokerName", "broker-a"),
    ("messageDelayLevel", LEVELS),
    ("mappedFileSizeTimerLog", "65536"),
    ("timerPrecisionMs", "5000"),
    ("flushConsumerOffsetInterval", "1000000000"),
    ("transactionCheckMax", "1000000"),
];

/// Options of the store of a simulated broker, whose log is written from such a pool.
pub fn options(world: &World, pool: Option<PoolOptions>) -> anyhow::Result<StoreOptions> {
    Ok(StoreOptions {
        // Smaller buffers make a delivery wait for its room again and again.
        pool: pool.map(|pool| PoolOptions { buffer_bytes: 64 << 10, ..pool }),
        delay_levels: DelayLevels::parse(LEVELS)?,
        batch_topics: Some(broker::batch_topics),
        timer_slots_ahead: SLOTS_AHEAD,
        ..log_run::options(world)
    })
}

impl Served {
    /// Begins a life behind one that ended so. None: it has crashed in its start, or does not start, which is found.
    pub fn begin(
        world: &World,
        options: &StoreOptions,
        settings: &[Setting],
        before: End,
        report: &mut Report,
    ) -> Option<Served> {
        match Served::start(world, options.clone(), settings) {
            Ok(served) => {
                let now = world.clock.now().0;
                report.tell(|| format!("at {now} started after {before:?}: the log ends at {}", served.store.end().0));
                Some(served)
            }
            // What is refused then is refused by a ghost.
            Err(_) if world.disk.has_crashed() => None,
            Err(error) => {
                report.find(Verdict::Refused, format!("the broker does not start after {before:?}: {error:#}"));
                None
            }
        }
    }

    /// Ends a life: in order if `done` says so and nothing is against it, otherwise by a crash, if there was none yet.
    pub fn end(
        self,
        world: &World,
        done: anyhow::Result<bool>,
        how: Crash,
        report: &mut Report,
    ) -> anyhow::Result<End> {
        let is_to_stop = matches!(done, Ok(true)) && !world.disk.has_crashed() && report.is_well();
        if !is_to_stop {
            world.disk.crash_now(how)?;
            self.abandon(world);
            done?;
            return Ok(End::Crashed(how));
        }
        let stopped = self.stop(world);
        if world.disk.has_crashed() {
            return Ok(End::Crashed(how));
        }
        if let Err(error) = stopped {
            report.find(Verdict::Refused, format!("the broker does not stop: {error:#}"));
            world.disk.crash_now(how)?;
            return Ok(End::Crashed(how));
        }
        Ok(End::Closed)
    }

    /// Opens the store and starts the broker, with settings of the run besides those that all have.
    pub fn start(world: &World, options: StoreOptions, settings: &[Setting]) -> anyhow::Result<Served> {
        let root = options.root.clone();
        let env = StoreEnv {
            clock: world.clock.clone(),
            random: Random::seeded(world.dice.next_u64()),
            disk: Arc::new(world.disk.clone()),
            buggify: world.buggify.clone(),
        };
        let (store, _found) = Store::open(options, env)?;
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build()?;
        let machine = Machine { host_name: "localhost".into(), address: [127, 0, 0, 1].into(), home: root.clone() };
        let all = SETTINGS.map(|(key, value)| (key, value.to_owned())).into_iter().chain(settings.iter().cloned());
        let configuration = Settings::load(Sources {
            command_line: all.map(|(key, value)| (key.into(), value, "sim".into())).collect(),
            data: Some(root),
            ..Sources::new(Role::Broker, machine)
        })?;
        let start = Start {
            settings: configuration.broker()?,
            store_settings: configuration.store()?,
            store: Arc::clone(&store),
            advertised: ([127, 0, 0, 1], 10911).into(),
            name_servers: Vec::new(),
            calls: ClientOptions::default(),
            configuration,
            config_file: None,
            log_port: None,
            clock: world.clock.clone(),
            random: Random::seeded(world.dice.next_u64()),
        };
        let mut served = Served { peer: None, connections: Vec::new(), broker: None, runtime, store, opaque: 0 };
        let starting = served.runtime.spawn(Broker::start(start));
        if !served.until(world, || starting.is_finished()) {
            bail!("the broker does not come to the end of its start");
        }
        let broker = served.runtime.block_on(starting)??;
        let _entered = served.runtime.enter();
        served.peer = Some(Detached::open(Arc::clone(&broker), ([127, 0, 0, 1], 40_000).into()));
        served.broker = Some(broker);
        drop(_entered);
        Ok(served)
    }

    /// Serves a connection over a network. False: the broker has stopped.
    pub fn accept(&mut self, end: BrokerEnd, client: u16) -> bool {
        let Some(broker) = &self.broker else { return false };
        let peer = ([127, 0, 0, 1], 41_000 + client).into();
        let (connection, served) = net::over(Arc::clone(broker), end, peer, &ListenerOptions::default());
        self.connections.retain(|(_, task)| !task.is_finished());
        self.connections.push((connection, self.runtime.spawn(served)));
        true
    }

    /// How many connections are served.
    pub fn connections(&self) -> usize {
        self.connections.iter().filter(|(_, task)| !task.is_finished()).count()
    }

    /// Lets connections read no more, and finish what they have read.
    pub fn drain(&self) {
        self.connections.iter().for_each(|(connection, _)| connection.close());
    }

    /// Cuts off those that have not ended.
    fn cut_off(&self, world: &World) {
        self.connections.iter().for_each(|(_, task)| task.abort());
        // An aborted task goes when it has its turn.
        for _ in 0..ROUNDS_MAX {
            if self.connections() == 0 {
                return;
            }
            self.round(world, 0);
        }
    }

    /// Lets tasks run, and then threads.
    pub fn round(&self, world: &World, turns: u32) {
        self.runtime.block_on(rounds());
        world.give(turns);
    }

    /// Moves the tasks' time on by what has passed.
    pub fn advance(&self, ms: u64) {
        self.runtime.block_on(tokio::time::advance(Duration::from_millis(ms)));
    }

    /// Lets time pass, and tasks and threads run meanwhile.
    pub fn pass(&self, world: &World, ms: u64) {
        let mut left = ms;
        while left > 0 {
            let step = left.min(100);
            left -= step;
            world.pass(step);
            self.advance(step);
            // Threads sleep through most of such a time, and each has its turn.
            self.round(world, 12);
        }
    }

    /// Lets tasks and threads run until something is so, and says whether it came to be.
    fn until(&self, world: &World, mut is_so: impl FnMut() -> bool) -> bool {
        for round in 0..ROUNDS_MAX {
            if is_so() {
                return true;
            }
            self.round(world, 2);
            if round % 10 == 9 {
                // A stop waits for the end of a slot of timer messages.
                self.pass(world, 10);
            }
        }
        false
    }

    /// Asks several things as one burst. None of the answers where the disk has crashed meanwhile; an error where the broker stands still.
    pub fn ask(&mut self, world: &World, requests: &[Request<'_>]) -> anyhow::Result<Vec<Option<Answer>>> {
        let mut frames = BytesMut::new();
        let first = self.opaque;
        for request in requests {
            let head = Head { code: request.code, opaque: self.opaque, ..Head::default() };
            self.opaque += 1;
            write_request(&mut frames, &head, request.fields, request.body);
        }
        let mut answers = vec![None; requests.len()];
        let mut frames = frames.freeze();
        let mut rounds_left = ROUNDS_MAX;
        while answers.iter().any(Option::is_none) {
            let out = self.serve(world, &frames, &mut rounds_left);
            if world.disk.has_crashed() {
                // Whatever it says now is no promise.
                return Ok(vec![None; requests.len()]);
            }
            let Some(out) = out.filter(|_| rounds_left > 0) else {
                let open = answers.iter().position(Option::is_none).unwrap_or(0);
                bail!("a request with code {} is not answered", requests[open].code);
            };
            frames = Bytes::new();
            read(&out, |opaque, answer| {
                let place = usize::try_from(opaque - first).ok();
                if let Some(slot) = place.and_then(|place| answers.get_mut(place)) {
                    *slot = Some(answer);
                }
            })?;
        }
        Ok(answers)
    }

    /// One burst of the client's connection, and a round. None: the disk has crashed meanwhile, or it took all rounds that were left.
    fn serve(&mut self, world: &World, frames: &Bytes, rounds_left: &mut u32) -> Option<Vec<u8>> {
        let runtime = &self.runtime;
        let mut serving = pin!(self.peer.as_mut()?.serve(frames));
        loop {
            let served = runtime.block_on(async {
                tokio::select! {
                    biased;
                    out = &mut serving => {
                        let written = out.to_vec();
                        out.discard();
                        Some(written)
                    }
                    () = rounds() => None,
                }
            });
            world.give(2);
            *rounds_left = rounds_left.saturating_sub(1);
            if rounds_left.is_multiple_of(10) {
                world.pass(1);
                runtime.block_on(tokio::time::advance(Duration::from_millis(1)));
            }
            match served {
                Some(written) => return Some(written),
                None if world.disk.has_crashed() || *rounds_left == 0 => return None,
                None => {}
            }
        }
    }

    /// Stops broker and store in order.
    pub fn stop(mut self, world: &World) -> anyhow::Result<Arc<Store>> {
        self.cut_off(world);
        let entered = self.runtime.enter();
        self.peer = None;
        drop(entered);
        let broker = self.broker.take().context("a broker that was started")?;
        // A device that fails may keep the configuration from being written: the journal is what is looked at.
        let stopping = self.runtime.spawn(async move { broker.stop().await.is_ok() });
        if !self.until(world, || stopping.is_finished()) {
            bail!("the broker does not come to the end of its stop");
        }
        self.runtime.block_on(stopping)?;
        let Served { runtime, store, .. } = self;
        drop(runtime);
        store.close()?;
        Ok(store)
    }

    /// Lets all of it go, after a crash: what it still does leaves nothing. A broker that is not stopped keeps its store open.
    pub fn abandon(self, world: &World) {
        let store = Arc::clone(&self.store);
        if self.stop(world).is_err() {
            // For its threads to end.
            let _ = store.close();
        }
    }
}

/// Lets other tasks run.
async fn rounds() {
    for _ in 0..TASK_ROUNDS {
        tokio::task::yield_now().await;
    }
}

/// A frame that came from a broker: an answer, or what it asks of its own accord.
#[derive(Clone, Debug)]
pub struct Came {
    pub is_answer: bool,
    pub opaque: i32,
    pub answer: Answer,
}

/// Reads whole frames, and says how many bytes they have.
pub fn read_frames(frames: &[u8], mut each: impl FnMut(Came)) -> anyhow::Result<usize> {
    let mut scratch = HeaderScratch::new();
    let mut at = 0;
    while let Some(layout) = frame::peek(&frames[at..], usize::MAX)? {
        let frame = &frames[at..];
        let header = header::decode(&frame[layout.header.clone()], layout.serialization, &mut scratch)?;
        let fields = header.fields.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let remark = header.remark.unwrap_or_default().to_owned();
        let answer = Answer { code: header.code, remark, fields, body: frame[layout.body.clone()].to_vec() };
        each(Came { is_answer: header.is_response(), opaque: header.opaque, answer });
        at += layout.frame_bytes;
    }
    Ok(at)
}

/// Reads answers.
fn read(frames: &[u8], mut each: impl FnMut(i32, Answer)) -> anyhow::Result<()> {
    read_frames(frames, |came| {
        if came.is_answer {
            each(came.opaque, came.answer);
        }
    })?;
    Ok(())
}

/// The bytes of a request. `head` has its code, its number, and whether it is answered.
pub fn write_request(out: &mut BytesMut, head: &Head<'_>, fields: &dyn EncodeFields, body: &[u8]) {
    header::write_frame(out, Serialization::Json, head, fields, body.len());
    out.extend_from_slice(body);
}
