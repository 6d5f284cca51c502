use bytes::BytesMut;

use super::*;
use crate::frame::{MAX_FRAME_BYTES, peek};
use crate::request::{PullMessage, SendMessage, SendReply};

/// Written by Java (reference/remoting.md §1.1).
const JAVA_SEND: &str = r#"{"code":310,"extFields":{"a":"PG","b":"T","c":"TBW102","d":"4","e":"1","f":"0","g":"1700000000000","h":"0","i":"A\u0001b\u0002","j":"0","k":"false","m":"false","n":"bk"},"flag":0,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON","version":479}"#;

fn json<'a>(text: &'a str, scratch: &'a mut HeaderScratch) -> Result<Header<'a>, HeaderError> {
    decode(text.as_bytes(), Serialization::Json, scratch)
}

fn java_send() -> SendMessage<'static> {
    SendMessage {
        producer_group: "PG",
        topic: "T",
        default_topic: "TBW102",
        default_topic_queue_nums: 4,
        queue_id: 1,
        sys_flag: 0,
        born_timestamp: 1_700_000_000_000,
        flag: 0,
        properties: Some("A\u{1}b\u{2}"),
        reconsume_times: Some(0),
        unit_mode: Some(false),
        max_reconsume_times: None,
        batch: Some(false),
        broker_name: Some("bk"),
    }
}

#[test]
fn a_java_send_is_read_field_by_field() {
    let mut scratch = HeaderScratch::new();
    let header = json(JAVA_SEND, &mut scratch).unwrap();
    assert_eq!((header.code, header.opaque, header.flag, header.version), (310, 7, 0, 479));
    assert_eq!((header.language, header.remark), (Language::Java, None));
    assert_eq!(SendMessage::decode_v2(&header.fields).unwrap(), java_send());
}

#[test]
fn a_binary_send_is_javas_byte_for_byte() {
    let mut out = BytesMut::new();
    let head = Head { code: 310, flag: 0, opaque: 7, remark: None };
    write_frame(&mut out, Serialization::Binary, &head, &java_send(), 2);
    out.extend_from_slice(b"hi");
    let start = [0, 0, 0, 0xa1, 1, 0, 0, 0x9b, 1, 0x36, 0, 1, 0xdf, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x86];
    assert_eq!(out[..start.len()], start);
    assert!(out.ends_with(b"\0\x01n\0\0\0\x02bkhi"));
}

#[test]
fn a_response_has_javas_members() {
    let mut out = BytesMut::new();
    let head = Head { code: 0, flag: FLAG_RESPONSE, opaque: 7, remark: None };
    let reply = SendReply {
        msg_id: "AA",
        queue_id: 1,
        queue_offset: 5,
        transaction_id: None,
        batch_uniq_id: None,
        recall_handle: None,
    };
    write_frame(&mut out, Serialization::Json, &head, &reply, 0);
    let java = r#"{"code":0,"extFields":{"queueId":"1","msgId":"AA","queueOffset":"5"},"flag":1,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON","version":479}"#;
    let ours: serde_json::Value = serde_json::from_slice(&out[8..]).unwrap();
    assert_eq!(ours, serde_json::from_str::<serde_json::Value>(java).unwrap());
}

#[test]
fn whatever_json_a_client_writes_is_understood() {
    let mut scratch = HeaderScratch::new();
    let odd = r#" { "nested" : {"a":[1,{"b":"}"}],"c":null} , "extFields":{"n":5,"t":true,"f":-1.5e3,"o":{"x":[1]},"z":null,
        "dup":"first","dup":"last","\u0065sc":"\ud83d\ude00\t\"\\\/ü"}, "version":"401","language":"GO","flag" : 2,
        "remark":null,"opaque":-9,"code":11,"body":null } "#;
    let header = json(odd, &mut scratch).unwrap();
    assert_eq!((header.code, header.opaque, header.version), (11, -9, 401));
    assert!(header.is_oneway() && !header.is_response());
    assert_eq!(header.language, Language::Go);
    let fields: Vec<_> = header.fields.iter().collect();
    let expected =
        [("n", "5"), ("t", "true"), ("f", "-1.5e3"), ("o", r#"{"x":[1]}"#), ("dup", "last"), ("esc", "😀\t\"\\/ü")];
    assert_eq!(fields, expected);
    assert_eq!(header.fields.get("z"), None);
}

#[test]
fn absent_and_null_fields_are_no_fields() {
    for text in [r#"{"code":1}"#, r#"{"code":1,"extFields":null}"#, r#"{"code":1,"extFields":{}}"#] {
        let mut scratch = HeaderScratch::new();
        assert!(json(text, &mut scratch).unwrap().fields.is_empty(), "{text}");
    }
}

#[test]
fn half_a_surrogate_pair_becomes_the_replacement_character() {
    let mut scratch = HeaderScratch::new();
    for (escaped, expected) in [(r"\ud83d", "\u{fffd}"), (r"\ude00x", "\u{fffd}x"), (r"\ud83d\u0041", "\u{fffd}A")] {
        let text = format!(r#"{{"remark":"{escaped}"}}"#);
        assert_eq!(json(&text, &mut scratch).unwrap().remark, Some(expected), "{escaped}");
    }
}

#[test]
fn what_is_no_header_is_refused() {
    let mut scratch = HeaderScratch::new();
    let cases = [
        "",
        "x",
        "[]",
        "{",
        r#"{"code""#,
        r#"{"code":}"#,
        r#"{"code":"x"}"#,
        r#"{"code":1.5}"#,
        r#"{"code":99999999999}"#,
        r#"{"code":1"flag":2}"#,
        r#"{"code":1}x"#,
        r#"{"remark":"\q"}"#,
        r#"{"remark":"\u12"}"#,
        r#"{"a":{]}"#,
        r#"{"extFields":[]}"#,
        r#"{"a":"unfinished"#,
        r#"{"a":"\"#,
        r#"{"remark":}"#,
    ];
    for text in cases {
        assert!(json(text, &mut scratch).is_err(), "{text}");
    }
    assert_eq!(
        decode(b"{\"a\":\"\xff\"}", Serialization::Json, &mut scratch).unwrap_err(),
        HeaderError::NotUtf8("header")
    );
    let deep = format!(r#"{{"a":{}{}}}"#, "[".repeat(100), "]".repeat(100));
    assert!(json(&deep, &mut scratch).is_err());
}

#[test]
fn too_many_fields_are_refused() {
    let fields: Vec<String> = (0..=FIELDS_MAX).map(|n| format!(r#""k{n}":"v""#)).collect();
    let text = format!(r#"{{"extFields":{{{}}}}}"#, fields.join(","));
    assert_eq!(json(&text, &mut HeaderScratch::new()).unwrap_err(), HeaderError::TooManyFields);
}

#[test]
fn a_code_above_16_bits_is_written_as_json() {
    let mut out = BytesMut::new();
    let head = Head { code: 200_050, flag: 0, opaque: 1, remark: None };
    write_frame(&mut out, Serialization::Binary, &head, &(), 0);
    let layout = peek(&out, MAX_FRAME_BYTES).unwrap().unwrap();
    assert_eq!(layout.serialization, Serialization::Json);
}

#[test]
fn the_last_of_two_equal_keys_wins_in_binary_and_an_empty_value_is_none() {
    let mut out = BytesMut::new();
    let head = Head { code: 1, flag: 0, opaque: 1, remark: Some("r") };
    write_frame(&mut out, Serialization::Binary, &head, &[("k", "1"), ("e", ""), ("k", "2")], 0);
    let mut scratch = HeaderScratch::new();
    let header = decode(&out[8..], Serialization::Binary, &mut scratch).unwrap();
    assert_eq!(header.fields.iter().collect::<Vec<_>>(), [("k", "2")]);
    assert_eq!(header.remark, Some("r"));
}

#[test]
fn a_bad_number_names_its_field() {
    let mut scratch = HeaderScratch::new();
    let text = r#"{"extFields":{"consumerGroup":"g","topic":"t","queueId":"x"}}"#;
    let fields = json(text, &mut scratch).unwrap().fields;
    let error = PullMessage::decode(&fields).unwrap_err();
    assert_eq!(error.to_string(), r#"field queueId: "x" is not an i32"#);
    let error = PullMessage::decode(&Fields::EMPTY).unwrap_err();
    assert_eq!(error.to_string(), "field consumerGroup is missing");
}

#[test]
fn a_scratch_forgets_the_header_before() {
    let mut scratch = HeaderScratch::new();
    assert_eq!(json(JAVA_SEND, &mut scratch).unwrap().fields.len(), 13);
    assert_eq!(
        json(r#"{"extFields":{"x":"\n"}}"#, &mut scratch).unwrap().fields.iter().collect::<Vec<_>>(),
        [("x", "\n")]
    );
}

#[test]
fn a_header_that_no_frame_can_hold_becomes_a_short_refusal_and_what_follows_stays_in_place() {
    let long = "x".repeat(1 << 24);
    for serialization in [Serialization::Json, Serialization::Binary] {
        let mut out = BytesMut::from(&b"before"[..]);
        let head = Head { code: 0, flag: FLAG_RESPONSE, opaque: 7, remark: None };
        write_frame(&mut out, serialization, &head, &[("a", long.as_str())], 4);
        out.extend_from_slice(b"body");
        assert!(out.len() < 1000, "{} bytes", out.len());
        let frame = &out[6..];
        let layout = peek(frame, MAX_FRAME_BYTES).unwrap().unwrap();
        assert_eq!((layout.frame_bytes, &frame[layout.body.clone()]), (frame.len(), &b"body"[..]));
        let mut scratch = HeaderScratch::new();
        let header = decode(&frame[layout.header], layout.serialization, &mut scratch).unwrap();
        assert_eq!((header.code, header.flag, header.opaque, header.fields.len()), (1, FLAG_RESPONSE, 7, 0));
        assert_eq!(header.remark, Some("the header is longer than a frame can hold"));
    }
}
