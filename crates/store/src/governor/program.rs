//! The program's own pages: of its file those parts that are mapped, as far as they are in memory.
//!
//! A program that is shipped with its symbols has most of its file elsewhere, which nobody reads and which counts for nothing. Where the file
//! is somebody else's, as a program is that root installed and a service runs, the kernel tells nothing of the file, and what of it stands
//! in our page table counts.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use disk::pages::resident;

/// How the kernel names the file of the process, what it has mapped, and its page table: eight bytes a page.
const FILE: &str = "/proc/self/exe";
const MAPS: &str = "/proc/self/maps";
const PAGE_TABLE: &str = "/proc/self/pagemap";
/// Bits of an entry of [`PAGE_TABLE`]: the page is in memory, and is one of a file.
const IS_PRESENT: u64 = 1 << 63;
const IS_OF_FILE: u64 = 1 << 61;

/// See the module; empty where `/proc` is not there.
#[derive(Debug, Default)]
pub(crate) struct Program {
    file: Option<File>,
    parts: Vec<Part>,
}

/// A stretch of the file that is mapped. What the program has changed of it is heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    /// Where in the file, and in memory.
    at: u64,
    address: u64,
    bytes: u64,
}

impl Program {
    /// That which runs.
    pub fn ours() -> Program {
        let path = std::fs::read_link(FILE).unwrap_or_default();
        let maps = std::fs::read_to_string(MAPS).unwrap_or_default();
        Program { file: File::open(FILE).ok(), parts: path.to_str().map_or_else(Vec::new, |path| parts(&maps, path)) }
    }

    /// Bytes in memory. `mapped` is what of all files stands in the page table, if not even its entries can be read.
    pub fn resident(&self, mapped: u64) -> u64 {
        let whole = || self.parts.iter().map(|part| part.bytes).sum::<u64>();
        self.in_cache().or_else(|_| self.in_page_table()).unwrap_or_else(|_| mapped.min(whole()))
    }

    fn in_cache(&self) -> io::Result<u64> {
        let Some(file) = &self.file else { return Err(io::ErrorKind::NotFound.into()) };
        let count = |part: &Part| Ok(resident(file.as_fd(), part.at, part.at + part.bytes)?.cached);
        self.parts.iter().map(count).sum()
    }

    fn in_page_table(&self) -> io::Result<u64> {
        let (entries, page) = (File::open(PAGE_TABLE)?, rustix::param::page_size() as u64);
        let count = |part: &Part| {
            let mut found = vec![0; (part.bytes / page * 8) as usize];
            entries.read_exact_at(&mut found, part.address / page * 8)?;
            let is_there = |entry: &&[u8; 8]| {
                let wanted = IS_PRESENT | IS_OF_FILE;
                u64::from_ne_bytes(**entry) & wanted == wanted
            };
            Ok(found.as_chunks().0.iter().filter(is_there).count() as u64 * page)
        };
        self.parts.iter().map(count).sum()
    }
}

/// The stretches of the file at `path` in the text of [`MAPS`].
fn parts(maps: &str, path: &str) -> Vec<Part> {
    let part = |line: &str| {
        // 557ecb43e000-557ecc8da000 r-xp 0088e000 fe:00 5312077    /usr/bin/gantry
        let mut words = line.split_ascii_whitespace();
        let (from, to) = words.next()?.split_once('-')?;
        let address = u64::from_str_radix(from, 16).ok()?;
        let bytes = u64::from_str_radix(to, 16).ok()?.checked_sub(address)?;
        let at = u64::from_str_radix(words.nth(1)?, 16).ok()?;
        at.checked_add(bytes)?;
        Some(Part { at, address, bytes })
    };
    let of_file = |line: &&str| line.find('/').is_some_and(|at| &line[at..] == path);
    maps.lines().filter(of_file).filter_map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_the_program_are_those_that_are_mapped_from_its_file() {
        let maps = "5000-7000 r--p 00000000 fe:00 53 /opt/a broker/gantry\n\
                    7000-a000 r-xp 00002000 fe:00 53 /opt/a broker/gantry\n\
                    b000-c000 rw-p 00000000 00:00 0 \n\
                    c000-d000 r--s 00000000 fe:00 54 /opt/a broker/gantry/store/commitlog/00000000000000000000\n";
        let first = Part { at: 0, address: 0x5000, bytes: 0x2000 };
        let second = Part { at: 0x2000, address: 0x7000, bytes: 0x3000 };
        assert_eq!(parts(maps, "/opt/a broker/gantry"), [first, second]);
        assert_eq!(parts("5000-4000 r--p 0 fe:00 53 /x\nnonsense /x\n", "/x"), []);
    }

    #[test]
    fn the_program_that_runs_is_in_memory_in_part_and_no_larger_than_its_file() {
        let program = Program::ours();
        let most = std::fs::metadata(FILE).unwrap().len();
        let program_bytes = program.resident(0);
        assert!(program_bytes > 0 && program_bytes <= most + 4096 * program.parts.len() as u64);
    }

    #[test]
    fn what_stands_in_the_page_table_is_a_part_of_what_is_in_memory() {
        let program = Program::ours();
        let whole: u64 = program.parts.iter().map(|part| part.bytes).sum();
        let (seen, cached) = (program.in_page_table().unwrap(), program.in_cache().unwrap());
        // This test's own code is, at least.
        assert!(seen > 0 && seen <= cached && cached <= whole, "{seen}, {cached} of {whole}");
        let without_file = Program { file: None, ..program };
        assert!((1..=whole).contains(&without_file.resident(0)));
    }
}
