//! Users.

use anyhow::{Context, Result};
use clap::Args;
use client::ClientError;
use protocol::body::UserInfo;
use protocol::code::request;
use protocol::request::{
    CreateUser as Create, DeleteUser as Delete, GetUser as Get, ListUsers as List, UpdateUser as Update,
};

use super::output::Table;
use super::session::Session;
use super::target::Target;

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct CreateUser {
    #[command(flatten)]
    target: Target,
    /// The user's name
    #[arg(short, long)]
    username: String,
    /// The user's password
    #[arg(short, long)]
    password: String,
    /// Super or Normal
    #[arg(short = 't', long)]
    user_type: Option<String>,
}

impl CreateUser {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let user = UserInfo {
            username: Some(self.username.trim().to_owned()),
            password: Some(self.password.trim().to_owned()),
            user_type: self.user_type.clone(),
            user_status: None,
        };
        for address in session.replicas(&self.target).await? {
            create(session, &address, &user).await?;
            session.out.say(format!("create user to {address} success."))?;
        }
        Ok(())
    }
}

async fn create(session: &Session, address: &str, user: &UserInfo) -> Result<(), ClientError> {
    let fields = Create { username: user.username.as_deref().unwrap_or_default() };
    session.admin.tell_json(address, request::AUTH_CREATE_USER, &fields, user).await?;
    Ok(())
}

async fn update(session: &Session, address: &str, user: &UserInfo) -> Result<(), ClientError> {
    let fields = Update { username: user.username.as_deref().unwrap_or_default() };
    session.admin.tell_json(address, request::AUTH_UPDATE_USER, &fields, user).await?;
    Ok(())
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
#[group(id = "change", args = ["password", "user_type", "user_status"], required = true, multiple = false)]
pub struct UpdateUser {
    #[command(flatten)]
    target: Target,
    /// The user's name
    #[arg(short, long)]
    username: String,
    /// The user's new password
    #[arg(short, long)]
    password: Option<String>,
    /// Super or Normal
    #[arg(short = 't', long)]
    user_type: Option<String>,
    /// enable or disable
    #[arg(short = 's', long)]
    user_status: Option<String>,
}

impl UpdateUser {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let user = UserInfo {
            username: Some(self.username.trim().to_owned()),
            password: self.password.clone(),
            user_type: self.user_type.clone(),
            user_status: self.user_status.clone(),
        };
        for address in session.replicas(&self.target).await? {
            update(session, &address, &user).await?;
            session.out.say(format!("update user to {address} success."))?;
        }
        Ok(())
    }
}

#[derive(Debug, Args)]
pub struct DeleteUser {
    #[command(flatten)]
    target: Target,
    /// The user's name
    #[arg(short, long)]
    username: String,
}

impl DeleteUser {
    pub async fn run(&self, session: &Session) -> Result<()> {
        for address in session.replicas(&self.target).await? {
            let fields = Delete { username: self.username.trim() };
            session.admin.tell(&address, request::AUTH_DELETE_USER, &fields).await?;
            session.out.say(format!("delete user to {address} success."))?;
        }
        Ok(())
    }
}

fn table<'a>(users: impl IntoIterator<Item = &'a UserInfo>) -> Table {
    let mut table = Table::new(["UserName", "Password", "UserType", "UserStatus"]);
    for user in users {
        table.row([
            user.username.as_deref().into(),
            user.password.as_deref().into(),
            user.user_type.as_deref().into(),
            user.user_status.as_deref().into(),
        ]);
    }
    table
}

/// One user of a broker; none is an answer without a body.
async fn get(session: &Session, address: &str, username: &str) -> Result<Option<UserInfo>> {
    let response = session.admin.tell(address, request::AUTH_GET_USER, &Get { username }).await?;
    if response.body.is_empty() {
        return Ok(None);
    }
    Ok(Some(client::admin::read(&response)?))
}

async fn list(session: &Session, address: &str, filter: Option<&str>) -> Result<Vec<UserInfo>> {
    let response = session.admin.tell(address, request::AUTH_LIST_USER, &List { filter }).await?;
    if response.body.is_empty() {
        return Ok(Vec::new());
    }
    Ok(client::admin::read(&response)?)
}

#[derive(Debug, Args)]
pub struct GetUser {
    #[command(flatten)]
    target: Target,
    /// The user's name
    #[arg(short, long)]
    username: Option<String>,
}

impl GetUser {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let name = self.username.as_deref().context("which user: -u NAME")?.trim();
        let mut found = None;
        for address in session.masters(&self.target).await? {
            found = get(session, &address, name).await?;
            if found.is_some() {
                break;
            }
        }
        let found = found.with_context(|| format!("there is no user {name}"))?;
        session.out.table("users", &table([&found]))?;
        Ok(())
    }
}

#[derive(Debug, Args)]
pub struct ListUser {
    #[command(flatten)]
    target: Target,
    /// Part of the name
    #[arg(short, long)]
    filter: Option<String>,
}

impl ListUser {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let mut users = Vec::new();
        for address in session.masters(&self.target).await? {
            users.extend(list(session, &address, self.filter.as_deref().map(str::trim)).await?);
        }
        users.sort_by(|a, b| a.username.cmp(&b.username));
        users.dedup();
        session.out.table("users", &table(&users))?;
        Ok(())
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct CopyUser {
    /// The broker that has them
    #[arg(short, long, value_name = "HOST:PORT")]
    from_broker: String,
    /// The broker that gets them
    #[arg(short, long, value_name = "HOST:PORT")]
    to_broker: String,
    /// Names, separated by commas; without it, all
    #[arg(short, long)]
    usernames: Option<String>,
}

impl CopyUser {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let (from, to) = (self.from_broker.trim(), self.to_broker.trim());
        let users = match &self.usernames {
            None => list(session, from, None).await?,
            Some(names) => {
                let mut users = Vec::new();
                for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
                    let user = get(session, from, name).await?;
                    users.push(user.with_context(|| format!("{from} has no user {name}"))?);
                }
                users
            }
        };
        for user in &users {
            let name = user.username.as_deref().unwrap_or_default();
            match get(session, to, name).await? {
                None => create(session, to, user).await?,
                Some(_) => update(session, to, user).await?,
            }
            session.out.say(format!("copy user of {name} from {from} to {to} success."))?;
        }
        Ok(())
    }
}
