//! The lines of the budget (design §10) that this crate owns: decode, reply, encode.

#![allow(clippy::unwrap_used, reason = "what fails here fails the run")]

use std::hint::black_box;
use std::net::SocketAddr;

use bytes::BytesMut;
use criterion::{Criterion, criterion_group, criterion_main};
use protocol::frame::{MAX_FRAME_BYTES, Serialization, peek};
use protocol::header::{FLAG_RESPONSE, Head, HeaderScratch, decode, write_frame};
use protocol::record::{RecordDraft, scan, stamp};
use protocol::request::{PullMessage, PullReply, SendMessage, SendReply};

const PROPERTIES: &str =
    "KEYS\u{1}order-4711\u{2}UNIQ_KEY\u{1}7F0000010B2C4DC639969F7E2A350001\u{2}WAIT\u{1}true\u{2}TAGS\u{1}TagA\u{2}";

fn send() -> SendMessage<'static> {
    SendMessage {
        producer_group: "please_rename_unique_group_name",
        topic: "BenchmarkTest",
        default_topic: "TBW102",
        default_topic_queue_nums: 4,
        queue_id: 3,
        sys_flag: 0,
        born_timestamp: 1_700_000_000_000,
        flag: 0,
        properties: Some(PROPERTIES),
        reconsume_times: Some(0),
        unit_mode: Some(false),
        max_reconsume_times: None,
        batch: Some(false),
        broker_name: Some("broker-a"),
    }
}

fn pull() -> PullMessage<'static> {
    PullMessage {
        consumer_group: "please_rename_unique_group_name",
        topic: "BenchmarkTest",
        queue_id: 3,
        queue_offset: 123_456,
        max_msg_nums: 32,
        sys_flag: 3,
        commit_offset: 123_424,
        suspend_timeout_millis: 15_000,
        subscription: None,
        sub_version: 1_700_000_000_000,
        expression_type: Some("TAG"),
        max_msg_bytes: None,
        request_source: None,
        proxy_forward_client_id: None,
        lite_topic: None,
        broker_name: Some("broker-a"),
    }
}

fn decoding(c: &mut Criterion) {
    let head = Head { code: 310, flag: 0, opaque: 4711, remark: None };
    let mut scratch = HeaderScratch::new();
    for (name, serialization) in [("json", Serialization::Json), ("binary", Serialization::Binary)] {
        let mut frame = BytesMut::new();
        write_frame(&mut frame, serialization, &head, &send(), 0);
        c.bench_function(&format!("decode send v2, {name}"), |b| {
            b.iter(|| {
                let layout = peek(black_box(&frame), MAX_FRAME_BYTES).unwrap().unwrap();
                let header = decode(&frame[layout.header], layout.serialization, &mut scratch).unwrap();
                black_box(SendMessage::decode_v2(&header.fields).unwrap().queue_id)
            });
        });
        let mut frame = BytesMut::new();
        write_frame(&mut frame, serialization, &Head { code: 11, ..head }, &pull(), 0);
        c.bench_function(&format!("decode pull, {name}"), |b| {
            b.iter(|| {
                let layout = peek(black_box(&frame), MAX_FRAME_BYTES).unwrap().unwrap();
                let header = decode(&frame[layout.header], layout.serialization, &mut scratch).unwrap();
                black_box(PullMessage::decode(&header.fields).unwrap().queue_id)
            });
        });
    }
}

fn replying(c: &mut Criterion) {
    let head = Head { code: 0, flag: FLAG_RESPONSE, opaque: 4711, remark: None };
    let mut out = BytesMut::with_capacity(64 << 10);
    for (name, serialization) in [("json", Serialization::Json), ("binary", Serialization::Binary)] {
        c.bench_function(&format!("encode send reply, {name}"), |b| {
            b.iter(|| {
                out.clear();
                let reply = SendReply {
                    msg_id: "7F00000100002A9F0000000000000064",
                    queue_id: 3,
                    queue_offset: 123_456,
                    transaction_id: Some("7F0000010B2C4DC639969F7E2A350001"),
                    batch_uniq_id: None,
                    recall_handle: None,
                };
                write_frame(&mut out, serialization, black_box(&head), &reply, 0);
                black_box(out.len())
            });
        });
        c.bench_function(&format!("encode pull reply, {name}"), |b| {
            b.iter(|| {
                out.clear();
                let reply = PullReply {
                    suggest_which_broker_id: 0,
                    next_begin_offset: 123_488,
                    min_offset: 0,
                    max_offset: 200_000,
                    offset_delta: None,
                    topic_sys_flag: Some(0),
                    group_sys_flag: Some(0),
                    forbidden_type: None,
                };
                write_frame(&mut out, serialization, black_box(&head), &reply, 32 << 10);
                black_box(out.len())
            });
        });
    }
}

fn records(c: &mut Criterion) {
    let host: SocketAddr = ([127, 0, 0, 1], 10911).into();
    let body = vec![b'x'; 1024];
    let mut out = Vec::with_capacity(4096);
    let draft = RecordDraft {
        queue_id: 3,
        born_timestamp: 1_700_000_000_000,
        body: &body,
        properties: PROPERTIES.as_bytes(),
        ..RecordDraft::plain("BenchmarkTest", host)
    };
    c.bench_function("encode record, 1 KB", |b| {
        b.iter(|| {
            out.clear();
            let bytes = black_box(&draft).encode(&mut out).unwrap();
            stamp(&mut out, 1, 2, 3);
            black_box(bytes)
        });
    });
    let record = out.clone();
    c.bench_function("scan record, 1 KB, CRC checked", |b| {
        b.iter(|| black_box(scan(black_box(&record), true).is_ok()))
    });
    c.bench_function("scan record, 1 KB", |b| b.iter(|| black_box(scan(black_box(&record), false).is_ok())));
}

criterion_group!(benches, decoding, replying, records);
criterion_main!(benches);
