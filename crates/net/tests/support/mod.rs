//! A service that does on request whatever a test wants to see, and a peer that speaks raw bytes.
#![allow(dead_code, reason = "each test file uses its part")]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use net::{Answered, Burst, Connection, Listener, ListenerOptions, Outgoing, ReplyTo, Service, SharedSlice};
use protocol::code::ResponseCode;
use protocol::frame::{self, Serialization};
use protocol::header::{self, Fields, Head, HeaderScratch, write_frame};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

/// Longer than anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub mod does {
    /// Answers with the body and the peer's address.
    pub const ECHO: i32 = 1;
    /// Answers through [`super::Connection::post`].
    pub const LATER: i32 = 2;
    /// Panics.
    pub const BUG: i32 = 3;
    /// Never answers.
    pub const NOTHING: i32 = 4;
    /// Answers with `slices` of 1,000 bytes, then one of 1 MiB.
    pub const SHARED: i32 = 5;
    /// Waits for the gate, then answers.
    pub const GATED: i32 = 6;
    /// Waits for the gate elsewhere, then answers through [`super::Connection::send`]; the connection goes on meanwhile.
    pub const OWED: i32 = 7;
    /// Leaves the rest of its burst until the gate is open, then answers through [`super::Connection::post`].
    pub const LEAVES: i32 = 8;
}

#[derive(Default)]
pub struct Probe {
    pub opened: AtomicUsize,
    pub closed: AtomicUsize,
    pub served: AtomicUsize,
    pub bursts: AtomicUsize,
    pub rested: AtomicUsize,
    /// Answers that sockets have taken.
    pub answered: AtomicU64,
    pub gate: Arc<Notify>,
    pub connections: Mutex<Vec<Connection<ReplyTo>>>,
    pub log: Arc<Vec<u8>>,
}

impl Probe {
    pub fn new() -> Arc<Probe> {
        let log = (0..4 << 20).map(|at: u32| (at % 251) as u8).collect();
        Arc::new(Probe { log: Arc::new(log), ..Probe::default() })
    }

    pub fn last(&self) -> Connection<ReplyTo> {
        self.connections.lock().unwrap().last().unwrap().clone()
    }
}

impl Service for Probe {
    type Session = Connection<ReplyTo>;
    type Work = ReplyTo;

    fn open(&self, connection: &Connection<ReplyTo>) -> Connection<ReplyTo> {
        self.opened.fetch_add(1, Ordering::SeqCst);
        self.connections.lock().unwrap().push(connection.clone());
        connection.clone()
    }

    fn answered(&self, answered: &[Answered], _: Instant) {
        self.answered.fetch_add(answered.iter().map(|run| run.count).sum(), Ordering::SeqCst);
    }

    fn rested(&self, _: &mut Connection<ReplyTo>) {
        self.rested.fetch_add(1, Ordering::SeqCst);
    }

    async fn serve(&self, session: &mut Connection<ReplyTo>, burst: &mut Burst<'_>, out: &mut Outgoing) {
        self.bursts.fetch_add(1, Ordering::SeqCst);
        while !out.is_full()
            && let Some(request) = burst.next()
        {
            let to = request.reply_to();
            self.served.fetch_add(1, Ordering::SeqCst);
            match to.code {
                does::LATER => assert!(session.post(to)),
                does::BUG => panic!("a bug, on purpose"),
                does::NOTHING => {}
                does::SHARED => {
                    let small: usize = request.header.fields.get("slices").unwrap().parse().unwrap();
                    let slice = |range| SharedSlice { owner: self.log.clone(), range };
                    // Two apart from each other, so that they are not one.
                    let parts = (0..small).map(|n| slice(n * 2_000..n * 2_000 + 1_000));
                    let parts = parts.chain([slice(1 << 20..2 << 20)]);
                    out.reply_shared(to, ResponseCode::Success, None, &(), small * 1_000 + (1 << 20), parts);
                }
                does::GATED => {
                    let body = request.body.clone();
                    self.gate.notified().await;
                    out.reply(to, ResponseCode::Success, None, &(), &body);
                }
                does::OWED => {
                    let (debt, connection, gate) = (session.owe(), session.clone(), Arc::clone(&self.gate));
                    tokio::spawn(async move {
                        gate.notified().await;
                        let mut later = Outgoing::new();
                        later.reply(to, ResponseCode::Success, Some("owed"), &(), &[]);
                        assert!(connection.send(later.take()), "a debt keeps the inbox open");
                        drop(debt);
                    });
                }
                does::LEAVES => {
                    let (debt, connection, gate) = (session.owe(), session.clone(), Arc::clone(&self.gate));
                    tokio::spawn(async move {
                        gate.notified().await;
                        assert!(connection.post(to), "a debt keeps the inbox open");
                        drop(debt);
                    });
                    return burst.leave_rest();
                }
                _ => {
                    let peer = session.peer().to_string();
                    let fields = [("peer", peer.as_str()), ("tag", session.listener().0)];
                    out.reply(to, ResponseCode::Success, None, &fields, request.body);
                }
            }
        }
    }

    async fn resume(&self, _: &mut Connection<ReplyTo>, work: ReplyTo, out: &mut Outgoing) {
        out.reply(work, ResponseCode::Success, Some("later"), &(), &[]);
    }

    fn close(&self, _: Connection<ReplyTo>) {
        self.closed.fetch_add(1, Ordering::SeqCst);
    }
}

pub struct Server {
    pub address: SocketAddr,
    pub probe: Arc<Probe>,
    stop: Option<oneshot::Sender<()>>,
    run: JoinHandle<()>,
}

impl Server {
    pub fn start(options: ListenerOptions) -> Server {
        Server::serving(Probe::new(), options)
    }

    pub fn serving(probe: Arc<Probe>, options: ListenerOptions) -> Server {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), options, Arc::clone(&probe)).unwrap();
        let address = listener.local_addr();
        let (stop, stopped) = oneshot::channel();
        let run = tokio::spawn(listener.run(async {
            let _ = stopped.await;
        }));
        Server { address, probe, stop: Some(stop), run }
    }

    pub fn begin_stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }

    pub async fn stopped(self) {
        timeout(PATIENCE, self.run).await.expect("the listener ends").unwrap();
    }

    pub async fn peer(&self) -> Peer<TcpStream> {
        Peer::new(TcpStream::connect(self.address).await.unwrap())
    }
}

/// One frame, as bytes.
pub fn request(code: i32, opaque: i32, flag: i32, fields: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    request_as(Serialization::Json, code, opaque, flag, fields, body)
}

pub fn request_as(
    s: Serialization,
    code: i32,
    opaque: i32,
    flag: i32,
    fields: &[(&str, &str)],
    body: &[u8],
) -> Vec<u8> {
    let mut out = BytesMut::new();
    write_frame(&mut out, s, &Head { code, flag, opaque, remark: None }, &fields, body.len());
    out.extend_from_slice(body);
    out.to_vec()
}

/// One frame of a client of that version.
pub fn request_of_version(version: i32, code: i32, opaque: i32) -> Vec<u8> {
    let mut frame = request_as(Serialization::Binary, code, opaque, 0, &[], &[]);
    // Lengths of frame and header, code, language.
    frame[11..13].copy_from_slice(&(version as i16).to_be_bytes());
    frame
}

pub struct Peer<T> {
    pub stream: T,
    read: BytesMut,
}

#[derive(Debug)]
pub struct Reply {
    pub code: i32,
    pub opaque: i32,
    pub flag: i32,
    pub remark: Option<String>,
    pub serialization: Serialization,
    pub peer: Option<String>,
    pub tag: Option<String>,
    pub body: Bytes,
}

impl<T: AsyncRead + tokio::io::AsyncWrite + Unpin> Peer<T> {
    pub fn new(stream: T) -> Peer<T> {
        Peer { stream, read: BytesMut::new() }
    }

    pub async fn write(&mut self, bytes: &[u8]) {
        timeout(PATIENCE, self.stream.write_all(bytes)).await.expect("a write ends").unwrap();
        self.stream.flush().await.unwrap();
    }

    /// The next reply, or `None` when the other side has closed.
    pub async fn reply(&mut self) -> Option<Reply> {
        timeout(PATIENCE, async {
            loop {
                if let Some(layout) = frame::peek(&self.read, 64 << 20).unwrap() {
                    let frame = self.read.split_to(layout.frame_bytes).freeze();
                    let mut scratch = HeaderScratch::new();
                    let head =
                        header::decode(&frame[layout.header.clone()], layout.serialization, &mut scratch).unwrap();
                    let field = |fields: Fields<'_>, name: &str| fields.get(name).map(str::to_owned);
                    return Some(Reply {
                        code: head.code,
                        opaque: head.opaque,
                        flag: head.flag,
                        remark: head.remark.map(str::to_owned),
                        serialization: layout.serialization,
                        peer: field(head.fields, "peer"),
                        tag: field(head.fields, "tag"),
                        body: frame.slice(layout.body),
                    });
                }
                match self.stream.read_buf(&mut self.read).await {
                    Ok(0) | Err(_) => return None,
                    Ok(_) => {}
                }
            }
        })
        .await
        .expect("a reply or an end comes")
    }

    pub async fn echo(&mut self, opaque: i32, body: &[u8]) -> Reply {
        self.write(&request(does::ECHO, opaque, 0, &[], body)).await;
        self.reply().await.expect("the connection is open")
    }

    pub async fn is_closed_by_the_server(&mut self) -> bool {
        self.reply().await.is_none()
    }
}

/// Waits until something is so.
pub async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
