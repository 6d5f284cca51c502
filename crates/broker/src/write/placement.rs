//! A topic that came into being by a send is made on the other brokers of the cluster too, with as many queues.
//!
//! In Apache it exists where the first messages happened to go, and producers that learn of it then send there only: one broker carries
//! the whole topic. Which brokers take part is what the name servers say of the template that the topic was made from (`TBW102`): those
//! with `autoCreateTopicEnable`. A broker that has the topic already keeps it as it is. One task does this, a topic after the other; no
//! send waits for it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use net::CallError;
use protocol::body::{MASTER_ID, TopicConfig, TopicRoute};
use protocol::code::{ResponseCode, request};
use protocol::fastjson;
use protocol::request::{CreateTopic, GetRouteInfo, GetTopicConfig};
use protocol::sys_flag::perm;

use crate::broker::Broker;
use crate::state::placement::PlacementJob;
use crate::tasks::Stop;

/// How often a topic is tried when a broker or the name servers do not answer.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(3);

/// Why a topic could not be made on another broker.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlaceError {
    #[error("no name server tells where topics may be made (route of {0})")]
    NoRoute(Box<str>),
    #[error("{address}: {source}")]
    Call { address: String, source: CallError },
    #[error("{address} refused with code {code}: {remark}")]
    Refused { address: String, code: i32, remark: String },
}

/// The task.
pub(crate) async fn run(broker: Arc<Broker>, mut stop: Stop) {
    while !stop.is_asked() {
        let next = broker.placement.next();
        let work = async {
            match next {
                Some(wanted) => turn(&broker, wanted).await,
                None => broker.placement.added().await,
            }
        };
        tokio::select! {
            biased;
            () = stop.asked() => return,
            () = work => {}
        }
    }
}

async fn turn(broker: &Broker, mut wanted: PlacementJob) {
    let Err(error) = place(broker, &wanted).await else { return };
    wanted.tries += 1;
    if wanted.tries < TRIES {
        tokio::time::sleep(PAUSE).await;
        broker.placement.again(wanted);
    } else {
        tracing::warn!(topic = %wanted.topic, %error, "topic not made on every broker of the cluster");
    }
}

async fn place(broker: &Broker, wanted: &PlacementJob) -> Result<(), PlaceError> {
    let Some(topic) = broker.topics.get(&wanted.topic) else { return Ok(()) };
    let config = topic.config();
    let settings = broker.settings.load_full();
    let route = route_of(broker, &wanted.template).await?;
    let mut failed = None;
    for address in others(&route, &settings.broker_cluster_name, &settings.broker_name) {
        match make(broker, &address, &config).await {
            Ok(true) => {
                tracing::info!(topic = %wanted.topic, broker = address, "topic on demand made on another broker")
            }
            Ok(false) => {}
            Err(error) => failed = Some(error),
        }
    }
    failed.map_or(Ok(()), Err)
}

/// What the name servers say of a topic.
pub(crate) async fn route_of(broker: &Broker, topic: &str) -> Result<TopicRoute, PlaceError> {
    for address in broker.registry.addresses() {
        let fields = GetRouteInfo { topic, accept_standard_json_only: Some(true), zone_mode: None, zone_name: None };
        let client = &broker.registry.client;
        let answer = client.call(address, request::GET_ROUTEINFO_BY_TOPIC, &fields, Bytes::new(), TIMEOUT).await;
        if let Ok(answer) = answer
            && answer.code == ResponseCode::Success as i32
            && let Ok(route) = fastjson::from_slice(&answer.body)
        {
            return Ok(route);
        }
    }
    Err(PlaceError::NoRoute(topic.into()))
}

/// The masters of a cluster that would make a topic from the template, but for one.
fn others(route: &TopicRoute, cluster: &str, own_name: &str) -> Vec<String> {
    let would_make = |name: &str| {
        route
            .queue_datas
            .iter()
            .any(|data| data.broker_name == name && perm::is_inherited(data.perm) && perm::is_writable(data.perm))
    };
    let brokers = route
        .broker_datas
        .iter()
        .filter(|data| data.cluster == cluster && data.broker_name != own_name && would_make(&data.broker_name));
    brokers.filter_map(|data| data.broker_addrs.get(&MASTER_ID).cloned()).collect()
}

/// Makes the topic if the broker does not have it. Says whether it was made.
async fn make(broker: &Broker, address: &str, config: &TopicConfig) -> Result<bool, PlaceError> {
    let client = &broker.registry.client;
    let failed = |source| PlaceError::Call { address: address.to_owned(), source };
    let topic = config.topic_name.as_str();
    let fields = GetTopicConfig { topic, lo: None };
    let there =
        client.call(address, request::GET_TOPIC_CONFIG, &fields, Bytes::new(), TIMEOUT).await.map_err(failed)?;
    let refused = |code: i32, remark: Option<String>| PlaceError::Refused {
        address: address.to_owned(),
        code,
        remark: remark.unwrap_or_default(),
    };
    if there.code == ResponseCode::Success as i32 {
        return Ok(false);
    }
    if there.code != ResponseCode::TopicNotExist as i32 {
        return Err(refused(there.code, there.remark));
    }
    let fields = CreateTopic {
        topic,
        default_topic: Some(protocol::names::AUTO_CREATE_TOPIC),
        read_queue_nums: config.read_queue_nums,
        write_queue_nums: config.write_queue_nums,
        perm: config.perm,
        topic_filter_type: config.topic_filter_type.name(),
        topic_sys_flag: Some(config.topic_sys_flag),
        order: config.order,
        attributes: None,
        force: false,
    };
    let made =
        client.call(address, request::UPDATE_AND_CREATE_TOPIC, &fields, Bytes::new(), TIMEOUT).await.map_err(failed)?;
    if made.code != ResponseCode::Success as i32 {
        return Err(refused(made.code, made.remark));
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::body::{BrokerData, QueueData};

    #[test]
    fn a_topic_goes_to_the_other_masters_of_the_cluster_that_make_topics_by_themselves() {
        let broker = |name: &str, cluster: &str, id: i64| BrokerData {
            broker_addrs: [(id, format!("{name}:1"))].into(),
            broker_name: name.to_owned(),
            cluster: cluster.to_owned(),
            ..BrokerData::default()
        };
        let queues = |name: &str, perm| QueueData { broker_name: name.to_owned(), perm, ..QueueData::default() };
        let route = TopicRoute {
            broker_datas: vec![
                broker("own", "C", 0),
                broker("other", "C", 0),
                broker("slave", "C", 1),
                broker("sealed", "C", 0),
                broker("far", "D", 0),
            ],
            queue_datas: ["own", "other", "slave", "far"]
                .map(|name| queues(name, 7))
                .into_iter()
                .chain([queues("sealed", 5)])
                .collect(),
            ..TopicRoute::default()
        };
        assert_eq!(others(&route, "C", "own"), ["other:1"]);
    }
}
