//! The figures of a run, second by second, and what they come to.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior};

use crate::drops;
use crate::error::BenchError;
use crate::meter::{Counts, Latency};
use crate::process::{self, ServerProcess, Taken};
use crate::result::{Phase, ServerUse, Summary, Window};
use crate::scene::Scene;
use crate::team::Team;

/// What time it was, and what had been taken until then.
pub struct Moment {
    /// Since the run's beginning.
    at: Duration,
    server: Option<Taken>,
    /// CPU-seconds of this process and of those that play the load.
    loader: f64,
}

impl Moment {
    /// This one.
    pub fn now(scene: &Scene, server: Option<&ServerProcess>, players: &[u32]) -> Moment {
        let loaders = players.iter().copied().chain([std::process::id()]);
        let loader = loaders.filter_map(process::taken).map(|taken| taken.cpu_seconds).sum();
        Moment { at: scene.clock.elapsed(), server: server.and_then(ServerProcess::taken), loader }
    }
}

/// Told of each second as it ends.
pub trait Watcher {
    /// A second is over.
    fn second(&mut self, window: &Window);
}

/// The figures of a run so far.
pub struct Book<'a> {
    scene: &'a Scene,
    watcher: &'a mut dyn Watcher,
    server_process: Option<ServerProcess>,
    /// The processes that play the load, if this one does not itself.
    team: Option<Team>,
    stop: watch::Receiver<bool>,
    tick: Interval,
    /// Those that are over.
    pub windows: Vec<Window>,
    /// When the window began that is open now.
    opened: Moment,
    produced: Counts,
    consumed: Counts,
    /// Of the whole run.
    all_produced: Counts,
    all_consumed: Counts,
    measured_seconds: f64,
    server: ServerUse,
    /// Its process is gone, or another one has its number.
    has_server_ended: bool,
    /// Others that came after the first, where that is expected.
    server_restarts: u64,
    /// The last that was seen.
    server_seen: Option<Taken>,
    loader_cpu_seconds: f64,
}

impl<'a> Book<'a> {
    /// Empty. True in `stop` ends each phase.
    pub fn new(
        scene: &'a Scene,
        server_process: Option<ServerProcess>,
        team: Option<Team>,
        watcher: &'a mut dyn Watcher,
        stop: watch::Receiver<bool>,
    ) -> Book<'a> {
        let mut tick = tokio::time::interval(Duration::from_secs(1));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Book {
            scene,
            watcher,
            server_process,
            team,
            stop,
            tick,
            windows: Vec::new(),
            opened: Moment { at: Duration::ZERO, server: None, loader: 0.0 },
            produced: Counts::default(),
            consumed: Counts::default(),
            all_produced: Counts::default(),
            all_consumed: Counts::default(),
            measured_seconds: 0.0,
            server: ServerUse::default(),
            has_server_ended: false,
            server_restarts: 0,
            server_seen: None,
            loader_cpu_seconds: 0.0,
        }
    }

    /// A window opens after a time that belongs to none.
    pub async fn restart(&mut self) -> Result<(), BenchError> {
        let now = self.gather().await?;
        self.all_produced.add(&self.scene.produced.take());
        self.all_consumed.add(&self.scene.consumed.take());
        self.open_at(now);
        Ok(())
    }

    /// What other processes know comes here. Returns until when it has happened.
    async fn gather(&self) -> Result<Moment, BenchError> {
        match &self.team {
            Some(team) => team.gather(self.server_process.clone()).await,
            None => Ok(Moment::now(self.scene, self.server_process.as_ref(), &[])),
        }
    }

    /// Whether somebody ended the load early.
    pub fn is_stopped(&self) -> bool {
        *self.stop.borrow()
    }

    /// The first window begins.
    pub fn open(&mut self) {
        let players = self.team.as_ref().map_or(&[][..], |team| &team.pids);
        self.open_at(Moment::now(self.scene, self.server_process.as_ref(), players));
    }

    fn open_at(&mut self, moment: Moment) -> Moment {
        self.tick.reset();
        std::mem::replace(&mut self.opened, moment)
    }

    /// Keeps the book of one phase: until its time is over, or something ends it. True if something did. An error: a process that plays
    /// the load has ended.
    pub async fn during(
        &mut self,
        phase: Phase,
        time: Duration,
        end: impl Future<Output = ()>,
    ) -> Result<bool, BenchError> {
        if time.is_zero() {
            return Ok(false);
        }
        let team = self.team.clone();
        let failure = async {
            match &team {
                Some(team) => team.failure().await,
                None => std::future::pending().await,
            }
        };
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
        tokio::pin!(end, stopped, failure);
        let is_ended = loop {
            tokio::select! {
                biased;
                error = &mut failure => return Err(error),
                () = &mut end => break true,
                () = &mut stopped => break true,
                () = tokio::time::sleep_until(until) => break false,
                _ = self.tick.tick() => self.close(phase).await?,
            }
        };
        self.close(phase).await?;
        Ok(is_ended)
    }

    /// The open window ends, and the next one begins.
    async fn close(&mut self, phase: Phase) -> Result<(), BenchError> {
        let now = self.gather().await?;
        let Moment { at, server: server_before, loader: own_before } = self.open_at(now);
        let Moment { at: now, server, loader: own } = self.opened;
        let seconds = now.saturating_sub(at).as_secs_f64().max(1e-6);
        let (produced, consumed) = (self.scene.produced.take(), self.scene.consumed.take());
        let own_seconds = own - own_before;
        let (server, server_seconds) = self.server_since(server_before.as_ref(), server);
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
        Ok(())
    }

    /// The server's process, and the CPU-seconds that it took since `before`. Nothing if it is another one, and none was expected.
    fn server_since(&mut self, before: Option<&Taken>, now: Option<Taken>) -> (Option<Taken>, Option<f64>) {
        let is_same = |before: &Taken| now.is_some_and(|now| now.started_ticks == before.started_ticks);
        let seconds = now.zip(before.copied()).map(|(now, before)| now.cpu_seconds - before.cpu_seconds);
        let (server, seconds) = match &self.server_process {
            Some(ServerProcess::Named(_)) => {
                let is_another = now.is_some() && self.server_seen.as_ref().is_some_and(|seen| !is_same(seen));
                self.server_restarts += u64::from(is_another);
                // Of one that came since, all.
                let own = now.map(|now| now.cpu_seconds);
                (now, if before.is_some_and(is_same) { seconds } else { own.filter(|_| is_another) })
            }
            Some(ServerProcess::Pid(_)) | None => {
                self.has_server_ended |= before.is_some_and(|before| !is_same(before));
                if self.has_server_ended { (None, None) } else { (now, seconds) }
            }
        };
        self.server_seen = server.or(self.server_seen);
        (server, seconds)
    }

    /// What came of the phases; what the accounting knows is left open.
    pub fn summary(&mut self) -> Summary {
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
            server: self.server_process.as_ref().map(|_| server),
            server_ended: self.has_server_ended,
            server_restarts: self.server_restarts,
            loader_cpu_cores: self.loader_cpu_seconds / seconds,
            loader_cpu_seconds_per_million: (more > 0.0).then(|| self.loader_cpu_seconds / more),
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
