//! Two stores, a port of the master's, and a relay between them that cuts and damages.

use std::collections::HashSet;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use env::{Clock, Random, TimeMs};
use protocol::LogOffset;
use protocol::record::RecordDraft;
use replica::asking::{AskError, AskMaster, Extent};
use replica::feed::{Allowed, FeedPort, PortOptions};
use replica::follow::{BatchTopics, FollowEnd, FollowOptions, FollowStatus, Follower};
use replica::lag::Slaves;
use replica::wire::own::{self, Answered, Answers, Greeting, Hello, Identity, Member, Note};
use replica::wire::plain;
use replica::wire::secret::{Proof, Role, Secret};
use store::{
    AppendError, FlushMode, LogCopy, RecordBatch, Retention, Store, StoreEnv, StoreError, StoreOptions, TagsCode,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

pub const SEGMENT: u64 = 64 << 10;
pub const TOPIC: &str = "orders";

/// Long enough for a busy machine; a test that waits so long has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn options(root: &Path) -> StoreOptions {
    StoreOptions {
        segment_bytes: SEGMENT,
        queue_file_bytes: 20 * 100,
        flush_interval: Duration::from_millis(5),
        // Whatever the machine's disk is at.
        retention: Retention {
            disk_max_used_percent: 100,
            disk_clean_forcibly_percent: 100,
            disk_warning_percent: 100,
            delete_when: Vec::new(),
            ..Retention::default()
        },
        ..StoreOptions::at(root)
    }
}

/// Opens it as soon as the threads of a store that was dropped have ended.
pub fn open_as(options: &StoreOptions) -> Arc<Store> {
    let begun = Instant::now();
    loop {
        match Store::open(options.clone(), StoreEnv::real()) {
            Err(StoreError::Locked { .. }) if begun.elapsed() < PATIENCE => std::thread::yield_now(),
            opened => return opened.unwrap().0,
        }
    }
}

pub fn open(root: &Path) -> Arc<Store> {
    open_as(&options(root))
}

pub fn open_sync(root: &Path) -> Arc<Store> {
    open_as(&StoreOptions { flush: FlushMode::Sync, ..options(root) })
}

/// Appends messages of different lengths to two queues.
pub fn fill(store: &Store, numbers: std::ops::Range<u64>) {
    for number in numbers {
        put(store, number, vec![number as u8; 20 + (number * 37 % 1500) as usize]);
    }
}

/// Appends one message.
pub fn put(store: &Store, number: u64, body: Vec<u8>) {
    let queue_id = (number % 2) as u32;
    let queue = store.queue(TOPIC, queue_id).unwrap();
    let mut batch = RecordBatch::new();
    batch.push(&queue, TagsCode::Code(0), |out| {
        let host = "127.0.0.1:10911".parse().unwrap();
        let draft = RecordDraft { queue_id: queue_id as i32, body: &body, ..RecordDraft::plain(TOPIC, host) };
        draft.encode(out).unwrap();
    });
    let begun = Instant::now();
    while let Err(error) = store.append(&mut batch, TimeMs(1_700_000_000_000 + number as i64)) {
        let AppendError::NoRoomYet { needed } = error else { panic!("{error}") };
        store.room().wait_until(needed, Instant::now() + Duration::from_millis(100));
        assert!(begun.elapsed() < PATIENCE, "no room up to {needed}");
    }
}

pub fn log_of(store: &Store) -> Vec<u8> {
    let (mut log, mut at) = (Vec::new(), store.min_offset());
    while let Some(block) = store.raw_bytes(at, usize::MAX).unwrap() {
        log.extend_from_slice(block.as_ref());
        at.0 += block.as_ref().len() as u64;
    }
    log
}

/// The same bytes, and the same queues.
#[track_caller]
pub fn assert_copied(master: &Store, slave: &Store) {
    assert_eq!((master.min_offset(), master.end()), (slave.min_offset(), slave.end()));
    assert!(log_of(master) == log_of(slave), "the bytes differ");
    for (id, queue) in master.queues_of(TOPIC) {
        let copied = slave.existing_queue(TOPIC, id).unwrap();
        assert_eq!((queue.min_offset(), queue.max_offset()), (copied.min_offset(), copied.max_offset()));
        for offset in queue.min_offset()..queue.max_offset() {
            assert_eq!(queue.span_at(offset).unwrap(), copied.span_at(offset).unwrap(), "{id} {offset}");
        }
    }
}

pub async fn in_time<T>(what: &str, done: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, done).await.unwrap_or_else(|_| panic!("{what} did not happen"))
}

/// Until it holds; looked at again and again.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    in_time(what, async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

pub async fn came_to(store: &Store, end: LogOffset) {
    in_time("the copy", store.written().reached(end.0)).await;
}

/// Answers as the master does that has this store, and later as one that has another.
pub fn ask_any(store: &Arc<Mutex<Arc<Store>>>) -> AskMaster {
    let (of_extent, of_record) = (Arc::clone(store), Arc::clone(store));
    AskMaster::new(
        move || {
            let extent = extent_of(&of_extent.lock().unwrap());
            Box::pin(async move { Ok(extent) })
        },
        move |at| {
            let record = record_of(&of_record.lock().unwrap(), at);
            Box::pin(async move { record })
        },
    )
}

pub fn ask(store: &Arc<Store>) -> AskMaster {
    ask_any(&Arc::new(Mutex::new(Arc::clone(store))))
}

/// Answers that the log lies so, and has the records of this store.
pub fn ask_told(extent: &Arc<Mutex<Extent>>, store: &Arc<Store>) -> AskMaster {
    let (extent, store) = (Arc::clone(extent), Arc::clone(store));
    AskMaster::new(
        move || {
            let extent = *extent.lock().unwrap();
            Box::pin(async move { Ok(extent) })
        },
        move |at| {
            let record = record_of(&store, at);
            Box::pin(async move { record })
        },
    )
}

fn extent_of(store: &Store) -> Extent {
    Extent { min: store.min_offset(), max: store.end(), has_journal: false }
}

/// What 33 of a broker of Apache's brings: as many bytes as the first four say, whatever they are.
fn record_of(store: &Store, at: LogOffset) -> Result<Bytes, AskError> {
    let rest = store.raw_bytes(at, usize::MAX).unwrap();
    let rest: &[u8] = rest.as_ref().map_or(&[][..], |rest| rest.as_ref());
    let length = rest.first_chunk().map_or(usize::MAX, |length| u32::from_be_bytes(*length) as usize);
    let refused = || AskError::Refused { request: 33, code: 1, remark: "can not find message by the offset".into() };
    rest.get(..length).map(Bytes::copy_from_slice).ok_or_else(refused)
}

pub fn nobody_to_ask() -> AskMaster {
    let no_master = || AskError::NoMaster { set: "broker-a".into(), cluster: "DefaultCluster".into() };
    AskMaster::new(
        move || Box::pin(async move { Err(no_master()) }),
        move |_| Box::pin(async move { Err(no_master()) }),
    )
}

/// A broker of the set, which has this secret.
pub fn member(broker_id: i64, secret: Option<&str>) -> Arc<Member> {
    let who = Identity { cluster: "DefaultCluster".into(), set: "broker-a".into(), broker_id };
    Arc::new(Member { who, secret: secret.map(Secret::new) })
}

/// Says of a master that it speaks the stream of Gantry.
pub fn own_stream(asking: AskMaster) -> AskMaster {
    asking.with_streams(|| Box::pin(async { Ok(true) }))
}

/// The port of a master.
pub struct Master {
    pub address: SocketAddr,
    pub slaves: Arc<Slaves>,
    /// How often a change was told.
    pub acknowledged: Arc<AtomicUsize>,
    stop: oneshot::Sender<()>,
    running: JoinHandle<()>,
}

impl Master {
    pub fn of(store: &Arc<Store>) -> Master {
        Master::with(store, PortOptions::new(Allowed::new(|_| true)))
    }

    /// Both streams are spoken at it.
    pub fn with(store: &Arc<Store>, options: PortOptions) -> Master {
        let options = PortOptions { member: options.member.or(Some(member(0, None))), ..options };
        let (slaves, acknowledged) = (Arc::new(Slaves::of(store.end())), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&acknowledged);
        slaves.on_change(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        let any = "127.0.0.1:0".parse().unwrap();
        let port = FeedPort::bind(any, Arc::clone(store), Clock::real(), options, Arc::clone(&slaves)).unwrap();
        let address = port.local_addr();
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn(port.run(async { drop(stopped.await) }));
        Master { address, slaves, acknowledged, stop, running }
    }

    pub fn closed(&self, name: &str) -> u64 {
        self.slaves.closed().find(|(known, _)| *known == name).unwrap().1
    }

    pub async fn stop(self) {
        drop(self.stop);
        in_time("the end of the port", self.running).await.unwrap();
    }
}

/// A slave that follows.
pub struct Slave {
    pub status: Arc<FollowStatus>,
    pub masters: watch::Sender<Option<Arc<str>>>,
    stop: oneshot::Sender<()>,
    running: JoinHandle<FollowEnd>,
}

impl Slave {
    pub fn of(store: &Arc<Store>, master: SocketAddr, asking: AskMaster) -> Slave {
        Slave::with(store, master, asking, FollowOptions::default())
    }

    pub fn with(store: &Arc<Store>, master: SocketAddr, asking: AskMaster, options: FollowOptions) -> Slave {
        Slave::knowing(store, master, asking, options, Arc::new(|_| Ok(HashSet::new())))
    }

    /// A slave on this stream; on that of Gantry it is broker 1.
    pub fn on(wire: Wire, store: &Arc<Store>, master: SocketAddr, asking: AskMaster) -> Slave {
        match wire {
            Wire::Plain => Slave::of(store, master, asking),
            Wire::Own => Slave::own(store, master, asking, member(1, None)),
        }
    }

    /// A slave of Gantry, whose master says that it is of Gantry.
    pub fn own(store: &Arc<Store>, master: SocketAddr, asking: AskMaster, member: Arc<Member>) -> Slave {
        let (options, none) = (FollowOptions::default(), Arc::new(|_: &[&str]| Ok(HashSet::new())));
        Slave::start(store, master, own_stream(asking), options, none, Some(member))
    }

    pub fn knowing(
        store: &Arc<Store>,
        master: SocketAddr,
        asking: AskMaster,
        options: FollowOptions,
        batch_topics: BatchTopics,
    ) -> Slave {
        Slave::start(store, master, asking, options, batch_topics, None)
    }

    pub fn start(
        store: &Arc<Store>,
        master: SocketAddr,
        asking: AskMaster,
        options: FollowOptions,
        batch_topics: BatchTopics,
        member: Option<Arc<Member>>,
    ) -> Slave {
        let status = Arc::new(FollowStatus::default());
        let follower = Follower {
            store: Arc::clone(store),
            clock: Clock::real(),
            random: Random::seeded(7),
            options: options.fixed(),
            batch_topics,
            asking,
            member,
            status: Arc::clone(&status),
        };
        let (masters, shown) = watch::channel(Some(Arc::from(master.to_string())));
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn(follower.run(shown, async { drop(stopped.await) }));
        Slave { status, masters, stop, running }
    }

    pub async fn stop(self) {
        drop(self.stop);
        assert_eq!(in_time("the end of the slave", self.running).await.unwrap(), FollowEnd::Stopped);
    }

    pub async fn ended(self) -> FollowEnd {
        in_time("the end of the slave", self.running).await.unwrap()
    }
}

/// What a relay does to the bytes of a connection from the master: it ends after a number of them, or one is changed.
#[derive(Clone, Copy, Default)]
pub struct Harm {
    pub cut_after: Option<usize>,
    pub flip_at: Option<usize>,
}

/// Does this to the connections with the log, counted from 0. A slave of Gantry has a second one each time, on which it greets first; that is let
/// through.
pub fn of_the_log(wire: Wire, harm: impl Fn(usize) -> Harm) -> impl Fn(usize) -> Harm {
    move |number| match wire {
        Wire::Plain => harm(number),
        Wire::Own if number % 2 == 0 => harm(number / 2),
        Wire::Own => Harm::default(),
    }
}

/// Stands between a slave and its master; does to each connection what `harm` says of its number, from 0.
pub async fn relay(to: SocketAddr, harm: impl Fn(usize) -> Harm + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut number = 0;
        while let Ok((slave, _)) = listener.accept().await {
            let Ok(master) = TcpStream::connect(to).await else { continue };
            tokio::spawn(pass(slave, master, harm(number)));
            number += 1;
        }
    });
    address
}

async fn pass(slave: TcpStream, master: TcpStream, harm: Harm) {
    let (mut from_slave, mut to_slave) = slave.into_split();
    let (mut from_master, mut to_master) = master.into_split();
    let up = async { tokio::io::copy(&mut from_slave, &mut to_master).await };
    let down = async {
        let (mut buffer, mut passed) = (vec![0; 8 << 10], 0);
        while let Ok(bytes) = from_master.read(&mut buffer).await {
            let bytes = bytes.min(harm.cut_after.map_or(bytes, |cut| cut.saturating_sub(passed)));
            if let Some(place) = harm.flip_at.and_then(|at| at.checked_sub(passed)).filter(|place| *place < bytes) {
                buffer[place] ^= 0x20;
            }
            if bytes == 0 || to_slave.write_all(&buffer[..bytes]).await.is_err() {
                return;
            }
            passed += bytes;
        }
    };
    tokio::select! {
        _ = up => {}
        () = down => {}
    }
}

/// A master that says this to each that has said something.
pub async fn answering(bytes: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let bytes = bytes.clone();
            tokio::spawn(async move {
                let mut heard = [0; 4096];
                let _ = socket.read(&mut heard).await;
                let _ = socket.write_all(&bytes).await;
                // Until the slave goes.
                while socket.read(&mut heard).await.is_ok_and(|bytes| bytes > 0) {}
            });
        }
    });
    address
}

pub async fn until_it_fails(slave: &Slave, says: &str) {
    eventually(says, || slave.status.failure().is_some_and(|why| why.contains(says))).await;
}

/// Lets the log of a closed store begin at `at`, and opens it.
pub fn begin_at(root: &Path, at: LogOffset) -> Arc<Store> {
    LogCopy::begin_at(&options(root), &StoreEnv::real(), at).unwrap();
    open(root)
}

/// Which stream a slave speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    Plain,
    Own,
}

pub const BOTH: [Wire; 2] = [Wire::Plain, Wire::Own];

impl Wire {
    /// Bytes in front of a body.
    pub fn header_bytes(self) -> usize {
        match self {
            Wire::Plain => plain::HEADER_BYTES,
            Wire::Own => own::HEADER_BYTES,
        }
    }

    /// What a master says in front of the first frame.
    pub fn answer(self) -> Vec<u8> {
        match self {
            Wire::Plain => Vec::new(),
            Wire::Own => own::answer(&greeting(0).encode().unwrap(), None),
        }
    }

    /// Its length.
    pub fn greeting_bytes(self) -> usize {
        self.answer().len()
    }

    /// What a master says in front of a body.
    pub fn header(self, at: u64, body_bytes: u32) -> Vec<u8> {
        match self {
            Wire::Plain => plain::header(LogOffset(at), body_bytes).to_vec(),
            Wire::Own => own::header(LogOffset(at), body_bytes, false).to_vec(),
        }
    }
}

/// What a broker with an empty log says of itself.
pub fn greeting(broker_id: i64) -> Greeting {
    let (min, end) = (LogOffset(0), LogOffset(0));
    let who = member(broker_id, None).who.clone();
    Greeting { version: own::VERSION, who, segment_bytes: SEGMENT, min, end, nonce: [1; 32] }
}

/// A slave that a test plays, byte for byte.
pub struct Guest {
    pub socket: TcpStream,
    wire: Wire,
}

impl Guest {
    /// One that has greeted, if it has to; as broker 1.
    pub async fn of(wire: Wire, master: SocketAddr) -> Guest {
        match wire {
            Wire::Plain => Guest::silent(wire, master).await,
            Wire::Own => Guest::greets(master, greeting(1)).await,
        }
    }

    /// One that has said nothing.
    pub async fn silent(wire: Wire, master: SocketAddr) -> Guest {
        Guest::silent_from("127.0.0.1", wire, master).await
    }

    /// The same from this address of the machine.
    pub async fn silent_from(ip: &str, wire: Wire, master: SocketAddr) -> Guest {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((ip.parse::<IpAddr>().unwrap(), 0).into()).unwrap();
        let socket = socket.connect(master).await.unwrap();
        socket.set_nodelay(true).unwrap();
        Guest { socket, wire }
    }

    /// One that says this, and has to be let in.
    pub async fn greets(master: SocketAddr, greeting: Greeting) -> Guest {
        let mut guest = Guest::silent(Wire::Own, master).await;
        match guest.answer(greeting).await {
            Answered::Goes(_) => guest,
            Answered::Ends(why) => panic!("{why}"),
        }
    }

    /// Greets, and what the master says to it.
    pub async fn answer(&mut self, greeting: Greeting) -> Answered {
        self.socket.write_all(&Hello::new(greeting).unwrap().bytes).await.unwrap();
        let (mut answers, mut byte) = (Answers::default(), [0]);
        in_time("an answer", async {
            loop {
                self.socket.read_exact(&mut byte).await.unwrap();
                if let Some(answered) = answers.next(&mut &byte[..]).unwrap() {
                    return answered;
                }
            }
        })
        .await
    }

    /// Greets as broker 1. What proves then that it has this secret.
    pub async fn proof(&mut self, secret: &str) -> Proof {
        let Answered::Goes(answer) = self.answer(greeting(1)).await else { panic!("it is not let in") };
        let hello = Hello::new(greeting(1)).unwrap();
        Secret::new(secret).prove(Role::Slave, &hello.bytes, &answer.bytes)
    }

    /// Greets as broker 1, with a proof that it has this secret.
    pub async fn proves(&mut self, secret: &str) {
        let proof = self.proof(secret).await;
        self.socket.write_all(&Note::Proof(proof).encode()).await.unwrap();
    }

    pub async fn report(&mut self, end: u64) {
        self.has(end, end).await;
    }

    /// On the plain stream nothing is said of the device.
    pub async fn has(&mut self, written: u64, flushed: u64) {
        let note = Note::Has { written: LogOffset(written), flushed: LogOffset(flushed) };
        let bytes = if self.wire == Wire::Own { note.encode() } else { written.to_be_bytes().to_vec() };
        self.socket.write_all(&bytes).await.unwrap();
    }

    /// A frame as it comes: place and body.
    pub async fn frame(&mut self) -> (u64, Vec<u8>) {
        let mut header = vec![0; self.wire.header_bytes()];
        in_time("a frame", self.socket.read_exact(&mut header)).await.unwrap();
        let number = if self.wire == Wire::Own { &header[2..] } else { &header[..] };
        let mut body = vec![0; u32::from_be_bytes(number[8..].try_into().unwrap()) as usize];
        in_time("a body", self.socket.read_exact(&mut body)).await.unwrap();
        (u64::from_be_bytes(number[..8].try_into().unwrap()), body)
    }

    /// The other side has closed it; all that came before.
    pub async fn is_closed(&mut self) -> Vec<u8> {
        let (mut bytes, mut all) = (vec![0; 64 << 10], Vec::new());
        in_time("the close", async {
            while let Ok(count @ 1..) = self.socket.read(&mut bytes).await {
                all.extend_from_slice(&bytes[..count]);
            }
        })
        .await;
        all
    }

    /// The words with which the other side has closed it, behind frames.
    pub async fn words(&mut self) -> String {
        let all = self.is_closed().await;
        let (mut frames, mut left, mut words) = (own::Frames::default(), &all[..], String::new());
        while let Some(piece) = frames.next(&mut left).unwrap() {
            if let own::Piece::End(why) = piece {
                words = why;
            }
        }
        words
    }
}
