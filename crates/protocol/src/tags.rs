//! Tags: their code in a consume queue, and subscriptions to them.

use crate::java::string_hash;

/// Subscribes to everything.
pub const ALL: &str = "*";

/// The code of a tag string: Java's hash, sign-extended; 0 for none.
pub fn code(tags: &str) -> i64 {
    i64::from(string_hash(tags))
}

/// A tag expression, ready to be asked for each unit of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// Sorted, without doubles; empty: everything.
    codes: Vec<i32>,
    tags: Vec<String>,
}

impl Subscription {
    /// Everything.
    pub fn all() -> Subscription {
        Subscription { codes: Vec::new(), tags: Vec::new() }
    }

    /// Reads `"A || B"`; `"*"` and an empty expression mean everything. `None` when nothing is left between the bars, which
    /// Apache refuses too.
    pub fn parse(expression: &str) -> Option<Subscription> {
        if expression.is_empty() || expression == ALL {
            return Some(Subscription::all());
        }
        let tags = expression.split("||").map(str::trim).filter(|tag| !tag.is_empty()).map(str::to_owned).collect();
        let subscription = Subscription::of(tags);
        if subscription.codes.is_empty() { None } else { Some(subscription) }
    }

    /// From the tags of a heartbeat.
    pub fn of(tags: Vec<String>) -> Subscription {
        let codes = tags.iter().map(|tag| string_hash(tag)).collect();
        Subscription { tags, ..Subscription::of_codes(codes) }
    }

    /// From the code set of a heartbeat, which is what Apache filters by.
    pub fn of_codes(mut codes: Vec<i32>) -> Subscription {
        codes.sort_unstable();
        codes.dedup();
        Subscription { codes, tags: Vec::new() }
    }

    /// Whether every message matches.
    pub fn is_all(&self) -> bool {
        self.codes.is_empty()
    }

    /// Whether a message with this code may match. Two tags can share a code; the consumer compares the tags themselves.
    pub fn matches(&self, tags_code: i64) -> bool {
        // A code outside of 32 bits is a delivery time, not a tag: Apache compares the low half, and so do we.
        self.codes.is_empty() || self.codes.binary_search(&(tags_code as i32)).is_ok()
    }

    /// The tags, as far as they are known.
    pub fn tags(&self) -> &[String] {
        &self.tags
    }

    /// The codes, sorted.
    pub fn codes(&self) -> &[i32] {
        &self.codes
    }
}
