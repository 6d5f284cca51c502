//! The one writer of files that belong to somebody else: property files, and what else may be mounted or linked into its place.
//!
//! A file is more than its bytes: it has a mode, an owner, access lists, other names, and links that lead to it. All of that stays. A new
//! file takes the place of the old one where it can be given all of that; elsewhere, as in a container where the file is a mount of
//! its own, the old one is written in place. Success means that the device has it.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, FallocateFlags, Gid, Uid, XattrFlags};
use rustix::io::Errno;

use crate::properties::{self, BadEscape};

/// A property file that is longer is none.
pub const BYTES_MAX: u64 = 16 << 20;
/// The kernel follows as many.
const LINKS_MAX: usize = 40;
/// No file system lists or keeps more of them.
const ATTRIBUTE_BYTES_MAX: usize = 64 << 10;

/// Why a file is as it was.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file system says no.
    #[error("cannot {doing} {}: {source}", .path.display())]
    Io {
        /// read, create …
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Neither way is open.
    #[error("{} can neither be replaced ({replacing}) nor written in place ({in_place})", .path.display())]
    NeitherWay {
        /// The file.
        path: PathBuf,
        /// Why no other file can take its place.
        replacing: String,
        /// Why its bytes cannot be changed.
        in_place: io::Error,
    },
    /// A line of it cannot be read.
    #[error("{}: {bad}", .path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line.
        bad: BadEscape,
    },
    /// It cannot be a property file.
    #[error("{} is {bytes} bytes long; a property file has {BYTES_MAX} at most", .path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
    },
}

/// Reads a whole file, if it is no longer than [`BYTES_MAX`].
///
/// # Errors
/// If it cannot be read, or is longer.
pub fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    let failed = |source| FileError::Io { doing: "read", path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    match bytes.len() as u64 {
        long if long > BYTES_MAX => Err(FileError::TooLong { path: path.to_owned(), bytes: long }),
        _ => Ok(bytes),
    }
}

/// Changes settings in a property file, and leaves everything else of it as it is. One that is not there is made.
///
/// # Errors
/// If the file cannot be read or written; it is then as it was, as far as the device lets it be.
pub fn change(path: &Path, changes: &[(String, String)]) -> Result<(), FileError> {
    let before = match read(path) {
        Err(FileError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Vec::new(),
        read => read?,
    };
    let after =
        properties::with_changes(&before, changes).map_err(|bad| FileError::Syntax { path: path.to_owned(), bad })?;
    if after.len() as u64 > BYTES_MAX {
        // No start would read it.
        return Err(FileError::TooLong { path: path.to_owned(), bytes: after.len() as u64 });
    }
    write(path, &after)
}

/// Gives a file these bytes and leaves what it has besides them. One that is not there is made, with its folder.
///
/// # Errors
/// If neither a new file can take its place nor its own bytes can be changed.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let failed = |doing| {
        let path = path.to_owned();
        move |source| FileError::Io { doing, path, source }
    };
    let place = Place::of(path).map_err(failed("find"))?;
    let old = match File::open(&place.file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::create_dir_all(&place.folder).map_err(failed("make the folder of"))?;
            let prepared = place.prepare(bytes, None).map_err(failed("create"))?;
            return place.swap(prepared).map_err(failed("create"));
        }
        opened => opened.map_err(failed("open"))?,
    };
    let about = old.metadata().map_err(failed("look at"))?;
    if !about.is_file() {
        return Err(failed("write")(io::Error::other("it is not a regular file")));
    }
    // A new file could take the place of one that must not be written to: that is not what its owner asked for.
    rustix::fs::access(&place.file, Access::WRITE_OK).map_err(|errno| failed("write")(errno.into()))?;
    let replacing = match about.nlink() {
        1 => match place.prepare(bytes, Some(&old)) {
            Ok(prepared) => match fs::rename(&prepared, &place.file) {
                Ok(()) => return place.sync_folder().map_err(failed("sync the folder of")),
                Err(error) => {
                    // Left behind, it would only be replaced by the next one.
                    let _ = fs::remove_file(&prepared);
                    error.to_string()
                }
            },
            Err(error) => error.to_string(),
        },
        links => format!("it has {links} names"),
    };
    place.write_in_place(&old, bytes).map_err(|in_place| FileError::NeitherWay {
        path: path.to_owned(),
        replacing,
        in_place,
    })
}

/// The copy of a file as it was before it was written in place, if that was cut short.
pub fn cut_short(path: &Path) -> Option<PathBuf> {
    let copy = Place::of(path).ok()?.beside("before");
    copy.exists().then_some(copy)
}

/// Where the bytes are: behind the links.
struct Place {
    file: PathBuf,
    folder: PathBuf,
}

impl Place {
    fn of(path: &Path) -> io::Result<Place> {
        let mut file = path.to_owned();
        for _ in 0..LINKS_MAX {
            // The parent of a bare name is empty.
            let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            match fs::read_link(&file) {
                Ok(target) => file = folder.join(target),
                Err(_) => return Ok(Place { folder: folder.to_owned(), file }),
            }
        }
        Err(Errno::LOOP.into())
    }

    fn beside(&self, what: &str) -> PathBuf {
        let mut name = OsString::from(".");
        name.push(self.file.file_name().unwrap_or_default());
        name.push(".gantry-");
        name.push(what);
        self.folder.join(name)
    }

    /// A new file beside, on the device, with all that the old one has besides its bytes.
    fn prepare(&self, bytes: &[u8], old: Option<&File>) -> io::Result<PathBuf> {
        let new = self.beside("new");
        self.fill(&new, bytes, old).inspect_err(|_| {
            // It may not even have been made.
            let _ = fs::remove_file(&new);
        })?;
        Ok(new)
    }

    fn fill(&self, new: &Path, bytes: &[u8], old: Option<&File>) -> io::Result<()> {
        match fs::remove_file(new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            // One that a crash has left.
            Ok(()) | Err(_) => {}
        }
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        if old.is_some() {
            // Nobody else may read it before it has the mode of the old one.
            options.mode(0o600);
        }
        let mut file = options.open(new)?;
        file.write_all(bytes)?;
        if let Some(old) = old {
            give_the_rest(old, &file)?;
        }
        file.sync_all()
    }

    /// Puts what was prepared into the place of a file that is not there.
    fn swap(&self, prepared: PathBuf) -> io::Result<()> {
        fs::rename(prepared, &self.file)?;
        self.sync_folder()
    }

    fn sync_folder(&self) -> io::Result<()> {
        File::open(&self.folder)?.sync_all()
    }

    /// Changes the bytes of the file itself. A kill at any moment leaves the old or the new settings; against a loss of power there is a
    /// copy of the old ones beside it, where the folder takes one.
    fn write_in_place(&self, old: &File, bytes: &[u8]) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(&self.file)?;
        let mut before = Vec::new();
        let most = BYTES_MAX.max(2 * bytes.len() as u64);
        old.take(most + 1).read_to_end(&mut before)?;
        if before.len() as u64 > most {
            return Err(io::Error::other(format!("it is longer than {most} bytes")));
        }
        if bytes.len() > before.len() {
            // Room first: a full disk must not leave half a line. A file system that cannot say it beforehand says it when it is written.
            let room = rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, bytes.len() as u64);
            if let Err(errno @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) = room {
                return Err(errno.into());
            }
        }
        let copy = self.beside("before");
        let has_copy = self.fill(&copy, &before, Some(old)).and_then(|()| self.sync_folder()).is_ok();
        if !has_copy {
            // Half a copy would be taken for a whole one.
            let _ = fs::remove_file(&copy);
        }
        overwrite(&file, &before, bytes).inspect_err(|_| {
            // Back to what it was. If that fails too, the copy beside it stays.
            if overwrite(&file, bytes, &before).is_ok() {
                let _ = fs::remove_file(&copy);
            }
        })?;
        if has_copy {
            let _ = fs::remove_file(&copy);
        }
        Ok(())
    }
}

/// Puts `after` where `before` is, in one write from the first byte that differs. What becomes too much is line ends until it is cut off.
fn overwrite(file: &File, before: &[u8], after: &[u8]) -> io::Result<()> {
    let same = before.iter().zip(after).take_while(|(one, other)| one == other).count();
    let mut padded = after[same..].to_vec();
    padded.resize(before.len().max(after.len()) - same, b'\n');
    file.write_all_at(&padded, same as u64)?;
    file.set_len(after.len() as u64)?;
    file.sync_all()
}

/// Gives a new file the mode, the owner, the group, and the attributes of an old one, access lists among them.
fn give_the_rest(old: &File, new: &File) -> io::Result<()> {
    let (from, to) = (old.metadata()?, new.metadata()?);
    if (from.uid(), from.gid()) != (to.uid(), to.gid()) {
        rustix::fs::fchown(new, Some(Uid::from_raw(from.uid())), Some(Gid::from_raw(from.gid())))?;
    }
    // After the owner, whose change clears bits of it.
    new.set_permissions(fs::Permissions::from_mode(from.mode() & 0o7777))?;
    for name in attributes(old)? {
        let value = attribute(old, &name)?;
        if attribute(new, &name).ok().as_ref() != Some(&value) {
            rustix::fs::fsetxattr(new, name.as_slice(), &value, XattrFlags::empty())?;
        }
    }
    Ok(())
}

/// The names of a file's extended attributes.
fn attributes(file: &File) -> io::Result<Vec<Vec<u8>>> {
    let mut names = vec![0; ATTRIBUTE_BYTES_MAX];
    let length = match rustix::fs::flistxattr(file, &mut names) {
        Err(Errno::NOTSUP) => 0,
        listed => listed?,
    };
    Ok(names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect())
}

fn attribute(file: &File, name: &[u8]) -> io::Result<Vec<u8>> {
    let mut value = vec![0; ATTRIBUTE_BYTES_MAX];
    let length = rustix::fs::fgetxattr(file, name, &mut value)?;
    value.truncate(length);
    Ok(value)
}

#[cfg(test)]
mod tests;
