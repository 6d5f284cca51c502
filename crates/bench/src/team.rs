//! Several processes that play a load together, and what they tell of it.
//!
//! This process keeps the one book of the run: in rounds it takes from each process what happened there since the round before, and
//! enters it into its own scene. One process that ends before its time ends the run.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{Mutex, mpsc, oneshot, watch};

use crate::accounts::{Accounts, Collected};
use crate::error::BenchError;
use crate::hands::{Part, Play};
use crate::meter::Counts;
use crate::scene::Scene;
use crate::words::{Answer, Begin, Word};
use crate::worker::monotonic;

/// A process that was told to end has so long.
const LEAVING: Duration = Duration::from_secs(10);

/// How a load is played by several processes.
#[derive(Clone, Debug)]
pub struct Processes {
    /// How many.
    pub count: usize,
    /// The program that each of them is, told `bench worker`.
    pub program: PathBuf,
}

/// The processes. Clones are the same ones.
#[derive(Clone)]
pub struct Team {
    scene: Arc<Scene>,
    members: Vec<mpsc::Sender<Call>>,
    /// Their numbers at the system.
    pub pids: Vec<u32>,
    state: Arc<State>,
    /// Which load runs, counted from 1.
    load: u32,
}

struct State {
    /// The last load of each member that has ended.
    finished: watch::Sender<Vec<u32>>,
    /// Why the run cannot go on.
    failure: watch::Sender<Option<String>>,
    /// Members that have gone.
    gone: watch::Sender<usize>,
    /// One round at a time; held until what it brought is entered.
    round: Mutex<Round>,
}

/// What the last round left over.
#[derive(Default)]
struct Round {
    collected: Collected,
    /// Messages that were counted as received, and had been before: taken off the next count.
    repeated: u64,
}

/// A line for a member, and who waits for its answer.
struct Call {
    line: String,
    is_last: bool,
    answer: oneshot::Sender<Answer>,
}

impl Team {
    /// Starts the processes.
    pub async fn start(processes: &Processes, scene: &Arc<Scene>, play: &Play) -> Result<Team, BenchError> {
        let count = processes.count;
        let state = Arc::new(State {
            finished: watch::Sender::new(vec![0; count]),
            failure: watch::Sender::new(None),
            gone: watch::Sender::new(0),
            round: Mutex::default(),
        });
        let (mut members, mut pids) = (Vec::new(), Vec::new());
        for number in 0..count {
            let started = Command::new(&processes.program)
                .args(["bench", "worker"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                // An interrupt at the terminal is for us alone: we end them when what is on its way has come.
                .process_group(0)
                .kill_on_drop(true)
                .spawn();
            let child = started.map_err(|cause| {
                BenchError::Invalid(format!("load process {} of {count} cannot be started: {cause}", number + 1))
            })?;
            pids.extend(child.id());
            let (call, calls) = mpsc::channel(1);
            members.push(call);
            tokio::spawn(attend(child, number, calls, Arc::clone(&state)));
        }
        let team = Team { scene: Arc::clone(scene), members, pids, state, load: 0 };
        let begin = |process| {
            Word::Begin(Box::new(Begin {
                play: play.clone(),
                keys: play.driver.access_key.clone().zip(play.driver.secret_key.clone()),
                run: scene.run,
                begun: monotonic().saturating_sub(scene.clock.elapsed()),
                part: Part { process, processes: count },
            }))
        };
        team.ask_each((0..count).map(begin)).await?;
        Ok(team)
    }

    /// Begins to send, see [`crate::produce::Producers::run`].
    pub async fn run(
        &mut self,
        begin_at: Duration,
        rate: Option<f64>,
        messages: Option<u64>,
    ) -> Result<(), BenchError> {
        self.load += 1;
        self.tell(Word::Run { load: self.load, begin_at, rate, messages }).await
    }

    /// Ends when all processes have sent all messages of the load, and have their answers.
    pub async fn finished(&self) {
        let mut finished = self.state.finished.subscribe();
        // The sender is here, so it cannot be gone.
        let _ = finished.wait_for(|members| members.iter().all(|load| *load >= self.load)).await;
    }

    /// Ends with the reason when one of the processes has ended before its time.
    pub async fn failure(&self) -> BenchError {
        let mut failure = self.state.failure.subscribe();
        let reason = failure.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
        BenchError::Invalid(reason.unwrap_or_default())
    }

    /// Says the same to all, and waits until it is done.
    pub async fn tell(&self, word: Word) -> Result<(), BenchError> {
        self.ask(word).await.map(|_| ())
    }

    /// Asks all the same.
    pub async fn ask(&self, word: Word) -> Result<Vec<Answer>, BenchError> {
        let line = line(&word)?;
        self.call(self.members.iter().map(|_| line.clone())).await
    }

    async fn ask_each(&self, words: impl Iterator<Item = Word>) -> Result<Vec<Answer>, BenchError> {
        let lines: Result<Vec<String>, BenchError> = words.map(|word| line(&word)).collect();
        self.call(lines?.into_iter()).await
    }

    async fn call(&self, lines: impl Iterator<Item = String>) -> Result<Vec<Answer>, BenchError> {
        let mut awaited = Vec::new();
        for (member, line) in self.members.iter().zip(lines) {
            let (answer, hear) = oneshot::channel();
            if member.send(Call { line, is_last: false, answer }).await.is_err() {
                return Err(self.failure().await);
            }
            awaited.push(hear);
        }
        let mut answers = Vec::new();
        for hear in awaited {
            match hear.await {
                Ok(answer) => answers.push(answer),
                Err(_) => return Err(self.failure().await),
            }
        }
        Ok(answers)
    }

    /// Takes from all what has happened, and enters it here. What is received in one process is entered a round later.
    pub async fn gather(&self) -> Result<(), BenchError> {
        let team = self.clone();
        // A round is never left half way, also if whoever wanted it does not wait for it any more: what was taken would be lost.
        let round = tokio::spawn(async move { team.round().await });
        round.await.unwrap_or_else(|error| Err(BenchError::Invalid(format!("a round failed: {error}"))))
    }

    async fn round(&self) -> Result<(), BenchError> {
        let mut round = self.state.round.lock().await;
        let answers = self.ask(Word::Take).await?;
        let (mut consumed, mut sheets) = (Counts::default(), Vec::new());
        for answer in answers {
            if let Answer::Taken(notes) = answer {
                self.scene.produced.absorb(&notes.produced);
                self.scene.add_disordered(notes.disordered);
                consumed.add(&notes.consumed);
                sheets.push(notes.sheet);
            }
        }
        if let Accounts::Whole(ledger) = &self.scene.ledger {
            round.repeated += round.collected.enter(ledger, self.scene.run, sheets);
        }
        let repeated = round.repeated.min(consumed.messages);
        round.repeated -= repeated;
        consumed.messages -= repeated;
        consumed.bytes = consumed.bytes.saturating_sub(repeated * self.scene.message_bytes);
        self.scene.consumed.absorb(&consumed);
        Ok(())
    }

    /// Ends the processes.
    pub async fn stop(self) {
        let Ok(line) = line(&Word::Stop) else { return };
        for member in &self.members {
            let (answer, _) = oneshot::channel();
            // One that is gone already needs no word.
            let _ = member.send(Call { line: line.clone(), is_last: true, answer }).await;
        }
        let mut gone = self.state.gone.subscribe();
        let members = self.members.len();
        // Those that do not end in time are killed when they are forgotten.
        let _ = tokio::time::timeout(LEAVING * 2, gone.wait_for(|gone| *gone == members)).await;
    }
}

fn line(word: &Word) -> Result<String, BenchError> {
    let mut line = serde_json::to_string(word).map_err(|error| BenchError::Invalid(error.to_string()))?;
    line.push('\n');
    Ok(line)
}

/// Speaks with one process until it ends.
async fn attend(mut child: Child, number: usize, mut calls: mpsc::Receiver<Call>, state: Arc<State>) {
    let (mut waiting, mut is_leaving) = (VecDeque::new(), false);
    let said = converse(&mut child, number, &mut calls, &state, (&mut waiting, &mut is_leaving)).await;
    // Its standard input is closed by now, which ends it.
    let status = tokio::time::timeout(LEAVING, child.wait()).await;
    if !is_leaving {
        let reason = said.unwrap_or_else(|| match status {
            Ok(Ok(status)) => status.to_string(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it says nothing any more".to_owned(),
        });
        let count = state.finished.borrow().len();
        state.failure.send_if_modified(|failure| {
            let is_first = failure.is_none();
            failure.get_or_insert_with(|| format!("load process {} of {count} ended: {reason}", number + 1));
            is_first
        });
    }
    state.gone.send_modify(|gone| *gone += 1);
    // Only now, so that whoever waits for an answer finds the reason.
    drop(waiting);
}

/// Returns what the process said at its end, if it did.
async fn converse(
    child: &mut Child,
    number: usize,
    calls: &mut mpsc::Receiver<Call>,
    state: &State,
    (waiting, is_leaving): (&mut VecDeque<oneshot::Sender<Answer>>, &mut bool),
) -> Option<String> {
    let (mut stdin, stdout) = (child.stdin.take()?, child.stdout.take()?);
    let mut lines = BufReader::new(stdout).lines();
    loop {
        tokio::select! {
            call = calls.recv() => {
                let Some(Call { line, is_last, answer }) = call else {
                    // Nobody is left who could ask.
                    *is_leaving = true;
                    return None;
                };
                *is_leaving |= is_last;
                waiting.push_back(answer);
                // One that does not listen has ended, and its last words are still to be read.
                let _ = stdin.write_all(line.as_bytes()).await;
            }
            said = lines.next_line() => {
                let Ok(Some(said)) = said else { return None };
                match serde_json::from_str(&said) {
                    Ok(Answer::Finished(load)) => state.finished.send_modify(|finished| finished[number] = load),
                    Ok(Answer::Failed(reason)) => return Some(reason),
                    Ok(answer) => {
                        let asked = waiting.pop_front();
                        // Whoever asked may not wait any more.
                        let _ = asked.map(|asked| asked.send(answer));
                    }
                    Err(error) => return Some(format!("it says what cannot be read: {error}")),
                }
            }
        }
    }
}
