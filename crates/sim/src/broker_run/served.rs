//! A broker in a simulated world, and the one client that asks it.
//!
//! The broker's tasks run on the thread that is in charge of the store's threads, between their turns; time passes for both alike. A request goes in
//! as the bytes of a frame, and what comes out are the bytes of its answer: the code that serves, without a socket.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use broker::{Broker, Start};
use bytes::{Bytes, BytesMut};
use config::{Machine, Role, Settings, Sources};
use env::Random;
use net::{ClientOptions, Detached};
use protocol::frame::{self, Serialization};
use protocol::header::{self, EncodeFields, Head, HeaderScratch};
use store::{Store, StoreEnv, StoreOptions};
use tokio::runtime::{Builder, Runtime};

use crate::world::World;

/// How often each task may run before threads have their turns.
const TASK_ROUNDS: usize = 6;
/// Rounds in which whatever has to happen by itself has happened; time passes meanwhile.
const ROUNDS_MAX: u32 = 30_000;

/// See the module.
pub struct Served {
    // Dropped in this order: tasks before the store that they use.
    peer: Option<Detached<Broker>>,
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

/// Settings of all simulated brokers. No file is written now and then beside the simulated disk; half messages are kept open.
const SETTINGS: [(&str, &str); 6] = [
    ("brokerName", "broker-a"),
    ("messageDelayLevel", super::LEVELS),
    ("mappedFileSizeTimerLog", "65536"),
    ("timerPrecisionMs", "5000"),
    ("flushConsumerOffsetInterval", "1000000000"),
    ("transactionCheckMax", "1000000"),
];

impl Served {
    /// Opens the store and starts the broker.
    pub fn start(world: &World, options: StoreOptions) -> anyhow::Result<Served> {
        let root = options.root.clone();
        let env = StoreEnv {
            clock: world.clock.clone(),
            random: Random::seeded(world.dice.next_u64()),
            disk: Arc::new(world.disk.clone()),
        };
        let (store, _found) = Store::open(options, env)?;
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build()?;
        let machine = Machine { host_name: "localhost".into(), address: [127, 0, 0, 1].into(), home: root.clone() };
        let configuration = Settings::load(Sources {
            command_line: SETTINGS.map(|(key, value)| (key.into(), value.into(), "sim".into())).into(),
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
            clock: world.clock.clone(),
            random: Random::seeded(world.dice.next_u64()),
        };
        let mut served = Served { peer: None, broker: None, runtime, store, opaque: 0 };
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

    /// Lets tasks run, and then threads.
    pub fn round(&self, world: &World, turns: u32) {
        self.runtime.block_on(rounds());
        world.give(turns);
    }

    /// Lets time pass, and tasks and threads run meanwhile.
    pub fn pass(&self, world: &World, ms: u64) {
        let mut left = ms;
        while left > 0 {
            let step = left.min(100);
            left -= step;
            world.pass(step);
            self.runtime.block_on(tokio::time::advance(Duration::from_millis(step)));
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

    /// Asks several things as one burst. An answer that does not come is none: of a broker whose disk has crashed, or one that stands still,
    /// which is an error.
    pub fn ask(&mut self, world: &World, requests: &[Request<'_>]) -> anyhow::Result<Vec<Option<Answer>>> {
        let mut frames = BytesMut::new();
        let first = self.opaque;
        for request in requests {
            let head = Head { code: request.code, opaque: self.opaque, ..Head::default() };
            self.opaque += 1;
            header::write_frame(&mut frames, Serialization::Json, &head, request.fields, request.body.len());
            frames.extend_from_slice(request.body);
        }
        let mut answers = vec![None; requests.len()];
        let mut frames = frames.freeze();
        let mut rounds_left = ROUNDS_MAX;
        while answers.iter().any(Option::is_none) {
            let Some(out) = self.serve(world, &frames, &mut rounds_left) else { break };
            frames = Bytes::new();
            read(&out, |opaque, answer| {
                let place = usize::try_from(opaque - first).ok();
                if let Some(slot) = place.and_then(|place| answers.get_mut(place)) {
                    *slot = Some(answer);
                }
            })?;
            if world.disk.has_crashed() {
                // Whatever it says now is no promise.
                return Ok(vec![None; requests.len()]);
            }
            if rounds_left == 0 {
                let open = answers.iter().position(Option::is_none).unwrap_or(0);
                bail!("a request with code {} is not answered", requests[open].code);
            }
        }
        Ok(answers)
    }

    /// One burst of the client's connection, and a round. None: the disk has crashed meanwhile.
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
        let entered = self.runtime.enter();
        self.peer = None;
        drop(entered);
        let broker = self.broker.take().context("a broker that was started")?;
        let stopping = self.runtime.spawn(async move { broker.stop().await });
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

/// Reads answers.
fn read(mut frames: &[u8], mut each: impl FnMut(i32, Answer)) -> anyhow::Result<()> {
    let mut scratch = HeaderScratch::new();
    while let Some(layout) = frame::peek(frames, usize::MAX)? {
        let header = header::decode(&frames[layout.header.clone()], layout.serialization, &mut scratch)?;
        if header.is_response() {
            let fields = header.fields.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            let remark = header.remark.unwrap_or_default().to_owned();
            each(
                header.opaque,
                Answer { code: header.code, remark, fields, body: frames[layout.body.clone()].to_vec() },
            );
        }
        frames = &frames[layout.frame_bytes..];
    }
    Ok(())
}
