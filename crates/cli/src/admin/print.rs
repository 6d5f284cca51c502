//! Reading queues from end to end and printing what is in them.

use std::collections::BTreeMap;

use anyhow::Result;
use clap::Args;
use client::Received;
use env::Stdout;
use operator::message::{Span, TOOLS_GROUP, address_of, queues};
use protocol::body::MessageQueue;

use super::message_view::{Charset, show_line};
use super::output::Table;
use super::session::Session;
use super::time;
use super::truth;

/// Reads what the options say.
pub fn span(begin: Option<&str>, end: Option<&str>) -> Result<Span> {
    Ok(Span { begin: begin.map(time::parse).transpose()?, end: end.map(time::parse).transpose()? })
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
        let route = session.operator.route(self.lmq_parent_topic.as_deref().map_or(topic, str::trim)).await?;
        let span = span(self.begin_timestamp.as_deref(), self.end_timestamp.as_deref())?;
        let charset = self.print_body.unwrap_or(true).then_some(self.charset_name);
        for queue in queues(topic, &route) {
            let address = address_of(&route, &queue)?;
            let (begin, end) = session.operator.offsets_in(span, &address, &queue).await?;
            let (broker, id) = (&queue.broker_name, queue.queue_id);
            session.out.note(&format!("minOffset={begin}, maxOffset={end}, broker={broker}, queueId={id}"))?;
            let see = |message: Option<&Received>| {
                message.map_or(Ok(()), |message| show_line(session, message, charset)).map(|()| !Stdout::is_closed())
            };
            let expression = self.sub_expression.trim();
            session.operator.read(&address, TOOLS_GROUP, &queue, (begin, end), expression, see).await?;
        }
        Ok(())
    }
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
        let route = session.operator.route(&queue.topic).await?;
        let address = address_of(&route, &queue)?;
        let span = span(self.begin_timestamp.as_deref(), self.end_timestamp.as_deref())?;
        let offsets = session.operator.offsets_in(span, &address, &queue).await?;
        let charset = self.print_body.unwrap_or(false).then_some(self.charset_name);
        let (prints, counts) = (self.print_msg.unwrap_or(false), self.calculate.unwrap_or(false));
        let mut by_tag: BTreeMap<String, i64> = BTreeMap::new();
        let see = |message: Option<&Received>| {
            if let Some(tag) = message.and_then(Received::tag) {
                *by_tag.entry(tag.to_owned()).or_default() += 1;
            }
            if let Some(message) = message.filter(|_| prints) {
                show_line(session, message, charset)?;
            }
            anyhow::Ok(!Stdout::is_closed())
        };
        session.operator.read(&address, TOOLS_GROUP, &queue, offsets, self.sub_expression.trim(), see).await?;
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
