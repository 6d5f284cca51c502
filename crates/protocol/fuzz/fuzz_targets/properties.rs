//! Looking a property up gives what a map of all of them would hold.
#![no_main]

use libfuzzer_sys::fuzz_target;
use protocol::properties::{get, iter};

fuzz_target!(|input: (&str, &str)| {
    let (name, text) = input;
    if name.bytes().any(|byte| byte < 3) {
        return;
    }
    let last = iter(text).filter(|(key, _)| *key == name).last().map(|(_, value)| value);
    assert_eq!(get(text, name), last);
});
