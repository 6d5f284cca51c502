//! What subjects may do.

use protocol::body::AclInfo;
use protocol::code::request;
use protocol::request::{CreateAcl, DeleteAcl, GetAcl, ListAcls, UpdateAcl};

use crate::error::{OperatorError, Result};
use crate::handle::Operator;

impl Operator {
    /// Makes rules on one broker.
    pub async fn create_acl(&self, address: &str, info: &AclInfo) -> Result<()> {
        let fields = CreateAcl { subject: info.subject.as_deref().unwrap_or_default() };
        self.admin.tell_json(address, request::AUTH_CREATE_ACL, &fields, info).await?;
        Ok(())
    }

    /// Changes rules on one broker.
    pub async fn update_acl(&self, address: &str, info: &AclInfo) -> Result<()> {
        let fields = UpdateAcl { subject: info.subject.as_deref().unwrap_or_default() };
        self.admin.tell_json(address, request::AUTH_UPDATE_ACL, &fields, info).await?;
        Ok(())
    }

    /// Deletes the rules of a subject on one broker: for these resources, separated by commas, or all.
    pub async fn delete_acl(&self, address: &str, subject: &str, resource: Option<&str>) -> Result<()> {
        let fields = DeleteAcl { subject, policy_type: None, resource };
        self.admin.tell(address, request::AUTH_DELETE_ACL, &fields).await?;
        Ok(())
    }

    /// The rules of a subject; none is an answer without a body.
    pub async fn acl(&self, address: &str, subject: &str) -> Result<Option<AclInfo>> {
        let response = self.admin.tell(address, request::AUTH_GET_ACL, &GetAcl { subject }).await?;
        Ok(if response.body.is_empty() { None } else { Some(client::admin::read(&response)?) })
    }

    /// The rules of a broker whose subject and resource contain these texts.
    pub async fn acls(&self, address: &str, subject: Option<&str>, resource: Option<&str>) -> Result<Vec<AclInfo>> {
        let fields = ListAcls { subject_filter: subject, resource_filter: resource };
        let response = self.admin.tell(address, request::AUTH_LIST_ACL, &fields).await?;
        Ok(if response.body.is_empty() { Vec::new() } else { client::admin::read(&response)? })
    }

    /// The rules of these subjects.
    pub async fn acls_of(&self, address: &str, subjects: &[String]) -> Result<Vec<AclInfo>> {
        let mut infos = Vec::new();
        for subject in subjects {
            let unknown = || OperatorError::NotFound(format!("{address} has no rules of {subject}"));
            infos.push(self.acl(address, subject).await?.ok_or_else(unknown)?);
        }
        Ok(infos)
    }

    /// Makes rules on one broker, or changes them if its subject has some there.
    pub async fn put_acl(&self, address: &str, info: &AclInfo) -> Result<()> {
        match self.acl(address, info.subject.as_deref().unwrap_or_default()).await? {
            None => self.create_acl(address, info).await,
            Some(_) => self.update_acl(address, info).await,
        }
    }
}
