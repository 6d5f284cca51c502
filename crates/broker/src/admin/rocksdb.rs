//! What operators ask of a store with RocksDB, as a store of files answers it: 354, 355.

use net::{Outgoing, Request};
use protocol::body::RocksdbCqProgress;
use protocol::code::ResponseCode;
use protocol::request::{CheckRocksdbCqWriteProgress, ExportRocksdbConfig};

use crate::admin::queues::name;
use crate::answer::reply_json;
use crate::refusal::Refusal;
use crate::state::topics::Topics;

/// Apache's number for "nothing is wrong".
const CHECKED: i32 = 0;

/// 354: do the consume queues in RocksDB and in files agree? There is one kind, so they do.
///
/// Apache answers that the check has begun, and writes this result into its log.
pub(crate) fn check(topics: &Topics, request: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let topic = name("topic", CheckRocksdbCqWriteProgress::decode(&request.header.fields)?.topic)?;
    if !topic.is_empty() && topics.get(topic).is_none() {
        return Err(Refusal::topic_not_exist(topic));
    }
    let check_result = Some("It is not CombineConsumeQueueStore, no need check".to_owned());
    reply_json(request, out, &RocksdbCqProgress { check_result, check_status: CHECKED });
    Ok(())
}

/// 355: write what RocksDB holds into the JSON files. They are written from the journal as it changes, so there is nothing left to do.
pub(crate) fn export(request: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let types = ExportRocksdbConfig::decode(&request.header.fields)?.config_type;
    for one in types.split(';').filter(|one| !one.is_empty()) {
        let is_known =
            ["topics", "subscriptionGroups", "consumerOffsets"].iter().any(|known| known.eq_ignore_ascii_case(one));
        if !is_known {
            let shown: String = one.chars().take(64).collect();
            let remark = format!(
                "Unknown config type: {shown}; field configType takes topics, subscriptionGroups and consumerOffsets, separated by semicolons"
            );
            return Err(Refusal::new(ResponseCode::SystemError, remark));
        }
    }
    out.reply(request.reply_to(), ResponseCode::Success, Some("export done."), &(), &[]);
    Ok(())
}
