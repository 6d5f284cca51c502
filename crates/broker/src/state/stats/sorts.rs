//! What sort of messages a topic was sent, and how large they were: RocketMQ's `message_type`, and its classes of sizes.
//!
//! A sort that a topic was never sent has no place: most topics have one.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a message is, as RocketMQ's metrics tell messages apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageType {
    /// Nothing of the below.
    Normal,
    /// It belongs to an order.
    Fifo,
    /// It waits for its time.
    Delay,
    /// It is, or was, a half message.
    Transaction,
}

impl MessageType {
    /// All of them: there are no other values of the label.
    pub(crate) const ALL: [MessageType; 4] =
        [MessageType::Normal, MessageType::Fifo, MessageType::Delay, MessageType::Transaction];

    /// As it stands in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            MessageType::Normal => "normal",
            MessageType::Fifo => "fifo",
            MessageType::Delay => "delay",
            MessageType::Transaction => "transaction",
        }
    }
}

/// Upper bounds of RocketMQ's classes of sizes, in bytes, each included. What is larger has a class of its own at the end.
pub(crate) const SIZES: [u64; 6] = [1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20];
const CLASSES: usize = SIZES.len() + 1;

/// Messages of one sort. Relaxed, as all figures.
#[derive(Debug, Default)]
struct Sort {
    by_size: [AtomicU64; CLASSES],
    bytes: AtomicU64,
}

/// Messages of each sort, made when the first one comes.
#[derive(Debug, Default)]
pub(super) struct Sorts([OnceLock<Box<Sort>>; MessageType::ALL.len()]);

/// What was counted of one sort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SortCounted {
    pub(crate) message_type: MessageType,
    /// Messages by class of size.
    pub(crate) by_size: [u64; CLASSES],
    pub(crate) bytes: u64,
}

impl SortCounted {
    /// Messages of all sizes.
    pub(crate) fn messages(&self) -> u64 {
        self.by_size.iter().sum()
    }
}

impl Sorts {
    /// So many messages, which have so many bytes together: each counts with its share.
    #[inline]
    pub(super) fn add(&self, message_type: MessageType, messages: u64, bytes: u64) {
        let sort = self.0[message_type as usize].get_or_init(Box::default);
        let each = bytes / messages.max(1);
        let class = SIZES.iter().take_while(|bound| **bound < each).count();
        sort.by_size[class].fetch_add(messages, Ordering::Relaxed);
        sort.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// What was counted of each sort that came.
    pub(super) fn counted(&self) -> impl Iterator<Item = SortCounted> + '_ {
        MessageType::ALL.into_iter().zip(&self.0).filter_map(|(message_type, sort)| {
            let sort = sort.get()?;
            let by_size = std::array::from_fn(|class| sort.by_size[class].load(Ordering::Relaxed));
            Some(SortCounted { message_type, by_size, bytes: sort.bytes.load(Ordering::Relaxed) })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_counted_in_the_first_class_that_holds_it_and_one_of_a_batch_with_its_share() {
        let sorts = Sorts::default();
        for bytes in [1, 1024, 1025, 4 << 20, (4 << 20) + 1] {
            sorts.add(MessageType::Normal, 1, bytes);
        }
        sorts.add(MessageType::Delay, 10, 50_000);
        let counted: Vec<_> = sorts.counted().collect();
        let bytes = 1 + 1024 + 1025 + (8 << 20) + 1;
        assert_eq!(
            counted,
            [
                SortCounted { message_type: MessageType::Normal, by_size: [2, 1, 0, 0, 0, 1, 1], bytes },
                SortCounted { message_type: MessageType::Delay, by_size: [0, 0, 10, 0, 0, 0, 0], bytes: 50_000 },
            ]
        );
        assert_eq!((counted[0].messages(), counted[1].messages()), (5, 10));
    }

    #[test]
    fn nothing_is_counted_of_nothing() {
        let sorts = Sorts::default();
        assert_eq!(sorts.counted().count(), 0);
        sorts.add(MessageType::Fifo, 0, 0);
        assert_eq!(sorts.counted().next().unwrap().messages(), 0);
    }
}
