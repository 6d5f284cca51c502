//! How a message is shown, and who consumed it.

use anyhow::{Result, bail};
use client::Received;
use env::sentence;
use operator::message::Track;
use operator::unique_id;
use protocol::properties::{self, name};
use serde_json::{Map, Value, json};

use super::output::{Cell, Facts, Table};
use super::session::Session;
use super::time;

/// How the bytes of a body are to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charset {
    /// UTF-8, and ASCII with it.
    Utf8,
    /// Each byte is a letter.
    Latin1,
}

impl Charset {
    /// For the parser of the command line.
    pub fn named(text: &str) -> Result<Charset, String> {
        match text.trim().to_ascii_uppercase().as_str() {
            "UTF-8" | "UTF8" | "US-ASCII" | "ASCII" => Ok(Charset::Utf8),
            "ISO-8859-1" | "LATIN1" => Ok(Charset::Latin1),
            _ => Err("UTF-8, US-ASCII and ISO-8859-1 are known".to_owned()),
        }
    }

    fn read(self, bytes: &[u8]) -> String {
        match self {
            Charset::Utf8 => match std::str::from_utf8(bytes) {
                Ok(text) => text.to_owned(),
                Err(_) => format!("({} bytes that are not UTF-8: {})", bytes.len(), hex(bytes)),
            },
            Charset::Latin1 => bytes.iter().map(|byte| char::from(*byte)).collect(),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn properties_of(message: &Received) -> Map<String, Value> {
    let pairs = properties::iter(&message.properties);
    pairs.map(|(name, value)| (name.to_owned(), Value::String(value.to_owned()))).collect()
}

/// A message for programs. A body that is not UTF-8 stands in `bodyHex`.
pub fn to_json(message: &Received, with_body: bool) -> Value {
    let mut value = json!({
        "msgId": message.message_id,
        "offsetMsgId": message.offset_message_id,
        "topic": message.topic,
        "brokerName": &*message.broker_name,
        "tags": message.tag(),
        "keys": message.property(name::KEYS),
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "commitLogOffset": message.log_offset,
        "reconsumeTimes": message.reconsume_times,
        "bornTimestamp": message.born_timestamp,
        "storeTimestamp": message.store_timestamp,
        "bornHost": message.born_host.to_string(),
        "storeHost": message.store_host.to_string(),
        "sysFlag": message.sys_flag,
        "flag": message.flag,
        "bodySize": message.body.len(),
        "properties": properties_of(message),
    });
    if let (Some(origin), Some(members)) =
        (unique_id::origin(&message.message_id, message.born_timestamp), value.as_object_mut())
    {
        let made = json!({
            "timestamp": origin.at,
            "host": origin.host.to_string(),
            "pid": origin.pid,
            "counter": origin.counter,
        });
        members.insert("idMade".to_owned(), made);
    }
    if let (true, Some(members)) = (with_body, value.as_object_mut()) {
        match std::str::from_utf8(&message.body) {
            Ok(text) => members.insert("body".to_owned(), text.into()),
            Err(_) => members.insert("bodyHex".to_owned(), hex(&message.body).into()),
        };
    }
    value
}

/// A message on one line.
pub fn line(message: &Received, charset: Option<Charset>) -> String {
    let body = charset.map_or_else(|| "NOT PRINT BODY".to_owned(), |charset| charset.read(&message.body));
    format!(
        "MSGID: {} BROKER: {} QID: {} OFFSET: {} BORN: {} STORED: {} TAGS: [{}] KEYS: [{}] PROPERTIES: {} BODY: {body}",
        message.message_id,
        message.broker_name,
        message.queue_id,
        message.queue_offset,
        time::to_text(message.born_timestamp),
        time::to_text(message.store_timestamp),
        message.tag().unwrap_or_default(),
        message.property(name::KEYS).unwrap_or_default(),
        Value::Object(properties_of(message)),
    )
}

/// Shows a message on one line, or as one JSON object on a line.
pub fn show_line(session: &Session, message: &Received, charset: Option<Charset>) -> Result<()> {
    if session.out.is_json() {
        session.out.value("message", &to_json(message, charset.is_some()))?;
        session.out.flush()?;
    } else {
        session.out.note(&line(message, charset))?;
    }
    Ok(())
}

/// Shows all of a message, and which groups have consumed it.
pub async fn show(session: &Session, message: &Received, charset: Option<Charset>) -> Result<()> {
    let tracks = session.operator.tracks(message).await;
    if let Ok(tracks) = &tracks {
        session.say_physical(&tracks.by_physical_queue)?;
    }
    let tracks = tracks.map(|tracks| tracks.groups);
    if session.out.is_json() {
        let mut value = to_json(message, true);
        if let (Some(members), Ok(tracks)) = (value.as_object_mut(), &tracks) {
            let tracks =
                tracks.iter().map(|(group, track)| json!({"consumerGroup": group, "trackType": name_of(track)}));
            members.insert("tracks".to_owned(), Value::Array(tracks.collect()));
        }
        session.out.value("message", &value)?;
        session.out.flush()?;
        return Ok(());
    }
    let properties = properties_of(message);
    let mut facts = Facts::new()
        .with("OffsetID", &message.offset_message_id)
        .with("MessageID", &message.message_id)
        .with("Topic", &message.topic)
        .with("Tags", format!("[{}]", message.tag().unwrap_or_default()))
        .with("Keys", format!("[{}]", message.property(name::KEYS).unwrap_or_default()))
        .with("Queue ID", message.queue_id)
        .with("Queue Offset", message.queue_offset)
        .with("CommitLog Offset", message.log_offset)
        .with("Reconsume Times", message.reconsume_times)
        .with("Born Timestamp", Cell::time(message.born_timestamp))
        .with("Store Timestamp", Cell::time(message.store_timestamp))
        .with("Born Host", message.born_host.to_string())
        .with("Store Host", message.store_host.to_string());
    if let Some(origin) = unique_id::origin(&message.message_id, message.born_timestamp) {
        facts = facts
            .with("ID Made At", Cell::time(origin.at))
            .with("ID Made On Host", origin.host.to_string())
            .with("ID Made By PID", i32::from(origin.pid));
    }
    let facts = facts
        .with("System Flag", message.sys_flag)
        .with("Properties", Value::Object(properties).to_string())
        .with("Message Body Size", message.body.len())
        .with("Message Body", charset.unwrap_or(Charset::Utf8).read(&message.body));
    session.out.facts(&facts)?;
    session.out.note("")?;
    match tracks {
        Ok(tracks) if tracks.is_empty() => session.out.note("WARN: No Consumer")?,
        Ok(tracks) => {
            let mut table = Table::new(["Consumer Group", "Track"]);
            for (group, track) in &tracks {
                table.row([group.into(), name_of(track).into()]);
            }
            session.out.table("tracks", &table)?;
        }
        // The message is what was asked for; that its consumers cannot be asked takes nothing away from it.
        Err(error) => session.out.note(&format!("WARN: cannot tell who consumed it: {}", sentence(&error)))?,
    }
    Ok(())
}

/// As mqadmin spells it.
fn name_of(track: &Track) -> String {
    match track {
        Track::Consumed => "CONSUMED".to_owned(),
        Track::Filtered => "CONSUMED_BUT_FILTERED".to_owned(),
        Track::NotYet => "NOT_CONSUME_YET".to_owned(),
        Track::Pull => "PULL".to_owned(),
        Track::Broadcasting => "CONSUME_BROADCASTING".to_owned(),
        Track::NotOnline => "NOT_ONLINE".to_owned(),
        Track::Unknown(error) => format!("UNKNOWN {}", sentence(error)),
    }
}

/// Refuses what is no list of ids.
pub fn ids(text: &str) -> Result<Vec<&str>> {
    let ids: Vec<&str> = text.split(',').map(str::trim).filter(|id| !id.is_empty()).collect();
    if ids.is_empty() {
        bail!("no message id is given");
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_read_as_asked_and_bytes_that_are_no_text_are_shown_in_hex() {
        assert_eq!(Charset::Utf8.read("grüße".as_bytes()), "grüße");
        assert_eq!(Charset::Utf8.read(&[0xff, 0]), "(2 bytes that are not UTF-8: ff00)");
        assert_eq!(Charset::Latin1.read(&[0x67, 0xfc]), "gü");
        assert_eq!(Charset::named("utf-8"), Ok(Charset::Utf8));
        assert!(Charset::named("GBK").is_err());
    }
}
