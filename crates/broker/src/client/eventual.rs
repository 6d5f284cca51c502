//! Outcomes that may have to wait for the disk or for other brokers, and their way to a remoting
//! client.

use net::{Outgoing, ReplyTo, Request};
use protocol::code::ResponseCode;
use protocol::request::OffsetReply;
use store::Store;

use crate::broker::Broker;
use crate::cold;
use crate::refusal::Refusal;
use crate::session::Session;
use crate::static_topic::replies::{Asking, answer_later};

/// A read that may wait for the disk.
pub(crate) type Look<T> = Box<dyn FnOnce(&Store) -> Result<T, Refusal> + Send>;

/// The outcome of an order, or the step that is left.
pub(crate) enum Eventual<T> {
    Now(T),
    /// Runs on a cold-read thread.
    OnDisk(Look<T>),
    /// Other brokers of a static topic have to be asked.
    Elsewhere(Asking<T>),
}

impl<T: Send + 'static> Eventual<T> {
    /// Writes the answer with `encode` as soon as there is an outcome.
    pub(crate) fn answer(
        self,
        broker: &Broker,
        session: &Session,
        request: &Request<'_>,
        out: &mut Outgoing,
        encode: fn(ReplyTo, T, &mut Outgoing),
    ) -> Result<(), Refusal> {
        let reply_to = request.reply_to();
        match self {
            Eventual::Now(outcome) => encode(reply_to, outcome, out),
            Eventual::OnDisk(look) => {
                cold::read(&broker.store, session, look, move |_, _, outcome, out| match outcome {
                    Ok(outcome) => encode(reply_to, outcome, out),
                    Err(refusal) => out.reply(reply_to, refusal.code, Some(&refusal.remark), &(), &[]),
                })?
            }
            Eventual::Elsewhere(asking) => answer_later(broker, session, request, async move {
                let outcome = asking.await?;
                let mut out = Outgoing::new();
                encode(reply_to, outcome, &mut out);
                Ok(out)
            })?,
        }
        Ok(())
    }
}

/// The answer to 14, 29, 30 and 31.
pub(crate) fn encode_offset(reply_to: ReplyTo, offset: i64, out: &mut Outgoing) {
    out.reply(reply_to, ResponseCode::Success, None, &OffsetReply { offset }, &[]);
}
