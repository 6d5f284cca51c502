//! Committed offsets of static topics: 14 and 15.
//!
//! They lie with the physical queue that they are in, on its broker, in its own numbers; so a group that is behind has its offset where
//! its next message is. Who asks gets the one in the youngest queue that has one; so who goes back to an older queue leaves none in the younger
//! ones. The leader tells their brokers, one commit after the other.

use std::sync::Arc;

use protocol::body::LogicQueueMappingItem;
use protocol::code::{ResponseCode, request};
use protocol::request::{OffsetReply, QueryConsumerOffset, UpdateConsumerOffset};

use crate::broker::Broker;
use crate::refusal::Refusal;
use crate::state::offsets::Offsets;
use crate::state::topics::Topic;
use crate::state::topics::mapping::{Mapping, PhysicalQueues, end, find, is_decided, logical, physical};
use crate::static_topic::NamedQueue;
use crate::static_topic::forward::{Forward, unexpected};
use crate::static_topic::order::{CommitsUnderWay, Number};
use crate::static_topic::replies::Asking;

/// The offset by which one broker tells another that a group has none any more in a physical queue. Apache's broker keeps it; by its source
/// (5.5.0, `ConsumerOffsetManager.queryOffset`) -1 is also what it finds where there is none, so it answers 14 as for none.
const FORGOTTEN: i64 = -1;

/// Where the offset of a group belongs.
pub(crate) struct Target {
    places: PhysicalQueues,
    queue_id: i32,
    at: usize,
    offset: i64,
}

impl Target {
    /// One that lies before the queue counts as its beginning.
    fn of(mapping: &Mapping, queue_id: i32, offset: i64) -> Result<Target, Refusal> {
        let places = mapping.places(queue_id)?;
        let at = find(&places, offset).ok_or_else(|| mapping.not_led(queue_id))?;
        let offset = physical(&places[at], offset).max(places[at].start_offset);
        Ok(Target { places, queue_id, at, offset })
    }

    fn item(&self) -> &LogicQueueMappingItem {
        &self.places[self.at]
    }

    fn is_here(&self) -> bool {
        self.places.is_here(self.item())
    }

    /// The younger places that other brokers hold.
    fn younger_elsewhere(&self) -> impl Iterator<Item = &LogicQueueMappingItem> {
        self.places[self.at + 1..].iter().filter(|item| is_decided(item) && !self.places.is_here(item))
    }

    /// Whether no other broker has to hear of it.
    fn is_all_here(&self) -> bool {
        self.is_here() && self.younger_elsewhere().next().is_none()
    }

    /// Refuses if the queue has moved meanwhile: its new leader may have heard of a later commit already.
    fn check_still_led(&self, topic: &Topic) -> Result<(), Refusal> {
        let Some(mapping) = topic.mapping() else { return Ok(()) };
        let generation = |items: &[LogicQueueMappingItem]| items.last().map(|leader| leader.generation);
        if generation(mapping.led(self.queue_id)?) != generation(&self.places) {
            return Err(mapping.not_led(self.queue_id));
        }
        Ok(())
    }

    /// Notes what is this broker's of it. An older offset in a younger queue would count in its place.
    fn note(&self, offsets: &Offsets, group: &str) {
        self.note_place(offsets, group);
        for item in self.places[self.at + 1..].iter().filter(|item| self.places.is_here(item)) {
            offsets.forget_queue(group, self.places.topic(), item.queue_id);
        }
    }

    /// Notes the offset itself, if its place is this broker's.
    fn note_place(&self, offsets: &Offsets, group: &str) {
        if self.is_here() {
            offsets.commit(group, self.places.topic(), self.item().queue_id, self.offset);
        }
    }

    /// Notes one that is all here.
    pub(crate) fn note_at_once(&self, offsets: &Offsets, commits: &CommitsUnderWay, group: &str) {
        let commit = || self.note(offsets, group);
        commits.at_once(group, self.places.topic(), self.queue_id, commit);
    }

    /// Tells the other brokers, and then notes what is this broker's.
    ///
    /// Where the group is comes first, so that it is never nowhere: until the younger places have forgotten it, theirs counts.
    async fn tell(&self, means: Means, number: &Number, group: &str) -> Result<(), Refusal> {
        let Means { forward, offsets, topic } = means;
        let _turn = number.turn().await;
        if number.is_overtaken() {
            return Ok(());
        }
        let name = self.places.topic();
        if !self.is_here() {
            self.check_still_led(&topic)?;
            Commit::new(group, name, self.item(), self.offset).tell(&forward).await?;
        }
        for item in self.younger_elsewhere() {
            self.check_still_led(&topic)?;
            Commit::new(group, name, item, FORGOTTEN).forget(&forward).await?;
        }
        let mut done = Ok(());
        number.finish(|| done = self.check_still_led(&topic).map(|()| self.note(&offsets, group)));
        done
    }
}

/// What a task needs of the broker to carry out a commit.
struct Means {
    forward: Arc<Forward>,
    offsets: Arc<Offsets>,
    topic: Arc<Topic>,
}

/// The physical queue and offset of a commit.
pub(crate) enum Placed {
    /// They are this broker's.
    Here { queue_id: i32, offset: i64, target: Option<Target> },
    /// Another leader says that the group has no offset in this physical queue any more.
    Forgotten,
    /// Other brokers have to be told.
    Elsewhere(Asking<()>),
}

/// 15: finds the physical queue and offset of a commit.
pub(crate) fn place_commit(
    broker: &Broker,
    group: &str,
    queue: &NamedQueue<'_>,
    offset: i64,
) -> Result<Placed, Refusal> {
    let &NamedQueue { topic: name, queue_id, .. } = queue;
    let Some(mapping) = queue.mapping(&broker.topics) else {
        let is_static = offset == FORGOTTEN && broker.topics.with_static(name, |_| Some(())).is_some();
        return Ok(if is_static { Placed::Forgotten } else { Placed::Here { queue_id, offset, target: None } });
    };
    if offset < 0 {
        // A negative offset is no offset, as everywhere.
        let queue_id = mapping.led(queue_id)?.last().map_or(queue_id, |leader| leader.queue_id);
        return Ok(Placed::Here { queue_id, offset, target: None });
    }
    let target = Target::of(&mapping, queue_id, offset)?;
    if target.is_all_here() {
        let (queue_id, offset) = (target.item().queue_id, target.offset);
        return Ok(Placed::Here { queue_id, offset, target: Some(target) });
    }
    let Some(topic) = broker.topics.get(name) else { return Err(mapping.not_led(queue_id)) };
    let item = target.item();
    if target.is_here() && broker.offsets.is_reset_pending(group, name, item.queue_id) {
        return Ok(Placed::Here { queue_id: item.queue_id, offset, target: Some(target) });
    }
    let group = group.to_owned();
    let number = broker.commits.join(&group, name, queue_id)?;
    if target.is_here() {
        // It counts only where no younger place has one, so it may be noted before these are asked: a group that only goes on keeps
        // what it has done, whether their brokers are there or not. What came before and is not done is not needed any more.
        number.finish(|| target.note_place(&broker.offsets, &group));
    }
    let (forward, offsets) = (Arc::clone(&broker.forward), Arc::clone(&broker.offsets));
    let means = Means { forward, offsets, topic };
    Ok(Placed::Elsewhere(Box::pin(async move { target.tell(means, &number, &group).await })))
}

/// A commit that came with a pull, for which no answer says what became of it. One that is not all of this broker's is left to the
/// commits that clients send by themselves.
pub(crate) struct PulledCommit {
    offsets: Arc<Offsets>,
    commits: Arc<CommitsUnderWay>,
    topic: Arc<Topic>,
    group: String,
    queue_id: i32,
    offset: i64,
}

impl PulledCommit {
    pub(crate) fn new(broker: &Broker, topic: &Arc<Topic>, group: &str, queue_id: i32, offset: i64) -> PulledCommit {
        let (offsets, commits) = (Arc::clone(&broker.offsets), Arc::clone(&broker.commits));
        PulledCommit { offsets, commits, topic: Arc::clone(topic), group: group.to_owned(), queue_id, offset }
    }

    pub(crate) fn note(&self) {
        let Some(mapping) = self.topic.mapping().filter(|_| self.offset >= 0) else { return };
        if let Ok(target) = Target::of(&mapping, self.queue_id, self.offset)
            && target.is_all_here()
        {
            let commit = || target.note(&self.offsets, &self.group);
            self.commits.at_once(&self.group, target.places.topic(), self.queue_id, commit);
        }
    }
}

/// The logical offset of one that lies in a place; one that came behind its end counts as the end.
fn told(places: &PhysicalQueues, at: usize, offset: i64) -> i64 {
    logical(&places[at], offset.min(end(places, at)))
}

/// A commit on its way to another broker.
pub(super) struct Commit {
    group: String,
    topic: String,
    holder: String,
    queue_id: i32,
    offset: i64,
}

impl Commit {
    pub(super) fn new(group: &str, topic: &str, item: &LogicQueueMappingItem, offset: i64) -> Commit {
        let (group, topic, holder) = (group.to_owned(), topic.to_owned(), item.bname.clone());
        Commit { group, topic, holder, queue_id: item.queue_id, offset }
    }

    pub(super) async fn tell(&self, forward: &Forward) -> Result<(), Refusal> {
        forward.ask_for(&self.holder, request::UPDATE_CONSUMER_OFFSET, &self.fields(), |_| Ok(())).await
    }

    /// The same for one that takes an offset away. A broker without the group, the topic or the queue has none to take away.
    async fn forget(&self, forward: &Forward) -> Result<(), Refusal> {
        let answer = forward.ask(&self.holder, request::UPDATE_CONSUMER_OFFSET, &self.fields()).await?;
        match ResponseCode::from_i32(answer.code) {
            Some(
                ResponseCode::Success
                | ResponseCode::SubscriptionGroupNotExist
                | ResponseCode::TopicNotExist
                | ResponseCode::QueryNotFound
                | ResponseCode::InvalidParameter,
            ) => Ok(()),
            Some(_) | None => Err(unexpected(&self.holder, &answer)),
        }
    }

    fn fields(&self) -> UpdateConsumerOffset<'_> {
        UpdateConsumerOffset {
            consumer_group: &self.group,
            topic: &self.topic,
            queue_id: self.queue_id,
            commit_offset: self.offset,
        }
    }
}

/// Where the offset of a group in a logical queue is found.
pub(crate) enum Found {
    /// As that of any other queue, in this physical one: the logical queue has never moved.
    Physical(i32),
    /// Here.
    Here(i64),
    /// Perhaps at other brokers, which have to be asked.
    Elsewhere(Asking<i64>),
}

/// 14, for a static topic: from the youngest physical queue on, the first offset that there is.
pub(crate) fn query(
    offsets: &Arc<Offsets>,
    forward: &Arc<Forward>,
    mapping: &Mapping,
    queue_id: i32,
    group: &str,
) -> Result<Found, Refusal> {
    let places = mapping.places(queue_id)?;
    if let [only] = &*places
        && only.logic_offset == 0
        && only.start_offset == 0
    {
        return Ok(Found::Physical(only.queue_id));
    }
    let mut left = places.len();
    // Nearly always the answer is here, in the queue that takes the messages.
    while let Some(at) = left.checked_sub(1) {
        let item = &places[at];
        if is_decided(item) && !mapping.is_here(item) {
            break;
        }
        left = at;
        let offset = offsets.committed(group, places.topic(), item.queue_id);
        let Some(offset) = offset.filter(|_| is_decided(item)) else { continue };
        return Ok(Found::Here(told(&places, at, offset)));
    }
    if left == 0 {
        return Err(not_found());
    }
    let (group, forward, offsets) = (group.to_owned(), Arc::clone(forward), Arc::clone(offsets));
    Ok(Found::Elsewhere(Box::pin(async move {
        for at in (0..left).rev().filter(|at| is_decided(&places[*at])) {
            let item = &places[at];
            let found = if places.is_here(item) {
                offsets.committed(&group, places.topic(), item.queue_id)
            } else {
                ask(&forward, &group, places.topic(), item).await?
            };
            if let Some(offset) = found {
                return Ok(told(&places, at, offset));
            }
        }
        Err(not_found())
    })))
}

/// The offset of a group in another broker's physical queue.
pub(super) async fn ask(
    forward: &Forward,
    group: &str,
    topic: &str,
    item: &LogicQueueMappingItem,
) -> Result<Option<i64>, Refusal> {
    let fields = QueryConsumerOffset {
        consumer_group: group,
        topic,
        queue_id: item.queue_id,
        set_zero_if_not_found: Some(false),
    };
    let answer = forward.ask(&item.bname, request::QUERY_CONSUMER_OFFSET, &fields).await?;
    match ResponseCode::from_i32(answer.code) {
        Some(ResponseCode::Success) => {
            OffsetReply::decode(&answer.fields.as_fields()).map(|reply| Some(reply.offset)).map_err(Refusal::failed)
        }
        Some(ResponseCode::QueryNotFound) => Ok(None),
        Some(_) | None => Err(unexpected(&item.bname, &answer)),
    }
}

fn not_found() -> Refusal {
    Refusal::new(ResponseCode::QueryNotFound, "Not found, maybe this group consumer boot first")
}
