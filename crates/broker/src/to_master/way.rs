//! The one task that sends requests to the master, in the order in which they came.
//!
//! Nothing is sent before the broker there says that it is the master of this set, in an epoch that
//! is not over, and nothing is sent to another one before the answers that the last one owes are
//! here, but for those that wait for messages. Until then all requests wait, the first one longest.
//! What was sent and is not answered, because the connection ended, is refused: the master may have
//! done it. If this broker begins anew, with another role, its clients are told to connect and ask
//! again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use net::{Begun, CallError, Connection};
use protocol::code::{ResponseCode, request};
use protocol::request::{AskForClient, NOT_MASTER};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
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
/// How long the master has for an answer. Then the request is given up, and its connection too if
/// nothing has come from there since.
const ANSWER: Duration = Duration::from_secs(10);
/// The same where it waits for messages: longer than a client lets it.
const LONG_ANSWER: Duration = Duration::from_secs(60);

/// Until it is told to stop. What waits then is refused.
pub(crate) async fn run(broker: Arc<Broker>, mut stop: Stop) {
    let mut queue = broker.to_master.taken.lock().await;
    let mut way = Way::default();
    let mut going = broker.to_master.going.subscribe();
    let mut is_going = false;
    loop {
        tokio::select! {
            biased;
            () = stop.asked() => break,
            // The sender lives as long as the broker.
            _ = going.changed() => is_going = true,
            () = async {
                match is_going {
                    true => way.receive(&broker, &mut queue).await,
                    false => way.go_on(&broker, &mut queue).await,
                }
            } => {}
        }
        if is_going {
            way.turn_away(&broker);
        }
    }
    while let Ok(passed) = queue.try_recv() {
        way.waiting.insert(passed.number, passed);
    }
    for (_, passed) in way.waiting {
        broker.to_master.waiting.fetch_sub(1, Ordering::Relaxed);
        refuse(&broker, passed, "this broker stops");
    }
}

/// Says that the master was not asked, and what is known.
fn refuse(broker: &Broker, passed: Passed, why: &str) {
    Counts::count(&broker.to_master.counts.refused);
    say(broker, passed, why);
}

fn say(broker: &Broker, passed: Passed, why: &str) {
    let refusal = Refusal::new(passed.refusal.code, format!("{}; {why}", passed.refusal.remark));
    if passed.reply_to.is_oneway {
        broker.oneway_refusals.note(&refusal, broker.clock.now().0);
    }
    passed.refuse(&refusal);
}

/// A connection to a broker that has said it is the master.
#[derive(Clone)]
struct Known {
    connection: Connection<()>,
    /// Since when, at least.
    epoch: u64,
}

/// The way to the master.
#[derive(Default)]
struct Way {
    known: Option<Known>,
    /// By which the last request went.
    last: Option<Known>,
    /// Requests that are not sent, by their numbers; also those that came back, because the broker there was no master any more.
    waiting: BTreeMap<u64, Passed>,
    /// Answers to come, each with its request if that comes back.
    owed: JoinSet<Option<Passed>>,
    /// The same of requests that wait for messages.
    long: JoinSet<Option<Passed>>,
}

type Ended = Result<Option<Passed>, JoinError>;

impl Way {
    /// Takes a request, or the end of one that was sent.
    async fn receive(&mut self, broker: &Broker, queue: &mut UnboundedReceiver<Passed>) {
        tokio::select! {
            biased;
            Some(ended) = self.owed.join_next() => self.ended(broker, ended),
            Some(ended) = self.long.join_next() => self.ended(broker, ended),
            Some(passed) = queue.recv() => drop(self.waiting.insert(passed.number, passed)),
            else => std::future::pending().await,
        }
    }

    /// Takes back a request that the broker there has not taken.
    fn ended(&mut self, broker: &Broker, ended: Ended) {
        if let Ok(Some(passed)) = ended {
            self.known = None;
            broker.to_master.waiting.fetch_add(1, Ordering::Relaxed);
            self.waiting.insert(passed.number, passed);
        }
    }

    /// One step: sends the first request as soon as there is a master, or refuses it in time; takes one if none waits. Nothing is lost
    /// if this is dropped.
    async fn go_on(&mut self, broker: &Arc<Broker>, queue: &mut UnboundedReceiver<Passed>) {
        while let Some(ended) = self.owed.try_join_next().or_else(|| self.long.try_join_next()) {
            self.ended(broker, ended);
        }
        let Some(until) = self.waiting.first_key_value().map(|(_, first)| first.until) else {
            return self.receive(broker, queue).await;
        };
        let NoMaster { why, is_final } = match self.find(broker, until).await {
            Ok(connection) => match self.send_first(broker, &connection) {
                Ok(()) => return,
                Err(no) => no,
            },
            Err(no) => no,
        };
        if is_final || Instant::now() + LOOK_AGAIN >= until {
            if let Some(first) = self.take_first(broker) {
                refuse(broker, first, &why);
            }
            return;
        }
        if let Some(mut first) = self.waiting.first_entry()
            && !std::mem::replace(&mut first.get_mut().is_held, true)
        {
            Counts::count(&broker.to_master.counts.held);
        }
        tokio::select! {
            biased;
            Some(ended) = self.owed.join_next() => self.ended(broker, ended),
            Some(ended) = self.long.join_next() => self.ended(broker, ended),
            () = sleep(LOOK_AGAIN) => {}
        }
    }

    fn take_first(&mut self, broker: &Broker) -> Option<Passed> {
        let (_, first) = self.waiting.pop_first()?;
        broker.to_master.waiting.fetch_sub(1, Ordering::Relaxed);
        Some(first)
    }

    /// Sends the first request, unless answers of another connection are owed: what comes back stands before it.
    fn send_first(&mut self, broker: &Arc<Broker>, connection: &Connection<()>) -> Result<(), NoMaster> {
        let is_another = self.last.as_ref().is_some_and(|last| last.connection.id() != connection.id());
        if is_another && !self.owed.is_empty() {
            return Err(NoMaster::now("the answers of the last master are not here yet".to_owned()));
        }
        let Some((_, first)) = self.waiting.first_key_value() else { return Ok(()) };
        let begun = begin(connection, first).map_err(|error| NoMaster::now(error.to_string()))?;
        self.last = self.known.clone();
        let Some(passed) = self.take_first(broker) else { return Ok(()) };
        match begun {
            Some(begun) => {
                let all = if passed.waits_long { &mut self.long } else { &mut self.owed };
                let going = broker.to_master.going.subscribe();
                all.spawn(answer(Arc::clone(broker), begun, passed, going));
            }
            None => Counts::count(&broker.to_master.counts.forwarded),
        }
        Ok(())
    }

    /// Tells the clients of requests that wait, and whose connections go away, to ask again on another one.
    fn turn_away(&mut self, broker: &Broker) {
        let (going, stay) =
            std::mem::take(&mut self.waiting).into_iter().partition(|(_, passed)| passed.asker.goes_away());
        self.waiting = stay;
        let going: BTreeMap<u64, Passed> = going;
        for (_, passed) in going {
            broker.to_master.waiting.fetch_sub(1, Ordering::Relaxed);
            if passed.reply_to.is_oneway {
                refuse(broker, passed, "this broker begins anew");
            } else if passed.knows_go_away {
                passed.turn_away();
            }
            // Another client asks again when its connection ends without an answer.
        }
    }

    /// The connection to the broker that says it is the master.
    async fn find(&mut self, broker: &Broker, until: Instant) -> Result<Connection<()>, NoMaster> {
        let epoch = broker.switch.epoch();
        if let Some(last) = self.last.as_ref().filter(|last| last.epoch < epoch) {
            // What a master says whose epoch is over is not passed on.
            last.connection.close();
        }
        self.known.take_if(|known| known.connection.goes_away() || known.epoch < epoch);
        if let Some(known) = &self.known {
            return Ok(known.connection.clone());
        }
        let mut candidates: Vec<Arc<str>> = Vec::new();
        let handed = broker.switch.kept().handed.map(|handed| Arc::from(handed.address));
        let last = broker.to_master.last.lock().clone();
        for address in [handed, broker.following.master(), last].into_iter().flatten() {
            if !candidates.contains(&address) {
                candidates.push(address);
            }
        }
        let mut none = NoMaster::now("the master of this set is not known".to_owned());
        let count = candidates.len();
        for (place, address) in candidates.into_iter().enumerate() {
            // Each has its share of the time that is left: nobody may be at the first one.
            let others = u32::try_from(count - place).unwrap_or(u32::MAX);
            let share = until.saturating_duration_since(Instant::now()) / others;
            match timeout(share, ask(broker, &address)).await {
                Ok(Ok(known)) => {
                    let connection = known.connection.clone();
                    self.known = Some(known);
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

impl NoMaster {
    fn now(why: String) -> NoMaster {
        NoMaster { why, is_final: false }
    }
}

/// Asks a broker whether it is the master, and gives the connection to it.
async fn ask(broker: &Broker, address: &str) -> Result<Known, NoMaster> {
    let not_now = |why: String| NoMaster::now(format!("the master at {address}: {why}"));
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
    let epoch = u64::try_from(state.epoch).unwrap_or(0);
    if epoch < broker.switch.epoch() {
        return Err(not_now(format!("its epoch {epoch} is over")));
    }
    Ok(Known { connection, epoch })
}

/// Leaves a request on the connection. None if nobody answers it.
fn begin(connection: &Connection<()>, passed: &Passed) -> Result<Option<Begun<()>>, CallError> {
    let client = passed.client.to_string();
    let fields = AskForClient { client: &client };
    if !passed.reply_to.is_oneway {
        return connection.begin(request::ASK_FOR_CLIENT, &fields, &passed.frame).map(Some);
    }
    if connection.oneway(request::ASK_FOR_CLIENT, &fields, &passed.frame) {
        return Ok(None);
    }
    let address = connection.peer().to_string();
    Err(if connection.is_closed() { CallError::Closed { address } } else { CallError::Busy { address } })
}

/// Passes the answer on. Gives back a request that the broker there has not taken, since it is no
/// master.
async fn answer(
    broker: Arc<Broker>,
    begun: Begun<()>,
    passed: Passed,
    mut going: watch::Receiver<()>,
) -> Option<Passed> {
    let limit = if passed.waits_long { LONG_ANSWER } else { ANSWER };
    let answered = tokio::select! {
        biased;
        answered = begun.response(limit) => answered,
        // Nothing is lost if nobody waits for messages any more.
        _ = going.changed(), if passed.waits_long => return Some(passed),
    };
    match answered {
        Ok(answer) if answer.fields.get(NOT_MASTER).is_some() => return Some(passed),
        Ok(answer) if answer.code == ResponseCode::GoAway as i32 => return Some(passed),
        Ok(answer) => {
            Counts::count(&broker.to_master.counts.forwarded);
            passed.answer(answer);
        }
        Err(error) => {
            Counts::count(&broker.to_master.counts.unanswered);
            say(&broker, passed, &format!("{error}: the master may have carried it out"));
        }
    }
    None
}
