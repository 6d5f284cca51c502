//! The table of checks: id, family, what it looks at, and who looks.

use super::finding::Finding;
use super::patient::Patient;
use super::{address, configuration, disk, disk_test, machine, names, server, store};

/// What a check is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Kernel, memory, processors, limits, clocks.
    Machine,
    /// The device and the file system of the store.
    Disk,
    /// The property file.
    Configuration,
    /// What clients are told, and name servers.
    Address,
    /// The store's folder.
    Store,
    /// A broker that runs.
    Server,
}

impl Family {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Family; 6] =
        [Family::Machine, Family::Disk, Family::Configuration, Family::Address, Family::Store, Family::Server];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Family::Machine => "machine",
            Family::Disk => "disk",
            Family::Configuration => "configuration",
            Family::Address => "address",
            Family::Store => "store",
            Family::Server => "server",
        }
    }
}

/// One check.
pub struct Check {
    /// Its name; never changes.
    pub id: &'static str,
    /// What it is about.
    pub family: Family,
    /// What it looks at.
    pub about: &'static str,
    /// Looks. What comes first is shown first.
    pub look: fn(&Patient) -> Vec<Finding>,
}

/// Writes a line of the table.
macro_rules! checks {
    ($($family:ident $id:literal $look:path, $about:literal;)*) => {
        &[$(Check { id: $id, family: Family::$family, about: $about, look: $look }),*]
    };
}

/// Every check, in the order in which they are made.
pub const CHECKS: &[Check] = checks! {
    Machine "swap" machine::swap::swap, "whether memory of the broker may go to a disk";
    Machine "vm.swappiness" machine::swap::swappiness, "how readily the kernel swaps";
    Machine "vm.page-cluster" machine::swap::page_cluster, "how much is read ahead from swap";
    Machine "vm.extra_free_kbytes" machine::kernel::extra_free_kbytes, "a reserve of free memory that some kernels know";
    Machine "vm.min_free_kbytes" machine::kernel::min_free_kbytes, "the kernel's reserve of free memory";
    Machine "vm.overcommit_memory" machine::kernel::overcommit_memory, "whether more memory may be promised than there is";
    Machine "vm.drop_caches" machine::kernel::drop_caches, "whether somebody throws the page cache away";
    Machine "vm.zone_reclaim_mode" machine::kernel::zone_reclaim_mode, "whether memory of other NUMA nodes is used before the cache is given up";
    Machine "vm.max_map_count" machine::kernel::max_map_count, "how many mappings a process may have";
    Machine "vm.dirty_background_ratio" machine::writeback::dirty_background_ratio, "from where on the kernel writes back by itself";
    Machine "vm.dirty_ratio" machine::writeback::dirty_ratio, "from where on the kernel holds writers up";
    Machine "vm.dirty_writeback_centisecs" machine::writeback::dirty_writeback_centisecs, "how often the kernel writes back";
    Machine "cache-reclaim" machine::kernel::cache_reclaim, "openEuler's limit of the page cache";
    Machine "huge-pages" machine::kernel::huge_pages, "transparent huge pages";
    Machine "nofile" machine::limits::nofile, "how many files and connections may be open";
    Machine "memory" machine::limits::memory, "memory of the machine and of the cgroup, and kills for want of it";
    Machine "processors" machine::limits::processors, "processors, quota of the cgroup, and being held back by it";
    Machine "pressure" machine::limits::pressure, "how long tasks wait for memory, disk and processors";
    Machine "network-speed" machine::network::speed, "how fast the links of the network are";
    Machine "clock-source" machine::clock::source, "how the kernel tells the time";
    Machine "clock-sync" machine::clock::synchronisation, "who keeps the clock right";
    Disk "disk-space" disk::space, "room on the store's file system, against the watermarks";
    Disk "file-system" disk::file_system, "kind and mount options of the store's file system";
    Disk "io-scheduler" disk::scheduler, "the I/O scheduler of the store's device";
    Disk "read-ahead" disk::read_ahead, "how much the kernel reads ahead";
    Disk "disk-throughput" disk_test::throughput, "sequential writing and reading, measured";
    Disk "fdatasync" disk_test::flushes, "how long a flush takes, measured";
    Configuration "configuration" configuration::lint, "each line of the property file";
    Configuration "contradictions" configuration::contradictions, "settings that do not go together, or not with this machine";
    Address "advertised-address" address::advertised, "what clients are told to connect to";
    Address "listen-port" address::port, "who listens where the broker should";
    Address "access" address::access, "who can reach the broker";
    Address "name-servers" names::name_servers, "whether name servers answer";
    Address "route" names::route, "what name servers tell about this broker";
    Store "store-folder" store::folder, "whether the store's folder can be used";
    Store "store-owner" store::owner, "who has the store open, and how it was left";
    Store "store-format" store::format, "whether this version can read what lies there";
    Store "store-clock" store::clock, "whether the clock is behind the newest message";
    Server "server" server::answers, "whether a broker runs and answers";
    Server "refusals" server::refusals, "sends that were refused, and how long others took";
    Server "limits" server::limits, "how close the broker is to its limits";
    Server "flush-lag" server::flush_lag, "what is not on the device, or not in the key index yet";
    Server "deliveries" server::deliveries, "delayed messages, timer messages and transactions that wait";
    Server "process" server::process, "memory, swap, files and mappings of the broker's process";
    Server "page-faults" server::page_faults, "how often threads that append wait for memory to come from the disk";
};

/// The checks that are chosen: those of `only` (all, if it is empty) without those of `skip`. Each word is a check or a family.
///
/// # Errors
/// A word that is neither.
pub fn chosen(only: &[String], skip: &[String]) -> Result<Vec<&'static Check>, String> {
    for word in only.iter().chain(skip) {
        if !CHECKS.iter().any(|check| names(word, check)) {
            let families = Family::ALL.map(Family::name).join(", ");
            return Err(format!("there is no check {word}: take {families}, or an id that --list shows"));
        }
    }
    let is_meant = |check: &&Check| only.is_empty() || only.iter().any(|word| names(word, check));
    let is_left_out = |check: &&Check| skip.iter().any(|word| names(word, check));
    Ok(CHECKS.iter().filter(|check| is_meant(check) && !is_left_out(check)).collect())
}

fn names(word: &str, check: &Check) -> bool {
    check.id == word || check.family.name() == word
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Severity;
    use crate::host::fake::FakeHost;
    use crate::patient::fake::patient;

    #[test]
    fn ids_are_unique_and_families_stand_together() {
        let mut seen = std::collections::HashSet::new();
        assert!(CHECKS.iter().all(|check| seen.insert(check.id)));
        let mut families: Vec<Family> = CHECKS.iter().map(|check| check.family).collect();
        families.dedup();
        assert_eq!(families, Family::ALL);
    }

    /// A machine of which nothing can be read is where findings say the least.
    #[test]
    fn each_finding_says_what_was_seen_what_it_does_and_what_helps() {
        for settings in ["", "listenPort=ten\nbrokerNam=a\nnamesrvAddr=127.0.0.1:1\nflushDiskType=SYNC_FLUSH\n"] {
            let fake = FakeHost::with(&[]);
            let mut patient = patient(&fake, settings);
            patient.is_disk_tested = false;
            for check in CHECKS {
                for finding in (check.look)(&patient) {
                    assert!(finding.evidence.iter().any(|seen| !seen.from.is_empty()), "{}: {finding:?}", check.id);
                    let (is_told, is_bad) = (finding.severity > Severity::Ok, finding.severity > Severity::Note);
                    assert!(!is_told || !finding.effect.is_empty(), "{}: {finding:?}", check.id);
                    assert!(!is_bad || finding.fix.is_some(), "{}: {finding:?}", check.id);
                }
            }
        }
    }

    #[test]
    fn each_line_of_the_advice_of_old_has_a_check() {
        let lines = [
            "vm.extra_free_kbytes",
            "vm.min_free_kbytes",
            "vm.overcommit_memory",
            "vm.drop_caches",
            "vm.zone_reclaim_mode",
            "vm.max_map_count",
            "vm.dirty_background_ratio",
            "vm.dirty_ratio",
            "vm.dirty_writeback_centisecs",
            "vm.page-cluster",
            "vm.swappiness",
            "nofile",
            "io-scheduler",
        ];
        for line in lines {
            assert!(CHECKS.iter().any(|check| check.id == line), "{line}");
        }
    }

    #[test]
    fn families_and_ids_are_chosen_and_left_out() {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let ids = |only: &[&str], skip: &[&str]| -> Vec<&str> {
            chosen(&words(only), &words(skip)).unwrap().iter().map(|check| check.id).collect()
        };
        assert_eq!(ids(&[], &[]).len(), CHECKS.len());
        assert_eq!(ids(&["configuration", "swap"], &["contradictions"]), ["swap", "configuration"]);
        assert!(chosen(&words(&["swapp"]), &[]).err().unwrap().contains("no check swapp"));
        assert!(chosen(&[], &words(&["nothing"])).is_err());
    }
}
