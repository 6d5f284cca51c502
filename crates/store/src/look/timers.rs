//! The timer store: its log, its wheel, its check-point.

use std::path::Path;
use std::sync::Arc;

use disk::Disk;
use protocol::names::TIMER_TOPIC;

use super::finding::Finding;
use super::log::Log;
use crate::error::StoreError;
use crate::timer::{self, TimerMarks};

const EFFECT: &str = "the timer messages behind it may not be delivered";
const REMEDY: &str = "keep a copy of the folder, and send again what is missing after the next start";

/// The timer store in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerSurvey {
    /// Files of the timer log.
    pub files: usize,
    /// Units in it: messages that wait, or waited once.
    pub units: u64,
    /// Units of slots that are not done with.
    pub waiting: u64,
    /// Where it ends.
    pub end: u64,
    /// `config/timercheck`.
    pub marks: TimerMarks,
}

/// Units that lead to no message of theirs: how many, and of the first its position and the log offset that it names.
#[derive(Default)]
struct Bad {
    count: u64,
    first: Option<(u64, u64)>,
}

impl Bad {
    fn add(&mut self, position: u64, message: u64) {
        self.count += 1;
        self.first.get_or_insert((position, message));
    }
}

/// Counts the units; none if there is no timer log.
pub(super) fn survey(root: &Path, disk: &Arc<dyn Disk>) -> Result<Option<TimerSurvey>, StoreError> {
    let marks = timer::look_at_marks(&**disk, root)?.unwrap_or_default();
    let mut survey = TimerSurvey { files: 0, units: 0, waiting: 0, end: 0, marks };
    let ended = timer::look_at_log(disk, root, &mut |_, unit| {
        survey.units += 1;
        survey.waiting += u64::from(unit.slot >= marks.read_time);
    })?;
    Ok(ended.map(|log| TimerSurvey { files: log.files, end: log.end, ..survey }))
}

/// Whether what waits is in the log: each unit leads to a record of the timer topic.
pub(super) fn verify(
    root: &Path,
    disk: &Arc<dyn Disk>,
    records: &Log,
    log_end: u64,
    tell: &mut dyn FnMut(Finding),
) -> Result<u64, StoreError> {
    let log_min = records.min();
    let marks = timer::look_at_marks(&**disk, root)?.unwrap_or_default();
    let dir = root.join("timerlog");
    let mut units = 0;
    let mut lost = Bad::default();
    let mut strange = Bad::default();
    let mut failed = None;
    let looked = timer::look_at_log(disk, root, &mut |at, unit| {
        units += 1;
        if unit.slot < marks.read_time || failed.is_some() {
            return;
        }
        if !(log_min..log_end).contains(&unit.at.0) {
            lost.add(at, unit.at.0);
            return;
        }
        match records.files.record_at(unit.at.0) {
            Ok(Some(view)) if view.topic() == TIMER_TOPIC && view.total_size() as u64 == u64::from(unit.size) => {}
            Ok(_) => strange.add(at, unit.at.0),
            Err(error) => failed = Some(error),
        }
    });
    if let Some(error) = failed {
        return Err(error);
    }
    let end = match looked {
        Ok(None) => return Ok(0),
        Ok(Some(log)) => {
            if log.end < log.last {
                let what =
                    format!("what stands at position {} is no unit, and further on there are units again", log.end);
                tell(Finding { file: dir.clone(), at: None, what, effect: EFFECT, remedy: REMEDY });
            }
            log.end
        }
        Err(StoreError::Malformed { path, why }) => {
            tell(Finding { file: path, at: None, what: why, effect: EFFECT, remedy: REMEDY });
            return Ok(units);
        }
        Err(error) => return Err(error),
    };
    if let Bad { count, first: Some((at, message)) } = strange {
        let what = format!(
            "{count} timer messages that wait lead to no record of {TIMER_TOPIC}: the first, at position {at} of the timer log, to log offset {message}"
        );
        tell(Finding { file: dir.clone(), at: None, what, effect: EFFECT, remedy: REMEDY });
    }
    if let Bad { count, first: Some((at, message)) } = lost {
        let what = format!(
            "{count} timer messages that wait are not in the log, which has {log_min} to {log_end}: the first, at position {at} of the timer log, \
             is that of log offset {message}"
        );
        tell(Finding { file: dir.clone(), at: None, what, effect: EFFECT, remedy: REMEDY });
    }
    if u64::try_from(marks.log_flushed).is_ok_and(|flushed| flushed > end) {
        tell(Finding {
            file: root.join("config").join("timercheck"),
            at: Some(8),
            what: format!("says that the timer log is written up to {}; it ends at {end}", marks.log_flushed),
            effect: EFFECT,
            remedy: "the next start builds the wheel again from what the timer log has",
        });
    }
    Ok(units)
}
