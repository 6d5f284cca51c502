//! What clients ask: where is a topic (105), which brokers are there (106, 901).

use std::sync::Arc;
use std::time::Duration;

use net::{Outgoing, Request};
use parking_lot::RwLockReadGuard;
use protocol::body::{BrokerMemberGroupReply, MASTER_ID};
use protocol::code::ResponseCode;
use protocol::fastjson::{self, Dialect};
use protocol::request::{GetBrokerMemberGroup, GetRouteInfo};

use crate::kv::ORDER_TOPICS;
use crate::names::{Names, Refusal, ok};
use crate::routes::RouteTable;

/// Requests from this version on (4.9.4) get standard JSON: their parsers need not be fastjson.
const VERSION_WITH_STANDARD_JSON: i32 = 401;

/// The JSON of routes, kept until the table or the settings change. Topics that do not exist are not kept, and after each sweep there are no
/// more routes than the table has topics.
#[derive(Default)]
pub(crate) struct RouteCache {
    routes: papaya::HashMap<String, Kept>,
}

#[derive(Clone)]
struct Kept {
    generation: u64,
    standard: Arc<[u8]>,
    fast_json: Arc<[u8]>,
}

impl RouteCache {
    /// Drops the routes of topics that are gone: maybe nobody asks for those again.
    pub fn sweep(&self, table: &RouteTable) {
        let routes = self.routes.pin();
        if routes.len() > table.topic_count() {
            routes.retain(|topic, _| table.has_topic(topic));
        }
    }
}

fn wants_standard(asked: &Request<'_>, flag: Option<bool>) -> bool {
    asked.header.version >= VERSION_WITH_STANDARD_JSON || flag.unwrap_or(false)
}

pub(crate) async fn of_topic(names: &Names, asked: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let header = GetRouteInfo::decode(&asked.header.fields)?;
    if !is_ready(names) {
        return Err(Refusal::new(ResponseCode::SystemError, "name server not ready"));
    }
    if let Some(zone) = header.zone_name.filter(|zone| header.zone_mode == Some(true) && !zone.trim().is_empty()) {
        let _entry = names.entry.read().await;
        return of_zone(names, asked, header.topic, zone, out);
    }
    let kept = kept(names, header.topic).await.ok_or_else(|| no_route(header.topic))?;
    let body = match wants_standard(asked, header.accept_standard_json_only) {
        true => &kept.standard,
        false => &kept.fast_json,
    };
    ok(out, asked.reply_to(), &(), body)
}

fn is_ready(names: &Names) -> bool {
    let options = names.options.load();
    !options.need_wait_for_service || names.clock.elapsed() >= Duration::from_secs(options.wait_seconds_for_service)
}

fn no_route(topic: &str) -> Refusal {
    Refusal::new(
        ResponseCode::TopicNotExist,
        format!(
            "No topic route info in name server for the topic: {topic}\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
        ),
    )
}

async fn kept(names: &Names, topic: &str) -> Option<Kept> {
    if let Some(kept) = kept_at_once(names, topic) {
        return kept;
    }
    let _entry = names.entry.read().await;
    look(names, topic, names.table.read())
}

/// The outer `None`: the table is being changed, and nothing is kept.
fn kept_at_once(names: &Names, topic: &str) -> Option<Option<Kept>> {
    match names.table.try_read() {
        Some(table) => Some(look(names, topic, table)),
        // A change may take a while in a large table. What was kept until then answers as well as if it had been asked for a moment ago.
        None => names.routes.routes.pin().get(topic).cloned().map(Some),
    }
}

fn look(names: &Names, topic: &str, table: RwLockReadGuard<'_, RouteTable>) -> Option<Kept> {
    let routes = names.routes.routes.pin();
    let generation = table.generation();
    // After the generation, which grows when they change: what is kept under it was made with these settings or later ones.
    let options = names.options.load();
    let with_order = options.order_message_enable;
    // An order configuration comes from the key-value settings and may change without the table.
    if !with_order && let Some(kept) = routes.get(topic).filter(|kept| kept.generation == generation) {
        return Some(kept.clone());
    }
    let route = table.route(topic, options.support_acting_master);
    drop(table);
    let Some(mut route) = route else {
        routes.remove(topic);
        return None;
    };
    if with_order {
        route.order_topic_conf = names.kv.get(ORDER_TOPICS, topic);
    }
    let kept = Kept {
        generation,
        standard: fastjson::to_vec(&route, Dialect::Standard).into(),
        fast_json: fastjson::to_vec(&route, Dialect::FastJson).into(),
    };
    if !with_order {
        routes.insert(topic.to_owned(), kept.clone());
    }
    Some(kept)
}

/// A client that names its zone sees the brokers of that zone, and names without a master. Apache writes this one in its own
/// dialect whatever the client's version.
fn of_zone(names: &Names, asked: &Request<'_>, topic: &str, zone: &str, out: &mut Outgoing) -> Result<(), Refusal> {
    let options = names.options.load();
    let mut route = names.table.read().route(topic, options.support_acting_master).ok_or_else(|| no_route(topic))?;
    if options.order_message_enable {
        route.order_topic_conf = names.kv.get(ORDER_TOPICS, topic);
    }
    route.broker_datas.retain(|broker| {
        broker.zone_name.as_deref().is_some_and(|name| name.eq_ignore_ascii_case(zone))
            || !broker.broker_addrs.contains_key(&MASTER_ID)
    });
    let brokers = &route.broker_datas;
    route.queue_datas.retain(|queues| brokers.iter().any(|broker| broker.broker_name == queues.broker_name));
    ok(out, asked.reply_to(), &(), &fastjson::to_vec(&route, Dialect::FastJson))
}

pub(crate) fn clusters(names: &Names, asked: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let info = names.table.read().cluster_info();
    let dialect = match wants_standard(asked, None) {
        true => Dialect::Standard,
        false => Dialect::FastJson,
    };
    ok(out, asked.reply_to(), &(), &fastjson::to_vec(&info, dialect))
}

pub(crate) fn members(names: &Names, asked: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let header = GetBrokerMemberGroup::decode(&asked.header.fields)?;
    let broker_member_group = Some(names.table.read().members(header.cluster_name, header.broker_name));
    let body = fastjson::to_vec(&BrokerMemberGroupReply { broker_member_group }, Dialect::FastJson);
    ok(out, asked.reply_to(), &(), &body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::tests::{name_server, registered};
    use crate::options::Options;

    #[tokio::test]
    async fn routes_of_topics_that_are_gone_are_not_kept() {
        let (names, _) = name_server(Options::default());
        let _broker = registered(&names, "m:1", 0).await;
        assert!(kept(&names, "A").await.is_some() && kept(&names, "B").await.is_some());
        names.table.write().delete_topic("A", None);
        names.tidy();
        assert_eq!(names.routes.routes.pin().keys().collect::<Vec<_>>(), ["B"]);
    }
}
