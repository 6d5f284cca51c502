//! Who may open the store: the file `lock` (one process at a time) and the file `abort` (there while a process has it open).

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use disk::{Disk, OpenHow};
use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::io::Errno;
use rustix::process::{Flock, FlockType, Pid, fcntl_getlk};

use crate::error::StoreError;

/// Holds the store's lock until it is dropped.
///
/// Java locks byte ranges with `fcntl`, so that is what keeps an Apache broker out. Those locks do not count inside one process;
/// `flock` beside it keeps a second store of our own out.
#[derive(Debug)]
pub(crate) struct StoreLock {
    file: File,
}

impl Drop for StoreLock {
    fn drop(&mut self) {
        // A child that another thread is just starting has a copy of the descriptor until its program begins, and would keep `flock` for so long.
        // What cannot be given back here goes with the last copy.
        let _ = self.file.unlock();
    }
}

/// Whether others who do the same are kept out, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    Alone,
    Shared,
}

impl StoreLock {
    pub fn take(root: &Path) -> Result<StoreLock, StoreError> {
        let path = root.join("lock");
        let failed = |doing| {
            let path = path.clone();
            move |source| StoreError::Disk { doing, path, source }
        };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed("open"))?;
        StoreLock::hold(&path, &file, Hold::Alone)?;
        // What Apache's broker writes into it.
        file.rewind().and_then(|()| file.write_all(b"lock")).map_err(failed("write"))?;
        Ok(StoreLock { file })
    }

    /// Holds the lock of a store without writing anything; none if there is no file, and so nobody.
    pub fn keep_out_others(root: &Path) -> Result<Option<StoreLock>, StoreError> {
        let path = root.join("lock");
        let opened = match OpenOptions::new().read(true).write(true).open(&path) {
            // A copy on a device that takes no writes, or somebody else's store. What is only read can only be shared, which keeps brokers out all
            // the same.
            Err(error) if matches!(error.kind(), ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied) => {
                File::open(&path).map(|file| (file, Hold::Shared))
            }
            opened => opened.map(|file| (file, Hold::Alone)),
        };
        match opened {
            Ok((file, how)) => {
                StoreLock::hold(&path, &file, how)?;
                Ok(Some(StoreLock { file }))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(StoreError::Disk { doing: "open", path, source }),
        }
    }

    fn hold(path: &Path, file: &File, how: Hold) -> Result<(), StoreError> {
        let failed = |doing| {
            let path = path.to_owned();
            move |source| StoreError::Disk { doing, path, source }
        };
        let (held, operation) = match how {
            Hold::Alone => (file.try_lock(), FlockOperation::NonBlockingLockExclusive),
            Hold::Shared => (file.try_lock_shared(), FlockOperation::NonBlockingLockShared),
        };
        match held {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(locked(path.to_owned(), file)),
            Err(TryLockError::Error(source)) => return Err(failed("lock")(source)),
        }
        match fcntl_lock(file, operation) {
            Ok(()) => {}
            Err(Errno::AGAIN | Errno::ACCESS) => return Err(locked(path.to_owned(), file)),
            Err(error) => return Err(failed("lock")(error.into())),
        }
        Ok(())
    }
}

/// Names who has the lock. The system knows (F_GETLK); what the file says is Apache's word, and may be left from long ago.
fn locked(path: PathBuf, file: &File) -> StoreError {
    let asked = Flock::from(FlockType::WriteLock);
    let holder = fcntl_getlk(file, &asked).ok().flatten().and_then(|held| held.pid);
    StoreError::Locked { path, holder: holder.map(Pid::as_raw_pid) }
}

/// The file that says, at the next start, that nobody closed the store.
///
/// Its first line is the process, as Apache's broker writes it; its second one names the file itself ([`Disk::identity_of`]), which a copy of it
/// keeps. So a start knows a folder that was copied while somebody had the store open.
#[derive(Debug)]
pub(crate) struct AbortFile {
    path: PathBuf,
    disk: Arc<dyn Disk>,
}

/// What the file `abort` says of the process before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// It closed the store.
    Closed,
    /// It did not.
    Open,
    /// It did not, or not before the folder was copied.
    OpenAndCopied,
}

impl AbortFile {
    /// Of the store at `root`, and what it says.
    pub fn find(root: &Path, disk: &Arc<dyn Disk>) -> (AbortFile, Left) {
        let path = root.join("abort");
        let left = match path.exists() {
            false => Left::Closed,
            // Apache's broker names no file, and where nobody knows their names none is a copy.
            true => match (named_in(&path), disk.identity_of(&path)) {
                (Some(named), Some(own)) if named != own => Left::OpenAndCopied,
                (Some(_) | None, _) => Left::Open,
            },
        };
        (AbortFile { path, disk: Arc::clone(disk) }, left)
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// From now on only closing leaves the store clean.
    pub fn raise(&self) -> Result<(), StoreError> {
        self.write(|| self.disk.identity_of(&self.path))
    }

    /// What is not closed was copied: the next start has to look at it as this one has.
    pub fn stay_copied(&self) -> Result<(), StoreError> {
        self.write(|| Some(NO_FILE.to_owned()))
    }

    fn write(&self, named: impl Fn() -> Option<String>) -> Result<(), StoreError> {
        let written = self.disk.open(&self.path, OpenHow::Create).and_then(|file| {
            let mut text = std::process::id().to_string();
            if let Some(named) = named() {
                text.push('\n');
                text.push_str(&named);
            }
            file.set_len(0)?;
            file.write_at(text.as_bytes(), 0)
        });
        written.map_err(|source| StoreError::Disk { doing: "write", path: self.path.clone(), source })
    }

    /// The store is closed as it should be.
    pub fn lower(&self) -> Result<(), StoreError> {
        self.disk.remove(&self.path).map_err(|source| StoreError::Disk {
            doing: "remove",
            path: self.path.clone(),
            source,
        })
    }
}

/// The file that an `abort` names; none if it names none.
fn named_in(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(NAMED_BYTES_MAX).read_to_string(&mut text).ok()?;
    text.lines().nth(1).map(str::to_owned)
}

/// The name of no file.
const NO_FILE: &str = "-";

/// The file is shorter than this.
const NAMED_BYTES_MAX: u64 = 1024;
