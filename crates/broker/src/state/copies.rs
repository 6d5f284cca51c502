//! How many slaves an acknowledgement waits for, and how far they have the log.
//!
//! The settings make a [`Rule`]. With the slaves that are connected it says how many are needed for each stage of [`Stage::COPIED`], and
//! below which log offset that many have the log: [`Copies::judge`] raises the store's marks to there. It runs when a slave enters,
//! acknowledges, or is gone, when a setting changes, every 100 ms while a send waits for slaves, and every second.
//!
//! Sends read one word, `path`: what they wait for, and whether they are refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use config::{BrokerRole, StoreSettings};
use env::Clock;
use parking_lot::Mutex;
use protocol::LogOffset;
use protocol::code::ResponseCode;
use replica::lag::Slaves;
use store::{Stage, Stages, Store};

use crate::refusal::Refusal;
use crate::state::topics::replica_ack::ReplicaAck;
use crate::tasks::Stop;

/// For so long a slave may be missing before sends are told so: one that has lost its connection is back sooner, as a rule.
const GRACE: Duration = Duration::from_secs(1);
/// How often the slaves are judged when nothing else makes it happen: one that stands still falls behind by what others write.
const LOOK: Duration = Duration::from_secs(1);

/// How many copies are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    /// SYNC_MASTER.
    is_sync: bool,
    /// `inSyncReplicas`: copies, our own included.
    in_sync: usize,
    /// `minInSyncReplicas`, our own included.
    least: usize,
    /// `enableAutoInSyncReplicas`.
    is_auto: bool,
    /// `haMaxGapNotInSync`, in bytes.
    gap_max: u64,
}

impl Rule {
    pub(crate) fn of(settings: &StoreSettings) -> Rule {
        Rule {
            is_sync: settings.broker_role == BrokerRole::SyncMaster,
            in_sync: settings.in_sync_replicas as usize,
            least: settings.min_in_sync_replicas as usize,
            is_auto: settings.enable_auto_in_sync_replicas,
            gap_max: settings.ha_max_gap_not_in_sync,
        }
    }

    /// How many slaves a stage needs. It depends on how many are in sync.
    fn needed(self, stage: Stage, in_sync: usize) -> usize {
        let copies = if self.is_auto { self.in_sync.min(in_sync + 1).max(self.least) } else { self.in_sync };
        // The first copy is our own.
        let set = copies.saturating_sub(1);
        let one = set.max(1);
        match stage {
            Stage::Written | Stage::Flushed | Stage::Confirmed => 0,
            Stage::CopiedBySetting => {
                if self.is_sync {
                    set
                } else {
                    0
                }
            }
            Stage::CopiedByOne => one,
            Stage::CopiedByAll => one.max(in_sync),
        }
    }
}

/// The slaves at one moment, and what the rule makes of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Judged {
    rule: Rule,
    /// Where the log ended.
    end: LogOffset,
    /// How far each slave has come, the furthest one first.
    positions: Vec<LogOffset>,
    in_sync: usize,
}

impl Judged {
    fn of(rule: Rule, end: LogOffset, positions: Vec<LogOffset>) -> Judged {
        let is_in_sync = |position: &&LogOffset| end.0.saturating_sub(position.0) < rule.gap_max;
        let in_sync = positions.iter().filter(is_in_sync).count();
        Judged { rule, end, positions, in_sync }
    }

    pub(crate) fn connected(&self) -> usize {
        self.positions.len()
    }

    pub(crate) fn in_sync(&self) -> usize {
        self.in_sync
    }

    pub(crate) fn needed(&self, stage: Stage) -> usize {
        self.rule.needed(stage, self.in_sync)
    }

    /// Below this log offset enough slaves for this stage have the log; none if fewer slaves are connected.
    fn reached(&self, stage: Stage) -> Option<LogOffset> {
        match self.needed(stage).checked_sub(1) {
            None => Some(self.end),
            Some(last) => self.positions.get(last).copied(),
        }
    }

    /// Whether sends are refused: fewer copies are in sync than `minInSyncReplicas`.
    fn refuses(&self) -> bool {
        self.rule.is_sync && self.in_sync + 1 < self.rule.least
    }

    /// A SYNC_MASTER that is set to wait for slaves, and waits for none as none is in sync.
    pub(crate) fn is_alone(&self) -> bool {
        self.rule.is_sync && self.rule.is_auto && self.rule.in_sync > 1 && self.needed(Stage::CopiedBySetting) == 0
    }

    fn is_short(&self, stage: Stage) -> bool {
        self.connected() < self.needed(stage)
    }

    /// For people, behind "not on enough slaves".
    fn counts(&self, stage: Stage) -> String {
        let (needed, connected, in_sync) = (self.needed(stage), self.connected(), self.in_sync);
        format!("{needed} needed, {connected} connected, {in_sync} in sync")
    }
}

/// What a change of the slaves means to producers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Health {
    /// All is as it is set.
    #[default]
    Whole,
    /// Sends are acknowledged without a slave.
    Alone,
    /// Slaves that are waited for are not there.
    Short,
    /// Sends are refused.
    Refusing,
}

struct State {
    rule: Rule,
    health: Health,
    /// Since when slaves are missing, by [`Stage::COPIED`].
    short_since: [Option<Duration>; Stage::COPIED.len()],
}

/// The copies of a master's log.
pub(crate) struct Copies {
    store: Arc<Store>,
    slaves: Arc<Slaves>,
    clock: Clock,
    /// The rule in force, and what was made of it last. Taken for a change of the slaves and a look; the slaves' rows are taken inside.
    state: Mutex<State>,
    /// See [`Path`]. Release where it is judged, Acquire where it is read: a send that follows the answer to a change of settings sees it.
    path: OwnLine<AtomicU64>,
    /// Sends that were stored and not acknowledged, without a slave and with a late one. Relaxed: they stand alone.
    not_available: AtomicU64,
    late: AtomicU64,
}

/// Stands in a cache line of its own: sends read it, and acknowledgements of slaves lock what stands beside it.
#[repr(align(128))]
struct OwnLine<T>(T);

/// What sends have to know, in one word: needed by setting, by one and by all, and in sync, a byte each; then whether they are refused.
#[derive(Clone, Copy)]
struct Path(u64);

const REFUSES: u64 = 1 << 32;

impl Path {
    fn of(judged: &Judged) -> Path {
        let byte = |number: usize, place: u32| (number.min(255) as u64) << (8 * place);
        let [by_setting, by_one, by_all] = Stage::COPIED.map(|stage| judged.needed(stage));
        let refuses = if judged.refuses() { REFUSES } else { 0 };
        Path(byte(by_setting, 0) | byte(by_one, 1) | byte(by_all, 2) | byte(judged.in_sync, 3) | refuses)
    }

    fn needs(self, stage: Stage) -> bool {
        let place = Stage::COPIED.iter().position(|copied| *copied == stage);
        place.is_some_and(|place| self.0 >> (8 * place) & 0xff != 0)
    }

    fn in_sync(self) -> u64 {
        self.0 >> 24 & 0xff
    }

    fn refuses(self) -> bool {
        self.0 & REFUSES != 0
    }
}

impl Copies {
    /// Of this store, by these settings; judged with every change of the slaves from now on.
    pub(crate) fn new(store: &Arc<Store>, slaves: &Arc<Slaves>, clock: Clock, settings: &StoreSettings) -> Arc<Copies> {
        let rule = Rule::of(settings);
        let state = State { rule, health: Health::Whole, short_since: [None; 3] };
        let copies = Arc::new(Copies {
            store: Arc::clone(store),
            slaves: Arc::clone(slaves),
            clock,
            state: Mutex::new(state),
            path: OwnLine(AtomicU64::new(0)),
            not_available: AtomicU64::new(0),
            late: AtomicU64::new(0),
        });
        let of_callback = Arc::downgrade(&copies);
        slaves.on_change(move |_| {
            if let Some(copies) = of_callback.upgrade() {
                copies.judge();
            }
        });
        copies.judge();
        copies
    }

    /// From now on the settings are these. Sends that begin when this has returned wait for what they say; those that wait already are
    /// judged by them.
    pub(crate) fn follow(&self, settings: &StoreSettings) {
        self.state.lock().rule = Rule::of(settings);
        self.judge();
    }

    /// Looks at the slaves, and raises the marks to where enough of them are.
    pub(crate) fn judge(&self) -> Judged {
        let now = self.clock.elapsed();
        let (judged, before, health) = {
            let mut state = self.state.lock();
            // The end is read first. A stage that needs no slave is raised to it, and a send that begins under a later rule ends behind it.
            let end = self.store.end();
            // A copy is as safe as the master's own: where that counts when it is on the device, so does a slave's, if it tells.
            let is_sync = self.store.is_sync_flush();
            let positions = if is_sync { self.slaves.positions_on_device() } else { self.slaves.positions() };
            let judged = Judged::of(state.rule, end, positions);
            for (since, stage) in state.short_since.iter_mut().zip(Stage::COPIED) {
                *since = if judged.is_short(stage) { since.or(Some(now)) } else { None };
            }
            let is_missing = is_over(state.short_since[0], now);
            let health = match () {
                () if judged.refuses() => Health::Refusing,
                () if judged.is_alone() => Health::Alone,
                () if is_missing => Health::Short,
                () => Health::Whole,
            };
            // Most acknowledgements change nothing of it, and leave the line to those who read it. Under the lock nobody else writes.
            let path = Path::of(&judged).0;
            if self.path.0.load(Ordering::Relaxed) != path {
                self.path.0.store(path, Ordering::Release);
            }
            (judged, std::mem::replace(&mut state.health, health), health)
        };
        for stage in Stage::COPIED {
            if let Some(reached) = judged.reached(stage) {
                self.store.copied_to(stage, reached);
            }
        }
        if before != health {
            judged.tell(health);
        }
        judged
    }

    /// Whether as many slaves as this stage needs now have the log up to `end`, whatever its mark says.
    pub(crate) fn have(&self, stage: Stage, end: LogOffset) -> bool {
        self.judge().reached(stage).is_some_and(|reached| reached >= end)
    }

    /// What a send waits for on slaves, where its message or its topic says `word`, or neither says anything. Refused if the broker is not
    /// to take it.
    pub(crate) fn asked(&self, word: Option<ReplicaAck>) -> Result<Stages, Refusal> {
        let stage = match word {
            None => Stage::CopiedBySetting,
            Some(ReplicaAck::None) => return Ok(Stages::NONE),
            Some(ReplicaAck::Sync) => Stage::CopiedByOne,
            Some(ReplicaAck::All) => Stage::CopiedByAll,
        };
        let path = Path(self.path.0.load(Ordering::Acquire));
        if path.refuses() {
            return Err(self.not_enough(path));
        }
        Ok(if path.needs(stage) { Stages::NONE.with(stage) } else { Stages::NONE })
    }

    /// The same of a record that is stored once more, which is not refused for want of slaves.
    pub(crate) fn asked_again(&self, words: [Option<ReplicaAck>; 2]) -> Stages {
        let path = Path(self.path.0.load(Ordering::Acquire));
        let mut stages = Stages::NONE;
        let asks = |word| words.contains(&Some(word));
        for (stage, is_asked) in [
            (Stage::CopiedBySetting, true),
            (Stage::CopiedByOne, asks(ReplicaAck::Sync)),
            (Stage::CopiedByAll, asks(ReplicaAck::All)),
        ] {
            if is_asked && path.needs(stage) {
                stages = stages.with(stage);
            }
        }
        stages
    }

    /// How many slaves a send waits for where neither its topic nor itself says anything, 255 at most.
    pub(crate) fn needed_by_setting(&self) -> usize {
        (self.path.0.load(Ordering::Acquire) & 0xff) as usize
    }

    #[cold]
    fn not_enough(&self, path: Path) -> Refusal {
        let least = self.state.lock().rule.least;
        let copies = path.in_sync() + 1;
        Refusal::new(
            ResponseCode::SystemError,
            format!(
                "in-sync replicas not enough: {copies} in sync, this broker included, and {least} needed (minInSyncReplicas)"
            ),
        )
    }

    /// The stages for which slaves have been missing for longer than one takes to come back.
    pub(crate) fn missing(&self) -> Stages {
        let now = self.clock.elapsed();
        let short_since = self.state.lock().short_since;
        let missing = Stage::COPIED.into_iter().zip(short_since).filter(|(_, since)| is_over(*since, now));
        missing.fold(Stages::NONE, |missing, (stage, _)| missing.with(stage))
    }

    /// Code and remark of the answer to a send that is stored up to `end`, and that slaves which this stage needs do not have: as they are
    /// not there, or within `limit`. Once that is over, those that have just left are not there either.
    pub(crate) fn not_copied(&self, stage: Stage, end: LogOffset, limit: Option<Duration>) -> (ResponseCode, String) {
        let judged = self.judge();
        let counts = judged.counts(stage);
        let Some(limit) = limit.filter(|_| !judged.is_short(stage)) else {
            let remark = format!("stored, but there are not enough slaves: {counts}");
            return (ResponseCode::SlaveNotAvailable, remark);
        };
        let reached = judged.reached(stage).map_or(0, |reached| reached.0);
        let (missing, limit) = (end.0.saturating_sub(reached), limit.as_millis());
        let remark = format!(
            "stored, but not on enough slaves within {limit} ms (slaveTimeout): {counts}; the message ends at log offset {end}, \
             {missing} bytes behind what they have acknowledged"
        );
        (ResponseCode::FlushSlaveTimeout, remark)
    }

    /// So many sends were answered with this code, of which those of slaves count.
    pub(crate) fn note_unacknowledged(&self, code: ResponseCode, sends: u64) {
        if code == ResponseCode::SlaveNotAvailable {
            self.not_available.fetch_add(sends, Ordering::Relaxed);
        } else if code == ResponseCode::FlushSlaveTimeout {
            self.late.fetch_add(sends, Ordering::Relaxed);
        }
    }

    /// Sends that were stored and not acknowledged since the start: as slaves were missing, and as they were late.
    pub(crate) fn unacknowledged(&self) -> [u64; 2] {
        [&self.not_available, &self.late].map(|count| count.load(Ordering::Relaxed))
    }
}

fn is_over(short_since: Option<Duration>, now: Duration) -> bool {
    short_since.is_some_and(|since| now.saturating_sub(since) >= GRACE)
}

impl Judged {
    /// Once for each change.
    fn tell(&self, health: Health) {
        let needed = self.needed(Stage::CopiedBySetting);
        let (connected, in_sync) = (self.connected(), self.in_sync);
        match health {
            Health::Whole => {
                tracing::info!(needed, connected, in_sync, "enough slaves are there for what acknowledgements promise");
            }
            Health::Alone => tracing::warn!(
                connected,
                in_sync,
                "no slave is in sync: sends are acknowledged with this broker's copy alone (enableAutoInSyncReplicas=true)"
            ),
            Health::Short => tracing::warn!(
                needed,
                connected,
                "slaves are missing: sends are stored, and answered with SLAVE_NOT_AVAILABLE"
            ),
            Health::Refusing => tracing::warn!(
                in_sync,
                least = self.rule.least,
                "fewer copies are in sync than minInSyncReplicas, this broker's included: sends are refused"
            ),
        }
    }
}

/// Judges slaves that say nothing, until the broker stops.
pub(crate) async fn keep_judging(copies: Arc<Copies>, mut stop: Stop) {
    while !stop.is_asked() {
        copies.judge();
        tokio::select! {
            () = stop.asked() => {}
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: Rule = Rule { is_sync: true, in_sync: 2, least: 1, is_auto: false, gap_max: 100 };

    fn judged(rule: Rule, positions: &[u64]) -> Judged {
        Judged::of(rule, LogOffset(1000), positions.iter().copied().map(LogOffset).collect())
    }

    /// Needed by setting, by one, by all.
    fn needed(rule: Rule, positions: &[u64]) -> [usize; 3] {
        Stage::COPIED.map(|stage| judged(rule, positions).needed(stage))
    }

    #[test]
    fn as_many_slaves_are_needed_as_is_set_and_the_first_copy_is_the_masters() {
        assert_eq!(needed(RULE, &[]), [1, 1, 1]);
        assert_eq!(needed(RULE, &[1000, 950, 900]), [1, 1, 2], "the last one is not in sync");
        assert_eq!(needed(Rule { in_sync: 3, ..RULE }, &[1000]), [2, 2, 2]);
        // As RocketMQ 5.x has it.
        assert_eq!(needed(Rule { in_sync: 1, ..RULE }, &[1000]), [0, 1, 1]);
        assert_eq!(needed(Rule { in_sync: 0, ..RULE }, &[]), [0, 1, 1]);
        assert_eq!(needed(Rule { is_sync: false, ..RULE }, &[1000, 1000]), [0, 1, 2]);
    }

    #[test]
    fn by_itself_it_waits_for_those_in_sync_and_not_for_fewer_than_it_may() {
        let auto = Rule { in_sync: 3, is_auto: true, ..RULE };
        assert_eq!(needed(auto, &[1000, 990, 980]), [2, 2, 3]);
        assert_eq!(needed(auto, &[1000, 10]), [1, 1, 1]);
        assert_eq!(needed(auto, &[]), [0, 1, 1], "who asks for a slave gets one");
        assert!(judged(auto, &[]).is_alone() && !judged(auto, &[1000]).is_alone());
        let least = Rule { least: 2, ..auto };
        assert_eq!(needed(least, &[]), [1, 1, 1]);
        assert!(judged(least, &[]).refuses() && !judged(least, &[1000]).refuses());
        assert!(!judged(least, &[]).is_alone());
        assert!(!judged(Rule { is_sync: false, ..least }, &[]).refuses());
    }

    #[test]
    fn a_stage_is_reached_where_enough_slaves_are() {
        let three = judged(Rule { in_sync: 3, ..RULE }, &[990, 700, 600]);
        let reached = |stage| three.reached(stage).map(|offset| offset.0);
        assert_eq!(Stage::COPIED.map(reached), [Some(700), Some(700), Some(700)]);
        assert_eq!(judged(RULE, &[]).reached(Stage::CopiedByOne), None);
        assert_eq!(judged(RULE, &[995, 950]).reached(Stage::CopiedByAll), Some(LogOffset(950)));
        let none = judged(Rule { in_sync: 1, ..RULE }, &[]);
        assert_eq!(none.reached(Stage::CopiedBySetting), Some(LogOffset(1000)));
    }

    #[test]
    fn a_send_reads_in_one_word_what_it_waits_for() {
        let path = |rule, positions: &[u64]| Path::of(&judged(rule, positions));
        let sync = path(RULE, &[1000, 1000]);
        assert_eq!(Stage::COPIED.map(|stage| sync.needs(stage)), [true; 3]);
        assert_eq!((sync.in_sync(), sync.refuses()), (2, false));
        let plain = path(Rule { is_sync: false, ..RULE }, &[]);
        assert_eq!(Stage::COPIED.map(|stage| plain.needs(stage)), [false, true, true]);
        assert!(!plain.needs(Stage::Flushed));
        assert!(path(Rule { least: 2, ..RULE }, &[]).refuses());
    }
}
