//! What a crash leaves.
//!
//! A process that is killed leaves what the kernel has. A loss of power leaves of each file what the device has, and of the rest, sector by
//! sector, any part: nothing, all, what lies in front, some sectors here and there. A file that grew ends anywhere between its two lengths; one
//! that was cut is cut or not, and what was written behind the cut is there only if it is.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use env::Random;

use super::nodes::{Clean, Node, Nodes, SECTOR, is_dropped};
use super::{CrashDisk, Shared, State};

/// How a run ends without being stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// Of the process: what the kernel has stays.
    Killed,
    /// Of the machine.
    Power,
}

/// Folders and files, by their paths below the root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    folders: Vec<PathBuf>,
    files: Vec<(PathBuf, Vec<u8>)>,
    /// Of files, what the kernel has and takes for written, and the device does not have. After a loss of power there is no such kernel.
    clean: Vec<(PathBuf, Clean)>,
}

/// What becomes of sectors that the device does not have yet.
#[derive(Clone, Copy)]
enum Fate {
    None,
    All,
    /// Those in front.
    Front,
    /// So many of eight.
    Some(u32),
}

impl Fate {
    fn of(random: &Random) -> Fate {
        match random.below(6) {
            0 => Fate::None,
            1 => Fate::All,
            2 => Fate::Front,
            3 => Fate::Some(1),
            4 => Fate::Some(4),
            _ => Fate::Some(7),
        }
    }
}

impl Shared {
    pub(super) fn image(&self, state: &mut State, how: Crash) -> io::Result<Image> {
        let mut image = Image::default();
        if how == Crash::Killed {
            image.collect(&state.nodes, Nodes::ROOT, Path::new(""), &mut |nodes, node| nodes.bytes(node), true)?;
        } else {
            state.nodes.commit_some(self.rules.names, &self.random);
            let usual = Fate::of(&self.random);
            let mut bytes = |nodes: &Nodes, node| {
                let fate = if self.random.below(4) == 0 { Fate::of(&self.random) } else { usual };
                left_of(nodes, node, fate, &self.random)
            };
            image.collect(&state.nodes, Nodes::ROOT, Path::new(""), &mut bytes, false)?;
        }
        image.collect_others(&self.root, Path::new(""), state)?;
        Ok(image)
    }
}

/// What is left of a file.
fn left_of(nodes: &Nodes, node: u64, fate: Fate, random: &Random) -> io::Result<Vec<u8>> {
    let Some(Node::File { safe, cut, dropped, .. }) = nodes.all.get(&node) else { return Ok(Vec::new()) };
    let now = nodes.bytes(node)?;
    let mut left = safe.clone();
    let mut end = now.len();
    if let Some((len, _)) = *cut {
        let is_cut = match fate {
            Fate::None => false,
            Fate::All => true,
            Fate::Front | Fate::Some(_) => random.below(2) == 0,
        };
        if is_cut {
            left.truncate(len as usize);
        } else {
            // What was written since then stands in blocks that are not the file's yet.
            end = end.min(len as usize);
        }
    }
    if nodes.is_growing(node) {
        end = end.min(left.len());
    }
    if left.len() < end {
        let sectors = (end - left.len()).div_ceil(SECTOR) as u32;
        let grown = match fate {
            Fate::None => left.len(),
            Fate::All => end,
            Fate::Front | Fate::Some(_) => {
                (left.len() / SECTOR * SECTOR + random.below(sectors + 2) as usize * SECTOR).clamp(left.len(), end)
            }
        };
        left.resize(grown, 0);
    }
    let end = end.min(left.len());
    let different = |place: usize| {
        let at = place * SECTOR;
        let to = (at + SECTOR).min(end);
        left[at..to] != now[at..to] && !is_dropped(dropped, at, &now[at..to])
    };
    let places: Vec<usize> = (0..end.div_ceil(SECTOR)).filter(|place| different(*place)).collect();
    let front = random.below(places.len() as u32 + 1) as usize;
    for (number, place) in places.into_iter().enumerate() {
        let is_there = match fate {
            Fate::None => false,
            Fate::All => true,
            Fate::Front => number < front,
            Fate::Some(of_eight) => random.below(8) < of_eight,
        };
        if is_there {
            let at = place * SECTOR;
            let to = (at + SECTOR).min(end);
            left[at..to].copy_from_slice(&now[at..to]);
        }
    }
    Ok(left)
}

impl Image {
    fn collect(
        &mut self,
        nodes: &Nodes,
        folder: u64,
        path: &Path,
        bytes: &mut dyn FnMut(&Nodes, u64) -> io::Result<Vec<u8>>,
        is_now: bool,
    ) -> io::Result<()> {
        let Some(Node::Folder { now, safe }) = nodes.all.get(&folder) else { return Ok(()) };
        for (name, node) in if is_now { now } else { safe } {
            let path = path.join(name);
            match nodes.all.get(node) {
                Some(Node::Folder { .. }) => {
                    self.folders.push(path.clone());
                    self.collect(nodes, *node, &path, bytes, is_now)?;
                }
                Some(Node::File { .. }) => {
                    let clean = if is_now { nodes.clean(*node)? } else { Clean::new() };
                    if !clean.is_empty() {
                        self.clean.push((path.clone(), clean));
                    }
                    self.files.push((path, bytes(nodes, *node)?));
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Files that were made around the disk (`config/*.json`, `lock`) are there as they are: nothing is known of their syncs.
    fn collect_others(&mut self, root: &Path, path: &Path, state: &State) -> io::Result<()> {
        for entry in fs::read_dir(root.join(path))? {
            let entry = entry?;
            let below = path.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                if !self.folders.contains(&below) && !state.nodes.knows(&below) {
                    self.folders.push(below.clone());
                }
                if self.folders.contains(&below) {
                    self.collect_others(root, &below, state)?;
                }
            } else if !state.nodes.knows(&below) {
                self.files.push((below, fs::read(entry.path())?));
            }
        }
        Ok(())
    }

    /// Makes the folders and files below an empty folder.
    pub fn write(&self, to: &Path) -> io::Result<()> {
        for folder in &self.folders {
            fs::create_dir_all(to.join(folder))?;
        }
        for (path, bytes) in &self.files {
            let file = File::create(to.join(path))?;
            file.set_len(bytes.len() as u64)?;
            // The log's files are mostly empty.
            for (place, block) in bytes.chunks(4096).enumerate() {
                if block.iter().any(|byte| *byte != 0) {
                    file.write_all_at(block, place as u64 * 4096)?;
                }
            }
        }
        Ok(())
    }
}

impl CrashDisk {
    /// The kernel is the one of which this is the image, written to this disk's folder: what it takes for written since a sync has failed is still not on the
    /// device.
    pub fn go_on(&self, image: &Image) {
        let mut state = self.shared.state.lock();
        for (path, clean) in &image.clean {
            state.nodes.keep_clean(path, clean);
        }
    }
}

impl Nodes {
    /// Whether the name was made through the disk.
    pub(super) fn knows(&self, path: &Path) -> bool {
        self.find(path).is_some()
    }
}
