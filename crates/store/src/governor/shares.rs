//! One number, and what each consumer of memory gets of it.

use std::time::Duration;

const MIB: u64 = 1 << 20;

/// The least that a broker can be told to stay within, in bytes.
pub const MEMORY_LIMIT_MIN: u64 = 64 * MIB;
/// Pages that one processor is to give back in a pass, for each unit of weight: that of the known `cache_reclaim_weight`.
const PAGES_PER_WEIGHT: u64 = 32;
const PAGE: u64 = 4096;

/// How a memory limit is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GovernorOptions {
    /// What everything below adds up to, in bytes.
    pub limit: u64,
    /// Between two passes, unless somebody waits for one.
    pub period: Duration,
    /// 32 pages for each processor and unit of weight go in one pass, at least.
    pub weight: u32,
    /// What each gets.
    pub shares: Shares,
}

/// What the limit is made of, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// The program, its heap, and what the kernel keeps for its sockets and files.
    pub program: u64,
    /// Large requests and replies on their way.
    pub requests: u64,
    /// Records that wait to be written to the log, where there is a write pool.
    pub pool: u64,
    /// Pages of the log: those that consumers find in memory, those that wait for the device, and those made ready ahead.
    pub log: u64,
    /// Of these, those that consumers find in memory.
    pub hot: u64,
    /// Of these, those made ready ahead of the log's end, at most.
    pub ahead: u64,
    /// Written bytes of the log at which they go to the device early.
    pub dirty: u64,
    /// Pages of the log that were read from the device. Readers' copies of messages may hold half as much besides.
    pub cold: u64,
    /// Pages of consume queues, the key index and timer messages.
    pub files: u64,
}

impl Shares {
    /// Shares out `limit` (bytes, at least [`MEMORY_LIMIT_MIN`]), of which requests get `requests_max` at most.
    pub fn of(limit: u64, requests_max: u64) -> Shares {
        let limit = limit.max(MEMORY_LIMIT_MIN);
        let program = (limit / 4).clamp(38 * MIB, 1024 * MIB);
        let rest = limit - program;
        let requests = (rest / 6).min(requests_max);
        // Half of it once more is for what readers have copied and not written to their connections.
        let cold = (rest / 8).clamp(4 * MIB, 1024 * MIB);
        let files = (rest / 8).clamp(4 * MIB, 1024 * MIB);
        let log = rest - requests - cold - cold / 2 - files;
        let moving = (log / 2).min(512 * MIB);
        let ahead = (moving / 4).clamp(MIB, 64 * MIB);
        let dirty = (moving / 4).clamp(MIB, 64 * MIB);
        Shares { program, requests, pool: 0, log, hot: log - moving, ahead, dirty, cold, files }
    }

    /// The same with a write pool that is to have `wanted` bytes. It gets what pages made ready ahead have without one, at most: there are none
    /// with it.
    pub fn with_pool(self, wanted: u64) -> Shares {
        let pool = wanted.min(self.ahead);
        Shares { pool, log: self.log - pool, ..self }
    }
}

/// Bytes that one pass may give back: as many as the weight says, and never fewer than came since the pass before, or it would never end.
pub(crate) fn pass_bytes(weight: u32, processors: usize, came: u64) -> u64 {
    let aim = PAGES_PER_WEIGHT * PAGE * u64::from(weight) * processors.max(1) as u64;
    aim.max(came.saturating_mul(2))
}

/// How much less than its share the hot window is to be, if it was `squeezed` so far and so much is `occupied` of `limit`: all that is too much,
/// as far as a quarter of the window stays; and when there is room again, a little less each time. In bytes.
pub(crate) fn squeezed(squeezed: u64, hot: u64, occupied: u64, limit: u64) -> u64 {
    if occupied > limit {
        return squeezed.saturating_add(occupied - limit).min(hot - hot / 4);
    }
    let free = (limit - occupied).saturating_sub(limit / 16);
    squeezed.saturating_sub(free / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_of_any_limit_add_up_to_it_and_leave_room_to_work() {
        for mib in [64, 100, 128, 256, 512, 1024, 4096, 16 << 10, 1 << 20] {
            let limit = mib * MIB;
            let plain = Shares::of(limit, 256 * MIB);
            for shares in [plain, plain.with_pool(20 * MIB), plain.with_pool(1 << 40)] {
                let Shares { program, requests, pool, log, hot, ahead, dirty, cold, files } = shares;
                assert_eq!(program + requests + pool + log + cold + cold / 2 + files, limit, "{mib} MiB");
                // What moves has room for what is made ready, what waits for its flush, and what comes while that lasts.
                assert!(log - hot >= ahead + 2 * dirty, "{mib} MiB: {shares:?}");
                assert!(hot >= 4 * MIB && ahead >= MIB && dirty >= MIB, "{mib} MiB: {shares:?}");
            }
            assert!(plain.pool == 0 && plain.with_pool(20 * MIB).pool >= MIB);
        }
        assert_eq!(Shares::of(0, 256 * MIB), Shares::of(MEMORY_LIMIT_MIN, 256 * MIB));
    }

    #[test]
    fn most_of_a_large_limit_is_what_consumers_find_in_memory() {
        let limit = 16 * 1024 * MIB;
        assert!(Shares::of(limit, 256 * MIB).hot > limit * 6 / 10);
    }

    #[test]
    fn the_hot_window_gives_way_to_what_is_too_much_and_comes_back_without_going_over() {
        let (hot, limit) = (40 * MIB, 128 * MIB);
        assert_eq!(squeezed(0, hot, limit, limit), 0);
        assert_eq!(squeezed(0, hot, limit + 5 * MIB, limit), 5 * MIB);
        assert_eq!(squeezed(5 * MIB, hot, limit + 5 * MIB, limit), 10 * MIB);
        assert_eq!(squeezed(0, hot, 2 * limit, limit), 30 * MIB, "a quarter stays");
        // Just below the limit nothing changes, so that it does not swing.
        assert_eq!(squeezed(10 * MIB, hot, limit - MIB, limit), 10 * MIB);
        let (mut now, mut looks) = (30 * MIB, 0);
        while now > 0 {
            // What the window gets back is occupied again.
            now = squeezed(now, hot, 90 * MIB - now, limit);
            looks += 1;
            assert!(looks < 100);
        }
        assert!(looks > 1);
    }

    #[test]
    fn a_pass_follows_weight_and_processors_and_never_falls_behind() {
        assert_eq!(pass_bytes(1, 1, 0), 32 * 4096);
        assert_eq!(pass_bytes(64, 2, 0), 16 * MIB);
        assert_eq!(pass_bytes(64, 2, 100 * MIB), 200 * MIB);
        assert_eq!(pass_bytes(1, 0, 0), 32 * 4096);
    }
}
