//! Several processes that play a load together, and what they tell of it.
//!
//! This process keeps the one book of the run: in rounds it takes from each process what happened there since the round before, and
//! enters it into its own scene. One process that ends before its time ends the run.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::accounts::{Accounts, Collected};
use crate::book::Moment;
use crate::error::BenchError;
use crate::hands::{Part, Play};
use crate::ledger;
use crate::lines::Lines;
use crate::meter::Counts;
use crate::process::ServerProcess;
use crate::scene::Scene;
use crate::words::{Answer, Begin, Word};
use crate::worker::monotonic;

/// A process that is about to end, or was killed, has so long.
const LEAVING: Duration = Duration::from_secs(10);

/// A process that was told to end takes leave of the target for so long at most. Then it is killed, as all that do not answer in time.
const STOPPING: Duration = Duration::from_secs(20);

/// An answer comes in so long, also from a process that has to wait for a processor or for its memory.
const ANSWERING: Duration = Duration::from_secs(60);

/// To start producers or consumers takes requests for each of them, which the target may let wait.
const STARTING: Duration = Duration::from_secs(600);

/// An answer is no longer than this: bits of messages as many as all books have room for, with 21 characters for eight bytes of them,
/// and what else is counted.
const LINE_BYTES_MAX: usize = 4 * ledger::BYTES_MAX;

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
    /// What a member may say at once.
    line_bytes_max: usize,
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
    /// How long the answer may take.
    patience: Duration,
    answer: oneshot::Sender<Answer>,
}

/// Why nobody speaks with a process any more.
enum Parted {
    /// It has ended, or was told to.
    Left,
    /// It said why it cannot go on.
    Failed(String),
    /// An answer did not come for so long.
    Silent(Duration),
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
            line_bytes_max: LINE_BYTES_MAX,
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
        let lines: Result<Vec<String>, BenchError> = (0..count).map(|process| line(&begin(process))).collect();
        team.call(lines?.into_iter(), ANSWERING).await?;
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
        let patience = match word {
            Word::StartProducers | Word::StartConsumers { .. } => STARTING,
            Word::Begin(_)
            | Word::Shares
            | Word::OpenGate
            | Word::Run { .. }
            | Word::Take
            | Word::Close
            | Word::Stop => ANSWERING,
        };
        self.call(self.members.iter().map(|_| line.clone()), patience).await
    }

    async fn call(&self, lines: impl Iterator<Item = String>, patience: Duration) -> Result<Vec<Answer>, BenchError> {
        let mut awaited = Vec::new();
        for (member, line) in self.members.iter().zip(lines) {
            let (answer, hear) = oneshot::channel();
            if member.send(Call { line, is_last: false, patience, answer }).await.is_err() {
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
    ///
    /// Returns the moment until which it has happened: what is entered afterwards takes a time of its own.
    pub async fn gather(&self, server: Option<ServerProcess>) -> Result<Moment, BenchError> {
        let team = self.clone();
        // A round is never left half way, also if whoever wanted it does not wait for it any more: what was taken would be lost.
        let round = tokio::spawn(async move { team.round(server).await });
        round.await.unwrap_or_else(|error| Err(BenchError::Invalid(format!("a round failed: {error}"))))
    }

    async fn round(&self, server: Option<ServerProcess>) -> Result<Moment, BenchError> {
        let mut round = self.state.round.lock().await;
        let answers = self.ask(Word::Take).await?;
        let moment = Moment::now(&self.scene, server.as_ref(), &self.pids);
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
        Ok(moment)
    }

    /// Ends the processes: none is left when this returns, unless the system does not let go of one that was killed.
    pub async fn stop(self) {
        let Ok(line) = line(&Word::Stop) else { return };
        for member in &self.members {
            let (answer, _) = oneshot::channel();
            // One that is gone already needs no word.
            let _ = member.send(Call { line: line.clone(), is_last: true, patience: STOPPING, answer }).await;
        }
        let mut gone = self.state.gone.subscribe();
        let members = self.members.len();
        // Each is killed in time by the task that speaks with it, so this ends; the sender is here.
        let _ = gone.wait_for(|gone| *gone == members).await;
    }
}

fn line(word: &Word) -> Result<String, BenchError> {
    let mut line = serde_json::to_string(word).map_err(|error| BenchError::Invalid(error.to_string()))?;
    line.push('\n');
    Ok(line)
}

/// Speaks with one process until it ends, or has not answered in time: then it is killed.
async fn attend(mut child: Child, number: usize, mut calls: mpsc::Receiver<Call>, state: Arc<State>) {
    let (mut waiting, mut is_leaving) = (VecDeque::new(), false);
    let parted = converse(&mut child, number, &mut calls, &state, (&mut waiting, &mut is_leaving)).await;
    // Its standard input is closed by now, which ends it, unless it hangs.
    let status = match parted {
        Parted::Left | Parted::Failed(_) => timeout(LEAVING, child.wait()).await.ok(),
        Parted::Silent(_) => None,
    };
    if status.is_none() {
        // An error: it has ended just now. One that the system does not let go of is not waited for without end.
        let _ = child.start_kill();
        let _ = timeout(LEAVING, child.wait()).await;
    }
    if !is_leaving {
        let reason = match (parted, status) {
            (Parted::Failed(reason), _) => format!("ended: {reason}"),
            (Parted::Silent(patience), _) => {
                format!("says nothing any more: no answer in {} s, it was killed", patience.as_secs())
            }
            (Parted::Left, Some(Ok(status))) => format!("ended: {status}"),
            (Parted::Left, Some(Err(error))) => format!("ended: {error}"),
            (Parted::Left, None) => "closed its standard output, and did not end: it was killed".to_owned(),
        };
        let count = state.finished.borrow().len();
        state.failure.send_if_modified(|failure| {
            let is_first = failure.is_none();
            failure.get_or_insert_with(|| format!("load process {} of {count} {reason}", number + 1));
            is_first
        });
    }
    state.gone.send_modify(|gone| *gone += 1);
    // Only now, so that whoever waits for an answer finds the reason.
    drop(waiting);
}

/// Who waits for an answer, until when, and how long that was at first.
type Waiting = VecDeque<(oneshot::Sender<Answer>, Instant, Duration)>;

/// Returns why it ended.
async fn converse(
    child: &mut Child,
    number: usize,
    calls: &mut mpsc::Receiver<Call>,
    state: &State,
    (waiting, is_leaving): (&mut Waiting, &mut bool),
) -> Parted {
    let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else { return Parted::Left };
    let mut lines = Lines::new(BufReader::new(stdout), state.line_bytes_max);
    // By then it has answered, and, told to end, has ended.
    let mut leaves = None;
    loop {
        let answers = waiting.front().map(|(_, until, patience)| (*until, *patience));
        let due = answers.into_iter().chain(leaves).min();
        let silent = async {
            match due {
                Some((until, patience)) => {
                    sleep_until(until).await;
                    patience
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            call = calls.recv() => {
                let Some(Call { line, is_last, patience, answer }) = call else {
                    // Nobody is left who could ask.
                    *is_leaving = true;
                    return Parted::Left;
                };
                let until = Instant::now() + patience;
                if is_last {
                    *is_leaving = true;
                    leaves = Some((until, patience));
                }
                waiting.push_back((answer, until, patience));
                // One that does not listen has ended, and its last words are still to be read; or it hangs.
                if timeout_at(until, stdin.write_all(line.as_bytes())).await.is_err() {
                    return Parted::Silent(patience);
                }
            }
            said = lines.next() => {
                let said = match said {
                    Ok(Some(said)) => said,
                    Ok(None) => return Parted::Left,
                    Err(error) => return Parted::Failed(format!("what it says cannot be read: {error}")),
                };
                match serde_json::from_slice(&said) {
                    Ok(Answer::Finished(load)) => state.finished.send_modify(|finished| finished[number] = load),
                    Ok(Answer::Failed(reason)) => return Parted::Failed(reason),
                    Ok(answer) => {
                        let asked = waiting.pop_front();
                        // Whoever asked may not wait any more.
                        let _ = asked.map(|(asked, ..)| asked.send(answer));
                    }
                    Err(error) => return Parted::Failed(format!("it says what cannot be read: {error}")),
                }
            }
            patience = silent => return Parted::Silent(patience),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// A process that reads nothing, and says what it says.
    fn process(program: &str, argument: &str) -> (Child, u32) {
        let started = Command::new(program)
            .arg(argument)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let pid = started.id().unwrap();
        (started, pid)
    }

    fn state() -> Arc<State> {
        Arc::new(State {
            finished: watch::Sender::new(vec![0; 3]),
            failure: watch::Sender::new(None),
            gone: watch::Sender::new(0),
            round: Mutex::default(),
            line_bytes_max: 1000,
        })
    }

    /// Asks one that does not answer.
    async fn asked(is_last: bool) -> Option<String> {
        told(process("sleep", "3600"), is_last, Duration::from_millis(20)).await
    }

    async fn told((child, pid): (Child, u32), is_last: bool, patience: Duration) -> Option<String> {
        let state = state();
        let (say, calls) = mpsc::channel(1);
        let (answer, hear) = oneshot::channel();
        let call = Call { line: "\"Take\"\n".to_owned(), is_last, patience, answer };
        assert!(say.send(call).await.is_ok());
        attend(child, 1, calls, Arc::clone(&state)).await;
        assert!(hear.await.is_err());
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "it is left behind");
        assert_eq!(*state.gone.borrow(), 1);
        state.failure.borrow().clone()
    }

    #[tokio::test]
    async fn a_process_that_does_not_answer_in_time_is_killed_and_ends_the_run_with_the_reason() {
        let reason = asked(false).await.unwrap();
        assert!(reason.starts_with("load process 2 of 3 says nothing any more"), "{reason}");
    }

    #[tokio::test]
    async fn a_process_that_does_not_end_when_it_is_told_to_is_killed() {
        assert_eq!(asked(true).await, None);
    }

    #[tokio::test]
    async fn a_process_that_says_too_much_at_once_ends_the_run_with_the_reason() {
        let endless = process("cat", "/dev/zero");
        let reason = told(endless, false, ANSWERING).await.unwrap();
        let expected = "load process 2 of 3 ended: what it says cannot be read: a line has more than 1000 bytes";
        assert_eq!(reason, expected);
    }
}
