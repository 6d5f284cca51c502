//! What brokers and operators change in the route table: 103, 104, 205, 216, 217, 322, 327, 904.

use std::sync::Arc;

use bytes::Bytes;
use net::{Outgoing, Request};
use protocol::body::{DataVersion, RegisterBrokerBody, TopicRoute};
use protocol::code::ResponseCode;
use protocol::fastjson::{self, Dialect};
use protocol::request::{
    AddWritePerm, AddWritePermReply, BrokerHeartbeat, DeleteTopicInNames, QueryDataVersion, QueryDataVersionReply,
    RegisterBroker, RegisterBrokerReply, RegisterTopic, UnregisterBroker, WipeWritePerm, WipeWritePermReply,
};
use tracing::{info, warn};

use crate::kv::ORDER_TOPICS;
use crate::limits::Limits;
use crate::names::{Names, Refusal, Session, ok};
use crate::routes::{BrokerAddress, Registered, Registration, Rules, Unregistration};

/// Before this version (3.0.11), the body was a table of topics without anything around it.
const VERSION_WITH_BODY: i32 = 37;

/// A larger body takes longer to decode than other connections of the worker should wait.
const DECODED_HERE_BYTES_MAX: usize = 64 << 10;

fn address(cluster: &str, address: &str) -> BrokerAddress {
    BrokerAddress { cluster: cluster.to_owned(), address: address.to_owned() }
}

pub(crate) async fn broker(
    names: &Names,
    session: &mut Session,
    asked: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let header = RegisterBroker::decode(&asked.header.fields)?;
    names.limits().broker(&header)?;
    let registration = Registration {
        at: address(header.cluster_name, header.broker_addr),
        broker_name: header.broker_name.to_owned(),
        broker_id: header.broker_id,
        ha_address: header.ha_server_addr.unwrap_or_default().to_owned(),
        zone_name: header.zone_name.map(str::to_owned),
        life_ms: header.heartbeat_timeout_millis,
        acting_master: header.enable_acting_master,
        connection: session.connection.id(),
        body: RegisterBrokerBody::default(),
    };
    let brought = Brought {
        body: asked.body.clone(),
        crc: header.body_crc32,
        is_compressed: header.compressed,
        version: asked.header.version,
    };
    let Taken { registered, is_new, is_changed } = if brought.is_long() || !names.is_small() {
        take_beside(names, brought, registration).await?
    } else {
        let registration = Registration { body: brought.read()?, ..registration };
        let _entry = names.entry.write().await;
        take(names, registration)?
    };
    session.is_broker = true;
    say(&header, &registered, is_new, is_changed);
    if let Some(change) = &registered.min_id_change {
        names.notify(change);
    }
    let reply = RegisterBrokerReply {
        ha_server_addr: registered.ha_address.as_deref(),
        master_addr: registered.master_address.as_deref(),
    };
    let order_topics = match names.options.load().return_order_topic_config_to_broker {
        true => names.kv.list(ORDER_TOPICS),
        false => None,
    };
    let left_out = &registered.left_out;
    // Success all the same: a broker with one odd topic serves its others. Apache's brokers do not look at the remark, ours log it.
    let remark =
        left_out.first.as_ref().map(|(topic, why)| format!("{} topics left out, first {topic}: {why}", left_out.count));
    out.reply(asked.reply_to(), ResponseCode::Success, remark.as_deref(), &reply, &order_topics.unwrap_or_default());
    Ok(())
}

/// The body of a registration, and what its header says of it.
struct Brought {
    body: Bytes,
    /// 0 means that the broker made none.
    crc: i32,
    is_compressed: bool,
    version: i32,
}

impl Brought {
    fn is_long(&self) -> bool {
        self.is_compressed || self.body.len() > DECODED_HERE_BYTES_MAX
    }

    fn read(&self) -> Result<RegisterBrokerBody, Refusal> {
        // Apache's checksum is the CRC without its sign bit.
        let crc = crc32fast::hash(&self.body) & 0x7FFF_FFFF;
        if self.crc != 0 && i64::from(self.crc) != i64::from(crc) {
            return Err(Refusal::new(ResponseCode::SystemError, "crc32 not match"));
        }
        if self.body.is_empty() {
            return Ok(RegisterBrokerBody::default());
        }
        if self.version < VERSION_WITH_BODY {
            let topics = fastjson::from_slice(&self.body).map_err(|error| unreadable(&error))?;
            return Ok(RegisterBrokerBody { topics, ..RegisterBrokerBody::default() });
        }
        RegisterBrokerBody::decode(&self.body, self.is_compressed, self.version).map_err(|error| unreadable(&error))
    }
}

fn unreadable(error: &dyn std::fmt::Display) -> Refusal {
    Refusal::new(ResponseCode::SystemError, format!("register broker body: {error}"))
}

/// What became of a registration.
struct Taken {
    registered: Registered,
    is_new: bool,
    is_changed: bool,
}

fn take(names: &Names, registration: Registration) -> Result<Taken, Refusal> {
    let options = names.options.load();
    let rules = Rules { forget_missing: options.delete_topic_with_broker_registration, limits: Limits::of(&options) };
    let mut table = names.table.write();
    let is_new = table.version(&registration.at).is_none();
    let is_changed = table.is_changed(&registration.at, &registration.body.topics.data_version);
    let registered = table.register(names.clock.elapsed(), registration, &rules);
    drop(table);
    let registered =
        registered.map_err(|turned_down| Refusal::new(ResponseCode::SystemError, turned_down.to_string()))?;
    Ok(Taken { registered, is_new, is_changed })
}

/// Reads a long registration, or one that meets a large table, and takes it, on a thread that serves no connection.
async fn take_beside(names: &Names, brought: Brought, registration: Registration) -> Result<Taken, Refusal> {
    // One after the other, because what they take while they unfold is not in anybody's budget. The turn ends with the work, even if
    // the connection ends before.
    let turn = Arc::clone(&names.unfolding).lock_owned().await;
    let names = names.myself.upgrade().ok_or_else(|| unreadable(&"the name server stops"))?;
    let work = move || -> Result<Taken, Refusal> {
        let _turn = turn;
        let registration = Registration { body: brought.read()?, ..registration };
        drop(brought);
        let _entry = names.entry.blocking_write();
        take(&names, registration)
    };
    tokio::task::spawn_blocking(work).await.map_err(|panicked| unreadable(&panicked))?
}

/// Logs what a registration came to, once: brokers register again and again.
fn say(header: &RegisterBroker<'_>, registered: &Registered, is_new: bool, is_changed: bool) {
    let (broker, id, address) = (header.broker_name, header.broker_id, header.broker_addr);
    if is_new {
        info!(broker, id, address, "broker registered");
    }
    if let Some(displaced) = &registered.displaced {
        let what =
            "a broker with the same name and id is alive at another address: the newest takes its place in the routes";
        warn!(broker, id, address, displaced = displaced.address, cluster = displaced.cluster, "{what}");
    }
    if is_changed && let Some((topic, why)) = &registered.left_out.first {
        let count = registered.left_out.count;
        warn!(broker, address, count, topic, %why, "topics of a registration are left out of the routes");
    }
}

pub(crate) fn unregister(names: &Names, asked: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let header = UnregisterBroker::decode(&asked.header.fields)?;
    let leaving = Unregistration {
        at: address(header.cluster_name, header.broker_addr),
        broker_name: header.broker_name.to_owned(),
        broker_id: header.broker_id,
    };
    names.take_out("unregistered", |_| vec![leaving]);
    ok(out, asked.reply_to(), &(), &[])
}

pub(crate) fn heartbeat(names: &Names, asked: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let header = BrokerHeartbeat::decode(&asked.header.fields)?;
    names.table.write().touch(&address(header.cluster_name, header.broker_addr), names.clock.elapsed());
    ok(out, asked.reply_to(), &(), &[])
}

pub(crate) fn data_version(names: &Names, asked: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let header = QueryDataVersion::decode(&asked.header.fields)?;
    // Whoever says no version has to register.
    let theirs: Option<DataVersion> = match &asked.body[..] {
        [] => None,
        body => fastjson::from_slice(body)
            .map(Some)
            .map_err(|error| Refusal::new(ResponseCode::SystemError, format!("data version: {error}")))?,
    };
    let at = address(header.cluster_name, header.broker_addr);
    let mut table = names.table.write();
    let changed = theirs.is_none_or(|theirs| table.is_changed(&at, &theirs));
    table.touch(&at, names.clock.elapsed());
    let ours = table.version(&at);
    drop(table);
    let body = ours.map(|version| fastjson::to_vec(&version, Dialect::FastJson)).unwrap_or_default();
    ok(out, asked.reply_to(), &QueryDataVersionReply { changed }, &body)
}

pub(crate) fn topic(names: &Names, asked: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let header = RegisterTopic::decode(&asked.header.fields)?;
    let route: TopicRoute = fastjson::from_slice(asked.body)
        .map_err(|error| Refusal::new(ResponseCode::SystemError, format!("topic route: {error}")))?;
    names.table.write().register_topic(header.topic, route.queue_datas, names.limits())?;
    ok(out, asked.reply_to(), &(), &[])
}

pub(crate) fn delete_topic(names: &Names, asked: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let header = DeleteTopicInNames::decode(&asked.header.fields)?;
    let cluster = header.cluster_name.filter(|name| !name.is_empty());
    names.table.write().delete_topic(header.topic, cluster);
    ok(out, asked.reply_to(), &(), &[])
}

pub(crate) fn wipe_write_perm(names: &Names, asked: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let header = WipeWritePerm::decode(&asked.header.fields)?;
    let wipe_topic_count = names.table.write().set_writable(header.broker_name, false);
    warn!(broker = header.broker_name, topics = wipe_topic_count, "right to write wiped by request");
    ok(out, asked.reply_to(), &WipeWritePermReply { wipe_topic_count }, &[])
}

pub(crate) fn add_write_perm(names: &Names, asked: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let header = AddWritePerm::decode(&asked.header.fields)?;
    let add_topic_count = names.table.write().set_writable(header.broker_name, true);
    ok(out, asked.reply_to(), &AddWritePermReply { add_topic_count }, &[])
}
