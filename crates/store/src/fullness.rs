//! How full the file systems are that the store needs: that of the log, and those of the consume queues and of the rest.
//!
//! The log has room as long as one of its folders has. The store's root (index, check-points, timers, journal) and the consume queues, which may have
//! been given a device of their own there, have no other place to go to. The fullest of these three is what limits are held against.

use std::error::Error;
use std::io;
use std::path::Path;

use disk::Disk;
use rustix::io::Errno;

use crate::log_dirs::Unmeasured;
use crate::options::StoreOptions;
use crate::store::Shared;

/// A folder, and how full its file system is, in percent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fullness<'a> {
    pub path: &'a Path,
    pub used: u8,
}

/// Of the log, and of what else the store needs. What does not say how full it is, is passed over: the limits hold for the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreFullness<'a> {
    /// The log's emptiest folder.
    pub log: Option<Fullness<'a>>,
    /// The fuller one of the store's root and the consume queues.
    pub rest: Option<Fullness<'a>>,
}

impl<'a> StoreFullness<'a> {
    /// Looks at them.
    pub fn of(options: &'a StoreOptions, disk: &dyn Disk, unmeasured: &mut Vec<Unmeasured>) -> StoreFullness<'a> {
        let emptiest = options.log_dirs.emptiest(disk, unmeasured);
        let log = emptiest.map(|(path, space)| Fullness { path, used: space.used_percent() });
        let mut rest: Option<Fullness<'a>> = None;
        for path in [&*options.root, &*options.queue_dir] {
            match disk.space(path) {
                Ok(space) => {
                    let fullness = Fullness { path, used: space.used_percent() };
                    rest = rest.filter(|rest| rest.used >= fullness.used).or(Some(fullness));
                }
                Err(source) => unmeasured.push(Unmeasured { path: path.to_owned(), source }),
            }
        }
        StoreFullness { log, rest }
    }

    /// The one that is fuller; the log if they are alike, as on a single file system. None if neither says how full it is.
    pub fn fullest(&self) -> Option<Fullness<'a>> {
        let log = self.log.filter(|log| self.rest.is_none_or(|rest| rest.used <= log.used));
        log.or(self.rest)
    }

    /// The one that files of the log have to go for, whatever their age, if one is fuller than `limit` and has something of it.
    pub fn forcing(&self, shared: &Shared, limit: u8) -> Option<Fullness<'a>> {
        let log = self.log.filter(|log| log.used > limit);
        let rest = || self.rest.filter(|rest| rest.used > limit && is_freed_with_the_log(shared, rest.path));
        log.or_else(rest)
    }
}

/// Whether the file system of `path` has files that go when old ones of the log do: some of the log itself, or of queues and key index that point
/// into nothing else. What others have written there does not go, and nobody is to lose messages for it.
fn is_freed_with_the_log(shared: &Shared, path: &Path) -> bool {
    let end = shared.log.end.get();
    let mut segments = shared.log.segments();
    segments.retain(|segment| segment.end() <= end);
    let Some(newest) = segments.last() else { return false };
    if shared.queues.has_file_below(newest.end())
        || shared.index.as_ref().is_some_and(|index| index.has_file_below(newest.end()))
    {
        return true;
    }
    let Ok(device) = shared.disk.device(path) else { return false };
    segments.iter().any(|segment| shared.disk.device(segment.path()).is_ok_and(|of| of == device))
}

/// What was said when a file was to grow, and what helps against it; of a file system without room also how full it is. A full device, a full quota and
/// a file that may not be so long are the same to it.
pub(crate) fn with_remedy(disk: &dyn Disk, dir: &Path, error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error: &&(dyn Error + 'static)| (*error).source());
    // The innermost is the system's.
    let Some(cause) = causes.filter_map(|error| error.downcast_ref::<io::Error>()).last() else {
        return error.to_string();
    };
    let remedy = match (cause.kind(), Errno::from_io_error(cause)) {
        (io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge, _) => {
            let Ok(space) = disk.space(dir) else { return format!("{error}; free space") };
            return format!(
                "{error}; {} % of the device are in use, {} of {} bytes are left; free space",
                space.used_percent(),
                space.available,
                space.total
            );
        }
        (io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied, _) => "make the folder writable again",
        (_, Some(Errno::MFILE | Errno::NFILE)) => "let the process have more open files (ulimit -n, fs.file-max)",
        _another => "look after the device: the kernel's log says more",
    };
    format!("{error}; {remedy}")
}
