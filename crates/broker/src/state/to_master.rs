//! Requests of clients that wait for the master of this set, and how many there may be. `to_master`
//! fills and empties it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use net::{Client, ClientOptions, Frames, Outgoing, ReplyTo, Response};
use parking_lot::Mutex;
use protocol::code::ResponseCode;
use replica::asking::RECORD_FRAME_BYTES_MAX;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{Instant, timeout};

use crate::refusal::Refusal;

/// How long after it came a request waits here for a master, and for its turn. Less than the 3 s that
/// clients wait for an answer.
pub(crate) const HELD_MAX: Duration = Duration::from_millis(2500);
/// Requests that may wait here or at the master, including those that wait for messages.
pub(crate) const REQUESTS_MAX: usize = 16_384;
/// What they hold.
pub(crate) const BYTES_MAX: usize = 64 << 20;
/// What the request around a client's takes of a frame.
const AROUND_BYTES: usize = 1 << 10;
/// The longest pause between two attempts to reach the master: what waits for it waits for this.
const BACK_OFF_MAX: Duration = Duration::from_millis(100);

/// The connection of the client that has sent a request.
pub(crate) trait Asker: Send {
    /// Leaves the answer there.
    fn answer(self: Box<Self>, answer: Frames);
    /// Whether it is about to end, and the client is served if it connects anew.
    fn goes_away(&self) -> bool;
}

/// A request of a client.
pub(crate) struct Passed {
    /// Later ones of a connection have higher numbers.
    pub(crate) number: u64,
    /// As the client wrote it.
    pub(crate) frame: Bytes,
    /// Where the client is.
    pub(crate) client: SocketAddr,
    pub(crate) reply_to: ReplyTo,
    /// It has waited for a master.
    pub(crate) is_held: bool,
    /// It is given up then, if no master has it.
    pub(crate) until: Instant,
    /// What it hears then.
    pub(crate) refusal: Refusal,
    pub(crate) asker: Box<dyn Asker>,
    /// The client connects anew, and asks again there, when `GO_AWAY` answers it.
    pub(crate) knows_go_away: bool,
    /// It waits at the master until there are messages.
    pub(crate) waits_long: bool,
    /// Given back with the request.
    pub(crate) _room: Room,
}

/// The place that a request takes.
pub(crate) struct Room {
    _request: OwnedSemaphorePermit,
    _bytes: OwnedSemaphorePermit,
}

impl Passed {
    /// Passes on what the master has answered.
    pub(crate) fn answer(self, answer: Response) {
        let code = ResponseCode::from_i32(answer.code).unwrap_or(ResponseCode::SystemError);
        let mut out = Outgoing::new();
        out.reply_owned(self.reply_to, code, answer.remark.as_deref(), &answer.fields, answer.body.into());
        self.asker.answer(out.take());
    }

    /// Tells the client to connect anew, and to ask again there.
    pub(crate) fn turn_away(self) {
        let mut out = Outgoing::new();
        out.reply(self.reply_to, ResponseCode::GoAway, Some("please go away"), &(), &[]);
        self.asker.answer(out.take());
    }

    /// Says why nobody has carried it out, or that it is not known.
    pub(crate) fn refuse(self, refusal: &Refusal) {
        let mut out = Outgoing::new();
        out.reply(self.reply_to, refusal.code, Some(&refusal.remark), &(), &[]);
        self.asker.answer(out.take());
    }
}

/// What has become of requests since the start. Relaxed: each stands alone.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) forwarded: AtomicU64,
    pub(crate) held: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) unanswered: AtomicU64,
}

impl Counts {
    pub(crate) fn count(of: &AtomicU64) {
        of.fetch_add(1, Ordering::Relaxed);
    }

    /// By name.
    pub(crate) fn all(&self) -> [(&'static str, u64); 4] {
        [
            ("forwarded", &self.forwarded),
            ("held", &self.held),
            ("refused", &self.refused),
            ("unanswered", &self.unanswered),
        ]
        .map(|(name, count)| (name, count.load(Ordering::Relaxed)))
    }
}

/// The way to the master.
pub(crate) struct ToMaster {
    /// Apart from that of replication: clients' requests do not hold that up.
    pub(crate) client: Client,
    pub(crate) counts: Counts,
    queue: mpsc::UnboundedSender<Passed>,
    /// For the one task that takes from the queue.
    pub(crate) taken: tokio::sync::Mutex<mpsc::UnboundedReceiver<Passed>>,
    requests: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    /// Bytes of the frame of a request.
    requests_max: usize,
    /// The number of the next one.
    next: AtomicU64,
    /// In the queue, or about to be sent.
    pub(crate) waiting: AtomicUsize,
    /// Changes when connections go away.
    pub(crate) going: watch::Sender<()>,
    /// Where the master was last. Guards itself only.
    pub(crate) last: Mutex<Option<Arc<str>>>,
}

impl ToMaster {
    /// `frame_bytes_max`: of a request.
    pub(crate) fn new(calls: ClientOptions, frame_bytes_max: usize) -> ToMaster {
        let (queue, taken) = mpsc::unbounded_channel();
        let requests_max = frame_bytes_max.saturating_sub(AROUND_BYTES);
        // Of answers: pops may have more than a request may.
        let frame_bytes_max = calls.frame_bytes_max.max(RECORD_FRAME_BYTES_MAX);
        ToMaster {
            client: Client::new(ClientOptions { back_off_max: BACK_OFF_MAX, frame_bytes_max, ..calls }),
            counts: Counts::default(),
            queue,
            taken: tokio::sync::Mutex::new(taken),
            requests: Arc::new(Semaphore::new(REQUESTS_MAX)),
            bytes: Arc::new(Semaphore::new(BYTES_MAX)),
            requests_max,
            next: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            going: watch::Sender::new(()),
            last: Mutex::default(),
        }
    }

    /// Waits until there is memory for a request of so many bytes. Nothing is read from its connection
    /// meanwhile. The error says why there was none.
    pub(crate) async fn room(&self, bytes: usize, until: Instant) -> Result<Room, String> {
        if bytes > self.requests_max {
            return Err(format!("the request has {bytes} bytes, {} are passed on at most", self.requests_max));
        }
        let wanted = u32::try_from(bytes.min(BYTES_MAX)).unwrap_or(u32::MAX);
        let room = async {
            let request = Arc::clone(&self.requests).acquire_owned().await.ok()?;
            let bytes = Arc::clone(&self.bytes).acquire_many_owned(wanted).await.ok()?;
            Some(Room { _request: request, _bytes: bytes })
        };
        let left = until.saturating_duration_since(Instant::now());
        timeout(left, room).await.ok().flatten().ok_or_else(|| {
            format!(
                "{REQUESTS_MAX} requests or {BYTES_MAX} bytes of them wait for the master already, which is the limit"
            )
        })
    }

    /// Queues a request.
    pub(crate) fn push(&self, passed: Passed) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        // The receiver lives as long as this does.
        let _ = self.queue.send(Passed { number, ..passed });
    }

    /// How many are not sent yet.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// How many are under way.
    pub(crate) fn under_way(&self) -> usize {
        REQUESTS_MAX - self.requests.available_permits().min(REQUESTS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn requests_and_what_they_hold_have_bounds() {
        let to_master = ToMaster::new(ClientOptions::default(), 16 << 20);
        let soon = || Instant::now() + Duration::from_millis(10);
        let late = to_master.room(usize::MAX, soon()).await.err().unwrap();
        assert!(late.contains("are passed on at most"), "{late}");
        let half = to_master.room(8 << 20, soon()).await.unwrap();
        let mut all = vec![];
        for _ in 0..7 {
            all.push(to_master.room(8 << 20, soon()).await.unwrap());
        }
        let full = to_master.room(1, soon()).await.err().unwrap();
        assert!(full.contains("67108864 bytes"), "{full}");
        assert_eq!(to_master.under_way(), 8);
        drop(half);
        for _ in 7..REQUESTS_MAX {
            all.push(to_master.room(1, soon()).await.unwrap());
        }
        assert!(to_master.room(1, soon()).await.is_err());
        all.pop();
        assert!(to_master.room(1, soon()).await.is_ok());
    }
}
