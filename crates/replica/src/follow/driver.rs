//! The socket and the log of a slave: one task that connects, reads and reports, and has blocks put into the log by a thread that may wait.
//!
//! It holds a block that gathers and one that goes to the log. When both are full the socket is not read, so that memory stays the same
//! however fast the master is. One block at a time is under way, and nobody else appends to the log.

use std::collections::HashSet;
use std::convert::Infallible;
use std::future::{Future, pending};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use env::{Clock, Random};
use protocol::LogOffset;
use store::{AppendError, CopyError, LogCopy, Store, TopicsUnknown};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::back_off::BackOff;
use super::deciding::{Failure, Missing, OwnLog, Put, compare, has_first, put_some, record_to_compare};
use super::greeting::{Greeter, NotGreeted};
use super::status::FollowStatus;
use super::{Block, Event, Follow, FollowOptions};
use crate::asking::{AskError, AskMaster, Extent};
use crate::wire::own::{self, Greeting, Member};
use crate::wire::secret::nonce;

/// Bytes that are read from the socket at a time.
const READ_BYTES: usize = 64 << 10;
/// A block of what one read brings goes into the log at once: some tens of microseconds. Where more has gathered the slave is behind, and reads
/// while a thread puts it into the log.
const AT_ONCE_BYTES: usize = READ_BYTES;
const CONNECT_PATIENCE: Duration = Duration::from_secs(3);
/// For a hello and its answer.
const GREETING_PATIENCE: Duration = Duration::from_secs(5);
const GREETING_READ_BYTES: usize = 4 << 10;
/// Between two looks whether the log takes bytes again, and whether that is still wanted.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A connection that lasted for so long was a good one, if the master said anything.
const GOOD_AFTER: Duration = Duration::from_secs(10);
/// The master is not asked more often than this while the log comes.
const ASK_EVERY_MIN: Duration = Duration::from_secs(1);

/// Why a slave does not follow any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowEnd {
    /// It was to stop.
    Stopped,
    /// The store is being closed.
    StoreClosed,
    /// The log here is empty, and the master's begins at this file. The owner closes the store, lets it begin there
    /// ([`LogCopy::begin_at`]), opens it, and follows anew.
    BeginAt(LogOffset),
}

/// Given topics that are new to the log, names those whose records may hold batches (`queue.type=BatchCQ`). Called on a thread that may wait.
/// Where it is not known the record is not taken, and comes again with another connection.
pub type BatchTopics = Arc<dyn Fn(&[&str]) -> Result<HashSet<String>, TopicsUnknown> + Send + Sync>;

/// A slave that follows its master.
pub struct Follower {
    /// Gets the copy. Nobody else appends to it.
    pub store: Arc<Store>,
    /// The time.
    pub clock: Clock,
    /// Spreads attempts to connect.
    pub random: Random,
    /// How it follows, also while it does.
    pub options: watch::Receiver<FollowOptions>,
    /// Knows the topics with batches.
    pub batch_topics: BatchTopics,
    /// Asks the master about its log, before it is followed.
    pub asking: AskMaster,
    /// As which broker of its set it shows itself to a master of Gantry; none: it speaks Apache's plain stream only.
    pub member: Option<Arc<Member>>,
    /// What others see of it.
    pub status: Arc<FollowStatus>,
}

/// What the task waited for.
enum Happened {
    Heard(usize),
    Folded,
    Has,
    Flushed,
    Due,
    Tuned,
    /// The master was asked again how its log lies.
    Asked(Result<Extent, AskError>),
}

impl Follower {
    /// Follows the master at the address that `masters` shows (`host:port` of its HA port), and another one as soon as it shows that, until
    /// `stop` is done. It has to be driven to its end: dropped, it may leave a block on its way to the log.
    pub async fn run(
        self,
        mut masters: watch::Receiver<Option<Arc<str>>>,
        stop: impl Future<Output = ()> + Send,
    ) -> FollowEnd {
        let mut back_off = BackOff::new(self.random.clone());
        let mut stop = std::pin::pin!(stop);
        // A master that is away for hours is one line.
        let mut told: Option<String> = None;
        let mut missing = Missing::default();
        loop {
            let master = masters.borrow_and_update().clone();
            let (mut folding, begun, before) = (Folding::default(), self.clock.elapsed(), self.store.end());
            let mut has_heard = false;
            let failure = tokio::select! {
                biased;
                () = &mut stop => None,
                () = another(&mut masters, master.as_ref()) => Some(Failure::OtherMaster),
                failure = self.attempt(master.as_ref(), &mut folding, &mut has_heard) => Some(failure),
            };
            folding.finish().await;
            self.status.ended(failure.as_ref().map(Failure::to_string));
            let Some(failure) = failure else { return FollowEnd::Stopped };
            let is_good = has_heard && self.clock.elapsed().saturating_sub(begun) >= GOOD_AFTER;
            if self.store.end() > before || is_good {
                back_off.succeeded();
                (told, missing) = (None, Missing::default());
            }
            let failure = match self.end_of(failure) {
                Ok(end) => return end,
                Err(Failure::OtherMaster) => continue,
                Err(failure) => missing.weigh(failure, self.clock.elapsed()),
            };
            let pause = back_off.pause();
            let why = failure.to_string();
            if told.as_ref() != Some(&why) {
                let pause_ms = pause.as_millis() as u64;
                warn!(master = master.as_deref(), pause_ms, "the master is not followed, trying again: {why}");
            }
            self.status.ended(Some(why.clone()));
            told = Some(why);
            tokio::select! {
                biased;
                () = &mut stop => return FollowEnd::Stopped,
                () = another(&mut masters, master.as_ref()) => {}
                () = sleep(pause) => {}
            }
        }
    }

    /// Whether the failure is an end for the owner.
    fn end_of(&self, failure: Failure) -> Result<FollowEnd, Failure> {
        let end = failure.into_end(self.store.options().segment_bytes, self.options().from_last_file)?;
        if let FollowEnd::BeginAt(at) = end {
            info!(%at, "the log here is empty and is to begin with a file of the master's");
        }
        Ok(end)
    }

    async fn attempt(&self, master: Option<&Arc<str>>, folding: &mut Folding, has_heard: &mut bool) -> Failure {
        let Some(master) = master else { return pending().await };
        self.status.trying(master);
        match self.follow(master, folding, has_heard).await {
            Ok(never) => match never {},
            Err(failure) => failure,
        }
    }

    /// How it follows now.
    fn options(&self) -> FollowOptions {
        *self.options.borrow()
    }

    /// What a report counts: on the device with SYNC_FLUSH, else in the kernel's hands.
    fn mark(&self) -> &disk::Watermark {
        if self.store.is_sync_flush() { self.store.flushed() } else { self.store.written() }
    }

    async fn follow(&self, master: &str, folding: &mut Folding, has_heard: &mut bool) -> Result<Infallible, Failure> {
        let batch_topics = Arc::clone(&self.batch_topics);
        folding.copy = Some(LogCopy::new(Arc::clone(&self.store), Box::new(move |new| batch_topics(new))));
        // First of all: it ends with the master, so all that is asked now is of the log that comes then.
        let mut socket = connect(master).await?;
        let member = self.greets_as().await?;
        if let Some(member) = &member {
            // What is asked from here on may put a record into the log, take over epochs and cut the log: first the two say who they are, and prove it
            // if they have a secret. On a connection of its own, since the first report has to come soon behind a hello.
            let mut trial = connect(master).await?;
            self.greet(&mut trial, member).await?;
        }
        if OwnLog::of(&self.store).wants_first(self.options().from_last_file) {
            self.take_first(folding).await?;
        }
        // The first report acknowledges all of the log, and cannot name another place for the next byte.
        self.store.want_flush();
        // A master that counts what is on the device asks for it with its first frame, which may take a heartbeat.
        let safe = if member.is_some() { self.store.flushed() } else { self.mark() };
        safe.reached(self.store.end().0).await;
        self.agree().await?;

        let has = self.store.end();
        let segment_bytes = self.store.options().segment_bytes;
        // Unless it was not asked.
        let has_answered = has.0 > 0 || !self.options().from_last_file;
        let mut options = self.options.clone();
        let mut follow =
            Follow::new(*options.borrow_and_update(), segment_bytes, self.clock.elapsed(), has, has_answered);
        let mut early = Vec::new();
        if let Some(member) = &member {
            follow = follow.on_own();
            early = self.greet(&mut socket, member).await?;
        }
        self.report(&mut socket, &mut follow).await?;
        self.status.begun(member.is_some());
        self.status.connected(has_answered);
        follow.step(self.clock.elapsed(), Event::Heard(&early))?;
        info!(master, %has, is_own = member.is_some(), "the master is followed");
        let mut buffer = vec![0; READ_BYTES];
        let mut asked_at = has;
        let mut asking = pin!(self.ask_later());
        loop {
            // The buffer is given away only for a block: without it the next one would grow from nothing.
            if folding.is_idle()
                && follow.has_block()
                && let Some(block) = follow.take_block(self.clock.elapsed(), std::mem::take(&mut folding.buffer))
            {
                folding.start(self, block);
            }
            let left = follow.due().saturating_sub(self.clock.elapsed());
            let mark = self.mark();
            let happened = tokio::select! {
                read = socket.read(&mut buffer), if !follow.is_full() => match read {
                    Ok(0) => return Err(Failure::Closed),
                    Ok(bytes) => Happened::Heard(bytes),
                    Err(error) => return Err(Failure::Socket(error)),
                },
                folded = folding.done() => {
                    folded?;
                    Happened::Folded
                }
                () = mark.reached(follow.reported().0.saturating_add(1)) => Happened::Has,
                () = flushed_beyond(&self.store, follow.waits_for_device()) => Happened::Flushed,
                extent = asking.as_mut() => Happened::Asked(extent),
                () = tuned(&mut options) => Happened::Tuned,
                () = sleep(left) => Happened::Due,
            };
            let now = self.clock.elapsed();
            let report = match happened {
                Happened::Heard(bytes) => {
                    self.status.heard(self.clock.now(), now, bytes as u64);
                    follow.step(now, Event::Heard(&buffer[..bytes]))?
                }
                Happened::Folded | Happened::Has => {
                    let report = follow.step(now, Event::Has(LogOffset(mark.get())))?;
                    if follow.waits_for_device().is_some() {
                        self.store.want_flush();
                    }
                    report
                }
                Happened::Flushed => follow.step(now, Event::Flushed(LogOffset(self.store.flushed().get())))?,
                Happened::Due => follow.step(now, Event::Due)?,
                Happened::Tuned => {
                    follow.tune(*options.borrow_and_update());
                    asking.set(self.ask_later());
                    follow.step(now, Event::Due)?
                }
                Happened::Asked(extent) => {
                    follow.answered(asked_at, extent.ok())?;
                    asked_at = follow.next();
                    asking.set(self.ask_later());
                    follow.step(now, Event::Due)?
                }
            };
            if folding.is_idle() {
                follow.settled(self.store.end())?;
            }
            *has_heard |= follow.has_heard();
            self.status.connected(follow.is_live());
            if report.is_some() {
                self.report(&mut socket, &mut follow).await?;
            }
        }
    }

    /// Gets the first record of the master's log by itself: a report of 0 would bring the last file.
    async fn take_first(&self, folding: &mut Folding) -> Result<(), Failure> {
        if !has_first(self.asking.extent().await?)? {
            return Ok(());
        }
        let record = self.asking.record(LogOffset(0)).await?;
        let bytes = record.len();
        folding.start(self, Block { at: 0, bytes: record.into() });
        folding.done().await?;
        if self.store.end().0 != bytes as u64 || bytes == 0 {
            return Err(Failure::FirstRecord { bytes });
        }
        Ok(())
    }

    /// Whether the master's log goes on where the log here ends: a master of Apache takes any report, and goes on anywhere.
    async fn agree(&self) -> Result<(), Failure> {
        // Looked at before the master is asked: its log grows.
        let own = OwnLog::of(&self.store);
        if own.end.0 == 0 {
            return Ok(());
        }
        let extent = self.asking.extent().await?;
        own.continued_by(extent, self.options().from_last_file)?;
        let store = Arc::clone(&self.store);
        let reading = tokio::task::spawn_blocking(move || record_to_compare(&store, extent));
        let Some((at, record)) = reading.await.map_err(|_| Failure::Bug)?? else {
            warn!(end = %own.end, "no record here can be compared with the master's: it is not known whether the logs agree");
            return Ok(());
        };
        compare(at, &record, self.asking.record(at).await)
    }

    /// Asks the master after a while how its log lies: whether it still has what comes next. One of Apache says nothing of it when files go
    /// before they were copied: only heartbeats come then.
    async fn ask_later(&self) -> Result<Extent, AskError> {
        sleep(self.options().heartbeat.saturating_mul(2).max(ASK_EVERY_MIN)).await;
        self.asking.extent().await
    }

    /// As whom the master is greeted; none: it speaks the plain stream.
    async fn greets_as(&self) -> Result<Option<Arc<Member>>, Failure> {
        let Some(member) = &self.member else { return Ok(None) };
        match self.asking.is_own().await {
            Ok(true) => Ok(Some(Arc::clone(member))),
            Ok(false) if member.secret.is_some() => Err(NotGreeted::Plain.into()),
            // Its main port is not known.
            Err(AskError::NoMaster { .. }) if member.secret.is_none() => Ok(None),
            Ok(false) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Says who this is, and has the master say the same. Returns what has come behind that.
    async fn greet(&self, socket: &mut TcpStream, member: &Member) -> Result<Vec<u8>, Failure> {
        let own = OwnLog::of(&self.store);
        let greeting = Greeting {
            version: own::VERSION,
            who: member.who.clone(),
            segment_bytes: own.segment_bytes,
            min: own.min,
            end: own.end,
            nonce: nonce().map_err(Failure::Socket)?,
        };
        let mut greeter = Greeter::new(member, greeting)?;
        let greeted = timeout(GREETING_PATIENCE, greeted(socket, &mut greeter)).await;
        let failure = match greeted.unwrap_or_else(|_| Err(Failure::Socket(io::ErrorKind::TimedOut.into()))) {
            Ok(early) => return Ok(early),
            Err(failure) => failure,
        };
        if let Failure::NotGreeted(why) = &failure
            && let Some(note) = why.told()
        {
            // The connection ends in any case.
            let _ = timeout(GREETING_PATIENCE, socket.write_all(&note.encode())).await;
        }
        Err(failure)
    }

    async fn report(&self, socket: &mut TcpStream, follow: &mut Follow) -> Result<(), Failure> {
        let report = follow.report(LogOffset(self.store.flushed().get()));
        // A few bytes for which there is no room: the master has not read for long.
        let written = timeout(self.options().silence, socket.write_all(&report)).await;
        written.map_err(|_| io::Error::from(io::ErrorKind::TimedOut)).flatten().map_err(Failure::Socket)?;
        self.status.reported(self.clock.now());
        Ok(())
    }
}

/// Waits until more than this is on the device; for ever if that is nothing to wait for.
async fn flushed_beyond(store: &Store, reported: Option<LogOffset>) {
    match reported {
        Some(reported) => store.flushed().reached(reported.0.saturating_add(1)).await,
        None => pending().await,
    }
}

/// Sends a hello, waits for the answer, and sends what follows from it. Returns what has come behind the answer.
async fn greeted(socket: &mut TcpStream, greeter: &mut Greeter) -> Result<Vec<u8>, Failure> {
    socket.write_all(greeter.hello()).await.map_err(Failure::Socket)?;
    let mut buffer = vec![0; GREETING_READ_BYTES];
    loop {
        let mut heard = match socket.read(&mut buffer).await.map_err(Failure::Socket)? {
            0 => return Err(Failure::Closed),
            bytes => &buffer[..bytes],
        };
        if let Some(proof) = greeter.heard(&mut heard)? {
            socket.write_all(&proof).await.map_err(Failure::Socket)?;
            return Ok(heard.to_vec());
        }
    }
}

async fn connect(master: &str) -> Result<TcpStream, Failure> {
    let connecting = timeout(CONNECT_PATIENCE, TcpStream::connect(master)).await;
    let late = || io::Error::from(io::ErrorKind::TimedOut);
    let socket = connecting.map_err(|_| late()).flatten().map_err(Failure::Connect)?;
    socket.set_nodelay(true).map_err(Failure::Connect)?;
    Ok(socket)
}

/// Waits for other options, for ever if there will be none.
async fn tuned(options: &mut watch::Receiver<FollowOptions>) {
    if options.changed().await.is_err() {
        pending().await
    }
}

/// Waits until `masters` shows another one.
async fn another(masters: &mut watch::Receiver<Option<Arc<str>>>, current: Option<&Arc<str>>) {
    // Ends when it does.
    loop {
        if masters.changed().await.is_err() {
            // Nobody will say anything any more.
            return pending().await;
        }
        if masters.borrow_and_update().as_ref() != current {
            return;
        }
    }
}

/// The way of blocks to the log.
#[derive(Default)]
struct Folding {
    /// None while a block is under way.
    copy: Option<LogCopy>,
    /// Of the block before.
    buffer: Vec<u8>,
    running: Option<JoinHandle<Folded>>,
    /// A block that took no thread.
    at_once: Option<Result<(), CopyError>>,
    /// Nobody waits for the block any more. Relaxed: a hint.
    give_up: Arc<AtomicBool>,
}

/// A block that is done with.
struct Folded {
    copy: LogCopy,
    buffer: Vec<u8>,
    taken: Result<(), CopyError>,
}

impl Folding {
    fn is_idle(&self) -> bool {
        self.running.is_none() && self.at_once.is_none()
    }

    /// Puts a block into the log: a short one at once, since handing it to a thread and hearing of it takes longer than the append, one that is longer
    /// or may have to wait with a thread. None is under way.
    fn start(&mut self, follower: &Follower, block: Block) {
        let Some(mut copy) = self.copy.take() else { return };
        if block.bytes.len() <= AT_ONCE_BYTES
            && let Some(taken) = fold_at_once(&follower.store, &mut copy, &block)
        {
            (self.copy, self.buffer, self.at_once) = (Some(copy), block.bytes, Some(taken));
            return;
        }
        let (store, status) = (Arc::clone(&follower.store), Arc::clone(&follower.status));
        let give_up = Arc::clone(&self.give_up);
        self.running = Some(tokio::task::spawn_blocking(move || {
            let taken = fold(&store, &mut copy, &block, &status, &give_up);
            Folded { copy, buffer: block.bytes, taken }
        }));
    }

    /// Waits until the block is in the log; for ever if none is under way.
    async fn done(&mut self) -> Result<(), Failure> {
        if let Some(taken) = self.at_once.take() {
            return Ok(taken?);
        }
        let Some(running) = &mut self.running else { return pending().await };
        let folded = running.await;
        self.running = None;
        let Folded { copy, buffer, taken } = folded.map_err(|_| Failure::Bug)?;
        (self.copy, self.buffer) = (Some(copy), buffer);
        Ok(taken?)
    }

    /// Waits until the thread has left the log alone.
    async fn finish(&mut self) {
        self.give_up.store(true, Ordering::Relaxed);
        if let Some(running) = self.running.take() {
            // How it ended is told by another attempt.
            drop(running.await);
        }
    }
}

/// Puts a block into the log without waiting; none: the rest of it takes a thread that may.
fn fold_at_once(store: &Store, copy: &mut LogCopy, block: &Block) -> Option<Result<(), CopyError>> {
    let segment_bytes = store.options().segment_bytes;
    let mut has_waited = false;
    // Each turn takes bytes, or is the last.
    loop {
        match put_some(copy, LogCopy::append_at_once, segment_bytes, block, &mut has_waited) {
            Ok(Put::All) => return Some(Ok(())),
            Ok(Put::Some) => {}
            Ok(Put::Waits(_)) | Err(CopyError::NotAtOnce) => return None,
            Err(error) => return Some(Err(error)),
        }
    }
}

/// Puts a block into the log, file by file, and waits where there is no room.
fn fold(
    store: &Store,
    copy: &mut LogCopy,
    block: &Block,
    status: &FollowStatus,
    give_up: &AtomicBool,
) -> Result<(), CopyError> {
    let segment_bytes = store.options().segment_bytes;
    let mut has_waited = false;
    // Each turn takes bytes, waits for room, or is the last.
    loop {
        let was_waiting = has_waited;
        let error = match put_some(copy, LogCopy::append, segment_bytes, block, &mut has_waited)? {
            Put::All => return Ok(()),
            Put::Some => {
                if was_waiting {
                    status.blocked(None);
                }
                continue;
            }
            Put::Waits(error) => error,
        };
        if give_up.load(Ordering::Relaxed) {
            return Err(error.into());
        }
        let look = Instant::now() + LOOK_EVERY;
        match &error {
            AppendError::NoRoomYet { needed } => store.room().wait_until(*needed, look),
            AppendError::PoolFull { from, .. } => store.written().wait_until(from + 1, look),
            AppendError::NotWritable(_) | AppendError::TooLong { .. } => {
                status.blocked(Some(error.to_string()));
                // Only a pause: the log never comes there.
                store.room().wait_until(u64::MAX, look)
            }
        };
    }
}
