//! What producers and consumers of a run share.

use std::sync::atomic::{AtomicU64, Ordering};

use client::{Client, ClientConfig, ClientOptions, Credentials};
use env::{Clock, Random};
use protocol::frame::Serialization;
use tokio::sync::watch;

use crate::accounts::{Accounts, Notes};
use crate::driver::{Driver, HeaderKind};
use crate::ledger::Ledger;
use crate::meter::Meter;

/// Meters are split so that few tasks meet at one.
const SHARDS: usize = 8;

/// The stage of a run.
pub struct Scene {
    /// Which run it is.
    pub run: u64,
    /// Its time begins with it.
    pub clock: Clock,
    /// The dice.
    pub random: Random,
    /// What became of each message.
    pub ledger: Accounts,
    /// What is sent now.
    pub produced: Meter,
    /// What is received now.
    pub consumed: Meter,
    /// Bytes of a body.
    pub message_bytes: u64,
    /// Whether consumers may begin: those of a backlog come to their places first.
    gate: watch::Sender<bool>,
    /// Messages that came before one that was sent earlier. Relaxed: a count.
    disordered: AtomicU64,
}

impl Scene {
    /// For so many producers, each of whose messages go to so many groups.
    pub fn new(producers: usize, groups: usize, message_bytes: usize) -> Scene {
        let random = Random::from_entropy();
        let run = random.next_u64();
        let ledger = Accounts::Whole(Ledger::new(run, producers, groups));
        Scene::with(run, Clock::real(), random, ledger, message_bytes as u64)
    }

    /// The stage of a run in one of its processes, whose clock shows the time of the run.
    pub fn part(run: u64, clock: Clock, producers: usize, groups: usize, message_bytes: usize) -> Scene {
        let ledger = Accounts::Part(Notes::new(run, producers, groups));
        Scene::with(run, clock, Random::from_entropy(), ledger, message_bytes as u64)
    }

    fn with(run: u64, clock: Clock, random: Random, ledger: Accounts, message_bytes: u64) -> Scene {
        Scene {
            run,
            clock,
            random,
            ledger,
            produced: Meter::new(SHARDS),
            consumed: Meter::new(SHARDS),
            message_bytes,
            gate: watch::Sender::new(false),
            disordered: AtomicU64::new(0),
        }
    }

    /// Lets consumers begin.
    pub fn open_gate(&self) {
        self.gate.send_replace(true);
    }

    /// Waits until consumers may begin.
    pub async fn gate(&self) {
        // The sender is here, so it cannot be gone.
        let _ = self.gate.subscribe().wait_for(|is_open| *is_open).await;
    }

    /// A member of the target's cluster, with connections of its own.
    pub fn client(&self, driver: &Driver) -> Client {
        let credentials = match (&driver.access_key, &driver.secret_key) {
            (Some(access_key), Some(secret_key)) => Some(Credentials {
                access_key: access_key.clone(),
                secret_key: secret_key.clone(),
                security_token: None,
            }),
            (_, _) => None,
        };
        let serialization = match driver.header {
            HeaderKind::Json => Serialization::Json,
            HeaderKind::Binary => Serialization::Binary,
        };
        Client::start(ClientConfig {
            credentials,
            net: ClientOptions { serialization, ..ClientOptions::default() },
            ..ClientConfig::new(&driver.namesrv_addr)
        })
    }

    /// One more came too early.
    pub fn note_disordered(&self) {
        self.add_disordered(1);
    }

    /// So many more came too early.
    pub fn add_disordered(&self, count: u64) {
        self.disordered.fetch_add(count, Ordering::Relaxed);
    }

    /// How many came too early since this was asked last.
    pub fn take_disordered(&self) -> u64 {
        self.disordered.swap(0, Ordering::Relaxed)
    }

    /// How many came too early.
    pub fn disordered(&self) -> u64 {
        self.disordered.load(Ordering::Relaxed)
    }
}
