//! Groups that asked where their queue has nothing, and were moved: on to its begin, since retention was faster, or back to its end.
//!
//! The first is how a group that was away for too long loses messages, the second how it gets some again. No client says so; the log and a metric do.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use store::{Read, ReadStatus};

use super::Offsets;

/// From one line in the log to the next.
const SAID_EVERY: Duration = Duration::from_secs(60);

/// How many there were. Relaxed throughout: each number stands alone, and a line of the log that says one too few says it next time.
#[derive(Debug, Default)]
pub(super) struct Moves {
    /// Before the begin of the queue.
    too_small: AtomicU64,
    /// Behind its end.
    overflow: AtomicU64,
    /// How many of both had been said.
    said: AtomicU64,
    /// When it was said last, in ms of the clock's elapsed time and one more; 0: never.
    said_at: AtomicU64,
}

impl Moves {
    fn of(&self, status: ReadStatus) -> Option<&AtomicU64> {
        match status {
            ReadStatus::OffsetTooSmall => Some(&self.too_small),
            ReadStatus::OffsetOverflowBadly | ReadStatus::NoMatchedLogicQueue | ReadStatus::NoMessageInQueue => {
                Some(&self.overflow)
            }
            ReadStatus::Found
            | ReadStatus::NoMatchedMessage
            | ReadStatus::MessageWasRemoving
            | ReadStatus::OffsetFoundNull
            | ReadStatus::OffsetOverflowOne
            | ReadStatus::OffsetReset
            | ReadStatus::Cold
            | ReadStatus::Failed
            | ReadStatus::Undecided => None,
        }
    }

    /// Counts one, if it is one. How many there were since that was said last, when it is time to say it.
    fn count(&self, status: ReadStatus, now: Duration) -> Option<u64> {
        self.of(status)?.fetch_add(1, Ordering::Relaxed);
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let (now, last) = (millis(now).saturating_add(1), self.said_at.load(Ordering::Relaxed));
        if last > 0 && now.saturating_sub(last) < millis(SAID_EVERY) {
            return None;
        }
        // Of several at the same time one says it.
        self.said_at.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).ok()?;
        let all = self.too_small.load(Ordering::Relaxed) + self.overflow.load(Ordering::Relaxed);
        Some(all.saturating_sub(self.said.swap(all, Ordering::Relaxed)))
    }
}

impl Offsets {
    /// A group has read at `from` and goes on where the read says. Notes it if nothing was there, whatever the read was for.
    pub(crate) fn moved(&self, group: &str, topic: &str, queue_id: i32, from: i64, read: &Read) {
        let Some(count) = self.moves.count(read.status, self.clock.elapsed()) else { return };
        let (to, passed_over) = (read.next, read.next.saturating_sub(from.max(0)).max(0));
        tracing::warn!(
            group,
            topic,
            queue_id,
            from,
            to,
            passed_over,
            count,
            "groups asked for offsets that their queues do not have, and go on elsewhere; of these the last one's"
        );
    }

    /// How many there were, by reason.
    pub(crate) fn moves(&self) -> [(&'static str, u64); 2] {
        let Moves { too_small, overflow, .. } = &self.moves;
        [("too_small", too_small.load(Ordering::Relaxed)), ("overflow", overflow.load(Ordering::Relaxed))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_at_once_and_then_once_a_minute_with_how_many_there_were() {
        let moves = Moves::default();
        let count = |status, ms| moves.count(status, Duration::from_millis(ms));
        let (small, behind) = (ReadStatus::OffsetTooSmall, ReadStatus::OffsetOverflowBadly);
        assert_eq!([0, 10, 59_999].map(|ms| count(small, ms)), [Some(1), None, None]);
        assert_eq!(count(ReadStatus::Found, 60_000), None);
        assert_eq!(count(behind, 60_000), Some(3));
        assert_eq!(count(behind, 60_001), None);
        assert_eq!((moves.too_small.into_inner(), moves.overflow.into_inner()), (3, 2));
    }
}
