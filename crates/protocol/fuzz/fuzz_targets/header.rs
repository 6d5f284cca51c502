//! Whatever a header says, decoding ends; what was decoded is written and decoded again as the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use protocol::frame::Serialization;
use protocol::header::{Head, HeaderScratch, decode, write_frame};
use protocol::request::{PullMessage, RegisterBroker, SendMessage};

fuzz_target!(|data: &[u8]| {
    let Some((kind, bytes)) = data.split_first() else { return };
    let serialization = if kind & 1 == 0 { Serialization::Json } else { Serialization::Binary };
    let mut scratch = HeaderScratch::new();
    let Ok(header) = decode(bytes, serialization, &mut scratch) else { return };
    let _ = SendMessage::decode_v1(&header.fields);
    let _ = SendMessage::decode_v2(&header.fields);
    let _ = PullMessage::decode(&header.fields);
    let _ = RegisterBroker::decode(&header.fields);

    let head = Head { code: header.code, flag: header.flag, opaque: header.opaque, remark: header.remark };
    let mut frame = bytes::BytesMut::new();
    write_frame(&mut frame, Serialization::Json, &head, &header.fields, 0);
    let mut scratch = HeaderScratch::new();
    let again = decode(&frame[8..], Serialization::Json, &mut scratch).expect("our own header");
    assert_eq!(
        (again.code, again.flag, again.opaque, again.remark),
        (header.code, header.flag, header.opaque, header.remark)
    );
    assert!(again.fields.iter().eq(header.fields.iter()));
});
