//! A place for each queue of a topic, filled when the queue is first used.
//!
//! A look is a load and no lock. A topic may have ten thousand queues that are all used for the first time within a second, so a new one
//! does not copy the list of the others: that was seconds of processor time, during which no send was answered. Ten thousand topics may have a
//! queue or two each, so the first places are at hand: each step to another piece of memory, that no other topic shares, is a wait.

use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

/// Places without a list.
const FIRST: usize = 4;

/// Beyond this, a list grows by so many places and not to twice its length.
const STEP_MAX: usize = 1024;

pub(crate) struct PerQueue<T> {
    /// Of the first queue ids.
    first: [OnceLock<Arc<T>>; FIRST],
    /// By queue id less [`FIRST`]. A list that was replaced by a longer one gets nothing more.
    list: ArcSwap<Vec<OnceLock<Arc<T>>>>,
    /// Held by whoever fills a place of the list.
    filling: Mutex<()>,
}

impl<T> Default for PerQueue<T> {
    fn default() -> PerQueue<T> {
        PerQueue { first: Default::default(), list: ArcSwap::default(), filling: Mutex::default() }
    }
}

impl<T> PerQueue<T> {
    /// Shows what is there, if anything.
    pub(crate) fn with<R>(&self, id: usize, show: impl FnOnce(&Arc<T>) -> R) -> Option<R> {
        match self.first.get(id) {
            Some(place) => place.get().map(show),
            None => self.list.load().get(id - FIRST)?.get().map(show),
        }
    }

    /// What is there, if anything.
    pub(crate) fn get(&self, id: usize) -> Option<Arc<T>> {
        self.with(id, Arc::clone)
    }

    /// What is there, or is made now. `make` refuses ids beyond all bounds, before there is a place for each below them.
    pub(crate) fn get_or_make<E>(&self, id: usize, make: impl FnOnce() -> Result<T, E>) -> Result<Arc<T>, E> {
        if let Some(found) = self.get(id) {
            return Ok(found);
        }
        let _filling = self.filling.lock();
        if let Some(found) = self.get(id) {
            return Ok(found);
        }
        let made = Arc::new(make()?);
        // Where there is a place it is empty: only who holds the lock fills one.
        let Some(at) = id.checked_sub(FIRST) else {
            return Ok(Arc::clone(self.first[id].get_or_init(|| made)));
        };
        let list = self.list.load();
        if let Some(place) = list.get(at) {
            return Ok(Arc::clone(place.get_or_init(|| made)));
        }
        let places = (at + 1).max(list.len() + list.len().min(STEP_MAX));
        let mut longer = Vec::with_capacity(places);
        longer.extend(list.iter().cloned());
        longer.resize_with(places, OnceLock::new);
        let made = Arc::clone(longer[at].get_or_init(|| made));
        self.list.store(Arc::new(longer));
        Ok(made)
    }

    /// Shows all that is there.
    pub(crate) fn each(&self, mut show: impl FnMut(&T)) {
        let list = self.list.load();
        self.first.iter().chain(list.iter()).filter_map(OnceLock::get).for_each(|found| show(found));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_thousand_places_are_filled_in_any_order_with_few_copies_of_the_list() {
        let places = PerQueue::default();
        let mut lists = Vec::new();
        for number in 0..10_000_usize {
            // Every id once: 7,919 and 10,000 have no common divisor.
            let id = number * 7_919 % 10_000;
            assert_eq!(places.get(id), None);
            assert_eq!(*places.get_or_make(id, || Ok::<_, ()>(id)).unwrap(), id);
            let list = places.list.load_full();
            if lists.last().is_none_or(|last| !Arc::ptr_eq(last, &list)) {
                lists.push(list);
            }
        }
        assert!(lists.len() < 40, "{}", lists.len());
        let mut sum = 0;
        places.each(|id| sum += id);
        assert_eq!(sum, 10_000 * 9_999 / 2);
        assert!((10_000..10_000 + STEP_MAX).contains(&lists.last().unwrap().len()));
        for id in 0..10_000 {
            assert_eq!(*places.get_or_make(id, || Err(())).unwrap(), id);
        }
        assert_eq!(places.get(10_000), None);
        assert_eq!(places.get_or_make(10_000, || Err("refused")), Err("refused"));
    }

    #[test]
    fn in_order_a_list_is_never_much_longer_than_what_is_in_it() {
        let places = PerQueue::default();
        for id in 0..5_000_usize {
            places.get_or_make(id, || Ok::<_, ()>(id)).unwrap();
            assert!(places.list.load().len() <= (2 * id + 1).max(id + STEP_MAX).max(1), "{id}");
        }
        assert!(places.list.load().len() < 5_000 + STEP_MAX);
    }
}
