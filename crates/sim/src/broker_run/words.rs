//! Who says what an answer waits for: the message, its topic, the broker, which changes its own word while it runs.
//!
//! Seeds that play this have a topic with the attribute `flush.disk.type`, messages with the property of that name or with `WAIT=false`, and now and
//! then an operator who sets `flushDiskType`. An answer that waited for the device is a promise, whatever was said to others.

use env::Random;
use protocol::body::TopicConfig;
use protocol::code::request;
use protocol::fastjson::from_slice;
use protocol::properties::{PropertiesWriter, name};
use protocol::request::{CreateTopic, GetTopicConfig};
use store::FlushMode;

use super::{DEALS, LATER, NOW, QUEUES, Run, TASKS};
use crate::served::{Request, Served, Setting};
use crate::verdict::Verdict;

/// Of the topic's attribute, and of the message's property.
const FLUSH_DISK_TYPE: &str = "flush.disk.type";
/// Other dice than those of the run.
const BESIDES: u64 = 0x0F0E_D0F0_11AB_5EED;

/// What such a seed has besides.
pub(super) struct Words {
    dice: Random,
    /// Which topic has the attribute, and what that says.
    topic: &'static str,
    topics_word: FlushMode,
    /// The broker of this life has said that the topic has it.
    is_told: bool,
    /// It said so when that waited for the device.
    is_kept: bool,
}

fn text(mode: FlushMode) -> &'static str {
    match mode {
        FlushMode::Async => "ASYNC_FLUSH",
        FlushMode::Sync => "SYNC_FLUSH",
    }
}

/// What the attribute says of a topic that the broker tells of.
fn word_of(topic: &[u8]) -> Option<String> {
    from_slice::<TopicConfig>(topic).ok()?.attributes.remove(FLUSH_DISK_TYPE)
}

impl Words {
    /// For four seeds in ten, none of which has found something without: the others keep their stories.
    pub(super) fn of(seed: u64) -> Option<Words> {
        let dice = Random::seeded(seed ^ BESIDES);
        let topic = [NOW, LATER, DEALS, TASKS][dice.below(4) as usize];
        let topics_word = if dice.below(3) == 0 { FlushMode::Async } else { FlushMode::Sync };
        let words = Words { dice, topic, topics_word, is_told: false, is_kept: false };
        matches!(seed % 10, 2 | 3 | 4 | 8).then_some(words)
    }

    fn mode(&self) -> FlushMode {
        if self.dice.below(2) == 0 { FlushMode::Async } else { FlushMode::Sync }
    }

    /// Gives a message a word of its own, or none.
    pub(super) fn say(&self, properties: &mut PropertiesWriter) -> Option<FlushMode> {
        match self.dice.below(8) {
            0 => {
                properties.put(name::WAIT, "false");
                Some(FlushMode::Async)
            }
            1..4 => {
                let mode = self.mode();
                properties.put(FLUSH_DISK_TYPE, text(mode));
                Some(mode)
            }
            _ => None,
        }
    }
}

/// How an operator makes or changes a topic.
pub(super) fn making<'a>(topic: &'a str, attributes: Option<&'a str>) -> CreateTopic<'a> {
    CreateTopic {
        topic,
        default_topic: Some("TBW102"),
        read_queue_nums: QUEUES as i32,
        write_queue_nums: QUEUES as i32,
        perm: 6,
        topic_filter_type: "SINGLE_TAG",
        topic_sys_flag: Some(0),
        order: false,
        attributes,
        force: false,
    }
}

impl Run<'_> {
    /// Settings of the broker that follow from it: what an operator has set stands in its file.
    pub(super) fn settings_of_words(&self) -> Vec<Setting> {
        let said = self.words.is_some().then(|| ("flushDiskType", text(self.options.flush).to_owned()));
        said.into_iter().collect()
    }

    /// Whether an answer to a send to this topic, of which the message says `own`, says that a loss of power takes nothing of it.
    pub(super) fn answer_is_safe(&self, topic: &str, own: Option<FlushMode>) -> bool {
        let topics_word = self.words.as_ref().filter(|words| words.topic == topic && words.is_told);
        own.or(topics_word.map(|words| words.topics_word)).unwrap_or(self.options.flush) == FlushMode::Sync
    }

    /// At a start: the broker knows each topic of which something was promised, and the attribute; and it is told of that again.
    pub(super) fn begin_words(&mut self, served: &mut Served) -> anyhow::Result<()> {
        let Some(words) = &mut self.words else { return Ok(()) };
        words.is_told = false;
        let (with, word, was_kept) = (words.topic, text(words.topics_word), words.is_kept);
        for topic in [NOW, LATER, DEALS, TASKS] {
            let is_promised = self.history.has_safe_of(topic);
            let must_have = topic == with && was_kept;
            if !is_promised && !must_have {
                continue;
            }
            let fields = GetTopicConfig { topic, lo: None };
            let request = Request { code: request::GET_TOPIC_CONFIG, fields: &fields, body: &[] };
            let Some(answer) = self.ask(served, request)? else { return Ok(()) };
            if answer.code != 0 {
                let what = format!("of topic {topic} something was promised, and the broker does not know it");
                self.report.find(Verdict::Lost, format!("{what}: {} {}", answer.code, answer.remark));
            } else if must_have && word_of(&answer.body).as_deref() != Some(word) {
                let what = format!("topic {topic} had {FLUSH_DISK_TYPE}={word}, and has it no more");
                self.report.find(Verdict::WentBack, what);
            }
        }
        let attributes = format!("+{FLUSH_DISK_TYPE}={word}");
        let fields = making(with, Some(&attributes));
        let request = Request { code: request::UPDATE_AND_CREATE_TOPIC, fields: &fields, body: &[] };
        let Some(answer) = self.ask(served, request)? else { return Ok(()) };
        self.report.tell(|| format!("{with} has {attributes}: {}", answer.code));
        if answer.code != 0 {
            let what = format!("topic {with} does not take {attributes}: {} {}", answer.code, answer.remark);
            self.report.find(Verdict::Refused, what);
        } else if let Some(words) = &mut self.words {
            words.is_told = true;
            // Also where only the topic's messages will wait for the device.
            words.is_kept |= self.options.flush == FlushMode::Sync || words.topics_word == FlushMode::Sync;
        }
        Ok(())
    }

    /// Now and then the broker gets another word.
    pub(super) fn step_of_words(&mut self, served: &mut Served) -> anyhow::Result<()> {
        let Some(words) = self.words.as_ref().filter(|words| words.dice.below(25) == 0) else { return Ok(()) };
        let mode = words.mode();
        self.report.tell(|| format!("the broker is told to flush as {}", text(mode)));
        // Whatever is answered from now on may have come under the other one.
        self.is_sync_life &= mode == FlushMode::Sync;
        let body = format!("flushDiskType={}\n", text(mode));
        let request = Request { code: request::UPDATE_BROKER_CONFIG, fields: &(), body: body.as_bytes() };
        let Some(answer) = self.ask(served, request)? else { return Ok(()) };
        if answer.code != 0 {
            let what = format!("the broker does not take {}: {} {}", text(mode), answer.code, answer.remark);
            self.report.find(Verdict::Refused, what);
        } else {
            self.options.flush = mode;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::found;
    use super::*;

    const BOTH: [FlushMode; 2] = [FlushMode::Async, FlushMode::Sync];

    /// Has the broker told that the topic says so, as one that flushes as `flush` does.
    fn told(run: &mut Run<'_>, served: &mut Served, flush: FlushMode, topics_word: FlushMode) {
        run.options.flush = flush;
        let before = run.words.take().or_else(|| Words::of(2));
        run.words = before.map(|words| Words { topics_word, ..words });
        run.begin_words(served).unwrap();
    }

    #[test]
    fn a_topic_that_says_something_else_than_was_promised_went_back() {
        for word in BOTH {
            let other = if word == FlushMode::Sync { FlushMode::Async } else { FlushMode::Sync };
            let found = found(|run, served| {
                told(run, served, FlushMode::Sync, word);
                assert_eq!(run.report.findings, []);
                told(run, served, FlushMode::Sync, other);
            });
            assert_eq!(found, [Verdict::WentBack], "{word:?}");
        }
    }

    #[test]
    fn a_topic_s_word_is_kept_where_its_answer_or_its_messages_wait_for_the_device() {
        for (flush, word) in BOTH.into_iter().flat_map(|flush| BOTH.map(|word| (flush, word))) {
            let found = found(|run, served| {
                told(run, served, flush, word);
                let is_kept = run.words.as_ref().is_some_and(|words| words.is_kept);
                assert_eq!(is_kept, flush == FlushMode::Sync || word == FlushMode::Sync, "{flush:?}, {word:?}");
            });
            assert_eq!(found, []);
        }
    }
}
