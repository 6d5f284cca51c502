//! What fails: which call, of which file, from which one on, and how.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// What a disk is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "they are named as the methods of `Disk` and `DiskFile`")]
pub enum Call {
    /// To read only.
    Open,
    /// To write, and perhaps made.
    OpenToWrite,
    Rename,
    Remove,
    RemoveTree,
    SyncDir,
    SyncFileSystem,
    Space,
    /// Also of what is in memory.
    Read,
    Write,
    Sync,
    SyncMapped,
    Allocate,
    Punch,
}

/// Both syncs of a file.
pub const SYNCS: &[Call] = &[Call::Sync, Call::SyncMapped];

/// Files and folders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Files {
    /// All there are.
    All,
    /// What lies below a folder of this name, wherever that is, and that folder.
    Under(&'static str),
    /// What lies in this folder and below it, and the folder.
    In(PathBuf),
    /// This one.
    Is(PathBuf),
    /// Those with this extension.
    Ending(&'static str),
}

impl Files {
    pub(super) fn have(&self, path: &Path) -> bool {
        match self {
            Files::All => true,
            Files::Under(folder) => path.components().any(|part| part.as_os_str() == *folder),
            Files::In(folder) => path.starts_with(folder),
            Files::Is(file) => path == file,
            Files::Ending(end) => path.extension().is_some_and(|found| found == *end),
        }
    }
}

/// What may go through before a fault holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// So many calls.
    Calls(u64),
    /// Calls until they have asked for so many bytes together.
    Bytes(u64),
}

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// With this error. `Other` says "broken".
    Fails(io::ErrorKind),
    /// With "Input/output error".
    Breaks,
    /// The device is full, and has taken half of what it was given. Of writes and allocations.
    HalfDone,
    /// It waits until the fault is lifted. What is read is not in memory meanwhile.
    Waits,
    /// It says that it is done, and does nothing. Of syncs.
    Skipped,
    /// The folder cannot be opened for it. Of syncs of folders and file systems.
    NotBegun,
    /// It says that it is done, and the room of a file that holds nothing is gone again. Of
    /// allocations.
    TakenBack,
    /// The file is cut to nothing when it is closed, as soon as it has been mapped. Of opening.
    CutOff,
    /// It breaks, and nothing that was written into the folder has come to the device; no later
    /// sync brings it. Of syncs of a file, by its folder ([`Files::In`]).
    Loses,
    /// The device says that it is so full, in percent; a folder that says so is a device of its
    /// own. The fullest counts. Of [`Call::Space`].
    Used(u8),
    /// As `Used`, and a percent less for each file that was removed below a folder of this name.
    FreedBy(&'static str, u8),
    /// The folder is a device of its own. Of [`Call::Space`].
    OwnDevice,
}

/// Something that does not go as it should. Equal ones are the same fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub(super) calls: &'static [Call],
    pub(super) files: Files,
    pub(super) how: How,
    places: Vec<u64>,
    pub(super) after: Option<Budget>,
    pub(super) is_once: bool,
}

impl Fault {
    /// Each of these calls of these files.
    pub const fn new(calls: &'static [Call], files: Files, how: How) -> Fault {
        Fault { calls, files, how, places: Vec::new(), after: None, is_once: false }
    }

    /// It holds behind these. Of [`How::Fails`] and [`How::Breaks`].
    pub fn after(self, budget: Budget) -> Fault {
        Fault { after: Some(budget), ..self }
    }

    /// It is lifted by the first call that meets it.
    pub fn once(self) -> Fault {
        Fault { is_once: true, ..self }
    }

    /// It is met by calls that touch one of these bytes of a file.
    pub fn at(self, places: &[u64]) -> Fault {
        Fault { places: places.to_vec(), ..self }
    }

    /// Whether it stands for another one: a device says one figure at a time.
    pub(super) fn replaces(&self, other: &Fault) -> bool {
        let is_figure = |fault: &Fault| matches!(fault.how, How::Used(_));
        let is_same = (self.calls, &self.files) == (other.calls, &other.files);
        self == other || is_same && is_figure(self) && is_figure(other)
    }

    pub(super) fn is_of(&self, call: Call, path: &Path, bytes: &Range<usize>) -> bool {
        let touches = || self.places.is_empty() || self.places.iter().any(|place| bytes.contains(&(*place as usize)));
        self.calls.contains(&call) && self.files.have(path) && touches()
    }
}
