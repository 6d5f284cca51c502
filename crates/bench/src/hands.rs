//! Those who play a load, as far as they are in this process: its producers and consumers, and what they send now.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::consume::{Consumers, Groups, Share};
use crate::driver::Driver;
use crate::error::BenchError;
use crate::payload::Payloads;
use crate::produce::{Load, Producers};
use crate::scene::Scene;
use crate::workload::Workload;

/// What is played: the same in every process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Play {
    /// What is sent and consumed.
    pub workload: Workload,
    /// How.
    pub driver: Driver,
    /// The topics.
    pub topics: Vec<String>,
    /// The groups of each topic, by topic.
    pub groups: Vec<Vec<String>>,
    /// Whether messages of one thread to one queue must come in their order.
    pub is_order_checked: bool,
}

/// Which producers and consumers are one process's: those whose number leaves `process` when it is divided by `processes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Counted from 0.
    pub process: usize,
    /// All of them, at least one.
    pub processes: usize,
}

impl Part {
    /// All of them are ours.
    pub const WHOLE: Part = Part { process: 0, processes: 1 };

    /// Whether one is this process's.
    pub fn has(self, number: usize) -> bool {
        number % self.processes == self.process
    }
}

/// The producers and consumers of this process.
pub struct Hands {
    scene: Arc<Scene>,
    play: Play,
    part: Part,
    producers: Producers,
    consumers: Consumers,
    load: Option<Load>,
}

impl Hands {
    /// Nobody yet.
    pub fn new(scene: &Arc<Scene>, play: Play, part: Part, payloads: Payloads) -> Hands {
        let producers = Producers::none(scene, &play.driver, payloads);
        let consumers = Consumers::none(scene, &play.driver);
        Hands { scene: Arc::clone(scene), play, part, producers, consumers, load: None }
    }

    /// Starts producers. After an error there are some.
    pub async fn start_producers(&mut self) -> Result<(), BenchError> {
        self.producers.start(&self.play.topics, self.play.workload.producers_per_topic, self.part).await
    }

    /// Starts consumers. After an error there are some.
    pub async fn start_consumers(&mut self, has_latency: bool) -> Result<(), BenchError> {
        let wanted = Groups {
            topics: &self.play.topics,
            groups: &self.play.groups,
            members: self.play.workload.consumer_per_subscription as usize,
            part: self.part,
            has_latency,
            is_order_checked: self.play.is_order_checked,
        };
        self.consumers.start(&self.scene, &self.play.driver, &wanted).await
    }

    /// What each push consumer has of its topic's queues.
    pub fn shares(&self) -> Vec<Share> {
        self.consumers.shares(&self.play.topics)
    }

    /// Begins to send, see [`Producers::run`].
    pub fn run(&mut self, begin_at: Duration, rate: Option<f64>, messages: Option<u64>) -> Result<(), BenchError> {
        self.load = Some(self.producers.run(begin_at, rate, messages)?);
        Ok(())
    }

    /// Ends when all messages are sent and answered.
    pub async fn finished(&mut self) {
        if let Some(load) = &mut self.load {
            load.finished().await;
        }
    }

    /// Sends nothing more. Returns how many messages were due and never sent.
    pub fn close(&mut self) -> u64 {
        self.load.as_mut().map_or(0, Load::close)
    }

    /// Takes leave.
    pub async fn stop(self) {
        drop(self.load);
        // A consumer that still waits at it would be waited for.
        self.scene.open_gate();
        self.consumers.stop().await;
        self.producers.stop().await;
    }
}
