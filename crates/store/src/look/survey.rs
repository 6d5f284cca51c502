//! What is in a store: a look at names, lengths, heads and ends of files, no reading of all of it.

use journal::JournalLook;

use super::index::{self, IndexFileSurvey};
use super::log::{Log, LogSurvey};
use super::opened::Look;
use super::timers::{self, TimerSurvey};
use crate::checkpoint;
use crate::closed::{Closed, fingerprint};
use crate::error::StoreError;
use crate::rocksdb::{RocksDb, rocksdb_in};

/// A consume queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSurvey {
    /// Its topic.
    pub topic: String,
    /// Its number.
    pub id: u32,
    /// Whether it is the queue of a BatchCQ topic.
    pub is_batch: bool,
    /// The first offset.
    pub min: u64,
    /// One more than the last offset.
    pub max: u64,
    /// Where the record of its last message ends in the log.
    pub log_end: u64,
}

/// What is in a store.
#[derive(Debug)]
pub struct Survey {
    /// The file `abort` is there: the last broker did not close the store, or runs.
    pub has_abort: bool,
    /// The file `checkpoint`: log, queues and index are on the device up to these store times, in ms; and where the log was confirmed.
    pub checkpoint: Option<[i64; 4]>,
    /// The log.
    pub log: LogSurvey,
    /// The consume queues, by topic and number.
    pub queues: Vec<QueueSurvey>,
    /// Files of the key index.
    pub index: Vec<IndexFileSurvey>,
    /// The timer store, if there is one.
    pub timers: Option<TimerSurvey>,
    /// Databases of Apache's.
    pub rocksdb: Vec<RocksDb>,
    /// The journal, if there is one.
    pub journal: Option<JournalLook>,
    /// Whether Gantry closed the store last: log and queues end where its journal says. None without a journal.
    pub is_as_gantry_closed_it: Option<bool>,
    /// What a start would mend in the lists of files, a sentence each.
    pub findings: Vec<String>,
}

impl Look {
    /// What is in the store.
    pub fn survey(&self) -> Result<Survey, StoreError> {
        let root = &self.options.root;
        let rocksdb = rocksdb_in(&*self.disk, root, &self.options.queue_dir).map_err(|source| StoreError::Disk {
            doing: "list",
            path: root.clone(),
            source,
        })?;
        let journal = self.journal()?;
        let marks = checkpoint::read(&*self.disk, root)?;
        let (queues, loaded) = self.queues()?;
        let log = Log::open(&self.options, &self.disk)?;
        let closed = journal.as_ref().and_then(Closed::in_look);
        let confirmed = marks.as_ref().and_then(|marks| u64::try_from(marks.confirmed).ok());
        let queues_end = queues.max_log_end();
        let known: Vec<u64> =
            [closed.map(|closed| closed.end), confirmed, Some(queues_end.0)].into_iter().flatten().collect();
        let mut survey = log.survey(&known)?;
        if survey.last_store_time.is_none() {
            survey.last_store_time =
                closed.filter(|closed| closed.end == survey.end).map(|closed| closed.last_timestamp);
        }
        if survey.last_is_v2.is_none() || survey.last_store_time.is_none() {
            let newest = queues.queues().into_iter().max_by_key(|queue| queue.log_end());
            let unit = newest.and_then(|queue| queue.unit_at(queue.max_offset().checked_sub(1)?).ok().flatten());
            if let Some(view) = unit.map(|unit| log.files.record_at(unit.at.0)).transpose()?.flatten() {
                survey.last_is_v2.get_or_insert(view.is_v2());
                survey.last_store_time.get_or_insert(view.store_timestamp());
            }
        }
        let is_as_gantry_closed_it = journal.as_ref().map(|_| {
            closed.is_some_and(|closed| {
                closed.min == survey.min
                    && closed.end == survey.end
                    && closed.queues == fingerprint(&queues, survey.min)
            })
        });
        let mut listed: Vec<QueueSurvey> = queues
            .queues()
            .into_iter()
            .map(|queue| QueueSurvey {
                topic: queue.topic().to_owned(),
                id: queue.id(),
                is_batch: queue.is_batch(),
                min: queue.min_offset(),
                max: queue.max_offset(),
                log_end: queue.log_end().0,
            })
            .collect();
        listed.sort_by(|one, other| (&one.topic, one.id).cmp(&(&other.topic, other.id)));
        let mut findings = loaded.findings;
        findings.extend(log.findings.iter().map(|(file, why)| format!("{} {why}", file.display())));
        Ok(Survey {
            has_abort: root.join("abort").exists(),
            checkpoint: marks
                .map(|marks| [marks.log_timestamp, marks.queues_timestamp, marks.index_timestamp, marks.confirmed]),
            index: index::survey(&self.options, &*self.disk)?,
            timers: timers::survey(root, &self.disk)?,
            log: survey,
            queues: listed,
            rocksdb,
            journal,
            is_as_gantry_closed_it,
            findings,
        })
    }
}
