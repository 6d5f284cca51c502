//! Whatever comes, nothing panics, and what we write we read again.

#![allow(clippy::unwrap_used, reason = "what fails here fails the run")]

use std::net::{IpAddr, SocketAddr};

use bytes::BytesMut;
use proptest::collection::vec;
use proptest::prelude::*;
use protocol::body::{Heartbeat, MessageQueue, QueueMap, RegisterBrokerBody, TopicRoute};
use protocol::compression::{Compression, decompress};
use protocol::fastjson::{self, Dialect};
use protocol::frame::{MAX_FRAME_BYTES, Serialization, peek};
use protocol::header::{Head, HeaderScratch, decode, write_frame};
use protocol::properties::{self, PropertiesWriter};
use protocol::record::{RecordDraft, Scanned, scan, stamp};
use protocol::request::{PullMessage, SendMessage};
use protocol::{batch, message_id, together};

fn serializations() -> impl Strategy<Value = Serialization> {
    prop_oneof![Just(Serialization::Json), Just(Serialization::Binary)]
}

fn hosts() -> impl Strategy<Value = SocketAddr> {
    prop_oneof![
        (any::<[u8; 4]>(), any::<u16>()).prop_map(|(ip, port)| SocketAddr::new(ip.into(), port)),
        (any::<[u8; 16]>(), any::<u16>()).prop_map(|(ip, port)| SocketAddr::new(IpAddr::from(ip).to_canonical(), port)),
    ]
}

/// JSON that is nearly a header: valid pieces in any order, cut anywhere.
fn nearly_json() -> impl Strategy<Value = Vec<u8>> {
    let pieces = prop_oneof![
        Just("{"),
        Just("}"),
        Just("["),
        Just("]"),
        Just(":"),
        Just(","),
        Just("\""),
        Just("\\"),
        Just("\\u"),
        Just("d83d"),
        Just("\"code\""),
        Just("\"extFields\""),
        Just("\"remark\""),
        Just("null"),
        Just("-1"),
        Just("99999999999"),
        Just(" "),
        Just("ü"),
        Just("{{"),
        Just("{{{{{{{{"),
        Just("a:1}:1}:1}:1}:1}:1}:1}:1}"),
        Just("0:"),
    ];
    vec(pieces, 0..40).prop_map(|pieces| pieces.concat().into_bytes())
}

/// What stands where JSON allows whitespace; mostly nothing, as nearly all clients write it.
fn space() -> impl Strategy<Value = &'static str> {
    prop_oneof![8 => Just(""), 1 => Just(" "), 1 => Just("\r\n\t ")]
}

/// A JSON string and its content: each character as itself, as a short escape or as `\u` escapes.
fn json_string(content: &'static str) -> impl Strategy<Value = (String, String)> {
    (content, vec(0..3u8, 0..24)).prop_map(|(content, ways)| {
        let mut json = String::from('"');
        for (index, character) in content.chars().enumerate() {
            let way = ways.get(index).copied().unwrap_or(0);
            let short =
                ['"', '\\', '/', '\u{8}', '\u{c}', '\n', '\r', '\t'].iter().position(|known| *known == character);
            match (way, short) {
                (0, None) if character >= ' ' => json.push(character),
                (0 | 1, Some(at)) => json.extend(['\\', char::from(b"\"\\/bfnrt"[at])]),
                _ => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        json.push_str(&if way == 1 { format!("\\u{unit:04X}") } else { format!("\\u{unit:04x}") });
                    }
                }
            }
        }
        json.push('"');
        (json, content)
    })
}

/// A value as JSON, and the text that we read it as.
fn json_value() -> impl Strategy<Value = (String, Option<String>)> {
    prop_oneof![
        6 => json_string("(\\PC|[\"\\\\/\u{0}-\u{1f}]){0,24}").prop_map(|(json, content)| (json, Some(content))),
        1 => "[a-zA-Z0-9%_.-]{0,150}".prop_map(|text| (format!("\"{text}\""), Some(text))),
        1 => Just((String::from("null"), None)),
        1 => any::<i64>().prop_map(|number| (number.to_string(), Some(number.to_string()))),
        1 => any::<bool>().prop_map(|truth| (truth.to_string(), Some(truth.to_string()))),
    ]
}

proptest! {
    /// A map filled in the order of the wire is the judge, whatever the spelling: that is what Java builds.
    #[test]
    fn fields_are_read_as_a_map_would_hold_them_however_they_are_spelled(
        members in vec((json_string("[a-n]|topic|queue(Id|Offset)|maxMsg(Nums|Bytes)|\\PC{0,12}"), json_value()), 0..24),
        spaces in vec(space(), 12),
        unknown in prop_oneof![Just(""), Just(r#""x":{"a":["}\"]",{}],"extFields":{"a":"b"}},"#)],
        are_fields_first in any::<bool>(),
    ) {
        let mut at = 0;
        let mut space = || {
            at += 1;
            spaces[at % spaces.len()]
        };
        let mut expected: Vec<(String, String)> = Vec::new();
        let mut fields = Vec::new();
        for ((key_json, key), (value_json, value)) in &members {
            fields.push(format!("{}{key_json}{}:{}{value_json}{}", space(), space(), space(), space()));
            let known = expected.iter().position(|(name, _)| name == key);
            match (known, value) {
                (Some(index), Some(value)) => expected[index].1.clone_from(value),
                (Some(index), None) => drop(expected.remove(index)),
                (None, Some(value)) => expected.push((key.clone(), value.clone())),
                (None, None) => {}
            }
        }
        let fields = format!(r#""extFields"{}:{}{{{}{}}}"#, space(), space(), fields.join(","), space());
        let rest = format!(r#"{}"code":310,"language":"CPP",{unknown}"opaque":"-7"{}"#, space(), space());
        let (first, second) = if are_fields_first { (&fields, &rest) } else { (&rest, &fields) };
        let json = format!("{}{{{first},{second}}}{}", space(), space());

        let mut scratch = HeaderScratch::new();
        let header = decode(json.as_bytes(), Serialization::Json, &mut scratch).unwrap();
        prop_assert_eq!((header.code, header.opaque, header.language), (310, -7, protocol::header::Language::Cpp));
        let read: Vec<(String, String)> = header.fields.iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        prop_assert_eq!(&read, &expected);
        for (name, value) in &expected {
            prop_assert_eq!(header.fields.get(name), Some(value.as_str()));
        }
        let number = |name| expected.iter().find(|(known, _)| known == name).and_then(|(_, value)| value.parse().ok());
        if let Ok(send) = SendMessage::decode_v2(&header.fields) {
            prop_assert_eq!((Some(send.queue_id), Some(send.sys_flag)), (number("e"), number("f")));
        }
        // Cut anywhere, it is refused and nothing panics.
        for end in (0..json.trim_end().len()).filter(|end| json.is_char_boundary(*end)) {
            prop_assert!(decode(&json.as_bytes()[..end], Serialization::Json, &mut scratch).is_err());
        }
    }

    #[test]
    fn any_header_comes_back_as_it_was_written(
        serialization in serializations(),
        code in -32768..32768i32,
        flag in any::<i32>(),
        opaque in any::<i32>(),
        remark in proptest::option::of(".{1,40}"),
        fields in proptest::collection::btree_map(".{1,12}", "([a-z]{0,50}[\"\\\\\u{0}-\u{1f}]|(?s:.)){1,9}", 0..30),
    ) {
        let pairs: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let head = Head { code, flag, opaque, remark: remark.as_deref() };
        let mut frame = BytesMut::new();
        struct All<'a>(&'a [(&'a str, &'a str)]);
        impl protocol::header::EncodeFields for All<'_> {
            fn encode(&self, sink: &mut protocol::header::FieldSink<'_>) {
                for (name, value) in self.0 {
                    sink.str(name, value);
                }
            }
        }
        write_frame(&mut frame, serialization, &head, &All(&pairs), 0);
        let layout = peek(&frame, MAX_FRAME_BYTES).unwrap().unwrap();
        prop_assert_eq!(layout.frame_bytes, frame.len());
        let mut scratch = HeaderScratch::new();
        let header = decode(&frame[layout.header], layout.serialization, &mut scratch).unwrap();
        prop_assert_eq!((header.code, header.flag, header.opaque, header.remark), (code, flag, opaque, head.remark));
        prop_assert_eq!(header.fields.iter().collect::<Vec<_>>(), pairs.clone());
        for (name, value) in pairs {
            prop_assert_eq!(header.fields.get(name), Some(value));
        }
    }

    #[test]
    fn any_bytes_are_a_header_or_an_error(
        serialization in serializations(),
        bytes in prop_oneof![vec(any::<u8>(), 0..300), nearly_json()],
    ) {
        let mut scratch = HeaderScratch::new();
        if let Ok(header) = decode(&bytes, serialization, &mut scratch) {
            let _ = header.fields.iter().count();
            let _ = SendMessage::decode_v2(&header.fields);
            let _ = PullMessage::decode(&header.fields);
        }
    }

    /// serde_json is the judge: a header that it accepts, we read with the same members.
    #[test]
    fn json_strings_are_read_as_serde_json_reads_them(text in "\\PC{0,30}", key in "[a-zA-Z]{1,8}") {
        let json = serde_json::json!({ "code": 5, "extFields": { (key.clone()): text }, "remark": text }).to_string();
        let mut scratch = HeaderScratch::new();
        let header = decode(json.as_bytes(), Serialization::Json, &mut scratch).unwrap();
        prop_assert_eq!(header.remark, Some(text.as_str()));
        prop_assert_eq!(header.fields.get(&key), Some(text.as_str()));
    }

    #[test]
    fn any_bytes_are_a_frame_or_not(bytes in vec(any::<u8>(), 0..64), max in 0..100usize) {
        if let Ok(Some(layout)) = peek(&bytes, max) {
            prop_assert!(layout.frame_bytes <= bytes.len() && layout.frame_bytes <= max);
            prop_assert!(layout.header.end == layout.body.start && layout.body.end == layout.frame_bytes);
        }
    }

    #[test]
    fn any_record_comes_back_as_it_was_written(
        topic in "[%a-zA-Z0-9_-]{1,255}",
        body in vec(any::<u8>(), 0..500),
        properties in ".{0,200}",
        numbers in any::<(i32, i32, i32, i64, i32, i64)>(),
        (born_host, store_host) in (hosts(), hosts()),
        stamps in any::<(u64, u64, i64)>(),
        rest in vec(any::<u8>(), 0..20),
    ) {
        let (queue_id, flag, sys_flag, born_timestamp, reconsume_times, prepared_offset) = numbers;
        let draft = RecordDraft {
            topic: &topic, queue_id, flag, sys_flag, born_timestamp, born_host, store_host, reconsume_times, prepared_offset,
            body: &body, properties: properties.as_bytes(),
        };
        let mut record = Vec::new();
        let bytes = draft.encode(&mut record).unwrap();
        prop_assert_eq!((bytes, bytes), (record.len(), draft.encoded_bytes()));
        stamp(&mut record, stamps.0, stamps.1, stamps.2);
        record.extend_from_slice(&rest);
        let Scanned::Record(view) = scan(&record, true).unwrap() else { panic!("no record") };
        prop_assert_eq!(view.total_size(), bytes);
        prop_assert_eq!((view.topic(), view.body(), &*view.properties()), (topic.as_str(), &body[..], properties.as_str()));
        prop_assert_eq!((view.queue_offset(), view.log_offset(), view.store_timestamp()), stamps);
        prop_assert_eq!((view.queue_id(), view.flag(), view.born_timestamp()), (queue_id, flag, born_timestamp));
        prop_assert_eq!((view.reconsume_times(), view.prepared_offset()), (reconsume_times, prepared_offset));
        prop_assert_eq!((view.born_host(), view.store_host()), (born_host, store_host));
        let mut again = Vec::new();
        view.to_draft().encode(&mut again).unwrap();
        stamp(&mut again, stamps.0, stamps.1, stamps.2);
        prop_assert_eq!(&again[..], &record[..bytes]);
    }

    /// Apache copies the properties inside a batch as they come, so its logs may hold any bytes there.
    #[test]
    fn properties_that_are_no_text_are_still_a_record(noise in vec(any::<u8>(), 0..100)) {
        let properties = [b"TAGS\x01A\x02k\x01\xff\x02", &noise[..], b"\x02KEYS\x01b\x02"].concat();
        let host: SocketAddr = ([10, 0, 0, 1], 1).into();
        let draft = RecordDraft {
            topic: "T", queue_id: 0, flag: 0, sys_flag: 0, born_timestamp: 0, born_host: host, store_host: host,
            reconsume_times: 0, prepared_offset: 0, body: &[7; 10], properties: &properties,
        };
        let mut record = Vec::new();
        draft.encode(&mut record).unwrap();
        let Ok(Scanned::Record(view)) = scan(&record, true) else { panic!("no record") };
        prop_assert_eq!(view.to_draft().properties, &properties[..]);
        prop_assert_eq!((view.property("KEYS"), view.property("k")), (Some("b"), None));
    }

    #[test]
    fn a_damaged_record_is_never_a_panic(at in 0..200usize, value in any::<u8>(), cut in 0..300usize) {
        let host: SocketAddr = ([10, 0, 0, 1], 1).into();
        let draft = RecordDraft {
            topic: "T", queue_id: 0, flag: 0, sys_flag: 0, born_timestamp: 0, born_host: host, store_host: host,
            reconsume_times: 0, prepared_offset: 0, body: &[7; 100], properties: b"A\x01b\x02",
        };
        let mut record = Vec::new();
        draft.encode(&mut record).unwrap();
        if let Some(byte) = record.get_mut(at) {
            *byte = value;
        }
        record.truncate(cut);
        let _ = scan(&record, true);
    }

    #[test]
    fn any_bytes_are_a_record_or_not(bytes in vec(any::<u8>(), 0..200), is_v2 in any::<bool>(), total in 0..220u32) {
        let mut bytes = bytes;
        if bytes.len() >= 8 {
            bytes[..4].copy_from_slice(&total.to_be_bytes());
            let magic = if is_v2 { protocol::record::MAGIC_V2 } else { protocol::record::MAGIC_V1 };
            bytes[4..8].copy_from_slice(&magic.to_be_bytes());
        }
        if let Ok(Scanned::Record(view)) = scan(&bytes, false) {
            let _ = (view.tags_code(), view.born_host(), view.store_host(), view.prepared_offset());
        }
    }

    #[test]
    fn any_bytes_are_a_batch_or_an_error(bytes in vec(any::<u8>(), 0..200)) {
        let _ = batch::iter(&bytes).count();
    }

    #[test]
    fn a_property_is_found_as_a_map_would_find_it(
        pairs in vec(("[aA-C]{1,3}", "[a-c]{0,3}"), 0..12),
        raw in "[ab\u{1}\u{2}]{0,30}",
        name in "[aA-C]{1,3}",
    ) {
        let mut writer = PropertiesWriter::new();
        for (name, value) in &pairs {
            writer.put(name, value);
        }
        for text in [writer.as_str(), raw.as_str()] {
            let last = properties::iter(text).filter(|(key, _)| *key == name).last().map(|(_, value)| value);
            prop_assert_eq!(properties::get(text, &name), last);
            let names = [name.as_str(), "a", "B"];
            let each = names.map(|name| properties::get(text, name).map(str::as_bytes));
            prop_assert_eq!(properties::select(text.as_bytes(), names), each);
        }
        let kept: Vec<_> = pairs.iter().filter(|(_, value)| !value.is_empty()).map(|(k, v)| (k.as_str(), v.as_str())).collect();
        prop_assert_eq!(properties::iter(writer.as_str()).collect::<Vec<_>>(), kept);
    }

    #[test]
    fn any_text_is_a_body_or_an_error(bytes in prop_oneof![vec(any::<u8>(), 0..200), nearly_json()]) {
        let _ = fastjson::from_slice::<Heartbeat>(&bytes);
        let _ = fastjson::from_slice::<TopicRoute>(&bytes);
        let _ = fastjson::from_slice::<QueueMap<i64>>(&bytes);
        let _ = RegisterBrokerBody::decode(&bytes, true, 513);
    }

    /// Each level would double what the levels inside it take.
    #[test]
    fn a_key_within_a_key_is_refused_however_deep(depth in 3..60usize) {
        let body = format!("{}a:1{}", "{".repeat(depth), "}:1".repeat(depth - 1) + "}");
        prop_assert!(fastjson::from_slice::<serde_json::Value>(body.as_bytes()).is_err());
    }

    #[test]
    fn a_map_by_queue_survives_both_dialects(entries in vec((".{0,8}", any::<i32>(), ".{0,8}", any::<i64>()), 0..8)) {
        let map: QueueMap<i64> = entries
            .into_iter()
            .map(|(topic, queue_id, broker_name, offset)| (MessageQueue { broker_name, queue_id, topic }, offset))
            .collect();
        for dialect in [Dialect::FastJson, Dialect::Standard] {
            let json = fastjson::to_vec(&map, dialect);
            prop_assert_eq!(fastjson::from_slice::<QueueMap<i64>>(&json).unwrap(), map.clone());
        }
    }

    #[test]
    fn ids_of_several_records_are_those_of_each_with_commas_between(host in hosts(), places in vec(any::<u64>(), 0..5)) {
        let mut ids = "before ".to_owned();
        message_id::offset_message_ids(&mut ids, host, places.iter().copied());
        let each = |at: &u64| {
            let mut id = String::new();
            message_id::offset_message_id(&mut id, host, *at);
            id
        };
        prop_assert_eq!(ids, format!("before {}", places.iter().map(each).collect::<Vec<_>>().join(",")));
    }

    #[test]
    fn sends_and_answers_that_travel_together_come_back(
        parts in vec((any::<i32>(), any::<bool>(), ".{0,40}", ".{0,40}", vec(any::<u8>(), 0..40)), 0..6),
        host in hosts(),
        places in vec(any::<u64>(), 0..5),
        remark in prop::option::of(".{0,20}"),
    ) {
        let (mut request, mut answer) = (Vec::new(), Vec::new());
        together::put_host(&mut answer, host);
        for (number, (queue_id, is_batch, topic, properties, body)) in parts.iter().enumerate() {
            let (queue_id, is_batch) = (*queue_id, *is_batch);
            let part = together::Part { queue_id, sys_flag: !queue_id, flag: 7, is_batch, topic, properties, body: 0..0 };
            together::put_part(&mut request, &part, body).unwrap();
            let said = together::PartAnswer::stored(number, 3, queue_id, i64::MIN).saying(remark.as_deref(), None);
            together::put_answer(&mut answer, &said, places.iter().copied());
        }
        prop_assert_eq!(together::count(&request), Ok(parts.len()));
        let read: Vec<_> = together::parts(&request).map(Result::unwrap).collect();
        prop_assert_eq!(read.len(), parts.len());
        for (read, (queue_id, is_batch, topic, properties, body)) in read.iter().zip(&parts) {
            prop_assert_eq!((read.queue_id, read.sys_flag, read.is_batch), (*queue_id, !*queue_id, *is_batch));
            prop_assert_eq!((read.topic, read.properties), (topic.as_str(), properties.as_str()));
            prop_assert_eq!(&request[read.body.clone()], &body[..]);
        }
        let (said, answers) = together::answers(&answer).unwrap();
        let answers: Vec<_> = answers.map(Result::unwrap).collect();
        prop_assert_eq!((said, answers.len()), (host, parts.len()));
        for (number, read) in answers.iter().enumerate() {
            prop_assert_eq!((read.number, read.code, read.queue_offset), (number, 3, i64::MIN));
            prop_assert_eq!((read.places().collect::<Vec<_>>(), read.remark), (places.clone(), remark.as_deref()));
        }
    }

    #[test]
    fn any_bytes_are_sends_that_travel_together_or_an_error(
        bytes in vec(any::<u8>(), 0..120),
        lengths in vec(0..30u8, 0..6),
    ) {
        let mut nearly = Vec::new();
        for length in lengths {
            nearly.extend([0, 0, 0, length]);
            nearly.extend(bytes.iter().take(usize::from(length)));
        }
        for bytes in [bytes, nearly] {
            let counted = together::count(&bytes);
            let parts: Vec<_> = together::parts(&bytes).collect();
            prop_assert!(counted.map_or(true, |count| count == parts.len()));
            prop_assert!(parts.iter().flatten().all(|part| bytes.get(part.body.clone()).is_some()));
            let _ = together::answers(&bytes).map(|(_, answers)| answers.flatten().map(|answer| answer.places().count()).sum::<usize>());
        }
    }

    #[test]
    fn an_id_names_its_host_and_place(host in hosts(), at in any::<u64>(), text in ".{0,60}") {
        let mut id = String::new();
        message_id::offset_message_id(&mut id, host, at);
        prop_assert_eq!(message_id::parse_offset_message_id(&id), Ok((host, at)));
        let _ = (message_id::parse_offset_message_id(&text), message_id::parse_unique_id(&text));
    }

    #[test]
    fn any_bytes_unfold_or_not(bytes in vec(any::<u8>(), 0..100)) {
        for kind in [Compression::Lz4, Compression::Zstd, Compression::Zlib] {
            let _ = decompress(kind, &bytes, 1000);
        }
    }
}
