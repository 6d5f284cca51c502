//! The files of the index, one behind the other: opened, filled, brought to the device, removed.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use disk::worker::Bell;
use disk::{Disk, Watermark};
use journal::{Journal, TableId};
use parking_lot::RwLock;
use tracing::warn;

use super::file::{Header, IndexFile, Shape};
use crate::error::StoreError;
use crate::fold::IndexKey;

const TABLE: TableId = TableId(249);
const PROGRESS: &[u8] = b"progress/1";

/// How the key index is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexOptions {
    /// `<root>/index`.
    pub dir: PathBuf,
    /// `maxHashSlotNum`: slots of a file.
    pub slots: u32,
    /// `maxIndexNum`: keys of a file, and one.
    pub entries: u32,
}

impl IndexOptions {
    /// Apache's defaults: files of 420,000,040 bytes, sparse as long as they are not full.
    pub fn at(dir: PathBuf) -> IndexOptions {
        IndexOptions { dir, slots: 5_000_000, entries: 20_000_000 }
    }
}

/// The files of the index, and how far they have come.
pub(crate) struct KeyIndex {
    dir: PathBuf,
    shape: Shape,
    disk: Arc<dyn Disk>,
    /// Oldest first. Guards the list only.
    pub(super) files: RwLock<Vec<Arc<IndexFile>>>,
    /// Records below are in the index.
    pub indexed: Watermark,
    pub bell: Bell,
    /// How many wait for the thread.
    pub(super) asked: AtomicUsize,
}

/// What the log has when the index is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogNow {
    pub min: u64,
    pub end: u64,
    pub was_abnormal: bool,
    /// Its files are of different moments.
    pub was_copied: bool,
}

impl KeyIndex {
    /// Opens the files. What cannot be trusted is removed; the log has it. Appends a sentence for each to `findings`.
    pub fn open(
        options: &IndexOptions,
        disk: &Arc<dyn Disk>,
        journal: &Journal,
        log: LogNow,
        findings: &mut Vec<String>,
    ) -> Result<KeyIndex, StoreError> {
        let shape = Shape { slots: options.slots.max(1), entries: options.entries.max(2) };
        let failed = |doing| move |source| StoreError::Disk { doing, path: options.dir.clone(), source };
        disk.create_dir(&options.dir).map_err(failed("make"))?;
        let mut names: Vec<String> = disk
            .list(&options.dir)
            .map_err(failed("list"))?
            .into_iter()
            .filter(|entry| !entry.is_dir && number_of(&entry.name).is_some())
            .map(|entry| entry.name)
            .collect();
        names.sort_unstable();
        let (mut files, mut unusable): (Vec<Arc<IndexFile>>, Vec<PathBuf>) = Default::default();
        let progress = Progress::load(journal);
        let is_sure = |file: &IndexFile| {
            file.is_full() || !log.was_abnormal && progress.is_some_and(|progress| progress.last == place_in(file))
        };
        for name in names {
            let path = options.dir.join(name);
            let opened = IndexFile::open(&**disk, path.clone(), shape)?;
            let kept = match opened {
                // The next file may be of a moment before this one was full.
                _ if log.was_copied => None,
                // The index has no gaps: what follows one that cannot be used is built again, too.
                Some(_) if !unusable.is_empty() => None,
                Some(file) if file.header().end_offset >= log.end as i64 && !file.header().is_empty() => None,
                Some(file) if !is_sure(&file) && !file.mend()? => None,
                other => other,
            };
            match kept {
                Some(file) => files.push(Arc::new(file)),
                None => {
                    if !log.was_copied {
                        findings.push(format!("{} cannot be used and is built again from the log", path.display()));
                    }
                    unusable.push(path);
                }
            }
        }
        // The newest first: a start that is interrupted leaves no gap that the next one would take
        // for a whole index.
        for path in unusable.iter().rev() {
            disk.remove(path).map_err(failed("clean"))?;
        }
        if !unusable.is_empty() {
            // They must not come back: the log may have lost its end, and other records lie there
            // soon.
            disk.sync_dir(&options.dir).map_err(failed("sync"))?;
        }
        let index = KeyIndex {
            dir: options.dir.clone(),
            shape,
            disk: Arc::clone(disk),
            files: RwLock::new(files),
            indexed: Watermark::new(0),
            bell: Bell::default(),
            asked: AtomicUsize::new(0),
        };
        index.indexed.advance(index.resume_at(progress, journal, log));
        Ok(index)
    }

    /// Where the log is read on. Without a note of how far that was, from the last record that is in a file, which counts as known
    /// unless the file had no room for all of its keys.
    fn resume_at(&self, progress: Option<Progress>, journal: &Journal, log: LogNow) -> u64 {
        let is_ours = |progress: &Progress| progress.last == self.last_entry() && progress.at <= log.end;
        let noted = progress.filter(is_ours).map(|progress| progress.at);
        if noted.is_none() {
            journal.delete(TABLE, PROGRESS);
        }
        let last = self.files.read().last().map(|file| file.header()).filter(|header| !header.is_empty());
        noted.or_else(|| last.and_then(|header| u64::try_from(header.end_offset).ok())).unwrap_or(0).max(log.min)
    }

    /// The newest file and how many entries it has.
    fn last_entry(&self) -> [u64; 2] {
        self.files.read().last().map_or([0, 0], |file| place_in(file))
    }

    /// The log offset of the newest record that is in a file with all its keys.
    pub(super) fn last_known(&self) -> Option<u64> {
        let files = self.files.read();
        let header = files.last().filter(|file| !file.is_full())?.header();
        (!header.is_empty()).then_some(header.end_offset).and_then(|at| u64::try_from(at).ok())
    }

    pub(super) fn put(&self, mut keys: &[IndexKey]) -> Result<(), StoreError> {
        while let Some(first) = keys.first() {
            let last = self.files.read().last().cloned();
            let file = match last {
                Some(file) if !file.is_full() => file,
                full => {
                    if let Some(full) = full {
                        full.sync()?;
                    }
                    self.add_file(first.store_timestamp)?
                }
            };
            keys = &keys[file.put(keys)?..];
        }
        Ok(())
    }

    fn add_file(&self, timestamp: i64) -> Result<Arc<IndexFile>, StoreError> {
        let name = name_at(timestamp).max(self.last_entry()[0] + 1);
        let file = Arc::new(IndexFile::create(&*self.disk, self.dir.join(format!("{name:017}")), self.shape)?);
        self.files.write().push(Arc::clone(&file));
        Ok(file)
    }

    /// Makes what is in the index survive a loss of power, and notes in the journal how far the log was read.
    pub fn sync(&self, journal: &Journal) -> Result<(), StoreError> {
        let at = self.indexed.get();
        let files = self.files.read().clone();
        for file in files.iter().filter(|file| !file.is_synced()) {
            file.sync()?;
        }
        if files.iter().any(|file| file.is_torn()) {
            self.forget_progress(journal);
            return Ok(());
        }
        let [name, count] = self.last_entry();
        journal.put(TABLE, PROGRESS, [name, count, at].map(u64::to_be_bytes).as_flattened());
        Ok(())
    }

    /// Lets the next start look for what a put that failed has left in the file.
    pub(super) fn forget_progress(&self, journal: &Journal) {
        journal.delete(TABLE, PROGRESS);
    }

    /// Removes files whose messages are all gone. The newest stays, as it is written.
    pub fn trim_below(&self, min: u64) {
        let mut files = self.files.write();
        let newest = files.len().saturating_sub(1);
        let gone = files[..newest].iter().take_while(|file| file.header().end_offset < min as i64).count();
        let gone: Vec<_> = files.drain(..gone).collect();
        drop(files);
        for file in gone {
            if let Err(error) = self.disk.remove(file.path()) {
                warn!(path = %file.path().display(), %error, "cannot remove a file of the key index");
            }
        }
    }

    /// Whether a file goes when the log begins at `min`.
    pub fn has_file_below(&self, min: u64) -> bool {
        let files = self.files.read();
        files.len() > 1 && files[0].header().end_offset < min as i64
    }

    pub(super) fn newest_header(&self) -> Option<Header> {
        self.files.read().last().map(|file| file.header())
    }

    /// Store time of the newest record that the index has on the device, in ms; 0 if there is none.
    pub fn synced_timestamp(&self) -> i64 {
        let files = self.files.read();
        let synced = files.iter().rev().map(|file| file.synced_header()).find(|header| !header.is_empty());
        synced.map_or(0, |header| header.end_timestamp)
    }
}

/// How far the index had come when it was brought to the device last.
#[derive(Clone, Copy, Debug)]
struct Progress {
    /// The newest file and its count, as [`place_in`] says them.
    last: [u64; 2],
    /// The log was read up to here.
    at: u64,
}

impl Progress {
    fn load(journal: &Journal) -> Option<Progress> {
        let mut progress = None;
        journal.load(TABLE, |key, value| {
            if let (PROGRESS, ([name, count, at], [])) = (key, value.as_chunks::<8>()) {
                let [name, count, at] = [*name, *count, *at].map(u64::from_be_bytes);
                progress = Some(Progress { last: [name, count], at });
            }
        });
        progress
    }
}

/// A file's name as a number, and that of its next entry.
fn place_in(file: &IndexFile) -> [u64; 2] {
    let name = file.path().file_name().and_then(|name| name.to_str()).and_then(number_of);
    [name.unwrap_or(0), u64::from(file.header().next)]
}

/// Whether a file of that name is one of the index.
pub(crate) fn is_index_file(name: &str) -> bool {
    number_of(name).is_some()
}

fn number_of(name: &str) -> Option<u64> {
    (name.len() == 17 && name.bytes().all(|byte| byte.is_ascii_digit())).then(|| name.parse().ok()).flatten()
}

/// `yyyyMMddHHmmssSSS` in UTC.
fn name_at(timestamp: i64) -> u64 {
    let (days, ms) = (timestamp.div_euclid(86_400_000), timestamp.rem_euclid(86_400_000));
    // Civil from days, with years that begin in March.
    let z = days + 719_468;
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + z.div_euclid(146_097) * 400 + i64::from(month <= 2);
    let date = (year * 100 + month) * 100 + day;
    let time = ((ms / 3_600_000) * 100 + ms / 60_000 % 60) * 100 + ms / 1000 % 60;
    u64::try_from((date * 1_000_000 + time) * 1000 + ms % 1000).unwrap_or(0)
}
