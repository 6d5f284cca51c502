//! Traces: what producers and consumers wrote down about a message.
//!
//! A trace message holds contexts, each ended by `\x02`, of fields separated by `\x01`. The first field is the kind; which fields
//! follow depends on it and on the client's version. Both ways are here, because `sendMessage -m true` writes one.

use std::time::Duration;

use client::{Message, Received, SendResult};
use protocol::message_id::parse_offset_message_id;
use protocol::properties::name;

use crate::error::{Result, ensure};
use crate::handle::Operator;
use crate::message::KeyQuery;

const FIELD_END: char = '\u{1}';
const CONTEXT_END: char = '\u{2}';

impl Operator {
    /// What clients did with a message, producers first: from the traces of that span at most `max` of each broker.
    pub async fn traces(
        &self,
        trace_topic: &str,
        id: &str,
        (begin, end): (i64, i64),
        max: i32,
    ) -> Result<Vec<TraceContext>> {
        let query = KeyQuery { begin, end, max, ..KeyQuery::of(trace_topic, id) };
        let found = self.query_all(&query, false).await?;
        let mut contexts: Vec<TraceContext> =
            found.iter().flat_map(read).filter(|context| context.message_id == id).collect();
        ensure!(!contexts.is_empty(), NotFound, "no trace of message {id} is in topic {trace_topic}");
        contexts.sort_by_key(|context| (context.kind != "Pub", context.group.clone(), context.at));
        Ok(contexts)
    }
}

/// What one client did with one message.
#[derive(Debug, PartialEq)]
pub struct TraceContext {
    /// `Pub`, `Sub`, `EndTransaction` or `Recall`.
    pub kind: &'static str,
    /// The message.
    pub message_id: String,
    /// The group of the client.
    pub group: String,
    /// The client's host.
    pub client_host: String,
    /// Milliseconds since 1970.
    pub at: i64,
    /// How long it took.
    pub cost_ms: Option<i64>,
    /// `success`, `failed`, or the end of a transaction.
    pub status: &'static str,
}

/// The contexts of a trace message that say what became of a message. What cannot be read is left out.
fn read(trace: &Received) -> Vec<TraceContext> {
    let text = String::from_utf8_lossy(&trace.body);
    let host = trace.born_host.ip().to_string();
    text.split(CONTEXT_END).filter_map(|context| read_one(context, trace.born_timestamp, &host)).collect()
}

fn read_one(context: &str, born: i64, born_host: &str) -> Option<TraceContext> {
    let fields: Vec<&str> = context.split(FIELD_END).collect();
    let field = |at: usize| fields.get(at).copied();
    let number = |at: usize| field(at).and_then(|text| text.parse::<i64>().ok());
    let success = |is_success: bool| if is_success { "success" } else { "failed" };
    let text = |at: usize| field(at).map(str::to_owned);
    match field(0)? {
        "Pub" => {
            // Before 4.3 the place of the message was not told; then the host of the client came in.
            let is_success = field(if fields.len() == 13 { 12 } else { 13 }) == Some("true");
            Some(TraceContext {
                kind: "Pub",
                at: number(1)?,
                group: text(3)?,
                message_id: text(5)?,
                cost_ms: number(10),
                status: success(is_success),
                client_host: text(14).unwrap_or_else(|| born_host.to_owned()),
            })
        }
        "SubAfter" => Some(TraceContext {
            kind: "Sub",
            message_id: text(2)?,
            cost_ms: number(3),
            status: success(field(4) == Some("true")),
            at: number(7).unwrap_or(born),
            group: text(8).unwrap_or_default(),
            client_host: born_host.to_owned(),
        }),
        "EndTransaction" => Some(TraceContext {
            kind: "EndTransaction",
            at: number(1)?,
            group: text(3)?,
            message_id: text(5)?,
            cost_ms: None,
            status: match field(11)? {
                "COMMIT_MESSAGE" => "commit",
                "ROLLBACK_MESSAGE" => "rollback",
                _ => "unknown",
            },
            client_host: born_host.to_owned(),
        }),
        _ => None,
    }
}

/// The trace of a message that was sent.
pub(crate) fn published(
    group: &str,
    message: &Message,
    sent: &SendResult,
    began_ms: i64,
    cost: Duration,
    client_host: &str,
) -> String {
    let stored = parse_offset_message_id(&sent.offset_message_id).map(|(host, _)| host.to_string());
    let fields = [
        "Pub".to_owned(),
        began_ms.to_string(),
        "DefaultRegion".to_owned(),
        group.to_owned(),
        message.topic.clone(),
        sent.message_id.clone(),
        message.get(name::TAGS).unwrap_or_default().to_owned(),
        message.get(name::KEYS).unwrap_or_default().to_owned(),
        stored.unwrap_or_default(),
        message.body.len().to_string(),
        cost.as_millis().to_string(),
        // The kind of message: 0 is a normal one.
        "0".to_owned(),
        sent.offset_message_id.clone(),
        "true".to_owned(),
        client_host.to_owned(),
    ];
    let mut text = fields.join(&FIELD_END.to_string());
    text.push(CONTEXT_END);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::SendStatus;
    use protocol::body::MessageQueue;

    #[test]
    fn a_trace_that_we_write_is_one_that_we_read() {
        let message = Message::new("t", "body").tag("a").key("k");
        let sent = SendResult {
            status: SendStatus::Ok,
            message_id: "ID".into(),
            offset_message_id: "7F00000100002A9F0000000000001000".into(),
            queue: MessageQueue::default(),
            broker_name: "b".into(),
            queue_offset: 3,
        };
        let text = published("g", &message, &sent, 1000, Duration::from_millis(7), "10.0.0.9");
        let context = read_one(text.trim_end_matches(CONTEXT_END), 0, "x").unwrap();
        let expected = TraceContext {
            kind: "Pub",
            message_id: "ID".into(),
            group: "g".into(),
            client_host: "10.0.0.9".into(),
            at: 1000,
            cost_ms: Some(7),
            status: "success",
        };
        assert_eq!(context, expected);
    }

    #[test]
    fn what_consumers_wrote_is_read_and_anything_else_is_left_out() {
        let after = ["SubAfter", "request", "ID", "12", "false", "k", "0", "2000", "g"].join("\u{1}");
        let context = read_one(&after, 5, "10.0.0.9").unwrap();
        assert_eq!((context.kind, context.at, context.status), ("Sub", 2000, "failed"));
        assert_eq!((context.cost_ms, &*context.group), (Some(12), "g"));
        for other in ["", "SubBefore\u{1}1", "Pub\u{1}x", "EndTransaction\u{1}1"] {
            assert_eq!(read_one(other, 5, "h"), None, "{other}");
        }
    }
}
