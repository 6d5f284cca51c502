//! The way of a second machine through a journal: bundles in order from a position on, a snapshot
//! first where one has passed it.
//!
//! A [`Follower`] reads the files that the journal writes anyway. It holds one open file, a stretch
//! of it and one bundle, however far behind it is, and takes no lock of the journal. It goes up to
//! `written` and no further.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;

use crate::bundle::{self, BundleKind, HEADER_BYTES, Head};
use crate::change::Change;
use crate::error::JournalError;
use crate::files::{self, journal_path, snapshot_path};
use crate::front::Front;
use crate::journal::{Journal, Shared};

/// Bytes that are read at a time: at the end of the file most of them are room that was made ahead.
const STRETCH_BYTES: usize = 64 << 10;
/// Capacity that the buffer of a bundle keeps.
const BUFFER_BYTES: usize = 256 << 10;
/// Looks for the file to go on with. One fails only where a snapshot has removed what was just
/// listed.
const LOOKS_MAX: usize = 8;

/// Why a journal cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// A file cannot be read, or is damaged.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The follower has changes that the journal never had.
    #[error("position {from} is ahead of the journal, which ends at {last}: the follower has to begin at 0")]
    Ahead {
        /// Where the follower is.
        from: u64,
        /// Where the journal ends.
        last: u64,
    },
}

/// What a [`Part`] is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartOf {
    /// A bundle: a crash leaves all of it or nothing.
    Bundle,
    /// A snapshot. It takes the place of all that the follower had before its first part.
    Snapshot {
        /// It begins.
        is_first: bool,
        /// It ends. A follower that stops before that has to begin at 0 again.
        is_last: bool,
    },
}

/// What a follower applies in one step.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// Where it comes from.
    pub of: PartOf,
    /// The follower's position when this is applied; in a snapshot, when its last part is.
    pub position: u64,
    entries: &'a [u8],
}

impl<'a> Part<'a> {
    /// Its changes, in order.
    pub fn changes(&self) -> impl Iterator<Item = Change<'a>> + use<'a> {
        // All were looked at before.
        bundle::entries(self.entries).flatten().map(|entry| Change {
            table: entry.table,
            key: entry.key,
            value: entry.value,
        })
    }
}

/// Reads a journal in the order of its changes; see the module.
pub struct Follower {
    shared: Arc<Shared>,
    /// The end of all that was handed out.
    position: u64,
    whole_from: u64,
    /// None: the file to go on with is to be looked for.
    file: Option<Opened>,
    /// The entries of the part that was handed out last.
    pub(crate) entries: Vec<u8>,
}

impl Journal {
    /// Follows the changes behind position `from`, which is 0 or a [`Follower::position`].
    pub fn follow(&self, from: u64) -> Result<Follower, FollowError> {
        let last = self.position();
        if from > last {
            return Err(FollowError::Ahead { from, last });
        }
        let shared = Arc::clone(&self.shared);
        Ok(Follower { shared, position: from, whole_from: 0, file: None, entries: Vec::new() })
    }
}

impl Follower {
    /// The end of all that was handed out. There is more when [`Journal::written`] is above it.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// A snapshot may have a change that was put while it was taken, and not what was put together
    /// with it. At positions from here on the tables are those that the journal has there.
    pub fn whole_from(&self) -> u64 {
        self.whole_from
    }

    /// The next part; none if all that is safe was handed out. May wait for the device. After an
    /// error the same is tried again.
    pub fn next_part(&mut self) -> Result<Option<Part<'_>>, FollowError> {
        let Some((of, position)) = self.step()? else { return Ok(None) };
        Ok(Some(Part { of, position, entries: &self.entries }))
    }

    /// As [`Follower::next_part`]; the part lies in `entries`.
    pub(crate) fn step(&mut self) -> Result<Option<(PartOf, u64)>, JournalError> {
        // Ends with a part, an error, or behind all that is safe. Every other turn passes a bundle
        // or comes to a later file.
        loop {
            // Before the file is read: a bundle that ends at or below it is complete there.
            let safe = self.shared.written.get();
            let is_in_snapshot = self.file.as_ref().is_some_and(|file| file.is_snapshot);
            if !is_in_snapshot && self.position >= safe {
                return Ok(None);
            }
            let Some(file) = &mut self.file else {
                let found = self.seek()?;
                if found.is_snapshot {
                    // It got its name when the device had the newest change that it may have.
                    self.whole_from = self.shared.synced.get();
                }
                self.file = Some(found);
                continue;
            };
            let Some(head) = file.read(&mut self.entries)? else {
                let what = "these changes are not what was written";
                let (start, damaged) = (file.start, file.damaged(what));
                if is_in_snapshot {
                    return Err(damaged);
                }
                // The journal was begun anew here, or a snapshot has removed what follows.
                let next = self.seek()?;
                if !next.is_snapshot && next.start == start {
                    return Err(damaged);
                }
                self.file = Some(next);
                continue;
            };
            if !file.is_in_order(head) {
                return Err(file.damaged("changes before this place are missing"));
            }
            if !bundle::entries(&self.entries).all(|entry| entry.is_some()) {
                return Err(file.damaged("an entry does not add up"));
            }
            if is_in_snapshot {
                let of = PartOf::Snapshot { is_first: file.at == 0, is_last: head.kind == BundleKind::End };
                file.pass(head, self.entries.len());
                if head.kind == BundleKind::End {
                    (self.position, self.file) = (head.last, None);
                }
                return Ok(Some((of, head.last)));
            }
            if head.last > safe {
                return Ok(None);
            }
            file.pass(head, self.entries.len());
            if head.last > self.position {
                self.position = head.last;
                return Ok(Some((PartOf::Bundle, head.last)));
            }
        }
    }

    /// Opens the file with which it goes on: the newest snapshot if that has passed the position,
    /// else the last journal that begins at or before it.
    fn seek(&self) -> Result<Opened, JournalError> {
        let mut looks = 0;
        loop {
            looks += 1;
            match self.look() {
                Err(JournalError::Disk { source, .. }) if source.kind() == ErrorKind::NotFound && looks < LOOKS_MAX => {
                }
                // A snapshot has come while the folder was listed, and old files have gone.
                Err(JournalError::Missing { .. }) if looks < LOOKS_MAX => {}
                found => return found,
            }
        }
    }

    fn look(&self) -> Result<Opened, JournalError> {
        let found = files::list(&*self.shared.disk, &self.shared.dir)?;
        if let Some(&snapshot) = found.snapshots.last()
            && snapshot > self.position
        {
            return Opened::open(&self.shared, snapshot, true);
        }
        for &start in found.journals.iter().rev().filter(|start| **start <= self.position) {
            let mut file = Opened::open(&self.shared, start, false)?;
            // One without a head says nothing: it is being made, or could not be.
            if file.front.bundle(0)?.is_some() {
                return Ok(file);
            }
        }
        let what = format!("the journal of the changes from {} on is missing", self.position);
        Err(JournalError::Missing { path: self.shared.dir.clone(), what })
    }
}

/// A file that is read.
struct Opened {
    front: Front,
    path: PathBuf,
    is_snapshot: bool,
    /// The position in its name.
    start: u64,
    /// The byte at which the next bundle begins, and the position of the newest entry before it.
    at: u64,
    position: u64,
}

impl Opened {
    fn open(shared: &Shared, start: u64, is_snapshot: bool) -> Result<Opened, JournalError> {
        let path = if is_snapshot { snapshot_path(&shared.dir, start) } else { journal_path(&shared.dir, start) };
        let front = Front::open_in_steps(&*shared.disk, &path, STRETCH_BYTES)?;
        Ok(Opened { front, path, is_snapshot, start, at: 0, position: start })
    }

    /// Copies the entries of the next bundle; none if there is no whole valid one.
    fn read(&mut self, entries: &mut Vec<u8>) -> Result<Option<Head>, JournalError> {
        entries.clear();
        entries.shrink_to(BUFFER_BYTES);
        // A stretch that was read before the bundle was written is read again, once.
        for _ in 0..2 {
            if let Some((head, payload)) = self.front.bundle(self.at)? {
                entries.extend_from_slice(payload);
                return Ok(Some(head));
            }
            self.front.renew(self.at)?;
        }
        Ok(None)
    }

    fn is_in_order(&self, head: Head) -> bool {
        let Head { kind, previous, last, synced: _ } = head;
        match kind {
            BundleKind::SnapshotHead => self.is_snapshot && self.at == 0 && last == self.start,
            BundleKind::JournalHead => !self.is_snapshot && self.at == 0 && last == self.start,
            BundleKind::Entries | BundleKind::End if self.is_snapshot => self.at > 0 && last == self.start,
            BundleKind::Entries | BundleKind::End => self.at > 0 && previous == self.position && last >= previous,
        }
    }

    fn pass(&mut self, head: Head, entries: usize) {
        self.at += (HEADER_BYTES + entries) as u64;
        self.position = head.last;
    }

    fn damaged(&self, what: &'static str) -> JournalError {
        JournalError::Damaged { path: self.path.clone(), at: self.at, what }
    }
}
