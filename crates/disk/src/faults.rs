//! The machine's file system for tests, which fails as it is told.
//!
//! A test says which calls of which files fail, how, and from which one on ([`Fault`]), and may ask
//! what was done. Of the files that [`FaultDisk::keeping`] names it is known what a loss of power
//! would leave ([`FaultDisk::safe`]).

mod fault;
mod power;

use std::fmt::{self, Debug};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::MmapRaw;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::layer::{DiskLayer, FileLayer};
use crate::seam::{Disk, DiskFile, DiskUse, OpenHow, RealDisk};
pub use fault::{Budget, Call, Fault, Files, How, SYNCS};
use power::Power;

/// When a test that watches each step is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Before a call that may change files.
    Before,
    /// Behind a rename.
    Renamed,
}

type Watch = Arc<dyn Fn(&FaultDisk, Step, &Path) + Send + Sync>;

/// See the module's head. Clones are the same disk.
#[derive(Clone, Default)]
pub struct FaultDisk(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Notified when a fault is lifted: calls may wait for that.
    lifted: Condvar,
    watch: Mutex<Option<Watch>>,
    /// Held by a step from before its watcher is called to its end, so that the watcher sees no
    /// half of another.
    turn: Mutex<()>,
}

#[derive(Default)]
struct State {
    faults: Vec<Standing>,
    /// Calls that were let through, and those that were refused; none if nobody asked for it.
    notes: Option<[Vec<Note>; 2]>,
    power: Option<Power>,
}

/// A fault that holds now.
struct Standing {
    fault: Fault,
    /// What may go through before it holds.
    left: Option<Budget>,
    /// Calls that wait until it is lifted.
    waiting: usize,
}

#[derive(Clone)]
struct Note {
    call: Call,
    path: Arc<Path>,
    bytes: Range<usize>,
}

impl Debug for FaultDisk {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("FaultDisk")
    }
}

impl FaultDisk {
    /// One that notes what it does.
    pub fn noting() -> FaultDisk {
        let disk = FaultDisk::default();
        disk.0.state.lock().notes = Some(Default::default());
        disk
    }

    /// From now on it is known what the device has of these files.
    pub fn keeping(self, files: Files) -> FaultDisk {
        self.0.state.lock().power = Some(Power::of(files));
        self
    }

    /// From now on each step calls this, with the disk and the folder that the step is in.
    pub fn watched(self, watch: impl Fn(&FaultDisk, Step, &Path) + Send + Sync + 'static) -> FaultDisk {
        *self.0.watch.lock() = Some(Arc::new(watch));
        self
    }

    /// A fault begins, or ends.
    pub fn set(&self, fault: Fault, holds: bool) {
        let mut state = self.0.state.lock();
        state.faults.retain(|standing| !fault.replaces(&standing.fault));
        if holds {
            state.faults.push(Standing { left: fault.after, fault, waiting: 0 });
        }
        self.0.lifted.notify_all();
    }

    /// All faults of just these calls and files end.
    pub fn lift(&self, calls: &[Call], files: &Files) {
        let is_it = |fault: &Fault| fault.calls == calls && fault.files == *files;
        self.0.state.lock().faults.retain(|standing| !is_it(&standing.fault));
        self.0.lifted.notify_all();
    }

    /// Whether a fault holds, or waits for its call.
    pub fn has(&self, fault: &Fault) -> bool {
        self.0.state.lock().faults.iter().any(|standing| standing.fault == *fault)
    }

    /// What may still go through before a fault holds.
    pub fn left(&self, fault: &Fault) -> Option<Budget> {
        self.0.state.lock().faults.iter().find(|standing| standing.fault == *fault)?.left
    }

    /// How many calls wait until a fault is lifted.
    pub fn waiting(&self, fault: &Fault) -> usize {
        let state = self.0.state.lock();
        state.faults.iter().find(|standing| standing.fault == *fault).map_or(0, |standing| standing.waiting)
    }

    /// How often something was done. Of [`FaultDisk::noting`], as all that follows.
    pub fn count(&self, calls: &[Call], files: &Files) -> usize {
        self.notes(0, calls, files).len()
    }

    /// How often it was refused.
    pub fn refused(&self, calls: &[Call], files: &Files) -> usize {
        self.notes(1, calls, files).len()
    }

    /// What it was done to, in its order.
    pub fn paths(&self, calls: &[Call]) -> Vec<PathBuf> {
        self.notes(0, calls, &Files::All).into_iter().map(|note| note.path.to_path_buf()).collect()
    }

    /// Which bytes of files it was done to.
    pub fn stretches(&self, calls: &[Call]) -> Vec<Range<usize>> {
        self.notes(0, calls, &Files::All).into_iter().map(|note| note.bytes).collect()
    }

    /// Forgets what was done so far.
    pub fn forget_notes(&self) {
        self.0.state.lock().notes = Some(Default::default());
    }

    fn notes(&self, kind: usize, calls: &[Call], files: &Files) -> Vec<Note> {
        let state = self.0.state.lock();
        let all = state.notes.iter().flat_map(|notes| &notes[kind]);
        all.filter(|note| calls.contains(&note.call) && files.have(&note.path)).cloned().collect()
    }

    /// A step begins, which may change what is in the folder; it ends with the guard.
    fn step(&self, folder: Option<&Path>) -> Option<MutexGuard<'_, ()>> {
        let watch = self.0.watch.lock().clone()?;
        let turn = self.0.turn.lock();
        watch(self, Step::Before, folder?);
        Some(turn)
    }

    /// Waits as it is told, and says whether the call is refused or changed.
    fn ask(&self, call: Call, path: &Arc<Path>, bytes: Range<usize>) -> io::Result<Option<Fault>> {
        let mut state = self.0.state.lock();
        let waits = |standing: &Standing| standing.fault.how == How::Waits && standing.fault.is_of(call, path, &bytes);
        // Each turn begins with a fault that was lifted or added.
        while let Some(standing) = state.faults.iter_mut().find(|standing| waits(standing)) {
            standing.waiting += 1;
            let fault = standing.fault.clone();
            self.0.lifted.wait(&mut state);
            if let Some(standing) = state.faults.iter_mut().find(|standing| standing.fault == fault) {
                standing.waiting = standing.waiting.saturating_sub(1);
            }
        }
        let mut changed = None;
        let mut refused = None;
        state.faults.retain_mut(|standing| {
            if refused.is_some() || !standing.fault.is_of(call, path, &bytes) {
                return true;
            }
            let how = standing.fault.how;
            match how {
                How::Waits | How::Used(_) | How::FreedBy(..) | How::OwnDevice => return true,
                How::Fails(_) | How::Breaks if standing.lets_through(bytes.len()) => return true,
                How::Fails(io::ErrorKind::Other) => refused = Some(io::Error::other("broken")),
                How::Fails(kind) => refused = Some(kind.into()),
                How::Breaks => refused = Some(broken()),
                How::HalfDone | How::Skipped | How::NotBegun | How::TakenBack | How::CutOff | How::Loses => {
                    // The newest one counts.
                    changed = Some(standing.fault.clone());
                }
            }
            !standing.fault.is_once
        });
        if let Some(notes) = &mut state.notes {
            notes[usize::from(refused.is_some())].push(Note { call, path: Arc::clone(path), bytes });
        }
        refused.map_or(Ok(changed), Err)
    }

    /// As `ask`, for a call that is all or nothing.
    fn may(&self, call: Call, path: &Path) -> io::Result<Option<How>> {
        Ok(self.ask(call, &path.into(), 0..0)?.map(|fault| fault.how))
    }

    fn is_kept(&self, path: &Path) -> bool {
        self.0.state.lock().power.as_ref().is_some_and(|power| power.files.have(path))
    }

    fn sync(
        &self,
        call: Call,
        path: &Arc<Path>,
        bytes: Range<usize>,
        sync: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let _turn = self.step(path.parent());
        let told = self.ask(call, path, bytes.clone())?;
        if let Some(Fault { how: How::Loses, files: Files::In(folder), .. }) = &told {
            self.lose(folder)?;
            return Err(broken());
        }
        let now = if self.is_kept(path) { Some(std::fs::read(path)?) } else { None };
        if told.is_none() {
            sync()?;
        }
        if let (Some(now), Some(power)) = (now, &mut self.0.state.lock().power) {
            power.sync(path, &now, bytes, false);
        }
        Ok(())
    }
}

impl Standing {
    /// Whether its budget has this call yet.
    fn lets_through(&mut self, bytes: usize) -> bool {
        let (left, costs) = match &mut self.left {
            None => return false,
            Some(Budget::Calls(left)) => (left, 1),
            Some(Budget::Bytes(left)) => (left, bytes as u64),
        };
        let rest = left.checked_sub(costs);
        *left = rest.unwrap_or(*left);
        rest.is_some()
    }
}

/// "Input/output error".
fn broken() -> io::Error {
    io::Error::from_raw_os_error(5)
}

impl DiskLayer for FaultDisk {
    fn inner(&self) -> &dyn Disk {
        &RealDisk
    }

    fn open(&self, path: &Path, how: OpenHow) -> io::Result<Arc<dyn DiskFile>> {
        let _turn = self.step(path.parent());
        let call = if how == OpenHow::Read { Call::Open } else { Call::OpenToWrite };
        let path: Arc<Path> = path.into();
        let told = self.ask(call, &path, 0..0)?;
        let file = RealDisk.open(&path, how)?;
        let is_cut_off = told.is_some_and(|fault| fault.how == How::CutOff);
        Ok(Arc::new(FaultFile { file, path, is_cut_off, disk: self.clone() }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let _turn = self.step(to.parent());
        self.may(Call::Rename, to)?;
        RealDisk.rename(from, to)?;
        if let Some(power) = &mut self.0.state.lock().power {
            power.rename(from, to);
        }
        let watch = self.0.watch.lock().clone();
        if let (Some(watch), Some(folder)) = (watch, to.parent()) {
            watch(self, Step::Renamed, folder);
        }
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let _turn = self.step(path.parent());
        self.may(Call::Remove, path)?;
        RealDisk.remove(path)?;
        // What could not be read is gone.
        let is_of_it = |fault: &Fault| fault.calls == [Call::Read] && fault.files == Files::Is(path.to_owned());
        self.0.state.lock().faults.retain(|standing| !is_of_it(&standing.fault));
        Ok(())
    }

    fn remove_tree(&self, dir: &Path) -> io::Result<()> {
        self.may(Call::RemoveTree, dir)?;
        RealDisk.remove_tree(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let _turn = self.step(Some(dir));
        match self.may(Call::SyncDir, dir)? {
            // The machine says it as it says it of any folder that it cannot open.
            Some(How::NotBegun) => RealDisk.sync_dir(&dir.join("no such folder")),
            Some(_) => std::fs::metadata(dir).map(drop),
            None => RealDisk.sync_dir(dir),
        }
    }

    fn sync_file_system(&self, dir: &Path) -> io::Result<()> {
        let told = self.may(Call::SyncFileSystem, dir)?;
        if told == Some(How::NotBegun) {
            return RealDisk.sync_file_system(&dir.join("no such folder"));
        }
        for path in self.kept_files()? {
            self.sync(Call::Sync, &path.into(), 0..usize::MAX, || Ok(()))?;
        }
        if told.is_some() { Ok(()) } else { RealDisk.sync_file_system(dir) }
    }

    fn device(&self, path: &Path) -> io::Result<u64> {
        let state = self.0.state.lock();
        let is_in = |fault: &Fault| matches!(fault.files, Files::In(_)) && fault.is_of(Call::Space, path, &(0..0));
        let told = state.faults.iter().map(|standing| &standing.fault).filter(|fault| is_in(fault));
        let number = |how| u64::from(matches!(how, How::Used(_))) + 2 * u64::from(how == How::OwnDevice);
        match told.map(|fault| number(fault.how)).sum() {
            0 => RealDisk.device(path),
            number => Ok(number),
        }
    }

    fn space(&self, path: &Path) -> io::Result<DiskUse> {
        self.may(Call::Space, path)?;
        let state = self.0.state.lock();
        let told = state.faults.iter().map(|standing| &standing.fault);
        let told: Vec<How> =
            told.filter(|fault| fault.is_of(Call::Space, path, &(0..0))).map(|fault| fault.how).collect();
        drop(state);
        let used = |how| {
            if let How::FreedBy(folder, percent) = how {
                let removed = self.count(&[Call::Remove], &Files::Under(folder));
                return Some(u64::from(percent).saturating_sub(removed as u64));
            }
            if let How::Used(percent) = how { Some(u64::from(percent)) } else { None }
        };
        match told.into_iter().filter_map(used).max() {
            Some(used) => Ok(DiskUse { total: 100 << 20, available: (100 - used) << 20 }),
            None => RealDisk.space(path),
        }
    }
}

#[derive(Debug)]
struct FaultFile {
    file: Arc<dyn DiskFile>,
    path: Arc<Path>,
    is_cut_off: bool,
    disk: FaultDisk,
}

impl Drop for FaultFile {
    fn drop(&mut self) {
        if self.is_cut_off {
            // A test that finds it whole fails.
            let _ = self.file.set_len(0);
        }
    }
}

impl FaultFile {
    fn ask(&self, call: Call, at: u64, bytes: usize) -> io::Result<Option<How>> {
        let bytes = at as usize..at as usize + bytes;
        Ok(self.disk.ask(call, &self.path, bytes)?.map(|fault| fault.how))
    }
}

impl FileLayer for FaultFile {
    fn inner(&self) -> &dyn DiskFile {
        &*self.file
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        self.ask(Call::Read, at, buffer.len())?;
        self.file.read_at(buffer, at)
    }

    fn read_cached_at(&self, buffer: &mut [u8], at: u64) -> io::Result<Option<usize>> {
        let bytes = at as usize..at as usize + buffer.len();
        let waits = |standing: &Standing| {
            standing.fault.how == How::Waits && standing.fault.is_of(Call::Read, &self.path, &bytes)
        };
        if self.disk.0.state.lock().faults.iter().any(waits) {
            return Ok(None);
        }
        self.ask(Call::Read, at, buffer.len())?;
        self.file.read_cached_at(buffer, at)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let _turn = self.disk.step(self.path.parent());
        if self.ask(Call::Write, at, bytes.len())? == Some(How::HalfDone) {
            self.file.write_at(&bytes[..bytes.len() / 2], at)?;
            return Err(io::ErrorKind::StorageFull.into());
        }
        if let Some(power) = &mut self.disk.0.state.lock().power {
            power.wrote(&self.path, at as usize..at as usize + bytes.len());
        }
        self.file.write_at(bytes, at)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.disk.sync(Call::Sync, &self.path, 0..usize::MAX, || self.file.sync_data())
    }

    fn sync_mapped(&self, map: &MmapRaw, start: usize, bytes: usize) -> io::Result<()> {
        let sync = || self.file.sync_mapped(map, start, bytes);
        self.disk.sync(Call::SyncMapped, &self.path, start..start + bytes, sync)
    }

    fn allocate(&self, at: u64, bytes: u64) -> io::Result<()> {
        match self.ask(Call::Allocate, at, bytes as usize)? {
            // What is refused has made the file longer all the same, as ext4 does it.
            Some(How::HalfDone) => {
                self.file.set_len(self.file.len()?.max(at + bytes / 2))?;
                Err(io::ErrorKind::StorageFull.into())
            }
            Some(How::TakenBack) if at == 0 && self.file.data_from(0)?.is_none() => {
                self.file.allocate(at, bytes)?;
                self.file.set_len(0)
            }
            _ => self.file.allocate(at, bytes),
        }
    }

    fn punch(&self, at: u64, bytes: u64) -> io::Result<()> {
        self.ask(Call::Punch, at, bytes as usize)?;
        self.file.punch(at, bytes)
    }
}
