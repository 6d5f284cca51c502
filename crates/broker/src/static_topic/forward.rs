//! Questions to the brokers that hold older queues of a static topic.
//!
//! Where a broker is, the name servers say (106); what they said is used for a while. Only so many questions are under way at a time:
//! each keeps a request waiting, and perhaps a reply of some megabytes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use env::Clock;
use net::Response;
use parking_lot::Mutex;
use protocol::body::{ClusterInfo, MASTER_ID};
use protocol::code::{ResponseCode, request};
use protocol::fastjson;
use protocol::header::EncodeFields;
use protocol::request::{SendMessage, WhichQueue};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::refusal::{Refusal, SOON};
use crate::state::registry::Registry;

/// As long as Apache's broker waits for another (`forwardTimeout`).
const TIMEOUT: Duration = Duration::from_secs(3);
/// Addresses are asked for again after this; Apache asks every 5 s.
const FRESH: Duration = Duration::from_secs(5);
/// And after this when an address is missing or does not answer: not with each request.
const DOUBTED: Duration = Duration::from_secs(1);
/// Requests that wait for other brokers.
const UNDER_WAY_MAX: usize = 1_024;

#[derive(Default)]
struct KnownMasters {
    /// Masters by broker name.
    addresses: BTreeMap<String, String>,
    /// By the clock's elapsed time.
    asked_at: Option<Duration>,
    /// One of them did not answer.
    is_doubted: bool,
}

/// The way to other brokers.
pub(crate) struct Forward {
    registry: Arc<Registry>,
    /// Guards nothing else.
    known: Mutex<KnownMasters>,
    /// One asks the name servers, the others share the answer. Held across that wait on purpose.
    asking: tokio::sync::Mutex<()>,
    under_way: Arc<Semaphore>,
    clock: Clock,
}

impl Forward {
    pub(crate) fn new(registry: Arc<Registry>, clock: Clock) -> Forward {
        Forward {
            registry,
            known: Mutex::default(),
            asking: tokio::sync::Mutex::new(()),
            under_way: Arc::new(Semaphore::new(UNDER_WAY_MAX)),
            clock,
        }
    }

    /// Room for one more request that waits for other brokers.
    pub(crate) fn may_wait(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        Arc::clone(&self.under_way).try_acquire_owned().map_err(|_| {
            let what =
                format_args!("[GANTRY]system busy, start flow control for a while: {UNDER_WAY_MAX} requests wait for other brokers of static topics");
            Refusal::busy(what, SOON)
        })
    }

    /// Asks a broker about its own physical queue.
    pub(crate) async fn ask(
        &self,
        broker: &str,
        code: i32,
        fields: &(impl EncodeFields + Sync),
    ) -> Result<Response, Refusal> {
        self.ask_either(broker, code, fields, false).await
    }

    /// The same, where anything but success is a failure.
    pub(crate) async fn ask_for<T>(
        &self,
        broker: &str,
        code: i32,
        fields: &(impl EncodeFields + Sync),
        read: impl FnOnce(&Response) -> Result<T, String>,
    ) -> Result<T, Refusal> {
        success(broker, self.ask_either(broker, code, fields, false).await?, read)
    }

    /// The same about the logical queues that it knows.
    pub(crate) async fn ask_about_logical<T>(
        &self,
        broker: &str,
        code: i32,
        fields: &(impl EncodeFields + Sync),
        read: impl FnOnce(&Response) -> Result<T, String>,
    ) -> Result<T, Refusal> {
        success(broker, self.ask_either(broker, code, fields, true).await?, read)
    }

    /// Sends a message to a logical queue that a broker leads.
    pub(crate) async fn send(&self, broker: &str, message: &SendMessage<'_>, body: Bytes) -> Result<Response, Refusal> {
        self.call(broker, request::SEND_MESSAGE_V2, message, body, true).await
    }

    async fn ask_either(
        &self,
        broker: &str,
        code: i32,
        fields: &(impl EncodeFields + Sync),
        lo: bool,
    ) -> Result<Response, Refusal> {
        self.call(broker, code, fields, Bytes::new(), lo).await
    }

    async fn call(
        &self,
        broker: &str,
        code: i32,
        fields: &(impl EncodeFields + Sync),
        body: Bytes,
        lo: bool,
    ) -> Result<Response, Refusal> {
        let address = self
            .address(broker)
            .await
            .ok_or_else(|| Refusal::new(ResponseCode::SystemError, format!("cannot find addr for broker {broker}")))?;
        let which = WhichQueue { lo, broker_name: broker };
        let answer = self.registry.client.call(&address, code, &(fields, which), body, TIMEOUT).await;
        answer.map_err(|error| {
            // It may have moved to another address.
            self.known.lock().is_doubted = true;
            Refusal::failed(format!("broker {broker}: {error}"))
        })
    }

    async fn address(&self, broker: &str) -> Option<String> {
        if let Some(known) = self.known_address(broker) {
            return known;
        }
        let _asking = self.asking.lock().await;
        if let Some(known) = self.known_address(broker) {
            return known;
        }
        for name_server in self.registry.addresses() {
            let client = &self.registry.client;
            let answer = client.call(name_server, request::GET_BROKER_CLUSTER_INFO, &(), Bytes::new(), TIMEOUT).await;
            let Ok(answer) = answer else { continue };
            let Ok(info) = fastjson::from_slice::<ClusterInfo>(&answer.body) else { continue };
            let masters = info.broker_addr_table.into_iter();
            let addresses = masters.filter_map(|(name, mut data)| Some((name, data.broker_addrs.remove(&MASTER_ID)?)));
            let asked_at = Some(self.clock.elapsed());
            let mut known = self.known.lock();
            *known = KnownMasters { addresses: addresses.collect(), asked_at, is_doubted: false };
            return known.addresses.get(broker).cloned();
        }
        // No name server answers: what was known before, for whoever waits for this answer too.
        let mut known = self.known.lock();
        (known.asked_at, known.is_doubted) = (Some(self.clock.elapsed()), true);
        known.addresses.get(broker).cloned()
    }

    /// None: it is time to ask.
    fn known_address(&self, broker: &str) -> Option<Option<String>> {
        let known = self.known.lock();
        let found = known.addresses.get(broker).cloned();
        let limit = if found.is_some() && !known.is_doubted { FRESH } else { DOUBTED };
        known.asked_at.filter(|at| self.clock.elapsed().saturating_sub(*at) < limit).map(|_| found)
    }
}

fn success<T>(broker: &str, answer: Response, read: impl FnOnce(&Response) -> Result<T, String>) -> Result<T, Refusal> {
    if answer.code != ResponseCode::Success as i32 {
        return Err(unexpected(broker, &answer));
    }
    read(&answer).map_err(|error| Refusal::failed(format!("broker {broker}: {error}")))
}

/// What another broker refuses.
pub(crate) fn unexpected(broker: &str, answer: &Response) -> Refusal {
    let remark = answer.remark.as_deref().unwrap_or_default();
    Refusal::failed(format!("unexpected remote response code {} of broker {broker}: {remark}", answer.code))
}
