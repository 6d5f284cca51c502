//! The one task that sends requests to the master, in the order in which they came.
//!
//! Nothing is sent before the broker there says that it is the master of this set, in an epoch that
//! is not over. Until then all requests wait, the first one longest. What was sent and is not
//! answered, because the connection ended, is refused: the master may have done it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use net::{Begun, CallError, Connection};
use protocol::code::{ResponseCode, request};
use protocol::request::{AskForClient, NOT_MASTER};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::broker::Broker;
use crate::refusal::Refusal;
use crate::state::to_master::{Counts, Passed};
use crate::switch::ask::{MemberError, member};
use crate::tasks::Stop;

/// Pause between two looks for the master, while requests wait for it.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// For a question to a broker that may be the master.
const PATIENCE: Duration = Duration::from_millis(900);
/// How long the master has for an answer: longer than a client lets it wait for messages.
const ANSWER: Duration = Duration::from_secs(60);

/// Until it is told to stop. What waits then is refused.
pub(crate) async fn run(broker: Arc<Broker>, mut stop: Stop) {
    let mut queue = broker.to_master.taken.lock().await;
    let mut under_way: JoinSet<Option<Passed>> = JoinSet::new();
    let mut way = Way::default();
    loop {
        let passed = tokio::select! {
            biased;
            () = stop.asked() => break,
            // Those that another broker has not taken, which was no master any more, go before
            // those that have come since.
            Some(ended) = under_way.join_next() => match ended {
                Ok(Some(again)) => {
                    way.known = None;
                    broker.to_master.waiting.fetch_add(1, Ordering::Relaxed);
                    again
                }
                Ok(None) | Err(_) => continue,
            },
            Some(passed) = queue.recv() => passed,
        };
        let mut held = Some(passed);
        tokio::select! {
            biased;
            () = stop.asked() => {}
            () = way.send(&broker, &mut held, &mut under_way) => {}
            // All connections end then, and clients ask again on the next ones: what waits must not
            // hold that up.
            () = broker.switch.begins_anew() => held = None,
        }
        broker.to_master.waiting.fetch_sub(1, Ordering::Relaxed);
        if let Some(held) = held {
            refuse(&broker, held, "this broker stops");
        }
    }
    while let Ok(held) = queue.try_recv() {
        broker.to_master.waiting.fetch_sub(1, Ordering::Relaxed);
        refuse(&broker, held, "this broker stops");
    }
}

/// Says that a request was not carried out, and what is known.
fn refuse(broker: &Broker, passed: Passed, why: &str) {
    Counts::count(&broker.to_master.counts.refused);
    let refusal = Refusal::new(passed.refusal.code, format!("{}; {why}", passed.refusal.remark));
    if passed.reply_to.is_oneway {
        broker.oneway_refusals.note(&refusal, broker.clock.now().0);
    }
    passed.refuse(&refusal);
}

/// The connection to the master.
#[derive(Default)]
struct Way {
    known: Option<Connection<()>>,
}

impl Way {
    /// Sends a request, as soon as there is a master, and takes it out of `held`; or refuses it in
    /// time.
    async fn send(&mut self, broker: &Arc<Broker>, held: &mut Option<Passed>, under_way: &mut JoinSet<Option<Passed>>) {
        let Some(until) = held.as_ref().map(|held| held.until) else { return };
        let mut why;
        let mut is_held = false;
        // Ends when the request is sent, or its time is over.
        loop {
            match self.find(broker, until).await {
                Ok(connection) => match begin(&connection, held) {
                    Ok(begun) => {
                        Counts::count(&broker.to_master.counts.forwarded);
                        if let (Some(begun), Some(passed)) = (begun, held.take()) {
                            under_way.spawn(answer(Arc::clone(broker), begun, passed));
                        }
                        return;
                    }
                    Err(error) => why = error.to_string(),
                },
                Err(NoMaster { why: said, is_final }) => {
                    why = said;
                    if is_final {
                        break;
                    }
                }
            }
            if !std::mem::replace(&mut is_held, true) {
                Counts::count(&broker.to_master.counts.held);
            }
            if Instant::now() + LOOK_AGAIN >= until {
                break;
            }
            sleep(LOOK_AGAIN).await;
        }
        if let Some(passed) = held.take() {
            refuse(broker, passed, &why);
        }
    }

    /// The connection to the broker that says it is the master.
    async fn find(&mut self, broker: &Broker, until: Instant) -> Result<Connection<()>, NoMaster> {
        if let Some(known) = self.known.as_ref().filter(|known| !known.is_closed()) {
            return Ok(known.clone());
        }
        self.known = None;
        let mut candidates: Vec<Arc<str>> = Vec::new();
        let handed = broker.switch.kept().handed.map(|handed| Arc::from(handed.address));
        let last = broker.to_master.last.lock().clone();
        for address in [handed, broker.following.master(), last].into_iter().flatten() {
            if !candidates.contains(&address) {
                candidates.push(address);
            }
        }
        let mut none = NoMaster { why: "the master of this set is not known".to_owned(), is_final: false };
        let count = candidates.len();
        for (place, address) in candidates.into_iter().enumerate() {
            // Each has its share of the time that is left: nobody may be at the first one.
            let others = u32::try_from(count - place).unwrap_or(u32::MAX);
            let share = until.saturating_duration_since(Instant::now()) / others;
            match timeout(share, ask(broker, &address)).await {
                Ok(Ok(connection)) => {
                    self.known = Some(connection.clone());
                    *broker.to_master.last.lock() = Some(address);
                    return Ok(connection);
                }
                Ok(Err(no)) => none = no,
                Err(_) => none.why = format!("the master at {address} does not answer"),
            }
        }
        Err(none)
    }
}

/// Why nothing can be sent.
struct NoMaster {
    why: String,
    /// That does not change soon.
    is_final: bool,
}

/// Asks a broker whether it is the master, and gives the connection to it.
async fn ask(broker: &Broker, address: &str) -> Result<Connection<()>, NoMaster> {
    let not_now = |why: String| NoMaster { why: format!("the master at {address}: {why}"), is_final: false };
    let client = &broker.to_master.client;
    let connection = client.connect(address).await.map_err(|error| not_now(error.to_string()))?;
    let state = match member(client, address, PATIENCE).await {
        Ok(state) => state,
        Err(MemberError::Refused { code, .. }) if code == ResponseCode::RequestCodeNotSupported as i32 => {
            let why = format!("the master at {address} is no broker of Gantry: it is not asked for clients");
            return Err(NoMaster { why, is_final: true });
        }
        Err(error) => return Err(not_now(error.to_string())),
    };
    let identity = broker.identity();
    if (&state.cluster_name, &state.broker_name) != (&identity.cluster_name, &identity.broker_name) {
        return Err(not_now(format!("it is broker {} of cluster {}", state.broker_name, state.cluster_name)));
    }
    if state.broker_role == "SLAVE" || state.is_fenced {
        return Err(not_now("it is no master, or not yet".to_owned()));
    }
    if u64::try_from(state.epoch).unwrap_or(0) < broker.switch.kept().epoch {
        return Err(not_now(format!("its epoch {} is over", state.epoch)));
    }
    Ok(connection)
}

/// Leaves a request on the connection. None if nobody answers it: it is gone from `held` then.
fn begin(connection: &Connection<()>, held: &mut Option<Passed>) -> Result<Option<Begun<()>>, CallError> {
    let Some(passed) = held else { return Ok(None) };
    let client = passed.client.to_string();
    let fields = AskForClient { client: &client };
    if !passed.reply_to.is_oneway {
        return connection.begin(request::ASK_FOR_CLIENT, &fields, &passed.frame).map(Some);
    }
    if connection.oneway(request::ASK_FOR_CLIENT, &fields, &passed.frame) {
        *held = None;
        return Ok(None);
    }
    let address = connection.peer().to_string();
    Err(if connection.is_closed() { CallError::Closed { address } } else { CallError::Busy { address } })
}

/// Passes the answer on. Gives back a request that the broker there has not taken, since it is no
/// master.
async fn answer(broker: Arc<Broker>, begun: Begun<()>, passed: Passed) -> Option<Passed> {
    match begun.response(ANSWER).await {
        Ok(answer) if answer.fields.get(NOT_MASTER).is_some() => return Some(passed),
        Ok(answer) => passed.answer(answer),
        Err(error) => refuse(&broker, passed, &format!("{error}: the master may have carried it out")),
    }
    None
}
