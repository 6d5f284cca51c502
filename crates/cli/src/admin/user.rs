//! Users.

use anyhow::{Context, Result};
use clap::Args;
use protocol::body::UserInfo;

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
            session.operator.create_user(&address, &user).await?;
            session.out.say(format!("create user to {address} success."))?;
        }
        Ok(())
    }
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
            session.operator.update_user(&address, &user).await?;
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
            session.operator.delete_user(&address, self.username.trim()).await?;
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
            found = session.operator.user(&address, name).await?;
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
            users.extend(session.operator.users(&address, self.filter.as_deref().map(str::trim)).await?);
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
            None => session.operator.users(from, None).await?,
            Some(names) => {
                let names: Vec<&str> = names.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
                session.operator.users_named(from, &names).await?
            }
        };
        for user in &users {
            let name = user.username.as_deref().unwrap_or_default();
            session.operator.put_user(to, user).await?;
            session.out.say(format!("copy user of {name} from {from} to {to} success."))?;
        }
        Ok(())
    }
}
