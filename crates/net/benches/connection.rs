//! What a request costs between the socket and the service, and what a reply costs to encode.
#![allow(clippy::expect_used, missing_docs, reason = "a bench that cannot go on fails")]

use std::hint::black_box;
use std::io::{Read, Write};
use std::sync::Arc;

use bytes::BytesMut;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use net::{Arrival, Burst, Connection, Listener, ListenerOptions, Outgoing, ReplyTo, Service, SharedSlice};
use protocol::code::ResponseCode;
use protocol::frame::Serialization;
use protocol::header::{Head, write_frame};
use tokio::time::Instant;

struct Echo;

impl Service for Echo {
    type Session = ();
    type Work = ();

    fn open(&self, _: &Connection<()>) {}

    async fn serve(&self, (): &mut (), burst: &mut Burst<'_>, out: &mut Outgoing) {
        while let Some(request) = burst.next() {
            out.reply(request.reply_to(), ResponseCode::Success, None, &(), &[]);
        }
    }

    async fn resume(&self, (): &mut (), (): (), _: &mut Outgoing) {}

    fn close(&self, (): ()) {}
}

/// Bursts of 64 requests with 1 KiB bodies over loopback, each burst answered before the next.
fn echo(c: &mut Criterion) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let address = runtime.block_on(async {
        let listener =
            Listener::bind(([127, 0, 0, 1], 0).into(), ListenerOptions::default(), Arc::new(Echo)).expect("a port");
        let address = listener.local_addr();
        tokio::spawn(listener.run(std::future::pending()));
        address
    });
    let mut group = c.benchmark_group("echo over loopback");
    for (name, burst) in [("one at a time", 1), ("bursts of 64", 64)] {
        let mut frame = BytesMut::new();
        let fields =
            [("a", "group"), ("b", "topic"), ("e", "3"), ("g", "1700000000000"), ("i", "UNIQ_KEY\u{1}0A0B\u{2}")];
        write_frame(&mut frame, Serialization::Json, &Head { code: 310, ..Head::default() }, &fields, 1024);
        frame.resize(frame.len() + 1024, 7);
        let requests = frame.repeat(burst);
        let mut socket = std::net::TcpStream::connect(address).expect("a connection");
        socket.set_nodelay(true).expect("no delay");
        // All replies are alike: measure one.
        socket.write_all(&frame).expect("written");
        let mut length = [0; 4];
        socket.read_exact(&mut length).expect("read");
        let reply_bytes = u32::from_be_bytes(length) as usize + 4;
        let mut replies = vec![0; reply_bytes * burst];
        socket.read_exact(&mut replies[4..reply_bytes]).expect("read");
        group.throughput(Throughput::Elements(burst as u64));
        group.bench_function(name, |b| {
            b.iter(|| {
                socket.write_all(&requests).expect("written");
                socket.read_exact(&mut replies).expect("read");
            });
        });
    }
    group.finish();
}

fn outgoing(c: &mut Criterion) {
    let to = ReplyTo {
        code: 310,
        opaque: 77,
        serialization: Serialization::Json,
        is_oneway: false,
        came: Arrival::at(Instant::now()),
        is_held: false,
    };
    let fields = [("queueId", "3"), ("msgId", "0A0B0C0D00002A9F0000000000000000"), ("queueOffset", "123456")];
    let mut out = Outgoing::new();
    c.bench_function("encode a reply", |b| {
        b.iter(|| {
            out.reply(black_box(to), ResponseCode::Success, None, &fields, &[]);
            if out.bytes() > 32 << 10 {
                out.discard();
            }
        });
    });
    let log: Arc<Vec<u8>> = Arc::new(vec![1; 1 << 20]);
    let mut group = c.benchmark_group("a body of 32 slices");
    for bytes in [512, 2 << 10, 4 << 10, 16 << 10] {
        group.bench_function(format!("{bytes} bytes each"), |b| {
            b.iter(|| {
                let slice = |n: usize| SharedSlice { owner: log.clone(), range: n * 20_000..n * 20_000 + bytes };
                out.reply_shared(to, ResponseCode::Success, None, &fields, 32 * bytes, (0..32).map(slice));
                out.discard();
            });
        });
    }
    group.finish();
}

criterion_group!(benches, echo, outgoing);
criterion_main!(benches);
