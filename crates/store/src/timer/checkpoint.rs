//! The file `config/timercheck`: how far timer messages are taken in and delivered. 4096 bytes, of which RocketMQ uses 56.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use disk::{Disk, DiskFile, OpenHow};

use crate::error::StoreError;

const FILE_BYTES: u64 = 4096;

/// How many bytes of the file mean something; also the answer to GET_TIMER_CHECK_POINT (60).
pub const TIMER_MARKS_BYTES: usize = 56;

/// The file's fields, in its order; big-endian, 8 bytes each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimerMarks {
    /// The first slot that is not done with, in ms.
    pub read_time: i64,
    /// Up to where the timer log is on the device.
    pub log_flushed: i64,
    /// The offset in `rmq_sys_wheel_timer` of the first message that is not taken in.
    pub queue_offset: i64,
    /// The same as the master says it; on a master, the same.
    pub master_queue_offset: i64,
    /// A data version: state version, time in ms, counter.
    pub version: [i64; 3],
}

impl TimerMarks {
    /// The 56 bytes.
    pub fn encode(&self) -> [u8; TIMER_MARKS_BYTES] {
        let [state, time, counter] = self.version;
        let fields =
            [self.read_time, self.log_flushed, self.queue_offset, self.master_queue_offset, state, time, counter];
        let mut bytes = [0; TIMER_MARKS_BYTES];
        bytes.copy_from_slice(fields.map(i64::to_be_bytes).as_flattened());
        bytes
    }

    /// What the 56 bytes say.
    pub fn decode(bytes: &[u8; TIMER_MARKS_BYTES]) -> TimerMarks {
        let mut fields = bytes.as_chunks::<8>().0.iter().map(|field| i64::from_be_bytes(*field));
        let mut next = || fields.next().unwrap_or_default();
        TimerMarks {
            read_time: next(),
            log_flushed: next(),
            queue_offset: next(),
            master_queue_offset: next(),
            version: [next(), next(), next()],
        }
    }
}

#[derive(Debug)]
pub(super) struct Checkpoint {
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    pub marks: TimerMarks,
}

impl Checkpoint {
    /// Opens the file, or makes it: all zeros.
    pub fn open(disk: &dyn Disk, root: &Path) -> Result<Checkpoint, StoreError> {
        let path = root.join("config").join("timercheck");
        let failed = |doing| {
            let path = path.clone();
            move |source| StoreError::Disk { doing, path, source }
        };
        disk.create_dir(&root.join("config")).map_err(failed("make the folder of"))?;
        let file = disk.open(&path, OpenHow::Create).map_err(failed("open"))?;
        let mut bytes = [0; TIMER_MARKS_BYTES];
        let read = file.read_at(&mut bytes, 0).map_err(failed("read"))?;
        let marks = if read == bytes.len() { TimerMarks::decode(&bytes) } else { TimerMarks::default() };
        if file.len().map_err(failed("measure"))? != FILE_BYTES {
            file.set_len(FILE_BYTES).map_err(failed("extend"))?;
        }
        Ok(Checkpoint { path, file, marks })
    }

    /// For whoever brings new marks to the device.
    pub fn file(&self) -> (&Path, &Arc<dyn DiskFile>) {
        (&self.path, &self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_survive_their_bytes() {
        let marks =
            TimerMarks { read_time: 1, log_flushed: 2, queue_offset: 3, master_queue_offset: -4, version: [5, 6, 7] };
        assert_eq!(TimerMarks::decode(&marks.encode()), marks);
        assert_eq!(&marks.encode()[8..16], &[0, 0, 0, 0, 0, 0, 0, 2]);
    }
}
