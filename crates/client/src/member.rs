//! One member of a cluster: its id, its connections, the routes it knows, and its heartbeat.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use env::{Clock, Random};
use net::{Call, CallError, ClientOptions, Connection, Inbound, Outgoing, RefuseInbound, Request, Response};
use parking_lot::Mutex;
use protocol::body::{ConsumerData, Heartbeat, ProducerData, TopicRoute};
use protocol::code::{ResponseCode, request};
use protocol::fastjson::{self, Dialect};
use protocol::header::EncodeFields;
use protocol::request::{AskTogether, GetRouteInfo, NotifyConsumerIdsChanged, OfferTogether};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::error::ClientError;
use crate::offers::{Offer, Offers};
use crate::route::Route;
use crate::sign::{Credentials, Signed};
use crate::unique_id::UniqueIds;

/// How often a route borrowed from the model of new topics is asked for again: the topic has its own after its first message.
const INHERITED_FOR: Duration = Duration::from_secs(1);

/// How soon after an answer a route may be doubted again: what was just said is not better for being asked twice.
const DOUBT_AFTER: Duration = Duration::from_secs(1);

/// How long an old route is believed on while no name server answers, or one is being asked.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// How a client finds its cluster and behaves in it.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// `host:port` of each name server.
    pub name_servers: Vec<String>,
    /// The address in the client's id; found out when `None`.
    pub ip: Option<IpAddr>,
    /// The rest of the id; process and a random number when `None`. Two clients of a group must not share an id.
    pub instance: Option<String>,
    /// For each request.
    pub timeout: Duration,
    /// With them every request is signed.
    pub credentials: Option<Credentials>,
    /// Between two heartbeats. Brokers forget a client after 120 s.
    pub heartbeat_every: Duration,
    /// How long a route is believed.
    pub route_for: Duration,
    /// Connections: with [`ClientOptions::tls`] all of them speak TLS, to name servers and brokers.
    pub net: ClientOptions,
    /// The time.
    pub clock: Clock,
    /// The dice.
    pub random: Random,
}

impl ClientConfig {
    /// With the defaults of RocketMQ's clients. Several name servers are separated by `;`.
    pub fn new(name_servers: &str) -> ClientConfig {
        let name_servers = name_servers.split(';').map(str::trim).filter(|one| !one.is_empty()).map(str::to_owned);
        ClientConfig {
            name_servers: name_servers.collect(),
            ip: None,
            instance: None,
            timeout: Duration::from_secs(3),
            credentials: None,
            heartbeat_every: Duration::from_secs(30),
            route_for: Duration::from_secs(30),
            net: ClientOptions::default(),
            clock: Clock::real(),
            random: Random::from_entropy(),
        }
    }
}

pub(crate) struct Member {
    /// For what goes on beside a caller.
    this: Weak<Member>,
    net: net::Client,
    pub(crate) id: String,
    pub(crate) ids: UniqueIds,
    pub(crate) config: ClientConfig,
    told: Arc<Told>,
    /// Guards the table of routes; held for a look.
    routes: Mutex<HashMap<String, Known>>,
    /// By topic: held while its route is asked for, so that a thousand tasks ask once. Guards the table of turns for a look.
    asking: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    // Relaxed: which name server is asked first is a matter of taste.
    name_server: AtomicUsize,
    /// Which brokers take sends together.
    pub(crate) offers: Offers,
    /// Guards what the heartbeat says.
    groups: Mutex<Groups>,
    /// Wakes the heartbeat.
    beat: Arc<Notify>,
    stopping: watch::Sender<bool>,
}

/// A route. Times are those of [`Clock::elapsed`].
struct Known {
    route: Arc<Route>,
    /// When a name server said it.
    learned: Duration,
    /// From then on it is asked for again, and used meanwhile.
    believed_until: Duration,
    /// Proved wrong: not used before it was asked for again.
    is_doubted: bool,
    /// Before then it cannot be doubted.
    doubts_from: Duration,
}

#[derive(Default)]
struct Groups {
    producers: BTreeSet<String>,
    consumers: HashMap<String, ConsumerData>,
    /// Brokers are asked whether they take sends together.
    ask_together: bool,
}

impl Member {
    /// Starts the member and its heartbeat.
    pub(crate) fn start(config: ClientConfig) -> Arc<Member> {
        let told = Arc::new(Told::default());
        let ip = config.ip.unwrap_or_else(|| own_address(&config.name_servers));
        let instance = config.instance.clone();
        let instance =
            instance.unwrap_or_else(|| format!("{}#{:x}", std::process::id(), config.random.next_u64() >> 16));
        let (wake, every) = (Arc::new(Notify::new()), config.heartbeat_every);
        let member = Arc::new_cyclic(|this| Member {
            this: Weak::clone(this),
            net: net::Client::with_inbound(config.net.clone(), Arc::clone(&told) as Arc<dyn Inbound>),
            id: format!("{ip}@{instance}"),
            ids: UniqueIds::new(ip, config.clock.clone(), &config.random),
            told,
            routes: Mutex::default(),
            asking: Mutex::default(),
            name_server: AtomicUsize::new(config.random.below(64) as usize),
            offers: Offers::default(),
            groups: Mutex::default(),
            beat: Arc::clone(&wake),
            stopping: watch::channel(false).0,
            config,
        });
        let stopping = member.stopping.subscribe();
        tokio::spawn(beat(Arc::downgrade(&member), wake, every, stopping));
        member
    }

    /// Ends the heartbeat and takes leave of the brokers.
    pub(crate) async fn stop(self: &Arc<Self>) {
        self.stopping.send_replace(true);
        let groups: Vec<String> = self.groups.lock().producers.iter().cloned().collect();
        for group in groups {
            self.leave(Some(&group), None).await;
        }
    }

    /// Sends a request, signed if there are credentials, and waits for the response, whatever it says.
    pub(crate) async fn exchange(
        &self,
        address: &str,
        code: i32,
        fields: &(dyn EncodeFields + Sync),
        body: Bytes,
        timeout: Duration,
    ) -> Result<Response, CallError> {
        self.begin(address, code, fields, &body, timeout).await?.response().await
    }

    /// Puts a request, signed if there are credentials, on its way behind all that went to this address before.
    pub(crate) async fn begin<'a>(
        &self,
        address: &'a str,
        code: i32,
        fields: &(dyn EncodeFields + Sync),
        body: &Bytes,
        timeout: Duration,
    ) -> Result<Call<'a>, CallError> {
        match &self.config.credentials {
            None => self.net.begin(address, code, fields, body, timeout).await,
            Some(credentials) => {
                let signed = Signed::new(fields, credentials, body);
                self.net.begin(address, code, &signed, body, timeout).await
            }
        }
    }

    /// The same, on one connection only: see [`net::Client::begin_on`].
    pub(crate) fn begin_on<'a>(
        &self,
        address: &'a str,
        connection: u64,
        code: i32,
        fields: &(dyn EncodeFields + Sync),
        body: &Bytes,
        timeout: Duration,
    ) -> Option<Result<Call<'a>, CallError>> {
        match &self.config.credentials {
            None => self.net.begin_on(address, connection, code, fields, body, timeout),
            Some(credentials) => {
                let signed = Signed::new(fields, credentials, body);
                self.net.begin_on(address, connection, code, &signed, body, timeout)
            }
        }
    }

    /// Sends a request, signed if there are credentials, that nobody answers.
    pub(crate) async fn oneway(
        &self,
        address: &str,
        code: i32,
        fields: &(dyn EncodeFields + Sync),
        body: Bytes,
    ) -> Result<(), CallError> {
        match &self.config.credentials {
            None => self.net.oneway(address, code, fields, body).await,
            Some(credentials) => {
                let signed = Signed::new(fields, credentials, &body);
                self.net.oneway(address, code, &signed, body).await
            }
        }
    }

    /// A topic's route. An old one is asked for again beside its callers; for one that proved wrong, or that nobody knows, they wait.
    /// Name servers that fail leave the old one standing.
    pub(crate) async fn route(&self, topic: &str) -> Result<Arc<Route>, ClientError> {
        let now = self.config.clock.elapsed();
        if let Some(known) = self.routes.lock().get_mut(topic)
            && !known.is_doubted
        {
            if now >= known.believed_until {
                known.believed_until = now + ASK_AGAIN_AFTER;
                let (member, topic) = (Weak::clone(&self.this), topic.to_owned());
                tokio::spawn(async move {
                    if let Some(member) = member.upgrade()
                        && let Err(error) = member.ask_in_turn(&topic, true).await
                    {
                        tracing::debug!(topic, %error, "the route could not be asked for again");
                    }
                });
            }
            return Ok(Arc::clone(&known.route));
        }
        self.ask_in_turn(topic, false).await
    }

    /// Asks for a route, one caller after the other. `anew`: what was known before does not do.
    async fn ask_in_turn(&self, topic: &str, anew: bool) -> Result<Arc<Route>, ClientError> {
        let begun = self.config.clock.elapsed();
        let turns = Arc::clone(self.asking.lock().entry(topic.to_owned()).or_default());
        let turn = turns.lock().await;
        let found = match self.routes.lock().get(topic) {
            Some(known) if !known.is_doubted && (!anew || known.learned > begun) => Some(Arc::clone(&known.route)),
            Some(_) | None => None,
        };
        let route = match found {
            Some(route) => Ok(route),
            None => self.ask(topic).await,
        };
        drop(turn);
        let mut asking = self.asking.lock();
        // The table's and ours: nobody waits.
        if Arc::strong_count(&turns) == 2 {
            asking.remove(topic);
        }
        route
    }

    async fn ask(&self, topic: &str) -> Result<Arc<Route>, ClientError> {
        let error = match self.ask_route(topic).await {
            Ok(found) => return Ok(self.learn(topic, Route::new(topic, found), self.config.route_for)),
            Err(error) => error,
        };
        let mut routes = self.routes.lock();
        let Some(known) = routes.get_mut(topic) else { return Err(error) };
        if matches!(error, ClientError::NoRoute { .. }) {
            // It stays in the table for its addresses: the brokers still know us.
            known.is_doubted = true;
            return Err(error);
        }
        let until = self.config.clock.elapsed() + ASK_AGAIN_AFTER;
        (known.is_doubted, known.believed_until, known.doubts_from) = (false, until, until);
        Ok(Arc::clone(&known.route))
    }

    /// As [`Member::route`]; a topic that does not exist gets the route of the model for new ones.
    pub(crate) async fn route_to_write(&self, topic: &str, queues_max: i32) -> Result<Arc<Route>, ClientError> {
        match self.route(topic).await {
            Err(ClientError::NoRoute { topic: missing }) => {
                let model = self.ask_route(protocol::names::AUTO_CREATE_TOPIC).await;
                let found = model.map_err(|error| match error {
                    ClientError::NoRoute { .. } => ClientError::NoRoute { topic: missing },
                    other @ (ClientError::NoAddress { .. }
                    | ClientError::NoLeader { .. }
                    | ClientError::Call(_)
                    | ClientError::Refused { .. }
                    | ClientError::Malformed { .. }
                    | ClientError::Invalid(_)
                    | ClientError::GivenUp
                    | ClientError::Exhausted { .. }) => other,
                })?;
                let route = Route::new(protocol::names::AUTO_CREATE_TOPIC, found).inherited(topic, queues_max);
                Ok(self.learn(topic, route, INHERITED_FOR))
            }
            other => other,
        }
    }

    /// Takes note of an error that says the route is wrong: the next caller waits until it was asked for again. Other errors, a
    /// broker that is busy for example, say nothing of the route, and name servers must not pay for them.
    pub(crate) fn doubt_route(&self, topic: &str, error: &ClientError) {
        let now = self.config.clock.elapsed();
        if proves_route_wrong(error)
            && let Some(known) = self.routes.lock().get_mut(topic)
            && now >= known.doubts_from
        {
            known.is_doubted = true;
        }
    }

    /// Takes note of a broker that does not lead a queue which the route says that it leads: the next caller waits until the route was
    /// asked for again. Returns at once if it is older than `every`, and else when it is: many callers make few questions.
    pub(crate) async fn doubt_leaders(&self, topic: &str, every: Duration) {
        let learned = self.routes.lock().get(topic).map(|known| known.learned);
        let Some(learned) = learned else { return };
        let age = self.config.clock.elapsed().saturating_sub(learned);
        if age < every {
            tokio::time::sleep(every - age).await;
        }
        if let Some(known) = self.routes.lock().get_mut(topic)
            && known.learned == learned
        {
            known.is_doubted = true;
        }
    }

    fn learn(&self, topic: &str, route: Route, believed_for: Duration) -> Arc<Route> {
        let route = Arc::new(route);
        let learned = self.config.clock.elapsed();
        let known = Known {
            route: Arc::clone(&route),
            learned,
            believed_until: learned + believed_for,
            is_doubted: false,
            doubts_from: learned + DOUBT_AFTER,
        };
        let before = self.routes.lock().insert(topic.to_owned(), known);
        // A broker that is new to us should know us before we ask it for anything.
        if before.is_none_or(|before| before.route.addresses != route.addresses) {
            self.beat.notify_one();
        }
        route
    }

    pub(crate) async fn ask_route(&self, topic: &str) -> Result<TopicRoute, ClientError> {
        let servers = &self.config.name_servers;
        let first = self.name_server.load(Ordering::Relaxed);
        let mut last = ClientError::Invalid("no name server is configured".to_owned());
        for attempt in 0..servers.len() {
            let address = &servers[(first + attempt) % servers.len()];
            let fields =
                GetRouteInfo { topic, accept_standard_json_only: Some(true), zone_mode: None, zone_name: None };
            let code = request::GET_ROUTEINFO_BY_TOPIC;
            match self.call(address, code, &fields, Bytes::new(), self.config.timeout).await {
                Ok(response) => {
                    self.name_server.store(first + attempt, Ordering::Relaxed);
                    return fastjson::from_slice(&response.body)
                        .map_err(|error| ClientError::malformed("the route of a topic", error));
                }
                Err(error) if error.code() == Some(ResponseCode::TopicNotExist as i32) => {
                    return Err(ClientError::NoRoute { topic: topic.to_owned() });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Every broker that the known routes name.
    fn addresses(&self) -> BTreeSet<String> {
        let routes = self.routes.lock();
        let brokers = routes.values().flat_map(|known| known.route.addresses.values());
        brokers.flat_map(|broker| broker.values().cloned()).collect()
    }

    /// Enters a producer into the heartbeat. `sends_together`: brokers are asked whether they take sends together.
    pub(crate) fn join_producer(&self, group: &str, sends_together: bool) {
        let mut groups = self.groups.lock();
        let is_first_to_ask = sends_together && !groups.ask_together;
        groups.ask_together |= sends_together;
        let is_new = groups.producers.insert(group.to_owned());
        drop(groups);
        if is_new || is_first_to_ask {
            self.beat.notify_one();
        }
    }

    /// Enters a consumer into the heartbeat. Returns what wakes it when its group changes. A member is in a group once: brokers
    /// know it by its id, and would count two of its consumers as one.
    pub(crate) async fn join_consumer(self: &Arc<Self>, data: ConsumerData) -> Result<Arc<Notify>, ClientError> {
        let wake = match self.groups.lock().consumers.entry(data.group_name.clone()) {
            Entry::Occupied(taken) => {
                let text = format!("this client has a consumer of group {} already", taken.key());
                return Err(ClientError::Invalid(text));
            }
            Entry::Vacant(free) => {
                let wake = self.told.register(free.key());
                free.insert(data);
                wake
            }
        };
        // Now, not soon: the broker must know the group before the consumer asks who else is in it.
        self.send_heartbeat().await;
        Ok(wake)
    }

    pub(crate) async fn leave(self: &Arc<Self>, producer: Option<&str>, consumer: Option<&str>) {
        {
            let mut groups = self.groups.lock();
            if let Some(group) = producer {
                groups.producers.remove(group);
            }
            if let Some(group) = consumer {
                groups.consumers.remove(group);
            }
        }
        if let Some(group) = consumer {
            self.told.forget(group);
        }
        let (producer, consumer) = (producer.map(str::to_owned), consumer.map(str::to_owned));
        self.at_all_brokers(|member, address| {
            let (producer, consumer) = (producer.clone(), consumer.clone());
            async move {
                if let Err(error) = member.unregister(&address, producer.as_deref(), consumer.as_deref()).await {
                    // The broker will notice by itself, two minutes later.
                    tracing::debug!(address, %error, "could not take leave of a broker");
                }
            }
        })
        .await;
    }

    /// Does something at every broker, side by side: dead ones, each of which takes until its time is out, must not keep live ones
    /// from hearing of us before they forget us.
    async fn at_all_brokers<F>(self: &Arc<Self>, what: impl Fn(Arc<Member>, String) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut all = JoinSet::new();
        for address in self.addresses() {
            all.spawn(what(Arc::clone(self), address));
        }
        all.join_all().await;
    }

    async fn send_heartbeat(self: &Arc<Self>) {
        let (body, ask) = {
            let groups = self.groups.lock();
            if groups.producers.is_empty() && groups.consumers.is_empty() {
                return;
            }
            let producers = groups.producers.iter().map(|group| ProducerData { group_name: group.clone() });
            let heartbeat = Heartbeat {
                client_id: self.id.clone(),
                consumer_data_set: groups.consumers.values().cloned().collect(),
                producer_data_set: producers.collect(),
                ..Heartbeat::default()
            };
            let ask = groups.ask_together.then_some(AskTogether { send_together: true });
            (Bytes::from(fastjson::to_vec(&heartbeat, Dialect::FastJson)), ask)
        };
        self.offers.keep_only(&self.addresses());
        self.at_all_brokers(|member, address| {
            let (body, ask) = (body.clone(), ask.clone());
            async move {
                let beaten = member.send_heartbeat_to(&address, ask, body).await;
                member.offers.note(&address, beaten.as_ref().ok().copied().flatten());
                if let Err(error) = beaten {
                    tracing::warn!(address, %error, "heartbeat failed");
                }
            }
        })
        .await;
    }

    /// Says to one broker that this member lives. Returns what it says of sends that travel together, if it is asked.
    async fn send_heartbeat_to(
        &self,
        address: &str,
        ask: Option<AskTogether>,
        body: Bytes,
    ) -> Result<Option<Offer>, ClientError> {
        let call = self.begin(address, request::HEART_BEAT, &ask, &body, self.config.timeout).await?;
        let connection = call.connection();
        let response = call.response().await?;
        if response.code != ResponseCode::Success as i32 {
            return Err(ClientError::refused(address, response));
        }
        // RocketMQ's brokers do not look at the question, and say nothing.
        let offer = OfferTogether::decode(&response.fields.as_fields()).ok().filter(|_| ask.is_some());
        let parts_max = offer.and_then(|offer| usize::try_from(offer.send_together_parts_max).ok());
        Ok(parts_max.filter(|max| *max > 0).map(|parts_max| Offer { connection, parts_max }))
    }

    /// Forgets what a broker said of sends that travel together, and lets it be asked again: its connection is another one now.
    pub(crate) fn doubt_offer(&self, address: &str) {
        self.offers.note(address, None);
        self.beat.notify_one();
    }
}

/// The heartbeat: at its interval, and at once when there is something new to say. Ends with the member, which it does not keep
/// while it waits: with the last of its users the member closes its connections.
async fn beat(member: Weak<Member>, wake: Arc<Notify>, every: Duration, mut stopping: watch::Receiver<bool>) {
    loop {
        tokio::select! {
            // Also when the member, and with it the sender, is gone.
            _ = stopping.changed() => return,
            () = wake.notified() => {}
            () = tokio::time::sleep(every) => {}
        }
        let Some(alive) = member.upgrade() else { return };
        alive.send_heartbeat().await;
    }
}

/// What brokers tell us unasked.
#[derive(Default)]
struct Told {
    /// Whom to wake when a group changes.
    groups: Mutex<HashMap<String, Arc<Notify>>>,
}

impl Told {
    fn register(&self, group: &str) -> Arc<Notify> {
        Arc::clone(self.groups.lock().entry(group.to_owned()).or_default())
    }

    fn forget(&self, group: &str) {
        self.groups.lock().remove(group);
    }
}

impl Inbound for Told {
    fn request(&self, connection: &Connection<()>, asked: &Request<'_>, out: &mut Outgoing) {
        if asked.header.code != request::NOTIFY_CONSUMER_IDS_CHANGED {
            return RefuseInbound.request(connection, asked, out);
        }
        if let Ok(changed) = NotifyConsumerIdsChanged::decode(&asked.header.fields)
            && let Some(wake) = self.groups.lock().get(changed.consumer_group)
        {
            wake.notify_one();
        }
    }
}

/// The address by which we reach the first name server. (Connecting a datagram socket sends nothing.)
fn own_address(name_servers: &[String]) -> IpAddr {
    let find = || -> Option<IpAddr> {
        let to: SocketAddr = name_servers.first()?.parse().ok()?;
        let any: IpAddr =
            if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { std::net::Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect(to).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    find().unwrap_or(Ipv4Addr::LOCALHOST.into())
}

/// Whether an error says that the broker is not where the route says, or has not what it says.
fn proves_route_wrong(error: &ClientError) -> bool {
    match error {
        ClientError::Call(call) => match call {
            CallError::Resolve { .. }
            | CallError::Connect { .. }
            | CallError::BackingOff { .. }
            | CallError::Closed { .. } => true,
            CallError::Timeout { .. } | CallError::Busy { .. } | CallError::Tls(_) => false,
        },
        ClientError::NoAddress { .. } | ClientError::NoLeader { .. } => true,
        ClientError::Refused { code, .. } => {
            [ResponseCode::TopicNotExist, ResponseCode::NotLeaderForQueue].iter().any(|known| *known as i32 == *code)
        }
        ClientError::NoRoute { .. }
        | ClientError::Malformed { .. }
        | ClientError::Invalid(_)
        | ClientError::GivenUp
        | ClientError::Exhausted { .. } => false,
    }
}

/// Whether another try elsewhere makes sense. After a time-out, a lost connection or some of the refusals the message may be stored
/// all the same: the try is worth a message that comes twice, as it is to Java's producer.
pub(crate) fn is_worth_another_try(error: &ClientError) -> bool {
    match error {
        ClientError::Call(call) => match call {
            CallError::Resolve { .. }
            | CallError::Connect { .. }
            | CallError::BackingOff { .. }
            | CallError::Timeout { .. }
            | CallError::Closed { .. }
            | CallError::Busy { .. } => true,
            CallError::Tls(_) => false,
        },
        ClientError::NoAddress { .. } | ClientError::NoLeader { .. } => true,
        // As Java's producer: what another broker may do better.
        ClientError::Refused { code, .. } => [
            ResponseCode::TopicNotExist,
            ResponseCode::ServiceNotAvailable,
            ResponseCode::SystemError,
            ResponseCode::SystemBusy,
            ResponseCode::NoPermission,
            ResponseCode::NoBuyerId,
            ResponseCode::NotInCurrentUnit,
            ResponseCode::GoAway,
            // Java's producer gives up here; but nothing was stored, and another queue may be had.
            ResponseCode::NotLeaderForQueue,
        ]
        .iter()
        .any(|known| *known as i32 == *code),
        ClientError::NoRoute { .. }
        | ClientError::Malformed { .. }
        | ClientError::Invalid(_)
        | ClientError::GivenUp
        | ClientError::Exhausted { .. } => false,
    }
}
