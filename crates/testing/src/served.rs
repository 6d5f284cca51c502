//! A broker behind a port of loopback, in this process, with threads as the server has them; and a client that is a socket and no more.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test that cannot go on fails")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use broker::Broker;
use net::{Listener, ListenerOptions, Service};
use protocol::code::ResponseCode;
use protocol::frame;
use protocol::header::{self, HeaderScratch};
use store::{FlushMode, Store};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use crate::warm;

/// A client that hears nothing for so long fails.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Served {
    pub store: Arc<Store>,
    pub broker: Arc<Broker>,
    address: SocketAddr,
    pub runtime: Runtime,
    _dir: TempDir,
}

impl Served {
    /// Starts it. Each of the runtime's threads does `on_thread` first; `serve` makes of the broker what serves the port.
    pub fn start<S: Service>(
        flush: FlushMode,
        on_thread: impl Fn() + Send + Sync + 'static,
        serve: impl FnOnce(Arc<Broker>) -> Arc<S>,
    ) -> Served {
        let dir = tempfile::tempdir().unwrap();
        let workers = available_parallelism().map_or(1, usize::from);
        let runtime = Builder::new_multi_thread()
            .worker_threads(workers)
            .thread_name("gantry")
            .on_thread_start(on_thread)
            .enable_all()
            .build()
            .unwrap();
        let (store, broker, address) = runtime.block_on(async {
            let (store, broker) = warm::start(dir.path(), flush).await;
            let any_port = ([127, 0, 0, 1], 0).into();
            let listener = Listener::bind(any_port, ListenerOptions::default(), serve(Arc::clone(&broker))).unwrap();
            let address = listener.local_addr();
            tokio::spawn(listener.run(std::future::pending()));
            (store, broker, address)
        });
        Served { store, broker, address, runtime, _dir: dir }
    }

    pub fn until_parked(&self, pulls: usize) {
        let deadline = Instant::now() + PATIENCE;
        while self.broker.parked_pulls() != pulls {
            assert!(Instant::now() < deadline, "{} pulls wait, not {pulls}", self.broker.parked_pulls());
            std::thread::yield_now();
        }
    }

    pub fn connect(&self) -> Peer {
        let socket = TcpStream::connect(self.address).unwrap();
        socket.set_nodelay(true).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Peer { socket, space: vec![0; 4 << 20], held: 0..0, scratch: HeaderScratch::new() }
    }
}

/// A client.
pub struct Peer {
    socket: TcpStream,
    space: Vec<u8>,
    /// Which bytes of `space` are read and not looked at yet.
    held: std::ops::Range<usize>,
    scratch: HeaderScratch,
}

/// What an answer says.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    pub opaque: i32,
    /// Of a pull's answer: where the next one begins.
    pub next_offset: i64,
}

impl Peer {
    pub fn send(&mut self, frames: &[u8]) {
        self.socket.write_all(frames).unwrap();
    }

    /// Waits for the next answer, which has to be a success.
    pub fn answer(&mut self) -> Answer {
        let layout = loop {
            if let Some(layout) = frame::peek(&self.space[self.held.clone()], self.space.len()).unwrap() {
                break layout;
            }
            if self.held.start > 0 {
                self.space.copy_within(self.held.clone(), 0);
                self.held = 0..self.held.len();
            }
            let read = self.socket.read(&mut self.space[self.held.end..]).unwrap();
            assert!(read > 0, "the broker has closed the connection");
            self.held.end += read;
        };
        let start = self.held.start;
        self.held.start += layout.frame_bytes;
        let header = &self.space[start + layout.header.start..start + layout.header.end];
        let header = header::decode(header, layout.serialization, &mut self.scratch).unwrap();
        assert_eq!(header.code, ResponseCode::Success as i32, "{:?}", header.remark);
        let next_offset = header.fields.get("nextBeginOffset").map_or(0, |offset| offset.parse().unwrap());
        Answer { opaque: header.opaque, next_offset }
    }

    /// Sends frames and waits for so many answers.
    pub fn exchange(&mut self, frames: &[u8], answers: usize) {
        self.send(frames);
        for _ in 0..answers {
            self.answer();
        }
    }
}
