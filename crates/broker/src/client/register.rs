//! Tells the name servers which topics are here: at the start, again and again, at once when a topic changes; and says good-bye.
//!
//! One task a name server, so that a slow or dead one delays nobody. A task that fails tries again after a pause that doubles; what it
//! owes meanwhile is everything. A name server takes a broker out when its connection ends, and one that starts again knows nobody: so
//! the task notices the end of the connection, and tries every second until it has another one. Names are resolved again with every
//! new connection, which is `net::Client`'s business.
//!
//! Before it tells everything, a task asks who has the broker's place in the routes: a second broker of the same cluster, name and id
//! takes it, with any name server, and nobody tells the first one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use config::BrokerSettings;
use net::CallError;
use protocol::body::{BrokerData, DataVersion, KvTable, RegisterBrokerBody, TopicConfig, TopicConfigTable, TopicRoute};
use protocol::code::{ResponseCode, request};
use protocol::compression::CompressionError;
use protocol::fastjson::{self, JsonError};
use protocol::request::{FieldError, GetRouteInfo, RegisterBroker, RegisterBrokerReply, UnregisterBroker};
use protocol::sys_flag::perm;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::blocking::beside;
use crate::broker::Broker;
use crate::critical::run_critical;
use crate::state::registry::{Identity, Owed, PAUSE_UNCONNECTED_MAX, Server};
use crate::state::topics::Topics;
use crate::tasks::Stop;

/// The first pause after a failure.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
/// How often we register even when nothing changes: the setting, kept within these bounds as Apache keeps it.
const PERIOD_MIN_MS: u64 = 10_000;
const PERIOD_MAX_MS: u64 = 60_000;
/// How often a slave without its master asks where one is.
const PERIOD_LOST: Duration = Duration::from_secs(3);
/// A larger body is compressed whatever the setting says: a frame holds 16 MiB.
const PLAIN_BYTES_MAX: usize = 4 << 20;
/// How long a name server has to let us go.
const GOOD_BYE: Duration = Duration::from_secs(1);

/// What a registration came to.
#[derive(Debug, Default)]
struct Registered {
    /// The order topics that the name server knows, if it says.
    order_topics: Option<KvTable>,
    /// What it came by; none if there was nothing to tell.
    connection: Option<u64>,
    /// What the name server did not take, if it says.
    remark: Option<String>,
}

/// Why a registration did not succeed.
#[derive(Debug, thiserror::Error)]
enum RegisterError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("refused with code {code}: {remark}")]
    Refused { code: i32, remark: String },
    #[error("the body cannot be compressed: {0}")]
    Body(#[from] CompressionError),
    #[error("the order topics in its answer are not readable: {0}")]
    Answer(#[from] JsonError),
    #[error("where the master is cannot be read in its answer: {0}")]
    Fields(#[from] FieldError),
}

impl RegisterError {
    /// How long to wait before the next attempt, if the last pause would be `pause` long without a bound but `period`.
    fn pause(&self, pause: Duration, period: Duration) -> Duration {
        match self {
            RegisterError::Call(CallError::BackingOff { retry_in, .. }) => *retry_in,
            RegisterError::Call(CallError::Resolve { .. } | CallError::Connect { .. } | CallError::Closed { .. }) => {
                pause.min(PAUSE_UNCONNECTED_MAX)
            }
            RegisterError::Call(CallError::Tls(_) | CallError::Timeout { .. } | CallError::Busy { .. })
            | RegisterError::Refused { .. }
            | RegisterError::Body(_)
            | RegisterError::Answer(_)
            | RegisterError::Fields(_) => pause.min(period),
        }
    }
}

/// Keeps the broker registered, by a task a name server. At the end it tells every name server that the broker goes; one that does not answer
/// will notice by itself.
pub(crate) async fn keep_registered(broker: Arc<Broker>, stop: Stop) {
    let mut servers = JoinSet::new();
    for server in &broker.registry.servers {
        servers.spawn(run_critical("registration", keep(Arc::clone(&broker), Arc::clone(server), stop.clone())));
    }
    while servers.join_next().await.is_some() {}
    unregister(&broker).await;
}

async fn unregister(broker: &Broker) {
    let settings = broker.settings.load_full();
    let address = told_address(&settings.broker_ip1, broker.advertised);
    let broker_id = broker.standing.broker_id;
    let mut leaving = JoinSet::new();
    for server in &broker.registry.servers {
        let (server, settings, address, client) =
            (Arc::clone(server), Arc::clone(&settings), address.clone(), broker.registry.client.clone());
        leaving.spawn(async move {
            let fields = UnregisterBroker {
                broker_name: &settings.broker_name,
                broker_addr: &address,
                cluster_name: &settings.broker_cluster_name,
                broker_id,
            };
            let left = client.call(&server.address, request::UNREGISTER_BROKER, &fields, Bytes::new(), GOOD_BYE).await;
            if let Err(error) = left {
                tracing::warn!(name_server = server.address, %error, "not unregistered");
            }
        });
    }
    while leaving.join_next().await.is_some() {}
}

async fn keep(broker: Arc<Broker>, server: Arc<Server>, mut stop: Stop) {
    let mut pause = PAUSE_FIRST;
    let mut is_known = false;
    let mut has_complained = false;
    let mut seen = Seen::default();
    // The one that the last registration came by, for as long as it says that we are known.
    let mut connection = None;
    let mut following = broker.following.connection();
    // When everything is told again.
    let mut full_at = Duration::ZERO;
    while !stop.is_asked() {
        let owed = std::mem::replace(&mut *server.owed.lock(), Owed::Topics(BTreeSet::new()));
        let owed = if is_known { owed } else { Owed::Everything };
        let settings = broker.settings.load();
        let period = Duration::from_millis(settings.register_name_server_period.clamp(PERIOD_MIN_MS, PERIOD_MAX_MS));
        drop(settings);
        if owed == Owed::Everything {
            full_at = broker.clock.elapsed().saturating_add(period);
        }
        let registered = tokio::select! {
            biased;
            () = stop.asked() => return,
            registered = look_and_register(&broker, &server.address, owed, &mut seen, is_known) => registered,
        };
        match registered {
            Ok(Registered { order_topics, connection: came_by, remark }) => {
                let since = broker.clock.elapsed();
                // Nothing was told if none of the topics that had changed is there any more.
                connection = came_by.or(connection);
                if !is_known {
                    broker.registry.has_registered.store(true, Ordering::Relaxed);
                    tracing::info!(name_server = server.address, "registered");
                }
                (is_known, has_complained, pause) = (true, false, pause.min(PAUSE_UNCONNECTED_MAX));
                if came_by.is_some() {
                    seen.remark(&server.address, remark);
                }
                if let Some(order_topics) = order_topics {
                    beside(&broker, move |broker| mark_order_topics(&broker.topics, &order_topics)).await;
                }
                let ended = async {
                    match connection {
                        Some(connection) => broker.registry.client.ended(&server.address, connection).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    () = stop.asked() => return,
                    () = ended => {
                        tracing::warn!(name_server = server.address, "the connection ended, registering again");
                        is_known = false;
                    }
                    () = tokio::time::sleep(full_at.saturating_sub(since)) => *server.owed.lock() = Owed::Everything,
                    () = server.changed.notified() => {}
                    () = master_is_lost(&broker, &mut following) => owe_a_question(&broker, &server),
                }
                if is_known {
                    continue;
                }
                connection = None;
                // One that ends each connection at once is asked less and less often.
                if broker.clock.elapsed().saturating_sub(since) >= PAUSE_UNCONNECTED_MAX {
                    pause = PAUSE_FIRST;
                }
            }
            Err(error) => {
                if !has_complained {
                    tracing::warn!(name_server = server.address, %error, "not registered, trying again");
                }
                (is_known, has_complained, connection) = (false, true, None);
                let is_lost = broker.standing.is_slave() && broker.following.looks_for_master();
                pause = error.pause(pause, if is_lost { PERIOD_LOST } else { period });
            }
        }
        tokio::select! {
            biased;
            () = stop.asked() => return,
            () = tokio::time::sleep(pause) => {}
        }
        pause *= 2;
    }
}

/// Ready when a slave should ask where its master is: at once when the log does not come any more, and then again and again.
async fn master_is_lost(broker: &Broker, following: &mut watch::Receiver<bool>) {
    let looks = || broker.standing.is_slave() && broker.following.looks_for_master();
    following.mark_unchanged();
    // Ends when the master is gone, or is still not there.
    loop {
        let was_lost = looks();
        let patience = if was_lost { PERIOD_LOST } else { Duration::MAX };
        match tokio::time::timeout(patience, following.changed()).await {
            Ok(Ok(())) if looks() && !was_lost => return,
            Ok(Ok(())) => {}
            // Nobody will say anything any more.
            Ok(Err(_)) => return std::future::pending().await,
            Err(_) => return,
        }
    }
}

/// The answer to a registration says where the master is, also to one of a single topic.
fn owe_a_question(broker: &Broker, server: &Server) {
    let own_topic = broker.identity().broker_name;
    let is_there = broker.topics.get(&own_topic).is_some();
    let mut owed = server.owed.lock();
    if is_there { owed.add(&own_topic) } else { *owed = Owed::Everything }
}

/// What a name server said last, so that each thing is logged once.
#[derive(Debug, Default)]
struct Seen {
    /// The address that has our place in the routes.
    other: Option<String>,
    remark: Option<String>,
}

impl Seen {
    /// Another broker has our place, or none has. `is_known`: we have been registered already.
    fn other(&mut self, name_server: &str, other: Option<String>, is_known: bool) {
        if self.other == other {
            return;
        }
        match &other {
            Some(other) if is_known => tracing::warn!(
                name_server,
                other,
                "another broker with the same cluster, name and id has taken this one's place in the routes: clients are sent there; \
                 stop one of them, or give it another brokerName"
            ),
            Some(other) => tracing::warn!(
                name_server,
                other,
                "another broker with the same cluster, name and id is in the routes: this one takes its place"
            ),
            None => tracing::info!(name_server, "no other broker has this one's place in the routes any more"),
        }
        self.other = other;
    }

    /// A name server of ours says what it left out.
    fn remark(&mut self, name_server: &str, remark: Option<String>) {
        if let Some(remark) = remark.as_ref().filter(|_| self.remark != remark) {
            tracing::warn!(name_server, remark, "registered, but not all of it");
        }
        self.remark = remark;
    }
}

/// Registers once; before everything is told, looks who is in the routes.
async fn look_and_register(
    broker: &Arc<Broker>,
    address: &str,
    owed: Owed,
    seen: &mut Seen,
    is_known: bool,
) -> Result<Registered, RegisterError> {
    if owed == Owed::Everything
        && let Some(other) = other_in_routes(broker, address).await?
    {
        seen.other(address, other, is_known);
    }
    register(broker, address, owed).await
}

/// Which other address a name server tells for our name and id, if one; nothing if it does not say.
async fn other_in_routes(broker: &Broker, address: &str) -> Result<Option<Option<String>>, CallError> {
    let settings = broker.settings.load_full();
    let timeout = Duration::from_millis(settings.register_broker_timeout_mills);
    // Each broker has a topic of its own name. A name server of any version knows this request, and the answer is short.
    let fields = GetRouteInfo {
        topic: &settings.broker_name,
        accept_standard_json_only: Some(true),
        zone_mode: None,
        zone_name: None,
    };
    let client = &broker.registry.client;
    let answer = client.call(address, request::GET_ROUTEINFO_BY_TOPIC, &fields, Bytes::new(), timeout).await?;
    if answer.code == ResponseCode::TopicNotExist as i32 {
        return Ok(Some(None));
    }
    let route = (answer.code == ResponseCode::Success as i32).then(|| fastjson::from_slice::<TopicRoute>(&answer.body));
    let Some(Ok(route)) = route else { return Ok(None) };
    let own = told_address(&settings.broker_ip1, broker.advertised);
    Ok(Some(other_of(&route, &broker.identity(), &own)))
}

/// The address of our name and id in a route, if it is not ours.
fn other_of(route: &TopicRoute, identity: &Identity, own: &str) -> Option<String> {
    let is_ours =
        |known: &&BrokerData| known.broker_name == identity.broker_name && known.cluster == identity.cluster_name;
    let known = route.broker_datas.iter().find(is_ours)?;
    known.broker_addrs.get(&identity.broker_id).filter(|address| *address != own).cloned()
}

/// What is told, in the pieces in which it is.
fn pieces(settings: &BrokerSettings, topics: &Topics, owed: Owed) -> Vec<Vec<TopicConfig>> {
    match owed {
        Owed::Everything => {
            let topics: Vec<TopicConfig> =
                topics.all().iter().map(|topic| TopicConfig::clone(&topic.config())).collect();
            match settings.enable_split_registration {
                true => topics.chunks(settings.split_registration_size.max(1)).map(<[TopicConfig]>::to_vec).collect(),
                false => vec![topics],
            }
        }
        Owed::Topics(names) => {
            let found = names.iter().filter_map(|name| topics.get(name));
            vec![found.map(|topic| TopicConfig::clone(&topic.config())).collect()]
        }
    }
}

/// The body for a piece, and whether it is compressed.
fn encoded(
    settings: &BrokerSettings,
    topics: &Topics,
    piece: Vec<TopicConfig>,
    version: DataVersion,
) -> Result<(Vec<u8>, bool), RegisterError> {
    let mut body = body_of(piece, version, settings.broker_permission);
    add_mappings(topics, &mut body.topics);
    let bytes = body.to_json();
    if settings.compressed_register || bytes.len() > PLAIN_BYTES_MAX {
        return Ok((body.to_compressed()?, true));
    }
    Ok((bytes, false))
}

/// Registers once. Bodies are made beside the network workers: a broker may have very many topics.
async fn register(broker: &Arc<Broker>, address: &str, owed: Owed) -> Result<Registered, RegisterError> {
    let settings = broker.settings.load_full();
    let timeout = Duration::from_millis(settings.register_broker_timeout_mills);
    let mut pieces = beside(broker, move |broker| pieces(&broker.settings.load(), &broker.topics, owed)).await;
    pieces.retain(|piece| !piece.is_empty());
    let mut registered = Registered::default();
    let broker_addr = told_address(&settings.broker_ip1, broker.advertised);
    let count = pieces.len();
    for (place, piece) in pieces.into_iter().enumerate() {
        let version = of_epoch(broker.topics.version(), broker.switch.own_epoch());
        let version = version_of_piece(version, count - 1 - place);
        let (bytes, compressed) =
            beside(broker, move |broker| encoded(&broker.settings.load(), &broker.topics, piece, version)).await?;
        let fields = RegisterBroker {
            broker_name: &settings.broker_name,
            broker_addr: &broker_addr,
            cluster_name: &settings.broker_cluster_name,
            ha_server_addr: Some(&broker.ha_address),
            broker_id: broker.standing.broker_id,
            heartbeat_timeout_millis: None,
            enable_acting_master: None,
            compressed,
            // 0: not checked. TCP has a sum of its own.
            body_crc32: 0,
            zone_name: None,
        };
        let client = &broker.registry.client;
        let call = client.begin(address, request::REGISTER_BROKER, &fields, &Bytes::from(bytes), timeout).await?;
        registered.connection = Some(call.connection());
        let answer = call.response().await?;
        if answer.code != ResponseCode::Success as i32 {
            return Err(RegisterError::Refused { code: answer.code, remark: answer.remark.unwrap_or_default() });
        }
        if broker.standing.is_slave() {
            let RegisterBrokerReply { ha_server_addr, master_addr } =
                RegisterBrokerReply::decode(&answer.fields.as_fields())?;
            broker.following.learnt(master_addr.unwrap_or_default(), ha_server_addr);
        }
        if !answer.body.is_empty() {
            registered.order_topics = Some(fastjson::from_slice(&answer.body)?);
        }
        registered.remark = answer.remark.filter(|remark| !remark.is_empty()).or(registered.remark);
    }
    Ok(registered)
}

/// What clients are told to connect to. A name stays a name: it may mean another address elsewhere, or later.
pub(crate) fn told_address(host: &str, advertised: SocketAddr) -> String {
    match host.parse::<IpAddr>() {
        Ok(_) => advertised.to_string(),
        Err(_) => format!("{host}:{}", advertised.port()),
    }
}

/// Of two masters of one name a name server keeps the one that tells the later epoch.
fn of_epoch(version: DataVersion, epoch: u64) -> DataVersion {
    let epoch = i64::try_from(epoch).unwrap_or(i64::MAX);
    DataVersion { state_version: version.state_version.max(epoch), ..version }
}

/// A name server looks at the topics that it knows only when the version is not the one it heard last, so no two pieces in a row may
/// have the same. The last piece has the true one, which no later change can bring again.
fn version_of_piece(version: DataVersion, left: usize) -> DataVersion {
    let left = i64::try_from(left).unwrap_or(i64::MAX);
    DataVersion { timestamp: version.timestamp.saturating_sub(left), ..version }
}

/// What name servers are told: topics with the broker's own permission applied.
fn body_of(topics: Vec<TopicConfig>, data_version: DataVersion, broker_permission: i32) -> RegisterBrokerBody {
    let is_restricted = !perm::is_readable(broker_permission) || !perm::is_writable(broker_permission);
    let shown = topics.into_iter().map(|mut topic| {
        if is_restricted {
            topic.perm &= broker_permission;
        }
        (topic.topic_name.clone(), topic)
    });
    RegisterBrokerBody {
        filter_server_list: Vec::new(),
        topics: TopicConfigTable {
            data_version,
            mapping_data_version: Some(DataVersion::default()),
            topic_config_table: shown.collect(),
            topic_queue_mapping_detail_map: Some(BTreeMap::new()),
            topic_queue_mapping_info_map: Some(BTreeMap::new()),
        },
    }
}

/// Adds which queues of static topics are here.
fn add_mappings(topics: &Topics, table: &mut TopicConfigTable) {
    table.mapping_data_version = Some(topics.mapping_version());
    let told = topics.mappings_of(table.topic_config_table.keys()).into_iter();
    table.topic_queue_mapping_info_map = Some(told.map(|(topic, mapping)| (topic, mapping.info())).collect());
}

/// Topics are ordered if the name server's table says so, and not otherwise.
fn mark_order_topics(topics: &Topics, order_topics: &KvTable) {
    for topic in topics.all() {
        let config = topic.config();
        let order = order_topics.table.contains_key(topic.name());
        // A topic may be ordered by its own configuration; the table adds to that, as in Apache.
        if order && !config.order {
            topics.create(TopicConfig { order, ..TopicConfig::clone(&config) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(name: &str, perm: i32) -> TopicConfig {
        TopicConfig { topic_name: name.to_owned(), perm, ..TopicConfig::default() }
    }

    #[test]
    fn a_broker_that_does_not_accept_writes_says_so_of_every_topic() {
        let perms = |permission| {
            let body = body_of(vec![topic("A", 7), topic("B", 4)], DataVersion::default(), permission);
            body.topics.topic_config_table.into_values().map(|topic| topic.perm).collect::<Vec<_>>()
        };
        assert_eq!(perms(6), [7, 4]);
        assert_eq!(perms(4), [4, 4]);
        assert_eq!(perms(2), [2, 0]);
    }

    #[test]
    fn each_piece_of_a_registration_differs_from_the_one_before_it() {
        let version = DataVersion { counter: 7, state_version: 1, timestamp: 1_000 };
        let round: Vec<DataVersion> = (0..3).rev().map(|left| version_of_piece(version, left)).collect();
        assert_eq!(round.last(), Some(&version));
        let again: Vec<DataVersion> = [&round[..], &round[..]].concat();
        assert!(again.windows(2).all(|pair| pair[0] != pair[1]), "{again:?}");
    }

    #[test]
    fn a_broker_that_is_known_by_a_name_is_told_of_by_it() {
        let at = "10.0.0.7:10911".parse().unwrap();
        assert_eq!(told_address("broker-0.brokers", at), "broker-0.brokers:10911");
        assert_eq!(told_address("10.0.0.7", at), "10.0.0.7:10911");
        assert_eq!(told_address("::1", "[::1]:10911".parse().unwrap()), "[::1]:10911");
    }

    #[test]
    fn another_broker_in_our_place_is_one_of_our_cluster_name_and_id_at_another_address() {
        let route = |cluster: &str, id: i64, address: &str| {
            let known = BrokerData {
                broker_name: "b".to_owned(),
                cluster: cluster.to_owned(),
                broker_addrs: [(id, address.to_owned())].into(),
                ..BrokerData::default()
            };
            TopicRoute { broker_datas: vec![known], ..TopicRoute::default() }
        };
        let identity = Identity { cluster_name: "C".to_owned(), broker_name: "b".to_owned(), broker_id: 0 };
        let other = |route: TopicRoute| other_of(&route, &identity, "own:1");
        assert_eq!(other(route("C", 0, "other:1")).as_deref(), Some("other:1"));
        assert_eq!(other(route("C", 0, "own:1")), None);
        assert_eq!(other(route("C", 1, "slave:1")), None);
        assert_eq!(other(route("D", 0, "other:1")), None);
    }

    #[test]
    fn a_name_server_that_is_not_there_is_tried_each_second_and_one_that_refuses_less_often() {
        let (long, period) = (Duration::from_secs(20), Duration::from_secs(30));
        let closed = RegisterError::Call(CallError::Closed { address: "a:1".to_owned() });
        assert_eq!(closed.pause(long, period), PAUSE_UNCONNECTED_MAX);
        assert_eq!(closed.pause(PAUSE_FIRST, period), PAUSE_FIRST);
        let refused = RegisterError::Refused { code: 1, remark: String::new() };
        assert_eq!(refused.pause(long, period), long);
        assert_eq!(refused.pause(period * 2, period), period);
    }
}
