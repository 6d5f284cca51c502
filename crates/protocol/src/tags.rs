//! Tags: their code in a consume queue, and subscriptions to them.

use crate::java::string_hash;

/// Subscribes to everything.
pub const ALL: &str = "*";

/// The code of a tag string: Java's hash, sign-extended; 0 for none.
pub fn code(tags: &str) -> i64 {
    i64::from(string_hash(tags))
}

/// Whether this stands in the place of a code, and says where in a file of Apache's (`enableConsumeQueueExt`) the code is. Those files are not
/// read: the record has the tags.
pub fn is_extension_address(code: i64) -> bool {
    code < i64::from(i32::MIN)
}

/// A tag expression, ready to be asked for each unit of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// Nothing is filtered out.
    is_all: bool,
    /// Sorted, without doubles.
    codes: Vec<i32>,
    tags: Vec<String>,
}

impl Subscription {
    /// Everything.
    pub fn all() -> Subscription {
        Subscription { is_all: true, codes: Vec::new(), tags: Vec::new() }
    }

    /// Reads `"A || B"`; `"*"` and an empty expression mean everything. Bars alone are `None`: Apache refuses them too. Blanks
    /// alone, or blanks between bars, match nothing, as they do there.
    pub fn parse(expression: &str) -> Option<Subscription> {
        if expression.is_empty() || expression == ALL {
            return Some(Subscription::all());
        }
        if Subscription::is_refused(expression) {
            return None;
        }
        let tags = expression.split("||").map(str::trim).filter(|tag| !tag.is_empty()).map(str::to_owned).collect();
        Some(Subscription { is_all: false, ..Subscription::of(tags) })
    }

    /// Whether there are bars alone.
    pub fn is_refused(expression: &str) -> bool {
        !expression.is_empty() && expression.split("||").all(str::is_empty)
    }

    /// From the tags of a heartbeat.
    pub fn of(tags: Vec<String>) -> Subscription {
        let codes = tags.iter().map(|tag| string_hash(tag)).collect();
        Subscription { tags, ..Subscription::of_codes(codes) }
    }

    /// From the code set of a heartbeat, which is what Apache filters by; everything when it is empty.
    pub fn of_codes(mut codes: Vec<i32>) -> Subscription {
        codes.sort_unstable();
        codes.dedup();
        Subscription { is_all: codes.is_empty(), codes, tags: Vec::new() }
    }

    /// Whether every message matches.
    pub fn is_all(&self) -> bool {
        self.is_all
    }

    /// Whether a message with this code may match. Two tags can share a code; the consumer compares the tags themselves. It says nothing of an
    /// [address](is_extension_address).
    pub fn matches(&self, tags_code: i64) -> bool {
        // A code outside of 32 bits is a delivery time, not a tag: Apache compares the low half, and so do we.
        self.is_all || self.codes.binary_search(&(tags_code as i32)).is_ok()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_hash_and_no_time_is_an_address() {
        for code in [0, -1, i64::from(i32::MIN), i64::from(i32::MAX), 1_800_000_000_000] {
            assert!(!is_extension_address(code), "{code}");
        }
        assert!([i64::from(i32::MIN) - 1, -9_000_000_000, i64::MIN].into_iter().all(is_extension_address));
    }

    /// As Apache's `FilterAPI` of 5.5.0 takes them.
    #[test]
    fn bars_alone_are_refused_and_blanks_between_them_match_nothing() {
        for refused in ["||", "||||"] {
            assert_eq!(Subscription::parse(refused), None, "{refused}");
        }
        for nothing in [" ", " || ", "|| ", " ||"] {
            let subscription = Subscription::parse(nothing).expect(nothing);
            assert!(!subscription.is_all() && !subscription.matches(0) && !subscription.matches(65), "{nothing}");
        }
        assert!(Subscription::parse("A|| ").is_some_and(|a| a.matches(65) && !a.matches(0)));
    }
}
