//! What is in memory of ours, counted.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use disk::OpenHow;
use disk::pages::{Changed, resident};

use super::figures::{Counts, MemoryFigures, UNKNOWN};
use super::window::Governor;
use crate::store::Shared;

/// What the process itself occupies, in bytes, as `/proc/self/status` has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProcessMemory {
    /// Heap and stacks.
    pub heap: u64,
    /// Pages of files that stand in our page table, those of the program among them.
    pub mapped: u64,
}

impl ProcessMemory {
    /// As it is now; nothing where `/proc` is not there.
    pub fn now() -> ProcessMemory {
        ProcessMemory::parse(&std::fs::read_to_string("/proc/self/status").unwrap_or_default())
    }

    fn parse(status: &str) -> ProcessMemory {
        let of = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let kib = line.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
            kib.unwrap_or(0).saturating_mul(1024)
        };
        ProcessMemory { heap: of("RssAnon"), mapped: of("RssFile") + of("RssShmem") }
    }
}

impl Counts {
    /// Counts, and says how much is occupied.
    pub fn count(&self, shared: &Shared, governor: &Governor) -> u64 {
        let (mut log, mut changed) = (0, Some(Changed::default()));
        for segment in shared.log.segments() {
            // One that is gone meanwhile counts nothing, and neither does one of somebody else's, which we do not change.
            let Ok(found) = segment.resident() else { continue };
            log += found.cached;
            changed = changed.zip(found.changed).map(|(sum, more)| sum + more);
        }
        let journal = journal::resident(&*shared.disk, &shared.options.root.join("journal"));
        let process = ProcessMemory::now();
        let program = self.file.resident(process.mapped);
        for (gauge, bytes) in [
            (&self.log, log),
            (&self.dirty, changed.map_or(UNKNOWN, |changed| changed.dirty)),
            (&self.writeback, changed.map_or(UNKNOWN, |changed| changed.writeback)),
            (&self.heap, process.heap),
            (&self.program, program),
            (&self.mapped, process.mapped),
            (&self.journal, journal),
        ] {
            gauge.store(bytes, Ordering::Relaxed);
        }
        process.heap + program + log + journal + governor.files.bytes()
    }

    pub fn figures(&self, shared: &Shared, governor: &Governor) -> MemoryFigures {
        let shares = governor.options.shares;
        let known = |gauge: &AtomicU64| Some(gauge.load(Ordering::Relaxed)).filter(|bytes| *bytes != UNKNOWN);
        MemoryFigures {
            limit: governor.options.limit,
            log_share: shares.log,
            hot_share: shares.hot,
            cold_share: shares.cold,
            files_share: shares.files,
            heap: self.heap.load(Ordering::Relaxed),
            program: self.program.load(Ordering::Relaxed),
            mapped: self.mapped.load(Ordering::Relaxed),
            log: self.log.load(Ordering::Relaxed),
            cold: shared.cold_pages.bytes(),
            copied: shared.cold_pages.copied(),
            copied_max: shares.cold / 2,
            uncopied: shared.cold_pages.uncopied(),
            files: governor.files.bytes(),
            journal: self.journal.load(Ordering::Relaxed),
            dirty: known(&self.dirty),
            writeback: known(&self.writeback),
            write_back_lag: shared.log.end.get().saturating_sub(shared.flushed.get()),
            dropped: governor.dropped(),
        }
    }
}

/// Bytes of all files below a folder that are in memory, by whatever way the kernel has. Slow: for tests and for who asks once.
pub fn resident_below(dir: &Path) -> std::io::Result<u64> {
    let disk = disk::RealDisk;
    let mut folders: Vec<PathBuf> = vec![dir.to_owned()];
    let mut bytes = 0;
    while let Some(folder) = folders.pop() {
        for entry in disk::Disk::list(&disk, &folder)? {
            let path = folder.join(&entry.name);
            if entry.is_dir {
                folders.push(path);
                continue;
            }
            // Removed since it was listed.
            let Ok(file) = disk::Disk::open(&disk, &path, OpenHow::Read) else { continue };
            bytes += resident(file.descriptor(), 0, file.len()?)?.cached;
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_process_are_read_as_the_kernel_writes_them() {
        let status = "Name:\tgantry\nVmRSS:\t   30208 kB\nRssAnon:\t   10000 kB\nRssFile:\t   20000 kB\nRssShmem:\t     208 kB\n";
        let expected = ProcessMemory { heap: 10_000 << 10, mapped: 20_208 << 10 };
        assert_eq!(ProcessMemory::parse(status), expected);
        assert_eq!(ProcessMemory::parse(""), ProcessMemory::default());
        assert!(ProcessMemory::now().heap > 0);
    }
}
