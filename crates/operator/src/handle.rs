//! The handle by which operators ask.

use std::time::Duration;

use client::{Admin, Client, ClientConfig, Credentials};
use env::Clock;

use crate::error::{OperatorError, Result};

/// As `mqadmin` waits for each answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Asks and changes. Clones share their connections.
#[derive(Clone)]
pub struct Operator {
    /// For messages.
    pub(crate) client: Client,
    /// For everything else.
    pub(crate) admin: Admin,
    pub(crate) clock: Clock,
}

impl Operator {
    /// Begins; needs a tokio runtime. Nothing is connected before it is needed.
    pub fn start(name_servers: &str, credentials: Option<Credentials>) -> Operator {
        let config = ClientConfig::new(name_servers.trim_matches('"'));
        Operator::with(ClientConfig { timeout: TIMEOUT, credentials, ..config })
    }

    /// The same with a client's configuration.
    pub fn with(config: ClientConfig) -> Operator {
        let clock = config.clock.clone();
        let client = Client::start(config);
        Operator { admin: client.admin(), client, clock }
    }

    /// The same with more or less patience.
    pub fn within(&self, timeout: Duration) -> Operator {
        Operator { admin: self.admin.within(timeout), ..self.clone() }
    }

    /// Takes leave of brokers to which messages were sent.
    pub async fn stop(&self) {
        self.client.stop().await;
    }

    /// Milliseconds since 1970.
    pub fn now(&self) -> i64 {
        self.clock.now().0
    }

    /// The time by which spans are measured.
    pub fn elapsed(&self) -> Duration {
        self.clock.elapsed()
    }

    /// The name servers, in the order in which they were given.
    pub fn name_servers(&self) -> &[String] {
        self.admin.name_servers()
    }

    /// Fails if there is no name server.
    pub fn need_names(&self) -> Result<()> {
        if self.name_servers().is_empty() { Err(OperatorError::NoNameServer) } else { Ok(()) }
    }
}
