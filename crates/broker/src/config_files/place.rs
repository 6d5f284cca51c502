//! Replacing a file, so that at every moment it or its backup is whole.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::ConfigFilesError;

/// The end of a backup's name.
pub(super) const BACKUP: &str = "bak";

/// Where the file lies that stands in for one that is missing.
pub(super) fn backup(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(BACKUP);
    name.into()
}

/// The old file becomes the backup, the new one takes its place; at every moment one of the two is whole. A file that is a mount of its own
/// cannot be moved: it is copied to its backup, and then written in place.
pub(crate) fn put_in_place(path: &Path, bytes: &[u8]) -> Result<(), ConfigFilesError> {
    let failed = |what, path: &Path| {
        let path = path.to_owned();
        move |cause| ConfigFilesError::Io { what, path, cause }
    };
    // The parent of a bare name is empty.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(failed("create", folder))?;
    let mut new = path.as_os_str().to_owned();
    new.push(".tmp");
    let new = PathBuf::from(new);
    let mut file = File::create(&new).map_err(failed("create", &new))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(failed("write", &new))?;
    match fs::rename(path, backup(path)) {
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            // What was prepared is of no use there.
            let _ = fs::remove_file(&new);
            return write_mounted(path, bytes);
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("rename", path)(error)),
        Ok(()) | Err(_) => {}
    }
    fs::rename(&new, path).map_err(failed("rename", &new))?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed("sync", folder))
}

fn write_mounted(path: &Path, bytes: &[u8]) -> Result<(), ConfigFilesError> {
    let before = fs::read(path).map_err(|cause| ConfigFilesError::Io { what: "read", path: path.to_owned(), cause })?;
    config::file::write(&backup(path), &before)?;
    Ok(config::file::write(path, bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_its_predecessor_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config/topics.json");
        put_in_place(&path, b"one").unwrap();
        put_in_place(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read(backup(&path)).unwrap(), b"one");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 2);
    }
}
