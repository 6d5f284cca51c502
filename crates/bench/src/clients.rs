//! Which client a producer or a consumer has: one of its own, or one that serves several topics.

use std::collections::HashMap;
use std::sync::Arc;

use client::Client;

use crate::driver::Driver;
use crate::scene::Scene;

/// The clients of all producers of a process, or of all its consumers.
pub struct Clients {
    scene: Arc<Scene>,
    driver: Driver,
    /// By the member among those of one topic, and the first of the topics that share it.
    all: HashMap<(usize, usize), Client>,
}

impl Clients {
    /// Nobody has one yet.
    pub fn none(scene: &Arc<Scene>, driver: &Driver) -> Clients {
        Clients { scene: Arc::clone(scene), driver: driver.clone(), all: HashMap::new() }
    }

    /// That of a member of a topic, both counted from 0. Two members of one topic never share one: brokers count the members of a
    /// group by their clients.
    pub fn of(&mut self, member: usize, topic: usize) -> Client {
        let first = topic - topic % self.driver.topics_per_client;
        self.all.entry((member, first)).or_insert_with(|| self.scene.client(&self.driver)).clone()
    }

    /// They take leave of the target.
    pub async fn stop(self) {
        for client in self.all.into_values() {
            client.stop().await;
        }
    }
}
