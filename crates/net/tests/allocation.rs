//! What a connection costs in memory: nothing a request, little at rest. Alone in its binary, since it counts every allocation.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod support;

use std::io::{Read, Write};

use net::{Burst, Connection, ListenerOptions, Outgoing, Service};
use protocol::code::ResponseCode;
use support::{request, until};
use testing::allocator::{self, Counting};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Echo;

impl Service for Echo {
    type Session = ();
    type Work = ();

    fn open(&self, _: &Connection<()>) {}

    async fn serve(&self, (): &mut (), burst: &mut Burst<'_>, out: &mut Outgoing) {
        while let Some(request) = burst.next() {
            out.reply(request.reply_to(), ResponseCode::Success, None, &[("queueId", "3")], request.body);
        }
    }

    async fn resume(&self, (): &mut (), (): (), _: &mut Outgoing) {}

    fn close(&self, (): ()) {}
}

/// Sends the frames and reads as many replies, without allocating.
fn exchange(socket: &mut std::net::TcpStream, frames: &[u8], replies: usize, space: &mut [u8]) {
    socket.write_all(frames).unwrap();
    for _ in 0..replies {
        socket.read_exact(&mut space[..4]).unwrap();
        let bytes = u32::from_be_bytes(space[..4].try_into().unwrap()) as usize;
        socket.read_exact(&mut space[..bytes]).unwrap();
    }
}

#[test]
fn a_request_allocates_nothing_and_a_connection_at_rest_holds_next_to_nothing() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let address = runtime.block_on(async {
        let at = "127.0.0.1:0".parse().unwrap();
        let listener = net::Listener::bind(at, ListenerOptions::default(), std::sync::Arc::new(Echo)).unwrap();
        let address = listener.local_addr();
        tokio::spawn(listener.run(std::future::pending()));
        address
    });
    let mut space = vec![0; 64 << 10];
    let one = request(310, 1, 0, &[("a", "group"), ("b", "topic"), ("i", "quoted \" property")], &[7; 1_000]);

    let mut socket = std::net::TcpStream::connect(address).unwrap();
    for frames in [1, 20] {
        let burst = one.repeat(frames);
        (0..200).for_each(|_| exchange(&mut socket, &burst, frames, &mut space));
        let before = allocator::by_all();
        (0..1_000).for_each(|_| exchange(&mut socket, &burst, frames, &mut space));
        let allocations = allocator::by_all() - before;
        // The runtime's timers may allocate now and then.
        assert!(allocations < 20, "{allocations} allocations in 1,000 bursts of {frames}");
    }

    let before = allocator::bytes();
    let mut sockets: Vec<_> = (0..300).map(|_| std::net::TcpStream::connect(address).unwrap()).collect();
    sockets.iter_mut().for_each(|socket| exchange(socket, &one, 1, &mut space));
    let each = || (allocator::bytes() - before) / 300;
    assert!(each() > 8 << 10, "a connection that just spoke has its buffers");
    runtime.block_on(until("connections at rest hold less than 4 KiB", || each() < 4 << 10));
}
