//! The store's folder: may we write there, who has it open, can this version read it. Of the log names and lengths are looked at, and
//! `gantry store verify` looks into its files; what else a start reads is looked at too ([`unreadable`]). Nothing is changed.

use std::fs;

use disk::RealDisk;
use rustix::fs::{Access, access};
use store::rocksdb_in;

use super::contents::unreadable;
use super::finding::{Finding, size};
use super::patient::{Lock, Patient, nearest};

/// A clock that is behind the newest message by more than this was set back, and did not only jitter.
const BACKWARDS_MS: i64 = 2_000;

/// Is the folder there, and ours?
pub fn folder(patient: &Patient) -> Vec<Finding> {
    let store = &patient.target.store;
    let shown = store.display().to_string();
    if !store.exists() {
        let place = nearest(store);
        return vec![match access(&place, Access::WRITE_OK) {
            Ok(()) => Finding::ok(format!("{shown} does not exist yet"))
                .seen(&shown, "no such folder")
                .effect("the first start makes it"),
            Err(error) => Finding::error(format!("{shown} cannot be made"))
                .seen(format!("access {}", place.display()), error)
                .effect("this user may not write there, so a start ends here")
                .fix(format!("mkdir -p {shown} && chown $(id -u) {shown}, or set storePathRootDir")),
        }];
    }
    if !store.is_dir() {
        return vec![
            Finding::error(format!("{shown} is not a folder"))
                .seen(&shown, "a file")
                .effect("a start ends here")
                .fix("set storePathRootDir to a folder"),
        ];
    }
    let (taking, read_only) = patient.log_dirs();
    if let Some(missing) = read_only.iter().find(|dir| !dir.is_dir()) {
        return vec![
            Finding::error(format!("{} does not exist", missing.display()))
                .seen("readOnlyCommitLogStorePaths", missing.display())
                .effect(
                    "an old part of the log that is not there must not pass for one that is gone: a start ends here",
                )
                .fix("mount it, or take it out of readOnlyCommitLogStorePaths"),
        ];
    }
    let mut folders = taking.iter().chain([store]).filter(|folder| folder.exists());
    let denied = folders.find_map(|folder| {
        let error = access(folder, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK).err()?;
        Some((folder.display().to_string(), error))
    });
    vec![match denied {
        Some((folder, error)) => Finding::error(format!("{folder} cannot be written"))
            .seen(format!("access {folder}"), error)
            .effect("a start as this user ends here")
            .fix(format!("run as the user who owns it, or chown -R $(id -u) {folder}")),
        None => Finding::ok(format!("the store in {shown} can be read and written"))
            .seen(format!("access {shown}"), "allowed"),
    }]
}

/// Who has it open; and was it closed?
pub fn owner(patient: &Patient) -> Vec<Finding> {
    let store = &patient.target.store;
    let (lock, abort) = (store.join("lock").display().to_string(), store.join("abort"));
    match patient.lock() {
        Lock::Held(Some(pid)) => {
            let line = patient.host.text(&format!("/proc/{pid}/cmdline")).unwrap_or_default().replace('\0', " ");
            vec![
                Finding::ok(format!("process {pid} has the store open"))
                    .seen(lock, format!("locked by process {pid}"))
                    .seen(format!("/proc/{pid}/cmdline"), &line)
                    .effect("nobody else can open it meanwhile")
                    .figure("pid", pid),
            ]
        }
        Lock::Held(None) => vec![
            Finding::note("a process that cannot be seen from here has the store open")
                .seen(lock, "locked")
                .effect("it runs in another container or on another machine; a start here ends with that")
                .fix("stop it first"),
        ],
        Lock::Free if abort.exists() => vec![
            Finding::note("the store was not closed")
                .seen(abort.display().to_string(), "there, and nobody has the store open")
                .effect("whoever had it was killed, or lost power. The next start reads the log since the last check-point again, and says what it mended")
                .fix(format!("nothing has to be done; gantry store verify --store {} looks into the files first", store.display())),
        ],
        Lock::Free => vec![
            Finding::ok("nobody has the store open")
                .seen(lock, "not locked")
                .effect("it was closed as it should be, or is new"),
        ],
    }
}

/// Can this version read what lies there? Of the log by names and lengths only.
pub fn format(patient: &Patient) -> Vec<Finding> {
    let store = &patient.target.store;
    let mut findings = Vec::new();
    // A folder that cannot be listed is another check's.
    for database in rocksdb_in(&RealDisk, store, &store.join("consumequeue")).unwrap_or_default() {
        let (Some(loss), Some(way_out)) = (database.loss(), database.way_out()) else { continue };
        findings.push(
            Finding::error(format!("{} is kept in RocksDB", database.path.display()))
                .of(database.path.strip_prefix(store).unwrap_or(&database.path).display().to_string())
                .seen(database.path.join("CURRENT").display().to_string(), "there")
                .effect(format!("a start refuses the store: {loss}"))
                .fix(format!("{way_out} (docs/migrate.md)")),
        );
    }
    let unreadable = unreadable(patient);
    let is_looked_at = unreadable.is_some();
    findings.extend(unreadable.unwrap_or_default());
    let (taking, read_only) = patient.log_dirs();
    let dirs: Vec<_> = taking.iter().chain(&read_only).collect();
    let log = dirs.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(", ");
    let mut files: Vec<(u64, u64)> = Vec::new();
    let mut strange: Vec<String> = Vec::new();
    for entry in dirs.iter().filter_map(|dir| fs::read_dir(dir).ok()).flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        match (name.parse::<u64>(), entry.metadata()) {
            (Ok(base), Ok(about)) if name.len() == 20 && about.is_file() => files.push((base, about.len())),
            _ => strange.push(name),
        }
    }
    files.sort_unstable();
    strange.sort_unstable();
    if !strange.is_empty() {
        findings.push(
            Finding::note(format!("{} things in the log's folders are not files of a log", strange.len()))
                .of("strange")
                .seen(&log, strange.iter().take(5).cloned().collect::<Vec<_>>().join(", "))
                .effect("they are left alone"),
        );
    }
    let bytes = files.first().map_or(0, |(_, bytes)| *bytes);
    // An empty last file is one that was just begun.
    let filled: Vec<(u64, u64)> = files.iter().copied().filter(|(_, length)| *length > 0).collect();
    if let Some(gap) = filled.windows(2).find(|pair| pair[0].0.checked_add(pair[0].1) != Some(pair[1].0)) {
        findings.push(
            Finding::error("the files of the log do not follow each other")
                .of("gap")
                .seen(&log, format!("{:020} has {} bytes, the next is {:020}", gap[0].0, gap[0].1, gap[1].0))
                .effect("a file between them is missing or cut, and a start ends here")
                .fix(format!(
                    "gantry store verify --store {} shows what is whole; bring the file back from a copy",
                    store.display()
                )),
        );
    }
    let wanted = patient.target.settings.store().map_or(bytes, |store| store.mapped_file_size_commit_log);
    if bytes > 0 && bytes != wanted {
        findings.push(
            Finding::note(format!(
                "files of the log have {}, mappedFileSizeCommitLog says {}",
                size(bytes),
                size(wanted)
            ))
            .of("mappedFileSizeCommitLog")
            .seen(&log, format!("{:020}: {bytes} bytes", files[0].0))
            .effect("the files win: new ones will be as long as those that are there"),
        );
    }
    if findings.is_empty() {
        let whose = if store.join("journal").is_dir() { "Gantry" } else { "Apache RocketMQ" };
        let total = files.iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
        findings.push(
            Finding::ok(match files.is_empty() {
                true => "the log is empty".to_owned(),
                false => format!("{} files of the log, {}, last used by {whose}", files.len(), size(total)),
            })
            .seen(&log, format!("{} files", files.len()))
            .effect(match is_looked_at {
                true => format!(
                    "names and lengths are right, the journal can be read, and config/*.json are JSON with their tables; gantry store verify --store {} looks \
                     into the log",
                    store.display()
                ),
                false => "names and lengths are right; journal, config/*.json and consume queues were not looked at, since somebody has the store open: his \
                          start has read them"
                    .to_owned(),
            }),
        );
    }
    findings
}

/// The check-point tells when the newest flushed message was stored: the clock should be later.
pub fn clock(patient: &Patient) -> Vec<Finding> {
    let path = patient.target.store.join("checkpoint");
    let from = path.display().to_string();
    let Some(newest) = fs::read(&path).ok().and_then(|bytes| {
        let first: [u8; 8] = bytes.get(..8)?.try_into().ok()?;
        Some(i64::from_be_bytes(first)).filter(|time| *time > 0)
    }) else {
        return vec![Finding::ok("there is no check-point to compare the clock with").seen(from, "none")];
    };
    let ahead_ms = newest.saturating_sub(patient.clock.now().0);
    vec![if ahead_ms > BACKWARDS_MS {
        Finding::warning(format!("the clock is {:.0} s behind the newest message of the store", ahead_ms as f64 / 1000.0))
            .seen(from, format!("{newest} ms"))
            .seen("clock", format!("{} ms", patient.clock.now()))
            .effect("it was set back, or this is another machine's store: delayed messages wait that much longer, and questions by time miss")
            .fix("set the clock right before the broker starts")
    } else {
        Finding::ok("the clock is later than the newest message of the store").seen(from, format!("{newest} ms"))
    }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Severity;
    use crate::host::fake::FakeHost;
    use crate::patient::fake::patient;
    use ::store::StoreOptions;
    use ::store::look::Look;
    use env::{Clock, TimeMs};

    /// A store with these files; a length stands for a file of so many zeros.
    fn store(files: &[(&str, u64)]) -> (FakeHost, Patient) {
        let fake = FakeHost::with(&[]);
        let patient = patient(&fake, "mappedFileSizeCommitLog=4096");
        for (name, bytes) in files {
            let path = patient.target.store.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::File::create(path).unwrap().set_len(*bytes).unwrap();
        }
        (fake, patient)
    }

    fn severities(findings: &[Finding]) -> Vec<(Option<&str>, Severity)> {
        findings.iter().map(|one| (one.subject.as_deref(), one.severity)).collect()
    }

    #[test]
    fn a_folder_that_is_missing_is_made_and_a_file_in_its_place_is_an_error() {
        let (_fake, patient) = store(&[]);
        assert_eq!(folder(&patient).remove(0).severity, Severity::Ok);
        fs::write(&patient.target.store, "").unwrap();
        assert_eq!(folder(&patient).remove(0).severity, Severity::Error);
    }

    #[test]
    fn how_the_store_was_left_is_told_by_its_abort_file() {
        let (_fake, closed) = store(&[("lock", 4)]);
        assert_eq!(owner(&closed).remove(0).severity, Severity::Ok);
        let (_fake, killed) = store(&[("lock", 4), ("abort", 1)]);
        let found = owner(&killed).remove(0);
        assert!(found.severity == Severity::Note && found.fix.unwrap().contains("gantry store verify"));
    }

    #[test]
    fn files_that_follow_each_other_are_fine() {
        let (_fake, patient) = store(&[
            ("commitlog/00000000000000000000", 4096),
            ("commitlog/00000000000000004096", 4096),
            ("commitlog/00000000000000008192", 0),
            ("journal/x", 1),
        ]);
        let found = format(&patient);
        assert_eq!(severities(&found), [(None, Severity::Ok)]);
        assert!(found[0].title.contains("last used by Gantry"), "{}", found[0].title);
    }

    #[test]
    fn of_a_store_that_is_open_nobody_says_that_its_files_can_be_read() {
        let (_fake, patient) = store(&[("lock", 4), ("commitlog/00000000000000000000", 4096)]);
        assert!(format(&patient)[0].effect.contains("the journal can be read"));
        let open = Look::stopped(StoreOptions::at(&patient.target.store)).unwrap();
        let found = format(&patient);
        assert_eq!(severities(&found), [(None, Severity::Ok)]);
        assert!(found[0].effect.contains("were not looked at"), "{}", found[0].effect);
        drop(open);
    }

    #[test]
    fn gaps_strangers_other_lengths_and_rocksdb_are_named() {
        let (_fake, patient) = store(&[
            ("commitlog/00000000000000000000", 8192),
            ("commitlog/00000000000000016384", 8192),
            ("commitlog/copy.tar", 1),
            ("consumequeue/CURRENT", 1),
            ("consumequeue/MANIFEST-000005", 1),
        ]);
        let expected = [
            (Some("consumequeue"), Severity::Error),
            (Some("strange"), Severity::Note),
            (Some("gap"), Severity::Error),
            (Some("mappedFileSizeCommitLog"), Severity::Note),
        ];
        assert_eq!(severities(&format(&patient)), expected);
    }

    #[test]
    fn a_log_in_several_folders_is_one_log() {
        let (fake, _) = store(&[]);
        let old = fake.root().join("old");
        let settings = format!(
            "mappedFileSizeCommitLog=4096\nstorePathCommitLog=STORE/a,STORE/b\nreadOnlyCommitLogStorePaths={}",
            old.display()
        );
        let patient = patient(&fake, &settings);
        for (dir, name) in [("a", "00000000000000004096"), ("b", "00000000000000008192")] {
            let dir = patient.target.store.join(dir);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join(name), [0; 4096]).unwrap();
        }
        let missing = folder(&patient).remove(0);
        assert!(missing.severity == Severity::Error && missing.title.contains("old"), "{missing:?}");
        fs::create_dir(&old).unwrap();
        fs::write(old.join("00000000000000000000"), [0; 4096]).unwrap();
        assert_eq!(folder(&patient).remove(0).severity, Severity::Ok);
        let found = format(&patient);
        assert!(severities(&found) == [(None, Severity::Ok)] && found[0].title.starts_with("3 files"), "{found:?}");
        fs::remove_file(patient.target.store.join("a/00000000000000004096")).unwrap();
        assert_eq!(severities(&format(&patient)), [(Some("gap"), Severity::Error)]);
        assert_eq!(patient.places().len(), 1);
    }

    #[test]
    fn a_clock_that_was_set_back_is_a_warning() {
        let (_fake, mut patient) = store(&[("checkpoint", 4096)]);
        assert_eq!(clock(&patient).remove(0).severity, Severity::Ok);
        fs::write(patient.target.store.join("checkpoint"), 1_000_000_i64.to_be_bytes()).unwrap();
        for (now, expected) in [(1_000_001, Severity::Ok), (999_000, Severity::Ok), (900_000, Severity::Warning)] {
            (patient.clock, _) = Clock::manual(TimeMs(now));
            assert_eq!(clock(&patient).remove(0).severity, expected, "{now}");
        }
    }
}
