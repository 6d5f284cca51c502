//! The tables of the master that are not in its log, as a task.
//!
//! Topics and groups are taken whole when the master's version is another one than here. Of offsets each is taken, but none that is lower than
//! what the master is still to have from here (`owed.rs`). An offset that lies behind the end of its queue here is taken when the log has come so
//! far. Nothing is taken from a master whose log does not continue the one here.
//!
//! A master of ours is asked so only until the log here has come near its own: then its journal is followed instead (`journal.rs`), and only timer
//! messages are asked about.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use protocol::body::{ConsumerOffsets, DelayOffsets, TopicConfig, TopicConfigTable, TopicQueueMappingDetail};
use protocol::names;
use replica::asking::{self, AskError};

use replica::asking::Extent;

use super::check::{check_log, check_master};
use super::master::{Master, MasterError};
use super::owed::{self, Handed};
use crate::blocking::beside;
use crate::broker::Broker;
use crate::client::commit_at_slave::end;
use crate::state::offsets::split_key;
use crate::state::topics::QUEUES_MAX;
use crate::static_topic::accept;
use crate::switch::ask;
use crate::tasks::Stop;

/// How often it is looked whether something is to be done.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Looks between two questions for the timers' check-point, as by Apache's slaves.
const MARKS_EVERY: u64 = 3;
/// A log that is no further behind the master's is near it.
const NEAR_BYTES: u64 = 16 << 20;
/// For a question about the master itself.
const PATIENCE: Duration = Duration::from_secs(3);
/// Looks between two questions for all tables.
const TABLES_EVERY: u64 = 10;

/// Keeps the tables as the master has them.
pub(crate) async fn keep_tables(broker: Arc<Broker>, mut stop: Stop) {
    let mut known = Known::default();
    let mut looks = Looks { has_marks: broker.timers.is_some(), ..Looks::default() };
    let mut has_complained = false;
    while !stop.is_asked() {
        tokio::select! {
            biased;
            () = stop.asked() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        let address = broker.following.master();
        tokio::select! {
            biased;
            () = stop.asked() => return,
            () = look_for_master(&broker, address.as_deref()) => {}
        }
        send_back_readers(&broker).await;
        let Some(address) = address else {
            broker.master_journal.offer(None);
            continue;
        };
        // Tables that belong to another log would replace those of the one here.
        if !broker.following.agrees() {
            broker.following.note_master_end(None);
            broker.master_journal.offer(None);
            looks.start_over();
            continue;
        }
        let due = looks.take();
        if due == Due::default() {
            continue;
        }
        let round = async {
            let extent = check_log(&broker, &address).await?;
            broker.following.note_master_end(Some(extent.max.0));
            let follows = may_follow_journal(&broker, &extent);
            broker.master_journal.offer(follows.then_some(&address));
            let has_more = match (due.tables, follows) {
                (false, _) => false,
                (true, true) => take_beside_journal(&broker, &address, &mut known).await?,
                (true, false) => take_all(&broker, &address, &mut known).await?,
            };
            if due.marks {
                take_marks(&broker, &address).await?;
            }
            Ok::<bool, MasterError>(has_more)
        };
        let taken = tokio::select! {
            biased;
            () = stop.asked() => return,
            taken = round => taken,
        };
        match taken {
            Ok(has_more) => {
                looks.pause = 0;
                if has_more {
                    looks.start_over();
                }
                if std::mem::take(&mut has_complained) {
                    tracing::info!(master = &*address, "the master tells its tables again");
                }
            }
            Err(error) => {
                broker.following.note_master_end(None);
                looks.failed();
                if !std::mem::replace(&mut has_complained, true) {
                    tracing::warn!(master = &*address, %error, "the master does not tell its tables, trying again");
                }
            }
        }
    }
}

/// What is asked for at a look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Due {
    tables: bool,
    /// The timers' check-point.
    marks: bool,
}

/// Which look it is.
#[derive(Debug, Default)]
struct Looks {
    taken: u64,
    /// Timer messages are taken in here.
    has_marks: bool,
    /// After a failure so many are left out.
    left_out: u64,
    /// After the next failure.
    pause: u64,
}

impl Looks {
    fn take(&mut self) -> Due {
        if self.left_out > 0 {
            self.left_out -= 1;
            return Due::default();
        }
        let marks = self.has_marks && self.taken.is_multiple_of(MARKS_EVERY);
        let due = Due { tables: self.taken.is_multiple_of(TABLES_EVERY), marks };
        self.taken = self.taken.wrapping_add(1);
        due
    }

    /// Asks for all tables at the next look that is not left out.
    fn start_over(&mut self) {
        self.taken = self.taken.next_multiple_of(TABLES_EVERY);
    }

    /// Asks for all tables again, after a pause that grows to the usual one.
    fn failed(&mut self) {
        self.start_over();
        self.left_out = self.pause;
        self.pause = (2 * self.pause + 1).min(TABLES_EVERY - 1);
    }
}

/// Asks whether a master that is not followed is there: readers go to it then.
async fn look_for_master(broker: &Broker, address: Option<&str>) {
    let answers = match address.filter(|_| !broker.following.is_connected()) {
        Some(address) => !matches!(asking::extent(&broker.registry.client, address).await, Err(AskError::Call(_))),
        None => false,
    };
    broker.following.note_answer(answers);
}

/// Pulls that wait here were parked while the master was gone. It is back, and they go on there.
async fn send_back_readers(broker: &Arc<Broker>) {
    if broker.hold.parked() == 0 || !broker.following.is_master_there() {
        return;
    }
    beside(broker, |broker| {
        let mut woken = Vec::new();
        for topic in broker.topics.all() {
            let config = topic.config();
            let queues = config.read_queue_nums.max(config.write_queue_nums).max(0);
            let lanes: Vec<_> = (0..queues.unsigned_abs()).filter_map(|id| topic.opened_lane(id)).collect();
            broker.hold.arrived(lanes.iter(), &mut woken);
        }
    })
    .await;
}

/// What the master said last.
#[derive(Default)]
struct Known {
    /// The keys of its offsets.
    offsets: BTreeSet<String>,
    delays: BTreeMap<i32, i64>,
    /// It did not take what was to be handed over to it, and that was logged.
    has_refused: bool,
}

impl Known {
    fn complain(&mut self, refusal: Option<MasterError>) {
        let had_refused = std::mem::replace(&mut self.has_refused, refusal.is_some());
        if let Some(error) = refusal.filter(|_| !had_refused) {
            tracing::warn!(%error, "the master does not take offsets that were committed here, trying again");
        }
    }
}

/// Whether the master's journal is to be followed, in place of asking for tables. Its rows wait for the log: a slave that has none of them yet asks
/// for tables until its log has come near the master's.
fn may_follow_journal(broker: &Broker, extent: &Extent) -> bool {
    let journal = &broker.master_journal;
    let is_near = || extent.max.0.saturating_sub(broker.store.end().0) <= NEAR_BYTES;
    extent.has_journal && journal.may_be_tried(broker.clock.elapsed()) && (journal.place().is_some() || is_near())
}

/// Hands over offsets that were committed here, and asks for what the journal does not have. Whether more offsets are to go to the master than one
/// round hands over.
async fn take_beside_journal(broker: &Arc<Broker>, address: &str, known: &mut Known) -> Result<bool, MasterError> {
    let master = Master { client: &broker.registry.client, address };
    if broker.owed.len() > 0 {
        let handed = owed::hand_over(broker, &master, &ConsumerOffsets::default()).await?;
        let Handed { has_more, has_dropped, master_has, refusal, .. } = handed;
        known.complain(refusal);
        beside(broker, move |broker| raise_offsets(broker, &master_has)).await;
        if has_dropped {
            // The master's offset is a lower one, and its row was left out: all rows come again.
            let _taking = broker.master_journal.taking.lock().await;
            broker.master_journal.offer(None);
            broker.master_journal.forget_place();
        }
        if has_more {
            return Ok(true);
        }
    }
    take_timer_counts(broker, &master).await?;
    // It may have been changed since the copy of the log began.
    if let Ok(state) = ask::member(&broker.registry.client, address, PATIENCE).await {
        check_master(broker, address)?;
        broker.switch.note_master_role(&state.broker_role);
    }
    Ok(false)
}

/// Where the master has a higher offset than was committed here, its row came before, and does not come again.
fn raise_offsets(broker: &Broker, told: &ConsumerOffsets) {
    for (key, offsets) in &told.offset_table {
        let Some((topic, group)) = split_key(key) else { continue };
        for (queue_id, offset) in offsets {
            let here = broker.offsets.committed(group, topic, *queue_id);
            if here.is_none_or(|here| here < *offset) && is_here(broker, topic, *queue_id, *offset) {
                broker.offsets.commit(group, topic, *queue_id, *offset);
            }
        }
    }
}

/// Takes over once more what the master has, which is about to be a slave of this broker, and its journal has not brought. What fails is left as it was.
pub(crate) async fn take_last(broker: &Arc<Broker>) {
    let Some(address) = broker.following.master() else { return };
    let round = async {
        if !broker.master_journal.is_followed() {
            take_all(broker, &address, &mut Known::default()).await?;
        }
        take_marks(broker, &address).await
    };
    if let Err(error) = round.await {
        tracing::warn!(master = &*address, %error, "the old master does not tell its last tables");
    }
}

/// Whether more offsets are to go to the master than one round hands over.
async fn take_all(broker: &Arc<Broker>, address: &str, known: &mut Known) -> Result<bool, MasterError> {
    let master = Master { client: &broker.registry.client, address };
    let _taking = broker.master_journal.taking.lock().await;
    // From here on the tables are not those that a journal had.
    broker.master_journal.forget_place();
    topics(broker, address).await?;
    // Before the offsets, which belong to groups.
    if let Some(groups) = master.groups(broker.groups.version()).await? {
        check_master(broker, address)?;
        let (all, forbidden) = (groups.subscription_group_table, groups.forbidden_table);
        beside(broker, move |broker| broker.groups.replace(all, &forbidden, groups.data_version)).await;
    }
    let mut offsets = master.offsets().await?;
    check_master(broker, address)?;
    let Handed { has_more, is_old, refusal, .. } = owed::hand_over(broker, &master, &offsets).await?;
    known.complain(refusal);
    if is_old {
        // Where a queue is popped the master tells less than was committed: the first message without an acknowledgement.
        offsets = master.offsets().await?;
        check_master(broker, address)?;
    }
    let before = std::mem::take(&mut known.offsets);
    known.offsets = beside(broker, move |broker| take_offsets(broker, &before, offsets)).await;
    // These offsets leave out what is on lease at the master. Leases that its journal has brought before would come again when they are done with.
    beside(broker, |broker| broker.pops.drop_leases()).await;
    let delays = master.delays().await?;
    check_master(broker, address)?;
    take_delays(broker, &mut known.delays, &delays);
    // Brokers of 4.9 know neither of these.
    if let Some(modes) = unless_refused(master.modes().await)?
        && broker.pops.modes.table() != modes
    {
        check_master(broker, address)?;
        broker.pops.modes.replace(modes);
    }
    take_timer_counts(broker, &master).await?;
    Ok(has_more)
}

async fn take_timer_counts(broker: &Broker, master: &Master<'_>) -> Result<(), MasterError> {
    if let Some(timers) = &broker.timers
        && let Some(counts) = unless_refused(master.timer_counts().await)?
    {
        check_master(broker, master.address)?;
        timers.take_counts(&counts);
    }
    Ok(())
}

/// What the master does not have, it does not tell.
fn unless_refused<T>(told: Result<T, MasterError>) -> Result<Option<T>, MasterError> {
    match told {
        Ok(told) => Ok(Some(told)),
        Err(MasterError::Refused { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// How far the master has delivered its timer messages.
async fn take_marks(broker: &Arc<Broker>, address: &str) -> Result<(), MasterError> {
    let Some(timers) = broker.timers.clone() else { return Ok(()) };
    let master = Master { client: &broker.registry.client, address };
    let Some(marks) = unless_refused(master.timer_marks().await)? else { return Ok(()) };
    check_master(broker, address)?;
    let taken = beside(broker, move |broker| timers.follow(&broker.store, &marks, broker.clock.now().0)).await;
    if let Err(error) = taken {
        tracing::error!(%error, "the check-point of timer messages is not taken over from the master");
    }
    Ok(())
}

/// Takes over the topics of a master whose log was looked at, if they are others than here.
pub(super) async fn topics(broker: &Arc<Broker>, address: &str) -> Result<(), MasterError> {
    let _taking = broker.following.topics.lock().await;
    let master = Master { client: &broker.registry.client, address };
    let Some(table) = master.topics(broker.topics.version(), broker.topics.mapping_version()).await? else {
        return Ok(());
    };
    check_master(broker, address)?;
    beside(broker, move |broker| take_topics(broker, table)).await;
    Ok(())
}

fn take_topics(broker: &Broker, table: TopicConfigTable) {
    for topic in broker.topics.all() {
        if !table.topic_config_table.contains_key(topic.name()) && !names::is_system_topic(topic.name()) {
            // Its queues end with the log that they lead to; the log says when another topic of this name begins.
            broker.topics.forget(topic.name());
        }
    }
    for (topic_name, config) in table.topic_config_table {
        take_topic(broker, TopicConfig { topic_name, ..config });
    }
    if let Some(version) = table.mapping_data_version.filter(|version| *version != broker.topics.mapping_version()) {
        let mut mappings = table.topic_queue_mapping_detail_map.unwrap_or_default();
        mappings.retain(|topic, detail| is_sound(topic, detail));
        broker.topics.replace_mappings(mappings);
        broker.topics.set_mapping_version(version);
    }
    broker.topics.set_version(table.data_version);
}

/// Takes over a topic, if it is another one than here.
pub(super) fn take_topic(broker: &Broker, config: TopicConfig) {
    let config = with_queues_in_bounds(config);
    if broker.topics.get(&config.topic_name).is_none_or(|known| *known.config() != config) {
        broker.topics.create(config);
    }
}

/// Whether the mapping of a static topic can be taken over.
pub(super) fn is_sound(topic: &str, detail: &mut TopicQueueMappingDetail) -> bool {
    let owner = detail.bname.clone();
    let checked = accept::check(detail, &owner, topic, QUEUES_MAX);
    if let Err(refusal) = &checked {
        let remark = &*refusal.remark;
        tracing::warn!(topic, remark, "the master's mapping of a static topic is left out");
    }
    checked.is_ok()
}

/// A topic with as many queues as the store can hold; this broker goes through them.
fn with_queues_in_bounds(config: TopicConfig) -> TopicConfig {
    let [read_queue_nums, write_queue_nums] =
        [config.read_queue_nums, config.write_queue_nums].map(|queues| queues.clamp(0, QUEUES_MAX));
    if (read_queue_nums, write_queue_nums) != (config.read_queue_nums, config.write_queue_nums) {
        tracing::warn!(
            topic = config.topic_name,
            read = config.read_queue_nums,
            write = config.write_queue_nums,
            max = QUEUES_MAX,
            "a topic of the master has more queues than the store can hold; it has as many here as can be"
        );
    }
    TopicConfig { read_queue_nums, write_queue_nums, ..config }
}

/// Takes over offsets, and forgets those that the master told `before` and has forgotten since. Says of which topics and groups there are some.
fn take_offsets(broker: &Broker, before: &BTreeSet<String>, told: ConsumerOffsets) -> BTreeSet<String> {
    for (key, offsets) in &told.offset_table {
        let Some((topic, group)) = split_key(key) else { continue };
        for (queue_id, offset) in offsets {
            // More was committed here, which the master is still to have.
            let is_owed = || broker.owed.of(key, *queue_id).is_some_and(|owed| owed > *offset);
            if is_here(broker, topic, *queue_id, *offset) && !is_owed() {
                broker.offsets.commit(group, topic, *queue_id, *offset);
            }
        }
    }
    let taken: BTreeSet<String> = told.offset_table.into_keys().collect();
    for (topic, group) in before.difference(&taken).filter_map(|key| split_key(key)) {
        broker.offsets.forget_one(group, topic);
    }
    taken
}

/// Whether the queue here goes as far as the offset. What is not there is empty.
fn is_here(broker: &Broker, topic: &str, queue_id: i32, offset: i64) -> bool {
    // Offsets of a static topic are those of logical queues, which may end on another broker.
    if broker.topics.get(topic).is_some_and(|topic| topic.is_static()) {
        return true;
    }
    (0..=end(broker, topic, queue_id)).contains(&offset)
}

fn take_delays(broker: &Broker, known: &mut BTreeMap<i32, i64>, told: &DelayOffsets) {
    for (level, offset) in &told.offset_table {
        let is_news = known.get(level) != Some(offset);
        if is_news && is_here(broker, names::SCHEDULE_TOPIC, level.saturating_sub(1), *offset) {
            broker.delay.import(&broker.store, *level, *offset);
            known.insert(*level, *offset);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::started;

    #[test]
    fn after_failures_tables_are_asked_for_less_often_and_then_as_usual() {
        let (mut looks, mut asked) = (Looks::default(), Vec::new());
        for look in 0..30 {
            let due = looks.take();
            if due != Due::default() {
                assert!(due.tables);
                asked.push(look);
                looks.failed();
            }
        }
        assert_eq!(asked, [0, 1, 3, 7, 15, 25]);

        let mut looks = Looks { has_marks: true, ..Looks::default() };
        let dues: Vec<Due> = (0..=10).map(|_| looks.take()).collect();
        let at = |is_due: fn(&Due) -> bool| (0..dues.len()).filter(|look| is_due(&dues[*look])).collect::<Vec<_>>();
        assert_eq!((at(|due| due.tables), at(|due| due.marks)), (vec![0, 10], vec![0, 3, 6, 9]));

        // A connection that comes and goes does not make up for failures.
        let mut looks = Looks { pause: 3, ..Looks::default() };
        looks.failed();
        looks.start_over();
        assert_eq!((0..4).map(|_| looks.take().tables).collect::<Vec<_>>(), [false, false, false, true]);
    }

    #[tokio::test]
    async fn a_topic_of_the_master_has_no_more_queues_than_the_store_can_hold() {
        let dir = tempfile::tempdir().unwrap();
        let (store, broker) = started::at(dir.path(), Vec::new()).await;
        let config = TopicConfig { read_queue_nums: i32::MAX, write_queue_nums: -1, ..TopicConfig::default() };
        let table =
            TopicConfigTable { topic_config_table: [("T".to_owned(), config)].into(), ..TopicConfigTable::default() };
        take_topics(&broker, table);
        let config = broker.topics.get("T").unwrap().config();
        assert_eq!((config.read_queue_nums, config.write_queue_nums), (QUEUES_MAX, 0));
        broker.stop().await.unwrap();
        store.close().unwrap();
    }
}
