//! A disk that loses power: beside the files as the kernel has them it keeps what the device has of them.
//!
//! Files are real ones in a folder, since the store maps them; so what is written through a mapping is covered too. What the device has is moved
//! on by syncs, and now and then by [`CrashDisk::write_back`], as the kernel does by itself. A crash ([`image.rs`](image)) makes of both what the next start
//! may find. Each call counts; a run may ask for the crash at a call to come, which is then in the middle of whatever a thread of the store does.
//!
//! It is no layer on `disk::faults`, whose faults a test sets one by one: here the seed decides at
//! each call, names have a history that a crash cuts, and calls are counted and traced.
//!
//! Names are changes of folders, in order. What of them a crash leaves, and what a sync of a folder brings to the device, is one of two [`Names`].

mod failing;
mod file;
mod image;
mod nodes;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use disk::{DirEntry, Disk, DiskFile, DiskUse, OpenHow, RealDisk, turns};
use env::Random;
use parking_lot::Mutex;

use failing::{Asks, Failing};
pub use failing::{Failure, Synced};
use file::CrashFile;
pub use image::{Crash, Image};
use nodes::{Change, Nodes};

/// Which of the changed names a crash may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// As ext4 and XFS do: all changes have one order, a crash leaves those up to some moment, and a sync of any folder brings all of them so far.
    InOrder,
    /// As POSIX promises: each folder has an order of its own, and a sync brings that folder's alone.
    ByFolder,
}

/// How a disk behaves.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// What becomes of names.
    pub names: Names,
    /// Turns that other threads have during a sync, at most.
    pub sync_turns_max: u32,
    /// How often the machine has started again: what files hold in memory is gone then.
    pub boot: u32,
    /// Whether a crash may come when a file is opened to read. Which thread opens one first, and how often, is not always the seed's choice; it
    /// changes nothing on the disk.
    pub counts_reading: bool,
    /// Syncs say that they are done and bring nothing to the device. No store keeps its promises on such a disk: it shows whether a run finds that.
    pub lies: bool,
}

/// See the module's head. Cheap to clone.
#[derive(Clone, Debug)]
pub struct CrashDisk {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    root: PathBuf,
    rules: Rules,
    /// As in the rules, until somebody says otherwise.
    counts_reading: AtomicBool,
    random: Random,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    nodes: Nodes,
    calls: u64,
    /// At which call, and how.
    crash_at: Option<(u64, Crash)>,
    image: Option<Image>,
    trace: Trace,
    failing: Option<Failing>,
    failures: u64,
    unsynced: Option<(Synced, PathBuf)>,
    /// A sync has failed, and the file `unsynced` does not say so yet (`disk/failing.rs`).
    is_mark_due: bool,
    used_percent: u8,
}

/// A number for all calls so far and what they wrote: equal for two runs that did the same.
#[derive(Clone, Copy, Debug)]
struct Trace(u64);

impl Trace {
    fn add(&mut self, bytes: &[u8]) {
        // FNV-1a.
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}

impl CrashDisk {
    /// Of a folder; what is in it now is on the device.
    pub fn new(root: &Path, rules: Rules, random: Random) -> io::Result<CrashDisk> {
        let nodes = Nodes::read(root)?;
        let state = State {
            nodes,
            calls: 0,
            crash_at: None,
            image: None,
            trace: Trace(0xcbf2_9ce4_8422_2325),
            failing: None,
            failures: 0,
            unsynced: None,
            is_mark_due: false,
            used_percent: 10,
        };
        let (root, counts_reading, state) = (root.to_owned(), AtomicBool::new(rules.counts_reading), Mutex::new(state));
        Ok(CrashDisk { shared: Arc::new(Shared { root, rules, counts_reading, random, state }) })
    }

    /// From now on, see [`Rules::counts_reading`].
    pub fn counts_no_reading(&self) {
        self.shared.counts_reading.store(false, Ordering::Relaxed);
    }

    /// So full it is from now on.
    pub fn fill(&self, used_percent: u8) {
        self.shared.state.lock().used_percent = used_percent;
    }

    /// A number for all calls so far and what they wrote.
    pub fn trace(&self) -> u64 {
        self.shared.state.lock().trace.0
    }

    /// The crash is to come at that call, counted from the next one.
    pub fn crash_in(&self, calls: u64, how: Crash) {
        let mut state = self.shared.state.lock();
        state.crash_at = Some((state.calls + calls, how));
    }

    /// The crash comes now, unless it was before.
    pub fn crash_now(&self, how: Crash) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        if state.image.is_none() {
            state.image = Some(self.shared.image(&mut state, how)?);
        }
        Ok(())
    }

    /// Whether it has come: what is done to the disk from then on leaves nothing.
    pub fn has_crashed(&self) -> bool {
        self.shared.state.lock().image.is_some()
    }

    /// What it left.
    pub fn take_image(&self) -> Option<Image> {
        self.shared.state.lock().image.take()
    }

    /// Brings some sectors and some names to the device, as the kernel does by itself.
    pub fn write_back(&self) -> io::Result<()> {
        let Shared { rules, random, state, .. } = &*self.shared;
        let mut state = state.lock();
        if state.image.is_some() {
            return Ok(());
        }
        state.nodes.write_back(random)?;
        if random.below(3) == 0 {
            state.nodes.commit_some(rules.names, random);
        }
        Ok(())
    }
}

impl Shared {
    fn relative<'a>(&self, path: &'a Path) -> Option<&'a Path> {
        path.strip_prefix(&self.root).ok()
    }

    /// Counts a call, and crashes if this is the one.
    fn call(&self, name: &str, path: &Path, numbers: [u64; 2], bytes: &[u8]) -> io::Result<()> {
        let mut state = self.state.lock();
        if state.image.is_some() {
            return Ok(());
        }
        state.trace.add(name.as_bytes());
        state.trace.add(path.as_os_str().as_encoded_bytes());
        // They name the process, and a folder.
        if !path.ends_with("abort") && !path.ends_with("unsynced") {
            state.trace.add(numbers.map(u64::to_be_bytes).as_flattened());
            state.trace.add(bytes);
        }
        self.count(&mut state)
    }

    /// Counts one that leaves no trace.
    fn count(&self, state: &mut State) -> io::Result<()> {
        if state.image.is_some() {
            return Ok(());
        }
        state.calls += 1;
        if let Some((at, how)) = state.crash_at
            && state.calls >= at
            && !(state.is_mark_due && how == Crash::Killed)
        {
            state.image = Some(self.image(state, how)?);
        }
        Ok(())
    }

    /// Others run while a sync does.
    fn sync_takes_time(&self) {
        if turns::is_taken() {
            for _ in 0..self.random.below(self.rules.sync_turns_max + 1) {
                turns::pause();
            }
        }
    }
}

impl Disk for CrashDisk {
    fn memory_of(&self, _path: &Path) -> Option<String> {
        Some(format!("start {} of the machine", self.shared.rules.boot))
    }

    fn identity_of(&self, _path: &Path) -> Option<String> {
        // What a crash leaves is a copy of this process's files, and stands for the files themselves.
        None
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let relative = self.shared.relative(path);
        if let Some(relative) = relative.filter(|_| !path.exists()) {
            self.shared.may(Asks::Room, relative)?;
        }
        RealDisk.create_dir(path)?;
        let Some(relative) = relative else { return Ok(()) };
        let mut state = self.shared.state.lock();
        let mut folder = Nodes::ROOT;
        for part in relative.components() {
            folder = state.nodes.folder_or_made(folder, &part.as_os_str().to_string_lossy());
        }
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        let mut found = RealDisk.list(dir)?;
        // No file system promises an order, and a seed is to bring the same one everywhere.
        found.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(found)
    }

    fn len(&self, path: &Path) -> io::Result<u64> {
        RealDisk.len(path)
    }

    fn open(&self, path: &Path, how: OpenHow) -> io::Result<Arc<dyn DiskFile>> {
        let Some(relative) = self.shared.relative(path) else { return RealDisk.open(path, how) };
        if how != OpenHow::Read {
            self.shared.call("open", relative, [how as u64, 0], &[])?;
        } else if self.shared.counts_reading.load(Ordering::Relaxed) {
            // Relaxed: set before anybody opens anything.
            self.shared.count(&mut self.shared.state.lock())?;
        }
        if how == OpenHow::Create && !path.exists() {
            self.shared.may(Asks::Room, relative)?;
        }
        let mut state = self.shared.state.lock();
        let file = RealDisk.open(path, how)?;
        let node = state.nodes.file_or_made(relative, path)?;
        Ok(Arc::new(CrashFile::new(file, node, relative.to_owned(), Arc::clone(&self.shared))))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (Some(old), Some(new)) = (self.shared.relative(from), self.shared.relative(to)) else {
            return RealDisk.rename(from, to);
        };
        self.shared.call("rename", new, [0, 0], old.as_os_str().as_encoded_bytes())?;
        self.shared.may(Asks::Room, new)?;
        let mut state = self.shared.state.lock();
        RealDisk.rename(from, to)?;
        state.nodes.renamed(old, new);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let Some(relative) = self.shared.relative(path) else { return RealDisk.remove(path) };
        self.shared.call("remove", relative, [0, 0], &[])?;
        self.shared.may(Asks::Change, relative)?;
        let mut state = self.shared.state.lock();
        RealDisk.remove(path)?;
        state.nodes.removed(relative);
        Ok(())
    }

    fn remove_tree(&self, dir: &Path) -> io::Result<()> {
        let Some(relative) = self.shared.relative(dir) else { return RealDisk.remove_tree(dir) };
        self.shared.call("remove tree", relative, [0, 0], &[])?;
        self.shared.may(Asks::Change, relative)?;
        let mut state = self.shared.state.lock();
        RealDisk.remove_tree(dir)?;
        state.nodes.removed_tree(relative);
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        // As the system would say it.
        std::fs::metadata(dir)?;
        let Some(relative) = self.shared.relative(dir) else { return Ok(()) };
        self.shared.call("sync dir", relative, [0, 0], &[])?;
        let changes = self.shared.state.lock().nodes.changes_of(relative, self.shared.rules.names);
        // Nobody else has a turn meanwhile: files of deleted topics go under a lock.
        self.shared.call("synced dir", relative, [0, 0], &[])?;
        self.shared.may(Asks::Sync(Synced::Folder), relative)?;
        if self.shared.rules.lies {
            return Ok(());
        }
        self.shared.state.lock().nodes.commit(&changes);
        Ok(())
    }

    fn sync_file_system(&self, dir: &Path) -> io::Result<()> {
        let Some(relative) = self.shared.relative(dir) else { return Ok(()) };
        self.shared.call("sync file system", relative, [0, 0], &[])?;
        let (changes, contents) = {
            let mut state = self.shared.state.lock();
            (state.nodes.all_changes(), state.nodes.capture_all()?)
        };
        self.shared.sync_takes_time();
        self.shared.call("synced file system", relative, [0, 0], &[])?;
        let failed = self.shared.may(Asks::Sync(Synced::Everything), relative);
        let mut state = self.shared.state.lock();
        if let Err(error) = failed {
            for captured in contents {
                state.nodes.drop_some(captured, &self.shared.random);
            }
            return Err(error);
        }
        if self.shared.rules.lies {
            return Ok(());
        }
        for captured in contents {
            state.nodes.settle(captured);
        }
        state.nodes.commit(&changes);
        Ok(())
    }

    fn space(&self, _path: &Path) -> io::Result<DiskUse> {
        let used_percent = u64::from(self.shared.state.lock().used_percent);
        Ok(DiskUse { total: 100 << 30, available: (100 - used_percent) << 30 })
    }
}

/// The sequence numbers of changes of names.
type Changes = Vec<u64>;

impl Change {
    fn is_of(&self, folder: u64) -> bool {
        self.folder == folder || self.sets.iter().any(|(of, _, _)| *of == folder)
    }
}
