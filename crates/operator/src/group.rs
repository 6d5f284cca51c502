//! Subscription groups: making, changing, deleting and looking at them.

use std::collections::BTreeMap;

use protocol::body::{SetMessageRequestMode, SubscriptionGroupConfig, SubscriptionGroupList};
use protocol::code::request;
use protocol::names::is_system_group;
use protocol::request::{DeleteGroup, GetGroupConfig};

use crate::error::Result;
use crate::handle::Operator;

impl Operator {
    /// Makes or changes a group on one broker.
    pub async fn create_group(&self, address: &str, config: &SubscriptionGroupConfig) -> Result<()> {
        self.admin.tell_json(address, request::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, &(), config).await?;
        Ok(())
    }

    /// Makes or changes many groups on one broker.
    pub async fn create_groups(&self, address: &str, list: &SubscriptionGroupList) -> Result<()> {
        self.admin.tell_json(address, request::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, &(), list).await?;
        Ok(())
    }

    /// Deletes a group on one broker, its offsets too if that is said.
    pub async fn delete_group(&self, address: &str, group: &str, with_offsets: bool) -> Result<()> {
        let fields = DeleteGroup { group_name: group, clean_offset: with_offsets };
        self.admin.tell(address, request::DELETE_SUBSCRIPTIONGROUP, &fields).await?;
        Ok(())
    }

    /// Sets on one broker whether a group pulls or pops a topic.
    pub async fn set_consume_mode(&self, address: &str, mode: &SetMessageRequestMode) -> Result<()> {
        self.admin.tell_json(address, request::SET_MESSAGE_REQUEST_MODE, &(), mode).await?;
        Ok(())
    }

    /// The groups of a broker without those of RocketMQ itself.
    pub async fn user_groups_at(&self, address: &str) -> Result<BTreeMap<String, SubscriptionGroupConfig>> {
        let mut groups = self.groups_at::<SubscriptionGroupConfig>(address).await?.table;
        groups.retain(|name, _| !is_system_group(name));
        Ok(groups)
    }

    /// A group as one broker has it.
    pub async fn group_at(&self, address: &str, group: &str) -> Result<SubscriptionGroupConfig> {
        let fields = GetGroupConfig { group };
        Ok(self.admin.ask(address, request::GET_SUBSCRIPTIONGROUP_CONFIG, &fields).await?)
    }
}
