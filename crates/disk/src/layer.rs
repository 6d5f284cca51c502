//! Layers: file systems over another one, of which each says what it does differently. All else
//! goes to what lies below.

use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use memmap2::MmapRaw;

use crate::seam::{DirEntry, Disk, DiskFile, DiskUse, OpenHow};

/// Makes the trait of a layer, whose methods are those of the trait below: the first ones go there,
/// those behind `made of these` have a body. What implements it implements the trait below.
macro_rules! layer {
    (
        $(#[$doc:meta])* $layer:ident over $below:ident;
        $(fn $name:ident(&self $(, $argument:ident: $type:ty)*) -> $result:ty;)*
        made of these:
        $(fn $own:ident(&$me:ident $(, $own_argument:ident: $own_type:ty)*) -> $own_result:ty $body:block)*
    ) => {
        $(#[$doc])*
        #[allow(missing_docs, reason = "the trait below has the docs")]
        pub trait $layer: Debug + Send + Sync {
            /// What lies below.
            fn inner(&self) -> &dyn $below;
            $(fn $name(&self $(, $argument: $type)*) -> $result { self.inner().$name($($argument),*) })*
            $(fn $own(&$me $(, $own_argument: $own_type)*) -> $own_result $body)*
        }

        impl<L: $layer> $below for L {
            $(fn $name(&self $(, $argument: $type)*) -> $result { $layer::$name(self $(, $argument)*) })*
            $(fn $own(&self $(, $own_argument: $own_type)*) -> $own_result {
                $layer::$own(self $(, $own_argument)*)
            })*
        }
    };
}

layer! {
    /// A [`Disk`] over another one.
    DiskLayer over Disk;
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>>;
    fn len(&self, path: &Path) -> io::Result<u64>;
    fn open(&self, path: &Path, how: OpenHow) -> io::Result<Arc<dyn DiskFile>>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove(&self, path: &Path) -> io::Result<()>;
    fn remove_tree(&self, dir: &Path) -> io::Result<()>;
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    fn sync_file_system(&self, dir: &Path) -> io::Result<()>;
    fn sync_failed(&self, path: &Path, error: io::Error) -> io::Error;
    fn memory_of(&self, path: &Path) -> Option<String>;
    fn identity_of(&self, path: &Path) -> Option<String>;
    fn device(&self, path: &Path) -> io::Result<u64>;
    fn space(&self, path: &Path) -> io::Result<DiskUse>;
    made of these:
}

layer! {
    /// A [`DiskFile`] over another one. A layer that changes a read or a sync changes
    /// [`read_once_at`](FileLayer::read_once_at) and [`sync_mapped`](FileLayer::sync_mapped) too,
    /// unless it says otherwise.
    FileLayer over DiskFile;
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize>;
    fn read_cached_at(&self, buffer: &mut [u8], at: u64) -> io::Result<Option<usize>>;
    fn forget_cached(&self, at: u64, bytes: u64) -> io::Result<()>;
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()>;
    fn set_len(&self, len: u64) -> io::Result<()>;
    fn len(&self) -> io::Result<u64>;
    fn sync_data(&self) -> io::Result<()>;
    fn descriptor(&self) -> BorrowedFd<'_>;
    fn allocate(&self, at: u64, bytes: u64) -> io::Result<()>;
    fn data_from(&self, at: u64) -> io::Result<Option<u64>>;
    fn hole_from(&self, at: u64) -> io::Result<Option<u64>>;
    fn punch(&self, at: u64, bytes: u64) -> io::Result<()>;
    made of these:
    fn read_once_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        let read = self.read_at(buffer, at)?;
        // A hint: what stays costs memory, not bytes.
        let _ = self.forget_cached(at, read as u64);
        Ok(read)
    }
    fn sync_mapped(&self, map: &MmapRaw, start: usize, bytes: usize) -> io::Result<()> {
        let _ = (map, start, bytes);
        self.sync_data()
    }
}
