//! A slave's driver: connects, asks, gives [`Follow`] what has come over the link, and takes blocks to the log, without waiting for anything.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use env::Random;
use net::CallError;
use protocol::LogOffset;
use replica::asking::{Apart, AskError, Extent};
use replica::follow::deciding::{self, Failure, Missing, OwnLog, Put};
use replica::follow::greeting::{Greeter, NotGreeted};
use replica::follow::{BackOff, Block, Broken, Event, Follow, FollowEnd, FollowOptions};
use replica::wire::own::{self, Greeting, Member};
use store::{CopyError, LogCopy, Misfit, Store};

use super::Lie;
use super::links::{End, Link, Links};
use crate::side::Side;
use crate::verdict::{Report, Verdict};

const CONNECT_PATIENCE: Duration = Duration::from_secs(3);
const GREETING_PATIENCE: Duration = Duration::from_secs(5);
/// For a question and its answer, in ms.
const ASK_PATIENCE_MS: u64 = 3_000;
/// A connection that lasted for so long was a good one, if the master said anything.
const GOOD_AFTER: Duration = Duration::from_secs(10);
/// The master is not asked more often than this while the log comes.
const ASK_EVERY_MIN: Duration = Duration::from_secs(1);
/// Steps from one wait to the next in a turn.
const STEPS_MAX: u32 = 8;
/// Pieces of a block that go to the log in a turn.
const PUTS_MAX: u32 = 64;

/// What the master is asked at its main port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    Extent,
    Record(LogOffset),
}

/// What it answers.
pub(super) enum Answer {
    Extent(Extent),
    Record(Result<Bytes, AskError>),
}

/// A question on its way.
pub(super) struct Ask {
    pub question: Question,
    /// When the master gets it.
    pub arrives: u64,
    deadline: u64,
    /// The answer, and when it comes; none: the master's host refuses the connection.
    pub answer: Option<(u64, Option<Answer>)>,
}

/// A block on its way to the log.
struct Folding {
    block: Block,
    has_waited: bool,
}

/// A connection on which the log comes.
struct Stream {
    follow: Follow,
    folding: Option<Folding>,
    /// Of the block before.
    buffer: Vec<u8>,
    asked_at: LogOffset,
    /// When the master is asked next; and the question.
    ask_due: Duration,
    ask: Option<Ask>,
    out: Vec<u8>,
}

/// What it waits for.
enum State {
    Pause {
        until: Duration,
    },
    Connecting {
        link: Option<Link>,
        until: Duration,
    },
    First {
        ask: Ask,
    },
    FirstPut {
        folding: Folding,
        bytes: usize,
    },
    Mark,
    Lies {
        own: OwnLog,
        ask: Ask,
    },
    Compares {
        at: LogOffset,
        record: Vec<u8>,
        ask: Ask,
    },
    /// The stream of Gantry begins with who they are.
    Greets {
        greeter: Box<Greeter>,
        out: Vec<u8>,
        until: Duration,
    },
    Streams(Box<Stream>),
    /// The owner has to do something.
    Ended,
}

/// What others have to know.
pub(super) enum Told {
    /// It was agreed that the logs are the same, and the first report goes out.
    Began { link: Link },
    /// The log has to begin there.
    BeginAt(LogOffset),
}

/// What surrounds a slave in a turn.
pub(super) struct Around<'a> {
    pub links: &'a mut Links,
    pub now: u64,
    pub lie: Option<Lie>,
    pub report: &'a mut Report,
}

/// See the module's head.
pub(super) struct Following {
    number: usize,
    pub master: usize,
    options: FollowOptions,
    member: Option<Arc<Member>>,
    state: State,
    link: Option<Link>,
    copy: Option<LogCopy>,
    back_off: BackOff,
    missing: Missing,
    begun: Duration,
    end_before: u64,
    has_heard: bool,
    /// Why the last attempt failed, and since when an operator is asked for.
    pub failure: Option<Failure>,
    pub refused_at: Option<u64>,
}

impl Following {
    pub fn new(
        number: usize,
        master: usize,
        options: FollowOptions,
        member: Option<Arc<Member>>,
        random: Random,
    ) -> Following {
        Following {
            number,
            master,
            options,
            member,
            state: State::Pause { until: Duration::ZERO },
            link: None,
            copy: None,
            back_off: BackOff::new(random),
            missing: Missing::default(),
            begun: Duration::ZERO,
            end_before: 0,
            has_heard: false,
            failure: None,
            refused_at: None,
        }
    }

    /// The bytes that have come of a record that is not whole yet, and where it begins.
    pub fn begun_record(&self) -> Option<u64> {
        self.copy.as_ref().map(|copy| copy.next().0)
    }

    /// The question on its way.
    pub fn asks(&mut self) -> Option<&mut Ask> {
        match &mut self.state {
            State::First { ask } | State::Lies { ask, .. } | State::Compares { ask, .. } => Some(ask),
            State::Streams(stream) => stream.ask.as_mut(),
            State::Pause { .. }
            | State::Connecting { .. }
            | State::FirstPut { .. }
            | State::Mark
            | State::Greets { .. }
            | State::Ended => None,
        }
    }

    /// Goes on.
    pub fn step(&mut self, side: &Side, around: &mut Around<'_>) -> Option<Told> {
        let Some(store) = &side.store else { return None };
        let _in_charge = side.world.turns.enter();
        for _ in 0..STEPS_MAX {
            let state = std::mem::replace(&mut self.state, State::Ended);
            let before = std::mem::discriminant(&state);
            match self.go_on(state, side, store, around) {
                Ok((state, told)) => {
                    let is_same = std::mem::discriminant(&state) == before;
                    self.state = state;
                    if told.is_some() || is_same {
                        return told;
                    }
                }
                Err(failure) => return self.failed(failure, side, store, around),
            }
        }
        None
    }

    fn failed(&mut self, failure: Failure, side: &Side, store: &Arc<Store>, around: &mut Around<'_>) -> Option<Told> {
        if let Some(link) = self.link.take() {
            around.links.close(link, End::Slave, around.now);
        }
        self.copy = None;
        let elapsed = side.world.clock.elapsed();
        let is_good = self.has_heard && elapsed.saturating_sub(self.begun) >= GOOD_AFTER;
        if store.end().0 > self.end_before || is_good {
            self.back_off.succeeded();
            self.missing = Missing::default();
        }
        let failure = match failure.into_end(store.options().segment_bytes, self.options.from_last_file) {
            Ok(FollowEnd::BeginAt(at)) => return Some(Told::BeginAt(at)),
            Ok(FollowEnd::Stopped | FollowEnd::StoreClosed) => return None,
            Err(failure) => self.missing.weigh(failure, elapsed),
        };
        around.report.tell(|| format!("the {} does not follow: {failure}", side.name));
        let has_misled = matches!(&failure, Failure::NotGreeted(why) if !matches!(why, NotGreeted::Refused(_)));
        let is_wrong = has_misled
            || matches!(
                failure,
                Failure::Broken(Broken::Elsewhere { .. } | Broken::Misread(_) | Broken::MisreadOwn(_)) | Failure::Bug
            );
        if is_wrong {
            around.report.find(Verdict::Differs, format!("the {}: {failure}", side.name));
        }
        if is_for_operators(&failure) {
            self.refused_at.get_or_insert(around.now);
        }
        self.failure = Some(failure);
        self.state = State::Pause { until: elapsed + self.back_off.pause() };
        None
    }

    fn ask(&self, question: Question, around: &Around<'_>) -> Ask {
        let arrives = around.now + around.links.latency();
        Ask { question, arrives, deadline: around.now + ASK_PATIENCE_MS, answer: None }
    }

    fn go_on(
        &mut self,
        state: State,
        side: &Side,
        store: &Arc<Store>,
        around: &mut Around<'_>,
    ) -> Result<(State, Option<Told>), Failure> {
        let elapsed = side.world.clock.elapsed();
        let state = match state {
            State::Ended => State::Ended,
            State::Pause { until } if elapsed < until => state,
            State::Pause { .. } => {
                self.copy = Some(LogCopy::new(Arc::clone(store), Box::new(|_| Ok(HashSet::new()))));
                (self.begun, self.end_before, self.has_heard) = (elapsed, store.end().0, false);
                let link = around.links.connect(self.number, self.master, around.now);
                State::Connecting { link, until: elapsed + CONNECT_PATIENCE }
            }
            State::Connecting { link: Some(link), .. } if around.links.is_ready(link, around.now) => {
                self.link = Some(link);
                if OwnLog::of(store).wants_first(self.options.from_last_file) {
                    State::First { ask: self.ask(Question::Extent, around) }
                } else {
                    State::Mark
                }
            }
            State::Connecting { until, .. } if elapsed >= until => {
                return Err(Failure::Connect(io::ErrorKind::TimedOut.into()));
            }
            State::Connecting { link, until } => {
                let link = link.or_else(|| around.links.connect(self.number, self.master, around.now));
                State::Connecting { link, until }
            }
            State::First { mut ask } => match ask.answered(around)? {
                None => State::First { ask },
                Some(Answer::Extent(extent)) if deciding::has_first(extent)? => {
                    State::First { ask: self.ask(Question::Record(LogOffset(0)), around) }
                }
                Some(Answer::Extent(_)) => State::Mark,
                Some(Answer::Record(record)) => {
                    let record = record?;
                    let bytes = record.len();
                    let block = Block { at: 0, bytes: record.into() };
                    State::FirstPut { folding: Folding { block, has_waited: false }, bytes }
                }
            },
            State::FirstPut { mut folding, bytes } => {
                if !self.put(&mut folding, store)? {
                    State::FirstPut { folding, bytes }
                } else if store.end().0 != bytes as u64 || bytes == 0 {
                    return Err(Failure::FirstRecord { bytes });
                } else {
                    State::Mark
                }
            }
            State::Mark => {
                store.want_flush();
                let own = OwnLog::of(store);
                if mark(store, None) < own.end.0 {
                    State::Mark
                } else if own.end.0 == 0 || around.lie == Some(Lie::NobodyAsks) {
                    return self.begin(side, store, around);
                } else {
                    State::Lies { own, ask: self.ask(Question::Extent, around) }
                }
            }
            State::Lies { own, mut ask } => match ask.answered(around)? {
                Some(Answer::Extent(extent)) => {
                    own.continued_by(extent, self.options.from_last_file)?;
                    let Some((at, record)) = deciding::record_to_compare(store, extent)? else {
                        return self.begin(side, store, around);
                    };
                    State::Compares { at, record, ask: self.ask(Question::Record(at), around) }
                }
                Some(Answer::Record(_)) | None => State::Lies { own, ask },
            },
            State::Compares { at, record, mut ask } => match ask.answered(around)? {
                Some(Answer::Record(answer)) => {
                    deciding::compare(at, &record, answer)?;
                    return self.begin(side, store, around);
                }
                Some(Answer::Extent(_)) | None => State::Compares { at, record, ask },
            },
            State::Greets { mut greeter, mut out, until } => {
                let Some(link) = self.link else { return Err(Failure::Bug) };
                if !side.has_crashed() {
                    let sent = around.links.send(link, End::Slave, &out, around.now);
                    out.drain(..sent);
                }
                let (bytes, is_over) = around.links.receive(link, End::Slave);
                let mut heard = bytes.as_slice();
                match greeter.heard(&mut heard)? {
                    Some(proof) => return self.streams(proof, heard, side, store, around),
                    None if is_over => return Err(Failure::Closed),
                    None if elapsed >= until => return Err(Failure::Socket(io::ErrorKind::TimedOut.into())),
                    None => State::Greets { greeter, out, until },
                }
            }
            State::Streams(mut stream) => {
                self.stream(&mut stream, side, store, around)?;
                State::Streams(stream)
            }
        };
        Ok((state, None))
    }

    /// The logs agree.
    fn begin(
        &mut self,
        side: &Side,
        store: &Arc<Store>,
        around: &mut Around<'_>,
    ) -> Result<(State, Option<Told>), Failure> {
        let (Some(member), Some(link)) = (&self.member, self.link) else {
            return self.streams(Vec::new(), &[], side, store, around);
        };
        let OwnLog { min, end, segment_bytes } = OwnLog::of(store);
        let (version, who, nonce) = (own::VERSION, member.who.clone(), super::nonce_of(link));
        let greeting = Greeting { version, who, segment_bytes, min, end, nonce };
        let greeter = Box::new(Greeter::new(member, greeting)?);
        let (out, until) = (greeter.hello().to_vec(), side.world.clock.elapsed() + GREETING_PATIENCE);
        Ok((State::Greets { greeter, out, until }, None))
    }

    /// The first report goes out, behind what is to be said before it. Something may have come already.
    fn streams(
        &mut self,
        before: Vec<u8>,
        early: &[u8],
        side: &Side,
        store: &Arc<Store>,
        around: &mut Around<'_>,
    ) -> Result<(State, Option<Told>), Failure> {
        let Some(link) = self.link else { return Err(Failure::Bug) };
        let (has, elapsed) = (store.end(), side.world.clock.elapsed());
        let has_answered = has.0 > 0 || !self.options.from_last_file;
        let mut follow = Follow::new(self.options, store.options().segment_bytes, elapsed, has, has_answered);
        if self.member.is_some() {
            follow = follow.on_own();
        }
        let ask_due = elapsed + self.ask_every();
        let (folding, buffer, ask) = (None, Vec::new(), None);
        let mut stream = Stream { follow, folding, buffer, asked_at: has, ask_due, ask, out: Vec::new() };
        check_report(has, side, store, around.report);
        stream.out = [before, stream.follow.report(LogOffset(store.flushed().get()))].concat();
        stream.follow.step(elapsed, Event::Heard(early))?;
        around.report.tell(|| format!("the {} follows the master, from {} on", side.name, has.0));
        (self.failure, self.refused_at) = (None, None);
        Ok((State::Streams(Box::new(stream)), Some(Told::Began { link })))
    }

    fn ask_every(&self) -> Duration {
        self.options.heartbeat.saturating_mul(2).max(ASK_EVERY_MIN)
    }

    fn stream(
        &mut self,
        stream: &mut Stream,
        side: &Side,
        store: &Arc<Store>,
        around: &mut Around<'_>,
    ) -> Result<(), Failure> {
        let Some(link) = self.link else { return Err(Failure::Bug) };
        let elapsed = side.world.clock.elapsed();
        if !stream.send(link, side, around) {
            return Ok(());
        }
        if stream.folding.is_none()
            && let Some(block) = stream.follow.take_block(elapsed, std::mem::take(&mut stream.buffer))
        {
            stream.folding = Some(Folding { block, has_waited: false });
        }
        if let Some(mut folding) = stream.folding.take() {
            if self.put(&mut folding, store)? {
                stream.buffer = folding.block.bytes;
            } else {
                stream.folding = Some(folding);
            }
        }
        stream.step(Event::Has(LogOffset(mark(store, around.lie))), side, store, around)?;
        if !stream.follow.is_full() {
            let (bytes, is_over) = around.links.receive(link, End::Slave);
            if !bytes.is_empty() {
                stream.step(Event::Heard(&bytes), side, store, around)?;
            } else if is_over {
                return Err(Failure::Closed);
            }
        }
        if stream.follow.waits_for_device().is_some() {
            store.want_flush();
            stream.step(Event::Flushed(LogOffset(store.flushed().get())), side, store, around)?;
        }
        if around.lie == Some(Lie::ReportsBeforeAppends) {
            stream.step(Event::Has(stream.follow.next()), side, store, around)?;
        }
        if stream.follow.due() <= elapsed {
            stream.step(Event::Due, side, store, around)?;
        }
        if let Some(ask) = &mut stream.ask {
            let answer = match ask.answered(around) {
                Ok(None) => None,
                Ok(Some(Answer::Extent(extent))) => Some(Some(extent)),
                Ok(Some(Answer::Record(_))) | Err(_) => Some(None),
            };
            if let Some(extent) = answer {
                stream.follow.answered(stream.asked_at, extent)?;
                (stream.ask, stream.asked_at) = (None, stream.follow.next());
                stream.ask_due = elapsed + self.ask_every();
                stream.step(Event::Due, side, store, around)?;
            }
        } else if elapsed >= stream.ask_due {
            stream.ask = Some(self.ask(Question::Extent, around));
        }
        if stream.folding.is_none() {
            stream.follow.settled(store.end())?;
        }
        self.has_heard |= stream.follow.has_heard();
        stream.send(link, side, around);
        Ok(())
    }

    /// Puts a block into the log. Says whether all of it is there.
    fn put(&mut self, folding: &mut Folding, store: &Store) -> Result<bool, Failure> {
        let Some(copy) = &mut self.copy else { return Err(Failure::Bug) };
        for _ in 0..PUTS_MAX {
            match deciding::put_some(
                copy,
                LogCopy::append,
                store.options().segment_bytes,
                &folding.block,
                &mut folding.has_waited,
            )? {
                Put::All => return Ok(true),
                Put::Some => {}
                Put::Waits(_) => return Ok(false),
            }
        }
        Ok(false)
    }
}

impl Stream {
    fn step(&mut self, event: Event<'_>, side: &Side, store: &Store, around: &mut Around<'_>) -> Result<(), Failure> {
        if let Some(has) = self.follow.step(side.world.clock.elapsed(), event)? {
            check_report(has, side, store, around.report);
            self.out.extend_from_slice(&self.follow.report(LogOffset(store.flushed().get())));
        }
        Ok(())
    }

    /// Sends what is to go out. A process that has crashed sends nothing.
    fn send(&mut self, link: Link, side: &Side, around: &mut Around<'_>) -> bool {
        if !side.has_crashed() {
            let sent = around.links.send(link, End::Slave, &self.out, around.now);
            self.out.drain(..sent);
        }
        self.out.is_empty()
    }
}

impl Ask {
    /// The answer, once it has come.
    fn answered(&mut self, around: &Around<'_>) -> Result<Option<Answer>, AskError> {
        let address = || "the master".to_owned();
        if self.answer.as_ref().is_some_and(|(due, _)| *due <= around.now) {
            let answer = self.answer.take().and_then(|(_, answer)| answer);
            return answer.map(Some).ok_or_else(|| CallError::Closed { address: address() }.into());
        }
        if around.now >= self.deadline {
            let after = Duration::from_millis(ASK_PATIENCE_MS);
            return Err(CallError::Timeout { address: address(), after }.into());
        }
        Ok(None)
    }
}

/// What a report counts: on the device with SYNC_FLUSH, else in the kernel's hands.
fn mark(store: &Store, lie: Option<Lie>) -> u64 {
    let is_flushed = store.is_sync_flush() && lie != Some(Lie::ReceivedIsFlushed);
    if is_flushed { store.flushed().get() } else { store.written().get() }
}

/// A report is never above what the log has.
fn check_report(has: LogOffset, side: &Side, store: &Store, report: &mut Report) {
    let mark = mark(store, None);
    if has.0 > mark && !side.has_crashed() {
        report.find(Verdict::Lost, format!("the {} reports {}, and has the log up to {mark}", side.name, has.0));
    }
}

/// Whether a failure stays until somebody does something about it.
pub(super) fn is_for_operators(failure: &Failure) -> bool {
    match failure {
        Failure::Apart(_) | Failure::Damaged { .. } => true,
        Failure::Copy(CopyError::NotEmpty { .. }) => true,
        Failure::Broken(_)
        | Failure::NotGreeted(_)
        | Failure::Copy(_)
        | Failure::NotAFile { .. }
        | Failure::Ask(_)
        | Failure::Store(_)
        | Failure::Missing { .. }
        | Failure::FirstRecord { .. }
        | Failure::Connect(_)
        | Failure::Socket(_)
        | Failure::Closed
        | Failure::BeginAt(_)
        | Failure::OtherMaster
        | Failure::Bug => is_of_file_size(failure),
    }
}

/// Whether a failure says that files of the two logs have different sizes.
pub(super) fn is_of_file_size(failure: &Failure) -> bool {
    if let Failure::NotGreeted(NotGreeted::Refused(why)) = failure {
        return why.contains("mappedFileSizeCommitLog");
    }
    matches!(
        failure,
        Failure::NotAFile { .. }
            | Failure::Broken(Broken::AcrossFiles { .. })
            | Failure::Copy(CopyError::Refused { why: Misfit::OtherFileSize { .. }, .. })
    )
}

/// Whether the master has removed what comes next.
pub(super) fn is_removed(failure: &Failure) -> bool {
    matches!(failure, Failure::Apart(Apart::Removed { .. }))
}
