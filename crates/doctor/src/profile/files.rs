//! The files whose code a process runs, and where they lie in its memory.

use std::fs::{self, File};
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use object::read::ReadCache;
use object::{Object, ObjectSection, ObjectSegment, ReadRef, SegmentFlags};

/// The most of a `maps` file that is read, in bytes: hundreds of thousands of mappings.
const MAPS_BYTES_MAX: u64 = 64 << 20;
/// The kernel's own code in each process: a few pages.
const VDSO: &str = "[vdso]";
const VDSO_BYTES_MAX: u64 = 1 << 20;
/// The most of one section that is read, in bytes. No program comes near; a damaged file must not take all memory.
const SECTION_BYTES_MAX: u64 = 256 << 20;

/// A stretch of code.
pub struct Mapped {
    /// Where it lies.
    pub addresses: Range<u64>,
    /// What is added to an address of the file to get one of the process.
    pub bias: u64,
    /// What to open; nothing for the kernel's own code.
    pub path: Option<PathBuf>,
    /// How it is called.
    pub name: String,
    /// Unwinding tables: address in the file, and bytes.
    pub eh_frame: Option<(Range<u64>, Vec<u8>)>,
    /// The index of them.
    pub eh_frame_hdr: Option<(Range<u64>, Vec<u8>)>,
}

impl Mapped {
    /// All code of the process. What cannot be read is left out: its frames are shown without a name.
    pub fn all(pid: i32) -> anyhow::Result<Vec<Mapped>> {
        let maps = format!("/proc/{pid}/maps");
        let mut text = String::new();
        File::open(&maps)
            .and_then(|file| file.take(MAPS_BYTES_MAX).read_to_string(&mut text))
            .with_context(|| format!("cannot read {maps}: it takes the server's user, or root"))?;
        Ok(text
            .lines()
            .filter_map(Line::read)
            .filter(|line| line.is_code)
            .filter_map(|line| mapped(pid, line))
            .collect())
    }
}

fn mapped(pid: i32, line: Line<'_>) -> Option<Mapped> {
    if line.path == VDSO {
        return vdso(line);
    }
    let path = path(pid, line.path)?;
    let file = ReadCache::new(File::open(&path).ok()?);
    let found = object::File::parse(&file).ok()?;
    let name = Path::new(line.path).file_name()?.to_str()?;
    read(&found, &line, Some(path), name.strip_suffix(" (deleted)").unwrap_or(name))
}

/// The kernel's own code is the same bytes in every process, and this one may always read its own.
fn vdso(line: Line<'_>) -> Option<Mapped> {
    let own = fs::read_to_string("/proc/self/maps").ok()?;
    let own = own.lines().filter_map(Line::read).find(|line| line.path == VDSO)?;
    let length = own.addresses.end.checked_sub(own.addresses.start).filter(|length| *length <= VDSO_BYTES_MAX)?;
    let mut bytes = vec![0; usize::try_from(length).ok()?];
    File::open("/proc/self/mem").ok()?.read_exact_at(&mut bytes, own.addresses.start).ok()?;
    read(&object::File::parse(bytes.as_slice()).ok()?, &line, None, VDSO)
}

fn read<'data, R: ReadRef<'data>>(
    file: &object::File<'data, R>,
    line: &Line<'_>,
    path: Option<PathBuf>,
    name: &str,
) -> Option<Mapped> {
    // Mappings begin at whole pages. Segments may share a page of the file, so it has to be the one with code.
    let within_page = rustix::param::page_size() as u64 - 1;
    let bias = file.segments().filter(has_code).find_map(|segment| {
        let (offset, length) = segment.file_range();
        let holds = (offset & !within_page..offset.checked_add(length)?).contains(&line.offset);
        holds.then(|| {
            line.addresses.start.wrapping_sub(line.offset).wrapping_add(offset).wrapping_sub(segment.address())
        })
    })?;
    let section = |name: &str| {
        let section = file.section_by_name(name).filter(|section| section.size() <= SECTION_BYTES_MAX)?;
        let end = section.address().checked_add(section.size())?;
        Some((section.address()..end, section.data().ok()?.to_vec()))
    };
    Some(Mapped {
        addresses: line.addresses.clone(),
        bias,
        path,
        name: name.to_owned(),
        eh_frame: section(".eh_frame"),
        eh_frame_hdr: section(".eh_frame_hdr"),
    })
}

fn has_code<'data>(segment: &impl ObjectSegment<'data>) -> bool {
    matches!(segment.flags(), SegmentFlags::Elf { p_flags, .. } if p_flags & object::elf::PF_X != 0)
}

/// Where to open a file that the process has mapped: by its own root, since it may live in a container. A program that was replaced
/// since is still there by the process, but what lies beside it (names of inlined functions) is another's.
fn path(pid: i32, mapped: &str) -> Option<PathBuf> {
    if !mapped.starts_with('/') {
        return None;
    }
    let program = PathBuf::from(format!("/proc/{pid}/exe"));
    let by_name = PathBuf::from(format!("/proc/{pid}/root{mapped}"));
    let identity = |path: &Path| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    let is_program = fs::read_link(&program).is_ok_and(|link| link == Path::new(mapped));
    if is_program && identity(&program) != identity(&by_name) { Some(program) } else { Some(by_name) }
}

/// A line of a `maps` file.
#[derive(Debug, PartialEq)]
struct Line<'a> {
    addresses: Range<u64>,
    is_code: bool,
    offset: u64,
    path: &'a str,
}

impl Line<'_> {
    /// `start-end rwxp offset device inode   path`, numbers in hexadecimal. A path may have blanks.
    fn read(text: &str) -> Option<Line<'_>> {
        let mut fields = text.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let is_code = fields.next()?.as_bytes().get(2) == Some(&b'x');
        let offset = number(fields.next()?)?;
        let path = fields.nth(2)?.trim_start();
        Some(Line { addresses: number(start)?..number(end)?, is_code, offset, path })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_with_blanks_in_their_path_and_without_one() {
        let line =
            Line::read("55d0-55f0 r-xp 00001000 fe:00 123                        /opt/a b/gantry (deleted)").unwrap();
        assert_eq!(
            line,
            Line { addresses: 0x55d0..0x55f0, is_code: true, offset: 0x1000, path: "/opt/a b/gantry (deleted)" }
        );
        let line = Line::read("7f00-7f10 rw-p 00000000 00:00 0 ").unwrap();
        assert!(!line.is_code && line.path.is_empty());
        assert_eq!(Line::read("7f00 rw-p"), None);
    }

    #[test]
    fn this_program_is_found_with_its_tables_and_so_is_the_kernels_code() {
        let all = Mapped::all(i32::try_from(std::process::id()).unwrap()).unwrap();
        // A function lies where its file says, moved by the bias.
        let own = std::env::current_exe().unwrap();
        let here = all
            .iter()
            .find(|mapped| mapped.path.as_ref().is_some_and(|path| path.ends_with(own.strip_prefix("/").unwrap())))
            .unwrap();
        assert!(here.eh_frame.is_some() && here.eh_frame_hdr.is_some());
        assert!(all.iter().any(|mapped| mapped.name == VDSO && mapped.eh_frame.is_some()));
    }
}
