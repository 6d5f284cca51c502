//! What is played under loom. Each function is one run; nothing in it depends on time or chance.

use std::collections::VecDeque;

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::protocol::{Errands, Published, WaitList};

/// A queue with what waits for its next message. Loads and stores of its end order nothing: what is proved is the protocol's doing.
struct Queue {
    end: AtomicUsize,
    parked: WaitList<Vec<usize>>,
    /// Pulls that an append has woken, as numbers that `parked` had.
    woken: Mutex<Vec<usize>>,
}

impl Queue {
    fn new() -> Arc<Queue> {
        Arc::new(Queue { end: AtomicUsize::new(0), parked: WaitList::new(Vec::new()), woken: Mutex::new(Vec::new()) })
    }

    fn append(&self) {
        self.end.fetch_add(1, Ordering::Relaxed);
        let published = Published::now();
        if self.parked.has_any(published) {
            let taken = self.parked.change(std::mem::take);
            self.woken.lock().unwrap().extend(taken);
        }
    }

    fn is_visible(&self) -> bool {
        self.end.load(Ordering::Relaxed) > 0
    }

    fn take_back(&self, pull: usize) -> bool {
        self.parked.change(|list| list.extract_if(.., |parked| *parked == pull).count()) > 0
    }

    /// As a connection's task does it. True: it keeps the pull, to answer it.
    fn pull(&self, pull: usize) -> bool {
        if self.is_visible() {
            return true;
        }
        self.parked.park(|list| list.push(pull));
        self.is_visible() && self.take_back(pull)
    }
}

pub(super) fn an_append_meets_a_pull_that_parks() {
    let queue = Queue::new();
    let appending = {
        let queue = Arc::clone(&queue);
        thread::spawn(move || queue.append())
    };
    let kept = queue.pull(7);
    appending.join().unwrap();

    assert_eq!(queue.parked.look(Vec::len), 0, "the pull is left parked");
    let woken = queue.woken.lock().unwrap();
    assert_eq!((kept as usize) + woken.len(), 1, "kept: {kept}, woken: {woken:?}");
}

pub(super) fn an_append_and_the_end_of_its_time_meet_a_parked_pull() {
    appends_and_the_end_of_its_time_meet_a_parked_pull(1);
}

pub(super) fn two_appends_and_the_end_of_its_time_meet_a_parked_pull() {
    appends_and_the_end_of_its_time_meet_a_parked_pull(2);
}

fn appends_and_the_end_of_its_time_meet_a_parked_pull(appends: usize) {
    let queue = Queue::new();
    let appending: Vec<_> = (0..appends)
        .map(|_| {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.append())
        })
        .collect();
    let expiring = {
        let queue = Arc::clone(&queue);
        thread::spawn(move || queue.take_back(7))
    };
    let kept = queue.pull(7);
    appending.into_iter().for_each(|append| append.join().unwrap());
    let expired = expiring.join().unwrap();

    assert_eq!(queue.parked.look(Vec::len), 0, "the pull is left parked");
    let woken = queue.woken.lock().unwrap();
    let times = kept as usize + expired as usize + woken.len();
    assert_eq!(times, 1, "kept: {kept}, its time was over: {expired}, woken: {woken:?}");
}

/// Pops wait in a waiters, which each queue of the topic knows: the length of two lists is looked at.
pub(super) fn an_append_meets_a_pop_that_parks() {
    type Waiters = WaitList<VecDeque<usize>>;
    let end = Arc::new(AtomicUsize::new(0));
    let lists: Arc<WaitList<Vec<Arc<Waiters>>>> = Arc::new(WaitList::new(Vec::new()));
    let waiters: Arc<Waiters> = Arc::new(WaitList::new(VecDeque::new()));
    let appending = {
        let (end, lists) = (Arc::clone(&end), Arc::clone(&lists));
        thread::spawn(move || {
            end.store(1, Ordering::Relaxed);
            let published = Published::now();
            if !lists.has_any(published) {
                return 0;
            }
            let known = lists.look(Vec::clone);
            let waiting = known.iter().filter(|waiters| waiters.has_any(published));
            waiting.filter_map(|waiters| waiters.change(VecDeque::pop_front)).count()
        })
    };
    lists.change(|lists| lists.push(Arc::clone(&waiters)));
    waiters.park(|waiters| waiters.push_back(7));
    let taken = end.load(Ordering::Relaxed) > 0 && waiters.change(VecDeque::pop_front).is_some();
    let woken = appending.join().unwrap();

    assert_eq!(waiters.look(VecDeque::len), 0, "the pop is left parked");
    assert_eq!(woken + taken as usize, 1, "taken back: {taken}, woken: {woken}");
}

/// A connection's inbox, for its errands: it holds one note at most, and has no waiters for another until the task takes it.
struct Task {
    errands: Errands<usize>,
    has_note: Mutex<bool>,
    noted: Condvar,
}

impl Task {
    fn new() -> Arc<Task> {
        Arc::new(Task { errands: Errands::new(), has_note: Mutex::new(false), noted: Condvar::new() })
    }

    fn note(&self) {
        *self.has_note.lock().unwrap() = true;
        self.noted.notify_one();
    }

    /// Sleeps until there is a note: without one for ever, which loom takes for a failure.
    fn take_when_noted(&self, into: &mut Vec<usize>) {
        let mut has_note = self.has_note.lock().unwrap();
        while !*has_note {
            has_note = self.noted.wait(has_note).unwrap();
        }
        *has_note = false;
        drop(has_note);
        self.errands.take(into);
    }
}

pub(super) fn two_threads_lay_errands_down_for_a_task() {
    let task = Task::new();
    let pushing: Vec<_> = [[1, 2], [11, 12]]
        .into_iter()
        .map(|errands| {
            let task = Arc::clone(&task);
            thread::spawn(move || errands.into_iter().for_each(|errand| task.errands.push(errand, || task.note())))
        })
        .collect();
    let (mut done, mut taken) = (Vec::new(), Vec::new());
    // Also without a note, as after each burst of requests.
    task.errands.take(&mut taken);
    done.append(&mut taken);
    while done.len() < 4 {
        task.take_when_noted(&mut taken);
        done.append(&mut taken);
    }
    pushing.into_iter().for_each(|pushing| pushing.join().unwrap());

    for mine in [[1, 2], [11, 12]] {
        let in_order: Vec<usize> = done.iter().copied().filter(|errand| mine.contains(errand)).collect();
        assert_eq!(in_order, mine, "{done:?}");
    }
    task.errands.take(&mut taken);
    assert_eq!((done.len(), taken.len()), (4, 0));
}

pub(super) fn a_task_puts_errands_back() {
    let task = Task::new();
    let pushing = {
        let task = Arc::clone(&task);
        thread::spawn(move || [1, 2, 3].into_iter().for_each(|errand| task.errands.push(errand, || task.note())))
    };
    let (mut done, mut taken) = (Vec::new(), Vec::new());
    // One at a time: its answer leaves no waiters for more.
    while done.len() < 3 {
        task.take_when_noted(&mut taken);
        let mut waiting = taken.drain(..);
        done.extend(waiting.next());
        if !waiting.as_slice().is_empty() {
            task.errands.put_back(waiting);
            task.note();
        }
    }
    pushing.join().unwrap();
    assert_eq!(done, [1, 2, 3]);
}
