//! Sends that share a request, as those see them who answer them: the answers gather, and the last
//! one writes the reply.

use std::sync::Arc;

use config::BrokerSettings;
use net::{Outgoing, ReplyTo};
use parking_lot::Mutex;
use protocol::code::ResponseCode;
use protocol::request::SendReply;
use protocol::together::{self, PartAnswer};

use crate::answer::reply_extra;
use crate::refusal::Refusal;

/// A request with several sends, and what has become of them so far.
#[derive(Debug)]
pub(crate) struct MultiSend {
    reply_to: ReplyTo,
    /// Guards the answers; held while one is written.
    answers: Mutex<Answers>,
}

#[derive(Debug)]
struct Answers {
    body: Vec<u8>,
    missing: usize,
}

/// One of the sends of a request, which somebody will answer.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    of: Arc<MultiSend>,
    number: usize,
}

/// What the producer is told of a send, or of a part of one, apart from its records' places in the
/// log.
pub(crate) struct Stored<'a> {
    pub(crate) code: ResponseCode,
    pub(crate) remark: Option<&'a str>,
    pub(crate) queue_id: i32,
    pub(crate) queue_offset: i64,
    pub(crate) uniq_key: Option<&'a str>,
    pub(crate) recall_handle: Option<&'a str>,
}

impl Stored<'_> {
    /// Answers a send. `msg_id`: made of its records' places. `is_one_record`: it is a batch that is
    /// stored as one.
    pub(crate) fn encode(
        &self,
        reply_to: ReplyTo,
        msg_id: &str,
        is_one_record: bool,
        settings: &BrokerSettings,
        out: &mut Outgoing,
    ) {
        let &Stored { code, remark, queue_id, queue_offset, uniq_key, recall_handle } = self;
        let batch_uniq_id = uniq_key.filter(|_| is_one_record);
        let reply =
            SendReply { msg_id, queue_id, queue_offset, transaction_id: uniq_key, batch_uniq_id, recall_handle };
        out.reply(reply_to, code, remark, &(reply, reply_extra(settings)), &[]);
    }
}

impl MultiSend {
    /// The answers of so many parts, behind what they have in common.
    pub(crate) fn new(reply_to: ReplyTo, body: Vec<u8>, missing: usize) -> Arc<MultiSend> {
        Arc::new(MultiSend { reply_to, answers: Mutex::new(Answers { body, missing }) })
    }

    /// One of the parts.
    pub(crate) fn part(self: &Arc<MultiSend>, number: usize) -> Part {
        Part { of: Arc::clone(self), number }
    }
}

impl Part {
    /// Answers a part that is stored, in records at these log offsets.
    pub(crate) fn is_stored(
        &self,
        stored: &Stored<'_>,
        places: impl Iterator<Item = u64>,
        settings: &BrokerSettings,
        out: &mut Outgoing,
    ) {
        let &Stored { code, remark, queue_id, queue_offset, recall_handle, .. } = stored;
        let place = PartAnswer::stored(self.number, code.into(), queue_id, queue_offset);
        self.answer(&place.saying(remark, recall_handle), places, settings, out);
    }

    /// Answers a part that is not.
    pub(crate) fn is_refused(&self, refusal: &Refusal, settings: &BrokerSettings, out: &mut Outgoing) {
        let answer = PartAnswer::refused(self.number, refusal.code.into(), &refusal.remark);
        self.answer(&answer, std::iter::empty(), settings, out);
    }

    fn answer(
        &self,
        answer: &PartAnswer<'_>,
        places: impl Iterator<Item = u64>,
        settings: &BrokerSettings,
        out: &mut Outgoing,
    ) {
        let mut answers = self.of.answers.lock();
        together::put_answer(&mut answers.body, answer, places);
        answers.missing = answers.missing.saturating_sub(1);
        if answers.missing == 0 {
            let body = std::mem::take(&mut answers.body);
            drop(answers);
            out.reply(self.of.reply_to, ResponseCode::Success, None, &reply_extra(settings), &body);
        }
    }
}
