//! What a slave asks its master, by requests that brokers of Apache 4.9 and 5.x answer.

use std::time::Duration;

use bytes::Bytes;
use net::{CallError, Client, Response};
use protocol::LogOffset;
use protocol::body::{
    ConsumerOffsets, DataVersion, DelayOffsets, MessageRequestModes, SubscriptionGroupTable, TimerMetrics,
    TopicConfigTable,
};
use protocol::code::{ResponseCode, request};
use protocol::fastjson::{self, JsonError};
use protocol::header::EncodeFields;
use protocol::request::{
    CopyJournal, CopyJournalReply, FieldError, GetAllGroups, GetAllGroupsReply, GetAllTopicConfig,
    GetAllTopicConfigReply, OffsetReply, QueryConsumerOffset, UpdateConsumerOffset,
};
use replica::asking::{Apart, AskError};
use serde::de::DeserializeOwned;
use store::{TIMER_MARKS_BYTES, TimerMarks};

use super::copy::{Told, Wanted};
use crate::state::groups::GROUPS_MAX;
use crate::state::registry::Identity;
use crate::state::topics::TOPICS_MAX;

/// For each request, as Apache's slaves have it.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long a request for the journal waits there for a change.
const JOURNAL_WAIT: Duration = Duration::from_secs(1);
/// How long a piece of the journal may be.
const JOURNAL_PIECE_BYTES: i32 = 256 << 10;
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

/// A table that a master tells in pieces.
trait InPieces: DeserializeOwned {
    const REQUEST: i32;
    /// Entries that a broker keeps.
    const LEN_MAX: usize;
    type Request<'a>: EncodeFields + Sync;

    /// Asks for the piece that begins with the entry `from`, of a table of this version.
    fn request(from: i32, version: Option<&str>) -> Self::Request<'_>;
    /// How many entries there are in all, if the answer says so.
    fn total(answer: &Response) -> Result<Option<i32>, FieldError>;
    fn version(&self) -> DataVersion;
    fn len(&self) -> usize;
    fn add(&mut self, piece: Self);
}

impl InPieces for TopicConfigTable {
    const REQUEST: i32 = request::GET_ALL_TOPIC_CONFIG;
    const LEN_MAX: usize = TOPICS_MAX;
    type Request<'a> = GetAllTopicConfig<'a>;

    fn request(from: i32, data_version: Option<&str>) -> GetAllTopicConfig<'_> {
        GetAllTopicConfig { topic_seq: Some(from), data_version, max_topic_num: Some(PIECE) }
    }

    fn total(answer: &Response) -> Result<Option<i32>, FieldError> {
        Ok(GetAllTopicConfigReply::decode(&answer.fields.as_fields())?.total_topic_num)
    }

    fn version(&self) -> DataVersion {
        self.data_version
    }

    fn len(&self) -> usize {
        self.topic_config_table.len()
    }

    /// A piece has the mappings of its own topics only. Their version is that of the first piece: those that change meanwhile are found
    /// another time.
    fn add(&mut self, piece: Self) {
        self.topic_config_table.extend(piece.topic_config_table);
        let mappings = piece.topic_queue_mapping_detail_map.into_iter().flatten();
        self.topic_queue_mapping_detail_map.get_or_insert_default().extend(mappings);
    }
}

impl InPieces for SubscriptionGroupTable {
    const REQUEST: i32 = request::GET_ALL_SUBSCRIPTIONGROUP_CONFIG;
    const LEN_MAX: usize = GROUPS_MAX;
    type Request<'a> = GetAllGroups<'a>;

    fn request(from: i32, data_version: Option<&str>) -> GetAllGroups<'_> {
        GetAllGroups { group_seq: Some(from), data_version, max_group_num: Some(PIECE) }
    }

    fn total(answer: &Response) -> Result<Option<i32>, FieldError> {
        Ok(GetAllGroupsReply::decode(&answer.fields.as_fields())?.total_group_num)
    }

    fn version(&self) -> DataVersion {
        self.data_version
    }

    fn len(&self) -> usize {
        self.subscription_group_table.len()
    }

    fn add(&mut self, piece: Self) {
        self.subscription_group_table.extend(piece.subscription_group_table);
        self.forbidden_table.extend(piece.forbidden_table);
    }
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
        // Brokers of 4.9 have no mappings.
        self.whole(|first: &TopicConfigTable| {
            first.data_version == known && first.mapping_data_version.unwrap_or(mappings) == mappings
        })
        .await
    }

    /// 201, all pieces; none if the master's version is `known`.
    pub(super) async fn groups(&self, known: DataVersion) -> Result<Option<SubscriptionGroupTable>, MasterError> {
        self.whole(|first: &SubscriptionGroupTable| first.data_version == known).await
    }

    /// A table that is told in pieces; none if it `is_known` by the first of them.
    async fn whole<T: InPieces>(&self, is_known: impl Fn(&T) -> bool) -> Result<Option<T>, MasterError> {
        let mut all: Option<T> = None;
        let mut begun = 0;
        // Each turn but `BEGINNINGS_MAX` of them adds entries, or is the last.
        loop {
            let before = all.as_ref().map_or(0, T::len);
            let version = all.as_ref().and_then(|all| serde_json::to_string(&all.version()).ok());
            let from = i32::try_from(before).unwrap_or(i32::MAX);
            let answer = self.ask(T::REQUEST, &T::request(from, version.as_deref())).await?;
            let total = T::total(&answer)?;
            let piece: T = body(T::REQUEST, &answer)?;
            let told = match all.take() {
                None if is_known(&piece) => return Ok(None),
                None => piece,
                Some(told) if told.version() != piece.version() => {
                    begun += 1;
                    if begun == BEGINNINGS_MAX {
                        return Err(changes_too_often(T::REQUEST));
                    }
                    continue;
                }
                Some(mut told) => {
                    told.add(piece);
                    told
                }
            };
            if is_whole(T::REQUEST, total, T::LEN_MAX, before, told.len())? {
                return Ok(Some(told));
            }
            all = Some(told);
        }
    }

    /// 14. None if the group has none in the queue.
    pub(super) async fn committed(&self, group: &str, topic: &str, queue_id: i32) -> Result<Option<i64>, MasterError> {
        let set_zero_if_not_found = Some(false);
        let fields = QueryConsumerOffset { consumer_group: group, topic, queue_id, set_zero_if_not_found };
        match self.ask(request::QUERY_CONSUMER_OFFSET, &fields).await {
            Ok(answer) => Ok(Some(OffsetReply::decode(&answer.fields.as_fields())?.offset)),
            Err(MasterError::Refused { code, .. }) if code == ResponseCode::QueryNotFound as i32 => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// 15. The master may take a smaller offset than it has.
    pub(super) async fn commit(
        &self,
        group: &str,
        topic: &str,
        queue_id: i32,
        commit_offset: i64,
    ) -> Result<(), MasterError> {
        let fields = UpdateConsumerOffset { consumer_group: group, topic, queue_id, commit_offset };
        self.ask(request::UPDATE_CONSUMER_OFFSET, &fields).await.map(drop)
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

    /// 30002, which only a master of ours knows: the piece of the journal that is wanted, as soon as there is one. `written`: up to where its changes
    /// are in the journal here.
    pub(super) async fn journal(
        &self,
        slave: &Identity,
        wanted: &Wanted,
        written: Option<u64>,
    ) -> Result<Told, MasterError> {
        let life = wanted.place.life.to_string();
        let fields = CopyJournal {
            broker_name: &slave.broker_name,
            broker_cluster_name: &slave.cluster_name,
            broker_id: slave.broker_id,
            life: &life,
            from: i64::try_from(wanted.place.position).unwrap_or(i64::MAX),
            piece: i64::try_from(wanted.piece).unwrap_or(i64::MAX),
            wait_millis: i32::try_from(JOURNAL_WAIT.as_millis()).unwrap_or(i32::MAX),
            max_bytes: JOURNAL_PIECE_BYTES,
            written: written.and_then(|written| i64::try_from(written).ok()),
        };
        let answer = self.ask_for(request::COPY_JOURNAL, &fields, JOURNAL_WAIT + PATIENCE).await?;
        let reply = CopyJournalReply::decode(&answer.fields.as_fields())?;
        let malformed = |why: String| MasterError::Malformed { request: request::COPY_JOURNAL, why };
        let number = |name: &str, number: i64| {
            u64::try_from(number).map_err(|_| malformed(format!("{name}={number} is below 0")))
        };
        Ok(Told {
            life: reply.life.parse().map_err(|_| malformed(format!("life={} is no number", reply.life)))?,
            from: number("from", reply.from)?,
            piece: number("piece", reply.piece)?,
            position: number("position", reply.position)?,
            has_more: reply.has_more,
            begins_snapshot: reply.begins_snapshot,
            whole_from: number("wholeFrom", reply.whole_from)?,
            journal_end: number("journalEnd", reply.journal_end)?,
            log_end: LogOffset(number("logEnd", reply.log_end)?),
            entries: answer.body,
        })
    }

    async fn table<T: DeserializeOwned>(&self, code: i32) -> Result<T, MasterError> {
        let answer = self.ask(code, &()).await?;
        body(code, &answer)
    }

    async fn ask(&self, code: i32, fields: &(dyn EncodeFields + Sync)) -> Result<Response, MasterError> {
        self.ask_for(code, fields, PATIENCE).await
    }

    async fn ask_for(
        &self,
        code: i32,
        fields: &(dyn EncodeFields + Sync),
        patience: Duration,
    ) -> Result<Response, MasterError> {
        let answer = self.client.call(self.address, code, fields, Bytes::new(), patience).await?;
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
