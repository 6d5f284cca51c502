//! A copy of a log whose first files are gone: it begins where the other one does.

use std::path::Path;
use std::sync::Arc;

use protocol::LogOffset;

use super::{CopyError, LogCopy};
use crate::error::StoreError;
use crate::governor::ColdPages;
use crate::lock::StoreLock;
use crate::options::{StoreEnv, StoreOptions};
use crate::segment::{Segment, file_name};

impl LogCopy {
    /// Lets the log of a closed store begin at `at`, where a file of the other log begins. The
    /// store has no message: it is new, or was opened and closed. If this does not come to its end,
    /// the store is empty as before.
    pub fn begin_at(options: &StoreOptions, env: &StoreEnv, at: LogOffset) -> Result<(), CopyError> {
        let segment_bytes = options.segment_bytes;
        if segment_bytes == 0 || !at.0.is_multiple_of(segment_bytes) {
            return Err(CopyError::NotAFile { at: at.0, segment_bytes });
        }
        let disk = &env.disk;
        let failed = |doing, path: &Path| {
            let path = path.to_owned();
            move |source| StoreError::Disk { doing, path, source }
        };
        disk.create_dir(&options.root).map_err(failed("make", &options.root))?;
        let _lock = StoreLock::take(&options.root)?;
        let dirs = options.log_dirs.taking().iter().chain(options.log_dirs.read_only());
        let mut files = Vec::new();
        for dir in dirs.map(|dir| dir.as_path()) {
            disk.create_dir(dir).map_err(failed("make", dir))?;
            for entry in disk.list(dir).map_err(failed("list", dir))? {
                let path = dir.join(&entry.name);
                let Ok(base) = entry.name.parse::<u64>() else { continue };
                if entry.is_dir || entry.name != file_name(base) {
                    continue;
                }
                let bytes = disk.len(&path).map_err(failed("measure", &path))?;
                if bytes > 0 {
                    let segment = Segment::look(disk, dir, base)?;
                    if segment.has_bytes(0..(*segment).as_ref().len()).map_err(failed("look at", &path))? {
                        return Err(CopyError::NotEmpty { path });
                    }
                }
                files.push((base, path, dir));
            }
        }
        // The last one first: what is left by a crash is a log that begins at 0 and has no gap.
        files.sort_unstable();
        for (_, path, dir) in files.iter().rev() {
            disk.remove(path).and_then(|()| disk.sync_dir(dir)).map_err(failed("remove", path))?;
        }
        let full_percent = options.retention.disk_clean_forcibly_percent;
        let dir = options.log_dirs.of_file(&**disk, at.0 / segment_bytes, full_percent);
        let segment = Segment::open(disk, dir, at.0, segment_bytes, &Arc::new(ColdPages::unbounded()))?;
        segment.sync().map_err(failed("sync", segment.path()))?;
        disk.sync_dir(dir).map_err(failed("sync", dir))?;
        Ok(())
    }
}
