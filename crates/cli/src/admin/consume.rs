//! Reading messages without committing anything, from a broker or from a file.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use clap::Args;
use client::{Received, decode};
use env::{Stdout, counted};
use operator::message::{TOOLS_GROUP, address_of, queues};
use protocol::body::MessageQueue;
use protocol::record::{Scanned, scan};

use super::message_view::{Charset, show_line};
use super::print::span;
use super::session::Session;

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct ConsumeMessage {
    /// The topic
    #[arg(short, long)]
    topic: String,
    /// The broker's name
    #[arg(short, long)]
    broker_name: Option<String>,
    /// One queue of this broker
    #[arg(short = 'i', long, requires = "broker_name", value_parser = clap::value_parser!(i32).range(0..))]
    queue_id: Option<i32>,
    /// From this place in the queue on
    #[arg(short, long, requires = "queue_id", value_parser = clap::value_parser!(i64).range(0..))]
    offset: Option<i64>,
    /// Read as this group; nothing is committed for it
    #[arg(short = 'g', long, default_value = TOOLS_GROUP)]
    consumer_group: String,
    /// Stored at this time or later: milliseconds or yyyy-MM-dd#HH:mm:ss:SSS
    #[arg(short = 's', long)]
    begin_timestamp: Option<String>,
    /// Stored before this time
    #[arg(short, long)]
    end_timestamp: Option<String>,
    /// Messages at most
    #[arg(short = 'c', long = "MessageNumber", default_value_t = 128, value_parser = clap::value_parser!(u64).range(1..))]
    message_number: u64,
}

impl ConsumeMessage {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let topic = self.topic.trim();
        let span = span(self.begin_timestamp.as_deref(), self.end_timestamp.as_deref())?;
        let now = session.operator.now();
        if [span.begin, span.end].into_iter().flatten().any(|time| time > now) {
            bail!("a time lies in the future");
        }
        let route = session.operator.route(topic).await?;
        let mut left = self.message_number;
        for queue in self.queues(queues(topic, &route))? {
            let address = address_of(&route, &queue)?;
            let (begin, end) = session.operator.offsets_in(span, &address, &queue).await?;
            let begin = self.offset.map_or(begin, |offset| offset.max(begin));
            let see = |message: Option<&Received>| {
                if let Some(message) = message {
                    show_line(session, message, Some(Charset::Utf8))?;
                    left -= 1;
                }
                anyhow::Ok(left > 0 && !Stdout::is_closed())
            };
            session.operator.read(&address, self.consumer_group.trim(), &queue, (begin, end), "*", see).await?;
            if left == 0 {
                break;
            }
        }
        session.out.note(&counted(self.message_number - left, "message"))?;
        Ok(())
    }

    /// The queues that are meant.
    fn queues(&self, mut all: Vec<MessageQueue>) -> Result<Vec<MessageQueue>> {
        if let Some(broker) = self.broker_name.as_deref().map(str::trim) {
            all.retain(|queue| {
                queue.broker_name == broker && self.queue_id.is_none_or(|queue_id| queue.queue_id == queue_id)
            });
        }
        if all.is_empty() {
            bail!("topic {} has no such queue", self.topic.trim());
        }
        Ok(all)
    }
}

#[derive(Debug, Args)]
pub struct DumpCompactionLog {
    /// The file
    #[arg(short, long)]
    file: PathBuf,
}

impl DumpCompactionLog {
    /// Prints record by record up to the end of the file, or to the place behind which nothing is written yet.
    pub async fn run(&self, session: &Session) -> Result<()> {
        let bytes = fs::read(&self.file).with_context(|| format!("cannot read {}", self.file.display()))?;
        let bytes = Bytes::from(bytes);
        let mut at = 0;
        while at < bytes.len() {
            let size = match scan(&bytes[at..], false) {
                Ok(Scanned::Record(view)) => view.total_size(),
                Ok(Scanned::Blank { .. } | Scanned::Nothing) => break,
                Err(error) => return Err(error).context(format!("no record is at {at} of {}", self.file.display())),
            };
            for message in decode(&bytes.slice(at..at + size), &"".into())? {
                show_line(session, &message, Some(Charset::Utf8))?;
            }
            at += size;
        }
        Ok(())
    }
}
