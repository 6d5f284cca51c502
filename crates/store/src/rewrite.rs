//! The bytes of a file, written once more: pages that the kernel takes for clean are to be written again, and go to the device with the next sync.

use std::io;

use disk::DiskFile;

/// Bytes of a write.
const PIECE_BYTES: usize = 1 << 20;

/// Which half of it failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failed {
    /// What is there cannot be read.
    #[error("{0}")]
    Read(#[source] io::Error),
    /// It cannot be brought to the device.
    #[error("{0}")]
    Write(#[source] io::Error),
}

impl From<Failed> for io::Error {
    fn from(failed: Failed) -> io::Error {
        match failed {
            Failed::Read(source) | Failed::Write(source) => source,
        }
    }
}

/// Writes the bytes `from..to` of a file again, as far as there are any. Returns how many.
pub(crate) fn write_all(file: &dyn DiskFile, from: u64, to: u64) -> Result<u64, Failed> {
    let mut piece = vec![0; to.saturating_sub(from).min(PIECE_BYTES as u64) as usize];
    let mut at = from;
    // Each turn writes a piece, or finds the file's end.
    while at < to {
        let wanted = (to - at).min(PIECE_BYTES as u64) as usize;
        let read = file.read_at(&mut piece[..wanted], at).map_err(Failed::Read)?;
        if read == 0 {
            break;
        }
        file.write_at(&piece[..read], at).map_err(Failed::Write)?;
        at += read as u64;
    }
    Ok(at - from)
}

/// The same without what was never written, as far as the file system knows.
pub(crate) fn write_data(file: &dyn DiskFile, from: u64, to: u64) -> Result<u64, Failed> {
    let (mut at, mut written) = (from, 0);
    // Each turn passes a stretch that holds something.
    while at < to
        && let Some(data) = file.data_from(at).map_err(Failed::Read)?.filter(|data| *data < to)
    {
        let hole = file.hole_from(data).map_err(Failed::Read)?;
        let hole = hole.filter(|hole| *hole > data).map_or(to, |hole| hole.min(to));
        written += write_all(file, data, hole)?;
        at = hole;
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use disk::{Disk, OpenHow, RealDisk};

    use super::*;

    #[test]
    fn bytes_are_what_they_were_and_holes_stay_holes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let file = RealDisk.open(&path, OpenHow::Create).unwrap();
        file.set_len(8 << 20).unwrap();
        file.write_at(&[7; 5000], 100).unwrap();
        file.write_at(&vec![9; 2 << 20], 4 << 20).unwrap();
        let before = std::fs::read(&path).unwrap();
        let written = write_data(&*file, 0, 8 << 20).unwrap();
        assert!(((2 << 20) + 5000..3 << 20).contains(&written), "{written}");
        assert_eq!(write_all(&*file, 50, 8 << 20).unwrap(), (8 << 20) - 50);
        assert_eq!(write_all(&*file, (8 << 20) - 10, 9 << 20).unwrap(), 10, "there is no more");
        assert_eq!(write_all(&*file, 9 << 20, 8 << 20).unwrap(), 0);
        assert!(std::fs::read(&path).unwrap() == before);
    }
}
