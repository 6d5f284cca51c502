//! What a master keeps of the slaves that copy its journal (30002): where each has come to, so that its next request goes on there.
//! `master/journal.rs` answers them. A change of settings waits here until as many slaves have it as the broker waits for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use env::{Random, TimeMs};
use journal::JournalCopier;
use parking_lot::Mutex;
use protocol::code::ResponseCode;
use protocol::request::CopyJournalReply;
use replica::lag::Slaves;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;

use crate::refusal::Refusal;
use crate::state::copies::Copies;

/// Slaves whose place is kept: more than a set has. Of one more the oldest place goes.
const PLACES_MAX: usize = 16;
/// After so long without a request a place is given up: it holds a file open.
const KEPT_FOR: Duration = Duration::from_secs(30);
/// Requests under way: each holds a piece.
const UNDER_WAY_MAX: usize = 32;

/// A piece, as a request asks for it: the piece of this number behind a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) from: u64,
    pub(crate) piece: u64,
}

struct Place {
    copier: JournalCopier,
    /// The piece that it gives next.
    next: Asked,
    /// The one before, if it is one of several: a slave that has not got it in time asks for it again.
    last: Option<(Asked, Arc<Given>)>,
    left_at: Duration,
}

/// A piece as it was given.
pub(crate) struct Given {
    /// Without the name of this run.
    pub(crate) reply: CopyJournalReply<'static>,
    pub(crate) entries: Vec<u8>,
}

/// The copier of a slave, while a request is answered.
pub(crate) struct Taken {
    copies: Arc<JournalCopies>,
    slave: i64,
    /// At what is asked for.
    pub(crate) copier: Option<JournalCopier>,
    /// What is asked for, if it was given before.
    pub(crate) given: Option<Arc<Given>>,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.copies.taken.lock().remove(&self.slave);
    }
}

/// The copies of the journal that are made.
pub(crate) struct JournalCopies {
    life: u64,
    /// By the id of the slave. Taken out while a request is answered. Guards itself only.
    places: Mutex<BTreeMap<i64, Place>>,
    /// Slaves of which a request is answered. Guards itself only.
    taken: Mutex<BTreeSet<i64>>,
    under_way: Arc<Semaphore>,
    /// Up to where slaves have all changes in their own journals, by their ids: of those that follow the journal.
    written: watch::Sender<BTreeMap<i64, u64>>,
    /// The furthest position up to which an answer waits for slaves, or has. Relaxed: it stands alone.
    awaited: AtomicU64,
}

/// How many slaves are to have the journal before a change of settings is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Needed(usize);

impl Needed {
    /// As many as a send waits for, of those that are connected and follow the journal: others never have it, or are on their way to it.
    pub(crate) fn of(copies: &Copies, slaves: &Slaves, journal: &JournalCopies) -> Needed {
        let needed = copies.needed_by_setting();
        if needed == 0 {
            return Needed(0);
        }
        let written = journal.written.borrow().clone();
        let follows = |id: &i64| slaves.any(|slave| slave.peer.broker_id == Some(*id));
        Needed(needed.min(written.keys().filter(|id| follows(id)).count()))
    }

    pub(crate) fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// A wait for slaves that are to have a change of settings.
pub(crate) struct Copying {
    copies: Arc<JournalCopies>,
    needed: Needed,
    limit: Duration,
}

impl Copying {
    /// Of `copies`, for `limit` at most.
    pub(crate) fn new(copies: Arc<JournalCopies>, needed: Needed, limit: Duration) -> Copying {
        Copying { copies, needed, limit }
    }

    /// Whether they have the journal up to `position`.
    pub(crate) fn has(&self, position: u64) -> bool {
        position == 0 || self.copies.have(self.needed, position)
    }

    /// Waits until they have.
    pub(crate) async fn come(&self, position: u64) -> Result<(), NotCopied> {
        self.copies.come(self.needed, position, self.limit).await
    }
}

/// Fewer slaves have a change than an answer needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotCopied {
    needed: usize,
    has: usize,
    limit: Duration,
}

impl NotCopied {
    /// How long was waited.
    pub(crate) fn limit(self) -> Duration {
        self.limit
    }

    /// In place of the answer.
    pub(crate) fn refusal(self) -> Refusal {
        let NotCopied { needed, has, limit } = self;
        let remark = format!(
            "[GANTRY]done here, but {} of {needed} slaves do not have it in their journal within {} ms (slaveTimeout, 2000 at most): if this broker is lost before \
             they have it, it is gone; to ask once more changes nothing else",
            needed.saturating_sub(has),
            limit.as_millis()
        );
        Refusal::new(ResponseCode::SystemError, remark)
    }
}

impl JournalCopies {
    pub(crate) fn new(random: &Random, now: TimeMs) -> JournalCopies {
        // Runs of one broker differ also where chance is seeded.
        let life = (random.next_u64() ^ now.0.unsigned_abs()).max(1);
        JournalCopies {
            life,
            places: Mutex::default(),
            taken: Mutex::default(),
            under_way: Arc::new(Semaphore::new(UNDER_WAY_MAX)),
            written: watch::Sender::default(),
            awaited: AtomicU64::new(0),
        }
    }

    /// Names this run of the broker, not 0. A loss of power may take the end of a journal: its positions mean others in another run.
    pub(crate) fn life(&self) -> u64 {
        self.life
    }

    /// Room for one more request; none if too many are under way.
    pub(crate) fn begin(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.under_way).try_acquire_owned().ok()
    }

    /// A slave says up to where it has all changes in its own journal; none: it does not follow this one yet.
    pub(crate) fn told(&self, slave: i64, position: Option<u64>) {
        self.written.send_if_modified(|written| {
            let before = match position {
                Some(position) => written.insert(slave, position),
                None => written.remove(&slave),
            };
            if written.len() > PLACES_MAX {
                // More than a set has: one that is not there, perhaps, and tells it again if it is.
                let other = written.keys().find(|other| **other != slave).copied();
                other.and_then(|other| written.remove(&other));
            }
            before != position
        });
    }

    /// Whether an answer waits until this slave has what it is about to be told.
    pub(crate) fn is_awaited(&self, slave: i64) -> bool {
        let has = self.written.borrow().get(&slave).copied();
        has.is_some_and(|has| has < self.awaited.load(Ordering::Relaxed))
    }

    /// Whether the journals of at least `needed` slaves reach `position`.
    pub(crate) fn have(&self, needed: Needed, position: u64) -> bool {
        needed.is_none() || count(&self.written.borrow(), position) >= needed.0
    }

    /// Waits until they have, for `limit` at most.
    pub(crate) async fn come(&self, needed: Needed, position: u64, limit: Duration) -> Result<(), NotCopied> {
        self.awaited.fetch_max(position, Ordering::Relaxed);
        let mut written = self.written.subscribe();
        let come = written.wait_for(|written| count(written, position) >= needed.0);
        let is_in_time = needed.is_none() || timeout(limit, come).await.is_ok();
        let has = count(&self.written.borrow(), position);
        if is_in_time { Ok(()) } else { Err(NotCopied { needed: needed.0, has, limit }) }
    }

    /// Takes the place of a slave, with its copier if that is at what is asked for; or what is asked for, and the place stays, if that is what was
    /// given last. None if another request of the slave is under way.
    pub(crate) fn take(self: &Arc<Self>, slave: i64, asked: Asked, now: Duration) -> Option<Taken> {
        if !self.taken.lock().insert(slave) {
            return None;
        }
        let mut taken = Taken { copies: Arc::clone(self), slave, copier: None, given: None };
        let mut places = self.places.lock();
        if let Some(place) = places.get_mut(&slave)
            && let Some((_, given)) = place.last.as_ref().filter(|(last, _)| *last == asked)
        {
            taken.given = Some(Arc::clone(given));
            place.left_at = now;
            return Some(taken);
        }
        let mine = places.remove(&slave);
        drop(places);
        // One that is elsewhere closes its file.
        taken.copier = mine.filter(|place| place.next == asked).map(|place| place.copier);
        Some(taken)
    }

    /// Keeps the place of a slave, whose next piece is this one.
    pub(crate) fn keep(
        &self,
        slave: i64,
        copier: JournalCopier,
        next: Asked,
        last: Option<(Asked, Arc<Given>)>,
        now: Duration,
    ) {
        let mut places = self.places.lock();
        let oldest = places.iter().min_by_key(|(_, place)| place.left_at).map(|(slave, _)| *slave);
        let too_many = oldest.filter(|_| places.len() >= PLACES_MAX && !places.contains_key(&slave));
        let gone = too_many.and_then(|oldest| places.remove(&oldest));
        let before = places.insert(slave, Place { copier, next, last, left_at: now });
        drop(places);
        // They close files.
        drop((gone, before));
    }

    /// Gives up the places of slaves that have not asked for long.
    pub(crate) fn end_silent(&self, now: Duration) {
        let is_silent = |place: &Place| now.saturating_sub(place.left_at) >= KEPT_FOR;
        let silent: Vec<(i64, Place)> = self.places.lock().extract_if(.., |_, place| is_silent(place)).collect();
        // They close files.
        drop(silent);
    }
}

fn count(written: &BTreeMap<i64, u64>, position: u64) -> usize {
    written.values().filter(|has| **has >= position).count()
}

#[cfg(test)]
mod tests {
    use store::{Store, StoreEnv, StoreOptions};

    use super::*;
    use crate::tables;

    #[test]
    fn the_place_of_a_slave_that_does_not_ask_any_more_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(StoreOptions::at(dir.path()), StoreEnv::real()).unwrap();
        let copies = JournalCopies::new(&Random::seeded(1), TimeMs(0));
        let (next, seconds) = (Asked { from: 0, piece: 0 }, Duration::from_secs);
        for (slave, left_at) in [(1, seconds(0)), (2, seconds(1))] {
            copies.keep(slave, store.journal().copier(0, tables::is_copied).unwrap(), next, None, left_at);
        }
        copies.end_silent(seconds(29));
        assert_eq!(copies.places.lock().len(), 2);
        copies.end_silent(seconds(30));
        assert_eq!(copies.places.lock().keys().collect::<Vec<_>>(), [&2]);
        store.close().unwrap();
    }
}
