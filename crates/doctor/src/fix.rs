//! `gantry doctor --fix`: writes those files of the kernel that findings name, once somebody has seen what would be written.
//!
//! Only settings that the kernel takes while it runs, and that can be put back the same way, are changed. They last until the machine
//! starts again. What needs a person (limits of a unit, mounts, swap, other programs) is shown as before, and left alone.

use std::io::{self, BufRead, IsTerminal, Write};

use env::{Stdout, counted, say};

use super::checks::Check;
use super::finding::{Change, Finding, Severity};
use super::host::Host;
use super::machine::kernel::chosen;

/// A change, and the check that asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The check.
    pub id: &'static str,
    /// What is written.
    pub change: Change,
}

/// What can be changed, in the order of the checks; a file that several findings name once.
pub fn steps(rows: &[(&'static Check, Finding)]) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for (check, finding) in rows {
        let Some(change) = &finding.change else { continue };
        if !steps.iter().any(|step| step.change.file == change.file) {
            steps.push(Step { id: check.id, change: change.clone() });
        }
    }
    steps
}

/// Findings that are more than a note and that `--fix` leaves to a person.
fn left(rows: &[(&'static Check, Finding)]) -> usize {
    rows.iter().filter(|(_, finding)| finding.severity > Severity::Note && finding.change.is_none()).count()
}

/// Shows what would be done, and does it if `is_agreed`, or if somebody at the terminal says so. Whether all that was to be done is done.
pub fn run(host: &Host, rows: &[(&'static Check, Finding)], is_agreed: bool) -> io::Result<bool> {
    let steps = steps(rows);
    say!("fix")?;
    if steps.is_empty() {
        say!("  nothing to change")?;
    }
    for Step { id, change: Change { file, now, wanted } } in &steps {
        say!("  {id}: write {wanted} to {file}, which says {now}")?;
    }
    let left = left(rows);
    if left > 0 {
        say!("  left to you: {}, whose fix is above", counted(left, "finding"))?;
    }
    if steps.is_empty() {
        return Ok(true);
    }
    if !is_agreed && !asked()? {
        say!("nothing was changed; --yes does it without a question")?;
        return Ok(true);
    }
    let mut is_done = true;
    for (Step { id, change }, done) in steps.iter().zip(apply(host, &steps)) {
        match done {
            Ok(()) => say!("  {id}: {} is {}; it was {}", change.file, change.wanted, change.now)?,
            Err(why) => {
                is_done = false;
                say!("  {id}: not changed: {why}")?;
            }
        }
    }
    say!("this lasts until the machine starts again. A line in /etc/sysctl.d, or a rule of udev for a disk, keeps it")?;
    Ok(is_done)
}

/// Asks at a terminal; anything but a yes is a no, and so is a standard input that is no terminal.
fn asked() -> io::Result<bool> {
    let input = io::stdin();
    if !input.is_terminal() {
        return Ok(false);
    }
    write!(Stdout, "write this? [y/N] ")?;
    Stdout.flush()?;
    let mut answer = String::new();
    input.lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

/// Writes each file, and reads it again: a kernel may take a value and not follow it.
pub fn apply(host: &Host, steps: &[Step]) -> Vec<Result<(), String>> {
    let one = |Step { change: Change { file, wanted, .. }, .. }: &Step| {
        host.write(file, wanted).map_err(|error| format!("cannot write {wanted} to {file}: {error}"))?;
        match host.read(file) {
            Ok(Some(text)) if chosen(&text) == wanted => Ok(()),
            Ok(text) => Err(format!("{file} says {} after {wanted} was written", text.unwrap_or_default())),
            Err(error) => Err(format!("{file} cannot be read again: {error}")),
        }
    };
    steps.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks;
    use crate::host::fake::FakeHost;
    use crate::patient::fake::patient;

    /// A machine as `os.sh` and a desktop left it.
    fn untuned() -> FakeHost {
        FakeHost::with(&[
            ("/proc/swaps", "Filename Type Size Used Priority\n/dev/sda2 partition 1024 0 -2\n"),
            ("/proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n"),
            ("/proc/sys/vm/swappiness", "60\n"),
            ("/proc/sys/vm/zone_reclaim_mode", "1\n"),
            ("/proc/sys/vm/min_free_kbytes", "5000000\n"),
            ("/proc/sys/vm/dirty_background_ratio", "50\n"),
            ("/proc/sys/vm/dirty_ratio", "50\n"),
            ("/proc/sys/vm/dirty_writeback_centisecs", "360000\n"),
            ("/proc/sys/vm/max_map_count", "10\n"),
            ("/proc/sys/vm/overcommit_memory", "2\n"),
            ("/proc/self/mountinfo", "27 1 254:0 / / rw - ext4 /dev/vda rw\n"),
            ("/sys/dev/block/254:0/queue/scheduler", "mq-deadline [bfq] none\n"),
        ])
    }

    fn rows(fake: &FakeHost) -> Vec<(&'static Check, Finding)> {
        let patient = patient(fake, "");
        let chosen = checks::chosen(&["machine".to_owned(), "io-scheduler".to_owned()], &[]).unwrap();
        chosen.into_iter().flat_map(|check| (check.look)(&patient).into_iter().map(move |one| (check, one))).collect()
    }

    #[test]
    fn what_is_shown_is_written_and_nothing_is_found_afterwards() {
        let fake = untuned();
        let found = rows(&fake);
        let planned = steps(&found);
        let ids: Vec<&str> = planned.iter().map(|step| step.id).collect();
        assert_eq!(
            ids,
            [
                "vm.swappiness",
                "vm.min_free_kbytes",
                "vm.zone_reclaim_mode",
                "vm.max_map_count",
                "vm.dirty_background_ratio",
                "vm.dirty_ratio",
                "vm.dirty_writeback_centisecs",
                "io-scheduler"
            ]
        );
        // Without a yes nothing is written: the standard input of a test is no terminal.
        assert!(run(&fake.host(), &found, false).unwrap());
        assert_eq!(fake.host().text("/proc/sys/vm/swappiness").unwrap(), "60");
        assert!(run(&fake.host(), &found, true).unwrap());
        assert_eq!(fake.host().text("/proc/sys/vm/swappiness").unwrap(), "1");
        assert_eq!(fake.host().text("/sys/dev/block/254:0/queue/scheduler").unwrap(), "mq-deadline");
        assert_eq!(fake.host().text("/proc/sys/vm/overcommit_memory").unwrap(), "2", "a policy of the whole machine");
        assert_eq!(steps(&rows(&fake)), []);
    }

    #[test]
    fn a_file_that_cannot_be_written_or_does_not_follow_is_a_failure() {
        let fake = untuned();
        let step = |file: &str, wanted: &str| Step {
            id: "x",
            change: Change { file: file.to_owned(), now: "1".to_owned(), wanted: wanted.to_owned() },
        };
        fake.write("/proc/sys/vm/folder/file", "");
        fake.link("/proc/sys/vm/deaf", "/dev/null");
        let done = apply(
            &fake.host(),
            &[step("/proc/sys/vm/none", "2"), step("/proc/sys/vm/folder", "2"), step("/proc/sys/vm/deaf", "2")],
        );
        assert!(done.iter().all(Result::is_err), "{done:?}");
        assert!(!fake.host().has("/proc/sys/vm/none"), "a file that the kernel does not have is not made");
        assert_eq!(done[2].as_ref().unwrap_err(), "/proc/sys/vm/deaf says  after 2 was written");
    }
}
