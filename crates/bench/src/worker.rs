//! A process that plays a part of a load, started by the one that began it (`team.rs`).

use std::io::{Write, stdin, stdout};
use std::sync::Arc;
use std::time::Duration;

use env::Clock;
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::mpsc;

use crate::accounts::{Accounts, Sheet};
use crate::error::BenchError;
use crate::hands::Hands;
use crate::payload::Payloads;
use crate::scene::Scene;
use crate::words::{Answer, Begin, Notes, Word};

/// Words that wait; there is one at a time.
const WORDS_MAX: usize = 4;

/// The machine's monotonic clock, which is the same for all processes.
pub fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    // It counts from the machine's start, so neither is negative.
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Does what standard input says, until it ends.
pub async fn work() -> Result<(), BenchError> {
    let (say, mut words) = mpsc::channel(WORDS_MAX);
    std::thread::spawn(move || listen(&say));
    let Some(Word::Begin(begin)) = words.recv().await else {
        let text = "a load process is started by `gantry bench run --processes`, and not by hand";
        return Err(BenchError::Invalid(text.to_owned()));
    };
    if let Err(error) = play(*begin, words).await {
        answer(Answer::Failed(error.to_string())).await;
    }
    Ok(())
}

/// Hears words. When whoever began the load is gone this process ends too, whatever it does just now: starting consumers, or stopping
/// them, may take long.
fn listen(say: &mpsc::Sender<Word>) {
    let mut is_begun = false;
    for line in stdin().lines().map_while(Result::ok) {
        match serde_json::from_str(&line) {
            Ok(word) => {
                is_begun = true;
                if say.blocking_send(word).is_err() {
                    return;
                }
            }
            Err(error) if is_begun => {
                write(&Answer::Failed(format!("it was told what it cannot read: {error}")));
                std::process::exit(1);
            }
            Err(_) => return,
        }
    }
    if is_begun {
        std::process::exit(1);
    }
}

async fn play(begin: Begin, mut words: mpsc::Receiver<Word>) -> Result<(), BenchError> {
    let Begin { mut play, keys, run, begun, part } = begin;
    if let Some((access_key, secret_key)) = keys {
        (play.driver.access_key, play.driver.secret_key) = (Some(access_key), Some(secret_key));
    }
    let workload = &play.workload;
    let producers = workload.topics as usize * workload.producers_per_topic as usize;
    let clock = Clock::begun(monotonic().saturating_sub(begun));
    let groups = workload.subscriptions_per_topic as usize;
    let scene = Arc::new(Scene::part(run, clock, producers, groups, workload.message_size));
    let payloads = Payloads::new(workload, &scene.random)?;
    let mut hands = Hands::new(&scene, play, part, payloads);
    answer(Answer::Done).await;
    // The load that runs and has not ended yet.
    let mut running = None;
    loop {
        let word = tokio::select! {
            word = words.recv() => word,
            () = hands.finished(), if running.is_some() => {
                if let Some(load) = running.take() {
                    answer(Answer::Finished(load)).await;
                }
                continue;
            }
        };
        let done = match word {
            // It was the first one.
            Some(Word::Begin(_)) => Answer::Done,
            Some(Word::StartProducers) => {
                hands.start_producers().await?;
                Answer::Done
            }
            Some(Word::StartConsumers { has_latency }) => {
                hands.start_consumers(has_latency).await?;
                Answer::Done
            }
            Some(Word::Shares) => Answer::Shares(hands.shares()),
            Some(Word::OpenGate) => {
                scene.open_gate();
                Answer::Done
            }
            Some(Word::Run { load, begin_at, rate, messages }) => {
                hands.run(begin_at, rate, messages)?;
                running = Some(load);
                Answer::Done
            }
            Some(Word::Take) => Answer::Taken(Box::new(notes(&scene))),
            Some(Word::Close) => Answer::Unsent(hands.close()),
            Some(Word::Stop) => {
                hands.stop().await;
                answer(Answer::Done).await;
                return Ok(());
            }
            // Whoever began the load is gone.
            None => return Ok(()),
        };
        answer(done).await;
    }
}

fn notes(scene: &Scene) -> Notes {
    let sheet = match &scene.ledger {
        Accounts::Part(notes) => notes.take(),
        // A worker's never is.
        Accounts::Whole(_) => Sheet::default(),
    };
    let (produced, consumed) = (scene.produced.take(), scene.consumed.take());
    Notes { produced, consumed, disordered: scene.take_disordered(), sheet }
}

/// Says something; beside the workers of the runtime, since a second's notes may fill the pipe.
async fn answer(answer: Answer) {
    // A panic has told itself.
    let _ = tokio::task::spawn_blocking(move || write(&answer)).await;
}

fn write(answer: &Answer) {
    let Ok(mut line) = serde_json::to_string(answer) else { return };
    line.push('\n');
    let mut out = stdout().lock();
    // Whoever does not listen any more has closed standard input too, which ends us.
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}
