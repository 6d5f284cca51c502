//! What a slave knows of its master's journal: whether it follows it, and how far it has come. `slave/journal.rs` follows it.
//!
//! The place where the slave is stands in its own journal, behind the rows that it covers, so that the next start goes on there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use journal::{Journal, Table};
use parking_lot::Mutex;
use store::Store;
use tokio::sync::watch;

use crate::tables::{self, Keeper};

/// Key of the row.
const PLACE: &[u8] = b"place";
/// The end of the master's journal is not known.
const UNKNOWN: u64 = u64::MAX;
/// How long a slave asks for tables after the journal could not be followed.
const TRY_AGAIN: Duration = Duration::from_secs(60);

/// Up to where a slave has the journal of a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The run of the master that `position` is one of.
    pub(crate) life: u64,
    /// All changes up to it are here.
    pub(crate) position: u64,
}

impl Place {
    fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.life.to_be_bytes());
        bytes[8..].copy_from_slice(&self.position.to_be_bytes());
        bytes
    }

    fn of_bytes(bytes: &[u8]) -> Option<Place> {
        let (life, position) = bytes.split_first_chunk::<8>()?;
        Some(Place { life: u64::from_be_bytes(*life), position: u64::from_be_bytes(position.try_into().ok()?) })
    }
}

/// Why the journal was not followed when it was tried last.
struct Failure {
    why: String,
    at: Duration,
}

/// The journal of the master. A master has one of these too, and nobody writes to it.
pub(crate) struct MasterJournal {
    /// Guards the order of its puts too, which never wait.
    place: Mutex<Option<Place>>,
    keeper: Keeper,
    /// The main port of the master whose journal is to be followed; none: tables are asked for.
    offered: watch::Sender<Option<Arc<str>>>,
    /// All tables were replaced by, or went on with, the journal since it was offered, and its rows are not gathered anew. Relaxed: it stands alone.
    is_followed: AtomicBool,
    /// How many rows are gathered that will take the place of all that are here. Relaxed: it stands alone.
    gathered: AtomicU64,
    /// Where the master's journal ended when that answered last. Relaxed: it stands alone.
    end: AtomicU64,
    /// Guards itself only.
    failure: Mutex<Option<Failure>>,
    /// Held by the one that takes rows or tables of the master over.
    pub(crate) taking: tokio::sync::Mutex<()>,
}

impl MasterJournal {
    /// What the journal holds. A broker that is no slave forgets it: what it changes by itself is in no other journal.
    pub(crate) fn load(store: &Arc<Store>, is_slave: bool) -> MasterJournal {
        let (journal, mut place) = (store.journal(), None);
        if is_slave {
            journal.load(tables::MASTER_JOURNAL, |key, value| {
                place = Place::of_bytes(value).filter(|_| key == PLACE);
            });
        } else {
            forget(journal);
        }
        MasterJournal {
            place: Mutex::new(place),
            keeper: Keeper::of(store),
            offered: watch::Sender::new(None),
            is_followed: AtomicBool::new(false),
            gathered: AtomicU64::new(UNKNOWN),
            end: AtomicU64::new(UNKNOWN),
            failure: Mutex::default(),
            taking: tokio::sync::Mutex::default(),
        }
    }

    /// Up to where the journal of a master is here.
    pub(crate) fn place(&self) -> Option<Place> {
        *self.place.lock()
    }

    /// All changes up to there are here. Behind them.
    pub(crate) fn reach(&self, to: Place) {
        let mut place = self.place.lock();
        if *place != Some(to) {
            *place = Some(to);
            self.keeper.put(tables::MASTER_JOURNAL, PLACE, &to.to_bytes());
        }
    }

    /// What is here is not what the journal of a master had at a position, or is about to be something else.
    pub(crate) fn forget_place(&self) {
        let mut place = self.place.lock();
        if place.take().is_some() {
            self.keeper.delete(tables::MASTER_JOURNAL, PLACE);
        }
    }

    /// The journal of the master with this main port is to be followed; none: of no one.
    pub(crate) fn offer(&self, master: Option<&Arc<str>>) {
        self.offered.send_if_modified(|offered| {
            let is_other = offered.as_ref() != master;
            if is_other {
                *offered = master.cloned();
                self.is_followed.store(false, Ordering::Relaxed);
                self.end.store(UNKNOWN, Ordering::Relaxed);
            }
            is_other
        });
    }

    /// Whether the journal of this master is to be followed.
    pub(crate) fn is_offered(&self, master: &str) -> bool {
        self.offered.borrow().as_deref() == Some(master)
    }

    /// Waits until the journal of a master is to be followed.
    pub(crate) async fn offered(&self) -> Arc<str> {
        let mut offered = self.offered.subscribe();
        match offered.wait_for(Option::is_some).await.ok().and_then(|offered| offered.clone()) {
            Some(master) => master,
            // The sender lives as long as this does.
            None => std::future::pending().await,
        }
    }

    /// The tables here are those that the journal had at [`MasterJournal::place`].
    pub(crate) fn follows(&self) {
        self.is_followed.store(true, Ordering::Relaxed);
        self.gathered.store(UNKNOWN, Ordering::Relaxed);
        *self.failure.lock() = None;
    }

    /// Whether that is so.
    pub(crate) fn is_followed(&self) -> bool {
        self.is_followed.load(Ordering::Relaxed)
    }

    /// So many rows of the journal have come that will take the place of all that are here, once they are whole. Until then the tables here are those of
    /// an earlier place.
    pub(crate) fn gathers(&self, rows: usize) {
        self.is_followed.store(false, Ordering::Relaxed);
        self.gathered.store(rows as u64, Ordering::Relaxed);
    }

    /// How many these are; none if rows are not gathered.
    pub(crate) fn gathered(&self) -> Option<u64> {
        Some(self.gathered.load(Ordering::Relaxed)).filter(|rows| *rows != UNKNOWN)
    }

    /// The master's journal has come to this.
    pub(crate) fn note_end(&self, end: u64) {
        self.end.store(end, Ordering::Relaxed);
    }

    /// How many changes the master's journal has that are not here, as of its last answer; none if that is not known.
    pub(crate) fn behind(&self) -> Option<u64> {
        let end = Some(self.end.load(Ordering::Relaxed)).filter(|end| *end != UNKNOWN)?;
        let position = self.place().filter(|_| self.is_followed()).map_or(0, |place| place.position);
        Some(end.saturating_sub(position))
    }

    /// It cannot be followed: tables are asked for, until it is tried again.
    pub(crate) fn fail(&self, why: String, now: Duration) {
        *self.failure.lock() = Some(Failure { why, at: now });
        self.offer(None);
    }

    /// Why it was not followed when it was tried last.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.lock().as_ref().map(|failure| failure.why.clone())
    }

    /// Whether it may be tried now.
    pub(crate) fn may_be_tried(&self, now: Duration) -> bool {
        self.failure.lock().as_ref().is_none_or(|failure| now.saturating_sub(failure.at) >= TRY_AGAIN)
    }
}

impl Table for MasterJournal {
    fn for_each(&self, f: &mut dyn FnMut(&[u8], &[u8])) {
        if let Some(place) = self.place() {
            f(PLACE, &place.to_bytes());
        }
    }
}

fn forget(journal: &Journal) {
    let mut is_there = false;
    journal.load(tables::MASTER_JOURNAL, |_, _| is_there = true);
    if is_there {
        journal.delete(tables::MASTER_JOURNAL, PLACE);
    }
}
