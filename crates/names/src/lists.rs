//! What operators' tools ask: lists of topics (206, 224, 304, 311 to 313) and the small settings (100 to 102, 219).

use net::{Outgoing, Request};
use protocol::body::TopicList;
use protocol::code::{ResponseCode, request};
use protocol::fastjson::{self, Dialect};
use protocol::request::{DeleteKv, GetKv, GetKvList, GetKvReply, GetTopicsByCluster, PutKv};
use protocol::sys_flag::topic::{UNIT, UNIT_SUB};

use crate::names::{Names, Refusal, ok};
use crate::order;
use crate::routes::RouteTable;

pub(crate) fn topics(names: &Names, asked: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let options = names.options.load();
    let code = asked.header.code;
    let is_enabled = match code {
        request::GET_ALL_TOPIC_LIST_FROM_NAMESERVER => options.enable_all_topic_list,
        request::GET_SYSTEM_TOPIC_LIST_FROM_NS => true,
        _ => options.enable_topic_list,
    };
    if !is_enabled {
        return Err(Refusal::new(ResponseCode::SystemError, "disable"));
    }
    let table = names.table.read();
    let list = match code {
        request::GET_TOPICS_BY_CLUSTER => {
            let header = GetTopicsByCluster::decode(&asked.header.fields)?;
            TopicList { broker_addr: None, topic_list: table.topics_of(header.cluster) }
        }
        request::GET_SYSTEM_TOPIC_LIST_FROM_NS => system_topics(&table),
        request::GET_UNIT_TOPIC_LIST => flagged(&table, |flag| flag & UNIT != 0),
        request::GET_HAS_UNIT_SUB_TOPIC_LIST => flagged(&table, |flag| flag & UNIT_SUB != 0),
        request::GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST => flagged(&table, |flag| flag & UNIT_SUB != 0 && flag & UNIT == 0),
        _ => flagged(&table, |_| true),
    };
    drop(table);
    ok(out, asked.reply_to(), &(), &fastjson::to_vec(&list, Dialect::FastJson))
}

fn flagged(table: &RouteTable, wants: impl Fn(i32) -> bool) -> TopicList {
    let topics = table.topics().filter(|(_, flag)| wants(*flag));
    TopicList { broker_addr: None, topic_list: topics.map(|(name, _)| name.to_owned()).collect() }
}

/// Clusters and brokers have a topic of their own name each.
fn system_topics(table: &RouteTable) -> TopicList {
    let info = table.cluster_info();
    let mut topic_list = Vec::new();
    for (cluster, brokers) in info.cluster_addr_table {
        topic_list.push(cluster);
        topic_list.extend(brokers);
    }
    let mut addresses = info.broker_addr_table.into_values().flat_map(|broker| broker.broker_addrs.into_values());
    TopicList { broker_addr: addresses.next(), topic_list }
}

pub(crate) async fn put_kv(names: &Names, asked: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let header = PutKv::decode(&asked.header.fields)?;
    let limits = names.limits();
    // A longer one is refused for its length, and not read before.
    if header.value.len() <= limits.kv_value_bytes {
        order::check(header.namespace, header.key, header.value)?;
    }
    names.kv.put(limits, header.namespace, header.key, header.value).await?;
    ok(out, asked.reply_to(), &(), &[])
}

pub(crate) fn get_kv(names: &Names, asked: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let header = GetKv::decode(&asked.header.fields)?;
    let value = names.kv.get(header.namespace, header.key).ok_or_else(|| {
        let remark = format!("No config item, Namespace: {} Key: {}", header.namespace, header.key);
        Refusal::new(ResponseCode::QueryNotFound, remark)
    })?;
    ok(out, asked.reply_to(), &GetKvReply { value: Some(&value) }, &[])
}

pub(crate) async fn delete_kv(names: &Names, asked: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let header = DeleteKv::decode(&asked.header.fields)?;
    names.kv.delete(names.limits(), header.namespace, header.key).await?;
    ok(out, asked.reply_to(), &(), &[])
}

pub(crate) fn list_kv(names: &Names, asked: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let header = GetKvList::decode(&asked.header.fields)?;
    let table = names.kv.list(header.namespace).ok_or_else(|| {
        let remark = format!("No config item, Namespace: {}", header.namespace);
        Refusal::new(ResponseCode::QueryNotFound, remark)
    })?;
    ok(out, asked.reply_to(), &(), &table)
}
