//! An allocator that counts. A test that counts is alone in its binary, and puts it in the place of
//! the usual one: `#[global_allocator] static ALLOCATOR: Counting = Counting;`.
#![allow(unsafe_code, reason = "an allocator is unsafe to write, and this one counts only")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

/// Which threads are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// The test's own, which play a client.
    Client,
    /// The runtime's: connections, and the broker's tasks.
    Runtime,
    /// All that belong to no other kind: the store's.
    Other,
}

// Relaxed: read when nothing else runs, or as a lower limit.
static ALLOCATIONS: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
static BYTES: AtomicI64 = AtomicI64::new(0);
static PEAK: AtomicI64 = AtomicI64::new(0);

thread_local! {
    static KIND: Cell<Threads> = const { Cell::new(Threads::Other) };
    static BY_THIS_THREAD: Cell<u64> = const { Cell::new(0) };
}

/// Counts this thread with others from now on.
pub fn join(threads: Threads) {
    KIND.set(threads);
}

/// How often this thread has allocated.
pub fn by_this_thread() -> u64 {
    BY_THIS_THREAD.get()
}

/// How often threads of a kind have allocated.
pub fn by(threads: Threads) -> u64 {
    ALLOCATIONS[threads as usize].load(Relaxed)
}

/// How often all threads have allocated.
pub fn by_all() -> u64 {
    ALLOCATIONS.iter().map(|count| count.load(Relaxed)).sum()
}

/// Bytes that are allocated now.
pub fn bytes() -> i64 {
    BYTES.load(Relaxed)
}

/// The most bytes that were allocated at a time since [`forget_peak`].
pub fn peak_bytes() -> i64 {
    PEAK.load(Relaxed)
}

/// Lets the peak begin at what is allocated now, and says it.
pub fn forget_peak() -> i64 {
    let now = bytes();
    PEAK.store(now, Relaxed);
    now
}

fn count() {
    // A thread that ends may allocate when its own variables are gone.
    let _ = BY_THIS_THREAD.try_with(|count| count.set(count.get() + 1));
    let threads = KIND.try_with(Cell::get).unwrap_or(Threads::Other);
    ALLOCATIONS[threads as usize].fetch_add(1, Relaxed);
}

fn add(bytes: i64) {
    let now = BYTES.fetch_add(bytes, Relaxed) + bytes;
    PEAK.fetch_max(now, Relaxed);
}

/// The system's allocator, with what it gives counted.
#[derive(Debug)]
pub struct Counting;

// SAFETY: passes everything on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        add(layout.size() as i64);
        // SAFETY: the caller's promises are ours.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        add(-(layout.size() as i64));
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        add(size as i64 - layout.size() as i64);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
