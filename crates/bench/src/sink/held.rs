//! How many pulls the null server holds: on each connection, and on all of them together. Each is a task, of some hundred bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::case::TASKS_MAX;

/// Pulls of one connection: one consumer may make all reads of a run.
const OF_CONNECTION_MAX: usize = TASKS_MAX as usize;

/// Pulls of all connections.
const OF_ALL_MAX: usize = 4 * OF_CONNECTION_MAX;

/// The room for held pulls of one connection, which is part of the room for all.
#[derive(Clone)]
pub struct Room {
    own: Arc<Count>,
    all: Arc<Count>,
}

/// A pull that is held. Leaves its place when it is dropped.
pub struct Held(Room);

struct Count {
    // Relaxed: a count, nothing is published through it.
    held: AtomicUsize,
    max: usize,
}

impl Default for Room {
    fn default() -> Room {
        Room::of(OF_CONNECTION_MAX, OF_ALL_MAX)
    }
}

impl Room {
    /// For so many of a connection, and so many of all.
    pub fn of(of_connection_max: usize, of_all_max: usize) -> Room {
        Room { own: Count::up_to(of_connection_max), all: Count::up_to(of_all_max) }
    }

    /// The room of another connection.
    pub fn another(&self) -> Room {
        Room { own: Count::up_to(self.own.max), all: Arc::clone(&self.all) }
    }

    /// Takes a place; an error says whose limit is reached.
    pub fn take(&self) -> Result<Held, String> {
        let full = |count: &Count, whose: &str| format!("{} pulls of {whose} are held, which is the limit", count.max);
        if !self.own.add() {
            return Err(full(&self.own, "this connection"));
        }
        if !self.all.add() {
            self.own.remove();
            return Err(full(&self.all, "all connections"));
        }
        Ok(Held(self.clone()))
    }

    /// Pulls of all connections that are held now.
    #[cfg(test)]
    pub fn held(&self) -> usize {
        self.all.held.load(Ordering::Relaxed)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.own.remove();
        self.0.all.remove();
    }
}

impl Count {
    fn up_to(max: usize) -> Arc<Count> {
        Arc::new(Count { held: AtomicUsize::new(0), max })
    }

    /// False at the limit.
    fn add(&self) -> bool {
        let one_more = |held| (held < self.max).then_some(held + 1);
        self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }

    fn remove(&self) {
        self.held.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_has_its_own_limit_and_all_have_one_together() {
        let first = Room::of(2, 3);
        let second = first.another();
        let held = [first.take(), first.take()].map(Result::unwrap);
        assert_eq!(first.take().err().unwrap(), "2 pulls of this connection are held, which is the limit");
        let other = second.take().unwrap();
        assert_eq!(second.take().err().unwrap(), "3 pulls of all connections are held, which is the limit");
        // Who was refused has no place.
        assert_eq!(first.held(), 3);
        drop(held);
        drop(other);
        assert_eq!(second.held(), 0);
        assert!(second.take().is_ok());
    }
}
