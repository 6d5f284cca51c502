//! The side that answers, in a process of its own.

use std::io::{Read, Write, stdin, stdout};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use super::{EVENTS, READ_BYTES, failed, look, watch};
use crate::error::BenchError;

/// Listens on a free port of this machine, says on standard output which, and answers each `request` bytes with `reply` bytes until all
/// connections are closed, or standard input is.
pub fn serve(request: usize, reply: usize, connections: usize, threads: usize) -> Result<(), BenchError> {
    std::thread::spawn(|| {
        // Whoever started us has ended, also where he never connected.
        let _ = std::io::copy(&mut stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed("no port can be opened"))?;
    let port = listener.local_addr().map_err(failed("the port is unknown"))?.port();
    writeln!(stdout(), "{port}").map_err(failed("nobody hears which port"))?;
    let accept = |_| {
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        Ok(stream)
    };
    let accepted: std::io::Result<Vec<TcpStream>> = (0..connections).map(accept).collect();
    let mut streams = accepted.map_err(failed("a connection cannot be accepted"))?;
    let mut answering = Vec::new();
    for thread in (0..threads).rev() {
        let share = streams.split_off(streams.len() * thread / (thread + 1));
        answering.push(std::thread::spawn(move || answer(share, request, reply)));
    }
    for thread in answering {
        // What ends a connection is told by the side that asks; a panic has told itself.
        let _ = thread.join();
    }
    Ok(())
}

fn answer(mut streams: Vec<TcpStream>, request: usize, reply: usize) -> std::io::Result<()> {
    let reply = vec![b'y'; reply];
    let mut buffer = vec![0; READ_BYTES];
    let poll = watch(&streams)?;
    let mut here = vec![0; streams.len()];
    let mut events = Vec::with_capacity(EVENTS);
    loop {
        look(&poll, &mut events)?;
        for event in events.drain(..) {
            let which = event.data.u64() as usize;
            match streams[which].read(&mut buffer)? {
                // The side that asks closes all of them together.
                0 => return Ok(()),
                bytes => here[which] += bytes,
            }
            if here[which] >= request {
                here[which] -= request;
                streams[which].write_all(&reply)?;
            }
        }
    }
}
