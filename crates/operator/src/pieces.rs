//! The tables of a broker that newer versions tell in pieces: its topics and its groups.

use std::collections::BTreeMap;

use protocol::body::DataVersion;
use protocol::code::request;
use protocol::request::{GetAllGroups, GetAllGroupsReply, GetAllTopicConfig, GetAllTopicConfigReply};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::{OperatorError, Result, ensure};
use crate::handle::Operator;

/// How often a table that changes while it is told in pieces is begun again.
const BEGINNINGS_MAX: usize = 10;

/// Groups, and what is forbidden to them.
pub struct Groups<V> {
    /// The table's version.
    pub version: DataVersion,
    /// By name.
    pub table: BTreeMap<String, V>,
    /// By name and topic.
    pub forbidden: BTreeMap<String, BTreeMap<String, i32>>,
}

/// One answer of a broker that tells a table in pieces.
struct Piece<V> {
    version: DataVersion,
    /// How many there are; brokers that tell all at once do not say.
    total: Option<i32>,
    table: BTreeMap<String, V>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TopicPiece<V> {
    #[serde(default)]
    data_version: DataVersion,
    #[serde(default = "BTreeMap::new")]
    topic_config_table: BTreeMap<String, V>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GroupPiece<V> {
    #[serde(default)]
    data_version: DataVersion,
    #[serde(default)]
    forbidden_table: BTreeMap<String, BTreeMap<String, i32>>,
    #[serde(default = "BTreeMap::new")]
    subscription_group_table: BTreeMap<String, V>,
}

impl Operator {
    /// All topics of a broker, and their version.
    pub async fn topics_at<V: DeserializeOwned>(&self, address: &str) -> Result<(DataVersion, BTreeMap<String, V>)> {
        in_pieces("topics", async |known, data_version| {
            let fields = GetAllTopicConfig { topic_seq: Some(known), data_version, max_topic_num: None };
            let response = self.admin.tell(address, request::GET_ALL_TOPIC_CONFIG, &fields).await?;
            let total = GetAllTopicConfigReply::decode(&response.fields.as_fields())?.total_topic_num;
            let part: TopicPiece<V> = client::admin::read(&response)?;
            Ok(Piece { version: part.data_version, total, table: part.topic_config_table })
        })
        .await
    }

    /// All groups of a broker.
    pub async fn groups_at<V: DeserializeOwned>(&self, address: &str) -> Result<Groups<V>> {
        let mut forbidden = BTreeMap::new();
        let (version, table) = in_pieces("groups", async |known, data_version| {
            let fields = GetAllGroups { group_seq: Some(known), data_version, max_group_num: None };
            let response = self.admin.tell(address, request::GET_ALL_SUBSCRIPTIONGROUP_CONFIG, &fields).await?;
            let total = GetAllGroupsReply::decode(&response.fields.as_fields())?.total_group_num;
            let part: GroupPiece<V> = client::admin::read(&response)?;
            forbidden.extend(part.forbidden_table);
            Ok(Piece { version: part.data_version, total, table: part.subscription_group_table })
        })
        .await?;
        Ok(Groups { version, table, forbidden })
    }
}

/// Asks until all is told. `ask` gets how many are known, and the version that they had: a broker that hears none, or another one than
/// its own, begins again at the first. So do we, when the version changes in between.
async fn in_pieces<V>(
    what: &str,
    mut ask: impl AsyncFnMut(i32, Option<&str>) -> Result<Piece<V>>,
) -> Result<(DataVersion, BTreeMap<String, V>)> {
    let mut begun = 1;
    let (mut all, mut version) = (BTreeMap::new(), None);
    loop {
        let known = i32::try_from(all.len())
            .map_err(|_| OperatorError::Unfit(format!("more {what} than a request can count")))?;
        let text = version.map(|version| serde_json::to_string::<DataVersion>(&version)).transpose()?;
        let piece = ask(known, text.as_deref()).await?;
        if version.is_some_and(|version| version != piece.version) {
            begun += 1;
            ensure!(begun <= BEGINNINGS_MAX, Unfit, "the {what} of the broker change too often to be read");
            (all, version) = (BTreeMap::new(), None);
            continue;
        }
        version = Some(piece.version);
        all.extend(piece.table);
        match piece.total {
            Some(total) if all.len() < total.max(0) as usize => {
                // Without this a broker that repeats itself would be asked for ever.
                let is_more = all.len() > known as usize;
                ensure!(is_more, Unfit, "the broker says that it has {total} {what}, and tells {known}");
            }
            Some(_) | None => return Ok((piece.version, all)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSION: DataVersion = DataVersion { counter: 3, state_version: 0, timestamp: 5 };

    /// As Apache's broker: a piece of two, from the first on unless the version is its own.
    fn piece(version: DataVersion, known: i32, said: Option<&str>) -> Piece<()> {
        let is_same = said.is_some_and(|said| serde_json::from_str::<DataVersion>(said).unwrap() == version);
        let from = if is_same { known as usize } else { 0 };
        let names = ["a", "b", "c", "d", "e"];
        let table = names.iter().skip(from).take(2).map(|name| ((*name).to_owned(), ())).collect();
        Piece { version, total: Some(5), table }
    }

    #[tokio::test]
    async fn a_table_that_is_told_in_pieces_is_read_to_its_end() {
        let mut asked = 0;
        let read = in_pieces("topics", async |known, said| {
            asked += 1;
            // It changes once in between.
            let version = if asked < 3 { VERSION } else { DataVersion { counter: 4, ..VERSION } };
            Ok(piece(version, known, said))
        });
        let (version, all) = read.await.unwrap();
        assert_eq!((version.counter, all.into_keys().collect::<String>().as_str()), (4, "abcde"));
    }

    #[tokio::test]
    async fn a_broker_that_repeats_itself_or_changes_for_ever_is_given_up() {
        let repeats = in_pieces("topics", async |_, _| Ok(piece(VERSION, 0, None))).await;
        assert!(repeats.unwrap_err().to_string().contains("has 5 topics, and tells 2"));
        let mut counter = 0;
        let changes = in_pieces("topics", async |known, said| {
            counter += 1;
            Ok(piece(DataVersion { counter, ..VERSION }, known, said))
        });
        assert!(changes.await.unwrap_err().to_string().contains("change too often"));
    }
}
