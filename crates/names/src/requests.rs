//! The answers, in the order of the codes. Remarks are Apache's, since tools show them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use net::{Outgoing, Request};
use protocol::body::{
    BrokerMemberGroupReply, DataVersion, KvTable, MASTER_ID, RegisterBrokerBody, TopicConfigTable, TopicList, TopicRoute,
};
use protocol::code::{ResponseCode, request};
use protocol::fastjson::{self, Dialect};
use protocol::header::EncodeFields;
use protocol::java::crc32;
use protocol::request::{
    AddWritePerm, AddWritePermReply, BrokerHeartbeat, DeleteKv, DeleteTopicInNames, FieldError, GetBrokerMemberGroup, GetKv,
    GetKvList, GetKvReply, GetRouteInfo, GetTopicsByCluster, PutKv, QueryDataVersion, QueryDataVersionReply, RegisterBroker,
    RegisterBrokerReply, RegisterTopic, UnregisterBroker, WipeWritePerm, WipeWritePermReply,
};
use tracing::{info, warn};

use crate::kv::{Kv, KvError, ORDER_TOPICS};
use crate::options::SettingError;
use crate::routes::{Departure, NotRegistered, Registration, UnitList};
use crate::{Names, Session, rules};

/// From 4.9.4 on, clients get standard JSON without asking.
const VERSION_WITH_STANDARD_JSON: i32 = 401;
/// Before 3.0.11, a registration was a table of topics without anything around it.
const VERSION_WITH_REGISTER_BODY: i32 = 37;

/// Routes as JSON, of one state of the route table and the KV configuration.
#[derive(Default)]
pub(crate) struct RouteCache {
    state: (u64, u64),
    routes: HashMap<String, Rendered>,
}

/// A route in the dialects that were asked for.
#[derive(Clone, Default)]
struct Rendered {
    fast_json: Option<Bytes>,
    standard: Option<Bytes>,
}

/// An answer that is no success.
struct Refusal {
    code: ResponseCode,
    remark: String,
}

impl Refusal {
    fn new(code: ResponseCode, remark: impl Into<String>) -> Refusal {
        Refusal { code, remark: remark.into() }
    }
}

impl From<FieldError> for Refusal {
    fn from(error: FieldError) -> Refusal {
        Refusal::new(ResponseCode::SystemError, error.to_string())
    }
}

impl From<KvError> for Refusal {
    fn from(error: KvError) -> Refusal {
        warn!(%error, "kv configuration cannot be kept");
        Refusal::new(ResponseCode::SystemError, error.to_string())
    }
}

/// Fields and body of a success.
type Answer<'a> = Result<(Box<dyn EncodeFields + Send + 'a>, Bytes), Refusal>;

fn success<'a>() -> Answer<'a> {
    Ok((Box::new(()), Bytes::new()))
}

fn with_fields<'a>(fields: impl EncodeFields + Send + 'a) -> Answer<'a> {
    Ok((Box::new(fields), Bytes::new()))
}

fn with_body<'a>(body: impl Into<Bytes>) -> Answer<'a> {
    Ok((Box::new(()), body.into()))
}

fn with_topics<'a>(topics: Vec<String>, broker_addr: Option<String>) -> Answer<'a> {
    with_body(fastjson::to_vec(&TopicList { broker_addr, topic_list: topics }, Dialect::FastJson))
}

impl Names {
    /// Answers one request.
    pub(crate) async fn answer(&self, session: &mut Session, request: &Request<'_>, out: &mut Outgoing) {
        let answer = match request.header.code {
            request::PUT_KV_CONFIG => self.put_kv(request).await,
            request::GET_KV_CONFIG => self.get_kv(request),
            request::DELETE_KV_CONFIG => self.delete_kv(request).await,
            request::REGISTER_BROKER => self.register_broker(session, request),
            request::UNREGISTER_BROKER => self.unregister_broker(request),
            request::GET_ROUTEINFO_BY_TOPIC => self.route(request),
            request::GET_BROKER_CLUSTER_INFO => self.cluster_info(request),
            request::WIPE_WRITE_PERM_OF_BROKER => self.wipe_write_perm(request),
            request::GET_ALL_TOPIC_LIST_FROM_NAMESERVER => self.all_topics(),
            request::DELETE_TOPIC_IN_NAMESRV => self.delete_topic(request),
            request::REGISTER_TOPIC_IN_NAMESRV => self.register_topic(request),
            request::GET_KVLIST_BY_NAMESPACE => self.kv_list(request),
            request::GET_TOPICS_BY_CLUSTER => self.topics_of_cluster(request),
            request::GET_SYSTEM_TOPIC_LIST_FROM_NS => self.system_topics(),
            request::GET_UNIT_TOPIC_LIST => self.unit_topics(UnitList::Unit),
            request::GET_HAS_UNIT_SUB_TOPIC_LIST => self.unit_topics(UnitList::UnitSub),
            request::GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST => self.unit_topics(UnitList::UnitSubNotUnit),
            request::UPDATE_NAMESRV_CONFIG => self.update_config(request),
            request::GET_NAMESRV_CONFIG => with_body(self.options.load().print().into_bytes()),
            request::QUERY_DATA_VERSION => self.query_data_version(request),
            request::ADD_WRITE_PERM_OF_BROKER => self.add_write_perm(request),
            request::GET_BROKER_MEMBER_GROUP => self.member_group(request),
            request::BROKER_HEARTBEAT => self.broker_heartbeat(request),
            code => Err(Refusal::new(
                ResponseCode::RequestCodeNotSupported,
                format!(" request type {code} not supported"),
            )),
        };
        let to = request.reply_to();
        match answer {
            Ok((fields, body)) => out.reply(to, ResponseCode::Success, None, &*fields, &body),
            Err(refusal) => out.reply(to, refusal.code, Some(&refusal.remark), &(), &[]),
        }
    }

    async fn put_kv(&self, request: &Request<'_>) -> Answer<'static> {
        let put = PutKv::decode(&request.header.fields)?;
        let (namespace, key, value) = (put.namespace.to_owned(), put.key.to_owned(), put.value.to_owned());
        self.change_kv(move |kv| kv.put(&namespace, &key, &value)).await
    }

    async fn delete_kv(&self, request: &Request<'_>) -> Answer<'static> {
        let delete = DeleteKv::decode(&request.header.fields)?;
        let (namespace, key) = (delete.namespace.to_owned(), delete.key.to_owned());
        self.change_kv(move |kv| kv.delete(&namespace, &key)).await
    }

    /// The disk is waited for on a thread that may wait.
    async fn change_kv(&self, change: impl FnOnce(&Kv) -> Result<(), KvError> + Send + 'static) -> Answer<'static> {
        let kv = Arc::clone(&self.kv);
        match tokio::task::spawn_blocking(move || change(&kv)).await {
            Ok(changed) => changed?,
            Err(error) => return Err(Refusal::new(ResponseCode::SystemError, error.to_string())),
        }
        success()
    }

    fn get_kv(&self, request: &Request<'_>) -> Answer<'static> {
        let get = GetKv::decode(&request.header.fields)?;
        let Some(value) = self.kv.get(get.namespace, get.key) else {
            let remark = format!("No config item, Namespace: {} Key: {}", get.namespace, get.key);
            return Err(Refusal::new(ResponseCode::QueryNotFound, remark));
        };
        with_fields(OwnedValue(value))
    }

    fn kv_list(&self, request: &Request<'_>) -> Answer<'static> {
        let namespace = GetKvList::decode(&request.header.fields)?.namespace;
        let Some(table) = self.kv.list(namespace) else {
            let remark = format!("No config item, Namespace: {namespace}");
            return Err(Refusal::new(ResponseCode::QueryNotFound, remark));
        };
        with_body(fastjson::to_vec(&KvTable { table }, Dialect::FastJson))
    }

    fn register_broker(&self, session: &mut Session, request: &Request<'_>) -> Answer<'static> {
        let header = RegisterBroker::decode(&request.header.fields)?;
        if header.body_crc32 != 0 && header.body_crc32 != crc32(request.body) as i32 {
            warn!(broker = header.broker_name, addr = header.broker_addr, "registration refused, its crc does not match");
            return Err(Refusal::new(ResponseCode::SystemError, "crc32 not match"));
        }
        let body = register_body(request, header.compressed)?;
        let connection = &session.connection;
        let registration = Registration {
            cluster: header.cluster_name,
            broker: header.broker_name,
            id: header.broker_id,
            addr: header.broker_addr,
            ha_addr: header.ha_server_addr.unwrap_or_default(),
            zone: header.zone_name,
            timeout_ms: header.heartbeat_timeout_millis,
            acting_master: header.enable_acting_master,
            connection: connection.id(),
        };
        // First the connection, then the route: whoever expires finds what there is to close.
        session.is_broker = true;
        let is_new = self.connections.lock().insert(connection.id(), connection.clone()).is_none();
        let registered = self.routes.write().register(self.clock.now(), &registration, &body);
        if is_new {
            info!(broker = registration.broker, id = registration.id, addr = registration.addr, "broker registered");
        }
        let told = match registered {
            Ok((told, effects)) => {
                self.follow(effects);
                told
            }
            Err(NotRegistered::Outdated) => {
                warn!(broker = registration.broker, addr = registration.addr, "registration ignored, its state is older");
                return success();
            }
            Err(NotRegistered::HalfBooted) => {
                warn!(broker = registration.broker, addr = registration.addr, "registration refused, one topic of an unknown broker");
                return Err(Refusal::new(ResponseCode::SystemError, "register broker failed"));
            }
        };
        let mut order_topics = Bytes::new();
        if self.options.load().return_order_topic_config_to_broker
            && let Some(table) = self.kv.list(ORDER_TOPICS)
        {
            order_topics = fastjson::to_vec(&KvTable { table }, Dialect::FastJson).into();
        }
        Ok((Box::new(OwnedRegistered(told)), order_topics))
    }

    fn unregister_broker(&self, request: &Request<'_>) -> Answer<'static> {
        let header = UnregisterBroker::decode(&request.header.fields)?;
        let departure = Departure {
            cluster: header.cluster_name.to_owned(),
            broker: header.broker_name.to_owned(),
            id: header.broker_id,
            addr: header.broker_addr.to_owned(),
        };
        info!(broker = departure.broker, id = departure.id, addr = departure.addr, "broker unregistered");
        let effects = self.routes.write().unregister(&[departure]);
        self.follow(effects);
        success()
    }

    fn route(&self, request: &Request<'_>) -> Answer<'static> {
        let header = GetRouteInfo::decode(&request.header.fields)?;
        let options = self.options.load();
        if options.need_wait_for_service
            && self.clock.elapsed().saturating_sub(self.started).as_secs() < options.wait_seconds_for_service
        {
            return Err(Refusal::new(ResponseCode::SystemError, "name server not ready"));
        }
        if header.zone_mode == Some(true)
            && let Some(zone) = header.zone_name.filter(|zone| !zone.trim().is_empty())
        {
            let (_, mut route) = self.build_route(header.topic)?;
            keep_zone(&mut route, zone);
            return with_body(fastjson::to_vec(&route, Dialect::FastJson));
        }
        let is_standard = request.header.version >= VERSION_WITH_STANDARD_JSON
            || header.accept_standard_json_only == Some(true);
        with_body(self.rendered_route(header.topic, if is_standard { Dialect::Standard } else { Dialect::FastJson })?)
    }

    /// A route as JSON: from the cache as long as neither routes nor KV configuration have changed.
    fn rendered_route(&self, topic: &str, dialect: Dialect) -> Result<Bytes, Refusal> {
        let now = (self.routes.read().generation(), self.kv.generation());
        {
            let cache = self.cache.read();
            if cache.state == now
                && let Some(json) = cache.routes.get(topic).and_then(|rendered| rendered.get(dialect))
            {
                return Ok(json.clone());
            }
        }
        let (state, route) = self.build_route(topic)?;
        let json = Bytes::from(fastjson::to_vec(&route, dialect));
        let mut cache = self.cache.write();
        if cache.state != state {
            *cache = RouteCache { state, routes: HashMap::new() };
        }
        cache.routes.entry(topic.to_owned()).or_default().set(dialect, json.clone());
        Ok(json)
    }

    /// A route and the state that it shows, which is read before the route is: a change in between makes the cache stale, not
    /// the route old.
    fn build_route(&self, topic: &str) -> Result<((u64, u64), TopicRoute), Refusal> {
        let kv_generation = self.kv.generation();
        let (generation, route) = {
            let routes = self.routes.read();
            (routes.generation(), routes.route(topic))
        };
        let Some(mut route) = route else {
            let remark = format!(
                "No topic route info in name server for the topic: {topic}\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
            );
            return Err(Refusal::new(ResponseCode::TopicNotExist, remark));
        };
        if self.options.load().order_message_enable {
            route.order_topic_conf = self.kv.get(ORDER_TOPICS, topic);
        }
        Ok(((generation, kv_generation), route))
    }

    fn cluster_info(&self, request: &Request<'_>) -> Answer<'static> {
        let is_standard = request.header.version >= VERSION_WITH_STANDARD_JSON
            && request.header.fields.get("acceptStandardJsonOnly").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let dialect = if is_standard { Dialect::Standard } else { Dialect::FastJson };
        with_body(fastjson::to_vec(&self.routes.read().cluster_info(), dialect))
    }

    fn wipe_write_perm(&self, request: &Request<'_>) -> Answer<'static> {
        let broker = WipeWritePerm::decode(&request.header.fields)?.broker_name;
        let wipe_topic_count = self.routes.write().wipe_write_perm(broker);
        info!(broker, topics = wipe_topic_count, "write permission wiped");
        with_fields(WipeWritePermReply { wipe_topic_count })
    }

    fn add_write_perm(&self, request: &Request<'_>) -> Answer<'static> {
        let broker = AddWritePerm::decode(&request.header.fields)?.broker_name;
        let add_topic_count = self.routes.write().add_write_perm(broker);
        info!(broker, topics = add_topic_count, "write permission added");
        with_fields(AddWritePermReply { add_topic_count })
    }

    fn all_topics(&self) -> Answer<'static> {
        if !self.options.load().enable_all_topic_list {
            return Err(Refusal::new(ResponseCode::SystemError, "disable"));
        }
        with_topics(self.routes.read().topic_names(), None)
    }

    fn delete_topic(&self, request: &Request<'_>) -> Answer<'static> {
        let header = DeleteTopicInNames::decode(&request.header.fields)?;
        let cluster = header.cluster_name.filter(|cluster| !cluster.is_empty());
        info!(topic = header.topic, cluster, "topic deleted");
        self.routes.write().delete_topic(header.topic, cluster);
        success()
    }

    fn register_topic(&self, request: &Request<'_>) -> Answer<'static> {
        let topic = RegisterTopic::decode(&request.header.fields)?.topic;
        if !request.body.is_empty() {
            let route: TopicRoute = json(request.body)?;
            self.routes.write().register_topic(topic, &route.queue_datas);
        }
        success()
    }

    fn topics_of_cluster(&self, request: &Request<'_>) -> Answer<'static> {
        if !self.options.load().enable_topic_list {
            return Err(Refusal::new(ResponseCode::SystemError, "disable"));
        }
        let cluster = GetTopicsByCluster::decode(&request.header.fields)?.cluster;
        with_topics(self.routes.read().topics_of_cluster(cluster), None)
    }

    fn system_topics(&self) -> Answer<'static> {
        let (topics, broker_addr) = self.routes.read().system_topics();
        with_topics(topics, broker_addr)
    }

    fn unit_topics(&self, list: UnitList) -> Answer<'static> {
        if !self.options.load().enable_topic_list {
            return Err(Refusal::new(ResponseCode::SystemError, "disable"));
        }
        with_topics(self.routes.read().unit_topics(list), None)
    }

    fn update_config(&self, request: &Request<'_>) -> Answer<'static> {
        let Ok(text) = std::str::from_utf8(request.body) else {
            return Err(Refusal::new(ResponseCode::SystemError, "the configuration is not UTF-8"));
        };
        let _changes = self.changes.lock();
        match self.options.load().updated(text) {
            Ok((options, unknown)) => {
                for key in unknown {
                    warn!(key, "unknown key in a change of the settings, ignored");
                }
                self.routes.write().set_rules(rules(&options));
                self.options.store(Arc::new(options));
                info!(text, "settings changed");
                success()
            }
            Err(error @ SettingError::BlackListed) => Err(Refusal::new(ResponseCode::NoPermission, error.to_string())),
            Err(error @ SettingError::Invalid { .. }) => {
                Err(Refusal::new(ResponseCode::InvalidParameter, error.to_string()))
            }
        }
    }

    fn query_data_version(&self, request: &Request<'_>) -> Answer<'static> {
        let header = QueryDataVersion::decode(&request.header.fields)?;
        let asked: DataVersion = json(request.body)?;
        let known = self.routes.read().data_version(header.cluster_name, header.broker_addr);
        let changed = known != Some(asked);
        if !changed {
            self.routes.write().heartbeat(self.clock.now(), header.cluster_name, header.broker_addr);
        }
        let body = known.map(|version| fastjson::to_vec(&version, Dialect::FastJson)).unwrap_or_default();
        Ok((Box::new(QueryDataVersionReply { changed }), body.into()))
    }

    fn member_group(&self, request: &Request<'_>) -> Answer<'static> {
        let header = GetBrokerMemberGroup::decode(&request.header.fields)?;
        let group = self.routes.read().member_group(header.cluster_name, header.broker_name);
        let reply = BrokerMemberGroupReply { broker_member_group: Some(group) };
        with_body(fastjson::to_vec(&reply, Dialect::FastJson))
    }

    fn broker_heartbeat(&self, request: &Request<'_>) -> Answer<'static> {
        let header = BrokerHeartbeat::decode(&request.header.fields)?;
        self.routes.write().heartbeat(self.clock.now(), header.cluster_name, header.broker_addr);
        success()
    }
}

impl Rendered {
    fn get(&self, dialect: Dialect) -> Option<&Bytes> {
        match dialect {
            Dialect::FastJson => self.fast_json.as_ref(),
            Dialect::Standard => self.standard.as_ref(),
        }
    }

    fn set(&mut self, dialect: Dialect, json: Bytes) {
        match dialect {
            Dialect::FastJson => self.fast_json = Some(json),
            Dialect::Standard => self.standard = Some(json),
        }
    }
}

fn json<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    fastjson::from_slice(body).map_err(|error| Refusal::new(ResponseCode::SystemError, error.to_string()))
}

fn register_body(request: &Request<'_>, is_compressed: bool) -> Result<RegisterBrokerBody, Refusal> {
    if request.body.is_empty() {
        return Ok(RegisterBrokerBody::default());
    }
    if request.header.version < VERSION_WITH_REGISTER_BODY {
        let topics: TopicConfigTable = json(request.body)?;
        return Ok(RegisterBrokerBody { topics, ..RegisterBrokerBody::default() });
    }
    RegisterBrokerBody::decode(request.body, is_compressed, request.header.version).map_err(|error| {
        warn!(%error, "registration cannot be read");
        Refusal::new(ResponseCode::SystemError, format!("Failed to decode RegisterBrokerBody: {error}"))
    })
}

/// Keeps the brokers of a zone, and those whose master is gone, since their messages can be had nowhere else.
fn keep_zone(route: &mut TopicRoute, zone: &str) {
    let mut gone = BTreeSet::new();
    let mut gone_addrs = BTreeSet::new();
    route.broker_datas.retain(|data| {
        let is_near = data.zone_name.as_deref().is_some_and(|name| name.eq_ignore_ascii_case(zone));
        let is_kept = is_near || !data.broker_addrs.contains_key(&MASTER_ID);
        if !is_kept {
            gone.insert(data.broker_name.clone());
            gone_addrs.extend(data.broker_addrs.values().cloned());
        }
        is_kept
    });
    route.queue_datas.retain(|queues| !gone.contains(&queues.broker_name));
    route.filter_server_table.retain(|addr, _| !gone_addrs.contains(addr));
}

/// [`GetKvReply`], owning its text.
struct OwnedValue(String);

impl EncodeFields for OwnedValue {
    fn encode(&self, sink: &mut protocol::header::FieldSink<'_>) {
        GetKvReply { value: Some(&self.0) }.encode(sink);
    }
}

/// [`RegisterBrokerReply`], owning its texts.
struct OwnedRegistered(crate::routes::Registered);

impl EncodeFields for OwnedRegistered {
    fn encode(&self, sink: &mut protocol::header::FieldSink<'_>) {
        let (ha_server_addr, master_addr) = (self.0.ha_addr.as_deref(), self.0.master_addr.as_deref());
        RegisterBrokerReply { ha_server_addr, master_addr }.encode(sink);
    }
}
