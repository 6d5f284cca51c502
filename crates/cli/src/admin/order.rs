//! Which queues an ordered topic has, and who would get which.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use clap::Args;
use client::{Route, allocate};
use protocol::body::MessageQueue;
use protocol::code::{ResponseCode, request};
use protocol::request::{DeleteKv, GetKv, GetKvReply, PutKv};

use super::output::{Facts, Table};
use super::session::Session;

/// Where name servers keep the order of topics.
const NAMESPACE: &str = "ORDER_TOPIC_CONFIG";

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct UpdateOrderConf {
    /// The topic
    #[arg(short, long)]
    topic: String,
    /// For put: broker:queues, separated by semicolons
    #[arg(short = 'v', long)]
    order_conf: Option<String>,
    /// put, get or delete
    #[arg(short, long)]
    method: String,
}

impl UpdateOrderConf {
    pub async fn run(&self, session: &Session) -> Result<()> {
        session.need_names()?;
        let topic = self.topic.trim();
        match self.method.trim() {
            "get" => {
                let order = order(session, topic).await?;
                let facts = Facts::new().with("Topic", topic).with("Order Conf", order);
                session.out.facts(&facts)?;
            }
            "put" => {
                let Some(order) = self.order_conf.as_deref().map(str::trim).filter(|order| !order.is_empty()) else {
                    bail!("put needs the order: -v broker:queues");
                };
                set_order(session, topic, order, true).await?;
                session.out.say(format!("update orderConf success. topic=[{topic}], orderConf=[{order}]"))?;
            }
            "delete" => {
                if order(session, topic).await?.is_none() {
                    bail!("no name server has an order of topic {topic}: nothing is deleted");
                }
                for address in session.admin.name_servers() {
                    let fields = DeleteKv { namespace: NAMESPACE, key: topic };
                    session.admin.tell(address, request::DELETE_KV_CONFIG, &fields).await?;
                }
                session.out.say(format!("delete orderConf success. topic=[{topic}]"))?;
            }
            other => bail!("-m is put, get or delete, not \"{other}\""),
        }
        Ok(())
    }
}

async fn order(session: &Session, topic: &str) -> Result<Option<String>> {
    let fields = GetKv { namespace: NAMESPACE, key: topic };
    match session.admin.tell_names(request::GET_KV_CONFIG, &fields).await {
        Ok(response) => Ok(GetKvReply::decode(&response.fields.as_fields())?.value.map(str::to_owned)),
        Err(error) if error.code() == Some(ResponseCode::QueryNotFound as i32) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Sets the order of a topic in all name servers: the whole of it, or the part of the brokers that it names. Returns what holds now.
pub async fn set_order(session: &Session, topic: &str, order_part: &str, is_whole: bool) -> Result<String> {
    let known = if is_whole { None } else { order(session, topic).await? };
    let parts = known.iter().flat_map(|known| known.split(';')).chain(order_part.split(';'));
    let by_broker: BTreeMap<&str, &str> = parts.filter_map(|part| Some((part.split_once(':')?.0, part))).collect();
    let whole = by_broker.into_values().collect::<Vec<_>>().join(";");
    let value = if is_whole { order_part } else { &whole };
    for address in session.admin.name_servers() {
        let fields = PutKv { namespace: NAMESPACE, key: topic, value };
        session.admin.tell(address, request::PUT_KV_CONFIG, &fields).await?;
    }
    Ok(value.to_owned())
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct AllocateMQ {
    /// The topic
    #[arg(short, long)]
    topic: String,
    /// Client ids, separated by commas
    #[arg(short, long)]
    ip_list: String,
}

impl AllocateMQ {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let topic = self.topic.trim();
        let queues = Route::new(topic, session.route(topic).await?).readable;
        let clients: Vec<String> = self.ip_list.split(',').map(|one| one.trim().to_owned()).collect();
        let shares = clients.iter().map(|client| (client, allocate(&queues, &clients, client)));
        let shares: BTreeMap<&String, Vec<MessageQueue>> = shares.collect();
        if session.out.is_json() {
            session.out.value("result", &shares)?;
            return Ok(());
        }
        let mut table = Table::new(["Client", "Broker Name", "QID"]);
        for (client, queues) in &shares {
            for queue in queues {
                table.row([client.as_str().into(), (&queue.broker_name).into(), queue.queue_id.into()]);
            }
        }
        session.out.table("result", &table)?;
        Ok(())
    }
}
