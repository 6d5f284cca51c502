//! What the process that began a load and those that play it say to each other: a line of JSON each, over standard input and output.
//! Each word is answered once, in turn; only that a load has ended is told unasked.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::accounts::Sheet;
use crate::consume::Share;
use crate::hands::{Part, Play};
use crate::meter::Counts;

/// What is asked of a process that plays.
#[derive(Serialize, Deserialize)]
pub enum Word {
    /// The first one.
    Begin(Box<Begin>),
    /// Start producers.
    StartProducers,
    /// Start consumers.
    StartConsumers {
        /// Whether latencies mean anything.
        has_latency: bool,
    },
    /// Which queues do push consumers have?
    Shares,
    /// Consumers may begin.
    OpenGate,
    /// Send.
    Run {
        /// Which load of this run it is, counted from 1.
        load: u32,
        /// From when on, in time of the run.
        begin_at: Duration,
        /// Messages a second, of all processes together.
        rate: Option<f64>,
        /// How many, of all processes together.
        messages: Option<u64>,
    },
    /// What has happened since this was asked last?
    Take,
    /// Send nothing more.
    Close,
    /// The last one.
    Stop,
}

/// What a process that plays has to know.
#[derive(Serialize, Deserialize)]
pub struct Begin {
    /// What is played.
    pub play: Play,
    /// Access key and secret key, which a driver does not show.
    pub keys: Option<(String, String)>,
    /// The run's number.
    pub run: u64,
    /// When the run began, by the machine's monotonic clock.
    pub begun: Duration,
    /// Which producers and consumers are this process's.
    pub part: Part,
}

/// What it answers.
#[derive(Serialize, Deserialize)]
pub enum Answer {
    /// It is done.
    Done,
    /// To [`Word::Shares`].
    Shares(Vec<Share>),
    /// To [`Word::Close`]: messages that were due and never sent.
    Unsent(u64),
    /// To [`Word::Take`].
    Taken(Box<Notes>),
    /// Unasked: all messages of this load are sent and answered.
    Finished(u32),
    /// It cannot go on, for this reason.
    Failed(String),
}

/// What happened in a process.
#[derive(Serialize, Deserialize)]
pub struct Notes {
    /// What was sent.
    pub produced: Counts,
    /// What was received.
    pub consumed: Counts,
    /// Messages that came before one that was sent earlier.
    pub disordered: u64,
    /// Which messages it was about.
    pub sheet: Sheet,
}
