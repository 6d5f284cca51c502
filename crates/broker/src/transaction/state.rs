//! Half messages that are open, and what a start finds of them.

pub(super) mod ledger;
mod load;

use std::sync::Arc;
use std::time::Duration;

use config::{BrokerSettings, StoreSettings};
use hashbrown::HashMap;
use journal::{Change, Journal, Table};
use parking_lot::Mutex;
use protocol::properties::name;
use protocol::record::RecordView;
use store::{Store, StoreError};
use tokio::sync::Notify;

use crate::refusal::Refusal;
use crate::state::offsets::Offsets;
use crate::state::topics::{Topic, Topics};
use crate::tables;
use ledger::Ledger;

/// What says when a half message is looked at first, in ms.
#[derive(Clone, Copy)]
struct Waits {
    timeout_ms: i64,
    kept_ms: i64,
    now: i64,
}

/// Whose offsets say how far half messages and ends are dealt with.
pub(super) const GROUP: &str = "CID_RMQ_SYS_TRANS";

const HOUR_MS: i64 = 3_600_000;

/// Half messages and what is known of them.
pub(crate) struct Transactions {
    pub(super) half: Arc<Topic>,
    pub(super) op: Arc<Topic>,
    pub(super) ledger: Mutex<Ledger>,
    /// How often producers were asked about half messages that the ledger does not have yet, by offset in the half queue.
    asked: Mutex<HashMap<u64, u32>>,
    /// A half message that was committed before the start, and whose end is not in the log.
    pub(super) lost_end: Mutex<Option<u64>>,
    /// Rung when the half queue grows.
    pub(super) bell: Arc<Notify>,
}

impl Transactions {
    pub(crate) fn new(store: &Store, topics: &Topics) -> Transactions {
        let mut asked = HashMap::new();
        store.journal().load(tables::CHECKS, |key, value| {
            if let (Ok(offset), Ok(checks)) =
                (key.try_into().map(u64::from_be_bytes), value.try_into().map(u32::from_be_bytes))
            {
                asked.insert(offset, checks);
            }
        });
        Transactions {
            asked: Mutex::new(asked),
            half: topics.half(),
            op: topics.op(),
            ledger: Mutex::default(),
            lost_end: Mutex::default(),
            bell: Arc::clone(topics.half_bell()),
        }
    }

    /// Reads which half messages are open. After the offsets of another broker have been imported, and before anybody ends one.
    pub(crate) fn load(
        &self,
        store: &Arc<Store>,
        offsets: &Offsets,
        timeout_ms: i64,
        kept_ms: i64,
        now: i64,
    ) -> Result<(), StoreError> {
        let mut asked = self.asked.lock().clone();
        asked.extend(self.ledger.lock().open().map(|open| (open.offset, open.checks)));
        let waits = Waits { timeout_ms, kept_ms, now };
        let (ledger, lost_end) = load::load(store, offsets, (&self.half, &self.op), &asked, waits)?;
        *self.ledger.lock() = ledger;
        self.asked.lock().clear();
        *self.lost_end.lock() = lost_end;
        Ok(())
    }

    /// Takes over a row of a master: how often a producer was asked. Only while the task does not run. False if it is not understood.
    pub(crate) fn take_row(&self, journal: &Journal, key: &[u8], value: Option<&[u8]>) -> bool {
        let checks = value.map(|value| value.try_into().map(u32::from_be_bytes));
        let (Ok(offset), Ok(checks)) = (key.try_into().map(u64::from_be_bytes), checks.transpose()) else {
            return false;
        };
        let mut asked = self.asked.lock();
        match checks {
            Some(checks) => _ = asked.insert(offset, checks),
            None => _ = asked.remove(&offset),
        }
        // Under the lock: of two changes of one row the later one is put last.
        journal.put_together(&[Change { table: tables::CHECKS, key, value }]);
        true
    }

    /// The topic of half messages.
    pub(crate) fn half(&self) -> &Arc<Topic> {
        &self.half
    }

    /// How many half messages wait for their end.
    pub(crate) fn open(&self) -> usize {
        self.ledger.lock().len()
    }

    /// The same, with those that are stored and that the task has not taken in yet. A few of these
    /// may be ended already.
    fn coming(&self) -> usize {
        // Opened when the first one comes.
        let lane = self.half.opened_lane(0);
        let ledger = self.ledger.lock();
        let stored = lane.map_or(0, |lane| lane.queue.max_offset());
        ledger.len().saturating_add(usize::try_from(stored.saturating_sub(ledger.next())).unwrap_or(usize::MAX))
    }

    /// Refuses one half message too many: producers that do not come back leave theirs open for
    /// days. `gathered`: those that the connection is about to store.
    pub(crate) fn check_room(&self, settings: &BrokerSettings, gathered: usize) -> Result<(), Refusal> {
        let (open, limit) = (self.coming().saturating_add(gathered), settings.open_half_messages_max);
        if open < limit {
            return Ok(());
        }
        let what = format_args!(
            "[GANTRY]system busy, start flow control for a while: {open} half messages are open, the limit is {limit} (openHalfMessagesMax)"
        );
        // When producers are asked about theirs the next time.
        Err(Refusal::busy(what, Duration::from_millis(settings.transaction_check_interval.max(0) as u64)))
    }
}

/// Half queue offset → how often a producer was asked, for open half messages about which one was.
impl Table for Transactions {
    fn for_each(&self, f: &mut dyn FnMut(&[u8], &[u8])) {
        let mut asked = self.asked.lock().clone();
        asked.extend(self.ledger.lock().open().filter(|open| open.checks > 0).map(|open| (open.offset, open.checks)));
        for (offset, checks) in asked {
            f(&offset.to_be_bytes(), &checks.to_be_bytes());
        }
    }
}

/// The half queue offsets that the body of an end lists. Brokers before 5.0 wrote one, without a
/// comma behind it.
fn ended_offsets(body: &[u8]) -> impl Iterator<Item = u64> {
    let text = std::str::from_utf8(body).unwrap_or_default();
    text.split(',').filter_map(|number| number.trim().parse().ok())
}

/// How long after it was stored a half message is looked at first, in ms: its producer is asked, or
/// it is given up because it is as old as the log is kept. So it waits no longer, whatever its
/// immunity.
pub(super) fn first_wait_ms(view: &RecordView<'_>, timeout_ms: i64, kept_ms: i64) -> i64 {
    immunity_ms(view).unwrap_or(timeout_ms).min(kept_ms)
}

/// A half message that is as old is given up.
pub(crate) fn kept_ms(settings: &StoreSettings) -> i64 {
    i64::try_from(settings.file_reserved_time).unwrap_or(i64::MAX).saturating_mul(HOUR_MS)
}

/// How long after its birth a half message may be ended by its producer without being asked, if the
/// producer says so, in ms.
pub(super) fn immunity_ms(view: &RecordView<'_>) -> Option<i64> {
    let seconds = view.property(name::CHECK_IMMUNITY_TIME_IN_SECONDS)?.trim().parse::<i64>().ok()?;
    (seconds >= 0).then(|| seconds.saturating_mul(1000))
}

#[cfg(test)]
mod tests {
    use env::{Clock, Random, TimeMs};
    use protocol::names;
    use protocol::record::RecordDraft;
    use store::{RecordBatch, StoreEnv, StoreOptions, TagsCode};

    use super::*;
    use crate::write::send_properties;

    #[test]
    fn each_load_knows_how_often_a_producer_was_asked() {
        let dir = tempfile::tempdir().unwrap();
        let clock = Clock::manual(TimeMs(1_000)).0;
        let env = StoreEnv { clock: clock.clone(), random: Random::seeded(1), ..StoreEnv::real() };
        let options = StoreOptions { segment_bytes: 1 << 20, ..StoreOptions::at(dir.path()) };
        let store = Store::open(options, env).unwrap().0;
        let host = "127.0.0.1:10911".parse().unwrap();
        let draft = RecordDraft { body: b"x", ..RecordDraft::plain(names::TRANS_HALF_TOPIC, host) };
        let mut batch = RecordBatch::new();
        batch.push(&store.queue(names::TRANS_HALF_TOPIC, 0).unwrap(), TagsCode::Code(0), |out| {
            draft.encode(out).unwrap();
        });
        store.append(&mut batch, TimeMs(1_000)).unwrap();
        store.journal().put(tables::CHECKS, &0u64.to_be_bytes(), &3u32.to_be_bytes());

        let (topics, offsets) = (Topics::load(&store, clock.clone()), Offsets::new(clock));
        let transactions = Arc::new(Transactions::new(&store, &topics));
        store.journal().attach(tables::CHECKS, Arc::clone(&transactions) as Arc<dyn Table>);
        let row = || {
            let mut rows = Vec::new();
            transactions.for_each(&mut |key, value| rows.push((key.to_vec(), value.to_vec())));
            rows
        };
        let asked = [(0u64.to_be_bytes().to_vec(), 3u32.to_be_bytes().to_vec())];
        assert_eq!(row(), asked, "a snapshot before the load has it");
        for _ in 0..2 {
            transactions.load(&store, &offsets, 6_000, HOUR_MS, 1_000).unwrap();
            let open: Vec<u32> = transactions.ledger.lock().open().map(|open| open.checks).collect();
            assert_eq!(open, [3]);
            assert_eq!(row(), asked);
        }
        store.close().unwrap();
    }

    #[test]
    fn of_the_copies_that_apache_has_stored_the_last_one_is_open_unless_it_is_ended() {
        let dir = tempfile::tempdir().unwrap();
        let clock = Clock::manual(TimeMs(1_000)).0;
        let env = StoreEnv { clock: clock.clone(), random: Random::seeded(1), ..StoreEnv::real() };
        let options = StoreOptions { segment_bytes: 1 << 20, ..StoreOptions::at(dir.path()) };
        let store = Store::open(options, env).unwrap().0;
        let host = "127.0.0.1:10911".parse().unwrap();
        let append = |topic: &str, body: &[u8], properties: &[u8]| {
            let draft = RecordDraft { body, properties, ..RecordDraft::plain(topic, host) };
            let mut batch = RecordBatch::new();
            batch.push(&store.queue(topic, 0).unwrap(), TagsCode::Code(0), |out| {
                draft.encode(out).unwrap();
            });
            store.append(&mut batch, TimeMs(1_000)).unwrap();
        };
        // Offsets 0 to 9. Of "twice" its producer has stored two.
        let halves = [
            ("asked", 0),
            ("ended", 0),
            ("late", 0),
            ("twice", 0),
            ("twice", 0),
            ("asked", 1),
            ("ended", 1),
            ("late", 1),
            ("twice", 1),
            ("asked", 2),
        ];
        for (id, checks) in halves {
            let mut properties = Vec::new();
            send_properties::put(&mut properties, name::UNIQ_KEY, id);
            if checks > 0 {
                send_properties::put(&mut properties, name::TRANSACTION_CHECK_TIMES, &checks.to_string());
            }
            append(names::TRANS_HALF_TOPIC, b"x", &properties);
        }
        // The answer to a question ends the copy; an end that comes by itself names what the producer has sent.
        append(names::TRANS_OP_HALF_TOPIC, b"2,6,", b"");

        let (topics, offsets) = (Topics::load(&store, clock.clone()), Offsets::new(clock));
        let transactions = Transactions::new(&store, &topics);
        transactions.load(&store, &offsets, 6_000, HOUR_MS, 1_000).unwrap();
        let open: Vec<(u64, u32)> = transactions.ledger.lock().open().map(|open| (open.offset, open.checks)).collect();
        assert_eq!(open, [(3, 0), (7, 1), (8, 1), (9, 2)]);
        store.close().unwrap();
    }

    #[test]
    fn ends_of_old_and_new_brokers_are_understood() {
        assert_eq!(ended_offsets(b"12,15,16,").collect::<Vec<_>>(), [12, 15, 16]);
        assert_eq!(ended_offsets(b"7").collect::<Vec<_>>(), [7]);
        assert_eq!(ended_offsets(b"x,,-1,3").collect::<Vec<_>>(), [3]);
        assert_eq!(ended_offsets(&[0xff]).count(), 0);
    }
}
