//! A service without a socket, for benches, for tests that count, and for simulations: bursts go in as bytes and replies come out as bytes, or the
//! loop of a connection runs over a stream that is given.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use protocol::frame::{self, Serialization};
use protocol::header::HeaderScratch;
use tokio::time::Instant;

use crate::connection::{Connection, ListenerTag, Stage};
use crate::listener::ListenerOptions;
use crate::outgoing::Outgoing;
use crate::service::{Burst, Service};
use crate::stream::{Bytewise, Stream};
use crate::task;

/// The loop of a connection over a stream that is given, as a port with these options runs it over a socket; and the connection, which ends
/// in order when it is closed. To be polled by whoever wants it served.
pub fn over<S: Service>(
    service: Arc<S>,
    stream: impl Bytewise + 'static,
    peer: SocketAddr,
    options: &ListenerOptions,
) -> (Connection<S::Work>, impl Future<Output = ()> + Send + 'static) {
    let handle = Connection::new(peer, peer, options.tag, options.inbox(), Serialization::Json);
    let (limits, budget, own) = (options.limits(), Arc::clone(&options.budget), handle.clone());
    let served = async move {
        task::run(Stream::Given(Box::new(stream)), BytesMut::new(), own, &*service, limits, budget, None).await;
    };
    (handle, served)
}

/// One connection of a service, driven by its caller instead of by a task and a socket.
pub struct Detached<S: Service> {
    service: Arc<S>,
    session: Option<S::Session>,
    handle: Connection<S::Work>,
    scratch: HeaderScratch,
    work: Vec<S::Work>,
    out: Outgoing,
}

impl<S: Service> Detached<S> {
    /// Opens it, as from `peer`.
    pub fn open(service: Arc<S>, peer: SocketAddr) -> Detached<S> {
        let limits = ListenerOptions::default().inbox();
        let handle = Connection::new(peer, peer, ListenerTag::MAIN, limits, Serialization::Json);
        let session = Some(service.open(&handle));
        let (scratch, work, out) = (HeaderScratch::new(), Vec::new(), Outgoing::new());
        Detached { service, session, handle, scratch, work, out }
    }

    /// Does what others have left for the connection, then serves whole frames as one burst. Returns what is to be written.
    pub async fn serve(&mut self, frames: &Bytes) -> &mut Outgoing {
        let Some(session) = &mut self.session else { return &mut self.out };
        self.handle.shared.take_left(&mut self.out, &mut self.work);
        for piece in self.work.drain(..) {
            self.service.resume(session, piece, &mut self.out).await;
        }
        let (mut at, mut count) = (0, 0);
        while let Ok(Some(layout)) = frame::peek(&frames[at..], usize::MAX) {
            at += layout.frame_bytes;
            count += 1;
        }
        if count > 0 {
            let mut burst =
                Burst::new(frames.slice(..at), count, Instant::now(), &mut self.scratch, &self.handle.shared.calls);
            self.service.serve(session, &mut burst, &mut self.out).await;
            // Ends with the burst: what its rest waits for is left here.
            while std::mem::take(&mut burst.is_left) {
                let stage = self.handle.shared.stage();
                poll_fn(|cx| self.handle.shared.poll_left(stage, cx)).await;
                self.handle.shared.take_left(&mut self.out, &mut self.work);
                for piece in self.work.drain(..) {
                    self.service.resume(session, piece, &mut self.out).await;
                }
                self.service.serve(session, &mut burst, &mut self.out).await;
            }
            // A header that cannot be read ends the burst, and there is no connection to end.
            let _ = burst.finish(&mut self.out);
        }
        &mut self.out
    }
}

impl<S: Service> Drop for Detached<S> {
    fn drop(&mut self) {
        self.handle.shared.come_to(Stage::Ending);
        self.handle.shared.closed();
        if let Some(session) = self.session.take() {
            self.service.close(session);
        }
    }
}
