//! Calls that fail: a device without room, one that refuses writes, and one that could not keep what it was given.
//!
//! A process that is killed between a failed sync and the mark that it leaves of it is not played: it
//! can say nothing, and what the kernel has then looks like what the device has.

use std::io;
use std::path::{Path, PathBuf};

use env::Random;

use super::{CrashDisk, Shared};

/// What is wrong with the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It is full: what needs room may be refused, and of a write a part may be there.
    Full,
    /// Anything that changes it may be refused, but no sync.
    Broken,
    /// The next syncs may fail, one of them does. What was to be brought to the device may be there or not, and no later sync brings it.
    Unsynced,
}

/// What a call asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asks {
    /// Room that it does not have yet.
    Room,
    /// A change that needs none.
    Change,
    /// That what was given is kept.
    Sync(Synced),
}

/// What a sync was of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Synced {
    /// A file.
    File,
    /// The names in a folder.
    Folder,
    /// The whole file system.
    Everything,
}

#[derive(Debug)]
pub(super) struct Failing {
    how: Failure,
    one_in: u32,
    random: Random,
}

impl CrashDisk {
    /// From now on one in so many calls fails.
    pub fn fail(&self, how: Failure, one_in: u32, random: Random) {
        self.shared.state.lock().failing = Some(Failing { how, one_in, random });
    }

    /// None fails any more.
    pub fn work_again(&self) {
        self.shared.state.lock().failing = None;
    }

    /// What is wrong with it.
    pub fn failure(&self) -> Option<Failure> {
        self.shared.state.lock().failing.as_ref().map(|failing| failing.how)
    }

    /// How many calls have failed.
    pub fn failures(&self) -> u64 {
        self.shared.state.lock().failures
    }

    /// Which sync failed, and of which path, if that was before the crash.
    pub fn take_unsynced(&self) -> Option<(Synced, PathBuf)> {
        self.shared.state.lock().unsynced.take()
    }
}

impl Shared {
    /// Whether a call is refused.
    pub(super) fn may(&self, asks: Asks, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        if state.image.is_some() {
            return Ok(());
        }
        let Some(failing) = &state.failing else { return Ok(()) };
        let error = match (failing.how, asks) {
            (Failure::Full, Asks::Room) => io::Error::from_raw_os_error(NO_SPACE),
            (Failure::Broken, Asks::Room | Asks::Change) | (Failure::Unsynced, Asks::Sync(_)) => {
                io::Error::from_raw_os_error(BROKEN)
            }
            (Failure::Full, Asks::Change | Asks::Sync(_))
            | (Failure::Broken, Asks::Sync(_))
            | (Failure::Unsynced, Asks::Room | Asks::Change) => return Ok(()),
        };
        if failing.random.below(failing.one_in) != 0 {
            return Ok(());
        }
        if let Asks::Sync(what) = asks {
            // It is said once.
            state.failing = None;
            state.unsynced = Some((what, path.to_owned()));
            state.is_mark_due = what != Synced::Folder;
        }
        state.failures += 1;
        Err(error)
    }

    /// How much of a write is there that was refused.
    pub(super) fn part_of(&self, bytes: usize) -> usize {
        let state = self.state.lock();
        let Some(failing) = &state.failing else { return 0 };
        if failing.random.below(2) == 0 { 0 } else { failing.random.below(bytes as u32) as usize }
    }
}

/// `ENOSPC`.
const NO_SPACE: i32 = 28;
/// `EIO`.
const BROKEN: i32 = 5;
