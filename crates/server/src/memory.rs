//! How much memory the process may occupy, who says so, and what each part of it gets.

use std::fmt;
use std::time::Duration;

use anyhow::bail;
use config::Settings;
use store::{GovernorOptions, MEMORY_LIMIT_MIN, PoolOptions, Shares};
use tracing::{info, warn};

use crate::machine;

/// Of a cgroup's limit, in percent: the rest is for what the kernel charges beside our pages, and for whoever else lives in it.
const CGROUP_PERCENT: u64 = 75;
/// Of a machine that nobody limits.
const MACHINE_PERCENT: u64 = 50;

/// A buffer of the write pool, where there is memory for it. Apache's are of a log file's size, a GiB.
const POOL_BUFFER_BYTES: u64 = 4 << 20;
/// The least that one is worth.
const POOL_BUFFER_BYTES_MIN: u64 = 64 << 10;

/// What was found.
#[derive(Clone, Debug)]
pub struct Memory {
    /// In bytes.
    pub limit: u64,
    from: From,
    /// What each part gets.
    pub shares: Shares,
    /// The write pool, if there is to be one.
    pub pool: Option<PoolOptions>,
    /// What large requests and replies may hold, in bytes.
    pub request_bytes_max: usize,
    /// Those whose rows clients make; none without a broker.
    tables: Vec<Table>,
    /// Limits that nobody set and that are less here than elsewhere.
    lowered: Vec<(&'static str, u64)>,
    is_kept: bool,
    period: Duration,
    weight: u32,
}

/// A table in the heap that grows with what clients begin and do not end. The pages of the log's hot window give way to what the heap has, as
/// far as a quarter of them stays, so all of these tables together are to have less than three quarters of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Table {
    /// The setting that bounds it.
    key: &'static str,
    row_bytes: u64,
    /// What it may have at most, and what there is memory for, in rows.
    rows: u64,
    rows_within: u64,
    /// Nobody said how many, and the usual default is more.
    is_lowered: bool,
}

impl Table {
    fn all(settings: &Settings, hot: u64) -> anyhow::Result<Vec<Table>> {
        if !settings.role().has_broker() {
            return Ok(Vec::new());
        }
        let broker = settings.broker()?;
        let table = |key, row_bytes, share, set: usize| {
            let (set, rows_within) = (set as u64, share / row_bytes);
            let is_lowered = settings.given(key).is_none() && set > rows_within;
            Table { key, row_bytes, rows: if is_lowered { rows_within } else { set }, rows_within, is_lowered }
        };
        Ok(vec![
            table("popLeasesMax", 300, hot / 4, broker.pop_leases_max),
            table("parkedPullsMax", 800, hot / 4, broker.parked_pulls_max),
            table("openHalfMessagesMax", 100, hot / 8, broker.open_half_messages_max),
        ])
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum From {
    Setting,
    Cgroup(u64),
    Machine(u64),
}

impl fmt::Display for From {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            From::Setting => f.write_str("memoryLimit"),
            From::Cgroup(limit) => write!(f, "{CGROUP_PERCENT} % of the memory cgroup's {limit} bytes"),
            From::Machine(bytes) => write!(f, "{MACHINE_PERCENT} % of the machine's {bytes} bytes"),
        }
    }
}

impl Memory {
    /// From the settings, or else from what the machine says.
    pub fn of(settings: &Settings, machine: machine::Memory) -> anyhow::Result<Memory> {
        let asked = settings.memory()?;
        if (1..MEMORY_LIMIT_MIN).contains(&asked.memory_limit) {
            bail!(
                "memoryLimit={} ({}) is below {MEMORY_LIMIT_MIN} bytes, which a broker needs",
                asked.memory_limit,
                settings.origin("memoryLimit")
            );
        }
        let (limit, from) = match (asked.memory_limit, machine) {
            (0, machine::Memory::Cgroup(bytes)) => (bytes / 100 * CGROUP_PERCENT, From::Cgroup(bytes)),
            (0, machine::Memory::Machine(bytes)) => (bytes / 100 * MACHINE_PERCENT, From::Machine(bytes)),
            (limit, _) => (limit, From::Setting),
        };
        let asked_requests = settings.net()?.request_bytes_max;
        let mut shares = Shares::of(limit, asked_requests as u64);
        let store = settings.store()?;
        let pool = store.transient_store_pool_enable.then(|| {
            let buffers = store.transient_store_pool_size.max(1) as u64;
            shares = shares.with_pool(buffers.saturating_mul(POOL_BUFFER_BYTES));
            pool_of(shares.pool, buffers)
        });
        let request_bytes_max = match settings.given("requestBytesMax") {
            Some(_) => asked_requests,
            None => usize::try_from(shares.requests)?.min(asked_requests),
        };
        let tables = Table::all(settings, shares.hot)?;
        let mut lowered: Vec<_> =
            tables.iter().filter(|table| table.is_lowered).map(|table| (table.key, table.rows)).collect();
        if request_bytes_max < asked_requests {
            lowered.push(("requestBytesMax", request_bytes_max as u64));
        }
        Ok(Memory {
            limit: limit.max(MEMORY_LIMIT_MIN),
            from,
            shares,
            pool,
            request_bytes_max,
            tables,
            lowered,
            is_kept: asked.cache_reclaim_enable,
            period: Duration::from_millis(asked.cache_reclaim_millis),
            weight: asked.cache_reclaim_weight,
        })
    }

    /// For the store; none if its files are the kernel's to keep.
    pub fn governor(&self) -> Option<GovernorOptions> {
        let Memory { limit, period, weight, shares, .. } = *self;
        self.is_kept.then_some(GovernorOptions { limit, period, weight, shares })
    }

    /// Has the settings say what is in force where nobody set it and there is less memory than the usual default is for.
    pub fn lower_defaults(&self, settings: &mut Settings) {
        for (key, value) in &self.lowered {
            settings.lower_default(key, *value);
        }
    }

    /// Says what was found, and what does not fit together.
    pub fn tell(&self) {
        let Shares { log, hot, cold, files, .. } = self.shares;
        let (limit, from, requests) = (self.limit, self.from.to_string(), self.request_bytes_max);
        info!(limit, from, requests, log, hot, cold, files, kept = self.is_kept, "memory limit in bytes");
        for Table { key, rows, rows_within, .. } in &self.tables {
            info!(key, rows, "rows that a table may have");
            if rows > rows_within {
                warn!(key, rows, rows_within, "these are more rows than memoryLimit has room for");
            }
        }
        if let Some(PoolOptions { buffers, buffer_bytes }) = self.pool {
            info!(buffers, buffer_bytes, "write pool (transientStorePoolEnable)");
        }
        if let From::Cgroup(bytes) | From::Machine(bytes) = self.from
            && bytes < limit
        {
            warn!(bytes, limit, "there is less memory than a broker needs");
        }
        if requests as u64 > self.shares.requests {
            warn!(requests, share = self.shares.requests, "requestBytesMax is more than memoryLimit has for it");
        }
    }
}

/// So many buffers as fit into `share` (bytes), `wanted` at most, none of them too small.
fn pool_of(share: u64, wanted: u64) -> PoolOptions {
    let buffers = wanted.min(share / POOL_BUFFER_BYTES_MIN).max(1);
    let buffer_bytes = (share / buffers).min(POOL_BUFFER_BYTES);
    PoolOptions { buffers: buffers as usize, buffer_bytes: buffer_bytes as usize }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::{Machine, Role, Sources};

    fn memory(set: &[(&str, &str)], machine: machine::Memory) -> anyhow::Result<Memory> {
        let mut sources = Sources::new(Role::Server, Machine::read());
        for (key, value) in set {
            sources.command_line.push(((*key).to_owned(), (*value).to_owned(), "--set".to_owned()));
        }
        Memory::of(&Settings::load(sources)?, machine)
    }

    const MACHINE: machine::Memory = machine::Memory::Machine(16 << 30);

    #[test]
    fn what_somebody_says_counts_and_else_the_cage_and_else_the_machine() {
        let said = memory(&[("memoryLimit", "128M")], MACHINE).unwrap();
        assert_eq!((said.limit, said.from), (128 << 20, From::Setting));
        let caged = memory(&[], machine::Memory::Cgroup(400 << 20)).unwrap();
        assert_eq!(
            (caged.limit, caged.shares),
            ((400 << 20) / 100 * 75, Shares::of((400 << 20) / 100 * 75, 256 << 20))
        );
        let free = memory(&[], MACHINE).unwrap();
        assert_eq!(free.limit, (16 << 30) / 100 * 50);
        assert!(free.from.to_string().contains("machine"), "{}", free.from);
    }

    #[test]
    fn a_limit_that_no_broker_fits_into_is_refused_with_its_origin() {
        let said = memory(&[("memoryLimit", "63M")], MACHINE).unwrap_err().to_string();
        assert!(said.contains("memoryLimit=") && said.contains("--set") && said.contains("67108864"), "{said}");
        assert!(memory(&[("memoryLimit", "64M")], MACHINE).is_ok());
    }

    #[test]
    fn requests_get_what_the_limit_leaves_them_unless_somebody_says_more() {
        let small = memory(&[("memoryLimit", "128M")], MACHINE).unwrap();
        assert_eq!(small.request_bytes_max as u64, small.shares.requests);
        let said = memory(&[("memoryLimit", "128M"), ("requestBytesMax", "100M")], MACHINE).unwrap();
        assert_eq!(said.request_bytes_max, 100 << 20);
        assert_eq!(memory(&[], MACHINE).unwrap().request_bytes_max, 256 << 20);
    }

    #[test]
    fn tables_are_as_long_as_the_hot_window_can_give_way_to_unless_somebody_says_more() {
        let rows = |memory: &Memory| memory.tables.iter().map(|table| table.rows).collect::<Vec<_>>();
        for mib in [64, 128, 512, 2048] {
            let memory = memory(&[("memoryLimit", &format!("{mib}M"))], MACHINE).unwrap();
            let bytes: u64 = memory.tables.iter().map(|table| table.rows * table.row_bytes).sum();
            assert!(bytes <= memory.shares.hot / 4 * 3, "{mib} MiB");
            assert!(rows(&memory).iter().all(|rows| (1_000..1_000_000).contains(rows)), "{mib} MiB: {memory:?}");
        }
        // As in the table of keys.
        let limits = [("4G", [true, false, true]), ("7G", [true, true, true])];
        for (limit, is_whole) in limits {
            let memory = memory(&[("memoryLimit", limit)], MACHINE).unwrap();
            let found: Vec<bool> = rows(&memory).iter().map(|rows| *rows == 1_000_000).collect();
            assert_eq!(found, is_whole, "{limit}");
        }
        let said = memory(&[("memoryLimit", "128M"), ("popLeasesMax", "2M")], MACHINE).unwrap();
        assert_eq!(rows(&said)[0], 2 << 20);
    }

    #[test]
    fn what_is_in_force_is_shown_as_the_setting_that_nobody_set() {
        let mut sources = Sources::new(Role::Server, Machine::read());
        let set = [("memoryLimit", "128M"), ("parkedPullsMax", "5000")];
        sources.command_line = set.map(|(key, value)| (key.to_owned(), value.to_owned(), "--set".to_owned())).into();
        let mut settings = Settings::load(sources).unwrap();
        let memory = Memory::of(&settings, MACHINE).unwrap();
        memory.lower_defaults(&mut settings);
        let broker = settings.broker().unwrap();
        let leases = broker.pop_leases_max as u64;
        assert_eq!(leases, memory.shares.hot / 4 / 300);
        assert_eq!(settings.text("popLeasesMax"), leases.to_string());
        assert_eq!(settings.text("requestBytesMax"), memory.request_bytes_max.to_string());
        assert_eq!(
            (broker.parked_pulls_max, settings.origin("parkedPullsMax").to_string()),
            (5000, "option --set".to_owned())
        );
        // What is set while it runs counts.
        settings.set("popLeasesMax", "7").unwrap();
        assert_eq!(settings.broker().unwrap().pop_leases_max, 7);
        let mut roomy = Settings::load(Sources::new(Role::Server, Machine::read())).unwrap();
        Memory::of(&roomy, machine::Memory::Machine(64 << 30)).unwrap().lower_defaults(&mut roomy);
        assert_eq!((&*roomy.text("popLeasesMax"), &*roomy.text("requestBytesMax")), ("1000000", "256M"));
    }

    #[test]
    fn a_write_pool_has_the_buffers_that_are_asked_for_as_far_as_there_is_memory() {
        let pool = |set: &[(&str, &str)]| {
            let set = [&[("transientStorePoolEnable", "true")], set].concat();
            let memory = memory(&set, MACHINE).unwrap();
            let pool = memory.pool.unwrap();
            assert!((pool.buffers * pool.buffer_bytes) as u64 <= memory.shares.pool);
            (pool.buffers, pool.buffer_bytes)
        };
        assert_eq!(memory(&[], MACHINE).unwrap().pool, None);
        assert_eq!(pool(&[]), (5, 4 << 20));
        assert_eq!(pool(&[("transientStorePoolSize", "2")]), (2, 4 << 20));
        // 64 MiB at most.
        assert_eq!(pool(&[("transientStorePoolSize", "100")]), (100, (64 << 20) / 100));
        assert_eq!(pool(&[("transientStorePoolSize", "2147483647")]), (1024, 64 << 10));
        let (buffers, bytes) = pool(&[("memoryLimit", "64M")]);
        assert!(buffers == 5 && (64 << 10..1 << 20).contains(&bytes), "{bytes}");
        assert_eq!(pool(&[("transientStorePoolSize", "0")]).0, 1);
    }

    #[test]
    fn without_reclaim_the_store_has_no_governor() {
        assert!(memory(&[("cacheReclaimEnable", "false")], MACHINE).unwrap().governor().is_none());
        let asked = [("cacheReclaimMillis", "50"), ("cacheReclaimWeight", "7"), ("memoryLimit", "1G")];
        let governor = memory(&asked, MACHINE).unwrap().governor().unwrap();
        assert_eq!((governor.period, governor.weight, governor.limit), (Duration::from_millis(50), 7, 1 << 30));
    }
}
