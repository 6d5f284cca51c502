//! What the ways to write a log cost on this machine: the figures behind the decisions on writing in ARCHITECTURE.md.
//!
//! `writing ways DIR` writes a GiB at 200 MB a second into a file in DIR in each way, in pieces as of single messages and as of
//! batches, flushed twice a second, and says what processor time that took and for how long the writer stood still at most.
//! `writing together DIR` appends records of 1 KB to a store from one, two and four threads, as fast as they can.

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use env::TimeMs;
use memmap2::{Advice, MmapOptions, MmapRaw};
use protocol::record::RecordDraft;
use rustix::fs::FallocateFlags;
use store::{AppendError, RecordBatch, Store, StoreEnv, StoreOptions, TagsCode};

const FILE_BYTES: usize = 1 << 30;
const BYTES_A_SECOND: f64 = 200e6;
const FLUSH_EVERY: Duration = Duration::from_millis(500);
/// How far ahead of the writer pages are made, and how many at once.
const AHEAD: usize = 36 << 20;
const AT_ONCE: usize = 8 << 20;
/// Appended by each thread of `together`, in batches of so many.
const RECORDS: usize = 400_000;
const BATCH: usize = 16;

/// The server's own.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Into a mapping of a file of holes.
    MappedHoles,
    /// Into a mapping whose blocks are allocated.
    MappedBlocks,
    /// Into a mapping whose pages are made ahead by another thread, flushed as a file.
    MappedAhead,
    /// The same, flushed by the stretch that was written.
    MappedAheadByStretch,
    /// The same, with pages as large as the file system makes them.
    MappedAheadHuge,
    /// By a system call into allocated blocks.
    Called,
}

const WAYS: [Way; 6] = [
    Way::MappedHoles,
    Way::MappedBlocks,
    Way::MappedAhead,
    Way::MappedAheadByStretch,
    Way::MappedAheadHuge,
    Way::Called,
];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["ways", dir] => {
            for piece in [1 << 10, 100 << 10] {
                for way in WAYS {
                    write(dir.as_ref(), way, piece)?;
                }
            }
        }
        ["together", dir] => {
            for threads in [1, 2, 4] {
                together(dir.as_ref(), threads)?;
            }
        }
        _ => bail!("writing ways DIR | together DIR"),
    }
    Ok(())
}

/// User and system time of the process so far.
fn processor_seconds() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = stat.rsplit(')').next().context("no name")?.split_whitespace().collect();
    let ticks: u64 = fields.iter().skip(11).take(2).map(|field| field.parse::<u64>().unwrap_or(0)).sum();
    Ok(ticks as f64 / 100.0)
}

fn write(dir: &Path, way: Way, piece: usize) -> Result<()> {
    let path = dir.join("writing");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    let outcome = write_into(&file, way, piece);
    std::fs::remove_file(&path)?;
    outcome
}

fn write_into(file: &File, way: Way, piece: usize) -> Result<()> {
    file.set_len(FILE_BYTES as u64)?;
    if way != Way::MappedHoles {
        rustix::fs::fallocate(file.as_fd(), FallocateFlags::empty(), 0, FILE_BYTES as u64)?;
        file.sync_data()?;
    }
    let map = MmapOptions::new().len(FILE_BYTES).map_raw(file)?;
    let bytes = vec![7; piece];
    let is_made_ahead = matches!(way, Way::MappedAhead | Way::MappedAheadByStretch | Way::MappedAheadHuge);
    if way == Way::MappedAheadHuge {
        map.advise(Advice::HugePage)?;
    }
    let (written, made) = (AtomicU64::new(0), AtomicU64::new(if is_made_ahead { 0 } else { FILE_BYTES as u64 }));
    let is_over = AtomicBool::new(false);
    let before = processor_seconds()?;
    let began = Instant::now();
    let stood = std::thread::scope(|scope| {
        let flusher = scope.spawn(|| flush(file, &map, way, &written, &is_over));
        let maker = is_made_ahead.then(|| scope.spawn(|| make_ahead(&map, &written, &made, &is_over)));
        let mut longest = Duration::ZERO;
        let mut at = 0;
        let outcome = loop {
            if at + piece > FILE_BYTES {
                break Ok(());
            }
            while (made.load(Ordering::Acquire) as usize) < at + piece {
                std::thread::yield_now();
            }
            let one = Instant::now();
            if way == Way::Called {
                if let Err(error) = file.write_all_at(&bytes, at as u64) {
                    break Err(error);
                }
            } else {
                put(&map, at, &bytes);
            }
            longest = longest.max(one.elapsed());
            at += piece;
            written.store(at as u64, Ordering::Release);
            let due = Duration::from_secs_f64(at as f64 / BYTES_A_SECOND);
            if let Some(early) = due.checked_sub(began.elapsed()).filter(|early| *early > Duration::from_millis(1)) {
                std::thread::park_timeout(early);
            }
        };
        is_over.store(true, Ordering::Release);
        for thread in [Some(flusher), maker].into_iter().flatten() {
            thread.join().map_err(|_| std::io::Error::other("a thread ended by a bug"))??;
        }
        outcome.map(|()| longest)
    })?;
    println!(
        "{way:?}, pieces of {piece} B: {:.0} MB/s, {:.2} CPU-s a GB, longest {:.1} ms",
        FILE_BYTES as f64 / 1e6 / began.elapsed().as_secs_f64(),
        (processor_seconds()? - before) / (FILE_BYTES as f64 / 1e9),
        stood.as_secs_f64() * 1e3
    );
    Ok(())
}

fn put(map: &MmapRaw, at: usize, bytes: &[u8]) {
    assert!(at + bytes.len() <= map.len());
    // SAFETY: inside the mapping (asserted), which nobody else reads or writes.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), map.as_mut_ptr().add(at), bytes.len()) };
}

fn flush(file: &File, map: &MmapRaw, way: Way, written: &AtomicU64, is_over: &AtomicBool) -> std::io::Result<()> {
    let mut flushed = 0;
    while !is_over.load(Ordering::Acquire) {
        std::thread::park_timeout(FLUSH_EVERY);
        let end = written.load(Ordering::Acquire) as usize;
        if matches!(way, Way::MappedAheadByStretch | Way::MappedAheadHuge) {
            map.flush_range(flushed, end - flushed)?;
        } else {
            file.sync_data()?;
        }
        flushed = end;
    }
    Ok(())
}

fn make_ahead(map: &MmapRaw, written: &AtomicU64, made: &AtomicU64, is_over: &AtomicBool) -> std::io::Result<()> {
    while !is_over.load(Ordering::Acquire) {
        let from = made.load(Ordering::Acquire) as usize;
        let to = (from + AT_ONCE).min(FILE_BYTES);
        if from < to && from < written.load(Ordering::Acquire) as usize + AHEAD {
            map.advise_range(Advice::PopulateWrite, from, to - from)?;
            made.store(to as u64, Ordering::Release);
        } else {
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }
    Ok(())
}

fn together(dir: &Path, threads: usize) -> Result<()> {
    let dir = dir.join(format!("together-{threads}"));
    let (store, _) = Store::open(StoreOptions::at(&dir), StoreEnv::real())?;
    let before = processor_seconds()?;
    let began = Instant::now();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn({
                    let store = &store;
                    move || append(store, thread)
                })
            })
            .collect();
        for thread in threads {
            thread.join().map_err(|_| anyhow::anyhow!("a thread ended by a bug"))??;
        }
        anyhow::Ok(())
    })?;
    let records = (threads * RECORDS) as f64;
    println!(
        "{threads} threads: {:.0} records/s, {:.2} CPU-s a million",
        records / began.elapsed().as_secs_f64(),
        (processor_seconds()? - before) / records * 1e6
    );
    store.close()?;
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}

fn append(store: &Store, thread: usize) -> Result<()> {
    let queue = store.queue("Measured", u32::try_from(thread)?)?;
    let draft = RecordDraft { body: &[7; 1024], ..RecordDraft::plain("Measured", "127.0.0.1:10911".parse()?) };
    let mut batch = RecordBatch::new();
    for _ in 0..RECORDS / BATCH {
        batch.clear();
        for _ in 0..BATCH {
            batch.push(&queue, TagsCode::Code(1), |out| {
                let encoded = draft.encode(out);
                assert!(encoded.is_ok(), "{encoded:?}");
            });
        }
        while let Err(error) = store.append(&mut batch, TimeMs(1_700_000_000_000)) {
            let AppendError::NoRoomYet { needed } = error else { bail!(error) };
            store.room().wait_until(needed, Instant::now() + Duration::from_secs(60));
        }
    }
    Ok(())
}
