//! Between tables and JSON text; members that we do not know travel beside.

use std::path::Path;

use protocol::fastjson::{self, Dialect};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::ConfigFilesError;

/// Written by some versions of Apache, and true at that moment only: which topics a group has offsets of, and how far ahead of these it has
/// pulled. Apache would go on where a stale one says.
const OF_THE_MOMENT: [&str; 2] = ["groupTopicMap", "pullOffsetTable"];

/// The table, and the members of its text that we do not know, at their places.
pub(super) fn parse<T: DeserializeOwned + Serialize>(
    path: &Path,
    bytes: &[u8],
) -> Result<(T, Value), ConfigFilesError> {
    let whole = whole(path, bytes)?;
    let known: T = fastjson::from_slice(without_mark(bytes)).map_err(|error| bad(path, &error))?;
    let mut extras = unknown(&whole, &plain(&known));
    if let Value::Object(members) = &mut extras {
        members.retain(|name, _| !OF_THE_MOMENT.contains(&name.as_str()));
    }
    Ok((known, extras))
}

/// The whole text as a tree.
pub(super) fn whole(path: &Path, bytes: &[u8]) -> Result<Value, ConfigFilesError> {
    fastjson::from_slice(without_mark(bytes)).map_err(|error| bad(path, &error))
}

fn bad(path: &Path, error: &fastjson::JsonError) -> ConfigFilesError {
    ConfigFilesError::Content { path: path.to_owned(), cause: error.to_string() }
}

/// Apache's reader passes over a byte order mark, which some editors leave.
fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)
}

/// As a tree, null members left out.
fn plain<T: Serialize>(table: &T) -> Value {
    serde_json::from_slice(&fastjson::to_vec(table, Dialect::Standard)).unwrap_or_default()
}

/// Members of `whole` that `known` lacks, at their places.
fn unknown(whole: &Value, known: &Value) -> Value {
    let (Value::Object(whole), Value::Object(known)) = (whole, known) else { return Value::Null };
    let mut rest = Map::new();
    for (name, value) in whole {
        match known.get(name) {
            None if value.is_null() => {}
            None => {
                rest.insert(name.clone(), value.clone());
            }
            Some(known) => {
                let below = unknown(value, known);
                if !below.is_null() {
                    rest.insert(name.clone(), below);
                }
            }
        }
    }
    if rest.is_empty() { Value::Null } else { Value::Object(rest) }
}

/// Puts unknown members back to their places. Depth 1 is inside a table: an entry that is gone does not come back.
fn put_back(target: &mut Value, extras: &Value, depth: usize) {
    let (Value::Object(target), Value::Object(extras)) = (target, extras) else { return };
    for (name, value) in extras {
        match target.get_mut(name) {
            Some(below) => put_back(below, value, depth + 1),
            None if depth == 1 => {}
            None => {
                target.insert(name.clone(), value.clone());
            }
        }
    }
}

/// Standard JSON, which fastjson 1 and 2 and every other tool read, indented by tabs as Apache's files are.
pub(super) fn text<T: Serialize>(table: &T, extras: &Value) -> String {
    let mut tree = plain(table);
    put_back(&mut tree, extras, 0);
    let mut out = Vec::new();
    let mut serializer =
        serde_json::Serializer::with_formatter(&mut out, serde_json::ser::PrettyFormatter::with_indent(b"\t"));
    // Writing to memory, and a tree of strings and numbers, cannot fail.
    let _ = tree.serialize(&mut serializer);
    String::from_utf8(out).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::body::{ConsumerOffsets, SubscriptionGroupConfig, SubscriptionGroupTable, TopicConfigTable};

    const GROUPS: &str = r#"{"dataVersion":{"counter":3,"stateVersion":0,"timestamp":7},"forbiddenTable":{},"futureTop":[1],
        "subscriptionGroupTable":{"CG":{"attributes":{},"groupName":"CG","groupRetryPolicy":{"type":"EXPONENTIAL",
        "exponentialRetryPolicy":{"initial":1000,"max":2000,"multiplier":3,"jitter":9}},"futureMember":{"a":1},"retryMaxTimes":4}}}"#;

    #[test]
    fn members_that_we_do_not_know_survive_the_round_trip() {
        let (mut table, extras) = parse::<SubscriptionGroupTable>(Path::new("x"), GROUPS.as_bytes()).unwrap();
        table.subscription_group_table.get_mut("CG").unwrap().retry_max_times = 5;
        let written: Value = serde_json::from_str(&text(&table, &extras)).unwrap();
        let group = &written["subscriptionGroupTable"]["CG"];
        assert_eq!(group["futureMember"]["a"], 1);
        assert_eq!(group["groupRetryPolicy"]["exponentialRetryPolicy"]["jitter"], 9);
        assert_eq!(group["retryMaxTimes"], 5);
        assert_eq!(written["futureTop"][0], 1);
        assert_eq!(written["dataVersion"]["counter"], 3);
    }

    #[test]
    fn an_entry_that_is_gone_does_not_come_back_with_its_unknown_members() {
        let (mut table, extras) = parse::<SubscriptionGroupTable>(Path::new("x"), GROUPS.as_bytes()).unwrap();
        table.subscription_group_table.clear();
        table.subscription_group_table.insert("New".to_owned(), SubscriptionGroupConfig::default());
        let written: Value = serde_json::from_str(&text(&table, &extras)).unwrap();
        assert!(written["subscriptionGroupTable"].get("CG").is_none());
        assert!(written["subscriptionGroupTable"].get("New").is_some());
    }

    #[test]
    fn offsets_with_bare_keys_are_read_and_members_of_the_moment_dropped() {
        let apache = br#"{"dataVersion":{"counter":1,"stateVersion":0,"timestamp":2},"groupTopicMap":{"G":["T"]},"offsetTable":{"T@G":{0:5,1:7}},
            "pullOffsetTable":{"T@G":{0:9}},"resetOffsetTable":{}}"#;
        let (table, extras) = parse::<ConsumerOffsets>(Path::new("x"), apache).unwrap();
        assert_eq!(table.offset_table["T@G"][&1], 7);
        let written = text(&table, &extras);
        assert!(
            written.contains("resetOffsetTable") && OF_THE_MOMENT.iter().all(|name| !written.contains(name)),
            "{written}"
        );
    }

    #[test]
    fn what_cannot_be_read_is_named_with_the_way_out() {
        let error = parse::<TopicConfigTable>(Path::new("config/topics.json"), b"{\"topicConfigTable\":").unwrap_err();
        let text = error.to_string();
        assert!(text.contains("config/topics.json is not readable"), "{text}");
        assert!(text.contains("move it and config/topics.json.bak"), "the backup would be read in its place: {text}");
        let error = parse::<TopicConfigTable>(Path::new("config/topics.json.bak"), b"{").unwrap_err();
        assert!(error.to_string().contains("move it away"), "{error}");
    }
}
