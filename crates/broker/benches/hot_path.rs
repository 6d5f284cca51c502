//! What the broker adds to a send and to a pull. Parts that other crates do are measured beside it, on the same message and in the
//! same run, so that a subtraction leaves the broker's own share.
#![allow(clippy::unwrap_used, missing_docs, reason = "a bench that cannot go on fails")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use env::TimeMs;
use net::{Arrival, Outgoing, ReplyTo};
use protocol::code::{ResponseCode, request};
use protocol::frame::{self, Serialization};
use protocol::header::{self, HeaderScratch};
use protocol::record::RecordDraft;
use protocol::request::{SendMessage, SendReply, SendReplyExtra};
use store::{AppendError, FlushMode, RecordBatch, TagsCode};
use testing::warm::{BODY, PROPERTIES, TOPIC, Warm, pull, sends, sends_of};

const BURST: usize = 64;

/// With the small body, waiting for fresh pages of the log does not drown what the broker itself does.
fn send(c: &mut Criterion) {
    send_of(c, "send 1 KB, bursts of 64", &BODY);
    send_of(c, "send 8 B, bursts of 64", &BODY[..8]);
}

fn send_of(c: &mut Criterion, name: &str, body: &[u8]) {
    let mut warm = Warm::start(FlushMode::Async);
    let burst = sends_of(BURST, 1, body);
    let mut group = c.benchmark_group(name);
    group.throughput(Throughput::Elements(BURST as u64));
    group.bench_function("whole", |b| b.iter(|| warm.serve(&burst).1.discard()));

    let mut scratch = HeaderScratch::new();
    group.bench_function("part: decode", |b| {
        b.iter(|| {
            let mut rest = &burst[..];
            while let Ok(Some(layout)) = frame::peek(rest, usize::MAX) {
                let head = header::decode(&rest[layout.header.clone()], layout.serialization, &mut scratch).unwrap();
                black_box(SendMessage::decode_v2(&head.fields).unwrap());
                rest = &rest[layout.frame_bytes..];
            }
        });
    });

    let queue = warm.store.queue(TOPIC, 2).unwrap();
    let host = ([127, 0, 0, 1], 10911).into();
    let mut batch = RecordBatch::new();
    group.bench_function("part: record and append", |b| {
        b.iter(|| {
            batch.clear();
            for _ in 0..BURST {
                batch.push(&queue, TagsCode::Code(97), |out| {
                    let draft = RecordDraft {
                        queue_id: 2,
                        born_timestamp: 1_700_000_000_000,
                        body,
                        properties: PROPERTIES.as_bytes(),
                        ..RecordDraft::plain(TOPIC, host)
                    };
                    draft.encode(out).unwrap();
                });
            }
            while let Err(error) = warm.store.append(&mut batch, TimeMs(1)) {
                let AppendError::NoRoomYet { needed } = error else { panic!("{error}") };
                assert!(warm.store.room().wait_until(needed, Instant::now() + Duration::from_secs(20)));
            }
        });
    });

    let mut out = Outgoing::new();
    let to = ReplyTo {
        code: request::SEND_MESSAGE_V2,
        opaque: 7,
        serialization: Serialization::Json,
        is_oneway: false,
        came: Arrival::at(Instant::now().into()),
        is_held: false,
    };
    group.bench_function("part: reply", |b| {
        b.iter(|| {
            for _ in 0..BURST {
                let reply = SendReply {
                    msg_id: "7F00000100002A9F0000000000123456",
                    queue_id: 1,
                    queue_offset: 123_456,
                    transaction_id: Some("7F0000010ED718B4AAC2127C41E90000"),
                    batch_uniq_id: None,
                    recall_handle: None,
                };
                let extra = SendReplyExtra { msg_region: "DefaultRegion", trace_on: Some("true") };
                out.reply(to, ResponseCode::Success, None, &(reply, extra), &[]);
            }
            out.discard();
        });
    });
    group.finish();
}

fn pulls(c: &mut Criterion) {
    let mut warm = Warm::start(FlushMode::Async);
    warm.serve(&sends(BURST, 1)).1.discard();
    let ask = pull(1, 0, 0);
    c.bench_function("pull of 32 messages that are there", |b| b.iter(|| warm.serve(&ask).1.discard()));

    // A pull waits, a message comes, the pull is woken, reads and is answered.
    let mut group = c.benchmark_group("one message");
    let one = sends(1, 2);
    let nothing = Bytes::new();
    group.bench_function("sent", |b| b.iter(|| warm.serve(&one).1.discard()));
    let queue = warm.store.queue(TOPIC, 3).unwrap();
    let one = sends(1, 3);
    group.bench_function("sent to a pull that waits", |b| {
        b.iter_custom(|rounds| {
            let mut took = Duration::ZERO;
            for _ in 0..rounds {
                let ask = pull(3, queue.max_offset() as i64, 60_000);
                warm.serve(&ask);
                let began = Instant::now();
                warm.serve(&one);
                warm.serve(&nothing).1.discard();
                took += began.elapsed();
                assert_eq!(warm.parked_pulls(), 0);
            }
            took
        });
    });
    group.finish();
}

criterion_group!(benches, send, pulls);
criterion_main!(benches);
