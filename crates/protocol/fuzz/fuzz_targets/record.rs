//! Whatever lies in a log, a scan ends, and a record that was read can be written again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use protocol::record::{Scanned, scan};

fuzz_target!(|data: &[u8]| {
    let mut rest = data;
    while let Ok(Scanned::Record(view)) = scan(rest, false) {
        let _ = (view.tags_code(), view.born_host(), view.store_host(), view.prepared_offset(), view.reconsume_times());
        let mut again = Vec::new();
        // A topic or properties of a length that we would refuse are the only reasons not to.
        let _ = view.to_draft().encode(&mut again);
        rest = &rest[view.total_size()..];
    }
    let _ = protocol::batch::iter(data).count();
});
