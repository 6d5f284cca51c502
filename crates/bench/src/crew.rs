//! Who plays a load: this process, or several that it has started.

use std::time::Duration;

use tokio::time::Instant;

use crate::consume::{Share, not_shared_out};
use crate::driver::ConsumeMode;
use crate::error::BenchError;
use crate::hands::{Hands, Play};
use crate::scene::Scene;
use crate::team::Team;
use crate::words::{Answer, Word};

/// How long the members of all groups may take to share out their queues.
const SHARING_OUT: Duration = Duration::from_secs(60);

/// Between two looks whether they have.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Those who send and consume.
pub enum Crew {
    /// Tasks of this process.
    Own(Box<Hands>),
    /// Processes of their own.
    Team(Team),
}

impl Crew {
    /// The processes, if there are any.
    pub fn team(&self) -> Option<&Team> {
        match self {
            Crew::Own(_) => None,
            Crew::Team(team) => Some(team),
        }
    }

    /// Starts producers.
    pub async fn start_producers(&mut self) -> Result<(), BenchError> {
        match self {
            Crew::Own(hands) => hands.start_producers().await,
            Crew::Team(team) => team.tell(Word::StartProducers).await,
        }
    }

    /// Starts consumers, and waits until each of the `queues` of each topic has somebody who will read it when the gate opens.
    pub async fn start_consumers(&mut self, play: &Play, queues: usize, has_latency: bool) -> Result<(), BenchError> {
        match self {
            Crew::Own(hands) => hands.start_consumers(has_latency).await?,
            Crew::Team(team) => team.tell(Word::StartConsumers { has_latency }).await?,
        }
        if play.driver.consume_mode != ConsumeMode::Push {
            return Ok(());
        }
        let deadline = Instant::now() + SHARING_OUT;
        while let Some((topic, group, counts)) = not_shared_out(&self.shares().await?, queues) {
            if Instant::now() > deadline {
                let name = play.groups.get(topic).and_then(|groups| groups.get(group)).map_or("", String::as_str);
                let waited = SHARING_OUT.as_secs();
                let text = format!(
                    "after {waited} s the consumers of {name} have {counts:?} queues, and not equal shares of {queues}"
                );
                return Err(BenchError::Invalid(text));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    async fn shares(&self) -> Result<Vec<Share>, BenchError> {
        match self {
            Crew::Own(hands) => Ok(hands.shares()),
            Crew::Team(team) => {
                let answers = team.ask(Word::Shares).await?;
                let shares = |answer| if let Answer::Shares(shares) = answer { shares } else { Vec::new() };
                Ok(answers.into_iter().flat_map(shares).collect())
            }
        }
    }

    /// Lets consumers begin.
    pub async fn open_gate(&self, scene: &Scene) -> Result<(), BenchError> {
        match self {
            Crew::Own(_) => {
                scene.open_gate();
                Ok(())
            }
            Crew::Team(team) => team.tell(Word::OpenGate).await,
        }
    }

    /// Begins to send: `rate` messages a second, or as fast as answers come; `messages` of them, or until it is closed.
    pub async fn run(&mut self, scene: &Scene, rate: Option<f64>, messages: Option<u64>) -> Result<(), BenchError> {
        let begin_at = scene.clock.elapsed();
        match self {
            Crew::Own(hands) => hands.run(begin_at, rate, messages),
            Crew::Team(team) => team.run(begin_at, rate, messages).await,
        }
    }

    /// Ends when all messages are sent and answered.
    pub async fn finished(&mut self) {
        match self {
            Crew::Own(hands) => hands.finished().await,
            Crew::Team(team) => team.finished().await,
        }
    }

    /// As [`Crew::finished`]; an error if a process ends before.
    pub async fn until_finished(&mut self) -> Result<(), BenchError> {
        match self {
            Crew::Own(hands) => {
                hands.finished().await;
                Ok(())
            }
            Crew::Team(team) => tokio::select! {
                () = team.finished() => Ok(()),
                error = team.failure() => Err(error),
            },
        }
    }

    /// Sends nothing more. Returns how many messages were due and never sent.
    pub async fn close(&mut self) -> Result<u64, BenchError> {
        match self {
            Crew::Own(hands) => Ok(hands.close()),
            Crew::Team(team) => {
                let answers = team.ask(Word::Close).await?;
                let unsent = |answer| if let Answer::Unsent(count) = answer { count } else { 0 };
                Ok(answers.into_iter().map(unsent).sum())
            }
        }
    }

    /// Nobody is left consuming or sending.
    pub async fn stop(self) {
        match self {
            Crew::Own(hands) => hands.stop().await,
            Crew::Team(team) => team.stop().await,
        }
    }
}
