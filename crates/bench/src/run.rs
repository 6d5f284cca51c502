//! A run, from empty topics to a result: fill, warm up, measure, drain, count, clean.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::book::{Book, Watcher};
use crate::crew::Crew;
use crate::driver::{ConsumeMode, Driver};
use crate::error::BenchError;
use crate::hands::{Hands, Part, Play};
use crate::machine::Machine;
use crate::payload::Payloads;
use crate::process::{Disk, ServerProcess};
use crate::reader::ORDERED_PAIRS_MAX;
use crate::result::{FORMAT, Phase, RunResult, Summary, Window, units};
use crate::scene::Scene;
use crate::target::Target;
use crate::team::{Processes, Team};
use crate::workload::Workload;

/// What is missing is waited for as long as something still comes, and then for so long.
const QUIET: Duration = Duration::from_secs(10);

/// All in all what is missing is waited for so long: consumers at half the speed of producers would else take as long again.
const DRAIN_MAX: Duration = Duration::from_secs(600);

/// The same after an interrupt: whoever ends a load early wants to see its result.
const DRAIN_INTERRUPTED_MAX: Duration = Duration::from_secs(60);

/// Between two looks whether anything is missing.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Between two looks at most, where each is a round through other processes.
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_millis(500);

/// What is not part of the load.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The server's process, if it runs on this machine.
    pub server: Option<ServerProcess>,
    /// Whether topics and groups stay.
    pub keeps_topics: bool,
    /// The setting of the target that a sweep changed, and its value.
    pub setting: Option<(String, String)>,
    /// What the disk did before the run.
    pub disk: Option<Disk>,
    /// The processes that play the load; none: this one does.
    pub processes: Option<Processes>,
}

/// Runs a load. True in `stop` ends it early: what is on its way is waited for, and there is a result.
pub async fn run(
    workload: &Workload,
    driver: &Driver,
    options: &Options,
    watcher: &mut dyn Watcher,
    stop: watch::Receiver<bool>,
) -> Result<RunResult, BenchError> {
    match &options.server {
        Some(server) if server.taken().is_some() => {}
        Some(ServerProcess::Pid(pid)) => {
            return Err(BenchError::Invalid(format!("--server-pid is {pid}; there is no process of that number here")));
        }
        Some(ServerProcess::Named(file)) => {
            let file = file.display();
            return Err(BenchError::Invalid(format!(
                "--server-pid is {file}, a file that names no process of this machine"
            )));
        }
        None => {}
    }
    let server = options.server.as_ref().and_then(ServerProcess::pid);
    let machine = Machine::read().with_store(options.disk.clone(), server);
    let producers = workload.topics as usize * workload.producers_per_topic as usize;
    let scene = Arc::new(Scene::new(producers, workload.subscriptions_per_topic as usize, workload.message_size));
    let payloads = Payloads::new(workload, &scene.random)?;
    let started =
        Timestamp::from_millisecond(scene.clock.now().0).map_or_else(|_| String::new(), |now| now.to_string());
    let target = Target::connect(&scene, driver).await?;
    let (topics, groups) = names(workload, scene.run);
    let is_order_checked = is_order_checked(workload, driver, target.masters.len());
    let play = Play { workload: workload.clone(), driver: driver.clone(), topics, groups, is_order_checked };
    let staged = Staged { play: &play, options, scene: &scene, target: &target };
    let played = staged.play(payloads, watcher, stop).await;
    let left_behind = if options.keeps_topics { Vec::new() } else { target.clean(&play.topics, &play.groups).await };
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
        processes: options.processes.as_ref().map_or(1, |processes| processes.count),
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
    play: &'a Play,
    options: &'a Options,
    scene: &'a Arc<Scene>,
    target: &'a Target,
}

impl Staged<'_> {
    async fn play(
        &self,
        payloads: Payloads,
        watcher: &mut dyn Watcher,
        stop: watch::Receiver<bool>,
    ) -> Result<(Summary, Vec<Window>, bool), BenchError> {
        let Play { workload, driver, topics, groups, .. } = self.play;
        for (topic, groups) in topics.iter().zip(groups) {
            self.target.create_topic(topic, workload.partitions_per_topic, &driver.topic_attributes).await?;
            for group in groups {
                self.target.create_group(group).await?;
            }
        }
        // Only now: brokers tell of several new topics at once.
        for topic in topics {
            self.target.await_topic(topic, workload.partitions_per_topic).await?;
        }
        let mut crew = match &self.options.processes {
            Some(processes) => Crew::Team(Team::start(processes, self.scene, self.play).await?),
            None => Crew::Own(Box::new(Hands::new(self.scene, self.play.clone(), Part::WHOLE, payloads))),
        };
        let mut book = Book::new(self.scene, self.options.server.clone(), crew.team().cloned(), watcher, stop.clone());
        let played = match self.acts(&mut crew, &mut book).await {
            Ok(ending) => gather_all(&crew).await.map(|()| ending),
            Err(error) => Err(error),
        };
        // Nobody may be left consuming or sending, also when the load could not be played to its end.
        crew.stop().await;
        let Ending { unsent, is_cut_off } = played?;
        let mut summary = book.summary();
        summary.asked_rate = workload.producer_rate;
        summary.messages = self.scene.ledger.tally();
        if is_cut_off {
            // What is left is not lost: nobody waited for it.
            let tally = &mut summary.messages;
            let unanswered = tally.sent.saturating_sub(tally.acknowledged + tally.failed + tally.untraced);
            tally.untraced += std::mem::take(&mut tally.lost) + unanswered;
        }
        summary.quiet_seconds = self.quiet().as_secs_f64();
        summary.due_and_never_sent = unsent;
        summary.disordered = self.play.is_order_checked.then(|| self.scene.disordered());
        summary.stored = self.target.stored(topics).await.ok();
        let was_interrupted = *stop.borrow();
        Ok((summary, book.windows, was_interrupted))
    }

    /// The load itself.
    async fn acts(&self, crew: &mut Crew, book: &mut Book<'_>) -> Result<Ending, BenchError> {
        let workload = &self.play.workload;
        crew.start_producers().await?;
        let rate = Some(workload.producer_rate).filter(|rate| *rate > 0.0);
        let duration = minutes(workload.test_duration_minutes);
        match workload.backlog_messages() {
            0 => {
                self.start_consumers(crew, true).await?;
                crew.open_gate(self.scene).await?;
                // Before anything is due: else its first messages would count, and the time in which they were due would not.
                book.open();
                crew.run(self.scene, rate, Some(workload.messages).filter(|messages| *messages > 0)).await?;
                let warmup = minutes(workload.warmup_duration_minutes);
                let is_done = book.during(Phase::Warmup, warmup, crew.finished()).await?;
                if !is_done {
                    book.during(Phase::Measure, duration, crew.finished()).await?;
                }
            }
            backlog => {
                // Before there is anything to hand over from one to the other.
                self.start_consumers(crew, false).await?;
                book.open();
                crew.run(self.scene, None, Some(backlog)).await?;
                book.during(Phase::Fill, Duration::MAX, crew.finished()).await?;
                crew.close().await?;
                crew.until_finished().await?;
                if rate.is_some() {
                    crew.run(self.scene, rate, None).await?;
                }
                book.restart().await?;
                crew.open_gate(self.scene).await?;
                if rate.is_none() {
                    let all = drained(self.scene, crew.team(), self.quiet());
                    let is_done = book.during(Phase::Measure, duration, all).await?;
                    return Ok(Ending { unsent: 0, is_cut_off: !is_done || book.is_stopped() });
                }
                book.during(Phase::Measure, duration, std::future::pending()).await?;
            }
        }
        self.wind_up(crew, book).await
    }

    /// Waits for answers and messages that are on their way.
    async fn wind_up(&self, crew: &mut Crew, book: &mut Book<'_>) -> Result<Ending, BenchError> {
        let unsent = crew.close().await?;
        let mut is_done = false;
        let rest = async {
            crew.finished().await;
            if self.play.workload.subscriptions_per_topic > 0 {
                drained(self.scene, crew.team(), self.quiet()).await;
            }
            is_done = true;
        };
        let limit = if book.is_stopped() { DRAIN_INTERRUPTED_MAX } else { DRAIN_MAX };
        book.during(Phase::Drain, limit.max(self.quiet()), rest).await?;
        Ok(Ending { unsent, is_cut_off: !is_done })
    }

    /// How long after the last message a missing one is given up. What was popped and got lost on its way comes again when it is
    /// no longer hidden.
    fn quiet(&self) -> Duration {
        let driver = &self.play.driver;
        match driver.consume_mode {
            ConsumeMode::Pull | ConsumeMode::Push => QUIET,
            ConsumeMode::Pop => QUIET + Duration::from_millis(driver.pop_invisible_millis.unsigned_abs()),
        }
    }

    async fn start_consumers(&self, crew: &mut Crew, has_latency: bool) -> Result<(), BenchError> {
        let queues = self.target.masters.len() * self.play.workload.partitions_per_topic as usize;
        crew.start_consumers(self.play, queues, has_latency).await
    }
}

/// Whether it is promised that consumers get messages in their order, and can be looked at.
fn is_order_checked(workload: &Workload, driver: &Driver, masters: usize) -> bool {
    let lanes = u64::from(workload.producers_per_topic) * driver.in_flight as u64;
    let queues = u64::from(workload.partitions_per_topic) * workload.groups() * masters as u64;
    driver.promises_order() && workload.groups() > 0 && lanes.saturating_mul(queues) <= ORDERED_PAIRS_MAX
}

/// What other processes received is entered a round after it was told.
async fn gather_all(crew: &Crew) -> Result<(), BenchError> {
    if let Some(team) = crew.team() {
        team.gather(None).await?;
        team.gather(None).await?;
    }
    Ok(())
}

fn minutes(minutes: f64) -> Duration {
    Duration::try_from_secs_f64(minutes * 60.0).unwrap_or(Duration::MAX)
}

/// Ends when every group has what was acknowledged, or nothing has come for a while.
async fn drained(scene: &Scene, team: Option<&Team>, quiet: Duration) {
    let mut last = (u64::MAX, Instant::now());
    let mut look = (u64::MAX, Instant::now());
    let mut pause = LOOK_EVERY;
    loop {
        // A failure ends the wait by another way.
        if let Some(team) = team
            && team.gather(None).await.is_err()
        {
            std::future::pending::<()>().await;
        }
        let outstanding = scene.ledger.outstanding();
        if outstanding == 0 || (outstanding >= last.0 && last.1.elapsed() > quiet) {
            return;
        }
        if outstanding < last.0 {
            last = (outstanding, Instant::now());
        }
        if team.is_some() {
            // Rounds cost processor time of the load that is measured.
            pause = next_look(look.0, outstanding, pause.max(look.1.elapsed()));
            look = (outstanding, Instant::now());
        }
        tokio::time::sleep(pause).await;
    }
}

/// The pause before the next round, when so much was missing before and now, with `took` in between: often enough not to be late when
/// nothing is missing any more.
fn next_look(before: u64, now: u64, took: Duration) -> Duration {
    let pause = match before.checked_sub(now) {
        // What the first round told is entered only by the second.
        Some(0) | None => took.as_secs_f64() * 2.0,
        // What is left takes as long again for each as what came. A quarter of it, since what is told is a round old.
        Some(came) => took.as_secs_f64() * (now as f64 / came as f64) / 4.0,
    };
    Duration::try_from_secs_f64(pause).unwrap_or(LOOK_AT_LEAST_EVERY).clamp(LOOK_EVERY, LOOK_AT_LEAST_EVERY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_rare_while_much_is_missing_and_frequent_before_the_end() {
        let took = Duration::from_millis(100);
        assert_eq!(next_look(1_000_000, 990_000, took), LOOK_AT_LEAST_EVERY);
        assert_eq!(next_look(30_000, 20_000, took), Duration::from_millis(50));
        assert_eq!(next_look(11_000, 1000, took), LOOK_EVERY);
        assert_eq!(next_look(1000, 1000, took), Duration::from_millis(200));
        assert_eq!(next_look(1000, 1000, LOOK_AT_LEAST_EVERY), LOOK_AT_LEAST_EVERY);
        // More is missing than before: producers are faster.
        assert_eq!(next_look(1000, 2000, took), Duration::from_millis(200));
    }
}
