//! `memcpy` and `memmove` for the static program.
//!
//! musl copies with `rep movsq`, and starting that costs as much as copying some hundred bytes. A broker copies mostly less: while messages
//! were sent and pulled, 7.0 % of its samples lay there, and 3.4 % in glibc's `memmove`. Here short pieces are loaded whole into registers
//! before anything is stored, so they may overlap; long ones go 64 bytes a step, and very long ones by `rep movsb`.

use std::arch::asm;
use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_storeu_si128};

/// From here on `rep movsb` is not slower.
const VERY_LONG: usize = 2 << 10;
const STEP: usize = 64;

#[cfg(target_env = "musl")]
mod names {
    /// As in C.
    ///
    /// # Safety
    /// `to` is valid for writes of `bytes` bytes and `from` for reads, and they do not overlap.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
        // SAFETY: as this function's.
        unsafe { super::copy_forward(to, from, bytes) };
        to
    }

    /// As in C.
    ///
    /// # Safety
    /// `to` is valid for writes of `bytes` bytes and `from` for reads.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
        // SAFETY: as this function's.
        unsafe { super::copy(to, from, bytes) };
        to
    }

    /// Calls of these are made where code is generated, when nothing seems to use them.
    #[used]
    static KEPT: [unsafe extern "C" fn(*mut u8, *const u8, usize) -> *mut u8; 2] = [memcpy, memmove];
}

/// Four registers.
type Four = [__m128i; 4];

/// # Safety
/// `from` is valid for reads of 64 bytes.
#[inline(always)]
unsafe fn load(from: *const u8) -> Four {
    // SAFETY: as this function's; the loads need no alignment.
    unsafe {
        [
            _mm_loadu_si128(from.cast()),
            _mm_loadu_si128(from.add(16).cast()),
            _mm_loadu_si128(from.add(32).cast()),
            _mm_loadu_si128(from.add(48).cast()),
        ]
    }
}

/// # Safety
/// `to` is valid for writes of 64 bytes.
#[inline(always)]
unsafe fn store(to: *mut u8, four: Four) {
    // SAFETY: as this function's; the stores need no alignment.
    unsafe {
        _mm_storeu_si128(to.cast(), four[0]);
        _mm_storeu_si128(to.add(16).cast(), four[1]);
        _mm_storeu_si128(to.add(32).cast(), four[2]);
        _mm_storeu_si128(to.add(48).cast(), four[3]);
    }
}

/// Copies up to 128 bytes as two pieces, one from the beginning and one up to the end. Both are loaded before either is stored, so the ranges
/// may overlap.
///
/// # Safety
/// `to` is valid for writes of `bytes` bytes and `from` for reads; `bytes` is 128 at most.
#[inline(always)]
unsafe fn copy_short(to: *mut u8, from: *const u8, bytes: usize) {
    macro_rules! ends {
        ($each:ty) => {{
            let last = bytes - size_of::<$each>();
            // SAFETY: both pieces lie within `bytes`, as each branch below has compared.
            unsafe {
                let one = from.cast::<$each>().read_unaligned();
                let two = from.add(last).cast::<$each>().read_unaligned();
                to.cast::<$each>().write_unaligned(one);
                to.add(last).cast::<$each>().write_unaligned(two);
            }
        }};
    }
    if bytes > STEP {
        // SAFETY: 64 bytes lie at the beginning and before the end.
        unsafe {
            let last = bytes - STEP;
            let (one, two) = (load(from), load(from.add(last)));
            store(to, one);
            store(to.add(last), two);
        }
    } else if bytes > 32 {
        ends!([__m128i; 2]);
    } else if bytes >= 16 {
        ends!(__m128i);
    } else if bytes >= 8 {
        ends!(u64);
    } else if bytes >= 4 {
        ends!(u32);
    } else if bytes >= 2 {
        ends!(u16);
    } else if bytes == 1 {
        // SAFETY: the one byte.
        unsafe { to.write(from.read()) };
    }
}

/// Copies from the first byte on: right unless `to` lies within the `bytes` bytes behind `from`.
///
/// # Safety
/// `to` is valid for writes of `bytes` bytes and `from` for reads.
#[inline(always)]
unsafe fn copy_forward(to: *mut u8, from: *const u8, bytes: usize) {
    if bytes <= 2 * STEP {
        // SAFETY: as this function's.
        return unsafe { copy_short(to, from, bytes) };
    }
    if bytes >= VERY_LONG {
        // SAFETY: as this function's; the direction flag is clear, as in all code that is called.
        return unsafe {
            asm!("rep movsb", inout("rcx") bytes => _, inout("rdi") to => _, inout("rsi") from => _, options(nostack, preserves_flags));
        };
    }
    let last = bytes - STEP;
    // SAFETY: `at` ends before `last`, so each step lies within `bytes`. The last bytes are loaded before a step can store over them.
    unsafe {
        let end = load(from.add(last));
        let mut at = 0;
        while at < last {
            let four = load(from.add(at));
            store(to.add(at), four);
            at += STEP;
        }
        store(to.add(last), end);
    }
}

/// Copies what may overlap.
///
/// # Safety
/// `to` is valid for writes of `bytes` bytes and `from` for reads.
#[inline(always)]
unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize) {
    let ahead = (to as usize).wrapping_sub(from as usize);
    if ahead >= bytes || bytes <= 2 * STEP {
        // SAFETY: as this function's; `to` does not lie within the bytes behind `from`, or they are few.
        return unsafe { copy_forward(to, from, bytes) };
    }
    // SAFETY: `at` is more than 64 before each step, which lies within `bytes` therefore. The first bytes are loaded before a step can
    // store over them.
    unsafe {
        let begin = load(from);
        let mut at = bytes;
        while at > STEP {
            at -= STEP;
            let four = load(from.add(at));
            store(to.add(at), four);
        }
        store(to, begin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths() -> impl Iterator<Item = usize> {
        (0..=300).chain([511, 1000, 1023, 1024, 1025, 2047, 2048, 2049, 4096, 5000, 9001])
    }

    fn bytes(count: usize) -> Vec<u8> {
        (0..count).map(|at| (at * 7 + at / 251) as u8).collect()
    }

    #[test]
    fn all_lengths_are_copied_and_nothing_beside_them() {
        for length in lengths() {
            let from = bytes(length + 3);
            let mut to = vec![0xEE; length + 40];
            // SAFETY: `length` bytes lie behind each of the two positions.
            unsafe { copy_forward(to[17..].as_mut_ptr(), from[3..].as_ptr(), length) };
            assert_eq!(to[17..17 + length], from[3..], "{length}");
            assert!(to[..17].iter().chain(&to[17 + length..]).all(|byte| *byte == 0xEE), "{length}");
        }
    }

    #[test]
    fn pieces_that_overlap_in_either_direction_arrive_whole() {
        for length in lengths() {
            for apart in [1, 2, 7, 15, 16, 31, 63, 64, 65, 100, 127, 129, 500, 2047] {
                for (from, to) in [(0, apart), (apart, 0)] {
                    let mut moved = bytes(length + apart);
                    let mut wanted = moved.clone();
                    wanted.copy_within(from..from + length, to);
                    let all = moved.as_mut_ptr();
                    // SAFETY: both pieces lie within it.
                    unsafe { copy(all.add(to), all.add(from).cast_const(), length) };
                    assert_eq!(moved, wanted, "{length} bytes from {from} to {to}");
                }
            }
        }
    }
}
