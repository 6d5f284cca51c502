//! The file system for those who only look: what would change a file is left undone, and counts as done.
//!
//! Code that opens files and mends them on the way can so be run over a store without touching it; what it would have mended, it says.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use crate::seam::{DirEntry, Disk, DiskFile, OpenHow, RealDisk};

/// The machine's own file systems, unchanged.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unchanged;

impl Disk for Unchanged {
    fn create_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        RealDisk.list(dir)
    }

    fn len(&self, path: &Path) -> io::Result<u64> {
        RealDisk.len(path)
    }

    fn open(&self, path: &Path, _: OpenHow) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(UnchangedFile(RealDisk.open(path, OpenHow::Read)?)))
    }

    fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn remove(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn remove_tree(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn sync_file_system(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Debug)]
struct UnchangedFile(Arc<dyn DiskFile>);

impl DiskFile for UnchangedFile {
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        self.0.read_at(buffer, at)
    }

    fn read_cached_at(&self, buffer: &mut [u8], at: u64) -> io::Result<Option<usize>> {
        self.0.read_cached_at(buffer, at)
    }

    fn write_at(&self, _: &[u8], _: u64) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.descriptor()
    }

    fn allocate(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn punch(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
}
