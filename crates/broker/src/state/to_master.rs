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
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, timeout};

use crate::refusal::Refusal;

/// How long a request waits here for a master, and for its turn. Less than the 3 s that clients
/// wait for an answer.
pub(crate) const HELD_MAX: Duration = Duration::from_secs(2);
/// Requests that wait here or at the master, those among them that wait for messages.
pub(crate) const REQUESTS_MAX: usize = 16_384;
/// What they hold.
pub(crate) const BYTES_MAX: usize = 64 << 20;
/// What the request around a client's takes of a frame.
const AROUND_BYTES: usize = 1 << 10;
/// The longest pause between two attempts to reach the master: what waits for it waits for this.
const BACK_OFF_MAX: Duration = Duration::from_millis(100);

/// Takes an answer to the client.
pub(crate) type Deliver = Box<dyn FnOnce(Frames) + Send>;

/// A request of a client.
pub(crate) struct Passed {
    /// As the client wrote it.
    pub(crate) frame: Bytes,
    /// Where the client is.
    pub(crate) client: SocketAddr,
    pub(crate) reply_to: ReplyTo,
    /// It is given up then, if no master has it.
    pub(crate) until: Instant,
    /// What it hears then.
    pub(crate) refusal: Refusal,
    pub(crate) deliver: Deliver,
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
        (self.deliver)(out.take());
    }

    /// Says why nobody has carried it out, or that it is not known.
    pub(crate) fn refuse(self, refusal: &Refusal) {
        let mut out = Outgoing::new();
        out.reply(self.reply_to, refusal.code, Some(&refusal.remark), &(), &[]);
        (self.deliver)(out.take());
    }
}

/// What has become of requests since the start. Relaxed: each stands alone.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) forwarded: AtomicU64,
    pub(crate) held: AtomicU64,
    pub(crate) refused: AtomicU64,
}

impl Counts {
    pub(crate) fn count(of: &AtomicU64) {
        of.fetch_add(1, Ordering::Relaxed);
    }

    /// By name.
    pub(crate) fn all(&self) -> [(&'static str, u64); 3] {
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        [("forwarded", count(&self.forwarded)), ("held", count(&self.held)), ("refused", count(&self.refused))]
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
    frame_bytes_max: usize,
    /// In the queue, or about to be sent.
    pub(crate) waiting: AtomicUsize,
    /// Where the master was last. Guards itself only.
    pub(crate) last: Mutex<Option<Arc<str>>>,
}

impl ToMaster {
    pub(crate) fn new(calls: ClientOptions) -> ToMaster {
        let (queue, taken) = mpsc::unbounded_channel();
        let frame_bytes_max = calls.frame_bytes_max.saturating_sub(AROUND_BYTES);
        ToMaster {
            client: Client::new(ClientOptions { back_off_max: BACK_OFF_MAX, ..calls }),
            counts: Counts::default(),
            queue,
            taken: tokio::sync::Mutex::new(taken),
            requests: Arc::new(Semaphore::new(REQUESTS_MAX)),
            bytes: Arc::new(Semaphore::new(BYTES_MAX)),
            frame_bytes_max,
            waiting: AtomicUsize::new(0),
            last: Mutex::default(),
        }
    }

    /// Room for a request of so many bytes, as soon as there is some; its connection is not read
    /// meanwhile. Says what is in the way.
    pub(crate) async fn room(&self, bytes: usize, until: Instant) -> Result<Room, String> {
        if bytes > self.frame_bytes_max {
            return Err(format!("the request has {bytes} bytes, {} are passed on at most", self.frame_bytes_max));
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
        // The receiver lives as long as this does.
        let _ = self.queue.send(passed);
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
        let to_master = ToMaster::new(ClientOptions::default());
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
