//! The stages that a record reaches, and the watermark of all that the mode asks for.
//!
//! Appends, the threads `commit` and `flush`, and the code that hears from replicas raise the
//! stages. Each raises `confirmed` afterwards, without a lock.

use std::sync::atomic::{AtomicU8, Ordering, fence};

use disk::Watermark;

/// How far a record has come. A wait for several stages is a wait for the latest of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// In the kernel's hands: it survives the end of the process.
    #[default]
    Written,
    /// On the device: it survives a loss of power.
    Flushed,
    /// On enough replicas; with SYNC_FLUSH on the device too.
    Replicated,
}

impl Stage {
    /// All of them, in their order.
    pub const ALL: [Stage; 3] = [Stage::Written, Stage::Flushed, Stage::Replicated];
}

/// Bits of what the mode asks for, beside that a record is written.
pub(crate) const DEVICE: u8 = 1;
pub(crate) const REPLICAS: u8 = 2;

/// What the mode asks for at this moment, and how far all of that holds.
///
/// `mark` only grows: what consumers could see stays visible when the mode changes. After a change
/// to SYNC_FLUSH it stands still until the device has come so far.
pub(crate) struct Confirmed {
    /// SeqCst: see `raise`.
    asked: AtomicU8,
    /// Enough replicas have the log up to here. Never beyond what is written.
    pub replicated: Watermark,
    /// The least of what is asked for.
    pub mark: Watermark,
}

impl Confirmed {
    /// For a log that is written and flushed so far, and of whose replicas nothing is known.
    pub fn new(is_sync_flush: bool, written: u64, flushed: u64) -> Confirmed {
        let (asked, at) = if is_sync_flush { (DEVICE, flushed) } else { (0, written) };
        Confirmed { asked: AtomicU8::new(asked), replicated: Watermark::new(0), mark: Watermark::new(at) }
    }

    /// Whether all of these bits are asked for.
    pub fn asks_for(&self, bits: u8) -> bool {
        self.asked.load(Ordering::SeqCst) & bits == bits
    }

    /// The latest stage that is asked for.
    pub fn stage(&self) -> Stage {
        match self.asked.load(Ordering::SeqCst) {
            0 => Stage::Written,
            DEVICE => Stage::Flushed,
            _ => Stage::Replicated,
        }
    }

    /// Asks for it from now on, or no more, and says whether that is a change. [`Confirmed::raise`]
    /// follows.
    pub fn ask(&self, bit: u8, is_asked: bool) -> bool {
        let before = if is_asked {
            self.asked.fetch_or(bit, Ordering::SeqCst)
        } else {
            self.asked.fetch_and(!bit, Ordering::SeqCst)
        };
        (before & bit != 0) != is_asked
    }

    /// The log is written up to here. If more is asked for, that follows later and raises the mark.
    pub fn raise_written(&self, written: u64) {
        if self.asked.load(Ordering::SeqCst) == 0 {
            self.mark.advance(written);
        }
    }

    /// The log is flushed or replicated further, or something else is asked for.
    pub fn raise(&self, written: &Watermark, flushed: &Watermark) {
        // Pairs with itself, and with the SeqCst in `raise_written`: of two threads that have each
        // raised a stage, or changed the mode, the later one sees both. With anything weaker each
        // could miss the other, and the mark would stay too low.
        fence(Ordering::SeqCst);
        self.raise_to(written.get(), flushed.get());
    }

    /// The same with stages that are known, also before their watermarks say so: a waiter that
    /// hears of a stage finds the mark raised. As the mode may change between, [`Confirmed::raise`]
    /// follows.
    pub fn raise_to(&self, written: u64, flushed: u64) {
        // First the stages, then the mode: a mode that asks for less was in force when the log had
        // come so far.
        let replicated = self.replicated.get();
        let asked = self.asked.load(Ordering::SeqCst);
        let own = if asked & DEVICE == 0 { written } else { flushed };
        self.mark.advance(if asked & REPLICAS == 0 { own } else { own.min(replicated) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_is_the_least_of_what_is_asked_for_and_never_goes_back() {
        let (written, flushed) = (Watermark::new(10), Watermark::new(0));
        let confirmed = Confirmed::new(false, 10, 0);
        let raised = |ask: Option<(u8, bool)>| {
            if let Some((bit, is_asked)) = ask {
                assert!(confirmed.ask(bit, is_asked) && !confirmed.ask(bit, is_asked));
            }
            confirmed.raise(&written, &flushed);
            confirmed.mark.get()
        };
        assert_eq!((confirmed.stage(), raised(None)), (Stage::Written, 10));
        // Consumers keep what they could see, and get no more before the device has it.
        assert_eq!((raised(Some((DEVICE, true))), confirmed.stage()), (10, Stage::Flushed));
        written.advance(40);
        confirmed.raise_written(written.get());
        flushed.advance(5);
        assert_eq!(raised(None), 10);
        flushed.advance(30);
        assert_eq!(raised(None), 30);
        // Replicas come in beside the device.
        assert_eq!((raised(Some((REPLICAS, true))), confirmed.stage()), (30, Stage::Replicated));
        flushed.advance(40);
        assert_eq!(raised(None), 30);
        confirmed.replicated.advance(35);
        assert_eq!(raised(None), 35);
        confirmed.replicated.advance(45);
        assert_eq!(raised(None), 40);
        // Without the device the replicas remain.
        written.advance(60);
        confirmed.raise_written(written.get());
        assert_eq!((raised(Some((DEVICE, false))), confirmed.stage()), (45, Stage::Replicated));
        assert_eq!((raised(Some((REPLICAS, false))), confirmed.stage()), (60, Stage::Written));
    }

    #[test]
    fn no_raise_is_lost_between_the_device_replicas_appends_and_changes_of_the_mode() {
        const END: u64 = 20_000;
        let (written, flushed) = (Watermark::new(0), Watermark::new(0));
        let confirmed = Confirmed::new(true, 0, 0);
        confirmed.ask(REPLICAS, true);
        for first in [1, END + 1] {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for end in first..first + END {
                        written.advance(end);
                        confirmed.raise_written(written.get());
                    }
                });
                for stage in [&flushed, &confirmed.replicated] {
                    let (written, flushed, confirmed) = (&written, &flushed, &confirmed);
                    scope.spawn(move || {
                        while stage.get() < first + END - 1 {
                            stage.advance(written.get());
                            confirmed.raise(written, flushed);
                        }
                    });
                }
                if first > END {
                    // With the last change nothing but the append is asked for.
                    for is_asked in [false, true, false] {
                        confirmed.ask(REPLICAS, is_asked);
                        confirmed.raise(&written, &flushed);
                        confirmed.ask(DEVICE, is_asked);
                        confirmed.raise(&written, &flushed);
                    }
                }
            });
            assert_eq!(confirmed.mark.get(), first + END - 1);
        }
    }
}
