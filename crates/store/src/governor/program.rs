//! The program's own pages: of its file those parts that are mapped, as far as they are in memory.
//!
//! A program that is shipped with its symbols has most of its file elsewhere, which nobody reads and which counts for nothing.

use std::fs::File;
use std::os::fd::AsFd;

use super::resident;

/// How the kernel names the file of the process, and what it has mapped.
const FILE: &str = "/proc/self/exe";
const MAPS: &str = "/proc/self/maps";

/// See the module; empty where `/proc` is not there.
#[derive(Debug, Default)]
pub(crate) struct Program {
    file: Option<File>,
    /// Bytes of the file, from and to. What the program has changed of them is heap.
    parts: Vec<(u64, u64)>,
}

impl Program {
    /// That which runs.
    pub fn ours() -> Program {
        let path = std::fs::read_link(FILE).unwrap_or_default();
        let maps = std::fs::read_to_string(MAPS).unwrap_or_default();
        Program { file: File::open(FILE).ok(), parts: path.to_str().map_or_else(Vec::new, |path| parts(&maps, path)) }
    }

    /// Bytes in memory.
    pub fn resident(&self) -> u64 {
        let Some(file) = &self.file else { return 0 };
        self.parts.iter().map(|(from, to)| resident(file.as_fd(), *from, *to).unwrap_or_default().cached).sum()
    }
}

/// The stretches of the file at `path` in the text of [`MAPS`].
fn parts(maps: &str, path: &str) -> Vec<(u64, u64)> {
    let part = |line: &str| {
        // 557ecb43e000-557ecc8da000 r-xp 0088e000 fe:00 5312077    /usr/bin/gantry
        let mut words = line.split_ascii_whitespace();
        let (from, to) = words.next()?.split_once('-')?;
        let bytes = u64::from_str_radix(to, 16).ok()?.checked_sub(u64::from_str_radix(from, 16).ok()?)?;
        let at = u64::from_str_radix(words.nth(1)?, 16).ok()?;
        Some((at, at.checked_add(bytes)?))
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
        assert_eq!(parts(maps, "/opt/a broker/gantry"), [(0, 0x2000), (0x2000, 0x5000)]);
        assert_eq!(parts("5000-4000 r--p 0 fe:00 53 /x\nnonsense /x\n", "/x"), []);
    }

    #[test]
    fn the_program_that_runs_is_in_memory_in_part_and_no_larger_than_its_file() {
        let program = Program::ours();
        let most = std::fs::metadata(FILE).unwrap().len();
        assert!(program.resident() > 0 && program.resident() <= most + 4096 * program.parts.len() as u64);
    }
}
