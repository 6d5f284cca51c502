//! The stages that a record reaches, and the watermark of all that the mode asks for.
//!
//! Appends, the threads `commit` and `flush`, and the code that hears from replicas raise the
//! stages. Each raises `confirmed` afterwards, without a lock. The marks of copies stand apart:
//! they are about acknowledgements, and consumers see what the store has confirmed whether a slave
//! has it or not.

use std::sync::atomic::{AtomicU8, Ordering, fence};

use disk::Watermark;

/// What a record comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// In the kernel's hands: it survives the end of the process.
    Written,
    /// On the device: it survives a loss of power.
    Flushed,
    /// All that the mode of the store asks for: consumers may see it.
    Confirmed,
    /// On as many slaves as the broker is set to wait for.
    CopiedBySetting,
    /// The same, and on one slave at least, whatever the broker is set to.
    CopiedByOne,
    /// On all slaves that keep up.
    CopiedByAll,
}

impl Stage {
    /// All of them; each stands at its own number.
    pub const ALL: [Stage; 6] = [
        Stage::Written,
        Stage::Flushed,
        Stage::Confirmed,
        Stage::CopiedBySetting,
        Stage::CopiedByOne,
        Stage::CopiedByAll,
    ];
    /// What slaves bring it to.
    pub const COPIED: [Stage; 3] = [Stage::CopiedBySetting, Stage::CopiedByOne, Stage::CopiedByAll];
}

/// A set of stages: what an acknowledgement waits for. Stages come in any order, as flushes and
/// slaves do not wait for each other; a record that has come to one of them is written, though.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stages(u8);

impl Default for Stages {
    /// [`Stages::WRITTEN`].
    fn default() -> Stages {
        Stages::WRITTEN
    }
}

impl Stages {
    /// No stage at all.
    pub const NONE: Stages = Stages(0);
    /// What everything waits for.
    pub const WRITTEN: Stages = Stages(1 << Stage::Written as u8);

    /// These, and this one.
    #[must_use]
    pub const fn with(self, stage: Stage) -> Stages {
        Stages(self.0 | 1 << stage as u8)
    }

    /// These, but not this one.
    #[must_use]
    pub const fn without(self, stage: Stage) -> Stages {
        Stages(self.0 & !(1 << stage as u8))
    }

    /// Those of both.
    #[must_use]
    pub const fn and(self, others: Stages) -> Stages {
        Stages(self.0 | others.0)
    }

    /// Those that are not among the others.
    #[must_use]
    pub const fn beyond(self, others: Stages) -> Stages {
        Stages(self.0 & !others.0)
    }

    /// These, but nothing that slaves do.
    #[must_use]
    pub const fn without_copies(self) -> Stages {
        self.without(Stage::CopiedBySetting).without(Stage::CopiedByOne).without(Stage::CopiedByAll)
    }

    /// Whether this one is among them.
    pub const fn has(self, stage: Stage) -> bool {
        self.0 & 1 << stage as u8 != 0
    }

    /// Whether all of them are among the others.
    pub const fn are_among(self, others: Stages) -> bool {
        self.beyond(others).0 == 0
    }

    /// Whether one of them is among the others.
    pub const fn meet(self, others: Stages) -> bool {
        self.0 & others.0 != 0
    }

    /// Whether there are none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether something is asked of the device: then the topic, in the journal, has to be there too.
    pub const fn ask_for_device(self) -> bool {
        self.has(Stage::Flushed) || self.has(Stage::Confirmed)
    }

    /// Whether something is asked of slaves.
    pub const fn ask_for_copies(self) -> bool {
        !self.are_among(self.without_copies())
    }

    /// Each of them.
    pub fn each(self) -> impl Iterator<Item = Stage> {
        Stage::ALL.into_iter().filter(move |stage| self.has(*stage))
    }
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

    /// The stages that are asked for.
    pub fn stages(&self) -> Stages {
        match self.asked.load(Ordering::SeqCst) {
            0 => Stages::WRITTEN,
            DEVICE => Stages::WRITTEN.with(Stage::Flushed),
            // The mark of the set has the device in it, where that is asked for.
            _ => Stages::WRITTEN.with(Stage::Confirmed),
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

/// How far the log has come to each of [`Stage::COPIED`]: the code that hears from slaves raises it.
pub(crate) struct Copied {
    pub by_setting: Watermark,
    pub by_one: Watermark,
    pub by_all: Watermark,
}

impl Copied {
    /// Nothing is known of slaves.
    pub fn new() -> Copied {
        Copied { by_setting: Watermark::new(0), by_one: Watermark::new(0), by_all: Watermark::new(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_a_set_and_not_an_order() {
        let both = Stages::WRITTEN.with(Stage::Flushed).with(Stage::CopiedByOne);
        let copied = Stages::WRITTEN.with(Stage::CopiedByOne);
        assert!(copied.are_among(both) && !both.are_among(copied));
        assert!(!copied.has(Stage::Flushed) && !copied.ask_for_device() && copied.ask_for_copies());
        assert!(both.ask_for_device() && both.ask_for_copies() && !Stages::WRITTEN.ask_for_copies());
        assert_eq!(both.beyond(copied), Stages::NONE.with(Stage::Flushed));
        assert_eq!(both.without_copies().and(copied), both);
        assert!(both.meet(copied) && !both.beyond(copied).meet(copied));
        assert_eq!(both.each().collect::<Vec<_>>(), [Stage::Written, Stage::Flushed, Stage::CopiedByOne]);
        for (at, stage) in Stage::ALL.into_iter().enumerate() {
            assert_eq!((stage as usize, Stages::NONE.with(stage).without(stage)), (at, Stages::NONE));
        }
    }

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
        let of_set = Stages::WRITTEN.with(Stage::Confirmed);
        assert_eq!((confirmed.stages(), raised(None)), (Stages::WRITTEN, 10));
        // Consumers keep what they could see, and get no more before the device has it.
        assert_eq!((raised(Some((DEVICE, true))), confirmed.stages()), (10, Stages::WRITTEN.with(Stage::Flushed)));
        written.advance(40);
        confirmed.raise_written(written.get());
        flushed.advance(5);
        assert_eq!(raised(None), 10);
        flushed.advance(30);
        assert_eq!(raised(None), 30);
        // Replicas come in beside the device.
        assert_eq!((raised(Some((REPLICAS, true))), confirmed.stages()), (30, of_set));
        flushed.advance(40);
        assert_eq!(raised(None), 30);
        confirmed.replicated.advance(35);
        assert_eq!(raised(None), 35);
        confirmed.replicated.advance(45);
        assert_eq!(raised(None), 40);
        // Without the device the replicas remain.
        written.advance(60);
        confirmed.raise_written(written.get());
        assert_eq!((raised(Some((DEVICE, false))), confirmed.stages()), (45, of_set));
        assert_eq!((raised(Some((REPLICAS, false))), confirmed.stages()), (60, Stages::WRITTEN));
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
