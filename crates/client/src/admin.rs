//! What operators ask: any request of brokers, name servers and controllers, by its code, its table of fields and its body.
//!
//! The tables in [`protocol::request`] and the bodies in [`protocol::body`] say what each code takes and gives; the functions here
//! only carry them. Those with a name of their own are the ones that most tools begin with.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
pub use net::Response;
use protocol::body::{ClusterInfo, MessageQueue, TopicRoute};
use protocol::code::request;
use protocol::fastjson::{self, Dialect};
use protocol::header::EncodeFields;
use protocol::request::{QueryMessage, ViewMessage};
use protocol::sys_flag::pull as flag;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::ClientError;
use crate::member::Member;
use crate::message::{Received, decode};
use crate::pull_consumer::{Pulled, pull_fields};

/// Asks as an operator. Clones share the client's connections.
#[derive(Clone)]
pub struct Admin {
    member: Arc<Member>,
    timeout: Duration,
}

impl Admin {
    pub(crate) fn new(member: Arc<Member>) -> Admin {
        let timeout = member.config.timeout;
        Admin { member, timeout }
    }

    /// The same with more or less patience.
    pub fn within(&self, timeout: Duration) -> Admin {
        Admin { member: Arc::clone(&self.member), timeout }
    }

    /// The name servers of this client, in the order in which they were given.
    pub fn name_servers(&self) -> &[String] {
        &self.member.config.name_servers
    }

    /// Sends a request; only success is an answer.
    pub async fn call(
        &self,
        address: &str,
        code: i32,
        fields: &(dyn EncodeFields + Sync),
        body: Bytes,
    ) -> Result<Response, ClientError> {
        self.member.call(address, code, fields, body, self.timeout).await
    }

    /// Sends a request without a body; nothing but success is expected.
    pub async fn tell(
        &self,
        address: &str,
        code: i32,
        fields: &(dyn EncodeFields + Sync),
    ) -> Result<Response, ClientError> {
        self.call(address, code, fields, Bytes::new()).await
    }

    /// Sends a request with a JSON body.
    pub async fn tell_json<B: Serialize + Sync>(
        &self,
        address: &str,
        code: i32,
        fields: &(dyn EncodeFields + Sync),
        body: &B,
    ) -> Result<Response, ClientError> {
        self.call(address, code, fields, fastjson::to_vec(body, Dialect::FastJson).into()).await
    }

    /// Sends a request without a body and reads the JSON that comes back.
    pub async fn ask<T: DeserializeOwned>(
        &self,
        address: &str,
        code: i32,
        fields: &(dyn EncodeFields + Sync),
    ) -> Result<T, ClientError> {
        read(&self.tell(address, code, fields).await?)
    }

    /// Asks the name servers in turn until one answers; a refusal is an answer.
    pub async fn tell_names(&self, code: i32, fields: &(dyn EncodeFields + Sync)) -> Result<Response, ClientError> {
        let mut last = ClientError::Invalid("no name server is configured".to_owned());
        for address in self.name_servers() {
            match self.tell(address, code, fields).await {
                Err(error) if error.code().is_none() => last = error,
                answered => return answered,
            }
        }
        Err(last)
    }

    /// As [`Admin::tell_names`]; reads the JSON that comes back.
    pub async fn ask_names<T: DeserializeOwned>(
        &self,
        code: i32,
        fields: &(dyn EncodeFields + Sync),
    ) -> Result<T, ClientError> {
        read(&self.tell_names(code, fields).await?)
    }

    /// The clusters, their brokers, and where these are.
    pub async fn cluster(&self) -> Result<ClusterInfo, ClientError> {
        self.ask_names(request::GET_BROKER_CLUSTER_INFO, &()).await
    }

    /// A topic's route as the name server tells it, without a look into the client's own memory.
    pub async fn route(&self, topic: &str) -> Result<TopicRoute, ClientError> {
        self.member.ask_route(topic).await
    }

    /// Pulls what is there from `offset` on, at most `max` messages that match the tag expression; never waits for more.
    pub async fn pull(
        &self,
        address: &str,
        group: &str,
        queue: &MessageQueue,
        offset: i64,
        max: i32,
        expression: &str,
    ) -> Result<Pulled, ClientError> {
        let fields = pull_fields(group, queue, offset, max, expression, Duration::ZERO);
        let fields = protocol::request::PullMessage { sys_flag: flag::SUBSCRIPTION, ..fields };
        self.member.pull(address, &fields, queue, self.timeout).await
    }

    /// The message at a place of a broker's log.
    pub async fn message_at(&self, address: &str, topic: &str, offset: i64) -> Result<Received, ClientError> {
        let fields = ViewMessage { topic: Some(topic), offset };
        let response = self.tell(address, request::VIEW_MESSAGE_BY_ID, &fields).await?;
        decode(&response.body, &"".into())?
            .pop()
            .ok_or_else(|| ClientError::malformed("a message", "the answer holds none"))
    }

    /// Messages that a broker finds by key. None is an empty list.
    pub async fn messages_by_key(
        &self,
        address: &str,
        broker_name: &str,
        query: &QueryMessage<'_>,
    ) -> Result<Vec<Received>, ClientError> {
        let response = self.tell(address, request::QUERY_MESSAGE, query).await?;
        decode(&response.body, &broker_name.into())
    }
}

/// Reads the JSON body of a response, in either of RocketMQ's dialects.
pub fn read<T: DeserializeOwned>(response: &Response) -> Result<T, ClientError> {
    fastjson::from_slice(&response.body).map_err(|error| ClientError::malformed("the body of an answer", error))
}
