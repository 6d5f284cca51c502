//! How work is laid out over threads, in one place.
//!
//! The store starts and names its own threads. Everything else runs on tokio's workers, one a processor: requests never block, so
//! more would only take turns.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, available_parallelism};
use std::time::Duration;

use anyhow::Context;
use tokio::runtime::{Builder, Runtime};

use crate::lookout::Lookout;

/// What blocks runs outside the workers: looking up names, opening and closing the store, writing settings and JSON files, unfolding
/// registrations. A resolver that does not answer holds a thread for half a minute, and must not hold up the files; threads without
/// work end by themselves.
const BLOCKING_THREADS: usize = 64;

/// What the workers are called. Those that block have a name of their own, so that who looks at a thread knows which it is.
pub const WORKER_NAME: &str = "gantry";
/// No longer than the kernel takes.
const BLOCKING_NAME: &str = "gantry-blocking";

/// The runtime of the process.
pub fn runtime() -> anyhow::Result<Runtime> {
    let workers = available_parallelism().map_or(1, usize::from);
    // Tokio asks for names in the order in which it starts threads: the workers first, all of them, which stay until the end.
    let named = AtomicUsize::new(0);
    let name = move || if named.fetch_add(1, Ordering::Relaxed) < workers { WORKER_NAME } else { BLOCKING_NAME };
    let lookout = Arc::new(Lookout::default());
    let told = Arc::clone(&lookout);
    let runtime = Builder::new_multi_thread()
        .worker_threads(workers)
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_name_fn(move || name().to_owned())
        .on_thread_unpark(move || told.woken())
        .enable_all()
        .build()
        .context("cannot start the worker threads")?;
    await_workers(&runtime);
    lookout.start(runtime.handle()).context("cannot start the thread that watches the workers")?;
    Ok(runtime)
}

/// Returns when each worker runs.
///
/// Tokio hands the workers' work to its threads as blocking work, so a thread that is started for
/// other blocking work could take it first, and have the wrong name. A worker without a task
/// sleeps, and counts that. Nothing may block it for this: a worker that takes both tasks of two
/// workers, and blocks in the first, wakes nobody for the second.
#[allow(clippy::disallowed_methods, reason = "it takes microseconds, once; tokio tells nobody of it")]
fn await_workers(runtime: &Runtime) {
    let metrics = runtime.metrics();
    let is_running = |worker| metrics.worker_park_unpark_count(worker) > 0;
    while !(0..metrics.num_workers()).all(is_running) {
        thread::sleep(Duration::from_micros(50));
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::sync::{Barrier, Mutex, mpsc};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Longer than anything here takes.
    const DEADLINE: Duration = Duration::from_secs(60);

    /// A computation: when it has begun, and when it ends.
    struct Computation {
        begun: mpsc::Sender<()>,
        released: mpsc::Receiver<()>,
    }

    /// Each byte of a connection is answered; one of them, `c`, by a computation.
    async fn serve(listener: tokio::net::TcpListener, computation: Arc<Mutex<Computation>>) {
        while let Ok((mut socket, _)) = listener.accept().await {
            let computation = Arc::clone(&computation);
            tokio::spawn(async move {
                let mut byte = [0];
                while socket.read_exact(&mut byte).await.is_ok() {
                    if byte == *b"c" {
                        let computation = computation.lock().unwrap();
                        computation.begun.send(()).unwrap();
                        computation.released.recv_timeout(DEADLINE).unwrap();
                    }
                    socket.write_all(&byte).await.unwrap();
                }
            });
        }
    }

    #[test]
    fn sockets_are_read_while_a_worker_computes_and_another_one_is_idle() {
        if available_parallelism().map_or(1, usize::from) < 2 {
            return;
        }
        let runtime = runtime().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let ((begun, has_begun), (release, released)) = (mpsc::channel(), mpsc::channel());
        runtime.spawn(serve(listener, Arc::new(Mutex::new(Computation { begun, released }))));
        let connect = || {
            let socket = std::net::TcpStream::connect(address).unwrap();
            socket.set_read_timeout(Some(DEADLINE / 2)).unwrap();
            socket
        };
        let (mut heavy, mut light) = (connect(), connect());
        let answered = |socket: &mut std::net::TcpStream| {
            let mut byte = [0];
            socket.read_exact(&mut byte).map(|()| byte)
        };
        // Whichever worker takes it: the one that polled is found by chance in one of several rounds.
        for _ in 0..5 {
            heavy.write_all(b"c").unwrap();
            has_begun.recv_timeout(DEADLINE).unwrap();
            light.write_all(b"l").unwrap();
            let while_it_computes = answered(&mut light);
            release.send(()).unwrap();
            assert_eq!(while_it_computes.unwrap(), *b"l", "nobody reads the sockets");
            assert_eq!(answered(&mut heavy).unwrap(), *b"c");
        }
    }

    fn own_name() -> Option<String> {
        std::thread::current().name().map(str::to_owned)
    }

    #[test]
    fn workers_and_threads_that_block_are_told_apart_by_their_names() {
        let workers = available_parallelism().map_or(1, usize::from);
        let runtime = runtime().unwrap();
        // Each task holds a worker until all are held, so that each says its name once.
        let all_are_held = Arc::new(Barrier::new(workers));
        let hold = |_| {
            let all_are_held = Arc::clone(&all_are_held);
            runtime.spawn(async move {
                all_are_held.wait();
                own_name()
            })
        };
        let held: Vec<_> = (0..workers).map(hold).collect();
        let blocking: Vec<_> = (0..8).map(|_| runtime.spawn_blocking(own_name)).collect();
        for name in held {
            assert_eq!(runtime.block_on(name).unwrap().as_deref(), Some(WORKER_NAME));
        }
        for name in blocking {
            assert_eq!(runtime.block_on(name).unwrap().as_deref(), Some(BLOCKING_NAME));
        }
        assert!(BLOCKING_NAME.len() < 16, "the kernel cuts what is longer");
    }
}
