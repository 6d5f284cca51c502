//! Tells the name servers which topics are here: at the start, again and again, at once when a topic changes; and says good-bye.
//!
//! One task a name server, so that a slow or dead one delays nobody. A task that fails tries again after a pause that doubles; what it
//! owes meanwhile is everything. Names are resolved again with every new connection, which is `net::Client`'s business.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use net::{CallError, Client, ClientOptions};
use parking_lot::Mutex;
use protocol::body::{DataVersion, KvTable, RegisterBrokerBody, TopicConfig, TopicConfigTable};
use protocol::code::{ResponseCode, request};
use protocol::compression::CompressionError;
use protocol::fastjson::{self, JsonError};
use protocol::request::{RegisterBroker, UnregisterBroker};
use protocol::sys_flag::perm;
use tokio::sync::{Notify, watch};

use crate::broker::Broker;

/// The id of a master, which every broker of ours is until there is replication.
const BROKER_ID: i64 = 0;
/// The first pause after a failure.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
/// How often we register even when nothing changes: the setting, kept within these bounds as Apache keeps it.
const PERIOD_MIN_MS: u64 = 10_000;
const PERIOD_MAX_MS: u64 = 60_000;
/// More changed topics than this are told by telling everything.
const CHANGES_MAX: usize = 200;
/// A larger body is compressed whatever the setting says: a frame holds 16 MiB.
const PLAIN_BYTES_MAX: usize = 4 << 20;
/// How long a name server has to let us go.
const GOOD_BYE: Duration = Duration::from_secs(1);

/// What a name server has yet to be told.
#[derive(Debug, PartialEq, Eq)]
enum Owed {
    Everything,
    /// The topics that have changed; none: nothing.
    Topics(BTreeSet<String>),
}

impl Owed {
    fn add(&mut self, topic: &str) {
        match self {
            Owed::Everything => {}
            Owed::Topics(topics) if topics.len() >= CHANGES_MAX => *self = Owed::Everything,
            Owed::Topics(topics) => {
                topics.insert(topic.to_owned());
            }
        }
    }
}

struct Server {
    address: String,
    owed: Mutex<Owed>,
    changed: Notify,
}

/// The name servers of this broker.
pub(crate) struct Registry {
    servers: Vec<Arc<Server>>,
    pub(crate) client: Client,
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
}

impl Registry {
    pub(crate) fn new(addresses: &[String], calls: ClientOptions) -> Registry {
        let addresses: BTreeSet<&String> = addresses.iter().collect();
        let server = |address: &String| {
            Arc::new(Server { address: address.clone(), owed: Mutex::new(Owed::Everything), changed: Notify::new() })
        };
        Registry { servers: addresses.into_iter().map(server).collect(), client: Client::new(calls) }
    }

    /// The addresses, each once.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = &str> {
        self.servers.iter().map(|server| server.address.as_str())
    }

    /// A topic has changed.
    pub(crate) fn topic_changed(&self, topic: &str) {
        for server in &self.servers {
            server.owed.lock().add(topic);
            server.changed.notify_one();
        }
    }

    /// Everything is to be told again, soon.
    pub(crate) fn all_changed(&self) {
        for server in &self.servers {
            *server.owed.lock() = Owed::Everything;
            server.changed.notify_one();
        }
    }

    /// The tasks, one a name server; they end when `stop` says so.
    pub(crate) fn tasks(
        &self,
        broker: &Arc<Broker>,
        stop: &watch::Receiver<bool>,
    ) -> Vec<impl Future<Output = ()> + Send + use<>> {
        let task = |server: &Arc<Server>| keep(Arc::clone(broker), Arc::clone(server), stop.clone());
        self.servers.iter().map(task).collect()
    }

    /// Tells every name server that this broker goes. One that does not answer will notice by itself.
    pub(crate) async fn unregister(&self, broker: &Broker) {
        let settings = broker.settings.load_full();
        let address = told_address(&settings.broker_ip1, broker.advertised);
        let mut leaving = tokio::task::JoinSet::new();
        for server in &self.servers {
            let (server, settings, address, client) =
                (Arc::clone(server), Arc::clone(&settings), address.clone(), self.client.clone());
            leaving.spawn(async move {
                let fields = UnregisterBroker {
                    broker_name: &settings.broker_name,
                    broker_addr: &address,
                    cluster_name: &settings.broker_cluster_name,
                    broker_id: BROKER_ID,
                };
                let left =
                    client.call(&server.address, request::UNREGISTER_BROKER, &fields, Bytes::new(), GOOD_BYE).await;
                if let Err(error) = left {
                    tracing::warn!(name_server = server.address, %error, "not unregistered");
                }
            });
        }
        while leaving.join_next().await.is_some() {}
    }
}

async fn keep(broker: Arc<Broker>, server: Arc<Server>, mut stop: watch::Receiver<bool>) {
    let mut pause = PAUSE_FIRST;
    let mut is_known = false;
    let mut has_complained = false;
    while !*stop.borrow() {
        let owed = std::mem::replace(&mut *server.owed.lock(), Owed::Topics(BTreeSet::new()));
        let owed = if is_known { owed } else { Owed::Everything };
        let settings = broker.settings.load();
        let period = Duration::from_millis(settings.register_name_server_period.clamp(PERIOD_MIN_MS, PERIOD_MAX_MS));
        drop(settings);
        let registered = tokio::select! {
            biased;
            _ = stop.changed() => return,
            registered = register(&broker, &server.address, &owed) => registered,
        };
        match registered {
            Ok(order_topics) => {
                if !is_known {
                    tracing::info!(name_server = server.address, "registered");
                }
                (is_known, has_complained, pause) = (true, false, PAUSE_FIRST);
                if let Some(order_topics) = order_topics {
                    mark_order_topics(&broker, &order_topics);
                }
                tokio::select! {
                    biased;
                    _ = stop.changed() => return,
                    () = tokio::time::sleep(period) => *server.owed.lock() = Owed::Everything,
                    () = server.changed.notified() => {}
                }
            }
            Err(error) => {
                if !has_complained {
                    tracing::warn!(name_server = server.address, %error, "not registered, trying again");
                }
                (is_known, has_complained) = (false, true);
                tokio::select! {
                    biased;
                    _ = stop.changed() => return,
                    () = tokio::time::sleep(pause) => {}
                }
                pause = (pause * 2).min(period);
            }
        }
    }
}

/// Registers once. Returns the order topics that the name server knows, if it says.
async fn register(broker: &Broker, address: &str, owed: &Owed) -> Result<Option<KvTable>, RegisterError> {
    let settings = broker.settings.load_full();
    let timeout = Duration::from_millis(settings.register_broker_timeout_mills);
    let topics = match owed {
        Owed::Everything => broker.topics.all().iter().map(|topic| TopicConfig::clone(&topic.config())).collect(),
        Owed::Topics(names) => {
            let found = names.iter().filter_map(|name| broker.topics.get(name));
            found.map(|topic| TopicConfig::clone(&topic.config())).collect::<Vec<_>>()
        }
    };
    if topics.is_empty() {
        return Ok(None);
    }
    let pieces = match owed {
        Owed::Everything if settings.enable_split_registration => {
            topics.chunks(settings.split_registration_size.max(1)).map(<[TopicConfig]>::to_vec).collect()
        }
        Owed::Everything | Owed::Topics(_) => vec![topics],
    };
    let broker_addr = told_address(&settings.broker_ip1, broker.advertised);
    let mut order_topics = None;
    let count = pieces.len();
    for (place, piece) in pieces.into_iter().enumerate() {
        let version = version_of_piece(broker.topics.version(), count - 1 - place);
        let mut body = body_of(piece, version, settings.broker_permission);
        add_mappings(broker, &mut body.topics);
        let mut bytes = body.to_json();
        let compressed = settings.compressed_register || bytes.len() > PLAIN_BYTES_MAX;
        if compressed {
            bytes = body.to_compressed()?;
        }
        let fields = RegisterBroker {
            broker_name: &settings.broker_name,
            broker_addr: &broker_addr,
            cluster_name: &settings.broker_cluster_name,
            ha_server_addr: Some(&broker.ha_address),
            broker_id: BROKER_ID,
            heartbeat_timeout_millis: None,
            enable_acting_master: None,
            compressed,
            // 0: not checked. TCP has a sum of its own.
            body_crc32: 0,
            zone_name: None,
        };
        let answer = broker
            .registry
            .client
            .call(address, request::REGISTER_BROKER, &fields, Bytes::from(bytes), timeout)
            .await?;
        if answer.code != ResponseCode::Success as i32 {
            return Err(RegisterError::Refused { code: answer.code, remark: answer.remark.unwrap_or_default() });
        }
        if !answer.body.is_empty() {
            order_topics = Some(fastjson::from_slice(&answer.body)?);
        }
    }
    Ok(order_topics)
}

/// What clients are told to connect to. A name stays a name: it may mean another address elsewhere, or later.
fn told_address(host: &str, advertised: SocketAddr) -> String {
    match host.parse::<IpAddr>() {
        Ok(_) => advertised.to_string(),
        Err(_) => format!("{host}:{}", advertised.port()),
    }
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
fn add_mappings(broker: &Broker, table: &mut TopicConfigTable) {
    table.mapping_data_version = Some(broker.topics.mapping_version());
    let told = broker.topics.mappings_of(table.topic_config_table.keys()).into_iter();
    table.topic_queue_mapping_info_map = Some(told.map(|(topic, mapping)| (topic, mapping.info())).collect());
}

/// Topics are ordered if the name server's table says so, and not otherwise.
fn mark_order_topics(broker: &Broker, order_topics: &KvTable) {
    for topic in broker.topics.all() {
        let config = topic.config();
        let order = order_topics.table.contains_key(topic.name());
        // A topic may be ordered by its own configuration; the table adds to that, as in Apache.
        if order && !config.order {
            broker.topics.create(TopicConfig { order, ..TopicConfig::clone(&config) });
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
    fn many_changes_are_told_as_one() {
        let mut owed = Owed::Topics(BTreeSet::new());
        owed.add("T");
        owed.add("T");
        assert_eq!(owed, Owed::Topics(BTreeSet::from(["T".to_owned()])));
        for number in 0..=CHANGES_MAX {
            owed.add(&number.to_string());
        }
        assert_eq!(owed, Owed::Everything);
    }

    #[test]
    fn a_name_server_that_is_named_twice_is_told_once() {
        let registry = Registry::new(&["a:1".to_owned(), "b:1".to_owned(), "a:1".to_owned()], ClientOptions::default());
        assert_eq!(registry.addresses().collect::<Vec<_>>(), ["a:1", "b:1"]);
    }
}
