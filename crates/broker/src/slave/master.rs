//! What a slave asks its master, by requests that brokers of Apache 4.9 and 5.x answer.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use net::{CallError, Client, Response};
use protocol::body::{
    ConsumerOffsets, DataVersion, DelayOffsets, MessageRequestModes, SubscriptionGroupConfig, SubscriptionGroupTable,
    TimerMetrics, TopicConfig, TopicConfigTable, TopicQueueMappingDetail,
};
use protocol::code::{ResponseCode, request};
use protocol::fastjson::{self, JsonError};
use protocol::header::EncodeFields;
use protocol::request::{FieldError, GetAllGroups, GetAllGroupsReply, GetAllTopicConfig, GetAllTopicConfigReply};
use replica::asking::{Apart, AskError};
use serde::de::DeserializeOwned;
use store::{TIMER_MARKS_BYTES, TimerMarks};

use crate::state::groups::GROUPS_MAX;
use crate::state::topics::TOPICS_MAX;

/// For each request, as Apache's slaves have it.
const PATIENCE: Duration = Duration::from_secs(3);
/// Topics or groups of one answer (`splitMetadataSize`).
const PIECE: i32 = 2000;
/// How often a table that changes while it is told in pieces is begun again.
const BEGINNINGS_MAX: usize = 10;

/// Why the master does not tell a table.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MasterError {
    /// It does not answer.
    #[error(transparent)]
    Call(#[from] CallError),
    /// It answers that it will not.
    #[error("the master refuses request {request}: {code} {remark}")]
    Refused { request: i32, code: i32, remark: String },
    /// The answer is not understood.
    #[error("the master's answer to {request} is not readable: {error}")]
    Body { request: i32, error: JsonError },
    /// Neither is its header.
    #[error(transparent)]
    Fields(#[from] FieldError),
    /// It does not hold what it should.
    #[error("the master's answer to {request} is not readable: {why}")]
    Malformed { request: i32, why: String },
    /// It does not say how its log lies.
    #[error(transparent)]
    Log(#[from] AskError),
    /// Its tables are those of another log than the one here.
    #[error(transparent)]
    Apart(#[from] Apart),
    /// The answer is that of a master which is not followed any more.
    #[error("the master has changed, or is away, since it was asked")]
    Another,
    /// There is nobody to ask.
    #[error("the address of the master is not known")]
    Unknown,
}

/// A master that is asked.
pub(super) struct Master<'a> {
    pub(super) client: &'a Client,
    pub(super) address: &'a str,
}

impl Master<'_> {
    /// 21, all pieces; none if the master's version is `known`.
    pub(super) async fn topics(
        &self,
        known: DataVersion,
        mappings: DataVersion,
    ) -> Result<Option<TopicConfigTable>, MasterError> {
        let mut all: BTreeMap<String, TopicConfig> = BTreeMap::new();
        let mut details: BTreeMap<String, TopicQueueMappingDetail> = BTreeMap::new();
        let mut of_details = None;
        let (mut begun, mut version) = (0, None);
        // Each turn but `BEGINNINGS_MAX` of them adds topics, or is the last.
        loop {
            let text = version.and_then(|version: DataVersion| serde_json::to_string(&version).ok());
            let fields = GetAllTopicConfig {
                topic_seq: Some(i32::try_from(all.len()).unwrap_or(i32::MAX)),
                data_version: text.as_deref(),
                max_topic_num: Some(PIECE),
            };
            let answer = self.ask(request::GET_ALL_TOPIC_CONFIG, &fields).await?;
            let total = GetAllTopicConfigReply::decode(&answer.fields.as_fields())?.total_topic_num;
            let piece: TopicConfigTable = body(request::GET_ALL_TOPIC_CONFIG, &answer)?;
            if version.is_none() {
                // That of the first piece: mappings that change meanwhile are found another time.
                of_details = piece.mapping_data_version;
                // Brokers of 4.9 have no mappings.
                if piece.data_version == known && of_details.unwrap_or(mappings) == mappings {
                    return Ok(None);
                }
            }
            if version.is_some_and(|version| version != piece.data_version) {
                begun += 1;
                (all, details, version) = (BTreeMap::new(), BTreeMap::new(), None);
                if begun == BEGINNINGS_MAX {
                    return Err(changes_too_often(request::GET_ALL_TOPIC_CONFIG));
                }
                continue;
            }
            version = Some(piece.data_version);
            let before = all.len();
            all.extend(piece.topic_config_table);
            // A piece has the mappings of its own topics only.
            details.extend(piece.topic_queue_mapping_detail_map.into_iter().flatten());
            if is_whole(request::GET_ALL_TOPIC_CONFIG, total, TOPICS_MAX, before, all.len())? {
                return Ok(Some(TopicConfigTable {
                    data_version: piece.data_version,
                    mapping_data_version: of_details,
                    topic_config_table: all,
                    topic_queue_mapping_detail_map: Some(details),
                    topic_queue_mapping_info_map: None,
                }));
            }
        }
    }

    /// 201, all pieces; none if the master's version is `known`.
    pub(super) async fn groups(&self, known: DataVersion) -> Result<Option<SubscriptionGroupTable>, MasterError> {
        let mut all: BTreeMap<String, SubscriptionGroupConfig> = BTreeMap::new();
        let mut forbidden = BTreeMap::new();
        let (mut begun, mut version) = (0, None);
        // As above.
        loop {
            let text = version.and_then(|version: DataVersion| serde_json::to_string(&version).ok());
            let fields = GetAllGroups {
                group_seq: Some(i32::try_from(all.len()).unwrap_or(i32::MAX)),
                data_version: text.as_deref(),
                max_group_num: Some(PIECE),
            };
            let answer = self.ask(request::GET_ALL_SUBSCRIPTIONGROUP_CONFIG, &fields).await?;
            let total = GetAllGroupsReply::decode(&answer.fields.as_fields())?.total_group_num;
            let piece: SubscriptionGroupTable = body(request::GET_ALL_SUBSCRIPTIONGROUP_CONFIG, &answer)?;
            if version.is_none() && piece.data_version == known {
                return Ok(None);
            }
            if version.is_some_and(|version| version != piece.data_version) {
                begun += 1;
                (all, forbidden, version) = (BTreeMap::new(), BTreeMap::new(), None);
                if begun == BEGINNINGS_MAX {
                    return Err(changes_too_often(request::GET_ALL_SUBSCRIPTIONGROUP_CONFIG));
                }
                continue;
            }
            version = Some(piece.data_version);
            let before = all.len();
            all.extend(piece.subscription_group_table);
            forbidden.extend(piece.forbidden_table);
            if is_whole(request::GET_ALL_SUBSCRIPTIONGROUP_CONFIG, total, GROUPS_MAX, before, all.len())? {
                return Ok(Some(SubscriptionGroupTable {
                    data_version: piece.data_version,
                    forbidden_table: forbidden,
                    subscription_group_table: all,
                }));
            }
        }
    }

    /// 43.
    pub(super) async fn offsets(&self) -> Result<ConsumerOffsets, MasterError> {
        self.table(request::GET_ALL_CONSUMER_OFFSET).await
    }

    /// 45.
    pub(super) async fn delays(&self) -> Result<DelayOffsets, MasterError> {
        self.table(request::GET_ALL_DELAY_OFFSET).await
    }

    /// 402.
    pub(super) async fn modes(&self) -> Result<MessageRequestModes, MasterError> {
        self.table(request::GET_ALL_MESSAGE_REQUEST_MODE).await
    }

    /// 61.
    pub(super) async fn timer_counts(&self) -> Result<TimerMetrics, MasterError> {
        self.table(request::GET_TIMER_METRICS).await
    }

    /// 60.
    pub(super) async fn timer_marks(&self) -> Result<TimerMarks, MasterError> {
        let answer = self.ask(request::GET_TIMER_CHECK_POINT, &()).await?;
        let bytes = answer.body.first_chunk::<TIMER_MARKS_BYTES>().filter(|_| answer.body.len() == TIMER_MARKS_BYTES);
        bytes.map(TimerMarks::decode).ok_or_else(|| MasterError::Malformed {
            request: request::GET_TIMER_CHECK_POINT,
            why: format!("it has {} bytes, not {TIMER_MARKS_BYTES}", answer.body.len()),
        })
    }

    async fn table<T: DeserializeOwned>(&self, code: i32) -> Result<T, MasterError> {
        let answer = self.ask(code, &()).await?;
        body(code, &answer)
    }

    async fn ask(&self, code: i32, fields: &(dyn EncodeFields + Sync)) -> Result<Response, MasterError> {
        let answer = self.client.call(self.address, code, fields, Bytes::new(), PATIENCE).await?;
        if answer.code == ResponseCode::Success as i32 {
            return Ok(answer);
        }
        Err(MasterError::Refused { request: code, code: answer.code, remark: answer.remark.unwrap_or_default() })
    }
}

fn body<T: DeserializeOwned>(request: i32, answer: &Response) -> Result<T, MasterError> {
    fastjson::from_slice(&answer.body).map_err(|error| MasterError::Body { request, error })
}

/// Whether a table is told to its end. Brokers that tell all at once say no total. A table of more than `max` entries is not taken.
fn is_whole(request: i32, total: Option<i32>, max: usize, before: usize, now: usize) -> Result<bool, MasterError> {
    let total = total.and_then(|total| usize::try_from(total).ok()).unwrap_or(now);
    if total.max(now) > max {
        let why = format!("it has {} entries, more than the {max} that a broker keeps", total.max(now));
        return Err(MasterError::Malformed { request, why });
    }
    // Without this a broker that repeats itself would be asked for ever.
    if now < total && now == before {
        let why = format!("it says that there are {total} entries, and tells {now}");
        return Err(MasterError::Malformed { request, why });
    }
    Ok(now >= total)
}

fn changes_too_often(request: i32) -> MasterError {
    MasterError::Malformed { request, why: "the table changes while it is told, again and again".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_whole_when_as_much_has_come_as_there_is() {
        let is_whole = |total, before, now| is_whole(21, total, 5000, before, now);
        assert!(is_whole(None, 0, 0).unwrap());
        assert!(is_whole(Some(2000), 0, 2000).unwrap());
        assert!(!is_whole(Some(2001), 0, 2000).unwrap());
        assert!(is_whole(Some(-1), 0, 0).unwrap());
        assert!(is_whole(Some(2001), 2000, 2000).is_err());
    }

    #[test]
    fn a_table_of_more_than_a_broker_keeps_is_not_taken() {
        let is_whole = |total, now| is_whole(21, total, 5000, 0, now);
        assert!(is_whole(Some(5000), 5000).unwrap());
        assert!(is_whole(Some(i32::MAX), 2000).is_err());
        assert!(is_whole(None, 5001).is_err());
    }
}
