//! A client that asks a broker for what the tests look at.

use bytes::Bytes;
use net::{CallError, Client, ClientOptions, Response};
use protocol::batch::{self, InnerMessage};
use protocol::code::request;
use protocol::record::{self, Scanned};
use protocol::request::{CreateTopic, PullMessage, SendMessage};

use super::{PATIENCE, Running};

#[derive(Clone)]
pub struct Asking {
    pub client: Client,
    pub broker: String,
}

impl Asking {
    pub fn of(running: &Running) -> Asking {
        Asking { client: Client::new(ClientOptions::default()), broker: running.address("broker").to_owned() }
    }

    /// Sends one message; its topic is made if it is not there.
    pub async fn send(&self, topic: &str, queue_id: i32, properties: &str, body: &str) -> Result<Response, CallError> {
        let message = SendMessage { properties: Some(properties), ..to(topic, queue_id) };
        self.client.call(&self.broker, request::SEND_MESSAGE_V2, &message, body.to_owned().into(), PATIENCE).await
    }

    /// Sends several in one batch.
    pub async fn send_batch(&self, topic: &str, queue_id: i32, bodies: &[String]) -> Result<Response, CallError> {
        let mut batch = Vec::new();
        for body in bodies {
            batch::encode(&mut batch, &InnerMessage { flag: 0, body: body.as_bytes(), properties: "" }).unwrap();
        }
        let message = SendMessage { batch: Some(true), ..to(topic, queue_id) };
        self.client.call(&self.broker, request::SEND_BATCH_MESSAGE, &message, batch.into(), PATIENCE).await
    }

    /// What `brokerStatus` says under a name.
    pub async fn status(&self, name: &str) -> Option<String> {
        let call = self.client.call(&self.broker, request::GET_BROKER_RUNTIME_INFO, &(), Bytes::new(), PATIENCE);
        let status: serde_json::Value = serde_json::from_slice(&call.await.unwrap().body).unwrap();
        status["table"][name].as_str().map(str::to_owned)
    }

    /// The same, a number.
    pub async fn figure(&self, name: &str) -> u64 {
        self.status(name).await.unwrap_or_else(|| panic!("brokerStatus has no {name}")).parse().unwrap()
    }

    /// All settings, a line each.
    pub async fn settings(&self) -> String {
        let call = self.client.call(&self.broker, request::GET_BROKER_CONFIG, &(), Bytes::new(), PATIENCE);
        String::from_utf8(call.await.unwrap().body.to_vec()).unwrap()
    }

    /// Makes a topic, or changes it.
    pub async fn create(&self, topic: &str, queues: i32, attributes: &str) -> Response {
        let create = CreateTopic {
            topic,
            default_topic: Some("TBW102"),
            read_queue_nums: queues,
            write_queue_nums: queues,
            perm: 6,
            topic_filter_type: "SINGLE_TAG",
            topic_sys_flag: Some(0),
            order: false,
            attributes: Some(attributes),
            force: false,
        };
        let call = self.client.call(&self.broker, request::UPDATE_AND_CREATE_TOPIC, &create, Bytes::new(), PATIENCE);
        call.await.unwrap()
    }

    /// The answer to a pull.
    pub async fn try_pull(&self, topic: &str, queue_id: i32, offset: u64) -> Response {
        let pull = PullMessage { max_msg_nums: 1000, ..PullMessage::at("CG", topic, queue_id, offset as i64) };
        self.client.call(&self.broker, request::PULL_MESSAGE, &pull, Bytes::new(), PATIENCE).await.unwrap()
    }

    /// The code of the answer, where the next pull begins, and offsets and bodies of what was found.
    pub async fn pull(
        &self,
        topic: &str,
        queue_id: i32,
        offset: u64,
    ) -> Result<(i32, u64, Vec<(u64, String)>), CallError> {
        let pull = PullMessage { max_msg_nums: 1000, ..PullMessage::at("CG", topic, queue_id, offset as i64) };
        let found = self.client.call(&self.broker, request::PULL_MESSAGE, &pull, Bytes::new(), PATIENCE).await?;
        let next = found.fields.get("nextBeginOffset").map_or(offset, |text| text.parse().unwrap());
        let mut messages = Vec::new();
        let mut rest: &[u8] = if found.code == 0 { &found.body } else { &[] };
        while !rest.is_empty() {
            let Scanned::Record(view) = record::scan(rest, true).unwrap() else { panic!("not a record") };
            messages.push((view.queue_offset(), std::str::from_utf8(view.body()).unwrap().trim_end().to_owned()));
            rest = &rest[view.total_size()..];
        }
        Ok((found.code, next, messages))
    }

    /// Offsets and bodies of all messages of a queue, in its order.
    pub async fn all(&self, topic: &str, queue_id: i32) -> Vec<(u64, String)> {
        let (mut all, mut offset) = (Vec::new(), 0);
        // Ends where the queue does: each answer leads on.
        loop {
            let (_, next, messages) = self.pull(topic, queue_id, offset).await.unwrap();
            if next <= offset {
                return all;
            }
            all.extend(messages);
            offset = next;
        }
    }

    /// The bodies of all messages of a queue without gaps.
    pub async fn bodies(&self, topic: &str, queue_id: i32) -> Vec<String> {
        let all = self.all(topic, queue_id).await;
        for (expected, (offset, _)) in (0..).zip(&all) {
            assert_eq!(*offset, expected);
        }
        all.into_iter().map(|(_, body)| body).collect()
    }
}

fn to(topic: &str, queue_id: i32) -> SendMessage<'_> {
    SendMessage {
        producer_group: "PG",
        topic,
        default_topic: "TBW102",
        default_topic_queue_nums: 1,
        queue_id,
        ..SendMessage::default()
    }
}
