//! A counter that every thread adds to, each to a cell of its own.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Cells of a total. More than cores is waste, fewer is contention.
const CELLS: usize = 16;

#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct CacheLine(AtomicU64);

/// A counter that every core adds to.
#[derive(Debug, Default)]
pub(super) struct Total([CacheLine; CELLS]);

thread_local! {
    static CELL: Cell<usize> = const { Cell::new(usize::MAX) };
}
static NEXT_CELL: AtomicUsize = AtomicUsize::new(0);

impl Total {
    #[inline]
    pub(super) fn add(&self, amount: u64) {
        let cell = CELL.get();
        let cell = if cell < CELLS {
            cell
        } else {
            let next = NEXT_CELL.fetch_add(1, Ordering::Relaxed) % CELLS;
            CELL.set(next);
            next
        };
        self.0[cell].0.fetch_add(amount, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.iter().map(|cell| cell.0.load(Ordering::Relaxed)).sum()
    }
}
