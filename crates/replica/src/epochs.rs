//! The epochs of a log: which master's time each part of it is from.
//!
//! A log has one writer at a time. With each change of the master an epoch begins, at the log offset where the new master's log ended. Two copies
//! of a log are the same up to the end of the last epoch that both have: what a deposed master has behind it, the new one does not have.
//!
//! No two masters have the same epoch. A broker takes a number that is higher than all it knows, and whose last two digits are its own id
//! ([`next`]); it writes the number down, on the device, before it is a master; and two brokers of a set have different ids at any time. A master
//! that hands over takes the id of its successor only together with the knowledge of the successor's number, so that any number it takes under
//! this id is higher. Ids above 99 share digits with others: a set has no two of which that is so.

use protocol::LogOffset;
pub use protocol::epoch::{is_for, next, next_unheard};

/// Epochs of a log that another broker tells.
const TOLD_MAX: usize = 100_000;

/// An epoch: a part of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// Grows from one to the next.
    pub number: u64,
    /// Where it begins.
    pub start: LogOffset,
}

/// All of a log, in their order. What is before the first is epoch 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Epochs(Vec<Epoch>);

/// How a log lies to that of a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// The master's may go on where this one ends, as far as epochs tell.
    Continues,
    /// The master has other messages, or none, from there on.
    CutAt(LogOffset),
    /// This log has an epoch that is later than the master's.
    IsLater,
}

impl Epochs {
    /// Epochs in any order, as a journal or another broker has them; none if they are not those of one log.
    pub fn of(mut list: Vec<Epoch>) -> Option<Epochs> {
        list.sort_by_key(|epoch| epoch.number);
        let grow = list.windows(2).all(|two| two[0].number < two[1].number && two[0].start <= two[1].start);
        let is_whole = grow && list.len() <= TOLD_MAX && list.first().is_none_or(|first| first.number > 0);
        is_whole.then_some(Epochs(list))
    }

    /// All of them.
    pub fn list(&self) -> &[Epoch] {
        &self.0
    }

    /// The number of the last; 0 if the master has never changed.
    pub fn last(&self) -> u64 {
        self.0.last().map_or(0, |epoch| epoch.number)
    }

    /// Forgets epochs that begin behind the end of the log, and returns them: a slave knows its master's before it has what was stored in them, and a
    /// loss of power may take what was.
    pub fn cut(&mut self, end: LogOffset) -> Vec<Epoch> {
        let kept = self.0.partition_point(|epoch| epoch.start <= end);
        self.0.split_off(kept)
    }

    /// The master's epoch begins where its log ends, behind which no other begins ([`Epochs::cut`]). Says whether it is a later one than all before.
    pub fn begin(&mut self, number: u64, start: LogOffset) -> bool {
        let is_later = number > self.last();
        if is_later {
            self.0.push(Epoch { number, start });
        }
        is_later
    }

    /// Where epoch `number` begins, if the log has it.
    fn start(&self, number: u64) -> Option<LogOffset> {
        if number == 0 {
            return Some(LogOffset(0));
        }
        self.0.iter().find(|epoch| epoch.number == number).map(|epoch| epoch.start)
    }

    /// Where the epoch behind epoch `number` begins, if there is one.
    fn end(&self, number: u64) -> Option<LogOffset> {
        self.0.iter().find(|epoch| epoch.number > number).map(|epoch| epoch.start)
    }

    /// How this log, which ends at `end`, lies to that of a master with these epochs.
    pub fn point(&self, end: LogOffset, master: &Epochs) -> Point {
        if self.last() > master.last() {
            return Point::IsLater;
        }
        let both = |epoch: &&Epoch| master.start(epoch.number) == Some(epoch.start);
        let common = self.0.iter().rev().find(both).map_or(0, |epoch| epoch.number);
        let Some(master_end) = master.end(common) else { return Point::Continues };
        let common_end = self.end(common).unwrap_or(end).min(end).min(master_end);
        if common_end < end { Point::CutAt(common_end) } else { Point::Continues }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epochs(list: &[(u64, u64)]) -> Epochs {
        Epochs::of(list.iter().map(|(number, start)| Epoch { number: *number, start: LogOffset(*start) }).collect())
            .unwrap()
    }

    fn point(own: &[(u64, u64)], end: u64, master: &[(u64, u64)]) -> Point {
        epochs(own).point(LogOffset(end), &epochs(master))
    }

    #[test]
    fn the_log_of_a_deposed_master_is_cut_where_the_new_one_began() {
        let cut = |at| Point::CutAt(LogOffset(at));
        assert_eq!(point(&[], 500, &[(101, 400)]), cut(400));
        assert_eq!(point(&[], 400, &[(101, 400)]), Point::Continues);
        assert_eq!(point(&[], 300, &[(101, 400)]), Point::Continues, "it has yet to copy");
        assert_eq!(point(&[(101, 400)], 900, &[(101, 400), (202, 700)]), cut(700));
        // The one in between had nobody to follow it.
        assert_eq!(point(&[(101, 400)], 900, &[(202, 700)]), cut(400));
        assert_eq!(point(&[(101, 400)], 400, &[(202, 700)]), Point::Continues);
        // Two changes without a message between them.
        assert_eq!(point(&[(101, 400)], 450, &[(101, 400), (202, 400)]), cut(400));
        assert_eq!(point(&[(101, 400), (202, 400)], 400, &[(101, 400), (202, 400), (301, 400)]), Point::Continues);
    }

    #[test]
    fn a_longer_copy_of_the_same_epoch_is_not_cut_and_a_master_of_an_earlier_one_is_not_followed() {
        assert_eq!(point(&[], 500, &[]), Point::Continues);
        assert_eq!(point(&[(101, 400)], 900, &[(101, 400)]), Point::Continues);
        assert_eq!(point(&[(101, 400)], 900, &[]), Point::IsLater);
        assert_eq!(point(&[(101, 400), (202, 500)], 500, &[(101, 400)]), Point::IsLater);
    }

    #[test]
    fn what_is_not_the_epochs_of_one_log_is_not_taken() {
        let of = |list: &[(u64, u64)]| {
            Epochs::of(list.iter().map(|(number, start)| Epoch { number: *number, start: LogOffset(*start) }).collect())
        };
        assert!(of(&[(101, 5), (101, 5)]).is_none() && of(&[(101, 5), (202, 4)]).is_none() && of(&[(0, 0)]).is_none());
        assert_eq!(of(&[(202, 6), (101, 5)]).unwrap().last(), 202);
        let mut epochs = epochs(&[(101, 5)]);
        assert!(epochs.begin(202, LogOffset(9)) && !epochs.begin(202, LogOffset(10)));
        assert_eq!(epochs.list().last(), Some(&Epoch { number: 202, start: LogOffset(9) }));
    }

    #[test]
    fn a_slave_that_is_behind_forgets_the_epochs_that_it_has_nothing_of() {
        let mut own = epochs(&[(101, 5), (202, 9)]);
        assert!(own.cut(LogOffset(9)).is_empty());
        assert_eq!(own.cut(LogOffset(7)), [Epoch { number: 202, start: LogOffset(9) }]);
        assert!(own.begin(303, LogOffset(7)));
        assert_eq!(own, epochs(&[(101, 5), (303, 7)]));
        assert_eq!(point(&[(101, 5), (202, 9)], 12, &[(101, 5), (303, 7)]), Point::CutAt(LogOffset(7)));
    }
}
