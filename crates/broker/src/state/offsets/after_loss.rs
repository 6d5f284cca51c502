//! After a crash: groups, and levels of delays, that had come further than what is left of their queues.
//!
//! The journal that holds offsets is brought to the device apart from the log. With ASYNC_FLUSH a loss of power may leave it with a message as
//! consumed that the log has lost; the next messages get the numbers of the lost ones, and the group would never see them. So such offsets are
//! taken back to the end of their queue. Clients that were there before the loss still hold the higher offset, often one that they had not even
//! committed: those are watched (`ended.rs`). A group that lost nothing pulls where it was and notices nothing. A slave may have it so of the levels
//! of delays too: their rows come from its master, and may be on the device before the log.
//!
//! The same holds when a slave becomes a master: clients may have come further at the old master than its copy did. They are watched by each start
//! until one has done so for long enough.
//!
//! What was cut is on the device before anybody is served: messages that come now get the numbers of those that are gone. If another loss of power
//! took the cut and left these, groups would pass over them.

use std::sync::Arc;

use protocol::{light, names};
use store::Store;

use super::{Offsets, ended, rows, set};
use crate::delay::Delay;
use crate::pop::Pops;
use crate::state::role::Standing;
use crate::state::topics::Topics;
use protocol::names::REVIVE_GROUP;

/// What was too far, and the end of its queue.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) topic: String,
    pub(crate) group: String,
    pub(crate) queue_id: i32,
    pub(crate) from: i64,
    pub(crate) to: i64,
}

impl Offsets {
    /// Takes offsets that lie behind the end of their queue back to it. `end_of`: the end of a topic's queue; none of those that are not to be
    /// looked at.
    fn cut(&self, end_of: impl Fn(&str, i32) -> Option<i64>) -> Vec<Cut> {
        let mut cuts = Vec::new();
        for (key, entry) in &self.table.pin() {
            for (queue_id, from) in entry.committed() {
                let Ok(queue) = usize::try_from(queue_id) else { continue };
                let Some(end) = end_of(&key.topic, queue_id) else { continue };
                let to = highest(&key.group, end);
                let is_cut = entry.peek(queue, |slot| from > to && set(slot, to));
                if is_cut == Some(true) {
                    self.mark(entry);
                    cuts.push(Cut { topic: key.topic.to_string(), group: key.group.to_string(), queue_id, from, to });
                }
            }
        }
        cuts
    }
}

/// The highest offset that a group may have in a queue with this end; negative for none.
fn highest(group: &str, end: i64) -> i64 {
    // Apache notes there the last check-point that is done with, not the next one.
    if group == REVIVE_GROUP { end - 1 } else { end }
}

/// At a start, before anybody is served. The journal's position that has to be on the device by then; none if nothing was cut.
pub(crate) fn cut(
    standing: Standing,
    store: &Store,
    topics: &Topics,
    offsets: &Arc<Offsets>,
    pops: &Pops,
    delay: &Delay,
) -> Option<u64> {
    let journal = store.journal();
    let is_promoted = standing.is_promoted(journal);
    if standing.is_slave() {
        ended::forget_kept(journal);
    }
    let kept = ended::kept(journal);
    if !store.was_abnormal() && !is_promoted && kept.is_none() {
        return None;
    }
    let end_of = |topic: &str, queue_id: i32| {
        let queue = u32::try_from(queue_id).ok().and_then(|id| store.existing_queue(topic, id));
        // What is not there is empty, and begins at 0.
        let end = queue.as_ref().map_or(0, |queue| queue.max_offset() as i64);
        if topics.is_light(topic) {
            return (queue_id == light::QUEUE_ID as i32).then_some(end);
        }
        let known = topics.get(topic);
        // In a static topic offsets are those of logical queues, which may end on another broker.
        if known.as_ref().is_some_and(|topic| topic.is_static()) {
            return None;
        }
        // A topic that has become smaller is read to its end, and so is one that the crash took from the journal.
        (queue.is_some() || known.is_some_and(|topic| topic.has_queue(queue_id))).then_some(end)
    };
    let cuts = offsets.cut(end_of);
    // What a copy has lost comes again as it was.
    let has_less = (store.may_have_lost() || is_promoted) && !standing.is_slave();
    let found = has_less.then(|| ends(store, topics, offsets, end_of));
    let are_kept = is_promoted || kept.is_some();
    if let Some(ended) = lowest(kept, found) {
        offsets.watch(ended, are_kept);
        if are_kept {
            ended::keep(offsets, journal);
        }
    }
    let batches = pops.orders.cut(end_of);
    let leases = pops.cut(end_of);
    if leases > 0 {
        tracing::warn!(leases, "messages on lease lay behind what is left of their queues: they are on lease no more");
    }
    if batches > 0 {
        tracing::warn!(
            batches,
            "batches that were popped in order reached behind what is left of their queues: they are popped anew"
        );
    }
    let levels = delay.cut(store);
    if levels > 0 {
        tracing::warn!(
            levels,
            "levels of delayed messages had come further than what is left of their queues: they go on at the end of them"
        );
    }
    if let Some(first) = cuts.first() {
        tracing::warn!(
            offsets = cuts.len(),
            ?first,
            "groups had come further than what is left of their queues: they go on at the end of them"
        );
    }
    (leases > 0 || batches > 0 || levels > 0 || !cuts.is_empty()).then(|| rows::put(store, offsets))
}

/// Where queues ended at first that clients may have known: messages that came since are others than these have seen.
fn lowest(kept: Option<ended::Topics>, found: Option<ended::Topics>) -> Option<ended::Topics> {
    let (mut kept, found) = match (kept, found) {
        (Some(kept), Some(found)) => (kept, found),
        (kept, found) => return kept.or(found),
    };
    for (topic, ends) in &mut kept {
        let mut found = found.get(topic).into_iter().flatten();
        for end in ends {
            // A queue that is not there any more ended at 0.
            *end = end.zip(found.next().copied().flatten()).map(|(end, found)| end.min(found));
        }
    }
    Some(kept)
}

/// Where each queue ends that a client may have known.
fn ends(store: &Store, topics: &Topics, offsets: &Offsets, end_of: impl Fn(&str, i32) -> Option<i64>) -> ended::Topics {
    let mut found = ended::Topics::new();
    let there = store.topics().into_iter();
    let known = topics.all().into_iter().map(|topic| Arc::<str>::from(topic.name()));
    let committed = offsets.topics().into_iter();
    for topic in there.chain(known).chain(committed) {
        if found.contains_key(&topic) || names::is_system_topic(&topic) {
            continue;
        }
        let known = topics.get(&topic);
        let count = known.as_ref().map_or(0, |topic| topic.settings().read_queue_nums.max(0));
        let last = store.queues_of(&topic).into_iter().map(|(id, _)| id as i32 + 1).max().unwrap_or(0);
        // A queue that is not looked at has no end that matters. Another one may be lost with the topic, of which queues behind it are left.
        let is_left_out = topics.is_light(&topic) || known.is_some_and(|topic| topic.is_static());
        let ends = (0..count.max(last)).map(|id| end_of(&topic, id).or(is_left_out.then_some(i64::MAX))).collect();
        found.insert(topic, ends);
    }
    found
}

#[cfg(test)]
mod tests {
    use env::Clock;

    use super::*;
    use crate::state::offsets::OffsetClient;

    #[test]
    fn offsets_behind_the_end_of_their_queue_are_taken_back_to_it() {
        let offsets = Offsets::new(Clock::real());
        offsets.commit("g", "T", 0, 7);
        offsets.commit("g", "T", 1, 5);
        offsets.commit("g", "Elsewhere", 0, 9);
        let cuts = offsets.cut(|topic, _| (topic == "T").then_some(5));
        let cut = Cut { topic: "T".to_owned(), group: "g".to_owned(), queue_id: 0, from: 7, to: 5 };
        assert_eq!(cuts, [cut]);
        assert_eq!((offsets.committed("g", "T", 0), offsets.committed("g", "T", 1)), (Some(5), Some(5)));
        assert_eq!(offsets.committed("g", "Elsewhere", 0), Some(9));
    }

    #[test]
    fn what_somebody_decides_after_a_loss_counts() {
        let offsets = Offsets::new(Clock::real());
        let groups = ["reset", "copied", "told"];
        groups.iter().for_each(|group| offsets.commit(group, "T", 0, 110));
        offsets.cut(|_, _| Some(100));
        offsets.watch([("T".into(), vec![Some(100)])].into(), false);
        offsets.reset("reset", "T", 0, 105);
        let client = OffsetClient { connection: 1, asks_first: &|| true };
        assert_eq!(offsets.tell(&client, "reset", "T", 0, 130), Some(105));
        offsets.commit("source", "T", 0, 105);
        offsets.copy("source", "copied", "T");
        offsets.forget_end("told", "T", 0);
        offsets.commit_by(&client, "told", "T", 0, 105);
        for group in ["reset", "copied", "told"] {
            assert_eq!(offsets.tell(&client, group, "T", 0, 107), None, "{group}");
            assert_eq!(offsets.committed(group, "T", 0), Some(105), "{group}");
        }
    }

    #[test]
    fn of_ends_that_another_start_has_kept_and_those_now_the_lower_count() {
        let ends = |ends: &[Option<i64>]| Some(ended::Topics::from([("T".into(), ends.to_vec())]));
        assert_eq!(lowest(None, None), None);
        assert_eq!(lowest(ends(&[Some(5)]), None), ends(&[Some(5)]));
        assert_eq!(lowest(None, ends(&[Some(9)])), ends(&[Some(9)]));
        let found = ends(&[Some(9), Some(3), None, Some(7)]);
        assert_eq!(lowest(ends(&[Some(5), Some(5), Some(5)]), found), ends(&[Some(5), Some(3), None]));
    }

    #[test]
    fn the_brokers_own_groups_are_cut_and_go_on_by_themselves() {
        let offsets = Offsets::new(Clock::real());
        offsets.commit(REVIVE_GROUP, "R", 0, 12);
        offsets.commit(REVIVE_GROUP, "R", 1, 0);
        offsets.commit("CID_RMQ_SYS_TRANS", "T", 0, 12);
        let cuts = offsets.cut(|_, queue_id| Some(if queue_id == 0 { 10 } else { 0 }));
        assert_eq!(cuts.len(), 3);
        // The last one that is done with; none of an empty queue.
        assert_eq!((offsets.committed(REVIVE_GROUP, "R", 0), offsets.committed(REVIVE_GROUP, "R", 1)), (Some(9), None));
        assert_eq!(offsets.committed("CID_RMQ_SYS_TRANS", "T", 0), Some(10));
        // Nobody pulls for them.
        offsets.commit(REVIVE_GROUP, "R", 0, 11);
        offsets.commit("CID_RMQ_SYS_TRANS", "T", 0, 11);
        assert_eq!(offsets.committed(REVIVE_GROUP, "R", 0), Some(11));
        assert_eq!(offsets.committed("CID_RMQ_SYS_TRANS", "T", 0), Some(11));
    }
}
