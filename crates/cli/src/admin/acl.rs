//! What subjects may do.

use anyhow::{Context, Result};
use clap::Args;
use protocol::body::{AclInfo, PolicyEntryInfo, PolicyInfo};

use super::output::{Cell, Table};
use super::session::Session;
use super::target::Target;

/// What a rule says.
#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
struct Rule {
    /// User:name
    #[arg(short, long)]
    subject: String,
    /// Topic:name, Group:name and so on, separated by commas
    #[arg(short, long)]
    resources: String,
    /// Pub, Sub, Create, Update, Delete, Get, List or All, separated by commas
    #[arg(short, long)]
    actions: String,
    /// Addresses or networks that the rule is for, separated by commas; without it, all
    #[arg(short = 'i', long)]
    source_ip: Option<String>,
    /// Allow or Deny
    #[arg(short, long)]
    decision: String,
}

fn words(text: &str) -> Vec<String> {
    text.split(',').map(|word| word.trim().to_owned()).filter(|word| !word.is_empty()).collect()
}

impl Rule {
    /// One entry for each resource, all in one policy of the kind that the broker takes when none is named.
    fn to_info(&self) -> AclInfo {
        let entries = words(&self.resources).into_iter().map(|resource| PolicyEntryInfo {
            resource: Some(resource),
            actions: words(&self.actions),
            source_ips: self.source_ip.as_deref().map(words),
            decision: Some(self.decision.trim().to_owned()),
        });
        AclInfo {
            subject: Some(self.subject.trim().to_owned()),
            policies: vec![PolicyInfo { policy_type: None, entries: entries.collect() }],
        }
    }
}

fn table<'a>(infos: impl IntoIterator<Item = &'a AclInfo>) -> Table {
    let mut table = Table::new(["Subject", "PolicyType", "Resource", "Actions", "SourceIp", "Decision"]);
    for info in infos {
        if info.policies.is_empty() {
            let none = || Cell::from("");
            table.row([info.subject.as_deref().into(), none(), none(), none(), none(), none()]);
        }
        for policy in &info.policies {
            for entry in &policy.entries {
                table.row([
                    info.subject.as_deref().into(),
                    policy.policy_type.as_deref().into(),
                    entry.resource.as_deref().into(),
                    Cell::list(&entry.actions),
                    Cell::list(entry.source_ips.iter().flatten()),
                    entry.decision.as_deref().into(),
                ]);
            }
        }
    }
    table
}

#[derive(Debug, Args)]
pub struct CreateAcl {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    rule: Rule,
}

impl CreateAcl {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let info = self.rule.to_info();
        for address in session.replicas(&self.target).await? {
            session.operator.create_acl(&address, &info).await?;
            session.out.say(format!("create acl to {address} success."))?;
        }
        Ok(())
    }
}

#[derive(Debug, Args)]
pub struct UpdateAcl {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    rule: Rule,
}

impl UpdateAcl {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let info = self.rule.to_info();
        for address in session.replicas(&self.target).await? {
            session.operator.update_acl(&address, &info).await?;
            session.out.say(format!("update acl to {address} success."))?;
        }
        Ok(())
    }
}

#[derive(Debug, Args)]
pub struct DeleteAcl {
    #[command(flatten)]
    target: Target,
    /// User:name
    #[arg(short, long)]
    subject: String,
    /// The rules for these resources only, separated by commas
    #[arg(short, long)]
    resources: Option<String>,
}

impl DeleteAcl {
    pub async fn run(&self, session: &Session) -> Result<()> {
        for address in session.replicas(&self.target).await? {
            let resource = self.resources.as_deref().map(str::trim);
            session.operator.delete_acl(&address, self.subject.trim(), resource).await?;
            session.out.say(format!("delete acl to {address} success."))?;
        }
        Ok(())
    }
}

#[derive(Debug, Args)]
pub struct GetAcl {
    #[command(flatten)]
    target: Target,
    /// User:name
    #[arg(short, long)]
    subject: Option<String>,
}

impl GetAcl {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let subject = self.subject.as_deref().context("whose rules: -s User:NAME")?.trim();
        let mut infos = Vec::new();
        for address in session.masters(&self.target).await? {
            infos.extend(session.operator.acl(&address, subject).await?);
        }
        infos.dedup();
        session.out.table("acls", &table(&infos))?;
        Ok(())
    }
}

#[derive(Debug, Args)]
pub struct ListAcl {
    #[command(flatten)]
    target: Target,
    /// Part of the subject
    #[arg(short, long)]
    subject: Option<String>,
    /// Part of the resource
    #[arg(short, long)]
    resource: Option<String>,
}

impl ListAcl {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let mut infos = Vec::new();
        for address in session.masters(&self.target).await? {
            let (subject, resource) = (self.subject.as_deref().map(str::trim), self.resource.as_deref().map(str::trim));
            infos.extend(session.operator.acls(&address, subject, resource).await?);
        }
        infos.sort_by(|a, b| a.subject.cmp(&b.subject));
        infos.dedup();
        session.out.table("acls", &table(&infos))?;
        Ok(())
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct CopyAcl {
    /// The broker that has them
    #[arg(short, long, value_name = "HOST:PORT")]
    from_broker: String,
    /// The broker that gets them
    #[arg(short, long, value_name = "HOST:PORT")]
    to_broker: String,
    /// Subjects, separated by commas; without it, all
    #[arg(short, long)]
    subjects: Option<String>,
}

impl CopyAcl {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let (from, to) = (self.from_broker.trim(), self.to_broker.trim());
        let infos = match &self.subjects {
            None => session.operator.acls(from, None, None).await?,
            Some(subjects) => session.operator.acls_of(from, &words(subjects)).await?,
        };
        for info in &infos {
            let subject = info.subject.as_deref().unwrap_or_default();
            session.operator.put_acl(to, info).await?;
            session.out.say(format!("copy acl of {subject} from {from} to {to} success."))?;
        }
        Ok(())
    }
}
