//! The file `resume`: up to where the kernel has the store, so that a start after a kill need not read the log from the check-point on.
//!
//! The check-point says what is on the device, and is as far behind as the device is: gigabytes, at full load. But a process that is killed
//! takes nothing along that it had handed to the kernel. So now and then, when all units of the log up to some offset are in their files, that
//! offset is written here, and never synced: it is of use only where the same memory has it that has those files. Whether it is the same,
//! [`Disk::memory_of`] knows (the machine has not started again, and nobody wrote, copied or restored the file `abort` since), and the pages
//! that were not on the device yet are looked for, too: whoever unmounts a volume, or takes it away, takes them along. Those are the pages of the log
//! that were not flushed; how far it is, is noted as it goes on, since the governor lets go of what is. And in any case the page of this file itself,
//! which nobody else reads. It is relied on only where consume queues lie on the same volume: one of their own may be one that was put back.
//!
//! If a sync ever fails, the file goes, or is not looked at (`unsynced.rs`): then nobody knows what of all this the kernel has dropped, and the check-point
//! knows what it has not.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use disk::{Disk, DiskFile, OpenHow, pages};
use parking_lot::Mutex;
use tracing::warn;

use crate::segment::Segment;

/// What the file begins with; another number, if what follows means something else.
const TITLE: &str = "resume 2";
/// It is shorter than this.
const BYTES_MAX: usize = 1024;
/// How far the kernel has the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The units of all records below are in the files of their queues. A record begins there, or the log ended there.
    pub written: u64,
    /// Below, the log was on the device; often further than that.
    pub flushed: u64,
    /// Where queues ended with the records below `written`, as one number ([`QueueLogs::ends_below`](crate::queue_log::QueueLogs::ends_below)); none if
    /// topics were deleted since.
    pub ends: Option<u64>,
}

/// The file of a store that is open.
pub(crate) struct Resume {
    path: PathBuf,
    disk: Arc<dyn Disk>,
    /// Guards nothing else; one write is made under it.
    state: Mutex<ResumeState>,
}

#[derive(Default)]
struct ResumeState {
    /// What this process's marks are tied to. None: there are none.
    memory: Option<String>,
    file: Option<Arc<dyn DiskFile>>,
    noted: Mark,
}

impl Resume {
    /// Of the store at `root`; nothing is noted before [`Resume::begin`].
    pub fn new(root: &Path, disk: &Arc<dyn Disk>) -> Resume {
        Resume { path: root.join("resume"), disk: Arc::clone(disk), state: Mutex::default() }
    }

    /// What the process before us noted, if that holds for a store whose file `abort` lies at that path.
    pub fn recall(&self, abort: &Path) -> Option<Mark> {
        let memory = self.disk.memory_of(abort)?;
        let file = self.disk.open(&self.path, OpenHow::Read).ok()?;
        if pages::resident(file.descriptor(), 0, BYTES_MAX as u64).ok()?.cached == 0 {
            return None;
        }
        let mut bytes = [0; BYTES_MAX];
        let read = file.read_at(&mut bytes, 0).ok()?;
        decode(&bytes[..read], &memory)
    }

    /// Marks from now on belong to this process, whose file `abort` lies at that path. Keeps the one with which it began.
    pub fn begin(&self, abort: &Path, begun_with: Option<Mark>) {
        self.state.lock().memory = self.disk.memory_of(abort);
        if let Some(mark) = begun_with {
            self.note(mark);
        }
    }

    /// Up to where this process has noted it.
    pub fn noted(&self) -> u64 {
        self.state.lock().noted.written
    }

    /// The log is on the device below `flushed`: notes it, if that is `step` further than what is noted. Whoever starts knows then of which pages of
    /// the log memory is free to let go.
    pub fn flushed_to(&self, flushed: u64, step: u64) {
        let mut state = self.state.lock();
        let Mark { written, flushed: before, ends } = state.noted;
        if written > 0 && flushed >= before.saturating_add(step) {
            self.note_in(&mut state, Mark { written, flushed, ends });
        }
    }

    /// Notes it. A file that cannot be written is none: the next start reads more.
    pub fn note(&self, mark: Mark) {
        self.note_in(&mut self.state.lock(), mark);
    }

    fn note_in(&self, state: &mut ResumeState, mark: Mark) {
        let ResumeState { memory: Some(memory), file, noted } = &mut *state else { return };
        let bytes = encode(mark, memory);
        let written = match file {
            Some(file) => file.write_at(&bytes, 0),
            None => self.disk.open(&self.path, OpenHow::Create).and_then(|opened| {
                opened.set_len(0)?;
                file.insert(opened).write_at(&bytes, 0)
            }),
        };
        match written {
            Ok(()) => *noted = mark,
            Err(error) => {
                warn!(path = %self.path.display(), %error, "a start after a kill will read more of the log");
                self.forget_in(state);
            }
        }
    }

    /// Files of queues are about to go: until the next note, nothing is said of where queues end.
    pub fn forget_ends(&self) {
        let mut state = self.state.lock();
        if state.noted.ends.is_some() {
            let noted = Mark { ends: None, ..state.noted };
            self.note_in(&mut state, noted);
        }
    }

    /// There is no mark any more, nor will be.
    pub fn forget(&self) {
        self.forget_in(&mut self.state.lock());
    }

    fn forget_in(&self, state: &mut ResumeState) {
        // Emptied first: that cannot fail for want of a folder, and what is left of the file says nothing.
        let emptied = state.file.take().is_some_and(|file| file.set_len(0).is_ok());
        if self.disk.remove(&self.path).is_err() && !emptied {
            warn!(path = %self.path.display(), "cannot be removed");
        }
        state.memory = None;
    }
}

/// Whether memory has what of the log before the mark was not on the device.
pub(crate) fn is_in_memory(segments: &[Arc<Segment>], mark: Mark) -> bool {
    mark.flushed >= mark.written
        || segments
            .iter()
            .filter(|segment| segment.end() > mark.flushed && segment.base() < mark.written)
            .all(|segment| segment.has_in_memory(mark.flushed, mark.written))
}

fn encode(mark: Mark, memory: &str) -> Vec<u8> {
    let ends = mark.ends.map_or_else(|| "unknown".to_owned(), |ends| format!("{ends:016x}"));
    let text = format!("{TITLE}\n{} {}\n{ends}\n{memory}\n", mark.written, mark.flushed);
    format!("{text}{:08x}\n", crc32fast::hash(text.as_bytes())).into_bytes()
}

fn decode(bytes: &[u8], memory: &str) -> Option<Mark> {
    let text = std::str::from_utf8(bytes).ok()?;
    let mut lines = text.lines().skip(1);
    let (written, flushed) = lines.next()?.split_once(' ')?;
    let ends = u64::from_str_radix(lines.next()?, 16).ok();
    let mark = Mark { written: written.parse().ok()?, flushed: flushed.parse().ok()?, ends };
    // What follows is a shorter text's, if it was written over a longer one.
    let whole = encode(mark, memory);
    bytes.starts_with(&whole).then_some(mark)
}

#[cfg(test)]
mod tests {
    use disk::RealDisk;

    use super::*;

    #[test]
    fn a_mark_holds_for_the_same_memory_and_file_only() {
        let dir = tempfile::tempdir().unwrap();
        let abort = dir.path().join("abort");
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let resume = Resume::new(dir.path(), &disk);
        assert_eq!(resume.recall(&abort), None);
        std::fs::write(&abort, "1").unwrap();
        resume.begin(&abort, None);
        let mark = Mark { written: 1_000_000, flushed: 7, ends: Some(0xabc) };
        resume.note(mark);
        assert_eq!((resume.noted(), resume.recall(&abort)), (mark.written, Some(mark)));
        let shorter = Mark { written: 8, flushed: 7, ends: Some(u64::MAX) };
        resume.note(shorter);
        assert_eq!(resume.recall(&abort), Some(shorter));
        resume.flushed_to(9, 3);
        assert_eq!(resume.recall(&abort), Some(shorter));
        resume.flushed_to(10, 3);
        assert_eq!(resume.recall(&abort), Some(Mark { flushed: 10, ..shorter }));
        resume.forget_ends();
        assert_eq!(resume.recall(&abort), Some(Mark { flushed: 10, ends: None, ..shorter }));

        let copy = dir.path().join("copy");
        std::fs::copy(&abort, &copy).unwrap();
        assert_eq!(resume.recall(&copy), None, "a copy of the folder is another store");
        assert_eq!(decode(&encode(mark, "a machine"), "started again"), None);
        let mut torn = encode(mark, "here");
        torn[10] ^= 1;
        assert_eq!(decode(&torn, "here"), None);

        resume.forget();
        assert_eq!(resume.recall(&abort), None);
        resume.note(mark);
        assert_eq!(resume.recall(&abort), None, "after a failed sync nothing is noted any more");
    }

    #[test]
    fn who_wrote_the_abort_file_anew_has_another_store() {
        let dir = tempfile::tempdir().unwrap();
        let abort = dir.path().join("abort");
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        std::fs::write(&abort, "1").unwrap();
        let before = disk.memory_of(&abort).unwrap();
        let since = std::time::Instant::now();
        // Its time of change has the grain of the kernel's clock.
        while disk.memory_of(&abort).as_ref() == Some(&before) {
            assert!(since.elapsed().as_secs() < 10);
            std::fs::write(&abort, "2").unwrap();
        }
    }
}
