//! The socket of a feed: one task reads reports and writes frames.
//!
//! However far behind the slave is, the task holds one frame that the log's mapping lends, or a stretch of up to [`STRETCH_BYTES`] that a
//! thread for cold reads has copied. A network worker never waits for the device. Where a connection ends, and the slave's stream has words for it, the
//! slave is told why.

use std::future::{Future, pending};
use std::io::{self, IoSlice};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use env::Clock;
use protocol::LogOffset;
use store::{ColdReadRefused, LogSlice, Store, StoreError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};

use super::{Closed, Event, Feed, FeedOptions, Header, LogRange, Outgoing};
use crate::lag::Slaves;

/// Bytes of the log that are read at a time where they come from the device.
const STRETCH_BYTES: usize = 1 << 20;
/// Bytes of reports that are read at a time.
const HEARD_BYTES: usize = 512;
/// Pause before another try while too many reads wait for the device.
const COLD_PAUSE: Duration = Duration::from_millis(20);
/// For the words with which a connection ends, and for the slave to take them.
const FAREWELL: Duration = Duration::from_secs(1);

/// What a driver tells its port.
pub(super) enum Told {
    /// The first report has come, of the broker with this id, if the slave's stream tells it.
    Begun {
        at: LogOffset,
        broker_id: Option<i64>,
        /// What it has, and what of that is on its device.
        has: [LogOffset; 2],
    },
    /// The slave has what lies below.
    Acknowledged { to: LogOffset },
    /// The slave has it on its device.
    Flushed { to: LogOffset },
    /// A frame goes out, with `bytes` bytes of the log; the next one begins at `next`.
    Sending { next: LogOffset, bytes: usize },
}

/// Bytes of the log that a thread has copied; all of one file.
struct Stretch {
    at: u64,
    bytes: Vec<u8>,
}

/// A read by a thread that may wait for the device.
type ColdStretch = Pin<Box<dyn Future<Output = Result<Stretch, Closed>> + Send>>;

/// Where a body lies.
enum Body {
    /// There is none.
    Nowhere,
    Lent(LogSlice),
    /// In the stretch.
    Stretch(Range<usize>),
}

/// A frame on its way out.
struct Frame {
    head: Head,
    body: Body,
    written: usize,
}

/// What goes out in front of a body.
enum Head {
    Header(Header),
    /// All of it, without a body.
    Whole(Vec<u8>),
}

impl Frame {
    fn head(&self) -> &[u8] {
        match &self.head {
            Head::Header(header) => header.as_ref(),
            Head::Whole(bytes) => bytes,
        }
    }

    fn body<'a>(&'a self, stretch: Option<&'a Stretch>) -> &'a [u8] {
        match &self.body {
            Body::Nowhere => &[],
            Body::Lent(slice) => slice.as_ref(),
            // It stays as long as the frame does.
            Body::Stretch(range) => stretch.and_then(|stretch| stretch.bytes.get(range.clone())).unwrap_or(&[]),
        }
    }
}

/// What the task has in hand.
struct Hands<'a> {
    reader: ReadHalf<'a>,
    writer: WriteHalf<'a>,
    heard: [u8; HEARD_BYTES],
    frame: Option<Frame>,
    stretch: Option<Stretch>,
    cold: Option<ColdStretch>,
    /// Bytes of the frame that is being read, at most.
    max: usize,
    options: watch::Receiver<FeedOptions>,
}

/// What the task waited for.
enum Happened {
    Heard(usize),
    Wrote(usize),
    Read(Stretch),
    Tuned,
    Due,
}

/// How a connection ended.
pub(super) struct Ended {
    /// Why.
    pub closed: Closed,
    /// It had to, as the port has said.
    pub is_told: bool,
    /// What the slave can still be told.
    pub words: Option<Vec<u8>>,
}

/// Serves one slave.
pub(super) struct Driver<'a> {
    pub store: &'a Arc<Store>,
    pub clock: &'a Clock,
    pub slaves: &'a Slaves,
    /// What was given of the log when the slave came. What is sent to others while it is connected it does not have from before.
    pub given: LogOffset,
    /// Where the log ended when the slave came: what was appended since is in memory, as a rule.
    pub warm_from: u64,
}

impl Driver<'_> {
    /// Goes on until the connection ends, or has to, and says why.
    pub(super) async fn run(
        &self,
        socket: &mut TcpStream,
        feed: &mut Feed,
        options: watch::Receiver<FeedOptions>,
        mut has_to_end: Pin<&mut (impl Future<Output = Closed> + Send)>,
        told: &mut (dyn FnMut(Told) + Send),
    ) -> Ended {
        let (reader, writer) = socket.split();
        let (heard, frame, stretch, cold, max) = ([0; HEARD_BYTES], None, None, None, 0);
        let mut hands = Hands { reader, writer, heard, frame, stretch, cold, max, options };
        let (closed, is_told) = loop {
            let happened = tokio::select! {
                happened = self.wait(&mut hands, feed) => happened,
                closed = has_to_end.as_mut() => break (closed, true),
            };
            if let Err(closed) = happened.and_then(|happened| self.take(&mut hands, feed, happened, told)) {
                break (closed, false);
            }
        };
        // Where a part of a frame is out, words would be taken for the rest of it.
        let words = feed.farewell(&closed).filter(|_| hands.frame.as_ref().is_none_or(|frame| frame.written == 0));
        Ended { closed, is_told, words }
    }

    fn range(&self) -> LogRange {
        LogRange {
            min: self.store.min_offset().0,
            end: self.store.written().get(),
            given: self.given.max(self.slaves.first()).0,
            segment_bytes: self.store.options().segment_bytes,
        }
    }

    async fn wait(&self, hands: &mut Hands<'_>, feed: &Feed) -> Result<Happened, Closed> {
        let Hands { reader, writer, heard, frame, stretch, cold, options, .. } = hands;
        let left = feed.due().saturating_sub(self.clock.elapsed());
        let height = feed.waits_above().and_then(|above| above.0.checked_add(1));
        let grown = async {
            match height {
                Some(height) => self.store.written().reached(height).await,
                None => pending().await,
            }
        };
        let moved = |bytes: io::Result<usize>, happened: fn(usize) -> Happened| match bytes {
            Ok(0) => Err(Closed::Ended),
            Ok(bytes) => Ok(happened(bytes)),
            Err(error) => Err(Closed::Socket(error)),
        };
        tokio::select! {
            read = reader.read(heard) => moved(read, Happened::Heard),
            wrote = write(writer, frame.as_ref(), stretch.as_ref()) => moved(wrote, Happened::Wrote),
            stretch = read_cold(cold) => stretch.map(Happened::Read),
            () = tuned(options) => Ok(Happened::Tuned),
            () = grown => Ok(Happened::Due),
            () = sleep(left) => Ok(Happened::Due),
        }
    }

    fn take(
        &self,
        hands: &mut Hands<'_>,
        feed: &mut Feed,
        happened: Happened,
        told: &mut (dyn FnMut(Told) + Send),
    ) -> Result<(), Closed> {
        let now = self.clock.elapsed();
        let event = match happened {
            Happened::Heard(bytes) => Event::Heard(&hands.heard[..bytes]),
            Happened::Wrote(bytes) => {
                let Some(frame) = &mut hands.frame else { return Ok(()) };
                frame.written += bytes;
                if frame.written < frame.head().len() + frame.body(hands.stretch.as_ref()).len() {
                    return Ok(());
                }
                hands.frame = None;
                Event::Sent
            }
            Happened::Read(stretch) => {
                hands.stretch = Some(stretch);
                return self.read(hands, feed, told);
            }
            Happened::Tuned => {
                feed.tune(hands.options.borrow_and_update().clone(), now);
                Event::Due
            }
            Happened::Due => Event::Due,
        };
        let effects = feed.step(now, self.range(), event)?;
        if let Some(at) = effects.begun {
            // It takes the place of a connection that counted, and must not count as nothing for a moment.
            let has = [effects.acknowledged.unwrap_or_default(), effects.flushed.unwrap_or_default()];
            told(Told::Begun { at, broker_id: feed.who().map(|who| who.broker_id), has });
        }
        // One that waits for the device is told when both are known.
        if let Some(to) = effects.flushed {
            told(Told::Flushed { to });
        }
        if let Some(to) = effects.acknowledged {
            told(Told::Acknowledged { to });
        }
        match effects.send {
            Some(Outgoing::Answer(bytes)) => {
                hands.frame = Some(Frame { head: Head::Whole(bytes), body: Body::Nowhere, written: 0 });
                Ok(())
            }
            Some(Outgoing::Heartbeat { at }) => {
                let head = Head::Header(feed.header(at, 0, self.store.is_sync_flush()));
                hands.frame = Some(Frame { head, body: Body::Nowhere, written: 0 });
                Ok(())
            }
            Some(Outgoing::Frame { max, .. }) => {
                hands.max = max;
                self.read(hands, feed, told)
            }
            None => Ok(()),
        }
    }

    /// Puts the next bytes of the log into a frame, or has a thread read them.
    fn read(&self, hands: &mut Hands<'_>, feed: &mut Feed, told: &mut (dyn FnMut(Told) + Send)) -> Result<(), Closed> {
        let at = feed.next();
        let kept = hands.stretch.as_ref().and_then(|stretch| {
            let from = usize::try_from(at.0.checked_sub(stretch.at)?).ok()?;
            let left = stretch.bytes.len().checked_sub(from).filter(|left| *left > 0)?;
            Some(from..from + left.min(hands.max))
        });
        let (body, bytes) = match kept {
            Some(range) => (Body::Stretch(range.clone()), range.len()),
            None if self.is_warm(at) => {
                hands.stretch = None;
                let slice = self.store.lent_bytes(at, hands.max).ok_or_else(|| gone(self.store, at))?;
                let bytes = slice.as_ref().len();
                (Body::Lent(slice), bytes)
            }
            None => {
                let buffer = hands.stretch.take().map_or_else(Vec::new, |stretch| stretch.bytes);
                hands.cold = Some(Box::pin(cold_stretch(Arc::clone(self.store), at, buffer)));
                return Ok(());
            }
        };
        let body_bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let head = Head::Header(feed.header(at, body_bytes, self.store.is_sync_flush()));
        hands.frame = Some(Frame { head, body, written: 0 });
        feed.step(self.clock.elapsed(), self.range(), Event::Read(bytes))?;
        told(Told::Sending { next: feed.next(), bytes });
        Ok(())
    }

    fn is_warm(&self, at: LogOffset) -> bool {
        let behind = self.store.written().get().saturating_sub(at.0);
        at.0 >= self.warm_from && behind <= self.store.options().hot_bytes
    }
}

/// Retention has passed a place of the log.
fn gone(store: &Store, at: LogOffset) -> Closed {
    Closed::Behind { report: at.0, min: store.min_offset().0 }
}

/// Writes what is left of a frame; waits for ever if there is none.
async fn write(writer: &mut WriteHalf<'_>, frame: Option<&Frame>, stretch: Option<&Stretch>) -> io::Result<usize> {
    let Some(frame) = frame else { return pending().await };
    let body = frame.body(stretch);
    let (head, length) = (frame.head().get(frame.written..).unwrap_or(&[]), frame.head().len());
    let body = body.get(frame.written.saturating_sub(length)..).unwrap_or(&[]);
    writer.write_vectored(&[IoSlice::new(head), IoSlice::new(body)]).await
}

/// Says the last words, and waits until the slave has closed the connection, for a second at most: what it sends and nobody reads would have the kernel
/// take them back.
pub(super) async fn take_leave(socket: &mut TcpStream, words: &[u8]) {
    let said = async {
        if socket.write_all(words).await.is_ok() && socket.shutdown().await.is_ok() {
            let mut heard = [0; HEARD_BYTES];
            while socket.read(&mut heard).await.is_ok_and(|bytes| bytes > 0) {}
        }
    };
    // Too late is as good as never.
    let _ = timeout(FAREWELL, said).await;
}

/// Waits for a read that a thread does, for ever if there is none.
async fn read_cold(cold: &mut Option<ColdStretch>) -> Result<Stretch, Closed> {
    let Some(reading) = cold else { return pending().await };
    let stretch = reading.await;
    *cold = None;
    stretch
}

/// Waits for other options, for ever if there will be none.
async fn tuned(options: &mut watch::Receiver<FeedOptions>) {
    if options.changed().await.is_err() {
        pending().await
    }
}

/// Has a thread copy a stretch of the log.
async fn cold_stretch(store: Arc<Store>, at: LogOffset, mut buffer: Vec<u8>) -> Result<Stretch, Closed> {
    // Ends when a thread has taken the read, or the store closes.
    loop {
        let (answer, answered) = oneshot::channel::<Result<Option<Stretch>, StoreError>>();
        let (of, mut bytes) = (Arc::clone(&store), std::mem::take(&mut buffer));
        let read = move || {
            let slice = of.raw_bytes(at, STRETCH_BYTES).map(|slice| {
                slice.map(|slice| {
                    bytes.clear();
                    bytes.extend_from_slice(slice.as_ref());
                    Stretch { at: at.0, bytes }
                })
            });
            // The slave may be gone.
            drop(answer.send(slice));
        };
        match store.cold_read(Box::new(read)) {
            // A read that was dropped was a bug, and costs this connection.
            Ok(()) => return answered.await.map_err(|_| Closed::Stopping)??.ok_or_else(|| gone(&store, at)),
            Err(ColdReadRefused::Full { .. }) => sleep(COLD_PAUSE).await,
            Err(ColdReadRefused::Closed) => return Err(Closed::Stopping),
        }
    }
}
