//! Finding the queues at start: 100,000 of them in seconds.
//!
//! Directories are listed and lengths asked for; of each queue, only the last file is opened, and of that the page is read where what was
//! written ends, as the file system says (where it does not know, the first one, and more where that is full), and of the first file the first unit.
//! Several threads do it, since most of the time goes into waiting.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use disk::{Disk, DiskFile, OpenHow};
use parking_lot::Mutex;
use protocol::{LogOffset, names};

use super::batch::Span;
use super::batch_unit::BATCH_UNIT_BYTES;
use super::descriptors::file_path;
use super::error::QueueError;
use super::layout::Layout;
use super::queue::ConsumeQueue;
use super::unit::{RAW_BYTES_MAX, UNIT_BYTES};
use super::{QueueLogOptions, QueueLogs};

/// What loading found.
#[derive(Debug, Default)]
pub struct Loaded {
    /// What was mended or looks strange, a sentence each.
    pub findings: Vec<String>,
    /// A queue lost units that the log may have: those of records from here on are to be pushed again, whatever the
    /// other queues say of the log's end.
    pub rebuild_from: Option<LogOffset>,
    /// The last unit of each queue that has one.
    pub ends: Vec<(Arc<ConsumeQueue>, Span)>,
    /// Queues whose files may hold something behind their ends.
    pub with_remains: Vec<Arc<ConsumeQueue>>,
}

/// A queue as it was found.
struct LoadedQueue {
    queue: Arc<ConsumeQueue>,
    last: Option<Span>,
    has_remains: bool,
    findings: Vec<String>,
}

/// Where units end, as one file tells it.
struct FileEnd {
    next_place: u64,
    /// The last one.
    last: Span,
    /// Something may be behind them in that file.
    has_remains: bool,
}

/// Threads that read directories and files: many more than cores, since on a cold start they wait for the device.
const THREADS: usize = 16;

/// Bytes read at first from a queue's last file.
const PAGE_BYTES: usize = 4096;

/// A queue's files as listed: first byte and length, ascending.
struct Listed {
    topic: Arc<str>,
    id: u32,
    is_batch: bool,
    files: Vec<(u64, u64)>,
}

pub(super) fn load(
    dir: &Path,
    options: QueueLogOptions,
    disk: Arc<dyn Disk>,
) -> Result<(QueueLogs, Loaded), QueueError> {
    let mut loaded = Loaded::default();
    let batch_dir = options.batch_dir.clone().unwrap_or_else(|| dir.with_file_name("batchconsumequeue"));
    let (batch, mut listed) =
        list_root(&*disk, &batch_dir, true, options.batch_file_bytes, BATCH_UNIT_BYTES, &mut loaded.findings)?;
    let (simple, simple_listed) = list_root(&*disk, dir, false, options.file_bytes, UNIT_BYTES, &mut loaded.findings)?;
    let batch_topics: HashSet<Arc<str>> = listed.iter().map(|queue| Arc::clone(&queue.topic)).collect();
    let (both, simple_listed): (Vec<_>, Vec<_>) =
        simple_listed.into_iter().partition(|queue| batch_topics.contains(&queue.topic));
    if let Some(queue) = both.first() {
        loaded.findings.push(format!(
            "topic {} has ordinary consume queues and queues for batches: the ordinary ones are not looked at",
            queue.topic
        ));
    }
    listed.extend(simple_listed);
    let logs = QueueLogs::new(simple, batch, options, disk);
    for LoadedQueue { queue, last, has_remains, findings } in in_parallel(&listed, |listed| logs.load_queue(listed))? {
        if !findings.is_empty() {
            let end = queue.log_end();
            loaded.rebuild_from = Some(loaded.rebuild_from.map_or(end, |from| from.min(end)));
            loaded.findings.extend(findings);
        }
        loaded.ends.extend(last.map(|last| (Arc::clone(&queue), last)));
        if has_remains {
            loaded.with_remains.push(Arc::clone(&queue));
        }
        logs.topics.write().insert(queue);
    }
    let light = logs.topics.read().iter().flat_map(<[_]>::first).filter(|queue| names::is_lmq(queue.topic())).count();
    logs.light.store(light, Ordering::Relaxed);
    Ok((logs, loaded))
}

/// The queues below a folder, and how their files are laid out.
fn list_root(
    disk: &dyn Disk,
    dir: &Path,
    is_batch: bool,
    file_bytes: u64,
    unit_bytes: usize,
    findings: &mut Vec<String>,
) -> Result<(Layout, Vec<Listed>), QueueError> {
    let configured = file_bytes.next_multiple_of(unit_bytes as u64).max(unit_bytes as u64);
    let topics: Vec<Arc<str>> =
        list(disk, dir)?.into_iter().filter(|entry| entry.is_dir).map(|entry| Arc::from(entry.name)).collect();
    let queues = in_parallel(&topics, |topic| list_topic(disk, dir, topic))?.into_iter().flatten().collect::<Vec<_>>();
    let listed = in_parallel(&queues, |(topic, id)| list_queue(disk, dir, topic, *id, is_batch))?;
    let file_bytes = common_length(&listed, configured, unit_bytes);
    if file_bytes != configured {
        let kind = if is_batch { "batch consume queue" } else { "consume queue" };
        findings.push(format!(
            "{kind} files on disk have {file_bytes} bytes, the configuration says {configured}: the files' size is kept"
        ));
    }
    Ok((Layout { dir: dir.to_owned(), file_bytes, unit_bytes }, listed))
}

fn list(disk: &dyn Disk, dir: &Path) -> Result<Vec<disk::DirEntry>, QueueError> {
    disk.list(dir).map_err(|source| QueueError::disk("list", dir, source))
}

fn list_topic(disk: &dyn Disk, root: &Path, topic: &Arc<str>) -> Result<Vec<(Arc<str>, u32)>, QueueError> {
    let entries = list(disk, &root.join(&**topic))?;
    let ids = entries.iter().filter(|entry| entry.is_dir).filter_map(|entry| entry.name.parse().ok());
    Ok(ids.map(|id| (Arc::clone(topic), id)).collect())
}

fn list_queue(disk: &dyn Disk, root: &Path, topic: &Arc<str>, id: u32, is_batch: bool) -> Result<Listed, QueueError> {
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
    Ok(Listed { topic: Arc::clone(topic), id, is_batch, files })
}

fn queue_dir(root: &Path, topic: &str, id: u32) -> PathBuf {
    let mut dir = root.join(topic);
    dir.push(id.to_string());
    dir
}

/// The length that files have: the configured one if any file has it, else the one that most have.
///
/// A lone short file that could be the first of a configured size is one that lost its end, not a smaller size.
fn common_length(listed: &[Listed], configured: u64, unit_bytes: usize) -> u64 {
    let mut counts = BTreeMap::<u64, usize>::new();
    for &(_, bytes) in listed.iter().flat_map(|queue| &queue.files) {
        *counts.entry(bytes).or_default() += 1;
    }
    if counts.contains_key(&configured) {
        return configured;
    }
    let most = counts.into_iter().filter(|(bytes, _)| bytes.is_multiple_of(unit_bytes as u64)).max_by_key(|&(_, n)| n);
    match most {
        Some((bytes, 1)) if bytes < configured && listed.iter().all(|queue| queue.files.len() <= 1) => configured,
        Some((bytes, _)) => bytes,
        None => configured,
    }
}

impl QueueLogs {
    fn load_queue(&self, listed: &Listed) -> Result<LoadedQueue, QueueError> {
        let Listed { topic, id, is_batch, files } = listed;
        let queue = ConsumeQueue::new(Arc::clone(&self.shared), Arc::clone(topic), *id, *is_batch);
        let layout = queue.layout();
        let mut findings = Vec::new();
        let mut files = files.as_slice();
        self.check_lengths(&queue, files, &mut findings)?;
        let gap = files.windows(2).position(|pair| pair[0].0 + layout.file_bytes != pair[1].0);
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
        let place_of = |first_byte: u64| first_byte / layout.unit_bytes as u64;
        let Some(&(first_byte, _)) = files.first() else {
            return Ok(LoadedQueue { queue: Arc::new(queue), last: None, has_remains: false, findings });
        };
        let first = place_of(first_byte);
        queue.first_file.store(first, Ordering::Relaxed);
        // The end is in the last file that has a unit; a file after it was made and then the power went.
        for (number, &(first_byte, _)) in files.iter().enumerate().rev() {
            let start = place_of(first_byte);
            if number == files.len() - 1 {
                queue.files_end.store(start + layout.units_per_file(), Ordering::Relaxed);
            }
            let Some(FileEnd { next_place, last, has_remains }) = self.end_of(&queue, start)? else { continue };
            let has_remains = has_remains || number + 1 < files.len();
            queue.log_end.store(if last.unit.is_blank() { 0 } else { last.unit.end().0 }, Ordering::Relaxed);
            let oldest = self.first_of(&queue, first)?;
            if let Some(batches) = &queue.batches {
                batches.min.store(first, Ordering::Relaxed);
                batches.next.store(next_place, Ordering::Relaxed);
                queue.next.store(last.next(), Ordering::Relaxed);
                queue.min.store(oldest.unwrap_or(last).base, Ordering::Relaxed);
            } else {
                queue.next.store(next_place, Ordering::Relaxed);
                queue.min.store(first, Ordering::Relaxed);
            }
            if number == 0
                && let Some(oldest) = oldest.filter(|span| !span.unit.is_blank() && span.unit.at <= last.unit.at)
            {
                queue.min_at_plus_one.store(oldest.unit.at.0 + 1, Ordering::Relaxed);
            }
            return Ok(LoadedQueue { queue: Arc::new(queue), last: Some(last), has_remains, findings });
        }
        if let Some(batches) = &queue.batches {
            batches.min.store(first, Ordering::Relaxed);
            batches.next.store(first, Ordering::Relaxed);
        } else {
            queue.min.store(first, Ordering::Relaxed);
            queue.next.store(first, Ordering::Relaxed);
        }
        Ok(LoadedQueue { queue: Arc::new(queue), last: None, has_remains: true, findings })
    }

    fn check_lengths(
        &self,
        queue: &ConsumeQueue,
        files: &[(u64, u64)],
        findings: &mut Vec<String>,
    ) -> Result<(), QueueError> {
        let expected = queue.layout().file_bytes;
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

    /// The queue's end, as the file tells it that begins at the place `file_start`; none if it begins with no unit.
    fn end_of(&self, queue: &ConsumeQueue, file_start: u64) -> Result<Option<FileEnd>, QueueError> {
        let (path, file) = self.open_file(queue, file_start)?;
        let failed = |source| QueueError::disk("read", &path, source);
        if let Some(end) = end_at_hole(queue, &*file, file_start).map_err(failed)? {
            return Ok(Some(end));
        }
        let (unit_bytes, is_batch) = (queue.layout().unit_bytes, queue.is_batch());
        let page_units = (PAGE_BYTES / unit_bytes) as u64;
        let mut page = [0; PAGE_BYTES];
        let page = &mut page[..PAGE_BYTES / unit_bytes * unit_bytes];
        let read = file.read_at(page, 0).map_err(failed)?;
        let raws = page[..read].chunks_exact(unit_bytes).enumerate();
        let units = raws.map_while(|(place, raw)| Span::decode(is_batch, file_start + place as u64, raw));
        let Some((count, last)) = units.enumerate().last() else { return Ok(None) };
        let count = count as u64 + 1;
        if count < page_units {
            return Ok(Some(FileEnd { next_place: file_start + count, last, has_remains: true }));
        }
        // Double the step while there are units, then halve.
        let total = queue.layout().units_per_file();
        let unit_at = |place: u64| read_unit(queue, &*file, file_start, place).map_err(failed);
        let mut step = page_units;
        while step < total && unit_at(step)?.is_some() {
            step = (step * 2).min(total);
        }
        let end = queue.first_that(step / 2, step.min(total), |place| Ok(unit_at(place)?.is_none()))?;
        let last = unit_at(end - 1)?.unwrap_or(last);
        Ok(Some(FileEnd { next_place: file_start + end, last, has_remains: end < total }))
    }

    /// The first unit of the file that begins at the place `file_start`.
    fn first_of(&self, queue: &ConsumeQueue, file_start: u64) -> Result<Option<Span>, QueueError> {
        let (path, file) = self.open_file(queue, file_start)?;
        // Nobody else begins there, as a rule. A whole page: less of it stays in memory where the kernel has to be told to drop it.
        let mut page = [0; PAGE_BYTES];
        let read = file.read_once_at(&mut page, 0).map_err(|source| QueueError::disk("read", &path, source))?;
        let raw = page[..read].get(..queue.layout().unit_bytes);
        Ok(raw.and_then(|raw| Span::decode(queue.is_batch(), file_start, raw)))
    }

    fn open_file(&self, queue: &ConsumeQueue, place: u64) -> Result<(PathBuf, Arc<dyn DiskFile>), QueueError> {
        let path = file_path(&queue.dir(), queue.layout().byte_of(place));
        let file = self.shared.disk.open(&path, OpenHow::Read);
        let file = file.map_err(|source| QueueError::disk("open", &path, source))?;
        Ok((path, file))
    }
}

/// The same where the file system knows up to where it was written, and the units end in the last page of that. Files that another broker made at
/// their full length, or that lost pages with the power, end somewhere else, or go on behind it.
fn end_at_hole(queue: &ConsumeQueue, file: &dyn DiskFile, file_start: u64) -> std::io::Result<Option<FileEnd>> {
    let layout = queue.layout();
    let Some(hole) = file.hole_from(0)? else { return Ok(None) };
    if hole < layout.file_bytes && file.data_from(hole)?.is_some() {
        return Ok(None);
    }
    let (hole, unit_bytes) = (hole.min(layout.file_bytes) as usize, layout.unit_bytes);
    let first = hole.saturating_sub(PAGE_BYTES) / unit_bytes;
    let from = first * unit_bytes;
    // A unit that the hole's beginning cuts through has zeros behind it.
    let mut page = [0; PAGE_BYTES + 2 * RAW_BYTES_MAX];
    let read = file.read_at(&mut page[..hole - from], from as u64)?;
    let page = &page[..read.next_multiple_of(unit_bytes)];
    let raws = page.chunks_exact(unit_bytes).zip(file_start + first as u64..);
    let units = raws.map_while(|(raw, place)| Some((place + 1, Span::decode(queue.is_batch(), place, raw)?)));
    Ok(units.last().map(|(next_place, last)| {
        let behind = (next_place - file_start) as usize * unit_bytes - from;
        FileEnd { next_place, last, has_remains: page[behind..].iter().any(|byte| *byte != 0) }
    }))
}

fn read_unit(queue: &ConsumeQueue, file: &dyn DiskFile, file_start: u64, place: u64) -> std::io::Result<Option<Span>> {
    let mut raw = [0; RAW_BYTES_MAX];
    let raw = &mut raw[..queue.layout().unit_bytes];
    let read = file.read_at(raw, queue.layout().byte_of(place))?;
    Ok(if read == raw.len() { Span::decode(queue.is_batch(), file_start + place, raw) } else { None })
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
