//! Lite topics: small topics within a topic, of which a client subscribes to many.
//!
//! Answers are those of the parent topic's brokers, by name.

use protocol::body::{BrokerLiteInfo, LiteClientInfo, LiteGroupInfo, LiteTopicInfo, ParentTopicInfo};
use protocol::code::request;
use protocol::header::EncodeFields;
use protocol::request::{
    GetLiteClientInfo, GetLiteGroupInfo, GetLiteTopicInfo, GetParentTopicInfo, TriggerLiteDispatch,
};
use serde::de::DeserializeOwned;

use crate::cluster::readable;
use crate::error::{OperatorError, Result};
use crate::handle::Operator;

/// As mqadmin: lite topics of one client that are told at most.
const CLIENT_TOPICS_MAX: i32 = 1000;

impl Operator {
    /// A broker's figures of lite topics.
    pub async fn lite_figures(&self, address: &str) -> Result<BrokerLiteInfo> {
        Ok(self.admin.ask(address, request::GET_BROKER_LITE_INFO, &()).await?)
    }

    /// A topic that holds lite topics.
    pub async fn parent_topic(&self, topic: &str) -> Result<Vec<(String, ParentTopicInfo)>> {
        self.each(topic, request::GET_PARENT_TOPIC_INFO, &GetParentTopicInfo { topic }).await
    }

    /// A lite topic.
    pub async fn lite_topic(&self, parent: &str, lite_topic: &str) -> Result<Vec<(String, LiteTopicInfo)>> {
        let fields = GetLiteTopicInfo { parent_topic: Some(parent), lite_topic: Some(lite_topic) };
        self.each(parent, request::GET_LITE_TOPIC_INFO, &fields).await
    }

    /// Which lite topics a client subscribes to.
    pub async fn lite_client(
        &self,
        parent: &str,
        group: &str,
        client_id: &str,
    ) -> Result<Vec<(String, LiteClientInfo)>> {
        let fields = GetLiteClientInfo {
            parent_topic: Some(parent),
            group: Some(group),
            client_id: Some(client_id),
            max_count: CLIENT_TOPICS_MAX,
        };
        self.each(parent, request::GET_LITE_CLIENT_INFO, &fields).await
    }

    /// How far a group is behind in its lite topics, or in one: with the `top_k` that are furthest behind.
    pub async fn lite_group(
        &self,
        parent: &str,
        group: &str,
        lite_topic: Option<&str>,
        top_k: i32,
    ) -> Result<Vec<(String, LiteGroupInfo)>> {
        let fields = GetLiteGroupInfo { group, lite_topic, top_k };
        self.each(parent, request::GET_LITE_GROUP_INFO, &fields).await
    }

    /// Lets brokers, or the one of that name, tell clients once more which lite topics have messages. Returns which did.
    pub async fn dispatch_lite(
        &self,
        parent: &str,
        group: &str,
        client_id: Option<&str>,
        broker_name: Option<&str>,
    ) -> Result<Vec<String>> {
        let route = self.route(parent).await?;
        let mut done = Vec::new();
        for (name, address) in readable(&route).filter(|(name, _)| broker_name.is_none_or(|only| only == name)) {
            let fields = TriggerLiteDispatch { group, client_id };
            let told = self.admin.tell(&address, request::TRIGGER_LITE_DISPATCH, &fields).await;
            told.map_err(|error| OperatorError::from(error).during(format!("broker {name} does not dispatch")))?;
            done.push(name);
        }
        Ok(done)
    }

    async fn each<T: DeserializeOwned>(
        &self,
        parent: &str,
        code: i32,
        fields: &(dyn EncodeFields + Sync),
    ) -> Result<Vec<(String, T)>> {
        let mut answers = Vec::new();
        for (name, address) in readable(&self.route(parent).await?) {
            answers.push((name, self.admin.ask(&address, code, fields).await?));
        }
        Ok(answers)
    }
}
