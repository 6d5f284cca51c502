//! Messages by key, by unique id or by tag (12).

use std::sync::Arc;

use config::StoreSettings;
use net::{Outgoing, ReplyTo, Request, SharedSlice};
use protocol::code::ResponseCode;
use protocol::request::{QueryMessage, QueryMessageReply};
use store::{KeyAnswer, KeyKind, KeyMatch, KeyQuery, Store};

use crate::refusal::Refusal;

/// Apache's name for a look-up by tag (`indexType`); `K` and `U` are looked up alike.
const TAG: &str = "T";

/// 12.
pub(crate) fn by_key(
    store_settings: &StoreSettings,
    store: &Store,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let settings = store_settings;
    let found = look_up(store, settings, decode(request, settings)?)?;
    encode(request.reply_to(), found, out);
    Ok(())
}

fn decode(request: &Request<'_>, settings: &StoreSettings) -> Result<KeyQuery, Refusal> {
    let asked = QueryMessage::decode(&request.header.fields)?;
    Ok(KeyQuery {
        topic: asked.topic.to_owned(),
        key: asked.key.to_owned(),
        kind: if asked.index_type == Some(TAG) { KeyKind::Tag } else { KeyKind::Key },
        max: match asked.unique_key_query {
            Some(true) => settings.default_query_max_num,
            Some(false) | None => usize::try_from(asked.max_num).unwrap_or(0),
        },
        begin: asked.begin_timestamp,
        end: asked.end_timestamp,
    })
}

/// Finds messages, one at least and `maxMsgsNumBatch` at most. May wait for the disk.
pub(crate) fn look_up(store: &Store, settings: &StoreSettings, mut query: KeyQuery) -> Result<KeyAnswer, Refusal> {
    if store.options().index.is_none() {
        let remark = "messages cannot be looked up by key: messageIndexEnable is false";
        return Err(Refusal::new(ResponseCode::SystemError, remark.to_owned()));
    }
    query.max = query.max.min(settings.max_msgs_num_batch);
    let answer = store.query(&query).map_err(Refusal::failed)?;
    if answer.found.is_empty() {
        let remark = match answer.is_cut {
            true => "can not find message, and too many have this key to look at all of them: narrow the time range",
            false => "can not find message, maybe time range not correct",
        };
        return Err(Refusal::new(ResponseCode::QueryNotFound, remark));
    }
    Ok(answer)
}

fn encode(reply_to: ReplyTo, answer: KeyAnswer, out: &mut Outgoing) {
    let fields = QueryMessageReply {
        index_last_update_timestamp: answer.index_timestamp,
        index_last_update_phyoffset: answer.index_offset,
    };
    let bytes = answer.found.iter().map(|found| found.bytes().len()).sum();
    let parts = answer.found.into_iter().map(part);
    out.reply_shared(reply_to, ResponseCode::Success, None, &fields, bytes, parts);
}

fn part(found: KeyMatch) -> SharedSlice {
    match found {
        KeyMatch::Record(slice) => {
            let (owner, range) = slice.into_parts();
            SharedSlice { owner, range }
        }
        KeyMatch::Inner(record) => {
            let range = 0..record.len();
            SharedSlice { owner: Arc::new(record), range }
        }
    }
}
