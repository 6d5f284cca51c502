//! Whatever a body says, reading ends; what was read survives both dialects.
#![no_main]

use libfuzzer_sys::fuzz_target;
use protocol::body::{ConsumerOffsets, Heartbeat, RegisterBrokerBody, TopicStatsTable};
use protocol::fastjson::{Dialect, from_slice, to_vec};

fuzz_target!(|data: &[u8]| {
    if let Ok(offsets) = from_slice::<ConsumerOffsets>(data) {
        for dialect in [Dialect::FastJson, Dialect::Standard] {
            assert_eq!(from_slice::<ConsumerOffsets>(&to_vec(&offsets, dialect)).expect("our own body"), offsets);
        }
    }
    let _ = from_slice::<TopicStatsTable>(data);
    let _ = from_slice::<Heartbeat>(data);
    let _ = RegisterBrokerBody::decode(data, data.first().is_some_and(|byte| *byte == 0x78), 513);
});
