//! The slave's side of a connection, without socket and clock: [`Follow::step`] takes what happened and says when to report.
//!
//! A master of Gantry that says so at its main port gives its log on the stream of Gantry, any other one on Apache's plain one. They differ in how a
//! connection begins (`follow/greeting.rs`) and in their bytes; and a report also says what is on the device, at once if the master asks for that.
//!
//! The slave reports as soon as it is connected and knows that the logs agree (`asking.rs`), which tells the master where to begin; Apache's
//! waits up to 5 s. From then on each byte has to come at its place. Bodies gather in a block, which the driver takes to the log; what the log has then is reported, in one report
//! for all that has come by then. A slave never takes a report back.
//!
//! `follow/driver.rs` has the socket, the log and the attempts to connect, `follow/back_off.rs` the pauses between these, `follow/deciding.rs` what
//! follows from the master's answers, and how a block goes to the log.

mod back_off;
pub mod deciding;
mod driver;
pub mod greeting;
mod status;

use std::time::Duration;

use protocol::LogOffset;
use tokio::sync::watch;

use crate::asking::{Apart, Extent};
use crate::wire::own::{self, Note};
use crate::wire::plain::{self, Misread};

pub use back_off::BackOff;
pub use driver::{BatchTopics, FollowEnd, Follower};
pub use status::FollowStatus;

/// Bytes of the log that gather while a block before them goes to the log.
const BLOCK_BYTES: usize = 1 << 20;

/// Heartbeats at the same place after which the master has nothing more.
const HEARTBEATS_IDLE: u32 = 2;

/// By so much the first heartbeat may come later than its interval says.
const FIRST_FRAME_LATE: Duration = Duration::from_secs(1);

/// How a slave follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowOptions {
    /// Where nothing was reported for so long, the last report is repeated (`haSendHeartbeatInterval`).
    pub heartbeat: Duration,
    /// A master that sends nothing for so long is gone (`haHousekeepingInterval`).
    pub silence: Duration,
    /// With an empty log only the master's last file is copied (`syncFromLastFile`).
    pub from_last_file: bool,
}

impl FollowOptions {
    /// These, which do not change.
    pub fn fixed(self) -> watch::Receiver<FollowOptions> {
        watch::channel(self).1
    }
}

impl Default for FollowOptions {
    /// Apache's defaults, but for an empty log, for which all of the master's is copied.
    fn default() -> FollowOptions {
        FollowOptions { heartbeat: Duration::from_secs(5), silence: Duration::from_secs(20), from_last_file: false }
    }
}

/// Something happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// Bytes came from the master.
    Heard(&'a [u8]),
    /// The log has what lies below this, as surely as the flush mode asks for.
    Has(LogOffset),
    /// The device has what lies below this.
    Flushed(LogOffset),
    /// Time has passed.
    Due,
}

/// Bytes of the log, in order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// The log offset of the first one.
    pub at: u64,
    /// The bytes. They may go beyond the end of a file.
    pub bytes: Vec<u8>,
}

/// What does not follow in the stream of a master.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// Bytes that are no frame.
    #[error(transparent)]
    Misread(#[from] Misread),
    /// The same on the stream of Gantry.
    #[error(transparent)]
    MisreadOwn(#[from] own::Misread),
    /// The master ends the connection.
    #[error("the master ends the connection: {0}")]
    Ended(String),
    /// A frame of another place.
    #[error(
        "the master goes on at log offset {at}, the log here ends at {expected}: the logs differ; cut this log, or move its store away to copy \
         anew"
    )]
    Elsewhere {
        /// Where the frame begins.
        at: u64,
        /// Where it should.
        expected: u64,
    },
    /// A master's frame lies in one file.
    #[error(
        "the frame of {bytes} bytes at log offset {at} does not end in its file of {segment_bytes}: files of the two logs have different \
         sizes, set mappedFileSizeCommitLog as there and copy the log anew"
    )]
    AcrossFiles {
        /// Where it begins.
        at: u64,
        /// How long it is.
        bytes: u32,
        /// How long our files are.
        segment_bytes: u64,
    },
    /// The master has nothing more, and the log here has only a part of its last record.
    #[error(
        "the record at log offset {at} is not whole at {next}, where the master has nothing more: its length was damaged on the way, and it is \
         asked for again"
    )]
    Unfinished {
        /// Where it begins.
        at: u64,
        /// Where the next byte belongs.
        next: u64,
    },
    /// The log here is empty, and the master's first frame is not of the first file.
    #[error("the master begins at log offset {at}, and the log here is empty")]
    BeginsAt {
        /// Where it begins.
        at: u64,
    },
    /// Nothing came for too long.
    #[error("the master was silent for {} ms (haHousekeepingInterval)", .0.as_millis())]
    Silent(Duration),
}

/// Reads frames of either stream.
#[derive(Debug)]
enum Frames {
    Plain(plain::Frames),
    Own(own::Frames),
}

impl Frames {
    /// As [`own::Frames::next`].
    fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<Option<own::Piece<'a>>, Broken> {
        let frames = match self {
            Frames::Plain(frames) => frames,
            Frames::Own(frames) => return Ok(frames.next(bytes)?),
        };
        Ok(frames.next(bytes)?.map(|piece| match piece {
            plain::Piece::Header { at, body_bytes } => own::Piece::Header { at, body_bytes, asks_for_device: false },
            plain::Piece::Body(body) => own::Piece::Body(body),
        }))
    }
}

/// The state of one connection. See the module.
#[derive(Debug)]
pub struct Follow {
    options: FollowOptions,
    segment_bytes: u64,
    frames: Frames,
    /// What was reported to be on the device.
    flushed: u64,
    /// The master counts what is on the device.
    asks_for_device: bool,
    /// The next byte belongs here.
    next: u64,
    block: Block,
    /// Where the master goes on may differ only if nothing was there before.
    is_empty: bool,
    reported: u64,
    reported_at: Duration,
    heard_at: Duration,
    /// A frame has come.
    has_heard: bool,
    /// Heartbeats since the last byte of the log.
    idle: u32,
    /// Until then an answer to a question stands for the first frame.
    trusted_until: Option<Duration>,
    /// While nothing was read from it, the master has not answered.
    is_mute: bool,
    is_live: bool,
}

impl Follow {
    /// Connected, with a log that ends at `has`, all of it as safe as the flush mode asks for. The caller reports `has` at once. `has_answered`:
    /// since the master was connected to it has answered a question. That came from its main port, and says nothing of the stream, so it counts
    /// for as long as the first heartbeat may take.
    pub fn new(
        options: FollowOptions,
        segment_bytes: u64,
        now: Duration,
        has: LogOffset,
        has_answered: bool,
    ) -> Follow {
        Follow {
            options,
            segment_bytes: segment_bytes.max(1),
            frames: Frames::Plain(plain::Frames::default()),
            flushed: 0,
            asks_for_device: false,
            next: has.0,
            block: Block { at: has.0, bytes: Vec::new() },
            is_empty: has.0 == 0,
            reported: has.0,
            reported_at: now,
            heard_at: now,
            has_heard: false,
            idle: 0,
            trusted_until: has_answered.then(|| now + options.heartbeat + FIRST_FRAME_LATE),
            is_mute: false,
            is_live: has_answered,
        }
    }

    /// The same on the stream of Gantry, behind the greetings.
    #[must_use]
    pub fn on_own(self) -> Follow {
        Follow { frames: Frames::Own(own::Frames::default()), ..self }
    }

    /// From now on the slave follows in another way.
    pub fn tune(&mut self, options: FollowOptions) {
        self.options = options;
    }

    /// The bytes of the report that is due, with what is on the device by now.
    pub fn report(&mut self, flushed: LogOffset) -> Vec<u8> {
        self.flushed = self.flushed.max(flushed.0.min(self.reported));
        match self.frames {
            Frames::Plain(_) => plain::report(self.reported()).to_vec(),
            Frames::Own(_) => Note::Has { written: self.reported(), flushed: LogOffset(self.flushed) }.encode(),
        }
    }

    /// [`Event::Flushed`] has to come when more than this is on the device; none: that is nothing to report.
    pub fn waits_for_device(&self) -> Option<LogOffset> {
        (self.asks_for_device && self.flushed < self.reported).then_some(LogOffset(self.flushed))
    }

    /// Where the next byte of the stream belongs.
    pub fn next(&self) -> LogOffset {
        LogOffset(self.next)
    }

    /// The highest report so far.
    pub fn reported(&self) -> LogOffset {
        LogOffset(self.reported)
    }

    /// As much has gathered as may: nothing is read from the master until the block is taken.
    pub fn is_full(&self) -> bool {
        self.block.bytes.len() >= BLOCK_BYTES
    }

    /// Whether the master is there: a frame has come, and the last bytes are younger than two and a half heartbeats; or it has answered, and the
    /// first frame is not late yet. A connection alone says nothing: the kernel makes it for a process that stands still.
    pub fn is_live(&self) -> bool {
        self.is_live
    }

    /// Whether the stream has brought a frame.
    pub fn has_heard(&self) -> bool {
        self.has_heard
    }

    /// The master was asked something, and has answered or not. That matters while nothing is read from it.
    pub fn asked(&mut self, has_answered: bool) {
        self.is_mute = !has_answered;
    }

    /// The master was asked how its log lies when the next byte belonged at `asked_at`, and has answered or not. Whether it still has what comes
    /// next the stream itself shows if bytes have come since, and if it is read at all.
    pub fn answered(&mut self, asked_at: LogOffset, extent: Option<Extent>) -> Result<(), Apart> {
        self.asked(extent.is_some());
        match extent {
            Some(extent) if self.next() == asked_at && !self.is_full() => extent.continues(asked_at),
            Some(_) | None => Ok(()),
        }
    }

    /// The log here has taken what it takes of the blocks so far, and ends at `end`. A master sends heartbeats where it has nothing more, and its
    /// log ends with a whole record. So one that is not whole here by the second heartbeat states a length that it does not have, and would wait
    /// for the bytes of many others. The first heartbeat may come inside a record: a master that may send no more for a while sends it as well.
    pub fn settled(&self, end: LogOffset) -> Result<(), Broken> {
        if self.idle >= HEARTBEATS_IDLE && self.block.bytes.is_empty() && end.0 < self.next {
            return Err(Broken::Unfinished { at: end.0, next: self.next });
        }
        Ok(())
    }

    /// A master that sends nothing for so long may be gone. Its heartbeats may be rarer than ours, so not less than half of the silence that
    /// ends the connection.
    fn doubt(&self) -> Duration {
        (self.options.heartbeat.saturating_mul(5) / 2).max(self.options.silence / 2)
    }

    /// When [`Event::Due`] has to come at the latest.
    pub fn due(&self) -> Duration {
        let heartbeat = self.reported_at + self.options.heartbeat;
        if self.is_full() {
            return heartbeat;
        }
        let silent = self.heard_at + self.options.silence;
        let doubted = match self.trusted_until {
            Some(until) if self.is_live && !self.has_heard => until,
            _ if self.is_live => self.heard_at + self.doubt(),
            _ => silent,
        };
        heartbeat.min(doubted).min(silent)
    }

    /// Whether bytes have gathered.
    pub fn has_block(&self) -> bool {
        !self.block.bytes.is_empty()
    }

    /// Takes what has gathered, in exchange for a buffer.
    pub fn take_block(&mut self, now: Duration, mut buffer: Vec<u8>) -> Option<Block> {
        if self.block.bytes.is_empty() {
            return None;
        }
        if self.is_full() {
            // The master was not listened to.
            self.heard_at = now;
        }
        buffer.clear();
        Some(std::mem::replace(&mut self.block, Block { at: self.next, bytes: buffer }))
    }

    /// Takes an event, and says what to report, if anything. After an error the connection ends.
    pub fn step(&mut self, now: Duration, event: Event<'_>) -> Result<Option<LogOffset>, Broken> {
        if let Event::Heard(bytes) = event {
            self.heard_at = now;
            self.heard(bytes)?;
        }
        let silent = now.saturating_sub(self.heard_at);
        self.is_live = if self.has_heard {
            silent < self.doubt() || self.is_full() && !self.is_mute
        } else {
            self.trusted_until.is_some_and(|until| now < until)
        };
        if let Event::Has(has) = event
            && has.0 > self.reported
        {
            (self.reported, self.reported_at) = (has.0, now);
            return Ok(Some(has));
        }
        if let Event::Flushed(flushed) = event
            && self.waits_for_device().is_some_and(|reported| flushed > reported)
        {
            self.reported_at = now;
            return Ok(Some(LogOffset(self.reported)));
        }
        if silent > self.options.silence && !self.is_full() {
            return Err(Broken::Silent(silent));
        }
        if now.saturating_sub(self.reported_at) >= self.options.heartbeat {
            self.reported_at = now;
            return Ok(Some(LogOffset(self.reported)));
        }
        Ok(None)
    }

    fn heard(&mut self, mut bytes: &[u8]) -> Result<(), Broken> {
        while let Some(piece) = self.frames.next(&mut bytes)? {
            match piece {
                own::Piece::Header { at, body_bytes, asks_for_device } => {
                    self.asks_for_device = asks_for_device;
                    self.header(at.0, body_bytes)?;
                }
                own::Piece::Body(body) => {
                    self.idle = 0;
                    self.next += body.len() as u64;
                    self.block.bytes.extend_from_slice(body);
                }
                own::Piece::End(why) => return Err(Broken::Ended(why)),
            }
        }
        Ok(())
    }

    fn header(&mut self, at: u64, bytes: u32) -> Result<(), Broken> {
        if at != self.next {
            return Err(if self.is_empty {
                Broken::BeginsAt { at }
            } else {
                Broken::Elsewhere { at, expected: self.next }
            });
        }
        self.has_heard = true;
        self.idle = if bytes == 0 { self.idle.saturating_add(1) } else { 0 };
        self.is_empty = self.is_empty && bytes == 0;
        if at % self.segment_bytes + u64::from(bytes) > self.segment_bytes {
            return Err(Broken::AcrossFiles { at, bytes, segment_bytes: self.segment_bytes });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
