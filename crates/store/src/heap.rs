//! What the allocator keeps of memory that was freed.

use libmimalloc_sys::{mi_option_set, mi_option_t};

/// `mi_option_purge_delay` of mimalloc's header, which its crate does not name.
const PURGE_DELAY: mi_option_t = 15;

/// Has mimalloc give pages back to the kernel as soon as they are free, instead of a second later: under load that second was a third of the
/// heap, which nobody could use for anything else. To be called before a process has other threads; does nothing later, or under another
/// allocator. Says whether it was done.
pub fn keep_no_freed_pages() -> bool {
    let is_alone = std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() == 1);
    if is_alone {
        // SAFETY: the option exists (the test `heap` sees its effect), any number is a value of it, and nobody reads it meanwhile, as the
        // process has no other thread.
        unsafe { mi_option_set(PURGE_DELAY, 0) };
    }
    is_alone
}
