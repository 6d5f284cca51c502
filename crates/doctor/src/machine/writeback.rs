//! When the kernel writes pages back by itself, and when it holds writers up.

use super::{number, set, vm};
use crate::finding::{Finding, Severity, size};
use crate::patient::Patient;

/// The store keeps up to 64 MiB ready ahead of the log, and what was appended since the last flush. Below twice that the kernel may hold up
/// whoever makes pages ready.
const DIRTY_ROOM: u64 = 128 << 20;
/// From here on, in percent, a great deal may gather.
const RAISED: u64 = 40;
/// Ten minutes.
const RARELY_CENTISECS: u64 = 60_000;

/// How the log gets to the device, whatever the kernel does.
fn own_way(patient: &Patient) -> String {
    let store = patient.target.settings.store();
    match store.map(|store| (store.flush_disk_type, store.flush_interval_commit_log)) {
        Ok((config::FlushDiskType::Sync, _)) => "a flush for every acknowledgement (SYNC_FLUSH)".to_owned(),
        Ok((config::FlushDiskType::Async, ms)) => format!("a flush every {ms} ms (flushIntervalCommitLog)"),
        Err(_) => "flushes of its own".to_owned(),
    }
}

/// A threshold: percent of the memory that can be had, or bytes if somebody set those.
fn threshold(patient: &Patient, name: &str) -> Result<(u64, Option<u64>, Finding), Box<Finding>> {
    let percent = vm(patient, &format!("{name}_ratio"))?;
    let bytes = vm(patient, &format!("{name}_bytes")).unwrap_or(0);
    let finding = number(Severity::Ok, &format!("{name}_ratio"), percent);
    if bytes > 0 {
        return Ok((0, Some(bytes), finding.seen(format!("/proc/sys/vm/{name}_bytes"), bytes)));
    }
    let can_be_had = patient.host.memory("MemAvailable");
    let bytes = can_be_had.map(|bytes| bytes / 100 * percent);
    let finding = match (can_be_had, bytes) {
        (Some(all), Some(part)) => {
            finding.seen("/proc/meminfo", format!("{} of MemAvailable {}", size(part), size(all)))
        }
        _ => finding,
    };
    Ok((percent, bytes, finding))
}

/// R1.54
pub fn dirty_background_ratio(patient: &Patient) -> Vec<Finding> {
    let (percent, _, finding) = match threshold(patient, "dirty_background") {
        Ok(found) => found,
        Err(finding) => return vec![*finding],
    };
    vec![if percent >= RAISED {
        raised(finding, "dirty_background_ratio", percent, 10)
    } else {
        let way = own_way(patient);
        finding.effect(format!("not needed: the log goes to the device by {way}, long before the kernel would begin"))
    }]
}

/// R1.55
pub fn dirty_ratio(patient: &Patient) -> Vec<Finding> {
    let (percent, bytes, finding) = match threshold(patient, "dirty") {
        Ok(found) => found,
        Err(finding) => return vec![*finding],
    };
    vec![match bytes {
        Some(bytes) if bytes < DIRTY_ROOM => Finding { severity: Severity::Note, ..finding }
            .effect(format!(
                "from {} of unwritten pages on, of all programs together, writers wait for the device. The log's pages are made ready by a \
                 thread, which then waits; sends only do when it falls behind, at a full load",
                size(bytes)
            ))
            .fix("give the machine more memory; or vm.dirty_ratio=20, the default, if it was lowered"),
        Some(_) | None if percent >= RAISED => raised(finding, "dirty_ratio", percent, 20),
        Some(_) | None => {
            let way = own_way(patient);
            finding.effect(format!("not needed: the log goes to the device by {way}, so that little of it gathers"))
        }
    }]
}

fn raised(finding: Finding, name: &str, now: u64, usual: u64) -> Finding {
    let finding = Finding { severity: Severity::Note, ..finding }.effect(
        "not needed for this broker, which flushes its log by itself. What other programs write gathers in memory, though, and comes to the \
         device in one long burst, which flushes of the log have to wait behind",
    );
    set(finding, name, now, usual, ", the default")
}

/// R1.56
pub fn dirty_writeback_centisecs(patient: &Patient) -> Vec<Finding> {
    let value = match vm(patient, "dirty_writeback_centisecs") {
        Ok(value) => value,
        Err(finding) => return vec![*finding],
    };
    let finding = number(Severity::Ok, "dirty_writeback_centisecs", value);
    vec![if value == 0 || value >= RARELY_CENTISECS {
        let how = if value == 0 { "never".to_owned() } else { format!("every {} minutes", value / 6000) };
        let finding = Finding { severity: Severity::Note, ..finding }.effect(format!(
            "the kernel looks for old unwritten pages {how}. The store brings log, queues and journal to the device by itself; files of other \
             programs may be lost with the power"
        ));
        set(finding, "dirty_writeback_centisecs", value, 500, ", the default")
    } else {
        finding.effect("not needed: log, queues and journal are brought to the device by the store itself")
    }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeHost;
    use crate::patient::fake::patient;

    fn one(look: fn(&Patient) -> Vec<Finding>, settings: &str, files: &[(&str, &str)]) -> Finding {
        look(&patient(&FakeHost::with(files), settings)).remove(0)
    }

    const MEMORY: (&str, &str) = ("/proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n");

    #[test]
    fn defaults_are_not_needed_and_the_flush_that_counts_is_named() {
        let background = ("/proc/sys/vm/dirty_background_ratio", "10");
        let found = one(dirty_background_ratio, "flushIntervalCommitLog=300", &[background, MEMORY]);
        assert_eq!(found.severity, Severity::Ok);
        assert!(found.effect.contains("every 300 ms"), "{}", found.effect);
        let found = one(dirty_ratio, "flushDiskType=SYNC_FLUSH", &[("/proc/sys/vm/dirty_ratio", "20"), MEMORY]);
        assert!(found.severity == Severity::Ok && found.effect.contains("SYNC_FLUSH"), "{found:?}");
        assert!(found.evidence.iter().any(|seen| seen.value.starts_with("1.6 GiB of")), "{found:?}");
        assert_eq!(
            one(dirty_writeback_centisecs, "", &[("/proc/sys/vm/dirty_writeback_centisecs", "500")]).severity,
            Severity::Ok
        );
    }

    #[test]
    fn what_os_sh_raised_is_noted() {
        for (look, name, value) in [
            (dirty_background_ratio as fn(&Patient) -> Vec<Finding>, "dirty_background_ratio", "50"),
            (dirty_ratio, "dirty_ratio", "50"),
            (dirty_writeback_centisecs, "dirty_writeback_centisecs", "360000"),
            (dirty_writeback_centisecs, "dirty_writeback_centisecs", "0"),
        ] {
            let found = one(look, "", &[(&format!("/proc/sys/vm/{name}"), value), MEMORY]);
            assert!(found.severity == Severity::Note && found.fix.is_some(), "{found:?}");
        }
    }

    #[test]
    fn little_room_for_unwritten_pages_is_noted_in_bytes() {
        let files = [("/proc/sys/vm/dirty_ratio", "0"), ("/proc/sys/vm/dirty_bytes", "33554432"), MEMORY];
        let found = one(dirty_ratio, "", &files);
        assert!(found.severity == Severity::Note && found.effect.contains("32.0 MiB"), "{found:?}");
    }
}
