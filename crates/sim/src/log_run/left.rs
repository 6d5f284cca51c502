//! What the end of a life left, for brokers that are to open it.

use std::io::{self, Write};
use std::path::Path;

use store::StoreOptions;

use super::{End, Run, TOPICS, body};
use crate::disk::Image;

/// The files, and what has to be in them.
pub struct Left<'a> {
    /// Which life of the seed it was, from 0.
    pub life: u32,
    /// How it ended.
    pub end: End,
    /// Folders and files of the store.
    pub image: &'a Image,
    /// What the store was opened with.
    pub options: &'a StoreOptions,
    /// All that were sent and not lost before, by queue and offset.
    pub messages: Vec<LeftMessage>,
}

/// A message that was sent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeftMessage {
    /// Of its queue.
    pub topic: &'static str,
    /// Of its queue.
    pub queue: u32,
    /// Where it was stored.
    pub offset: u64,
    /// It has to be there; otherwise it may be.
    pub is_promised: bool,
    /// What it says.
    pub body: Vec<u8>,
}

impl Run<'_> {
    pub(super) fn left<'a>(&'a self, life: u32, end: End, image: &'a Image) -> Left<'a> {
        let mut messages: Vec<_> = self
            .messages
            .iter()
            .filter(|(_, message)| message.generation == self.deleted[message.topic].generation)
            .map(|(id, message)| LeftMessage {
                topic: TOPICS[message.topic],
                queue: message.queue,
                offset: message.offset,
                is_promised: self.is_promised(message, end) && message.end > self.ageing.gone,
                body: body(*id, message.bytes),
            })
            .collect();
        messages.sort();
        Left { life, end, image, options: &self.options, messages }
    }
}

impl Left<'_> {
    /// Writes the files into a folder, and beside it, with the ending `.says`, what has to be in them: settings of the broker that is to open
    /// them as `key=value`, then a line for each message: `must` or `may`, topic, queue, offset, and the CRC-32 of its body in hexadecimal.
    pub fn write(&self, to: &Path) -> io::Result<()> {
        std::fs::create_dir_all(to)?;
        self.image.write(to)?;
        let mut says = Vec::new();
        writeln!(says, "# {:?}, flush {:?}", self.end, self.options.flush)?;
        writeln!(says, "mappedFileSizeCommitLog={}", self.options.segment_bytes)?;
        writeln!(says, "mappedFileSizeConsumeQueue={}", self.options.queue_file_bytes)?;
        writeln!(says, "messageIndexEnable={}", self.options.index.is_some())?;
        if let Some(index) = &self.options.index {
            writeln!(says, "maxHashSlotNum={}", index.slots)?;
            writeln!(says, "maxIndexNum={}", index.entries)?;
        }
        for LeftMessage { topic, queue, offset, is_promised, body } in &self.messages {
            let is_promised = if *is_promised { "must" } else { "may" };
            writeln!(says, "{is_promised} {topic} {queue} {offset} {:08x}", crc32fast::hash(body))?;
        }
        std::fs::write(to.with_extension("says"), says)
    }
}
