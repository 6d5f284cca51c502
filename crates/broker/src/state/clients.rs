//! Who is connected: consumers and producers by group, and what consumers subscribe to.
//!
//! A group is a snapshot that its readers share; every pull looks at one. Whoever changes a group holds `changing`. A heartbeat that says
//! nothing new, as nearly all of them, takes no lock. Nothing is sent from here: a change returns whom to tell. So the rules are a
//! function of what clients say and of the time since the start, and `C`, the connection, may be anything.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use filter::Expression;
use hashbrown::HashMap;
use parking_lot::Mutex;
use protocol::body::{ConsumeFromWhere, ConsumeType, ConsumerData, MessageModel, SubscriptionData};
use protocol::code::ResponseCode;
use protocol::tags;

use crate::refusal::Refusal;
use crate::state::message_filter::{MessageFilter, SQL92};

/// Clients before this (3.1.8) can neither tell their state nor be asked to consume a message.
pub(crate) const VERSION_WITH_ANSWERS: i32 = 62;

/// Longest id of a client, in bytes. Clients make them of their address, their process and a number.
pub(crate) const CLIENT_ID_MAX: usize = 255;
/// So many members of one group are looked at in well under a millisecond.
pub(crate) const CROWD: usize = 1_000;
/// Groups that one connection is remembered to produce for.
const PRODUCES_MAX: usize = 10_000;

/// Groups that a connection consumes in, over all of its heartbeats.
pub(crate) const CONSUMES_MAX: usize = 10_000;

/// What the subscriptions of all groups may take: some two million of them by a few tags each.
pub(crate) const SUBSCRIPTION_BYTES_MAX: usize = 512 << 20;

/// What a client says of itself in a heartbeat, and where it comes from.
#[derive(Clone, Debug)]
pub struct Client<C> {
    /// Its connection.
    pub connection: C,
    /// The connection's number.
    pub connection_id: u64,
    /// The other end.
    pub peer: SocketAddr,
    /// As it calls itself.
    pub client_id: Arc<str>,
    /// RocketMQ's name of its language.
    pub language: &'static str,
    /// Ordinal of its version.
    pub version: i32,
}

/// A client in a group.
#[derive(Debug)]
pub struct Member<C> {
    /// Who.
    pub client: Client<C>,
    /// When it was last heard of, by the clock's `elapsed`, in milliseconds: whoever sets the machine's clock must not make everybody
    /// look silent. Relaxed: the number stands alone.
    heard_at_ms: AtomicU64,
}

impl<C> Member<C> {
    /// When it was last heard of, as a time since the start.
    pub fn heard_at(&self) -> Duration {
        Duration::from_millis(self.heard_at_ms.load(Ordering::Relaxed))
    }

    fn hear(&self, now: Duration) {
        self.heard_at_ms.store(ms(now), Ordering::Relaxed);
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A subscription, compiled when it is first used: a heartbeat may bring thousands.
#[derive(Debug)]
pub struct ClientSubscription {
    /// The client's clock when it subscribed.
    pub version: i64,
    /// `TAG` or `SQL92`.
    pub expression_type: String,
    want: OnceLock<Option<Arc<MessageFilter>>>,
    /// As the client sent it.
    pub data: SubscriptionData,
    _counted: Counted,
}

/// Bytes of all subscriptions that are kept.
#[derive(Clone, Debug, Default)]
struct SubscriptionBytes(Arc<AtomicUsize>);

/// A part of them, as long as it is kept. Relaxed: the sum stands alone.
#[derive(Debug)]
struct Counted {
    all: SubscriptionBytes,
    bytes: usize,
}

impl SubscriptionBytes {
    fn count(&self, bytes: usize) -> Counted {
        self.0.fetch_add(bytes, Ordering::Relaxed);
        Counted { all: self.clone(), bytes }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.all.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// What a subscription takes, about: its texts twice, since it is compiled too.
fn bytes_of(data: &SubscriptionData) -> usize {
    let tags = data.tags_set.iter().map(|tag| tag.len() + size_of::<String>()).sum::<usize>();
    let texts = data.topic.len() + data.expression_type.len() + tags + size_of_val(&*data.sub_string);
    size_of::<ClientSubscription>() + 2 * (texts + data.code_set.len() * size_of::<i32>())
}

impl ClientSubscription {
    fn new(data: SubscriptionData, all: &SubscriptionBytes) -> ClientSubscription {
        let counted = all.count(bytes_of(&data));
        let (version, expression_type) = (data.sub_version, data.expression_type.clone());
        ClientSubscription { version, expression_type, want: OnceLock::new(), data, _counted: counted }
    }

    /// What to leave out; `None`: nothing, or an expression that cannot be compiled.
    pub(crate) fn want(&self) -> Option<&Arc<MessageFilter>> {
        self.want.get_or_init(|| self.compiled()).as_ref()
    }

    /// Whether that is known without work.
    pub(crate) fn is_compiled(&self) -> bool {
        self.want.get().is_some()
    }

    fn compiled(&self) -> Option<Arc<MessageFilter>> {
        let data = &self.data;
        if is_tag(&data.expression_type) {
            // Apache compares the codes that the client computed, unless the expression is `*`. An expression without codes comes from
            // clients that leave this to the broker.
            return match data.code_set.as_slice() {
                _ if data.sub_string == tags::ALL => None,
                [] => MessageFilter::tags(&data.sub_string).unwrap_or_default(),
                codes => MessageFilter::codes(codes),
            };
        }
        if data.expression_type != SQL92 {
            return None;
        }
        // One that cannot be compiled: the heartbeat is answered with success, as in Apache, and the first pull says what is wrong.
        Expression::compile(&data.sub_string).ok().map(|compiled| Arc::new(MessageFilter::Sql(compiled)))
    }

    /// The condition on properties, if that is what it filters by.
    pub(crate) fn sql(&self) -> Option<&Expression> {
        if self.expression_type != SQL92 {
            return None;
        }
        match self.want().map(|want| &**want) {
            Some(MessageFilter::Sql(sql)) => Some(sql),
            Some(MessageFilter::Tags(_) | MessageFilter::Retries(_)) | None => None,
        }
    }
}

/// Whether an expression is by tags; clients of old leave the type out.
pub(crate) fn is_tag(expression_type: &str) -> bool {
    expression_type.is_empty() || expression_type == "TAG"
}

/// The clients that consume as one group, at one moment.
#[derive(Clone, Debug)]
pub struct ConsumerGroup<C> {
    /// Its name.
    pub name: Arc<str>,
    /// How its members get messages, as the last of them said.
    pub consume_type: ConsumeType,
    /// Whether they share them.
    pub message_model: MessageModel,
    /// Where a new group begins.
    pub consume_from_where: ConsumeFromWhere,
    members: Vec<Arc<Member<C>>>,
    subscriptions: HashMap<Box<str>, Arc<ClientSubscription>>,
    /// Of the subscriptions, as the client computes it (heartbeat v2); 0: unknown.
    fingerprint: i32,
}

impl<C> ConsumerGroup<C> {
    /// Whether each member gets every message.
    pub fn is_broadcasting(&self) -> bool {
        self.message_model == MessageModel::Broadcasting
    }

    /// Whether members ask for messages by themselves, queue by queue.
    pub fn is_active_pull(&self) -> bool {
        self.consume_type == ConsumeType::ConsumeActively
    }

    /// What it subscribes to in a topic.
    pub fn subscription(&self, topic: &str) -> Option<Arc<ClientSubscription>> {
        self.subscriptions.get(topic).cloned()
    }

    /// What it subscribes to in each topic.
    pub(crate) fn each_subscription(&self) -> impl Iterator<Item = (&str, &ClientSubscription)> {
        self.subscriptions.iter().map(|(topic, subscription)| (&**topic, &**subscription))
    }

    /// Everything that it subscribes to, by topic.
    pub fn subscriptions(&self) -> BTreeMap<String, SubscriptionData> {
        self.subscriptions.iter().map(|(topic, subscription)| (topic.to_string(), subscription.data.clone())).collect()
    }

    /// Whether it subscribes to anything.
    pub fn has_subscriptions(&self) -> bool {
        !self.subscriptions.is_empty()
    }

    /// Who is there.
    pub fn members(&self) -> &[Arc<Member<C>>] {
        &self.members
    }

    /// The ids of its members, sorted, each once: what every member computes its share from.
    pub fn client_ids(&self) -> Vec<String> {
        let ids: BTreeSet<&str> = self.members.iter().map(|member| &*member.client.client_id).collect();
        ids.into_iter().map(str::to_owned).collect()
    }

    /// The member of that name.
    pub fn member(&self, client_id: &str) -> Option<&Arc<Member<C>>> {
        self.members.iter().find(|member| &*member.client.client_id == client_id)
    }

    /// The member on that connection.
    pub(crate) fn at(&self, connection_id: u64) -> Option<&Arc<Member<C>>> {
        self.members.iter().find(|member| member.client.connection_id == connection_id)
    }

    /// Whether a heartbeat says what is known already.
    fn is_as(&self, client: &Client<C>, beat: &Beat<'_>) -> bool {
        let data = beat.data;
        let knows_subscriptions = beat.without_sub
            || data.subscription_data_set.len() == self.subscriptions.len()
                && data.subscription_data_set.iter().all(|subscription| {
                    let known = self.subscriptions.get(subscription.topic.as_str());
                    known.is_some_and(|known| known.version >= subscription.sub_version)
                });
        knows_subscriptions
            && self.fingerprint == beat.fingerprint
            && self.consume_type == data.consume_type
            && self.message_model == data.message_model
            && self.consume_from_where == data.consume_from_where
            && self.at(client.connection_id).is_some_and(|member| member.client.client_id == client.client_id)
    }
}

/// One group of a heartbeat.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beat<'a> {
    pub(crate) data: &'a ConsumerData,
    /// 0: heartbeat v1.
    pub(crate) fingerprint: i32,
    /// Subscriptions are left out.
    pub(crate) without_sub: bool,
    /// The group wants its members to be told of each other.
    pub(crate) may_notify: bool,
}

/// Members to be told that their group has changed.
#[derive(Debug)]
pub(crate) struct Notice<C> {
    pub(crate) group: Arc<str>,
    pub(crate) members: Vec<Arc<Member<C>>>,
}

/// What became of a heartbeat.
#[derive(Debug)]
pub(crate) struct Beaten<C> {
    /// The client is to send its subscriptions in full next time.
    pub(crate) must_resend: bool,
    /// There is something that was not known before.
    pub(crate) is_news: bool,
    /// What it subscribes to was not taken: all clients together may not have more.
    pub(crate) is_full: bool,
    pub(crate) notice: Option<Notice<C>>,
}

type Groups<G> = papaya::HashMap<Arc<str>, Arc<G>, foldhash::fast::RandomState>;

/// Groups that a connection is in.
#[derive(Debug, Default)]
struct GroupMemberships {
    consumes: BTreeSet<Arc<str>>,
    produces: BTreeSet<Arc<str>>,
    /// As whom it produces: the name under which replies find it.
    client_id: Option<Arc<str>>,
}

/// Everybody who is connected and has sent a heartbeat.
pub struct Clients<C> {
    consumers: Groups<ConsumerGroup<C>>,
    producers: Groups<Vec<Arc<Member<C>>>>,
    /// Producers by client id, for replies: of several with one id the one that came last. At most one for each connection.
    by_id: papaya::HashMap<Arc<str>, Client<C>, foldhash::fast::RandomState>,
    /// Groups with more than [`CROWD`] members. Written under `changing`. Relaxed: a request that sees it late runs where it ran before.
    crowds: AtomicUsize,
    /// Guards every change of the tables; holds the groups of each connection.
    changing: Mutex<HashMap<u64, GroupMemberships>>,
    subscribed: SubscriptionBytes,
}

impl<C: Clone> Clients<C> {
    pub(crate) fn new() -> Clients<C> {
        Clients {
            consumers: papaya::HashMap::with_hasher(foldhash::fast::RandomState::default()),
            producers: papaya::HashMap::with_hasher(foldhash::fast::RandomState::default()),
            by_id: papaya::HashMap::with_hasher(foldhash::fast::RandomState::default()),
            crowds: AtomicUsize::new(0),
            changing: Mutex::default(),
            subscribed: SubscriptionBytes::default(),
        }
    }

    /// Whether any group has more than [`CROWD`] members: a request that looks at all of them takes long.
    pub(crate) fn has_crowd(&self) -> bool {
        self.crowds.load(Ordering::Relaxed) > 0
    }

    /// Notes that a group has grown or shrunk across [`CROWD`] members. The caller holds `changing`.
    fn count(&self, before: usize, after: usize) {
        match (before > CROWD, after > CROWD) {
            (false, true) => self.crowds.fetch_add(1, Ordering::Relaxed),
            (true, false) => self.crowds.fetch_sub(1, Ordering::Relaxed),
            (false, false) | (true, true) => 0,
        };
    }

    /// The consumers of a group, at this moment.
    pub fn consumers(&self, group: &str) -> Option<Arc<ConsumerGroup<C>>> {
        self.consumers.pin().get(group).cloned()
    }

    /// Whether members of a group share its queues, and so ask where it is before they read one. None: nobody of it is here.
    pub(crate) fn asks_first(&self, group: &str) -> Option<bool> {
        let group = self.consumers(group)?;
        Some(!group.is_active_pull() && !group.is_broadcasting())
    }

    /// The producers of a group, at this moment.
    pub fn producers(&self, group: &str) -> Option<Arc<Vec<Arc<Member<C>>>>> {
        self.producers.pin().get(group).cloned()
    }

    /// The connection of the producer with that client id.
    pub fn producer(&self, client_id: &str) -> Option<C> {
        self.by_id.pin().get(client_id).map(|client| client.connection.clone())
    }

    /// What a group subscribes to in a topic.
    pub fn subscription(&self, group: &str, topic: &str) -> Option<Arc<ClientSubscription>> {
        self.consumers(group)?.subscription(topic)
    }

    /// The groups that subscribe to a topic.
    pub fn groups_of(&self, topic: &str) -> BTreeSet<Arc<str>> {
        let consumers = self.consumers.pin();
        let subscribed = consumers.iter().filter(|(_, group)| group.subscriptions.contains_key(topic));
        subscribed.map(|(name, _)| Arc::clone(name)).collect()
    }

    /// All producers by group.
    pub fn all_producers(&self) -> BTreeMap<String, Arc<Vec<Arc<Member<C>>>>> {
        self.producers.pin().iter().map(|(name, members)| (name.to_string(), Arc::clone(members))).collect()
    }

    /// Shows the consumers of each group.
    pub(crate) fn each_consumers(&self, show: &mut dyn FnMut(&ConsumerGroup<C>)) {
        self.consumers.pin().values().for_each(|group| show(group));
    }

    /// A client says that it consumes in a group.
    pub(crate) fn consume(&self, client: &Client<C>, beat: &Beat<'_>, now: Duration) -> Beaten<C> {
        let name = beat.data.group_name.as_str();
        if let Some(group) = self.consumers(name)
            && group.is_as(client, beat)
            && let Some(member) = group.at(client.connection_id)
        {
            member.hear(now);
            let must_resend = beat.without_sub && !group.has_subscriptions();
            return Beaten { must_resend, is_news: false, is_full: false, notice: None };
        }
        let mut places = self.changing.lock();
        let before = self.consumers(name);
        let place = places.entry(client.connection_id).or_default();
        let is_one_more = !place.consumes.contains(name) && place.consumes.len() >= CONSUMES_MAX;
        if is_one_more || !self.has_room_for(before.as_deref(), beat) {
            return Beaten { must_resend: false, is_news: false, is_full: true, notice: None };
        }
        let group = updated(before.as_deref(), client, beat, now, &self.subscribed);
        let has_come = before.as_ref().is_none_or(|before| before.at(client.connection_id).is_none());
        let has_other_topics = before.as_ref().map_or(group.has_subscriptions(), |before| {
            before.subscriptions.len() != group.subscriptions.len()
                || before.subscriptions.keys().any(|topic| !group.subscriptions.contains_key(topic))
        });
        // A fingerprint that is unlike the known one means other subscriptions; one that comes without them and is not known at all
        // means that we have been restarted, which Apache does not notice.
        let known = before.as_ref().map_or(0, |before| before.fingerprint);
        let must_resend = beat.fingerprint != 0
            && (known != 0 && known != beat.fingerprint
                || beat.without_sub && (known == 0 || !group.has_subscriptions()));
        let is_news = has_come || has_other_topics;
        let tells = is_news && beat.may_notify && !group.is_broadcasting();
        let notice = tells.then(|| Notice { group: Arc::clone(&group.name), members: group.members.clone() });
        place.consumes.insert(Arc::clone(&group.name));
        self.count(before.as_ref().map_or(0, |before| before.members.len()), group.members.len());
        self.consumers.pin().insert(Arc::clone(&group.name), Arc::new(group));
        Beaten { must_resend, is_news, is_full: false, notice }
    }

    /// Whether what a group subscribes to anew finds room.
    fn has_room_for(&self, before: Option<&ConsumerGroup<C>>, beat: &Beat<'_>) -> bool {
        let is_new = |data: &&SubscriptionData| {
            let known = before.and_then(|before| before.subscriptions.get(data.topic.as_str()));
            known.is_none_or(|known| known.version < data.sub_version)
        };
        let new: usize = beat.data.subscription_data_set.iter().filter(is_new).map(bytes_of).sum();
        new == 0 || beat.without_sub || self.subscription_bytes().saturating_add(new) <= SUBSCRIPTION_BYTES_MAX
    }

    /// What the subscriptions of all groups take.
    pub(crate) fn subscription_bytes(&self) -> usize {
        self.subscribed.0.load(Ordering::Relaxed)
    }

    /// A member says what it subscribes to, between heartbeats: what is newer than what is known replaces it.
    pub(crate) fn subscribe(&self, group: &str, connection_id: u64, said: Vec<SubscriptionData>) {
        let _places = self.changing.lock();
        let Some(before) = self.consumers(group).filter(|group| group.at(connection_id).is_some()) else { return };
        let mut subscriptions = before.subscriptions.clone();
        for data in said {
            // Topics come and go with heartbeats only.
            if let Some(known) = subscriptions.get_mut(data.topic.as_str())
                && known.version < data.sub_version
            {
                *known = Arc::new(ClientSubscription::new(data, &self.subscribed));
            }
        }
        let after = ConsumerGroup { subscriptions, ..ConsumerGroup::clone(&before) };
        self.consumers.pin().insert(Arc::clone(&before.name), Arc::new(after));
    }

    /// A client says that it produces in a group.
    pub(crate) fn produce(&self, client: &Client<C>, group: &str, now: Duration) {
        let known = |members: &[Arc<Member<C>>]| {
            let mut same = members.iter().filter(|member| member.client.connection_id == client.connection_id);
            let member = same.next().filter(|member| member.client.client_id == client.client_id);
            member.map(|member| member.hear(now)).is_some()
        };
        // Without a place among the ids it lost one to a namesake that is gone since.
        let has_id = self.by_id.pin().contains_key(&client.client_id);
        if has_id && self.producers(group).is_some_and(|members| known(&members)) {
            return;
        }
        let mut places = self.changing.lock();
        let name: Arc<str> = group.into();
        let before = self.producers(group);
        let members = with(before.as_deref().map_or(&[], Vec::as_slice), client, now);
        let place = places.entry(client.connection_id).or_default();
        // New names in each heartbeat are no use of ours: a producer sends all the same.
        if place.produces.len() >= PRODUCES_MAX && !place.produces.contains(group) {
            return;
        }
        place.produces.insert(Arc::clone(&name));
        self.count(before.map_or(0, |before| before.len()), members.len());
        self.producers.pin().insert(name, Arc::new(members));
        if let Some(before) = place.client_id.replace(Arc::clone(&client.client_id))
            && before != client.client_id
        {
            self.drop_id(&before, client.connection_id);
        }
        self.by_id.pin().insert(Arc::clone(&client.client_id), client.clone());
    }

    /// A client says that it leaves these groups. `may_notify` is the group's setting.
    pub(crate) fn leave(
        &self,
        connection_id: u64,
        producer_group: Option<&str>,
        consumer_group: Option<&str>,
        may_notify: bool,
    ) -> Option<Notice<C>> {
        let mut places = self.changing.lock();
        if let Some(group) = producer_group {
            self.drop_producer(group, connection_id);
        }
        let notice = consumer_group.and_then(|group| self.drop_consumer(group, connection_id));
        if let Some(place) = places.get_mut(&connection_id) {
            producer_group.map(|group| place.produces.remove(group));
            consumer_group.map(|group| place.consumes.remove(group));
            if place.produces.is_empty()
                && let Some(client_id) = place.client_id.take()
            {
                self.drop_id(&client_id, connection_id);
            }
            if place.produces.is_empty() && place.consumes.is_empty() {
                places.remove(&connection_id);
            }
        }
        notice.filter(|_| may_notify)
    }

    /// The groups that the client of a connection consumes in, each with its name there.
    pub(crate) fn memberships(&self, connection_id: u64) -> Vec<(Arc<str>, Arc<str>)> {
        let places = self.changing.lock();
        let names = places.get(&connection_id).into_iter().flat_map(|place| &place.consumes);
        let client_id = |name: &Arc<str>| Some(Arc::clone(&self.consumers(name)?.at(connection_id)?.client.client_id));
        names.filter_map(|name| Some((Arc::clone(name), client_id(name)?))).collect()
    }

    /// A connection is gone.
    pub(crate) fn closed(&self, connection_id: u64) -> Vec<Notice<C>> {
        let mut places = self.changing.lock();
        let Some(place) = places.remove(&connection_id) else { return Vec::new() };
        for group in &place.produces {
            self.drop_producer(group, connection_id);
        }
        if let Some(client_id) = &place.client_id {
            self.drop_id(client_id, connection_id);
        }
        place.consumes.iter().filter_map(|group| self.drop_consumer(group, connection_id)).collect()
    }

    /// The connections whose clients have been silent for too long.
    pub(crate) fn silent(&self, now: Duration, longest: Duration) -> Vec<C> {
        let is_silent = |member: &&Arc<Member<C>>| now.saturating_sub(member.heard_at()) > longest;
        let mut found = BTreeMap::new();
        for (_, group) in &self.consumers.pin() {
            found.extend(
                group.members.iter().filter(is_silent).map(|member| (member.client.connection_id, Arc::clone(member))),
            );
        }
        for (_, members) in &self.producers.pin() {
            found.extend(
                members.iter().filter(is_silent).map(|member| (member.client.connection_id, Arc::clone(member))),
            );
        }
        found.into_values().map(|member| member.client.connection.clone()).collect()
    }

    /// Under `changing`. Returns whom to tell.
    fn drop_consumer(&self, name: &str, connection_id: u64) -> Option<Notice<C>> {
        let group = self.consumers(name)?;
        group.at(connection_id)?;
        let members: Vec<_> =
            group.members.iter().filter(|member| member.client.connection_id != connection_id).cloned().collect();
        self.count(group.members.len(), members.len());
        if members.is_empty() {
            self.consumers.pin().remove(name);
            return None;
        }
        let notice = Notice { group: Arc::clone(&group.name), members: members.clone() };
        let is_broadcasting = group.is_broadcasting();
        let less = ConsumerGroup { members, ..ConsumerGroup::clone(&group) };
        self.consumers.pin().insert(Arc::clone(&group.name), Arc::new(less));
        (!is_broadcasting).then_some(notice)
    }

    /// Under `changing`. A namesake on another connection keeps its place.
    fn drop_id(&self, client_id: &str, connection_id: u64) {
        let ids = self.by_id.pin();
        if ids.get(client_id).is_some_and(|client| client.connection_id == connection_id) {
            ids.remove(client_id);
        }
    }

    /// Under `changing`.
    fn drop_producer(&self, name: &str, connection_id: u64) {
        let Some(members) = self.producers(name) else { return };
        let rest: Vec<_> =
            members.iter().filter(|member| member.client.connection_id != connection_id).cloned().collect();
        self.count(members.len(), rest.len());
        if rest.is_empty() {
            self.producers.pin().remove(name);
        } else if rest.len() < members.len() {
            self.producers.pin().insert(name.into(), Arc::new(rest));
        }
    }
}

/// The group after a heartbeat.
fn updated<C: Clone>(
    before: Option<&ConsumerGroup<C>>,
    client: &Client<C>,
    beat: &Beat<'_>,
    now: Duration,
    subscribed: &SubscriptionBytes,
) -> ConsumerGroup<C> {
    let data = beat.data;
    let known = before.map(|before| &before.subscriptions);
    let subscriptions = if beat.without_sub {
        known.cloned().unwrap_or_default()
    } else {
        let compile = |data: &SubscriptionData| match known.and_then(|known| known.get(data.topic.as_str())) {
            // Of two members that differ, the one that subscribed last is right: the other has not been restarted yet.
            Some(known) if known.version >= data.sub_version => Arc::clone(known),
            Some(_) | None => Arc::new(ClientSubscription::new(data.clone(), subscribed)),
        };
        data.subscription_data_set.iter().map(|data| (data.topic.as_str().into(), compile(data))).collect()
    };
    ConsumerGroup {
        name: before.map_or_else(|| data.group_name.as_str().into(), |before| Arc::clone(&before.name)),
        consume_type: data.consume_type,
        message_model: data.message_model,
        consume_from_where: data.consume_from_where,
        members: with(before.map_or(&[], |before| &before.members), client, now),
        subscriptions,
        fingerprint: beat.fingerprint,
    }
}

/// The members, this one among them.
fn with<C: Clone>(members: &[Arc<Member<C>>], client: &Client<C>, now: Duration) -> Vec<Arc<Member<C>>> {
    let others = members.iter().filter(|member| member.client.connection_id != client.connection_id);
    let mut members: Vec<_> = others.cloned().collect();
    members.push(Arc::new(Member { client: client.clone(), heard_at_ms: AtomicU64::new(ms(now)) }));
    members
}

/// What is kept of a client must not be as long as it likes.
pub(crate) fn check_client_id(client_id: &str) -> Result<(), Refusal> {
    if client_id.len() > CLIENT_ID_MAX {
        let remark = format!("the client id has {} bytes, the limit is {CLIENT_ID_MAX}", client_id.len());
        return Err(Refusal::new(ResponseCode::InvalidParameter, remark));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
