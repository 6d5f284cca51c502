//! The machine's own ceiling, `gantry bench echo`: round trips of requests and replies as large as those of sends, between two processes
//! that do nothing else.
//!
//! A plain `epoll` loop on both sides, one request on its way on each connection, no header read and nothing allocated: what a broker and
//! a load generator reach together lies below it.

mod server;
mod sizes;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::event::{Timespec, epoll};
use serde::Serialize;

use crate::driver::HeaderKind;
use crate::error::BenchError;
use crate::machine::Machine;
use crate::meter::{Counts, Latency};
use crate::process;

pub use server::serve;
pub use sizes::{Sizes, of_send};

/// Events of one look.
const EVENTS: usize = 256;

/// Between two looks whether the time is over, where nothing comes.
const LOOK_EVERY_MS: i64 = 100;

/// What is read at once.
const READ_BYTES: usize = 64 << 10;

/// The server has so long to say where it listens.
const STARTING: Duration = Duration::from_secs(20);

const WARMUP: u8 = 0;
const MEASURE: u8 = 1;
const OVER: u8 = 2;

/// What is echoed.
#[derive(Clone, Debug)]
pub struct Echo {
    /// Connections, with one request on its way on each.
    pub connections: usize,
    /// Threads of each side.
    pub threads: usize,
    /// Bytes of the messages whose sends have the requests' size.
    pub message_size: usize,
    /// How their headers are written.
    pub header: HeaderKind,
    /// What is not measured.
    pub warmup: Duration,
    /// What is.
    pub time: Duration,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Echoed {
    /// Where.
    pub machine: Machine,
    /// Connections, with one request on its way on each.
    pub connections: usize,
    /// Threads of each side.
    pub threads: usize,
    /// Bytes of a message whose send has the size of a request.
    pub message_size: usize,
    /// How its header is written.
    pub header: HeaderKind,
    /// Bytes of a request.
    pub request_bytes: usize,
    /// Bytes of a reply.
    pub reply_bytes: usize,
    /// How long was measured.
    pub measured_seconds: f64,
    /// A second.
    pub round_trip_rate: f64,
    /// Of a round trip, in ms.
    pub latency: Option<Latency>,
    /// Of the side that answers.
    pub server: Side,
    /// Of the side that asks.
    pub loader: Side,
}

/// What one side took.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Side {
    /// Processor time, in cores.
    pub cpu_cores: f64,
    /// The same for a million round trips; nothing if there was none.
    pub cpu_seconds_per_million: Option<f64>,
}

/// Runs it, against a server that `command` starts: this very program, told to call [`serve`].
pub fn run(echo: &Echo, mut command: Command) -> Result<Echoed, BenchError> {
    let sizes = of_send(echo.message_size, echo.header);
    let numbers = [sizes.request, sizes.reply, echo.connections, echo.threads];
    let started = command.args(numbers.map(|number| number.to_string())).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut server = Server(started.spawn().map_err(failed("the process that answers cannot be started"))?);
    let address = server.address()?;
    let connect = |_| {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(stream)
    };
    let streams: std::io::Result<Vec<TcpStream>> = (0..echo.connections).map(connect).collect();
    let mut streams = streams.map_err(failed("the process that answers cannot be reached"))?;
    let phase = Arc::new(AtomicU8::new(WARMUP));
    let (tell, told) = mpsc::channel();
    let mut askers: Vec<JoinHandle<Histogram<u64>>> = Vec::new();
    for thread in (0..echo.threads).rev() {
        // The last takes what is left.
        let share = streams.split_off(streams.len() * thread / (thread + 1));
        let asker = Asker { streams: share, sizes, phase: Arc::clone(&phase) };
        let tell = tell.clone();
        let begun = std::thread::Builder::new().name(format!("echo-{thread}")).spawn(move || {
            let (latencies, ended) = asker.ask();
            // Only the first one is heard, and after the end nobody.
            let _ = ended.map_err(|error| tell.send(error));
            latencies
        });
        askers.push(begun.map_err(failed("a thread cannot be started"))?);
    }
    drop(tell);
    let measured = wait(echo, &told, &phase, server.0.id());
    phase.store(OVER, Ordering::Relaxed);
    let mut latencies = Counts::default().latency;
    for asker in askers {
        if let Ok(of_thread) = asker.join() {
            // All have the same bounds.
            let _ = latencies.add(&of_thread);
        }
    }
    let Measured { seconds, server, loader } = measured?;
    let million = latencies.len() as f64 / 1e6;
    let side = |taken: f64| Side {
        cpu_cores: taken / seconds,
        cpu_seconds_per_million: (million > 0.0).then(|| taken / million),
    };
    Ok(Echoed {
        machine: Machine::read(),
        connections: echo.connections,
        threads: echo.threads,
        message_size: echo.message_size,
        header: echo.header,
        request_bytes: sizes.request,
        reply_bytes: sizes.reply,
        measured_seconds: seconds,
        round_trip_rate: latencies.len() as f64 / seconds,
        latency: Latency::of(&latencies),
        server: side(server),
        loader: side(loader),
    })
}

/// For `map_err` on what the system refuses.
fn failed(what: &'static str) -> impl Fn(std::io::Error) -> BenchError {
    move |cause| BenchError::Invalid(format!("{what}: {cause}"))
}

/// Processor time of both sides in the measured time.
struct Measured {
    seconds: f64,
    server: f64,
    loader: f64,
}

/// Lets the time pass, unless a thread fails.
fn wait(
    echo: &Echo,
    told: &mpsc::Receiver<std::io::Error>,
    phase: &AtomicU8,
    server: u32,
) -> Result<Measured, BenchError> {
    let pass = |time: Duration| match told.recv_timeout(time) {
        Err(mpsc::RecvTimeoutError::Timeout) => Ok(()),
        Ok(error) => Err(failed("a round trip failed")(error)),
        // No thread is left, and none has said why.
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            Err(BenchError::Invalid("the threads that ask have ended".to_owned()))
        }
    };
    let taken = || {
        let server = process::taken(server).unwrap_or_default();
        (server.cpu_seconds, process::taken(std::process::id()).unwrap_or_default().cpu_seconds)
    };
    pass(echo.warmup)?;
    let (before, begun) = (taken(), Instant::now());
    phase.store(MEASURE, Ordering::Relaxed);
    pass(echo.time)?;
    phase.store(OVER, Ordering::Relaxed);
    let (after, seconds) = (taken(), begun.elapsed().as_secs_f64().max(1e-6));
    Ok(Measured { seconds, server: after.0 - before.0, loader: after.1 - before.1 })
}

/// The process that answers; it ends with us.
struct Server(Child);

impl Server {
    /// Where it listens.
    fn address(&mut self) -> Result<SocketAddr, BenchError> {
        let lost = || BenchError::Invalid("the process that answers does not say where".to_owned());
        let stdout = self.0.stdout.take().ok_or_else(lost)?;
        let (say, hear) = mpsc::channel();
        std::thread::spawn(move || {
            // Whoever does not listen any more has given up.
            let _ = say.send(BufReader::new(stdout).lines().next().and_then(Result::ok));
        });
        let line = hear.recv_timeout(STARTING).ok().flatten().ok_or_else(lost)?;
        let port: u16 = line.trim().parse().map_err(|_| lost())?;
        Ok((Ipv4Addr::LOCALHOST, port).into())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It ends by itself with its connections; this is for one that never had any. Gone already is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One thread that asks.
struct Asker {
    streams: Vec<TcpStream>,
    sizes: Sizes,
    phase: Arc<AtomicU8>,
}

impl Asker {
    /// Asks until the time is over, or something fails. The histogram has the measured round trips, in microseconds.
    fn ask(mut self) -> (Histogram<u64>, std::io::Result<()>) {
        let mut latencies = Counts::default().latency;
        let ended = self.rounds(&mut latencies);
        (latencies, ended)
    }

    fn rounds(&mut self, latencies: &mut Histogram<u64>) -> std::io::Result<()> {
        let request = vec![b'x'; self.sizes.request];
        let mut buffer = vec![0; READ_BYTES];
        let poll = watch(&self.streams)?;
        // When the request left, and how much of its reply is here.
        let mut open: Vec<(Instant, usize)> = vec![(Instant::now(), 0); self.streams.len()];
        for (stream, open) in self.streams.iter_mut().zip(&mut open) {
            open.0 = Instant::now();
            stream.write_all(&request)?;
        }
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            look(&poll, &mut events)?;
            let phase = self.phase.load(Ordering::Relaxed);
            if phase == OVER {
                return Ok(());
            }
            for event in events.drain(..) {
                let which = event.data.u64() as usize;
                let (stream, (left, here)) = (&mut self.streams[which], &mut open[which]);
                match stream.read(&mut buffer)? {
                    0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                    bytes => *here += bytes,
                }
                if *here < self.sizes.reply {
                    continue;
                }
                let now = Instant::now();
                if phase == MEASURE {
                    let took = u64::try_from((now - *left).as_micros()).unwrap_or(u64::MAX);
                    latencies.saturating_record(took.max(1));
                }
                (*left, *here) = (now, 0);
                stream.write_all(&request)?;
            }
        }
    }
}

/// An `epoll` that tells of whatever comes, by index. The sockets block: one that is told of has something to read.
fn watch(streams: &[TcpStream]) -> std::io::Result<OwnedFd> {
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (which, stream) in streams.iter().enumerate() {
        epoll::add(&poll, stream, epoll::EventData::new_u64(which as u64), epoll::EventFlags::IN)?;
    }
    Ok(poll)
}

/// Waits for events; none if nothing came for a while.
fn look(poll: &OwnedFd, events: &mut Vec<epoll::Event>) -> std::io::Result<()> {
    let wait = Timespec { tv_sec: 0, tv_nsec: LOOK_EVERY_MS * 1_000_000 };
    match epoll::wait(poll, rustix::buffer::spare_capacity(events), Some(&wait)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
