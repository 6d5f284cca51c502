//! [`WaitList`] and [`Errands`] themselves.

use std::collections::VecDeque;

use super::sync::{AtomicUsize, Mutex, Ordering, fence};

/// What a [`WaitList`] can keep.
pub(crate) trait List {
    /// How many wait.
    fn len(&self) -> usize;
}

impl<T> List for Vec<T> {
    fn len(&self) -> usize {
        self.len()
    }
}

impl<T> List for VecDeque<T> {
    fn len(&self) -> usize {
        self.len()
    }
}

/// Shows that there is a fence between what was published and a look at a [`WaitList`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Published(());

impl Published {
    /// Call it after what came is visible, once for all lists that are looked at then.
    pub(crate) fn now() -> Published {
        // Pairs with the fence in `WaitList::park`.
        fence(Ordering::SeqCst);
        Published(())
    }
}

/// Those who wait for something, with their number beside the lock.
#[derive(Default)]
pub(crate) struct WaitList<L> {
    /// The list's length. Changes under `list`, and is read without it. Relaxed: the fences order it where that matters.
    len: AtomicUsize,
    list: Mutex<L>,
}

impl<L: List> WaitList<L> {
    /// An empty list is given, as a rule.
    pub(crate) fn new(list: L) -> WaitList<L> {
        WaitList { len: AtomicUsize::new(list.len()), list: Mutex::new(list) }
    }

    /// Adds to the list. Whoever does looks afterwards whether what he waits for has come meanwhile, and takes himself off the list if so: if
    /// he is not there any more, somebody wakes him.
    pub(crate) fn park<R>(&self, add: impl FnOnce(&mut L) -> R) -> R {
        let added = self.change(add);
        // Pairs with the fence in `Published::now`: either our second look sees what was published, or who published sees the length.
        fence(Ordering::SeqCst);
        added
    }

    /// Whether somebody may wait. Nobody who parks at the same time is passed over by a `false`: his second look finds what was published.
    pub(crate) fn has_any(&self, _: Published) -> bool {
        self.len() > 0
    }

    /// Changes the list without waiting: whoever is taken out of it is the caller's, nobody else will have him.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut L) -> R) -> R {
        let mut list = self.list.lock();
        let changed = change(&mut list);
        self.len.store(list.len(), Ordering::Relaxed);
        changed
    }

    /// Looks at the list, under its lock.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&L) -> R) -> R {
        look(&self.list.lock())
    }

    /// How many wait: a hint.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }
}

/// What others lay down for one task, which takes it as a whole.
///
/// The task is told by a note, one for all that gathers until it takes them. It looks here after every note, and may look at any time.
pub(crate) struct Errands<T> {
    list: WaitList<Vec<T>>,
}

impl<T> Errands<T> {
    /// Nothing.
    pub(crate) fn new() -> Errands<T> {
        Errands { list: WaitList::new(Vec::new()) }
    }

    /// Lays one down. `note` leaves a note for the task; it is called when there was nothing before.
    pub(crate) fn push(&self, errand: T, note: impl FnOnce()) {
        let was_empty = self.list.change(|list| {
            list.push(errand);
            list.len() == 1
        });
        // After the lock is free: the task that follows the note finds the errand, and does not wait for us.
        if was_empty {
            note();
        }
    }

    /// Puts the rest of what the task took back in front of what has come since. Leaves no note: who does it sees to it that the task comes back.
    pub(crate) fn put_back(&self, rest: impl Iterator<Item = T>) {
        self.list.change(|list| drop(list.splice(..0, rest)));
    }

    /// For the task: takes what is there. `into` comes empty and stays here, so both vectors live on.
    pub(crate) fn take(&self, into: &mut Vec<T>) {
        // What a note stands for is seen here: it was left behind the change of the length.
        if self.list.len() > 0 {
            self.list.change(|list| std::mem::swap(list, into));
        }
    }
}
