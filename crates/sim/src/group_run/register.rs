//! What a group has committed in a queue, as its clients know it: a register that several write and read over a network.
//!
//! A value that is told has to be one that was written, or that may have been, and none that another one has surely replaced.

use std::collections::BTreeSet;

/// Nobody waits for an answer for so long.
const FORGOTTEN_MS: i64 = 10_000;

/// No offset.
pub const NONE: i64 = -1;

#[derive(Clone, Copy, Debug)]
struct Write {
    value: i64,
    sent: i64,
    /// When it had happened, if it happens at all.
    done: Option<i64>,
    /// It may never happen, or a crash may have taken it back.
    is_maybe: bool,
    /// Somebody was told of it: the broker promises that it stays.
    is_told: bool,
    /// Since when it is known to be replaced.
    replaced: Option<i64>,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Register {
    writes: Vec<Write>,
    /// All values that were ever written.
    ever: BTreeSet<i64>,
}

impl Default for Register {
    fn default() -> Register {
        let nothing =
            Write { value: NONE, sent: i64::MIN, done: Some(i64::MIN), is_maybe: false, is_told: true, replaced: None };
        Register { writes: vec![nothing], ever: BTreeSet::from([NONE]) }
    }
}

/// Names a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    value: i64,
    sent: i64,
}

impl Register {
    /// A write leaves.
    pub fn sent(&mut self, value: i64, now: i64) -> Written {
        self.ever.insert(value);
        self.writes.push(Write { value, sent: now, done: None, is_maybe: false, is_told: false, replaced: None });
        Written { value, sent: now }
    }

    fn find(&mut self, written: Written) -> Option<&mut Write> {
        let is_it =
            |write: &&mut Write| write.value == written.value && write.sent == written.sent && write.done.is_none();
        self.writes.iter_mut().find(is_it)
    }

    /// It was answered.
    pub fn happened(&mut self, written: Written, now: i64) {
        if let Some(write) = self.find(written) {
            write.done = Some(now);
        }
    }

    /// It will not be answered, and happens until then or not at all.
    pub fn may_happen(&mut self, written: Written, until: i64) {
        if let Some(write) = self.find(written) {
            (write.done, write.is_maybe) = (Some(until), true);
        }
    }

    /// Somebody asked at `from`, and is told now. Says whether that may be.
    pub fn told(&mut self, value: i64, from: i64, now: i64) -> bool {
        let is_replaced = |write: &Write| {
            self.writes.iter().any(|other| {
                !other.is_maybe
                    && other.done.is_some_and(|done| done <= from)
                    && write.done.is_some_and(|done| other.sent > done)
            })
        };
        let may_be = self.writes.iter().any(|write| {
            write.value == value
                && write.sent <= now
                && write.replaced.is_none_or(|replaced| from <= replaced)
                && !is_replaced(write)
        });
        // What had happened before the question, and was not told, is replaced for good; who asked before may be told of it yet.
        for write in &mut self.writes {
            if write.value != value && write.done.is_some_and(|done| done < from) {
                write.replaced.get_or_insert(now);
            }
        }
        self.writes.retain(|write| write.replaced.is_none_or(|replaced| now - replaced < FORGOTTEN_MS));
        for write in self.writes.iter_mut().filter(|write| write.value == value) {
            write.is_told = true;
        }
        may_be
    }

    /// The broker has crashed: what nobody was told of may be gone, or with `loses_told` anything. Nothing that is under way happens any more.
    pub fn crashed(&mut self, now: i64, loses_told: bool) {
        self.writes.retain(|write| write.replaced.is_none());
        for write in &mut self.writes {
            let done = write.done.map_or(now, |done| done.min(now));
            write.done = Some(done);
            write.is_maybe |= loses_told || !write.is_told;
        }
        if loses_told {
            // The device may have the journal of any moment.
            for value in self.ever.clone() {
                self.may_be_set(value, now);
            }
        }
    }

    /// The broker may have set it to that.
    pub fn may_be_set(&mut self, value: i64, now: i64) {
        self.writes.push(Write { value, sent: now, done: Some(now), is_maybe: true, is_told: false, replaced: None });
    }

    /// The largest that may be told.
    pub fn most(&self) -> i64 {
        self.writes.iter().map(|write| write.value).max().unwrap_or(NONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_that_was_surely_replaced_is_not_told() {
        let mut register = Register::default();
        for (value, at) in [(5, 10), (7, 20)] {
            let written = register.sent(value, at);
            register.happened(written, at + 5);
        }
        assert!(register.clone().told(7, 30, 35));
        assert!(!register.clone().told(5, 30, 35), "7 has come after it");
        assert!(!register.clone().told(NONE, 30, 35));
        assert!(register.told(5, 22, 35), "7 may have come after the question");
    }

    #[test]
    fn what_was_lost_on_the_way_may_be_told_until_another_one_replaces_it() {
        let mut register = Register::default();
        let lost = register.sent(5, 10);
        register.may_happen(lost, 20);
        assert!(register.clone().told(5, 30, 31) && register.clone().told(NONE, 30, 31));
        let other = register.sent(3, 25);
        register.happened(other, 26);
        assert!(register.clone().told(3, 30, 31) && !register.clone().told(5, 30, 31));
    }

    #[test]
    fn a_kill_takes_back_what_nobody_was_told_of() {
        let mut register = Register::default();
        for (value, at) in [(5, 10), (7, 20)] {
            let written = register.sent(value, at);
            register.happened(written, at + 1);
            if value == 5 {
                assert!(register.told(5, 12, 13));
            }
        }
        register.crashed(30, false);
        assert!(register.clone().told(7, 40, 41) && register.clone().told(5, 40, 41));
        assert!(!register.clone().told(NONE, 40, 41), "5 was told");
    }
}
