//! A run, from empty topics to a result: fill, warm up, measure, drain, count, clean.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior};

use crate::consume::{Consumers, Groups, ORDERED_PAIRS_MAX};
use crate::driver::{ConsumeMode, Driver};
use crate::drops;
use crate::error::BenchError;
use crate::meter::{Counts, Latency};
use crate::payload::Payloads;
use crate::process::{self, Machine, Taken};
use crate::produce::{Load, Producers};
use crate::result::{FORMAT, Phase, RunResult, ServerUse, Summary, Window, units};
use crate::scene::Scene;
use crate::target::Target;
use crate::workload::Workload;

/// What is missing is waited for as long as something still comes, and then for so long.
const QUIET: Duration = Duration::from_secs(10);

/// All in all what is missing is waited for so long: consumers at half the speed of producers would else take as long again.
const DRAIN_MAX: Duration = Duration::from_secs(600);

/// The same after an interrupt: whoever ends a load early wants to see its result.
const DRAIN_INTERRUPTED_MAX: Duration = Duration::from_secs(60);

/// Between two looks whether anything is missing.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What is not part of the load.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The server's process, if it runs on this machine.
    pub server_pid: Option<u32>,
    /// Whether topics and groups stay.
    pub keeps_topics: bool,
    /// The setting of the target that a sweep changed, and its value.
    pub setting: Option<(String, String)>,
}

/// Told of each second as it ends.
pub trait Watcher {
    /// A second is over.
    fn second(&mut self, window: &Window);
}

/// Runs a load. True in `stop` ends it early: what is on its way is waited for, and there is a result.
pub async fn run(
    workload: &Workload,
    driver: &Driver,
    options: &Options,
    watcher: &mut dyn Watcher,
    stop: watch::Receiver<bool>,
) -> Result<RunResult, BenchError> {
    if let Some(pid) = options.server_pid
        && process::taken(pid).is_none()
    {
        return Err(BenchError::Invalid(format!("--server-pid is {pid}; there is no process of that number here")));
    }
    let machine = Machine::read();
    let producers = workload.topics as usize * workload.producers_per_topic as usize;
    let scene = Arc::new(Scene::new(producers, workload.subscriptions_per_topic as usize, workload.message_size));
    let payloads = Payloads::new(workload, &scene.random)?;
    let started =
        Timestamp::from_millisecond(scene.clock.now().0).map_or_else(|_| String::new(), |now| now.to_string());
    let target = Target::connect(&scene, driver).await?;
    let (topics, groups) = names(workload, scene.run);
    let staged = Staged { workload, driver, options, scene: &scene, target: &target, topics: &topics, groups: &groups };
    let played = staged.play(payloads, watcher, stop).await;
    let left_behind = if options.keeps_topics { Vec::new() } else { target.clean(&topics, &groups).await };
    let (brokers, target_version) = (target.masters.len(), target.version().await);
    target.stop().await;
    let (mut summary, windows, was_interrupted) = played?;
    summary.left_behind = left_behind;
    Ok(RunResult {
        format: FORMAT.to_owned(),
        name: match &options.setting {
            Some((key, value)) => format!("{}, {key}={value}", workload.name),
            None => workload.name.clone(),
        },
        started,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        target_version,
        brokers,
        machine,
        workload: workload.clone(),
        driver: driver.clone(),
        setting: options.setting.clone(),
        was_interrupted,
        summary,
        windows,
        units: units(),
    })
}

/// Names of topics, and of their groups, that no other run has.
fn names(workload: &Workload, run: u64) -> (Vec<String>, Vec<Vec<String>>) {
    let topics: Vec<String> = (0..workload.topics).map(|topic| format!("bench-{run:016x}-{topic}")).collect();
    let of_topic =
        |topic: &String| (0..workload.subscriptions_per_topic).map(|group| format!("{topic}-group-{group}")).collect();
    let groups = topics.iter().map(of_topic).collect();
    (topics, groups)
}

/// How a load ended.
struct Ending {
    /// Messages that were due and never sent.
    unsent: u64,
    /// Before all was consumed, or had been waited for.
    is_cut_off: bool,
}

struct Staged<'a> {
    workload: &'a Workload,
    driver: &'a Driver,
    options: &'a Options,
    scene: &'a Arc<Scene>,
    target: &'a Target,
    topics: &'a [String],
    groups: &'a [Vec<String>],
}

impl Staged<'_> {
    async fn play(
        &self,
        payloads: Payloads,
        watcher: &mut dyn Watcher,
        stop: watch::Receiver<bool>,
    ) -> Result<(Summary, Vec<Window>, bool), BenchError> {
        for (topic, groups) in self.topics.iter().zip(self.groups) {
            self.target.create_topic(topic, self.workload.partitions_per_topic, &self.driver.topic_attributes).await?;
            for group in groups {
                self.target.create_group(group).await?;
            }
        }
        let mut producers = Producers::none(self.scene, self.driver, payloads);
        let mut book = Book::new(self.scene, self.options.server_pid, watcher, stop.clone());
        let mut consumers = Consumers::none();
        let played = self.acts(&mut producers, &mut consumers, &mut book).await;
        // Nobody may be left consuming or sending, also when the load could not be played to its end.
        consumers.stop().await;
        producers.stop().await;
        let Ending { unsent, is_cut_off } = played?;
        let mut summary = book.summary();
        summary.asked_rate = self.workload.producer_rate;
        summary.messages = self.scene.ledger.tally();
        if is_cut_off {
            // What is left is not lost: nobody waited for it.
            let tally = &mut summary.messages;
            let unanswered = tally.sent.saturating_sub(tally.acknowledged + tally.failed + tally.untraced);
            tally.untraced += std::mem::take(&mut tally.lost) + unanswered;
        }
        summary.quiet_seconds = self.quiet().as_secs_f64();
        summary.due_and_never_sent = unsent;
        summary.disordered = self.is_order_checked().then(|| self.scene.disordered());
        summary.stored = self.target.stored(self.topics).await.ok();
        let was_interrupted = *stop.borrow();
        Ok((summary, book.windows, was_interrupted))
    }

    /// The load itself.
    async fn acts(
        &self,
        producers: &mut Producers,
        consumers: &mut Consumers,
        book: &mut Book<'_>,
    ) -> Result<Ending, BenchError> {
        let workload = self.workload;
        producers.start(self.topics, workload.producers_per_topic).await?;
        let rate = Some(workload.producer_rate).filter(|rate| *rate > 0.0);
        let duration = minutes(workload.test_duration_minutes);
        let load = match workload.backlog_messages() {
            0 => {
                self.start(consumers, true).await?;
                self.scene.open_gate();
                let mut load = producers.run(rate, Some(workload.messages).filter(|messages| *messages > 0))?;
                book.open();
                let is_done =
                    book.during(Phase::Warmup, minutes(workload.warmup_duration_minutes), load.finished()).await;
                if !is_done {
                    book.during(Phase::Measure, duration, load.finished()).await;
                }
                Some(load)
            }
            backlog => {
                // Before there is anything to hand over from one to the other.
                self.start(consumers, false).await?;
                let mut load = producers.run(None, Some(backlog))?;
                book.open();
                book.during(Phase::Fill, Duration::MAX, load.finished()).await;
                load.close();
                load.finished().await;
                let load = rate.map(|rate| producers.run(Some(rate), None)).transpose()?;
                book.restart();
                self.scene.open_gate();
                if load.is_none() {
                    let is_done = book.during(Phase::Measure, duration, drained(self.scene, self.quiet())).await;
                    return Ok(Ending { unsent: 0, is_cut_off: !is_done || book.is_stopped() });
                }
                book.during(Phase::Measure, duration, std::future::pending()).await;
                load
            }
        };
        Ok(match load {
            Some(load) => self.wind_up(book, load).await,
            None => Ending { unsent: 0, is_cut_off: false },
        })
    }

    /// Waits for answers and messages that are on their way.
    async fn wind_up(&self, book: &mut Book<'_>, mut load: Load) -> Ending {
        let unsent = load.close();
        let mut is_done = false;
        let rest = async {
            load.finished().await;
            if self.workload.subscriptions_per_topic > 0 {
                drained(self.scene, self.quiet()).await;
            }
            is_done = true;
        };
        let limit = if book.is_stopped() { DRAIN_INTERRUPTED_MAX } else { DRAIN_MAX };
        book.during(Phase::Drain, limit.max(self.quiet()), rest).await;
        Ending { unsent, is_cut_off: !is_done }
    }

    /// How long after the last message a missing one is given up. What was popped and got lost on its way comes again when it is
    /// no longer hidden.
    fn quiet(&self) -> Duration {
        match self.driver.consume_mode {
            ConsumeMode::Pull | ConsumeMode::Push => QUIET,
            ConsumeMode::Pop => QUIET + Duration::from_millis(self.driver.pop_invisible_millis.unsigned_abs()),
        }
    }

    async fn start(&self, consumers: &mut Consumers, has_latency: bool) -> Result<(), BenchError> {
        let wanted = Groups {
            topics: self.topics,
            groups: self.groups,
            members: self.workload.consumer_per_subscription as usize,
            has_latency,
            is_order_checked: self.is_order_checked(),
        };
        consumers.start(self.scene, self.driver, &wanted).await
    }

    fn is_order_checked(&self) -> bool {
        let lanes = u64::from(self.workload.producers_per_topic) * self.driver.in_flight as u64;
        let queues =
            u64::from(self.workload.partitions_per_topic) * self.workload.groups() * self.target.masters.len() as u64;
        self.driver.promises_order() && self.workload.groups() > 0 && lanes.saturating_mul(queues) <= ORDERED_PAIRS_MAX
    }
}

fn minutes(minutes: f64) -> Duration {
    Duration::try_from_secs_f64(minutes * 60.0).unwrap_or(Duration::MAX)
}

/// Ends when every group has what was acknowledged, or nothing has come for a while.
async fn drained(scene: &Scene, quiet: Duration) {
    let mut last = (u64::MAX, Instant::now());
    loop {
        let outstanding = scene.ledger.outstanding();
        if outstanding == 0 || (outstanding >= last.0 && last.1.elapsed() > quiet) {
            return;
        }
        if outstanding < last.0 {
            last = (outstanding, Instant::now());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Keeps the figures, second by second.
struct Book<'a> {
    scene: &'a Scene,
    watcher: &'a mut dyn Watcher,
    server_pid: Option<u32>,
    stop: watch::Receiver<bool>,
    tick: Interval,
    windows: Vec<Window>,
    /// When the window began that is open now, and what the processes had taken then.
    opened: (Duration, Option<Taken>, Taken),
    produced: Counts,
    consumed: Counts,
    /// Of the whole run.
    all_produced: Counts,
    all_consumed: Counts,
    measured_seconds: f64,
    server: ServerUse,
    /// Its process is gone, or another one has its number.
    has_server_ended: bool,
    loader_cpu_seconds: f64,
}

impl<'a> Book<'a> {
    fn new(
        scene: &'a Scene,
        server_pid: Option<u32>,
        watcher: &'a mut dyn Watcher,
        stop: watch::Receiver<bool>,
    ) -> Book<'a> {
        let mut tick = tokio::time::interval(Duration::from_secs(1));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Book {
            scene,
            watcher,
            server_pid,
            stop,
            tick,
            windows: Vec::new(),
            opened: (Duration::ZERO, None, Taken::default()),
            produced: Counts::default(),
            consumed: Counts::default(),
            all_produced: Counts::default(),
            all_consumed: Counts::default(),
            measured_seconds: 0.0,
            server: ServerUse::default(),
            has_server_ended: false,
            loader_cpu_seconds: 0.0,
        }
    }

    /// A window opens after a time that belongs to none.
    fn restart(&mut self) {
        self.all_produced.add(&self.scene.produced.take());
        self.all_consumed.add(&self.scene.consumed.take());
        self.open();
    }

    fn is_stopped(&self) -> bool {
        *self.stop.borrow()
    }

    fn open(&mut self) {
        let own = process::taken(std::process::id()).unwrap_or_default();
        self.opened = (self.scene.clock.elapsed(), self.server_pid.and_then(process::taken), own);
        self.tick.reset();
    }

    /// Keeps the book of one phase: until its time is over, or something ends it. True if something did.
    async fn during(&mut self, phase: Phase, time: Duration, end: impl Future<Output = ()>) -> bool {
        if time.is_zero() {
            return false;
        }
        // Far enough away; an instant cannot be `Duration::MAX` from now.
        let until = Instant::now() + time.min(Duration::from_secs(3600 * 24 * 365));
        let mut stop = self.stop.clone();
        let stopped = async {
            // What ended the load does not end the wait for what is on its way. Whoever could say so may also be gone.
            let is_old = phase == Phase::Drain && *stop.borrow();
            if is_old || stop.wait_for(|is_over| *is_over).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::pin!(end, stopped);
        let is_ended = loop {
            tokio::select! {
                biased;
                () = &mut end => break true,
                () = &mut stopped => break true,
                () = tokio::time::sleep_until(until) => break false,
                _ = self.tick.tick() => self.close(phase),
            }
        };
        self.close(phase);
        is_ended
    }

    /// The open window ends, and the next one begins.
    fn close(&mut self, phase: Phase) {
        let (at, server_before, own_before) = self.opened;
        self.open();
        let (now, server, own) = self.opened;
        let seconds = (now - at).as_secs_f64().max(1e-6);
        let (produced, consumed) = (self.scene.produced.take(), self.scene.consumed.take());
        let own_seconds = own.cpu_seconds - own_before.cpu_seconds;
        let is_same = |before: Taken| server.is_some_and(|now| now.started_ticks == before.started_ticks);
        self.has_server_ended |= server_before.is_some_and(|before| !is_same(before));
        let (server, server_before) = if self.has_server_ended { (None, None) } else { (server, server_before) };
        let server_seconds = server.zip(server_before).map(|(now, before)| now.cpu_seconds - before.cpu_seconds);
        let window = Window {
            at_seconds: at.as_secs_f64(),
            seconds,
            phase,
            sent: produced.messages,
            failed: produced.failed(),
            received: consumed.messages,
            publish: Latency::of(&produced.latency).map(Into::into),
            end_to_end: Latency::of(&consumed.latency).map(Into::into),
            outstanding: self.scene.ledger.outstanding(),
            server_cpu_cores: server_seconds.map(|taken| taken / seconds),
            server_resident_bytes: server.map(|server| server.resident_bytes),
            loader_cpu_cores: own_seconds / seconds,
        };
        self.all_produced.add(&produced);
        self.all_consumed.add(&consumed);
        if phase == Phase::Measure {
            self.produced.add(&produced);
            self.consumed.add(&consumed);
            self.measured_seconds += seconds;
            self.loader_cpu_seconds += own_seconds;
            self.server.cpu_seconds += server_seconds.unwrap_or(0.0);
            let server = server.unwrap_or_default();
            self.server.resident_bytes_max = self.server.resident_bytes_max.max(server.resident_bytes);
            self.server.anonymous_bytes_max = self.server.anonymous_bytes_max.max(server.anonymous_bytes);
        }
        self.watcher.second(&window);
        self.windows.push(window);
    }

    fn summary(&mut self) -> Summary {
        // What came after the last window.
        self.all_produced.add(&self.scene.produced.take());
        self.all_consumed.add(&self.scene.consumed.take());
        let seconds = self.measured_seconds.max(1e-6);
        let (sent, received) = (self.produced.messages, self.consumed.messages);
        let expected = sent as f64 * self.scene.ledger.groups() as f64;
        let more = sent.max(received) as f64 / 1e6;
        let server = ServerUse {
            cpu_cores: self.server.cpu_seconds / seconds,
            cpu_seconds_per_million: (more > 0.0).then(|| self.server.cpu_seconds / more),
            ..self.server
        };
        Summary {
            measured_seconds: self.measured_seconds,
            produce_rate: sent as f64 / seconds,
            produce_bytes_rate: self.produced.bytes as f64 / seconds,
            consume_rate: received as f64 / seconds,
            consume_bytes_rate: self.consumed.bytes as f64 / seconds,
            consume_per_produce: (expected > 0.0).then(|| received as f64 / expected),
            publish: Latency::of(&self.produced.latency),
            end_to_end: Latency::of(&self.consumed.latency),
            produce_failures: self.all_produced.failures.clone(),
            produce_remarks: self.all_produced.remarks.clone(),
            consume_failures: self.all_consumed.failures.clone(),
            server: self.server_pid.map(|_| server),
            server_ended: self.has_server_ended,
            loader_cpu_cores: self.loader_cpu_seconds / seconds,
            produce_steadiness: drops::find(&self.rates(|window| window.sent)),
            consume_steadiness: drops::find(&self.rates(|window| window.received)),
            ..Summary::default()
        }
    }

    /// The rates of the measured seconds.
    fn rates(&self, count: impl Fn(&Window) -> u64) -> Vec<f64> {
        let measured = self.windows.iter().filter(|window| window.phase == Phase::Measure);
        drops::by_second(measured.map(|window| (window.seconds, count(window))))
    }
}
