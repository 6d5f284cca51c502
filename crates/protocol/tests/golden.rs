//! Compares with bytes that the published Java classes wrote (`tests/recorder` at the root writes them).
//!
//! Records, batches, ids and bodies are byte-equal. Binary headers are byte-equal but for the order of their fields, which in
//! Java is that of a hash map; JSON headers are equal member by member.

#![allow(clippy::unwrap_used, reason = "what fails here fails the run")]

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use bytes::BytesMut;
use protocol::body::*;
use protocol::compression::{Compression, decompress};
use protocol::fastjson::{self, Dialect};
use protocol::frame::{MAX_FRAME_BYTES, Serialization, peek};
use protocol::header::{EncodeFields, FLAG_RESPONSE, Fields, Head, HeaderScratch, Language, decode, write_frame};
use protocol::record::{RecordDraft, Scanned, scan};
use protocol::request::*;
use protocol::{batch, message_id, tags};

fn golden(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Reads Java's frame, lets `again` write its fields anew, and compares the two frames.
fn assert_same_frame(name: &str, body: &[u8], again: impl Fn(&Fields<'_>, &dyn Fn(&dyn EncodeFields))) {
    for (suffix, serialization) in [("json", Serialization::Json), ("binary", Serialization::Binary)] {
        let java = golden(&format!("frame-{name}-{suffix}.bin"));
        let layout = peek(&java, MAX_FRAME_BYTES).unwrap().unwrap();
        assert_eq!((layout.frame_bytes, layout.serialization), (java.len(), serialization), "{name}");
        assert_eq!(&java[layout.body.clone()], body, "{name}");
        let mut scratch = HeaderScratch::new();
        let header = decode(&java[layout.header.clone()], serialization, &mut scratch).unwrap();
        assert_eq!((header.opaque, header.version, header.language), (7, protocol::VERSION, Language::Java), "{name}");

        let head = Head { code: header.code, flag: header.flag, opaque: 7, remark: header.remark };
        again(&header.fields, &|fields| {
            let mut ours = BytesMut::new();
            write_frame(&mut ours, serialization, &head, fields, body.len());
            ours.extend_from_slice(body);
            match serialization {
                Serialization::Json => {
                    let value = |frame: &[u8]| -> serde_json::Value {
                        let layout = peek(frame, MAX_FRAME_BYTES).unwrap().unwrap();
                        serde_json::from_slice(&frame[layout.header]).unwrap()
                    };
                    assert_eq!(value(&ours), value(&java), "{name}");
                }
                Serialization::Binary => assert_same_but_for_order(name, &ours, &java),
            }
        });
    }
}

fn assert_same_but_for_order(name: &str, ours: &[u8], java: &[u8]) {
    assert_eq!(ours.len(), java.len(), "{name}");
    // Up to the length of the fields, the frames are equal byte for byte.
    let remark_bytes = u32::from_be_bytes(java[21..25].try_into().unwrap()) as usize;
    let fields_at = 8 + 17 + remark_bytes + 4;
    assert_eq!(ours[..fields_at], java[..fields_at], "{name}");
    let sorted = |frame: &[u8]| {
        let layout = peek(frame, MAX_FRAME_BYTES).unwrap().unwrap();
        let mut scratch = HeaderScratch::new();
        let header = decode(&frame[layout.header], layout.serialization, &mut scratch).unwrap();
        let mut fields: Vec<_> = header.fields.iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        fields.sort();
        fields
    };
    assert_eq!(sorted(ours), sorted(java), "{name}");
}

macro_rules! same_frame {
    ($name:literal, $body:expr, $header:ident) => {
        assert_same_frame($name, $body, |fields, write| write(&$header::decode(fields).unwrap()))
    };
}

#[test]
fn requests_are_javas() {
    struct V1<'a>(SendMessage<'a>);
    impl EncodeFields for V1<'_> {
        fn encode(&self, sink: &mut protocol::header::FieldSink<'_>) {
            self.0.encode_v1(sink);
        }
    }
    assert_same_frame("send-v1", b"hello", |fields, write| write(&V1(SendMessage::decode_v1(fields).unwrap())));
    assert_same_frame("send-v2", b"hello", |fields, write| write(&SendMessage::decode_v2(fields).unwrap()));
    same_frame!("pull", b"", PullMessage);
    same_frame!("query-offset", b"", QueryConsumerOffset);
    same_frame!("update-offset", b"", UpdateConsumerOffset);
    same_frame!("create-topic", b"", CreateTopic);
    same_frame!("search-offset", b"", SearchOffset);
    same_frame!("max-offset", b"", GetMaxOffset);
    same_frame!("unregister-client", b"", UnregisterClient);
    same_frame!("send-back", b"", SendBack);
    same_frame!("route", b"", GetRouteInfo);
    same_frame!("register-broker", b"", RegisterBroker);
    assert_same_frame("heartbeat", &golden("body-heartbeat.json"), |_, write| write(&()));
}

#[test]
fn a_binary_send_v2_is_javas_to_the_byte() {
    let java = golden("frame-send-v2-binary.bin");
    let layout = peek(&java, MAX_FRAME_BYTES).unwrap().unwrap();
    let mut scratch = HeaderScratch::new();
    let header = decode(&java[layout.header.clone()], layout.serialization, &mut scratch).unwrap();
    let send = SendMessage::decode_v2(&header.fields).unwrap();
    assert_eq!(send.properties, Some("KEYS\u{1}k 1\u{2}TAGS\u{1}ü\"\\😀\u{2}"));
    let mut ours = BytesMut::new();
    let head = Head { code: 310, flag: 0, opaque: 7, remark: None };
    write_frame(&mut ours, Serialization::Binary, &head, &send, 5);
    ours.extend_from_slice(b"hello");
    assert_eq!(ours, java);
}

#[test]
fn responses_are_javas() {
    same_frame!("send-reply", b"", SendReply);
    same_frame!("pull-reply", b"", PullReply);
    assert_same_frame("refusal", b"", |_, write| write(&()));
    let java = golden("frame-refusal-json.bin");
    let layout = peek(&java, MAX_FRAME_BYTES).unwrap().unwrap();
    let mut scratch = HeaderScratch::new();
    let header = decode(&java[layout.header], Serialization::Json, &mut scratch).unwrap();
    assert_eq!((header.code, header.flag, header.remark), (17, FLAG_RESPONSE, Some("topic[ü] not exist")));
}

#[test]
fn records_are_javas_to_the_byte() {
    let retry_topic = format!("%RETRY%{}", "g".repeat(130));
    let (v4, v6): (SocketAddr, SocketAddr) = ("10.0.0.9:5555".parse().unwrap(), "[2001:db8::1]:5555".parse().unwrap());
    let (store_v4, store_v6): (SocketAddr, SocketAddr) =
        ("127.0.0.1:10911".parse().unwrap(), "[2001:db8::2]:10911".parse().unwrap());
    let cases = [
        ("v1", "TopicTest", v4, store_v4),
        ("v2", retry_topic.as_str(), v4, store_v4),
        ("born-v6", "TopicTest", v6, store_v4),
        ("both-v6", "TopicTest", v6, store_v6),
    ];
    for (name, topic, born_host, store_host) in cases {
        let draft = RecordDraft {
            topic,
            queue_id: 3,
            flag: 42,
            sys_flag: protocol::sys_flag::COMPRESSED,
            born_timestamp: 1_700_000_000_000,
            born_host,
            store_host,
            reconsume_times: 2,
            prepared_offset: 77,
            body: "hello ü".as_bytes(),
            properties: b"KEYS\x01k\x02TAGS\x01TagA\x02",
        };
        let mut ours = Vec::new();
        let bytes = draft.encode(&mut ours).unwrap();
        let java = golden(&format!("record-{name}.bin"));
        assert_eq!(ours, java, "{name}");
        let Scanned::Record(view) = scan(&java, true).unwrap() else { panic!("{name} is no record") };
        assert_eq!((view.total_size(), view.topic(), view.is_v2()), (bytes, topic, name == "v2"), "{name}");
        assert_eq!((view.born_host(), view.store_host()), (born_host, store_host), "{name}");
        assert_eq!((view.reconsume_times(), view.prepared_offset()), (2, 77), "{name}");
        assert_eq!(view.tags_code(), 2_598_919, "{name}");
    }
}

#[test]
fn a_batch_is_javas_to_the_byte() {
    let java = golden("batch.bin");
    let messages: Vec<_> = batch::iter(&java).map(Result::unwrap).collect();
    assert_eq!(messages.len(), 3);
    let mut ours = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        assert_eq!((message.flag, message.body), (index as i32, format!("body {index}").as_bytes()));
        assert_eq!(protocol::properties::get(message.properties, "TAGS"), Some(format!("Tag{index}").as_str()));
        batch::encode(&mut ours, message).unwrap();
    }
    assert_eq!(ours, java);
}

fn assert_same_body<T: serde::Serialize + serde::de::DeserializeOwned>(name: &str, dialect: Dialect) {
    let java = golden(name);
    let body: T = fastjson::from_slice(&java).unwrap_or_else(|error| panic!("{name}: {error}"));
    let ours = fastjson::to_vec(&body, dialect);
    assert_eq!(String::from_utf8(ours).unwrap(), String::from_utf8(java).unwrap(), "{name}");
}

#[test]
fn bodies_are_javas_to_the_byte() {
    assert_same_body::<Heartbeat>("body-heartbeat.json", Dialect::FastJson);
    assert_same_body::<TopicRoute>("body-route.json", Dialect::FastJson);
    assert_same_body::<TopicRoute>("body-route-standard.json", Dialect::Standard);
    assert_same_body::<ClusterInfo>("body-cluster.json", Dialect::FastJson);
    assert_same_body::<LockBatch>("body-lock.json", Dialect::FastJson);
    assert_same_body::<ResetOffsetBody>("body-reset.json", Dialect::FastJson);
    assert_same_body::<TopicStatsTable>("body-topic-stats.json", Dialect::FastJson);
    assert_same_body::<ConsumeStats>("body-consume-stats.json", Dialect::FastJson);
    assert_same_body::<SubscriptionGroupConfig>("body-group.json", Dialect::FastJson);
    assert_same_body::<TopicConfig>("body-topic.json", Dialect::FastJson);
    assert_same_body::<RegisterBrokerBody>("body-register.json", Dialect::FastJson);
}

#[test]
fn a_compressed_registration_says_what_the_plain_one_says() {
    let plain = RegisterBrokerBody::decode(&golden("body-register.json"), false, 513).unwrap();
    let compressed = RegisterBrokerBody::decode(&golden("body-register-compressed.bin"), true, 513).unwrap();
    assert_eq!(compressed.topics.data_version, plain.topics.data_version);
    assert_eq!(compressed.topics.topic_config_table, plain.topics.topic_config_table);
    assert_eq!(compressed.filter_server_list, plain.filter_server_list);
    let again = RegisterBrokerBody::decode(&compressed.to_compressed().unwrap(), true, 513).unwrap();
    assert_eq!(again, compressed);
}

#[test]
fn tag_codes_are_javas() {
    for line in String::from_utf8(golden("tag-hashes.txt")).unwrap().lines() {
        let (tag, hash) = line.rsplit_once('\t').unwrap();
        assert_eq!(tags::code(tag), hash.parse::<i64>().unwrap(), "{tag}");
    }
}

#[test]
fn message_ids_are_javas() {
    for line in String::from_utf8(golden("message-ids.txt")).unwrap().lines() {
        let (host, id) = line.split_once('\t').unwrap();
        let host = SocketAddr::new(host.parse().unwrap(), 10911);
        let mut ours = String::new();
        message_id::offset_message_id(&mut ours, host, 123_456_789_012);
        assert_eq!(ours, id);
        assert_eq!(message_id::parse_offset_message_id(id), Ok((host, 123_456_789_012)));
    }
}

#[test]
fn what_java_compressed_unfolds() {
    let plain = golden("compressed-plain.txt");
    for (name, kind) in [("lz4", Compression::Lz4), ("zstd", Compression::Zstd), ("zlib", Compression::Zlib)] {
        let packed = golden(&format!("compressed-{name}.bin"));
        assert_eq!(decompress(kind, &packed, 1 << 20).unwrap(), plain, "{name}");
    }
}
