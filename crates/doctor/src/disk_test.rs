//! The disk, measured: sequential writing and reading, and how long a flush takes.
//!
//! In a file that has no name any more once it is open, so that nothing of it stays, whatever becomes of this process: in a folder on each
//! file system that the broker writes to. At most 192 MiB are written for the one and 4 MiB of place for the other; together they take five
//! seconds for each file system, and longer only by the single call that a device stands still in.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use config::FlushDiskType;
use rustix::fs::{Advice, fadvise, statvfs};
use serde_json::{Value, json};

use super::disk::each_place;
use super::finding::{Finding, Severity};
use super::patient::Patient;

const MIB: usize = 1 << 20;
/// Written for the throughput, and read again.
const WRITTEN: usize = 192 * MIB;
/// Between two looks at the time; each such stretch is brought to the device.
const STRETCH: usize = 16 * MIB;
const WRITE_TIME: Duration = Duration::from_millis(2000);
const READ_TIME: Duration = Duration::from_millis(1000);
/// Pages that are written and flushed again and again, as the store does with pages that it made ready.
const PLACE: usize = 4 * MIB;
const PAGE: usize = 4096;
const FLUSH_TIME: Duration = Duration::from_millis(1500);
const FLUSHES: usize = 2000;
/// With less room than this nothing is measured.
const ROOM: u64 = 1 << 30;
/// In MiB a second.
const SLOW: f64 = 50.0;
/// A flush that takes longer holds every acknowledgement up with SYNC_FLUSH.
const LONG_MS: f64 = 20.0;
/// No device keeps what it confirms in less.
const TOO_QUICK_MS: f64 = 0.01;
/// Ends of the histogram's steps, in ms.
const STEPS: [f64; 12] = [0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 500.0];

/// A file in the folder `place` that nobody else can open.
fn nameless(place: &Path) -> io::Result<File> {
    let path = place.join(format!(".gantry-doctor-{}", std::process::id()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

/// What a disk does, for who measures beside a load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiskFigures {
    /// Sequential, with a flush every 16 MiB.
    pub write_mib_per_second: f64,
    /// The same read again without the page cache.
    pub read_mib_per_second: f64,
    /// Flushes of 4 KiB.
    pub flush_p50_ms: f64,
    /// Of a hundred flushes one took longer.
    pub flush_p99_ms: f64,
    /// The longest one.
    pub flush_max_ms: f64,
}

/// Measures the disk of a folder, which has to be there.
///
/// # Errors
/// There is too little room, or a file cannot be written.
pub fn measure_disk(folder: &Path) -> anyhow::Result<DiskFigures> {
    let failed = || format!("cannot measure the disk of {}", folder.display());
    if let Some(finding) = too_little_room(folder) {
        let seen: Vec<String> = finding.evidence.iter().map(|seen| seen.value.clone()).collect();
        anyhow::bail!("{}: {}; {}", failed(), finding.title, seen.join(", "));
    }
    let measure = || -> io::Result<DiskFigures> {
        let (wrote, read) = measure_throughput(&nameless(folder)?)?;
        let times = measure_flushes(&nameless(folder)?)?;
        Ok(DiskFigures {
            write_mib_per_second: rounded(wrote),
            read_mib_per_second: rounded(read),
            flush_p50_ms: rounded(percentile(&times, 0.5)),
            flush_p99_ms: rounded(percentile(&times, 0.99)),
            flush_max_ms: rounded(percentile(&times, 1.0)),
        })
    };
    measure().with_context(failed)
}

/// Measures each file system that has room for it.
fn measured(patient: &Patient, measure: impl Fn(&Path) -> io::Result<Finding>) -> Vec<Finding> {
    if !patient.is_disk_tested {
        return vec![Finding::ok("not measured, as was asked (--no-disk-test)").seen("--no-disk-test", "given")];
    }
    each_place(patient, |place| {
        let measured = || measure(place).unwrap_or_else(|error| failed(place, &error));
        vec![too_little_room(place).unwrap_or_else(measured)]
    })
}

fn too_little_room(place: &Path) -> Option<Finding> {
    let room = statvfs(place).map_or(0, |disk| disk.f_bavail.saturating_mul(disk.f_frsize));
    (room < ROOM).then(|| {
        Finding::note("not measured: there is too little room")
            .seen(format!("statvfs {}", place.display()), format!("{room} bytes are free"))
            .effect("the last room of a disk is the broker's")
    })
}

fn failed(place: &Path, error: &io::Error) -> Finding {
    Finding::unknown("the disk cannot be measured")
        .seen(place.display().to_string(), error)
        .effect("a test file cannot be written there")
        .fix("run as the user of the broker, or with --no-disk-test")
}

/// R1.2: sequential writing with a flush for every 16 MiB, and reading of the same without the page cache.
pub fn throughput(patient: &Patient) -> Vec<Finding> {
    measured(patient, throughput_of)
}

fn throughput_of(place: &Path) -> io::Result<Finding> {
    let (wrote, read) = measure_throughput(&nameless(place)?)?;
    let finding = Finding::ok(format!("sequential: {wrote:.0} MiB/s written, {read:.0} MiB/s read"));
    let finding = if wrote < SLOW {
        Finding { severity: Severity::Warning, ..finding }
            .effect(format!(
                "each message is written twice at most, log and queue: messages of 1 KB come in at {:.0} a second at best, for any length of time",
                wrote * 1024.0 * 0.9
            ))
            .fix("a faster device, or a larger volume where the provider ties speed to size")
    } else {
        finding.effect("compare it with what producers bring: above it, they wait")
    };
    Ok(finding
        .seen(
            format!("a file in {}", place.display()),
            format!("up to 192 MiB in 2 s with fdatasync every 16 MiB: {wrote:.1} MiB/s; read again uncached: {read:.1} MiB/s"),
        )
        .figure("sequentialWriteMibPerSecond", rounded(wrote))
        .figure("sequentialReadMibPerSecond", rounded(read)))
}

/// MiB a second, written and read.
fn measure_throughput(file: &File) -> io::Result<(f64, f64)> {
    let mut block = vec![0_u8; MIB];
    // Zeros would be no work for devices that compress.
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    for word in block.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    let began = Instant::now();
    let mut written = 0;
    while written < WRITTEN && began.elapsed() < WRITE_TIME {
        for _ in 0..STRETCH / MIB {
            file.write_all_at(&block, written as u64)?;
            written += MIB;
        }
        file.sync_data()?;
    }
    let wrote = per_second(written, began.elapsed());
    fadvise(file, 0, None, Advice::DontNeed)?;
    let began = Instant::now();
    let mut read = 0;
    while read < written && began.elapsed() < READ_TIME {
        file.read_exact_at(&mut block, read as u64)?;
        read += MIB;
    }
    Ok((wrote, per_second(read, began.elapsed())))
}

fn per_second(bytes: usize, time: Duration) -> f64 {
    bytes as f64 / MIB as f64 / time.as_secs_f64().max(1e-9)
}

fn rounded(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

/// How long flushes take, of a page each, where the blocks exist and were written before.
pub fn flushes(patient: &Patient) -> Vec<Finding> {
    let is_sync = patient.target.settings.store().is_ok_and(|store| store.flush_disk_type == FlushDiskType::Sync);
    measured(patient, |place| {
        let times = measure_flushes(&nameless(place)?)?;
        Ok(judged(&times, is_sync).seen(
            format!("a file in {}", place.display()),
            format!("{} times 4 KiB and fdatasync: {}", times.len(), histogram_text(&times)),
        ))
    })
}

/// Sorted, in ms; never empty.
fn measure_flushes(file: &File) -> io::Result<Vec<f64>> {
    file.write_all_at(&vec![0; PLACE], 0)?;
    file.sync_data()?;
    let page = [7_u8; PAGE];
    let mut times = Vec::with_capacity(FLUSHES);
    let began = Instant::now();
    while times.is_empty() || (times.len() < FLUSHES && began.elapsed() < FLUSH_TIME) {
        let place = (times.len() % (PLACE / PAGE)) * PAGE;
        file.write_all_at(&page, place as u64)?;
        let one = Instant::now();
        file.sync_data()?;
        times.push(one.elapsed().as_secs_f64() * 1000.0);
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

/// The time below which `part` of the sorted times are.
fn percentile(times: &[f64], part: f64) -> f64 {
    let at = ((times.len() as f64 * part).ceil() as usize).clamp(1, times.len());
    times.get(at - 1).copied().unwrap_or_default()
}

/// How many of the sorted times end in each step; the last step has no end.
fn histogram(times: &[f64]) -> Vec<(Option<f64>, usize)> {
    let below = |end: f64| times.partition_point(|time| *time <= end);
    let mut before = 0;
    let mut steps = Vec::new();
    for (end, reached) in STEPS.map(|end| (Some(end), below(end))).into_iter().chain([(None, times.len())]) {
        if reached > before {
            steps.push((end, reached - before));
        }
        before = reached;
    }
    steps
}

fn histogram_text(times: &[f64]) -> String {
    let steps = histogram(times).into_iter().map(|(end, count)| match end {
        Some(end) => format!("{count} up to {end} ms"),
        None => format!("{count} longer"),
    });
    steps.collect::<Vec<_>>().join(", ")
}

fn judged(times: &[f64], is_sync: bool) -> Finding {
    let (p50, p99, max) = (percentile(times, 0.5), percentile(times, 0.99), percentile(times, 1.0));
    let title = format!("fdatasync: p50 {p50:.2} ms, p99 {p99:.2} ms, longest {max:.2} ms");
    let finding = if p50 < TOO_QUICK_MS {
        Finding::note(title).effect(
            "no device keeps what it confirms so quickly: somebody in between, a hypervisor or memory, says yes for it. After a loss of power \
             acknowledged messages may be gone, also with SYNC_FLUSH",
        )
    } else if p99 > LONG_MS && is_sync {
        Finding::warning(title)
            .effect(format!(
                "with SYNC_FLUSH every acknowledgement waits for a flush: one producer that sends one by one gets {:.0} a second, and one send of \
                 a hundred takes {p99:.0} ms or more",
                1000.0 / p50
            ))
            .fix("a device with a write cache that survives a loss of power, or flushDiskType=ASYNC_FLUSH where the last half second may be lost")
    } else if p99 > LONG_MS {
        Finding::note(title).effect("with ASYNC_FLUSH nobody waits for it; SYNC_FLUSH would be slow here")
    } else {
        Finding::ok(title).effect(format!(
            "with SYNC_FLUSH one producer that sends one by one gets about {:.0} a second; many share a flush",
            1000.0 / p50
        ))
    };
    let steps: Vec<Value> =
        histogram(times).into_iter().map(|(end, count)| json!({ "upToMillis": end, "count": count })).collect();
    finding
        .figure("p50Millis", rounded(p50))
        .figure("p99Millis", rounded(p99))
        .figure("maxMillis", rounded(max))
        .figure("histogram", steps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeHost;
    use crate::patient::fake::patient;

    #[test]
    fn percentiles_and_steps_count_every_flush_once() {
        let times: Vec<f64> = (1..=100).map(|n| f64::from(n) / 10.0).collect();
        assert_eq!((percentile(&times, 0.5), percentile(&times, 0.99), percentile(&times, 1.0)), (5.0, 9.9, 10.0));
        assert_eq!(percentile(&[3.0], 0.5), 3.0);
        let steps = histogram(&[0.01, 0.15, 0.2, 700.0]);
        assert_eq!(steps, [(Some(0.05), 1), (Some(0.2), 2), (None, 1)]);
        assert_eq!(histogram(&times).iter().map(|(_, count)| count).sum::<usize>(), 100);
    }

    #[test]
    fn slow_flushes_are_a_warning_where_acknowledgements_wait_for_them() {
        assert_eq!(judged(&[0.2, 0.3], true).severity, Severity::Ok);
        assert_eq!(judged(&[5.0, 30.0], true).severity, Severity::Warning);
        assert_eq!(judged(&[5.0, 30.0], false).severity, Severity::Note);
        let instant = judged(&[0.001, 0.002], true);
        assert!(instant.severity == Severity::Note && instant.effect.contains("loss of power"), "{instant:?}");
    }

    #[test]
    fn a_measurement_leaves_nothing_behind() {
        let fake = FakeHost::with(&[]);
        let mut patient = patient(&fake, "flushDiskType=SYNC_FLUSH");
        fs::create_dir(&patient.target.store).unwrap();
        let began = Instant::now();
        let found = flushes(&patient).remove(0);
        assert!(found.figures["p99Millis"].as_f64().unwrap() > 0.0, "{found:?}");
        assert!(began.elapsed() < Duration::from_secs(30));
        assert_eq!(fs::read_dir(&patient.target.store).unwrap().count(), 0);
        patient.is_disk_tested = false;
        assert!(flushes(&patient).remove(0).title.starts_with("not measured"));
        assert!(throughput(&patient).remove(0).title.starts_with("not measured"));
    }

    #[test]
    fn each_file_system_is_measured_once() {
        let Ok(other) = tempfile::tempdir_in("/dev/shm") else { return };
        let other = other.path().display();
        let patient = patient(&FakeHost::with(&[]), &format!("storePathCommitLog={other}/a,{other}/b,STORE/log"));
        let found = flushes(&patient);
        assert_eq!(found.len(), 2, "{found:?}");
        for finding in &found {
            let (subject, from) = (finding.subject.as_deref().unwrap(), &finding.evidence[0].from);
            // Memory may have too little room to be measured.
            assert!([format!("a file in {subject}"), format!("statvfs {subject}")].contains(from), "{finding:?}");
        }
        assert!(found.iter().any(|finding| finding.subject == Some(other.to_string())), "{found:?}");
        assert_eq!(fs::read_dir(other.to_string()).unwrap().count(), 0);
    }

    #[test]
    fn reading_gives_back_what_was_written_and_both_have_a_rate() {
        let folder = tempfile::tempdir().unwrap();
        let (wrote, read) = measure_throughput(&nameless(folder.path()).unwrap()).unwrap();
        assert!(wrote > 0.0 && read > 0.0);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
