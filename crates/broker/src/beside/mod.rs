//! Requests that are carried out beside the network workers, because of what they may cost ([`Runs`]): on threads that serve no
//! connection, one request of a connection at a time.
//!
//! Two queues, so that a client whose heartbeat is long does not wait behind operators' questions. The answer comes back through the
//! connection's inbox, and the next request of that connection begins when its task has taken it: a peer that asks without reading has
//! one answer in memory, not all. Nobody waits for a request whose connection ends, so it is given up then: before it begins, or between
//! two steps of a long one ([`Session::is_wanted`]).

mod queue;

use std::sync::Arc;
use std::time::Duration;

use net::{Outgoing, OwnedRequest, Request};
use protocol::code::{RequestCode, ResponseCode, Runs};
use tokio::task::JoinSet;

pub(crate) use self::queue::WAITING_MAX;
use self::queue::{BesideTurn, FairQueue};
use crate::blocking;
use crate::broker::Broker;
use crate::client_handle::ClientHandle;
use crate::cold::Unanswered;
use crate::critical::run_critical;
use crate::inbox::Errand;
use crate::refusal::{Refusal, SOON};
use crate::session::Session;
use crate::state::clients::Clients;
use crate::tasks::Stop;

/// Requests, and answers of clients, up to this many bytes count as small and stay on the network worker.
pub(crate) const SMALL_BYTES: usize = 16 << 10;
/// A longer answer is given up while replies of all connections hold more than they may.
const LONG_ANSWER_BYTES: usize = 1 << 20;
/// Processors for each request that is carried out beside the workers at the same time.
const PROCESSORS_EACH: usize = 4;

/// A thread of operators' requests rests no longer than this between two of them.
const REST_MAX: Duration = Duration::from_millis(500);
/// Shorter rests are saved up: a timer is no finer than this.
const REST_MIN: Duration = Duration::from_millis(2);

/// What waits for a thread.
struct Work(Box<Piece>);

type Piece = dyn FnOnce(&Broker, BesideTurn<Work>) + Send;

/// The way to the queue of clients, for a task that does not hold the broker.
pub(crate) struct OfClients(Arc<FairQueue<Work>>);

impl OfClients {
    /// Has something carried out in the turn of a connection, because of `bytes` that its peer sent. False if too much waits: then it
    /// is dropped.
    pub(crate) fn submit(&self, connection: u64, bytes: usize, work: impl FnOnce(&Broker) + Send + 'static) -> bool {
        let work = move |broker: &Broker, turn: BesideTurn<Work>| {
            work(broker);
            drop(turn);
        };
        self.0.push(connection, bytes, Work(Box::new(work))).is_ok()
    }
}

/// The two queues.
pub(crate) struct Beside {
    clients: Arc<FairQueue<Work>>,
    operators: Arc<FairQueue<Work>>,
}

impl Beside {
    pub(crate) fn new() -> Beside {
        Beside { clients: Arc::new(FairQueue::new()), operators: Arc::new(FairQueue::new()) }
    }

    /// See [`OfClients`].
    pub(crate) fn of_clients(&self) -> OfClients {
        OfClients(Arc::clone(&self.clients))
    }

    /// How many requests wait.
    pub(crate) fn waiting(&self) -> usize {
        self.clients.waiting() + self.operators.waiting()
    }
}

/// The task: has others take from the queues. When it is told to end it drops what waits, and waits for what is under way.
pub(crate) async fn serve(broker: Arc<Broker>, mut stop: Stop) {
    let Beside { clients, operators } = &broker.beside;
    clients.open();
    operators.open();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    // A simulated run must not depend on the machine.
    let at_once = if disk::turns::are_given() { 1 } else { (processors / PROCESSORS_EACH).max(1) };
    // Nor does it rest.
    let pace = || (!disk::turns::are_given()).then(Pace::default);
    let mut tasks = JoinSet::new();
    tasks.spawn(run_critical("long requests of clients", run(Arc::clone(&broker), Arc::clone(clients), None)));
    for _ in 0..at_once {
        tasks.spawn(run_critical("requests of operators", run(Arc::clone(&broker), Arc::clone(operators), pace())));
    }
    stop.asked().await;
    clients.stop();
    operators.stop();
    while tasks.join_next().await.is_some() {}
}

async fn run(broker: Arc<Broker>, queue: Arc<FairQueue<Work>>, mut pace: Option<Pace>) {
    // Ends when the queue is stopped.
    while let Some((Work(work), turn)) = queue.next().await {
        let broker = Arc::clone(&broker);
        let timed = move || {
            let began = broker.clock.elapsed();
            work(&broker, turn);
            broker.clock.elapsed().saturating_sub(began)
        };
        // A panic is in the log, and the asker was told.
        let took = blocking::spawn(timed).await.unwrap_or_default();
        if let Some(pace) = &mut pace
            && let Some(rest) = pace.after(took, queue.waiting() > 0)
        {
            queue.rest(rest).await;
        }
    }
}

/// How long a thread of operators' requests rests between them.
///
/// A flood of questions for a large table would take a whole processor from the network workers. So the thread rests as long as it worked
/// while others wait, and a single tool, which asks again when it has its answer, is not slowed down. A lower priority of the thread would
/// do harm: it takes locks that the workers take, too, and would hold them for as long as it gets no processor.
#[derive(Default)]
struct Pace {
    owed: Duration,
}

impl Pace {
    /// After a request that took so long: how long to rest now.
    fn after(&mut self, took: Duration, others_wait: bool) -> Option<Duration> {
        if !others_wait {
            self.owed = Duration::ZERO;
            return None;
        }
        self.owed = self.owed.saturating_add(took);
        (self.owed >= REST_MIN).then(|| std::mem::take(&mut self.owed).min(REST_MAX))
    }
}

/// Whether a request is too much for the network worker.
pub(crate) fn is_wanted_for(clients: &Clients<ClientHandle>, code: RequestCode, request: &Request<'_>) -> bool {
    match code.row().runs {
        Runs::OnWorker | Runs::Unserved => false,
        Runs::BySize => request.bytes() > SMALL_BYTES || clients.has_crowd(),
        Runs::Beside => true,
    }
}

/// Has a request carried out beside.
pub(crate) fn hand_over(
    beside: &Beside,
    session: &Session,
    code: RequestCode,
    request: &Request<'_>,
    out: &mut Outgoing,
) {
    if let Err(refusal) = submit(beside, session, code, request) {
        out.reply(request.reply_to(), refusal.code, Some(&refusal.remark), &(), &[]);
    }
}

fn submit(beside: &Beside, session: &Session, code: RequestCode, request: &Request<'_>) -> Result<(), Refusal> {
    let queue = match code.row().runs {
        Runs::Beside => &beside.operators,
        Runs::OnWorker | Runs::BySize | Runs::Unserved => &beside.clients,
    };
    let (owned, bytes) = (OwnedRequest::of(request), request.bytes());
    let reply_to = request.reply_to();
    let apart = session.apart(reply_to);
    let debt = session.inbox.owe();
    let work = move |broker: &Broker, turn: BesideTurn<Work>| {
        let Some(mut own) = apart.open() else { return };
        let inbox = Arc::clone(&own.inbox);
        let unanswered = Unanswered::new(&inbox, Some(reply_to));
        let mut out = Outgoing::new();
        if let Err(refusal) = own.check_wanted().and_then(|()| check_room(&own)) {
            out.reply(reply_to, refusal.code, Some(&refusal.remark), &(), &[]);
        } else if owned.lend(|request| broker.answer(&mut own, Some(code), request, &mut out)).is_err() {
            out.reply(reply_to, ResponseCode::SystemError, Some("[GANTRY]the header cannot be read again"), &(), &[]);
        }
        drop(unanswered);
        let mut frames = out.take();
        // Of peers that do not read each may have its last answer, but not one of any length.
        if frames.memory_bytes() > LONG_ANSWER_BYTES
            && let Err(many) = own.connection.check_long_reply()
        {
            let refusal = Refusal::busy(many, SOON);
            out.reply(reply_to, refusal.code, Some(&refusal.remark), &(), &[]);
            frames = out.take();
        }
        // What was computed is given, however much others have filled meanwhile.
        let laid = own.connection.lay_aside(frames.memory_bytes()).ok();
        // Not with the session: an inbox must not hold itself.
        let (asked, done) = (Some(reply_to), own.done());
        inbox.push(Errand::then_gather(asked, move |broker, session, out| {
            session.answering(broker, asked, out, |session, out| {
                session.take_over(&done);
                out.extend(frames);
            });
            drop((laid, turn));
        }));
        drop(debt);
    };
    let pushed = queue.push(session.connection.id(), bytes, Work(Box::new(work)));
    pushed.map_err(|full| Refusal::busy(format!("[GANTRY]broker busy, {full}"), SOON))
}

/// Replies that nobody reads fill the memory: no more is computed for a peer that has its share of them.
fn check_room(session: &Session) -> Result<(), Refusal> {
    match session.connection.lay_aside(0) {
        Ok(laid) => {
            drop(laid);
            Ok(())
        }
        Err(many) => Err(Refusal::busy(many, SOON)),
    }
}

/// Ends what a connection was: behind its requests that are still carried out, and beside if it is a lot.
pub(crate) fn at_the_end(
    broker: &Broker,
    connection: u64,
    is_a_lot: bool,
    work: impl FnOnce(&Broker) + Send + 'static,
) {
    let queue = &broker.beside.clients;
    if !is_a_lot && !queue.has(connection) {
        return work(broker);
    }
    queue.push_last(connection, Work(Box::new(move |broker, _| work(broker))));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_questions_gets_half_of_a_thread_and_a_single_tool_all_of_it() {
        let ms = Duration::from_millis;
        let mut pace = Pace::default();
        assert_eq!(pace.after(ms(100), true), Some(ms(100)));
        assert_eq!(pace.after(ms(1), true), None, "saved up");
        assert_eq!(pace.after(ms(1), true), Some(ms(2)));
        assert_eq!(pace.after(ms(60_000), true), Some(REST_MAX));
        assert_eq!(pace.after(ms(100), false), None);
        assert_eq!((pace.after(ms(1), true), pace.after(ms(60_000), false)), (None, None));
        assert_eq!(pace.after(ms(1), true), None, "what was saved up is forgotten when nobody waits");
    }
}
