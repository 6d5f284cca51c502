//! One-way sends that are refused: nobody is told, so the log and a metric say it.
//!
//! No room in the log is no reason, these wait for it. What is left is a disk that is full, a topic that is not there or may not be written, and a
//! message that breaks a rule.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::refusal::Refusal;

/// From one line in the log to the next, in milliseconds.
const SAID_EVERY_MS: i64 = 60_000;

#[derive(Debug, Default)]
struct Counts {
    by_code: BTreeMap<i32, u64>,
    since_said: u64,
    said_at: Option<i64>,
}

/// How many there were.
#[derive(Debug, Default)]
pub(crate) struct OnewayRefusals(Mutex<Counts>);

impl OnewayRefusals {
    /// One more, now.
    pub(crate) fn note(&self, refusal: &Refusal, now_ms: i64) {
        if let Some(count) = self.0.lock().count(refusal.code as i32, now_ms) {
            tracing::warn!(
                count,
                code = refusal.code as i32,
                remark = refusal.remark,
                "one-way sends are refused, and their producers are not told; of these the last one's reason"
            );
        }
    }

    /// By response code.
    pub(crate) fn all(&self) -> BTreeMap<i32, u64> {
        self.0.lock().by_code.clone()
    }
}

impl Counts {
    /// How many there were since that was said last, when it is time to say it.
    fn count(&mut self, code: i32, now_ms: i64) -> Option<u64> {
        *self.by_code.entry(code).or_default() += 1;
        self.since_said += 1;
        // The wall clock may be set back.
        if self.said_at.is_some_and(|at| (at..at + SAID_EVERY_MS).contains(&now_ms)) {
            return None;
        }
        self.said_at = Some(now_ms);
        Some(std::mem::take(&mut self.since_said))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_at_once_and_then_once_a_minute_with_how_many_there_were() {
        let mut counts = Counts::default();
        assert_eq!([0, 10, 59_999].map(|now| counts.count(14, now)), [Some(1), None, None]);
        assert_eq!(counts.count(17, 60_000), Some(3));
        assert_eq!(counts.count(17, 1), Some(1), "the clock was set back");
        assert_eq!(counts.by_code, BTreeMap::from([(14, 3), (17, 2)]));
    }
}
