//! Finding the queues at start: 100,000 of them in seconds.
//!
//! Directories are listed and lengths asked for; of each queue, only the last file is opened, and of that the first page
//! is read (and more only where it is full). Several threads do it, since most of the time goes into waiting.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use protocol::{LogOffset, names};

use super::descriptors::file_path;
use super::queue::ConsumeQueue;
use super::unit::{UNIT_BYTES, Unit};
use super::{QueueError, QueueLogOptions, QueueLogs};
use crate::disk::{Disk, DiskFile, OpenHow};

/// What loading found.
#[derive(Debug, Default)]
pub struct Loaded {
    /// What was mended or looks strange, a sentence each.
    pub findings: Vec<String>,
    /// A queue lost units that the log may have: those of records from here on are to be pushed again, whatever the
    /// other queues say of the log's end.
    pub rebuild_from: Option<LogOffset>,
}

/// Threads that read directories and files: many more than cores, since on a cold start they wait for the device.
const THREADS: usize = 16;

/// Units read at first from a queue's last file: one page.
const PAGE_UNITS: u64 = 204;

/// A queue's files as listed: first byte and length, ascending.
struct Listed {
    topic: Arc<str>,
    id: u32,
    files: Vec<(u64, u64)>,
}

pub(super) fn load(
    dir: &Path,
    options: QueueLogOptions,
    disk: Arc<dyn Disk>,
) -> Result<(QueueLogs, Loaded), QueueError> {
    let configured = options.file_bytes.next_multiple_of(UNIT_BYTES as u64).max(UNIT_BYTES as u64);
    let mut loaded = Loaded::default();
    let topics: Vec<Arc<str>> =
        list(&*disk, dir)?.into_iter().filter(|entry| entry.is_dir).map(|entry| Arc::from(entry.name)).collect();
    let queues =
        in_parallel(&topics, |topic| list_topic(&*disk, dir, topic))?.into_iter().flatten().collect::<Vec<_>>();
    let listed = in_parallel(&queues, |(topic, id)| list_queue(&*disk, dir, topic, *id))?;
    let file_bytes = common_length(&listed, configured);
    if file_bytes != configured {
        loaded.findings.push(format!(
            "consume queue files on disk have {file_bytes} bytes, the configuration says {configured}: the files' size is kept"
        ));
    }
    let logs = QueueLogs::new(dir, file_bytes, options, disk);
    for (queue, findings) in in_parallel(&listed, |listed| logs.load_queue(listed))? {
        if !findings.is_empty() {
            let end = queue.log_end();
            loaded.rebuild_from = Some(loaded.rebuild_from.map_or(end, |from| from.min(end)));
            loaded.findings.extend(findings);
        }
        let mut topics = logs.topics.write();
        topics.entry(Arc::from(queue.topic())).or_default().push(queue);
    }
    let light = logs.topics.read().keys().filter(|topic| names::is_lmq(topic)).count();
    logs.light.store(light, Ordering::Relaxed);
    for queues in logs.topics.write().values_mut() {
        queues.sort_unstable_by_key(|queue| queue.id());
        queues.shrink_to_fit();
    }
    Ok((logs, loaded))
}

fn list(disk: &dyn Disk, dir: &Path) -> Result<Vec<crate::disk::DirEntry>, QueueError> {
    disk.list(dir).map_err(|source| QueueError::disk("list", dir, source))
}

fn list_topic(disk: &dyn Disk, root: &Path, topic: &Arc<str>) -> Result<Vec<(Arc<str>, u32)>, QueueError> {
    let entries = list(disk, &root.join(&**topic))?;
    let ids = entries.iter().filter(|entry| entry.is_dir).filter_map(|entry| entry.name.parse().ok());
    Ok(ids.map(|id| (Arc::clone(topic), id)).collect())
}

fn list_queue(disk: &dyn Disk, root: &Path, topic: &Arc<str>, id: u32) -> Result<Listed, QueueError> {
    let dir = queue_dir(root, topic, id);
    let mut files = Vec::new();
    for entry in list(disk, &dir)? {
        if entry.is_dir || entry.name.len() != 20 {
            continue;
        }
        if let Ok(first_byte) = entry.name.parse::<u64>() {
            let path = dir.join(&entry.name);
            files.push((first_byte, disk.len(&path).map_err(|source| QueueError::disk("look at", &path, source))?));
        }
    }
    files.sort_unstable();
    // As RocketMQ does: a file that was made and never extended holds nothing.
    if let Some(&(first_byte, 0)) = files.last() {
        let path = file_path(&dir, first_byte);
        disk.remove(&path).map_err(|source| QueueError::disk("remove", &path, source))?;
        files.pop();
    }
    Ok(Listed { topic: Arc::clone(topic), id, files })
}

fn queue_dir(root: &Path, topic: &str, id: u32) -> PathBuf {
    let mut dir = root.join(topic);
    dir.push(id.to_string());
    dir
}

/// The length that files have: the configured one if any file has it, else the one that most have.
///
/// A lone short file that could be the first of a configured size is one that lost its end, not a smaller size.
fn common_length(listed: &[Listed], configured: u64) -> u64 {
    let mut counts = BTreeMap::<u64, usize>::new();
    for &(_, bytes) in listed.iter().flat_map(|queue| &queue.files) {
        *counts.entry(bytes).or_default() += 1;
    }
    if counts.contains_key(&configured) {
        return configured;
    }
    let most = counts.into_iter().filter(|(bytes, _)| bytes.is_multiple_of(UNIT_BYTES as u64)).max_by_key(|&(_, n)| n);
    match most {
        Some((bytes, 1)) if bytes < configured && listed.iter().all(|queue| queue.files.len() <= 1) => configured,
        Some((bytes, _)) => bytes,
        None => configured,
    }
}

impl QueueLogs {
    fn load_queue(&self, listed: &Listed) -> Result<(Arc<ConsumeQueue>, Vec<String>), QueueError> {
        let Listed { topic, id, files } = listed;
        let queue = ConsumeQueue::new(Arc::clone(&self.shared), Arc::clone(topic), *id);
        let mut findings = Vec::new();
        let mut files = files.as_slice();
        self.check_lengths(&queue, files, &mut findings)?;
        let gap = files.windows(2).position(|pair| pair[0].0 + self.shared.file_bytes != pair[1].0);
        if let Some(gap) = gap {
            let (whole, beyond) = files.split_at(gap + 1);
            let last = file_path(&queue.dir(), files[gap].0);
            findings.push(format!(
                "{} is not followed by the next file: what comes after it is built again from the log",
                last.display()
            ));
            for &(first_byte, _) in beyond {
                let path = file_path(&queue.dir(), first_byte);
                self.shared.disk.remove(&path).map_err(|source| QueueError::disk("remove", &path, source))?;
            }
            files = whole;
        }
        let unit_of = |first_byte: u64| first_byte / UNIT_BYTES as u64;
        let Some(&(first, _)) = files.first() else { return Ok((Arc::new(queue), findings)) };
        queue.first_file.store(unit_of(first), Ordering::Relaxed);
        queue.min.store(unit_of(first), Ordering::Relaxed);
        // The end is in the last file that has a unit; a file after it was made and then the power went.
        for (place, &(first_byte, _)) in files.iter().enumerate().rev() {
            let end = self.end_of(&queue, unit_of(first_byte))?;
            if place == files.len() - 1 {
                queue.files_end.store(unit_of(first_byte) + self.shared.units_per_file(), Ordering::Relaxed);
            }
            if let Some((next, first_unit, last_unit)) = end {
                queue.next.store(next, Ordering::Relaxed);
                queue.log_end.store(if last_unit.is_blank() { 0 } else { last_unit.end().0 }, Ordering::Relaxed);
                if place == 0 && !first_unit.is_blank() {
                    queue.min_at_plus_one.store(first_unit.at.0 + 1, Ordering::Relaxed);
                }
                return Ok((Arc::new(queue), findings));
            }
        }
        queue.next.store(unit_of(first), Ordering::Relaxed);
        Ok((Arc::new(queue), findings))
    }

    fn check_lengths(
        &self,
        queue: &ConsumeQueue,
        files: &[(u64, u64)],
        findings: &mut Vec<String>,
    ) -> Result<(), QueueError> {
        let expected = self.shared.file_bytes;
        for (place, &(first_byte, bytes)) in files.iter().enumerate() {
            if bytes == expected && first_byte.is_multiple_of(expected) {
                continue;
            }
            let path = file_path(&queue.dir(), first_byte);
            if place + 1 < files.len() || bytes > expected || !first_byte.is_multiple_of(expected) {
                return Err(QueueError::FileLength { path, bytes, expected });
            }
            let disk = &self.shared.disk;
            disk.open(&path, OpenHow::Write)
                .and_then(|file| file.set_len(expected))
                .map_err(|source| QueueError::disk("extend", &path, source))?;
            findings.push(format!("{} had lost its end ({bytes} of {expected} bytes): extended", path.display()));
        }
        Ok(())
    }

    /// Of the file that begins with unit `file_start`: the queue's end as this file tells it, and its first and last unit.
    fn end_of(&self, queue: &ConsumeQueue, file_start: u64) -> Result<Option<(u64, Unit, Unit)>, QueueError> {
        let path = file_path(&queue.dir(), file_start * UNIT_BYTES as u64);
        let file =
            self.shared.disk.open(&path, OpenHow::Read).map_err(|source| QueueError::disk("open", &path, source))?;
        let failed = |source| QueueError::disk("read", &path, source);
        let mut page = [0; PAGE_UNITS as usize * UNIT_BYTES];
        let read = file.read_at(&mut page, 0).map_err(failed)?;
        let units: Vec<Unit> = page[..read].as_chunks().0.iter().map_while(Unit::decode).collect();
        let (Some(first), Some(last)) = (units.first(), units.last()) else { return Ok(None) };
        if (units.len() as u64) < PAGE_UNITS {
            return Ok(Some((file_start + units.len() as u64, *first, *last)));
        }
        // Double the step while there are units, then halve.
        let total = self.shared.units_per_file();
        let unit_at = |place: u64| read_unit(&*file, place).map_err(failed);
        let mut step = PAGE_UNITS;
        while step < total && unit_at(step)?.is_some() {
            step = (step * 2).min(total);
        }
        let end = queue.first_that(step / 2, step.min(total), |place| Ok(unit_at(place)?.is_none()))?;
        let last = unit_at(end - 1)?.unwrap_or(*last);
        Ok(Some((file_start + end, *first, last)))
    }
}

fn read_unit(file: &dyn DiskFile, place: u64) -> std::io::Result<Option<Unit>> {
    let mut raw = [0; UNIT_BYTES];
    let read = file.read_at(&mut raw, place * UNIT_BYTES as u64)?;
    Ok(if read == UNIT_BYTES { Unit::decode(&raw) } else { None })
}

/// Does `work` for each item on a few threads; results in the items' order, or the first error.
fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    work: impl Fn(&T) -> Result<R, QueueError> + Sync,
) -> Result<Vec<R>, QueueError> {
    if items.len() < 64 {
        return items.iter().map(work).collect();
    }
    let next = AtomicUsize::new(0);
    let done = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                // Ends when the items do: each turn takes the next stretch.
                loop {
                    let from = next.fetch_add(STRETCH, Ordering::Relaxed);
                    let Some(stretch) = items.get(from..(from + STRETCH).min(items.len())).filter(|s| !s.is_empty())
                    else {
                        return;
                    };
                    let results: Result<Vec<R>, QueueError> = stretch.iter().map(&work).collect();
                    done.lock().insert(from, results);
                }
            });
        }
    });
    let mut all = Vec::with_capacity(items.len());
    for results in done.into_inner().into_values() {
        all.extend(results?);
    }
    Ok(all)
}

/// Items that a loading thread takes at once.
const STRETCH: usize = 32;
