//! The cut of the log's end: what a new master does not have goes from the store of a deposed one.
//!
//! A store that is open changes nothing: it notes the cut in the file `cut-to`, and the next start
//! carries it out before it looks at anything else. So queues, index, timers and marks follow by
//! recovery's code, as after a loss of power that took the log's end. Watermarks never go back:
//! those of the next start are new ones.
//!
//! Each step leaves the file until all is done, and can be done again: a start that is interrupted
//! is finished by the next one.
//! 1. [`Store::cut_on_reopen`] writes `cut-to`, atomically.
//! 2. A start counts what will go, keeps a copy of it in `cut/`, and writes the counts into
//!    `cut-to`.
//! 3. It raises `abort`, and takes the bytes out of the log's files. Recovery brings everything
//!    else to the log's new end.
//! 4. It lowers the check-point, which vouched for records that are gone (others with lower store
//!    times may take their place), and removes `cut-to`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use disk::{Disk, OpenHow};
use env::counted;
use journal::Journal;
use protocol::LogOffset;
use protocol::record::{self, Scanned};

use crate::checkpoint::{Checkpoint, Marks};
use crate::closed::Closed;
use crate::error::StoreError;
use crate::governor::ColdPages;
use crate::lock::AbortFile;
use crate::options::StoreOptions;
use crate::recovery::{self, CutOff, End, LogFiles, Recovered, Went};
use crate::resume::Resume;
use crate::segment::{SCAN_STRETCH, Walk};
use crate::store::Store;

const FILE: &str = "cut-to";
/// Its name while it is written.
const NEW_FILE: &str = "cut-to.new";
/// Its first line; another number if the rest means something else.
const TITLE: &str = "cut 1";
/// A file that is longer is none of ours: a line for each of 100,000 topics is a third of that.
const FILE_BYTES_MAX: u64 = 128 << 20;

/// How long a cut waits for the write pool. The thread `commit` writes without a pause.
const POOL_PATIENCE: Duration = Duration::from_secs(10);

/// A cut that is not noted.
#[derive(Debug, thiserror::Error)]
pub enum CutError {
    /// The log does not have that place.
    #[error("the log cannot be cut at {at}: it goes from {min} to {end}")]
    Outside {
        /// Where it should end.
        at: u64,
        /// Where it begins.
        min: u64,
        /// Where it ends.
        end: u64,
    },
    /// It would end inside a record.
    #[error("the log cannot be cut at {at}: no record begins there")]
    NotARecord {
        /// Where it should end.
        at: u64,
    },
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The contents of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Note {
    at: u64,
    /// Where the log ended, and messages by topic, once they are counted.
    counted: Option<(u64, BTreeMap<String, u64>)>,
}

impl Note {
    fn encode(&self) -> Vec<u8> {
        let mut text = format!("{TITLE}\n{}\n", self.at);
        if let Some((end, topics)) = &self.counted {
            text.push_str(&format!("counted {end}\n"));
            for (topic, messages) in topics {
                text.push_str(&format!("{messages} {topic}\n"));
            }
        }
        format!("{text}{:08x}\n", crc32fast::hash(text.as_bytes())).into_bytes()
    }

    fn decode(bytes: &[u8]) -> Option<Note> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut lines = text.lines().skip(1);
        let at = lines.next()?.parse().ok()?;
        let mut counted = None;
        if let Some(end) = lines.next()?.strip_prefix("counted ") {
            let mut topics = BTreeMap::new();
            for line in lines {
                // The last line is the checksum, and has no blank.
                let Some((messages, topic)) = line.split_once(' ') else { break };
                topics.insert(topic.to_owned(), messages.parse().ok()?);
            }
            counted = Some((end.parse().ok()?, topics));
        }
        let note = Note { at, counted };
        (note.encode() == bytes).then_some(note)
    }

    fn read(root: &Path, disk: &dyn Disk) -> Result<Option<Note>, StoreError> {
        let path = root.join(FILE);
        let failed = |doing| {
            let path = path.clone();
            move |source| StoreError::Disk { doing, path, source }
        };
        let file = match disk.open(&path, OpenHow::Read) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(failed("open"))?,
        };
        let bytes = file.len().map_err(failed("measure"))?.min(FILE_BYTES_MAX) as usize;
        let mut text = vec![0; bytes];
        let read = file.read_at(&mut text, 0).map_err(failed("read"))?;
        match Note::decode(&text[..read]) {
            Some(note) => Ok(Some(note)),
            None => Err(StoreError::Malformed {
                path,
                why: "does not say where the log is to be cut, which may have begun: what went is in cut/; remove it to go on with the log as it is now".to_owned(),
            }),
        }
    }

    fn write(&self, root: &Path, disk: &dyn Disk) -> Result<(), StoreError> {
        let (new, path) = (root.join(NEW_FILE), root.join(FILE));
        let failed = |doing, path: &Path| {
            let path = path.to_owned();
            move |source| StoreError::Disk { doing, path, source }
        };
        let file = disk.open(&new, OpenHow::Create).map_err(failed("make", &new))?;
        let written = file.set_len(0).and_then(|()| file.write_at(&self.encode(), 0)).and_then(|()| file.sync_data());
        written.map_err(failed("write", &new))?;
        disk.rename(&new, &path).and_then(|()| disk.sync_dir(root)).map_err(failed("write", &path))
    }
}

/// A cut that a start carries out.
pub(crate) struct Cut {
    root: PathBuf,
    disk: Arc<dyn Disk>,
    off: CutOff,
}

impl Cut {
    /// Takes out of the log's files what is to go; none if nobody asked. After this, the start
    /// finds a store that was not closed, whose log ends there.
    pub fn begin(
        options: &StoreOptions,
        disk: &Arc<dyn Disk>,
        found: &mut Recovered,
    ) -> Result<Option<Cut>, StoreError> {
        let root = options.root.clone();
        let Some(mut note) = Note::read(&root, &**disk)? else { return Ok(None) };
        let at = note.at;
        let cold = Arc::new(ColdPages::unbounded());
        let went = Went { known_end: at, closed_end: 0 };
        let mut files = recovery::open_segments(options, disk, &cold, went, found)?;
        let min = files.segments[0].base();
        if at < min {
            return Err(StoreError::Malformed {
                path: root.join(FILE),
                why: format!("the log is to be cut at {at} and begins at {min}: the store has to be copied anew"),
            });
        }
        files.segments.iter().for_each(|segment| segment.publish(segment.end()));
        let kept_in = root.join("cut");
        let (end, topics) = match note.counted.take() {
            Some(known) => known,
            None => {
                let gone = count(&files, at)?;
                recovery::set_aside(&files, at, u64::MAX, options, &**disk)?;
                Note { at, counted: Some(gone.clone()) }.write(&root, &**disk)?;
                gone
            }
        };
        // From here on only recovery makes a whole store of it.
        AbortFile::find(&root, disk).0.raise()?;
        disk.sync_dir(&root).map_err(|source| StoreError::Disk { doing: "sync", path: root.clone(), source })?;
        Resume::new(&root, disk).forget();
        let mut cut = Recovered { was_abnormal: true, ..Recovered::default() };
        recovery::cut(&mut files, at, options, disk, &cold, &mut cut)?;
        options.log_dirs.sync(&**disk)?;
        let off = CutOff { at: LogOffset(at), end: LogOffset(end), topics, kept_in };
        found.findings.push(format!(
            "the log is cut at {at}, as was asked: {} up to {end} are cut off and kept in {}",
            counted(off.topics.values().sum::<u64>(), "message"),
            off.kept_in.display()
        ));
        Ok(Some(Cut { root, disk: Arc::clone(disk), off }))
    }

    /// All else has followed. The check-point vouches for no record that is gone.
    pub fn end(
        self,
        checkpoint: &mut Checkpoint,
        marks: Option<&Marks>,
        end: &End,
        journal: &Journal,
    ) -> Result<CutOff, StoreError> {
        let Cut { root, disk, off } = self;
        if let Some(marks) = marks {
            let safe =
                marks.log_timestamp.min(marks.queues_timestamp).min(end.last_timestamp).min(end.flushed_timestamp);
            checkpoint.write(&Marks {
                log_timestamp: safe,
                queues_timestamp: safe,
                index_timestamp: marks.index_timestamp.min(safe),
                confirmed: 0,
                ..*marks
            })?;
        }
        // It says where queues of the longer log ended.
        Closed::forget(journal);
        let path = root.join(FILE);
        let removed = disk.remove(&path).and_then(|()| disk.sync_dir(&root));
        removed.map_err(|source| StoreError::Disk { doing: "remove", path, source })?;
        Ok(off)
    }
}

/// Where the log ends, and how many messages it has from `at` on, by topic.
fn count(files: &LogFiles, at: u64) -> Result<(u64, BTreeMap<String, u64>), StoreError> {
    let (mut place, mut topics) = (at, BTreeMap::new());
    'segments: for segment in &files.segments {
        let mut walk = Walk::new(segment, SCAN_STRETCH);
        // Each turn goes on by a record, or ends the segment or the log.
        while segment.holds(place) {
            match record::scan(walk.record_at(place)?, false) {
                Ok(Scanned::Record(view)) if view.log_offset() == place => {
                    // A line in the file.
                    let topic = view.topic().replace(['\n', '\r'], " ");
                    *topics.entry(topic).or_insert(0) += u64::from(view.message_count());
                    place += view.total_size() as u64;
                }
                Ok(Scanned::Blank { .. }) => place = segment.end(),
                Ok(Scanned::Record(_) | Scanned::Nothing) | Err(_) => break 'segments,
            }
        }
        segment.let_go(segment.base(), segment.end());
    }
    Ok((place, topics))
}

impl Store {
    /// Notes that the log is to end at `at`, where a record begins or the log ends. Nothing changes
    /// until the store is opened again, which is to be soon: [`Recovered::cut_off`] says then what
    /// has gone. A note before this one is replaced.
    pub fn cut_on_reopen(&self, at: LogOffset) -> Result<(), CutError> {
        let log = &self.shared.log;
        // A record can be looked at when it has left the write pool.
        log.end.wait_until(at.0.min(log.appended()), Instant::now() + POOL_PATIENCE);
        let (at, min, end) = (at.0, log.min(), log.end.get());
        if at < min || at > end {
            return Err(CutError::Outside { at, min, end });
        }
        if at < end
            && let Some(segment) = log.segment_at(at)
        {
            match record::scan(segment.record_at(at)?, false) {
                Ok(Scanned::Record(view)) if view.log_offset() == at => {}
                Ok(Scanned::Blank { .. }) => {}
                Ok(Scanned::Record(_) | Scanned::Nothing) | Err(_) => return Err(CutError::NotARecord { at }),
            }
        }
        Ok(Note { at, counted: None }.write(&self.shared.options.root, &*self.shared.disk)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_as_it_was_written_or_not_at_all() {
        let topics = BTreeMap::from([("orders".to_owned(), 3), ("a b".to_owned(), 1)]);
        for counted in [None, Some((200, BTreeMap::new())), Some((200, topics))] {
            let note = Note { at: 100, counted };
            let bytes = note.encode();
            assert_eq!(Note::decode(&bytes), Some(note));
            for torn in 0..bytes.len() {
                assert_eq!(Note::decode(&bytes[..torn]), None);
            }
        }
    }
}
