//! Reading queues from end to end and printing what is in them.

use std::collections::BTreeMap;

use anyhow::Result;
use clap::Args;
use client::{PullStatus, Received, Route};
use env::Stdout;
use protocol::body::{MessageQueue, TopicRoute};
use protocol::code::request;
use protocol::request::{GetMaxOffset, GetMinOffset, OffsetReply, SearchOffset};

use super::message::address_of;
use super::message_view::{Charset, show_line};
use super::output::Table;
use super::session::Session;
use super::time;
use super::truth;

/// The group that tools read as; brokers make it at their start.
pub const TOOLS_GROUP: &str = "TOOLS_CONSUMER";
/// Messages in one answer.
const PULL_MAX: i32 = 32;

/// Where in a queue to read.
pub struct Span {
    /// From this time on.
    pub begin: Option<i64>,
    /// Up to the first message of this time.
    pub end: Option<i64>,
}

impl Span {
    /// From what the options say.
    pub fn new(begin: Option<&str>, end: Option<&str>) -> Result<Span> {
        Ok(Span { begin: begin.map(time::parse).transpose()?, end: end.map(time::parse).transpose()? })
    }

    /// The offsets of the span: from the first one to before the second one.
    pub async fn offsets(&self, session: &Session, address: &str, queue: &MessageQueue) -> Result<(i64, i64)> {
        let (topic, queue_id) = (queue.topic.as_str(), queue.queue_id);
        let (min, max) = (GetMinOffset { topic, queue_id }, GetMaxOffset { topic, queue_id, committed: true });
        let min = offset(&session.admin.tell(address, request::GET_MIN_OFFSET, &min).await?)?;
        let max = offset(&session.admin.tell(address, request::GET_MAX_OFFSET, &max).await?)?;
        let by_time = async |timestamp: Option<i64>, otherwise: i64| -> Result<i64> {
            let Some(timestamp) = timestamp else { return Ok(otherwise) };
            let fields = SearchOffset { topic, queue_id, timestamp, boundary_type: None, lite_topic: None };
            offset(&session.admin.tell(address, request::SEARCH_OFFSET_BY_TIMESTAMP, &fields).await?)
        };
        Ok((by_time(self.begin, min).await?, by_time(self.end, max).await?))
    }
}

fn offset(response: &client::admin::Response) -> Result<i64> {
    Ok(OffsetReply::decode(&response.fields.as_fields())?.offset)
}

/// Reads a queue and hands out each message that matches the tag expression; `see` says whether to go on.
pub async fn read(
    session: &Session,
    address: &str,
    group: &str,
    queue: &MessageQueue,
    (begin, end): (i64, i64),
    expression: &str,
    mut see: impl FnMut(&Received) -> Result<bool>,
) -> Result<()> {
    let mut at = begin;
    // Every round comes further: the broker names the offset to go on from, and a broker that names an old one ends it.
    while at < end && !Stdout::is_closed() {
        let max = i32::try_from(end - at).unwrap_or(PULL_MAX).clamp(1, PULL_MAX);
        let pulled = session.admin.pull(address, group, queue, at, max, expression).await?;
        match pulled.status {
            PullStatus::Found | PullStatus::NothingMatched => {}
            PullStatus::OffsetOutOfRange if pulled.next_offset > at => {}
            PullStatus::OffsetOutOfRange | PullStatus::NothingNew => return Ok(()),
        }
        for message in pulled.messages.iter().filter(|message| message.queue_offset < end) {
            if !see(message)? {
                return Ok(());
            }
        }
        if pulled.next_offset <= at {
            return Ok(());
        }
        at = pulled.next_offset;
    }
    Ok(())
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct PrintMsg {
    /// The topic
    #[arg(short, long)]
    topic: String,
    /// How to read bodies: UTF-8, US-ASCII or ISO-8859-1
    #[arg(short, long, default_value = "UTF-8", value_parser = Charset::named)]
    charset_name: Charset,
    /// Tags, such as "a || b"
    #[arg(short = 's', long, default_value = "*")]
    sub_expression: String,
    /// Stored at this time or later: milliseconds or yyyy-MM-dd#HH:mm:ss:SSS
    #[arg(short, long)]
    begin_timestamp: Option<String>,
    /// Stored before this time
    #[arg(short, long)]
    end_timestamp: Option<String>,
    /// Whether to print bodies: true (default) or false
    #[arg(short = 'd', long, value_parser = truth)]
    print_body: Option<bool>,
    /// For a light message queue: the parent topic, by which its brokers are found
    #[arg(short, long)]
    lmq_parent_topic: Option<String>,
}

impl PrintMsg {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let topic = self.topic.trim();
        let route = session.route(self.lmq_parent_topic.as_deref().map_or(topic, str::trim)).await?;
        let span = Span::new(self.begin_timestamp.as_deref(), self.end_timestamp.as_deref())?;
        let charset = self.print_body.unwrap_or(true).then_some(self.charset_name);
        for queue in queues(topic, &route) {
            let address = address_of(&route, &queue)?;
            let (begin, end) = span.offsets(session, &address, &queue).await?;
            let (broker, id) = (&queue.broker_name, queue.queue_id);
            session.out.note(&format!("minOffset={begin}, maxOffset={end}, broker={broker}, queueId={id}"))?;
            let see = |message: &Received| show_line(session, message, charset).map(|()| true);
            let expression = self.sub_expression.trim();
            read(session, &address, TOOLS_GROUP, &queue, (begin, end), expression, see).await?;
        }
        Ok(())
    }
}

/// The queues of a topic that can be read.
pub fn queues(topic: &str, route: &TopicRoute) -> Vec<MessageQueue> {
    Route::new(topic, route.clone()).readable
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct PrintMsgByQueue {
    /// The topic
    #[arg(short, long)]
    topic: String,
    /// The broker's name
    #[arg(short = 'a', long)]
    broker_name: String,
    /// The queue
    #[arg(short = 'i', long, value_parser = clap::value_parser!(i32).range(0..))]
    queue_id: i32,
    /// How to read bodies: UTF-8, US-ASCII or ISO-8859-1
    #[arg(short, long, default_value = "UTF-8", value_parser = Charset::named)]
    charset_name: Charset,
    /// Tags, such as "a || b"
    #[arg(short = 's', long, default_value = "*")]
    sub_expression: String,
    /// Stored at this time or later: milliseconds or yyyy-MM-dd#HH:mm:ss:SSS
    #[arg(short, long)]
    begin_timestamp: Option<String>,
    /// Stored before this time
    #[arg(short, long)]
    end_timestamp: Option<String>,
    /// Whether to print messages: true or false (default)
    #[arg(short = 'p', long = "print-msg", alias = "print msg", value_parser = truth)]
    print_msg: Option<bool>,
    /// Whether to print their bodies: true or false (default)
    #[arg(short = 'd', long, value_parser = truth)]
    print_body: Option<bool>,
    /// Whether to count messages by tag: true or false (default)
    #[arg(short = 'f', long, value_parser = truth)]
    calculate: Option<bool>,
}

impl PrintMsgByQueue {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let queue = MessageQueue {
            topic: self.topic.trim().to_owned(),
            broker_name: self.broker_name.trim().to_owned(),
            queue_id: self.queue_id,
        };
        let route = session.route(&queue.topic).await?;
        let address = address_of(&route, &queue)?;
        let span = Span::new(self.begin_timestamp.as_deref(), self.end_timestamp.as_deref())?;
        let offsets = span.offsets(session, &address, &queue).await?;
        let charset = self.print_body.unwrap_or(false).then_some(self.charset_name);
        let (prints, counts) = (self.print_msg.unwrap_or(false), self.calculate.unwrap_or(false));
        let mut by_tag: BTreeMap<String, i64> = BTreeMap::new();
        let see = |message: &Received| {
            if let Some(tag) = message.tag() {
                *by_tag.entry(tag.to_owned()).or_default() += 1;
            }
            if prints {
                show_line(session, message, charset)?;
            }
            Ok(true)
        };
        read(session, &address, TOOLS_GROUP, &queue, offsets, self.sub_expression.trim(), see).await?;
        if counts {
            let mut by_count: Vec<_> = by_tag.into_iter().collect();
            by_count.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
            let mut table = Table::new(["Tag", "Count"]);
            by_count.into_iter().for_each(|(tag, count)| table.row([tag.into(), count.into()]));
            session.out.table("tags", &table)?;
        }
        Ok(())
    }
}
