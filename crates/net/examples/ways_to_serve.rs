//! What sockets cost by the plain calls and by io_uring: the figures behind the decision on the network's back end in ARCHITECTURE.md.
//!
//! `ways_to_serve REQUEST REPLY CONNECTIONS SECONDS` answers each REQUEST bytes with REPLY bytes on CONNECTIONS connections, with one
//! request on its way on each, by one thread, and asks from another; in turn by `epoll` and by `io_uring`, three times. Says round trips
//! a second and the processor time of the thread that answers.

#![allow(clippy::disallowed_methods, reason = "it measures for as long as it is told to")]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use io_uring::{IoUring, opcode, types};
use rustix::event::{Timespec, epoll};
use rustix::time::{ClockId, clock_gettime};

const READ_BYTES: usize = 64 << 10;
const EVENTS: usize = 256;
/// Between two looks whether the time is over.
const LOOK_EVERY: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug)]
enum Way {
    Epoll,
    IoUring,
}

fn main() -> Result<()> {
    let numbers: Vec<usize> = std::env::args().skip(1).map(|word| word.parse()).collect::<Result<_, _>>()?;
    let [request, reply, connections, seconds] = numbers[..] else {
        anyhow::bail!("ways_to_serve REQUEST REPLY CONNECTIONS SECONDS")
    };
    for _ in 0..3 {
        for way in [Way::Epoll, Way::IoUring] {
            measure(way, request, reply, connections, Duration::from_secs(seconds as u64))?;
        }
    }
    Ok(())
}

fn measure(way: Way, request: usize, reply: usize, connections: usize, time: Duration) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let (mut asking, mut answering) = (Vec::new(), Vec::new());
    for _ in 0..connections {
        asking.push(TcpStream::connect(listener.local_addr()?)?);
        answering.push(listener.accept()?.0);
    }
    for stream in asking.iter().chain(&answering) {
        stream.set_nodelay(true)?;
    }
    let (is_over, round_trips) = (AtomicBool::new(false), AtomicU64::new(0));
    let (took, processor) = std::thread::scope(|scope| -> Result<(Duration, f64)> {
        let server = scope.spawn(|| -> Result<f64> {
            match way {
                Way::Epoll => by_epoll(answering, request, reply, &is_over)?,
                Way::IoUring => by_io_uring(&answering, request, reply, &is_over)?,
            }
            let taken = clock_gettime(ClockId::ThreadCPUTime);
            Ok(taken.tv_sec as f64 + taken.tv_nsec as f64 / 1e9)
        });
        let loader = scope.spawn(|| ask(asking, request, reply, &is_over, &round_trips));
        let began = Instant::now();
        std::thread::sleep(time);
        is_over.store(true, Ordering::Relaxed);
        let took = began.elapsed();
        let processor = server.join().map_err(|_| anyhow::anyhow!("the server ended by a bug"))??;
        loader.join().map_err(|_| anyhow::anyhow!("the loader ended by a bug"))??;
        Ok((took, processor))
    })?;
    let all = round_trips.load(Ordering::Relaxed) as f64;
    println!(
        "{way:?}: {:.0} round trips a second, {:.2} CPU-s a million of who answers",
        all / took.as_secs_f64(),
        processor / all * 1e6
    );
    Ok(())
}

fn ask(
    mut streams: Vec<TcpStream>,
    request: usize,
    reply: usize,
    is_over: &AtomicBool,
    round_trips: &AtomicU64,
) -> Result<()> {
    let bytes = vec![b'x'; request];
    let mut here = vec![0; streams.len()];
    for stream in &mut streams {
        stream.write_all(&bytes)?;
    }
    by_events(&mut streams, is_over, |which, stream, buffer| {
        here[which] += stream.read(buffer)?;
        if here[which] >= reply {
            here[which] -= reply;
            round_trips.fetch_add(1, Ordering::Relaxed);
            stream.write_all(&bytes)?;
        }
        Ok(())
    })
}

fn by_epoll(mut streams: Vec<TcpStream>, request: usize, reply: usize, is_over: &AtomicBool) -> Result<()> {
    let bytes = vec![b'y'; reply];
    let mut here = vec![0; streams.len()];
    by_events(&mut streams, is_over, |which, stream, buffer| {
        here[which] += stream.read(buffer)?;
        if here[which] >= request {
            here[which] -= request;
            stream.write_all(&bytes)?;
        }
        Ok(())
    })
}

fn by_events(
    streams: &mut [TcpStream],
    is_over: &AtomicBool,
    mut serve: impl FnMut(usize, &mut TcpStream, &mut [u8]) -> std::io::Result<()>,
) -> Result<()> {
    let poll: OwnedFd = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (which, stream) in streams.iter().enumerate() {
        epoll::add(&poll, stream, epoll::EventData::new_u64(which as u64), epoll::EventFlags::IN)?;
    }
    let mut buffer = vec![0; READ_BYTES];
    let mut events = Vec::with_capacity(EVENTS);
    let wait = Timespec { tv_sec: 0, tv_nsec: LOOK_EVERY.as_nanos() as i64 };
    while !is_over.load(Ordering::Relaxed) {
        epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), Some(&wait))?;
        for event in events.drain(..) {
            let which = event.data.u64() as usize;
            serve(which, &mut streams[which], &mut buffer)?;
        }
    }
    Ok(())
}

/// What a completion says of itself: which connection, and whether it was written to.
const WRITTEN: u64 = 1 << 32;
const TIME: u64 = 1 << 33;

fn by_io_uring(streams: &[TcpStream], request: usize, reply: usize, is_over: &AtomicBool) -> Result<()> {
    // Never freed: the kernel may still hold a read when the ring is closed.
    let bytes: &'static [u8] = vec![b'y'; reply].leak();
    let mut buffers: Vec<&'static mut [u8]> = streams.iter().map(|_| vec![0; request].leak()).collect();
    let mut here = vec![0; streams.len()];
    let mut ring: IoUring =
        IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(4 * streams.len() as u32 + 1)?;
    let tick = types::Timespec::from(LOOK_EVERY);
    let mut due = Vec::new();
    for (which, (stream, buffer)) in streams.iter().zip(&mut buffers).enumerate() {
        due.push(read(stream, which, buffer));
    }
    due.push(opcode::Timeout::new(&tick).build().user_data(TIME));
    while !is_over.load(Ordering::Relaxed) {
        for entry in due.drain(..) {
            // SAFETY: buffers and bytes live for ever, and no buffer is read or lent again before its completion. `tick` outlives the
            // submission, which copies it. The kernel holds the sockets by itself.
            unsafe { ring.submission().push(&entry) }.context("the ring has room for all connections")?;
        }
        ring.submit_and_wait(1)?;
        for done in ring.completion() {
            let (said, result) = (done.user_data(), done.result());
            if said == TIME {
                due.push(opcode::Timeout::new(&tick).build().user_data(TIME));
                continue;
            }
            if result <= 0 {
                return Ok(());
            }
            if said >= WRITTEN {
                continue;
            }
            let which = said as usize;
            here[which] += result as usize;
            if here[which] >= request {
                here[which] = 0;
                let send = opcode::Send::new(types::Fd(streams[which].as_raw_fd()), bytes.as_ptr(), reply as u32);
                due.push(send.build().user_data(WRITTEN | said));
            }
            let from = here[which];
            due.push(read(&streams[which], which, &mut buffers[which][from..]));
        }
    }
    Ok(())
}

fn read(stream: &TcpStream, which: usize, buffer: &mut [u8]) -> io_uring::squeue::Entry {
    let fd = types::Fd(stream.as_raw_fd());
    opcode::Recv::new(fd, buffer.as_mut_ptr(), buffer.len() as u32).build().user_data(which as u64)
}
