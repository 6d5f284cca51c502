//! Users and access rules.

use serde::{Deserialize, Serialize};

/// 3001, 3002, and the answers to 3004 and 3005.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UserInfo {
    /// The password.
    pub password: Option<String>,
    /// `enable` or `disable`.
    pub user_status: Option<String>,
    /// `Super` or `Normal`.
    pub user_type: Option<String>,
    /// The name.
    pub username: Option<String>,
}

/// 3006, 3007, and the answers to 3009 and 3010: what a subject may do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AclInfo {
    /// The rules, by kind.
    pub policies: Vec<PolicyInfo>,
    /// `User:name`.
    pub subject: Option<String>,
}

/// The rules of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyInfo {
    /// The rules.
    pub entries: Vec<PolicyEntryInfo>,
    /// `Custom` or `Default`.
    pub policy_type: Option<String>,
}

/// One rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyEntryInfo {
    /// `Pub`, `Sub`, `Get` and so on.
    pub actions: Vec<String>,
    /// `Allow` or `Deny`.
    pub decision: Option<String>,
    /// `Topic:name`, `Group:name` and so on.
    pub resource: Option<String>,
    /// Addresses and networks; empty or none: any.
    pub source_ips: Option<Vec<String>>,
}
