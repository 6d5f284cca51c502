//! Files and folders, each as the kernel has it and as the device has it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use env::Random;

use super::{Changes, Names};

/// The least that a device writes as a whole.
pub(super) const SECTOR: usize = 512;

type Entries = BTreeMap<String, u64>;

/// What a folder says under some names from now on, all at once.
#[derive(Clone, Debug)]
pub(super) struct Change {
    number: u64,
    /// Folder, name, and what it names; none: nothing any more.
    pub sets: Vec<(u64, String, Option<u64>)>,
    /// A file that got a greater length, and that: the same journal of the file system holds both.
    grown: Option<(u64, u64)>,
    /// In which folder it stands in line.
    pub folder: u64,
}

#[derive(Debug)]
pub(super) enum Node {
    Folder {
        now: Entries,
        safe: Entries,
    },
    File {
        file: File,
        /// The bytes that the device has.
        safe: Vec<u8>,
        /// When what the device has of each sector was taken from the file: of two syncs at a time the one that began first may end last.
        taken: Vec<u64>,
        /// It was cut to this length since the last sync, and the number of that.
        cut: Option<(u64, u64)>,
        /// Sectors, and what of them the kernel took for written when a sync failed: as long as they stay so, no sync brings them.
        dropped: BTreeMap<usize, Vec<u8>>,
    },
}

type Dropped = BTreeMap<usize, Vec<u8>>;

/// What of a file a failed sync has left in the kernel only: by sector, what the device has there, and what the kernel has.
pub(super) type Clean = BTreeMap<usize, (Vec<u8>, Vec<u8>)>;

/// Whether the bytes from `at` on, all of one sector, are what a failed sync has left behind there.
pub(super) fn is_dropped(dropped: &Dropped, at: usize, bytes: &[u8]) -> bool {
    let within = at % SECTOR;
    dropped.get(&(at / SECTOR)).is_some_and(|sector| sector.get(within..within + bytes.len()) == Some(bytes))
}

#[derive(Debug)]
pub(super) struct Nodes {
    pub all: BTreeMap<u64, Node>,
    next: u64,
    /// Changes of names that are not on the device, in their order.
    pub changes: Vec<Change>,
}

/// What a sync found of a file when it began.
pub(super) struct Captured {
    node: u64,
    start: u64,
    bytes: Vec<u8>,
    /// The file's length.
    len: u64,
    began: u64,
    cut: Option<(u64, u64)>,
}

impl Nodes {
    pub const ROOT: u64 = 0;

    /// What is in a folder, all of it on the device.
    pub fn read(root: &Path) -> io::Result<Nodes> {
        let mut nodes = Nodes { all: BTreeMap::new(), next: 1, changes: Vec::new() };
        nodes.all.insert(Nodes::ROOT, Node::Folder { now: Entries::new(), safe: Entries::new() });
        nodes.read_folder(Nodes::ROOT, root)?;
        nodes.changes.clear();
        for node in nodes.all.values_mut() {
            if let Node::Folder { now, safe } = node {
                safe.clone_from(now);
            }
        }
        Ok(nodes)
    }

    fn read_folder(&mut self, folder: u64, path: &Path) -> io::Result<()> {
        for entry in std::fs::read_dir(path)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type()?.is_dir() {
                let inner = self.folder_or_made(folder, &name);
                self.read_folder(inner, &entry.path())?;
            } else {
                let node = self.make_file(&entry.path())?;
                self.set(vec![(folder, name, Some(node))]);
                let bytes = self.bytes(node)?;
                if let Some(Node::File { safe, .. }) = self.all.get_mut(&node) {
                    *safe = bytes;
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, node: Node) -> u64 {
        let number = self.next;
        self.next += 1;
        self.all.insert(number, node);
        number
    }

    fn make_file(&mut self, path: &Path) -> io::Result<u64> {
        let file = File::open(path)?;
        Ok(self.add(Node::File { file, safe: Vec::new(), taken: Vec::new(), cut: None, dropped: Dropped::new() }))
    }

    fn set(&mut self, sets: Vec<(u64, String, Option<u64>)>) {
        for (folder, name, to) in &sets {
            if let Some(Node::Folder { now, .. }) = self.all.get_mut(folder) {
                put(now, name, *to);
            }
        }
        let number = self.next;
        self.next += 1;
        let folder = sets.first().map_or(Nodes::ROOT, |(folder, _, _)| *folder);
        self.changes.push(Change { number, sets, grown: None, folder });
    }

    fn entry(&self, folder: u64, name: &str) -> Option<u64> {
        match self.all.get(&folder)? {
            Node::Folder { now, .. } => now.get(name).copied(),
            Node::File { .. } => None,
        }
    }

    pub fn find(&self, path: &Path) -> Option<u64> {
        path.components().try_fold(Nodes::ROOT, |folder, part| self.entry(folder, &part.as_os_str().to_string_lossy()))
    }

    /// The folder that holds a name, and the name.
    fn split(&self, path: &Path) -> Option<(u64, String)> {
        let folder = self.find(path.parent()?)?;
        Some((folder, path.file_name()?.to_string_lossy().into_owned()))
    }

    pub fn folder_or_made(&mut self, folder: u64, name: &str) -> u64 {
        if let Some(found) = self.entry(folder, name) {
            return found;
        }
        let made = self.add(Node::Folder { now: Entries::new(), safe: Entries::new() });
        self.set(vec![(folder, name.to_owned(), Some(made))]);
        made
    }

    /// The file at `path`, which is there, below the root or at `full`.
    pub fn file_or_made(&mut self, path: &Path, full: &Path) -> io::Result<u64> {
        if let Some(found) = self.find(path) {
            return Ok(found);
        }
        let (folder, name) = self.split(path).ok_or(io::ErrorKind::NotFound)?;
        let made = self.make_file(full)?;
        self.set(vec![(folder, name, Some(made))]);
        Ok(made)
    }

    pub fn renamed(&mut self, from: &Path, to: &Path) {
        if let (Some(node), Some((old, old_name)), Some((new, new_name))) =
            (self.find(from), self.split(from), self.split(to))
        {
            self.set(vec![(new, new_name, Some(node)), (old, old_name, None)]);
        }
    }

    pub fn removed(&mut self, path: &Path) {
        if self.find(path).is_some()
            && let Some((folder, name)) = self.split(path)
        {
            self.set(vec![(folder, name, None)]);
        }
    }

    /// One name after the other, from the inside out, as it is done.
    pub fn removed_tree(&mut self, path: &Path) {
        let Some(node) = self.find(path) else { return };
        if let Some(Node::Folder { now, .. }) = self.all.get(&node) {
            let names: Vec<PathBuf> = now.keys().map(|name| path.join(name)).collect();
            for name in names {
                self.removed_tree(&name);
            }
        }
        self.removed(path);
    }

    /// The file got a length, without being written.
    pub fn grew(&mut self, node: u64, path: &Path, len: u64) {
        let folder = path.parent().and_then(|folder| self.find(folder)).unwrap_or(Nodes::ROOT);
        let number = self.next;
        self.next += 1;
        self.changes.push(Change { number, sets: Vec::new(), grown: Some((node, len)), folder });
    }

    /// Whether the device does not know the length of a file yet that it got without being written.
    pub fn is_growing(&self, node: u64) -> bool {
        self.changes.iter().any(|change| change.grown.is_some_and(|(grown, _)| grown == node))
    }

    /// The file was cut to `len`.
    pub fn cut(&mut self, node: u64, len: u64) {
        let number = self.next;
        self.next += 1;
        if let Some(Node::File { cut, .. }) = self.all.get_mut(&node) {
            *cut = Some((cut.map_or(len, |(before, _)| before.min(len)), number));
        }
    }

    /// The bytes of a file as the kernel has them.
    pub fn bytes(&self, node: u64) -> io::Result<Vec<u8>> {
        let Some(Node::File { file, .. }) = self.all.get(&node) else { return Ok(Vec::new()) };
        let mut bytes = vec![0; file.metadata()?.len() as usize];
        file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// What of a file the kernel takes for written still, though a sync of it has failed.
    pub fn clean(&self, node: u64) -> io::Result<Clean> {
        let mut clean = Clean::new();
        let Some(Node::File { safe, dropped, .. }) = self.all.get(&node) else { return Ok(clean) };
        if dropped.is_empty() {
            return Ok(clean);
        }
        let now = self.bytes(node)?;
        for (place, sector) in dropped {
            let at = place * SECTOR;
            // A file that has grown within the sector was written there.
            if now.get(at..now.len().min(at + SECTOR)) == Some(&sector[..]) {
                let mut device = safe.get(at..safe.len().min(at + SECTOR)).unwrap_or_default().to_vec();
                device.resize(sector.len(), 0);
                clean.insert(*place, (device, sector.clone()));
            }
        }
        Ok(clean)
    }

    /// A file as a kernel has it that outlived the process before: what was clean and not on the device is so still.
    pub fn keep_clean(&mut self, path: &Path, clean: &Clean) {
        let Some(node) = self.find(path) else { return };
        let Some(Node::File { safe, dropped, .. }) = self.all.get_mut(&node) else { return };
        for (place, (device, sector)) in clean {
            let at = place * SECTOR;
            if let Some(safe) = safe.get_mut(at..at + device.len()) {
                safe.copy_from_slice(device);
                dropped.insert(*place, sector.clone());
            }
        }
    }

    /// What a sync that begins now will have brought to the device; without an `end`, all of the file.
    pub fn capture(&mut self, node: u64, start: u64, end: Option<u64>) -> io::Result<Captured> {
        self.next += 1;
        let began = self.next;
        let Some(Node::File { file, cut, .. }) = self.all.get(&node) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let len = file.metadata()?.len();
        let end_of_bytes = end.unwrap_or(len).min(len).max(start);
        let mut bytes = vec![0; (end_of_bytes - start) as usize];
        file.read_exact_at(&mut bytes, start)?;
        Ok(Captured { node, start, bytes, len, began, cut: *cut })
    }

    pub fn capture_all(&mut self) -> io::Result<Vec<Captured>> {
        self.files().into_iter().map(|node| self.capture(node, 0, None)).collect()
    }

    fn files(&self) -> Vec<u64> {
        self.all.iter().filter(|(_, node)| matches!(node, Node::File { .. })).map(|(node, _)| *node).collect()
    }

    /// It was written anew there: the next sync brings it.
    pub fn wrote(&mut self, node: u64, at: u64, bytes: usize) {
        let Some(Node::File { dropped, .. }) = self.all.get_mut(&node) else { return };
        if !dropped.is_empty() {
            let places = at as usize / SECTOR..(at as usize + bytes).div_ceil(SECTOR);
            dropped.retain(|place, _| !places.contains(place));
        }
    }

    /// A sync has failed: some of what it was to bring is on the device, and the rest will not be.
    pub fn drop_some(&mut self, captured: Captured, random: &Random) {
        let Some(Node::File { safe, dropped, .. }) = self.all.get_mut(&captured.node) else { return };
        let start = captured.start as usize;
        for place in start / SECTOR..(start + captured.bytes.len()).div_ceil(SECTOR) {
            let (from, to) = ((place * SECTOR).max(start), ((place + 1) * SECTOR).min(start + captured.bytes.len()));
            let now = &captured.bytes[from - start..to - start];
            if safe.get(from..to) == Some(now) || random.below(2) == 0 {
                continue;
            }
            let mut sector = vec![0; from - place * SECTOR];
            sector.extend_from_slice(now);
            dropped.insert(place, sector);
        }
        self.settle(captured);
    }

    pub fn settle(&mut self, captured: Captured) {
        let Captured { node, start, bytes, len, began, cut: was_cut } = captured;
        let Some(Node::File { safe, taken, cut, dropped, .. }) = self.all.get_mut(&node) else { return };
        if let Some((cut_to, number)) = was_cut
            && cut.is_some_and(|(_, newest)| newest == number)
        {
            safe.truncate(cut_to as usize);
            *cut = None;
        }
        let start = start as usize;
        safe.resize(safe.len().max(len as usize).max(start + bytes.len()), 0);
        taken.resize(taken.len().max(safe.len().div_ceil(SECTOR)), 0);
        // The first sector may begin before the stretch.
        let mut at = start;
        while at < start + bytes.len() {
            let to = ((at / SECTOR + 1) * SECTOR).min(start + bytes.len());
            let taken = &mut taken[at / SECTOR];
            let is_dropped = is_dropped(dropped, at, &bytes[at - start..to - start]);
            if *taken <= began && !is_dropped {
                *taken = began;
                safe[at..to].copy_from_slice(&bytes[at - start..to - start]);
            }
            at = to;
        }
    }

    /// Brings some sectors of some file to the device.
    pub fn write_back(&mut self, random: &Random) -> io::Result<()> {
        let files = self.files();
        self.next += 1;
        let began = self.next;
        let Some(node) = files.get(random.below(files.len() as u32) as usize).copied() else { return Ok(()) };
        let mut now = self.bytes(node)?;
        let is_growing = self.is_growing(node);
        let Some(Node::File { safe, taken, cut, dropped, .. }) = self.all.get_mut(&node) else { return Ok(()) };
        if is_growing {
            now.truncate(safe.len());
        }
        if let Some((len, _)) = cut.take() {
            safe.truncate(len as usize);
        }
        let one_in = [1, 2, 5][random.below(3) as usize];
        for (place, sector) in now.chunks(SECTOR).enumerate() {
            let at = place * SECTOR;
            if safe.get(at..at + sector.len()) == Some(sector)
                || is_dropped(dropped, at, sector)
                || random.below(one_in) != 0
            {
                continue;
            }
            if safe.len() < at + sector.len() {
                safe.resize(at + sector.len(), 0);
            }
            safe[at..at + sector.len()].copy_from_slice(sector);
            taken.resize(taken.len().max(place + 1), 0);
            taken[place] = began;
        }
        Ok(())
    }

    /// Which changes a sync of a folder that begins now will have brought to the device.
    pub fn changes_of(&self, path: &Path, names: Names) -> Changes {
        let folder = self.find(path);
        let of = |change: &&Change| match names {
            Names::InOrder => true,
            Names::ByFolder => folder.is_some_and(|folder| change.is_of(folder)),
        };
        self.changes.iter().filter(of).map(|change| change.number).collect()
    }

    pub fn all_changes(&self) -> Changes {
        self.changes.iter().map(|change| change.number).collect()
    }

    /// These are on the device.
    pub fn commit(&mut self, numbers: &[u64]) {
        let (done, left) = std::mem::take(&mut self.changes)
            .into_iter()
            .partition::<Vec<_>, _>(|change| numbers.binary_search(&change.number).is_ok());
        self.changes = left;
        for (node, len) in done.iter().filter_map(|change| change.grown) {
            if let Some(Node::File { safe, cut, .. }) = self.all.get_mut(&node) {
                if let Some((len, _)) = cut.take() {
                    safe.truncate(len as usize);
                }
                safe.resize(safe.len().max(len as usize), 0);
            }
        }
        for (folder, name, to) in done.into_iter().flat_map(|change| change.sets) {
            if let Some(Node::Folder { safe, .. }) = self.all.get_mut(&folder) {
                put(safe, &name, to);
            }
        }
    }

    /// Which of the changes a crash leaves.
    pub fn some_changes(&self, names: Names, random: &Random) -> Changes {
        match names {
            Names::InOrder => {
                let count = random.below(self.changes.len() as u32 + 1) as usize;
                self.changes[..count].iter().map(|change| change.number).collect()
            }
            Names::ByFolder => {
                // How many more of each folder.
                let mut left: BTreeMap<u64, u32> = BTreeMap::new();
                let mut numbers = Vec::new();
                for change in &self.changes {
                    let left = left.entry(change.folder).or_insert_with(|| random.below(self.changes.len() as u32 + 1));
                    if *left > 0 {
                        *left -= 1;
                        numbers.push(change.number);
                    }
                }
                numbers
            }
        }
    }

    pub fn commit_some(&mut self, names: Names, random: &Random) {
        let some = self.some_changes(names, random);
        self.commit(&some);
    }
}

fn put(entries: &mut Entries, name: &str, to: Option<u64>) {
    match to {
        Some(node) => entries.insert(name.to_owned(), node),
        None => entries.remove(name),
    };
}
