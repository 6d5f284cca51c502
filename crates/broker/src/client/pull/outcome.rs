//! What a pull has come to, and how a remoting client is told.

use std::borrow::Cow;

use bytes::Bytes;
use net::{Outgoing, ReplyTo, SharedSlice};
use protocol::code::ResponseCode;
use protocol::request::PullReply;
use store::{LogSlice, Read, ReadStatus};

use super::suggest;
use crate::broker::Broker;
use crate::parked::CheckedPull;
use crate::static_topic;
use crate::static_topic::pull::Told;

/// What a pull brings.
pub struct PullOutcome {
    code: ResponseCode,
    remark: Option<Cow<'static, str>>,
    fields: PullReply,
    messages: Messages,
}

/// How a pull has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullStatus {
    /// With messages.
    Found,
    /// There was nothing within its time.
    NotFound,
    /// Nothing that is wanted lies before [`PullOutcome::next`]; there may be more behind it.
    Again,
    /// The offset is none of the queue: the group goes on at [`PullOutcome::next`].
    OffsetMoved,
}

/// The records of an answer, one behind the other.
enum Messages {
    None,
    /// Of this broker's log, and how many bytes they are together.
    Read(usize, Vec<LogSlice>),
    /// As another broker has sent them.
    Sent(Bytes),
}

impl PullOutcome {
    /// That of a read, without what it found.
    pub(super) fn without_messages(
        broker: &Broker,
        order: &CheckedPull,
        found: &Read,
        code: ResponseCode,
        remark: &'static str,
    ) -> PullOutcome {
        let (code, fields) = fields(broker, order, found, code);
        PullOutcome { code, remark: Some(Cow::Borrowed(remark)), fields, messages: Messages::None }
    }

    /// Adds the records.
    pub(super) fn bring(&mut self, bytes: usize, slices: Vec<LogSlice>) {
        self.messages = Messages::Read(bytes, slices);
    }

    /// That of another broker.
    pub(super) fn told(Told { code, remark, fields, body }: Told) -> PullOutcome {
        PullOutcome { code, remark: remark.map(Cow::Owned), fields, messages: Messages::Sent(body) }
    }

    /// Whether there are messages, and why not.
    pub fn status(&self) -> PullStatus {
        if self.code == ResponseCode::Success {
            PullStatus::Found
        } else if self.code == ResponseCode::PullNotFound {
            PullStatus::NotFound
        } else if self.code == ResponseCode::PullOffsetMoved {
            PullStatus::OffsetMoved
        } else {
            PullStatus::Again
        }
    }

    /// The records, one behind the other, in pieces of any length.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let (read, sent) = match &self.messages {
            Messages::None => (&[][..], None),
            Messages::Read(_, slices) => (&slices[..], None),
            Messages::Sent(body) => (&[][..], Some(&body[..])),
        };
        read.iter().map(LogSlice::as_ref).chain(sent)
    }

    /// Where the next pull begins.
    pub fn next(&self) -> i64 {
        self.fields.next_begin_offset
    }

    /// The lowest offset of the queue.
    pub fn min(&self) -> i64 {
        self.fields.min_offset
    }

    /// One more than the highest offset of the queue.
    pub fn max(&self) -> i64 {
        self.fields.max_offset
    }

    /// Of a static topic: what has to be added to the offsets in the records.
    pub fn offset_delta(&self) -> Option<i64> {
        self.fields.offset_delta
    }

    /// Writes the answer. What held the records goes back to `slices`, empty, for the next read.
    pub(super) fn encode(self, reply_to: ReplyTo, out: &mut Outgoing, slices: &mut Vec<LogSlice>) {
        let PullOutcome { code, remark, fields, messages } = self;
        let remark = remark.as_deref();
        match messages {
            Messages::None => out.reply(reply_to, code, remark, &fields, &[]),
            Messages::Sent(body) => out.reply(reply_to, code, remark, &fields, &body),
            Messages::Read(bytes, mut read) => {
                let parts = read.drain(..).map(|slice| {
                    let (owner, range) = slice.into_parts();
                    SharedSlice { owner, range }
                });
                out.reply_shared(reply_to, code, remark, &fields, bytes, parts);
                *slices = read;
            }
        }
    }
}

fn fields(broker: &Broker, order: &CheckedPull, found: &Read, code: ResponseCode) -> (ResponseCode, PullReply) {
    let (code, next_begin_offset) = match broker.standing.is_slave() {
        true => of_slave(broker, order, found, code),
        false => (code, found.next),
    };
    let fields = PullReply {
        suggest_which_broker_id: suggest::broker_id(broker, order, found),
        next_begin_offset,
        min_offset: found.min,
        max_offset: found.max,
        offset_delta: None,
        topic_sys_flag: Some(order.topic.settings().topic_sys_flag),
        group_sys_flag: Some(order.group.config.load().group_sys_flag),
        forbidden_type: None,
    };
    if !order.topic.is_static() {
        return (code, fields);
    }
    let mapping = order.logical.as_ref().and_then(|_| order.topic.mapping());
    // A reader of a static topic takes this for the end of the physical queue, and goes on to the next one. Messages that are stored
    // and not flushed yet still belong to this one.
    let fields = PullReply { max_offset: found.max.max(order.bounds().1), ..fields };
    match &order.logical {
        Some(logical) => static_topic::pull::tell(mapping.as_deref(), logical, order.asked, found, code, fields),
        None => (code, fields),
    }
}

/// What a slave says where a master would say that nothing is there, or somewhere else: the master may have it. So the client tries again, there if
/// it can; nobody is led away from an offset that only the copy does not have.
fn of_slave(broker: &Broker, order: &CheckedPull, found: &Read, code: ResponseCode) -> (ResponseCode, i64) {
    if code == ResponseCode::Success || !is_outside(order, found) && suggest::keeps_readers(broker, found) {
        return (code, found.next);
    }
    let next = if code == ResponseCode::PullOffsetMoved { order.offset } else { found.next };
    (ResponseCode::PullRetryImmediately, next)
}

/// Whether a reader wants what lies outside of its queue here, and may be at the master: behind the end of a copy, of which the queue may be missing,
/// or before its beginning, where a copy that began later, or has removed more, has nothing.
pub(super) fn is_outside(order: &CheckedPull, found: &Read) -> bool {
    match found.status {
        ReadStatus::OffsetOverflowBadly => true,
        ReadStatus::OffsetTooSmall => order.offset >= 0,
        ReadStatus::NoMessageInQueue | ReadStatus::NoMatchedLogicQueue => order.offset > 0,
        ReadStatus::Found
        | ReadStatus::NoMatchedMessage
        | ReadStatus::MessageWasRemoving
        | ReadStatus::OffsetFoundNull
        | ReadStatus::OffsetOverflowOne
        | ReadStatus::OffsetReset
        | ReadStatus::Cold
        | ReadStatus::Failed
        | ReadStatus::Undecided => false,
    }
}
