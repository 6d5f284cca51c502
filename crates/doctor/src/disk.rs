//! The file systems and the devices that hold the log and the rest of the store, as far as they can be told without writing.

use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};

use config::StoreSettings;
use rustix::fs::statvfs;

use super::finding::{Finding, Severity, size};
use super::machine::kernel::chosen;
use super::patient::{Patient, nearest};

/// A start refuses a file system with less room than this.
const ROOM_MIN: u64 = 16 << 20;
/// Kinds whose files are not on a disk of this machine, and why that matters.
const FAR: [(&str, &str); 8] = [
    ("nfs", "a network"),
    ("nfs4", "a network"),
    ("cifs", "a network"),
    ("smb3", "a network"),
    ("ceph", "a network"),
    ("glusterfs", "a network"),
    ("9p", "the host's file server"),
    ("virtiofs", "the host's file server"),
];
/// Options with which a flush does not mean that the data is safe.
const UNSAFE: [&str; 3] = ["nobarrier", "barrier=0", "data=writeback"];

/// Room and inodes of each file system that the broker writes to.
pub fn space(patient: &Patient) -> Vec<Finding> {
    let places = patient.places();
    let mut findings: Vec<Finding> = places.iter().flat_map(|place| space_of(patient, place)).collect();
    if places.len() > 1 {
        let device = |place: &Path| std::fs::metadata(place).map(|about| about.st_dev()).ok();
        let root = device(&nearest(&patient.target.store));
        let root = places
            .iter()
            .find(|place| device(place) == root)
            .map_or(String::new(), |place| place.display().to_string());
        several(&mut findings, &root);
    }
    findings
}

/// Of several file systems each is named. While one folder of the log has room, others may be full; that of `root`, which has all the rest,
/// may not.
fn several(findings: &mut [Finding], root: &str) {
    let percent = |finding: &Finding| finding.figures.get("usedPercent").and_then(|percent| percent.as_u64());
    let place = |finding: &Finding| {
        let from = finding.evidence.iter().find_map(|seen| seen.from.strip_prefix("statvfs "));
        from.unwrap_or_default().to_owned()
    };
    let emptiest = findings.iter().filter(|finding| place(finding) != root).filter_map(percent).min();
    for finding in findings.iter_mut().filter(|finding| finding.subject.is_none()) {
        let place = place(finding);
        if place != root && percent(finding) > emptiest && finding.severity > Severity::Note {
            finding.severity = Severity::Note;
            finding.effect = "new files of the log go to its other folders while one of them has room".to_owned();
        }
    }
    for finding in findings.iter_mut() {
        let place = place(finding);
        name(finding, &place);
    }
}

/// Says which folder a finding is about, besides what it says.
fn name(finding: &mut Finding, place: &str) {
    finding.subject = Some(match finding.subject.take() {
        Some(subject) => format!("{place} {subject}"),
        None => place.to_owned(),
    });
}

/// Looks at a folder on each file system that the broker writes to. Where there are several, each finding says which it is about.
pub(super) fn each_place(patient: &Patient, look: impl Fn(&Path) -> Vec<Finding>) -> Vec<Finding> {
    named(&patient.places(), look)
}

/// The same of folders on devices of their own: file systems that share a device are looked at once.
fn each_device(patient: &Patient, look: impl Fn(&Path) -> Vec<Finding>) -> Vec<Finding> {
    let mut devices = Vec::new();
    let mut places = patient.places();
    places.retain(|place| {
        let device = patient.device_of(place);
        let is_new = device.is_none() || !devices.contains(&device);
        devices.push(device);
        is_new
    });
    named(&places, look)
}

fn named(places: &[PathBuf], look: impl Fn(&Path) -> Vec<Finding>) -> Vec<Finding> {
    let mut all = Vec::new();
    for place in places {
        let mut findings = look(place);
        if places.len() > 1 {
            findings.iter_mut().for_each(|finding| name(finding, &place.display().to_string()));
        }
        all.extend(findings);
    }
    all
}

fn space_of(patient: &Patient, place: &Path) -> Vec<Finding> {
    let from = format!("statvfs {}", place.display());
    let disk = match statvfs(place) {
        Ok(disk) => disk,
        Err(error) => {
            return vec![
                Finding::unknown("how full the disk is cannot be read")
                    .seen(from, error)
                    .effect("whether sends will be refused for want of room is not known")
                    .fix("run as the user of the broker; if the device does not answer, see dmesg"),
            ];
        }
    };
    // As `df` and the broker count: what is reserved for root is neither used nor free.
    let used = disk.f_blocks.saturating_sub(disk.f_bfree).saturating_mul(disk.f_frsize);
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    let percent = percent_of(used, used.saturating_add(free));
    let finding = match patient.target.settings.store() {
        Ok(settings) => judged(percent, free, &settings),
        Err(error) => Finding::note(format!("{percent} % of the disk are used"))
            .seen("settings", error)
            .effect("which watermarks hold is not known; the check configuration shows why"),
    };
    let mut findings = vec![
        finding
            .seen(&from, format!("{} used, {} free", size(used), size(free)))
            .figure("usedPercent", percent)
            .figure("freeBytes", free),
    ];
    let inodes = percent_of(disk.f_files.saturating_sub(disk.f_favail), disk.f_files);
    if disk.f_files > 0 && inodes >= 90 {
        findings.push(
            Finding::warning(format!("{inodes} % of the file system's inodes are used"))
                .of("inodes")
                .seen(from, format!("{} of {} left", disk.f_favail, disk.f_files))
                .effect("each consume queue takes a file and a folder: new topics will fail although there is room")
                .fix("remove small files, or make the file system anew with more inodes (mkfs.ext4 -i)"),
        );
    }
    findings
}

/// Rounded up, as the broker does.
fn percent_of(part: u64, whole: u64) -> u64 {
    u64::try_from((u128::from(part) * 100).div_ceil(u128::from(whole).max(1))).unwrap_or(100)
}

/// How full is too full: the broker's own watermarks.
fn judged(percent: u64, free: u64, settings: &StoreSettings) -> Finding {
    let title = format!("{percent} % of the disk are used, {} are free", size(free));
    let [delete, force, refuse] = [
        settings.disk_max_used_space_ratio,
        settings.disk_space_clean_forcibly_ratio,
        settings.disk_space_warning_level_ratio,
    ]
    .map(u64::from);
    let fix = "free space, move storePathRootDir to a larger disk, or keep less (fileReservedTime, commitLogBytesMax)";
    let finding = if free < ROOM_MIN {
        Finding::error(title).effect(format!("a start needs {} and refuses less", size(ROOM_MIN))).fix(fix)
    } else if percent > refuse {
        Finding::error(title)
            .effect(format!("above {refuse} % (diskSpaceWarningLevelRatio) every send is refused"))
            .fix(fix)
    } else if percent > force {
        Finding::warning(title)
            .effect(match settings.clean_file_forcibly_enable {
                true => format!(
                    "above {force} % (diskSpaceCleanForciblyRatio) the oldest files go, whether or not their messages were consumed"
                ),
                false => format!("above {refuse} % (diskSpaceWarningLevelRatio) every send will be refused"),
            })
            .fix(fix)
    } else if percent > delete {
        Finding::note(title)
            .effect(format!(
                "above {delete} % (diskMaxUsedSpaceRatio) expired files go at any hour, not only at that of deleteWhen"
            ))
            .fix(fix)
    } else {
        Finding::ok(title).effect(format!(
            "expired files go at any hour above {delete} %, the oldest by force above {force} %, and sends are refused above {refuse} %"
        ))
    };
    finding.seen(
        "diskMaxUsedSpaceRatio, diskSpaceCleanForciblyRatio, diskSpaceWarningLevelRatio",
        format!("{delete}, {force}, {refuse}"),
    )
}

/// Kind and options of each file system that the broker writes to.
pub fn file_system(patient: &Patient) -> Vec<Finding> {
    each_place(patient, |place| file_system_of(patient, place))
}

fn file_system_of(patient: &Patient, place: &Path) -> Vec<Finding> {
    let Some(mount) = patient.host.mount_of(place) else {
        return vec![
            Finding::note("the file system of the store cannot be told")
                .seen("/proc/self/mountinfo", "no mount")
                .effect("whether it keeps what was flushed cannot be judged from here"),
        ];
    };
    let seen = |finding: Finding| {
        let options = mount.options.join(",");
        finding.seen(
            "/proc/self/mountinfo",
            format!("{} on {} {} ({options})", mount.source, mount.point.display(), mount.kind),
        )
    };
    let title = format!("the store is on {} ({})", mount.kind, mount.source);
    if mount.options.iter().any(|option| option == "ro") {
        let effect =
            "it is mounted read-only: nothing can be stored. A file system that found damage turns itself read-only";
        return vec![seen(Finding::error(title).effect(effect).fix("see dmesg, then fsck and mount it again"))];
    }
    let mut findings = Vec::new();
    if let Some(option) = mount.options.iter().find(|option| UNSAFE.contains(&option.as_str())) {
        findings.push(seen(
            Finding::warning(format!("the store's file system is mounted with {option}"))
                .of(option)
                .effect("after a loss of power acknowledged messages may be gone, or files hold old bytes, SYNC_FLUSH or not")
                .fix(format!("mount it without {option}")),
        ));
    }
    if mount.options.iter().any(|option| option == "sync") {
        findings.push(seen(
            Finding::warning("the store's file system is mounted with sync")
                .of("sync")
                .effect("every write waits for the device, with ASYNC_FLUSH too")
                .fix("mount it without sync; flushDiskType=SYNC_FLUSH makes acknowledged messages safe"),
        ));
    }
    if let Some((_, whose)) = FAR.iter().find(|(kind, _)| *kind == mount.kind) {
        findings.push(seen(Finding::warning(&title).effect(format!(
            "its files are behind {whose}: flushes take as long as that does, a lock may not keep a second broker out, and a server that goes away \
             ends the broker"
        )).fix("put storePathRootDir on a disk of this machine")));
    } else if mount.kind == "tmpfs" || mount.kind == "ramfs" {
        findings.push(seen(
            Finding::warning(&title)
                .effect("it is memory: all messages are gone with the machine or the container, and they count as memory in use")
                .fix("put storePathRootDir on a disk"),
        ));
    } else if mount.kind == "overlay" {
        findings.push(seen(
            Finding::warning(&title)
                .effect("it is the container's own layer: all messages are gone when the container is replaced")
                .fix("mount a volume, and put storePathRootDir there"),
        ));
    } else if mount.kind.starts_with("fuse") {
        findings.push(seen(
            Finding::warning(&title)
                .effect("each call goes through another process: flushes and reads are slow, and it may end before the broker does")
                .fix("put storePathRootDir on ext4 or xfs"),
        ));
    }
    if findings.is_empty() {
        let effect = match mount.kind.as_str() {
            "ext4" | "xfs" => {
                "the store is tested on it; noatime and the like are not needed, since files are read through mappings and by place"
            }
            "btrfs" | "zfs" => {
                "it copies what is overwritten. Files of the log are written once, consume queues again and again: they fragment"
            }
            _ => "nothing is known against it; the store is tested on ext4 and xfs",
        };
        let severity = if matches!(mount.kind.as_str(), "ext4" | "xfs") { Severity::Ok } else { Severity::Note };
        findings.push(seen(Finding::new(severity, title).effect(effect)));
    }
    findings
}

/// R1.60: reported; the log is written in its order, so there is little to sort.
pub fn scheduler(patient: &Patient) -> Vec<Finding> {
    each_device(patient, |place| scheduler_of(patient, place))
}

fn scheduler_of(patient: &Patient, place: &Path) -> Vec<Finding> {
    let read = patient.device_of(place).and_then(|device| patient.host.of_device(&device, "queue/scheduler"));
    let Some((path, text)) = read else {
        return vec![
            Finding::ok("the I/O scheduler of the store's device is not shown here")
                .seen("/sys/dev/block", "no device of its own")
                .effect("not needed: deadline was advice for turning disks of 2010"),
        ];
    };
    let name = chosen(&text).to_owned();
    let better = if text.contains("mq-deadline") { "mq-deadline" } else { "none" };
    vec![match name.as_str() {
        "bfq" | "cfq" => Finding::note(format!("I/O scheduler: {name}"))
            .seen(&path, &text)
            .effect(
                "it shares the disk out between programs: a flush waits for its turn when others read or write much",
            )
            .fix(format!("echo {better} > {path}"))
            .change(path, name, better),
        _ => Finding::ok(format!("I/O scheduler: {name}"))
            .seen(&path, &text)
            .effect("not needed: the log is written in one order, and flushes are grouped by the store"),
    }]
}

/// The store says to the kernel how it reads.
pub fn read_ahead(patient: &Patient) -> Vec<Finding> {
    each_device(patient, |place| read_ahead_of(patient, place))
}

fn read_ahead_of(patient: &Patient, place: &Path) -> Vec<Finding> {
    let read = patient.device_of(place).and_then(|device| patient.host.of_device(&device, "queue/read_ahead_kb"));
    let Some((path, text)) = read else {
        return vec![
            Finding::ok("read-ahead of the store's device is not shown here")
                .seen("/sys/dev/block", "no device of its own"),
        ];
    };
    vec![
        Finding::ok(format!("read-ahead: {text} KiB"))
            .seen(path, &text)
            .effect("not needed: what a pull wants of old messages is asked for as a whole before it is read"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeHost;
    use crate::patient::fake::patient;

    #[test]
    fn each_watermark_has_its_word() {
        let store = patient(&FakeHost::with(&[]), "").target.settings.store().unwrap();
        let judged = |percent, free| judged(percent, free, &store);
        for (percent, expected) in [
            (75, Severity::Ok),
            (76, Severity::Note),
            (85, Severity::Note),
            (86, Severity::Warning),
            (90, Severity::Warning),
            (91, Severity::Error),
        ] {
            assert_eq!(judged(percent, 1 << 30).severity, expected, "{percent}");
        }
        assert_eq!(judged(10, 1 << 20).severity, Severity::Error);
        assert!(judged(91, 1 << 30).effect.contains("diskSpaceWarningLevelRatio"));
    }

    #[test]
    fn the_watermarks_are_those_of_the_file() {
        let fake = FakeHost::with(&[]);
        let low =
            patient(&fake, "diskMaxUsedSpaceRatio=10\ndiskSpaceCleanForciblyRatio=30\ndiskSpaceWarningLevelRatio=35\n");
        let store = low.target.settings.store().unwrap();
        assert_eq!(judged(36, 1 << 30, &store).severity, Severity::Error);
        let here = space(&low).remove(0);
        assert!(here.figures.contains_key("usedPercent") && here.evidence[0].value == "10, 30, 35", "{here:?}");
    }

    #[test]
    fn of_several_folders_of_the_log_one_may_be_full_while_another_has_room() {
        let full = |place: &str, percent: u64| {
            Finding::error("full").seen(format!("statvfs {place}"), percent).figure("usedPercent", percent)
        };
        let severities = |mut findings: Vec<Finding>| {
            several(&mut findings, "/root");
            assert!(findings.iter().all(|finding| finding.subject.is_some()));
            findings.into_iter().map(|finding| finding.severity).collect::<Vec<_>>()
        };
        let found = severities(vec![full("/a", 95), full("/b", 92), full("/root", 99)]);
        assert_eq!(found, [Severity::Note, Severity::Error, Severity::Error]);
        let mut inodes = vec![full("/a", 20).of("inodes"), full("/root", 20)];
        several(&mut inodes, "/root");
        assert_eq!(inodes[0].subject.as_deref(), Some("/a inodes"));
        // Room beside the queues is none for the log.
        assert_eq!(severities(vec![full("/a", 95), full("/root", 20)]), [Severity::Error; 2]);
    }

    fn on(kind: &str, options: &str) -> Vec<Finding> {
        let line = format!("27 1 254:0 / / {options} - {kind} /dev/vda rw\n");
        file_system(&patient(&FakeHost::with(&[("/proc/self/mountinfo", &line)]), ""))
    }

    #[test]
    fn kinds_and_options_that_lose_messages_are_named() {
        assert_eq!(on("ext4", "rw,relatime")[0].severity, Severity::Ok);
        assert_eq!(on("btrfs", "rw")[0].severity, Severity::Note);
        for kind in ["nfs4", "tmpfs", "overlay", "fuse.sshfs"] {
            assert_eq!(on(kind, "rw")[0].severity, Severity::Warning, "{kind}");
        }
        assert_eq!(on("ext4", "ro,relatime")[0].severity, Severity::Error);
        let unsafe_mount = on("ext4", "rw,nobarrier,sync");
        let subjects: Vec<&str> = unsafe_mount.iter().map(|one| one.subject.as_deref().unwrap()).collect();
        assert_eq!(subjects, ["nobarrier", "sync"]);
        let nothing = file_system(&patient(&FakeHost::with(&[]), ""));
        assert_eq!(nothing[0].severity, Severity::Note);
    }

    #[test]
    fn each_folder_of_the_log_on_a_disk_of_its_own_is_looked_at() {
        // Memory is the one other file system that each machine has.
        let Ok(other) = tempfile::tempdir_in("/dev/shm") else { return };
        let other = other.path().display();
        let mounts = "27 1 254:0 / / rw - ext4 /dev/vda rw\n28 27 254:16 / /dev/shm rw,nobarrier - ext4 /dev/vdb rw\n";
        let fake = FakeHost::with(&[
            ("/proc/self/mountinfo", mounts),
            ("/sys/dev/block/254:0/queue/scheduler", "[none]"),
            ("/sys/dev/block/254:16/queue/scheduler", "[bfq]"),
            ("/sys/dev/block/254:0/queue/read_ahead_kb", "128"),
            ("/sys/dev/block/254:16/queue/read_ahead_kb", "8192"),
        ]);
        let patient = patient(&fake, &format!("storePathCommitLog={other}/a,{other}/b"));
        let root = std::fs::canonicalize(fake.root()).unwrap().display().to_string();
        let (log, option) = (other.to_string(), format!("{other} nobarrier"));
        let of = |findings: Vec<Finding>| -> Vec<(String, Severity)> {
            findings.into_iter().map(|one| (one.subject.unwrap(), one.severity)).collect()
        };
        let subjects = |findings| of(findings).into_iter().map(|(subject, _)| subject).collect::<Vec<_>>();
        assert_eq!(of(file_system(&patient)), [(option, Severity::Warning), (root.clone(), Severity::Ok)]);
        assert_eq!(of(scheduler(&patient)), [(log.clone(), Severity::Note), (root.clone(), Severity::Ok)]);
        let ahead = read_ahead(&patient);
        assert_eq!(ahead[0].title, "read-ahead: 8192 KiB");
        assert_eq!(subjects(ahead), [log.clone(), root.clone()]);
        assert_eq!(subjects(space(&patient)), [log, root]);
    }

    #[test]
    fn file_systems_of_one_device_have_one_scheduler() {
        let Ok(other) = tempfile::tempdir_in("/dev/shm") else { return };
        let mounts = "27 1 254:0 / / rw - ext4 /dev/vda rw\n28 27 254:0 /sub /dev/shm rw - ext4 /dev/vda rw\n";
        let fake =
            FakeHost::with(&[("/proc/self/mountinfo", mounts), ("/sys/dev/block/254:0/queue/scheduler", "[none]")]);
        let patient = patient(&fake, &format!("storePathCommitLog={}", other.path().display()));
        assert_eq!((file_system(&patient).len(), scheduler(&patient).len()), (2, 1));
        assert_eq!(scheduler(&patient)[0].subject, None);
    }

    #[test]
    fn a_scheduler_for_desktops_is_noted_and_others_are_reported() {
        for (text, expected) in [
            ("[none] mq-deadline kyber", Severity::Ok),
            ("none [mq-deadline]", Severity::Ok),
            ("noop [deadline] cfq", Severity::Ok),
            ("mq-deadline [bfq] none", Severity::Note),
        ] {
            let fake = FakeHost::with(&[
                ("/proc/self/mountinfo", "27 1 254:0 / / rw - ext4 /dev/vda rw\n"),
                ("/sys/dev/block/254:0/queue/scheduler", text),
                ("/sys/dev/block/254:0/queue/read_ahead_kb", "128"),
            ]);
            let patient = patient(&fake, "");
            let found = scheduler(&patient).remove(0);
            assert_eq!((found.severity, found.evidence[0].value.as_str()), (expected, text));
            assert_eq!(read_ahead(&patient).remove(0).title, "read-ahead: 128 KiB");
        }
        assert_eq!(scheduler(&patient(&FakeHost::with(&[]), "")).remove(0).severity, Severity::Ok);
    }
}
