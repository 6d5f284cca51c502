//! The master's side of one slave, without socket or clock: [`Feed::step`] takes what happened and says what to do.
//!
//! A slave speaks Apache's plain stream, or that of Gantry (`feed/hearing.rs`), on which it says first who it is. From its first report on the two differ
//! only in their bytes, and in that the second also tells what is on the slave's device.
//!
//! A slave is sent nothing before its first report, which says where the transfer begins. From then on each report acknowledges what lies
//! below it. Anybody can connect and send 8 bytes, so a report counts only if the slave can have the bytes: the first one must lie below what
//! slaves can have of this log ([`LogRange::given`]), a later one below what was sent on this connection, and none may go back. What does not
//! fit ends the connection. A report may lie inside a record: Apache's slave takes frames, which end anywhere, and reports what it has of them.
//!
//! `feed/driver.rs` has the socket and reads the log, `feed/port.rs` lets slaves in.

mod closed;
mod driver;
mod hearing;
mod port;

use std::sync::Arc;
use std::time::Duration;

use protocol::LogOffset;
use tokio::sync::watch;

use crate::wire::own::{self, Identity, Member};
use crate::wire::plain::{self, BODY_BYTES};
use crate::wire::secret::Nonce;
use hearing::{Greeter, Heard, Hearing};

pub use closed::{CLOSED, Closed};
pub use port::{Allowed, FeedPort, PortOptions};

/// A hello and what follows up to the first report may take so long.
const GREETING_PATIENCE: Duration = Duration::from_secs(5);

/// How long bytes that are less than a frame wait for the slave's word on what was sent before. A
/// slave that is level answers sooner, and what gathers meanwhile goes out together: each frame
/// costs both sides some wakings, however short it is. A slave that says nothing holds up no byte
/// for longer.
const GATHERING: Duration = Duration::from_millis(1);

/// How a slave is fed.
#[derive(Clone, Debug)]
pub struct FeedOptions {
    /// The longest body of a frame (`haTransferBatchSize`).
    pub body_bytes: usize,
    /// Where nothing was sent for so long, a heartbeat is (`haSendHeartbeatInterval`).
    pub heartbeat: Duration,
    /// A slave that does not report for so long is gone (`haHousekeepingInterval`).
    pub silence: Duration,
    /// A slave with an empty log gets the last file only, as Apache's master gives it; else all of the log (`syncFromLastFile`).
    pub from_last_file: bool,
    /// Bytes of bodies a second (`maxHaTransferByteInSecond`); none: as many as go through.
    pub bytes_per_second: Option<u64>,
}

impl FeedOptions {
    /// These, which do not change.
    pub fn fixed(self) -> watch::Receiver<FeedOptions> {
        watch::channel(self).1
    }

    fn allowance(&self, now: Duration) -> Option<Allowance> {
        self.bytes_per_second.map(|per_second| Allowance { per_second, left: per_second, at: now })
    }
}

impl Default for FeedOptions {
    /// Apache's defaults, but for an empty slave, which gets all of the log.
    fn default() -> FeedOptions {
        FeedOptions {
            body_bytes: BODY_BYTES,
            heartbeat: Duration::from_secs(5),
            silence: Duration::from_secs(20),
            from_last_file: false,
            bytes_per_second: None,
        }
    }
}

/// Where the master's log begins and ends at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRange {
    /// The oldest byte.
    pub min: u64,
    /// What can be sent ends here.
    pub end: u64,
    /// What this slave can have from before it connected ends here: where the log ended when the store was opened, or what was sent to a slave
    /// between then and the connection; also the first record, which it may have by a request. Bytes above it are the master's alone: a slave
    /// that reports them has others, of a master that has lost them.
    pub given: u64,
    /// `mappedFileSizeCommitLog`.
    pub segment_bytes: u64,
}

/// Something happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// Bytes came from the slave.
    Heard(&'a [u8]),
    /// So many bytes of the log were read for the frame that was asked for; they go out now.
    Read(usize),
    /// The frame, or the heartbeat, is out.
    Sent,
    /// Time has passed, or the log has grown.
    Due,
}

/// What to send next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// The answer to the slave's hello, as it is; [`Event::Sent`] follows.
    Answer(Vec<u8>),
    /// A heartbeat; [`Event::Sent`] follows.
    Heartbeat {
        /// Where the next frame will begin.
        at: LogOffset,
    },
    /// Bytes of the log, of one file; [`Event::Read`] and [`Event::Sent`] follow.
    Frame {
        /// Where they begin.
        at: LogOffset,
        /// How many at most.
        max: usize,
    },
}

/// What follows from an event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// The first report has come, and the transfer begins here.
    pub begun: Option<LogOffset>,
    /// The slave has what lies below; only told when it was less before, or with the first report.
    pub acknowledged: Option<LogOffset>,
    /// The slave has what lies below on its device; told as `acknowledged`, and never on the plain stream.
    pub flushed: Option<LogOffset>,
    /// Send this.
    pub send: Option<Outgoing>,
}

/// Bytes that may be sent now, where there is a limit for a second.
#[derive(Debug)]
struct Allowance {
    per_second: u64,
    left: u64,
    /// When `left` was counted.
    at: Duration,
}

impl Allowance {
    /// At most a second's worth gathers.
    fn refill(&mut self, now: Duration) {
        let since = now.saturating_sub(self.at).as_micros().min(1_000_000);
        let more = (u128::from(self.per_second) * since / 1_000_000) as u64;
        // What is less than a byte goes on gathering.
        if more > 0 || since == 1_000_000 {
            self.left = self.left.saturating_add(more).min(self.per_second);
            self.at = now;
        }
    }

    /// When `bytes` bytes are allowed.
    fn when(&self, bytes: u64) -> Duration {
        let missing = u128::from(bytes.saturating_sub(self.left));
        let micros = (missing * 1_000_000).div_ceil(u128::from(self.per_second.max(1)));
        self.at + Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }
}

/// Where a feed is in its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing is under way.
    Idle,
    /// Bytes of the log are being read.
    Reading,
    /// A frame or a heartbeat is going out.
    Sending,
}

/// The header of a frame, as long as the slave's stream has it.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    bytes: [u8; own::HEADER_BYTES],
    len: usize,
}

impl Header {
    fn put(&mut self, bytes: &[u8]) {
        self.len = bytes.len();
        self.bytes[..self.len].copy_from_slice(bytes);
    }
}

impl AsRef<[u8]> for Header {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The state of one slave. See the module.
#[derive(Debug)]
pub struct Feed {
    options: FeedOptions,
    hearing: Hearing,
    /// A hello that has begun has to be over by then.
    greets_until: Option<Duration>,
    /// The answer to it, which has yet to go out.
    answer: Option<Vec<u8>>,
    /// Where the transfer began; none before the first report.
    began: Option<u64>,
    /// The next frame begins here: what lies between `began` and this was sent, or is going out.
    next: u64,
    acknowledged: u64,
    /// What is on the slave's device, if it tells.
    flushed: u64,
    stage: Stage,
    /// Until then less than a frame waits for the slave's word; none: nothing does.
    gathers_until: Option<Duration>,
    heard_at: Duration,
    sent_at: Duration,
    allowance: Option<Allowance>,
    /// See [`Feed::after`].
    refused: Option<Refused>,
}

/// What a slave reported before while no slave could have it. It has not got the bytes since: nothing was sent to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The report.
    pub report: u64,
    /// [`LogRange::given`] at that time.
    pub given: u64,
}

impl Feed {
    /// For a slave that has just connected.
    pub fn new(options: FeedOptions, now: Duration) -> Feed {
        Feed {
            allowance: options.allowance(now),
            options,
            hearing: Hearing::Nothing(None),
            greets_until: None,
            answer: None,
            began: None,
            next: 0,
            acknowledged: 0,
            flushed: 0,
            stage: Stage::Idle,
            gathers_until: None,
            heard_at: now,
            sent_at: now,
            refused: None,
        }
    }

    /// The slave may speak the stream of Gantry as well, to this member of the set. `nonce` is used for this connection only.
    #[must_use]
    pub fn greeting(self, member: Arc<Member>, nonce: Nonce) -> Feed {
        Feed { hearing: Hearing::Nothing(Some(Greeter { member, nonce })), ..self }
    }

    /// A slave of this address was turned away before, as it was ahead. That matters if it speaks the plain stream: one of Gantry has compared the
    /// logs before it comes.
    #[must_use]
    pub fn after(self, refused: Option<Refused>) -> Feed {
        Feed { refused, ..self }
    }

    /// From now on the slave is fed in another way. Where its transfer began stays.
    pub fn tune(&mut self, options: FeedOptions, now: Duration) {
        if options.bytes_per_second != self.options.bytes_per_second {
            self.allowance = options.allowance(now);
        }
        self.options = options;
    }

    /// Where the next frame begins.
    pub fn next(&self) -> LogOffset {
        LogOffset(self.next)
    }

    /// Which broker the slave is, if it speaks the stream of Gantry and has proved what it has to.
    pub fn who(&self) -> Option<&Identity> {
        self.hearing.who()
    }

    /// Whether the slave speaks the stream of Gantry.
    pub fn is_own(&self) -> bool {
        self.hearing.is_own()
    }

    /// The header of a frame with so many bytes of the log, or of a heartbeat. `asks_for_device`: what is on the slave's device counts.
    pub fn header(&self, at: LogOffset, body_bytes: u32, asks_for_device: bool) -> Header {
        let mut header = Header { bytes: [0; own::HEADER_BYTES], len: 0 };
        if self.hearing.is_own() {
            header.put(&own::header(at, body_bytes, asks_for_device));
        } else {
            header.put(&plain::header(at, body_bytes));
        }
        header
    }

    /// What the slave is sent as the last, between two frames; none if it would not understand it, or knows.
    pub fn farewell(&self, why: &Closed) -> Option<Vec<u8>> {
        (self.hearing.is_own() && why.is_news()).then(|| own::end(&why.to_string()))
    }

    /// When [`Event::Due`] has to come at the latest.
    pub fn due(&self) -> Duration {
        let silence = self.heard_at + self.options.silence;
        let silence = self.greets_until.map_or(silence, |until| silence.min(until));
        if self.began.is_none() || self.stage != Stage::Idle {
            return silence;
        }
        let heartbeat = self.sent_at + self.options.heartbeat;
        let allowed = self.allowance.as_ref().filter(|allowance| allowance.left < self.least(allowance));
        let allowed = allowed.map_or(heartbeat, |allowance| allowance.when(self.least(allowance)));
        let due = silence.min(heartbeat).min(allowed);
        self.gathers_until.map_or(due, |until| due.min(until))
    }

    /// [`Event::Due`] has to come when the log's end is above this; none: whatever its end.
    pub fn waits_above(&self) -> Option<LogOffset> {
        let is_held = self.allowance.as_ref().is_some_and(|allowance| allowance.left < self.least(allowance));
        let gathered = if self.gathers_until.is_some() { self.options.body_bytes as u64 - 1 } else { 0 };
        (self.began.is_some() && self.stage == Stage::Idle && !is_held)
            .then_some(LogOffset(self.next.saturating_add(gathered)))
    }

    /// The bytes that have to be allowed before a frame is worth sending.
    fn least(&self, allowance: &Allowance) -> u64 {
        allowance.per_second.min(self.options.body_bytes as u64)
    }

    /// Takes an event. After an error the connection ends.
    pub fn step(&mut self, now: Duration, log: LogRange, event: Event<'_>) -> Result<Effects, Closed> {
        let mut effects = Effects::default();
        match event {
            Event::Heard(mut bytes) => {
                while let Some(heard) = self.hearing.next(&mut bytes, log)? {
                    self.heard_at = now;
                    match heard {
                        Heard::Greeted(answer) => self.answer = Some(answer),
                        Heard::Has { written, flushed } => {
                            self.reported(log, written.0, &mut effects)?;
                            flushed
                                .map_or(Ok(()), |flushed| self.reported_flushed(flushed.0, written.0, &mut effects))?;
                        }
                    }
                }
                if self.hearing.is_own() && self.began.is_none() {
                    self.greets_until.get_or_insert(now + GREETING_PATIENCE);
                } else {
                    self.greets_until = None;
                }
            }
            Event::Read(bytes) => {
                self.next += bytes as u64;
                self.stage = Stage::Sending;
                if let Some(allowance) = &mut self.allowance {
                    allowance.left = allowance.left.saturating_sub(bytes as u64);
                }
            }
            Event::Sent => {
                self.stage = Stage::Idle;
                self.sent_at = now;
                self.gathers_until = Some(now + GATHERING);
            }
            Event::Due => {}
        }
        let has_all = self.next <= self.acknowledged.max(self.began.unwrap_or(0));
        self.gathers_until = self.gathers_until.filter(|until| now < *until && !has_all);
        if self.greets_until.is_some_and(|until| now >= until) {
            return Err(Closed::HalfHello(GREETING_PATIENCE));
        }
        let silent = now.saturating_sub(self.heard_at);
        if silent > self.options.silence {
            return Err(Closed::Silent(silent));
        }
        effects.send = self.look(now, log)?;
        Ok(effects)
    }

    fn reported(&mut self, log: LogRange, report: u64, effects: &mut Effects) -> Result<(), Closed> {
        let Some(began) = self.began else {
            // A log that begins with a file of ours, and has nothing of it, may have been made a moment ago, by what we say of our log.
            let begins_here = report.is_multiple_of(log.segment_bytes.max(1)) && report <= log.end;
            let given = log.given.min(log.end);
            if report > given && !begins_here {
                return Err(Closed::Ahead { report, given });
            }
            // Others have got as much since. This one has not.
            let is_plain = !self.hearing.is_own();
            let refused = self.refused.filter(|refused| is_plain && refused.report == report);
            if let Some(Refused { report, given }) = refused {
                return Err(Closed::Ahead { report, given });
            }
            let begin = match report {
                0 if self.options.from_last_file => (log.end - log.end % log.segment_bytes.max(1)).max(log.min),
                0 => log.min,
                _ if report < log.min => return Err(Closed::Behind { report, min: log.min }),
                _ => report,
            };
            let acknowledged = report.min(given);
            (self.began, self.next, self.acknowledged) = (Some(begin), begin, acknowledged);
            (effects.begun, effects.acknowledged) = (Some(LogOffset(begin)), Some(LogOffset(acknowledged)));
            return Ok(());
        };
        if report > self.next {
            return Err(Closed::Unsent { report, sent: self.next });
        }
        // It has nothing of what was sent.
        if report == self.acknowledged || report == began {
            return Ok(());
        }
        // An empty slave has nothing until it has something of what was sent.
        let before = self.acknowledged.max(began);
        if report < before {
            return Err(Closed::Back { report, before });
        }
        self.acknowledged = report;
        effects.acknowledged = Some(LogOffset(report));
        Ok(())
    }

    /// What is on the slave's device, of what it has reported.
    fn reported_flushed(&mut self, report: u64, written: u64, effects: &mut Effects) -> Result<(), Closed> {
        if report > written {
            return Err(Closed::Unsent { report, sent: written });
        }
        if report < self.flushed {
            return Err(Closed::Back { report, before: self.flushed });
        }
        // As in the log, what the master alone had before the slave came does not count.
        let report = report.min(self.acknowledged);
        if report > self.flushed || effects.begun.is_some() {
            self.flushed = report;
            effects.flushed = Some(LogOffset(report));
        }
        Ok(())
    }

    fn look(&mut self, now: Duration, log: LogRange) -> Result<Option<Outgoing>, Closed> {
        if self.stage == Stage::Idle
            && let Some(answer) = self.answer.take()
        {
            self.stage = Stage::Sending;
            return Ok(Some(Outgoing::Answer(answer)));
        }
        if self.began.is_none() || self.stage != Stage::Idle {
            return Ok(None);
        }
        let at = LogOffset(self.next);
        if self.next < log.min {
            return Err(Closed::Behind { report: self.next, min: log.min });
        }
        let mut max = self.options.body_bytes;
        let least = if self.gathers_until.is_some() { max as u64 } else { 1 };
        if log.end.saturating_sub(self.next) >= least {
            if let Some(allowance) = &mut self.allowance {
                allowance.refill(now);
            }
            if let Some(allowance) = &self.allowance {
                let allowed = allowance.left >= self.least(allowance);
                max = if allowed { max.min(usize::try_from(allowance.left).unwrap_or(max)) } else { 0 };
            }
            if max > 0 {
                self.stage = Stage::Reading;
                return Ok(Some(Outgoing::Frame { at, max }));
            }
        }
        if now.saturating_sub(self.sent_at) >= self.options.heartbeat {
            self.stage = Stage::Sending;
            return Ok(Some(Outgoing::Heartbeat { at }));
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests;
