//! Users.

use protocol::body::UserInfo;
use protocol::code::request;
use protocol::request::{CreateUser, DeleteUser, GetUser, ListUsers, UpdateUser};

use crate::error::{OperatorError, Result};
use crate::handle::Operator;

impl Operator {
    /// Makes a user on one broker.
    pub async fn create_user(&self, address: &str, user: &UserInfo) -> Result<()> {
        let fields = CreateUser { username: user.username.as_deref().unwrap_or_default() };
        self.admin.tell_json(address, request::AUTH_CREATE_USER, &fields, user).await?;
        Ok(())
    }

    /// Changes a user on one broker.
    pub async fn update_user(&self, address: &str, user: &UserInfo) -> Result<()> {
        let fields = UpdateUser { username: user.username.as_deref().unwrap_or_default() };
        self.admin.tell_json(address, request::AUTH_UPDATE_USER, &fields, user).await?;
        Ok(())
    }

    /// Deletes a user on one broker.
    pub async fn delete_user(&self, address: &str, username: &str) -> Result<()> {
        self.admin.tell(address, request::AUTH_DELETE_USER, &DeleteUser { username }).await?;
        Ok(())
    }

    /// One user of a broker; none is an answer without a body.
    pub async fn user(&self, address: &str, username: &str) -> Result<Option<UserInfo>> {
        let response = self.admin.tell(address, request::AUTH_GET_USER, &GetUser { username }).await?;
        Ok(if response.body.is_empty() { None } else { Some(client::admin::read(&response)?) })
    }

    /// The users of a broker whose names contain `filter`.
    pub async fn users(&self, address: &str, filter: Option<&str>) -> Result<Vec<UserInfo>> {
        let response = self.admin.tell(address, request::AUTH_LIST_USER, &ListUsers { filter }).await?;
        Ok(if response.body.is_empty() { Vec::new() } else { client::admin::read(&response)? })
    }

    /// These users of a broker, by name.
    pub async fn users_named(&self, address: &str, names: &[&str]) -> Result<Vec<UserInfo>> {
        let mut users = Vec::new();
        for name in names {
            let unknown = || OperatorError::NotFound(format!("{address} has no user {name}"));
            users.push(self.user(address, name).await?.ok_or_else(unknown)?);
        }
        Ok(users)
    }

    /// Makes a user on one broker, or changes it if it is there.
    pub async fn put_user(&self, address: &str, user: &UserInfo) -> Result<()> {
        match self.user(address, user.username.as_deref().unwrap_or_default()).await? {
            None => self.create_user(address, user).await,
            Some(_) => self.update_user(address, user).await,
        }
    }
}
